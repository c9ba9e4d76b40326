"""What a configuration says of a model's computation is in its file, or is refused by name."""

import math

import numpy as np
import pytest

from oxillama.convert import convert_folder
from oxillama.convert.family import FAMILIES, Hyper, Keys
from oxillama.errors import ConvertError
from oxillama.gguf import GgufReader
from oxillama.gguf.keys import Keys as FileKeys
from oxillama.model.rope import rope_from_keys
from tests.convert.folders import folder_of, golden_of

PLAIN = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "head_dim": 16, "rms_norm_eps": 1e-6, "layer_norm_eps": 1e-5, "sliding_window": 8,
}  # fmt: skip
WHOLE = 1 + 0.1 * math.log(8)  # what YaRN multiplies by where nothing is said, of a factor of 8


def keys_of(name, **config):
    """The keys of a class's file."""
    hyper = Hyper({**PLAIN, "architectures": [name], **config}, "config.json")
    keys = Keys(FAMILIES[name].arch)
    FAMILIES[name].keys(hyper, keys)
    arch = FAMILIES[name].arch + "."
    return {key.removeprefix(arch): value for key, (value, _) in keys.found.items()}


def yarn(**more):
    said = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 8.0}
    return {**said, "original_max_position_embeddings": 32, **more}


@pytest.mark.parametrize(
    "name",
    ["StableLmForCausalLM", "PhiForCausalLM", "GPTNeoXForCausalLM", "GemmaForCausalLM"]
    + ["Gemma2ForCausalLM", "FalconForCausalLM"],
)
def test_files_without_a_base_have_it_where_it_is_another(name):
    """Other programs take 10000."""
    base = "rotary_emb_base" if name == "GPTNeoXForCausalLM" else "rope_theta"
    assert not [key for key in keys_of(name, **{base: 10000.0}) if "rope.freq_base" in key]
    assert keys_of(name, **{base: 500.0})["rope.freq_base"] == 500
    found = keys_of(name, rope_parameters=yarn())
    assert found["rope.scaling.type"] == "yarn" and found["rope.scaling.factor"] == 8
    linear = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    found = keys_of(name, rope_parameters=linear)
    assert found["rope.scaling.type"] == "linear" and found["rope.scaling.factor"] == 4


