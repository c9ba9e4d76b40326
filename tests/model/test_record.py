"""Recording: every inconsistency of a file is an error at load that names the thing, the value
found and the value wanted.
"""

import json

import numpy as np
import pytest

from oxillama.errors import GgufError, ModelError
from oxillama.gguf import GgufReader, GgufWriter
from oxillama.model import load_model
from oxillama.model.record import record
from oxillama.model.reference import Reference
from tests.model import tiny
from tests.model.invented import invent
from tests.model.stepping import IDS, logits

CASES = (
    "llama",
    "llama_bias",
    "llama_linear",
    "llama_bpe_tied_rope3",
    "mistral",
    "qwen2",
    "qwen2_yarn",
    "qwen3",
    "gemma3",
)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(tensors={"blk.1.attn_q.weight": None}), ("blk.1.attn_q.weight", "no such tensor")),
        (
            dict(
                tensors=dict.fromkeys(
                    ["blk.0.ffn_norm.weight", "blk.1.attn_q.weight", "blk.1.ffn_up.weight"]
                )
            ),
            (
                "blk.0.ffn_norm.weight: the file has no such tensor, llama needs it (3 such: "
                "blk.0.ffn_norm.weight, blk.1.attn_q.weight, blk.1.ffn_up.weight)",
            ),
        ),
        # whatever else is wrong
        (
            dict(tensors={"blk.0.attn_k.weight": None, "output_norm.weight": (65,)}),
            ("blk.0.attn_k.weight: the file has no such tensor, llama needs it",),
        ),
        (
            dict(tensors={"token_embd.weight": None, "output_norm.weight": None}),
            ("token_embd.weight: the file has no such tensor", "2 such"),
        ),
        (
            dict(tensors={"blk.1.attn_q.weight": (tiny.HIDDEN, 96)}),
            ("blk.1.attn_q.weight", "(64, 96)", "(128, 64)"),
        ),
        (dict(tensors={"blk.0.extra.weight": (4, 32)}), ("blk.0.extra.weight", "no use")),
        (dict(tensors={"output_norm.weight": (65,)}), ("output_norm.weight", "(65,)", "(64,)")),
        (dict(keys={"llama.attention.head_count": 3}), ("head_count",)),
        (dict(keys={"llama.attention.head_count_kv": 3}), ("head_count_kv", "found 3")),
        (dict(keys={"llama.block_count": None}), ("llama.block_count", "missing")),
        (dict(keys={"llama.block_count": 0}), ("llama.block_count", "found 0")),
        (dict(keys={"llama.rope.dimension_count": 64}), ("rope.dimension_count", "found 64")),
        (dict(keys={"llama.rope.dimension_count": 31}), ("rope.dimension_count", "31")),
        (dict(keys={"llama.rope.scaling.type": "other"}), ("rope.scaling.type", "'other'")),
        (dict(keys={"llama.feed_forward_length": 95}), ("95",)),
        (dict(keys={"llama.context_length": "long"}), ("context_length", "'long'")),
        (dict(keys={"general.type": "adapter"}), ("general.type", "'adapter'", "--lora")),
        (dict(keys={"llama.other": "x" * 999}), (f"found '{'x' * 59}, which llama does not use",)),
        (dict(keys={"general.type": "teapot"}), ("general.type: found 'teapot', wanted 'model'",)),
        (dict(keys={"general.type": "x" * 999}), (f"found '{'x' * 59}, wanted 'model'",)),
        (dict(keys={"general.type": ["model"]}), ("general.type", "['model']", "a text")),
        (dict(keys={"general.type": [1, 2]}), ("general.type", "wanted a text")),
    ],
)
def test_an_inconsistent_file_is_refused_by_name(change, words, tmp_path):
    reader = tiny.write(tmp_path / "m.gguf", "llama", **change)
    with pytest.raises(ModelError) as caught:
        record(reader)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_an_unknown_architecture_names_those_that_are_known(tmp_path):
    from oxillama.gguf import GgufWriter

    with GgufWriter(tmp_path / "m.gguf", "unheard-of") as writer:
        writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    with pytest.raises(ModelError, match=r"unheard-of.*gemma3.*llama.*qwen3"):
        record(GgufReader(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    ("name", "near"), [("gemma5", "gemma"), ("Llama", "llama"), ("qwen-3", "qwen3")]
)
def test_an_unknown_architecture_names_the_nearest_known_one(name, near):
    class Reader:
        metadata = {"general.architecture": name}

    with pytest.raises(ModelError, match=rf"{name}' \(nearest known: '{near}"):
        record(Reader())


@pytest.mark.parametrize("name", CASES)
def test_the_reference_gives_the_logits_that_others_give(cases, name):
    logits = np.load(cases / "arch" / name / "logits.npz")
    reader = GgufReader(cases / "arch" / name / "f32.gguf")
    _, tape = record(reader)
    for i in range(3):
        wanted = logits[f"hf_{i}"]
        found = Reference(tape, reader, kv_type="f32").logits(logits[f"tokens_{i}"])
        assert np.abs(found - wanted).max() <= 2e-5 * np.abs(wanted).max()


def test_bad_files_are_refused_or_recorded_as_their_manifest_says(cases):
    manifest = json.loads((cases / "bad_gguf" / "manifest.json").read_text())
    for name, entry in manifest.items():
        if name.startswith(("tok_", "tmpl_")):
            continue  # judged by the tokenizer
        try:
            record(GgufReader(cases / "bad_gguf" / f"{name}.gguf"))
            verdict = "accept"
        except (GgufError, ModelError):
            verdict = "reject"
        assert entry["expect"] in ("either", verdict), (name, entry)


def rewritten(reader, path, change, **keys):
    """The logits of the same file with other tensors; change: from the name and values of one to
    those in its place, by name; keys: other values of keys under the architecture's prefix, a dot
    as two underscores, None for no such key.
    """
    arch = reader.metadata["general.architecture"]
    changed = {f"{arch}.{key.replace('__', '.')}": value for key, value in keys.items()}
    with GgufWriter(path, arch) as writer:
        for key, value in reader.metadata.items():
            if key != "general.architecture" and key not in changed:
                writer.add(key, value, reader.kv_types[key])
        for key, value in changed.items():
            if value is not None:
                writer.add(key, value)
        for name, info in reader.tensors.items():
            values = np.frombuffer(bytes(reader.data(name)), np.float32).reshape(info.shape)
            for other, data in change(name, values).items():
                writer.add_tensor(other, data)
    return logits(load_model(GgufReader(path)), IDS, kv_type="f32")


def test_an_outer_size_of_1_may_be_missing_or_there(tmp_path):
    """Some converters squeeze shapes: in files of 2024 the gate of shared experts is a vector."""
    reader = invent(tmp_path / "m.gguf", "qwen2moe")
    assert reader.tensors["blk.1.ffn_gate_inp_shexp.weight"].shape == (1, 64)

    def change(name, values):
        return {
            name: values[0] if len(values) == 1 else values[None] if values.ndim == 1 else values
        }

    found = rewritten(reader, tmp_path / "n.gguf", change)
    assert np.array_equal(found, logits(load_model(reader), IDS, kv_type="f32"))


def test_a_table_of_one_row_may_be_a_vector(tmp_path):
    reader = invent(tmp_path / "m.gguf", "bert")
    tables = ("token_types.weight", "cls.output.weight")

    def first(name, values):
        return {name: values[:1] if name in tables else values}

    def flat(name, values):
        return {name: values[0] if name in tables else values}

    wanted = rewritten(reader, tmp_path / "1.gguf", first)
    assert np.array_equal(rewritten(reader, tmp_path / "2.gguf", flat), wanted)


@pytest.mark.parametrize("arch", ["qwen3moe", "gpt-oss"])
def test_experts_have_scales_and_activations_none(arch, tmp_path):
    """A file of NVFP4 has a number for each expert, and others to round activations by."""
    reader = invent(tmp_path / "m.gguf", arch)
    scales = np.float32(2.0) ** np.array([-1, 1, 0, 2])

    def told(name, values):
        if not name.endswith("_exps.weight"):
            more = name.endswith(("attn_q.weight", "output.weight"))
            seen = {name.replace("weight", "input_scale"): np.float32([0.5])} if more else {}
            return {name: values, **seen}
        scale, seen = (name.replace("weight", f"{kind}scale") for kind in ("", "input_"))
        return {name: values, scale: scales.astype(np.float32), seen: scales.astype(np.float32)}

    def within(name, values):
        exps = name.endswith("_exps.weight")
        return {name: (values * scales[:, None, None]).astype(np.float32) if exps else values}

    wanted = rewritten(reader, tmp_path / "1.gguf", within)
    found = rewritten(reader, tmp_path / "2.gguf", told)
    assert np.array_equal(found, wanted)
    assert not np.array_equal(found, logits(load_model(reader), IDS, kv_type="f32"))


def test_keys_and_values_may_be_unfolded_by_one_matrix(tmp_path):
    """Files of DeepSeek V2 and V3 from before May 2025: the same, computed in another order."""
    reader = invent(tmp_path / "m.gguf", "deepseek2")
    keys_of = {}

    def change(name, values):
        if name.endswith("attn_k_b.weight"):  # heads, latent, floats of a key
            keys_of[name.replace("k_b", "kv_b")] = values.transpose(0, 2, 1)
            return {}
        if name.endswith("attn_v_b.weight"):  # heads, floats of a value, latent
            name = name.replace("v_b", "kv_b")
            both = np.concatenate([keys_of[name], values], axis=1)
            return {name: both.reshape(-1, both.shape[2])}
        return {name: values}

    found = rewritten(
        *(reader, tmp_path / "n.gguf", change),
        attention__head_count_kv=4,
        attention__key_length=48,
        attention__value_length=32,
        attention__key_length_mla=None,
        attention__value_length_mla=None,
    )
    wanted = logits(load_model(reader), IDS, kv_type="f32")
    assert np.abs(found - wanted).max() <= 2e-5 * np.abs(wanted).max()


def test_experts_with_a_bias_are_chosen_by_sigmoids(tmp_path):
    """Converters leave the key out for some folders; the softmax of DeepSeek V2 has no bias."""
    reader = invent(tmp_path / "m.gguf", "deepseek2")
    assert "deepseek2.expert_gating_func" not in reader.metadata

    def same(name, values):
        return {name: values}

    wanted = rewritten(reader, tmp_path / "n.gguf", same, expert_gating_func=2)
    assert np.array_equal(logits(load_model(reader), IDS, kv_type="f32"), wanted)
    _, tape = record(reader)
    assert {op.params["gating"] for op in tape.ops if op.name == "route"} == {"sigmoid"}


def test_projections_of_a_delta_net_may_be_one_matrix(tmp_path):
    """Files of Qwen3-Next from 2025: the rows of q, k, v and the gate of each key head in turn."""
    reader, gates = invent(tmp_path / "m.gguf", "qwen3next"), {}
    for name in reader.tensors:
        if name.endswith("attn_gate.weight"):
            gates[name] = np.frombuffer(bytes(reader.data(name)), np.float32).reshape(2, -1, 64)

    def change(name, values):
        gate = name.replace("attn_qkv", "attn_gate")
        if gate == name or gate not in gates:
            return {} if name in gates else {name: values}
        parts = np.split(values, [32, 64])  # two key heads of 16 floats
        rows = [part.reshape(2, -1, 64) for part in parts]
        made = np.concatenate([*rows, gates[gate]], axis=1).reshape(-1, 64)
        return {name.replace("attn_qkv", "ssm_in"): made}

    found = rewritten(reader, tmp_path / "n.gguf", change)
    assert "blk.0.ssm_in.weight" in GgufReader(tmp_path / "n.gguf").tensors
    assert np.array_equal(found, logits(load_model(reader), IDS, kv_type="f32"))
