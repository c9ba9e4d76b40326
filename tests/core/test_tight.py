"""Tight panels: 16-bit floats in fewer bytes where they allow it, and the bits of plain panels in
every product.
"""

import numpy as np
import pytest

from oxillama._core.batch import CancelFlag
from oxillama._core.kernels import lanes_available
from oxillama._core.matmul import matmul
from oxillama._core.panels import PackedMatrix, Units, pack_all, reserve_all
from oxillama.errors import QuantError

COUNTS = (1, 2, 3, 8, 11, 30, 140)  # beside, tiles of every size, wide tiles with rests, two ranges
EXTREMES = np.array([0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x0080, 0x7F7F, 0xFF7F], np.uint16)


def brains(x):
    """uint16: float32 numbers cut to bf16."""
    return (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def normal(rng, rows, cols, sigma=0.02):
    return brains(rng.standard_normal((rows, cols)) * sigma)


def halves(bits):
    """uint16: the same numbers in f16, rounded where they are too small for it."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float16).view(np.uint16)


def made(bits, format, tight=True):
    raw = np.ascontiguousarray(bits).view(np.uint8).reshape(-1)
    return PackedMatrix(raw, format, *bits.shape, tight=tight)


def agree(bits, format, x):
    """The form that a matrix takes, once every product is that of plain panels."""
    tight, plain = made(bits, format), made(bits, format, tight=False)
    assert plain.form == format and tight.format == format and tight.act == plain.act
    law = matmul(plain, x, isa="scalar")
    for isa in lanes_available():
        for m in COUNTS:
            if m > len(x) or (isa == "scalar" and m > 3):
                continue
            for threads in (1, 2):
                found = matmul(tight, x[:m], isa=isa, num_threads=threads)
                assert found.tobytes() == law[:m].tobytes(), (isa, m, threads)
    return tight.form


@pytest.mark.parametrize("format", ("BF16", "F16"))
@pytest.mark.parametrize("rows,cols", ((48, 64), (33, 200), (80, 1288)))
def test_products_are_those_of_plain_panels(format, rows, cols):
    rng = np.random.default_rng(cols)
    bits = normal(rng, rows, cols)
    x = rng.standard_normal((140, cols)).astype(np.float32)
    assert agree(bits if format == "BF16" else halves(bits), format, x) == f"TIGHT_{format}"


def test_rows_and_numbers_of_all_sizes_are_exact():
    """Zeros of both signs, subnormal numbers, the largest and the least, rows of nothing, and a row
    of another size.
    """
    rng = np.random.default_rng(1)
    bits = normal(rng, 40, 512)
    bits[3], bits[17] = 0, 0x8000
    bits[20] = brains(rng.standard_normal(512) * 1e-23)
    bits[5, ::64] = EXTREMES
    bits[38, 504:] = EXTREMES
    x = rng.standard_normal((30, 512)).astype(np.float32)
    x[7] *= 1e-30
    assert agree(bits, "BF16", x) == "TIGHT_BF16"


def test_halves_below_the_normal_ones_are_exact():
    rng = np.random.default_rng(2)
    bits = halves(normal(rng, 32, 256))
    bits[4, :8] = [0x0001, 0x8001, 0x0080, 0x00FF, 0x0000, 0x8000, 0x0300, 0x03FC]
    x = rng.standard_normal((30, 256)).astype(np.float32)
    assert agree(bits, "F16", x) == "TIGHT_F16"


@pytest.mark.parametrize("cols", (64, 2048))
def test_exceptions_are_exact_as_far_as_there_is_room(cols):
    """All of them in one unit, in the last one, and as many as fit: one more, and the matrix is
    plain.
    """
    rng = np.random.default_rng(cols)
    room = 28 + cols // 4 - 1
    usual = (rng.integers(0, 16, (16, cols)) << 8 | rng.integers(0, 256, (16, cols))) + 0x3000
    x = rng.standard_normal((30, cols)).astype(np.float32)
    for count, form in ((1, "TIGHT_BF16"), (room, "TIGHT_BF16"), (room + 1, "BF16")):
        bits = usual.astype(np.uint16)
        at = rng.choice(bits.size, min(count, 32), replace=False)
        rest = np.arange(bits.size - count + len(at), bits.size)
        at = np.union1d(at, rest)
        while len(at) < count:
            at = np.union1d(at, rng.choice(bits.size, count - len(at), replace=False))
        bits.reshape(-1)[at] = 0x5000 + 16 * np.arange(count) % 0x2000
        assert agree(bits, "BF16", x[: 30 if count == room else 3]) == form


def test_numbers_that_are_not_bf16_stay_f16():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((3, 512)).astype(np.float32)
    bits = halves(normal(rng, 64, 512))
    for value in (0x2C01, 0x0301, 0x7C00, 0x7E00):
        some = bits.copy()
        some[63, 511] = value
        assert made(some, "F16").form == "F16"
    assert agree(np.float16(rng.standard_normal((20, 512))).view(np.uint16), "F16", x) == "F16"


def test_columns_that_make_no_units_stay_plain():
    bits = normal(np.random.default_rng(4), 16, 68)
    assert made(bits, "BF16").form == "BF16"
    assert made(bits[:, :56].copy(), "BF16").form == "BF16"


def test_tight_panels_take_three_quarters():
    bits = normal(np.random.default_rng(5), 64, 2048)
    tight, plain = made(bits, "BF16"), made(bits, "BF16", tight=False)
    assert tight.nbytes < 0.785 * plain.nbytes
    again = PackedMatrix.over(tight, tight.form, 64, 2048)
    assert (again.format, again.form, again.act) == ("BF16", "TIGHT_BF16", "bf16")
    assert bytes(again) == bytes(tight)
    with pytest.raises(QuantError, match="no panels of 68 columns are laid so"):
        PackedMatrix.over(np.zeros(64, np.uint8), "TIGHT_BF16", 16, 68)


@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("step", (1, 3, 100))
def test_a_matrix_that_turns_out_loose_is_packed_again(threads, step):
    """Loose rows at the end of the second of four: what was packed of it is forgotten, and no other
    matrix is.
    """
    rng = np.random.default_rng(6)
    some = [normal(rng, 96, 128) for _ in range(4)]
    some[1][90] = rng.integers(0, 0x7F00, 128)
    wanted = [(bits.view(np.uint8).reshape(-1), "BF16", *bits.shape) for bits in some]
    matrices = reserve_all(wanted)
    units = Units(matrices, unit=1)  # of a panel each
    seen, flag = [], CancelFlag()
    while not units.whole:
        units.pack(step, num_threads=threads, flag=flag)
        seen.append(units.done)
        assert units.done <= units.nbytes
    assert units.done == units.nbytes == 4 * 96 * 256
    assert [one.form for one in matrices] == ["TIGHT_BF16", "BF16", "TIGHT_BF16", "TIGHT_BF16"]
    for one, bits in zip(matrices, some):
        assert bytes(one) == bytes(made(bits, "BF16"))
    assert step == 100 or sorted(seen) != seen


def test_all_at_once_are_packed_too():
    rng = np.random.default_rng(7)
    some = [rng.integers(0, 0x7F00, (16, 64)).astype(np.uint16), normal(rng, 16, 64)]
    matrices = reserve_all([(b.view(np.uint8).reshape(-1), "BF16", *b.shape) for b in some])
    pack_all(matrices, num_threads=2)
    assert [one.form for one in matrices] == ["BF16", "TIGHT_BF16"]
