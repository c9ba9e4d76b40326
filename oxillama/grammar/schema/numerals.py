"""How JSON numbers are written: literals, digit runs, and decimals between bounds, as grammar
nodes.

Numbers are decimals without exponent wherever they are constrained, because comparing across
exponents is not regular; digits are bounded (`MAX_INTEGER` before the point, `MAX_FRACTION` after
it).
"""

from fractions import Fraction

from oxillama.grammar.nodes import (
    CHOICE,
    CLASS,
    EMPTY,
    LITERAL,
    NEVER,
    REPEAT,
    SEQUENCE,
    choice,
    cls,
    literal,
    repeat,
    seq,
)

MAX_INTEGER = 20
MAX_FRACTION = 32
MAX_TEXT = 400  # characters of an integer, digits of a fraction
DIGIT = cls("09")


def number_literal(value, *, integer: bool) -> tuple:
    """One number: its shortest form, with and without a zero fraction where it is an integer and
    none is asked for, and as it is given.
    """
    if isinstance(value, Fraction) and value.denominator == 1:
        return whole_literal(value.numerator, integer=integer)
    exact = Fraction(str(value)) if not isinstance(value, Fraction) else value
    texts = [] if isinstance(value, Fraction) or integer else [str(value)]
    if exact.denominator == 1 and len(str(exact)) < MAX_TEXT:
        texts += [str(exact)] if integer else [str(exact), f"{exact}.0"]
    elif (text := decimal_text(exact)) is not None:
        texts.append(text)
    return choice(*(literal(text) for text in dict.fromkeys(texts)))


def whole_literal(value: int, *, integer: bool) -> tuple:
    """One integer, with and without a zero fraction where no integer is asked for."""
    text = str(value)
    if len(text) >= MAX_TEXT:
        return NEVER
    return literal(text) if integer else choice(literal(text), literal(f"{text}.0"))


def decimal_text(value: Fraction) -> str | None:
    """The exact decimal form, or None if there is none or it has more than `MAX_TEXT` fraction
    digits.
    """
    rest, counts = value.denominator, {}
    for prime in (2, 5):
        counts[prime] = 0
        while rest % prime == 0 and counts[prime] <= MAX_TEXT:
            rest //= prime
            counts[prime] += 1
    places = max(counts.values())
    if rest != 1 or places > MAX_TEXT:
        return None
    number = str(abs((value * 10**places).numerator)).rjust(places + 1, "0")
    sign = "-" if value < 0 else ""
    return sign + (f"{number[:-places]}.{number[-places:]}" if places else number)


def digits(least: int, most: int) -> tuple:
    """A run of digits."""
    return repeat(DIGIT, least, max(least, most))


def natural() -> tuple:
    """0 or a number without leading zeros."""
    return choice(literal("0"), seq(cls("19"), digits(0, MAX_INTEGER - 1)))


def any_integer() -> tuple:
    return seq(repeat(literal("-"), 0, 1), natural())


def any_number() -> tuple:
    exponent = seq(cls("e", "E"), repeat(cls("+", "-"), 0, 1), digits(1, 3))
    return seq(
        any_integer(),
        repeat(seq(literal("."), digits(1, MAX_FRACTION)), 0, 1),
        repeat(exponent, 0, 1),
    )


def _same_length(low: str, high: str) -> tuple:
    """Digit strings from low to high, both of one length."""
    if not low:
        return EMPTY
    if set(low) == {"0"} and set(high) == {"9"}:
        return digits(len(low), len(low))
    first, last = low[0], high[0]
    if first == last:
        return seq(literal(first), _same_length(low[1:], high[1:]))
    parts, rest = [], len(low) - 1
    if set(low[1:]) - {"0"}:
        parts.append(seq(literal(first), _same_length(low[1:], "9" * rest)))
        first = chr(ord(first) + 1)
    tail = None
    if set(high[1:]) - {"9"}:
        tail = seq(literal(last), _same_length("0" * rest, high[1:]))
        last = chr(ord(last) - 1)
    if first <= last:
        parts.append(seq(cls(first + last), digits(rest, rest)))
    return choice(*parts, *([tail] if tail else []))


def naturals(low: int, high: int | None) -> tuple:
    """Integers low..high (0 <= low) without leading zeros; None: no upper bound but the digit
    limit.
    """
    if high is not None and low > high:
        return NEVER
    parts = []
    if low == 0:
        parts.append(literal("0"))
        low = 1
        if high == 0:
            return parts[0]
    length = len(str(low))
    while True:
        top = 10**length - 1
        if high is not None and high <= top:
            parts.append(_same_length(str(low), str(high)))
            return choice(*parts)
        if high is None and low == 10 ** (length - 1):
            parts.append(seq(cls("19"), digits(length - 1, max(MAX_INTEGER, length) - 1)))
            return choice(*parts)
        parts.append(_same_length(str(low), str(top)))
        low, length = top + 1, length + 1


def _above(fraction: str, strict: bool, places: int) -> tuple:
    """Digits d1 d2 ... with 0.d1d2... >= 0.fraction (strict: >), at most `places` of them; may be
    empty where nothing is needed.
    """
    if not fraction:
        if not strict:
            return digits(0, places)
        if places < 1:
            return NEVER
        return seq(repeat(literal("0"), 0, places - 1), cls("19"), digits(0, places - 1))
    if places < 1:
        return NEVER
    first = fraction[0]
    parts = [seq(literal(first), _above(fraction[1:], strict, places - 1))]
    if first < "9":
        parts.append(seq(cls(chr(ord(first) + 1) + "9"), digits(0, places - 1)))
    return choice(*parts)


