"""Every recipe of the cookbook runs and prints what the page shows."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("cookbook", ROOT / "tools" / "write_cookbook.py")
cookbook = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cookbook)
PRINTED = cookbook.outputs(cookbook.PAGE.read_text(encoding="utf-8"))


def test_the_page_shows_every_script_as_it_is():
    sections = [cookbook.section(each, out) for each, out in zip(cookbook.SCRIPTS, PRINTED)]
    assert len(PRINTED) == len(cookbook.SCRIPTS) >= 20
    assert cookbook.PAGE.read_text(encoding="utf-8") == cookbook.page(sections)


@pytest.mark.parametrize(
    ("script", "printed"),
    [*zip(cookbook.SCRIPTS, PRINTED)],
    ids=[script.stem for script in cookbook.SCRIPTS],
)
def test_a_recipe_prints_what_the_page_shows(script, printed):
    assert cookbook.run(script).rstrip() == printed
