"""Ops of experts: the choice of them, products with their matrices, and the sum of the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from oxillama.model.ops.numeric import (
    activated,
    sigmoid,
    softmax,
)
from oxillama.model.ops.op import Frame, Op, RowDomain


class Route(Op, name="route"):
    """The experts of each row by their scores x: [ids | weights], `used` of each, best first.

    gating: "softmax" and "sigmoid" of all scores, "sqrt_softplus", the root of their softplus,
    "chosen" and "chosen_sigmoid" of the chosen ones only, or "mixer": for each choice, the softmax
    over the experts not chosen before whose score is close to the best (SparseMixer: Liu et al.
    2024, GRIN, section 2.1). bias affects the choice, not the weights. With `groups`, experts come
    only from the `groups_used` best groups; the score of a group is that of its best expert, or the
    sum of its "two" best (DeepSeek-AI 2024, DeepSeek-V3, section 2.1.2). share: the ids are divided
    by this number, because so many experts have one matrix in common. by_token (vocabulary, used):
    the experts of each token, whatever the scores, which are weights all the same (Roller et al.
    2021, "Hash Layers", section 3).
    """

    @staticmethod
    def width(widths: Sequence[int], params: dict) -> int:
        return 2 * params["used"]

    @staticmethod
    def meaning(
        f: Frame,
        *,
        x,
        out,
        used,
        gating,
        bias=None,
        groups=1,
        groups_used=1,
        group_by="best",
        normalise=False,
        scale=1.0,
        share=1,
        by_token=None,
    ) -> None:
        x = f.slots[x].astype(np.float64)
        p = {
            "softmax": softmax,
            "sigmoid": sigmoid,
            "sqrt_softplus": lambda x: np.sqrt(np.logaddexp(0, x)),
        }.get(gating, lambda x: x)(x)
        p = p.astype(np.float32)
        scores = p if bias is None else p + bias
        if groups > 1:
            best = -np.sort(-scores.reshape(len(x), groups, -1), axis=2)
            two = group_by == "two" and best.shape[2] > 1
            worth = best[..., 0] + best[..., 1] if two else best[..., 0]
            out_of_it = np.ones_like(worth, bool)
            kept = np.argsort(-worth, axis=1, kind="stable")[:, :groups_used]
            np.put_along_axis(out_of_it, kept, False, axis=1)
            hidden = np.repeat(out_of_it, best.shape[2], axis=1)
            scores = np.where(hidden, -np.inf, scores)
        ids = np.argsort(-scores, axis=1, kind="stable")[:, :used]
        if by_token is not None:
            ids = by_token[f.tokens if len(x) == len(f.tokens) else f.tokens[f.wanted]]
        weights = np.take_along_axis(p, ids, axis=1)
        if gating == "mixer":
            weights = _mixed(p.astype(np.float64), ids)
        elif gating.startswith("chosen"):
            weights = softmax(weights) if gating == "chosen" else sigmoid(weights)
        if normalise:
            weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), 2.0**-14)
        f.slots[out] = np.concatenate([ids // share, weights * scale], axis=1).astype(np.float32)


class Switch(Op, name="switch"):
    """The adapter in force at each row, chosen by tokens, as the route of one expert: [id | 1]; -1
    for none. numbers (vocabulary,): the adapter that a token switches to, counted from 1, 0 for
    none of them; -1 for tokens that do not switch. A row in place of a token does not switch.

    The last token that switches, the row's own among them, says which adapter is in force. With a
    gain it is the mean of their numbers, to nearest even, in which every other token counts as 0
    with a weight of exp(-2 gain) (SingleSwitch of IBM's granite-switch 0.0.8 to 0.1.0). What is
    kept for each token in layer `layer`: the number, or with a gain the sum of the numbers so far
    and how many there are.
    """

    reads = ()
    state = True
    rows = RowDomain.ALL

    @staticmethod
    def width(widths: Sequence[int], params: dict) -> int:
        return 2

    @staticmethod
    def meaning(f: Frame, *, numbers, layer, out, gain=None) -> None:
        begin, n = f.positions[0], len(f.tokens)
        told = np.where(f.tokens < 0, -1, numbers[f.tokens])
        parts = 1 if gain is None else 2
        held = f.keys.get(layer, np.zeros((0, 1, parts)))[:begin]
        now = held[-1, 0] if begin else np.zeros(parts)
        made, rows = np.empty((n, 1, parts)), np.ones((n, 2), np.float32)
        for at, (number, position) in enumerate(zip(told, f.positions)):
            if gain is None:
                now = now if number < 0 else np.array([number])
                force = now[0]
            else:
                now = now if number < 0 else now + [number, 1]
                others = (position + 1 - now[1]) * np.exp(-2 * gain)
                force = np.rint(now[0] / np.float32(now[1] + others)) if now[1] else 0
            made[at, 0], rows[at, 0] = now, force - 1
        f.keys[layer] = np.concatenate([held, made])
        f.slots[out] = rows


def _mixed(scores: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """SparseMixer's weights of the experts `ids` (rows, used), best first."""
    weights, left = np.empty(ids.shape), scores.copy()
    for k in range(ids.shape[1]):
        best = np.take_along_axis(scores, ids[:, k : k + 1], axis=1)
        near = (best - left) / np.maximum(np.abs(scores), best) <= 0.02
        weights[:, k] = 1 / np.where(near, np.exp(left - best), 0.0).sum(axis=1)
        np.put_along_axis(left, ids[:, k : k + 1], -np.inf, axis=1)
    return weights


def chosen(f: Frame, routes: Any, count: int, rows: int) -> np.ndarray:
    """The matrix of a stack for each part of each row, (rows, parts); without a route, part k uses
    matrix k.
    """
    if routes is None:
        return np.tile(np.arange(count), (rows, 1))
    return f.slots[routes][:, : f.slots[routes].shape[1] // 2].astype(int)


class Experts(Op, name="experts"):
    """Each part of a row times its matrix of a stack of `experts`; a row as wide as a matrix is
    used for every part. A part whose route is -1 has no matrix: zeros. Gated: of two stacks.
    """

    reads = ("x", "routes")

    @staticmethod
    def meaning(f: Frame, *, x, act, weights, experts, out, routes=None, used=0, gate=None) -> None:
        x = f.slots[x].astype(np.float64)
        ids = chosen(f, routes, experts, len(x))
        stacks = [f.weights(w).reshape(experts, -1, w.shape[1]).astype(np.float64) for w in weights]
        parts = x.reshape(len(x), -1, weights[0].shape[1])
        parts = np.broadcast_to(parts, (len(x), ids.shape[1], parts.shape[2]))
        y = [np.einsum("rkdc,rkc->rkd", w[ids], parts) for w in stacks]
        y = [np.where(ids[..., None] < 0, 0, part).astype(np.float32) for part in y]
        f.slots[out] = (y[0] if gate is None else activated(y[0], gate) * y[1]).reshape(len(x), -1)


class ExpertBias(Op, name="expert_bias"):
    """Each part of a routed row plus its expert's row of `bias` (experts, width)."""

    reads = ("x", "routes")

    @staticmethod
    def meaning(f: Frame, *, x, routes, bias, out) -> None:
        rows = f.slots[x]
        ids = chosen(f, routes, 0, len(rows))
        f.slots[out] = rows + bias[ids].reshape(len(rows), -1)


class Combine(Op, name="combine"):
    """The sum of a routed row's parts, weighted by its route."""

    reads = ("x", "routes")

    @staticmethod
    def width(widths: Sequence[int], params: dict) -> int:
        return widths[0] // (widths[1] // 2)

    @staticmethod
    def meaning(f: Frame, *, x, routes, out) -> None:
        used = f.slots[routes].shape[1] // 2
        parts = f.slots[x].reshape(len(f.slots[x]), used, -1)
        weights = f.slots[routes][:, used:, None]
        f.slots[out] = (parts.astype(np.float64) * weights).sum(axis=1).astype(np.float32)
