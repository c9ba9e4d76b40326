"""Audio encoders of folders, as transformers saves them: their features are those of transformers,
recorded from the same weights (`tests/audio/record.py`).
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import oxillama
from oxillama.audio import Hearing
from oxillama.convert import convert_encoder, encoder_medium, has_encoder
from oxillama.errors import ConvertError
from oxillama.gguf import GgufReader
from oxillama.opening import encoded_by
from tests.audio.made import (
    CHANNELS,
    FFN,
    HEADS,
    HIDDEN,
    LAYERS,
    MELS,
    POSITIONS,
    clip,
    keys_of,
    tensors_of,
)
from tests.convert.test_families import save
from tests.convert.test_folders import folder  # noqa: F401  (a fixture)
from tests.convert.test_wrapped import tensors_of as read_tensors

WIDTH = 24
CLASSES = {
    "qwen2a": "Qwen2AudioForConditionalGeneration",
    "qwen3a": "Qwen3ASRForConditionalGeneration",
}
FACTS = Path(__file__).parents[1] / "audio" / "transformers_audio.npz"
_THEIRS = {
    **{f"attn_{part}": f"self_attn.{part}_proj" for part in ("q", "k", "v", "out")},
    **{"ln1": "self_attn_layer_norm", "ln2": "final_layer_norm"},
    **{"ffn_up": "fc1", "ffn_down": "fc2"},
}


def theirs(kind, name):
    """A tensor's name in a folder of transformers, None for one that it does not hold."""
    part, _, end = name.rpartition(".")
    if part.startswith("a.blk."):
        _, _, layer, rest = part.split(".")
        return f"audio_tower.layers.{layer}.{_THEIRS[rest]}.{end}"
    if part.startswith("a.conv"):
        return f"audio_tower.{part[2:].replace('1d.', '').replace('2d.', '2d')}.{end}"
    if part.startswith("mm.a."):
        rest = {"fc": "linear", "mlp.1": "linear_1", "mlp.2": "linear_2"}[part[5:]]
        return f"multi_modal_projector.{rest}.{end}"
    if part == "a.post_ln":
        return f"audio_tower.{'ln_post' if kind == 'qwen3a' else 'layer_norm'}.{end}"
    return "audio_tower.embed_positions.weight" if kind == "qwen2a" else None


def audio_folder(path, kind, *, audio=None, sounds=None, more=None, width=WIDTH):
    """A folder of the made weights of a kind; audio, sounds: values of `audio_config` and of the
    feature extractor; more: further tensors.
    """
    path.mkdir()
    config = {
        "d_model": HIDDEN,
        "encoder_layers": LAYERS,
        "encoder_attention_heads": HEADS,
        "encoder_ffn_dim": FFN,
        "num_mel_bins": MELS,
        **({"max_source_positions": POSITIONS[kind]} if kind == "qwen2a" else {}),
        **({"downsample_hidden_size": CHANNELS} if kind == "qwen3a" else {}),
        **(audio or {}),
    }
    text = {"model_type": "qwen2", "hidden_size": width}
    whole = {"architectures": [CLASSES[kind]], "audio_config": config, "text_config": text}
    (path / "config.json").write_text(json.dumps(whole))
    said = {"feature_size": MELS, "sampling_rate": 16000, "hop_length": 160, "n_fft": 400}
    said |= {"chunk_length": 2 if kind == "qwen2a" else 30, **(sounds or {})}
    (path / "preprocessor_config.json").write_text(json.dumps(said))
    tensors = {}
    for name, values in tensors_of(kind, width).items():
        original = theirs(kind, name)
        if original is not None:
            tensors[original] = (
                values.reshape(len(values)) if ".conv" in name and name.endswith("bias") else values
            )
    start = "model." if kind == "qwen3a" else ""  # newer classes have it
    tensors = {start + name: values for name, values in tensors.items()}
    save(path / "model.safetensors", {**tensors, **(more or {})})
    return path


@pytest.mark.parametrize("kind", CLASSES)
def test_an_encoder_is_the_file_that_llama_cpp_makes(tmp_path, kind):
    made = convert_encoder(audio_folder(tmp_path / "m", kind), tmp_path / "made.gguf", "F32")
    assert made.architecture == kind
    reader = GgufReader(made.path)
    wanted = tensors_of(kind, WIDTH)
    assert reader.tensors.keys() == wanted.keys()
    for name, values in wanted.items():
        if name != "a.position_embd.weight" or kind == "qwen2a":
            found = reader.data(name).view(np.float32)
            assert tuple(reader.tensors[name].shape) == values.shape, name
            assert np.array_equal(found.reshape(values.shape), values), name
    for key, value in keys_of(kind, WIDTH).items():
        assert reader.metadata[key] == pytest.approx(value)
    halves = GgufReader(convert_encoder(tmp_path / "m", tmp_path / "half.gguf", "F16").path)
    kinds = {name: info.type_name for name, info in halves.tensors.items()}
    number = "1d" if kind == "qwen2a" else "2d"
    assert kinds[f"a.conv{number}.1.weight"] == kinds["a.blk.0.attn_q.weight"] == "F16"
    assert {kinds[f"a.conv{number}.1.bias"], kinds["a.position_embd.weight"]} == {"F32"}


