"""Perplexity, divergence and importances: plain numpy over the same logits says the same, and files
that do not fit are refused.
"""

import os
import struct

import numpy as np
import pytest

import oxillama
from oxillama import quality, quant
from oxillama.cli import main
from oxillama.errors import ConfigError, QuantError
from oxillama.gguf import GgufReader
from oxillama.model.ops.experts import chosen
from tests.model.invented import VOCAB as INVENTED_VOCAB
from tests.model.invented import invent

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


def as_llama_cpp_keeps_it(logits):
    """A row of logits in 16 bits, cut at 16 below the likeliest: its bytes, and the
    log-probabilities in them.
    """
    top = logits.max()
    least = max(logits.min(), top - np.float32(16))
    log_sum = np.float32(np.log(np.exp(logits - top).sum(dtype=np.float64)))
    step, floor = np.float32((top - least) / 65535), least - top - log_sum
    codes = np.zeros(len(logits) + len(logits) % 2, "<u2")
    codes[: len(logits)] = np.where(logits > least, np.rint((logits - least) / step), 0)
    return struct.pack("<ff", step, floor) + codes.tobytes(), step * codes[: len(logits)].astype(
        np.float32
    ) + floor


@pytest.fixture(scope="module")
def foreign(engine):
    """A file of logits of three windows as llama.cpp writes it, with the text's own tokens, and the
    log-probabilities in its rows.
    """
    rows = [
        as_llama_cpp_keeps_it(logits)
        for window in quality.windows_of(engine, TEXT, CONTEXT, 3)
        for logits in engine.logits(window)[CONTEXT // 2 : CONTEXT - 1]
    ]
    ids = np.array(engine.tokenize(TEXT)[: 3 * CONTEXT], "<i4")
    head = b"_logits_" + struct.pack("<Iii", CONTEXT, engine.config.vocab_size, 3) + ids.tobytes()
    return head + b"".join(data for data, _ in rows), np.array([values for _, values in rows])


def test_perplexity_counts_the_second_half_of_each_window(engine):
    windows = quality.windows_of(engine, TEXT, CONTEXT, 4)
    found = oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=4)
    values, _ = losses(engine, windows)
    assert (found.tokens, found.windows, found.divergence) == (4 * 15, 4, None)
    assert found.value == pytest.approx(np.exp(values.mean()), rel=1e-5)
    assert found.error == pytest.approx(
        np.exp(values.mean()) * values.std(ddof=1) / np.sqrt(len(values)), rel=1e-4
    )


def test_without_a_number_windows_are_as_long_as_the_engine_s_sessions(engine, tmp_path, capsys):
    text = TEXT * 2
    given = oxillama.perplexity(engine, text, context=engine.context_size)
    assert given.windows == len(engine.tokenize(text)) // 256
    assert oxillama.perplexity(engine, text) == given
    sums, counts, windows = oxillama.collect_imatrix(engine, text)
    assert windows == given.windows
    assert set(counts.values()) == {256 * windows}
    (tmp_path / "text").write_text(text)
    model = ["-m", str(oxillama.embedded_path()), "-c", "256"]
    assert main(["perplexity", *model, str(tmp_path / "text")]) == 0
    assert f"of {windows} windows of 256" in capsys.readouterr().out
    output = tmp_path / "i.gguf"
    assert main(["imatrix", *model, str(tmp_path / "text"), "-o", str(output)]) == 0
    assert GgufReader(output).metadata["imatrix.chunk_size"] == 256


def test_windows_begin_with_the_token_that_begins_a_text_and_do_not_overlap(engine):
    ids = engine.tokenize(TEXT)
    windows = quality.windows_of(engine, TEXT, CONTEXT)
    assert len(windows) == len(ids) // CONTEXT
    begin = engine.tokenizer.bos_id if engine.tokenizer.add_bos else None
    for i, window in enumerate(windows):
        assert window[1:] == ids[i * CONTEXT + 1 : (i + 1) * CONTEXT]
        assert window[0] == (ids[i * CONTEXT] if begin is None else begin)


