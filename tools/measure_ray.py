#!/usr/bin/env python3
"""What Ray costs and what routing gains, on a cluster of two nodes in this machine.

    tools/measure_ray.py data [--prompts 2000] [--tokens 96] [--engines 2] [--rounds 5]
                              [--model FILE]
    tools/measure_ray.py routing [--chats 200] [--turns 5] [--at-once 8] [--rounds 2]
                                 [--model FILE --history 1000 --more 100]

`data`: tokens per second of a dataset over actors of one thread, beside as many bare processes of
one thread; loading is left out of both. `engine_cpu` is the CPU seconds that an engine's process
takes for its share of the rows, `services` the CPUs that Ray's other processes keep busy meanwhile,
the driver among them: with as many engines as the machine has cores, the engines go without these.
`routing`: milliseconds to the first token of chats over
two replicas, by prefix and by Ray Serve's own router, first turns left out; `cached` is the share
of their tokens that were found in the prefix cache. Without --model the chats are those of the
embedded model, whose prompts cost less than Serve does; with one (asv_benchmarks/models.py makes
some) they are token ids, --history of them in the first turn and --more in each later one. Rounds
take turns; prints one JSON object of medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing
import os
import statistics
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
# Ray's workers are nicer than other processes by 15, which the bare ones are not: what else the
# machine does would slow one of both
os.environ.update(
    {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
)
MEMORY = 300 << 20
PORT = 18124
WORDS = (
    "the",
    "fox",
    "bird",
    "owl",
    "and",
    "small",
    "went",
    "into",
    "old",
    "wood",
    "dark",
    "still",
)


def prompt(number: int) -> str:
    """One of many short prompts."""
    return f"Once upon a time {WORDS[number % 3 + 1]} number {number} said"


@dataclass(frozen=True, slots=True)
class Share:
    """What one engine's process did: seconds since the epoch, tokens, CPU seconds."""

    begun: float
    ended: float
    tokens: int
    cpu: float


def bare(model: str | None, numbers: range, tokens: int, ready: Any, go: Any, out: Any) -> None:
    """A process of its own with one thread: its share of the prompts."""
    import oxillama

    with oxillama.load(model, num_threads=1) as engine:
        engine.generate("warm", max_tokens=2)
        ready.release()
        go.wait()
        begun, cpu = time.time(), time.process_time()
        requests: list[Any] = [
            engine.submit(prompt(at), max_tokens=tokens, temperature=0, ignore_eos=True)
            for at in numbers
        ]
        count = sum(len(each.result().tokens) for each in requests)
        out.put(Share(begun, time.time(), count, time.process_time() - cpu))


def bare_shares(arguments: argparse.Namespace) -> list[Share]:
    """The prompts through bare processes, side by side."""
    context = multiprocessing.get_context("spawn")
    ready, go, out = context.Semaphore(0), context.Event(), context.Queue()
    shares = [range(at, arguments.prompts, arguments.engines) for at in range(arguments.engines)]
    processes = [
        context.Process(
            target=bare, args=(arguments.model, share, arguments.tokens, ready, go, out)
        )
        for share in shares
    ]
    for each in processes:
        each.start()
    for _ in processes:
        ready.acquire()
    go.set()
    found = [out.get() for _ in processes]
    for each in processes:
        each.join()
    return found


def memory_of(model: str | None) -> int:
    """Bytes that Ray sets aside for an engine: of the embedded model, or of a small file."""
    return MEMORY if model is None else MEMORY * 5


def rate(shares: list[Share]) -> float:
    """Tokens per second from the first beginning to the last end."""
    seconds = max(each.ended for each in shares) - min(each.begun for each in shares)
    return sum(each.tokens for each in shares) / seconds


