"""A second model as a drafter: equal models agree always, other models never change a token, and
neither runs anything twice.
"""

import threading
import time
from collections import Counter

import numpy as np
import pytest

from oxillama.engine.scheduler import SchedulerConfig
from oxillama.errors import ConfigError
from oxillama.sampling import Sampler, SamplerConfig
from oxillama.speculative.background import BackgroundDrafter
from oxillama.speculative.costs import StepCosts
from oxillama.speculative.draft_model import CATCH_UP, ModelDrafter
from oxillama.speculative.types import Candidates
from oxillama.speculative.vocabularies import align
from tests.engine.null import VOCAB, NullProgram, core, hashed, request, solo
from tests.speculative.drafting import SAME, SEEDED, Other, run, submitted

CHAIN = SamplerConfig(
    temperature=0.8,
    top_p=0.9,
    repetition_penalty=1.3,
    presence_penalty=0.2,
    xtc_probability=0.3,
    seed=7,
)


def own(config, seed=99):
    """A drafter's own sampler."""
    return lambda session: Sampler(config, VOCAB, seed=seed)


@pytest.mark.parametrize("sampler", [None, SEEDED, CHAIN], ids=["greedy", "seeded", "chain"])
@pytest.mark.parametrize("program", [NullProgram, Other])
def test_tokens_are_those_without_a_draft(sampler, program):
    target, draft = core(prefix=False), core(program=program(), prefix=False)
    done = run(target, ModelDrafter(draft, SAME), [1, 2, 3], max_tokens=60, sampler=sampler)
    assert list(done.tokens) == solo([1, 2, 3], 60, sampler)
    assert (
        done.speculation.acceptance_rate == 1.0
        if program is NullProgram
        else 0 < done.speculation.acceptance_rate < 1
    )
    target.close()
    draft.close()
    assert draft.pool.pages_used == 0


@pytest.mark.parametrize("sampler", [SEEDED, CHAIN], ids=["seeded", "chain"])
def test_a_draft_that_is_the_target_always_stands_by_its_own_sampler_too(sampler):
    target, draft = core(prefix=False), core(prefix=False)
    done = run(
        target,
        ModelDrafter(draft, SAME, own_sampler=own(sampler.replace(xtc_probability=0.0))),
        [1, 2, 3],
        max_tokens=61,
        sampler=sampler.replace(xtc_probability=0.0),
    )
    assert done.speculation.acceptance_rate == 1.0 and done.speculation.accepted == 48
    target.close()
    draft.close()


