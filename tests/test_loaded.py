"""What an engine has loaded, and how long it is kept."""

import gc
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import oxillama
from oxillama.chat import Chat
from tests.speculative.law import written

LONG = oxillama.SamplerConfig.greedy(ignore_eos=True)


def test_every_sibling_keeps_its_engine_to_its_end():
    engine = oxillama.load(num_threads=1)
    first, second, third = engine.submit(
        "Once upon a time", n=3, max_tokens=150, sampler=LONG
    ).requests
    while not second.generated:
        time.sleep(0.001)
    first.cancel()
    first.wait()
    del engine, first
    gc.collect()
    assert [each.result(20).finish_reason for each in (second, third)] == ["length", "length"]


@pytest.fixture
def uncollected():
    """Without the garbage collector, which does not know how much memory an object holds."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def served(path, **options):
    """(an engine that has served, references to what holds its weights)."""
    data = np.fromfile(path, np.uint8)
    engine = oxillama.load_model_from_bytes(data, num_threads=1, **options)
    engine.generate([5, 6, 7], max_tokens=4)
    held = [weakref.ref(data), weakref.ref(engine.loaded.core.program)]
    return engine, held


@pytest.mark.parametrize("speculative", ["auto", "early_exit:2", None])
def test_a_closed_engine_frees_its_model_at_once(uncollected, tmp_path, speculative):
    path = written(tmp_path / "m.gguf", "hy_v3", further=1)
    engine, held = served(path, speculative=speculative)
    session = engine.session()
    engine.prefill([3, 4], session=session)
    engine.close()
    assert [each() for each in held] == [None, None]
    for asked in (session.snapshot, engine.snapshot, engine.metrics, engine.session):
        with pytest.raises(oxillama.EngineError, match="engine: is closed"):
            asked()


def test_a_closed_engine_frees_paged_weights_at_once(uncollected):
    with pytest.raises(oxillama.ConfigError, match="wanted at least") as caught:
        oxillama.load(offload=oxillama.Budget(1), num_threads=1)
    least = int(str(caught.value).split("wanted at least ")[1].split()[0])
    engine = oxillama.load(offload=oxillama.Budget(least), num_threads=1)
    engine.generate("Once", max_tokens=2)
    held = weakref.ref(engine.loaded.model.pager)
    engine.close()
    assert held() is None


@pytest.mark.parametrize("used", [True, False])
def test_an_engine_that_is_dropped_frees_its_model_without_the_collector(uncollected, used):
    if used:
        engine, held = served(oxillama.embedded_path())
    else:  # its loop has never run
        engine = oxillama.load(num_threads=1)
        held = [weakref.ref(engine.loaded.core.program)]
    del engine
    end = time.monotonic() + 20
    while any(each() is not None for each in held):
        assert time.monotonic() < end
        time.sleep(0.001)


def test_nothing_is_read_in_the_encoding_of_the_locale():
    code = "import oxillama; print(oxillama.load(num_threads=1).generate([5], max_tokens=1))"
    strict = ["-X", "warn_default_encoding", "-W", "error::EncodingWarning"]
    done = subprocess.run([sys.executable, *strict, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


ASKED = [{"role": "user", "content": "Hello!"}]
CHATML = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"


def without_template(folder):
    """The embedded model's file as if it had been made without a chat template."""
    whole, key = oxillama.embedded_path().read_bytes(), b"tokenizer.chat_template"
    (folder / "m.gguf").write_bytes(whole.replace(key, b"x" * len(key)))
    return folder / "m.gguf"


def test_a_file_without_a_template_is_talked_to_through_the_one_that_is_given(tmp_path):
    path = without_template(tmp_path)
    with (
        oxillama.load(path, num_threads=1) as engine,
        pytest.raises(oxillama.TemplateError, match="chat_template="),
    ):
        engine.chat(ASKED)
    for given in ("chatml", "{% for m in messages %}<{{ m.content }}>{% endfor %}"):
        with oxillama.load(path, num_threads=1, chat_template=given) as engine:
            text = engine.render_chat(ASKED)
            assert text == (CHATML if given == "chatml" else "<Hello!>")
            assert engine.chat(ASKED, max_tokens=3, temperature=0).tokens == (
                engine.generate(text, max_tokens=3, temperature=0).tokens
            )


def test_a_given_template_stands_before_the_files_own(tmp_path):
    with oxillama.load(num_threads=1, chat_template="chatml") as engine:
        assert engine.render_chat(ASKED) == CHATML
        engine.prefill("Once")
        snapshot = engine.snapshot()
    with oxillama.load(num_threads=1) as engine:
        engine.resume(snapshot)
        assert engine.render_chat(ASKED) != CHATML


@pytest.mark.parametrize("given", ["chatlm", "", 5, "{% for x in y %}"])
def test_what_is_no_template_is_refused_before_anything_is_loaded(given):
    with pytest.raises(oxillama.OxillamaError, match="chat_template|template"):
        oxillama.load("nowhere.gguf", chat_template=given)


def test_a_chat_that_is_made_meanwhile_does_not_outlive_its_template(monkeypatch):
    given, setters = "{{ 'new ' + messages[0]['content'] }}", []
    with oxillama.load(num_threads=1) as engine:
        loaded = engine.loaded

        def slow(*parts):
            """A chat that is not yet kept when another thread sets a template."""
            made = Chat(*parts)
            if not setters:
                setters.append(threading.Thread(target=loaded.use_template, args=(given,)))
                setters[0].start()
                setters[0].join(1)  # it may have to wait for this one
            return made

        monkeypatch.setattr("oxillama.loaded.Chat", slow)
        assert loaded.chat is not None
        setters[0].join()
        assert loaded.chat.render([{"role": "user", "content": "text"}]) == "new text"
