"""Audio encoders: Qwen2-Audio (Whisper's encoder) and Qwen3-ASR."""

from __future__ import annotations

import math

import numpy as np

from oxillama.convert.encoder import AudioHyper, encoder, heard, spread
from oxillama.convert.family import Hyper, Keys, Rule

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


def _column(x: np.ndarray, h: Hyper) -> np.ndarray:
    """A bias with an axis for the places that a convolution leaves."""
    return x[:, None]


def _plane(x: np.ndarray, h: Hyper) -> np.ndarray:
    """The same for a convolution of two axes."""
    return x[:, None, None]


@encoder(
    "Qwen2AudioForConditionalGeneration",
    projector="qwen2a",
    parts=_PARTS,
    hyper=AudioHyper,
    defaults={
        "num_mel_bins": 128,
        "encoder_layers": 32,
        "encoder_attention_heads": 20,
        "encoder_ffn_dim": 5120,
        "d_model": 1280,
        "activation_function": "gelu",
        "max_source_positions": 1500,
    },
    halves=("a.conv1d.1.weight", "a.conv1d.2.weight"),
    rules={
        **{f"audio_tower.conv{n}.weight": f"a.conv1d.{n}.weight" for n in (1, 2)},
        **{f"audio_tower.conv{n}.bias": Rule((f"a.conv1d.{n}.bias",), _column) for n in (1, 2)},
        "audio_tower.embed_positions.weight": "a.position_embd.weight",
        **_LAYERS,
        "audio_tower.layer_norm.{w}": "a.post_ln.{w}",
        "multi_modal_projector.linear.{w}": "mm.a.fc.{w}",
    },
)
def qwen2a(h: AudioHyper, k: Keys) -> None:
    """Qwen2-Audio (Chu et al. 2024)."""
    heard(h, k, "qwen2a")
    h.sounds.must_be("chunk_length", h.integer("max_source_positions") // 50)


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
    "Qwen3ASRForConditionalGeneration",
    projector="qwen3a",
    parts=_PARTS,
    hyper=AudioHyper,
    defaults={
        "num_mel_bins": 128,
        "encoder_layers": 24,
        "encoder_attention_heads": 16,
        "encoder_ffn_dim": 4096,
        "d_model": 1024,
        "activation_function": "gelu",
    },
    halves=tuple(f"a.conv2d.{n}.weight" for n in (1, 2, 3)),
    extra=_waves,
    rules={
        **{f"audio_tower.conv2d{n}.weight": f"a.conv2d.{n}.weight" for n in (1, 2, 3)},
        **{f"audio_tower.conv2d{n}.bias": Rule((f"a.conv2d.{n}.bias",), _plane) for n in (1, 2, 3)},
        "audio_tower.conv_out.weight": "a.conv_out.weight",
        **_LAYERS,
        "audio_tower.ln_post.{w}": "a.post_ln.{w}",
        "multi_modal_projector.linear_1.{w}": "mm.a.mlp.1.{w}",
        "multi_modal_projector.linear_2.{w}": "mm.a.mlp.2.{w}",
    },
)
def qwen3a(h: AudioHyper, k: Keys) -> None:
    """Qwen3-ASR (Qwen 2026). Windows are those of the published model, which files do not say."""
    heard(h, k, "qwen3a")
    h.must_be("n_window", 50)
    h.must_be("n_window_infer", 800)
    h.must_be("max_position_embeddings", 13)
    h.sounds.must_be("n_window", 50)
    h.sounds.must_be("min_length", 8000)
