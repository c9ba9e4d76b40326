"""Which grammar nodes can match something, given which rules can: what a schema's compiler asks of every rule that it has written."""
from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.stdlib cimport calloc, free

from oxillama._core.emission cimport CHOICE, CLASS, FRESH, NETWORK, REGISTER, REPEAT, RULE, SEQUENCE, TAKE

cdef enum:
    CHECK = -2              # the member of a TAKE node that counts nothing, see `oxillama.grammar.nodes`
    ONE = -1


def finishes(tuple node, bytearray done):
    """Whether a node can match something; `done[i]`: whether rule i can."""
    return can_finish(node, <const unsigned char *>PyByteArray_AS_STRING(done))


def whole(tuple node, bytearray done):
    """Whether all rules that a node calls, wherever in it, can match something, and so can all of its classes."""
    return all_finish(node, <const unsigned char *>PyByteArray_AS_STRING(done))


def takes(tuple node, bytearray done):
    """What a register's node can count: members, and `ONE`."""
    found = set()
    collect(node, <const unsigned char *>PyByteArray_AS_STRING(done), found)
    return found


cdef bint can_finish(tuple node, const unsigned char *done) except -1:
    cdef int kind = node[0]
    if kind == RULE:
        return done[<Py_ssize_t>node[1]]
    if kind == CLASS:
        return len(<tuple>node[1]) > 0
    if kind == SEQUENCE:
        for part in <tuple>node[1]:
            if not can_finish(part, done):
                return False
        return True
    if kind == CHOICE:
        for part in <tuple>node[1]:
            if can_finish(part, done):
                return True
        return False
    if kind == REPEAT:
        return node[2] == 0 or can_finish(node[1], done)
    if kind == FRESH:
        return can_finish(node[1], done)
    if kind == REGISTER:
        return register_finishes(node, done)
    if kind == NETWORK:
        return reaches_end(node[1], node[2], done)
    return True


cdef bint register_finishes(tuple node, const unsigned char *done) except -1:
    cdef Py_ssize_t least = node[2]
    cdef set found
    if least > 0 or len(node[4]):
        found = set()
        collect(node[1], done, found)
        if ONE not in found and len(found) < least:
            return False
        for member in node[4]:
            if member not in found:
                return False
    return can_finish(node[1], done)


cdef bint reaches_end(Py_ssize_t start, tuple states, const unsigned char *done) except -1:
    """Whether a network's edges lead from a state to one that accepts."""
    cdef Py_ssize_t at, left = 1
    cdef Py_ssize_t *todo
    cdef char *reached
    cdef tuple state, edge
    todo = <Py_ssize_t *>calloc(len(states) + 1, sizeof(Py_ssize_t))
    reached = <char *>calloc(len(states) + 1, 1)
    try:
        if todo == NULL or reached == NULL:
            raise MemoryError()
        todo[0], reached[start] = start, 1
        while left:
            left -= 1
            state = states[todo[left]]
            if state[0]:
                return True
            for edge in <tuple>state[1]:
                at = edge[1]
                if not reached[at] and can_finish(edge[0], done):
                    reached[at] = 1
                    todo[left] = at
                    left += 1
        return False
    finally:
        free(todo)
        free(reached)


cdef int collect(tuple node, const unsigned char *done, set found) except -1:
    """Adds what a node can count."""
    cdef int kind = node[0]
    if kind == TAKE:
        if node[1] != CHECK:
            found.add(node[1])
    elif kind == SEQUENCE:
        if counts(node) and can_finish(node, done):
            for part in <tuple>node[1]:
                collect(part, done, found)
    elif kind == CHOICE:
        for part in <tuple>node[1]:
            if can_finish(part, done):
                collect(part, done, found)
    elif kind == NETWORK:
        for _, edges in <tuple>node[2]:
            for part, _ in <tuple>edges:
                if counts(part) and can_finish(part, done):
                    collect(part, done, found)
    return 0


cdef bint counts(tuple node) except -1:
    """Whether a node may count something, at first sight."""
    cdef int kind = node[0]
    if kind == SEQUENCE:
        for part in <tuple>node[1]:
            if counts(part):
                return True
        return False
    return kind == TAKE or kind == CHOICE or kind == NETWORK


cdef bint all_finish(tuple node, const unsigned char *done) except -1:
    cdef int kind = node[0]
    cdef tuple state, edge
    if kind == RULE:
        return done[<Py_ssize_t>node[1]]
    if kind == CLASS:
        return len(<tuple>node[1]) > 0
    if kind == SEQUENCE or kind == CHOICE:
        for part in <tuple>node[1]:
            if not all_finish(part, done):
                return False
    elif kind == REPEAT or kind == FRESH or kind == REGISTER:
        return all_finish(node[1], done)
    elif kind == NETWORK:
        for state in <tuple>node[2]:
            for edge in <tuple>state[1]:
                if not all_finish(edge[0], done):
                    return False
    return True
