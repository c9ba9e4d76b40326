"""Packed weights never serve another model than the one they were packed from, whatever of its file
is kept alike.
"""

import os
import shutil

import numpy as np
import pytest

import oxillama
from oxillama.gguf import GgufReader
from oxillama.weights.identity import identity_of, unchanged
from tests.model import tiny

IDS = [1, 2, 3, 4, 5, 6, 7]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    monkeypatch.delenv("OXILLAMA_SIDECAR")


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.gguf"
    tiny.write(path, "llama", formats=lambda name: "Q8_0").close()
    return path


def logits(path, sidecar):
    with oxillama.load(path, num_threads=1, sidecar=sidecar) as engine:
        return engine.logits(IDS).tobytes(), engine._loaded.model.verifier is not None


def patched(path, *, keep_time=True):
    """Change bytes in the middle of the file, in place; size and time of change stay."""
    with GgufReader(path) as reader:
        offset = reader.tensors["blk.1.ffn_up.weight"].offset
    status = os.stat(path)
    with open(path, "rb+") as file:
        file.seek(offset + 2)
        file.write(b"\x11" * 32)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = os.stat(path)
    assert (after.st_size, after.st_mtime_ns) == (status.st_size, status.st_mtime_ns)


@pytest.mark.parametrize("how", ["in place", "by a copy", "by a rename"])
def test_a_patch_in_the_middle_with_size_and_time_kept_is_another_model(model, tmp_path, how):
    folder = tmp_path / "sidecars"
    before = logits(model, folder)[0]
    assert logits(model, folder) == (before, True)
    if how == "in place":
        patched(model)
    else:
        status, other = os.stat(model), tmp_path / "other"
        shutil.copy2(model, other)
        patched(other)
        if how == "by a rename":
            os.replace(other, model)
        else:
            shutil.copyfile(other, model)
            os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert os.stat(model).st_mtime_ns == status.st_mtime_ns
    wanted = logits(model, False)[0]
    assert wanted != before
    assert logits(model, folder) == (wanted, False)
    assert logits(model, folder) == (wanted, True)


def test_two_fine_tunes_of_one_base_have_sidecars_of_their_own(tmp_path):
    """Equal header, size, time, first and last 64 KiB; weights in between differ."""
    paths = [tmp_path / name / "model.gguf" for name in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
    tiny.write(paths[0], "llama", formats=lambda name: "Q8_0").close()
    data = bytearray(paths[0].read_bytes())
    middle = len(data) // 2
    noise = np.random.default_rng(1).integers(0, 2, 4096).astype(np.uint8).tobytes()
    data[middle : middle + 4096] = noise
    paths[1].write_bytes(data)
    for path in paths:
        os.utime(path, ns=(10**18, 10**18))
    with GgufReader(paths[0]) as a, GgufReader(paths[1]) as b:
        one, two = (identity_of(reader.shards)["files"][0] for reader in (a, b))
        assert one[2:4] == two[2:4] and one[-1] != two[-1]
    folder = tmp_path / "sidecars"
    for _ in range(2):
        for path in paths:
            assert logits(path, folder)[0] == logits(path, False)[0]
    assert len(list(folder.iterdir())) == 2


@pytest.mark.skipif(os.name == "nt", reason="Windows replaces no file that is mapped")
def test_an_identity_is_that_of_the_file_that_was_mapped(model, tmp_path):
    with GgufReader(model) as reader:
        known = identity_of(reader.shards)
        assert unchanged(reader.shards)
        shutil.copy(model, tmp_path / "new")
        os.replace(tmp_path / "new", model)  # after it was mapped
        assert identity_of(reader.shards) == known and not unchanged(reader.shards)
    assert identity_of(GgufReader(model.read_bytes()).shards) is None
