"""Unpacked floats are bit-equal to ggml's, for every format and every byte that a file can hold."""

import gguf
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf import quants as reference

from oxillama.quant import dequantize, formats

GOLDEN = [
    "IQ1_M",
    "IQ1_S",
    "IQ2_S",
    "IQ2_XS",
    "IQ2_XXS",
    "IQ3_S",
    "IQ3_XXS",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
    "NVFP4",
    "Q1_0",
    "Q2_0",
    "Q2_K",
    "Q3_K",
    "Q4_0",
    "Q4_1",
    "Q4_K",
    "Q5_0",
    "Q5_1",
    "Q5_K",
    "Q6_K",
    "Q8_0",
    "TQ1_0",
    "TQ2_0",
]
NUMBERED = [
    kind for kind in GGMLQuantizationType if kind.name not in ("I8", "I16", "I32", "I64", "F64")
]


def bits(array):
    return np.ascontiguousarray(array, np.float32).view(np.uint32)


def test_every_block_format_has_a_golden_but_the_activation_formats():
    assert set(formats()) - set(GOLDEN) == {"F32", "F16", "BF16", "Q8_1", "Q8_K"}


@pytest.mark.parametrize("name", GOLDEN)
def test_goldens_are_bit_equal(cases, name):
    golden = np.load(cases / "quants" / f"{name}.npz")
    assert np.array_equal(bits(dequantize(golden["q"], name)), bits(golden["deq"]))


@pytest.mark.parametrize("kind", NUMBERED, ids=lambda kind: kind.name)
def test_numbers_and_sizes_are_those_of_the_gguf_package(kind):
    ours = formats()[kind.name]
    # the package counts two floats in Q8_1, where ggml's block has two halves
    wanted = (32, 36) if kind.name == "Q8_1" else GGML_QUANT_SIZES[kind]
    assert (ours.id, (ours.columns, ours.block_bytes)) == (kind.value, wanted)


@pytest.mark.parametrize(
    "kind",
    [kind for kind in NUMBERED if kind.name not in ("Q8_1", "Q8_K", "Q1_0")],
    ids=lambda kind: kind.name,
)
def test_any_bytes_unpack_as_the_gguf_package_does(kind):
    blocks = np.random.default_rng(kind.value).integers(
        0, 256, (64, 4 * formats()[kind.name].block_bytes), np.uint8
    )
    with np.errstate(all="ignore"):
        wanted = reference.dequantize(blocks, kind)
    assert np.array_equal(bits(dequantize(blocks, kind.name)), bits(wanted))


def test_every_half_and_every_brain_float_is_exact():
    words = np.arange(65536, dtype=np.uint16)
    assert np.array_equal(
        bits(dequantize(words.view(np.uint8), "F16")),
        bits(words.view(np.float16).astype(np.float32)),
    )
    assert np.array_equal(
        bits(dequantize(words.view(np.uint8), "BF16")), words.astype(np.uint32) << 16
    )


@pytest.mark.parametrize(
    "name, columns, head, kind",
    [("Q8_1", 32, 4, np.float16), ("Q8_K", 256, 4, np.float32)],
)
def test_activation_formats_are_scale_times_byte(name, columns, head, kind):
    rng = np.random.default_rng(5)
    d, q = rng.standard_normal(3).astype(kind), rng.integers(-128, 128, (3, columns), np.int8)
    tail = formats()[name].block_bytes - head - columns
    gaps = np.zeros((3, head - d.itemsize), np.uint8), np.zeros((3, tail), np.uint8)
    rows = np.concatenate([d[:, None].view(np.uint8), gaps[0], q.view(np.uint8), gaps[1]], 1)
    wanted = d[:, None].astype(np.float32) * q.astype(np.float32)
    assert np.array_equal(dequantize(rows, name), wanted)


def test_one_bit_blocks_are_plus_d_where_the_bit_is_set():
    bytes_ = np.random.default_rng(6).integers(0, 256, 16, np.uint8)
    block = np.concatenate([np.float16([0.5]).view(np.uint8), bytes_])
    wanted = np.where(np.unpackbits(bytes_, bitorder="little"), np.float32(0.5), np.float32(-0.5))
    assert np.array_equal(dequantize(block, "Q1_0"), wanted)
    assert np.array_equal(dequantize(block, "Q1_0_G128"), wanted)


def test_two_bit_blocks_are_d_times_minus_one_to_two():
    bytes_ = np.random.default_rng(7).integers(0, 256, 16, np.uint8)
    block = np.concatenate([np.float16([-0.25]).view(np.uint8), bytes_])
    codes = (bytes_[:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1).astype(
        np.float32
    ) - 1
    assert np.array_equal(dequantize(block, "Q2_0"), np.float32(-0.25) * codes)


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K", "IQ2_XXS"])
def test_threads_slices_shapes_and_alignment_change_no_bit(cases, name):
    blocks = np.load(cases / "quants" / f"{name}.npz")["q"]
    wanted = dequantize(blocks, name, num_threads=1)
    assert np.array_equal(dequantize(blocks, name, num_threads=4), wanted)
    assert np.array_equal(dequantize(blocks[::2], name), wanted[::2])
    assert np.array_equal(dequantize(blocks.reshape(2, 3, -1), name), wanted.reshape(2, 3, -1))
    assert np.array_equal(dequantize(blocks[4], name), wanted[4])
    assert np.array_equal(dequantize(blocks[4].tobytes(), name), wanted[4])
    shifted = np.empty(blocks.size + 1, np.uint8)
    shifted[1:] = blocks.reshape(-1)
    assert np.array_equal(dequantize(shifted[1:].reshape(blocks.shape), name), wanted)
    assert dequantize(blocks[:0], name).shape == (0, wanted.shape[1])


def test_the_reference_package_is_recent_enough():
    assert hasattr(gguf.GGMLQuantizationType, "NVFP4")
