"""Page memory for the compiled modules: where the keys and values of (layer, page) lie."""
from libc.stdint cimport int32_t, int64_t

ctypedef struct Slabs:
    # Memory of one kind of page, all layers of a page in one slab.
    char **at              # of each slab; never moves
    int shift              # log2 of the pages of a slab
    int count
    int extent             # slabs mapped at once
    int capacity           # pages
    size_t slab_bytes
    size_t page_bytes
    # where windowed layers lie apart, else NULL and 0
    int32_t **frames       # what holds each page, in chunks of 1 << NAME_CHUNK; -1 for nothing
    int made               # frames that were ever given out, from the first on
    int *spare             # of them, those that no page has
    int spares
    int spare_size         # entries allocated for `spare`, at least `made`


ctypedef struct KvLayer:
    const Slabs *slabs
    const int32_t **frames # those of its slabs; NULL: a page is its own frame
    int heads              # of keys; a latent layer has 1
    int view               # 1: values are the first v_dim floats of the keys, and take no bytes of their own; ROWS_VIEW: floats as they are
    int k_dim
    int v_dim
    size_t region          # first byte of this layer inside a slab
    size_t start           # first byte of this layer in an exported page
    size_t bare_start      # the same in a page exported without its windowed layers
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
    cdef Slabs whole, near # of the layers that see all tokens; of those with a window
    cdef int names         # pages, where windowed layers lie apart
    cdef KvLayer *layers
    cdef readonly int n_layers
    cdef readonly int page_size
    cdef readonly int window         # most tokens that a windowed layer looks back at, itself included; 0: there is none
    cdef readonly tuple windows      # of each layer
    cdef readonly size_t page_bytes
    cdef readonly size_t near_bytes  # of them, those of windowed layers
    cdef int kind          # OX_KV_...
    cdef readonly tuple slot_layers  # shape of each layer's recurrent state, float32
    cdef readonly size_t slot_bytes  # one slot: the state of every layer, layers ascending, each at a multiple of 64 bytes
    cdef char **slots      # of each slot id below `slot_capacity`
    cdef readonly int slot_capacity
    cdef list _slot_arenas
    cdef int steps         # steps and calls running on this memory now
    cdef int movers        # calls of `compact` and `release` that wait for none of them to run
    cdef int _check(self, int page) except -1
    cdef int _check_held(self, int page, bint near) except -1
    cdef int _name(self, Slabs *slabs, int page) except -1
    cdef int _give(self, Slabs *slabs, int page) except -1
    cdef int _take(self, Slabs *slabs, int page) except -1
    cdef int _compact(self, Slabs *slabs) except -1
    cdef const KvLayer *_layer(self, int layer) except NULL
    cdef int check_table(self, const int32_t[::1] pages, int first, int count, int held, const KvLayer *one) except -1
    cdef int _begin(self, object num_threads) except -1
    cdef int _end(self) except -1
    cdef int _move(self, int page, char *data, bint bare, bint out, object num_threads) except -1
    cdef int _ensure(self, Slabs *slabs, int64_t wanted) except -1
    cdef int _map(self, Slabs *slabs) except -1
    cdef int _release(self, Slabs *slabs, int64_t keep) except -1
    cdef int _check_slot(self, int slot) except -1
    cdef int _check_whole(self, int page, bint bare) except -1


cdef enum:
    NAME_CHUNK = 12        # log2 of the pages of a chunk of `frames`
    ROWS_VIEW = 2          # `view` of a layer that keeps a row of floats a token, token after token, which no kernel attends to


cdef void gather_keys(int kind, const KvLayer *layer, char *dst, const char *const *src, const int *lanes, int count) noexcept nogil
cdef void gather_values(int kind, const KvLayer *layer, char *dst, const char *const *src, const int *lanes, int count) noexcept nogil


cdef inline int frame_of(const Slabs *slabs, int page) noexcept nogil:
    """What holds the page, -1 for nothing; of slabs that have frames."""
    return slabs.frames[page >> NAME_CHUNK][page & ((1 << NAME_CHUNK) - 1)]


cdef inline char *bytes_at(const KvLayer *layer, int frame) noexcept nogil:
    cdef const Slabs *slabs = layer.slabs
    return slabs.at[frame >> slabs.shift] + layer.region + <size_t>(frame & ((1 << slabs.shift) - 1)) * layer.page_bytes


cdef inline int heads_mark(const KvLayer *layer) noexcept nogil:
    """What stands for the heads of a layer in a list of layers: LATENT and ROWS where they are none."""
    return -layer.view if layer.view else layer.heads


cdef inline char *page_of(const KvLayer *layer, int page) noexcept nogil:
    if layer.frames != NULL:
        page = layer.frames[page >> NAME_CHUNK][page & ((1 << NAME_CHUNK) - 1)]
    return bytes_at(layer, page)
