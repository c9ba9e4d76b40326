"""Attention: near float64, and the same bits whatever shares the step: rows, chunks, threads,
pages, sequences, instruction sets.
"""

import numpy as np
import pytest

from oxillama._core.tape import Batch
from oxillama._core.vectors import instruction_sets
from tests.core.attention_program import VOCAB, memory_for, program, rows_of, run, tokens_for
from tests.reference import rows_oracle as oracle

SHAPES = [
    dict(q_heads=4, kv_heads=2, k_dim=16),
    dict(q_heads=3, kv_heads=3, k_dim=64),
    dict(q_heads=8, kv_heads=1, k_dim=24, v_dim=40),
    dict(q_heads=14, kv_heads=2, k_dim=8),
    dict(q_heads=2, kv_heads=1, k_dim=5, v_dim=3),
    dict(q_heads=6, kv_heads=2, k_dim=80, v_dim=112),
    dict(q_heads=71, kv_heads=1, k_dim=16),
    dict(q_heads=64, kv_heads=1, k_dim=16),  # two rows are as many queries as a tile may have
    dict(q_heads=32, kv_heads=8, k_dim=64),
]


def expected(
    tokens,
    kv_type,
    *,
    q_heads,
    kv_heads,
    k_dim,
    v_dim=None,
    rope=None,
    style="neox",
    q_scale=1.0,
    q_norm=None,
    k_norm=None,
    **more,
):
    v_dim = k_dim if v_dim is None else v_dim
    n, width = len(tokens), q_heads * k_dim + kv_heads * (k_dim + v_dim)
    rows = rows_of(width)[tokens]
    q, k, v = np.split(rows, [q_heads * k_dim, (q_heads + kv_heads) * k_dim], axis=1)
    q, k, v = (
        q.reshape(n, q_heads, k_dim),
        k.reshape(n, kv_heads, k_dim),
        v.reshape(n, kv_heads, v_dim),
    )
    q, k = (x if w is None else oracle.rms_norm(x, w, 1e-6) for x, w in ((q, q_norm), (k, k_norm)))
    if rope is not None:
        q, k = (oracle.rotate(x, rope, np.arange(n), style, 2 * len(rope)) for x in (q, k))
    dtype = np.float16 if kv_type == "f16" else np.float32
    q, k, v = (q * q_scale).astype(np.float32), k.astype(np.float32).astype(dtype), v.astype(dtype)
    return oracle.attend(q, k, v, range(n), **more).reshape(n, -1)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s.values())))
@pytest.mark.parametrize("kv_type", ("f16", "f32"))
def test_attention_matches_float64(shape, kv_type):
    tokens = tokens_for(300)
    found = run(program(**shape), tokens, kv_type=kv_type)
    assert np.abs(found - expected(tokens, kv_type, **shape)).max() <= 3e-6


@pytest.mark.parametrize(
    "more",
    [
        dict(window=1),
        dict(window=17),
        dict(window=300),
        dict(softcap=3.0),
        dict(q_scale=0.25, window=40, softcap=5.0),
        dict(sinks=np.float32([0.5, -3, 2, 9])),
        dict(sinks=np.float32([0, 0, 0, 0]), window=9),
    ],
    ids=str,
)
def test_windows_soft_caps_and_sinks_match_float64(more):
    tokens = tokens_for(600, 1)
    found = run(program(**SHAPES[0], **more, max_rows=600), tokens)
    assert np.abs(found - expected(tokens, "f16", **SHAPES[0], **more)).max() <= 3e-6


@pytest.mark.parametrize("style", ("norm", "neox"))
@pytest.mark.parametrize("half", (8, 6))
def test_rotation_and_head_norms_match_float64(style, half):
    rng = np.random.default_rng(2)
    more = dict(
        rope=rng.random(half).astype(np.float32),
        style=style,
        q_scale=0.3,
        q_norm=rng.random(16).astype(np.float32),
        k_norm=rng.random(16).astype(np.float32),
    )
    tokens = tokens_for(90, 2)
    assert (
        np.abs(
            run(program(**SHAPES[0], **more), tokens, kv_type="f32")
            - expected(tokens, "f32", **SHAPES[0], **more)
        ).max()
        <= 3e-6
    )


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s.values())))
@pytest.mark.parametrize("kv_type", ("f16", "f32"))
def test_every_instruction_set_gives_the_same_bits(shape, kv_type):
    tokens = tokens_for(70, 3)
    results = {
        isa: run(
            program(**shape, isa=isa, softcap=4.0, window=50),
            tokens,
            kv_type=kv_type,
            chunks=[40, 1, 29],
        ).tobytes()
        for isa in instruction_sets()
    }
    assert len(set(results.values())) == 1


@pytest.mark.parametrize("more", [dict(), dict(window=37), dict(window=300, softcap=3.0)], ids=str)
@pytest.mark.parametrize(
    "shape",
    [SHAPES[0], SHAPES[2], SHAPES[6], SHAPES[7], SHAPES[8]],
    ids=lambda s: "-".join(map(str, s.values())),
)
def test_chunks_threads_pages_and_page_sizes_never_change_a_bit(shape, more):
    tokens = tokens_for(620, 4)
    whole = run(program(**shape, **more, max_rows=620), tokens)
    for workers, chunks, page_size, seed in (
        (2, None, 16, 5),
        (1, [1, 2, 61, 192, 300, 3, 61], 32, 6),
        (3, [255, 1, 1, 363], 16, 7),
        (2, 100, 48, 8),
    ):
        step = program(**shape, **more, num_threads=workers, max_rows=620)
        assert np.array_equal(
            run(step, tokens, chunks=chunks, page_size=page_size, seed=seed), whole
        ), (workers, chunks)


