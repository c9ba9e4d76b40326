"""A JSON Schema as a set of numbered nodes: references resolved, drafts distinguished. The numbers,
and what needs a look at every schema, are `_core.schemas`'s.
"""

from collections.abc import Set
from urllib.parse import unquote, urljoin

from oxillama._core.schemas import FALSE, REFERENCES, Schemas, canonical
from oxillama.errors import GrammarError


def contradicts(literals: Set[tuple[int, bool]]) -> bool:
    """Whether literals exclude each other at first sight."""
    return FALSE in literals or any((node, not sign) in literals for node, sign in literals if node)


class Document(Schemas):
    """All nodes of one schema. `resources` maps absolute URIs to further schemas that references
    may name.
    """

    def __init__(self, root, resources=None):
        self.anchors: dict[str, int] = {}
        self.dynamic: dict[str, int] = {}
        self.roots: dict[str, int] = {}
        self.listed: dict[tuple[int, str], set] = {}
        self.branches: dict[tuple[int, str], tuple] = {}  # what `candidates` reads
        draft = _draft(root, 2020)
        for uri, schema in (resources or {}).items():
            base = self.base_number(uri)
            self.index(schema, f"{uri}#", base, _draft(schema, draft), False)
            self.roots.setdefault(uri, self.number(schema))
        uri = self._identifier(root, draft) or ""
        self.index(root, "", self.base_number(uri), draft, True)
        self.root = self.number(root)
        self.roots.setdefault(uri, self.root)
        self.roots.setdefault("", self.root)

    @staticmethod
    def _identifier(schema, draft: int) -> str | None:
        if not isinstance(schema, dict) or (draft < 2019 and "$ref" in schema):
            return None
        found = schema.get("id" if draft == 4 else "$id")
        return found if isinstance(found, str) else None

    def _identify(self, node: int, schema: dict, base: int, draft: int) -> tuple[int, int]:
        """Notes a schema's identifier and anchors; the base and draft below it. A schema with an
        identifier and a `$schema` of its own is of that draft.
        """
        if isinstance(schema.get("$schema"), str):
            own = _draft(schema, draft)
            if self._identifier(schema, own) is not None:
                draft = own
        name = self._identifier(schema, draft)
        if name is not None:
            uri, _, fragment = urljoin(self.bases[base], name).partition("#")
            if fragment:
                self.anchors[f"{self.bases[base]}#{fragment}"] = node
            else:
                base = self.base_number(uri)
                self.roots[uri] = node
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(keyword), str):
                self.anchors[f"{self.bases[base]}#{schema[keyword]}"] = node
        if isinstance(schema.get("$dynamicAnchor"), str):
            anchor = schema["$dynamicAnchor"]
            self.dynamic[anchor] = -1 if anchor in self.dynamic else node
        return base, draft

    def ambiguity(self, keyword: str, reference: str) -> str:
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
            if keyword in schema and (why := self.ambiguity(keyword, schema[keyword])):
                raise GrammarError(f"schema {self.where(node)}: keyword {keyword!r}: {why}")
        return [self.resolve(node, schema[keyword]) for keyword in REFERENCES if keyword in schema]

    def _resolve(self, node: int, reference: str) -> tuple[int, bool]:
        base = self.bases[self.base_of(node)]
        if reference.startswith("#") and reference.isprintable():
            uri, fragment = base.partition("#")[0], reference[1:]  # what `urljoin` finds, sooner
        else:
            uri, _, fragment = urljoin(base, reference).partition("#")
            if reference.startswith("#"):
                uri = base.partition("#")[0]
        if "%" in fragment:
            fragment = unquote(fragment)
        root = self.roots.get(uri)
        if root is None:
            raise self._dangling(node, f"{reference!r} is not in this document")
        if fragment and not fragment.startswith("/"):
            found = self.anchors.get(f"{uri}#{fragment}")
            if found is None:
                raise self._dangling(node, f"no anchor {fragment!r}")
            return (found, True)
        at, nearest = self.schemas[root], root
        for part in fragment.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(at, dict) and part in at:
                at = at[part]
            elif isinstance(at, list) and part.isascii() and part.isdigit() and int(part) < len(at):
                at = at[int(part)]
            else:
                raise self._dangling(node, f"{reference!r} points to nothing")
            if isinstance(at, dict) and (number := self.find(at)) >= 0:
                nearest = number
        if isinstance(at, bool):
            return (0, at)
        if not isinstance(at, dict):
            raise self._dangling(node, f"{reference!r} is not a schema")
        if self.find(at) < 0:
            self.index(at, fragment, self.base_of(nearest), self.draft_of(nearest), False)
        return (self.find(at), True)

    def _dangling(self, node: int, why: str) -> GrammarError:
        return GrammarError(f"schema {self.where(node)}: keyword '$ref': {why}")

    def prepare(self) -> None:
        """Follows all references from the root and finds equal schemas. Raises if a keyword has a
        value that it cannot have, or if a schema refers to itself at the same position of the
        value, so that it could never be decided.
        """
        self.refuse_loops(self.reach())
        if self.logical:
            self.merge()

    def members(self, node: int, keyword: str) -> set:
        """The canonical forms of a listing keyword's values, made once."""
        known = self.listed.get((node, keyword))
        if known is None:
            known = self.listed[(node, keyword)] = {
                canonical(v) for v in self.schemas[node][keyword]
            }
        return known

    def candidates(self, node: int, keyword: str, value) -> list[tuple[int, bool]]:
        """The branches of `anyOf` or `oneOf` that a concrete value may meet, in order: all but
        those that list other values. They are told apart once.
        """
        known = self.branches.get((node, keyword))
        if known is None:
            known = self.branches[(node, keyword)] = self._told_apart(self.schemas[node][keyword])
        literals, listed, others = known
        if len(others) == len(literals):
            return literals
        return [literals[i] for i in sorted((*listed.get(canonical(value), ()), *others))]

    def _told_apart(
        self, subs: list
    ) -> tuple[list[tuple[int, bool]], dict[object, list[int]], list[int]]:
        """The literals of schemas, by each value that some list the places of those, and the places
        of all others.
        """
        literals = [self.literal(sub) for sub in subs]
        listed: dict[object, list[int]] = {}
        others = []
        for i, (node, sign) in enumerate(literals):
            schema = self.keywords(node) if sign and node else {}
            if "enum" in schema:
                values = self.members(node, "enum")
            elif "const" in schema:
                values = {canonical(schema["const"])}
            else:
                others.append(i)
                continue
            for value in values:
                listed.setdefault(value, []).append(i)
        return literals, listed, others


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
