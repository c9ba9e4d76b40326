"""Granite Speech."""

from __future__ import annotations

import numpy as np

from oxillama.convert.encoder import AudioHyper, described_audio, encoder, spread
from oxillama.convert.encoders.conformer import BATCH_NORM, batch_norms, matrix
from oxillama.convert.family import Hyper, Keys, Rule

_LAYER = "encoder.layers.{b}."
_QFORMER = "projector.qformer.encoder.layer.{e}."
_ASKED = "a.proj_blk.{e}."


class GraniteSpeechHyper(AudioHyper):
    """The values of its `encoder_config`."""

    part = "encoder_config"


def _halves(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, ...]:
    return tuple(np.split(x, 2))


def _batch_norms(h: AudioHyper) -> dict[str, np.ndarray]:
    return batch_norms(h, "encoder.layers.{}.conv.batch_norm.")


@encoder(
    "GraniteSpeechForConditionalGeneration",
    projector="granite_speech",
    parts=("encoder.", "projector."),
    hyper=GraniteSpeechHyper,
    defaults={
        "input_dim": 160,
        "num_layers": 10,
        "hidden_dim": 1024,
        "feedforward_mult": 4,
        "num_heads": 8,
        "context_size": 200,
        "max_pos_emb": 512,
        "conv_kernel_size": 15,
    },
    halves=(),
    kept=("conv_pw1.weight", "conv_pw2.weight", "conv_dw.weight"),
    folded=BATCH_NORM,
    extra=_batch_norms,
    rules={
        "encoder.input_linear.{w}": "a.input_projection.{w}",
        "encoder.out.{w}": "a.enc_ctc_out.{w}",
        "encoder.out_mid.{w}": "a.enc_ctc_out_mid.{w}",
        **spread(
            _LAYER,
            {
                **{
                    f"ff{number}.{theirs}": f"ffn_{ours}{end}"
                    for number, end in ((1, ""), (2, "_1"))
                    for theirs, ours in (
                        *(("pre_norm", "norm"), ("up_proj", "up"), ("down_proj", "down")),
                    )
                },
                "attn.pre_norm": "ln1",
                "attn.to_q": "attn_q",
                "attn.to_out": "attn_out",
                "conv.norm": "norm_conv",
                "post_norm": "ln2",
            },
            "a.blk.{b}.",
        ),
        _LAYER + "attn.to_kv.weight": Rule(
            ("a.blk.{b}.attn_k.weight", "a.blk.{b}.attn_v.weight"), _halves
        ),
        _LAYER + "attn.rel_pos_emb.weight": "a.blk.{b}.attn_rel_pos_emb",
        **{
            f"{_LAYER}conv.{theirs}.weight": Rule((f"a.blk.{{b}}.{ours}.weight",), matrix)
            for theirs, ours in (
                *(("up_conv", "conv_pw1"), ("depth_conv.conv", "conv_dw")),
                ("down_conv", "conv_pw2"),
            )
        },
        _LAYER + "conv.up_conv.bias": "a.blk.{b}.conv_pw1.bias",
        _LAYER + "conv.down_conv.bias": "a.blk.{b}.conv_pw2.bias",
        "projector.query": "a.proj_query",
        "projector.qformer.layernorm.{w}": "a.proj_norm.{w}",
        "projector.linear.{w}": "a.proj_linear.{w}",
        **spread(
            _QFORMER,
            {
                f"{theirs}.{name}": f"{ours}_{part}"
                for theirs, ours in (("attention", "self_attn"), ("crossattention", "cross_attn"))
                for name, part in (
                    *(("attention.query", "q"), ("attention.key", "k"), ("attention.value", "v")),
                    *(("output.dense", "out"), ("output.LayerNorm", "norm")),
                )
            },
            _ASKED,
        ),
        **spread(
            _QFORMER,
            {
                "intermediate_query.dense": "ffn_up",
                "output_query.dense": "ffn_down",
                "output_query.LayerNorm": "ffn_norm",
            },
            _ASKED,
        ),
    },
)
def granite_speech(h: GraniteSpeechHyper, k: Keys) -> None:
    """Granite Speech 3.3 and 4.0 (IBM 2025)."""
    hidden, bands = h.integer("hidden_dim"), h.integer("input_dim")
    inner = hidden * h.integer("feedforward_mult")
    described_audio(h, k, "granite_speech", bands=bands, hidden=hidden, inner=inner)
    h.must_be("cat_hidden_layers", None, [])
    k.u32("audio.chunk_size", h.integer("context_size"))
    k.u32("audio.conv_kernel_size", h.integer("conv_kernel_size"))
    k.u32("audio.max_pos_emb", h.integer("max_pos_emb"))
    k.u32("audio.projector.window_size", h.whole.integer("window_size"))
    k.u32("audio.projector.downsample_rate", h.whole.integer("downsample_rate"))
    asked = Hyper(h.whole.get("projector_config", default={}), f"{h.whole.label}: projector_config")
    for name, wanted in (
        ("model_type", "blip_2_qformer"),
        ("hidden_act", "gelu"),
        ("layer_norm_eps", 1e-12),
        ("cross_attention_frequency", 1),
        ("use_qformer_text_input", False),
    ):
        asked.must_be(name, wanted)
    k.u32("audio.projector.head_count", asked.integer("num_attention_heads"))
    h.sounds.must_be("sampling_rate", 16000)
    said = h.sounds.get("melspec_kwargs", default={})
    spectrogram = Hyper(said, f"{h.sounds.label}: melspec_kwargs")
    for name, number in (
        ("sample_rate", 16000),
        ("n_fft", 512),
        ("win_length", 400),
        ("hop_length", 160),
        ("n_mels", bands // 2),
    ):
        spectrogram.must_be(name, number)
