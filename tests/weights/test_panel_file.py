"""Packed weights on disk: the same bits as packed in memory, never trusted blindly, never in the
way of a load.
"""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from oxillama._core.panels import PackedMatrix
from oxillama._core.tape import Batch
from oxillama.errors import ConfigError
from oxillama.gguf import GgufReader
from oxillama.model.load import load_model
from oxillama.weights import cache, panel_file
from tests.model import tiny


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("OXILLAMA_SIDECAR", "OXILLAMA_SIDECAR_LIMIT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.gguf"
    tiny.write(path, "llama", formats=lambda name: "Q8_0" if "ffn" in name else "F16").close()
    return path


def loaded(path, folder):
    """The logits of a fixed prompt from a model loaded with sidecars in `folder`, after whatever it
    writes is written.
    """
    model = load_model(GgufReader(path), num_threads=2, sidecar=folder)
    if model.writer is not None:
        model.writer.finish()
    memory = model.page_memory()
    memory.ensure(1)
    ids = np.arange(8, dtype=np.int32)
    return np.array(
        model.program.step(
            Batch(ids, ids, [np.zeros(1, np.int32)], np.zeros(8, np.int32), ids), memory
        )
    )


def only(folder):
    (path,) = folder.glob("*")
    assert path.suffix == ".panels"
    return path


def test_a_model_from_its_sidecar_has_the_same_bits(model, tmp_path, monkeypatch):
    folder = tmp_path / "sidecars"
    packed = loaded(model, folder)
    written = only(folder)
    assert panel_file.verify(written)
    monkeypatch.setattr(
        "oxillama.model.tape_weights.Packing", lambda *_, **__: pytest.fail("packed again")
    )
    assert np.array_equal(loaded(model, folder), packed)
    assert np.array_equal(loaded(model, str(folder)), packed)


def test_a_model_changed_in_place_or_replaced_never_meets_the_old_sidecar(model, tmp_path):
    folder = tmp_path / "sidecars"
    before, other = loaded(model, folder), only(folder)
    info = GgufReader(model).tensors["blk.1.ffn_up.weight"]
    stat = os.stat(model)
    with open(model, "rb+") as file:
        file.seek(info.offset + 2)
        file.write(b"\x11" * 32)
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    changed = loaded(model, folder)
    assert not np.array_equal(before, changed)
    assert np.array_equal(changed, loaded(model, False))
    assert only(folder) == other  # it took the place of the old one


def damage(path, how):
    data = bytearray(path.read_bytes())
    header = json.loads(data[48 : 48 + int.from_bytes(data[8:16], "little")])
    if how == "empty":
        data = b""
    elif how == "magic":
        data[0] ^= 1
    elif how == "header":
        data[60] ^= 1
    elif how == "length":
        data[8:16] = (1 << 60).to_bytes(8, "little")
    elif how == "truncated":
        data = data[:-4096]
    elif how == "longer":
        data += bytes(4096)
    elif how == "zeros":
        data[4096 * 4 :] = bytes(len(data) - 4096 * 4)
    elif how in ("section", "shape", "missing"):
        if how == "missing":
            header["sections"].pop()
        else:
            header["sections"][0][{"section": 5, "shape": 4}[how]] *= 4096
        text = json.dumps(header).encode()
        data[: 48 + len(text)] = headed(text)
    path.write_bytes(data)


def headed(text):
    """The beginning of a sidecar whose header is so and in order."""
    return (
        panel_file.MAGIC + len(text).to_bytes(8, "little") + panel_file.blake3(text).digest() + text
    )


@pytest.mark.parametrize(
    "how",
    (
        "empty",
        "magic",
        "header",
        "length",
        "truncated",
        "longer",
        "zeros",
        "section",
        "shape",
        "missing",
    ),
)
def test_a_damaged_sidecar_is_left_out_with_a_warning_and_written_again(
    model, tmp_path, caplog, how
):
    folder = tmp_path / "sidecars"
    packed = loaded(model, folder)
    written = only(folder)
    good = written.read_bytes()
    damage(written, how)
    assert panel_file.verify(written) == (how in ("missing", "shape"))
    with caplog.at_level(logging.WARNING, "oxillama.sidecar"):
        assert np.array_equal(loaded(model, folder), packed)
    assert "is left out and will be written again" in caplog.text
    assert only(folder).read_bytes() == good


@pytest.mark.parametrize("text", (b"[" * 200000, b'{"key":' * 100000), ids=("lists", "objects"))
def test_a_header_nested_deeper_than_python_reads_is_damaged_to_everybody(
    model, tmp_path, caplog, text
):
    folder = tmp_path / "sidecars"
    packed = loaded(model, folder)
    written = only(folder)
    good = written.read_bytes()
    written.write_bytes(headed(text))
    assert not panel_file.verify(written) and [
        one.names for one in cache.PackedWeightCache(folder).entries()
    ] == [()]
    with caplog.at_level(logging.WARNING, "oxillama.sidecar"):
        assert np.array_equal(loaded(model, folder), packed)
    assert (
        "is left out and will be written again" in caplog.text and only(folder).read_bytes() == good
    )


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are of Unix")
def test_a_pipe_in_the_place_of_a_sidecar_hangs_nobody_and_is_replaced(model, tmp_path):
    folder = tmp_path / "sidecars"
    loaded(model, folder)
    written = only(folder)
    good = written.read_bytes()
    written.unlink()
    os.mkfifo(written)
    code = (
        "import sys\nfrom pathlib import Path\nfrom oxillama.gguf import GgufReader\n"
        "from oxillama.model import load_model\nfrom oxillama.weights import cache, panel_file\n"
        f"path = Path({str(written)!r})\n"
        "assert not panel_file.verify(path) and panel_file.names_of(path) == () and "
        "cache.PackedWeightCache(path.parent).entries() == []\n"
        f"load_model(GgufReader({str(model)!r}), sidecar=path.parent).end(keep=True)"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=Path(panel_file.__file__).parents[2],
        timeout=20,
    )
    assert only(folder).read_bytes() == good


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are of Unix")
def test_a_pipe_in_the_place_of_a_temporary_file_hangs_nobody_and_is_removed(tmp_path):
    os.mkfifo(tmp_path / "x.panels.tmp")
    code = (
        "from pathlib import Path\nfrom oxillama.weights import cache\n"
        f"cache.PackedWeightCache(Path({str(tmp_path)!r})).clear()"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=Path(panel_file.__file__).parents[2],
        timeout=20,
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("files", "sections"), ((1, 29), (20, 5), (20, 40)))
def test_a_sidecar_whose_header_is_longer_than_a_page_holds(tmp_path, files, sections):
    raw = np.arange(16 * 36, dtype=np.uint16).astype(np.uint8)
    matrices = {
        (f"blk.{i}.attn_output.weight", 0, 16): PackedMatrix(raw, "Q4_0", 16, 64)
        for i in range(sections)
    }
    key, path = (
        {"layout": 1, "byteorder": "little", "files": [], "more": ["a" * 200] * files},
        tmp_path / "x.panels",
    )
    assert panel_file.write_panels(path, key, matrices)
    assert 48 + int.from_bytes(path.read_bytes()[8:16], "little") > 4096
    found = panel_file.open_panels(
        path, key, dict.fromkeys(matrices, panel_file.PanelSpec("Q4_0", 16, 64)), num_threads=1
    )
    assert {name: bytes(matrix) for name, matrix in found.matrices.items()} == {
        name: bytes(matrix) for name, matrix in matrices.items()
    }
    assert not panel_file.write_panels(path, key, matrices)  # it lies there already


def test_a_flipped_byte_anywhere_is_found_by_the_full_check(model, tmp_path):
    loaded(model, tmp_path / "s")
    written = only(tmp_path / "s")
    data = bytearray(written.read_bytes())
    sections = json.loads(data[48 : 48 + int.from_bytes(data[8:16], "little")])["sections"]
    for *_, offset, size, _ in sections:
        for place in (offset, offset + size - 1):
            data[place] ^= 1
            written.write_bytes(data)
            assert not panel_file.verify(written)
            data[place] ^= 1
    written.write_bytes(data)
    assert panel_file.verify(written)


def test_sidecars_used_longest_ago_make_room_for_a_new_one(model, tmp_path, monkeypatch):
    folder = tmp_path / "sidecars"
    loaded(model, folder)
    size = only(folder).stat().st_size
    monkeypatch.setenv("OXILLAMA_SIDECAR_LIMIT", str(2 * size + 10))
    copies = []

    def later():
        """What was used so far was used long ago, in the same order; a clock has coarse ticks."""
        used = sorted(folder.glob("*.panels"), key=lambda path: path.stat().st_mtime_ns)
        for age, path in enumerate(used):
            os.utime(path, (1000 + age, 1000 + age))

    for i in range(3):
        copy = tmp_path / f"{i}.gguf"
        copy.write_bytes(model.read_bytes())
        os.utime(copy, ns=(10**18, 10**18 + i))
        copies.append(copy)
        later()
        loaded(copy, folder)
        if i == 1:
            later()
            loaded(copies[0], folder)  # used again: the other one goes next
    keys = {
        cache.PackedWeightCache(folder).slot(GgufReader(copy)).path
        for copy in (copies[0], copies[2])
    }
    assert set(folder.glob("*")) == keys


def test_a_sidecar_over_the_limit_or_on_a_full_disk_is_not_written_and_evicts_nothing(
    model, tmp_path, monkeypatch
):
    folder = tmp_path / "sidecars"
    loaded(model, folder)
    before = only(folder).read_bytes()
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(model.read_bytes())
    os.utime(copy, (1, 1))
    monkeypatch.setenv("OXILLAMA_SIDECAR_LIMIT", "1000")
    loaded(copy, folder)
    assert only(folder).read_bytes() == before
    monkeypatch.delenv("OXILLAMA_SIDECAR_LIMIT")
    monkeypatch.setattr(
        cache.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10, "total": 100})()
    )
    loaded(copy, folder)
    assert only(folder).read_bytes() == before


