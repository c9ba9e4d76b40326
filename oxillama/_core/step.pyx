"""How an op is checked while a program is built: every slot, width, layer and number, so that nothing can fail during a step.

`Plan` follows what each slot holds (activation format, columns, all rows or the wanted ones) from op to op; an op reads and
writes slots through it and learns its own width and rows that way. `Op` is the base of every op class.
"""
from math import prod

import numpy as np

from oxillama.errors import ModelError

MAX_COLUMNS = 1 << 30
ROWS = ("all", "the wanted", "the kept")   # by domain
ACT_NAMES = ("f32", "q8_32", "q8_256", "bf16")
cdef int[4] ACT_BLOCK = [1, 32, 256, 1]
cdef int[4] ACT_BLOCK_BYTES = [4, 48, 320, 2]


cdef int act_number(object act) except -1:
    """The number of an activation format by name; ModelError for an unknown one."""
    if act not in ACT_NAMES:
        raise ModelError(f"activation format {act!r}: wanted one of {', '.join(ACT_NAMES)}")
    return ACT_NAMES.index(act)


cdef size_t act_row_bytes(int act, int64_t columns) noexcept nogil:
    """Bytes of `columns` (whole blocks) of an activation row, without padding at its end."""
    return <size_t>(columns // ACT_BLOCK[act]) * <size_t>ACT_BLOCK_BYTES[act]


cdef class Op:
    """The base of every op: an op class fills its arguments from the plan and its parameters, or raises ModelError."""

    cdef int begin(self, Plan plan, Common *common, str name, PartFn part, dict params) except -1:
        """Ties the op to its part; call after all slots were read and written."""
        self.name = name
        self.part = part
        self.args = common
        self.domain = plan.domain
        self.held = [params]
        if self.adaptable is None:
            self.adaptable = []
        common.step = plan.step
        common.domain = plan.domain
        return 0

    cdef int look(self) except -1:
        """Sees how its weights lie; while they are packed that may change between steps."""
        return 0

    cdef int fetch(self, Rows batch) except -1:
        """Reads what the op needs of a file for a step, before it begins."""
        return 0


cdef class Plan:
    """The state of building: what slots hold before the next op."""

    def __init__(self, widths, kv_layers, slot_layers, *, vocab_size, max_rows, num_threads, isa, outputs=None):
        for i, width in enumerate(widths):
            if isinstance(width, bool) or not isinstance(width, (int, np.integer)) or not 1 <= width <= MAX_COLUMNS:
                raise ModelError(f"slot {i}: width is {width!r}, wanted 1 to {MAX_COLUMNS} float32s")
        self.widths = [int(width) for width in widths]
        self.kv_layers, self.slot_layers = list(kv_layers), list(slot_layers)
        self.vocab_size, self.max_rows, self.outputs = vocab_size, max_rows, vocab_size if outputs is None else outputs
        self.num_threads = num_threads
        self.isa = isa
        self.content = {}
        self.uses = {}
        self.tile_rows = []
        self.reaches = []
        self.causal = None
        self.positions = (1 << 31) - 1
        self.sections = 1
        self.spanned = self.by_token = False

    cdef int need_scratch(self, Op op, size_t nbytes) except -1:
        op.scratch = max(op.scratch, nbytes)
        return 0

    cdef int use(self, list weights) except -1:
        """How many ops before this one multiply by the same paged weights."""
        key = tuple(id(one) for one in weights)
        self.uses[key] = self.uses.get(key, -1) + 1
        return self.uses[key]

    def start(self, index, op):
        """The next op is number `index`, called `op`."""
        self.index, self.op, self.known, self.domain = index, op, False, ALL_ROWS

    def fail(self, text):
        """ModelError naming the op being built."""
        return ModelError(f"op {self.index} ({self.op}): {text}")

    def number(self, params, key, least, most):
        """The int params[key], within bounds."""
        value = params[key]
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= most:
            raise self.fail(f"{key} is {value!r}, wanted an int from {least} to {most}")
        return int(value)

    def real(self, params, key, least, most):
        """The float params[key], within bounds and not NaN."""
        value = params[key]
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)) or not least <= value <= most:
            raise self.fail(f"{key} is {value!r}, wanted a number from {least} to {most}")
        return float(value)

    def keys(self, params, *wanted, **optional):
        """Raises unless params has exactly the wanted keys; fills in the optional ones."""
        params = {**optional, **params}
        names = set(wanted) | set(optional)
        for key in params:
            if key not in names:
                raise self.fail(f"unknown parameter {key!r}, wanted {', '.join(sorted(names))}")
        for key in wanted:
            if key not in params:
                raise self.fail(f"parameter {key!r} is missing")
        return params

    def slot(self, value, output=False):
        """A slot number, -1 (the output rows) only where `output`."""
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not (-1 if output else 0) <= value < len(self.widths):
            raise self.fail(f"slot {value!r} does not exist, wanted {'-1' if output else '0'} to {len(self.widths) - 1}")
        return int(value)

    def reads(self, slot, act="f32", *, columns=None, output=False, full=False, same=True):
        """Columns that `slot` holds in format `act`; fixes the rows that the op runs over.

        full: the slot must hold all rows; same False: its rows need not match those of the op's other slots.
        """
        slot = self.slot(slot, output)
        if slot not in self.content:
            raise self.fail(f"slot {slot} is read before any op wrote it")
        held, width, domain = self.content[slot]
        if held != act:
            raise self.fail(f"slot {slot} holds {held}, wanted {act}")
        if columns is not None and width != columns:
            raise self.fail(f"slot {slot} holds {width} columns, wanted {columns}")
        if full and domain != ALL_ROWS:
            raise self.fail(f"slot {slot} holds {ROWS[domain]} rows, this op needs all rows")
        if same and not full:
            if self.known and domain != self.domain:
                raise self.fail(f"slot {slot} holds {ROWS[domain]} rows, another slot of this op does not")
            self.domain, self.known = domain, True
        return width

    def writes(self, slot, columns, act="f32", *, output=False, offset=0):
        """Notes that the op fills `columns` columns of `slot` in format `act`, and that they fit."""
        slot = self.slot(slot, output)
        number = act_number(act)
        if columns < 1 or columns % ACT_BLOCK[number]:
            raise self.fail(f"{columns} columns do not fill blocks of {ACT_BLOCK[number]} ({act})")
        if slot == OUTPUT:
            if self.domain != WANTED_ROWS:
                raise self.fail("the output rows must come after take_rows")
            if columns + offset != self.outputs:
                raise self.fail(f"the output has {columns + offset} columns, wanted {self.outputs}")
        else:
            need = <int64_t>act_row_bytes(number, columns + offset)
            if need > 4 * self.widths[slot]:
                raise self.fail(f"slot {slot} has {4 * self.widths[slot]} bytes a row, {act} of {columns + offset} columns takes {need}")
        if offset:
            held, width, rows = self.content.get(slot, (act, 0, self.domain))
            if held != act or width < offset or rows != self.domain:
                raise self.fail(f"slot {slot} holds {width} columns of {held}, wanted at least {offset} of {act} before the offset")
            columns = max(width, columns + offset)
        self.content[slot] = (act, columns, self.domain)
        return slot

    def take(self, rows="wanted"):
        """From here on the op runs over the wanted rows, or those that are kept."""
        self.domain, self.known = WANTED_ROWS if rows == "wanted" else KEPT_ROWS, True

    def sees(self, causal):
        """Notes that rows see no key after their own (causal), or every key of their sequence: the same in all ops of a program."""
        if self.causal is not None and self.causal != causal:
            raise self.fail(f"causal is {causal}, wanted {self.causal}, as in the ops before")
        self.causal = causal

    def state(self, params, shape):
        """The first byte within a slot of the recurrent state that params["state"] numbers; it must have this shape."""
        index = self.number(params, "state", 0, len(self.slot_layers) - 1)
        if tuple(self.slot_layers[index]) != tuple(shape):
            raise self.fail(f"state {index} is {tuple(self.slot_layers[index])}, this op's is {tuple(shape)}")
        return sum((4 * prod(layer) + 63) // 64 * 64 for layer in self.slot_layers[:index])

    def tokens(self, value, key, least, below):
        """A contiguous int32 copy of a number of each token, all from `least` to below - 1."""
        found = np.asarray(value)
        if found.dtype != np.int32 or found.shape != (self.vocab_size,) or not least <= found.min() <= found.max() < below:
            raise self.fail(f"{key} is {found.dtype} {found.shape}, wanted int32 ({self.vocab_size},) numbers from {least} to {below - 1}")
        return np.array(found)

    def floats(self, value, key, count):
        """A contiguous float32 copy of a weight vector of `count` floats; None stays None."""
        if value is None:
            return None
        found = np.asarray(value)
        if found.dtype != np.float32 or found.shape != (count,):
            raise self.fail(f"{key} is {found.dtype} {found.shape}, wanted float32 ({count},)")
        return np.ascontiguousarray(found)
