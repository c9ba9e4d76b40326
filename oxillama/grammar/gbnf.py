"""Reads and writes GBNF, the grammar notation of llama.cpp's users.

`parse` turns text into rule names and nodes; `render` turns nodes back into text that parses to the
same language. The notation: rules `name ::= alternatives`, literals in double quotes, classes
`[a-z]` and `[^...]`, `.`, groups, `* + ? {m} {m,} {m,n}`, comments from `#` to the end of the line,
token terminals `<[id]>`, `<text>` and `!<...>` ("any token but"). A rule ends with its line, except
inside parentheses and after `::=` or `|`; an alternative may also start on the next line with `|`.
Errors carry line and column.
"""

import re
from dataclasses import dataclass

from oxillama.errors import GrammarError
from oxillama.grammar.nodes import (
    ANY,
    CHECK,
    CHOICE,
    CLASS,
    EMPTY,
    LITERAL,
    NETWORK,
    NEVER,
    REGISTER,
    REPEAT,
    RULE,
    SEQUENCE,
    SYMBOL,
    TAKE,
    choice,
    complement,
    merge,
    repeat,
    seq,
)

OTHER = 256  # the token symbol of every token that the grammar does not name
MAX_EXPANDED = 4096
OPEN = 1 << 30  # the upper end of "any other token symbol"

NAME = re.compile(r"[A-Za-z0-9_-]+")
SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)+")
SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)+")
PLAIN = re.compile(r'[^"\\]+')
COUNT = re.compile(r"[0-9]+")
TOKEN = re.compile(r"<(?:\[([0-9]{1,9})\]|([^<>\s\[\]][^<>\s]*))>")
ESCAPES = {"n": 10, "r": 13, "t": 9, '"': 34, "\\": 92, "[": 91, "]": 93}
WIDTHS = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True, slots=True)
class Parsed:
    """The content of a GBNF text: rule names and bodies (the root first), the position of each
    rule, and the tokens it names.
    """

    names: tuple[str, ...]
    rules: tuple[tuple, ...]
    places: tuple[tuple[int, int], ...]
    tokens: tuple[int | str, ...]


