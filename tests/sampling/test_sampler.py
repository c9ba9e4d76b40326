"""The sampler of one request: seeds repeat, forks and restored states continue exactly, reports and
Python hooks tell the truth.
"""

import json
import math
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.errors import ConfigError, SamplingError
from oxillama.sampling import (
    Sampler,
    SamplerChain,
    SamplerConfig,
    SamplerStage,
    breaker_sequences,
    token_logprobs,
)

VOCAB = 300


def rows(n, seed=0):
    return (np.random.default_rng(seed).standard_normal((n, VOCAB)) * 2).astype(np.float32)


def follow(sampler, logits):
    out = []
    for row in logits:
        out.append(sampler.sample(row))
        sampler.accept(out[-1])
    return out


CONFIGS = [
    SamplerConfig(seed=5),
    SamplerConfig.greedy(),
    SamplerConfig.mirostat_v2(3.0, seed=1),
    SamplerConfig(seed=2, mirostat=1, top_k=0, top_p=1),
    SamplerConfig(
        seed=3,
        dry_multiplier=0.8,
        dry_sequence_breakers=((1,), (2, 3)),
        xtc_probability=0.5,
        top_k=0,
    ),
    SamplerConfig(
        seed=4, repetition_window=-1, frequency_penalty=0.2, presence_penalty=0.1, temperature=2.0
    ),
    SamplerConfig(seed=6, repetition_window=3, typical_p=0.8, min_tokens=20, stop_token_ids=(7,)),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_same_seed_same_tokens_and_logits_are_untouched(config):
    logits = rows(40)
    kept = logits.copy()
    a, b = Sampler(config, VOCAB), Sampler(config, VOCAB)
    assert follow(a, logits) == follow(b, logits)
    assert np.array_equal(logits, kept)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("prompt", [0, 5, 700])
def test_restored_and_forked_samplers_continue_exactly(config, prompt):
    logits = rows(60, 1)
    s = Sampler(config, VOCAB, eog_ids=[9])
    s.accept_prompt(np.arange(prompt) % 50)
    follow(s, logits[:20])
    state = s.state()
    fork = s.fork()
    fresh = Sampler(config, VOCAB, eog_ids=[9], seed=123)
    fresh.accept_prompt([1, 2, 3])
    fresh.restore(state)
    assert fresh.state() == state == fork.state()
    assert fresh.seed == s.seed and fresh.generated == 20
    follow(Sampler(config, VOCAB), logits)  # another request in between changes nothing
    want = follow(s, logits[20:])
    assert follow(fresh, logits[20:]) == want == follow(fork, logits[20:])
    assert fresh.state() == s.state()


def test_state_is_bounded_by_what_stages_look_at():
    s = Sampler(SamplerConfig(seed=1), VOCAB)
    s.accept_prompt(np.arange(100000) % VOCAB)
    assert len(s.state()) < 500


def test_long_histories_count_the_window_only():
    a, b = (
        Sampler(SamplerConfig(seed=1, temperature=0), VOCAB),
        Sampler(SamplerConfig(seed=1, temperature=0), VOCAB),
    )
    history = np.random.default_rng(1).integers(0, VOCAB, 5000)
    a.accept_prompt(history)
    b.accept_prompt(history[-64:])
    for row in rows(20, 2):
        assert a.sample(row) == b.sample(row)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_states_raise_and_change_nothing(data):
    s = Sampler(SamplerConfig(seed=5), VOCAB)
    s.accept_prompt([1, 2, 3])
    good = s.state()
    bad = bytearray(good)
    kind = data.draw(st.sampled_from(["flip", "cut", "grow"]))
    if kind == "flip":
        bad[data.draw(st.integers(0, len(bad) - 1))] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        del bad[data.draw(st.integers(0, len(bad) - 1)) :]
    else:
        bad += b"\0" * data.draw(st.integers(1, 9))
    with pytest.raises(SamplingError, match="^sampler state: "):
        s.restore(bytes(bad))
    assert s.state() == good


FORGED = [
    (0, b"OXSN", "wanted b'OXSM'"),  # magic
    (4, (2).to_bytes(2, "little"), "found version 2, wanted 1"),
    (6, b"\1\0", "found version 1, wanted 1"),  # what is zero in this version
    (36, bytes(8), "wanted them to agree"),  # the random stream
    (44, np.float64(np.inf).tobytes(), "wanted them to agree"),  # mu
    (52, (-1).to_bytes(8, "little", signed=True), "wanted them to agree"),  # generated
    (60, (2).to_bytes(8, "little"), "found 2 tokens in"),
    (60, (-1).to_bytes(8, "little", signed=True), "found -1 tokens in"),
]


@pytest.mark.parametrize("at, value, reason", FORGED)
def test_a_state_with_a_right_checksum_is_checked_too(at, value, reason):
    s = Sampler(SamplerConfig(seed=5, presence_penalty=0.5), VOCAB)
    s.accept_prompt([1, 2, 3])
    good = s.state()
    bad = good[:at] + value + good[at + len(value) : -4]
    with pytest.raises(SamplingError, match=f"^sampler state: .*{reason}"):
        s.restore(bad + zlib.crc32(bad).to_bytes(4, "little"))
    assert s.state() == good


def test_the_order_of_biases_is_no_part_of_a_state():
    bans = {9: -math.inf, 10: -math.inf, 3: 1.0, 2: -math.inf}
    states = set()
    for biases in (bans, dict(sorted(bans.items())), dict(sorted(bans.items(), reverse=True))):
        config = SamplerConfig(seed=5, logit_bias=biases)
        saved = SamplerConfig.from_dict(json.loads(json.dumps(config.to_dict(), sort_keys=True)))
        made = Sampler(config, VOCAB)
        Sampler(saved, VOCAB).restore(made.state())
        states.add(made.state())
    assert len(states) == 1


def test_states_of_other_configs_are_refused():
    state = Sampler(SamplerConfig(seed=5), VOCAB).state()
    for other in (
        Sampler(SamplerConfig(seed=5, top_k=39), VOCAB),
        Sampler(SamplerConfig(seed=5), VOCAB + 1),
        Sampler(SamplerConfig(), VOCAB, eog_ids=[3], special_ids=[4]),
    ):
        with pytest.raises(SamplingError, match="another config"):
            other.restore(state)
    Sampler(SamplerConfig(seed=6), VOCAB).restore(state)  # the seed is part of the state


def test_seed_none_is_drawn_and_reported():
    a = Sampler(SamplerConfig(), VOCAB)
    b = Sampler(SamplerConfig(), VOCAB)
    assert a.seed != b.seed
    again = Sampler(SamplerConfig(), VOCAB, seed=a.seed)
    assert follow(again, rows(30)) == follow(a, rows(30))
    with pytest.raises(ConfigError, match="seed: found -1"):
        Sampler(SamplerConfig(), VOCAB, seed=-1)


def test_golden_tokens_of_a_chain():
    """Pinned: a change here changes the text of everyone's seeds."""
    logits = (np.arange(12 * 50).reshape(12, 50) * 7919 % 101 / 12).astype(np.float32)
    s = Sampler(SamplerConfig(seed=42, repetition_penalty=1.1), 50)
    out = []
    for row in logits:
        out.append(s.sample(row))
        s.accept(out[-1])
    assert out == GOLDEN


GOLDEN = [24, 9, 28, 42, 29, 43, 30, 39, 33, 13, 32, 31]


def test_logprobs_raw_and_final():
    row = rows(1)[0]
    s = Sampler(SamplerConfig(seed=8, top_k=5, top_p=1, temperature=0.5), VOCAB, logprobs=7)
    s.accept_prompt([3])
    token = s.sample(row)
    report = s.logprobs
    x = row.astype(np.float64)
    raw = x - x.max() - np.log(np.exp(x - x.max()).sum())
    assert report.token == token and report.raw == pytest.approx(raw[token], abs=1e-12)
    assert list(report.raw_ids) == np.argsort(-x, kind="stable")[:7].tolist()
    np.testing.assert_allclose(report.raw_values, np.sort(raw)[::-1][:7], atol=1e-12)
    assert len(report.final_ids) == 5 and np.exp(report.final_values).sum() == pytest.approx(
        1, abs=1e-12
    )
    assert report.final == report.final_values[report.final_ids.index(token)]
    assert Sampler(SamplerConfig(), VOCAB).logprobs is None
    own, ids, values = token_logprobs(row, token, top=7)
    assert (own, tuple(ids), tuple(values)) == (report.raw, report.raw_ids, report.raw_values)


def test_greedy_reports_certainty():
    s = Sampler(SamplerConfig.greedy(), VOCAB, logprobs=0)
    s.sample(rows(1)[0])
    assert s.logprobs.final == 0.0 and s.logprobs.raw < 0


def test_logprobs_of_banned_tokens_are_minus_infinity():
    row = np.array([0, -np.inf, 1], np.float32)
    assert token_logprobs(row, 1)[0] == -np.inf
    with pytest.raises(SamplingError, match="found token 3"):
        token_logprobs(row, 3)


def test_processors_see_the_tokens_and_cannot_revive_a_ban():
    seen = []

    def push(tokens, logits):
        seen.append(tokens.tolist())
        logits[7] = logits[8] = 1e9
        return logits

    s = Sampler(SamplerConfig.greedy(banned_tokens=[7]), VOCAB, processors=[push])
    s.accept_prompt([1, 2])
    row = rows(1)[0]
    kept = row.copy()
    assert s.sample(row) == 8 and np.array_equal(row, kept)
    s.accept(8)
    mask = np.full((VOCAB + 31) // 32, 0xFFFFFFFF, np.uint32)
    mask[0] &= ~np.uint32(1 << 8)
    assert s.sample(row, mask) not in (7, 8)
    assert seen == [[1, 2], [1, 2, 8]]


def test_processors_see_all_tokens_whatever_brought_them():
    seen = []

    def processor(tokens, logits):
        seen.append(tokens.tolist())

    def made():
        return Sampler(SamplerConfig.greedy(), VOCAB, processors=[processor])

    s, row = made(), rows(1)[0]
    s.accept_prompt([1, 2])
    s.accept(3)
    restored, fork, other = made(), s.fork(), made()
    restored.restore(s.state())
    fork.accept(4)
    other.go_on_from(s, [1, 2, 3])
    s.set_history([7, 8, 9], generated=1)
    for each in (s, restored, fork, other):
        each.sample(row)
    assert seen == [[7, 8, 9], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3]]


def test_a_processor_returns_logits_or_changes_them_in_place():
    def in_place(tokens, logits):
        logits[7] = 50.0

    def anew(tokens, logits):
        return logits - 100.0 * (logits == 50.0)

    row = rows(1)[0]
    likeliest = int(row.argmax())
    for processors, wanted in (([in_place], 7), ([in_place, anew], likeliest), ([anew], likeliest)):
        sampler = Sampler(SamplerConfig.greedy(), VOCAB, processors=processors)
        assert sampler.sample(row) == wanted


def test_a_row_that_was_processed_elsewhere_is_not_processed_again():
    calls = []

    def processor(tokens, logits):
        calls.append(len(tokens))
        logits[7] = 50.0

    sampler, row = Sampler(SamplerConfig.greedy(), VOCAB, processors=[processor]), rows(1)[0]
    sampler.processed(row, sampler.processing(row)())
    assert (sampler.sample(row), calls) == (7, [0])
    assert (sampler.sample(row), calls) == (7, [0, 0])  # that result was for one draw


def test_rows_of_other_types_are_those_of_float32():
    row = rows(1)[0]
    for other in (row.astype(np.float64), row.tolist(), np.repeat(row, 2)[::2]):
        pair = [Sampler(SamplerConfig(seed=5), VOCAB, logprobs=3) for _ in range(2)]
        assert follow(pair[0], [other] * 9) == follow(pair[1], [row] * 9)
        assert pair[0].logprobs == pair[1].logprobs
        assert token_logprobs(other, 3, top=2) == token_logprobs(row, 3, top=2)


@pytest.mark.parametrize(
    "size, options, message",
    [
        (0, {}, "vocab_size: found 0, wanted an integer in"),
        (2**28, {}, f"vocab_size: found {2**28}, wanted"),
        (True, {}, "vocab_size: found True, wanted"),
        (4.0, {}, "vocab_size: found 4.0, wanted"),
        (4, {"logprobs": -1}, "logprobs: found -1, wanted None or 0 to the vocabulary size 4"),
        (4, {"logprobs": 5}, "logprobs: found 5, wanted"),
        (4, {"dry_breakers": [()]}, r"dry_breakers: found \(\), wanted a list of at least one"),
        (4, {"dry_breakers": [7]}, "dry_breakers: found 7, wanted a list"),
        (4, {"dry_breakers": [[2**31]]}, f"dry_breakers: found {2**31}, wanted an integer in"),
        (4, {"dry_breakers": [[True]]}, "dry_breakers: found True, wanted an integer in"),
    ],
)
def test_what_a_sampler_is_made_of_is_checked(size, options, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        Sampler(SamplerConfig(dry_multiplier=1.0), size, **{"dry_breakers": (), **options})


def test_own_stages_see_survivors_and_cannot_revive_them():
    seen = {}

    def mine(ids, logits):
        seen["ids"] = ids.tolist()
        ids[:] = 299  # its own copy: changes nothing
        return np.where(logits == logits.max(), -np.inf, logits)

    s = Sampler(
        SamplerConfig(seed=1, top_k=2, top_p=1, repetition_penalty=1),
        VOCAB,
        stages=[SamplerStage.python("mine", mine)],
    )
    row = rows(1)[0]
    first, second = np.argsort(-row)[:2]
    assert s.stage_names == ("bias", "mask", "top_k", "mine", "temperature")
    assert s.sample(row) == second and seen["ids"] == [first, second]
    bad = [
        (lambda i, x: x[:1], "shape"),
        (lambda i, x: x * np.nan, "nan"),
        (lambda i, x: x - np.inf, "removed every candidate"),
    ]
    for fn, message in bad:
        with pytest.raises(SamplingError, match=f"stage odd: .*{message}"):
            Sampler(SamplerConfig(), VOCAB, stages=[SamplerStage.python("odd", fn)]).sample(row)


def test_errors_in_python_stages_pass_through():
    def broken(ids, logits):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Sampler(SamplerConfig(), VOCAB, stages=[SamplerStage.python("broken", broken)]).sample(
            rows(1)[0]
        )


@pytest.mark.parametrize("config", CONFIGS)
def test_set_history_equals_having_seen_just_that(config):
    a, b = Sampler(config, VOCAB, eog_ids=[9], seed=4), Sampler(config, VOCAB, eog_ids=[9], seed=4)
    history = np.random.default_rng(3).integers(0, 40, 200)
    a.accept_prompt([1, 1, 1, 5])
    a.accept(7)
    a.set_history(history, generated=3)
    b.accept_prompt(history[:-3])
    for token in history[-3:]:
        b.accept(token)
    assert a.state() == b.state()
    logits = rows(20, 5)
    assert follow(a, logits) == follow(b, logits)


def test_token_ids_are_never_rounded_or_wrapped():
    s = Sampler(SamplerConfig(), VOCAB)
    for bad in ([2**32 + 1], [1.0], np.array([2**40]), ["a"], [[1]], [VOCAB], 5, [None]):
        with pytest.raises(SamplingError, match="accept_prompt: found"):
            s.accept_prompt(bad)
        with pytest.raises(SamplingError, match="recent: found"):
            SamplerChain(seed=1).sample(rows(1)[0], bad)
    for bad in ("a", 1.0, None, True, [1], VOCAB, -1, np.int64(VOCAB)):
        with pytest.raises(SamplingError, match="accept: found"):
            s.accept(bad)
    s.accept_prompt([])
    for bad in (-1, 2**31, True, 1.0):
        with pytest.raises(SamplingError, match=f"set_history: found generated {bad}, wanted an"):
            s.set_history([1, 2], generated=bad)


@pytest.mark.parametrize("samplers", [(), ("top_k",)])
def test_a_greedy_sampler_without_penalties_among_its_stages_has_none(samplers):
    sampler = Sampler(SamplerConfig(temperature=0.0, repetition_penalty=2.0, samplers=samplers), 4)
    sampler.accept_prompt([0])
    assert (tuple(sampler.stage_names), sampler.sample(np.array([5, 4, 0, 0], np.float32))) == (
        ("bias", "mask", "temperature"),
        0,
    )


def test_samplers_list_selects_and_orders():
    c = SamplerConfig(samplers=("temperature", "min_p", "top_k"), min_p=0.1)
    assert Sampler(c, VOCAB).stage_names == ("bias", "mask", "temperature", "min_p", "top_k")
    everything = SamplerConfig(
        min_p=0.1,
        repetition_penalty=1.1,
        typical_p=0.9,
        top_a=0.1,
        eta_cutoff=1e-3,
        epsilon_cutoff=1e-3,
        top_n_sigma=2.0,
        xtc_probability=0.1,
        dry_multiplier=1.0,
        mirostat=2,
    )
    assert Sampler(everything, VOCAB, dry_breakers=[]).stage_names == (
        "bias",
        "mask",
        "penalties",
        "dry",
        "top_n_sigma",
        "top_k",
        "typical",
        "top_a",
        "eta",
        "epsilon",
        "top_p",
        "min_p",
        "xtc",
        "temperature",
        "mirostat",
    )


def test_chain_from_config_draws_like_the_sampler():
    config = SamplerConfig(seed=77, banned_tokens=[5], logit_bias={3: 1.0})
    chain, sampler = SamplerChain.from_config(config), Sampler(config, VOCAB)
    history = []
    for row in rows(30, 4):
        token = chain.sample(row, history)
        assert token == sampler.sample(row)
        sampler.accept(token)
        history.append(token)


@pytest.mark.parametrize(
    "lists, wanted",
    (
        ({}, 0),
        ({"banned_tokens": [0]}, 1),
        ({"logit_bias": {0: -math.inf}}, 1),
        ({"banned_tokens": [0], "logit_bias": {2: 3.0}}, 2),
        ({"allowed_tokens": [3]}, 3),
    ),
)
def test_a_chain_has_the_token_lists_of_its_config(lists, wanted):
    chain = SamplerChain.from_config(SamplerConfig.greedy(**lists))
    assert chain.sample(np.array([9, 5, 4, 1], np.float32)) == wanted


@pytest.mark.parametrize(
    "field", ({"ignore_eos": True}, {"min_tokens": 2}, {"stop": ("a",)}, {"stop_token_ids": (3,)})
)
def test_a_chain_refuses_what_is_about_the_end_of_a_text(field):
    (name,) = field
    with pytest.raises(ConfigError, match=f"{name}: found"):
        SamplerChain.from_config(SamplerConfig(**field))


def test_chain_push_keeps_the_stream_and_with_seed_starts_it_anew():
    row = rows(1)[0]
    chain = SamplerChain(seed=9)
    first = [chain.sample(row) for _ in range(5)]
    assert [chain.with_seed(9).sample(row)] + [chain.sample(row) for _ in range(4)] == first
    plain = SamplerChain(seed=9)
    for _ in range(3):
        plain.sample(row)
    grown = SamplerChain(seed=9)
    for _ in range(3):
        grown.sample(row)
    grown.push(SamplerStage.of("top_k", k=VOCAB))
    assert grown.sample(row) == plain.sample(row)
    flat = np.zeros(VOCAB, np.float32)
    assert any(grown.sample(flat) for _ in range(9))
    grown.push(SamplerStage.of("top_k", k=1))
    assert not any(grown.sample(flat) for _ in range(9))


def test_chain_mistakes_raise():
    with pytest.raises(ConfigError, match="wanted one of"):
        SamplerStage.of("nope")
    with pytest.raises(ConfigError, match="found parameter 'q'"):
        SamplerStage.of("top_p", q=1)
    with pytest.raises(ConfigError, match="found no p"):
        SamplerStage.of("top_p")
    with pytest.raises(ConfigError, match="p: found 2"):
        SamplerStage.of("top_p", p=2)
    with pytest.raises(ConfigError, match="wanted an integer"):
        SamplerStage.of("top_k", k=1.5)
    for value in (3, 0, 1.5):
        with pytest.raises(ConfigError, match=f"version: found {value}, wanted"):
            SamplerStage.of("mirostat", version=value)
    assert SamplerStage.of("mirostat", version=1).values == (1, 5.0, 0.1)
    for value in ("1", True, None, math.nan):
        with pytest.raises(ConfigError, match="stage top_p: p: found .*, wanted a finite number"):
            SamplerStage("top_p", (value,))
    with pytest.raises(ConfigError, match="stage 'mine': found 5, wanted a callable"):
        SamplerStage.python("mine", 5)
    with pytest.raises(ConfigError, match="stage 'top_k': found .*, wanted a callable under a"):
        SamplerStage.python("top_k", len)
    with pytest.raises(ConfigError, match="'dry' twice"):
        SamplerChain([SamplerStage.of("dry", multiplier=1.0)] * 2, seed=1).sample(rows(1)[0])
    with pytest.raises(ConfigError, match="wanted it last"):
        SamplerChain(
            [SamplerStage.of("mirostat", version=2), SamplerStage.of("top_k", k=1)], seed=1
        ).sample(rows(1)[0])
    with pytest.raises(ConfigError, match="wanted a SamplerStage"):
        SamplerChain().push("top_k")
    with pytest.raises(ConfigError, match="found text"):
        Sampler(SamplerConfig(dry_multiplier=1.0), VOCAB)


def test_breakers_from_text():
    pieces = [b"\n", b"a", b":\n", b"b*", b"*c", b"x**", b"", b"\xe2\x82", b"\xac"]
    assert breaker_sequences(["\n"], pieces) == [(0,), (2,)]
    single = {b"*c": [4], b"*": [3]}
    assert breaker_sequences(["**"], pieces, lambda text: single[text]) == [(3, 3), (5,)]
    assert breaker_sequences([(4, 5), "\u20ac"], pieces, lambda text: [8]) == [(4, 5), (7, 8)]


def test_many_breakers_are_looked_for_in_one_pass_over_the_vocabulary():
    looks = 0

    class Piece(bytes):
        __slots__ = ()

        def endswith(self, end):
            nonlocal looks
            looks += 1
            return bytes.endswith(self, end)

        def __getitem__(self, part):
            nonlocal looks
            looks += 1
            return bytes.__getitem__(self, part)

    pieces = [Piece(f"x{number}".encode()) for number in range(50)]
    many = [f"{number} or so".encode() for number in range(10, 50)]
    found = breaker_sequences(many, pieces, lambda text: [len(text)])
    assert (11, 7) in found and (12, 6) in found and (2, 7) in found and len(found) == 60
    before, looks = looks, 0
    breaker_sequences(many[:1], pieces, lambda text: [len(text)])
    assert before == looks


def test_samplers_in_threads_do_not_disturb_each_other():
    from concurrent.futures import ThreadPoolExecutor

    logits = rows(200, 3)
    with ThreadPoolExecutor(4) as pool:
        out = list(
            pool.map(
                lambda seed: follow(Sampler(SamplerConfig(seed=seed % 2), VOCAB), logits), range(8)
            )
        )
    assert out[0::2] == [out[0]] * 4 and out[1::2] == [out[1]] * 4 and out[0] != out[1]
