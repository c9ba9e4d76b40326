"""A model that answers before its weights are packed: the same bits, whoever packs them, and
nothing left running.
"""

import mmap
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import oxillama
from oxillama import quant
from oxillama._core.kernels import packable_formats
from oxillama._core.tape import Batch, CancelFlag
from oxillama.errors import Cancelled
from oxillama.gguf import GgufReader
from oxillama.model import load, load_model, tape_weights
from oxillama.model.drafts import early_exit
from oxillama.weights import packing
from oxillama.weights.writer import CacheWriter
from tests.model import tiny
from tests.model.stepping import logits

IDS = np.arange(40) * 37 % tiny.VOCAB
FFN = 3104  # gate and up are two chunks each, the second of two panels


@pytest.fixture(params=("F32", "Q8_0", "Q4_0", "mixed"))
def path(request, tmp_path):
    shapes = {
        f"blk.{layer}.ffn_{name}.weight": (tiny.HIDDEN, FFN)
        if name == "down"
        else (FFN, tiny.HIDDEN)
        for layer in range(tiny.LAYERS)
        for name in ("gate", "up", "down")
    }
    kinds = (
        (lambda name: "Q8_0" if "gate" in name or "attn_q" in name else "Q4_0")
        if request.param == "mixed"
        else lambda name: request.param
    )
    tiny.write(
        tmp_path / "m.gguf",
        "qwen2",
        formats=kinds,
        keys={"qwen2.feed_forward_length": FFN},
        tensors=shapes,
    ).close()
    return tmp_path / "m.gguf"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Models are large here, and units small; a first step waits for nobody, and later ones pack
    what is left, however slow the machine is.
    """
    monkeypatch.setattr(tape_weights, "PACKED_AT_ONCE", 0)
    monkeypatch.setattr(packing, "UNIT", 4096)
    monkeypatch.setattr(packing, "PATIENCE", 1e9)
    monkeypatch.delenv("OXILLAMA_SIDECAR", raising=False)


def unpacked(monkeypatch, path, *, packer=False, **options):
    """The model, nothing of it packed."""
    with monkeypatch.context() as patch:
        if not packer:
            patch.setattr(load, "Packer", lambda *some: None)
        return load_model(GgufReader(path), **options)


def whole(path):
    """The same model, packed before."""
    return load_model(GgufReader(path), num_threads=1, progress=lambda done, total: None)


class SlowUnits:
    """Units whose packing is another function."""

    def __init__(self, units, pack):
        self._units, self.pack = units, pack

    def __getattr__(self, name):
        return getattr(self._units, name)


def panels(model):
    return {key: bytes(matrix) for key, matrix in model.weights.items()}


@pytest.mark.parametrize("units", (0, 1, 40))
@pytest.mark.parametrize("threads", (1, 2))
def test_the_first_step_computes_the_same_over_unpacked_weights_and_packs_none(
    path, monkeypatch, threads, units
):
    packed = whole(path)
    for rows in (40, 7, 1):
        model = unpacked(monkeypatch, path, num_threads=threads)
        model.packing._units.pack(units)
        done = model.packing.done
        assert np.array_equal(logits(model, IDS[:rows]), logits(packed, IDS[:rows]))
        assert bool(units) == bool(done) and model.packing.done == done < model.packing.nbytes
        assert not model.program.representative


@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("chunk", (9, 1))
def test_the_second_step_packs_all_that_is_left(path, monkeypatch, threads, chunk):
    model, packed = unpacked(monkeypatch, path, num_threads=threads), whole(path)
    assert np.array_equal(logits(model, IDS, chunk=chunk), logits(packed, IDS))
    assert (
        model.packing.whole
        and model.packing.done == model.packing.nbytes
        and model.program.representative
    )
    assert panels(model) == panels(packed)


@pytest.mark.parametrize("name", sorted({name for name, *_ in packable_formats()}))
def test_every_format_of_a_file_multiplies_before_it_is_packed(name, tmp_path, monkeypatch):
    own = quant.quantize

    def repeated(values, kind):
        blocks = own(values[:16], kind).reshape(16, -1)
        return np.resize(blocks, (len(values), blocks.shape[1]))

    # of so many rows it would take long
    monkeypatch.setattr(tiny.quant, "quantize", repeated)
    wide = {
        "attn_q": (128, 256),
        "attn_k": (64, 256),
        "attn_v": (64, 256),
        "attn_output": (256, 128),
        "ffn_gate": (1280, 256),
        "ffn_up": (1280, 256),
        "ffn_down": (256, 1280),
        "attn_norm": (256,),
        "ffn_norm": (256,),
    }
    shapes = {f"blk.0.{tensor}.weight": shape for tensor, shape in wide.items()}
    shapes |= {
        tensor: None
        for tensor in tiny.shapes("llama")
        if tensor.startswith("blk.") and not tensor.startswith("blk.0.")
    }
    shapes |= {
        "token_embd.weight": (tiny.VOCAB, 256),
        "output.weight": (tiny.VOCAB, 256),
        "output_norm.weight": (256,),
    }
    tiny.write(
        tmp_path / "m.gguf",
        "llama",
        formats=lambda tensor: "F16" if "attn_output" in tensor else name,
        tensors=shapes,
        keys={
            "llama.embedding_length": 256,
            "llama.feed_forward_length": 1280,
            "llama.block_count": 1,
        },
    ).close()
    wanted, model = (
        logits(whole(tmp_path / "m.gguf"), IDS),
        unpacked(monkeypatch, tmp_path / "m.gguf", num_threads=2),
    )
    assert np.array_equal(logits(model, IDS), wanted) and not model.packing.whole
    assert np.array_equal(logits(model, IDS), wanted) and model.packing.whole


def test_later_steps_pack_for_as_long_as_the_last_one_took(path, monkeypatch):
    """By a clock that packing and steps move: ten seconds a group of units, thirty a step."""
    model, packed, clock = unpacked(monkeypatch, path), whole(path), [1.0]
    monkeypatch.setattr(packing, "PATIENCE", 0.0)
    monkeypatch.setattr(packing.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(packing, "FEW_UNITS", 1)
    own, step, waits = model.packing._units.pack, model.packing.end, []

    def pack(*most, **options):
        clock[0] += 10
        own(*most, **options)

    def end():
        clock[0] += 30
        step()

    monkeypatch.setattr(model.packing, "_units", SlowUnits(model.packing._units, pack))
    monkeypatch.setattr(model.packing, "end", end)
    wanted = logits(packed, IDS[:1])
    while not model.packing.whole:
        before, done = clock[0], model.packing.done
        assert np.array_equal(logits(model, IDS[:1]), wanted)
        waits.append((clock[0] - before, model.packing.done > done))
    # the first waits for nothing, the others pack for thirty seconds, the last to the end
    assert waits[0] == (30, False) and len(waits) > 3
    assert all(30 < seconds <= 30 + 60 and packs for seconds, packs in waits[1:])
    assert panels(model) == panels(packed)


def test_a_first_step_waits_where_that_is_soon_done(path, monkeypatch):
    monkeypatch.setattr(packing, "PATIENCE", 1e9)
    monkeypatch.setattr(packing, "UNIT", 64)
    model, packed = unpacked(monkeypatch, path), whole(path)
    assert model.packing.some()  # how long it takes is known
    assert np.array_equal(logits(model, IDS), logits(packed, IDS)) and model.packing.whole


def test_a_first_step_that_finds_packing_slower_than_it_seemed_goes_without(path, monkeypatch):
    model, packed, clock = unpacked(monkeypatch, path), whole(path), iter(range(10**6))
    monkeypatch.setattr(packing, "PATIENCE", 5)
    monkeypatch.setattr(packing.time, "perf_counter", lambda: next(clock))
    model.packing._byte_seconds = 1e-9
    assert (
        np.array_equal(logits(model, IDS), logits(packed, IDS))
        and 0 < model.packing.done < model.packing.nbytes
    )


def test_a_long_first_step_waits(path, monkeypatch):
    monkeypatch.setattr(packing, "MOST_ROWS", 39)
    model, packed = unpacked(monkeypatch, path), whole(path)
    assert np.array_equal(logits(model, IDS), logits(packed, IDS)) and model.packing.whole


def test_hidden_rows_are_the_same_before_and_after(path, monkeypatch):
    model, packed = unpacked(monkeypatch, path), whole(path)
    ids, none = IDS[:5].astype(np.int32), np.zeros(5, np.int32)
    every = np.arange(5, dtype=np.int32)

    def hidden(model):
        memory = model.page_memory()
        memory.ensure(1)
        return model.program.step(
            Batch(ids, every, [np.zeros(1, np.int32)], none, every), memory, output="hidden"
        ).copy()

    wanted = hidden(packed)
    assert np.array_equal(hidden(model), wanted) and not model.packing.whole
    assert np.array_equal(hidden(model), wanted) and model.packing.whole


def test_a_thread_packs_while_nobody_asks(path, monkeypatch):
    model = unpacked(monkeypatch, path, packer=True)
    model.packer.join(60)
    assert not model.packer.is_alive() and panels(model) == panels(whole(path))
    logits(model, IDS[:1])
    assert model.program.representative


def test_nobody_packs_during_a_step_over_unpacked_weights(path, monkeypatch):
    model = unpacked(monkeypatch, path)
    assert model.packing.begin(1) is True
    other = threading.Thread(target=model.packing.some)
    other.start()
    other.join(0.05)
    assert other.is_alive() and model.packing.done == 0
    model.packing.end()
    other.join(60)
    assert model.packing.done > 0


def test_a_step_that_was_cancelled_packs_no_further(path, monkeypatch):
    model = unpacked(monkeypatch, path)
    logits(model, IDS[:1])
    flag = CancelFlag()
    flag.set()
    memory = model.page_memory()
    memory.ensure(1)
    one = np.zeros(1, np.int32)
    with pytest.raises(Cancelled):
        model.program.step(Batch(one, one, [one], one, one), memory, cancel=flag)
    assert not model.packing.whole and not model.program.busy
    assert np.array_equal(logits(model, IDS), logits(whole(path), IDS))


@pytest.mark.parametrize(
    ("path", "at", "step"),
    (("Q8_0", "turn", True), ("Q8_0", "turn", False), ("Q8_0", "clock", True)),
    indirect=["path"],
)
def test_an_interrupt_leaves_nobody_with_the_turn_to_pack(path, monkeypatch, step, at):
    model, take = unpacked(monkeypatch, path), packing.Packing._take

    def interrupted(*some, **more):
        if more:
            take(*some, **more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(
            *((packing.Packing, "_take") if at == "turn" else (packing.time, "perf_counter")),
            interrupted,
        )
        model.packing.begin(1) if step else model.packing.some()
    after = threading.Thread(target=model.packing.finish, daemon=True)
    after.start()
    after.join(60)
    assert not after.is_alive() and model.packing.whole


def test_threads_that_step_two_programs_over_the_same_weights_get_the_same(path, monkeypatch):
    packed = whole(path)
    wanted, wanted_early = (
        logits(packed, IDS, chunk=5),
        logits(early_exit(packed, 1), IDS, chunk=5),
    )
    for _ in range(3):
        model = unpacked(monkeypatch, path, packer=True)
        with ThreadPoolExecutor(2) as threads:
            early = threads.submit(logits, early_exit(model, 1), IDS, chunk=5)
            assert np.array_equal(threads.submit(logits, model, IDS, chunk=5).result(), wanted)
            assert np.array_equal(early.result(), wanted_early)
        assert model.packing.whole and panels(model) == panels(packed)


def test_a_model_that_is_closed_ends_its_thread(path, monkeypatch):
    model = unpacked(monkeypatch, path, packer=True)
    model.end(keep=False)
    assert not model.packer.is_alive()


def test_a_program_that_is_dropped_ends_its_thread(path, monkeypatch):
    model = unpacked(monkeypatch, path)
    assert model.packing.begin(1) is True  # nobody packs meanwhile
    packer = packing.Packer(model.packing, model.program)
    held = model.packing
    del model
    held.end()
    packer.join(60)
    assert not packer.is_alive()


def test_the_bytes_of_a_model_in_memory_stay_as_they_are(path, monkeypatch):
    data = path.read_bytes()
    copy = bytes(bytearray(data))
    model = unpacked(monkeypatch, copy)
    assert np.array_equal(logits(model, IDS, chunk=9), logits(whole(path), IDS))
    assert model.packing.whole and copy == data


def test_a_file_that_is_closed_meanwhile_is_packed_to_its_end(path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(load, "Packer", lambda *some: None)
        with GgufReader(path) as reader:
            model = load_model(reader)
    model.pack()
    assert panels(model) == panels(whole(path))


@pytest.mark.parametrize("steps", (0, 1))
def test_a_sidecar_of_a_model_that_was_closed_at_once_is_that_of_a_packed_one(
    path, monkeypatch, tmp_path, steps
):
    finish = CacheWriter.finish
    monkeypatch.setattr(CacheWriter, "finish", lambda self: finish(self, 60.0))  # a busy machine
    files = []
    for name, progress in (("early", None), ("whole", lambda done, total: None)):
        model = unpacked(
            monkeypatch, path, packer=steps == 1, sidecar=tmp_path / name, progress=progress
        )
        for _ in range(steps):
            logits(model, IDS[:3])
        model.end(keep=True)
        assert model.writer.written
        (file,) = (tmp_path / name).iterdir()
        files.append(file.read_bytes())
    assert files[0] == files[1]
    assert load_model(GgufReader(path), sidecar=tmp_path / "early").packing is None


def test_an_engine_may_be_closed_at_any_moment_of_its_packing(path):
    for steps in range(3):
        with oxillama.load(path, sidecar=False) as engine:
            for _ in range(steps):
                engine.generate([1], max_tokens=1, sampler=oxillama.SamplerConfig.greedy())


def test_requests_of_several_threads_get_the_text_of_a_packed_model(path):
    greedy = oxillama.SamplerConfig.greedy()
    with oxillama.load(path, sidecar=False, progress=lambda done, total: None) as engine:
        wanted = [engine.generate([n], max_tokens=4, sampler=greedy).tokens for n in range(4)]
        embedded = engine.embed([1, 2, 3])
    with oxillama.load(path, sidecar=False) as engine:
        requests = [engine.submit([n], max_tokens=4, sampler=greedy) for n in range(4)]
        assert [request.result().tokens for request in requests] == wanted
    with oxillama.load(path, sidecar=False) as engine:
        assert np.array_equal(engine.embed([1, 2, 3]), embedded)


def test_a_raw_loop_runs_over_packed_weights(path):
    with oxillama.load(path, sidecar=False) as engine, engine.raw_loop() as loop:
        assert engine._loaded.model.packing.whole
        loop.prefill(0, [1, 2, 3])


def test_the_bytes_of_a_mapping_that_is_not_ours_stay(path):
    data = path.read_bytes()
    own = () if os.name == "nt" else (mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,)
    mapping = mmap.mmap(-1, len(data), *own)
    mapping[:] = data
    model = load_model(GgufReader(mapping), sidecar=False)
    model.pack()
    assert np.array_equal(logits(model, IDS), logits(whole(path), IDS)) and mapping[:] == data


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_of_one_that_was_packing_packs_for_itself_on_one_thread(path):
    code = f"""
