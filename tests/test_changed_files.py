"""A file that is shortened or written to while it is used: an error that names it, never a wrong
token, never the end of the process, and other models go on.
"""

import os
import signal

import pytest

import oxillama
from oxillama.errors import GgufError, WeightsDamaged
from oxillama.gguf import GgufReader
from oxillama.model import load, tape_weights
from oxillama.model.load import load_model
from oxillama.quant import quantize_file
from tests.model import tiny
from tests.model.stepping import logits

PROMPT = "Once upon a time"
IDS = list(range(20))
GREEDY = {"temperature": 0, "seed": 1}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(oxillama.embedded_path().read_bytes())
    return path


def shorten(path, engine=None):
    os.truncate(path, 4096)


def overwrite(path, engine=None):
    """As `cp` does, from a file of the same length."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    with open(path, "r+b") as file:
        file.write(data)


def replace_briefly(path, engine):
    """Read while it is empty, and then as before, to the time."""
    data, status = path.read_bytes(), os.stat(path)
    os.truncate(path, 0)
    assert engine._loaded.model.reader.shards[0].buffer[0] == 0
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("change", (shorten, overwrite, replace_briefly))
def test_a_request_ends_with_the_error_and_another_model_goes_on(path, change):
    with oxillama.load(path, num_threads=2) as engine, oxillama.load(num_threads=2) as other:
        wanted = other.generate(PROMPT, max_tokens=12, **GREEDY).tokens
        tokens, seen = [], []

        def processor(ids, logits):  # the request waits for it
            seen.append(0)
            if len(seen) == 4:
                change(path, engine)

        with pytest.raises(WeightsDamaged, match=r"m\.gguf: .*; load the model again"):
            for piece in engine.stream(PROMPT, max_tokens=12, processors=[processor], **GREEDY):
                tokens += piece.tokens
        assert len(seen) == 4 and tokens == list(wanted[: len(tokens)])
        for call in (
            lambda: engine.generate(PROMPT, max_tokens=1),
            lambda: engine.embed("x"),
            lambda: engine.tokenizer,
        ):
            with pytest.raises(WeightsDamaged, match="m.gguf"):
                call()
        assert other.generate(PROMPT, max_tokens=12, **GREEDY).tokens == wanted


def test_a_change_between_requests_is_found_by_the_next(path):
    with oxillama.load(path, num_threads=1) as engine:
        engine.generate(PROMPT, max_tokens=2)
        overwrite(path)
        with pytest.raises(WeightsDamaged, match="as before but written to"):
            engine.generate(PROMPT, max_tokens=1)
    with oxillama.load(path, num_threads=1) as engine:
        assert engine.generate(PROMPT, max_tokens=2).tokens


def test_a_file_that_is_renamed_over_changes_nothing(path):
    with oxillama.load(path, num_threads=1) as engine:
        wanted = engine.generate(PROMPT, max_tokens=8, **GREEDY).tokens
        (path.parent / "other").write_bytes(b"other")
        os.replace(path.parent / "other", path)
        assert engine.generate(PROMPT, max_tokens=8, **GREEDY).tokens == wanted


def test_callers_that_block_all_signals_are_told_too(path):
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with oxillama.load(path, num_threads=2) as engine:
            engine.generate(PROMPT, max_tokens=2)
            shorten(path)
            with pytest.raises(WeightsDamaged, match="found 4096 bytes"):
                engine.generate(PROMPT, max_tokens=2)
        assert signal.SIGBUS in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def test_tokens_have_their_texts_whatever_becomes_of_the_file(path):
    with GgufReader(path) as reader:
        metadata = reader.metadata
    bridge = oxillama.TokenizerBridge.from_metadata(metadata)
    wanted = list(oxillama.TokenizerBridge.from_gguf(oxillama.embedded_path()).vocabulary.tokens)
    shorten(path)
    assert list(bridge.vocabulary.tokens) == wanted


def test_keys_that_are_read_late_are_refused(path):
    reader = GgufReader(path)
    assert reader.metadata["general.architecture"]
    shorten(path)
    with pytest.raises(GgufError, match=r"m\.gguf: the file was changed"):
        reader.metadata["tokenizer.ggml.tokens"]
    with pytest.raises(GgufError, match=r"m\.gguf: the file was changed"):
        reader.check()
    with pytest.raises(GgufError, match=r"m\.gguf: the file was changed"):
        oxillama.ModelFingerprint.compute(reader)


def test_whoever_reads_a_file_is_told_at_the_end(path):
    with pytest.raises(GgufError, match="found 4096 bytes"), GgufReader(path) as reader:
        shorten(path)
        assert not reader.data("token_embd.weight").any()


def test_weights_that_are_packed_later(tmp_path, monkeypatch):
    monkeypatch.setattr(tape_weights, "PACKED_AT_ONCE", 0)
    monkeypatch.setattr(load, "Packer", lambda *some: None)
    path = tmp_path / "m.gguf"
    tiny.write(path, "qwen2").close()
    model = load_model(GgufReader(path), num_threads=2)
    assert not model.packing.whole
    shorten(path)
    for _ in range(2):
        with pytest.raises(WeightsDamaged, match="found 4096 bytes"):
            logits(model, IDS)


def test_a_sidecar(path, tmp_path, monkeypatch):
    monkeypatch.delenv("OXILLAMA_SIDECAR")
    for _ in range(2):
        engine = oxillama.load(path, num_threads=1, sidecar=tmp_path / "sidecars")
        engine.generate(PROMPT, max_tokens=2)
        if engine._loaded.model.verifier is None:
            engine.close()
    engine._loaded.model.verifier.cancel()  # which would find it, too
    (sidecar,) = (tmp_path / "sidecars").glob("*.panels")
    os.utime(sidecar)  # as another process does that uses it
    assert engine.generate(PROMPT, max_tokens=2).tokens
    os.truncate(sidecar, 4096)
    with pytest.raises(WeightsDamaged, match=r"sidecar .*\.panels: the file was changed"):
        engine.generate(PROMPT, max_tokens=2)
    engine.close()


def test_a_quantised_file_is_not_written(path, tmp_path):
    def progress(done, total, name):
        shorten(path)

    with pytest.raises(GgufError, match=r"m\.gguf: the file was changed"):
        quantize_file(path, tmp_path / "new.gguf", "Q8_0", progress=progress)
    assert [each.name for each in tmp_path.iterdir()] == ["m.gguf"]
