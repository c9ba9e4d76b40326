"""A thread that the system refuses, whichever it is: one error that says so, nothing that is left
behind, and an engine that goes on.
"""

import gc
import os
import subprocess
import sys
import threading

import pytest

import oxillama
from oxillama.errors import EngineError
from oxillama.model import tape_weights

TEXT = "Once upon a time"


class Limit:
    """Refuses the thread that is the `at`-th to start, as a system out of threads does."""

    def __init__(self, monkeypatch):
        self.at, self.count, self.refused = 0, 0, ""
        self._start = threading.Thread.start
        monkeypatch.setattr(threading.Thread, "start", lambda thread: self.start(thread))

    def start(self, thread):
        self.count += 1
        if self.count != self.at:
            return self._start(thread)
        self.refused = thread.name
        raise RuntimeError("can't start new thread")


def used(sidecar, snapshot):
    """What an engine says, with each of the ways in which it takes threads."""
    with oxillama.load(sidecar=sidecar, num_threads=1) as engine:
        session = engine.session()
        text = engine.generate(TEXT, session=session, max_tokens=4, temperature=0, timeout=60).text
        session.snapshot_to_file(snapshot)
        again = engine.restore_from_file(snapshot)
        more = engine.generate(
            None, session=again, max_tokens=4, temperature=0, processors=[lambda ids, row: None]
        ).text
        ids = engine.tokenizer.encode_batch([TEXT * 400] * 40)
        return text, more, ids


@pytest.fixture
def limit(monkeypatch):
    monkeypatch.delenv("OXILLAMA_SIDECAR", raising=False)
    monkeypatch.setattr(tape_weights, "PACKED_AT_ONCE", 0)
    return Limit(monkeypatch)


@pytest.mark.parametrize("mapped", (False, True))
def test_whichever_thread_is_refused_the_error_says_so_and_nothing_is_left(limit, tmp_path, mapped):
    folder, snapshot = tmp_path / "panels", tmp_path / "session"
    want = used(folder if mapped else False, snapshot)
    limit.count = 0
    assert used(folder if mapped else False, snapshot) == want
    gc.collect()
    starts, open_files = limit.count, len(os.listdir("/proc/self/fd"))
    seen = set()
    for at in range(1, starts + 1):
        limit.at, limit.count = at, 0
        with pytest.raises(EngineError, match="threads: the system refused one, wanted a higher"):
            used(folder if mapped else False, snapshot)
        seen.add(limit.refused)
        limit.at = 0
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == open_files, limit.refused
        assert used(folder if mapped else False, snapshot) == want
    named = {"oxillama engine", "oxillama deadlines", "oxillama worker"}
    assert seen >= named | {"oxillama verifier" if mapped else "oxillama packing"}


@pytest.mark.parametrize("name", ("oxillama worker", "oxillama deadlines"))
def test_an_engine_goes_on_after_a_thread_that_was_refused(limit, monkeypatch, name):
    asked = {"max_tokens": 4, "temperature": 0}
    needs = (
        {"timeout": 60} if name == "oxillama deadlines" else {"processors": [lambda *some: None]}
    )
    with oxillama.load(num_threads=1) as engine:
        want = engine.generate(TEXT, **asked).text
        limit.at, limit.count = 1, 0
        with pytest.raises(EngineError, match="the system refused one"):
            engine.generate(TEXT, **asked, **needs)
        assert limit.refused == name
        assert engine.generate(TEXT, **asked, **needs).text == want
        assert engine.metrics().requests_running == 0


def test_a_process_whose_background_threads_were_refused_ends_quietly(tmp_path):
    code = f"""
import threading, oxillama
from oxillama.model import tape_weights
tape_weights.PACKED_AT_ONCE = 0
start = threading.Thread.start
def limited(thread):
    if thread.name in ("oxillama packing", "oxillama sidecar", "oxillama verifier"):
        raise RuntimeError("can't start new thread")
    start(thread)
oxillama.load(sidecar={str(tmp_path / "panels")!r}).close()
threading.Thread.start = limited
for sidecar in (False, {str(tmp_path / "panels")!r}, {str(tmp_path / "others")!r}):
    try:
        oxillama.load(sidecar=sidecar)
    except oxillama.EngineError as error:
        print(error)
"""
    environment = {k: v for k, v in os.environ.items() if k != "OXILLAMA_SIDECAR"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stderr == ""
    line = "threads: the system refused one, wanted a higher limit of threads, or more memory"
    assert done.stdout.splitlines() == [line] * 3
