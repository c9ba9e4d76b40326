"""GLM 5.3 Flash (Zhipu AI 2026): Kimi Delta Attention and latent attention without positions, whose
keys an indexer chooses in pools; the residual is several streams that mix (Xie et al. 2025, "mHC:
Manifold-Constrained Hyper-Connections", section 4).
"""

from oxillama.errors import ModelError
from oxillama.model.arch.kimi_linear import bound_of_decay, delta_attention, unrotated
from oxillama.model.blocks import routing_of, sparse_ffn, trunk
from oxillama.model.builder import Builder, Value, architecture
from oxillama.model.hyper_connections import (
    mixed_streams,
    open_weights,
    stream_count,
    stream_mean,
    stream_weights,
)
from oxillama.model.indexer import EPSILON, LatentIndexer
from oxillama.model.latent import latent_attention

_LENGTH = 1e-6  # of the lengths of queries and keys of the delta rule, in the published kernels


@architecture("glm5-next")
def glm5_next(b: Builder) -> Value:
    """Layers without KV heads are recurrent. After the last layer the streams' mean is read."""
    keys, count, none = b.keys, stream_count(b), (0.0,) * b.n_layers
    pool = keys.integer("attention.indexer.kpool", minimum=2, maximum=1 << 12)
    if not keys.flag("attention.indexer.kpool_select_tail", default=False):
        raise ModelError(
            f"{b.arch}.attention.indexer.kpool_select_tail: found False, wanted True: rows see the "
            "keys after the last whole pool"
        )
    eps = keys.number("attention.layer_norm_epsilon", default=EPSILON, minimum=0.0, maximum=1.0)
    indexer = LatentIndexer(b, style="norm", eps=eps, pool=pool)
    lowest = bound_of_decay(b)
    limits = keys.numbers("swiglu_clamp_exp", count=b.n_layers, default=none)
    shared = keys.numbers("swiglu_clamp_shexp", count=b.n_layers, default=limits)
    routing = routing_of(b, gating="sigmoid")
    x = b.repeat(b.embed(), count)
    for layer in trunk(b):
        for branch in ("attn", "ffn"):
            name, at = layer.name(f"hc_{branch}"), layer.index
            taken, given, mixing = stream_weights(b, name, x, count, count, count * count)
            y = layer.norm(b.weighted(x, open_weights(b, taken)), f"{branch}_norm")
            if branch == "ffn":
                routing |= dict(limit=limits[at], shared_limit=shared[at], early=True)
                y = sparse_ffn(b, layer, y, **routing)
            elif layer.integer("attention.head_count_kv", minimum=0):
                y = latent_attention(b, layer, y, rotation=unrotated, indexer=indexer)
            else:
                y = delta_attention(b, layer, y, lowest=lowest, eps=_LENGTH)
            given = b.activate(given, "sigmoid") * 2.0
            x = mixed_streams(b, x, mixing) + b.head_scale(b.repeat(y, count), given, heads=count)
    return b.logits(stream_mean(b, x))
