#!/usr/bin/env python3
"""Measures what serving costs: the same requests to an engine, and over HTTP to a server.

    serve_clients.py [MODEL.gguf] [-b 16] [-d 128] [-n 128] [-t 2] [-r 5] [--whole]

Each round submits -b requests at once, -d tokens in and -n out each, first to the engine of this
process and then to a server process over the same file, from as many connections; `ratio` is the
median of the rounds' ratios of tokens a second, prompts included. Answers are streamed unless
--whole. The clients parse nothing, since they share the machine with the server. Tokens are drawn at
temperature 1, because what a model of random weights repeats greedily is often a token without text,
which a stream has nothing to send for.
"""

from __future__ import annotations

import argparse
import json
import re
import selectors
import socket
import statistics
import subprocess
import sys
import time

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


def of_server(port: int, given: list[list[int]], count: int, *, stream: bool) -> float:
    """Seconds of a round over HTTP."""
    waiting = selectors.DefaultSelector()
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
    return seconds


def main() -> None:
    """Parse, run, tell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=str(oxillama.embedded_path()))
    for name, default in (("b", 16), ("d", 128), ("n", 128), ("t", 2), ("r", 5)):
        parser.add_argument(f"-{name}", type=int, default=default)
    parser.add_argument("--whole", action="store_true", help="answers in one piece")
    options = parser.parse_args()
    server = subprocess.Popen(
        [sys.executable, "-m", "oxillama", "serve", options.model, "--port", "0"]
        + ["--no-log-requests", "-t", str(options.t), "--parallel", str(max(32, options.b))],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        port = int(re.search(r":(\d+)$", server.stderr.readline().strip())[1])  # type: ignore[index]
        while '"model_loaded"' not in server.stderr.readline():
            pass
        limits = oxillama.SchedulerConfig(
            max_sequences=max(32, options.b), max_batch_sequences=max(32, options.b)
        )
        with oxillama.load(options.model, num_threads=options.t, scheduler=limits) as engine:
            vocab, seconds = engine.config.vocab_size, []
            for number in range(options.r + 1):
                given = prompts(vocab, options.b, options.d, number)
                one = of_engine(engine, given, options.n)
                other = of_server(port, given, options.n, stream=not options.whole)
                seconds.append((one, other))
    finally:
        server.terminate()
        server.wait(60)
    tokens = options.b * options.n
    rounds = seconds[1:]
    print(
        json.dumps(
            {
                "clients": options.b,
                "streamed": not options.whole,
                "engine_tps": round(tokens / statistics.median(one for one, _ in rounds), 1),
                "server_tps": round(tokens / statistics.median(other for _, other in rounds), 1),
                "ratio": round(statistics.median(one / other for one, other in rounds), 3),
            }
        )
    )


if __name__ == "__main__":
    main()
