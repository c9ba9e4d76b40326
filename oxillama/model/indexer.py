"""Sparse attention: an indexer, with queries and keys of its own, chooses the keys that rows attend
to (DeepSeek-AI 2025, DeepSeek-V3.2, section 2.1). Rows that have no more keys than it would choose
see all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from oxillama.errors import ModelError
from oxillama.model.attention import Blocks, Choice
from oxillama.model.builder import Builder, Layer, Value
from oxillama.model.rope import Rope

EPSILON = 1e-6  # of the norm of an indexer's keys, in the published code


@dataclass(frozen=True, slots=True)
class Sizes:
    """Heads of queries, floats of a key, and how many keys (or blocks of them) are chosen."""

    heads: int
    width: int
    most: int

    @classmethod
    def of(cls, b: Builder) -> Sizes:
        """Those of the file."""
        return cls(
            b.keys.integer("attention.indexer.head_count", minimum=1, maximum=1 << 12),
            b.keys.integer("attention.indexer.key_length", minimum=1, maximum=1 << 12),
            b.keys.integer("attention.indexer.top_k", minimum=1, maximum=1 << 20),
        )

    def holds(self, b: Builder, rope: Rope | None) -> None:
        """ModelError if more floats are rotated than a key has."""
        if rope is not None and self.width < rope.dims:
            raise ModelError(
                f"{b.arch}.attention.indexer.key_length: found {self.width}, wanted {rope.dims} or "
                "more, the floats that are rotated"
            )


@dataclass(slots=True)
class LatentIndexer:
    """Chooses keys for latent attention; its queries are made of the latent of queries. Layers that
    the file gives no indexer of their own take the choice of the last layer that has one.

    style: how pairs are rotated, as of `attention`; last: the last floats are, not the first; eps:
    of the norm of keys; pool: tokens whose keys become one, weighted by a softmax over gates of
    each float; 1: none do; by_tensor: where the file does not say which layers have an indexer,
    those with its tensors do, otherwise all.
    """

    b: Builder
    style: str
    last: bool = False
    eps: float = EPSILON
    pool: int = 1
    by_tensor: bool = False
    sizes: Sizes = field(init=False)
    _made: Choice | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.sizes = Sizes.of(self.b)

    def choose(self, layer: Layer, x: Value, latent: Value, rope: Rope | None) -> Choice:
        """The choice of a layer whose rows are x, and their queries' latent."""
        b, sizes = self.b, self.sizes
        if not self._own(layer):
            if self._made is None:
                raise ModelError(
                    f"{b.keys.name('attention.indexer.types')}: layer {layer.index} takes the "
                    "choice of a layer before it, and none has an indexer"
                )
            return self._made
        sizes.holds(b, rope)
        q = layer.linear(latent, "indexer.attn_q_b", sizes.heads * sizes.width)
        name = layer.name("indexer.k_norm")
        k = layer.linear(x, "indexer.attn_k", sizes.width)
        k = b.norm(k, name, kind="layer", eps=self.eps)
        if rope is not None:
            start = sizes.width - rope.dims if self.last else 0
            q = b.turn(q, rope, heads=sizes.heads, start=start, style=self.style)
            k = b.turn(k, rope, start=start, style=self.style)
        weights = layer.linear(x, "indexer.proj", sizes.heads)
        keys = b.keep(k) if self.pool == 1 else self._pooled(layer, x, k)
        most = sizes.most // keys.ratio
        if not most:
            raise ModelError(
                f"{b.keys.name('attention.indexer.top_k')}: found {sizes.most}, wanted "
                f"{keys.ratio} or more, the keys of a block"
            )
        numbers = b.choose_blocks(q, weights, keys, heads=sizes.heads, most=most)
        self._made = Choice(numbers, keys.ratio)
        return self._made

    def _pooled(self, layer: Layer, x: Value, k: Value) -> Blocks:
        gate = layer.linear(x, "indexer_compressor_gate", k.width)
        bias = layer.array("indexer_compressor_ape.weight", self.pool, k.width)
        return self.b.compress(k, gate, bias=bias, weight=None, rope=None)

    def _own(self, layer: Layer) -> bool:
        """Whether the layer has an indexer of its own."""
        key, found = "attention.indexer.types", layer.has("indexer.attn_k.weight")
        if key not in self.b.keys:
            return found or not self.by_tensor or self._made is None
        kinds = self.b.keys.flags(key)
        if layer.index >= len(kinds):
            raise ModelError(
                f"{self.b.keys.name(key)}: found an array of {len(kinds)}, wanted "
                f"{self.b.n_layers} or more"
            )
        if not kinds[layer.index]:  # as published models keep them
            prefix = layer.name("indexer")
            self.b.used.update(name for name in self.b.reader.tensors if name.startswith(prefix))
        return kinds[layer.index]


def mean_choice(b: Builder, layer: Layer, x: Value, rope: Rope, ratio: int) -> Choice:
    """Whole blocks of `ratio` tokens, by the mean of their tokens' keys; heads count alike."""
    sizes = Sizes.of(b)
    sizes.holds(b, rope)
    q = layer.linear(x, "indexer.q_proj", sizes.heads * sizes.width)
    q = layer.norm(q, "indexer.q_norm", heads=sizes.heads)
    q = b.turn(q, rope, heads=sizes.heads, start=0, style="neox")
    k = layer.linear(x, "indexer.k_proj", sizes.width)
    weight = layer.vector("indexer.k_norm.weight", sizes.width)
    keys = b.compress_mean(k, ratio=ratio, weight=weight, rope=rope)
    if sizes.most < ratio:
        raise ModelError(
            f"{b.keys.name('attention.indexer.top_k')}: found {sizes.most}, wanted {ratio} or "
            "more, the keys of a block"
        )
    most = sizes.most // ratio
    return Choice(b.choose_blocks(q, None, keys, heads=sizes.heads, most=most), ratio)


def span_choice(b: Builder, layer: Layer, x: Value, rope: Rope, heads: int) -> Choice:
    """Blocks of keys for each of so many KV heads, by the key that fits its query best."""
    sizes, keys = Sizes.of(b), b.keys
    sizes.holds(b, rope)
    if sizes.heads != heads:
        raise ModelError(
            f"{keys.name('attention.indexer.head_count')}: found {sizes.heads}, wanted {heads}, "
            "one for each KV head"
        )
    ratio = keys.integer("attention.indexer.block_size", minimum=1, maximum=1 << 12)
    local = keys.integer("attention.indexer.local_blocks", minimum=0, maximum=sizes.most)
    q = layer.linear(x, "indexer.q_proj", heads * sizes.width)
    q = layer.norm(q, "indexer.q_norm", heads=heads)
    q = b.turn(q, rope, heads=heads, start=0, style="neox")
    k = layer.norm(layer.linear(x, "indexer.k_proj", sizes.width), "indexer.k_norm")
    k = b.turn(k, rope, start=0, style="neox")
    params = dict(layer=b.keep(k).layer, ratio=ratio, most=sizes.most, local=local)
    numbers = b.op("choose_spans", q, heads=heads, **params)
    return Choice(numbers, ratio, each=True, running=True)