def test_the_result_does_not_depend_on_threads_or_chunks(engine):
    with oxillama.load(num_threads=1, context_size=256, prefill_chunk_size=7) as other:
        assert oxillama.perplexity(other, TEXT, context=CONTEXT, limit=2) == oxillama.perplexity(
            engine, TEXT, context=CONTEXT, limit=2
        )


def test_a_model_is_at_no_distance_from_itself_but_for_the_files_16_bits(engine, tmp_path):
    path = tmp_path / "base.logits"
    saved = oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=3, save_logits=path)
    found = oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=3, kl_base=path)
    assert found.value == saved.value
    assert abs(found.divergence.mean) < 1e-5 and found.divergence.same_top == 1.0
    assert found.divergence.base_perplexity == pytest.approx(saved.value, rel=1e-3)
    assert [p.name for p in tmp_path.iterdir()] == ["base.logits"]


def test_divergence_is_the_kullback_leibler_divergence_of_the_base_from_the_model(
    engine, requantised, tmp_path
):
    path = tmp_path / "base.logits"
    oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=3, save_logits=path)
    found = oxillama.perplexity(
        requantised, TEXT, context=CONTEXT, limit=3, kl_base=path
    ).divergence
    windows = quality.windows_of(engine, TEXT, CONTEXT, 3)
    base, model = losses(engine, windows)[1], losses(requantised, windows)[1]
    wanted = (np.exp(base) * (base - model)).sum(1)
    assert found.mean == pytest.approx(wanted.mean(), rel=2e-2)
    assert found.median == pytest.approx(
        np.median(wanted), rel=5e-2
    ) and found.p99 == pytest.approx(np.quantile(wanted, 0.99), rel=5e-2)
    assert found.same_top == (base.argmax(1) == model.argmax(1)).mean()


def test_a_base_that_llama_cpp_wrote_holds_the_text_s_own_tokens_where_a_window_begins(
    engine, foreign, tmp_path
):
    path = tmp_path / "base.kld"
    path.write_bytes(foreign[0])
    begins = np.frombuffer(foreign[0], "<i4", 3 * CONTEXT, 20).reshape(3, CONTEXT)[:, 0]
    assert engine.tokenizer.add_bos and (begins != engine.tokenizer.bos_id).sum() == 2
    assert (
        oxillama.perplexity(
            engine, TEXT, context=CONTEXT, limit=3, kl_base=path
        ).divergence.same_top
        == 1.0
    )
    path.write_bytes(foreign[0][:24] + struct.pack("<i", 7) + foreign[0][28:])
    with pytest.raises(QuantError, match="token 1 of window 0 differs from the text's"):
        oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=3, kl_base=path)


def test_what_a_base_cut_off_is_in_no_divergence(engine, requantised, foreign, tmp_path):
    path = tmp_path / "base.kld"
    path.write_bytes(foreign[0])
    base = foreign[1].astype(np.float64)
    assert (base <= -16).mean() > 0.3
    for model in (engine, requantised):
        found = oxillama.perplexity(model, TEXT, context=CONTEXT, limit=3, kl_base=path).divergence
        log_p = losses(model, quality.windows_of(model, TEXT, CONTEXT, 3))[1]
        wanted = np.where(base > -16, np.exp(base) * (base - log_p), 0).sum(1)
        assert (found.mean, found.largest) == (
            pytest.approx(wanted.mean(), rel=1e-3, abs=1e-6),
            pytest.approx(wanted.max(), rel=1e-3, abs=1e-6),
        )
        assert model is requantised or abs(found.mean) < 3e-6


def test_a_base_goes_on_where_the_text_ends(engine, foreign, tmp_path):
    path = tmp_path / "base.kld"
    path.write_bytes(foreign[0])
    assert (
        oxillama.perplexity(
            engine, TEXT, context=CONTEXT, limit=2, kl_base=path
        ).divergence.same_top
        == 1.0
    )


