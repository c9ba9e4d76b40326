"""`LayerPager`: the weights of a model that is larger than the memory it may take.

    budget   [ pinned: whole matrices, spread evenly over the tape | experts: slots of each op
             | ring | buffers ]
    file     everything else: read, packed and multiplied in the order of the tape, reading ahead

A token reads every dense matrix once, in one order, so a cache would always evict what is needed
soonest. Instead, as much as the budget holds is pinned, and the rest passes through the ring.
Pinned matrices are spread evenly over the tape, so that reading continues while they are computed.
Experts are kept by use: those used most often stay (csrc/pager.h).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oxillama._core.pager import Pager
from oxillama._core.panels import PackedMatrix, PanelMemory, packed_bytes
from oxillama.durable import open_without_waiting
from oxillama.errors import ConfigError, ModelError, not_pickled
from oxillama.gguf.source import Shard
from oxillama.weights.identity import unchanged
from oxillama.weights.offload import Budget, PinnedHotSet
from oxillama.weights.panel_file import Key
from oxillama.weights.pressure import MemoryPressureProbe

READERS = 4
# bytes of packed weights that come as one page, and of a file that are read at a time
LEAST_PAGE, MOST_PAGE = 64 << 10, 2 << 20
LEAST_READ, MOST_READ = 64 << 10, 1 << 20
# bytes that are read ahead: a share of the budget, no more than this
RING_SHARE, MOST_RING = 16, 128 << 20
LEAST_SLOTS = 2  # of an op's experts, and of the ring
POLL_SECONDS = 0.5
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class PagedWeight:
    """Rows of a tensor in a model's file. shard, offset: their position; row_bytes: bytes of one
    row.
    """

    key: Key
    format: str
    rows: int
    columns: int
    shard: int
    offset: int
    row_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes in memory, packed."""
        return -(-packed_bytes(self.format, self.rows, self.columns) // _PAGE) * _PAGE


@dataclass(frozen=True, slots=True)
class PagedUnit:
    """The weights of one op, which are in memory together or not at all. experts: the matrices of
    its stack among which a router chooses, 0 for an op that needs all its weights; chosen: False if
    it needs the whole stack. layer: None outside of layers. head: it makes logits.
    """

    weights: tuple[PagedWeight, ...]
    experts: int = 0
    layer: int | None = None
    head: bool = False
    chosen: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes in memory, packed."""
        return sum(weight.nbytes for weight in self.weights)

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert's slot."""
        return -(-(self.nbytes // max(1, self.experts)) // _PAGE + 1) * _PAGE


@dataclass(frozen=True, slots=True)
class PagingStats:
    """Counters of a pager. budget_bytes: its limit; resident_bytes: weights in memory now;
    model_bytes: all weights, packed. pages_read: pages read from the file; page_hits: pages that
    were needed and in memory; bytes_read: of the file; wait_seconds: time that workers waited for
    pages; shrunk_bytes: memory returned to a system that was short of it.
    """

    budget_bytes: int
    resident_bytes: int
    model_bytes: int
    pages_read: int
    page_hits: int
    bytes_read: int
    wait_seconds: float
    shrunk_bytes: int


@dataclass(frozen=True, slots=True)
class PagingSummary:
    """The effect of a policy on a model. weight_bytes: all weights, packed; pinned_bytes: dense
    weights that stay in memory; streamed_bytes: dense weights that are read for each token;
    experts, expert_slots: the number of routed matrices, and how many of them fit;
    read_ahead_bytes: the size of the ring.
    """

    weight_bytes: int
    pinned_bytes: int
    streamed_bytes: int
    experts: int
    expert_slots: int
    read_ahead_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What stays in memory. pinned: units, by number; fixed: those of them that stay even when
    memory is short; slots: experts of each unit that can be kept, 0 for units without experts.
    """

    pinned: frozenset[int]
    fixed: frozenset[int]
    slots: tuple[int, ...]
    ring_bytes: int
    page_bytes: int
    read_bytes: int
    readers: int

    def summary(self, units: Sequence[PagedUnit]) -> PagingSummary:
        """The effect of the plan on the units it was made for."""
        dense = [unit.nbytes for unit in units if not unit.experts]
        pinned = sum(units[i].nbytes for i in self.pinned if not units[i].experts)
        return PagingSummary(
            sum(unit.nbytes for unit in units),
            pinned,
            sum(dense) - pinned,
            sum(unit.experts for unit in units),
            sum(self.slots),
            self.ring_bytes,
        )


def plan_pages(units: Sequence[PagedUnit], policy: Budget | PinnedHotSet, table_bytes: int) -> Plan:
    """What stays in memory under a policy; ConfigError if its budget is too small. table_bytes: of
    the embedding.
    """
    budget = policy.ram_bytes
    page = min(MOST_PAGE, max(LEAST_PAGE, budget // 256))
    panel = max(16 * weight.row_bytes for unit in units for weight in unit.weights)
    read = max(panel, min(MOST_READ, max(LEAST_READ, budget // 512)))
    readers = max(1, min(READERS, budget // (16 * read)))
    dense = [i for i, unit in enumerate(units) if not unit.experts]
    routed = [i for i, unit in enumerate(units) if unit.experts]
    left = budget - readers * (read + 2 * _PAGE)
    fixed: set[int] = set()
    slots = [0] * len(units)
    wanted = []
    if isinstance(policy, PinnedHotSet):
        layers = sorted({unit.layer for unit in units if unit.layer is not None})
        last = set(layers[max(0, len(layers) - policy.pin_last_n_layers) :])
        for i, unit in enumerate(units):
            if unit.layer in last or (unit.head and policy.pin_output_head):
                fixed.add(i)
                slots[i] = unit.experts
        needed = sum(units[i].nbytes for i in fixed) + (table_bytes if policy.pin_embeddings else 0)
        wanted.append(f"{needed} for what is pinned")
        left -= needed
    for i in routed:
        if not slots[i]:
            least = LEAST_SLOTS if units[i].chosen else units[i].experts
            slots[i] = min(least, units[i].experts)
            left -= slots[i] * units[i].expert_bytes
    if routed:
        wanted.append(f"{LEAST_SLOTS} experts of each op")
    streamed = [i for i in dense if i not in fixed]
    pinned = set(fixed & set(dense))
    ring = 0
    if sum(units[i].nbytes for i in streamed) <= left:
        pinned |= set(streamed)
    elif streamed:
        largest = max(_page_bytes(units[i], page) for i in streamed)
        ring = max(LEAST_SLOTS * largest, min(MOST_RING, budget // RING_SHARE))
        if isinstance(policy, PinnedHotSet):
            ring = max(
                LEAST_SLOTS * largest, policy.prefetch_n_ahead * _layer_bytes(units, streamed)
            )
        wanted.append(f"{ring} for what is read ahead")
        if ring <= left:
            pinned |= _spread(units, streamed, left - ring)
        left -= ring
    left -= sum(units[i].nbytes for i in pinned - fixed)
    if left < 0:
        raise ConfigError(
            f"offload: ram_bytes: found {budget}, wanted at least {budget - left} for this model: "
            f"{', '.join(wanted)}"
        )
    more = [i for i in routed if i not in fixed]
    total = sum((units[i].experts - slots[i]) * units[i].expert_bytes for i in more)
    share = min(1.0, left / total) if total else 0.0
    for i in more:
        slots[i] += int(share * (units[i].experts - slots[i]))
    return Plan(frozenset(pinned), frozenset(fixed), tuple(slots), ring, page, read, readers)


def _page_bytes(unit: PagedUnit, page: int) -> int:
    """The largest size of a page: at least a chunk of panels (`unpacked.CHUNK` weights)."""
    columns, rows = unit.weights[0].columns, max(weight.rows for weight in unit.weights)
    chunk = max(1, 96 * 2048 // (16 * columns))
    most = sum(weight.nbytes for weight in unit.weights)
    panel = (
        -(-most // -(-rows // 16))
        if len(unit.weights) < 3
        else max(-(-weight.nbytes // -(-weight.rows // 16)) for weight in unit.weights)
    )
    return min(most, max(page, chunk * panel)) + _PAGE


def _layer_bytes(units: Sequence[PagedUnit], streamed: Sequence[int]) -> int:
    """The largest number of bytes read for a layer."""
    found: dict[int, int] = {}
    for i in streamed:
        layer = units[i].layer
        if layer is not None:
            found[layer] = found.get(layer, 0) + units[i].nbytes
    return max(found.values(), default=0)


def _spread(units: Sequence[PagedUnit], streamed: Sequence[int], free: int) -> set[int]:
    """Units that fill `free` bytes, spread evenly over the order of the tape; the rest is filled
    with whatever fits, largest first.
    """
    share, due, chosen = free / sum(units[i].nbytes for i in streamed), 0.0, set[int]()
    for i in streamed:
        due += share * units[i].nbytes
        if units[i].nbytes <= due and units[i].nbytes <= free:
            chosen.add(i)
            due -= units[i].nbytes
            free -= units[i].nbytes
    for i in sorted(set(streamed) - chosen, key=lambda one: -units[one].nbytes):
        if units[i].nbytes <= free:
            chosen.add(i)
            free -= units[i].nbytes
    return chosen


class LayerPager:
    """Pages the weights of a model between its files and memory. `matrices` are the arguments for a
    `Program`; they share the pager, which `close` ends.

    shards: the model's files. units: in the order of the tape. table_bytes: of the embedding.
    """

    __reduce__ = not_pickled(
        "pager: holds weights in memory and files of this process",
        "load the model in each process",
    )

    def __init__(
        self,
        shards: Sequence[Shard],
        units: Sequence[PagedUnit],
        policy: Budget | PinnedHotSet,
        *,
        table_bytes: int = 0,
    ) -> None:
        if any(shard.path is None for shard in shards):
            raise ConfigError(
                "offload: found a model in memory, wanted one in a file that can be read again"
            )
        self.policy = policy
        # reports that the system is short of memory: something is released, and read again later
        self.probe = MemoryPressureProbe()
        self.plan = plan = plan_pages(units, policy, table_bytes)
        limit = self.probe.limit()
        if limit is not None and policy.ram_bytes > limit:
            raise ConfigError(
                f"offload: ram_bytes: found {policy.ram_bytes}, this process may use {limit} bytes "
                "of memory"
            )
        pins = isinstance(policy, PinnedHotSet) and policy.pin_embeddings
        self._pinned_table_bytes = table_bytes if pins else 0
        self._model_bytes = sum(unit.nbytes for unit in units)
        self._shrunk, self._looked = 0, 0.0
        self.core = Pager(
            _opened(shards),
            source=policy.source,
            ring_bytes=plan.ring_bytes,
            page_bytes=plan.page_bytes,
            read_bytes=plan.read_bytes,
            threads=plan.readers,
            poll=self._poll,
        )
        self.matrices: Mapping[Key, PackedMatrix] = self._placed(units)

    @property
    def pins_embeddings(self) -> bool:
        """Whether the embedding is in memory."""
        return self._pinned_table_bytes > 0

    def stats(self) -> PagingStats:
        """What was read, and what is in memory."""
        counts = self.core.counts()
        ring = counts["ring_bytes"] if self.plan.ring_bytes else 0
        return PagingStats(
            self.policy.ram_bytes,
            counts["resident_bytes"] + ring + self._pinned_table_bytes,
            self._model_bytes,
            counts["pages_read"],
            counts["hits"],
            counts["bytes_read"],
            counts["waited"],
            self._shrunk,
        )

    def close(self) -> None:
        """Stop reading ahead and close the files, after the running step. Later steps are
        refused.
        """
        self.core.close()

    def _placed(self, units: Sequence[PagedUnit]) -> dict[Key, PackedMatrix]:
        plan, made = self.plan, dict[Key, PackedMatrix]()
        homes = PanelMemory(sum(units[i].nbytes for i in plan.pinned if not units[i].experts))
        for i, unit in enumerate(units):
            home = homes if i in plan.pinned and not unit.experts else None
            for weight in unit.weights:
                if weight.key in made:
                    continue
                made[weight.key] = PackedMatrix.paged(
                    self.core,
                    weight.key[0],
                    weight.shard,
                    weight.offset,
                    weight.row_bytes,
                    weight.format,
                    weight.rows,
                    weight.columns,
                    home,
                    plan.slots[i],
                    i in plan.fixed,
                )
        return made

    def _poll(self) -> None:
        """Before a step: check now and then whether memory is short."""
        now = time.monotonic()
        if now - self._looked < POLL_SECONDS:
            return
        self._looked = now
        excess = self.probe.excess()
        if excess:
            self._shrunk += self.core.shrink(excess)
        elif self._shrunk and self.probe.allows(self._shrunk):
            self.core.restore()
            self._shrunk = 0


def _opened(shards: Sequence[Shard]) -> list[tuple[int, str, memoryview]]:
    """Descriptors of a model's files; ModelError if one was changed since its header was read."""
    made: list[tuple[int, str, memoryview]] = []
    try:
        for shard in shards:
            made.append(
                (
                    open_without_waiting(str(shard.path)),
                    str(shard.path),
                    shard.buffer,
                )
            )
        if not unchanged(shards):
            raise ModelError(f"{shards[0].label}: the file was changed while it was loaded")
    except BaseException:
        for descriptor, _, _ in made:
            os.close(descriptor)
        raise
    return made
