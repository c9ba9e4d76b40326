"""Going back: pages at once, states through checkpoints; what can do neither is run a token at a
time.
"""

import pytest

from oxillama.engine.memory.pages import KvCachePool, PagedKvCache, Rewindable
from oxillama.errors import PositionBeyondEnd, RewindError
from oxillama.speculative.lookup import LookupDrafter
from oxillama.speculative.types import Candidates
from tests.engine.null import NullMemory, core, request, solo


def test_pages_go_back_to_any_position_but_not_forward():
    kv = PagedKvCache(KvCachePool(NullMemory()))
    kv.reserve(40)
    kv.commit(40)
    kv.rewind(17)
    assert kv.length == 17 and len(kv.pages) == 2 and isinstance(kv, Rewindable)
    for position in (18, -1):
        with pytest.raises(PositionBeyondEnd, match=f"found position {position}, wanted 0 to 17"):
            kv.rewind(position)
    for position in (17, 0):
        kv.rewind(position)
        assert kv.length == position
    assert (
        issubclass(PositionBeyondEnd, RewindError)
        and RewindError.PositionBeyondEnd is PositionBeyondEnd
    )


def test_what_cannot_go_back_is_run_a_token_at_a_time():
    class OneWay(NullMemory):
        rewindable = False

    engine = core(memory=OneWay(), prefix=False)
    made = request(engine, [1, 2] * 5, max_tokens=20)
    made.speculation = engine.speculator.speculation(
        Candidates(LookupDrafter(), adaptive=False), made.session
    )
    done = engine.submit(made).result(60)
    assert list(done.tokens) == solo([1, 2] * 5, 20)
    assert (
        done.speculation.accepted,
        done.speculation.rejected,
        done.speculation.n1_fallbacks,
    ) == (0, 0, 19)
    engine.close()
