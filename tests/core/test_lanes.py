"""The lane law: a product's bits depend on the weights and the row alone, never on instruction set,
batch, threads or neighbours.
"""

import numpy as np
import pytest

from oxillama._core.codecs import codec_table, unpack_rows
from oxillama._core.kernels import cpu_info, lanes_available, packable_formats
from oxillama._core.matmul import matmul, matmul_acts, quantise_rows
from oxillama._core.panels import PackedMatrix
from tests.reference.lane_cases import HALVES, act_floats, random_rows

FORMATS = packable_formats()
COUNTS = (1, 2, 3, 5, 8, 10, 13, 15, 33, 48)  # whole tiles of 4, 5, 6, 8 and 16 rows with rests
fast = [isa for isa in lanes_available() if isa != "scalar"]


def make(seed, name, block, size, rows, cols):
    raw = random_rows(np.random.default_rng(seed), name, block, size, rows, cols)
    return raw, PackedMatrix(raw.reshape(-1), name, rows, cols)


def test_a_processor_of_aarch64_has_the_tables_of_its_features():
    found, has = set(lanes_available()), set(cpu_info()["features"])
    assert found <= {
        *("scalar", "avx2", "avxvnni", "avx512", "avx512intel", "avx512bf16", "avx512amx"),
        *("neon", "neondot", "neoni8mm"),
    }
    assert ("neon" in found) == ("neon" in has)
    assert ("neondot" in found) == ("dotprod" in has)
    assert ("neoni8mm" in found) == ({"dotprod", "i8mm"} <= has)


def test_every_format_of_the_codecs_can_be_packed():
    assert {row[0] for row in FORMATS} == {row[0] for row in codec_table()}


@pytest.mark.parametrize("name,block,size,act", FORMATS, ids=[row[0] for row in FORMATS])
def test_every_instruction_set_and_row_count_gives_the_bits_of_the_scalar_table(
    name, block, size, act
):
    rng = np.random.default_rng(1)
    for rows, cols in ((1, 256), (37, 512), (16, 1280), (32, 640), (33, 352), (32, 288)):
        if cols % block:
            continue
        raw, w = make(rows, name, block, size, rows, cols)
        x = rng.standard_normal((max(COUNTS), cols)).astype(np.float32)
        law = matmul(w, x, isa="scalar")
        for isa in fast:
            for m in COUNTS:
                assert matmul(w, x[:m], isa=isa).tobytes() == law[:m].tobytes(), (
                    isa,
                    rows,
                    cols,
                    m,
                )
        assert matmul(w, x[4:5], isa="scalar").tobytes() == law[4:5].tobytes()


