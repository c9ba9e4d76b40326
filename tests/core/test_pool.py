"""Page memory: invariants 1 to 3 of `_core/pool.pyx`, and refusals."""

import os
import sys
import threading

import numpy as np
import pytest

from oxillama._core import pool
from oxillama._core.attention import attend
from oxillama._core.pool import PageMemory
from oxillama._core.tape import Batch
from oxillama.errors import ConfigError, PoolError
from tests.core.attention_program import memory_for, program, rows_of
from tests.core.pages import LAYERS, filled


@pytest.mark.parametrize("kv_type", ("f16", "f32"))
@pytest.mark.parametrize("page_size", (16, 48))
def test_export_and_load_give_equal_bytes(kv_type, page_size):
    memory, other = filled(kv_type, page_size), PageMemory(LAYERS, kv_type, page_size)
    other.ensure(9)
    other.load(8, memory.export(3))
    assert other.export(8) == memory.export(3) != memory.export(4)
    for layer, (heads, k_dim, v_dim) in enumerate(LAYERS):
        k, v = memory.read(3, layer)
        assert k.shape == (page_size, heads, k_dim) and v.shape == (page_size, heads, v_dim)
        assert np.array_equal(k, other.read(8, layer)[0]) and np.array_equal(
            v, other.read(8, layer)[1]
        )


@pytest.mark.parametrize("tokens", (0, 1, 15, 16, 17, 31, 48, None))
def test_copy_takes_the_first_tokens_and_leaves_the_rest(tokens):
    memory = filled(page_size=48)
    before = [memory.read(2, layer) for layer in range(3)]
    memory.copy(1, 2, tokens=tokens)
    n = 48 if tokens is None else tokens
    for layer in range(3):
        for new, old, source in zip(memory.read(2, layer), before[layer], memory.read(1, layer)):
            assert np.array_equal(new[:n], source[:n]) and np.array_equal(new[n:], old[n:])


def test_pages_never_move_while_memory_grows():
    memory = filled(pages=3)
    kept = memory.export(2)
    while memory.capacity < 40_000:
        memory.ensure(memory.capacity + 1)
    assert memory.export(2) == kept and memory.memory_bytes == memory.capacity * memory.page_bytes


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_taken_as_pages_are_written():
    memory = PageMemory([(8, 128, 128)] * 32)
    before = resident()
    memory.ensure(256)
    assert memory.memory_bytes >= 256 * memory.page_bytes > 500 << 20
    assert resident() - before < 32 << 20
    memory.load(0, bytes(memory.page_bytes))
    assert resident() - before < 64 << 20


def test_release_forgets_what_lies_above():
    memory = filled(pages=6)
    kept = memory.export(1)
    memory.release(2)
    assert memory.capacity >= 2 and memory.export(1) == kept
    memory.release(0)
    assert memory.capacity == 0
    memory.ensure(3)
    assert memory.export(2) == bytes(memory.page_bytes)