@pytest.mark.parametrize(
    "at, value", [(0, np.nan), (0, -1.0), (0, np.inf), (4, np.nan), (4, -np.inf)]
)
def test_a_base_whose_rows_are_no_numbers_is_refused(engine, foreign, tmp_path, at, value):
    at += len(foreign[0]) - 2 * (8 + 2 * engine.config.vocab_size)  # of the last row but one
    path = tmp_path / "base.kld"
    path.write_bytes(foreign[0][:at] + struct.pack("<f", value) + foreign[0][at + 4 :])
    with pytest.raises(
        QuantError,
        match="row 43 counts from .* in steps of .*, wanted finite numbers and no negative step",
    ):
        oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=3, kl_base=path)


@pytest.mark.parametrize(
    "bad, why",
    [
        ([10**6] * 64, r"text\[0\]: found token 1000000"),
        ([5] * 40 + [-1] * 24, r"text\[40\]: found token -1"),
        ([2**40] * 64, r"text\[0\]: found token 1099511627776"),
        ([5.9] * 64, r"text\[0\]: found float 5.9"),
        ([True] * 64, r"text\[0\]: found bool"),
        (b"x" * 64, "text: found bytes, wanted a text or token ids"),
    ],
)
@pytest.mark.parametrize("function", [oxillama.perplexity, oxillama.collect_imatrix])
def test_ids_that_are_none_of_the_model_s_are_refused_and_nobody_else_feels_it(
    engine, function, bad, why
):
    with pytest.raises(ConfigError, match=why):
        function(engine, bad, context=CONTEXT)
    assert len(engine.generate("Once", max_tokens=2).tokens) == 2


def test_special_tokens_spelled_in_a_text_are_text(engine):
    spelled = engine.tokenizer.token_text(engine.tokenizer.bos_id)
    assert engine.tokenize(spelled) == [engine.tokenizer.bos_id]
    window = quality.windows_of(engine, spelled * CONTEXT, CONTEXT)[0]
    assert window == engine.tokenize(spelled * CONTEXT, parse_special=False)[:CONTEXT]
    assert engine.tokenizer.bos_id not in window[1:]


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
    with pytest.raises(QuantError, match="cannot be read: No such file.*, wanted logits that"):
        oxillama.perplexity(engine, TEXT, context=CONTEXT, kl_base=tmp_path / "none")
    with pytest.raises(ConfigError, match=r"one window of \d+; a smaller context \(--wind"):
        oxillama.perplexity(engine, "short", context=CONTEXT)
    with pytest.raises(ConfigError, match="context"):
        oxillama.perplexity(engine, TEXT, context=3)


def test_importances_are_the_squares_of_what_the_reference_says_each_matrix_meets(engine):
    sums, counts, windows = oxillama.collect_imatrix(engine, TEXT, context=CONTEXT, limit=2)
    assert windows == 2 and set(counts.values()) == {2 * CONTEXT} and set(sums) == set(counts)
    reader = engine._loaded.model.reader
    matrices = {
        name
        for name, info in reader.tensors.items()
        if len(info.shape) == 2 and name.startswith("blk.")
    }
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
                    wanted[tensor.name] = wanted.get(tensor.name, 0) + (
                        frame.slots[op.params["x"]].astype(np.float64) ** 2
                    ).sum(0)
            next(steps)
    for name, found in sums.items():
        assert np.abs(found - wanted[name]).max() <= 0.1 * wanted[name].max(), name
        assert found.sum() == pytest.approx(wanted[name].sum(), rel=0.03), name


