"""Hugging Face folders that tests make: random numbers in the tensors of a golden file, or a tiny
Llama.
"""

import json
import math
import struct
from pathlib import Path

import numpy as np

from oxillama.convert import ModelFolder

GOLDEN = Path(__file__).parent / "golden"
KINDS = {"f4": "F32", "f2": "F16", "u2": "BF16", "u1": "U8", "i4": "I32", "i8": "I64"}


def golden_of(name):
    """What a golden file of a model family says; see `test_families`."""
    return json.loads((GOLDEN / f"{name}.json").read_text())


def spread(listed):
    """(name, shape) of every tensor of a golden list."""
    for name, shape, *rest in listed:
        layers = rest.pop(0) if "{b}" in name else [0]
        experts = range(rest.pop(0)) if "{e}" in name else [0]
        for layer in layers:
            for expert in experts:
                yield name.replace("{b}", str(layer)).replace("{e}", str(expert)), tuple(shape)


def save(path, tensors, header=None):
    """A safetensors file. tensors: arrays by name, or pairs of a type's name and an array; header:
    bytes in place of those that describe them.
    """
    about, data, at = {}, [], 0
    for name, array in tensors.items():
        if isinstance(array, tuple):
            kind, array = array[0], np.ascontiguousarray(array[1])
        else:
            kind = KINDS[array.dtype.str[1:]]
        offsets = [at, at + array.nbytes]
        about[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": offsets}
        data.append(array.tobytes())
        at += array.nbytes
    text = json.dumps(about).encode() if header is None else header
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def folder_of(golden, place, **config):
    """A folder with random numbers in the golden's tensors, and these numbers."""
    place.mkdir()
    random = np.random.default_rng(0)
    (place / "config.json").write_text(json.dumps({**golden["config"], **config}))
    tensors = {}
    for name, shape in spread(golden["folder"]):
        if name.endswith(("_blocks", "_scales")):  # a scale of 255 is no number
            tensors[name] = random.integers(0, 255, shape, np.uint8)
        elif name.endswith(".tid2eid"):
            tensors[name] = random.integers(0, golden["config"]["n_routed_experts"], shape)
        else:
            tensors[name] = random.normal(size=shape).astype(np.float32)
        if name.endswith(".act_fn.eps"):
            tensors[name] *= 1e-6  # as an epsilon is
        if name.endswith(("put_min", "put_max")):  # limits have an order
            tensors[name] = np.asarray((-1 if name.endswith("min") else 1) * abs(tensors[name]))
    for name, values in golden.get("integers", {}).items():
        tensors[name] = np.asarray(values, np.int64)
    if "output.weight" not in dict(spread(golden.get("tensors", []))):
        # a head that the file does not have repeats the embedding
        embedding = [one for name, one in tensors.items() if name.endswith("embed_tokens.weight")]
        heads = [name for name in tensors if name.endswith("lm_head.weight")]
        tensors.update(dict.fromkeys(heads, *embedding[:1]))
    save(place / "model.safetensors", tensors)
    for name, value in golden.get("files", {}).items():
        path = place / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(value))
        if "in_features" in value:
            shape = value["out_features"], value["in_features"]
            weight = random.normal(size=shape).astype(np.float32)
            save(path.parent / "model.safetensors", {"linear.weight": weight})
    return tensors


def tiny_llama(place):
    """A whole folder of a tiny Llama."""
    place.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "vocab_size": 32,
        "rope_theta": 10000.0,
    }
    (place / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(0)
    names = ["input_layernorm", "post_attention_layernorm"]
    tensors = {f"model.layers.0.{name}.weight": np.ones(32, np.float32) for name in names}
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"):
        tensors[f"model.layers.0.{name}.weight"] = random.normal(size=(32, 32)).astype(np.float32)
    for name in ("gate_proj", "up_proj", "down_proj"):
        tensors[f"model.layers.0.mlp.{name}.weight"] = np.ones((32, 32), np.float32)
    tensors["model.norm.weight"] = np.ones(32, np.float32)
    tensors["model.embed_tokens.weight"] = random.normal(size=(32, 32)).astype(np.float32)
    tensors["lm_head.weight"] = random.normal(size=(32, 32)).astype(np.float32)
    save(place / "model.safetensors", tensors)
    return place


def tensors_of(place):
    """The numbers of a folder by name."""
    return {name: np.array(one.data) for name, one in ModelFolder(place).tensors.items()}


def plain(value):
    """A value as JSON has it."""
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    return "-inf" if value == -math.inf else value
