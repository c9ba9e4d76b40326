"""A failed allocation anywhere in a grammar's compilation, masks and states raises MemoryError and
leaves the interpreter, and what stood before, whole.

The C allocator of a child process fails at the nth call from the compiled modules, for every n in
turn.
"""

import sys

import pytest

from tests.refusing import run_refused

CHILD = r"""
import ctypes, sys
from oxillama._core.cursor import collect
from oxillama.grammar import Grammar, JsonSchemaCompiler, TokenMasker

shim = ctypes.CDLL(sys.argv[1])
PIECES = [bytes([b]) for b in range(32, 127)] + [b'","', b'": ', b"abc", b"xyz", None]
SCHEMA = {"type": "object", "properties": {
    "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 600},
    "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
    "required": ["name"], "additionalProperties": {"type": "integer"}}
TEXT = b'{"tags": ["a", "b"], "name": "abc", "z": 1'


def run(masker):
    compiler = JsonSchemaCompiler(whitespace="flexible", order="free")
    state = masker.state(compiler.compile(SCHEMA))
    state.advance(TEXT)
    state.mask()
    twin = state.fork()
    collect(state._cursor.machine)
    twin.advance(b"}")
    return state.mask().tobytes(), twin.is_complete(), Grammar.parse(
        'root ::= ("a" | root "b"){1,30} "c"').matches("abac")


def every(work, only):
    n = 0
    while True:
        shim.fail_at(n, only)
        try:
            out = work()
        except MemoryError:
            out = None
        finally:
            calls = shim.calls_seen()
            shim.fail_at(-1, 1)
        if calls <= n:
            return n, out
        n += 1 if n < 200 else n // 12


kept = TokenMasker(PIECES)
wanted = run(kept)
tries = []
for only in (1, 0):
    tries.append(every(lambda: run(kept), only))
    tries.append(every(lambda: TokenMasker(PIECES).trie.sizes(), only))
assert all(n > 5 for n, _ in tries), tries
assert tries[0][1] == tries[2][1] == wanted

# a state that failed goes on from where it was
grammar = JsonSchemaCompiler(whitespace="flexible", order="free").compile(SCHEMA)
state = kept.state(grammar)
for i in range(len(TEXT)):
    for n in range(30):
        for act in (lambda: collect(state._cursor.machine), lambda: state.advance(TEXT[i : i + 1])):
            before = state.consumed
            shim.fail_at(n, 1)
            try:
                act()
            except MemoryError:
                assert state.consumed == before
            finally:
                shim.fail_at(-1, 1)
            if state.consumed != before:
                break
        else:
            continue
        break
    else:
        state.advance(TEXT[i : i + 1])
assert state.mask().tobytes() == wanted[0]

# what is asked first after a collect that failed is answered as before it
ended = state.fork()
ended.advance(b"}")
facts = {"complete": (False, True), "finished": (False, True), "dead": (False, False)}
failed = 0
for n in range(40):
    for name in (*facts, "key"):
        shim.fail_at(n, 1)
        try:
            collect(grammar._machine)
        except MemoryError:
            failed += 1
        finally:
            shim.fail_at(-1, 1)
        if name == "key":
            assert state.key != ended.key
            assert state.key == state.fork().key
        else:
            found = tuple(getattr(each._cursor, name) for each in (state, ended))
            assert found == facts[name], (n, name, found)
assert failed > 5, failed
print("whole", [n for n, _ in tries])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD is of Linux")
def test_a_failed_allocation_raises_and_breaks_nothing(tmp_path):
    assert run_refused(tmp_path, CHILD).startswith("whole")