def test_release_waits_for_calls_that_read_pages():
    memory = PageMemory([(8, 256, 256)], "f32", 128)
    memory.ensure(2)
    memory.load(0, bytes(range(256)) * (memory.page_bytes // 256))
    kept, read = memory.export(0), []

    def reads():
        while len(read) < 8:
            read.append(memory.export(0))

    reader = threading.Thread(target=reads)
    reader.start()
    while reader.is_alive():
        memory.release(1)
    reader.join()
    assert set(read) == {kept}


def test_threads_that_attach_pages_together_take_a_frame_for_each(monkeypatch):
    asked, known = [], pool.available_bytes

    def other_threads_run():  # asking the system lets them
        asked.append(0)
        if len(asked) == 1:
            thread = threading.Thread(target=lambda: [memory.attach(page) for page in (1, 2)])
            thread.start()
            thread.join()
        return known()

    memory = PageMemory([(1, 64, 64)] * 2, windows=[0, 32])
    memory.ensure(3)
    monkeypatch.setattr(pool, "available_bytes", other_threads_run)
    memory.attach(0)
    assert len(asked) > 1 and memory.made == (3, 3)
    pages = [bytes([page + 1]) * memory.page_bytes for page in range(3)]
    for page, data in enumerate(pages):
        memory.load(page, data)
    assert [memory.export(page) for page in range(3)] == pages


def test_a_page_that_is_given_back_while_memory_is_asked_for_is_not_attached(monkeypatch):
    def other_threads_run():
        thread = threading.Thread(target=memory.release, args=(0,))
        thread.start()
        thread.join()
        return 1 << 40

    memory = PageMemory([(1, 64, 64)] * 2, windows=[0, 32])
    memory.ensure(3)
    monkeypatch.setattr(pool, "available_bytes", other_threads_run)
    with pytest.raises(PoolError, match="^page: found 2"):
        memory.attach(2)
    assert memory.capacity == 0 and memory.made == (0, 0)


def test_a_thread_that_takes_frames_meanwhile_is_no_lack_of_memory(monkeypatch):
    def other_threads_run():
        monkeypatch.undo()
        thread = threading.Thread(target=memory.ensure, args=(5000,))
        thread.start()
        thread.join()
        return 1 << 40

    memory = PageMemory([(1, 64, 64)])
    monkeypatch.setattr(pool, "available_bytes", other_threads_run)
    memory.ensure(1)
    assert memory.capacity >= 5000


class Meanwhile(int):
    """A number of threads; while a call looks at it, as while a call waits, another thread runs."""

    def __new__(cls, number, run, look):
        self = super().__new__(cls, number)
        self.run, self.look = run, look
        return self

    def __lt__(self, other):
        self.look -= 1
        if not self.look:
            thread = threading.Thread(target=self.run)
            thread.start()
            thread.join()
        return int(self) < other


@pytest.mark.parametrize("windows", [(), (0, 32)])
def test_a_call_finds_no_page_that_was_given_back_while_it_waited(windows):
    memory = PageMemory([(1, 64, 64)] * 2, "f32", windows=windows)
    rows = np.ones((16, 1, 64), np.float32)

    def call(method, *given, look=1, **options):
        memory.ensure(4)
        for page in range(4):
            memory.attach(page)
        with pytest.raises(PoolError, match="^page"):
            method(*given, num_threads=Meanwhile(1, lambda: memory.release(0), look), **options)
        memory.release(0)  # which waits for calls: this one has ended

    call(memory.copy, 3, 2)
    call(memory.export, 3)
    call(memory.load, 3, bytes(memory.page_bytes))
    call(memory.write, [3], 1, 0, rows, rows)
    call(attend, rows, memory, [3], 1, look=2)
    call(memory.export, 3, bare=True)


def test_release_of_nothing_keeps_everything():
    memory = filled(pages=6)
    before, capacity = memory.export(5), memory.capacity
    memory.release(1 << 40)
    assert memory.capacity == capacity and memory.export(5) == before


def test_pages_above_the_kept_ones_are_zero_though_many_share_a_page_of_the_system():
    memory = filled(pages=8)
    kept = [memory.export(page) for page in range(5)]
    memory.release(5)
    assert memory.page_bytes < 3 * 4096 and [memory.export(page) for page in range(5)] == kept
    assert all(
        memory.export(page) == bytes(memory.page_bytes) for page in range(5, memory.capacity)
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: PageMemory(LAYERS, "q9_9"),
        lambda: PageMemory(LAYERS, "f16", 20),
        lambda: PageMemory(LAYERS, "f16", 0),
        lambda: PageMemory([(0, 8, 8)]),
        lambda: PageMemory([(1, 8, 1 << 20)]),
        lambda: PageMemory(LAYERS, "f16", True),
    ],
)
def test_impossible_memories_are_refused(make):
    with pytest.raises(ConfigError):
        make()


@pytest.mark.parametrize(
    "use",
    [
        lambda m: m.export(-1),
        lambda m: m.export(m.capacity),
        lambda m: m.copy(0, m.capacity),
        lambda m: m.load(0, b"12"),
        lambda m: m.copy(0, 1, tokens=17),
        lambda m: m.read(0, 3),
        lambda m: m.ensure(-1),
        lambda m: m.ensure(1 << 40),
        lambda m: m.ensure(1 << 29),
        lambda m: m.release(-1),
    ],
)
def test_pages_that_are_not_there_raise(use):
    with pytest.raises(PoolError):
        use(filled())


@pytest.mark.parametrize("kv_type, dtype", (("f16", np.float16), ("f32", np.float32)))
def test_rope_store_puts_keys_and_values_where_read_finds_them(kv_type, dtype):
    step = program(q_heads=4, kv_heads=2, k_dim=24, v_dim=40)
    memory, table = memory_for(step, 64, kv_type, seed=3)
    tokens = np.arange(40) % 64
    step.run_until(
        Batch(tokens, np.arange(40), [table], np.zeros(40, int), []), memory, len(step) - 1
    )
    rows = rows_of(4 * 24 + 2 * 64)[tokens]
    for page in range(3):
        k, v = memory.read(int(table[page]), 0)
        n = min(16, 40 - 16 * page)
        part = rows[16 * page : 16 * page + n]
        assert np.array_equal(
            k[:n], part[:, 96:144].reshape(n, 2, 24).astype(dtype).astype(np.float32)
        )
        assert np.array_equal(
            v[:n], part[:, 144:].reshape(n, 2, 40).astype(dtype).astype(np.float32)
        )


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 7 kB\n"}, 7168),
        (
            {
                "proc/meminfo": "MemAvailable: 7 kB\n",
                "sys/memory.max": "max\n",
                "sys/memory.current": "5\n",
            },
            7168,
        ),
        (
            {
                "proc/meminfo": "MemAvailable: 7 kB\n",
                "sys/memory.max": "5000\n",
                "sys/memory.current": "4900\n",
            },
            100,
        ),
        (
            {
                "sys/memory/a/memory.limit_in_bytes": "50\n",
                "sys/memory/a/memory.usage_in_bytes": "70\n",
            },
            0,
        ),
        (
            {
                "sys/memory.max": "5000\n",
                "sys/memory.current": "4900\n",
                "sys/memory.stat": "anon 900\nactive_file 1000\ninactive_file 2500\n",
            },
            3600,
        ),
        (
            {
                "sys/memory/memory.limit_in_bytes": "50\n",
                "sys/memory/memory.usage_in_bytes": "45\n",
                "sys/memory/memory.stat": (
                    "active_file 1\ninactive_file 1\ntotal_active_file 10\ntotal_inactive_file 20\n"
                ),
            },
            35,
        ),
        (
            {
                "sys/a/memory.max": "900\n",
                "sys/a/memory.current": "800\n",
                "sys/a/b/memory.max": "max\n",
                "sys/a/b/memory.current": "1\n",
            },
            100,
        ),
        (
            {
                "sys/a/memory.max": "900\n",
                "sys/a/memory.current": "100\n",
                "sys/a/b/memory.max": "70\n",
                "sys/a/b/memory.current": "1\n",
                "sys/c/memory.max": "5\n",
                "sys/c/memory.current": "1\n",
            },
            69,
        ),
        ({}, None),
    ],
)
def test_free_memory_is_what_the_system_and_every_cgroup_above_leave(tmp_path, files, wanted):
    for name, text in {"proc/self/cgroup": "3:memory:/a\n0::/a/b\n", **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert pool.available_bytes(str(tmp_path / "proc"), str(tmp_path / "sys")) == wanted
