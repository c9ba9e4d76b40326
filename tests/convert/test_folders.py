"""Converted folders against the files that llama.cpp's converter made of the same folders."""

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from oxillama.convert import ModelFolder, convert_folder, write
from oxillama.convert.family import FAMILIES, Hyper, Keys
from oxillama.convert.safetensors import rounded
from oxillama.errors import ConvertError, OxillamaError
from oxillama.gguf import GgufReader
from oxillama.model import load_model
from oxillama.recommended import recommended_sampler
from tests.convert.folders import save, tensors_of
from tests.model.stepping import logits

ROUNDED = "ssm_a"  # computed: llama.cpp's exponential is not always correctly rounded


def folders(cases):
    return sorted(path for path in (cases / "hf").iterdir() if path.is_dir())


def test_every_folder_gives_the_reference_files_keys_and_tensors(cases, tmp_path):
    for folder in folders(cases):
        twin = cases / "arch" / folder.name.removesuffix("_sharded") / "f32.gguf"
        made = convert_folder(folder, tmp_path / "made.gguf", "F32", name="tiny")
        ours, theirs = GgufReader(made.path), GgufReader(twin)
        assert dict(ours.kv_types) | {"general.file_type": "uint32"} == dict(theirs.kv_types) | {
            "general.file_type": "uint32"
        }, folder
        for key in theirs.metadata:
            if key != "general.file_type":
                assert _same(ours.metadata[key], theirs.metadata[key]), (folder, key)
        assert set(ours.tensors) == set(theirs.tensors), folder
        for name, info in theirs.tensors.items():
            assert ours.tensors[name].shape == info.shape, (folder, name)
            assert ours.tensors[name].type_name == info.type_name == "F32"
            found, wanted = (one.data(name).view(np.float32) for one in (ours, theirs))
            if name.endswith(ROUNDED):
                np.testing.assert_array_max_ulp(found, wanted, 1)
            else:
                assert np.array_equal(found, wanted), (folder, name)


def test_a_llama_that_sees_both_directions_is_an_embedder(cases, tmp_path):
    """Its folder has no head and no prefix of names; the rest is that of the Llama."""
    folder = tmp_path / "embedder"
    shutil.copytree(cases / "hf" / "llama", folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["LlamaBidirectionalModel"], "is_causal": False}
    (folder / "config.json").write_text(json.dumps(config))
    data = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    held = {}
    for name, info in json.loads(data[8 : 8 + size]).items():
        if name not in ("__metadata__", "lm_head.weight"):
            start, stop = info["data_offsets"]
            rows = np.frombuffer(data[8 + size :][start:stop], np.float32)
            held[name.removeprefix("model.")] = rows.reshape(info["shape"])
    save(folder / "model.safetensors", held)
    made = GgufReader(convert_folder(folder, tmp_path / "made.gguf", "F32", name="tiny").path)
    twin = GgufReader(cases / "arch" / "llama" / "f32.gguf")
    assert made.metadata["general.architecture"] == "llama-embed"
    assert made.metadata["llama-embed.attention.causal"] is False
    assert set(made.tensors) == set(twin.tensors) - {"output.weight"}
    for name in made.tensors:
        assert np.array_equal(made.data(name), twin.data(name)), name
    assert not load_model(made).config.causal


def _same(ours, theirs) -> bool:
    if isinstance(theirs, (str, int, float, bool)):
        return ours == theirs
    return np.array_equal(np.asarray(ours), np.asarray(theirs))


