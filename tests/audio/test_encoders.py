"""Audio encoders: features beside transformers', the laws of bits, and files that are refused."""

import re
from pathlib import Path

import numpy as np
import pytest

from oxillama.audio import AudioLimits, Hearing
from oxillama.audio.families import conformer, gemma3n, granite, qwen3
from oxillama.audio.families.gemma3n import GEMMA_3N
from oxillama.audio.families.gemma4 import GEMMA_4
from oxillama.audio.spectrogram import Magnitudes
from oxillama.errors import AudioError, ModelError
from oxillama.gguf import GgufReader
from oxillama.media import MediaFeatures
from oxillama.vision import Vision
from tests.audio.made import KINDS, RATE, clip, tensors_of, write_audio
from tests.vision.images import image_of, rewritten
from tests.vision.made import write_mmproj
from tests.vision.made_more import write_more

FACTS = Path(__file__).parent / "transformers_audio.npz"
FAST = ("lfm2a", "parakeet")  # Fast Conformers
CLIPS = {"short": 0.503, "window": 2.0, "long": 5.117}
MORE = {"brief": 0.3, "longer": 9.753}  # of kinds whose windows are of eight seconds and more
TAIL = {"tail": 0.6405}  # whose last row is less than a frame


@pytest.fixture(scope="module")
def hearing(tmp_path_factory):
    folder, held = tmp_path_factory.mktemp("audio"), {}

    def get(kind):
        if kind not in held:
            held[kind] = Hearing(write_audio(folder / f"{kind}.gguf", kind), num_threads=2)
        return held[kind]

    return get


@pytest.mark.parametrize(
    "kind, name",
    [
        *((kind, name) for kind in KINDS for name in CLIPS),
        *((kind, name) for kind in ("qwen3a", "gemma3na", "gemma4a") for name in MORE),
        ("dots3note_a", "tail"),
    ],
)
def test_features_are_those_of_transformers(hearing, kind, name):
    found = hearing(kind).features(clip({**CLIPS, **MORE, **TAIL}[name]))
    with np.load(FACTS) as facts:
        wanted = facts[f"{kind}_{name}"]
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("kind", KINDS)
def test_every_op_is_what_it_means_and_threads_change_no_bit(tmp_path, hearing, kind):
    differences = list(hearing(kind).diagnose((clip(1.3), RATE)))
    assert len(differences) > (2 if kind == "gemma4ua" else 20) and all(
        each.agrees for each in differences
    )
    alone = Hearing(write_audio(tmp_path / "a.gguf", kind), num_threads=1)
    assert np.array_equal(alone.features(clip(4.3)), hearing(kind).features(clip(4.3)))


@pytest.mark.parametrize("kind", KINDS)
def test_windows_do_not_know_of_one_another(hearing, monkeypatch, kind):
    """Each window is encoded alone: what comes later changes none of it."""
    monkeypatch.setattr(gemma3n, "WINDOW", 2 * RATE)
    monkeypatch.setattr(qwen3, "MINUTE", 25)
    monkeypatch.setattr(conformer, "ROWS", 26)  # of 207 frames and one of zeros
    seconds = {
        "qwen3a": 16.0,
        "gemma4a": 60.0,
        "dots3note_a": 4.0,
        **dict.fromkeys(FAST, 4.14),
    }.get(kind, 4.0)
    a, b = clip(seconds), clip(seconds)
    b[-RATE:] *= np.float32(0.5)  # the loudest part, which scales the clip, is before
    a, b = (hearing(kind).features(each) for each in (a, b))
    first = len(a) // 2
    assert np.array_equal(a[:first], b[:first]) and not np.array_equal(a, b)


