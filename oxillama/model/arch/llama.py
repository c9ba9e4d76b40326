"""Llama (Touvron et al. 2023) and what is built alike: Mistral, SmolLM, TinyLlama, CodeLlama,
InternLM 3, Llama 3 with its frequency factors; with experts in place of its feed-forward network,
Mixtral (Jiang et al. 2024).
"""

from oxillama.model.blocks import attention, expert_ffn, ffn, gated_ffn, heads_of, rope_dims
from oxillama.model.builder import Builder, Value, architecture


@architecture("llama")
def llama(b: Builder) -> Value:
    """Pre-norm blocks, grouped-query attention with adjacent-pair rope, SiLU-gated feed-forward."""
    feed_forward = expert_ffn if b.keys.integer("expert_count", default=0) else gated_ffn
    x = b.embed()
    for layer in b.layers():
        x = x + attention(b, layer, layer.norm(x, "attn_norm"), style="norm")
        x = x + feed_forward(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)


@architecture("internlm2", "xverse", "ernie4_5")
def internlm2(b: Builder) -> Value:
    """The same without experts: InternLM 2 (Cai et al. 2024), XVERSE, ERNIE 4.5 (Baidu 2025)."""
    x = b.embed()
    for layer in b.layers():
        x = x + attention(b, layer, layer.norm(x, "attn_norm"), style="norm")
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)


@architecture("arcee")
def arcee(b: Builder) -> Value:
    """AFM 4.5B (Arcee 2025): a squared ReLU without a gate (So et al. 2021, Primer)."""
    x = b.embed()
    for layer in b.layers():
        x = x + attention(b, layer, layer.norm(x, "attn_norm"), style="norm")
        x = x + ffn(b, layer, layer.norm(x, "ffn_norm"), act="relu2")
    return b.logits(x)


@architecture("smollm3")
def smollm3(b: Builder) -> Value:
    """SmolLM 3 (Hugging Face 2025): every fourth layer has no positions."""
    x = b.embed()
    for layer in b.layers():
        plain = (layer.index + 1) % 4 == 0
        rope = None if plain else b.rope(rope_dims(b, heads_of(b, layer)))
        x = x + attention(b, layer, layer.norm(x, "attn_norm"), style="norm", rope=rope)
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)


@architecture("baichuan")
def baichuan(b: Builder) -> Value:
    """Baichuan 2 (Yang et al. 2023, table 2): the 13B model, alone of 40 layers, has ALiBi in place
    of rotation, which no key says.
    """
    large = b.n_layers == 40
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm")
        dims = rope_dims(b, heads_of(b, layer))
        rope = None if large else b.rope(dims)
        x = x + attention(b, layer, y, style="norm", rope=rope, slopes=large)
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)
