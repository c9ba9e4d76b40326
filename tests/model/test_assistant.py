"""Gemma 4 assistants: their arithmetic over the target's pages against the published one, written
out, and files that were made for another target.
"""

import re

import numpy as np
import pytest

from oxillama._core.tape import Batch
from oxillama.errors import ConfigError, ModelError
from oxillama.model.assistant import extracts_of
from oxillama.model.drafts import assistant_draft
from oxillama.model.load import load_model
from oxillama.model.rope import RopeOverrides
from tests.model import assistant, invented
from tests.model.assistant import HEADS, KV_HEADS, NEAR, PATTERN, TURNED, WHOLE, WINDOW
from tests.model.invented import HIDDEN, VOCAB
from tests.model.published import floats, rms


def target_of(path, arch="gemma4", **more):
    reader = invented.invent(path, arch)
    return load_model(reader, num_threads=1, extracts=(4,), **more)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def turned(x, place, dims, factors=1.0):
    """Heads (heads, dim) whose first `dims` floats are rotated in halves by a place."""
    half = dims // 2
    angles = place * 10000.0 ** (-2 * np.arange(half) / dims) / factors
    cos, sin, a, b = np.cos(angles), np.sin(angles), x[:, :half], x[:, half:dims]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos, x[:, dims:]], axis=1)


