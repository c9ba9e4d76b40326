"""The laws of the detector: nothing is lost, pieces do not matter, calls come out as they went
in.
"""

import json

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from oxillama.errors import ConfigError
from oxillama.toolcalls import (
    FORMATS,
    CallArguments,
    CallFinished,
    CallMalformed,
    CallStarted,
    Custom,
    Text,
    ToolCallDetector,
    detect_calls,
)
from oxillama.toolcalls.events import joined
from oxillama.toolcalls.inline import written_calls
from oxillama.toolcalls.literals import read_value

FEW = settings(max_examples=60, deadline=None)
PIECES = [
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|START_ACTION|>",
    '{"name": "f", "parameters": {"a": 1}}',
    '{"name": "f", "arguments": {"é": ["]}", {}]}}',
    "[f(a=1, b='x)')]",
    "f",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    '"',
    "\\",
    ":",
    ",",
    ";",
    " ",
    "\n",
    "<",
    ">",
    "é",
    "日本",
    "🙂",
    "name",
    "a=1",
    "'",
    "1",
    "true",
    "<tool",
    "_call>",
    '{"a": 1}',
    '"name"',
    '"arguments"',
]
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=14).map("".join)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.text(max_size=6)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
words = st.text("abcxyz_", min_size=1, max_size=6)
calls = st.lists(
    st.tuples(words, st.dictionaries(words, json_values, max_size=3)), min_size=1, max_size=3
)


def events(format, pieces, **options):
    """All events of a text in pieces, streamed arguments put together."""
    detector, out = ToolCallDetector(format, **options), []
    for piece in pieces:
        out += detector.feed(piece)
    out += detector.finish()
    assert "".join(event.raw for event in out) == "".join(pieces)
    merged = []
    for event in joined(out):
        if merged and isinstance(event, CallArguments) and isinstance(merged[-1], CallArguments):
            merged[-1] = CallArguments(
                merged[-1].raw + event.raw, event.index, merged[-1].json + event.json
            )
        else:
            merged.append(event)
    return merged


def split(text, cuts):
    at = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    return [text[a:b] for a, b in zip(at, at[1:])]


@FEW
@given(
    st.sampled_from(sorted(set(FORMATS) - {"harmony"})),
    texts,
    st.lists(st.integers(0, 500), max_size=12),
)
@example("mistral", "[TOOL_CALLS]f<tool_call>", [])
def test_joined_raw_texts_are_the_input_and_pieces_do_not_matter(format, text, cuts):
    assert events(format, split(text, cuts)) == events(format, [text]) == events(format, list(text))


@FEW
@given(
    st.sampled_from(sorted(set(FORMATS) - {"harmony"})),
    calls,
    st.lists(st.integers(0, 500), max_size=12),
)
def test_calls_come_out_as_they_were_written(format, found, cuts):
    parameters = {}
    for name, args in found:  # what is a text in one call is one in all
        for key, value in args.items():
            kind = {"type": "string"} if isinstance(value, str) else {}
            known = parameters.setdefault(name, {"properties": {}})["properties"]
            assume(known.setdefault(key, kind) == kind)
    pieces = split(written_calls(FORMATS[format], found), cuts)
    out = events(format, pieces, parameters=parameters)
    assert [
        (event.call.name, event.call.arguments) for event in out if isinstance(event, CallFinished)
    ] == found
    assert [event.name for event in out if isinstance(event, CallStarted)] == [
        name for name, _ in found
    ]
    assert [json.loads(event.json) for event in out if isinstance(event, CallArguments)] == [
        args for _, args in found
    ]
    assert not any(isinstance(event, CallMalformed) for event in out)
    assert not "".join(event.raw for event in out if isinstance(event, Text)).strip()


@FEW
@given(
    st.sampled_from(sorted(set(FORMATS) - {"harmony"})),
    st.text(st.characters(exclude_characters="<[{"), max_size=30),
)
def test_text_without_the_beginning_of_a_delimiter_is_given_out_at_once(format, text):
    detector = ToolCallDetector(format)
    assert "".join(event.raw for event in detector.feed(text)) == text
    assert detector.finish() == []


