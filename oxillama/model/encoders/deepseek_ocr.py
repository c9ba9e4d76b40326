"""The encoders of DeepSeek-OCR (Wei et al. 2025, "DeepSeek-OCR: Contexts Optical Compression",
section 3.2) and DeepSeek-OCR 2 (Wei et al. 2026): SAM (Kirillov et al. 2023) with four convolutions
in front of CLIP, or of the layers of Qwen 2 over as many learned queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from oxillama.errors import ModelError
from oxillama.gguf.keys import Keys
from oxillama.model.attention import Heads
from oxillama.model.builder import Value
from oxillama.model.image_builder import ImageBuilder, encoder
from oxillama.model.rope import Rope
from oxillama.model.tensors import Given

# A tile's side by that of an image whole, of 1024 pixels: 640 and 768 in the published models.
_TILES = {"deepseekocr": (5, 8), "deepseekocr2": (3, 4)}


@dataclass(frozen=True, slots=True)
class Sam:
    """The sizes of SAM in a file: side: patches along a side of an image; tile: of a tile of one;
    window: of the windows of most layers.
    """

    width: int
    heads: int
    layers: int
    patch: int
    side: int
    tile: int
    window: int


def sam_of(shape: Callable[[str, int], tuple[int, ...]], keys: Keys, kind: str) -> Sam:
    """The sizes of SAM in the file of an encoder of that kind. Most are those of tensors: `shape`
    gives that of a tensor of so many dimensions, and the keys of a file are those of CLIP alone.
    """
    width = keys.integer("sam.embedding_length", minimum=1, maximum=1 << 14)
    heads = keys.integer("sam.head_count", minimum=1, maximum=width)
    layers = keys.integer("sam.block_count", minimum=1, maximum=1 << 10)
    window = keys.integer("window_size", minimum=heads, maximum=1 << 10)
    patch = shape("v.sam.patch_embd.weight", 4)[2]
    found = shape("v.sam.pos_embd.weight", 4)
    over, under = _TILES[kind]
    side = found[1]
    # the convolutions leave a quarter of a side
    if found != (1, side, side, width) or width % heads or side % 4 or side * over % under:
        raise ModelError(
            f"v.sam.pos_embd.weight: file has {found}, {kind} needs (1, side, side, {width}) for "
            f"{heads} heads, a side of a multiple of 4 and of {under}"
        )
    return Sam(width, heads, layers, patch, side, side * over // under, window)


# The columns that a batch brings after a patch and its position: whether a row is a patch at all;
# its row and column in the whole image, and in its window; the same as ones among zeros.
def columns_of(sam: Sam) -> list[tuple[str, int]]:
    """(name, columns) of each part of a row that a batch brings."""
    far, near = _sixteens(sam.side), _sixteens(sam.window)
    return [
        *(("patch", 3 * sam.patch**2), ("position", sam.width), ("real", 1), ("hidden", 1)),
        *(("row", 1), ("column", 1), ("row_within", 1), ("column_within", 1)),
        *(("at", 2 * far), ("at_within", 2 * near)),
    ]


def _sixteens(count: int) -> int:
    return -(-count // 16) * 16


def _sam(b: ImageBuilder, sam: Sam) -> tuple[ImageBuilder, Value]:
    """Records SAM and its convolutions up to the last one; the builder after them, and its rows."""
    b.eps, at = 1e-6, 0  # that of the published code; the file has one for the other encoder
    given = {}
    for name, count in columns_of(sam):
        given[name] = b.features(at, count)
        at += count
    x = b.convolved(given["patch"], "v.sam.patch_embd", sam.width, 3, sam.patch) + given["position"]
    for layer in range(sam.layers):
        name = f"v.sam.blk.{layer}"
        y = b.norm(x, f"{name}.pre_ln", kind="layer")
        # what fills up a window is seen there, as zeros
        y = y * b.repeat(given["real"], sam.width)
        x = x + b.linear(_attention(b, sam, name, y, given), f"{name}.attn.out", sam.width)
        y = b.norm(x, f"{name}.post_ln", kind="layer")
        x = x + b.two_layers(y, f"{name}.mlp.lin1", f"{name}.mlp.lin2")
    inner = b.shape("v.sam.neck.0.weight", 4)[0]
    x = b.convolved(x, "v.sam.neck.0", inner, sam.width, 1)
    b.mark_embedding(b.norm(x, "v.sam.neck.1", kind="layer"))
    p, (y,) = b.projector(9, by_channel=True)
    y = p.convolved(y, "v.sam.neck.2", inner, inner, 3)
    p.mark_embedding(p.norm(y, "v.sam.neck.3", kind="layer"))
    for name in ("v.sam.net_2", "v.sam.net_3"):
        p, (y,) = p.projector(9, by_channel=True)
        outer = p.shape(f"{name}.weight", 4)[0]
        p.mark_embedding(p.convolved(y, name, outer, inner, 3))
        inner = outer
    if inner != b.hidden:
        raise ModelError(f"v.sam.net_3.weight: file has {inner} kernels, {b.kind} needs {b.hidden}")
    q, (y,) = p.projector(1)
    return q, y


def _attention(b: ImageBuilder, sam: Sam, name: str, x: Value, given: dict[str, Value]) -> Value:
    """Attention within a window or, where the tables of a layer are so long, in the whole image. A
    score has two more terms, q . h[row of q - row of k] + q . w[column of q - column of k] (Li et
    al. 2022, MViTv2, section 4.1): each q brings these for all rows and columns, beside its own
    numbers, and each key a one at its row and at its column.
    """
    heads, dim = sam.heads, sam.width // sam.heads
    q, k, v = (
        b.linear(
            x, f"{name}.attn.qkv", 3 * sam.width, take=slice(i * sam.width, (i + 1) * sam.width)
        )
        for i in range(3)
    )
    rows, columns = b.shape(f"{name}.attn.pos_h.weight", 2)
    far = rows == 2 * sam.side - 1
    if far == (rows == 2 * sam.window - 1) or columns != dim:
        raise ModelError(
            f"{name}.attn.pos_h.weight: file has {(rows, columns)}, {b.kind} needs "
            f"{(2 * sam.window - 1, dim)} or {(2 * sam.side - 1, dim)}, which must differ"
        )
    sizes = (sam.side, sam.tile) if far else (sam.window,)
    end = "" if far else "_within"
    terms = []
    for part, where in (("h", "row"), ("w", "column")):
        full = f"{name}.attn.pos_{part}.weight"
        table = _by_place(b.array(full, rows, dim), sizes)
        stack = Given(f"{full} by place", "F32", (len(table), dim), values=table)
        routes = b.repeat(given[where + end], 2 * heads)
        count = sum(sizes)
        made = len(table) // count
        terms.append(
            b.record(
                *("expert_linear", (q, routes)),
                width=heads * made,
                weight=stack,
                experts=count,
                used=heads,
            )
        )
    asked, kept = [q * dim**-0.5, *terms], [k, b.repeat(given["at" + end], heads)]
    if far:
        for side, more in zip((asked, kept), b.hiding(given["hidden"], heads)):
            side.append(more)
    asked_of, kept_of = (b.concat(*parts, heads=heads) for parts in (asked, kept))
    return b.attend(
        asked_of,
        kept_of,
        v,
        heads=Heads(heads, heads, asked_of.width // heads, dim),
        rope=None,
        style="neox",
        scale=1.0,
        spans=not far,
    )


def _by_place(table: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """For each place of a side of each of `sizes`, the rows of the table at its distance from every
    place; float32, as many rows for each as the first size needs, a multiple of 16. A table of
    another size is interpolated between the two nearest distances.
    """
    made = []
    for size in sizes:
        steps = len(table) / (2 * size - 1)
        at = np.clip((np.arange(2 * size - 1) + 0.5) * steps - 0.5, 0, None)
        low = at.astype(int)
        over = (at - low)[:, None]
        part = table[low] * (1 - over) + table[np.minimum(low + 1, len(table) - 1)] * over
        place = np.arange(size)
        one = part[place[:, None] - place[None, :] + size - 1]
        made.append(np.pad(one, ((0, 0), (0, _sixteens(sizes[0]) - size), (0, 0))))
    return np.concatenate(made).reshape(-1, table.shape[1]).astype(np.float32)


@encoder("deepseekocr")
def deepseekocr(b: ImageBuilder) -> None:
    """CLIP without its own patches: those are the rows of SAM after `v.class_embd`, which also
    stand beside what comes of them before the projector. `v.view_seperator` ends an image,
    `v.image_newline` each line.
    """
    # computed by the converter from the sizes of CLIP alone, and not used
    b.keys.integer("projector.scale_factor", default=1, minimum=1, maximum=4)
    sam = sam_of(b.shape, b.keys, b.kind)
    q, made = _sam(b, sam)
    q.eps = 1e-5  # that of the published code
    rows, width = b.shape("v.position_embd.weight", 2)
    if width != b.hidden or rows != (sam.side // 4) ** 2 + 1:
        raise ModelError(
            f"v.position_embd.weight: file has {(rows, width)}, {b.kind} needs "
            f"{((sam.side // 4) ** 2 + 1, b.hidden)}"
        )
    x = made + q.features(b.hidden, b.hidden)
    x = q.norm(x, "v.pre_ln", kind="layer")
    for layer in q.blocks():
        x = q.block(layer, x, kind="layer", act="gelu_quick")
    q.mark_embedding(q.concat(x, made))
    p, (y,) = q.projector(1)
    p.mark_embedding(p.linear(y, "mm.model.fc", p.shape("mm.model.fc.weight", 2)[0]))
    b.used |= {"v.class_embd", "v.patch_embd.weight", "v.image_newline", "v.view_seperator"}


@encoder("deepseekocr2")
def deepseekocr2(b: ImageBuilder) -> None:
    """The rows of SAM see each other; each query that follows them sees these and the queries
    before it, and makes a feature. The base of the rotation is that of the published model.
    """
    sam = sam_of(b.shape, b.keys, b.kind)
    q, x = _sam(b, sam)
    q.eps = None
    dims = b.hidden // b.keys.integer("attention.head_count", minimum=1)
    inverse = 1e6 ** (-2.0 * np.arange(dims // 2) / dims)
    rope = Rope(dims, inverse.astype(np.float32), 1.0)
    for layer in q.blocks():
        x = q.block(layer, x, kind="rms", act="silu", rope=rope, spans=True)
    q.mark_embedding(q.norm(x, "v.post_ln"))
    p, (y,) = q.projector(1)
    p.mark_embedding(p.linear(y, "mm.model.fc", p.shape("mm.model.fc.weight", 2)[0]))
    b.used |= {"v.resample_query_768.weight", "v.resample_query_1024.weight", "v.view_seperator"}
