"""Random GGUF rows for the lane tests, and what activation rows say as floats: numpy only, nothing
from the package under test.
"""

import numpy as np

# Where a block's f16 scales lie; everything else may be any bytes.
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q8_1": (0, 2),
    "IQ4_NL": (0,),
    "Q1_0": (0,),
    "Q2_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_XS": (0,),
    "IQ3_S": (0,),
    "IQ3_XXS": (0,),
    "IQ2_S": (0,),
    "IQ2_XS": (0,),
    "IQ2_XXS": (0,),
    "IQ1_S": (0,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}
FLOATS = {"Q8_K": 0}


def random_rows(rng, name, block, size, rows, cols):
    """uint8 (rows, bytes of a row): every code possible, scales small and of both signs."""
    if block == 1:
        x = rng.standard_normal((rows, cols)).astype(np.float32)
        if name == "BF16":
            return np.ascontiguousarray(x.view(np.uint16)[:, 1::2]).view(np.uint8)
        return (x if name == "F32" else x.astype(np.float16)).view(np.uint8)
    n = cols // block
    out = rng.integers(0, 256, (rows, n, size), dtype=np.uint8)
    for at in HALVES.get(name, ()):
        out[:, :, at : at + 2] = (
            (rng.standard_normal((rows, n, 1)) * 0.01).astype(np.float16).view(np.uint8)
        )
    if name in FLOATS:
        out[:, :, :4] = (rng.standard_normal((rows, n, 1)) * 0.01).astype(np.float32).view(np.uint8)
    if name == "MXFP4":
        out[:, :, 0] = rng.integers(105, 125, (rows, n))
    if name == "IQ1_M":  # the half is spread over the top nibbles of four words
        half = (rng.standard_normal((rows, n)) * 0.01).astype(np.float16).view(np.uint16)
        words = out[:, :, 48:56].copy().view(np.uint16)
        for k in range(4):
            words[:, :, k] = (words[:, :, k] & 0x0FFF) | ((half >> (4 * k)) & 15) << 12
        out[:, :, 48:56] = words.view(np.uint8)
    return out.reshape(rows, n * size)


def act_floats(rows, act, cols):
    """float64 (m, cols): the numbers that activation rows (uint8) stand for."""
    if act == "f32":
        return rows[:, : 4 * cols].copy().view(np.float32).astype(np.float64)
    if act == "bf16":
        return (
            (rows[:, : 2 * cols].copy().view(np.uint16).astype(np.uint32) << 16)
            .view(np.float32)
            .astype(np.float64)
        )
    block, size = (32, 48) if act == "q8_32" else (256, 320)
    blocks = rows[:, : cols // block * size].reshape(len(rows), cols // block, size)
    codes = blocks[:, :, :block].copy().view(np.int8).astype(np.float64)
    scale = blocks[:, :, block : block + 4].copy().view(np.float32).astype(np.float64)
    return (codes * scale).reshape(len(rows), cols)
