"""Loads the model a command was given, with a progress bar where a person is watching."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import oxillama
from oxillama._core.threads import available_cpus
from oxillama.cli import media
from oxillama.cli.parsing import number
from oxillama.cli.progress import progress_bar
from oxillama.model.rope import KINDS, RopeOverrides
from oxillama.speculative.drafts import draft_file
from oxillama.stores import located, located_draft, located_encoder
from oxillama.weights.offload import OffloadPolicy, parse_policy, parse_size


def add_model(command: argparse.ArgumentParser, *, sidecar: str = "0") -> None:
    """The arguments every command that runs a model has; sidecar: where packed weights are kept by
    default.
    """
    command.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a GGUF file, a Hugging Face folder, OWNER/NAME[:QUANT] of the hub, or ollama:NAME; "
        "the embedded model when left out",
    )
    command.add_argument(
        "-m",
        "--model",
        "-hf",
        "--hf-repo",
        dest="named",
        metavar="MODEL",
        help="MODEL as an option",
    )
    command.add_argument(
        "-t",
        "--threads",
        type=number(int),
        default=0,
        help="worker threads (default: the cores this process may use)",
    )
    command.add_argument(
        "-c",
        "--ctx-size",
        "--context",
        dest="context",
        type=number(int),
        default=None,
        help="context size in tokens (default: the model's own)",
    )
    command.add_argument(
        "--kv-type",
        choices=("f16", "f32", "q8_0", "q4_0"),
        default=None,
        help="how keys and values are stored (default: f16, in an encoder f32)",
    )
    command.add_argument(
        "--sidecar",
        metavar="auto|FOLDER|0",
        default=sidecar,
        help=(
            "where packed weights are kept on disk for the next load: auto is the cache folder, "
            "for large models; 0 is nowhere (default: %(default)s)"
        ),
    )
    media.add_encoder(command)
    add_offload(command)
    _add_rope(command)


def add_offload(command: argparse.ArgumentParser) -> None:
    """`--ram-budget` and `--offload`."""
    group = command.add_argument_group("models larger than memory")
    group.add_argument(
        "--ram-budget",
        default=None,
        metavar="SIZE",
        help=(
            "memory that weights may take, like 6G or 512MiB; the rest is read from the file while "
            "the model runs"
        ),
    )
    group.add_argument(
        "--offload",
        default=None,
        metavar="none|budget|pinned[:...]",
        help=(
            "what stays within --ram-budget: budget is whatever serves best (the default), pinned "
            "the parts that are named, as in pinned:embeddings,head,layers=4,ahead=2"
        ),
    )


def offload_policy(arguments: argparse.Namespace) -> OffloadPolicy:
    """What those two say."""
    return parse_policy(
        arguments.offload,
        None if arguments.ram_budget is None else parse_size(arguments.ram_budget),
    )


def _add_rope(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group(
        "rotary position embedding (RoPE), by default as in the file"
    )
    group.add_argument(
        "--rope-scaling", choices=KINDS, default=None, help="how positions are stretched"
    )
    factor = group.add_mutually_exclusive_group()
    factor.add_argument(
        "--rope-scale",
        type=number(),
        default=None,
        metavar="N",
        help="stretch positions, and with them the context, by N",
    )
    factor.add_argument(
        "--rope-freq-scale",
        type=number(),
        default=None,
        metavar="N",
        help="multiply angles by N: --rope-scale 1/N",
    )
    group.add_argument(
        "--rope-freq-base",
        type=number(),
        default=None,
        metavar="N",
        help="base of the frequencies; a windowed layer's own base stays",
    )
    group.add_argument(
        "--yarn-orig-ctx",
        type=number(int),
        default=None,
        metavar="TOKENS",
        help="the context that the model was made for (default: the file's)",
    )
    for name, text in (
        ("ext-factor", "share of frequencies that are kept where fast; 0 stretches all"),
        ("attn-factor", "factor of cosines and sines"),
        ("beta-fast", "turns over the original context from which a pair is kept"),
        ("beta-slow", "turns under which a pair is stretched in full"),
    ):
        group.add_argument(
            f"--yarn-{name}",
            type=number(),
            default=None,
            metavar="N",
            help=f"{text} (default: the file's)",
        )


def _rope(arguments: argparse.Namespace) -> dict:
    """The fields of `EngineConfig` that the options of the rotation ask for."""
    found = {field.name: getattr(arguments, field.name) for field in fields(RopeOverrides)}
    if arguments.rope_scale is not None:
        if not 0 < arguments.rope_scale < math.inf:
            raise oxillama.ConfigError(
                f"--rope-scale: found {arguments.rope_scale}, wanted a finite number above 0"
            )
        found["rope_freq_scale"] = 1.0 / arguments.rope_scale
    return found


def located_model(arguments: argparse.Namespace, *, encoder: bool = False) -> str | None:
    """The file that MODEL names, found or made, from the hub with its encoder if so asked; None for
    the embedded model.
    """
    given = arguments.model
    if given is None:
        return None
    try:
        found = _found(given, encoder)
    except oxillama.GgufNotFound:
        if len(given.split()) < 2 or not hasattr(arguments, "prompt"):
            raise
        raise oxillama.GgufNotFound(f"{given}: no such file or folder; -p gives a prompt") from None
    if str(found) != given:
        print(f"oxillama: {given} is {found}", file=sys.stderr, flush=True)
    return str(found)


def drafts_of(arguments: argparse.Namespace) -> str | bool:
    """The value of `speculative=` that `--speculative` stands for, a draft found or made."""
    given = arguments.speculative
    if given == "off":
        return False
    found = _converting(lambda **shown: draft_file(given, partial(located_draft, **shown)))
    if found is not None and str(found) != given:
        print(f"oxillama: {given} is {found}", file=sys.stderr, flush=True)
        arguments.speculative = str(found)  # it is asked for once more for the requests
    return arguments.speculative


def _found(given: str, encoder: bool) -> Any:
    """The file of a name; a conversion shows a bar where a person is watching."""
    return _converting(partial(located, given, encoder=encoder))


def _converting(find: Callable[..., Any]) -> Any:
    """What `find(progress=)` gives, with a bar where a person is watching."""
    with progress_bar("converting", waits=True) as progress:
        return find(progress=progress)


def encoder_file(given: str | Path) -> str:
    """The file of an encoder's name; a conversion shows a bar where a person is watching."""
    return str(_converting(partial(located_encoder, given)))


