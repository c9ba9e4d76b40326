"""The datasets of docs/ray.md run as they stand, on the cluster of these tests; what it serves runs
in test_serving.py.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def blocks():
    """The program of datasets, and that of serving."""
    text = (ROOT / "docs" / "ray.md").read_text("utf-8")
    data, serving = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return data, serving


def test_the_program_of_datasets_runs(cluster, capsys):
    exec(compile(blocks()[0], "docs/ray.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines if line[:2] in ("a ", "an")] == [
        "a",
        "an",
        "a",
    ]
