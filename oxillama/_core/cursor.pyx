"""Places in a machine, and the memory that they keep: a cursor survives `collect`, which drops all that no cursor needs.

Threads may share a machine. An operation on its tables holds its mutex `turn` from beginning to end. A GIL does not keep others out for so long, and neither does a critical section: both let another thread in wherever
Python runs, as it does in the middle of a closure that first reaches a deferred rule. The critical section around each turn is for the
slots of cursors alone, which are given back whenever a cursor is freed.
"""
cimport cython
from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memset

from oxillama._core.networks cimport REP, SCOPE
from oxillama._core.pushdown cimport Machine
from oxillama._core.sequences cimport Ints, drop, intern, put, reserve, seq_at, seq_len

from oxillama.errors import GrammarError


cdef bytes scalar(bytearray text):
    """The JSON scalar that ends where the text does: from its opening quote, or behind the last sign that cannot be part of it."""
    cdef Py_ssize_t i = len(text) - 1, k
    if text[i] == 0x22:
        i -= 1
        while i > 0:
            if text[i] == 0x22:
                k = i - 1
                while k >= 0 and text[k] == 0x5C:
                    k -= 1
                if (i - k) % 2:                          # an even number of backslashes before it
                    break
            i -= 1
        return bytes(text[i:])
    while i >= 0 and text[i] not in b" \t\r\n,:[]{}":
        i -= 1
    return bytes(text[i + 1:])


cdef bint marked(Machine m, int32_t config) except -1:
    """Whether some register of the config waits for the word that has just ended."""
    cdef Py_ssize_t k
    cdef int32_t stack, frame, rep
    cdef list todo = [seq_at(&m.configs, config)[k] for k in range(2, seq_len(&m.configs, config), 2)]
    cdef set seen = set()
    while todo:
        stack = todo.pop()
        if stack in seen:
            continue
        seen.add(stack)
        for k in range(1, seq_len(&m.stacks, stack), 2):
            frame = seq_at(&m.stacks, stack)[k]
            rep = seq_at(&m.frames, frame)[1]
            if rep >= 0 and m.reps.data[REP * rep + 3] == SCOPE and seq_at(&m.frames, frame)[2] & 1:
                return True
            todo.append(seq_at(&m.stacks, stack)[k + 1])
    return False


