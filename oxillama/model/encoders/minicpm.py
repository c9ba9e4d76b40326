"""MiniCPM-V (Yao et al. 2024, section 3): SigLIP over images of any size, under a resampler, whose
learned queries become the features (2.6, 4 and 4.5), or under squares of patches that are joined
twice (4.6).
"""

from oxillama.model.attention import Heads
from oxillama.model.blocks import heads_of
from oxillama.model.image_builder import ImageBuilder, encoder

_HEAD = 128  # floats of a head of the resampler, which no key gives
# MiniCPM-V 2.6, MiniCPM-o 2.6, MiniCPM-V 4, MiniCPM-V 4.5 and MiniCPM-o 4.5: converters' numbers
_VERSIONS = (3, 4, 5, 6, 100045)


@encoder("resampler")
def resampler(b: ImageBuilder) -> None:
    """The rows of queries come after those of patches and bring themselves in place of the
    patches' rows and columns (sines and cosines); what layers make of them is not used, since every
    row sees the patches alone.
    """
    version = b.root.integer("minicpmv_version")
    if version not in _VERSIONS:
        b.fail("clip.minicpmv_version", version, f"one of {', '.join(map(str, _VERSIONS))}")
    b.root.flag("has_minicpmv_projector", default=True)
    queries, width = b.shape("resampler.query", 2)
    if width % _HEAD:
        b.fail("resampler.query", width, f"rows of a multiple of {_HEAD}")
    said = b.root.integer("minicpmv_query_num", default=0)  # 0: what older models have, 64
    if queries != (said or 64):
        b.fail("clip.minicpmv_query_num", said, f"{queries}, the rows of resampler.query")
    x = b.patches() + b.grid_positions()
    for layer in b.blocks():
        x = b.block(layer, x, kind="layer", act=b.activation(), spans=True)
    x = b.norm(x, "v.post_ln", kind="layer")
    x = b.norm(b.linear(x, "resampler.kv", width), "resampler.ln_kv", kind="layer")
    brought = b.features(b.columns + b.hidden, width)
    heads = Heads(width // _HEAD, width // _HEAD, _HEAD, _HEAD)
    y = b.attend(
        b.linear(b.norm(brought, "resampler.ln_q", kind="layer"), "resampler.attn.q", width),
        b.linear(x + brought, "resampler.attn.k", width),
        b.linear(x, "resampler.attn.v", width),
        heads=heads,
        rope=None,
        style="neox",
        scale=_HEAD**-0.5,
        spans=True,
    )
    b.mark_embedding(y)
    p, (y,) = b.projector(1)
    y = p.norm(p.linear(y, "resampler.attn.out", width), "resampler.ln_post", kind="layer")
    p.mark_embedding(p.linear(y, "resampler.proj", width))
    # the sines and cosines of a grid of 70 x 70, which the batch brings for grids of any size
    if b.shape("resampler.pos_embed_k", 2)[1] != width:
        b.fail("resampler.pos_embed_k", b.shape("resampler.pos_embed_k", 2), f"rows of {width}")


@encoder("minicpmv4_6")
def minicpmv46(b: ImageBuilder) -> None:
    """Squares of 2 x 2 patches, which see each other in a layer of their own after layer
    `wa_layer_indexes`, are joined there, and squares of 2 x 2 of these at the end; in a file with a
    scale factor of 2 only those at the end.
    """
    scale = b.keys.integer("projector.scale_factor")
    if scale not in (2, 4):
        b.fail("clip.vision.projector.scale_factor", scale, "2 or 4")
    last = b.keys.integers("wa_layer_indexes", maximum=b.n_layers - 1)
    if len(last) != 1:
        b.fail("clip.vision.wa_layer_indexes", list(last), "one layer")
    act = b.activation()
    x = b.patches() + b.grid_positions()
    for layer in b.blocks():
        if scale == 4 and layer.index > last[0]:
            break
        x = b.block(layer, x, kind="layer", act=act)
    if scale == 4:
        heads = heads_of(b, next(b.blocks()))
        y = b.norm(x, "v.vit_merger.ln1", kind="layer")
        q, k, v = (b.linear(y, f"v.vit_merger.attn_{part}", b.hidden) for part in "qkv")
        scaled = heads.key_dim**-0.5
        y = b.attend(q, k, v, heads=heads, rope=None, style="neox", scale=scaled, spans=True)
        b.mark_embedding(x + b.linear(y, "v.vit_merger.attn_out", b.hidden))
        b, (x,) = b.projector(4)
        mean = b.mean(x, 4)
        x = b.norm(x, "v.vit_merger.ds_ln", kind="layer")
        up, down = "v.vit_merger.ds_ffn_up", "v.vit_merger.ds_ffn_down"
        x = b.two_layers(x, up, down, act="gelu_tanh") + mean
        for layer in b.blocks():
            if layer.index > last[0]:
                x = b.block(layer, x, kind="layer", act=act)
    b.mark_embedding(b.norm(x, "v.post_ln", kind="layer"))
    p, (y,) = b.projector(4)
    y = p.norm(y, "mm.input_norm", kind="layer", eps=1e-6)
    p.mark_embedding(p.two_layers(y, "mm.up", "mm.down"))
