"""Tiny folders of T5: the logits of their files are those of transformers (5.23), t5_logits.npz,
which `python -m tests.convert.test_t5` writes where transformers and torch are installed.
"""

import json
import tempfile
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from oxillama.convert import convert_folder
from oxillama.gguf import GgufReader
from oxillama.model import load_model
from tests.convert.folders import save
from tests.model.stepping import memory_of, sourced_step

FACTS = Path(__file__).parent / "t5_logits.npz"
VOCAB = 80
LENGTHS = (1, 33, 200)  # of sources
ROWS = (0, 20, 140)  # of answers: the ones whose logits are kept
# version 1.0; 1.1, Flan and MADLAD-400; umT5; mT5 with its table as head. Depths, heads and widths
# that have nothing in common.
KINDS = {
    "t5": dict(
        architectures=["T5ForConditionalGeneration"],
        **dict(d_model=32, d_kv=16, num_heads=3, num_layers=2, num_decoder_layers=3),
    ),
    "flan": dict(
        architectures=["T5ForConditionalGeneration"],
        **dict(d_model=48, d_kv=8, num_heads=5, num_layers=3, num_decoder_layers=2),
        **dict(tie_word_embeddings=False, feed_forward_proj="gated-gelu"),
    ),
    "umt5": dict(
        architectures=["UMT5ForConditionalGeneration"],
        **dict(d_model=32, d_kv=32, num_heads=2, num_layers=2, num_decoder_layers=2),
        **dict(model_type="umt5", feed_forward_proj="gated-gelu"),
    ),
    "mt5": dict(
        architectures=["MT5ForConditionalGeneration"],
        **dict(d_model=64, d_kv=32, num_heads=1, num_layers=1, num_decoder_layers=1),
        **dict(model_type="mt5", feed_forward_proj="gated-gelu"),
    ),
}


def config_of(kind: str) -> dict:
    """A folder's config.json."""
    return {
        "model_type": "t5",
        "feed_forward_proj": "relu",
        "d_ff": 40,
        "vocab_size": VOCAB,
        "layer_norm_epsilon": 1e-6,
        "relative_attention_max_distance": 128,
        "relative_attention_num_buckets": 32,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
        **KINDS[kind],
    }


def tensors_of(kind: str) -> dict[str, np.ndarray]:
    """A folder's numbers, float32 by name."""
    c = config_of(kind)
    wide, inner, fed = c["d_model"], c["d_kv"] * c["num_heads"], c["d_ff"]
    shapes: dict[str, tuple[int, ...]] = {"shared.weight": (VOCAB, wide)}
    for side, layers in (("encoder", c["num_layers"]), ("decoder", c["num_decoder_layers"])):
        shapes[f"{side}.final_layer_norm.weight"] = (wide,)
        for layer in range(layers):
            at = f"{side}.block.{layer}.layer."
            kinds = ["SelfAttention"] + ["EncDecAttention"] * (side == "decoder")
            for part, name in enumerate(kinds):
                shapes |= {f"{at}{part}.{name}.{each}.weight": (inner, wide) for each in "qkv"}
                shapes[f"{at}{part}.{name}.o.weight"] = (wide, inner)
                shapes[f"{at}{part}.layer_norm.weight"] = (wide,)
            if layer == 0 or kind == "umt5":
                bias = f"{at}0.SelfAttention.relative_attention_bias.weight"
                shapes[bias] = (32, c["num_heads"])
            at += f"{len(kinds)}."
            gated = c["feed_forward_proj"] != "relu"
            for name in ("wi_0", "wi_1") if gated else ("wi",):
                shapes[f"{at}DenseReluDense.{name}.weight"] = (fed, wide)
            shapes[f"{at}DenseReluDense.wo.weight"] = (wide, fed)
            shapes[f"{at}layer_norm.weight"] = (wide,)
    if kind == "flan":
        shapes["lm_head.weight"] = (VOCAB, wide)
    return {name: _numbers(name, shape) for name, shape in shapes.items()}


def _numbers(name: str, shape: tuple[int, ...]) -> np.ndarray:
    values = np.random.default_rng(crc32(name.encode())).standard_normal(shape)
    if len(shape) == 1:
        values = 1 + 0.1 * values
    elif "relative" not in name:
        values /= shape[1] ** 0.5
    if name.endswith("Attention.q.weight"):  # scores are not scaled
        values *= 0.3
    return values.astype(np.float32)


def texts(length: int) -> tuple[list[int], list[int]]:
    """(a source of so many tokens, an answer from its start token on)."""
    random = np.random.default_rng(length)
    source, answer = (random.integers(2, VOCAB, each).tolist() for each in (length, ROWS[-1]))
    return source, [0, *answer]


@pytest.fixture(scope="module", params=KINDS)
def converted(request, tmp_path_factory):
    """(a kind, its model)."""
    place = tmp_path_factory.mktemp(request.param)
    (place / "config.json").write_text(json.dumps(config_of(request.param)))
    save(place / "model.safetensors", tensors_of(request.param))
    convert_folder(place, place / "m.gguf", "F32")
    return request.param, load_model(GgufReader(place / "m.gguf"), num_threads=2)


@pytest.mark.parametrize("length", LENGTHS)
def test_logits_are_those_of_transformers(converted, length):
    kind, model = converted
    source, answer = texts(length)
    pages = range(-(-len(source + answer) // 16))
    memory = memory_of(model, len(pages), kv_type="f32")
    found = sourced_step(model, [(source + answer, 0, pages, length)], memory)[list(ROWS)]
    wanted = np.load(FACTS)[f"{kind}_{length}"]
    assert np.abs(found - wanted).max() <= 2e-5 * np.abs(wanted).max()


def _record() -> None:
    import torch
    import transformers

    made = {}
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as place:
            Path(place, "config.json").write_text(json.dumps(config_of(kind)))
            save(Path(place, "model.safetensors"), tensors_of(kind))
            model = transformers.AutoModelForSeq2SeqLM.from_pretrained(place).eval()
        for length in LENGTHS:
            source, answer = (torch.tensor([ids]) for ids in texts(length))
            with torch.no_grad():
                logits = model(input_ids=source, decoder_input_ids=answer).logits[0]
            made[f"{kind}_{length}"] = logits[list(ROWS)].numpy()
    np.savez_compressed(FACTS, **made)


if __name__ == "__main__":
    _record()
