"""The reader gives what the file says, without a copy, and refuses every file whose header lies."""

import contextlib
import json
import random
import struct
import time
import tracemalloc

import gguf
import numpy as np
import pytest

from oxillama.errors import GgufError, OxillamaError
from oxillama.gguf import TENSOR_TYPES, GgufReader, TensorInfo
from oxillama.gguf.keys import Keys

# A small file is built byte by byte from the format's specification, so that the reader is not
# judged by our own writer.
U32, STRING, ARRAY = 4, 8, 9


def string(text):
    """A length and its UTF-8 bytes."""
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def key(name, kind, payload):
    """One key with its kind number and stored bytes."""
    return string(name) + struct.pack("<I", kind) + payload


def info(name, dims, kind, offset):
    """One tensor info; `dims` innermost first."""
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def file(keys=(), infos=(), data=b"", *, version=3, alignment=32, counts=None, magic=b"GGUF"):
    """A whole file of the given parts."""
    tensors, kvs = counts or (len(infos), len(keys))
    head = magic + struct.pack("<IQQ", version, tensors, kvs) + b"".join(keys) + b"".join(infos)
    return head + (b"\0" * (-len(head) % alignment) + data if infos else b"")


ARCH = key("general.architecture", STRING, string("llama"))


@pytest.fixture
def small():
    """(bytes, length of the header): two tensors, and a key of every shape."""
    bytes_array = struct.pack("<IQ2B", 0, 2, 1, 2)
    keys = [
        ARCH,
        key("a.int", U32, struct.pack("<I", 7)),
        key(
            "a.names", ARRAY, struct.pack("<IQ", STRING, 3) + string("x") + string("") + string("é")
        ),
        key("a.numbers", ARRAY, struct.pack("<IQ3f", 6, 3, 1.0, 2.0, 3.0)),
        key(
            "a.nested",
            ARRAY,
            struct.pack("<IQ", ARRAY, 2)
            + bytes_array
            + struct.pack("<IQ", STRING, 1)
            + string("z"),
        ),
    ]
    data = struct.pack("<6f", *range(6)).ljust(32, b"\0") + bytes(range(34))
    raw = file(keys, [info("one", (3, 2), 0, 0), info("two", (32,), 8, 32)], data)
    return raw, len(raw) - len(data)


# Malformed below the container: a model or a tokenizer refuses these, for a reader they are
# well-formed files.
WELL_FORMED = {
    "arch_missing",
    "arch_traversal",
    "shape_transposed",
    "tok_merges_nospace",
    "tok_scores_short",
}


def test_a_small_file_is_read_as_written(small):
    raw, head = small
    reader = GgufReader(raw)
    assert (reader.version, reader.alignment, reader.size, reader.path) == (3, 32, len(raw), None)
    assert list(reader.metadata) == [
        "general.architecture",
        "a.int",
        "a.names",
        "a.numbers",
        "a.nested",
    ]
    assert reader.metadata["a.int"] == 7
    assert reader.metadata["a.names"] == ["x", "", "é"]
    assert (
        reader.metadata["a.numbers"].tolist() == [1.0, 2.0, 3.0]
        and reader.metadata["a.numbers"].dtype == np.float32
    )
    assert reader.metadata["a.nested"][0].tolist() == [1, 2] and reader.metadata["a.nested"][1] == [
        "z"
    ]
    assert list(reader.kv_types.values()) == [
        "string",
        "uint32",
        "array[string]",
        "array[float32]",
        "array[array]",
    ]
    assert list(reader.tensors.values()) == [
        TensorInfo("one", (2, 3), 0, "F32", head, 24),
        TensorInfo("two", (32,), 8, "Q8_0", head + 32, 34),
    ]
    assert reader.data("one").view(np.float32).tolist() == [0, 1, 2, 3, 4, 5]
    assert reader.data("two").tobytes() == bytes(range(34))


