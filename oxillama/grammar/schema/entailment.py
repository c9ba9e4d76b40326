"""Whether a case already meets a branch of a split: then the split adds nothing to it, and the
case goes on as it is instead of once per branch. `ex` is the `Expander`.

Everything here is a sufficient condition: False says that it is not known.
"""

from oxillama.errors import GrammarError
from oxillama.grammar.schema.case import Action, Case, Demand, Forbid, Member, Only, Require
from oxillama.grammar.schema.document import TRUE
from oxillama.grammar.schema.keywords import APPLY
from oxillama.grammar.schema.validity import holds

# keywords that declare no member names, by themselves or by what they refer to
SILENT = frozenset(APPLY) - {
    "properties",
    "patternProperties",
    "additionalProperties",
    "unevaluatedProperties",
    "dependencies",
    "dependentSchemas",
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
}


def met(ex, case: Case, branches: list[list[Action]]) -> bool:
    """Whether a case meets one of the branches as it is. The others must declare no further
    members, except where that changes nothing: those of a closed object are the declared ones, and
    they have an order.
    """
    return any(all(_entailed(ex, case, act) for act in acts) for acts in branches) and (
        ex.loose or all(_silent(ex, case, act) for acts in branches for act in acts)
    )


def _entailed(ex, case: Case, act: Action) -> bool:
    if isinstance(act, Demand):
        return act.literal == TRUE or act.literal in case.done or _plain(ex, case, act.literal)
    if isinstance(act, Only):
        return case.types == {act.kind}
    if isinstance(act, Require):
        return act.name in case.required
    if isinstance(act, Forbid):
        return act.name in case.forbidden
    return isinstance(act, Member) and _has(ex, case, act.name, act.literal)


def _plain(ex, case: Case, literal: tuple[int, bool]) -> bool:
    """Whether a case meets a literal whose schema only names types and required members."""
    node, sign = literal
    if not (node and sign):
        return False
    for keyword, value in ex.document.keywords(node).items():
        if keyword == "type":
            names = value if isinstance(value, list) else [value]
            if not case.types <= {"number" if name == "integer" else name for name in names}:
                return False
            if "number" in case.types and "number" not in names and not case.integer:
                return False
        elif keyword == "required":
            if "object" in case.types and not set(value or ()) <= set(case.required):
                return False
        elif keyword in APPLY:
            return False
    return True


def _has(ex, case: Case, name: str, literal: tuple[int, bool]) -> bool:
    """Whether a member is required whose values, few of them, all meet a literal."""
    if name not in case.required:
        return False
    found = ex.property_literals(case, name)
    if found is None or literal in found:
        return True
    values = ex.values_of(found)
    if values is None:
        return False
    try:
        return all(
            holds(ex.document, literal, value)
            for value in values
            if all(holds(ex.document, known, value) for known in found)
        )
    except (GrammarError, TypeError, ValueError, AttributeError):
        return False  # what is malformed there is refused where it is demanded


def _silent(ex, case: Case, act: Action) -> bool:
    if isinstance(act, Demand):
        node, sign = act.literal
        return node == 0 or (
            sign and all(k in SILENT or k not in APPLY for k in ex.document.keywords(node))
        )
    if isinstance(act, (Member, Require)):
        return case.declares(act.name)
    return isinstance(act, (Only, Forbid))
