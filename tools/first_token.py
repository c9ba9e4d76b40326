#!/usr/bin/env python3
"""Measures one load: seconds from the call that opens a model to its first token, and to the second
and the fifth, in this process and once.

    first_token.py MODEL.gguf [-t 2] [--cold] [--sidecar FOLDER] [--json]
    PYTHON first_token.py MODEL.gguf --engine llama.cpp     PYTHON: one that has llama-cpp-python

The prompt is one token, the answer the likeliest next ones. Imports are done before. With --cold
the model's file (and its sidecar's) is first dropped from the system's page cache, and it is an
error if it stays there. Weights are packed, or with --sidecar mapped from what `oxillama sidecar
write` has left in the folder before.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

TOKENS = 5


def drop(path: Path) -> None:
    """Drop a file from the page cache; SystemExit where more than a hundredth of it stays (somebody
    has it mapped, or the system keeps it).
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        # private and writable, as ctypes wants it; nothing is written
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as view:
            pages = -(-size // mmap.PAGESIZE)
            held, start = (ctypes.c_ubyte * pages)(), ctypes.c_char.from_buffer(view)
            failed = ctypes.CDLL(None, use_errno=True).mincore(
                ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), held
            )
            del start
    stays = sum(byte & 1 for byte in bytes(held)) if not failed else pages
    if stays > pages // 100:
        raise SystemExit(f"{path}: {stays} of {pages} pages stay in the page cache, wanted none")


def ours(path: str, threads: int, sidecar: str | None) -> dict:
    """One load of oxillama."""
    import oxillama
    import oxillama.api  # noqa: F401  (imported when first used)

    start = time.perf_counter()
    with oxillama.load(path, num_threads=threads or None, sidecar=sidecar or False) as engine:
        loaded = time.perf_counter()
        times = []
        session, token = engine.session(), 1
        for _ in range(TOKENS):
            token = int(engine.forward_one(token, session=session).argmax())
            times.append(time.perf_counter() - start)
        return {
            "engine": "oxillama",
            "isa": oxillama.cpu_info()["isa"],
            "load_s": loaded - start,
            **named(times),
        }


def llama_cpp(path: str, threads: int) -> dict:
    """One load of llama.cpp, through the C API that llama-cpp-python carries."""
    import llama_cpp
    import numpy as np

    quiet = llama_cpp.llama_log_callback(lambda level, text, user: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    start = time.perf_counter()
    model = llama_cpp.llama_model_load_from_file(
        path.encode(), llama_cpp.llama_model_default_params()
    )
    loaded = time.perf_counter()
    settings = llama_cpp.llama_context_default_params()
    settings.n_threads = settings.n_threads_batch = threads or len(os.sched_getaffinity(0))
    context = llama_cpp.llama_init_from_model(model, settings)
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    times, token = [], 1
    for _ in range(TOKENS):
        batch = llama_cpp.llama_batch_get_one((ctypes.c_int32 * 1)(token), 1)
        if llama_cpp.llama_decode(context, batch):
            raise SystemExit("llama.cpp: decode failed")
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), (vocab,))
        token = int(logits.argmax())
        times.append(time.perf_counter() - start)
    return {"engine": "llama.cpp", "load_s": loaded - start, **named(times)}


def named(times: list[float]) -> dict[str, float]:
    """Seconds to the tokens that are told."""
    return {"first_s": times[0], "second_s": times[1], "fifth_s": times[4]}


def in_fresh_process(
    path: Path, *, threads: int = 0, sidecar: str | None = None, cold: bool = False
) -> dict:
    """What this script finds for oxillama in a process of its own."""
    options = [
        *(["-t", str(threads)] if threads else []),
        *(["--sidecar", sidecar] if sidecar else []),
        *(["--cold"] if cold else []),
    ]
    out = subprocess.run(
        [sys.executable, __file__, str(path), *options, "--json"], capture_output=True, text=True
    )
    if out.returncode:
        raise RuntimeError(f"{path}: {out.stderr[-1000:]}")
    return json.loads(out.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("-t", type=int, default=0)
    parser.add_argument("--engine", choices=("oxillama", "llama.cpp"), default="oxillama")
    parser.add_argument("--sidecar", type=Path, metavar="FOLDER")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.sidecar and options.engine != "oxillama":
        parser.error("--sidecar: is oxillama's")
    os.environ.pop("OXILLAMA_SIDECAR", None)  # it would win over what is asked for here
    if options.sidecar:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "oxillama",
                "sidecar",
                "write",
                str(options.model),
                "--folder",
                str(options.sidecar),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    if options.cold:
        for path in (options.model, *(options.sidecar.iterdir() if options.sidecar else ())):
            drop(path)
    found = (
        ours(str(options.model), options.t, options.sidecar and str(options.sidecar))
        if options.engine == "oxillama"
        else llama_cpp(str(options.model), options.t)
    )
    # ru_maxrss may be a parent's
    held = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    ]
    found = {
        **found,
        "model": str(options.model),
        "cold": options.cold,
        "peak_rss_mb": int(held[0].split()[1]) / (1 << 10),
    }
    print(
        json.dumps(found)
        if options.json
        else "\n".join(f"{key:<12} {value}" for key, value in found.items())
    )


if __name__ == "__main__":
    main()
