"""Grammars of calls: what follows the schemas is in them, what does not is not, and the detector
reads all of it.
"""

import inspect
import json
import sys
from random import Random

import jsonschema
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oxillama.errors import ConfigError, GrammarError
from oxillama.grammar import Grammar, GrammarState, TokenMasker
from oxillama.toolcalls import (
    FORMATS,
    THINK,
    Custom,
    ToolCallGrammar,
    TriggeredGrammar,
    detect_calls,
)
from oxillama.toolcalls.formats import DIGITS, IDENTIFIER

WEATHER = {
    "type": "object",
    "required": ["city"],
    "properties": {
        "city": {"type": "string", "maxLength": 4},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "units": {"enum": ["C", "°F", True, None]},
        "where": {"type": "array", "items": {"$ref": "#/$defs/point"}, "maxItems": 2},
    },
    "$defs": {"point": {"type": ["number", "boolean"]}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"name": "now"},
]
SCHEMAS = {
    "weather": {**WEATHER, "additionalProperties": False},
    "now": {"type": "object", "additionalProperties": False},
}
ALPHABET = [bytes([byte]) for byte in b'"}])>,: ab019-.\n\\{[(tf<;=TFN'] + ["é".encode()]
SPELLED = {
    "qwen": (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm", "days": 3}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    ),
    "llama3": (
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Ulm", "days": 3}}; {"name": '
        '"now", "parameters": {}}'
    ),
    "mistral": (
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Ulm", "days": 3}}, {"name": '
        '"now", "arguments": {}}]'
    ),
    "mistral-args": '[TOOL_CALLS]weather[ARGS]{"city": "Ulm", "days": 3}[TOOL_CALLS]now[ARGS]{}',
    "pythonic": '[weather(city="Ulm", days=3, units=None, where=[1, true]), now()]',
    "command-r": (
        '<|START_ACTION|>[\n{"tool_name": "weather", "parameters": {"city": "Ulm", "days": 3}}, '
        '{"tool_name": "now", "parameters": {}}\n]<|END_ACTION|>'
    ),
    "deepseek": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
        "```json\n"
        '{"city": "Ulm", "days": 3}\n```<｜tool▁call▁end｜>\n'
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n"
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek-3.1": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Ulm", "days": '
        "3}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "function-tag": (
        '<function=weather>{"city": "Ulm", "days": 3}</function>\n<function=now>{}</function>'
    ),
    "granite": (
        '<|tool_call|>[{"name": "weather", "arguments": {"city": "Ulm", "days": 3}}, {"name": '
        '"now", "arguments": {}}]'
    ),
    "kimi-k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
        '<|tool_call_argument_begin|>{"city": "Ulm", "days": 3}'
        "<|tool_call_end|><|tool_call_begin|>functions.now:1"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "apriel": (
        '<tool_calls>[{"name": "weather", "arguments": {"city": "Ulm", "days": 3}}, {"name": '
        '"now", "arguments": {}}]</tool_calls>'
    ),
    "nemotron": (
        '<TOOLCALL>[{"name": "weather", "arguments": {"city": "Ulm", "days": 3}}, {"name": "now", '
        '"arguments": {}}]</TOOLCALL>'
    ),
    "qwen-coder": (
        "<tool_call>\n<function=weather>\n<parameter=city>\nUlm\n</parameter>\n<parameter=days>\n"
        "3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n"
        "</tool_call>"
    ),
    "seed-oss": (
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Ulm</parameter>\n"
        "<parameter=days>3</parameter>\n</function>\n<function=now>\n</function>\n</seed:tool_call>"
    ),
    "glm": (
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Ulm</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n"
        "</tool_call>"
    ),
    "minimax-m2": (
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Ulm</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n'
        "</minimax:tool_call>"
    ),
    "minimax-m3": (
        "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke "
        'name="weather">]<]minimax[>[<city>Ulm]<]minimax[>[</city>]<]minimax[>[<days>3'
        "]<]minimax[>[</days>]<]minimax[>[</invoke>\n"
        ']<]minimax[>[<invoke name="now">]<]minimax[>[</invoke>\n'
        "]<]minimax[>[</tool_call>"
    ),
    "minimax-m1": (
        '<tool_calls>\n{"name": "weather", "arguments": {"city": "Ulm", "days": 3}}\n{"name": '
        '"now", "arguments": {}}\n</tool_calls>'
    ),
    "dsml": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
        '<｜DSML｜parameter name="city" string="true">Ulm</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n'
        "</｜DSML｜function_calls>"
    ),
    "dsml-4": (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n'
        '<｜DSML｜parameter name="city" string="true">Ulm</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
    ),
    "hy3": (
        "<tool_calls:opensource>\n<tool_call:opensource>weather<tool_sep:opensource>\n"
        "<arg_key:opensource>city</arg_key:opensource>\n"
        "<arg_value:opensource>Ulm</arg_value:opensource>\n"
        "<arg_key:opensource>days</arg_key:opensource>\n"
        "<arg_value:opensource>3</arg_value:opensource>\n</tool_call:opensource>\n"
        "<tool_call:opensource>now<tool_sep:opensource>\n</tool_call:opensource>\n"
        "</tool_calls:opensource>"
    ),
    "minicpm5": (
        '<function name="weather"><param name="city">Ulm</param><param name="days">3</param>'
        '</function>\n<function name="now"></function>'
    ),
    "lfm2": '<|tool_call_start|>[weather(city="Ulm", days=3), now()]<|tool_call_end|>',
    "gemma4": (
        '<|tool_call>call:weather{city:<|"|>Ulm<|"|>,days:3,units:<|"|>°F<|"|>,where:[1,true]}'
        "<tool_call|><|tool_call>call:now{}<tool_call|>"
    ),
    "apertus": (
        '<|tools_prefix|>[{"weather": {"city": "Ulm", "days": 3}}, {"now": {}}]<|tools_suffix|>'
    ),
    "gigachat": (
        '<|function_call|>{"name": "weather", "arguments": {"city": "Ulm", "days": 3}}; {"name": '
        '"now", "arguments": {}}'
    ),
    "gigachat-3": (
        '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "weather", "arguments": {"city": '
        '"Ulm", "days": 3}}; {"name": "now", "arguments": {}}'
    ),
    "solar": (
        "<|tool_calls|><|tool_call:begin|>a1b2c4d5e6<|tool_call:name|>weather<|tool_call:args|>"
        '{"city": "Ulm", "days": 3}<|tool_call:end|><|tool_call:begin|>aaaaaaaaaa'
        "<|tool_call:name|>now<|tool_call:args|>{}<|tool_call:end|>"
    ),
}
BLOCKS = sorted(set(FORMATS) - {"harmony"})  # the others: calls in text
GRAMMARS = {name: ToolCallGrammar(name, TOOLS) for name in BLOCKS}