def test_hyper_parameters_of_every_known_configuration_are_the_reference_files(cases, tmp_path):
    seen = 0
    for kind in ("arch", "arch_more", "embed"):
        for path in sorted((cases / kind).glob("*/hf_config.json")):
            reader = GgufReader(path.with_name("f32.gguf"))
            # a reranker is told by the folder's name
            name = (
                "Qwen3-Reranker-0.6B" if path.parent.name == "qwen3_reranker" else kind + "_model"
            )
            folder = sentences(path, reader, tmp_path / path.parent.name / name)
            hyper = Hyper(folder.config, path.parent.name, folder)
            family = FAMILIES.get(folder.architecture)
            if family is None:
                continue
            family = family.variant(hyper) or family
            keys = Keys(family.arch)
            family.keys(hyper, keys)
            wanted = {
                key: (list(value) if isinstance(value, (list, tuple, np.ndarray)) else value)
                for key, value in reader.metadata.items()
                if key.startswith(family.arch + ".")
            }
            found = {key: value for key, (value, _) in keys.found.items() if key in wanted}
            assert found == wanted, path
            for key, (value, _) in keys.found.items():
                assert key in wanted or _same(value, reader.metadata[key]), (path, key)
            for name, array in family.extra(hyper).items():
                assert np.array_equal(reader.data(name).view(np.float32).ravel(), array.ravel())
            seen += 1
    assert seen >= 74


def sentences(path, reader, place):
    """A folder with a case's configuration, its pooling and dense modules, no tensors of its
    own.
    """
    place.mkdir(parents=True)
    (place / "config.json").write_bytes(path.read_bytes())
    modules = []
    arch = reader.metadata["general.architecture"]
    pooled = {1: "mean_tokens", 2: "cls_token", 3: "lasttoken"}
    if reader.metadata.get(f"{arch}.pooling_type") in pooled:
        modules.append({"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"})
        mode = pooled[reader.metadata[f"{arch}.pooling_type"]]
        (place / "1_Pooling").mkdir()
        (place / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    for number in (2, 3):
        if f"dense_{number}.weight" in reader.tensors:
            modules.append(
                {"type": "sentence_transformers.models.Dense", "path": f"{number}_Dense"}
            )
            weight = reader.data(f"dense_{number}.weight").view(np.float32)
            weight = weight.reshape(reader.tensors[f"dense_{number}.weight"].shape)
            sizes = {"in_features": weight.shape[1], "out_features": weight.shape[0]}
            (place / f"{number}_Dense").mkdir()
            (place / f"{number}_Dense" / "config.json").write_text(json.dumps(sizes))
            save(place / f"{number}_Dense" / "model.safetensors", {"linear.weight": weight})
    if modules:
        (place / "modules.json").write_text(json.dumps(modules))
    return ModelFolder(place)


# ---- folders that are refused
# ---------------------------------------------------------------------


def refused(folder, tmp_path, *words):
    target = tmp_path / "out.gguf"
    with pytest.raises(ConvertError) as caught:
        convert_folder(folder, target)
    for word in words:
        assert word in str(caught.value)
    assert not target.exists()
    assert not [one for one in tmp_path.iterdir() if one.name not in ("model",)]


def test_a_whole_folder_is_taken_in_every_float_type(folder, tmp_path):
    for kind in ("auto", "F32", "F16", "BF16", "Q8_0"):
        made = convert_folder(folder, tmp_path / f"{kind}.gguf", kind)
        reader = GgufReader(made.path)
        wanted = {"auto": "F32"}.get(kind, kind)
        assert reader.tensors["blk.0.ffn_up.weight"].type_name == wanted
        assert reader.tensors["blk.0.attn_norm.weight"].type_name == "F32"


def test_bfloat16_is_rounded_to_nearest_even(folder, tmp_path):
    tensors = tensors_of(folder)
    made = convert_folder(folder, tmp_path / "out.gguf", "BF16")
    bits = GgufReader(made.path).data("output.weight").view(np.uint16).astype(np.uint32) << 16
    wanted = tensors["lm_head.weight"].reshape(-1)
    found = bits.view(np.float32).reshape(-1)
    low = (wanted.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    high = (low.view(np.uint32) + np.uint32(0x10000)).view(np.float32)
    below, above = np.abs(wanted - low), np.abs(high - wanted)
    even = (low.view(np.uint32) >> 16) % 2 == 0
    assert np.array_equal(found, np.where((below < above) | ((below == above) & even), low, high))


def test_what_is_no_number_stays_so_in_bfloat16():
    """Also where rounding would carry its bits away, or leave those of an infinity."""
    bits = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7F800000, 0xFF800000], np.uint32)
    found = rounded(bits.view(np.float32), "BF16")
    assert [hex(one) for one in found] == ["0x7fff", "0xffff", "0x7fc0", "0x7f80", "0xff80"]


