"""The tape's matmul op: rows of a slot times packed weights, by the kernels of `matmul.pyx`."""
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free

from oxillama._core.adapters cimport LowRank
from oxillama._core.kernels cimport form_index, lanes_table, ox_lanes
from oxillama._core.lowrank cimport LOW_SCRATCH, LowRankOp, low_rank_part
from oxillama._core.matmul cimport MatmulArgs, matmul_part
from oxillama._core.pager cimport Pager, ox_paged_op, ox_pager
from oxillama._core.panels cimport MatmulSegment, PackedMatrix, Supply
from oxillama._core.step cimport ACTS, OUTPUT, Common, Op, Plan, Step, act_number, row_of, rows_of
from oxillama._core.threads cimport ox_team
from oxillama._core.unpacked cimport chunk_panels, paged_part, unpacked_part, unpacked_scratch
from oxillama._core.vectors cimport OX_KV_Q4_0, OX_KV_Q8_0, activation

MAX_SEGMENTS = 64

ctypedef struct LinearArgs:
    Common common
    MatmulArgs matmul        # rows, slots and strides are filled in at each step
    int x, out, addend       # addend: a slot whose rows are added before the activation, -1 none
    int64_t offset           # first float of the out row
    LowRankOp low
    const Supply **supplies  # of each segment, for steps over weights that are not all packed
    ox_pager *pager          # NULL: the weights are in memory
    const ox_paged_op *paged


cdef int fill_quantise(Step *step, object isa) except -1:
    """The activation quantisers of an instruction set, for norm and quantise ops, and its tiles over keys kept in panels."""
    cdef const ox_lanes *lanes = lanes_table(isa)
    cdef int k
    for k in range(ACTS):
        step.quantise[k] = lanes.act_quantise[k]
    for kind, name in ((OX_KV_Q8_0, "Q8_0"), (OX_KV_Q4_0, "Q4_0")):
        k = form_index(name)
        step.key_tile[<int>kind], step.key_wide[<int>kind] = lanes.tile[k], lanes.wide[k]
    return 0


cdef void linear_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const LinearArgs *a = <const LinearArgs *>args
    cdef const Step *step = a.common.step
    cdef MatmulArgs m = a.matmul
    cdef LowRank low
    if step.adapting and low_rank_part(&low, &a.low, &a.common, team, ith, nth):
        m.low = &low
    m.m = rows_of(&a.common)
    m.x, m.ldx = <const uint8_t *>row_of(step, a.x, 0), step.strides[a.x]
    m.out = <float *>row_of(step, a.out, 0) + a.offset
    m.ldout = <int64_t>(step.out_stride if a.out == OUTPUT else step.strides[a.out]) // 4
    if a.addend >= 0:
        m.addend, m.ldadd = <const float *>row_of(step, a.addend, 0), <int64_t>step.strides[a.addend] // 4
    if a.pager != NULL and a.paged.streams:
        paged_part(&m, a.pager, a.paged, <uint8_t *>step.scratch + <size_t>ith * step.scratch_stride, team)
    elif step.unpacked:
        unpacked_part(&m, a.supplies, <uint8_t *>step.scratch + <size_t>ith * step.scratch_stride, team, ith, nth)
    else:
        matmul_part(&m, team, ith, nth)


cdef class MatmulOp(Op):
    cdef LinearArgs a
    cdef MatmulSegment *segments
    cdef list weights
    cdef const float[::1] bias

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "act", "weights", "out", bias=None, gate=None, addend=None, offset=0)
        cdef MatmulArgs *m = &self.a.matmul
        cdef int i
        weights = list(p["weights"])
        if not 1 <= len(weights) <= MAX_SEGMENTS or not all(isinstance(w, PackedMatrix) for w in weights):
            raise plan.fail(f"weights: {len(weights)} of them, wanted 1 to {MAX_SEGMENTS} PackedMatrix")
        self.a.x = p["x"]
        columns = plan.reads(p["x"], p["act"])
        for w in weights:
            if w.cols != columns or w.act != p["act"]:
                raise plan.fail(f"a weight of {w.format} has {w.cols} columns and takes {w.act}, slot {p['x']} holds {columns} of {p['act']}")
        rows = sum(w.rows for w in weights)
        m.gate, m.cols = activation(p["gate"]), columns
        if m.gate and (len(weights) != 2 or weights[0].rows != weights[1].rows):
            raise plan.fail(f"gate {p['gate']!r} wants two matrices of equal rows, found {[w.rows for w in weights]}")
        self.bias = plan.floats(p["bias"], "bias", rows)
        m.bias = NULL if self.bias is None else &self.bias[0]
        self.a.addend, m.addend, m.up = -1, NULL, weights[0].rows
        if p["addend"] is not None:
            plan.reads(p["addend"], columns=rows)
            self.a.addend = p["addend"]
        self.a.offset = plan.number(p, "offset", 0, 1 << 30)
        self.a.out = plan.writes(p["out"], weights[0].rows if m.gate else rows, output=True, offset=p["offset"])
        if self.a.out == self.a.x or p["out"] == p["addend"]:
            raise plan.fail(f"out is slot {self.a.out}, which it reads")
        self.segments = <MatmulSegment *>calloc(len(weights), sizeof(MatmulSegment))
        self.a.supplies = <const Supply **>calloc(len(weights), sizeof(Supply *))
        if self.segments == NULL or self.a.supplies == NULL:
            raise MemoryError
        self.weights = weights
        self.look()
        for i in range(len(weights)):
            self.a.supplies[i] = &(<PackedMatrix>weights[i]).supply
        m.segments, m.n_segments, m.lanes = self.segments, len(weights), lanes_table(plan.isa)
        self.output = self.a.out == OUTPUT
        self._page(plan, weights)
        self.a.low.lanes, self.a.low.op, self.a.low.x, self.a.low.act = m.lanes, plan.index, self.a.x, act_number(p["act"])
        self.a.low.cols, self.a.low.used, self.a.low.routes = columns, 1, -1
        self.adaptable = [("matmul", 1, w.rows, w.cols, 1) for w in weights]
        plan.need_scratch(self, max(unpacked_scratch(m), <size_t>LOW_SCRATCH))   # address space, touched where weights are not packed yet
        self.begin(plan, &self.a.common, "matmul", linear_part, p)

    cdef int look(self) except -1:
        cdef int i
        for i in range(len(self.weights)):
            self.segments[i] = (<PackedMatrix>self.weights[i]).segment
        return 0

    cdef int _page(self, Plan plan, list weights) except -1:
        """What is brought from a file while a step runs: all weights, or none."""
        cdef PackedMatrix first = weights[0]
        self.a.pager = NULL
        if any((<PackedMatrix>w).pager is not first.pager for w in weights):
            raise plan.fail("weights: some are paged and some are not, wanted all or none")
        if first.pager is None:
            return 0
        self.paged = (<Pager>first.pager).linear(weights, chunk_panels(self.a.matmul.cols), self.a.matmul.gate != 0, plan.use(weights))
        self.a.pager, self.a.paged = (<Pager>first.pager).pager, &self.paged.op
        return 0

    def __dealloc__(self):
        free(self.segments)
        free(self.a.supplies)


OPS = {"matmul": MatmulOp}
