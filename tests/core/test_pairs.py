"""Dots of bf16 pairs: what they are, number by number, on every instruction set; and the rows of
activations that enter them.
"""

from fractions import Fraction

import numpy as np
import pytest

from oxillama._core.kernels import cpu_info, lanes_available
from oxillama._core.matmul import act_bytes, matmul, matmul_acts, quantise_rows
from oxillama._core.panels import PackedMatrix

LEAST = Fraction(2) ** -126


def brains(x):
    """uint16: the upper halves of float32 numbers."""
    return (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def packed(w):
    """A matrix of bf16 numbers, given as uint16 (rows, cols)."""
    return PackedMatrix(np.ascontiguousarray(w).view(np.uint8).reshape(-1), "BF16", *w.shape)


def acts(x):
    """Activation rows that hold exactly these uint16 numbers (rows, cols)."""
    out = np.zeros((len(x), act_bytes("bf16", x.shape[1]) // 2), np.uint16)
    out[:, : x.shape[1]] = x
    return out.view(np.uint8)


def dots(w, x, isa, threads=1):
    return matmul_acts([packed(w)], acts(x), isa=isa, num_threads=threads)


def rounded(v):
    """A fraction to 24 bits, to nearest even, as if exponents had no end; then zero if below
    2^-126.
    """
    if not v:
        return v
    e = 0
    size = abs(v)
    while size >= 2:
        size, e = size / 2, e + 1
    while size < 1:
        size, e = size * 2, e - 1
    found = Fraction(round(size * 2**23), 2**23) * Fraction(2) ** e * (1 if v > 0 else -1)
    return found if abs(found) >= LEAST else Fraction(0)


def told(w, x):
    """The definition: pairs of columns ascending, of each the odd one first; uint16 rows of w and
    x.
    """

    def number(h):
        return (
            Fraction(0)
            if not h & 0x7F80
            else Fraction(float(np.array([int(h) << 16], np.uint32).view(np.float32)[0]))
        )

    acc = Fraction(0)
    pad = [*zip(w, x), (0, 0)][: len(w) + len(w) % 2]
    for k in range(0, len(pad), 2):
        for a, b in (pad[k + 1], pad[k]):
            acc = rounded(number(a) * number(b) + acc)
    return np.float32(float(acc))


@pytest.mark.parametrize("isa", lanes_available())
def test_an_output_is_one_chain_of_pairs_the_odd_column_first(isa):
    rng = np.random.default_rng(0)
    for cols in (1, 2, 7, 40):
        w = brains(rng.standard_normal((18, cols)) * 2.0 ** rng.integers(-9, 9, (18, cols)))
        x = brains(rng.standard_normal((3, cols)))
        assert np.array_equal(dots(w, x, isa), [[told(row, one) for row in w] for one in x]), cols


@pytest.mark.parametrize("isa", lanes_available())
def test_what_lies_below_the_least_normal_number_is_zero_after_it_is_rounded(isa):
    big, at = 2.0**-63, 2.0**-126
    for even, wanted in (
        (0.0, at),
        (-(2.0**-152), at),
        (-(2.0**-151), at),
        (-(2.0**-150) * 1.5, 0.0),
        (-(2.0**-150), 0.0),
        (-(2.0**-149), 0.0),
        (-at, 0.0),
        (2.0**-149, at * (1 + 2.0**-23)),
        (-(2.0**-126) * 2, -at),
    ):
        w, x = np.zeros((16, 2), np.float32), np.zeros((1, 2), np.float32)
        w[:, 1], x[:, 1] = big, big
        w[:, 0], x[:, 0] = even * 2.0**60, 2.0**-60
        assert (dots(brains(w), brains(x), isa) == np.float32(wanted)).all(), even
    # a subnormal weight counts as zero, and so does such an activation
    small = np.full((16, 2), 2.0**-127, np.float32)
    assert not dots(brains(small), brains(np.full((1, 2), 2.0**100, np.float32)), isa).any()
    assert not dots(brains(np.full((16, 2), 2.0**100, np.float32)), brains(small[:1]), isa).any()


def test_numbers_about_the_least_normal_one_have_the_same_bits_everywhere():
    rng = np.random.default_rng(1)
    edges = 0
    for cols in (2, 3, 4, 6):
        w, x = (
            rng.integers(0, 1 << 16, shape).astype(np.uint16) & 0x807F
            for shape in ((48, cols), (20, cols))
        )
        w |= (np.where(np.arange(cols) % 2, 64, rng.integers(20, 60, w.shape)) << 7).astype(
            np.uint16
        )
        x |= (np.where(np.arange(cols) % 2, 64, rng.integers(45, 75, x.shape)) << 7).astype(
            np.uint16
        )
        w[::2] &= 0xFF80
        x[::2] &= 0xFF80
        law = dots(w, x, "scalar")
        edges += (np.abs(law) == 2.0**-126).sum()
        for isa in lanes_available():
            for m in (1, 2, 3, 4, 8, 9, 20):
                assert dots(w, x[:m], isa, threads=2).tobytes() == law[:m].tobytes(), (isa, cols, m)
    assert edges > 100


def test_odd_columns_end_in_a_pair_with_zero_on_every_instruction_set():
    rng = np.random.default_rng(2)
    for cols in (1, 5, 33, 301):
        w = brains(rng.standard_normal((37, cols)))
        x = rng.standard_normal((14, cols)).astype(np.float32)
        law = matmul(packed(w), x, isa="scalar")
        even = matmul(
            packed(np.hstack([w, np.zeros((37, 1), np.uint16)])),
            np.hstack([x, np.ones((14, 1), np.float32)]),
            isa="scalar",
        )
        assert law.tobytes() == even.tobytes()
        for isa in lanes_available():
            for m in (1, 6, 14):
                assert matmul(packed(w), x[:m], isa=isa).tobytes() == law[:m].tobytes(), (
                    isa,
                    cols,
                    m,
                )


@pytest.mark.parametrize("isa", lanes_available())
def test_activations_become_bf16_to_nearest_even(isa):
    bits = np.array(
        [
            0x3F800000,
            0x3F807FFF,
            0x3F808000,
            0x3F808001,
            0x3F818000,
            0xBF818000,
            0x7F7F7FFF,
            0x7F7F8000,
            0x7F800000,
            0xFF800000,
            0x7F800001,
            0xFFFFFFFF,
            0x00800000,
            0x007FFFFF,
            0x80000001,
            0x00000000,
            0x80000000,
            0x80800000,
            0x00FFFFFF,
        ],
        np.uint32,
    )
    near = [
        0x3F80,
        0x3F80,
        0x3F80,
        0x3F81,
        0x3F82,
        0xBF82,
        0x7F7F,
        0x7F80,
        0x7F80,
        0xFF80,
        0x7FC0,
        0x7FC0,
        0x0080,
        0x0000,
        0x0000,
        0x0000,
        0x0000,
        0x8080,
        0x0100,
    ]
    found = quantise_rows(bits.view(np.float32)[None], "bf16", isa).view(np.uint16)[0]
    assert found[: len(near)].tolist() == near and not found[len(near) :].any()


@pytest.mark.parametrize("isa", lanes_available())
def test_a_dot_leaves_the_processor_as_it_was(isa):
    """Subnormal numbers of other formats still count after a dot whose processor was told to flush
    them.
    """
    dots(np.ones((16, 2), np.uint16), np.ones((20, 2), np.uint16), isa)
    w, x = np.full((16, 2), 2.0**-100, np.float32), np.full((20, 2), 2.0**-30, np.float32)
    found = matmul(PackedMatrix(w.view(np.uint8).reshape(-1), "F32", 16, 2), x, isa=isa)
    assert (found == np.float32(2.0**-129)).all()


def test_bf16_dots_run_where_the_processor_has_them():
    assert ("avx512bf16" in lanes_available()) == ("avx512_bf16" in cpu_info()["features"])
