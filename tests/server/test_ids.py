"""Ids: never one twice, whichever thread asks."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from oxillama.server.ids import new_id, new_number


def test_no_id_is_given_twice():
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: new_id("a-"), range(4000)))
    assert len(set(found)) == 4000
    assert all(len(each) == 26 and each.startswith("a-") for each in found)
    assert all(0 <= new_number() < 2**31 for _ in range(100))


@pytest.mark.skipif(sys.platform == "win32", reason="no fork to ask")
def test_a_forked_child_gives_out_none_of_its_parents():
    code = """
import os
from oxillama.server.ids import new_id

new_id()  # many are drawn at once
reading, writing = os.pipe()
if not os.fork():
    os.write(writing, "\\n".join(new_id() for _ in range(40)).encode())
    os._exit(0)
os.wait()
theirs = os.read(reading, 1 << 16).decode().split()
ours = [new_id() for _ in range(40)]
assert len({*theirs, *ours}) == 80
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
