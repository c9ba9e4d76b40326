"""What a position surely allows of plain text: the inside of a JSON string, proved once instead of walked token by token.

*Plain* are the characters of a JSON string without quote, backslash and control. `cover` proves that any plain text of some length may
come next; the trie, which keeps the tokens of such characters apart, then takes whole subtrees of them.
"""
from libc.stdint cimport int32_t, uint8_t

from oxillama._core.networks cimport COUNTED, REP
from oxillama._core.pushdown cimport FROZEN, Machine
from oxillama._core.sequences cimport seq_at, seq_len

cdef enum:
    INFINITE = 1 << 30
    POSITIONS = 64

# The plain characters as a UTF-8 automaton: state, low, high, next; state 0 is between characters.
cdef int32_t[18][4] PLAIN
cdef enum:
    PLAIN_EDGES = 18
for _i, _edge in enumerate((
        (0, 0x20, 0x21, 0), (0, 0x23, 0x5B, 0), (0, 0x5D, 0x7E, 0), (0, 0xC2, 0xDF, 1), (0, 0xE0, 0xE0, 2), (0, 0xE1, 0xEC, 3),
        (0, 0xED, 0xED, 4), (0, 0xEE, 0xEF, 3), (0, 0xF0, 0xF0, 5), (0, 0xF1, 0xF3, 6), (0, 0xF4, 0xF4, 7), (1, 0x80, 0xBF, 0),
        (2, 0xA0, 0xBF, 1), (3, 0x80, 0xBF, 1), (4, 0x80, 0x9F, 1), (5, 0x90, 0xBF, 3), (6, 0x80, 0xBF, 3), (7, 0x80, 0x8F, 3))):
    PLAIN[_i] = _edge


def plain_step(state, byte):
    """The plain-character automaton's next state, or -1: the trie sorts its tokens by it."""
    for i in range(PLAIN_EDGES):
        if PLAIN[i][0] == state and PLAIN[i][1] <= byte <= PLAIN[i][2]:
            return PLAIN[i][3]
    return -1


cdef int explore(Machine m, int32_t d, int u8, int loop) except -1:
    """1 if from d every plain string stays inside this rule's network (loop 1), or every single plain character finishes the
    rule (loop 0) and leaves nothing else to follow in it (loop 2)."""
    cdef int32_t[96][2] seen
    cdef int n = 1, i = 0, e, k, j
    cdef int32_t low, high, need, target
    cdef Py_ssize_t at, segments
    seen[0][0], seen[0][1] = d, u8
    while i < n:
        d, u8 = seen[i][0], seen[i][1]
        i += 1
        m._segments(d)
        at = m.d_seg_at.data[d]
        segments = m.d_segs.data[at]
        for e in range(PLAIN_EDGES):
            if PLAIN[e][0] != u8:
                continue
            low, high, j = PLAIN[e][1], PLAIN[e][2], PLAIN[e][3]
            need = low
            for k in range(segments):
                if m.d_segs.data[at + 2 + 3 * k] < need:
                    continue
                if m.d_segs.data[at + 1 + 3 * k] > need:
                    return 0
                target = m.d_segs.data[at + 3 + 3 * k]
                need = m.d_segs.data[at + 2 + 3 * k] + 1
                if j == 0 and loop != 1:
                    if not (m.d_accept.data[target] if loop == 0 else m.d_pure.data[target]):
                        return 0
                else:
                    for u in range(n):
                        if seen[u][0] == target and seen[u][1] == j:
                            break
                    else:
                        if n == 96:
                            return 0
                        seen[n][0], seen[n][1] = target, j
                        n += 1
                if need > high:
                    break
            if need <= high:
                return 0
    return 1


cdef int covers(Machine m, int32_t d, int u8) except -1:
    """Memoised: bit 1 = known, 2 = one plain character finishes the rule, 4 = any plain string stays inside."""
    cdef int flags = m.d_cover.data[8 * <Py_ssize_t>d + u8]
    if flags == 0:
        flags = 1 | (2 * explore(m, d, u8, 0)) | (4 * explore(m, d, u8, 1))
        m.d_cover.data[8 * <Py_ssize_t>d + u8] = flags
    return flags


cdef int32_t exact_cover(Machine m, int32_t config) except -2:
    """The number n such that of all plain strings exactly those of up to n characters are allowed from here; -1 if not proved.

    Holds where the config is a bounded repeat of single characters, about to read one, and whatever may stand instead or follow the
    repeat does not begin with a plain character.
    """
    cdef Py_ssize_t i, k, n, at
    cdef int32_t d, stack, frame, ret, rep, count, most, byte, parent = 0, body = -1, left = -1, beyond
    cdef int32_t *row
    n = seq_len(&m.configs, config)
    for i in range(1, n, 2):
        d, stack = seq_at(&m.configs, config)[i], seq_at(&m.configs, config)[i + 1]
        if seq_at(&m.stacks, stack)[0] or seq_len(&m.stacks, stack) != 3:
            continue
        frame, parent = seq_at(&m.stacks, stack)[1], seq_at(&m.stacks, stack)[2]
        ret, rep, count = seq_at(&m.frames, frame)[0], seq_at(&m.frames, frame)[1], seq_at(&m.frames, frame)[2]
        if rep < 0 or m.reps.data[REP * rep + 3] != COUNTED:
            continue
        most = m.reps.data[REP * rep + 2]
        if most < 0 or count & FROZEN or d != m._start(m.reps.data[REP * rep]) or not explore(m, d, 0, 2):
            continue
        body, left = d, most - count + 1
        break
    if body < 0:
        return -1
    m._begin()
    m._visit(ret, parent, 0)
    beyond = m._finish()
    for i in range(1, n, 2):
        d = seq_at(&m.configs, config)[i]
        if d == body:
            continue
        m._segments(d)
        at = m.d_seg_at.data[d]
        for k in range(at + 1, at + 1 + 3 * m.d_segs.data[at], 3):
            for byte in range(max(0x20, m.d_segs.data[k]), min(0xFF, m.d_segs.data[k + 1]) + 1):
                if byte != 0x22 and byte != 0x5C:
                    return -1
    row = m.row(beyond)
    for i in range(0x20, 0x100):
        if row[i] and i != 0x22 and i != 0x5C:
            return -1
    return left


