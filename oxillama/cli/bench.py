"""`oxillama bench`: prompt and generation speed of a model on this machine, through the loop that
serves requests.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import oxillama
from oxillama._core.threads import system_text
from oxillama.cli.loading import add_model, load
from oxillama.cli.parsing import number


def add_commands(commands) -> None:
    """Add `bench`."""
    command = commands.add_parser("bench", help="measure prompt and generation speed")
    add_model(command)
    command.add_argument(
        "-p",
        type=number(int),
        default=512,
        metavar="TOKENS",
        help="prompt tokens (default: %(default)s)",
    )
    command.add_argument(
        "-n",
        type=number(int),
        default=64,
        metavar="TOKENS",
        help="generated tokens (default: %(default)s)",
    )
    command.add_argument(
        "-d",
        type=number(int),
        default=0,
        metavar="DEPTH",
        help="tokens already in the context when generation starts (default: %(default)s)",
    )
    command.add_argument(
        "-b",
        type=number(int),
        default=1,
        metavar="BATCH",
        help="sequences generated together (default: %(default)s)",
    )
    command.add_argument(
        "-r",
        type=number(int),
        default=3,
        metavar="RUNS",
        help="runs whose median counts (default: %(default)s)",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.set_defaults(function=_bench)


def _bench(arguments: argparse.Namespace) -> int:
    for name, least in (("p", 1), ("n", 1), ("d", 0), ("b", 1), ("r", 1)):
        if getattr(arguments, name) < least:
            raise oxillama.ConfigError(
                f"-{name}: found {getattr(arguments, name)}, wanted {least} or more"
            )
    importlib.import_module("oxillama.api")  # a library's import is no part of a model's load
    start = time.perf_counter()
    with load(arguments) as engine:
        load_seconds = time.perf_counter() - start
        result = measure(
            engine,
            prompt=arguments.p,
            generate=arguments.n,
            depth=arguments.d,
            batch=arguments.b,
            runs=arguments.r,
            progress=_shown if sys.stderr.isatty() else None,
        )
    result = {
        "model": str(arguments.model or "embedded"),
        **result,
        "load_s": load_seconds,
        "peak_rss_mb": peak_rss_mb(),
    }
    if arguments.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:<14} {value:,.2f}" if isinstance(value, float) else f"{key:<14} {value}")
    return 0


def _shown(text: str) -> None:
    """A line of progress, in the place of the one before."""
    print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def measure(
    engine: oxillama.InferenceEngine,
    *,
    prompt: int,
    generate: int,
    depth: int,
    batch: int,
    runs: int,
    progress: Callable[[str], None] | None = None,
) -> dict:
    """Median tokens/s of `runs` runs after one that warms up; generation counts the tokens of all
    sequences. progress(text) is called for every run that begins, and at the end with "".

    ContextError for a prompt, or a depth and what is generated there, that the engine's context
    does not hold.
    """
    filled = max(depth, 1)
    for what, count in (
        (f"a prompt of {prompt} tokens", prompt),
        (f"{generate} tokens at depth {filled}", filled + generate),
    ):
        if count > engine.context_size:
            raise oxillama.ContextError(
                f"bench: found {what}, the context holds {engine.context_size}: wanted fewer, or a "
                "larger context (-c)"
            )
    vocab = engine.config.vocab_size
    prompt_rates, generation_rates = [], []
    tell = progress or (lambda text: None)
    for run in range(runs + 1):
        tell(f"prompt: run {run} of {runs}" if run else "prompt: warming up")
        with engine.raw_loop() as loop:
            ids = [(7 * j + 11) % vocab for j in range(prompt)]
            start = time.perf_counter()
            loop.prefill(0, ids)
            prompt_rates.append(prompt / (time.perf_counter() - start))
    run = 0
    while run <= runs:
        with engine.raw_loop() as loop:
            tell("filling the context")
            for sequence in range(batch):
                loop.prefill(sequence, [(7 * j + 11) % vocab for j in range(filled)])
            again = True  # over the same tokens, which take long at great depths
            while again and run <= runs:
                tell(f"generation: run {run} of {runs}" if run else "generation: warming up")
                start = time.perf_counter()
                for i in range(generate):
                    loop.decode([(13 * i + sequence + 5) % vocab for sequence in range(batch)])
                generation_rates.append(generate * batch / (time.perf_counter() - start))
                run += 1
                again = all(loop.rewind(sequence, filled) for sequence in range(batch))
    tell("")
    return {
        "engine": "oxillama",
        "isa": oxillama.cpu_info()["isa"],
        "threads": engine.num_threads,
        "model_bytes": engine.model_bytes,
        "pp": prompt,
        "pp_tps": statistics.median(prompt_rates[1:]),
        "n": generate,
        "depth": depth,
        "batch": batch,
        "tg_tps": statistics.median(generation_rates[1:]),
    }


def peak_rss_mb() -> float:
    """The most memory this process has held, in MB (2^20 bytes).

    Linux reports this program alone; `ru_maxrss` can include the process before it became this
    program, such as the copy of a large parent.
    """
    status = Path("/proc/self/status")
    for line in system_text(status).splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / (1 << 10)
    if sys.platform == "win32":
        return _peak_working_set() / (1 << 20)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def _peak_working_set() -> int:
    """Windows: the most bytes of this process that were in memory."""
    import ctypes

    class Counters(ctypes.Structure):
        _fields_ = [
            ("size", ctypes.c_ulong),
            ("faults", ctypes.c_ulong),
            ("peak", ctypes.c_size_t),
            ("rest", ctypes.c_size_t * 7),
        ]

    found, kernel = Counters(), ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    process = ctypes.c_void_p(kernel.GetCurrentProcess())
    if not kernel.K32GetProcessMemoryInfo(process, ctypes.byref(found), ctypes.sizeof(found)):
        raise ctypes.WinError()  # type: ignore[attr-defined]
    return found.peak
