"""The server's log: what happens where nobody reads it."""

import json
import os
import threading

import pytest

from oxillama.server.logs import BackgroundStream, Log

LONG = "x" * 4096  # some of these are more than a pipe holds


def _read_all(descriptor: int) -> list[dict]:
    with os.fdopen(descriptor) as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize("bounds", [{"most": 2}, {"most_bytes": 10_000}])
def test_lines_that_nobody_reads_are_dropped_and_counted(bounds):
    reading, writing = os.pipe()
    stream = BackgroundStream(writing, **bounds)
    log = Log(stream)
    for number in range(200):
        log.event("e", number=number, text=LONG)
    came: list[dict] = []
    reader = threading.Thread(target=lambda: came.extend(_read_all(reading)))
    reader.start()
    stream.close(60)
    os.close(writing)
    reader.join()
    # each line is there or counted where it would have been, whenever the writer had its turn
    number = 0
    for each in came:
        if each["event"] == "e":
            assert each["number"] == number
        number += each.get("lines", 1)
    assert number == 200
    assert 0 < sum(each["event"] == "e" for each in came) < 60
    assert all(each["time"] for each in came)


def test_every_line_is_written_or_counted_where_threads_write_at_once():
    reading, writing = os.pipe()
    stream = BackgroundStream(writing, most=3)
    log = Log(stream)
    came: list[dict] = []
    reader = threading.Thread(target=lambda: came.extend(_read_all(reading)))
    reader.start()
    writers = [
        threading.Thread(target=lambda: [log.event("e", text=LONG) for _ in range(500)])
        for _ in range(4)
    ]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    stream.close(60)
    os.close(writing)
    reader.join()
    assert sum(each.get("lines", 1) for each in came) == 2000


def test_a_line_longer_than_the_queue_is_written_where_nothing_waits():
    reading, writing = os.pipe()
    stream = BackgroundStream(writing, most_bytes=10)
    Log(stream).event("e", text="longer than ten bytes")
    stream.close(60)
    os.close(writing)
    assert [each["text"] for each in _read_all(reading)] == ["longer than ten bytes"]
