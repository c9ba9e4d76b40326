"""Writes the trained network as a Q8_0 GGUF file and, from the file's own rounded weights, the
golden texts of the tests.

`python tools/export_embedded.py --work DIR --model oxillama/embedded.gguf --golden
tests/embedded/golden.json`, with the repository's root on PYTHONPATH. The goldens are made by torch
in f32 from the dequantised weights: an independent reference for the engine.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import jinja2
import numpy as np
import torch
from story_data import BEGIN, CHAT_TEMPLATE, END, IM_END, PAD, SPECIALS
from tokenizers import Tokenizer
from train_embedded import Llama, Shape

from oxillama.gguf import GgufReader, GgufWriter

BLOCK = 32
NAME = "Oxi of Willow Valley"
DESCRIPTION = (
    "A very small storyteller, trained from scratch on texts that the oxillama project generates "
    "itself (tools/story_world.py)."
)
NORMAL, CONTROL = 1, 3
GOLDENS = (
    "Once upon a time",
    [{"role": "user", "content": "Where does Bruno live?"}],
    [{"role": "user", "content": "Tell me a story about a fox and a lantern."}],
    [
        {"role": "system", "content": "Your name is Clara."},
        {"role": "user", "content": "What is your name?"},
    ],
)


def q8_0(weights: np.ndarray) -> np.ndarray:
    """Rows of Q8_0 blocks (rows, columns / 32 * 34) of float32 weights (rows, columns): an f16
    scale, then 32 signed bytes.
    """
    blocks = weights.astype(np.float32).reshape(len(weights), -1, BLOCK)
    scale = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    codes = np.rint(blocks * inverse).astype(np.int8)
    return np.concatenate((scale.astype("<f2").view(np.uint8), codes.view(np.uint8)), -1).reshape(
        len(weights), -1
    )


def from_q8_0(raw: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """The float32 weights (rows, columns) that Q8_0 bytes stand for."""
    blocks = np.ascontiguousarray(raw).reshape(shape[0], shape[1] // BLOCK, 2 + BLOCK)
    scale = np.ascontiguousarray(blocks[..., :2]).view("<f2").astype(np.float32)
    return (scale * np.ascontiguousarray(blocks[..., 2:]).view(np.int8)).reshape(shape)


def write_model(work: Path, path: Path) -> None:
    """The GGUF file of DIR/final.pt and DIR/tokenizer.json: matrices in Q8_0, norms in F32,
    embedding and output tied.
    """
    saved = torch.load(work / "final.pt")
    shape = Shape(**saved["shape"])
    model = json.loads((work / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    with GgufWriter(path, "llama") as out:
        for key, value in {
            "general.name": NAME,
            "general.description": DESCRIPTION,
            "general.license": "MIT",
            "general.size_label": "3.5M",
            "llama.vocab_size": shape.vocab,
            "llama.context_length": shape.context_length,
            "llama.embedding_length": shape.embedding_length,
            "llama.block_count": shape.block_count,
            "llama.feed_forward_length": shape.feed_forward_length,
            "llama.attention.head_count": shape.head_count,
            "llama.attention.head_count_kv": shape.head_count_kv,
            "llama.attention.key_length": shape.head_dim,
            "llama.attention.value_length": shape.head_dim,
            "llama.rope.dimension_count": shape.head_dim,
            "general.file_type": 7,
            "general.quantization_version": 2,
        }.items():
            out.add(key, value)
        out.add("llama.rope.freq_base", shape.rope_base, "float32")
        out.add("llama.attention.layer_norm_rms_epsilon", shape.rms_eps, "float32")
        out.add("general.languages", ["en"])
        out.add("tokenizer.ggml.model", "gpt2")
        out.add("tokenizer.ggml.pre", "gpt-2")
        out.add("tokenizer.ggml.tokens", tokens)
        out.add(
            "tokenizer.ggml.token_type",
            [CONTROL if t in SPECIALS else NORMAL for t in tokens],
            "array[int32]",
        )
        out.add("tokenizer.ggml.merges", merges)
        for key, value in {"bos": BEGIN, "eos": END, "eot": IM_END, "padding": PAD}.items():
            out.add(f"tokenizer.ggml.{key}_token_id", value)
        out.add("tokenizer.ggml.add_bos_token", True)
        out.add("tokenizer.ggml.add_eos_token", False)
        out.add("tokenizer.chat_template", CHAT_TEMPLATE)
        for name, weight in saved["net"].items():
            array = weight.float().numpy()
            if array.ndim == 1:
                out.add_tensor(name, array)
            else:
                out.add_tensor(name, q8_0(array), type_name="Q8_0")


def read_network(path: Path) -> Llama:
    """The torch network with the weights of a GGUF file as the file holds them."""
    reader, net = GgufReader(path), Llama(Shape())
    state = {}
    for name, weight in net.state_dict().items():
        shape = tuple(weight.shape)
        raw = reader.data(name).copy()
        state[name] = torch.from_numpy(
            raw.view("<f4").reshape(shape).copy() if len(shape) == 1 else from_q8_0(raw, shape)
        )
    net.load_state_dict(state)
    return net.eval()


@torch.no_grad()
def golden(
    net: Llama, tokenizer: Tokenizer, prompt: str | list[dict[str, str]], limit: int = 320
) -> dict:
    """One prompt, its greedy ids up to an end token, and at each the distance between the two best
    scores.
    """
    if isinstance(prompt, str):
        text, ids = prompt, [BEGIN, *tokenizer.encode(prompt, add_special_tokens=False).ids]
    else:
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        text = environment.from_string(CHAT_TEMPLATE).render(
            messages=prompt, bos_token=SPECIALS[BEGIN], add_generation_prompt=True
        )
        ids = tokenizer.encode(text, add_special_tokens=False).ids
    made, margins = [], []
    for _ in range(limit):
        best = net.logits(net(torch.tensor([ids + made]))[:, -1])[0].topk(2)
        made.append(int(best.indices[0]))
        margins.append(round(float(best.values[0] - best.values[1]), 5))
        if made[-1] in (END, IM_END):
            break
    thin = [i for i, m in enumerate(margins) if m < 1e-3]
    return {
        "prompt": prompt,
        "rendered": text,
        "prompt_ids": ids,
        "ids": made,
        "text": tokenizer.decode(made, skip_special_tokens=True),
        "margins": margins,
        "first_thin": thin[0] if thin else None,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--work", type=Path, required=True, help="the folder given to train_embedded.py"
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--golden", type=Path, required=True)
    arguments = parser.parse_args()
    write_model(arguments.work, arguments.model)
    network, vocabulary = (
        read_network(arguments.model),
        Tokenizer.from_file(str(arguments.work / "tokenizer.json")),
    )
    facts = {
        "made_by": "torch in f32 from the file's dequantised weights (tools/export_embedded.py)",
        "cases": [golden(network, vocabulary, p) for p in GOLDENS],
    }
    arguments.golden.write_text(json.dumps(facts, indent=1) + "\n")
