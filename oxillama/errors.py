"""All errors of this package, as one tree under `OxillamaError`.

A message is one line with the thing, the value found and the value wanted: `blk.3.attn_q.weight:
file has (4096, 4096), qwen3 needs (2048, 4096)`. Classes that refine a builtin error also derive
from it, so existing `except ValueError` clauses keep working.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, NoReturn


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the line outside of this package that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and (frame.f_globals.get("__name__") or "").startswith(_INSIDE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


_INSIDE = __name__.partition(".")[0] + "."


@contextmanager
def starting_thread() -> Iterator[None]:
    """A context manager around the start of a thread: an EngineError if the system refuses it.

    SIGBUS is unblocked in the thread, even where its starter blocks all signals: a read of a mapped
    file that was shortened reaches its handler (`_core.filemap`).
    """
    masks = hasattr(signal, "pthread_sigmask")  # not on Windows, where it is no signal
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGBUS}) if masks else None
    try:
        yield
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        raise EngineError(
            "threads: the system refused one, wanted a higher limit of threads, or more memory"
        ) from error
    finally:
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def not_compiled(error: ModuleNotFoundError) -> ImportError | None:
    """The error for a package without its compiled modules; None if another module is missing."""
    if not (error.name or "").startswith("oxillama._core."):
        return None
    folder = os.path.dirname(__file__)
    return ImportError(
        f"oxillama: found sources that are not compiled in {folder!r}, wanted the installed "
        "package: work in another folder than the checkout, or run `pip install --editable .` "
        "in it",
        name=error.name,
        path=__file__,
    )


def not_pickled(what: str, instead: str) -> Callable[[object], NoReturn]:
    """The `__reduce__` of a class whose objects hold memory, threads or files of this process, and
    which two copies would both give back: pickling and copying are a TypeError that says why
    (what), and what does the same (instead).
    """

    def __reduce__(self: object) -> NoReturn:
        raise TypeError(f"{what} and cannot be pickled or copied; {instead}")

    return __reduce__


class OxillamaError(Exception):
    """The base class of every error that this package raises on purpose."""


class ConfigError(OxillamaError, ValueError):
    """A configuration field or an argument has a value that cannot be honoured."""


class MissingExtra(ConfigError, ImportError):
    """Something asked for needs a package that an extra brings, and it cannot be imported."""

    def __init__(self, what: str, error: ImportError | OSError, extra: str) -> None:
        said = f"needs {error.name}" if isinstance(error, ModuleNotFoundError) else str(error)
        super().__init__(f"{what}: {said}, wanted pip install 'oxillama[{extra}]'")


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
    """A model folder cannot be converted to a GGUF file."""


class LoraError(OxillamaError, ValueError):
    """An adapter is malformed or does not fit its model."""


class TokenizerError(OxillamaError, ValueError):
    """A vocabulary is inconsistent or of an unknown kind."""


class TemplateError(OxillamaError, ValueError):
    """A chat template is malformed, was refused by the sandbox, or raised on these messages."""


class GrammarError(OxillamaError, ValueError):
    """A grammar or schema is malformed or cannot be enforced."""


class SamplingError(OxillamaError, RuntimeError):
    """No token can be sampled (everything is banned or masked), or a sampler setting is
    impossible.
    """


class PoolError(OxillamaError, RuntimeError):
    """A page or state pool was exhausted or handed an index it does not own."""

    Exhausted: ClassVar[type[Exhausted]]
    InvalidSlot: ClassVar[type[InvalidSlot]]


class Exhausted(PoolError):
    """A pool has no free page or slot."""


class InvalidSlot(PoolError):
    """A slot without an owner was used or released."""


PoolError.Exhausted, PoolError.InvalidSlot = Exhausted, InvalidSlot


class ContextError(OxillamaError, ValueError):
    """A prompt or position does not fit the context. `tokens` is the number found, `limit` the
    largest that fits; None if the error is not about numbers.
    """

    def __init__(
        self, message: str = "", *, tokens: int | None = None, limit: int | None = None
    ) -> None:
        super().__init__(message)
        self.tokens, self.limit = tokens, limit


class ImageError(OxillamaError, ValueError):
    """An image cannot be read, exceeds the limits, or does not fit the model."""


class AudioError(OxillamaError, ValueError):
    """Audio cannot be read, exceeds the limits, or does not fit the model."""


class EngineError(OxillamaError, RuntimeError):
    """The engine cannot serve: closed, failed, forked, or without a model."""


class QueueFull(EngineError):
    """As many requests are waiting as the scheduler's `max_waiting` allows. A later attempt may
    succeed.
    """


class WeightsDamaged(EngineError):
    """Weights on disk are no longer what was loaded. Load the model again.

    A sidecar differs from what was written or from the model's file: it is removed, and results
    since the model was loaded may be wrong. Or the model's file was changed in place: the step that
    ends next raises this, so that no token comes from changed weights.
    """


class PagingError(EngineError):
    """Paged weights could not be read from their file. The requests of that step end with this
    error; later ones try again. `errno` is the system's error number, None if the file was changed
    or truncated.
    """

    def __init__(self, message: str = "", *, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class ContextWarning(UserWarning):
    """A context is longer than the texts that its model was trained on."""


class DamagedWeightsWarning(UserWarning):
    """Packed weights on disk were damaged, so results that callers already have may be wrong."""


class NoNextToken(EngineError):
    """An encoder was asked for text or logits."""


class RewindError(EngineError):
    """A sequence cannot be truncated to the position asked for; `NotSupported` and
    `PositionBeyondEnd` say why.
    """

    NotSupported: ClassVar[type[NotSupported]]
    PositionBeyondEnd: ClassVar[type[PositionBeyondEnd]]


class NotSupported(RewindError):
    """The memory of this sequence cannot be truncated to that position."""


class PositionBeyondEnd(RewindError):
    """The sequence has fewer positions."""


RewindError.NotSupported, RewindError.PositionBeyondEnd = NotSupported, PositionBeyondEnd


class EmptySequence(OxillamaError, ValueError):
    """No tokens were given where at least one is needed."""


class RoundsExhausted(OxillamaError, RuntimeError):
    """A model still called tools after the allowed number of rounds; `answer` holds the
    conversation so far.
    """

    answer: object = None


class Cancelled(OxillamaError):
    """The caller cancelled the work while it was running."""


class SnapshotIncompatible(OxillamaError, ValueError):
    """A snapshot is malformed, of a newer format, or of a session that this engine cannot continue
    exactly; `detail` says which.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class SnapshotNotFound(SnapshotIncompatible, FileNotFoundError):
    """There is no file at the path of a snapshot."""

    def __init__(self, detail: str, path: str | None = None) -> None:
        super().__init__(detail)
        self.errno, self.strerror, self.filename = errno.ENOENT, "no such file", path

    def __str__(self) -> str:
        return self.detail


class SpecSnapshotIncompatible(SnapshotIncompatible):
    """A snapshot of a speculating session is malformed, or this target and draft cannot continue it
    exactly.
    """


class ModelFingerprintMismatch(OxillamaError, ValueError):
    """A model file is not the expected one: the fingerprints `expected` and `found`, and in
    `detail` where they differ.
    """

    def __init__(self, expected: object, found: object, detail: str) -> None:
        super().__init__(expected, found, detail)
        self.expected, self.found, self.detail = expected, found, detail

    def __str__(self) -> str:
        return self.detail


def listed(names: Sequence[str], most: int = 12) -> str:
    """The first names of several, and the number of the others, for a message."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
