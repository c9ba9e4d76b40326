"""Constraints told in JSON and made again: a state that was saved goes on, anywhere, as if it had
not been.
"""

import json
import subprocess
import sys
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.errors import GrammarError
from oxillama.grammar import GrammarState, TokenMasker
from oxillama.toolcalls import (
    FORMATS,
    THINK,
    ToolCallGrammar,
    TriggeredGrammar,
    TriggeredState,
    constraint_of,
    restore_state,
)

TOOLS = [
    {
        "name": "add",
        "parameters": {
            "properties": {"a": {"type": "integer"}, "où": {"enum": ["é", None]}},
            "required": ["a"],
        },
    },
    {"name": "now"},
]
OPENERS = [text for each in FORMATS.values() for text in (each.open, each.close)]
PIECES = [
    b"",
    *map(bytes, zip(range(256))),
    *(text.encode() for text in {*OPENERS, "<think>", "</think>"} if text),
]
PIECES += [b'{"name": "now", ', b'"arguments": {}}', b"[now()]", "é ".encode(), b"\n\n"]
MASKER = TokenMasker(PIECES, control_ids=[0], eog_ids=[0])


def made(format: str, *, opened: bool = False, parallel: bool = True) -> TriggeredGrammar:
    return TriggeredGrammar(
        format, TOOLS, reasoning=THINK, reasoning_opened=opened, parallel=parallel
    )


def again(state):
    """The state in another life: through bytes and JSON."""
    return restore_state(
        json.loads(json.dumps(state.describe())), state.serialise(), masker=state.masker
    )


def same_mask(one, other):
    ours, theirs = one.mask(), other.mask()
    return ours is theirs is None or np.array_equal(ours, theirs)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(set(FORMATS) - {"harmony"})),
    st.booleans(),
    st.booleans(),
    st.integers(0, 1 << 32).map(Random),
)
def test_a_restored_state_has_equal_masks_at_every_position(format, opened, parallel, random):
    state = made(format, opened=opened, parallel=parallel).state(MASKER)
    saved = again(state)
    shared = saved.grammar
    for _ in range(40):
        mask = state.mask()
        allowed = [
            t
            for t in range(1, len(PIECES))
            if mask is None or mask[t >> 5] >> np.uint32(t & 31) & 1
        ]
        if not allowed:
            break
        special = [t for t in allowed if len(PIECES[t]) > 1]
        token = random.choice(special if special and random.random() < 0.5 else allowed)
        MASKER.advance(state, token)
        saved = TriggeredState.restore(state.serialise(), grammar=shared, masker=MASKER)
        assert same_mask(state, saved) and saved.serialise() == state.serialise()
        assert (saved.is_complete(), saved.only_end(), saved.inside) == (
            state.is_complete(),
            state.only_end(),
            state.inside,
        )


@pytest.mark.parametrize("first", [b"", b"<think>", b"<think>a</think>"])
def test_a_mask_of_one_place_of_the_reasoning_stands_in_for_no_other(first):
    # a token that opens a call and spoils it: of the region's text, or banned
    pieces = [*PIECES, b"<tool_call>x"]
    masker = TokenMasker(pieces, control_ids=[0], eog_ids=[0])
    shared, spoiling = made("qwen"), len(pieces) - 1
    for text in (first, b"", b"<think>", b"<think>a</think>"):
        state = shared.state(masker)
        state.advance(text)
        mask = state.mask()
        allowed = mask is None or bool(mask[spoiling >> 5] >> np.uint32(spoiling & 31) & 1)
        assert allowed == (text == b"<think>") == state.fork().try_advance(pieces[spoiling])


def test_a_grammar_is_described_as_it_was_compiled():
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "add", "parameters": parameters}}
    grammar = TriggeredGrammar("hermes", [tool])
    state = grammar.state(MASKER)
    state.advance(b'<tool_call>{"name": "add", "arguments": {"a"')
    parameters["properties"]["a"]["type"] = "string"
    again = restore_state(state.describe(), state.serialise(), masker=MASKER)
    for text, allowed in ((b": 1", True), (b': "', False)):
        assert state.fork().try_advance(text) == again.fork().try_advance(text) == allowed


