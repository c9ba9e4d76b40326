"""EAGLE-3 draft models: rows that come into layers of the target, and the draft's own arithmetic
against that of the paper, written out.
"""

import re

import numpy as np
import pytest

from oxillama.errors import ConfigError, ModelError
from oxillama.model.drafts import eagle_draft, early_exit
from oxillama.model.eagle import extracts_of
from oxillama.model.load import load_model
from oxillama.model.tensors import Tensor, unpacked
from tests.model import eagle, invented, tiny
from tests.model.published import TOKENS, floats, rms, silu, stepped


@pytest.mark.parametrize("kind", ["F32", "Q4_0"])
@pytest.mark.parametrize(
    "arch", ["deepseek2", "falcon", "gemma2", "gpt-oss", "llama", "phimoe", "qwen3", "qwen3vl"]
)
def test_a_target_carries_what_comes_into_its_layers_and_computes_the_same(arch, kind, tmp_path):
    """Under the output's norm each row is that of the layers before it."""
    reader = invented.invent(tmp_path / "m.gguf", arch, kind=kind)
    plain, model = (
        load_model(reader, num_threads=1, extracts=extracts) for extracts in ((), (0, 2, 4))
    )
    assert model.tape.extracts == (0, 2, 4) and not plain.program.carries
    kept, wanted = np.array([1, 4, 5, 8], np.int32), np.array([4, 8], np.int32)
    logits, rows = stepped(model, kept=kept, wanted=wanted)
    whole, _ = stepped(plain)
    assert np.array_equal(logits, whole[wanted])
    assert np.array_equal(logits, stepped(model, wanted=wanted)[0])
    width = invented.HIDDEN
    assert rows.shape == (4, 3 * width)
    table = unpacked(reader, Tensor("token_embd.weight", kind, (invented.VOCAB, width)))
    scale = 8.0 if arch == "gemma2" else 1.0
    assert np.allclose(rows[:, :width], scale * table[TOKENS[kept]], rtol=1e-6)
    if arch in ("falcon", "phimoe"):  # another norm
        return
    weight = floats(reader)["output_norm.weight"]
    for at, depth in ((1, 2), (2, 4)):
        part = rows[:, at * width : (at + 1) * width].astype(np.float64)
        before, _ = stepped(early_exit(plain, depth, num_threads=1), output="hidden")
        assert np.allclose(rms(part, weight), before[kept], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("arch", ["deepseek4", "exaone4", "gemma3n", "glm5-next", "qwen4exp"])
def test_a_target_without_such_rows_is_refused(arch, tmp_path):
    """Norms behind the layers, several rows that layers mix."""
    reader = invented.invent(tmp_path / "m.gguf", arch)
    with (
        eagle.write(tmp_path / "d.gguf", layers=(0, 1, 2)) as draft,
        pytest.raises(ConfigError, match=rf"draft: found .*{arch}"),
    ):
        load_model(reader, num_threads=1, extracts=extracts_of(draft, reader))


def published(reader, tokens, rows, *, table, head, residual):
    """(logits, p) in float64 of a draft over tokens from position 0 on, each with the row g before
    it.
    """
    w = floats(reader)
    e = rms(table[tokens], w["blk.0.attn_norm.weight"])
    g = rms(rows, w["blk.0.attn_norm_2.weight"])
    both = np.concatenate([e, g], axis=1)
    count, dim = len(tokens), eagle.HEAD_DIM
    q, k, v = ((both @ w[f"blk.0.attn_{name}.weight"].T).reshape(count, -1, dim) for name in "qkv")
    angles = np.arange(count)[:, None] * 10000.0 ** (-2 * np.arange(dim // 2) / dim)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]

    def turned(x):
        out = np.empty_like(x)
        out[..., ::2] = x[..., ::2] * cos - x[..., 1::2] * sin
        out[..., 1::2] = x[..., ::2] * sin + x[..., 1::2] * cos
        return out

    q, k = turned(q), turned(k).repeat(eagle.HEADS // eagle.KV_HEADS, axis=1)
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(dim)
    scores = np.where(np.tril(np.ones((count, count), bool)), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    mixed = np.einsum("hij,jhd->ihd", shares, v.repeat(eagle.HEADS // eagle.KV_HEADS, axis=1))
    x = (g if residual else rows) + mixed.reshape(count, -1) @ w["blk.0.attn_output.weight"].T
    y = rms(x, w["blk.0.ffn_norm.weight"])
    y = silu(y @ w["blk.0.ffn_gate.weight"].T) * (y @ w["blk.0.ffn_up.weight"].T)
    p = x + y @ w["blk.0.ffn_down.weight"].T
    return rms(p, w["output_norm.weight"]) @ head.T, p


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("own", ["all", "head", "table", "none"])
def test_a_draft_computes_what_was_published(own, fused, residual, tmp_path):
    """Rows that it fuses, logits of its own or of the target's head, and its own rows; wider than
    the target where it needs nothing of that.
    """
    target = load_model(tiny.write(tmp_path / "t.gguf", "llama"), num_threads=1, extracts=(1, 2, 3))
    hidden = 80 if own == "all" else tiny.HIDDEN
    reader = eagle.write(
        tmp_path / "d.gguf",
        hidden=hidden,
        rows=eagle.ROWS if own in ("all", "head") else None,
        keys={"norm_before_fc": fused, "norm_before_residual": residual},
        tensors={} if own in ("all", "table") else {"token_embd.weight": None},
    )
    assert extracts_of(reader, target.reader) == (1, 2, 3)
    draft, fusion, tokens = eagle_draft(target, reader, num_threads=1, max_rows=64)
    _, rows = stepped(target)
    g = fusion.each(rows)
    w, its = (floats(each) for each in (reader, target.reader))
    wide = rms(rows.astype(np.float64), w["enc.output_norm.weight"]) if fused else rows
    assert g.shape == (len(TOKENS), hidden)
    assert np.allclose(g, wide @ w["fc.weight"].T, rtol=1e-4, atol=1e-5)
    table = w.get("token_embd.weight", its["token_embd.weight"])
    head = w.get("output.weight", its["output.weight"])
    ids = TOKENS[::-1].copy()
    logits, p = stepped(draft, embeds=g, tokens=ids)
    wanted, row = published(reader, ids, g, table=table, head=head, residual=residual)
    assert logits.shape == (len(ids), eagle.ROWS if own in ("all", "head") else tiny.VOCAB)
    assert np.allclose(logits, wanted, rtol=1e-3, atol=1e-4)
    assert np.allclose(p, row, rtol=1e-3, atol=1e-4)
    if own in ("all", "head"):
        assert np.array_equal(tokens, reader.data("d2t").view("<i8"))
    else:
        assert tokens is None


WRONG = {
    "draft: found eagle3.target_hidden_size 96, wanted 64": dict(target_hidden=96),
    "draft: found eagle3.target_layers [1, 2, 4], wanted at most 3": dict(layers=(1, 2, 4)),
    "eagle3.target_layers: found an array of 2, wanted": dict(layers=(1, 2)),
    "draft: found token_embd.weight of 88 rows, wanted 80": dict(vocabulary=88),
    "eagle3.block_count: found 2, wanted 1": dict(keys={"block_count": 2}),
    "draft: found output.weight of 48 rows without d2t, wanted 80": dict(tensors={"d2t": None}),
    "d2t: found tokens from 0 to 80, wanted 0 to 79": dict(
        tensors={"d2t": np.arange(48, dtype=np.int64) + np.arange(48) // 47 * 33}
    ),
    "d2t: found tokens twice": dict(tensors={"d2t": np.zeros(48, np.int64)}),
    "d2t: file has I64 (47,), eagle3 needs I64 (48,)": dict(
        tensors={"d2t": np.arange(47, dtype=np.int64)}
    ),
    "d2t: file has I32 (48,)": dict(tensors={"d2t": np.arange(48, dtype=np.int32)}),
    "fc.weight: the file has no such tensor": dict(tensors={"fc.weight": None}),
    "fc.weight: file has (64, 64), eagle3 needs (64, 192)": dict(
        tensors={"fc.weight": np.zeros((64, 64), np.float32)}
    ),
    "blk.0.more.weight: eagle3 has no use for this tensor": dict(
        tensors={"blk.0.more.weight": np.zeros(64, np.float32)}
    ),
    "eagle3.logit_scale: found 2.0": dict(keys={"logit_scale": 2.0}),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_draft_that_does_not_fit_is_refused(message, tmp_path):
    target = load_model(tiny.write(tmp_path / "t.gguf", "llama"), num_threads=1, extracts=(1, 2, 3))
    reader = eagle.write(tmp_path / "d.gguf", **WRONG[message])
    with pytest.raises((ConfigError, ModelError), match=re.escape(message)):
        extracts_of(reader, target.reader)
        eagle_draft(target, reader, num_threads=1)
