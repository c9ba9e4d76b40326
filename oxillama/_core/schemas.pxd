"""The schemas inside a JSON Schema: see schemas.pyx."""
from libc.stdint cimport int32_t

from oxillama._core.sequences cimport Ints


cdef struct Task:           # a schema to be numbered; the objects are held by the schema that holds it
    void *schema
    void *keyword
    void *name              # NULL in a list
    int32_t index           # in a list
    int32_t parent, base, draft, group


cdef struct Tasks:
    Task *data
    Py_ssize_t n, cap


cdef struct Slot:
    void *schema
    int32_t node


cdef class Schemas:
    cdef readonly list schemas
    cdef readonly list bases
    cdef readonly bint logical      # whether some schema has a keyword of `LOGIC`
    cdef dict base_numbers
    cdef list resolved              # by base, what references point to
    cdef Slot *slots                # the nodes by the address of their schema: open addressing
    cdef Py_ssize_t mask
    cdef dict leaves                # the first node of equal leaves, by what they enforce
    # by node
    cdef list steps                 # two each: keyword, and name or index, below the parent; the whole pointer where there is no parent
    cdef Ints parents, base, draft, kinds, reached, merged
    cdef Ints representative        # the literal that represents a node, -1 where it is not known: 2 node + sign
    cdef dict shared                # literals, by the same number
    cdef dict alone                 # by nodes where nothing but a `$ref` counts, that alone
    # Groups are the nodes that a value reaches together without references: group 0 with the root, each other one with a node that only
    # references lead to. Entries are (node, next entry or -1).
    cdef Ints group_of              # by node: the group that begins with it, or -1
    cdef Ints first, last, entries

    cpdef int base_number(self, str uri) except -1
    cdef int _begin_group(self) except -1
    cdef int _enter(self, int group, int node) except -1
    cdef int _add(self, schema, int kinds, keyword, name, int parent, int base, int draft) except -1
    cpdef int find(self, schema) except -2
    cpdef int index(self, root, str pointer, int base, int draft, bint direct) except -1
    cdef int _index(self, Tasks *todo, Task task) except -1
    cpdef int number(self, schema) except -1
    cpdef int synthetic(self, dict schema, str pointer) except -1
    cdef str _pointer(self, int parent, str keyword, name)
    cpdef tuple resolve(self, int node, str reference)
    cpdef int behind(self, int node) except -1
    cpdef tuple plain(self, int node, bint sign)
    cpdef keywords(self, int node)
    cdef int _remember(self, int node) except -1
    cdef int _check(self, int node, dict schema) except -1
    cpdef tuple literal(self, schema, bint sign=*)
    cdef tuple _shared(self, int node, bint sign)
    cdef tuple inverse(self, tuple literal)
    cdef tuple _representative(self, int node)
    cdef bint _enforces_more(self, dict schema) except -1
    cpdef dict reach(self)
    cdef int _reach_group(self, int group, dict out, list todo) except -1
    cdef int _reach_node(self, int node, dict out, list todo) except -1
    cdef int _link(self, int node, dict schema, dict out, list todo) except -1
    cpdef int refuse_loops(self, dict edges) except -1
    cpdef int merge(self) except -1
    cdef tuple _compound_key(self, int node, dict schema)
    cdef object _held(self, value)


cpdef str kind_of(value)
cpdef canonical(value)
