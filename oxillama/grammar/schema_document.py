"""A JSON Schema as a set of numbered nodes: references resolved, drafts told apart, and a validator for concrete values.

Node 0 is the schema `true`. A *literal* is (node, sign): the node must hold, or must not. Numbers of the schema are exact (int or Decimal).
"""
import contextlib
import json
from decimal import Decimal
from fractions import Fraction
from urllib.parse import unquote, urljoin

from oxillama.errors import GrammarError
from oxillama.grammar.formats import FORMATS, format_automaton
from oxillama.grammar.regex import search_automaton

TRUE, FALSE = (0, True), (0, False)
MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
SINGLES = ("items", "additionalItems", "additionalProperties", "propertyNames", "contains", "not", "if", "then", "else",
           "unevaluatedProperties", "unevaluatedItems", "contentSchema")
BESIDE = frozenset(("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "dependentSchemas", "dependencies"))
TYPES = ("null", "boolean", "object", "array", "string", "number")


def kind_of(value) -> str:
    """The JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, dict):
        return "object"
    if isinstance(value, list):
        return "array"
    return "string" if isinstance(value, str) else "number"


def exact(value) -> Fraction:
    """A number of the schema as a fraction."""
    return Fraction(value)


def canonical(value):
    """A hashable form in which equal JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    kind = kind_of(value)
    if kind == "object":
        return kind, frozenset((k, canonical(v)) for k, v in value.items())
    if kind == "array":
        return kind, tuple(canonical(v) for v in value)
    return kind, exact(value) if kind == "number" else value


class Document:
    """All nodes of one schema. `resources` maps absolute URIs to further schemas that references may name."""

    def __init__(self, root, resources=None):
        self.schemas: list = [True]
        self.pointers: list[str] = [""]
        self.bases: list[str] = [""]
        self.numbers: dict[int, int] = {}
        self.anchors: dict[str, int] = {}
        self.dynamic: dict[str, int] = {}
        self.roots: dict[str, int] = {}
        self.keep: list = []
        self.resolved: dict[tuple[str, str], tuple[int, bool]] = {}
        self.listed: dict[tuple[int, str], set] = {}
        self.draft = _draft(root)
        for uri, schema in (resources or {}).items():
            self._index(schema, f"{uri}#", uri)
            self.roots.setdefault(uri, self.number(schema))
        base = self._identifier(root) or ""
        self._index(root, "", base)
        self.root = self.number(root)
        self.roots.setdefault(base, self.root)
        self.roots.setdefault("", self.root)

    def _identifier(self, schema) -> str | None:
        if not isinstance(schema, dict) or (self.draft < 2019 and "$ref" in schema):
            return None
        found = schema.get("id" if self.draft == 4 else "$id")
        return found if isinstance(found, str) else None

    def _index(self, root, pointer: str, base: str) -> None:
        """Numbers every schema below root and notes identifiers and anchors."""
        todo = [(root, pointer, base)]
        while todo:
            schema, pointer, base = todo.pop()
            if not isinstance(schema, (dict, bool)):
                raise GrammarError(f"schema {pointer or '/'}: {kind_of(schema)} found, an object or a boolean wanted")
            if isinstance(schema, bool):
                continue
            name = self._identifier(schema)
            if name is not None:
                uri, _, fragment = urljoin(base, name).partition("#")
                if fragment:
                    self.anchors[f"{base}#{fragment}"] = self._add(schema, pointer, base)
                else:
                    base = uri
            number = self._add(schema, pointer, base)
            if name is not None:
                self.roots[base] = number
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(schema.get(keyword), str):
                    self.anchors[f"{base}#{schema[keyword]}"] = number
            if isinstance(schema.get("$dynamicAnchor"), str):
                anchor = schema["$dynamicAnchor"]
                self.dynamic[anchor] = -1 if anchor in self.dynamic else number
            if self.draft < 2019 and "$ref" in schema:
                keys = ("definitions", "$defs")
            else:
                keys = schema
            for key in keys:
                value = schema.get(key)
                at = f"{pointer}/{escape(key)}"
                if key in MAPS and isinstance(value, dict):
                    todo.extend((v, f"{at}/{escape(k)}", base) for k, v in value.items() if not isinstance(v, list))
                elif key in LISTS and isinstance(value, list):
                    todo.extend((v, f"{at}/{i}", base) for i, v in enumerate(value))
                elif key in SINGLES and isinstance(value, (dict, bool)):
                    todo.append((value, at, base))

    def _add(self, schema, pointer: str, base: str) -> int:
        known = self.numbers.get(id(schema))
        if known is None:
            known = self.numbers[id(schema)] = len(self.schemas)
            self.schemas.append(schema)
            self.pointers.append(pointer)
            self.bases.append(base)
            self.keep.append(schema)
        return known

    def literal(self, schema, sign: bool = True) -> tuple[int, bool]:
        """The literal of a schema found inside the document."""
        if schema is True or schema is False:
            return (0, sign == schema)
        return (self.number(schema), sign)

    def number(self, schema) -> int:
        """A schema's node."""
        if schema is True:
            return 0
        if schema is False:
            return self.synthetic({"not": True}, "")
        if not isinstance(schema, dict):
            raise GrammarError(f"schema: {kind_of(schema)} found, an object or a boolean wanted")
        return self.numbers[id(schema)] if id(schema) in self.numbers else self.synthetic(schema, "")

    def synthetic(self, schema: dict, pointer: str, base: str = "") -> int:
        """A node for a schema that is not in the document's text."""
        self._index(schema, pointer, base)
        return self.numbers[id(schema)]

    def keywords(self, node: int) -> dict:
        """The keywords that count: before 2019-09, siblings of `$ref` are ignored."""
        schema = self.schemas[node]
        if self.draft < 2019 and isinstance(schema.get("$ref"), str):
            return {"$ref": schema["$ref"]}
        return schema

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
            raise GrammarError(f"schema {where}: keyword '$ref': {reference!r} is not in this document")
        if fragment and not fragment.startswith("/"):
            found = self.anchors.get(f"{uri}#{fragment}")
            if found is None:
                raise GrammarError(f"schema {where}: keyword '$ref': no anchor {fragment!r}")
            return (found, True)
        at = self.schemas[root]
        base = self.bases[root]
        for part in fragment.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(at, dict) and part in at:
                at = at[part]
            elif isinstance(at, list) and part.isascii() and part.isdigit() and int(part) < len(at):
                at = at[int(part)]
            else:
                raise GrammarError(f"schema {where}: keyword '$ref': {reference!r} points nowhere")
            if isinstance(at, dict) and id(at) in self.numbers:
                base = self.bases[self.numbers[id(at)]]
        if isinstance(at, bool):
            return (0, at)
        if not isinstance(at, dict):
            raise GrammarError(f"schema {where}: keyword '$ref': {reference!r} is no schema")
        if id(at) not in self.numbers:
            self._index(at, fragment, base)
        return (self.numbers[id(at)], True)

    def refuse_loops(self) -> None:
        """Raises if a schema refers to itself at the same place of the value: nothing would ever be decided."""
        colour: dict[int, int] = {}                  # 1: on the path, 2: done
        for first in sorted(self._reached()):
            path = [(first, None)] if first not in colour else []
            while path:
                node, rest = path.pop()
                if rest is None:
                    colour[node] = 1
                    rest = self._beside(node)
                for target in rest:
                    if colour.get(target) == 1:
                        raise GrammarError(f"schema {self.pointers[target] or '/'}: refers to itself without end")
                    if target not in colour:
                        path += [(node, rest), (target, None)]
                        break
                else:
                    colour[node] = 2

    def _reached(self) -> set[int]:
        """The nodes that some value may meet: definitions only where they are referred to."""
        reached, todo = set(), [self.root] if self.root else []
        while todo:
            node = todo.pop()
            if node in reached:
                continue
            reached.add(node)
            todo.extend(self._beside(node))
            schema = self.keywords(node)
            for key, value in schema.items():
                if key in MAPS and isinstance(value, dict) and key not in ("$defs", "definitions"):
                    subs = value.values()
                else:
                    subs = value if key in LISTS and isinstance(value, list) else [value] if key in SINGLES else []
                todo += [self.numbers[id(sub)] for sub in subs if isinstance(sub, dict) and id(sub) in self.numbers]
        return reached

    def _beside(self, node: int):
        """The nodes that apply to the same value as this one does."""
        schema = self.keywords(node)
        if BESIDE.isdisjoint(schema):
            return iter(())
        subs = [schema[k] for k in ("not", "if", "then", "else") if k in schema]
        for keyword in ("allOf", "anyOf", "oneOf"):
            subs += schema[keyword] if isinstance(schema.get(keyword), list) else []
        for keyword in ("dependentSchemas", "dependencies"):
            subs += [s for s in schema[keyword].values() if not isinstance(s, list)] if isinstance(schema.get(keyword), dict) else []
        targets = [self.number(sub) for sub in subs if isinstance(sub, dict)]
        if isinstance(schema.get("$ref"), str):
            with contextlib.suppress(GrammarError):   # raised where the reference is used, if it is
                targets.append(self.resolve(node, schema["$ref"])[0])
        return iter([target for target in targets if target])

    # ------------------------------------------------------------------ concrete values

    def holds(self, literal: tuple[int, bool], value, depth: int = 0) -> bool:
        """Whether a concrete value satisfies a literal."""
        node, sign = literal
        return (node == 0 or self._valid(node, value, depth)) == sign

    def _valid(self, node: int, value, depth: int) -> bool:
        if depth > 200:
            raise GrammarError(f"schema {self.pointers[node] or '/'}: references recur without end on a constant")
        schema, kind = self.keywords(node), kind_of(value)

        def holds(sub, item=value):
            return self.holds(self.literal(sub), item, depth + 1)

        if "type" in schema:
            types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            if kind not in types and not ("integer" in types and kind == "number" and exact(value).denominator == 1):
                return False
        if "enum" in schema and canonical(value) not in self.members(node, "enum"):
            return False
        if "const" in schema and canonical(value) != canonical(schema["const"]):
            return False
        if "$banned" in schema and canonical(value) in self.members(node, "$banned"):
            return False
        if "$ref" in schema and not self.holds(self.resolve(node, schema["$ref"]), value, depth + 1):
            return False
        for keyword, fold in (("allOf", all), ("anyOf", any)):
            if keyword in schema and not fold(holds(sub) for sub in schema[keyword]):
                return False
        if "oneOf" in schema and sum(holds(sub) for sub in schema["oneOf"]) != 1:
            return False
        if "not" in schema and holds(schema["not"]):
            return False
        if "if" in schema:
            branch = schema.get("then" if holds(schema["if"]) else "else", True)
            if not holds(branch):
                return False
        if kind == "number":
            return _valid_number(schema, exact(value))
        if kind == "string":
            return _valid_string(schema, value)
        if kind not in ("array", "object"):
            return True
        if not (self._valid_array if kind == "array" else self._valid_object)(schema, value, holds):
            return False
        keyword = "unevaluatedItems" if kind == "array" else "unevaluatedProperties"
        if schema.get(keyword, True) is True:
            return True
        seen = self.evaluated(node, value, depth, keyword)
        return all(holds(schema[keyword], value[key]) for key in (range(len(value)) if kind == "array" else value) if key not in seen)

    def evaluated(self, node: int, value, depth: int, skip: str = "") -> set:
        """The property names or item indices that a schema which holds evaluates (2020-12 core, section 11); `skip` is left out."""
        if node == 0 or depth > 200:
            return set()
        schema = self.keywords(node)
        subs = [schema["if"]] if "if" in schema else []
        subs += [*schema.get("allOf", []), *schema.get("anyOf", []), *schema.get("oneOf", [])]
        if "if" in schema:
            subs.append(schema.get("then" if self.holds(self.literal(schema["if"]), value, depth + 1) else "else", True))
        subs += [sub for name, sub in schema.get("dependentSchemas", {}).items() if isinstance(value, dict) and name in value]
        literals = [self.literal(sub) for sub in subs] + ([self.resolve(node, schema["$ref"])] if "$ref" in schema else [])
        out: set = set()
        for literal in literals:
            if literal[1] and self.holds(literal, value, depth + 1):
                out |= self.evaluated(literal[0], value, depth + 1)
        if isinstance(value, list):
            items = schema.get("items")
            prefix = schema.get("prefixItems", items if isinstance(items, list) else [])
            whole = ("items" in schema and ("additionalItems" in schema or not isinstance(items, list))) or (
                "unevaluatedItems" in schema and skip != "unevaluatedItems")
            out |= set(range(len(value) if whole else min(len(prefix), len(value))))
            if "contains" in schema and self.draft >= 2020:
                out |= {i for i, item in enumerate(value) if self.holds(self.literal(schema["contains"]), item, depth + 1)}
        elif isinstance(value, dict):
            if "additionalProperties" in schema or ("unevaluatedProperties" in schema and skip != "unevaluatedProperties"):
                return set(value)
            out |= {name for name in value if name in schema.get("properties", {}) or any(
                search_automaton(source).accepts_text(name) for source in schema.get("patternProperties", {}))}
        return out

    def members(self, node: int, keyword: str) -> set:
        """The canonical forms of a listing keyword's values, made once."""
        known = self.listed.get((node, keyword))
        if known is None:
            known = self.listed[(node, keyword)] = {canonical(v) for v in self.schemas[node][keyword]}
        return known

    @staticmethod
    def _valid_array(schema, value, holds) -> bool:
        prefix = schema.get("prefixItems", schema["items"] if isinstance(schema.get("items"), list) else [])
        rest = schema.get("additionalItems", True) if isinstance(schema.get("items"), list) else schema.get("items", True)
        if any(not holds(sub, item) for sub, item in zip(prefix, value, strict=False)):
            return False
        if any(not holds(rest, item) for item in value[len(prefix):]):
            return False
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            return False
        if schema.get("uniqueItems") is True and len({canonical(v) for v in value}) < len(value):
            return False
        if "contains" in schema:
            count = sum(holds(schema["contains"], item) for item in value)
            if not schema.get("minContains", 1) <= count <= schema.get("maxContains", count):
                return False
        return True

    @staticmethod
    def _valid_object(schema, value, holds) -> bool:
        properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, item in value.items():
            matched = [properties[name]] if name in properties else []
            matched += [sub for source, sub in patterns.items() if search_automaton(source).accepts_text(name)]
            if any(not holds(sub, item) for sub in matched or [schema.get("additionalProperties", True)]):
                return False
            if "propertyNames" in schema and not holds(schema["propertyNames"], name):
                return False
        if any(name not in value for name in schema.get("required", []) if isinstance(schema.get("required"), list)):
            return False
        if not schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", len(value)):
            return False
        wanted = {**schema.get("dependencies", {}), **schema.get("dependentRequired", {}), **schema.get("dependentSchemas", {})}
        for name, demand in wanted.items():
            if name in value and not (all(n in value for n in demand) if isinstance(demand, list) else holds(demand)):
                return False
        return True


def _valid_number(schema, value: Fraction) -> bool:
    low, high = schema.get("minimum"), schema.get("maximum")
    below, above = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if low is not None and not (value > exact(low) or (value == exact(low) and below is not True)):
        return False
    if high is not None and not (value < exact(high) or (value == exact(high) and above is not True)):
        return False
    if below is not None and not isinstance(below, bool) and value <= exact(below):
        return False
    if above is not None and not isinstance(above, bool) and value >= exact(above):
        return False
    if schema.get("$fraction") and value.denominator == 1:
        return False
    return "multipleOf" not in schema or (value / exact(schema["multipleOf"])).denominator == 1


def _valid_string(schema, value: str) -> bool:
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        return False
    if "pattern" in schema and not search_automaton(schema["pattern"]).accepts_text(value):
        return False
    return schema.get("format") not in FORMATS or format_automaton(schema["format"]).accepts_text(value)


def _draft(root) -> int:
    """4, 6, 7, 2019 or 2020; a schema that does not say is of the newest."""
    name = root.get("$schema") if isinstance(root, dict) else None
    if not isinstance(name, str):
        return 2020
    for mark, draft in (("draft-03", 3), ("draft-04", 4), ("draft-06", 6), ("draft-07", 7), ("2019-09", 2019)):
        if mark in name:
            if draft == 3:
                raise GrammarError("schema /: keyword '$schema': draft 3 is not supported, 4 to 2020-12 are")
            return draft
    return 2020


def escape(key: str) -> str:
    """A key as a JSON pointer part."""
    return key.replace("~", "~0").replace("/", "~1")


def load(schema, where: str = "schema"):
    """A schema as plain JSON with exact numbers, from text or from Python objects."""
    try:
        text = schema if isinstance(schema, (str, bytes)) else json.dumps(schema, allow_nan=False)
        loaded = json.loads(text, parse_float=_number, parse_constant=_refuse)
    except (ValueError, TypeError) as error:
        raise GrammarError(f"{where}: not JSON ({error})") from None
    except RecursionError:
        raise GrammarError(f"{where}: nested too deeply") from None
    return loaded


def _number(text: str) -> Decimal:
    value = Decimal(text)
    if value and not -400 < value.adjusted() < 400:
        raise ValueError(f"number {text} is out of range")
    return value


def _refuse(name: str):
    raise ValueError(f"{name} is no JSON number")
