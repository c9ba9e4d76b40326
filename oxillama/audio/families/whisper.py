"""The processors of Qwen2-Audio, Qwen2.5-Omni, Ultravox, Voxtral, GLM-ASR, Audio Flamingo 3 and
MERaLiON 2.
"""

from __future__ import annotations

import numpy as np

from oxillama.audio.processors import (
    Ended,
    Heard,
    Kept,
    Parts,
    Processor,
    Standard,
    Windows,
    processor,
)
from oxillama.errors import ModelError
from oxillama.media.tokens import MediaTokens
from oxillama.model.media_encoder import AudioEncoder

_QWEN = MediaTokens(
    ("<|audio_bos|><|AUDIO|><|audio_eos|>", "<|AUDIO|>"),
    "<|AUDIO|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
)
# a vocabulary of Llama has no such token: what its rows are marked by is never evaluated
_ULTRAVOX = MediaTokens(("<|audio|>",), "<|audio|>")
_VOXTRAL = MediaTokens(("[BEGIN_AUDIO][AUDIO]", "[AUDIO]"), "[AUDIO]", "[BEGIN_AUDIO]")
_GLM = MediaTokens(
    ("<|begin_of_audio|><|pad|><|end_of_audio|>", "<|pad|>"),
    "<|pad|>",
    "<|begin_of_audio|>",
    "<|end_of_audio|>",
)
_FLAMINGO = MediaTokens(("<sound>",), "<sound>")
_MERALION = MediaTokens(("<SpeechHere>",), "<SpeechHere>")
_PART = 200  # frames of a short window of the published Qwen2.5-Omni


def _positions(e: AudioEncoder) -> np.ndarray:
    return e.array("a.position_embd.weight")


@processor("qwen2a")
def _qwen2a(e: AudioEncoder) -> Processor:
    return Heard(_QWEN, e.mels, _positions(e), 2)


@processor("qwen2.5o")
def _qwen25o(e: AudioEncoder) -> Processor:
    positions = _positions(e)
    if len(positions) < _PART // 2:
        raise ModelError(
            f"a.position_embd.weight: file has {len(positions)} rows, {e.kind} needs {_PART // 2}"
        )
    return Parts(_QWEN, e.mels, positions, 2, part=_PART)


@processor("ultravox")
def _ultravox(e: AudioEncoder) -> Processor:
    return Ended(_ULTRAVOX, e.mels, _positions(e), e.keys.integer("projector.stack_factor"))


@processor("glma")
def _glma(e: AudioEncoder) -> Processor:
    stack = e.keys.integer("projector.stack_factor")
    # without learned positions
    bare = np.zeros((len(_positions(e)), 0), np.float32)
    return Kept(_GLM, e.mels, bare, stack, alone=True)


@processor("musicflamingo")
def _musicflamingo(e: AudioEncoder) -> Processor:
    return Heard(_FLAMINGO, e.mels, _positions(e), 2, alone=True)


def _whole(e: AudioEncoder) -> tuple[np.ndarray, int]:
    """The positions of a window and the rows of a feature, which divide them."""
    positions, stack = _positions(e), e.keys.integer("projector.stack_factor")
    if len(positions) % stack:
        raise ModelError(
            f"clip.audio.projector.stack_factor: found {stack}, wanted a divisor of the "
            f"{len(positions)} rows of a window"
        )
    return positions, stack


@processor("voxtral")
def _voxtral(e: AudioEncoder) -> Processor:
    return Windows(_VOXTRAL, e.mels, *_whole(e))


@processor("meralion")
def _meralion(e: AudioEncoder) -> Processor:
    return Standard(_MERALION, e.mels, *_whole(e), alone=True)