def walk(state, random, steps=500):
    """A random text of the grammar, byte by byte; None where it does not end in time."""
    text = b""
    for step in range(steps):
        forced = state.forced()
        if not forced:
            if state.is_complete() and (state.only_end() or random.random() < 0.5):
                return text
            allowed = [byte for byte in ALPHABET if state.allows_token(byte)]
            allowed = allowed or [
                byte for byte in map(bytes, zip(range(256))) if state.allows_token(byte)
            ]
            forced = allowed[0] if step > steps // 3 else random.choice(allowed)
        state.advance(forced)
        text += forced
    return None


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(BLOCKS), st.integers(0, 1 << 32).map(Random))
def test_every_text_of_a_grammar_is_read_as_valid_calls_and_nothing_else(format, random):
    text = walk(GRAMMARS[format].state(), random)
    assume(text is not None)
    rest, calls, ruins = detect_calls(text.decode(), format, parameters=SCHEMAS)
    assert calls and not ruins and not rest.strip()
    for call in calls:
        jsonschema.validate(call.arguments, SCHEMAS[call.name])


@pytest.mark.parametrize("format", sorted(SPELLED))
def test_what_models_write_is_in_the_grammar_and_what_breaks_a_schema_is_not(format):
    text, grammar = SPELLED[format], GRAMMARS[format]
    assert grammar.matches(text)
    assert Grammar.parse(grammar.source).matches(text)
    for wrong in (
        text.replace("3", '"3"'),
        text.replace("3", "30"),
        text.replace("weather", "whether"),
        text.replace("city", "town"),
        text.replace('"Ulm"', '"Ulm", "x": 1'),
        text + "x",
        text[:-1],
        "",
        "no",
    ):
        assert wrong == text or not grammar.matches(wrong)


