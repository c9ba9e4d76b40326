"""Every compiled stage equals its numpy definition, alone and in random chains, on rows of every
size and shape.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama._core.candidates import instruction_sets, use_instruction_set
from oxillama._core.sampler import SamplerCore
from oxillama._core.stages import stage_table
from oxillama._core.xorshift import Xorshift64
from oxillama.sampling import REORDERABLE, STAGES, SamplerStage
from oxillama.sampling.chain import compile_stages
from tests.reference import sampling_oracle as oracle

SIZES = (1, 2, 3, 17, 64, 511, 512, 513, 1500, 5000)


def rows(seed, size, shape):
    rng = np.random.default_rng(seed)
    x = (
        rng.standard_normal(size)
        * {"flat": 0.01, "usual": 3.0, "peaked": 12.0, "ties": 2.0, "holes": 3.0, "wide": 3.0}[
            shape
        ]
    )
    if shape == "ties":
        x = np.round(x)
    if shape == "holes":
        x[rng.random(size) < 0.7] = -np.inf
        x[rng.integers(size)] = 1.5
    if shape == "wide":
        x = x * 10.0 ** rng.integers(-3, 30)
    return x.astype(np.float32)


def run(stages, logits, *, history=(), seed=5, mask=None, **lists):
    core = SamplerCore(compile_stages(stages, len(logits), **lists), Xorshift64(seed).raw_state())
    core.accept_prompt(np.array(history, np.int32))
    token = core.sample(logits, mask, len(logits))
    _, own, ids, values = core.last
    return token, own, np.array(ids), np.array(values)


def same(got, want, name=""):
    """Equal survivors in equal order, and log-probabilities equal to 1e-9 of their size."""
    _, _, ids, values = got
    assert ids.tolist() == want[0].tolist(), name
    with np.errstate(divide="ignore"):
        logp = want[1] - want[1].max()
        logp = logp - np.log(np.exp(logp).sum())
    np.testing.assert_allclose(values, logp, rtol=1e-9, atol=1e-9)


stage_numbers = {
    "top_n_sigma": st.tuples(st.floats(0.01, 5)),
    "top_k": st.tuples(st.sampled_from([1, 2, 3, 10, 40, 100, 512, 600, 1024, 1025, 3000, 10**6])),
    "typical": st.tuples(st.floats(0, 1)),
    "top_a": st.tuples(st.floats(0, 2)),
    "eta": st.tuples(st.floats(0, 1)),
    "epsilon": st.tuples(st.sampled_from([1e-6, 1e-4, 3e-3, 0.1, 0.9])),
    "top_p": st.tuples(st.one_of(st.floats(0, 1), st.sampled_from([0.9, 0.99, 0.9999]))),
    "min_p": st.tuples(st.one_of(st.floats(0, 1), st.sampled_from([1e-4, 0.05]))),
    "temperature": st.tuples(
        st.floats(0.05, 5), st.sampled_from([0.0, 0.0, 0.3, 2.0]), st.floats(0.2, 3)
    ),
    "xtc": st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 0.6)),
}
one_stage = st.sampled_from(sorted(stage_numbers)).flatmap(
    lambda name: st.tuples(st.just(name), stage_numbers[name])
)
row_kinds = st.tuples(
    st.integers(0, 2**32),
    st.sampled_from(SIZES),
    st.sampled_from(["flat", "usual", "peaked", "ties", "holes", "wide"]),
)


def near_bound(d, name, numbers):
    """Whether a probability or mass lies so near the stage's bound that rounding alone decides."""
    if name == "temperature" and any(numbers[1:2]) and len(d[0]) > 1:
        # a dynamic temperature is a power of the entropy, of which rounding is a part of about
        # 1e-16 divided by it; the next ones enlarge that part
        return bool(oracle.entropy(d) < 1e-4)
    if name in ("xtc", "temperature", "top_k"):
        numbers = numbers[1:] if name == "xtc" else ()
    if not numbers:
        return False
    p = oracle.probs(d)
    b = numbers[0]
    if name == "typical":
        with np.errstate(divide="ignore"):
            distance = np.abs(-np.log(p) - oracle.entropy(d)).astype(np.float32)
        by = np.lexsort((d[0], distance))
        n = int(np.searchsorted(np.cumsum(p[by]), b * oracle.SLACK))
        near = distance[by][max(0, n - 2) : n + 3].astype(float)
        if len(set(near)) < len(near) or (np.diff(near) < 1e-5 * near[1:]).any():
            return len(d[0]) > 1 and not np.array_equal(d[1], np.full(len(d[1]), d[1][0]))
        return bool((np.abs(np.cumsum(p[by]) - b * oracle.SLACK) < 1e-10).any())
    if name == "top_p":
        return bool((np.abs(np.cumsum(p) - b * oracle.SLACK) < 1e-10).any())
    if name == "top_n_sigma":
        bound = d[1].max() - b * d[1].std()
        return bool((np.abs(d[1] - bound) <= 1e-9 * max(1.0, np.abs(d[1]).max())).any())
    bound = {
        "top_a": b * p.max() ** 2,
        "eta": min(b, np.sqrt(b) * np.exp(-oracle.entropy(d))),
        "epsilon": b,
        "min_p": b * p.max(),
        "xtc": b,
    }[name]
    bound = min(bound, p.max()) * oracle.SLACK
    return bool((np.abs(p - bound) < 1e-10 * bound).any()) or bound < 1e-300


