"""The container: equal bytes for equal sections, and a typed refusal for every byte that is not as
it was written.
"""

import os
import struct
import subprocess
import sys

import numpy as np
import pytest
from blake3 import blake3

from oxillama.errors import ConfigError, SnapshotIncompatible
from oxillama.snapshot.container import (
    MAX_SECTIONS,
    Envelope,
    Kind,
    dump_facts,
    load_facts,
    seal,
    write_sealed,
)

KIND = Kind(b"OXITEST1", 3, SnapshotIncompatible)
SECTIONS = {
    "facts": dump_facts({"b": 1, "a": [None, "ü", 0.5]}),
    "empty": b"",
    "pages": [bytes(range(256)), b"more"],
}


def sealed(kind=KIND, **more) -> bytes:
    return b"".join(seal(kind, SECTIONS, **more))


def read_all(data) -> dict[str, bytes]:
    with Envelope.open(KIND, data) as found:
        return {name: bytes(found.read(name, at_most=1 << 20)) for name in found.sections}


def resealed(data: bytes, at: int, packed: bytes) -> bytes:
    """The header with other bytes at `at`, and a hash that fits them: what somebody would write who
    means harm.
    """
    data = bytearray(data)
    data[at : at + len(packed)] = packed
    length = 64 + 72 * struct.unpack_from("<I", data, 12)[0]
    data[32:64] = blake3(bytes(data[:32]) + bytes(data[64:length])).digest()
    return bytes(data)


@pytest.fixture(params=["bytes", "file"])
def open_with(request, tmp_path):
    """Opens bytes as they are, or through a file (in memory where it can, for there are
    thousands).
    """
    made = os.memfd_create("saved") if hasattr(os, "memfd_create") else -1
    path = f"/proc/self/fd/{made}" if made >= 0 else tmp_path / "saved"

    def opened(data):
        if request.param == "bytes":
            return read_all(data)
        with open(path, "wb") as file:
            file.write(data)
        return read_all(path)

    yield opened
    if made >= 0:
        os.close(made)


def test_what_is_sealed_is_read_and_equal_sections_make_equal_bytes(open_with):
    assert open_with(sealed()) == {
        "facts": SECTIONS["facts"],
        "empty": b"",
        "pages": bytes(range(256)) + b"more",
    }
    assert sealed() == sealed()
    # invariant 1: pieces do not show
    assert sealed() == b"".join(seal(KIND, {**SECTIONS, "pages": bytes(range(256)) + b"more"}))


def test_every_byte_counts(open_with):
    data = sealed()
    for at in range(len(data)):
        for change in (1 << at % 8, 0xFF):
            broken = data[:at] + bytes([data[at] ^ change]) + data[at + 1 :]
            with pytest.raises(SnapshotIncompatible):
                open_with(broken)


def test_every_truncation_and_every_addition_is_refused(open_with):
    data = sealed()
    for length in range(len(data)):
        with pytest.raises(SnapshotIncompatible):
            open_with(data[:length])
    with pytest.raises(
        SnapshotIncompatible,
        match=f"length: the header says {len(data)} bytes, found {len(data) + 1}",
    ):
        open_with(data + b"\0")


def test_a_newer_version_is_refused_by_its_number_alone(open_with):
    newer = bytearray(sealed())
    newer[8:12] = struct.pack("<I", 4)
    with pytest.raises(
        SnapshotIncompatible, match="format version: found 4, this release reads 1 to 3"
    ):
        open_with(bytes(newer))
    with pytest.raises(SnapshotIncompatible, match="format version: found 0"):
        open_with(resealed(sealed(), 8, struct.pack("<I", 0)))
    assert open_with(sealed(Kind(KIND.magic, 1, SnapshotIncompatible))) == open_with(sealed())


LENGTHS = (2**31, 2**32, 2**63, 2**64 - 1)
PLACES = {
    "header length": 16,
    "file length": 24,
    "stored": 64 + 24,
    "plain": 64 + 32,
    "last stored": 64 + 2 * 72 + 24,
    "last plain": 64 + 2 * 72 + 32,
}


