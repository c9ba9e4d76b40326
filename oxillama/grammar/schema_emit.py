"""Writes the cases of a schema as grammar rules: one rule per set of literals, one alternative per case and type.

Everything here only ever narrows: a case whose constraints cannot be written exactly is refused (`refuse` raises, or warns when the
compiler is lenient), never widened. Objects list their properties in the declared order, further ones at the end.
"""
from fractions import Fraction
from math import ceil, floor, gcd, lcm

from oxillama.errors import GrammarError
from oxillama.grammar import spelling as sp
from oxillama.grammar.formats import format_automaton, format_pattern
from oxillama.grammar.nodes import ANY, CLASS, EMPTY, NETWORK, NEVER, choice, complement, intersect, literal, merge, repeat, rule, seq
from oxillama.grammar.regex import parse_regex, search_automaton
from oxillama.grammar.regular import MAX_STATES, Dfa
from oxillama.grammar.schema_document import FALSE, TRUE, Document, canonical, exact
from oxillama.grammar.schema_facts import Expander, Facts

MAX_ENUMERATED = 4096          # multiples listed one by one
MAX_NETWORK = 20_000           # states of one array's, object's or number's network
MAX_LOOSE = 6                  # members that are required but not declared: more come in the order of `required`
MAX_FREE = 9                   # properties in free order: a state per subset
VALUE = frozenset()            # no literals: any JSON value


