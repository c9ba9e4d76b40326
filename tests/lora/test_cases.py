"""The cases of `shared/cases/lora`: logits of transformers with merged weights, and bad
adapters.
"""

import json

import numpy as np
import pytest

import oxillama
from tests.conftest import CASES

FOLDER = CASES / "lora"
BASES = sorted(path.parent.name for path in FOLDER.glob("*/report.json"))
BAD = json.loads((FOLDER / "bad/manifest.json").read_text()) if FOLDER.is_dir() else {}


def engine_of(base):
    return oxillama.load(CASES / "arch" / base / "f32.gguf", num_threads=1, kv_type="f32")


@pytest.mark.parametrize("base", BASES)
def test_logits_equal_those_of_merged_weights(base):
    report = json.loads((FOLDER / base / "report.json").read_text())
    facts = np.load(FOLDER / base / "logits.npz")
    with engine_of(base) as engine:
        for run, told in report["runs"].items():
            lora = [(FOLDER / base / f"{name}.gguf", scale) for name, scale in told["adapters"]]
            for i in range(3):
                want = facts[f"hf_{run}_{i}"]
                got = engine.logits(facts[f"tokens_{i}"], lora=lora)
                assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max(), (run, i)


@pytest.mark.parametrize("base", sorted({told["base"] for told in BAD.values()}))
def test_bad_adapters_are_refused_and_change_nothing(base):
    with engine_of(base) as engine:
        before = engine.logits([1, 2, 3])
        for name, told in BAD.items():
            if told["base"] != base:
                continue
            loaded = engine.loras.loaded
            try:
                engine.apply_lora(FOLDER / "bad" / f"{name}.gguf")
            except (oxillama.LoraError, oxillama.GgufError) as error:
                assert told["expect"] in ("reject", "either"), error
                assert name in str(error)
                assert engine.loras.loaded == loaded
            else:
                assert told["expect"] in ("accept", "either"), name
                assert np.isfinite(engine.logits([1, 2, 3])).all()
                engine.loras.pop_lora()
            assert len(engine.loras) == 0
            assert engine.logits([1, 2, 3]).tobytes() == before.tobytes()
