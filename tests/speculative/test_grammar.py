"""What a grammar leaves no choice about: single tokens of masks, and text in tokens."""

import numpy as np
import pytest

from oxillama.engine.output import only_token
from oxillama.grammar import Grammar
from oxillama.speculative.grammar import ForcedText
from oxillama.speculative.types import DraftRequest


@pytest.mark.parametrize("token", [0, 5, 31, 32, 95])
def test_the_only_token_of_a_mask_is_found(token):
    mask = np.zeros(3, np.uint32)
    assert only_token(mask) is None and only_token(None) is None
    mask[token >> 5] = np.uint32(1) << np.uint32(token & 31)
    assert only_token(mask) == token
    for other in range(96):
        more = mask.copy()
        more[other >> 5] |= np.uint32(1) << np.uint32(other & 31)
        assert only_token(more) == (token if other == token else None)


def test_text_is_spelled_with_the_longest_tokens_but_the_last():
    text = ForcedText([b"a", b"ab", b"abc", b"", b"d", b"abc", b"de"])
    assert text.spell(b"abcabdef") == [2, 1, 6]  # no token begins with f
    # what reaches the end may be part of a longer token
    assert text.spell(b"abcab") == [2]
    assert text.spell(b"x") == text.spell(b"") == []


def test_forced_text_is_offered_from_where_the_grammar_stands():
    class Session:
        tokens: list = [0]
        grammar = Grammar.parse('root ::= [xy] "abcabde" [0-9]').state()

    text = ForcedText([bytes([byte]) for byte in range(256)] + [b"abc"])
    state = text.open(Session)
    assert not text.propose([DraftRequest(Session, state, 8)])[0].tokens
    Session.grammar.advance(b"x")
    draft = text.propose([DraftRequest(Session, state, 4)])[0]
    assert draft.tokens == [256, ord("a"), ord("b"), ord("d")] and len(draft.chances) == 4
    trusted = draft.chances[0]
    Session.tokens += [256, ord("a")]
    Session.grammar.advance(b"abca")
    assert text.propose([DraftRequest(Session, state, 4)])[0].chances[0] > trusted
