"""DFlash draft models: their own arithmetic against what was published, written out, and files that
do not fit.
"""

import re

import numpy as np
import pytest

from oxillama._core.tape import Batch
from oxillama.errors import ConfigError, ModelError
from oxillama.model.dflash import Block, extracts_of
from oxillama.model.drafts import dflash_draft
from oxillama.model.load import load_model
from oxillama.model.reference import Reference, compare
from tests.model import dflash, tiny
from tests.model.published import TOKENS, floats, rms, silu, stepped

EPS = 1e-5


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A model that carries what comes into two of its layers."""
    path = tmp_path_factory.mktemp("target") / "t.gguf"
    return load_model(tiny.write(path, "llama"), num_threads=1, extracts=(1, 2))


def convolved(part, name, x):
    """(x mixed with the rows before it, what mixes the result), of a block alone."""
    if f"{name}_proj.weight" not in part:
        return x, lambda y: y
    made = (x @ part[f"{name}_proj.weight"].T).reshape(len(x), 2, dflash.TAPS, -1, 1)

    def mixed(y, side):
        total = 0
        for tap in range(dflash.TAPS):
            earlier = np.concatenate([np.zeros((tap, y.shape[1])), y])[: len(y)]
            weight = part[f"{name}_base"][side, tap].reshape(-1, dflash.GROUP) + made[:, side, tap]
            total = total + weight.reshape(len(y), -1) * earlier
        return total

    return mixed(x, 0), lambda y: mixed(y, 1)


def published(
    reader, carried, tokens, *, table, causal=(False, False), window=0, near=(), scale=1.0
):
    """float64 (rows, hidden) behind the last norm, of a block of tokens behind a context: the
    target's rows of the tokens before it.
    """
    w, count = floats(reader), len(carried)
    g = rms(carried @ w["fc.weight"].T, w["enc.output_norm.weight"])
    x, dim = scale * table[tokens].astype(np.float64), dflash.HEAD_DIM
    rows, every = len(tokens), np.arange(count + len(tokens))
    angles = every[:, None] * 10000.0 ** (-2 * np.arange(dim // 2) / dim)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]

    def turned(y, first):
        low, high = np.split(y, 2, axis=-1)
        c, s = cos[first:], sin[first:]
        return np.concatenate([low * c - high * s, high * c + low * s], axis=-1)

    for at in range(dflash.LAYERS):
        part = {name[6:]: value for name, value in w.items() if name.startswith(f"blk.{at}.")}
        y, mixing = convolved(part, "attn_conv", rms(x, part["attn_norm.weight"]))
        both = np.concatenate([g, y])
        q = (y @ part["attn_q.weight"].T).reshape(rows, -1, dim)
        k = (both @ part["attn_k.weight"].T).reshape(len(both), -1, dim)
        if "attn_v.weight" in part:
            v = (both @ part["attn_v.weight"].T).reshape(len(both), -1, dim)
        else:
            v = rms(k)
        q = turned(rms(q, part["attn_q_norm.weight"]), count)
        k = turned(rms(k, part["attn_k_norm.weight"]), 0)
        times = dflash.HEADS // dflash.KV_HEADS
        k, v = k.repeat(times, axis=1), v.repeat(times, axis=1)
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(dim)
        distance = every[count:, None] - every[None]
        unseen = (distance < 0) & causal[at]
        if window and near[at]:
            unseen |= distance >= window
        scores = np.where(unseen, -np.inf, scores)
        if "attn_sinks.weight" in part:
            sinks = np.broadcast_to(
                part["attn_sinks.weight"][:, None, None], (len(scores), rows, 1)
            )
            scores = np.concatenate([scores, sinks], axis=-1)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares = (shares / shares.sum(-1, keepdims=True))[..., : len(both)]
        mixed = np.einsum("hij,jhd->ihd", shares, v).reshape(rows, -1)
        y = mixing(mixed @ part["attn_output.weight"].T)
        if "post_attention_norm.weight" in part:
            y = rms(y, part["post_attention_norm.weight"])
        x = x + y
        y, mixing = convolved(part, "ffn_conv", rms(x, part["ffn_norm.weight"]))
        y = silu(y @ part["ffn_gate.weight"].T) * (y @ part["ffn_up.weight"].T)
        y = mixing(y @ part["ffn_down.weight"].T)
        if "post_ffw_norm.weight" in part:
            y = rms(y, part["post_ffw_norm.weight"])
        x = (x + y) * part.get("layer_output_scale.weight", 1.0)
    return rms(x, w["output_norm.weight"])


def filled(draft, parts, carried, tokens, *, chunks=1):
    """float32 (rows, outputs) of a block behind the context of carried rows, which comes in parts;
    the pages are 32-bit floats.
    """
    memory, block = draft.page_memory(kv_type="f32"), parts.block
    memory.ensure(4)
    table, start = [np.arange(4, dtype=np.int32)], 0
    for rows in np.array_split(carried, chunks):
        places = np.arange(start, start + len(rows), dtype=np.int32)
        zeros = np.zeros(len(rows), np.int32)
        batch = Batch(zeros - 1, places, table, zeros, [], embeds=rows)
        parts.context.step(batch, memory, output="hidden")
        start += len(rows)
    every = np.arange(len(tokens), dtype=np.int32)
    batch = Batch(
        tokens,
        start + every,
        table,
        0 * every,
        every,
        visible=None if block.causal else np.full(len(tokens), start + len(tokens), np.int32),
    )
    return draft.program.step(batch, memory).copy()


def close(found, wanted):
    return np.abs(found - wanted).max() < 4e-6 * np.abs(wanted).max()


def block_tokens(count=dflash.BLOCK):
    return np.array([TOKENS[-1], *[dflash.MASK] * (count - 1)], np.int32)


MORE = {
    f"blk.{at}.{name}.weight": 1 + 0.1 * np.arange(size, dtype=np.float32)
    for at in range(dflash.LAYERS)
    for name, size in (
        ("post_attention_norm", tiny.HIDDEN),
        ("post_ffw_norm", tiny.HIDDEN),
        ("layer_output_scale", 1),
        ("attn_sinks", dflash.HEADS),
    )
}
NO_VALUES = {f"blk.{at}.attn_v.weight": None for at in range(dflash.LAYERS)}
CASES = {
    "plain": {},
    "causal": dict(keys={"attention.causal": True}),
    "causal in one": dict(keys={"attention.causal_pattern": [True, False]}),
    "windows": dict(
        keys={"attention.sliding_window": 7, "attention.sliding_window_pattern": [True, False]}
    ),
    "scaled": dict(keys={"embedding_scale": 3.0}),
    "sections": dict(keys={"rope.dimension_sections": np.array([8, 0, 0, 0], np.int32)}),
    "norms behind": dict(tensors=MORE),
    "no values": dict(tensors=NO_VALUES),
    "markov": dict(markov=True),
    "convolutions": dict(selector=True),
    "convolutions, causal": dict(selector=True, keys={"attention.causal": True}),
}


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_a_draft_computes_what_was_published(case, chunks, target, tmp_path):
    """The rows of a block behind a context, with the target's table and output."""
    more = CASES[case]
    reader = dflash.write(tmp_path / "d.gguf", **more)
    assert extracts_of(reader, target.reader) == (1, 2)
    draft, parts, tokens = dflash_draft(target, reader, num_threads=1, max_rows=64)
    keys = more.get("keys", {})
    causal = keys.get("attention.causal_pattern", [keys.get("attention.causal", False)] * 2)
    assert tokens is None
    first = 0 if case == "markov" else 1
    assert parts.block == Block(dflash.BLOCK, first, dflash.MASK, tuple(causal))
    _, carried = stepped(target)
    its = floats(target.reader)
    wanted = published(
        reader,
        carried.astype(np.float64),
        block_tokens(),
        table=its["token_embd.weight"],
        causal=causal,
        window=keys.get("attention.sliding_window", 0),
        near=keys.get("attention.sliding_window_pattern", ()),
        scale=keys.get("embedding_scale", 1.0),
    )
    found = filled(draft, parts, carried, block_tokens(), chunks=chunks)
    assert close(found, wanted @ its["output.weight"].T)


