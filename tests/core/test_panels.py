"""Packed weights: all those of a model in one block, each packed as it would be alone, and alive as
long as any of them is.
"""

import gc
import mmap

import numpy as np
import pytest

from oxillama._core.batch import CancelFlag
from oxillama._core.matmul import matmul
from oxillama._core.panels import PackedMatrix, Units, fault_in, pack_all, reserve_all
from oxillama.errors import QuantError

# name, rows, cols, bytes of a row
SHAPES = (("Q4_0", 48, 64, 36), ("Q8_0", 17, 32, 34), ("F16", 5, 6, 12), ("Q4_K", 100, 512, 288))


def blocks(seed=0):
    """(raw, format, rows, cols) of one matrix of each shape."""
    rng = np.random.default_rng(seed)
    return [
        (rng.integers(0, 60, rows * size, np.uint8), name, rows, cols)
        for name, rows, cols, size in SHAPES
    ]


def address(matrix):
    return matrix.panels().__array_interface__["data"][0]


@pytest.mark.parametrize("threads", (1, 2))
def test_matrices_of_one_arena_hold_what_each_holds_alone(threads):
    wanted = blocks()
    made = reserve_all(wanted)
    pack_all(made[::-1], num_threads=threads)
    for matrix, (raw, name, rows, cols) in zip(made, wanted):
        assert bytes(matrix) == bytes(PackedMatrix(raw, name, rows, cols))


def test_an_arena_lays_matrices_one_after_another_each_on_pages_of_its_own():
    made = reserve_all(blocks())
    pack_all(made)
    start = address(made[0])
    for matrix in made:
        assert address(matrix) == start
        start += -(-matrix.nbytes // 4096) * 4096


def test_one_matrix_keeps_its_arena_alive():
    made = reserve_all(blocks())
    pack_all(made)
    last = made[-1]
    before = bytes(last)
    del made
    gc.collect()
    others = [reserve_all(blocks(1)) for _ in range(4)]
    for one in others:
        pack_all(one)
    assert bytes(last) == before


def test_an_arena_of_nothing_holds_nothing():
    assert reserve_all([]) == []
    pack_all([])


def test_what_cannot_be_packed_is_refused_before_any_room_is_made():
    good = blocks()
    for raw, name, rows, cols in (
        (good[0][0][:-1], *good[0][1:]),
        (good[0][0], "Q9_9", 48, 64),
        (good[0][0], "Q4_0", 48, 63),
    ):
        with pytest.raises(QuantError):
            reserve_all([*good, (raw, name, rows, cols)])


def test_a_matrix_is_packed_once():
    made = reserve_all(blocks())
    pack_all(made)
    with pytest.raises(QuantError, match="packed already"):
        pack_all(made)


@pytest.mark.parametrize("threads", (1, 2))
def test_matrices_packed_unit_by_unit_are_the_whole_and_are_not_read_before(threads):
    wanted = blocks()
    made = reserve_all(wanted)
    units = Units(made, unit=1)  # of a panel each: 3, 2, 1 and 7
    assert (units.count, units.done, units.whole) == (13, 0, False)
    units.pack(4, num_threads=threads)
    assert units.done == 48 * 36 + 16 * 34
    with pytest.raises(QuantError, match="16 of 17 rows are packed, wanted all"):
        made[1].panels()
    with pytest.raises(QuantError, match="0 of 100 rows are packed, wanted all"):
        matmul(made[3], np.zeros((1, 512), np.float32))
    with pytest.raises(QuantError, match="matrix 1 is packed already"):
        Units([made[3], made[1]])
    units.pack(100, num_threads=threads)
    assert units.whole and units.done == units.nbytes == sum(len(raw) for raw, *_ in wanted)
    for matrix, (raw, name, rows, cols) in zip(made, wanted):
        assert bytes(matrix) == bytes(PackedMatrix(raw, name, rows, cols))


@pytest.mark.parametrize("threads", (1, 2))
def test_a_flag_that_is_set_keeps_units_from_being_packed(threads):
    units, flag = Units(reserve_all(blocks()), unit=1), CancelFlag()
    flag.set()
    units.pack(100, num_threads=threads, flag=flag)
    assert units.done == 0
    flag.clear()
    units.pack(100, num_threads=threads, flag=flag)
    assert units.whole


@pytest.mark.parametrize("threads", (1, 2))
def test_rows_of_a_mapped_file_are_packed_as_those_in_memory(tmp_path, threads):
    raw = np.random.default_rng(0).integers(0, 60, 2064 * 34 * 8, np.uint8)
    (tmp_path / "file").write_bytes(bytes(100) + raw.tobytes())
    with open(tmp_path / "file", "rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    made = reserve_all([(view[100:], "Q8_0", 2064, 256)])
    units = Units(made, mapped=[True], unit=1 << 14)
    units.expect()
    units.pack(100, num_threads=threads)
    assert bytes(made[0]) == bytes(PackedMatrix(raw, "Q8_0", 2064, 256))


@pytest.mark.parametrize("threads", (1, 2))
def test_a_mapping_brought_into_memory_is_what_it_was(tmp_path, threads):
    content = np.random.default_rng(0).integers(0, 256, (17 << 20) + 5, np.uint8)
    (tmp_path / "file").write_bytes(content)
    with open(tmp_path / "file", "rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    fault_in(view, num_threads=threads)
    fault_in(view[5000:9000], num_threads=threads)  # no page begins there
    fault_in(b"", num_threads=threads)
    assert np.array_equal(np.frombuffer(view, np.uint8), content)


def test_what_a_panel_leaves_over_is_zeros():
    # 3 rows of 7 halves: 224 of 256 bytes of a panel
    raw = np.full(3 * 14, 0x3C, np.uint8)
    assert not PackedMatrix(raw, "F16", 3, 7).panels()[0, 224:].any()
