"""Writes the numbers of a case: intervals, multiples, values left out. `em` is the `Emitter` at
work.
"""

import functools
from fractions import Fraction
from math import ceil, floor, gcd, lcm

from oxillama._core.cases import Case
from oxillama.errors import GrammarError
from oxillama.grammar.nodes import (
    CLASS,
    LITERAL,
    NETWORK,
    NEVER,
    REPEAT,
    SEQUENCE,
    choice,
    literal,
    repeat,
    seq,
)
from oxillama.grammar.regex import Regex
from oxillama.grammar.regular import MAX_NETWORK, Dfa
from oxillama.grammar.schema import numerals
from oxillama.grammar.schema.values import exact

MAX_ENUMERATED = 4096  # multiples listed one by one


def numeric(em, case: Case) -> tuple:
    banned = sorted({exact(v) for v in case.banned if not isinstance(v, (str, bool))})
    plain = (
        case.low is None
        and case.high is None
        and not (case.multiples or case.not_multiples or banned or case.fraction)
    )
    if plain:
        return em.block("integer" if case.integer else "number")
    keyword = (
        "multipleOf"
        if case.multiples
        else "not"
        if banned or case.fraction or case.not_multiples
        else "minimum"
    )
    fallback = em.block("integer" if case.integer else "number")
    return em.guard(keyword, lambda: bounded(em, case, banned), fallback)


def bounded(em, case: Case, banned: list[Fraction]) -> tuple:
    """Numbers under any constraint."""
    if any(step.denominator != 1 for step in case.not_multiples) or (
        case.multiples and (case.not_multiples or case.fraction)
    ):
        raise GrammarError(
            "'multipleOf' under 'not' is supported for integers, and without another 'multipleOf'"
        )
    if case.not_multiples and not case.fraction:
        return non_multiples(em, case, banned)
    low, low_strict, high, high_strict = case.low, case.low_strict, case.high, case.high_strict
    step = _common([*case.multiples, *([Fraction(1)] if case.integer else [])])
    places = numerals.MAX_FRACTION
    if step is not None:
        found = _places(step)
        if found is None:
            return multiples(em, case, step, set(banned))
        places = found
    if case.fraction:
        # 15 digits at most: a double keeps them apart from every integer
        places, edge = 6, Fraction(10**9)
        low, low_strict = (low, low_strict) if low is not None and low > -edge else (-edge, True)
        high, high_strict = (
            (high, high_strict) if high is not None and high < edge else (edge, True)
        )
        if low >= high:
            return NEVER
    bounds = (low, low_strict, high, high_strict, places, case.fraction)
    if not banned:
        return interval(*bounds)
    # not as intervals between the banned ones: those of many numbers are many states
    left = decimals(*bounds).without(left_out(banned, places))
    return NEVER if left.empty else left.node(lambda digits: (CLASS, digits))


@functools.lru_cache(maxsize=512)
def decimals(*bounds) -> Dfa:
    """The automaton of an interval, with the arguments of `interval`."""
    return automaton(interval(*bounds))


def left_out(values: list[Fraction], places: int) -> Dfa:
    """The decimals that are left out with values: all their spellings and, where there may be 15
    digits, those nearer than one unit of the 15th, which a double does not keep apart from them.
    """
    if not places:
        texts = [str(value) for value in values if value.denominator == 1]
        return Dfa.words([*texts, "-0"] if 0 in values else texts)
    parts = []
    for value in values:
        if not value:
            zero = numerals.interval(value, False, value, False, places)
            parts += [zero, seq(literal("-"), zero)]
        elif places < 15:
            parts.append(interval(value, False, value, False, places, False))
        else:
            low = -_round_up(_unit(value) - value, places)
            high = _round_up(value + _unit(value), places)
            parts.append(numerals.interval(low, True, high, True, places))
    return automaton(choice(*parts))


def automaton(node: tuple) -> Dfa:
    """The automaton of a node of decimals."""
    return Dfa.nothing() if node == NEVER else Regex("", _tree(node)).automaton(search=False)


def _tree(node: tuple) -> tuple:
    """A node of decimals as the tree of an expression."""
    kind, inner = node[0], node[1]
    if kind == LITERAL:
        return ("seq", tuple([("class", ((byte, byte),)) for byte in inner]))
    if kind == CLASS:
        return ("class", inner)
    if kind == REPEAT:
        return ("rep", _tree(inner), node[2], node[3] if node[3] >= 0 else None)
    return ("seq" if kind == SEQUENCE else "alt", tuple([_tree(part) for part in inner]))


def non_multiples(em, case: Case, banned: list[Fraction]) -> tuple:
    """Numbers that are not multiples of some integers: integers listed or by remainders, and
    whatever is no integer.
    """
    parts = []
    if not case.integer:
        other = case.copy()
        other.not_multiples, other.fraction = (), True
        parts.append(bounded(em, other, banned))
    if case.low is not None and case.high is not None:
        first = floor(case.low) + 1 if case.low_strict else ceil(case.low)
        last = ceil(case.high) - 1 if case.high_strict else floor(case.high)
        if last - first > MAX_ENUMERATED:
            raise GrammarError(f"more than {MAX_ENUMERATED} integers between the bounds")
        parts += [
            numerals.number_literal(Fraction(k), integer=case.integer)
            for k in range(first, last + 1)
            if k not in banned and all(k % step for step in case.not_multiples)
        ]
    elif case.low is None and case.high is None and not banned and len(case.not_multiples) == 1:
        parts.append(
            seq(repeat(literal("-"), 0, 1), remainders(case.not_multiples[0], 1, inverse=True))
        )
    else:
        raise GrammarError(
            "'multipleOf' under 'not' needs two bounds, or none and no excluded values"
        )
    return choice(*parts)


