"""Whatever is asked wrongly is answered by one clear error of this package's own, at once: no
guess, no crash, no wait without an end.
"""

import asyncio
import pickle
import re
import threading
from functools import partial

import numpy as np
import pytest

import oxillama
from oxillama import (
    AsyncEngine,
    ConfigError,
    ContextError,
    EmptySequence,
    EngineError,
    SamplerConfig,
    SamplingError,
    SchedulerConfig,
    TokenizerError,
)
from oxillama.gguf import GgufWriter
from oxillama.gguf.keys import Keys
from oxillama.gguf.layout import checked_alignment
from oxillama.grammar.automaton import GrammarLimits
from oxillama.lora.file import read_gguf_lora
from oxillama.model.rope import RopeOverrides, rope_from_keys
from oxillama.options import Options
from oxillama.server.settings import ServerConfig
from oxillama.tokenizer import TokenizerBridge

GREEDY = SamplerConfig.greedy()


@pytest.fixture(scope="module")
def engine():
    with oxillama.load(num_threads=1) as loaded:
        yield loaded


def answered(call, seconds=20.0):
    """What a call raised or returned; it must do either soon, and a daemon is left behind where it
    does not.
    """
    out = []

    def run():
        try:
            out.append(call())
        except BaseException as error:
            out.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert out, "no answer"
    return out[0]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    (
        ("stop", 5, "stop: found 5, wanted a text or a list of texts"),
        ("stop", ["a", 5], "stop: found"),
        ("stop", "", r"^stop: found '', wanted a text that is not empty$"),
        ("stop", ["a", ""], r"^stop\[1\]: found '', wanted a text that is not empty$"),
        ("stop", [["a"]], r"stop: found \(\['a'\],\), wanted a text or a list of texts"),
        ("stop_token_ids", 5, "stop_token_ids: found 5"),
        ("stop_token_ids", [1.5], r"stop_token_ids\[0\]: found float 1.5"),
        ("stop_token_ids", [10**9], "stop_token_ids: found 1000000000"),
        ("shown_tokens", ["a"], r"shown_tokens\[0\]: found str 'a'"),
        ("processors", 5, "processors: found 5"),
        ("processors", [5], "wanted functions"),
        ("stop", ["\ud800"], "stop: found a lone surrogate at character 0"),
        ("choices", "abc", "choices: found 'abc', wanted a list"),
        ("cache_prompt", 0, "cache_prompt: found 0, wanted True or False"),
        ("truncate_prompt", "no", "truncate_prompt: found 'no'"),
        ("context_shift", 1, "context_shift: found 1"),
        ("prompt_logprobs", 10**9, "prompt_logprobs: found 1000000000"),
        ("session", 5, "session: found int, wanted a Session"),
        ("json_schema", {"name": "a", "schema": {"type": "object"}}, "wanted the schema alone"),
        ("json_schema", {"schema": True, "strict": True}, "json_schema: found a schema within"),
        ("colour", 1, "colour: is not an option of generate"),
    ),
)
def test_an_option_that_cannot_be_honoured_is_named(engine, name, value, told):
    with pytest.raises(ConfigError, match=told):
        engine.generate("Once", **{"max_tokens": 2, name: value})


@pytest.mark.parametrize("returned", ["x", 1j, [None], np.ones(2048) * 1j, [True] * 2048])
def test_what_a_processor_returns_is_logits(engine, returned):
    with pytest.raises(SamplingError, match="processors: found .* returned, wanted logits"):
        engine.generate("Once", max_tokens=2, processors=[lambda ids, row: returned])


@pytest.mark.parametrize(
    ("make", "numbers"),
    [
        (oxillama.BeamSearchConfig, {"beam_width": 2, "max_new_tokens": 3, "length_penalty": 0.5}),
        (
            partial(oxillama.SpeculativeConfig, draft="early_exit"),
            {"num_speculative": 3, "seed": 4},
        ),
        (oxillama.AsyncSpecConfig, {"spec_k": 2, "max_tokens": 3, "draft_threads": 1}),
        (partial(oxillama.Candidates, oxillama.LookupDrafter()), {"most": 3}),
        (oxillama.Budget, {"ram_bytes": 1 << 30}),
        (oxillama.PinnedHotSet, {"ram_bytes": 1, "pin_last_n_layers": 2, "prefetch_n_ahead": 1}),
        (RopeOverrides, {"rope_freq_base": 1e4, "rope_freq_scale": 0.5}),
        (partial(RopeOverrides, rope_scaling="yarn"), {"yarn_orig_ctx": 512}),
    ],
)
def test_numbers_of_numpy_are_kept_as_those_of_python(make, numbers):
    theirs = {
        name: np.int64(value) if isinstance(value, int) else np.float32(value)
        for name, value in numbers.items()
    }
    assert make(**theirs) == make(**numbers)
    for name, value in numbers.items():
        if isinstance(value, int):
            assert type(getattr(make(**theirs), name)) is int