@pytest.mark.parametrize("arch", ["qwen3moe", "deepseek2", "gpt-oss"])
def test_importances_of_a_stack_are_those_of_each_matrix(arch, tmp_path):
    path = tmp_path / "experts.gguf"
    invent(path, arch)
    with oxillama.load(path, num_threads=2, context_size=64) as engine:
        ids = [int(i) for i in np.random.default_rng(1).integers(1, INVENTED_VOCAB, 2 * CONTEXT)]
        sums, counts, _ = oxillama.collect_imatrix(engine, ids, context=CONTEXT)
        tensors = engine._loaded.model.reader.tensors
        stacks = {name for name, found in sums.items() if len(tensors[name].shape) == 3}
        assert stacks
        reference, wanted, met = engine._loaded.model.reference(), {}, {}
        for window in (ids[:CONTEXT], ids[CONTEXT:]):
            frame = reference.frame(window)
            steps = reference.steps(frame)
            for op in reference.tape.ops:
                if op.name == "experts":
                    p = op.params
                    which = chosen(frame, p["routes"], p["experts"], CONTEXT)
                    x = frame.slots[p["x"]].astype(np.float64)
                    x = x.reshape(CONTEXT, -1, p["weights"][0].shape[1])
                    x = np.broadcast_to(x, (*which.shape, x.shape[2]))
                    for name in dict.fromkeys(each.name for each in p["weights"]):
                        total = wanted.setdefault(name, np.zeros(sums[name].shape))
                        for k in range(p["experts"]):
                            total[k] += (x[which == k] ** 2).sum(0)
                        met[name] = met.get(name, 0) + np.bincount(
                            which.reshape(-1), minlength=p["experts"]
                        )
                next(steps)
        assert set(wanted) == stacks
        for name in stacks:
            assert np.array_equal(counts[name], met[name]), name
            assert np.allclose(sums[name], wanted[name], rtol=1e-3, atol=1e-4), name
    out = quant.write_imatrix(tmp_path / "imatrix.gguf", sums, counts, chunk_count=2, chunk_size=32)
    quant.quantize_file(path, tmp_path / "q.gguf", "Q8_0", imatrix=out)


def test_importances_are_of_windows_that_a_step_can_take(engine, tmp_path, capsys):
    assert quality.widest_collected(engine) == 256
    with oxillama.load(num_threads=1, context_size=1024) as wide:
        assert quality.widest_collected(wide) == 512
        with pytest.raises(
            ConfigError, match="context: found 513, wanted at most 512, the tokens of one step"
        ):
            oxillama.collect_imatrix(wide, [5] * 513, context=513)
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    assert (
        main(
            [
                "imatrix",
                "-c",
                "1024",
                str(oxillama.embedded_path()),
                str(text),
                "-w",
                "513",
                "-o",
                str(tmp_path / "m.gguf"),
            ]
        )
        == 1
    )
    assert capsys.readouterr().err == "oxillama: --window: found 513, wanted 4 to 512 tokens\n"
    assert (
        main(["perplexity", "-c", "512", str(oxillama.embedded_path()), str(text), "-w", "513"])
        == 1
    )
    assert capsys.readouterr().err == "oxillama: --window: found 513, wanted 4 to 512 tokens\n"


def test_a_place_that_cannot_be_written_is_said_before_a_model_is_loaded(
    tmp_path, capsys, monkeypatch
):
    (tmp_path / "text.txt").write_text(TEXT)
    monkeypatch.setattr("oxillama.cli.quality.load", None)
    assert (
        main(["imatrix", str(tmp_path / "text.txt"), "-o", str(tmp_path / "none" / "m.gguf")]) == 1
    )
    assert "none/m.gguf: cannot be written: there is no such folder" in capsys.readouterr().err


def test_a_text_file_may_have_a_name_that_is_no_utf_8(tmp_path):
    text = os.path.join(tmp_path, os.fsdecode(b"caf\xe9.txt"))
    with open(text, "w") as file:
        file.write(TEXT)
    assert (
        main(
            [
                "imatrix",
                str(oxillama.embedded_path()),
                text,
                "-w",
                "8",
                "-l",
                "1",
                "-o",
                str(tmp_path / "m.gguf"),
            ]
        )
        == 0
    )
    with GgufReader(tmp_path / "m.gguf") as reader:
        assert list(reader.metadata["imatrix.datasets"]) == [
            os.path.join(tmp_path, r"caf\udce9.txt")
        ]


