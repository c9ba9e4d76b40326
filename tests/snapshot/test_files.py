"""Snapshots in files, for another engine, another model and a later release: what fits goes on with
the same bits.
"""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from blake3 import blake3

import oxillama
from oxillama import EngineSnapshot, InferenceEngine, SamplerConfig, durable
from oxillama.errors import ConfigError, ModelFingerprintMismatch, SnapshotIncompatible
from oxillama.snapshot.session import KIND
from tests.snapshot.saved import PROMPT, SEEDED, at, parts, remade
from tests.test_durable import Failing

# ---- another engine, another model
# --------------------------------------------------------------------------------------------------


def test_an_engine_that_cannot_stand_in_refuses_by_name(small):
    path, _, _, data = small
    for config, wanted in (
        (dict(kv_type="f32"), "kv type: the snapshot has 'f16', this engine 'f32'"),
        (dict(page_size=32), "kv page_size: the snapshot has 16, this engine 32"),
        (dict(context_size=128), "context_size: the snapshot has 256, this engine 128"),
    ):
        with pytest.raises(SnapshotIncompatible, match=wanted):
            InferenceEngine.resume(data, path, **config)
    with InferenceEngine.resume(
        data, path, context_size=1000, prefill_chunk_size=7, max_pages=50
    ) as other:
        assert other.context_size == 1000 and other.engine_config.prefill_chunk_size == 7
    with InferenceEngine.resume(data, path, n_ctx=1000, n_threads=2) as other:
        assert other.context_size == 1000 and other.num_threads == 2
    with pytest.raises(ConfigError, match="heat: is not a field of EngineConfig"):
        InferenceEngine.resume(data, path, heat=1)


def test_an_engine_is_resumed_as_it_was_configured(small):
    path = small[0]
    config = dict(
        context_size=200,
        prefill_chunk_size=9,
        kv_type="f32",
        page_size=32,
        sampler=SamplerConfig(temperature=0.3, stop=("x",), logit_bias={3: 1.0}),
    )
    with oxillama.load(
        path, num_threads=1, **{**config, "sampler": config["sampler"].replace(stop=())}
    ) as engine:
        engine.prefill([1, 2, 3])
        with InferenceEngine.resume(engine.snapshot(), path) as other:
            assert other.engine_config.to_dict() == {
                **engine.engine_config.to_dict(),
                "context_size": 200,
            }
            assert other.engine_config.sampler == engine.engine_config.sampler


def test_a_copy_of_the_model_is_the_model_and_an_edit_is_not(small, tmp_path):
    path, engine, session, data = small
    copy = tmp_path / "elsewhere.gguf"
    shutil.copy(path, copy)
    os.utime(copy, (1, 1))
    with InferenceEngine.resume(data, copy) as other:
        assert other.snapshot() == data
    with InferenceEngine.resume(data, path.read_bytes()) as other:
        assert (
            other.generate(None, max_tokens=4).tokens
            == engine.generate(None, session=session.fork(), max_tokens=4).tokens
        )
    edited = bytearray(path.read_bytes())
    edited[-5] ^= 1
    copy.write_bytes(edited)
    with pytest.raises(ModelFingerprintMismatch, match="the first bytes differ") as caught:
        InferenceEngine.resume(data, copy)
    assert (
        caught.value.expected == EngineSnapshot.inspect(data).model
        and caught.value.found.head != caught.value.expected.head
    )
    with oxillama.load(copy) as other, pytest.raises(ModelFingerprintMismatch):
        other.restore(data)


def test_a_model_file_that_was_written_to_after_it_was_loaded_is_not_vouched_for(small, tmp_path):
    copy = tmp_path / "model.gguf"
    shutil.copy(small[0], copy)
    with oxillama.load(copy) as other:
        other.prefill([1, 2])
        with open(copy, "r+b") as file:
            file.seek(-4, 2)
            file.write(b"\0\0\0\0")
        os.utime(copy, ns=(5, 5))
        with pytest.raises(SnapshotIncompatible, match="was changed since it was loaded"):
            other.snapshot()


def test_a_fingerprint_of_every_byte_is_kept_and_checked(small):
    path, engine, session, data = small
    whole = session.snapshot(full=True)
    assert EngineSnapshot.inspect(whole).model.full == blake3(path.read_bytes()).hexdigest()
    engine.restore(whole).close()
    wrong = remade(whole, at("model", "full", value="0" * 64))
    with pytest.raises(ModelFingerprintMismatch, match="the whole file differ"):
        engine.restore(wrong)
    with pytest.raises(ModelFingerprintMismatch, match="the whole file differ"):
        InferenceEngine.resume(wrong, path)


def test_another_vocabulary_than_the_models_own_must_be_there_again(tmp_path):
    source = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "truncation": None,
        "padding": None,
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(source))
    with oxillama.load(tokenizer_path=path) as engine:
        engine.prefill([0, 1])
        data = engine.snapshot()
    with pytest.raises(
        SnapshotIncompatible, match="tokenizer: the snapshot has '[0-9a-f]+', this engine None"
    ):
        InferenceEngine.resume(data)
    with InferenceEngine.resume(data, tokenizer_path=path) as other:
        assert other.snapshot() == data


# ---- files
# --------------------------------------------------------------------------------------------------


