"""`oxillama quantize` where a person is watching."""

import sys

import numpy as np

from oxillama.cli import main
from oxillama.gguf import GgufReader, GgufWriter


def test_names_of_tensors_are_no_markup_to_the_progress_bar(tmp_path, capsys, monkeypatch):
    with GgufWriter(tmp_path / "in.gguf", "llama") as writer:
        writer.add_tensor("[/a]x[red].weight", np.ones((2, 32), np.float32))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["quantize", str(tmp_path / "in.gguf"), str(tmp_path / "out.gguf"), "Q8_0"]) == 0
    assert "[/a]x[red].weight" in capsys.readouterr().err
    assert GgufReader(tmp_path / "out.gguf").tensors["[/a]x[red].weight"].type_name == "Q8_0"
