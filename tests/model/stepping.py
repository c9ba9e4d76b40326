"""Steps of a loaded model without an engine: batches of several sequences, memory for them, their
output rows, and every op beside its definition.
"""

import numpy as np

from oxillama._core.tape import Batch
from oxillama.model.encoder_decoder import SourcedProgram, sourced_batch
from oxillama.model.reference import compare
from tests.model.invented import VOCAB

IDS = (np.arange(70) * 37 % VOCAB).astype(np.int32)


def batch_of(parts, memory, *, slots=None, wanted=None, **more):
    """A batch of (ids, first position, page table) a sequence; wanted: its rows whose output is
    wanted, by default all.
    """
    rows = sum(len(ids) for ids, _, _ in parts)
    if memory.slot_layers:
        more["slots"] = slots or list(range(len(parts)))
    return Batch(
        np.concatenate([ids for ids, _, _ in parts]).astype(np.int32),
        np.concatenate([np.arange(s, s + len(i), dtype=np.int32) for i, s, _ in parts]),
        [np.asarray(table, np.int32) for _, _, table in parts],
        np.repeat(np.arange(len(parts), dtype=np.int32), [len(ids) for ids, _, _ in parts]),
        np.arange(rows, dtype=np.int32) if wanted is None else np.asarray(wanted, np.int32),
        **more,
    )


def memory_of(model, pages, slots=1, kv_type="f16"):
    """Memory with so many pages and slots."""
    memory = model.page_memory(kv_type=kv_type)
    memory.ensure(pages)
    if memory.slot_layers:
        memory.ensure_slots(slots)
    return memory


def state_of(memory, slot):
    """A slot's bytes, with zeros between its layers, where nothing is written."""
    data, at = bytearray(memory.save_slot(slot)), 0
    for shape in memory.slot_layers:
        end = at + 4 * int(np.prod(shape))
        at = -(-end // 64) * 64
        data[end:at] = bytes(at - end)
    return bytes(data)


def step(model, batch, memory):
    """The rows of a step: logits, or those of the embedding where a model has no logits."""
    output = "logits" if model.config.generates else "hidden"
    return np.array(model.program.step(batch, memory, output=output))


def logits(model, ids, *, chunk=512, kv_type="f16", pages=None, wanted=None):
    """Output rows of `ids`, run in chunks over pages in this order (by default ascending); wanted:
    the ascending numbers of the rows, by default all.
    """
    table = range(-(-len(ids) // 16)) if pages is None else pages
    memory, out = memory_of(model, max(table) + 1, kv_type=kv_type), []
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        rows = None if wanted is None else [r - start for r in wanted if 0 <= r - start < len(part)]
        out.append(step(model, batch_of([(part, start, table)], memory, wanted=rows), memory))
    return np.concatenate(out)


def sourced_step(model, parts, memory, *, adapters=None):
    """Logits behind every source of the parts, (tokens, first position, page table, the source's
    end) each, in one step; adapters: those of each part.
    """
    rows = [len(tokens) for tokens, *_ in parts]
    positions = np.concatenate([np.arange(at, at + n) for n, (_, at, *_) in zip(rows, parts)])
    ends = np.repeat([end for *_, end in parts], rows)
    batch = sourced_batch(
        np.concatenate([tokens for tokens, *_ in parts]).astype(np.int32),
        positions.astype(np.int32),
        [np.array(table, np.int32) for _, _, table, _ in parts],
        np.repeat(np.arange(len(parts)), rows).astype(np.int32),
        np.flatnonzero(positions >= ends).astype(np.int32),
        spans=np.stack([0 * ends, ends]).astype(np.int32),
        adapters=adapters,
    )
    return np.array(SourcedProgram(model.source, model.program).step(batch, memory))


def check_meanings(reference, model, batch, memory, ids, *, tolerance=2e-5, frame=None):
    """Every op of a model's compiled tape gives what its definition gives, within a tolerance."""
    found = list(
        compare(reference, ids, model.program, batch, memory, tolerance=tolerance, frame=frame)
    )
    assert [difference for difference in found if not difference.agrees] == []
    assert len(found) == len(model.tape.ops)
