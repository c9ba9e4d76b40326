"""Audio encoders: Whisper's under the projectors of Qwen2-Audio, Qwen2.5-Omni, Ultravox, Voxtral,
GLM-ASR, Audio Flamingo 3 and MERaLiON 2, and those of Qwen3-ASR and Qwen3-Omni.
"""

from __future__ import annotations

import math

import numpy as np

from oxillama.convert.encoder import AudioHyper, encoder, heard, spread
from oxillama.convert.family import Hyper, Keys, Rule
from oxillama.errors import ConvertError

_PARTS = ("audio_tower.", "multi_modal_projector.")
_LAYERS = spread(
    "audio_tower.layers.{b}.",
    {
        **{f"self_attn.{part}_proj": f"attn_{part}" for part in ("q", "k", "v", "out")},
        "self_attn_layer_norm": "ln1",
        "final_layer_norm": "ln2",
        "fc1": "ffn_up",
        "fc2": "ffn_down",
    },
    "a.blk.{b}.",
)
_POSITIONS = 1500  # rows of a table that llama.cpp runs
_CONVOLVED = ("a.conv1d.1.weight", "a.conv1d.2.weight")
# what the classes of transformers mean where an `audio_config` is silent
_WHISPER = {
    "num_mel_bins": 128,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "d_model": 1280,
    "activation_function": "gelu",
    "max_source_positions": 1500,
}
# of the newer ones, which have other names for the same
_NAMED = {
    "num_mel_bins": 128,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "intermediate_size": 5120,
    "hidden_size": 1280,
    "activation_function": "gelu",
    "max_source_positions": 1500,
}


def _column(x: np.ndarray, h: Hyper) -> np.ndarray:
    """A bias with an axis for the places that a convolution leaves."""
    return x[:, None]


def plane(x: np.ndarray, h: Hyper) -> np.ndarray:
    """The same for a convolution of two axes."""
    return x[:, None, None]


_FRAMES: dict[str, str | Rule] = {
    **{f"audio_tower.conv{n}.weight": f"a.conv1d.{n}.weight" for n in (1, 2)},
    **{f"audio_tower.conv{n}.bias": Rule((f"a.conv1d.{n}.bias",), _column) for n in (1, 2)},
}
_TOWER: dict[str, str | Rule] = {
    **_FRAMES,
    "audio_tower.embed_positions.weight": "a.position_embd.weight",
    **_LAYERS,
    "audio_tower.layer_norm.{w}": "a.post_ln.{w}",
}
_TWO = {"linear_1": "mlp.1", "linear_2": "mlp.2"}


@encoder(
    "Qwen2AudioForConditionalGeneration",
    projector="qwen2a",
    parts=_PARTS,
    hyper=AudioHyper,
    defaults=_WHISPER,
    halves=_CONVOLVED,
    rules={**_TOWER, "multi_modal_projector.linear.{w}": "mm.a.fc.{w}"},
)
def qwen2a(h: AudioHyper, k: Keys) -> None:
    """Qwen2-Audio (Chu et al. 2024)."""
    heard(h, k, "qwen2a")
    _window(h)


