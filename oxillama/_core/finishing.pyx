"""Which grammar nodes can match something, given which rules can: what a schema's compiler asks of every rule that it has written."""
from cpython.bytearray cimport PyByteArray_AsString
from libc.math cimport INFINITY
from libc.stdlib cimport calloc, free

from oxillama._core.emission cimport CHOICE, CLASS, FRESH, NETWORK, REGISTER, REPEAT, RULE, SEQUENCE, TAKE

cdef enum:
    CHECK = -2              # the member of a TAKE node that counts nothing, see `oxillama.grammar.nodes`
    ONE = -1


def finishes(tuple node, bytearray done):
    """Whether a node can match something; `done[i]`: whether rule i can."""
    return can_finish(node, <const unsigned char *>PyByteArray_AsString(done))


def whole(tuple node, bytearray done):
    """Whether all rules that a node calls, wherever in it, can match something, and so can all of its classes."""
    return all_finish(node, <const unsigned char *>PyByteArray_AsString(done))


def capacity(tuple register, bytearray done=None):
    """How many a register can count: its members, and further words (`ONE`) while there are any; never so many that no word is left
    for a member that it needs. Infinite where words are unlimited. Without `done` every rule can match something.
    """
    return counted(register, NULL if done is None else <const unsigned char *>PyByteArray_AsString(done))


cdef bint can_finish(tuple node, const unsigned char *done) except -1:
    cdef int kind = node[0]
    if kind == RULE:
        return done == NULL or done[<Py_ssize_t>node[1]]
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
    cdef Py_ssize_t least = max(<Py_ssize_t>node[2], len(<tuple>node[4]))
    return (least == 0 or counted(node, done) >= least) and can_finish(node[1], done)


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


cdef double counted(tuple register, const unsigned char *done) except -1:
    """What `capacity` says."""
    cdef dict found = {}
    cdef double total, least = INFINITY
    collect(register[1], done, INFINITY, found)
    total = len(found)
    if ONE in found:
        total += <double>found[ONE] - 1
    for member in <tuple>register[4]:
        many = found.get(member)
        if many is None:
            return 0
        least = min(least, <double>many)
    return min(total, least)


cdef int collect(tuple node, const unsigned char *done, double most, dict found) except -1:
    """Adds what a node can count: members and `ONE`, each with how many words it can be counted under (at most `most`)."""
    cdef int kind = node[0]
    if kind == TAKE:
        if node[1] != CHECK:
            found[node[1]] = found.get(node[1], 0.0) + most
    elif kind == SEQUENCE:
        if counts(node):
            most = min(most, words_left(node, done))
            if most > 0:
                for part in <tuple>node[1]:
                    collect(part, done, most, found)
    elif kind == CHOICE:
        for part in <tuple>node[1]:
            collect(part, done, most, found)
    elif kind == NETWORK and can_finish(node, done):
        for _, edges in <tuple>node[2]:
            for part, _ in <tuple>edges:
                collect(part, done, most, found)
    return 0


cdef double words_left(tuple node, const unsigned char *done) except -1:
    """How many words the FRESH parts of a node leave: infinite if none limits them, 0 if the node cannot match anything."""
    cdef int kind = node[0]
    cdef double many
    if kind == SEQUENCE:
        many = INFINITY
        for part in <tuple>node[1]:
            many = min(many, words_left(part, done))
            if many == 0:
                break
        return many
    if kind == CHOICE:
        many = 0
        for part in <tuple>node[1]:
            many += words_left(part, done)
            if many == INFINITY:
                break
        return many
    if not can_finish(node, done):
        return 0
    return <double>node[3] if kind == FRESH and node[3] is not None else INFINITY


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
