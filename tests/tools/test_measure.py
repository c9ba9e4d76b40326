"""The measuring tool: what it asks of programs, which of their numbers count, and how rounds are
told apart.
"""

import argparse
import importlib
import json
import os
import stat
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def tools(monkeypatch):
    """The modules `measure`, `engines` and `first_token` of the folder, which is not a package."""
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    names = ("measure", "engines", "first_token")
    yield argparse.Namespace(**{name: importlib.import_module(name) for name in names})
    for name in (*names, "machine"):
        sys.modules.pop(name, None)


def program(path, body):
    """An executable that runs a body of Python with its arguments in `a`, and appends them to a
    log.
    """
    path.write_text(
        f"#!{sys.executable}\nimport json, os, sys\na = sys.argv[1:]\n"
        f"open({str(path) + '.log'!r}, 'a').write(json.dumps(a) + '\\n')\n{body}\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def asked(path):
    return [json.loads(line) for line in Path(path + ".log").read_text().splitlines()]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("p512 n64", "prompt 512, generation 64, 2 threads"),
        ("n32 d4096 b16 t1", "generation 32 at 4096 x 16, 1 thread"),
        ("n16 d4096 q8_0", "generation 16 at 4096, keys and values in q8_0, 2 threads"),
        ("cold t1", "cold load, 1 thread"),
    ],
)
def test_work_says_what_was_asked(tools, text, shown):
    assert str(tools.engines.Work.of(text)) == shown


@pytest.mark.parametrize(
    "text", ["", "t2", "p512 x3", "warm cold", "warm n3", "512", "n4 f16 q8_0", "q8_0", "cold q8_0"]
)
def test_work_that_means_nothing_is_refused(tools, text):
    with pytest.raises(SystemExit, match="wanted letters"):
        tools.engines.Work.of(text)


def test_the_best_flags_of_the_first_round_run_alone_later(tools, tmp_path):
    bench = program(
        tmp_path / "bench",
        "rate = 50 if a[-1] == '1' else 40\nprint('noise', json.dumps([{'n_gen': 32, 'avg_ts': "
        "rate}]))",
    )
    peer = tools.engines.LlamaBench("ik", 1, ["-rtr 0", "-rtr 1"], bench)
    work, model = tools.engines.Work.of("n32 d4096"), tmp_path / "m.gguf"
    assert [peer.measure(model, work) for _ in range(2)] == [{"tg_tps": 50.0}] * 2
    options = [
        "-m",
        str(model),
        "-p",
        "0",
        "-n",
        "0",
        "-gp",
        "4096,32",
        "-t",
        "2",
        "-r",
        "1",
        "-o",
        "json",
    ]
    assert asked(bench) == [
        [*options, "-rtr", "0"],
        [*options, "-rtr", "1"],
        [*options, "-rtr", "1"],
    ]


def test_flags_of_one_program_are_no_other_s(tools):
    texts = ["-fa 1 --opt=2", "llama.cpp=-fa 1", "llama.cpp=-fa 0"]
    assert tools.measure.flags_of("llama.cpp", texts) == ["-fa 1", "-fa 0"]
    assert tools.measure.flags_of("ik", texts) == ["-fa 1 --opt=2"]
    assert tools.measure.flags_of("ik", texts[1:]) == ["-fa 1 -rtr 0", "-fa 1 -rtr 1"]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_several_sequences_come_from_the_table_of_batched_bench(tools, tmp_path, stream):
    row = (
        "|    64 |     32 |    8 |    768 |    2.712 |   188.82 |    3.031 |    84.45 |    4.000 | "
        "  133.73 |"
    )
    bench = program(
        tmp_path / "batched",
        f"open('llama.log', 'w'); print('|    PP |     TG |\\n|---|---|\\n' + {row!r}, "
        f"file=sys.{stream})",
    )
    model, work = tmp_path / "m.gguf", tools.engines.Work.of("n32 d64 b8")
    assert tools.engines.LlamaBench("ik", 1, ["-fa 1 -rtr 0", "-fa 1 -rtr 1"], None, bench).measure(
        model, work
    ) == {"tg_tps": 84.45}
    assert tools.engines.LlamaBench("ik", 1, ["-fa 1"], None, bench, served=True).measure(
        model, work
    ) == {"served_tps": 8 * 32 / 4.0}
    # llama-bench alone has no such mode
    assert tools.engines.LlamaBench("ik", 1, ["-fa 1"], bench).measure(model, work) == {}
    common = [
        "-m",
        str(model),
        "-c",
        "768",
        "-b",
        "2048",
        "-ub",
        "512",
        "-npp",
        "64",
        "-ntg",
        "32",
        "-npl",
        "8",
        "-t",
        "2",
        "-tb",
        "2",
        "-fa",
        "1",
    ]
    assert asked(bench) == [common, [*common, "-rtr"], common]