def test_the_commands_write_what_the_functions_give(engine, tmp_path, capsys):
    text, matrix, base = tmp_path / "text.txt", tmp_path / "m.gguf", tmp_path / "base.logits"
    text.write_text(TEXT)
    model = str(oxillama.embedded_path())
    assert (
        main(["imatrix", model, str(text), "-o", str(matrix), "-w", str(CONTEXT), "-l", "2"]) == 0
    )
    sums, counts, _ = oxillama.collect_imatrix(engine, TEXT, context=CONTEXT, limit=2)
    read = quant.read_imatrix(matrix)
    assert set(read) == set(sums)
    for name, values in read.items():
        assert np.array_equal(values, sums[name] / np.float32(counts[name]))
    assert (
        main(["quantize", model, str(tmp_path / "q.gguf"), "Q2_K", "--imatrix", str(matrix)]) == 0
    )
    capsys.readouterr()
    assert (
        main(
            [
                "perplexity",
                model,
                str(text),
                "-w",
                str(CONTEXT),
                "-l",
                "2",
                "--save-logits",
                str(base),
            ]
        )
        == 0
    )
    found = oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=2)
    assert (
        f"perplexity {found.value:.4f} +- {found.error:.4f} over 30 tokens"
        in capsys.readouterr().out
    )
    assert (
        main(
            ["perplexity", model, str(text), "-w", str(CONTEXT), "-l", "2", "--kl-base", str(base)]
        )
        == 0
    )
    assert "same likeliest token 100.00 %" in capsys.readouterr().out


def test_what_a_command_reads_is_never_written_over(tmp_path, capsys):
    model, text = tmp_path / "model.gguf", tmp_path / "text.txt"
    quant.quantize_file(oxillama.embedded_path(), model, "COPY")
    text.write_text(TEXT)
    before = model.read_bytes()
    for output in (model, text):
        for command in (["imatrix", "-o"], ["perplexity", "--save-logits"]):
            assert (
                main(
                    [
                        command[0],
                        str(model),
                        str(text),
                        command[1],
                        str(output),
                        "-w",
                        str(CONTEXT),
                        "-l",
                        "1",
                    ]
                )
                == 1
            )
            assert str(output) in capsys.readouterr().err
    with (
        oxillama.load(model, context_size=64) as engine,
        pytest.raises(ConfigError, match="save_logits: .* is the model itself"),
    ):
        oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=1, save_logits=model)
    with (
        oxillama.load(model, context_size=64) as engine,
        pytest.raises(ConfigError, match="save_logits: .* is kl_base itself"),
    ):
        oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=1, save_logits=text, kl_base=text)
    assert (model.read_bytes(), text.read_text()) == (before, TEXT)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_a_limit_that_is_no_number_of_windows_is_refused(engine, limit):
    with pytest.raises(ConfigError, match="limit: found .*, wanted an integer of 1 or more"):
        oxillama.perplexity(engine, TEXT, context=CONTEXT, limit=limit)


def test_importances_of_a_stack_that_is_one_matrix_in_its_file_are_of_its_columns(tmp_path):
    path, count = tmp_path / "groups.gguf", 2
    invent(path, "deepseek4")
    with oxillama.load(path, num_threads=2, context_size=64) as engine:
        ids = [int(i) for i in np.random.default_rng(1).integers(1, INVENTED_VOCAB, CONTEXT)]
        sums, counts, _ = oxillama.collect_imatrix(engine, ids, context=CONTEXT)
        reference = engine._loaded.model.reference()
        frame = reference.frame(ids)
        for op in reference.steps(frame):
            weights = op.params.get("weights", [])
            if op.name == "experts" and "attn_output_a" in weights[0].name:
                parts = frame.slots[op.params["x"]].reshape(-1, weights[0].shape[1])
                wanted, name = np.square(parts, dtype=np.float64).sum(axis=0), weights[0].name
                assert sums[name].shape == wanted.shape and counts[name] == count * CONTEXT
                assert np.abs(sums[name] - wanted).max() <= 0.02 * wanted.max()
