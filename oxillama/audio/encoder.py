"""`Hearing`: the audio encoder of an mmproj file, which turns clips into the pieces of a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from blake3 import blake3

from oxillama.audio import families as _families  # noqa: F401  (importing it registers them)
from oxillama.audio.processors import Processor, processor_of
from oxillama.audio.reading import AudioLimits, read_audio
from oxillama.errors import AudioError
from oxillama.gguf import GgufReader
from oxillama.media.features import MediaFeatures
from oxillama.media.piece_cache import KeptPieces, Pieces
from oxillama.media.tokens import MediaTokens
from oxillama.model.media_encoder import AudioEncoder, MediaRows, load_audio_encoder
from oxillama.model.reference import Difference


class Hearing:
    """An encoder with its family's processor; safe to call from any thread.

    The same samples give the same features, bit for bit, whatever else runs, however many threads
    there are and whatever the machine.
    """

    def __init__(
        self, source: Any, *, num_threads: int = 0, limits: AudioLimits | None = None
    ) -> None:
        """source: the path of an mmproj file, or its bytes."""
        reader = source if isinstance(source, GgufReader) else GgufReader(source)
        self.limits = limits or AudioLimits()
        self.encoder: AudioEncoder = load_audio_encoder(reader, num_threads=num_threads)
        self.processor: Processor = processor_of(self.encoder)
        self.encoder.check_keys()
        self._kept = KeptPieces()

    @property
    def width(self) -> int:
        """Floats of a row of features."""
        return self.encoder.width

    @property
    def audio_tokens(self) -> MediaTokens:
        """How prompts hold clips."""
        return self.processor.audio_tokens

    def samples(self, audio: Any, *, name: str = "audio") -> np.ndarray:
        """The samples of a clip at the encoder's rate, float32 (samples,); what a clip may be is
        said in `reading`.
        """
        return read_audio(audio, self.processor.rate, self.limits, name=name)

    def check(self, audio: Any, *, name: str = "audio") -> None:
        """Raise AudioError for a clip that no prompt can hold."""
        self._windows(self.samples(audio, name=name), name)

    def features(self, samples: np.ndarray) -> np.ndarray:
        """Features, float32 (features, width), of samples at the encoder's rate."""
        windows = self._windows(np.asarray(samples, np.float32), "audio")
        return np.concatenate([self.encoder.encode(each) for each in windows])

    def diagnose(self, audio: Any) -> Iterator[Difference]:
        """Each op of the compiled encoder and projector against its numpy meaning, over the first
        window that they see of a clip.
        """
        return self.encoder.diagnose(self._windows(self.samples(audio), "audio")[0])

    def pieces(self, audio: Any, *, name: str = "audio") -> Pieces:
        """The pieces of a prompt for a clip: texts, in which control tokens are recognised, and
        features. Those of recent clips are cached.
        """
        samples = self.samples(audio, name=name)
        key = blake3(samples.view(np.uint8).data).digest()
        found = self._kept.get(key)
        if found is not None:
            return found
        made = [self.encoder.encode(each) for each in self._windows(samples, name)]
        tokens = self.audio_tokens
        pieces = (tokens.before, MediaFeatures(np.concatenate(made), kind="audio"), tokens.after)
        return self._kept.keep(key, tuple(each for each in pieces if each != ""))

    def _windows(self, samples: np.ndarray, name: str) -> list[MediaRows]:
        """The windows of samples that make features."""
        made = [each for each in self.processor.windows(samples) if len(each.groups)]
        if not made:
            raise AudioError(
                f"{name}: found {len(samples)} samples at {self.processor.rate} a second, of which "
                "no feature is made, wanted more"
            )
        return made
