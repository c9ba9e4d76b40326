"""A decoder behind an encoder (T5) under the engine: a text in is a source, what is drawn is the
answer to it alone, and what has no meaning there is refused by name.
"""

import numpy as np
import pytest

import oxillama
from oxillama import BeamSearchConfig, SamplerConfig
from oxillama.engine.request import PrefillRequest
from oxillama.engine.scheduler import SchedulerConfig
from oxillama.errors import (
    ConfigError,
    ContextError,
    SnapshotIncompatible,
    TemplateError,
)
from oxillama.media.prompt import ImagePrompt
from oxillama.sampling import Sampler
from tests.lora.made import random_pair, write_lora
from tests.model.invented import VOCAB
from tests.model.worded import worded

SOURCE = [5, 9, 33, 7, 70, 7, 12, 40, 41, 3] * 4
TEXT = "a source of words"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return worded(tmp_path_factory.mktemp("t5"))


@pytest.fixture(scope="module")
def engine(path):
    with oxillama.load(path, num_threads=2) as made:
        yield made
        assert made.metrics().pages_leaked == 0


def written_out(engine, source, count, *, config=None):
    """An answer drawn by hand, from the logits of `prefill` and `forward_one`."""
    session, tokens = engine.session(), []
    sampler = Sampler(config or SamplerConfig.greedy(), VOCAB)
    sampler.accept_prompt(np.array([0], np.int32))  # the decoder's start token, and no other
    row = engine.prefill(source, session=session)
    for _ in range(count):
        tokens.append(sampler.sample(row.copy()))
        sampler.accept(tokens[-1])
        row = engine.forward_one(tokens[-1], session=session)
    assert session.tokens == [*source, 0, *tokens]
    return tokens


def test_an_answer_is_what_the_decoder_draws_after_its_start_token(engine):
    done = engine.generate(SOURCE, max_tokens=12, temperature=0, ignore_eos=True)
    assert list(done.tokens) == written_out(engine, SOURCE, 12)
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (len(SOURCE) + 1, 12)


def test_a_text_is_a_source_with_its_end_token(engine):
    ids = engine.tokenize(TEXT)
    assert ids[-1] == 1
    options = dict(max_tokens=9, seed=4, ignore_eos=True)
    text = engine.generate(TEXT, **options)
    assert text.tokens == engine.generate(ids, **options).tokens
    assert text.text == engine.detokenize(text.tokens).lstrip(" ")
    assert "".join(piece.text for piece in engine.stream(TEXT, **options)) == text.text


def test_penalties_count_the_answer_alone(engine):
    config = SamplerConfig(
        temperature=0, repetition_penalty=1.8, presence_penalty=0.4, repetition_window=64
    )
    done = engine.generate(SOURCE, max_tokens=12, sampler=config.replace(ignore_eos=True))
    assert list(done.tokens) == written_out(engine, SOURCE, 12, config=config)
    session = engine.session()
    options = dict(session=session, sampler=config.replace(ignore_eos=True))
    first = engine.generate(SOURCE, max_tokens=5, **options)
    rest = engine.generate(None, max_tokens=7, session=session)
    assert (*first.tokens, *rest.tokens) == done.tokens


@pytest.mark.parametrize(
    "more",
    (
        dict(num_threads=1),
        dict(prefill_chunk_size=4, prefix_cache=False),
        dict(page_size=32, scheduler=SchedulerConfig(max_batch_tokens=40)),
        dict(max_pages=12, scheduler=SchedulerConfig(max_sequences=3)),
    ),
    ids=lambda more: " ".join(more),
)
def test_answers_are_the_same_however_they_are_run(path, engine, more):
    sources = [SOURCE, SOURCE[:7], SOURCE[1:], SOURCE, [3], SOURCE[:33]]
    options = dict(max_tokens=14, temperature=0.8, seed=3, logprobs=2, ignore_eos=True)
    alone = [engine.generate(source, **options) for source in sources]
    with oxillama.load(path, **more) as other:
        requests = [other.submit(source, **options) for source in sources]
        found = [request.result() for request in requests]
        assert other.metrics().pages_leaked == 0
    assert [each.tokens for each in found] == [each.tokens for each in alone]
    assert [each.logprobs for each in found] == [each.logprobs for each in alone]


def test_sources_share_pages_as_a_whole_or_not_at_all(path):
    options = dict(max_tokens=3, temperature=0, ignore_eos=True)
    with oxillama.load(path) as engine:
        first = engine.generate(SOURCE, **options)
        assert first.usage.cached_tokens == 0
        # the same first tokens, but the encoder saw others behind them
        longer = engine.generate([*SOURCE, 8], **options)
        assert longer.usage.cached_tokens == 0
        again = engine.generate(SOURCE, **options)
        assert again.usage.cached_tokens == len(SOURCE) and again.tokens == first.tokens
        assert engine.generate(SOURCE[:-1], **options).usage.cached_tokens == 0


