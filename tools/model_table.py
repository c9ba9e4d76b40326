"""Writes docs/models.md: every architecture that is registered, with its own words about itself.

`python tools/model_table.py` after an architecture was added; a test compares.
"""

import inspect
from pathlib import Path

from oxillama.convert import convertible
from oxillama.model.builder import recorders

PAGE = Path(__file__).resolve().parents[1] / "docs" / "models.md"
HEAD = """# Architectures

A GGUF file says its architecture in `general.architecture`. These run; another is refused with its name.
`oxillama convert` writes files of those with a class in the last column. This page is made by
`tools/model_table.py`.

| architecture | what it is | converted from |
| --- | --- | --- |
"""


def table() -> str:
    """The whole page."""
    classes: dict[str, list[str]] = {}
    for name, arch in convertible().items():
        classes.setdefault(arch, []).append(name)
    rows = []
    for name, record in sorted(recorders().items()):
        about = (inspect.getmodule(record).__doc__ or "").strip().split("\n\n")[0]
        about = " ".join(about.split()).replace("|", "\\|")
        made = ", ".join(f"`{one}`" for one in classes.get(name, []))
        rows.append(f"| `{name}` | {about} | {made} |")
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(table(), encoding="utf-8")
