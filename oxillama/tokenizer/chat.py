"""Renders a conversation through a file's own chat template, which is a program by a stranger and is treated as one.

Templates run in Jinja's immutable sandbox, set up as the `transformers` library does (its templates are written against it). On top
of that every render has a budget: calls, loop rounds and characters made are counted, and a template that would go beyond gets a
TemplateError instead of the machine's time and memory. To count what Jinja compiles to bare operators, `_metered` rewrites the
parsed template: concatenations and loop sources become calls of the environment.
"""
from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence, Sized
from datetime import datetime
from itertools import islice
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from oxillama.errors import TemplateError

MAX_SOURCE = 1 << 20        # characters of a template
MAX_CALLS = 200_000         # calls and loop rounds of one render
MAX_CHARS = 1 << 25         # characters made by one render, intermediate ones included
MAX_NUMBER = 1 << 64
# String methods whose result may be longer than what they are given, and how long it may become.
_GROWING = {"center": lambda s, width=0, *_: int(width), "ljust": lambda s, width=0, *_: int(width), "rjust": lambda s, width=0, *_: int(width),
            "zfill": lambda s, width=0: int(width), "expandtabs": lambda s, tabsize=8: len(s) * max(int(tabsize), 1),
            "replace": lambda s, old="", new="", *_: len(s) + (s.count(old) if old else len(s) + 1) * len(new)}
_FILTERS = frozenset({"abs", "attr", "batch", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "forceescape",
                      "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr",
                      "replace", "reverse", "round", "safe", "select", "selectattr", "slice", "sort", "string", "striptags", "sum", "title",
                      "tojson", "trim", "truncate", "unique", "upper", "wordcount"})