class _Reader:
    """One pass over the text; `at` is the reading position."""

    def __init__(self, text: str, *, max_repetition: int, max_nesting: int):
        self.text, self.at = text, 0
        self.max_repetition, self.max_nesting = max_repetition, max_nesting
        self.numbers: dict[str, int] = {}
        self.bodies: dict[int, tuple] = {}
        self.places: dict[int, int] = {}
        self.uses: dict[int, int] = {}
        self.tokens: dict[int | str, int] = {}

    def place(self, at: int) -> tuple[int, int]:
        """Line and column, from 1."""
        return self.text.count("\n", 0, at) + 1, at - self.text.rfind("\n", 0, at)

    def fail(self, what: str, at: int | None = None):
        line, column = self.place(self.at if at is None else at)
        return GrammarError(f"grammar: line {line}, column {column}: {what}")

    def found(self) -> str:
        return repr(self.text[self.at]) if self.at < len(self.text) else "the end of the text"

    def skip(self, lines: bool):
        match = (SPACE_AND_LINES if lines else SPACE).match(self.text, self.at)
        if match:
            self.at = match.end()

    def number(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def parse(self) -> Parsed:
        self.number("root")
        self.skip(True)
        while self.at < len(self.text):
            self.rule()
            self.skip(True)
        if 0 not in self.bodies:
            raise GrammarError("grammar: no rule is called 'root'")
        for number, at in self.uses.items():
            if number not in self.bodies:
                name = next(name for name, n in self.numbers.items() if n == number)
                raise self.fail(f"rule {name!r} is used but not defined", at)
        count = len(self.numbers)
        return Parsed(
            tuple(self.numbers),
            tuple(self.bodies[i] for i in range(count)),
            tuple(self.place(self.places[i]) for i in range(count)) if count < 1000 else (),
            tuple(self.tokens),
        )

    def rule(self):
        start = self.at
        match = NAME.match(self.text, self.at)
        if not match:
            raise self.fail(f"found {self.found()}, wanted a rule name")
        number = self.number(match.group())
        if number in self.bodies:
            raise self.fail(
                f"rule {match.group()!r} is defined twice (first in line "
                f"{self.place(self.places[number])[0]})",
                start,
            )
        self.places[number] = start
        self.at = match.end()
        self.skip(False)
        if not self.text.startswith("::=", self.at):
            raise self.fail(f"found {self.found()} after rule name {match.group()!r}, wanted '::='")
        self.at += 3
        self.skip(True)
        self.bodies[number] = self.alternatives(0)
        if self.at < len(self.text) and self.text[self.at] not in "\r\n":
            raise self.fail(f"found {self.found()}, wanted the end of the line")

    def alternatives(self, depth: int) -> tuple:
        if depth > self.max_nesting:
            raise self.fail(f"groups are nested deeper than {self.max_nesting} (max_nesting)")
        parts = [self.sequence(depth)]
        while True:
            here = self.at
            self.skip(True)
            if self.text.startswith("|", self.at):
                self.at += 1
                self.skip(True)
                parts.append(self.sequence(depth))
                continue
            if depth == 0:
                self.at = here  # the line end belongs to the rule
            return choice(*parts)

    def sequence(self, depth: int) -> tuple:
        parts: list[tuple] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in "*+?{":
                if not parts:
                    raise self.fail(f"{char!r} has nothing before it to repeat")
                parts[-1] = self.repetition(parts[-1], char)
            else:
                part = self.item(char, depth)
                if part is None:
                    break
                parts.append(part)
            self.skip(depth > 0)
        if not parts:
            return EMPTY
        return parts[0] if len(parts) == 1 else (SEQUENCE, tuple(parts))

    def item(self, char: str, depth: int) -> tuple | None:
        """One item of a sequence, or None where the sequence ends."""
        if char == '"':
            return self.quoted()
        if char == "[":
            return self.klass()
        if char == ".":
            self.at += 1
            return (CLASS, ANY)
        if char == "(":
            start = self.at
            self.at += 1
            self.skip(True)
            body = self.alternatives(depth + 1)
            self.skip(True)
            if not self.text.startswith(")", self.at):
                raise self.fail(
                    f"found {self.found()}, wanted ')' (the group opens at line "
                    f"{self.place(start)[0]}, column {self.place(start)[1]})"
                )
            self.at += 1
            return body
        if char in "<!":
            return self.token()
        match = NAME.match(self.text, self.at)
        if not match:
            return None
        number = self.number(match.group())
        self.uses.setdefault(number, self.at)
        self.at = match.end()
        return (RULE, number)

    def repetition(self, body: tuple, char: str) -> tuple:
        start = self.at
        self.at += 1
        if char != "{":
            return repeat(body, 1 if char == "+" else 0, 1 if char == "?" else None)
        self.skip(True)
        least = most = self.count()
        self.skip(True)
        if self.text.startswith(",", self.at):
            self.at += 1
            self.skip(True)
            most = -1 if self.text.startswith("}", self.at) else self.count()
            self.skip(True)
        if not self.text.startswith("}", self.at):
            raise self.fail(f"found {self.found()}, wanted '}}' or ','")
        self.at += 1
        if max(least, most) > self.max_repetition:
            raise self.fail(
                f"repetition {self.text[start : self.at]} is above {self.max_repetition} "
                "(max_repetition)",
                start,
            )
        if most != -1 and most < least:
            raise self.fail(
                f"repetition {self.text[start : self.at]} has its bounds the wrong way round", start
            )
        return repeat(body, least, None if most < 0 else most)

    def count(self) -> int:
        match = COUNT.match(self.text, self.at)
        if not match:
            raise self.fail(f"found {self.found()}, wanted a number")
        self.at = match.end()
        return int(match.group()) if len(match.group()) < 12 else 10**12

    def escape(self) -> int:
        """The code point of the escape whose backslash is at `at`."""
        start = self.at
        char = self.text[self.at + 1 : self.at + 2]
        self.at += 2
        if char in ESCAPES and char:
            return ESCAPES[char]
        if char in WIDTHS and char:
            digits = self.text[self.at : self.at + WIDTHS[char]]
            if not re.fullmatch(f"[0-9A-Fa-f]{{{WIDTHS[char]}}}", digits):
                raise self.fail(
                    f"escape \\{char} needs {WIDTHS[char]} hexadecimal digits, found {digits!r}",
                    start,
                )
            self.at += WIDTHS[char]
            value = int(digits, 16)
            if value > 0x10FFFF or 0xD800 <= value <= 0xDFFF:
                raise self.fail(
                    f"escape \\{char}{digits} is not a code point that text can hold", start
                )
            return value
        raise self.fail(
            f"unknown escape \\{char}" if char else "the text ends inside an escape", start
        )

    def quoted(self) -> tuple:
        start = self.at
        self.at += 1
        out: list[str] = []
        while True:
            match = PLAIN.match(self.text, self.at)
            if match:
                out.append(match.group())
                self.at = match.end()
            if self.at >= len(self.text):
                raise self.fail("this literal has no closing quote", start)
            if self.text[self.at] == '"':
                self.at += 1
                return (LITERAL, self.encode("".join(out), start))
            out.append(chr(self.escape()))

    def encode(self, text: str, start: int) -> bytes:
        try:
            return text.encode("utf-8")
        except UnicodeEncodeError:
            raise self.fail("this literal holds a lone surrogate", start) from None

    def klass(self) -> tuple:
        start = self.at
        self.at += 1
        negated = self.text.startswith("^", self.at)
        self.at += negated
        ranges = []
        while not self.text.startswith("]", self.at):
            low = high = self.one(start)
            if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
                self.at += 1
                high = self.one(start)
                if high < low:
                    raise self.fail(
                        f"range U+{low:04X} to U+{high:04X} is the wrong way round", start
                    )
            ranges.append((low, high))
        self.at += 1
        merged = merge(ranges)
        return (CLASS, complement(merged) if negated else merged)

    def one(self, start: int) -> int:
        if self.at >= len(self.text):
            raise self.fail("this class has no closing bracket", start)
        if self.text[self.at] == "\\":
            return self.escape()
        self.at += 1
        return ord(self.text[self.at - 1])

    def token(self) -> tuple:
        start = self.at
        negated = self.text[self.at] == "!"
        self.at += negated
        match = TOKEN.match(self.text, self.at)
        if not match:
            raise self.fail(
                f"found {self.found()}, wanted a token terminal: <[id]> or <text>", start
            )
        self.at = match.end()
        key = int(match.group(1)) if match.group(1) else match.group()
        symbol = self.tokens.setdefault(key, len(self.tokens) + OTHER + 1)
        return symbol_node(symbol, negated=negated)


def symbol_node(symbol: int, *, negated: bool = False) -> tuple:
    """The node of one token, or of every other."""
    ranges = ((OTHER, symbol - 1), (symbol + 1, OPEN)) if negated else ((symbol, symbol),)
    return (SYMBOL, ranges)


def symbol_of(node: tuple) -> tuple[int, bool]:
    """What `symbol_node` made a node of."""
    ranges = node[1]
    negated = ranges[-1][1] == OPEN
    return (ranges[-1][0] - 1 if negated else ranges[0][0]), negated


def parse(text: str, *, max_repetition: int = 4096, max_nesting: int = 200) -> Parsed:
    """Reads GBNF. Raises `GrammarError` with line and column for anything that is not GBNF,
    undefined rules and exceeded limits.
    """
    if not isinstance(text, str):
        raise GrammarError(f"grammar: found {type(text).__name__}, wanted text")
    return _Reader(text, max_repetition=max_repetition, max_nesting=max_nesting).parse()


# ----------------------------------------------------------------------------------------------
# writing

DEEPEST = 100  # nodes within each other of one rule that is written
NAMED = {10: "\\n", 13: "\\r", 9: "\\t", 34: '\\"', 92: "\\\\"}


def _char(code: int, inside: str) -> str:
    if code in NAMED:
        return NAMED[code]
    if inside == "[" and code in (91, 93):
        return "\\" + chr(code)
    if inside == "[" and code in (45, 94):
        return f"\\x{code:02X}"
    if code < 0x20 or 0x7F <= code < 0xA0:
        return f"\\x{code:02X}"
    if (
        code in (0xAD, 0xFEFF, 0x2028, 0x2029)
        or 0x200B <= code <= 0x200F
        or 0xE000 <= code <= 0xF8FF
        or 0xFFF0 <= code <= 0xFFFF
    ):
        return f"\\u{code:04X}"
    return chr(code) if code < 0x10000 else f"\\U{code:08X}"


def _class(ranges) -> str:
    negated = len(ranges) > 1 and ranges[0][0] == 0 and ranges[-1][1] == 0x10FFFF or ranges == ANY
    if ranges == ANY:
        return "."
    parts = complement(ranges) if negated else ranges
    body = "".join(
        _char(low, "[") + ("-" * (high > low + 1) + _char(high, "[") if high > low else "")
        for low, high in parts
    )
    return f"[{'^' if negated else ''}{body}]"


class _Writer:
    """Renders nodes; networks become right-linear rules of their own, and so does what is nested
    deeper than `DEEPEST`.
    """

    def __init__(self, names: list[str], tokens):
        self.names, self.tokens = names, tokens
        self.extra: list[str] = []
        self.known: dict[int, str] = {}
        self.expanded: dict[int, tuple] = {}
        self.taken = set(names)
        self.later: list[tuple[str, tuple]] = []  # rules to be written

    def rest(self) -> list[str]:
        """All rules that were made of parts of others."""
        while self.later:
            name, node = self.later.pop()
            self.extra.append(f"{name} ::= {self.node(node, False)}")
        return self.extra

    def node(self, node: tuple, tight: bool, depth: int = 0) -> str:
        kind = node[0]
        if depth == DEEPEST and kind in (SEQUENCE, CHOICE, REPEAT, REGISTER):
            if id(node) not in self.known:
                self.known[id(node)] = self.unused("deep", 1)[0]
                self.later.append((self.known[id(node)], node))
            return self.known[id(node)]
        depth += 1
        if kind == LITERAL:
            return '"' + "".join(_char(ord(c), '"') for c in node[1].decode("utf-8")) + '"'
        if kind == CLASS:
            return _class(node[1])
        if kind == SEQUENCE:
            text = " ".join(self.node(part, part[0] == CHOICE, depth) for part in node[1])
            return f"({text})" if tight else text
        if kind == CHOICE:
            text = " | ".join(self.node(part, False, depth) for part in node[1])
            return f"({text})" if tight else text
        if kind == REPEAT:
            _, body, least, most = node
            marks = {(0, -1): "*", (1, -1): "+", (0, 1): "?"}
            mark = marks.get((least, most)) or (
                f"{{{least}}}" if least == most else f"{{{least},{'' if most < 0 else most}}}"
            )
            return (
                self.node(body, True, depth) + mark
                if body[0] != REPEAT
                else f"({self.node(body, False, depth)}){mark}"
            )
        if kind == RULE:
            return self.names[node[1]]
        if kind == SYMBOL:
            return self.symbol(node)
        if kind == REGISTER:
            if id(node) not in self.expanded:
                self.expanded[id(node)] = expanded(node)
            return self.node(self.expanded[id(node)], tight, depth)
        if kind != NETWORK:
            raise GrammarError("grammar: distinct words cannot be written as GBNF")
        return self.network(node, depth)

    def symbol(self, node) -> str:
        symbol, negated = symbol_of(node)
        key = self.tokens[symbol - OTHER - 1]
        return ("!" if negated else "") + (f"<[{key}]>" if isinstance(key, int) else key)

    def unused(self, stem: str, count: int) -> list[str]:
        """Names for rules."""
        base = f"{stem}{len(self.known)}"
        while any(name.startswith(base + "-") for name in self.taken):
            base += "x"
        names = [f"{base}-{i}" for i in range(count)]
        self.taken.update(names)
        return names

    def network(self, node: tuple, depth: int) -> str:
        if id(node) in self.known:
            return self.known[id(node)]
        names = self.unused("net", len(node[2]))
        self.known[id(node)] = names[node[1]]
        for name, (accept, edges) in zip(names, node[2], strict=True):
            parts = [f"{self.node(part, True, depth)} {names[target]}" for part, target in edges]
            self.extra.append(
                f"{name} ::= " + (" | ".join((['""'] if accept else []) + parts) or "[]")
            )
        return names[node[1]]


def expanded(node: tuple) -> tuple:
    """A REGISTER node as a network over its states and what the register may hold there. Raises
    `GrammarError` where that needs more than `MAX_EXPANDED` states.
    """
    _, body, least, most, needed = node
    parts = body[1] if body[0] == SEQUENCE else (body,)
    at = next((i for i, part in enumerate(parts) if part[0] == NETWORK), -1)
    if at < 0 or not all(part[0] in (LITERAL, RULE) for i, part in enumerate(parts) if i != at):
        raise GrammarError("grammar: this register cannot be written as GBNF")
    _, start, states = parts[at]
    first = (start, 0, frozenset[int]())
    ids, todo, out = {first: 0}, [first], []

    def taken(part: tuple, count: int, members: frozenset[int]):
        """What a guard makes of (count, members); None where it does not let pass."""
        _, member, spans = part
        if member == CHECK:
            return (count, members) if most < 0 or count < most else None
        if member in members:
            return None
        count += most >= 0 or count < least
        members = members | {member} if member >= 0 else members
        missing = len(set(needed) - members)
        if most >= 0 and (count > most or (needed and most - count < missing)):
            return None
        if spans is not None and not any(low <= count <= high for low, high in spans):
            return None
        return count, members

    for state, count, members in todo:
        accept, edges = states[state]
        found = []
        for part, target in edges:
            value, plain = (count, members), []
            for item in part[1] if part[0] == SEQUENCE else (part,):
                if item[0] == TAKE:
                    value = taken(item, *value)
                    if value is None:
                        break
                else:
                    plain.append(item)
            if value is None:
                continue
            key = (target, *value)
            if key not in ids:
                ids[key] = len(ids)
                todo.append(key)
                if len(ids) > MAX_EXPANDED:
                    raise GrammarError(
                        f"grammar: as GBNF this needs more than {MAX_EXPANDED} rules for one "
                        "register"
                    )
            found.append((seq(*plain), ids[key]))
        done = accept and count >= least and set(needed) <= members
        out.append((bool(done), tuple(found)))
    return seq(*parts[:at], (NETWORK, 0, tuple(out)), *parts[at + 1 :])


def render(names, rules, tokens=()) -> str:
    """GBNF text for rules (the root first); it parses to the same language."""
    writer = _Writer(list(names), tokens)
    lines = [
        f"{name} ::= {writer.node(body, False) if body != NEVER else '[]'}"
        for name, body in zip(names, rules, strict=True)
    ]
    return "\n".join(lines + writer.rest()) + "\n"


__all__ = ["NETWORK", "Parsed", "parse", "render"]
