"""What `dequantize` and `quantize` refuse, and how they say it."""

import numpy as np
import pytest

from oxillama.errors import ConfigError, QuantError
from oxillama.quant import dequantize, format_named, formats, quantize

ONES = np.ones((2, 256), np.float32)


def test_the_table_says_what_each_format_costs():
    assert formats()["Q4_K"].bits == 4.5
    assert formats()["Q4_K"].row_bytes(512) == 288
    assert formats()["Q4_K"].row_columns(288) == 512
    assert list(formats())[:3] == ["F32", "F16", "Q4_0"]
    assert format_named("Q1_0_G128") is format_named("q1_0_g128") is formats()["Q1_0"]
    assert all(format_named(name.lower()) is kind for name, kind in formats().items())
    with pytest.raises(TypeError):
        formats()["Q9_X"] = None


@pytest.mark.parametrize("name", ["Q4_X", "q4_x", "", None, 12])
def test_an_unknown_format_is_named_beside_the_known_ones(name):
    for door in (
        lambda: dequantize(np.zeros(144, np.uint8), name),
        lambda: quantize(ONES, name),
        lambda: format_named(name),
    ):
        with pytest.raises(QuantError, match="unknown format .*wanted one of F32, F16, Q4_0"):
            door()


@pytest.mark.parametrize(
    "blocks", [np.zeros(144, np.int8), np.zeros(144), np.uint8(3), [1, 2], None, "Q4_K"]
)
def test_blocks_must_be_bytes(blocks):
    with pytest.raises(QuantError, match="wanted a uint8 array"):
        dequantize(blocks, "Q4_K")


@pytest.mark.parametrize("size", [0, 1, 143, 145])
def test_a_row_of_bytes_must_be_whole_blocks(size):
    with pytest.raises(QuantError, match=f"row of {size} bytes, Q4_K needs a multiple of 144"):
        dequantize(np.zeros((3, size), np.uint8), "Q4_K")


@pytest.mark.parametrize("columns", [0, 31, 33, 255])
def test_a_row_of_numbers_must_be_whole_blocks(columns):
    with pytest.raises(QuantError, match=f"row of {columns} columns, Q6_K needs a multiple of 256"):
        quantize(np.zeros((3, columns), np.float32), "Q6_K")


@pytest.mark.parametrize(
    "rows",
    [np.zeros((1, 32), np.int32), np.float32(1), [[1.0] * 32], np.zeros((1, 32), np.complex64)],
)
def test_rows_must_be_floats(rows):
    with pytest.raises(QuantError, match="wanted an array of floats"):
        quantize(rows, "Q4_0")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", list(formats()))
def test_a_number_that_is_none_is_refused_with_its_place(name, value):
    x = np.ones((2, 3, 256), np.float32)
    x[1, 2, 77] = value
    with pytest.raises(QuantError, match=rf"rows\[1, 2, 77\] is .*{name} wants a finite number"):
        quantize(x, name)


@pytest.mark.parametrize("name", [name for name in formats() if name != "F32"])
def test_a_number_beyond_the_scales_is_refused_and_one_at_the_limit_is_not(name):
    x = np.full((1, 256), 0.5, np.float32)
    for limit in (formats()[name].limit, -formats()[name].limit):
        x[0, 9] = limit
        assert np.isfinite(dequantize(quantize(x, name), name)).all()
    x[0, 9] = 0.5
    x[0, 9] = np.nextafter(np.float32(formats()[name].limit), np.float32(np.inf))
    with pytest.raises(QuantError, match=rf"rows\[0, 9\] is .*{name} wants at most"):
        quantize(x, name)


def test_a_double_beyond_float_is_refused():
    with pytest.raises(QuantError, match=r"rows\[0, 0\] is inf"):
        quantize(np.full((1, 32), 1e300), "Q8_0")


def test_importances_must_fit():
    with pytest.raises(QuantError, match=r"imatrix of shape \(255,\), wanted \(256,\)"):
        quantize(ONES, "Q4_K", np.ones(255))
    with pytest.raises(QuantError, match=r"imatrix of shape \(2, 256\)"):
        quantize(ONES, "Q4_K", np.ones((2, 256)))
    with pytest.raises(QuantError, match="imatrix is a str"):
        quantize(ONES, "Q4_K", "much")
    for value in (np.nan, np.inf, -1):
        weights = np.ones(256)
        weights[5] = value
        with pytest.raises(
            QuantError, match=r"imatrix\[5\] is .*, wanted a finite number of at least 0"
        ):
            quantize(ONES, "Q4_K", weights)


@pytest.mark.parametrize("threads", [-1, 1.5, True, 5000])
def test_threads_are_checked(threads):
    with pytest.raises(ConfigError, match="num_threads"):
        quantize(ONES, "Q4_K", num_threads=threads)
    with pytest.raises(ConfigError, match="num_threads"):
        dequantize(np.zeros((2, 144), np.uint8), "Q4_K", num_threads=threads)


def test_the_inner_doors_keep_memory_safe():
    from oxillama._core.codecs import quantise_rows, unpack_rows

    with pytest.raises(QuantError, match="rows of blocks, room for 1"):
        unpack_rows(np.zeros((2, 144), np.uint8), "Q4_K", np.zeros((1, 256), np.float32))
    with pytest.raises(QuantError, match="256 columns take 144 bytes"):
        unpack_rows(np.zeros((2, 143), np.uint8), "Q4_K", np.zeros((2, 256), np.float32))
    with pytest.raises(QuantError, match="unknown format"):
        unpack_rows(np.zeros((2, 144), np.uint8), "Q4_X", np.zeros((2, 256), np.float32))
    with pytest.raises(QuantError, match="importances"):
        quantise_rows(ONES, "Q4_K", np.ones(3, np.float32), np.zeros((2, 144), np.uint8))
    with pytest.raises(QuantError, match="room for 3"):
        quantise_rows(ONES, "Q4_K", None, np.zeros((3, 144), np.uint8))
