"""What a bug report needs: versions, processor, threads, libraries."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

import oxillama

_DEPENDENCIES = ("numpy", "tokenizers", "jinja2", "blake3", "rich", "huggingface_hub", "zstandard")
_VARIABLES = ("OXILLAMA_ISA", "OXILLAMA_NUM_THREADS", "OXILLAMA_SIDECAR")


def versions() -> dict[str, Any]:
    """Versions of this package and its dependencies, the processor as `cpu_info` sees it, and the
    environment variables that affect it. A package that is not installed is None.
    """
    found: dict[str, str | None] = {}
    for name in _DEPENDENCIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    from oxillama._core.kernels import cpu_info
    from oxillama._core.threads import openmp_version

    return {
        "oxillama": oxillama.__version__,
        "python": sys.version.split()[0],
        "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
        "platform": platform.platform(),
        "folder": str(Path(oxillama.__file__).parent),
        "dependencies": found,
        "cpu": dict(cpu_info()),
        "openmp": openmp_version() or None,  # of calls over arrays; None: they run on one thread
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def show_versions() -> None:
    """Print `versions`, one per line, for a bug report."""
    for name, value in versions().items():
        if isinstance(value, dict):
            print(f"{name}:")
            for key, inner in value.items():
                shown = ", ".join(inner) if isinstance(inner, tuple) else inner
                print(f"    {key}: {shown}")
        else:
            print(f"{name}: {value}")


def get_include() -> str:
    """The folder of `oxillama.h`, for a C compiler's -I."""
    return str(Path(oxillama.__file__).parent / "include")