def test_lengths_and_counts_of_numpy_are_those_of_python(engine):
    session = engine.session()
    engine.prefill([1, 2, 3, 4], session=session)
    session.truncate(np.int64(2))
    assert session.tokens == [1, 2]
    assert oxillama.LookupDrafter(most=np.int64(3)).most == 3
    ids = list(range(2, 18))
    assert oxillama.perplexity(engine, ids, context=np.int64(8), limit=np.int64(1)) == (
        oxillama.perplexity(engine, ids, context=8, limit=1)
    )
    with pytest.raises(ContextError, match="found length np.True_"):
        session.truncate(np.True_)


@pytest.mark.parametrize("found", ["", 5, True, {}])
def test_a_path_is_a_path(found):
    with pytest.raises(ConfigError, match=f"model_path: found {found!r}, wanted a path"):
        oxillama.load(found)


def test_options_may_be_any_iterable_and_are_read_once(engine):
    wanted = engine.generate("Once", max_tokens=9, sampler=GREEDY, stop=["upon", "time"]).text
    assert (
        engine.generate(
            "Once", max_tokens=9, sampler=GREEDY, stop=(each for each in ("upon", "time"))
        ).text
        == wanted
    )
    assert (
        engine.generate(
            "Once", max_tokens=3, sampler=GREEDY, stop=None, stop_token_ids=None
        ).finish_reason
        == "length"
    )


@pytest.mark.parametrize(
    "prompt",
    (
        b"Once",
        bytearray(b"ab"),
        {1: 2},
        {1, 2},
        5,
        1.5,
        pytest.param(object(), id="object"),
        [1.7],
        [1, "2"],
        [True, False],
        np.array([1.7]),
        np.array(5),
        [-1],
        [10**30],
        [5, None],
    ),
    ids=str,
)
def test_nothing_is_taken_for_token_ids_that_is_none(engine, prompt):
    session = engine.session()
    for door in (
        engine.generate,
        engine.logits,
        engine.embed,
        lambda ids: engine.prefill(ids, session=session),
        session.extend,
        lambda ids: list(engine.diagnose(ids)),
    ):
        with pytest.raises(ConfigError, match="prompt"):
            door(prompt)
    assert session.tokens == []
    session.close()


def test_a_list_of_texts_for_one_prompt_names_what_takes_it(engine):
    for door in (engine.embed, engine.stream):
        with pytest.raises(ConfigError) as caught:
            door(["a fox", "an owl"])
        wanted = "wanted a token id (many texts: generate and embed_batch)"
        assert str(caught.value) == f"prompt[0]: found str 'a fox', {wanted}"


@pytest.mark.parametrize(
    "ids",
    (
        (5, 9),
        range(5, 10, 4),
        np.array([5, 9]),
        np.array([5, 9], np.uint8),
        pytest.param(iter([5, 9]), id="iterator"),
    ),
    ids=repr,
)
def test_token_ids_of_every_kind_are_the_same_prompt(engine, ids):
    assert (
        engine.generate(ids, max_tokens=4, sampler=GREEDY).tokens
        == engine.generate([5, 9], max_tokens=4, sampler=GREEDY).tokens
    )


def test_going_on_is_asked_for_alone(engine):
    engine.generate("Once", max_tokens=2, sampler=GREEDY)
    held = engine.kv_cache_seq_len()
    for prompts in ([None], ["a", None], [None, "a"], [[5, 9], None]):
        with pytest.raises(
            ConfigError,
            match=f"prompt: found None in a list of {len(prompts)}, wanted texts or token ids",
        ):
            engine.generate(prompts, max_tokens=2, sampler=GREEDY)
    assert engine.kv_cache_seq_len() == held


def test_texts_and_ids_are_told_apart_where_many_are_wanted(engine):
    for texts, kind in (("abc", "str"), (5, "int"), (None, "NoneType")):
        with pytest.raises(ConfigError, match=f"embed_batch: found {kind}"):
            engine.embed_batch(texts)
    assert np.array_equal(
        engine.embed_batch(text for text in ("a", "b")), engine.embed_batch(["a", "b"])
    )
    with pytest.raises(EmptySequence):
        engine.embed_batch(["a", ""])
    with pytest.raises(ConfigError, match="normalize: found 'x'"):
        engine.embed("a", normalize="x")
    for wrong in (5, "abc", [1.5]):
        with pytest.raises(ConfigError, match="detokenize"):
            engine.detokenize(wrong)
    for wrong in ("\ud800", "x \udfff"):
        with pytest.raises(TokenizerError, match="lone surrogate"):
            engine.generate(wrong)


@pytest.mark.parametrize("messages", (5, "hi", None, [5], ["hi"], {"role": "user"}), ids=str)
def test_a_conversation_is_a_list_of_messages(engine, messages):
    with pytest.raises(ConfigError, match="messages"):
        engine.chat(messages)
    with pytest.raises(ConfigError, match="tools: found int"):
        engine.chat([{"role": "user", "content": "hi"}], tools=5)


@pytest.mark.parametrize("name", ("add_special", "parse_special"))
@pytest.mark.parametrize("value", ("no", 1, None))
def test_how_texts_are_tokenised_is_true_or_false(engine, name, value):
    for call, given in ((engine.tokenize, "Once"), (engine.tokenize_batch, ["Once"])):
        with pytest.raises(ConfigError) as caught:
            call(given, **{name: value})
        assert str(caught.value) == f"{name}: found {value!r}, wanted True or False"