def test_a_folder_that_cannot_be_written_is_refused_where_it_was_named(
    model, tmp_path, caplog, monkeypatch
):
    blocked = tmp_path / "file"
    blocked.write_text("")
    for folder in (blocked, blocked / "sidecars"):
        told = rf"^sidecar: found {folder}: {blocked} is not a directory, wanted a folder that can"
        with pytest.raises(ConfigError, match=told):
            loaded(model, folder)
    # the folder that nobody named
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr(cache, "LEAST_BYTES", 0)
    with caplog.at_level(logging.INFO, "oxillama.sidecar"):
        loaded(model, "auto")
    assert f"are not kept in {blocked}/oxillama: {blocked} is not a directory" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.INFO]


def test_a_folder_that_may_only_be_read_serves_the_sidecar_it_has(model, tmp_path, monkeypatch):
    folder = tmp_path / "sidecars"
    first = loaded(model, folder)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder)
    assert np.array_equal(loaded(model, folder), first)
    only(folder).unlink()
    with pytest.raises(ConfigError, match=f"found {folder}: {folder} cannot be written, wanted"):
        loaded(model, folder)


def test_an_interpreter_that_ends_at_once_has_written_its_sidecar(model, tmp_path):
    folder = tmp_path / "sidecars"
    code = (
        "from oxillama.gguf import GgufReader\nfrom oxillama.model import load_model\n"
        f"load_model(GgufReader({str(model)!r}), sidecar={str(folder)!r})"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=Path(panel_file.__file__).parents[2]
    )
    assert panel_file.verify(only(folder))


