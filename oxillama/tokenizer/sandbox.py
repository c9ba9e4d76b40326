"""The sandbox of chat templates: Jinja's immutable sandbox, with a budget for each render, and a
record of which text came from messages (`provenance`).

Rules of the budget:

1. A template can use only a fixed list of filters (`_FILTERS`), methods of the built-in types
   (`_METHODS`), operators, and the globals set here.
2. Before an operation runs, its inputs are counted, and so is what it can produce beyond them
   (`_GROWTH` for methods, `_FILTER_GROWTH` for filters): bytes of strings and lists, intermediate
   ones too, and steps.
3. What an operation produces lazily, and each round of a loop, is counted as it comes.

Exceeding the budget raises a TemplateError before it costs the machine's time and memory. To count
what Jinja compiles to bare Python, `metered` rewrites the parsed template: concatenations, loop
sources, comparisons, container literals and slices become calls of the environment. Every single
step is small, because its inputs were counted, so checking the clock between steps is enough.
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

import markupsafe
from jinja2 import Environment, Undefined, nodes
from jinja2 import filters as jinja_filters
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, TemplateReference
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Cycler, Joiner, Namespace

from oxillama.errors import TemplateError
from oxillama.tokenizer.provenance import (
    TemplateText,
    changed,
    concat,
    formatted,
    from_message,
    holds_message,
    percent_formatted,
    plain,
)

MAX_CALLS = 500_000  # calls, filters and loop rounds of one render
MAX_BYTES = 1 << 25  # bytes of strings and lists made by one render
MAX_NODES = 200_000  # elements of one value that is written out or compared
MAX_TREE = 30_000  # nodes of a parsed template
MAX_NUMBER = 1 << 64
MAX_DEPTH = 64  # of calls inside calls: each takes some KiB of the thread's stack
MAX_SECONDS = 0.5  # processor time of one render, compiling included
# further time for long conversations: some templates look at all messages for each of them
SECONDS_PER_CHARACTER = 1e-5
MAX_MORE_SECONDS = 5.0
MAX_WIDTH = 9999  # of a field in a format

MAX_PRECISION = 300  # of round
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

# Filters over text: they write out whatever they are given.
_TEXTUAL = frozenset(
    {
        *("capitalize", "e", "escape", "forceescape", "format", "indent", "lower", "replace"),
        *("striptags", "title", "trim", "truncate", "upper", "wordcount"),
    }
)
_PER_PIECE = 64  # bytes a short string of its own takes
_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
# Objects of the template's own: what they give out is the template's, or marked already.
_OWN = (Macro, LoopContext, BlockReference, TemplateReference, Cycler, Joiner, Namespace, Undefined)

# Methods of the built-in types that a template may call.
_METHODS: dict[type, frozenset[str]] = {
    str: frozenset(
        {
            *("capitalize", "casefold", "center", "count", "encode", "endswith", "expandtabs"),
            *("find", "format", "format_map", "index", "isalnum", "isalpha", "isascii"),
            *("isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable"),
            *("isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip", "partition"),
            *("removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust"),
            *("rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip"),
            *("swapcase", "title", "upper", "zfill"),
        }
    ),
    bytes: frozenset({"count", "decode", "endswith", "find", "hex", "startswith"}),
    dict: frozenset({"copy", "get", "items", "keys", "pop", "setdefault", "update", "values"}),
    list: frozenset({"append", "copy", "count", "extend", "index", "insert", "pop"}),
    tuple: frozenset({"count", "index"}),
    float: frozenset({"is_integer"}),
    int: frozenset({"bit_length"}),
}
# Those that change what they belong to: a template's own lists and dicts, and the copies that it is
# given of everything else. A subclass may be a caller's own object and is left alone.
_CHANGING = frozenset({"append", "extend", "insert", "pop", "setdefault", "update"})
_PER_ITEM = 128  # bytes that a further element of a list or dict takes at most


# Codecs and handlers of errors of `encode` and `decode`: those whose time and size are in
# proportion to the text. Others are not (punycode and idna take its square).
_CODECS = frozenset(
    {
        *("ascii", "us-ascii", "latin-1", "latin1", "iso-8859-1", "utf8", "utf-8", "utf-16"),
        *("utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "unicode-escape"),
    }
)
_HANDLERS = frozenset({"strict", "ignore", "replace", "backslashreplace", "xmlcharrefreplace"})


def _check_codec(encoding: Any = "utf-8", errors: Any = "strict") -> None:
    for what, given, wanted in (("encoding", encoding, _CODECS), ("errors", errors, _HANDLERS)):
        found = plain(given)[:40] if isinstance(given, str) else type(given).__name__
        if found.lower().replace("_", "-") not in wanted:
            raise TemplateError(
                f"chat template: {what} {found!r} is not allowed in templates, wanted one of "
                f"{', '.join(sorted(wanted))}"
            )


def _pieces(text: Any, separator: Any) -> int:
    if separator:
        return text.count(separator)
    return sum(1 for _ in re.finditer(r"\S+" if isinstance(text, str) else rb"\S+", text))


def _replaced(text: Any, old: Any, new: Any, *_: Any, **__: Any) -> int:
    times = text.count(old) if old else len(text) + 1
    if times * _PER_PIECE > 4 * MAX_BYTES:  # what is in use while it runs
        raise TemplateError(f"chat template: replace at {times} places at once is too much")
    return getsizeof(text) + times * 4 * len(new)


# How many bytes a method may make beyond a copy of what it is given.
_GROWTH: dict[str, Callable[..., int]] = {
    "center": lambda s, width=0, *_: 4 * int(width),
    "ljust": lambda s, width=0, *_: 4 * int(width),
    "rjust": lambda s, width=0, *_: 4 * int(width),
    "zfill": lambda s, width=0: 4 * int(width),
    "expandtabs": lambda s, tabsize=8: 4 * (len(s) + s.count("\t") * max(int(tabsize), 1)),
    "replace": _replaced,
    "encode": lambda s, *_, **__: 8 * len(s),
    "split": lambda s, sep=None, *_, **__: _PER_PIECE * _pieces(s, sep),
    "rsplit": lambda s, sep=None, *_, **__: _PER_PIECE * _pieces(s, sep),
    "splitlines": lambda s, *_, **__: _PER_PIECE * sum(map(s.count, _BREAKS)),
}


def _filled(value: Any, count: Any, fill_with: Any = None) -> int:
    """`slice` and `batch`: a list for each of `count`, or lists of so many fillers."""
    return _PER_PIECE * abs(int(count))


def _words(value: Any, *_: Any) -> int:
    return _PER_PIECE * len(str(value))


def _json_size(
    value: Any,
    ensure_ascii: Any = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: Any = False,
) -> int:
    """The characters of a value as JSON at most: all of them escaped, each element on a line."""
    elements, size, depth = _weight(value, MAX_NODES)
    margin = len(indent) if isinstance(indent, str) else max(int(indent or 0), 0)
    between = sum(map(len, separators)) if separators else 4
    return 6 * size + elements * (24 + 2 * between + (depth + 1) * margin)


def _indented(s: Any, width: Any = 4, *_: Any, **__: Any) -> int:
    margin = len(width) if isinstance(width, str) else abs(int(width))
    return (margin + _PER_PIECE) * (1 + sum(map(str(s).count, _BREAKS)))


def _rounded(value: Any, precision: Any = 0, *_: Any) -> int:
    if abs(int(precision)) > MAX_PRECISION:
        raise TemplateError(f"chat template: round to {precision}, wanted at most {MAX_PRECISION}")
    return 0


# The same for filters.
_FILTER_GROWTH: dict[str, Callable[..., int]] = {
    "batch": _filled,
    "slice": _filled,
    "title": _words,
    "wordcount": _words,
    "striptags": _words,
    "e": lambda value: 6 * len(str(value)),
    "escape": lambda value: 6 * len(str(value)),
    "forceescape": lambda value: 6 * len(str(value)),
    "indent": _indented,
    "replace": lambda s, old="", new="", count=None: _replaced(str(s), str(old), str(new)),
    "round": _rounded,
    "tojson": _json_size,
}


def _weight(value: Any, most: int) -> tuple[int, int, int]:
    """How many elements a value shows when it is written out, the characters in them, and how
    deeply they are nested; stops counting beyond `most` elements.
    """
    elements = size = deepest = 0
    waiting = [(value, 0)]
    while waiting and elements <= most:
        if len(waiting) > most:  # of a value that holds itself, ever more would wait
            return elements + len(waiting), size, deepest
        one, depth = waiting.pop()
        elements += 1
        deepest = max(deepest, depth)
        if isinstance(one, (str, bytes)):
            size += len(one)
        elif isinstance(one, Mapping):
            waiting.extend((each, depth + 1) for pair in one.items() for each in pair)
        elif isinstance(one, (list, tuple, set, frozenset)):
            waiting.extend((each, depth + 1) for each in one)
        elif isinstance(one, Namespace):
            values = getattr(one, "_Namespace__attrs").values()  # noqa: B009 (a mangled name)
            waiting.extend((each, depth + 1) for each in values)
        elif isinstance(one, Cycler):
            waiting.extend((each, depth + 1) for each in one.items)
    return elements, size, deepest


class _Generation(Extension):
    """`{% generation %}` marks the assistant's own words for training; when rendering it changes
    nothing.
    """

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
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
        own: dict[str, Callable[..., Any]] = {
            "attr": self._attribute,
            "e": _escape,
            "escape": _escape,
            "forceescape": _escape,
            "format": self._format_filter,
            "indent": _indent,
            "join": self._join,
            "replace": _replace,
            "safe": self._text,
            "string": self._text,
            "striptags": _striptags,
            "sum": _sum,
            "title": _title,
            "tojson": _tojson,
        }
        known: dict[str, Callable[..., Any]] = {**self.filters, **own}
        self.filters = {name: self._counted(known[name], name) for name in (*_FILTERS, "format")}
        tests: Mapping[str, Any] = self.tests
        self.tests = {name: self._counted(test, "") for name, test in tests.items()}
        self.globals = {
            name: self.globals[name] for name in ("range", "dict", "namespace", "cycler", "joiner")
        }
        self._constructors = tuple(self.globals.values())
        self._functions = (_raise, _strftime_now)
        self.globals.update(raise_exception=_raise, strftime_now=_strftime_now)

    # ---- the budget

    def begin(self, inputs: Any = None) -> None:
        """Start a render's count in this thread; long conversations may cost more, in proportion to
        what `inputs` weigh.
        """
        spent = self._spent
        elements, size, _ = _weight(inputs, 1 << 22)
        spent.depth = 0
        spent.calls, spent.bytes = -64 * elements - (size >> 4), -32 * size
        spent.seconds = MAX_SECONDS + min(size * SECONDS_PER_CHARACTER, MAX_MORE_SECONDS)
        spent.halves = 0  # of these seconds that are over
        self._look()

    def _look(self) -> None:
        """Look at the clock: half of the time begins."""
        self._spent.wall, self._spent.processor = time.monotonic(), time.thread_time()

    def charge(self, *, calls: int = 1, made: int = 0) -> None:
        """Count, look at the clock, and raise TemplateError beyond the budget."""
        spent = self._spent
        spent.calls += calls
        spent.bytes += made
        if spent.calls > MAX_CALLS:
            raise TemplateError(f"chat template: more than {MAX_CALLS} calls and loop rounds")
        if spent.bytes > MAX_BYTES:
            raise TemplateError(f"chat template: more than {MAX_BYTES} bytes of text and lists")
        half = spent.seconds / 2
        if time.monotonic() - spent.wall > half and time.thread_time() - spent.processor > half:
            # Python may collect the whole process's garbage in one of the steps, which is not the
            # template's time: it can end one half, and not both
            spent.halves += 1
            self._look()
        if spent.halves >= 2:
            raise TemplateError(
                f"chat template: more than {spent.seconds:.1f} seconds of processor time"
            )

    def keep(self, result: Any) -> Any:
        """What a template makes, its size counted."""
        if isinstance(result, (str, bytes, list, tuple, dict)):
            marks = len(result) if isinstance(result, TemplateText) else 0
            self.charge(made=getsizeof(result) + marks)
        elif isinstance(result, int) and abs(result) > MAX_NUMBER:
            raise TemplateError("chat template: a number above 2^64")
        return result

    def measured(self, value: Any) -> Any:
        """A value about to be written out or compared: its elements counted as often as they would
        be seen.
        """
        self.charge()
        if not isinstance(value, (str, int, float, type(None))):
            elements, size, _ = _weight(value, MAX_NODES)
            if elements > MAX_NODES:
                raise TemplateError(f"chat template: a value of more than {MAX_NODES} elements")
            if size > MAX_BYTES:
                raise TemplateError(f"chat template: a value of more than {MAX_BYTES} bytes")
            self.charge(calls=elements >> 5)
        return value

    def searched(self, value: Any) -> Any:
        """What a key or an element is looked for in: a table finds a key by its hash, whatever else
        it holds.
        """
        if not isinstance(value, dict):
            return self.measured(value)
        self.charge()
        return value

    def rounds(self, source: Iterable[Any]) -> Iterator[Any]:
        """What a loop runs over, each round counted."""
        for item in source:
            self.charge()
            yield item

    # ---- what templates do

    def concat(self, parts: Iterable[str]) -> str:  # type: ignore[override]
        """The text of a block, a macro or a `set`."""
        pieces = list(parts)
        self.charge(made=sum(map(getsizeof, pieces)))
        return concat(pieces)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """The methods of built-in types are those listed; other objects keep Jinja's rules."""
        if isinstance(obj, type):
            return False
        for kind, names in _METHODS.items():
            if isinstance(obj, kind):
                return attr in names and (attr not in _CHANGING or type(obj) is kind)
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """`str.format` stays a method: `call` runs it under the sandbox's rules."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """An attribute, or the item of that name."""
        return self._of(obj, super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """An item, or the attribute of that name."""
        return self._of(obj, super().getitem(obj, argument))

    def _of(self, owner: Any, value: Any) -> Any:
        """What an object gives: text of an object that came from outside is a message's."""
        known = isinstance(owner, (str, bytes, dict, list, tuple, int, float, *_OWN))
        return value if known or owner is None else from_outside(value)

    def _attribute(self, obj: Any, name: str) -> Any:
        """The `attr` filter: an attribute alone, never an item."""
        name = plain(self._text(name))
        value = getattr(obj, name, self)
        if value is self:
            return self.undefined(obj=obj, name=name)
        if not self.is_safe_attribute(obj, name, value):
            return self.unsafe_undefined(obj, name)
        return self._of(obj, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Operators, refused before they make something huge."""
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, (str, bytes, list, tuple)) and isinstance(other, int):
                    marks = len(one) if isinstance(one, TemplateText) else 0
                    self.charge(made=(getsizeof(one) - getsizeof(one[:0]) + marks) * max(other, 0))
        elif operator == "+" and isinstance(left, (str, bytes, list, tuple)):
            self.charge(made=getsizeof(left) + getsizeof(right))
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
        """Calls, counted: methods of built-in types under the laws above, constructors, macros, and
        functions that the caller gave.
        """
        owner = getattr(function, "__self__", None)
        if owner is self:
            # written by `metered`; Jinja adds keywords of its own to every call
            return function(*args)
        scope = {name: kwargs.pop(name) for name in ("_loop_vars", "_block_vars") if name in kwargs}
        self.charge()
        if type(owner) in _METHODS or isinstance(owner, str):
            return self._method(function, owner, args, kwargs)
        if function in self._constructors:
            self.measured((args, kwargs))
            return self.keep(function(*args, **kwargs))
        if function in self._functions:  # they write out what they are given
            self.measured((args, kwargs))
        spent = self._spent
        if spent.depth == MAX_DEPTH:
            raise TemplateError(f"chat template: calls inside calls, more than {MAX_DEPTH} deep")
        spent.depth += 1
        try:
            made = super().call(context, function, *args, **scope, **kwargs)
        finally:
            spent.depth -= 1
        if function in self._functions:
            made = from_outside(made) if holds_message((args, kwargs)) else made
        elif not isinstance(function, _OWN) and not isinstance(owner, _OWN):
            made = from_outside(made)
        return self.keep(made)

    def _method(self, function: Any, owner: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """A method of a built-in type, what it takes and can make counted before it runs."""
        name = function.__name__
        if not any(isinstance(owner, kind) and name in names for kind, names in _METHODS.items()):
            raise TemplateError(
                f"chat template: {type(owner).__name__}.{name} is not allowed in templates"
            )
        if name in _CHANGING:
            return self._change(function, name, args, kwargs)
        if not isinstance(owner, (str, bytes)):
            for value in args:
                self.measured(value)
            return self.keep(function(*args, **kwargs))
        if name == "format_map":
            args, kwargs = (), dict(self.measured(args[0])) if len(args) == 1 else kwargs
        if name in ("format", "format_map"):
            return self._format(str(owner), args, kwargs)
        if name == "join":
            return self._join(args[0] if args else (), str(owner))
        if name in ("encode", "decode"):
            _check_codec(*args, **kwargs)
        sizes = sum(len(each) for each in (owner, *args) if isinstance(each, (str, bytes)))
        self.charge(calls=sizes >> 10)
        if name in _GROWTH:
            self.charge(made=_GROWTH[name](owner, *args, **kwargs))
        if isinstance(owner, str) and holds_message((args, kwargs)):
            owner = TemplateText(plain(owner), getattr(owner, "marks", bytes(len(owner))))
            function = getattr(owner, name)
        made = function(*args, **kwargs)
        return self.keep(from_outside(made) if isinstance(owner, bytes) else made)

    def _change(self, change: Any, name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
        """A method that changes a list or dict, what it adds counted before."""
        if name in ("extend", "update") and args:
            given = args[0].items() if isinstance(args[0], Mapping) else args[0]
            added = list(self.rounds(given))
            if name == "extend" and isinstance(args[0], Mapping):
                added = [key for key, _ in added]
            args = (added, *args[1:])
        count = len(kwargs) + (len(args[0]) if name in ("extend", "update") and args else 1)
        self.charge(made=_PER_ITEM * count)
        return change(*args, **kwargs)

    def joined(self, *parts: Any) -> str:
        """What the ~ operator makes."""
        texts = [self._text(self.measured(part)) for part in parts]
        self.charge(made=sum(map(getsizeof, texts)))
        return concat(texts)

    def _text(self, value: Any) -> str:
        """A value written out."""
        if isinstance(value, str):
            return value
        text = str(self.measured(value))
        return from_message(text) if holds_message(value, known=_OWN) else text

    def _textual(self, value: Any) -> Any:
        """An argument of a filter over text: what is no text yet is written out here."""
        kept = (str, int, float, type(None), Undefined, Environment, Context, EvalContext)
        return value if isinstance(value, kept) else self._text(value)

    def _written(self, value: Any) -> str:
        return self._text(self.measured(value))

    def _join(self, value: Any, d: str = "", attribute: Any = None) -> str:
        items = list(self.rounds(value))
        if attribute is not None:
            items = [self.getitem(item, attribute) for item in items]
        pieces = [piece for item in items for piece in (d, item)]
        return self.joined(*pieces[1:])

    def _percent(self, text: str, values: Any) -> str:
        given = values if isinstance(values, tuple) else (values,)
        self._charge_format(text, "%", given, {})
        return self.keep(percent_formatted(text, values))

    def _format(self, text: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        self._charge_format(text, "{", args, kwargs)
        return self.keep(formatted(SandboxedFormatter(self), text, args, kwargs))

    def _format_filter(self, value: Any, *args: Any, **kwargs: Any) -> str:
        return self._percent(str(value), kwargs or args)

    def _charge_format(
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
                f"chat template: the format {text[:40]!r} has a field wider than {MAX_WIDTH} or of "
                "a width not written in it"
            )
        values = (*args, *kwargs.values())
        self.measured(values)
        longest = max((len(str(value)) for value in values), default=0)
        fields = text.count(sign)
        self.charge(calls=fields, made=getsizeof(text) + fields * (4 * widest + 4 * longest))

    def _counted(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """A filter or test under the laws above."""
        growth = _FILTER_GROWTH.get(name)

        @wraps(function)  # takes Jinja's marks on the function along
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.charge()
            if name == "tojson" and isinstance(args[0], Iterator):
                args = (list(args[0]), *args[1:])
            for value in args:
                if isinstance(value, (list, tuple, Mapping)) and name not in _SHALLOW:
                    self.measured(value)
                elif isinstance(value, (str, bytes)):
                    self.charge(calls=len(value) >> 10)
            if growth is not None:
                own = (Environment, Context, EvalContext)  # what Jinja passes before the value
                given = args[1:] if isinstance(args[0], own) else args
                self.charge(made=growth(*given, **kwargs))
            if name in _TEXTUAL:
                args = tuple(map(self._textual, args))
            made = function(*args, **kwargs)
            return self.rounds(made) if isinstance(made, Iterator) else self.keep(made)

        return counted

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        metered(tree)
        tree.set_environment(self)
        return tree


def from_outside(value: Any) -> Any:
    """A value as a template is given it: all text in it is marked as a message's."""
    if isinstance(value, TemplateText):
        return value
    if isinstance(value, str):
        return from_message(plain(value))
    if isinstance(value, Mapping):
        return {from_outside(key): from_outside(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(from_outside, value)) if type(value) in (list, tuple) else value
    return value


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
        if isinstance(node, nodes.EvalContextModifier):
            raise TemplateError("chat template: autoescape is not allowed in templates")
        if isinstance(node, nodes.For) and isinstance(node.iter, nodes.Expr):
            node.iter = through("rounds", node.iter)
        elif isinstance(node, (nodes.Compare, nodes.Operand)):
            within = isinstance(node, nodes.Operand) and node.op in ("in", "notin")
            node.expr = through("searched" if within else "measured", node.expr)

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
    """JSON as a model expects it: no HTML escapes, keys in their order."""
    if isinstance(indent, int) and indent > 64:
        raise TemplateError(f"chat template: tojson indent {indent}, wanted at most 64")
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return from_message(text) if holds_message((value, indent, separators)) else text


def _replace(s: Any, old: str, new: str, count: int | None = None) -> str:
    texts = (str(s), str(old), str(new))
    if isinstance(texts[2], TemplateText) and not isinstance(texts[0], TemplateText):
        texts = (TemplateText(texts[0], bytes(len(texts[0]))), *texts[1:])
    return texts[0].replace(texts[1], texts[2], -1 if count is None else count)


def _indent(s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    if not isinstance(width, str) and int(width) > MAX_WIDTH:
        raise TemplateError(f"chat template: indent by {width}, wanted at most {MAX_WIDTH}")
    margin = width if isinstance(width, str) else " " * int(width)
    pieces: list[str] = []
    for i, line in enumerate(str(s).splitlines(keepends=True)):
        if (i or first) and (blank or line.strip()):
            pieces.append(margin)
        pieces.append(line)
    return concat(pieces)


def _title(s: Any) -> str:
    text = str(s)
    return changed(text, jinja_filters.do_title(plain(text)))


def _escape(value: Any) -> str:
    text = str(value)
    made = plain(str(markupsafe.escape(plain(text))))
    return from_message(made) if holds_message(value) else made


def _striptags(value: Any) -> str:
    made = markupsafe.Markup(plain(str(value))).striptags()
    return from_message(made) if holds_message(value) else made


def _sum(values: Iterable[Any], attribute: str | None = None, start: float = 0) -> float:
    total = start
    for value in values:
        total += value if attribute is None else value[attribute]
        if not isinstance(total, (int, float)):
            raise TemplateError(f"chat template: sum over {type(total).__name__}, wanted numbers")
    return total


def _raise(message: Any) -> None:
    told = " ".join(str(message).split())[:2000]
    raise TemplateError(f"chat template: {told or 'refuses these messages, and does not say why'}")


def _strftime_now(form: Any) -> str:
    return datetime.now().strftime(plain(str(form))[:1000])