@pytest.mark.parametrize("prompts", ("Once", b"Once", {"Once": 1}, 5, None))
def test_many_prompts_are_a_list(engine, prompts):
    with pytest.raises(ConfigError) as caught:
        engine.submit_each(prompts)
    wanted = "wanted a list of prompts; `submit` takes one"
    assert str(caught.value) == f"submit_each: found {type(prompts).__name__}, {wanted}"


@pytest.mark.parametrize("value", ("no", 1, None, []))
def test_whether_all_of_a_model_is_hashed_is_true_or_false(engine, value):
    with engine.session() as session:
        engine.prefill([5, 9], session=session)
        with pytest.raises(ConfigError) as caught:
            session.snapshot(full=value)
    assert str(caught.value) == f"full: found {value!r}, wanted True or False"


def test_a_conversation_that_is_no_prompt_names_what_takes_it(engine):
    wanted = r"found dict.*, wanted a (string or token ids|token id) \(messages: chat\)$"
    for call in (engine.generate, engine.stream, engine.embed_batch):
        with pytest.raises(ConfigError, match=wanted):
            list(call([{"role": "user", "content": "hi"}]))


@pytest.mark.parametrize("value", ("no", 1, None))
def test_whether_a_reply_is_streamed_is_true_or_false(engine, value):
    asked = [{"role": "user", "content": "Hi"}]
    error = f"^stream: found {value!r}, wanted True or False$"
    with pytest.raises(ConfigError, match=error):
        engine.chat(asked, stream=value)
    with pytest.raises(ConfigError, match=error):
        asyncio.run(oxillama.AsyncEngine(engine).chat(asked, stream=value))


