"""The public face, as a user writes it."""

import asyncio
import copy
import dataclasses
import gc
import json
import os
import pickle
import re
import signal
import threading
import time
from html import unescape

import numpy as np
import pytest

import oxillama
from oxillama import MetricsSnapshot, SamplerConfig, arguments, errors
from oxillama._core.adapters import Adapter
from oxillama._core.pool import PageMemory
from oxillama.engine.config import ConfigOptions
from oxillama.engine.metrics import HistogramSnapshot
from oxillama.gguf import GgufReader
from oxillama.lora.fit import Lora
from oxillama.options import ChatOptions

GREEDY = SamplerConfig.greedy()


@pytest.fixture(scope="module")
def stories(cases):
    """The path of a real trained model."""
    return cases / "stories260K" / "stories260K-f32.gguf"


@pytest.fixture(scope="module")
def engine(stories):
    with oxillama.load(stories, kv_type="f32") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def golden(cases):
    return json.loads((cases / "stories260K" / "stories260K-golden.json").read_text())[
        "expected_run_c"
    ]


@pytest.mark.parametrize("kind", ("f32", "f16"))
@pytest.mark.parametrize("kv_type", ("f32", "f16"))
def test_the_story_equals_the_golden_text(cases, golden, kind, kv_type):
    with oxillama.load(
        cases / "stories260K" / f"stories260K-{kind}.gguf", kv_type=kv_type
    ) as engine:
        done = engine.generate("", max_tokens=256, sampler=GREEDY)
        assert done.text[: len(golden)] == golden
        assert done.finish_reason in ("stop", "length") and done.usage.completion_tokens == len(
            done.tokens
        )


def test_long_form_and_short_form_are_the_same_object(stories):
    engine = oxillama.InferenceEngine(
        oxillama.EngineConfig(model_path=stories, context_size=100, num_threads=1)
    )
    engine.load_model()
    assert type(engine) is type(oxillama.load(stories, context_size=100, num_threads=1))
    assert engine.context_size == 100 and engine.num_threads == 1
    engine.close()


def test_bytes_load_as_a_file_does(stories, engine):
    with oxillama.load_model_from_bytes(stories.read_bytes(), kv_type="f32") as other:
        assert np.array_equal(other.logits([1, 5, 9]), engine.logits([1, 5, 9]))


@pytest.mark.parametrize(
    "name",
    (
        "llama",
        "llama_bias",
        "llama_linear",
        "llama_bpe_tied_rope3",
        "mistral",
        "qwen2",
        "qwen2_yarn",
        "qwen3",
        "gemma3",
    ),
)
def test_logits_equal_what_others_compute(cases, name):
    facts = np.load(cases / "arch" / name / "logits.npz")
    with oxillama.load(cases / "arch" / name / "f32.gguf", kv_type="f32") as engine:
        for i in range(4):
            wanted, found = facts[f"hf_{i}"], engine.logits(facts[f"tokens_{i}"])
            assert found.shape == wanted.shape and found.dtype == np.float32
            assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_logits_are_those_that_generate_draws_from(engine):
    ids = engine.tokenize("Once upon a time")
    done = engine.generate(ids, max_tokens=10, sampler=GREEDY)
    rows = engine.logits([*ids, *done.tokens])
    assert rows[len(ids) - 1 : -1].argmax(1).tolist() == list(done.tokens)


def test_the_live_session_is_untouched_by_generate(engine):
    engine.reset()
    ids = engine.tokenize("The cat sat on the mat.")
    rows = engine.logits(ids)
    engine.prefill(ids[:3])
    engine.generate("Something else", max_tokens=5)
    assert engine.kv_cache_seq_len() == 3
    assert np.array_equal(engine.forward_one(ids[3]), rows[3])
    engine.truncate(2)
    assert np.array_equal(engine.prefill(ids[2:]), rows[-1])
    engine.reset()
    assert engine.kv_cache_seq_len() == 0


def test_generate_none_goes_on_with_the_last_session(engine):
    whole = engine.generate("Lily and Tom", max_tokens=30, sampler=SamplerConfig(seed=4))
    first = engine.generate("Lily and Tom", max_tokens=11, sampler=SamplerConfig(seed=4))
    rest = engine.generate(None, max_tokens=19)
    assert first.tokens + rest.tokens == whole.tokens and first.text + rest.text == whole.text
    engine.reset()
    engine.prefill(engine.tokenize("Lily and Tom"))
    assert (
        engine.generate(None, max_tokens=30, sampler=SamplerConfig(seed=4)).tokens == whole.tokens
    )
    engine.reset()


def test_a_session_takes_one_prompt(engine):
    asking = oxillama.AsyncEngine(engine)

    def in_a_loop(prompt, **options):
        return asyncio.run(asking.generate(prompt, **options))

    for generate in (engine.generate, in_a_loop):
        session = engine.session()
        with pytest.raises(
            oxillama.ConfigError, match="found 2 prompts for one session, wanted one"
        ):
            generate(["a", "b"], session=session, max_tokens=2)
        assert len(session) == 0
        (done,) = generate(["Once"], session=session, max_tokens=2, temperature=0)
        assert done.tokens == engine.generate("Once", max_tokens=2, temperature=0).tokens
        # no tokens more: it goes on
        assert len(generate([], session=session, max_tokens=2).tokens) == 2


