"""Packed matrices and the driver: shapes, segments, gates, bias, workers, and refusals at the
door.
"""

import numpy as np
import pytest

from oxillama._core.kernels import packable_formats
from oxillama._core.matmul import act_bytes, matmul, matmul_acts, quantise_rows
from oxillama._core.panels import PackedMatrix
from oxillama.errors import ConfigError, QuantError
from tests.reference.lane_cases import random_rows

SHAPES = {row[0]: row[1:3] for row in packable_formats()}


def packed(name, rows, cols, seed=0, num_threads=1):
    raw = random_rows(np.random.default_rng(seed), name, *SHAPES[name], rows, cols)
    return PackedMatrix(raw.reshape(-1), name, rows, cols, num_threads)


def numbers(m, cols, seed=0):
    return np.random.default_rng(seed).standard_normal((m, cols)).astype(np.float32)


@pytest.mark.parametrize("name", ["F32", "Q8_0", "Q4_K"])
def test_workers_never_change_a_bit(name):
    w, x = packed(name, 700, 512), numbers(150, 512)
    one = matmul(w, x, num_threads=1)
    for workers in (2, 3):
        assert matmul(w, x, num_threads=workers).tobytes() == one.tobytes()


@pytest.mark.parametrize("name,rows", [("Q8_0", 4200), ("Q4_K", 4200), ("Q6_K", 200), ("F16", 200)])
def test_how_many_rows_a_chunk_takes_never_changes_a_bit(name, rows):
    """A long range of x where panels are many, short ones where they are few, against rows that
    come 20 at a time.
    """
    w, x = packed(name, rows, 256), numbers(541, 256)
    few = np.vstack([matmul(w, x[i : i + 20]) for i in range(0, 541, 20)])
    for workers in (1, 3):
        assert matmul(w, x, num_threads=workers).tobytes() == few.tobytes()


@pytest.mark.parametrize("rows", [16, 700, 9000])
def test_every_panel_is_computed_once_however_few_rows_are_shared(rows):
    """Runs of panels, one for each of 1 to 70 workers (a team keeps 64 runs), some empty, some
    finished by others.
    """
    w, u, x = packed("Q4_0", rows, 64), packed("Q8_0", rows, 64, 1), numbers(3, 64)
    one, gated = matmul([w, u], x, num_threads=1), matmul([w, u], x, gate="silu", num_threads=1)
    assert one[:, :rows].tobytes() == matmul(w, x, num_threads=1).tobytes()
    for workers in (2, 3, 5, 70):
        assert matmul([w, u], x, num_threads=workers).tobytes() == one.tobytes()
        assert matmul([w, u], x, gate="silu", num_threads=workers).tobytes() == gated.tobytes()


@pytest.mark.parametrize("name", list(SHAPES))
def test_a_few_rows_have_the_bits_they_have_among_others(name):
    """Up to four rows read two panels at once, from halves of a worker's run or from gate and up;
    more rows read them one by one.
    """
    w, u, other, x = (
        packed(name, 149, 256),
        packed(name, 149, 256, 1),
        packed("Q4_K", 40, 256, 2),
        numbers(7, 256),
    )
    bias = numbers(1, 338, 3)[0]
    segments = [w, other, u] if w.act == other.act else [w, u]
    rows = sum(s.rows for s in segments)
    many, gated = (
        matmul(segments, x, bias=bias[:rows]),
        matmul([w, u], x, bias=bias[:298], gate="silu"),
    )
    for workers in (1, 3):
        for first, end in ((0, 1), (1, 3), (3, 6), (2, 6), (0, 5)):
            part = x[first:end]
            assert (
                matmul(segments, part, bias=bias[:rows], num_threads=workers).tobytes()
                == many[first:end].tobytes()
            )
            assert (
                matmul([w, u], part, bias=bias[:298], gate="silu", num_threads=workers).tobytes()
                == gated[first:end].tobytes()
            )


