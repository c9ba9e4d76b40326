"""Compiled objects that threads share: nothing in them depends on a GIL."""

import importlib
import pkgutil
import random
import sys
import sysconfig
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import oxillama._core
from oxillama._core.pool import PageMemory
from oxillama._core.sampler import logprobs
from oxillama.grammar import Grammar, GrammarLimits, TokenMasker

THREADS = 6
GRAMMAR = r"""
root ::= "[" item ("," item){0,9} "]"
item ::= [a-z]{1,12} | "\"" [^"\\]* "\"" | root | [0-9]+ ("." [0-9]{1,3})?
"""
PIECES = [bytes([i]) for i in range(32, 127)] + [b"ab", b'","', b"]]", b"[[", b"0.5", "é".encode()]
# so few that the machine is emptied again and again while the others walk
LIMITS = GrammarLimits(max_configs=64)


def walk(masker, grammar, seed):
    """The masks of a random walk with forks, as bytes."""
    rng, seen = random.Random(seed), []
    states = [masker.state(grammar)]
    for _ in range(120):
        state = rng.choice(states)
        mask = state.mask()
        seen.append(mask.tobytes())
        ids = [i for i in range(len(PIECES)) if mask[i >> 5] >> (i & 31) & 1]
        if ids:
            masker.advance(state, rng.choice(ids))
        if rng.random() < 0.2:
            states.append(state.fork())
        if len(states) > 5:
            del states[rng.randrange(len(states))]
    return seen


def together(work):
    """work(i) of every thread, all begun at once."""
    gate = threading.Barrier(THREADS)

    def one(number):
        gate.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(one, range(THREADS)))


def masker():
    return TokenMasker(PIECES, eog_ids={0}, cache_bytes=0)


def test_threads_that_share_a_grammar_get_the_masks_of_one_alone():
    alone = [walk(masker(), Grammar.parse(GRAMMAR, limits=LIMITS), seed) for seed in range(THREADS)]
    shared, grammar = masker(), Grammar.parse(GRAMMAR, limits=LIMITS)
    assert together(lambda seed: walk(shared, grammar, seed)) == alone


def test_threads_that_share_scratch_memory_get_the_numbers_of_one_alone():
    rows = np.random.default_rng(3).normal(size=(THREADS, 600)).astype(np.float32)
    alone = [logprobs(row, 7, 5) for row in rows]
    assert together(lambda i: [logprobs(rows[i], 7, 5) for _ in range(200)]) == [
        [each] * 200 for each in alone
    ]


def test_threads_read_pages_and_sizes_while_others_give_and_take_them():
    """Without a GIL `tools/sanitize.sh thread` reports what is read while it is written."""
    memory = PageMemory([(1, 32, 32)] * 2, windows=[0, 32])
    memory.ensure(32)
    for page in range(16):
        memory.attach(page)
        memory.load(page, bytes([page]) * memory.page_bytes)

    def work(number):
        for i in range(40):
            if number == 0:
                memory.ensure(33 + 500 * i)
            elif number == 1:
                memory.attach(16 + i % 8)
                memory.detach(16 + i % 8)
            elif number == 2:
                memory.release(32)
            else:
                assert memory.capacity >= 32 and min(memory.made) >= 16 and memory.memory_bytes
                assert memory.attached(i % 16)
                assert set(memory.export(i % 16)) == {i % 16}

    together(work)
    assert [memory.export(page)[0] for page in range(16)] == list(range(16))


def test_no_module_needs_a_gil():
    for found in pkgutil.iter_modules(oxillama._core.__path__):
        importlib.import_module(f"oxillama._core.{found.name}")
    free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    assert getattr(sys, "_is_gil_enabled", lambda: True)() is not free


class Watched(OrderedDict):
    """Notes whether a thread reads or changes it while another one does."""

    inside, overlapped = 0, False

    def _alone(self, act):
        Watched.inside += 1
        Watched.overlapped |= Watched.inside > 1
        time.sleep(1e-3)  # lets the others come
        try:
            return act()
        finally:
            Watched.inside -= 1

    def get(self, *given):
        return self._alone(lambda: OrderedDict.get(self, *given))

    def pop(self, *given):
        return self._alone(lambda: OrderedDict.pop(self, *given))

    def popitem(self, last=True):
        return self._alone(lambda: OrderedDict.popitem(self, last))

    def __setitem__(self, key, value):
        self._alone(lambda: OrderedDict.__setitem__(self, key, value))


def test_one_thread_at_a_time_uses_the_cached_masks():
    """The links of an ordered dict break where threads without a GIL change it together."""
    shared, grammar = masker(), Grammar.parse(GRAMMAR, limits=LIMITS)
    shared._masks._masks = Watched()
    alone = [walk(masker(), Grammar.parse(GRAMMAR, limits=LIMITS), seed) for seed in range(THREADS)]
    assert together(lambda seed: walk(shared, grammar, seed)) == alone
    assert not Watched.overlapped
    assert shared.cached_masks <= 16