def test_sessions_fork_and_go_their_own_ways(engine):
    ids = engine.tokenize("Once upon a time, there was a")
    base = engine.session()
    row = engine.prefill(ids, session=base)
    assert np.array_equal(row, engine.logits(ids)[-1])
    used = engine.metrics().pages_used
    twins = [base.fork() for _ in range(3)]
    assert engine.metrics().pages_used == used
    for twin, word in zip(twins, (" cat", " dog", " big tree")):
        more = engine.tokenize(word, add_special=False)
        done = engine.generate(word, session=twin, max_tokens=8, sampler=GREEDY)
        assert (
            done.tokens
            == engine.generate(
                [*ids, *more], max_tokens=8, sampler=GREEDY, cache_prompt=False
            ).tokens
        )
        assert twin.tokens == [*ids, *more, *done.tokens]
    assert base.tokens == ids and np.array_equal(
        engine.forward_one(5, session=base), engine.logits([*ids, 5])[-1]
    )
    for each in (base, *twins):
        each.close()
    assert engine.metrics().pages_leaked == 0


def test_streams_are_the_completion_in_pieces(engine):
    whole = engine.generate("Once upon", max_tokens=40, sampler=GREEDY)
    stream = engine.stream("Once upon", max_tokens=40, sampler=GREEDY)
    pieces = list(stream)
    assert "".join(piece.text for piece in pieces) == whole.text
    assert sum((piece.tokens for piece in pieces), ()) == whole.tokens
    assert pieces[-1].finish_reason == "length" and stream.completion.tokens == whole.tokens


def test_pieces_are_whole_characters(engine):
    text = "naïve café — 北京 🙂"
    choices = engine.stream("x", choices=[text], max_tokens=200, sampler=GREEDY)
    pieces = [piece.text for piece in choices]
    assert "".join(pieces) == text and not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("stop", ("little girl", "girl", " there was"))
def test_a_stop_string_is_never_shown(engine, stop):
    whole = engine.generate("Once upon a time", max_tokens=40, sampler=GREEDY).text
    pieces = list(engine.stream("Once upon a time", max_tokens=40, sampler=GREEDY, stop=stop))
    assert (
        "".join(piece.text for piece in pieces) == whole[: whole.index(stop)]
        and pieces[-1].finish_reason == "stop"
    )


def test_stop_ids_and_min_tokens(engine):
    ids = engine.generate("Once upon a time", max_tokens=20, sampler=GREEDY).tokens
    done = engine.generate(
        "Once upon a time", max_tokens=20, sampler=GREEDY, stop_token_ids=[ids[6]]
    )
    assert done.tokens == ids[: ids.index(ids[6])] and done.finish_reason == "stop"
    late = engine.generate(
        "Once upon a time",
        max_tokens=20,
        sampler=GREEDY.replace(min_tokens=12),
        stop_token_ids=[ids[6]],
    )
    assert len(late.tokens) >= 12


def test_only_a_token_can_end_a_text(engine):
    assert engine.is_eos(np.int64(engine.tokenizer.eos_id)) and not engine.is_eos(5)
    for wrong in ("<|end|>", engine.config.vocab_size, -1, True, 1.0, [1]):
        with pytest.raises(oxillama.ConfigError, match="^token: found "):
            engine.is_eos(wrong)


def test_every_end_token_of_the_file_stops(engine):
    for token in engine.tokenizer.eog_ids:
        assert engine.is_eos(token)
        done = engine.generate(
            "Once", max_tokens=5, sampler=GREEDY.replace(allowed_tokens=(token,))
        )
        assert done.tokens == () and done.finish_reason == "stop"


def test_a_list_of_prompts_gives_each_its_own(engine):
    prompts = ["Once", engine.tokenize("Tom"), "The dog"]
    found = [done.tokens for done in engine.generate(prompts, max_tokens=8, sampler=GREEDY)]
    assert found == [
        engine.generate(prompt, max_tokens=8, sampler=GREEDY).tokens for prompt in prompts
    ]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("stop", [" time"]),
        ("choices", ["yes"]),
        ("processors", [lambda ids, row: np.zeros_like(row)]),
    ],
)
def test_an_iterator_of_options_counts_for_every_prompt_of_a_list(engine, name, values):
    options = dict(max_tokens=8, sampler=GREEDY)
    wanted = [
        done.tokens for done in engine.generate(["Once upon"] * 3, **options, **{name: values})
    ]
    assert wanted[0] != engine.generate("Once upon", **options).tokens
    assert [
        done.tokens
        for done in engine.generate(["Once upon"] * 3, **options, **{name: iter(values)})
    ] == wanted
    doors = oxillama.AsyncEngine(engine)
    assert [
        done.tokens
        for done in asyncio.run(
            doors.generate(["Once upon"] * 3, **options, **{name: iter(values)})
        )
    ] == wanted


