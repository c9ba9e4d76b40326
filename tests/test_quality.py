"""Perplexity, divergence and importances: plain numpy over the same logits says the same, and files that do not fit are refused."""
import numpy as np
import pytest

import oxillama
from oxillama import quality, quant
from oxillama.cli import main
from oxillama.errors import ConfigError, QuantError

TEXT = "Once upon a time there was a small fox who lived near the river. " * 12
CONTEXT = 32


@pytest.fixture(scope="module")
def engine():
    with oxillama.load(num_threads=2, context_size=256) as engine:
        yield engine


@pytest.fixture(scope="module")
def requantised(tmp_path_factory):
    path = tmp_path_factory.mktemp("quality") / "q4.gguf"
    quant.quantize_file(oxillama.embedded_path(), path, "Q4_0")
    with oxillama.load(path, num_threads=2, context_size=256) as engine:
        yield engine


def losses(engine, windows):
    """Losses and log-probabilities of the counted rows, by float64."""
    rows = []
    for window in windows:
        logits = engine.logits(window).astype(np.float64)
        log_p = logits - logits.max(1, keepdims=True)
        log_p -= np.log(np.exp(log_p).sum(1, keepdims=True))
        rows += [(-log_p[i, window[i + 1]], log_p[i]) for i in range(CONTEXT // 2, CONTEXT - 1)]
    return np.array([loss for loss, _ in rows]), np.array([row for _, row in rows])


def test_perplexity_counts_the_second_half_of_each_window(engine):
    windows = quality.windows_of(engine, TEXT, CONTEXT, 4)
    found = oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=4)
    values, _ = losses(engine, windows)
    assert (found.tokens, found.windows, found.divergence) == (4 * 15, 4, None)
    assert found.value == pytest.approx(np.exp(values.mean()), rel=1e-5)
    assert found.error == pytest.approx(np.exp(values.mean()) * values.std(ddof=1) / np.sqrt(len(values)), rel=1e-4)


def test_windows_begin_with_the_token_that_begins_a_text_and_do_not_overlap(engine):
    ids = engine.tokenize(TEXT)
    windows = quality.windows_of(engine, TEXT, CONTEXT)
    assert len(windows) == len(ids) // CONTEXT
    begin = engine.tokenizer.bos_id if engine.tokenizer.add_bos else None
    for i, window in enumerate(windows):
        assert window[1:] == ids[i * CONTEXT + 1:(i + 1) * CONTEXT]
        assert window[0] == (ids[i * CONTEXT] if begin is None else begin)


def test_the_result_does_not_depend_on_threads_or_chunks(engine):
    with oxillama.load(num_threads=1, context_size=256, prefill_chunk_size=7) as other:
        assert oxillama.perplexity(other, TEXT, context=CONTEXT, limit=2) == oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=2)


def test_a_model_is_at_no_distance_from_itself_but_for_the_files_16_bits(engine, tmp_path):
    path = tmp_path / "base.logits"
    saved = oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=3, save_logits=path)
    found = oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=3, kl_base=path)
    assert found.value == saved.value
    assert abs(found.divergence.mean) < 1e-5 and found.divergence.same_top == 1.0
    assert found.divergence.base_perplexity == pytest.approx(saved.value, rel=1e-3)
    assert [p.name for p in tmp_path.iterdir()] == ["base.logits"]


def test_divergence_is_the_kullback_leibler_divergence_of_the_base_from_the_model(engine, requantised, tmp_path):
    path = tmp_path / "base.logits"
    oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=3, save_logits=path)
    found = oxillama.perplexity(requantised, TEXT, context=CONTEXT, limit=3, kl_base=path).divergence
    windows = quality.windows_of(engine, TEXT, CONTEXT, 3)
    base, model = losses(engine, windows)[1], losses(requantised, windows)[1]
    wanted = (np.exp(base) * (base - model)).sum(1)
    assert found.mean == pytest.approx(wanted.mean(), rel=2e-2)
    assert found.median == pytest.approx(np.median(wanted), rel=5e-2) and found.p99 == pytest.approx(np.quantile(wanted, 0.99), rel=5e-2)
    assert found.same_top == (base.argmax(1) == model.argmax(1)).mean()