@pytest.mark.parametrize("format", sorted(SPELLED))
def test_a_named_tool_is_the_only_one_and_without_parallel_one_call_is_all(format):
    assert not ToolCallGrammar(format, TOOLS, parallel=False).matches(SPELLED[format])
    now = ToolCallGrammar(format, TOOLS, name="now")
    assert not now.matches(SPELLED[format]) and not ToolCallGrammar(
        format, TOOLS, name="weather"
    ).matches(SPELLED[format])
    kind = FORMATS[format]
    call = {"mistral-args": "[TOOL_CALLS]now[ARGS]{}"}.get(format)
    if kind.style == "python":
        call = f"{kind.open}[now()]{kind.close}"
    if kind.style == "headed":
        middle, lead = kind.middle.replace(DIGITS, "0"), kind.lead.replace(IDENTIFIER, "a" * 10)
        call = f"{kind.open}{lead}now{middle}{{}}{kind.tail}{kind.close}"
    if kind.style == "tags":
        call = f"{kind.open}{kind.lead}now{kind.middle}{kind.tail}{kind.close}"
    if call is None:
        call = {kind.name_key: "now", kind.arguments_keys[0]: {}}
        call = json.dumps(call if kind.name_key else {"now": {}})
        call = f"{kind.open}{f'[{call}]' if kind.style == 'array' else call}{kind.close}"
    assert now.matches(call) and ToolCallGrammar(format, TOOLS, parallel=False).matches(call)


@settings(max_examples=40, deadline=None)
@given(st.fixed_dictionaries({}, optional={key: st.just(key) for key in "abcd"}))
def test_pythonic_calls_have_what_is_required_in_any_choice_of_the_rest(given_keys):
    tool = {
        "name": "f",
        "parameters": {
            "properties": {key: {"const": key} for key in "abcd"},
            "required": ["b", "d"],
        },
    }
    keywords = ", ".join(f"{key}={json.dumps(value)}" for key, value in sorted(given_keys.items()))
    text = f"[f({keywords})]"
    assert ToolCallGrammar("pythonic", [tool]).matches(text) == ({"b", "d"} <= given_keys.keys())


def test_delimiters_that_are_control_tokens_are_tokens_in_the_grammar():
    grammar = ToolCallGrammar("mistral-args", TOOLS, token_ids={"[TOOL_CALLS]": 5, "[ARGS]": 9})
    assert grammar.matches([5, b"now", 9, b"{}"]) and grammar.matches(
        [5, b"now", 9, b"{}", 5, b"now", 9, b"{}"]
    )
    assert not grammar.matches([b"[TOOL_CALLS]now", 9, b"{}"]) and not grammar.matches(
        [9, b"now", 9, b"{}"]
    )


def test_errors_name_what_cannot_be_had():
    with pytest.raises(ConfigError, match="tool_choice: found 'fly', wanted one of weather, now"):
        ToolCallGrammar("qwen", TOOLS, name="fly")
    with pytest.raises(ConfigError, match="found none"):
        ToolCallGrammar("qwen", [])
    with pytest.raises(ConfigError, match="now: found 2 times"):
        ToolCallGrammar("qwen", [{"name": "now"}, {"name": "now"}])
    with pytest.raises(GrammarError, match="tool f: schema"):
        ToolCallGrammar(
            "qwen", [{"name": "f", "parameters": {"properties": {"a": {"type": "strange"}}}}]
        )
    with pytest.raises(GrammarError, match="tool f: schema /anyOf"):
        ToolCallGrammar("pythonic", [{"name": "f", "parameters": {"anyOf": [{"required": ["a"]}]}}])
    with pytest.raises(GrammarError, match="tool f: schema /properties: 'a-b' is not a keyword"):
        ToolCallGrammar("pythonic", [{"name": "f", "parameters": {"properties": {"a-b": {}}}}])


