"""The pictures of the performance page are those of their records."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def figures(monkeypatch):
    """The module of the folder, which is not a package."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "tools"), *sys.path])
    yield importlib.import_module("figures")
    for name in ("figures", "roofline", "bench_matmul", "machine"):
        sys.modules.pop(name, None)


def test_pictures_show_what_was_recorded(figures):
    drawn = figures.pictures(ROOT / "docs" / "figures")
    for name, picture in drawn.items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == picture, (
            f"docs/{name}: run tools/figures.py"
        )
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert [name for name in drawn if f"({name})" not in page] == []