@pytest.mark.parametrize(
    "wrong",
    (
        dict(context_size=2**31),
        dict(max_pages=2**70),
        dict(prefix_cache="no"),
        dict(kv_type=[]),
        dict(tokenizer_path=5),
        dict(page_size=24),
    ),
    ids=str,
)
def test_a_field_of_the_config_that_cannot_be_honoured_is_named(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        oxillama.load(**wrong)


def test_progress_is_told_to_a_function():
    with pytest.raises(ConfigError, match="progress: found True, wanted a function"):
        oxillama.load(progress=True)


def test_what_is_no_config_or_engine_is_refused(engine):
    engine.generate("x", max_tokens=1)  # there is a session to save
    for make, told in (
        (lambda: oxillama.InferenceEngine({}), "config: found dict"),
        (lambda: AsyncEngine(5), "engine: found int"),
        (
            lambda: oxillama.perplexity("a.gguf", "x"),
            "engine: found str, wanted an InferenceEngine",
        ),
        (lambda: oxillama.collect_imatrix("a.gguf", "x"), "engine: found str"),
        (lambda: oxillama.SpeculativeEngine("a.gguf"), "config: found str, wanted a Speculative"),
        (lambda: oxillama.SpeculativeDecoder("a.gguf"), "config: found str, wanted an AsyncSpec"),
        (lambda: engine.beam_generate("x", 5), "config: found int"),
        (lambda: oxillama.ToolDispatcher(len), "^functions: found builtin_function.*, wanted a li"),
        (lambda: engine.snapshot_to_file([]), "^snapshot_to_file: found list, wanted a path$"),
        (lambda: engine.snapshot_to_file(5), "^snapshot_to_file: found int, wanted a path$"),
        (lambda: engine.submit("x", max_tokens=1).result("x"), "timeout"),
        (lambda: engine.submit("x", max_tokens=1).result(float("nan")), "timeout: found nan"),
        (
            lambda: engine.generate("x", max_tokens=1, speculative=np.array([1, 2])),
            "speculative: found array",
        ),
    ):
        with pytest.raises(ConfigError, match=told):
            make()


def test_sessions_of_another_engine_are_refused_and_stay_whole(engine):
    with oxillama.load(num_threads=1) as other:
        theirs = other.session()
        other.prefill("Once upon a", session=theirs)
        held = list(theirs.tokens)
        for door in (
            lambda: engine.generate("x", session=theirs),
            lambda: engine.generate(None, session=theirs),
            lambda: engine.prefill("x", session=theirs),
            lambda: engine.beam_generate("x", session=theirs),
            lambda: engine.stream("x", session=theirs),
        ):
            with pytest.raises(EngineError, match="another engine"):
                door()
        assert theirs.tokens == held and not theirs.busy
        assert (
            other.generate(None, session=theirs, max_tokens=4, sampler=GREEDY).tokens
            == engine.generate(held, max_tokens=4, sampler=GREEDY).tokens
        )


@pytest.mark.parametrize(
    "wrong",
    (
        dict(sampler=SamplerConfig(banned_tokens=[10**9])),
        dict(grammar="root ::= ["),
        dict(shown_tokens=[10**9]),
        dict(logprobs=10**9),
        dict(context_shift=True, keep=10**9),
        dict(stop_token_ids=[10**9]),
        dict(n=2),
    ),
    ids=str,
)
def test_a_request_that_is_refused_leaves_its_session_as_it_was(engine, wrong):
    whole = engine.generate("Once upon", max_tokens=12, sampler=SamplerConfig(seed=5))
    session = engine.session()
    first = engine.generate(
        "Once upon", session=session, max_tokens=5, sampler=SamplerConfig(seed=5)
    )
    tokens = list(session.tokens)
    for prompt in (" and then", None):
        with pytest.raises(oxillama.OxillamaError):
            engine.generate(prompt, session=session, **wrong)
    assert session.tokens == tokens
    # its sampler too
    assert (
        first.tokens + engine.generate(None, session=session, max_tokens=7).tokens == whole.tokens
    )
    session.close()


@pytest.mark.parametrize(
    "door",
    (
        "generate",
        "embed",
        "prefill",
        "clear_cache",
        "stream",
        "raw_loop",
        "kv_cache_seq_len",
        "diagnose",
    ),
)
def test_the_loop_is_never_made_to_wait_for_itself(engine, door):
    doors = {
        "generate": lambda: engine.generate("Once", max_tokens=2),
        "embed": lambda: engine.embed("Once"),
        "prefill": lambda: engine.prefill("Once"),
        "clear_cache": engine.clear_cache,
        "stream": lambda: list(engine.stream("Once", max_tokens=2)),
        "raw_loop": lambda: engine.raw_loop().__enter__(),
        "kv_cache_seq_len": engine.kv_cache_seq_len,
        "diagnose": lambda: list(engine.diagnose([1])),
    }
    told = answered(
        lambda: engine.generate(
            "Once", max_tokens=3, processors=[lambda ids, row: doors[door]() and None]
        )
    )
    assert isinstance(told, EngineError) and "its own loop" in str(told)
    # the engine goes on
    assert len(engine.generate("Once", max_tokens=3).tokens) == 3


def test_a_listener_may_look_at_the_metrics_and_cancel_but_not_wait(engine):
    seen = []
    request = engine.submit("Once", sampler=SamplerConfig(ignore_eos=True))

    def listener():
        seen.append(engine.metrics().requests_running)
        request.cancel()
        if not request.done:
            with pytest.raises(EngineError, match="its own loop"):
                request.result()

    request.listen(listener)
    assert answered(request.result).finish_reason == "cancelled" and seen


def test_a_raw_loop_keeps_its_own_thread_from_waiting_for_what_it_holds_back():
    with oxillama.load(num_threads=1) as engine:

        def inside():
            with engine.raw_loop() as loop:
                loop.prefill(0, [1, 2])
                waiting = engine.submit("Once", max_tokens=3, sampler=GREEDY)
                for door in (
                    lambda: engine.generate("Once"),
                    lambda: engine.prefill("Once"),
                    waiting.result,
                    engine.raw_loop().__enter__,
                    engine.clear_cache,
                    engine.kv_cache_seq_len,
                    lambda: list(engine.stream("Once")),
                    engine.close,
                ):
                    with pytest.raises(EngineError, match="raw loop is open in this thread"):
                        door()
            with pytest.raises(EngineError, match="not open in this thread"):
                loop.decode([3])
            return waiting.result().tokens

        assert answered(inside) == engine.generate("Once", max_tokens=3, sampler=GREEDY).tokens


def test_an_engine_closed_by_its_own_processor_ends_what_runs(engine):
    other = oxillama.load(num_threads=1)
    done = answered(
        lambda: other.generate("Once", max_tokens=50, processors=[lambda ids, row: other.close()])
    )
    assert done.finish_reason == "cancelled" and len(done.tokens) <= 1
    with pytest.raises(EngineError, match="closed"):
        other.generate("Once")


def test_results_and_pieces_can_be_had_again_and_after_the_end(engine):
    request = engine.submit("Once upon", max_tokens=6, sampler=GREEDY)
    assert list(request) == list(request) and request.result() is not None
    request.cancel()
    request.cancel()
    assert request.result() == request.result() and request.result().finish_reason == "length"
    with oxillama.load(num_threads=1) as other:
        stream, later = (
            other.stream("Once", sampler=SamplerConfig(ignore_eos=True)),
            other.submit("Once", sampler=SamplerConfig(ignore_eos=True)),
        )
    assert (
        later.result().finish_reason == "cancelled"
        and list(stream)[-1].finish_reason == stream.completion.finish_reason == "cancelled"
    )


def test_sixty_four_threads_with_random_cancels_on_a_real_model():
    prompts = [f"Once upon a time {name}" for name in ("Tom", "Lily", "the fox", "a pony")]
    config = SchedulerConfig(max_sequences=12, max_batch_sequences=5, max_batch_tokens=64)
    with oxillama.load(
        num_threads=2, max_pages=40, scheduler=config, prefill_chunk_size=32
    ) as engine:
        wanted = [
            engine.generate(
                prompt, max_tokens=10, sampler=SamplerConfig(seed=3), cache_prompt=False
            ).tokens
            for prompt in prompts
        ]
        wrong, barrier = [], threading.Barrier(64)

        def work(number):
            barrier.wait()
            for turn in range(3):
                which = (number + turn) % len(prompts)
                request = engine.submit(
                    prompts[which], max_tokens=10, sampler=SamplerConfig(seed=3)
                )
                if (number + 2 * turn) % 5 == 0:
                    request.cancel()
                done = request.result(60)
                if (
                    done.tokens != wanted[which][: len(done.tokens)]
                    or done.finish_reason == "cancelled"
                    and (number + 2 * turn) % 5
                ):
                    wrong.append((number, turn))

        threads = [
            threading.Thread(target=work, args=(number,), daemon=True) for number in range(64)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert wrong == [] and engine.metrics().pages_leaked == 0


@pytest.mark.parametrize("page_size", (32, 48, 256))
def test_page_sizes_do_not_change_a_bit(engine, page_size):
    ids = [(7 * at + 3) % engine.config.vocab_size for at in range(150)]
    with oxillama.load(
        page_size=page_size, num_threads=2, prefill_chunk_size=37, max_pages=-(-600 // page_size)
    ) as other:
        assert np.array_equal(other.logits(ids), engine.logits(ids))
        options = dict(max_tokens=20, sampler=SamplerConfig(seed=2))
        wanted = [engine.generate(ids[:length], **options).tokens for length in (150, 149, 40)]
        assert [
            done.tokens for done in other.generate([ids, ids[:149], ids[:40]], **options)
        ] == wanted
        session = other.session()
        assert np.array_equal(
            other.prefill(ids[:100], session=session), engine.logits(ids[:100])[-1]
        )
        twin = session.fork()
        twin.truncate(min(page_size + 1, 70))
        assert np.array_equal(
            other.prefill(ids[min(page_size + 1, 70) :], session=twin), engine.logits(ids)[-1]
        )


def test_a_context_is_the_models_own_unless_told_otherwise(engine):
    assert engine.context_size == engine.config.context_length
    with pytest.raises(ContextError, match=f"a context of {engine.context_size}"):
        engine.generate([1] * (engine.context_size + 1))


@pytest.mark.parametrize(
    ("config", "name", "told"),
    [
        (oxillama.SamplerConfig, "temp", "; did you mean temperature"),
        (oxillama.SamplerConfig, "max_tokens", "; generate(...) takes it"),
        (oxillama.EngineConfig, "n_ctx", "; did you mean context_size"),
        (oxillama.SchedulerConfig, "max_num_batched_tokens", "; did you mean max_batch_tokens"),
        (oxillama.SchedulerConfig, "max_num_seqs", "; scheduler=SchedulerConfig(max_sequences"),
        (oxillama.BeamSearchConfig, "max_tokens", "; did you mean max_new_tokens"),
        (oxillama.DiffusionConfig, "step", "; did you mean steps"),
        (oxillama.SpeculativeConfig, "num_speculative_tokens", "; did you mean num_speculative"),
        (oxillama.AsyncSpecConfig, "k", ", wanted one of adaptive, draft_sampler"),
        (Options, "max_token", "; did you mean max_tokens"),
        (ServerConfig, "ports", "; did you mean port"),
        (GrammarLimits, "max_state", "; did you mean max_states"),
        (oxillama.Budget, "ram_byte", "; did you mean ram_bytes"),
        (oxillama.PinnedHotSet, "pin_last_layers", "; did you mean pin_last_n_layers"),
    ],
)
def test_a_field_that_a_config_has_not_comes_with_the_one_that_is_meant(config, name, told):
    place = f"{name}: is not a field of {config.__name__}"
    with pytest.raises(ConfigError, match=f"^{re.escape(place + told)}"):
        config(**{name: 1})


LONG = "x" * 100_000


def _of_a_vocabulary(**keys):
    named = {f"tokenizer.ggml.{name}": value for name, value in keys.items()}
    TokenizerBridge.from_metadata({"tokenizer.ggml.tokens": ["a"], **named})


def _of_an_adapter(place, **keys):
    with GgufWriter(place / "a.gguf", "llama") as writer:
        for name, value in {"general.type": "adapter", "adapter.type": "lora", **keys}.items():
            writer.add(name, value)
    read_gguf_lora(place / "a.gguf")


def _rotated(value):
    keys = Keys({"a.context_length": 8, "a.rope.scaling.type": value}, "a")
    rope_from_keys(keys, 4, base_key="rope.freq_base", base=1e4, factors=None, scaled=True)


@pytest.mark.parametrize(
    ("name", "read"),
    (
        ("general.alignment", lambda place: checked_alignment(LONG)),
        ("tokenizer.ggml.model", lambda place: _of_a_vocabulary(model=LONG)),
        (
            "tokenizer.ggml.pre",
            lambda place: _of_a_vocabulary(model="gpt2", pre=LONG, merges=["a a"]),
        ),
        ("rope.scaling.type", lambda place: _rotated(LONG)),
        ("adapter.lora.alpha", lambda place: _of_an_adapter(place, **{"adapter.lora.alpha": LONG})),
        (
            "adapter.lora.alpha",
            lambda place: _of_an_adapter(place, **{"adapter.lora.alpha": [LONG]}),
        ),
    ),
)
def test_an_error_shows_the_beginning_of_a_long_text_in_a_file(name, read, tmp_path):
    with pytest.raises(oxillama.OxillamaError, match=f"{name}: found") as told:
        read(tmp_path)
    assert len(str(told.value)) < 2000


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda e: e.generate("Once", GREEDY),
            "generate: found 2 arguments without a name, .*prom",
        ),
        (lambda e: e.stream("Once", 5), "stream: found 2 arguments without a name"),
        (lambda e: e.chat([], [], []), "chat: found 3 arguments .* at most 1 .messages."),
        (lambda e: asyncio.run(AsyncEngine(e).generate("Once", 5)), "generate: found 2 arguments"),
        (
            lambda e: oxillama.load("a", "b"),
            "load: found 2 arguments .* wanted at most 1 .model_path",
        ),
    ],
)
def test_options_are_given_by_name(engine, call, told):
    with pytest.raises(ConfigError, match=told):
        call(engine)


