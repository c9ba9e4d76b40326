"""How numbers are rearranged between a Hugging Face tensor and its GGUF twin.

Each function takes an array (rows outermost) and the hyper-parameters. None computes but those
that say so: bfloat16 numbers pass through as their bits.
"""

from __future__ import annotations

import numpy as np

from oxillama.convert.family import Hyper


def paired(x: np.ndarray, heads: int) -> np.ndarray:
    """Rows of heads whose rotation turns (i, i + d/2), reordered for one that turns (2i, 2i +
    1).
    """
    half = x.shape[0] // heads // 2
    return x.reshape(heads, 2, half, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def paired_queries(x: np.ndarray, h: Hyper) -> np.ndarray:
    return paired(x, h.heads)


def paired_keys(x: np.ndarray, h: Hyper) -> np.ndarray:
    return paired(x, h.kv_heads)


def packed_qkv(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All q, all k, all v (Baichuan), q and k paired."""
    q, k, v = np.split(x, 3)
    return paired(q, h.heads), paired(k, h.kv_heads), v


def transposed(x: np.ndarray, h: Hyper) -> np.ndarray:
    """GPT-2's Conv1D holds (in, out)."""
    return x.T if x.ndim == 2 else x


def squeezed(x: np.ndarray, h: Hyper) -> np.ndarray:
    """A depthwise convolution (channels, 1, width) without its middle axis."""
    return x.reshape(x.shape[0], x.shape[-1])


def heads_apart(x: np.ndarray, h: Hyper) -> np.ndarray:
    """Rows of (head, [q k v], dim) as all q, all k, all v (BLOOM, GPT-NeoX)."""
    rest = x.shape[1:]
    return x.reshape(h.heads, 3, -1, *rest).swapaxes(0, 1).reshape(x.shape)


def groups_apart(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of (group, [its q heads, k, v], dim) as q, k and v (Falcon, InternLM2)."""
    groups, per = h.kv_heads, h.heads // h.kv_heads
    rest = x.shape[1:]
    x = x.reshape(groups, per + 2, -1, *rest)
    q, k, v = x[:, :per], x[:, per], x[:, per + 1]
    return q.reshape(-1, *rest), k.reshape(-1, *rest), v.reshape(-1, *rest)


def negative_exponential(x: np.ndarray, h: Hyper) -> np.ndarray:
    """A of a state-space layer from its logarithm (computes)."""
    return (-np.exp(x.astype(np.float64))).astype(np.float32)


def plus_one(x: np.ndarray, h: Hyper) -> np.ndarray:
    """A norm's weight whose layer adds one (computes)."""
    return x + np.float32(1)


def halves(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, np.ndarray]:
    """Gate and up side by side along the rows of each expert (experts, 2 * width, hidden)."""
    middle = x.shape[1] // 2
    return x[:, :middle], x[:, middle:]


def halves_2d(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, np.ndarray]:
    """Gate and up of one feed-forward, one under the other (2 * width, hidden)."""
    middle = len(x) // 2
    return x[:middle], x[middle:]


def latent_keys_values(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, np.ndarray]:
    """kv_b_proj as the key part, transposed per head, and the value part (absorbed attention)."""
    heads, nope = h.heads, h.integer("qk_nope_head_dim")
    parts = x.reshape(heads, -1, x.shape[-1])
    return parts[:, :nope].transpose(0, 2, 1), parts[:, nope:]


def interleaved_gate_up(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, np.ndarray]:
    """gpt-oss: columns gate, up, gate, up ... of (experts, hidden, 2 * width), or of its bias."""
    if x.ndim == 2:
        return x[:, ::2], x[:, 1::2]
    return x[:, :, ::2].transpose(0, 2, 1), x[:, :, 1::2].transpose(0, 2, 1)


def experts_transposed(x: np.ndarray, h: Hyper) -> np.ndarray:
    """(experts, in, out) as (experts, out, in)."""
    return x if x.ndim == 2 else x.transpose(0, 2, 1)


def delta_projections(x: np.ndarray, h: Hyper) -> tuple[np.ndarray, np.ndarray]:
    """Qwen3-Next: rows of (key head, [q, k, its values, its gates]) as q k v side by side, and
    z.
    """
    groups, keys = h.integer("linear_num_key_heads"), h.integer("linear_key_head_dim")
    per = h.integer("linear_num_value_heads") // groups
    values = per * h.integer("linear_value_head_dim")
    rest = x.shape[1:]
    q, k, v, z = np.split(x.reshape(groups, -1, *rest), np.cumsum([keys, keys, values]), axis=1)
    qkv = np.concatenate([part.reshape(-1, *rest) for part in (q, k, v)])
    return qkv, z.reshape(-1, *rest)
