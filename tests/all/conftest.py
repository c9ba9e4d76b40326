"""Tests against a server process; they run where OXILLAMA_TEST_ALL is set (tools/test_all.sh)."""

import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


# the modules import clients that the light suite does not need
collect_ignore_glob = [] if os.environ.get("OXILLAMA_TEST_ALL") else ["test_*.py"]


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in Path(item.path).parents:
            item.add_marker(pytest.mark.all)


class Process:
    """A server process over the embedded model."""

    def __init__(self, *args):
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "oxillama",
                "serve",
                "--port",
                "0",
                "--no-log-requests",
                *args,
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self.process.stderr.readline()
        self.url = re.search(r"http://\S+", line)[0]
        end = time.monotonic() + 120  # of a machine with much to do
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.05)

    def stop(self):
        self.process.terminate()
        # read to the end: a last line into a closed pipe would be the exit code 120
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0


@pytest.fixture(scope="session")
def url(tmp_path_factory):
    made = Process("--sessions-dir", str(tmp_path_factory.mktemp("sessions")))
    yield made.url
    made.stop()
