"""`oxillama info`: what a GGUF file says it is, without loading its weights."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from dataclasses import asdict

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oxillama.cli.loading import add_offload, located_model, offload_policy
from oxillama.embedded import embedded_path
from oxillama.gguf import GgufReader
from oxillama.model.media_encoder import encoder_kind, media_of_file
from oxillama.model.tape_weights import paging_of
from oxillama.weights.offload import Budget, PinnedHotSet

_OF_MEDIA = ("clip",)  # the architectures of files of encoders of images and audio
_SHOWN = 8  # elements of an array that are worth a line
_PIPED = 1 << 12  # columns where no terminal says how many: a line is never cut or folded


def add_commands(commands) -> None:
    """Add `info`."""
    command = commands.add_parser("info", help="show what a GGUF file holds")
    command.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a model as of `oxillama run`; the embedded model when left out",
    )
    command.add_argument("-m", "--model", dest="named", metavar="MODEL", help="MODEL as an option")
    command.add_argument("--tensors", action="store_true", help="list every tensor")
    command.add_argument("--metadata", action="store_true", help="list every metadata key")
    command.add_argument("--json", action="store_true", help="print JSON instead of tables")
    add_offload(command)
    command.set_defaults(function=_info)


def _info(arguments: argparse.Namespace) -> int:
    with GgufReader(located_model(arguments) or embedded_path()) as reader:
        report = _summary(reader)
        policy = offload_policy(arguments)
        if policy is not None:
            report["offload"] = _paging(reader, policy)
        if arguments.metadata:
            report["metadata"] = {key: _plain(reader.metadata[key]) for key in reader.metadata}
        if arguments.tensors:
            report["tensors"] = [
                {"name": t.name, "type": t.type_name, "shape": list(t.shape), "bytes": t.nbytes}
                for t in reader.tensors.values()
            ]
    if arguments.json:
        print(json.dumps(report, ensure_ascii=False))
    else:
        _show(report)
    return 0


def _summary(reader: GgufReader) -> dict:
    metadata, arch = reader.metadata, reader.metadata.get("general.architecture")

    def said(key: str):
        return _plain(metadata.get(key))

    words = metadata.get("tokenizer.ggml.tokens", ())
    bytes_by_type: Counter = Counter()
    for tensor in reader.tensors.values():
        bytes_by_type[tensor.type_name] += tensor.nbytes
    # where the keys of a file stand that are not under its architecture's own name
    media = media_of_file(metadata) if arch in _OF_MEDIA else ()
    prefix = f"clip.{media[0]}" if media else arch
    return {
        "file": str(reader.path),
        "gguf_version": reader.version,
        "file_bytes": reader.size,
        "name": said("general.name"),
        "architecture": said("general.architecture"),
        "parameters": sum(int(np.prod(t.shape, dtype=np.int64)) for t in reader.tensors.values()),
        "tensor_bytes": sum(bytes_by_type.values()),
        "bytes_by_type": dict(bytes_by_type.most_common()),
        "layers": said(f"{prefix}.block_count"),
        # those of them that predict further tokens (`speculative="mtp"`)
        "mtp_layers": sum(name.endswith(".nextn.eh_proj.weight") for name in reader.tensors),
        "context_length": said(f"{prefix}.context_length"),
        "embedding_length": said(f"{prefix}.embedding_length"),
        "heads": said(f"{prefix}.attention.head_count"),
        "kv_heads": said(f"{prefix}.attention.head_count_kv"),
        **(_of_images(metadata) if "vision" in media else {}),
        **(_of_audio(metadata) if "audio" in media else {}),
        "tokenizer": said("tokenizer.ggml.model"),
        "vocabulary": len(words) if isinstance(words, (tuple, list, np.ndarray)) else None,
        "chat_template": "tokenizer.chat_template" in metadata,
        "sampling": {
            key.removeprefix("general.sampling."): _plain(metadata[key])
            for key in metadata
            if key.startswith("general.sampling.")
        }
        or None,
    }


def _paging(reader: GgufReader, policy: Budget | PinnedHotSet) -> dict:
    """The effect of a policy on the model."""
    summary = paging_of(reader, policy)
    return {
        "policy": type(policy).__name__,
        **asdict(policy),
        "paged": summary is not None,
        **({} if summary is None else asdict(summary)),
    }


def _of_images(metadata) -> dict:
    """What an mmproj file says of the images it encodes."""
    # a file with encoders of several kinds says it of each
    one = "projector_type" if "clip.projector_type" in metadata else "vision.projector_type"
    keys = {
        "projector": one,
        "image_size": "vision.image_size",
        "patch_size": "vision.patch_size",
        "image_mean": "vision.image_mean",
        "image_std": "vision.image_std",
    }
    return {name: _plain(metadata.get(f"clip.{key}")) for name, key in keys.items()}


def _of_audio(metadata) -> dict:
    """What an mmproj file says of the audio it encodes."""
    return {
        "audio_projector": encoder_kind(metadata, "audio"),
        **{
            f"audio_{name}": _plain(metadata.get(f"clip.audio.{key}"))
            for name, key in {
                "layers": "block_count",
                "embedding_length": "embedding_length",
                "mel_bins": "num_mel_bins",
            }.items()
        },
    }


def _plain(value):
    """A metadata value in JSON; values that JSON cannot hold ("nan", "inf") become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (str, int, float)) or value is None:
        return value
    return [_plain(item) for item in (value.tolist() if isinstance(value, np.ndarray) else value)]


class _Output(Console):
    """A console that leaves it to the shell what follows when its reader has gone."""

    def on_broken_pipe(self) -> None:
        raise  # called where a BrokenPipeError is handled


def _show(report: dict) -> None:
    console = _Output(
        soft_wrap=True, highlight=False, emoji=False, width=None if sys.stdout.isatty() else _PIPED
    )
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
            name = Text(tensor["name"], overflow="fold")
            table.add_row(
                name, tensor["type"], " x ".join(map(str, tensor["shape"])), f"{tensor['bytes']:,}"
            )
        console.print(table)


def _short(value) -> str:
    if isinstance(value, list) and len(value) > _SHOWN:
        return f"[{', '.join(repr(item) for item in value[:_SHOWN])}, ... {len(value):,} in all]"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(item)}" for key, item in value.items())
    # what a terminal would obey is spelled out; a template keeps its lines
    if isinstance(value, str):
        return "".join(
            letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1]
            for letter in value
        )
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
