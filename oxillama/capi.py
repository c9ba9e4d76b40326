"""Implements the C table of `include/oxillama.h`: addresses in, status codes out.

`table` is the capsule that C programs import, and `address()` the same pointer as a number for
ctypes and cffi. The functions here are the checked Python side of the table's entries. `_core.capi`
calls them and turns exceptions into a status with `status`.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

from oxillama import quant
from oxillama._core import capi as _table
from oxillama._core.codecs import unpack_rows
from oxillama._core.matmul import matmul_acts
from oxillama._core.matmul import quantise_rows as activations
from oxillama._core.panels import PackedMatrix
from oxillama.api import InferenceEngine, load
from oxillama.errors import (
    ConfigError,
    ContextError,
    EngineError,
    GgufError,
    ModelError,
    PoolError,
    QuantError,
    TokenizerError,
)
from oxillama.sampling import Sampler, SamplerConfig

__all__ = ["address", "table"]

_MOST = 1 << 46  # bytes that an address space holds
_STATUS: tuple[tuple[type[BaseException], str], ...] = (
    (QuantError, "format"),
    (GgufError, "model"),
    (ModelError, "model"),
    (OSError, "model"),
    (ContextError, "context"),
    (PoolError, "context"),
    (EngineError, "engine"),
    (MemoryError, "memory"),
    (ConfigError, "invalid"),
    (TokenizerError, "invalid"),
    (ValueError, "invalid"),
)


def status(error: BaseException) -> int:
    """The negative status of an error."""
    for kind, name in _STATUS:
        if isinstance(error, kind):
            return _table.STATUS[name]
    return _table.STATUS["other"]


def view(address: int, size: int) -> memoryview:
    """`size` bytes of the caller's memory."""
    if size < 0 or size > _MOST:
        raise ConfigError(f"size: found {size}, wanted 0 to {_MOST} bytes")
    if not address and size:
        raise ConfigError(f"pointer: found NULL, wanted {size} bytes")
    if not size:
        return memoryview(bytearray())
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def _array(address: int, kind: Any, *shape: int) -> np.ndarray:
    """An array over the caller's memory."""
    size = np.dtype(kind).itemsize
    for length in shape:
        if length < 0:
            raise ConfigError(f"shape: found {shape}, wanted none below 0")
        size *= length
    return np.frombuffer(view(address, size), kind).reshape(shape)


def _format(name: bytes) -> quant.Format:
    return quant.format_named(name.decode("ascii", "replace"))


def _threads(threads: int) -> int:
    if threads < 0:
        raise ConfigError(f"threads: found {threads}, wanted at least 0")
    return threads


def format_sizes(format: bytes) -> tuple[int, int]:
    """Columns and bytes of a block."""
    kind = _format(format)
    return kind.columns, kind.block_bytes


def dequantise(format: bytes, blocks: int, rows: int, columns: int, out: int, threads: int) -> None:
    """Blocks (rows, columns) to float32 in `out`."""
    kind = _format(format)
    source = _array(blocks, np.uint8, rows, kind.row_bytes(columns))
    if rows:
        unpack_rows(source, kind.name, _array(out, np.float32, rows, columns), _threads(threads))


def quantise(
    format: bytes, values: int, rows: int, columns: int, importance: int, out: int, threads: int
) -> None:
    """Float32 rows to blocks in `out`, checked as `oxillama.quant.quantize` does."""
    kind = _format(format)
    found = _array(values, np.float32, rows, columns)
    weights = _array(importance, np.float32, columns) if importance else None
    size = kind.row_bytes(columns)
    if rows:
        made = quant.quantize(found, kind.name, weights, num_threads=_threads(threads))
        _array(out, np.uint8, rows, size)[:] = made


def pack(format: bytes, blocks: int, rows: int, columns: int, threads: int) -> PackedMatrix:
    """A matrix in panels."""
    kind = _format(format)
    source = _array(blocks, np.uint8, rows, kind.row_bytes(columns))
    return PackedMatrix(source.reshape(-1), kind.name, rows, columns, _threads(threads))


def matmul(matrix: PackedMatrix, x: int, m: int, out: int, threads: int) -> None:
    """out (m, rows) = x (m, columns) . matrix^T."""
    rows = _array(x, np.float32, m, matrix.cols)
    into = _array(out, np.float32, m, matrix.rows)
    if m:
        acts = activations(rows, matrix.act)
        matmul_acts([matrix], acts, num_threads=_threads(threads), out=into)


class Model:
    """A model opened from C."""

    def __init__(self, path: bytes | None, threads: int, context: int) -> None:
        config: dict[str, Any] = {}
        if threads:
            config["num_threads"] = _threads(threads)
        if context:
            config["context_size"] = context
        name = None if path is None else path.decode(sys.getfilesystemencoding(), "surrogateescape")
        self.engine: InferenceEngine = load(name, **config)

    def sizes(self) -> tuple[int, int]:
        """Tokens of the vocabulary and of the context."""
        return self.engine.config.vocab_size, self.engine.context_size

    def tokenise(self, text: bytes, special: bool) -> list[int]:
        """Token ids; ConfigError for text that is not UTF-8."""
        try:
            known = text.decode()
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"text: found {error.reason} at byte {error.start}, wanted UTF-8"
            ) from None
        return self.engine.tokenize(known, add_special=special, parse_special=special)

    def token_bytes(self, token: int) -> bytes:
        """What a token spells."""
        return self.engine.tokenizer.token_bytes(token)

    def is_end(self, token: int) -> bool:
        """Whether a token ends a text."""
        return self.engine.is_eos(token)


class ModelSession:
    """A sequence that C code extends and samples from."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.session = model.engine.session()
        self.logits: np.ndarray | None = None
        self._sampler: Sampler | None = None

    def step(self, tokens: int, count: int, logits: int) -> None:
        """Append tokens; write the logits after the last one if a buffer is given."""
        ids = _array(tokens, np.int32, count).tolist()
        if not ids:
            raise ConfigError("count: found 0, wanted at least one token")
        into = _array(logits, np.float32, self.model.sizes()[0]) if logits else None
        self.logits = self.model.engine.prefill(ids, session=self.session)
        if self._sampler is not None:
            for token in ids:
                self._sampler.accept(token)
        if into is not None:
            into[:] = self.logits

    def sample(
        self,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        repetition_penalty: float,
        seed: int,
    ) -> int:
        """Draw a token from the logits of the last step."""
        if self.logits is None:
            raise ConfigError("sample: found no step, wanted one before it")
        config = SamplerConfig(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
        )
        if self._sampler is None or self._sampler.config != config:
            self._sampler = Sampler(config, len(self.logits))
            self._sampler.accept_prompt(self.session.tokens[self.session.target :])
        return self._sampler.sample(self.logits)

    def close(self) -> None:
        """Release its pages."""
        self.session.close()


_table.install(sys.modules[__name__])
table = _table.table
address = _table.address
