"""The schemas inside a JSON Schema, numbered, with what the compiler asks of every one of them: how it is well formed, which others it
leads to, and which others say the same.

A *node* is the number of a schema; node 0 is the schema `true`. A *literal* is (node, sign): the node must hold, or must not. Schemas
are looked at here as dicts of JSON values (numbers as int or Decimal); what their keywords mean is `oxillama.grammar.schema`'s.
"""
from libc.stdint cimport int32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from oxillama._core.sequences cimport drop, put

from fractions import Fraction

from oxillama.errors import GrammarError

TRUE, FALSE = (0, True), (0, False)
MAX_HOPS = 8                # references followed to what they mean
TYPES = ("null", "boolean", "object", "array", "string", "number")
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
DEFINITIONS = ("$defs", "definitions")  # what they hold counts where it is referred to
# the keywords that hold schemas: by name, in a list, one
MAPS = frozenset(("properties", "patternProperties", "dependentSchemas", "dependencies", *DEFINITIONS))
LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
SINGLES = frozenset((
    "items", "additionalItems", "additionalProperties", "propertyNames", "contains", "not", "if", "then", "else", "unevaluatedProperties",
    "unevaluatedItems", "contentSchema"))
HOLDING = MAPS | LISTS | SINGLES
NAMING = frozenset(("$schema", "$id", "id", "$anchor", "$dynamicAnchor"))  # say how a schema is called, and by which draft
# the keywords whose schemas apply to the same value
IN_PLACE = frozenset(("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "dependentSchemas"))
LOGIC = frozenset(("anyOf", "oneOf", "not", "if"))  # compare schemas with each other, or make cases of them
# Keywords of schemas that hold no schemas and raise nothing: equal ones are one rule.
LEAF = frozenset((
    "type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "format"))
# All keywords that are enforced (`keywords.APPLY` says how); some with $ are made up by `negation`.
ENFORCED = (LEAF | (HOLDING - {*DEFINITIONS, "then", "else", "contentSchema"})).union(REFERENCES, (
    "$banned", "$fraction", "$notMultiple", "$notPattern", "$notFormat", "multipleOf", "pattern", "minItems", "maxItems", "uniqueItems",
    "required", "dependentRequired", "minProperties", "maxProperties"))

cdef tuple TRUE_LITERAL = TRUE, FALSE_LITERAL = FALSE

cdef enum:                  # what a keyword is
    IS_MAP = 1
    IS_LIST = 2
    IS_SINGLE = 4
    IS_DEFINITIONS = 8
    IS_NAMING = 16
    IS_LOGIC = 32
    IS_LINK = 64            # its schemas may apply to the same value
    IS_LEAF = 128
    IS_ENFORCED = 256
    IS_REF = 512            # $ref
    IS_BRANCHING = 1024     # enforced, but not in `LEAF`
    HAS_FORM = 2048         # its value can be malformed: `FORMS` in the bits above
    FORM_SHIFT = 12
    IS_CHECKED = 1 << 12    # of a node: its values are well formed
    IS_ALONE = 1 << 13      # of a node: its `$ref` is all that counts
    HOLDS = IS_MAP | IS_LIST | IS_SINGLE

cdef enum:                  # what a keyword's value must be for anything to be enforced by it
    COUNT = 1
    NUMBER
    EXCLUSIVE               # a number, or draft 4's boolean
    POSITIVE
    BOOLEAN
    TEXT
    LISTED
    REQUIRED                # names; draft 3's `required: false` asks for nothing
    NAMES_BY_NAME
    TYPE_NAMES              # one or several
    BY_NAME                 # anything, schemas are looked at by themselves
    DEPENDENCIES            # schemas or names by name

FORMS = {
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"), COUNT),
    "minimum": NUMBER, "maximum": NUMBER, "exclusiveMinimum": EXCLUSIVE, "exclusiveMaximum": EXCLUSIVE, "multipleOf": POSITIVE,
    "uniqueItems": BOOLEAN, **dict.fromkeys((*REFERENCES, "pattern", "format"), TEXT), "required": REQUIRED, "type": TYPE_NAMES,
    **dict.fromkeys(("enum", "prefixItems", "allOf", "anyOf", "oneOf"), LISTED),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), BY_NAME),
    "dependentRequired": NAMES_BY_NAME, "dependencies": DEPENDENCIES,
}


def _kind_of_keyword(keyword):
    kind = 0
    for names, bit in ((MAPS, IS_MAP), (LISTS, IS_LIST), (SINGLES, IS_SINGLE), (DEFINITIONS, IS_DEFINITIONS), (NAMING, IS_NAMING),
                       (LOGIC, IS_LOGIC), (IN_PLACE | {"dependencies"}, IS_LINK), (LEAF, IS_LEAF), (ENFORCED, IS_ENFORCED),
                       (("$ref",), IS_REF), (ENFORCED - LEAF, IS_BRANCHING), (FORMS, HAS_FORM)):
        if keyword in names:
            kind |= bit
    return kind | FORMS.get(keyword, 0) << FORM_SHIFT


cdef dict KINDS = {keyword: _kind_of_keyword(keyword) for keyword in (*HOLDING, *NAMING, *IN_PLACE, *ENFORCED, *FORMS)}


cdef inline int kind_of_keyword(keyword) except -1:
    kind = KINDS.get(keyword)
    return 0 if kind is None else <int>kind


cdef int kinds_of(dict schema) except -1:
    """All that a schema's keywords are."""
    cdef int out = 0
    for keyword in schema:
        out |= kind_of_keyword(keyword)
    return out & ((1 << FORM_SHIFT) - 1)


cpdef str kind_of(value):
    """The JSON type of a value."""
    if isinstance(value, str):
        return "string"
    if value is None:
        return "null"
    if value is True or value is False:
        return "boolean"
    if isinstance(value, dict):
        return "object"
    if isinstance(value, list):
        return "array"
    return "number"


cpdef canonical(value):
    """A hashable form in which equal JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    cdef str kind = kind_of(value)
    if kind == "number":
        return kind, Fraction(value)
    if kind == "object":
        return kind, frozenset([(k, canonical(v)) for k, v in (<dict>value).items()])
    if kind == "array":
        return kind, tuple([canonical(v) for v in <list>value])
    return kind, value


cdef bint is_number(value) except -1:
    return type(value) is int or kind_of(value) == "number"


cdef bint is_names(value) except -1:
    if not isinstance(value, list):
        return False
    for name in <list>value:
        if not isinstance(name, str):
            return False
    return True


cdef bint well_formed(int form, value) except -1:
    """Whether a value is one that a keyword of this form can have."""
    if form == COUNT:
        return is_number(value) and (type(value) is int or Fraction(value).denominator == 1) and value >= 0
    if form == NUMBER:
        return is_number(value)
    if form == EXCLUSIVE:
        return value is True or value is False or is_number(value)
    if form == POSITIVE:
        return is_number(value) and value > 0
    if form == BOOLEAN:
        return value is True or value is False
    if form == TEXT:
        return isinstance(value, str)
    if form == LISTED:
        return isinstance(value, list)
    if form == REQUIRED:
        return value is False or is_names(value)
    if form == TYPE_NAMES:
        return isinstance(value, str) or is_names(value)
    if not isinstance(value, dict):
        return False
    if form == BY_NAME:
        return True
    for part in (<dict>value).values():
        if not (is_names(part) or form == DEPENDENCIES and (part is True or part is False or isinstance(part, dict))):
            return False
    return True


cdef tuple leaf_key(dict schema):
    """What a schema with no keyword outside `LEAF` enforces, as something that can be compared."""
    cdef list parts = []
    for keyword, value in schema.items():
        if kind_of_keyword(keyword) & IS_LEAF:
            parts.append(keyword)
            if type(value) is not str:
                parts.append(None)          # what follows is a text: 1, True and "1" are three
                value = repr(value)
            parts.append(value)
    return tuple(parts)


def escape(str key):
    """A key as a JSON pointer part."""
    return key.replace("~", "~0").replace("/", "~1") if "~" in key or "/" in key else key


cdef int push(Tasks *todo, schema, keyword, void *name, Py_ssize_t index, const Task *parent) except -1:
    """Puts off a schema that another one holds."""
    cdef Py_ssize_t cap = 2 * todo.cap if todo.cap else 64
    cdef Task *grown
    cdef Task *task
    if schema is True or schema is False:
        return 0
    if todo.n == todo.cap:
        grown = <Task *>realloc(todo.data, cap * sizeof(Task))
        if grown == NULL:
            raise MemoryError()
        todo.data, todo.cap = grown, cap
    task = todo.data + todo.n
    task[0] = parent[0]
    task.schema, task.keyword, task.name, task.index = <void *>schema, <void *>keyword, name, <int32_t>index
    todo.n += 1
    return 0


cdef inline Py_ssize_t place_of(void *schema, Py_ssize_t mask) noexcept:
    """Where the search for a schema begins: by its address, whose lowest bits are zero."""
    return <Py_ssize_t>((<uint64_t><uintptr_t>schema >> 4) * <uint64_t>0x9E3779B97F4A7C15 >> 32) & mask


cdef class Schemas:
    """The numbered schemas of a document. `schemas[node]` is the node's schema, `bases[number]` a base URI.

    A subclass has `_identify`, which notes the identifiers and anchors of a schema and returns the number of the base and the draft below
    it, and `_resolve`, which finds what `resolve` returns.
    """

    def __cinit__(self, *args, **kwargs):
        self.schemas, self.bases, self.base_numbers, self.leaves = [], [], {}, {}
        self.resolved, self.steps, self.alone, self.shared = [], [], {}, {1: TRUE_LITERAL, 0: FALSE_LITERAL}
        self.mask = 63
        self.slots = <Slot *>calloc(self.mask + 1, sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError()
        self._begin_group()
        self._add(True, 0, "", None, -1, self.base_number(""), 2020)

    def __dealloc__(self):
        drop(&self.parents); drop(&self.base); drop(&self.draft); drop(&self.kinds); drop(&self.reached); drop(&self.merged)
        drop(&self.representative); free(self.slots)
        drop(&self.group_of); drop(&self.first); drop(&self.last); drop(&self.entries)

    # ---------------------------------------------------------------- numbers

    cpdef int base_number(self, str uri) except -1:
        """The number of a base URI."""
        known = self.base_numbers.get(uri)
        if known is None:
            known = self.base_numbers[uri] = len(self.bases)
            self.bases.append(uri)
            self.resolved.append({})
        return known

    cdef int _begin_group(self) except -1:
        put(&self.first, -1)
        put(&self.last, -1)
        return <int>self.first.n - 1

    cdef int _enter(self, int group, int node) except -1:
        """Puts a node into a group."""
        cdef int32_t entry = <int32_t>(self.entries.n // 2)
        put(&self.entries, node)
        put(&self.entries, -1)
        if self.last.data[group] < 0:
            self.first.data[group] = entry
        else:
            self.entries.data[2 * self.last.data[group] + 1] = entry
        self.last.data[group] = entry
        return 0

    cdef int _add(self, schema, int kinds, keyword, name, int parent, int base, int draft) except -1:
        """The node of a schema: a new one, if it has none."""
        cdef int node = self.find(schema)
        if node >= 0:
            return node
        node = <int>len(self.schemas)
        self.schemas.append(schema)
        self._remember(node)
        self.steps.append(keyword)
        self.steps.append(name)
        put(&self.parents, parent)
        put(&self.base, base)
        put(&self.draft, draft)
        put(&self.kinds, kinds)
        put(&self.reached, 0)
        put(&self.merged, -1)
        put(&self.representative, -1)
        put(&self.group_of, -1)
        return node

    cpdef int find(self, schema) except -2:
        """The node of a schema, -1 if it has none."""
        cdef Py_ssize_t at = place_of(<void *>schema, self.mask)
        while self.slots[at].schema != NULL:
            if self.slots[at].schema == <void *>schema:
                return self.slots[at].node
            at = (at + 1) & self.mask
        return -1

    cdef int _remember(self, int node) except -1:
        """Notes where a node's schema stands; `schemas` holds it, so that nothing else can come to stand there."""
        cdef Py_ssize_t size, at, i
        cdef Slot *slots
        if 2 * len(self.schemas) > self.mask:
            size = 4 * (self.mask + 1)
            slots = <Slot *>calloc(size, sizeof(Slot))
            if slots == NULL:
                raise MemoryError()
            free(self.slots)
            self.slots, self.mask = slots, size - 1
            for i in range(node):
                self._remember(<int>i)
        at = place_of(<void *>self.schemas[node], self.mask)
        while self.slots[at].schema != NULL:
            at = (at + 1) & self.mask
        self.slots[at].schema, self.slots[at].node = <void *>self.schemas[node], node
        return 0

    cpdef int index(self, root, str pointer, int base, int draft, bint direct) except -1:
        """Numbers every schema below a root. direct: a value reaches it without a reference. Raises for what is no schema."""
        cdef Tasks todo
        cdef Task task
        memset(&todo, 0, sizeof(Tasks))
        memset(&task, 0, sizeof(Task))
        task.parent, task.base, task.draft, task.group = -1, base, draft, 0 if direct else -1
        try:
            push(&todo, root, pointer, NULL, -1, &task)
            while todo.n:
                todo.n -= 1
                self._index(&todo, todo.data[todo.n])
        finally:
            free(todo.data)
        return 0

    cdef int _index(self, Tasks *todo, Task task) except -1:
        """Numbers one schema and puts off those that it holds."""
        cdef int node, kinds, kind
        cdef Py_ssize_t i
        cdef dict schema
        found, keyword, name = <object>task.schema, <object>task.keyword, None
        if task.name != NULL:
            name = <object>task.name
        elif task.index >= 0:
            name = task.index
        if not isinstance(found, dict):
            pointer = self._pointer(task.parent, keyword, name) or "/"
            raise GrammarError(f"schema {pointer}: found {kind_of(found)}, wanted an object or a boolean")
        schema = found
        kinds = kinds_of(schema)
        node = self._add(schema, kinds, keyword, name, task.parent, task.base, task.draft)
        if kinds & IS_NAMING:
            task.base, task.draft = self._identify(node, schema, task.base, task.draft)
            self.base.data[node], self.draft.data[node] = task.base, task.draft
        if task.group < 0:
            task.group = self.group_of.data[node] = self._begin_group()
        self._enter(task.group, node)
        if not kinds & HOLDS:
            return 0
        self.logical = self.logical or kinds & IS_LOGIC
        task.parent = node
        for keyword, value in schema.items():
            kind = kind_of_keyword(keyword)
            if not kind & HOLDS or (kinds & IS_REF and task.draft < 2019 and not kind & IS_DEFINITIONS):
                continue
            if kind & IS_MAP and isinstance(value, dict):
                group = task.group
                if kind & IS_DEFINITIONS:
                    task.group = -1
                for name, sub in (<dict>value).items():
                    if not isinstance(sub, list):
                        push(todo, sub, keyword, <void *>name, -1, &task)
                task.group = group
            elif kind & IS_LIST and isinstance(value, list):
                for i in range(len(<list>value)):
                    push(todo, (<list>value)[i], keyword, NULL, i, &task)
            elif kind & IS_SINGLE and isinstance(value, dict):
                push(todo, value, keyword, NULL, -1, &task)
        return 0

    cpdef int number(self, schema) except -1:
        """A schema's node."""
        cdef int node
        if schema is True:
            return 0
        if schema is False:
            return self.synthetic({"not": True}, "")
        if not isinstance(schema, dict):
            raise GrammarError(f"schema: found {kind_of(schema)}, wanted an object or a boolean")
        node = self.find(schema)
        return node if node >= 0 else self.synthetic(schema, "")

    cpdef int synthetic(self, dict schema, str pointer) except -1:
        """A node for a schema that is not in the document's text."""
        self.index(schema, pointer, 0, 2020, True)
        return self.find(schema)

    def _identify(self, node, schema, base, draft):
        """The subclass has it, see above."""
        raise NotImplementedError

    def _resolve(self, node, reference):
        """The subclass has it, see above."""
        raise NotImplementedError

    cpdef tuple resolve(self, int node, str reference):
        """The literal that a reference in a node points to."""
        cdef dict known = self.resolved[self.base.data[node]]
        found = known.get(reference)
        if found is None:
            found = known[reference] = self._resolve(node, reference)
        return found

    # ---------------------------------------------------------------- questions about one node

    def pointer(self, int node):
        """The JSON pointer of a node, empty for the root."""
        return self._pointer(self.parents.data[node], self.steps[2 * node], self.steps[2 * node + 1])

    cdef str _pointer(self, int parent, str keyword, name):
        if parent < 0:
            return keyword
        start = f"{self.pointer(parent)}/{keyword}"
        if name is None:
            return start
        return f"{start}/{escape(name)}" if isinstance(name, str) else f"{start}/{name}"

    def where(self, int node):
        """The JSON pointer of a node, as errors name it."""
        return self.pointer(node) or "/"

    def base_of(self, int node):
        """The number of the base URI in a node."""
        return self.base.data[node]

    def draft_of(self, int node):
        """The draft that a node is written in: that of the `$schema` nearest above it."""
        return self.draft.data[node]

    cpdef int behind(self, int node) except -1:
        """The node that a node refers to, if it is one that must hold; itself where it refers to none."""
        cdef int hops
        for hops in range(MAX_HOPS):
            if not self.kinds.data[node] & IS_REF:
                break
            target, truth = self.resolve(node, self.keywords(node)["$ref"])
            if not (truth and target):
                break
            node = target
        return node

    cpdef tuple plain(self, int node, bint sign):
        """The literal behind references that have no other enforced keywords next to them."""
        cdef int hops
        for hops in range(MAX_HOPS):
            if not self.kinds.data[node] & IS_REF:
                break
            schema = self.keywords(node)
            if self._enforces_more(schema):
                break
            node, truth = self.resolve(node, schema["$ref"])
            sign = sign == truth
        return self._shared(node, sign)

    cpdef keywords(self, int node):
        """The keywords that apply: before 2019-09, keywords next to `$ref` are ignored. Raises for invalid values."""
        cdef int kinds = self.kinds.data[node]
        if kinds & IS_ALONE:
            return self.alone[node]
        schema = self.schemas[node]
        if not kinds & IS_CHECKED:
            if kinds & IS_REF and self.draft.data[node] < 2019 and isinstance(schema["$ref"], str):
                schema = self.alone[node] = {"$ref": schema["$ref"]}
                self.kinds.data[node] |= IS_ALONE
            elif kinds & HAS_FORM:
                self._check(node, schema)
            self.kinds.data[node] |= IS_CHECKED
        return schema

    cdef int _check(self, int node, dict schema) except -1:
        """Raises where a keyword has a value that it cannot have."""
        cdef int form
        for keyword, value in schema.items():
            form = kind_of_keyword(keyword) >> FORM_SHIFT
            if form and not well_formed(form, value):
                raise GrammarError(f"schema {self.where(node)}: keyword {keyword!r}: malformed value {str(value)[:80]!r}")
        return 0

    cpdef tuple literal(self, schema, bint sign=True):
        """The literal of a schema found inside the document."""
        cdef int node
        cdef tuple known
        if schema is True or schema is False:
            return TRUE_LITERAL if sign == schema else FALSE_LITERAL
        node = self.find(schema)
        if node < 0:
            node = self.number(schema)
        if self.representative.data[node] < 0:
            known = self._representative(node)
            self.representative.data[node] = 2 * <int32_t>known[0] + <int32_t>known[1]
        return self._shared(self.representative.data[node] >> 1, (self.representative.data[node] & 1) == sign)

    cdef tuple _shared(self, int node, bint sign):
        """A literal, one object for all that ask."""
        known = self.shared.get(2 * node + sign)
        if known is None:
            known = self.shared[2 * node + sign] = (node, sign)
        return known

    cdef tuple inverse(self, tuple literal):
        """The literal that holds where another one does not."""
        return self._shared(literal[0], not literal[1])

    cdef tuple _representative(self, int node):
        """The literal that represents a node: what it refers to if it does nothing else, and the first of equal schemas (where there is no
        logic, of equal leaves). Rules and cases are then made once for all of them.
        """
        cdef int hops
        cdef bint truth = True
        cdef dict schema
        for hops in range(MAX_HOPS):
            if node == 0:
                return self._shared(0, truth)
            schema = self.keywords(node)
            if "$ref" not in schema or self._enforces_more(schema):
                break
            try:
                node, kept = self.resolve(node, schema["$ref"])
            except GrammarError:            # raised where the reference is applied, if it is
                break
            truth = truth == kept
        if self.merged.data[node] >= 0:
            return self._shared(self.merged.data[node], truth)
        if node == 0 or self.kinds.data[node] & IS_BRANCHING:
            return self._shared(node, truth)
        return self._shared(self.leaves.setdefault(leaf_key(self.keywords(node)), node), truth)

    cdef bint _enforces_more(self, dict schema) except -1:
        """Whether a schema enforces more than its `$ref`."""
        for keyword in schema:
            if kind_of_keyword(keyword) & IS_ENFORCED and keyword != "$ref":
                return True
        return False

    # ---------------------------------------------------------------- what a value reaches

    cpdef dict reach(self):
        """Finds the nodes that some value may reach (definitions only if they are referred to); returns those of them that have any, each
        with the nodes that apply to the same value. Raises if one of them has a keyword with a value that it cannot have.
        """
        cdef dict out = {}
        cdef list todo = []
        cdef int node, group
        self._reach_group(0, out, todo)
        while todo:
            node = todo.pop()
            if self.reached.data[node]:
                continue
            group = self.group_of.data[node]
            if group >= 0:
                self._reach_group(group, out, todo)
            else:
                self._reach_node(node, out, todo)
        return out

    cdef int _reach_group(self, int group, dict out, list todo) except -1:
        cdef int32_t entry
        cdef int node
        entry = self.first.data[group]
        while entry >= 0:
            self.reached.data[self.entries.data[2 * entry]] = 1
            entry = self.entries.data[2 * entry + 1]
        entry = self.first.data[group]
        while entry >= 0:
            self.keywords(self.entries.data[2 * entry])
            entry = self.entries.data[2 * entry + 1]
        entry = self.first.data[group]
        while entry >= 0:
            node = self.entries.data[2 * entry]
            if self.kinds.data[node] & IS_LINK:
                self._link(node, self.keywords(node), out, todo)
            entry = self.entries.data[2 * entry + 1]
        return 0

    cdef int _reach_node(self, int node, dict out, list todo) except -1:
        """A node that is in no group that begins with it: one that is referred to inside a group, or is made up."""
        cdef dict schema
        cdef int kind, found
        self.reached.data[node] = 1
        schema = self.keywords(node)
        self._link(node, schema, out, todo)
        for keyword, value in schema.items():
            kind = kind_of_keyword(keyword)
            if not kind & HOLDS:
                continue
            subs = ()
            if kind & IS_MAP:
                if isinstance(value, dict) and not kind & IS_DEFINITIONS:
                    subs = value.values()
            elif kind & IS_LIST and isinstance(value, list):
                subs = value
            elif kind & IS_SINGLE:
                subs = (value,)
            for sub in subs:
                if isinstance(sub, dict):
                    found = self.find(sub)
                    if found >= 0 and not self.reached.data[found]:
                        todo.append(found)
        return 0

    cdef int _link(self, int node, dict schema, dict out, list todo) except -1:
        """Notes the nodes that apply to the same value as this one, to be reached too."""
        cdef int kind
        cdef list targets = []
        for keyword, value in schema.items():
            kind = kind_of_keyword(keyword)
            if not kind & IS_LINK or kind & IS_REF:
                continue
            if kind & IS_MAP:
                subs = value.values() if isinstance(value, dict) else ()
            elif kind & IS_LIST:
                subs = value if isinstance(value, list) else ()
            else:
                subs = (value,)
            for sub in subs:
                if isinstance(sub, dict):
                    targets.append(self.number(sub))
        reference = schema.get("$ref")
        if isinstance(reference, str):
            try:
                targets.append(self.resolve(node, reference)[0])
            except GrammarError:            # raised where the reference is used, if it is
                pass
        targets = [target for target in targets if target]
        if targets:
            out[node] = targets
            todo += targets
        return 0

    cpdef int refuse_loops(self, dict edges) except -1:
        """Raises if nodes that apply to the same value lead back to each other. edges: by node, those that it leads to."""
        cdef int node, target
        cdef list path = [], places = [], targets
        cdef Ints state         # by node: 1 on the path, 2 done
        cdef Py_ssize_t at
        memset(&state, 0, sizeof(Ints))
        try:
            for node in range(<int>len(self.schemas)):
                put(&state, 0)
            for first in sorted(edges):
                if state.data[<int>first]:
                    continue
                path.append(first)
                places.append(0)
                while path:
                    node, at = path[len(path) - 1], places[len(places) - 1]
                    state.data[node] = 1
                    targets = edges[node]
                    if at == len(targets):
                        state.data[node] = 2
                        path.pop()
                        places.pop()
                        continue
                    places[len(places) - 1] = at + 1
                    target = targets[at]
                    if state.data[target] == 1:
                        raise GrammarError(f"schema {self.where(target)}: refers to itself without end")
                    if state.data[target] == 0 and target in edges:
                        path.append(target)
                        places.append(0)
        finally:
            drop(&state)
        return 0

    # ---------------------------------------------------------------- equal schemas

    cpdef int merge(self) except -1:
        """Finds equal schemas among those reached: what one of two branches demands and the other forbids, or what both demand, is then seen
        without a look inside.

        Schemas have higher numbers than those that hold them, so that all that one holds is known by its number when its own turn comes.
        What a reference means depends on base and draft.
        """
        cdef int node
        cdef dict schema, compounds = {}
        for node in range(<int>len(self.schemas) - 1, 0, -1):
            if not self.reached.data[node]:
                continue
            schema = self.schemas[node]
            if self.kinds.data[node] & IS_BRANCHING:
                self.merged.data[node] = compounds.setdefault(self._compound_key(node, schema), node)
            else:
                self.merged.data[node] = self.leaves.setdefault(leaf_key(schema), node)
        return 0

    cdef tuple _compound_key(self, int node, dict schema):
        """What a schema enforces, with numbers for the schemas that it holds."""
        cdef int kind
        cdef list parts, held
        if self.kinds.data[node] & IS_NAMING:
            return (node,)
        parts = [self.base.data[node], self.draft.data[node]]
        for keyword, value in schema.items():
            kind = kind_of_keyword(keyword)
            if kind & IS_MAP and isinstance(value, dict):
                if kind & IS_DEFINITIONS:
                    continue
                held = []
                for name, sub in (<dict>value).items():
                    held.append(name)
                    held.append(self._held(sub))
                parts.append((keyword, tuple(held)))
            elif kind & IS_LIST and isinstance(value, list):
                parts.append((keyword, tuple([self._held(sub) for sub in <list>value])))
            elif kind & (HOLDS | IS_ENFORCED):
                parts.append((keyword, self._held(value)))
        return tuple(parts)

    cdef object _held(self, value):
        """A value as part of a key: the number of the first schema that equals it, or its text."""
        cdef int node
        if isinstance(value, dict):
            node = self.find(value)
            if node >= 0 and self.merged.data[node] >= 0:
                return self.merged.data[node]
        return repr(value)
