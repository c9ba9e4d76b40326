"""The processing of a pooled row of the embedding: the dense layers of an embedding model and the
classifier of a reranker, as small separate programs.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from oxillama._core.pool import PageMemory
from oxillama._core.tape import Batch, Program
from oxillama.model.builder import Classifier
from oxillama.model.lower import Tape


class RowProgram:
    """A tape over one row of the embedding; safe to call from any thread.

    ops: those of the tape with their weights, in the form of a `Program`.
    """

    def __init__(
        self, tape: Tape, ops: Sequence[tuple[str, dict]], vocab_size: int, packing: Any
    ) -> None:
        if tape.embedding is None:
            raise ValueError("tape: found no embedding, wanted one")
        # one worker: a product of one row is done before others are awake
        self._program = Program(
            ops,
            list(tape.slots),
            kv_layers=[],
            hidden=tape.embedding,
            vocab_size=vocab_size,
            hidden_size=tape.width,
            max_rows=1,
            num_threads=1,
            packing=packing,
        )
        self._memory = PageMemory([], "f32", 16)
        self._memory.ensure(1)
        self._lock = threading.Lock()

    def __call__(self, row: np.ndarray) -> np.ndarray:
        """float32 (width,) of a row of the embedding, float32 (hidden,)."""
        zero = np.zeros(1, np.int32)
        batch = Batch(np.full(1, -1, np.int32), zero, [zero], zero, zero, embeds=row[None])
        with self._lock:
            return np.array(self._program.step(batch, self._memory, output="hidden")[0])


class ClassifierHead:
    """Scores of a pooled row, float32, one for each of `labels`.

    pooling: how the rows of a text become one. score: the index of the label that says how relevant
    a text is, None if the caller must choose.
    """

    def __init__(self, classifier: Classifier, program: RowProgram) -> None:
        self.labels, self.pooling = classifier.labels, classifier.pooling
        self.score = classifier.score
        self._program = program

    def __call__(self, row: np.ndarray) -> np.ndarray:
        """float32 (labels,) of a row of the embedding, float32 (hidden,)."""
        return self._program(row)