@pytest.mark.parametrize("name,block,size,act", FORMATS, ids=[row[0] for row in FORMATS])
def test_the_scalar_table_is_the_product_of_what_weights_and_activations_stand_for(
    name, block, size, act
):
    rows, cols = 21, 1024
    raw, w = make(7, name, block, size, rows, cols)
    floats = np.empty((rows, cols), np.float32)
    unpack_rows(raw, name, floats)
    x = np.random.default_rng(2).standard_normal((3, cols)).astype(np.float32)
    acts = quantise_rows(x, act, "scalar")
    told, weights = act_floats(acts, act, cols), floats.astype(np.float64)
    found = matmul_acts([w], acts, isa="scalar")
    # integers are exact inside a block; what rounds is one conversion, product and addition per
    # block, in float32
    bound = (np.abs(told) @ np.abs(weights).T) * (cols // 32 + 4 if block > 1 else cols) * 2.0**-24
    assert (np.abs(found - told @ weights.T) <= bound).all()


@pytest.mark.parametrize(
    "name",
    [
        "F16",
        "Q4_0",
        "Q5_0",
        "Q8_0",
        "IQ4_NL",
        "Q3_K",
        "Q4_K",
        "Q5_K",
        "Q6_K",
        "IQ4_XS",
        "IQ3_XXS",
        "IQ2_XXS",
    ],
)
def test_extreme_codes_never_leave_the_integers(name):
    """All codes at their largest against activations at +-127: where 16-bit sums would saturate, or
    wrap, first.
    """
    block, size = next(row[1:3] for row in FORMATS if row[0] == name)
    for fill in (0x00, 0xFF, 0x80, 0x7F):
        raw = np.full((32, 512 // block, size), fill if block > 1 else fill & 0x3C, np.uint8)
        for at in HALVES.get(name, ()):
            raw[:, :, at : at + 2] = np.array([0x2C00], np.uint16).view(np.uint8)
        w = PackedMatrix(raw.reshape(-1), name, 32, 512)
        for sign in (1, -1):
            x = np.full((14, 512), sign, np.float32)
            x[::2, ::2] *= -1
            law = matmul(w, x, isa="scalar")
            for isa in fast:
                for m in (8, 14):
                    assert matmul(w, x[:m], isa=isa).tobytes() == law[:m].tobytes(), (
                        isa,
                        fill,
                        sign,
                        m,
                    )


@pytest.mark.parametrize(
    "name,columns,most", [("Q4_K", 32, 2184), ("Q5_K", 32, 1057), ("Q6_K", 16, 1023)]
)
def test_dots_of_two_sub_blocks_share_a_lane_only_where_16_bits_hold_them(name, columns, most):
    """The largest codes against activations of one sign whose sum is the most that fits, or one
    more.
    """
    block, size = next(row[1:3] for row in FORMATS if row[0] == name)
    for fill in (0x00, 0xFF):
        raw = np.full((32, 2, size), fill, np.uint8)
        raw[:, :, HALVES[name][0] : HALVES[name][0] + 2] = np.array([0x2C00], np.uint16).view(
            np.uint8
        )
        for at in HALVES[name][1:]:
            raw[:, :, at : at + 2] = 0
        if name == "Q6_K":
            raw[:, :, 192:208] = 127  # the scales of the sub-blocks
        w = PackedMatrix(raw.reshape(-1), name, 32, 512)
        for total in (most, most + 1):
            group = np.zeros(columns, np.float32)
            group[: total // 127], group[total // 127] = 127, total % 127
            x = np.tile(group, (48, 512 // columns))
            x[1::2] *= -1
            if columns == 32:  # some of the other sign, which no sum of one sign counts
                x[2::3, columns - 1 :: columns] = -np.sign(x[2::3, :1]) * 5
            law = matmul(w, x, isa="scalar")
            for isa in fast:
                for m in (8, 14, 32, 48):
                    found = matmul(w, x[:m], isa=isa)
                    assert found.tobytes() == law[:m].tobytes(), (isa, fill, total, m)


@pytest.mark.parametrize("act", ["f32", "q8_32", "q8_256"])
def test_activation_rows_are_the_same_bytes_on_every_instruction_set(act):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((6, 1024)).astype(np.float32)
    x[1] *= 1e-30
    x[2, :256] = 0
    x[3, 5] = np.inf
    x[4, 300] = np.nan
    x[5] = np.ldexp(x[5], rng.integers(-40, 40, 1024)).astype(np.float32)
    law = quantise_rows(x, act, "scalar")
    for isa in fast:
        assert quantise_rows(x, act, isa).tobytes() == law.tobytes(), isa


def test_activation_rows_keep_every_number_within_half_a_step_and_carry_their_sums():
    x = np.random.default_rng(4).standard_normal((4, 512)).astype(np.float32)
    for act, block in (("q8_32", 32), ("q8_256", 256)):
        rows = quantise_rows(x, act)
        told = act_floats(rows, act, 512)
        step = np.abs(x.reshape(4, -1, block)).max(axis=2).repeat(block, axis=1) / 127
        assert (np.abs(told - x) <= step * 0.5001).all()
    blocks = rows[:, : 2 * 320].reshape(4, 2, 320)
    codes = blocks[:, :, :256].copy().view(np.int8).astype(int)
    sums = blocks[:, :, 272:].copy().view(np.int16)
    assert (sums[:, :, :16] == codes.reshape(4, 2, 16, 16).sum(axis=3)).all()
    assert (sums[:, :, 16:] == codes.reshape(4, 2, 8, 32).sum(axis=3)).all()
    most = blocks[:, :, 260:266].copy().view(np.int16)
    for k, columns in ((0, 16), (1, 32)):
        sizes = np.abs(codes).reshape(4, 2, -1, columns).sum(axis=3)
        assert (most[:, :, k] == sizes.max(axis=2)).all()
    signs = [(sign * codes).clip(0).reshape(4, 2, 8, 32).sum(axis=3) for sign in (1, -1)]
    assert (most[:, :, 2] == np.maximum(*signs).max(axis=2)).all()


def test_a_number_that_is_not_finite_is_seen_in_its_own_row_only():
    raw, w = make(5, "Q4_0", 32, 18, 16, 256)
    x = np.random.default_rng(5).standard_normal((3, 256)).astype(np.float32)
    clean = matmul(w, x)
    x[1, 40] = np.nan
    found = matmul(w, x)
    assert np.isnan(found[1]).all()
    assert found[0].tobytes() == clean[0].tobytes() and found[2].tobytes() == clean[2].tobytes()


@pytest.mark.parametrize("name", ("F32", "F16"))
def test_floats_of_many_rows_and_an_odd_number_of_columns(name):
    rng = np.random.default_rng(3)
    for rows, cols in ((32, 129), (48, 385), (33, 7)):
        raw, w = make(4, name, 1, 4 if name == "F32" else 2, rows, cols)
        x = rng.standard_normal((280, cols)).astype(np.float32)
        law = matmul(w, x, isa="scalar")
        for isa in fast:
            for m in (9, 30, 280):
                assert matmul(w, x[:m], isa=isa).tobytes() == law[:m].tobytes(), (isa, rows, m)
