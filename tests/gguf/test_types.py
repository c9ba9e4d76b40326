"""The table of tensor types agrees with ggml's own numbers and with the compiled formats."""

import re
from pathlib import Path

import pytest
from gguf import constants

from oxillama.errors import GgufError
from oxillama.gguf import TENSOR_TYPES, type_by_id, type_by_name
from oxillama.gguf.types import WITHDRAWN

FORMATS = Path(__file__).resolve().parents[2] / "csrc" / "formats.def"


def test_the_table_equals_that_of_the_gguf_package():
    theirs = {
        kind.name: (kind.value, *constants.GGML_QUANT_SIZES[kind])
        for kind in constants.GGMLQuantizationType
    }
    ours = {kind.name: (kind.id, kind.columns, kind.block_bytes) for kind in TENSOR_TYPES}
    # which counts two floats, where ggml's block has held two halves since early 2024
    assert theirs.pop("Q8_1") == (9, 32, 40) and ours["Q8_1"] == (9, 32, 36)
    assert {name: ours.get(name) for name in theirs} == theirs
    # younger than the oldest package the tests allow
    assert set(ours) - set(theirs) <= {"Q8_1", "Q1_0", "Q2_0", "NVFP4", "MXFP4"}
    assert ours["Q2_0"] == (42, 64, 18)


def test_the_table_equals_that_of_the_compiled_formats():
    rows = re.findall(
        r"^OX_FORMAT\((\w+), (\d+), (\d+), (\d+)\)", FORMATS.read_text(), re.MULTILINE
    )
    ours = {kind.name: (kind.id, kind.columns, kind.block_bytes) for kind in TENSOR_TYPES}
    assert rows
    assert {name: tuple(map(int, rest)) for name, *rest in rows} == {
        name: ours[name] for name, *_ in rows
    }


def test_types_are_found_by_id_and_by_name():
    assert all(
        type_by_id(kind.id) is kind and type_by_name(kind.name) is kind for kind in TENSOR_TYPES
    )
    assert set(WITHDRAWN) == set(range(TENSOR_TYPES[-1].id)) - {kind.id for kind in TENSOR_TYPES}
    for number, name in WITHDRAWN.items():
        with pytest.raises(GgufError, match=rf"tensor type {number} \({name}\), withdrawn by ggml"):
            type_by_id(number)
    for number in (43, 200, 2**32 - 1):
        with pytest.raises(GgufError, match=f"unknown tensor type {number}"):
            type_by_id(number)
    with pytest.raises(GgufError, match="unknown tensor type 'q4_k'"):
        type_by_name("q4_k")


def test_rows_are_whole_blocks():
    q4 = type_by_name("Q4_K")
    assert q4.nbytes((3, 512)) == 3 * 2 * 144
    assert q4.shape_of_bytes((3, 288)) == (3, 512)
    assert type_by_name("F32").nbytes(()) == 4
    with pytest.raises(GgufError, match="row of 300 values, Q4_K needs a multiple of 256"):
        q4.nbytes((3, 300))
    with pytest.raises(GgufError, match="multiple of 144 bytes"):
        q4.shape_of_bytes((3, 100))
