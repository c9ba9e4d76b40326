"""The functions over the codecs of `csrc/codecs`: whole arrays of rows, all cores, the GIL released.

`codec_table` lists the formats, `unpack_rows` and `quantise_rows` convert, `first_beyond` finds a number that no block can hold.
`isa` names an instruction set (None: the active one, `OXILLAMA_ISA` decides), which changes no bit.
`oxillama.quant` is the public face; what is checked here is what keeps memory safe.
"""
from libc.stdint cimport int64_t

from oxillama._core.threads cimport run_once, worker_count

from oxillama._core.kernels import ISA_NUMBERS, isa_active, isa_available
from oxillama.errors import ConfigError, QuantError

cdef extern from "block.h" nogil:
    int64_t ox_units_take(int64_t *next)

cdef extern from "codecs.h" nogil:
    enum:
        OX_CODEC_COUNT
    const ox_codec *ox_codecs_of(int isa)

cdef enum:
    FEW = 1 << 18          # numbers that one thread unpacks in less time than the default takes to be found and started


def codec_table():
    """One (name, type number in GGUF files, columns per block, bytes per block) per format."""
    cdef const ox_codec *table = ox_codecs_of(0)
    return tuple((table[i].name.decode(), table[i].id, table[i].block, table[i].bytes) for i in range(OX_CODEC_COUNT))


cdef dict _numbers = {row[0]: i for i, row in enumerate(codec_table())}


cdef const ox_codec *_codec(str name, Py_ssize_t columns, Py_ssize_t row_bytes, object isa) except NULL:
    active = isa_active() if isa is None else isa
    if active not in isa_available():
        raise ConfigError(f"isa: found {isa!r}, wanted one of {', '.join(isa_available())}")
    if name not in _numbers:
        raise QuantError(f"unknown format {name!r}")
    cdef const ox_codec *codec = &ox_codecs_of(ISA_NUMBERS[active])[<int>_numbers[name]]
    if columns <= 0 or columns % codec.block or columns // codec.block * codec.bytes != row_bytes:
        raise QuantError(f"{name}: rows of {columns} columns and {row_bytes} bytes, {codec.block} columns take {codec.bytes} bytes")
    return codec


ctypedef struct Rows:
    # What the workers of one conversion share.
    const ox_codec *codec
    float *floats
    unsigned char *blocks
    const float *importance
    int64_t count
    int64_t columns
    int64_t row_bytes
    int64_t chunk            # rows that a worker takes at a time
    int64_t next


cdef void _unpack(void *args, int ith, int nth) noexcept nogil:
    cdef Rows *work = <Rows *>args
    cdef int64_t i, first = work.chunk * ox_units_take(&work.next)
    while first < work.count:
        for i in range(first, min(first + work.chunk, work.count)):
            work.codec.unpack(work.floats + i * work.columns, work.blocks + i * work.row_bytes, work.columns)
        first = work.chunk * ox_units_take(&work.next)


cdef void _quantise(void *args, int ith, int nth) noexcept nogil:
    cdef Rows *work = <Rows *>args
    cdef int64_t i = ox_units_take(&work.next)
    while i < work.count:
        work.codec.quantise(work.blocks + i * work.row_bytes, work.floats + i * work.columns, work.importance, work.columns)
        i = ox_units_take(&work.next)


def unpack_rows(const unsigned char[:, ::1] blocks, str name, float[:, ::1] out, num_threads=0, *, isa=None):
    """Unpack every row of `blocks` (rows, row bytes) into `out` (rows, columns); raises QuantError where the sizes do not fit `name`."""
    cdef Py_ssize_t rows = blocks.shape[0], columns = out.shape[1], row_bytes = blocks.shape[1]
    cdef const ox_codec *codec = _codec(name, columns, row_bytes, isa)
    cdef int workers = 1 if num_threads == 0 and (rows <= 8 or rows * columns <= FEW) else worker_count(num_threads)
    if out.shape[0] != rows:
        raise QuantError(f"{name}: {rows} rows of blocks, room for {out.shape[0]}")
    if rows == 0:
        return
    cdef Rows work = Rows(codec, &out[0, 0], <unsigned char *>&blocks[0, 0], NULL, rows, columns, row_bytes, 8, 0)
    run_once(_unpack, &work, workers if rows >= 8 * workers else <int>((rows + 7) // 8))


def quantise_rows(const float[:, ::1] rows, str name, const float[::1] weights, unsigned char[:, ::1] out, num_threads=0, *, isa=None):
    """Quantise every row of `rows` (rows, columns) into `out` (rows, row bytes); `weights` (columns,) or None says what errors cost."""
    cdef Py_ssize_t count = rows.shape[0], columns = rows.shape[1], row_bytes = out.shape[1]
    cdef const ox_codec *codec = _codec(name, columns, row_bytes, isa)
    cdef const float *importance = NULL
    cdef int workers = worker_count(num_threads)
    if out.shape[0] != count:
        raise QuantError(f"{name}: {count} rows, room for {out.shape[0]}")
    if weights is not None:
        if weights.shape[0] != columns:
            raise QuantError(f"{name}: {weights.shape[0]} importances, rows have {columns} columns")
        importance = &weights[0]
    if count == 0:
        return
    cdef Rows work = Rows(codec, <float *>&rows[0, 0], &out[0, 0], importance, count, columns, row_bytes, 1, 0)
    run_once(_quantise, &work, workers if count >= workers else <int>count)


def first_beyond(const float[:, ::1] rows, float limit):
    """(row, column) of the first number that is NaN, infinite, or beyond `limit` in magnitude; None when all are within."""
    cdef Py_ssize_t i, j, k, columns = rows.shape[1]
    cdef float v
    cdef int bad
    for i in range(rows.shape[0]):
        with nogil:
            bad = 0
            for j in range(columns):
                v = rows[i, j]
                bad |= not (-limit <= v <= limit)
        if bad:
            for k in range(columns):
                if not (-limit <= rows[i, k] <= limit):
                    return i, k
    return None