def test_packing_by_many_workers_gives_the_same_panels():
    one, many = packed("Q6_K", 1000, 1024), packed("Q6_K", 1000, 1024, num_threads=3)
    assert one.panels().tobytes() == many.panels().tobytes()
    assert one.nbytes == one.panels().size and one.panels().shape == (63, one.nbytes // 63)


def test_a_panel_is_no_larger_than_the_file_for_the_common_formats():
    for name in ("Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16"):
        block, size = SHAPES[name]
        assert packed(name, 64, 1024).nbytes == 64 * 1024 // block * size, name


def test_segments_write_one_after_another():
    q, k, v = packed("Q4_K", 48, 512, 1), packed("Q6_K", 21, 512, 2), packed("Q4_K", 7, 512, 3)
    x = numbers(9, 512)
    found = matmul([q, k, v], x, num_threads=2)
    assert found.tobytes() == np.hstack([matmul(q, x), matmul(k, x), matmul(v, x)]).tobytes()


@pytest.mark.parametrize("m", [1, 9, 140])
def test_a_gate_is_the_activation_of_the_first_times_the_second(m):
    g, u, x = packed("Q8_0", 40, 256, 1), packed("Q8_0", 40, 256, 2), numbers(m, 256)
    a, b = matmul(g, x), matmul(u, x)
    wide = a.astype(np.float64)
    found = matmul([g, u], x, gate="silu", num_threads=2)
    assert np.allclose(found, wide / (1 + np.exp(-wide)) * b, rtol=2e-6, atol=1e-6)
    assert (
        matmul([g, u], x, gate="relu", isa="scalar").tobytes() == (np.maximum(a, 0) * b).tobytes()
    )
    assert matmul([g, u], x, gate="silu", isa="scalar").tobytes() == found.tobytes()


def test_bias_is_added_once_and_before_the_gate():
    g, u, x = packed("Q5_0", 20, 64, 1), packed("Q5_0", 20, 64, 2), numbers(3, 64)
    bias = numbers(1, 40, 9)[0]
    assert matmul([g, u], x, bias=bias).tobytes() == (matmul([g, u], x) + bias).tobytes()
    a, b = matmul(g, x) + bias[:20], matmul(u, x) + bias[20:]
    assert matmul([g, u], x, bias=bias, gate="relu").tobytes() == (np.maximum(a, 0) * b).tobytes()


def test_rows_past_the_end_of_a_panel_are_never_written():
    w, x = packed("Q4_0", 5, 64), numbers(3, 64)
    block = np.full(64, 7, np.float32)
    matmul_acts([w], quantise_rows(x, w.act), out=block[:15].reshape(3, 5))
    assert (block[15:] == 7).all() and (block[:15] != 7).all()


def test_sizes_that_do_not_fit_are_refused():
    good = np.zeros(16 * 18 * 2, np.uint8)
    PackedMatrix(good, "Q4_0", 16, 64)
    for rows, cols in ((16, 63), (16, 32), (0, 64), (17, 64), (-1, 64), (1 << 40, 1 << 30)):
        with pytest.raises(QuantError):
            PackedMatrix(good, "Q4_0", rows, cols)
    with pytest.raises(QuantError, match="Q9_9"):
        PackedMatrix(good, "Q9_9", 16, 64)


def test_products_of_the_wrong_shape_are_refused():
    w, k = packed("Q4_0", 16, 256), packed("Q4_K", 16, 256)
    with pytest.raises(QuantError):
        matmul(w, numbers(2, 128))
    with pytest.raises(QuantError):
        matmul([w, k], numbers(2, 256))  # two activation formats
    with pytest.raises(QuantError):
        matmul([w], numbers(2, 256), gate="silu")
    with pytest.raises(QuantError):
        matmul(w, numbers(2, 256), bias=np.zeros(15, np.float32))
    with pytest.raises(ConfigError, match="sse"):
        matmul(w, numbers(2, 256), isa="sse")
    with pytest.raises(QuantError):
        act_bytes("q8_256", 128)


def test_no_rows_give_no_rows():
    assert matmul(packed("Q4_0", 16, 64), numbers(0, 64)).shape == (0, 16)
