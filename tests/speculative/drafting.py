"""Requests that a second model drafts for, over null programs, and a drafter of a known text."""

import random

from oxillama.sampling import SamplerConfig
from oxillama.speculative.types import Candidates, Draft
from oxillama.speculative.vocabularies import Alignment
from tests.engine.null import VOCAB, NullProgram, request

SEEDED = SamplerConfig(temperature=1.0, top_k=20, seed=11)
SAME = Alignment(VOCAB, VOCAB)


class Other(NullProgram):
    """A model that agrees with the null program about half of the time."""

    def step(self, batch, memory, *, output="logits", cancel=None):
        out = super().step(batch, memory, output=output, cancel=cancel)
        out[batch.positions[batch.wanted] % 2 == 1] *= -1
        return out


class Guesser:
    """Drafts `count` tokens of a known text, some of them wrong."""

    def __init__(self, text, right=0.7, count=4, vocab=VOCAB):
        self.text, self.right, self.count, self.vocab = text, right, count, vocab
        self.random, self.counts = random.Random(2), []

    def open(self, session):
        return None

    def propose(self, asks):
        out = []
        for ask in asks:
            at, most = len(ask.session.tokens), min(self.count, ask.most)
            tokens = self.text[at : at + most]
            self.counts.append(most)
            wrong = [self.random.random() >= self.right for _ in tokens]
            out.append(Draft([(t + w) % self.vocab for t, w in zip(tokens, wrong)]))
        return out

    def close(self, state, session):
        pass


def run(target, drafter, prompt, **more):
    """A finished request that a model drafts for."""
    return submitted(target, drafter, prompt, **more).result(60)


def submitted(target, drafter, prompt, *, costs=None, most=4, **more):
    """A request that a model drafts for, on its way."""
    made = request(target, prompt, **more)
    made.speculation = target.speculator.speculation(
        Candidates(drafter, most, adaptive=costs is not None), made.session, costs=costs
    )
    return target.submit(made)