def test_tensor_bytes_are_the_file_itself_and_outlive_the_reader(small, tmp_path):
    buffer = bytearray(small[0])
    data = GgufReader.from_bytes(buffer).data("two")
    buffer[-1] = 99
    assert data[-1] == 99 and not data.flags.writeable
    (tmp_path / "a.gguf").write_bytes(small[0])
    with GgufReader(tmp_path / "a.gguf") as reader:
        data, numbers = reader.data("two"), reader.metadata
    assert data.tobytes() == bytes(range(34)) and numbers["a.names"] == ["x", "", "é"]
    with pytest.raises(GgufError, match="a.gguf is closed"):
        reader.data("two")
    with GgufReader(tmp_path / "a.gguf") as reader:
        reader.close()  # earlier than the end of the block
    with pytest.raises(GgufError, match="'three' is not in a.gguf"):
        GgufReader(tmp_path / "a.gguf").data("three")


def test_pages_that_are_given_back_hold_what_they_held(small, tmp_path):
    (tmp_path / "a.gguf").write_bytes(small[0])
    for reader, mapped in ((GgufReader(tmp_path / "a.gguf"), True), (GgufReader(small[0]), False)):
        before = {name: bytes(reader.data(name)) for name in reader.tensors}
        for name in reader.tensors:
            assert reader.is_mapped(name) is mapped
            reader.release(name)
        assert {name: bytes(reader.data(name)) for name in reader.tensors} == before


def test_versions_2_and_3_are_the_same_layout(small):
    raw = bytearray(small[0])
    raw[4] = 2
    assert GgufReader(raw).tensors == GgufReader(small[0]).tensors
    assert GgufReader(raw).version == 2


def test_the_gguf_package_reads_the_same(cases):
    for file_name in (
        "bad_gguf/ok_base.gguf",
        "bad_gguf/align_8.gguf",
        "arch/gemma3/q8_0.gguf",
        "arch/mixtral/f32.gguf",
    ):
        path = cases / file_name
        theirs, ours = gguf.GGUFReader(path), GgufReader(path)
        fields = {
            name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")
        }
        assert list(ours.metadata) == list(fields)
        for name, field in fields.items():
            kinds = [kind.name.lower() for kind in field.types]
            assert ours.kv_types[name] == (
                f"array[{kinds[1]}]" if kinds[0] == "array" else kinds[0]
            )
            value = ours.metadata[name]
            assert (
                value.tolist() if isinstance(value, np.ndarray) else value
            ) == field.contents(), name
        assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
        for tensor in theirs.tensors:
            one = ours.tensors[tensor.name]
            found = (one.shape[::-1], one.type_name, one.offset, one.nbytes)
            assert found == (
                tuple(tensor.shape),
                tensor.tensor_type.name,
                tensor.data_offset,
                tensor.n_bytes,
            )
            assert ours.data(tensor.name).tobytes() == tensor.data.tobytes()


def test_bad_files_are_judged_as_the_manifest_says(cases):
    manifest = json.loads((cases / "bad_gguf/manifest.json").read_text())
    for name, entry in manifest.items():
        start = time.process_time()
        try:
            reader = GgufReader(cases / f"bad_gguf/{name}.gguf")
            loaded = [reader.metadata[key] is not None for key in reader.metadata] != []
        except GgufError as error:
            assert "\n" not in str(error)
            loaded = False
        assert time.process_time() - start < 2, name
        if entry["expect"] == "accept":
            assert loaded, name
        elif entry["expect"] == "reject":
            assert loaded == (name in WELL_FORMED or name.startswith("hp_")), name


def test_every_truncation_of_the_header_and_the_data_is_refused(small):
    raw, _ = small
    for length in range(len(raw)):
        with pytest.raises(GgufError):
            GgufReader(raw[:length])


def test_flipped_bytes_load_or_raise_one_line(small):
    raw, head = small
    rng = random.Random(7)
    for _ in range(4000):
        flipped = bytearray(raw)
        for _ in range(rng.choice((1, 1, 2, 4))):
            flipped[rng.randrange(head)] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        try:
            reader = GgufReader(flipped)
            assert all(
                reader.data(name).nbytes == one.nbytes for name, one in reader.tensors.items()
            )
            dict(reader.metadata)
        except OxillamaError as error:
            assert "\n" not in str(error)


