"""`oxillama info`: what a GGUF file says it is, without loading its weights."""
from __future__ import annotations

import argparse
import json
from collections import Counter

import numpy as np
from rich.console import Console
from rich.table import Table

from oxillama.embedded import embedded_path
from oxillama.gguf import GgufReader

_SHOWN = 8      # elements of an array that are worth a line


def add_commands(commands) -> None:
    """Add `info`."""
    command = commands.add_parser("info", help="show what a GGUF file holds")
    command.add_argument("model", nargs="?", metavar="MODEL", help="a GGUF file; the embedded model when left out")
    command.add_argument("--tensors", action="store_true", help="list every tensor")
    command.add_argument("--metadata", action="store_true", help="list every metadata key")
    command.add_argument("--json", action="store_true", help="print JSON instead of tables")
    command.set_defaults(function=_info)


def _info(arguments: argparse.Namespace) -> int:
    with GgufReader(arguments.model or embedded_path()) as reader:
        report = _summary(reader)
        if arguments.metadata:
            report["metadata"] = {key: _plain(reader.metadata[key]) for key in reader.metadata}
        if arguments.tensors:
            report["tensors"] = [{"name": t.name, "type": t.type_name, "shape": list(t.shape), "bytes": t.nbytes} for t in reader.tensors.values()]
    if arguments.json:
        print(json.dumps(report, ensure_ascii=False))
    else:
        _show(report)
    return 0


def _summary(reader: GgufReader) -> dict:
    metadata, arch = reader.metadata, reader.metadata.get("general.architecture")
    bytes_by_type: Counter = Counter()
    for tensor in reader.tensors.values():
        bytes_by_type[tensor.type_name] += tensor.nbytes
    return {
        "file": str(reader.path), "gguf_version": reader.version, "file_bytes": reader.size,
        "name": metadata.get("general.name"), "architecture": arch,
        "parameters": sum(int(np.prod(t.shape, dtype=np.int64)) for t in reader.tensors.values()),
        "tensor_bytes": sum(bytes_by_type.values()), "bytes_by_type": dict(bytes_by_type.most_common()),
        "layers": metadata.get(f"{arch}.block_count"), "context_length": metadata.get(f"{arch}.context_length"),
        "embedding_length": metadata.get(f"{arch}.embedding_length"), "heads": _plain(metadata.get(f"{arch}.attention.head_count")),
        "kv_heads": _plain(metadata.get(f"{arch}.attention.head_count_kv")),
        "tokenizer": metadata.get("tokenizer.ggml.model"), "vocabulary": len(metadata.get("tokenizer.ggml.tokens", ())),
        "chat_template": "tokenizer.chat_template" in metadata,
    }


def _plain(value):
    """A metadata value as JSON can hold it."""
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    return [_plain(item.item() if isinstance(item, np.generic) else item) for item in value]


def _show(report: dict) -> None:
    console = Console(soft_wrap=True, highlight=False)
    tensors, metadata = report.pop("tensors", None), report.pop("metadata", None)
    for title, pairs in (("", report), ("metadata", metadata)):
        if pairs is not None:
            if title:
                console.print(f"\n{title}", style="bold")
            for key, value in pairs.items():
                console.print(f"{key:<18} {_short(value)}", markup=False)
    if tensors is not None:
        table = Table("tensor", "type", "shape", "bytes", title="tensors", title_style="bold")
        for tensor in tensors:
            table.add_row(tensor["name"], tensor["type"], " x ".join(map(str, tensor["shape"])), f"{tensor['bytes']:,}")
        console.print(table)


def _short(value) -> str:
    if isinstance(value, list) and len(value) > _SHOWN:
        return f"[{', '.join(repr(item) for item in value[:_SHOWN])}, ... {len(value):,} in all]"
    if isinstance(value, dict):
        return ", ".join(f"{key} {item:,}" for key, item in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
