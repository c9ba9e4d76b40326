"""A path, bytes, a set of shards and a hub name all lead to the same tensors, and each fault is
named.
"""

import os
import sys
import types

import numpy as np
import pytest

from oxillama.errors import ConfigError, GgufError
from oxillama.gguf import GgufReader, GgufWriter


def shard(path, number, count, tensors, total, **more):
    """One file of a set, holding the named one-value tensors."""
    with GgufWriter(path, "llama", part=True) as writer:
        writer.add("split.no", number, "uint16")
        writer.add("split.count", count, "uint16")
        writer.add("split.tensors.count", total, "int32")
        for key, value in more.items():
            writer.add(key, value)
        for name in tensors:
            writer.add_tensor(name, np.array([ord(name)], np.float32))


@pytest.fixture
def shards(tmp_path):
    """Three files of a set holding tensors a, b, c, d."""
    paths = [tmp_path / f"m-{index:05d}-of-00003.gguf" for index in (1, 2, 3)]
    for index, (path, tensors) in enumerate(zip(paths, ("a", "bc", "d"))):
        shard(path, index, 3, tensors, 4, **({"general.name": "whole"} if not index else {}))
    return paths


def test_any_shard_opens_the_whole_set(shards):
    for source in (shards[0], str(shards[2]), shards, [path.read_bytes() for path in shards]):
        reader = GgufReader(source)
        assert {name: reader.data(name).view(np.float32)[0] for name in reader.tensors} == {
            name: ord(name) for name in "abcd"
        }
        assert [info.shard for info in reader.tensors.values()] == [0, 1, 1, 2]
        assert reader.metadata["general.name"] == "whole"
        assert reader.size == sum(path.stat().st_size for path in shards)
    assert GgufReader(shards[1]).paths == tuple(shards)
    assert GgufReader(shards[1]).path == shards[0]


def test_a_set_that_is_not_whole_is_refused(shards, tmp_path):
    with pytest.raises(
        GgufError, match="bytes: split.count is 3, wanted 1; a set is opened by a name like"
    ):
        GgufReader(shards[0].read_bytes())
    for index, tensor in enumerate("ab"):  # two files that do not say that they are a set
        with GgufWriter(tmp_path / "part.gguf", "llama") as writer:
            writer.add_tensor(tensor, np.array([1], np.float32))
        (tmp_path / "part.gguf").rename(tmp_path / f"n-0000{index + 1}-of-00002.gguf")
    with pytest.raises(GgufError, match="split.count is None, wanted 2$"):
        GgufReader(tmp_path / "n-00001-of-00002.gguf")
    with pytest.raises(GgufError, match="split.no is 2, wanted 1"):
        GgufReader([shards[0], shards[2], shards[1]])
    shard(shards[2], 2, 3, "c", 4)
    with pytest.raises(GgufError, match="tensor c is in m-00002-of-00003.gguf too"):
        GgufReader(shards[0])
    shard(shards[2], 2, 3, "de", 4)
    with pytest.raises(GgufError, match="split.tensors.count"):
        GgufReader(shards[0])
    shard(shards[2], 2, 3, "d", 4, **{"general.name": "other"})
    with pytest.raises(GgufError, match="key general.name differs from its value in m-00001"):
        GgufReader(shards[0])
    shards[2].unlink()
    with pytest.raises(GgufError, match="m-00003-of-00003.gguf: no such file"):
        GgufReader(shards[0])
    plain = tmp_path / "x-00001-of-00002.gguf"
    for name in (plain, tmp_path / "x-00002-of-00002.gguf"):
        GgufWriter(name, "llama", part=True).finish()
    with pytest.raises(GgufError, match="split.count is None, wanted 2"):
        GgufReader(plain)
    for name in (plain, tmp_path / "x-00002-of-00002.gguf"):
        with GgufWriter(name, "llama", part=True) as writer:
            writer.add("split.count", "2")
    with pytest.raises(GgufError, match="split.count is '2', wanted 2"):
        GgufReader(plain)
    with pytest.raises(GgufError, match="shard 4 of 3"):
        GgufReader(tmp_path / "m-00004-of-00003.gguf")


def test_a_source_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(GgufError, match="nowhere.gguf: no such file"):
        GgufReader(tmp_path / "nowhere.gguf")
    with pytest.raises(GgufError, match=f"{tmp_path.name}: cannot be read: Is a directory"):
        GgufReader(tmp_path)
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(GgufError, match="an empty file"):
        GgufReader(tmp_path / "empty.gguf")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.gguf")
        with pytest.raises(GgufError, match="not a regular file"):
            GgufReader(tmp_path / "pipe.gguf")
    with pytest.raises(GgufError, match="cannot be read"):
        GgufReader("a\0b.gguf")
    for wrong in (3, None, [], np.zeros((4, 4), np.uint8)[:, ::2]):
        with pytest.raises(GgufError, match="source: "):
            GgufReader(wrong)
    with pytest.raises(GgufError, match="from_bytes: a str"):
        GgufReader.from_bytes("model.gguf")


def test_any_bytes_like_object_is_a_source(tmp_path):
    GgufWriter(tmp_path / "a.gguf", "llama").finish()
    raw = (tmp_path / "a.gguf").read_bytes()
    for buffer in (raw, bytearray(raw), memoryview(raw), np.frombuffer(raw, np.uint8)):
        assert GgufReader.from_bytes(buffer).metadata["general.architecture"] == "llama"


def test_hub_names_are_fetched_through_the_optional_extra(tmp_path, monkeypatch, shards):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for name in ("hf://owner/name/m.gguf", "owner/name:m.gguf"):
        with pytest.raises(
            ConfigError, match=r"needs huggingface_hub, wanted pip install .oxillama\[hub\]."
        ):
            GgufReader(name)
    asked = []

    def download(repo, file):
        asked.append((repo, file))
        if "missing" in file:
            raise RuntimeError("404\nlong story")
        return str(tmp_path / file.rpartition("/")[2])

    monkeypatch.setitem(
        sys.modules, "huggingface_hub", types.SimpleNamespace(hf_hub_download=download)
    )
    assert list(GgufReader("owner/na.me:sub/m-00001-of-00003.gguf").tensors) == list("abcd")
    assert asked == [("owner/na.me", f"sub/m-0000{index}-of-00003.gguf") for index in (1, 2, 3)]
    asked.clear()
    assert list(GgufReader("hf://owner/name/m-00002-of-00003.gguf").tensors) == list("abcd")
    assert asked == [("owner/name", f"m-0000{index}-of-00003.gguf") for index in (1, 2, 3)]
    with pytest.raises(GgufError, match="missing.gguf could not be fetched: 404$"):
        GgufReader("hf://owner/name/missing.gguf")
    with pytest.raises(GgufError, match="wanted hf://owner/name/file.gguf"):
        GgufReader("hf://owner/m.gguf")