def test_several_answers_and_beams_are_those_of_single_ones(engine):
    options = dict(max_tokens=8, temperature=1.0, ignore_eos=True)
    several = engine.generate(SOURCE, n=3, seed=5, **options)
    alone = [engine.generate(SOURCE, seed=each.seed, **options) for each in several]
    assert [each.tokens for each in several] == [each.tokens for each in alone]
    best = engine.generate(SOURCE, n=1, best_of=3, seed=5, logprobs=0, **options)[0]
    assert best.tokens in [each.tokens for each in several]
    narrow = BeamSearchConfig(beam_width=1, max_new_tokens=8)
    (beam,) = engine.beam_generate(SOURCE, config=narrow)
    greedy = engine.generate(SOURCE, max_tokens=8, temperature=0)
    assert tuple(beam.tokens) == greedy.tokens


def test_candidates_and_grammars_change_nothing_else(engine):
    options = dict(max_tokens=20, temperature=0.3, seed=2, ignore_eos=True)
    plain = engine.generate(SOURCE, **options)
    assert engine.generate(SOURCE, speculative="lookup", **options).tokens == plain.tokens
    done = engine.generate(TEXT, regex="[a-c]{5}", max_tokens=20, temperature=0)
    assert len(done.text) == 5 and set(done.text) <= set("abc") and done.finish_reason == "stop"


def test_a_session_is_its_tokens(engine):
    session = engine.session()
    options = dict(temperature=0, ignore_eos=True)
    first = engine.generate(SOURCE, session=session, max_tokens=6, **options)
    assert (session.target, len(session)) == (len(SOURCE), len(SOURCE) + 7)
    fork = session.fork()
    fork.truncate(len(SOURCE) + 3)
    again = engine.generate(None, session=fork, max_tokens=4, **options)
    assert again.tokens == first.tokens[2:]
    fork.truncate(len(SOURCE) + 1)
    fork.extend([17, 18])
    forced = engine.generate(None, session=fork, max_tokens=4, **options)
    with engine.session() as other:
        for token in (17, 18):
            if not len(other):
                engine.prefill(SOURCE, session=other)
            row = engine.forward_one(token, session=other)
        assert forced.tokens[0] == row.argmax()
    for length in (len(SOURCE), 5):
        with pytest.raises(ContextError, match=f"truncate: found {length}, which is within the so"):
            session.truncate(length)
    session.truncate(0)
    assert engine.generate([4], session=session, max_tokens=2, **options).usage.prompt_tokens == 2


def test_a_snapshot_goes_on_with_the_same_bits(path, engine):
    options = dict(temperature=0.9, seed=8, ignore_eos=True)
    whole = engine.generate(SOURCE, max_tokens=12, **options)
    session = engine.session()
    first = engine.generate(SOURCE, session=session, max_tokens=5, **options)
    saved = session.snapshot()
    with oxillama.load(path, num_threads=1) as other:
        restored = other.restore(saved)
        assert restored.target == len(SOURCE) and restored.tokens == session.tokens
        rest = other.generate(None, session=restored, max_tokens=7)
        assert (*first.tokens, *rest.tokens) == whole.tokens
        assert other.metrics().tokens_prefilled_total <= 1
        empty = other.restore(other.session().snapshot())
        assert len(empty) == 0


def test_a_snapshot_must_say_where_its_source_ends(engine, monkeypatch):
    from oxillama.snapshot import session as saving

    session = engine.session()
    engine.generate(SOURCE, session=session, max_tokens=3, temperature=0, ignore_eos=True)
    own = saving.Snapshots._serialised
    for rows, message in (
        (None, "source: found None, wanted one"),
        (0, "source: found 0, wanted 1 to"),
        (len(SOURCE) - 1, "source: found 39 tokens before 3"),
        ("40", "source: found '40'"),
    ):

        def changed(self, session, rows=rows):
            facts, sections = own(self, session)
            facts["source"] = rows
            return facts, sections

        monkeypatch.setattr(saving.Snapshots, "_serialised", changed)
        with pytest.raises(SnapshotIncompatible, match=message):
            engine.restore(session.snapshot())


def test_there_is_one_source(engine):
    session = engine.session()
    engine.generate(SOURCE, session=session, max_tokens=2, ignore_eos=True)
    length = len(session)
    for prompt in (TEXT, [4, 5]):
        with pytest.raises(
            ConfigError, match="prompt: found one for a session of 43 tokens, whose"
        ):
            engine.generate(prompt, session=session)
        with pytest.raises(ConfigError, match="wanted a new session"):
            engine.beam_generate(prompt, session=session)
    with pytest.raises(ConfigError, match="wanted a new session"):
        engine.prefill(TEXT, session=session)
    assert len(session) == length
    with oxillama.load() as other:
        core = engine.loaded.core
        with pytest.raises(ConfigError, match="found a source for a model without an encoder"):
            other.generate(core.sourced([4, 5]), max_tokens=1)
    for prompt in ([4, 5], [6, 7] + core.sourced([4, 5]), core.sourced([4]) + core.sourced([5])):
        with pytest.raises(ConfigError, match="no source at its beginning, wanted a text to enc"):
            core.submit(_request(engine, prompt))


