"""Workers: how many there are, what is refused, and that barrier and chunk counter hold under more
workers than cores.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

from oxillama._core import threads
from oxillama._core.tape import Batch, PageMemory
from oxillama.errors import ConfigError
from tests.core.attention_program import memory_for, program


def test_default_never_exceeds_the_affinity():
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert 1 <= threads.default_threads() <= allowed


@pytest.mark.parametrize(("quota", "most"), [(None, 3), (1.5, 2), (0.2, 1), (8.0, 3)])
def test_available_cpus_are_those_of_the_affinity_within_the_quota(monkeypatch, quota, most):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 4, 5}, raising=False)
    monkeypatch.setattr(threads, "cgroup_cpus", lambda: quota)
    assert threads.available_cpus() == most


@pytest.mark.parametrize("value", [-1, 1025, 2.0, "2", True, None])
def test_impossible_thread_counts_raise(value):
    with pytest.raises(ConfigError):
        threads.barrier_seconds(10, num_threads=value)


STACKS = """
import os, resource, time
import oxillama
engine = oxillama.load(num_threads=3, sidecar=False)
python = {thread.native_id for thread in __import__("threading").enumerate()}
found = []
for task in {int(name) for name in os.listdir("/proc/self/task")} - python:
    while (said := open(f"/proc/self/task/{task}/syscall").read().split())[0] == "running":
        time.sleep(0.001)
    for line in open("/proc/self/maps"):
        low, high = (int(each, 16) for each in line.split()[0].split("-"))
        if low <= int(said[-2], 16) < high:
            found.append(high - low)
print(len(found), min(found) > 1 << 19)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread's stack is not to be seen")
def test_workers_have_large_stacks_where_threads_by_default_have_small_ones():
    command = ["sh", "-c", 'ulimit -s 256; exec "$0" -c "$1"', sys.executable, STACKS]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert (done.stdout, done.stderr) == ("2 True\n", "")


def test_quota_is_the_tightest_of_a_cgroup_and_its_parents(tmp_path):
    (tmp_path / "proc").write_text("0::/a/b\n")
    for folder, text in (("a", "150000 100000"), ("a/b", "max 100000")):
        (tmp_path / "sys" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys" / folder / "cpu.max").write_text(text)
    assert threads.cgroup_cpus(str(tmp_path / "proc"), str(tmp_path / "sys")) == 1.5
    (tmp_path / "sys" / "a" / "cpu.max").write_text("max 100000")
    assert threads.cgroup_cpus(str(tmp_path / "proc"), str(tmp_path / "sys")) is None


def test_quota_of_the_older_cgroups_is_read_too(tmp_path):
    (tmp_path / "proc").write_text("4:cpu,cpuacct:/x\n3:memory:/x\n")
    folder = tmp_path / "sys" / "cpu,cpuacct" / "x"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("400000")
    (folder / "cpu.cfs_period_us").write_text("100000")
    assert threads.cgroup_cpus(str(tmp_path / "proc"), str(tmp_path / "sys")) == 4.0


def test_a_system_without_such_files_tells_its_memory_by_a_call():
    found = threads.system_memory()
    if sys.platform == "win32":
        assert 0 < found[1] < found[0] and threads.default_threads() <= os.cpu_count()
    else:
        assert found is None


@pytest.mark.skipif(os.name == "nt", reason="names of files are text there")
def test_names_of_groups_and_processes_may_be_of_any_bytes(tmp_path):
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "cgroup").write_bytes(b"0::/caf\xe9\n")
    (tmp_path / "proc" / "self" / "stat").write_bytes(b"7 (caf\xe9) S 1 7 7 0 -1 64 1 0 0\n")
    folder = os.fsdecode(os.fsencode(tmp_path / "sys") + b"/caf\xe9")
    os.makedirs(folder)
    with open(os.path.join(folder, "cpu.max"), "w", encoding="ascii") as file:
        file.write("50000 100000")
    assert threads.cgroup_cpus(str(tmp_path / "proc" / "cgroup"), str(tmp_path / "sys")) == 0.5
    assert threads.forked(str(tmp_path / "proc"))  # as its flags say


