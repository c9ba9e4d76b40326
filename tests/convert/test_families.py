"""Every family against facts: the keys, names and shapes that llama.cpp's converter writes for a
tiny folder (golden/NAME.json), and the laws by which numbers are rearranged.

golden/NAME.json: `config` and `folder` are what a folder of `save_pretrained` holds, `keys` and
`tensors` what its file says. A tensor is [name, shape, layers, experts]: `{b}` stands for each of
the layers, `{e}` for each of the experts. `integers` are tensors of I64, by name. `types` names the
tensors that are not float32; `values` is the SHA-256 of all names and numbers, in the order of the
names, where they need no rounding. `mtp` is what a folder with layers that predict further tokens
has besides, and its file: `config` and `keys` are those that differ, `values` of its file, `alone`
of the file that has these layers and what they share with the model.
"""

import hashlib
import json
import re
import shutil
import struct

import numpy as np
import pytest

from oxillama.cli import main
from oxillama.convert import convert_folder
from oxillama.convert.family import FAMILIES, Hyper, Keys
from oxillama.convert.safetensors import StoredTensor
from oxillama.errors import ConvertError
from oxillama.gguf import GgufReader
from oxillama.model import load_model
from oxillama.model.record import record
from oxillama.tokenizer import TokenizerBridge
from tests.convert.folders import GOLDEN, folder_of, golden_of, plain, save, spread
from tests.model.stepping import logits

NAMES = sorted(path.stem for path in GOLDEN.glob("*.json"))
MTP = [name for name in NAMES if "mtp" in json.loads((GOLDEN / f"{name}.json").read_text())]


def converted(name, tmp_path, **config):
    """The folder's numbers and a reader of the file made of it."""
    tensors = folder_of(golden_of(name), tmp_path / "model", **config)
    made = convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32")
    reader = GgufReader(made.path)

    def values(target):
        return reader.data(target).view(np.float32).reshape(reader.tensors[target].shape)

    return tensors, values


@pytest.mark.parametrize("name", NAMES)
def test_keys_names_and_shapes_are_the_reference_files(name, tmp_path):
    golden = golden_of(name)
    folder_of(golden, tmp_path / "model")
    made = convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32")
    reader = GgufReader(made.path)
    gathered = {key for key in golden["keys"] if key.startswith("xielu.")}  # numbers of tensors
    found = {
        key: plain(value)
        for key, value in reader.metadata.items()
        if not key.startswith("general.") or key == "general.architecture"
    }
    assert gathered <= set(found)
    assert {key: value for key, value in found.items() if key not in gathered} == {
        key: value for key, value in golden["keys"].items() if key not in gathered
    }
    assert {key: info.shape for key, info in reader.tensors.items()} == dict(
        spread(golden["tensors"])
    )
    other = {key: info.type_name for key, info in reader.tensors.items()}
    assert sorted(key for key, kind in other.items() if kind != "F32") == golden.get("types", [])
    if "values" in golden:
        assert values_of(reader) == golden["values"]


def values_of(reader):
    """The SHA-256 of all names and numbers."""
    digest = hashlib.sha256()
    for key in sorted(reader.tensors):
        digest.update(key.encode())
        digest.update(bytes(reader.data(key)))
    return digest.hexdigest()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_converted_loads(name, tmp_path):
    """Every key and tensor of the file means something to the architecture it names."""
    folder_of(golden_of(name), tmp_path / "model")
    made = convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32")
    config, _ = record(GgufReader(made.path))
    keys = golden_of(name)["keys"]
    assert config.architecture == keys["general.architecture"]
    assert config.layers == keys[f"{config.architecture}.block_count"] and config.states


def test_the_goldens_are_all_there():
    assert len(NAMES) >= 80
    assert {"apertus", "gemma4_moe", "gpt_oss_mxfp4", "nemotron_h_moe", "t5_encoder"} <= set(NAMES)


# ---- laws of rearrangement -----------------------------------------------------------------------


def test_queries_and_keys_of_a_llama_are_paired(tmp_path):
    tensors, values = converted("ministral3", tmp_path)
    for part, heads in (("q", 4), ("k", 2)):
        theirs = tensors[f"model.layers.0.self_attn.{part}_proj.weight"].reshape(heads, 32, 64)
        ours = values(f"blk.0.attn_{part}.weight").reshape(heads, 32, 64)
        for i in range(16):
            assert np.array_equal(ours[:, 2 * i], theirs[:, i])
            assert np.array_equal(ours[:, 2 * i + 1], theirs[:, i + 16])


def test_a_folder_of_llada_moe_need_not_name_its_mask(tmp_path):
    folder_of(golden_of("llada_moe"), tmp_path / "model", mask_token_id=None)
    with pytest.raises(ConvertError, match="mask_token_id: found 156895, wanted .* to 79"):
        convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32")


@pytest.mark.parametrize(
    "name, config",
    [
        ("llada", {"include_qkv_bias": True}),
        ("llada", {"block_type": "sequential"}),
        ("llada", {"mask_token_id": None}),
        ("llada_moe", {"norm_topk_prob": True}),
        ("rnd1", {"norm_topk_prob": False}),
    ],
)
def test_what_a_file_of_masked_diffusion_cannot_mean_is_refused(name, config, tmp_path):
    folder_of(golden_of(name), tmp_path / "model", **config)
    with pytest.raises(ConvertError, match=next(iter(config))):
        convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32")


# the same folder by another version of its program, which keeps two layers of its switch
MULTI = {"num_hidden_layers": 4, "layer_types": ["full_attention"] * 4, "ms_code_m": 6}


@pytest.mark.parametrize("config", [{}, MULTI, {**MULTI, "switch_type": "multi"}])
def test_adapters_of_a_granite_switch_are_behind_one_of_zeros(config, tmp_path):
    """Queries and keys are paired in the matrix and in each adapter's second factor."""
    tensors, values = converted("granite_switch", tmp_path, **config)
    theirs = tensors["model.layers.1.self_attn.qkv_proj.base_layer.weight"]
    ours = values("blk.1.attn_qkv.weight")
    assert np.array_equal(ours[96:], theirs[96:])
    starts = {"q": (0, 64, 4), "k": (64, 96, 2), "v": (96, 128, 0)}
    for slot, (part, (begin, end, heads)) in enumerate(starts.items()):
        a, b = (
            tensors[f"model.layers.1.self_attn.qkv_proj.lora_{one}_slices.{slot}"][:, 0]
            for one in "AB"
        )
        down, up = (values(f"blk.1.attn_{part}.lora_{one}") for one in "ab")
        assert np.array_equal(down[1:], a) and not down[0].any() and not up[0].any()
        pairs = [(b[0], up[1]), (b[1], up[2]), (theirs[begin:end], ours[begin:end])]
        for each, found in pairs if heads else []:
            each, found = (one.reshape(heads, 16, -1) for one in (each, found))
            assert np.array_equal(found[:, 0::2], each[:, :8])
            assert np.array_equal(found[:, 1::2], each[:, 8:])
        if not heads:
            assert np.array_equal(up[1:], b)
    metadata = GgufReader(tmp_path / "made.gguf").metadata
    assert metadata["graniteswitch.block_count"] == 2
    assert ("graniteswitch.adapters.router_gain" in metadata) == (not config)


def test_factors_of_a_granite_switch_are_of_the_type_asked_for(tmp_path):
    folder_of(golden_of("granite_switch"), tmp_path / "model")
    made = convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F16")
    types = {name: info.type_name for name, info in GgufReader(made.path).tensors.items()}
    names = ("attn_qkv.weight", "attn_q.lora_a", "ffn_down.lora_b", "attn_norm.weight")
    assert [types[f"blk.0.{name}"] for name in names] == ["F16", "F16", "F16", "F32"]
    assert np.isfinite(logits(load_model(GgufReader(made.path)), np.array([7, 150, 8], int))).all()


def test_a_granite_switch_may_switch_back(tmp_path):
    """By a token more than adapters, which only the later version knows."""
    more = {"adapter_token_ids": [149, 150, 151], "adapter_substitute_token_ids": [3, 7, 9]}
    converted("granite_switch", tmp_path, **MULTI, **more)
    metadata = GgufReader(tmp_path / "made.gguf").metadata
    key = "graniteswitch.adapters.token_ids_activate"
    assert metadata[key].tolist() == more["adapter_token_ids"]
    record(GgufReader(tmp_path / "made.gguf"))


@pytest.mark.parametrize(
    "config, message",
    [
        ({"dual_stream": True}, "dual_stream: found True, wanted False"),
        ({"num_local_experts": 4}, "num_local_experts: found 4, wanted 0"),
        ({"hiding_groups": {"all": ["a"]}}, "hiding_groups: found"),
        ({"switch_type": "none"}, "switch_type: found 'none', wanted 'single' or 'multi'"),
        ({"adapter_substitute_token_ids": None}, "adapter_substitute_token_ids: found None"),
        ({"adapter_token_ids": [149, 150, 151]}, "adapter_token_ids: found"),
        ({"num_adapters": 0, "adapter_token_ids": []}, "adapter_token_ids: found"),
    ],
)
def test_what_files_of_granite_switch_cannot_say(config, message, tmp_path):
    with pytest.raises(ConvertError, match=message):
        converted("granite_switch", tmp_path, **config)


