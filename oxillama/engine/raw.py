"""The program without the engine: a bare step loop for measurements, and the comparison of each op
with its definition.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from oxillama._core.tape import Batch, PageMemory
from oxillama.arguments import checked_ids
from oxillama.engine.engine import EngineCore
from oxillama.errors import ConfigError, ContextError, EngineError, ModelError
from oxillama.model.load import Model
from oxillama.model.lower import TapeOp
from oxillama.model.ops import OUTPUT
from oxillama.model.reference import Difference, Reference, compare
from oxillama.model.tensors import Tensor


class RawLoop:
    """Steps of the program over its own sequences; the engine waits while it is open. Use it in a
    `with` block.

    `prefill(sequence, ids)` appends tokens to a sequence, `decode(tokens)` one token to each of
    sequences 0, 1, ...; both return logits, a view that the next step overwrites.
    """

    def __init__(
        self, core: EngineCore, model: Model, *, kv_type: str, page_size: int, chunk: int
    ) -> None:
        if model.source is not None:
            raise ConfigError(
                f"raw_loop: found {model.config.architecture}, whose encoder and decoder are two "
                "programs, wanted a model of one"
            )
        self._core, self._program, self._tape = core, model.program, model.tape
        # what is measured here is what every later step takes
        model.pack()
        self._memory = model.page_memory(kv_type=kv_type, page_size=page_size)
        self._size, self._chunk = page_size, chunk
        self._tables: dict[int, list[int]] = {}
        self._arrays: dict[int, np.ndarray] = {}
        self._lengths: dict[int, int] = {}
        self._pages = 0

    def __enter__(self) -> RawLoop:
        self._core.check()
        self._core.check_waiter()
        self._core.step_lock.acquire()
        self._core.held_by = threading.get_ident()
        return self

    def __exit__(self, *_: object) -> None:
        self._core.held_by = None
        self._core.step_lock.release()

    def prefill(self, sequence: int, ids: Sequence[int]) -> np.ndarray:
        """Logits (1, vocab) after the last of the ids. NoNextToken for an encoder."""
        self._core.check_generates("prefill")
        tokens = np.array(checked_ids(ids, self._program.vocab_size), np.int32)
        if not len(tokens):
            raise ContextError("prefill: found no tokens, wanted 1 or more")
        for at in range(0, len(tokens), self._chunk):
            part = tokens[at : at + self._chunk]
            start, rows = self._grow(sequence, len(part)), len(part)
            wanted = np.array([rows - 1] if at + rows == len(tokens) else [], np.int32)
            out = self._program.step(
                Batch(
                    part,
                    np.arange(start, start + rows, dtype=np.int32),
                    [self._arrays[sequence]],
                    np.zeros(rows, np.int32),
                    wanted,
                    slots=self._slots([sequence]),
                ),
                self._memory,
            )
        return out

    def _slots(self, sequences: Sequence[int]) -> list[int] | None:
        """The slots of recurrent state of sequences, None for a model without any: numbered as the
        sequences, those of negative numbers (`matmul_inputs`) in between.
        """
        if not self._memory.slot_layers:
            return None
        slots = [2 * each if each >= 0 else -2 * each - 1 for each in sequences]
        self._memory.ensure_slots(1 + max(slots))
        return slots

    def decode(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits (sequences, vocab) after one more token of each sequence."""
        rows = np.arange(len(tokens), dtype=np.int32)
        positions = np.array([self._grow(sequence, 1) for sequence in range(len(tokens))], np.int32)
        tables = [self._arrays[sequence] for sequence in range(len(tokens))]
        return self._program.step(
            Batch(
                np.asarray(tokens, np.int32),
                positions,
                tables,
                rows,
                rows,
                slots=self._slots(range(len(tokens))),
            ),
            self._memory,
        )

    def rewind(self, sequence: int, length: int) -> bool:
        """Makes a sequence `length` tokens long again, if its model can: False, and nothing done,
        for one with recurrent state.

        ContextError for a length the sequence does not have.
        """
        have = self._lengths.get(sequence, 0)
        if not 0 <= length <= have:
            raise ContextError(f"rewind: found a length of {length}, wanted 0 to {have}")
        if self._memory.slot_layers:
            return False
        self._lengths[sequence] = length
        return True

    def profile(
        self, sequence: int, ids: Sequence[int], *, repeat: int = 5
    ) -> list[tuple[TapeOp, float]]:
        """Each op of the tape with its median microseconds, in a step that appends the ids to a
        sequence; logits of the last one.
        """
        rows = len(ids)
        start = self._grow(sequence, rows)
        batch = Batch(
            np.asarray(ids, np.int32),
            np.arange(start, start + rows, dtype=np.int32),
            [self._arrays[sequence]],
            np.zeros(rows, np.int32),
            np.array([rows - 1], np.int32),
            slots=self._slots([sequence]),
        )
        found = self._program.profile(batch, self._memory, repeat=repeat)
        return [(op, microseconds) for op, (_, microseconds) in zip(self._tape.ops, found)]

    def matmul_inputs(
        self, ids: Sequence[int]
    ) -> Iterator[tuple[list[Tensor], np.ndarray, np.ndarray | None]]:
        """The weights of each product of the tape except the output's, their input rows, and the
        matrix that each row uses, over a new sequence.

        The rows are float32 (len(ids), columns), as the kernels read them: in steps of the
        activation format, if it is not float. For stacks of matrices (experts, heads), the rows are
        (len(ids) * parts, columns) and the matrices int (len(ids) * parts,), without the parts that
        meet none; otherwise None.
        ContextError for more ids than a step holds, ModelError for an op whose weights have no
        input rows here.
        """
        rows, sequence = len(ids), -1 - len(self._tables)
        if not 1 <= rows <= self._program.max_rows:
            raise ContextError(
                f"matmul_inputs: found {rows} tokens, wanted 1 to {self._program.max_rows}"
            )
        self._grow(sequence, rows)
        every = np.arange(rows, dtype=np.int32)
        batch = Batch(
            np.asarray(ids, np.int32),
            every,
            [self._arrays[sequence]],
            np.zeros(rows, np.int32),
            every,
            slots=self._slots([sequence]),
        )
        done = 0
        for index, op in enumerate(self._tape.ops):
            weights = op.params.get("weights")
            if weights is None or op.params.get("out") == OUTPUT:
                continue
            if op.name not in ("matmul", "experts"):
                raise ModelError(
                    f"op {index} ({op.name}): its inputs cannot be shown, wanted a product"
                )
            if index > done:
                self._program.run_until(batch, self._memory, index - 1, first=done)
                done = index
            met, act = self._program.slot(op.params["x"], rows), op.params["act"]
            columns = weights[0].shape[1]
            if op.name == "matmul":
                yield list(weights), unpacked_acts(met, act, columns), None
                continue
            parts = self._program.parts(index)
            each = unpacked_acts(met, act, parts * columns).reshape(rows, parts, columns)
            matrices = self._matrices(op.params, rows)
            used = matrices >= 0
            # the op may leave out the first matrices of a tensor
            first = weights[0].start // (weights[0].shape[0] // op.params["experts"])
            yield (
                list(weights),
                np.broadcast_to(each, (*matrices.shape, columns))[used],
                matrices[used] + first,
            )

    def _matrices(self, params: Mapping[str, Any], rows: int) -> np.ndarray:
        """The matrix of a stack that each part of each row meets, int (rows, parts); -1: none."""
        if params["routes"] is None:
            return np.tile(np.arange(params["experts"]), (rows, 1))
        return self._program.slot(params["routes"], rows)[:, : params["used"]].astype(np.int64)

    def _grow(self, sequence: int, rows: int) -> int:
        """The first of `rows` new positions of a sequence, with pages for all of them."""
        if self._core.held_by != threading.get_ident():
            raise EngineError("raw loop: is not open in this thread, wanted it in a `with` block")
        start = self._lengths.get(sequence, 0)
        table = self._tables.setdefault(sequence, [])
        missing = -(-(start + rows) // self._size) - len(table)
        if missing > 0:
            table.extend(range(self._pages, self._pages + missing))
            self._pages += missing
            self._memory.ensure(self._pages)
            self._arrays[sequence] = np.array(table, np.int32)
        self._lengths[sequence] = start + rows
        return start


def unpacked_acts(rows: np.ndarray, act: str, columns: int) -> np.ndarray:
    """Activation rows as float32 (rows, columns): `rows` holds their bytes, in the layout of
    csrc/lanes/panel.h.
    """
    if act == "f32":
        return rows[:, :columns]
    if act == "bf16":
        return (
            np.ascontiguousarray(rows).view(np.uint16)[:, :columns].astype(np.uint32) << 16
        ).view(np.float32)
    block, size = {"q8_32": (32, 48), "q8_256": (256, 320)}[act]
    raw = (
        np.ascontiguousarray(rows)
        .view(np.uint8)[:, : columns // block * size]
        .reshape(len(rows), -1, size)
    )
    codes = raw[:, :, :block].view(np.int8).astype(np.float32)
    return (codes * np.ascontiguousarray(raw[:, :, block : block + 4]).view(np.float32)).reshape(
        len(rows), columns
    )


def diagnose(core: EngineCore, model: Model, ids: Sequence[int]) -> Iterator[Difference]:
    """Compares each op of the compiled tape with its numpy definition. The ids are one sequence
    from position 0, on float32 pages; if an encoder reads them, its ops come first, numbered behind
    those of the decoder, which has its start token alone.

    ContextError for no ids, or for more than one step or the context can hold.
    """
    core.check()
    core.check_waiter()
    ids = list(core.sourced(checked_ids(ids, model.program.vocab_size)))
    rows, most = len(ids), min(model.program.max_rows, core.context_size)
    if not 1 <= rows <= most:
        raise ContextError(f"diagnose: found {rows} tokens, wanted 1 to {most}")
    tokens = np.asarray(ids, np.int32)
    memory = model.page_memory(kv_type="f32")
    memory.ensure(-(-rows // memory.page_size))
    if memory.slot_layers:
        memory.ensure_slots(1)
    first, frame = 0, None
    if model.source is not None and model.tape.source is not None:
        first = rows - 1
        encoder = Reference(model.tape.source, model.reader, kv_type="f32")
        frame, batch = encoder.frame(ids[:first]), _batch(tokens, 0, first, memory)
        for each in compare(
            encoder, ids[:first], model.source, batch, memory, frame=frame, lock=core.step_lock
        ):
            yield replace(each, index=each.index + len(model.tape.ops))
    reference, spans = model.reference(), None
    reference.kv_type = "f32"
    if frame is not None:
        spans = np.array([[0], [first]], np.int32)
        frame = replace(
            reference.frame(ids[first:]),
            positions=np.array([first]),
            keys=frame.keys,
            values=frame.values,
            spans=spans,
        )
    batch = _batch(tokens, first, rows, memory, spans=spans)
    yield from compare(
        reference, ids[first:], model.program, batch, memory, frame=frame, lock=core.step_lock
    )


def _batch(tokens: np.ndarray, first: int, stop: int, memory: PageMemory, **more: Any) -> Batch:
    """The rows of tokens first to stop - 1 of one sequence, all wanted."""
    return Batch(
        tokens[first:stop],
        np.arange(first, stop, dtype=np.int32),
        [np.arange(-(-len(tokens) // memory.page_size), dtype=np.int32)],
        np.zeros(stop - first, np.int32),
        np.arange(stop - first, dtype=np.int32),
        slots=[0] if memory.slot_layers else None,
        **more,
    )
