"""The encoders of the unified Gemma 4 (Google 2026, published code, modeling_gemma4_unified.py):
one product of each patch, between layer norms, and one of samples as they are.
"""

from oxillama.model import audio_builder
from oxillama.model.audio_builder import AudioBuilder
from oxillama.model.image_builder import ImageBuilder, encoder

_EPS = 1e-5  # of a LayerNorm that is given none; the file has that of the last norm
_AUDIO_EPS = 1e-6  # of the published models, whatever a file says


@encoder("gemma4uv")
def gemma4uv(b: ImageBuilder) -> None:
    """A patch is a square of 3 x 3 of what the file calls so (another number where it has a
    `projector.scale_factor`). The batch brings the sum of a vector for its column and one for its
    row.
    """
    b.keys.integer("attention.head_count", default=0, maximum=0)
    b.patch *= b.keys.integer("projector.scale_factor", default=3, minimum=1, maximum=16)
    places = b.shape("v.position_embd.weight", 3)
    if (places[0], places[2]) != (2, b.hidden):
        b.fail("v.position_embd.weight", places, f"(2, any, {b.hidden})")
    x = b.norm(b.features(0, b.columns), "v.patch_norm.1", kind="layer", eps=_EPS)
    x = b.norm(b.linear(x, "v.patch_embd", b.hidden), "v.patch_norm.2", kind="layer", eps=_EPS)
    x = x + b.features(b.columns, b.hidden)
    b.mark_embedding(b.norm(x, "v.patch_norm.3", kind="layer", eps=_EPS))
    p, (y,) = b.projector(1)
    width = p.shape("mm.input_projection.weight", 2)[0]
    p.mark_embedding(p.linear(p.norm(y, None), "mm.input_projection", width))


@audio_builder.encoder("gemma4ua")
def gemma4ua(b: AudioBuilder) -> None:
    """A row is as many samples as the embedding has numbers; the file's `num_mel_bins` says
    nothing.
    """
    b.keys.integer("attention.head_count", default=0, maximum=0)
    b.keys.number("attention.layer_norm_epsilon", default=_AUDIO_EPS)
    b.mark_embedding(b.norm(b.features(0, b.hidden), None, eps=_AUDIO_EPS))
    p, (y,) = b.projector(1)
    width = p.shape("mm.a.input_projection.weight", 2)[0]
    p.mark_embedding(p.linear(y, "mm.a.input_projection", width))
