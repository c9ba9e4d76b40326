"""`oxillama quantize` where a person is watching."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from oxillama.cli import main
from oxillama.gguf import GgufReader, GgufWriter

ROOT = str(Path(__file__).parents[2])


def test_names_of_tensors_are_no_markup_to_the_progress_bar(tmp_path, capsys, monkeypatch):
    with GgufWriter(tmp_path / "in.gguf", "llama") as writer:
        writer.add_tensor("[/a]x[red].weight", np.ones((2, 32), np.float32))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["quantize", str(tmp_path / "in.gguf"), str(tmp_path / "out.gguf"), "Q8_0"]) == 0
    assert "[/a]x[red].weight" in capsys.readouterr().err
    assert GgufReader(tmp_path / "out.gguf").tensors["[/a]x[red].weight"].type_name == "Q8_0"


# a command that gets a signal in the middle of its writing
_SIGNALLED = """
import os, signal, sys
from oxillama import durable
from oxillama.cli import main
number = signal.Signals[sys.argv[1]]
if sys.argv[2] == "ignored":
    signal.signal(number, signal.SIG_IGN)
else:
    signal.signal(number, signal.SIG_DFL)
plain = durable.Replacement.keep
def keep(self, **how):
    assert [name for name in os.listdir() if name.endswith(".tmp")]
    signal.raise_signal(number)
    plain(self, **how)
durable.Replacement.keep = keep
sys.exit(main(["quantize", "in.gguf", "out.gguf", "Q8_0"]))
"""


@pytest.mark.parametrize(
    "name, code",
    [("SIGBREAK", 149)] if sys.platform == "win32" else [("SIGTERM", 143), ("SIGHUP", 129)],
)
@pytest.mark.parametrize("how", ["heard", "ignored"])
def test_a_signal_leaves_no_temporary_file(tmp_path, name, code, how):
    with GgufWriter(tmp_path / "in.gguf", "llama") as writer:
        writer.add_tensor("x.weight", np.ones((2, 32), np.float32))
    command = [sys.executable, "-c", _SIGNALLED, name, how]
    run = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": ROOT})
    ignored = how == "ignored"
    assert run.returncode == (0 if ignored else code)
    assert sorted(os.listdir(tmp_path)) == ["in.gguf", *(["out.gguf"] if ignored else [])]
