"""What published code of draft models is written out with, in float64, and one step of a model."""

import numpy as np

from oxillama._core.tape import Batch

TOKENS = np.array([3, 70, 21, 8, 40, 40, 5, 66, 12], np.int32)


def stepped(model, *, kept=None, embeds=None, tokens=TOKENS, wanted=None, output="logits"):
    """(the output's wanted rows, carried rows) of one step from nothing."""
    memory = model.page_memory(kv_type="f32")
    memory.ensure(1)
    every = np.arange(len(tokens), dtype=np.int32)
    batch = Batch(
        tokens,
        every,
        [np.zeros(1, np.int32)],
        np.zeros(len(tokens), np.int32),
        every if wanted is None else wanted,
        kept=kept,
        embeds=embeds,
    )
    out = model.program.step(batch, memory, output=output).copy()
    return out, model.program.carried().copy() if model.program.carries else None


def floats(reader):
    """The float32 tensors of a file by name, as float64."""
    return {
        name: reader.data(name).view("<f4").reshape(info.shape).astype(np.float64)
        for name, info in reader.tensors.items()
        if info.type_name == "F32"
    }


def rms(x, weight=1.0, eps=1e-5):
    """Rows under a norm of their root mean square."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))
