"""Standalone calls over arrays: the tape's bits on any number of threads, whatever OpenMP is told,
after a fork, and where the system refuses threads.
"""

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest

from oxillama._core import threads
from oxillama._core.attention import attend
from oxillama._core.matmul import matmul
from oxillama._core.panels import PackedMatrix
from oxillama._core.pool import KV_TYPES, LATENT, PageMemory
from oxillama._core.tape import Batch
from oxillama.errors import ConfigError, ModelError, PoolError
from tests.core.attention_program import VOCAB, memory_for, program, rows_of

HEADS, KV_HEADS, K_DIM, V_DIM = 6, 2, 32, 64
LENGTH = 700


def of_the_tape(kv_type, **options):
    """(q, k, v, attention rows, page ids, pages' bytes) of a sequence that a program ran."""
    step = program(q_heads=HEADS, kv_heads=KV_HEADS, k_dim=K_DIM, v_dim=V_DIM, **options)
    memory, table = memory_for(step, LENGTH, kv_type, seed=3)
    tokens = np.random.default_rng(1).integers(0, VOCAB, LENGTH).astype(np.int32)
    out = []
    for at in range(0, LENGTH, 300):
        positions = np.arange(at, min(at + 300, LENGTH))
        batch = Batch(tokens[positions], positions, [table], np.zeros(len(positions), int), [])
        step.run_until(batch, memory, len(step) - 1)
        out.append(step.slot(1, len(positions)))
    rows = rows_of(HEADS * K_DIM + KV_HEADS * (K_DIM + V_DIM))[tokens]
    q, k, v = np.split(rows, np.cumsum([HEADS * K_DIM, KV_HEADS * K_DIM]), axis=1)
    return (
        np.ascontiguousarray(q.reshape(LENGTH, HEADS, K_DIM)),
        k.reshape(LENGTH, KV_HEADS, K_DIM),
        v.reshape(LENGTH, KV_HEADS, V_DIM),
        np.concatenate(out).reshape(LENGTH, HEADS, V_DIM),
        table,
        [memory.export(page) for page in table],
    )


@pytest.mark.parametrize("kv_type", list(KV_TYPES))
def test_pages_and_attention_are_the_tapes_on_any_number_of_threads(kv_type):
    q, k, v, expected, table, pages = of_the_tape(kv_type)
    for count in range(1, 9):
        memory = PageMemory([(KV_HEADS, K_DIM, V_DIM)], kv_type)
        memory.ensure(int(table.max()) + 1)
        for part in (slice(0, 333), slice(333, LENGTH)):
            memory.write(table, 0, part.start, k[part], v[part], num_threads=count)
        assert [memory.export(page, num_threads=count) for page in table] == pages
        assert attend(q, memory, table, 0, num_threads=count).tobytes() == expected.tobytes()
        deep = attend(q[-1:], memory, table, 0, first=LENGTH - 1, num_threads=count)
        assert deep.tobytes() == expected[-1:].tobytes()


@pytest.mark.parametrize(
    "options",
    [
        dict(window=50),
        dict(chunk=128, softcap=20.0),
        dict(sinks=np.arange(6, dtype=np.float32), slopes=np.arange(6, dtype=np.float32) / 6),
    ],
)
def test_options_of_attention_are_those_of_the_op(options):
    q, k, v, expected, table, _ = of_the_tape("f16", **options)
    memory = PageMemory([(KV_HEADS, K_DIM, V_DIM)])
    memory.ensure(int(table.max()) + 1)
    memory.write(table, 0, 0, k, v)
    for count in (1, 3):
        found = attend(q, memory, table, 0, num_threads=count, **options)
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("format,cols", [("Q4_K", 512), ("Q8_0", 512), ("F32", 512)])
@pytest.mark.parametrize("m", [1, 40])
def test_products_have_the_same_bits_on_any_number_of_threads(format, cols, m):
    rng = np.random.default_rng(2)
    raw = rng.integers(0, 60, {"Q4_K": 288, "Q8_0": 544, "F32": 2048}[format] * 900)
    w = PackedMatrix(raw.astype(np.uint8), format, 900, cols)
    x = rng.standard_normal((m, cols)).astype(np.float32)
    one = matmul(w, x).tobytes()
    assert all(matmul(w, x, num_threads=count).tobytes() == one for count in range(2, 9))