@pytest.mark.parametrize(
    "call",
    [
        lambda e: e.generate("Once", resumable=True),
        lambda e: e.generate(["Once"], resumable=True),
        lambda e: e.stream("Once", resumable=True),
        lambda e: e.chat([{"role": "user", "content": "Hi"}], resumable=True),
        lambda e: asyncio.run(AsyncEngine(e).generate(["Once"], resumable=False)),
        lambda e: asyncio.run(AsyncEngine(e).chat([], resumable=False)),
    ],
)
def test_what_can_always_be_resumed_is_not_told_so(engine, call):
    with pytest.raises(ConfigError, match="resumable: found .*, wanted it left out"):
        call(engine)


def test_an_error_names_an_option_as_it_was_given(engine):
    for name, value in (("temp", "hot"), ("n_predict", 0.5), ("repeat_penalty", -1)):
        with pytest.raises(ConfigError, match=f"^{name}: found {value!r}, wanted"):
            engine.generate("Once", **{name: value})
    for name, value in (("n_ctx", "4096"), ("num_ctx", -3), ("n_threads", 0.5)):
        with pytest.raises(ConfigError, match=f"^{name}: found {value!r}, wanted an integer"):
            oxillama.load(**{name: value})
    with pytest.raises(ConfigError, match="^context_size: found '4096'"):
        oxillama.load(context_size="4096")
    with engine.session() as session:
        engine.prefill("Once", session=session)
        saved = oxillama.EngineSnapshot.inspect(session.snapshot())
    with pytest.raises(ConfigError, match="^n_ctx: found 'x'"):
        saved.config(n_ctx="x")


