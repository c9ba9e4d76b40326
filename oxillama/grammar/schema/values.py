"""JSON values as a schema's constants need them: numbers exact (int or Decimal), a form in which
equal values are equal, and a bound on how deeply they nest.
"""

import json
from decimal import Decimal
from fractions import Fraction

from oxillama.errors import GrammarError

DEEPEST = 500  # levels; how many Python itself can bear depends on its version and its stack


def exact(value) -> Fraction:
    """A number of the schema as a fraction."""
    return Fraction(value)


def load(schema, where: str = "schema"):
    """A schema as plain JSON with exact numbers, from text or from Python objects."""
    if not isinstance(schema, (str, bytes, bool, dict, list, int, float, type(None))):
        raise GrammarError(
            f"{where}: found {schema!r:.60}, wanted JSON text, a dict or bool, a Pydantic model, a "
            "dataclass, a TypedDict or a type such as list[str]"
        )
    try:
        text = schema if isinstance(schema, (str, bytes)) else json.dumps(schema, allow_nan=False)
        loaded = json.loads(text, parse_float=_number, parse_constant=_refuse)
    except (ValueError, TypeError) as error:
        raise GrammarError(f"{where}: not JSON ({error})") from None
    except RecursionError:
        raise GrammarError(f"{where}: nested too deeply") from None
    if nests_deeply(loaded):
        raise GrammarError(f"{where}: nested too deeply, wanted at most {DEEPEST} levels")
    return loaded


def nests_deeply(value) -> bool:
    """Whether lists, tuples and dicts are more than `DEEPEST` levels deep, as those are that hold
    themselves.
    """
    level = [value]
    for _ in range(DEEPEST + 1):
        held = {id(each): each for each in level if isinstance(each, (dict, list, tuple))}
        if not held:
            return False
        level = [
            inner
            for each in held.values()
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return True


def _number(text: str) -> Decimal:
    value = Decimal(text)
    if value and not -400 < value.adjusted() < 400:
        raise ValueError(f"number {text} is out of range")
    return value


def _refuse(name: str):
    raise ValueError(f"{name} is not a JSON number")
