"""Renders a conversation with a file's own chat template. A template is a program from the file, so
it runs in a `sandbox`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

import jinja2

from oxillama.errors import TemplateError
from oxillama.tokenizer.provenance import TemplateText, concat, marks_of, plain
from oxillama.tokenizer.sandbox import Sandbox, from_outside

MAX_SOURCE = 1 << 17  # characters of a template
# What sources were compiled to, whoever renders them: compiling costs a hundred renders.
_CODE: dict[str, CodeType] = {}
_KEPT = 32
# Roles that templates may spell control tokens with, as in "<|" + role + "|>"; any other is text.
ROLES = frozenset(
    {
        *("assistant", "context", "developer", "documents", "function", "ipython", "model"),
        *("observation", "system", "tool", "tool_response", "user"),
    }
)


class ChatTemplate:
    """A chat template. It is compiled at its first render, so that a model with a broken template
    can be used without it.
    """

    def __init__(self, source: str) -> None:
        if not isinstance(source, str):
            raise TemplateError(f"chat template: found {type(source).__name__}, wanted str")
        self.source = source
        self._environment = Sandbox()
        self._template: jinja2.Template | None = None

    def __repr__(self) -> str:
        """The length of its text, which `source` has."""
        return f"<ChatTemplate of {len(self.source)} characters>"

    def compiled(self) -> jinja2.Template:
        """The compiled template; TemplateError if it is malformed."""
        if self._template is None:
            if len(self.source) > MAX_SOURCE:
                raise TemplateError(
                    f"chat template: {len(self.source)} characters, wanted at most {MAX_SOURCE}"
                )
            environment = self._environment
            try:
                code = _CODE.get(self.source) or environment.compile(self.source)
            except jinja2.TemplateSyntaxError as error:
                raise TemplateError(
                    f"chat template: line {error.lineno}: {_line(error.message)}"
                ) from error
            # of Jinja's parser, or of Python's for the code that Jinja makes
            except (RecursionError, MemoryError, SyntaxError):
                raise TemplateError("chat template: tags or brackets nest too deeply") from None
            if len(_CODE) >= _KEPT:
                _CODE.clear()
            _CODE[self.source] = code
            made = environment.make_globals(None)
            self._template = jinja2.Template.from_code(environment, code, made)
        return self._template

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> TemplateText:
        """The conversation as one text that records which parts came from messages.

        `variables` are passed to the template unchanged; text in them counts as a message's, except
        in those named `*_token` (bos_token, eos_token). TemplateError if the template is malformed,
        refuses these messages, or exceeds the sandbox or its budget.
        """
        environment = self._environment
        environment.begin((messages, tools))
        try:
            template = self.compiled()
            given = {
                name: value if name.endswith("_token") else from_outside(value)
                for name, value in variables.items()
            }
            pieces = []
            for piece in template.generate(
                messages=[_message(each) for each in messages],
                tools=from_outside(tools),
                add_generation_prompt=add_generation_prompt,
                **given,
            ):
                environment.keep(piece)
                pieces.append(piece)
            text = concat(pieces)
            return TemplateText(plain(text), marks_of(text))
        except TemplateError:
            raise
        except (jinja2.TemplateError, RecursionError, MemoryError, SyntaxError) as error:
            raise TemplateError(f"chat template: {type(error).__name__}: {_line(error)}") from None
        # whatever the template's own code raises is the template's error
        except Exception as error:
            raise TemplateError(f"chat template: {type(error).__name__}: {_line(error)}") from error


def _message(message: Any) -> Any:
    """A message as the template receives it."""
    made = from_outside(message)
    if isinstance(made, dict) and plain(str(made.get("role"))) in ROLES:
        made["role"] = plain(made["role"])
    return made


def _line(message: object) -> str:
    return " ".join(str(message)[:500].split())
