#!/usr/bin/env python3
"""Embeds texts with transformers on torch or with ONNX Runtime, as a --peer of
measure_embeddings.py; makes the folders and files that those compare.

    peer_embeddings.py folder bert-small FOLDER     a Hugging Face folder of random weights
    peer_embeddings.py export FOLDER OUT.onnx       in float32, fused by ONNX Runtime's optimiser,
                                                    and OUT-int8.onnx: 8-bit weights, activations
                                                    quantised as they come (quantize_dynamic)
    peer_embeddings.py torch FOLDER TEXTS.txt -t 2
    peer_embeddings.py onnx FILE.onnx FOLDER TEXTS.txt -t 2

`torch` and `onnx` take texts sorted by length, `--batch` at a time, padded. For each line that they
read from their input they embed all of them and print the seconds from text to normalised vectors,
and the seconds of processor time. `folder` needs numpy and safetensors, `export` torch,
transformers, onnx and onnxruntime, the others what they measure.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

SHAPES = {  # hidden, layers, heads, ffn: of BGE small and base
    "bert-small": (384, 12, 12, 1536),
    "bert-base": (768, 12, 12, 3072),
}
_TOKENS = 512


def folder(shape: str, out: Path) -> None:
    """A BERT with the classification token's row as its embedding; words are those of this
    repository's docs, so that texts from there are not cut into letters.
    """
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    hidden, layers, heads, ffn = SHAPES[shape]
    out.mkdir(parents=True, exist_ok=True)
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    root = Path(__file__).resolve().parents[1]
    texts = [path.read_text() for path in sorted((root / "docs").glob("*.md"))]
    tokenizer.train_from_iterator(
        ["".join(each if each.isascii() else " " for each in text) for text in texts],
        trainers.WordPieceTrainer(vocab_size=30000, special_tokens=specials),
    )
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    words = [each for each in words if each.strip("#")]
    words += [f"[unused{number}]" for number in range(30522 - len(words))]
    ids = {word: number for number, word in enumerate(words)}
    tokenizer.model = models.WordPiece(ids, unk_token="[UNK]")
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    tokenizer.add_special_tokens(specials)
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "vocab.txt").write_text("\n".join(words) + "\n")

    rng = np.random.default_rng(5)
    weights: dict[str, np.ndarray] = {}

    def linear(name: str, rows: int, columns: int) -> None:
        weights[f"{name}.weight"] = rng.normal(0, 0.02, (rows, columns)).astype(np.float32)
        weights[f"{name}.bias"] = np.zeros(rows, np.float32)

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = np.ones(hidden, np.float32)
        weights[f"{name}.bias"] = np.zeros(hidden, np.float32)

    for name, rows in (("word", len(words)), ("position", _TOKENS), ("token_type", 2)):
        table = rng.normal(0, 0.02, (rows, hidden)).astype(np.float32)
        weights[f"embeddings.{name}_embeddings.weight"] = table
    norm("embeddings.LayerNorm")
    for number in range(layers):
        layer = f"encoder.layer.{number}"
        for part in ("query", "key", "value"):
            linear(f"{layer}.attention.self.{part}", hidden, hidden)
        linear(f"{layer}.attention.output.dense", hidden, hidden)
        norm(f"{layer}.attention.output.LayerNorm")
        linear(f"{layer}.intermediate.dense", ffn, hidden)
        linear(f"{layer}.output.dense", hidden, ffn)
        norm(f"{layer}.output.LayerNorm")
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": len(words),
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "hidden_act": "gelu",
        "max_position_embeddings": _TOKENS,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }
    pooling = {"word_embedding_dimension": hidden, "pooling_mode_cls_token": True}
    part = {"idx": 1, "name": "1", "path": "1_Pooling"}
    modules = [part | {"type": "sentence_transformers.models.Pooling"}]
    (out / "1_Pooling").mkdir(exist_ok=True)
    for name, what in (
        ("config.json", config),
        ("tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": True}),
        ("modules.json", modules),
        ("1_Pooling/config.json", pooling),
    ):
        (out / name).write_text(json.dumps(what, indent=1))


def export(source: Path, out: Path) -> None:
    import onnx
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers import optimizer
    from transformers import AutoModel

    model = AutoModel.from_pretrained(source, dtype=torch.float32, add_pooling_layer=False).eval()

    class Rows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    ids, names = torch.ones(2, 16, dtype=torch.long), ["ids", "mask"]
    torch.onnx.export(
        Rows(),
        (ids, ids),
        str(out),
        input_names=names,
        output_names=["rows"],
        dynamic_axes=dict.fromkeys([*names, "rows"], {0: "texts", 1: "tokens"}),
        opset_version=17,
        dynamo=False,
    )
    fused = optimizer.optimize_model(
        str(out),
        model_type="bert",
        num_heads=model.config.num_attention_heads,
        hidden_size=model.config.hidden_size,
    )
    fused.save_model_to_file(str(out))
    quantize_dynamic(
        out,
        out.with_name(f"{out.stem}-int8.onnx"),
        weight_type=QuantType.QInt8,
        extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
    )


def by_torch(source: Path, threads: int) -> Callable[[list[str]], object]:
    import torch
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(threads)
    tokenizer = AutoTokenizer.from_pretrained(source, model_max_length=_TOKENS)
    model = AutoModel.from_pretrained(source, dtype=torch.float32, add_pooling_layer=False).eval()

    @torch.inference_mode()
    def embed(texts: list[str]) -> object:
        inputs = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        return torch.nn.functional.normalize(model(**inputs).last_hidden_state[:, 0]).numpy()

    return embed


def by_onnx(file: Path, source: Path, threads: int) -> Callable[[list[str]], object]:
    import onnxruntime
    from tokenizers import Tokenizer

    how = onnxruntime.SessionOptions()
    how.intra_op_num_threads, how.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(file, how, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(_TOKENS)

    def embed(texts: list[str]) -> object:
        found = tokenizer.encode_batch(texts)
        ids = np.array([each.ids for each in found], np.int64)
        mask = np.array([each.attention_mask for each in found], np.int64)
        rows = session.run(None, {"ids": ids, "mask": mask})[0][:, 0]
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    return embed


def serve(embed: Callable[[list[str]], object], texts: list[str], batch: int) -> None:
    texts = sorted(texts, key=len)

    def every() -> None:
        for first in range(0, len(texts), batch):
            embed(texts[first : first + batch])

    every()
    print("ready", flush=True)
    for _ in sys.stdin:
        start, used = time.perf_counter(), time.process_time()
        every()
        print(time.perf_counter() - start, time.process_time() - used, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("folder", "export", "torch", "onnx"))
    parser.add_argument("files", nargs="+")
    parser.add_argument("-t", type=int, default=2, help="threads (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="texts (default: %(default)s)")
    options = parser.parse_args()
    if options.what == "folder":
        folder(options.files[0], Path(options.files[1]))
        return
    *files, last = map(Path, options.files)
    if options.what == "export":
        export(*files, last)
        return
    embed = (by_torch if options.what == "torch" else by_onnx)(*files, options.t)
    serve(embed, last.read_text().splitlines(), options.batch)


if __name__ == "__main__":
    main()