def test_granite_4_with_attention_alone_is_granite(folder, tmp_path):
    """Its network is the one that all tokens share, and what is not said to rotate does not."""
    config = json.loads((folder / "config.json").read_text())
    config |= {"attention_multiplier": 0.2, "embedding_multiplier": 3.0}
    config |= {"residual_multiplier": 0.5, "logits_scaling": 2.0}
    tensors = tensors_of(folder)
    plain = {**config, "architectures": ["GraniteForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(plain))
    wanted = rows_of(convert_folder(folder, tmp_path / "plain.gguf").path)
    parts = [tensors.pop(f"model.layers.0.mlp.{name}_proj.weight") for name in ("gate", "up")]
    both = "model.layers.0.shared_mlp.input_linear.weight"
    tensors[both] = np.concatenate(parts)
    tensors["model.layers.0.shared_mlp.output_linear.weight"] = tensors.pop(
        "model.layers.0.mlp.down_proj.weight"
    )
    save(folder / "model.safetensors", tensors)
    config |= {"architectures": ["GraniteMoeHybridForCausalLM"], "layer_types": ["attention"]}
    config |= {"num_local_experts": 0, "num_experts_per_tok": 0, "intermediate_size": 64}
    config |= {"shared_intermediate_size": 32, "mamba_n_heads": 2, "mamba_d_head": 32}
    config |= {"mamba_d_conv": 4, "mamba_d_state": 8, "mamba_n_groups": 1}
    found = {}
    for kind in ("rope", "nope", None):
        config["position_embedding_type"] = kind
        (folder / "config.json").write_text(json.dumps(config))
        made = convert_folder(folder, tmp_path / f"{kind}.gguf")
        assert made.architecture == "granite"
        found[kind] = rows_of(made.path)
    assert np.array_equal(found["rope"], wanted)
    assert np.array_equal(found[None], found["nope"])
    # the first row sees itself alone, however it is rotated
    assert np.array_equal(found["nope"][0], wanted[0])
    assert not np.array_equal(found["nope"][1:], wanted[1:])


def rows_of(path):
    """Logits of a few tokens."""
    return logits(load_model(GgufReader(path)), np.arange(9, dtype=np.int32))


def test_a_head_is_left_out_where_it_is_the_embedding(folder, tmp_path):
    """By its numbers: configurations call heads tied that have numbers of their own."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    tensors = tensors_of(folder)
    own = GgufReader(convert_folder(folder, tmp_path / "own.gguf").path)
    head = own.data("output.weight").view(np.float32).reshape(32, 32)
    assert np.array_equal(head, tensors["lm_head.weight"])
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    save(folder / "model.safetensors", tensors)
    tied = GgufReader(convert_folder(folder, tmp_path / "tied.gguf").path)
    assert set(own.tensors) - set(tied.tensors) == {"output.weight"}


def test_a_head_that_is_missing_is_not_taken_for_the_embedding(folder, tmp_path):
    """Where the configuration says that it is not."""
    config, tensors = json.loads((folder / "config.json").read_text()), tensors_of(folder)
    del tensors["lm_head.weight"]
    save(folder / "model.safetensors", tensors)
    for name, value in (("tie", True), ("unsaid", None)):
        said = {} if value is None else {"tie_word_embeddings": value}
        (folder / "config.json").write_text(json.dumps({**config, **said}))
        made = GgufReader(convert_folder(folder, tmp_path / f"{name}.gguf").path)
        assert "output.weight" not in made.tensors
        (tmp_path / f"{name}.gguf").unlink()
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    refused(folder, tmp_path, "lm_head.weight: found no such tensor, wanted it where config.json")
    # an embedder of sentence-transformers has none
    pooled = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
    (folder / "modules.json").write_text(json.dumps([pooled]))
    (folder / "1_Pooling").mkdir()
    mode = {"pooling_mode_lasttoken": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(mode))
    said = {"architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps({**config, **said}))
    made = GgufReader(convert_folder(folder, tmp_path / "embedder.gguf").path)
    assert made.metadata["qwen2.pooling_type"] == 3 and "output.weight" not in made.tensors


def test_layers_beyond_those_counted_are_refused(folder, tmp_path):
    """A model without its last layers is another model."""
    tensors = tensors_of(folder)
    for layer in (1, 2):
        for name in list(tensors):
            if "layers.0." in name:
                tensors[name.replace("layers.0.", f"layers.{layer}.")] = tensors[name]
    save(folder / "model.safetensors", tensors)
    told = "found tensors of layer 1, wanted those of the 1 layers that config.json counts"
    refused(folder, tmp_path, "model.layers.1.", told)


def test_what_is_missing_is_named(folder, tmp_path):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    places = {"model.norm.weight": "model-00001-of-00002.safetensors"}
    places["lm_head.weight"] = "model-00002-of-00002.safetensors"
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    refused(folder, tmp_path, "model-00002-of-00002.safetensors", "missing")
    index.write_text(json.dumps({"weight_map": {"a": "../../etc/passwd"}}))
    refused(folder, tmp_path, "weight_map")
    places["lm_head.weight"] = places["nobody.weight"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps({"weight_map": places}))
    refused(folder, tmp_path, "nobody.weight")
    index.unlink()
    (folder / "model-00001-of-00002.safetensors").rename(folder / "model.safetensors")
    tensors = tensors_of(folder)
    save(
        folder / "model.safetensors",
        {name: value for name, value in tensors.items() if "layers.0" not in name},
    )
    refused(folder, tmp_path, "no tensors of layer 0,", "the 1 layers")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 7}))
    refused(folder, tmp_path, "no tensors of layers 0, 1, 2, 3 and 3 more, wanted those of the 7")


def test_what_lies_beside_a_whole_model_is_not_looked_at(folder, tmp_path):
    """Granite Speech has an adapter there, Mistral's models the same weights once more."""
    alone = convert_folder(folder, tmp_path / "alone.gguf", name="tiny").path.read_bytes()
    for name in ("adapter_model", "consolidated"):
        save(folder / f"{name}.safetensors", {"other": np.ones(4, np.float32)})
    assert convert_folder(folder, tmp_path / "made.gguf", name="tiny").path.read_bytes() == alone
    (folder / "model.safetensors").rename(folder / "pytorch_model.safetensors")
    with pytest.raises(ConvertError, match="3 safetensors files without model.safetensors.index"):
        convert_folder(folder, tmp_path / "made.gguf")


def test_all_that_is_missing_is_counted(folder, tmp_path):
    tensors = tensors_of(folder)
    whole = folder / "model.safetensors"
    kinds = ("self_attn.q_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm")
    absent = [f"model.layers.0.{kind}.weight" for kind in kinds]
    save(whole, {name: value for name, value in tensors.items() if name not in absent})
    told = (
        "blk.0.attn_norm.weight: the file has no such tensor, llama needs it (4 such: "
        "blk.0.attn_norm.weight, blk.0.attn_q.weight, blk.0.ffn_up.weight, blk.0.ffn_down.weight)"
    )
    refused(folder, tmp_path, told)
    del tensors["model.norm.weight"]
    save(whole, {name: value for name, value in tensors.items() if name not in absent})
    refused(folder, tmp_path, "(5 such: blk.0.attn_norm.weight, ", " and 1 more)")
    parts = [f"model-0000{at}-of-00003.safetensors" for at in (1, 2, 3)]
    whole.rename(folder / parts[0])
    index = folder / "model.safetensors.index.json"
    places = dict.fromkeys(tensors, parts[0])
    index.write_text(json.dumps({"weight_map": places}))
    refused(folder, tmp_path, f"{absent[3]}: named by", "found in no file (4 such: ", absent[0])
    index.write_text(json.dumps({"weight_map": {**places, "a": parts[1], "b": parts[2]}}))
    refused(folder, tmp_path, f"{parts[1]}: missing", f"(2 of 3: {parts[1]}, {parts[2]})")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("model.layers.0.self_attn.q_proj", "blk.0.attn_q"),
        ("model.layers.0.mlp.down_proj", "blk.0.ffn_down"),
        ("model.norm", "output_norm"),
        ("model.embed_tokens", "token_embd"),
    ],
)
def test_a_folder_without_a_tensor_is_refused_as_loading_would_refuse_it(
    folder, tmp_path, theirs, ours
):
    tensors = tensors_of(folder)
    del tensors[f"{theirs}.weight"]
    save(folder / "model.safetensors", tensors)
    refused(folder, tmp_path, f"{ours}.weight: the file has no such tensor, llama needs it")


