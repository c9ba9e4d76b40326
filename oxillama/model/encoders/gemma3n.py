"""The encoder of Gemma 3n: MobileNetV5 (published code, timm's `mobilenetv5.py`), of the blocks of
MobileNetV4 (Qin et al. 2024, sections 3 and 4), as a chain of tapes whose rows are positions of the
image; a convolution joins the positions around one.
"""

from itertools import pairwise

import numpy as np

from oxillama.model.attention import Heads
from oxillama.model.builder import Value
from oxillama.model.image_builder import ImageBuilder, Window, encoder

_ACT = "gelu_tanh"
_STAGES = 4
_RESOLUTION = 16  # places along a side of what becomes features, which no key gives


@encoder("gemma3nv")
def gemma3nv(b: ImageBuilder) -> None:
    """The last two of four stages are fused: the places of the last but one are kept, 2 x 2 of them
    beside each place of the last one, and become rows of their own at its end.
    """
    if b.image % 32 or (b.image // _STAGES**2) % _RESOLUTION:
        b.fail("clip.vision.image_size", b.image, f"a multiple of {_STAGES**2 * _RESOLUTION}")
    b.keys.integer("attention.head_count", default=8)
    width = b.shape("v.conv_stem.conv.weight", 4)[0]
    x = b.convolved(b.features(0, 27), "v.conv_stem.conv", width, 3, 3, bias=False)
    x = x + b.array("v.conv_stem.conv.bias", 1, width, 1, 1).reshape(-1)
    net = _Network(b, b.activate(b.norm(x, "v.conv_stem.bn"), _ACT))
    for stage in range(_STAGES):
        index = 0
        while net.has(stage, index):
            net.block(stage, index, last=stage == _STAGES - 1)
            index += 1
        if not index:
            b.fail(f"v.blk.{stage}.0", "no block", f"blocks of {_STAGES} stages")
    p, y = net.fused()
    y = p.norm(y * b.hidden**0.5, "mm.soft_emb_norm")
    width = p.shape("mm.input_projection.weight", 2)[0]
    p.mark_embedding(p.norm(p.linear(y, "mm.input_projection", width), None))
    # for the processor: what the end of an image is among the tokens of the encoder
    p.array("mm.embedding.weight", p.shape("mm.embedding.weight", 2)[0], b.hidden)
    p.vector("mm.hard_emb_norm.weight", b.hidden)


class _Network:
    """Where recording has come to: the builder of the tape, and a place's row x."""

    def __init__(self, builder: ImageBuilder, x: Value) -> None:
        self.p, self.x, self.side = builder, x, builder.image // 2
        builder.most = self.side**2
        self.kept: Value | None = None  # 2 x 2 places of the stage before, of each place

    def has(self, stage: int, index: int) -> bool:
        """Whether the file has this block."""
        start = f"v.blk.{stage}.{index}."
        return any(name.startswith(start) for name in self.p.reader.tensors)

    def window(self, x: Value, how: Window) -> Value:
        """The rows of x in a window, channel by channel, in the next tape."""
        self.p.mark_embedding(x)
        self.p.windows.append(how)
        self.p, (joined,) = self.p.projector(how.side**2, by_channel=True)
        keys = -(-self.side // 2) if how.keyed or how.seen else 0
        self.side = -(-self.side // how.stride)
        self.p.most = self.side**2 + keys**2
        return joined

    def part(self, joined: Value, start: int, count: int, side: int, place: int) -> Value:
        """`count` channels, from `start` on, of one place of a window."""
        area = side * side
        channels = joined.columns(start * area, (start + count) * area)
        return channels.columns(place, place + 1, heads=count)

    def depthwise(self, joined: Value, name: str, count: int, side: int) -> Value:
        """The first `count` channels of a window, each under kernels of its own."""
        weight = self.p.array(name + ".weight", count, 1, side, side).reshape(-1)
        return self.p.measure(joined.columns(0, len(weight)) * weight, "sum", heads=count)

    def pointwise(self, x: Value, name: str) -> Value:
        """A product of each place."""
        rows = self.p.shape(name + ".weight", 4)[0]
        return self.p.convolved(x, name, rows, x.width, 1)

    def block(self, stage: int, index: int, *, last: bool) -> None:
        """A block; the first one of a stage halves the number of places along a side. last: of the
        last stage, whose first block keeps the places of the one before.
        """
        at, stride = f"v.blk.{stage}.{index}.", 1 if index else 2
        if self.p.has(at + "conv_exp.weight"):
            self.edge(at, stride)
        elif self.p.has(at + "attn.query.proj.weight"):
            self.attention(at)
        else:
            self.inverted(at, stride, keeps=last and not index)

    def scaled(self, at: str, made: Value) -> Value:
        """What a block made times a number for each channel, in files (channels,) or, as those that
        llama.cpp runs, (1, channels, 1, 1).
        """
        name, width = at + "layer_scale.gamma", made.width
        if not self.p.has(name):
            return made
        if len(self.p.reader.tensors[name].shape) == 1:
            return made * self.p.vector(name, width)
        return made * self.p.array(name, 1, width, 1, 1).reshape(-1)

    def edge(self, at: str, stride: int) -> None:
        """A convolution of all channels, then a product."""
        width = self.x.width
        rows, _, side, _ = self.p.shape(at + "conv_exp.weight", 4)
        joined = self.window(self.x, Window(side, stride))
        p = self.p
        y = p.convolved(joined, at + "conv_exp", rows, width, side)
        y = p.activate(p.norm(y, at + "bn1"), _ACT)
        y = p.norm(self.pointwise(y, at + "conv_pwl"), at + "bn2")
        skips = stride == 1 and y.width == width
        middle = side * side // 2
        self.x = y + self.part(joined, 0, width, side, middle) if skips else y

    def inverted(self, at: str, stride: int, *, keeps: bool) -> None:
        """A product that makes a place wider and one that makes it narrower, with kernels of each
        channel before the first, between them, both or neither. keeps: beside what is made, the 2 x
        2 places of x that become one.
        """
        x, y = self.x, self.x
        width = x.width
        start, middle = at + "dw_start.conv", at + "dw_mid.conv"
        if self.p.has(start + ".weight"):
            side = self.p.shape(start + ".weight", 4)[3]
            wide = self.p.has(middle + ".weight")
            joined = self.window(x, Window(side, 1 if wide else stride))
            y = self.p.norm(self.depthwise(joined, start, width, side), at + "dw_start.bn")
            if wide or stride == 1:
                x = self.part(joined, 0, width, side, side * side // 2)
            elif keeps:
                self.keep(joined, 0, width, side)
        y = self.p.norm(self.pointwise(y, at + "pw_exp.conv"), at + "pw_exp.bn")
        y = self.p.activate(y, _ACT)
        if self.p.has(middle + ".weight"):
            side, wide_by = self.p.shape(middle + ".weight", 4)[3], y.width
            joined = self.window(self.p.concat(y, x), Window(side, stride))
            y = self.p.norm(self.depthwise(joined, middle, wide_by, side), at + "dw_mid.bn")
            y = self.p.activate(y, _ACT)
            if stride == 1:
                x = self.part(joined, wide_by, width, side, side * side // 2)
            elif keeps:
                self.keep(joined, wide_by, width, side)
        y = self.p.norm(self.pointwise(y, at + "pw_proj.conv"), at + "pw_proj.bn")
        y = self.scaled(at, y)
        self.x = x + y if stride == 1 and y.width == width else y

    def keep(self, joined: Value, start: int, count: int, side: int) -> None:
        """Keep the 2 x 2 places of a window that strides of 2 make one place of."""
        first = (side - 2) // 2
        places = [(first + i) * side + first + j for i in (0, 1) for j in (0, 1)]
        self.kept = self.p.concat(*(self.part(joined, start, count, side, at) for at in places))

    def attention(self, at: str) -> None:
        """Queries of each place, keys and values of one head: of each place, or of every second one
        under kernels of its channels.
        """
        x, width = self.x, self.x.width
        y = self.p.norm(x, at + "norm")
        keys, strided = [y, y], self.p.has(at + "attn.key.down_conv.weight")
        if strided:
            side = self.p.shape(at + "attn.key.down_conv.weight", 4)[3]
            joined = self.window(self.p.concat(y, x), Window(side, keyed=True))
            y, x = (self.part(joined, i * width, width, side, side * side // 2) for i in (0, 1))
            for i, name in enumerate(("key", "value")):
                made = self.depthwise(joined, f"{at}attn.{name}.down_conv", width, side)
                keys[i] = self.p.norm(made, f"{at}attn.{name}.norm")
        q = self.pointwise(y, at + "attn.query.proj")
        k, v = (
            self.pointwise(each, f"{at}attn.{name}.proj")
            for each, name in zip(keys, ("key", "value"))
        )
        if strided:
            # in a tape of their own, where every row is kept at once, rows are narrow
            rows, widths = (q, k, v, x), np.cumsum([0, q.width, k.width, v.width, width])
            joined = self.window(self.p.concat(*rows), Window(seen=True))
            q, k, v, x = (joined.columns(*pair) for pair in pairwise(widths.tolist()))
        p = self.p
        if q.width % k.width:
            p.fail(at + "attn.query.proj.weight", q.width, f"a multiple of {k.width} rows")
        heads = Heads(q.width // k.width, 1, k.width, v.width)
        scale = k.width**-0.5
        y = p.attend(q, k, v, heads=heads, rope=None, style="neox", scale=scale, spans=strided)
        self.x = x + self.scaled(at, self.pointwise(y, at + "attn.output.proj"))

    def fused(self) -> tuple[ImageBuilder, Value]:
        """The places of the last two stages side by side through a network, and the mean of as many
        of them as make 16 along a side.
        """
        if self.kept is None:
            self.p.fail(f"v.blk.{_STAGES - 1}.0", "no kernels", "a block that halves the places")
        width = self.kept.width // 4
        rows = [
            self.p.concat(self.kept.columns(i * width, (i + 1) * width), self.x) for i in range(4)
        ]
        self.p.mark_embedding(self.p.concat(*rows))
        self.p.windows.append(Window(spread=True))
        self.p, (y,) = self.p.projector(1, split=4)
        self.side *= 2
        self.p.most = self.side**2
        name = "v.msfa.ffn."
        y = self.p.norm(self.pointwise(y, name + "pw_exp.conv"), name + "pw_exp.bn")
        y = self.pointwise(self.p.activate(y, _ACT), name + "pw_proj.conv")
        y = self.p.norm(y, name + "pw_proj.bn")
        side = self.p.image // _STAGES**2 // _RESOLUTION
        if side > 1:
            joined = self.window(y, Window(side, side))
            y = self.p.measure(joined, "sum", heads=y.width) * (1.0 / side**2)
        return self.p, self.p.norm(y, "v.msfa.norm")