class Counted(Other):
    """The same; `texts` counts how often each text was evaluated, as its pages hold it. right:
    agrees with the null program always.
    """

    def __init__(self, *, right: bool = False) -> None:
        super().__init__()
        self.texts, self.right = Counter(), right

    def step(self, batch, memory, *, output="logits", cancel=None):
        out = (NullProgram if self.right else Other).step(
            self, batch, memory, output=output, cancel=cancel
        )
        size = memory.page_size
        for row, position in enumerate(batch.positions.tolist()):
            table = batch.tables[batch.row_table[row]]
            self.texts[
                tuple(int(memory.pages[table[at // size]][at % size]) for at in range(position + 1))
            ] += 1
        return out


@pytest.mark.parametrize("background", [False, True], ids=["on demand", "background"])
@pytest.mark.parametrize("sampler", [None, SEEDED], ids=["found", "drawn"])
def test_nothing_is_run_twice_by_target_or_draft(sampler, background):
    theirs, mine = Counted(right=True), Counted()
    target, draft = core(program=theirs, prefix=False), core(program=mine, prefix=False)
    drafter = ModelDrafter(draft, SAME, own_sampler=None if sampler is None else own(sampler))
    asked = BackgroundDrafter(drafter) if background else drafter
    done = run(target, asked, list(range(30)), max_tokens=80, sampler=SEEDED)
    target.close()
    if background:
        asked.close_thread()  # it may have been in a step
    draft.close()
    stats = done.speculation
    assert stats.rejected and stats.accepted and theirs.evaluated == 30 + 79 + stats.rejected
    assert set(theirs.texts.values()) == set(mine.texts.values()) == {1}
    assert drafter.forwarded == mine.evaluated == sum(mine.texts.values())
    assert background or drafter.forwarded <= 30 + 79 + stats.rejected


@pytest.mark.parametrize("most", [1, 2, 4])
def test_the_same_seed_gives_the_same_text_whatever_shares_the_steps(most):
    def tokens(companions, **limits):
        target, draft = core(prefix=False, **limits), core(program=Other(), prefix=False)
        drafter = ModelDrafter(draft, SAME, own_sampler=own(SEEDED))
        with target.step_lock:  # no step before all of them are there
            beside = [
                target.submit(request(target, [at, 9], max_tokens=50)) for at in range(companions)
            ]
            job = submitted(target, drafter, [1, 2, 3], most=most, max_tokens=60, sampler=CHAIN)
        done = job.result(60)
        for each in beside:
            each.result(60)
        found = target.metrics()
        target.close()
        draft.close()
        return done.tokens, found.requests_preempted_total, found.steps_total

    alone, _, steps = tokens(0)
    assert tokens(6)[0] == alone
    crowded, preempted, _ = tokens(3, max_pages=9)
    assert crowded == alone and preempted
    # candidates that no step has a row for are judged one by one
    narrow = SchedulerConfig(max_batch_tokens=1)
    single, _, more = tokens(0, scheduler=narrow)
    assert single == alone and more > steps
    # the law is the target's own, the text another draw from it
    assert alone != tuple(solo([1, 2, 3], 60, CHAIN))


@pytest.mark.parametrize("length", [20, CATCH_UP + 44])
@pytest.mark.parametrize("happens", ["others", "lost"])
def test_a_session_goes_on_with_its_text_whatever_ran_between_and_whatever_pages_the_draft_lost(
    happens, length
):
    def texts(happens=""):
        target, draft = core(prefix=False), core(program=Other(), prefix=False)
        drafter = ModelDrafter(draft, SAME, own_sampler=own(SEEDED))
        session, out = target.keep(target.new_session()), []
        session.extend([at % VOCAB for at in range(length)])
        for turn in range(3):
            if happens == "others" and turn:
                for prompt in ([4, 4], [5, 6, 7]):
                    run(target, drafter, prompt, max_tokens=5, sampler=CHAIN)
            if happens == "lost" and turn:
                drafter.kept(session).session.kv.release()
            if turn == 2:  # another answer, to more tokens
                session.extend([1, 2, 3])
            more = dict(session=session, max_tokens=12, sampler=CHAIN)
            done = run(target, drafter, [], **more)
            out.append((done.tokens, done.speculation.accepted))
        target.close()
        draft.close()
        return out

    wanted = texts()
    assert sum(accepted for _, accepted in wanted) > 5
    assert texts(happens) == wanted


def test_drawn_candidates_leave_the_targets_own_law():
    """Chi-square over the engine itself: second tokens after one prompt, whose candidates come from
    another distribution.
    """
    config = SamplerConfig(temperature=1.0, top_k=6)
    target, draft = core(prefix=False), core(program=Other(), prefix=False)
    shape = Sampler(config, VOCAB, seed=1)
    wanted = np.zeros(VOCAB)
    first = shape.distribution(hashed([5], VOCAB))
    for token, share in zip(first.ids, first.shares):
        second = shape.distribution(hashed([5, int(token)], VOCAB))
        wanted[second.ids] += share * second.shares
    counts, draws = np.zeros(VOCAB), 1500
    seeds = iter(np.random.default_rng(5).integers(1, 2**63, 2 * draws).tolist())
    drafter = ModelDrafter(
        draft, SAME, own_sampler=lambda session: Sampler(config, VOCAB, seed=next(seeds))
    )
    jobs = []
    for _ in range(draws):
        made = request(target, [5], max_tokens=3, sampler=config.replace(seed=next(seeds)))
        made.speculation = target.speculator.speculation(
            Candidates(drafter, 2, adaptive=False), made.session
        )
        jobs.append(target.submit(made))
    for job in jobs:
        counts[job.result(30).tokens[1]] += 1
    assert not counts[wanted == 0].any()
    live = wanted * draws > 5
    statistic = ((counts[live] - wanted[live] * draws) ** 2 / (wanted[live] * draws)).sum()
    freedom = int(live.sum()) - 1
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 4.7534 * np.sqrt(2 / (9 * freedom))) ** 3
    target.close()
    draft.close()


class Slow(Other):
    """The same, and now and then a step takes its time; `threads` that ran steps."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every, self.count, self.threads = every, 0, set()

    def step(self, batch, memory, *, output="logits", cancel=None):
        self.count += 1
        self.threads.add(threading.current_thread().name)
        if self.every and self.count % self.every == 0:
            time.sleep(0.002)
        return super().step(batch, memory, output=output, cancel=cancel)


@pytest.mark.parametrize(
    "config",
    [SEEDED, CHAIN.replace(temperature=1.2), SamplerConfig.mirostat_v2()],
    ids=["seeded", "chain", "mirostat"],
)
def test_background_drafting_by_its_own_sampler_gives_the_text_of_the_seed_at_any_speed(
    config,
):
    def drafted(every_target, every_draft, companions=0):
        program = Slow(every_draft)
        target, draft = (
            core(program=Slow(every_target), prefix=False),
            core(program=program, prefix=False),
        )
        background = BackgroundDrafter(ModelDrafter(draft, SAME, own_sampler=own(config)))
        beside = [
            target.submit(request(target, [at, 9], max_tokens=50)) for at in range(companions)
        ]
        done = run(target, background, [1, 2, 3], max_tokens=60, sampler=CHAIN, most=3)
        for each in beside:
            each.result(60)
        target.close()
        background.close_thread()
        draft.close()
        assert (
            program.threads == {"oxillama draft"}
            and background.stale
            and draft.pool.pages_used == 0
        )
        return done.tokens, done.speculation.accepted, done.speculation.rejected

    wanted = drafted(0, 0)
    assert wanted[1] > 10 and wanted[2] > 5
    assert {drafted(*delays) for delays in ((1, 0), (0, 1), (3, 2), (2, 5), (0, 0, 4))} == {wanted}


@pytest.mark.parametrize("background", [False, True], ids=["on demand", "background"])
def test_texts_of_several_drafted_tokens_follow_the_targets_own_law(background):
    """Chi-square over the engine itself: four tokens after one prompt, lines of candidates going on
    after whole acceptance and falling stale.
    """
    config, draws = SamplerConfig(temperature=1.0, top_k=2, top_p=1.0, min_p=0.0), 2000
    shape, wanted = Sampler(config, VOCAB, seed=1), {(): 1.0}
    for _ in range(4):
        after = {text: shape.distribution(hashed([5, *text], VOCAB)) for text in wanted}
        wanted = {
            (*text, int(token)): wanted[text] * share
            for text, found in after.items()
            for token, share in zip(found.ids, found.shares)
        }
    target, draft = core(prefix=False), core(prefix=False)
    seeds = iter(np.random.default_rng(6).integers(1, 2**63, 2 * draws).tolist())
    # the candidates' own law is another
    warm = config.replace(temperature=8.0, top_k=3)
    drafter = ModelDrafter(
        draft, SAME, own_sampler=lambda session: Sampler(warm, VOCAB, seed=next(seeds))
    )
    drafter = BackgroundDrafter(drafter) if background else drafter
    jobs, counts = [], dict.fromkeys(wanted, 0)
    for _ in range(draws):
        made = request(target, [5], max_tokens=6, sampler=config.replace(seed=next(seeds)))
        made.speculation = target.speculator.speculation(
            Candidates(drafter, 1, adaptive=False), made.session
        )
        jobs.append(target.submit(made))
    stood = fell = 0
    for job in jobs:
        done = job.result(60)
        counts[done.tokens[:4]] += 1
        stood, fell = stood + done.speculation.accepted, fell + done.speculation.rejected
    assert stood > draws / 2 and fell > draws / 2
    seen, hoped = np.array(list(counts.values())), np.array(list(wanted.values())) * draws
    freedom = len(hoped) - 1
    assert hoped.min() > 50 and freedom == 15
    assert ((seen - hoped) ** 2 / hoped).sum() < freedom * (
        1 - 2 / (9 * freedom) + 4.7534 * np.sqrt(2 / (9 * freedom))
    ) ** 3
    target.close()
    if background:
        drafter.close_thread()
    draft.close()


def test_a_draft_that_never_pays_is_asked_rarely():
    class Never(NullProgram):
        def step(self, batch, memory, *, output="logits", cancel=None):
            return -super().step(batch, memory, output=output, cancel=cancel)

    target, draft = core(prefix=False), core(program=Never(), prefix=False, context_size=400)
    drafter = ModelDrafter(draft, SAME)
    drafter._round = 0.2  # of a step of the target
    done = run(target, drafter, [1, 2, 3], max_tokens=390, costs=StepCosts({1: 1.0, 17: 2.0}))
    assert list(done.tokens) == solo([1, 2, 3], 390)
    assert done.speculation.rejected < 25 and done.speculation.n1_fallbacks > 370
    target.close()
    draft.close()


@pytest.mark.parametrize("background", [False, True], ids=["on demand", "background"])
def test_a_long_prompt_is_caught_up_with_in_parts(background):
    target, draft = core(prefix=False, context_size=1000), core(prefix=False, context_size=1000)
    prompt = [at % VOCAB for at in range(700)]
    drafter = (
        BackgroundDrafter(ModelDrafter(draft, SAME)) if background else ModelDrafter(draft, SAME)
    )
    done = run(target, drafter, prompt, max_tokens=40)
    assert list(done.tokens) == solo(prompt, 40)
    assert max(draft.program.rows) == 256 and done.speculation.accepted > 25
    target.close()
    if background:
        drafter.close_thread()
    draft.close()


def test_a_long_prompt_leaves_the_text_of_a_seed_alone_whatever_takes_how_long():
    def drafted(every_target, every_draft):
        target, draft = (
            core(program=Slow(every_target), prefix=False, context_size=1000),
            core(program=Slow(every_draft), prefix=False, context_size=1000),
        )
        background = BackgroundDrafter(ModelDrafter(draft, SAME, own_sampler=own(SEEDED)))
        done = run(
            target,
            background,
            [at % VOCAB for at in range(700)],
            max_tokens=40,
            sampler=CHAIN,
            most=3,
        )
        target.close()
        background.close_thread()
        draft.close()
        return (
            done.tokens,
            done.speculation.accepted,
            done.speculation.rejected,
            done.speculation.n1_fallbacks,
        )

    wanted = drafted(0, 0)
    # after 512 rows of the prompt there are candidates
    assert wanted[1] and wanted[2] and wanted[3] == 2
    assert {drafted(*delays) for delays in ((1, 0), (0, 1), (3, 2))} == {wanted}


@pytest.mark.parametrize("background", [False, True], ids=["on demand", "background"])
def test_a_text_of_a_seed_does_not_depend_on_what_a_step_of_the_draft_holds(background):
    texts = set()
    for rows in (8, 100, 512):
        program = NullProgram()
        program.max_rows = rows
        target = core(prefix=False, context_size=1000)
        draft = core(program=program, prefix=False, context_size=1000)
        drafter = inner = ModelDrafter(draft, SAME, own_sampler=own(SEEDED))
        if background:
            drafter = BackgroundDrafter(inner)
        done = run(target, drafter, [at % VOCAB for at in range(300)], max_tokens=20, sampler=CHAIN)
        texts.add((done.tokens, done.speculation.accepted, done.speculation.rejected))
        assert max(program.rows) == min(rows, 256)
        target.close()
        if background:
            drafter.close_thread()
        draft.close()
    assert len(texts) == 1


def test_a_draft_without_pages_leaves_the_target_alone():
    target, draft = core(prefix=False), core(prefix=False, max_pages=1)
    done = run(target, ModelDrafter(draft, SAME), [1, 2, 3], max_tokens=60)
    assert list(done.tokens) == solo([1, 2, 3], 60)
    assert 0 < done.speculation.accepted < 15 and done.speculation.n1_fallbacks > 30
    target.close()
    draft.close()


def test_vocabularies_are_equal_or_mapped_or_refused():
    target = [(b"<s>", True), (b"a", False), (b"b", False)]
    same = align(target, target, target_rows=4, draft_rows=3)
    assert not same.mapped and same.row(np.arange(3, dtype=np.float32)).tolist() == [
        0,
        1,
        2,
        -np.inf,
    ]
    mapped = align(
        target,
        [(b"b", False), (b"x", False), (b"a", False), (b"<s>", True)],
        target_rows=3,
        draft_rows=4,
    )
    assert mapped.mapped and mapped.ids([0, 1, 2]).tolist() == [3, 2, 0]
    assert mapped.row(np.array([10, 11, 12, 13], np.float32)).tolist() == [13, 12, 10]
    with pytest.raises(
        ConfigError, match=r"lacks 2 of the target's 3 tokens, the first being 0 b'<s>'"
    ):
        align(target, [(b"<s>", False), (b"a", False)], target_rows=3, draft_rows=2)
