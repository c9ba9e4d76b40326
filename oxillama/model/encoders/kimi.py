"""MoonViT, the encoder of Kimi-VL (Kimi Team 2025, section 2.1) and of Kimi K2.5: images of any
size, learned positions resampled to their grid, pairs of a head rotated by column and by row.
"""

from dataclasses import replace

import numpy as np

from oxillama.model.image_builder import ImageBuilder, encoder


@encoder("kimivl", "kimik25")
def moonvit(b: ImageBuilder) -> None:
    """In files of Kimi K2.5 the first half of the pairs of a head is rotated by its column, the
    second by its row; in those of Kimi-VL pairs take turns, as they do in both models' code. The
    projector's norm comes before patches are joined.
    """
    b.root.flag("use_gelu")
    rope = b.axial_rope(column_first=True)
    if b.kind == "kimivl":
        half = len(rope.inv_freq) // 2
        turns = np.arange(2 * half).reshape(2, half).T.reshape(-1)
        sections = np.tile(np.array([1, 0], np.int32), half)
        rope = replace(rope, inv_freq=rope.inv_freq[turns], sections=sections)
        x = b.patches() + b.grid_positions()
    else:
        side, columns, _ = b.shape("v.position_embd.weight", 3)
        if side != columns:
            b.fail("v.position_embd.weight", (side, columns), "a square of positions")
        b.array("v.position_embd.weight", side, side, b.hidden)
        x = b.patches() + b.features(b.columns, b.hidden)
    for layer in b.blocks():
        x = b.block(layer, x, kind="layer", act="gelu_tanh", rope=rope, style="norm")
    x = b.norm(b.norm(x, "v.post_ln", kind="layer"), "mm.input_norm", kind="layer")
    b.mark_embedding(x)
    scale = b.keys.integer("projector.scale_factor", minimum=1, maximum=16)
    p, (y,) = b.projector(scale * scale)
    p.mark_embedding(p.two_layers(y, "mm.1", "mm.2"))
