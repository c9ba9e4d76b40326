"""A folder of a DFlash draft: the keys and names that llama.cpp's converter writes, and what drafts
for its target.
"""

import json

import numpy as np
import pytest

from oxillama.convert import convert_folder
from oxillama.errors import ConvertError
from oxillama.gguf import GgufReader
from oxillama.model.dflash import Block, extracts_of
from oxillama.model.drafts import dflash_draft
from oxillama.model.load import load_model
from tests.convert.folders import plain, save
from tests.model import tiny

OWN = {"mask_token_id": 7, "target_layer_ids": [0, 1]}
CONFIG = {
    "architectures": ["DFlashDraftModel"],
    "attention_bias": False,
    "block_size": 6,
    "dflash_config": OWN,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": tiny.HIDDEN,
    "intermediate_size": 64,
    "layer_types": ["full_attention", "full_attention"],
    "max_position_embeddings": 512,
    "max_window_layers": 2,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_target_layers": 3,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": tiny.VOCAB,
}
KEYS = {
    "block_count": 2,
    "context_length": 512,
    "embedding_length": tiny.HIDDEN,
    "feed_forward_length": 64,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.value_length": 16,
    "attention.layer_norm_rms_epsilon": 9.999999974752427e-07,
    "rope.freq_base": 1000000.0,
    "block_size": 6,
    "target_layers": [1, 2],
    "attention.causal": False,
}
NAMES = {
    "fc": ("fc", (tiny.HIDDEN, 2 * tiny.HIDDEN)),
    "hidden_norm": ("enc.output_norm", (tiny.HIDDEN,)),
    "norm": ("output_norm", (tiny.HIDDEN,)),
}
for _layer in range(2):
    NAMES |= {
        f"layers.{_layer}.{theirs}": (f"blk.{_layer}.{ours}", shape)
        for theirs, ours, shape in (
            ("input_layernorm", "attn_norm", (tiny.HIDDEN,)),
            ("self_attn.q_proj", "attn_q", (64, tiny.HIDDEN)),
            ("self_attn.k_proj", "attn_k", (32, tiny.HIDDEN)),
            ("self_attn.v_proj", "attn_v", (32, tiny.HIDDEN)),
            ("self_attn.q_norm", "attn_q_norm", (16,)),
            ("self_attn.k_norm", "attn_k_norm", (16,)),
            ("self_attn.o_proj", "attn_output", (tiny.HIDDEN, 64)),
            ("post_attention_layernorm", "ffn_norm", (tiny.HIDDEN,)),
            ("mlp.gate_proj", "ffn_gate", (64, tiny.HIDDEN)),
            ("mlp.up_proj", "ffn_up", (64, tiny.HIDDEN)),
            ("mlp.down_proj", "ffn_down", (tiny.HIDDEN, 64)),
        )
    }


SELECTOR = {
    "candidate_selector.predecessor_codebook": ("selector_predecessor.weight", (tiny.VOCAB, 8)),
    "candidate_selector.successor_codebook": ("selector_successor.weight", (tiny.VOCAB, 8)),
    "candidate_selector.hidden_projection.weight": ("selector_hidden.weight", (8, tiny.HIDDEN)),
} | {
    f"layers.{layer}.{theirs}": (f"blk.{layer}.{ours}", shape)
    for layer in range(2)
    for theirs, ours, shape in (
        ("attention_conv.base_kernel", "attn_conv_base", (2, 3, tiny.HIDDEN)),
        ("attention_conv.kernel_projection.weight", "attn_conv_proj.weight", (24, tiny.HIDDEN)),
        ("mlp_conv.base_kernel", "ffn_conv_base", (2, 3, tiny.HIDDEN)),
        ("mlp_conv.kernel_projection.weight", "ffn_conv_proj.weight", (24, tiny.HIDDEN)),
    )
}
SIZES = {"conv_kernel_size": 3, "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 4}


def converted(place, config):
    """(the file of a folder with this configuration, its tensors by their names in the file)."""
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(2)
    held, wanted = {}, {}
    names = {
        f"{theirs}.weight": (f"{ours}.weight", shape) for theirs, (ours, shape) in NAMES.items()
    }
    if config["architectures"] == ["DFlash2DraftModel"]:
        names |= SELECTOR
    for theirs, (ours, shape) in names.items():
        held[theirs] = wanted[ours] = rng.normal(size=shape).astype(np.float32)
    save(place / "model.safetensors", held)
    return GgufReader(convert_folder(place, place.with_suffix(".gguf"), "F32").path), wanted


WINDOWED = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 32,
    "use_sliding_window": True,
}
NEAR = {"attention.sliding_window": 32, "attention.sliding_window_pattern": [True, False]}