def test_the_seed_is_reported_and_repeats(engine):
    first = engine.generate("Once", max_tokens=20)
    again = engine.generate("Once", max_tokens=20, seed=first.seed)
    assert first.tokens == again.tokens and again.seed == first.seed


def test_a_seed_of_minus_one_is_drawn_whatever_the_sampler_says(engine):
    given = dict(max_tokens=4, sampler=SamplerConfig(seed=7))
    assert engine.generate("Once", **given).seed == 7
    assert engine.generate("Once", **given, seed=None).seed == 7
    drawn = {engine.generate("Once", **given, seed=-1).seed for _ in range(3)}
    assert len(drawn) == 3 and 7 not in drawn
    session = engine.session()
    engine.generate("Once", session=session, **given)
    assert engine.generate(None, session=session, max_tokens=4).seed == 7
    assert engine.generate(None, session=session, max_tokens=4, seed=-1).seed != 7


def test_logprobs_are_of_the_rows_drawn_from(engine):
    ids = engine.tokenize("Once upon a time")
    done = engine.generate(ids, max_tokens=4, sampler=GREEDY, logprobs=3, prompt_logprobs=2)
    rows = engine.logits([*ids, *done.tokens]).astype(np.float64)
    table = (
        rows
        - np.log(np.exp(rows - rows.max(1, keepdims=True)).sum(1, keepdims=True))
        - rows.max(1, keepdims=True)
    )
    for i, report in enumerate(done.logprobs):
        assert report.token == done.tokens[i] and len(report.raw_ids) == 3
        assert abs(report.raw - table[len(ids) - 1 + i, report.token]) < 1e-4
    assert len(done.prompt_logprobs) == len(ids) - 1
    for i, (own, top, _) in enumerate(done.prompt_logprobs):
        assert abs(own - table[i, ids[i + 1]]) < 1e-4 and len(top) == 2
    orders = [list(np.argsort(-row)) for row in rows]
    assert done.prompt_ranks == tuple(
        1 + order.index(token) for order, token in zip(orders, ids[1:])
    )
    both = engine.generate(ids, max_tokens=1, n=2, prompt_logprobs=0)
    assert [each.prompt_ranks for each in both] == [done.prompt_ranks] * 2


@pytest.mark.parametrize(
    ("name", "value"),
    (
        ("choices", ["yes", "no", "maybe so"]),
        ("regex", "[ab]{3,5}"),
        ("grammar", 'root ::= "x" [0-9]+ "y"'),
    ),
)
def test_constrained_text_belongs_to_its_language(engine, name, value):
    make = oxillama.Grammar
    grammar = {"choices": make.from_choices, "regex": make.from_regex, "grammar": make.parse}[name](
        value
    )
    for seed in range(4):
        done = engine.generate(
            "Once", max_tokens=60, sampler=SamplerConfig(seed=seed), **{name: value}
        )
        assert done.finish_reason == "length" or grammar.matches(done.text)
        assert done.finish_reason == "stop" or name == "grammar"


def test_a_json_schema_is_followed(engine):
    age = {"type": "integer", "minimum": 1, "maximum": 9}
    schema = {
        "type": "object",
        "properties": {"age": age},
        "required": ["age"],
        "additionalProperties": False,
    }
    done = engine.generate("Once", max_tokens=40, json_schema=schema, seed=1)
    assert done.finish_reason == "stop" and 1 <= json.loads(done.text)["age"] <= 9


def test_long_prompts_raise_unless_truncation_is_asked_for(stories):
    with oxillama.load(stories, context_size=40) as engine:
        ids = [1, *range(300, 360)]
        helps = "61 tokens, a context of 40 takes at most 39; truncate_prompt=True .*, n_ctx="
        with pytest.raises(oxillama.ContextError, match=helps):
            engine.generate(ids)
        done = engine.generate(ids, truncate_prompt=True, max_tokens=10, sampler=GREEDY)
        assert done.usage.prompt_tokens == 30 and done.usage.truncated_tokens == 31
        assert done.tokens == engine.generate([1, *ids[-29:]], max_tokens=10, sampler=GREEDY).tokens
        session = engine.session()
        engine.prefill(ids[:30], session=session)
        with pytest.raises(oxillama.ContextError, match="30 tokens and 10 more.* session.truncate"):
            engine.generate(ids[:10], session=session)
        with pytest.raises(oxillama.ContextError):
            engine.logits(ids)
        assert engine.generate([1], sampler=GREEDY).usage.completion_tokens <= 39


def test_the_context_can_be_shifted(stories):
    with oxillama.load(stories, context_size=48) as engine:
        done = engine.generate(
            "Once upon a time",
            max_tokens=120,
            sampler=GREEDY.replace(ignore_eos=True),
            context_shift=True,
            keep=4,
        )
        assert len(done.tokens) == 120 and done.usage.context_shifts >= 2


