"""Ling and Ring (Inclusion AI 2025): Ling-lite and -plus ("Every FLOP Counts", section 2), and Ling
2 by its published code (modeling_bailing_moe_v2); Ling 3 (2026), most of whose layers are Kimi
Delta Attention.
"""

from oxillama.errors import ModelError
from oxillama.model.arch.kimi_linear import bound_of_decay, delta_attention
from oxillama.model.blocks import decoder, routing_of, sections_of, sparse_decoder, sparse_ffn
from oxillama.model.builder import Builder, Layer, Value, architecture
from oxillama.model.latent import latent_attention
from oxillama.model.rope import Rope


@architecture("bailingmoe")
def bailingmoe(b: Builder) -> Value:
    """A softmax over all experts, and shared experts."""
    return sparse_decoder(b, style="norm", **routing_of(b))


@architecture("bailingmoe2")
def bailingmoe2(b: Builder) -> Value:
    """Experts in groups chosen as in DeepSeek V3; norms over the heads of queries and keys."""
    routing = routing_of(b, gating="sigmoid", normalise=True)
    return sparse_decoder(b, style="neox", qk_norm="heads", **routing)


@architecture("bailingmoe3")
def bailingmoe3(b: Builder) -> Value:
    """Ling 3: layers without KV heads are recurrent, the others attend to a latent under a gate for
    each head. Tokens of the model that sees images have several positions, which turn the halves
    of a key.
    """
    keys, none = b.keys, (0.0,) * b.n_layers
    routing = routing_of(b, gating="sigmoid")
    # decays without a bound have another form, which no published file of this kind has
    lowest = bound_of_decay(b, needed=True)
    if not keys.flag("kda.safe_gate", default=True):
        raise ModelError(
            f"{b.arch}.kda.safe_gate: found False, wanted True: decays with the bound of "
            "kda.gate_lower_bound"
        )
    limits = keys.numbers("swiglu_clamp_exp", count=b.n_layers, default=none)
    shared = keys.numbers("swiglu_clamp_shexp", count=b.n_layers, default=none)
    style = "neox" if _sections(b) else "norm"

    def block(b: Builder, layer: Layer, x: Value) -> Value:
        y = layer.norm(x, "attn_norm")
        if layer.integer("attention.head_count_kv", minimum=0):
            x = x + latent_attention(b, layer, y, rotation=_rotation, style=style)
        else:
            x = x + delta_attention(b, layer, y, lowest=lowest)
        y, at = layer.norm(x, "ffn_norm"), layer.index
        return x + sparse_ffn(b, layer, y, limit=limits[at], shared_limit=shared[at], **routing)

    return decoder(b, block)


def _rotation(b: Builder, turned: int, width: int) -> tuple[Rope, float]:
    """The file's own; scores are scaled by the width of a key."""
    return b.rope(turned, sections=_sections(b)), width**-0.5


def _sections(b: Builder) -> list[int] | None:
    """Which of a token's positions each pair uses, None where the file has one for all."""
    return sections_of(b, mixed=False) if "rope.dimension_sections" in b.keys else None
