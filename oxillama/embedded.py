"""The path of the model that is part of the package: a small storyteller, trained by `tools/` on
text made by `tools/`.
"""

from __future__ import annotations

from pathlib import Path

from oxillama.errors import ModelError


def embedded_path() -> Path:
    """The embedded model's GGUF file."""
    path = Path(__file__).with_name("embedded.gguf")
    if not path.is_file():
        raise ModelError(
            f"embedded model: {path} is missing, wanted the file that the package was built with"
        )
    return path
