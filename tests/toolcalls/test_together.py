"""Constraints of calls together with everything else a request may ask: stops, least and most
tokens, ends, characters over several tokens.
"""

import json

import pytest

import oxillama
from oxillama.chat import Chat
from oxillama.grammar import TokenMasker
from oxillama.toolcalls import (
    FORMATS,
    THINK,
    Custom,
    ToolCallGrammar,
    TriggeredGrammar,
    detect_calls,
)

TOOLS = [
    {
        "name": "say",
        "parameters": {"properties": {"s": {"enum": ["日本 é", "plain"]}}, "required": ["s"]},
    }
]
TALK = [{"role": "user", "content": "Once upon a time"}]
GREEDY = oxillama.SamplerConfig.greedy()
BLOCKS = sorted(set(FORMATS) - {"harmony"})


@pytest.fixture(scope="module")
def engine(cases):
    with oxillama.load(cases / "stories260K" / "stories260K-f32.gguf") as loaded:
        loaded._loaded._chat = Chat(
            {"tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"},
            loaded._loaded.required_vocabulary,
        )
        yield loaded


def asked(engine, **options):
    options = {
        "tools": TOOLS,
        "tool_format": "qwen",
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "sampler": GREEDY,
        **options,
    }
    return engine.chat(TALK, **options)


def test_a_call_whose_characters_take_several_tokens_is_whole(engine):
    escapes = [
        token for token, piece in enumerate(engine.tokenizer.vocab_bytes()) if b"\\" in piece
    ]
    raw = GREEDY.replace(banned_tokens=escapes)  # characters themselves, not their escapes
    for schema in ({"const": "日本 é"}, {"const": "🙂"}):
        tools = [{"name": "say", "parameters": {"properties": {"s": schema}, "required": ["s"]}}]
        events = list(asked(engine, tools=tools, sampler=raw, stream=True))
        (call,) = events[-1].completion.tool_calls
        assert call.arguments == {"s": schema["const"]} and "\ufffd" not in "".join(
            each.arguments for each in events
        )
        assert (
            any(not event.arguments.isascii() for event in events)
            and json.loads(call.arguments_text) == call.arguments
        )


def test_a_stop_inside_a_call_ends_it_and_the_call_is_told_as_malformed(engine):
    done = asked(engine, stop=['"say"'])
    assert (
        done.finish_reason == "stop"
        and not done.tool_calls
        and done.malformed_calls[0].text == done.text
        and '"say"' not in done.text
    )


def test_most_tokens_end_a_call_and_it_is_told_as_malformed(engine):
    done = asked(engine, max_tokens=20)
    assert (done.finish_reason, done.tool_calls, len(done.tokens)) == ("length", (), 20) and len(
        done.malformed_calls
    ) == 1


def test_the_end_of_generation_comes_when_the_call_is_whole_and_not_before(engine):
    eos = engine.tokenizer.eos_id
    pushed = GREEDY.replace(logit_bias={eos: 100.0})
    for options in ({}, {"parallel_tool_calls": True}):
        done = asked(engine, sampler=pushed, **options)
        assert (
            done.finish_reason == "tool_calls"
            and len(done.tool_calls) == 1
            and eos not in done.tokens
        )
    free = asked(engine, tool_choice="auto", sampler=pushed)
    assert (free.tokens, free.finish_reason, free.tool_calls) == ((), "stop", ())


def test_least_tokens_hold_the_end_back_where_text_may_go_on(engine):
    eos = engine.tokenizer.eos_id
    held = GREEDY.replace(logit_bias={eos: 100.0}, min_tokens=7)
    assert len(asked(engine, tool_choice="auto", sampler=held).tokens) == 7
    many = asked(
        engine, parallel_tool_calls=True, sampler=held.replace(min_tokens=120), max_tokens=400
    )
    assert len(many.tool_calls) >= 2 and len(many.tokens) >= 120 and not many.malformed_calls


@pytest.mark.parametrize("format", BLOCKS)
def test_only_the_end_follows_a_single_call(format):
    masker = TokenMasker([*map(bytes, zip(range(256))), b""], control_ids=[256], eog_ids=[256])
    for grammar in (
        ToolCallGrammar(format, TOOLS, parallel=False),
        TriggeredGrammar(format, TOOLS, reasoning=THINK, parallel=False),
    ):
        state = masker.state(grammar)
        kind = FORMATS[format]
        if not isinstance(grammar, TriggeredGrammar):
            while not state.only_end():
                state.advance(
                    state.forced()
                    or next(c for c in map(bytes, zip(range(255, 0, -1))) if state.allows_token(c))
                )
            text = state.consumed.decode()
            assert len(detect_calls(text, kind)[1]) == 1
        else:
            state.advance(text.encode())
        mask = state.mask()
        assert [token for token in range(257) if mask[token >> 5] >> (token & 31) & 1] == [
            256
        ] and state.only_end()


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_an_opening_that_is_a_control_token_is_shown_and_read_as_it_streams(engine, choice):
    kind, token = Custom("<s>", "[/call]"), engine.tokenizer.token_to_id("<s>")
    pushed = GREEDY.replace(logit_bias={token: 100.0})
    options = {"tool_format": kind, "tool_choice": choice, "sampler": pushed}
    done, events = asked(engine, **options), list(asked(engine, stream=True, **options))
    assert (
        done.tokens[0] == token
        and done.text.startswith("<s>")
        and done.text.endswith("[/call]")
        and done.content == ""
    )
    assert [call.name for call in done.tool_calls] == ["say"] and events[
        -1
    ].completion.tool_calls == done.tool_calls
    assert [event.kind for event in events if event.kind != "arguments"] == [
        "call",
        "call_end",
        "end",
    ]


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_a_session_saved_inside_a_call_goes_on_with_its_constraint(engine, choice, cases):
    token = engine.tokenizer.token_to_id("<s>")
    options = {
        "tool_format": Custom("<s>", "[/call]"),
        "tool_choice": choice,
        "sampler": GREEDY.replace(logit_bias={token: 100.0}),
    }
    whole = asked(engine, **options)
    first = asked(engine, **options, max_tokens=20)
    saved = engine.snapshot()
    with oxillama.InferenceEngine.resume(
        saved, cases / "stories260K" / "stories260K-f32.gguf"
    ) as other:
        rest = other.generate(None)
    assert first.tokens + rest.tokens == whole.tokens and first.text + rest.text == whole.text