ARRAY = np.zeros(3)


@pytest.mark.parametrize(
    "call",
    [
        lambda e, a: oxillama.EngineConfig(image_fit=a),
        lambda e, a: oxillama.EngineConfig(prefix_cache=a),
        lambda e, a: oxillama.DiffusionConfig(order=a),
        lambda e, a: oxillama.JsonSchemaCompiler(whitespace=a),
        lambda e, a: oxillama.JsonSchemaCompiler(closed=a),
        lambda e, a: oxillama.Grammar.from_json_schema(True, strict=a),
        lambda e, a: oxillama.LookupDrafter(neighbours=a),
        lambda e, a: oxillama.AsyncSpecConfig(adaptive=a),
        lambda e, a: oxillama.ReasoningSplitter(opened=a),
        lambda e, a: e.generate("Once", samplers=[a]),
        lambda e, a: e.generate("Once", cache_prompt=a),
        lambda e, a: e.submit("Once", resumable=a),
        lambda e, a: e.chat([{"role": "user", "content": "Hi"}], tool_choice=a),
        lambda e, a: e.chat([{"role": "user", "content": "Hi"}], template=a),
        lambda e, a: e.snapshot(compress=a),
        lambda e, a: e.embed("Once", pooling=a),
    ],
)
def test_an_array_is_no_flag_and_no_name(engine, call):
    """Arrays compare item by item, which is neither true nor false."""
    engine.prefill("Once")
    with pytest.raises(oxillama.OxillamaError, match=r"^[a-z_]+: found .*array|: found array"):
        call(engine, ARRAY)


@pytest.mark.parametrize(
    "name",
    ("stop", "processors", "choices", "samplers", "banned_tokens", "dry_sequence_breakers"),
)
def test_an_array_without_dimensions_is_no_list(engine, name):
    with pytest.raises(ConfigError, match=f"^{name}: found array.'x'"):
        engine.generate("Once", **{name: np.array("x")})
    for call in (engine.tokenize_batch, engine.submit_each, engine.embed_batch):
        with pytest.raises(oxillama.OxillamaError, match="found ndarray, wanted a list"):
            call(np.array("x"))


