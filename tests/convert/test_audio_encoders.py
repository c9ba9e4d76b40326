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
from oxillama.convert import convert_encoder, convert_folder, encoded_media, has_encoder
from oxillama.errors import ConvertError
from oxillama.gguf import GgufReader
from oxillama.opening import encoded_by
from oxillama.vision import Vision
from tests.audio.made import (
    CHANNELS,
    FFN,
    GRANITE,
    HEADS,
    HIDDEN,
    LAYERS,
    MELS,
    POSITIONS,
    TAPS,
    TOKENS,
    clip,
    keys_of,
    tensors_of,
)
from tests.convert.encoder_folders import made_of
from tests.convert.folders import save
from tests.convert.folders import tensors_of as read_tensors

WIDTH = 24
CLASSES = {
    "qwen2a": "Qwen2AudioForConditionalGeneration",
    "qwen3a": "Qwen3ASRForConditionalGeneration",
    "qwen2.5o": "Qwen2_5OmniThinkerForConditionalGeneration",
    "voxtral": "VoxtralForConditionalGeneration",
    "ultravox": "UltravoxModel",
    "musicflamingo": "AudioFlamingo3ForConditionalGeneration",
    "glma": "GlmAsrForConditionalGeneration",
    "gemma3na": "Gemma3nForConditionalGeneration",
    "gemma4a": "Gemma4ForConditionalGeneration",
    "gemma4ua": "Gemma4UnifiedForConditionalGeneration",
    "granite_speech": "GraniteSpeechForConditionalGeneration",
    "lfm2a": "Lfm2AudioForConditionalGeneration",
    "parakeet": "NemotronH_Nano_VL_V2",
    "meralion": "MERaLiON2ForConditionalGeneration",
}
PARTS = {
    **{"granite_speech": "encoder_config", "lfm2a": "encoder", "parakeet": "sound_config"},
    "meralion": "speech_config",
}  # of config.json
FACTS = Path(__file__).parents[1] / "audio" / "transformers_audio.npz"
WAVES = ("qwen3a", "qwen2.5o")  # positions are made, not held
_ATTENTION = {f"attn_{part}": f"self_attn.{part}_proj" for part in ("q", "k", "v", "out")}
_WHISPER = {
    **_ATTENTION,
    **{"ln1": "self_attn_layer_norm", "ln2": "final_layer_norm"},
    **{"ffn_up": "fc1", "ffn_down": "fc2"},
}
_GLM = {
    **{**_ATTENTION, "attn_out": "self_attn.o_proj"},
    **{"ln1": "input_layernorm", "ln2": "post_attention_layernorm"},
    **{"ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
}
_GEMMA = {
    **{f"ffn_{ours}{end}": f"feed_forward{at}.{theirs}"
       for end, at in (("", 1), ("_1", 2))
       for ours, theirs in (("norm", "pre_layer_norm"), ("up", "ffw_layer_1"),
                            ("down", "ffw_layer_2"), ("post_norm", "post_layer_norm"))},
    **{**_ATTENTION, "attn_out": "self_attn.post", "attn_k_rel": "self_attn.relative_k_proj"},
    **{"attn_pre_norm": "norm_pre_attn", "attn_post_norm": "norm_post_attn", "ln2": "norm_out"},
    **{"conv_norm": "lconv1d.pre_layer_norm", "norm_conv": "lconv1d.conv_norm"},
    **{"conv_pw1": "lconv1d.linear_start", "conv_pw2": "lconv1d.linear_end"},
    **{"conv_dw": "lconv1d.depthwise_conv1d", "per_dim_scale": "self_attn.per_dim_scale"},
}  # fmt: skip
_GEMMA_3N = {
    **{f"ffn_{ours}{end}": f"ffw_layer_{at}.{theirs}"
       for end, at in (("", "start"), ("_1", "end"))
       for ours, theirs in (("norm", "pre_layer_norm"), ("up", "ffw_layer_1"),
                            ("down", "ffw_layer_2"), ("post_norm", "post_layer_norm"))},
    **{f"attn_{part}": f"attention.attn.{part}_proj" for part in "qkv"},
    **{"ln1": "attention.pre_attn_norm", "ln2": "attention.post_norm"},
    **{"attn_out": "attention.post", "per_dim_scale": "attention.attn.per_dim_scale"},
    "linear_pos": "attention.attn.relative_position_embedding.pos_proj",
    **{name: _GEMMA[name] for name in ("conv_norm", "norm_conv", "conv_pw1", "conv_pw2")},
    **{"conv_dw": _GEMMA["conv_dw"], "layer_pre_norm": "norm"},
    **{"mm.a.embedding": "embedding", "mm.a.input_projection": "embedding_projection"},
    **{f"mm.a.{kind}_emb_norm": f"{kind}_embedding_norm" for kind in ("hard", "soft")},
}  # fmt: skip
_GRANITE = {
    **{f"ffn_{ours}{end}": f"ff{at}.{theirs}"
       for end, at in (("", 1), ("_1", 2))
       for ours, theirs in (("norm", "pre_norm"), ("up", "up_proj"), ("down", "down_proj"))},
    **{"ln1": "attn.pre_norm", "ln2": "post_norm", "norm_conv": "conv.norm"},
    **{f"attn_{part}": f"attn.to_{part}" for part in ("q", "k", "v", "out")},
    **{"conv_pw1": "conv.up_conv", "conv_pw2": "conv.down_conv"},
    **{"conv_dw": "conv.depth_conv.conv", "conv_norm": "conv.batch_norm"},
    **{f"{ours}_attn_{part}": f"{theirs}.{name}"
       for ours, theirs in (("self", "attention"), ("cross", "crossattention"))
       for part, name in (("q", "attention.query"), ("k", "attention.key"),
                          ("v", "attention.value"), ("out", "output.dense"),
                          ("norm", "output.LayerNorm"))},
}  # fmt: skip
_CONFORMER = {
    **{f"ffn_{ours}{end}": f"feed_forward{at}.linear{number}"
       for end, at in (("", 1), ("_1", 2)) for ours, number in (("up", 1), ("down", 2))},
    **{f"ffn_norm{end}": f"norm_feed_forward{at}" for end, at in (("", 1), ("_1", 2))},
    **{"ln1": "norm_self_att", "ln2": "norm_out", "norm_conv": "norm_conv"},
    **{f"conv_pw{at}": f"conv.pointwise_conv{at}" for at in (1, 2)},
    "conv_dw": "conv.depthwise_conv",
}  # fmt: skip
_LFM = {
    **_CONFORMER,
    **{f"attn_{part}": f"self_attn.linear_{part}" for part in ("q", "k", "v", "out")},
    **{name: f"self_attn.{name}" for name in ("linear_pos", "pos_bias_u", "pos_bias_v")},
    "conv_norm": "conv.batch_norm",
}
_PARAKEET = {
    **_CONFORMER,
    **{**_ATTENTION, "attn_out": "self_attn.o_proj", "linear_pos": "self_attn.relative_k_proj"},
    **{f"pos_bias_{end}": f"self_attn.bias_{end}" for end in "uv"},
    "conv_norm": "conv.norm",
    **{f"conv_norm_{end}": f"conv.norm.running_{end}" for end in ("mean", "var")},
}
_EXTRACTOR = "sound_encoder.encoder.feature_extractor.featurizer."
_SOUND = {
    **{"a.mel_filters": _EXTRACTOR + "fb", "a.window": _EXTRACTOR + "window"},
    "mm.a.norm_pre.weight": "sound_projection.norm.weight",
    **{f"mm.a.mlp.{at}.weight": f"sound_projection.linear{at}.weight" for at in (1, 2)},
}
_SPOKEN = {
    "a.position_embd": "embedding",
    "a.position_embd_norm": "embedding_norm",
    "a.embd_to_logits": "to_logits",
}
_QFORMER = {
    **{"ffn_up": "intermediate_query.dense", "ffn_down": "output_query.dense"},
    "ffn_norm": "output_query.LayerNorm",
}


def theirs(kind, name):
    """A tensor's name in a folder of transformers, None for one that it does not hold."""
    part, _, end = name.rpartition(".")
    if kind == "meralion":
        adapter = ("mlp_adapter.0", "gate_proj", "pool_proj", "out_proj")
        if part.startswith("mm.a.mlp."):
            return f"speech_audio_adapter.{adapter[int(part[9:])]}.{end}"
        if part == "mm.a.norm_pre":
            return f"ln_speech.{end}"
        return theirs("qwen2a", name).replace("audio_tower.", "speech_encoder.")
    if kind == "parakeet":
        if part.startswith("a.blk.") or end.startswith("conv_norm"):
            _, _, layer, rest = name.split(".", 3)
            rest, dot, end = rest.partition(".")
            return f"sound_encoder.encoder.layers.{layer}.{_PARAKEET[rest]}{dot}{end}"
        plain = name.replace("a.conv1d.", "layers.").replace("a.pre_encode.out", "linear")
        return _SOUND.get(name, f"sound_encoder.encoder.subsampling.{plain}")
    if kind == "lfm2a":
        if part.startswith("a.blk."):
            _, _, layer, rest = name.split(".", 3)
            rest, dot, end = rest.partition(".")
            return f"conformer.layers.{layer}.{_LFM[rest]}{dot}{end}"
        if part in _SPOKEN:
            return f"audio_embedding.{_SPOKEN[part]}.{end}"
        name = name.replace("a.conv1d.", "a.pre_encode.conv.").replace("mm.a.mlp", "model")
        return ("audio_adapter." if part[0] == "m" else "") + name.replace("a.pre", "conformer.pre")
    if kind == "gemma3na":
        if part.startswith("a.blk."):
            _, _, layer, rest = name.split(".", 3)
            rest, dot, end = rest.partition(".")
            return f"audio_tower.conformer.{layer}.{_GEMMA_3N[rest]}{dot}{end}"
        if part.startswith("mm."):
            return f"embed_audio.{_GEMMA_3N[part]}.{end}"
        rest = f"conv_{part[9:]}" if "norm" in part else f"conv_{part[9:]}.conv"
        rest = "input_proj_linear" if part == "a.pre_encode.out" else rest
        return f"audio_tower.subsample_conv_projection.{rest}.{end}"
    if name == "a.proj_query":
        return "projector.query"
    if end == "attn_rel_pos_emb":
        return f"encoder.layers.{part[6:]}.attn.rel_pos_emb.weight"
    if part.startswith("a.blk."):
        _, _, layer, rest = part.split(".")
        names = {"glma": _GLM, "gemma4a": _GEMMA, "granite_speech": _GRANITE}.get(kind, _WHISPER)
        place = "encoder" if kind == "granite_speech" else "audio_tower"
        end = ("linear." if end == "weight" else "") + end if limited(kind, rest) else end
        return f"{place}.layers.{layer}.{names[rest]}.{end}"
    if part.startswith("a.proj_blk."):
        _, _, layer, rest = part.split(".")
        return f"projector.qformer.encoder.layer.{layer}.{ {**_GRANITE, **_QFORMER}[rest] }.{end}"
    if kind == "gemma4a" and part.startswith("a.conv1d."):
        at, kept = part[9], "norm" if part.endswith("norm") else "conv"
        return f"audio_tower.subsample_conv_projection.layer{at}.{kept}.{end}"
    if part.startswith("a.conv"):
        return f"audio_tower.{part[2:].replace('1d.', '').replace('2d.', '2d')}.{end}"
    if part.startswith("mm.a."):
        rest = {"fc": "linear", "mlp.1": "linear_1", "mlp.2": "linear_2"}.get(part[5:])
        rest = rest or {"norm_pre": "ln_pre", "norm_mid": "ln_mid"}.get(part[5:])
        if part == "mm.a.input_projection":
            return f"embed_audio.embedding_projection.{end}"
        if (kind, part) in (("qwen2.5o", "mm.a.fc"), ("glma", "mm.a.norm_pre")):
            return f"audio_tower.{'proj' if kind == 'qwen2.5o' else 'norm'}.{end}"
        return f"multi_modal_projector.{rest}.{end}"
    if part == "a.post_ln":
        return f"audio_tower.{'ln_post' if kind in WAVES else 'layer_norm'}.{end}"
    if part == "a.position_embd":
        return None if kind in (*WAVES, "glma") else "audio_tower.embed_positions.weight"
    if kind == "gemma4a":
        held = {"a.pre_encode.out": "output_proj"}
        return f"audio_tower.{held.get(part, 'subsample_conv_projection.input_proj_linear')}.{end}"
    held = {
        **{"a.input_projection": "encoder.input_linear", "a.enc_ctc_out": "encoder.out"},
        **{"a.enc_ctc_out_mid": "encoder.out_mid", "a.proj_linear": "projector.linear"},
        "a.proj_norm": "projector.qformer.layernorm",
    }
    return f"{held[part]}.{end}" if part in held else None


def limited(kind, rest):
    """Whether a product of a layer has limits, and its weight another name."""
    products = ("ffn_up", "ffn_down", "attn_q", "attn_v", "attn_out", "conv_pw")
    return kind == "gemma4a" and (rest.startswith(products) or rest == "attn_k")


def tensors_in(kind, width):
    """The made tensors of a kind as a folder of transformers holds them."""
    tensors, made = {}, tensors_of(kind, width)
    for name, values in made.items():
        original = theirs(kind, name)
        if original is None:
            continue
        if ".conv" in name and name.endswith("bias") and values.ndim > 1:
            values = values.reshape(-1)
        elif kind == "gemma3na":
            pass  # as they are
        elif "conv_dw.weight" in name and kind != "parakeet":
            values = values[:, None]
        elif ".per_dim_scale" in original:  # its softplus is in the file
            original, values = original.removesuffix(".weight"), np.log(np.expm1(values))
        elif limited(kind, name.split(".")[3] if ".blk." in name else "") and values.ndim == 1:
            values = values[0]
        if kind == "parakeet" and ".blk." in name and ".conv_" in name:
            axes = (HIDDEN, 1, TAPS) if "conv_dw" in name else (*values.shape, 1)
            if name.endswith("weight") and "norm" not in name:
                values = values.reshape(axes)
        if kind in ("granite_speech", "lfm2a"):
            if "conv_pw" in name and name.endswith("weight"):
                values = values[..., None]
            elif name.endswith("conv_norm.weight"):
                start = original.removesuffix("weight")
                values = (values * np.sqrt(1 + 1e-5)).astype(np.float32)
                tensors[start + "running_mean"] = np.zeros_like(values)
                tensors[start + "running_var"] = np.ones_like(values)
            elif kind == "lfm2a":
                pass
            elif ".blk." in name and name.endswith(".attn_k.weight"):
                values = np.concatenate([values, made[name.replace("attn_k", "attn_v")]])
                original = original.replace("to_k", "to_kv")
            elif name.endswith(".attn_v.weight"):
                continue
        if kind == "glma" and name.endswith(("attn_q.weight", "attn_q.bias", "attn_k.weight")):
            # halves of what is rotated in place of pairs
            each = HIDDEN // HEADS
            order = [*range(0, each // 2, 2), *range(1, each // 2, 2), *range(each // 2, each)]
            shape = values.shape
            values = values.reshape(HEADS, each, -1)[:, order].reshape(shape)
        tensors[original] = values
    return tensors


def config_of(kind):
    """`audio_config`, the other values of config.json, and what the feature extractor says."""
    short = {
        "d_model": HIDDEN,
        "encoder_layers": LAYERS,
        "encoder_attention_heads": HEADS,
        "encoder_ffn_dim": FFN,
        "num_mel_bins": MELS,
    }
    sizes = {
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": FFN,
    }
    sounds = {"feature_size": MELS, "sampling_rate": 16000, "hop_length": 160, "n_fft": 400}
    windows = {"chunk_length": 2}
    positions = {"max_source_positions": POSITIONS.get(kind)}
    if kind == "meralion":
        more = {"speech_mlp_scale_factor": 5, "speech_token_index": 255999}
        return {**short, **positions}, more, {**sounds, **windows}
    if kind in ("qwen2a", "ultravox"):
        more = {"projector_act": "swiglu", "projector_ln_mid": True, "stack_factor": 8}
        return {**short, **positions}, more if kind == "ultravox" else {}, {**sounds, **windows}
    if kind == "qwen3a":
        return {**short, "downsample_hidden_size": CHANNELS}, {}, sounds
    if kind == "qwen2.5o":
        return {**short, "n_window": 100}, {}, {**sounds, "chunk_length": 300}
    if kind == "gemma3na":
        config = {
            **{"hidden_size": HIDDEN, "input_feat_size": MELS, "vocab_size": TOKENS},
            **{"conf_num_hidden_layers": LAYERS, "conf_num_attention_heads": HEADS},
            **{"vocab_offset": 64, "sscp_conv_stride_size": [[2, 2], [2, 2]]},
        }
        said = {"frame_length": 512, "fft_length": 1024, "preemphasis": 0.97}
        del sounds["n_fft"]
        return config, {"eoa_token_id": 64}, {**sounds, **said}
    if kind == "gemma4a":
        said = {"frame_length": 320, "fft_length": 512, "mel_floor": 0.001}
        del sounds["n_fft"]
        return {**sizes, "rms_norm_eps": 1e-6}, {}, {**sounds, **said}
    if kind == "gemma4ua":
        return {"audio_embed_dim": 640}, {}, {"feature_size": 640, "sampling_rate": 16000}
    if kind == "granite_speech":
        config = {
            **{"hidden_dim": HIDDEN, "num_layers": LAYERS, "num_heads": HEADS},
            **{"feedforward_mult": FFN // HIDDEN, "input_dim": 2 * MELS},
            "context_size": GRANITE["chunk_size"],
            **{name: GRANITE[name] for name in ("max_pos_emb", "conv_kernel_size")},
        }
        more = {
            "window_size": GRANITE["projector.window_size"],
            "downsample_rate": GRANITE["projector.downsample_rate"],
            "projector_config": {"num_attention_heads": GRANITE["projector.head_count"]},
        }
        said = {"n_fft": 512, "hop_length": 160, "win_length": 400, "n_mels": MELS}
        return config, more, {"melspec_kwargs": said, "sampling_rate": 16000}
    if kind == "parakeet":
        more = {"num_mel_bins": MELS, "conv_kernel_size": TAPS, "subsampling_factor": 8}
        said = {"hop_length": 160, "win_length": 400, "preemphasis": 0.97, "n_fft": 512}
        return {**sizes, **more, "sampling_rate": 16000, "projection_hidden_size": 40}, {}, said
    if kind == "lfm2a":
        config = {
            **{"feat_in": MELS, "feat_out": -1, "n_layers": LAYERS, "d_model": HIDDEN},
            **{"n_heads": HEADS, "ff_expansion_factor": FFN // HIDDEN, "conv_kernel_size": TAPS},
            **{"subsampling": "dw_striding", "subsampling_factor": 8, "xscaling": False},
            **{"self_attention_model": "rel_pos", "att_context_size": [-1, -1]},
        }
        said = {"sample_rate": 16000, "normalize": "per_feature", "window_size": 0.025}
        return config, {}, {**said, "features": MELS, "n_fft": 512, "pad_to": 0}
    return {**sizes, "num_mel_bins": MELS, **positions}, {}, {**sounds, **windows}


def audio_folder(path, kind, *, audio=None, sounds=None, more=None, width=WIDTH, whole=None):
    """A folder of the made weights of a kind; audio, sounds, whole: values of `audio_config`, of
    the feature extractor and of the whole; more: further tensors.
    """
    path.mkdir()
    config, others, said = config_of(kind)
    part = PARTS.get(kind, "audio_config")
    text = {} if kind == "ultravox" else {"model_type": "qwen2", "hidden_size": width}
    made = {"architectures": [CLASSES[kind]], part: {**config, **(audio or {})}, **others}
    made |= {"text_config": text, "hidden_size": 4096} if kind == "ultravox" else {}
    said = {**said, **(sounds or {})}
    made = {"text_config": text, **made, **(whole or {})}
    if kind == "lfm2a":  # whose parts have names of their own
        made = {"lfm": made.pop("text_config"), "preprocessor": said, **made}
    else:
        (path / "preprocessor_config.json").write_text(json.dumps(said))
    (path / "config.json").write_text(json.dumps(made))
    # newer classes have it
    start = "model." if kind in ("qwen3a", "gemma3na", "gemma4a", "gemma4ua") else ""
    tensors = {start + name: values for name, values in tensors_in(kind, width).items()}
    save(path / "model.safetensors", {**tensors, **(more or {})})
    return path


@pytest.mark.parametrize("kind", CLASSES)
def test_an_encoder_is_the_file_that_llama_cpp_makes(tmp_path, kind):
    made = convert_encoder(audio_folder(tmp_path / "m", kind), tmp_path / "made.gguf", "F32")
    assert made.architecture == kind
    reader = GgufReader(made.path)
    wanted = tensors_of(kind, WIDTH)
    if kind == "glma":  # rows of the vocabulary, which the published code takes from it
        wanted = {name: values for name, values in wanted.items() if name[:2] != "v."}
        wanted["a.position_embd.weight"] *= 0
    assert reader.tensors.keys() == wanted.keys()
    for name, values in wanted.items():
        if name != "a.position_embd.weight" or kind not in WAVES:
            found = reader.data(name).view(np.float32)
            assert tuple(reader.tensors[name].shape) == values.shape, name
            found = found.reshape(values.shape)
            if name.endswith(("per_dim_scale.weight", "conv_norm.weight")):  # computed
                assert found == pytest.approx(values, rel=1e-6)
            else:
                assert np.array_equal(found, values), name
    keys = keys_of(kind, WIDTH)
    if kind in ("gemma3na", "gemma4a"):
        keys["clip.audio.feed_forward_length"] = 4 * HIDDEN
    if kind == "gemma4ua":
        keys["clip.audio.num_mel_bins"] = 128
    if kind.startswith("gemma"):
        keys["clip.audio.attention.layer_norm_epsilon"] = 1e-6
    for key, value in keys.items():
        assert reader.metadata[key] == pytest.approx(value), key


@pytest.mark.parametrize(
    "kind, name, type",
    [
        *(("qwen2a", name, "F16") for name in ("a.conv1d.1.weight", "a.blk.0.attn_q.weight")),
        *(("qwen2a", name, "F32") for name in ("a.conv1d.1.bias", "a.position_embd.weight")),
        *(("qwen3a", name, "F16") for name in ("a.conv2d.1.weight", "a.blk.0.attn_q.weight")),
        ("musicflamingo", "a.conv1d.1.weight", "F32"),
        *(("gemma4a", name, "F32") for name in ("a.conv1d.0.weight", "a.blk.0.conv_dw.weight")),
        ("gemma4a", "a.blk.0.conv_pw1.weight", "F16"),
        *(("gemma3na", name, "F32") for name in ("a.conv1d.0.weight", "a.blk.0.conv_dw.weight")),
        *(
            ("gemma3na", name, "F16")
            for name in ("a.pre_encode.out.weight", "mm.a.embedding.weight")
        ),
        *(("granite_speech", name, "F32") for name in ("a.blk.0.conv_pw1.weight", "a.proj_query")),
        ("granite_speech", "a.blk.0.attn_k.weight", "F16"),
        *(("parakeet", name, "F32") for name in ("a.mel_filters", "a.blk.0.conv_pw1.bias")),
        *(("parakeet", name, "F32") for name in ("a.blk.0.conv_dw.weight", "a.conv1d.2.weight")),
        *(("parakeet", name, "F16") for name in ("a.blk.0.linear_pos.weight", "mm.a.mlp.1.weight")),
        *(("lfm2a", name, "F32") for name in ("a.conv1d.3.weight", "a.blk.0.pos_bias_u")),
        *(("lfm2a", name, "F32") for name in ("a.blk.0.conv_pw1.weight", "a.position_embd.weight")),
        *(("lfm2a", name, "F16") for name in ("a.blk.0.linear_pos.weight", "mm.a.mlp.1.weight")),
    ],
)
def test_convolutions_and_positions_are_of_the_types_of_llama_cpp(tmp_path, kind, name, type):
    path = audio_folder(tmp_path / "m", kind)
    halves = GgufReader(convert_encoder(path, tmp_path / "half.gguf", "F16").path)
    assert halves.tensors[name].type_name == type


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind not in WAVES])
def test_features_of_a_folder_are_those_of_transformers(tmp_path, kind):
    convert_encoder(audio_folder(tmp_path / "m", kind), tmp_path / "made.gguf", "F32")
    found = Hearing(tmp_path / "made.gguf").features(clip(5.117))
    with np.load(FACTS) as facts:
        wanted = facts[f"{kind}_long"]
    assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()


def test_glm_asr_as_it_was_published_is_that_of_transformers(tmp_path):
    """With adjacent pairs rotated, learned positions and two rows for the ends of a clip."""
    path = tmp_path / "m"
    path.mkdir()
    whisper, _, sounds = config_of("ultravox")
    said = {
        **{"architectures": ["GlmasrModel"], "whisper_config": whisper, "merge_factor": 4},
        **{"use_rope": True, "adapter_type": "mlp", "mlp_adapter_act": "gelu"},
        "lm_config": {"model_type": "llama", "hidden_size": WIDTH},
    }
    (path / "config.json").write_text(json.dumps(said))
    (path / "preprocessor_config.json").write_text(json.dumps(sounds))
    made, tensors = tensors_of("glma", WIDTH), {}
    for name, values in made.items():
        if name[:2] == "v.":
            continue
        if name.startswith("mm."):
            name = name.replace("mm.a.norm_pre", "layer_norm").replace("mm.a.mlp.1", "adapting.0")
            name = "audio_encoder." + name.replace("mm.a.mlp.2", "adapting.2")
        else:
            name = theirs("qwen2a", name).replace("audio_tower.", "audio_encoder.whisper.")
        bias = "conv" in name and name.endswith("bias")
        tensors[name] = values.reshape(-1) if bias else values
    ends = np.stack([made["v.boi"], made["v.eoi"]])
    tensors["audio_encoder.audio_bos_eos_token.weight"] = ends
    tensors["audio_encoder.proj.weight"] = ends
    save(path / "model.safetensors", tensors)
    report = convert_encoder(path, tmp_path / "made.gguf", "F32")
    reader = GgufReader(report.path)
    assert report.left_out == ("audio_encoder.proj.weight",)
    assert reader.tensors.keys() == made.keys()
    for name, values in made.items():
        found = reader.data(name).view(np.float32).reshape(values.shape)
        assert np.array_equal(found, values), name
    assert reader.metadata["clip.audio.projector.stack_factor"] == 4
    assert reader.metadata["clip.audio.projection_dim"] == WIDTH  # of `lm_config`
    with np.load(FACTS) as facts:
        wanted = facts["glma_long"]
    found = Hearing(reader).features(clip(5.117))
    assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()
    for change, told in (
        ({"use_rope": False}, "use_rope: found False, wanted True"),
        ({"use_rope": None}, "use_rope is missing, wanted True"),
        ({"mlp_adapter_act": "relu"}, "mlp_adapter_act: found 'relu', wanted 'gelu'"),
        ({"max_whisper_length": 50}, "max_whisper_length: found 50, wanted 100"),
    ):
        (path / "config.json").write_text(json.dumps({**said, **change}))
        with pytest.raises(ConvertError, match=told):
            convert_encoder(path, tmp_path / "other.gguf")


def test_positions_of_qwen3_asr_are_waves(tmp_path):
    """Sines, then cosines, of lengths from 1 to 10,000, as many as llama.cpp runs."""
    convert_encoder(audio_folder(tmp_path / "m", "qwen3a"), tmp_path / "made.gguf", "F32")
    reader = GgufReader(tmp_path / "made.gguf")
    table = reader.data("a.position_embd.weight").view(np.float32).reshape(1500, HIDDEN)
    assert np.array_equal(table[0], [0.0] * 16 + [1.0] * 16)
    wanted = [np.sin(7), np.sin(7e-4), np.cos(7), np.cos(7e-4)]
    assert table[7, [0, 15, 16, 31]] == pytest.approx(wanted, rel=1e-6)
    assert len(Hearing(reader).features(clip(2.0))) == 26


def test_bands_and_taper_of_parakeet_are_made_where_a_folder_lacks_them(tmp_path):
    """And those of transformers' feature extractor."""
    path = audio_folder(tmp_path / "m", "parakeet", audio={"num_mel_bins": 128})
    tensors = tensors_in("parakeet", WIDTH)
    for name in (_EXTRACTOR + "fb", _EXTRACTOR + "window"):
        del tensors[name]
    name = "sound_encoder.encoder.subsampling.linear.weight"
    tensors[name] = np.ones((HIDDEN, 128 // 8 * CHANNELS), np.float32)
    tensors["sound_encoder.encoder.layers.0.conv.norm.num_batches_tracked"] = np.ones(1, np.int64)
    save(path / "model.safetensors", tensors)
    hearing = Hearing(convert_encoder(path, tmp_path / "made.gguf", "F32").path)
    found = hearing.processor.made.of(clip(1.0))
    with np.load(FACTS) as facts:
        # bands and taper are in 32 bits in a file
        assert np.abs(found - facts["parakeet_mel"]).max() <= 2e-5


def test_summands_that_parakeet_is_said_to_lack_are_left_out(tmp_path):
    """As its code leaves them out, whatever the folder holds."""
    more = {
        f"sound_encoder.encoder.layers.0.{name}.bias": np.ones(width, np.float32)
        for name, width in (("self_attn.q_proj", HIDDEN), ("feed_forward2.linear1", FFN))
    }
    more["sound_projection.linear1.bias"] = np.ones(40, np.float32)
    held = {
        *("a.blk.0.attn_q.bias", "a.blk.0.ffn_up_1.bias", "mm.a.mlp.1.bias"),
        *("a.blk.0.conv_pw1.bias", "a.blk.0.conv_dw.bias"),
    }
    for name, flag in (("with", True), ("without", False)):
        said = dict.fromkeys(("attention_bias", "convolution_bias", "projection_bias"), flag)
        path = audio_folder(tmp_path / name, "parakeet", audio=said, more=more)
        made = GgufReader(convert_encoder(path, tmp_path / f"{name}.gguf", "F32").path)
        assert held & made.tensors.keys() == (held if flag else set())


def test_a_folder_says_what_its_encoder_encodes(tmp_path):
    path = audio_folder(tmp_path / "m", "qwen2a")
    assert (
        has_encoder(path) and encoded_media(path) == ("audio",) and encoded_by(path) == ("audio",)
    )
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "audio_config": None}))
    assert not has_encoder(path) and encoded_by(path) == ()
    with pytest.raises(ConvertError, match="audio_config is missing, wanted that of an encoder"):
        convert_encoder(path, tmp_path / "made.gguf")


def test_a_folder_is_heard_as_it_is(folder, tmp_path, monkeypatch):
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
    "golden, kind, seen_by, lacks",
    (
        ("gemma4", "gemma4a", "gemma4v", "no tensors of an encoder, wanted those of audio"),
        ("nemotron2vl", "parakeet", "nemotron_v2_vl", "no such tensor, parakeet needs it"),
    ),
)
def test_a_model_that_sees_and_hears_has_one_file_of_both(tmp_path, golden, kind, seen_by, lacks):
    """Its encoders, each as it is alone; their kinds are said of each medium."""
    tensors, part = made_of(golden, tmp_path), PARTS.get(kind, "audio_config")
    seen = GgufReader(convert_encoder(tmp_path / "model", tmp_path / "seen.gguf", "F32").path)
    width = seen.metadata["clip.vision.projection_dim"]
    sounds = audio_folder(tmp_path / "m", kind, width=width)
    heard = GgufReader(convert_encoder(sounds, tmp_path / "heard.gguf", "F32").path)
    said, more = (
        json.loads((each / "config.json").read_text()) for each in (tmp_path / "model", sounds)
    )
    (tmp_path / "model" / "config.json").write_text(json.dumps({**said, part: more[part]}))
    extract = json.loads((sounds / "preprocessor_config.json").read_text())
    path = tmp_path / "model" / "processor_config.json"
    processor = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**processor, "feature_extractor": extract}))
    with pytest.raises(ConvertError, match=lacks):
        convert_encoder(tmp_path / "model", tmp_path / "both.gguf", "F32")
    start = "" if kind == "parakeet" else "model."
    tower = {start + name: values for name, values in tensors_in(kind, width).items()}
    save(tmp_path / "model" / "model.safetensors", tensors | tower)
    made = convert_encoder(tmp_path / "model", tmp_path / "both.gguf", "F32")
    assert made.architecture == f"{seen_by} and {kind}"
    assert encoded_media(tmp_path / "model") == ("vision", "audio")
    both = GgufReader(made.path)
    assert both.tensors.keys() == seen.tensors.keys() | heard.tensors.keys()
    for name in both.tensors:
        alone = seen if name in seen.tensors else heard
        assert np.array_equal(both.data(name), alone.data(name)), name
    kinds = {key: both.metadata.get(f"clip.{key}projector_type") for key in KINDS_OF}
    assert kinds == {"": None, "vision.": seen_by, "audio.": kind}
    samples = clip(1.0)
    assert np.array_equal(Hearing(both).features(samples), Hearing(heard).features(samples))
    assert Vision(both).width == width


