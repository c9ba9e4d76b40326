"""Which model file it is: a copy is the same one, an edited file is another."""

import os
import shutil

import numpy as np
import pytest

from oxillama.errors import ConfigError, GgufError, ModelFingerprintMismatch, SnapshotIncompatible
from oxillama.gguf import PROBE_BYTES, GgufReader, GgufWriter, ModelFingerprint, fingerprint

PROBE = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "a.gguf"
    with GgufWriter(path, "llama") as writer:
        writer.add("llama.block_count", 1)
        writer.add("tokenizer.ggml.tokens", ["a", "b"])
        writer.add_tensor("token_embd.weight", np.arange(400, dtype=np.float32).reshape(10, 40))
    return path


def edited(model, at: int, tmp_path):
    data = bytearray(model.read_bytes())
    data[at] ^= 1
    path = tmp_path / "edited.gguf"
    path.write_bytes(data)
    return path


def test_a_copy_with_another_name_and_time_is_the_same_model(model, tmp_path):
    known = ModelFingerprint.compute(model, full=True)
    copy = tmp_path / "b.gguf"
    shutil.copy(model, copy)
    os.utime(copy, (1, 1))
    known.verify(copy)
    known.verify(model.read_bytes())
    assert ModelFingerprint.compute(copy, full=True) == known
    with GgufReader(copy) as reader:
        assert ModelFingerprint.compute(reader, full=True) == known
    assert known.probe_size == PROBE_BYTES == 8 << 20 and known.file_size == model.stat().st_size


def test_every_edited_byte_makes_another_model(model, tmp_path):
    data = model.read_bytes()
    known = ModelFingerprint.compute(data)
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 1
        with pytest.raises(ModelFingerprintMismatch) as caught:
            known.verify(bytes(broken))
        assert (
            caught.value.expected is known
            and caught.value.found.head != known.head
            and "the first bytes differ" in caught.value.detail
        )


