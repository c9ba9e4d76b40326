"""A folder of a Gemma 4 assistant: the keys, names and shapes that llama.cpp's converter writes,
and a draft of a target that was converted too.
"""

import json

import numpy as np
import pytest

from oxillama.convert import convert_folder
from oxillama.errors import ConvertError
from oxillama.gguf import GgufReader
from oxillama.model.assistant import extracts_of
from oxillama.model.drafts import assistant_draft
from oxillama.model.load import load_model
from tests.convert.folders import folder_of, golden_of, plain, save, spread

TARGET = golden_of("gemma4_e")
TEXT = {
    key: TARGET["config"][key]
    for key in ("head_dim", "num_attention_heads", "num_key_value_heads", "vocab_size")
    + ("max_position_embeddings", "rms_norm_eps", "rope_parameters", "sliding_window")
} | {
    "enable_moe_block": False,
    "final_logit_softcapping": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 16,
    "hidden_size_per_layer_input": 0,
    "intermediate_size": 48,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    "model_type": "gemma4_text",
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 4,
    "per_layer_config": {"3": {"head_dim": 64}},
    "tie_word_embeddings": True,
    "use_double_wide_mlp": False,
    "vocab_size_per_layer_input": 0,
}
CONFIG = {
    "architectures": ["Gemma4AssistantForCausalLM"],
    "backbone_hidden_size": 32,
    "centroid_intermediate_top_k": 4,
    "model_type": "gemma4_assistant",
    "num_centroids": 16,
    "text_config": TEXT,
    "tie_word_embeddings": True,
    "use_ordered_embeddings": True,
}
NAMES = {
    "model.embed_tokens": ("token_embd", (512, 16)),
    "model.norm": ("output_norm", (16,)),
    "pre_projection": ("nextn.pre_projection", (16, 64)),
    "post_projection": ("nextn.post_projection", (32, 16)),
}
for _layer in range(4):
    _dim = 64 if _layer == 3 else 32
    NAMES |= {
        f"model.layers.{_layer}.{theirs}": (f"blk.{_layer}.{ours}", shape)
        for theirs, ours, shape in (
            ("input_layernorm", "attn_norm", (16,)),
            ("self_attn.q_proj", "attn_q", (4 * _dim, 16)),
            ("self_attn.q_norm", "attn_q_norm", (_dim,)),
            ("self_attn.o_proj", "attn_output", (16, 4 * _dim)),
            ("post_attention_layernorm", "post_attention_norm", (16,)),
            ("pre_feedforward_layernorm", "ffn_norm", (16,)),
            ("mlp.gate_proj", "ffn_gate", (48, 16)),
            ("mlp.up_proj", "ffn_up", (48, 16)),
            ("mlp.down_proj", "ffn_down", (16, 48)),
            ("post_feedforward_layernorm", "post_ffw_norm", (16,)),
            ("layer_scalar", "layer_output_scale", (1,)),
        )
    }
KEYS = {
    "block_count": 4,
    "context_length": 512,
    "embedding_length": 16,
    "embedding_length_out": 32,
    "embedding_length_per_layer_input": 0,
    "feed_forward_length": 48,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 64,
    "attention.value_length": 64,
    "attention.key_length_swa": 32,
    "attention.value_length_swa": 32,
    "attention.layer_norm_rms_epsilon": 9.999999974752427e-07,
    "attention.shared_kv_layers": 4,
    "attention.sliding_window": 16,
    "attention.sliding_window_pattern": [True, True, True, False],
    "nextn_predict_layers": 4,
    "rope.dimension_count": 64,
    "rope.dimension_count_swa": 32,
    "rope.freq_base": 1000000.0,
    "rope.freq_base_swa": 10000.0,
}


def written(place, **text):
    """A folder and its tensors by their names in the file; text: changes of the text's part."""
    place.mkdir()
    config = {**CONFIG, "text_config": {**TEXT, **text}}
    (place / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(2)
    held, wanted = {}, {}
    for theirs, (ours, shape) in NAMES.items():
        made = rng.normal(size=shape).astype(np.float32)
        held[theirs if theirs.endswith("scalar") else f"{theirs}.weight"] = made
        wanted[f"{ours}.weight"] = made
    held["lm_head.weight"] = held["model.embed_tokens.weight"]
    held["masked_embedding.centroids.weight"] = np.zeros((16, 16), np.float32)
    held["masked_embedding.token_ordering"] = np.arange(512, dtype=np.int64)
    save(place / "model.safetensors", held)
    return wanted


@pytest.mark.parametrize("unified", [False, True])
def test_a_folder_becomes_what_drafts_for_its_converted_target(unified, tmp_path, monkeypatch):
    if unified:
        monkeypatch.setitem(CONFIG, "architectures", ["Gemma4UnifiedAssistantForCausalLM"])
    tensors = written(tmp_path / "d")
    reader = GgufReader(convert_folder(tmp_path / "d", tmp_path / "d.gguf", "F32").path)
    found = {key: plain(value) for key, value in reader.metadata.items()}
    assert found["general.architecture"] == "gemma4-assistant"
    assert {key: value for key, value in found.items() if key.startswith("gemma4-")} == {
        f"gemma4-assistant.{key}": value for key, value in KEYS.items()
    }
    tensors["rope_freqs.weight"] = np.repeat(np.float32([1, 1e30]), [8, 24])
    assert set(reader.tensors) == set(tensors)
    for name, values in tensors.items():
        assert np.array_equal(reader.data(name).view(np.float32), values.reshape(-1)), name
    folder_of(TARGET, tmp_path / "t")
    its = GgufReader(convert_folder(tmp_path / "t", tmp_path / "t.gguf", "F32").path)
    assert dict(spread(TARGET["tensors"]))["token_embd.weight"] == (512, 32)
    target = load_model(its, num_threads=1, extracts=extracts_of(reader, its))
    draft, _, _ = assistant_draft(target, reader, num_threads=1)
    # the last windowed and the last global layer with keys of their own
    layers = [op.params["layer"] for op in draft.tape.ops if op.name == "attend"]
    assert layers == [3, 3, 3, 4] and target.config.kv_layers[3:] == ((2, 32, 32), (2, 64, 64))


@pytest.mark.parametrize(
    "message, changed",
    [
        ("num_kv_shared_layers: found 2, wanted 0 or 4", {"num_kv_shared_layers": 2}),
        ("hidden_size_per_layer_input: found 16, wanted 0", {"hidden_size_per_layer_input": 16}),
        ("enable_moe_block: found True, wanted False", {"enable_moe_block": True}),
        ("use_double_wide_mlp: found True, wanted False", {"use_double_wide_mlp": True}),
    ],
)
def test_a_folder_of_another_kind_is_refused(message, changed, tmp_path):
    """transformers refuses these as well."""
    written(tmp_path / "d", **changed)
    with pytest.raises(ConvertError, match=message):
        convert_folder(tmp_path / "d", tmp_path / "d.gguf", "F32")
