"""Tiny mmproj files of random weights, of the encoders made for documents, for tests without cases:
tensors and keys as llama.cpp's converter writes them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from oxillama.gguf import GgufWriter
from tests.vision.made_more import Weights

HIDDEN, HEADS, LAYERS, FFN = 32, 4, 3, 64
_FAMILIES: dict[str, Callable[["Made", int], None]] = {}


class Made(Weights):
    """Tensors and keys (without `clip.`) of a file."""

    def __init__(self, kind: str, seed: int) -> None:
        super().__init__(seed)
        self.keys: dict[str, Any] = {
            "has_vision_encoder": True,
            "projector_type": kind,
            "vision.embedding_length": HIDDEN,
            "vision.feed_forward_length": FFN,
            "vision.attention.head_count": HEADS,
            "vision.attention.layer_norm_epsilon": 1e-6,
            "vision.image_mean": [0.5, 0.5, 0.5],
            "vision.image_std": [0.5, 0.25, 0.5],
        }

    def patches(self, patch: int, *, bias: bool = True) -> None:
        """The kernels over patches."""
        self.put("v.patch_embd.weight", HIDDEN, 3, patch, patch, scale=0.05)
        if bias:
            self.put("v.patch_embd.bias", HIDDEN)

    def layers(
        self,
        *,
        norm_bias: bool,
        bias: bool,
        gated: bool = False,
        qkv: bool = False,
        count: int = LAYERS,
        hidden: int = HIDDEN,
    ) -> None:
        """The layers of a transformer."""
        self.keys["vision.block_count"] = count
        for layer in range(count):
            at = f"v.blk.{layer}."
            self.norm(at + "ln1", hidden, bias=norm_bias)
            self.norm(at + "ln2", hidden, bias=norm_bias)
            if qkv:
                self.linear(at + "attn_qkv", 3 * hidden, hidden, bias=bias)
            for part in ("out",) if qkv else ("q", "k", "v", "out"):
                self.linear(f"{at}attn_{part}", hidden, hidden, bias=bias)
            for part in ("up", "gate") if gated else ("up",):
                self.linear(f"{at}ffn_{part}", FFN, hidden, bias=bias)
            self.linear(at + "ffn_down", hidden, FFN, bias=bias)


def _family(kind: str) -> Callable:
    def register(make: Callable[[Made, int], None]) -> Callable[[Made, int], None]:
        _FAMILIES[kind] = make
        return make

    return register


@_family("paddleocr")
def _paddleocr(made: Made, width: int) -> None:
    least, most = 8 * 28**2, 64 * 28**2
    made.keys |= {
        "use_gelu": True,
        "vision.patch_size": 14,
        "vision.image_size": int(most**0.5),
        "vision.image_min_pixels": least,
        "vision.image_max_pixels": most,
    }
    made.patches(14)
    made.put("v.position_embd.weight", 25, HIDDEN)
    made.layers(norm_bias=True, bias=True)
    made.norm("v.post_ln", bias=True)
    made.norm("mm.input_norm", bias=True)
    made.linear("mm.1", 4 * HIDDEN, 4 * HIDDEN)
    made.linear("mm.2", width, 4 * HIDDEN)


@_family("dots_ocr")
def _dots_ocr(made: Made, width: int) -> None:
    made.keys |= {
        "use_silu": True,
        "vision.patch_size": 14,
        "vision.image_size": 0,
        "vision.image_min_pixels": 4 * 28**2,
        "vision.image_max_pixels": 64 * 28**2,
        "vision.attention.layer_norm_epsilon": 1e-5,
        "vision.projector.scale_factor": 2,
    }
    made.patches(14)
    made.norm("v.pre_ln", bias=False)
    made.layers(norm_bias=False, bias=False, gated=True, qkv=True)
    made.norm("mm.post_norm", bias=False)
    made.norm("mm.input_norm", bias=True)
    made.linear("mm.0", 4 * HIDDEN, 4 * HIDDEN)
    made.linear("mm.2", width, 4 * HIDDEN)


@_family("hunyuanvl")
def _hunyuanvl(made: Made, width: int) -> None:
    made.keys |= {
        "use_gelu": True,
        "vision.patch_size": 16,
        "vision.image_size": 96,
        "vision.image_min_pixels": 4 * 32**2,
        "vision.image_max_pixels": 64 * 32**2,
        "vision.attention.layer_norm_epsilon": 1e-5,
        "vision.spatial_merge_size": 2,
    }
    made.patches(16)
    made.put("v.position_embd.weight", 36, HIDDEN)
    made.layers(norm_bias=True, bias=True)
    made.norm("mm.pre_norm", bias=False)
    made.put("mm.0.weight", 2 * HIDDEN, HIDDEN, 2, 2, scale=0.1)
    made.put("mm.0.bias", 2 * HIDDEN)
    made.put("mm.2.weight", 4 * HIDDEN, 2 * HIDDEN, 1, 1)
    made.put("mm.2.bias", 4 * HIDDEN)
    made.linear("mm.model.fc", width, 4 * HIDDEN)
    made.norm("mm.post_norm", width, bias=False)
    made.put("v.image_newline", 4 * HIDDEN, scale=1)
    for name in ("mm.image_begin", "mm.image_end", "v.view_seperator"):
        made.put(name, width, scale=1)


def _sam(made: Made, side: int) -> None:
    """SAM over an image of side * 16 pixels, in windows of 6 patches but for its second layer."""
    window = 6
    made.keys |= {
        "use_gelu": True,
        "vision.window_size": window,
        "vision.sam.block_count": 3,
        "vision.sam.embedding_length": 32,
        "vision.sam.head_count": 2,
        "vision.preproc_min_tiles": 2,
    }
    made.put("v.sam.pos_embd.weight", 1, side, side, 32)
    made.put("v.sam.patch_embd.weight", 32, 3, 16, 16, scale=0.05)
    made.put("v.sam.patch_embd.bias", 32)
    for layer in range(3):
        at = f"v.sam.blk.{layer}."
        made.norm(at + "pre_ln", 32, bias=True)
        made.norm(at + "post_ln", 32, bias=True)
        made.linear(at + "attn.qkv", 96, 32)
        made.linear(at + "attn.out", 32, 32)
        for part in "hw":
            rows = 2 * (side if layer == 1 else window) - 1
            made.put(f"{at}attn.pos_{part}.weight", rows, 16, scale=0.5)
        made.linear(at + "mlp.lin1", 64, 32)
        made.linear(at + "mlp.lin2", 32, 64)
    made.put("v.sam.neck.0.weight", 16, 32, 1, 1)
    made.norm("v.sam.neck.1", 16, bias=True)
    made.put("v.sam.neck.2.weight", 16, 16, 3, 3, scale=0.1)
    made.norm("v.sam.neck.3", 16, bias=True)
    made.put("v.sam.net_2.weight", 16, 16, 3, 3, scale=0.1)
    made.put("v.sam.net_3.weight", HIDDEN, 16, 3, 3, scale=0.1)


@_family("deepseekocr")
def _deepseekocr(made: Made, width: int) -> None:
    """Its keys say the sizes of a CLIP that reads pixels, and a width of networks that none has."""
    side = 16
    made.keys |= {
        "vision.image_size": 224,
        "vision.patch_size": 14,
        "vision.feed_forward_length": 4 * HEADS,
        "vision.preproc_max_tiles": 9,
        "vision.projector.scale_factor": 1,
    }
    _sam(made, side)
    made.put("v.class_embd", HIDDEN)
    made.put("v.patch_embd.weight", HIDDEN, 3, 14, 14)
    made.put("v.position_embd.weight", (side // 4) ** 2 + 1, HIDDEN)
    made.norm("v.pre_ln", bias=True)
    made.layers(norm_bias=True, bias=True, qkv=True, count=4)
    made.linear("mm.model.fc", width, 2 * HIDDEN)
    made.put("v.image_newline", width)
    made.put("v.view_seperator", 1, width)


@_family("deepseekocr2")
def _deepseekocr2(made: Made, width: int) -> None:
    side = 16
    made.keys |= {
        "vision.image_size": 16 * side,
        "vision.patch_size": 16,
        "vision.attention.head_count_kv": 2,
        "vision.preproc_max_tiles": 6,
    }
    _sam(made, side)
    made.put("v.resample_query_768.weight", (side * 3 // 16) ** 2, HIDDEN, scale=1)
    made.put("v.resample_query_1024.weight", (side // 4) ** 2, HIDDEN, scale=1)
    made.layers(norm_bias=False, bias=False, gated=True, count=4)
    for layer in range(4):
        at = f"v.blk.{layer}."
        for part, rows in (("q", HIDDEN), ("k", HIDDEN // 2), ("v", HIDDEN // 2)):
            made.linear(f"{at}attn_{part}", rows, HIDDEN)
    made.norm("v.post_ln", bias=False)
    made.linear("mm.model.fc", width, HIDDEN)
    made.put("v.view_seperator", 1, width)


@_family("exaone4_5")
def _exaone45(made: Made, width: int) -> None:
    made.keys |= {
        "use_silu": True,
        "vision.patch_size": 14,
        "vision.image_size": 560,
        "vision.image_min_pixels": 4 * 28**2,
        "vision.image_max_pixels": 64 * 28**2,
        "vision.attention.head_count_kv": 2,
        "vision.window_size": 56,
        "vision.n_wa_pattern": 2,
    }
    made.patches(14, bias=False)
    made.put("v.patch_embd.weight.1", HIDDEN, 3, 14, 14, scale=0.05)
    made.layers(norm_bias=False, bias=True, gated=True, qkv=True)
    for layer in range(LAYERS):
        made.linear(f"v.blk.{layer}.attn_qkv", 2 * HIDDEN, HIDDEN)
    made.norm("v.post_ln", bias=False)
    made.linear("mm.0", 4 * HIDDEN, 4 * HIDDEN)
    made.linear("mm.2", width, 4 * HIDDEN)


@_family("dots3note_v")
def _dots3note(made: Made, width: int) -> None:
    """Two layers without experts, then one with 4 and one with 6 of them."""
    del made.keys["projector_type"]
    counts = [0, 0, 4, 6]
    made.keys |= {
        "vision.projector_type": "dots3note_v",
        "has_audio_encoder": True,
        "audio.projector_type": "dots3note_a",
        "use_silu": True,
        "vision.patch_size": 14,
        "vision.image_size": 0,
        "vision.image_min_pixels": 4 * 28**2,
        "vision.image_max_pixels": 64 * 28**2,
        "vision.attention.layer_norm_epsilon": 1e-5,
        "vision.spatial_merge_size": 2,
        "vision.expert_count_per_layer": counts,
        "vision.expert_used_count": 2,
    }
    made.patches(14)
    made.norm("v.pre_ln", bias=False)
    made.layers(norm_bias=False, bias=False, gated=True, qkv=True, count=len(counts))
    for layer, count in enumerate(counts):
        at = f"v.blk.{layer}."
        made.norm(at + "attn_q_norm", HIDDEN // HEADS, bias=False)
        made.norm(at + "attn_k_norm", HIDDEN // HEADS, bias=False)
        if not count:
            continue
        for part in ("gate", "up", "down"):
            del made.tensors[f"{at}ffn_{part}.weight"]
        made.put(at + "ffn_gate_inp.weight", count, HIDDEN, scale=1)
        made.put(at + "exp_probs_b.weight", count)
        made.put(at + "ffn_gate_exps.weight", count, 48, HIDDEN)
        made.put(at + "ffn_up_exps.weight", count, 48, HIDDEN)
        made.put(at + "ffn_down_exps.weight", count, HIDDEN, 48)
    made.norm("mm.post_norm", bias=False)
    made.norm("mm.input_norm", bias=True)
    made.linear("mm.0", 4 * HIDDEN, 4 * HIDDEN)
    made.linear("mm.2", width, 4 * HIDDEN)


@_family("step3vl")
def _step3vl(made: Made, width: int) -> None:
    """Views of 13 and tiles of 9 patches a side."""
    made.keys |= {
        "vision.patch_size": 14,
        "vision.image_size": 13 * 14,
        "vision.preproc_image_size": 756,
        "vision.attention.layer_norm_epsilon": 1e-5,
        "vision.projector.scale_factor": 4,
    }
    made.patches(14, bias=False)
    made.put("v.position_embd.weight", 169, HIDDEN)
    made.norm("v.pre_ln", bias=True)
    made.layers(norm_bias=True, bias=True, qkv=True)
    for layer in range(LAYERS):
        made.put(f"v.blk.{layer}.ls1.weight", HIDDEN, scale=1)
        made.put(f"v.blk.{layer}.ls2.weight", HIDDEN, scale=1)
    made.put("mm.0.weight", 2 * HIDDEN, HIDDEN, 3, 3, scale=0.1)
    made.put("mm.0.bias", 2 * HIDDEN)
    made.put("mm.1.weight", 4 * HIDDEN, 2 * HIDDEN, 3, 3, scale=0.1)
    made.put("mm.1.bias", 4 * HIDDEN)
    made.linear("mm.model.fc", width, 4 * HIDDEN, bias=False)


@_family("nemotron_v2_vl")
def _nemotron(made: Made, width: int) -> None:
    """Three class tokens before 8 x 8 patches. The converter wants more than three layers."""
    made.keys |= {
        "use_gelu": True,
        "vision.patch_size": 8,
        "vision.image_size": 64,
        "vision.projector.scale_factor": 2,
    }
    made.patches(8, bias=False)
    made.put("v.class_embd", 3, HIDDEN)
    made.put("v.position_embd.weight", 1, 64, HIDDEN)
    made.layers(norm_bias=True, bias=True, qkv=True, count=4)
    made.norm("mm.model.mlp.0", 4 * HIDDEN, bias=False)
    made.linear("mm.model.mlp.1", 80, 4 * HIDDEN, bias=False)
    made.linear("mm.model.mlp.3", width, 80, bias=False)


@_family("granite4_vision")
def _granite4(made: Made, width: int) -> None:
    """Six projectors, or four where six cannot share a row: windows of 4 x 4 patches, 2 x 2 queries
    in each.
    """
    hidden, count = 64, 4 if width % 6 else 6
    made.keys |= {
        "use_gelu": True,
        "vision.embedding_length": hidden,
        "vision.patch_size": 8,
        "vision.image_size": 64,
        "vision.projection_dim": width // count,
        "vision.preproc_image_size": 64,
        "vision.projector.query_side": 2,
        "vision.projector.window_side": 4,
        "vision.feature_layer": [5, 4, 5, 5, 5, 5][:count],
        "vision.projector.spatial_offsets": [-1, -1, 0, 1, 2, 3][:count],
        "vision.image_grid_pinpoints": [64, 64, 128, 64, 64, 128, 128, 128],
    }
    made.put("v.patch_embd.weight", hidden, 3, 8, 8, scale=0.05)
    made.put("v.patch_embd.bias", hidden)
    made.put("v.position_embd.weight", 64, hidden)
    made.layers(norm_bias=True, bias=True, count=6, hidden=hidden)
    made.norm("v.post_ln", hidden, bias=True)
    made.put("v.image_newline", width // count)
    for at in (f"v.proj_blk.{i}." for i in range(count)):
        made.put(at + "img_pos", 1, 16, hidden)
        made.put(at + "query", 1, 4, hidden)
        for name in ("norm", "post_norm", "self_attn_norm", "cross_attn_norm", "ffn_norm"):
            made.norm(at + name, hidden, bias=True)
        for name in (f"{kind}_{part}" for kind in ("self_attn", "cross_attn") for part in "qkv"):
            made.linear(at + name, hidden, hidden)
        for name in ("self_attn_out", "cross_attn_out"):
            made.linear(at + name, hidden, hidden)
        made.linear(at + "ffn_up", 96, hidden)
        made.linear(at + "ffn_down", hidden, 96)
        made.linear(at + "linear", width // count, hidden)


@_family("youtuvl")
def _youtuvl(made: Made, width: int) -> None:
    made.keys |= {
        "use_gelu": True,
        "vision.patch_size": 16,
        "vision.image_size": 560,
        "vision.spatial_merge_size": 2,
        "vision.window_size": 64,
        "vision.wa_layer_indexes": [1],
    }
    made.put("v.patch_embd.weight", HIDDEN, 3 * 16 * 16, scale=0.05)
    made.put("v.patch_embd.bias", HIDDEN)
    made.layers(norm_bias=True, bias=True)
    made.norm("v.post_ln", bias=True)
    made.norm("mm.input_norm", bias=False)
    made.linear("mm.0", 4 * HIDDEN, 4 * HIDDEN)
    made.linear("mm.2", width, 4 * HIDDEN)


KINDS = tuple(_FAMILIES)


def write_mmproj(path: Path, kind: str, *, width: int = 48, seed: int = 0, **more: Any) -> Path:
    """An encoder whose features have `width` floats; more: further keys, under `clip.vision.`; None
    leaves a key out.
    """
    made = Made(kind, seed)
    made.keys["vision.projection_dim"] = width
    _FAMILIES[kind](made, width)
    made.keys |= {f"vision.{key}": value for key, value in more.items()}
    with GgufWriter(path, "clip") as file:
        for key, value in made.keys.items():
            if value is not None:
                file.add(f"clip.{key}", value)
        for name, values in made.tensors.items():
            file.add_tensor(name, values)
    return path
