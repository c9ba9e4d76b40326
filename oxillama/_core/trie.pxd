"""The token trie's compiled face."""
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from oxillama._core.pushdown cimport LENGTHS, Machine
from oxillama._core.sequences cimport Ints


cdef struct Node:
    int32_t skip         # the next node outside this subtree
    int32_t first        # where its tokens begin: a subtree's tokens are contiguous
    uint64_t below       # the kinds of bytes that occur below it
    uint16_t depth       # 1 = first byte
    uint16_t reach       # bytes of the longest token through it
    uint16_t chars       # the most plain characters any token starts below it
    uint8_t byte
    uint8_t u8           # the plain-character automaton's state after it


cdef struct Tree:
    Py_ssize_t nodes
    Node *at             # in preorder; behind the last one, where the tokens end
    int32_t *kids        # the nodes of first bytes, then of second bytes below each of them; behind each list ~ the node outside of it
    uint8_t *kid_bytes   # and their bytes side by side: a walk reads none of the nodes, far from each other, that are dead
    int32_t[257] seconds # where the second bytes of each first byte begin
    int32_t deepest      # the most plain characters of a token
    int32_t *tokens
    int32_t *sizes       # bytes of each of them
    Py_ssize_t token_count


cdef struct Proof:
    int32_t config           # from here any text of these kinds of bytes is allowed, up to so many
    uint64_t kinds
    int32_t bytes
    int32_t refuted          # and from here some text of these is not, or too many positions would have to be looked at
    uint64_t too_many
    int32_t too_long


cdef struct Walk:
    int32_t shorter, longest     # tokens of more than `shorter` bytes and up to `longest` are asked for
    int32_t patience             # positions that proofs which fail may look at
    int32_t **rows               # of the configs on the path, by depth
    Proof *proofs                # the last ones, by depth
    bint apart                   # tokens of some lengths alone are asked for, because counts come to bounds within longer ones
    uint8_t *still               # by depth, whether counts stand still there


cdef class TokenTrie:
    cdef Tree plain, rest
    cdef readonly Py_ssize_t vocab, words, longest
    cdef int32_t[LENGTHS + 1] bounds     # part k holds the tokens of more than bounds[k] and up to bounds[k + 1] bytes
    cdef int farthest                    # the number of the horizon of the longest token
    cdef uint32_t *plain_mask            # the plain tokens, then those of at most 1, 2, ... characters
    cdef Ints long_plain                 # (characters, token) of plain tokens that are in none of these but the first, by length
    cdef uint32_t *sized_mask            # the tokens of each part
    cdef tuple _parts(self, Machine machine, int32_t config)
    cdef int _fill_part(self, Machine machine, int32_t config, int low, int high, uint32_t *mask) except -1
    cdef int _fill_parts(self, Machine machine, int32_t config, tuple parts, uint32_t *mask, known) except -1
    cdef int _walk(self, Tree *tree, Machine machine, int32_t config, Walk *walk, uint32_t *mask, bint covered, bint optimistic) except -1
    cdef int _choose(self, Machine machine, int32_t config, int32_t longest) except -1
