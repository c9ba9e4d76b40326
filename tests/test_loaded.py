"""What an engine has loaded, and how long it is kept."""

import gc
import time

import pytest

import oxillama

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