def _request(engine, tokens):
    core = engine.loaded.core
    return core.request(PrefillRequest, core.new_session(tokens))


def test_what_a_source_has_no_output_for_is_refused(engine, tmp_path):
    for call in (
        lambda: engine.logits(SOURCE),
        lambda: engine.embed(SOURCE),
        lambda: engine.generate(SOURCE, prompt_logprobs=0),
    ):
        with pytest.raises(ConfigError, match="found a model whose encoder reads the prompt"):
            call()
    for options, message in (
        (dict(context_shift=True), "context_shift: found True"),
        (dict(speculative="early_exit"), "speculative: found 'early_exit' where the model (t5)"),
    ):
        with pytest.raises(ConfigError, match=message.replace("(", "\\(").replace(")", "\\)")):
            engine.generate(SOURCE, **options)
    with pytest.raises(ConfigError, match="raw_loop: found t5"):
        engine.raw_loop()
    with pytest.raises(TemplateError):
        engine.chat([{"role": "user", "content": "hello"}])
    with oxillama.load() as other, pytest.raises(ConfigError, match="where a draft"):
        other.generate("a", speculative=engine)
    for call in (engine.save_prefixes, engine.load_prefixes):
        with pytest.raises(ConfigError, match="prefix cache: holds what an encoder has read"):
            call(tmp_path / "prefixes")


def test_an_adapter_changes_both_sides(path, engine, tmp_path):
    rng, shapes = np.random.default_rng(2), engine.loaded.model.reader.tensors
    names = ("enc.blk.1.attn_q.weight", "dec.blk.0.cross_attn_k.weight", "dec.blk.1.attn_v.weight")
    pairs = {name: random_pair(name, tuple(shapes[name].shape), 4, rng) for name in names}
    options = dict(max_tokens=8, temperature=0, ignore_eos=True)
    plain, asks = engine.generate(SOURCE, **options), []
    with oxillama.load(path, num_threads=2) as other:
        for name in (*names, "all"):
            some = pairs if name == "all" else {name: pairs[name]}
            other.load_lora(
                write_lora(tmp_path / f"{name}.gguf", "t5", some, alpha=64.0), name=name
            )
        rows = [other.prefill(SOURCE, session=other.session(lora=name)) for name in (*names, "all")]
        rows.append(other.prefill(SOURCE, session=other.session()))
        assert len({row.tobytes() for row in rows}) == 5
        asks = [other.submit(SOURCE, lora=lora, **options) for lora in ("all", [], "all")]
        found = [ask.result().tokens for ask in asks]
        alone = other.generate(SOURCE, lora="all", **options).tokens
    assert found == [alone, plain.tokens, alone] and alone != plain.tokens


def test_a_source_that_does_not_fit_says_so(path):
    with oxillama.load(path, context_size=32) as engine:
        with pytest.raises(
            ContextError, match="prompt: 33 tokens, a context of 32 takes at most 31"
        ):
            engine.generate(SOURCE[:32])
        with pytest.raises(ContextError, match="truncate_prompt: found a prompt of 33 tokens"):
            engine.generate(SOURCE[:32], truncate_prompt=True)
        done = engine.generate(SOURCE[:20], temperature=0, ignore_eos=True)
        assert (len(done.tokens), done.finish_reason) == (11, "length")
    steps = SchedulerConfig(max_batch_tokens=64)
    with oxillama.load(path, context_size=4096, scheduler=steps) as engine:
        most = 64 + 512 - 32
        engine.generate([7] * (most - 1), max_tokens=1)
        with pytest.raises(
            ContextError, match=f"source: {most + 1} rows, which are evaluated in on"
        ):
            engine.generate([7] * most, max_tokens=1)


def test_every_op_of_both_agrees_with_its_meaning(engine):
    found = list(engine.diagnose(SOURCE))
    assert all(each.agrees for each in found) and max(each.error for each in found) < 2e-5
    tape = engine.loaded.model.tape
    assert len(found) == len(tape.ops) + len(tape.source.ops)
    assert sorted(each.index for each in found) == list(range(len(found)))


def test_slices_of_a_prompt_do_not_cut_a_source(engine):
    prompt = engine.loaded.core.sourced([4, 5, 6])
    assert isinstance(prompt, ImagePrompt) and list(prompt) == [4, 5, 6, 0]
    with pytest.raises(ContextError, match="within the source"):
        prompt[:2]
    assert engine.loaded.core.sourced(prompt) is prompt
    assert engine.loaded.core.sourced([]) == []