def test_pages_are_copied_and_loaded_the_same_on_any_number_of_threads():
    layers = [(2, 8, 8), (1, 24, 40), (3, 16, 5), (LATENT, 32, 16), (1, 64, 64)]
    rng = np.random.default_rng(4)
    found = []
    for count in range(1, 9):
        memory = PageMemory(layers, page_size=32)
        memory.ensure(3)
        rng = np.random.default_rng(4)
        for page in range(3):
            data = rng.integers(0, 60, memory.page_bytes, dtype=np.uint8)
            memory.load(page, data, num_threads=count)
        memory.copy(0, 1, num_threads=count)
        memory.copy(0, 2, tokens=19, num_threads=count)
        assert memory.export(1, num_threads=count) == memory.export(0)
        found.append(memory.export(2, num_threads=count))
    assert len(set(found)) == 1


def test_what_does_not_fit_is_refused():
    memory = PageMemory([(2, 16, 8), (LATENT, 16, 8)])
    memory.ensure(2)
    k, v = np.zeros((3, 2, 16), np.float32), np.zeros((3, 2, 8), np.float32)
    memory.write([0], 0, 13, k, v)
    memory.write([0], 1, 0, k[:, :1])
    for wrong in (
        lambda: memory.write([0], 0, 14, k, v),
        lambda: memory.write([0], 0, -1, k, v),
        lambda: memory.write([1 << 20], 0, 0, k, v),
        lambda: memory.write([0], 2, 0, k, v),
        lambda: memory.write([0], 0, 0, k[:, :1], v),
        lambda: memory.write([0], 0, 0, k, v[:2]),
        lambda: memory.write([0], 0, 0, k),
        lambda: memory.write([0], 1, 0, k[:, :1], v[:, :1]),
        lambda: attend(np.zeros((1, 2, 16), np.float32), memory, [0], 2),
        lambda: attend(np.zeros((1, 2, 16), np.float32), memory, [0], 0, first=16),
        lambda: attend(np.zeros((1, 2, 16), np.float32), memory, [-1], 0),
    ):
        with pytest.raises(PoolError):
            wrong()
    for shape in ((1, 3, 16), (1, 2, 8)):
        with pytest.raises(ModelError, match="op 0 \\(attend\\)"):
            attend(np.zeros(shape, np.float32), memory, [0], 0)
    for count in (-1, 1025):
        with pytest.raises(ConfigError, match="num_threads"):
            memory.copy(0, 1, num_threads=count)


# Products and attention of this process, as bytes; `threads` is what they ask for.
CALLS = """
import os, signal, sys, warnings
import numpy as np
from oxillama._core import threads
from oxillama._core.attention import attend
from oxillama._core.matmul import matmul
from oxillama._core.panels import PackedMatrix
from oxillama._core.pool import PageMemory
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
w = PackedMatrix(rng.standard_normal((640, 256)).astype(np.float32).tobytes(), "F32", 640, 256)
x = rng.standard_normal((40, 256)).astype(np.float32)
k = rng.standard_normal((300, 2, 16)).astype(np.float32)
memory, pages = PageMemory([(2, 16, 16)] * 3), np.arange(19)
memory.ensure(20)
def calls(count):
    memory.write(pages, 1, 0, k, k, num_threads=count)
    memory.copy(0, 19, num_threads=count)
    q = np.repeat(k, 2, axis=1)
    return (matmul(w, x, num_threads=count).tobytes()
            + attend(q, memory, pages, 1, num_threads=count).tobytes()
            + memory.export(19, num_threads=count))
one = calls(1)
"""


