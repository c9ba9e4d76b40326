"""Audio as callers bring it, read and checked before anything large is allocated.

What is accepted: a pair (a float32 array of one channel, its sampling rate); the bytes of a file; a
`data:` URL; a `pathlib.Path`; a mapping of OpenAI's `input_audio` ("data" in base64, "format"). The
length is known from the header, so that a file that would unpack into more than the limits is
refused before it does.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxillama.arguments import named_fields
from oxillama.audio.integrity import Claims, Damaged, Hash, claims_of, kind_of
from oxillama.errors import AudioError, ConfigError, MissingExtra
from oxillama.media.sources import FileKind

_NAMED = "a WAV, FLAC, MP3 or OGG file"
_RATES = (1000, 192000)  # samples a second, at least and at most
_USUAL = 48000  # samples a second of a file of the longest clip
_BLOCK = 1 << 20  # samples that are decoded at once


@named_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class AudioLimits:
    """Limits of audio: bytes of a file, and seconds of a clip."""

    max_bytes: int = 64 << 20
    max_seconds: int = 1800

    @property
    def file(self) -> FileKind:
        """What a clip's file is wanted to be."""
        return FileKind(
            error=AudioError,
            wanted=_NAMED,
            media_type="audio/",
            folder_option="",
            max_bytes=self.max_bytes,
        )


def read_audio(
    source: Any, rate: int, limits: AudioLimits | None = None, *, name: str = "audio"
) -> np.ndarray:
    """The samples of a clip at a rate, float32 (samples,), the mean of its channels. AudioError
    says what is wrong with it, under the name that the caller has for it.
    """
    limits = limits or AudioLimits()
    if isinstance(source, tuple):
        samples, given = _of_array(source, limits, name)
    else:
        wanted = None
        if isinstance(source, Mapping):
            source, wanted = _of_message(source, limits, name)
        held, name = limits.file.read(source, name)
        if held is None:
            raise AudioError(
                f"{name}: found {_found(source)}, wanted bytes, a pathlib.Path, a data URL or a "
                "pair of a float32 array and its sampling rate"
            )
        samples, given = _of_bytes(held, limits, name, wanted)
    return _resampled(samples, given, rate, name)


def _found(source: Any) -> str:
    if isinstance(source, np.ndarray):
        return f"{source.dtype} {source.shape} without a sampling rate"
    return type(source).__name__


def _of_array(source: tuple[Any, ...], limits: AudioLimits, name: str) -> tuple[np.ndarray, int]:
    if len(source) != 2:
        raise AudioError(f"{name}: found a tuple of {len(source)}, wanted (array, sampling rate)")
    array, rate = source
    if not isinstance(array, np.ndarray) or array.dtype != np.float32 or array.ndim != 1:
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array)
        raise AudioError(f"{name}: found {found}, wanted float32 (samples,), one channel")
    if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)):
        raise AudioError(f"{name}: found a sampling rate {rate!r:.60}, wanted an integer")
    _check_length(len(array), int(rate), limits, name)
    if not np.isfinite(array).all():
        raise AudioError(f"{name}: found a sample that is not finite, wanted numbers")
    return array, int(rate)


def _of_message(
    source: Mapping[str, Any], limits: AudioLimits, name: str
) -> tuple[bytes, str | None]:
    """(bytes, kind of file) of OpenAI's `input_audio`."""
    data, kind = source.get("data"), source.get("format")
    if not isinstance(data, str):
        raise AudioError(f"{name}: found data of type {type(data).__name__}, wanted base64 text")
    if kind is not None and (not isinstance(kind, str) or kind.upper() not in _KINDS):
        raise AudioError(f"{name}: found format {kind!r:.60}, wanted wav, mp3, flac or ogg")
    if len(data) > 4 * limits.max_bytes:
        raise AudioError(f"{name}: found {len(data)} bytes, wanted at most {limits.max_bytes}")
    try:
        held = base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise AudioError(f"{name}: found data that is not base64 ({error})") from None
    return held, kind and kind.upper()


_KINDS = ("WAV", "MP3", "FLAC", "OGG")


