"""PEFT folders against conversions: whatever the family, an adapter changes the tensors of a file
as if its products had been added to the weights before the conversion, or is refused.
"""

import json
import re
from collections import defaultdict

import numpy as np
import pytest

from oxillama.convert import convert_folder
from oxillama.convert.family import FAMILIES
from oxillama.convert.shapes import transposed
from oxillama.errors import LoraError
from oxillama.gguf import GgufReader
from oxillama.lora.fit import check_base
from oxillama.lora.peft import read_peft_lora
from tests.convert.folders import GOLDEN, folder_of, golden_of, save

NAMES = sorted(path.stem for path in GOLDEN.glob("*.json"))
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 3, "target_modules": ".*"}
REFUSED = re.compile(
    "no tensor of a .* file is made of this module|computed from this weight|the model has no such "
    "tensor|is missing, wanted it in the model's file|, the model has "
)
# of these a folder's tensors are named by rules that its configuration chooses, or have an original
NONE_HELD = ("hrm_text", "jina_bert_v3", "mistral4", "nemotron_h_moe", "nomic_bert_moe")


def changed(tensors, family):
    """(all tensors with a product added to each matrix, the factors of alike named modules)."""
    random = np.random.default_rng(4)
    made, groups = dict(tensors), defaultdict(dict)
    for name, values in tensors.items():
        if values.ndim != 2 or not name.endswith(".weight") or "norm" in name:
            continue
        module = name.removesuffix(".weight")
        found = family.rule_of(family.plain(name))
        rule = found[0] if found else None
        turned = rule is not None and rule.change is transposed
        rows, columns = values.T.shape if turned else values.shape
        a = random.integers(-3, 4, (2, columns)).astype(np.float32)
        b = random.integers(-3, 4, (rows, 2)).astype(np.float32)
        product = np.float32(1.5) * (b @ a)
        made[name] = values + (product.T if turned else product)
        if rule is not None and "token_embd.weight" in rule.targets:
            factors = {"lora_embedding_A": b.T, "lora_embedding_B": a.T}
        else:
            factors = {"lora_A.weight": a, "lora_B.weight": b}
        groups[re.sub(r"\d+", "0", module)].update(
            {
                f"base_model.model.{module}.{half}": np.ascontiguousarray(one)
                for half, one in factors.items()
            }
        )
    return made, groups


@pytest.mark.parametrize("name", NAMES)
def test_factors_change_what_a_conversion_makes_of_their_weights(name, tmp_path):
    golden = golden_of(name)
    (architecture,) = golden["config"]["architectures"]
    tensors = folder_of(golden, tmp_path / "base")
    base = GgufReader(convert_folder(tmp_path / "base", tmp_path / "base.gguf", "F32").path)
    made, groups = changed(tensors, FAMILIES[architecture])
    save(tmp_path / "base" / "model.safetensors", made)
    new = GgufReader(convert_folder(tmp_path / "base", tmp_path / "new.gguf", "F32").path)

    def values(reader, target):
        stored = reader.data(target).view(np.float32)
        return stored.reshape(reader.tensors[target].shape).astype(np.float64)

    peft, held = tmp_path / "peft", 0
    peft.mkdir()
    config = {**CONFIG, "auto_mapping": {"base_model_class": architecture}}
    (peft / "adapter_config.json").write_text(json.dumps(config))
    for factors in groups.values():
        save(peft / "adapter_model.safetensors", factors)
        try:
            lora = read_peft_lora(peft, base)
            check_base(base, lora)
        except LoraError as error:
            assert REFUSED.search(str(error)), error
            continue
        for target, pair in lora.pairs.items():
            a, b = pair.a.astype(np.float64), pair.b.astype(np.float64)
            product = (a @ b.swapaxes(1, 2)) if target == "token_embd.weight" else b @ a
            product = lora.scale_of(target) * (product if pair.stacked else product[0])
            difference = values(new, target) - values(base, target)
            assert np.abs(product - difference).max() < 1e-4, target
            held += 1
    assert (held == 0) == (name in NONE_HELD)