@settings(max_examples=400, deadline=None)
@given(row_kinds, st.lists(one_stage, min_size=1, max_size=4), st.integers(0, 2**64 - 1))
def test_chains_equal_the_definition(kind, chain, seed):
    logits = rows(*kind)
    want, stream = oracle.start(logits), oracle.Xorshift(seed)
    for name, numbers in chain:
        if near_bound(want, name, numbers):
            return
        if name == "xtc":
            want = oracle.xtc(want, stream.f32(), *numbers)
        else:
            want = getattr(oracle, name)(want, *numbers)
    got = run([SamplerStage(name, numbers) for name, numbers in chain], logits, seed=seed)
    same(got, want, chain)
    u = stream.f32()
    if (np.abs(np.cumsum(oracle.probs(want)) - u) > 1e-10).all():
        assert got[0] == oracle.draw(want, u)
        assert got[1] == pytest.approx(got[3][got[2].tolist().index(got[0])], abs=1e-12)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([4, 40, 600, 3000, 30000]),
    st.integers(0, 120),
    st.floats(0.2, 5),
    st.sampled_from([0.0, 0.7, -0.3]),
    st.sampled_from([0.0, 1.5]),
    st.sampled_from([-1, 1, 5, 64]),
    st.sampled_from([(), ("top_k",), ("temperature", "top_p")]),
)
def test_penalties_equal_the_definition_before_and_after_truncation(
    seed, vocab, length, repetition, frequency, presence, window, before
):
    rng = np.random.default_rng(seed)
    logits = rows(seed, vocab, "usual")
    history = rng.choice(
        [*range(min(vocab, 30)), *np.argsort(-logits)[:20].tolist()], length
    ).tolist()
    numbers = {"top_k": (20,), "temperature": (1.0,), "top_p": (0.8,)}
    want = oracle.start(logits)
    for name in before:
        if near_bound(want, name, numbers[name]):
            return
        want = getattr(oracle, name)(want, *numbers[name])
    want = oracle.penalties(want, history, repetition, frequency, presence, window)
    stages = [
        SamplerStage.of(
            n, **dict(zip([{"top_k": "k", "temperature": "t", "top_p": "p"}[n]], numbers[n]))
        )
        for n in before
    ]
    same(
        run(
            [*stages, SamplerStage("penalties", (repetition, frequency, presence, window))],
            logits,
            history=history,
        ),
        want,
    )


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 4), max_size=60),
    st.integers(1, 4),
    st.sampled_from([-1, 3, 10, 40]),
    st.floats(1, 3),
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple), max_size=3),
    st.booleans(),
)
def test_dry_equals_the_definition(history, allowed, last_n, base, breakers, late):
    logits = np.array([1, 2, 3, 2.5, 0.5, 0, -1], np.float32)
    want = oracle.top_k(oracle.start(logits), 5) if late else oracle.start(logits)
    want = oracle.dry(want, history, 1.5, base, allowed, last_n, breakers)
    stages = [SamplerStage.of("top_k", k=5)] if late else []
    stages.append(
        SamplerStage.of("dry", multiplier=1.5, base=base, allowed_length=allowed, last_n=last_n)
    )
    same(run(stages, logits, history=history, breakers=breakers), want)