def _window(h: AudioHyper) -> None:
    """ConvertError where a window is not as long as the learned positions."""
    h.sounds.must_be("chunk_length", h.integer("max_source_positions") // 50)


@encoder(
    "VoxtralForConditionalGeneration",
    projector="voxtral",
    parts=_PARTS,
    hyper=AudioHyper,
    defaults=_NAMED,
    halves=_CONVOLVED,
    rules={**_TOWER, **spread("multi_modal_projector.", _TWO, "mm.a.")},
)
def voxtral(h: AudioHyper, k: Keys) -> None:
    """Voxtral Mini and Small (Liu et al. 2025)."""
    heard(h, k, "voxtral")
    _window(h)
    _stacked(h, k)


def _product(h: AudioHyper, number: int) -> tuple[int, ...]:
    """The shape of a product of the projector."""
    name = f"multi_modal_projector.linear_{number}.weight"
    tensors = h.folder.tensors if h.folder else {}
    tensor = tensors.get(name, tensors.get("model." + name))
    if tensor is None or len(tensor.shape) != 2:
        raise ConvertError(f"{h.label}: found no {name}, wanted that of the projector")
    return tensor.shape


def _stacked(h: AudioHyper, k: Keys) -> None:
    """The key of rows that are joined, which the width of the first product alone tells."""
    h.whole.must_be("projector_hidden_act", "gelu")
    joined, width = _product(h, 1)[1], h.integer("hidden_size")
    if joined % width:
        raise ConvertError(
            f"{h.label}: hidden_size: found {width}, wanted a divisor of the {joined} columns of "
            "the projector"
        )
    k.u32("audio.projector.stack_factor", joined // width)


@encoder(
    "AudioFlamingo3ForConditionalGeneration",
    projector="musicflamingo",
    parts=_PARTS,
    hyper=AudioHyper,
    defaults=_NAMED,
    halves=(),
    kept=_CONVOLVED,
    rules={**_TOWER, **spread("multi_modal_projector.", _TWO, "mm.a.")},
)
def musicflamingo(h: AudioHyper, k: Keys) -> None:
    """Audio Flamingo 3 (Goel et al. 2025)."""
    heard(h, k, "musicflamingo")
    h.whole.must_be("projector_hidden_act", "gelu")
    _window(h)


@encoder(
    "UltravoxModel",
    projector="ultravox",
    parts=_PARTS,
    hyper=AudioHyper,
    defaults=_WHISPER,
    halves=_CONVOLVED,
    rules={
        **_TOWER,
        "multi_modal_projector.ln_pre.weight": "mm.a.norm_pre.weight",
        "multi_modal_projector.linear_1.weight": "mm.a.mlp.1.weight",
        "multi_modal_projector.ln_mid.weight": "mm.a.norm_mid.weight",
        "multi_modal_projector.linear_2.weight": "mm.a.mlp.2.weight",
    },
)
def ultravox(h: AudioHyper, k: Keys) -> None:
    """Ultravox from 0.5 on (Fixie 2025)."""
    # the language model is in a folder of its own, which this one names
    heard(h, k, "ultravox", width=_product(h, 2)[0])
    _window(h)
    h.whole.must_be("projector_act", "swiglu")
    h.whole.must_be("projector_ln_mid", True)
    h.whole.must_be("audio_latency_block_size", None)
    k.u32("audio.projector.stack_factor", h.whole.integer("stack_factor"))


class MeralionHyper(AudioHyper):
    """The values of its `speech_config`."""

    part = "speech_config"


@encoder(
    "MERaLiON2ForConditionalGeneration",
    projector="meralion",
    parts=("speech_encoder.", "ln_speech.", "speech_audio_adapter."),
    prefixes=(("speech_encoder.", "audio_tower."),),
    hyper=MeralionHyper,
    defaults=_WHISPER,
    halves=_CONVOLVED,
    rules={
        **_TOWER,
        "ln_speech.{w}": "mm.a.norm_pre.{w}",
        **spread(
            "speech_audio_adapter.",
            {
                **{"mlp_adapter.0": "mlp.0", "gate_proj": "mlp.1", "pool_proj": "mlp.2"},
                "out_proj": "mlp.3",
            },
            "mm.a.",
        ),
    },
)
def meralion(h: MeralionHyper, k: Keys) -> None:
    """MERaLiON 2 (I2R 2025)."""
    heard(h, k, "meralion")
    _window(h)
    h.whole.must_be("speech_mlp_use_projection", True)
    stack = h.whole.integer("speech_mlp_scale_factor", default=15)
    k.u32("audio.projector.stack_factor", stack)
    assert h.folder is not None
    said = Hyper(h.folder.json("processor_config.json"), f"{h.folder.path}/processor_config.json")
    for each in (h.sounds, said):
        each.must_be("do_normalize", True)
    said.must_be("fixed_speech_embeds_length", h.integer("max_source_positions") // max(stack, 1))
    said.must_be("whisper_chunk_size", h.integer("max_source_positions") // 50)


def _adjacent(x: np.ndarray, h: Hyper) -> np.ndarray:
    """Rows of heads whose rotation turns halves of the first half, for one that turns pairs."""
    rows = x.reshape(h.heads, -1, *x.shape[1:])
    turned = rows.shape[1] // 2
    pairs = rows[:, :turned].reshape(h.heads, 2, turned // 2, *x.shape[1:]).swapaxes(1, 2)
    return np.concatenate([pairs.reshape(rows[:, :turned].shape), rows[:, turned:]], 1).reshape(
        x.shape
    )


def _no_positions(h: AudioHyper) -> dict[str, np.ndarray]:
    """What files have beside a rotation, and tells how long a window is."""
    shape = h.integer("max_source_positions"), h.integer("hidden_size")
    return {"a.position_embd.weight": np.zeros(shape, np.float32)}


_ROTATED = "audio_tower.layers.{b}.self_attn."


@encoder(
    "GlmAsrForConditionalGeneration",
    projector="glma",
    parts=_PARTS,
    hyper=AudioHyper,
    defaults={**_NAMED, "hidden_act": "gelu"},
    halves=_CONVOLVED,
    extra=_no_positions,
    rules={
        **_FRAMES,
        **{
            f"{_ROTATED}{part}_proj.{{w}}": Rule((f"a.blk.{{b}}.attn_{part}.{{w}}",), _adjacent)
            for part in "qk"
        },
        **spread(
            "audio_tower.layers.{b}.",
            {
                "self_attn.v_proj": "attn_v",
                "self_attn.o_proj": "attn_out",
                "input_layernorm": "ln1",
                "post_attention_layernorm": "ln2",
                "mlp.fc1": "ffn_up",
                "mlp.fc2": "ffn_down",
            },
            "a.blk.{b}.",
        ),
        "audio_tower.norm.{w}": "mm.a.norm_pre.{w}",
        **spread("multi_modal_projector.", _TWO, "mm.a."),
    },
)
def glma(h: AudioHyper, k: Keys) -> None:
    """GLM-ASR (Z.ai 2025) as transformers saves it."""
    heard(h, k, "glma")
    h.must_be("hidden_act", "gelu")
    h.must_be("num_key_value_heads", h.heads)
    rope = Hyper(h.rope(), f"{h.label}: rope_parameters")
    rope.must_be("rope_type", "default")
    rope.must_be("rope_theta", 10000)
    rope.must_be("partial_rotary_factor", 0.5)
    _window(h)
    _stacked(h, k)


class GlmasrHyper(AudioHyper):
    """The values of its `whisper_config`."""

    part = "whisper_config"


def _two(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, ...]:
    """Two rows, each a tensor."""
    return tuple(x)


@encoder(
    "GlmasrModel",
    projector="glma",
    parts=("audio_encoder.",),
    unused=("audio_encoder.proj.",),  # which its code does not use
    prefixes=(("audio_encoder.whisper.", "audio_tower."),),
    hyper=GlmasrHyper,
    defaults=_WHISPER,
    halves=_CONVOLVED,
    rules={
        **_FRAMES,
        "audio_tower.embed_positions.weight": "a.position_embd.weight",
        **_LAYERS,
        "audio_encoder.layer_norm.{w}": "mm.a.norm_pre.{w}",
        **spread("audio_encoder.adapting.", {"0": "mlp.1", "2": "mlp.2"}, "mm.a."),
        "audio_encoder.audio_bos_eos_token.weight": Rule(("v.boi", "v.eoi"), _two),
    },
)
def glmasr(h: GlmasrHyper, k: Keys) -> None:
    """GLM-ASR as its makers published it, which rotates adjacent pairs."""
    heard(h, k, "glma")
    _window(h)
    for name, wanted in (
        ("use_rope", True),
        ("adapter_type", "mlp"),
        ("mlp_adapter_act", "gelu"),
        ("max_whisper_length", h.integer("max_source_positions")),
    ):
        h.whole.must_be(name, wanted)
    if not h.whole.flag("use_rope"):
        raise ConvertError(f"{h.whole.label}: use_rope is missing, wanted True")
    k.u32("audio.projector.stack_factor", h.whole.integer("merge_factor"))


def _waves(h: AudioHyper) -> dict[str, np.ndarray]:
    """The positions of rows, which folders do not hold: sines, then cosines (Vaswani et al. 2017,
    section 3.5), of lengths from one to ten thousand.
    """
    half = h.integer("d_model", "hidden_size") // 2
    rates = np.exp(-math.log(10000) / (half - 1) * np.arange(half))
    angles = np.arange(_POSITIONS)[:, None] * rates
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return {"a.position_embd.weight": table.astype(np.float32)}


@encoder(
    "Qwen2_5OmniModel",
    "Qwen2_5OmniForConditionalGeneration",
    "Qwen2_5OmniThinkerForConditionalGeneration",
    projector="qwen2.5o",
    parts=("audio_tower.",),
    hyper=AudioHyper,
    unused=("audio_tower.audio_bos_eos_token.",),  # which its code does not use
    defaults=_WHISPER,
    halves=_CONVOLVED,
    extra=_waves,
    rules={
        **_FRAMES,
        **_LAYERS,
        "audio_tower.ln_post.{w}": "a.post_ln.{w}",
        "audio_tower.proj.{w}": "mm.a.fc.{w}",
    },
)
def qwen25o(h: AudioHyper, k: Keys) -> None:
    """What Qwen2.5-Omni hears (Xu et al. 2025)."""
    heard(h, k, "qwen2.5o")
    h.must_be("n_window", 100)


_QWEN3 = {
    "num_mel_bins": 128,
    "encoder_layers": 24,
    "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "d_model": 1024,
    "activation_function": "gelu",
}
_PLANES = tuple(f"a.conv2d.{n}.weight" for n in (1, 2, 3))
_QWEN3_RULES: dict[str, str | Rule] = {
    **{f"audio_tower.conv2d{n}.weight": f"a.conv2d.{n}.weight" for n in (1, 2, 3)},
    **{f"audio_tower.conv2d{n}.bias": Rule((f"a.conv2d.{n}.bias",), plane) for n in (1, 2, 3)},
    "audio_tower.conv_out.weight": "a.conv_out.weight",
    **_LAYERS,
    "audio_tower.ln_post.{w}": "a.post_ln.{w}",
}


def _qwen3(h: AudioHyper, k: Keys) -> None:
    """Windows are those of the published models, which files do not say."""
    heard(h, k, "qwen3a")
    h.must_be("n_window", 50)
    h.must_be("n_window_infer", 800)
    h.sounds.must_be("n_window", 50)


@encoder(
    "Qwen3ASRForConditionalGeneration",
    projector="qwen3a",
    parts=_PARTS,
    hyper=AudioHyper,
    defaults=_QWEN3,
    halves=_PLANES,
    extra=_waves,
    rules={**_QWEN3_RULES, **spread("multi_modal_projector.", _TWO, "mm.a.")},
)
def qwen3a(h: AudioHyper, k: Keys) -> None:
    """Qwen3-ASR (Qwen 2026)."""
    _qwen3(h, k)
    h.must_be("max_position_embeddings", 13)
    h.sounds.must_be("min_length", 8000)


@encoder(
    "Qwen3OmniMoeForConditionalGeneration",
    "Qwen3OmniMoeThinkerForConditionalGeneration",
    projector="qwen3a",
    parts=("audio_tower.",),
    hyper=AudioHyper,
    defaults={**_QWEN3, "encoder_layers": 32, "encoder_attention_heads": 20,
              "encoder_ffn_dim": 5120, "d_model": 1280},
    halves=_PLANES,
    extra=_waves,
    rules={**_QWEN3_RULES, "audio_tower.proj1.{w}": "mm.a.mlp.1.{w}",
           "audio_tower.proj2.{w}": "mm.a.mlp.2.{w}"},
)  # fmt: skip
def qwen3_omni(h: AudioHyper, k: Keys) -> None:
    """What Qwen3-Omni hears (Xu et al. 2025)."""
    _qwen3(h, k)
