"""Drafts of DFlash, DSpark and DFlash2 models: the context that they read is that of the text, the
text is the target's own, and files that do not fit are refused.
"""

import re

import numpy as np
import pytest

import oxillama
from oxillama._core.tape import Batch
from oxillama.speculative import (
    AsyncSpecConfig,
    SpeculativeConfig,
    SpeculativeDecoder,
    SpeculativeEngine,
)
from oxillama.speculative import dflash as drafting
from tests.model import dflash
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

MASK = VOCAB - 1  # a token whose row is zeros
NONE = np.zeros((HIDDEN, HIDDEN), np.float32)
NO_TOKENS = 0 * AXES[: VOCAB - HIDDEN]


def draft_of(path, kind, *, wrong=0, **more):
    """A draft that knows the token after the last one, from its row in the block ("block", whose
    further candidates are wrong), or of every candidate the next one, by its Markov head ("markov",
    and with an output of some tokens "rows") or its selector ("selector"), except where that would
    be one of the first `wrong`.
    """
    keys = {"attention.head_count": 2, "attention.head_count_kv": 2}
    keys |= {f"attention.{name}_length": HIDDEN // 2 for name in ("key", "value")}
    tensors = {"fc.weight": np.concatenate([NONE, NONE], axis=1)}
    for at in range(dflash.LAYERS):
        reads = kind in ("block", "selector") and at == 0
        layer = {
            "attn_q": NONE,
            "attn_k": NONE,
            "attn_v": AXES if reads else NONE,
            "attn_output": 100 * AXES if reads else NONE,
            "ffn_down": np.zeros((HIDDEN, dflash.FFN), np.float32),
        }
        tensors |= {f"blk.{at}.{name}.weight": value for name, value in layer.items()}
        for name in ("attn_q_norm", "attn_k_norm"):
            tensors[f"blk.{at}.{name}.weight"] = np.ones(HIDDEN // 2, np.float32)
    tensors["output_norm.weight"] = np.ones(HIDDEN, np.float32)
    step = 8 * np.concatenate([np.roll(STEP[:wrong], 1, axis=0), STEP[wrong:]])
    before, after = (np.concatenate([part, NO_TOKENS]) for part in (AXES, step))
    if kind in ("markov", "rows"):
        tensors |= {"markov_w1.weight": before, "markov_w2.weight": after}
        tensors["conf_proj.weight"] = np.zeros((1, 2 * HIDDEN), np.float32)
    if kind == "selector":
        keys |= {"selector_rank": HIDDEN, "selector_top_k": VOCAB}
        tensors |= {"selector_predecessor.weight": before, "selector_successor.weight": after}
        tensors["selector_hidden.weight"] = np.ones((HIDDEN, HIDDEN), np.float32)
        same = np.zeros((2, dflash.TAPS, HIDDEN), np.float32)
        same[:, 0] = 1
        groups = np.zeros((2 * dflash.TAPS * HIDDEN // dflash.GROUP, HIDDEN), np.float32)
        for at in range(dflash.LAYERS):
            for name in ("attn_conv", "ffn_conv"):
                tensors[f"blk.{at}.{name}_base"] = same
                tensors[f"blk.{at}.{name}_proj.weight"] = groups
    if kind == "rows":
        chosen = np.random.default_rng(3).permutation(HIDDEN)
        tensors |= {"output.weight": STEP[chosen], "markov_w2.weight": step[chosen]}
        tensors["d2t"] = chosen.astype(np.int64)
    kinds = dict(markov=kind in ("markov", "rows"), selector=kind == "selector")
    asked = dict(vocabulary=VOCAB, mask=MASK, words=WORDS) | kinds | more
    asked["keys"] = keys | asked.get("keys", {})
    asked["tensors"] = tensors | asked.get("tensors", {})
    dflash.write(path, **asked).close()
    return path


@pytest.mark.parametrize("most", [1, 3, 16])
@pytest.mark.parametrize("kind", ["block", "markov", "rows", "selector"])
def test_every_candidate_of_a_draft_that_knows_the_next_token_is_accepted(kind, most, tmp_path):
    keys = {"block_size": 2} if kind == "block" else {}
    draft = draft_of(tmp_path / "d.gguf", kind, keys=keys)
    target = target_of(tmp_path / "m.gguf")
    with oxillama.load(target, num_threads=1, speculative=draft) as engine:
        each = min(most, {"block": 1, "selector": dflash.BLOCK - 1}.get(kind, dflash.BLOCK))
        law.knows_the_next_token(engine, forced(engine, draft, most), each)


@pytest.fixture(scope="module", params=["block", "markov", "rows", "selector"])
def files(request, tmp_path_factory):
    """(a target, a draft that is right now and then)."""
    folder = tmp_path_factory.mktemp("dflash")
    target = target_of(folder / "m.gguf", share=0.05)
    return target, draft_of(folder / "d.gguf", request.param, wrong=HIDDEN // 4)


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


@pytest.mark.parametrize("kind", [{}, {"markov": True}, {"selector": True}])
@pytest.mark.parametrize(
    "arch", ["gpt-oss", "llama4", "mimo2", "qwen2moe", "qwen3", "qwen35", "step35"]
)
def test_targets_of_any_kind_draft_with_one(arch, kind, tmp_path):
    """Windowed, recurrent, experts; with the target's own table and head."""
    target = written(tmp_path / "m.gguf", arch)
    draft = tmp_path / "d.gguf"
    dflash.write(draft, vocabulary=VOCAB, words=WORDS, **kind).close()
    law.targets_of_any_kind_draft(target, draft)


WINDOWED = {
    "attention.sliding_window": 8,
    "attention.sliding_window_pattern": [True, False],
    "attention.causal_pattern": [True, False],
}


@pytest.mark.parametrize(
    "more",
    [{}, {"keys": WINDOWED}, {"keys": {"attention.causal": True}}, {"selector": True}],
)
def test_blocks_are_those_of_a_context_made_at_once(more, tmp_path, monkeypatch):
    """Bit for bit, whatever was rejected, forgotten or generated before, and in whatever parts the
    target's rows came: of the last 256 tokens of a prompt and what follows.
    """
    target = written(tmp_path / "m.gguf", "qwen3")
    draft = tmp_path / "d.gguf"
    dflash.write(draft, vocabulary=VOCAB, words=WORDS, **more).close()
    seen, rows, blocks = [], {}, drafting.BlockDrafter._run_blocks
    taken = drafting.BlockDrafter.take_carried

    def take(self, state, first, carried):
        rows.update({first + at: row.copy() for at, row in enumerate(carried)})
        taken(self, state, first, carried)

    def run(self, drafts):
        made = blocks(self, drafts)
        for one, block in zip(drafts, made):
            base = one.state.base
            context = np.stack([rows[base + at] for at in range(len(one.prefix) - 1)])
            seen.append((one.prefix[-1], context, block))
        return made

    monkeypatch.setattr(drafting.BlockDrafter, "take_carried", take)
    monkeypatch.setattr(drafting.BlockDrafter, "_run_blocks", run)
    rng = np.random.default_rng(9)
    with oxillama.load(target, num_threads=1, speculative=draft, context_size=512) as engine:
        session, way = engine.session(), forced(engine, draft, 3)
        for count in (300, 1, 40, 7):
            prompt = rng.integers(3, HIDDEN, count).tolist()
            engine.generate(
                prompt, session=session, max_tokens=20, sampler=SEEDED, seed=count, speculative=way
            )
        session.truncate(30)
        engine.generate([9], session=session, max_tokens=9, seed=2, speculative=way)
        model = way.drafter
        assert len({len(context) for _, context, _ in seen}) > 30
        assert max(len(context) for _, context, _ in seen) < 256 + 120
        for token, context, block in seen[:: max(1, len(seen) // 12)] + seen[-1:]:
            for found, wanted in zip(block, at_once(model, token, context)):
                assert np.array_equal(found, wanted[: len(found)])


def at_once(drafter, token, context):
    """The logits of a block's candidates behind a context that is made in one session, and what a
    selector reads.
    """
    core, block, count = drafter.core, drafter._block, len(context)
    session = core.new_session()
    with core.lock:
        core.keep(session)
        session.kv.reserve(count + block.rows)
    pages = [session.kv.table]
    every, zeros = np.arange(count, dtype=np.int32), np.zeros(count, np.int32)
    for part in np.array_split(every, -(-count // drafter._context.max_rows)):
        batch = Batch(zeros[part] - 1, part, pages, zeros[part], [], embeds=context[part])
        drafter._context.step(batch, core.memory, output="hidden")
    tokens = np.full(block.rows, block.mask, np.int32)
    tokens[0] = token
    every = np.arange(block.rows, dtype=np.int32)
    visible = np.full(block.rows, count + block.rows, np.int32)
    batch = Batch(
        tokens,
        count + every,
        pages,
        0 * every,
        every[block.first :],
        visible=None if block.causal else visible,
    )
    logits = core.program.step(batch, core.memory).copy()
    return logits, core.program.carried().copy() if core.program.carries else logits[:, :0]


def test_a_session_that_is_cut_drafts_again(files):
    """Back to before where its context began."""
    target, draft = files
    prompt = np.random.default_rng(3).integers(3, HIDDEN, 330).tolist()
    with oxillama.load(target, num_threads=1, speculative=draft, context_size=512) as engine:
        session, way = engine.session(), forced(engine, draft)
        options = dict(session=session, speculative=way, sampler=GREEDY)
        engine.generate(prompt, max_tokens=4, **options)
        session.truncate(20)
        done = engine.generate([5, 6], max_tokens=30, **options)
        assert done.speculation.accepted > 3


def test_a_model_must_be_loaded_with_it(files, plain, tmp_path):
    target, draft = files
    message = re.escape(f"speculative: found {str(draft)!r}, a DFlash draft, for a model")
    with pytest.raises(oxillama.ConfigError, match=message):
        plain.generate([3], max_tokens=3, speculative=draft)
    with pytest.raises(oxillama.ConfigError, match=message):
        SpeculativeEngine(SpeculativeConfig(target, draft))
    other = draft_of(tmp_path / "other.gguf", "block", layers=(0, 2))
    with oxillama.load(target, num_threads=1, speculative=other) as engine:
        with pytest.raises(oxillama.ConfigError, match=message):
            engine.generate([3], max_tokens=3, speculative=draft)
        same = draft_of(tmp_path / "same.gguf", "markov", layers=(0, 2))
        assert engine.generate([3], max_tokens=3, speculative=same).speculation is not None
    with pytest.raises(
        oxillama.ModelError, match="'dflash', which drafts for another model, which is loaded with"
    ):
        oxillama.load(draft)


@pytest.mark.parametrize(
    "message, changed",
    [
        ("draft: found dflash.target_layers [1, 9], wanted at most 3", {"layers": (1, 9)}),
        (
            "draft: found fc.weight of 128 columns for 3 target_layers, wanted 192",
            {"keys": {"target_layers": np.array([1, 2, 3], np.int32)}},
        ),
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
    dflash.write(tmp_path / "d.gguf", **({"vocabulary": VOCAB, "words": WORDS} | changed)).close()
    with pytest.raises(oxillama.ConfigError, match=re.escape(message)):
        oxillama.load(files[0], num_threads=1, speculative=tmp_path / "d.gguf")


def test_a_draft_has_no_sampler_of_its_own(half, files):
    config = SpeculativeConfig(half, files[1], draft_sampler=SEEDED)
    with pytest.raises(oxillama.ConfigError, match="draft_sampler: found one for a DFlash draft"):
        SpeculativeEngine(config)


def test_an_engine_for_speculation_goes_on_and_is_restored(half, plain, files):
    wanted = plain.generate([5, 6, 7], max_tokens=60, sampler=SEEDED, seed=12)
    config = SpeculativeConfig(half, files[1], seed=12, adaptive=False)
    with SpeculativeEngine(config) as engine:
        first = engine.generate([5, 6, 7], max_tokens=20, sampler=SEEDED)
        saved = engine.snapshot()
        rest = engine.generate(None, max_tokens=40)
        assert first.speculation.accepted and rest.speculation.accepted
        assert first.tokens + rest.tokens == wanted.tokens
    with SpeculativeEngine.resume(saved, half, files[1]) as engine:
        again = engine.generate(None, max_tokens=40)
        assert again.tokens == rest.tokens and again.speculation.accepted
    with pytest.raises(
        oxillama.ConfigError, match="which needs rows of each of the target's steps"
    ):
        SpeculativeDecoder(AsyncSpecConfig(), half, files[1])


def test_a_whole_output_is_drawn_from_by_regions(files, plain, tmp_path, monkeypatch):
    """As that of any draft; the bias of a Markov head is that of the same tokens."""
    draft = draft_of(tmp_path / "d.gguf", "markov")
    law.outputs_are_drawn_from_by_regions(plain, files[0], draft, monkeypatch)
