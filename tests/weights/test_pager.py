"""Models larger than the memory they may take: the same bits, within the budget, and errors that
say what happened.
"""

import gc
import os
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import oxillama
from oxillama._core.tape import Batch, CancelFlag
from oxillama.errors import Cancelled, ConfigError, EngineError, PagingError
from oxillama.gguf import GgufReader
from oxillama.model.drafts import early_exit
from oxillama.model.load import load_model
from oxillama.weights.offload import Budget, PinnedHotSet
from oxillama.weights.pressure import MemoryPressureProbe, MemoryUse
from tests.model import invented, tiny
from tests.model.stepping import logits
from tests.weights.paged import IDS, dense, mixture, size, whole

PROMPT = "Once upon a time"


def least(make, path, **options):
    """What `make(bytes)` allows with as few bytes as it takes, and the model."""
    nbytes = 1
    while True:
        try:
            return nbytes, load_model(GgufReader(path), offload=make(nbytes), **options)
        except ConfigError as error:
            wanted = int(re.search(r"wanted at least (\d+)", str(error))[1])
            assert wanted > nbytes
            nbytes = wanted


@pytest.fixture
def paged():
    """Models that are closed at the end, within `make(least number of bytes)`."""
    made = []

    def load(path, make=Budget, **options):
        _, model = least(make, path, num_threads=2, **options)
        made.append(model)
        assert model.pager is not None
        return model

    yield load
    for model in made:
        model.end(keep=False)


# ---- the same bits


@pytest.mark.parametrize("source", ("file", "direct", "mmap"))
@pytest.mark.parametrize(
    "kinds",
    (
        None,
        lambda name: "Q8_0",
        lambda name: "Q8_0" if "gate" in name or "attn_q" in name else "Q4_0",
    ),
    ids=("F32", "Q8_0", "mixed"),
)
def test_same_bits_from_any_source(tmp_path, paged, kinds, source):
    path = dense(tmp_path, kinds)
    wanted = logits(whole(path), IDS)
    model = paged(path, lambda nbytes: Budget(nbytes, source=source))
    for chunk in (512, 7):
        assert np.array_equal(logits(model, IDS, chunk=chunk), wanted)
    assert model.pager.stats().pages_read > 0


@pytest.mark.parametrize("share", (0.3, 0.6, 1.0))
def test_same_bits_within_any_budget(tmp_path, share):
    path = dense(tmp_path)
    full, wanted = size(path), logits(whole(path), IDS)
    floor = load_floor(path)
    budget = int(floor + share * (full - floor)) if share < 1 else 2 * full
    model = load_model(GgufReader(path), offload=Budget(budget), num_threads=2)
    assert (model.pager is None) == (share == 1.0)
    for _ in range(2):
        assert np.array_equal(logits(model, IDS), wanted)
    if model.pager is not None:
        assert model.pager.stats().resident_bytes <= budget
    model.end(keep=False)


def load_floor(path):
    floor, model = least(Budget, path)
    model.end(keep=False)
    return floor


@pytest.mark.parametrize(
    "arch",
    (
        *("gemma3n", "deepseek2", "granitehybrid", "qwen3moe", "gpt-oss", "llama4", "mamba2"),
        *("qwen4exp", "bert", "graniteswitch"),
    ),
)
def test_same_bits_of_architectures(tmp_path, paged, arch):
    path = tmp_path / "m.gguf"
    invented.invent(path, arch)
    plain = whole(path, num_threads=2)
    model = paged(path)
    for _ in range(2):
        assert np.array_equal(_rows(model), _rows(plain))


def _rows(model, count=20):
    memory, every = model.page_memory(), np.arange(count, dtype=np.int32)
    memory.ensure(2)
    slots = np.zeros(1, np.int32) if model.config.slot_layers else None
    if slots is not None:
        memory.ensure_slots(1)
    batch = Batch(every * 7 % 80, every, [every[:2]], 0 * every, every, slots=slots)
    output = "logits" if model.config.generates else "hidden"
    return np.array(model.program.step(batch, memory, output=output))


