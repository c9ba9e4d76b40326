"""The one extension that links the lanes of `csrc`: which instruction sets run here, and their tables for the other compiled modules.

`lanes_table(isa)` hands out the kernels of one instruction set (None = the active one, `OXILLAMA_ISA` decides); `cpu_info()` says what
was found on this machine; `packable_formats()` lists the GGUF formats that `oxillama._core.matmul` can hold in panels.
"""
import os

from oxillama._core.threads import cgroup_cpus, default_threads, physical_cores

from oxillama.errors import ConfigError, QuantError

cdef extern from "ox.h" nogil:
    enum:
        OX_HAS_AVX2
        OX_HAS_AVX_VNNI
        OX_HAS_AVX512
        OX_HAS_AVX512_BF16
        OX_HAS_AVX512_VBMI
        OX_HAS_NEON
        OX_HAS_DOTPROD
        OX_HAS_I8MM
        OX_HAS_AMX
        OX_ISA_COUNT
    unsigned ox_cpu_features()
    int ox_cpu_model(char *out, int size)
    enum:
        OX_CORE_ZEN3
        OX_CORE_ZEN4
        OX_CORE_ZEN5
        OX_CORE_AMX
        OX_CORE_INTEL
    int ox_core_kind()
    unsigned ox_isa_available()
    const char *ox_isa_name(int isa)

cdef extern from "lanes/panel.h" nogil:
    enum:
        FAMILY_32
        FAMILY_256
        LANES_AVX512
        LANES_AVX512BF16
        LANES_COUNT
        OX_PANEL_LAYOUT
    const ox_form ox_forms[64]
    int ox_form_from_name(const char *name)
    int64_t ox_act_bytes(int act, int64_t cols)
    int64_t ox_panel_bytes(const ox_form *form, int64_t cols)
    int ox_form_tight(int form, int64_t cols)
    int ox_pack(const ox_form *form, uint8_t *panels, const uint8_t *src, int64_t row_bytes, int64_t rows, int64_t cols,
                 int64_t first, int64_t end)
    const ox_lanes *ox_lanes_table(int index)
    int ox_lanes_best(int isa)

ACTS = ("f32", "q8_32", "q8_256", "bf16")
PANEL_LAYOUT = OX_PANEL_LAYOUT      # the number of the bytes' order in panels: what keeps panels in a file compares it

# CPUID is slow in a virtual machine: asked once, at import.
cdef const ox_lanes *tables[LANES_COUNT]
cdef int _i
for _i in range(LANES_COUNT):
    tables[_i] = ox_lanes_table(_i)
cdef int best[OX_ISA_COUNT]
for _i in range(OX_ISA_COUNT):
    best[_i] = ox_lanes_best(_i)
cdef int core = ox_core_kind()
# Zen 4 starts one dot of 512 bits a cycle, so two loads a cycle do not hold up a tile of eight rows, and tiles are faster than `wide` up to 64 rows
# (docs/kernel-figures.md).
cdef ox_lanes zen4[LANES_COUNT]
if core == OX_CORE_ZEN4:
    for _table in (LANES_AVX512, LANES_AVX512BF16):
        if tables[_table] != NULL:
            zen4[_table] = tables[_table][0]
            for _i in range(FORM_COUNT):
                if ox_forms[_i].family in (FAMILY_32, FAMILY_256):
                    zen4[_table].few_rows[_i] = zen4[_table].tile_rows[_i] = 64
            tables[_table] = &zen4[_table]
# How far ahead `beside` prefetches, in bytes, by form, for one row and for more (docs/kernel-figures.md).
cdef (int, int) distance
cdef bint supers, bytes_of_32
for _i in range(FORM_COUNT):
    supers = ox_forms[_i].family == FAMILY_256
    bytes_of_32 = not supers and ox_forms[_i].store == 8
    if core == OX_CORE_AMX:
        distance = 2048, 2048
    elif core == OX_CORE_INTEL:
        distance = 1024 if bytes_of_32 else 2048, 4096 if supers else 2048
    elif core == OX_CORE_ZEN3:
        distance = (512, 512) if bytes_of_32 else (2048, 2048)
    elif supers:
        distance = (1024, 4096) if core == OX_CORE_ZEN5 else (0, 0)
    else:
        distance = (1024, 0) if core != OX_CORE_ZEN5 and bytes_of_32 else (0, 0)
    prefetch_distance[_i][0], prefetch_distance[_i][1] = distance
