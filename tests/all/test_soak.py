"""Clients that come and go, for a short time; tools/serve_soak.py does so for longer."""

import json
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "serve_soak.py"


def test_clients_come_and_go():
    done = subprocess.run(
        [sys.executable, TOOL, "--clients", "100", "--seconds", "8"], capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    assert found["answers"] > 50 and found["left"] > 5
    assert found["wrong"] == 0 and found["exit_code"] == 0
    assert found["descriptors_after"] <= found["descriptors_before"]