def nested(depth):
    """A key of arrays within arrays."""
    return key(
        "deep", ARRAY, struct.pack("<IQ", ARRAY, 1) * (depth - 1) + struct.pack("<IQB", 0, 1, 5)
    )


F32, Q8 = 0, 8
BAD = {
    "magic": (file(magic=b"ggjt"), "starts with b'ggjt', wanted b'GGUF'"),
    "version 1": (file(version=1), "version 1, wanted 2 or 3"),
    "big-endian": (file(version=3 << 24), "big-endian"),
    "key count": (file([ARCH], counts=(0, 1 << 40)), "counts 1099511627776 keys, at most 3 fit"),
    "one key too many": (file([ARCH], counts=(0, 2)), "key 1 of 2 needs 8 bytes"),
    "tensor count": (file([ARCH], counts=(1 << 63, 1)), "tensors, at most"),
    "key twice": (file([ARCH, ARCH]), "key general.architecture appears twice"),
    "empty key": (file([key("", U32, b"1234")]), "wanted 1 to 65535"),
    "key not UTF-8": (file([key(b"\xff\xfe", U32, b"1234")]), "not UTF-8"),
    "key with a line break": (file([key("a\nb", U32, b"1234")]), "unprintable"),
    "long key not UTF-8": (
        file([key(b"\xff" * 60000, U32, b"1234")]),
        "of 60000 bytes is not UTF-8",
    ),
    "boolean of 2": (file([key("a", 7, b"\2" + bytes(8))]), "a: boolean byte 2, wanted 0 or 1"),
    "string not UTF-8": (
        file([key("a", STRING, string(b"ab\xff"))]),
        "a: not UTF-8 at byte 2 of 3",
    ),
    "arrays too deep": (file([nested(5)]), "deep: arrays nested deeper than 4"),
    "string overrun in an array": (
        file([key("a", ARRAY, struct.pack("<IQQQ", STRING, 2, 0, 1 << 63))]),
        "a string runs past the end of the file: truncated",
    ),
    "alignment 0": (
        file([key("general.alignment", U32, bytes(4))]),
        "general.alignment: found 0, wanted a power of two",
    ),
    "alignment 24": (
        file([key("general.alignment", U32, b"\x18\0\0\0")]),
        "found 24, wanted a power of two",
    ),
    "alignment a float": (
        file([key("general.alignment", 6, struct.pack("<f", 32))]),
        "found 32.0, wanted a power of two",
    ),
    "alignment an array": (
        file([key("general.alignment", ARRAY, struct.pack("<IQI", 4, 1, 32))]),
        r"found 'array\[uint32\]'",
    ),
    "tensor twice": (
        file([], [info("t", (1,), F32, 0), info("t", (1,), F32, 32)], bytes(64)),
        "tensor t appears twice",
    ),
    "tensor without a name": (file([], [info("", (1,), F32, 0)], bytes(32)), "wanted 1 to 64"),
    "tensor name of 65 bytes": (
        file([], [info("t" * 65, (1,), F32, 0)], bytes(32)),
        "name of 65 bytes, wanted 1 to 64",
    ),
    "five dims": (file([], [info("t", (1,) * 5, F32, 0)], bytes(32)), "5 dims, wanted 0 to 4"),
    "size 0": (
        file([], [info("t", (4, 0), F32, 0)], bytes(32)),
        r"shape \(0, 4\), wanted sizes from 1",
    ),
    "size negative": (
        file([], [info("t", (2**64 - 1,), F32, 0)], bytes(32)),
        "wanted sizes from 1",
    ),
    "size overflows": (
        file([], [info("t", (1 << 32, 1 << 32), F32, 0)], bytes(32)),
        "the file holds 32",
    ),
    "withdrawn type": (
        file([], [info("t", (32,), 4, 0)], bytes(64)),
        "tensor t: tensor type 4 .Q4_2., withdrawn by ggml",
    ),
    "half a block": (
        file([], [info("t", (48,), Q8, 0)], bytes(64)),
        "tensor t: row of 48 values, Q8_0 needs a multiple of 32",
    ),
    "scalar of blocks": (file([], [info("t", (), Q8, 0)], bytes(64)), "row of 1 values"),
    "offset off the grid": (
        file([], [info("t", (1,), F32, 16)], bytes(64)),
        "offset 16, wanted a multiple of 32",
    ),
    "offset past the end": (
        file([], [info("t", (1,), F32, 64)], bytes(64)),
        "bytes 64 to 68 of the data, the file holds 64: truncated",
    ),
    "offset wraps": (file([], [info("t", (16,), F32, 2**64 - 32)], bytes(64)), "the file holds 64"),
    "overlap": (
        file([], [info("a", (16,), F32, 0), info("b", (1,), F32, 32)], bytes(96)),
        "b: offset 32 overlaps a, which ends at 64",
    ),
    "no bytes": (b"", "starts with b''"),
}


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "a Git LFS pointer"),
        (b"\n<!DOCTYPE html><html>", "a web page"),
        (b"<HTML>", "a web page"),
        (b"<?xml version='1.0'?><Error>", "an XML answer of a server"),
        (b'{"error": "no access"}', "JSON"),
        (b"PK\x03\x04abcd", "a zip archive"),
        (b"\x1f\x8b\x08abc", "compressed by gzip"),
        (b"tjgg\x03\x00\x00\x00", "a model of llama.cpp from before GGUF"),
        (struct.pack("<Q", 24) + b'{"a":{"dtype":"F32"}}', "safetensors: their folder is loaded"),
    ],
)
def test_a_file_in_a_models_place_is_named(head, kind):
    with pytest.raises(GgufError, match=f"wanted b'GGUF': not a GGUF file but {kind}"):
        GgufReader(head + bytes(80))


