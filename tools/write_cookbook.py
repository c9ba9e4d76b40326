"""Writes docs/cookbook.md from the scripts of examples/cookbook and what they print.

python tools/write_cookbook.py
"""

import ast
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / "examples" / "cookbook").glob("*.py"))
PAGE = ROOT / "docs" / "cookbook.md"
HEAD = """# Cookbook

Short programs, each with its output. They run with the embedded model, a storyteller of 3.7 MB,
so you can try them as they are. For a model of your own, pass its path:
`oxillama.load("model.gguf")`. The scripts are in `examples/cookbook/`; `tools/write_cookbook.py`
writes this page from them, and the test suite runs every one.
"""


def section(script: Path, printed: str) -> str:
    """The section of one script: its docstring, its code and its output."""
    text = script.read_text(encoding="utf-8")
    title, _, about = (ast.get_docstring(ast.parse(text)) or "").partition("\n")
    code = text.split('"""', 2)[2].strip()
    number = int(script.name[:2])
    about = " ".join(about.split())
    shown = f"```python\n{code}\n```\n\n```text\n{printed.rstrip()}\n```\n"
    return f"## {number}. {title}\n\n{about}\n\n{shown}"


def page(sections: list[str]) -> str:
    """The whole page."""
    return "\n".join([HEAD, *sections])


def outputs(text: str) -> list[str]:
    """What the scripts print, as the page shows it."""
    return re.findall(r"```text\n(.*?)\n```\n", text, re.DOTALL)


def run(script: Path) -> str:
    """What a script prints in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(script)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
    return done.stdout


if __name__ == "__main__":
    PAGE.write_text(page([section(script, run(script)) for script in SCRIPTS]), encoding="utf-8")
