"""What it costs to import the package, to load a model, and to reach its first token, each in a
fresh process.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from models import model, wanted

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from first_token import in_fresh_process  # noqa: E402  (the folder of tools is no package)

ROUNDS = 3  # the best of them counts


def _seconds(code: str) -> float:
    out = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import time; t = time.perf_counter()\n{code}\nprint(time.perf_counter() - t)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(out.stdout.splitlines()[-1])


class Load:
    """Seconds in a fresh process."""

    unit = "s"

    def track_import(self) -> float:
        return min(_seconds("import oxillama") for _ in range(ROUNDS))

    def track_load_embedded(self) -> float:
        return min(_seconds("import oxillama; oxillama.load()") for _ in range(ROUNDS))

    def track_first_text(self) -> float:
        return min(
            _seconds("import oxillama; next(oxillama.load().stream('Once upon a time'))")
            for _ in range(ROUNDS)
        )


class Model:
    """From `load` to the first token: weights packed or mapped from a sidecar,
    files in the page cache or dropped from it.
    """

    params = [wanted(), ["Q4_0", "Q8_0"], ["packed", "mapped"], ["warm", "cold"]]
    param_names = ["shape", "format", "weights", "page cache"]
    timeout = 600

    def setup(self, shape: str, recipe: str, weights: str, cache: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.options = dict(
            sidecar=self.folder.name if weights == "mapped" else None, cold=cache == "cold"
        )
        self.path = model(shape, recipe)

    def teardown(self, shape: str, recipe: str, weights: str, cache: str) -> None:
        self.folder.cleanup()

    def track_first_token(self, shape: str, recipe: str, weights: str, cache: str) -> float:
        return min(in_fresh_process(self.path, **self.options)["first_s"] for _ in range(ROUNDS))

    def track_peak_rss(self, shape: str, recipe: str, weights: str, cache: str) -> float:
        return in_fresh_process(self.path, **self.options)["peak_rss_mb"]

    track_first_token.unit, track_peak_rss.unit = "s", "MB"