class _Generation(Extension):
    """`{% generation %}` marks the assistant's own words for training; when rendering it changes nothing."""

    tags = frozenset({"generation"})

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, counting what a render spends."""

    intercepted_binops = frozenset({"*", "+", "%", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.filters = {name: self.filters[name] for name in _FILTERS if name in self.filters}
        self.filters.update(tojson=_tojson, join=self._join, replace=self._replace, indent=self._indent, batch=self._cut(self.filters["batch"]),
                            slice=self._cut(self.filters["slice"]))
        self.globals = {name: self.globals[name] for name in ("range", "dict", "namespace", "cycler", "joiner")}
        self.globals.update(raise_exception=_raise, strftime_now=lambda form: datetime.now().strftime(str(form)[:1000]))
        self._spent = threading.local()

    # ---- the budget ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start a render's count."""
        self._spent.calls = self._spent.chars = 0

    def charge(self, *, calls: int = 0, chars: int = 0) -> None:
        """Count, and raise TemplateError beyond the budget."""
        self._spent.calls += calls
        self._spent.chars += chars
        if self._spent.calls > MAX_CALLS:
            raise TemplateError(f"chat template: more than {MAX_CALLS} calls and loop rounds")
        if self._spent.chars > MAX_CHARS:
            raise TemplateError(f"chat template: more than {MAX_CHARS} characters")

    # ---- what can grow -------------------------------------------------------------------------------------------

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Operators, refused before they make something huge."""
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, (str, bytes, list, tuple)) and isinstance(other, int):
                    self.charge(chars=_weight(one) * max(other, 0))
        elif operator == "%" and isinstance(left, (str, bytes)):
            raise TemplateError("chat template: % formatting is not allowed, wanted the ~ operator")
        elif operator == "**" and isinstance(left, int) and isinstance(right, int) and abs(left) > 1 and right * left.bit_length() > 64:
            raise TemplateError(f"chat template: {left} ** {right} is too large")
        if operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
            self.charge(chars=_weight(left) + _weight(right))
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, Sized):
            self.charge(chars=len(result))
        elif isinstance(result, int) and abs(result) > MAX_NUMBER:
            raise TemplateError("chat template: a number above 2^64")
        return result

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls, counted; string methods that lengthen their string are measured first."""
        self.charge(calls=1)
        owner = getattr(function, "__self__", None)
        if isinstance(owner, (str, bytes)):
            name = getattr(function, "__name__", "")
            if name in _GROWING:
                self.charge(chars=_GROWING[name](owner, *args, **kwargs))
            elif name == "join" and args:
                return self._join(args[0], owner)
        return super().call(context, function, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Any:
        """`str.format` can write a text of any width from one short field."""
        if getattr(value, "__name__", "") in ("format", "format_map") and isinstance(getattr(value, "__self__", None), str):
            return _no_format
        return None

    def joined(self, *parts: Any) -> str:
        """What the ~ operator makes."""
        texts = [str(part) for part in parts]
        self.charge(chars=sum(map(len, texts)))
        return "".join(texts)

    def rounds(self, source: Any) -> Any:
        """What a loop runs over, its rounds counted."""
        if not isinstance(source, Sized):
            source = list(islice(source, MAX_CALLS + 1))
        self.charge(calls=len(source))
        return source

    def _join(self, value: Any, d: str = "", attribute: Any = None) -> str:
        items = list(self.rounds(value))
        if attribute is not None:
            items = [self.getitem(item, attribute) for item in items]
        return str(self.joined(*(piece for item in items for piece in (d, item))))[len(str(d)):] if items else ""

    def _replace(self, s: Any, old: str, new: str, count: int | None = None) -> str:
        s, old, new = str(s), str(old), str(new)
        self.charge(chars=_GROWING["replace"](s, old, new))
        return s.replace(old, new, -1 if count is None else count)

    def _indent(self, s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        margin = width if isinstance(width, str) else " " * min(int(width), MAX_CHARS)
        lines = str(s).splitlines(keepends=True)
        self.charge(chars=len(margin) * len(lines))
        return "".join((margin if (i or first) and (blank or line.strip()) else "") + line for i, line in enumerate(lines))

    def _cut(self, function: Any) -> Any:
        def limited(value: Any, count: int, fill_with: Any = None) -> Any:
            self.charge(calls=int(count))
            return function(value, count, fill_with)
        return limited

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _metered(super()._parse(source, name, filename))


def _metered(tree: nodes.Template) -> nodes.Template:
    """The template with concatenations and loop sources turned into calls that count."""
    def through(method: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
        return nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None, lineno=line)

    def visit(node: nodes.Node) -> None:
        for field, value in node.iter_fields():
            if isinstance(value, list):
                setattr(node, field, [replaced(item) for item in value])
            elif isinstance(value, nodes.Node):
                setattr(node, field, replaced(value))
        if isinstance(node, nodes.For):
            node.iter = through("rounds", [node.iter], node.lineno)

    def replaced(node: Any) -> Any:
        if isinstance(node, nodes.Node):
            visit(node)
            if isinstance(node, nodes.Concat):
                return through("joined", node.nodes, node.lineno)
        return node

    visit(tree)
    return tree.set_environment(tree.environment) if tree.environment else tree


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    """JSON as it is written for a model: no HTML escapes, keys in their order."""
    if isinstance(indent, int) and indent > 64:
        raise TemplateError(f"chat template: tojson indent {indent}, wanted at most 64")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _weight(value: Sized) -> int:
    """Characters, or about what the items of a list take in their place."""
    return len(value) if isinstance(value, (str, bytes)) else 32 * len(value)


def _no_format(*_: Any, **__: Any) -> None:
    raise TemplateError("chat template: str.format is not allowed, wanted the ~ operator")


def _raise(message: Any) -> None:
    raise TemplateError(f"chat template: {str(message)[:2000]}")


class ChatTemplate:
    """A chat template; compiled at its first render, so that a model with a broken one can still be used without it."""

    def __init__(self, source: str) -> None:
        if not isinstance(source, str):
            raise TemplateError(f"chat template: found {type(source).__name__}, wanted str")
        self.source = source
        self._environment = _Environment()
        self._template: jinja2.Template | None = None

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None, add_generation_prompt: bool = True,
               **kwargs: Any) -> str:
        """The conversation as one text; `kwargs` (bos_token, eos_token, documents, enable_thinking, ...) reach the template as they are.

        Raises TemplateError when the template is malformed, refuses these messages, or asks for what the sandbox or the budget denies.
        """
        environment = self._environment
        environment.begin()
        try:
            if self._template is None:
                if len(self.source) > MAX_SOURCE:
                    raise TemplateError(f"chat template: {len(self.source)} characters, wanted at most {MAX_SOURCE}")
                self._template = environment.from_string(self.source)
            pieces = []
            for piece in self._template.generate(messages=messages, tools=tools, add_generation_prompt=add_generation_prompt, **kwargs):
                environment.charge(chars=len(piece))
                pieces.append(piece)
            return "".join(pieces)
        except TemplateError:
            raise
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"chat template: line {error.lineno}: {error.message}") from error
        except (jinja2.TemplateError, RecursionError, MemoryError, SyntaxError) as error:
            raise TemplateError(f"chat template: {type(error).__name__}: {str(error)[:500]}") from None
        except Exception as error:      # a template is a program: whatever its own code raises is the template's error
            raise TemplateError(f"chat template: {type(error).__name__}: {str(error)[:500]}") from error
