"""A block's bytes and floats depend on the block alone: not on the instruction set, the threads, or
the blocks beside it.
"""

import os

import numpy as np
import pytest

from oxillama._core.codecs import quantise_rows, unpack_rows
from oxillama._core.kernels import isa_available
from oxillama.errors import ConfigError
from oxillama.quant import formats

FAST = [isa for isa in isa_available() if isa != "scalar"]


def rows_of_many_kinds(columns):
    """Rows that reach the corners of the searches: nothing, all alike, one sign, sparse, heavy
    tails, tiny, one outlier, ternary.
    """
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((12, columns)).astype(np.float32)
    x[1] = 0
    x[2] = 0.37
    x[3] = np.abs(x[3])
    x[4] = -np.abs(x[4])
    x[5] *= rng.random(columns) < 0.05
    x[6] = rng.standard_t(1.5, columns).clip(-900, 900)
    x[7] *= 1e-7
    x[8] *= 1e-31
    x[9, columns // 2] = 1500
    x[10] = rng.choice(np.float32([-1, 0, 1]), columns)
    return x, np.float32(rng.uniform(0, 4, columns) * (rng.random(columns) < 0.8))


def packed(x, name, weights, isa, threads=1):
    out = np.empty((len(x), formats()[name].row_bytes(x.shape[1])), np.uint8)
    quantise_rows(x, name, weights, out, threads, isa=isa)
    return out


@pytest.mark.parametrize("name", list(formats()))
def test_every_instruction_set_writes_and_reads_the_same_bytes(name):
    block = formats()[name].columns
    for blocks in (1, 3, 9) if block > 64 else (8, 17, 40):  # more and fewer than a sheet takes
        x, weights = rows_of_many_kinds(block * blocks)
        for importances in (None, weights):
            law = packed(x, name, importances, "scalar")
            floats = np.empty_like(x)
            unpack_rows(law, name, floats, 1, isa="scalar")
            for isa in FAST:
                assert packed(x, name, importances, isa, 2).tobytes() == law.tobytes(), isa
                found = np.empty_like(x)
                unpack_rows(law, name, found, 2, isa=isa)
                assert found.tobytes() == floats.tobytes(), isa


def test_few_numbers_are_unpacked_without_asking_the_system_for_cores(monkeypatch):
    """That and starting threads takes longer than one thread needs for 2^18 numbers."""
    asked = []
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda pid: asked.append(pid) or {0}, raising=False
    )
    monkeypatch.delenv("OXILLAMA_NUM_THREADS", raising=False)
    for count, times in ((8, 0), (256, 0), (257, 1)):
        rows = np.random.default_rng(count).integers(0, 256, (count, 1024 // 32 * 34), np.uint8)
        found, alone = (np.zeros((count, 1024), np.float32) for _ in range(2))
        unpack_rows(rows, "Q8_0", found)
        assert len(asked) == times, count
        unpack_rows(rows, "Q8_0", alone, 1)
        assert found.tobytes() == alone.tobytes()


@pytest.mark.parametrize("name", list(formats()))
def test_a_block_does_not_see_the_blocks_beside_it(name):
    kind = formats()[name]
    if kind.columns == 1:
        return
    x, weights = rows_of_many_kinds(kind.columns * 5)
    whole = packed(x, name, weights, None)
    for at in range(5):
        columns, stored = (
            slice(at * kind.columns, (at + 1) * kind.columns),
            slice(at * kind.block_bytes, (at + 1) * kind.block_bytes),
        )
        alone = packed(
            np.ascontiguousarray(x[:, columns]), name, np.ascontiguousarray(weights[columns]), None
        )
        assert alone.tobytes() == whole[:, stored].tobytes(), at


def test_an_instruction_set_that_is_not_there_is_refused(monkeypatch):
    x = np.ones((1, 32), np.float32)
    with pytest.raises(ConfigError, match="isa: found 'avx1024'"):
        packed(x, "Q4_0", None, "avx1024")
    monkeypatch.setenv("OXILLAMA_ISA", "avx1024")
    with pytest.raises(ConfigError, match="OXILLAMA_ISA: found 'avx1024'"):
        packed(x, "Q4_0", None, None)