def interval(low, low_strict, high, high_strict, places: int, fractional: bool) -> tuple:
    """An interval of decimals with at most `places` fraction digits. Where there may be 15 digits,
    a strict bound moves by one unit of the 15th, so that doubles keep it strict.
    """
    if places < 15:
        scale = 10**places
        if low is not None:
            low = Fraction((floor(low * scale) + 1) if low_strict else ceil(low * scale), scale)
        if high is not None:
            high = Fraction((ceil(high * scale) - 1) if high_strict else floor(high * scale), scale)
        low_strict = high_strict = False
    else:
        if low is not None and low_strict and low:
            low, low_strict = low + _unit(low), False
        if high is not None and high_strict and high:
            high, high_strict = high - _unit(high), False
        low = low if low is None or low_strict else _round_up(low, places)
        high = high if high is None or high_strict else -_round_up(-high, places)
    if low is not None and high is not None and low > high:
        return NEVER
    return numerals.interval(low, low_strict, high, high_strict, places, fractional=fractional)


def multiples(em, case: Case, step: Fraction, banned: set[Fraction]) -> tuple:
    """Multiples of a step that is no power of ten: listed, or by a network of remainders."""
    low, high = case.low, case.high
    if low is not None and high is not None:
        first = floor(low / step) + 1 if case.low_strict else ceil(low / step)
        last = ceil(high / step) - 1 if case.high_strict else floor(high / step)
        if last - first > MAX_ENUMERATED:
            raise GrammarError(f"more than {MAX_ENUMERATED} multiples of {step} between the bounds")
        return choice(*listed(step, first, last, banned, integer=case.integer))
    if banned:
        raise GrammarError("excluded values together with 'multipleOf' need two bounds")
    if low is None and high is None:
        return seq(repeat(literal("-"), 0, 1), remainders(step, 1))
    if low is not None:
        return multiples_from(low, case.low_strict, step, integer=case.integer)
    # mirrored: at most high is minus at least -high
    positive = multiples_from(-high, case.high_strict, step, integer=case.integer, mirrored=True)
    return positive


def multiples_from(
    low: Fraction, strict: bool, step: Fraction, *, integer: bool, mirrored: bool = False
) -> tuple:
    """Multiples >= low (mirrored: their negatives): those of few digits listed, longer ones by
    remainders.
    """
    first = floor(low / step) + 1 if strict else ceil(low / step)
    whole = len(str(max(floor(abs(low)), floor(step)))) + 1
    end = Fraction(10**whole)
    last = ceil(end / step) - 1
    if last - first > MAX_ENUMERATED:
        raise GrammarError(f"too many multiples of {step} near the bound {low}")
    near = listed(-step if mirrored else step, first, last, set(), integer=integer)
    more = remainders(step, whole + 1)
    return choice(*near, seq(literal("-"), more) if mirrored else more)


def listed(
    step: Fraction, first: int, last: int, banned: set[Fraction], *, integer: bool
) -> list[tuple]:
    """The first to the last multiple of a step, but the banned ones, as nodes."""
    factors = range(first, last + 1)
    if step.denominator == 1:
        unit = step.numerator
        return [
            numerals.whole_literal(k * unit, integer=integer)
            for k in factors
            if k * unit not in banned
        ]
    return [
        numerals.number_literal(k * step, integer=integer)
        for k in factors
        if k * step not in banned
    ]


def remainders(step: Fraction, least_digits: int, *, inverse: bool = False) -> tuple:
    """Non-negative multiples of step (inverse: integers that are none) with at least that many
    digits before the point, by remainders.
    """
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
                edges = [
                    (digit[d], state("part", count + 1, (rest * 10 + d) % unit)) for d in range(10)
                ]
        else:
            enough = count >= least_digits
            accept = enough and (rest * 10**places % unit == 0) != inverse
            if kind == "whole":
                edges = [
                    (digit[d], state("whole", min(count + 1, least_digits), (rest * 10 + d) % unit))
                    for d in range(10)
                ]
            if places and enough:
                edges += [
                    (literal(f".{d}"), state("part", 1, (rest * 10 + d) % unit)) for d in range(10)
                ]
        out.append((accept, tuple(edges)))
    return (NETWORK, 0, tuple(out))


def _common(steps: list[Fraction]) -> Fraction | None:
    """The least common multiple of fractions."""
    out = None
    for step in steps:
        out = (
            step
            if out is None
            else Fraction(
                lcm(out.numerator, step.numerator), gcd(out.denominator, step.denominator)
            )
        )
    return out


def _places(step: Fraction) -> int | None:
    """k where the step is 10**-k (so that its multiples are the numbers with k fraction digits),
    else None.
    """
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
    if (
        numerals.decimal_text(value) is not None
        and value.denominator <= 10**places
        and (value * 10**places).denominator == 1
    ):
        return value
    return Fraction(ceil(value * 10**places), 10**places)