def test_siblings_of_one_core_count_once(tmp_path):
    for cpu, core in ((0, "0,2"), (1, "1"), (2, "0,2")):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "core_cpus_list").write_text(core)
    assert threads.physical_cores([0, 1, 2], str(tmp_path)) == 2
    assert threads.physical_cores([0, 1, 2, 9], str(tmp_path)) == 3


@pytest.mark.parametrize("workers", [1, 2, 5, 18])
def test_barriers_end_whatever_the_number_of_workers(workers):
    assert threads.team_size(num_threads=workers) == workers
    assert threads.barrier_seconds(200, num_threads=workers) > 0
    assert threads.op_seconds(200, 7, num_threads=workers) > 0


def paced(most, seconds, steps, *, preempted=lambda workers, step: 0):
    """Workers of each step when a step of n workers takes seconds(n, step)."""
    adaptive, used = threads.AdaptiveWorkers(most), []
    for step in range(steps):
        used.append(adaptive.workers)
        adaptive.note(1, seconds(adaptive.workers, step), preempted(adaptive.workers, step))
    return used


def test_undisturbed_steps_keep_all_workers():
    assert set(paced(4, lambda n, step: 1 / n, 500)) == {4}
    assert set(paced(4, lambda n, step: 1 / n, 500, preempted=lambda n, step: step % 100 == 0)) == {
        4
    }


def test_a_busy_neighbour_leaves_fewer_workers_while_they_are_quicker():
    used = paced(2, lambda n, step: {1: 1.0, 2: 8.0}[n], 2000, preempted=lambda n, step: n == 2)
    assert used[:2] == [2, 2] and used.count(2) < 60 and used[-1] == 1
    assert (
        paced(
            8, lambda n, step: 9.0 if n == 8 else 1 / n, 100, preempted=lambda n, step: 2 * (n == 8)
        ).count(6)
        > 80
    )


def test_all_workers_come_back_when_the_neighbour_goes():
    used = paced(
        2,
        lambda n, step: 1.0 if n == 1 else 8.0 if step < 300 else 0.5,
        1500,
        preempted=lambda n, step: n == 2 and step < 300,
    )
    assert 1 in used[:300] and set(used[900:]) == {2}


def test_fewer_workers_are_not_kept_when_they_are_no_quicker():
    used = paced(2, lambda n, step: 2 / n, 2000, preempted=lambda n, step: n == 2)
    assert used.count(1) < 60


def test_a_busy_neighbour_is_seen_through_steps_of_changing_kinds():
    adaptive, used = threads.AdaptiveWorkers(2), []
    for step in range(400):
        rows = 1 + step % 8
        used.append(adaptive.workers)
        adaptive.note(rows, rows * {1: 31.0, 2: 95.0}[adaptive.workers], int(adaptive.workers == 2))
    assert used.count(2) < 40 and used[-1] == 1


def test_a_neighbour_that_only_shows_in_the_time_is_seen():
    used = paced(2, lambda n, step: 1.0 if n == 1 else 0.6 if step < 40 else 3.0, 400)
    assert set(used[:40]) == {2} and used.count(1) > 300


def test_steps_that_change_their_kind_do_not_keep_fewer_workers():
    adaptive = threads.AdaptiveWorkers(2)
    for _ in range(40):
        adaptive.note(1, {1: 1.0, 2: 8.0}[adaptive.workers], int(adaptive.workers == 2))
    assert adaptive.workers == 1
    for step in range(100):
        adaptive.note(2 + step % 2, 0.5, 0)
    assert adaptive.workers == 2


def starving(steps, busy, *, kinds=1):
    """(workers, seconds) of each step of a machine that has no core for a second worker while
    `busy(step)`: one then has a quarter of its core, two wait for each other a hundred times over.
    """
    adaptive, out = threads.AdaptiveWorkers(2), []
    for step in range(steps):
        workers, starved = adaptive.workers, busy(step)
        due = 0.03 / workers
        seconds = due if not starved else 4 * due if workers == 1 else 100 * due
        adaptive.note(step % kinds, seconds, workers if starved else 0, due * workers)
        out.append((workers, seconds))
    return out


@pytest.mark.parametrize("kinds", [1, 3])
def test_one_step_without_cores_is_enough_whatever_its_kind(kinds):
    used = starving(600, lambda step: True, kinds=kinds)
    assert [workers for workers, _ in used] == [2] + [1] * 599


