"""How a step gets its activation quantisers."""
from oxillama._core.step cimport Step

cdef int fill_quantise(Step *step, object isa) except -1
