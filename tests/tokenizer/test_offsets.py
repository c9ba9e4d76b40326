"""Where tokens begin in a text, whatever their bytes."""

import pytest

from oxillama.tokenizer import TextOffsets
from tests.tokenizer.made import spm

BOS, A, B, C = 1, 259, 260, 261


def byte(value):
    return 3 + value


@pytest.fixture(scope="module")
def bridge():
    """A vocabulary that puts a space before a text."""
    return spm({"▁a": 0.0, "b": 0.0, "▁c": 0.0})


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
    prompt = options.pop("prompt", None)
    offsets, found = TextOffsets(bridge, **options), []
    for at, token in enumerate(ids):
        if at == prompt:
            offsets.begin()
        found.append(offsets.add(token))
    assert found == wanted
