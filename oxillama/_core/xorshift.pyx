"""The sampler's random numbers: a stream that every machine draws alike."""
from libc.stdint cimport uint64_t

from oxillama._core.sample cimport oxs_uniform, oxs_next

from oxillama.errors import ConfigError

cdef uint64_t GOLDEN_SEED = 0x517cc1b727220a95ULL


cdef class Xorshift64:
    """The random stream of the sampler: xorshift64 (Marsaglia 2003), 64 bits of state, the state being the output.

    Each step does x ^= x << 13, x ^= x >> 7, x ^= x << 17. A seed of 0, which would stay 0, stands for 0x517cc1b727220a95.
    """
    cdef uint64_t state

    def __init__(self, seed):
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 1 << 64:
            raise ConfigError(f"seed: found {seed!r}, wanted an integer in [0, 2^64)")
        self.state = seed
        if self.state == 0:
            self.state = GOLDEN_SEED

    @classmethod
    def from_raw_state(cls, state):
        """Continue a stream from `raw_state()`; 0 is no state of any stream and raises ConfigError."""
        if not isinstance(state, int) or not 0 < state < 1 << 64:
            raise ConfigError(f"raw state: found {state!r}, wanted an integer in [1, 2^64)")
        return cls(state)

    def raw_state(self):
        """The 64 bits that `from_raw_state` continues from."""
        return self.state

    def next_u64(self):
        """The next 64 bits."""
        return oxs_next(&self.state)

    def next_f32(self):
        """The next number in [0, 1) with 24 bits, exact as a float32: (x >> 40) / 2^24."""
        return oxs_uniform(&self.state)