def test_pages_can_be_stored_with_zstd_which_the_header_says(engine):
    engine.generate(PROMPT, max_tokens=20, sampler=SEEDED)
    plain, packed = engine.snapshot(), engine.snapshot(compress="zstd")
    assert (
        len(packed) < len(plain)
        and EngineSnapshot.inspect(packed).encodings["kv"] == "zstd"
        and engine.snapshot(compress="zstd") == packed
    )
    assert (
        "kv" in EngineSnapshot.inspect(packed).display()
        and "zstd" in EngineSnapshot.inspect(packed).display()
    )
    session = engine.restore(packed)
    assert session.snapshot() == plain
    session.close()


def test_a_file_is_as_compressed_as_it_is_asked_to_be(small, tmp_path):
    _, engine, session, _ = small
    for compress, encoding in ((None, "plain"), ("zstd", "zstd")):
        session.snapshot_to_file(tmp_path / "saved", compress=compress)
        assert (tmp_path / "saved").read_bytes() == session.snapshot(compress=compress)
        assert EngineSnapshot.inspect(tmp_path / "saved").encodings["kv"] == encoding
        with pytest.raises(ConfigError, match="compress: found 'gzip', wanted None or 'zstd'"):
            session.snapshot_to_file(tmp_path / "saved", compress="gzip")


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps the files that a process has mapped")
@pytest.mark.parametrize("replaced", [True, False])
def test_a_model_whose_path_is_another_file_or_none_is_the_one_that_was_loaded(
    small, tmp_path, replaced
):
    copy = tmp_path / "model.gguf"
    shutil.copy(small[0], copy)
    with oxillama.load(copy, num_threads=1) as other:
        if replaced:
            shutil.copy(small[0], tmp_path / "next.gguf")
            with open(tmp_path / "next.gguf", "r+b") as file:
                file.seek(-4, 2)
                file.write(b"\0\0\0\0")
            os.replace(tmp_path / "next.gguf", copy)
        else:
            copy.unlink()
        assert other.restore(small[3]).snapshot() == small[3]


def test_a_header_is_read_without_the_pages(small, tmp_path):
    path = tmp_path / "saved"
    _, engine, session, data = small
    session.snapshot_to_file(path)
    assert path.read_bytes() == data
    found = EngineSnapshot.inspect(path)
    assert (
        found.facts["tokens"] == 6
        and found.version == 1
        and found.file_size == len(data)
        and sum(found.sections.values()) < len(data)
    )
    broken = bytearray(data)
    broken[-1] ^= 1
    path.write_bytes(broken)
    assert EngineSnapshot.inspect(path) == found
    with pytest.raises(SnapshotIncompatible, match="section kv"):
        engine.restore_from_file(path)
    with pytest.raises(FileNotFoundError):
        engine.restore_from_file(tmp_path / "none")


@pytest.mark.parametrize("way", ["path", "text", "hard link", "link"])
def test_the_models_own_file_is_never_written_over(small, tmp_path, way, request):
    path, engine, session, _ = small
    before, given = path.read_bytes(), tmp_path / "link"
    if way == "hard link":
        given.hardlink_to(path)
    elif way == "link":
        request.getfixturevalue("links")
        given.symlink_to(path)
    else:
        given = path if way == "path" else str(path)
    for name, write in (
        ("snapshot_to_file", session.snapshot_to_file),
        ("save_prefixes", engine.save_prefixes),
    ):
        with pytest.raises(
            ConfigError, match=f"{name}: .* is the model itself, wanted another file"
        ):
            write(given)
    assert path.read_bytes() == before


# open, four sections, header, fsync, close, rename
@pytest.mark.parametrize("step", range(1, 10))
def test_the_old_snapshot_loads_after_a_save_that_failed_at_any_step(
    small, tmp_path, monkeypatch, step
):
    path, engine, session, data = small
    file = tmp_path / "saved"
    file.write_bytes(data)
    other = engine.session()
    engine.prefill([5, 6, 7], session=other)
    monkeypatch.setattr(durable, "os", Failing(step, OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        session.fork().snapshot_to_file(file)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["saved"]
    assert engine.restore_from_file(file).snapshot() == data
    other.snapshot_to_file(file)
    assert engine.restore_from_file(file).tokens == [5, 6, 7]


# ---- older versions
# --------------------------------------------------------------------------------------------------

GOLDEN = sorted((Path(__file__).parent / "golden").glob("snapshot-v*.oxisnap"))


def test_there_is_a_golden_file_of_every_version():
    assert [path.stem for path in GOLDEN] == [
        f"snapshot-v{version}" for version in range(1, KIND.version + 1)
    ]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_golden_file_goes_on_as_it_did_when_it_was_made(path):
    wanted = json.loads(path.with_suffix(".json").read_text())
    with InferenceEngine.resume_from_file(path) as engine:
        if path.stem == f"snapshot-v{KIND.version}":
            again, made = parts(engine.snapshot())[1], parts(path.read_bytes())[1]
            assert again.keys() == made.keys() and all(
                again[name] == made[name] for name in ("tokens", "sampler", "kv")
            )
        done = engine.generate(None, max_tokens=len(wanted["tokens"]))
        assert (list(done.tokens), done.finish_reason) == (wanted["tokens"], wanted["reason"])
