"""The law of judged candidates: pairs of tokens that come out of the acceptance code follow the
target's own chain, grammar and history.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from oxillama.grammar import Grammar, TokenMasker
from oxillama.sampling import Sampler, SamplerConfig
from oxillama.speculative.request import RequestSpeculation
from oxillama.speculative.types import Candidates, Draft, NoCandidates

VOCAB, PAIRS = 12, 50_000  # two tokens each: 10^5 draws
LETTERS = [bytes([byte]) for byte in b"abcdefghijkl"]
FREE = SamplerConfig(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0)
PENALISED = FREE.replace(repetition_penalty=1.4, frequency_penalty=0.3, presence_penalty=0.5)
RULES = 'root ::= [a-d] [c-h] | [e-g] [e-l] | "h" "h"'
PROMPT = [0, 4, 4, 7]


def logits(seed: int) -> np.ndarray:
    """(1 + VOCAB, VOCAB): after the prompt, then after each first token."""
    return (1.5 * np.random.default_rng(seed).standard_normal((1 + VOCAB, VOCAB))).astype(
        np.float32
    )


def masks(rules: str | None) -> list:
    """Of the first token, then after each; None where there is no grammar or the token cannot
    come.
    """
    if rules is None:
        return [None] * (1 + VOCAB)
    masker = TokenMasker(LETTERS)
    state = masker.state(Grammar.parse(rules))
    first, out = masker.mask(state), [masker.mask(state)]
    for token in range(VOCAB):
        after = state.fork()
        if first[0] >> token & 1:
            masker.advance(after, token)
        out.append(masker.mask(after) if first[0] >> token & 1 else None)
    return out


def chain(config: SamplerConfig, rows: np.ndarray, bits: list) -> list:
    """The distribution of the first token, then of the second after each; None after one that
    cannot come.
    """
    sampler = Sampler(config, VOCAB, seed=1)
    sampler.accept_prompt(PROMPT)
    first = sampler.distribution(rows[0], bits[0])
    out = [first] + [None] * VOCAB
    for token in first.ids.tolist():
        after = sampler.fork()
        after.accept(token)
        out[1 + token] = after.distribution(rows[1 + token], bits[1 + token])
    return out


@pytest.mark.parametrize(
    "config, rules", [(FREE, RULES), (PENALISED, None)], ids=["grammar", "penalties"]
)
def test_pairs_of_judged_candidates_follow_the_targets_own_chain(config, rules):
    """Chi-square over 10^5 draws. A pair is drafted by a sampler of other logits and another
    temperature; what does not stand is drawn.
    """
    bits, rows = masks(rules), logits(1)
    others = chain(config.replace(temperature=1.6), logits(2), bits)
    target, draft = Sampler(config, VOCAB, seed=3), Sampler(config, VOCAB, seed=4)
    speculation = RequestSpeculation(Candidates(NoCandidates(), adaptive=False, drawn=True), None)
    request = SimpleNamespace(entry=SimpleNamespace(draft=()), stop_ids=frozenset())
    ask = SimpleNamespace(most=2, costs=None)
    counts = np.zeros((VOCAB, VOCAB))
    for _ in range(PAIRS):
        token = draft.sample_from(others[0])
        shares = [others[0], others[1 + token]]
        speculation.offer_drawn(request)
        assert not request.entry.draft  # the last pair is judged to its end
        speculation.offer(
            request, ask, Draft([token, draft.sample_from(shares[1])], None, shares), VOCAB
        )
        target.set_history(PROMPT, generated=0)
        first = speculation.draw(target, rows[0], bits[0])
        target.accept(first)
        counts[first, speculation.draw(target, rows[1 + first], bits[1 + first])] += 1
    own, expected = chain(config, rows, bits), np.zeros((VOCAB, VOCAB))
    for token, share in zip(own[0].ids.tolist(), own[0].shares):
        expected[token, own[1 + token].ids] = share * own[1 + token].shares * PAIRS
    assert not counts[expected == 0].any()
    assert statistic_of(counts, expected) < 1
    # the draft's own law is seen to be another
    assert statistic_of(drafted(others), expected) > 5


def drafted(others: list) -> np.ndarray:
    """Counts that would come if every candidate stood."""
    out = np.zeros((VOCAB, VOCAB))
    for token, share in zip(others[0].ids.tolist(), others[0].shares):
        out[token, others[1 + token].ids] = share * others[1 + token].shares * PAIRS
    return out


def statistic_of(counts: np.ndarray, expected: np.ndarray) -> float:
    """Chi-square of the pairs against its 1 - 1e-6 quantile (Wilson and Hilferty 1931); pairs
    expected less than 5 times count as one.
    """
    rare = expected < 5
    seen, wanted = (np.append(each[~rare], each[rare].sum()) for each in (counts, expected))
    seen, wanted = seen[wanted > 5], wanted[wanted > 5]
    freedom = len(wanted) - 1
    return ((seen - wanted) ** 2 / wanted).sum() / (
        freedom * (1 - 2 / (9 * freedom) + 4.7534 * np.sqrt(2 / (9 * freedom))) ** 3
    )
