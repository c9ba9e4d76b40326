"""Many strings at once are found and decoded exactly as walking them one by one would."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.gguf.strings import decode_strings, string_starts, strings_end

# Texts that look like lengths, that are longer than a guess allows, that are empty, or that hold
# the byte decoding splits at.
TEXTS = [
    "a",
    "token",
    "é",
    "x" * 255,
    "x" * 256,
    "y" * 70000,
    "\0",
    "",
    "\0" * 8,
    "a" + "\0" * 7 + "b",
]
TEXTS += ["\1" + "\0" * 7, "\x08\0\0\0\0\0\0\0"]


def stored(texts):
    """Lengths and bytes, one after another."""
    return b"".join(struct.pack("<Q", len(text.encode())) + text.encode() for text in texts)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(TEXTS), max_size=40), st.integers(0, 9), st.sampled_from([1, 1000]))
def test_strings_are_those_that_were_stored(texts, before, ordinary):
    texts = ["ordinary"] * ordinary + texts
    data = stored(texts)
    buffer = memoryview(bytes(before) + data + b"\1" + bytes(20))
    starts, end = string_starts(buffer, before, len(texts))
    assert end == strings_end(buffer, before, len(texts)) == before + len(data)
    assert decode_strings(buffer, starts, end) == texts


@pytest.mark.parametrize("last", ["", "a", "x" * 300])
def test_a_string_past_the_end_is_seen(last):
    for ordinary in (0, 3, 40000):  # more than one stretch
        data = stored(["token"] * ordinary + [last])
        count = ordinary + 1
        assert strings_end(memoryview(data), 0, count) == len(data)
        for cut in (data[:-1], data[: -8 - len(last)], data[:-8] + b"\xff" * 8):
            if len(cut) < len(data) or not last:
                assert strings_end(memoryview(cut), 0, count) == -1
                assert string_starts(memoryview(cut), 0, count)[1] == -1


def test_no_strings_are_no_strings():
    assert strings_end(memoryview(b""), 0, 0) == 0
    starts, end = string_starts(memoryview(b"abc"), 1, 0)
    assert end == 1 and decode_strings(memoryview(b"abc"), starts, end) == []


def test_bytes_that_are_no_utf8_raise():
    # together a character, apart none
    raw = memoryview(struct.pack("<Q", 1) + b"\xc3" + struct.pack("<Q", 1) + b"\xa9")
    starts, end = string_starts(raw, 0, 2)
    with pytest.raises(UnicodeDecodeError):
        decode_strings(raw, starts, end)