def test_a_forced_instruction_set_must_be_reported(tools, tmp_path):
    bench = program(
        tmp_path / "bench",
        "print(json.dumps({'isa': os.environ.get('OXILLAMA_ISA', 'best'), 'tg_tps': 5, 'pp_tps': "
        "7}))",
    )
    model, work = tmp_path / "m.gguf", tools.engines.Work.of("n8")
    assert tools.engines.Harness("ours", [bench], 1, isa="avx2").measure(model, work) == {
        "tg_tps": 5
    }
    other = program(tmp_path / "other", "print(json.dumps({'isa': 'avx512', 'tg_tps': 5}))")
    with pytest.raises(RuntimeError, match="runs on avx512, wanted avx2"):
        tools.engines.Harness("ours", [other], 1, isa="avx2").measure(model, work)


def test_rounds_are_told_apart_by_what_plain_reads_gave(tools, tmp_path):
    work = tools.engines.Work.of("n8")
    ours = [{"tg_tps": rate, "model_bytes": 1e9} for rate in (10.0, 20.0, 30.0, 24.0)]
    cell = tools.measure.Cell(
        tmp_path / "m.gguf",
        work,
        {"ours": ours, "peer": [{"tg_tps": 10.0}] * 4},
        [[30, 31, 30], [30, 60, 58], [60, 58, 60], [60, 61, 60]],
    )
    assert cell.moods(50) == {"< 50": [0], "50 passed": [1], ">= 50": [2, 3]}
    assert tools.measure.table([cell], ["ours", "peer"], 50).splitlines()[2:] == [
        "| m | generation 8, 2 threads | generation tokens/s | 10.0 | 10.0 | 1.00 | 1 | 30 to 31 "
        "(< 50) | 33 % |",
        "| m | generation 8, 2 threads | generation tokens/s | 20.0 | 10.0 | 2.00 | 1 | 30 to 60 "
        "(50 passed) | 34 % |",
        "| m | generation 8, 2 threads | generation tokens/s | 27.0 | 10.0 | 2.70 | 2 | 58 to 61 "
        "(>= 50) | 45 % |",
    ]
    assert tools.measure.table([cell], ["ours", "peer"]).splitlines()[2:] == [
        "| m | generation 8, 2 threads | generation tokens/s | 22.0 | 10.0 | 2.20 | 4 | 30 to 61 | "
        "37 % |"
    ]


def test_a_round_waits_for_memory_no_longer_than_its_patience(tools, monkeypatch):
    found, slept = iter((30.0, 31.0, 60.0)), []
    monkeypatch.setattr(tools.measure, "read_bandwidth", lambda threads: next(found))
    monkeypatch.setattr(tools.measure.time, "sleep", slept.append)
    assert tools.measure.reads_before(
        argparse.Namespace(least_reads=50.0, patience=100.0), 2
    ) == 60.0 and slept == [1, 1]
    monkeypatch.setattr(tools.measure, "read_bandwidth", lambda threads: 20.0)
    assert tools.measure.reads_before(argparse.Namespace(least_reads=50.0, patience=0.0), 2) == 20.0
    assert tools.measure.reads_before(
        argparse.Namespace(least_reads=0.0, patience=100.0), 2
    ) == 20.0 and slept == [1, 1]


@pytest.mark.skipif(
    not hasattr(os, "posix_fadvise") or sys.platform != "linux",
    reason="page caches are dropped on Linux alone",
)
def test_a_file_that_stays_in_the_page_cache_is_no_cold_one(tools, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    tools.first_token.os = argparse.Namespace(**{**vars(os), "posix_fadvise": lambda *_: None})
    with pytest.raises(SystemExit, match="256 of 256 pages stay in the page cache"):
        tools.first_token.drop(path)
