"""Importance matrices are read from both kinds of file, written in the newer one, and refused when
malformed.
"""

import contextlib
import os
import random
import re
import struct
import warnings

import numpy as np
import pytest

from oxillama.errors import OxillamaError, QuantError
from oxillama.gguf import GgufReader, GgufWriter
from oxillama.quant import check_imatrix_path, read_imatrix, write_imatrix

SUMS = {
    "blk.0.attn_q.weight": np.float32([1, 4, 9, 16]),
    "blk.0.ffn_up_exps.weight": np.float32([[2, 4], [8, 6], [5, 5]]),
}
COUNTS = {"blk.0.attn_q.weight": 2, "blk.0.ffn_up_exps.weight": [2, 4, 0]}


def legacy(entries, tail=b""):
    data = struct.pack("<i", len(entries))
    for name, calls, values in entries:
        data += (
            struct.pack("<i", len(name))
            + name.encode()
            + struct.pack("<ii", calls, len(values))
            + np.float32(values).tobytes()
        )
    return data + tail


def test_written_sums_come_back_as_means(tmp_path):
    path = write_imatrix(
        tmp_path / "a.gguf", SUMS, COUNTS, chunk_count=3, chunk_size=512, datasets=["story.txt"]
    )
    found = read_imatrix(path)
    assert list(found) == list(SUMS)
    assert np.array_equal(found["blk.0.attn_q.weight"], np.float32([0.5, 2, 4.5, 8]))
    # no token met the third
    assert np.array_equal(found["blk.0.ffn_up_exps.weight"], np.float32([[1, 2], [2, 1.5], [1, 1]]))
    with GgufReader(path) as reader:
        keys = {key: reader.metadata[key] for key in reader.metadata}
    assert keys["general.type"] == "imatrix"
    assert list(keys["imatrix.datasets"]) == ["story.txt"]
    assert (keys["imatrix.chunk_count"], keys["imatrix.chunk_size"]) == (3, 512)


@pytest.mark.parametrize("tail", [b"", struct.pack("<ii", 7, 5) + b"story"])
def test_older_files_hold_sums_over_calls(tmp_path, tail):
    path = tmp_path / "a.dat"
    path.write_bytes(legacy([("one", 4, [4, 8, 2]), ("two", 0, [3, 3])], tail))
    found = read_imatrix(path)
    assert np.array_equal(found["one"], np.float32([1, 2, 0.5]))
    assert np.array_equal(found["two"], np.float32([3, 3]))  # of no calls: means already


@pytest.mark.parametrize("cut", range(0, 41, 3))
def test_a_truncated_older_file_is_refused(tmp_path, cut):
    path = tmp_path / "a.dat"
    path.write_bytes(legacy([("one", 4, [4, 8, 2]), ("two", 1, [3, 3])])[:cut])
    with pytest.raises(QuantError, match="a.dat: "):
        read_imatrix(path)