def test_gpt_neox_has_names_of_its_own():
    """Which transformers reads alone, and writes beside the usual ones."""
    name = "GPTNeoXForCausalLM"
    found = keys_of(name, rotary_emb_base=500, rope_theta=500.0, rotary_pct=0.5,
                    partial_rotary_factor=0.5)  # fmt: skip
    assert found["rope.freq_base"] == 500 and found["rope.dimension_count"] == 8
    rope = {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.5}
    found = keys_of(name, rope_parameters=rope, rotary_emb_base=500, rotary_pct=1.0, rope_theta=5.0)
    assert found["rope.freq_base"] == 300 and found["rope.dimension_count"] == 8
    for more, wanted in (
        ({"rope_theta": 500.0}, "rope_theta: found 500.0, wanted 10000.0"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: found 0.5, wanted 0.25"),
    ):
        with pytest.raises(ConvertError, match=wanted):
            keys_of(name, **more)


@pytest.mark.parametrize(
    ("more", "magnitude"),
    [
        ({}, WHOLE),
        ({"attention_factor": WHOLE}, WHOLE),
        ({"attention_factor": 1.0}, 1.0),
        ({"attention_factor": 1.5}, 1.5),
        ({"mscale": 0.7, "mscale_all_dim": 1.0}, (1 + 0.07 * math.log(8)) / WHOLE),
        ({"mscale": 0.7}, WHOLE),  # as transformers: both or neither
        ({"attn_factor": 0.5}, 0.5 * WHOLE),  # as vLLM
    ],
)
def test_yarn_multiplies_by_what_the_configuration_says(more, magnitude):
    found = keys_of("LlamaForCausalLM", rope_parameters=yarn(**more), hidden_act="silu",
                    sliding_window=None)  # fmt: skip
    assert ("rope.scaling.yarn_attn_factor" in found) == (magnitude != WHOLE)
    assert magnitude_of(found) == pytest.approx(magnitude, rel=1e-6)


def magnitude_of(keys):
    file = FileKeys({f"llama.{key}": value for key, value in keys.items()}, "llama")
    rope = rope_from_keys(file, 16, base_key="rope.freq_base", base=1e4, factors=None, scaled=True)
    return rope.magnitude


def test_the_context_beside_a_rotation_rules_over_that_within_it():
    """As in transformers, whose older folders have it there alone."""
    rope = yarn()
    original = rope["original_max_position_embeddings"]
    for inside in ({}, {"original_max_position_embeddings": 2 * original}):
        rope = {**{k: v for k, v in yarn().items() if not k.startswith("original")}, **inside}
        beside = {"original_max_position_embeddings": original}
        found = keys_of("LlamaForCausalLM", rope_parameters=rope, sliding_window=None, **beside)
        assert found["rope.scaling.original_context_length"] == original


def test_a_whole_magnitude_in_a_file_is_no_factor_of_itself():
    """Files of Olmo 3 by llama.cpp's converter have it there."""
    keys = keys_of("LlamaForCausalLM", rope_parameters=yarn(), sliding_window=None)
    name = "rope.scaling.yarn_attn_factor"
    assert magnitude_of({**keys, name: float(np.float32(WHOLE))}) == pytest.approx(WHOLE)
    assert magnitude_of({**keys, name: 1.25}) == pytest.approx(1.25 * WHOLE)


def test_two_scales_of_latent_attention_are_one_in_a_file():
    sizes = {"qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "kv_lora_rank": 32}
    for scale in (0.707, 1.0):
        rope = yarn(mscale=scale, mscale_all_dim=scale)
        found = keys_of("DeepseekV2ForCausalLM", rope_parameters=rope, **sizes)
        assert found["rope.scaling.yarn_log_multiplier"] == np.float32(0.1 * scale)
        assert "rope.scaling.yarn_attn_factor" not in found
    with pytest.raises(ConvertError, match="rope_parameters: mscale: found 0.5, wanted 1.0"):
        rope = yarn(mscale=0.5, mscale_all_dim=1.0)
        keys_of("DeepseekV2ForCausalLM", rope_parameters=rope, **sizes)


def test_scores_of_deepseek_3_are_sigmoids_whether_said_or_not():
    """transformers saves no word of it, and a file without the key means V2's softmax."""
    sizes = {"qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "kv_lora_rank": 32}
    sizes |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    for name, said, wanted in (
        ("DeepseekV3ForCausalLM", None, 2),
        ("DeepseekV3ForCausalLM", "softmax", 1),
        ("Glm4MoeLiteForCausalLM", None, 2),
        ("DeepseekV2ForCausalLM", None, None),
    ):
        assert keys_of(name, scoring_func=said, **sizes).get("expert_gating_func") == wanted


def test_logits_without_a_cap_are_not_capped():
    """null is not the same as no word: Gemma 2 has caps by default."""
    caps = ("attn_logit_softcapping", "final_logit_softcapping")
    assert not set(caps) & set(keys_of("Gemma2ForCausalLM"))
    found = keys_of("Gemma2ForCausalLM", **dict.fromkeys(caps), query_pre_attn_scalar=16)
    assert [found[name] for name in caps] == [0, 0]


def test_one_key_head_of_falcon_is_one_whatever_is_counted():
    for config, wanted in (
        ({"multi_query": True, "num_kv_heads": 4}, 1),
        ({"multi_query": True, "num_kv_heads": 2, "new_decoder_architecture": True}, 2),
        ({"multi_query": False, "num_kv_heads": None}, 4),
        ({"n_head_kv": 2}, 2),
    ):
        assert keys_of("FalconForCausalLM", **config)["attention.head_count_kv"] == wanted


def test_norms_of_cohere_2_with_experts_are_of_one_kind():
    """transformers saves both epsilons; that of rms norms decides."""
    for said, wanted in ((None, {"attention.layer_norm_epsilon"}), (1e-6, {
        "attention.layer_norm_rms_epsilon"
    })):  # fmt: skip
        found = keys_of("Cohere2MoeForCausalLM", rms_norm_eps=said, logit_scale=1.0)
        assert {key for key in found if key.endswith("epsilon")} == wanted


def test_the_rotated_part_of_minimax_m2_is_its_share_or_its_size():
    sizes = {"num_local_experts": 4, "num_experts_per_tok": 2}
    for said, wanted in (({"rotary_dim": 8}, 8), ({"partial_rotary_factor": 0.25}, 4), ({}, 16)):
        found = keys_of("MiniMaxM2ForCausalLM", **sizes, **said)
        assert found["rope.dimension_count"] == wanted
    with pytest.raises(ConvertError, match="rotary_dim: found 8, wanted 4"):
        keys_of("MiniMaxM2ForCausalLM", **sizes, rotary_dim=8, partial_rotary_factor=0.25)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (yarn(), {"rope_theta": 500.0}, "rope_type: found 'default' beside 'yarn' in rope_scaling"),
        (
            {"type": "linear", "factor": 2.0},
            {"rope_type": "linear", "factor": 4.0},
            "factor: found 4.0 beside 2.0 in rope_scaling",
        ),
        (yarn(), yarn(mscale=0.7), "mscale: found 0.7 beside None in rope_scaling"),
        (yarn(), yarn(rope_theta=100.0), "rope_theta: found 100.0 beside 500.0 in rope_scaling"),
    ],
)
def test_two_objects_of_a_rotation_say_the_same(old, new, told):
    """Of two transformers takes the older alone, with the usual base where it has none."""
    with pytest.raises(ConvertError, match=f"rope_parameters: {told}, wanted one of these"):
        keys_of("LlamaForCausalLM", rope_scaling=old, rope_parameters=new, sliding_window=None)
    bare = {"type": "yarn", **{name: old[name] for name in old if name != "rope_type"}}
    both = [
        keys_of("LlamaForCausalLM", sliding_window=None, **said)
        for said in (
            {"rope_parameters": {"rope_type": bare["type"], **old}},
            {"rope_parameters": {"rope_type": bare["type"], **old}, "rope_scaling": bare},
        )
    ]
    assert both[0] == both[1]
    base = {"rope_theta": bare.pop("rope_theta", None)}
    beside = {"rope_parameters": {"rope_type": bare["type"], **old}, "rope_scaling": bare, **base}
    assert both[0] == keys_of("LlamaForCausalLM", sliding_window=None, **beside)


def test_a_base_that_grows_with_the_text_has_no_place_in_a_file():
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0}
    found = keys_of("HunYuanDenseV1ForCausalLM", rope_parameters={**rope, "alpha": 4.0})
    assert found["rope.freq_base"] == np.float32(10000 * 4 ** (16 / 14))
    with pytest.raises(ConvertError, match="rope_parameters: alpha: is missing"):
        keys_of("HunYuanDenseV1ForCausalLM", rope_parameters=rope)