def test_an_unknown_file_is_not_guessed():
    with pytest.raises(GgufError, match="not a GGUF file$"):
        GgufReader(b"root:x:0:0" + bytes(80))


@pytest.mark.parametrize("name", BAD)
def test_a_lying_header_is_refused_by_name(name):
    raw, message = BAD[name]
    with pytest.raises(GgufError, match=message):
        dict(GgufReader(raw).metadata)


def test_what_is_unusual_but_true_is_accepted():
    assert GgufReader(file()).tensors == {}
    assert GgufReader(file([], [info("s", (), F32, 0)], bytes(32))).tensors["s"].shape == ()
    assert GgufReader(file([], [info("t" * 64, (1,), F32, 0)], bytes(4))).data("t" * 64).nbytes == 4
    eight = key("general.alignment", U32, b"\x08\0\0\0")
    assert (
        GgufReader(file([eight], [info("t", (1,), F32, 8)], bytes(16), alignment=8)).alignment == 8
    )
    assert GgufReader(file([nested(4)])).metadata["deep"][0][0][0].tolist() == [5]
    swapped = GgufReader(file([], [info("b", (1,), F32, 32), info("a", (1,), F32, 0)], bytes(64)))
    assert list(swapped.tensors) == ["b", "a"]


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.0.attn_q.weight", "output.weight"])
def test_a_type_that_its_bytes_cannot_be_is_refused(name):
    """A tensor of numbers whose header names a type of fewer bytes, first, in between and last; one
    of more bytes does not fit either.
    """
    names = ("token_embd.weight", "blk.0.attn_q.weight", "output.weight")
    data = np.random.default_rng(0).standard_normal((3, 8, 256)).astype(np.float32)
    for given in TENSOR_TYPES:
        shapes = [
            info(each, (256, 8), given.id if each == name else F32, 8192 * at)
            for at, each in enumerate(names)
        ]
        raw = file([ARCH], shapes, data.tobytes())
        if given.nbytes((8, 256)) == 8192:  # nothing can be known
            assert GgufReader(raw).tensors[name].type_name == given.name
            continue
        with pytest.raises(GgufError, match=f"tensor {name}|overlaps {name}"):
            GgufReader(raw)


def test_gaps_of_zeros_are_padding():
    raw = file([], [info("a", (1,), F32, 0), info("b", (1,), F32, 96)], bytes(200))
    assert list(GgufReader(raw).tensors) == ["a", "b"]
    for at in (32, 95, 128, 199):
        data = bytearray(200)
        data[at] = 1
        with pytest.raises(GgufError, match="bytes of no tensor after tensor"):
            GgufReader(file([], [info("a", (1,), F32, 0), info("b", (1,), F32, 96)], bytes(data)))


