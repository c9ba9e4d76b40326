"""The tape: an op list checked once, then run for every step without the GIL by all workers at once.

`Program` turns lowered ops into an array of (part, arguments); `step` runs it over a `Batch` of rows from any number of sequences,
with keys and values in a `PageMemory`. Every worker walks the whole array: inside an op workers share chunks, between ops they meet
at the barrier (`csrc/team.h`). Nothing in there allocates or can fail: what a step needs is checked and sized before it.

Adding an op: an argument struct, a `_part`, a class that fills the struct (see `elementwise.pyx`), a row in its module's `OPS`.
"""
import numpy as np

cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from oxillama._core.adapters cimport Adapted, AdapterSet, RowTile, RowTiles
from oxillama._core.attention cimport cut_tiles
from oxillama._core.batch cimport Batch as Rows, CancelFlag as Flag
from oxillama._core.filemap cimport FileMap
from oxillama._core.linear cimport fill_quantise
from oxillama._core.lowrank cimport LOW_COLUMNS, LOW_ROWS
from oxillama._core.pager cimport Pager
from oxillama._core.pool cimport Arena, PageMemory as Pages, frame_of, heads_mark
from oxillama._core.step cimport ALL_ROWS, KEPT_ROWS, OUTPUT, WANTED_ROWS, CountersFn, Domain, Op, PartFn, PartialsFn, Plan, Step, Tiles, WarmFn
from oxillama._core.threads cimport (
    AdaptiveWorkers, Workers, ox_add, ox_preemptions, ox_seconds, ox_team, ox_team_go, ox_team_init, ox_team_meet, ox_team_rewind, ox_team_stopped, within_limit,
    worker_count,
)
from oxillama._core.vectors cimport vec_table

from oxillama._core import attention, blocks, elementwise, experts, linear, recurrent, store
from oxillama._core.batch import MAX_ROWS, Batch, CancelFlag
from oxillama._core.elementwise import EmbeddingTable
from oxillama._core.pool import PageMemory
from oxillama.errors import Cancelled, ConfigError, ContextError, EngineError, ModelError, WeightsDamaged

cdef extern from "block.h" nogil:
    void *ox_block_new(size_t size)
    void ox_block_free(void *block)

__all__ = ["OPS", "Batch", "CancelFlag", "EmbeddingTable", "PageMemory", "Program"]

# The dispatch table: op name -> the class that checks its parameters and holds its arguments.
OPS = {**elementwise.OPS, **store.OPS, **blocks.OPS, **attention.OPS, **linear.OPS, **experts.OPS, **recurrent.OPS}

cdef enum:
    WARM_AHEAD = 2           # ops ahead that may fetch what they will read
    WARM_ROWS = 4            # most rows of a step that waits for memory rather than for arithmetic
    PACED_ROWS = 16          # most rows of a step whose ops are shorter than a time slice

ctypedef struct Entry:
    PartFn part
    const void *args
    Domain domain            # an op over the wanted or the kept rows is skipped when there are none
    int is_attend
    int whole                # a single row is one chunk
    PartialsFn partials      # NULL: it uses none
    CountersFn counters
    WarmFn warm[WARM_AHEAD]  # with few rows: run at the end of this op for ops to come; NULL none
    const void *warm_args[WARM_AHEAD]


ctypedef struct Region:
    # A step's run over the tape, as every worker sees it.
    const Entry *entries
    ox_team *team
    double *clock            # NULL, or when each op ended
    int first
    int last
    int rows[3]              # by domain
    int few                  # so few rows that ops fetch for those to come
    int paced                # preemptions are counted
    int32_t preempted        # workers that were taken off their core
    int32_t ran              # microseconds of all workers


cdef inline bint alone(const Region *region, const Entry *entry) noexcept nogil:
    """Whether one worker does an op by itself, between others: it is one chunk, or has no rows in this step."""
    cdef int rows = region.rows[<int>entry.domain]
    return rows == 0 or (rows == 1 and entry.whole)


cdef inline void warm(const Entry *entry, int ith, int nth) noexcept nogil:
    cdef int k
    for k in range(WARM_AHEAD):
        if entry.warm[k] != NULL:
            entry.warm[k](entry.warm_args[k], ith, nth)


cdef inline void ended_at(const Region *region, int i) noexcept nogil:
    if region.clock != NULL:
        region.clock[i + 1] = ox_seconds()


