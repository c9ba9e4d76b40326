"""Drafts of EAGLE-3 models: tokens meet the rows before them, the text is the target's own, and
files that do not fit are refused.
"""

import re

import numpy as np
import pytest

import oxillama
from oxillama.speculative import (
    AsyncSpecConfig,
    SpeculativeConfig,
    SpeculativeDecoder,
    SpeculativeEngine,
)
from oxillama.weights.offload import Budget
from tests.model import eagle
from tests.model.invented import HIDDEN, VOCAB
from tests.speculative import law
from tests.speculative.law import (
    AXES,
    GREEDY,
    PIECES,
    SEEDED,
    STEP,
    WORDS,
    forced,
    target_of,
    ways,
    written,
)


def draft_of(path, reads, **more):
    """A draft that knows the next token from the row before its last token, or from that token.

    row: g is the axis of the token before, of which the feed-forward network makes the next one's.
    token: attention takes the axis of the token at its own position, and little of others.
    """
    one, dim = {"attention.head_count": 2, "attention.head_count_kv": 2}, HIDDEN // 2
    keys = one | {"attention.key_length": dim, "attention.value_length": dim}
    chosen = np.random.default_rng(3).permutation(HIDDEN)
    none, ones = np.zeros((HIDDEN, HIDDEN), np.float32), np.ones(HIDDEN, np.float32)
    tensors = {
        f"{name}.weight": ones
        for name in ("blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.ffn_norm", "output_norm")
    } | {"token_embd.weight": np.concatenate([AXES, 0 * AXES[: VOCAB - HIDDEN]])}
    if reads == "row":
        # a norm makes 8 of an axis: silu(8 * 2) * 8 = 128, by which the sum turns the axis
        turned = (STEP - AXES) / np.float32(128)
        tensors |= {
            "fc.weight": np.concatenate([none, AXES, none], axis=1),
            "blk.0.attn_output.weight": none,
            "blk.0.ffn_gate.weight": 2 * AXES,
            "blk.0.ffn_up.weight": AXES,
            "blk.0.ffn_down.weight": turned,
        }
    else:
        ahead = np.concatenate([np.full((HIDDEN, HIDDEN), 0.2, np.float32), none], axis=1)
        tensors |= {
            "fc.weight": np.concatenate([none, none, none], axis=1),
            "blk.0.attn_q.weight": ahead,
            "blk.0.attn_k.weight": ahead,
            "blk.0.attn_v.weight": np.concatenate([AXES, none], axis=1),
            "blk.0.attn_output.weight": 100 * AXES,
            "blk.0.ffn_down.weight": none,
        }
        keys["norm_before_residual"] = True
    for name in "qkv":
        tensors.setdefault(f"blk.0.attn_{name}.weight", np.concatenate([none, none], axis=1))
    tensors |= {"output.weight": STEP[chosen], "d2t": chosen.astype(np.int64)}
    keys["norm_before_fc"] = False
    eagle.write(
        path, keys=keys | more.pop("keys", {}), tensors=tensors, words=WORDS, **more
    ).close()
    return path


@pytest.mark.parametrize("most", [1, 3, 16])
@pytest.mark.parametrize("reads", ["row", "token"])
def test_every_candidate_of_a_draft_that_knows_the_next_token_is_accepted(reads, most, tmp_path):
    draft = draft_of(tmp_path / "d.gguf", reads)
    target = target_of(tmp_path / "m.gguf")
    with oxillama.load(target, num_threads=1, speculative=draft) as engine:
        law.knows_the_next_token(engine, forced(engine, draft, most), most)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """(a target, a draft that is right now and then)."""
    folder = tmp_path_factory.mktemp("eagle")
    return target_of(folder / "m.gguf", share=0.05), draft_of(folder / "d.gguf", "row")


def test_no_snapshot_is_written_over_a_draft(half, files):
    half.generate([5, 6], max_tokens=2, speculative=files[1])
    for path in files:
        with pytest.raises(oxillama.ConfigError, match="is the model itself"):
            half.snapshot_to_file(path)


def test_the_text_is_that_of_a_target_without_it(half, plain, files):
    law.texts_are_equal(plain, half, ways(half, files[1]))


def test_requests_side_by_side_and_several_completions_have_the_text_of_each_alone(
    half, plain, files
):
    law.texts_side_by_side_are_equal(plain, half, ways(half, files[1]))


def test_sessions_go_on_fork_and_are_restored_as_without_it(half, plain, files):
    law.sessions_are_equal(
        plain, half, ways(half, files[1]), files[0], resumed=lambda engine, way: False
    )


@pytest.mark.parametrize("own", ["all", "head", "none"])
@pytest.mark.parametrize(
    "arch", ["gpt-oss", "llama4", "mimo2", "qwen2moe", "qwen3", "qwen35", "step35"]
)
def test_targets_of_any_kind_draft_with_one(arch, own, tmp_path):
    """Windowed, recurrent, experts; with the target's own table and head."""
    target = written(tmp_path / "m.gguf", arch)
    eagle.write(
        tmp_path / "d.gguf",
        rows=None if own == "none" else eagle.ROWS,
        tensors={} if own == "all" else {"token_embd.weight": None},
        words=WORDS,
    ).close()
    law.targets_of_any_kind_draft(target, tmp_path / "d.gguf")


