"""Tokenizers beside each other: the same ids, and a rate of each."""

import json
import subprocess
import sys
from pathlib import Path

import oxillama

ROOT = Path(__file__).resolve().parents[2]


def test_engines_that_are_installed_give_the_same_ids(tmp_path):
    (tmp_path / "text").write_text("Once upon a time, there were 12 foxes.\n\n  It's late! " * 50)
    out = subprocess.run(
        [
            sys.executable,
            str(ROOT / "tools" / "measure_tokenizers.py"),
            str(oxillama.embedded_path()),
            *("--text", str(tmp_path / "text"), "--size", "700", "--rounds", "1", "--json"),
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    found = json.loads(out.stdout)
    assert {"ours", "tokenizers"} <= set(found["mb_s"]) and min(found["mb_s"].values()) > 0
    assert set(found["differ"].values()) == {0}
