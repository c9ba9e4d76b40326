"""Runs a tape by its numpy definitions, and finds the first op for which the compiled tape differs.

It is slow and simple on purpose: `oxillama doctor` and the tests compare the compiled tape with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np

from oxillama._core.tape import Batch, PageMemory, Program
from oxillama.gguf import GgufReader
from oxillama.model.lower import Tape, TapeOp
from oxillama.model.ops import OPS, OUTPUT, Frame
from oxillama.model.tensors import Tensor, unpacked


class Reference:
    """The numpy interpreter of one tape over one file; holds every weight it has used as float32.
    served: as `Program.served`.
    """

    def __init__(
        self, tape: Tape, reader: GgufReader, *, kv_type: str = "f16", served: int = 0
    ) -> None:
        self.tape = tape
        self.reader = reader
        self.kv_type = kv_type
        self.served = served
        self._held: dict[tuple, np.ndarray] = {}

    def weight(self, tensor: Tensor) -> np.ndarray:
        """Rows of a tensor as float32 (rows, columns)."""
        if tensor.key not in self._held:
            self._held[tensor.key] = unpacked(self.reader, tensor)
        return self._held[tensor.key]

    def frame(self, tokens: Sequence[int], *, wanted: Sequence[int] | None = None) -> Frame:
        """A new frame over a whole sequence from position 0; by default every row's output is
        wanted.
        """
        ids = np.asarray(tokens, np.int32)
        asked = np.arange(len(ids)) if wanted is None else np.asarray(wanted)
        return Frame(ids, np.arange(len(ids)), asked, self.weight, self.kv_type, served=self.served)

    def steps(self, frame: Frame) -> Iterator[TapeOp]:
        """Run op by op; after each one the frame holds its results."""
        for op in self.tape.ops:
            OPS[op.name].meaning(frame, **op.params)
            yield op

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Output rows float32 (len(tokens), vocabulary)."""
        frame = self.frame(tokens)
        for _ in self.steps(frame):
            pass
        return frame.slots[OUTPUT]


@dataclass(frozen=True, slots=True)
class Difference:
    """How far one op of the compiled tape is from its definition; `error` is relative to the
    largest magnitude.
    """

    index: int
    op: str
    error: float
    agrees: bool


def compare(
    reference: Reference,
    tokens: Sequence[int],
    program: Program,
    batch: Batch,
    memory: PageMemory,
    *,
    tolerance: float = 2e-2,
    frame: Frame | None = None,
    lock: AbstractContextManager | None = None,
) -> Iterator[Difference]:
    """Compare each op's float32 results with those of the compiled tape, in order. batch: the
    tokens in one sequence, every row wanted.

    Errors of quantised activations accumulate along the tape, so `tolerance` bounds the whole path,
    not one op. frame: the initial frame, for tokens with inputs of their own. lock: held while ops
    run, where others step the program between them; all ops up to the one that is compared run
    again then.
    """
    frame = reference.frame(tokens) if frame is None else frame
    for index, op in enumerate(reference.steps(frame)):
        out, worst = op.params.get("out"), 0.0
        if lock is None:
            program.run_until(batch, memory, index, first=index)
        if out is not None:
            with nullcontext() if lock is None else lock:
                if lock is not None:
                    program.run_until(batch, memory, index)
                rows = program.slot(out, batch.rows)
            wanted, written = frame.slots[out], OPS[op.name].written(op.params)
            wanted, found = wanted[:, written], rows[:, : wanted.shape[1]][:, written]
            error = float(np.abs(found - wanted).max()) / (float(np.abs(wanted).max()) or 1.0)
            worst = error if np.isfinite(error) else float("inf")
        yield Difference(index, op.name, worst, worst <= tolerance)