# ---- triggered
# --------------------------------------------------------------------------------------------------

PIECES = [
    b"",
    *[bytes([byte]) for byte in range(32, 127)],
    b"\n",
    b"<tool",
    b"_call>",
    b"<tool_call>",
    b"</tool_call>",
    b'{"',
    b'name":',
    b'":',
    b'>{"x',
    b">\n\n",
    b"weather",
    b"city",
    b'"}',
    b"\xc3",
    b"\xa9",
    b"\xff",
    b"[now(",
    b"<|python_tag|>",
    b"[TOOL_CALLS]",
    b"[ARGS]",
]
MASKER = TokenMasker(PIECES, control_ids=[0], eog_ids=[0])
TRIGGERED = {name: TriggeredGrammar(name, TOOLS) for name in BLOCKS}


def bits(mask):
    if mask is None:
        return [True] * len(PIECES)
    return [bool(mask[token >> 5] >> np.uint32(token & 31) & 1) for token in range(len(PIECES))]


def takes(state, token):
    try:
        MASKER.advance(state.fork(), token)
    except GrammarError:
        return False
    return True


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(BLOCKS), st.integers(0, 1 << 32).map(Random))
def test_a_mask_holds_the_tokens_that_are_taken_and_what_is_generated_has_no_malformed_call(
    format, random
):
    state, text = TRIGGERED[format].state(MASKER), b""
    starts = [
        token
        for token, piece in enumerate(PIECES)
        if piece
        and (FORMATS[format].open.encode().startswith(piece) or piece in (b"{", b'"', b'{"', b"["))
    ]
    for step in range(60):
        allowed = bits(state.mask())
        for token in random.sample(range(len(PIECES)), 12):
            if allowed[token]:
                assert takes(state, token)
            elif not state.inside:
                assert not takes(state, token)
        choices = [token for token in range(1, len(PIECES)) if allowed[token]]
        likely = [token for token in choices if token in starts]
        token = random.choice(
            likely if likely and not state.inside and random.random() < 0.6 else choices
        )
        MASKER.advance(state, token)
        text += PIECES[token]
        if state.inside and step > 20:
            ending = walk(state.call.fork(), random)
            assume(ending is not None)
            state.advance(ending)
            text += ending
            break
    assume(state.is_complete())
    _, calls, ruins = detect_calls(
        text.decode("utf-8", "replace"), format, names=list(SCHEMAS), parameters=SCHEMAS
    )
    assert not ruins
    for call in calls:
        jsonschema.validate(call.arguments, SCHEMAS[call.name])


@pytest.mark.parametrize("format", sorted(SPELLED))
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_the_constraint_is_on_from_the_opening_to_the_end_of_the_call(format, size):
    state, data = TRIGGERED[format].state(), SPELLED[format].encode()
    inside = []
    for at in range(0, len(data), size):
        state.advance(data[at : at + size])
        inside.append(state.inside)
    assert state.is_complete() and (size > 3 or any(inside))
    state.advance(b"" if state.inside else " and é text".encode())
    assert TRIGGERED[format].state().is_complete()


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>x",
        '<tool_call>{"name": "fly"',
        '<tool_call>{"name": "now", "arguments": {"a"',
        "a <b <tool_call>]",
    ],
)
def test_a_call_that_goes_wrong_is_refused_at_its_first_wrong_byte(text):
    state = TRIGGERED["qwen"].state()
    state.advance(
        text[:-4].encode()
        if "fly" in text
        else text[:-1].encode()
        if text[-1] != '"'
        else text[:-3].encode()
    )
    with pytest.raises(GrammarError, match="wanted a call of now, weather"):
        state.advance(text.encode()[-4:])


def test_what_a_call_must_go_on_with_is_told_and_free_text_must_nothing():
    state = TRIGGERED["qwen"].state()
    assert state.forced() == b""
    state.advance(b'a <tool_call>{"name":"n')
    assert state.forced() == b'ow"' and state.forced(2) == b"ow"
    state.advance(b'ow", "arguments": {}}</tool_call>')
    assert state.forced() == b""


