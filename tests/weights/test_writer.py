"""When sidecars are written: by whoever has time, one process at a time, and nothing is left of
what could not be finished.
"""

import errno
import json
import logging
import mmap
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import oxillama
from oxillama._core.panels import PackedMatrix
from oxillama.cli import main
from oxillama.errors import OxillamaError
from oxillama.gguf.source import open_source
from oxillama.opening import core_over, open_model
from oxillama.speculative.drafts import DraftModels
from oxillama.stores import located_draft
from oxillama.weights import cache, panel_file, writer
from oxillama.weights.cache import CacheSlot
from oxillama.weights.identity import identity_of
from oxillama.weights.panel_file import PIECE
from oxillama.weights.writer import CacheWriter
from tests.model import tiny

ROOT = Path(panel_file.__file__).parents[2]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("OXILLAMA_SIDECAR", "OXILLAMA_SIDECAR_LIMIT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(writer, "_POLL", 0.005)


@pytest.fixture(scope="module")
def weights():
    """Two matrices of five pieces together."""
    rng = np.random.default_rng(0)
    return {
        (name, 0, rows): PackedMatrix(
            rng.standard_normal(rows * 256).astype(np.float32).view(np.uint8), "F32", rows, 256
        )
        for name, rows in (("a", 9000), ("b", 1000))
    }


@pytest.fixture
def place(tmp_path):
    file = tmp_path / "x.gguf"
    file.write_bytes(bytes(range(256)) * 20_000)
    shards = open_source(file)
    return CacheSlot(tmp_path / "sidecars" / "x.panels", identity_of(shards), shards, False)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


class Program:
    """A program at work until it is told to rest."""

    def __init__(self, busy):
        self.busy, self.steps = busy, 0


def held(place, weights):
    """The bytes of each matrix, from the sidecar."""
    found = panel_file.open_panels(
        place.path, place.key, {key: panel_file.PanelSpec("F32", key[2], 256) for key in weights}
    )
    return None if found is None else {key: bytes(it) for key, it in found.matrices.items()}


def test_nothing_is_written_while_the_model_works_and_all_of_it_when_it_rests(
    place, weights, monkeypatch
):
    monkeypatch.setattr(writer, "IDLE_SECONDS", 0.02)
    program = Program(busy=True)
    writing = CacheWriter(place, weights, program)
    writing.join(0.2)
    assert writing.is_alive() and not place.path.parent.exists()
    program.busy = False
    writing.join()
    assert writing.written and held(place, weights) == {
        key: bytes(matrix) for key, matrix in weights.items()
    }
    assert [path.name for path in place.path.parent.iterdir()] == ["x.panels"]


def test_a_step_amid_the_writing_holds_it_up(place, weights, monkeypatch):
    monkeypatch.setattr(writer, "IDLE_SECONDS", 0.02)
    program, begun, original = Program(busy=False), threading.Event(), os.pwritev

    def pwritev(*arguments):
        program.busy = True
        begun.set()
        return original(*arguments)

    monkeypatch.setattr(os, "pwritev", pwritev)
    writing = CacheWriter(place, weights, program)
    begun.wait()
    writing.join(0.1)
    temporary = place.path.with_name("x.panels.tmp")
    assert writing.is_alive() and temporary.exists() and not place.path.exists()
    with open(temporary, "rb") as file:
        file.seek(2 * PIECE)
        # one piece was written, which begins at 2 MB for the header lies before it
        assert not any(file.read(PIECE))
    monkeypatch.setattr(os, "pwritev", original)
    program.busy = False
    writing.join()
    assert writing.written and panel_file.verify(place.path)


def test_what_cannot_be_done_in_time_is_given_up_and_nothing_of_it_stays(place, weights, caplog):
    program = Program(busy=True)
    with caplog.at_level(logging.INFO, "oxillama.sidecar"):
        writing = CacheWriter(place, weights, program)
        writing.finish(0)
    assert (
        not writing.written and "taken too long" in writing.reason and writing.reason in caplog.text
    )
    assert names_in(place.path.parent) == ["x.panels.failed"]


def test_a_disk_that_hangs_is_waited_for_no_longer_than_closing_may_take(
    place, weights, monkeypatch
):
    writing, joined = CacheWriter(place, weights, Program(busy=False)), []
    with monkeypatch.context() as patch:
        patch.setattr(writing, "join", joined.append)
        writing.finish(5.0)
    assert joined == [5.0 + writer._POLL, 1.0]
    writing.join()


def test_a_slow_disk_is_told_by_its_first_pieces(place, weights, monkeypatch):
    clock = iter(range(0, 10**6, 10))
    writing = CacheWriter.__new__(CacheWriter)
    writing._mark, writing._deadline = None, 1000.0
    monkeypatch.setattr(writer.time, "monotonic", lambda: float(next(clock)))
    writing._in_time(0, 1 << 40)
    writing._in_time(32 << 20, 1 << 40)
    with pytest.raises(panel_file.WriteAborted):
        writing._in_time(64 << 20, 1 << 40)


def test_a_model_that_is_gone_is_kept_at_once(place, weights):
    writing = CacheWriter(place, weights, Program(busy=True))  # nobody holds the program
    writing.join()
    assert writing.written and panel_file.verify(place.path)


def test_a_cancelled_one_leaves_nothing(place, weights):
    program = Program(busy=True)
    writing = CacheWriter(place, weights, program)
    writing.cancel()
    assert not writing.is_alive() and not writing.written and not place.path.exists()


@pytest.mark.parametrize(
    "at, automatic, level",
    [(1, False, logging.WARNING), (3, True, logging.INFO), (6, False, logging.WARNING)],
)
def test_a_disk_that_gets_full_leaves_nothing_behind(
    place, weights, monkeypatch, caplog, at, automatic, level
):
    place = replace(place, automatic=automatic)
    monkeypatch.setattr(cache, "large_pages", lambda folder: True)
    calls, original = [], os.pwritev

    def pwritev(*arguments):
        calls.append(1)
        if len(calls) == at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*arguments)

    monkeypatch.setattr(os, "pwritev", pwritev)
    with caplog.at_level(logging.INFO, "oxillama.sidecar"):
        writing = CacheWriter(place, weights, Program(busy=True))
        writing.finish()
    assert "No space left" in writing.reason and [one.levelno for one in caplog.records] == [level]
    # and the note that it failed, once more a call
    assert len(calls) == at + 1 and names_in(place.path.parent) == ["x.panels.failed"]


