"""Every error this package raises, as one tree under `OxillamaError`.

A message names the thing, the value found and the value wanted, on one line: `blk.3.attn_q.weight:
file has (4096, 4096), qwen3 needs (2048, 4096)`. Classes that replace a builtin also derive from
it, so `except ValueError` written by a caller keeps working.
"""

from __future__ import annotations

from typing import ClassVar


class OxillamaError(Exception):
    """The root: catching it catches everything this package raises on purpose."""


class ConfigError(OxillamaError, ValueError):
    """A configuration field or argument has a value that cannot be honoured."""


class GgufError(OxillamaError, ValueError):
    """A GGUF file is malformed: truncated, hostile, or of an unknown version or type."""


class GgufNotFound(GgufError, FileNotFoundError):
    """There is no file at the path of a model."""

    def __str__(self) -> str:
        return str(self.args[0])


class ModelError(OxillamaError, ValueError):
    """A well-formed file does not describe a model that can run (architecture, hyper-parameter,
    tensor).
    """


class QuantError(OxillamaError, ValueError):
    """Quantised data or a quantisation request does not fit its format."""


class ConvertError(OxillamaError, ValueError):
    """A model folder cannot be carried over to a GGUF file as it is."""


class LoraError(OxillamaError, ValueError):
    """An adapter is malformed, or does not fit the model it is to change."""


class TokenizerError(OxillamaError, ValueError):
    """A vocabulary is inconsistent or of a kind that is not known."""


class TemplateError(OxillamaError, ValueError):
    """A chat template is malformed, was refused by the sandbox, or raised on these messages."""


class GrammarError(OxillamaError, ValueError):
    """A grammar or schema is malformed, or asks for what cannot be enforced."""


class SamplingError(OxillamaError, RuntimeError):
    """No token can be sampled (everything is banned or masked), or a sampler setting is
    impossible.
    """


class PoolError(OxillamaError, RuntimeError):
    """A page or state pool was exhausted or handed an index it does not own."""

    Exhausted: ClassVar[type[Exhausted]]
    InvalidSlot: ClassVar[type[InvalidSlot]]


class Exhausted(PoolError):
    """A pool has nothing left to hand out."""


class InvalidSlot(PoolError):
    """A slot that nobody owns was used or released."""


PoolError.Exhausted, PoolError.InvalidSlot = Exhausted, InvalidSlot


class ContextError(OxillamaError, ValueError):
    """A prompt or position does not fit the context: `tokens` were found, `limit` is the most there
    is room for; None where the error is not of such numbers.
    """

    def __init__(
        self, message: str = "", *, tokens: int | None = None, limit: int | None = None
    ) -> None:
        super().__init__(message)
        self.tokens, self.limit = tokens, limit


class ImageError(OxillamaError, ValueError):
    """An image is none that is read, is beyond the limits, or does not fit the model."""


class EngineError(OxillamaError, RuntimeError):
    """The engine cannot serve: closed, failed, forked, or without a model."""


class QueueFull(EngineError):
    """As many requests wait as the scheduler's `max_waiting` allows; asked again later, the engine
    may take it.
    """


class WeightsDamaged(EngineError):
    """Packed weights on disk were not what had been written, or not those of the model's file: what
    was generated since the model was loaded may be wrong. The file is removed; load the model
    again.
    """


class PagingError(EngineError):
    """Weights that are paged from a file could not be read: the requests of that step end with
    this, and later ones try again. `errno` is the system's number, None where the file was changed
    or cut.
    """

    def __init__(self, message: str = "", *, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class DamagedWeightsWarning(UserWarning):
    """The same, for results that callers already have."""


class NoNextToken(EngineError):
    """A model that is an encoder was asked for text or logits."""


class RewindError(EngineError):
    """A past cannot be cut back to the position asked for; `NotSupported` and `PositionBeyondEnd`
    say why.
    """

    NotSupported: ClassVar[type[NotSupported]]
    PositionBeyondEnd: ClassVar[type[PositionBeyondEnd]]


class NotSupported(RewindError):
    """What holds the past keeps no way back to that position."""


class PositionBeyondEnd(RewindError):
    """There are not so many positions."""


RewindError.NotSupported, RewindError.PositionBeyondEnd = NotSupported, PositionBeyondEnd


class EmptySequence(OxillamaError, ValueError):
    """Nothing was given where at least one token is needed."""


class RoundsExhausted(OxillamaError, RuntimeError):
    """A model went on calling tools for as many rounds as it was given; `answer` holds the
    conversation up to there.
    """

    answer: object = None


class Cancelled(OxillamaError):
    """The caller cancelled the work while it was running."""


class SnapshotIncompatible(OxillamaError, ValueError):
    """A snapshot is malformed, of a newer format, or of a session that this engine cannot go on
    with exactly; `detail` says which.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class SpecSnapshotIncompatible(SnapshotIncompatible):
    """A snapshot of a speculating session is malformed, or of one that this target and draft cannot
    go on with exactly.
    """


class ModelFingerprintMismatch(OxillamaError, ValueError):
    """A model file is not the one that was asked for: the fingerprints `expected` and `found`, and
    in `detail` where they differ.
    """

    def __init__(self, expected: object, found: object, detail: str) -> None:
        super().__init__(expected, found, detail)
        self.expected, self.found, self.detail = expected, found, detail

    def __str__(self) -> str:
        return self.detail