@pytest.mark.parametrize("own", ["table", "all", "rows"])
def test_a_draft_has_a_table_and_an_output_of_its_own(own, target, tmp_path):
    """A table without an output is both; an output of some tokens names the target's."""
    keys = {"logit_scale": 0.5, "final_logit_softcapping": 4.0}
    reader = dflash.write(tmp_path / "d.gguf", own=own, keys=keys)
    draft, parts, tokens = dflash_draft(target, reader, num_threads=1, max_rows=64)
    w, its = floats(reader), floats(target.reader)
    table = w.get("token_embd.weight", its["token_embd.weight"])
    _, carried = stepped(target)
    rows = published(reader, carried.astype(np.float64), block_tokens(), table=table)
    wanted = 4 * np.tanh(rows @ w.get("output.weight", table).T * 0.5 / 4)
    assert close(filled(draft, parts, carried, block_tokens()), wanted)
    if own == "rows":
        assert np.array_equal(tokens, reader.data("d2t").view("<i8"))
    else:
        assert tokens is None


@pytest.mark.parametrize("own", ["none", "rows"])
def test_a_markov_head_adds_to_the_logits_by_the_token_before(own, target, tmp_path):
    reader = dflash.write(tmp_path / "d.gguf", own=own, markov=True)
    _, parts, _ = dflash_draft(target, reader, num_threads=1, max_rows=64)
    w = floats(reader)
    wanted = w["markov_w1.weight"][TOKENS] @ w["markov_w2.weight"].T
    assert close(parts.bias.tokens(TOKENS), wanted)


