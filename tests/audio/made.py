"""Tiny mmproj files of random weights for every kind of audio encoder, and clips. It needs NumPy
alone until a file is written, so that `record.py` can give the same weights to transformers.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, HEADS, LAYERS, FFN, MELS = 32, 4, 2, 64, 80
RATE = 16000
# rows of learned positions: windows of two seconds, and of Qwen2.5-Omni two of them in a step
POSITIONS = {
    **{"qwen2a": 100, "qwen2.5o": 250, "ultravox": 100, "voxtral": 100, "glma": 100, "qwen3a": 13},
    **{"musicflamingo": 100, "meralion": 100},
}
CHANNELS = 6  # of the convolutions of Qwen3-ASR
STACK = {"ultravox": 8, "voxtral": 4, "glma": 4, "meralion": 5}
# of the convolutions of Gemma 3n and 4, of which 4's first has as many as a frame has numbers
SUBSAMPLED = (MELS, 6)
FRAME = 640  # samples of a row of the unified Gemma 4
# of Granite Speech: rows of a block, the furthest distance, taps, rows and queries of a window,
# heads of the queries
GRANITE = {
    "chunk_size": 20,
    "max_pos_emb": 24,
    "conv_kernel_size": 7,
    "projector.window_size": 6,
    "projector.downsample_rate": 3,
    "projector.head_count": 2,
}
LETTERS = 10
TOKENS = 5  # of the encoder of Gemma 3n
TAPS = 7  # of the convolutions of LFM2-Audio's layers
KINDS = (
    *POSITIONS,
    "gemma3na",
    "gemma4a",
    "gemma4ua",
    "granite_speech",
    "lfm2a",
    "parakeet",
    "dots3note_a",
)


def clip(seconds: float, *, rate: int = RATE, seed: int = 0) -> np.ndarray:
    """float32 (samples,): two tones, one of which rises, and noise that fades away."""
    t = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(seed).normal(0, 0.05, len(t)) * np.exp(-t)
    tones = 0.3 * np.sin(2 * np.pi * (220 + 300 * t) * t) + 0.1 * np.sin(2 * np.pi * 1250 * t)
    return (tones + noise).astype(np.float32)


def tensors_of(kind: str, width: int, *, seed: int = 0) -> dict[str, np.ndarray]:
    """The tensors of a file, in the order and form in which llama.cpp's converter leaves them."""
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}

    def put(name: str, *shape: int, scale: float = 0.2, mean: float = 0.0) -> None:
        made[name] = rng.normal(mean, scale, shape).astype(np.float32)

    def norm(name: str, size: int = HIDDEN, *, bias: bool = True) -> None:
        put(name + ".weight", size, scale=0.1, mean=1.0)
        if bias:
            put(name + ".bias", size)

    def linear(name: str, rows: int, columns: int, *, bias: bool = True) -> None:
        put(name + ".weight", rows, columns)
        if bias:
            put(name + ".bias", rows)

    if kind == "granite_speech":
        return granite(width, made, put, norm, linear)
    if kind == "lfm2a":
        return lfm2a(width, made, put, norm, linear)
    if kind == "parakeet":
        return parakeet(width, made, put, norm, linear)
    if kind == "gemma4ua":
        linear("mm.a.input_projection", width, FRAME, bias=False)
        return made
    if kind == "gemma4a":
        return gemma4a(width, made, put, norm, linear)
    if kind == "gemma3na":
        return gemma3na(width, made, put, norm, linear)
    if kind == "dots3note_a":
        return dots3note_a(width, made, put, norm, linear)
    if kind == "qwen3a":
        for number, channels in ((1, 1), (2, CHANNELS), (3, CHANNELS)):
            put(f"a.conv2d.{number}.weight", CHANNELS, channels, 3, 3)
            put(f"a.conv2d.{number}.bias", CHANNELS, 1, 1)
        linear("a.conv_out", HIDDEN, CHANNELS * MELS // 8, bias=False)
    for number, channels in ((1, MELS), (2, HIDDEN)) if kind != "qwen3a" else ():
        put(f"a.conv1d.{number}.weight", HIDDEN, channels, 3, scale=0.1)
        put(f"a.conv1d.{number}.bias", HIDDEN, 1)
    put("a.position_embd.weight", POSITIONS[kind], HIDDEN)
    for i in range(LAYERS):
        norm(f"a.blk.{i}.ln1")
        for part in ("q", "k", "v", "out"):
            linear(f"a.blk.{i}.attn_{part}", HIDDEN, HIDDEN, bias=part != "k" or kind == "qwen3a")
        norm(f"a.blk.{i}.ln2")
        linear(f"a.blk.{i}.ffn_up", FFN, HIDDEN)
        linear(f"a.blk.{i}.ffn_down", HIDDEN, FFN)
    if kind != "glma":
        norm("a.post_ln")
    if kind in ("qwen2a", "qwen2.5o"):
        linear("mm.a.fc", width, HIDDEN)
        return made
    if kind == "qwen3a":
        linear("mm.a.mlp.1", HIDDEN, HIDDEN)
        linear("mm.a.mlp.2", width, HIDDEN)
        return made
    if kind == "musicflamingo":
        linear("mm.a.mlp.1", width, HIDDEN)
        linear("mm.a.mlp.2", width, width)
        return made
    joined = HIDDEN * STACK[kind]
    if kind == "glma":
        norm("mm.a.norm_pre")
        linear("mm.a.mlp.1", 2 * width, joined)
        linear("mm.a.mlp.2", width, 2 * width)
        put("v.boi", width)
        put("v.eoi", width)
        return made
    if kind == "meralion":
        norm("mm.a.norm_pre")
        for at, (rows, columns) in enumerate(((40, joined), (40, 40), (40, 40), (width, 40))):
            linear(f"mm.a.mlp.{at}", rows, columns)
        return made
    if kind == "ultravox":
        norm("mm.a.norm_pre", joined, bias=False)
        linear("mm.a.mlp.1", 48, joined, bias=False)
        norm("mm.a.norm_mid", 24, bias=False)
        linear("mm.a.mlp.2", width, 24, bias=False)
    else:
        linear("mm.a.mlp.1", width, joined, bias=False)
        linear("mm.a.mlp.2", width, width, bias=False)
    return made


def gemma4a(width: int, made: dict, put: Callable, norm: Callable, linear: Callable) -> dict:
    """Those of Gemma 4, whose products have limits."""

    def limited(name: str, rows: int, columns: int) -> None:
        linear(name, rows, columns, bias=False)
        for end, value in (("input_min", -2), ("input_max", 1.5), ("output_max", 1)):
            made[f"{name}.{end}"] = np.array([value], np.float32)

    channels = 1
    for number, rows in enumerate(SUBSAMPLED):
        put(f"a.conv1d.{number}.weight", rows, channels, 3, 3)
        norm(f"a.conv1d.{number}.norm", rows, bias=False)
        channels = rows
    linear("a.input_projection", HIDDEN, MELS // 4 * channels, bias=False)
    for i in range(LAYERS):
        at = f"a.blk.{i}."
        for end in ("", "_1"):
            norm(f"{at}ffn_norm{end}", bias=False)
            limited(f"{at}ffn_up{end}", 4 * HIDDEN, HIDDEN)
            limited(f"{at}ffn_down{end}", HIDDEN, 4 * HIDDEN)
            norm(f"{at}ffn_post_norm{end}", bias=False)
        for name in ("attn_pre_norm", "attn_post_norm", "conv_norm", "norm_conv", "ln2"):
            norm(at + name, bias=False)
        for part in ("q", "k", "v", "out"):
            limited(f"{at}attn_{part}", HIDDEN, HIDDEN)
        linear(at + "attn_k_rel", HIDDEN, HIDDEN, bias=False)
        put(at + "per_dim_scale.weight", HIDDEN // HEADS, mean=0.7)
        limited(at + "conv_pw1", 2 * HIDDEN, HIDDEN)
        put(at + "conv_dw.weight", HIDDEN, 5)
        limited(at + "conv_pw2", HIDDEN, HIDDEN)
    linear("a.pre_encode.out", 48, HIDDEN)
    linear("mm.a.input_projection", width, 48, bias=False)
    return made


def gemma3na(width: int, made: dict, put: Callable, norm: Callable, linear: Callable) -> dict:
    """Those of Gemma 3n, whose encoder has a table of tokens."""
    channels = 1
    for number, rows in enumerate(SUBSAMPLED):
        put(f"a.conv1d.{number}.weight", rows, channels, 3, 3)
        norm(f"a.conv1d.{number}.norm", rows, bias=False)
        channels = rows
    linear("a.pre_encode.out", HIDDEN, MELS // 4 * channels, bias=False)
    for i in range(LAYERS):
        at = f"a.blk.{i}."
        for end in ("", "_1"):
            norm(f"{at}ffn_norm{end}", bias=False)
            linear(f"{at}ffn_up{end}", 4 * HIDDEN, HIDDEN, bias=False)
            linear(f"{at}ffn_down{end}", HIDDEN, 4 * HIDDEN, bias=False)
            norm(f"{at}ffn_post_norm{end}", bias=False)
        for name in ("ln1", "ln2", "conv_norm", "norm_conv", "layer_pre_norm"):
            norm(at + name, bias=False)
        for part in ("q", "k", "v", "out"):
            linear(f"{at}attn_{part}", HIDDEN, HIDDEN, bias=False)
        linear(at + "linear_pos", HIDDEN, HIDDEN, bias=False)
        put(at + "per_dim_scale", HIDDEN // HEADS)
        linear(at + "conv_pw1", 2 * HIDDEN, HIDDEN, bias=False)
        put(at + "conv_dw.weight", HIDDEN, 1, 5)
        linear(at + "conv_pw2", HIDDEN, HIDDEN, bias=False)
    put("mm.a.embedding.weight", TOKENS, HIDDEN)
    for kind in ("hard", "soft"):
        norm(f"mm.a.{kind}_emb_norm", bias=False)
    linear("mm.a.input_projection", width, HIDDEN, bias=False)
    return made


def granite(width: int, made: dict, put: Callable, norm: Callable, linear: Callable) -> dict:
    """Those of Granite Speech, whose queries are wider than its rows."""
    linear("a.input_projection", HIDDEN, 2 * MELS)
    for i in range(LAYERS):
        at = f"a.blk.{i}."
        for end in ("", "_1"):
            norm(f"{at}ffn_norm{end}")
            linear(f"{at}ffn_up{end}", FFN, HIDDEN)
            linear(f"{at}ffn_down{end}", HIDDEN, FFN)
        for name in ("ln1", "norm_conv", "ln2"):
            norm(at + name)
        for part in ("q", "k", "v", "out"):
            linear(f"{at}attn_{part}", HIDDEN, HIDDEN, bias=part == "out")
        put(at + "attn_rel_pos_emb", 2 * GRANITE["max_pos_emb"] + 1, HIDDEN // HEADS)
        linear(at + "conv_pw1", 4 * HIDDEN, HIDDEN)
        put(at + "conv_dw.weight", 2 * HIDDEN, GRANITE["conv_kernel_size"])
        norm(at + "conv_norm", 2 * HIDDEN)
        linear(at + "conv_pw2", HIDDEN, 2 * HIDDEN)
    linear("a.enc_ctc_out", LETTERS, HIDDEN)
    linear("a.enc_ctc_out_mid", HIDDEN, LETTERS)
    wide = HIDDEN + 16
    put(
        "a.proj_query",
        1,
        GRANITE["projector.window_size"] // GRANITE["projector.downsample_rate"],
        wide,
    )
    norm("a.proj_norm", wide)
    for i in range(2):
        at = f"a.proj_blk.{i}."
        for kind, seen in (("self_attn", wide), ("cross_attn", HIDDEN)):
            for part, columns in (("q", wide), ("k", seen), ("v", seen), ("out", wide)):
                linear(f"{at}{kind}_{part}", wide, columns)
            norm(f"{at}{kind}_norm", wide)
        linear(at + "ffn_up", FFN, wide)
        linear(at + "ffn_down", wide, FFN)
        norm(at + "ffn_norm", wide)
    linear("a.proj_linear", width, wide)
    return made


def dots3note_a(width: int, made: dict, put: Callable, norm: Callable, linear: Callable) -> dict:
    """Those of dots3-note, whose feed-forward networks have a gate."""
    for number, channels in ((1, 1), (2, CHANNELS), (3, CHANNELS)):
        put(f"a.conv2d.{number}.weight", CHANNELS, channels, 3, 3)
        put(f"a.conv2d.{number}.bias", CHANNELS)
    linear("a.conv_out", HIDDEN, CHANNELS * MELS // 8, bias=False)
    for i in range(LAYERS):
        at = f"a.blk.{i}."
        for name in ("ln1", "ln2"):
            norm(at + name, bias=False)
        for part in ("q", "k", "v", "out"):
            linear(f"{at}attn_{part}", HIDDEN, HIDDEN, bias=part != "k")
        for name in ("ffn_gate", "ffn_up"):
            linear(at + name, FFN, HIDDEN)
        linear(at + "ffn_down", HIDDEN, FFN)
    norm("a.post_ln", bias=False)
    norm("mm.a.norm_pre")
    linear("mm.a.mlp.1", width, HIDDEN)
    linear("mm.a.mlp.3", width, width)
    return made


def lfm2a(width: int, made: dict, put: Callable, norm: Callable, linear: Callable) -> dict:
    """Those of LFM2-Audio, of which three are what it speaks with."""
    put("a.position_embd.weight", 16, width)
    norm("a.position_embd_norm", width, bias=False)
    put("a.embd_to_logits.weight", 16, width)
    fast_conformer(put, norm, linear)
    norm("mm.a.mlp.0")
    linear("mm.a.mlp.1", 40, HIDDEN)
    linear("mm.a.mlp.3", width, 40)
    return made


def parakeet(width: int, made: dict, put: Callable, norm: Callable, linear: Callable) -> dict:
    """Those of the encoder of Nemotron Nano VL, as llama.cpp has them: few have a summand, and
    some have further axes.
    """
    numbers, at = np.arange(257), np.arange(1, MELS + 1)[:, None] * 3.1
    made["a.mel_filters"] = np.maximum(0, 1 - np.abs(numbers - at) / 4)[None].astype(np.float32)
    made["a.window"] = (np.sin(np.pi * np.arange(400) / 399) ** 2).astype(np.float32)
    plain = lambda name, rows, columns, bias=False: linear(name, rows, columns, bias=False)  # noqa: E731
    fast_conformer(put, norm, plain)
    linear("a.pre_encode.out", HIDDEN, MELS // 8 * CHANNELS)
    for name, value in list(made.items()):
        if name.startswith("a.conv1d.") and name.endswith("bias"):
            made[name] = value[None]
        elif name.endswith("conv_dw.weight"):
            made[name] = value[None, None]
        elif name.endswith("conv_pw1.weight"):
            put(name.replace("weight", "bias"), 1, len(value), 1, 1)
        elif name.endswith("conv_norm.weight"):
            put(name.replace(".weight", "_mean"), HIDDEN)
            made[name.replace(".weight", "_var")] = np.linspace(0.5, 2, HIDDEN, dtype=np.float32)
    norm("mm.a.norm_pre", bias=False)
    linear("mm.a.mlp.1", 40, HIDDEN, bias=False)
    linear("mm.a.mlp.2", width, 40, bias=False)
    return made


def fast_conformer(put: Callable, norm: Callable, linear: Callable) -> None:
    """Those of a Fast Conformer."""
    for number, channels, side in ((0, 1, 3), (2, 1, 3), (3, CHANNELS, 1), (5, 1, 3),
                                   (6, CHANNELS, 1)):  # fmt: skip
        put(f"a.conv1d.{number}.weight", CHANNELS, channels, side, side, scale=0.4)
        put(f"a.conv1d.{number}.bias", CHANNELS, 1, 1)
    linear("a.pre_encode.out", HIDDEN, MELS // 8 * CHANNELS)
    for i in range(LAYERS):
        at = f"a.blk.{i}."
        for name in ("ffn_norm", "ln1", "norm_conv", "ffn_norm_1", "ln2"):
            norm(at + name)
        for end in ("", "_1"):
            linear(f"{at}ffn_up{end}", FFN, HIDDEN)
            linear(f"{at}ffn_down{end}", HIDDEN, FFN)
        for part in ("q", "k", "v", "out"):
            linear(f"{at}attn_{part}", HIDDEN, HIDDEN)
        linear(at + "linear_pos", HIDDEN, HIDDEN, bias=False)
        for end in "uv":
            put(f"{at}pos_bias_{end}", HEADS, HIDDEN // HEADS)
        linear(at + "conv_pw1", 2 * HIDDEN, HIDDEN)
        put(at + "conv_dw.weight", HIDDEN, TAPS)
        put(at + "conv_dw.bias", HIDDEN)
        norm(at + "conv_norm")
        linear(at + "conv_pw2", HIDDEN, HIDDEN)


def keys_of(kind: str, width: int) -> dict[str, Any]:
    """The keys of a file of audio alone."""
    audio = {
        "num_mel_bins": MELS,
        "embedding_length": HIDDEN,
        "feed_forward_length": FFN,
        "block_count": LAYERS,
        "projection_dim": width,
        "attention.head_count": HEADS,
        "attention.layer_norm_epsilon": 1e-5,
    }
    if kind == "gemma4ua":
        of_layers = ("feed_forward_length", "block_count", "attention.head_count")
        audio.update({"embedding_length": FRAME, **dict.fromkeys(of_layers, 0)})
    if kind == "granite_speech":
        audio |= {"num_mel_bins": 2 * MELS, **GRANITE}
    if kind == "dots3note_a":
        audio["attention.layer_norm_epsilon"] = 1e-6
    if kind == "parakeet":
        audio |= {"subsampling_factor": 8, "conv_kernel_size": TAPS}
    if kind in STACK:
        audio["projector.stack_factor"] = STACK[kind]
    return {
        "general.type": "mmproj",
        "clip.has_audio_encoder": True,
        "clip.projector_type": kind,
        **{f"clip.audio.{name}": value for name, value in audio.items()},
    }


def write_audio(
    path: Path, kind: str = "qwen2a", *, width: int = 24, seed: int = 0, **more: Any
) -> Path:
    """A file whose features have `width` floats; more: further keys, by their whole names with
    `__` for points, or None for a key that is left out.
    """
    from oxillama.gguf import GgufWriter

    with GgufWriter(path, "clip") as file:
        keys = keys_of(kind, width)
        keys.update({name.replace("__", "."): value for name, value in more.items()})
        for name, value in keys.items():
            if value is not None:
                file.add(name, value)
        for name, held in tensors_of(kind, width, seed=seed).items():
            file.add_tensor(name, held)
    return path
