"""Microseconds per drawn token at a vocabulary of 128,256: the default chain (bar: 60 us), and each
kind of chain alone.
"""

import numpy as np

from oxillama.sampling import Sampler, SamplerConfig

VOCAB = 128256
CHAINS = {
    "default": SamplerConfig(seed=1),
    "greedy": SamplerConfig.greedy(),
    "temperature": SamplerConfig(seed=1, top_k=0, top_p=1, repetition_penalty=1),
    "top_p": SamplerConfig(seed=1, top_k=0),
    "min_p": SamplerConfig(seed=1, top_k=0, top_p=1, min_p=0.1),
    "typical": SamplerConfig(seed=1, top_k=0, top_p=1, typical_p=0.9),
    "mirostat_v2": SamplerConfig.mirostat_v2(seed=1),
    "dry": SamplerConfig(seed=1, dry_multiplier=0.8, dry_sequence_breakers=()),
    "flat": SamplerConfig(seed=1, temperature=50, top_k=0, samplers=("temperature", "top_p")),
}


class Sample:
    """One draw; 16 rows in turn, so that a row is not in the first cache, after a prompt of 64
    tokens.
    """

    params = list(CHAINS)
    param_names = ["chain"]

    def setup(self, chain):
        rng = np.random.default_rng(0)
        self.rows = (rng.standard_normal((16, VOCAB)) * 3).astype(np.float32)
        self.mask = np.full(VOCAB // 32, 0xFFFFFFFF, np.uint32)
        self.sampler = Sampler(CHAINS[chain], VOCAB)
        self.sampler.accept_prompt(np.arange(64))
        self.turn = 0

    def time_sample(self, chain):
        self.turn = (self.turn + 1) % 16
        self.sampler.sample(self.rows[self.turn])

    def time_sample_masked(self, chain):
        self.turn = (self.turn + 1) % 16
        self.sampler.sample(self.rows[self.turn], self.mask)


class Ledger:
    """What a request costs beside its draws."""

    def setup(self):
        self.sampler = Sampler(SamplerConfig(seed=1), VOCAB)
        self.sampler.accept_prompt(np.arange(64))

    def time_accept(self):
        self.sampler.accept(7)

    def time_fork(self):
        self.sampler.fork()

    def time_state(self):
        self.sampler.state()
