"""Measures generation from a model that is larger than its memory: tokens a second, beside what the
disk's reads allow, under a limit that the system enforces.

    python tools/measure_offload.py MODEL.gguf --budget 1G --source file direct mmap --rounds 3
    python tools/measure_offload.py MODEL.gguf --budget 1G --llama-bench BIN/llama-bench

Every round runs each source, and llama.cpp with its mapping, once, in a process of its own within a
control group whose memory is limited to the budget and `--beside` bytes for all else (a mapped
file's pages count as the group's until they are given back); RLIMIT_DATA stands in where there are
no control groups to make. Before each run the file is dropped from the system's cache. The disk's
rate is the mean of one measured before the run and one after it, with reads of a mebibyte by four
threads that pass by the cache.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

GROUP = "oxillama-offload"
BLOCK = 1 << 20


def limited(nbytes: int) -> str:
    """Limit this process's memory; returns by what."""
    for root, limit, swap in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", None),
        ("/sys/fs/cgroup", "memory.max", "memory.swap.max"),
    ):
        group = Path(root) / GROUP
        try:
            group.mkdir(exist_ok=True)
            (group / limit).write_text(str(nbytes))
            if swap:
                (group / swap).write_text("0")
            (group / "cgroup.procs").write_text(str(os.getpid()))
            return f"control group, {limit}"
        except OSError:
            continue
    resource.setrlimit(resource.RLIMIT_DATA, (nbytes, nbytes))
    return "RLIMIT_DATA"


def dropped(path: Path) -> None:
    """The file leaves the system's cache."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk_rate(path: Path, *, seconds: float = 3.0, threads: int = 4) -> float:
    """Bytes a second of reads that pass by the cache, from places spread over the file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    blocks, step = os.path.getsize(path) // BLOCK, 7919
    lock, state = threading.Lock(), {"next": 0, "bytes": 0}
    end = time.monotonic() + seconds

    def work() -> None:
        room = mmap.mmap(-1, BLOCK)
        while time.monotonic() < end:
            with lock:
                at = state["next"] // 64 * step * 64 % max(64, blocks) + state["next"] % 64
                state["next"] += 1
            got = os.preadv(descriptor, [room], at % blocks * BLOCK)
            with lock:
                state["bytes"] += got

    began = time.monotonic()
    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    os.close(descriptor)
    return state["bytes"] / (time.monotonic() - began)


def child(
    path: str, budget: int, source: str, limit: int, tokens: int, threads: int, program: str = ""
) -> dict:
    """One run: seconds a token, bytes a token, and what was resident."""
    by = limited(limit)
    if program:
        return {"by": by, **_peer(program, path, tokens, threads)}
    import oxillama

    engine = oxillama.load(
        path, offload=oxillama.Budget(budget, source=source), num_threads=threads, context_size=512
    )
    prompt = list(range(3, 19))
    began = time.perf_counter()
    engine.generate(prompt, max_tokens=2, temperature=0, ignore_eos=True)
    first = time.perf_counter() - began
    before, began = engine.metrics(), time.perf_counter()
    # drawn, so that tokens differ and choose other experts
    engine.generate(prompt, max_tokens=tokens, temperature=1.5, seed=1, ignore_eos=True)
    spent, after = time.perf_counter() - began, engine.metrics()
    steps = after.steps_total - before.steps_total
    with open("/proc/self/status") as file:
        sizes = dict(line.split(":", 1) for line in file if ":" in line)
    engine.close()
    return {
        "by": by,
        "first": first,
        "seconds": spent / tokens,
        "bytes": (after.weight_bytes_read_total - before.weight_bytes_read_total) / steps,
        "hits": (after.weight_page_hits_total - before.weight_page_hits_total) / steps,
        "pages": (after.weight_pages_read_total - before.weight_pages_read_total) / steps,
        "resident": after.weights_resident_bytes,
        "peak": int(sizes["VmHWM"].split()[0]) << 10,
    }


def _peer(program: str, path: str, tokens: int, threads: int) -> dict:
    """The same of llama-bench, after the token that it generates first."""
    done = subprocess.run(
        [program, "-m", path, "-p", "0", "-n", str(tokens), "-r", "1", "-t", str(threads)]
        + ["--repack", "0", "-lm", "mmap", "-o", "json"],  # repacked weights would not be mapped
        capture_output=True,
        text=True,
        check=True,
    )
    return {"seconds": json.loads(done.stdout)[0]["avg_ns"] / 1e9 / tokens}


def run(**options: object) -> dict:
    """A child of its own, and what it found."""
    text = (
        "import json, runpy, sys; m = runpy.run_path(sys.argv[1]); "
        "print(json.dumps(m['child'](**json.loads(sys.argv[2]))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", text, __file__, json.dumps(options)], capture_output=True, text=True
    )
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1:] or [f"code {done.returncode}"]}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Run the rounds, print a line for each run and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--budget", required=True, help="like 1G")
    parser.add_argument("--beside", default="512M", help="memory for all but weights")
    parser.add_argument("--source", nargs="+", default=["file"])
    parser.add_argument("--llama-bench", help="llama.cpp's program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    from oxillama.weights.offload import parse_size

    budget = parse_size(asked.budget)
    limit = budget + parse_size(asked.beside)
    print(
        f"{asked.model} {os.path.getsize(asked.model):,} bytes, budget {budget:,}, limit {limit:,}"
    )
    found: dict[str, list[dict]] = {}
    for _ in range(asked.rounds):
        for source in [*asked.source, *(["llama.cpp"] if asked.llama_bench else [])]:
            dropped(asked.model)
            rate = disk_rate(asked.model)
            one = run(
                path=str(asked.model),
                budget=budget,
                source=source,
                limit=limit,
                tokens=asked.tokens,
                threads=asked.threads,
                program=asked.llama_bench if source == "llama.cpp" else "",
            )
            one["rate"] = (rate + disk_rate(asked.model)) / 2
            if one.get("bytes"):
                one["ratio"] = one["bytes"] / rate / one["seconds"]
            found.setdefault(source, []).append(one)
            print(source, json.dumps(one), flush=True)
    for source, runs in found.items():
        good = [one for one in runs if "seconds" in one]
        for name in ("seconds", "bytes", "rate", "ratio", "peak"):
            values = [one[name] for one in good if name in one]
            if values:
                print(f"{source}: {name} {statistics.median(values):.4g}")


if __name__ == "__main__":
    main()
