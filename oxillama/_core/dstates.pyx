"""Sets of network states of one rule, determinised on first use: what they do with bytes, and which rules they call.

A *dstate* is such a set, closed over empty edges and interned. Per dstate: whether its rule may end there; its byte segments, ascending
(low, high, target) triples; its calls, (rule, frame, tail) triples. A *frame* is (return dstate, repeat, count): bounded repetition is a
counter on the stack, so `x{0,100000}` costs one copy of x. A rule whose network was deferred gets it when its start is first asked for.
"""
from libc.stdint cimport int32_t
from libc.stdlib cimport qsort
from libc.string cimport memset

from oxillama._core.emission cimport Emission
from oxillama._core.networks cimport COUNTED, FINAL, TableSizes, REP
from oxillama._core.sequences cimport (Ints, ascending, clear_sequences, close_sequences, drop, intern, open_sequences, put, reserve, seq_at,
                                       seq_len)


cdef class Dstates(Emission):
    """Networks with the dstates found in them so far."""

    def __cinit__(self):
        open_sequences(&self.dstates)
        open_sequences(&self.frames)

    def __dealloc__(self):
        close_sequences(&self.dstates)
        close_sequences(&self.frames)
        drop(&self.d_accept); drop(&self.d_segs); drop(&self.d_seg_at); drop(&self.d_calls); drop(&self.d_call_at)
        drop(&self.d_pure); drop(&self.d_cover); drop(&self.d_gen); drop(&self.d_expand); drop(&self.d_return); drop(&self.d_pending)
        drop(&self.start_of); drop(&self.bounds)

    cdef void _clear_dstates(self) noexcept:
        """Empty tables; their memory is kept, so this cannot fail."""
        clear_sequences(&self.dstates)
        clear_sequences(&self.frames)
        self.d_accept.n = self.d_segs.n = self.d_seg_at.n = self.d_calls.n = self.d_call_at.n = self.d_pure.n = self.d_cover.n = 0
        self.d_gen.n = self.d_expand.n = self.d_return.n = self.d_pending.n = self.start_of.n = 0

    cdef int32_t _dstate(self) except -1:
        """The dstate of the closed set in set_work."""
        cdef Py_ssize_t i, before = self.dstates.count
        cdef int32_t d, accept = 0, pure = 1, s
        reserve(&self.d_accept, 1); reserve(&self.d_pure, 1); reserve(&self.d_seg_at, 1); reserve(&self.d_call_at, 1)
        reserve(&self.d_gen, 1); reserve(&self.d_expand, 1); reserve(&self.d_return, 1); reserve(&self.d_pending, 1)
        reserve(&self.d_cover, 8)
        d = intern(&self.dstates, self.set_work.data, self.set_work.n)
        if self.dstates.count > before:
            for i in range(self.set_work.n):
                s = self.set_work.data[i]
                accept |= self.state_flags[s] & FINAL
                if (self.byte_at.data[s + 1] > self.byte_at.data[s]) or (self.call_at.data[s + 1] > self.call_at.data[s]):
                    pure = 0
            put(&self.d_accept, accept)
            put(&self.d_pure, accept and pure)
            put(&self.d_seg_at, -1)
            put(&self.d_call_at, -1)
            put(&self.d_gen, 0)
            put(&self.d_expand, -1)
            put(&self.d_return, -1)
            put(&self.d_pending, 0)
            for i in range(8):
                put(&self.d_cover, 0)
        return d

    cdef int32_t _start(self, int32_t rule) except -1:
        while self.start_of.n <= rule:
            put(&self.start_of, -1)
        if self.start_of.data[rule] < 0:
            if self.rule_start.data[rule] < 0:
                self._write(rule)
            self.set_work.n = 0
            put(&self.set_work, self.rule_start.data[rule])
            self._close()
            self.start_of.data[rule] = self._dstate()
        return self.start_of.data[rule]

    cdef int _write(self, int32_t rule) except -1:
        """Gives a deferred rule its network. The machines of one grammar share its rules, so this takes their lock."""
        cdef TableSizes before = self._sizes()
        with self.deferred.alone():
            try:
                self._grow(rule, None)
            except BaseException:
                self._forget(before)
                self.bodies[rule] = None
                raise
        return 0

    cdef int _segments(self, int32_t d) except -1:
        """Determinises a dstate's bytes: d_segs gets a count, then (low, high, target) triples in order."""
        cdef Py_ssize_t i, k, n, at, total
        cdef int32_t low, high, target, s, prev_high = -2, prev_target = -1
        cdef Ints edges, out
        if self.d_seg_at.data[d] >= 0:
            return 0
        memset(&edges, 0, sizeof(Ints))
        memset(&out, 0, sizeof(Ints))
        try:
            self.bounds.n = 0
            for i in range(seq_len(&self.dstates, d)):
                s = seq_at(&self.dstates, d)[i]
                for k in range(self.byte_at.data[s], self.byte_at.data[s + 1]):
                    low, high = self.byte_edges.data[4 * k + 1], self.byte_edges.data[4 * k + 2]
                    put(&edges, low); put(&edges, high); put(&edges, self.byte_edges.data[4 * k + 3])
                    put(&self.bounds, low); put(&self.bounds, high + 1)
            n = self.bounds.n
            if n:
                qsort(self.bounds.data, n, sizeof(int32_t), ascending)
            total = 0
            for i in range(n):
                if total == 0 or self.bounds.data[i] != self.bounds.data[total - 1]:
                    self.bounds.data[total] = self.bounds.data[i]
                    total += 1
            for at in range(total - 1):
                low, high = self.bounds.data[at], self.bounds.data[at + 1] - 1
                self.set_work.n = 0
                for k in range(0, edges.n, 3):
                    if edges.data[k] <= low <= edges.data[k + 1]:
                        put(&self.set_work, edges.data[k + 2])
                if self.set_work.n == 0:
                    continue
                self._close()
                target = self._dstate()
                if prev_target == target and prev_high + 1 == low:
                    out.data[out.n - 2] = high
                else:
                    put(&out, low); put(&out, high); put(&out, target)
                prev_high, prev_target = high, target
            reserve(&self.d_segs, out.n + 1)
            self.d_seg_at.data[d] = <int32_t>self.d_segs.n
            put(&self.d_segs, <int32_t>(out.n // 3))
            for i in range(out.n):
                put(&self.d_segs, out.data[i])
        finally:
            drop(&edges)
            drop(&out)
        return 0

    cdef int _calls(self, int32_t d) except -1:
        """Determinises a dstate's calls: d_calls gets a count, then (rule, frame, tail) triples, one per rule and repeat."""
        cdef Py_ssize_t i, k
        cdef int32_t s, ret, rule, rep
        cdef int32_t[3] frame
        cdef Ints out
        if self.d_call_at.data[d] >= 0:
            return 0
        groups = {}
        for i in range(seq_len(&self.dstates, d)):
            s = seq_at(&self.dstates, d)[i]
            for k in range(self.call_at.data[s], self.call_at.data[s + 1]):
                groups.setdefault((self.call_edges.data[4 * k + 1], self.call_edges.data[4 * k + 2]), []).append(
                    self.call_edges.data[4 * k + 3])
        memset(&out, 0, sizeof(Ints))
        try:
            for (rule, rep), targets in groups.items():
                self.set_work.n = 0
                for s in targets:
                    put(&self.set_work, s)
                self._close()
                ret = self._dstate()
                frame[0], frame[1], frame[2] = ret, rep, 1 if rep >= 0 and self.reps.data[REP * <int32_t>rep + 3] == COUNTED else 0
                put(&out, rule)
                put(&out, intern(&self.frames, frame, 3))
                put(&out, rep < 0 and self.d_pure.data[ret])
            reserve(&self.d_calls, out.n + 1)
            self.d_call_at.data[d] = <int32_t>self.d_calls.n
            put(&self.d_calls, <int32_t>(out.n // 3))
            for i in range(out.n):
                put(&self.d_calls, out.data[i])
        finally:
            drop(&out)
        return 0