def test_a_short_write_is_gone_on_with(place, weights, monkeypatch):
    original = os.pwritev
    monkeypatch.setattr(
        os,
        "pwritev",
        lambda descriptor, views, offset: original(
            descriptor, [views[0][: 1 + len(views[0]) // 2]], offset
        ),
    )
    CacheWriter(place, weights, Program(busy=True)).finish()
    assert panel_file.verify(place.path) and held(place, weights) == {
        key: bytes(matrix) for key, matrix in weights.items()
    }


def test_sections_of_a_large_one_begin_at_two_megabytes_and_of_a_small_one_at_a_page(
    tmp_path, weights
):
    small = {("c", 0, 16): PackedMatrix(np.zeros(16 * 34, np.uint8), "Q8_0", 16, 32)}
    for name, matrices, first in (("large", weights, PIECE), ("small", small, 4096)):
        assert panel_file.write_panels(tmp_path / name, {}, matrices)
        with open(tmp_path / name, "rb") as file:
            places = [section[5] for section in panel_file._header(file)["sections"]]
        assert places[0] == first and all(place % 4096 == 0 for place in places)


def test_while_one_process_writes_another_does_not(place, weights):
    inside, go_on, second = threading.Event(), threading.Event(), []

    def pause(written, size):
        inside.set()
        go_on.wait()

    first = threading.Thread(
        target=panel_file.write_panels,
        args=(place.path, place.key, weights),
        kwargs={"pause": pause},
    )
    first.start()
    inside.wait()
    second.append(panel_file.write_panels(place.path, place.key, weights))
    go_on.set()
    first.join()
    # it lies there already
    second.append(panel_file.write_panels(place.path, place.key, weights))
    assert second == [False, False] and panel_file.verify(place.path)
    assert [path.name for path in place.path.parent.iterdir()] == ["x.panels"]


def test_a_damaged_one_is_written_over(place, weights):
    assert panel_file.write_panels(place.path, place.key, weights)
    good = place.path.read_bytes()
    place.path.write_bytes(good[:-4096])
    assert (
        panel_file.write_panels(place.path, place.key, weights) and place.path.read_bytes() == good
    )


# ---- other processes
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.gguf"
    tiny.write(path, "llama", formats=lambda name: "Q8_0" if "ffn" in name else "F16").close()
    return path


LOAD = """
import sys, numpy as np
from oxillama.gguf import GgufReader
from oxillama.model import load_model
from oxillama._core.tape import Batch
model = load_model(GgufReader(sys.argv[1]), sidecar=sys.argv[2])
memory = model.page_memory()
memory.ensure(1)
ids = np.arange(8, dtype=np.int32)
batch = Batch(ids, ids, [np.zeros(1, np.int32)], np.zeros(8, np.int32), ids)
print(np.array(model.program.step(batch, memory)).tobytes().hex(),
      model.writer is None)
"""


def started(code, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


def test_processes_that_load_together_write_one_sidecar_and_compute_the_same(model, tmp_path):
    folder = tmp_path / "sidecars"
    running = [started(LOAD, model, folder) for _ in range(3)]
    outputs = [process.communicate()[0].split() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    (only,) = folder.iterdir()
    assert panel_file.verify(only)
    outputs.append(started(LOAD, model, folder).communicate()[0].split())
    assert len({logits for logits, _ in outputs}) == 1 and outputs[-1][1] == "True"


# what ends a process at once; on Windows os.kill does so whatever the number
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
KILLED = (
    f"""
import os
from oxillama.weights import writer
writer.CacheWriter._pause = lambda self, written, size: os.kill(os.getpid(), {int(KILL)})
"""
    + LOAD
)


def test_a_writer_that_is_killed_harms_nobody(model, tmp_path):
    folder = tmp_path / "sidecars"
    process = started(KILLED, model, folder)
    process.communicate()
    assert process.returncode == (KILL if os.name == "nt" else -KILL)
    (left,) = folder.iterdir()
    assert left.name.endswith(".panels.tmp")
    first = started(LOAD, model, folder).communicate()[0].split()
    (only,) = folder.iterdir()
    assert panel_file.verify(only) and only.suffix == ".panels"
    assert (
        started(LOAD, model, folder).communicate()[0].split() == [first[0], "True"]
        and first[1] == "False"
    )


def test_what_a_killed_writer_left_goes_with_the_next_that_is_written(place, weights):
    left = place.path.with_name("other.panels.tmp")
    left.parent.mkdir()
    left.write_bytes(b"half")
    CacheWriter(place, weights, Program(busy=True)).finish()
    assert [path.name for path in place.path.parent.iterdir()] == ["x.panels"]


def test_what_is_being_written_stays_and_nobody_begins_to_write_what_is_being_removed(
    tmp_path, monkeypatch
):
    path, unlink, begun = tmp_path / "x.panels.tmp", Path.unlink, []
    with panel_file._claimed(path):
        panel_file.remove_abandoned(path)
        assert path.exists()
    monkeypatch.setattr(
        Path, "unlink", lambda each: begun.append(panel_file._claimed(each)) or unlink(each)
    )
    panel_file.remove_abandoned(path)
    assert begun == [None] and not path.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows limits no sizes of files")
def test_a_file_size_limit_of_the_system_ends_in_a_load_without_sidecar(model, tmp_path):
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n" + LOAD
    process = started(code, model, tmp_path / "sidecars")
    limited = process.communicate()[0].split()
    assert process.returncode == 0
    (note,) = (tmp_path / "sidecars").iterdir()
    assert note.name.endswith(".panels.failed")
    assert limited == started(LOAD, model, tmp_path / "sidecars").communicate()[0].split()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_leaves_the_writing_to_its_parent(place, weights):
    program = Program(busy=True)
    writing = CacheWriter(place, weights, program)
    child = os.fork()
    if not child:
        try:
            writing.finish()
            writer.finish_all()
            os._exit(place.path.exists())
        except BaseException:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    writing.finish()
    assert writing.written and panel_file.verify(place.path)


# ---- the default
# --------------------------------------------------------------------------------------------------


def test_a_library_writes_nothing_to_the_disk_unless_it_is_asked_to(model, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "LEAST_BYTES", 1)
    assert oxillama.EngineConfig().sidecar is False
    with oxillama.load(model):
        assert not writer._writers
    assert not (tmp_path / "cache").exists()
    monkeypatch.setenv("OXILLAMA_SIDECAR", str(tmp_path / "asked"))
    with oxillama.load(model):
        pass
    assert len(list((tmp_path / "asked").iterdir())) == 1


def test_a_large_model_loads_from_the_cache_folder_with_the_same_bits_where_that_is_asked_for(
    model, tmp_path, monkeypatch
):
    home = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    monkeypatch.setattr(cache, "large_pages", lambda folder: True)
    ids = [1, 2, 3, 4, 5]
    with oxillama.load(model, sidecar="auto") as engine:  # a small one
        packed = engine.logits(ids).tobytes()
    assert not home.exists()
    monkeypatch.setattr(cache, "LEAST_BYTES", 1)
    with oxillama.load(model, sidecar="auto") as engine:
        assert engine.logits(ids).tobytes() == packed
    (only,) = (home / "oxillama").iterdir()
    assert panel_file.verify(only) and cache.PackedWeightCache(home / "oxillama").entries()[
        0
    ].names == ("model.gguf",)
    monkeypatch.setattr(
        "oxillama.model.tape_weights.Packing", lambda *_, **__: pytest.fail("packed again")
    )
    with oxillama.load(model, sidecar="auto") as engine:
        assert engine.logits(ids).tobytes() == packed


@pytest.mark.parametrize("off", ("environment", "argument"))
def test_whoever_says_no_has_none(model, tmp_path, monkeypatch, off):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "LEAST_BYTES", 1)
    if off == "environment":
        monkeypatch.setenv("OXILLAMA_SIDECAR", "0")
    with oxillama.load(model, sidecar=False if off == "argument" else "auto"):
        pass
    assert not (tmp_path / "cache").exists()


def test_the_cache_folder_is_left_alone_where_files_come_in_small_pages(
    model, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "LEAST_BYTES", 1)
    monkeypatch.setattr(cache, "large_pages", lambda folder: False)
    with caplog.at_level(logging.INFO, "oxillama.sidecar"), oxillama.load(model, sidecar="auto"):
        pass
    assert "small pages" in caplog.text and not list((tmp_path / "cache" / "oxillama").iterdir())
    with oxillama.load(model, sidecar=tmp_path / "asked"):
        pass
    assert len(list((tmp_path / "asked").iterdir())) == 1


def test_another_model_in_the_same_engine_gives_up_the_first_ones_sidecar(
    model, tmp_path, monkeypatch
):
    monkeypatch.setattr(writer, "IDLE_SECONDS", 1e6)
    engine = oxillama.load(model, sidecar=tmp_path / "sidecars")
    first = engine._loaded.model.writer
    other = tmp_path / "other.gguf"
    other.write_bytes(model.read_bytes())
    os.utime(other, (1, 1))
    engine.load_model(other)
    assert not first.is_alive() and not first.written
    engine.close()
    (only,) = (tmp_path / "sidecars").iterdir()
    assert cache.PackedWeightCache(only.parent).entries()[0].names == ("other.gguf",)


def test_a_load_that_fails_after_packing_lets_go_of_the_weights(model, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "IDLE_SECONDS", 1e6)
    with pytest.raises(OxillamaError):
        oxillama.load(model, tokenizer_path=tmp_path / "none.json", sidecar=tmp_path / "sidecars")
    assert not writer._writers and not (tmp_path / "sidecars").exists()


def test_a_folder_for_which_there_is_no_room_on_the_disk_is_not_written_to(
    place, weights, monkeypatch
):
    usage = {"free": 0, "total": 1 << 40}
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda folder: type("Usage", (), usage))
    size = sum(matrix.nbytes for matrix in weights.values())
    for free, total, fits in (
        (4 * size - 1, 0, False),
        (4 * size, 0, True),
        (1 << 40, 20 << 40, False),
        (1 << 40, 19 << 40, True),
    ):
        usage.update(free=free, total=total)
        assert (place.refusal(size) is None) == fits


def test_nothing_is_removed_for_a_sidecar_that_is_refused(place, weights, monkeypatch):
    CacheWriter(place, weights, Program(busy=True)).finish()
    size = place.path.stat().st_size
    monkeypatch.setenv("OXILLAMA_SIDECAR_LIMIT", str(size))
    monkeypatch.setattr(cache, "large_pages", lambda folder: False)
    assert "small pages" in replace(place, automatic=True).refusal(size) and place.path.exists()
    assert place.refusal(size) is None and not place.path.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="names are text on Windows")
def test_a_look_for_large_pages_reads_names_of_any_bytes(tmp_path):
    name = os.fsencode(tmp_path) + b"/caf\xe9.gguf"
    with open(name, "wb+") as file:
        file.write(bytes(4096))
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
            assert cache._large_bytes("0") == 0


def test_a_look_for_large_pages_leaves_nothing_in_the_folder(tmp_path):
    cache.large_pages(tmp_path)
    assert not list(tmp_path.iterdir())


def open_draft(target, source, config):
    """(drafter, what closes it) over a file, for a target without a vocabulary."""
    models = DraftModels(
        target, None, open_model=open_model, core_over=core_over, locate=located_draft
    )
    return models.open(source, config=config)


def test_a_draft_is_kept_only_where_a_folder_was_named_for_it(model, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "LEAST_BYTES", 1)
    with oxillama.load(model, sidecar=False) as engine:
        for config in (
            None,
            oxillama.EngineConfig(),
            oxillama.EngineConfig(sidecar=tmp_path / "named"),
        ):
            open_draft(engine._loaded.model, model, config)[1]()
            writer.finish_all()
    assert not (tmp_path / "cache").exists() and len(list((tmp_path / "named").iterdir())) == 1


def test_closing_a_draft_writes_its_sidecar_and_ends_its_keeper(model, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "IDLE_SECONDS", 1e6)
    named = oxillama.EngineConfig(sidecar=tmp_path / "named")
    with oxillama.load(model, sidecar=False) as engine:
        _, close = open_draft(engine._loaded.model, model, named)
        assert len(writer._writers) == 1
        close()
        (only,) = (tmp_path / "named").iterdir()
        assert not writer._writers and panel_file.verify(only)


def test_an_engine_that_is_closed_closes_the_keepers_of_its_drafts(model, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "IDLE_SECONDS", 1e6)
    monkeypatch.setenv("OXILLAMA_SIDECAR", str(tmp_path / "named"))
    copy = tmp_path / "draft.gguf"
    copy.write_bytes(model.read_bytes())
    os.utime(copy, (1, 1))
    with oxillama.load(model) as engine:
        engine.generate([1, 2, 3], max_tokens=3, speculative=copy)
        assert len(writer._writers) == 2
    assert not writer._writers and {
        one.names for one in cache.PackedWeightCache(tmp_path / "named").entries()
    } == {
        ("model.gguf",),
        ("draft.gguf",),
    }


def test_a_draft_that_is_refused_is_not_kept(model, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "IDLE_SECONDS", 1e6)
    other = tmp_path / "other.gguf"
    shape = dict.fromkeys(("token_embd.weight", "output.weight"), (96, 64))
    tiny.write(other, "llama", tensors=shape).close()
    with (
        oxillama.load(model, sidecar=False) as engine,
        pytest.raises(OxillamaError, match="draft: found 96 tokens"),
    ):
        open_draft(engine._loaded.model, other, oxillama.EngineConfig(sidecar=tmp_path / "named"))
    assert not writer._writers and not (tmp_path / "named").exists()


# ---- failures are not repeated
# ------------------------------------------------------------------------------------------------


def test_what_failed_is_not_tried_again_at_the_next_close_nor_in_the_next_process(
    model, tmp_path, monkeypatch, caplog
):
    folder, tries = tmp_path / "sidecars", []

    def failing(*arguments, **named):
        tries.append(1)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(writer, "write_panels", failing)
        for _ in range(3):
            with oxillama.load(model, sidecar=folder):
                pass
    assert len(tries) == 1
    with caplog.at_level(logging.INFO, "oxillama.sidecar"):
        started(LOAD, model, folder).communicate()
        with oxillama.load(model, sidecar=folder):
            pass
    assert "writing failed 0.0 hours ago" in caplog.text and "Input/output error" in caplog.text
    (note,) = folder.iterdir()
    assert note.name.endswith(".panels.failed")


def test_after_a_close_that_came_too_early_only_an_idle_model_is_kept(place, weights, monkeypatch):
    program = Program(busy=True)
    CacheWriter(place, weights, program).finish(0)
    again = CacheWriter(place, weights, program)
    assert again.foreseen() is None
    told = again.foreseen_at_close()
    assert told.startswith("a close left too little time for writing 0.0 hours ago (")
    assert told.endswith("; `oxillama sidecar write` tries again")
    again.finish(60)
    assert not again.written and again.reason == told
    assert names_in(place.path.parent) == ["x.panels.failed"]
    monkeypatch.setattr(writer, "IDLE_SECONDS", 0.02)
    program.busy = False
    longer = CacheWriter(place, weights, program)
    longer.join()
    assert longer.written and names_in(place.path.parent) == ["x.panels"]


def test_after_an_error_an_idle_model_is_not_kept_either(place, weights, monkeypatch):
    monkeypatch.setattr(writer, "IDLE_SECONDS", 0.0)
    place.path.parent.mkdir()
    place.note_failure("Input/output error")
    writing = CacheWriter(place, weights, Program(busy=False))
    assert writing.foreseen() == writing.foreseen_at_close()
    writing.join()
    assert not writing.written
    assert writing.reason.startswith("writing failed 0.0 hours ago (Input/output error); ")


@pytest.mark.parametrize("after", ["a day", "another file", "a request", "a damaged note", "clear"])
def test_it_is_tried_again_after(model, tmp_path, monkeypatch, after):
    folder = tmp_path / "sidecars"
    with monkeypatch.context() as patch:
        patch.setattr(writer, "BYTES_A_SECOND", 1)
        patch.setattr(writer, "LAST_SECONDS", 0.0)
        patch.setattr(
            CacheWriter, "_in_time", lambda *_: (_ for _ in ()).throw(writer.DiskTooSlow("x"))
        )
        with oxillama.load(model, sidecar=folder):
            pass
    (note,) = folder.iterdir()
    assert json.loads(note.read_bytes())["reason"] == "x"
    if after == "a day":
        monkeypatch.setattr(cache, "RETRY_SECONDS", 0)
    elif after == "another file":
        os.utime(model, (1, 1))
    elif after == "a request":
        assert main(["sidecar", "write", str(model), "--folder", str(folder)]) == 0
    elif after == "a damaged note":
        note.write_bytes(b"[" * 60_000)
    else:
        assert cache.PackedWeightCache(folder).clear() == [] and not list(folder.iterdir())
    with oxillama.load(model, sidecar=folder):
        pass
    (only,) = folder.glob("*.panels")
    assert panel_file.verify(only) and (after == "another file" or not note.exists())


def test_a_model_that_was_changed_while_it_was_packed_is_not_kept(place, weights):
    file = place.shards[0].path
    writing = CacheWriter(place, weights, Program(busy=True))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    status = os.stat(file)
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    writing.finish()
    assert not writing.written and "was changed since it was loaded" in writing.reason
    assert not list(place.path.parent.iterdir())
