"""A conjunction of schemas as cases: see expansion.pyx."""

from oxillama._core.cases cimport Branch, Case
from oxillama._core.schemas cimport Schemas


cdef class Summary:
    cdef Case case
    cdef frozenset types
    cdef set values, required
    cdef dict tags
    cdef Summary without(self, frozenset types)


cdef class Expansion:
    cdef readonly Schemas document
    cdef readonly bint loose
    cdef public Py_ssize_t most_steps
    cdef dict handlers
    cdef dict memo
    cdef set working
    cdef readonly Py_ssize_t cycles, steps
    cdef dict implied, plain, failing, values, texts_listed_by, scalars, declared, alone, told_apart, disjoint

    cpdef list cases(self, frozenset literals)
    cdef list _expand(self, frozenset literals)
    cdef object _too_many(self, frozenset literals, str what)
    cdef list _expanded(self, Case case)
    cpdef int settle(self, Case case) except -1
    cdef int _apply(self, Case case, int node, dict schema, frozenset scope) except -1
    cdef int _fail_to_hold(self, Case case, int node, dict schema) except -1
    cdef bint _may_be_text(self, Branch branch) except -1
    cdef bint _exclude(self, Case case, Branch branch) except -1
    cdef bint _lists_others(self, tuple literal) except -1
    cdef int _want(self, Case case, str name, tuple literal) except -1
    cdef int _refute(self, Case case) except -1
    cpdef dict values_of(self, literals)
    cpdef dict texts_of(self, literals)
    cpdef tuple literal(self, schema, bint sign=*)
    cpdef property_literals(self, Case case, str name)
    cdef int _said_of(self, tuple entry, str name, set out) except -1
    cdef bint _named(self, Case case, str name) except -1
    cdef frozenset _one(self, tuple literal)
    cdef frozenset _together(self, set literals)
    cdef bint _met(self, Case case, tuple branches) except -1
    cdef bint _meets(self, Case case, Branch branch) except -1
    cdef bint _is_some(self, Case case, str name, tuple demand) except -1
    cdef bint _silent(self, Case case, tuple branches) except -1
    cdef bint _declares_nothing(self, tuple literal) except -1
    cdef bint _plainly(self, Case case, int node) except -1
    cdef tuple _plain(self, dict schema)
    cdef bint _never(self, Case case, str name) except -1
    cdef bint _has(self, Case case, str name, tuple literal) except -1
    cdef bint _all_meet(self, frozenset literals, tuple literal) except -1
    cdef list _tell_apart(self, Case context, tuple literals)
    cdef dict _texts_apart(self, tuple literals, list summaries)
    cdef list _summary(self, tuple literal, Case context)
    cdef dict _tags(self, Summary part)
    cdef bint _disjoint(self, tuple one, tuple other) except -1
    cdef bint _unsatisfiable(self, Case case, int depth) except -1