def published(reader, table, token, row, place, stored):
    """(logits, the row that the next candidate begins with) in float64. stored: (keys, values) of
    the tokens before `place`, by whether a layer is windowed.
    """
    w = floats(reader)
    both = np.concatenate([table[token] * np.sqrt(HIDDEN), row])
    x = both @ w["nextn.pre_projection.weight"].T
    for layer, near in enumerate(PATTERN):
        at = {name.split(".")[2]: w[name] for name in w if name.startswith(f"blk.{layer}.")}
        dim, dims = (NEAR, NEAR) if near else (WHOLE, TURNED)
        q = rms((rms(x, at["attn_norm"]) @ at["attn_q"].T).reshape(HEADS, dim), at["attn_q_norm"])
        q = turned(q, place, dims, 1.0 if near else w["rope_freqs.weight"])
        keys, values = (each[-(WINDOW - 1) :] if near else each for each in stored[near])
        scores = np.einsum("hd,jhd->hj", q, keys.repeat(HEADS // KV_HEADS, axis=1))
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        y = np.einsum("hj,jhd->hd", shares, values.repeat(HEADS // KV_HEADS, axis=1))
        x = x + rms(y.reshape(-1) @ at["attn_output"].T, at["post_attention_norm"])
        y = rms(x, at["ffn_norm"])
        y = (gelu(y @ at["ffn_gate"].T) * (y @ at["ffn_up"].T)) @ at["ffn_down"].T
        x = (x + rms(y, at["post_ffw_norm"])) * at["layer_output_scale"]
    y = rms(x, w["output_norm.weight"])
    return y @ w["token_embd.weight"].T, y @ w["nextn.post_projection.weight"].T


@pytest.mark.parametrize("lengths", [(1, 6), (7, 8), (9, 40)])
def test_a_draft_computes_what_was_published(lengths, tmp_path):
    """Three candidates of two sequences at once, within and beyond the window; the pages hold
    something behind the last token.
    """
    target = target_of(tmp_path / "t.gguf")
    reader = assistant.write(tmp_path / "d.gguf")
    draft, norm, _ = assistant_draft(target, reader, num_threads=1, max_rows=4)
    memory, rng = target.page_memory(kv_type="f32"), np.random.default_rng(5)
    memory.ensure(8)
    tables = [np.array([5, 0, 7], np.int32), np.array([2, 6, 1], np.int32)]
    stored = []
    for table, length in zip(tables, lengths):
        stored.append({})
        for layer, (heads, dim, _) in enumerate(target.config.kv_layers):
            k, v = rng.standard_normal((2, 48, heads, dim)).astype(np.float32)
            memory.write(table, layer, 0, k, v)
            stored[-1][layer == 0] = k[:length].astype(np.float64), v[:length].astype(np.float64)
    rows = norm.each(rng.standard_normal((2, HIDDEN)).astype(np.float32) * 3)
    assert np.allclose((rows**2).mean(-1), 1, atol=0.1)
    table = floats(target.reader)["token_embd.weight"]
    tokens, ends = np.array([3, 70], np.int32), np.array(lengths, np.int32)
    number = np.arange(2, dtype=np.int32)

    def step(some, tokens, rows):
        some = np.asarray(some)
        batch = Batch(
            tokens,
            ends[some] - 1,
            [tables[at] for at in some],
            number[: len(some)],
            number[: len(some)],
            embeds=rows,
            rope=ends[some],
        )
        logits = draft.program.step(batch, memory).copy()
        return logits, draft.program.carried().copy()

    for _ in range(3):
        logits, after = step([0, 1], tokens, rows)
        for at in range(2):
            alone = step([at], tokens[at : at + 1], rows[at : at + 1])
            assert np.array_equal(alone[0][0], logits[at])
            assert np.array_equal(alone[1][0], after[at])
            row = rows[at].astype(np.float64)
            wanted = published(reader, table, tokens[at], row, lengths[at], stored[at])
            for found, right in zip((logits[at], after[at]), wanted):
                assert np.abs(found - right).max() < 1e-4 * np.abs(right).max()
        tokens, rows = logits.argmax(-1).astype(np.int32), after


def test_its_row_is_the_targets_behind_its_last_norm(tmp_path):
    """What the target carries becomes what its output is made of; the target's logits stay."""
    target = target_of(tmp_path / "t.gguf")
    plain = load_model(target.reader, num_threads=1)
    draft = assistant.write(tmp_path / "d.gguf")
    _, norm, _ = assistant_draft(target, draft, num_threads=1)
    ids, every = np.array([3, 70, 21, 8, 40], np.int32), np.arange(5, dtype=np.int32)

    def step(model, output="logits"):
        memory = model.page_memory(kv_type="f32")
        memory.ensure(1)
        batch = Batch(ids, every, [every[:1]], 0 * every, every)
        return model.program.step(batch, memory, output=output).copy()

    assert np.array_equal(step(target), step(plain))
    rows = norm.each(target.program.carried())
    assert np.allclose(rows, step(plain, "hidden"), rtol=1e-5, atol=1e-6)


def test_queries_are_rotated_as_the_targets_keys(tmp_path):
    """Also where a caller overrides the rotation of the target's file."""
    path, found = tmp_path / "t.gguf", []
    freqs = floats(target_of(path).reader)["rope_freqs.weight"].astype(np.float32)
    reader = assistant.write(tmp_path / "d.gguf", tensors={"rope_freqs.weight": freqs})
    for rope in (RopeOverrides(), RopeOverrides(rope_freq_base=5e5)):
        target = target_of(path, rope=rope)
        draft, _, _ = assistant_draft(target, reader, num_threads=1)
        for model in (target, draft):
            ropes = [op.params["inv_freq"] for op in model.tape.ops if op.name == "rope_table"]
            found.append([rope.tolist() for rope in ropes])
    assert found[0] == found[1] != found[2] == found[3]


WRONG = {
    "draft: found gemma4-assistant for gemma3, wanted it for gemma4": {"arch": "gemma3"},
    "draft: found gemma4-assistant.embedding_length_out 96, wanted 64, the embedding_length of the "
    "target": dict(target=96),
    "draft: found gemma4-assistant.attention.sliding_window 16, wanted 8": dict(
        keys={"attention.sliding_window": 16}
    ),
    "draft: found gemma4-assistant.attention.key_length 64, wanted 32": dict(
        keys={"attention.key_length": 64}
    ),
    "draft: found gemma4-assistant.attention.value_length_swa 32, wanted 16": dict(
        keys={"attention.value_length_swa": 32}
    ),
    "draft: found gemma4-assistant.attention.head_count_kv 1, wanted 2": dict(
        keys={"attention.head_count_kv": [2, 2, 1]}
    ),
    "draft: found gemma4-assistant.rope.freq_base 1000000.0, wanted 10000.0": dict(
        keys={"rope.freq_base": 1e6}
    ),
    "draft: found gemma4-assistant.rope.dimension_count 32, wanted 16": dict(
        keys={"rope.dimension_count": 32}
    ),
    "draft: found token_embd.weight of 88 rows, wanted 80": dict(vocabulary=88),
    "gemma4-assistant.nextn_predict_layers: found 1, wanted 3": dict(
        keys={"nextn_predict_layers": 1}
    ),
    "gemma4-assistant.attention.shared_kv_layers: found 2, wanted 3": dict(
        keys={"attention.shared_kv_layers": 2}
    ),
    "gemma4-assistant.embedding_length_per_layer_input: found 16": dict(
        keys={"embedding_length_per_layer_input": 16}
    ),
    "gemma4-assistant.attention.sliding_window_pattern: found an array of 2, wanted": dict(
        keys={"attention.sliding_window_pattern": [True, False]}
    ),
    "blk.1.attn_q.weight: the file has no such tensor": dict(tensors={"blk.1.attn_q.weight": None}),
    "nextn.pre_projection.weight: file has (32, 64), gemma4-assistant needs (32, 128)": dict(
        tensors={"nextn.pre_projection.weight": np.zeros((32, 64), np.float32)}
    ),
    "blk.0.attn_k.weight: gemma4-assistant has no use for this tensor": dict(
        tensors={"blk.0.attn_k.weight": np.zeros((32, 32), np.float32)}
    ),
    "gemma4-assistant.logit_scale: found 2.0": dict(keys={"logit_scale": 2.0}),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_draft_that_does_not_fit_is_refused(message, tmp_path):
    changed = dict(WRONG[message])
    target = target_of(tmp_path / "t.gguf", changed.pop("arch", "gemma4"))
    reader = assistant.write(tmp_path / "d.gguf", **changed)
    with pytest.raises((ConfigError, ModelError), match=re.escape(message)):
        extracts_of(reader, target.reader)
        assistant_draft(target, reader, num_threads=1)


def test_clusters_of_the_vocabulary_and_a_cap_that_nothing_applies_change_nothing(tmp_path):
    target = target_of(tmp_path / "t.gguf")
    tapes = []
    for at, more in enumerate(
        (
            {},
            dict(
                keys={"final_logit_softcapping": 30.0, "attention.shared_kv_layers": 0},
                tensors={
                    "masked_embd_centroids.weight": np.zeros((8, assistant.WIDTH), np.float32),
                    "masked_embd_ordering": np.arange(VOCAB, dtype=np.int32),
                },
            ),
        )
    ):
        reader = assistant.write(tmp_path / f"{at}.gguf", **more)
        assert extracts_of(reader, target.reader) == (4,)
        tapes.append(assistant_draft(target, reader, num_threads=1)[0].tape.dump())
    assert tapes[0] == tapes[1]
