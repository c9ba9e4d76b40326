"""What is different on macOS, as far as another system can show it."""

import os
from types import SimpleNamespace

import pytest

from oxillama import durable
from oxillama.snapshot import container
from oxillama.snapshot.container import Envelope, Kind, write_sealed


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
    seen, write, read = [], os.pwritev, os.preadv

    def noted(call):
        def run(fd, views, offset):
            seen.append(sum(map(len, views)))
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
    monkeypatch.setattr(os, "preadv", noted(read))
    del seen[:]
    with Envelope.open(kind, tmp_path / "sealed") as opened:
        assert bytes(opened.read("a")) == b"z" * 2500
    assert seen and max(seen) <= 1000
