"""Pages as a step is handed them, by block table, and as a contiguous copy."""

import numpy as np
import pytest

import oxillama
from oxillama._core.pool import PageMemory
from oxillama._core.tape import Batch
from oxillama.engine.memory.pages import KvCache, KvCachePool, PagedKvCache


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
def test_a_step_over_tables_of_several_sequences_gives_the_logits_of_each(page_size):
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
            positions = np.concatenate([np.arange(start, start + rows) for _, start, rows in parts])
            row_table = np.repeat(np.arange(len(parts)), [rows for _, _, rows in parts])
            tokens = np.concatenate(
                [texts[at][start : start + rows] for at, start, rows in parts]
            ).astype(np.int32)
            out = model.program.step(
                Batch(
                    tokens,
                    positions.astype(np.int32),
                    [caches[at].table for at, _, _ in parts],
                    row_table.astype(np.int32),
                    np.arange(len(positions), dtype=np.int32),
                ),
                pool.memory,
            )
            for row, (at, _, _) in zip(out.copy(), (parts[table] for table in row_table)):
                found[at].append(row)
            for at, _, rows in parts:
                caches[at].commit(start + rows)
        for ids, rows, cache in zip(texts, found, caches):
            assert np.array_equal(rows, engine.logits(ids))
            assert KvCache.of(cache).length == cache.length == len(ids)


def test_a_session_gives_a_copy_of_what_it_has_evaluated():
    with oxillama.load(num_threads=1, kv_type="f32") as engine:
        session = engine.session()
        assert session.kv_cache().length == 0
        engine.prefill([5, 6, 7, 8], session=session)
        copy = session.kv_cache()
        assert copy.length == 4 and len(copy.k) == engine.config.layers
        fork = session.fork()
        session.close()
        again = fork.kv_cache()
        assert all(np.array_equal(*pair) for pair in zip(copy.k + copy.v, again.k + again.v))
