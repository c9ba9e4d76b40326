"""Each tensor's place in its model decides its format as llama.cpp's own quantiser has it: the
formats here are those that it gave.
"""

import numpy as np
import pytest

from oxillama.errors import ModelError
from oxillama.gguf import GgufWriter
from oxillama.quant import quantize_file


def bare(path, arch, names, keys=None):
    """A model of those tensors, of rows of 256; keys without the architecture."""
    with GgufWriter(path, arch) as writer:
        for key, value in (keys or {}).items():
            writer.add(
                f"{arch}.{key}", value, "array[int32]" if isinstance(value, list) else "uint32"
            )
        for name in names:
            writer.add_tensor(name, np.zeros((4, 256), np.float32))
    return path


def targets(path, recipe, **options):
    return {
        plan.name: plan.target
        for plan in quantize_file(path, None, recipe, dry_run=True, **options).tensors
    }


def test_the_ways_down_are_counted_where_some_layers_have_none(tmp_path):
    path = bare(
        tmp_path / "m.gguf",
        "nemotron_h",
        [f"blk.{layer}.ffn_down.weight" for layer in range(1, 16, 2)],
        {"block_count": 16},
    )
    more = [name for name, target in targets(path, "Q4_K_M").items() if target == "Q6_K"]
    assert more == [f"blk.{layer}.ffn_down.weight" for layer in (1, 3, 9, 15)]


@pytest.mark.parametrize("prefix", ["", "v."])
def test_layers_are_those_of_the_names_where_no_key_tells(tmp_path, prefix):
    path = bare(
        tmp_path / "m.gguf", "clip", [f"{prefix}blk.{layer}.ffn_down.weight" for layer in range(8)]
    )
    more = [name for name, target in targets(path, "Q4_K_M").items() if target == "Q6_K"]
    assert more == [f"{prefix}blk.{layer}.ffn_down.weight" for layer in (0, 3, 6, 7)]


def test_layers_with_experts_have_their_own_number_but_where_the_first_tensors_count(tmp_path):
    names = [
        "blk.0.ffn_down.weight",
        *(
            f"blk.{layer}.ffn_down_{kind}.weight"
            for layer in range(1, 16)
            for kind in ("exps", "shexp")
        ),
    ]
    path = bare(tmp_path / "m.gguf", "deepseek2", names, {"block_count": 16, "expert_count": 4})
    more = {
        name.split(".")[1] for name, target in targets(path, "Q4_K_M").items() if target == "Q6_K"
    }
    assert more == {"0", "1", "4", "7", "10", "13", "14", "15"}
    assert [name for name, target in targets(path, "IQ2_XXS").items() if target == "Q2_K"] == [
        "blk.0.ffn_down.weight",
        "blk.1.ffn_down_exps.weight",
    ]


def test_both_sides_of_an_encoder_and_decoder_are_counted_in_order_of_names(tmp_path):
    kinds = {"enc": ("attn_v", "ffn_down"), "dec": ("attn_v", "cross_attn_v", "ffn_down")}
    names = [
        f"{side}.blk.{layer}.{kind}.weight"
        for side in kinds
        for layer in range(8)
        for kind in kinds[side]
    ]
    path = bare(tmp_path / "m.gguf", "t5", names, {"block_count": 8})
    found = {}
    for name, target in targets(path, "Q4_K_M").items():
        side, _, layer, kind, _ = name.split(".")
        if target == "Q6_K":
            found.setdefault(f"{side} {kind}", []).append(int(layer))
    assert found == {
        "enc attn_v": [1, 4, 5, 6, 7], "enc ffn_down": [*range(8)],
        "dec attn_v": [0, 1, 4, 7], "dec cross_attn_v": [0, 2, 5], "dec ffn_down": [0, 3, 6, 7],
    }  # fmt: skip


@pytest.mark.parametrize(
    "key_heads, target",
    [(8, "Q5_K"), ([8, 0], "Q5_K"), ([0, 8], "IQ4_XS"), ([32, 8], "IQ4_XS"), ([], "IQ4_XS")],
)
def test_heads_are_those_of_the_first_layer(tmp_path, key_heads, target):
    keys = {"block_count": 2, "attention.head_count": 32, "attention.head_count_kv": key_heads}
    path = bare(tmp_path / "m.gguf", "lfm2", ["blk.1.attn_v.weight", "output.weight"], keys)
    assert targets(path, "IQ4_XS")["blk.1.attn_v.weight"] == target


@pytest.mark.parametrize(
    "arch, layers, key_heads, target",
    [
        ("llama", 80, 1, "Q5_K"),
        ("llama", 80, 8, "Q3_K"),
        ("llama", 32, 1, "Q3_K"),
        ("llama-embed", 80, 1, "Q5_K"),
        ("qwen2", 80, 8, "Q5_K"),
        ("qwen3", 80, 1, "Q3_K"),
        ("deci", 80, 8, "Q5_K"),
        ("olmo", 80, 8, "Q5_K"),
        ("jais2", 68, 8, "Q5_K"),
        ("jais2", 80, 8, "Q3_K"),
    ],
)
def test_values_of_models_of_70_billion_weights_get_more_bits(
    tmp_path, arch, layers, key_heads, target
):
    keys = {"block_count": layers, "attention.head_count": 8, "attention.head_count_kv": key_heads}
    assert targets(bare(tmp_path / "m.gguf", arch, ["blk.9.attn_v.weight"], keys), "Q3_K_S") == {
        "blk.9.attn_v.weight": target
    }


def test_layers_without_attention_do_not_count_where_its_values_get_more_bits(tmp_path):
    with GgufWriter(tmp_path / "hybrid.gguf", "lfm2") as writer:
        for layer in range(8):
            writer.add_tensor(
                f"blk.{layer}.attn_{'v' if layer % 2 else 'q'}.weight",
                np.ones((4, 256), np.float32),
            )
    found = {
        plan.name: plan.target
        for plan in quantize_file(tmp_path / "hybrid.gguf", None, "Q3_K_M", dry_run=True).tensors
    }
    assert [found[f"blk.{layer}.attn_v.weight"] for layer in (1, 3, 5, 7)] == [
        "Q5_K",
        "Q5_K",
        "Q4_K",
        "Q4_K",
    ]


@pytest.mark.parametrize(
    "value, kind",
    [
        ("8", "string"),
        (["8"], "array[string]"),
        (8.0, "float32"),
        (-8, "int32"),
        ([[8, 8], [8]], "array[array]"),
    ],
)
def test_keys_that_are_no_sizes_are_refused_by_name(tmp_path, value, kind):
    with GgufWriter(tmp_path / "m.gguf", "llama") as writer:
        writer.add("llama.attention.head_count", value, kind)
        writer.add_tensor("output.weight", np.ones((4, 256), np.float32))
    with pytest.raises(ModelError, match="llama.attention.head_count: found .*, wanted an integer"):
        quantize_file(tmp_path / "m.gguf", None, "Q4_0", dry_run=True)
