"""The functions over the float tables of `csrc/vec`: which instruction set runs, and each row function over numpy arrays.

`vec_table(isa)` hands the other compiled modules the table of one instruction set (None = the active one, `OXILLAMA_ISA` decides);
`apply(name, x, ...)` runs one row function of one table, for tests that compare instruction sets in one process.
"""
import numpy as np

from oxillama.errors import ConfigError

cdef extern from "ox.h" nogil:
    unsigned ox_isa_available()
    const char *ox_isa_name(int isa)
    int ox_isa_from_name(const char *name)
    int ox_isa_active()
    enum:
        OX_ISA_COUNT

cdef extern from "vec/table.h" nogil:
    const ox_vec *ox_vec_table(int isa)
    void ox_angles(float *out, const float *f, int n, double position, double scale)

cdef extern from *:
    """
    #include "vec/acts.h"
    static const char *const ox_act_names[OX_ACT_COUNT] = OX_ACT_NAMES;
    """
    const char *const *ox_act_names

ACTIVATIONS = tuple(ox_act_names[i].decode() for i in range(OX_ACT_COUNT))


def instruction_sets() -> tuple:
    """Names of the instruction sets this CPU can run, plainest first."""
    cdef unsigned can = ox_isa_available()
    return tuple(ox_isa_name(i).decode() for i in range(OX_ISA_COUNT) if can >> i & 1 and ox_vec_table(i) != NULL)


def active_isa() -> str:
    """The instruction set in use: `OXILLAMA_ISA` if set, else the best; ConfigError when it cannot run here."""
    cdef int isa = ox_isa_active()
    if isa < 0:
        import os
        raise ConfigError(f"OXILLAMA_ISA: found {os.environ.get('OXILLAMA_ISA')!r}, wanted one of {', '.join(instruction_sets())}")
    return ox_isa_name(isa).decode()


cdef const ox_vec *vec_table(object isa) except NULL:
    """The table of an instruction set by name, None for the active one; ConfigError when it cannot run here."""
    name = active_isa() if isa is None else isa
    if name not in instruction_sets():
        raise ConfigError(f"isa: found {name!r}, wanted one of {', '.join(instruction_sets())}")
    return ox_vec_table(ox_isa_from_name(name.encode()))


cdef void angles(float *out, const float *f, int n, double position, double scale) noexcept nogil:
    ox_angles(out, f, n, position, scale)


cpdef int activation(object kind) except -1:
    """The number of an activation by name, 0 for None; ConfigError for a name that is not known."""
    if kind is None:
        return OX_ACT_NONE
    if kind not in ACTIVATIONS[1:]:
        raise ConfigError(f"activation: found {kind!r}, wanted one of {', '.join(ACTIVATIONS[1:])}")
    return ACTIVATIONS.index(kind)


def apply(name, const float[:, ::1] x, *, isa=None, weight=None, bias=None, eps=1e-5, y=None, value=0.0, kind=None):
    """One row function of the table over the rows of `x`, as a new float32 array (float16 for "halves").

    name: rms_norm, layer_norm (weight, bias, eps), add, mul (y), scale, softcap (value), activate (kind), exp, halves,
    rope_halves, rope_pairs (weight = cosines, bias = sines; rotates the first 2 * len(weight) columns).
    """
    cdef const ox_vec *table = vec_table(isa)
    cdef int64_t n = x.shape[1], i
    cdef float[:, ::1] out = np.array(x, np.float32)
    cdef const float[::1] w = None if weight is None else np.ascontiguousarray(weight, np.float32)
    cdef const float[::1] b = None if bias is None else np.ascontiguousarray(bias, np.float32)
    cdef const float[:, ::1] other = None if y is None else np.ascontiguousarray(y, np.float32)
    cdef const float *pw = NULL if w is None else &w[0]
    cdef const float *pb = NULL if b is None else &b[0]
    cdef float number = value
    cdef int half = 0
    if name in ("rope_halves", "rope_pairs"):
        if w is None or b is None or w.shape[0] != b.shape[0] or 2 * w.shape[0] > n:
            raise ConfigError(f"{name}: wanted weight and bias (cosines, sines) of one length up to {n // 2}")
        half = w.shape[0]
    elif (w is not None and w.shape[0] != n) or (b is not None and b.shape[0] != n):
        raise ConfigError(f"{name}: wanted weight and bias of {n} floats")
    if (name in ("add", "mul")) != (other is not None) or (other is not None and (other.shape[0] != x.shape[0] or other.shape[1] != n)):
        raise ConfigError(f"{name}: y must have the shape of x for add and mul, and be absent else")
    if name == "halves":
        return _halves(table, x)
    for i in range(x.shape[0]):
        if name == "rms_norm":
            table.rms_norm(&out[i, 0], &x[i, 0], pw, pb, eps, n)
        elif name == "layer_norm":
            table.layer_norm(&out[i, 0], &x[i, 0], pw, pb, eps, n)
        elif name == "add":
            table.add(&out[i, 0], &x[i, 0], &other[i, 0], n)
        elif name == "mul":
            table.mul(&out[i, 0], &x[i, 0], &other[i, 0], n)
        elif name == "scale":
            table.scale(&out[i, 0], &x[i, 0], number, n)
        elif name == "softcap":
            table.softcap(&out[i, 0], &x[i, 0], number, n)
        elif name == "activate":
            table.activate(&out[i, 0], &x[i, 0], activation(kind), n)
        elif name == "exp":
            table.exp(&out[i, 0], &x[i, 0], n)
        elif name == "rope_halves":
            table.rope_halves(&out[i, 0], pw, pb, half)
        elif name == "rope_pairs":
            table.rope_pairs(&out[i, 0], pw, pb, half)
        else:
            raise ConfigError(f"name: found {name!r}, wanted a row function of the table")
    return np.asarray(out)


cdef _halves(const ox_vec *table, const float[:, ::1] x):
    cdef uint16_t[:, ::1] out = np.empty((x.shape[0], x.shape[1]), np.uint16)
    cdef int64_t i
    for i in range(x.shape[0]):
        table.halves(&out[i, 0], &x[i, 0], x.shape[1])
    return np.asarray(out).view(np.float16)


def rope_angles(const float[::1] inv_freq, positions, *, scale=1.0):
    """[cos, sin] of positions times frequencies, float32 (len(positions), 2 * len(inv_freq))."""
    cdef float[:, ::1] out = np.empty((len(positions), 2 * inv_freq.shape[0]), np.float32)
    for i, position in enumerate(positions):
        ox_angles(&out[i, 0], &inv_freq[0], inv_freq.shape[0], position, scale)
    return np.asarray(out)
