"""What stands between a caller's options and a request: constraints are kept by what they ask for."""
import dataclasses

import pytest

import oxillama


@pytest.fixture(scope="module")
def words():
    with oxillama.load(num_threads=1) as engine:
        yield engine._loaded.words


def test_a_dataclass_made_anew_under_its_old_name_has_its_own_schema(words):
    texts = '{"old":true}', '{"new":true}'
    grammars = [words.grammar(oxillama.Options(json_schema=dataclasses.make_dataclass("Answer", [(name, bool)]))) for name in ("old", "new")]
    assert [[grammar.matches(text) for text in texts] for grammar in grammars] == [[True, False], [False, True]]


def test_a_schema_asked_for_again_is_compiled_once(words):
    Answer = dataclasses.make_dataclass("Answer", [("kept", bool)])
    assert words.grammar(oxillama.Options(json_schema=Answer)) is words.grammar(oxillama.Options(json_schema=Answer))
