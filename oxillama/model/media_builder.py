"""Records an encoder of images or of audio: what is the same for both, a transformer over rows that
a batch brings, and the projector over groups of what it leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NoReturn, Self

import numpy as np

from oxillama.errors import ModelError
from oxillama.gguf import GgufReader
from oxillama.gguf.keys import Keys
from oxillama.model.blocks import attention
from oxillama.model.builder import Builder, Layer, Value
from oxillama.model.rope import Rope
from oxillama.model.tensors import Tensor

# A score so low that a key with it has no weight.
HIDDEN = -1e9


class MediaBuilder(Builder):
    """The argument of an encoder's function: keys, tensors and ops.

    The function records the encoder and marks what it leaves of each row (`mark_embedding`). Then
    it asks for the builder of the projector (`projector`) and marks the result of each group of
    rows there. medium: the part of `clip.<medium>.*` keys; prefix: of its tensors.
    """

    medium: ClassVar[str]
    prefix: ClassVar[str]

    def __init__(self, reader: GgufReader, kind: str, *, layerless: bool = False) -> None:
        """layerless: whether files of this kind have no layers."""
        self.reader, self.arch, self.kind = reader, kind, kind
        self.read: set[str] = set()
        self.keys = Keys(reader.metadata, f"clip.{self.medium}", read=self.read)
        self.root = Keys(reader.metadata, "clip", read=self.read)
        self.rotated_by: set[str] = set()
        self.nodes, self.pages, self.slots = [], [], []
        self.embedding = self.classifier = self.projection = None
        self.causal = False
        self.used: set[str] = set()
        self.missing: list[str] = []
        self.hidden = self.keys.integer("embedding_length", minimum=1, maximum=1 << 16)
        self.n_layers = self.depth = self.keys.integer(
            "block_count", minimum=0 if layerless else 1, maximum=1 << 12
        )
        self.vocab_size = 1  # the class token, where there is one
        self.group, self.parts, self.by_channel, self.split = 1, 1, False, 1
        self.most = 0  # rows of the tape; 0: as many as an image or a clip has
        # of all norms, in place of that of the file
        self.eps: float | None = None

    def epsilon(self, kind: str = "rms") -> float:
        """The epsilon of norms: `eps`, or that of the file."""
        return super().epsilon(kind) if self.eps is None else self.eps

    def fail(self, key: str, found: Any, wanted: str) -> NoReturn:
        """Raise ModelError for a value of a key."""
        raise ModelError(f"{key}: found {found!r:.60}, wanted {wanted}")

    def skip(self, layer: Layer) -> None:
        """Declare that a layer of the file is not used."""
        start = layer.name("")
        self.used.update(name for name in self.reader.tensors if name.startswith(start))

    def turned(self, x: Value, name: str, rows: int) -> Value:
        """x times the matrix `name.weight` (x.width, rows) as it stands in the file."""
        held = self.matrix(name + ".weight", x.width, rows)
        weight = Tensor(held.name, held.format, (rows, x.width), turned=True)
        return self.record("linear", (x,), width=rows, weight=weight, bias=None)

    def two_layers(self, x: Value, first: str, second: str, *, act: str = "gelu_erf") -> Value:
        """x through two products with an activation between them, as wide as the file has them."""
        x = self.activate(self.linear(x, first, self.shape(first + ".weight", 2)[0]), act)
        return self.linear(x, second, self.shape(second + ".weight", 2)[0])

    def mean(self, x: Value, count: int) -> Value:
        """The mean of `count` parts of a row."""
        width = x.width // count
        total = x.columns(0, width)
        for i in range(1, count):
            total = total + x.columns(i * width, (i + 1) * width)
        return total * (1.0 / count)

    def blocks(self) -> Iterator[Layer]:
        """The layers of the encoder."""
        return self.layers(self.prefix)

    def block(
        self,
        layer: Layer,
        x: Value,
        *,
        kind: str,
        act: str,
        rope: Rope | None = None,
        style: str = "neox",
        spans: bool = False,
        second: str = "ln2",
        network: Callable[[Layer, Value], Value] | None = None,
    ) -> Value:
        """A layer of a transformer whose norms come first; norms of the heads of queries and keys,
        a feed-forward network with a gate, and what both halves add scaled (`ls1`, `ls2`), where
        the file has that. second: the norm before that network; network: another one in its place.
        """
        y = attention(
            self,
            layer,
            layer.norm(x, "ln1", kind=kind),
            style=style,
            qk_norm="heads" if layer.has("attn_q_norm.weight") else None,
            rope=rope,
            spans=spans,
            output="attn_out",
        )
        x = x + self._scaled(layer, "ls1.weight", y)
        y = layer.norm(x, second, kind=kind)
        if network is not None:
            return x + network(layer, y)
        up, down = "ffn_up", "ffn_down"
        if self.shape(layer.name(up + ".weight"), 2)[1] != self.hidden:
            up, down = down, up  # older files name them the other way round
        width = self.shape(layer.name(up + ".weight"), 2)[0]
        raised = layer.linear(y, up, width)
        if layer.has("ffn_gate.weight"):
            raised = self.gate(layer.linear(y, "ffn_gate", width), raised, act=act)
        else:
            raised = self.activate(raised, act)
        return x + self._scaled(layer, "ls2.weight", layer.linear(raised, down, self.hidden))

    def _scaled(self, layer: Layer, name: str, x: Value) -> Value:
        """x times a vector of the layer, where there is one (Touvron et al. 2021, section 2)."""
        scale = layer.optional_vector(name, self.hidden)
        return x if scale is None else x * scale

    def hiding(self, mask: Value, heads: int) -> tuple[Value, Value]:
        """Further columns for each head of queries and of keys, which leave out the keys of rows
        with `HIDDEN` in place of 0 in `mask`, a number a row.
        """
        one = np.zeros(16, np.float32)
        one[0] = 1.0
        ones = self.repeat(mask * 0.0, 16) + one
        return self.repeat(ones, heads), self.repeat(self.repeat(mask, 16) * one, heads)

    def activation(self, gelu: str = "gelu_tanh") -> str:
        """The file's activation; gelu: the one that `clip.use_gelu` stands for."""
        # read both, so that both are accounted for
        uses_gelu = self.root.flag("use_gelu", default=False)
        if self.root.flag("use_silu", default=False):
            return "silu"
        return gelu if uses_gelu else "gelu_quick"

    def projector(
        self, group: int, parts: int = 1, *, by_channel: bool = False, split: int = 1
    ) -> tuple[Self, list[Value]]:
        """The builder of the projector, and its rows: for each of `parts` of what was marked as the
        embedding, those of `group` rows side by side; or all first numbers of them, all second
        ones and so on (by_channel). split: rows that each row is cut into before. An encoder that
        goes on over joined rows records further layers in that builder, marks what comes of them,
        and asks it for the projector.
        """
        if self.embedding is None:
            raise ModelError(
                f"{self.kind}: found no marked embedding, wanted one before the projector"
            )
        head = type(self).__new__(type(self))
        vars(head).update(vars(self))
        head.nodes, head.pages, head.slots, head.embedding = [], [], [], None
        head.projection, head.most = None, 0
        self.group, self.parts, self.by_channel, self.projection = group, parts, by_channel, head
        self.split = split
        width = group * self.embedding.width // parts // split
        return head, [head.features(i * width, width) for i in range(parts)]
