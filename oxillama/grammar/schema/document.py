"""A JSON Schema as a set of numbered nodes: references resolved, drafts distinguished.

Node 0 is the schema `true`. A *literal* is (node, sign): the node must hold, or must not.
"""

import contextlib
from collections.abc import Iterable, Set
from urllib.parse import unquote, urljoin

from oxillama.errors import GrammarError
from oxillama.grammar.schema.values import canonical, exact, kind_of

TRUE, FALSE = (0, True), (0, False)
MAPS = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
)
DEFINITIONS = ("$defs", "definitions")  # what they hold counts where it is referred to
LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
SINGLES = frozenset(
    (
        "items",
        "additionalItems",
        "additionalProperties",
        "propertyNames",
        "contains",
        "not",
        "if",
        "then",
        "else",
        "unevaluatedProperties",
        "unevaluatedItems",
        "contentSchema",
    )
)
# the keywords that say how a schema is called, and by which draft
NAMING = frozenset(("$schema", "$id", "id", "$anchor", "$dynamicAnchor"))
HOLDING = MAPS | LISTS | SINGLES  # the keywords that hold schemas
# the keywords whose schemas apply to the same value
IN_PLACE = frozenset(
    ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "dependentSchemas")
)
_LINKS = IN_PLACE | {"dependencies"}
# the keywords that compare schemas with each other, or make cases of them
LOGIC = frozenset(("anyOf", "oneOf", "not", "if"))
TYPES = ("null", "boolean", "object", "array", "string", "number")
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

# Keywords of schemas that hold no schemas and raise nothing: equal ones are one rule.
LEAF = frozenset(
    (
        "type",
        "enum",
        "const",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "minLength",
        "maxLength",
        "format",
    )
)
# All keywords that are enforced (`keywords.APPLY` says how); some with $ are made up by `negation`.
ENFORCED = (LEAF | (HOLDING - {*DEFINITIONS, "then", "else", "contentSchema"})).union(
    REFERENCES,
    (
        "$banned",
        "$fraction",
        "$notMultiple",
        "$notPattern",
        "$notFormat",
        "multipleOf",
        "pattern",
        "minItems",
        "maxItems",
        "uniqueItems",
        "required",
        "dependentRequired",
        "minProperties",
        "maxProperties",
    ),
)
_BRANCHING, _BESIDES = ENFORCED - LEAF, ENFORCED - {"$ref"}
MAX_HOPS = 8  # references followed to what they mean


def _number(value) -> bool:
    return kind_of(value) == "number"


def _count(value) -> bool:
    return _number(value) and exact(value).denominator == 1 and value >= 0


def _names(value) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


# What the values of keywords must be for anything to be enforced by them; draft 3's `required:
# false` asks for nothing.
WELL_FORMED = {
    **dict.fromkeys(
        (
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minProperties",
            "maxProperties",
            "minContains",
            "maxContains",
        ),
        _count,
    ),
    **dict.fromkeys(("minimum", "maximum"), _number),
    **dict.fromkeys(
        ("exclusiveMinimum", "exclusiveMaximum"),
        lambda value: isinstance(value, bool) or _number(value),
    ),
    **dict.fromkeys(REFERENCES, lambda value: isinstance(value, str)),
    "multipleOf": lambda value: _number(value) and value > 0,
    "uniqueItems": lambda value: isinstance(value, bool),
    "enum": lambda value: isinstance(value, list),
    "pattern": lambda value: isinstance(value, str),
    "required": lambda value: value is False or _names(value),
    "dependentRequired": lambda value: isinstance(value, dict) and all(map(_names, value.values())),
    "dependencies": lambda value: (
        isinstance(value, dict)
        and all(isinstance(part, (dict, bool)) or _names(part) for part in value.values())
    ),
}


_FORMED = frozenset(WELL_FORMED)
_LEADING = HOLDING | NAMING | {"$ref"}  # what leads to other schemas, or others to this one


# Nodes that a value reaches together, without references: all, those with keywords whose values may
# be malformed, and those with keywords that apply to the same value.
Group = tuple[list[int], list[int], list[int]]


def contradicts(literals: Set[tuple[int, bool]]) -> bool:
    """Whether literals exclude each other at first sight."""
    return FALSE in literals or any((node, not sign) in literals for node, sign in literals if node)


