"""Tiny mmproj files of random weights, of every kind, for tests without cases."""

from pathlib import Path
from typing import Any

import numpy as np

from oxillama.gguf import GgufWriter

HIDDEN, HEADS, LAYERS, PATCH, FFN = 32, 4, 3, 14, 64
_KEYS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "gemma3": {"use_gelu": True, "vision.projector.scale_factor": 2},
    "idefics3": {
        "use_gelu": True,
        "vision.projector.scale_factor": 2,
        "vision.preproc_image_size": 112,
    },
    "pixtral": {"use_silu": True},
    "gemma4v": {"vision.patch_size": 16},
    "glm4v": {"use_silu": True},
    "internvl": {"use_gelu": True, "vision.projector.scale_factor": 2},
    "lfm2": {
        "use_gelu": True,
        "vision.projector.scale_factor": 2,
        "vision.patch_size": 16,
        "vision.image_size": 256,
    },
    "janus_pro": {"use_gelu": True},
    "llama4": {
        "use_gelu": True,
        "vision.projector.scale_factor": 2,
        "vision.attention.layer_norm_epsilon": 1e-5,
    },
    "lightonocr": {"use_silu": True, "vision.attention.layer_norm_epsilon": 1e-5},
    "qwen2vl_merger": {},
    "qwen2.5vl_merger": {"use_silu": True, "vision.n_wa_pattern": 2},
    "qwen3vl_merger": {
        "use_gelu": True,
        "vision.spatial_merge_size": 2,
        "vision.is_deepstack_layers": [False, True, False],
    },
}
KINDS = tuple(_KEYS)