class Emitter:
    """Builds the rules of one grammar."""

    def __init__(self, document: Document, expander: Expander, *, flexible: bool, free_order: bool, refuse):
        self.document, self.expander = document, expander
        self.flexible, self.free_order, self.refuse = flexible, free_order, refuse
        self.names: list[str] = []
        self.rules: list[tuple] = []
        self.numbers: dict = {}
        self.todo: list = []
        self.spelled: dict = {}
        self.classes: dict = {}
        self.languages: list[Dfa] = []
        self.strings: dict = {}
        self.where = "/"

    def run(self, root: frozenset) -> None:
        """Writes the root's rule and all it needs."""
        self.number(root, "root")
        self.spelling = sp.Spelling(self.flexible, self.block("ws") if self.flexible else EMPTY)
        while self.todo:
            key, index = self.todo.pop()
            self.rules[index] = self.body(key)

    def number(self, key, name: str | None = None) -> int:
        """The rule of a set of literals (or of a named building block), written later."""
        index = self.numbers.get(key)
        if index is None:
            index = self.numbers[key] = len(self.rules)
            self.names.append(name or self.name_of(key, index))
            self.rules.append(NEVER)
            self.todo.append((key, index))
        return index

    def name_of(self, key, index: int) -> str:
        """A readable rule name: the end of a literal's pointer."""
        if isinstance(key, str):
            return key
        if isinstance(key, tuple):
            return f"{key[0]}-{index}"
        node = min((n for n, _ in key), default=0)
        tail = self.document.pointers[node].rpartition("/")[2] if node else "value"
        clean = "".join(c if c.isascii() and c.isalnum() else "-" for c in tail)[:24].strip("-")
        return f"{clean or 'schema'}-{index}"

    def ref(self, literals: frozenset) -> tuple:
        """The node of a set of literals."""
        return rule(self.number(literals))

    def block(self, name: str) -> tuple:
        """The node of a building block: string, number, integer, char."""
        return rule(self.number(name))

    def spell(self, ranges) -> tuple:
        """One character out of ranges; what is not written raw is a rule of its own, shared by all that need the same."""
        known = self.spelled.get(ranges)
        if known is None:
            plain, rest = intersect(ranges, sp.PLAIN), intersect(ranges, self.spelling.escaped)
            known = self.spelled[ranges] = choice(
                *([(CLASS, plain)] if plain else []), *([rule(self.number(("escape", rest)))] if rest else []))
        return known

    def body(self, key) -> tuple:
        if isinstance(key, tuple):
            if key[0] == "language":
                return seq(literal('"'), self.languages[key[1]].minimal().node(self.spell), literal('"'))
            return self.spelling.escape(key[1]) if key[0] == "escape" else self.names_but(key[1])
        if key == "char":
            return self.spelling.char
        if key == "ws":
            return sp.whitespace()
        if key == "key-char":
            return self.spell(ANY)
        if key == "string":
            return seq(literal('"'), repeat(self.block("char")), literal('"'))
        if key == "integer":
            return sp.any_integer()
        if key == "number":
            return sp.any_number()
        self.where = self.document.pointers[min((n for n, _ in key), default=0)] or "/"
        return choice(*(self.case(facts) for facts in self.expander.cases(key)))

    def case(self, facts: Facts) -> tuple:
        """All ways of writing the values of one case."""
        if facts.values is not None:
            return choice(*(self.spelling.value(v) for v in facts.values))
        parts = []
        for kind, write in (("object", self.object), ("array", self.array), ("string", self.string), ("number", self.numeric)):
            if kind in facts.types:
                parts.append(write(facts))
        if "boolean" in facts.types:
            banned = [v for v in facts.banned if isinstance(v, bool)]
            parts += [literal(text) for value, text in ((True, "true"), (False, "false")) if value not in banned]
        if "null" in facts.types:
            parts.append(literal("null"))
        return choice(*parts)

    def guard(self, keyword: str, make, fallback):
        """What `make` gives; where that cannot be done, a refusal, and (lenient) the fallback."""
        try:
            return make()
        except GrammarError as error:
            self.refuse(self.where, keyword, str(error))
            return fallback

    # ------------------------------------------------------------------ strings

    def string(self, facts: Facts) -> tuple:
        quote = literal('"')
        banned = [v for v in facts.banned if isinstance(v, str)]
        if not (facts.patterns or facts.formats or banned):
            if facts.min_length == 0 and facts.max_length is None:
                return self.block("string")
            return seq(quote, repeat(self.block("char"), facts.min_length, facts.max_length), quote)
        plain = seq(quote, repeat(self.block("char"), facts.min_length, facts.max_length), quote)
        keyword = "pattern" if facts.patterns else "format" if facts.formats else "not"
        return self.guard(keyword, lambda: self.content(facts, banned), plain)

    def content(self, facts: Facts, banned: list[str]) -> tuple:
        """A string under patterns, formats or bans."""
        quote = literal('"')
        sources = list(facts.patterns) + [(format_pattern(name), sign) for name, sign in facts.formats]
        if len(sources) == 1 and sources[0][1] and not banned:
            node = self.direct(sources[0][0], facts.min_length, facts.max_length)
            if node is not None:
                return seq(quote, node, quote)
        key = (tuple(facts.patterns), tuple(facts.formats), facts.min_length, facts.max_length, tuple(sorted(banned)))
        if key not in self.strings:
            dfa = self.language(facts, banned)
            self.strings[key] = NEVER if dfa.empty else self.language_block(dfa)
        return self.strings[key]

    def direct(self, source: str, least: int, most: int | None) -> tuple | None:
        """A lone pattern without an automaton, where its lengths are within the bounds anyway or are those of a run of one class."""
        regex = parse_regex(source)
        anything = repeat(self.block("char"))
        if least == 0 and most is None:
            return regex.search_node(self.spell, anything)
        low, high = regex.lengths()
        if low >= least and (most is None or (high is not None and high <= most)):
            return regex.search_node(self.spell, anything)
        run = regex.run()
        if run is None:
            return None
        ranges, low, high = run
        low = max(low, least)
        high = most if high is None else high if most is None else min(high, most)
        return NEVER if high is not None and low > high else repeat(self.spell(ranges), low, high)

    def language(self, facts: Facts, banned: list[str]) -> Dfa:
        """The automaton of a string's content."""
        dfa = None
        for source, sign in facts.patterns:
            dfa = _meet(dfa, search_automaton(source), sign)
        for name, sign in facts.formats:
            dfa = _meet(dfa, format_automaton(name), sign)
        if facts.min_length or facts.max_length is not None:
            dfa = _meet(dfa, Dfa.lengths(facts.min_length, facts.max_length), True)
        if banned:
            dfa = _meet(dfa, Dfa.words(banned), False)
        return dfa if dfa is not None else Dfa.everything()

    # ------------------------------------------------------------------ numbers

    def numeric(self, facts: Facts) -> tuple:
        banned = sorted({exact(v) for v in facts.banned if not isinstance(v, (str, bool))})
        plain = facts.low is None and facts.high is None and not facts.multiples and not banned and not facts.fraction
        if plain:
            return self.block("integer" if facts.integer else "number")
        keyword = "multipleOf" if facts.multiples else "not" if banned or facts.fraction else "minimum"
        fallback = self.block("integer" if facts.integer else "number")
        return self.guard(keyword, lambda: self.bounded(facts, banned), fallback)

    def bounded(self, facts: Facts, banned: list[Fraction]) -> tuple:
        if facts.fraction:
            if facts.multiples:
                raise GrammarError("a non-integer number beside 'multipleOf' is not supported")
            # 15 digits at most: a double keeps them apart from every integer
            edge = Fraction(10**9)
            low, low_strict = (facts.low, facts.low_strict) if facts.low is not None and facts.low > -edge else (-edge, True)
            high, high_strict = (facts.high, facts.high_strict) if facts.high is not None and facts.high < edge else (edge, True)
            return self.interval(low, low_strict, high, high_strict, 6, broken=True) if low < high else NEVER
        step = _common([*facts.multiples, *([Fraction(1)] if facts.integer else [])])
        places = sp.MAX_FRACTION
        if step is not None:
            places = _places(step)
            if places is None:
                return self.multiples(facts, step, set(banned))
        cuts, parts = banned, []
        low, low_strict = facts.low, facts.low_strict
        for cut in cuts:
            if (low is None or cut > low or (cut == low and not low_strict)) and (facts.high is None or cut <= facts.high):
                parts.append(self.interval(low, low_strict, cut, True, places))
                low, low_strict = cut, True
        parts.append(self.interval(low, low_strict, facts.high, facts.high_strict, places))
        return choice(*parts)

    @staticmethod
    def interval(low, low_strict, high, high_strict, places: int, *, broken: bool = False) -> tuple:
        """An interval; a strict bound of fractional numbers moves by one unit of the 15th digit, so that doubles keep it strict."""
        if places == 0:
            low = None if low is None else Fraction(floor(low) + 1 if low_strict else ceil(low))
            high = None if high is None else Fraction(ceil(high) - 1 if high_strict else floor(high))
            low_strict = high_strict = False
            if low is not None and high is not None and low > high:
                return NEVER
        else:
            unit = Fraction(1, 10 ** min(places, 17)) if places < 15 else None
            if low is not None and low_strict and low:
                low, low_strict = _round_up(low + (unit or _unit(low)), places), False
            if high is not None and high_strict and high:
                high, high_strict = -_round_up(-high + (unit or _unit(high)), places), False
            if low is not None and not low_strict:
                low = _round_up(low, places)
            if high is not None and not high_strict:
                high = -_round_up(-high, places)
            if low is not None and high is not None and low > high:
                return NEVER
        return sp.interval(low, low_strict, high, high_strict, places, broken=broken)

    def multiples(self, facts: Facts, step: Fraction, banned: set[Fraction]) -> tuple:
        """Multiples of a step that is no power of ten: listed, or by a network of remainders."""
        low, high = facts.low, facts.high
        if low is not None and high is not None:
            first = floor(low / step) + 1 if facts.low_strict else ceil(low / step)
            last = ceil(high / step) - 1 if facts.high_strict else floor(high / step)
            if last - first > MAX_ENUMERATED:
                raise GrammarError(f"more than {MAX_ENUMERATED} multiples of {step} between the bounds")
            return choice(*(sp.number_literal(k * step) for k in range(first, last + 1) if k * step not in banned))
        if banned:
            raise GrammarError("excluded values beside 'multipleOf' need two bounds")
        if low is None and high is None:
            return seq(repeat(literal("-"), 0, 1), self.remainders(step, 1))
        if low is not None:
            return self.multiples_from(low, facts.low_strict, step)
        # mirrored: at most high is minus at least -high
        positive = self.multiples_from(-high, facts.high_strict, step, mirrored=True)
        return positive

    def multiples_from(self, low: Fraction, strict: bool, step: Fraction, mirrored: bool = False) -> tuple:
        """Multiples >= low (mirrored: their negatives): those of few digits listed, longer ones by remainders."""
        first = floor(low / step) + 1 if strict else ceil(low / step)
        whole = len(str(max(floor(abs(low)), floor(step)))) + 1
        end = Fraction(10**whole)
        last = ceil(end / step) - 1
        if last - first > MAX_ENUMERATED:
            raise GrammarError(f"too many multiples of {step} near the bound {low}")
        sign = -1 if mirrored else 1
        listed = [sp.number_literal(sign * k * step) for k in range(first, last + 1)]
        more = self.remainders(step, whole + 1)
        return choice(*listed, seq(literal("-"), more) if mirrored else more)

    @staticmethod
    def remainders(step: Fraction, least_digits: int) -> tuple:
        """Non-negative multiples of step with at least that many digits before the point, as a network over remainders."""
        places = 0
        while (step * 10**places).denominator != 1:
            places += 1
            if places > 15:
                raise GrammarError(f"multiples of {step} have no short decimal form")
        unit = int(step * 10**places)
        if unit * (places + least_digits + 2) > MAX_NETWORK:
            raise GrammarError(f"multiples of {step} need more than {MAX_NETWORK} states")
        digit = [literal(str(d)) for d in range(10)]
        ids: dict[tuple, int] = {}
        todo: list[tuple] = []

        def state(*key) -> int:
            if key not in ids:
                ids[key] = len(ids)
                todo.append(key)
            return ids[key]

        state("start", 0, 0)
        out = []
        for kind, count, rest in todo:
            edges = []
            if kind == "start":
                edges = [(digit[d], state("whole", 1, d % unit)) for d in range(1, 10)]
                if least_digits <= 1:
                    edges.append((digit[0], state("zero", 1, 0)))
                accept = False
            elif kind == "part":
                accept = rest * 10 ** (places - count) % unit == 0
                if count < places:
                    edges = [(digit[d], state("part", count + 1, (rest * 10 + d) % unit)) for d in range(10)]
            else:
                enough = count >= least_digits
                accept = enough and rest * 10**places % unit == 0
                if kind == "whole":
                    edges = [(digit[d], state("whole", min(count + 1, least_digits), (rest * 10 + d) % unit)) for d in range(10)]
                if places and enough:
                    edges += [(literal(f".{d}"), state("part", 1, (rest * 10 + d) % unit)) for d in range(10)]
            out.append((accept, tuple(edges)))
        return (NETWORK, 0, tuple(out))

    # ------------------------------------------------------------------ arrays

    def array(self, facts: Facts) -> tuple:
        space = self.spelling.space
        inner = self.elements(facts)
        return choice(*([seq(literal("["), space, space, literal("]"))] if self.may_be_empty(facts) else []),
                      seq(literal("["), space, inner, space, literal("]")) if inner != NEVER else NEVER)

    @staticmethod
    def may_be_empty(facts: Facts) -> bool:
        return facts.min_items == 0 and all(least == 0 for _, least, _, _ in facts.contains)

    def item(self, facts: Facts, index: int, *more) -> frozenset | None:
        """What the item at an index must satisfy, with further literals; None where there can be none."""
        out = {prefix[index] if index < len(prefix) else rest for prefix, rest in facts.arrays} | set(more)
        if FALSE in out or any((node, not sign) in out for node, sign in out if node):
            return None
        return frozenset(out - {TRUE})

    def elements(self, facts: Facts) -> tuple:
        """One or more items with their commas; NEVER where there can be none."""
        comma = seq(self.spelling.space, literal(","), self.spelling.space)
        if facts.unique and (facts.max_items is None or facts.max_items > 1):
            return self.guard("uniqueItems", lambda: self.distinct(facts, comma), self.elements(_loose(facts)))
        head = max((len(prefix) for prefix, _ in facts.arrays), default=0)
        if facts.contains:
            return self.guard("contains", lambda: self.counted(facts, head, comma), self.elements(_without_contains(facts)))
        most = facts.max_items
        fixed = []                                   # items of the prefix, up to the first that cannot be
        for i in range(head if most is None else min(head, most)):
            item = self.item(facts, i)
            if item is None:
                most = i
                break
            fixed.append(item)
        rest = self.item(facts, head) if len(fixed) == head else None
        if rest is None:
            most = len(fixed) if most is None else min(most, len(fixed))
        if most is not None and (most == 0 or most < facts.min_items):
            return NEVER
        if not fixed:
            return seq(self.ref(rest), repeat(seq(comma, self.ref(rest)), max(facts.min_items - 1, 0), None if most is None else most - 1))
        tail = EMPTY
        if rest is not None and (most is None or most > head):
            tail = repeat(seq(comma, self.ref(rest)), max(facts.min_items - head, 0), None if most is None else most - head)
        for i in range(len(fixed) - 1, -1, -1):
            node = seq(comma if i else EMPTY, self.ref(fixed[i]), tail)
            tail = choice(node, EMPTY) if i and facts.min_items <= i else node
        return tail

    def counted(self, facts: Facts, head: int, comma: tuple) -> tuple:
        """Items where some must be counted (`contains`): a network over (index, counts)."""
        kinds = facts.contains
        caps = [least if most is None else most + 1 for _, least, most, _ in kinds]
        last = max(1, head, facts.min_items, max(start for *_, start in kinds))
        if facts.max_items is not None:
            last = max(last, facts.max_items)
        total = last + 2
        for cap in caps:
            total *= cap + 1
        if total > MAX_NETWORK:
            raise GrammarError(f"counting items needs more than {MAX_NETWORK} states")
        if len(kinds) > 4:
            raise GrammarError("more than 4 'contains' on one array")
        ids: dict[tuple, int] = {(0, *(0 for _ in kinds)): 0}
        todo, out = list(ids), []
        for state in todo:
            index, counts = state[0], state[1:]
            accept = index > 0 and index >= facts.min_items and all(
                c >= least and (most is None or c <= most) for c, (_, least, most, _) in zip(counts, kinds, strict=True))
            edges = []
            if facts.max_items is None or index < facts.max_items:
                for item, after in self.steps(facts, index, counts, caps, head):
                    target = (min(index + 1, last + 1), *after)
                    if facts.max_items is None:
                        target = (min(index + 1, last), *after)
                    if target not in ids:
                        ids[target] = len(ids)
                        todo.append(target)
                    node = self.ref(item)
                    edges.append((seq(comma, node) if index else node, ids[target]))
            out.append((accept, tuple(edges)))
        return (NETWORK, 0, tuple(out))

    def steps(self, facts: Facts, index: int, counts, caps, head: int):
        """The choices for one item: which counters it feeds. A counter with an upper bound needs to know that others do not feed it."""
        options = [((), list(counts))]
        for k, (wanted, _, most, start) in enumerate(facts.contains):
            grown = []
            for literals, after in options:
                if index < start:
                    grown.append((literals, after))
                    continue
                if counts[k] < caps[k]:
                    fed = after.copy()
                    fed[k] += 1
                    if most is None or fed[k] <= most:
                        grown.append(((*literals, wanted), fed))
                unfed = (*literals, (wanted[0], not wanted[1])) if most is not None else literals
                grown.append((unfed, after))
            options = grown
        for literals, after in options:
            item = self.item(facts, min(index, head), *literals)
            if item is not None:
                yield item, tuple(after)

    def distinct(self, facts: Facts, comma: tuple) -> tuple:
        """Arrays without repetition whose items have few values: a network over the set of values used."""
        if facts.contains:
            raise GrammarError("together with 'contains'")
        head = max((len(prefix) for prefix, _ in facts.arrays), default=0)
        pools = []
        for i in range(head + 1):
            item = self.item(facts, i)
            pools.append([] if item is None else self.finite(item))
        if any(pool is None for pool in pools):
            raise GrammarError("items must have few possible values (an enum)")
        values = list({canonical(v): v for pool in pools for v in pool}.values())
        keys = [canonical(v) for v in values]
        if len(values) > 10:
            raise GrammarError(f"{len(values)} possible values, at most 10 wanted")
        allowed = [{keys.index(canonical(v)) for v in pool} for pool in pools]
        nodes = [self.spelling.value(v) for v in values]
        ids, todo, out = {frozenset(): 0}, [frozenset()], []
        for used in todo:
            index = len(used)
            edges = []
            if facts.max_items is None or index < facts.max_items:
                for k in sorted(allowed[min(index, head)] - used):
                    target = used | {k}
                    if target not in ids:
                        ids[target] = len(ids)
                        todo.append(target)
                    edges.append((seq(comma, nodes[k]) if index else nodes[k], ids[target]))
            out.append((index > 0 and index >= facts.min_items, tuple(edges)))
        return (NETWORK, 0, tuple(out))

    def finite(self, literals: frozenset) -> list | None:
        """All values of a set of literals if they are few and scalar or listed, else None."""
        out = []
        for facts in self.expander.cases(literals):
            if facts.values is not None:
                out += facts.values
                continue
            if facts.types - {"null", "boolean"}:
                return None
            out += ([None] if "null" in facts.types else []) + (
                [b for b in (True, False) if not any(b is v for v in facts.banned)] if "boolean" in facts.types else [])
        return out

    # ------------------------------------------------------------------ objects

    def object(self, facts: Facts) -> tuple:
        space = self.spelling.space
        inner = self.members(facts)
        parts = []
        if not facts.required and facts.min_properties == 0 and not facts.owed:
            parts.append(seq(literal("{"), space, space, literal("}")))
        if inner != NEVER:
            parts.append(seq(literal("{"), space, inner, space, literal("}")))
        return choice(*parts)

    def members(self, facts: Facts) -> tuple:
        """One or more members with their commas."""
        declared = list(dict.fromkeys([name for properties, _, _ in facts.objects for name in properties] + facts.required))
        known = set(declared) | facts.forbidden
        named, loose = [], []                       # loose: demanded, but not declared: these come last, in any order
        for name in declared:
            literals = self.expander.property_literals(facts, name)
            if literals is None or (name in facts.forbidden):
                if name in facts.required:
                    return NEVER
                continue
            key = self.spelling.text(name)
            entry = seq(key, self.colon, self.ref(literals))
            if any(name in properties for properties, _, _ in facts.objects):
                named.append((entry, name in facts.required))
            else:
                loose.append(entry)
        if len(loose) > MAX_LOOSE or facts.max_properties is not None or facts.min_properties > 1 or facts.owed:
            named += [(entry, True) for entry in loose]
            loose = []
        extra = self.guard("additionalProperties", lambda: self.further(facts, known), NEVER)
        owed = [self.guard("not", lambda e=e: self.further(facts, known, e), NEVER) for e in facts.owed]
        if NEVER in owed:
            return NEVER
        most, least = facts.max_properties, facts.min_properties
        if self.free_order and len(named) > 1:
            return self.shuffled(facts, named + [(entry, True) for entry in loose], extra, owed)
        return self.ordered(named, extra, owed, least, most, loose)

    @property
    def colon(self) -> tuple:
        return seq(self.spelling.space, literal(":"), self.spelling.space)

    @property
    def comma(self) -> tuple:
        return seq(self.spelling.space, literal(","), self.spelling.space)

    def ordered(self, named, extra, owed, least: int, most: int | None, loose) -> tuple:
        """Members in declared order, then further ones: a network over (index, members so far up to what must be counted)."""
        required = sum(needed for _, needed in named)
        if most is not None and extra == NEVER and not owed and len(named) <= most:
            most = None
        cap = max(least, (most or 0) if most is not None else 0, 1)
        if required + (1 if owed else 0) >= least and most is None:
            cap, least = 1, min(least, 1)
        if (len(named) + 2) * (cap + 1) * (len(owed) + 1) > MAX_NETWORK:
            raise GrammarError(f"schema {self.where}: keyword 'minProperties': counting needs more than {MAX_NETWORK} states")
        ids: dict[tuple[int, int], int] = {(0, 0): 0}
        todo, out = [(0, 0)], []

        def state(index: int, count: int) -> int:
            if (index, count) not in ids:
                ids[(index, count)] = len(ids)
                todo.append((index, count))
            return ids[(index, count)]

        for index, count in todo:
            edges = []
            accept = False
            if index < len(named):
                node, needed = named[index]
                if most is None or count < most:
                    edges.append((seq(self.comma, node) if count else node, state(index + 1, min(count + 1, cap))))
                if not needed:
                    edges.append((EMPTY, state(index + 1, count)))
            elif index == len(named):
                edges.append((self.tail(extra, owed, count, least, most, loose), state(index + 1, count)))
            else:
                accept = True
            out.append((accept, tuple((node, target) for node, target in edges if node != NEVER)))
        return (NETWORK, 0, tuple(out))

    def tail(self, extra, owed, count: int, least: int, most: int | None, loose) -> tuple:
        """What may follow the declared members when `count` of them are there: nothing only if that is enough and not nothing at all."""
        if loose:
            return self.subset([(entry, True) for entry in loose], extra, bool(count))
        missing = max(least - count, 0)
        room = None if most is None else most - count
        if owed:
            if len(owed) > 1 or missing > 1 or (most is not None):
                raise GrammarError(f"schema {self.where}: several members of which only the kind is known cannot be enforced at once")
            # last, because a later member of the same name would replace it
            node = seq(repeat(seq(extra, self.comma)) if extra != NEVER else EMPTY, owed[0])
            return seq(self.comma, node) if count else node
        if extra == NEVER or room == 0:
            return EMPTY if missing == 0 and count else NEVER
        if missing > 1:
            # the same name twice would count once: two unnamed members cannot be told apart
            raise GrammarError(f"schema {self.where}: keyword 'minProperties': {least} members need {missing} without a declared name")
        some = seq(extra, repeat(seq(self.comma, extra), 0, None if room is None else room - 1))
        if count:
            some = seq(self.comma, some)
        return some if missing or not count else choice(EMPTY, some)

    def shuffled(self, facts: Facts, named, extra, owed) -> tuple:
        """Members in any order: a network over the set of declared members written so far."""
        if len(named) > MAX_FREE:
            raise GrammarError(f"schema {self.where}: {len(named)} properties in free order, at most {MAX_FREE} are supported")
        if owed or facts.max_properties is not None or facts.min_properties > max(1, sum(needed for _, needed in named)):
            raise GrammarError(f"schema {self.where}: keyword 'minProperties' or 'maxProperties' in free order is not supported")
        return self.subset(named, extra, False)

    def subset(self, named, extra, started: bool) -> tuple:
        """Members in any order, further ones between: a network over the set of members written so far (`started`: a comma is due)."""
        full = 1 << len(named)
        needed = sum(1 << i for i, (_, must) in enumerate(named) if must)
        states = []
        for state in range(full + 1):                # 0: nothing yet; 1 + set: something written
            used = max(state - 1, 0)
            edges = []
            for i, (node, _) in enumerate(named):
                if not used >> i & 1:
                    edges.append((seq(self.comma, node) if state or started else node, 1 + (used | 1 << i)))
            if extra != NEVER:
                edges.append((seq(self.comma, extra) if state or started else extra, 1 + used))
            states.append((bool(state) and used & needed == needed, tuple(edges)))
        return (NETWORK, 0, tuple(states))

    def further(self, facts: Facts, known: set[str], demand=None) -> tuple:
        """A member whose name is not one of the known ones: a choice over the classes of names that rules tell apart."""
        excluded, must, must_not, value, names = demand or (frozenset(), (), (), TRUE, ())
        sources = list(dict.fromkeys([s for _, patterns, _ in facts.objects for s, _ in patterns] + list(must) + list(must_not)))
        out = []
        for matched, quoted in self.name_classes(facts, known | excluded, sources, (*facts.names, *names)):
            if any(s not in matched for s in must) or any(s in matched for s in must_not):
                continue
            child = {value}
            for _, patterns, rest in facts.objects:
                child.update([lit for source, lit in patterns if source in matched] or [rest])
            if FALSE in child or any((node, not sign) in child for node, sign in child if node):
                continue
            out.append(seq(quoted, self.colon, self.ref(frozenset(child - {TRUE}))))
        return choice(*out)

    def name_classes(self, facts: Facts, known: set[str], sources: list[str], names: tuple):
        """Pairs of (patterns matched, node of the quoted names) that split all names but the known ones."""
        quote = literal('"')
        if not sources and not names:
            if any(rest == FALSE for _, _, rest in facts.objects):
                return []
            return [(frozenset(), seq(quote, rule(self.number(("names", frozenset(known)))), quote))]
        closed = any(rest == FALSE for _, _, rest in facts.objects)
        if len(sources) == 1 and not names and closed and not any(search_automaton(sources[0]).accepts_text(n) for n in known):
            node = parse_regex(sources[0]).search_node(self.spell, repeat(self.block("key-char")))
            if node is not None:
                return [(frozenset(sources), seq(quote, node, quote))]
        key = (frozenset(known), tuple(sources), frozenset(names))
        if key not in self.classes:
            self.classes[key] = [(matched, self.language_block(names)) for matched, names in self.split_names(known, sources, names)]
        return self.classes[key]

    def language_block(self, dfa: Dfa) -> tuple:
        """A rule for the quoted texts of an automaton."""
        self.languages.append(dfa)
        return rule(self.number(("language", len(self.languages) - 1)))

    def split_names(self, known: set[str], sources: list[str], demanded: tuple) -> list[tuple[frozenset, Dfa]]:
        """All names but the known ones, split by the patterns they match."""
        start = Dfa.words(known).inverse() if known else Dfa.everything()
        if demanded:
            start = start.both(self.names_language(frozenset(demanded)))
        classes = [(frozenset(), start)]
        for source in sources:
            dfa = search_automaton(source)
            split = []
            for matched, names in classes:
                for sign in (True, False):
                    part = _meet(names, dfa, sign)
                    if not part.empty:
                        split.append((matched | {source} if sign else matched, part))
            classes = split
            if len(classes) > 64:
                raise GrammarError("more than 64 kinds of names")
        return classes

    def names_language(self, literals: frozenset) -> Dfa:
        """The names a `propertyNames` allows."""
        out = Dfa.nothing()
        for facts in self.expander.cases(literals):
            if facts.values is not None:
                out = out.either(Dfa.words([v for v in facts.values if isinstance(v, str)]))
            elif "string" in facts.types:
                out = out.either(self.language(facts, [v for v in facts.banned if isinstance(v, str)]))
        return out

    def names_but(self, known: frozenset[str]) -> tuple:
        """Any name that is not known, as a network along the known names' letters."""
        if not known:
            return repeat(self.block("key-char"))
        children: list[dict[str, int]] = [{}]
        ends = {0: "" in known}
        for name in sorted(known):
            at = 0
            for c in name:
                if c not in children[at]:
                    children[at][c] = len(children)
                    children.append({})
                at = children[at][c]
            ends[at] = True
        states, others = [], {}
        last = len(children)
        for at, follow in enumerate(children):
            edges = [(self.spell(((ord(c), ord(c)),)), target) for c, target in follow.items()
                     if not 0xD800 <= ord(c) <= 0xDFFF]
            letters = tuple(sorted(follow))
            if letters not in others:
                others[letters] = self.spell(complement(merge((ord(c), ord(c)) for c in letters)))
            edges.append((others[letters], last))
            states.append((not ends.get(at, False), tuple(edges)))
        states.append((True, ((self.block("key-char"), last),)))
        return (NETWORK, 0, tuple(states))


