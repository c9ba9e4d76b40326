"""Hugging Face folders of encoders, made of the golden files in golden_encoders."""

import json
from pathlib import Path

from tests.convert.folders import folder_of

GOLDEN = Path(__file__).parent / "golden_encoders"


def golden_of(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


def made_of(name, tmp_path, type="F32", **changes):
    """A golden's folder and the numbers in it; changes: of its files, by name without .json, and
    vision: of `vision_config`.
    """
    golden = golden_of(name)
    golden["config"].get("vision_config", {}).update(changes.pop("vision", {}))
    config = changes.pop("config", {})
    for each, change in changes.items():
        golden["files"][f"{each}.json"] = {**golden["files"].get(f"{each}.json", {}), **change}
    return folder_of(golden, tmp_path / "model", **config)
