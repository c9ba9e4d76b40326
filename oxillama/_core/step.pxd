"""What the tape hands to every part of a step: its rows, slots, pages and worker scratch; and what every op is."""
from libc.stdint cimport int32_t, int64_t, uint8_t

from oxillama._core.adapters cimport RowTiles
from oxillama._core.batch cimport Batch as Rows
from oxillama._core.pager cimport PagedOp
from oxillama._core.pool cimport KvLayer
from oxillama._core.threads cimport ox_team
from oxillama._core.vectors cimport ox_tile, ox_vec, ox_wide

ctypedef void (*QuantiseFn)(uint8_t *out, const float *x, int64_t columns) noexcept nogil

cdef enum:
    KV_KINDS = 4      # OX_KV_COUNT
    ACTS = 4          # activation formats: f32, q8_32, q8_256, bf16
    OUTPUT = -1       # the slot number of the program's output rows

cdef enum Domain:
    # Which rows an op runs over. Rows routed to several experts are not a third domain: their parts lie side by side in one row.
    ALL_ROWS = 0
    WANTED_ROWS = 1   # those whose output is asked
    KEPT_ROWS = 2     # those, and others whose state is read behind the last layer (`Program.carried`)


ctypedef struct Tiles:
    # Rows cut into tiles of one sequence: consecutive positions, at most `rows` of them; tile t is rows first[t] to first[t + 1] - 1.
    int rows
    int alone         # a row at this position or behind it is a tile
    int count
    int widest        # most rows of a tile in this step
    int *first


ctypedef struct Step:
    int rows
    int wanted
    const int32_t *tokens
    const int32_t *positions
    const int32_t *row_table
    const int32_t *wanted_rows
    int kept
    const int32_t *kept_rows
    const int32_t *wanted_kept   # which of the kept rows each wanted one is; NULL: they are the same rows
    const int32_t *limits        # keys each row sees
    int limited                  # not 0: a batch says them, else those up to a row's own position
    const int32_t *rope          # (rope_sections, rows): positions that rotate
    int rope_sections
    int served                   # tokens that a sequence may have; 0: its last row of the step says it
    const float *embeds          # (rows, embed_width) or NULL
    int64_t embed_width
    const int32_t *spans         # (2, rows): first key, and the one after the last, that an op over spans lets a row see; or NULL
    int sequences                # of rows of one table: sequence i is rows begins[i] to begins[i + 1] - 1
    const int32_t *begins
    const int32_t *state_slots   # of each table
    const int32_t *spare_slots   # (rows,): where the state after a row goes, -1: to its table's slot; NULL: all do
    char **states                # the bytes of each slot
    const int32_t **tables       # page ids of each table
    char **slots
    size_t *strides              # bytes between the rows of a slot
    float *out
    size_t out_stride            # bytes
    int page_size
    int kind                     # how keys and values are kept
    const KvLayer *layers
    const ox_vec *vec
    QuantiseFn quantise[ACTS]
    ox_tile *key_tile[KV_KINDS]  # scores of keys kept in panels
    ox_wide *key_wide[KV_KINDS]
    char *scratch                # of all workers
    size_t scratch_stride
    Tiles *tiles
    float *partials              # results of single chunks of an op: splits of attention, scores of blocks
    int32_t *done                # chunks finished of what they belong to
    size_t partial_floats
    int done_items
    int unpacked                 # not 0: weights may not be packed yet, products look (unpacked.pyx)
    int adapting                 # not 0: rows of the step use adapters (lowrank.pyx)
    RowTiles adapted[3]          # by domain
    float *low                   # (rows, low_stride): s A x of the op that runs
    float *low_parts             # sums of parts of it
    int64_t low_stride


ctypedef struct Common:
    # The head of every op's arguments.
    const Step *step
    Domain domain


ctypedef void (*PartFn)(const void *args, ox_team *team, int ith, int nth) noexcept nogil
ctypedef void (*WarmFn)(const void *args, int ith, int nth) noexcept nogil
ctypedef size_t (*PartialsFn)(const void *args, const Step *step, int nth) noexcept nogil
ctypedef int (*CountersFn)(const void *args, const Step *step) noexcept nogil

