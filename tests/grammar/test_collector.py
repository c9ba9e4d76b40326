"""The pause of Python's garbage collector during a compilation."""

import gc
import threading

import pytest

from oxillama.grammar import JsonSchemaCompiler
from oxillama.grammar.collector import paused_collector


@pytest.fixture
def collector():
    was = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was else gc.disable)()


def test_a_block_inside_another_does_not_end_its_pause(collector):
    with paused_collector():
        assert not gc.isenabled()
        with paused_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_ends_the_pause(collector):
    with pytest.raises(ValueError, match="inside"), paused_collector():
        raise ValueError("inside")
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off(collector):
    gc.disable()
    with paused_collector():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_the_thread_that_paused_it_resumes_it(collector):
    inside, leave = threading.Event(), threading.Event()

    def later():
        with paused_collector():
            inside.set()
            assert leave.wait(10)

    with paused_collector():
        thread = threading.Thread(target=later)
        thread.start()
        assert inside.wait(10)
    assert gc.isenabled()  # although the other block still runs
    leave.set()
    thread.join(10)
    assert gc.isenabled()


def test_a_compilation_pauses_and_resumes_it(collector):
    seen = []

    class Watched(dict):
        def __iter__(self):
            seen.append(gc.isenabled())
            return super().__iter__()

        def items(self):
            seen.append(gc.isenabled())
            return super().items()

    JsonSchemaCompiler().compile(Watched(type="string"))
    assert seen
    assert not any(seen)
    assert gc.isenabled()