def test_same_bits_of_experts_one_by_one_and_together(tmp_path, paged):
    path = mixture(tmp_path)
    wanted = logits(whole(path), IDS)
    model = paged(path)
    for chunk in (512, 1, 5):  # all experts in turns through two slots; then a few a step
        assert np.array_equal(logits(model, IDS, chunk=chunk), wanted)


def test_programs_that_share_weights_take_turns(tmp_path, paged):
    path = dense(tmp_path)
    model = paged(path)
    draft, plain = early_exit(model, 1), early_exit(whole(path), 1)
    wanted = logits(whole(path), IDS), logits(plain, IDS)
    for _ in range(3):
        assert np.array_equal(logits(model, IDS), wanted[0])
        assert np.array_equal(logits(draft, IDS), wanted[1])


def test_programs_of_two_threads_take_turns(tmp_path, paged):
    model = paged(dense(tmp_path))
    draft, failed = early_exit(model, 2), []
    wanted = logits(draft, IDS)

    def run():
        for _ in range(10):
            if not np.array_equal(logits(draft, IDS), wanted):
                failed.append(1)

    thread = threading.Thread(target=run)
    thread.start()
    first = logits(model, IDS)
    for _ in range(10):
        assert np.array_equal(logits(model, IDS), first)
    thread.join()
    assert not failed


def test_part_of_a_tape(tmp_path, paged):
    """What the doctor does: some ops at a time."""
    path = dense(tmp_path)
    plain, model = whole(path), paged(path)
    every = np.arange(8, dtype=np.int32)
    batch = Batch(every, every, [every[:1]], 0 * every, every)
    for index in [i for i, op in enumerate(plain.tape.ops) if "out" in op.params][::4]:
        shown = []
        for one in (plain, model):
            memory = one.page_memory()
            memory.ensure(1)
            one.program.run_until(batch, memory, index)
            out = one.tape.ops[index].params["out"]
            shown.append(one.program.slot(out, 8))
        assert np.array_equal(shown[0], shown[1], equal_nan=True), index
    assert np.array_equal(logits(model, IDS), logits(plain, IDS))


# ---- what stays


def test_what_fits_is_not_paged(tmp_path):
    path = dense(tmp_path)
    model = load_model(GgufReader(path), offload=Budget(2 * size(path)))
    assert model.pager is None


def test_pinned_weights_are_read_once(tmp_path, paged):
    """The head and the last layer stay: a step reads what is left, and nothing twice."""
    model = paged(dense(tmp_path), lambda nbytes: PinnedHotSet(nbytes, pin_last_n_layers=1))
    logits(model, IDS)
    time.sleep(0.1)
    fixed = [op for op in model.pager.core.ops if op.resident == op.nbytes]
    names = {op.params["weights"][0].name for op in model.tape.ops if "weights" in op.params}
    assert "output.weight" in names and len(fixed) >= 5  # four products of a layer, and the head
    before = model.pager.stats()
    logits(model, IDS)
    after = model.pager.stats()
    assert after.page_hits - before.page_hits >= len(fixed)
    assert all(op.resident == op.nbytes for op in fixed)


def test_embeddings_that_are_pinned_are_in_memory(tmp_path, paged):
    path = dense(tmp_path)
    table = GgufReader(path).tensors["token_embd.weight"].nbytes
    with_it = paged(path, lambda n: PinnedHotSet(n, pin_embeddings=True, pin_output_head=False))
    without = paged(path, lambda n: PinnedHotSet(n, pin_embeddings=False, pin_output_head=False))
    assert with_it.pager.pins_embeddings and not without.pager.pins_embeddings
    assert with_it.pager.policy.ram_bytes - without.pager.policy.ram_bytes >= table
    assert np.array_equal(logits(with_it, IDS), logits(without, IDS))


