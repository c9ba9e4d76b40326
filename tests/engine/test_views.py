"""Views over pages: a step is handed tables, an export gets copies."""

import numpy as np
import pytest
from null import NullMemory
from test_pages import filled

import oxillama
from oxillama._core.pool import PageMemory
from oxillama._core.tape import Batch
from oxillama.engine.pages import KvCachePool, PagedKvCache
from oxillama.engine.views import BatchedKvView, KvCache, KvSlot
from oxillama.errors import PoolError


def test_a_row_of_a_batch_knows_its_page():
    pool = KvCachePool(NullMemory())
    one, two = filled(pool, 20), filled(pool, 5)
    view = BatchedKvView([(one, 15, 4), (two, 4, 1)])
    assert len(view) == 5
    assert view[0] == KvSlot(0, 15, one.pages[0], 15)
    assert view[1] == KvSlot(0, 16, one.pages[1], 0) and view[4] == KvSlot(1, 4, two.pages[0], 4)
    assert view.row_table.tolist() == [0, 0, 0, 0, 1] and view.positions.tolist() == [
        15,
        16,
        17,
        18,
        4,
    ]
    with pytest.raises(PoolError, match="reserved pages"):
        BatchedKvView([(two, 4, 20)])


def test_page_sizes_do_not_mix_in_a_view():
    with pytest.raises(PoolError, match="one size"):
        BatchedKvView(
            [
                (filled(KvCachePool(NullMemory()), 4), 0, 4),
                (filled(KvCachePool(NullMemory(32), page_size=32), 4), 0, 4),
            ]
        )


@pytest.mark.parametrize("kv_type", ("f16", "f32"))
def test_a_contiguous_copy_reads_positions_in_order(kv_type):
    memory = PageMemory([(2, 4, 3)], kv_type, 16)
    pool = KvCachePool(memory)
    cache = PagedKvCache(pool)
    cache.reserve(40)
    cache.commit(37)
    for index, page in enumerate(cache.pages):
        item = np.float16 if kv_type == "f16" else np.float32
        # (head, dim, token)
        k = (np.arange(16)[None, None, :] + 16 * index + np.zeros((2, 4, 1))).astype(item)
        # (head, token, dim)
        v = (np.arange(16)[None, :, None] + 16 * index + np.zeros((2, 1, 3))).astype(item)
        data = bytearray(memory.export(page))
        data[: k.nbytes] = k.tobytes()
        start = -(-k.nbytes // 64) * 64
        data[start : start + v.nbytes] = v.tobytes()
        memory.load(page, bytes(data))
    whole = KvCache.of(cache)
    assert whole.k[0].shape == (37, 2, 4) and whole.v[0].shape == (37, 2, 3) and whole.length == 37
    assert (whole.k[0] == np.arange(37)[:, None, None]).all() and (
        whole.v[0] == np.arange(37)[:, None, None]
    ).all()
    whole.truncate(3)
    assert whole.k[0].shape == (3, 2, 4) and whole.memory_bytes == 4 * 3 * 2 * 7


@pytest.mark.parametrize("page_size", (16, 48))
def test_a_step_over_a_view_gives_the_logits_of_each_sequence(page_size):
    with oxillama.load(num_threads=1, kv_type="f32") as engine:
        model, vocab = engine._loaded.model, engine.config.vocab_size
        pool = KvCachePool(
            model.page_memory(kv_type="f32", page_size=page_size), page_size=page_size
        )
        texts = [
            [(7 * i + j) % vocab for i in range(length)] for j, length in enumerate((50, 1, 23))
        ]
        caches = [PagedKvCache(pool) for _ in texts]
        found = [[] for _ in texts]
        # two steps, sequences packed side by side, none padded
        for start, end in ((0, 20), (20, 50)):
            parts = [
                (at, start, min(end, len(ids)) - start)
                for at, ids in enumerate(texts)
                if len(ids) > start
            ]
            for at, _, rows in parts:
                caches[at].reserve(start + rows)
            view = BatchedKvView([(caches[at], start, rows) for at, start, rows in parts])
            # the block tables themselves
            assert all(table is caches[at].table for table, (at, _, _) in zip(view.tables, parts))
            tokens = np.concatenate(
                [texts[at][start : start + rows] for at, start, rows in parts]
            ).astype(np.int32)
            out = model.program.step(
                Batch(
                    tokens,
                    view.positions,
                    view.tables,
                    view.row_table,
                    np.arange(len(view), dtype=np.int32),
                ),
                pool.memory,
            )
            for row, (at, _, _) in zip(out.copy(), (parts[table] for table in view.row_table)):
                found[at].append(row)
            for at, _, rows in parts:
                caches[at].commit(start + rows)
        for ids, rows, cache in zip(texts, found, caches):
            assert np.array_equal(rows, engine.logits(ids))
            assert KvCache.of(cache).length == cache.length == len(ids)
