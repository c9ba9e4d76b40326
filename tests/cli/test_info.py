"""`oxillama info` of files that say odd things: everything is shown as it is, and nothing of it is
obeyed.
"""

import json

import numpy as np
import pytest

from oxillama.cli import main
from oxillama.gguf import GgufWriter

ONE = np.ones((1, 32), np.float32)


@pytest.fixture
def told(tmp_path, capsys):
    """What `info` prints of a file with these keys (key, value, kind) and tensors."""

    def told(*options, keys=(), tensors=("a.weight",)):
        path = tmp_path / "odd.gguf"
        with GgufWriter(path, "llama") as writer:
            for key, value, kind in keys:
                writer.add(key, value, kind)
            for name in tensors:
                writer.add_tensor(name, ONE)
        assert main(["info", str(path), *options]) == 0
        return capsys.readouterr().out

    return told


def strict(text):
    """JSON by its standard, which knows no NaN."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_names_of_tensors_are_no_markup_and_are_never_cut(told):
    names = ["[/a].weight", "x[red].weight", ":cat:.weight", "n" * 64]
    out = told("--tensors", tensors=names)
    assert [name for name in names if any(name in line for line in out.splitlines())] == names


def test_a_name_longer_than_a_terminal_is_folded(told, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    out = told("--tensors", tensors=["n" * 64])
    assert sum(line.split("│")[1].count("n") for line in out.splitlines() if "nn" in line) == 64


def test_keys_of_other_kinds_than_usual_are_shown_as_they_are(told):
    keys = [
        ("tokenizer.ggml.tokens", 3, "uint32"),
        ("llama.block_count", [1, 2], "array[int32]"),
        ("llama.rope.freq_base", float("nan"), "float32"),
        ("llama.context_length", float("-inf"), "float64"),
        ("llama.attention.head_count", [[1], [2, 3]], "array[array]"),
        ("general.name", [0.5, float("inf")], "array[float32]"),
    ]
    report = strict(told("--json", "--metadata", keys=keys))
    found = [report[name] for name in ("vocabulary", "layers", "context_length", "heads", "name")]
    assert found == [None, [1, 2], "-inf", [[1], [2, 3]], [0.5, "inf"]]
    assert (
        report["metadata"]["llama.rope.freq_base"] == "nan"
        and report["metadata"]["tokenizer.ggml.tokens"] == 3
    )
    assert "vocabulary         None\n" in told(keys=keys)


def test_what_a_terminal_would_obey_is_spelled_out(told):
    template = "{%- a %}\n{%- b %}"
    keys = [
        ("general.name", "\x1b]0;title\x07 é\x9b31m\r", "string"),
        ("tokenizer.chat_template", template, "string"),
    ]
    out = told("--metadata", keys=keys)
    assert "name               \\x1b]0;title\\x07 é\\x9b31m\\r\n" in out and f"{template}\n" in out
    assert all(letter.isprintable() or letter == "\n" for letter in out)


def test_what_a_budget_makes_of_a_model(capsys):
    def offload(*options):
        assert main(["info", "--json", *options]) == 0
        return strict(capsys.readouterr().out).get("offload")

    assert offload() is None
    assert offload("--ram-budget", "1G")["paged"] is False
    found = offload("--ram-budget", "2M")
    assert (found["policy"], found["ram_bytes"], found["paged"]) == ("Budget", 2 << 20, True)
    assert found["pinned_bytes"] + found["streamed_bytes"] == found["weight_bytes"] > 2 << 20
    assert found["pinned_bytes"] + found["read_ahead_bytes"] < 2 << 20
    pinned = offload("--ram-budget", "3M", "--offload", "pinned:head,layers=1")
    assert (pinned["policy"], pinned["pin_last_n_layers"]) == ("PinnedHotSet", 1)
    assert main(["info", "--ram-budget", "1K"]) == 1
    assert "offload: ram_bytes: found 1024, wanted at least" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["clip.projector_type", "clip.vision.projector_type"])
def test_the_kind_of_an_image_encoder_is_shown_whichever_key_says_it(tmp_path, capsys, key):
    path = tmp_path / "mmproj.gguf"
    with GgufWriter(path, "clip") as writer:
        writer.add(key, "gemma3nv")
        writer.add_tensor("a.weight", ONE)
    assert main(["info", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["projector"] == "gemma3nv"