@pytest.mark.parametrize("kinds", [1, 3])
def test_all_workers_come_back_once_cores_are_there(kinds):
    used = starving(900, lambda step: 10 <= step < 200, kinds=kinds)
    assert [workers for workers, _ in used[11:200]] == [1] * 189
    assert [workers for workers, _ in used[230:]].count(1) == 0
    assert sum(seconds for _, seconds in used) < 900 * 0.03 + 190 * 0.12 + 3


def test_workers_taken_off_their_cores_for_a_moment_are_kept():
    adaptive = threads.AdaptiveWorkers(2)
    for step in range(2000):
        seconds = 0.006 * (2.6 if step % 100 == 99 else 1)
        ran = 1.99 * 0.006 if step % 100 == 99 else 1.99 * seconds
        adaptive.note(1, seconds, step % 3, ran)
        assert adaptive.workers == 2


def test_a_neighbour_of_some_steps_is_waited_out_for_few():
    adaptive, used = threads.AdaptiveWorkers(2), []
    for step in range(1000):
        workers, taken = adaptive.workers, 500 <= step < 504
        used.append(workers)
        seconds = 0.006 * (2 / workers) * (4 if taken and workers == 2 else 1)
        adaptive.note(1, seconds, 2 * taken, seconds if taken else seconds * workers)
    assert set(used[:500]) == {2} and 1 in used[500:] and used.count(1) <= 32


def test_a_neighbour_of_a_moment_costs_many_workers_little_more_than_its_moment():
    """A burst of 18 ms on all cores but one, every 300 ms: a step of more workers lasts until it
    ends. One worker takes eleven times as long as all.
    """
    adaptive, now, steps = threads.AdaptiveWorkers(16), 0.0, 2000
    for _ in range(steps):
        workers = adaptive.workers
        due, left = 0.0004 + 0.0144 / workers, 0.018 - now % 0.3
        seconds = due + max(0.0, left) * (workers > 1)
        taken = (workers - 1) * (left > 0)
        adaptive.note(1, seconds, taken, due * workers)
        now += seconds
    lost = now - steps * 0.0013
    assert lost / (now / 0.3) < 0.018 + 0.0135 + 0.002


def test_a_neighbour_that_stays_costs_many_workers_few_trials():
    """Fifteen cores of sixteen are shared for good: a step of more workers takes 450 ms."""
    adaptive, now = threads.AdaptiveWorkers(16), 0.0
    for step in range(1500):
        workers = adaptive.workers
        due = 0.0004 + 0.0144 / workers
        shared = workers > 1 and step >= 50
        adaptive.note(1, 0.45 if shared else due, (workers - 1) * shared, due * workers)
        now += 0.45 if shared else due
    assert now < 1450 * 0.0148 * 1.3


def test_a_single_step_without_cores_costs_few_steps_with_fewer_workers():
    used = starving(200, lambda step: step == 20)
    assert 1 <= [workers for workers, _ in used].count(1) <= 16


def test_more_workers_than_cores_give_the_same_bits():
    results = []
    for workers in (1, 2, 3, 8, 18):
        step = program(q_heads=6, kv_heads=2, k_dim=16, num_threads=workers)
        memory, table = memory_for(step, 700)
        step.run_until(
            Batch(np.arange(300) % 64, np.arange(300), [table], np.zeros(300, int), []),
            memory,
            len(step) - 1,
        )
        step.run_until(Batch([5], [300], [table], [0], []), memory, len(step) - 1)
        results.append(step.slot(1, 1).tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"OMP_NUM_THREADS": "1"},
        {"OMP_WAIT_POLICY": "passive"},
        {"OMP_DYNAMIC": "true"},
        {"OMP_THREAD_LIMIT": "1"},
        {"OMP_PROC_BIND": "true"},
    ],
)
def test_users_openmp_settings_neither_stop_nor_change_a_step(settings):
    code = (
        "import numpy as np; from oxillama._core.tape import Batch; from "
        "tests.core.attention_program import program, memory_for;p = program(num_threads=2); m, t "
        "= memory_for(p, 64);p.run_until(Batch(np.arange(40), np.arange(40), [t], np.zeros(40, "
        "int), []), m, len(p) - 1);print(p.slot(1, 40).tobytes().hex())"
    )
    plain, changed = (
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **extra},
            capture_output=True,
            text=True,
            timeout=60,
        )
        for extra in ({}, settings)
    )
    assert plain.returncode == changed.returncode == 0, changed.stderr
    assert plain.stdout == changed.stdout


