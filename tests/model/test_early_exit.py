"""A model's first layers under its own output norm and head: what a file of those layers alone
would compute, over the same packed weights.
"""

import numpy as np
import pytest

from oxillama.errors import ModelError
from oxillama.gguf import GgufReader
from oxillama.model.drafts import early_exit
from oxillama.model.load import load_model
from oxillama.model.record import record
from tests.model import tiny
from tests.model.stepping import logits

TOKENS = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32)


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gemma3"])
def test_the_first_layers_are_the_model_of_a_file_that_ends_with_them(arch, tmp_path):
    formats = {"formats": lambda name: "Q8_0" if "ffn_gate" in name or "attn_v" in name else "F32"}
    tiny.write(tmp_path / "whole.gguf", arch, **formats)
    whole = load_model(GgufReader(tmp_path / "whole.gguf"), num_threads=1)
    before = logits(whole, TOKENS)
    for depth in range(1, tiny.LAYERS + 1):
        beyond = {
            name: None
            for name in tiny.shapes(arch)
            if name.startswith("blk.") and int(name.split(".")[1]) >= depth
        }
        tiny.write(
            tmp_path / "cut.gguf",
            arch,
            keys={f"{arch}.block_count": depth},
            tensors=beyond,
            **formats,
        )
        early = early_exit(whole, depth, num_threads=1)
        assert early.weights is whole.weights and (
            early.config.layers,
            len(early.config.kv_layers),
        ) == (depth, depth)
        assert np.array_equal(
            logits(early, TOKENS),
            logits(load_model(GgufReader(tmp_path / "cut.gguf"), num_threads=1), TOKENS),
        )
    assert np.array_equal(logits(early, TOKENS), before) and np.array_equal(
        logits(whole, TOKENS), before
    )


def test_no_other_number_of_layers_is_one(tmp_path):
    reader = tiny.write(tmp_path / "tiny.gguf", "llama")
    for depth in (0, tiny.LAYERS + 1):
        with pytest.raises(ModelError, match=f"depth: found {depth}, wanted 1 to {tiny.LAYERS}"):
            record(reader, depth=depth)
