"""What is different on macOS, as far as another system can show it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from oxillama import durable
from oxillama._core import threads
from oxillama.snapshot import container
from oxillama.snapshot.container import Envelope, Kind, write_sealed

ROOT = Path(__file__).resolve().parents[1]
SETUP = """
import json, os, platform, runpy, sys, sysconfig, types
import Cython.Build, numpy, setuptools, setuptools.command.build_ext
from setuptools.errors import CompileError
given, linked = [], []
class Compiler:
    compiler_type = "unix"
    def compile(self, files, folder, *, extra_postargs):
        given.append(extra_postargs)
        if "-Xpreprocessor" not in extra_postargs:  # as Apple's clang
            raise CompileError
    def link_executable(self, made, name, *, extra_postargs):
        linked.append(extra_postargs)
sysconfig.get_config_vars()
setuptools.setup = lambda **_: None
sys.platform, platform.machine = "darwin", lambda: "arm64"
made = runpy.run_path("setup.py")
exists = os.path.exists
os.path.exists = lambda path: path.startswith(os.environ["PREFIX"]) and exists(path)
flags = made["BuildExt"].openmp(types.SimpleNamespace(compiler=Compiler()))
print(json.dumps([made["levels"], os.environ["ARCHFLAGS"], sysconfig.get_platform(), flags]))
"""


def build(tmp_path, **more):
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PREFIX": str(tmp_path), **more}
    run = subprocess.run(
        [sys.executable, "-c", SETUP], capture_output=True, text=True, cwd=ROOT, env=env, check=True
    )
    said, _, last = run.stdout.rstrip().rpartition("\n")
    return said, json.loads(last)


def test_the_build_is_for_this_machine_and_finds_libomp(tmp_path):
    brew = tmp_path / "brew"
    brew.write_text(f'#!/bin/sh\n[ "$*" = "--prefix libomp" ] && echo {tmp_path}/libomp\n')
    brew.chmod(0o755)
    platform = {"_PYTHON_HOST_PLATFORM": "macosx-11.0-universal2"}  # python.org's interpreter
    said, (levels, archs, named, flags) = build(tmp_path, **platform)
    assert levels["csrc/lanes/neondot.c"] == "-O3 -march=armv8.2-a+dotprod"
    assert levels["csrc/lanes/i8mm.c"] == "-O3 -march=armv8.2-a+dotprod+i8mm"
    assert (archs, named) == ("-arch arm64", "macosx-11.0-arm64")
    assert flags == [[], []]
    assert said == "no OpenMP: standalone calls run on one thread (wanted: brew install libomp)"
    # both processors where somebody asks for them; homebrew's libomp
    (tmp_path / "libomp" / "include").mkdir(parents=True)
    (tmp_path / "libomp" / "include" / "omp.h").touch()
    asked = "-arch arm64 -arch x86_64"
    said, (levels, archs, named, flags) = build(tmp_path, **platform, ARCHFLAGS=asked)
    assert levels["csrc/lanes/i8mm.c"] == "-O3 -Xarch_arm64 -march=armv8.2-a+dotprod+i8mm"
    assert (archs, named, said) == (asked, "macosx-11.0-universal2", "")
    lib = f"{tmp_path}/libomp/lib"
    assert flags == [
        ["-Xpreprocessor", "-fopenmp", f"-I{tmp_path}/libomp/include"],
        [f"-L{lib}", f"-Wl,-rpath,{lib}", "-lomp"],
    ]


@pytest.mark.parametrize("refused", [False, True])
def test_a_file_is_on_the_disk_before_it_replaces_the_old_one(tmp_path, monkeypatch, refused):
    calls = []

    def full(fd, command):
        calls.append("full" if command == 51 else command)
        if refused:
            raise OSError("this file system has none")

    real = durable.fcntl
    names = {name: getattr(real, name) for name in ("flock", "LOCK_EX", "LOCK_NB")}
    monkeypatch.setattr(durable, "fcntl", SimpleNamespace(fcntl=full, F_FULLFSYNC=51, **names))
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("fsync"))
    durable.write_parts(tmp_path / "saved", [b"new"])
    assert (tmp_path / "saved").read_bytes() == b"new"
    assert calls == (["full", "fsync"] * 2 if refused else ["full"] * 2)  # the file, the folder


def test_no_call_takes_more_bytes_than_every_system_does(tmp_path, monkeypatch):
    seen, write, read = [], os.pwritev, container.read_at

    def noted(call):
        def run(fd, views, offset):
            seen.append(sum(map(len, views)) if isinstance(views, list) else len(views))
            return call(fd, views, offset)

        return run

    assert container.MOST_BYTES == durable.MOST_BYTES < 2**31 - 1  # macOS: EINVAL from there on
    monkeypatch.setattr(durable, "MOST_BYTES", 1000)
    monkeypatch.setattr(container, "MOST_BYTES", 1000)
    monkeypatch.setattr(os, "pwritev", noted(write))
    durable.write_parts(tmp_path / "parts", [b"x" * 700, b"y" * 2600])
    assert seen == [1000, 1000, 1000, 300]
    assert (tmp_path / "parts").read_bytes() == b"x" * 700 + b"y" * 2600
    kind = Kind(b"OXITEST1", 1, ValueError)
    write_sealed(tmp_path / "sealed", kind, {"a": b"z" * 2500})
    monkeypatch.setattr(container, "read_at", noted(read))
    del seen[:]
    with Envelope.open(kind, tmp_path / "sealed") as opened:
        assert bytes(opened.read("a")) == b"z" * 2500
    assert seen and max(seen) <= 1000


def test_a_step_has_the_performance_cores_of_a_mac(monkeypatch):
    assert threads.mac_cores() is None and threads.mac_cores(fast=True) is None  # not a Mac
    monkeypatch.delenv("OXILLAMA_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "cgroup_cpus", lambda: None)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert threads.default_threads() == 8
    monkeypatch.setattr(threads, "mac_cores", lambda *, fast=False: 4 if fast else 8)
    assert threads.default_threads() == 4