FORKED = """
import os, signal, warnings
import numpy as np
from oxillama._core import threads
from oxillama._core.tape import Batch
from tests.core.attention_program import memory_for, program
warnings.simplefilter("ignore")
p = program(num_threads=WORKERS)
memory, table = memory_for(p, 64)
batch = Batch(np.arange(40), np.arange(40), [table], np.zeros(40, int), [])
p.run_until(batch, memory, 2)
before = p.slot(1, 40)
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    p.run_until(batch, memory, 2)
    same = np.array_equal(p.slot(1, 40), before)
    os._exit(7 if same and threads.team_size(num_threads=3) == 3 else 1)
p.run_until(batch, memory, 2)
assert np.array_equal(p.slot(1, 40), before)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_program_steps_in_a_forked_child_on_threads_of_its_own(workers):
    code = FORKED.replace("WORKERS", str(workers))
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


REFUSED = """
import os, resource, signal, threading, warnings
import numpy as np
from pathlib import Path
from oxillama.errors import EngineError
from oxillama._core.tape import Batch
from tests.core.attention_program import memory_for, program
warnings.simplefilter("ignore")
p = program(num_threads=5)
memory, table = memory_for(p, 64)
batch = Batch(np.arange(40), np.arange(40), [table], np.zeros(40, int), [])
p.run_until(batch, memory, 2)
before = p.slot(1, 40)
pid = os.fork()
if pid == 0:
    signal.alarm(20)  # a step that waits for a thread that is not there kills the child
    for _ in range(16):  # the stacks of the parent's threads, which new ones would have
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used, -1))  # no room for a stack
    refused = 0
    for _ in range(2):
        try:
            p.run_until(batch, memory, 2)
        except EngineError as error:
            refused += "refused one of 4 threads" in str(error)
    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    p.run_until(batch, memory, 2)
    os._exit(7 if refused == 2 and np.array_equal(p.slot(1, 40), before) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is enforced on Linux")
def test_a_forked_child_whose_threads_were_refused_asks_for_them_again():
    code = [sys.executable, "-c", REFUSED]
    done = subprocess.run(code, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_loads_a_model_after_its_parent_did():
    code = (
        "import multiprocessing, oxillama, warnings; from concurrent.futures import "
        "ProcessPoolExecutor\nwarnings.simplefilter('ignore')\n"
        "def text(_):\n"
        "    with oxillama.load(num_threads=2) as engine:\n"
        "        return engine.generate('Once', max_tokens=4, "
        "sampler=oxillama.SamplerConfig.greedy()).text\nhere = text(0)\n"
        "with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context('fork')) as pool:\n"
        "    assert list(pool.map(text, range(2))) == [here, here]"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is enforced on Linux")
def test_a_refused_thread_is_an_error_where_the_model_is_loaded():
    code = (
        "import oxillama, resource\n"
        "resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, -1))\n"
        "resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))\n"
        "try:\n    oxillama.load(num_threads=1000)\n"
        "except oxillama.EngineError as error:\n    assert 'refused one of 999 threads' in "
        "str(error), error\nelse:\n    raise SystemExit(3)\n"
        "with oxillama.load(num_threads=2) as engine:\n    assert engine.num_threads == 2"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_number_of_threads_in_the_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("OXILLAMA_NUM_THREADS", "3")
    assert threads.default_threads() == threads.worker_count(0) == 3
    assert threads.worker_count(2) == 2  # what a caller says goes first
    for wrong in ("0", "-1", "1025", "two", "1.5", "٣", "9" * 30):
        monkeypatch.setenv("OXILLAMA_NUM_THREADS", wrong)
        with pytest.raises(ConfigError, match="OXILLAMA_NUM_THREADS"):
            threads.worker_count(0)


def test_work_runs_on_as_many_threads_as_were_asked_for():
    sizes = [threads.team_size(num_threads=n) for n in (1, 4, 2, 3)]
    assert sizes == [1, 4, 2, 3]


def test_memory_may_not_be_released_under_a_step():
    memory = PageMemory([(1, 16, 16)])
    memory.ensure(4)
    memory.release(0)
    assert memory.capacity == 0
