"""A draft beside its target: whose pages, locks and functions it touches, on demand and in a thread
of its own, and who ends of what.
"""

import threading
import time

import pytest

from oxillama.errors import EngineError
from oxillama.sampling import Sampler, SamplerConfig
from oxillama.speculative.background import BackgroundDrafter
from oxillama.speculative.draft_model import ModelDrafter
from oxillama.speculative.types import Candidates, DraftRequest
from tests.engine.null import VOCAB, NullProgram, core, request, solo
from tests.speculative.drafting import SAME, SEEDED, Other, run


@pytest.mark.parametrize("background", [False, True], ids=["on demand", "background"])
def test_the_pages_of_a_draft_are_nobodys_while_it_is_drawn(background):
    class Watched(Other):
        def step(self, batch, memory, *, output="logits", cancel=None):
            busy.extend(session.busy for session in draft.allocator.sessions)
            return super().step(batch, memory, output=output, cancel=cancel)

    busy = []
    target, draft = core(prefix=False), core(program=Watched(), prefix=False)
    drafter = (
        BackgroundDrafter(ModelDrafter(draft, SAME)) if background else ModelDrafter(draft, SAME)
    )
    run(target, drafter, [1, 2, 3], max_tokens=20)
    target.close()
    if background:
        drafter.close_thread()
    assert busy and all(busy) and not any(session.busy for session in draft.allocator.sessions)
    draft.close()


@pytest.mark.parametrize("background", [False, True], ids=["on demand", "background"])
def test_a_draft_whose_pages_its_own_requests_take_goes_on(background):
    target, draft = core(prefix=False), core(program=Other(), prefix=False, max_pages=7)
    drafter = (
        BackgroundDrafter(ModelDrafter(draft, SAME)) if background else ModelDrafter(draft, SAME)
    )
    made = request(target, [1, 2, 3], max_tokens=60)
    made.speculation = target.speculator.speculation(
        Candidates(drafter, 4, adaptive=False), made.session
    )
    target.submit(made)
    theirs = [draft.submit(request(draft, [at] * 40, max_tokens=20)) for at in range(4)]
    assert list(made.result(60).tokens) == solo([1, 2, 3], 60)
    assert [each.result(60).finish_reason for each in theirs] == ["length"] * 4
    target.close()
    if background:
        drafter.close_thread()
    draft.close()
    assert draft.pool.pages_used == 0


@pytest.mark.parametrize("background", [False, True], ids=["on demand", "background"])
def test_processors_are_called_for_the_text_alone(background):
    def counting(tokens, logits):
        calls.append(threading.current_thread().name)
        if len(calls) % 3 == 0:
            logits[int(logits.argmax())] = -30.0

    def text(drafter):
        calls.clear()
        session = target.new_session([1, 2, 3])
        session.sampler = Sampler(SamplerConfig.greedy(), VOCAB, processors=[counting])
        return (
            run(target, drafter, None, session=session, max_tokens=40).tokens
            if drafter
            else target.submit(request(target, None, session=session, max_tokens=40))
            .result(60)
            .tokens
        )

    calls = []
    target, draft = core(prefix=False), core(prefix=False)
    drafter = (
        BackgroundDrafter(ModelDrafter(draft, SAME)) if background else ModelDrafter(draft, SAME)
    )
    wanted = text(None)
    assert text(drafter) == wanted and calls == ["oxillama worker"] * 40
    target.close()
    if background:
        drafter.close_thread()
    draft.close()


@pytest.mark.parametrize("background", [False, True], ids=["on demand", "background"])
def test_a_draft_can_be_closed_while_a_target_asks_it(background):
    class Held(NullProgram):
        def step(self, batch, memory, *, output="logits", cancel=None):
            inside.set()
            assert go.wait(60)
            return super().step(batch, memory, output=output, cancel=cancel)

    inside, go, failed = threading.Event(), threading.Event(), []

    def close():
        try:
            draft.close()
        except Exception as error:
            failed.append(error)

    target, draft = core(prefix=False), core(program=Held(), prefix=False)
    drafter = (
        BackgroundDrafter(ModelDrafter(draft, SAME)) if background else ModelDrafter(draft, SAME)
    )
    made = request(target, [1, 2, 3], max_tokens=60)
    made.speculation = target.speculator.speculation(
        Candidates(drafter, 4, adaptive=False), made.session
    )
    target.submit(made)
    assert inside.wait(60)
    closing = threading.Thread(target=close)
    closing.start()
    closing.join(0.05)
    go.set()
    closing.join(60)
    assert not closing.is_alive() and not failed and draft.pool.pages_used == 0
    with pytest.raises(EngineError, match="engine: is closed"):
        made.result(60)
    assert list(target.submit(request(target, [7])).result(60).tokens) == solo([7])
    target.close()
    if background:
        drafter.close_thread()