def _meet(dfa: Dfa | None, other: Dfa, sign: bool) -> Dfa:
    if dfa is None:
        return other if sign else other.inverse()
    return dfa.both(other) if sign else dfa.without(other)


def _loose(facts: Facts) -> Facts:
    other = facts.copy()
    other.unique = False
    return other


def _without_contains(facts: Facts) -> Facts:
    other = facts.copy()
    other.contains = []
    return other


def _common(steps: list[Fraction]) -> Fraction | None:
    """The least common multiple of fractions."""
    out = None
    for step in steps:
        out = step if out is None else Fraction(lcm(out.numerator, step.numerator), gcd(out.denominator, step.denominator))
    return out


def _places(step: Fraction) -> int | None:
    """k where the step is 10**-k (so that its multiples are the numbers with k fraction digits), else None."""
    if step.numerator != 1:
        return None
    places = len(str(step.denominator)) - 1
    return places if step.denominator == 10**places else None


def _unit(value: Fraction) -> Fraction:
    """One unit in the 15th significant decimal digit."""
    exponent, size = 0, abs(value)
    while size >= 10:
        size /= 10
        exponent += 1
    while size < 1:
        size *= 10
        exponent -= 1
    return Fraction(10) ** (exponent - 14)


def _round_up(value: Fraction, places: int) -> Fraction:
    """The least decimal with that many places that is not below."""
    if sp.decimal_text(value) is not None and value.denominator <= 10**places and (value * 10**places).denominator == 1:
        return value
    return Fraction(ceil(value * 10**places), 10**places)


__all__ = ["MAX_STATES", "Emitter", "VALUE"]
