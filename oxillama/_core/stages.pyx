"""The table of the sampler's stages: its row order is their default order. edits.pyx and cuts.pyx have the stages themselves."""
from oxillama._core.candidates cimport View
from oxillama._core.cuts cimport (
    stage_epsilon, stage_eta, stage_min_p, stage_mirostat, stage_temperature, stage_top_a, stage_top_k, stage_top_n_sigma, stage_top_p,
    stage_typical, stage_xtc,
)
from oxillama._core.edits cimport stage_bias, stage_dry, stage_penalties
from oxillama._core.history cimport Memory
from oxillama._core.sample cimport OXS_LARGEST, oxs_highest
from oxillama._core.stage cimport ChainParams, Op, Stage


cdef void stage_mask(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil:
    """The mask is applied while the row is loaded: it only removes, so doing it earlier changes nothing."""


cdef struct Row:
    const char *name
    Stage run

# The row order is the default order. `oxillama.sampling.stages` documents the same rows.
cdef Row STAGES[15]
STAGES[0] = Row("bias", stage_bias)
STAGES[1] = Row("penalties", stage_penalties)
STAGES[2] = Row("dry", stage_dry)
STAGES[3] = Row("mask", stage_mask)
STAGES[4] = Row("top_n_sigma", stage_top_n_sigma)
STAGES[5] = Row("top_k", stage_top_k)
STAGES[6] = Row("typical", stage_typical)
STAGES[7] = Row("top_a", stage_top_a)
STAGES[8] = Row("eta", stage_eta)
STAGES[9] = Row("epsilon", stage_epsilon)
STAGES[10] = Row("top_p", stage_top_p)
STAGES[11] = Row("min_p", stage_min_p)
STAGES[12] = Row("xtc", stage_xtc)
STAGES[13] = Row("temperature", stage_temperature)
STAGES[14] = Row("mirostat", stage_mirostat)


def stage_table():
    """Names of the compiled stages in their order."""
    return tuple([STAGES[i].name.decode() for i in range(15)])


cdef int run_ops(View *v, const Op *ops, int count, const ChainParams *f, Memory *m) noexcept nogil:
    """Runs compiled stages up to the first Python stage; returns how many ran, or NOTHING_LEFT."""
    cdef int i
    for i in range(count):
        if ops[i].code >= PYTHON:
            return i
        STAGES[ops[i].code].run(v, &ops[i], f, m)
        if ops[i].code == 0 and not oxs_highest(v.peak, 16 * v.supers) >= -OXS_LARGEST:
            return NOTHING_LEFT                 # after bans and mask; no later stage removes the last one
    return count
