"""What stands between a caller's options and a request: constraints are kept by what they ask for,
counts must agree.
"""

import dataclasses

import pytest

import oxillama
from oxillama import BeamSearchConfig, ConfigError, GrammarError, SamplerConfig
from oxillama.engine import generation

HELD = SamplerConfig.greedy(min_tokens=8)


@pytest.fixture(scope="module")
def words(engine):
    return engine._loaded.required_vocabulary


def test_a_dataclass_made_anew_under_its_old_name_has_its_own_schema(words):
    texts = '{"old":true}', '{"new":true}'
    grammars = [
        words.grammar(
            oxillama.Options(json_schema=dataclasses.make_dataclass("Answer", [(name, bool)]))
        )
        for name in ("old", "new")
    ]
    assert [[grammar.matches(text) for text in texts] for grammar in grammars] == [
        [True, False],
        [False, True],
    ]


def test_a_schema_that_nests_too_deeply_is_refused(engine):
    schema = {"type": "null"}
    for _ in range(5000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(GrammarError, match="schema: nested too deeply"):
        engine.generate("Once", json_schema=schema)


def test_a_schema_asked_for_again_is_compiled_once(words):
    Answer = dataclasses.make_dataclass("Answer", [("kept", bool)])
    assert words.grammar(oxillama.Options(json_schema=Answer)) is words.grammar(
        oxillama.Options(json_schema=Answer)
    )


def test_breakers_asked_for_again_are_kept_within_bounds(words, monkeypatch):
    """Each set that a client names takes a list of the vocabulary's tokens."""
    monkeypatch.setattr(generation, "_MOST_KEPT", 3)
    configs = [
        SamplerConfig(dry_multiplier=1.0, dry_sequence_breakers=(text, "\n")) for text in "abcde"
    ]
    first = [words.breakers(config) for config in configs]
    assert words.breakers(configs[4]) is first[4] and len(words._kept) == 3
    again = words.breakers(configs[0])
    assert again == first[0] and again is not first[0]
    options = oxillama.Options.of({"dry_multiplier": 1.0, "dry_sequence_breakers": ["q"]})
    words.prepare(options, SamplerConfig())
    assert ("breakers", ("q",)) in words._kept


def test_breakers_of_many_tokens_are_kept_within_bounds(words, monkeypatch):
    grammar = words.grammar(oxillama.Options(regex="kept|anyway"))
    configs = [
        SamplerConfig(dry_multiplier=1.0, dry_sequence_breakers=(text * 40,)) for text in "aei"
    ]
    sets = [words.breakers(config) for config in configs]
    sizes = [sum(map(len, each)) for each in sets]
    assert min(sizes) > 500
    names = [("breakers", config.dry_sequence_breakers) for config in configs]

    def kept(most):
        """Which of the three there are still, with a limit."""
        monkeypatch.setattr(generation, "_MOST_IDS", most)
        words._kept.clear()
        words._kept["grammar", "kept"] = grammar, 0
        for config in configs:
            words.breakers(config)
        assert ("grammar", "kept") in words._kept
        return [name in words._kept for name in names]

    assert kept(sum(sizes)) == [True, True, True]
    assert kept(sum(sizes) - 1) == [False, True, True]
    assert kept(1) == [False, False, True]


@pytest.mark.parametrize(
    ("door", "options"),
    [
        ("generate", dict(max_tokens=7)),
        ("stream", dict(max_tokens=7)),
        ("generate", dict(max_tokens=7, n=2)),
        ("beam_generate", dict(config=BeamSearchConfig(max_new_tokens=7))),
    ],
)
def test_fewer_tokens_at_most_than_at_least_are_refused(engine, door, options):
    with pytest.raises(
        ConfigError, match="^min_tokens: found 8 still to come, wanted no more than the 7"
    ):
        getattr(engine, door)("Once", sampler=HELD, **options)


def test_tokens_that_a_session_has_drawn_count_towards_the_least(engine):
    session = engine.session()
    assert len(engine.generate("Once", session=session, max_tokens=8, sampler=HELD).tokens) == 8
    assert len(engine.generate(None, session=session, max_tokens=2).tokens) == 2
    session.close()


def test_a_grammar_whose_text_is_whole_ends_it_before_the_least_tokens(engine):
    done = engine.generate("Once", choices=["cat"], sampler=HELD)
    assert (done.text, done.finish_reason, len(done.tokens) < 8) == ("cat", "stop", True)


@pytest.mark.parametrize(
    "asked",
    [
        dict(logprobs=0),
        dict(stop="zzz"),
        dict(stop_token_ids=[9]),
        dict(processors=[lambda ids, row: None]),
    ],
)
def test_going_on_keeps_what_the_options_do_not_name(engine, asked):
    options = dict(regex="[a-m]{30}", sampler=SamplerConfig(temperature=1.0, seed=5))
    whole = engine.generate("x", max_tokens=12, **options)
    begun = engine.generate("x", max_tokens=6, **options)
    rest = engine.generate(None, max_tokens=6, **asked)
    assert (begun.tokens + rest.tokens, rest.seed, len(rest.logprobs)) == (
        whole.tokens,
        5,
        6 * ("logprobs" in asked),
    )


@pytest.mark.parametrize("again", (True, False))
def test_a_stop_that_begins_in_one_call_ends_the_next(engine, again):
    options = dict(max_tokens=20, sampler=SamplerConfig.greedy())
    text = engine.generate("Once upon a time", **options).text
    stop = text[2:24]  # several tokens
    whole = engine.generate("Once upon a time", **options, stop=stop)
    parts = [engine.generate("Once upon a time", **{**options, "max_tokens": 1}, stop=stop)]
    while parts[-1].finish_reason == "length" and len(parts) < 20:
        parts.append(engine.generate(None, max_tokens=1, **({"stop": stop} if again else {})))
    assert sum((each.tokens for each in parts), ()) == whole.tokens
    assert (whole.finish_reason, parts[-1].finish_reason) == ("stop", "stop")
    assert engine._loaded.last_session("").sampler.config.stop == (stop,)


def test_text_held_back_for_a_stop_comes_with_the_next_call(engine):
    options = dict(sampler=SamplerConfig.greedy())
    two, whole = (engine.generate("Hi", max_tokens=most, **options).text for most in (2, 8))
    session = engine.session()

    def cancels(ids, row):
        if len(session.tokens) == request.prompt_tokens + 2:
            request.cancel()

    request = engine.submit("Hi", session=session, stop=f"{two}\0", processors=[cancels], **options)
    begun = request.result()
    rest = engine.generate(
        None, session=session, max_tokens=6, stop="zzz", processors=[lambda ids, row: None]
    )
    assert (len(begun.tokens), begun.text, rest.text) == (2, "", whole)


def test_an_unfinished_character_is_kept_where_another_call_shows_tokens(engine):
    session, pieces = engine.session(), engine.tokenizer.vocab_bytes()
    options = dict(session=session, max_tokens=1, shown_tokens=[engine.tokenizer.bos_id])
    parts = [
        engine.generate(prompt, allowed_tokens=[pieces.index(piece)], **options).text
        for prompt, piece in (("Hi", b"\xc3"), (None, b"\xa9"))
    ]
    assert parts == ["", "é"]


def test_going_on_with_another_sampler_leaves_the_grammar_where_it_stands(engine):
    begun = engine.generate("x", regex="[ab]{7}", max_tokens=5, sampler=SamplerConfig.greedy())
    rest = engine.generate(None, max_tokens=20, sampler=SamplerConfig(seed=3))
    assert (
        len(begun.text + rest.text),
        set(begun.text + rest.text) <= {"a", "b"},
        rest.finish_reason,
        rest.seed,
    ) == (7, True, "stop", 3)


def test_after_the_best_of_several_the_one_that_was_returned_goes_on(engine):
    drawn = dict(max_tokens=4, sampler=SamplerConfig(temperature=1.5, top_k=0, top_p=1.0))
    places = set()
    for seed in range(1, 7):
        siblings = engine.submit("Once upon", best_of=4, seed=seed, resumable=True, **drawn)
        (best,) = siblings.result()
        assert tuple(siblings.session.tokens[-len(best.tokens) :]) == best.tokens
        places.add([request.session for request in siblings.requests].index(siblings.session))
        request = engine.submit(None, max_tokens=1)
        request.result()
        assert request.session is siblings.session and request.result().seed == best.seed
    assert len(places) > 1


def test_after_several_completions_there_is_none_to_go_on_with(engine):
    engine.generate("Once upon", n=2, max_tokens=2)
    with pytest.raises(oxillama.EngineError, match="there is no session to continue"):
        engine.generate(None)


def test_an_expression_is_a_text(engine):
    with pytest.raises(ConfigError, match="^regex: found list, wanted a text"):
        engine.generate("x", regex=["a"])


def test_siblings_are_waited_for_in_seconds(engine):
    siblings = engine.submit("Once", n=2, max_tokens=2)
    for wrong in ("x", float("nan")):
        with pytest.raises(ConfigError, match=f"^timeout: found {wrong!r}, wanted seconds"):
            siblings.result(wrong)
    assert [len(done.tokens) for done in siblings.result()] == [2, 2]


@pytest.mark.parametrize("kind", ["processor", "listener"])
def test_functions_of_callers_see_the_last_row_of_a_prompt_that_is_scored(engine, kind):
    ids, seen = engine.tokenize("Once upon a time, there was"), []
    processors = [lambda tokens, row: seen.append(row.copy())] if kind == "processor" else []
    request = engine.submit(
        ids, max_tokens=4, temperature=0, prompt_logprobs=0, logprobs=0, processors=processors
    )
    if kind == "listener":
        request.listen(lambda: None)
    done = request.result()
    wanted = engine.generate(ids, max_tokens=4, temperature=0, logprobs=0)
    assert (done.tokens, done.logprobs) == (wanted.tokens, wanted.logprobs)
    if seen:
        assert (seen[0] == engine.logits(ids)[-1]).all() and len(seen) == 4
