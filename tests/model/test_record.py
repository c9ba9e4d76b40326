"""Recording: every inconsistency of a file is an error at load that names the thing, the value
found and the value wanted.
"""

import json

import numpy as np
import pytest

from oxillama.errors import GgufError, ModelError
from oxillama.gguf import GgufReader
from oxillama.model.record import record
from oxillama.model.reference import Reference
from tests.model import tiny

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