@pytest.mark.parametrize("where", PLACES)
def test_a_length_is_bounded_before_anything_is_made_of_it(open_with, where):
    for length in LENGTHS:
        with pytest.raises(SnapshotIncompatible):
            open_with(resealed(sealed(), PLACES[where], struct.pack("<Q", length)))
    both = resealed(sealed(), 64 + 24, struct.pack("<QQ", 2**63, 2**63))
    with pytest.raises(SnapshotIncompatible, match="sections: end at byte"):
        open_with(both)
    for length in LENGTHS:  # a compressed section that says it grows to anything
        grown = resealed(sealed(compress=["pages"]), 64 + 2 * 72 + 32, struct.pack("<Q", length))
        with pytest.raises(SnapshotIncompatible):
            open_with(grown)
        grown = Envelope.open(KIND, grown)
        with pytest.raises(SnapshotIncompatible, match="is compressed"):
            grown.read("pages")


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is enforced on Linux")
def test_lengths_that_lie_cost_no_memory():
    """In a process that may hold little: a length that was believed would be a MemoryError
    there.
    """
    code = f"""
import resource, struct, sys
sys.path.insert(0, {str(sys.path[0])!r})
import numpy
from tests.snapshot import test_container as t
whole = t.sealed()
used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
refused = 0
for data in (whole, t.sealed(compress=["pages"])):
    for place in t.PLACES.values():
        for length in t.LENGTHS:
            try:
                t.read_all(t.resealed(data, place, struct.pack("<Q", length)))
            except t.SnapshotIncompatible:
                refused += 1
assert refused == 2 * len(t.PLACES) * len(t.LENGTHS), refused
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_file_that_changes_after_it_was_opened_is_refused(tmp_path):
    path = tmp_path / "saved"
    path.write_bytes(sealed())
    with Envelope.open(KIND, path) as found:
        with open(path, "r+b") as file:
            file.seek(-1, 2)
            file.write(b"!")
        with pytest.raises(SnapshotIncompatible, match="section pages: its BLAKE3 hash"):
            found.read("pages")
        path.write_bytes(sealed()[:-2])
        with pytest.raises(SnapshotIncompatible, match="section pages: the file ends at byte"):
            found.read("pages")


def test_bytes_that_change_after_they_were_opened_are_those_that_were_opened():
    data = bytearray(sealed())
    with Envelope.open(KIND, data) as found:
        data[:] = bytes(len(data))
        for name, wanted in read_all(sealed()).items():
            assert bytes(found.read(name, at_most=1 << 20)) == wanted


def test_a_table_holds_each_name_once_and_only_good_ones():
    for entry, wanted in (
        (b"facts".ljust(16, b"\0"), "found twice, wanted once"),
        (b"Empty".ljust(16, b"\0"), "wanted a known encoding"),
        (bytes(16), "wanted a known encoding"),
    ):
        with pytest.raises(SnapshotIncompatible, match=wanted):
            read_all(resealed(sealed(), 64 + 72, entry))
    with pytest.raises(SnapshotIncompatible, match="encoding 2"):
        read_all(resealed(sealed(), 64 + 16, struct.pack("<I", 2)))
    for at, packed in ((20, struct.pack("<I", 1)), (24, struct.pack("<Q", 1)), (32, bytes(8))):
        with pytest.raises(SnapshotIncompatible, match="stored and .* plain bytes, wanted a known"):
            read_all(resealed(sealed(), 64 + at, packed))
    with pytest.raises(ConfigError, match="section 'Big'"):
        seal(KIND, {"Big": b""})
    with pytest.raises(ConfigError, match=f"at most {MAX_SECTIONS}"):
        seal(KIND, {f"s{index}": b"" for index in range(MAX_SECTIONS + 1)})


def test_sections_must_be_those_expected():
    with Envelope.open(KIND, sealed()) as found:
        found.expect({"facts", "empty"}, optional={"pages", "others"})
        with pytest.raises(SnapshotIncompatible, match="section tokens: is missing"):
            found.expect({"facts", "tokens"}, optional=found.sections)
        with pytest.raises(SnapshotIncompatible, match="section pages: is unknown here"):
            found.expect({"facts", "empty"})
        with pytest.raises(
            SnapshotIncompatible, match="section pages: found 260 bytes, wanted 259"
        ):
            found.read("pages", exactly=259)
        with pytest.raises(SnapshotIncompatible, match="found 260 bytes, wanted at most 12"):
            found.read("pages", at_most=12)


def test_a_compressed_section_reads_as_the_plain_one(open_with):
    small = b"".join(seal(KIND, {"pages": bytes(100_000)}, compress=["pages"]))
    assert len(small) < 1000 and open_with(small) == {"pages": bytes(100_000)}
    data = sealed(compress=["pages"])
    assert data == sealed(compress=["pages"]) and open_with(data) == open_with(sealed())
    for at in range(len(data)):
        with pytest.raises(SnapshotIncompatible):
            open_with(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])


def test_a_zstd_frame_that_lies_is_refused():
    import zstandard

    for frame, plain in (
        (zstandard.ZstdCompressor().compress(bytes(1000)), 999),
        (b"no frame at all", 15),
        (zstandard.ZstdCompressor(write_content_size=False).compress(bytes(10)), 10),
        (zstandard.ZstdCompressor().compress(bytes(9)) * 2, 9),
    ):
        data = resealed(
            b"".join(seal(KIND, {"pages": frame})),
            64 + 16,
            struct.pack("<IIQQ", 1, 0, len(frame), plain),
        )
        with pytest.raises(SnapshotIncompatible, match="zstd"):
            Envelope.open(KIND, data).read("pages", at_most=1 << 20)


def test_facts_have_one_spelling():
    assert load_facts(KIND, SECTIONS["facts"]) == {"a": [None, "ü", 0.5], "b": 1}
    for text in (
        b'{"a": 1}',
        b'{"b":1,"a":1}',
        b'{"a":1,"a":1}',
        b"[1]",
        b"",
        b"{",
        b"[" * 100_000,
        b'{"a":' + b"9" * 5000 + b"}",
        b"\xff",
    ):
        with pytest.raises(SnapshotIncompatible, match="facts: "):
            load_facts(KIND, text)


class Made:
    """Pieces that are made while they are written."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size, self.nbytes = count, size, count * size

    def pieces(self):
        for index in range(self.count):
            yield memoryview(bytes([index + 1]) * self.size)


