"""Chameleon (Meta 2024, by its code in transformers, `models/chameleon`): Llama with layer norms of
queries and keys, whose vocabulary also has the codes of images.
"""

import numpy as np

from oxillama.model.blocks import attention, gated_ffn
from oxillama.model.builder import Builder, Value, architecture

# the tokens that stand for images, which the model does not write
_IMAGES = slice(4, 8196)


@architecture("chameleon")
def chameleon(b: Builder) -> Value:
    """In the larger model norms come after the branches (`swin_norm`; Liu et al. 2022, Swin V2)."""
    after = b.keys.flag("swin_norm", default=False)
    x = b.embed()
    for layer in b.layers():
        y = x if after else layer.norm(x, "attn_norm")
        y = attention(b, layer, y, style="norm", qk_norm="heads", norm_kind="layer")
        x = x + (layer.norm(y, "attn_norm") if after else y)
        y = gated_ffn(b, layer, x if after else layer.norm(x, "ffn_norm"), act="silu")
        x = x + (layer.norm(y, "ffn_norm") if after else y)
    unwritten = np.zeros(b.vocab_size, np.float32)
    unwritten[_IMAGES] = np.finfo(np.float32).min
    return b.logits(x) + unwritten
