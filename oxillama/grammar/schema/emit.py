"""Writes the cases of a schema as grammar rules: one rule per set of literals, one alternative per
case and type.

Everything here and in `numbers`, `arrays` and `objects` only narrows: a case whose constraints
cannot be written exactly is refused (`refuse` raises, or warns if the compiler is lenient), never
widened.
"""

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from oxillama._core.cases import Case
from oxillama._core.emission import kept_by_ranges
from oxillama._core.expansion import MAX_CASES
from oxillama.errors import GrammarError
from oxillama.grammar.collector import paused_collector
from oxillama.grammar.nodes import (
    ANY,
    CHOICE,
    CLASS,
    EMPTY,
    FRESH,
    NETWORK,
    NEVER,
    REGISTER,
    REPEAT,
    RULE,
    SEQUENCE,
    Ranges,
    choice,
    complement,
    intersect,
    literal,
    merge,
    repeat,
    rule,
    seq,
)
from oxillama.grammar.regex import parse_regex
from oxillama.grammar.regular import Dfa, meet
from oxillama.grammar.schema import numerals
from oxillama.grammar.schema import spelling as sp
from oxillama.grammar.schema.arrays import array as array_node
from oxillama.grammar.schema.document import Document
from oxillama.grammar.schema.expander import Expander, language
from oxillama.grammar.schema.formats import format_pattern
from oxillama.grammar.schema.numbers import numeric
from oxillama.grammar.schema.objects import names_but
from oxillama.grammar.schema.objects import object_ as object_node
from oxillama.grammar.schema.survey import FREE, LISTED, endless, living, survey

MAX_AUTOMATA = 30_000  # states of all automata of one schema
MAX_ASIDE = 4096  # rules and characters of an emitter that is not kept
MAX_PRODUCT = 64  # states times length up to which both make one automaton