def test_a_tensor_of_another_size_than_the_configuration_says_is_refused(folder, tmp_path):
    tensors = tensors_of(folder)
    tensors["model.layers.0.mlp.down_proj.weight"] = np.ones((32, 16), np.float32)
    save(folder / "model.safetensors", tensors)
    refused(folder, tmp_path, "blk.0.ffn_down.weight: file has (32, 16), llama needs (32, 32)")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no such signal")
def test_a_killed_conversion_leaves_nothing_to_the_next_one(cases, tmp_path):
    folder, target = str(cases / "hf" / "llama"), tmp_path / "made.gguf"
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from oxillama.convert import convert_folder, write
def killed(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)
write.quantize_file = killed
convert_folder({folder!r}, {str(target)!r}, "Q8_0")
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=120)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert "whole.gguf" in os.listdir(left)
    convert_folder(folder, target, "Q8_0")
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("target", "type", "error"),
    [
        ("made.gguf", "Q9_K", "unknown recipe 'Q9_K'"),
        (".", "Q8_0", "cannot be written: a folder, wanted a file"),
        (
            "nowhere/made.gguf",
            "Q8_0",
            "nowhere/made.gguf: cannot be written: there is no such folder",
        ),
        ("made-00001-of-00002.gguf", "Q8_0", "the name of one file of 2"),
    ],
)
def test_where_nothing_can_be_written_nothing_is_computed(
    cases, tmp_path, monkeypatch, target, type, error
):
    monkeypatch.setattr(write, "_write", None)
    with pytest.raises(OxillamaError, match=re.escape(error)):
        convert_folder(cases / "hf" / "llama", tmp_path / target, type)
    assert list(tmp_path.iterdir()) == []