cdef void _walk(void *args, int ith, int nth) noexcept nogil:
    """One worker's way through the ops of a step.

    Ops of a single chunk that follow another are done by the worker that ended that one last, while the others wait at its end: two barriers
    less for each, and what it reads is likelier in its cache.
    """
    cdef Region *region = <Region *>args
    cdef int64_t began = 0, ended = 0
    cdef int64_t before = ox_preemptions(&began) if region.paced else 0
    cdef int i = region.first, end, k
    while i < region.last:
        if region.rows[<int>region.entries[i].domain] == 0:
            i += 1
            continue
        region.entries[i].part(region.entries[i].args, region.team, ith, nth)
        end = i + 1
        while end < region.last and alone(region, region.entries + end):
            end += 1
        if region.few:
            for k in range(i, end):
                warm(region.entries + k, ith, nth)
        if ox_team_meet(region.team, ith, nth):
            ended_at(region, i)
            for k in range(i + 1, end):
                if region.rows[<int>region.entries[k].domain] == 0:
                    continue
                ox_team_rewind(region.team)
                region.entries[k].part(region.entries[k].args, region.team, ith, nth)
                ended_at(region, k)
            ox_team_go(region.team, nth)
        if ox_team_stopped(region.team):
            break
        i = end
    if region.paced:
        if ox_preemptions(&ended) != before:
            ox_add(&region.preempted, 1)
        ox_add(&region.ran, <int32_t>(ended - began))


