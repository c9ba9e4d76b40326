#!/usr/bin/env python3
"""Measures what serving costs: the same requests to an engine, and over HTTP to a server.

    serve_clients.py [MODEL.gguf] [-b 16] [-d 128] [-n 128] [-t 2] [-r 5] [--whole]
                     [--llama-server PROGRAM]

Each round submits -b requests at once, -d tokens in and -n out each, first to the engine of this
process and then to a server process over the same file, from as many connections; `ratio` is the
median of the rounds' ratios of tokens a second, prompts included. Answers are streamed unless
--whole. With --llama-server a llama.cpp server with as many slots takes the engine's place in each
round; both then also tell the time to the first token that 99 of 100 clients do not exceed. The
clients parse nothing, since they share the machine with the server. Tokens are drawn at temperature
1: what a model of random weights repeats greedily may be a token without text, which a stream has
nothing to send for.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import selectors
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import oxillama

DRAWN = {"temperature": 1.0, "top_k": 40, "top_p": 1.0, "min_p": 0.0, "ignore_eos": True}


def prompts(vocab: int, batch: int, depth: int, number: int) -> list[list[int]]:
    """Prompts that share no beginning, within a round and over rounds."""
    return [
        [(7 * j + 131 * (sequence + 97 * number) + 11) % vocab for j in range(depth)]
        for sequence in range(batch)
    ]


def of_engine(engine: oxillama.InferenceEngine, given: list[list[int]], count: int) -> float:
    """Seconds of a round in this process."""
    begin = time.perf_counter()
    requests = [
        engine.submit(prompt, max_tokens=count, seed=seed, cache_prompt=False, **DRAWN)
        for seed, prompt in enumerate(given)
    ]
    for request in requests:
        found = len(request.result().tokens)
        if found != count:
            raise SystemExit(f"engine: found {found} tokens, wanted {count}")
    return time.perf_counter() - begin


def of_server(
    port: int, given: list[list[int]], count: int, *, stream: bool
) -> tuple[float, float]:
    """Seconds of a round over HTTP, and of the p99 of clients until their first event."""
    waiting, first = selectors.DefaultSelector(), {}
    bodies = [
        json.dumps(
            {
                "prompt": prompt,
                "max_tokens": count,
                "seed": seed,
                **DRAWN,
                "cache_prompt": False,
                "stream": stream,
                **({"stream_options": {"include_usage": True}} if stream else {}),
            }
        ).encode()
        for seed, prompt in enumerate(given)
    ]
    made = [socket.create_connection(("127.0.0.1", port)) for _ in bodies]
    begin = time.perf_counter()
    for connection, body in zip(made, bodies):
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        waiting.register(connection, selectors.EVENT_READ, [])
    left = len(made)
    while left:
        for key, _ in waiting.select():
            data = key.fileobj.recv(1 << 16)
            if data:
                key.data.append(data)
                if key.fileobj not in first and b"data: {" in data:
                    first[key.fileobj] = time.perf_counter() - begin
                continue
            waiting.unregister(key.fileobj)
            left -= 1
            answer = b"".join(key.data)
            if b'"completion_tokens":%d' % count not in answer:
                raise SystemExit(f"server: wanted {count} tokens, found {answer[-300:]!r}")
            if stream and answer.count(b"data: {") < 0.9 * count:
                found = answer.count(b"data: {")
                raise SystemExit(f"server: wanted {count} tokens with text, found {found} events")
    seconds = time.perf_counter() - begin
    for connection in made:
        connection.close()
    waits = sorted(first.values())
    return seconds, waits[len(waits) * 99 // 100] if waits else seconds


@contextlib.contextmanager
def own_server(model: str, clients: int, threads: int) -> Iterator[int]:
    """The port of our server over the model."""
    server = subprocess.Popen(
        [sys.executable, "-m", "oxillama", "serve", model, "--port", "0"]
        + ["--no-log-requests", "-t", str(threads), "--parallel", str(max(32, clients))],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        port = int(re.search(r":(\d+)$", server.stderr.readline().strip())[1])  # type: ignore[index]
        while '"model_loaded"' not in server.stderr.readline():
            pass
        yield port
    finally:
        server.terminate()
        server.wait(60)


@contextlib.contextmanager
def llama_server(
    program: str, model: str, clients: int, threads: int, context: int
) -> Iterator[int]:
    """The port of llama.cpp's server with a slot of `context` tokens for each client."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    health = f"http://127.0.0.1:{port}/health"
    server = subprocess.Popen(
        [program, "-m", model, "--port", str(port), "-t", str(threads), "-fa", "on"]
        + ["-np", str(clients), "-c", str(clients * context)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while True:
            # it answers 503, an OSError, while the model loads
            with contextlib.suppress(OSError), urllib.request.urlopen(health):
                break
            if server.poll() is not None:
                raise SystemExit(f"{program}: ended with {server.returncode}")
            time.sleep(0.2)
        yield port
    finally:
        server.terminate()
        server.wait(60)


def main() -> None:
    """Parse, run, tell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=str(oxillama.embedded_path()))
    for name, default in (("b", 16), ("d", 128), ("n", 128), ("t", 2), ("r", 5)):
        parser.add_argument(f"-{name}", type=int, default=default)
    parser.add_argument("--whole", action="store_true", help="answers in one piece")
    parser.add_argument("--llama-server", metavar="PROGRAM", help="compare with this server")
    options = parser.parse_args()
    tokens, limit = options.b * options.n, max(32, options.b)
    limits = oxillama.SchedulerConfig(max_sequences=limit, max_batch_sequences=limit)
    engine = oxillama.load(options.model, num_threads=options.t, scheduler=limits)
    vocab, rounds = engine.config.vocab_size, []
    with contextlib.ExitStack() as stack:
        stack.enter_context(engine)
        port = stack.enter_context(own_server(options.model, options.b, options.t))
        if options.llama_server:
            context = options.d + options.n + 16
            peer = stack.enter_context(
                llama_server(options.llama_server, options.model, options.b, options.t, context)
            )
        for number in range(options.r + 1):
            given = prompts(vocab, options.b, options.d, number)
            if options.llama_server:
                other = of_server(peer, given, options.n, stream=not options.whole)
            else:
                other = of_engine(engine, given, options.n), 0.0
            rounds.append((other, of_server(port, given, options.n, stream=not options.whole)))
    rounds = rounds[1:]
    name = "llama_server" if options.llama_server else "engine"
    told = {
        "clients": options.b,
        "streamed": not options.whole,
        f"{name}_tps": round(tokens / statistics.median(other[0] for other, _ in rounds), 1),
        "server_tps": round(tokens / statistics.median(ours[0] for _, ours in rounds), 1),
        "ratio": round(statistics.median(other[0] / ours[0] for other, ours in rounds), 3),
    }
    if options.llama_server:
        for at, who in enumerate((name, "server")):
            told[f"{who}_first_p99_s"] = round(statistics.median(pair[at][1] for pair in rounds), 3)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