def test_an_encoder_without_a_language_model_names_it(tmp_path):
    """Ultravox is published without the model that it was trained with."""
    path = audio_folder(tmp_path / "m", "ultravox", whole={"text_model_id": "meta-llama/Small"})
    with pytest.raises(ConvertError, match="an encoder alone .* language model, 'meta-llama/Small"):
        convert_folder(path, tmp_path / "made.gguf")


KINDS_OF = ("", "vision.", "audio.")


def test_qwen25_omni_sees_as_qwen25_vl_does(tmp_path):
    """But that queries, keys and values are held apart; one kind is said of both encoders, and
    a folder of the whole model is that of its thinker.
    """
    tensors = made_of("qwen25vl", tmp_path)
    seen = GgufReader(convert_encoder(tmp_path / "model", tmp_path / "seen.gguf", "F32").path)
    width = seen.metadata["clip.vision.projection_dim"]
    sounds = audio_folder(tmp_path / "m", "qwen2.5o", width=width)
    heard = GgufReader(convert_encoder(sounds, tmp_path / "heard.gguf", "F32").path)
    whole, more = (
        json.loads((each / "config.json").read_text()) for each in (tmp_path / "model", sounds)
    )
    del whole["architectures"]
    thinker = {**whole, "audio_config": more["audio_config"]}
    named = {"architectures": ["Qwen2_5OmniForConditionalGeneration"], "thinker_config": thinker}
    (tmp_path / "model" / "config.json").write_text(json.dumps(named))
    path = tmp_path / "model" / "preprocessor_config.json"
    said = json.loads((sounds / "preprocessor_config.json").read_text())
    path.write_text(json.dumps(said | json.loads(path.read_text())))
    apart = {}
    for name, values in (tensors | tensors_in("qwen2.5o", width)).items():
        name = "thinker." + name.removeprefix("model.")
        if ".attn.qkv." in name:
            for part, third in zip("qkv", np.split(values, 3)):
                apart[name.replace("qkv", part)] = third
        else:
            apart[name] = values
    apart["thinker.audio_tower.audio_bos_eos_token.weight"] = np.ones((2, width), np.float32)
    save(tmp_path / "model" / "model.safetensors", apart)
    both = GgufReader(convert_encoder(tmp_path / "model", tmp_path / "both.gguf", "F32").path)
    for name in both.tensors:
        alone = seen if name in seen.tensors else heard
        assert np.array_equal(both.data(name), alone.data(name)), name
    assert both.tensors.keys() == seen.tensors.keys() | heard.tensors.keys()
    kinds = {key: both.metadata.get(f"clip.{key}projector_type") for key in KINDS_OF}
    assert kinds == {"": "qwen2.5o", "vision.": None, "audio.": None}


