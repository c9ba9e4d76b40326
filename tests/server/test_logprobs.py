"""Log-probabilities of completions: where each token begins in the text, whatever its bytes."""

from types import SimpleNamespace

import numpy as np
import pytest

from oxillama.server.completions import _echo
from oxillama.server.logprobs import LegacyLogprobs
from oxillama.tokenizer import TokenizerBridge

PIECES = ["▁a", "b", "▁c"]


def byte(value):
    return 3 + value


A, B, C = range(259, 262)
BOS = 1


@pytest.fixture(scope="module")
def bridge():
    """A vocabulary that puts a space before a text: three specials, 256 bytes, three pieces."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *PIECES]
    return TokenizerBridge.from_metadata(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": np.array([2, 3, 3] + [6] * 256 + [1] * 3, np.int32),
            "tokenizer.ggml.scores": np.zeros(len(tokens), np.float32),
        }
    )


def offsets(bridge, ids, *, prompt=0, before=()):
    """`text_offset` of tokens, of which the first `prompt` are an echoed prompt's."""
    entries = LegacyLogprobs(bridge, 0, before=before)
    for at, token in enumerate(ids):
        if prompt and at == prompt:
            entries.begin()
        entries.add(token, -1.0, (), ())
    return entries.take()["text_offset"]


def test_an_echo_is_the_prompt_without_the_vocabularys_own_space(bridge):
    model = SimpleNamespace(vocabulary=lambda: bridge)
    assert _echo(model, bridge.encode("a c")) == "a c"
    assert _echo(model, None) == ""


@pytest.mark.parametrize(
    "ids, options, wanted",
    [
        # an echoed prompt, and a completion of no text: "ab c"
        ([BOS, A, B, C], {}, [0, 0, 1, 2]),
        ([A, B, C], {"before": [BOS]}, [0, 1, 2]),
        # a completion of a text: " ab c"
        ([A, B, C], {"before": [BOS, B]}, [0, 2, 3]),
        ([A, B, C], {"before": None}, [0, 2, 3]),
        # a character of three bytes, then bytes that are none: each U+FFFD counts
        ([BOS, byte(0xE2), byte(0x98), byte(0x83), B], {}, [0, 0, 0, 0, 1]),
        ([BOS, byte(0xFF), B, byte(0xC5), B, B], {}, [0, 0, 1, 2, 2, 4]),
        # an unfinished character of the prompt stays the prompt's
        ([BOS, B, byte(0xE2), B, B], {"prompt": 3}, [0, 0, 1, 2, 3]),
    ],
)
def test_offsets_are_places_in_the_text(bridge, ids, options, wanted):
    assert offsets(bridge, ids, **options) == wanted