def test_the_rotated_part_of_nemotron_is_one_of_a_head():
    for width, size in ((16, 8), (32, 16)):
        assert keys_of("NemotronForCausalLM", head_dim=width)["rope.dimension_count"] == size
    found = keys_of("NemotronForCausalLM", rope_parameters={"rope_type": "default", "factor": 3.0})
    assert found["rope.scaling.type"] == "none" and "rope.scaling.factor" not in found
    found = keys_of("NemotronForCausalLM", rope_parameters={"rope_type": "linear", "factor": 3.0})
    assert found["rope.scaling.type"] == "linear" and found["rope.scaling.factor"] == 3
    with pytest.raises(ConvertError, match="rope_type: found 'dynamic', wanted 'default' or 'lin"):
        keys_of("NemotronForCausalLM", rope_parameters={"rope_type": "dynamic", "factor": 2.0})


def test_what_ministral_multiplies_by_is_one_where_it_is_said():
    rope = yarn(mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1)
    more = {"model_type": "ministral3", "hidden_act": "silu", "sliding_window": None}
    found = keys_of("Ministral3ForCausalLM", rope_parameters=rope, **more)
    one = {**rope, "attention_factor": 1.0}
    assert keys_of("Ministral3ForCausalLM", rope_parameters=one, **more) == found
    with pytest.raises(ConvertError, match="attention_factor: found 0.8, wanted 1.0"):
        other = {**rope, "attention_factor": 0.8}
        keys_of("Ministral3ForCausalLM", rope_parameters=other, **more)


def test_what_gpt_neox_has_no_word_for_is_refused():
    for more, told in (
        ({"hidden_act": "relu"}, "hidden_act: found 'relu', wanted 'gelu' or"),
        ({"head_dim": 24}, "head_dim: found 24, wanted 16"),
    ):
        with pytest.raises(ConvertError, match=told):
            keys_of("GPTNeoXForCausalLM", **more)


