"""The sampler's random numbers: a stream that every machine draws alike."""
from libc.stdint cimport uint64_t

from oxillama._core.sample cimport oxs_uniform, oxs_next

from oxillama.errors import ConfigError

cdef uint64_t STATE_FOR_ZERO = 0x517cc1b727220a95ULL


cdef uint64_t spread(uint64_t seed) noexcept nogil:
    """The first output of SplitMix64 (Steele, Lea and Flood 2014) for this seed: a bijection whose every output bit depends on every bit of
    the seed."""
    seed += 0x9e3779b97f4a7c15ULL
    seed = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9ULL
    seed = (seed ^ (seed >> 27)) * 0x94d049bb133111ebULL
    return seed ^ (seed >> 31)


cdef class Xorshift64:
    """The random stream of the sampler: xorshift64 (Marsaglia 2003), 64 bits of state, the state being the output.

    Each step does x ^= x << 13, x ^= x >> 7, x ^= x << 17. The first state is SplitMix64(seed), because xorshift64 mixes slowly: from the
    seed itself, a number below 2^31 would give a first uniform number near 0. The one seed whose first state would be 0, from which the
    stream cannot leave, starts at 0x517cc1b727220a95.
    """
    cdef uint64_t state

    def __init__(self, seed):
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 1 << 64:
            raise ConfigError(f"seed: found {seed!r}, wanted an integer in [0, 2^64)")
        self.state = spread(seed)
        if self.state == 0:
            self.state = STATE_FOR_ZERO

    @classmethod
    def from_raw_state(cls, state):
        """Continue a stream from `raw_state()`; 0 is no state of any stream and raises ConfigError."""
        if not isinstance(state, int) or not 0 < state < 1 << 64:
            raise ConfigError(f"raw state: found {state!r}, wanted an integer in [1, 2^64)")
        cdef Xorshift64 stream = cls(0)
        stream.state = state
        return stream

    def raw_state(self):
        """The 64 bits that `from_raw_state` continues from."""
        return self.state

    def __reduce__(self):
        """Pickles and copies continue where this stream is."""
        return Xorshift64.from_raw_state, (self.state,)

    def next_u64(self):
        """The next 64 bits."""
        return oxs_next(&self.state)

    def next_f32(self):
        """The next number in [0, 1) with 24 bits, exact as a float32: (x >> 40) / 2^24."""
        return oxs_uniform(&self.state)
