"""A draft's output over a part of the vocabulary. The output matrix is much of what a small draft
reads, and most texts use few regions of a large vocabulary (cf. Zhao et al. 2025, FR-Spec).

    tokens of texts --note--> counts by region of 1,024 ids --> the 32 regions with most of them
                                                                (copied rows of the output matrix)

A token outside the list is never a candidate; the target draws from all tokens, so texts stay the
same. Ids that come first are those of frequent tokens in most vocabularies: they are the list until
texts say otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxillama._core.tape import Program
from oxillama.model.drafts import output_matrix, shortened
from oxillama.model.load import Model

REGION = 1024  # tokens
MOST = 32  # regions of a list
# the share of tokens by which another list must be better
BETTER = 0.02
# tokens of texts that the regions of low ids count for before any was seen
_PRIOR = 64.0
_REMEMBERED = 1 << 16  # tokens, after which all counts are halved


class Shortlist:
    """The regions of the vocabulary that a draft of `model` draws from."""

    def __init__(self, model: Model) -> None:
        self._model = model
        whole = model.config.vocab_size // REGION
        prior = 1.0 / (1.0 + np.arange(whole))
        self._counts = _PRIOR * prior / prior.sum()
        self._listed = np.zeros(0, np.int64)
        # the program over the list, and the tokens of its output
        self.program: Program | None = None
        self.ids = np.zeros(0, np.int64)

    @classmethod
    def of(cls, model: Model) -> Shortlist | None:
        """A list for a model whose vocabulary is worth one, None for another."""
        if model.config.vocab_size < 2 * MOST * REGION or output_matrix(model) is None:
            return None
        return cls(model)

    def note(self, tokens: Sequence[int]) -> None:
        """Count tokens of texts."""
        regions = np.bincount(np.asarray(tokens, np.int64) // REGION, minlength=len(self._counts))
        self._counts += regions[: len(self._counts)]
        if self._counts.sum() > _REMEMBERED:
            self._counts /= 2

    def update(self) -> None:
        """Draw from other regions from now on if these cover clearly more of the texts."""
        packing = self._model.packing
        if packing is not None and not packing.whole:
            return
        best = np.sort(np.argsort(-self._counts, kind="stable")[:MOST])
        gain = (self._counts[best].sum() - self._counts[self._listed].sum()) / self._counts.sum()
        if gain > BETTER:
            self._listed = best
            self.ids = (best[:, None] * REGION + np.arange(REGION)).reshape(-1)
            self.program = shortened(self._model, self.ids)

    def row(self, logits: np.ndarray, vocabulary: int) -> np.ndarray:
        """float32 (vocabulary,): -inf for tokens that are not on the list."""
        out = np.full(vocabulary, -np.inf, np.float32)
        out[self.ids] = logits
        return out
