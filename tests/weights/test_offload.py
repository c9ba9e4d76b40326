"""What stays in memory of a model within a budget, and how policies are said."""

import pytest

from oxillama.errors import ConfigError
from oxillama.weights.offload import Budget, PinnedHotSet, parse_policy, parse_size
from oxillama.weights.pager import MOST_RING, RING_SHARE, PagedUnit, PagedWeight, plan_pages

MB = 1 << 20


def weight(name, rows, columns=1024):
    return PagedWeight((name, 0, rows), "Q8_0", rows, columns, 0, 0, columns // 32 * 34)


def model(layers=10, rows=4096):
    """Layers of two ops of 4.25 MiB (in panels) each, and a head of four times that."""
    units = [
        PagedUnit((weight(f"blk.{layer}.{name}", rows),), layer=layer)
        for layer in range(layers)
        for name in ("up", "down")
    ]
    return [*units, PagedUnit((weight("output", 4 * rows),), head=True)]


def total(units):
    return sum(unit.nbytes for unit in units)


def kept(units, plan):
    """Bytes that a plan takes."""
    dense = sum(units[i].nbytes for i in plan.pinned)
    experts = sum(slots * unit.expert_bytes for slots, unit in zip(plan.slots, units))
    return dense + experts + plan.ring_bytes + plan.readers * plan.read_bytes


@pytest.mark.parametrize("share", (0.3, 0.5, 0.8, 0.97))
def test_budget_is_filled_and_not_exceeded(share):
    units = model()
    budget = int(share * total(units))
    plan = plan_pages(units, Budget(budget), 0)
    assert kept(units, plan) <= budget
    left = budget - kept(units, plan)
    assert all(unit.nbytes > left for i, unit in enumerate(units) if i not in plan.pinned)


def test_pinned_units_are_spread_over_the_tape():
    units = model(layers=20)
    plan = plan_pages(units, Budget(total(units) // 2), 0)
    pinned = [i in plan.pinned for i in range(40)]
    for start in range(0, 40, 8):  # every stretch has both
        assert 0 < sum(pinned[start : start + 8]) < 8


def test_read_ahead_is_a_share_of_the_budget():
    units = model(layers=100)
    assert plan_pages(units, Budget(256 * MB), 0).ring_bytes == 256 * MB // RING_SHARE
    units = model(layers=1000)
    assert plan_pages(units, Budget(4096 * MB), 0).ring_bytes == MOST_RING


def test_everything_dense_is_pinned_before_experts_get_more_than_the_least():
    dense = PagedUnit((weight("a", 4096),), layer=0)
    experts = PagedUnit((weight("e", 64 * 256),), experts=64, layer=0)
    tight = plan_pages([dense, experts], Budget(dense.nbytes + 4 * experts.expert_bytes), 0)
    assert tight.pinned == {0} and tight.ring_bytes == 0
    assert 2 <= tight.slots[1] <= 4
    wide = plan_pages([dense, experts], Budget(dense.nbytes + 40 * experts.expert_bytes), 0)
    assert 30 < wide.slots[1] <= 40


def test_a_stack_without_a_router_is_kept_whole():
    heads = PagedUnit((weight("k_b", 16 * 64),), experts=16, layer=0, chosen=False)
    plan = plan_pages([heads, *model()], Budget(40 * MB), 0)
    assert plan.slots[0] == 16


def test_hot_set_stays():
    units = model()
    policy = PinnedHotSet(48 * MB, pin_last_n_layers=2, prefetch_n_ahead=1)
    plan = plan_pages(units, policy, MB)
    assert plan.fixed == {16, 17, 18, 19, 20}
    assert plan.fixed <= plan.pinned
    assert plan.ring_bytes == units[0].nbytes + units[1].nbytes
    assert kept(units, plan) + MB <= 48 * MB


@pytest.mark.parametrize(
    "policy",
    (Budget(64 << 10), PinnedHotSet(16 * MB), PinnedHotSet(40 * MB, pin_last_n_layers=9)),
)
def test_what_cannot_be_held_is_refused_with_the_least_that_can(policy):
    with pytest.raises(ConfigError, match=r"ram_bytes: found \d+, wanted at least \d+") as caught:
        plan_pages(model(), policy, 0)
    assert str(policy.ram_bytes) in str(caught.value)


@pytest.mark.parametrize(
    ("make", "named"),
    (
        (lambda: Budget(0), "ram_bytes"),
        (lambda: Budget(True), "ram_bytes"),
        (lambda: Budget(1.5), "ram_bytes"),
        (lambda: Budget(1, source="disk"), "source"),
        (lambda: PinnedHotSet(1, pin_last_n_layers=-1), "pin_last_n_layers"),
        (lambda: PinnedHotSet(1, prefetch_n_ahead=None), "prefetch_n_ahead"),
        (lambda: PinnedHotSet(1, pin_embeddings=1), "pin_embeddings"),
    ),
)
def test_bad_fields_are_named(make, named):
    with pytest.raises(ConfigError, match=named):
        make()


@pytest.mark.parametrize(
    ("text", "size"),
    (("6G", 6 << 30), ("512MiB", 512 << 20), ("1.5 GB", 3 << 29), ("4096", 4096), ("7b", 7)),
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ("", "G", "-1G", "6X", "1e9"))
def test_bad_sizes(text):
    with pytest.raises(ConfigError, match="--ram-budget"):
        parse_size(text)


def test_policies_of_the_command_line():
    assert parse_policy(None, None) is None
    assert parse_policy("none", None) is None
    assert parse_policy(None, 5) == parse_policy("budget", 5) == Budget(5)
    assert parse_policy("pinned", 5) == PinnedHotSet(5)
    assert parse_policy("pinned:head,layers=4,ahead=2", 5) == PinnedHotSet(
        5, pin_embeddings=False, pin_last_n_layers=4, prefetch_n_ahead=2
    )


@pytest.mark.parametrize(
    ("text", "size"),
    (
        ("budget", None),
        ("none", 5),
        ("half", 5),
        ("pinned:tail", 5),
        ("pinned:layers", 5),
        ("budget:head", 5),
    ),
)
def test_bad_policies_of_the_command_line(text, size):
    with pytest.raises(ConfigError, match="--offload"):
        parse_policy(text, size)