@pytest.mark.parametrize(
    "entries, why",
    [
        ([("one", 1, [1]), ("one", 1, [1])], "one: appears twice"),
        ([("one", 1, [])], "one: found 0 values and 1 calls, wanted at least 1 and 0"),
        ([("one", -7, [4])], "one: found 1 values and -7 calls, wanted at least 1 and 0"),
        ([("one", 1, [4])], r"a.dat: ends at 39, its last field at 31"),
        ([("one", 1, [1, np.nan])], r"one: importance \(1,\) is nan"),
        ([("one", 1, [-1, 1])], r"one: importance \(0,\) is -1"),
    ],
)
def test_a_malformed_older_file_is_refused(tmp_path, entries, why):
    path = tmp_path / "a.dat"
    path.write_bytes(legacy(entries) + b"\0" * 16)
    with pytest.raises(QuantError, match=why):
        read_imatrix(path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(QuantError, match="cannot be read"):
        read_imatrix(tmp_path / "none.dat")
    with pytest.raises(QuantError, match="cannot be read: embedded null byte"):
        read_imatrix("a\0b")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(QuantError, match="pipe: not a regular file, wanted an importance mat"):
            read_imatrix(tmp_path / "pipe")
    noise = tmp_path / "noise.dat"
    noise.write_bytes(b"\xff" * 64)
    with pytest.raises(QuantError, match="not an imatrix file"):
        read_imatrix(noise)
    with GgufWriter(tmp_path / "model.gguf", "llama") as writer:
        writer.add_tensor("x.in_sum2", np.ones(4, np.float32))
    told = r"general.type is None, wanted 'imatrix': this is a model \(llama\)"
    with pytest.raises(QuantError, match=told):
        read_imatrix(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    "tensors, why",
    [
        ({}, "no tensor named"),
        ({"a.in_sum2": np.ones((1, 4), np.float32)}, "wanted F32"),
        (
            {"a.in_sum2": np.ones((1, 4), np.float16), "a.counts": np.ones((1, 1), np.float32)},
            "F16",
        ),
        (
            {"a.in_sum2": np.ones((2, 4), np.float32), "a.counts": np.ones((3, 1), np.float32)},
            "3 counts, a.in_sum2 has 2 matrices",
        ),
        (
            {"a.in_sum2": np.float32([[1, -2]]), "a.counts": np.ones((1, 1), np.float32)},
            r"a.in_sum2: sum \(0, 1\) is -2",
        ),
        (
            {"a.in_sum2": np.ones((1, 4), np.float32), "a.counts": np.float32([[np.nan]])},
            r"a.counts: count \(0, 0\) is nan",
        ),
        (
            {"a.in_sum2": np.ones((1, 4), np.float32), "a.counts": np.float32([[np.inf]])},
            r"a.counts: count \(0, 0\) is inf",
        ),
        (
            {"a.in_sum2": np.ones((2, 4), np.float32), "a.counts": np.float32([[1], [-5]])},
            r"a.counts: count \(1, 0\) is -5",
        ),
        (
            {"a.in_sum2": np.float32([[np.nan]]), "a.counts": np.float32([[0]])},
            r"a.in_sum2: sum \(0, 0\) is nan",
        ),
    ],
)
def test_a_malformed_newer_file_is_refused(tmp_path, tensors, why):
    with GgufWriter(tmp_path / "a.gguf", "imatrix") as writer:
        writer.add("general.type", "imatrix")
        for name, values in tensors.items():
            writer.add_tensor(name, values)
    with pytest.raises(QuantError, match=why):
        read_imatrix(tmp_path / "a.gguf")


def test_a_name_with_no_room_for_its_suffix_is_refused_by_itself(tmp_path):
    sums = {"b" * 56: np.ones(4, np.float32)}
    path = write_imatrix(tmp_path / "a.gguf", sums, {"b" * 56: 2})
    assert {name: list(values) for name, values in read_imatrix(path).items()} == {
        "b" * 56: [0.5] * 4
    }
    with pytest.raises(
        QuantError, match="^b{57}: a name of 57 bytes, wanted at most 56 to write its importances"
    ):
        write_imatrix(
            tmp_path / "b.gguf", sums | {"b" * 57: sums["b" * 56]}, {"b" * 56: 2, "b" * 57: 2}
        )
    assert list(tmp_path.iterdir()) == [path]


def test_a_sample_s_name_that_is_no_utf_8_is_written_with_escapes(tmp_path):
    path = write_imatrix(
        tmp_path / "a.gguf", SUMS, COUNTS, datasets=[os.fsdecode(b"caf\xe9.txt"), "café.txt"]
    )
    with GgufReader(path) as reader:
        assert list(reader.metadata["imatrix.datasets"]) == [r"caf\udce9.txt", "café.txt"]


def test_a_path_where_nothing_can_be_written_is_said_and_one_where_it_can_left_as_it_was(tmp_path):
    for path in (tmp_path / "none" / "a.gguf", tmp_path):
        with pytest.raises(QuantError, match=f"^{re.escape(str(path))}: cannot be written: "):
            check_imatrix_path(path)
    (tmp_path / "old").write_bytes(b"old")
    check_imatrix_path(tmp_path / "old")
    check_imatrix_path(tmp_path / "new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_only_whole_finite_sums_are_written(tmp_path):
    path = tmp_path / "a.gguf"
    for sums, counts in [
        ({"a": np.float32([1, np.inf])}, {"a": 1}),
        ({"a": np.float32([1, -1])}, {"a": 1}),
        ({"a": np.float32([1, 1])}, {"a": -1}),
        ({"a": np.ones((2, 4))}, {"a": [1, 2, 3]}),
        ({"a": np.ones(4)}, {}),
    ]:
        with pytest.raises(QuantError, match="^a: "):
            write_imatrix(path, sums, counts)
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "value", [np.arange(3, dtype=np.int32), ["imatrix", "imatrix"], 7, True, "model"]
)
def test_a_general_type_that_is_not_its_name_is_refused(tmp_path, value):
    with GgufWriter(tmp_path / "a.gguf", "imatrix") as writer:
        writer.add("general.type", value)
        writer.add_tensor("w.in_sum2", np.ones((1, 4), np.float32))
        writer.add_tensor("w.counts", np.ones((1, 1), np.float32))
    with pytest.raises(QuantError, match="general.type is .*, wanted 'imatrix'"):
        read_imatrix(tmp_path / "a.gguf")


def test_mutants_of_both_kinds_are_read_or_refused_by_a_typed_error(tmp_path):
    rng = random.Random(3)
    path = write_imatrix(tmp_path / "a.gguf", SUMS, COUNTS, chunk_count=3, datasets=["s.txt"])
    files = [path.read_bytes(), legacy([("a", 3, [1, 2]), ("b", 0, [3])])]
    read = 0
    for at in range(500):
        mutant = bytearray(files[at % 2])
        for _ in range(rng.choice((1, 2, 4))):
            place = rng.randrange(len(mutant))
            mutant[place : place + 1] = bytes([rng.choice((0, 1, 9, 127, 128, 255))])
            if rng.random() < 0.1:
                del mutant[place : place + rng.choice((1, 4, 8))]
        path.write_bytes(mutant)
        with contextlib.suppress(OxillamaError), warnings.catch_warnings():
            warnings.simplefilter("error")
            read += bool(read_imatrix(path))
    assert read > 50


def test_several_files_count_all_their_tokens(tmp_path):
    one, two, older = (tmp_path / name for name in ("one.gguf", "two.gguf", "old.dat"))
    write_imatrix(one, {"a": [2.0, 6.0], "e": [[0.0], [4.0]]}, {"a": 2, "e": [0, 1]})
    write_imatrix(
        two, {"a": [8.0, 0.0], "e": [[3.0], [0.0]], "b": [9.0]}, {"a": 6, "e": [3, 1], "b": 3}
    )
    found = read_imatrix(one, two)
    assert {name: values.tolist() for name, values in found.items()} == {
        "a": [1.25, 0.75],  # not the mean of the means, 1.17 and 1.5
        "e": [[1.0], [2.0]],
        "b": [3.0],
    }
    assert read_imatrix(one)["a"].tolist() == [1.0, 3.0]
    write_imatrix(two, {"a": [8.0]}, {"a": 6})
    with pytest.raises(QuantError, match=r"two.gguf: a: sums of shape \(1, 1\), the files before"):
        read_imatrix(one, two)
    older.write_bytes(bytes(40))
    for files in ((one, older), (older, one)):
        with pytest.raises(
            QuantError, match="old.dat: an older importance matrix, or none, togeth"
        ):
            read_imatrix(*files)
