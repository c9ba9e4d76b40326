"""The processing of rows that another program made: of a pooled row of the embedding, by the dense
layers of an embedding model and the classifier of a reranker, and of the rows that a draft model
begins with, as small separate programs.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from oxillama._core.filemap import FileMap
from oxillama._core.pool import PageMemory
from oxillama._core.tape import Batch, Program
from oxillama.model.builder import Classifier
from oxillama.model.lower import Tape


class RowProgram:
    """A tape over rows of the embedding; safe to call from any thread.

    ops: those of the tape with their weights, in the form of a `Program`. beside: a program on
    whose workers it runs, over as many rows at once, while that one does not; None: over one row.
    files: see `Program`.
    """

    def __init__(
        self,
        tape: Tape,
        ops: Sequence[tuple[str, dict]],
        vocab_size: int,
        packing: Any,
        *,
        beside: Program | None = None,
        files: Sequence[FileMap] = (),
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
            max_rows=1 if beside is None else beside.max_rows,
            num_threads=1 if beside is None else beside.num_threads,
            packing=packing,
            beside=beside,
            files=files,
        )
        self._memory = PageMemory([], "f32", 16)
        self._memory.ensure(1)
        self._lock = threading.Lock()

    def __call__(self, row: np.ndarray) -> np.ndarray:
        """float32 (width,) of a row of the embedding, float32 (hidden,)."""
        return self.each(row[None])[0]

    def each(self, rows: np.ndarray) -> np.ndarray:
        """float32 (rows, width) of rows, float32 (rows, hidden)."""
        return self._run(np.full(len(rows), -1, np.int32), rows)

    def tokens(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """float32 (tokens, width), where the tape begins with the rows of a table."""
        return self._run(np.asarray(ids, np.int32), None)

    def _run(self, ids: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
        zero, number = np.zeros(len(ids), np.int32), np.arange(len(ids), dtype=np.int32)
        batch = Batch(ids, zero, [zero[:1]] * len(ids), number, number, embeds=rows)
        with self._lock:
            return np.array(self._program.step(batch, self._memory, output="hidden"))


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