@pytest.mark.parametrize(
    "format, held, told",
    [
        ("qwen", "a <tool_c", "a "),
        ("qwen", "a <tool_cat", "a <tool_cat"),
        ("qwen", "a << <", "a << "),
        ("mistral", "see [TOOL", "see "),
        ("mistral", "see [TOAST", "see [TOAST"),
        ("llama3", '{"name": "f", "param', ""),
        ("llama3", '{"nam" ', '{"nam" '),
        ("llama3", "{ }", "{ }"),
        ("llama3", '{"name": "f", "age', '{"name": "f", "age'),
        ("llama3", 'so {"name', 'so {"name'),
        ("pythonic", "[foo", ""),
        ("pythonic", "[foo]", "[foo]"),
        ("pythonic", "[foo(x", ""),
        ("pythonic", "[foo(x)", "[foo(x)"),
        ("pythonic", "[1", "[1"),
    ],
)
def test_what_may_begin_a_call_is_held_and_given_out_when_it_cannot(format, held, told):
    assert "".join(event.raw for event in ToolCallDetector(format).feed(held)) == told
    assert events(format, [held]) == [Text(held)]


def test_arguments_stream_as_they_come():
    detector = ToolCallDetector("hermes")
    detector.feed('<tool_call>{"name": "f", "arguments": {"a": [1')
    assert detector.feed(", 2") == [CallArguments(", 2", 0, ", 2")]
    assert detector.feed("]}}")[0] == CallArguments("]}", 0, "]}")


@pytest.mark.parametrize(
    "format, text, raw, after",
    [
        ("qwen", "<tool_call>hello</tool_call>x", "<tool_call>hello</tool_call>", "x"),
        ("qwen", '<tool_call>{"name": f}</tool_call>x', '<tool_call>{"name": f}</tool_call>', "x"),
        (
            "qwen",
            '<tool_call>{"name": "f", "arguments": {"a": 1]}</tool_call>x',
            '<tool_call>{"name": "f", "arguments": {"a": 1]}</tool_call>',
            "x",
        ),
        (
            "qwen",
            '<tool_call>{"name": "f", "arguments": [1]}</tool_call>x',
            '<tool_call>{"name": "f", "arguments": [1]}',
            "x",
        ),
        (
            "qwen",
            '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
            '<tool_call>{"name": "f", "arguments": {"a": NaN}}',
            "",
        ),
        (
            "qwen",
            '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}',
            '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}',
            "",
        ),
        (
            "qwen",
            '<tool_call>{"name": "f", "arguments": {"a": 1, "a": 2}}',
            '<tool_call>{"name": "f", "arguments": {"a": 1, "a": 2}}',
            "",
        ),
        ("qwen", '<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}', ""),
        ("qwen", '<tool_call>{"name": "f", "argu', '<tool_call>{"name": "f", "argu', ""),
        ("qwen", "<tool_call></tool_call>x", "<tool_call></tool_call>", "x"),
        ("mistral", "[TOOL_CALLS] no, sorry", "[TOOL_CALLS] ", "no, sorry"),
        ("mistral", "[TOOL_CALLS]f[ARGS]x", "[TOOL_CALLS]", "f[ARGS]x"),
        ("mistral", "[TOOL_CALLS]f[CALL_ID]ab", "[TOOL_CALLS]f[CALL_ID]ab", ""),
        ("mistral", "[TOOL_CALLS]f[TOOL", "[TOOL_CALLS]", "f[TOOL"),
        ("pythonic", "[f(a=x)]", "[f(a=x)", ""),
        ("pythonic", "[f(a=1, a=2)", "[f(a=1, a=2)", ""),
        ("pythonic", "[f(a=1, b", "[f(a=1, b", ""),
        (
            "dsml",
            '<｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="a" '
            'string="no">1</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>x',
            '<｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="a" '
            'string="no">1</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>',
            "x",
        ),
        (
            "dsml-4",
            '<｜DSML｜tool_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="a" '
            'string="false">one</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>x',
            '<｜DSML｜tool_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="a" '
            'string="false">one</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>',
            "x",
        ),
        (
            "gemma4",
            "<|tool_call>call:f{a:one}<tool_call|>x",
            "<|tool_call>call:f{a:one}",
            "x",
        ),
        (
            "gemma4",
            '<|tool_call>call:f{a:[<|"|>]<|"|>}<tool_call|>x',
            '<|tool_call>call:f{a:[<|"|>]<|"|>}<tool_call|>',
            "x",
        ),
        ("gemma4", "<|tool_call>call:f{a:1,a:2}", "<|tool_call>call:f{a:1,a:2}", ""),
        ("gemma4", "<|tool_call>call:f{:1}", "<|tool_call>call:f{:1}", ""),
        ("gemma4", '<|tool_call>call:f{a:<|"|>b', '<|tool_call>call:f{a:<|"|>b', ""),
        ("lfm2", "<|tool_call_start|>[f(a=x)]", "<|tool_call_start|>[f(a=x)", ""),
        (
            "apertus",
            '<|tools_prefix|>[{"f": {}, "g": {}}]<|tools_suffix|>x',
            '<|tools_prefix|>[{"f": {}, "g": {}}',
            "x",
        ),
        ("apertus", '<|tools_prefix|>[{"f": 1}]', '<|tools_prefix|>[{"f": 1}', ""),
        (
            "minicpm5",
            '<function name="f"><param name="a"><![CDATA[x</param></function>',
            '<function name="f"><param name="a"><![CDATA[x</param></function>',
            "",
        ),
        ("solar", "<|tool_calls|>no call", "<|tool_calls|>", "no call"),
    ],
)
def test_a_malformed_call_keeps_its_raw_text(format, text, raw, after):
    out = events(format, [text])
    ruins = [event for event in out if isinstance(event, CallMalformed)]
    assert [ruin.text for ruin in ruins] == [raw] and ruins[0].reason
    assert "".join(event.raw for event in out if isinstance(event, Text)) == after
    assert not [event for event in out if isinstance(event, CallFinished)]


