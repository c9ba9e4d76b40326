"""What README.md and docs/ say: every Python block runs as it stands, every command parses, and
every file they name is there.
"""

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

import oxillama
from oxillama import embedded_path
from oxillama.cli import parser
from oxillama.gguf import GgufReader, GgufWriter
from oxillama.quant import formats
from tests.audio.made import RATE, clip, write_audio
from tests.model.worded import worded
from tests.vision.made import write_mmproj
from tools.model_table import filled

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# of docs/chat.md: tests/toolcalls/test_page.py runs it and looks at what it says
TALK = "ToolDispatcher"
BLOCKS = [
    (f"{page.name}-{i}", block)
    for page in PAGES
    for i, block in enumerate(
        re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    )
    # tests/docs runs the scripts of the one, tests/integrations/ray those of the other
    if TALK not in block and page.name not in ("cookbook.md", "ray.md")
]
HOMES = [
    ROOT,
    *(
        ROOT / name
        for name in (
            "docs",
            "tools",
            "asv_benchmarks",
            "oxillama",
            "oxillama/_core",
            "oxillama/grammar",
            "oxillama/engine",
            "oxillama/toolcalls",
            "csrc",
            "csrc/lanes",
            "csrc/vec",
        )
    ),
]
NAMED = re.compile(r"`((?:[\w.]+/)*[\w.{},]*\w\.(?:py|pyx|pxd|pxi|md|c|h|inc|def))`")
# in blocks, and where a table lists them
SHOWN = re.compile(r"^(oxillama [a-z].*)|^\| `(oxillama [a-z][^`]*)`", re.MULTILINE)
LINKED = re.compile(r"\]\(([^):#]+)[^):]*\)")


def write_adapter(path: Path) -> None:
    """A low-rank adapter of the embedded model's first query projection."""
    target = GgufReader(embedded_path())
    rows, columns = target.tensors["blk.0.attn_q.weight"].shape
    with GgufWriter(path, target.metadata["general.architecture"]) as file:
        file.add("general.type", "adapter")
        file.add("adapter.type", "lora")
        file.add("adapter.lora.alpha", 4.0)
        for name, shape in (("lora_a", (4, columns)), ("lora_b", (rows, 4))):
            file.add_tensor(f"blk.0.attn_q.weight.{name}", np.full(shape, 0.01, np.float32))


@pytest.mark.parametrize("block", [block for _, block in BLOCKS], ids=[name for name, _ in BLOCKS])
def test_every_python_block_runs_in_an_interpreter_of_its_own(block, tmp_path):
    for name in ("model.gguf", "target.gguf", "draft.gguf"):
        shutil.copy(embedded_path(), tmp_path / name)
    worded(tmp_path, "llada")
    for name in ("style.gguf", "facts.gguf"):
        write_adapter(tmp_path / name)
    width = GgufReader(embedded_path()).tensors["token_embd.weight"].shape[1]
    write_mmproj(tmp_path / "mmproj.gguf", width=int(width))
    write_audio(tmp_path / "mmproj-audio.gguf", width=int(width))
    soundfile.write(tmp_path / "call.wav", clip(1.0), RATE)
    Image.new("RGB", (90, 60), (200, 120, 40)).save(tmp_path / "cat.png")
    done = subprocess.run(
        [sys.executable, "-c", block],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page):
    text = page.read_text(encoding="utf-8")
    missing = [
        name
        for name in NAMED.findall(text)
        if "{" not in name and not any((home / name).is_file() for home in HOMES)
    ]
    assert not missing
    assert not [link for link in LINKED.findall(text) if not (page.parent / link).exists()]


CALLED = re.compile(r"`oxillama((?:\.\w+)+)\(")


def test_every_function_that_a_page_calls_is_there_after_import_oxillama():
    named = {name for page in PAGES for name in CALLED.findall(page.read_text(encoding="utf-8"))}
    assert ".convert.convert_folder" in named
    code = f"import oxillama\nfor name in {sorted(named)}:\n    eval('oxillama' + name)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_names_of_other_tools_stand_beside_arguments_that_are_some():
    engine = oxillama.InferenceEngine
    takers = {"load": oxillama.load, "SamplerConfig": oxillama.SamplerConfig}
    takers |= {"BeamSearchConfig": oxillama.BeamSearchConfig}
    takers |= {name: getattr(engine, name) for name in dir(engine) if not name.startswith("_")}
    named = ("load", "generate", "chat", "embed", "rerank", "beam_generate")
    known = {each for name in named for each in inspect.signature(takers[name]).parameters}
    found = set()
    for line in (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8").splitlines():
        here = line.split(" | ")[1] if line.startswith("| `") and " | " in line else ""
        for code in re.findall(r"`([^`]+)`", here):
            # alone (`mmproj=...`) or within a call
            if alone := re.match(r"(\w+)=", code):
                assert alone[1] in known, code
                found.add(alone[1])
                continue
            call = re.search(r"(\w+)\((?!.*\w\().*\)", code)
            if call is not None and call[1] in takers:
                for name in re.findall(r"[(, ](\w+)=", call[0]):
                    inspect.signature(takers[call[1]]).bind_partial(**{name: None})
                    found.add(f"{call[1]}.{name}")
    assert {"pooling", "mmproj", "load.n_ctx", "generate.max_new_tokens", "chat.template"} <= found


def test_the_readme_names_every_format():
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## What it runs")[2]
    named = re.search(r"\*\*Formats\*\*[^:]*: (.*?)\. ", text, re.DOTALL)[1]
    assert set(named.replace("\n", " ").replace(",", "").split()) == set(formats())


def test_the_page_of_architectures_is_made_from_the_registry():
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert page.count("<!-- end -->") == 2 and "`llama`" in page and page == filled(page)
    marked = "<!-- table -->\nstale row\n<!-- end -->\n<!-- sources -->\nstale row\n<!-- end -->"
    assert "stale row" not in filled(marked)


def test_every_command_that_a_page_shows_is_one():
    shown = [
        command or quoted
        for page in PAGES
        for command, quoted in SHOWN.findall(page.read_text(encoding="utf-8"))
    ]
    assert len(shown) > 12
    for command in shown:
        assert (
            parser().parse_args(shlex.split(command.replace("[", "").replace("]", ""))[1:]).function
        )