class SlottedDrafter:
    """What it costs cannot be remembered for as long as it lives."""

    __slots__ = ()

    def open(self, session):
        pass

    def propose(self, requests):
        return [oxillama.Draft()] * len(requests)

    def close(self, state, session):
        pass


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda e: oxillama.TextStream(len, shown=5), "shown: found int, wanted a mapping"),
        (lambda e: oxillama.TextStream(5), "token_bytes: found int, wanted a function"),
        (lambda e: oxillama.TextStream(len, pending="x"), "pending: found str, wanted bytes"),
        (lambda e: oxillama.TokenizerBridge.from_metadata(None), "metadata: found NoneType"),
        (lambda e: oxillama.split_reasoning("a", 5), "format: found 5, wanted a ReasoningFormat"),
        (
            lambda e: oxillama.SamplerConfig.from_dict({1: "x"}),
            "1: is not a field of SamplerConfig",
        ),
        (lambda e: oxillama.PoolingMode("x"), "pooling: found 'x', wanted one of last, mean"),
        (lambda e: oxillama.Candidates(5), "drafter: found int, wanted a drafter"),
        (
            lambda e: e.generate("a", max_tokens=2, speculative=SlottedDrafter()),
            "drafter: found a SlottedDrafter without weak references, wanted one with '__weakref",
        ),
        (
            lambda e: oxillama.MemoryPressureProbe(high="x"),
            "watermarks: found low 0.75 and high 'x'",
        ),
        (lambda e: oxillama.NoOpDispatcher().dispatch(5), "call: found int, wanted a ToolCall"),
        (lambda e: oxillama.ImagePrompt(5), "ids: found int, wanted token ids"),
        (
            lambda e: oxillama.ImagePrompt([1], [5]),
            "media: found .5., wanted a list of PlacedMedia",
        ),
        (lambda e: oxillama.EngineConfig.of(5, function="load"), "load: found int, wanted fields"),
        (lambda e: oxillama.Options.of(5), "options: found int, wanted options by name"),
        (lambda e: oxillama.GrammarState(5), "grammar: found int, wanted a Grammar"),
        (lambda e: YES.state(masker=5), "masker: found int, wanted a TokenMasker"),
        (lambda e: YES.state().advance("yes"), "data: found str, wanted bytes"),
        (lambda e: YES.state().allows_token(None), "data: found NoneType, wanted bytes"),
        (lambda e: YES.state().forced("x"), "limit: found 'x', wanted an integer of 0 or more"),
        (lambda e: YES.matches(5), "text: found int, wanted text, bytes or a list"),
        (lambda e: YES.matches([None]), "text: found NoneType, wanted text, bytes or a list"),
        (
            lambda e: oxillama.JsonSchemaCompiler(limits=5),
            "limits: found int, wanted GrammarLimits",
        ),
        (lambda e: oxillama.SamplerStage([]), r"stage: found \[\], wanted one of"),
        (lambda e: oxillama.SamplerStage.of([]), r"stage: found \[\], wanted one of"),
        (lambda e: oxillama.SamplerStage.python([], len), "stage ..: found .*, wanted a callable"),
        (lambda e: oxillama.SamplerChain(5), "chain: found 5, wanted a list of SamplerStage"),
        (lambda e: oxillama.SamplerChain.from_config(5), "config: found int, wanted a SamplerConf"),
        (lambda e: SAMPLER.sample("x"), "logits: found str, wanted a row of real numbers"),
        (lambda e: SAMPLER.distribution({}), "logits: found dict, wanted a row of real numbers"),
        (lambda e: SAMPLER.restore(5), "sampler state: found int, wanted bytes"),
        (lambda e: SAMPLER.set_history([], generated="x"), "set_history: found generated 'x'"),
        (
            lambda e: oxillama.SequencePool(1 << 70),
            "capacity: found 1180591620717411303424, wanted",
        ),
        (lambda e: e.restore("a\0b"), "'a.x00b': cannot be the name of a file"),
        (lambda e: e.restore("\ud800"), "'.ud800': cannot be the name of a file"),
        (lambda e: e.tokenizer.token_text("x"), "token id: found 'x', wanted 0 to"),
        (lambda e: e.tokenizer.token_bytes(1.5), "token id: found 1.5, wanted 0 to"),
        (lambda e: e.tokenizer.is_special(True), "token id: found True, wanted 0 to"),
        (lambda e: e.tokenizer.decode(5), "ids: found int, wanted token ids"),
        (lambda e: e.tokenizer.decode(["x"]), "token id: found 'x', wanted 0 to"),
        (lambda e: e.tokenizer.stream(shown=5), "shown: found int, wanted token ids"),
        (lambda e: e.tokenizer.token_to_id([]), "text: found list, wanted str"),
        (lambda e: e.tokenizer.from_tokenizer_json(5), "tokenizer_json: found int, wanted the tex"),
        (lambda e: e.tokenizer.stream().feed_bytes("x"), "data: found str, wanted bytes"),
        (lambda e: oxillama.TokenMasker(5), "vocab_bytes: found int, wanted a list of the tokens"),
        (lambda e: oxillama.TokenMasker([b"a", 5]), r"vocab_bytes\[1\]: found 5, wanted bytes"),
        (lambda e: oxillama.ToolCallGrammar("hermes", 5), "tools: found int, wanted a list"),
        (lambda e: oxillama.ToolCallDetector("hermes", names=5), "names: found 5, wanted a list"),
        (lambda e: oxillama.ToolCallDetector("hermes", parameters=5), "parameters: found 5, want"),
        (lambda e: e.restore_from_file(5), "restore_from_file: found int, wanted a path"),
        (lambda e: e.resume_from_file(5), "resume_from_file: found int, wanted a path"),
        (lambda e: e.resume(b"", loras=5), "loras: found int, wanted a list of files"),
        (
            lambda e: oxillama.TriggeredGrammar("hermes", [TOOL], reasoning="x"),
            "reasoning: found 'x', wanted a ReasoningFormat",
        ),
        (
            lambda e: oxillama.TriggeredGrammar("hermes", [TOOL], parallel=None),
            "parallel: found None, wanted True or False",
        ),
        (
            lambda e: oxillama.ToolCallGrammar("hermes", [TOOL], closed="x"),
            "closed: found 'x', wanted True or False",
        ),
        (
            lambda e: oxillama.TriggeredGrammar("hermes", [TOOL]).state(5),
            "masker: found int, wanted a TokenMasker",
        ),
        (
            lambda e: oxillama.ToolDispatcher().dispatch(5),
            "call: found int, wanted a ToolCall",
        ),
        (
            lambda e: asyncio.run(oxillama.ToolDispatcher().dispatch_async("x")),
            "call: found str, wanted a ToolCall",
        ),
        (lambda e: oxillama.apply_grammar_mask(ROW, 5), "state: found int, wanted a GrammarState"),
        (lambda e: oxillama.perplexity(e, "x", kl_base=5), "kl_base: found int, wanted a path"),
        (
            lambda e: oxillama.perplexity(e, "x", save_logits=5),
            "save_logits: found int, wanted a path",
        ),
        (lambda e: oxillama.perplexity(e, "x", progress=5), "progress: found 5, wanted a function"),
        (
            lambda e: oxillama.collect_imatrix(e, "x", progress=5),
            "progress: found 5, wanted a function",
        ),
        (lambda e: oxillama.merge_lora(5, [], "x"), "base: found int, wanted a path"),
        (
            lambda e: oxillama.merge_lora("x", [], "x", progress=5),
            "progress: found 5, wanted a function",
        ),
        (
            lambda e: oxillama.quant.quantize_file("x", "y", "Q8_0", progress=5),
            "progress: found 5, wanted a function",
        ),
        (
            lambda e: oxillama.convert.convert_folder("x", "y", progress=5),
            "progress: found 5, wanted a function",
        ),
        (lambda e: oxillama.convert.convert_folder("x", "y", 5), "type: found 5, wanted auto"),
        (lambda e: oxillama.convert.convert_encoder("x", "y", 5), "type: found 5, wanted auto"),
        (lambda e: oxillama.KvCachePool(5), "memory: found 5, wanted memory of pages"),
        (lambda e: oxillama.PagedKvCache("x"), "pool: found 'x', wanted a KvCachePool"),
        (lambda e: oxillama.PrefixKvCache(pool=5), "pool: found 5, wanted a KvCachePool"),
        (lambda e: oxillama.SsmStatePool(5), "memory: found 5, wanted memory of state slots"),
        (lambda e: oxillama.EngineSnapshot.of(5), "saved: found int, wanted an opened snapshot"),
        (
            lambda e: oxillama.SamplerConfig(samplers="y" * 99),
            r"samplers: found 'y{49}, wanted a list of stage names",
        ),
        (
            lambda e: e.chat([{"role": "user", "content": "x"}], tools=[TOOL], tool_choice=LONG),
            r"tool_choice: found 'q{49}, wanted one of auto",
        ),
    ],
)
def test_a_value_of_another_type_is_named(engine, call, told):
    with pytest.raises(oxillama.OxillamaError, match=f"^{told}"):
        call(engine)