def test_phi_3_multiplies_by_what_its_configuration_says():
    rope = {"rope_type": "longrope", "rope_theta": 10000.0}
    found = keys_of("Phi3ForCausalLM", rope_parameters=rope, original_max_position_embeddings=64)
    wanted = math.sqrt(1 + math.log(4) / math.log(64))
    assert found["rope.scaling.attn_factor"] == np.float32(wanted)
    rope["factor"] = 8.0
    found = keys_of("Phi3ForCausalLM", rope_parameters=rope, original_max_position_embeddings=64)
    wanted = math.sqrt(1 + math.log(8) / math.log(64))
    assert found["rope.scaling.attn_factor"] == np.float32(wanted)
    rope["attention_factor"] = 1.5
    found = keys_of("Phi3ForCausalLM", rope_parameters=rope, original_max_position_embeddings=64)
    assert found["rope.scaling.attn_factor"] == 1.5


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("bitnet", {"hidden_act": "relu2"}, "hidden_act: found 'relu2', wanted 'silu' or"),
        ("qwen2_moe", {"hidden_act": "gelu"}, "hidden_act: found 'gelu', wanted 'silu' or"),
        ("plm", {"hidden_act": "silu"}, "hidden_act: found 'silu', wanted 'relu2'"),
        ("seed_oss", {"rope_parameters": LLAMA3}, "rope_type: found 'llama3', wanted 'default'"),
        ("cohere_qk", {"rope_parameters": yarn()}, "rope_type: found 'yarn', wanted 'default'"),
        ("nemotron", {"rope_parameters": yarn()}, "rope_type: found 'yarn', wanted 'default'"),
        ("laguna", {"layer_types": ["full_attention"] * 9}, "wanted ['full_attention', 'sliding_"),
        ("afmoe", {"mup_enabled": False}, "mup_enabled: found False, wanted True"),
        ("afmoe", {"mup_enabled": None}, "mup_enabled: found None, wanted True"),  # its default
        ("dots1", {"layer_types": ["sliding_attention"] * 9}, "found 'sliding_attention' in layer"),
        ("embeddinggemma", {"layer_types": ["full_attention"] * 9}, "wanted 'sliding_attention'"),
        ("llama4_text", {"attn_temperature_tuning": False}, "found False, wanted True or 4"),
        ("llama4_text", {"use_qk_norm": False}, "use_qk_norm: found False, wanted True"),
        ("phimoe", {"router_jitter_noise": 0.02}, "router_jitter_noise: found 0.02, wanted 0.01"),
        ("gemma3n_text", {"altup_correct_scale": False}, "altup_correct_scale: found False, want"),
        ("qwen3_next", {"norm_topk_prob": False}, "norm_topk_prob: found False, wanted True"),
        ("nemotron_h", {"time_step_min": 0.1}, "time_step_min: found 0.1, wanted 0.001"),
        ("granitemoehybrid", {"time_step_limit": [0.5, 1.0]}, "time_step_limit: found [0.5, 1.0]"),
        ("falcon_mamba", {"mixer_rms_eps": 0.1}, "mixer_rms_eps: found 0.1, wanted 1e-06 or"),
        ("olmo3", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping: found 30.0, wanted 0"),
        ("qwen2_moe", {"use_sliding_window": True}, "use_sliding_window: found True, wanted False"),
        ("qwen2_moe", {"is_causal": False}, "is_causal: found False, wanted True"),
        ("qwen3_next", {"decoder_sparse_step": 2}, "decoder_sparse_step: found 2, wanted 1"),
        ("kimi_linear", {"num_expert_group": 8}, "num_expert_group: found 8, wanted 0 or 1"),
        ("deepseek", {"routed_scaling_factor": 2.5}, "routed_scaling_factor: found 2.5, wanted 1"),
        (
            "falcon_h1",
            {"mamba_rms_norm": True, "mamba_norm_before_gate": True},
            "mamba_norm_before_gate: found True, wanted False",
        ),
    ],
)
def test_a_value_that_the_file_does_not_say_is_refused(name, change, told, tmp_path):
    folder_of(golden_of(name), tmp_path / "model", **change)
    with pytest.raises(ConvertError) as caught:
        convert_folder(tmp_path / "model", tmp_path / "made.gguf")
    assert told in str(caught.value) and "config.json" in str(caught.value)
    assert not (tmp_path / "made.gguf").exists()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("qwen2_moe", {"hidden_act": "swish", "use_sliding_window": None, "is_causal": True}),
        ("granitemoehybrid", {"time_step_limit": [0.0, math.inf]}),
        ("bert", {"is_causal": False}),
        ("deepseek32", {"layer_types": ["indexed_attention"] * 9}),
        ("dots1", {"layer_types": ["full_attention"] * 9, "sliding_window": 8}),
        ("falcon_h1", {"mamba_rms_norm": False, "mamba_norm_before_gate": True}),
        ("seed_oss", {"a_key_of_another_program": [1, {}]}),
    ],
)
def test_values_that_change_nothing_are_taken(name, change, tmp_path):
    folder_of(golden_of(name), tmp_path / "model", **change)
    made = convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32")
    assert GgufReader(made.path).metadata["general.architecture"] == made.architecture