class Document:
    """All nodes of one schema. `resources` maps absolute URIs to further schemas that references
    may name.
    """

    def __init__(self, root, resources=None):
        self.schemas: list = [True]
        self.pointers: list[str] = [""]
        self.bases: list[str] = [""]
        self.numbers: dict[int, int] = {}
        self.anchors: dict[str, int] = {}
        self.dynamic: dict[str, int] = {}
        self.roots: dict[str, int] = {}
        self.resolved: dict[tuple[str, str], tuple[int, bool]] = {}
        self.listed: dict[tuple[int, str], set] = {}
        # representatives of nodes, and those of equal schemas by what they enforce
        self.equal: dict[int, tuple[int, bool]] = {}
        self.alike: dict[tuple, int] = {}
        self.merged: dict[int, int] = {}
        self.logical = False  # whether some schema has a keyword of `LOGIC`
        # by node that only references lead to, what is reached with it; and the same of the root
        self.groups: dict[int, Group] = {}
        self.direct: Group = ([], [], [])
        # what `keywords` gives, once looked at
        self.effective: dict[int, dict] = {}
        self.drafts: list[int] = [2020]
        for uri, schema in (resources or {}).items():
            self._index(schema, f"{uri}#", uri, _draft(schema, _draft(root, 2020)))
            self.roots.setdefault(uri, self.number(schema))
        draft = _draft(root, 2020)
        base = self._identifier(root, draft) or ""
        self._index(root, "", base, draft, self.direct)
        self.root = self.number(root)
        self.roots.setdefault(base, self.root)
        self.roots.setdefault("", self.root)

    def draft_of(self, node: int) -> int:
        """The draft that a node is written in: that of the `$schema` nearest above it."""
        return self.drafts[node]

    @staticmethod
    def _identifier(schema, draft: int) -> str | None:
        if not isinstance(schema, dict) or (draft < 2019 and "$ref" in schema):
            return None
        found = schema.get("id" if draft == 4 else "$id")
        return found if isinstance(found, str) else None

    def _index(
        self, root, pointer: str, base: str, draft: int, group: "Group | None" = None
    ) -> None:
        """Numbers every schema below root and notes identifiers and anchors. A schema with an
        identifier and a `$schema` of its own is of that draft, with all below it. group: what is
        reached with the root; None where only references lead to it.
        """
        todo = [(root, pointer, base, draft, group)]
        while todo:
            schema, pointer, base, draft, group = todo.pop()
            if schema is True or schema is False:
                continue
            if not isinstance(schema, dict):
                raise GrammarError(
                    f"schema {pointer or '/'}: {kind_of(schema)} found, an object or a boolean "
                    "wanted"
                )
            if _LEADING.isdisjoint(schema):  # most schemas
                number = self._add(schema, pointer, base, draft)
                if group is None:
                    group = self.groups[number] = ([], [], [])
                group[0].append(number)
                if not _FORMED.isdisjoint(schema):
                    group[1].append(number)
                continue
            if NAMING.isdisjoint(schema):
                number = self._add(schema, pointer, base, draft)
            else:
                number, base, draft = self._identify(schema, pointer, base, draft)
            if group is None:
                group = self.groups[number] = ([], [], [])
            group[0].append(number)
            group[1].append(number)
            if not _LINKS.isdisjoint(schema):
                group[2].append(number)
            if HOLDING.isdisjoint(schema):
                continue
            self.logical = self.logical or not LOGIC.isdisjoint(schema)
            if draft < 2019 and "$ref" in schema:
                held = schema.keys() & DEFINITIONS
            else:
                held = schema.keys() & HOLDING
            for key in schema if len(held) > 1 else held:
                if key not in held:
                    continue
                value, at = schema[key], f"{pointer}/{key}"
                if key in MAPS and isinstance(value, dict):
                    here = None if key in DEFINITIONS else group
                    todo.extend(
                        [
                            (v, f"{at}/{escape(k)}", base, draft, here)
                            for k, v in value.items()
                            if not isinstance(v, list)
                        ]
                    )
                elif key in LISTS and isinstance(value, list):
                    todo.extend([(v, f"{at}/{i}", base, draft, group) for i, v in enumerate(value)])
                elif key in SINGLES and isinstance(value, (dict, bool)):
                    todo.append((value, at, base, draft, group))

    def _identify(self, schema: dict, pointer: str, base: str, draft: int) -> tuple[int, str, int]:
        """Numbers a schema and notes its identifier and anchors; its number, and the base and draft
        below it.
        """
        if isinstance(schema.get("$schema"), str):
            own = _draft(schema, draft)
            if self._identifier(schema, own) is not None:
                draft = own
        name = self._identifier(schema, draft)
        if name is not None:
            uri, _, fragment = urljoin(base, name).partition("#")
            if fragment:
                self.anchors[f"{base}#{fragment}"] = self._add(schema, pointer, base, draft)
            else:
                base = uri
        number = self._add(schema, pointer, base, draft)
        if name is not None:
            self.roots[base] = number
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(keyword), str):
                self.anchors[f"{base}#{schema[keyword]}"] = number
        if isinstance(schema.get("$dynamicAnchor"), str):
            anchor = schema["$dynamicAnchor"]
            self.dynamic[anchor] = -1 if anchor in self.dynamic else number
        return number, base, draft

    def _add(self, schema, pointer: str, base: str, draft: int) -> int:
        known = self.numbers.get(id(schema))
        if known is None:
            known = self.numbers[id(schema)] = len(self.schemas)
            self.schemas.append(schema)
            self.pointers.append(pointer)
            self.bases.append(base)
            self.drafts.append(draft)
        return known

    def literal(self, schema, sign: bool = True) -> tuple[int, bool]:
        """The literal of a schema found inside the document."""
        number = self.numbers.get(id(schema))
        if number is None:
            if schema is True or schema is False:
                return (0, sign == schema)
            number = self.number(schema)
        known = self.equal.get(number)
        if known is None:
            known = self.equal[number] = self._representative(number)
        return known if sign else (known[0], not known[1])

    def _representative(self, node: int) -> tuple[int, bool]:
        """The literal that represents a node: what it refers to if it does nothing else, and the
        first of equal schemas (where there is no logic, of equal leaves). Rules and cases are then
        made once for all of them.
        """
        truth = True
        for _ in range(MAX_HOPS):
            schema = self.keywords(node) if node else {}
            if "$ref" not in schema or not _BESIDES.isdisjoint(schema):
                break
            try:
                node, kept = self.resolve(node, schema["$ref"])
            except GrammarError:  # raised where the reference is applied, if it is
                break
            truth = truth == kept
        if node in self.merged:
            return (self.merged[node], truth)
        leaf = self._leaf(schema) if node else None
        return (node if leaf is None else self.alike.setdefault(leaf, node)), truth

    def _merge(self, nodes: Iterable[int]) -> None:
        """Finds equal schemas among those that a document with logic uses: what one of two branches
        demands and the other forbids, or what both demand, is then seen without a look inside.

        Schemas have higher numbers than those that hold them, so that all that one holds is known
        by its number when its own turn comes. What a reference means depends on base and draft.
        """
        numbers = {id(True): -1, id(False): -2}
        for node in sorted(nodes, reverse=True):
            schema = self.schemas[node]
            key = self._leaf(schema)
            if key is None:
                key = self._compound(node, schema, numbers)
            same = self.merged[node] = self.alike.setdefault(key, node)
            numbers[id(schema)] = same

    def _compound(self, node: int, schema: dict, numbers: dict[int, int]) -> tuple:
        """What a schema enforces, with numbers for the schemas that it holds."""
        if not NAMING.isdisjoint(schema):
            return (node,)
        parts: list = [self.bases[node], self.drafts[node]]
        for keyword, value in schema.items():
            if keyword in MAPS and isinstance(value, dict):
                if keyword not in DEFINITIONS:
                    held = [(k, numbers.get(id(sub)) or repr(sub)) for k, sub in value.items()]
                    parts.append((keyword, tuple(held)))
            elif keyword in LISTS and isinstance(value, list):
                listed = [numbers.get(id(sub)) or repr(sub) for sub in value]
                parts.append((keyword, tuple(listed)))
            elif keyword in HOLDING or keyword in ENFORCED:
                parts.append((keyword, numbers.get(id(value)) or repr(value)))
        return tuple(parts)

    @staticmethod
    def _leaf(schema: dict) -> tuple | None:
        """What a schema enforces if that is only in `LEAF`, as something that can be compared;
        None otherwise.
        """
        if not _BRANCHING.isdisjoint(schema):
            return None
        # by their text: 1, True and "1" are three
        return tuple(
            [
                (keyword, value) if type(value) is str else (keyword, repr(value), "")
                for keyword, value in schema.items()
                if keyword in LEAF
            ]
        )

    def number(self, schema) -> int:
        """A schema's node."""
        if schema is True:
            return 0
        if schema is False:
            return self.synthetic({"not": True}, "")
        if not isinstance(schema, dict):
            raise GrammarError(f"schema: {kind_of(schema)} found, an object or a boolean wanted")
        known = self.numbers.get(id(schema))
        return known if known is not None else self.synthetic(schema, "")

    def synthetic(self, schema: dict, pointer: str, base: str = "") -> int:
        """A node for a schema that is not in the document's text."""
        self._index(schema, pointer, base, 2020, self.direct)
        return self.numbers[id(schema)]

    def keywords(self, node: int) -> dict:
        """The keywords that apply: before 2019-09, keywords next to `$ref` are ignored. Raises for
        invalid values.
        """
        known = self.effective.get(node)
        if known is not None:
            return known
        schema = self.schemas[node]
        if node and not _FORMED.isdisjoint(schema):
            if self.drafts[node] < 2019 and isinstance(schema.get("$ref"), str):
                schema = {"$ref": schema["$ref"]}
            else:
                self._check(node, schema)
        self.effective[node] = schema
        return schema

    def _check(self, node: int, schema: dict) -> None:
        """Raises where a keyword has a value that it cannot have."""
        for keyword, value in schema.items():
            formed = WELL_FORMED.get(keyword)
            if formed is not None and not formed(value):
                raise GrammarError(
                    f"schema {self.pointers[node] or '/'}: keyword {keyword!r}: malformed "
                    f"value {str(value)[:80]!r}"
                )

    def several(self, keyword: str, reference: str) -> str:
        """Why it is not known what a reference means that depends on where one comes from; empty
        where it is known.
        """
        if (
            keyword == "$dynamicRef"
            and self.dynamic.get(anchor := reference.partition("#")[2], 0) == -1
        ):
            return f"several schemas are called {anchor!r}"
        if (
            keyword == "$recursiveRef"
            and len(self.roots) > 2
            and any(isinstance(s, dict) and s.get("$recursiveAnchor") for s in self.schemas)
        ):
            return "several schemas may be meant"
        return ""

    def referred(self, node: int, schema: dict) -> list[tuple[int, bool]]:
        """The literals that a schema refers to in its own place; GrammarError for a reference of
        which several may be meant.
        """
        for keyword in REFERENCES:
            if keyword in schema and (why := self.several(keyword, schema[keyword])):
                raise GrammarError(
                    f"schema {self.pointers[node] or '/'}: keyword {keyword!r}: {why}"
                )
        return [self.resolve(node, schema[keyword]) for keyword in REFERENCES if keyword in schema]

    def resolve(self, node: int, reference: str) -> tuple[int, bool]:
        """The literal a `$ref` in this node points to."""
        known = self.resolved.get((self.bases[node], reference))
        if known is None:
            known = self.resolved[(self.bases[node], reference)] = self._resolve(node, reference)
        return known

    def _resolve(self, node: int, reference: str) -> tuple[int, bool]:
        where = self.pointers[node] or "/"
        uri, _, fragment = urljoin(self.bases[node], reference).partition("#")
        if reference.startswith("#"):
            uri = self.bases[node].partition("#")[0]
        fragment = unquote(fragment)
        root = self.roots.get(uri)
        if root is None:
            raise GrammarError(
                f"schema {where}: keyword '$ref': {reference!r} is not in this document"
            )
        if fragment and not fragment.startswith("/"):
            found = self.anchors.get(f"{uri}#{fragment}")
            if found is None:
                raise GrammarError(f"schema {where}: keyword '$ref': no anchor {fragment!r}")
            return (found, True)
        at = self.schemas[root]
        base, draft = self.bases[root], self.drafts[root]
        for part in fragment.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(at, dict) and part in at:
                at = at[part]
            elif isinstance(at, list) and part.isascii() and part.isdigit() and int(part) < len(at):
                at = at[int(part)]
            else:
                raise GrammarError(
                    f"schema {where}: keyword '$ref': {reference!r} points to nothing"
                )
            if isinstance(at, dict) and id(at) in self.numbers:
                base = self.bases[self.numbers[id(at)]]
                draft = self.drafts[self.numbers[id(at)]]
        if isinstance(at, bool):
            return (0, at)
        if not isinstance(at, dict):
            raise GrammarError(f"schema {where}: keyword '$ref': {reference!r} is not a schema")
        if id(at) not in self.numbers:
            self._index(at, fragment, base, draft)
        return (self.numbers[id(at)], True)

    def prepare(self) -> None:
        """Follows all references from the root and finds equal schemas. Raises if a keyword has a
        value that it cannot have, or if a schema refers to itself at the same position of the
        value, so that it could never be decided.
        """
        nodes, edges = self._reached()
        self._refuse_loops(edges)
        if self.logical:
            self._merge(nodes)

    def _refuse_loops(self, edges: dict[int, list[int]]) -> None:
        """Raises if nodes that apply to the same value lead back to each other."""
        colour: dict[int, int] = {}  # 1: on the path, 2: done
        for first in sorted(edges):
            path = [(first, iter(edges[first]))] if first not in colour else []
            while path:
                node, rest = path[-1]
                colour[node] = 1
                for target in rest:
                    if colour.get(target) == 1:
                        raise GrammarError(
                            f"schema {self.pointers[target] or '/'}: refers to itself without end"
                        )
                    if target not in colour and target in edges:
                        path.append((target, iter(edges[target])))
                        break
                else:
                    colour[node] = 2
                    path.pop()

    def _reached(self) -> tuple[set[int], dict[int, list[int]]]:
        """The nodes that some value may reach (definitions only if they are referred to); and those
        of them that have any, each with the nodes that apply to the same value.
        """
        out: dict[int, list[int]] = {}
        reached: set[int] = set()
        groups: list[Group] = [self.direct]
        todo: list[int] = []
        numbers = self.numbers
        while groups or todo:
            if groups:
                nodes, checked, linked = groups.pop()
                reached.update(nodes)
                for node in checked:
                    if node not in self.effective:
                        self.keywords(node)
                for node in linked:
                    targets = self._in_place(node, self.keywords(node))
                    if targets:
                        out[node] = targets
                        todo += targets
                continue
            node = todo.pop()
            if node in reached:
                continue
            if node in self.groups:
                groups.append(self.groups[node])
                continue
            reached.add(node)
            schema = self.keywords(node)
            if not _LINKS.isdisjoint(schema) and (targets := self._in_place(node, schema)):
                out[node] = targets
                todo += targets
            if HOLDING.isdisjoint(schema):
                continue
            for key in schema.keys() & HOLDING:
                value = schema[key]
                subs: Iterable = ()
                if key in MAPS:
                    if isinstance(value, dict) and key not in DEFINITIONS:
                        subs = value.values()
                elif key in LISTS and isinstance(value, list):
                    subs = value
                elif key in SINGLES:
                    subs = (value,)
                for sub in subs:
                    if isinstance(sub, dict):
                        found = numbers.get(id(sub))
                        if found is not None and found not in reached:
                            todo.append(found)
        return reached, out

    def _in_place(self, node: int, schema: dict) -> list[int]:
        """The nodes that apply to the same value as this one."""
        subs: list = []
        for keyword, value in schema.items():
            if keyword not in _LINKS or keyword == "$ref":
                continue
            if keyword in ("allOf", "anyOf", "oneOf"):
                subs += value if isinstance(value, list) else []
            elif keyword in ("dependentSchemas", "dependencies"):
                subs += value.values() if isinstance(value, dict) else []
            else:
                subs.append(value)
        targets = [self.number(sub) for sub in subs if isinstance(sub, dict)]
        if isinstance(schema.get("$ref"), str):
            with contextlib.suppress(GrammarError):  # raised where the reference is used, if it is
                targets.append(self.resolve(node, schema["$ref"])[0])
        return [target for target in targets if target]

    def members(self, node: int, keyword: str) -> set:
        """The canonical forms of a listing keyword's values, made once."""
        known = self.listed.get((node, keyword))
        if known is None:
            known = self.listed[(node, keyword)] = {
                canonical(v) for v in self.schemas[node][keyword]
            }
        return known


def _draft(root, otherwise: int) -> int:
    """4, 6, 7, 2019 or 2020 by `$schema`; `otherwise` for a schema that does not say."""
    name = root.get("$schema") if isinstance(root, dict) else None
    if not isinstance(name, str):
        return otherwise
    for mark, draft in (
        ("draft-03", 3),
        ("draft-04", 4),
        ("draft-06", 6),
        ("draft-07", 7),
        ("2019-09", 2019),
    ):
        if mark in name:
            if draft == 3:
                raise GrammarError(
                    "schema /: keyword '$schema': draft 3 is not supported, 4 to 2020-12 are"
                )
            return draft
    return 2020


def escape(key: str) -> str:
    """A key as a JSON pointer part."""
    return key.replace("~", "~0").replace("/", "~1") if "~" in key or "/" in key else key
