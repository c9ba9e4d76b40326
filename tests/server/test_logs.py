"""The server's log: what happens where nobody reads it."""

import json
import os

from oxillama.server.logs import BackgroundStream, Log


def test_lines_that_nobody_reads_are_dropped_and_counted():
    reading, writing = os.pipe()
    stream = BackgroundStream(writing, most=2)
    log = Log(stream)
    for number in range(200):
        log.event("e", number=number, text="x" * 4096)  # more than a pipe holds
    with os.fdopen(reading) as lines:
        came = []
        while not came or came[-1]["event"] != "log_dropped":
            came.append(json.loads(lines.readline()))
            log.event("e", number=200)
        told = sum(each["lines"] for each in came if each["event"] == "log_dropped")
        numbers = [each["number"] for each in came if each["event"] == "e"]
        assert told > 0 and numbers == sorted(numbers) and len(set(numbers) - {200}) < 200
    os.close(writing)