def test_pickled_weights_are_never_opened(folder, tmp_path):
    (folder / "model.safetensors").unlink()
    refused(folder, tmp_path, "no weights")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04")
    refused(folder, tmp_path, "pytorch_model.bin", "pickled")


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "Q9", "shape": [1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}',
        b'{"a": {"dtype": "F32", "shape": [4611686018427387904], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1099511627776], "data_offsets": [0, 4398046511104]}}',
        b'{"a": {"dtype": "F32", "shape": [2147483648, 2147483648, 0], "data_offsets": [0, 0]}}',
        b'{"a\\nb": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
        b'{"a": 1, "a": 2}',
        b"[" * 100_000,
    ],
)
def test_hostile_headers_are_refused(folder, tmp_path, header):
    save(folder / "model.safetensors", {"x": np.zeros(8, np.float32)}, header)
    refused(folder, tmp_path, "model.safetensors")


@pytest.mark.parametrize("places", [None, 5, [], {"a": "../a.safetensors"}, {"a": 7}])
def test_an_index_without_an_object_of_files_is_refused(folder, tmp_path, places):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    refused(folder, tmp_path, f"weight_map: found {places!r}, wanted an object of tensor and file")


def test_names_that_no_system_has_are_missing_files(folder, tmp_path):
    index = {"weight_map": {"a": "x" * 9999}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, tmp_path, "xxx: missing, model.safetensors.index.json names it")


