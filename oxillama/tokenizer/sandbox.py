"""The sandbox that chat templates run in: Jinja's immutable one, with a budget for what a render
may spend.

Counted are calls and loop rounds, bytes of strings and lists made (intermediate ones too), the
nodes a value has when it is written out, and the processor time. Whatever goes beyond gets a
TemplateError instead of the machine's time and memory. To count what Jinja compiles to bare Python,
`metered` rewrites the parsed template: concatenations, loop sources, comparisons, literals of
containers and slices become calls of the environment. Every single step is small because what it
works on was paid for, so that a look at the clock between the steps is enough.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from sys import getsizeof
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from oxillama.errors import TemplateError

MAX_CALLS = 500_000  # calls, filters and loop rounds of one render
MAX_BYTES = 1 << 25  # bytes of strings and lists made by one render
MAX_NODES = 200_000  # elements of one value that is written out or compared
MAX_TREE = 30_000  # nodes of a parsed template
MAX_NUMBER = 1 << 64
MAX_SECONDS = 0.5  # processor time of one render, compiling included
MAX_WIDTH = 9999  # of a field in a format

_FILTERS = frozenset(
    {
        "abs",
        "attr",
        "batch",
        "capitalize",
        "count",
        "d",
        "default",
        "dictsort",
        "e",
        "escape",
        "first",
        "float",
        "forceescape",
        "groupby",
        "indent",
        "int",
        "items",
        "join",
        "last",
        "length",
        "list",
        "lower",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "replace",
        "reverse",
        "round",
        "safe",
        "select",
        "selectattr",
        "slice",
        "sort",
        "string",
        "striptags",
        "sum",
        "title",
        "tojson",
        "trim",
        "truncate",
        "unique",
        "upper",
        "wordcount",
    }
)
_SHALLOW = frozenset(
    {
        "attr",
        "batch",
        "count",
        "d",
        "default",
        "first",
        "items",
        "last",
        "length",
        "list",
        "map",
        "reject",
        "rejectattr",
        "reverse",
        # filters that never look into the elements of what they are given
        "select",
        "selectattr",
        "slice",
    }
)
_PER_PIECE = 64  # bytes a short string of its own takes

# String methods whose result may take more than what they are given, and how many bytes that may
# be.
_GROWING: dict[str, Callable[..., int]] = {
    "center": lambda s, width=0, *_: 4 * int(width),
    "ljust": lambda s, width=0, *_: 4 * int(width),
    "rjust": lambda s, width=0, *_: 4 * int(width),
    "zfill": lambda s, width=0: int(width),
    "expandtabs": lambda s, tabsize=8: 4 * (len(s) + s.count("\t") * max(int(tabsize), 1)),
    "replace": lambda s, old="", new="", *_: (
        getsizeof(s) + (s.count(old) if old else len(s) + 1) * getsizeof(new)
    ),
    "split": lambda s, sep=None, *_, **__: getsizeof(s) + _PER_PIECE * _pieces(s, sep),
    "encode": lambda s, *_: 4 * len(s),
    "rsplit": lambda s, sep=None, *_, **__: getsizeof(s) + _PER_PIECE * _pieces(s, sep),
    "splitlines": lambda s, *_, **__: (
        getsizeof(s) + _PER_PIECE * sum(map(s.count, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"))
    ),
}


def _pieces(text: Any, separator: Any) -> int:
    if separator:
        return text.count(separator)
    return sum(1 for _ in re.finditer(r"\S+" if isinstance(text, str) else rb"\S+", text))


def _weight(value: Any, most: int) -> tuple[int, int]:
    """How many elements a value shows when it is written out, and the characters in them; stops
    counting beyond `most` elements.
    """
    elements = size = 0
    waiting = [value]
    while waiting and elements <= most:
        one = waiting.pop()
        elements += 1
        if isinstance(one, str):
            size += len(one)
        elif isinstance(one, Mapping):
            waiting.extend(one.keys())
            waiting.extend(one.values())
        elif isinstance(one, (list, tuple, set, frozenset)):
            waiting.extend(one)
        elif type(one).__name__ in ("Namespace", "Cycler"):
            waiting.extend(vars(one).values())
    return elements, size


class _Generation(Extension):
    """`{% generation %}` marks the assistant's own words for training; when rendering it changes
    nothing.
    """

    tags = frozenset({"generation"})

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one template, set up as the `transformers` library does (real templates
    are written against that).
    """

    intercepted_binops = frozenset({"*", "+", "%", "**"})

    def __init__(self) -> None:
        self._spent = threading.local()
        self.begin()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            finalize=self._written,
        )
        own = {
            "tojson": _tojson,
            "join": self._join,
            "replace": _replace,
            "indent": _indent,
            "sum": _sum,
        }
        self.filters = {
            name: self._counted(own.get(name, self.filters[name]), deep=name not in _SHALLOW)
            for name in _FILTERS
        }
        self.filters["format"] = self._counted(
            lambda value, *args, **kwargs: self._percent(str(value), kwargs or args), deep=True
        )
        self.tests = {name: self._counted(test, deep=True) for name, test in self.tests.items()}
        self.globals = {
            name: self.globals[name] for name in ("range", "dict", "namespace", "cycler", "joiner")
        }
        self.globals.update(
            raise_exception=_raise,
            strftime_now=lambda form: datetime.now().strftime(str(form)[:1000]),
        )

    # ---- the budget
    # ----------------------------------------------------------------------------------------------

    def begin(self, inputs: Any = None) -> None:
        """Start a render's count in this thread; long conversations may cost more, in proportion to
        what `inputs` weigh.
        """
        spent = self._spent
        elements, size = _weight(inputs, 1 << 22)
        spent.calls, spent.bytes = -32 * elements, -32 * size
        spent.wall, spent.processor = time.monotonic(), time.thread_time()

    def charge(self, *, calls: int = 1, made: int = 0) -> None:
        """Count, look at the clock, and raise TemplateError beyond the budget."""
        spent = self._spent
        spent.calls += calls
        spent.bytes += made
        if spent.calls > MAX_CALLS:
            raise TemplateError(f"chat template: more than {MAX_CALLS} calls and loop rounds")
        if spent.bytes > MAX_BYTES:
            raise TemplateError(f"chat template: more than {MAX_BYTES} bytes of text and lists")
        if (
            time.monotonic() - spent.wall > MAX_SECONDS
            and time.thread_time() - spent.processor > MAX_SECONDS
        ):
            raise TemplateError(f"chat template: more than {MAX_SECONDS} seconds of processor time")

    def keep(self, result: Any) -> Any:
        """What a template makes, its size counted."""
        if isinstance(result, (str, bytes, list, tuple, dict)):
            self.charge(made=getsizeof(result))
        elif isinstance(result, int) and abs(result) > MAX_NUMBER:
            raise TemplateError("chat template: a number above 2^64")
        return result

    def measured(self, value: Any) -> Any:
        """A value about to be written out or compared: its elements counted as often as they would
        be seen.
        """
        self.charge()
        if not isinstance(value, (str, int, float, type(None))):
            elements, size = _weight(value, MAX_NODES)
            if elements > MAX_NODES:
                raise TemplateError(f"chat template: a value of more than {MAX_NODES} elements")
            if size > MAX_BYTES:
                raise TemplateError(f"chat template: a value of more than {MAX_BYTES} bytes")
            self.charge(calls=elements >> 5)
        return value

    # ---- what templates do
    # ---------------------------------------------------------------------------------------

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Operators, refused before they make something huge."""
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, (str, bytes, list, tuple)) and isinstance(other, int):
                    self.charge(made=(getsizeof(one) - getsizeof(one[:0])) * max(other, 0))
        elif operator == "%" and isinstance(left, (str, bytes)):
            return self._percent(str(left), right)
        elif (
            operator == "**"
            and isinstance(left, int)
            and isinstance(right, int)
            and abs(left) > 1
            and right * (left.bit_length() - 1) > 64
        ):
            raise TemplateError(f"chat template: {left} ** {right} is too large")
        return self.keep(super().call_binop(context, operator, left, right))

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls, counted; string methods that lengthen their string are measured first."""
        owner = getattr(function, "__self__", None)
        if owner is self:
            # written by `metered`; Jinja adds keywords of its own to every call
            return function(*args)
        self.charge()
        if isinstance(owner, (str, bytes)):
            name = getattr(function, "__name__", "")
            if name in ("translate", "maketrans"):
                raise TemplateError(f"chat template: str.{name} is not allowed, wanted replace")
            if name in _GROWING:
                self.charge(made=_GROWING[name](owner, *args, **kwargs))
            elif name == "join" and args:
                return self._join(args[0], owner)
        elif isinstance(function, type):
            self.measured((args, kwargs))  # namespace, dict, cycler, joiner
        return self.keep(super().call(context, function, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format`, with the sandbox's rules for attributes and a bound on what it makes."""
        inner = super().wrap_str_format(value)
        if inner is None:
            return None

        @wraps(inner)
        def bounded(*args: Any, **kwargs: Any) -> str:
            self._formatted(value.__self__, "{", args, kwargs)
            return inner(*args, **kwargs)

        del bounded.__wrapped__
        return bounded

    def joined(self, *parts: Any) -> str:
        """What the ~ operator makes."""
        texts = [str(self.measured(part)) for part in parts]
        self.charge(made=sum(map(getsizeof, texts)))
        return "".join(texts)

    def rounds(self, source: Iterable[Any]) -> Iterator[Any]:
        """What a loop runs over, each round counted."""
        for item in source:
            self.charge()
            yield item

    def _written(self, value: Any) -> Any:
        return self.measured(value)

    def _join(self, value: Any, d: str = "", attribute: Any = None) -> str:
        items = list(self.rounds(value))
        if attribute is not None:
            items = [self.getitem(item, attribute) for item in items]
        return (
            self.joined(*(piece for item in items for piece in (d, item)))[len(str(d)) :]
            if items
            else ""
        )

    def _percent(self, text: str, values: Any) -> str:
        self._formatted(text, "%", values if isinstance(values, tuple) else (values,), {})
        return self.keep(text % values)

    def _formatted(
        self, text: str, sign: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Count what a format may make at most; a width that only its arguments tell is refused."""
        widest = max((int(digits[:6]) for digits in re.findall(r"\d+", text)), default=0)
        if widest > MAX_WIDTH or (
            re.search(r"%[-+ #0]*\.?\d*\.?\*", text)
            if sign == "%"
            else re.search(r"\{[^{}]*\{", text.replace("{{", ""))
        ):
            raise TemplateError(
                f"chat template: the format {text[:40]!r} has a field wider than {MAX_WIDTH} or of a width not written in it"
            )
        values = (*args, *kwargs.values())
        self.measured(values)
        longest = max((len(str(value)) for value in values), default=0)
        self.charge(made=getsizeof(text) + text.count(sign) * (4 * widest + 4 * longest))

    def _counted(self, function: Callable[..., Any], *, deep: bool) -> Callable[..., Any]:
        @wraps(function)  # takes Jinja's marks on the function along
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.charge()
            for value in args:
                if deep and isinstance(value, (list, tuple, Mapping)):
                    self.measured(value)
            return self.keep(function(*args, **kwargs))

        return counted

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        metered(tree)
        tree.set_environment(self)
        return tree


def metered(tree: nodes.Template) -> None:
    """Turn what costs without a call into calls that count; a template too large to compile in time
    is refused.
    """
    seen = 0

    def through(method: str, *arguments: nodes.Expr) -> nodes.Call:
        return nodes.Call(
            nodes.EnvironmentAttribute(method),
            list(arguments),
            [],
            None,
            None,
            lineno=arguments[0].lineno,
        )

    def visit(node: nodes.Node) -> None:
        nonlocal seen
        seen += 1
        if seen > MAX_TREE:
            raise TemplateError(f"chat template: more than {MAX_TREE} elements")
        for field, value in node.iter_fields():
            if isinstance(value, list):
                setattr(node, field, [replaced(item) for item in value])
            elif isinstance(value, nodes.Node):
                setattr(node, field, replaced(value))
        if isinstance(node, nodes.For):
            node.iter = through("rounds", node.iter)
        elif isinstance(node, (nodes.Compare, nodes.Operand)):
            node.expr = through("measured", node.expr)

    def replaced(node: Any) -> Any:
        if not isinstance(node, nodes.Node):
            return node
        visit(node)
        if isinstance(node, nodes.Concat):
            return through("joined", *node.nodes)
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            return through("keep", node)
        if (
            isinstance(node, (nodes.List, nodes.Tuple))
            and getattr(node, "ctx", "load") == "load"
            and not _constant(node.items)
        ):
            return through("measured", node)
        if isinstance(node, nodes.Dict) and not _constant([pair.value for pair in node.items]):
            return through("measured", node)
        return node

    visit(tree)


def _constant(items: list[nodes.Expr]) -> bool:
    return all(isinstance(item, nodes.Const) for item in items)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is written for a model: no HTML escapes, keys in their order."""
    if isinstance(indent, int) and indent > 64:
        raise TemplateError(f"chat template: tojson indent {indent}, wanted at most 64")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _replace(s: Any, old: str, new: str, count: int | None = None) -> str:
    s, old, new = str(s), str(old), str(new)
    if _GROWING["replace"](s, old, new) > MAX_BYTES:
        raise TemplateError(f"chat template: replace would make more than {MAX_BYTES} bytes")
    return s.replace(old, new, -1 if count is None else count)


def _indent(s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    if not isinstance(width, str) and int(width) > MAX_WIDTH:
        raise TemplateError(f"chat template: indent by {width}, wanted at most {MAX_WIDTH}")
    margin = width if isinstance(width, str) else " " * int(width)
    lines = str(s).splitlines(keepends=True)
    if len(margin) * len(lines) > MAX_BYTES:
        raise TemplateError(f"chat template: indent would make more than {MAX_BYTES} bytes")
    return "".join(
        (margin if (i or first) and (blank or line.strip()) else "") + line
        for i, line in enumerate(lines)
    )


def _sum(values: Iterable[Any], attribute: str | None = None, start: float = 0) -> float:
    total = start
    for value in values:
        total += value if attribute is None else value[attribute]
        if not isinstance(total, (int, float)):
            raise TemplateError(f"chat template: sum over {type(total).__name__}, wanted numbers")
    return total


def _raise(message: Any) -> None:
    raise TemplateError(f"chat template: {' '.join(str(message).split())[:2000]}")
