"""Keys and values kept as codes: what a page holds, attention over it near float64, and the same
bits whatever shares the step.
"""

import numpy as np
import pytest

from oxillama._core.pool import PageMemory
from oxillama._core.tape import Batch
from oxillama._core.vectors import instruction_sets
from oxillama.errors import ConfigError
from oxillama.model.ops.numeric import as_kept
from tests.core.attention_program import memory_for, program, rows_of, run, tokens_for
from tests.reference import rows_oracle as oracle

CODED = ("q8_0", "q4_0")
SHAPES = [
    dict(q_heads=4, kv_heads=2, k_dim=32),
    dict(q_heads=3, kv_heads=3, k_dim=64),
    dict(q_heads=8, kv_heads=1, k_dim=96, v_dim=32),
    dict(q_heads=71, kv_heads=1, k_dim=32, v_dim=160),
    dict(q_heads=32, kv_heads=8, k_dim=64),
]


def parts(rows, *, q_heads, kv_heads, k_dim, v_dim=None):
    """q, k and v of rows side by side, (rows, heads, dim) each."""
    v_dim = k_dim if v_dim is None else v_dim
    q, k, v = np.split(rows, [q_heads * k_dim, (q_heads + kv_heads) * k_dim], axis=1)
    return (
        q.reshape(len(rows), q_heads, k_dim),
        k.reshape(len(rows), kv_heads, k_dim),
        v.reshape(len(rows), kv_heads, v_dim),
    )


def as_activations(q):
    """Queries as the lanes floor's rows hold them: blocks of 32, round(x * (127 / largest)) times
    largest / 127.
    """
    blocks = q.reshape(*q.shape[:-1], -1, 32)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    return (
        np.rint(blocks * (np.float32(127) / largest)).astype(np.float64)
        * (largest / np.float32(127))
    ).reshape(q.shape)


def same_for_all(shape):
    return "-".join(map(str, shape.values()))


@pytest.mark.parametrize("kv_type", CODED)
@pytest.mark.parametrize("shape", SHAPES, ids=same_for_all)
def test_pages_hold_what_the_catalogue_says(shape, kv_type):
    step = program(**shape)
    memory, table = memory_for(step, 64, kv_type, seed=3)
    tokens = np.arange(40) % 64
    step.run_until(
        Batch(tokens, np.arange(40), [table], np.zeros(40, int), []), memory, len(step) - 1
    )
    _, keys, values = parts(rows_of(step.hidden_size)[tokens], **shape)
    for page in range(3):
        n, (k, v) = min(16, 40 - 16 * page), memory.read(int(table[page]), 0)
        assert np.array_equal(k[:n], as_kept(keys[16 * page : 16 * page + n], kv_type))
        assert np.array_equal(v[:n], as_kept(values[16 * page : 16 * page + n], kv_type))


def test_a_scale_that_fits_no_half_is_left_for_one_that_does():
    shape = dict(q_heads=4, kv_heads=2, k_dim=32)
    rows = rows_of(256)
    rows[:, 128:256:32] = 520_000.0  # / 7.5 is beyond the largest half, / 8 is not
    step = program(**shape, rows=rows)
    memory, table = memory_for(step, 16, "q4_0")
    step.run_until(Batch([5], [0], [table], [0], []), memory, len(step) - 1)
    _, keys, values = parts(rows[[5]], **shape)
    for found, wanted in zip(memory.read(int(table[0]), 0), (keys, values)):
        assert np.isfinite(found[:1]).all() and np.array_equal(found[:1], as_kept(wanted, "q4_0"))


@pytest.mark.parametrize("kv_type, worst", (("q8_0", 0.0055), ("q4_0", 0.095)))
def test_rounding_errors_are_those_of_the_format(kv_type, worst):
    x = np.random.default_rng(0).standard_normal((500, 4, 64)).astype(np.float32)
    assert np.sqrt(np.square(as_kept(x, kv_type) - x).mean()) <= worst


@pytest.mark.parametrize("kv_type", CODED)
@pytest.mark.parametrize("shape", SHAPES, ids=same_for_all)
def test_attention_over_codes_matches_float64(shape, kv_type):
    tokens = tokens_for(300)
    q, k, v = parts(rows_of(program(**shape).hidden_size)[tokens], **shape)
    wanted = oracle.attend(
        as_activations(q), as_kept(k, kv_type), as_kept(v, kv_type), range(300)
    ).reshape(300, -1)
    assert np.abs(run(program(**shape), tokens, kv_type=kv_type) - wanted).max() <= 3e-6


@pytest.mark.parametrize("kv_type", CODED)
@pytest.mark.parametrize("shape", SHAPES, ids=same_for_all)
def test_every_instruction_set_gives_the_same_bits_over_codes(shape, kv_type):
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


@pytest.mark.parametrize("kv_type", CODED)
@pytest.mark.parametrize("more", [dict(), dict(window=300, softcap=3.0)], ids=str)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[3], SHAPES[4]], ids=same_for_all)
def test_chunks_threads_and_pages_never_change_a_bit_over_codes(shape, more, kv_type):
    tokens = tokens_for(620, 4)
    whole = run(program(**shape, **more, max_rows=620), tokens, kv_type=kv_type)
    for workers, chunks, page_size, seed in (
        (2, None, 16, 5),
        (1, [1, 2, 61, 192, 300, 3, 61], 32, 6),
        (3, [255, 1, 1, 363], 16, 7),
    ):
        step = program(**shape, **more, num_threads=workers, max_rows=620)
        assert np.array_equal(
            run(step, tokens, chunks=chunks, kv_type=kv_type, page_size=page_size, seed=seed), whole
        ), (workers, chunks)


