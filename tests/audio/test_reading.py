"""Audio that callers bring: what is read, at which rate, and what is refused under which name."""

import base64
import re

import numpy as np
import pytest
import soundfile

from oxillama.audio import AudioLimits, read_audio
from oxillama.audio.integrity import _mp3_frame
from oxillama.errors import AudioError
from tests.audio.files import FORMATS, file_of
from tests.audio.made import RATE, clip


@pytest.mark.parametrize("kind, near", (("wav", 2**-15), ("float", 0), ("flac", 2e-7)))
def test_samples_of_lossless_files_are_exact(kind, near):
    samples = clip(0.2)
    found = read_audio(file_of(samples, kind), RATE)
    assert found.dtype == np.float32 and np.abs(found - samples).max() <= near


@pytest.mark.parametrize("kind", ("mp3", "ogg", "opus"))
def test_samples_of_other_files_are_near(kind):
    samples = clip(0.5)
    found = read_audio(file_of(samples, kind), RATE)
    assert len(found) == len(samples)
    middle = slice(800, -800)
    assert np.corrcoef(found[middle], samples[middle])[0, 1] > 0.97


def test_every_way_to_name_a_clip_gives_the_same(tmp_path):
    samples = clip(0.1)
    held = file_of(samples, "float")
    (tmp_path / "a.wav").write_bytes(held)
    data = base64.b64encode(held).decode()
    ways = (
        held,
        bytearray(held),
        tmp_path / "a.wav",
        f"data:audio/wav;base64,{data}",
        {"data": data, "format": "wav"},
        (samples, RATE),
    )
    for way in ways:
        assert np.array_equal(read_audio(way, RATE), samples)


def test_channels_are_averaged_and_rates_are_changed():
    left, right = clip(0.5, seed=1), clip(0.5, seed=2)
    found = read_audio(file_of(np.stack([left, right], axis=1), "float"), RATE)
    assert np.abs(found - (left + right) / 2).max() < 1e-7
    for rate in (8000, 22050, 44100, 48000):
        tone = np.sin(2 * np.pi * 440 * np.arange(rate) / rate).astype(np.float32)
        found = read_audio((tone, rate), RATE)
        wanted = np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
        assert len(found) == RATE and np.abs(found - wanted)[200:-200].max() < 1e-3


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("lost", (1, 40, 0.5))
def test_a_file_that_is_cut_is_refused(kind, lost):
    held = file_of(clip(1.0), kind)
    cut = held[: -lost if lost >= 1 else int(len(held) * lost)]
    with pytest.raises(AudioError, match=f"found a damaged {FORMATS[kind][0]} file of"):
        read_audio(cut, RATE)


@pytest.mark.parametrize("kind", ("flac", "mp3", "ogg", "opus"))
def test_a_file_with_a_hole_is_refused(kind):
    held = bytearray(file_of(clip(1.0), kind))
    middle = len(held) // 2
    del held[middle : middle + 100]
    with pytest.raises(AudioError, match="found a damaged"):
        read_audio(bytes(held), RATE)


def test_samples_that_a_checksum_denies_are_refused():
    held = bytearray(file_of(clip(0.2), "flac"))
    held[26] ^= 1  # of the MD5 of its samples
    with pytest.raises(AudioError, match="its samples are not those that its checksum is of"):
        read_audio(bytes(held), RATE)


def test_a_file_written_to_a_pipe_does_not_know_its_length():
    samples = clip(0.1)
    held = bytearray(file_of(samples, "wav"))
    at = held.index(b"data") + 4
    held[4:8] = held[at : at + 4] = b"\xff" * 4
    assert len(read_audio(bytes(held), RATE)) == len(samples)


def test_tags_around_frames_are_no_damage():
    held = file_of(clip(0.3), "mp3")
    before = b"ID3\x04\x00\x00\x00\x00\x00\x0a" + bytes(10)
    tagged = before + held + b"TAG" + bytes(125)
    assert np.array_equal(read_audio(tagged, RATE), read_audio(held, RATE))


@pytest.mark.parametrize(
    "source, said",
    (
        (b"", "audio: found no bytes, wanted a WAV, FLAC, MP3 or OGG file"),
        (b"\xff\xfb\x90\x00" + bytes(33) + b"Xing", "found a damaged MP3 file of 41 bytes"),
        (b"abcdefgh", "audio: found 8 bytes that begin with b'abcdefgh', wanted a WAV"),
        (clip(0.1), "audio: found float32 (1600,) without a sampling rate, wanted bytes"),
        ((clip(0.1).astype(np.float64), RATE), "audio: found float64 (1600,), wanted float32"),
        ((clip(0.1)[:, None], RATE), "audio: found float32 (1600, 1), wanted float32 (samples,)"),
        ((np.array([0, np.nan], np.float32), RATE), "audio: found a sample that is not finite"),
        ((np.zeros(0, np.float32), RATE), "audio: found no samples, wanted some"),
        ((clip(0.1), 16000.0), "audio: found a sampling rate 16000.0, wanted an integer"),
        ((clip(0.1), 500), "audio: found 500 samples a second, wanted 1000 to 192000"),
        ("https://a.b/c.wav", "which is not fetched; wanted a data URL"),
        ("/etc/hostname", "audio: found '/etc/hostname', wanted a data URL"),
        ("data:image/png;base64,AAAA", "found a data URL of 'image/png', wanted audio/..."),
        ({"data": "@@", "format": "wav"}, "audio: found data that is not base64"),
        ({"data": "", "format": "aac"}, "found format 'aac', wanted wav, mp3, flac or ogg"),
        (7, "audio: found int, wanted bytes, a pathlib.Path, a data URL or a pair of"),
    ),
)
def test_what_is_no_clip_is_refused_by_name(source, said):
    with pytest.raises(AudioError, match=re.escape(said)):
        read_audio(source, RATE)


def test_a_file_of_another_format_than_the_one_that_is_named_is_refused():
    data = base64.b64encode(file_of(clip(0.1), "flac")).decode()
    said = "found a file of FLAC, wanted WAV, as its format says"
    with pytest.raises(AudioError, match=said):
        read_audio({"data": data, "format": "wav"}, RATE)


def test_limits_are_held_before_anything_is_decoded(monkeypatch):
    limits = AudioLimits(max_seconds=1, max_bytes=1 << 16)
    with pytest.raises(AudioError, match=r"clip: found 1\.5 seconds, wanted at most 1$"):
        read_audio((clip(1.5), RATE), RATE, limits, name="clip")
    held = file_of(np.zeros(50 * RATE, np.float32), "flac")
    assert len(held) < 1 << 16
    monkeypatch.setattr(soundfile.SoundFile, "read", None)
    with pytest.raises(AudioError, match=r"clip: found 50\.0 seconds, wanted at most 1$"):
        read_audio(held, RATE, limits, name="clip")
    with pytest.raises(AudioError, match="clip: found 65537 bytes, wanted at most 65536"):
        read_audio(bytes((1 << 16) + 1), RATE, limits, name="clip")


def test_an_mp3_file_without_its_last_frame_is_refused():
    """Its first frame says how many follow."""
    held, at, starts = file_of(clip(1.0), "mp3"), 0, []
    while at < len(held):
        starts.append(at)
        at += _mp3_frame(held, at)[0]
    count = len(starts) - 1
    with pytest.raises(AudioError, match=f"damaged MP3 .*: {count - 1} frames of {count}"):
        read_audio(held[: starts[-1]], RATE)