def test_experts_used_most_stay(tmp_path):
    path = mixture(tmp_path)
    floor = load_floor(path)
    budget = floor + (size(path) - floor) // 2
    model = load_model(GgufReader(path), offload=Budget(budget), num_threads=2)
    cached = [op for op in model.pager.core.ops if op.routed]
    assert len(cached) == 2 * tiny.LAYERS and all(4 <= op.slots < 16 for op in cached)
    for _ in range(20):
        logits(model, [5])
    favourites = [op.kept()[:2] for op in cached]
    for token in range(20, 40):
        logits(model, [token])
    for op, two in zip(cached, favourites):
        assert set(two) <= set(op.kept())
    before = model.pager.stats().bytes_read
    routed = model.pager.stats().pages_read
    logits(model, [5])
    time.sleep(0.05)
    after = model.pager.stats()
    streamed = sum(not op.routed and op.resident < op.nbytes for op in model.pager.core.ops)
    assert streamed or after.pages_read == routed
    assert after.bytes_read - before < sum(
        op.nbytes for op in model.pager.core.ops if not op.routed
    )
    model.end(keep=False)


class Short(MemoryPressureProbe):
    """A system that is short of memory while `now` says so."""

    now = False

    def read(self):
        return MemoryUse(950 if self.now else 100, 1000)

    def limit(self):
        return None


def test_memory_is_given_back_while_it_is_short(tmp_path, monkeypatch):
    path = mixture(tmp_path)
    full = size(path)
    monkeypatch.setattr("oxillama.weights.pager.POLL_SECONDS", 0.0)
    model = load_model(GgufReader(path), offload=Budget(full), num_threads=2)
    wanted, pager = logits(whole(path), IDS), model.pager
    assert np.array_equal(logits(model, IDS), wanted)
    resident = pager.stats().resident_bytes
    pager.probe = probe = Short()
    probe.now = True
    for _ in range(3):
        assert np.array_equal(logits(model, IDS), wanted)
    assert pager.stats().shrunk_bytes > 0 and pager.stats().resident_bytes < resident
    probe.now = False
    pager._shrunk = 100  # what a system of 1,000 bytes takes at most
    for _ in range(2):
        assert np.array_equal(logits(model, IDS), wanted)
    assert pager.stats().shrunk_bytes == 0 and pager.stats().resident_bytes >= resident
    model.end(keep=False)


RESIDENT = """
import sys
import numpy as np
from oxillama._core.tape import Batch
from oxillama.gguf import GgufReader
from oxillama.model.load import load_model
from oxillama.weights.offload import Budget
def rss():
    fields = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return int(fields["VmRSS"].split()[0]) << 10
def run(model, memory, token):
    one = np.zeros(1, np.int32)
    model.program.step(Batch(one + token, one, [one], one, one), memory)
model = load_model(GgufReader(sys.argv[1]), offload=Budget(int(sys.argv[2])), num_threads=2)
memory = model.page_memory()
memory.ensure(1)
before, most = rss(), 0
for token in range(40):
    run(model, memory, token)
    most = max(most, rss() - before)
print(most)
model.end(keep=False)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("share", (0.3, 0.6))
def test_resident_memory_stays_within_the_budget(tmp_path, share):
    path = tmp_path / "m.gguf"
    shapes = {
        f"blk.{layer}.ffn_{name}.weight": (tiny.HIDDEN, 1 << 15)
        if name == "down"
        else (1 << 15, tiny.HIDDEN)
        for layer in range(tiny.LAYERS)
        for name in ("gate", "up", "down")
    }
    tiny.write(path, "qwen2", keys={"qwen2.feed_forward_length": 1 << 15}, tensors=shapes).close()
    full = os.path.getsize(path)
    assert full > 70 << 20  # the buffers of one step are little beside it
    budget = int(share * full)
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT, path, str(budget)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert budget // 4 < int(done.stdout) <= 1.1 * budget + (4 << 20)


FORKED = """
import os, pathlib, resource, signal, sys, threading, warnings
import numpy as np
from oxillama.errors import EngineError
from oxillama.gguf import GgufReader
from oxillama.model.load import load_model
from oxillama.weights.offload import Budget
from tests.model.stepping import logits
from tests.weights.paged import IDS
warnings.simplefilter("ignore")
model = load_model(GgufReader(sys.argv[1]), offload=Budget(int(sys.argv[2])), num_threads=1)
wanted, core = logits(model, IDS), model.pager.core
core.quiesce()  # for a child, as if a step or a reader was busy when it was forked off
pid = os.fork()
if pid == 0:
    signal.alarm(30)  # what waits for a thread of the parent's kills the child
    refused = 0
    if sys.argv[3] == "refused":
        for _ in range(16):  # the stacks of the parent's threads, which new ones would have
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE"), -1))
        for ask in (core.quiesce, core.restore):
            try:
                ask()
            except EngineError as error:
                refused += "the system refused a thread" in str(error)
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    else:
        refused = 2
    core.shrink(1)
    core.restore()
    os._exit(7 if refused == 2 and np.array_equal(logits(model, IDS), wanted) else 1)
