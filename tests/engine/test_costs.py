"""What steps cost is measured as far as somebody may use it, and no further."""

import pytest

import oxillama
from oxillama import SamplerConfig
from oxillama.engine.costs import StepCosts, measured
from oxillama.engine.drafting import ModelDrafter
from oxillama.engine.lookup import LookupDrafter
from oxillama.engine.speculation import Candidates
from oxillama.engine.vocabularies import Alignment
from tests.model import tiny

GREEDY = SamplerConfig.greedy()


@pytest.fixture
def engine(tmp_path):
    tiny.write(tmp_path / "m.gguf", "llama")
    with oxillama.load(tmp_path / "m.gguf", num_threads=1) as engine:
        yield engine


@pytest.fixture
def rows(monkeypatch) -> list[int]:
    """Rows of each step that is run to be measured."""
    found: list[int] = []
    plain = StepCosts.measure.__func__

    def measure(cls, step, most, **known):
        def counted(rows):
            found.append(rows)
            step(rows)

        return plain(cls, counted, most, **known)

    monkeypatch.setattr(StepCosts, "measure", classmethod(measure))
    return found


def test_a_request_measures_as_many_rows_as_it_may_use(engine, rows):
    def run(most, **options):
        rows.clear()
        engine.generate(
            [1, 2, 3], speculative=Candidates(LookupDrafter(), most), sampler=GREEDY, **options
        )
        return list(rows)

    # nothing comes after the first token
    assert run(9, max_tokens=1) == []
    assert run(9, max_tokens=3) == [1, 1, 2]  # one candidate at most
    assert run(4, max_tokens=20) == [1, 3, 5]  # a warm-up, and what was not known
    assert run(4, max_tokens=20) == [] and run(2, max_tokens=20) == []
    # the next point: rows do not grow one by one
    assert run(5, max_tokens=20) == [1, 9]
    assert run(16, max_tokens=20) == [1, 17] and run(40, max_tokens=50) == []


def test_a_first_request_of_four_candidates_runs_eleven_rows_and_a_warm_up(engine, rows):
    engine.generate(
        [1, 2, 3], speculative=Candidates(LookupDrafter(), 4), sampler=GREEDY, max_tokens=20
    )
    assert rows == [1, 1, 2, 3, 5] and engine._loaded.core._harvest.costs.measured == 5


def test_a_draft_model_is_measured_by_the_sequences_it_drafts_for(engine, rows, tmp_path):
    with oxillama.load(tmp_path / "m.gguf", num_threads=1) as draft:
        drafter = ModelDrafter(draft._loaded.core, Alignment(tiny.VOCAB, tiny.VOCAB))
        engine.generate(
            [1, 2, 3], speculative=Candidates(drafter, 4), sampler=GREEDY, max_tokens=20
        )
        assert rows == [1, 1, 2, 3, 5, 1, 1]  # the target's, then the draft's


def test_what_was_measured_and_refined_is_kept_where_more_is_wanted(engine):
    core = engine._loaded.core
    known = StepCosts({1: 1.0, 2: 1.5, 3: 2.0})
    known.observe(2, 2.0)
    more = measured(core, 4, known)
    assert (
        more.measured == 5
        and [more(rows) for rows in (1, 2, 3)] == [1.0, known(2), 2.0]
        and more(5) < 1.0
    )
    assert measured(core, 3, known) is known and core.pool.pages_used == 0
    # what is assumed is not kept
    assert measured(core, 2, StepCosts.assumed(100.0))(1) < 100.0


def test_pages_that_are_measured_over_are_known_and_given_back(engine, monkeypatch):
    core, leaked = engine._loaded.core, []
    step = core.program.step

    class Program:
        max_rows, vocab_size = core.program.max_rows, core.program.vocab_size

        def step(self, *args, **options):
            leaked.append((core.metrics().pages_leaked, core.pool.pages_used))
            return step(*args, **options)

    monkeypatch.setattr(core, "_program", Program())
    measured(core, 3)
    assert (leaked, core.pool.pages_used, core.metrics().pages_leaked) == (
        [(0, 1)] * len(leaked),
        0,
        0,
    ) and len(leaked) == 4