def script(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", CALLS + code],
        env={**os.environ, **environment},
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


needs_openmp = pytest.mark.skipif(not threads.openmp_version(), reason="built without OpenMP")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")


@needs_openmp
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_parts_run_on_the_threads_of_openmp():
    script("""
def count():
    return len(os.listdir("/proc/self/task"))
before = count()
assert calls(1) == one and count() == before
assert calls(5) == one and count() == before + 4      # OpenMP keeps its threads, we end ours
""")


@pytest.mark.parametrize(
    "settings",
    [
        {"OMP_NUM_THREADS": "1"},
        {"OMP_THREAD_LIMIT": "1"},
        {"OMP_THREAD_LIMIT": "2"},
        {"OMP_DYNAMIC": "true"},
        {"OMP_WAIT_POLICY": "passive"},
        {"OMP_SCHEDULE": "dynamic,3"},
    ],
)
def test_openmp_settings_of_a_user_change_no_bit(settings):
    script("assert all(calls(count) == one for count in (2, 5, 8, 2))", **settings)


@needs_fork
@pytest.mark.parametrize("before", [1, 4])
def test_a_forked_child_calls_and_loads_whatever_its_parent_did(before):
    script(
        """
calls(BEFORE)
def child(then):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        assert threads.forked() and threads.standalone_threads(num_threads=4) == 1
        ok = calls(4) == one and then()
        os._exit(0 if ok else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
def loads():
    import oxillama
    with oxillama.load(num_threads=2) as engine:
        return len(engine.generate("Once", max_tokens=3).tokens) == 3 and calls(3) == one
assert not threads.forked()
assert child(loads)
assert child(lambda: child(loads))
assert calls(4) == one
""".replace("BEFORE", str(before))
    )


@needs_openmp
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is enforced on Linux")
def test_a_refused_thread_is_an_error_not_the_end_of_the_process():
    script("""
import resource
from oxillama.errors import EngineError
assert calls(3) == one
resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, -1))
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
for call in (lambda: matmul(w, x, num_threads=1000),
             lambda: attend(np.repeat(k, 2, axis=1), memory, pages, 1, num_threads=1000),
             lambda: memory.write(pages, 1, 0, k, k, num_threads=1000),
             lambda: memory.copy(0, 1, num_threads=1000),
             lambda: memory.export(0, num_threads=1000)):
    try:
        call()
    except EngineError as error:
        assert "refused one of 999 threads" in str(error), error
    else:
        raise SystemExit("no error")
assert calls(2) == calls(4) == one
memory.release(0)                                      # nothing holds the memory any more
""")


@pytest.mark.skipif(sys.platform != "linux", reason="fesetround of glibc")
def test_rounding_that_a_program_set_changes_no_bit():
    libm = ctypes.CDLL("libm.so.6")
    rng = np.random.default_rng(5)
    w = PackedMatrix(rng.standard_normal((200, 96)).astype(np.float32).tobytes(), "F32", 200, 96)
    x = rng.standard_normal((3, 96)).astype(np.float32)
    expected = matmul(w, x).tobytes()
    step = program()
    memory, table = memory_for(step, 20)
    batch = Batch(np.arange(20), np.arange(20), [table], np.zeros(20, int), [])

    def rows(number):
        step.run_until(batch, memory, len(step) - 1)
        return step.slot(1, 20).tobytes()

    stepped = rows(1)
    upward = {"x86_64": 0x800, "aarch64": 0x400000}[os.uname().machine]
    try:
        assert libm.fesetround(upward) == 0
        found = [matmul(w, x, num_threads=count).tobytes() for count in (1, 3)] + [rows(1)]
        assert libm.fegetround() == upward
    finally:
        libm.fesetround(0)
    assert found == [expected, expected, stepped]


def test_threadpoolctl_limits_standalone_calls():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    import oxillama.threadpool  # noqa: F401  (registers the controller)

    most = 5 if threads.openmp_version() else 1
    assert threads.standalone_threads(num_threads=5) == most
    with threadpoolctl.threadpool_limits(
        2, user_api=oxillama.threadpool.OxillamaController.user_api
    ):
        assert threads.standalone_threads(num_threads=5) == min(2, most)
    assert threads.standalone_threads(num_threads=1) == 1


def test_whether_a_process_was_forked_is_read_from_its_flags(tmp_path):
    (tmp_path / "self").mkdir()
    for flags, found in ((4194304, False), (4194304 | 0x40, True)):
        (tmp_path / "self" / "stat").write_text(f"7 (a ) b) R 1 1 1 0 -1 {flags} 9 0")
        assert threads.forked(str(tmp_path)) is found
    (tmp_path / "self" / "stat").write_text("")
    assert threads.forked(str(tmp_path)) is False