@pytest.mark.parametrize(
    "bad",
    (
        dict(max_tokens=-2),
        dict(sampler="greedy"),
        dict(grammar="root ::= [a]", regex="a"),
        dict(temprature=0.5),
        dict(temperature=0.5, sampler=GREEDY),
        dict(temperature=-0.5),
        dict(repeat_penalty=1.1, repetition_penalty=1.1),
        dict(keep=-1),
        dict(timeout=0),
        dict(timeout="soon"),
        dict(priority=0.5),
        dict(keep=3),
        dict(logprobs=1.5),
    ),
)
def test_options_that_cannot_be_honoured_raise(engine, bad):
    with pytest.raises(oxillama.ConfigError):
        engine.generate("Once", **bad)


def test_prompts_that_are_none_raise(engine):
    with pytest.raises(oxillama.ConfigError, match="token 999999"):
        engine.generate([1, 999999])
    with pytest.raises(oxillama.ContextError):
        engine.submit([])
    with pytest.raises(oxillama.ConfigError):
        oxillama.load("x.gguf", colour="red")
    with pytest.raises(oxillama.EngineError, match="load_model"):
        oxillama.InferenceEngine().generate("x")


def test_lists_of_prompts_may_be_of_any_kind(engine):
    class Series:  # as pandas has them: iterable, of no sequence type
        def __init__(self, values):
            self.values = values

        def __iter__(self):
            return iter(self.values)

    class Tensor:  # as torch has them: of one dimension with items of none
        def __init__(self, values):
            self.values = np.asarray(values)

        ndim = property(lambda self: self.values.ndim)
        __iter__ = lambda self: map(Tensor, self.values)  # noqa: E731
        __index__ = lambda self: int(self.values)  # noqa: E731

    prompts, options = ["Once", "One day"], dict(max_tokens=np.int64(5), temperature=0)
    wanted = [engine.generate(each, **options).tokens for each in prompts]
    for many in (prompts, tuple(prompts), iter(prompts), Series(prompts), np.array(prompts)):
        assert [done.tokens for done in engine.generate(many, **options)] == wanted
    ids = engine.tokenize("Once")
    for one in (ids, tuple(ids), np.array(ids), iter(ids), Series(ids), range(3), Tensor(ids)):
        given = list(range(3)) if isinstance(one, range) else ids
        assert engine.generate(one, **options).tokens == engine.generate(given, **options).tokens
    for two in (np.array([ids, ids]), Tensor([ids, ids]), [Tensor(ids), Tensor(ids)]):
        assert [each.tokens for each in engine.generate(two, **options)] == [wanted[0]] * 2
    assert engine.generate([]) == []
    assert (
        asyncio.run(oxillama.AsyncEngine(engine).generate(iter(prompts), **options))[1].tokens
        == (wanted[1])
    )
    assert engine.embed_batch([]).shape == (0, len(engine.embed("a")))


def test_a_samplers_fields_are_options_of_their_own(engine):
    config = SamplerConfig(temperature=0.8, top_p=0.5, seed=7, repetition_penalty=1.3)
    wanted = engine.generate("Once", max_tokens=12, sampler=config).tokens
    for given in (
        dict(temperature=0.8, top_p=0.5, seed=7, repetition_penalty=1.3),
        dict(temp=0.8, top_p=np.float32(0.5), seed=np.int64(7), repeat_penalty=1.3),
        dict(sampling_fields={"temperature": 0.8, "repetition_penalty": 1.3}, top_p=0.5, seed=7),
    ):
        assert engine.generate("Once", max_tokens=12, **given).tokens == wanted
    greedy = engine.generate("Once", max_tokens=12, sampler=SamplerConfig(temperature=0)).tokens
    assert engine.generate("Once", max_tokens=12, temperature=0).tokens == greedy
    assert engine.generate("Once", n_predict=12, temperature=0, top_k=-1).tokens == greedy
    # going on, what is not named stays: the stream of the seed too
    whole = engine.generate("Once", max_tokens=12, sampler=config).tokens
    engine.generate("Once", max_tokens=6, sampler=config)
    assert engine.generate(None, max_tokens=6, top_p=0.5).tokens == whole[6:]


