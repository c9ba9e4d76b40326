"""Masks over real vocabularies: every bit is what asking for that token says, along real texts."""

import json
import random

import numpy as np
import pytest

from oxillama.grammar import Grammar, JsonSchemaCompiler, TokenMasker
from oxillama.tokenizer import TokenizerBridge

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 30},
        "born": {"type": "string", "format": "date"},
        "tags": {
            "type": "array",
            "items": {"type": "string", "pattern": "^[a-z-]+$"},
            "maxItems": 3,
        },
        "size": {"type": "number", "minimum": 0, "maximum": 2.5},
        "kind": {"enum": ["short", "shorter", "long\u00e9"]},
        "more": {},
    },
    "required": ["name"],
}
VALUE = {
    "name": "Ann \u4e16 \U0001f600 Lee",
    "born": "2024-02-29",
    "tags": ["a-b", "see"],
    "size": 1.25,
    "kind": "long\u00e9",
    "more": {"x": ['two words, "quoted"', None, -1.5e10]},
    "zz": True,
}


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm", "qwen2"])
def test_masks_over_real_vocabularies_equal_asking_for_every_token(cases, name):
    bridge = TokenizerBridge.from_gguf(cases / "tokenizers" / f"{name}.gguf")
    pieces = bridge.vocab_bytes()
    masker = TokenMasker(pieces, control_ids=bridge.special_ids, eog_ids=bridge.eog_ids)
    grammar = JsonSchemaCompiler(whitespace="flexible").compile(SCHEMA)
    rng = random.Random(name)
    ids = {piece: i for i, piece in enumerate(masker.vocab_bytes) if piece}
    text = json.dumps(VALUE, ensure_ascii=False).encode()
    state, at, step = masker.state(grammar), 0, 0
    while at < len(text):
        bits = np.unpackbits(state.mask().view(np.uint8), bitorder="little")[: len(pieces)]
        asked = range(len(pieces)) if step % 25 == 3 else rng.sample(range(len(pieces)), 150)
        assert all(bits[i] == masker.allows(state, i) for i in asked), state
        piece = next(text[at : at + n] for n in range(12, 0, -1) if text[at : at + n] in ids)
        assert bits[ids[piece]] == 1, state
        masker.advance(state, ids[piece])
        at, step = at + len(piece), step + 1
    assert state.is_complete() and state.only_end()
    assert sorted(
        np.flatnonzero(np.unpackbits(state.mask().view(np.uint8), bitorder="little"))
    ) == sorted(bridge.eog_ids)


LETTERS = [
    *"aeiou xsl/#.",
    *"\u00e9\u0416\u4e16\u2019\u2026\u2027\u2028\u2029\u202a\ue000\U0001f600",
]
# subtrees of more tokens than are asked for one by one, with and without the code points that the
# patterns exclude; characters that are cut off, and bytes that no character has
PLACES = [
    *(bytes([b]) for b in range(256)),
    *(b"zq\xff" + bytes([b]) for b in range(0x61, 0x7B)),
    *(
        piece
        for text in (a + b + c for a in "as\u4e16" for b in LETTERS for c in LETTERS)
        for piece in (text.encode(), text.encode()[:-1], text.encode() + b"\xe2\x80")
    ),
]


@pytest.mark.parametrize(
    "pattern",
    [
        "^.*xsl$",
        "^[^/#]+/[^/#]+$",
        "^(?:\\S+\\s+){0,9}\\S+$",
        "^[^\\u2026]{1,30}$",
        "^[a-z\\u0400-\\u04ff]+\\.[^\\ue000]*$",
    ],
)
def test_subtrees_are_allowed_whole_only_where_all_of_their_tokens_are(pattern):
    masker = TokenMasker(PLACES)
    state = masker.state(JsonSchemaCompiler().compile({"type": "string", "pattern": pattern}))
    for piece in ('"', "a", ".", "xs", "l/ ", "e\u4e16"):
        if not state.allows_token(piece.encode()):
            continue
        state.advance(piece.encode())
        bits = np.unpackbits(state.mask().view(np.uint8), bitorder="little")[: len(PLACES)]
        wanted = [masker.allows(state, token) for token in range(len(PLACES))]
        assert bits.tolist() == wanted, (piece, pattern)


def test_a_grammar_is_shared_by_vocabularies():
    grammar = Grammar.parse('root ::= "ab"+')
    one, two = TokenMasker([b"a", b"b", b"ab"]), TokenMasker([b"abab", b"b", b"ba", b"a"])
    a, b = one.state(grammar), two.state(grammar)
    assert (a.mask().tolist(), b.mask().tolist()) == ([0b101], [0b1001])
    one.advance(a, 2)
    two.advance(b, 3)
    assert (a.mask().tolist(), b.mask().tolist()) == ([0b101], [0b0110])


def test_a_vocabulary_of_longer_tokens_asks_farther_ahead():
    # counts stand still for the tokens of one vocabulary that the other's bring to a bound
    grammar = Grammar.parse("root ::= [a-z]{0,60}")
    short, long = TokenMasker([b"a"]), TokenMasker([b"a", b"a" * 7, b"a" * 50])
    for used, wanted in ((10, 0b111), (11, 0b011), (53, 0b011), (54, 0b001)):
        one, other = short.state(grammar), long.state(grammar)
        one.advance(b"q" * used)
        other.advance(b"q" * used)
        assert one.mask().tolist() == [1]
        assert other.mask().tolist() == [wanted]