def test_a_model_must_be_loaded_with_it(files, plain, tmp_path):
    target, draft = files
    message = re.escape(f"speculative: found {str(draft)!r}, an EAGLE-3 draft, for a model")
    with pytest.raises(oxillama.ConfigError, match=message):
        plain.generate([3], max_tokens=3, speculative=draft)
    with pytest.raises(oxillama.ConfigError, match=message):
        SpeculativeEngine(SpeculativeConfig(target, draft))
    other = draft_of(tmp_path / "other.gguf", "row", layers=(0, 1, 2))
    with oxillama.load(target, num_threads=1, speculative=other) as engine:
        with pytest.raises(oxillama.ConfigError, match=message):
            engine.generate([3], max_tokens=3, speculative=draft)
        same = draft_of(tmp_path / "same.gguf", "token", layers=(0, 1, 2))
        assert engine.generate([3], max_tokens=3, speculative=same).speculation is not None
    with pytest.raises(
        oxillama.ModelError, match="'eagle3', which drafts for another model, which is loaded with"
    ):
        oxillama.load(draft)


def test_a_folder_is_searched_for_other_drafts(files, plain, tmp_path):
    draft_of(tmp_path / "d.gguf", "row")
    with pytest.raises(oxillama.ConfigError, match="holds no GGUF file with the target's"):
        plain.generate([3], max_tokens=3, speculative=tmp_path)


@pytest.mark.parametrize(
    "message, changed",
    [
        ("draft: found eagle3.target_hidden_size 32, wanted 64", {"target_hidden": 32}),
        ("draft: found eagle3.target_layers [1, 2, 9], wanted at most 4", {"layers": (1, 2, 9)}),
        (
            "draft: its vocabulary of 80 lacks 1 of the target's",
            {"words": WORDS | {"tokenizer.ggml.tokens": [*PIECES[:-1], "other"]}},
        ),
        (
            "draft: found the target's tokens under other ids",
            {
                "words": WORDS
                | {"tokenizer.ggml.tokens": [*PIECES[:40], PIECES[41], PIECES[40], *PIECES[42:]]}
            },
        ),
    ],
)
def test_a_draft_that_was_made_for_another_model_is_refused(files, tmp_path, message, changed):
    eagle.write(tmp_path / "d.gguf", **({"words": WORDS} | changed)).close()
    with pytest.raises(oxillama.ConfigError, match=re.escape(message)):
        oxillama.load(files[0], num_threads=1, speculative=tmp_path / "d.gguf")


def test_a_draft_has_no_sampler_of_its_own(half, files):
    config = SpeculativeConfig(half, files[1], draft_sampler=SEEDED)
    with pytest.raises(oxillama.ConfigError, match="draft_sampler: found one for an EAGLE-3 draft"):
        SpeculativeEngine(config)


def test_an_engine_for_speculation_takes_one_whose_model_was_loaded_with_it(half, plain, files):
    wanted = plain.generate([5, 6, 7], max_tokens=60, sampler=SEEDED, seed=12)
    config = SpeculativeConfig(half, files[1], seed=12, adaptive=False)
    with SpeculativeEngine(config) as engine:
        first = engine.generate([5, 6, 7], max_tokens=20, sampler=SEEDED)
        rest = engine.generate(None, max_tokens=40)
        assert first.speculation.accepted and rest.speculation.accepted
        assert first.tokens + rest.tokens == wanted.tokens
    with pytest.raises(
        oxillama.ConfigError, match="which needs rows of each of the target's steps"
    ):
        SpeculativeDecoder(AsyncSpecConfig(), half, files[1])


def test_a_target_that_is_read_while_a_step_runs_drafts_with_what_is_the_drafts_own(
    files, plain, tmp_path
):
    target, draft = files
    eagle.write(tmp_path / "d.gguf", rows=None, words=WORDS).close()
    nbytes = 1
    while True:
        try:
            paged = oxillama.load(target, offload=Budget(nbytes), num_threads=1, speculative=draft)
            break
        except oxillama.ConfigError as error:
            nbytes = int(str(error).split("wanted at least ")[1].split()[0])
    with paged as engine:
        wanted = plain.generate([5, 6, 7], max_tokens=40, sampler=SEEDED, seed=5)
        done = engine.generate(
            [5, 6, 7], max_tokens=40, sampler=SEEDED, seed=5, speculative=forced(engine, draft)
        )
        assert done.tokens == wanted.tokens and done.speculation.accepted
    with pytest.raises(oxillama.ConfigError, match="draft: found no output.weight, wanted one"):
        oxillama.load(
            target, offload=Budget(nbytes), num_threads=1, speculative=tmp_path / "d.gguf"
        )


def test_it_takes_the_place_of_layers_that_predict_further_tokens(tmp_path):
    """The rows that these begin with are not carried."""
    target = written(tmp_path / "m.gguf", "hy_v3", further=1)
    eagle.write(tmp_path / "d.gguf", words=WORDS).close()
    with (
        oxillama.load(target, num_threads=1) as plain,
        oxillama.load(target, num_threads=1, speculative=tmp_path / "d.gguf") as engine,
    ):
        assert plain.loaded.core.speculator.registry._predictor() is not None
        assert engine.loaded.core.speculator.registry._predictor() is None
        message = "found 'mtp' for a model that was loaded with a draft of another kind"
        with pytest.raises(oxillama.ConfigError, match=message):
            engine.generate([5, 6, 7], max_tokens=3, speculative="mtp")
        wanted = plain.generate([5, 6, 7], max_tokens=30, sampler=GREEDY, speculative=False)
        for way in (None, "auto"):
            done = engine.generate([5, 6, 7], max_tokens=30, sampler=GREEDY, speculative=way)
            assert done.tokens == wanted.tokens


def test_a_whole_output_is_drawn_from_by_regions(files, plain, tmp_path, monkeypatch):
    """As that of any draft, where it has a row for each token: here the target's."""
    eagle.write(tmp_path / "d.gguf", rows=None, words=WORDS).close()
    law.outputs_are_drawn_from_by_regions(plain, files[0], tmp_path / "d.gguf", monkeypatch)