LANES = {tables[i].name.decode(): i for i in range(LANES_COUNT) if tables[i] != NULL}
ISA_NUMBERS = {ox_isa_name(i).decode(): i for i in range(OX_ISA_COUNT)}
AVAILABLE = tuple(ox_isa_name(i).decode() for i in range(OX_ISA_COUNT) if (ox_isa_available() >> i) & 1)
FEATURES = ((OX_HAS_AVX2, "avx2"), (OX_HAS_AVX_VNNI, "avx_vnni"), (OX_HAS_AVX512, "avx512_vnni"), (OX_HAS_AVX512_BF16, "avx512_bf16"),
            (OX_HAS_AVX512_VBMI, "avx512_vbmi"), (OX_HAS_AMX, "amx"), (OX_HAS_NEON, "neon"), (OX_HAS_DOTPROD, "dotprod"),
            (OX_HAS_I8MM, "i8mm"))


def isa_available() -> tuple:
    """The instruction sets this processor and operating system can run, plainest first."""
    return AVAILABLE


def isa_active() -> str:
    """The instruction set in use: the one `OXILLAMA_ISA` names, else the best; ConfigError if that one cannot run here."""
    forced = os.environ.get("OXILLAMA_ISA")
    if forced and forced not in AVAILABLE:
        raise ConfigError(f"OXILLAMA_ISA: found {forced!r}, this machine runs {', '.join(AVAILABLE)}")
    return forced or AVAILABLE[len(AVAILABLE) - 1]


def lanes_available() -> tuple:
    """The names that `isa=` takes in `oxillama._core.matmul`: one per table of kernels that can run here."""
    return tuple(LANES)


def packable_formats() -> tuple:
    """One (GGUF format, columns per block, bytes per block, activation format) per format that can be packed into panels."""
    return tuple((ox_forms[i].name.decode(), ox_forms[i].block, ox_forms[i].bytes, ACTS[ox_forms[i].act])
                 for i in range(FORM_COUNT) if ox_forms[i].plain == i)


def cpu_info() -> dict:
    """What runs here: `isa` (active), `isa_available`, `features`, `model`, `physical_cores`, `allowed_cpus`, `cgroup_cpus`, `default_threads`.

    `allowed_cpus` counts the CPUs of this process's affinity, `cgroup_cpus` is the quota (None = no limit) and `default_threads` what a
    `num_threads` of 0 means. Raises ConfigError when `OXILLAMA_ISA` names an instruction set that cannot run here.
    """
    cdef unsigned has = ox_cpu_features()
    cdef char name[64]
    cdef int length = ox_cpu_model(name, 64)
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    return {
        "isa": isa_active(),
        "isa_available": isa_available(),
        "features": tuple(word for bit, word in FEATURES if has & <unsigned>bit),
        "model": name[:length].decode("ascii", "replace") or os.uname().machine,
        "physical_cores": physical_cores(cpus),
        "allowed_cpus": len(cpus),
        "cgroup_cpus": cgroup_cpus(),
        "default_threads": default_threads(),
    }


cdef const ox_lanes *lanes_table(object isa) except NULL:
    """The kernels of an instruction set by name, None for the active one; ConfigError when it cannot run here."""
    index = best[<int>ISA_NUMBERS[isa_active()]] if isa is None else LANES.get(isa)
    if index is None:
        raise ConfigError(f"isa: found {isa!r}, wanted one of {', '.join(LANES)}")
    return tables[<int>index]


cdef int form_index(str name) except -1:
    """The form of a GGUF format; QuantError when it cannot be packed."""
    cdef int index = ox_form_from_name(name.encode())
    if index < 0:
        raise QuantError(f"weights of format {name!r} cannot be packed, wanted one of {', '.join(row[0] for row in packable_formats())}")
    return index


cdef int act_index(str name) except -1:
    if name not in ACTS:
        raise QuantError(f"activation format {name!r} is not known, wanted one of {', '.join(ACTS)}")
    return ACTS.index(name)


cdef const ox_form *form_at(int index) noexcept nogil:
    return &ox_forms[index]


cdef int64_t act_row_bytes(int act, int64_t cols) noexcept nogil:
    return ox_act_bytes(act, cols)


cdef int64_t panel_bytes(const ox_form *form, int64_t cols) noexcept nogil:
    return ox_panel_bytes(form, cols)


cdef int tight_form(int form, int64_t cols) noexcept nogil:
    """The form that takes fewer bytes for weights that allow it, -1 where there is none."""
    return ox_form_tight(form, cols)


cdef bint pack_panels(int form, uint8_t *panels, const uint8_t *src, int64_t row_bytes, int64_t rows, int64_t cols,
                      int64_t first, int64_t end) noexcept nogil:
    """Whether the form could hold them, as any form can that is not tight."""
    return ox_pack(&ox_forms[form], panels, src, row_bytes, rows, cols, first, end)
