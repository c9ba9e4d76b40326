"""The token trie's compiled face."""
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from oxillama._core.pushdown cimport Machine


cdef struct Tree:
    Py_ssize_t nodes
    uint8_t *byte        # preorder arrays
    uint8_t *u8          # the plain-character automaton's state after this node
    int32_t *depth       # 1 = first byte
    int32_t *skip        # the next node outside this subtree
    int32_t *chars       # the most plain characters any token starts below this node
    uint64_t *below      # the kinds of bytes that occur below this node
    int32_t *first       # nodes + 1 offsets into tokens: a subtree's tokens are contiguous
    int32_t *tokens
    Py_ssize_t token_count


cdef class TokenTrie:
    cdef Tree plain, rest
    cdef readonly Py_ssize_t vocab, words, longest
    cdef uint32_t *plain_mask
    cdef int _walk(self, Tree *tree, Machine machine, int32_t config, int32_t **rows, uint32_t *mask, bint covered, bint optimistic) except -1
    cdef int _choose(self, Machine machine, int32_t config) except -1