def test_a_state_goes_on_in_another_process():
    state = made("qwen").state(MASKER)
    state.advance(b'<think>a</think>\n<tool_call>{"name": "add", "argum')
    script = (
        "import sys, json; from oxillama.toolcalls import restore_state\n"
        "told = json.load(sys.stdin); state = restore_state(told['about'], "
        "told['state'].encode())\n"
        'state.advance(b\'ents": {"a": 1}}</tool_call> ok\'); print(state.serialise().decode())'
    )
    told = json.dumps({"about": state.describe(), "state": state.serialise().decode()})
    out = subprocess.run(
        [sys.executable, "-c", script], input=told, capture_output=True, text=True, check=True
    ).stdout
    state.advance(b'ents": {"a": 1}}</tool_call> ok')
    assert out.strip() == state.serialise().decode() and state.is_complete()


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_a_required_calls_state_is_told_by_its_own_bytes(format):
    ids = {FORMATS[format].open: 257} if FORMATS[format].open else {}
    masker = TokenMasker([*PIECES[:257], b"", *PIECES[258:]], control_ids=[0, 257], eog_ids=[0])
    state = ToolCallGrammar(format, TOOLS, token_ids=ids).state(masker)
    random = Random(3)
    for _ in range(30):
        other = again(state)
        assert isinstance(other, GrammarState) and same_mask(state, other)
        allowed = [
            t for t in range(1, len(PIECES)) if state.mask()[t >> 5] >> np.uint32(t & 31) & 1
        ]
        if not allowed:
            break
        masker.advance(state, random.choice(allowed))


def test_delimiters_that_are_tokens_are_told_with_their_ids():
    class Words:
        def token_to_id(self, text):
            return {"[TOOL_CALLS]": 1}.get(text)

    about = TriggeredGrammar("mistral-args", TOOLS, token_ids={"[TOOL_CALLS]": 1}).describe()
    assert constraint_of(about, Words()).token_ids == {"[TOOL_CALLS]": 1}
    with pytest.raises(GrammarError, match=r"\[TOOL_CALLS\] was token 2, this vocabulary has 1"):
        constraint_of({**about, "token_ids": {"[TOOL_CALLS]": 2}}, Words())


def test_a_reply_without_parallel_calls_ends_with_its_first():
    state = made("qwen", parallel=False).state(MASKER)
    state.advance(b'hm <tool_call>{"name": "now", "arguments": {}}')
    assert not state.only_end() and not state.is_complete()
    state.advance(b"</tool_call>")
    assert (
        state.only_end()
        and state.is_complete()
        and [int(word) for word in state.mask() if word] == [1]
    )
    with pytest.raises(GrammarError):
        state.advance(b" ")


WRONG = [
    None,
    7,
    "\u0100",
    [],
    {"consumed": "!", "steps": []},
    {"consumed": "YQ==", "steps": [[1]]},
]
MEMBERS = [
    (member, wrong)
    for member in ("version", "grammar", "tail", "fresh", "region", "call")
    for wrong in WRONG
    if (member, wrong) != ("call", None)
]


@pytest.mark.parametrize("member, wrong", MEMBERS)
def test_malformed_states_are_refused_by_name(member, wrong):
    state = made("qwen").state(MASKER)
    state.advance(b"<think>a</think><tool_call>{")
    saved = json.loads(state.serialise())
    with pytest.raises(GrammarError, match="tool call state|grammar state|reasoning"):
        TriggeredState.restore(json.dumps({**saved, member: wrong}).encode(), grammar=state.grammar)


@pytest.mark.parametrize(
    "junk", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"version":1}', "text"]
)
def test_bytes_that_are_no_state_are_refused(junk):
    with pytest.raises(GrammarError):
        TriggeredState.restore(junk, grammar=made("qwen"))
    with pytest.raises(GrammarError):
        GrammarState.restore(junk)


def test_malformed_descriptions_are_refused_by_name():
    about = made("qwen").describe()
    for wrong in (
        None,
        {},
        {"kind": "tools"},
        {**about, "format": {}},
        {**about, "tools": 3},
        {**about, "token_ids": []},
    ):
        with pytest.raises(GrammarError, match="constraint"):
            constraint_of(wrong)
