"""What stands between a caller's options and a request: constraints are kept by what they ask for, counts must agree."""
import dataclasses

import pytest

import oxillama
from oxillama import BeamSearchConfig, ConfigError, SamplerConfig

HELD = SamplerConfig.greedy(min_tokens=8)


@pytest.fixture(scope="module")
def engine():
    with oxillama.load(num_threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def words(engine):
    return engine._loaded.words


def test_a_dataclass_made_anew_under_its_old_name_has_its_own_schema(words):
    texts = '{"old":true}', '{"new":true}'
    grammars = [words.grammar(oxillama.Options(json_schema=dataclasses.make_dataclass("Answer", [(name, bool)]))) for name in ("old", "new")]
    assert [[grammar.matches(text) for text in texts] for grammar in grammars] == [[True, False], [False, True]]


def test_a_schema_asked_for_again_is_compiled_once(words):
    Answer = dataclasses.make_dataclass("Answer", [("kept", bool)])
    assert words.grammar(oxillama.Options(json_schema=Answer)) is words.grammar(oxillama.Options(json_schema=Answer))


@pytest.mark.parametrize(("door", "options"), [
    ("generate", dict(max_tokens=7)), ("stream", dict(max_tokens=7)), ("generate", dict(max_tokens=7, n=2)),
    ("beam_generate", dict(config=BeamSearchConfig(max_new_tokens=7))),
])
def test_fewer_tokens_at_most_than_at_least_are_refused(engine, door, options):
    with pytest.raises(ConfigError, match="^min_tokens: found 8 still to come, wanted no more than the 7"):
        getattr(engine, door)("Once", sampler=HELD, **options)


def test_tokens_that_a_session_has_drawn_count_towards_the_least(engine):
    session = engine.session()
    assert len(engine.generate("Once", session=session, max_tokens=8, sampler=HELD).tokens) == 8
    assert len(engine.generate(None, session=session, max_tokens=2).tokens) == 2
    session.close()


def test_a_grammar_whose_text_is_whole_ends_it_before_the_least_tokens(engine):
    done = engine.generate("Once", choices=["cat"], sampler=HELD)
    assert (done.text, done.finish_reason, len(done.tokens) < 8) == ("cat", "stop", True)