@settings(max_examples=60, deadline=None)
@given(row_kinds, st.floats(0.5, 12))
def test_mirostat_2_cuts_at_mu(kind, tau):
    logits = rows(*kind)
    d = oracle.start(logits)
    bound = min(2.0 ** (-2 * tau), oracle.probs(d).max()) * oracle.SLACK
    if (np.abs(oracle.probs(d) - bound) < 1e-10 * bound).any():
        return
    got = run([SamplerStage.of("mirostat", version=2, tau=tau)], logits)
    same(got, oracle.mirostat_v2_cut(d, 2 * tau))


@settings(max_examples=60, deadline=None)
@given(row_kinds, st.floats(0.5, 8))
def test_mirostat_1_cuts_at_its_k(kind, tau):
    logits = rows(*kind)
    d = oracle.start(logits)
    with np.errstate(all="ignore"):
        k = oracle.mirostat_v1_k(d, 2 * tau, len(logits))
    if k is not None and (not np.isfinite(k) or abs(k - round(k)) < 1e-6 * k):
        return
    got = run([SamplerStage.of("mirostat", version=1, tau=tau)], logits)
    same(got, d if k is None else oracle.top_k(d, max(1, int(min(k, 10**9)))))


def test_mirostat_moves_mu_by_what_was_drawn():
    logits = rows(3, 200, "usual")
    core = SamplerCore(
        compile_stages([SamplerStage.of("mirostat", version=2, tau=3.0, eta=0.2)], 200), 11
    )
    mu = 6.0
    for _ in range(50):
        token = core.sample(logits)
        d = oracle.mirostat_v2_cut(oracle.start(logits), mu)
        surprise = -np.log2(oracle.probs(d)[d[0].tolist().index(token)])
        mu -= 0.2 * (surprise - 3.0)
        assert core.mu == pytest.approx(mu, abs=1e-9)
        mu = core.mu


@pytest.mark.parametrize("shape", ["flat", "usual", "peaked", "ties"])
def test_large_vocabulary_survivors_equal_the_definition(shape):
    logits = rows(9, 40000, shape)
    for name, numbers in [
        ("top_p", (0.95,)),
        ("top_k", (7000,)),
        ("min_p", (0.001,)),
        ("typical", (0.6,)),
        ("epsilon", (1e-5,)),
        ("xtc", (1.0, 1e-5)),
    ]:
        want = oracle.start(logits)
        if near_bound(want, name, numbers):
            continue
        want = (
            oracle.xtc(want, 0, *numbers)
            if name == "xtc"
            else getattr(oracle, name)(want, *numbers)
        )
        same(run([SamplerStage(name, numbers)], logits), want, name)


@pytest.mark.parametrize(
    "name, numbers, survivors",
    [("top_k", (k,), k) for k in (1, 5, 511, 512, 513, 700, 1025, 4000, 4999)]
    + [
        ("top_p", (0.5,), 2500),
        ("top_p", (0.9,), 4500),
        ("top_p", (0.01,), 50),
        ("typical", (0.25,), 1250),
        ("min_p", (1.0,), 5000),
    ],
)
def test_equal_logits_go_to_the_lowest_ids(name, numbers, survivors):
    _, _, ids, _ = run([SamplerStage(name, numbers)], np.full(5000, 0.5, np.float32))
    assert ids.tolist() == list(range(survivors))


