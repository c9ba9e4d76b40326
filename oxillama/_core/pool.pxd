"""Page memory for the compiled modules: where the keys and values of (layer, page) lie."""
from libc.stdint cimport int32_t

ctypedef struct KvLayer:
    int heads              # of keys; a latent layer has 1
    int view               # 1: values are the first v_dim floats of the keys, and take no bytes of their own
    int k_dim
    int v_dim
    size_t region          # first byte of this layer inside a slab
    size_t start           # first byte of this layer in an exported page
    size_t page_bytes      # one page of this layer: K, then V
    size_t v_offset        # V's first byte inside it
    size_t k_group_bytes   # 16 keys of one head
    size_t k_head_bytes    # page_size keys of one head
    size_t v_group_bytes   # 16 values of one head
    size_t v_head_bytes


cdef class Arena:
    """One block of zeroed memory that takes real memory only as it is touched."""
    cdef char *data
    cdef readonly size_t nbytes


cdef class PageMemory:
    cdef char **slabs
    cdef int n_slabs
    cdef int shift         # log2 of the pages of a slab
    cdef size_t slab_bytes
    cdef int extent        # slabs mapped at once
    cdef KvLayer *layers
    cdef readonly int n_layers
    cdef readonly int page_size
    cdef readonly int capacity
    cdef readonly size_t page_bytes
    cdef int kind          # OX_KV_...
    cdef readonly tuple slot_layers  # shape of each layer's recurrent state, float32
    cdef readonly size_t slot_bytes  # one slot: the state of every layer, layers ascending, each at a multiple of 64 bytes
    cdef char **slots      # of each slot id below `slot_capacity`
    cdef readonly int slot_capacity
    cdef list _slot_arenas
    cdef int steps         # steps and calls running on this memory now
    cdef int _check(self, int page) except -1
    cdef const KvLayer *_layer(self, int layer) except NULL
    cdef int check_table(self, const int32_t[::1] pages, int first, int count) except -1
    cdef int _begin(self, object num_threads) except -1
    cdef int _end(self) except -1
    cdef int _move(self, int page, char *data, bint out, object num_threads) except -1
    cdef int _map(self) except -1
    cdef int _check_slot(self, int slot) except -1


cdef inline char *page_of(char **slabs, int shift, const KvLayer *layer, int page) noexcept nogil:
    return slabs[page >> shift] + layer.region + <size_t>(page & ((1 << shift) - 1)) * layer.page_bytes