def test_a_selector_has_rows_of_a_block_and_of_tokens(target, tmp_path):
    reader = dflash.write(tmp_path / "d.gguf", selector=True)
    draft, parts, _ = dflash_draft(target, reader, num_threads=1, max_rows=64)
    w, its = floats(reader), floats(target.reader)
    _, carried = stepped(target)
    filled(draft, parts, carried, block_tokens())
    rows = published(reader, carried, block_tokens(), table=its["token_embd.weight"])
    assert close(draft.program.carried(), rows @ w["selector_hidden.weight"].T)
    chosen = parts.selector
    assert chosen.most == dflash.LIKELY and parts.bias is None
    assert np.array_equal(chosen.before.tokens(TOKENS), w["selector_predecessor.weight"][TOKENS])
    assert np.array_equal(chosen.after.tokens(TOKENS), w["selector_successor.weight"][TOKENS])


@pytest.mark.parametrize("more", [{"markov": True}, {"selector": True}])
def test_blocks_side_by_side_are_those_of_each_alone(more, target, tmp_path):
    """Bit for bit, on any number of threads."""
    reader = dflash.write(tmp_path / "d.gguf", **more)
    draft, parts, _ = dflash_draft(target, reader, num_threads=2, max_rows=64)
    alone, several, _ = dflash_draft(target, reader, num_threads=1, max_rows=64)
    carried, count = stepped(target)[1], dflash.BLOCK
    contexts = [carried, carried[:4]]
    tokens = np.array([TOKENS[-1], *[dflash.MASK] * (count - 1)], np.int32)
    memory = draft.page_memory(kv_type="f32")
    memory.ensure(2)
    tables = [np.array([1], np.int32), np.array([0], np.int32)]
    sizes = [len(rows) for rows in contexts]
    places = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
    owner = np.repeat(np.arange(2, dtype=np.int32), sizes)
    embeds = np.concatenate(contexts)
    batch = Batch(0 * places - 1, places, tables, owner, [], embeds=embeds)
    parts.context.step(batch, memory, output="hidden")
    batch = Batch(
        np.tile(tokens, 2),
        np.concatenate([np.arange(size, size + count, dtype=np.int32) for size in sizes]),
        tables,
        np.repeat(np.arange(2, dtype=np.int32), count),
        np.arange(2 * count, dtype=np.int32),
        visible=np.repeat(np.array(sizes, np.int32) + count, count),
    )
    both = draft.program.step(batch, memory).copy()
    for found, rows in zip(np.split(both, 2), contexts):
        assert np.array_equal(found, filled(alone, several, rows, tokens))


@pytest.mark.parametrize("more", [{}, {"selector": True}])
def test_every_op_of_a_block_does_what_its_definition_says(more, target, tmp_path):
    reader = dflash.write(tmp_path / "d.gguf", **more)
    draft, parts, _ = dflash_draft(target, reader, num_threads=1, max_rows=64)
    count, memory = parts.block.rows, draft.page_memory(kv_type="f32")
    reference = Reference(draft.tape, draft.reader, kv_type="f32")
    memory.ensure(1)
    every, visible = np.arange(count, dtype=np.int32), np.full(count, count, np.int32)
    tables = [np.zeros(1, np.int32)]
    batch = Batch(block_tokens(), every, tables, 0 * every, every, visible=visible)
    frame = reference.frame(block_tokens())
    frame.visible = visible
    asked = dict(tolerance=1e-5, frame=frame)
    ops = list(compare(reference, block_tokens(), draft.program, batch, memory, **asked))
    assert [op.op for op in ops] == [op.name for op in draft.tape.ops]
    assert all(op.agrees for op in ops), ops


def test_a_first_row_that_predicts_nothing_is_left_out(target, tmp_path):
    keys = {"sample_from_anchor": False}
    reader = dflash.write(tmp_path / "d.gguf", markov=True, keys=keys)
    block = dflash_draft(target, reader, num_threads=1)[1].block
    assert (block.first, block.most) == (1, dflash.BLOCK - 1)
    reader = dflash.write(tmp_path / "e.gguf", markov=True, keys={"sample_from_anchor": None})
    block = dflash_draft(target, reader, num_threads=1)[1].block
    assert (block.first, block.most) == (0, dflash.BLOCK)