@pytest.mark.parametrize("layer", ["9" * 5000, "\u0660"])
def test_a_layer_is_told_by_few_ascii_digits(folder, tmp_path, layer):
    name = f"model.layers.{layer}.input_layernorm.weight"
    save(folder / "model.safetensors", {**tensors_of(folder), name: np.ones(32, np.float32)})
    refused(folder, tmp_path, "llama has no place for it")


def test_a_number_in_place_of_the_queries_matrix_is_refused(folder, tmp_path):
    name = "model.layers.0.self_attn.q_proj.weight"
    save(folder / "model.safetensors", {**tensors_of(folder), name: np.float32(1)})
    refused(folder, tmp_path, "q_proj")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"temperature": float("nan")}, "temperature: found nan, wanted a finite number"),
        ({"temperature": 10**400}, "temperature: found 1000"),
        ({"top_p": "0.9"}, "top_p: found '0.9', wanted a finite number"),
        ({"top_k": float("inf")}, "top_k: found inf, wanted a finite number"),
        ({"top_k": 0.5}, "top_k: found 0.5, wanted an integer of 32 bits"),
        ({"top_k": 1 << 40}, "top_k: found 1099511627776, wanted an integer of 32 bits"),
        ({"repetition_penalty": True}, "repetition_penalty: found True, wanted a finite number"),
    ],
)
def test_sampling_that_is_no_number_is_refused_by_name(folder, tmp_path, said, told):
    (folder / "generation_config.json").write_text(json.dumps(said))
    refused(folder, tmp_path, f"generation_config.json: {told}")


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"do_sample": True, "temperature": 0.6, "top_k": 20}, {"temperature": 0.6, "top_k": 20}),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}),
        ({"do_sample": False}, {"temperature": 0.0}),
        ({"temperature": 0.6, "typical_p": 1.0, "epsilon_cutoff": 0}, {"temperature": 0.6}),
        (
            {"typical_p": 0.5, "epsilon_cutoff": 0.25, "eta_cutoff": 0.125},
            {"typical_p": 0.5, "epsilon_cutoff": 0.25, "eta_cutoff": 0.125},
        ),
        ({"top_p": 0.75, "repetition_penalty": 1.25}, {"top_p": 0.75, "repetition_penalty": 1.25}),
        ({"num_beams": 1, "no_repeat_ngram_size": 0, "do_sample": None}, {}),
        ({"min_length": 0, "min_new_tokens": 0, "stop_strings": []}, {}),
    ],
)
def test_a_folder_recommends_what_generation_config_says(folder, tmp_path, said, wanted):
    (folder / "generation_config.json").write_text(json.dumps(said))
    reader = GgufReader(convert_folder(folder, tmp_path / "made.gguf").path)
    found = recommended_sampler(reader.metadata)
    assert (found is None) == (not wanted)
    for name, value in wanted.items():
        assert getattr(found, name) == np.float32(value)


def test_recommendations_without_a_place_are_named(folder, tmp_path):
    said = {"num_beams": 4, "no_repeat_ngram_size": 3, "bad_words_ids": [[5]], "top_p": 0.5}
    said |= {"stop_strings": ["x"], "min_new_tokens": 2}
    (folder / "generation_config.json").write_text(json.dumps(said))
    told = "generation_config.json: num_beams, no_repeat_ngram_size, bad_words_ids, "
    told += "stop_strings, min_new_tokens: a GGUF file has"
    with pytest.warns(UserWarning, match=told):
        convert_folder(folder, tmp_path / "made.gguf").path.unlink()
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": "no"}))
    refused(folder, tmp_path, "do_sample: found 'no', wanted true or false")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are of Unix")