def test_an_opening_that_is_a_control_token_begins_the_constraint():
    masker = TokenMasker(
        [b"", b"", b"a", b"now", b"{}", b"", b"</s>"], control_ids=[0, 1, 5], eog_ids=[6]
    )
    state = TriggeredGrammar(
        "mistral-args", TOOLS, token_ids={"[TOOL_CALLS]": 1, "[ARGS]": 5}
    ).state(masker)
    assert state.mask() is None
    for token, wanted in ((2, None), (0, None), (1, [3]), (3, [5]), (5, [4]), (4, None), (1, [3])):
        masker.advance(state, token)
        mask = state.mask()
        assert (
            mask if mask is None else [t for t in range(7) if mask[0] >> np.uint32(t) & 1]
        ) == wanted
    for token in (6, 2, 5):
        with pytest.raises(GrammarError):
            masker.advance(state.fork(), token)


def test_an_opening_in_which_control_tokens_stand_begins_the_constraint():
    tokens = [
        b"",
        b"<",
        b"</",
        b"",
        b"tool_calls>",
        b'invoke name="now">',
        b"invoke>",
        b"no",
        b"\n",
    ]
    masker = TokenMasker(tokens, control_ids=[0, 3], eog_ids=[0])
    grammar = TriggeredGrammar("dsml-4", TOOLS, token_ids={"｜DSML｜": 3})
    state = grammar.state(masker)
    for token in (7, 1, 3, 7, 1, 3, 4):  # a beginning that becomes none, then one
        masker.advance(state, token)
    assert state.inside
    saved = TriggeredGrammar("dsml-4", TOOLS, token_ids={"｜DSML｜": 3})
    state = type(state).restore(state.serialise(), grammar=saved, masker=masker)
    with pytest.raises(GrammarError):
        masker.advance(state.fork(), 7)
    for token in (8, 1, 3, 5, 8, 2, 3, 6, 2, 3, 4):
        masker.advance(state, token)
    assert not state.inside and state.is_complete()
    with pytest.raises(GrammarError):  # a call without its block
        for token in (1, 3, 5):
            masker.advance(state, token)


def test_quotes_that_are_control_tokens_stand_around_texts_alone():
    ids = {"<|tool_call>": 5, "<tool_call|>": 6, '<|"|>': 7}
    grammar = ToolCallGrammar("gemma4", TOOLS, token_ids=ids)
    assert grammar.matches([5, b"call:weather{city:", 7, b"Ulm", 7, b",days:3}", 6])
    assert not grammar.matches([5, b'call:weather{city:<|"|>Ulm<|"|>,days:3}', 6])
    assert not grammar.matches(
        [5, b"call:weather{city:", 7, b"Ulm", 7, b",days:", 7, b"3", 7, b"}", 6]
    )


def test_a_call_may_begin_where_a_region_might_have():
    masker = TokenMasker([b"", b"", b"now", b"{}", b"a", b""], control_ids=[0, 1, 5], eog_ids=[0])
    ids = {"[TOOL_CALLS]": 1, "[ARGS]": 5}
    grammar = TriggeredGrammar("mistral-args", TOOLS, reasoning=THINK, token_ids=ids)
    state = grammar.state(masker)
    masker.advance(state, 1)
    assert state.inside
    with pytest.raises(GrammarError):
        masker.advance(state, 4)


QUOTED = {
    "name": "f",
    "parameters": {
        "properties": {
            "b": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
            "a": {
                "type": "object",
                "properties": {"y": {"$ref": "#/$defs/tree"}, "x": {"type": ["number", "null"]}},
                "required": ["x"],
            },
            "c": {},
        },
        "$defs": {
            "tree": {
                "anyOf": [
                    {"type": "array", "items": {"$ref": "#/$defs/tree"}},
                    {"const": {"k": ["v", 1]}},
                ]
            }
        },
    },
}


