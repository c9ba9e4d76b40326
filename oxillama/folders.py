"""The folders in which a user's programs keep files: XDG's, and on Windows those of the profile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

# the variable that names each, its place below the home folder, and Windows' variable
_PLACES = {
    "cache": ("XDG_CACHE_HOME", ".cache", "LOCALAPPDATA"),
    "config": ("XDG_CONFIG_HOME", ".config", "APPDATA"),
    "state": ("XDG_STATE_HOME", ".local/state", "LOCALAPPDATA"),
}


def user_folder(kind: Literal["cache", "config", "state"]) -> Path:
    """This package's folder of a kind; RuntimeError for a user without a home folder."""
    variable, below, profile = _PLACES[kind]
    named = os.environ.get(variable) or (os.environ.get(profile) if os.name == "nt" else None)
    return (Path(named) if named else Path.home() / below) / "oxillama"
