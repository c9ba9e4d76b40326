"""Models that fill in masks: what llama.cpp fills in (diffusion.json, which record_diffusion.cpp
wrote), the same answer in any company, and what has no meaning for them.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import oxillama
from oxillama import DiffusionConfig
from oxillama.engine.scheduler import SchedulerConfig
from oxillama.errors import ConfigError, ContextError, ModelError, NoNextToken
from oxillama.model import load_model
from oxillama.sampling.diffusion import Denoiser
from tests.lora.made import random_pair, write_lora
from tests.model.invented import VOCAB, invent
from tests.model.stepping import logits
from tests.model.worded import worded

FACTS = json.loads((Path(__file__).parent / "diffusion.json").read_text())
MASK, PROMPT, PLACES = VOCAB - 1, [5, 9, 33, 7, 70, 12, 40, 41, 4], 23


def write_models(folder):
    """The models of the facts, with what llama.cpp wants of a file without a vocabulary."""
    for arch in FACTS:
        more = {"tokenizer.ggml.model": "none", f"{arch}.vocab_size": VOCAB}
        invent(Path(folder) / f"{arch}.gguf", arch, changed=more)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diffusion")
    return {arch: load_model(invent(folder / f"{arch}.gguf", arch)) for arch in FACTS}


class Likeliest:
    """Draws without chance, and orders by llama.cpp's numbers: MT19937's, as float32."""

    logprobs = None

    def __init__(self, seed):
        self._numbers = np.random.MT19937()
        self._numbers._legacy_seeding(seed)

    def sample(self, row):
        return int(row.argmax())

    def uniform(self):
        return float(np.float32(int(self._numbers.random_raw()) / np.float32(2**32)))


@pytest.mark.parametrize("arch", FACTS)
def test_logits_are_those_of_llama_cpp(models, arch):
    found = logits(models[arch], [*PROMPT, MASK, MASK, 11, MASK], kv_type="f32")[::4]
    wanted = np.array(FACTS[arch]["logits"]).reshape(found.shape)
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("arch", FACTS)
def test_masks_are_filled_in_as_by_llama_cpp(models, arch):
    """In every order, in blocks and by time, with guidance and without."""
    model, filling = models[arch], models[arch].config.filling
    for run in FACTS[arch]["runs"]:
        schedule = {"block_length": 8, "steps": 12} if run["blocks"] else {"eps": 1e-3, "steps": 6}
        config = DiffusionConfig(order=run["order"], guidance=run["guidance"], **schedule)
        answer = Denoiser.of(
            PROMPT,
            PLACES,
            config,
            mask=filling.mask,
            shifted=filling.shifted,
            sampler=Likeliest(11),
        )
        while answer.next is not None:
            tokens, rows = answer.next
            answer.take(logits(model, tokens, kv_type="f32")[rows])
        assert answer.tokens[len(PROMPT) :].tolist() == run["tokens"], run


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return worded(tmp_path_factory.mktemp("llada"), "llada")


@pytest.fixture(scope="module")
def engine(path):
    with oxillama.load(path, num_threads=2) as made:
        yield made
        assert made.metrics().pages_leaked == 0


@pytest.mark.parametrize("arch", FACTS)
def test_the_engine_fills_in_what_llama_cpp_does(models, arch):
    reader = models[arch].reader
    with oxillama.load(reader.paths[0]) as engine:
        for run in FACTS[arch]["runs"]:
            if run["order"] in ("origin", "random"):  # of another chance
                continue
            more = {"block_length": 8, "steps": 12} if run["blocks"] else {"eps": 1e-3, "steps": 6}
            how = DiffusionConfig(order=run["order"], guidance=run["guidance"], **more)
            done = engine.generate(PROMPT, max_tokens=PLACES, temperature=0, diffusion=how)
            assert list(done.tokens) == run["tokens"]
            assert (done.finish_reason, done.usage.prompt_tokens) == ("length", len(PROMPT))


HOW = DiffusionConfig(block_length=6, order_temperature=0.1, guidance=0.5)


@pytest.mark.parametrize(
    "more",
    (
        dict(num_threads=1),
        dict(prefill_chunk_size=4, prefix_cache=False, page_size=32),
        dict(scheduler=SchedulerConfig(max_batch_tokens=40, max_sequences=2)),
        dict(max_pages=5),
    ),
    ids=lambda more: " ".join(more),
)
def test_answers_are_the_same_however_they_are_run(path, engine, more):
    prompts = [PROMPT, PROMPT[:4], [3], PROMPT * 3, PROMPT]
    options = dict(max_tokens=14, seed=3, logprobs=2, ignore_eos=True)
    orders = [DiffusionConfig(order="random"), DiffusionConfig(order="origin", eps=0.1, steps=5)]
    ways = [HOW, *orders, HOW, DiffusionConfig(order="entropy")]
    alone = [engine.generate(each, diffusion=way, **options) for each, way in zip(prompts, ways)]
    with oxillama.load(path, **more) as other:
        requests = [other.submit(e, diffusion=way, **options) for e, way in zip(prompts, ways)]
        vector = other.embed(PROMPT)
        found = [request.result() for request in requests]
        assert other.metrics().pages_leaked == 0
    assert [each.tokens for each in found] == [each.tokens for each in alone]
    assert [each.logprobs for each in found] == [each.logprobs for each in alone]
    assert np.array_equal(vector, engine.embed(PROMPT))
    assert all(len(each.logprobs) == len(each.tokens) == 14 for each in found)
    assert all(MASK not in each.tokens for each in found)


def test_a_block_is_passed_on_when_it_is_whole(engine):
    options = dict(max_tokens=14, seed=5, ignore_eos=True, diffusion=HOW)
    whole = engine.generate("a b c", **options)
    assert "".join(piece.text for piece in engine.stream("a b c", **options)) == whole.text
    seen = []
    request = engine.submit("a b c", **options)
    request.listen(lambda: seen.append(len(request.generated)), in_loop=True)
    assert request.result().tokens == whole.tokens
    steps = engine.metrics().steps_total
    # what follows an end is not computed: of three blocks the first
    end = whole.tokens[2]
    ended = engine.generate("a b c", **options, stop_token_ids=[end])
    first = whole.tokens.index(end)
    assert (ended.tokens, ended.finish_reason) == (whole.tokens[:first], "stop")
    assert engine.metrics().steps_total - steps == 2 * 6  # with guidance, two a pass
    stop = whole.text[3:5]
    stopped = engine.generate("a b c", **options, stop=stop)
    assert stopped.text == whole.text[: whole.text.index(stop)]


def test_a_session_goes_on_with_its_answers(engine):
    session, options = engine.session(), dict(max_tokens=5, ignore_eos=True, temperature=0)
    first = engine.generate(PROMPT, session=session, **options)
    second = engine.generate([11, 12], session=session, **options)
    text = [*PROMPT, *first.tokens, 11, 12]
    assert session.tokens == [*text, *second.tokens] and session.kv.length == 0
    assert engine.generate(text, **options).tokens == second.tokens
    twin = session.fork()
    session.truncate(len(text))
    assert engine.generate(None, session=session, **options).tokens == second.tokens
    assert twin.tokens == [*text, *second.tokens]


def test_several_answers_have_seeds_of_their_own(engine):
    options = dict(max_tokens=8, ignore_eos=True, temperature=1.0)
    several = engine.generate(PROMPT, n=3, seed=5, **options)
    single = [engine.generate(PROMPT, seed=each.seed, **options) for each in several]
    assert [each.tokens for each in several] == [each.tokens for each in single]
    assert len({each.tokens for each in several}) == 3


def test_a_saved_session_answers_alike(path, engine):
    options = dict(max_tokens=6, ignore_eos=True)
    engine.generate(PROMPT, seed=2, **options)
    saved = engine.snapshot()
    wanted = engine.generate(None, **options)
    with oxillama.load(path) as other:
        restored = other.restore(saved)
        assert other.generate(None, session=restored, **options).tokens == wanted.tokens


def test_an_adapter_changes_the_answer(path, engine, tmp_path):
    name = "blk.1.ffn_up.weight"
    pair = random_pair(name, (96, 64), 4, np.random.default_rng(3))
    write_lora(tmp_path / "a.gguf", "llada", {name: pair})
    options = dict(max_tokens=8, temperature=0, ignore_eos=True)
    plain = engine.generate(PROMPT, **options)
    with oxillama.load(path) as other:
        changed = other.generate(PROMPT, lora=[(str(tmp_path / "a.gguf"), 20.0)], **options)
        assert changed.tokens != plain.tokens
        assert other.generate(PROMPT, **options).tokens == plain.tokens


def test_an_answer_has_as_many_places_as_it_is_given(engine):
    how = DiffusionConfig(length=7, block_length=3, steps=4)
    assert how.blocks(7) == [(3, 2), (3, 1), (1, 1)]
    assert DiffusionConfig().blocks(40) == [(32, 32), (8, 8)]
    assert DiffusionConfig(eps=0.1, steps=5).blocks(40) == [(40, 5)]
    assert len(engine.generate(PROMPT, diffusion=how, ignore_eos=True).tokens) == 7
    with pytest.raises(ContextError, match="max_tokens: 300 after 9 tokens, a context of 256"):
        engine.generate(PROMPT, max_tokens=300)
    with pytest.raises(ConfigError, match="steps: found 4 for 20 places in 7 blocks"):
        engine.generate(PROMPT, max_tokens=20, diffusion=how)


@pytest.mark.parametrize(
    "option",
    (
        dict(grammar='root ::= "a"'),
        dict(choices=["a", "b"]),
        dict(json_schema={}),
        dict(context_shift=True),
        dict(speculative="lookup"),
        dict(processors=[lambda tokens, row: None]),
        dict(prompt_logprobs=0),
        dict(max_tokens=0),
        dict(repetition_penalty=1.2),
        dict(presence_penalty=0.5),
        dict(dry_multiplier=0.8),
        dict(mirostat=2),
        dict(min_tokens=2),
    ),
    ids=lambda option: next(iter(option)),
)
def test_what_takes_one_token_after_another_is_refused(engine, option):
    (name,) = option
    with pytest.raises(ConfigError, match=f"{name}: found .* for a model that fills in masks"):
        engine.generate(PROMPT, **option)


def test_what_wants_a_next_token_is_refused(engine, path):
    for call in (
        lambda: engine.prefill(PROMPT),
        lambda: engine.forward_one(3),
        lambda: engine.beam_generate(PROMPT),
    ):
        with pytest.raises(NoNextToken, match="the model fills in masks and has no next token"):
            call()
    with pytest.raises(NoNextToken, match="perplexity: found llada"):
        oxillama.perplexity(engine, [*PROMPT] * 9)
    with pytest.raises(ConfigError, match=f"prompt: found the mask .token {MASK}."):
        engine.generate([*PROMPT, MASK], max_tokens=3)
    with pytest.raises(ConfigError, match="speculative: found 'lookup' for llada"):
        oxillama.load(path, speculative="lookup")
    with (
        oxillama.load() as causal,
        pytest.raises(ConfigError, match="a model that does not fill in masks"),
    ):
        causal.generate("a", diffusion=HOW)
    with pytest.raises(ConfigError, match="diffusion: found DiffusionConfig.* for llama"):
        oxillama.load(diffusion=HOW)


def test_a_way_to_fill_in_is_checked():
    for given, message in (
        (dict(order="best"), "order: found 'best', wanted one of confidence, entropy"),
        (dict(steps=0), "steps: found 0"),
        (dict(length=None), "length: found None"),
        (dict(guidance=None), "guidance: found None"),
        (dict(eps=0.1, block_length=8), "eps: found 0.1 and block_length 8"),
        (dict(eps=1.5), "eps: found 1.5, wanted a number from 0 to 1"),
        (dict(guidance=float("nan")), "guidance: found nan"),
        (dict(order="random", order_temperature=1.0), "order_temperature: found 1.0 for"),
    ):
        with pytest.raises(ConfigError, match=message):
            DiffusionConfig(**given)
    config = oxillama.EngineConfig(diffusion=HOW)
    assert oxillama.EngineConfig.from_dict(config.to_dict()).diffusion == HOW
    with pytest.raises(ConfigError, match="diffusion: found dict, wanted a DiffusionConfig"):
        oxillama.Options(diffusion={})


def test_a_file_names_its_mask_and_what_its_rows_predict(tmp_path):
    reader = invent(tmp_path / "m.gguf", "rnd1", changed={"diffusion.shift_logits": False})
    assert not load_model(reader).config.filling.shifted
    for changed, message in (
        ({"tokenizer.ggml.mask_token_id": VOCAB}, "mask_token_id: found 80"),
        ({"rnd1.attention.causal": True}, "attention.causal: found True"),
    ):
        with pytest.raises(ModelError, match=message):
            load_model(invent(tmp_path / "m.gguf", "rnd1", changed=changed))


def test_who_is_stopped_has_the_blocks_that_were_whole(engine):
    session, how = engine.session(), DiffusionConfig(block_length=2)
    options = dict(max_tokens=60, seed=5, ignore_eos=True, diffusion=how)
    request = engine.submit(PROMPT, session=session, **options)
    request.listen(lambda: len(request.generated) < 4 or request.cancel(), in_loop=True)
    done = request.result()
    assert done.finish_reason == "cancelled" and len(done.tokens) % 2 == 0 < len(done.tokens) < 60
    assert session.tokens == [*PROMPT, *done.tokens] and session.kv.length == 0
    assert done.tokens == engine.generate(PROMPT, **options).tokens[: len(done.tokens)]
