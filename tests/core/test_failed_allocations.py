"""A failed allocation anywhere in loading, steps, adapters, paged weights and samplers raises
MemoryError, or another error of this package that says so, and the same works afterwards.

The C allocator of a child process fails at the nth call from the compiled modules, for every n in
turn.
"""

import sys

import pytest

from tests.refusing import run_refused

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD is of Linux")

EVERY = r"""
import ctypes, gc, sys
from pathlib import Path
import numpy as np
import oxillama

shim, folder = ctypes.CDLL(sys.argv[1]), Path(sys.argv[2])


def every(make, work, end=lambda made: None):
    # whatever is refused while it works on what was made, it then works as it would have before
    made = make()
    wanted, tries = work(made), []
    end(made)
    for only in (1, 0):
        n = 0
        while True:
            made = make()
            shim.fail_at(n, only)
            try:
                got = work(made)
            except MemoryError:
                got = wanted
            except oxillama.OxillamaError as error:
                assert "Cannot allocate memory" in str(error), error
                got = wanted
            finally:
                calls = shim.calls_seen()
                shim.fail_at(-1, 1)
            assert got == wanted, (n, only)
            assert work(made) == wanted, (n, only)
            end(made)
            if calls <= n:
                break
            n += 1 if only else 1 + n // 3
        tries.append(n)
    print("whole", tries)
    assert min(tries) > 3, tries
"""


@pytest.mark.parametrize(
    "child",
    [
        pytest.param(
            r"""
def work(_):
    with oxillama.load(num_threads=2, n_ctx=256) as engine:
        return engine.generate("Once", max_tokens=4, temperature=0).text

every(lambda: None, work)
""",
            id="load",
        ),
        pytest.param(
            r"""
def work(engine):
    more = dict(max_tokens=4, temperature=0.8, seed=1, repeat_penalty=1.1, repeat_last_n=8)
    session = engine.session()
    first = engine.generate("Once upon a time", session=session, **more).text
    again = engine.restore(session.snapshot())
    return first, engine.generate(" and", session=again, **more).text

every(lambda: oxillama.load(num_threads=2, n_ctx=256), work, lambda engine: engine.close())
""",
            id="engine",
        ),
        pytest.param(
            r"""
from oxillama.lora.file import read_gguf_lora
from oxillama.lora.fit import fit
from oxillama.lora.stack import Adapters
from oxillama.model import load_model
from tests.lora.made import random_pair, write_lora
from tests.lora.test_architectures import rows_of
from tests.model.invented import invent

reader = invent(folder / "m.gguf", "llama")
rng = np.random.default_rng(3)
pairs = {
    name: random_pair(name, tuple(reader.tensors[name].shape), 3, rng)
    for name in ("blk.0.attn_q.weight", "blk.1.ffn_down.weight")
}
lora = read_gguf_lora(write_lora(folder / "a.gguf", "llama", pairs, alpha=6.0))

def work(model):
    return rows_of(model, Adapters([(fit(model, lora, lora.label), 0.5)])).tobytes()

every(lambda: load_model(reader, num_threads=2), work)
""",
            id="adapters",
        ),
        *(
            pytest.param(
                rf"""
from oxillama.gguf import GgufReader
from oxillama.model import load_model
from oxillama.weights.offload import Budget
from tests.model.stepping import logits
from tests.weights.paged import IDS, {make}
from tests.weights.test_pager import load_floor

path = {make}(folder)
budget = Budget(load_floor(path))

def load():
    return load_model(GgufReader(path), offload=budget, num_threads=2)

def work(model):
    return logits(model, IDS).tobytes()

def load_and_work(_):
    model = load()
    try:
        return work(model)
    finally:
        model.end(keep=False)

every(load, work, lambda model: model.end(keep=False))
every(lambda: None, load_and_work)
""",
                id=make,
            )
            for make in ("dense", "mixture")
        ),
    ],
)
def test_a_failed_allocation_raises_and_the_same_works_afterwards(tmp_path, child):
    assert "whole" in run_refused(tmp_path, EVERY + child)


def test_ops_that_a_pager_has_no_memory_for_leave_it_as_it_was(tmp_path):
    child = r"""
from oxillama.gguf import GgufReader
from oxillama.model import load_model
from oxillama.weights.offload import Budget
from tests.model.stepping import logits
from tests.weights.paged import IDS, mixture
from tests.weights.test_pager import load_floor

path = mixture(folder)
budget = Budget(load_floor(path))

def load():
    model = load_model(GgufReader(path), offload=budget, num_threads=2)
    logits(model, IDS)      # its pager has what these ops need
    return model

def join(model):
    # those of another program: a larger page than any so far, and experts
    core = model.pager.core
    whole = model.weights["blk.0.ffn_gate_exps.weight", 0, 512]
    for ask in (
        lambda: core.linear([whole], len(whole), False, 1),
        lambda: core.experts([whole], 16, 2, 1),
    ):
        before = list(core.ops)
        try:
            ask()
        except MemoryError:
            shim.fail_at(-1, 1)
            assert core.ops == before
            logits(model, IDS)
            raise
    shim.fail_at(-1, 1)
    return core.counts()["ring_bytes"], len(core.ops), logits(model, IDS).tobytes()

every(load, join, lambda model: model.end(keep=False))
"""
    assert "whole" in run_refused(tmp_path, EVERY + child)


def test_a_sampler_that_cannot_note_a_token_stays_as_it_was(tmp_path):
    child = r"""
from oxillama.sampling import Sampler, SamplerConfig

VOCAB = 3000
config = SamplerConfig(temperature=1.0, repetition_penalty=1.3, repetition_window=700)
row = np.sin(np.arange(VOCAB, dtype=np.float32))
tokens = np.random.default_rng(5).integers(0, VOCAB, 1500).tolist()

def facts(sampler):
    given = sampler.fork().distribution(row)
    return sampler._core.recent().tobytes(), given.ids.tobytes(), given.shares.tobytes()

plain, one = Sampler(config, VOCAB), Sampler(config, VOCAB)
refused = 0
for i, token in enumerate(tokens):
    before = None
    for n in range(5):
        shim.fail_at(n, 0)
        try:
            one.accept(token)
            break
        except MemoryError:
            shim.fail_at(-1, 1)
            refused += 1
            before = before or facts(one)
            assert facts(one) == before, (i, n)
        finally:
            shim.fail_at(-1, 1)
    plain.accept(token)
    if before is not None:
        assert facts(one) == facts(plain), i
core, wanted = one._core, facts(one)
state = core.rng, core.mu, core.generated, np.zeros(9, np.int32)
for n in range(4):
    shim.fail_at(n, 0)
    try:
        core.load(*state)
    except MemoryError:
        shim.fail_at(-1, 1)
        refused += 1
        assert facts(one) == wanted, n
    finally:
        shim.fail_at(-1, 1)
print("whole", refused)
assert refused > 15, refused
"""
    assert "whole" in run_refused(tmp_path, EVERY + child)
