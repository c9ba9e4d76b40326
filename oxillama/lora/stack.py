"""The adapters of an engine: the loaded ones, by name, and the stack for new sessions.

A session keeps the adapters it began with, whatever is pushed or popped later, because its keys and
values depend on them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oxillama._core.adapters import AdapterSet
from oxillama.errors import ConfigError, EngineError, LoraError, not_pickled
from oxillama.gguf import GgufReader
from oxillama.lora.file import (
    CONFIG,
    PICKLED,
    WEIGHTS,
    LoraFile,
    fits_float32,
    read_gguf_lora,
)
from oxillama.lora.fit import Lora, fit
from oxillama.model.encoder_decoder import SourcedAdapters
from oxillama.model.load import Model

_NUMBERS = (int, float, np.integer, np.floating)


class Adapters(tuple):
    """The adapters of a session's rows: (fingerprint, scale) of each, in the order in which they
    are added; sessions with equal ones have equal keys and values. `loras` are the adapters,
    `factors` the input of a batch, if an encoder reads the prompt its own beside those of the
    decoder.
    """

    loras: tuple[tuple[Lora, float], ...]
    factors: AdapterSet | SourcedAdapters | None

    def __new__(cls, loras: Iterable[tuple[Lora, float]] = ()) -> Adapters:
        """Adapters with scale 0 change nothing and are left out."""
        kept = tuple((lora, scale) for lora, scale in loras if scale)
        made = super().__new__(cls, ((lora.fingerprint, scale) for lora, scale in kept))
        made.loras = kept
        made.factors = None
        if kept:
            made.factors = target = AdapterSet([(lora.factors, scale) for lora, scale in kept])
            sources = [(lora.source, scale) for lora, scale in kept if lora.source is not None]
            if sources:
                made.factors = SourcedAdapters(AdapterSet(sources), target)
        return made

    def describe(self) -> list[dict[str, Any]]:
        """Names, fingerprints and scales, as JSON values."""
        return [
            {"name": lora.name, "fingerprint": lora.fingerprint, "scale": scale}
            for lora, scale in self.loras
        ]

    def __repr__(self) -> str:
        return f"Adapters({', '.join(f'{lora.name}:{scale:g}' for lora, scale in self.loras)})"


def checked_scale(value: Any) -> float:
    """A finite scale of any number type; ConfigError otherwise."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, _NUMBERS):
        raise ConfigError(f"scale: found {value!r:.50}, wanted a number")
    if not fits_float32(value):
        raise ConfigError(f"scale: found {value!r:.50}, wanted a finite number")
    return float(np.float32(value))


def with_scales(
    given: Any, *, option: str = "lora", wanted: str = "name"
) -> list[tuple[Any, float]]:
    """(adapter, scale) of what an option names: one adapter, or a list of these or of (adapter,
    scale); ConfigError for anything else. wanted: how adapters are named.
    """
    if isinstance(given, (str, os.PathLike, Lora)):
        return [(given, 1.0)]
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], _NUMBERS):
        given = [given]
    if not isinstance(given, Sequence) or isinstance(given, (bytes, bytearray, memoryview)):
        raise ConfigError(
            f"{option}: found {type(given).__name__}, wanted an adapter's name or path, or a list "
            "of (name, scale)"
        )
    pairs: list[tuple[Any, float]] = []
    for each in given:
        if isinstance(each, (str, os.PathLike, Lora)):
            pairs.append((each, 1.0))
        elif isinstance(each, (tuple, list)) and len(each) == 2:
            pairs.append((each[0], checked_scale(each[1])))
        else:
            raise ConfigError(
                f"{option}: found {each!r:.80}, wanted a {wanted} or ({wanted}, scale)"
            )
    return pairs


def paths_with_scales(given: Any, *, option: str) -> list[tuple[str | os.PathLike[str], float]]:
    """`with_scales` of files and folders."""
    if isinstance(given, Iterator):
        given = list(given)
    pairs = with_scales(given, option=option, wanted="path")
    for path, _ in pairs:
        if not isinstance(path, (str, os.PathLike)):
            raise ConfigError(f"{option}: found {type(path).__name__}, wanted a path")
    return pairs