cdef class Cursor:
    """A position in a machine's grammar that survives `collect`; forking is copying one number."""

    def __cinit__(self, Machine machine not None, Cursor origin=None):
        self.machine = machine
        self.slot = -1
        with cython.critical_section(machine), machine.turn:
            begin_operation(machine)
            reserve(&machine.free_roots, machine.roots.n + 1)    # so that giving a slot back never allocates
            if machine.free_roots.n:
                machine.free_roots.n -= 1
                self.slot = machine.free_roots.data[machine.free_roots.n]
            else:
                put(&machine.roots, 0)
                self.slot = machine.roots.n - 1
            machine.roots.data[self.slot] = 0
            self.text = bytearray() if origin is None else bytearray(origin.text)
            machine.roots.data[self.slot] = origin.config() if origin is not None else machine.start_config()

    def __dealloc__(self):
        if self.slot >= 0 and self.machine is not None:
            # not in turn: the collector may free a cursor in the middle of an operation of the same thread
            with cython.critical_section(self.machine):
                self.machine.roots.data[self.slot] = -1
                put(&self.machine.free_roots, <int32_t>self.slot)

    cdef int32_t config(self) noexcept:
        return self.machine.roots.data[self.slot]

    cdef void place(self, int32_t config) noexcept:
        self.machine.roots.data[self.slot] = config

    @property
    def distinct(self):
        """Whether the grammar has languages of distinct words, whose tokens a mask has to ask about one by one."""
        return self.machine.distinct

    def fork(self):
        """A second cursor at the same place."""
        return Cursor(self.machine, self)

    @property
    def complete(self):
        """Whether the grammar may end here."""
        with cython.critical_section(self.machine), self.machine.turn:
            finish_collect(self.machine)
            return self.machine.accepts(self.config()) != 0

    @property
    def finished(self):
        """Whether the grammar may end here and nothing else may follow."""
        with cython.critical_section(self.machine), self.machine.turn:
            finish_collect(self.machine)
            return self.machine.accepts(self.config()) != 0 and seq_len(&self.machine.configs, self.config()) == 1

    @property
    def dead(self):
        """Whether nothing can follow and nothing has matched."""
        with cython.critical_section(self.machine), self.machine.turn:
            finish_collect(self.machine)
            return self.config() == 0

    @property
    def key(self):
        """(epoch, config), and the text where words must be distinct: equal keys mean equal futures."""
        with cython.critical_section(self.machine), self.machine.turn:
            finish_collect(self.machine)
            if self.machine.distinct:
                return self.machine.epoch, self.config(), bytes(self.text)
            return self.machine.epoch, self.config()

    cdef int32_t _walk(self, const uint8_t[::1] data, int symbol, bytearray text) except -1:
        """The config after some bytes (or a token symbol), which are added to `text`: distinct languages read their words there."""
        cdef int32_t config = self.config(), by_symbol = 0, last = config
        cdef Py_ssize_t i
        if symbol >= 0:
            by_symbol = self.machine.row(config)[256 + symbol]
        for i in range(data.shape[0]):
            if config == 0:
                break
            last = config
            config = self.machine.row(config)[data[i]]
            text.append(data[i])
            if self.machine.distinct and config and marked(self.machine, config):
                config = self.machine._noted(config, scalar(text))
        if data.shape[0] == 0 and symbol >= 0:
            config = 0
        config = self.machine.union_configs(config, by_symbol)
        self.too_deep = config == 0 and self.machine.c_deep.data[last]
        return config

    def allows(self, const uint8_t[::1] data, int symbol=-1):
        """Whether these bytes (or the token symbol) may come next."""
        self._check(symbol)
        with cython.critical_section(self.machine), self.machine.turn:
            begin_operation(self.machine)
            return self._walk(data, symbol, bytearray(self.text)) != 0

    def advance(self, const uint8_t[::1] data, int symbol=-1):
        """Moves over the bytes (or the token symbol); False, without moving, where they cannot come next."""
        cdef int32_t config
        cdef bytearray text
        self._check(symbol)
        with cython.critical_section(self.machine), self.machine.turn:
            text = bytearray(self.text)
            begin_operation(self.machine)
            config = self._walk(data, symbol, text)
            if config == 0:
                return False
            self.place(config)
            if self.machine.distinct:                 # before that, no distinct word can have begun
                self.text = text
            return True

    def _check(self, int symbol):
        if symbol >= self.machine.symbols:
            raise GrammarError(f"token symbol {symbol}: this grammar has {self.machine.symbols}")

    def next_bytes(self):
        """The set of bytes that may come next, as a 256-long bytes object of zeros and ones."""
        cdef int32_t *row
        with cython.critical_section(self.machine), self.machine.turn:
            begin_operation(self.machine)
            row = self.machine.row(self.config())
            return bytes([1 if row[i] else 0 for i in range(256)])

    def forced(self, Py_ssize_t limit=4096):
        """The longest run of bytes that every continuation starts with (at most `limit`); empty where the grammar may end."""
        cdef int32_t config, follow
        cdef int32_t *row
        cdef Py_ssize_t i
        cdef int byte
        out = bytearray()
        with cython.critical_section(self.machine), self.machine.turn:
            begin_operation(self.machine)
            config = self.config()
            while config != 0 and not self.machine.accepts(config) and len(out) < limit:
                row = self.machine.row(config)
                byte = -1
                follow = 0
                for i in range(self.machine.width):
                    if row[i]:
                        if byte >= 0 or i >= 256:
                            byte = -2
                            break
                        byte = <int>i
                        follow = row[i]
                if byte < 0:
                    break
                out.append(byte)
                config = follow
        return bytes(out)


# ---------------------------------------------------------------------------------------------- bounded memory


cdef int begin_operation(Machine m) except -1:
    """Called first in each outer operation: drops what no cursor needs once the tables outgrow their bound."""
    finish_collect(m)
    if (m.configs.count > m.max_configs or m.stacks.pool.n + m.unions.pool.n > 64 * m.max_configs
            or m.dstates.pool.n + m.d_segs.n + m.values.pool.n + m.wordsets.pool.n > 256 * m.max_configs):
        collect_now(m)
    return 0


cdef int finish_collect(Machine m) except -1:
    """Goes on with a `collect` that ran out of memory: until then no cursor is where it was."""
    if m.unplaced is not None:
        place_all(m)
    return 0


def collect(Machine m not None):
    """Rebuilds the automaton's tables from the live cursors alone; config ids change, `epoch` tells caches so. Where memory runs out in
    the middle, the next operation on the machine goes on with it."""
    with cython.critical_section(m), m.turn:
        collect_now(m)


cdef int collect_now(Machine m) except -1:
    """`collect`, in the turn of an operation."""
    cdef Py_ssize_t i
    if m.unplaced is None:
        saved = []
        for i in range(m.roots.n):
            saved.append(stored(m, m.roots.data[i]) if m.roots.data[i] > 0 else None)
        m.unplaced = saved
    return place_all(m)


cdef int place_all(Machine m) except -1:
    """Empties the tables and puts the cursors' positions back into them."""
    cdef Py_ssize_t i
    cdef list saved = m.unplaced
    for i in range(m.roots.n):
        if m.roots.data[i] > 0:
            m.roots.data[i] = 0
    m._reset()
    memo = {}
    for i in range(len(saved)):
        if saved[i] is not None and m.roots.data[i] >= 0:
            m.roots.data[i] = restored(m, saved[i], memo)
    m.unplaced = None
    return 0