def ray_shares(arguments: argparse.Namespace) -> tuple[list[Share], float]:
    """The prompts through actors; CPUs that the rest of Ray kept busy meanwhile."""
    import ray

    from oxillama.integrations.ray import OxillamaProcessorConfig, build_processor

    options = {"batch_size": arguments.batch} if arguments.batch else {}
    config = OxillamaProcessorConfig(
        model_source=arguments.model,
        concurrency=arguments.engines,
        memory=memory_of(arguments.model),
        **options,
    )
    tokens = arguments.tokens

    def asked(row: dict[str, Any]) -> dict[str, Any]:
        params = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        now = {"begun": time.time(), "cpu": time.process_time()}
        return {"prompt": row["prompt"], "sampling_params": params, **now}

    def said(row: dict[str, Any]) -> dict[str, Any]:
        return {
            "process": os.getpid(),
            "begun": row["begun"],
            "ended": time.time(),
            "tokens": row["num_generated_tokens"],
            "cpu": (row["cpu"], time.process_time()),
        }

    rows = ray.data.from_items([{"prompt": prompt(at)} for at in range(arguments.prompts)])
    rows = rows.repartition(arguments.prompts // config.batch_size + 1).materialize()
    with Services() as services:
        found = build_processor(config, asked, said)(rows).take_all()
    assert len(found) == arguments.prompts
    shares = []
    for process in sorted({row["process"] for row in found}):
        mine = [row for row in found if row["process"] == process]
        shares.append(
            Share(
                min(row["begun"] for row in mine),
                max(row["ended"] for row in mine),
                int(sum(row["tokens"] for row in mine)),
                max(row["cpu"][1] for row in mine) - min(row["cpu"][0] for row in mine),
            )
        )
    begun, ended = min(each.begun for each in shares), max(each.ended for each in shares)
    return shares, services.busy(begun, ended, {int(row["process"]) for row in found})


class Services:
    """Reads, once a second, the CPU time of every process below this one."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, dict[int, float]]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Services:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        ended = False
        while not ended:
            ended = self._end.wait(1) if self._seen else False
            self._seen.append((time.time(), cpu_seconds(os.getpid())))

    def busy(self, begun: float, ended: float, engines: set[int]) -> float:
        """CPUs that all processes but the engines' kept busy from the last reading before `begun`
        to the first after `ended`.
        """
        first, before = [each for each in self._seen if each[0] <= begun][-1]
        last, after = [each for each in self._seen if each[0] >= ended][0]
        spent = (after[each] - before.get(each, 0.0) for each in after if each not in engines)
        return sum(spent) / (last - first)


def cpu_seconds(root: int) -> dict[int, float]:
    """The CPU time of a process and of all below it, by their numbers."""
    tick = os.sysconf("SC_CLK_TCK")
    seconds: dict[int, float] = {}
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            values = path.read_text().rpartition(")")[2].split()
            number = int(path.parent.name)
            parents[number] = int(values[1])
            seconds[number] = (int(values[11]) + int(values[12])) / tick

    def below(number: int) -> bool:
        while number not in (0, root):
            number = parents.get(number, 0)
        return number == root

    return {number: value for number, value in seconds.items() if below(number)}


def data(arguments: argparse.Namespace) -> dict[str, Any]:
    """Both, in turns."""
    rates: dict[str, list[float]] = {"bare": [], "ray": []}
    cpu: dict[str, list[float]] = {"bare": [], "ray": []}
    services = []
    for _ in range(arguments.rounds):
        alone = bare_shares(arguments)
        actors, busy = ray_shares(arguments)
        services.append(busy)
        for name, shares in (("bare", alone), ("ray", actors)):
            rates[name].append(rate(shares))
            cpu[name].append(sum(each.cpu for each in shares) / len(shares))
        print(json.dumps({**rates, "services": services}), file=sys.stderr, flush=True)
    ratios = [ray / one for ray, one in zip(rates["ray"], rates["bare"])]
    return {
        **{name: round(statistics.median(each), 1) for name, each in rates.items()},
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(each, 3) for each in ratios],
        "engine_cpu": {name: round(statistics.median(each), 2) for name, each in cpu.items()},
        "services": round(statistics.median(services), 3),
    }


def turn(chat: int, number: int) -> str:
    """What a user says: some 150 tokens that no other chat has."""
    said = [WORDS[(chat * 7 + number * 3 + at * (chat % 5 + 1)) % len(WORDS)] for at in range(110)]
    return f"Chat {chat}, part {number}: " + " ".join(said)


def ids(chat: int, number: int, arguments: argparse.Namespace) -> list[int]:
    """Token ids that no other chat has."""
    count = arguments.more if number else arguments.history
    return [300 + (chat * 8191 + number * 331 + at * (chat % 7 + 1)) % 40000 for at in range(count)]


async def chats(arguments: argparse.Namespace) -> tuple[float, float]:
    """(mean milliseconds to the first token, share of the prompts' tokens found in the cache), of
    all turns but the first.
    """
    import httpx

    firsts: list[float] = []
    cached = size = 0
    talks: list[list[Any]] = [[] for _ in range(arguments.chats)]
    gate = asyncio.Semaphore(arguments.at_once)
    limits = httpx.Limits(max_connections=arguments.at_once)
    path = "chat/completions" if arguments.model is None else "completions"
    url = f"http://127.0.0.1:{PORT}/v1/{path}"
    async with httpx.AsyncClient(timeout=300, limits=limits) as client:

        async def one(chat: int, number: int) -> None:
            nonlocal cached, size
            if arguments.model is None:
                talks[chat].append({"role": "user", "content": turn(chat, number)})
                asked = {"messages": talks[chat]}
            else:
                talks[chat] += ids(chat, number, arguments)
                asked = {"prompt": talks[chat]}
            body = {
                **asked,
                "max_tokens": 4,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            text, first = "", 0.0
            async with gate:
                begun = time.perf_counter()
                async with client.stream("POST", url, json=body) as got:
                    async for line in got.aiter_lines():
                        first = first or time.perf_counter() - begun
                        if not line.startswith("data: {"):
                            continue
                        event = json.loads(line[6:])
                        for choice in event["choices"]:
                            text += choice.get("delta", {}).get("content") or ""
                        usage = event.get("usage")
            if arguments.model is None:
                talks[chat].append({"role": "assistant", "content": text})
            if number:
                firsts.append(first)
                cached += usage["prompt_tokens_details"]["cached_tokens"]
                size += usage["prompt_tokens"]

        for number in range(arguments.turns):
            await asyncio.gather(*(one(chat, number) for chat in range(arguments.chats)))
    return 1e3 * statistics.mean(firsts), cached / size


def routing(arguments: argparse.Namespace) -> dict[str, Any]:
    """Both routers, in turns, each over replicas that know nothing yet."""
    from ray import serve

    from oxillama.integrations.ray import build_app

    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    found: dict[str, list[tuple[float, float]]] = {"prefix": [], "serve": []}
    for _ in range(arguments.rounds):
        for name in found:
            made = build_app(
                model=arguments.model,
                replicas=2,
                memory=memory_of(arguments.model),
                # room for every chat in each replica: what differs is where they go
                engine={"prefix_max_bytes": 1 << 30},
                prefix_routing=name == "prefix",
                server={"log_requests": False},
            )
            serve.run(made, name="measured", route_prefix="/")
            found[name].append(asyncio.run(chats(arguments)))
            serve.delete("measured")
            print(json.dumps(found), file=sys.stderr, flush=True)
    serve.shutdown()
    firsts = {name: statistics.median(each[0] for each in rounds) for name, rounds in found.items()}
    return {
        "first_token_ms": {name: round(each, 1) for name, each in firsts.items()},
        "cached": {name: round(rounds[-1][1], 3) for name, rounds in found.items()},
        "ratio": round(firsts["serve"] / firsts["prefix"], 2),
    }


def main() -> None:
    """Measure one of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("data")
    one.add_argument("--prompts", type=int, default=2000)
    one.add_argument("--tokens", type=int, default=96)
    one.add_argument("--engines", type=int, default=2)
    one.add_argument("--batch", type=int, help="rows of a call, else the default")
    one.add_argument("--model", help="a GGUF file, else the embedded model")
    one.add_argument("--rounds", type=int, default=5)
    one.set_defaults(measure=data)
    other = commands.add_parser("routing")
    other.add_argument("--chats", type=int, default=200)
    other.add_argument("--turns", type=int, default=5)
    other.add_argument("--at-once", type=int, default=8)
    other.add_argument("--model")
    other.add_argument("--history", type=int, default=1000)
    other.add_argument("--more", type=int, default=100)
    other.add_argument("--rounds", type=int, default=2)
    other.set_defaults(measure=routing)
    arguments = parser.parse_args()
    import ray
    from ray.cluster_utils import Cluster

    node: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80 << 20, "memory": 2 << 30}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    cluster.add_node(**node)
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.wait_for_min_actors_s = 300  # loading is left out
    try:
        print(json.dumps(arguments.measure(arguments)))
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