def test_a_pipe_is_not_waited_for(folder, tmp_path):
    for name in ("generation_config.json", "config.json"):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
        refused(folder, tmp_path, f"{name}: not a regular file")


def test_a_misspelt_kind_of_layer_is_no_other_kind():
    said = Hyper({"layer_types": ["full_attention", "slidng_attention"]}, "config.json")
    assert said.strings("layer_types", 1) == ["full_attention"]
    with pytest.raises(
        ConvertError, match="layer_types: found 'slidng_attention', wanted one of at"
    ):
        said.strings("layer_types", 2)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0"])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_no_numbers_are_refused_by_name(folder, tmp_path, kind, value):
    tensors = tensors_of(folder)
    told = "nan" if np.isnan(value) else "-inf"
    for theirs, ours, at in (
        ("layers.0.mlp.up_proj", "blk.0.ffn_up", 70),
        ("norm", "output_norm", 5),
    ):
        broken = tensors[f"model.{theirs}.weight"].copy()
        broken.reshape(-1)[at] = value
        save(folder / "model.safetensors", {**tensors, f"model.{theirs}.weight": broken})
        with pytest.raises(ConvertError, match=f"{ours}.weight: number {at} is {told} in "):
            convert_folder(folder, tmp_path / "out.gguf", kind)
        assert [one.name for one in tmp_path.iterdir()] == ["model"]


def test_numbers_that_float16_cannot_hold_are_refused(folder, tmp_path):
    tensors = tensors_of(folder)
    tensors["model.layers.0.mlp.up_proj.weight"][1, 2] = 70000
    save(folder / "model.safetensors", tensors)
    convert_folder(folder, tmp_path / "out.gguf", "BF16")
    told = "blk.0.ffn_up.weight: number 34 is inf in F16, wanted finite numbers"
    with pytest.raises(ConvertError, match=told):
        convert_folder(folder, tmp_path / "out.gguf", "F16")


def test_overlapping_tensors_are_refused(folder, tmp_path):
    one = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"a": one, "b": {**one, "data_offsets": [4, 12]}}).encode()
    save(folder / "model.safetensors", {"x": np.zeros(8, np.float32)}, header)
    refused(folder, tmp_path, "shares its bytes")