def prepare(Machine m not None, int length=2, Py_ssize_t most=32):
    """Fills the rows of what up to `length` bytes lead to, at most so many: the first mask reads these, whatever the vocabulary, and need
    not wait for them. What exceeds a limit is left to that mask, which raises."""
    cdef int32_t config, follow
    cdef int32_t *row
    cdef Py_ssize_t i
    cdef list level, further
    cdef set seen
    with cython.critical_section(m), m.turn:
        begin_operation(m)
        m.spent, m.budget = 0, m.max_items
        try:
            config = m.start_config()
            level, seen = [config], {0, config}
            while True:
                further = []
                for config in level:
                    if most == 0:
                        return
                    most -= 1
                    row = m.row(config)
                    for i in range(256):
                        follow = row[i]
                        if follow and follow not in seen:
                            seen.add(follow)
                            further.append(follow)
                if length == 0:
                    return
                length -= 1
                level = further
        except GrammarError:
            pass
        finally:
            m.budget = 0


cdef tuple stored(Machine m, int32_t config):
    """A config as plain Python: (whether it accepts, its (network states, stack) pairs, the stacks by number, whether depth cuts
    something off)."""
    cdef Py_ssize_t i, k
    todo = [seq_at(&m.configs, config)[i] for i in range(2, seq_len(&m.configs, config), 2)]
    reached = set()
    while todo:
        s = todo.pop()
        if s in reached:
            continue
        reached.add(s)
        for k in range(2, seq_len(&m.stacks, s), 2):
            todo.append(seq_at(&m.stacks, s)[k])
    stacks = {}
    for s in reached:
        entries = []
        for k in range(1, seq_len(&m.stacks, s), 2):
            f = seq_at(&m.stacks, s)[k]
            ret, rep, count = seq_at(&m.frames, f)[0], seq_at(&m.frames, f)[1], seq_at(&m.frames, f)[2]
            if rep >= 0 and m.reps.data[REP * <int32_t>rep + 3] == SCOPE:
                count = register(m, count)
            entries.append((states_of(m, ret), rep, count, seq_at(&m.stacks, s)[k + 1]))
        stacks[s] = (seq_at(&m.stacks, s)[0], entries, m.s_depth.data[s])
    items = [(states_of(m, seq_at(&m.configs, config)[i]), seq_at(&m.configs, config)[i + 1])
             for i in range(1, seq_len(&m.configs, config), 2)]
    return m.accepts(config), items, stacks, m.c_deep.data[config]


cdef tuple register(Machine m, int32_t marked):
    """A register as plain Python: (mark, count, words, members' bits)."""
    cdef Py_ssize_t i
    cdef int32_t value = marked >> 1, words = seq_at(&m.values, value)[1]
    return (marked & 1, seq_at(&m.values, value)[0],
            [m.words[seq_at(&m.wordsets, words)[i]] for i in range(seq_len(&m.wordsets, words))],
            [seq_at(&m.values, value)[i] for i in range(2, seq_len(&m.values, value))])


cdef int32_t registered(Machine m, saved) except -1:
    """The register that `register` told of, as a frame has it."""
    mark, count, words, bits = saved
    for word in words:
        if word not in m.word_numbers:
            m.word_numbers[word] = len(m.words)
            m.words.append(word)
    return 2 * <int32_t>m._restored_value(count, [m.word_numbers[word] for word in words], bits) + <int32_t>mark


cdef tuple states_of(Machine m, int32_t d):
    return tuple([seq_at(&m.dstates, d)[i] for i in range(seq_len(&m.dstates, d))])


cdef int32_t dstate_of(Machine m, states) except -1:
    m.set_work.n = 0
    for s in states:
        put(&m.set_work, s)
    return m._dstate()


cdef int32_t restored(Machine m, saved, memo) except -1:
    cdef int32_t[3] frame
    cdef Ints seq
    cdef Py_ssize_t before
    cdef int32_t config
    accept, items, stacks, deep = saved
    memset(&seq, 0, sizeof(Ints))
    try:
        for s in sorted(stacks, key=lambda s: stacks[s][2]):     # parents are shallower than what is on them
            if s in memo:
                continue
            bottom, entries, depth = stacks[s]
            pairs = []
            for states, rep, count, parent in entries:
                frame[0], frame[1] = dstate_of(m, states), rep
                frame[2] = registered(m, count) if isinstance(count, tuple) else count
                pairs.append((intern(&m.frames, frame, 3), memo[parent]))
            seq.n = 0
            put(&seq, bottom)
            for f, parent in sorted(pairs):
                put(&seq, f)
                put(&seq, parent)
            before = m.stacks.count
            reserve(&m.s_depth, 1)
            memo[s] = intern(&m.stacks, seq.data, seq.n)
            if m.stacks.count > before:
                put(&m.s_depth, depth)
        m.items.n = 0
        for states, s in items:
            put(&m.items, dstate_of(m, states))
            put(&m.items, memo[s])
    finally:
        drop(&seq)
    config = m._intern_config(accept)
    m.c_deep.data[config] |= <int32_t>deep
    return config
