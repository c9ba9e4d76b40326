"""The quality of a model's file: perplexity over a text, the distance from another file's logits,
and the importances for quantisation.

Windows follow llama.cpp's convention, so that numbers can be compared. A text is cut into windows
of `context` tokens that do not overlap. The first token of each is replaced by the vocabulary's
first token of a text, if it has one. Only predictions from the second half of a window count, so
that each has at least `context / 2` tokens before it. Special tokens spelled in a text are text.

A file of logits holds the windows' tokens and, per counted row, the log-probabilities in 16 bits,
in the layout llama.cpp writes:

    "_logits_" | u32 context | i32 vocabulary | i32 windows | i32 tokens[windows context] | rows row
    = f32 step, f32 least, u16 code[vocabulary (+ 1 if odd)]: log p = least + step code, cut at 24
    below the likeliest

llama.cpp cuts at 16 below the likeliest, and stores the text's own first token instead of the
replacement. So a replaced first token is not compared, and a divergence sums only entries of the
base above -16, as in llama.cpp: entries that were cut are in no sum.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from oxillama._core.filemap import FileMap
from oxillama.api import InferenceEngine
from oxillama.arguments import check_progress, checked_ids, path_of, whole
from oxillama.durable import replacing
from oxillama.engine.embedding import submit_rows
from oxillama.errors import ConfigError, EngineError, NoNextToken, QuantError
from oxillama.gguf import check_apart, is_among

# windows done, windows in all, perplexity so far
Progress = Callable[[int, int, float], None]
MAGIC = b"_logits_"
NARROWEST = 4  # tokens of a window: one prediction has two tokens before it
_DEEPEST = 24.0
_SUMMED = np.float32(-16)


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far a model's predictions are from another's, in nats per token: the Kullback-Leibler
    divergence of the base from the model.

    `error` is the standard error of `mean`; `same_top` the share of tokens (0 to 1) with the same
    likeliest token; `base_perplexity` that of the base over the same tokens.
    """

    mean: float
    error: float
    median: float
    p99: float
    largest: float
    same_top: float
    base_perplexity: float


@dataclass(frozen=True, slots=True)
class Perplexity:
    """exp of the mean negative log-likelihood of `tokens` predictions, and its standard error
    (first order).
    """

    value: float
    error: float
    tokens: int
    windows: int
    divergence: Divergence | None = None


def usual_window(widest: int) -> int:
    """The tokens of a window where nobody says a number: 512, or the most that there may be."""
    return min(512, widest)


def _check_engine(engine: InferenceEngine) -> None:
    if not isinstance(engine, InferenceEngine):
        raise ConfigError(
            f"engine: found {type(engine).__name__}, wanted an InferenceEngine, as load(...) gives"
        )


def windows_of(
    engine: InferenceEngine, text: str | Sequence[int], context: int, limit: int | None = None
) -> list[list[int]]:
    """The windows of a text (or of token ids), each of `context` tokens.

    ConfigError for invalid ids, or for less than one whole window.
    """
    context = whole("context", context, NARROWEST)
    if context > engine.context_size:
        raise ConfigError(
            f"context: found {context}, the engine's sessions hold {engine.context_size}"
        )
    ids = engine.tokenize(text, parse_special=False) if isinstance(text, str) else text
    ids = checked_ids(ids, engine.config.vocab_size, name="text", wanted="a text or token ids")
    if limit is not None:
        limit = whole("limit", limit, 1)
    count = len(ids) // context if limit is None else min(len(ids) // context, limit)
    if count < 1:
        raise ConfigError(
            f"text: found {len(ids)} tokens, wanted at least one window of {context}; a smaller "
            f"context (--window), down to {NARROWEST}, has shorter windows"
        )
    windows = [ids[i * context : (i + 1) * context] for i in range(count)]
    bos = _beginning(engine)
    return windows if bos is None else [[bos, *window[1:]] for window in windows]


def _beginning(engine: InferenceEngine) -> int | None:
    """The first token of a text, None if the vocabulary has none."""
    try:
        bridge = engine.tokenizer
    except EngineError:
        return None
    return bridge.bos_id if bridge.add_bos else None


