"""tools/slices.py: engines that take turns, and the table of what they did."""

import argparse
import importlib
import stat
import sys
from pathlib import Path

import pytest

import oxillama
from tests.model.invented import invent

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def slices(monkeypatch):
    """The module `slices` of the folder, which is not a package."""
    monkeypatch.syspath_prepend(str(TOOLS))
    module = importlib.import_module("slices")
    yield module
    sys.modules.pop("slices")


@pytest.fixture
def options(tmp_path):
    return argparse.Namespace(
        model=tmp_path / "m.gguf", p=0, n=3, d=0, b=1, kv_type="f16", t=1, rounds=2
    )


def resident(path: Path, first: str) -> str:
    """A program that says `first` and then 0.5 for each line, and keeps what it was asked."""
    path.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(path) + '.asked'!r}, 'w').write(' '.join("
        f"sys.argv[1:]))\nprint({first!r}, flush=True)\nfor line in sys.stdin:\n"
        "    print(0.5, flush=True)\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_peer_computes_a_slice_for_each_line(slices, options, tmp_path):
    program = resident(tmp_path / "peer", "ready")
    one = slices.peer(f"{program} --no-repack", options)
    assert [one(), one()] == [0.5, 0.5]
    asked = Path(program + ".asked").read_text()
    assert asked == (f"--no-repack {options.model} -p 1 -n 3 -d 0 -b 1 --kv-type f16 -t 1 --slices")


def test_a_peer_that_does_not_start_ends_the_run(slices, options, tmp_path):
    program = resident(tmp_path / "peer", "no model")
    with pytest.raises(SystemExit, match="did not start"):
        slices.peer(program, options)


def test_a_peer_that_ends_in_a_slice_ends_the_run(slices, options, tmp_path):
    program = resident(tmp_path / "peer", "ready")
    Path(program).write_text(f"#!{sys.executable}\nprint('ready')\ninput()\nraise SystemExit(3)\n")
    one = slices.peer(program, options)
    with pytest.raises(SystemExit, match=r"peer: ended with status 3 in a slice"):
        one()


@pytest.mark.parametrize(
    ("prompt", "depth", "sequences", "lengths"),
    [(0, 0, 1, [4]), (5, 0, 1, [5]), (0, 6, 1, [9]), (0, 6, 2, [9, 9])],
)
def test_our_slices_are_of_one_length(slices, options, prompt, depth, sequences, lengths):
    options.p, options.d, options.b = prompt, depth, sequences
    with oxillama.load(n_threads=1) as engine, engine.raw_loop() as loop:
        one = slices.own(loop, engine.config.vocab_size, options)
        for _ in range(2):
            assert one() > 0
            assert [loop._lengths[each] for each in range(sequences)] == lengths


@pytest.mark.parametrize(("prompt", "lengths"), [(5, {0: 1, 1: 5, 2: 5}), (0, {0: 1 + 3 + 3})])
def test_recurrent_state_goes_on_or_begins_anew(slices, options, tmp_path, prompt, lengths):
    invent(tmp_path / "m.gguf", "mamba2")
    options.p, options.kv_type = prompt, None
    with oxillama.load(tmp_path / "m.gguf", n_threads=1) as engine, engine.raw_loop() as loop:
        one = slices.own(loop, engine.config.vocab_size, options)
        one(), one()
        assert loop._lengths == lengths


def test_every_engine_runs_in_every_round(slices, options, monkeypatch):
    reads = iter([30.0, 40.0, 50.0])
    monkeypatch.setattr(slices, "read_bandwidth", lambda threads, seconds: next(reads))
    rounds = slices.measure({"ours": lambda: 0.25, "peer": lambda: 0.5}, 3, options)
    rates = {"ours": 12.0, "peer": 6.0}
    assert rounds == [{"tps": rates, "reads": [30.0, 40.0]}, {"tps": rates, "reads": [40.0, 50.0]}]


def test_the_table_has_medians_over_rounds_of_ratios_and_shares(slices):
    rounds = [
        {"tps": {"peer": peer, "ours": ours}, "reads": [reads, reads]}
        for peer, ours, reads in ((10.0, 30.0, 40.0), (20.0, 20.0, 50.0), (30.0, 60.0, 80.0))
    ]
    assert slices.table("m", rounds, 10**9).splitlines()[2:] == [
        "| m | ours | 30.0 | 1.00 | 30.0 | 75 % |",
        "| m | peer | 20.0 | 2.00 | 20.0 | 38 % |",
        "",
        "3 rounds, plain reads of 40 to 80 GB/s",
    ]
    assert slices.table("m", rounds, 0).splitlines()[2] == "| m | ours | 30.0 | 1.00 |  |  |"
