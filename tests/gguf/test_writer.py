"""What is written is read back equal, by us and by the gguf package, and a file appears only when
it is whole.
"""

import os
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from oxillama.errors import GgufError, ModelError
from oxillama.gguf import TENSOR_TYPES, GgufReader, GgufWriter

INTEGERS = {f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)}
INTEGERS |= {f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = st.one_of(
    st.tuples(st.just("string"), TEXT),
    st.tuples(st.just("bool"), st.booleans()),
    st.tuples(st.just("float32"), st.floats(width=32, allow_nan=False)),
    st.tuples(st.just("float64"), st.floats(allow_nan=False)),
    *(st.tuples(st.just(name), st.integers(*limits)) for name, limits in INTEGERS.items()),
)
NUMPY_ARRAYS = st.sampled_from([*INTEGERS, "float32", "float64", "bool"]).flatmap(
    lambda name: st.tuples(st.just(f"array[{name}]"), arrays(name, st.integers(0, 8)))
)
VALUES = st.one_of(
    SCALARS, NUMPY_ARRAYS, st.tuples(st.just("array[string]"), st.lists(TEXT, max_size=5))
)


def same(left, right):
    """Equal values of equal types, NaN included."""
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.tobytes() == right.tobytes()
    return type(left) is type(right) and left == right


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.dictionaries(st.from_regex(r"[a-z][a-z_.]{0,20}", fullmatch=True), VALUES, max_size=6))
def test_every_kind_of_value_comes_back_as_it_was(tmp_path, values):
    values.pop("general.architecture", None)
    values.pop("general.alignment", None)
    with GgufWriter(tmp_path / "a.gguf", "llama") as writer:
        for key, (kind, value) in values.items():
            writer.add(key, value, kind)
    with GgufReader(tmp_path / "a.gguf") as reader:
        assert list(reader.metadata) == ["general.architecture", *values]
        for key, (kind, value) in values.items():
            assert reader.kv_types[key] == kind
            assert same(reader.metadata[key], value)


@pytest.mark.parametrize(
    "value, kind",
    [
        (True, "bool"),
        (0, "uint32"),
        (-1, "int32"),
        (2**32, "int64"),
        (2**63, "uint64"),
        (1.5, "float32"),
        (np.float64(1.5), "float64"),
        (np.uint8(3), "uint8"),
        ("é", "string"),
        ([1, -2], "array[int32]"),
        ([1, 2**31], "array[uint32]"),
        ([1, 2.5], "array[float32]"),
        ([True], "array[bool]"),
        (["a", ""], "array[string]"),
        ([np.int64(1), 2], "array[int32]"),
        ([["a"], [1, 2]], "array[array]"),
        (np.arange(3, dtype=np.int16), "array[int16]"),
        (np.arange(3, dtype=">i4"), "array[int32]"),
    ],
)
def test_a_kind_not_named_is_the_usual_one(tmp_path, value, kind):
    with GgufWriter(tmp_path / "a.gguf", "llama") as writer:
        writer.add("k", value)
    reader = GgufReader(tmp_path / "a.gguf")
    assert reader.kv_types["k"] == kind
    found = reader.metadata["k"]
    if kind == "array[array]":
        assert found[0] == ["a"] and found[1].tolist() == [1, 2]
    else:
        assert np.array_equal(found, value)


def test_a_file_copied_through_reader_and_writer_is_the_same_bytes(cases, tmp_path):
    for name in (
        "arch/llama/q8_0.gguf",
        "bad_gguf/align_8.gguf",
        "arch/gemma3/f32.gguf",
        "tokenizers/llama-spm.gguf",
    ):
        reader = GgufReader(cases / name)
        made = tmp_path / Path(name).name
        with GgufWriter(
            made, reader.metadata["general.architecture"], alignment=reader.alignment
        ) as writer:
            for key in reader.metadata:
                if key not in ("general.architecture", "general.alignment"):
                    writer.add(key, reader.metadata[key], reader.kv_types[key])
            for info in reader.tensors.values():
                writer.declare(info.name, info.type_name, info.shape)
            # any order of writing gives the order of declaring
            for info in reversed(reader.tensors.values()):
                writer.write(info.name, reader.data(info.name))
        copy = GgufReader(made)
        for key in reader.metadata:
            if key != "general.alignment":  # the default is not written out
                assert copy.kv_types[key] == reader.kv_types[key] and same(
                    copy.metadata[key], reader.metadata[key]
                )
        assert list(copy.tensors) == list(reader.tensors)
        for info in reader.tensors.values():
            other = copy.tensors[info.name]
            assert (other.shape, other.type_id) == (info.shape, info.type_id)
            assert copy.data(info.name).tobytes() == reader.data(info.name).tobytes()
        if name == "arch/llama/q8_0.gguf":
            assert made.read_bytes() == (cases / name).read_bytes()