def write_mmproj(
    path: Path,
    kind: str = "mlp",
    *,
    width: int,
    image: int = 56,
    seed: int = 0,
    variant: str = "",
    **more: Any,
) -> Path:
    """An encoder whose features have `width` floats; more: further keys, under `clip.vision.`;
    variant: "ocr" for what GLM-OCR has in place of what GLM-4.1V has. Of
    Pixtral and LightOnOCR with a `spatial_merge_size` (2) squares of patches are merged.
    """
    rng = np.random.default_rng(seed)
    pixtral = kind in ("pixtral", "lightonocr")
    glm, ocr = kind == "glm4v", variant == "ocr"
    qwen, rms = kind.startswith("qwen"), pixtral or glm or kind in ("qwen2.5vl_merger", "gemma4v")
    gemma = kind == "gemma4v"
    biased = not (pixtral or glm or gemma) or ocr
    patch = _KEYS[kind].get("vision.patch_size", PATCH)
    image = _KEYS[kind].get("vision.image_size", image)
    tensors: dict[str, np.ndarray] = {}

    def put(name: str, *shape: int, scale: float = 0.2) -> None:
        tensors[name] = rng.normal(0, scale, shape).astype(np.float32)

    def norm(name: str, size: int = HIDDEN) -> None:
        tensors[name + ".weight"] = rng.normal(1, 0.1, size).astype(np.float32)
        if not rms:
            put(name + ".bias", size)

    def linear(name: str, rows: int, columns: int, *, bias: bool = True) -> None:
        put(name + ".weight", rows, columns)
        if bias:
            put(name + ".bias", rows)

    if kind == "llama4":
        put("v.patch_embd.weight", HIDDEN, 3 * patch * patch, scale=0.05)
    else:
        put("v.patch_embd.weight", HIDDEN, 3, patch, patch, scale=0.05)
    if qwen or glm:
        put("v.patch_embd.weight.1", HIDDEN, 3, patch, patch, scale=0.05)
    if glm or kind in ("lfm2", "janus_pro"):
        put("v.patch_embd.bias", HIDDEN)
    grid = (image // patch) ** 2
    if kind in ("mlp", "internvl", "llama4"):
        put("v.class_embd", HIDDEN)
        if kind != "internvl":
            norm("v.pre_ln")
        if kind == "llama4":
            norm("v.post_ln")
        put("v.position_embd.weight", grid + 1, HIDDEN)
    elif kind in ("gemma3", "idefics3", "janus_pro", "lfm2", "qwen3vl_merger"):
        put("v.position_embd.weight", grid, HIDDEN)
        norm("v.post_ln")
    elif pixtral:
        norm("v.pre_ln")
        if kind == "pixtral":
            put("v.token_embd.img_break", width)
    elif gemma:
        put("v.position_embd.weight", 2, 840, HIDDEN)
        put("v.std_bias", HIDDEN)
        put("v.std_scale", HIDDEN, scale=1)
    else:
        norm("v.post_ln")
        if glm and not ocr:
            norm("v.norm_embd")
            put("v.position_embd.weight", grid, HIDDEN)
    for layer in range(LAYERS):
        at = f"v.blk.{layer}."
        norm(at + "ln1")
        norm(at + "ln2")
        if glm:
            linear(at + "attn_qkv", 3 * HIDDEN, HIDDEN, bias=biased)
            linear(at + "attn_out", HIDDEN, HIDDEN, bias=biased)
        else:
            for part in ("q", "k", "v", "out"):
                linear(f"{at}attn_{part}", HIDDEN, HIDDEN, bias=biased)
        if ocr or gemma:
            norm(at + "attn_q_norm", HIDDEN // HEADS)
            norm(at + "attn_k_norm", HIDDEN // HEADS)
        inner = width if glm and not ocr else 4 * HIDDEN if kind == "llama4" else FFN
        linear(at + "ffn_up", inner, HIDDEN, bias=biased)
        linear(at + "ffn_down", HIDDEN, inner, bias=biased)
        if rms:
            linear(at + "ffn_gate", inner, HIDDEN, bias=biased)
        if gemma:
            norm(at + "attn_post_norm")
            norm(at + "ffn_post_norm")
            for part in (
                "attn_q",
                "attn_k",
                "attn_v",
                "attn_out",
                "ffn_up",
                "ffn_gate",
                "ffn_down",
            ):
                for side in ("input", "output"):
                    for end, value in (("min", -1.5), ("max", 1.25)):
                        tensors[f"{at}{part}.{side}_{end}"] = np.full(1, value, np.float32)
        if kind == "internvl":
            put(at + "ls1.weight", HIDDEN, scale=1)
            put(at + "ls2.weight", HIDDEN, scale=1)
    if kind == "mlp":
        linear("mm.0", width, HIDDEN)
        linear("mm.2", width, width)
    elif kind == "gemma3":
        tensors["mm.soft_emb_norm.weight"] = np.ones(HIDDEN, np.float32)
        put("mm.input_projection.weight", HIDDEN, width)
    elif kind == "idefics3":
        put("mm.model.fc.weight", width, 4 * HIDDEN)
    elif kind == "internvl":
        norm("mm.model.mlp.0", 4 * HIDDEN)
        linear("mm.model.mlp.1", width, 4 * HIDDEN)
        linear("mm.model.mlp.3", width, width)
    elif gemma:
        linear("mm.input_projection", width, HIDDEN, bias=False)
    elif glm:
        linear("mm.model.fc", width, width, bias=False)
        put("mm.patch_merger.weight", width, HIDDEN, 2, 2)
        put("mm.patch_merger.bias", width)
        norm("mm.post_norm", width)
        put("mm.post_norm.bias", width)
        inner = 3 * width if ocr else FFN
        linear("mm.gate", inner, width, bias=False)
        linear("mm.up", inner, width, bias=False)
        linear("mm.down", width, inner, bias=False)
    elif kind == "janus_pro":
        linear("mm.0", width, HIDDEN)
        linear("mm.1", width, width)
    elif kind == "llama4":
        linear("mm.model.mlp.1", 40, 4 * HIDDEN, bias=False)
        linear("mm.model.mlp.2", 40, 40, bias=False)
        put("mm.model.fc.weight", width, 40)
    elif kind == "lfm2":
        norm("mm.input_norm", 4 * HIDDEN)
        linear("mm.1", 2 * width, 4 * HIDDEN)
        linear("mm.2", width, 2 * width)
    elif pixtral:
        if "spatial_merge_size" in more:
            tensors["mm.input_norm.weight"] = rng.normal(1, 0.1, HIDDEN).astype(np.float32)
            put("mm.patch_merger.weight", HIDDEN, 4 * HIDDEN)
        linear("mm.1", width, HIDDEN, bias=kind == "pixtral")
        linear("mm.2", width, width, bias=kind == "pixtral")
    else:
        linear("mm.0", 4 * HIDDEN, 4 * HIDDEN)
        linear("mm.2", width, 4 * HIDDEN)
    if kind == "qwen3vl_merger":
        tensors["v.deepstack.1.norm.weight"] = np.ones(4 * HIDDEN, np.float32)
        put("v.deepstack.1.norm.bias", 4 * HIDDEN)
        linear("v.deepstack.1.fc1", 4 * HIDDEN, 4 * HIDDEN)
        linear("v.deepstack.1.fc2", width, 4 * HIDDEN)
    if "mm_patch_merge_type" in more:
        put("model.image_newline", width)
    keys: dict[str, Any] = {
        "vision.projector_type" if gemma else "projector_type": kind,
        "has_vision_encoder": True,
        "vision.image_size": image,
        "vision.patch_size": patch,
        "vision.embedding_length": HIDDEN,
        "vision.feed_forward_length": FFN,
        "vision.projection_dim": width,
        "vision.block_count": LAYERS,
        "vision.attention.head_count": HEADS,
        "vision.attention.layer_norm_epsilon": 1e-6,
        "vision.image_mean": [0.5, 0.5, 0.5],
        "vision.image_std": [0.5, 0.25, 0.5],
        **_KEYS[kind],
        **{f"vision.{key}": value for key, value in more.items()},
    }
    with GgufWriter(path, "clip") as file:
        for key, value in keys.items():
            file.add(f"clip.{key}", value)
        for name, values in tensors.items():
            file.add_tensor(name, values)
    return path