@pytest.mark.parametrize("compress", [(), ("pages",)], ids=["plain", "zstd"])
def test_a_file_is_written_while_its_pages_are_made_and_read_while_it_is_hashed(tmp_path, compress):
    path, size = tmp_path / "saved", 1_500_000
    whole = b"".join(bytes([index + 1]) * size for index in range(9))
    write_sealed(
        path, KIND, {"facts": b"{}", "pages": Made(9, size), "last": b"!"}, compress=compress
    )
    assert path.read_bytes() == b"".join(
        seal(KIND, {"facts": b"{}", "pages": whole, "last": b"!"}, compress=compress)
    )
    with Envelope.open(KIND, path) as found:
        assert found.read("pages", exactly=len(whole)) == whole
    if not compress:
        with Envelope.open(KIND, path) as found:
            os.truncate(path, 9_000_000)
            with pytest.raises(
                SnapshotIncompatible, match="section pages: the file ends at byte 9000000"
            ):
                found.read("pages")


@pytest.mark.parametrize("compress", [(), ("pages",)], ids=["plain", "zstd"])
@pytest.mark.parametrize("size, unit", [(777, 7), (30_000_000, 24), (30_000_000, 6_000_000)])
def test_a_section_is_poured_each_byte_once_in_pieces_of_whole_units(
    tmp_path, size, unit, compress
):
    path, whole = tmp_path / "saved", np.random.default_rng(3).integers(0, 256, size, np.uint8)
    write_sealed(path, KIND, {"pages": whole}, compress=compress)
    for source in (path, path.read_bytes()):
        out, filled = np.zeros(size, np.uint8), []

        def into(at, piece, out=out, filled=filled):
            out[at : at + len(piece)] = piece
            filled.append((at, len(piece)))

        with Envelope.open(KIND, source) as found:
            found.read_pieces("pages", into, exactly=size, unit=unit)
            assert (
                np.array_equal(out, whole)
                and sum(length for _, length in filled) == size
                and not any(at % unit for at, _ in filled)
            )
            with pytest.raises(SnapshotIncompatible, match="section pages: found"):
                found.read_pieces("pages", into, exactly=size + 1)


@pytest.mark.parametrize("size", [777, 9_000_000])
def test_what_was_poured_is_refused_where_a_byte_is_another_and_what_the_taker_raises_comes_out(
    tmp_path, size
):
    data = bytearray(b"".join(seal(KIND, {"pages": bytes(size)})))
    path = tmp_path / "saved"
    path.write_bytes(data)
    for source in (path, bytes(data)):
        with Envelope.open(KIND, source) as found, pytest.raises(ZeroDivisionError):
            found.read_pieces("pages", lambda at, piece: 1 // at, exactly=size)
    data[-1] ^= 1
    path.write_bytes(data)
    for source in (path, bytes(data)):
        with (
            Envelope.open(KIND, source) as found,
            pytest.raises(SnapshotIncompatible, match="section pages: its BLAKE3 hash"),
        ):
            found.read_pieces("pages", lambda at, piece: None, exactly=size)


def test_what_is_no_file_is_refused_at_once(tmp_path):
    with pytest.raises(SnapshotIncompatible, match="not a regular file"):
        Envelope.open(KIND, tmp_path)
    with pytest.raises(FileNotFoundError):
        Envelope.open(KIND, tmp_path / "none")
    with pytest.raises(SnapshotIncompatible, match="wanted bytes or a path"):
        Envelope.open(KIND, 7)
