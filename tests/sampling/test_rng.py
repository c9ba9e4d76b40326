"""The random stream is xorshift64 from SplitMix64 of its seed, bit for bit, and can be continued
from its raw state.
"""

import copy
import pickle

import numpy as np
import pytest

from oxillama.errors import ConfigError
from oxillama.sampling import Xorshift64
from tests.reference.sampling_oracle import Xorshift

GOLDEN_1 = [0x7274658BCB6F4838, 0xD2874A86DF7C98A8, 0x473703A909C34B99]
# SplitMix64 from 0, as published with the algorithm: its first output is the first state of seed 0
SPLITMIX_0 = 0xE220A8397B1DCDAF
UNMIXED_0 = 2**64 - 0x9E3779B97F4A7C15  # the one seed that SplitMix64 takes to 0


def test_first_outputs_of_seed_1_are_golden():
    rng = Xorshift64(1)
    assert [rng.next_u64() for _ in range(3)] == GOLDEN_1


@pytest.mark.parametrize("seed", [0, 1, 42, 2**63, 2**64 - 1, 0x517CC1B727220A95])
def test_stream_equals_integer_arithmetic(seed):
    ours, theirs = Xorshift64(seed), Xorshift(seed)
    for i in range(500):
        if i % 3:
            assert ours.next_u64() == theirs.u64()
        else:
            value = ours.next_f32()
            assert value == theirs.f32() == np.float32(value) and 0 <= value < 1


def test_a_stream_that_is_pickled_or_copied_continues_where_it_was():
    rng = Xorshift64(42)
    rng.next_u64()
    twins = [copy.copy(rng), copy.deepcopy(rng), pickle.loads(pickle.dumps(rng))]
    wanted = [rng.next_u64() for _ in range(3)]
    assert all([twin.next_u64() for _ in range(3)] == wanted for twin in twins)


def test_a_seed_becomes_a_state_by_splitmix64():
    assert Xorshift64(0).raw_state() == SPLITMIX_0
    assert Xorshift64(1).raw_state() == 0x910A2DEC89025CC1


def test_the_seed_whose_state_would_be_zero_has_a_state_of_its_own():
    assert Xorshift64(UNMIXED_0).raw_state() == 0x517CC1B727220A95


def test_a_raw_state_is_taken_as_it_is():
    """Snapshots hold raw states, also those of streams that began before seeds were spread."""
    stream = Xorshift64.from_raw_state(1)
    assert stream.raw_state() == 1
    assert [stream.next_u64() for _ in range(2)] == [0x40822041, 0x100041060C011441]


def test_raw_state_continues_the_stream():
    a = Xorshift64(7)
    for _ in range(100):
        a.next_u64()
    b = Xorshift64.from_raw_state(a.raw_state())
    assert [a.next_u64() for _ in range(50)] == [b.next_u64() for _ in range(50)]


@pytest.mark.parametrize("bad", [-1, 2**64, 1.5, "1", None, True])
def test_bad_seeds_raise(bad):
    with pytest.raises(ConfigError, match="seed: found"):
        Xorshift64(bad)


def test_zero_is_no_raw_state():
    with pytest.raises(ConfigError, match="raw state: found 0"):
        Xorshift64.from_raw_state(0)
