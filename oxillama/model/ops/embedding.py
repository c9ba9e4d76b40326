"""Ops that make rows of tokens and positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxillama.model.ops.op import Frame, Op, RowDomain


class Embed(Op, name="embed"):
    """Rows of a table, by token or by position, times `scale`. For a token of -1, the row that the
    batch brings, or row `filler` of an additional table, or zeros if `filler` is "zeros". taken
    (vocabulary,): the token whose row each token takes.
    """

    reads = ()
    rows = RowDomain.ALL

    @staticmethod
    def meaning(f: Frame, *, out, table, scale=1.0, by="token", filler=None, taken=None) -> None:
        rows = f.weights(table)
        if by == "position":
            f.slots[out] = rows[f.positions] * np.float32(scale)
            return
        tokens = np.where(f.tokens < 0, 0 if filler in (None, "zeros") else filler, f.tokens)
        tokens = tokens if taken is None else taken[tokens]
        f.slots[out] = rows[tokens] * np.float32(scale)
        if f.embeds is not None and filler is None:
            brought = f.embeds[:, : rows.shape[1]]
            f.slots[out] = np.where(f.tokens[:, None] < 0, brought, f.slots[out])
        if filler == "zeros":
            f.slots[out] = np.where(f.tokens[:, None] < 0, np.float32(0), f.slots[out])


class Features(Op, name="features"):
    """`count` columns, from `start` on, of the rows that a batch brings: in place of tokens (zeros
    for token rows), or beside them.
    """

    reads = ()
    rows = RowDomain.ALL

    @staticmethod
    def width(widths: Sequence[int], params: dict) -> int:
        return params["count"]

    @staticmethod
    def meaning(f: Frame, *, out, start, count, beside=False) -> None:
        if f.embeds is None:
            f.slots[out] = np.zeros((len(f.tokens), count), np.float32)
            return
        brought = f.embeds[:, start : start + count]
        own = (f.tokens[:, None] < 0) | beside
        f.slots[out] = np.where(own, brought, np.float32(0))


class NgramEmbed(Op, name="ngram_embed"):
    """Rows of a table by hashes of the last tokens, one for each head side by side: `offsets` +
    (the exclusive or of the tokens, the row's own first, times `multipliers`) mod `sizes`.

    With n multipliers the first 1 / (n - 1) of the heads hash two tokens, the next ones three, and
    so on. A token `stop` before a row's own ends what is seen of the sequence and stands for every
    token that is missing; a token of -1 counts as `filler`. The n - 1 tokens before a step are
    state `state`.
    """

    reads = ()
    state = True
    rows = RowDomain.ALL

    @staticmethod
    def width(widths: Sequence[int], params: dict) -> int:
        return len(params["sizes"]) * params["table"].shape[1]

    @staticmethod
    def meaning(f: Frame, *, table, multipliers, sizes, offsets, stop, filler, state, out) -> None:
        past, n = len(multipliers) - 1, len(f.tokens)
        fresh = f.positions[0] == 0 or state not in f.states
        before = np.full(past, stop) if fresh else f.states[state]
        seen = np.concatenate([before, np.where(f.tokens < 0, filler, f.tokens)]).astype(np.int64)
        f.states[state] = seen[n:]
        mixed, ended, parts = seen[past:] * multipliers[0], np.zeros(n, bool), []
        per = len(sizes) // past
        for back in range(1, past + 1):
            earlier = seen[past - back : past - back + n]
            ended = ended | (earlier == stop)
            mixed = mixed ^ np.where(ended, stop, earlier) * multipliers[back]
            for head in range((back - 1) * per, back * per):
                parts.append(f.weights(table)[mixed % sizes[head] + offsets[head]])
        f.slots[out] = np.concatenate(parts, axis=1)