cdef class Program:
    """A lowered model, ready to step.

    ops: (name, parameters) as `model/lower.py` makes them; slots: the width of each slot in float32s; kv_layers: (kv_heads, k_dim, v_dim) per
    attention layer (kv_heads LATENT: values are a view of the keys; ROWS: floats that keys are made of); slot_layers: the shape of each recurrent
    layer's state; hidden: the slot that holds the rows of output="hidden" after the op before the first that writes the output; carried: the slot that
    holds those of `carried` then, over the kept rows; max_rows: most rows of a step; num_threads: workers (0 = all cores this process may use);
    isa: instruction set of the float kernels (None = the active one); packing: `begin(rows, cancel)` and `end()` of weights that may not be packed
    yet (weights/packing.py); beside: a program on whose workers this one runs, with as many; only one of them steps at a time; outputs: columns of
    the output rows (None: the vocabulary's); files: the mapped files that weights are read from, here or while they are packed: a step that ends
    after one of them was changed raises WeightsDamaged. ModelError or ConfigError for whatever cannot run.
    """
    cdef Step step_
    cdef Entry *entries
    cdef int n_ops
    cdef int first_output        # first op that writes the output rows
    cdef int hidden_slot, carried_slot
    cdef int carried_columns
    cdef list ops, widths, arenas
    cdef Arena scratch
    cdef ox_team *team
    cdef Workers crew
    cdef AdaptiveWorkers adaptive
    cdef object packing          # None: all weights are packed
    cdef list paged              # of each op, what of its weights comes from a file while a step runs
    cdef list fetching           # ops that read something before a step
    cdef Pager pager             # None: nothing does
    cdef readonly tuple files
    cdef size_t partials_capacity, low_capacity, low_parts_capacity
    cdef readonly list adaptable # of each op, what takes an adapter's factors: (kind, matrices, rows, columns, parts of a row)
    cdef int done_capacity, n_layers
    cdef float[:, ::1] logits
    cdef readonly bint busy      # a step is running
    cdef readonly int64_t steps     # begun so far
    cdef public int served       # tokens that a sequence may have, for rotations that depend on it; 0: its last row of a step says it
    cdef readonly bint representative  # the last step neither ran over unpacked weights nor waited for them: its seconds tell of the next
    cdef object __weakref__
    cdef int[::1] shapes         # (kv_heads, k_dim, v_dim) of each layer
    cdef int32_t *limits         # keys that each row of the step sees
    cdef int32_t *begins         # first rows of the step's sequences
    cdef readonly int positions  # that tables by position have rows for, or attention is exact for
    cdef readonly int sections       # rope positions that the op tells apart
    cdef readonly int embed_columns  # of the rows that a batch may bring
    cdef bint spanned
    cdef readonly bint by_token      # some op wants a token in every row, so that a batch brings none in its place
    cdef int reach               # most keys an attention layer looks back, 0 = all
    cdef int32_t[::1] layer_reach    # the same of each layer, -1: no op reads it
    cdef readonly int n_tiles, max_rows, num_threads, vocab_size, hidden_size, outputs
    cdef readonly list kv_layers, slot_layers
    cdef readonly bint causal    # rows see no key after their own; else every key of their sequence, all of which a step must bring

    def __cinit__(self):
        self.team = <ox_team *>ox_block_new(sizeof(ox_team))
        if self.team == NULL:
            raise MemoryError

    def __init__(self, ops, slots, *, kv_layers, vocab_size, hidden_size, slot_layers=(), hidden=None, carried=None, max_rows=512, num_threads=0, isa=None,
                 packing=None, Program beside=None, outputs=None, files=()):
        outputs = vocab_size if outputs is None else outputs
        for name, value, most in (("vocab_size", vocab_size, 1 << 30), ("outputs", outputs, 1 << 30), ("hidden_size", hidden_size, 1 << 24),
                                  ("max_rows", max_rows, MAX_ROWS)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise ConfigError(f"{name}: found {value!r}, wanted an int from 1 to {most}")
        self.num_threads = worker_count(num_threads)
        if beside is not None and beside.num_threads != self.num_threads:
            raise ConfigError(f"num_threads: found {self.num_threads}, wanted {beside.num_threads}, those of the program beside")
        self.crew = Workers(self.num_threads) if beside is None else beside.crew
        self.adaptive, self.packing, self.files = AdaptiveWorkers(self.num_threads), packing, tuple(files)
        self.max_rows, self.vocab_size, self.hidden_size, self.outputs = max_rows, vocab_size, hidden_size, outputs
        self.kv_layers = [tuple(layer) for layer in kv_layers]
        self.slot_layers = [tuple(shape) for shape in slot_layers]
        self.n_layers = len(self.kv_layers)
        self.shapes = np.array(self.kv_layers, np.int32).reshape(-1)
        self.layer_reach = np.empty(self.n_layers, np.int32)
        self.step_.vec = vec_table(isa)
        fill_quantise(&self.step_, isa)
        plan = self._build(ops, list(slots), isa, hidden, carried)
        self._allocate(plan)

    def _build(self, ops, slots, isa, hidden, carried):
        """Every op checked and its arguments filled."""
        cdef Plan plan
        cdef Op op
        cdef int i
        if not ops:
            raise ModelError("program: no ops")
        ops = [(name, dict(params)) for name, params in ops]
        writers = [i for i, (_, params) in enumerate(ops) if params.get("out") == OUTPUT]
        self.first_output = writers[0] if writers else len(ops)
        self.hidden_slot = self.carried_slot = -1
        plan = Plan(slots, self.kv_layers, self.slot_layers, vocab_size=self.vocab_size, outputs=self.outputs, max_rows=self.max_rows,
                    num_threads=self.num_threads, isa=isa)
        plan.step = &self.step_
        self.ops, self.widths, self.adaptable, self.paged, self.fetching, self.pager = [], plan.widths, [], [], [], None
        for i, (name, params) in enumerate(ops):
            plan.start(i, name)
            if name not in OPS:
                raise plan.fail(f"unknown op, wanted one of {', '.join(OPS)}")
            if i == self.first_output:
                self._mark(plan, hidden, carried)
            op = OPS[name](plan, params)
            self.ops.append(op)
            self.adaptable.append(op.adaptable)
            self.paged.append(op.paged)
            if op.fetches:
                self.fetching.append(op)
            self.pager = self.pager if op.paged is None else op.paged.pager
        if self.first_output == len(ops):
            self._mark(plan, hidden, carried)
        self.positions, self.sections, self.embed_columns = plan.positions, plan.sections, plan.embed_columns
        self.spanned, self.by_token = plan.spanned, plan.by_token
        self.n_ops = len(self.ops)
        self.entries = <Entry *>calloc(self.n_ops, sizeof(Entry))
        if self.entries == NULL:
            raise MemoryError
        for i in range(self.n_ops):
            op = self.ops[i]
            self.entries[i].part, self.entries[i].args, self.entries[i].domain = op.part, op.args, op.domain
            self.entries[i].partials, self.entries[i].counters = op.partials, op.counters
            self.entries[i].is_attend, self.entries[i].whole = op.name == "attend", op.whole
        self._look_ahead()
        self.causal = plan.causal is not False
        backwards = [reach for _, reach in plan.reaches]
        self.reach = 0 if 0 in backwards else max(backwards, default=0)
        for i in range(self.n_layers):
            self.layer_reach[i] = -1
        for i, reach in plan.reaches:
            self.layer_reach[i] = 0 if reach == 0 or self.layer_reach[i] == 0 else max(reach, self.layer_reach[i])
        return plan

    cdef int _mark(self, Plan plan, object hidden, object carried) except -1:
        """Notes the slots of the rows of output="hidden" and of `carried`, which hold them here."""
        if carried is not None:
            plan.take("kept")
            self.carried_slot, self.carried_columns = carried, plan.reads(carried)
        if hidden is not None:
            plan.take()
            plan.reads(hidden, columns=self.hidden_size)
            self.hidden_slot = hidden
        return 0

    cdef int _look_ahead(self) except -1:
        """At the end of op i the next op's inputs are fetched; attention's, which take longer, an op earlier."""
        cdef int i, j, n
        cdef Op op
        for i in range(self.n_ops):
            n = 0
            for j in range(i + 1, min(i + 1 + WARM_AHEAD, self.n_ops)):
                op = self.ops[j]
                if op.warm != NULL and (j - i == 1) != bool(self.entries[j].is_attend and j > 1):
                    self.entries[i].warm[n], self.entries[i].warm_args[n] = op.warm, op.args
                    n += 1
        return 0

    def _allocate(self, Plan plan):
        """Slots, worker scratch and tile lists: address space now, memory when touched."""
        cdef Step *step = &self.step_
        cdef int n = len(self.widths), i
        cdef size_t scratch = 64
        cdef Arena arena
        cdef Op op
        step.slots = <char **>calloc(max(1, n), sizeof(char *))
        step.strides = <size_t *>calloc(max(1, n), sizeof(size_t))
        self.n_tiles = len(plan.tile_rows)
        step.tiles = <Tiles *>calloc(max(1, self.n_tiles), sizeof(Tiles))
        if step.slots == NULL or step.strides == NULL or step.tiles == NULL:
            raise MemoryError
        self.arenas = []
        for i in range(n):
            step.strides[i] = (4 * <size_t>self.widths[i] + 63) // 64 * 64
            if step.strides[i] % 1024 == 0:      # rows a power of two apart fall into the same few cache sets: 7 % of a prompt's matmul
                step.strides[i] += 64
            arena = Arena(step.strides[i] * <size_t>self.max_rows)
            self.arenas.append(arena)
            step.slots[i] = arena.data
        for i in range(self.n_tiles):
            step.tiles[i].rows, step.tiles[i].alone = plan.tile_rows[i]
            step.tiles[i].first = <int *>calloc(self.max_rows + 1, sizeof(int))
            if step.tiles[i].first == NULL:
                raise MemoryError
        self.limits = <int32_t *>calloc(self.max_rows, sizeof(int32_t))
        self.begins = <int32_t *>calloc(self.max_rows + 1, sizeof(int32_t))
        if self.limits == NULL or self.begins == NULL:
            raise MemoryError
        for op in self.ops:
            scratch = max(scratch, op.scratch)
        step.scratch_stride = (scratch + 4095) // 4096 * 4096
        self.scratch = Arena(step.scratch_stride * <size_t>self.num_threads)
        step.scratch = self.scratch.data
        self.logits = np.empty((1, self.outputs), np.float32)
        step.out_stride = 4 * <size_t>self.outputs

    def __dealloc__(self):
        cdef int i
        if self.step_.tiles != NULL:
            for i in range(self.n_tiles):
                free(self.step_.tiles[i].first)
        free(self.step_.tiles)
        free(self.step_.slots)
        free(self.step_.strides)
        free(self.step_.partials)
        free(self.step_.done)
        free(self.entries)
        ox_block_free(self.team)
        free(self.limits)
        free(self.begins)
        free(self.step_.low)
        free(self.step_.low_parts)
        for i in range(3):
            free(self.step_.adapted[i].tiles)
            free(self.step_.adapted[i].rows)

    @property
    def carries(self) -> bool:
        """Whether steps leave rows behind the last layer (`carried`)."""
        return self.carried_slot >= 0

    @property
    def workers(self) -> int:
        """Workers the next short step gets: `num_threads`, or fewer while other programs take cores away."""
        return self.adaptive.workers

    def __len__(self):
        return self.n_ops

    # ---- what begins a step ------------------------------------------------------------------------------------------

    cdef int _check_pages(self, Rows batch, Pages memory) except -1:
        """Every page a row reads or writes exists."""
        cdef int r, table, first, last, p, begun = 0, near = -1, capacity = memory.capacity
        if memory.n_layers != self.n_layers:
            raise ConfigError(f"memory: {memory.n_layers} layers, this program has {self.n_layers}")
        for r in range(self.n_layers):
            if (heads_mark(&memory.layers[r]), memory.layers[r].k_dim, memory.layers[r].v_dim) != (
                    self.shapes[3 * r], self.shapes[3 * r + 1], self.shapes[3 * r + 2]):
                raise ConfigError(f"memory: layer {r} is {memory.kv_layers[r]}, this program has {self.kv_layers[r]}")
            if memory.layers[r].slabs == &memory.near and self.layer_reach[r] >= 0 and near != 0:
                near = 0 if self.layer_reach[r] == 0 else max(near, self.layer_reach[r])
        for r in range(batch.rows):
            table = batch.row_table[r]
            if batch.visible != NULL and (batch.visible[r] - 1) // memory.page_size >= batch.lengths[table]:
                raise ContextError(f"row {r}: sees {batch.visible[r]} keys, its table has {batch.lengths[table]} pages")
            if r == 0 or batch.row_table[r - 1] != table:
                begun = r
            elif r + 1 < batch.rows and batch.row_table[r + 1] == table:
                continue
            last = batch.positions[r] // memory.page_size
            if last >= batch.lengths[table]:
                raise ContextError(f"row {r}: position {batch.positions[r]} is beyond its table of {batch.lengths[table]} pages")
            # the first row of a table looks at those before it, the last one at those between
            first = (batch.positions[begun] if r > begun else max(0, batch.positions[r] - self.reach + 1) if self.reach else 0) // memory.page_size
            for p in range(first, last + 1):
                if batch.pages[table][p] < 0 or batch.pages[table][p] >= capacity:
                    raise ContextError(f"row {r}: page {batch.pages[table][p]} of its table, wanted 0 to {capacity - 1}")
                if memory.window and frame_of(&memory.whole, batch.pages[table][p]) < 0:
                    raise ContextError(f"row {r}: page {batch.pages[table][p]} of its table has no memory, wanted it attached")
            if not memory.window:
                continue
            if r == begun:
                first = max(0, batch.positions[r] - near + 1) // memory.page_size if near > 0 else 0 if near == 0 else last
            for p in range(first, last + 1):
                if frame_of(&memory.near, batch.pages[table][p]) < 0:
                    raise ContextError(f"row {r}: page {batch.pages[table][p]} of its table holds no keys of windowed layers, wanted them")
        return 0

    cdef int _check_slots(self, Rows batch, Pages memory) except -1:
        """Every sequence has a slot of this program's recurrent state."""
        cdef int i
        if list(memory.slot_layers) != self.slot_layers:
            raise ConfigError(f"memory: its slots hold {list(memory.slot_layers)}, this program's state is {self.slot_layers}")
        if not self.slot_layers:
            return 0
        if batch.slots == NULL:
            raise ConfigError("batch: no slots, this program keeps recurrent state in one for each table")
        for i in range(batch.n_tables):
            if batch.slots[i] < 0 or batch.slots[i] >= memory.slot_capacity:
                raise ContextError(f"table {i}: slot {batch.slots[i]}, wanted 0 to {memory.slot_capacity - 1}")
        for i in range(batch.rows if batch.spares != NULL else 0):
            if batch.spares[i] >= memory.slot_capacity:
                raise ContextError(f"row {i}: slot {batch.spares[i]}, wanted 0 to {memory.slot_capacity - 1}")
        for i in range(1, batch.rows):
            if batch.row_table[i] == batch.row_table[i - 1] and batch.positions[i] != batch.positions[i - 1] + 1:
                raise ConfigError(f"row {i}: position {batch.positions[i]} after {batch.positions[i - 1]}, recurrent state takes every position in order")
        return 0

    cdef int _check_optional(self, Rows batch) except -1:
        """What a batch brings besides tokens and pages is something this program uses."""
        cdef int r
        for r in range(batch.rows if self.positions < 1 << 30 else 0):
            if batch.positions[r] >= self.positions:
                raise ContextError(f"row {r}: position {batch.positions[r]}, wanted one below {self.positions}, as far as this model goes")
        for r in range(batch.rows if self.by_token else 0):
            if batch.tokens[r] < 0:
                raise ConfigError(f"row {r}: a row in place of a token, wanted a token: this program routes tokens to experts by number")
        if batch.embeds != NULL and batch.embed_width != self.embed_columns:
            raise ConfigError(f"embeds: {batch.embed_width} columns, this program's embedding has {self.embed_columns}")
        if (batch.spans != NULL) != self.spanned:
            raise ConfigError(f"spans: found {'none' if batch.spans == NULL else 'some'}, wanted {'some' if self.spanned else 'none'} for this program")
        for r in range(batch.rows if batch.spans != NULL and self.causal else 0):
            if batch.positions[r] < batch.spans[batch.rows + r]:
                raise ConfigError(f"row {r}: position {batch.positions[r]}, wanted one behind its span, which ends at {batch.spans[batch.rows + r]}: the attention "
                                  "of this program is causal")
        if batch.rope != NULL and batch.rope_sections not in (1, self.sections):
            raise ConfigError(f"rope: {batch.rope_sections} sections, this program rotates by {self.sections}")
        return 0

    cdef int _see_all(self, Rows batch) except -1:
        """Where attention is not causal every row sees its whole sequence, which must begin and end in this step."""
        cdef int r, last = 0
        if batch.visible != NULL:
            raise ConfigError("visible: found limits, wanted none: rows of this program see their whole sequence")
        for r in range(batch.rows):
            if batch.positions[r] != (batch.positions[r - 1] + 1 if r and batch.row_table[r] == batch.row_table[r - 1] else 0):
                raise ContextError(f"row {r}: position {batch.positions[r]}, wanted every token of a sequence in one step, from position 0 on: "
                                   "the attention of this program is not causal")
        for r in range(batch.rows - 1, -1, -1):
            if r + 1 == batch.rows or batch.row_table[r + 1] != batch.row_table[r]:
                last = batch.positions[r] + 1
            self.limits[r] = last
        return 0

    cdef int _tile_adapted(self, Rows batch, RowTiles *made, const int32_t *rows, int count) except -1:
        """Rows (those listed, or the first `count`) that use adapters, cut into tiles that use the same."""
        cdef int r
        cdef RowTile *last
        cdef const Adapted *adapted
        cdef AdapterSet given
        if made.tiles == NULL:
            made.tiles = <RowTile *>calloc(self.max_rows, sizeof(RowTile))
        if made.rows == NULL:       # a step before may have been refused one of them
            made.rows = <const Adapted **>calloc(self.max_rows, sizeof(Adapted *))
        if made.tiles == NULL or made.rows == NULL:
            raise MemoryError
        made.count = 0
        for r in range(count):
            given = batch.adapters[batch.row_table[r if rows == NULL else rows[r]]]
            adapted = NULL if given is None else &given.adapted
            made.rows[r] = adapted
            if adapted == NULL:
                continue
            last = made.tiles + made.count - 1 if made.count else NULL
            if last != NULL and last.adapted == adapted and last.first + last.rows == r and last.rows < LOW_ROWS:
                last.rows += 1
                continue
            made.tiles[made.count].first, made.tiles[made.count].rows, made.tiles[made.count].adapted = r, 1, adapted
            made.count += 1
        return 0

    cdef int _open_adapters(self, Rows batch) except -1:
        """Points the step at the adapters of its rows, and sizes what their products need."""
        cdef Step *step = &self.step_
        cdef size_t width = 0, columns = 0, need
        cdef void *grown
        step.adapting = batch.adapters is not None
        if not step.adapting:
            return 0
        for given in batch.adapters:
            if given is None:
                continue
            if given.adapters[0][0].shapes is not self.adaptable:
                raise ConfigError("adapters: made for another program, wanted this one's")
            width, columns = max(width, <size_t>given.width), max(columns, <size_t>given.columns)
        step.low_stride = width
        self._tile_adapted(batch, &step.adapted[<int>ALL_ROWS], NULL, batch.rows)
        self._tile_adapted(batch, &step.adapted[<int>WANTED_ROWS], batch.wanted, batch.wanted_rows)
        if self.carried_slot >= 0:
            self._tile_adapted(batch, &step.adapted[<int>KEPT_ROWS], batch.kept, batch.kept_rows)
        need = max(<size_t>64, width * <size_t>batch.rows)
        if need > self.low_capacity:
            grown = realloc(step.low, 4 * need)
            if grown == NULL:
                raise MemoryError
            step.low, self.low_capacity = <float *>grown, need
        # tiles are fewer than workers where the sums of parts are used
        need = max(<size_t>64, width * LOW_ROWS * <size_t>self.num_threads * ((columns + LOW_COLUMNS - 1) // LOW_COLUMNS))
        if need > self.low_parts_capacity:
            grown = realloc(step.low_parts, 4 * need)
            if grown == NULL:
                raise MemoryError
            step.low_parts, self.low_parts_capacity = <float *>grown, need
        return 0

    cdef int _open(self, Rows batch, Pages memory) except -1:
        """Checks the batch, points the step at it, and sizes what attention needs."""
        cdef Step *step = &self.step_
        cdef int r, i, done = 0
        cdef size_t partials = 0
        cdef void *grown
        if batch.rows > self.max_rows:
            raise ConfigError(f"batch: {batch.rows} rows, this program takes {self.max_rows}")
        for r in range(batch.rows):
            if (batch.tokens[r] < 0 and (batch.embeds == NULL or batch.tokens[r] < -1)) or batch.tokens[r] >= self.vocab_size:
                raise ConfigError(f"row {r}: token {batch.tokens[r]}, wanted 0 to {self.vocab_size - 1}")
        self._check_pages(batch, memory)
        self._check_slots(batch, memory)
        self._check_optional(batch)
        self._open_adapters(batch)
        step.limited, step.sequences = batch.visible != NULL or not self.causal, 0
        if not self.causal:
            self._see_all(batch)
        for r in range(batch.rows):
            if self.causal:
                self.limits[r] = batch.visible[r] if batch.visible != NULL else batch.positions[r] + 1
            if r == 0 or batch.row_table[r] != batch.row_table[r - 1]:
                self.begins[step.sequences] = r
                step.sequences += 1
        self.begins[step.sequences] = batch.rows
        step.limits, step.begins, step.state_slots, step.states = self.limits, self.begins, batch.slots, memory.slots
        step.spare_slots = batch.spares
        step.embeds, step.embed_width, step.spans = batch.embeds, batch.embed_width, batch.spans
        step.rope, step.rope_sections = batch.rope, batch.rope_sections
        if batch.rope == NULL:
            step.rope, step.rope_sections = batch.positions, 1
        step.rows, step.wanted, step.served = batch.rows, batch.wanted_rows, self.served
        step.tokens, step.positions, step.row_table = batch.tokens, batch.positions, batch.row_table
        step.wanted_rows, step.kept, step.kept_rows, step.wanted_kept = batch.wanted, batch.kept_rows, batch.kept, batch.wanted_kept
        step.tables = batch.pages
        step.page_size, step.kind, step.layers = memory.page_size, memory.kind, memory.layers
        for i in range(self.n_tiles):
            cut_tiles(step, &step.tiles[i])
        for i in range(self.n_ops):
            if self.entries[i].partials != NULL:
                partials = max(partials, self.entries[i].partials(self.entries[i].args, step, self.num_threads))
                done = max(done, self.entries[i].counters(self.entries[i].args, step))
        if partials > self.partials_capacity:
            grown = realloc(step.partials, 4 * (partials + partials // 2))
            if grown == NULL:
                raise MemoryError
            step.partials, self.partials_capacity = <float *>grown, partials + partials // 2
        if done > self.done_capacity:
            grown = realloc(step.done, done * sizeof(int32_t))
            if grown == NULL:
                raise MemoryError
            step.done, self.done_capacity = <int32_t *>grown, done
        if done:
            memset(step.done, 0, done * sizeof(int32_t))
        if self.logits.shape[0] < batch.wanted_rows and self.first_output < self.n_ops:
            self.logits = np.empty((batch.wanted_rows, self.outputs), np.float32)
        step.out = &self.logits[0, 0]
        return 0

    cdef int _take_weights(self, int rows, Flag cancel) except -1:
        """Before a step: its weights are packed, or it runs over them as they are."""
        cdef Op op
        found = None
        if self.packing is not None:
            found = self.packing.begin(rows, cancel)
            for op in self.ops:
                op.look()
        self.representative, self.step_.unpacked = found is None, found is True
        if not self.step_.unpacked:
            self.packing = None
        return 0

    cdef int _take_pages(self, Rows batch, const Region *region) except -1:
        """Before a step: what it needs of a file, in the order of its ops."""
        cdef int i
        cdef Op op
        for op in self.fetching:
            op.fetch(batch)
        if self.pager is not None:
            self.pager.begin([self.paged[i] for i in range(region.first, region.last) if region.rows[<int>self.entries[i].domain]])
            self.representative = False      # its seconds tell of the disk
        return 0

    cdef int _run(self, Rows batch, Pages memory, int last, Flag cancel, int first=0, double *clock=NULL) except -1:
        """Ops first to last - 1 over the batch, on all workers at once. clock: takes the time at which each op ended."""
        with cython.critical_section(self, memory):
            if self.busy:
                raise EngineError("step: another thread is in a step of this program")
            self.busy = True
            self.steps += 1
            memory.steps += 1
        cdef ox_team *team = self.team
        cdef Region region
        cdef int workers = self.num_threads
        cdef double start
        cdef bint taken = False
        region.entries, region.team, region.clock = self.entries, team, clock
        region.first, region.last, region.preempted, region.ran = first, last, 0, 0
        region.rows[<int>ALL_ROWS], region.rows[<int>WANTED_ROWS], region.rows[<int>KEPT_ROWS] = batch.rows, batch.wanted_rows, batch.kept_rows
        region.few, region.paced = batch.rows <= WARM_ROWS, batch.rows <= PACED_ROWS and workers > 1
        try:
            self._open(batch, memory)
            self._take_weights(batch.rows, cancel)
            self._take_pages(batch, &region)
            taken = self.pager is not None
            region.paced = region.paced and self.representative
            workers = within_limit(self.adaptive.workers if region.paced else workers)
            ox_team_init(team, NULL if cancel is None else &cancel.flag)
            start = ox_seconds()
            self.crew.run(_walk, &region, workers)
            if region.paced:
                self.adaptive.note(batch.rows, ox_seconds() - start, region.preempted, 1e-6 * region.ran)
        finally:
            if self.step_.unpacked:
                self.packing.end()
            with cython.critical_section(self, memory):
                self.step_.unpacked, self.busy = 0, False
                memory.steps -= 1
            if taken:
                self.pager.end(first == 0 and last >= self.first_output, ox_team_stopped(team))
        if ox_team_stopped(team):
            raise Cancelled("step: cancelled by its caller")
        self._check_files()
        return 0

    cdef int _check_files(self) except -1:
        """After a step: what it read is what was loaded."""
        cdef FileMap file
        for file in self.files:
            change = file.change()
            if change is not None:
                raise WeightsDamaged(f"{change}; load the model again")
        return 0

    def step(self, Rows batch not None, Pages memory not None, *, output="logits", Flag cancel=None):
        """Runs the batch; returns float32 (wanted rows, outputs), or (wanted rows, hidden_size) for output="hidden".

        hidden: the rows that the architecture marks as its embedding of a text. The array is a view that the next step overwrites.
        Raises Cancelled when `cancel` was set (pages of the batch's positions then hold anything), ConfigError or ContextError
        for a batch that does not fit the program or the memory, WeightsDamaged once a file of the weights was changed.
        """
        if output == "logits":
            if self.first_output == self.n_ops:
                raise ConfigError("output: this program has no logits, wanted 'hidden'")
            self._run(batch, memory, self.n_ops, cancel)
            return np.asarray(self.logits)[:batch.wanted_rows]
        if output != "hidden" or self.hidden_slot < 0:
            raise ConfigError(f"output: found {output!r}, wanted 'logits' or 'hidden'")
        self._run(batch, memory, self.first_output, cancel)
        return self._rows(self.hidden_slot, batch.wanted_rows, self.hidden_size)

    def carried(self):
        """What the last step left behind its last layer, float32 (kept rows, columns), a view that the next step overwrites."""
        if self.carried_slot < 0:
            raise ConfigError("carried: this program keeps no rows behind its last layer")
        return self._rows(self.carried_slot, self.step_.kept, self.carried_columns)

    # ---- for the doctor, the tests and the benchmarks ----------------------------------------------------------------

    cdef _rows(self, int slot, int rows, int columns):
        cdef size_t stride = self.step_.strides[slot] // 4          # the array keeps the arena alive
        return np.frombuffer(self.arenas[slot], np.float32, stride * <size_t>self.max_rows).reshape(self.max_rows, -1)[:rows, :columns]

    def run_until(self, Rows batch not None, Pages memory not None, int op_index, *, int first=0, Flag cancel=None):
        """Runs ops 0 to op_index (included) over the batch; `slot` then shows what they left.

        With `first` the ops before it are taken as run, by the call before this one with the same batch.
        """
        if op_index < 0 or op_index >= self.n_ops or first < 0 or first > op_index:
            raise ConfigError(f"op_index: found {op_index} from {first} on, wanted 0 to {self.n_ops - 1}, from no later one on")
        self._run(batch, memory, op_index + 1, cancel, first)

    def slot(self, int index, int rows):
        """A copy of the first rows of a slot as float32 (rows, width); -1 = the output rows. Activation slots show their raw bits."""
        if index < OUTPUT or index >= len(self.widths) or rows < 0 or rows > self.max_rows:
            raise ConfigError(f"slot: found {index} with {rows} rows, wanted -1 to {len(self.widths) - 1} and 0 to {self.max_rows}")
        if index == OUTPUT:
            return np.array(np.asarray(self.logits)[:rows])
        return np.array(self._rows(index, rows, self.widths[index]))

    def parts(self, int op_index):
        """How many parts a row of what an op of experts reads has: 1 where every matrix meets the whole row."""
        if not 0 <= op_index < self.n_ops or self.ops[op_index].name != "experts":
            raise ConfigError(f"parts: found op {op_index}, wanted the index of an op of experts")
        return self.ops[op_index].parts

    def profile(self, Rows batch not None, Pages memory not None, *, repeat=1):
        """Runs the batch `repeat` times; returns (op name, median microseconds from barrier to barrier) per op."""
        cdef double[::1] clock = np.zeros(self.n_ops + 1)
        runs = []
        for _ in range(repeat):
            clock[:] = 0.0
            clock[0] = ox_seconds()
            self._run(batch, memory, self.n_ops, None, 0, &clock[0])
            times = np.array(clock)
            for i in range(1, self.n_ops + 1):      # an op that was skipped took no time
                times[i] = times[i] or times[i - 1]
            runs.append(np.diff(times) * 1e6)
        return [(op.name, float(us)) for op, us in zip(self.ops, np.median(runs, axis=0))]