def test_a_file_of_logits_of_another_text_size_or_kind_is_refused(engine, tmp_path):
    path = tmp_path / "base.logits"
    oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=2, save_logits=path)
    data = path.read_bytes()
    with pytest.raises(QuantError, match="another text"):
        oxillama.perplexity(engine, TEXT[9:], context=CONTEXT, limit=2, kl_base=path)
    with pytest.raises(QuantError, match="wanted at least 3 of 32"):
        oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=3, kl_base=path)
    path.write_bytes(data[:-1])
    with pytest.raises(QuantError, match="truncated"):
        oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=2, kl_base=path)
    path.write_bytes(b"GGUF" + data[4:])
    with pytest.raises(QuantError, match="no file of logits"):
        oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=2, kl_base=path)
    with pytest.raises(QuantError, match="cannot be read"):
        oxillama.perplexity(engine, TEXT, context=CONTEXT, kl_base=tmp_path / "none")
    with pytest.raises(ConfigError, match="wanted at least one window"):
        oxillama.perplexity(engine, "short", context=CONTEXT)
    with pytest.raises(ConfigError, match="context"):
        oxillama.perplexity(engine, TEXT, context=3)


def test_importances_are_the_squares_of_what_the_reference_says_each_matrix_meets(engine):
    sums, counts, windows = oxillama.collect_imatrix(engine, TEXT, context=CONTEXT, limit=2)
    assert windows == 2 and set(counts.values()) == {2 * CONTEXT} and set(sums) == set(counts)
    reader = engine._loaded.model.reader
    matrices = {name for name, info in reader.tensors.items() if len(info.shape) == 2 and name.startswith("blk.")}
    assert set(sums) == matrices
    reference = engine._loaded.model.reference()
    wanted: dict[str, np.ndarray] = {}
    for window in quality.windows_of(engine, TEXT, CONTEXT, 2):
        frame = reference.frame(window)
        ops = iter(reference.tape.ops)
        steps = reference.steps(frame)
        for op in ops:
            if op.name == "matmul" and op.params["out"] != -1:
                for tensor in op.params["weights"]:
                    wanted[tensor.name] = wanted.get(tensor.name, 0) + (frame.slots[op.params["x"]].astype(np.float64) ** 2).sum(0)
            next(steps)
    for name, found in sums.items():
        assert np.abs(found - wanted[name]).max() <= 0.1 * wanted[name].max(), name
        assert found.sum() == pytest.approx(wanted[name].sum(), rel=0.03), name


def test_the_commands_write_what_the_functions_give(engine, tmp_path, capsys):
    text, matrix, base = tmp_path / "text.txt", tmp_path / "m.gguf", tmp_path / "base.logits"
    text.write_text(TEXT)
    model = str(oxillama.embedded_path())
    assert main(["imatrix", model, str(text), "-o", str(matrix), "-w", str(CONTEXT), "-l", "2"]) == 0
    sums, counts, _ = oxillama.collect_imatrix(engine, TEXT, context=CONTEXT, limit=2)
    read = quant.read_imatrix(matrix)
    assert set(read) == set(sums)
    for name, values in read.items():
        assert np.array_equal(values, sums[name] / np.float32(counts[name]))
    assert main(["quantize", model, str(tmp_path / "q.gguf"), "Q2_K", "--imatrix", str(matrix)]) == 0
    capsys.readouterr()
    assert main(["perplexity", model, str(text), "-w", str(CONTEXT), "-l", "2", "--save-logits", str(base)]) == 0
    found = oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=2)
    assert f"perplexity {found.value:.4f} +- {found.error:.4f} over 30 tokens" in capsys.readouterr().out
    assert main(["perplexity", model, str(text), "-w", str(CONTEXT), "-l", "2", "--kl-base", str(base)]) == 0
    assert "same likeliest token 100.00 %" in capsys.readouterr().out


def test_what_a_command_reads_is_never_written_over(tmp_path, capsys):
    model, text = tmp_path / "model.gguf", tmp_path / "text.txt"
    quant.quantize_file(oxillama.embedded_path(), model, "COPY")
    text.write_text(TEXT)
    before = model.read_bytes()
    for output in (model, text):
        for command in (["imatrix", "-o"], ["perplexity", "--save-logits"]):
            assert main([command[0], str(model), str(text), command[1], str(output), "-w", str(CONTEXT), "-l", "1"]) == 1
            assert str(output) in capsys.readouterr().err
    with oxillama.load(model, context_size=64) as engine, pytest.raises(ConfigError, match="save_logits: .* is the model itself"):
        oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=1, save_logits=model)
    assert (model.read_bytes(), text.read_text()) == (before, TEXT)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_a_limit_that_is_no_number_of_windows_is_refused(engine, limit):
    with pytest.raises(ConfigError, match="limit: found .*, wanted None or an integer of 1 or more"):
        oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=limit)
