"""The input of a step, made of a plan: `Batcher`.

plan    (A, 3 rows)  (B, 1)  (C, 2)     C: its last token, and a candidate

tokens      a5 a6 a7   b9   c4 c5
positions    5  6  7    9    4  5
row_table    0  0  0    1    2  2       which block table a row belongs to
wanted             2    3    4  5       rows whose output is asked for
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from oxillama.engine.scheduler import ScheduleEntry, State
from oxillama.media.placement import inputs

Plan = list[tuple[ScheduleEntry, int]]  # entries, and how many rows each has in a step

_DECODING = State.DECODING  # read for every token


def wanted_rows(entry: ScheduleEntry, rows: int) -> int:
    """How many of an entry's rows in a step have an output that is wanted: its last ones, or those
    that masks are filled in from.
    """
    start = entry.done
    if entry.fill is not None:
        return len(entry.fill.rows)
    if entry.width:
        return rows if start + 1 == entry.length else 0
    if entry.every_row:
        return rows - min(rows, max(0, entry.owner.delivered - start))
    return max(0, start + rows + 1 - entry.length)


def kept_rows(entry: ScheduleEntry, rows: int, taking: dict[int, int]) -> int:
    """How many of an entry's rows, its last ones, go on behind the last layer that keeps something:
    those wanted, and those that its drafter takes (`taken_rows`).
    """
    return max(wanted_rows(entry, rows), taking.get(id(entry), 0))


def taken_rows(plan: Plan, sequences: int) -> dict[int, int]:
    """By entry (`id`), how many of its last rows in a step its drafter takes, as far as it takes
    any; sequences: how many decode.
    """
    taking = {}
    for entry, rows in plan:
        speculation = entry.owner.speculation
        count = 0 if speculation is None else speculation.carried(sequences)
        if count and entry.state is _DECODING:
            count = rows
        elif count:
            count = entry.done + rows - max(entry.done, entry.length - count)
        if count > 0:
            taking[id(entry)] = min(rows, count)
    return taking


def give_carried(plan: Plan, taking: dict[int, int], carried: np.ndarray) -> None:
    """Give the kept rows of a step, as they are behind the last layer, to those who take them."""
    at = 0
    for entry, rows in plan:
        at += kept_rows(entry, rows, taking)
        taken = taking.get(id(entry), 0)
        if taken:
            first = entry.done + rows - taken
            entry.owner.speculation.take_carried(first, carried[at - taken : at])


class Batcher:
    """Fills the arrays of a step from a plan. The arrays are reused, so a batch is valid until the
    next one is made.
    """

    __slots__ = ("_counted", "_make", "_one", "_positions", "_row_table", "_tokens", "_zeros")

    def __init__(self, make: Callable, max_rows: int) -> None:
        self._make = make
        self._tokens, self._positions, self._row_table = (
            np.zeros(max_rows, np.int32) for _ in range(3)
        )
        # of the rows of one text: their numbers, and the number 0 of its table
        self._counted, self._zeros = (
            np.arange(max_rows, dtype=np.int32),
            np.zeros(max_rows, np.int32),
        )
        # of a batch of one row: token, position, and the number 0 of its table and of its row
        self._one = (np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32))

    def __call__(self, plan: Plan, taking: dict[int, int]) -> tuple[Any, bool]:
        """(the input of the program, whether the step is for hidden rows). taking: see
        `taken_rows`.
        """
        if len(plan) == 1:
            entry, rows = plan[0]
            session = entry.owner.session
            # the next row of one text, and its candidates: the common cases, kept short
            if not (entry.width or session.media):
                if rows == 1:
                    return self._row(entry), entry.hidden
                if entry.draft and not session.adapters and entry.length == entry.done + 1:
                    return self._candidates(entry, rows), entry.hidden
        return self._rows(plan, taking)

    def _row(self, entry: ScheduleEntry) -> Any:
        """One row of one text."""
        session, done = entry.owner.session, entry.done
        token, position, zero = self._one
        token[0], position[0] = session.tokens[done], done
        kv, more = session.kv, {}
        if kv.slot is not None:
            more["slots"] = (kv.slot,)
        if session.adapters:
            adapted = getattr(session.adapters, "factors", None)
            if adapted is not None:
                more["adapters"] = (adapted,)
        return self._make(token, position, (kv.table,), zero, zero, **more)

    def _candidates(self, entry: ScheduleEntry, rows: int) -> Any:
        """The last token of one text, and candidates."""
        session, done, counted = entry.owner.session, entry.done, self._counted[:rows]
        kv, more = session.kv, {}
        if kv.slot is not None:
            own = [-1, *kv.trail(done + 1, rows - 1)]
            more = {"slots": (kv.slot,), "spares": np.array(own, np.int32)}
        return self._make(
            np.array([session.tokens[done], *entry.draft[: rows - 1]], np.int32),
            counted + done,
            (kv.table,),
            self._zeros[:rows],
            counted,
            **more,
        )

    def _rows(self, plan: Plan, taking: dict[int, int]) -> tuple[Any, bool]:
        """Any rows."""
        filled = _Filled(self._tokens, self._positions, self._row_table)
        kept: list[int] = []
        for entry, rows in plan:
            first = filled.rows
            if entry.width:
                filled.add_beams(entry, rows)
            else:
                filled.add_text(entry, rows)
            if taking:
                end = first + rows
                kept.extend(range(end - kept_rows(entry, rows, taking), end))
        return self._make(*filled.arrays(), **filled.options(kept)), filled.hidden


class _Filled:
    """The rows of a batch, while entries are added to them."""

    __slots__ = (
        "adapters",
        "hidden",
        "media",
        "positions",
        "row_table",
        "rows",
        "slots",
        "spares",
        "tables",
        "tokens",
        "wanted",
    )

    def __init__(self, tokens: np.ndarray, positions: np.ndarray, row_table: np.ndarray) -> None:
        self.tokens, self.positions, self.row_table = tokens, positions, row_table
        self.rows, self.hidden = 0, False
        self.tables: list[np.ndarray] = []
        self.slots: list[int | None] = []  # of each table
        self.adapters: list[Any] = []  # of each table
        self.wanted: list[int] = []
        self.spares: list[int] = []  # of the rows, as far as there are candidates with state
        # (session, first token, rows, first row)
        self.media: list[tuple[Any, int, int, int]] = []

    def add_text(self, entry: ScheduleEntry, rows: int) -> None:
        """Rows of one sequence: tokens, and candidates behind the last one."""
        session, start, at = entry.owner.session, entry.done, self.rows
        tokens, positions, kv, end = self.tokens, self.positions, session.kv, at + rows
        if session.media:
            self.media.append((session, start, rows, at))
        if entry.fill is not None:
            tokens[at:end], positions[at:end] = entry.fill.tokens, np.arange(rows)
            self.row_table[at:end] = len(self.tables)
            self.wanted.extend(at + entry.fill.rows)
        elif rows == 1:
            tokens[at], positions[at] = session.tokens[start], start
            self.row_table[at] = len(self.tables)
        else:
            known = entry.length - start  # of the rows, those of tokens
            tokens[at:end] = (
                session.tokens[start : start + rows]
                if rows <= known
                else session.tokens[start:] + list(entry.draft[: rows - known])
            )
            positions[at:end] = (
                range(start, start + rows) if rows < 8 else np.arange(start, start + rows)
            )
            self.row_table[at:end] = len(self.tables)
            if kv.slot is not None and rows > known:
                self.spares += [-1] * (at + known - len(self.spares))
                self.spares += kv.trail(entry.length, rows - known)
        self.tables.append(kv.table)
        self.slots.append(kv.slot)
        self.adapters.append(getattr(session.adapters, "factors", None))
        count = wanted_rows(entry, rows) if entry.fill is None else 0
        if count or entry.every_row:
            self.wanted.extend(range(end - count, end))
            self.hidden |= entry.hidden
        self.rows = end

    def add_beams(self, entry: ScheduleEntry, rows: int) -> None:
        """A row of each of several sequences."""
        request, start, first = entry.owner, entry.done, self.rows
        for at, beam in enumerate(request.search.sessions[entry.part : entry.part + rows], first):
            if request.session.media:
                self.media.append((beam, start, 1, at))
            self.tokens[at], self.positions[at] = beam.tokens[start], start
            self.row_table[at] = len(self.tables)
            self.tables.append(beam.kv.table)
            self.slots.append(beam.kv.slot)
            self.adapters.append(getattr(request.session.adapters, "factors", None))
        self.rows = first + rows
        self.wanted.extend(range(self.rows - wanted_rows(entry, rows), self.rows))

    def arrays(self) -> tuple[Any, ...]:
        """What every batch has."""
        rows = self.rows
        return (
            self.tokens[:rows],
            self.positions[:rows],
            self.tables,
            self.row_table[:rows],
            np.array(self.wanted, np.int32),
        )

    def options(self, kept: list[int]) -> dict[str, Any]:
        """What some batches have besides. kept: the rows that go on behind the last layer."""
        more: dict[str, Any] = {}
        if self.slots[0] is not None:
            more["slots"] = self.slots
        if self.spares:
            more["spares"] = self.spares + [-1] * (self.rows - len(self.spares))
        if self.adapters.count(None) < len(self.adapters):
            more["adapters"] = self.adapters
        if len(kept) > len(self.wanted):
            more["kept"] = np.array(kept, np.int32)
        if self.media:
            more |= inputs(self.media, self.tokens[: self.rows], self.positions[: self.rows])
        return more