def test_names_of_elsewhere_and_names_that_are_none(engine):
    with oxillama.load(n_threads=1, n_ctx=np.int32(100)) as other:
        assert (other.num_threads, other.context_size) == (1, 100)
    with pytest.raises(oxillama.ConfigError, match="n_ctx: found together with context_size"):
        oxillama.load(context_size=100, n_ctx=100)
    with pytest.raises(oxillama.ConfigError, match="not an argument of load; did you mean kv_t"):
        oxillama.load(kv_typ="f16")
    for name, told in (
        ("max_num_seqs", "scheduler="),
        ("lora_path", "apply_lora"),
        ("type_k", "kv"),
    ):
        with pytest.raises(oxillama.ConfigError, match=f"^{name}: is not an arg.* load; {told}"):
            oxillama.load(**{name: 1})
    with pytest.raises(oxillama.ConfigError, match="not an option of generate; did you mean max"):
        engine.generate("Once", max_tokns=3)
    for name, told in (
        ("do_sample", "temperature=0 takes the likeliest"),
        ("stop_strings", "stop= ends at these texts"),
        ("num_beams", "beam_generate searches"),
        ("format", "json_schema= constrains"),
        ("tools", r"chat\(...\) takes them"),
        ("max_time", "timeout= is the most seconds"),
        ("return_full_text", "the result does not contain the prompt"),
        ("cache_implementation", "keys and values are always kept"),
        ("max_completion_tokens", "max_tokens= bounds"),
        ("suppress_tokens", "banned_tokens= takes ids"),
        ("prompt_token_ids", "the prompt is the first argument"),
        ("length_penalty", "BeamSearchConfig of beam_generate has it"),
        ("lora_request", "lora= takes an adapter's name"),
        ("prompt_lookup_num_tokens", "speculative=.lookup. proposes"),
        ("penalty_alpha", "contrastive search is not done"),
        ("forced_bos_token_id", "token ids as the prompt end with any"),
        ("main_gpu", "everything runs on the CPU"),
        ("enable_thinking", r"template= of chat\(...\) takes variables"),
        ("chat_template_kwargs", r"template= of chat\(...\) takes variables"),
        ("add_generation_prompt", r"render_chat\(...\) takes it"),
        ("messages", r"chat\(...\) takes them"),
        ("n_ctx", r"load\(...\) takes it"),
        ("num_threads", r"load\(...\) takes it"),
    ):
        with pytest.raises(
            oxillama.ConfigError, match=f"{name}: is not an option of gen.*; {told}"
        ):
            engine.generate("Once", **{name: 1})
    with pytest.raises(oxillama.ConfigError, match="gguf_bytes: found str, wanted the bytes of a"):
        oxillama.load_model_from_bytes("model.gguf")
    with pytest.raises(oxillama.ConfigError, match="verbose: is not an argument of load; nothing"):
        oxillama.load(verbose=False)
    with pytest.raises(oxillama.ConfigError, match="revision: is not an argument of load; the new"):
        oxillama.load("owner/name", revision="main")
    with pytest.raises(oxillama.ConfigError, match="num_threads: found -1.*None for the cores"):
        oxillama.load(num_threads=-1)
    with pytest.raises(oxillama.ConfigError, match="keep: found -1"):
        engine.generate("Once", keep=-1, context_shift=True)


def test_what_stands_for_a_name_of_elsewhere_is_there():
    options = [*ChatOptions.__annotations__, *ConfigOptions.__annotations__]
    for of in (oxillama.SamplerConfig, oxillama.SchedulerConfig, oxillama.BeamSearchConfig):
        options += [field.name for field in dataclasses.fields(of)]
    methods = ("chat", "embed", "generate", "logits", "session", "stream", "apply_lora")
    methods += ("load_lora", "submit", "beam_generate", "render_chat")
    for name, told in arguments._ELSEWHERE.items():
        for option in re.findall(r"(\w+)=", told):
            assert option in (*options, "pooling", "file"), (name, told)
        for called in re.findall(r"(?<![.A-Z])\b([a-z_]+)\(", told):
            if called == "load":
                continue
            assert called in methods and hasattr(oxillama.InferenceEngine, called), (name, told)
        # neither taken everywhere, nor another name of what is
        assert name not in arguments.OPTION_NAMES and name not in arguments.CONFIG_NAMES


def test_errors_carry_what_they_are_about(engine):
    with pytest.raises(oxillama.ContextError) as caught:
        engine.generate([5] * 5000)
    assert (caught.value.tokens, caught.value.limit) == (5000, engine.context_size - 1)
    with pytest.raises(FileNotFoundError, match="nowhere.gguf: no such file") as missing:
        oxillama.load("nowhere.gguf")
    assert isinstance(missing.value, oxillama.GgufError)
    request = engine.submit("Once", max_tokens=1)
    with pytest.raises(TimeoutError, match="it continues; `cancel..` ends it"):
        request = engine.submit("Once", ignore_eos=True)
        request.result(timeout=0)
    assert pickle.loads(pickle.dumps(request.result())) == request.result()


def test_what_holds_memory_of_the_process_says_what_to_do_in_place_of_a_pickle(engine, stories):
    session = engine.session()
    memory = PageMemory([], slot_layers=[(2, 8)])
    loaded = engine.loaded
    masker = loaded.required_vocabulary.masker
    with (
        oxillama.load(stories, offload=oxillama.Budget(1 << 20)) as paged,
        oxillama.load() as embedded,
        GgufReader(stories) as reader,
    ):
        for thing, instead in (
            (engine, "load it in each process"),
            (session, "`fork()` makes another"),
            (engine.submit("Once", max_tokens=1), "pickle its result()"),
            (engine.stream("Once", max_tokens=1), "iterate over its `request`"),
            (oxillama.AsyncEngine(engine), "load it in each process"),
            (loaded, "load it in each process"),
            (loaded.loras, "pickle the `path` of each"),
            (Lora("name", "path", "", (), Adapter([], [])), "pickle its `path`"),
            (paged.loaded.model.pager, "load the model in each process"),
            (embedded.loaded.chat, "pickle the messages"),
            (reader, "open the file in each process"),
            (session.kv, "`fork()` makes another"),
            (session.kv.pool, "make one in each process"),
            (oxillama.PrefixKvCache(session.kv.pool), "make one in each process"),
            (oxillama.SsmStatePool(memory), "make one in each process"),
            (masker, "make one of `vocab_bytes`"),
            (oxillama.Grammar.parse('root ::= "a"').state(), "`fork()` makes another"),
            (oxillama.Sampler(GREEDY, vocab_size=8), "`fork()` makes another"),
            (oxillama.LookupDrafter(), "make one in each process"),
            (oxillama.CancellationToken(), "make one for each"),
        ):
            for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
                if attempt is copy.copy and isinstance(thing, oxillama.AsyncEngine):
                    continue  # which is but another name of the engine
                with pytest.raises(TypeError, match="cannot be pickled or copied; ") as caught:
                    attempt(thing)
                assert instead in str(caught.value)


