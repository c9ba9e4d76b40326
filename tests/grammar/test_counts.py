"""Masks inside counted repetitions: every bit is what asking for that token says, however far the
bounds are, and positions far from them share what they allow.
"""

import random

import numpy as np
import pytest

from oxillama.grammar import Grammar, JsonSchemaCompiler, TokenMasker

ALPHABETS = ("abcxyz", "abcXYZ019", "ab -", " .,", "aé世\U0001f600", '"{}:,\\', "01")


def words() -> list[bytes]:
    """All bytes, and tokens of 2 to 70 bytes in runs and mixtures."""
    rng = random.Random(7)
    found = {bytes([b]) for b in range(256)}
    for size in (2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 70):
        for letters in ALPHABETS:
            for _ in range(2):
                text = "".join(rng.choice(letters) for _ in range(size))
                found.add(text.encode()[:size])
            found.add((letters[0] * size).encode()[:size])
    return sorted(found)


WORDS = words()


def bits(state) -> np.ndarray:
    return np.unpackbits(state.mask().view(np.uint8), bitorder="little")[: len(WORDS)]


def compiled(notation) -> Grammar:
    """The grammar of a GBNF rule or of a schema."""
    if isinstance(notation, str):
        return Grammar.parse(f"root ::= {notation}")
    return JsonSchemaCompiler().compile(notation)


@pytest.mark.parametrize(
    "notation",
    [
        "[ -~]{1,60}",
        "[a-z]{3,25}",
        "[a-z]{40,}",
        "[a-z]{30,45}",
        '([a-c]{1,30} " "){2,20}',
        '("ab"{2,30} | "b" [a-z]{0,50}){1,40}',
        '[^"]{0,40} "." [0-9]{2,30}',
        {"type": "string", "minLength": 1, "maxLength": 60},
        {"type": "string", "pattern": "^[a-z -]{2,50}$"},
        {"type": "string", "pattern": "x", "maxLength": 70},
        {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63},
        {"type": "string", "pattern": "^(?:[a-z]{2,33}-){1,9}x$", "minLength": 20, "maxLength": 64},
        {"type": "string", "format": "hostname"},
        {"type": "string", "pattern": "\\S", "minLength": 35, "maxLength": 80},
        {"type": "array", "items": {"enum": ["ab", "abc"]}, "minItems": 30, "maxItems": 60},
        {"type": "string", "pattern": "^(?:\\S+\\s+){0,9}\\S+$", "maxLength": 60},
        {"type": "string", "pattern": "^[A-Za-z0-9 &'()*,./@\u00a3-]{1,32}$"},
        {
            "type": "array",
            "items": {"type": "string", "pattern": "^(?:\\S+ ){0,3}\\S+$", "maxLength": 40},
            "maxItems": 12,
        },
    ],
    ids=str,
)
def test_every_bit_is_what_asking_for_the_token_says(notation):
    rng, grammar = random.Random(str(notation)), compiled(notation)
    for _ in range(5):
        masker = TokenMasker(WORDS)
        state = masker.state(grammar)
        for _ in range(25):
            mask = bits(state)
            wanted = [masker.allows(state, token) for token in range(len(WORDS))]
            assert mask.tolist() == wanted, state
            allowed = np.flatnonzero(mask)
            if not len(allowed):
                break
            longest = max(len(WORDS[token]) for token in allowed)
            size = rng.choice([1, rng.randint(1, longest), longest])
            near = [token for token in allowed if len(WORDS[token]) <= size]
            masker.advance(state, int(rng.choice(near)))


@pytest.mark.parametrize(
    "notation, begin",
    [
        ("[ -~]{1,500}", b"q"),
        ("[a-z]{300,}", b"q"),
        ({"type": "string", "maxLength": 500}, b'"q'),
        ({"type": "string", "pattern": "^[ !#-~]{1,500}$"}, b'"q'),
        ({"type": "string", "pattern": "q", "maxLength": 500}, b'"q'),
    ],
)
def test_positions_far_from_the_bounds_share_their_mask(notation, begin):
    masker = TokenMasker(WORDS)
    state = masker.state(compiled(notation))
    state.advance(begin)
    first = state.mask()
    for _ in range(200):
        state.advance(b"q")
        assert state.mask() is first


THREE = [
    bytes((a, b, c)) for a in b"abcdefgh" for b in range(0x61, 0x7B) for c in range(0x61, 0x7B)
]


@pytest.mark.parametrize(
    "pattern, text, most",
    [
        # far from all bounds, in a word of a few: letters lead to one position
        ("^(?:\\S+\\s+){0,29}\\S+$", "a word", 40),
        # one letter, or two, may follow: the walk need not end at each of their tokens
        ("^[a-z]{1,20}$", "q" * 19, 40),
        ("^[a-z]{1,20}$", "q" * 18, 40),
        # any text may follow up to more words than a token has
        ("^(?:\\S+\\s+){0,29}\\S+$", "a word ", 40),
    ],
)
def test_a_subtree_is_not_walked_where_all_of_its_texts_lead_to_one_position(pattern, text, most):
    masker = TokenMasker(THREE)
    state = masker.state(compiled({"type": "string", "pattern": pattern, "maxLength": 300}))
    state.advance(f'"{text}'.encode())
    mask = np.unpackbits(state.mask().view(np.uint8), bitorder="little")[: len(THREE)]
    assert mask.tolist() == [masker.allows(state, token) for token in range(len(THREE))]
    assert state._cursor.machine.sizes()["walked"] < most


def test_near_a_bound_short_tokens_share_what_they_allow():
    """Only the longer tokens, which could reach the bound, are walked again."""
    masker = TokenMasker(WORDS)
    state = masker.state(compiled("[a-z]{0,60}"))
    grown = []
    for _ in range(40):
        before = masker.cached_masks
        state.mask()
        grown.append(masker.cached_masks - before)
        state.advance(b"q")
    # one mask a position, and one more where fewer of the lengths are far from the bound
    assert grown == [2 if k in (0, 26) else 1 for k in range(40)]
