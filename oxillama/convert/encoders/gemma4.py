"""Gemma 4, and the unified Gemma 4, whose encoders have no layers: of images and of audio."""

from __future__ import annotations

import numpy as np

from oxillama.convert.encoder import (
    AudioHyper,
    ImageHyper,
    described,
    described_audio,
    encoder,
    rotation,
    spread,
)
from oxillama.convert.encoders.siglip import patch_of_colours
from oxillama.convert.family import Hyper, Keys, Rule
from oxillama.errors import ConvertError

_LAYER = "vision_tower.encoder.layers.{b}."
_PRODUCTS = {
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
    "self_attn.o_proj": "attn_out",
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
}
_NORMS = {
    "input_layernorm": "ln1",
    "post_attention_layernorm": "attn_post_norm",
    "pre_feedforward_layernorm": "ln2",
    "post_feedforward_layernorm": "ffn_post_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
_WIDTHS = (1536, 2560)  # E2B and E4B, in which the rows of an image do not see each other


def _one(x: np.ndarray, h: Hyper) -> np.ndarray:
    return x.reshape(1)


@encoder(
    "Gemma4ForConditionalGeneration",
    projector="gemma4v",
    parts=("vision_tower.", "embed_vision."),
    defaults={
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 16,
        "num_attention_heads": 12,
        "head_dim": 64,
        "patch_size": 16,
        "pooling_kernel_size": 3,
        "rms_norm_eps": 1e-6,
    },
    rules={
        "vision_tower.patch_embedder.input_proj.weight":
            Rule(("v.patch_embd.weight",), patch_of_colours),
        "vision_tower.patch_embedder.position_embedding_table": "v.position_embd.weight",
        "vision_tower.std_bias": "v.std_bias",
        "vision_tower.std_scale": "v.std_scale",
        **{f"{_LAYER}{theirs}.weight": f"v.blk.{{b}}.{ours}.weight"
           for theirs, ours in _NORMS.items()},
        **{f"{_LAYER}{theirs}{linear}.weight": f"v.blk.{{b}}.{ours}.weight"
           for theirs, ours in _PRODUCTS.items() for linear in ("", ".linear")},
        **{f"{_LAYER}{theirs}.{side}_{end}": Rule((f"v.blk.{{b}}.{ours}.{side}_{end}",), _one)
           for theirs, ours in _PRODUCTS.items()
           for side in ("input", "output") for end in ("min", "max")},
        "embed_vision.embedding_projection.weight": "mm.input_projection.weight",
    },
)  # fmt: skip
def gemma4v(h: ImageHyper, k: Keys) -> None:
    """Gemma 4 (Google 2026): images of any size, for which the file needs one."""
    described(h, k, "gemma4v", resample=3, image_size=224)
    h.must_be("hidden_activation", "gelu_pytorch_tanh")
    h.must_be("head_dim", h.integer("hidden_size") // h.heads)
    h.must_be("num_key_value_heads", h.heads)
    rotation(h, k, usual=100.0)
    _shared(h, k)
    # what files cannot say, and readers guess
    sees, width = h.text.get("use_bidirectional_attention"), h.text.hidden
    if (sees == "vision") == (width in _WIDTHS):
        raise ConvertError(
            f"{h.text.label}: use_bidirectional_attention: found {sees!r:.80} with embeddings of "
            f"{width}, wanted {'None' if width in _WIDTHS else repr('vision')}, as readers of the "
            "file take it to be"
        )


def _shared(h: ImageHyper, k: Keys) -> None:
    k.found["clip.vision.projector_type"] = k.found.pop("clip.projector_type")
    k.f32("vision.attention.layer_norm_epsilon", h.number("rms_norm_eps"))
    pooled = h.integer("pooling_kernel_size")
    if pooled != 3:
        k.u32("vision.projector.scale_factor", pooled)
    for name, wanted in (("patch_size", h.side("patch_size")), ("pooling_kernel_size", pooled)):
        h.must_have(name, h.images.get(name), wanted)
    most = h.images.integer("max_soft_tokens", default=280)
    if most != 280:
        k.u32("vision.image_max_pixels", most * (h.side("patch_size") * pooled) ** 2)


def _by_colour(x: np.ndarray, h: Hyper) -> np.ndarray:
    """Columns over (row, column, colour) of a patch as those over (colour, row, column)."""
    return patch_of_colours(x.reshape(-1, x.shape[-1]), h).reshape(x.shape)


def _axis_first(x: np.ndarray, h: Hyper) -> np.ndarray:
    return x.swapaxes(0, 1)


@encoder(
    "Gemma4UnifiedForConditionalGeneration",
    projector="gemma4uv",
    parts=("vision_embedder.", "embed_vision."),
    defaults={
        "mm_embed_dim": 3840,
        "patch_size": 16,
        "pooling_kernel_size": 3,
        "rms_norm_eps": 1e-6,
        **dict.fromkeys(("intermediate_size", "num_hidden_layers", "num_attention_heads"), 0),
    },
    rules={
        "vision_embedder.patch_ln1.{w}": Rule(("v.patch_norm.1.{w}",), _by_colour),
        "vision_embedder.patch_dense.weight": Rule(("v.patch_embd.weight",), _by_colour),
        "vision_embedder.patch_dense.bias": "v.patch_embd.bias",
        "vision_embedder.patch_ln2.{w}": "v.patch_norm.2.{w}",
        "vision_embedder.pos_embedding": Rule(("v.position_embd.weight",), _axis_first),
        "vision_embedder.pos_norm.{w}": "v.patch_norm.3.{w}",
        "embed_vision.embedding_projection.weight": "mm.input_projection.weight",
    },
)
def gemma4uv(h: ImageHyper, k: Keys) -> None:
    """The unified Gemma 4 (Google 2026)."""
    described(h, k, "gemma4uv", resample=3, image_size=224, hidden=h.integer("mm_embed_dim"))
    _shared(h, k)
    h.must_be("model_patch_size", h.side("patch_size") * h.integer("pooling_kernel_size"))
    sees = h.text.get("use_bidirectional_attention")
    if sees != "vision":
        raise ConvertError(
            f"{h.text.label}: use_bidirectional_attention: found {sees!r:.80}, wanted 'vision', as "
            "readers of the file take it to be"
        )


_CONFORMER = "audio_tower.layers.{b}."
_NETWORK = {
    "pre_layer_norm": "norm",
    "ffw_layer_1": "up",
    "ffw_layer_2": "down",
    "post_layer_norm": "post_norm",
}
# whose products have limits
_LIMITED = {
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
    "self_attn.post": "attn_out",
    "lconv1d.linear_start": "conv_pw1",
    "lconv1d.linear_end": "conv_pw2",
    **{
        f"feed_forward{number}.{theirs}": f"ffn_{_NETWORK[theirs]}{end}"
        for number, end in ((1, ""), (2, "_1"))
        for theirs in ("ffw_layer_1", "ffw_layer_2")
    },
}


def _softplus(x: np.ndarray, h: Hyper) -> np.ndarray:
    return np.logaddexp(0, x.astype(np.float64)).astype(np.float32)


def _taps(x: np.ndarray, h: Hyper) -> np.ndarray:
    """A convolution of each channel by itself, without the axis of its one channel."""
    return x.squeeze(1)


@encoder(
    "Gemma4ForConditionalGeneration",
    projector="gemma4a",
    parts=("audio_tower.", "embed_audio."),
    hyper=AudioHyper,
    defaults={
        "hidden_size": 1024,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "rms_norm_eps": 1e-6,
    },
    halves=(),
    kept=("a.conv1d.0.weight", "a.conv1d.1.weight", "conv_dw.weight"),
    rules={
        **{
            f"audio_tower.subsample_conv_projection.layer{at}.{theirs}.weight":
                f"a.conv1d.{at}{ours}.weight"
            for at in (0, 1) for theirs, ours in (("conv", ""), ("norm", ".norm"))
        },
        "audio_tower.subsample_conv_projection.input_proj_linear.weight":
            "a.input_projection.weight",
        **spread("audio_tower.", {"output_proj": "pre_encode.out"}, "a."),
        **{f"{_CONFORMER}{theirs}{linear}.weight": f"a.blk.{{b}}.{ours}.weight"
           for theirs, ours in _LIMITED.items() for linear in ("", ".linear")},
        **{f"{_CONFORMER}{theirs}.{side}_{end}": Rule((f"a.blk.{{b}}.{ours}.{side}_{end}",), _one)
           for theirs, ours in _LIMITED.items()
           for side in ("input", "output") for end in ("min", "max")},
        **{f"{_CONFORMER}{theirs}.weight": f"a.blk.{{b}}.{ours}.weight"
           for theirs, ours in (
               *((f"feed_forward{number}.{norm}", f"ffn_{_NETWORK[norm]}{end}")
                 for number, end in ((1, ""), (2, "_1"))
                 for norm in ("pre_layer_norm", "post_layer_norm")),
               ("norm_pre_attn", "attn_pre_norm"),
               ("norm_post_attn", "attn_post_norm"),
               ("norm_out", "ln2"),
               ("self_attn.relative_k_proj", "attn_k_rel"),
               ("lconv1d.pre_layer_norm", "conv_norm"),
               ("lconv1d.conv_norm", "norm_conv"),
           )},
        _CONFORMER + "self_attn.per_dim_scale":
            Rule(("a.blk.{b}.per_dim_scale.weight",), _softplus, values=True),
        _CONFORMER + "lconv1d.depthwise_conv1d.weight":
            Rule(("a.blk.{b}.conv_dw.weight",), _taps),
        "embed_audio.embedding_projection.weight": "mm.a.input_projection.weight",
    },
)  # fmt: skip
def gemma4a(h: AudioHyper, k: Keys) -> None:
    """The audio encoder of Gemma 4."""
    hidden, bands = h.integer("hidden_size"), h.sounds.integer("feature_size", default=128)
    eps = h.number("rms_norm_eps")
    described_audio(h, k, "gemma4a", bands=bands, hidden=hidden, inner=4 * hidden, eps=eps)
    for name, wanted in (
        ("hidden_act", "silu"),
        ("rms_norm_eps", 1e-6),
        ("attention_context_left", 13),
        ("attention_context_right", 0),
        ("attention_logit_cap", 50),
        ("residual_weight", 0.5),
    ):
        h.must_be(name, wanted)
    for name, said in (
        ("sampling_rate", 16000),
        ("frame_length", 320),
        ("hop_length", 160),
        ("fft_length", 512),
        ("fft_overdrive", False),
        ("min_frequency", 0),
        ("max_frequency", 8000),
        ("mel_floor", 0.001),
        ("preemphasis", 0),
        ("dither", 0),
        ("input_scale_factor", 1),
        ("per_bin_mean", None),
        ("per_bin_stddev", None),
    ):
        h.sounds.must_be(name, said)


@encoder(
    "Gemma4UnifiedForConditionalGeneration",
    projector="gemma4ua",
    parts=("embed_audio.",),
    hyper=AudioHyper,
    defaults={"audio_embed_dim": 640, "num_hidden_layers": 0, "num_attention_heads": 0},
    rules={"embed_audio.embedding_projection.weight": "mm.a.input_projection.weight"},
)
def gemma4ua(h: AudioHyper, k: Keys) -> None:
    """The audio encoder of the unified Gemma 4, of samples as they are."""
    width = h.integer("audio_embed_dim")
    described_audio(h, k, "gemma4ua", bands=128, hidden=width, inner=0, eps=1e-6)
    h.must_be("rms_norm_eps", 1e-6)
    h.sounds.must_be("sampling_rate", 16000)
    h.sounds.must_be("feature_size", width)