@pytest.mark.parametrize(
    "changed, keys, layers",
    [
        ({}, {}, (False, False)),
        # of windows a configuration says whether they are causal; else they are, and others not
        (
            WINDOWED,
            {**NEAR, "attention.causal": None, "attention.causal_pattern": [True, False]},
            (True, False),
        ),
        ({**WINDOWED, "is_causal": False}, NEAR, (False, False)),
        (
            {**WINDOWED, "dflash_config": {**OWN, "causal": True}},
            {**NEAR, "attention.causal": True},
            (True, True),
        ),
        (
            {"architectures": ["DFlash2DraftModel"], "dflash_config": {**OWN, **SIZES}},
            SIZES,
            (False, False),
        ),
        (
            {
                "dflash_config": {
                    **OWN,
                    "block_size": 8,
                    "output_multiplier": 0.5,
                    "final_logit_softcapping": 30.0,
                    "input_embedding_scale": 2.0,
                    "attention_value_scale": 0.25,
                }
            },
            {
                "block_size": 8,
                "logit_scale": 0.5,
                "final_logit_softcapping": 30.0,
                "embedding_scale": 2.0,
                "attention.value_scale": 0.25,
            },
            (False, False),
        ),
    ],
)
def test_a_folder_becomes_what_drafts_for_its_target(changed, keys, layers, tmp_path):
    reader, tensors = converted(tmp_path / "d", CONFIG | changed)
    found = {key: plain(value) for key, value in reader.metadata.items()}
    assert found["general.architecture"] == "dflash"
    assert found["tokenizer.ggml.mask_token_id"] == 7
    wanted = {key: value for key, value in (KEYS | keys).items() if value is not None}
    assert {key: value for key, value in found.items() if key.startswith("dflash.")} == {
        f"dflash.{key}": value for key, value in wanted.items()
    }
    assert set(reader.tensors) == set(tensors)
    for name, values in tensors.items():
        assert np.array_equal(reader.data(name).view(np.float32), values.reshape(-1)), name
    its = tiny.write(tmp_path / "t.gguf", "llama")
    target = load_model(its, num_threads=1, extracts=extracts_of(reader, its))
    block = dflash_draft(target, reader, num_threads=1)[1].block
    assert block == Block(wanted["block_size"], 1, 7, layers)


@pytest.mark.parametrize(
    "message, changed",
    [
        ("rope_is_neox_style: found False, wanted True", {"rope_is_neox_style": False}),
        ("mask_token_id is missing", {"dflash_config": {"target_layer_ids": [0, 1]}}),
        ("target_layer_ids: found None, wanted layers", {"dflash_config": {"mask_token_id": 7}}),
        ("target_layer_ids: found \\[-1\\]", {"dflash_config": {**OWN, "target_layer_ids": [-1]}}),
        ("dflash_config: found 3, wanted an object", {"dflash_config": 3}),
        ("use_swa: found True, wanted False", {"dflash_config": {**OWN, "use_swa": True}}),
        ("use_sliding_window: found false or none", {**WINDOWED, "use_sliding_window": False}),
        ("hidden_act: found 'relu', wanted", {"hidden_act": "relu"}),
        ("conv_kernel_size is missing", {"architectures": ["DFlash2DraftModel"]}),
    ],
)
def test_a_folder_of_another_kind_is_refused(message, changed, tmp_path):
    with pytest.raises(ConvertError, match=message):
        converted(tmp_path / "d", CONFIG | changed)


def test_a_mask_that_is_no_row_of_the_embedding_is_refused(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "mask_embedding.pt").write_bytes(b"")
    (tmp_path / "d" / "config.json").write_text(json.dumps(CONFIG))
    save(tmp_path / "d" / "model.safetensors", {"fc.weight": np.zeros((64, 128), np.float32)})
    with pytest.raises(ConvertError, match="found mask_embedding.pt"):
        convert_folder(tmp_path / "d", tmp_path / "d.gguf", "F32")