def test_features_of_a_folder_are_those_of_transformers(tmp_path):
    convert_encoder(audio_folder(tmp_path / "m", "qwen2a"), tmp_path / "made.gguf", "F32")
    found = Hearing(tmp_path / "made.gguf").features(clip(5.117))
    with np.load(FACTS) as facts:
        wanted = facts["qwen2a_long"]
    assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()


def test_positions_of_qwen3_asr_are_waves(tmp_path):
    """Sines, then cosines, of lengths from 1 to 10,000, as many as llama.cpp runs."""
    convert_encoder(audio_folder(tmp_path / "m", "qwen3a"), tmp_path / "made.gguf", "F32")
    reader = GgufReader(tmp_path / "made.gguf")
    table = reader.data("a.position_embd.weight").view(np.float32).reshape(1500, HIDDEN)
    assert np.array_equal(table[0], [0.0] * 16 + [1.0] * 16)
    wanted = [np.sin(7), np.sin(7e-4), np.cos(7), np.cos(7e-4)]
    assert table[7, [0, 15, 16, 31]] == pytest.approx(wanted, rel=1e-6)
    assert len(Hearing(reader).features(clip(2.0))) == 26


def test_a_folder_says_what_its_encoder_encodes(tmp_path):
    path = audio_folder(tmp_path / "m", "qwen2a")
    assert has_encoder(path) and encoder_medium(path) == "audio" and encoded_by(path) == ("audio",)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "audio_config": None}))
    assert not has_encoder(path) and encoded_by(path) == ()
    with pytest.raises(ConvertError, match="audio_config is missing, wanted that of an encoder"):
        convert_encoder(path, tmp_path / "made.gguf")


def test_a_folder_is_heard_as_it_is(folder, tmp_path, monkeypatch):  # noqa: F811
    """Its encoder is converted when the first clip comes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sounds = audio_folder(tmp_path / "a", "qwen2a", width=32)
    said, text = (json.loads((each / "config.json").read_text()) for each in (sounds, folder))
    text["model_type"] = "llama"
    (folder / "config.json").write_text(json.dumps({**said, "text_config": text}))
    shutil.copy(sounds / "preprocessor_config.json", folder)
    tower, words = read_tensors(sounds), read_tensors(folder)
    held = {f"language_model.{name}": values for name, values in words.items()}
    save(folder / "model.safetensors", held | tower)
    with oxillama.load(folder, kv_type="f32") as engine:
        assert engine.takes_audio and not engine.takes_images
        assert not list((tmp_path / "cache").rglob("mmproj-*"))
        _, features, _ = engine._loaded._media().hearing.pieces((clip(0.5), 16000))
        assert len(features) == 12
        prompt = oxillama.ImagePrompt([1, 2])
        prompt.add(features, 3)
        prompt.append(4)
        assert np.isfinite(engine.logits(prompt)).all()
    assert len(list((tmp_path / "cache").rglob("mmproj-*.gguf"))) == 1


@pytest.mark.parametrize(
    "kind, changes, said",
    (
        ("qwen2a", {"audio": {"activation_function": "relu"}}, "activation_function: found 'relu'"),
        (
            "qwen2a",
            {"audio": {"scale_embedding": True}},
            "scale_embedding: found True, wanted",
        ),
        ("qwen2a", {"sounds": {"hop_length": 320}}, "hop_length: found 320, wanted 160"),
        ("qwen2a", {"sounds": {"feature_size": 128}}, "feature_size: found 128, wanted 80"),
        ("qwen2a", {"sounds": {"chunk_length": 30}}, "chunk_length: found 30, wanted 2"),
        ("qwen3a", {"audio": {"n_window": 100}}, "n_window: found 100, wanted 50"),
        ("qwen3a", {"audio": {"n_window_infer": 400}}, "n_window_infer: found 400, wanted 800"),
        ("qwen3a", {"sounds": {"min_length": 0}}, "min_length: found 0, wanted 8000"),
        (
            "qwen2a",
            {"more": {"audio_tower.odd.weight": np.zeros(4, np.float32)}},
            r"audio_tower.odd.weight \[4\]: qwen2a has no place for it",
        ),
    ),
)
def test_what_a_file_cannot_say_is_refused(tmp_path, kind, changes, said):
    with pytest.raises(ConvertError, match=said):
        convert_encoder(audio_folder(tmp_path / "m", kind, **changes), tmp_path / "made.gguf")
    assert not (tmp_path / "made.gguf").exists()
