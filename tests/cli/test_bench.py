"""`oxillama bench` measures what a context holds, and nothing else."""

import pytest

from oxillama.cli import main


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("-p", 17), "a prompt of 17 tokens"),
        (("-p", 10**15), f"a prompt of {10**15} tokens"),
        (("-d", 13), "4 tokens at depth 13"),
        (("-n", 16), "16 tokens at depth 12"),
        (("-d", 10**15), f"4 tokens at depth {10**15}"),
    ],
)
def test_more_than_the_context_holds_is_refused_before_anything_runs(capsys, asked, words):
    options = {"-c": 16, "-p": 16, "-n": 4, "-d": 12, "-r": 1, "-t": 1, **dict([asked])}
    assert main(["bench", *(str(word) for pair in options.items() for word in pair)]) == 1
    assert capsys.readouterr().err == (
        f"oxillama: bench: found {words}, the context holds 16: wanted fewer, or a larger "
        "context (-c)\n"
    )


def test_a_full_context_is_measured(capsys):
    assert main(["bench", "-c", "16", "-p", "16", "-n", "4", "-d", "12", "-r", "1", "-t", "1"]) == 0
    assert "tg_tps" in capsys.readouterr().out