SAMPLER = oxillama.Sampler(GREEDY, vocab_size=4)
ROW = np.zeros(4, np.float32)
YES = oxillama.Grammar.from_choices(["yes"])
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
LONG = "q" * 99


def test_a_snapshot_that_is_not_there_is_named(engine, tmp_path):
    path = tmp_path / "none.snap"
    calls = (
        oxillama.EngineSnapshot.inspect,
        engine.restore,
        engine.restore_from_file,
        engine.load_prefixes,
        engine.resume_from_file,
        oxillama.SpeculativeEngine.resume_from_file,
    )
    for call in calls:
        with pytest.raises(oxillama.SnapshotNotFound) as caught:
            call(path)
        error = caught.value
        assert str(error) == f"{path}: no such file, wanted a saved snapshot"
        assert isinstance(error, FileNotFoundError)
        assert isinstance(error, oxillama.SnapshotIncompatible)
        assert (error.filename, error.strerror) == (str(path), "no such file")
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_folder_that_is_not_there_is_named(engine, tmp_path):
    engine.prefill("Once")
    with pytest.raises(OSError, match="a name with a lone surrogate"):
        engine.snapshot_to_file("\ud800")
    with pytest.raises(FileNotFoundError, match="there is no such folder: .*none'"):
        engine.snapshot_to_file(tmp_path / "none" / "a.snap")
