"""`oxillama sidecar`: what lies in the folder is shown, verified, removed, and written when
asked.
"""

import argparse
import errno
import json
import os
from pathlib import Path

import pytest

from oxillama.cli import MODULES, main, sidecar
from oxillama.weights.writer import DiskTooSlow
from tests.model import tiny


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.delenv("OXILLAMA_SIDECAR")
    path = tmp_path / "tiny.gguf"
    tiny.write(path, "llama", formats=lambda name: "Q8_0").close()
    return path


def told(capsys, *arguments):
    """Exit code and the JSON of one command."""
    code = main(["sidecar", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)["sidecars"]


def test_a_sidecar_is_written_listed_verified_and_removed(model, tmp_path, capsys):
    where = ("--folder", tmp_path / "kept")
    assert told(capsys, "list", *where) == (0, [])
    code, (row,) = told(capsys, "write", model, *where)
    assert (
        code == 0
        and row["names"] == ["tiny.gguf"]
        and row["bytes"] == (tmp_path / "kept" / row["path"].rsplit("/")[-1]).stat().st_size
    )
    # it is there, and loads
    assert told(capsys, "write", model, *where)[1][0]["path"] == row["path"]
    assert [(one["path"], one["state"]) for one in told(capsys, "verify", *where)[1]] == [
        (row["path"], "whole")
    ]
    assert [one["state"] for one in told(capsys, "clear", *where)[1]] == ["removed"]
    assert not list((tmp_path / "kept").iterdir())


def test_a_damaged_sidecar_is_named_and_ends_in_an_exit_code(model, tmp_path, capsys):
    where = ("--folder", tmp_path / "kept")
    path = told(capsys, "write", model, *where)[1][0]["path"]
    with open(path, "r+b") as file:
        file.seek(-4000, 2)
        byte = file.read(1)
        file.seek(-4000, 2)
        file.write(bytes([byte[0] ^ 1]))
    code, (row,) = told(capsys, "verify", *where)
    assert code == 1 and row["state"] == "damaged"
    assert main(["sidecar", "verify", "--folder", str(where[1])]) == 1
    out = capsys.readouterr().out
    assert "damaged  tiny.gguf" in out and "in 1 sidecar of" in out


@pytest.mark.parametrize("command", ("list", "verify", "clear", "write"))
def test_a_file_where_a_folder_was_named_is_an_error(model, capsys, command):
    arguments = [command, str(model)] if command == "write" else [command]
    before = model.read_bytes()
    with pytest.raises(NotADirectoryError) as found:  # in the words of the system
        os.scandir(model)
    assert main(["sidecar", *arguments, "--folder", str(model)]) == 1
    assert (
        capsys.readouterr().err
        == f"oxillama: sidecar: {model}: {found.value.strerror}, wanted a folder\n"
        and model.read_bytes() == before
    )


def test_without_a_folder_the_cache_folder_is_meant_and_an_environment_that_says_no_is_an_error(
    tmp_path, capsys, monkeypatch
):
    for arguments, wanted in (
        (["list"], "OXILLAMA_SIDECAR is 0"),
        (["write", "x.gguf", "--folder", str(tmp_path)], "wanted one of the two"),
    ):
        assert main(["sidecar", *arguments]) == 1  # the tests' own environment says 0
        assert wanted in capsys.readouterr().err
    monkeypatch.delenv("OXILLAMA_SIDECAR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert (
        main(["sidecar", "list"]) == 0
        and f"0 sidecars of {tmp_path / 'oxillama'}" in capsys.readouterr().out
    )


def test_an_automatic_folder_that_holds_no_small_models_is_an_error_where_one_is_to_be_written(
    model, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OXILLAMA_SIDECAR", "auto")
    assert main(["sidecar", "write", str(model)]) == 1
    assert (
        "OXILLAMA_SIDECAR is 'auto'" in capsys.readouterr().err
        and not (tmp_path / "cache").exists()
    )
    monkeypatch.delenv("OXILLAMA_SIDECAR")
    first = told(capsys, "write", model)
    assert (
        first[0] == 0
        and len(first[1]) == 1
        and [one["path"] for one in told(capsys, "write", model)[1]] == [first[1][0]["path"]]
    )


def test_run_says_first_that_it_keeps_packed_weights_and_how_to_turn_that_off(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.delenv("OXILLAMA_SIDECAR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("oxillama.weights.cache.LEAST_BYTES", 1)
    monkeypatch.setattr("oxillama.weights.cache.large_pages", lambda folder: True)
    run = ["run", "-n", "2", "--temp", "0"]
    assert main([*run, "--sidecar", "0"]) == 0
    assert "packed weights" not in capsys.readouterr().err and not list(tmp_path.iterdir())
    assert main(run) == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert str(tmp_path / "oxillama") in first and "--sidecar 0 or OXILLAMA_SIDECAR=0" in first
    # the next run maps them: there is nothing to say
    assert main(run) == 0 and "packed weights" not in capsys.readouterr().err


def test_run_says_that_only_an_idle_model_is_kept_after_a_close_that_came_too_early(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.delenv("OXILLAMA_SIDECAR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("oxillama.weights.cache.LEAST_BYTES", 1)
    monkeypatch.setattr("oxillama.weights.cache.large_pages", lambda folder: True)

    def late(*_):
        raise DiskTooSlow("x")

    monkeypatch.setattr("oxillama.weights.writer.CacheWriter._in_time", late)
    run, told = ["run", "-n", "2", "--temp", "0"], []
    for _ in range(2):
        assert main(run) == 0
        told.append(capsys.readouterr().err.splitlines()[0])
    folder = tmp_path / "oxillama"
    assert f"packed weights in {folder}, so that" in told[0]
    assert f"packed weights in {folder} if it is idle for long enough (a close left" in told[1]
    assert [path.suffix for path in folder.iterdir()] == [".failed"]


def test_run_says_why_it_keeps_no_packed_weights(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("OXILLAMA_SIDECAR")
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr("oxillama.weights.cache.LEAST_BYTES", 1)
    run = ["run", "-n", "2", "--temp", "0", "--no-timings"]
    assert main(run) == 0
    assert capsys.readouterr().err == (
        f"oxillama: packed weights cannot be kept in {blocked / 'oxillama'}: {blocked} is not "
        "a directory; --sidecar 0 or OXILLAMA_SIDECAR=0 turns this off\n"
    )
    assert main([*run, "--sidecar", str(blocked)]) == 1
    assert capsys.readouterr().err.startswith(f"oxillama: sidecar: found {blocked}: ")


def test_sidecars_that_cannot_be_removed_are_one_line(model, tmp_path, capsys, monkeypatch):
    where = ("--folder", str(tmp_path / "sidecars"))
    assert main(["sidecar", "write", str(model), *where]) == 0
    capsys.readouterr()

    def unlink(self, missing_ok=False):
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "unlink", unlink)
    assert main(["sidecar", "clear", *where]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"oxillama: sidecar: {tmp_path / 'sidecars'}{os.sep}")
    assert err.endswith(".panels: Read-only file system, wanted a folder that can be written\n")


@pytest.mark.parametrize("command", [["bench"], ["perplexity", "text"], ["doctor"]])
def test_other_commands_keep_nothing_unless_they_are_asked_to(command):
    parser = argparse.ArgumentParser()
    for module in MODULES:
        if module is not sidecar:
            commands = parser._subparsers and parser._subparsers._group_actions[0]
            module.add_commands(commands or parser.add_subparsers())
    assert parser.parse_args(command).sidecar == "0"
    assert parser.parse_args(["run"]).sidecar == parser.parse_args(["chat"]).sidecar == "auto"