@pytest.mark.parametrize(
    "format, text, found",
    [
        ("qwen", '<tool_call>{"name": "f"}</tool_call>', [("f", {})]),
        ("qwen", '<tool_call>{"arguments": {"a": 1}, "name": "f"}', [("f", {"a": 1})]),
        (
            "qwen",
            '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
            [("f", {"a": 1})],
        ),
        ("qwen", '<tool_call>[{"name": "f"}, {"name": "g"}]</tool_call>', [("f", {}), ("g", {})]),
        (
            "qwen",
            '<tool_call>{"name": "f", "arguments": {"t": "</tool_call>\n"}}</tool_call>',
            [("f", {"t": "</tool_call>\n"})],
        ),
        (
            "llama3",
            '\n{"type": "function", "name": "f", "parameters": {"a": 1}}\n{"name": "g", '
            '"arguments": {}}',
            [("f", {"a": 1}), ("g", {})],
        ),
        (
            "mistral",
            '[TOOL_CALLS]f[CALL_ID]a1[ARGS]{"a": 1}[TOOL_CALLS]g{}',
            [("f", {"a": 1}), ("g", {})],
        ),
        (
            "pythonic",
            "[f(a='x' \"y\", b=(1, -2.5e3,), c={'k': true, \"m\": None}), a.g( )]",
            [("f", {"a": "xy", "b": [1, -2500.0], "c": {"k": True, "m": None}}), ("a.g", {})],
        ),
        ("pythonic", r'[f(a="\ud83d\ude00\/\x41\q")]', [("f", {"a": "😀/A\\q"})]),
        (
            "command-r",
            '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {"a": '
            "1}}]<|END_ACTION|>",
            [("f", {"a": 1})],
        ),
    ],
)
def test_spellings_that_models_use_are_read(format, text, found):
    rest, calls_found, ruins = detect_calls(text, format)
    assert (
        [(call.name, call.arguments) for call in calls_found] == found
        and not ruins
        and not rest.strip()
    )
    assert [call.id for call in calls_found] == [f"call{i:05d}" for i in range(len(found))]


@pytest.mark.parametrize("written", ['{"a":  1}', '"{\\"a\\": 1}"', "null", '" "', "{}"])
def test_arguments_are_told_in_json_however_they_are_written(written):
    text = f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>'
    for pieces in ([text], list(text)):
        out = events("hermes", pieces)
        (call,) = (event.call for event in out if isinstance(event, CallFinished))
        told = "".join(event.json for event in out if isinstance(event, CallArguments))
        assert told == call.arguments_text
        assert json.loads(told) == call.arguments == ({"a": 1} if "a" in written else {})


