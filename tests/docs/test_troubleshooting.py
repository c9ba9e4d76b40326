"""Every error that the troubleshooting page explains is raised as the page spells it."""

import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import oxillama
from oxillama.stores.hub import choose

PAGE = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"
SAID = re.findall(r"^### `(.*)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
ASKED = [{"role": "user", "content": "Hello!"}]


@pytest.fixture(scope="module")
def engine():
    with oxillama.load(num_threads=1) as made:
        yield made


def hub(engine, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    oxillama.load("owner/name")


def other_file(engine, folder, monkeypatch):
    (folder / "m.gguf").write_bytes(b"<!DOCTYPE html>" * 100)
    oxillama.load(folder / "m.gguf")


def edited(engine, folder, key):
    whole = oxillama.embedded_path().read_bytes()
    (folder / "m.gguf").write_bytes(whole.replace(key, b"x" * len(key)))
    return oxillama.load(folder / "m.gguf", num_threads=1)


def closed(engine, folder, monkeypatch):
    with oxillama.load(num_threads=1) as made:
        pass
    made.generate("Once")


def uncompiled(engine, folder, monkeypatch):
    """`import oxillama` in a checkout where nothing was built."""
    sources = shutil.ignore_patterns("*.so", "*.pyd", "*.c", "*.gguf", "__pycache__")
    shutil.copytree(Path(oxillama.__file__).parent, folder / "oxillama", ignore=sources)
    done = subprocess.run(
        [sys.executable, "-c", "import oxillama; oxillama.load()"],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
    )
    raise oxillama.OxillamaError(done.stderr)


def cut(engine, folder, _):
    (folder / "m.gguf").write_bytes(oxillama.embedded_path().read_bytes()[:1_000_000])
    oxillama.load(folder / "m.gguf")


def rewritten(engine, folder, _):
    path = folder / "model.gguf"
    path.write_bytes(oxillama.embedded_path().read_bytes())
    with oxillama.load(path, num_threads=1) as made:
        os.truncate(path, 4096)
        made.generate("x", max_tokens=1)


RAISED = {
    "no such file": lambda engine, *_: oxillama.load("nowhere.gguf"),
    "needs huggingface_hub": hub,
    "several files for": lambda *_: choose(["a-Q4_0.gguf", "b-Q4_0.gguf"], "Q4_0", place="x"),
    "not a GGUF file": other_file,
    "truncated": cut,
    "found a folder without GGUF files and without a config.json": (
        lambda engine, folder, _: oxillama.load(folder)
    ),
    "is not an argument of load": lambda *_: oxillama.load(contextsize=5),
    "found sources that are not compiled": uncompiled,
    "takes at most": lambda engine, *_: engine.generate("fox " * 2000),
    "tokenizer.chat_template: the file has none": (
        lambda engine, folder, _: edited(engine, folder, b"tokenizer.chat_template").chat(ASKED)
    ),
    "the file has no vocabulary": (
        lambda engine, folder, _: edited(engine, folder, b"tokenizer.ggml.model").generate("x")
    ),
    "found together with sampler, wanted one of them": (
        lambda engine, *_: engine.generate(
            "x", sampler=oxillama.SamplerConfig.greedy(), temperature=0
        )
    ),
    "did you mean": lambda engine, *_: engine.generate("x", temprature=1),
    "wanted one constraint": lambda engine, *_: engine.generate("x", regex="a", choices=["b"]),
    "wanted a finite number": lambda engine, *_: engine.generate("x", temperature=-1),
    "answers may begin with": (
        lambda engine, *_: engine.chat(ASKED, tools=[{"name": "f"}], choices=["<tool_call>"])
    ),
    "cannot be pickled": lambda engine, *_: pickle.dumps(engine),
    "is closed": closed,
    "the file was changed after it was opened": rewritten,
    "there is no session to continue": (lambda *_: oxillama.load(num_threads=1).generate(None)),
}


def test_every_entry_is_tried():
    assert list(RAISED) == SAID


@pytest.mark.parametrize("said", RAISED)
def test_an_error_says_what_the_page_explains(engine, tmp_path, monkeypatch, said):
    with pytest.raises((oxillama.OxillamaError, TypeError)) as caught:
        RAISED[said](engine, tmp_path, monkeypatch)
    assert said in str(caught.value)
