"""What grammars leave to Python's garbage collector, and its pause during a compilation."""

import gc
import threading

import pytest

from oxillama.grammar import Grammar, JsonSchemaCompiler, TokenMasker
from oxillama.grammar.collector import paused_collector


@pytest.fixture
def collector():
    was = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was else gc.disable)()


def test_a_block_inside_another_does_not_end_its_pause(collector):
    with paused_collector():
        assert not gc.isenabled()
        with paused_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_ends_the_pause(collector):
    with pytest.raises(ValueError, match="inside"), paused_collector():
        raise ValueError("inside")
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off(collector):
    gc.disable()
    with paused_collector():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_the_thread_that_paused_it_resumes_it(collector):
    inside, leave = threading.Event(), threading.Event()

    def later():
        with paused_collector():
            inside.set()
            assert leave.wait(60)

    with paused_collector():
        thread = threading.Thread(target=later)
        thread.start()
        assert inside.wait(60)
    assert gc.isenabled()  # although the other block still runs
    leave.set()
    thread.join(60)
    assert gc.isenabled()


def test_a_compilation_pauses_and_resumes_it(collector):
    seen = []

    class Watched(dict):
        def __iter__(self):
            seen.append(gc.isenabled())
            return super().__iter__()

        def items(self):
            seen.append(gc.isenabled())
            return super().items()

    JsonSchemaCompiler().compile(Watched(type="string"))
    assert seen
    assert not any(seen)
    assert gc.isenabled()


@pytest.mark.parametrize("deep", [False, True])
def test_a_grammar_is_freed_without_the_collector(collector, deep):
    """With rules written at once or as they are called: no object refers to itself by others."""
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    if deep:
        schema["properties"]["b"] = {"$ref": "#"}
    masker = TokenMasker([bytes([b]) for b in range(256)])

    def use(grammar):
        state = masker.state(grammar)
        for byte in b'{"a":"':
            state.mask()
            masker.advance(state, byte)

    for make in (lambda: JsonSchemaCompiler().compile(schema), lambda: Grammar.from_regex("a+b")):
        gc.collect()
        gc.disable()
        grammar = make()
        if grammar.matches(b'{"a":"x"}'):
            use(grammar)
        del grammar
        assert gc.collect() == 0
        gc.enable()


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "array", "items": {"type": ["string", "null"]}, "uniqueItems": True}, '["a"]'),
        ({"type": "object", "minProperties": 2}, '{"a":1,"b":2}'),
        (
            {"type": "object", "patternProperties": {"^[a-c]": {}}, "minProperties": 2},
            '{"a":1,"b":2}',
        ),
    ],
)
@pytest.mark.parametrize("deep", [False, True])
def test_a_grammar_of_distinct_values_is_freed_without_the_collector(collector, schema, text, deep):
    if deep:
        schema, text = {"properties": {"a": schema}, "required": ["a"]}, f'{{"a":{text}}}'
    gc.collect()
    gc.disable()
    grammar = JsonSchemaCompiler().compile(schema)
    assert grammar.matches(text)
    del grammar
    assert gc.collect() == 0
