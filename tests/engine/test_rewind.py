"""Going back: pages at once, states through checkpoints; what can do neither is run a token at a
time.
"""

import numpy as np
import pytest
from null import NullMemory, core, request, solo

from oxillama.engine.pages import KvCachePool, PagedKvCache
from oxillama.engine.rewind import Rewindable, StateCheckpoints
from oxillama.engine.states import SsmStatePool
from oxillama.errors import NotSupported, PositionBeyondEnd, RewindError
from oxillama.speculative.lookup import LookupDrafter
from oxillama.speculative.types import Candidates


def test_pages_go_back_to_any_position_but_not_forward():
    kv = PagedKvCache(KvCachePool(NullMemory()))
    kv.reserve(40)
    kv.commit(40)
    kv.rewind(17)
    assert kv.length == 17 and len(kv.pages) == 2 and isinstance(kv, Rewindable)
    with pytest.raises(PositionBeyondEnd, match="found position 18, wanted 0 to 17"):
        kv.rewind(18)
    assert (
        issubclass(PositionBeyondEnd, RewindError)
        and RewindError.PositionBeyondEnd is PositionBeyondEnd
    )


def test_a_state_goes_back_to_its_checkpoints():
    pool = SsmStatePool(2, [(3,), (2, 2)])
    slot = pool.alloc()
    past = StateCheckpoints(pool, slot, keep=3)
    seen = []
    for value in range(6):
        past.mark()
        seen.append([layer[slot].copy() for layer in pool.layers])
        for layer in pool.layers:
            layer[slot] += value + 1
        past.advance(1)
    past.rewind(4)
    assert (
        all(np.array_equal(layer[slot], was) for layer, was in zip(pool.layers, seen[4]))
        and past.length == 4
    )
    with pytest.raises(NotSupported, match="no checkpoint at position 1"):
        past.rewind(1)
    with pytest.raises(PositionBeyondEnd, match="found position 5, wanted 0 to 4"):
        past.rewind(5)


def test_what_cannot_go_back_is_run_a_token_at_a_time():
    class OneWay(NullMemory):
        rewindable = False

    engine = core(memory=OneWay(), prefix=False)
    made = request(engine, [1, 2] * 5, max_tokens=20)
    made.speculation = engine.speculator.speculation(
        Candidates(LookupDrafter(), adaptive=False), made.session
    )
    done = engine.submit(made).result(5)
    assert list(done.tokens) == solo([1, 2] * 5, 20)
    assert (
        done.speculation.accepted,
        done.speculation.rejected,
        done.speculation.n1_fallbacks,
    ) == (0, 0, 19)
    engine.close()