def test_qwen3_omni_names_its_mergers_otherwise(tmp_path):
    """And what follows its audio encoder; the numbers are those of Qwen3-VL and Qwen3-ASR."""
    tensors = made_of("qwen3vl", tmp_path)
    seen = GgufReader(convert_encoder(tmp_path / "model", tmp_path / "seen.gguf", "F32").path)
    width = seen.metadata["clip.vision.projection_dim"]
    sounds = audio_folder(tmp_path / "m", "qwen3a", width=width)
    heard = GgufReader(convert_encoder(sounds, tmp_path / "heard.gguf", "F32").path)
    said, more = (
        json.loads((each / "config.json").read_text()) for each in (tmp_path / "model", sounds)
    )
    said |= {"architectures": ["Qwen3OmniMoeThinkerForConditionalGeneration"]}
    said["audio_config"] = more["audio_config"]
    (tmp_path / "model" / "config.json").write_text(json.dumps(said))
    path = tmp_path / "model" / "preprocessor_config.json"
    extract = json.loads((sounds / "preprocessor_config.json").read_text())
    path.write_text(json.dumps(extract | json.loads(path.read_text())))
    renamed = {}
    for name, values in (tensors | tensors_in("qwen3a", width)).items():
        name = name.replace("multi_modal_projector.linear_", "audio_tower.proj")
        if "visual.merger." in name or "deepstack_merger_list" in name:
            name = name.replace("deepstack_merger_list", "merger_list").replace("norm.", "ln_q.")
            name = name.replace("linear_fc1.", "mlp.0.").replace("linear_fc2.", "mlp.2.")
        renamed[name] = values
    save(tmp_path / "model" / "model.safetensors", renamed)
    both = GgufReader(convert_encoder(tmp_path / "model", tmp_path / "both.gguf", "F32").path)
    for name in both.tensors:
        alone = seen if name in seen.tensors else heard
        assert np.array_equal(both.data(name), alone.data(name)), name
    assert both.tensors.keys() == seen.tensors.keys() | heard.tensors.keys()


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
        ("voxtral", {"whole": {"projector_hidden_act": "relu"}}, "projector_hidden_act: found 're"),
        ("voxtral", {"audio": {"hidden_size": 48}}, "hidden_size: found 48, wanted a divisor of"),
        ("ultravox", {"whole": {"projector_ln_mid": False}}, "projector_ln_mid: found False"),
        ("glma", {"audio": {"num_key_value_heads": 2}}, "num_key_value_heads: found 2, wanted 4"),
        (
            "glma",
            {"audio": {"rope_parameters": {"partial_rotary_factor": 1.0}}},
            "rope_parameters: partial_rotary_factor: found 1.0, wanted 0.5",
        ),
        ("qwen2.5o", {"audio": {"n_window": 50}}, "n_window: found 50, wanted 100"),
        ("gemma3na", {"audio": {"conf_reduction_factor": 2}}, "conf_reduction_factor: found 2"),
        ("gemma3na", {"sounds": {"preemphasis": 0}}, "preemphasis: found 0, wanted 0.97"),
        ("gemma3na", {"whole": {"eoa_token_id": 65}}, "eoa_token_id: found 65, wanted 64"),
        (
            "gemma3na",
            {"whole": {"text_config": {"hidden_size": WIDTH, "vocab_size": 80}}},
            "vocab_size: found 80, wanted 69",
        ),
        ("gemma4a", {"audio": {"attention_context_left": 9}}, "attention_context_left: found 9"),
        ("gemma4a", {"sounds": {"mel_floor": 1e-5}}, "mel_floor: found 1e-05, wanted 0.001"),
        ("gemma4ua", {"sounds": {"feature_size": 320}}, "feature_size: found 320, wanted 640"),
        ("meralion", {"sounds": {"do_normalize": False}}, "do_normalize: found False, wanted True"),
        (
            "meralion",
            {"whole": {"speech_mlp_use_projection": False}},
            "speech_mlp_use_projection: found False, wanted True",
        ),
        ("meralion", {"sounds": {"chunk_length": 30}}, "chunk_length: found 30, wanted 2"),
        ("parakeet", {"audio": {"scale_input": True}}, "scale_input: found True, wanted False"),
        ("parakeet", {"audio": {"subsampling_factor": 4}}, "subsampling_factor: found 4, wanted"),
        ("parakeet", {"audio": {"hidden_act": "relu"}}, "sound_config: hidden_act: found 'relu'"),
        ("parakeet", {"sounds": {"n_fft": 400}}, "n_fft: found 400, wanted 512"),
        ("lfm2a", {"audio": {"xscaling": True}}, "encoder: xscaling: found True, wanted False"),
        (
            "lfm2a",
            {"audio": {"att_context_size": [70, 1]}},
            r"att_context_size: found \[70, 1\], wanted \[-1, -1\]",
        ),
        (
            "lfm2a",
            {"audio": {"conv_norm_type": "layer_norm"}},
            "conv_norm_type: found 'layer_norm'",
        ),
        ("lfm2a", {"audio": {"subsampling_factor": 4}}, "subsampling_factor: found 4, wanted 8"),
        ("lfm2a", {"sounds": {"n_fft": 400}}, "preprocessor: n_fft: found 400, wanted 512"),
        ("lfm2a", {"sounds": {"normalize": "NA"}}, "normalize: found 'NA', wanted 'per_feature'"),
        ("granite_speech", {"audio": {"cat_hidden_layers": [3]}}, "cat_hidden_layers: found"),
        (
            "granite_speech",
            {"whole": {"projector_config": {"num_attention_heads": 2, "hidden_act": "relu"}}},
            "projector_config: hidden_act: found 'relu', wanted 'gelu'",
        ),
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