def test_every_tensor_type_is_written_and_the_gguf_package_reads_it(tmp_path):
    rng = np.random.default_rng(1)
    blocks = {
        kind.name: rng.integers(0, 256, (3, 2 * kind.block_bytes), np.uint8)
        for kind in TENSOR_TYPES
    }
    # of which Q8_1 has another size there (see test_types)
    known = {kind.name for kind in gguf.GGMLQuantizationType} - {"Q8_1"}
    with GgufWriter(tmp_path / "a.gguf", "llama", alignment=64) as writer:
        for name, data in blocks.items():
            if name in known:
                writer.add_tensor(name, data, type_name=name)
    ours, theirs = GgufReader(tmp_path / "a.gguf"), gguf.GGUFReader(tmp_path / "a.gguf")
    assert ours.alignment == theirs.alignment == 64
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert (info.shape[::-1], info.type_name, info.offset) == (
            tuple(tensor.shape),
            tensor.name,
            tensor.data_offset,
        )
        assert (
            ours.data(tensor.name).tobytes()
            == tensor.data.tobytes()
            == blocks[tensor.name].tobytes()
        )


def test_arrays_are_stored_as_they_are(tmp_path):
    plain = {
        "f32": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "f64": np.arange(3, dtype=np.float64),
        "f16": np.arange(3, dtype=np.float16),
        "i64": np.arange(3, dtype=np.int64),
        "swapped": np.arange(3, dtype=">i2"),
        "scalar": np.array(7, np.float32),
    }
    with GgufWriter(tmp_path / "a.gguf", "llama") as writer:
        for name, array in plain.items():
            writer.add_tensor(name, array)
        writer.add_tensor("raw", b"\1\2\3\4", type_name="F32", shape=(1,))
        writer.add_tensor("bits", np.array([1, 2], np.uint16), type_name="BF16")
    reader = GgufReader(tmp_path / "a.gguf")
    for name, array in plain.items():
        info = reader.tensors[name]
        assert info.shape == array.shape
        assert (
            reader.data(name).view(array.dtype.newbyteorder("<")).reshape(info.shape).tolist()
            == array.tolist()
        )
    assert (
        reader.tensors["swapped"].type_name == "I16" and reader.tensors["bits"].type_name == "BF16"
    )
    assert reader.size % 32 == 0


BAD_KEYS = [
    ("k", 1, "uint9", "unknown kind 'uint9'"),
    ("k", 256, "uint8", "256 does not fit uint8"),
    ("k", 1e300, "float32", "does not fit float32"),
    ("k", 1.5, "int32", "1.5 is not a int32"),
    ("k", 1, "bool", "1 is not a bool"),
    ("k", True, "int32", "True is not a int32"),
    ("k", 2**64, None, "does not fit"),
    ("k", [], None, "an empty list has no kind"),
    ("k", ["a", 1], None, "items of several kinds"),
    ("k", ["a", 1], "array[string]", "1 is not a string"),
    ("k", np.zeros((2, 2)), None, "not a one-dimensional array"),
    ("k", np.zeros(2, complex), None, "numpy complex128 has no kind"),
    ("k", np.array([1.5]), "array[int32]", "1.5 is not a int32"),
    ("k", np.array([1, 2**40]), "array[int32]", "1099511627776 does not fit int32"),
    ("k", np.array([1, 0]), "array[bool]", "1 is not a bool"),
    ("k", [1], "array", "unknown kind 'array'"),
    ("k", [True, 2], None, "items of several kinds"),
    ("k", object(), None, "a object has no kind"),
    ("k", "\ud800", None, "cannot be written as UTF-8"),
    ("k", [[[[[1]]]]], None, "nested deeper than 4"),
    ("", 1, None, "wanted 1 to 65535"),
    ("a\nb", 1, None, "unprintable"),
    ("general.architecture", "x", None, "appears twice"),
    ("general.alignment", 8, None, "given to the writer itself"),
]


