"""The laws of the detector: nothing is lost, pieces do not matter, calls come out as they went in."""

import json

import pytest
from hypothesis import given, settings
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


def spell(format, found):
    """The calls as a model of the format writes them."""
    if format == "pythonic":
        return (
            "["
            + ", ".join(
                f"{name}({', '.join(f'{key}={value!r}' for key, value in args.items())})"
                for name, args in found
            )
            + "]"
        )
    if format == "mistral-args":
        return "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(args)}" for name, args in found)
    kind = FORMATS[format]
    if kind.style == "headed":
        spelled = [
            f"{kind.lead}{name}{kind.middle}{json.dumps(args)}{kind.tail}" for name, args in found
        ]
        return (
            kind.open + "\n".join(spelled) + kind.close
            if kind.lead
            else "\n".join(f"{kind.open}{each}{kind.close}" for each in spelled)
        )
    objects = [
        json.dumps({kind.name_key: name, kind.arguments_keys[0]: args}, ensure_ascii=False)
        for name, args in found
    ]
    if kind.style == "array":
        return f"{kind.open}[{', '.join(objects)}]{kind.close}"
    if format == "llama3":
        return kind.open + "; ".join(objects)
    return "\n".join(f"{kind.open}\n{each}\n{kind.close}" for each in objects)


@FEW
@given(
    st.sampled_from(sorted(set(FORMATS) - {"harmony"})),
    texts,
    st.lists(st.integers(0, 500), max_size=12),
)
def test_joined_raw_texts_are_the_input_and_pieces_do_not_matter(format, text, cuts):
    assert events(format, split(text, cuts)) == events(format, [text]) == events(format, list(text))


@FEW
@given(
    st.sampled_from(sorted(set(FORMATS) - {"harmony"})),
    calls,
    st.lists(st.integers(0, 500), max_size=12),
)
def test_calls_come_out_as_they_were_written(format, found, cuts):
    out = events(format, split(spell(format, found), cuts))
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
            '\n{"type": "function", "name": "f", "parameters": {"a": 1}}\n{"name": "g", "arguments": {}}',
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
            '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}}]<|END_ACTION|>',
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
    detector = ToolCallDetector("qwen", first_index=4)
    for number in (4, 5):
        found = [
            event
            for event in detector.feed('<tool_call>{"name": "f"}</tool_call>') + detector.finish()
            if isinstance(event, CallFinished)
        ]
        assert [event.call.id for event in found] == [f"call{number:05d}"]


def test_doors_refuse_what_is_no_text_or_format():
    with pytest.raises(ConfigError, match="bytes, wanted str"):
        ToolCallDetector("qwen").feed(b"x")
    with pytest.raises(ConfigError, match="'zephyr', wanted a ToolCallFormat or one of"):
        ToolCallDetector("zephyr")
    for arguments in (("",), ("x", "x"), (" x",)):
        with pytest.raises(ConfigError):
            Custom(*arguments)