import os, sys, threading
import numpy as np
from oxillama.gguf import GgufReader
from oxillama.model import load, load_model, tape_weights
from oxillama.weights import packing
from oxillama.weights.writer import CacheWriter
from tests.model.stepping import logits
tape_weights.PACKED_AT_ONCE, packing.UNIT, packing.PATIENCE = 0, 4096, 1e9
load.Packer = lambda *some: None
model = load_model(GgufReader({str(path)!r}), num_threads=1)
model.packing._units.pack(5, num_threads=1)
taken = threading.Event()
threading.Thread(target=lambda: (model.packing.begin(1), taken.set()), daemon=True).start()
taken.wait()                                        # as if in a step of another thread
child = os.fork()
if child == 0:
    sys.stdout.write(logits(model, np.arange(9), chunk=3).tobytes().hex())
    sys.stdout.flush()
    os._exit(0 if model.packing.whole else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert out.returncode == 0, out.stderr
    assert bytes.fromhex(out.stdout) == logits(whole(path), np.arange(9)).tobytes()


def test_an_interpreter_that_ends_while_it_packs_ends_well(path):
    code = f"""
import oxillama
from oxillama.model import tape_weights
from oxillama.weights import packing
from oxillama.weights.writer import CacheWriter
tape_weights.PACKED_AT_ONCE, packing.UNIT = 0, 1
engine = oxillama.load({str(path)!r}, sidecar=False)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (out.returncode, out.stderr) == (0, "")


def test_weights_that_memory_cannot_hold_are_refused(path, monkeypatch):
    need = unpacked(monkeypatch, path).packing.nbytes
    monkeypatch.setattr(tape_weights, "swap_bytes", lambda: 1000)
    monkeypatch.setattr(tape_weights, "available_bytes", lambda: need - 1001)
    with pytest.raises(MemoryError) as caught:
        whole(path)
    assert str(caught.value) == (
        f"{need} bytes for packed weights, the system and the process's control groups have "
        f"{need - 1001} (wanted more memory, or `offload`)"
    )
    monkeypatch.setattr(tape_weights, "available_bytes", lambda: need - 1000)
    assert panels(whole(path)) == panels(unpacked(monkeypatch, path))
