"""Mapped packed weights are compared with their hashes soon after they are trusted, and those who
used damaged ones hear of it.
"""

import json
import os
import re
import time
import warnings

import numpy as np
import pytest

import oxillama
from oxillama.errors import DamagedWeightsWarning, EngineError, WeightsDamaged
from oxillama.gguf.source import open_source
from oxillama.weights import panel_file, verifier
from oxillama.weights.identity import identity_of
from oxillama.weights.verifier import PanelVerifier
from tests.model import tiny
from tests.weights.test_writer import Program

IDS = [1, 2, 3, 4, 5, 6, 7]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    monkeypatch.delenv("OXILLAMA_SIDECAR")


@pytest.fixture
def kept(tmp_path):
    """(a model, the file of its packed weights)."""
    model, folder = tmp_path / "model.gguf", tmp_path / "sidecars"
    tiny.write(model, "llama", formats=lambda name: "Q8_0").close()
    with oxillama.load(model, num_threads=1, sidecar=folder):
        pass
    (path,) = folder.iterdir()
    return model, path


def header_of(path):
    data = path.read_bytes()
    return json.loads(data[48 : 48 + int.from_bytes(data[8:16], "little")])


def flip(path, place):
    """Two bits of a byte, as a failing disk flips them: nothing else of the file changes."""
    with open(path, "rb+") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 0x41]))


