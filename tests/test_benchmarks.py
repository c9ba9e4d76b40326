"""Every benchmark runs: its setup and each of its measurements once, at the first of its
parameters, which are the smallest.
"""

import importlib
import inspect
import math
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "asv_benchmarks"
MODULES = sorted(path.stem for path in FOLDER.glob("bench_*.py"))


@pytest.fixture
def benchmarks(request, monkeypatch, tmp_path):
    """The benchmark classes of a module of the folder, which is not a package."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("OXILLAMA_BENCH_MODELS", str(tmp_path))
    monkeypatch.setenv("OXILLAMA_BENCH_SHAPES", "tiny")
    module = importlib.import_module(request.param)
    monkeypatch.setattr(module, "ROUNDS", 1, raising=False)  # processes of the same measurement
    yield [
        each
        for each in vars(module).values()
        if inspect.isclass(each) and each.__module__ == request.param
    ]
    for path in FOLDER.glob("*.py"):
        sys.modules.pop(path.stem, None)


def smallest(benchmark):
    """The first value of every parameter."""
    params = getattr(benchmark, "params", [])
    return (
        [values[0] for values in params]
        if params and isinstance(params[0], (list, tuple))
        else params[:1]
    )


@pytest.mark.parametrize("benchmarks", MODULES, indirect=True)
def test_a_benchmark_measures_something(benchmarks):
    assert benchmarks
    for kind in benchmarks:
        benchmark, params = kind(), smallest(kind)
        if hasattr(benchmark, "setup"):
            benchmark.setup(*params)
        names = [name for name in dir(kind) if name.startswith(("time_", "track_"))]
        assert names, kind
        for name in names:
            value = getattr(benchmark, name)(*params)
            assert name.startswith("time_") or (math.isfinite(value) and value > 0), (kind, name)