def test_deep_decode_by_splits_equals_the_whole_prefill():
    tokens = tokens_for(1400, 5)
    whole = run(program(**SHAPES[0], max_rows=1400), tokens)
    step = program(**SHAPES[0], num_threads=4)
    found = run(step, tokens, chunks=[512, 512] + [1] * 20 + [3] * 118 + [2])
    assert np.array_equal(found, whole)


@pytest.mark.parametrize("workers", (1, 2))
def test_companions_in_a_step_never_change_a_bit(workers):
    lengths = (1, 30, 257, 600, 5)
    sequences = [tokens_for(n, 10 + i) for i, n in enumerate(lengths)]
    alone = [run(program(**SHAPES[0], window=200), tokens, chunks=64) for tokens in sequences]
    step = program(**SHAPES[0], window=200, num_threads=workers)
    memory, _ = memory_for(step, 2000)
    ids = np.random.default_rng(0).permutation(100)
    tables, used = [], 0
    for n in lengths:
        tables.append(ids[used : used + n // 16 + 1].astype(np.int32))
        used += n // 16 + 1
    found, at, turn = [[] for _ in lengths], [0] * len(lengths), 0
    while any(at[i] < n for i, n in enumerate(lengths)):
        parts = [
            (i, min(n - at[i], (7, 1, 64, 90, 2)[(i + turn) % 5]))
            for i, n in enumerate(lengths)
            if at[i] < n
        ]
        turn += 1
        batch = Batch(
            np.concatenate([sequences[i][at[i] : at[i] + m] for i, m in parts]),
            np.concatenate([np.arange(at[i], at[i] + m) for i, m in parts]),
            [tables[i] for i, _ in parts],
            np.repeat(np.arange(len(parts)), [m for _, m in parts]),
            [],
        )
        step.run_until(batch, memory, len(step) - 1)
        rows, first = step.slot(1, batch.rows), 0
        for i, m in parts:
            found[i].append(rows[first : first + m])
            first, at[i] = first + m, at[i] + m
    for i in range(len(lengths)):
        assert np.array_equal(np.concatenate(found[i]), alone[i]), i


def test_unwritten_and_foreign_keys_never_reach_a_result():
    """Pages full of NaN and infinity: what lies behind a row's own position, or before its window,
    is never looked at.
    """
    tokens = tokens_for(400, 6)
    for more in (dict(), dict(window=20)):
        clean = run(program(**SHAPES[0], **more), tokens, chunks=[300, 1, 99])
        step = program(**SHAPES[0], **more, num_threads=2)
        memory, table = memory_for(step, len(tokens))
        poison = np.full(memory.page_bytes // 2, 0x7E00, np.uint16)
        poison[::3] = 0x7C00
        for page in range(memory.capacity):
            memory.load(page, poison.view(np.uint8))
        out = []
        for at, size in ((0, 300), (300, 1), (301, 99)):
            step.run_until(
                Batch(
                    tokens[at : at + size],
                    np.arange(at, at + size),
                    [table],
                    np.zeros(size, int),
                    [],
                ),
                memory,
                len(step) - 1,
            )
            out.append(step.slot(1, size))
        assert np.array_equal(np.concatenate(out), clean)


@pytest.mark.parametrize("broken", (1e6, np.nan))
@pytest.mark.parametrize("chunks", (None, 7))
def test_a_broken_value_spoils_only_the_rows_that_see_it(broken, chunks):
    rows, tokens = rows_of(4 * 16 + 2 * 32), tokens_for(100, 7) % (VOCAB - 1)
    clean = run(program(**SHAPES[0]), tokens, chunks=chunks)
    rows[VOCAB - 1] = rows[tokens[50]]
    # value 0 of KV head 0: infinite or NaN in f16
    rows[VOCAB - 1, 4 * 16 + 2 * 16] = broken
    tokens[50] = VOCAB - 1
    found = run(program(**SHAPES[0], rows=rows), tokens, chunks=chunks)
    assert np.array_equal(found[:50], clean[:50]) and np.array_equal(found[:, 32:], clean[:, 32:])
    assert not np.isfinite(found[50:, [0, 16]]).any() and np.array_equal(
        found[50:, 1:16], clean[50:, 1:16]
    )


def test_pages_outside_every_window_may_be_given_up():
    tokens = tokens_for(400, 8)
    whole = run(program(**SHAPES[0], window=40), tokens)
    step = program(**SHAPES[0], window=40)
    memory, table = memory_for(step, 400)
    for at, size in ((0, 300), (300, 100)):
        given = table.copy()
        if at:
            given[: (at - 39) // 16] = -1
        step.run_until(
            Batch(
                tokens[at : at + size], np.arange(at, at + size), [given], np.zeros(size, int), []
            ),
            memory,
            len(step) - 1,
        )
    assert np.array_equal(step.slot(1, 100), whole[300:])
