"""Renders a conversation through a file's own chat template, which is a program by a stranger and
is treated as one (see `sandbox`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from oxillama.errors import TemplateError
from oxillama.tokenizer.sandbox import Sandbox

MAX_SOURCE = 1 << 17  # characters of a template


class ChatTemplate:
    """A chat template; compiled at its first render, so that a model with a broken one can still be
    used without it.
    """

    def __init__(self, source: str) -> None:
        if not isinstance(source, str):
            raise TemplateError(f"chat template: found {type(source).__name__}, wanted str")
        self.source = source
        self._environment = Sandbox()
        self._template: jinja2.Template | None = None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The conversation as one text; `kwargs` (bos_token, eos_token, documents, enable_thinking,
        ...) reach the template as they are.

        Raises TemplateError when the template is malformed, refuses these messages, or asks for
        what the sandbox or the budget denies.
        """
        environment = self._environment
        environment.begin((messages, tools))
        try:
            if self._template is None:
                if len(self.source) > MAX_SOURCE:
                    raise TemplateError(
                        f"chat template: {len(self.source)} characters, wanted at most {MAX_SOURCE}"
                    )
                self._template = environment.from_string(self.source)
            pieces = []
            for piece in self._template.generate(
                messages=messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                **kwargs,
            ):
                environment.keep(piece)
                pieces.append(piece)
            return "".join(pieces)
        except TemplateError:
            raise
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"chat template: line {error.lineno}: {_line(error.message)}"
            ) from error
        except (jinja2.TemplateError, RecursionError, MemoryError, SyntaxError) as error:
            raise TemplateError(f"chat template: {type(error).__name__}: {_line(error)}") from None
        # a template is a program: whatever its own code raises is the template's error
        except Exception as error:
            raise TemplateError(f"chat template: {type(error).__name__}: {_line(error)}") from error


def _line(message: object) -> str:
    return " ".join(str(message)[:500].split())