core.resume()
assert np.array_equal(logits(model, IDS), wanted)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is enforced on Linux")
@pytest.mark.parametrize("case", ["free", "refused"])
@pytest.mark.parametrize("make", [dense, mixture])
def test_a_forked_child_reads_with_threads_of_its_own(tmp_path, make, case):
    path = make(tmp_path)
    nbytes, model = least(Budget, path)
    model.pager.close()
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(path), str(nbytes), case],
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


# ---- what goes wrong


def test_a_file_that_was_cut_is_told_and_nothing_hangs(tmp_path, paged):
    path = dense(tmp_path)
    model = paged(path)
    logits(model, IDS)
    model.pager.core.quiesce()
    model.pager.core.resume()
    os.truncate(path, os.path.getsize(path) - 4096)
    for _ in range(2):
        with pytest.raises(
            PagingError, match=r"m\.gguf at byte \d+ cannot be read: the file was changed"
        ):
            logits(model, IDS)


def test_a_page_that_was_lost_while_it_was_read_is_told(tmp_path, paged):
    """Though the file is as it was, to the time."""
    path = dense(tmp_path)
    model = paged(path, lambda nbytes: Budget(nbytes, source="mmap"))
    logits(model, IDS)
    model.pager.core.quiesce()
    data, status = path.read_bytes(), os.stat(path)
    os.truncate(path, 0)
    assert model.reader.shards[0].buffer[0] == 0
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    model.pager.core.resume()
    with pytest.raises(PagingError, match="cannot be read: Input/output error"):
        logits(model, IDS)


def test_a_file_that_another_took_the_place_of_is_still_read(tmp_path, paged):
    path = dense(tmp_path)
    model = paged(path)
    wanted = logits(model, IDS)
    (tmp_path / "other").write_bytes(b"other")
    os.replace(tmp_path / "other", path)
    assert np.array_equal(logits(model, IDS), wanted)


def test_a_model_in_memory_cannot_be_paged(tmp_path):
    raw = dense(tmp_path).read_bytes()
    with pytest.raises(ConfigError, match="in a file that can be read again"):
        load_model(GgufReader.from_bytes(raw), offload=Budget(1 << 20))


def test_more_than_the_machine_has_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(MemoryPressureProbe, "limit", lambda self: 1 << 20)
    path = dense(tmp_path)
    with pytest.raises(ConfigError, match=r"ram_bytes: found \d+, this process may use 1048576"):
        load_model(GgufReader(path), offload=Budget(size(path)))