def test_the_probes_and_the_directory_are_all_that_is_read_unless_all_is_asked_for(model, tmp_path):
    size, start = model.stat().st_size, GgufReader(model).tensors["token_embd.weight"].offset
    known, whole = (
        ModelFingerprint.compute_with_probe(model, PROBE, full=full) for full in (False, True)
    )
    for at, detail in (
        (10, "the first bytes differ"),
        (size - 10, "the last bytes differ"),
        (PROBE + 30, "hyper-parameters, tokenizer or tensor"),
    ):
        with pytest.raises(ModelFingerprintMismatch, match=detail):
            known.verify(edited(model, at, tmp_path))
    middle = edited(model, (max(start, PROBE) + size - PROBE) // 2, tmp_path)
    known.verify(middle)
    with pytest.raises(ModelFingerprintMismatch, match="the whole file differ"):
        whole.verify(middle)
    with pytest.raises(
        ModelFingerprintMismatch, match=f"a size of {size + 1} found, {size} wanted"
    ):
        known.verify(model.read_bytes() + b"\0")


def test_an_edit_that_breaks_the_header_is_a_mismatch_too(model, tmp_path):
    data = bytearray(model.read_bytes())
    at = data.index(b"tokenizer.ggml.tokens") + 21
    data[at : at + 4] = b"\xff\xff\xff\xff"
    known = ModelFingerprint.compute_with_probe(model, 8)
    with pytest.raises(ModelFingerprintMismatch, match="malformed before its tensors") as caught:
        known.verify(bytes(data))
    assert caught.value.found.directory is None and "unknown" in caught.value.found.display()


def test_every_file_of_a_set_counts(tmp_path):
    for number in (1, 2):
        with GgufWriter(tmp_path / f"m-0000{number}-of-00002.gguf", "llama", part=True) as writer:
            writer.add("split.no", number - 1, "uint16")
            writer.add("split.count", 2, "uint16")
            writer.add_tensor(f"t{number}", np.full((64, 40), number, np.float32))
    first, second = sorted(tmp_path.iterdir())
    known = ModelFingerprint.compute_with_probe(first, PROBE)
    known.verify(second)
    data = bytearray(second.read_bytes())
    data[-1] ^= 1
    second.write_bytes(data)
    with pytest.raises(ModelFingerprintMismatch, match="the last bytes differ"):
        known.verify(first)


def test_it_is_told_in_a_line_and_in_json(model):
    known = ModelFingerprint.compute(model, full=True)
    assert ModelFingerprint.from_dict(known.to_dict()) == known
    assert (
        known.display() == str(known)
        and known.head[:16] in str(known)
        and f"{known.file_size:,} bytes" in str(known)
    )
    good = known.to_dict()
    for wrong in (
        {},
        None,
        {**good, "file_size": -1},
        {**good, "head": "x"},
        {**good, "full": 1},
        {**good, "directory": None},
        {**good, "more": 1},
        {**good, "probe_size": True},
    ):
        with pytest.raises(SnapshotIncompatible, match="model fingerprint"):
            ModelFingerprint.from_dict(wrong)


def test_what_is_no_model_raises(tmp_path, model):
    with pytest.raises(GgufError, match="no such file"):
        ModelFingerprint.compute(tmp_path / "none.gguf")
    for probe in (0, -1, True, 1.5, "8"):
        with pytest.raises(ConfigError, match="probe_size"):
            ModelFingerprint.compute_with_probe(model, probe)


def test_an_edit_anywhere_in_the_middle_is_another_model(tmp_path):
    """Size, both ends and directory are equal: samples tell, as two fine-tunes of one base
    differ.
    """
    rng, path = np.random.default_rng(0), tmp_path / "a.gguf"
    with GgufWriter(path, "llama") as writer:
        for i in range(5):
            writer.add_tensor(f"blk.{i}.w", rng.standard_normal(1 << 20).astype(np.float32))
    data = bytearray(path.read_bytes())
    known = ModelFingerprint.compute(path)
    for at in (len(data) // 2, PROBE_BYTES + 1, len(data) - PROBE_BYTES - 2):
        data[at] ^= 1
        with pytest.raises(ModelFingerprintMismatch, match="samples of the whole file differ"):
            known.verify(bytes(data))
        data[at] ^= 1
    known.verify(bytes(data))


def test_samples_of_a_large_file_lie_at_equal_distances_from_end_to_end(monkeypatch):
    monkeypatch.setattr(fingerprint, "HASHED_WHOLE", 1 << 16)
    monkeypatch.setattr(fingerprint, "SAMPLES", 9)
    monkeypatch.setattr(fingerprint, "SAMPLE_BYTES", 128)
    data = bytearray((1 << 16) + 1024)
    shard = fingerprint.Shard(memoryview(data), "x", None)
    known, distance = fingerprint._sampled([shard]), (len(data) - 128) / 8
    for i in range(9):
        at = int(i * distance)
        for place, seen in ((at, True), (at + 127, True), (at + 128, False), (at - 1, False)):
            if 0 <= place < len(data):
                data[place] ^= 1
                assert (fingerprint._sampled([shard]) != known) == seen, (i, place)
                data[place] ^= 1


def test_a_fingerprint_without_samples_is_read_and_checked_as_far_as_it_goes(model):
    """Those of snapshots that earlier releases wrote."""
    known = ModelFingerprint.compute(model)
    values = known.to_dict()
    assert values.pop("sampled") == known.sampled
    old = ModelFingerprint.from_dict(values)
    old.verify(model)
    old.check(known)
    assert old.to_dict() == values and old.sampled is None
    with pytest.raises(SnapshotIncompatible):
        ModelFingerprint.from_dict({**values, "sampled": "x"})
    with pytest.raises(SnapshotIncompatible):
        ModelFingerprint.from_dict({**values, "sampled": None})
