"""From a plan of the scheduler to the arrays of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from oxillama.engine.images import inputs
from oxillama.engine.scheduler import ScheduleEntry


class Batcher:
    """Fills a step's arrays from a plan; the arrays are reused, so a batch is valid until the next
    one is made.
    """

    __slots__ = ("_first", "_make", "_positions", "_row_table", "_tokens")

    def __init__(self, make: Callable, max_rows: int) -> None:
        self._make = make
        self._tokens, self._positions, self._row_table = (
            np.zeros(max_rows, np.int32) for _ in range(3)
        )
        self._first = np.zeros(1, np.int32)

    def __call__(self, plan: list[tuple[ScheduleEntry, int]]) -> tuple[Any, bool]:
        """(what the program is given, whether the step is for hidden rows)."""
        tokens, positions, row_table = self._tokens, self._positions, self._row_table
        # one row: the common case, kept short
        if (
            len(plan) == 1
            and plan[0][1] == 1
            and not plan[0][0].width
            and not plan[0][0].owner.session.images
        ):
            entry = plan[0][0]
            session = entry.owner.session
            tokens[0], positions[0], row_table[0] = session.tokens[entry.done], entry.done, 0
            kv = session.kv
            more: dict[str, Any] = {} if kv.slot is None else {"slots": (kv.slot,)}
            adapted = getattr(session.adapters, "factors", None)
            if adapted is not None:
                more["adapters"] = (adapted,)
            return self._make(
                tokens[:1], positions[:1], (kv.table,), row_table[:1], self._first, **more
            ), entry.hidden
        at, hidden = 0, False
        tables: list[np.ndarray] = []
        slots: list[int | None] = []
        adapters: list[Any] = []  # of each table
        wanted: list[int] = []
        pictured: list[tuple[Any, int, int, int]] = []
        for entry, rows in plan:
            request, start = entry.owner, entry.done
            session, end = request.session, at + rows
            adapted = getattr(session.adapters, "factors", None)
            adapters.extend([adapted] * (rows if entry.width else 1))
            if entry.width:
                if session.images:
                    beams = request.beams.sessions[entry.part : entry.part + rows]
                    pictured += [(beam, start, 1, row) for row, beam in enumerate(beams, at)]
                for row, beam in enumerate(
                    request.beams.sessions[entry.part : entry.part + rows], at
                ):
                    tokens[row], positions[row], row_table[row] = (
                        beam.tokens[start],
                        start,
                        len(tables),
                    )
                    tables.append(beam.kv.table)
                    slots.append(beam.kv.slot)
                wanted.extend(range(at, end) if start + 1 == entry.length else ())
                at = end
                continue
            if session.images:
                pictured.append((session, start, rows, at))
            if rows == 1:
                tokens[at], positions[at], row_table[at] = session.tokens[start], start, len(tables)
            else:
                tokens[at:end] = (
                    session.tokens[start : start + rows]
                    if start + rows <= entry.length
                    else session.tokens[start:] + list(entry.draft[: start + rows - entry.length])
                )
                positions[at:end] = (
                    range(start, start + rows) if rows < 8 else np.arange(start, start + rows)
                )
                row_table[at:end] = len(tables)
            tables.append(session.kv.table)
            slots.append(session.kv.slot)
            if entry.every_row:
                wanted.extend(range(at + max(0, request.delivered - start), end))
                hidden |= entry.hidden
            elif start + rows >= entry.length:
                wanted.extend(range(at + entry.length - 1 - start, end))
                hidden |= entry.hidden
            at = end
        more = {} if slots[0] is None else {"slots": slots}
        if any(each is not None for each in adapters):
            more["adapters"] = adapters
        if pictured:
            more |= inputs(pictured, tokens[:at], positions[:at])
        return self._make(
            tokens[:at], positions[:at], tables, row_table[:at], np.array(wanted, np.int32), **more
        ), hidden
