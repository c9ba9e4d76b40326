"""Writes `oxillama/__init__.pyi` from the table of public names in `oxillama/__init__.py`."""

from __future__ import annotations

from pathlib import Path

import oxillama


def text() -> str:
    """The stub: every public name, imported from where it is."""
    lines = [
        '"""Every public name with its type; `__init__` imports them when they are first used."""',
        "",
    ]
    for home, names in sorted(oxillama._HOMES.items()):
        lines += [f"from {home} import {name} as {name}" for name in sorted(names)]
    lines += [f"from oxillama import {name} as {name}" for name in sorted(oxillama._MODULES)]
    return "\n".join([*lines, "", "__version__: str", "__all__: list[str]", ""])


if __name__ == "__main__":
    Path(oxillama.__file__).with_suffix(".pyi").write_text(text())