def test_what_is_printed_says_what_is_asked_first(engine):
    done = engine.generate("Once", max_tokens=5, temperature=0, logprobs=2)
    speed = f"{done.timings.tokens_per_second:.1f} tokens/s"
    assert repr(done) == f"<Completion {done.text!r}, length, 2 + 5 tokens, {speed}>"
    assert str(done) == done.text and done.timings.total_seconds > 0
    assert done.timings.prompt_tokens_per_second >= 0 < done.timings.first_token_seconds
    html = done._repr_html_()
    shown = re.findall("<span title=.*?>(.*?)</span>", html, re.S)
    assert unescape("".join(shown)) == done.text and len(shown) == len(done.pieces) > 1
    assert all(f"token {token}: " in html for token in done.tokens)
    tagged = dataclasses.replace(done, text="<b>", pieces=())
    assert "&lt;b&gt;" in tagged._repr_html_() and "<b>" not in tagged._repr_html_()
    pieces = list(engine.stream("Once", max_tokens=5, temperature=0))
    assert pieces[-1].timings.tokens_per_second > 0 and pieces[0].timings is None
    assert re.fullmatch(
        r"<InferenceEngine llama 'stories260K .*', context 512, \d+ threads, 0 running>",
        repr(engine),
    )
    session = engine.session()
    engine.prefill([1, 2, 3], session=session)
    assert repr(session) == "<Session 3 tokens, 3 evaluated, idle>"
    assert "3 evaluated, idle" in session._repr_html_() and 'value="3"' in session._repr_html_()
    assert "<th>generation</th>" in engine._repr_html_() and "stories260K" in engine._repr_html_()
    request = engine.submit("Once", max_tokens=2, temperature=0)
    request.result()
    assert repr(request) == "<Request generate, length, 2 + 2 tokens>"
    assert request.result().text in unescape(request._repr_html_())
    with engine.stream("Once", max_tokens=2, temperature=0) as stream:
        assert list(stream)
        assert repr(stream) == "<Stream of <Request generate, length, 2 + 2 tokens>>"
    with oxillama.load(num_threads=1) as closed:
        pass
    assert repr(closed) == "<InferenceEngine closed>"
    assert repr(SamplerConfig()) == "SamplerConfig()"
    assert repr(SamplerConfig(top_k=5, stop=["a"])) == "SamplerConfig(top_k=5, stop=('a',))"
    assert repr(closed.engine_config) == "EngineConfig(num_threads=1)"
    assert repr(engine.config).endswith(
        "layers=5, states=(5 x Pages(heads=4, key=8, value=8, window=0)), causal=True, "
        "generates=True, pooling=None, labels=(), start_token=None, rope_near=None, predicts=(), "
        "filling=None)"
    )
    assert repr(engine.tokenizer) == "<TokenizerBridge llama, 512 tokens>"
    told = repr(MetricsSnapshot(steps_total=2, queue_seconds=HistogramSnapshot((1, 2), 1.5)))
    assert told == (
        "MetricsSnapshot(steps_total=2, "
        "queue_seconds=<HistogramSnapshot 3 durations, mean 0.500000 s>)"
    )
    grammar = oxillama.Grammar.parse('root ::= "a"')
    assert repr(grammar) == "<Grammar of 1 rule>"
    assert repr(grammar.state()) == "<GrammarState after 0 bytes>"

    def add(a: int, b: int) -> int:
        return a + b

    assert repr(oxillama.ToolDispatcher()) == "<ToolDispatcher empty>"
    assert repr(oxillama.ToolDispatcher({"add": add, "plus": add})) == "<ToolDispatcher add, plus>"
    chain = oxillama.SamplerChain.from_config(SamplerConfig(top_p=1, seed=3), vocab_size=9)
    assert repr(chain) == "<SamplerChain top_k, temperature, seed 3>"
    assert repr(oxillama.SamplerChain(seed=3)) == "<SamplerChain no stages, seed 3>"
    token = oxillama.CancellationToken()
    assert repr(token) == "<CancellationToken not cancelled>"
    token.cancel()
    assert repr(token) == "<CancellationToken cancelled>"
    assert repr(oxillama.ChatTemplate("{{ a }}")) == "<ChatTemplate of 7 characters>"
    with oxillama.SpeculativeEngine(oxillama.SpeculativeConfig(engine, "early_exit:1")) as pair:
        assert repr(pair) == f"<SpeculativeEngine of {engine!r}>"
    assert unescape(closed._repr_html_()) == "<code><InferenceEngine closed></code>"


