"""Gemma 3n: MobileNetV5 of timm for images, a Universal Speech Model for audio, each with a table
of tokens of its own.
"""

from __future__ import annotations

import numpy as np

from oxillama.convert.encoder import (
    AudioHyper,
    ImageHyper,
    MediaHyper,
    described,
    described_audio,
    encoder,
)
from oxillama.convert.family import Hyper, Keys, Rule

_TIMM = "vision_tower.timm_model."
_BLOCK = _TIMM + "blocks.{b}.{e}."
# of the blocks that the encoder reads
_PARTS = (
    *("conv_exp", "bn1", "conv_pwl", "bn2"),
    *(f"{part}.{kind}" for part in ("dw_start", "dw_mid", "pw_exp", "pw_proj")
      for kind in ("conv", "bn")),
    *(f"attn.{part}.proj" for part in ("query", "key", "value", "output")),
    *(f"attn.{part}.{kind}" for part in ("key", "value") for kind in ("down_conv", "norm")),
    "norm",
)  # fmt: skip
_EMBEDDER = {
    "embedding": "embedding",
    "hard_embedding_norm": "hard_emb_norm",
    "soft_embedding_norm": "soft_emb_norm",
    "embedding_projection": "input_projection",
}
_TABLE, _EPS = 128, 1e-6
_SEEN = 256  # rows of an image


def _by_channel(x: np.ndarray, h: Hyper) -> np.ndarray:
    """One number a channel as those of an image."""
    return x.reshape(1, -1, 1, 1)


def _ends(h: MediaHyper, end: str, *, last: bool = False) -> None:
    """ConvertError where the encoder's table does not begin with the token that follows an image or
    a clip, or (last) does not end with the last one of the vocabulary, which fills a clip.
    """
    start, count = h.integer("vocab_offset"), h.integer("vocab_size")
    h.whole.must_be(end, start)
    if last:
        h.text.must_be("vocab_size", start + count)
    h.must_be("rms_norm_eps", _EPS)