@pytest.mark.parametrize(
    ("written", "fits"),
    [
        ("{}", True),
        ('{a:{x:1,y:[[],{k:[<|"|>v<|"|>,1]}]},b:[<|"|>s, "t<|"|>]}', True),
        ("{a:{x:null}}", True),
        ('{c:{any:[1,true,{k:<|"|>{<|"|>}]}}', True),
        ("{a:{}}", False),
        ("{b:[]}", False),
        ('{b:[<|"|>1<|"|>,<|"|>2<|"|>,<|"|>3<|"|>]}', False),
        ("{a:{x:1,z:2}}", False),
        ('{"a":{x:1}}', False),
        ("{c:1,c:2}", False),
    ],
)
def test_arguments_with_quotes_of_their_own_follow_their_schema(written, fits):
    text = f"<|tool_call>call:f{written}<tool_call|>"
    assert ToolCallGrammar("gemma4", [QUOTED]).matches(text) == fits
    assert bool(detect_calls(text, "gemma4")[2]) == ('"a"' in written or "c:1,c" in written)


@pytest.mark.parametrize(
    ("schema", "fitting", "other"),
    [
        ({}, ("{}", "{x:[1]}", "2", '<|"|>x<|"|>'), ()),
        ({"type": "object"}, ("{}", "{x:[1]}"), ("2",)),
        ({"type": "object", "additionalProperties": False}, ("{}",), ("{x:1}",)),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            ("{}", "{x:1}", "{x:1,y:2}"),
            ("{x:null}", "{x:1,y:null}"),
        ),
        ({"type": "object", "properties": {"x": {"type": "null"}}}, ("{}", "{x:null}"), ("{y:1}",)),
        ({"type": "array", "maxItems": 0}, ("[]",), ("[1]",)),
        (
            {"type": "array", "minItems": 2, "maxItems": 3},
            ("[1,2]", "[1,2,3]"),
            ("[1]", "[1,2,3,4]"),
        ),
    ],
)
def test_objects_and_lists_with_quotes_of_their_own_follow_their_schema(schema, fitting, other):
    grammar = ToolCallGrammar(
        "gemma4", [{"name": "f", "parameters": {"properties": {"k": schema}}}]
    )
    for values, fits in ((fitting, True), (other, False)):
        for value in values:
            text = f"<|tool_call>call:f{{k:{value}}}<tool_call|>"
            assert grammar.matches(text) == fits, value


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "string", "pattern": "a+"}, "'pattern' cannot be enforced"),
        ({"type": "array", "prefixItems": []}, "'prefixItems' cannot be enforced"),
        ({"oneOf": [{"type": "string"}, {"type": "string"}]}, "wanted anyOf"),
        ({"$ref": "#/$defs/none"}, "leads nowhere"),
        (
            {"$ref": "#/properties", "maxLength": 1},
            "keywords next to .ref '#/properties' cannot be",
        ),
        ({"type": "object", "properties": {"a b": {}}}, "'a b' cannot be written bare"),
        ({"minLength": 2}, "'minLength', wanted a type"),
        (False, "wanted a schema with values"),
    ],
)
def test_what_cannot_be_enforced_over_quoted_arguments_is_refused(schema, message):
    tool = {"name": "f", "parameters": {"properties": {"k": schema}}}
    with pytest.raises(GrammarError, match=message):
        ToolCallGrammar("gemma4", [tool])


def test_attributes_say_whether_a_value_is_a_text():
    either = {"properties": {"k": {"type": ["string", "integer"]}}, "required": ["k"]}
    grammar = ToolCallGrammar("dsml-4", [{"name": "f", "parameters": either}])
    for said, value, fits in (
        ("true", "7", True),
        ("false", "7", True),
        ("false", '"7"', False),
        ("false", "seven", False),
        ("other", "7", False),
    ):
        text = (
            '<｜DSML｜tool_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="k" '
            f'string="{said}">{value}</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>'
        )
        assert grammar.matches(text) == fits
        if fits:
            assert detect_calls(text, "dsml-4")[1][0].arguments == {
                "k": "7" if said == "true" else 7
            }