def test_where_calls_come_first_those_after_text_are_text():
    two = "".join(
        f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>\n' for name in "fg"
    )
    out = events("hermes", list(two), leading=True)
    assert [event.call.name for event in out if isinstance(event, CallFinished)] == ["f", "g"]
    for text in ("x " + two, "x" + two):
        assert events("hermes", list(text), leading=True) == [Text(text)]


def test_names_on_offer_tell_bare_calls_from_text():
    text = '{"name": "Ann", "parameters": {"age": 3}}'
    assert events("llama3", list(text), names=["f"]) == [Text(text)]
    assert detect_calls(text, "llama3", names=["Ann"])[1][0].arguments == {"age": 3}
    assert events("pythonic", ["[int(", "x=1)]"], names=["f"]) == [Text("[int(x=1)]")]


@pytest.mark.parametrize("open, close", [("«call»", "«end»"), ("<function>", ""), ("aab", "aa")])
@pytest.mark.parametrize("style", ["object", "array"])
def test_a_custom_format_has_its_own_delimiters(open, close, style):
    body = '{"name": "f", "arguments": {"a": "ab"}}'
    text = f"a {open}{'[' + body + ']' if style == 'array' else body}{close} z"
    for pieces in ([text], list(text)):
        out = events(Custom(open, close, style=style), pieces)
        assert [event.call.arguments for event in out if isinstance(event, CallFinished)] == [
            {"a": "ab"}
        ]
        assert "".join(event.raw for event in out if isinstance(event, Text)) == "a  z"


def test_the_end_makes_a_detector_new_but_for_the_number_of_the_next_call():
    detector = ToolCallDetector("qwen")
    for number in (0, 1):
        found = [
            event
            for event in detector.feed('<tool_call>{"name": "f"}</tool_call>') + detector.finish()
            if isinstance(event, CallFinished)
        ]
        assert [event.call.id for event in found] == [f"call{number:05d}"]


def test_what_is_no_text_or_format_is_refused():
    with pytest.raises(ConfigError, match="bytes, wanted str"):
        ToolCallDetector("qwen").feed(b"x")
    with pytest.raises(ConfigError, match="'zephyr', wanted a ToolCallFormat or one of"):
        ToolCallDetector("zephyr")
    with pytest.raises(ConfigError, match=r"found \[\], wanted a ToolCallFormat or one of"):
        ToolCallDetector([])
    for arguments in (("",), ("x", "x"), (" x",)):
        with pytest.raises(ConfigError):
            Custom(*arguments)


