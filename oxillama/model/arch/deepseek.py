"""DeepSeek V2 (DeepSeek-AI 2024) and V3: multi-head latent attention in its absorbed form, routed
and shared experts; and the earlier DeepSeekMoE.
"""

import dataclasses
import math

from oxillama.model.blocks import decoder, predicts, routing_of, sparse_decoder, sparse_ffn
from oxillama.model.builder import Builder, Layer, Value, architecture
from oxillama.model.indexer import LatentIndexer
from oxillama.model.latent import latent_attention, unfolded_attention
from oxillama.model.rope import SCALING, Rope, Scaling


@architecture("deepseek")
def deepseek(b: Builder) -> Value:
    """DeepSeekMoE 16B (Dai et al. 2024, section 3): plain attention, the first layers dense."""
    return sparse_decoder(b, style="norm", **routing_of(b))


@architecture("deepseek2-ocr")
def deepseek2_ocr(b: Builder) -> Value:
    """The text part of DeepSeek-OCR (Wei et al. 2025, section 3.3): DeepSeekMoE with half-split
    rope.
    """
    return sparse_decoder(b, style="neox", **routing_of(b))


@architecture("deepseek2", "mistral4")
def deepseek2(b: Builder) -> Value:
    """The first layers are dense; sigmoid gating is V3's, whose groups count by their two best.
    Mistral Large 3 and 4 (Mistral AI 2025, 2026) are built so; their queries may grow with their
    position. Files made before May 2025 have one matrix for keys and values (`attn_kv_b`), and keep
    these. Where no key says how scores become weights, a file whose experts have a bias is of V3's
    kind, since the softmax of V2 has none.
    """
    v3 = b.arch == "deepseek2" and any(n.endswith("exp_probs_b.bias") for n in b.reader.tensors)
    routing = routing_of(b, gating="sigmoid" if v3 else "softmax")
    rate = b.keys.number("attention.temperature_scale", default=0.0)
    span = b.keys.integer("attention.temperature_length", default=0) if rate else 0
    temper = (rate, span or Scaling.of(b.keys).original, 0) if rate else None

    def block(b: Builder, layer: Layer, x: Value) -> Value:
        y = layer.norm(x, "attn_norm")
        unfolded = layer.has("attn_kv_b.weight")
        attention = unfolded_attention if unfolded else latent_attention
        x = x + attention(b, layer, y, rotation=_rotation, style="norm", temper=temper)
        return x + sparse_ffn(b, layer, layer.norm(x, "ffn_norm"), **routing)

    return decoder(b, block)


@architecture("deepseek32", "glm-dsa")
def deepseek32(b: Builder) -> Value:
    """DeepSeek V3.2 (DeepSeek-AI 2025) and GLM 5 (Zhipu AI 2026): V3 whose indexer chooses the keys
    that a row sees.
    """
    glm = b.arch == "glm-dsa"
    indexer = LatentIndexer(b, style="norm" if glm else "neox", by_tensor=glm)
    routing = routing_of(b, gating="sigmoid")

    def block(b: Builder, layer: Layer, x: Value) -> Value:
        y = layer.norm(x, "attn_norm")
        # what predicts further tokens sees all keys
        chooses = None if predicts(layer) else indexer
        x = x + latent_attention(b, layer, y, rotation=_rotation, indexer=chooses)
        return x + sparse_ffn(b, layer, layer.norm(x, "ffn_norm"), **routing)

    return decoder(b, block)


def _rotation(b: Builder, turned: int, width: int) -> tuple[Rope, float]:
    """The rotation, and the scale of scores: YaRN's magnitude goes into the scale, squared, by the
    file's multiplier (section 3.1.4).
    """
    rope, scale = b.rope(turned), width**-0.5
    multiplier = b.keys.number(f"{SCALING}.yarn_log_multiplier", default=0.0, minimum=0.0)
    scaling = Scaling.of(b.keys)
    if scaling.kind == "yarn" and multiplier:
        rope = dataclasses.replace(rope, magnitude=1.0)
        scale *= (1.0 + multiplier * math.log(scaling.factor)) ** 2
    return rope, scale