def test_an_error_about_one_prompt_of_a_list_says_which(engine):
    async def later(prompts):
        return await oxillama.AsyncEngine(engine).generate(prompts, max_tokens=1)

    for wrong, told in (
        ("x " * 1000, "prompts[1]: prompt: "),
        ("\udcff", "prompts[1]: text: found a lone surrogate"),
        (7, "prompts[1]: prompt: found int, wanted a string or token ids"),
        ([512], "prompts[1]: prompt[0]: found token 512, wanted 0 to 511"),
    ):
        for ask in (
            lambda prompts: engine.generate(prompts, max_tokens=1),
            lambda prompts: asyncio.run(later(prompts)),
        ):
            with pytest.raises(oxillama.OxillamaError, match=f"^{re.escape(told)}"):
                ask(["One day", wrong, "Once"])
    with pytest.raises(oxillama.ConfigError, match="^logprobs: "):
        engine.generate(["One day", "Once"], max_tokens=1, logprobs=513)
    for text in ("a", "a " * 40_000):  # by this thread, and by several
        with pytest.raises(oxillama.TokenizerError, match=r"^texts\[2\]: text: found a lone"):
            engine.tokenize_batch([text, text, "\udcff"])


def test_many_threads_share_one_engine(engine):
    prompts = [f"Once upon a time number {i}" for i in range(12)]
    wanted = [
        engine.generate(p, max_tokens=12, sampler=GREEDY, cache_prompt=False).tokens
        for p in prompts
    ]
    found = {}

    def work(index):
        found[index] = engine.generate(prompts[index], max_tokens=12, sampler=GREEDY).tokens

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [found[i] for i in range(len(prompts))] == wanted


def test_closing_a_stream_stops_the_work(engine):
    stream = engine.stream("Once", sampler=SamplerConfig(ignore_eos=True))
    next(stream)
    stream.close()
    start = time.monotonic()
    assert stream.completion.finish_reason == "cancelled" and time.monotonic() - start < 1
    assert list(stream) == []


def readers(stream, count):
    """(the pieces that this many threads read of one stream, the threads)."""
    found: list[oxillama.Piece] = []
    threads = [threading.Thread(target=found.extend, args=(stream,)) for _ in range(count)]
    for thread in threads:
        thread.daemon = True
        thread.start()
    return found, threads


def test_closing_a_stream_ends_the_threads_that_wait_for_its_pieces(engine):
    go_on = threading.Event()

    def held(tokens, logits):
        go_on.wait(30)
        return logits

    stream = engine.stream("Once", sampler=SamplerConfig(ignore_eos=True), processors=[held])
    found, threads = readers(stream, 3)
    try:
        stream.close()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads) and found == []
    finally:
        go_on.set()
    assert stream.completion.finish_reason == "cancelled"


def test_threads_that_read_one_stream_share_its_pieces(engine):
    for _ in range(5):
        stream = engine.stream("Once upon", max_tokens=60, sampler=GREEDY)
        found, threads = readers(stream, 4)
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)
        tokens = [token for piece in found for token in piece.tokens]
        assert sorted(tokens) == sorted(stream.completion.tokens)
        assert [piece.finish_reason for piece in found if piece.finish_reason] == ["length"]


def test_a_forgotten_stream_stops_the_work(engine):
    stream = engine.stream("Once", sampler=SamplerConfig(ignore_eos=True))
    next(stream)
    request = stream.request
    del stream
    assert request.result(60).finish_reason == "cancelled"


def test_ctrl_c_reaches_a_caller_that_waits(engine):
    # a shell's background jobs ignore the signal, and so would python
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    start = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            while True:
                engine.generate("Once", sampler=SamplerConfig(ignore_eos=True))
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - start < 2


def test_asyncio_streams_and_gathers(engine):
    wanted = [engine.generate(p, max_tokens=9, sampler=GREEDY).text for p in ("Once", "Tom")]

    async def main():
        many = oxillama.AsyncEngine(engine)
        texts = await many.generate(["Once", "Tom"], max_tokens=9, sampler=GREEDY)
        streamed = [piece.text async for piece in many.stream("Once", max_tokens=9, sampler=GREEDY)]
        one = await many.generate("Tom", max_tokens=9, sampler=GREEDY)
        vector = await many.embed("Once upon")
        return [done.text for done in texts], "".join(streamed), one.text, vector

    texts, streamed, one, vector = asyncio.run(main())
    assert texts == wanted and streamed == wanted[0] and one == wanted[1]
    assert np.array_equal(vector, engine.embed("Once upon"))


def test_a_cancelled_task_cancels_its_request(engine):
    async def main():
        request = oxillama.AsyncEngine(engine).submit(
            "Once", sampler=SamplerConfig(ignore_eos=True)
        )
        task = asyncio.ensure_future(request)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return request

    assert asyncio.run(main()).result(60).finish_reason == "cancelled"


