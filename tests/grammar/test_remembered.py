"""What compilation remembers for the next grammar takes bounded memory, whatever clients send."""

import random
import threading
import tracemalloc

from oxillama.grammar import Grammar
from oxillama.grammar.regex import search_automaton
from oxillama.grammar.regular import Dfa
from oxillama.grammar.remembered import remembered


def test_the_results_asked_for_last_are_kept_as_far_as_their_bytes_fit():
    made = []

    @remembered(100, weigh=lambda result, name, size: size)
    def make(name, size):
        """Says what it makes."""
        made.append(name)
        return object()

    one, two = make("one", 40), make("two", 40)
    assert make("one", 40) is one  # so that "two" was asked for longest ago
    make("three", 40)
    assert make("one", 40) is one and made == ["one", "two", "three"]
    assert make("two", 40) is not two
    heavy = make("heavy", 1000)  # alone, until the next one comes
    assert make("heavy", 1000) is heavy
    make("light", 1)
    assert make("heavy", 1000) is not heavy
    assert make.__doc__ == "Says what it makes."


def test_a_result_that_failed_is_not_remembered():
    calls = []

    @remembered(100, weigh=lambda result, name: 1)
    def make(name):
        calls.append(name)
        if len(calls) == 1:
            raise KeyError(name)
        return name

    for wanted in ("KeyError", "one", "one"):
        try:
            assert make("one") == wanted
        except KeyError as error:
            assert type(error).__name__ == wanted
    assert calls == ["one", "one"]


def test_bytes_are_counted_once_however_many_threads_make_the_same():
    ready, calls = threading.Barrier(4), []

    @remembered(100, weigh=lambda result, name: 30)
    def make(name):
        if name == "same":
            ready.wait(60)
        calls.append(name)
        return name

    threads = [threading.Thread(target=make, args=("same",)) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for name in ("two", "three", "same", "two", "three"):
        make(name)
    assert calls == ["same"] * 4 + ["two", "three"]


def test_the_bytes_of_an_automaton_are_those_it_takes():
    # so many letters and lengths that the table is most of it
    text = "^(?:" + "|".join(chr(0x4E00 + 2 * i) * (i % 7 + 2) for i in range(200)) + ")$"
    dfa = search_automaton(text)
    assert dfa.moves.nbytes < dfa.nbytes < 2 * dfa.moves.nbytes
    assert Dfa.everything().nbytes < 2048


def test_classes_of_many_ranges_are_not_kept_for_every_grammar():
    rng = random.Random(3)

    def grammar():
        letters = rng.sample(range(0x3400, 0x9000, 2), 400)
        Grammar.parse(f"root ::= [{''.join(map(chr, letters))}]")

    grammar()
    tracemalloc.start()
    try:
        for _ in range(30):
            grammar()
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 3 << 19