def test_a_read_that_fails_ends_the_step_and_the_next_one_tries_again(tmp_path, paged):
    model = paged(dense(tmp_path))
    wanted, core = logits(model, IDS), model.pager.core
    core.quiesce()  # nothing is read meanwhile
    (file,) = core.descriptors
    kept, other = os.dup(file), os.open(os.devnull, os.O_WRONLY)
    os.dup2(other, file)
    core.resume()
    for _ in range(2):
        with pytest.raises(PagingError, match="cannot be read"):
            logits(model, IDS)
    core.quiesce()
    os.dup2(kept, file)
    core.resume()
    assert np.array_equal(logits(model, IDS), wanted)
    os.close(kept)
    os.close(other)


@pytest.fixture
def engine(tmp_path):
    """The embedded model, copied, in as little memory as it takes."""
    path = tmp_path / "m.gguf"
    path.write_bytes(oxillama.embedded_path().read_bytes())
    floor, model = least(Budget, path)
    model.end(keep=False)
    with oxillama.load(path, offload=Budget(floor), num_threads=2) as made:
        yield made, path


def test_an_engine_says_the_same(engine):
    with oxillama.load(num_threads=2) as plain:
        wanted = plain.generate(PROMPT, max_tokens=12, temperature=0).text
    made, _ = engine
    assert made.generate(PROMPT, max_tokens=12, temperature=0).text == wanted
    seen = made.metrics()
    assert seen.weight_pages_read_total > 0 and seen.weight_bytes_read_total > 0
    assert seen.weights_budget_bytes == made._loaded.model.pager.policy.ram_bytes
    assert 0 < seen.weights_resident_bytes <= seen.weights_budget_bytes < seen.weights_packed_bytes
    assert "oxillama_weight_pages_read_total" in seen.to_prometheus()


def test_requests_end_with_the_cause_and_the_engine_goes_on(engine):
    made, path = engine
    made.generate(PROMPT, max_tokens=4, temperature=0)
    stream = made.stream(PROMPT, max_tokens=4000, temperature=0)
    next(iter(stream))
    os.utime(path, ns=(1, 1))
    with pytest.raises(PagingError, match="the file was changed"):
        for _ in stream:
            pass
    with pytest.raises(EngineError, match="the file was changed"):
        made.generate("Another", max_tokens=4)
    assert made.metrics().requests_failed_total == 2


def test_a_step_that_waits_can_be_cancelled(tmp_path, paged):
    model = paged(dense(tmp_path))
    wanted = logits(model, IDS)
    flag, every = CancelFlag(), np.arange(8, dtype=np.int32)
    batch = Batch(every, every, [every[:1]], 0 * every, every)
    memory = model.page_memory()
    memory.ensure(1)
    flag.set()
    with pytest.raises(Cancelled):
        model.program.step(batch, memory, cancel=flag)
    assert np.array_equal(logits(model, IDS), wanted)


def test_closing_while_it_reads_ahead(tmp_path):
    path = dense(tmp_path)
    before = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 0
    for _ in range(20):
        _, model = least(Budget, path)
        logits(model, IDS)
        model.end(keep=False)
        with pytest.raises(EngineError, match="closed"):
            logits(model, IDS)
    del model
    if before:
        assert len(os.listdir("/proc/self/task")) <= before


def test_a_pager_that_is_forgotten_closes_its_files(tmp_path):
    path = dense(tmp_path).resolve()

    def opened():
        return sum(
            os.path.realpath(f"/proc/self/fd/{fd}") == str(path)
            for fd in os.listdir("/proc/self/fd")
        )

    if sys.platform == "linux":
        model = load_model(GgufReader(path), offload=Budget(size(path)))
        assert opened() >= 1
        del model
        gc.collect()
        assert opened() == 0


def test_config_takes_policies_alone():
    for bad in (1 << 30, "budget", True):
        with pytest.raises(ConfigError, match="offload: found"):
            oxillama.EngineConfig(offload=bad)
    config = oxillama.EngineConfig(offload=Budget(1 << 30))
    assert "offload" not in config.to_dict()  # of a machine, not of a conversation