def read_lora(path: str | os.PathLike[str], base: GgufReader) -> LoraFile:
    """The adapter of a GGUF file, or of a PEFT folder, for the model of an open file."""
    if os.path.isdir(path):
        # its names are those of converters, for which nobody else waits
        from oxillama.lora.peft import read_peft_lora

        return read_peft_lora(Path(path), base)
    if Path(path).name in (CONFIG, WEIGHTS, PICKLED):
        raise LoraError(
            f"{path}: is a file of a PEFT folder, wanted the folder {Path(path).parent}"
        )
    return read_gguf_lora(path)


class LoraStack:
    """The adapters of one loaded model, and the stack for new sessions; safe from any thread.

    An adapter with scale s changes a matrix W to W + s alpha / rank B A (Hu et al. 2021, LoRA,
    section 4.1); those of a stack are added in order.
    A loaded adapter has a name, which `lora=` of a request and `push_lora` accept. A path instead
    of a name is loaded under its file's name.
    """

    __reduce__ = not_pickled(
        "loras: belong to the model of this process",
        "iterate over it for the adapters and scales, pickle the `path` of each, and load it there",
    )

    def __init__(self, model: Model) -> None:
        self._open: Model | None = model
        self._lock = threading.RLock()
        self._loaded: dict[str, Lora] = {}
        self._files: dict[tuple, Lora] = {}
        self._stack: tuple[tuple[Lora, float], ...] = ()
        self._current = Adapters()

    @property
    def _model(self) -> Model:
        model = self._open
        if model is None:
            raise EngineError("engine: is closed")
        return model

    def close(self) -> None:
        """Drop the model and all adapters, for a model that is closed."""
        with self._lock:
            self._open, self._loaded, self._files = None, {}, {}
            self._set(())

    @property
    def current(self) -> Adapters:
        """The adapters of new sessions."""
        return self._current

    @property
    def loaded(self) -> dict[str, Lora]:
        """The adapters loaded so far, by name."""
        with self._lock:
            return dict(self._loaded)

    def __len__(self) -> int:
        return len(self._stack)

    def __iter__(self) -> Iterator[tuple[Lora, float]]:
        return iter(self._stack)

    def __repr__(self) -> str:
        return f"<LoraStack {self._current!r}, {len(self._loaded)} loaded>"

    def load(
        self, path: str | os.PathLike[str], *, name: str | None = None, replace: bool = False
    ) -> Lora:
        """Read, check and pack an adapter without using it yet; an adapter loaded before from the
        same unchanged file is not read again. name: None for the file's name without its suffix, or
        the folder's. replace: take the name from another adapter; the stack and sessions keep
        theirs.

        LoraError or GgufError for a bad adapter, ConfigError for a name in use; then nothing has
        changed.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise ConfigError(f"lora: found {type(path).__name__}, wanted a path")
        if name is not None and (not isinstance(name, str) or not name):
            raise ConfigError(f"name: found {name!r}, wanted a text")
        if name is None:  # the dots of a folder's name, a version, are no suffix
            name = (Path(path).name if os.path.isdir(path) else Path(path).stem) or str(path)
        mark = _mark(path)
        with self._lock:
            known = self._files.get((name, mark)) if mark is not None else None
            if known is not None:
                return known
            made = fit(self._model, read_lora(path, self._model.reader), name)
            held = self._loaded.get(name)
            if held is not None and held.fingerprint != made.fingerprint:
                if not replace:
                    raise ConfigError(
                        f"lora: {path} has changed since it was loaded as {name!r}, wanted "
                        "loras.load(..., replace=True) or another name"
                        if held.path == str(path)
                        else f"lora: {name!r} is {held.path} already, wanted another name for "
                        f"{path}, or loras.load(..., replace=True)"
                    )
                self._forget(held)
                held = None
            made = held or made
            self._loaded[name] = self._files[name, mark] = made
            return made

    def unload(self, name: str) -> Lora:
        """Unload an adapter and return it. Sessions that use it keep it, and its memory, until they
        end; later requests cannot name it. ConfigError if it is not loaded or is on the stack.
        """
        with self._lock:
            found = self._loaded.get(name) if isinstance(name, str) else None
            if found is None:
                known = ", ".join(sorted(self._loaded)) or "none"
                raise ConfigError(f"lora: {name!r:.80} is not loaded, loaded are {known}")
            if any(lora is found for lora, _ in self._stack):
                raise ConfigError(
                    f"lora: {name!r} is on the stack, wanted it off (pop_lora, clear_loras) before "
                    "it is unloaded"
                )
            self._forget(found)
            return found

    def _forget(self, lora: Lora) -> None:
        del self._loaded[lora.name]
        self._files = {key: each for key, each in self._files.items() if each is not lora}

    def push_lora(self, lora: Any, scale: float = 1.0) -> Lora:
        """Add an adapter (a `Lora`, the name of a loaded one, or a path) to the stack for new
        sessions; existing sessions keep theirs.
        """
        scale = checked_scale(scale)
        with self._lock:
            found = self.find(lora)
            self._set((*self._stack, (found, scale)))
            return found

    def pop_lora(self) -> tuple[Lora, float]:
        """Remove the adapter that was pushed last from the stack; ConfigError if the stack is
        empty.
        """
        with self._lock:
            if not self._stack:
                raise ConfigError("pop_lora: the stack has no adapters")
            *rest, last = self._stack
            self._set(tuple(rest))
            return last

    def clear_loras(self) -> None:
        """Remove all adapters from the stack; they stay loaded."""
        with self._lock:
            self._set(())

    def replace(self, loras: Iterable[tuple[Lora | str, float]]) -> None:
        """Replace the whole stack by these adapters and scales at once."""
        wanted = "wanted adapters with their scales: [(name, scale)]"
        if isinstance(loras, (str, bytes, Mapping)) or not isinstance(loras, Iterable):
            raise ConfigError(f"loras: found {loras!r:.80}, {wanted}")
        pairs = list(loras)
        for each in pairs:
            if not isinstance(each, (tuple, list)) or len(each) != 2:
                raise ConfigError(f"loras: found {each!r:.80}, {wanted}")
        with self._lock:
            self._set(tuple((self.find(lora), checked_scale(scale)) for lora, scale in pairs))

    def _set(self, stack: tuple[tuple[Lora, float], ...]) -> None:
        self._current, self._stack = Adapters(stack), stack

    def find(self, lora: Any) -> Lora:
        """The adapter of a value: a `Lora`, the name of a loaded one, or a path to load."""
        if isinstance(lora, Lora):
            if lora.factors.shapes is not self._model.program.adaptable:
                raise ConfigError(f"lora: {lora.name!r} was loaded for another model")
            return lora
        with self._lock:
            if isinstance(lora, str) and lora in self._loaded:
                return self._loaded[lora]
            # a Path of no characters is the current folder
            if isinstance(lora, (str, os.PathLike)) and not (
                os.fspath(lora) and os.path.exists(lora)
            ):
                known = ", ".join(sorted(self._loaded)) or "none"
                raise LoraError(
                    f"lora: {str(lora)!r}: found no adapter of that name (loaded: {known}) and no "
                    "such file"
                )
            return self.load(lora)

    def resolve(self, given: Any) -> Adapters | None:
        """The meaning of a request's `lora=`: None is the session's own or the stack; a `Lora`,
        name or path; or a list of these or of (adapter, scale), empty for none.
        """
        if given is None or isinstance(given, Adapters):
            return given
        return Adapters((self.find(each), scale) for each, scale in with_scales(given))

    def restored(self, described: Any) -> Adapters:
        """The adapters that a snapshot names by fingerprint and scale; LoraError names the first
        that is not loaded.
        """
        with self._lock:
            by_print = {lora.fingerprint: lora for lora in self._loaded.values()}
        pairs = []
        for each in described:
            lora = by_print.get(each["fingerprint"])
            if lora is None:
                raise LoraError(
                    f"adapters: the session used {each['name']!r} ({each['fingerprint'][:16]}), "
                    "which this engine has not loaded"
                )
            pairs.append((lora, checked_scale(each["scale"])))
        return Adapters(pairs)


def _mark(path: str | os.PathLike[str]) -> tuple | None:
    """Identifies the state of a file, or of the files of a PEFT folder, to see whether it was
    changed; None if one is missing. Adapters of one rank have one size, and archives give files
    times of their own choice: only the inode's change time is set by no program.
    """
    folder = Path(path)
    files = (folder / CONFIG, folder / WEIGHTS) if os.path.isdir(folder) else (folder,)
    if not all(map(os.path.isfile, files)):
        return None
    try:
        found = [os.stat(file) for file in files]
    except OSError:
        return None
    return tuple(
        (each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns)
        for each in found
    )