def waited(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    assert condition()


@pytest.mark.parametrize("at", range(12))
def test_two_flipped_bits_anywhere_are_found_and_told(kept, at):
    model, path = kept
    with oxillama.load(model, num_threads=1, sidecar=False) as engine:
        wanted = engine.logits(IDS).tobytes()
    sections = header_of(path)["sections"]
    name, *_, offset, size, _ = sections[at * len(sections) // 12]
    place = offset + size * at // 12
    flip(path, place)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with oxillama.load(model, num_threads=1, sidecar=path.parent) as engine:
            check = engine._loaded.model.verifier
            if check is not None:  # None: the look at the opening has found it
                check.join(20)
                assert isinstance(check.damage, WeightsDamaged) and name in str(check.damage)
                with pytest.raises(WeightsDamaged, match="load the model again"):
                    engine.logits(IDS)
                with pytest.raises(EngineError):
                    engine.generate(IDS, max_tokens=1)
                assert not path.exists()
    assert check is None or [one.category for one in seen] == [DamagedWeightsWarning]
    # dropped, and written again of the right weights
    for mapped in (check is None, True):
        with oxillama.load(model, num_threads=1, sidecar=path.parent) as engine:
            assert engine.logits(IDS).tobytes() == wanted
            assert (engine._loaded.model.verifier is not None) == mapped


def between_probes(path):
    """A place that no look at the opening sees."""
    header = header_of(path)
    probed = {header["size"] * i // 16 // 4096 for i in range(16)}
    for name, *_, offset, size, _ in header["sections"]:
        for at in range(offset, offset + size, 64):
            if at // 4096 not in probed and at // 4096 != (header["size"] - 1) // 4096:
                return name, at
    raise AssertionError("every page is probed")


def test_results_that_were_given_before_are_warned_of_at_the_close(kept, monkeypatch):
    """While the model works the verifier is slow; closing finishes it."""
    model, path = kept
    name, place = between_probes(path)
    flip(path, place)
    monkeypatch.setattr(verifier, "QUIET_SECONDS", 1e6)
    monkeypatch.setattr(verifier, "BUSY_SECONDS", 1e6)
    with pytest.warns(DamagedWeightsWarning) as told:  # by a thread that begins here
        engine = oxillama.load(model, num_threads=1, sidecar=path.parent)
        engine.generate(IDS, max_tokens=4)
        steps = engine._loaded.model.program.steps
        engine.close()
        waited(lambda: not verifier._verifiers)
    assert re.search(f"{name}.*; {steps} steps ran over it", str(told[0].message))
    assert not path.exists() and steps >= 4


def test_a_request_in_flight_ends_with_the_error(kept, monkeypatch):
    model, path = kept
    flip(path, between_probes(path)[1])
    monkeypatch.setattr(verifier, "BUSY_SECONDS", 0.02)
    monkeypatch.setattr(verifier, "QUIET_SECONDS", 1e6)  # as if it were always at work
    with (
        pytest.warns(DamagedWeightsWarning),
        oxillama.load(model, num_threads=1, sidecar=path.parent) as engine,
        pytest.raises(WeightsDamaged),
    ):
        end = time.monotonic() + 20
        while time.monotonic() < end:
            engine.generate(IDS, max_tokens=50)


def test_whole_weights_are_verified_at_once_when_nothing_runs_and_slowly_while_steps_run(
    kept, monkeypatch
):
    model, path = kept
    monkeypatch.setattr(verifier, "BUSY_SECONDS", 0.001)
    for quiet in (0.0, 1e6):
        monkeypatch.setattr(verifier, "QUIET_SECONDS", quiet)
        with oxillama.load(model, num_threads=1, sidecar=path.parent) as engine:
            check = engine._loaded.model.verifier
            waited(lambda check=check: check.verified)
            assert check.damage is None and path.exists()


# ---- the model's file, when the model is idle
# ------------------------------------------------------------------------------------------------


@pytest.fixture
def mapped(tmp_path):
    """(a model's files, its packed weights mapped); the hash of the whole file is of other
    bytes.
    """
    file = tmp_path / "x.gguf"
    file.write_bytes(bytes(range(256)) * 40_000)
    shards = open_source(file)
    raw = np.zeros(16 * 34, np.uint8)
    matrices = {("w", 0, 16): panel_file.PackedMatrix(raw, "Q8_0", 16, 32)}
    path, key = tmp_path / "x.panels", identity_of(shards)
    assert panel_file.write_panels(path, key, matrices, shards=shards)
    wanted = {("w", 0, 16): panel_file.PanelSpec("Q8_0", 16, 32)}
    return shards, panel_file.open_panels(path, key, wanted, num_threads=1)


@pytest.mark.parametrize("whole", [True, False])
def test_the_models_file_is_compared_with_its_hash_when_the_model_is_idle(
    mapped, monkeypatch, whole
):
    """For a file system that shows no change: identities are equal, bytes between samples are
    not.
    """
    shards, found = mapped
    if not whole:
        status = shards[0].status
        at = 5_000_001
        with open(shards[0].path, "rb+") as file:
            file.seek(at)
            file.write(b"\xff")
        os.utime(shards[0].path, ns=(status.st_atime_ns, status.st_mtime_ns))
        monkeypatch.setattr(verifier, "unchanged", lambda shards: True)
    monkeypatch.setattr(verifier, "IDLE_SECONDS", 0.01)
    told, program = [], Program(busy=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check = PanelVerifier(found, program, shards)
        check.tell(told.append)
        check.join(20)
    assert check.verified and bool(told) != whole and found.path.exists() == whole
    if not whole:
        assert told == [check.damage] and "x.gguf has changed since" in str(told[0])
        late = []
        check.tell(late.append)
        assert late == told


def test_the_models_file_is_not_read_while_the_model_works(mapped, monkeypatch):
    shards, found = mapped
    monkeypatch.setattr(verifier, "BUSY_SECONDS", 0.001)
    read = []
    monkeypatch.setattr(verifier, "_pieces", lambda shard: iter(map(read.append, range(3))))
    program = Program(busy=True)
    check = PanelVerifier(found, program, shards)
    waited(lambda: check.verified)
    check.join(0.1)
    assert check.is_alive()
    check.finish()
    assert not check.is_alive() and check.damage is None and not read


def test_a_file_that_took_the_place_of_a_damaged_one_is_not_removed(mapped):
    _, found = mapped
    other = found.path.with_name("new")
    other.write_bytes(found.path.read_bytes())
    os.replace(other, found.path)
    found.remove()
    assert found.path.exists()
