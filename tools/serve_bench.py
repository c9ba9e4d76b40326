#!/usr/bin/env python3
"""Measures an engine by its requests: -b of them submitted at once, -d tokens in and -n out each.

    serve_bench.py MODEL.gguf [-b 16] [-d 128] [-n 128] [-t 2] [-r 3] [--json]

`first_ms` is the wait for a request's first token, `gap_ms` that between two tokens, both at p50
and p99 of all rounds. `served_tps` counts the generated tokens of all requests over the time from
the first submit to the last end, prompts included; `pp_tps` the prompt tokens up to the last first
token, `tg_tps` the tokens from there to the end over that time. No prompt shares a beginning.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import oxillama
from oxillama.cli.bench import peak_rss_mb

GREEDY = oxillama.SamplerConfig.greedy(ignore_eos=True)


def one_run(engine: oxillama.InferenceEngine, *, batch: int, depth: int, generate: int) -> dict:
    """One round of requests; raises when a request did not give all its tokens."""
    vocab = engine.config.vocab_size
    prompts = [
        [(7 * j + 131 * sequence + 11) % vocab for j in range(max(depth, 1))]
        for sequence in range(batch)
    ]
    begin = time.perf_counter()
    requests = [
        engine.submit(prompt, max_tokens=generate, sampler=GREEDY, cache_prompt=False)
        for prompt in prompts
    ]
    # (when, tokens so far) of each request
    seen: list[list[tuple[float, int]]] = [[] for _ in requests]
    for request, times in zip(requests, seen):
        request.listen(
            lambda request=request, times=times: times.append(
                (time.perf_counter(), len(request.generated))
            ),
            in_loop=True,
        )
    done = [request.result() for request in requests]
    end = time.perf_counter()
    if any(len(each.tokens) != generate for each in done):
        raise SystemExit(
            f"serve: found {[len(each.tokens) for each in done]} tokens, wanted {generate} of each "
            "request"
        )
    # everybody has a first token
    middle = max(times[0][0] for times in seen)
    gaps = [b - a for times in seen for (a, _), (b, _) in zip(times, times[1:])]
    late = sum(
        generate - max((count for when, count in times if when <= middle), default=0)
        for times in seen
    )
    return {
        "served_tps": batch * generate / (end - begin),
        "pp_tps": batch * max(depth, 1) / (middle - begin),
        "tg_tps": late / (end - middle),
        "first": [times[0][0] - begin for times in seen],
        "gaps": gaps,
    }


def percentiles(seconds: Iterable[float]) -> dict[str, float]:
    """p50 and p99 in milliseconds."""
    ordered = sorted(seconds)
    return {
        f"p{share}": 1e3 * ordered[min(len(ordered) - 1, len(ordered) * share // 100)]
        for share in (50, 99)
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    for name, default in (("p", 0), ("b", 16), ("d", 128), ("n", 128), ("t", 2), ("r", 3)):
        parser.add_argument(
            f"-{name}",
            type=int,
            default=default,
            help="taken for the sake of measure.py, not used" if name == "p" else None,
        )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    start = time.perf_counter()
    scheduler = oxillama.SchedulerConfig(
        max_sequences=max(32, options.b), max_batch_sequences=options.b
    )
    with oxillama.load(
        options.model, num_threads=options.t, scheduler=scheduler, prefix_cache=False
    ) as engine:
        load_seconds = time.perf_counter() - start
        rounds = [
            one_run(engine, batch=options.b, depth=options.d, generate=options.n)
            for _ in range(options.r + 1)
        ][1:]
        found = {
            key: statistics.median(one[key] for one in rounds)
            for key in ("served_tps", "pp_tps", "tg_tps")
        }
        waits = {
            name: percentiles(each for one in rounds for each in one[key])
            for name, key in (("first_ms", "first"), ("gap_ms", "gaps"))
        }
        result = {
            "engine": "oxillama",
            "isa": oxillama.cpu_info()["isa"],
            "model": str(options.model),
            "threads": engine.num_threads,
            "batch": options.b,
            "depth": options.d,
            "n": options.n,
            **found,
            **waits,
            "load_s": load_seconds,
            "peak_rss_mb": peak_rss_mb(),
        }
    print(
        json.dumps(result)
        if options.json
        else "\n".join(f"{key:<12} {value}" for key, value in result.items()),
        file=sys.stdout,
    )


if __name__ == "__main__":
    main()