@pytest.mark.parametrize("kv_type", CODED)
def test_deep_decode_by_splits_equals_the_whole_prefill_over_codes(kv_type):
    tokens = tokens_for(1100, 5)
    whole = run(program(**SHAPES[0], max_rows=1100), tokens, kv_type=kv_type)
    found = run(
        program(**SHAPES[0], num_threads=4),
        tokens,
        chunks=[512, 512] + [1] * 20 + [3] * 18 + [2],
        kv_type=kv_type,
    )
    assert np.array_equal(found, whole)


@pytest.mark.parametrize("kv_type", CODED)
def test_codes_nobody_wrote_never_reach_a_result(kv_type):
    tokens = tokens_for(400, 6)
    clean = run(program(**SHAPES[0], window=20), tokens, chunks=[300, 1, 99], kv_type=kv_type)
    step = program(**SHAPES[0], window=20, num_threads=2)
    memory, table = memory_for(step, len(tokens), kv_type)
    for page in range(memory.capacity):
        # every scale a NaN
        memory.load(page, np.full(memory.page_bytes // 2, 0x7E00, np.uint16).view(np.uint8))
    out = []
    for at, size in ((0, 300), (300, 1), (301, 99)):
        step.run_until(
            Batch(
                tokens[at : at + size], np.arange(at, at + size), [table], np.zeros(size, int), []
            ),
            memory,
            len(step) - 1,
        )
        out.append(step.slot(1, size))
    assert np.array_equal(np.concatenate(out), clean)


@pytest.mark.parametrize("kv_type", CODED)
@pytest.mark.parametrize("broken", (np.inf, np.nan))
def test_a_broken_value_among_codes_spoils_only_the_rows_that_see_it(broken, kv_type):
    rows, tokens = rows_of(4 * 32 + 2 * 64), tokens_for(100, 7) % 63
    clean = run(program(**SHAPES[0]), tokens, kv_type=kv_type)
    rows[63] = rows[tokens[50]]
    # value 0 of KV head 0: its block has a scale of NaN
    rows[63, 4 * 32 + 2 * 32] = broken
    tokens[50] = 63
    found = run(program(**SHAPES[0], rows=rows), tokens, kv_type=kv_type)
    assert np.array_equal(found[:50], clean[:50]) and np.array_equal(found[:, 64:], clean[:, 64:])
    assert np.isnan(found[50:, :64]).all()


def filled(kv_type, page_size, layers):
    memory = PageMemory(layers, kv_type, page_size)
    memory.ensure(4)
    rng = np.random.default_rng(0)
    for page in range(4):
        memory.load(page, rng.integers(0, 60, memory.page_bytes, dtype=np.uint8))
    return memory


@pytest.mark.parametrize("kv_type", CODED)
@pytest.mark.parametrize("tokens", (0, 1, 15, 16, 17, 31, 48))
def test_copy_takes_the_first_tokens_of_codes_and_leaves_the_rest(tokens, kv_type):
    memory = filled(kv_type, 48, [(2, 32, 64), (1, 96, 160)])
    before = [memory.read(2, layer) for layer in range(2)]
    memory.copy(1, 2, tokens=tokens)
    for layer in range(2):
        for new, old, source in zip(memory.read(2, layer), before[layer], memory.read(1, layer)):
            assert np.array_equal(new[:tokens], source[:tokens]) and np.array_equal(
                new[tokens:], old[tokens:]
            )
            assert not np.array_equal(old, source)


@pytest.mark.parametrize("kv_type", CODED)
def test_export_and_load_of_codes_give_equal_bytes(kv_type):
    layers = [(2, 32, 64), (1, 96, 160)]
    memory, other = filled(kv_type, 32, layers), PageMemory(layers, kv_type, 32)
    other.ensure(9)
    other.load(8, memory.export(3))
    assert other.export(8) == memory.export(3) != memory.export(2)
    assert all(
        np.array_equal(a, b)
        for layer in (0, 1)
        for a, b in zip(memory.read(3, layer), other.read(8, layer))
    )


def test_a_page_of_codes_is_as_small_as_its_codes_and_scales():
    sizes = {
        kv_type: PageMemory([(8, 64, 64)] * 16, kv_type).page_bytes
        for kv_type in ("f32", "f16", *CODED)
    }
    assert sizes == {
        "f32": 16 << 16,
        "f16": 16 << 15,
        "q8_0": 16 * 16 * 1088,
        "q4_0": 16 * 16 * 576,
    }


@pytest.mark.parametrize("kv_type", CODED)
@pytest.mark.parametrize("dims", ((2, 80, 64), (2, 64, 40)))
def test_heads_that_are_no_whole_blocks_are_refused_by_name(dims, kv_type):
    with pytest.raises(
        ConfigError, match=f"{kv_type}.*kv_layers\\[1\\].*{[d for d in dims[1:] if d % 32][0]}"
    ):
        PageMemory([(2, 64, 64), dims], kv_type)