class Emitter:
    """Builds the rules of one grammar.

    Once `run` has returned, several machines may ask for more, from several threads. Writing rules,
    and reading those that another thread may write, needs `lock`.
    """

    def __init__(
        self,
        document: Document,
        expander: Expander,
        *,
        flexible: bool,
        free_order: bool,
        closed: bool,
        refuse,
    ):
        self.document, self.expander = document, expander
        self.flexible, self.free_order, self.refuse = flexible, free_order, refuse
        self.closed = closed
        self._lock = threading.RLock()  # reentrant: writing a rule writes others
        self.keys: list = []
        self.rules: list[tuple | None] = []  # None: put off
        # whether a rule's network may wait until it is called
        self.lazy = bytearray()
        self.needs: list = []
        # which rules finish, empty where all do or where it is not yet known
        self.done = bytearray()
        self.numbers: dict = {}
        self.todo: list = []
        self.spelled: dict = {}
        self.letters: dict[str, tuple] = {}
        self.pairs: dict[str, tuple[tuple | None, tuple]] = {}
        self.others: dict[tuple[str, ...], tuple] = {}
        # classes of names: all of them, and without the known ones
        self.splits: dict = {}
        self.classes: dict = {}
        self.languages: list[Dfa] = []
        self.automaton_states = 0
        self.strings: dict = {}
        self.members: dict = {}
        self.texts: dict = {}
        self.where = "/"
        self.asked = False  # whether machines ask what registers leave of a language
        self._aside: Emitter | None = None

    def run(self, root: frozenset) -> bool:
        """Writes the root's rule and all rules it needs except deferred ones; returns whether
        machines will ask for more.
        """
        self.number(root)
        self.begin()
        self.settle()
        # what was put off splits into few cases, each of its own, whenever it is written
        self.expander.most_steps = 1 << 60
        self.expander.forget(self.numbers)
        none = endless(self.rules, self.needs)
        if none:
            self.done = bytearray(b"\1" * len(self.rules))
            for index in none:
                self.rules[index] = NEVER
                self.lazy[index] = self.done[index] = 0
            self.rules[:] = [node and living(node, self.done) for node in self.rules]
        return self.asked or any(self.lazy)

    def begin(self) -> None:
        """Decides how values are written."""
        self.spelling = sp.Spelling(
            self.flexible, self.block("ws") if self.flexible else EMPTY, free=self.free_order
        )
        self.colon = seq(self.spelling.space, literal(":"), self.spelling.space)
        self.comma = seq(self.spelling.space, literal(","), self.spelling.space)

    def aside(self, where: str) -> "Emitter":
        """An emitter of the same schema with rules of its own, for nodes that are not kept: what it
        writes is freed with it. It serves again until it has written a language, or a lot. where:
        the pointer that its errors name.
        """
        other = self._aside
        if (
            other is None
            or other.languages
            or len(other.rules) + len(other.spelled) + len(other.others) > MAX_ASIDE
        ):
            other = self._aside = Emitter(
                self.document,
                self.expander,
                flexible=self.flexible,
                free_order=self.free_order,
                closed=self.closed,
                refuse=self.refuse,
            )
            other.begin()
        other.where = where
        return other

    def settle(self) -> None:
        """Writes the waiting rules, or defers them."""
        while self.todo:
            index = self.todo.pop()
            key = self.keys[index]
            if index and (isinstance(key, frozenset) or key[0] in ("language", "names")):
                self.lazy[index] = 1
                self.needs[index] = survey(self, key) if isinstance(key, frozenset) else FREE
                if self.needs[index] is not None:
                    continue
            node = self.rules[index] = self.written(key)
            if node[0] == CHOICE and len(node[1]) > LISTED:
                self.lazy[index] = 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One thread at a time writes rules, and no collection looks through them meanwhile."""
        with self._lock, paused_collector():
            yield

    def write(self, index: int) -> None:
        """Writes a deferred rule, and with it what it needs at once; in `alone()`."""
        if self.rules[index] is None:
            self.rules[index] = self.written(self.keys[index])
            self.settle()

    def release(self, index: int) -> None:
        """Forgets the body of a rule that has its network now, where writing it again gives the
        same: names take several nodes for each of their letters.
        """
        key = self.keys[index]
        if isinstance(key, tuple) and key[0] == "names":
            self.rules[index] = None

    def written(self, key) -> tuple:
        """The body of a rule, without what is known not to finish."""
        node = self.body(key)
        if not self.done:
            return node
        self.done.extend(b"\1" * (len(self.rules) - len(self.done)))
        return living(node, self.done)

    @property
    def names(self) -> list[str]:
        """The names of all rules so far."""
        return ["root", *(self.name_of(key, index) for index, key in enumerate(self.keys) if index)]

    def number(self, key) -> int:
        """The rule of a set of literals (or of a named building block), written later."""
        index = self.numbers.get(key)
        if index is None:
            index = self.numbers[key] = len(self.rules)
            self.keys.append(key)
            self.rules.append(None)
            self.needs.append(None)
            self.lazy.append(0)
            self.todo.append(index)
        return index

    def name_of(self, key, index: int) -> str:
        """A readable rule name: the end of a literal's pointer."""
        if isinstance(key, str):
            return key
        if isinstance(key, tuple):
            return f"{key[0]}-{index}"
        node = min((n for n, _ in key), default=0)
        tail = self.document.pointer(node).rpartition("/")[2] if node else "value"
        clean = "".join(c if c.isascii() and c.isalnum() else "-" for c in tail)[:24].strip("-")
        return f"{clean or 'schema'}-{index}"

    def ref(self, literals: frozenset) -> tuple:
        """The node of a set of literals."""
        return rule(self.number(literals))

    def block(self, name: str) -> tuple:
        """The node of a building block: string, number, integer, char."""
        return rule(self.number(name))

    def spell(self, ranges) -> tuple:
        """One character out of ranges; what is not written raw is a rule of its own, shared by all
        that need the same.
        """
        known = self.spelled.get(ranges)
        if known is None:
            known = self.spelled[ranges] = self._raw_or_escaped(
                *_spellable(ranges, self.spelling.escaped)
            )
        return known

    def _raw_or_escaped(self, raw: Ranges, escaped: Ranges) -> tuple:
        return choice(
            *([(CLASS, raw)] if raw else []),
            *([rule(self.number(("escape", escaped)))] if escaped else []),
        )

    def spell_letter(self, letter: str) -> tuple:
        """One letter."""
        known = self.letters.get(letter)
        if known is None:
            known = self.letters[letter] = self.spell(((ord(letter), ord(letter)),))
        return known

    def spell_split(self, letter: str) -> tuple[tuple | None, tuple]:
        """One letter (None where it has no spelling), and one character that is another."""
        known = self.pairs.get(letter)
        if known is None:
            own = None if sp.lone(letter) else self.spell_letter(letter)
            known = self.pairs[letter] = own, self.spell_others((letter,))
        return known

    def spell_others(self, letters: tuple[str, ...]) -> tuple:
        """One character that is none of these letters."""
        known = self.others.get(letters)
        if known is None:
            known = self.others[letters] = self._raw_or_escaped(
                *_spellable_but(letters, self.spelling.escaped)
            )
        return known

    def body(self, key) -> tuple:
        if isinstance(key, tuple):
            if key[0] == "language":
                return seq(
                    literal('"'), self.languages[key[1]].minimal().node(self.spell), literal('"')
                )
            return self.spelling.escape(key[1]) if key[0] == "escape" else names_but(self, key[1])
        if key == "char":
            return self.spelling.char
        if key == "ws":
            return sp.whitespace()
        if key == "key-char":
            return self.spell(ANY)
        if key == "string":
            return seq(literal('"'), repeat(self.block("char")), literal('"'))
        if key == "integer":
            return numerals.any_integer()
        if key == "number":
            return numerals.any_number()
        self.where = self.document.where(min((n for n, _ in key), default=0))
        return choice(*(self.case_node(case) for case in self.expander.cases(key)))

    def case_node(self, case: Case) -> tuple:
        """All ways of writing the values of one case."""
        if case.values is not None:
            return self.spelling.values(case.values, integer=case.integer)
        parts = []
        for kind, write in (
            ("object", object_node),
            ("array", array_node),
            ("string", Emitter.string),
            ("number", numeric),
        ):
            if kind in case.types:
                parts.append(write(self, case))
        if "boolean" in case.types:
            banned = [v for v in case.banned if isinstance(v, bool)]
            parts += [
                literal(text)
                for value, text in ((True, "true"), (False, "false"))
                if value not in banned
            ]
        if "null" in case.types:
            parts.append(literal("null"))
        return choice(*parts)

    def inlined(self, node: tuple) -> tuple:
        """A node without references to rules: what a machine asks for while it runs. Only for
        scalars, whose rules are not recursive.
        """
        return self._inlined(node, {})

    def _inlined(self, node: tuple, memo: dict[int, tuple]) -> tuple:
        known = memo.get(id(node))
        if known is not None:
            return known[1]
        kind = node[0]
        out = node
        if kind == RULE:
            self.write(node[1])
            out = self._inlined(cast(tuple, self.rules[node[1]]), memo)
        elif kind in (SEQUENCE, CHOICE):
            out = (kind, tuple(self._inlined(part, memo) for part in node[1]))
        elif kind in (REPEAT, REGISTER):
            out = (kind, self._inlined(node[1], memo), *node[2:])
        elif kind == NETWORK:
            states = tuple(
                (accept, tuple((self._inlined(part, memo), target) for part, target in edges))
                for accept, edges in node[2]
            )
            out = (NETWORK, node[1], states)
        memo[id(node)] = node, out
        return out

    def fresh(
        self,
        node: tuple,
        without: Callable[["Emitter", frozenset[bytes]], tuple | None],
        size: int | None,
    ) -> tuple:
        """A node of `size` words (None: more than a text holds) but for those that a register
        holds. What is left of it, None if nothing is, machines ask for while they run.
        """
        self.asked = True
        where = self.where
        # the rules hold this node: it must not hold them, or only the garbage collector frees them
        holder = weakref.ref(self)

        def left(words: frozenset[bytes]) -> tuple | None:
            em = cast(Emitter, holder())  # the machine that asks keeps it
            with em.alone():
                return without(em.aside(where), words)

        return (FRESH, node, left, size)

    def language_without(self, dfa: Dfa, words) -> tuple | None:
        """The quoted texts of an automaton but some; None where none are left."""
        rest = dfa.without(Dfa.words(words)).minimal()
        if rest.empty:
            return None
        return self.inlined(seq(literal('"'), rest.node(self.spell), literal('"')))

    def guard(self, keyword: str, make, fallback):
        """The result of `make`; if it cannot be written, a refusal and (lenient) the fallback."""
        try:
            return make()
        except GrammarError as error:
            self.refuse(self.where, keyword, str(error))
            return fallback

    # ------------------------------------------------------------------ strings

    def string(self, case: Case) -> tuple:
        quote = literal('"')
        banned = case.banned_texts()
        if not (case.patterns or case.formats or banned or case.text_choices):
            if case.min_length == 0 and case.max_length is None:
                return self.block("string")
            return seq(quote, repeat(self.block("char"), case.min_length, case.max_length), quote)
        plain = seq(quote, repeat(self.block("char"), case.min_length, case.max_length), quote)
        keyword = (
            "pattern" if case.patterns or case.text_choices else "format" if case.formats else "not"
        )
        return self.guard(keyword, lambda: self.content(case, banned), plain)

    def content(self, case: Case, banned: list[str]) -> tuple:
        """A string under patterns, formats or bans."""
        quote = literal('"')
        sources = list(case.patterns) + [
            (format_pattern(name), sign) for name, sign in case.formats
        ]
        if len(sources) == 1 and sources[0][1] and not banned and not case.text_choices:
            node = self.direct(sources[0][0], case.min_length, case.max_length)
            if node is not None:
                return seq(quote, node, quote)
        key = case.text_key()
        if key not in self.strings:
            try:
                self.strings[key] = self.bounded(case)
            except GrammarError:
                if not case.text_choices:
                    raise
                self.strings[key] = self.combined(case)
        return self.strings[key]

    def combined(self, case: Case) -> tuple:
        """A string as one of the combinations of what it may be, where one automaton of all would
        be too large.
        """
        if case.combinations() > MAX_CASES:
            raise GrammarError(f"expands to more than {MAX_CASES} cases")
        out = []
        for chosen in itertools.product(*case.text_choices):
            one = case.copy()
            one.text_choices = ()
            for part in chosen:
                one.meet_texts(part)
            if not one.dead:
                out.append(self.string(one))
        return choice(*out)

    def bounded(self, case: Case) -> tuple:
        """A string under patterns, formats or bans, within its lengths: one automaton if that is
        small, else an automaton and a counted register.
        """
        free = case.copy()
        free.min_length, free.max_length = 0, None
        dfa = language(free).minimal()
        longest = case.max_length if case.max_length is not None else case.min_length
        if len(dfa.moves) * longest <= MAX_PRODUCT:
            if longest or case.max_length == 0:
                dfa = meet(dfa, Dfa.lengths(case.min_length, case.max_length), True)
            return NEVER if dfa.empty else self.language_block(dfa)
        node = None if dfa.empty else dfa.counted(self.spell, case.min_length, case.max_length)
        if node is None:
            return NEVER
        most = -1 if case.max_length is None else case.max_length
        return (
            REGISTER,
            seq(literal('"'), node, literal('"')),
            case.min_length,
            most,
            (),
        )

    def direct(self, source: str, least: int, most: int | None) -> tuple | None:
        """A lone pattern without an automaton, where its lengths are within the bounds anyway or
        are those of a run of one class.
        """
        regex = parse_regex(source)
        anything = repeat(self.block("char"))
        if least == 0 and most is None:
            return regex.search_node(self.spell, anything, self.flexible)
        low, high = regex.lengths()
        if low >= least and (most is None or (high is not None and high <= most)):
            return regex.search_node(self.spell, anything, self.flexible)
        run = regex.run()
        if run is None:
            return None
        ranges, low, high = run
        low = max(low, least)
        high = most if high is None else high if most is None else min(high, most)
        return NEVER if high is not None and low > high else repeat(self.spell(ranges), low, high)

    def member(self, name: str, literals: frozenset) -> tuple[tuple, tuple]:
        """A declared member, without and with a comma before it."""
        known = self.members.get((name, literals))
        if known is None:
            if name not in self.texts:
                self.texts[name] = seq(self.spelling.text(name), self.colon)
            entry = seq(self.texts[name], self.ref(literals))
            known = self.members[(name, literals)] = entry, seq(self.comma, entry)
        return known

    def language_block(self, dfa: Dfa) -> tuple:
        """A rule for the quoted texts of an automaton."""
        self.languages.append(dfa)
        self.automaton_states += len(dfa.moves)
        if self.automaton_states > MAX_AUTOMATA:
            raise GrammarError(
                f"the schema's patterns, formats and names need more than {MAX_AUTOMATA} states "
                "together"
            )
        return rule(self.number(("language", len(self.languages) - 1)))


@kept_by_ranges
def _spellable(ranges: Ranges, escaped: Ranges) -> tuple[Ranges, Ranges]:
    """What of the ranges is written raw, and what may be escaped; kept, because names share their
    letters from schema to schema.
    """
    return intersect(ranges, sp.PLAIN), intersect(ranges, escaped)


@kept_by_ranges
def _spellable_but(letters: tuple[str, ...], escaped: Ranges) -> tuple[Ranges, Ranges]:
    """The same of all characters but these letters."""
    return _spellable(complement(merge((ord(c), ord(c)) for c in letters)), escaped)
