"""docs/ray.md runs as it stands, on the cluster of these tests."""

import re
from pathlib import Path

from ray import serve

ROOT = Path(__file__).resolve().parents[3]
BLOCKS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "ray.md").read_text("utf-8"), re.DOTALL
)


def test_every_python_block_runs(cluster, capsys):
    data, serving = BLOCKS
    exec(compile(data, "docs/ray.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines if line[:2] in ("a ", "an")] == [
        "a",
        "an",
        "a",
    ]
    serve.start(http_options={"host": "127.0.0.1", "port": 18125})
    exec(compile(serving, "docs/ray.md", "exec"), {})
