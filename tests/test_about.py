"""What a report of a fault says, and the limit that threadpoolctl sets."""

import os
from pathlib import Path

import numpy as np
import threadpoolctl

import oxillama
import oxillama.threadpool
from oxillama._core import threads


def test_versions_name_what_runs(monkeypatch):
    monkeypatch.setenv("OXILLAMA_NUM_THREADS", "3")
    found = oxillama.versions()
    assert found["openmp"] == (threads.openmp_version() or None)
    assert found["oxillama"] == oxillama.__version__
    assert found["dependencies"]["numpy"] == np.__version__
    assert found["cpu"]["default_threads"] == 3
    assert found["environment"]["OXILLAMA_NUM_THREADS"] == "3"


def test_show_versions_prints_a_line_each(capsys):
    oxillama.show_versions()
    lines = capsys.readouterr().out.splitlines()
    assert f"oxillama: {oxillama.__version__}" in lines
    assert f"    numpy: {np.__version__}" in lines


def test_the_include_folder_has_the_header():
    assert os.listdir(oxillama.get_include()) == ["oxillama.h"]
    assert Path(oxillama.get_include()).is_absolute()


def test_threadpoolctl_limits_the_workers():
    def limits():
        return [
            pool["num_threads"]
            for pool in threadpoolctl.threadpool_info()
            if pool["user_api"] == "oxillama"
        ]

    assert limits() == [threads.MAX_THREADS]
    with threadpoolctl.threadpool_limits(2, user_api="oxillama"):
        assert limits() == [2]
        assert threads.team_size(num_threads=5) == 2
        assert threads.team_size(num_threads=1) == 1
    assert limits() == [threads.MAX_THREADS]
    assert threads.team_size(num_threads=5) == 5