@pytest.mark.parametrize("key, value, kind, message", BAD_KEYS)
def test_a_key_the_reader_would_refuse_is_refused(tmp_path, key, value, kind, message):
    with pytest.raises(GgufError, match=message):
        GgufWriter(tmp_path / "a.gguf", "llama").add(key, value, kind)


BAD_TENSORS = [
    ({"name": "t" * 65, "data": np.zeros(1, np.float32)}, "name 't+' of 65 bytes"),
    ({"name": "t", "data": np.zeros((1,) * 5, np.float32)}, "at most 4 sizes"),
    ({"name": "t", "data": np.zeros((2, 0), np.float32)}, "sizes from 1"),
    ({"name": "t", "data": np.zeros(2, complex)}, "no tensor type stores numpy complex128"),
    ({"name": "t", "data": b"abcd"}, "bytes need a type_name"),
    (
        {"name": "t", "data": "abcd", "type_name": "F32", "shape": (1,)},
        "a str, wanted a numpy array or",
    ),
    (
        {"name": "t", "data": np.zeros(4, np.float32), "type_name": "F16"},
        "numpy float32, F16 is stored from float16",
    ),
    (
        {"name": "t", "data": np.zeros(256, np.float32), "type_name": "Q4_K"},
        "numpy float32, Q4_K is stored from its blocks as uint8",
    ),
    (
        {"name": "t", "data": np.zeros((2, 3), np.float32), "shape": (3, 2)},
        r"data of shape \(2, 3\), declared \(3, 2\)",
    ),
    (
        {"name": "t", "data": bytes(5), "type_name": "F32", "shape": (1,)},
        r"data of 5 bytes, F32 of shape \(1,\) needs 4",
    ),
    ({"name": "t", "data": bytes(34), "type_name": "Q8_0", "shape": (33,)}, "row of 33 values"),
    (
        {"name": "t", "data": bytes(34), "type_name": "Q9", "shape": (32,)},
        "unknown tensor type 'Q9'",
    ),
]


@pytest.mark.parametrize("given_, message", BAD_TENSORS)
def test_a_tensor_the_reader_would_refuse_is_refused_and_leaves_no_trace(tmp_path, given_, message):
    with GgufWriter(tmp_path / "a.gguf", "llama") as writer:
        with pytest.raises(GgufError, match=message):
            writer.add_tensor(**given_)
        writer.add_tensor("t", np.ones(1, np.float32))
        with pytest.raises(GgufError, match="tensor t appears twice"):
            writer.add_tensor("t", np.ones(1, np.float32))
    assert GgufReader(tmp_path / "a.gguf").data("t").view(np.float32).tolist() == [1.0]


def test_a_file_appears_only_when_it_is_whole(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(b"before")
    with pytest.raises(RuntimeError), GgufWriter(path, "llama") as writer:
        writer.declare("t", "F32", (2,))
        writer.write("t", np.zeros(2, np.float32))
        raise RuntimeError
    with (
        pytest.raises(GgufError, match="tensor t: declared but never written"),
        GgufWriter(path, "llama") as writer,
    ):
        writer.declare("s", "F32", (1,))
        writer.declare("t", "F32", (1,))
        writer.write("s", np.zeros(1, np.float32))
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]
    with GgufWriter(path, "llama") as writer:
        writer.declare("t", "F32", (1,))
        assert path.read_bytes() == b"before"
        writer.write("t", np.zeros(1, np.float32))
        with pytest.raises(GgufError, match="the header is written already"):
            writer.add("late", 1)
        with pytest.raises(GgufError, match="data was given already"):
            writer.write("t", np.zeros(1, np.float32))
        with pytest.raises(GgufError, match="'u' was not declared"):
            writer.write("u", b"")
    assert GgufReader(path).tensors["t"].nbytes == 4 and list(tmp_path.iterdir()) == [path]
    with pytest.raises(GgufError, match="the writer is finished"):
        writer.finish()


