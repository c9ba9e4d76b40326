"""The index of all texts: what followed the longest run that ends a text, found in that text or in
another, within bounds.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oxillama
from oxillama._core.lookup import IndexedText, StepCosts, TextIndex, Watcher
from oxillama.speculative.choices import FirstOf
from oxillama.speculative.costs import CostLedger
from oxillama.speculative.grammar import ForcedText
from oxillama.speculative.lookup import LookupDrafter, LookupSpeculation
from oxillama.speculative.types import Candidates
from tests.engine.null import core, request, solo
from tests.model import tiny

CHANCES = [0.3, 0.5, 0.7, 0.8, 0.9] * 2


def learned(tokens, index=None):
    """A text of an index, read token by token."""
    text, read = IndexedText(index or TextIndex(), CHANCES), []
    for token in tokens:
        read.append(token)
        text.learn(read)
    return text


def test_what_followed_the_longest_run_last_is_offered():
    text = learned([1, 2, 3, 4, 7, 7, 9, 2, 3, 4, 8, 5, 1, 2, 3, 4])
    assert text.offer(3)[0] == [7, 7, 9]  # 9 2 3 4 is newer and shorter
    text = learned([2, 3, 7, 1, 9, 2, 3, 8, 5, 2, 3])
    assert text.offer(2)[0] == [8, 5]  # of equal runs the newest


def test_a_text_that_goes_in_circles_is_continued_beyond_its_end():
    assert learned([4, 5, 6] * 3).offer(7)[0] == [4, 5, 6, 4, 5, 6, 4]


def test_another_text_is_offered_as_far_as_it_goes():
    index = TextIndex()
    learned([1, 2, 3, 4, 5, 6], index)
    assert learned([9, 2, 3, 4], index).offer(8)[0] == [5, 6]
    assert learned([9, 2, 3, 4]).offer(8) == ([], [])  # in an index of its own


def test_a_token_that_never_followed_anything_offers_nothing():
    assert learned([1, 2, 3, 4, 5]).offer(4) == ([], [])
    assert learned([1]).offer(4) == ([], [])


def test_acceptance_is_learned_for_each_length_of_a_run():
    text = learned([1, 2, 3, 1, 2, 8, 1, 2])  # 1 2 was followed by 3, then by 8
    assert text.chances[0] == (0.95 * 0.3 + 0) / 1.95 and text.chances[1:] == CHANCES[1:]
    circles = learned([1, 2, 3, 4, 5] * 40).chances
    assert circles[4] > 0.99 and circles[5:] == CHANCES[5:]


def test_a_run_that_candidates_make_longer_has_the_chances_of_longer_runs():
    text = IndexedText(TextIndex(), CHANCES)
    text.learn([1, 2, 3, 4, 5, 6, 7, 1, 2])  # at once: as a prompt, of which nothing is judged
    assert text.offer(4) == ([3, 4, 5, 6], [0.3, 0.5, 0.5, 0.7])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 12), st.sampled_from([64, 300, 4096]))
def test_offers_are_what_a_search_of_all_texts_finds(seed, vocab, most):
    """Texts that grow, are cut and end, in an index of any size: an offer continues a run of two
    tokens or more that occurred in some text."""
    rng = random.Random(seed)
    index, texts, runs = TextIndex(most), [], set()
    for _ in range(300):
        if not texts or rng.random() < 0.05:
            texts.append((IndexedText(index, CHANCES), []))
        text, tokens = rng.choice(texts)
        if rng.random() < 0.05 and tokens:
            del tokens[rng.randrange(len(tokens)) :]
            text.learn(tokens)  # what was cut is told from what follows by one token alone
        new = max(0, len(tokens) - 2)
        tokens += [rng.randrange(vocab) for _ in range(rng.choice([1, 1, 1, 5, 40]))]
        text.learn(tokens)
        runs |= {*zip(tokens[new:], tokens[new + 1 :], tokens[new + 2 :])}
        assert index.tokens <= most
        offered = text.offer(3)[0]
        if offered:
            assert (*tokens[-2:], offered[0]) in runs
        if rng.random() < 0.05:
            texts.remove((text, tokens))
            text.close()


def test_the_text_opened_longest_ago_is_dropped():
    index = TextIndex(64)
    first = learned(range(100, 140), index)
    first.close()
    second = learned([*range(200, 230)], index)
    assert index.tokens <= 64
    assert learned([100, 101, 102], index).offer(2)[0] == []
    assert learned([200, 201, 202], index).offer(2)[0] == [203, 204]
    assert second.chances == CHANCES


def test_of_too_many_texts_those_that_are_closed_are_dropped():
    index = TextIndex(most_texts=2)
    first = learned([1, 2, 3], index)
    for at in range(10, 90, 10):
        learned([at, at + 1, at + 2], index).close()
    assert index.tokens == 2 * 3  # one that is open, and the last
    first.learn([1, 2, 3, 9, 80, 81])
    assert first.offer(1)[0] == [82]
    first.learn([1, 2, 3, 9, 80, 81, 70, 71])
    assert first.offer(1)[0] == []


def test_a_text_longer_than_the_index_goes_on_anew():
    text = learned([*range(60), *range(50, 60)], TextIndex(64))
    assert text.offer(3)[0] == []  # it began anew after the 64th token
    assert learned([1, 2, 3] * 50, TextIndex(64)).offer(3)[0] == [1, 2, 3]


def test_a_beginning_that_another_text_has_is_not_stored_twice():
    index, shared = TextIndex(), [3 * each % 1001 for each in range(500)]
    learned(shared, index).close()
    again = IndexedText(index, CHANCES)
    again.learn([*shared, 7, 8, 9])
    assert index.tokens == 500 + 32 + 3
    again.learn([*shared, 7, 8, 9, *shared[:12]])  # of the beginning that only the other has
    assert again.offer(2)[0] == shared[12:14]


def test_looks_rest_where_steps_are_short_and_nothing_is_found():
    class Owner:
        rest = 0

        def found(self, request, sequences, count):
            return True

    class Session:
        tokens = [1, 2, 3]

    class Made:
        session, first_at = Session, 1.5

    for seconds, rest in ((1.0, 0), (2e-4, 3), (1e-6, 7)):
        owner = Owner()
        watcher = Watcher(IndexedText(TextIndex(), CHANCES), StepCosts({1: seconds}), 4, owner)
        assert watcher.wants(Made, 1) is False
        assert (owner.rest, watcher.fallbacks, watcher.since) == (rest, 1 + rest, 1.5)


def test_candidates_that_cost_more_than_they_save_pause_until_the_text_repeats():
    engine = core(prefix=False)
    made = request(engine, [1, 2, 3], max_tokens=60)
    ledger = CostLedger()
    costs = StepCosts({1: 1.0, 17: 1.8})
    speculation = made.speculation = LookupSpeculation(
        Candidates(LookupDrafter()), made.session, 4096, costs=costs, ledger=ledger
    )
    for _ in range(4):
        speculation.verified(accepted=0, rejected=16, bonus=False)
    entry = made.entry = type("Entry", (), {"draft": ()})()
    tokens, given = made.session.tokens, []
    for at in range(60):
        tokens.append(at % 4)
        speculation.wants(made, 1)
        given.append(bool(entry.draft))
    # 3 follows 1 2 again at the fourth token; it and the next seven would have been right
    assert not any(given[:10]) and all(given[10:])
    assert speculation.stats().n1_fallbacks == given.count(False)
    made.speculation = None
    engine.close()


@pytest.mark.parametrize("asked", ["lookup", "auto"])
def test_a_request_that_repeats_another_takes_its_tokens_as_candidates(asked):
    engine = core(prefix=False)
    sessions = []
    for _ in range(2):
        made = request(engine, [3, 1, 4, 1, 5], max_tokens=60)
        made.speculation = engine.speculator.speculation(
            Candidates(engine.speculator.registry.candidates(asked, None).drafter, adaptive=False),
            made.session,
        )
        sessions.append(engine.submit(made).result(60))
    assert [list(each.tokens) for each in sessions] == [solo([3, 1, 4, 1, 5], 60)] * 2
    assert sessions[1].speculation.accepted > 40
    engine.close()


@pytest.mark.parametrize("value", ["auto", "lookup", None, False])
def test_the_engines_config_says_what_requests_without_the_option_get(tmp_path, value):
    saved = oxillama.EngineConfig(speculative=value).to_dict()
    assert saved["speculative"] is value
    assert oxillama.EngineConfig.from_dict(saved).speculative is value
    tiny.write(tmp_path / "m.gguf", "llama")
    options = dict(sampler=oxillama.SamplerConfig.greedy(), max_tokens=60, seed=1)
    assert oxillama.EngineConfig().speculative == "auto"
    with oxillama.load(tmp_path / "m.gguf", num_threads=1, speculative=False) as plain:
        wanted = plain.generate([1, 2, 3], logprobs=2, **options)
        assert not plain.loaded.core.speculator.costs  # nothing is measured for nobody
    with oxillama.load(tmp_path / "m.gguf", num_threads=1, speculative=value) as engine:
        for asked, expected in (({}, value in ("auto", "lookup")), ({"speculative": False}, False)):
            made = engine.submit([1, 2, 3], logprobs=2, **options, **asked)
            assert (made.speculation is not None) is expected
            done = made.result()
            assert (done.tokens, done.logprobs) == (wanted.tokens, wanted.logprobs)
            assert done.speculation is None  # nobody asked for the counts
        asked = engine.generate([1, 2, 3], logprobs=2, speculative="auto", **options)
        assert (asked.tokens, asked.logprobs) == (wanted.tokens, wanted.logprobs)
        assert asked.speculation.total_output_tokens == 60


def test_a_model_that_cannot_drop_candidates_does_not_speculate_unless_asked(cases):
    path = cases / "arch" / "mamba" / "f32.gguf"
    with oxillama.load(path, num_threads=1, speculative="auto") as engine:
        options = dict(temperature=0, max_tokens=12, ignore_eos=True)
        looking = engine.submit([1, 2, 3], **options)
        assert isinstance(looking.speculation, LookupSpeculation)
        engine.loaded.core.states.spares = 0  # as of one whose state is too large
        made = engine.submit([1, 2, 3], **options)
        assert made.speculation is None
        asked = engine.generate([1, 2, 3], speculative="lookup", **options)
        assert asked.tokens == made.result().tokens == looking.result().tokens
        assert asked.speculation.n1_fallbacks == 11


def test_a_request_that_did_not_ask_looks_only_while_it_decodes_alone():
    class Owner:
        rest, asked = 0, []

        def found(self, request, sequences, count):
            self.asked.append(sequences)
            return True

    engine, owner = core(prefix=False), Owner()
    made = request(engine, [4, 5, 6] * 12, max_tokens=1)
    watched = Watcher(IndexedText(TextIndex(), CHANCES), None, 4, owner, alone=True)
    assert not watched.wants(made, 2) and (owner.rest, watched.fallbacks) == (7, 8)
    assert owner.asked == []
    watched.wants(made, 1)
    assert owner.asked == [1]
    asked = Watcher(IndexedText(TextIndex(), CHANCES), None, 4, owner)
    asked.wants(made, 2)
    assert owner.asked == [1, 2]
    engine.close()


def test_by_default_a_grammar_forces_text_and_nothing_is_looked_up():
    with oxillama.load(num_threads=1) as engine:
        registry = engine.loaded.core.speculator.registry
        masker = engine.submit("A", max_tokens=1, grammar='root ::= "a"').masker
        assert isinstance(registry.candidates(None, masker).drafter, ForcedText)
        assert isinstance(registry.candidates("auto", masker).drafter, FirstOf)
        assert isinstance(registry.candidates(None, None).drafter, LookupDrafter)
