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


def test_a_grammar_is_shared_by_vocabularies():
    grammar = Grammar.parse('root ::= "ab"+')
    one, two = TokenMasker([b"a", b"b", b"ab"]), TokenMasker([b"abab", b"b", b"ba", b"a"])
    a, b = one.state(grammar), two.state(grammar)
    assert (a.mask().tolist(), b.mask().tolist()) == ([0b101], [0b1001])
    one.advance(a, 2)
    two.advance(b, 3)
    assert (a.mask().tolist(), b.mask().tolist()) == ([0b101], [0b0110])
