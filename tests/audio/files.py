"""Audio files of samples."""

import io

import numpy as np
import soundfile

from tests.audio.made import RATE

FORMATS = {
    "wav": ("WAV", "PCM_16"),
    "float": ("WAV", "FLOAT"),
    "flac": ("FLAC", "PCM_24"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "ogg": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
}


def file_of(samples: np.ndarray, kind: str = "wav", rate: int = RATE) -> bytes:
    """The bytes of a file of samples, (samples,) or (samples, channels)."""
    held = io.BytesIO()
    form, subtype = FORMATS[kind]
    soundfile.write(held, samples, rate, format=form, subtype=subtype)
    return held.getvalue()
