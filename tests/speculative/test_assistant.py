"""Drafts of Gemma 4 assistants: they read the pages of the target's sessions, the text is the
target's own, and files that do not fit are refused.
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
from tests.model import assistant
from tests.model.invented import HIDDEN, VOCAB
from tests.speculative import law
from tests.speculative.law import (
    AXES,
    GREEDY,
    NEXT,
    PIECES,
    SEEDED,
    STEP,
    WORDS,
    forced,
    ways,
    written,
)

ADDS = ("post_attention_norm", "post_ffw_norm.", "post_norm")
ARCH = "gemma4-assistant"


def target_of(path, *, share=0.0):
    """A model whose next token is `NEXT` of the last one, but for `share` of what its layers add.
    Tokens are the axes of rows.
    """

    def changed(name, values):
        if name == "token_embd.weight":
            return np.concatenate([AXES, 0 * AXES[: VOCAB - HIDDEN]])
        return values * np.float32(share) if any(one in name for one in ADDS) else values

    head = np.concatenate([STEP, 0 * AXES[: VOCAB - HIDDEN]])
    return written(path, "gemma4", changed, more={"output.weight": head})


def draft_of(path, reads, **more):
    """A draft that knows the next token from the last one, or from the row before that, which is
    the axis of the token before; its layers add nothing.
    """
    none, ones = np.zeros((HIDDEN, HIDDEN), np.float32), np.ones(HIDDEN, np.float32)
    follows = STEP if reads == "token" else AXES[np.argsort(NEXT[NEXT])]
    tensors = {
        f"blk.{layer}.{name}.weight": 0 * ones
        for layer in range(assistant.LAYERS)
        for name in ("post_attention_norm", "post_ffw_norm")
    } | {
        "token_embd.weight": np.concatenate([follows, 0 * AXES[: VOCAB - HIDDEN]]),
        "output_norm.weight": ones,
        "nextn.pre_projection.weight": np.concatenate(
            [AXES, none] if reads == "token" else [none, AXES], axis=1
        ),
        "nextn.post_projection.weight": STEP,
    }
    assistant.write(path, width=HIDDEN, tensors=tensors, words=WORDS, **more).close()
    return path


@pytest.mark.parametrize("most", [1, 3, 16])
@pytest.mark.parametrize("reads", ["row", "token"])
def test_every_candidate_of_a_draft_that_knows_the_next_token_is_accepted(reads, most, tmp_path):
    draft, target = draft_of(tmp_path / "d.gguf", reads), target_of(tmp_path / "m.gguf")
    with oxillama.load(target, num_threads=1, speculative=draft) as engine:
        law.knows_the_next_token(engine, forced(engine, draft, most), most)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """(a target, a draft that is right now and then)."""
    folder = tmp_path_factory.mktemp("assistant")
    return target_of(folder / "m.gguf", share=0.15), draft_of(folder / "d.gguf", "row")


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


class Proposals:
    """The texts that a drafter was asked for, and its candidates."""

    def __init__(self, drafter, monkeypatch):
        self.drafter, self.found, self._propose = drafter, [], drafter.propose
        monkeypatch.setattr(drafter, "propose", self.propose)

    def propose(self, requests):
        drafts = self._propose(requests)
        for request, draft in zip(requests, drafts):
            self.found.append((list(request.session.tokens), list(draft.tokens)))
        return drafts


def recomputed(target, drafter, tokens, count):
    """Greedy candidates behind a text whose tokens are evaluated from nothing."""
    memory, n = target.page_memory(), len(tokens) - 1
    memory.ensure(-(-n // 16))
    table, zero = [np.arange(-(-n // 16), dtype=np.int32)], np.zeros(1, np.int32)
    every, last = np.arange(n, dtype=np.int32), np.array(tokens[-1:], np.int32)
    target.program.step(Batch(tokens[:n], every, table, 0 * every, every[-1:]), memory)
    row, out = drafter._fusion.each(target.program.carried()), []
    program = drafter.core.program
    for _ in range(count):
        batch = Batch(last, [n - 1], table, zero, zero, embeds=row, rope=[n])
        out.append(int(program.step(batch, memory)[0].argmax()))
        row, last = program.carried().copy(), np.array(out[-1:], np.int32)
    return out


def test_candidates_are_those_of_a_text_evaluated_from_nothing(files, tmp_path, monkeypatch):
    """Near parts of pages that were given back, pages shared with a cache and with forks, requests
    whose pages are taken while others run, batches of several.
    """
    assistant.write(tmp_path / "d.gguf", words=WORDS).close()
    config = oxillama.EngineConfig(
        model_path=files[0],
        num_threads=1,
        speculative=tmp_path / "d.gguf",
        max_pages=24,
        prefill_chunk_size=40,
        context_size=250,
    )
    rng = np.random.default_rng(3)
    with oxillama.InferenceEngine(config) as engine:
        engine.load_model()
        way = forced(engine, tmp_path / "d.gguf", 3)
        asked = Proposals(way.drafter, monkeypatch)
        options = dict(max_tokens=30, sampler=GREEDY, speculative=way)
        long = rng.integers(3, HIDDEN, 150).tolist()
        for prompt in (long, long[:90] + [5, 6], [7]):
            engine.generate(prompt, **options)
        session = engine.session()
        engine.generate(long[:60], session=session, **options)
        other = session.fork()
        engine.generate([9, 10], session=session, **options)
        engine.generate([11], session=other, **options)
        prompts = [rng.integers(3, HIDDEN, 70 + 9 * at).tolist() for at in range(5)]
        for running in [engine.submit(prompt, **options) for prompt in prompts]:
            running.result()
        assert engine.metrics().requests_preempted_total > 0
        assert engine.metrics().pages_leaked == 0
        target = engine.loaded.model
        drafted = [(tokens, found) for tokens, found in asked.found if found]
        assert len(drafted) > 100 and max(len(tokens) for tokens, _ in drafted) > 150
        for tokens, found in drafted[::7]:
            assert recomputed(target, way.drafter, tokens, len(found)) == found


def test_of_a_prompt_one_row_is_taken_and_of_later_steps_all(files, half, monkeypatch):
    way, taken = forced(half, files[1], 3), []
    take = way.drafter.take_carried

    def noted(state, first, rows):
        taken.append((first, len(rows)))
        take(state, first, rows)

    monkeypatch.setattr(way.drafter, "take_carried", noted)
    prompt = np.random.default_rng(9).integers(3, HIDDEN, 40).tolist()
    options = dict(max_tokens=12, sampler=GREEDY, speculative=way, cache_prompt=False)
    done = half.generate(prompt, **options)
    assert taken[0] == (39, 1) and taken[1] == (40, 4)
    assert sum(count for _, count in taken) == len(done.tokens) + done.speculation.rejected


def test_there_are_no_candidates_before_forced_tokens_were_evaluated(
    files, half, plain, monkeypatch
):
    """The row before the last of them is unknown until then."""
    way = forced(half, files[1], 3)
    asked = Proposals(way.drafter, monkeypatch)
    options = dict(max_tokens=40, sampler=SEEDED, seed=1, regex=r"[a-m]{2}hello[0-9]{4}")
    wanted = plain.generate([5, 6, 7], **options)
    assert half.generate([5, 6, 7], speculative=way, **options).tokens == wanted.tokens
    lengths = [(len(tokens), bool(found)) for tokens, found in asked.found]
    assert lengths[:3] == [(4, True), (10, False), (11, True)]


def test_a_model_must_be_loaded_with_it(files, plain, tmp_path):
    target, draft = files
    message = re.escape(f"speculative: found {str(draft)!r}, a Gemma 4 assistant, for a model")
    with pytest.raises(oxillama.ConfigError, match=message):
        plain.generate([3], max_tokens=3, speculative=draft)
    with pytest.raises(oxillama.ConfigError, match=message):
        SpeculativeEngine(SpeculativeConfig(target, draft))
    with pytest.raises(
        oxillama.ModelError, match=f"'{ARCH}', which drafts for another model, which is loaded with"
    ):
        oxillama.load(draft)
    with pytest.raises(oxillama.ConfigError, match="holds no GGUF file with the target's"):
        plain.generate([3], max_tokens=3, speculative=draft_of(tmp_path / "d.gguf", "row").parent)


@pytest.mark.parametrize(
    "message, changed",
    [
        (f"draft: found {ARCH}.embedding_length_out 32, wanted 64", {"target": 32}),
        (
            f"draft: found {ARCH}.attention.sliding_window 4, wanted 8",
            {"keys": {"attention.sliding_window": 4}},
        ),
        (
            "draft: its vocabulary of 80 lacks 1 of the target's",
            {"words": WORDS | {"tokenizer.ggml.tokens": [*PIECES[:-1], "other"]}},
        ),
    ],
)
def test_a_draft_that_was_made_for_another_model_is_refused(files, tmp_path, message, changed):
    assistant.write(tmp_path / "d.gguf", **({"words": WORDS} | changed)).close()
    with pytest.raises(oxillama.ConfigError, match=re.escape(message)):
        oxillama.load(files[0], num_threads=1, speculative=tmp_path / "d.gguf")


def test_it_is_no_draft_for_another_architecture(files, tmp_path):
    target = written(tmp_path / "m.gguf", "gemma3")
    with pytest.raises(oxillama.ConfigError, match=f"draft: found {ARCH} for gemma3, wanted it"):
        oxillama.load(target, num_threads=1, speculative=files[1])


def test_a_draft_has_no_sampler_and_no_thread_of_its_own(half, files):
    config = SpeculativeConfig(half, files[1], draft_sampler=SEEDED)
    message = "draft_sampler: found one for a Gemma 4 assistant"
    with pytest.raises(oxillama.ConfigError, match=message):
        SpeculativeEngine(config)
    with pytest.raises(
        oxillama.ConfigError, match="which needs rows of each of the target's steps"
    ):
        SpeculativeDecoder(AsyncSpecConfig(), half, files[1])


def test_an_engine_for_speculation_goes_on_and_is_resumed(half, plain, files):
    wanted = plain.generate([5, 6, 7], max_tokens=60, sampler=SEEDED, seed=12)
    config = SpeculativeConfig(half, files[1], seed=12, adaptive=False)
    with SpeculativeEngine(config) as engine:
        first = engine.generate([5, 6, 7], max_tokens=20, sampler=SEEDED)
        saved = engine.snapshot()
        rest = engine.generate(None, max_tokens=40)
        assert first.speculation.accepted and rest.speculation.accepted
        assert first.tokens + rest.tokens == wanted.tokens
    with SpeculativeEngine.resume(saved, half, files[1]) as engine:
        rest = engine.generate(None, max_tokens=40)
        assert rest.speculation.accepted and first.tokens + rest.tokens == wanted.tokens


def test_an_output_is_drawn_from_by_regions(files, plain, monkeypatch):
    """As that of any draft that has a row for each token."""
    law.outputs_are_drawn_from_by_regions(plain, *files, monkeypatch)