WINDOWED = {"attention.sliding_window": 5, "attention.sliding_window_pattern": [True, False]}
WRONG = {
    "draft: found dflash.hyper_connection.count 4, wanted no such key: drafts with": dict(
        keys={"hyper_connection.count": 4}
    ),
    "markov_w1.weight: found it beside selector_hidden.weight": dict(markov=True, selector=True),
    "dflash.selector_rank: found 8, which dflash does not use": dict(keys={"selector_rank": 8}),
    "dflash.selector_top_k: found 0, wanted an integer from 1": dict(
        selector=True, keys={"selector_top_k": 0}
    ),
    "dflash.conv_group_size: found 7, wanted a divisor of embedding_length 64": dict(
        selector=True, keys={"conv_group_size": 7}
    ),
    "selector_successor.weight: the file has no such tensor": dict(
        selector=True, tensors={"selector_successor.weight": None}
    ),
    "blk.1.ffn_conv_base: file has (2, 2, 64), dflash needs (2, 3, 64)": dict(
        selector=True, tensors={"blk.1.ffn_conv_base": np.zeros((2, 2, 64), np.float32)}
    ),
    "draft: found dflash.target_layers [1, 3], wanted at most 2, as the target has 3 layers": dict(
        layers=(1, 3)
    ),
    "draft: found fc.weight of 128 columns for 3 target_layers, wanted 192": dict(
        keys={"target_layers": np.array([0, 1, 2], np.int32)}
    ),
    "draft: found fc.weight of 128 columns for 0 target_layers": dict(
        keys={"target_layers": np.zeros(0, np.int32)}
    ),
    "dflash.target_layers: missing": dict(keys={"target_layers": None}),
    "draft: found dflash.embedding_length 96 without token_embd.weight, wanted 64": dict(hidden=96),
    "draft: found token_embd.weight of 88 rows, wanted 80": dict(vocabulary=88, own="all"),
    "draft: found output.weight of 48 rows without d2t, wanted 80": dict(
        own="rows", tensors={"d2t": None}
    ),
    "d2t: file has I64 (47,), dflash needs I64 (48,)": dict(
        own="rows", tensors={"d2t": np.arange(47, dtype=np.int64)}
    ),
    "d2t: found tokens twice": dict(own="rows", tensors={"d2t": np.zeros(48, np.int64)}),
    "tokenizer.ggml.mask_token_id: missing": dict(mask=None),
    "tokenizer.ggml.mask_token_id: found 80, wanted an integer from 0 to 79": dict(mask=80),
    "dflash.block_size: found 1, wanted": dict(keys={"block_size": 1}),
    "dflash.sample_from_anchor: found True, wanted False": dict(keys={"sample_from_anchor": True}),
    "dflash.attention.sliding_window: found 5, wanted at least the block_size, 6": dict(
        keys=WINDOWED
    ),
    "dflash.attention.sliding_window_pattern: missing": dict(keys={"attention.sliding_window": 9}),
    "dflash.rope.dimension_sections: found [4, 4, 0, 0], wanted zeros": dict(
        keys={"rope.dimension_sections": np.array([4, 4, 0, 0], np.int32)}
    ),
    "dflash.hidden_activation: found 'relu', wanted": dict(keys={"hidden_activation": "relu"}),
    "dflash.attention.value_length: found 8, wanted 16": dict(keys={"attention.value_length": 8}),
    "dflash.logit_scale, dflash.final_logit_softcapping: found 2 and 0 beside": dict(
        markov=True, keys={"logit_scale": 2.0}
    ),
    "fc.weight: the file has no such tensor": dict(tensors={"fc.weight": None}),
    "markov_w2.weight: file has (80, 8), dflash needs (80, 16)": dict(
        markov=True, tensors={"markov_w2.weight": np.zeros((80, 8), np.float32)}
    ),
    "blk.0.attn_q_norm.weight: the file has no such tensor": dict(
        tensors={"blk.0.attn_q_norm.weight": None}
    ),
    "dflash.selector_rank: missing": dict(
        tensors={"selector_hidden.weight": np.zeros((8, 64), np.float32)}
    ),
    "dflash.conv_kernel_size: found 4": dict(keys={"conv_kernel_size": 4}),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_draft_that_does_not_fit_is_refused(message, target, tmp_path):
    reader = dflash.write(tmp_path / "d.gguf", **WRONG[message])
    with pytest.raises((ConfigError, ModelError), match=re.escape(message)):
        extracts_of(reader, target.reader)
        dflash_draft(target, reader, num_threads=1)