def test_nothing_of_a_long_clip_is_dropped(hearing):
    """Each feature of Qwen2-Audio, Audio Flamingo 3 and Gemma 4 is of 40 milliseconds, of Voxtral,
    GLM-ASR and Qwen3-ASR of 80, of Ultravox of 160; Gemma 3n has as many for each window.
    """
    for seconds in (2.0, 2.05, 5.117, 11.0):
        samples = clip(seconds)
        frames = -(-len(samples) // 160)
        found = {kind: len(hearing(kind).features(samples)) for kind in KINDS}
        windows = [min(200, frames - at) for at in range(0, frames, 200)]
        rows = [(each + 1) // 2 for each in windows]
        whole = len(samples) // 160
        assert found == {
            "qwen2a": sum(each // 2 for each in rows),
            "qwen2.5o": sum(each // 2 for each in rows),
            "ultravox": sum(-(-each // 8) for each in rows),
            "voxtral": 25 * len(windows),
            "meralion": 20 * len(windows),
            "musicflamingo": sum(each // 2 for each in rows),
            "glma": sum(each // 4 for each in rows),
            "qwen3a": sum(-(-min(100, whole - at) // 8) for at in range(0, whole, 100)),
            "gemma3na": 188 + 1,
            "gemma4a": sum(
                -(-GEMMA_4.frames(min(480000, len(samples) - at)) // 4)
                for at in range(0, len(samples), 480000)
            ),
            "gemma4ua": -(-len(samples) // 640),
            # two queries for six rows, each of two frames, of which one begins where the clip ends
            "granite_speech": -(-((len(samples) // 160 + 1) // 2) // 6) * 2,
            "dots3note_a": -(-len(samples) // 1280),
            # of eight frames, of which the last one is zeros
            **dict.fromkeys(FAST, -(-(whole + 1) // 8)),
        }


def test_pieces_are_a_familys_tokens_around_a_clip_that_is_kept(hearing):
    shown = {
        kind: [
            len(each) if isinstance(each, MediaFeatures) else each
            for each in hearing(kind).pieces((clip(1.0), RATE))
        ]
        for kind in KINDS
    }
    assert shown == {
        "qwen2a": ["<|audio_bos|>", 25, "<|audio_eos|>"],
        "qwen2.5o": ["<|audio_bos|>", 25, "<|audio_eos|>"],
        "ultravox": [7],
        "voxtral": ["[BEGIN_AUDIO]", 25],
        "musicflamingo": [25],
        "glma": ["<|begin_of_audio|>", 12, "<|end_of_audio|>"],
        "qwen3a": ["<|audio_start|>", 13, "<|audio_end|>"],
        "gemma3na": ["\n\n<start_of_audio>", 189, "\n\n"],
        "gemma4a": ["<|audio>", 25, "<audio|>"],
        "gemma4ua": ["<|audio>", 25, "<audio|>"],
        "granite_speech": [18],
        "lfm2a": [13],
        "meralion": [20],
        "dots3note_a": ["<|audio_comp_start|>", 13, "<|audio_comp_end|>"],
        "parakeet": ["<so_start>", 13, "<so_end>"],
    }
    one = hearing("qwen2a").pieces((clip(1.0), RATE))
    again = hearing("qwen2a").pieces((clip(1.0).copy(), RATE))
    other = hearing("qwen2a").pieces((clip(1.0, seed=3), RATE))
    assert again[1] is one[1] and other[1].digest != one[1].digest
    assert one[1].kind == "audio" and one[1].positions is None


def test_a_clip_of_no_feature_is_refused(hearing):
    with pytest.raises(AudioError, match="clip: found 100 samples at 16000 a second, of which no"):
        hearing("qwen2a").pieces((clip(1.0)[:100], RATE), name="clip")


def test_limits_are_those_that_were_given(tmp_path):
    limits = AudioLimits(max_seconds=1)
    short = Hearing(write_audio(tmp_path / "a.gguf"), limits=limits)
    with pytest.raises(AudioError, match=r"audio: found 1\.5 seconds, wanted at most 1"):
        short.pieces((clip(1.5), RATE))


@pytest.mark.parametrize(
    "change, said",
    (
        (
            {"keys": {"clip.projector_type": "qwen3tts_spkenc"}},
            "projector_type: found 'qwen3tts_spkenc', wanted",
        ),
        ({"keys": {"clip.projector_type": ""}}, "clip.audio.projector_type"),
        (
            {"keys": {"clip.has_audio_encoder": False}},
            "has_audio_encoder: found False, wanted",
        ),
        ({"keys": {"clip.has_text_encoder": True}}, "has_text_encoder: found True, wanted False"),
        ({"keys": {"clip.audio.odd": 1}}, "clip.audio.odd: found 1, which clip does not use"),
        ({"keys": {"clip.audio.chunk_size": 100}}, "clip.audio.chunk_size: found 100, which clip"),
        ({"keys": {"clip.audio.num_mel_bins": 128}}, "a.conv1d.1.weight: file has (32, 80, 3)"),
        ({"keys": {"clip.audio.block_count": 1}}, "a.blk.1.ln1.weight: qwen2a has no use"),
        ({"drop": ("mm.a.fc.bias", "a.post_ln.weight")}, "a.post_ln.weight: the file has no such"),
        ({"add": {"a.extra": np.zeros(4, np.float32)}}, "a.extra: qwen2a has no use for this"),
    ),
)
def test_what_does_not_describe_an_encoder_is_refused_by_name(tmp_path, change, said):
    plain = write_audio(tmp_path / "a.gguf")
    with pytest.raises(ModelError, match=re.escape(said)):
        Hearing(rewritten(plain, tmp_path / "b.gguf", **change))


@pytest.mark.parametrize(
    "seen, heard, named",
    (
        ("qwen2.5vl_merger", "qwen2.5o", {"clip.projector_type": "qwen2.5o"}),
        (
            "gemma4v",
            "gemma4a",
            {
                "clip.projector_type": "",
                "clip.vision.projector_type": "gemma4v",
                "clip.audio.projector_type": "gemma4a",
            },
        ),
        (
            "gemma3nv",
            "gemma3na",
            {
                "clip.projector_type": "",
                "clip.vision.projector_type": "gemma3nv",
                "clip.audio.projector_type": "gemma3na",
            },
        ),
        (
            "gemma4uv",
            "gemma4ua",
            {
                "clip.projector_type": "",
                "clip.vision.projector_type": "gemma4uv",
                "clip.audio.projector_type": "gemma4ua",
            },
        ),
    ),
)
def test_a_file_of_both_has_two_encoders(tmp_path, seen, heard, named):
    """Of Qwen2.5-Omni and Gemma: the encoder of each medium is what it is in a file of its
    own.
    """
    write = write_more if seen in ("gemma3nv", "gemma4uv") else write_mmproj
    size = {"size": 256} if seen == "gemma3nv" else {}
    sight = write(tmp_path / "v.gguf", seen, width=24, **size)
    sound = write_audio(tmp_path / "a.gguf", heard)
    said = GgufReader(sound).metadata
    keys = {key: said[key] for key in said if ".audio" in key}
    both = rewritten(
        sight,
        tmp_path / "b.gguf",
        keys={**keys, "clip.has_audio_encoder": True, **named},
        drop=tensors_of(heard, 24),
        add=tensors_of(heard, 24),
    )
    a, b = (Vision(each).pieces(image_of(70, 56)) for each in (sight, both))
    assert np.array_equal(a[1].rows, b[1].rows)
    if heard == "qwen2.5o":
        # its vocabulary has other names for what is around an image than Qwen2.5-VL's
        assert (a[0], a[2]) == ("<|vision_start|>", "<|vision_end|>")
        assert (b[0], b[2]) == ("<|vision_bos|>", "<|vision_eos|>")
        assert Vision(both).image_tokens.placeholders[0] == "<|vision_bos|><|IMAGE|><|vision_eos|>"
    else:
        around = ("<|image>", "<image|>")
        around = ("\n\n<start_of_image>", "\n\n") if heard == "gemma3na" else around
        assert (a[0], a[2]) == (b[0], b[2]) == around
    a, b = (Hearing(each).features(clip(1.0)) for each in (sound, both))
    assert np.array_equal(a, b)
    with pytest.raises(ModelError, match=rf"a\.odd: {heard} has no use for this tensor"):
        Hearing(rewritten(both, tmp_path / "c.gguf", add={"a.odd": np.zeros(4, np.float32)}))


def test_gemma_4_hears_windows_of_thirty_seconds(hearing):
    """Each under a spectrogram of its own, so that its features are those of the part alone."""
    samples = clip(30.5)
    whole, parts = (
        hearing("gemma4a").features(samples),
        [hearing("gemma4a").features(each) for each in np.split(samples, [480000])],
    )
    assert [len(each) for each in parts] == [750, 13]
    assert np.array_equal(whole, np.concatenate(parts))
    # what follows a window by less than a frame makes no feature
    assert len(hearing("gemma4a").features(samples[: 480000 + 160])) == 750


def test_gemma_3n_hears_windows_of_188_rows(hearing, monkeypatch):
    """Each under a spectrogram of its own; the rows without sound are one token of the encoder,
    another one ends the clip.
    """
    monkeypatch.setattr(gemma3n, "WINDOW", 2 * RATE)
    samples = clip(3.0)
    whole, parts = (
        hearing("gemma3na").features(samples),
        [hearing("gemma3na").features(each) for each in np.split(samples, [2 * RATE])],
    )
    assert np.array_equal(whole, np.concatenate([parts[0][:188], parts[1]]))
    assert np.array_equal(parts[0][188], parts[1][188])
    # a row for 16 frames or less, of 197 and of 97
    for part, heard in zip(parts, (13, 7)):
        filled = (part[:188] == parts[1][187]).all(axis=1)
        assert not filled[:heard].any() and filled[heard:].all()


def test_a_window_of_gemma_3n_is_of_thirty_seconds(hearing, monkeypatch):
    """Of which every fourth row of 750 is heard; what follows by less than a frame makes none."""

    def silent(self, samples, bands):
        return np.zeros((self.frames(len(samples)), bands), np.float32)

    monkeypatch.setattr(Magnitudes, "of", silent)
    samples = np.zeros(480000 + 513, np.float32)
    made = hearing("gemma3na").processor.windows(samples)
    assert [len(each.groups) for each in made] == [188, 189]
    assert made[0].groups[-1] == 748 and len(made[0].between[-1].groups) == 750
    assert (GEMMA_3N.frames(480000), GEMMA_3N.frames(513), GEMMA_3N.frames(512)) == (2997, 1, 0)


def test_bits_of_norms_of_all_before_do_not_depend_on_the_rows_of_a_step(hearing, monkeypatch):
    """Sums over time go on from step to step."""
    wanted = hearing("gemma3na").features(clip(5.117))
    for joined in (1 << 8, 1 << 18):
        monkeypatch.setattr("oxillama.model.media_encoder._JOINED", joined)
        other = Hearing(hearing("gemma3na").encoder.reader, num_threads=1)
        assert np.array_equal(other.features(clip(5.117)), wanted)


@pytest.mark.parametrize(
    "change, said",
    (
        ({"a.conv1d.0.norm.weight": (7,)}, "a.conv1d.0.norm.weight: file has (7,), gemma3na"),
        ({"a.blk.1.conv_dw.weight": (32, 5)}, "conv_dw.weight: file has (32, 5), gemma3na needs"),
        ({"mm.a.embedding.weight": (5, 16)}, "mm.a.embedding.weight: file has (5, 16)"),
        ({"a.blk.0.per_dim_scale": (32,)}, "a.blk.0.per_dim_scale: file has (32,), gemma3na"),
    ),
)
def test_what_gemma_3n_is_not_is_refused(tmp_path, change, said):
    plain = write_audio(tmp_path / "a.gguf", "gemma3na")
    held = {name: np.ones(shape, np.float32) for name, shape in change.items()}
    with pytest.raises(ModelError, match=re.escape(said)):
        Hearing(rewritten(plain, tmp_path / "b.gguf", drop=held, add=held))


def test_the_limits_of_gemma_4_are_those_of_the_file(tmp_path, hearing):
    name = "a.blk.1.conv_pw1.input_max"
    plain = write_audio(tmp_path / "a.gguf", "gemma4a")
    with pytest.raises(ModelError, match=r"conv_pw1\.input_min: found -2\.0, wanted at most -3\.0"):
        held = np.array([-3], np.float32)
        Hearing(rewritten(plain, tmp_path / "b.gguf", drop=(name,), add={name: held}))
    open_end = Hearing(rewritten(plain, tmp_path / "c.gguf", drop=(name,)))
    assert not np.array_equal(open_end.features(clip(1.0)), hearing("gemma4a").features(clip(1.0)))


def test_granite_speech_hears_a_minute_at_once(hearing, monkeypatch):
    """Parts of whole blocks and windows under one spectrogram: what is before the last block of a
    part does not know of it, but for the layers' convolutions.
    """
    whole = hearing("granite_speech").features(clip(5.117))
    monkeypatch.setattr(granite, "ROWS", 140)  # of blocks of 20 and windows of 6: 120
    parts = hearing("granite_speech").processor.windows(clip(5.117))
    assert [len(each.groups) for each in parts] == [40, 40, 6]
    cut = hearing("granite_speech").features(clip(5.117))
    assert cut.shape == whole.shape and np.array_equal(cut[:32], whole[:32])
    assert not np.array_equal(cut, whole)
    mel = np.concatenate([each.rows[: each.spans[1].max() - 3] for each in parts])
    one = hearing("granite_speech").processor
    monkeypatch.undo()
    assert np.array_equal(mel[:, :160], one.windows(clip(5.117))[0].rows[:-3, :160])


@pytest.mark.parametrize(
    "change, said",
    (
        ({"clip.audio.feature_layer": [1]}, "clip.audio.feature_layer: found"),
        ({"clip.audio.chunk_size": 30}, "clip.audio.max_pos_emb: found 24, wanted"),
        (
            {"clip.audio.chunk_size": 23, "clip.audio.projector.window_size": 2000},
            "clip.audio.chunk_size: found 23, wanted one whose least common multiple with the 2000",
        ),
        ({"clip.audio.conv_kernel_size": 5}, "conv_dw.weight: file has (64, 7), granite_speech"),
        ({"clip.audio.num_mel_bins": 161}, "a.input_projection.weight: file has (32, 160)"),
        ({"clip.audio.projector.head_count": 5}, "head_count: found 5, wanted a divisor of 48"),
        (
            {"clip.audio.projector.window_size": 7},
            "downsample_rate: found 3, wanted a divisor of 7",
        ),
        ({"clip.audio.projector.downsample_rate": 2}, "a.proj_query: file has (1, 2, 48)"),
    ),
)
def test_what_granite_speech_is_not_is_refused(tmp_path, change, said):
    plain = write_audio(tmp_path / "a.gguf", "granite_speech")
    with pytest.raises(ModelError, match=re.escape(said)):
        Hearing(rewritten(plain, tmp_path / "b.gguf", keys=change))


def test_both_names_of_a_batchs_norm_are_read(tmp_path, hearing):
    tensors = tensors_of("granite_speech", 24)
    old = {name: held for name, held in tensors.items() if ".conv_norm." in name}
    plain = write_audio(tmp_path / "a.gguf", "granite_speech")
    new = {name.replace("conv_norm", "conv_norm_var"): held for name, held in old.items()}
    other = Hearing(rewritten(plain, tmp_path / "b.gguf", drop=old, add=new))
    wanted = hearing("granite_speech").features(clip(1.0))
    assert np.array_equal(other.features(clip(1.0)), wanted)


@pytest.mark.parametrize("kind", FAST)
def test_a_fast_conformer_hears_four_minutes_at_once(hearing, monkeypatch, kind):
    """Each window under a spectrogram of its own, whose last frame is zeros."""
    monkeypatch.setattr(conformer, "ROWS", 20)
    samples = clip(5.0)
    whole = hearing(kind).features(samples)
    step = (8 * 20 - 1) * 160
    parts = [hearing(kind).features(each) for each in np.split(samples, [step, 2 * step, 3 * step])]
    assert [len(each) for each in parts] == [20, 20, 20, 3]
    assert np.array_equal(whole, np.concatenate(parts))
    # what follows a window by less than a frame makes no feature
    assert len(hearing(kind).features(samples[: step + 159])) == 20


def test_what_a_model_speaks_with_has_no_effect_on_what_it_hears(tmp_path, hearing):
    plain = write_audio(tmp_path / "a.gguf", "lfm2a")
    spoken = ("a.position_embd.weight", "a.position_embd_norm.weight", "a.embd_to_logits.weight")
    other = Hearing(rewritten(plain, tmp_path / "b.gguf", drop=spoken))
    wanted = hearing("lfm2a").features(clip(1.0))
    assert np.array_equal(other.features(clip(1.0)), wanted)


@pytest.mark.parametrize(
    "change, said",
    (
        ({"a.blk.0.conv_dw.weight": (32, 6)}, "conv_dw.weight: found 6, wanted an odd number"),
        ({"a.blk.1.conv_dw.weight": (32, 5)}, "conv_dw.weight: file has (32, 5), lfm2a needs"),
        ({"a.conv1d.2.weight": (6, 6, 3, 3)}, "a.conv1d.2.weight: file has (6, 6, 3, 3), lfm2a"),
        ({"a.conv1d.5.bias": (7, 1, 1)}, "a.conv1d.5.bias: file has (7, 1, 1), lfm2a needs (6,)"),
        ({"a.blk.0.pos_bias_u": (8, 4)}, "a.blk.0.pos_bias_u: file has (8, 4), lfm2a needs (4, 8)"),
    ),
)
def test_what_lfm2_audio_is_not_is_refused(tmp_path, change, said):
    plain = write_audio(tmp_path / "a.gguf", "lfm2a")
    held = {name: np.ones(shape, np.float32) for name, shape in change.items()}
    with pytest.raises(ModelError, match=re.escape(said)):
        Hearing(rewritten(plain, tmp_path / "b.gguf", drop=held, add=held))


def test_a_frame_of_zeros_that_begins_a_row_is_masked(hearing):
    """Of a clip of whole rows: what that row is changes no other one."""
    hears = hearing("parakeet")
    (window,) = hears.processor.windows(clip(2.0))
    found = hears.encoder.encode(window)
    # of 25 rows, a masked one and three beyond the clip
    layer = window.between[3]
    assert len(found) == 26 and len(layer.groups) == 29
    assert layer.columns[:, 0].tolist() == [1.0] * 25 + [0.0] * 4
    assert layer.spans[:, [0, 24, 25, 26]].T.tolist() == [[0, 25], [0, 25], [0, 26], [26, 27]]
    # without it, and otherwise alike, a frame shorter
    (other,) = hears.processor.windows(clip(2.0)[:-160])
    assert len(other.groups) == 25 and len(other.between[3].groups) == 28


@pytest.mark.parametrize(
    "change, said",
    (
        ({"keys": {"clip.audio.subsampling_factor": 4}}, "subsampling_factor: found 4, wanted"),
        ({"keys": {"clip.audio.conv_kernel_size": 9}}, "conv_kernel_size: found 9, wanted the 7"),
        (
            {"drop": ("a.window",), "add": {"a.window": np.ones(512, np.float32)}},
            "a.window: file has (512,), parakeet needs (400,)",
        ),
        (
            {"drop": ("a.mel_filters",), "add": {"a.mel_filters": np.ones((80, 201), np.float32)}},
            "a.mel_filters: file has (80, 201), parakeet needs (80, 257)",
        ),
        ({"drop": ("a.window",)}, "a.window: the file has no such tensor, parakeet needs it"),
        (
            {"drop": ("a.blk.1.conv_norm_var",)},
            "a.blk.1.conv_norm_var: the file has no such tensor",
        ),
    ),
)
def test_what_parakeet_is_not_is_refused(tmp_path, change, said):
    plain = write_audio(tmp_path / "a.gguf", "parakeet")
    with pytest.raises(ModelError, match=re.escape(said)):
        Hearing(rewritten(plain, tmp_path / "b.gguf", **change))


def test_the_spectrogram_of_parakeet_is_that_of_the_file(tmp_path, hearing):
    plain = write_audio(tmp_path / "a.gguf", "parakeet")
    held = {"a.window": tensors_of("parakeet", 24)["a.window"] * np.float32(0.5)}
    other = Hearing(rewritten(plain, tmp_path / "b.gguf", drop=held, add=held))
    found, wanted = (each.features(clip(1.0)) for each in (other, hearing("parakeet")))
    assert found.shape == wanted.shape and not np.array_equal(found, wanted)


def test_meralion_hears_standardised_windows(tmp_path, hearing):
    """However loud they are and whatever they are shifted by."""
    samples = clip(3.0)
    found = hearing("meralion").features(samples)
    parts = [hearing("meralion").features(each) for each in np.split(samples, [2 * RATE])]
    assert np.array_equal(found, np.concatenate(parts))
    louder = hearing("meralion").features(samples * np.float32(2) + np.float32(0.25))
    assert np.abs(found - louder).max() <= 1e-4 * np.abs(found).max()
    assert np.isfinite(hearing("meralion").features(np.zeros(RATE, np.float32))).all()
    keys = {"clip.audio.projector.stack_factor": 3}
    plain = write_audio(tmp_path / "a.gguf", "meralion")
    name = "mm.a.mlp.0.weight"
    held = {name: np.ones((40, 96), np.float32)}
    with pytest.raises(ModelError, match="stack_factor: found 3, wanted a divisor of the 100 rows"):
        Hearing(rewritten(plain, tmp_path / "b.gguf", keys=keys, drop=held, add=held))


def test_dots_hears_windows_of_a_minute(hearing, monkeypatch):
    """Each under a spectrogram of its own."""
    samples = clip(3.0)
    assert len(hearing("dots3note_a").processor.windows(np.zeros(960001, np.float32))) == 1
    monkeypatch.setattr(qwen3, "MINUTE", 25)
    whole = hearing("dots3note_a").features(samples)
    parts = [hearing("dots3note_a").features(each) for each in np.split(samples, [2 * RATE])]
    assert [len(each) for each in parts] == [25, 13]
    assert np.array_equal(whole, np.concatenate(parts))
    # what follows a window by less than a frame makes no feature
    assert len(hearing("dots3note_a").features(samples[: 2 * RATE + 159])) == 25


@pytest.mark.parametrize(
    "change, said",
    (
        ({"clip.audio.attention.head_count": 3}, "head_count: found 3, wanted a divisor of 32 by"),
        (
            {"clip.audio.num_mel_bins": 64},
            "a.conv_out.weight: file has (32, 60), dots3note_a needs",
        ),
        ({"clip.audio.chunk_size": 60}, "clip.audio.chunk_size: found 60, which clip does not use"),
    ),
)
def test_what_dots_is_not_is_refused(tmp_path, change, said):
    plain = write_audio(tmp_path / "a.gguf", "dots3note_a")
    with pytest.raises(ModelError, match=re.escape(said)):
        Hearing(rewritten(plain, tmp_path / "b.gguf", keys=change))