@pytest.mark.parametrize("shape", ["flat", "usual", "peaked", "ties", "holes", "wide"])
def test_every_instruction_set_gives_the_same_bits(shape):
    chains = [
        [
            SamplerStage.of("top_k", k=40),
            SamplerStage.of("top_p", p=0.9),
            SamplerStage.of("temperature", t=0.7),
        ],
        [SamplerStage.of("temperature", t=1.3), SamplerStage.of("top_p", p=0.97)],
        [SamplerStage.of("typical", p=0.7)],
        [SamplerStage.of("eta", epsilon=1e-3)],
        [SamplerStage.of("top_n_sigma", n=1.5)],
        [SamplerStage.of("mirostat", version=2)],
        [SamplerStage.of("temperature", t=0.8, range=0.5, exponent=1.5)],
        [],
    ]
    mask = np.random.default_rng(1).integers(0, 2**32, (5003 + 31) // 32, dtype=np.uint32)
    seen = []
    before = use_instruction_set("scalar")
    try:
        for isa in instruction_sets():
            use_instruction_set(isa)
            logits = rows(4, 5003, shape)
            logits[2] = 1.0
            mask[0] |= 4
            out = []
            for chain in chains:
                for m in (None, mask):
                    token, own, ids, values = run(chain, logits, mask=m)
                    out.append((token, own, ids.tolist(), values.tolist()))
            seen.append(out)
    finally:
        use_instruction_set(before)
    assert all(s == seen[0] for s in seen) and len(seen) >= 1


def test_mask_keeps_exactly_the_set_bits():
    rng = np.random.default_rng(2)
    for vocab in (1, 31, 32, 33, 512, 513, 1029):
        logits = rng.standard_normal(vocab).astype(np.float32)
        mask = rng.integers(0, 2**32, (vocab + 31) // 32, dtype=np.uint32)
        mask[0] |= 1
        allowed = [t for t in range(vocab) if mask[t // 32] >> np.uint32(t % 32) & 1]
        assert sorted(run([], logits, mask=mask)[2].tolist()) == allowed
        some = sorted(set(allowed[::2]) | {0})
        assert sorted(run([], logits, mask=mask, allow=some)[2].tolist()) == some


def test_draws_follow_the_distribution():
    """Chi-square of 20,000 draws with a fixed seed against the probabilities of the chain."""
    logits = rows(6, 30, "usual") / 3
    stages = [SamplerStage.of("top_k", k=12), SamplerStage.of("temperature", t=0.8)]
    d = oracle.temperature(oracle.top_k(oracle.start(logits), 12), 0.8)
    core = SamplerCore(compile_stages(stages, 30), 99)
    counts = np.bincount([core.sample(logits) for _ in range(20000)], minlength=30)
    want = np.zeros(30)
    want[d[0]] = oracle.probs(d) * 20000
    assert counts[want == 0].sum() == 0
    chi = ((counts - want)[want > 0] ** 2 / want[want > 0]).sum()
    assert chi < 31.3  # 11 degrees of freedom, p = 0.001


def test_flat_large_rows_draw_evenly():
    """Draws over 4,096 equal logits, taken by radix selection: chi-square over 64 groups."""
    core = SamplerCore(compile_stages([], 4096), 12)
    tokens = np.array([core.sample(np.zeros(4096, np.float32)) for _ in range(6400)])
    chi = ((np.bincount(tokens // 64, minlength=64) - 100) ** 2 / 100).sum()
    assert chi < 103.4  # 63 degrees of freedom, p = 0.001


def test_the_two_tables_have_the_same_rows():
    assert stage_table() == tuple(s.name for s in STAGES)
    assert (
        tuple(s.name for s in STAGES if s.name not in ("bias", "mask", "mirostat")) == REORDERABLE
    )
    assert all(s.meaning.endswith(".") and s.source for s in STAGES)
