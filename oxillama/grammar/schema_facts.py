"""What a conjunction of schemas demands, as a list of cases without any logic left in them.

`Expander.cases(literals)` turns a set of literals (schema nodes that must or must not hold) into a disjunction of `Facts`. Conjunctions
add facts to a case; `anyOf`, `oneOf`, `if`, `dependent*` and the negation of any keyword split it; contradictions drop it. Sub-schemas of
items and properties stay literals, so recursion needs no unrolling: a grammar rule is a set of literals, and there are finitely many.
"""
import math
from collections.abc import Callable

from oxillama.errors import GrammarError
from oxillama.grammar.formats import FORMATS
from oxillama.grammar.regex import parse_regex, search_automaton
from oxillama.grammar.schema_case import Action, Facts, demand
from oxillama.grammar.schema_document import FALSE, TRUE, TYPES, Document, canonical, escape, exact, kind_of
from oxillama.grammar.schema_negation import negate

MAX_CASES = 1500
MAX_STEPS = 30_000       # cases looked at for one schema, those that turned out impossible included
MAX_SUBSETS = 5          # an `anyOf` of up to this many branches is split into all its subsets where `unevaluated*` looks at it
INFINITE = 1 << 60
IN_PLACE = frozenset(("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "dependentSchemas", "$dynamicRef", "$recursiveRef"))


class Expander:
    """Expands literals of one document. `refuse(pointer, keyword, why)` is called for what cannot be enforced (it raises, or warns)."""

    def __init__(self, document: Document, refuse: Callable[[str, str, str], None]):
        self.document, self.refuse = document, refuse
        self.memo: dict[frozenset, list[Facts]] = {}
        self.working: set[frozenset] = set()
        self.scopes = self.steps = 0
        self.enforced = APPLY.keys()

    def cases(self, literals: frozenset) -> list[Facts]:
        """The cases of a conjunction; no cases: nothing satisfies it."""
        known = self.memo.get(literals)
        if known is None:
            if literals in self.working:
                raise GrammarError(f"schema {self.where(next(iter(literals))[0])}: depends on itself without consuming anything")
            self.working.add(literals)
            try:
                known = self.memo[literals] = self._expand(literals)
            finally:
                self.working.discard(literals)
        return known

    def where(self, node: int) -> str:
        return self.document.pointers[node] or "/"

    def _expand(self, literals: frozenset) -> list[Facts]:
        start = Facts()
        values = self._values_of(literals)
        if values is not None:
            start.allow([v for v in values if all(self.document.holds(literal, v) for literal in literals)])
            return [] if start.dead else [start]
        for literal in sorted(literals):
            demand(literal)(start)
        out, stack = [], [start]
        self.steps -= 1                           # what needs no splitting is free: rules may be expanded after compilation
        while stack:
            facts = stack.pop()
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise GrammarError(f"schema {self.where(min(literals)[0])}: takes more than {MAX_STEPS} steps to split into cases")
            self._settle(facts)
            if facts.dead:
                continue
            if facts.values is not None:
                # the rest of the case is about concrete values: ask the validator, all of the conjunction at once
                facts.values = [v for v in facts.values if all(self.document.holds(literal, v) for literal in literals)]
                facts.splits = ()
                if not facts.values:
                    continue
            if not facts.splits and facts.extras and "object" in facts.types:
                extra = facts.extras[-1]
                facts.extras = facts.extras[:-1]
                facts.split(self._candidates(facts, extra))
            if not facts.splits:
                self._judge_unevaluated(facts)
                out.append(facts)
                if len(out) > MAX_CASES:
                    raise GrammarError(f"schema {self.where(min(literals)[0])}: expands to more than {MAX_CASES} cases")
                continue
            (scope, branches), facts.splits = facts.splits[0], facts.splits[1:]
            if callable(branches):
                branches = branches(facts)
            for actions in reversed(branches):
                other = facts.copy()
                other.scope = scope
                for act in actions:
                    act(other)
                    if other.dead:
                        break
                else:
                    stack.append(other)
            if len(stack) > MAX_CASES:
                raise GrammarError(f"schema {self.where(min(literals)[0])}: expands to more than {MAX_CASES} cases")
        return out

    def _values_of(self, literals) -> list | None:
        """The values of a plain `enum` or `const` among the literals: everything else then only filters them."""
        for node, sign in literals:
            if sign and node:
                schema = self.document.keywords(node)
                for _ in range(8):
                    if "$ref" not in schema:
                        break
                    target, truth = self.document.resolve(node, schema["$ref"])
                    if not (truth and target):
                        break
                    node, schema = target, self.document.keywords(target)
                if "const" in schema:
                    return [schema["const"]]
                if isinstance(schema.get("enum"), list):
                    return list({canonical(v): v for v in schema["enum"]}.values())
        return None

    def _settle(self, facts: Facts) -> None:
        """Applies pending literals until only splits are left."""
        while facts.todo and not facts.dead:
            (literal, scope), facts.todo = facts.todo[0], facts.todo[1:]
            node, sign = literal
            if (literal, scope) in facts.done:
                continue
            facts.done |= {(literal, scope), literal}
            if (node, not sign) in facts.done:
                facts.dead = True
                return
            schema = self.document.keywords(node)
            if sign:
                facts.scope = scope
                self._open_scopes(facts, node, schema, scope)
                for keyword, value in schema.items():
                    self._apply(facts, node, schema, keyword, value)
                    if facts.dead:
                        return
            else:
                facts.scope = frozenset()             # what fails evaluates nothing
                branches = negate(self, node, schema)
                if len(branches) == 1:
                    for act in branches[0]:
                        act(facts)
                elif not branches:
                    facts.dead = True
                else:
                    facts.split(branches)

    def _candidates(self, facts: Facts, extra) -> list[list[Action]]:
        """The members that can meet a demand for some member: each declared one that fits, or one without a declared name."""
        excluded, must, must_not, literal, names = extra
        out: list[list[Action]] = []
        for name in dict.fromkeys([*(n for properties, _, _ in facts.objects for n in properties), *facts.required]):
            if (name not in excluded and all(search_automaton(s).accepts_text(name) for s in must)
                    and not any(search_automaton(s).accepts_text(name) for s in must_not)
                    and all(self.document.holds(n, name) for n in names)):
                out.append([lambda f, n=name: f.require(n), lambda f, n=name: f.add("objects", ({n: literal}, (), TRUE))])
        out.append([lambda f: f.add("owed", extra)])
        return out

    def _open_scopes(self, facts: Facts, node: int, schema: dict, scope) -> None:
        """Starts to note what is evaluated where a schema restricts what is not."""
        for keyword in ("unevaluatedProperties", "unevaluatedItems"):
            if keyword in schema and self._in_place(schema) and schema.get(keyword, True) is not True:
                self.scopes += 1
                facts.scope = facts.scope | {self.scopes}
                facts.add("unevaluated", (self.scopes, keyword, self.literal(schema[keyword]), scope, node))

    def _judge_unevaluated(self, facts: Facts) -> None:
        """Once a case is settled, what is left unevaluated in it is known: a constraint like `additionalProperties` or `items`."""
        for number, keyword, literal, _, node in facts.unevaluated:
            nested = any(number in outer and other == keyword for _, other, _, outer, _ in facts.unevaluated)
            if keyword == "unevaluatedProperties":
                seen = [entry for entry in facts.seen if number in entry[0]]
                if nested or any(everything for *_, everything in seen):
                    continue
                names = {name: TRUE for _, declared, _, _ in seen for name in declared}
                patterns = dict.fromkeys(source for _, _, sources, _ in seen for source in sources)
                facts.add("objects", (names, tuple((source, TRUE) for source in patterns), literal))
            else:
                spans = [span for scopes, span in facts.spans if number in scopes]
                if nested or INFINITE in spans:
                    continue
                if -1 in spans:
                    self.refuse(self.where(node), keyword, "beside 'contains'")
                    continue
                facts.add("arrays", ((TRUE,) * max(spans, default=0), literal))

    # ------------------------------------------------------------------ keywords that must hold

    def _apply(self, facts: Facts, node: int, schema: dict, keyword: str, value) -> None:
        handler = APPLY.get(keyword)
        if handler is not None:
            try:
                handler(self, facts, node, schema, value)
            except GrammarError as error:
                if str(error).startswith("schema "):
                    raise
                self.refuse(self.where(node), keyword, str(error))
            except (TypeError, ValueError, AttributeError):
                raise GrammarError(f"schema {self.where(node)}: keyword {keyword!r}: malformed value {str(value)[:80]!r}") from None

    def literal(self, schema, sign: bool = True):
        return self.document.literal(schema, sign)

    def _type(self, facts, node, schema, value):
        names = value if isinstance(value, list) else [value]
        if not names:
            facts.dead = True
            return
        for name in names:
            if name not in TYPES and name != "integer":
                raise GrammarError(f"schema {self.where(node)}: keyword 'type': {name!r} is no type")
        facts.only(*("number" if name == "integer" else name for name in names))
        if "number" in facts.types and "number" not in names:
            facts.integer = True
            if facts.fraction:
                facts.drop("number")

    def _fraction(self, facts, node, schema, value):
        facts.fraction = True
        if facts.integer:
            facts.drop("number")

    def _enum(self, facts, node, schema, value):
        if not isinstance(value, list):
            raise TypeError
        facts.allow(value)

    def _banned(self, facts, node, schema, value):
        for item in value:
            kind = kind_of(item)
            if kind == "null":
                facts.drop("null")
            elif kind == "array":
                demand((self.document.synthetic({
                    "type": "array", "prefixItems": [{"const": v} for v in item], "minItems": len(item), "maxItems": len(item)},
                    self.where(node)), False))(facts)
            elif kind == "object":
                demand((self.document.synthetic({
                    "type": "object", "properties": {k: {"const": v} for k, v in item.items()}, "required": list(item),
                    "additionalProperties": False}, self.where(node)), False))(facts)
            else:
                facts.add("banned", item)
        if True in [b for b in facts.banned if b is True] and False in [b for b in facts.banned if b is False]:
            facts.drop("boolean")

    def _minimum(self, facts, node, schema, value):
        facts.at_least(exact(value), schema.get("exclusiveMinimum") is True)

    def _maximum(self, facts, node, schema, value):
        facts.at_most(exact(value), schema.get("exclusiveMaximum") is True)

    def _exclusive_minimum(self, facts, node, schema, value):
        if not isinstance(value, bool):
            facts.at_least(exact(value), True)

    def _exclusive_maximum(self, facts, node, schema, value):
        if not isinstance(value, bool):
            facts.at_most(exact(value), True)

    def _multiple(self, facts, node, schema, value):
        if exact(value) <= 0:
            raise ValueError
        facts.add("multiples", exact(value))

    def _pattern(self, facts, node, schema, value):
        parse_regex(value)
        facts.add("patterns", (value, True))

    def _not_pattern(self, facts, node, schema, value):
        facts.add("patterns", (value, False))

    def _format(self, facts, node, schema, value):
        if value in FORMATS and (value, True) not in facts.formats:
            facts.add("formats", (value, True))

    def _not_format(self, facts, node, schema, value):
        facts.add("formats", (value, False))

    def _arrays(self, facts, node, schema, value):
        """`items`, `prefixItems` and `additionalItems` together, when the first of them is met."""
        first = next(k for k in schema if k in ("prefixItems", "items", "additionalItems", "unevaluatedItems"))
        if schema[first] is not value:
            return
        prefix, rest = self.document_array(node, schema)
        facts.add("arrays", (tuple(self.literal(s) for s in prefix), self.literal(rest)))
        whole = "items" in schema and ("additionalItems" in schema or not isinstance(schema["items"], list))
        whole = whole or ("unevaluatedItems" in schema and (schema["unevaluatedItems"] is True or not self._in_place(schema)))
        facts.add("spans", (facts.scope, INFINITE if whole else len(prefix)))

    def document_array(self, node, schema) -> tuple[list, object]:
        """Prefix schemas and the schema of the rest."""
        items = schema.get("items", True)
        if "prefixItems" in schema:
            rest = items if not isinstance(items, list) else schema.get("additionalItems", True)
            prefix = schema["prefixItems"]
        elif isinstance(items, list):
            prefix, rest = items, schema.get("additionalItems", True)
        else:
            prefix, rest = [], items
        if "unevaluatedItems" in schema and schema["unevaluatedItems"] is not True:
            if self._in_place(schema):
                pass                                  # judged when the case is settled
            elif "contains" in schema:
                self.refuse(self.where(node), "unevaluatedItems", "beside 'contains'")
            elif "items" not in schema or isinstance(items, list) and "additionalItems" not in schema:
                rest = schema["unevaluatedItems"]
        return prefix, rest

    @staticmethod
    def _in_place(schema) -> bool:
        return not IN_PLACE.isdisjoint(schema)

    def _contains(self, facts, node, schema, value):
        least, most = schema.get("minContains", 1), schema.get("maxContains")
        facts.add("spans", (facts.scope, -1 if self.document.draft >= 2020 else 0))
        if least == 0 and most is None:
            return
        facts.add("contains", (self.literal(value), int(least), None if most is None else int(most), 0))

    def _objects(self, facts, node, schema, value):
        """`properties`, `patternProperties` and `additionalProperties` together, when the first of them is met."""
        first = next(k for k in schema if k in ("properties", "patternProperties", "additionalProperties", "unevaluatedProperties"))
        if schema[first] is not value:
            return
        rest = schema.get("additionalProperties", True)
        if "additionalProperties" not in schema and not self._in_place(schema):
            rest = schema.get("unevaluatedProperties", True)
        properties = {name: self.literal(sub) for name, sub in schema.get("properties", {}).items()}
        patterns = []
        for source, sub in schema.get("patternProperties", {}).items():
            try:
                parse_regex(source)
            except GrammarError as error:
                self.refuse(f"{self.where(node)}/patternProperties/{escape(source)}", "patternProperties", str(error))
                continue
            patterns.append((source, self.literal(sub)))
        facts.add("objects", (properties, tuple(patterns), self.literal(rest)))
        facts.add("seen", (facts.scope, frozenset(properties), tuple(source for source, _ in patterns),
                           "additionalProperties" in schema or "unevaluatedProperties" in schema and not self._in_place(schema)))

    def _required(self, facts, node, schema, value):
        if isinstance(value, bool):               # draft 3 leftovers have no meaning
            return
        for name in value:
            facts.require(name)

    def _forbidden(self, facts, node, schema, value):
        for name in value:
            facts.forbid(name)

    def _names(self, facts, node, schema, value):
        literal = self.literal(value)
        if literal == FALSE:
            facts.properties(0, 0)
        elif literal != TRUE:
            facts.add("names", literal)

    def _reference(self, facts, node, schema, value):
        demand(self.document.resolve(node, value))(facts)

    def _dynamic(self, facts, node, schema, value):
        anchor = value.partition("#")[2]
        if self.document.dynamic.get(anchor, 0) == -1:
            self.refuse(self.where(node), "$dynamicRef", f"several schemas are called {anchor!r}")
            return
        self._reference(facts, node, schema, value)

    def _recursive(self, facts, node, schema, value):
        if any(isinstance(s, dict) and s.get("$recursiveAnchor") for s in self.document.schemas) and len(self.document.roots) > 2:
            self.refuse(self.where(node), "$recursiveRef", "several schemas may be meant")
            return
        self._reference(facts, node, schema, value)

    def _all_of(self, facts, node, schema, value):
        for sub in value:
            demand(self.literal(sub))(facts)

    def _any_of(self, facts, node, schema, value):
        acts = [demand(self.literal(sub)) for sub in value]
        if facts.scope and 1 < len(value) <= MAX_SUBSETS:
            facts.split([[act for i, act in enumerate(acts) if chosen >> i & 1] for chosen in range(1, 1 << len(acts))])
        else:
            facts.split([[act] for act in acts])

    def _one_of(self, facts, node, schema, value):
        literals = [self.literal(sub) for sub in value]
        if len(literals) == 1:
            demand(literals[0])(facts)
            return
        facts.split(lambda context: self._one_branches(context, literals))

    def _one_branches(self, context: Facts, literals) -> list[list[Action]]:
        """For each branch: it holds, and no branch that could hold with it does."""
        summaries = [self._summary(literal, context) for literal in literals]
        out = []
        for i, literal in enumerate(literals):
            actions = [demand(literal)]
            for j, other in enumerate(literals):
                if j != i and not _apart(summaries[i], summaries[j]) and not self._disjoint(literal, other):
                    actions.append(demand((other[0], not other[1])))
            out.append(actions)
        return out

    def _summary(self, literal, context: Facts):
        """Per case of a branch: types, values, and the values that required properties may have. None if it is not known cheaply."""
        if literal in (TRUE, FALSE):
            return [] if literal == FALSE else None
        try:
            cases = self.cases(frozenset([literal]))
        except GrammarError:
            return None
        out = []
        for facts in cases[:64]:
            values = None if facts.values is None else {canonical(v) for v in facts.values}
            tags = {}
            for name in facts.required:
                child = self.property_literals(facts, name)
                found = None if child is None else self._values_of(child)
                if found is not None:
                    tags[name] = {canonical(v) for v in found}
            out.append((facts.types & context.types, values, tags, set(facts.required), facts))
        return out if len(cases) <= 64 else None

    def _disjoint(self, a, b) -> bool:
        """Whether two literals provably have no value in common."""
        try:
            return not [facts for facts in self.cases(frozenset([a, b])) if not self.hopeless(facts, 2)]
        except GrammarError as error:
            if "depends on itself" in str(error) or "cases" in str(error):
                return False
            raise

    def hopeless(self, facts: Facts, depth: int) -> bool:
        """Whether a case with only the type object demands a property that nothing can satisfy (looked at `depth` levels deep)."""
        if depth == 0 or facts.values is not None or facts.types != {"object"}:
            return False
        for name in facts.required:
            child = self.property_literals(facts, name)
            if child is None:
                return True
            if child and all(self.hopeless(f, depth - 1) for f in self.cases(child)):
                return True
        return False

    def property_literals(self, facts: Facts, name: str) -> frozenset | None:
        """What a property of this name must satisfy; None where it cannot be there."""
        if name in facts.forbidden or (facts.names and not all(self.document.holds(literal, name) for literal in facts.names)):
            return None
        out = set()
        for properties, patterns, rest in facts.objects:
            matched = [properties[name]] if name in properties else []
            if patterns:
                matched += [literal for source, literal in patterns if search_automaton(source).accepts_text(name)]
            out.update(matched or [rest])
        if FALSE in out or (len(out) > 1 and any((node, not sign) in out for node, sign in out)):
            return None
        return frozenset(out - {TRUE})

    def _not(self, facts, node, schema, value):
        demand(self.literal(value, False))(facts)

    def _if(self, facts, node, schema, value):
        then, otherwise = schema.get("then", True), schema.get("else", True)
        if then is True and otherwise is True and not facts.scope:
            return
        facts.split([[demand(self.literal(value)), demand(self.literal(then))],
                     [demand(self.literal(value, False)), demand(self.literal(otherwise))]])

    def _dependencies(self, facts, node, schema, value):
        for name, wanted in value.items():
            def split(context, name=name, wanted=wanted):
                if isinstance(wanted, str):
                    wanted = [wanted]
                consequence = [lambda f, n=n: f.require(n) for n in wanted] if isinstance(wanted, list) else [demand(
                    self.literal(wanted))]
                present = [lambda f: f.require(name), *consequence]
                if "object" not in context.types or name in context.forbidden:
                    return [[]]
                if name in context.required and context.types == {"object"}:
                    return [consequence]
                return [[lambda f: f.forbid(name)], [lambda f: f.only("object"), *present]]
            facts.split(split)


def _whole(value) -> int:
    number = exact(value)
    if isinstance(value, bool) or number.denominator != 1 or number < 0:
        raise ValueError
    return int(number)


def _unique(self, facts, node, schema, value):
    facts.unique = facts.unique or value is True


E = Expander
APPLY = {
    "type": E._type, "enum": E._enum, "const": lambda self, f, n, s, v: f.allow([v]), "$banned": E._banned, "$fraction": E._fraction,
    "minimum": E._minimum, "maximum": E._maximum, "exclusiveMinimum": E._exclusive_minimum, "exclusiveMaximum": E._exclusive_maximum,
    "multipleOf": E._multiple, "$notMultiple": lambda self, f, n, s, v: f.add("broken", exact(v)), "minLength": lambda self, f, n, s, v: f.length(_whole(v)),
    "maxLength": lambda self, f, n, s, v: f.length(0, _whole(v)), "pattern": E._pattern, "$notPattern": E._not_pattern,
    "format": E._format, "$notFormat": E._not_format, "prefixItems": E._arrays, "items": E._arrays, "additionalItems": E._arrays,
    "unevaluatedItems": E._arrays, "minItems": lambda self, f, n, s, v: f.items(_whole(v)),
    "maxItems": lambda self, f, n, s, v: f.items(0, _whole(v)), "contains": E._contains, "uniqueItems": _unique,
    "properties": E._objects, "patternProperties": E._objects, "additionalProperties": E._objects, "unevaluatedProperties": E._objects,
    "required": E._required, "$forbidden": E._forbidden, "propertyNames": E._names,
    "minProperties": lambda self, f, n, s, v: f.properties(_whole(v)),
    "maxProperties": lambda self, f, n, s, v: f.properties(0, _whole(v)), "$ref": E._reference, "$dynamicRef": E._dynamic,
    "$recursiveRef": E._recursive, "allOf": E._all_of, "anyOf": E._any_of, "oneOf": E._one_of, "not": E._not, "if": E._if,
    "dependencies": E._dependencies, "dependentRequired": E._dependencies, "dependentSchemas": E._dependencies,
}


def _apart(a, b) -> bool:
    """Whether two summaries show that no value fits both branches."""
    if a is None or b is None:
        return False
    for types, values, tags, required, facts in a:
        for other_types, other_values, other_tags, other_required, other in b:
            shared = types & other_types
            if not shared:
                continue
            if values is not None and other_values is not None and not values & other_values:
                continue
            if shared <= {"object"} and (any(not tags[name] & other_tags[name] for name in tags if name in other_tags)
                                         or required & other.forbidden or other_required & facts.forbidden):
                continue
            if shared <= {"number"} and _no_number(facts, other):
                continue
            return False
    return True


def _no_number(a: Facts, b: Facts) -> bool:
    if a.integer and b.fraction or a.fraction and b.integer:
        return True
    low, high = max((f.low for f in (a, b) if f.low is not None), default=-math.inf), min(
        (f.high for f in (a, b) if f.high is not None), default=math.inf)
    return low > high
