"""Candidates of models with recurrent state: as targets, as drafts, with few spare slots, in steps
that are stopped, and in what follows a text that had some.
"""

import numpy as np
import pytest

import oxillama
from oxillama.engine.config import EngineConfig
from oxillama.engine.memory.states import SsmStatePool
from oxillama.errors import Exhausted
from oxillama.model import load_model
from oxillama.opening import core_over
from oxillama.sampling import Sampler, SamplerConfig
from oxillama.speculative.background import BackgroundDrafter
from oxillama.speculative.draft_model import ModelDrafter
from oxillama.speculative.grammar import ForcedText
from oxillama.speculative.planner import Planner
from oxillama.speculative.types import Candidates
from oxillama.speculative.vocabularies import Alignment
from tests.engine.null import request
from tests.model.invented import VOCAB, invent
from tests.speculative.drafting import Guesser

ARCHS = ("mamba", "qwen35", "rwkv7", "granitehybrid", "lfm2")
PROMPT = [int(token) for token in np.random.default_rng(8).integers(0, VOCAB, 30)]
SEEDED = SamplerConfig(temperature=0.8, seed=4)
SAME = Alignment(VOCAB, VOCAB)


@pytest.fixture(scope="module", params=ARCHS)
def model(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    return load_model(invent(path, request.param), num_threads=1)


@pytest.fixture
def engine(model):
    """Makes engines over the model, which end without pages and slots in use."""
    made = []

    def make(other=None, **more):
        core = core_over(other or model, EngineConfig(prefix_cache=False, **more))
        core.speculator = Planner(core)
        made.append(core)
        return core

    yield make
    for core in made:
        core.close()
        assert core.states is None or (core.states.used, core.states.spares_used) == (0, 0)


def asked(core, drafter=None, prompt=PROMPT, *, session=None, most=4, max_tokens=24, **more):
    """A submitted request of a session, with a drafter or without."""
    session = core.new_session() if session is None else session
    session.tokens.extend(prompt)
    session.start = len(session.tokens)
    session.sampler = Sampler(SEEDED, VOCAB)
    made = request(core, [], session=session, max_tokens=max_tokens, **more)
    if drafter is not None:
        made.speculation = core.speculator.speculation(
            Candidates(drafter, most, adaptive=False), session
        )
    return core.submit(made)


def ids(core, *args, **more):
    return list(asked(core, *args, **more).result(30).tokens)


@pytest.fixture
def plain(engine):
    """What a prompt goes on with."""
    core = engine()
    return lambda prompt, count=24: ids(core, None, prompt, max_tokens=count)


def test_a_text_with_candidates_can_be_continued_forked_and_cut(engine, plain):
    core, text = engine(), plain(PROMPT)
    session = core.keep(core.new_session())
    done = asked(core, Guesser([*PROMPT, *text]), session=session).result(30)
    assert list(done.tokens) == text and done.speculation.accepted and done.speculation.rejected
    assert core.states.spares_used == 0 and core.states.used == 1
    evaluated = core.metrics().tokens_prefilled_total
    fork = session.fork()
    assert ids(core, None, PROMPT[:3], session=session) == plain([*PROMPT, *text, *PROMPT[:3]])
    # nothing of it was evaluated again
    assert core.metrics().tokens_prefilled_total == evaluated + 4
    fork.truncate(len(PROMPT) + 10)
    assert ids(core, None, [5], session=fork) == plain([*PROMPT, *text[:10], 5])


def test_a_stored_prefix_that_candidates_wrote_is_hit(model, plain):
    text = plain(PROMPT)
    core = core_over(model, EngineConfig())
    core.speculator = Planner(core)
    assert ids(core, Guesser([*PROMPT, *text])) == text
    made = asked(core, None, [*PROMPT, *text, 7])
    assert list(made.result(30).tokens) == plain([*PROMPT, *text, 7])
    assert made.cached == len(PROMPT) + len(text) - 1
    core.close()


def test_a_stopped_step_is_done_again(engine, plain, monkeypatch):
    core, text, steps = engine(), plain(PROMPT), []
    program = core.program

    class Stopping:
        """Every fifth step is stopped as it begins, or after it wrote everything."""

        def __getattr__(self, name):
            return getattr(program, name)

        def step(self, batch, memory, *, output, cancel):
            steps.append(batch.rows)
            if len(steps) % 5 == 0:
                if len(steps) % 10:
                    program.step(batch, memory, output=output)
                cancel.set()
            return program.step(batch, memory, output=output, cancel=cancel)

    monkeypatch.setattr(core._loop, "program", Stopping())
    other = plain(PROMPT[3:])
    asks = [
        asked(core, Guesser([*PROMPT, *text], 0.9)),
        asked(core, Guesser([*PROMPT[3:], *other], 0.5), PROMPT[3:]),
    ]
    assert [list(each.result(30).tokens) for each in asks] == [text, other]
    assert len(steps) > 10 and max(steps[5:]) > 2


@pytest.mark.parametrize("spares", (0, 1, 3))
def test_few_spare_slots_are_few_candidates(engine, plain, spares):
    core, text = engine(), plain(PROMPT)
    core.states.spares = spares
    drafters = [Guesser([*PROMPT, *text], 0.9) for _ in range(3)]
    asks = [asked(core, drafter) for drafter in drafters]
    done = [each.result(30) for each in asks]
    assert [list(each.tokens) for each in done] == [text] * 3
    accepted = sum(each.speculation.accepted for each in done)
    assert accepted > 0 if spares else accepted == 0
    assert {most for drafter in drafters for most in drafter.counts} <= {*range(1, spares + 1)}
    if not spares:
        assert [each.speculation.n1_fallbacks for each in done] == [23] * 3


def test_spare_slots_are_bounded_by_their_bytes():
    class Memory:
        slot_bytes = 100

        def ensure_slots(self, n_slots):
            pass

    states = SsmStatePool(Memory(), spare_bytes=399)
    slots = [states.alloc(), *(states.alloc_spare() for _ in range(3))]
    with pytest.raises(Exhausted, match="all 3 are owned"):
        states.alloc_spare()
    assert (states.used, states.memory_bytes) == (4, 400)
    states.release_spares(slots[:3])  # whichever of them took the sequence's place
    states.release(slots[3])
    assert (states.used, states.spares_used) == (0, 0)


@pytest.mark.parametrize("background", (False, True), ids=("on demand", "background"))
@pytest.mark.parametrize("same", (True, False), ids=("same", "other"))
def test_a_draft_with_state_goes_back_without_running_anything_twice(
    engine, plain, model, tmp_path, same, background
):
    text = plain(PROMPT, 40)
    reader = model.reader if same else invent(tmp_path / "m.gguf", "mamba2")
    target, draft = engine(), engine(load_model(reader, num_threads=1))
    drafter = asked_drafter = ModelDrafter(draft, SAME)
    if background:
        asked_drafter = BackgroundDrafter(drafter)
    done = asked(target, asked_drafter, max_tokens=40).result(30)
    target.close()
    if background:
        asked_drafter.close_thread()
    stats = done.speculation
    assert list(done.tokens) == text
    if same:
        assert stats.accepted > 20 and stats.rejected == 0
    else:
        assert stats.rejected
    if not background:
        assert drafter.forwarded <= len(PROMPT) + 39 + stats.rejected
    drafter.forget()


def test_a_draft_follows_a_session_that_was_cut(engine, plain):
    target, draft = engine(), engine()
    drafter = ModelDrafter(draft, SAME)
    session = target.keep(target.new_session())
    text = ids(target, drafter, session=session)
    session.truncate(len(PROMPT) + 6)
    done = asked(target, drafter, [9, 8], session=session).result(30)
    assert list(done.tokens) == plain([*PROMPT, *text[:6], 9, 8])
    assert done.speculation.accepted > 10 and done.speculation.rejected == 0
    drafter.forget()


def test_drawn_candidates_of_a_draft_with_state_give_one_text_for_a_seed(engine):
    texts = set()
    for _ in range(2):
        target, draft = engine(), engine()
        drafter = ModelDrafter(draft, SAME, own_sampler=lambda _: Sampler(SEEDED, VOCAB, seed=7))
        done = asked(target, drafter).result(30)
        assert done.speculation.acceptance_rate == 1.0
        texts.add(done.tokens if isinstance(done.tokens, tuple) else tuple(done.tokens))
        drafter.forget()
    assert len(texts) == 1


MODELS = ("mamba", "jamba", "lfm2", "qwen3next")


@pytest.fixture(scope="module", params=MODELS)
def path(request, cases):
    return cases / "arch" / request.param / "f32.gguf"


def test_lookups_forced_text_and_the_models_own_layers_change_nothing(path):
    prompt = [int(token) for token in np.random.default_rng(3).integers(20, 250, 20)] * 3
    schema = {"type": "object", "properties": {"the_only_property": {"enum": ["one", "two"]}}}
    schema |= {"required": ["the_only_property"], "additionalProperties": False}
    with oxillama.load(path, num_threads=1) as engine:
        forced = Candidates(ForcedText(engine.tokenizer.vocab_bytes()), adaptive=False)
        for more in (dict(), dict(json_schema=schema)):
            sampler = SamplerConfig(temperature=0.7, seed=3)
            expected, *found = (
                engine.submit(
                    prompt, max_tokens=40, sampler=sampler, speculative=asked, **more
                ).result(30)
                for asked in (False, None, "auto", "lookup", "early_exit:1", forced)
            )
            assert [each.tokens for each in found] == [expected.tokens] * 5
            assert not more or found[-1].speculation.accepted
        assert engine.metrics().pages_leaked == 0
