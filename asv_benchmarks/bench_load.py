"""What it costs to import the package, to load a model, and to reach its first token."""
from __future__ import annotations

import subprocess
import sys


def _seconds(code: str) -> float:
    out = subprocess.run([sys.executable, "-c", f"import time; t = time.perf_counter()\n{code}\nprint(time.perf_counter() - t)"],
                         capture_output=True, text=True, check=True)
    return float(out.stdout.splitlines()[-1])


class Load:
    """Seconds in a fresh process, the best of three."""

    unit = "s"

    def track_import(self) -> float:
        return min(_seconds("import oxillama") for _ in range(3))

    def track_load_embedded(self) -> float:
        return min(_seconds("import oxillama; oxillama.load()") for _ in range(3))

    def track_first_text(self) -> float:
        return min(_seconds("import oxillama; next(oxillama.load().stream('Once upon a time'))") for _ in range(3))