def test_mutants_of_every_case_raise_typed_errors_only(cases):
    """Whatever is changed in a header: reading, and asking for any key as any kind, ends in a value
    or in an error of this package.
    """
    rng = random.Random(5)
    files = [path.read_bytes() for path in sorted((cases / "bad_gguf").glob("*.gguf"))]
    loaded = 0
    for _ in range(600):
        mutant = bytearray(rng.choice(files))
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(min(len(mutant), 9000) or 1)
            many = struct.pack("<Q", rng.choice((0, 1, 9, 2**31, 2**32 - 1, 2**63, 2**64 - 1)))
            kind = rng.randrange(4)
            if kind == 0:
                mutant[at : at + 1] = bytes([rng.randrange(256)])
            elif kind == 1:
                mutant[at : at + 8] = many
            elif kind == 2:
                mutant[at : at + 4] = many[:4]
            else:
                del mutant[at : at + rng.choice((1, 4, 8))]
        with contextlib.suppress(OxillamaError), GgufReader(bytes(mutant)) as reader:
            loaded += 1
            keys = Keys(reader.metadata, "")
            for name in rng.sample(sorted(reader.metadata), min(4, len(reader.metadata))):
                for ask in (keys.integer, keys.number, keys.flag, keys.text, keys.integers):
                    with contextlib.suppress(OxillamaError):
                        ask(name)
                for ask in (keys.numbers, keys.flags, keys.texts):
                    with contextlib.suppress(OxillamaError):
                        ask(name)
                with contextlib.suppress(OxillamaError):
                    keys.per_layer(name, 2)
    assert loaded > 30


def test_a_hostile_header_costs_no_more_than_a_fixed_bound():
    lies = [
        BAD[name][0]
        for name in ("key count", "tensor count", "size overflows", "string overrun in an array")
    ]
    lies.append(file([key("a", ARRAY, struct.pack("<IQ", 12, 1 << 40))]))
    for raw in lies:
        assert peak_of_reading(raw) < 1 << 20
    # 65536 of each are allowed: an eighth of them must stay within an eighth of 64 MiB
    count = 65536 // 8
    many = [
        file([key(f"k{index:04x}", 0, b"\0") for index in range(count)]),
        file(
            [],
            [info(f"t{index:04x}", (1, 1, 1, 1), 24, index * 32) for index in range(count)],
            bytes(count * 32),
        ),
    ]
    for raw in many:
        assert peak_of_reading(raw) < 8 << 20
    for counts in ((0, 65537), (65537, 0)):
        with pytest.raises(GgufError, match="at most 65536 fit"):
            GgufReader(file(counts=counts) + bytes(4 << 20))


def peak_of_reading(raw):
    """Bytes of memory that opening `raw`, or refusing it, takes at most."""
    tracemalloc.start()
    try:
        with contextlib.suppress(GgufError):
            GgufReader(raw)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_large_vocabulary_opens_without_decoding_it():
    count = 150_000
    tokens = b"".join(string(f"token{index}") for index in range(count))
    raw = file([ARCH, key("tokens", ARRAY, struct.pack("<IQ", STRING, count) + tokens)])
    assert peak_of_reading(raw) < 2 << 20  # the decoded strings take several times that
    reader = GgufReader(raw)
    assert reader.metadata["tokens"][-1] == "token149999"
    assert reader.metadata["tokens"] is reader.metadata["tokens"]


def test_a_file_is_named_with_its_folder(tmp_path, small):
    (tmp_path / "a.gguf").write_bytes(b"root:x:0:0" + bytes(80))
    with pytest.raises(GgufError) as caught:
        GgufReader(tmp_path / "a.gguf")
    assert str(caught.value).startswith(f"{tmp_path / 'a.gguf'}: starts with b'root', wanted")
    (tmp_path / "b.gguf").write_bytes(small[0][:40])
    with pytest.raises(GgufError) as caught:
        GgufReader(tmp_path / "b.gguf")
    assert str(caught.value).startswith(f"{tmp_path / 'b.gguf'}: ")
