"""Qwen 2 and 3 (Alibaba 2024, 2025): Llama with half-split rope; 2 has q, k, v biases, 3 has
RMS-normed queries and keys. The language models of Qwen2-VL and Qwen3-VL: the same, whose pairs are
turned by several positions of a token.
"""

from typing import Literal

from oxillama.model.blocks import attention, deepstack, gated_ffn, heads_of, rope_dims, sections_of
from oxillama.model.builder import Builder, Value, architecture


@architecture("qwen")
def qwen(b: Builder) -> Value:
    """Qwen (Bai et al. 2023): one matrix for q, k and v; the file's width counts gate and up
    together.
    """
    width = b.keys.integer("feed_forward_length", minimum=2, maximum=1 << 24) // 2
    x = b.embed()
    for layer in b.layers():
        x = x + attention(b, layer, layer.norm(x, "attn_norm"), style="neox")
        y = layer.norm(x, "ffn_norm")
        gate, up = layer.linear(y, "ffn_gate", width), layer.linear(y, "ffn_up", width)
        x = x + layer.linear(b.gate(gate, up, act="silu"), "ffn_down", b.hidden)
    return b.logits(x)


@architecture("qwen2", "pangu-embedded")
def qwen2(b: Builder) -> Value:
    """The biases are in the file and are found by name; openPangu (Huawei 2025) has the same
    shape.
    """
    return _qwen(b, qk_norm=None)


@architecture("qwen3")
def qwen3(b: Builder) -> Value:
    """A norm over each query and key head comes before the rotation. Rerankers (Zhang et al. 2025,
    "Qwen3 Embedding") keep the head's rows of "yes" and "no" alone, for the last token.
    """
    b.classify(act="tanh", pooling="last")
    return _qwen(b, qk_norm="heads")


@architecture("qwen2vl", "paddleocr")
def qwen2vl(b: Builder) -> Value:
    """Sections follow one another (Wang et al. 2024, section 2.1); the text part of PaddleOCR-VL
    (Cui et al. 2025) is alike.
    """
    return _qwen(b, qk_norm=None, sections=sections_of(b, mixed=False))


@architecture("qwen3vl")
def qwen3vl(b: Builder) -> Value:
    """Sections alternate (Qwen3-VL, published code, modeling_qwen3_vl.py), and features of images
    are added after the first layers.
    """
    return _qwen(b, qk_norm="heads", sections=sections_of(b, mixed=True))


def _qwen(
    b: Builder, *, qk_norm: Literal["heads"] | None, sections: list[int] | None = None
) -> Value:
    x = b.embed()
    for layer in b.layers():
        rope = b.rope(rope_dims(b, heads_of(b, layer)), sections=sections)
        y = layer.norm(x, "attn_norm")
        x = x + attention(b, layer, y, style="neox", qk_norm=qk_norm, rope=rope)
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
        x = deepstack(b, layer, x)
    return b.logits(x)