def _below(fraction: str, strict: bool, places: int) -> tuple:
    """Digits with 0.d1d2... <= 0.fraction (strict: <), at most `places`; empty is allowed where 0
    is.
    """
    if not fraction:
        return NEVER if strict else repeat(literal("0"), 0, places)
    parts = [EMPTY]
    if places < 1:
        return EMPTY
    first = fraction[0]
    parts.append(seq(literal(first), _below(fraction[1:], strict, places - 1)))
    if first > "0":
        parts.append(seq(cls("0" + chr(ord(first) - 1)), digits(0, places - 1)))
    return choice(*parts)


def _between(low: str, low_strict: bool, high: str, high_strict: bool, places: int) -> tuple:
    """Digits with 0.low <= 0.d <= 0.high."""
    if not low and not low_strict:
        return _below(high, high_strict, places)
    if not high or (places < 1):
        # high is 0: only zeros are left, which low (positive, or strictly above zero) refuses
        return NEVER
    a, b = (low or "0")[0], high[0]
    rest_low, rest_high = low[1:], high[1:]
    if a == b:
        return seq(literal(a), _between(rest_low, low_strict, rest_high, high_strict, places - 1))
    if a > b:
        return NEVER
    parts = [
        seq(literal(a), _above(rest_low, low_strict, places - 1)),
        seq(literal(b), _below(rest_high, high_strict, places - 1)),
    ]
    if ord(b) - ord(a) > 1:
        parts.append(seq(cls(chr(ord(a) + 1) + chr(ord(b) - 1)), digits(0, places - 1)))
    return choice(*parts)


def _with_point(node: tuple, places: int, zero: bool) -> tuple:
    """A fraction part out of a digit-run node: with the point at least one digit; without it (zero)
    the fraction is nought.
    """
    pointed = seq(literal("."), _nonempty(node))
    if places < 1:
        return EMPTY if zero else NEVER
    return choice(EMPTY, pointed) if zero else pointed


def _nonempty(node: tuple) -> tuple:
    """The node without its empty match; digit runs are built of literals, classes, sequences,
    choices and repeats only.
    """
    kind = node[0]
    if node == EMPTY:
        return NEVER
    if kind in (LITERAL, CLASS):
        return node
    if kind == CHOICE:
        return choice(*(_nonempty(part) for part in node[1]))
    if kind == REPEAT:
        _, body, least, most = node
        return node if least > 0 else repeat(body, 1, None if most < 0 else most)
    assert kind == SEQUENCE
    head, rest = node[1][0], seq(*node[1][1:])
    if _nonempty(head) == head:
        return node
    return choice(seq(_nonempty(head), rest), _nonempty(rest))


def _split(value: Fraction) -> tuple[int, str]:
    """Integer part and fraction digits (without trailing zeros) of a non-negative decimal."""
    text = decimal_text(value)
    if text is None:
        raise ValueError(f"{value} has no finite decimal form")
    whole, _, fraction = text.partition(".")
    return int(whole), fraction.rstrip("0")


def magnitudes(
    low: Fraction,
    low_strict: bool,
    high: Fraction | None,
    high_strict: bool,
    places: int,
    *,
    fractional: bool = False,
) -> tuple:
    """Decimals of at least low (>= 0) and at most high, with at most `places` fraction digits (0:
    integers; fractional: no integers).
    """
    whole_low, part_low = _split(low)
    whole_high, part_high = _split(high) if high is not None else (None, "")
    if high is not None and (low > high or (low == high and (low_strict or high_strict))):
        return NEVER
    from_low = low_strict or (fractional and not part_low)
    if whole_high == whole_low:
        zero = not part_low and not from_low and not (high_strict and not part_high)
        return seq(
            literal(str(whole_low)),
            _with_point(_between(part_low, from_low, part_high, high_strict, places), places, zero),
        )
    parts = [
        seq(
            literal(str(whole_low)),
            _with_point(_above(part_low, from_low, places), places, not part_low and not from_low),
        )
    ]
    if whole_high is None or whole_high - whole_low > 1:
        between = _with_point(_above("", fractional, places), places, not fractional)
        parts.append(
            seq(naturals(whole_low + 1, None if whole_high is None else whole_high - 1), between)
        )
    if whole_high is not None and (part_high or not (high_strict or fractional)):
        tail = (
            _between("", True, part_high, high_strict, places)
            if fractional
            else _below(part_high, high_strict, places)
        )
        parts.append(seq(literal(str(whole_high)), _with_point(tail, places, not fractional)))
    return choice(*parts)


def interval(
    low: Fraction | None,
    low_strict: bool,
    high: Fraction | None,
    high_strict: bool,
    places: int,
    *,
    fractional: bool = False,
) -> tuple:
    """Decimals between two bounds (None: unbounded), with at most `places` fraction digits
    (fractional: no integers).
    """
    parts = []
    zero = Fraction(0)
    if low is None or low < 0:
        # the negative side, by magnitude; -0 is written only where it is a plain member
        top = -low if low is not None else None
        if high is not None and high < 0:
            parts.append(
                seq(
                    literal("-"),
                    magnitudes(-high, high_strict, top, low_strict, places, fractional=fractional),
                )
            )
        else:
            parts.append(
                seq(
                    literal("-"),
                    magnitudes(
                        zero,
                        high == 0 and high_strict,
                        top,
                        low_strict,
                        places,
                        fractional=fractional,
                    ),
                )
            )
    if high is None or high > 0 or (high == 0 and not high_strict):
        start, strict = (zero, False) if low is None or low < 0 else (low, low_strict)
        parts.append(magnitudes(start, strict, high, high_strict, places, fractional=fractional))
    return choice(*parts)