def engine_options(arguments: argparse.Namespace) -> dict:
    """The keyword arguments of `oxillama.load` that the options of `add_model` ask for."""
    _note_threads(arguments.threads)
    return dict(
        num_threads=None if arguments.threads in (0, -1) else arguments.threads,
        context_size=arguments.context or None,
        kv_type=arguments.kv_type,
        sidecar=False if arguments.sidecar == "0" else arguments.sidecar,
        **media.encoder_options(arguments),
        offload=offload_policy(arguments),
        **_rope(arguments),
    )


def _note_threads(threads: int) -> None:
    """Say on standard error that more threads are asked for than there are CPUs for."""
    cpus = available_cpus()
    if threads > cpus:
        print(
            f"oxillama: --threads: found {threads} where this process may use {cpus} CPUs: threads "
            "that wait for one are of no use, and hold up the others",
            file=sys.stderr,
            flush=True,
        )


def load(arguments: argparse.Namespace, **more) -> oxillama.InferenceEngine:
    """The engine of `arguments.model`; the bar shows weights packed and is left out when stderr is
    not a terminal.
    """
    options = engine_options(arguments)
    model = located_model(arguments, encoder=media.wants_own_encoder(arguments))
    encoder = media.needed_encoder(arguments, model)
    if encoder is not None:
        options["mmproj"] = encoder_file(encoder)
    if getattr(arguments, "speculative", None) is not None:
        # a draft may have to be loaded with the model; what is wrong is said now, not at a message
        options["speculative"] = drafts_of(arguments)
    engine = _loaded(model, {**options, **more})
    _announce(engine)
    return engine


def _announce(engine: oxillama.InferenceEngine) -> None:
    """Say on standard error that packed weights will be written to the disk, and how to say no; or
    why they will not be.
    """
    writer = engine.loaded.model.writer
    if writer is None:
        return
    off, why = "--sidecar 0 or OXILLAMA_SIDECAR=0 turns this off", writer.foreseen()
    if why is None:
        late = writer.foreseen_at_close()
        when = f" if it is idle for long enough ({late})" if late is not None else ""
        told = (
            f"keeps {writer.nbytes / 1e6:,.0f} MB of packed weights in {writer.folder}{when}, so "
            f"that this model loads faster next time; {off}, `oxillama sidecar clear` removes them"
        )
    elif writer.automatic:  # the writer itself warns about a folder that the user named
        told = f"packed weights cannot be kept in {writer.folder}: {why}; {off}"
    else:
        return
    print(f"oxillama: {told}", file=sys.stderr, flush=True)


def _loaded(model: str | None, options: dict) -> oxillama.InferenceEngine:
    """The engine; with a bar where a person is watching."""
    with progress_bar("loading", sizes=True) as progress:
        return oxillama.load(model, progress=progress, **options)
