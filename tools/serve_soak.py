#!/usr/bin/env python3
"""Clients that come and go: every answer is held against the same request alone, while memory, file
descriptors and the time of /health are watched.

    tools/serve_soak.py [--clients 500] [--seconds 600] [--at-once 32]

The server is a process of its own over the embedded model. Some clients leave in the middle of
their answer; a prompt of 100,000 characters is tokenised, and refused, every second. Prints one
JSON object; the exit code is 1 where a bar is not met (an answer that differs, a file descriptor
that is lost, a p99 of /health above 100 ms, memory that grew by more than a fifth after the first
third).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import socket
import subprocess
import sys
import time

PROMPTS = ("Once upon a time", "A dog", "The fox said", "There was a", "One winter morning")


async def ask(
    port: int, method: str, path: str, body: object = None, *, leave: bool = False
) -> tuple[int, bytes]:
    """(status, body) of one request on its own connection; `leave` goes after the first bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        data = b"" if body is None else json.dumps(body).encode()
        writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
            "Connection: close\r\n\r\n".encode()
            + data
        )
        if leave:
            await reader.read(64)
            return 0, b""
        found = await reader.read()
        head, _, rest = found.partition(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]), rest
    finally:
        writer.close()


def text_of(chunks: bytes) -> str:
    """The text of a streamed completion."""
    out = ""
    for line in chunks.decode().splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                out += choice["text"]
    return out


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def soak(port: int, pid: int, clients: int, seconds: float, at_once: int) -> dict:
    """Run the clients; what was seen."""
    bodies = [
        {"prompt": prompt, "seed": seed, "max_tokens": 8 + 4 * seed}
        for prompt in PROMPTS
        for seed in range(6)
    ]
    alone = []
    for body in bodies:
        status, found = await ask(port, "POST", "/v1/completions", body)
        assert status == 200, found
        alone.append(json.loads(found)["choices"][0]["text"])
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    end = time.monotonic() + seconds
    # in a process of its own, which does nothing else: what this loop is busy with is not measured
    watcher = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        "--watch",
        str(port),
        "--seconds",
        str(seconds),
        stdout=asyncio.subprocess.PIPE,
    )
    seen = {"answers": 0, "left": 0, "refused": 0, "wrong": 0, "long": 0}
    memory: list[int] = []
    places = asyncio.Semaphore(at_once)

    async def client(number: int) -> None:
        chance = random.Random(number)
        while time.monotonic() < end:
            at = chance.randrange(len(bodies))
            leaves, streams = chance.random() < 0.2, chance.random() < 0.5
            async with places:
                try:
                    status, found = await ask(
                        port,
                        "POST",
                        "/v1/completions",
                        {**bodies[at], "stream": streams},
                        leave=leaves,
                    )
                except OSError:
                    seen["wrong"] += 1
                    continue
            if leaves:
                seen["left"] += 1
            elif status == 429:
                seen["refused"] += 1
            else:
                body = found.partition(b"\r\n")[2] if streams else found
                text = text_of(body) if streams else json.loads(found)["choices"][0]["text"]
                seen["answers"] += 1
                seen["wrong"] += status != 200 or text != alone[at]
            await asyncio.sleep(chance.random())

    async def watch() -> None:
        while time.monotonic() < end:
            memory.append(resident(pid))
            await asyncio.sleep(0.2)

    async def long_prompts() -> None:
        body = {"content": "hello world, " * 7700}
        while time.monotonic() < end:
            status, _ = await ask(port, "POST", "/tokenize", body)
            seen["wrong"] += status != 200
            status, _ = await ask(port, "POST", "/v1/completions", {"prompt": body["content"]})
            seen["wrong"] += status != 400
            seen["long"] += 1
            await asyncio.sleep(1)

    await asyncio.gather(watch(), long_prompts(), *(client(each) for each in range(clients)))
    health = sorted(json.loads((await watcher.communicate())[0]))
    await asyncio.sleep(2)
    third = memory[len(memory) // 3 :]
    return {
        **seen,
        "health_p50_ms": round(health[len(health) // 2] * 1e3, 1),
        "health_p99_ms": round(health[int(len(health) * 0.99)] * 1e3, 1),
        "descriptors_before": descriptors,
        "descriptors_after": len(os.listdir(f"/proc/{pid}/fd")),
        "memory_mib": [round(each / 2**20) for each in (memory[0], third[0], third[-1])],
    }


def watch_health(port: int, seconds: float) -> list[float]:
    """Seconds that each /health took, asked twenty times a second on a connection of its own."""
    out, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        with socket.create_connection(("127.0.0.1", port)) as made:
            made.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert made.recv(4096).startswith(b"HTTP/1.1 200")
        out.append(time.perf_counter() - began)
        time.sleep(0.05)
    return out


def main() -> int:
    """Parse, run, judge."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--at-once", type=int, default=32, help="clients that ask at one time")
    parser.add_argument("--watch", type=int, metavar="PORT", help="measure /health alone")
    given = parser.parse_args()
    if given.watch:
        print(json.dumps(watch_health(given.watch, given.seconds)))
        return 0
    server = subprocess.Popen(
        [sys.executable, "-m", "oxillama", "serve", "--port", "0", "--no-log-requests"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        port = int(re.search(r":(\d+)$", server.stderr.readline().strip())[1])
        while b'"ok"' not in asyncio.run(ask(port, "GET", "/health"))[1]:
            time.sleep(0.05)
        found = asyncio.run(soak(port, server.pid, given.clients, given.seconds, given.at_once))
    finally:
        server.terminate()
        code = server.wait(60)
    found["exit_code"] = code
    print(json.dumps(found))
    first, last = found["memory_mib"][1:]
    good = (
        not found["wrong"]
        and found["descriptors_after"] <= found["descriptors_before"]
        and found["health_p99_ms"] < 100
        and last <= 1.2 * first
        and code == 0
    )
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
