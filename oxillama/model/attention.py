"""Attention as an architecture records it: rotations, attention over stored keys in its forms, keys
of blocks of tokens, and the choice of keys that rows see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from oxillama.errors import ModelError
from oxillama.model.recorder import Recorder, Value
from oxillama.model.rope import BASE, SCALING, Rope, rope_from_keys
from oxillama.model.state import Latent, Pages, Rows


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of one layer's attention: query heads, key/value heads, and floats per key and per
    value.
    """

    query: int
    kv: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """Keys of blocks of `ratio` tokens; layer: the number, among the layers that keep pages, of the
    one that keeps them.
    """

    layer: int
    ratio: int


@dataclass(frozen=True)
class Choice:
    """The keys that rows attend to: numbers of blocks of `ratio` tokens, as the ops `choose_blocks`
    and `choose_spans` write them; each, running: see the op `attend`.
    """

    numbers: Value
    ratio: int
    each: bool = False
    running: bool = False

    def params(self) -> dict[str, Any]:
        """As parameters of the op `attend`."""
        more = {name: True for name in ("each", "running") if getattr(self, name)}
        return dict(ratio=self.ratio, strict=True, **more)


class AttentionRecorder(Recorder):
    """Records attention, and what it looks at."""

    # None until the first attention asks the file, or the architecture says
    causal: bool | None = None

    def rope(
        self,
        dims: int,
        *,
        base_key: str = BASE,
        base: float = 10000.0,
        scaled: bool = True,
        sections: Sequence[int] | None = None,
    ) -> Rope:
        """The rotary embedding over `dims` floats of a head, with the scaling and frequency factors
        in force. sections: which of a token's positions each pair uses, if a batch brings several.
        """
        self.rotated_by |= {base_key, SCALING} if scaled else {base_key}
        factors = far = None
        if scaled and (
            self.has("rope_factors_long.weight") or self.has("rope_factors_short.weight")
        ):
            factors = self.vector("rope_factors_short.weight", dims // 2)
            far = self.vector("rope_factors_long.weight", dims // 2)
        elif scaled:
            factors = self.optional_vector("rope_freqs.weight", dims // 2)
        made = rope_from_keys(
            self.keys, dims, base_key=base_key, base=base, factors=factors, scaled=scaled, far=far
        )
        if sections is None:
            return made
        if len(sections) != dims // 2 or min(sections) < 0:
            raise ModelError(
                f"{self.arch}.rope.dimension_sections: found {len(sections)} pairs, wanted "
                f"{dims // 2}"
            )
        return replace(made, sections=np.asarray(sections, np.int32))

    def attend(
        self,
        q: Value,
        k: Value,
        v: Value,
        *,
        heads: Heads,
        rope: Rope | None,
        style: str,
        scale: float,
        # queries and keys before the scores
        q_norm: np.ndarray | None = None,
        k_norm: np.ndarray | None = None,
        eps: float = 0.0,
        norm_last: bool = False,
        rope_start: int = 0,
        temper: tuple[float, int, int] | None = None,
        # the keys that a row sees
        window: int = 0,
        chunk: int = 0,
        spans: bool = False,
        behind: bool = False,
        strict: bool = False,
        choice: Choice | None = None,
        most: int = 0,
        # the scores
        softcap: float = 0.0,
        sinks: np.ndarray | None = None,
        slopes: np.ndarray | None = None,
        relative: np.ndarray | None = None,
        # the store
        pages: int | None = None,
    ) -> Value:
        """Attention of q over the k and v stored so far: per-head norm, rope, store, softmax(scale
        * q.k) v. rope None: no rotation (NoPE). Causal, unless the file or `see_all` says
        otherwise; then a row sees its whole sequence.

        Before the scores: q_norm, k_norm: weights of RMS norms over each head, with eps; norm_last:
        they come after the rotation. rope_start: the float of each head where rotation begins.
        temper: (rate, span, offset), the growth of queries with their position (see the op
        `rope_store`).

        The keys that a row sees: window: those at a smaller distance, on both sides if attention is
        not causal; 0 for all. chunk: those from its last multiple on. spans: if attention is not
        causal, only those of the row's span in the batch; behind: only those behind it. strict:
        none after the row's own, even if a batch says that rows of an image see each other. choice:
        no others. most: the positions a sequence may have, if the model attends differently beyond;
        0 for any.

        Scores: softcap: their limit c in c tanh(score / c), 0 for none. sinks (query heads,): a
        score without a value; slopes (query heads,): ALiBi; relative (query heads, 2 n + 1): a bias
        for each distance key - query from -n to n.

        pages: the layer whose pages take k and v, which has others of the same shape for other
        tokens, or needs them no more; None for pages of its own.
        """
        if self.causal is None:
            self.causal = self.keys.flag("attention.causal", default=True)
        state = Pages(heads.kv, heads.key_dim, heads.value_dim, window or chunk)
        asked: dict[str, Any] = dict(
            sinks=sinks,
            slopes=slopes,
            relative=relative,
            rope_start=rope_start or None,
            norm_last=norm_last or None,
            temper=temper,
            chunk=chunk or None,
            spans=spans or None,
            behind=behind or None,
            strict=strict or None,
            most=most or None,
        )
        more = {name: value for name, value in asked.items() if value is not None}
        more |= choice.params() if choice else {}
        if not self.causal:
            if slopes is not None:
                raise ModelError(
                    f"{self.arch}.attention.causal: found False, wanted True for ALiBi"
                )
            if behind or strict:
                why = (
                    "a decoder behind an encoder" if behind else "rows that see ahead within images"
                )
                raise ModelError(
                    f"{self.arch}.attention.causal: found False, wanted True for {why}"
                )
            more["causal"] = False
        return self.record(
            "attention",
            (q, k, v, *self._table(rope), *([choice.numbers] if choice else [])),
            width=heads.query * heads.value_dim,
            stateful=True,
            heads=heads,
            layer=self.keeps(state) if pages is None else self._like(pages, state),
            rope_dims=rope.dims if rope else 0,
            style=style,
            q_scale=float(scale),
            window=window,
            softcap=float(softcap),
            q_norm=q_norm,
            k_norm=k_norm,
            eps=float(eps),
            **more,
        )

    def attend_stored(
        self,
        q: Value,
        *,
        heads: Heads,
        layer: int,
        rope: Rope | None,
        style: str,
        scale: float,
        window: int = 0,
        q_norm: np.ndarray | None = None,
        eps: float = 0.0,
        strict: bool = False,
        ahead: int = 0,
        spans: bool = False,
    ) -> Value:
        """Causal attention of q over keys that an earlier attention stored, or `store`; layer: its
        number among those that keep pages (`len(b.pages) - 1` after it). ahead: a row's own place
        is so many positions behind that of the last key it sees, which the batch gives as its
        position. spans: rows see only the keys of their span in the batch, which is before them.
        The other parameters are those of `attend`.
        """
        layer = self._like(layer, Pages(heads.kv, heads.key_dim, heads.value_dim, window))
        if 0 < window <= ahead:
            raise ModelError(
                f"{self.arch}: found a window of {window}, wanted more than {ahead}: rows see no "
                "key at their own place"
            )
        return self.record(
            "attention",
            (q, *self._table(rope)),
            width=heads.query * heads.value_dim,
            stateful=True,
            heads=heads,
            layer=layer,
            rope_dims=rope.dims if rope else 0,
            style=style,
            q_scale=float(scale),
            window=window - ahead if window else 0,
            softcap=0.0,
            q_norm=q_norm,
            k_norm=None,
            eps=float(eps),
            keep=False,
            **({"strict": True} if strict else {}),
            **({"spans": True} if spans else {}),
        )

    def store(
        self,
        k: Value,
        v: Value,
        *,
        heads: Heads,
        layer: int,
        window: int = 0,
        rope: Rope | None = None,
        k_norm: np.ndarray | None = None,
        eps: float = 0.0,
    ) -> None:
        """Keep k and v in the pages of a layer, for another attention to them; the parameters are
        those of `attend` (rope: pairs of halves).
        """
        self.record(
            "attention",
            (k, v, *self._table(rope)),
            width=1,
            stateful=True,
            heads=replace(heads, query=0),
            layer=self._like(layer, Pages(heads.kv, heads.key_dim, heads.value_dim, window)),
            rope_dims=rope.dims if rope else 0,
            style="neox",
            q_scale=1.0,
            window=0,
            softcap=0.0,
            q_norm=None,
            k_norm=k_norm,
            eps=float(eps),
        )

    def _like(self, layer: int, state: Pages) -> int:
        """The number of a layer; ModelError unless it keeps pages of this shape."""
        if self.pages[layer] != state:
            raise ModelError(
                f"{self.arch}: layer {layer} keeps {self.pages[layer]}, an attention to it needs "
                f"{state}"
            )
        return layer

    def attend_latent(
        self,
        q: Value,
        k: Value,
        *,
        heads: int,
        value: int,
        rope: Rope | None,
        style: str,
        scale: float,
        temper: tuple[float, int, int] | None = None,
        sinks: np.ndarray | None = None,
        window: int = 0,
        choice: Choice | None = None,
    ) -> Value:
        """Attention whose layer stores one row k per token for all heads, of which the first
        `value` floats are the value: the absorbed form of multi-head latent attention (DeepSeek-AI
        2024, DeepSeek-V2, section 2.1). rope rotates the last floats of k and of each head of q;
        the result has `value` floats per head. temper, sinks, window, choice: see `attend`.
        """
        shape = Heads(heads, 1, k.width, value)
        more: dict[str, Any] = {
            name: one for name, one in (("temper", temper), ("sinks", sinks)) if one is not None
        }
        more |= choice.params() if choice else {}
        return self.record(
            "attention",
            (q, k, *self._table(rope), *([choice.numbers] if choice else [])),
            width=heads * value,
            stateful=True,
            heads=shape,
            layer=self.keeps(Latent(k.width, value)),
            rope_dims=rope.dims if rope else 0,
            rope_start=k.width - rope.dims if rope else 0,
            style=style,
            q_scale=float(scale),
            window=window,
            softcap=0.0,
            q_norm=None,
            k_norm=None,
            eps=0.0,
            latent=True,
            **more,
        )

    def attend_blocks(
        self,
        q: Value,
        k: Value,
        *,
        heads: int,
        rope: Rope,
        scale: float,
        window: int,
        k_norm: np.ndarray,
        sinks: np.ndarray,
        blocks: Blocks | None = None,
        chosen: Value | None = None,
    ) -> Value:
        """Attention whose layer stores one row k per token, which is key and value of all heads,
        for a window of tokens, and also sees the keys of whole blocks of tokens, or of those the
        ones chosen. Heads of q, and k with a weight, are normed; their last floats are rotated, and
        back in the result.
        """
        (table,) = self._table(rope)
        more: dict[str, Any] = {}
        if blocks is not None:
            more = dict(blocks=blocks.layer, ratio=blocks.ratio)
        picks = () if chosen is None else (chosen,)
        y = self.record(
            "attention",
            (q, k, table, *picks),
            width=heads * k.width,
            stateful=True,
            heads=Heads(heads, 1, k.width, k.width),
            layer=self.keeps(Latent(k.width, k.width, window)),
            rope_dims=rope.dims,
            rope_start=k.width - rope.dims,
            style="norm",
            q_scale=float(scale),
            window=window,
            softcap=0.0,
            q_norm=np.ones(k.width, np.float32),
            k_norm=k_norm,
            eps=self.epsilon(),
            sinks=sinks,
            latent=True,
            **more,
        )
        start = k.width - rope.dims
        return self.op("turn", y, table, heads=heads, start=start, back=True)

    def turn(
        self, x: Value, rope: Rope, *, heads: int = 1, start: int, style: str = "norm"
    ) -> Value:
        """x with the floats that `rope` rotates in each head, from `start` on, rotated by the
        token's position.
        """
        return self.op("turn", x, *self._table(rope), heads=heads, start=start, style=style)

    def keep(self, x: Value) -> Blocks:
        """Keep the row x of each token, as the key of that token."""
        layer = self.keeps(Rows(x.width))
        self.record("compress", (x,), width=1, stateful=True, layer=layer)
        return Blocks(layer, 1)

    def compress(
        self,
        x: Value,
        gate: Value,
        *,
        bias: np.ndarray,
        weight: np.ndarray | None,
        rope: Rope | None,
        overlap: bool = False,
    ) -> Blocks:
        """Keep rows x and gates of each token, and make one key of each block of len(bias) tokens;
        the parameters are those of the ops `keep_rows` and `compress`.
        """
        dim, more = x.width // (1 + overlap), dict[str, Any]()
        if weight is not None:
            more = dict(weight=weight, eps=self.epsilon())
        if rope is not None:
            more |= dict(inv_freq=rope.inv_freq, mscale=rope.magnitude)
        if overlap:
            more["overlap"] = True
        return self._compressed((x, gate), len(bias), dim, bias=np.ascontiguousarray(bias), **more)

    def compress_mean(self, x: Value, *, ratio: int, weight: np.ndarray, rope: Rope) -> Blocks:
        """`compress` without gates: a key is the normalised mean of a block's rows, its first
        floats rotated by the position where the block begins. Rows carry that position, because a
        batch may give other positions than those of the sequence.
        """
        (table,) = self._table(rope)
        return self._compressed(
            (self.concat(x, table),),
            ratio,
            x.width,
            weight=weight,
            eps=self.epsilon(),
            gated=False,
            carried=table.width,
        )

    def _compressed(self, kept: tuple[Value, ...], ratio: int, dim: int, **more: Any) -> Blocks:
        if 16 % ratio and ratio % 16 or ratio < 2:
            raise ModelError(
                f"{self.arch}: blocks of {ratio} tokens, wanted a divisor or a multiple of 16"
            )
        if dim % min(ratio, 16):
            raise ModelError(
                f"{self.arch}: keys of {dim} floats for blocks of {ratio} tokens, wanted a "
                f"multiple of {min(ratio, 16)} floats"
            )
        window = (1 + more.get("overlap", False)) * ratio
        layer = self.keeps(Rows(sum(part.width for part in kept), window))
        into = self.keeps(Rows(dim // min(ratio, 16)))
        asked = dict(layer=layer, into=into, ratio=ratio, dim=dim, **more)
        self.record("compress", kept, width=1, stateful=True, **asked)
        return Blocks(into, ratio)

    def choose_blocks(
        self, q: Value, weights: Value | None, blocks: Blocks, *, heads: int, most: int
    ) -> Value:
        """The numbers of the blocks that each row attends to; the parameters are those of the
        op.
        """
        params: dict[str, Any] = dict(layer=blocks.layer, ratio=blocks.ratio, most=most)
        inputs = (q,) if weights is None else (q, weights)
        params |= dict(heads=heads) if weights is None else {}
        return self.record("choose_blocks", inputs, width=most, stateful=True, **params)

    def _table(self, rope: Rope | None) -> tuple[Value, ...]:
        if rope is None:
            return ()
        return (self.record("rope_table", (), width=2 * len(rope.inv_freq), rope=rope),)

    def see_all(self) -> None:
        """Every row sees its whole sequence. A file may only confirm this."""
        if self.keys.flag("attention.causal", default=False):
            raise ModelError(
                f"{self.arch}.attention.causal: found True, wanted False: every row of {self.arch} "
                "sees the whole text"
            )
        self.causal = False