def test_a_custom_format_is_constrained_between_its_own_delimiters():
    kind = Custom("«call»", "«end»")
    text = '«call»{"name": "now", "arguments": {}}«end»'
    assert ToolCallGrammar(kind, TOOLS).matches(text)
    state = TriggeredGrammar(kind, TOOLS).state()
    for byte in ("é «cal " + text + " ok").encode():
        state.advance(bytes([byte]))
    assert not state.inside
    assert [call.name for call in detect_calls(text, kind)[1]] == ["now"]


def test_a_region_of_reasoning_is_not_constrained_and_what_follows_is():
    for opened in (False, True):
        grammar = TriggeredGrammar("qwen", TOOLS, reasoning=THINK, reasoning_opened=opened)
        state = grammar.state(MASKER)
        state.advance(b"" if opened else b"<think>")
        state.advance("I é <tool_call>x</tool_call> </thi".encode())
        assert not state.inside and state.mask() is None
        with pytest.raises(GrammarError):
            state.fork().advance(b"nk><tool_call>x")
        for piece in (b"nk>", b"\n\n", b"<tool", b"_call>"):
            state.advance(piece)
        assert state.inside
        with pytest.raises(GrammarError):
            state.advance(b"x")
    state = TriggeredGrammar("qwen", TOOLS, reasoning=THINK).state(MASKER)
    state.advance(b"<")
    assert not bits(state.fork().mask())[PIECES.index(b'>{"x')] or takes(
        state, PIECES.index(b'>{"x')
    )
    with pytest.raises(GrammarError):
        state.advance(b"tool_call>x")


def test_delimiters_of_regions_may_be_control_tokens():
    masker = TokenMasker([b"", b"", b"a", b"", b"</s>"], control_ids=[0, 1, 3], eog_ids=[4])
    ids = {"<think>": 1, "</think>": 3}
    state = TriggeredGrammar("qwen", TOOLS, reasoning=THINK, token_ids=ids).state(masker)
    for token in (1, 2, 3):
        masker.advance(state, token)
    with pytest.raises(GrammarError):
        state.advance(b"<tool_call>x")


def with_least(least):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": least}}}
    return [{"name": "add", "parameters": {**schema, "required": ["n"]}}]


@pytest.mark.parametrize("format", ["hermes", "pythonic", "qwen-coder", "gemma4"])
@pytest.mark.parametrize("make", [ToolCallGrammar, TriggeredGrammar])
def test_bounds_of_hundreds_of_digits_are_kept_or_refused(format, make):
    """Their rules are nested as deeply as the bounds have digits."""
    make(format, with_least(1e308))
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 250)
    try:
        with pytest.raises(GrammarError, match="^tool add: .*nested too deeply"):
            make(format, with_least(1e308))
    finally:
        sys.setrecursionlimit(before)


def test_a_bound_of_hundreds_of_digits_is_that_of_calls():
    grammar = ToolCallGrammar("hermes", with_least(1e308))
    for number, good in ((10**308, True), (10**308 - 1, False)):
        text = f'<tool_call>{{"name": "add", "arguments": {{"n": {number}}}}}</tool_call>'
        assert grammar.matches(text) == good


def test_a_state_of_deep_rules_is_saved():
    """What is nested more deeply than it can be written is rules of its own there."""
    masker = TokenMasker([*(bytes([byte]) for byte in range(256)), b""], eog_ids=[256])
    state = masker.state(ToolCallGrammar("hermes", with_least(1e308)))
    number = str(10**308 + 123)
    text = f'<tool_call>{{"name": "add", "arguments": {{"n": {number}}}}}</tool_call>'.encode()
    at = text.index(b"}")
    state.advance(text[: at - 200])
    again = GrammarState.restore(state.serialise(), masker=masker)
    for byte in text[at - 200 : at]:
        assert again.mask().tobytes() == state.mask().tobytes()
        state.advance(bytes([byte]))
        again.advance(bytes([byte]))
    for each in (state, again):
        each.advance(text[at:])
        assert each.is_complete()
    low = text.replace(number.encode(), str(10**308 - 1).encode())
    assert not again.grammar.matches(low)
