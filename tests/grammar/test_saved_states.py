"""A saved state goes on in another process: the same masks at every position, for every way of
making a grammar.
"""

import copy
import hashlib
import json
import pickle
import subprocess
import sys

import pytest

import oxillama
from oxillama.errors import GrammarError
from oxillama.grammar import Grammar, GrammarState, JsonSchemaCompiler, TokenMasker

PIECES = [bytes([b]) for b in range(256)] + [b'{"', b'":', b'","', b"ab", b"option ", b""]
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "array", "items": {"$ref": "#/$defs/n"}},
        "b": {"type": "string", "maxLength": 9},
    },
    "$defs": {"n": {"anyOf": [{"type": "number", "minimum": 0.5}, {"$ref": "#"}]}},
}
MADE = {
    "gbnf": (
        Grammar.parse('root ::= ("a" | "ab"){2,5} tail?\ntail ::= [^\\x00-\\x60]+ "."'),
        b"abaab\xc3\xa9z.",
    ),
    "regex": (Grammar.from_regex(r"[a-z]+(-\d{1,3})*"), b"abc-12-3"),
    "choices": (Grammar.from_choices(["option one", "option two", "other"]), b"option tw"),
    "schema": (
        JsonSchemaCompiler(whitespace="flexible").compile(SCHEMA),
        b'{ "a" : [0.75, {"b":"x\xc3\xa9"}],"c":[null]',
    ),
}
OTHER = """
import hashlib, json, sys
from oxillama.grammar import GrammarState, TokenMasker
pieces = [bytes.fromhex(p) for p in json.loads(sys.argv[1])]
masker = TokenMasker(pieces, eog_ids=[int(sys.argv[2])])
out = []
for line in sys.stdin:
    state = GrammarState.restore(bytes.fromhex(line), masker=masker)
    out.append(hashlib.sha256(state.mask().tobytes()).hexdigest())
print(json.dumps(out))
"""


def test_masks_after_restoring_in_another_process_are_equal_at_every_position():
    masker = TokenMasker(PIECES, eog_ids=[len(PIECES) - 1])
    saved, wanted = [], []
    for grammar, text in MADE.values():
        state = masker.state(grammar)
        for byte in (*text, None):
            saved.append(state.serialise().hex())
            wanted.append(hashlib.sha256(state.mask().tobytes()).hexdigest())
            if byte is not None:
                masker.advance(state, byte)
    done = subprocess.run(
        [sys.executable, "-c", OTHER, json.dumps([p.hex() for p in PIECES]), str(len(PIECES) - 1)],
        input="\n".join(saved),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout) == wanted


@pytest.mark.parametrize("kind", MADE)
def test_a_grammar_rebuilt_from_its_description_describes_itself_so(kind):
    grammar, text = MADE[kind]
    again = Grammar.rebuild(json.loads(json.dumps(grammar.describe())), limits=grammar.limits)
    assert list(grammar.describe())[0] == kind and again.describe() == grammar.describe()
    one, two = grammar.state(), again.state()
    one.advance(text)
    two.advance(text)
    assert (one.is_complete(), one.forced(), one._cursor.next_bytes()) == (
        two.is_complete(),
        two.forced(),
        two._cursor.next_bytes(),
    )


@pytest.mark.parametrize("kind", MADE)
def test_a_grammar_can_be_pickled_and_copied(kind):  # for processes, as part of `Options`
    grammar, text = MADE[kind]
    again = pickle.loads(pickle.dumps(grammar))
    assert again.describe() == grammar.describe() and again.limits == grammar.limits
    state = again.state()
    state.advance(text)
    assert state.is_complete() or state._cursor.next_bytes()
    options = oxillama.Options(grammar=grammar, max_tokens=5)
    assert pickle.loads(pickle.dumps(options)).grammar.describe() == grammar.describe()
    assert copy.deepcopy(options).grammar is grammar


def edited(data, **members):
    return json.dumps({**json.loads(data), **members}).encode()


def test_a_state_with_tokens_in_it_goes_on_after_each_step():
    grammar = Grammar.parse('root ::= <[3]> "ab" ("c" | <[4]>) "ab"+ <[3]>')
    masker = TokenMasker([b"ab", b"c", b"a", b"", b"", b"b"], control_ids=[3, 4])
    state = masker.state(grammar)
    for token in (3, 2, 5, 4, 0, 0, 2, 5, 3):
        again = GrammarState.restore(state.serialise(), masker=masker)
        assert again.serialise() == state.serialise() and again.consumed == state.consumed
        assert again.mask().tobytes() == state.mask().tobytes()
        masker.advance(again, token)
        masker.advance(state, token)
        assert again.serialise() == state.serialise()
    assert state.is_complete() and again.is_complete() and state.consumed == b"ab" * 4
    saved = state.serialise()
    steps = json.loads(saved)["steps"]
    for wrong in (steps[:-2], [*steps, [1, -1]], [[-1, 3], [1, -1], *steps], [*steps[::-1]]):
        with pytest.raises(GrammarError):
            GrammarState.restore(edited(saved, steps=wrong), masker=masker)


def test_a_saved_state_that_is_too_long_or_has_unknown_limits_is_refused(monkeypatch):
    grammar, text = MADE["regex"]
    state = grammar.state()
    state.advance(text)
    saved = state.serialise()
    limits = json.loads(saved)["limits"]
    for wrong in ({**limits, "most": 3}, [], None):
        with pytest.raises(GrammarError, match="grammar state: malformed limits, found "):
            GrammarState.restore(edited(saved, limits=wrong))
    monkeypatch.setattr("oxillama.grammar.automaton.MOST_SAVED", len(saved))
    assert GrammarState.restore(saved).consumed == text
    with pytest.raises(GrammarError, match=f"found {len(saved) + 1} bytes, wanted at most"):
        GrammarState.restore(saved + b" ")


def test_a_saved_state_holds_no_tables():
    grammar = JsonSchemaCompiler().compile(
        {
            "type": "object",
            "properties": {f"name{i}": SCHEMA["properties"]["a"] for i in range(50)},
            "$defs": SCHEMA["$defs"],
        }
    )
    state = grammar.state()
    state.advance(b'{"name7":[1.5')
    assert len(state.serialise()) < len(json.dumps(grammar.describe())) * 2 + 500


def test_a_state_shares_a_grammar_of_the_same_description_only():
    grammar, text = MADE["schema"]
    state = grammar.state()
    state.advance(text)
    same = JsonSchemaCompiler(whitespace="flexible").compile(SCHEMA)
    assert GrammarState.restore(state.serialise(), grammar=same).consumed == text
    with pytest.raises(GrammarError, match="another grammar"):
        GrammarState.restore(state.serialise(), grammar=JsonSchemaCompiler().compile(SCHEMA))


@pytest.mark.parametrize(
    "junk",
    [
        None,
        {},
        [],
        "x",
        {"gbnf": 3},
        {"schema": "{}"},
        {"choices": 5},
        {"regex": "(", "more": 1},
        {"gbnf": "root ::= x"},
    ],
)
def test_what_is_no_description_raises(junk):
    with pytest.raises(GrammarError):
        Grammar.rebuild(junk)