def test_a_tensor_in_pieces_is_the_same_tensor(tmp_path):
    data = np.arange(60, dtype=np.float32).reshape(5, 12)
    for name, cuts in (("a", [0, 5]), ("b", [0, 1, 1, 4, 5])):
        with GgufWriter(tmp_path / f"{name}.gguf", "llama") as writer:
            writer.declare("t", "F32", (5, 12))
            writer.declare("u", "F32", (12,))
            writer.write("u", data[0])
            writer.write_pieces("t", (data[at:to] for at, to in zip(cuts, cuts[1:])))
            with pytest.raises(GgufError, match="data was given already"):
                writer.write_pieces("t", [data])
    with GgufReader(tmp_path / "b.gguf") as reader:
        assert reader.data("t").tobytes() == data.tobytes()
        assert reader.data("u").tobytes() == data[0].tobytes()
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


@pytest.mark.parametrize("pieces", (2, 4))
def test_pieces_that_are_not_the_tensor_are_refused_and_leave_no_file(pieces, tmp_path):
    data = np.zeros((1, 12), np.float32)
    said = f"t: data of {48 * pieces} bytes, F32 .* needs 144"
    with (
        pytest.raises(GgufError, match=said),
        GgufWriter(tmp_path / "a.gguf", "llama") as writer,
    ):
        writer.declare("t", "F32", (3, 12))
        writer.write_pieces("t", [data] * pieces)
    assert list(tmp_path.iterdir()) == []


def test_a_path_where_no_file_can_be_is_refused_before_anything_is_added(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pipes = ["pipe"] if hasattr(os, "mkfifo") else []
    for pipe in pipes:
        os.mkfifo(pipe)
    os.mkdir("folder")
    for path, message in (
        *((pipe, "pipe: cannot be written: no regular file") for pipe in pipes),
        ("folder", "folder: cannot be written: a folder"),
        (".", ".: cannot be written: a folder"),
        ("", ".: cannot be written: a folder"),
        ("/", "/: cannot be written: a folder"),
        ("no/a.gguf", "no/a.gguf: cannot be written: there is no such folder"),
        ("a\0b", "cannot be written: a name with a zero byte"),
    ):
        with pytest.raises(GgufError, match=message):
            GgufWriter(path, "llama")
    writer = GgufWriter("a.gguf", "llama")
    os.mkdir("a.gguf")  # since
    with pytest.raises(GgufError, match="a.gguf: cannot be written: a folder"):
        writer.finish()
    assert sorted(os.listdir()) == ["a.gguf", "folder", *pipes]
    assert all(Path(pipe).is_fifo() for pipe in pipes)


def test_a_link_keeps_being_one_and_a_name_may_be_as_long_as_names_may_be(tmp_path, links):
    for name in ("there.gguf", "n" * 250 + ".gguf"):
        (tmp_path / "link").symlink_to(name)
        with GgufWriter(tmp_path / "link", "llama") as writer:
            writer.add("general.name", name)
        assert (
            os.readlink(tmp_path / "link") == name
            and GgufReader(tmp_path / name).metadata["general.name"] == name
        )
        (tmp_path / "link").unlink()


def test_a_whole_file_has_no_name_of_a_part(tmp_path):
    with pytest.raises(
        GgufError,
        match="m-00001-of-00002.gguf: the name of one file of 2, wanted that of a whole one",
    ):
        GgufWriter(tmp_path / "m-00001-of-00002.gguf", "llama")
    with pytest.raises(GgufError, match="shard 3 of 2, wanted 1 to 2"):
        GgufWriter(tmp_path / "m-00003-of-00002.gguf", "llama", part=True)
    path = GgufWriter(tmp_path / "m-00001-of-00001.gguf", "llama").finish()
    assert GgufReader(path).paths == (path,) and list(tmp_path.iterdir()) == [path]


def test_a_disk_that_takes_no_more_is_said_and_keeps_nothing(tmp_path):
    resource = pytest.importorskip("resource", reason="limits of a process are of Unix")
    writer = GgufWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("a", np.ones(1500, np.float32))  # some of it fits
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(GgufError, match="m.gguf: cannot be written: File too large"):
            writer.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_the_architecture_and_alignment_are_checked(tmp_path):
    with pytest.raises(ModelError, match="general.architecture"):
        GgufWriter(tmp_path / "a.gguf", "../x")
    for alignment in (0, 3, "32", 2**32):
        with pytest.raises(GgufError, match="general.alignment"):
            GgufWriter(tmp_path / "a.gguf", "llama", alignment=alignment)
