"""Hunyuan 4 (Tencent 2026): DeepSeek V3 with sinks and gated attention, whose residual is several
streams, each kept as it is and added to.
"""

from oxillama.model.blocks import routing_of, sparse_ffn, trunk
from oxillama.model.builder import Builder, Value, architecture
from oxillama.model.hyper_connections import last_stream, open_weights, stream_count, stream_weights
from oxillama.model.indexer import LatentIndexer
from oxillama.model.latent import latent_attention
from oxillama.model.rope import Rope


@architecture("hy_v4")
def hunyuan4(b: Builder) -> Value:
    """Some files choose keys by an indexer."""
    keys, count, indexer = b.keys, stream_count(b), None
    if "attention.indexer.top_k" in keys:
        indexer = LatentIndexer(b, style="norm", last=True, eps=b.epsilon())
    share = keys.number("hyper_connection.magnitude", minimum=0.0)
    limits = keys.numbers("swiglu_clamp_exp", count=b.n_layers, default=(0.0,) * b.n_layers)
    routing = routing_of(b, gating="sigmoid")
    x = b.repeat(b.embed(), count)
    for layer in trunk(b):
        for branch in ("attn", "ffn"):
            taken, given = stream_weights(b, layer.name(f"hc_{branch}"), x, count, count)
            y = layer.norm(b.weighted(x, open_weights(b, taken)), f"{branch}_norm")
            if branch == "attn":
                y = latent_attention(b, layer, y, rotation=_rotation, indexer=indexer)
            else:
                y = sparse_ffn(b, layer, y, limit=limits[layer.index], early=True, **routing)
            given = open_weights(b, given, most=share)
            x = x + b.head_scale(b.repeat(y, count), given, heads=count)
    return b.logits(last_stream(b, x))


def _rotation(b: Builder, turned: int, width: int) -> tuple[Rope, float]:
    """The file's own; scores are scaled by the width of a key."""
    return b.rope(turned), width**-0.5
