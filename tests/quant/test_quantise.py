"""Quantised rows are at least as near to the original as ggml's, with and without importances, and
always finite.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from oxillama.quant import dequantize, formats, quantize

BLOCKS = [name for name in formats() if name not in ("F32", "F16", "BF16")]
GOLDEN = [name for name in BLOCKS if name not in ("Q8_1", "Q8_K")]
SEARCHED = [name for name in GOLDEN if name not in ("Q8_0", "Q1_0")]
SLACK = 1.02

# Largest rms error of a block as a part of its largest number: what a plain grid over -max..max
# reaches.
COARSEST = {
    "Q8_0": 0.004,
    "Q8_1": 0.004,
    "Q8_K": 0.004,
    "Q6_K": 0.03,
    "Q5_0": 0.06,
    "Q5_1": 0.06,
    "Q5_K": 0.06,
    "Q4_0": 0.12,
    "Q4_1": 0.12,
    "Q4_K": 0.12,
    "IQ4_NL": 0.13,
    "IQ4_XS": 0.13,
    "MXFP4": 0.2,
    "Q3_K": 0.25,
    "Q2_K": 0.5,
}

# The largest integer that d is multiplied by, a scale's times a code's.
LARGEST = {
    "Q2_K": 15 * 3,
    "Q3_K": 32 * 4,
    "Q4_K": 63 * 15,
    "Q5_K": 63 * 31,
    "Q6_K": 128 * 32,
    "IQ4_XS": 32 * 127,
}


def rms(error, weights=1.0):
    return float(np.sqrt(np.mean(weights * error.astype(np.float64) ** 2)))


def trip(rows, name, imatrix=None):
    return dequantize(quantize(rows, name, imatrix), name)


@pytest.mark.parametrize("name", GOLDEN)
def test_no_worse_than_ggml(cases, name):
    golden = np.load(cases / "quants" / f"{name}.npz")
    x, weights, theirs = golden["x"], golden["imatrix"], golden["deq"] - golden["x"]
    plain, weighted = trip(x, name) - x, trip(x, name, weights) - x
    assert rms(plain) <= SLACK * rms(theirs)
    assert rms(weighted) <= SLACK * rms(theirs)
    assert rms(weighted, weights) <= SLACK * rms(theirs, weights)
    for row in range(len(x)):
        assert rms(plain[row]) <= SLACK * rms(theirs[row]), f"row {row}"


LADDERS = (
    ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0"),
    ("Q1_0", "Q2_0", "Q4_0", "Q5_0", "Q8_0"),
    ("Q4_1", "Q5_1", "Q8_0"),
    ("IQ1_S", "IQ3_XXS", "IQ4_XS", "Q5_K"),
    ("IQ1_M", "IQ3_S"),
    ("IQ2_XXS", "IQ3_XXS"),
    ("IQ2_XS", "IQ3_S", "IQ4_XS"),
    ("IQ2_S", "IQ3_S"),
    # IQ2 has no zero, so on sparse rows IQ1 can be nearer
    ("TQ1_0", "IQ3_XXS"),
    ("TQ2_0", "Q3_K", "IQ4_NL"),
)
SAMPLES = {
    "heavy tails": lambda rng: rng.standard_t(2.5, (6, 1024)).clip(-500, 500),
    "sparse": lambda rng: rng.standard_normal((6, 1024)) * (rng.random((6, 1024)) < 0.1),
    "small": lambda rng: rng.standard_normal((6, 1024)) * 1e-3,
    "one outlier": lambda rng: np.where(
        np.arange(1024) == 77, 30.0, rng.standard_normal((6, 1024))
    ),
    "one sign": lambda rng: np.abs(rng.standard_normal((6, 1024))),
    "uneven columns": lambda rng: (
        rng.standard_normal((6, 1024)) * np.exp(rng.standard_normal(1024))
    ),
    "uniform": lambda rng: rng.uniform(-1, 1, (6, 1024)),
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_more_bits_are_nearer_on_any_distribution(sample):
    x = SAMPLES[sample](np.random.default_rng(18)).astype(np.float32)
    for ladder in LADDERS:
        errors = [rms(trip(x, name) - x) for name in ladder]
        assert errors == sorted(errors, reverse=True), dict(zip(ladder, errors))
        assert errors[0] < rms(x)


@pytest.mark.parametrize("name", SEARCHED)
def test_importances_lower_the_weighted_error(name):
    rng = np.random.default_rng(11)
    x, weights = (
        rng.standard_normal((8, 512)).astype(np.float32),
        rng.choice(np.float32([0.01, 1.0, 30.0]), 512),
    )
    assert rms(trip(x, name, weights) - x, weights) < rms(trip(x, name) - x, weights)


@pytest.mark.parametrize("name", BLOCKS)
def test_only_the_ratios_of_importances_matter(name):
    rng = np.random.default_rng(12)
    x, weights = (
        rng.standard_normal((2, 256)).astype(np.float32),
        rng.uniform(0.1, 4, 256).astype(np.float32),
    )
    assert np.array_equal(
        quantize(x, name, weights), quantize(x, name, weights * np.float32(2.0**40))
    )
    assert np.array_equal(quantize(x, name, np.zeros(256)), quantize(x, name))
    assert np.array_equal(quantize(x, name, np.ones(256)), quantize(x, name))


@pytest.mark.parametrize("name", BLOCKS)
def test_zeros_stay_zeros_and_threads_change_no_bit(name):
    x = np.random.default_rng(13).standard_normal((5, 512)).astype(np.float32)
    x[2] = 0
    once = quantize(x, name, num_threads=1)
    assert np.array_equal(quantize(x, name, num_threads=3), once)
    assert np.array_equal(quantize(x[3], name), once[3])
    assert not dequantize(once[2], name).any()


@pytest.mark.parametrize("name", BLOCKS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_row_comes_back_finite_and_nearer_than_nothing(name, data):
    columns = 256
    scale = data.draw(st.sampled_from([1e-3, 1.0, 60000.0 if name != "NVFP4" else 2000.0]))
    x = data.draw(arrays(np.float32, columns, elements=st.floats(-1, 1, width=32))) * np.float32(
        scale
    )
    weights = data.draw(
        st.none() | arrays(np.float32, columns, elements=st.floats(0, 1000, width=32))
    )
    back = trip(x, name, weights)
    assert np.isfinite(back).all()
    if weights is not None:
        return
    # what the scales can tell apart: halves are multiples of 2^-24, so d is off by up to half of
    # that, times all that it is multiplied by
    floor = (
        2.0**-18
        + 2.0**-25 * LARGEST.get(name, 0)
        + (2.0**-10 * scale if name in ("NVFP4", "Q1_0") or name.startswith("IQ") else 0.0)
    )
    size = min(columns, formats()[name].columns)
    for block, stored in zip(x.reshape(-1, size), back.reshape(-1, size)):
        assert rms(stored - block) <= 1.01 * rms(block) + floor
        if name in COARSEST:
            assert rms(stored - block) <= COARSEST[name] * np.abs(block).max() + floor


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"])
@pytest.mark.parametrize("size", [2e-4, 1e-4, 5e-5])
def test_rows_so_small_that_their_halves_are_subnormal_lose_no_more_than_large_ones(name, size):
    x = np.random.default_rng(15).standard_normal((6, 1024)).astype(np.float32)
    small = np.float32(size) * x
    assert rms(trip(small, name) - small) / size <= 1.04 * rms(trip(x, name) - x)


@pytest.mark.parametrize("name, step", [("F16", 2.0**-11), ("BF16", 2.0**-8)])
def test_short_floats_round_to_the_nearest(name, step):
    x = np.random.default_rng(14).standard_normal(4096).astype(np.float32)
    assert (np.abs(trip(x, name) - x) <= np.abs(x) * step + 2.0**-25).all()
    if name == "F16":
        halves = np.float32(
            [
                65504,
                -65504,
                2**-24,
                2**-25,
                1.5 * 2**-24,
                2.5 * 2**-24,
                1 + 2**-11,
                1 + 3 * 2**-11,
                0,
                -0.0,
            ]
        )
        assert np.array_equal(
            quantize(halves, name).view(np.uint16), halves.astype(np.float16).view(np.uint16)
        )
        assert np.array_equal(
            quantize(x, name).view(np.uint16), x.astype(np.float16).view(np.uint16)
        )


@pytest.mark.parametrize(
    "name", ["F32", "Q8_0", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0", "Q4_0", "IQ4_NL"]
)
def test_numbers_that_a_format_can_say_are_said_exactly(name):
    rng = np.random.default_rng(15)
    levels = {
        "F32": rng.standard_normal(8).astype(np.float32),
        "Q8_0": np.arange(-127, 128),
        "TQ1_0": [-1, 0, 1],
        "TQ2_0": [-1, 0, 1],
        "Q1_0": [-1, 1],
        "Q2_0": [-1, 0, 1, 2],
        "Q4_0": np.arange(-8, 8),
        "IQ4_NL": [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113],
    }[name]
    x = rng.choice(np.float32(levels), (4, 256)) * np.float32(0.125)
    x[:, ::16] = np.float32(levels)[0] * np.float32(0.125)  # every block has its extreme
    assert np.array_equal(trip(x, name), x)


def test_sums_of_the_activation_formats_are_stored():
    x = np.random.default_rng(16).standard_normal((3, 256)).astype(np.float32)
    one = quantize(x, "Q8_1").reshape(3, 8, 36)
    d, s, q = (
        one[..., :2].copy().view(np.float16)[..., 0],
        one[..., 2:4].copy().view(np.float16)[..., 0],
        one[..., 4:].view(np.int8),
    )
    sums = q.sum(-1, dtype=np.int32).astype(np.float32)
    assert np.array_equal(s, (d.astype(np.float32) * sums).astype(np.float16))
    other = quantize(x, "Q8_K")
    q, sums = other[:, 4:260].view(np.int8), other[:, 260:].copy().view(np.int16)
    assert np.array_equal(sums, q.reshape(3, 16, 16).sum(-1, dtype=np.int16))


def test_float64_and_float16_rows_are_taken_as_float32():
    x = np.random.default_rng(17).standard_normal((2, 64)).astype(np.float16)
    assert np.array_equal(quantize(x, "Q4_0"), quantize(x.astype(np.float32), "Q4_0"))
    assert np.array_equal(
        quantize(x.astype(np.float64), "Q4_0"), quantize(x.astype(np.float32), "Q4_0")
    )


def test_blocks_whose_squares_vanish_lose_what_others_do():
    rows = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    small = dequantize(quantize(rows * np.float32(2.0**-90), "MXFP4"), "MXFP4")
    assert np.array_equal(small * np.float32(2.0**90), dequantize(quantize(rows, "MXFP4"), "MXFP4"))
