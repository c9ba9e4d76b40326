"""RWKV 6 and 7 by the formulas of their papers, a token at a time in float64, and what their files
may leave out.
"""

import numpy as np
import pytest

from oxillama.gguf import GgufReader
from oxillama.model import load_model
from tests.model.invented import VOCAB, float64_tensors, invent
from tests.model.stepping import IDS, logits

HEADS, WIDTH = 4, 16


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def layer_norm(x, weight, bias, heads=1, eps=1e-5):
    parts = x.reshape(heads, -1)
    parts = parts - parts.mean(axis=1, keepdims=True)
    parts = parts / np.sqrt((parts * parts).mean(axis=1, keepdims=True) + eps)
    return parts.reshape(-1) * weight + bias


class Plain:
    """A file's tensors by name, and the state of one sequence."""

    def __init__(self, reader: GgufReader) -> None:
        self.tensors = float64_tensors(reader)
        self.last: dict[str, np.ndarray] = {}
        self.memory = {i: np.zeros((HEADS, WIDTH, WIDTH)) for i in range(4)}

    def norm(self, x, name, **more):
        t = self.tensors
        return layer_norm(x, t[f"{name}.weight"], t[f"{name}.bias"], **more)

    def back(self, key, x):
        """The row before less x."""
        before, self.last[key] = self.last.get(key, np.zeros_like(x)), x
        return before - x

    def run(self, ids, mix, gated):
        rows = []
        for token in ids:
            x = self.norm(self.tensors["token_embd.weight"][token], "token_embd_norm")
            self.first = None
            for i in range(4):
                t = lambda name: self.tensors[f"blk.{i}.{name}.weight"]  # noqa: B023, E731
                x = x + mix(self, i, t, self.norm(x, f"blk.{i}.attn_norm"))
                y = self.norm(x, f"blk.{i}.attn_norm_2")
                back = self.back(f"ffn {i}", y)
                k = t("channel_mix_key") @ (y + back * t("channel_mix_lerp_k"))
                out = t("channel_mix_value") @ np.maximum(k, 0) ** 2
                if gated:
                    r = t("channel_mix_receptance") @ (y + back * t("channel_mix_lerp_r"))
                    out = sigmoid(r) * out
                x = x + out
                if gated and i % 2:
                    x = x / 2  # rescale_every_n_layers is 2
            rows.append(self.tensors["output.weight"] @ self.norm(x, "output_norm"))
        return np.array(rows)


def finch(plain, i, t, x):
    """Peng et al. 2024, equations 11 to 19."""
    back = plain.back(f"att {i}", x)
    low = np.tanh(t("time_mix_w1") @ (x + back * t("time_mix_lerp_x"))).reshape(5, -1)
    shares = [t("time_mix_w2")[j] @ low[j] for j in range(5)]
    if i < 3:
        own = t("time_mix_lerp_fused").reshape(5, -1)
    else:
        own = [t(f"time_mix_lerp_{name}") for name in "wkvrg"]
    w, k, v, r, g = (x + back * (own[j] + shares[j]) for j in range(5))
    low = np.tanh(t("time_mix_decay_w1") @ w)
    w = np.exp(-np.exp(t("time_mix_decay") + t("time_mix_decay_w2") @ low))
    products = (t("time_mix_receptance") @ r, w, t("time_mix_key") @ k, t("time_mix_value") @ v)
    r, w, k, v = (part.reshape(HEADS, WIDTH) for part in products)
    y = np.empty((HEADS, WIDTH))
    for h in range(HEADS):
        new = np.outer(k[h], v[h])
        y[h] = r[h] @ (plain.memory[i][h] + np.diag(t("time_mix_first")[h]) @ new)
        plain.memory[i][h] = np.diag(w[h]) @ plain.memory[i][h] + new
    y = plain.norm(y.reshape(-1), f"blk.{i}.time_mix_ln", heads=HEADS, eps=64e-5)
    g = t("time_mix_gate") @ g
    return t("time_mix_output") @ (y * g * sigmoid(g))


def goose(plain, i, t, x):
    """Peng et al. 2025, section 4.1."""
    back = plain.back(f"att {i}", x)
    r, w, k, v, a, g = (x + back * share for share in t("time_mix_lerp_fused").reshape(6, -1))
    low = lambda name, x: t(f"time_mix_{name}2") @ x  # noqa: E731
    decay = low("w", np.tanh(t("time_mix_w1") @ w)) + t("time_mix_w0")
    decay = np.exp(-np.exp(-0.5) * sigmoid(decay))
    k, value = t("time_mix_key") @ k, t("time_mix_value") @ v
    if plain.first is None:
        plain.first = value
    else:
        share = sigmoid(low("v", t("time_mix_v1") @ v) + t("time_mix_v0"))
        value = value + (plain.first - value) * share
    rate = sigmoid(low("a", t("time_mix_a1") @ a) + t("time_mix_a0"))
    gate = low("g", sigmoid(t("time_mix_g1") @ g))
    removed = (k * t("time_mix_k_k")).reshape(HEADS, WIDTH)
    removed = removed / np.linalg.norm(removed, axis=1, keepdims=True)
    k = k * (1 + (rate - 1) * t("time_mix_k_a"))
    r = t("time_mix_receptance") @ r
    parts = (r, decay, k, value, rate)
    rh, wh, kh, vh, ah = (part.reshape(HEADS, WIDTH) for part in parts)
    y = np.empty((HEADS, WIDTH))
    for h in range(HEADS):
        change = np.diag(wh[h]) - np.outer(removed[h] * ah[h], removed[h])
        plain.memory[i][h] = change @ plain.memory[i][h] + np.outer(kh[h], vh[h])
        y[h] = rh[h] @ plain.memory[i][h]
    y = plain.norm(y.reshape(-1), f"blk.{i}.time_mix_ln", heads=HEADS, eps=64e-5)
    bonus = (rh * kh * t("time_mix_r_k").reshape(HEADS, WIDTH)).sum(axis=1, keepdims=True) * vh
    return t("time_mix_output") @ ((y + bonus.reshape(-1)) * gate)


@pytest.mark.parametrize("arch, mix", [("rwkv6", finch), ("rwkv7", goose)])
def test_logits_are_those_of_the_paper(arch, mix, tmp_path):
    reader = invent(tmp_path / "m.gguf", arch)
    wanted = Plain(reader).run(IDS[:30], mix, arch == "rwkv6")
    found = logits(load_model(reader), IDS[:30])
    assert found.shape == (30, VOCAB)
    assert np.abs(found - wanted).max() <= 2e-5 * np.abs(wanted).max()
