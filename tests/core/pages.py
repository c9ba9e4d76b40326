"""Memory of pages with numbers in it."""

import numpy as np

from oxillama._core.pool import PageMemory

LAYERS = [(2, 8, 8), (1, 24, 40), (3, 16, 5)]


def filled(kv_type="f16", page_size=16, pages=6, seed=0):
    memory = PageMemory(LAYERS, kv_type, page_size)
    memory.ensure(pages)
    rng = np.random.default_rng(seed)
    for page in range(pages):
        # small numbers in either type
        memory.load(page, rng.integers(0, 60, memory.page_bytes, dtype=np.uint8))
    return memory
