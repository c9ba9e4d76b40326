"""One case of a schema and what adds to it: see cases.pyx."""

cdef class Action:
    cdef int apply(self, Case case) except -1


cdef class Demand(Action):
    cdef readonly tuple literal


cdef class Only(Action):
    cdef readonly str kind


cdef class Within(Action):
    cdef readonly frozenset kinds


cdef class Require(Action):
    cdef readonly str name


cdef class Forbid(Action):
    cdef readonly str name


cdef class Member(Action):
    cdef readonly str name
    cdef readonly tuple literal
    cdef tuple entry


cdef class IfPresent(Action):
    cdef readonly str name
    cdef readonly tuple literal
    cdef tuple entry


cdef class SomeMember(Action):
    cdef readonly tuple demand


cdef class Branch:
    cdef readonly list actions
    cdef readonly bint complete
    cdef readonly object sole_action
    cdef readonly tuple types, within, names, absent, members, optional, demands, literals


cdef class Case:
    cdef public frozenset types, forbidden, applied, scope
    cdef public bint integer, fraction, unique, dead, describes_others, low_strict, high_strict
    cdef public object low, high, max_length, max_items, max_properties, min_length, min_items, min_properties
    cdef public list values
    cdef public tuple multiples, not_multiples, banned, patterns, formats, arrays, contains, objects, required, names, member_demands, text_choices, changed_members
    cdef public tuple pending, splits, taken_branches, evaluated_members, evaluated_items, unevaluated, undeclared

    cpdef Case copy(self)
    cdef tuple _said(self)
    cdef bint only_pending(self) except -1
    cdef int _check_bounds(self) except -1
    cpdef int split(self, branches, bint failing=*) except -1
    cpdef frozenset whole_types(self)
    cdef tuple next_split(self)
    cpdef int only(self, types) except -1
    cpdef int drop(self, str kind) except -1
    cpdef int require(self, str name) except -1
    cdef int constrain_member(self, str name, tuple entry) except -1
    cpdef bint declares(self, str name) except -1
    cpdef int forbid(self, str name) except -1
    cpdef int properties(self, least=*, most=*) except -1


cpdef tuple branches_of(branches)
cdef tuple entry_of(str name, tuple literal)