def _check_length(samples: int, rate: int, limits: AudioLimits, name: str) -> None:
    if not _RATES[0] <= rate <= _RATES[1]:
        raise AudioError(
            f"{name}: found {rate} samples a second, wanted {_RATES[0]} to {_RATES[1]}"
        )
    if samples > limits.max_seconds * rate:
        raise AudioError(
            f"{name}: found {samples / rate:.1f} seconds, wanted at most {limits.max_seconds}"
        )
    if samples > limits.max_seconds * _USUAL:
        raise AudioError(
            f"{name}: found {samples} samples, wanted at most {limits.max_seconds * _USUAL}"
        )
    if samples < 1:
        raise AudioError(f"{name}: found no samples, wanted some")


def _of_bytes(
    held: bytes, limits: AudioLimits, name: str, wanted: str | None
) -> tuple[np.ndarray, int]:
    kind = kind_of(held)
    if kind is None:
        found = "no bytes" if not held else f"{len(held)} bytes that begin with {held[:8]!r}"
        raise AudioError(f"{name}: found {found}, wanted {_NAMED}")
    if wanted not in (None, kind):
        raise AudioError(f"{name}: found a file of {kind}, wanted {wanted}, as its format says")
    try:
        return _decoded(held, kind, claims_of(held, kind), limits, name)
    except Damaged as error:
        raise _damaged(kind, held, name, error) from None


def _damaged(kind: str, held: bytes, name: str, error: Exception) -> AudioError:
    return AudioError(f"{name}: found a damaged {kind} file of {len(held)} bytes: {error}")


def _decoded(
    held: bytes, kind: str, claims: Claims, limits: AudioLimits, name: str
) -> tuple[np.ndarray, int]:
    """(samples, rate). Damaged for other samples than the file says it has."""
    module = soundfile()
    try:
        file = module.SoundFile(io.BytesIO(held))
    except Exception as error:
        # whatever the library raises: the file is none that it reads
        raise _damaged(kind, held, name, error) from error
    with file:
        _check_length(file.frames, file.samplerate, limits, name)
        whole = Hash(claims.bits) if claims.digest is not None else None
        made = np.empty(file.frames, np.float32)
        at = 0
        try:
            while at < len(made):
                # the integers of a FLAC file are what its checksum is of
                part = file.read(
                    max(_BLOCK // file.channels, 1),
                    dtype="float32" if whole is None else "int32",
                    always_2d=True,
                )
                if not len(part):
                    break
                if whole is not None:
                    whole.update(part)
                    part = part / 2.0**31
                made[at : at + len(part)] = _mean(part)
                at += len(part)
        except module.LibsndfileError as error:
            raise _damaged(kind, held, name, error) from error
        claims.check(at, whole)
        if at != len(made):
            raise Damaged(f"{at} samples of {len(made)}")
        if not np.isfinite(made).all():
            raise AudioError(f"{name}: found a sample that is not finite, wanted numbers")
        return made, file.samplerate


def _mean(part: np.ndarray) -> np.ndarray:
    """The mean of channels, one after the other."""
    with np.errstate(all="ignore"):  # what is not finite is refused when all is read
        total = part[:, 0].astype(np.float64)
        for channel in range(1, part.shape[1]):
            total += part[:, channel]
        return (total / part.shape[1]).astype(np.float32)


def _resampled(samples: np.ndarray, given: int, rate: int, name: str) -> np.ndarray:
    if given == rate:
        return np.ascontiguousarray(samples)
    try:
        import soxr
    except ImportError as error:
        raise MissingExtra("audio", error, "audio") from None
    made = soxr.resample(samples.astype(np.float64), given, rate).astype(np.float32)
    if not len(made):
        raise AudioError(f"{name}: found {len(samples)} samples, wanted more")
    return made


def soundfile() -> Any:
    """The module `soundfile`; MissingExtra where it, or the library below it, is not installed."""
    try:
        import soundfile
    except ImportError as error:
        raise MissingExtra("audio", error, "audio") from None
    except OSError as error:  # its wheel for all systems has no libsndfile in it
        raise ConfigError(f"audio: soundfile: {error}, wanted the system's libsndfile") from None
    return soundfile