@pytest.mark.parametrize("background", [False, True], ids=["on demand", "background"])
def test_a_request_begins_and_ends_without_the_drafts_locks(background):
    """Two engines may draft for each other, and one for itself: who holds one engine's lock waits
    for no other's.
    """
    target, draft = core(prefix=False), core(prefix=False)
    drafter = (
        BackgroundDrafter(ModelDrafter(draft, SAME)) if background else ModelDrafter(draft, SAME)
    )
    session = target.new_session([1, 2, 3])

    def begin_and_end():
        drafter.close(drafter.open(session), session)
        drafter.close(drafter.open(session), session)
        (drafter.inner if background else drafter).forget()

    with draft.step_lock, draft.lock:
        through = threading.Thread(target=begin_and_end, daemon=True)
        through.start()
        through.join(60)
        assert not through.is_alive()
    target.close()
    if background:
        drafter.close_thread()
    draft.close()


def test_a_line_that_is_drawn_while_its_request_ends_is_let_go_by_its_own_thread():
    class Held(NullProgram):
        def step(self, batch, memory, *, output="logits", cancel=None):
            inside.set()
            assert go.wait(60)
            return super().step(batch, memory, output=output, cancel=cancel)

    inside, go = threading.Event(), threading.Event()
    target, draft = core(prefix=False), core(program=Held(), prefix=False)
    inner = ModelDrafter(draft, SAME)
    drafter, session = BackgroundDrafter(inner), target.new_session([1, 2, 3])
    session.sampler = Sampler(SEEDED, VOCAB)
    state = drafter.open(session)
    drafter._begin(DraftRequest(session, state, 4))
    assert inside.wait(60)
    drafter.close(state, session)  # at once, though its step goes on
    assert inner.kept(session) is None
    go.set()
    while inner.kept(session) is None:
        time.sleep(0.001)
    assert inner.kept(session) is state.state
    drafter.close_thread()
    inner.forget()
    del state
    target.close()
    draft.close()
    assert draft.pool.pages_used == 0


def test_a_text_that_goes_on_meanwhile_has_the_draft_of_before():
    """Its candidates are those it would have had if they had been let go in time: the seed of a
    draft's own sampler is that of the first request, whatever seed a later one names.
    """

    class Held(NullProgram):
        def step(self, batch, memory, *, output="logits", cancel=None):
            inside.set()
            assert go.wait(60)
            return super().step(batch, memory, output=output, cancel=cancel)

    def own(session):
        return Sampler(SEEDED, VOCAB, seed=session.sampler.seed)

    def candidates(held):
        """Of the second request of a session, which begins while the first one's are drawn."""
        (go.clear if held else go.set)()
        inside.clear()
        session = target.new_session([1, 2, 3])
        session.sampler = Sampler(SEEDED, VOCAB, seed=7)
        state = drafter.open(session)
        drafter._begin(DraftRequest(session, state, 4))
        assert inside.wait(60)
        if not held:
            while state.working or not state.draft.tokens:
                time.sleep(0.001)
        drafter.close(state, session)
        session.tokens.append(4)
        session.sampler = Sampler(SEEDED, VOCAB, seed=8)
        session.sampler.accept(4)
        again = drafter.open(session)
        assert (again is state) == held and again.state is state.state
        go.set()
        found = drafter.propose([DraftRequest(session, again, 4)])[0].tokens
        drafter.close(again, session)
        drafter.wait_for_ended()
        assert inner.kept(session) is state.state
        return list(found)

    inside, go = threading.Event(), threading.Event()
    target, draft = core(prefix=False), core(program=Held(), prefix=False)
    inner = ModelDrafter(draft, SAME, own_sampler=own)
    drafter = BackgroundDrafter(inner)
    wanted = candidates(held=False)
    assert candidates(held=True) == wanted and len(wanted) == 4
    drafter.close_thread()
    inner.forget()
    target.close()
    draft.close()
    assert draft.pool.pages_used == 0


def test_a_line_that_fails_ends_its_own_request_alone():
    class Bad:
        def fork(self):
            return self

        def mask(self):
            raise ZeroDivisionError("of the grammar")

    target, draft = core(prefix=False), core(prefix=False)
    drafter, session = BackgroundDrafter(ModelDrafter(draft, SAME)), target.new_session([1, 2, 3])
    session.sampler, session.grammar = Sampler(SEEDED, VOCAB), Bad()
    ask = DraftRequest(session, drafter.open(session), 4)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="of the grammar"):
            drafter.propose([ask])
    assert list(run(target, drafter, [1, 2, 3], max_tokens=20).tokens) == solo([1, 2, 3], 20)
    target.close()
    drafter.close_thread()
    draft.close()
