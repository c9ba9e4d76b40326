"""The text part of CogVLM (Wang et al. 2023, section 2.1): Llama whose layers have a second set of
matrices for the rows of images.
"""

from oxillama.model.blocks import attention, gated_ffn
from oxillama.model.builder import Builder, Value, architecture


@architecture("cogvlm")
def cogvlm(b: Builder) -> Value:
    """Rows of images, whose matrices are `vis_*`, are not supported."""
    b.used.update(name for name in b.reader.tensors if ".vis_" in name)
    x = b.embed()
    for layer in b.layers():
        x = x + attention(b, layer, layer.norm(x, "attn_norm"), style="neox")
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)
