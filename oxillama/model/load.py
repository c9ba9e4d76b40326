"""Loads a model: an open GGUF file becomes a `Model`, a Program with what the engine must know
about it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from oxillama._core.panels import PackedMatrix
from oxillama._core.pool import PageMemory
from oxillama._core.tape import Program
from oxillama.gguf import GgufReader
from oxillama.model.lower import Tape
from oxillama.model.pooled import ClassifierHead, RowProgram
from oxillama.model.record import ModelConfig, recorded
from oxillama.model.reference import Reference
from oxillama.model.rope import AS_FILED, RopeOverrides
from oxillama.model.state import Slot
from oxillama.model.tape_weights import Progress, files_of, load_weights, with_weights
from oxillama.weights.offload import OffloadPolicy
from oxillama.weights.packing import Packer, Packing
from oxillama.weights.pager import LayerPager
from oxillama.weights.panel_file import Key
from oxillama.weights.verifier import PanelVerifier
from oxillama.weights.writer import CacheWriter

# rows of a step that a text may take where attention is not causal
LONGEST_STEP = 1 << 15


@dataclass(slots=True)
class Model:
    """A loaded model; `program` runs it, `tape` shows it, `reader` stays open for the rows of its
    embedding. source: runs the encoder that comes before it (`SourcedProgram` runs both), None for
    a model without one.

    weights: packed, by key. writer: writes them to a sidecar, None without one; verifier: compares
    a mapped sidecar with its hashes, None if the weights were packed from the file. rope: the
    overrides. packing: packs the weights while the program already runs, None if they were packed
    before; packer: its thread. projection, classifier: the processing of a pooled row of the
    embedding, None if the file has no such head. pager: reads weights from the file while a step
    runs, None if all of them are in memory.
    """

    config: ModelConfig
    tape: Tape
    program: Program
    reader: GgufReader = field(repr=False)
    weights: Mapping[Key, PackedMatrix] = field(repr=False)
    writer: CacheWriter | None = field(default=None, repr=False)
    verifier: PanelVerifier | None = field(default=None, repr=False)
    rope: RopeOverrides = AS_FILED
    packing: Packing | None = field(default=None, repr=False)
    packer: Packer | None = field(default=None, repr=False)
    source: Program | None = field(default=None, repr=False)
    projection: RowProgram | None = field(default=None, repr=False)
    classifier: ClassifierHead | None = field(default=None, repr=False)
    pager: LayerPager | None = field(default=None, repr=False)

    def pack(self) -> None:
        """Pack the rest of the weights, so that step times are representative."""
        if self.packing is not None:
            self.packing.finish()

    def end(self, *, keep: bool) -> None:
        """End background work on the model; keep: finish writing its sidecar first."""
        if self.packer is not None:
            self.packer.cancel()
        if self.pager is not None:
            self.pager.close()
        if self.writer is not None:
            self.writer.finish() if keep else self.writer.cancel()
        if self.verifier is not None:
            # whoever has results shall hear whether they may be wrong
            self.verifier.finish() if self.program.steps else self.verifier.cancel()

    def page_memory(
        self, *, kv_type: str = "f16", page_size: int = 16, context: int = 0
    ) -> PageMemory:
        """Memory for the pages and slots of this model's layers; it grows as needed. context: how
        many tokens a sequence may have; layers that look back at fewer lie apart, for a caller that
        attaches and detaches them.
        """
        config = self.config
        windows: tuple[int, ...] = ()
        if context and config.causal and not config.slot_layers:
            windows = tuple(
                each.window if not isinstance(each, Slot) and each.window < context else 0
                for each in config.states
            )
        return PageMemory(
            list(config.kv_layers),
            kv_type,
            page_size,
            slot_layers=config.slot_layers,
            windows=windows,
        )

    def reference(self) -> Reference:
        """The numpy interpreter of the same tape."""
        return Reference(self.tape, self.reader, served=self.program.served)


def load_model(
    reader: GgufReader,
    *,
    num_threads: int = 0,
    max_rows: int = 512,
    progress: Progress | None = None,
    sidecar: str | os.PathLike[str] | Literal[False] = False,
    rope: RopeOverrides = AS_FILED,
    offload: OffloadPolicy = None,
    predict: bool = True,
    extracts: Sequence[int] = (),
) -> Model:
    """Record, lower and build the Program over weights that are packed, or being packed
    (weights/packing.py).

    progress: called with the bytes packed, and makes this call wait for all of them; without it a
    large model answers earlier. sidecar: where packed weights are stored for later loads
    (weights/cache.py): "auto" (the cache folder, for models of 256 MiB and more), a folder, or
    False. rope: see `record.record`; weights and sidecars do not depend on it. offload: the memory
    that weights may take (weights/offload.py); if they do not fit they are paged, and no sidecar is
    read or written. predict: load the layers that predict further tokens too, if the file has some;
    otherwise `drafts.predictor` does. A sidecar has them in any case. extracts: layers whose inputs
    are carried for a draft model, instead of the rows for the file's own layers that predict
    further tokens; ConfigError if there is no such row.
    """
    config, tape, classifier = recorded(reader, rope=rope, extracts=extracts)
    if not config.causal:
        # a text of any length that the model takes is one step; rows cost nothing until used
        max_rows = max(max_rows, min(config.context_length, LONGEST_STEP))
    if tape.source is not None:
        # beside the tokens that others decode; as above
        max_rows += min(config.context_length, LONGEST_STEP)
    weights = load_weights(
        reader,
        tape,
        num_threads=num_threads,
        progress=progress,
        sidecar=sidecar,
        offload=offload,
        predict=predict and not extracts or sidecar is not False,
    )
    program = program_of(
        config,
        tape,
        with_weights(reader, tape.ops, weights.matrices, weights.pager),
        max_rows=max_rows,
        num_threads=num_threads,
        packing=weights.packing,
        files=files_of(reader, weights),
    )
    source = (
        None
        if tape.source is None
        else program_of(
            config,
            tape.source,
            with_weights(reader, tape.source.ops, weights.matrices, weights.pager),
            max_rows=max_rows,
            num_threads=num_threads,
            packing=weights.packing,
            files=program.files,
            beside=program,
        )
    )
    writer = verifier = None
    if weights.mapped is not None:
        verifier = PanelVerifier(weights.mapped, program, reader.shards)
    elif weights.slot is not None:
        writer = CacheWriter(weights.slot, weights.matrices, program, packing=weights.packing)
    projection, scores = (
        None
        if part is None
        else RowProgram(
            part,
            with_weights(reader, part.ops, weights.matrices, weights.pager),
            config.vocab_size,
            weights.packing,
            files=program.files,
        )
        for part in (tape.projection, tape.classifier)
    )
    return Model(
        config,
        tape,
        program,
        reader,
        weights.matrices,
        writer=writer,
        verifier=verifier,
        rope=rope,
        packing=weights.packing,
        packer=None if weights.packing is None else Packer(weights.packing, program),
        source=source,
        projection=projection,
        classifier=None
        if classifier is None or scores is None
        else ClassifierHead(classifier, scores),
        pager=weights.pager,
    )


def program_of(
    config: ModelConfig, tape: Tape, ops: Sequence[tuple[str, dict]], **more: Any
) -> Program:
    """The program of a tape. ops: those of the tape with their weights; more: further parameters of
    `Program`.
    """
    return Program(
        ops,
        list(tape.slots),
        kv_layers=list(config.kv_layers),
        slot_layers=list(config.slot_layers),
        hidden=tape.embedding,
        carried=tape.carried,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        **more,
    )