def test_a_writing_that_is_given_up_leaves_nothing(tmp_path):
    def pause(written, size):
        raise panel_file.WriteAborted("no time")

    matrix = PackedMatrix(np.zeros(16 * 34, np.uint8), "Q8_0", 16, 32)
    with pytest.raises(panel_file.WriteAborted):
        panel_file.write_panels(
            tmp_path / "s" / "a.panels", {}, {("w", 0, 16): matrix}, pause=pause
        )
    assert not list((tmp_path / "s").glob("*"))


def test_the_setting_the_environment_and_the_size_say_where_sidecars_are(
    model, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache.sidecar_folder(False) is None
    assert cache.sidecar_folder("auto") == tmp_path / "cache" / "oxillama"
    assert cache.sidecar_folder(tmp_path) == tmp_path
    reader = GgufReader(model)
    assert cache.slot_of(reader, "auto", cache.LEAST_BYTES - 1) is None
    assert (
        cache.slot_of(reader, "auto", cache.LEAST_BYTES).path.parent
        == tmp_path / "cache" / "oxillama"
    )
    assert cache.slot_of(GgufReader(model.read_bytes()), tmp_path, 1 << 40) is None
    monkeypatch.setenv("OXILLAMA_SIDECAR", "0")
    assert cache.sidecar_folder("auto") is None and cache.sidecar_folder(tmp_path) is None
    monkeypatch.setenv("OXILLAMA_SIDECAR", str(tmp_path))
    assert cache.sidecar_folder(False) == tmp_path
    monkeypatch.delenv("OXILLAMA_SIDECAR")
    for wrong in (True, 1, None):
        with pytest.raises(ConfigError, match="sidecar"):
            cache.sidecar_folder(wrong)
    monkeypatch.setenv("OXILLAMA_SIDECAR_LIMIT", "much")
    with pytest.raises(ConfigError, match="OXILLAMA_SIDECAR_LIMIT"):
        cache.limit_bytes()


def test_a_sidecar_is_read_into_memory_where_that_drives_out_nothing_in_use(
    model, tmp_path, monkeypatch
):
    folder, read = tmp_path / "sidecars", []
    packed = loaded(model, folder)
    size = only(folder).stat().st_size
    monkeypatch.setattr(panel_file, "fault_in", lambda view, **_: read.append(len(view)))
    # None: nobody knows
    for free, wanted in ((0, []), (size, []), (size + 1, [size]), (None, [size])):
        read.clear()
        monkeypatch.setattr(panel_file, "available_bytes", lambda free=free: free)
        assert np.array_equal(loaded(model, folder), packed) and read == wanted