def test_what_has_no_place_or_wrong_numbers_is_named(folder, tmp_path):
    tensors = tensors_of(folder)
    save(folder / "model.safetensors", {**tensors, "model.extra.weight": np.ones(4, np.float32)})
    refused(folder, tmp_path, "model.extra.weight")
    name = "model.layers.0.mlp.up_proj.weight"
    save(folder / "model.safetensors", {**tensors, name: np.ones((32, 32), np.int32)})
    refused(folder, tmp_path, name, "I32")
    name = "model.layers.0.self_attn.q_proj.weight"
    save(folder / "model.safetensors", {**tensors, name: np.ones((31, 32), np.float32)})
    refused(folder, tmp_path, name)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"architectures": ["NobodyForCausalLM"]}, "NobodyForCausalLM"),
        ({"architectures": None}, "architectures"),
        ({"architectures": ["x" * 999]}, f"architectures: found '{'x' * 79}, wanted a known class"),
        ({"scoring_func": "x" * 999}, f"scoring_func: found '{'x' * 79}, wanted softmax"),
        ({"hidden_act": "tanh"}, "hidden_act"),
        ({"sliding_window": 8}, "sliding_window"),
        ({"rope_scaling": {"rope_type": "new", "factor": 2.0}}, "rope_type"),
        ({"num_attention_heads": "four"}, "num_attention_heads"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "bitsandbytes"),
        ({"architectures": ["LamaForCausalLM"]}, "nearest known are LlamaForCausalLM"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rope_theta": float("inf")}, "rope_theta"),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 0,
                    "low_freq_factor": 1,
                    "high_freq_factor": 1,
                    "original_max_position_embeddings": 8,
                }
            },
            "do not fit together",
        ),
        ({"num_hidden_layers": 1 << 30}, "layers"),
        ({"vocab_size": -1}, "vocab_size"),
        ({"vocab_size": (1 << 31) - 1}, "vocab_size: found 2147483647, wanted at most the 32 rows"),
        ({"intermediate_size": "x"}, "json: intermediate_size: found 'x', wanted an integer"),
        ({"rope_theta": "10000"}, "rope_theta: found '10000', wanted a finite number"),
        ({"rope_parameters": {"full_attention": [[1, 2]]}}, "full_attention: found [[1, 2]], want"),
        ({"rope_parameters": {"rope_theta": True}}, "rope_parameters: rope_theta: found True, wan"),
        ({"rope_parameters": {"rope_type": "x" * 999}}, f"found '{'x' * 79}, wanted one that"),
        (  # which is Gemma 4's alone
            {"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.5}},
            "rope_type: found 'proportional', wanted 'default'",
        ),
    ],
)
def test_configurations_that_a_file_cannot_say_are_refused(folder, tmp_path, change, word):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    refused(folder, tmp_path, word)


@pytest.mark.parametrize(
    ("name", "said", "unsaid"),
    [
        ("Phi", {"rope_theta": 5.0}, {"partial_rotary_factor": 0.5}),
        ("StableLm", {"partial_rotary_factor": 0.75}, {}),
        ("Granite", {"residual_multiplier": 0.3}, {"attention_multiplier": 1.0}),
        ("DeepseekV3", {"norm_topk_prob": False}, {"routed_scaling_factor": 2.5}),
        ("Qwen3Moe", {}, {"norm_topk_prob": False}),
        ("Llama", {}, {}),
    ],
)
def test_what_a_configuration_leaves_to_its_class(name, said, unsaid, tmp_path):
    config = {"architectures": [f"{name}ForCausalLM"], **said}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert ModelFolder(tmp_path).config == {**config, **unsaid}


def test_a_rotation_rules_over_the_base_of_a_class(tmp_path):
    config = {"architectures": ["MixtralForCausalLM"]}
    for rope, base in (({}, 1e6), ({"rope_theta": 5.0}, 5.0)):
        said = {**config, "rope_parameters": {"rope_type": "default", **rope}}
        (tmp_path / "config.json").write_text(json.dumps(said))
        assert Hyper(ModelFolder(tmp_path).config, "x").rope()["rope_theta"] == base


@pytest.mark.parametrize(("name", "kind"), [("GptOss", "yarn"), ("Apertus", "llama3")])
def test_a_rotation_that_is_left_to_its_class(name, kind, tmp_path):
    for said, wanted in (
        ({}, kind),
        ({"rope_scaling": None, "rope_parameters": None, "rope_theta": 5.0}, kind),
        ({"rope_parameters": {}}, "default"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "linear"),
    ):
        config = {"architectures": [f"{name}ForCausalLM"], **said}
        (tmp_path / "config.json").write_text(json.dumps(config))
        rope = Hyper(ModelFolder(tmp_path).config, "x").rope()
        assert rope["rope_type"] == wanted
        assert rope["rope_theta"] == said.get("rope_theta", 150_000 if kind == "yarn" else 12e6)
        assert (rope.get("original_max_position_embeddings") is not None) == (wanted == kind)


def test_a_refusal_by_name_is_not_told_as_a_misfit(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_act": "tanh"}))
    with pytest.raises(ConvertError, match="config.json: hidden_act: found 'tanh', wanted 'silu'"):
        convert_folder(folder, tmp_path / "out.gguf")