def perplexity(
    engine: InferenceEngine,
    text: str | Sequence[int],
    *,
    context: int | None = None,
    limit: int | None = None,
    save_logits: str | os.PathLike[str] | None = None,
    kl_base: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Perplexity:
    """The perplexity of `text` under the engine's model, over at most `limit` windows of `context`
    tokens (None: 512, or as many as the engine's sessions hold).

    save_logits: write every counted prediction to this file (2 bytes per vocabulary entry and
    token). kl_base: compare with such a file, which must begin with the windows of the text and may
    be longer. ConfigError for settings that cannot be honoured, QuantError for a file that does not
    fit.
    """
    _check_engine(engine)
    if engine.config.filling is not None:
        raise NoNextToken(
            f"perplexity: found {engine.config.architecture}, which fills in masks and has no next "
            "token, wanted a model that has one"
        )
    check_progress(progress)
    for name, path in (("save_logits", save_logits), ("kl_base", kl_base)):
        if path is not None:
            path_of(name, path)
    if save_logits is not None:
        check_apart("save_logits", save_logits, engine.model_files)
        if kl_base is not None and is_among(save_logits, [kl_base]):
            raise ConfigError(f"save_logits: {save_logits} is kl_base itself, wanted another file")
    if context is None:
        context = usual_window(engine.context_size)
    windows = windows_of(engine, text, context, limit)
    base = (
        None
        if kl_base is None
        else _Base(
            kl_base, windows, engine.config.vocab_size, begins=_beginning(engine) is not None
        )
    )
    first, losses, distances = context // 2, [], []
    with _saved(save_logits, windows, context, engine.config.vocab_size) as save:
        for index, window in enumerate(windows):
            rows = base.rows(index) if base is not None else None

            def take(at: int, logits: np.ndarray, window=window, rows=rows) -> None:
                for position in range(max(at, first), min(at + len(logits), context - 1)):
                    log_p = log_softmax(logits[position - at])
                    losses.append(-float(log_p[window[position + 1]]))
                    if save is not None:
                        save(_encoded(log_p))
                    if rows is not None:
                        distances.append(_distance(next(rows), log_p, window[position + 1]))

            submit_rows(engine.loaded.core, window, take, owner=engine).result()
            if progress is not None:
                progress(index + 1, len(windows), float(np.exp(np.mean(losses))))
        if base is not None:
            base.check()
    value, error = _mean(np.array(losses))
    found = _divergence(np.array(distances)) if base is not None else None
    return Perplexity(
        float(np.exp(value)), float(np.exp(value) * error), len(losses), len(windows), found
    )


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """float32 log-probabilities of a row of logits; the sum is taken in float64."""
    shifted = logits - logits.max()
    return shifted - np.float32(np.log(np.exp(shifted).sum(dtype=np.float64)))


def _mean(values: np.ndarray) -> tuple[float, float]:
    """Mean and its standard error."""
    spread = values.var() / (len(values) - 1) if len(values) > 1 else 0.0
    return float(values.mean()), float(np.sqrt(spread))


def _distance(base: np.ndarray, log_p: np.ndarray, token: int) -> tuple[float, bool, float]:
    """KL divergence of base from the model's row, whether their likeliest tokens agree, and the
    base's loss.
    """
    kept = base > _SUMMED
    known = base[kept]
    return (
        float((np.exp(known, dtype=np.float64) * (known - log_p[kept])).sum()),
        int(base.argmax()) == int(log_p.argmax()),
        -float(base[token]),
    )


def _divergence(rows: np.ndarray) -> Divergence:
    values = rows[:, 0]
    mean, error = _mean(values)
    return Divergence(
        mean,
        error,
        float(np.median(values)),
        float(np.quantile(values, 0.99)),
        float(values.max()),
        float(rows[:, 1].mean()),
        float(np.exp(rows[:, 2].mean())),
    )


# ---- files of logits
# --------------------------------------------------------------------------------------------------


def _encoded(log_p: np.ndarray) -> bytes:
    top = log_p.max()
    least = max(log_p.min(), np.float32(top - _DEEPEST))
    step = np.float32((top - least) / 65535)
    codes = np.zeros(len(log_p) + len(log_p) % 2, "<u2")
    if step > 0:
        codes[: len(log_p)] = np.rint(np.maximum(log_p - least, 0) / step).clip(0, 65535)
    return struct.pack("<ff", step, least) + codes.tobytes()


@contextmanager
def _saved(
    path: str | os.PathLike[str] | None, windows: list[list[int]], context: int, vocab: int
) -> Iterator[Callable | None]:
    """A function that writes a row to the file of logits, which appears when it is complete; None
    if no file is asked for.
    """
    if path is None:
        yield None
        return
    try:
        with replacing(path) as fd, open(fd, "wb", closefd=False) as file:
            file.write(
                MAGIC
                + struct.pack("<Iii", context, vocab, len(windows))
                + np.array(windows, "<i4").tobytes()
            )
            yield file.write
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error


class _Base:
    """A file of logits, mapped and checked against the windows to compare.

    `begins`: the first token of each window is the vocabulary's first token of a text, not the
    text's own.
    """

    def __init__(
        self, path: str | os.PathLike[str], windows: list[list[int]], vocab: int, *, begins: bool
    ) -> None:
        context = len(windows[0])
        try:
            with open(path, "rb") as file:
                self._map = FileMap(file.fileno(), str(path))
            data = np.frombuffer(memoryview(self._map), np.uint8)
        except (OSError, ValueError) as error:
            raise QuantError(
                f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}, wanted "
                "logits that an earlier run has saved"
            ) from error
        if bytes(data[:8]) != MAGIC or len(data) < 20:
            raise QuantError(
                f"{path}: starts with {bytes(data[:8])!r}, wanted {MAGIC!r}: no file of logits"
            )
        n, words, count = struct.unpack("<Iii", bytes(data[8:20]))
        if (n, words) != (context, vocab) or count < len(windows):
            raise QuantError(
                f"{path}: found {count} windows of {n} tokens, of a vocabulary of {words}, wanted "
                f"at least {len(windows)} of {context}, of a vocabulary of {vocab}"
            )
        self.vocab, self.kept = vocab, context - 1 - context // 2
        self.size = 8 + 2 * (vocab + vocab % 2)
        self.start = 20 + 4 * n * count
        if len(data) < self.start + count * self.kept * self.size:
            raise QuantError(
                f"{path}: {len(data)} bytes, wanted {self.start + count * self.kept * self.size}: "
                "truncated"
            )
        wrong = data[20 : 20 + 4 * n * len(windows)].view("<i4").reshape(-1, n) != np.array(windows)
        wrong[:, 0] &= not begins
        if wrong.any():
            window, at = np.argwhere(wrong)[0]
            raise QuantError(
                f"{path}: token {at} of window {window} differs from the text's: it was made "
                "from another text"
            )
        scales = np.ndarray((len(windows) * self.kept, 2), "<f4", data, self.start, (self.size, 4))
        bad = np.flatnonzero(~(np.isfinite(scales).all(1) & (scales[:, 0] >= 0)))
        if len(bad):
            step, least = scales[bad[0]]
            raise QuantError(
                f"{path}: row {bad[0]} counts from {least:g} in steps of {step:g}, wanted finite "
                "numbers and no negative step"
            )
        self.data = data

    def check(self) -> None:
        """Raise QuantError if the file was changed after it was opened."""
        change = self._map.change()
        if change is not None:
            raise QuantError(change)

    def rows(self, window: int) -> Iterator[np.ndarray]:
        """The log-probabilities of a window's counted rows, float32 (vocabulary,) each."""
        for row in range(window * self.kept, (window + 1) * self.kept):
            raw = self.data[self.start + row * self.size : self.start + (row + 1) * self.size]
            step, least = np.frombuffer(raw[:8].tobytes(), "<f4")
            yield (
                np.frombuffer(raw[8 : 8 + 2 * self.vocab].tobytes(), "<u2").astype(np.float32)
                * step
                + least
            )


