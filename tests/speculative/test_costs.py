"""What steps cost is learned from the steps themselves, and speculation that does not pay rests."""

import pytest

import oxillama
from oxillama import SamplerConfig
from oxillama.speculative.costs import CostLedger, StepCosts
from tests.model import tiny

GREEDY = SamplerConfig.greedy()


def test_costs_are_lines_between_measured_points():
    costs = StepCosts({1: 1.0, 3: 2.0, 5: 2.0})
    assert [costs(rows) for rows in (1, 2, 3, 4, 5, 9)] == [1.0, 1.5, 2.0, 2.0, 2.0, 2.0]


def test_with_one_point_each_further_row_is_a_tenth():
    assert [round(StepCosts({2: 2.0})(rows), 6) for rows in (2, 3, 7)] == [2.0, 2.2, 3.0]


def test_the_first_steps_of_a_number_of_rows_change_the_estimate_most():
    costs = StepCosts({1: 1.0})
    costs.observe(3, 2.0)  # 1.2 before it was measured
    assert costs(3) == 1.6 and abs(costs(5) - 2.2) < 1e-12
    costs.observe(3, 2.2)
    assert abs(costs(3) - 1.8) < 1e-12
    for _ in range(200):
        costs.observe(3, 2.0)
    assert abs(costs(3) - 2.0) < 1e-6


def test_a_step_that_was_held_up_counts_as_twice_its_estimate():
    costs = StepCosts({1: 1.0})
    costs.observe(2, 100.0)
    assert abs(costs(2) - 1.5 * 1.1) < 1e-12
    costs.observe(1, 100.0)
    assert costs(1) == 1.5


def test_no_step_takes_longer_than_one_of_more_rows_did():
    costs = StepCosts({1: 1.0, 2: 3.0, 5: 1.8})
    assert [costs(rows) for rows in (1, 2, 5)] == [1.0, 1.8, 1.8]


def test_a_point_that_is_not_measured_for_long_is_doubted():
    costs = StepCosts({1: 1.0, 2: 3.1})
    for _ in range(320):
        costs.record(1, 1, 1.0)
    assert abs(costs(2) - 2.1) < 1e-9  # half-way to 1.1
    costs.record(1, 2, 3.1)
    assert abs(costs(2) - 2.6) < 1e-9


def test_steps_with_candidates_are_learned_from_once_a_plain_one_was():
    costs = StepCosts()
    costs.record(1, 3, 5.0)
    assert not costs
    costs.record(1, 1, 1.0)
    costs.record(1, 3, 1.6)
    assert costs and costs(1) == 1.0 and costs(3) == 1.4


def test_plain_steps_change_every_estimate_in_proportion():
    costs = StepCosts({1: 1.0, 3: 2.0})
    for _ in range(200):
        costs.scale(1, 2.0)
    assert abs(costs(1) - 2.0) < 1e-6 and abs(costs(3) - 4.0) < 1e-6


def test_as_many_candidates_as_pay_are_brought():
    cheap, dear = StepCosts({1: 1.0, 17: 1.16}), StepCosts({1: 1.0, 17: 17.0})
    assert cheap.best([1.0] * 8) == 8
    # a sixth would add 1/64 of a token for a hundredth of a step
    assert cheap.best([0.5] * 8) == 5
    assert cheap.best([0.01] * 8) == 0 and dear.best([0.99] * 8) == 0
    # a draft that costs as much as the target
    assert cheap.best([0.9] * 8, each=1.0) == 0
    # one that costs as much however many it draws
    assert cheap.best([0.9] * 8, once=1.0) == 8 and cheap.best([0.9] * 8, once=6.0) == 0
    assert StepCosts({1: 1.0, 2: 1.04, 3: 3.0}).best([1.0, 1.0]) == 1


@pytest.mark.parametrize("extra", [0.01, 0.5, 3.0, 40.0])
def test_falling_back_costs_half_a_hundredth_whatever_a_trial_costs(extra):
    """Plain steps take 1.0; every time that the ledger allows, a trial costs `extra` more."""
    ledger, steps, lost = CostLedger(), 0, 0.0
    while steps < 20_000:
        rest = ledger.enter(extra, 1.0, candidates=True)
        lost += extra
        steps += 1 + rest
    assert lost <= 0.0051 * steps + extra + 1.0


def test_a_gain_is_never_rested_and_pays_for_later_losses():
    ledger = CostLedger()
    assert not any(ledger.enter(-0.5, 1.0, candidates=True) for _ in range(100))
    assert [ledger.enter(1.0, 1.0, candidates=True) for _ in range(9)] == [0] * 9
    assert ledger.enter(1.0, 1.0, candidates=True) > 50


def test_a_trial_that_will_lose_is_afforded_by_the_plain_steps_before_it():
    ledger = CostLedger()
    assert not ledger.affords(0.5, 1.0)
    for _ in range(99):
        ledger.enter(0.0, 1.0, candidates=False)
    assert not ledger.affords(0.5, 1.0)
    ledger.enter(0.0, 1.0, candidates=False)
    assert ledger.affords(0.5, 1.0)
    ledger.enter(0.5, 1.0, candidates=True)
    assert not ledger.affords(0.5, 1.0)


def test_no_step_is_run_to_measure(tmp_path):
    """A request takes as many steps as it has tokens and candidates allow, the first one too."""
    tiny.write(tmp_path / "m.gguf", "llama")
    with oxillama.load(tmp_path / "m.gguf", num_threads=1) as engine:
        core = engine.loaded.core
        ran, step = [], core.program.step

        class Program:
            max_rows, vocab_size, representative = (
                core.program.max_rows,
                core.program.vocab_size,
                True,
            )

            def step(self, *args, **options):
                ran.append(1)
                return step(*args, **options)

        core._loop.program = Program()
        done = engine.generate([1, 2, 3], speculative="lookup", sampler=GREEDY, max_tokens=20)
        assert len(ran) == core.counters.steps
        assert len(ran) == len(done.tokens) - done.speculation.accepted


def test_what_one_request_learned_serves_the_next(tmp_path):
    tiny.write(tmp_path / "m.gguf", "llama")
    with oxillama.load(tmp_path / "m.gguf", num_threads=1) as engine:
        planner = engine.loaded.core.speculator
        engine.generate([1, 2, 3], speculative="lookup", sampler=GREEDY, max_tokens=20)
        costs = planner.costs
        assert costs is not None and costs(1) > 0
        engine.generate([4, 5], speculative="lookup", sampler=GREEDY, max_tokens=20)
        assert planner.costs is costs