# Texts as the models write them: several calls, values over lines, values that look like others.
WRITTEN = {
    "qwen-coder": "Sure.\n<tool_call>\n<function=f>\n<parameter=a>\nx < 1\n  y\n</parameter>\n"
    "<parameter=b>\n7\n</parameter>\n</function>\n</tool_call>",
    "seed-oss": "Sure.<seed:tool_call>\n<function=f>\n<parameter=a>x < 1\n  y</parameter>\n"
    "<parameter=b>7</parameter>\n</function>\n</seed:tool_call>",
    "glm": "Sure.\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x < 1\n  y</arg_value>\n"
    "<arg_key>b</arg_key>\n<arg_value>7</arg_value>\n</tool_call>",
    "minimax-m2": (
        'Sure.\n<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">x < 1\n  '
        'y</parameter>\n<parameter name="b">7</parameter>\n</invoke>\n</minimax:tool_call>'
    ),
    "minimax-m3": (
        'Sure.\n]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">]<]minimax[>[<a>x < 1\n  y'
        "]<]minimax[>[</a>]<]minimax[>[<b>7]<]minimax[>[</b>]<]minimax[>[</invoke>\n"
        "]<]minimax[>[</tool_call>"
    ),
    "kimi-k2": (
        "Sure.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:12<|tool_call_argument_begin|>"
        '{"a": "x < 1\\n  y", "b": 7}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    "apriel": (
        'Sure.\n<tool_calls>[{"name": "f", "arguments": {"a": "x < 1\\n  y", "b": 7}, "id": '
        '"1"}]</tool_calls>'
    ),
    "nemotron": (
        'Sure.<TOOLCALL>[{"name": "f", "arguments": {"a": "x < 1\\n  y", "b": 7}}]</TOOLCALL>'
    ),
    "llama3": 'Sure.<|python_tag|>f.call(a="x < 1\\n  y", b=7)',
    # without the marker that opens the block
    "deepseek": (
        'Sure.<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": "x < 1\\n  y", "b": 7}\n'
        "```<｜tool▁call▁end｜>"
    ),
    "deepseek-3.1": (
        'Sure.<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": "x < 1\\n  y", "b": '
        "7}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "dsml": (
        'Sure.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="a" string="true">x < 1\n  y</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="b" string="false">7</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    ),
    "dsml-4": (
        'Sure.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="a" string="true">x < 1\n  y</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="b" string="false"> 7 </｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
    ),
    "hy3": (
        "Sure.<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n"
        "<arg_key:opensource>a</arg_key:opensource>\n"
        "<arg_value:opensource>x < 1\n  y</arg_value:opensource>\n"
        "<arg_key:opensource>b</arg_key:opensource>\n"
        "<arg_value:opensource>7</arg_value:opensource>\n"
        "</tool_call:opensource>\n</tool_calls:opensource>"
    ),
    "minicpm5": (
        'Sure.\n<function name="f"><param name="a"><![CDATA[x < 1\n  y]]></param>'
        '<param name="b">7</param></function>'
    ),
    "lfm2": 'Sure.<|tool_call_start|>[f(a="x < 1\\n  y", b=7)]<|tool_call_end|>',
    "gemma4": 'Sure.<|tool_call>call:f{a:<|"|>x < 1\n  y<|"|>,b:7}<tool_call|>',
    "apertus": 'Sure.<|tools_prefix|>[{"f": {"a": "x < 1\\n  y", "b": 7}}]<|tools_suffix|>',
    "minimax-m1": (
        'Sure.\n<tool_calls>\n{"name": "f", "arguments": {"a": "x < 1\\n  y", "b": 7}}\n'
        "</tool_calls>"
    ),
    "gigachat": 'Sure.<|function_call|>{"name": "f", "arguments": {"a": "x < 1\\n  y", "b": 7}}',
    "gigachat-3": (
        "Sure.<|message_sep|>\n\nfunction call<|role_sep|>\n"
        '{"name": "f", "arguments": {"a": "x < 1\\n  y", "b": 7}}'
    ),
    "solar": (
        "Sure.<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>f<|tool_call:args|>"
        '{"a": "x < 1\\n  y", "b": 7}<|tool_call:end|>'
    ),
}
PARAMETERS = {"f": {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}}


@pytest.mark.parametrize("format", WRITTEN)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_calls_as_the_models_write_them(format, size):
    text = WRITTEN[format]
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    out = events(format, pieces, parameters=PARAMETERS)
    calls = [(e.call.name, e.call.arguments) for e in out if isinstance(e, CallFinished)]
    assert calls == [("f", {"a": "x < 1\n  y", "b": 7})]
    assert "".join(e.raw for e in out if isinstance(e, Text)).strip() == "Sure."
    assert not any(isinstance(e, CallMalformed) for e in out)


def test_keywords_of_a_call_may_have_any_letters():
    found = [("f", {"é": 1, "größe_2": "x"})]
    assert detect_calls("[f(é=1, größe_2='x')]", "pythonic")[1][0].arguments == found[0][1]


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("7", {"type": "string"}, "7"),
        ("7", {"type": "integer"}, 7),
        ("7", {}, 7),
        ("7", None, 7),
        ("null", {"type": ["string", "null"]}, None),
        ("True", {"type": "boolean"}, True),
        ("[1]", {"type": "string"}, "[1]"),
        ("[1]", {"anyOf": [{"type": "array"}, {"type": "null"}]}, [1]),
        ('"x"', {}, '"x"'),
        ("x", {"type": "integer"}, "x"),
        ("1", {"enum": ["1", "2"]}, "1"),
        (" a ", {}, " a "),
    ],
)
def test_a_bare_value_is_read_as_its_schema_says(text, schema, value):
    made = read_value(text, schema)
    assert made == value and type(made) is type(value)


@pytest.mark.parametrize("format", sorted(set(FORMATS) - {"harmony"}))
@pytest.mark.parametrize("start", ["", "{", "[f(", '{"name"'])
def test_white_space_without_end_is_held_back_in_no_more_than_a_few_characters(format, start):
    detector = ToolCallDetector(format, names=["f"])
    detector.feed(start)
    for _ in range(2000):
        detector.feed(" ")
        assert len(detector.buffer) < 300
