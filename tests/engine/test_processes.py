"""A process that was forked off has no loop: every door says so at once, while the parent's
requests go on.
"""

import os
import signal
import subprocess
import sys

import pytest

import oxillama
from oxillama import SamplerConfig

LONG = dict(max_tokens=400, sampler=SamplerConfig.greedy(ignore_eos=True))


def doors(engine, session, running, stream):
    """Every way to ask something of an engine, by name."""
    return {
        "submit": lambda: engine.submit("Once"),
        "generate": lambda: engine.generate("Once"),
        "many": lambda: engine.generate(["Once", "One"]),
        "stream": lambda: engine.stream("Once"),
        "logits": lambda: engine.logits([1, 2]),
        "session": engine.session,
        "prefill": lambda: engine.prefill("Once"),
        "forward_one": lambda: engine.forward_one(3),
        "truncate": lambda: engine.truncate(0),
        "reset": engine.reset,
        "embed": lambda: engine.embed("Once"),
        "embed_batch": lambda: engine.embed_batch(["Once"]),
        "metrics": engine.metrics,
        "clear_cache": engine.clear_cache,
        "config": lambda: engine.config,
        "fork": session.fork,
        "session.truncate": lambda: session.truncate(1),
        "session.close": session.close,
        "result": running.result,
        "follow": lambda: list(stream),
        "iterate": lambda: list(running),
        "raw_loop": lambda: engine.raw_loop().__enter__(),
        "diagnose": lambda: list(engine.diagnose([1])),
    }


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_every_door_of_a_forked_process_says_so_and_none_hangs(cases):
    with oxillama.load(cases / "stories260K" / "stories260K-f32.gguf") as engine:
        session = engine.session()
        engine.prefill("One day", session=session)
        stream = engine.stream("Once upon a time", **LONG)
        next(stream)
        running = engine.submit("Lily", **LONG)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            signal.alarm(20)  # a door that hangs kills the child
            wrong = []
            try:
                for name, door in doors(engine, session, running, stream).items():
                    try:
                        door()
                        wrong.append(f"{name} answered")
                    except oxillama.EngineError as error:
                        if "load a model in this process" not in str(error):
                            wrong.append(f"{name}: {error}")
                    except BaseException as error:
                        wrong.append(f"{name}: {error!r}")
                for shown in map(repr, (engine, oxillama.AsyncEngine(engine), session, stream)):
                    if not shown.startswith("<"):
                        wrong.append(shown)
                if "; engine: was loaded by process" not in engine._repr_html_():
                    wrong.append(engine._repr_html_())
                engine.close()
            finally:
                os.write(write, "; ".join(wrong).encode())
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as told:
            assert told.read() == ""
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (
            len(running.result(60).tokens) == 400
            and sum(len(piece.tokens) for piece in stream) == 399
        )


@pytest.mark.parametrize("end", ["", "import os; os._exit(0)", "import sys; sys.exit(0)"])
def test_a_process_that_ends_while_its_engine_works_does_not_hang(cases, end):
    path = str(cases / "stories260K" / "stories260K-f32.gguf")
    code = (
        f"import oxillama; engine = oxillama.load({path!r}); request = engine.submit('Once', "
        f"max_tokens=400); {end}"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_model_loaded_after_the_fork_serves_in_the_child(cases):
    path = cases / "stories260K" / "stories260K-f32.gguf"
    with oxillama.load(path, num_threads=2) as engine:
        wanted = engine.generate("Once", max_tokens=2, sampler=SamplerConfig.greedy()).tokens
        child = os.fork()
        if not child:
            signal.alarm(20)
            code = 1
            try:
                with oxillama.load(path, num_threads=2) as own:
                    found = own.generate("Once", max_tokens=2, sampler=SamplerConfig.greedy())
                code = 0 if found.tokens == wanted else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