def test_embeddings_have_length_one_and_need_text(engine):
    vector = engine.embed("Once upon a time")
    assert vector.shape == (engine.config.hidden_size,) and abs(np.linalg.norm(vector) - 1) < 1e-6
    ids = engine.tokenize("Once upon a time")
    assert engine.embed_with("Once upon a time", "none").shape == (
        len(ids),
        engine.config.hidden_size,
    )
    assert engine.embed_batch(["Once", "Tom and Lily"]).shape == (2, engine.config.hidden_size)
    for nothing in ("", []):
        with pytest.raises(oxillama.EmptySequence):
            engine.embed(nothing)
        with pytest.raises(oxillama.EmptySequence, match=r"^texts\[1\]: embed: found no tokens"):
            engine.embed_batch(["a", nothing])
    with pytest.raises(oxillama.ContextError, match=r"^texts\[2\]: prompt: ") as caught:
        engine.embed_batch(["a", "b", "word " * 3000])
    assert caught.value.tokens > caught.value.limit == engine.context_size
    with pytest.raises(oxillama.ConfigError, match="sum"):
        engine.embed_with("x", "sum")


def test_a_session_whose_context_was_shifted_goes_on_with_other_options(engine):
    greedy = dict(temperature=0.0, repetition_penalty=1.0, ignore_eos=True, context_shift=True)
    session = engine.session()
    engine.generate(
        "Once", session=session, max_tokens=engine.context_size, top_k=5, seed=1, **greedy
    )
    assert len(session) < session.sampler.generated
    wanted = engine.generate(list(session.tokens), max_tokens=4, **greedy).tokens
    for each in (session.fork(), session):
        assert engine.generate(None, session=each, max_tokens=4, **greedy).tokens == wanted


def test_text_goes_to_ids_and_back(engine):
    ids = engine.tokenize("Once upon a time", add_special=True, parse_special=True)
    assert ids[0] == engine.tokenizer.bos_id and engine.detokenize(ids) == "Once upon a time"


def test_the_compiled_tape_agrees_with_its_meaning(engine):
    found = list(engine.diagnose(engine.tokenize("Once upon a time")))
    assert found and all(difference.agrees for difference in found)
    assert "attend" in engine.dump()


def test_a_file_without_a_template_says_so(engine):
    with pytest.raises(oxillama.TemplateError, match="chat_template"):
        engine.chat([{"role": "user", "content": "hi"}])


def test_a_forgotten_engine_finishes_what_it_began(stories):
    stream = oxillama.load(stories).stream("Once upon a time", max_tokens=12, sampler=GREEDY)
    gc.collect()
    assert sum(len(piece.tokens) for piece in stream) == 12


def test_a_closed_engine_says_so_and_holds_no_model(stories):
    engine = oxillama.load(stories)
    core = engine._loaded.core
    engine.generate("Once", max_tokens=2)
    with engine.session() as session:
        engine.prefill("Once", session=session)
    assert repr(session) == f"<Session {len(session)} tokens, closed>"
    for use in (
        lambda: engine.generate("x", session=session),
        lambda: engine.beam_generate("x", session=session),
        lambda: engine.prefill("x", session=session),
        session.snapshot,
    ):
        with pytest.raises(oxillama.EngineError, match="session: is closed"):
            use()
    other = engine.session()
    engine.close()
    engine.close()
    session.close()
    with other:  # nothing is left to release
        pass
    for door in (
        lambda: engine.generate("Once"),
        lambda: engine.tokenize("x"),
        engine.metrics,
        engine.session,
        lambda: engine.config,
    ):
        with pytest.raises(oxillama.EngineError, match="closed"):
            door()
    assert (
        core._loop.program is None and engine._loaded._model is None and core.pool.pages_used == 0
    )


@pytest.mark.parametrize(
    "bad",
    (
        dict(context_size=0),
        dict(kv_type="q8"),
        dict(num_threads=1.5),
        dict(prefill_chunk_size=0),
        dict(sampler=0.7),
        dict(prefill_chunk_size=600, scheduler=oxillama.SchedulerConfig()),
    ),
)
def test_configs_that_cannot_be_honoured_raise(bad):
    with pytest.raises(oxillama.ConfigError):
        oxillama.EngineConfig(**bad)


def test_a_continued_session_takes_new_wishes(engine):
    engine.generate("Once upon a time", max_tokens=5, sampler=GREEDY)
    done = engine.generate(None, max_tokens=30, choices=[" and so it was", " the end"], logprobs=1)
    assert done.text in (" and so it was", " the end") and len(done.logprobs) == len(done.tokens)


def test_every_public_name_is_there():
    for name in oxillama.__all__:
        assert getattr(oxillama, name) is not None
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    raised = {each.__name__ for each in kinds if issubclass(each, Exception)}
    assert "OxillamaError" in raised and raised <= set(oxillama.__all__)
    with pytest.raises(AttributeError):
        oxillama.nothing_of_the_kind  # noqa: B018
