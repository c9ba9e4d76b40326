"""The spectrogram beside transformers', and arithmetic that is the same on every machine."""

from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest

from oxillama.audio.families.gemma3n import GEMMA_3N
from oxillama.audio.families.gemma4 import GEMMA_4
from oxillama.audio.portable_math import Spectrum, cosines, ln, log10
from oxillama.audio.spectrogram import levelled, log_mel
from tests.audio.made import clip

LEAST = np.float32(np.log(1e-5))
FACTS = Path(__file__).parent / "transformers_audio.npz"


@pytest.mark.parametrize("bands", (80, 128))
def test_it_is_that_of_transformers(bands):
    found = log_mel(clip(1.0), 200, bands, end=32000).T
    with np.load(FACTS) as facts:
        # its NumPy code; torch's works in 32 bits
        assert np.abs(found - facts[f"mel_{bands}"]).max() <= 2e-7
        assert np.abs(found - facts[f"torch_{bands}"]).max() <= 5e-5


def test_that_of_magnitudes_is_that_of_transformers():
    with np.load(FACTS) as facts:
        wanted = facts["gemma4_mel"]
    found = GEMMA_4.of(clip(1.0), 128)
    assert found.shape == wanted.shape == (GEMMA_4.frames(16000), 128) == (99, 128)
    assert np.abs(found - wanted).max() <= 1e-6
    # a frame ends, with a sample more, in the clip
    assert [GEMMA_4.frames(each) for each in (0, 160, 161, 320, 321)] == [0, 0, 1, 1, 2]
    assert GEMMA_4.of(clip(1.0)[:160], 128).shape == (0, 128)


def test_that_of_gemma_3n_is_that_of_transformers():
    """Of what a sample is more than most of the one before, from 125 to 7600 Hz."""
    with np.load(FACTS) as facts:
        wanted = facts["gemma3n_mel"]
    found = GEMMA_3N.of(clip(1.0), 128)
    assert found.shape == wanted.shape == (GEMMA_3N.frames(16000), 128) == (97, 128)
    assert np.abs(found - wanted).max() <= 1e-6
    # a frame ends, with a sample more, in the clip, which zeros fill to a whole number of 128
    assert [GEMMA_3N.frames(each) for each in (0, 512, 513, 641, 769)] == [0, 0, 1, 2, 3]
    assert np.array_equal(GEMMA_3N.of(np.zeros(600, np.float32), 4), np.full((1, 4), LEAST))


def test_that_of_a_longer_transform_is_that_of_torch():
    with np.load(FACTS) as facts:
        wanted = facts["granite_mel"]
    found = log_mel(clip(1.0), 100, 80, end=16000, wide=True).reshape(50, 160)
    assert wanted.shape == (50, 160) and np.abs(found - wanted).max() <= 2e-7


def test_that_of_parakeet_is_that_of_transformers():
    """Of what a sample is more than most of the one before, each band about its mean."""
    with np.load(FACTS) as facts:
        wanted = facts["parakeet_mel"]
    found = levelled(128).of(clip(1.0))
    assert found.shape == wanted.shape == (101, 128)
    assert np.abs(found - wanted).max() <= 2e-6 and not found[100].any()
    # a frame is its own mean
    assert np.array_equal(levelled(80).of(clip(1.0)[:319]), np.zeros((2, 80)))
    assert levelled(80).of(clip(1.0)[:159]).shape == (1, 80)


def test_functions_are_those_of_numpy_to_the_last_places():
    x = 10.0 ** np.random.default_rng(0).uniform(-300, 300, 2000)
    assert np.abs(log10(x) / np.log10(x) - 1).max() < 4e-15
    assert log10(np.array([1.0]))[0] == 0.0
    assert np.abs(cosines(400) - np.cos(2 * np.pi * np.arange(400) / 400)).max() < 2e-15
    assert cosines(400)[100] == cosines(400)[300] == 0.0 and cosines(400)[200] == -1.0
    assert np.abs(ln(x) / np.log(x) - 1).max() < 4e-15 and ln(np.array([1.0]))[0] == 0.0
    for sides in ((20, 20), (16, 32), (32, 16)):
        frames = np.random.default_rng(1).normal(size=(sides[0] * sides[1], 9))
        wanted = np.abs(np.fft.rfft(frames, axis=0)) ** 2
        assert np.abs(Spectrum(*sides).power(frames) - wanted).max() < 1e-14 * wanted.max()


def test_bits_are_the_same_on_every_machine():
    samples = (np.arange(16000) * 7919 % 2003 / 2003 - 0.5).astype(np.float32)
    found = [blake2b(log_mel(samples, 120, bands).tobytes(), digest_size=8) for bands in (80, 128)]
    assert [each.hexdigest() for each in found] == ["6bbdd5692ff86c75", "4f8a65720d9d7e53"]
    found = blake2b(GEMMA_4.of(samples, 128).tobytes(), digest_size=8)
    assert found.hexdigest() == "c56381505a110beb"
    found = blake2b(levelled(128).of(samples).tobytes(), digest_size=8)
    assert found.hexdigest() == "f8902946258cfa38"
    found = blake2b(GEMMA_3N.of(samples, 128).tobytes(), digest_size=8)
    assert found.hexdigest() == "43841003befed946"


def test_frames_in_silence_are_those_that_are_computed():
    """What follows the samples by more than a window is not transformed, and the same."""
    samples = clip(0.3)
    whole = log_mel(np.pad(samples, (0, 32000 - len(samples))), 200, 80)
    assert np.array_equal(log_mel(samples, 200, 80, end=32000), whole)
    assert np.array_equal(log_mel(samples, 200, 80), whole)
    silent = log_mel(np.zeros(1000, np.float32), 7, 80)
    assert np.array_equal(silent, np.full((7, 80), -1.5, np.float32))


def test_a_clip_that_fills_its_frames_ends_in_its_mirror_image():
    samples = clip(1.0)
    mirrored, ended = (log_mel(samples, 100, 80, end=each) for each in (16000, None))
    assert np.array_equal(mirrored[:98], ended[:98]) and not np.array_equal(mirrored, ended)
    assert np.array_equal(ended[:100], log_mel(samples, 130, 80)[:100])
    # at a sample within the last frame, as transformers has it where nothing is filled up
    cut = samples[:15950]
    whole = np.concatenate([cut, cut[-2:-202:-1]])
    assert np.array_equal(log_mel(cut, 99, 80, end=15950), log_mel(whole, 99, 80))