cdef extern from *:
    """
    /* Asks for the cache lines of a stretch of memory without waiting for them. */
    static inline void ox_fetch(const void *p, size_t nbytes) {
        for (size_t i = 0; i < nbytes; i += 64) __builtin_prefetch((const char *)p + i, 0, 3);
    }
    /* Adds 1 and returns the new value; what other workers wrote before their own addition is visible after it. */
    static inline int ox_count_up(int *p) { return __atomic_add_fetch(p, 1, __ATOMIC_ACQ_REL); }
    """
    void ox_fetch(const void *p, size_t nbytes) noexcept nogil
    int ox_count_up(int32_t *p) noexcept nogil


cdef class Op:
    """One op of a program: a part, its arguments, and the Python objects that keep them alive."""
    cdef PartFn part
    cdef PartialsFn partials     # floats of `Step.partials` that it may use in a step with up to `nth` workers; NULL: none
    cdef CountersFn counters     # numbers of `Step.done` that it may use in a step; NULL: none
    cdef WarmFn warm             # fetches what the part will read, while the op before it ends; NULL: nothing worth it
    cdef void *args
    cdef readonly str name
    cdef readonly list adaptable     # (kind, matrices, rows, columns, parts of a row) of what takes an adapter's factors
    cdef readonly Domain domain
    cdef readonly bint output    # writes the program's output rows
    cdef readonly bint whole     # a single row is one chunk: nothing to share among workers
    cdef readonly PagedOp paged  # weights that come from a file while a step runs, None for an op without
    cdef size_t scratch          # bytes of scratch each worker needs
    cdef list held
    cdef readonly bint fetches   # has something to read from a file before a step
    cdef int begin(self, Plan plan, Common *common, str name, PartFn part, dict params) except -1
    cdef int look(self) except -1
    cdef int fetch(self, Rows batch) except -1


cdef class Plan:
    """What is known while a program is built: slot widths, what each slot holds so far, layers, threads."""
    cdef Step *step
    cdef readonly list widths
    cdef readonly list kv_layers
    cdef readonly list slot_layers
    cdef readonly int max_rows
    cdef public int embed_columns, sections   # of the rows that a batch may bring; rope positions that the tables tell apart
    cdef public bint spanned     # some attention sees the keys of a row's span alone
    cdef public bint by_token    # some op wants a token in every row, so that no batch may bring a row in its place
    cdef public int positions    # positions that every table by position has a row for
    cdef readonly int vocab_size, outputs   # outputs: columns of the output rows
    cdef readonly int num_threads
    cdef readonly int index      # of the op being built
    cdef readonly str op
    cdef readonly object isa
    cdef dict content            # slot -> (act name, columns, domain)
    cdef readonly list tile_rows # (rows, alone) of each Tiles
    cdef readonly list reaches   # of each attention op, (layer, window)
    cdef readonly object causal  # whether rows see no key after their own; None: no attention yet
    cdef PagedOp routed          # paged experts of the op before, and the slot of their choice
    cdef int routed_by
    cdef dict uses               # how often each list of paged weights was taken so far
    cdef int use(self, list weights) except -1
    cdef Domain domain           # of the op being built, known after its first read
    cdef bint known
    cdef int need_scratch(self, Op op, size_t nbytes) except -1


cdef inline int rows_of(const Common *c) noexcept nogil:
    return c.step.rows if c.domain == ALL_ROWS else c.step.wanted if c.domain == WANTED_ROWS else c.step.kept


cdef inline int step_row(const Common *c, int row) noexcept nogil:
    """The row of the step that a row of an op is."""
    return row if c.domain == ALL_ROWS else c.step.wanted_rows[row] if c.domain == WANTED_ROWS else c.step.kept_rows[row]


cdef inline char *row_of(const Step *step, int slot, int row) noexcept nogil:
    """The first byte of a row of a slot, or of the output."""
    if slot == OUTPUT:
        return <char *>step.out + <size_t>row * step.out_stride
    return step.slots[slot] + <size_t>row * step.strides[slot]


cdef int act_number(object act) except -1
cdef size_t act_row_bytes(int act, int64_t columns) noexcept nogil