@pytest.mark.parametrize("config", [{}, {"attn_rotary_emb": 12}])
def test_what_bamba_rotates_of_a_head_is_paired_and_the_rest_stays(config, tmp_path):
    tensors, values = converted("bamba", tmp_path, **config)
    turned = config.get("attn_rotary_emb", 8)  # half of 16
    metadata = GgufReader(tmp_path / "made.gguf").metadata
    assert metadata["granitehybrid.rope.dimension_count"] == turned
    for part, heads in (("q", 4), ("k", 2)):
        theirs = tensors[f"model.layers.1.self_attn.{part}_proj.weight"].reshape(heads, 16, 64)
        ours = values(f"blk.1.attn_{part}.weight").reshape(heads, 16, 64)
        for i in range(turned // 2):
            assert np.array_equal(ours[:, 2 * i], theirs[:, i])
            assert np.array_equal(ours[:, 2 * i + 1], theirs[:, i + turned // 2])
        assert np.array_equal(ours[:, turned:], theirs[:, turned:])


@pytest.mark.parametrize("name", ["exaone4", "afmoe", "apertus", "seed_oss", "hunyuan_v1_dense"])
def test_other_queries_stay_as_they_are(name, tmp_path):
    tensors, values = converted(name, tmp_path)
    for part in ("q", "k", "v"):
        assert np.array_equal(
            values(f"blk.0.attn_{part}.weight"),
            tensors[f"model.layers.0.self_attn.{part}_proj.weight"],
        )


def test_the_numbers_of_apertus_activation_become_keys(tmp_path):
    tensors, _ = converted("apertus", tmp_path)
    reader = GgufReader(tmp_path / "made.gguf")
    for part in ("alpha_n", "alpha_p", "beta", "eps"):
        wanted = [tensors[f"model.layers.{i}.mlp.act_fn.{part}"].reshape(-1)[0] for i in range(2)]
        assert np.array_equal(np.float32(reader.metadata[f"xielu.{part}"]), np.float32(wanted))


def test_nemotron_norms_add_one_to_weights_and_not_to_biases(tmp_path):
    tensors, values = converted("nemotron", tmp_path)
    name = "model.layers.0.input_layernorm."
    assert np.array_equal(values("blk.0.attn_norm.weight"), tensors[name + "weight"] + 1)
    assert np.array_equal(values("blk.0.attn_norm.bias"), tensors[name + "bias"])


def test_falcon_h1_factors_are_multiplied_into_its_matrices(tmp_path):
    factors = {
        "key_multiplier": 0.5, "attention_in_multiplier": 0.25, "attention_out_multiplier": 4.0,
        "mlp_multipliers": [2.0, 8.0], "ssm_in_multiplier": 2.0, "ssm_out_multiplier": 0.5,
        "ssm_multipliers": [1.0, 2.0, 4.0, 8.0, 16.0], "lm_head_multiplier": 0.125,
        "embedding_multiplier": 16.0,
    }  # fmt: skip
    tensors, values = converted("falcon_h1", tmp_path, **factors)
    name = "model.layers.0."
    for theirs, ours, factor in (
        (name + "self_attn.q_proj", "blk.0.attn_q", 0.25),
        (name + "self_attn.k_proj", "blk.0.attn_k", 0.125),
        (name + "self_attn.v_proj", "blk.0.attn_v", 0.25),
        (name + "self_attn.o_proj", "blk.0.attn_output", 4),
        (name + "feed_forward.gate_proj", "blk.0.ffn_gate", 2),
        (name + "feed_forward.up_proj", "blk.0.ffn_up", 1),
        (name + "feed_forward.down_proj", "blk.0.ffn_down", 8),
        (name + "mamba.out_proj", "blk.0.ssm_out", 0.5),
        ("lm_head", "output", 0.125),
        ("model.embed_tokens", "token_embd", 16),
    ):
        assert np.array_equal(values(ours + ".weight"), tensors[theirs + ".weight"] * factor), ours
    rows = np.repeat([1.0, 2, 4, 8, 16], [128, 128, 16, 16, 8]).astype(np.float32)[:, None]
    wanted = tensors[name + "mamba.in_proj.weight"] * (2 * rows)
    assert np.array_equal(values("blk.0.ssm_in.weight"), wanted)


def test_value_heads_of_qwen35_take_turns(tmp_path):
    """Two key heads with two value heads each, of 32: the order 0 1 2 3 becomes 0 2 1 3."""
    tensors, values = converted("qwen3_5_text", tmp_path)
    name = "model.layers.0.linear_attn."
    order = [0, 2, 1, 3]
    rows = np.concatenate([np.arange(32) + 32 * head for head in order])
    assert np.array_equal(
        values("blk.0.attn_gate.weight"), tensors[name + "in_proj_z.weight"][rows]
    )
    assert np.array_equal(
        values("blk.0.ssm_out.weight"), tensors[name + "out_proj.weight"][:, rows]
    )
    for theirs, ours in (("in_proj_a.weight", "ssm_alpha.weight"), ("dt_bias", "ssm_dt.bias")):
        assert np.array_equal(values(f"blk.0.{ours}"), tensors[name + theirs][order])
    whole = np.concatenate([np.arange(128), 128 + rows])
    assert np.array_equal(
        values("blk.0.attn_qkv.weight"), tensors[name + "in_proj_qkv.weight"][whole]
    )
    convolved = tensors[name + "conv1d.weight"][:, 0][whole]
    assert np.array_equal(values("blk.0.ssm_conv1d.weight"), convolved)


def test_experts_of_llama4_are_transposed_and_split(tmp_path):
    tensors, values = converted("llama4_text", tmp_path)
    name = "model.layers.1.feed_forward.experts."
    both = tensors[name + "gate_up_proj"]
    assert np.array_equal(values("blk.1.ffn_gate_exps.weight"), both[:, :, :128].transpose(0, 2, 1))
    assert np.array_equal(values("blk.1.ffn_up_exps.weight"), both[:, :, 128:].transpose(0, 2, 1))
    down = tensors[name + "down_proj"].transpose(0, 2, 1)
    assert np.array_equal(values("blk.1.ffn_down_exps.weight"), down)


def test_experts_of_qwen3vl_lie_either_way(tmp_path):
    golden = golden_of("qwen3_vl_moe")
    tensors = folder_of(golden, tmp_path / "model")
    other = {
        name: np.ascontiguousarray(one.transpose(0, 2, 1)) if ".experts." in name else one
        for name, one in tensors.items()
    }
    made = []
    for held in (tensors, other):
        save(tmp_path / "model" / "model.safetensors", held)
        path = convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32").path
        made.append(path.read_bytes())
    assert made[0] == made[1]


def test_shared_matrices_of_granite_are_gate_then_up(tmp_path):
    for name, suffix in (("granitemoehybrid", "_shexp"), ("granitehybrid_dense", "")):
        (tmp_path / name).mkdir()
        tensors, values = converted(name, tmp_path / name)
        both = tensors["model.layers.0.shared_mlp.input_linear.weight"]
        assert np.array_equal(values(f"blk.0.ffn_gate{suffix}.weight"), both[:96])
        assert np.array_equal(values(f"blk.0.ffn_up{suffix}.weight"), both[96:])


def test_a_ramp_of_yarn_that_is_not_rounded_is_said_so(tmp_path):
    key = "gpt-oss.rope.scaling.yarn_truncate"
    for truncate in (True, False):
        (tmp_path / str(truncate)).mkdir()
        rope = {**golden_of("gpt_oss_mxfp4")["config"]["rope_parameters"], "truncate": truncate}
        converted("gpt_oss_mxfp4", tmp_path / str(truncate), rope_parameters=rope)
        metadata = GgufReader(tmp_path / str(truncate) / "made.gguf").metadata
        assert metadata.get(key, True) is truncate and (key in metadata) != truncate


def test_biases_by_distance_of_umt5_are_each_layers_own(tmp_path):
    golden = golden_of("t5_encoder")
    golden["config"] |= {"architectures": ["UMT5EncoderModel"]}
    (bias,) = (one for one in golden["folder"] if "relative_attention_bias" in one[0])
    bias[2] = [0, 1, 2]
    tensors = folder_of(golden, tmp_path / "model")
    reader = GgufReader(convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32").path)
    found = {op.params["layer"]: op.params["relative"] for op in attends(reader)}
    for layer in range(3):
        held = tensors[bias[0].replace("{b}", str(layer))]
        # of distance 0, of a token before, and of one behind: buckets 0, 1 and 17
        assert np.array_equal(found[layer][:, [128, 127, 129]], held[[0, 1, 17]].T)


@pytest.mark.parametrize(
    ("kind", "config", "head", "output"),
    [
        ("T5", {"scale_decoder_outputs": None}, None, None),  # the table, scaled
        ("T5", {"scale_decoder_outputs": True}, "table", None),
        ("T5", {"scale_decoder_outputs": True}, "own", "lm_head.weight: found one beside the"),
        ("T5", {}, "own", "head"),
        ("T5", {"scale_decoder_outputs": None, "tie_word_embeddings": False}, "own", "head"),
        ("T5", {}, None, "table"),
        ("MT5", {}, None, "table"),
        ("MT5", {"tie_word_embeddings": False}, "own", "head"),
        ("UMT5", {}, None, None),
        ("UMT5", {"tie_word_embeddings": False}, "own", "head"),
    ],
)
def test_the_output_of_t5_says_whether_logits_are_scaled(kind, config, head, output, tmp_path):
    golden = golden_of("t5")
    golden["config"] |= {"architectures": [f"{kind}ForConditionalGeneration"]} | config
    tensors = folder_of(golden, tmp_path / "model")
    table, own = tensors["shared.weight"], tensors.pop("lm_head.weight")
    if head is not None:
        tensors["lm_head.weight"] = table if head == "table" else own
    bias = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    tensors |= {"decoder.embed_tokens.weight": table, bias: np.zeros((32, 5), np.float32)}
    save(tmp_path / "model" / "model.safetensors", tensors)
    if output is not None and "found" in output:
        with pytest.raises(ConvertError, match=output):
            convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32")
        return
    reader = GgufReader(convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32").path)
    assert ("output.weight" in reader.tensors) == (output is not None)
    if output is not None:
        wanted = table if output == "table" else own
        assert bytes(reader.data("output.weight")) == wanted.tobytes()
    scaled = any(op.name == "scale" for op in record(reader)[1].ops)
    assert scaled == (output is None)


def test_the_table_of_t5_may_be_under_the_name_of_a_side(tmp_path):
    tensors = folder_of(golden_of("t5"), tmp_path / "model")
    table = tensors["decoder.embed_tokens.weight"] = tensors.pop("shared.weight")
    save(tmp_path / "model" / "model.safetensors", tensors)
    reader = GgufReader(convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32").path)
    assert bytes(reader.data("token_embd.weight")) == table.tobytes()
    tensors["encoder.embed_tokens.weight"] = table + 1
    save(tmp_path / "model" / "model.safetensors", tensors)
    with pytest.raises(ConvertError, match="decoder.embed_tokens.weight: found other numbers"):
        convert_folder(tmp_path / "model", tmp_path / "other.gguf", "F32")


def attends(reader):
    return [op for op in record(reader)[1].ops if op.name == "attend"]


def test_folders_of_embedders_that_transformers_writes_itself(tmp_path):
    """Its classes of Jina's third embedder, without adapters, and of Nomic's have other keys."""
    for name, own in (
        ("jina_bert_v3", {"architectures": ["JinaEmbeddingsV3Model"], "lora_adaptations": None}),
        ("nomic_bert", {"n_positions": None, "n_inner": None, "intermediate_size": 64}),
    ):
        golden, place = golden_of(name), tmp_path / name
        place.mkdir()
        tensors = folder_of(golden, place / "model")
        first = convert_folder(place / "model", place / "first.gguf", "F32").path
        rope = {"rope_type": "default", "rope_theta": golden["config"]["rotary_emb_base"]}
        config = {**golden["config"], **own, "rotary_emb_base": None, "rope_parameters": rope}
        (place / "model" / "config.json").write_text(json.dumps(config))
        bare = {
            key.removeprefix("roberta.").replace("parametrizations.weight.original", "weight"): held
            for key, held in tensors.items()
            if "lora_" not in key
        }
        save(place / "model" / "model.safetensors", bare)
        made = convert_folder(place / "model", place / "made.gguf", "F32").path
        ours, wanted = GgufReader(made), GgufReader(first)
        assert {key: plain(value) for key, value in ours.metadata.items()} == {
            key: plain(value) for key, value in wanted.metadata.items()
        }
        assert set(ours.tensors) == set(wanted.tensors)
        for key in ours.tensors:
            assert np.array_equal(ours.data(key), wanted.data(key)), key


def test_decays_are_negative_exponentials(tmp_path):
    tensors, values = converted("nemotron_h", tmp_path)
    wanted = -np.exp(tensors["backbone.layers.0.mixer.A_log"].astype(np.float64))
    assert np.array_equal(values("blk.0.ssm_a"), wanted.astype(np.float32)[:, None])


def test_positions_of_roberta_begin_behind_the_padding(tmp_path):
    tensors, values = converted("roberta", tmp_path)
    wanted = tensors["embeddings.position_embeddings.weight"][2:]
    assert np.array_equal(values("position_embd.weight"), wanted)


def test_dense_modules_of_embeddinggemma_are_taken(tmp_path):
    folder_of(golden_of("embeddinggemma"), tmp_path / "model")
    held = (tmp_path / "model" / "2_Dense" / "model.safetensors").read_bytes()[-64 * 32 * 4 :]
    convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32")
    assert GgufReader(tmp_path / "made.gguf").data("dense_2.weight").tobytes() == held


def mxfp4(block):
    """The 32 numbers of a GGUF block: a scale of eight bits, then sixteen bytes of two E2M1."""
    table = np.float64([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    signed = np.concatenate([table, -table])
    codes = np.concatenate([block[1:] & 15, block[1:] >> 4])
    return signed[codes] * 2.0 ** (int(block[0]) - 127)


def test_mxfp4_of_gpt_oss_keeps_its_numbers(tmp_path):
    """A folder's byte holds two neighbours, low bits first; gate and up are its rows in turn."""
    tensors, _ = converted("gpt_oss_mxfp4", tmp_path)
    reader = GgufReader(tmp_path / "made.gguf")
    table = np.float64([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    signed = np.concatenate([table, -table])
    name = "model.layers.0.mlp.experts."
    for theirs, ours, first, step in (
        ("gate_up_proj", "gate", 0, 2), ("gate_up_proj", "up", 1, 2), ("down_proj", "down", 0, 1)
    ):  # fmt: skip
        blocks = tensors[f"{name}{theirs}_blocks"][:, first::step]
        scales = tensors[f"{name}{theirs}_scales"][:, first::step]
        codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, 32)
        wanted = signed[codes] * 2.0 ** (scales[..., None].astype(int) - 127)
        bytes_ = reader.data(f"blk.0.ffn_{ours}_exps.weight").view(np.uint8).reshape(-1, 17)
        found = np.stack([mxfp4(block) for block in bytes_])
        assert np.array_equal(found, wanted.reshape(-1, 32)), ours


def test_baichuan_rows_are_q_k_and_v(tmp_path):
    golden = golden_of("internlm3")
    place = tmp_path / "model"
    tensors = folder_of(golden, place, architectures=["BaichuanForCausalLM"])
    packed = {}
    for layer in range(2):
        rows = np.random.default_rng(layer).normal(size=(192, 64)).astype(np.float32)
        packed[f"model.layers.{layer}.self_attn.W_pack.weight"] = rows
    parts = ("q_proj", "k_proj", "v_proj")
    kept = {n: one for n, one in tensors.items() if not any(part in n for part in parts)}
    config = {**golden["config"], "architectures": ["BaichuanForCausalLM"]}
    (place / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 4}))
    save(place / "model.safetensors", {**kept, **packed})
    reader = GgufReader(convert_folder(place, tmp_path / "made.gguf", "F32").path)
    rows = packed["model.layers.0.self_attn.W_pack.weight"]
    for at, part in enumerate("qk"):
        ours = reader.data(f"blk.0.attn_{part}.weight").view(np.float32).reshape(4, 8, 2, 64)
        assert np.array_equal(ours.swapaxes(1, 2), rows[64 * at :][:64].reshape(4, 2, 8, 64))
    found = reader.data("blk.0.attn_v.weight").view(np.float32).reshape(64, 64)
    assert np.array_equal(found, rows[128:])
    assert reader.metadata["baichuan.tensor_data_layout"] == "Meta AI original pth"


def test_norms_of_each_head_of_a_stablelm_are_stacked(tmp_path):
    place = tmp_path / "model"
    config = {
        "architectures": ["StableLmForCausalLM"], "hidden_size": 32, "intermediate_size": 32,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1,
        "vocab_size": 32, "max_position_embeddings": 64, "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.25, "use_parallel_residual": True, "qk_layernorm": True,
    }  # fmt: skip
    shapes = [["model.embed_tokens.weight", [32, 32]], ["lm_head.weight", [32, 32]]]
    for name in ("model.norm", "model.layers.0.input_layernorm"):
        shapes += [[f"{name}.weight", [32]], [f"{name}.bias", [32]]]
    for name, rows in (("q", 32), ("k", 16), ("v", 16), ("o", 32)):
        shapes.append([f"model.layers.0.self_attn.{name}_proj.weight", [rows, 32]])
    for name in ("gate", "up", "down"):
        shapes.append([f"model.layers.0.mlp.{name}_proj.weight", [32, 32]])
    for part, count in (("q", 4), ("k", 2)):
        shapes.append([f"model.layers.{{b}}.self_attn.{part}_layernorm.norms.{{e}}.weight", [8],
                       [0], count])  # fmt: skip
    tensors = folder_of({"config": config, "folder": shapes}, place)
    reader = GgufReader(convert_folder(place, tmp_path / "made.gguf").path)
    for part, count in (("q", 4), ("k", 2)):
        wanted = [
            tensors[f"model.layers.0.self_attn.{part}_layernorm.norms.{i}.weight"]
            for i in range(count)
        ]
        found = reader.data(f"blk.0.attn_{part}_norm.weight").view(np.float32)
        assert np.array_equal(found.reshape(count, 8), wanted)
    assert reader.metadata["stablelm.use_parallel_residual"] is True


def test_three_values_of_bitnet_are_its_rounding(tmp_path):
    tensors, values = converted("bitnet", tmp_path)
    x = tensors["model.layers.0.mlp.up_proj.weight"].astype(np.float64)
    scale = np.abs(x).mean()
    wanted = np.clip(np.round(x / scale), -1, 1) * scale
    assert np.abs(values("blk.0.ffn_up.weight") - wanted).max() <= 3e-7 * scale


WORLD = ["1 '\\x00' 1", "2 'é' 2", "3 b'\\xff' 1", "4 ' a' 2"]


def test_the_vocabulary_of_rwkv_is_its_own(tmp_path):
    folder_of(golden_of("rwkv6"), tmp_path / "model")
    world = tmp_path / "model" / "rwkv_vocab_v20230424.txt"
    world.write_text("\n".join(WORLD) + "\n", encoding="utf-8")
    made = convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32")
    keys = GgufReader(made.path).metadata
    tokens = list(keys["tokenizer.ggml.tokens"])
    assert keys["tokenizer.ggml.model"] == "rwkv" and len(tokens) == 80
    assert tokens[:6] == ["<s>", "\\x00", "\\xc3\\xa9", "\\xff", " a", "[PAD5]"]
    assert list(keys["tokenizer.ggml.token_type"][:6]) == [3, 1, 1, 1, 1, 5]
    assert [keys[f"tokenizer.ggml.{end}_token_id"] for end in ("bos", "eos", "eot")] == [0, 0, 261]
    with pytest.warns(UserWarning, match="eot_token_id"):
        assert TokenizerBridge.from_gguf(made.path).encode("é a") == [2, 4]
    world.write_text("1 'é' 1\n", encoding="utf-8")
    with pytest.raises(ConvertError, match="line 1"):
        convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32")


# transformers' names of what the published folders of DeepSeek V4 name otherwise
V4 = {
    "embed.weight": "embed_tokens.weight",
    "hc_head_": "hc_head.hc_",
    "hc_attn_": "attn_hc.",
    "hc_ffn_": "ffn_hc.",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    ".attn.": ".self_attn.",
    ".ffn.": ".mlp.",
    "attn_sink": "sinks",
    "indexer.compressor.": "compressor.indexer.",
    "self_attn.indexer.wq_b": "self_attn.compressor.indexer.q_b_proj",
    "self_attn.indexer.weights": "self_attn.compressor.indexer.scorer.weights",
    "compressor.norm": "compressor.kv_norm",
    "indexer.norm": "indexer.kv_norm",
    "wq_a": "q_a_proj",
    "wq_b": "q_b_proj",
    "q_norm": "q_a_norm",
    "wkv": "kv_proj",
    "wgate": "gate_proj",
    "wo_": "o_",
    "o_a.": "o_a_proj.",
    "o_b.": "o_b_proj.",
    ".ape": ".position_bias",
    "gate.bias": "gate.e_score_correction_bias",
    "experts.w1": "experts.gate_proj",
    "experts.w2": "experts.down_proj",
    "experts.w3": "experts.up_proj",
}


def test_folders_of_deepseek_v4_are_those_of_transformers_too(tmp_path):
    """Which names modules otherwise, stacks experts, and says all of each layer by a word."""
    golden = golden_of("deepseek_v4")
    tensors = folder_of(golden, tmp_path / "first")
    bias = {f"layers.{layer}.ffn.gate.bias": np.ones(8, np.float32) for layer in (0, 1)}
    save(tmp_path / "first" / "model.safetensors", tensors | bias)  # which nothing reads
    first = GgufReader(convert_folder(tmp_path / "first", tmp_path / "first.gguf", "F32").path)
    renamed, experts = {}, {}
    for name, array in tensors.items():
        for theirs, ours in V4.items():
            name = name.replace(theirs, ours)
        layer, expert, part = re.match(r"(?:(.*\.experts)\.(\d+)\.(w\d)\.)?", name).groups()
        if expert is None:
            renamed["lm_head.weight" if name == "head.weight" else f"model.{name}"] = array
        else:
            experts.setdefault(f"model.{layer}", {}).setdefault(part, {})[int(expert)] = array
    for name, parts in experts.items():
        gate, down, up = (
            np.stack([held[expert] for expert in range(8)]) for _, held in sorted(parts.items())
        )
        renamed[f"{name}.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        renamed[f"{name}.down_proj"] = down
    config = {**golden["config"]}
    scaling, base = config.pop("rope_scaling"), config.pop("compress_rope_theta")
    for name in ("compress_ratios", "num_hash_layers", "qk_rope_head_dim", "rope_theta"):
        config.pop(name)
    config |= {
        "layer_types": [
            "sliding_attention",
            "compressed_sparse_attention",
            "heavily_compressed_attention",
            "compressed_sparse_attention",
        ],
        "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe"],
        "partial_rotary_factor": 0.25,
        "rope_parameters": {
            "main": {"rope_type": "default", "rope_theta": 10000.0},
            "compress": {**scaling, "rope_type": "yarn", "rope_theta": base, "attention_factor": 1},
        },
    }
    place = tmp_path / "other"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config))
    save(place / "model.safetensors", renamed)
    other = GgufReader(convert_folder(place, tmp_path / "other.gguf", "F32", name="first").path)
    assert {key: plain(value) for key, value in other.metadata.items()} == {
        key: plain(value) for key, value in first.metadata.items()
    }
    assert set(other.tensors) == set(first.tensors)
    for name in first.tensors:
        assert np.array_equal(other.data(name), first.data(name)), name
    table = first.data("blk.1.ffn_gate_tid2eid.weight").reshape(-1).view(np.int32)
    assert np.array_equal(table, tensors["layers.1.ffn.gate.tid2eid"].reshape(-1))


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "config", "word"),
    [
        ("apertus", {"hidden_act": "silu"}, "hidden_act"),
        ("afmoe", {"global_attn_every_n_layers": 2}, "global_attn_every_n_layers"),
        ("bert", {"hidden_act": "relu"}, "hidden_act"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("embeddinggemma", {"use_bidirectional_attention": False}, "use_bidirectional_attention"),
        ("embeddinggemma", {"query_pre_attn_scalar": 4096}, "query_pre_attn_scalar"),
        ("gemma3n_text", {"activation_sparsity_pattern": [1.5]}, "activation_sparsity_pattern"),
        ("gemma4", {"attention_bias": True}, "attention_bias"),
        ("gpt_oss_mxfp4", {"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ("arcee", {"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
        ("granitemoehybrid", {"layer_types": ["mamba", "conv", "mamba", "mamba"]}, "conv"),
        ("deepseek_v4", {"scoring_func": "sigmoid"}, "scoring_func"),
        ("deepseek_v4", {"norm_topk_prob": False}, "norm_topk_prob"),
        ("deepseek_v4", {"compress_ratios": [0, 4]}, "compress_ratios"),
        ("deepseek_v4", {"compress_ratios": [0, 4, 64, 4]}, "compress_ratios"),
        ("deepseek_v4", {"layer_types": ["full_attention"] * 4}, "full_attention"),
        ("deepseek_v4", {"mlp_layer_types": ["moe", "hash_moe", "moe", "moe"]}, "hash_moe"),
        ("deepseek_v4", {"rope_scaling": {"type": "ntk"}}, "ntk"),
        ("dots3note", {"n_group": 2}, "n_group"),
        ("dots3note", {"swa_q_lora_rank": 8}, "swa_q_lora_rank"),
        ("glm5_next", {"qk_rope_head_dim": 8}, "qk_rope_head_dim"),
        ("glm5_next", {"layer_types": None}, "layer_types"),
        ("hy_v4", {"indexer_types": ["shared", "full", "full"]}, "indexer_types"),
        ("hy_v4", {"mlp_layer_types": ["dense", "sparse", "dense"]}, "mlp_layer_types"),
        ("kimi_k3", {"hidden_act": "silu"}, "hidden_act"),
        (
            "kimi_k3",
            {"quantization_config": {"quant_method": "compressed-tensors"}},
            "config_groups",
        ),
        ("laguna", {"gating": False}, "gating"),
        ("ministral3", {"sliding_window": 16}, "sliding_window"),
        ("ministral3", {"model_type": "mistral5"}, "mistral5"),
        ("modernbert", {"classifier_pooling": "max"}, "classifier_pooling"),
        ("nemotron_h", {"hybrid_override_pattern": "M*"}, "hybrid_override_pattern"),
        ("nomic_bert_moe", {"activation_function": "swiglu"}, "activation_function"),
        ("mimo2", {"swa_head_dim": 8}, "swa_head_dim"),
        ("openelm", {"num_kv_heads": [1]}, "num_kv_heads"),
        ("deci", {"block_configs": [{}]}, "block_configs"),
        ("step35", {"partial_rotary_factors": [1.0, 1.0]}, "partial_rotary_factors"),
        ("phimoe", {"rope_parameters": {"rope_type": "longrope", "long_factor": [1.0]}}, "factor"),
        ("phimoe", {"rope_parameters": {"short_mscale": 1.1, "long_mscale": 1.2}}, "short_mscale"),
        ("t5", {"feed_forward_proj": "gated-silu"}, "feed_forward_proj"),
        ("t5", {"feed_forward_proj": "relu", "is_gated_act": True}, "is_gated_act"),
        ("t5_encoder", {"feed_forward_proj": "gated-gelu", "dense_act_fn": "silu"}, "dense_act_fn"),
        ("t5", {"decoder_start_token_id": None}, "decoder_start_token_id"),
        ("t5_encoder", {"relative_attention_max_distance": 64}, "relative_attention_max_distance"),
        ("xlm_rerank", {"id2label": {"0": 1}}, "id2label"),
        ("xlm_rerank", {"id2label": {"0": "a", "2": "b"}}, "id2label: found the numbers 0, 2"),
    ],
)
def test_configurations_without_a_place_in_the_file_are_refused(name, config, word, tmp_path):
    folder_of(golden_of(name), tmp_path / "model", **config)
    with pytest.raises(ConvertError) as caught:
        convert_folder(tmp_path / "model", tmp_path / "made.gguf")
    assert word in str(caught.value)
    assert not (tmp_path / "made.gguf").exists()


def test_the_table_of_qwen4_is_joined_in_the_order_of_its_parts(tmp_path):
    tensors, values = converted("qwen4_exp", tmp_path)
    place = "model.language_model.layers.1.ple.ple_embedding."
    parts = [tensors[f"{place}ngram_embedding.shard_{i}.weight"] for i in range(4)]
    assert np.array_equal(values("per_layer_token_embd.weight"), np.concatenate(parts))
    # a folder may hold it whole, and each type is written piece by piece too
    whole = {n: one for n, one in tensors.items() if ".shard_" not in n}
    whole[f"{place}ngram_embedding.weight"] = np.concatenate(parts)
    for kind in ("F32", "BF16"):
        found = []
        for held in (whole, tensors):
            save(tmp_path / "model" / "model.safetensors", held)
            made = convert_folder(tmp_path / "model", tmp_path / "made.gguf", kind).path
            found.append(bytes(GgufReader(made).data("per_layer_token_embd.weight")))
        assert found[0] == found[1] and len(found[0]) == 256 * 16 * (4 if kind == "F32" else 2)


def test_the_hash_of_qwen4_stops_at_the_first_end_of_the_text_part(tmp_path):
    """As in its published code, whatever the whole configuration says beside it."""
    text = golden_of("qwen4_exp")["config"]["text_config"] | {"eos_token_id": [7, 3]}
    converted("qwen4_exp", tmp_path, text_config=text, eos_token_id=3)
    assert GgufReader(tmp_path / "made.gguf").metadata["qwen4exp.ple.eos_token_id"] == 7


def test_layers_of_qwen4_are_called_as_checkpoints_or_as_transformers_call_them(tmp_path):
    golden = golden_of("qwen4_exp")
    kinds = ["linear_attention"] * 3 + ["indexed_attention"]
    text = golden["config"]["text_config"] | {"layer_types": kinds}
    converted("qwen4_exp", tmp_path, text_config=text)
    keys = GgufReader(tmp_path / "made.gguf").metadata
    for key in ("recurrent_layers", "compress_ratios"):
        whole = f"qwen4exp.attention.{key}"
        assert plain(keys[whole]) == golden["keys"][whole]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"output_gate_type": None}, "output_gate_type: found 'silu', wanted 'sigmoid'"),
        ({"hidden_act": "gelu"}, "hidden_act: found 'gelu', wanted 'silu'"),
        ({"norm_topk_prob": False}, "norm_topk_prob: found False, wanted True"),
        ({"indexer_kv_heads": 2}, "indexer_kv_heads: found 2, wanted 1"),
        ({"indexer_budget": None}, "indexer_budget is missing"),
        ({"ple_layer_ids": [2, 3]}, "ple_layer_ids: found [2, 3], wanted one layer from 1 to 4"),
        ({"ple_layer_ids": [3]}, "layers.2.ple.ple_embedding.layer_multipliers: missing"),
        ({"eos_token_id": None}, "eos_token_id is missing"),
    ],
)
def test_what_a_file_of_qwen4_has_no_place_for_is_refused(config, said, tmp_path):
    text = golden_of("qwen4_exp")["config"]["text_config"] | config
    folder_of(golden_of("qwen4_exp"), tmp_path / "model", text_config=text)
    with pytest.raises(ConvertError) as caught:
        convert_folder(tmp_path / "model", tmp_path / "made.gguf")
    assert said in str(caught.value)


def changed(name, tmp_path, change):
    """The error of a folder whose tensors were changed."""
    tensors = folder_of(golden_of(name), tmp_path / "model")
    change(tensors)
    save(tmp_path / "model" / "model.safetensors", tensors)
    with pytest.raises(ConvertError) as caught:
        convert_folder(tmp_path / "model", tmp_path / "made.gguf")
    return str(caught.value)


def test_a_table_without_one_of_its_parts_is_refused(tmp_path):
    name = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_1.weight"
    error = changed("qwen4_exp", tmp_path, lambda held: held.pop(name))
    assert "per_layer_token_embd.weight: parts [0, 2, 3]" in error


def test_a_score_of_residuals_without_its_projection_is_refused(tmp_path):
    name = "model.layers.1.mlp_res_proj.weight"
    assert name in changed("kimi_k3", tmp_path, lambda held: held.pop(f"language_model.{name}"))


# ---- layers that predict further tokens ----------------------------------------------------------


def with_mtp(name, place, **config):
    """The golden and a folder of it with layers that predict further tokens, and its numbers."""
    golden = golden_of(name)
    more = golden["mtp"]
    whole = {**golden, "folder": golden["folder"] + more["folder"]}
    return golden, folder_of(whole, place, **more["config"] | config)


@pytest.mark.parametrize("name", MTP)
def test_layers_that_predict_further_tokens_are_the_reference_files(name, tmp_path):
    golden, _ = with_mtp(name, tmp_path / "model")
    more = golden["mtp"]
    made = convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32")
    assert made.mtp_layers == more["keys"][f"{made.architecture}.nextn_predict_layers"]
    assert not made.mtp_left_out and "to predict further tokens" in str(made)
    reader = GgufReader(made.path)
    found = {key: plain(value) for key, value in reader.metadata.items() if "general." not in key}
    wanted = {**golden["keys"], **more["keys"]}
    assert found == {key: value for key, value in wanted.items() if "general." not in key}
    tensors = dict(spread(golden["tensors"] + more["tensors"]))
    assert {key: info.shape for key, info in reader.tensors.items()} == tensors
    assert values_of(reader) == more["values"]


@pytest.mark.parametrize("name", MTP)
def test_layers_that_predict_further_tokens_are_left_out_on_request(name, tmp_path):
    """Logits do not depend on them."""
    golden, _ = with_mtp(name, tmp_path / "model")
    convert_folder(tmp_path / "model", tmp_path / "whole.gguf", "F32")
    made = convert_folder(tmp_path / "model", tmp_path / "less.gguf", "F32", mtp=False)
    assert made.mtp_layers == 0 and made.mtp_left_out == made.left_out
    assert f"{len(made.left_out)} tensors that predict further tokens left out" in str(made)
    reader = GgufReader(made.path)
    assert reader.metadata.get(f"{made.architecture}.nextn_predict_layers", 0) == 0
    assert {key: info.shape for key, info in reader.tensors.items()} == dict(
        spread(golden["tensors"])
    )
    if "values" in golden:
        assert values_of(reader) == golden["values"]
    ids = np.arange(24) % 64
    less, whole = (
        logits(load_model(GgufReader(tmp_path / f"{one}.gguf")), ids) for one in ("less", "whole")
    )
    assert np.array_equal(less, whole)


@pytest.mark.parametrize("name", [name for name in MTP if "alone" in golden_of(name)["mtp"]])
def test_layers_that_predict_further_tokens_may_have_a_file_of_their_own(name, tmp_path):
    golden, _ = with_mtp(name, tmp_path / "model")
    made = convert_folder(tmp_path / "model", tmp_path / "mtp.gguf", "F32", mtp="only")
    reader = GgufReader(made.path)
    more = set(dict(spread(golden["mtp"]["tensors"])))
    assert set(reader.tensors) - more <= {
        "token_embd.weight",
        "output_norm.weight",
        "output.weight",
    }
    assert values_of(reader) == golden["mtp"]["alone"]
    assert (
        reader.metadata[f"{made.architecture}.block_count"]
        == made.mtp_layers + (golden["keys"][f"{made.architecture}.block_count"])
    )


def test_the_reference_files_with_further_layers_are_all_there():
    assert {"deepseek32", "glm4_moe", "mimo2", "nemotron_h_moe", "qwen3_5_text", "step35"} <= {*MTP}


def test_what_files_have_no_place_for_is_left_out(tmp_path):
    name, extra = "hy_v4", "model.mtp_layers.0.norm.weight"
    place = tmp_path / name
    tensors = folder_of(golden_of(name), place)
    save(place / "model.safetensors", {**tensors, extra: np.zeros(64, np.float32)})
    made = convert_folder(place, tmp_path / f"{name}.gguf", "F32")
    assert made.left_out == (extra,)
    assert made.tensors == len([*spread(golden_of(name)["tensors"])])
    with pytest.raises(ConvertError, match="mtp: asked for .* which files of hy_v4 do not hold"):
        convert_folder(place, tmp_path / "no.gguf", mtp=True)


def test_layers_that_a_folder_counts_and_does_not_hold_are_told(tmp_path):
    """As where a program saved the model anew and did not know them."""
    folder_of(golden_of("glm4_moe"), tmp_path / "model", num_nextn_predict_layers=1)
    made = convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32")
    assert made.mtp_layers == 0 and made.mtp_absent == 1
    assert "1 layer to predict further tokens not found in the folder" in str(made)
    assert "glm4moe.nextn_predict_layers" not in GgufReader(made.path).metadata
    for asked in (True, "only"):
        with pytest.raises(ConvertError, match="found no tensors of them"):
            convert_folder(tmp_path / "model", tmp_path / "no.gguf", mtp=asked)
    with pytest.raises(ConvertError, match="mtp: found 'yes', wanted True, False, 'only' or None"):
        convert_folder(tmp_path / "model", tmp_path / "no.gguf", mtp="yes")


@pytest.mark.parametrize("counted", [None, 0, 1])
def test_a_layer_of_the_model_is_not_taken_for_one_that_predicts_further_tokens(counted, tmp_path):
    """Where its configuration counts one too few, also if such a layer is behind it."""
    for name, more in (("deepseek", ()), ("glm4_moe_lite", golden_of("glm4_moe_lite")["mtp"])):
        golden = golden_of(name)
        layers = golden["config"]["num_hidden_layers"] - 1
        whole = {**golden, "folder": golden["folder"] + (more["folder"] if more else [])}
        place = tmp_path / name
        config = {"num_hidden_layers": layers, "num_nextn_predict_layers": counted}
        if not (counted and not more):
            folder_of(whole, place, **config)
            told = f"found tensors of layer {layers}, wanted those of the {layers} layers"
            with pytest.raises(ConvertError, match=told):
                convert_folder(place, tmp_path / "no.gguf", mtp=False if more else None)


def test_further_layers_with_parts_missing_are_refused(tmp_path):
    _, tensors = with_mtp("step35", tmp_path / "model")

    def error(held, **config):
        save(tmp_path / "model" / "model.safetensors", held)
        with pytest.raises(ConvertError) as caught:
            convert_folder(tmp_path / "model", tmp_path / "no.gguf")
        return str(caught.value)

    name = "model.layers.3.eh_proj.weight"
    gone = {key: one for key, one in tensors.items() if key != name}
    assert "blk.3.nextn.eh_proj.weight: found none, wanted [64, 128]" in error(gone)
    assert "found shape [64, 64], wanted [64, 128]" in error(
        {**tensors, name: tensors[name][:, :64]}
    )
    gone = {key: one for key, one in tensors.items() if not key.startswith("model.layers.3.")}
    assert "found no tensors of layer 3, wanted those of the 3 layers" in error(gone)


def test_further_layers_of_deepseek_v3_are_kept_on_request(tmp_path):
    """Its files of llama.cpp's converter have none; those of GLM 4.7 Flash, of its kind, do."""
    _, tensors = with_mtp("glm4_moe_lite", tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    (tmp_path / "model/config.json").write_text(
        json.dumps(config | {"architectures": ["DeepseekV3ForCausalLM"]})
    )
    made = convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32")
    assert made.mtp_layers == 0 and len(made.mtp_left_out) == len(
        [name for name in tensors if name.startswith("model.layers.3.")]
    )
    made = convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32", mtp=True)
    assert values_of(GgufReader(made.path)) == golden_of("glm4_moe_lite")["mtp"]["values"]


def test_further_layers_may_be_quantised_or_not(tmp_path):
    """One matrix of blocks of 8 bits, the others floats: the file has the products."""
    _, tensors = with_mtp("deepseek32", tmp_path / "model")
    name = "model.layers.3.self_attn.o_proj.weight"
    codes = np.random.default_rng(1).integers(0, 126, tensors[name].shape, np.uint8)
    blocks = [-(-size // 32) for size in codes.shape]
    scale = np.random.default_rng(2).random(blocks).astype(np.float32)
    held = {**tensors, name: codes, f"{name}_scale_inv": scale}
    save(tmp_path / "model/model.safetensors", held)
    path = tmp_path / "model/model.safetensors"
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    about = json.loads(data[8 : 8 + size])
    about[name]["dtype"] = "F8_E4M3"
    text = json.dumps(about).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    config = json.loads((tmp_path / "model/config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [32, 32]}
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    made = convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32")
    assert made.mtp_layers == 1
    reader = GgufReader(made.path)
    grid = np.kron(scale, np.ones((32, 32), np.float32))[: codes.shape[0], : codes.shape[1]]
    wanted = StoredTensor("F8_E4M3", codes).floats() * grid
    found = reader.data("blk.3.attn_output.weight").view(np.float32)
    assert np.array_equal(found.reshape(wanted.shape), wanted)
    assert np.array_equal(
        reader.data("blk.3.nextn.eh_proj.weight").view(np.float32).reshape(-1),
        tensors["model.layers.3.eh_proj.weight"].reshape(-1),
    )


def keys_of(name, config):
    """The keys of a configuration alone, without their architecture."""
    family, made = FAMILIES[name], Keys(FAMILIES[name].arch)
    family.keys(Hyper(config, "config.json"), made)
    return {key.partition(".")[2]: value for key, (value, _) in made.found.items()}


EXPERTS = dict(
    hidden_size=64,
    intermediate_size=96,
    moe_intermediate_size=32,
    num_attention_heads=4,
    num_hidden_layers=3,
    num_experts=4,
    num_experts_per_tok=2,
    num_shared_experts=2,
    max_position_embeddings=128,
    rms_norm_eps=1e-5,
    vocab_size=80,
)


def test_scores_of_hy3_are_normed_where_the_configuration_does_not_say(tmp_path):
    """As its code always does; transformers saves configurations without the key."""
    config = EXPERTS | {"router_scaling_factor": 2.5}
    assert keys_of("HYV3ForCausalLM", config)["expert_weights_norm"] is True
    config["route_norm"] = False
    assert keys_of("HYV3ForCausalLM", config)["expert_weights_norm"] is False


def test_a_softmax_over_the_chosen_experts_of_cohere_2_needs_no_norm():
    """As its class in transformers computes it, which then ignores `norm_topk_prob`."""
    golden = golden_of("cohere2_moe")["config"]
    for scores, norm, wanted in (
        ("softmax", True, True),
        ("softmax", False, True),
        ("sigmoid", True, True),
        ("sigmoid", False, False),
    ):
        config = golden | {"expert_selection_fn": scores, "norm_topk_prob": norm}
        found = keys_of("Cohere2MoeForCausalLM", config)
        assert found["expert_weights_norm"] is wanted


def test_groups_of_experts_are_in_the_file_where_the_choice_is_by_group():
    """A greedy choice of DeepSeek V2 is among all experts, whatever groups there are."""
    config = EXPERTS | {"qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
    config |= {"kv_lora_rank": 32, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1}
    for method, wanted in (("greedy", 1), ("group_limited_greedy", 2), ("noaux_tc", 2)):
        found = keys_of("DeepseekV2ForCausalLM", config | {"topk_method": method})
        assert found["expert_group_count"] == wanted and found["expert_group_used_count"] == 1


def test_a_least_sum_of_ernies_experts_that_tells_is_refused():
    """transformers divides by it where the weights of the chosen experts sum to less."""
    config = golden_of("ernie4_5_moe")["config"]
    for least in (1e-12, 0.0, None):
        keys_of("Ernie4_5_MoeForCausalLM", config | {"moe_norm_min": least})
    with pytest.raises(ConvertError, match="moe_norm_min: found 0.3, wanted at most 1e-06"):
        keys_of("Ernie4_5_MoeForCausalLM", config | {"moe_norm_min": 0.3})


def test_labels_of_a_classifier_are_in_the_order_of_their_numbers():
    """Which are texts in config.json: "10" comes before "2" among those."""
    config = golden_of("bert_rerank")["config"]
    labels = [f"kind {number}" for number in range(12)]
    said = {str(number): label for number, label in enumerate(labels)}
    for order in (said, dict(reversed(said.items()))):
        found = keys_of("BertForSequenceClassification", config | {"id2label": order})
        assert found["classifier.output_labels"] == labels
    assert "classifier.output_labels" not in keys_of(
        "BertForSequenceClassification", config | {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}
    )


def test_global_layers_of_modernbert_are_those_of_the_list_or_every_third():
    """A folder may say both; transformers then follows the list."""
    config = golden_of("modernbert")["config"]
    del config["global_attn_every_n_layers"]
    config["num_hidden_layers"] = 5
    near, whole = "sliding_attention", "full_attention"
    for said, wanted in (
        ({}, 3),
        ({"global_attn_every_n_layers": 2}, 2),
        ({"layer_types": [whole, near, near, whole, near]}, 3),
        ({"layer_types": [whole, near, near, near, near], "global_attn_every_n_layers": 3}, 5),
    ):
        found = keys_of("ModernBertModel", config | said)
        assert found["attention.sliding_window_pattern"] == wanted


def test_the_epsilon_of_modernbert_is_the_one_that_its_class_reads():
    config = golden_of("modernbert")["config"] | {"norm_eps": 0.5, "layer_norm_eps": 0.25}
    found = keys_of("ModernBertModel", config)
    assert found["attention.layer_norm_epsilon"] == 0.5


def test_rotations_that_a_folder_does_not_say_are_those_of_its_class():
    config = golden_of("modernbert")["config"]
    found = keys_of("ModernBertModel", config | {"rope_parameters": None})
    assert found["rope.freq_base"] == 160000 and found["rope.freq_base_swa"] == 10000
    found = keys_of("ModernBertModel", config | {"rope_parameters": None, "rope_theta": 500.0})
    assert found["rope.freq_base"] == 500 and found["rope.freq_base_swa"] == 10000
    config = golden_of("bamba")["config"]
    whole = keys_of("BambaForCausalLM", config)["rope.dimension_count"]
    del config["rope_parameters"]
    assert keys_of("BambaForCausalLM", config)["rope.dimension_count"] == whole


def test_a_folder_of_modernbert_may_say_its_global_layers_twice(tmp_path):
    golden = golden_of("modernbert")
    layers = golden["config"]["num_hidden_layers"]
    kinds = ["sliding_attention" if layer % 3 else "full_attention" for layer in range(layers)]
    folder_of(golden, tmp_path / "model", layer_types=kinds)
    reader = GgufReader(convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32").path)
    assert reader.metadata["modern-bert.attention.sliding_window_pattern"] == 3


def saved_anew(name, tmp_path, config, rename=lambda name: name):
    """The golden and the reader of a file of its folder as transformers 5 saves it: with other
    words in config.json (None: without the key), and other names of tensors.
    """
    golden = golden_of(name)
    golden["folder"] = [[rename(one), *rest] for one, *rest in golden["folder"]]
    folder_of(golden, tmp_path / "model", **config)
    made = convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32")
    return golden, GgufReader(made.path)


def test_mimo_v2_as_transformers_saves_it_is_the_same_file(tmp_path):
    """Logits of one made by transformers 5.23 are those of its file."""
    words = (
        *("hybrid_layer_pattern", "layernorm_epsilon", "partial_rotary_factor", "rope_theta"),
        *("scoring_func", "swa_head_dim", "swa_num_attention_heads", "swa_num_key_value_heads"),
        *("swa_rope_theta", "swa_v_head_dim", "topk_method"),
    )
    rope = {"rope_type": "default", "partial_rotary_factor": 0.5}
    saved = {
        **dict.fromkeys(words),
        "layer_types": ["full_attention", "sliding_attention"],
        "mlp_layer_types": ["sparse", "sparse"],
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "full_attention": {**rope, "rope_theta": 10000.0},
            "sliding_attention": {**rope, "rope_theta": 5000.0},
        },
        "routed_scaling_factor": 1.0,
    }
    golden, reader = saved_anew("mimo2", tmp_path, saved)
    assert {key: plain(reader.metadata[key]) for key in golden["keys"]} == golden["keys"]
    assert values_of(reader) == golden["values"]
    for change, told in (
        ({"layer_types": ["full_attention", "chunked_attention"]}, "layer_types: found {'chunked"),
        ({"hybrid_layer_pattern": [1, 0]}, "as hybrid_layer_pattern has them"),
        ({"norm_topk_prob": False}, "norm_topk_prob: found False, wanted True"),
        ({"scoring_func": "softmax"}, "scoring_func: found 'softmax', wanted 'sigmoid'"),
    ):
        shutil.rmtree(tmp_path / "model")
        with pytest.raises(ConvertError, match=re.escape(told)):
            saved_anew("mimo2", tmp_path, saved | change)
    shutil.rmtree(tmp_path / "model")
    saved["rope_parameters"]["sliding_attention"]["partial_rotary_factor"] = 1.0
    with pytest.raises(ConvertError, match="partial_rotary_factor: found 1.0, wanted 0.5"):
        saved_anew("mimo2", tmp_path, saved)


def test_hy4_as_transformers_saves_it_is_the_same_file(tmp_path):
    """Its names for every gate, and for the weights of the streams. Logits of one made by
    transformers 5.23, changed to rotate adjacent pairs, are those of its file.
    """

    def rename(name):
        name = re.sub(r"(hc_\w+_layer)\.hc_pre", r"hc_pre.\1", name)
        return name.replace("hc_head.", "hc_pre.hc_head.").replace("gate_proj.", "linear_gate.")

    layers = golden_of("hy_v4")["config"]["num_hidden_layers"]
    kinds = {"layer_types": ["indexed_attention"] * layers}
    golden, reader = saved_anew("hy_v4", tmp_path, kinds, rename)
    assert {key: plain(reader.metadata[key]) for key in golden["keys"]} == golden["keys"]
    assert values_of(reader) == golden["values"]


def test_hrm_text_as_transformers_saves_it_is_the_same_file(tmp_path):
    """It counts the runs of layers. Logits of one made by transformers 5.23 are the file's."""
    saved = {"num_layers_per_stack": 2, "num_hidden_layers": 16}
    golden, reader = saved_anew("hrm_text", tmp_path, saved)
    assert {key: plain(reader.metadata[key]) for key in golden["keys"]} == golden["keys"]
    assert values_of(reader) == golden["values"]
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(ConvertError, match="of layers 2, 5, wanted those of the 6 layers"):
        saved_anew("hrm_text", tmp_path, {"num_layers_per_stack": 3, "num_hidden_layers": 24})


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("exaone4", "Exaone4_5_ForConditionalGeneration"),
        ("gemma4", "Gemma4UnifiedForCausalLM"),
        ("gemma4_moe", "Gemma4UnifiedForConditionalGeneration"),
        ("mistral4", "Mistral4ForCausalLM"),
        ("deepseek_ocr", "DeepseekOCR2ForCausalLM"),
        ("nemotron_h", "NemotronH_Nano_VL_V2"),
        ("nemotron_h_moe", "NemotronH_Nano_VL_V2"),
        ("qwen3_5_text", "MiniCPMV4_6ForConditionalGeneration"),
    ],
)
def test_other_classes_of_the_same_model_are_the_same_file(tmp_path, name, kind):
    """Logits of tiny ones made by transformers 5.23 are those of their files."""
    golden = golden_of(name)
    config = {"architectures": [kind]}
    if name == "gemma4_moe":
        golden["folder"].append(["model.vision_embedder.patch_dense.bias", [8]])
    folder_of(golden, tmp_path / "model", **config)
    made = convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32")
    reader = GgufReader(made.path)
    assert {key: plain(reader.metadata[key]) for key in golden["keys"]} == golden["keys"]
    assert {key: info.shape for key, info in reader.tensors.items()} == dict(
        spread(golden["tensors"])
    )
    assert {one for one in made.left_out if "vision_embedder" in one} == {
        one for one, *_ in golden["folder"] if "vision_embedder" in one
    }


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("DotsOCRForCausalLM", "Qwen2ForCausalLM"),
        ("StepVLForConditionalGeneration", "Qwen3ForCausalLM"),
        ("YoutuVLForConditionalGeneration", "YoutuForCausalLM"),
        ("KimiVLForConditionalGeneration", "DeepseekV3ForCausalLM"),
        ("KimiK25ForConditionalGeneration", "DeepseekV3ForCausalLM"),
    ],
)
def test_the_text_part_of_a_class_is_that_of_another(kind, text):
    assert FAMILIES[kind] is FAMILIES[text]


def test_ling_3_as_transformers_saves_it_is_the_same_file(tmp_path):
    """Logits of one made by transformers 5.23 are the file's."""
    config = golden_of("bailingmoe3")["config"]
    words = ("no_kda_lora", "gated_attention_proj_granularity_type", "rope_theta", "n_group")
    words += ("moe_shared_expert_intermediate_size", "norm_topk_prob", "score_function")
    kinds = ["linear_attention", "full_attention"] * 2 + ["full_attention"]
    saved = {
        **dict.fromkeys(words),
        "architectures": ["BailingHybridForCausalLM"],
        "layer_types": kinds,
        "mlp_layer_types": ["dense"] + ["sparse"] * 4,
        "moe_renormalize": True,
        "num_expert_group": config["n_group"],
        "rope_parameters": {"rope_type": "default", "rope_theta": config["rope_theta"]},
    }
    golden, reader = saved_anew("bailingmoe3", tmp_path, saved)
    assert {key: plain(reader.metadata[key]) for key in golden["keys"]} == golden["keys"]
    shapes = {key: info.shape for key, info in reader.tensors.items()}
    assert shapes == dict(spread(golden["tensors"]))
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(ConvertError, match="layer_types: found .*, wanted"):
        saved_anew("bailingmoe3", tmp_path, saved | {"layer_types": kinds[::-1]})


def test_step_3_7_as_transformers_saves_it_is_the_same_file(tmp_path):
    """It is published in the words of Step 3.5. Logits of one made by transformers 5.23 are the
    file's.
    """
    published = golden_of("step35")["config"]
    kind = "Step3p7ForConditionalGeneration"
    text = {key: one for key, one in published.items() if key != "architectures"}
    wrapped = {**dict.fromkeys(text), "architectures": [kind], "text_config": text}
    golden, reader = saved_anew("step35", tmp_path, wrapped)
    assert {key: plain(reader.metadata[key]) for key in golden["keys"]} == golden["keys"]
    assert values_of(reader) == golden["values"]
    saved = {key: one for key, one in text.items() if key not in (
        "attention_other_setting", "num_attention_groups", "partial_rotary_factors", "rope_theta",
        "moe_num_experts", "moe_top_k", "moe_layers_enum", "norm_expert_weight",
    )}  # fmt: skip
    shares = {"full_attention": (10000.0, 0.5), "sliding_attention": (5000.0, 1.0)}
    saved |= {
        "mlp_layer_types": ["dense", "sparse"],
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 2,
        "num_sliding_attention_heads": 2,
        "query_pre_attn_scalar": 16,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": share}
            for kind, (base, share) in shares.items()
        },
    }
    made = keys_of(kind, saved)
    # whose windowed layers have as many heads of keys as the others
    wanted = {key.partition(".")[2]: one for key, one in golden["keys"].items()}
    wanted |= {"attention.head_count_kv": [2, 2], "rope.dimension_count": 16}
    del wanted["architecture"]
    assert {key: plain(one) for key, one in made.items()} == wanted
    with pytest.raises(ConvertError, match="mlp_layer_types: wanted dense layers first"):
        keys_of(kind, saved | {"mlp_layer_types": ["sparse", "dense"]})
    with pytest.raises(ConvertError, match="query_pre_attn_scalar: found 8, wanted 16"):
        keys_of(kind, saved | {"query_pre_attn_scalar": 8})


@pytest.mark.parametrize("whole", [True, False])
def test_what_writes_of_qwen_3_omni_is_the_text_part(tmp_path, whole):
    """Its other parts speak. Logits of a thinker made by transformers 5.23 are the file's."""
    golden = golden_of("qwen3_vl_moe")
    config = golden["config"]
    inside = {key: config.pop(key) for key in ("text_config", "vision_config")}
    prefix = "thinker." if whole else ""
    if whole:
        more = {"thinker_config": inside, "talker_config": {"text_config": {"hidden_size": 8}}}
        kind = "Qwen3OmniMoeForConditionalGeneration"
        golden["folder"] += [["talker.model.norm.weight", [8]], ["code2wav.a.bias", [8]]]
    else:
        more, kind = inside, "Qwen3OmniMoeThinkerForConditionalGeneration"
    golden["folder"].append([f"{prefix}audio_tower.ln_post.bias", [8]])
    changes = {"model.language_model.": "model.", "model.visual.": "visual."}
    for one in golden["folder"]:
        for theirs, ours in changes.items():
            one[0] = one[0].replace(theirs, ours)
        if not one[0].startswith(("talker", "code2wav", "thinker")):
            one[0] = prefix + one[0]
    folder_of(golden, tmp_path / "model", **more, architectures=[kind])
    made = convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32")
    reader = GgufReader(made.path)
    assert {key: plain(reader.metadata[key]) for key in golden["keys"]} == golden["keys"]
    assert {key: info.shape for key, info in reader.tensors.items()} == dict(
        spread(golden["tensors"])
    )
    parts = {one.removeprefix(prefix).partition(".")[0] for one in made.left_out}
    assert parts == {"visual", "audio_tower"} | ({"talker", "code2wav"} if whole else set())


def test_minimax_m3_as_transformers_saves_it_is_the_same_file(tmp_path):
    """Logits of one made by transformers 5.23 are the file's."""
    text = golden_of("minimax_m3_vl")["config"]["text_config"]
    saved = {
        **{key: one for key, one in text.items() if key not in (
            "moe_layer_freq", "n_shared_experts", "scoring_func", "sparse_attention_config"
        )},
        "index_block_size": 16,
        "index_head_dim": 16,
        "index_local_blocks": 1,
        "index_n_heads": 2,
        "index_topk_blocks": 4,
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
    }  # fmt: skip
    golden, reader = saved_anew("minimax_m3_vl", tmp_path, {"text_config": saved})
    assert {key: plain(reader.metadata[key]) for key in golden["keys"]} == golden["keys"]
    shapes = {key: info.shape for key, info in reader.tensors.items()}
    assert shapes == dict(spread(golden["tensors"]))
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(ConvertError, match="shared_intermediate_size: found 48, wanted a multiple"):
        saved_anew("minimax_m3_vl", tmp_path, {"text_config": {**saved} | {
            "shared_intermediate_size": 48
        }})  # fmt: skip


def test_glm_4_6v_is_one_of_two_models():
    """Logits of one made by transformers 5.23 are those of its file."""
    family = FAMILIES["Glm46VForConditionalGeneration"]
    for kind, wanted in (("glm4v_moe_text", "Glm4vMoe"), ("glm4v_text", "Glm4v")):
        found = family.variant(Hyper({"model_type": kind}, "config.json"))
        assert found is FAMILIES[f"{wanted}ForConditionalGeneration"]
    with pytest.raises(ConvertError, match="model_type: found 'glm', wanted one of glm4v_text, gl"):
        family.variant(Hyper({"model_type": "glm"}, "config.json"))


def test_minimax_text_as_transformers_saves_it_is_the_same_file(tmp_path):
    """Logits of one made by transformers 5.23, which turns heads whole, are the file's."""
    golden = golden_of("minimax_text")
    ours = {"full_attention": "full_attn", "linear_attention": "linear_attn", "mlp": "mlp"}
    saved = {
        **{f"layernorm_{kind}_{part}": None for kind in ours for part in ("alpha", "beta")},
        **{f"{kind}_alpha_factor": 3.5 for kind in ours.values()},
        **{f"{kind}_beta_factor": 1 for kind in ours.values()},
        "architectures": ["MiniMaxForCausalLM"],
        "attn_type_list": None,
        "layer_types": ["linear_attention"] * 7 + ["full_attention", "linear_attention"],
    }
    for name in ("slope_rate", "query_decay", "key_decay", "diagonal_decay"):
        golden["folder"].append([f"model.layers.{{b}}.self_attn.{name}", [4, 1, 1], [0, 8]])
    folder_of(golden, tmp_path / "model", **saved)
    reader = GgufReader(convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32").path)
    assert {key: plain(reader.metadata[key]) for key in golden["keys"]} == golden["keys"]
    assert values_of(reader) == golden["values"]
    said = {**golden["config"], **saved}
    assert keys_of("MiniMaxForCausalLM", said | {"rotary_dim": None})["rope.dimension_count"] == 16
    for change, told in (
        ({"mlp_alpha_factor": 2.0}, "layernorm_.*_alpha: found {"),
        ({"mlp_beta_factor": 2.0}, "layernorm_mlp_beta: found 2.0, wanted 1"),
        ({"layer_types": ["full_attention"] * 9}, "attn_type_list: found"),
        ({"layer_types": None}, "layer_types is missing"),
    ):
        with pytest.raises(ConvertError, match=told):
            keys_of("MiniMaxForCausalLM", said | change)


def test_solar_open_is_glm_4_5_whose_heads_turn_whole(tmp_path):
    """Logits of one made by transformers 5.23 are the file's."""
    said = {**golden_of("glm4_moe")["config"], "partial_rotary_factor": None}
    said |= {"first_k_dense_replace": 3, "rope_parameters": None, "rope_theta": 1e6}
    made = keys_of("SolarOpenForCausalLM", said)
    assert made["rope.dimension_count"] == said["head_dim"] == made["attention.key_length"]
    assert made["leading_dense_block_count"] == 0 and made["rope.freq_base"] == 1e6
    assert keys_of("Glm4MoeForCausalLM", said)["rope.dimension_count"] == said["head_dim"] // 2
    ids = {"<|startoftext|>": 1, "<|endoftext|>": 2, "<unk>": 0}
    found = FAMILIES["SolarOpenForCausalLM"].special(Hyper(said, ""), ids)
    assert found == {"bos?": 1, "eos?": 2, "eot?": 2, "unknown?": 0}


@pytest.mark.parametrize(
    ("kind", "whole"),
    [
        ("LlamaModel", "LlamaForCausalLM"),
        ("MistralModel", "MistralForCausalLM"),
        ("Gemma2Model", "Gemma2ForCausalLM"),
    ],
)
def test_a_decoder_without_a_head_embeds(tmp_path, kind, whole):
    config = {
        "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2,
        "num_key_value_heads": 1, "num_hidden_layers": 2, "vocab_size": 40, "head_dim": 16,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 16,
        "sliding_window": 64, "tie_word_embeddings": True, "rope_theta": 10000.0,
    }  # fmt: skip
    norms = ["input", "post_attention"]
    norms += ["pre_feedforward", "post_feedforward"] if "Gemma" in kind else []
    shapes = [[f"layers.{{b}}.{name}_layernorm.weight", [32], [0, 1]] for name in norms]
    for name, shape in (
        *(("self_attn.q", [32, 32]), ("self_attn.k", [16, 32]), ("self_attn.v", [16, 32])),
        *(("self_attn.o", [32, 32]), ("mlp.gate", [48, 32]), ("mlp.up", [48, 32])),
        ("mlp.down", [32, 48]),
    ):
        shapes.append([f"layers.{{b}}.{name}_proj.weight", shape, [0, 1]])
    shapes += [["embed_tokens.weight", [40, 32]], ["norm.weight", [32]]]
    found = {}
    for name, prefix in ((kind, ""), (whole, "model.")):
        place = tmp_path / name
        listed = [[prefix + one, *rest] for one, *rest in shapes]
        folder_of({"config": {**config, "architectures": [name]}, "folder": listed}, place)
        (place / "modules.json").write_text(
            json.dumps([{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}])
        )
        (place / "1_Pooling").mkdir()
        (place / "1_Pooling/config.json").write_text('{"pooling_mode_lasttoken": true}')
        reader = GgufReader(convert_folder(place, tmp_path / f"{name}.gguf", "F32").path)
        keys = {key: plain(one) for key, one in reader.metadata.items() if "general" not in key}
        found[name] = keys, values_of(reader)
        assert keys[f"{keys_arch(reader)}.pooling_type"] == 3
        assert load_model(reader).config.layers == 2
    assert found[kind] == found[whole]


def keys_arch(reader):
    return reader.metadata["general.architecture"]


@pytest.mark.parametrize(
    ("act", "meant"), [("gelu", "gelu_erf"), ("gelu_fast", "gelu_tanh"), ("gelu_new", "gelu_tanh")]
)
def test_the_gelu_of_gpt_neox_is_the_folders(tmp_path, act, meant):
    _, reader = saved_anew("gptneox_seq", tmp_path, {"hidden_act": act})
    assert ("gptneox.hidden_activation" in reader.metadata) == (meant == "gelu_tanh")
    _, tape = record(reader)
    assert meant in str(tape) and ("gelu_tanh" in str(tape)) == (meant == "gelu_tanh")


GRANITE_SWA = {
    **{"hidden_size": 64, "intermediate_size": 32, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 80, "rms_norm_eps": 1e-6},
    **{"max_position_embeddings": 128, "sliding_window": 8, "rope_theta": 10000.0},
    **{"layer_types": ["sliding_attention", "full_attention"], "logits_scaling": 3.0},
}


def test_layers_of_granite_without_a_base_do_not_rotate():
    """Logits of one made by transformers 5.23 are the file's."""
    for kind, more in (("GraniteSWA", {}), ("GraniteMoeSWA", {"num_local_experts": 4})):
        made = keys_of(f"{kind}ForCausalLM", GRANITE_SWA | more)
        assert "attention.rope_pattern" not in made
        said = GRANITE_SWA | more | {"layer_rope_theta": [10000.0, 0]}
        made = keys_of(f"{kind}ForCausalLM", said)
        assert made["attention.rope_pattern"] == [True, False]
        assert made["attention.sliding_window_pattern"] == [True, False]
        said["layer_rope_theta"] = [10000.0, 500.0]
        with pytest.raises(ConvertError, match="layer_rope_theta: found .*, wanted rope_theta or"):
            keys_of(f"{kind}ForCausalLM", said)
    with pytest.raises(ConvertError, match="num_local_experts: found 0, wanted experts"):
        keys_of("GraniteMoeSWAForCausalLM", GRANITE_SWA | {"num_local_experts": 0})


@pytest.mark.parametrize("older", [False, True])
def test_granite_with_windows_and_experts_loads(tmp_path, older):
    """Logits of one made by transformers 5.23 are the file's."""
    inside = "block_sparse_moe."
    router, both, down = (
        ("router.layer.weight", "input_linear.weight", "output_linear.weight")
        if older
        else ("router.weight", "experts.gate_up_proj", "experts.down_proj")
    )
    layer = {
        "input_layernorm.weight": [64], "post_attention_layernorm.weight": [64],
        "self_attn.q_proj.weight": [64, 64], "self_attn.k_proj.weight": [32, 64],
        "self_attn.v_proj.weight": [32, 64], "self_attn.o_proj.weight": [64, 64],
        "self_attn.sinks": [4], inside + router: [4, 64], inside + both: [4, 64, 64],
        inside + down: [4, 64, 32], "shared_mlp.input_linear.weight": [96, 64],
        "shared_mlp.output_linear.weight": [64, 48],
    }  # fmt: skip
    listed = [[f"model.layers.{{b}}.{name}", shape, [0, 1]] for name, shape in layer.items()]
    listed += [["model.embed_tokens.weight", [80, 64]], ["model.norm.weight", [64]]]
    config = GRANITE_SWA | {
        "architectures": ["GraniteMoeSWAForCausalLM"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 48,
        "tie_word_embeddings": True,
    }
    tensors = folder_of({"config": config, "folder": listed}, tmp_path / "model")
    reader = GgufReader(convert_folder(tmp_path / "model", tmp_path / "made.gguf", "F32").path)
    assert reader.metadata["granite_swa.expert_shared_feed_forward_length"] == 48
    for theirs, ours in (
        (inside + both, "ffn_gate_up_exps"),
        (inside + down, "ffn_down_exps"),
        ("shared_mlp.input_linear.weight", "ffn_up_shexp"),
    ):
        found = reader.data(f"blk.1.{ours}.weight").view(np.float32)
        wanted = tensors[f"model.layers.1.{theirs}"]
        assert np.array_equal(found.reshape(wanted.shape), wanted)
    assert np.isfinite(logits(load_model(reader), np.arange(12, dtype=np.int32))).all()


def test_shared_experts_of_cohere2_are_counted():
    more = {"logit_scale": 0.25, "sliding_window": 16, "layer_types": ["sliding_attention"] * 3}
    made = keys_of("Cohere2MoeForCausalLM", EXPERTS | more)
    assert made["expert_shared_count"] == 2
    assert made["expert_shared_feed_forward_length"] == 2 * 96
    with pytest.raises(ConvertError, match="shared_expert_combination_strategy: found 'sum'"):
        more["shared_expert_combination_strategy"] = "sum"
        keys_of("Cohere2MoeForCausalLM", EXPERTS | more)


def test_dense_layers_of_latent_attention_are_those_of_the_kinds():
    """As transformers 5 saves GLM 4.7 Flash."""
    ranks = dict(kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8)
    kinds = {"mlp_layer_types": ["dense", "sparse", "sparse"]}
    made = keys_of("Glm4MoeLiteForCausalLM", EXPERTS | ranks | kinds)
    assert made["leading_dense_block_count"] == 1
    made = keys_of("Glm4MoeLiteForCausalLM", EXPERTS | ranks)
    assert made["leading_dense_block_count"] == 3


def test_mxfp4_without_its_scales_is_refused(tmp_path):
    name = "model.layers.0.mlp.experts.down_proj_scales"
    error = changed("gpt_oss_mxfp4", tmp_path, lambda held: held.pop(name))
    assert "blk.0.ffn_down_exps.weight" in error
    assert "_scales" in error


def test_mxfp4_with_a_scale_that_is_no_number_is_refused(tmp_path):
    name = "model.layers.1.mlp.experts.gate_up_proj_scales"

    def spoilt(held):
        held[name][1, 2, 0] = 255

    error = changed("gpt_oss_mxfp4", tmp_path, spoilt)
    assert f"{name}: found a scale of NaN, wanted powers of two" in error


def test_mxfp4_of_another_shape_is_refused(tmp_path):
    def cut(held):
        name = "model.layers.0.mlp.experts.gate_up_proj_scales"
        held[name] = held[name][:, :-1].copy()

    assert "blk.0.ffn_gate_exps.weight" in changed("gpt_oss_mxfp4", tmp_path, cut)


def test_a_layer_without_its_activation_is_refused(tmp_path):
    error = changed("apertus", tmp_path, lambda held: held.pop("model.layers.1.mlp.act_fn.alpha_p"))
    assert "xielu.alpha_p" in error


def test_experts_whose_sizes_do_not_tell_are_refused(tmp_path):
    def square(held):
        name = "model.language_model.layers.0.mlp.experts.down_proj"
        held[name] = np.zeros((4, 64, 64), np.float32)

    assert "down_proj" in changed("qwen3_vl_moe", tmp_path, square)


def test_a_pooling_that_files_cannot_say_is_refused(tmp_path):
    folder_of(golden_of("bert"), tmp_path / "model")
    path = tmp_path / "model" / "1_Pooling" / "config.json"
    path.write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(ConvertError, match="pooling"):
        convert_folder(tmp_path / "model", tmp_path / "made.gguf")
    (tmp_path / "model" / "modules.json").write_text('[{"type": "x.Pooling", "path": "../x"}]')
    with pytest.raises(ConvertError, match=r"modules\.json"):
        convert_folder(tmp_path / "model", tmp_path / "made.gguf")


@pytest.mark.parametrize("kind", ["Dense", "LayerNorm", "SpladePooling"])
def test_a_module_that_the_file_has_no_place_for_is_refused(kind, tmp_path):
    """Vectors of LaBSE or sentence-t5 go through a linear layer behind the pooling."""
    folder = tmp_path / "model"
    folder_of(golden_of("bert"), folder)
    names = ["Transformer", "Pooling", "Normalize", "Dropout"]
    for places, more in ((["", "1_Pooling", "2_N", "3_D"], []), (["", "1_Pooling"], [kind])):
        listed = [
            {"type": f"sentence_transformers.models.{name}", "path": place}
            for name, place in zip([*names[: len(places)], *more], [*places, f"2_{kind}"])
        ]
        (folder / "modules.json").write_text(json.dumps(listed))
        if more:
            with pytest.raises(ConvertError, match=rf"modules\.json: found a module {kind} in 2_"):
                convert_folder(folder, tmp_path / "made.gguf")
        else:
            convert_folder(folder, tmp_path / "made.gguf")
            (tmp_path / "made.gguf").unlink()
    assert not (tmp_path / "made.gguf").exists()


def test_the_command_keeps_further_layers_or_not(tmp_path, capsys):
    with_mtp("glm4_moe", tmp_path / "model")
    place, target = str(tmp_path / "model"), tmp_path / "made.gguf"
    found = []
    for option in ([], ["--mtp"], ["--no-mtp"], ["--mtp-only"]):
        assert main(["convert", place, str(target), "--type", "F32", *option]) == 0
        names = GgufReader(target).tensors
        found.append(["blk.3.nextn.eh_proj.weight" in names, "blk.0.attn_q.weight" in names])
    assert found == [[True, True], [True, True], [False, True], [True, False]]
    told = capsys.readouterr().out.splitlines()
    kept = ["1 layer to predict further tokens" in line for line in told]
    assert kept == [True, True, False, True]
    for option in ("--mtp", "--no-mtp", "--mtp-only"):
        with pytest.raises(SystemExit):
            main(["convert", place, str(target), "--mmproj", option])
        assert "found with --mmproj, wanted it with a model" in capsys.readouterr().err