# ---- importances
# --------------------------------------------------------------------------------------------------


def widest_collected(engine: InferenceEngine) -> int:
    """The largest window of `collect_imatrix`: it must fit one step of the engine's program, and a
    session.
    """
    return min(engine.context_size, engine.loaded.core.program.max_rows)


def collect_imatrix(
    engine: InferenceEngine,
    text: str | Sequence[int],
    *,
    context: int | None = None,
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, int | np.ndarray], int]:
    """Sums of squares of the inputs of each column of every matrix except the output's, over the
    windows of a text, each of `context` tokens (None: 512, or as many as `widest_collected`).

    Returns float32 sums by tensor name, (columns,) or (matrices, columns) for a stack of experts or
    heads; the number of tokens summed by tensor name, a number or (matrices,); and the number of
    windows: the arguments of `quant.write_imatrix`. A tensor that is multiplied as its transpose
    has none. The inputs are those of the kernels, in steps of 1/127 of a block's largest.
    ConfigError for a text shorter than a window, or a window longer than a step.
    """
    _check_engine(engine)
    check_progress(progress)
    if context is None:
        context = usual_window(widest_collected(engine))
    windows = windows_of(engine, text, context, limit)
    if context > widest_collected(engine):
        raise ConfigError(
            f"context: found {context}, wanted at most {widest_collected(engine)}, the tokens of "
            "one step, to collect importances"
        )
    sums: dict[str, np.ndarray] = {}
    counts: dict[str, int | np.ndarray] = {}
    tensors = engine.loaded.model.reader.tensors
    for index, window in enumerate(windows):
        with engine.raw_loop() as loop:
            seen = set()
            for weights, rows, matrices in loop.matmul_inputs(window):
                squares: np.ndarray
                met: int | np.ndarray
                shape = tensors[weights[0].name].shape
                if matrices is None or len(shape) == 2:  # a stack may be one matrix in the file
                    squares, met = np.einsum("ij,ij->j", rows, rows, dtype=np.float64), len(rows)
                else:
                    squares = np.zeros((shape[0], rows.shape[1]))
                    np.add.at(squares, matrices, np.square(rows, dtype=np.float64))
                    met = np.bincount(matrices, minlength=shape[0])
                for name in dict.fromkeys(each.name for each in weights if not each.turned):
                    if name not in seen:  # parts of one tensor meet the same rows
                        sums[name] = sums.get(name, 0) + squares
                        counts[name] = counts.get(name, 0) + met
                        seen.add(name)
        if progress is not None:
            progress(index + 1, len(windows))
    return {name: total.astype(np.float32) for name, total in sums.items()}, counts, len(windows)