@encoder(
    "Gemma3nForConditionalGeneration",
    projector="gemma3nv",
    parts=("vision_tower.", "embed_vision."),
    defaults={
        "architecture": "mobilenetv5_300m_enc",
        "hidden_size": 2048,
        "vocab_size": _TABLE,
        "vocab_offset": 262144,
        "rms_norm_eps": _EPS,
        "num_hidden_layers": 128,  # a number that files have and nothing reads
        "num_attention_heads": 8,
        "patch_size": 3,
    },
    halves=(),
    kept=("v.conv_stem.conv.weight", "v.conv_stem.conv.bias", "layer_scale.gamma"),
    rules={
        _TIMM + "conv_stem.conv.weight": "v.conv_stem.conv.weight",
        _TIMM + "conv_stem.conv.bias": Rule(("v.conv_stem.conv.bias",), _by_channel),
        _TIMM + "conv_stem.bn.weight": "v.conv_stem.bn.weight",
        **{f"{_BLOCK}{part}.weight": f"v.blk.{{b}}.{{e}}.{part}.weight" for part in _PARTS},
        _BLOCK + "layer_scale.gamma":
            Rule(("v.blk.{b}.{e}.layer_scale.gamma",), _by_channel),
        **{f"{_TIMM}msfa.{part}.weight": f"v.msfa.{part}.weight"
           for part in ("norm", "ffn.pw_exp.conv", "ffn.pw_exp.bn", "ffn.pw_proj.conv",
                        "ffn.pw_proj.bn")},
        **{f"embed_vision.{theirs}.weight": f"mm.{ours}.weight"
           for theirs, ours in _EMBEDDER.items()},
    },
)  # fmt: skip
def gemma3nv(h: ImageHyper, k: Keys) -> None:
    """Files have the sizes that llama.cpp's converter writes; readers take those of tensors."""
    h.must_be("architecture", "mobilenetv5_300m_enc")
    sides = h.size("size", "height", "width")
    size = sides.integer("height", default=768)
    h.must_have("size: width", sides.integer("width", default=None), size)
    h.must_have("image_seq_length", h.images.get("image_seq_length"), _SEEN)
    h.whole.must_be("vision_soft_tokens_per_image", _SEEN)
    _ends(h, "eoi_token_id")
    described(h, k, "gemma3nv", resample=2, image_size=size, inner=8192)
    k.u32("vision.patch_size", size // _SEEN)
    k.f32("vision.attention.layer_norm_epsilon", _EPS)


_LAYER = "audio_tower.conformer.{b}."
_LAYERS = {
    **{f"ffw_layer_{where}.{theirs}": f"ffn_{ours}{end}"
       for where, end in (("start", ""), ("end", "_1"))
       for theirs, ours in (("pre_layer_norm", "norm"), ("ffw_layer_1", "up"),
                            ("ffw_layer_2", "down"), ("post_layer_norm", "post_norm"))},
    "attention.pre_attn_norm": "ln1",
    **{f"attention.attn.{part}_proj": f"attn_{part}" for part in "qkv"},
    "attention.attn.relative_position_embedding.pos_proj": "linear_pos",
    "attention.post": "attn_out",
    "attention.post_norm": "ln2",
    "lconv1d.pre_layer_norm": "conv_norm",
    "lconv1d.linear_start": "conv_pw1",
    "lconv1d.depthwise_conv1d": "conv_dw",
    "lconv1d.conv_norm": "norm_conv",
    "lconv1d.linear_end": "conv_pw2",
    "norm": "layer_pre_norm",
}  # fmt: skip
_SUBSAMPLED = "audio_tower.subsample_conv_projection."


@encoder(
    "Gemma3nForConditionalGeneration",
    projector="gemma3na",
    parts=("audio_tower.", "embed_audio."),
    hyper=AudioHyper,
    defaults={
        "hidden_size": 1536,
        "input_feat_size": 128,
        "conf_num_hidden_layers": 12,
        "conf_num_attention_heads": 8,
        "vocab_size": _TABLE,
        "vocab_offset": 262272,
        "rms_norm_eps": _EPS,
    },
    halves=(),
    kept=("a.conv1d.0.weight", "a.conv1d.1.weight", "conv_dw.weight"),
    rules={
        **{f"{_SUBSAMPLED}conv_{at}.{theirs}.weight": f"a.conv1d.{at}{ours}.weight"
           for at in (0, 1) for theirs, ours in (("conv", ""), ("norm", ".norm"))},
        _SUBSAMPLED + "input_proj_linear.weight": "a.pre_encode.out.weight",
        **{f"{_LAYER}{theirs}.weight": f"a.blk.{{b}}.{ours}.weight"
           for theirs, ours in _LAYERS.items()},
        _LAYER + "attention.attn.per_dim_scale": "a.blk.{b}.per_dim_scale",
        **{f"embed_audio.{theirs}.weight": f"mm.a.{ours}.weight"
           for theirs, ours in _EMBEDDER.items()},
    },
)  # fmt: skip
def gemma3na(h: AudioHyper, k: Keys) -> None:
    """The audio encoder of Gemma 3n."""
    hidden, bands = h.integer("hidden_size"), h.integer("input_feat_size")
    described_audio(h, k, "gemma3na", bands=bands, hidden=hidden, inner=4 * hidden, eps=_EPS)
    _ends(h, "eoa_token_id", last=True)
    h.whole.must_be("audio_soft_tokens_per_image", 188)
    for name, wanted in (
        ("conf_attention_context_left", 13),
        ("conf_attention_context_right", 0),
        ("conf_attention_logit_cap", 50),
        ("conf_reduction_factor", 4),
        ("conf_residual_weight", 0.5),
        ("gradient_clipping", 1e10),
        ("sscp_conv_group_norm_eps", 1e-3),
        ("sscp_conv_kernel_size", [[3, 3], [3, 3]]),
        ("sscp_conv_stride_size", [[2, 2], [2, 2]]),
    ):
        h.must_be(name, wanted)
    for name, said in (
        ("feature_size", bands),
        ("sampling_rate", 16000),
        ("frame_length", 512),
        ("hop_length", 160),
        ("fft_length", 1024),
        ("fft_overdrive", True),
        ("min_frequency", 125),
        ("max_frequency", 7600),
        ("mel_floor", 1e-5),
        ("preemphasis", 0.97),
        ("preemphasis_htk_flavor", True),
        ("dither", 0),
        ("input_scale_factor", 1),
        ("per_bin_mean", None),
        ("per_bin_stddev", None),
    ):
        h.sounds.must_be(name, said)