cdef int32_t text_reach(Machine m, int32_t config) except -1:
    """How many plain characters may surely follow, whichever they are, by looking at all positions that they lead to, character by
    character (INFINITE: these lead nowhere else). For registers whose counts stand still: their networks prove nothing by themselves."""
    cdef int32_t[POSITIONS] seen, level
    cdef uint8_t[POSITIONS] u8
    cdef int[POSITIONS] part                # positions inside a character, which are looked at before the next character
    cdef int32_t *row
    cdef int32_t follow, last
    cdef int n = 1, i = 0, at, parts, e, j, byte, step
    seen[0], level[0], u8[0] = config, 0, 0
    while i < n:
        if u8[i]:
            i += 1
            continue
        at, parts = i, 0
        while True:
            if m.patience <= 0:
                return level[i]
            m.patience -= 1
            row = m.row(seen[at])
            for e in range(PLAIN_EDGES):
                if PLAIN[e][0] != u8[at]:
                    continue
                last, step = -1, PLAIN[e][3]
                for byte in range(PLAIN[e][1], PLAIN[e][2] + 1):
                    follow = row[byte]
                    if follow == 0:
                        return level[i]
                    if follow == last:
                        continue
                    last = follow
                    for j in range(n):
                        if seen[j] == follow and u8[j] == step:
                            break
                    else:
                        if n == POSITIONS:
                            return level[i]
                        seen[n], u8[n], level[n] = follow, <uint8_t>step, level[i] + (step == 0)
                        if step:
                            part[parts] = n
                            parts += 1
                        n += 1
            if parts == 0:
                break
            parts -= 1
            at = part[parts]
        i += 1
    for i in range(n):                      # whatever follows them follows the first
        if u8[i] == 0:
            m.c_flags.data[seen[i]] = 1 + INFINITE
    return INFINITE


cdef int32_t cover(Machine m, int32_t config, int u8, bint thorough) except -1:
    """How many plain characters may surely be started from here (INFINITE: any number); u8 is the plain automaton's state. `thorough`
    looks at the positions that they lead to, where counts stand still."""
    cdef int32_t known, reach
    if u8:
        return covered(m, config, u8)
    known = m.c_flags.data[config]
    if known > 0:
        return known - 1
    if known == 0:
        known = covered(m, config, 0)
        m.c_flags.data[config] = 1 + known if known == INFINITE else -1 - known
    else:
        known = -1 - known
    if known < INFINITE and thorough and m.still:
        reach = text_reach(m, config)
        known = max(known, reach)
        if m.patience > 0:
            m.c_flags.data[config] = 1 + known
    return known


cdef int32_t covered(Machine m, int32_t config, int u8) except -1:
    cdef Py_ssize_t i, k, n, at, j
    cdef int32_t d, stack, best = 0, frame, ret, rep, count, most, start
    cdef int flags
    n = seq_len(&m.configs, config)
    for i in range(1, n, 2):
        d, stack = seq_at(&m.configs, config)[i], seq_at(&m.configs, config)[i + 1]
        flags = covers(m, d, u8)
        if flags & 4:
            return INFINITE
        if not flags & 2:
            continue
        for k in range(1, seq_len(&m.stacks, stack), 2):
            frame = seq_at(&m.stacks, stack)[k]
            ret, rep, count = seq_at(&m.frames, frame)[0], seq_at(&m.frames, frame)[1], seq_at(&m.frames, frame)[2]
            if rep < 0:
                if covers(m, ret, 0) & 4:
                    return INFINITE
                m._calls(ret)
                at = m.d_call_at.data[ret]
                for j in range(m.d_calls.data[at]):
                    if m.d_calls.data[at + 2 + 3 * j] != frame or m.d_calls.data[at + 1 + 3 * j] < 0:
                        continue
                    start = m._start(m.d_calls.data[at + 1 + 3 * j])
                    if covers(m, start, 0) & 2:
                        return INFINITE
            elif m.reps.data[REP * rep + 3] == COUNTED:
                most = m.reps.data[REP * rep + 2]
                start = m._start(m.reps.data[REP * rep])
                if covers(m, start, 0) & 2:
                    if most < 0 or count & FROZEN:
                        return INFINITE
                    best = max(best, most - count + (1 if u8 == 0 else 0))
    return best
