"""Who runs in the next step, and for how many rows: a scheduler over integers only, which a null
tape is enough to test.

    submit -> WAITING -> PREFILLING -> DECODING -> FINISHED
                 ^           |             |
                 +------ PREEMPTED <-------+          its pages were taken; it comes back before all that wait

A ticket has `length` tokens, of which the first `done` are in its pages; `length - done` rows are
still to run. A decoding ticket has one, more after tokens that its grammar forced; to those it may
add the candidates of its `draft`, which are run as if they were tokens, so that the same step
verifies them. Rules:

- Decoding tickets come first, at most `max_batch_sequences` a step, in rotation; each has a row
  before any has more.
- A ticket of several sequences side by side (`width`) takes its turn with all of them in one step,
  unless they are more than fit into any.
- Candidates take rows and pages that are left over: nobody waits or gives up pages for them.
- Prefill rows fill the step: `prefill_chunk` when nobody decodes, else at most
  `max_prefill_tokens`, and fewer when measured steps
  say that the decoders would wait longer than `max_decode_wait_ms`. Half of them go to the oldest
  prompt (so none starves), the rest to the prompts that need the fewest (so short ones do not queue
  behind long ones).
- A ticket ranks by its priority (the lower number first), then by its arrival. Those that wait are
  admitted in order of rank; one that waits takes the place of a running ticket of a higher priority
  number.
- When pages run out, those who wait give up what they have, then the ticket of the last rank its
  own. The first always goes on, so there is no livelock.
- A ticket that is `parked` waits for a function that runs beside the loop: it keeps its pages and
  takes no rows.
- A ticket that must be `whole` runs all its rows in one step: alone where they are more than a chunk.
- A step yields logits or hidden rows; when both are asked for, the kinds take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from itertools import islice
from typing import Any

from oxillama.engine.arguments import whole
from oxillama.errors import ConfigError

PREFILL_CHUNK = 512  # rows
MAX_DECODE_WAIT_MS = 100
SMALLEST_CHUNK = 16  # rows: below this a step is all overhead


class State(Enum):
    """Where a ticket is in its life."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Bounds of a step and of how many sequences run: all in tokens (rows) or sequences, the wait
    in milliseconds.
    """

    max_sequences: int = 32  # admitted at once
    max_batch_tokens: int = 512  # rows of a step
    max_batch_sequences: int = 8  # sequences that decode in one step
    max_prefill_tokens: int = 256  # prefill rows of a step in which others decode
    prefill_chunk: int = PREFILL_CHUNK  # prefill rows of a step in which nobody decodes
    max_decode_wait_ms: int = MAX_DECODE_WAIT_MS
    # requests in flight beyond `max_sequences`; one more is refused with QueueFull. None: no bound
    max_waiting: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), int(field.name != "max_waiting")
            if value is None and not least:
                continue
            object.__setattr__(self, field.name, whole(field.name, value, least))
        if self.max_batch_tokens < min(self.max_batch_sequences, self.max_sequences):
            raise ConfigError(
                f"max_batch_tokens: found {self.max_batch_tokens}, wanted a row for each of max_batch_sequences"
            )


class Ticket:
    """What the scheduler knows of a request: counts and a state. `owner` is the caller's and never
    looked at.
    """

    __slots__ = (
        "arrival",
        "done",
        "draft",
        "every_row",
        "hidden",
        "length",
        "owner",
        "parked",
        "part",
        "priority",
        "row_limit",
        "state",
        "whole",
        "width",
    )

    def __init__(
        self,
        length: int,
        *,
        done: int = 0,
        hidden: bool = False,
        every_row: bool = False,
        row_limit: int = 0,
        priority: int = 0,
        owner: Any = None,
    ) -> None:
        self.length = length  # tokens known
        self.done = done  # tokens whose keys and values are in pages
        self.hidden = hidden  # wants hidden rows, not logits
        self.every_row = every_row  # wants the output of every row, not of the last alone
        self.row_limit = row_limit  # most rows a step, 0: as many as the chunk
        self.whole = False  # all its rows are of one step, however many the chunk has
        self.priority = priority  # the lower number goes first
        self.owner = owner
        # a function of its caller runs beside the loop, and its next row waits for that
        self.parked = False
        self.draft: Sequence[int] = ()  # tokens that may come next
        # sequences side by side, of `length` and `done` each, that take a row each; 0: one, no such
        self.width = 0
        self.part = 0  # how many of them have had their row of this turn
        self.state = State.WAITING
        self.arrival = 0

    @property
    def rank(self) -> tuple[int, int]:
        """Its place in every order: by priority, then by arrival."""
        return self.priority, self.arrival

    @property
    def wants_output(self) -> bool:
        """Whether any step of this ticket must be of its own kind of output."""
        return self.every_row or self.length - self.done <= 1


class Scheduler:
    """Plans steps. The three callables are the engine's: they own pages, this class owns order.

    admit(ticket) -> bool | None: set up `done` (a prefix hit) and say whether it may start now;
    False lets others pass it (what it waits for is on its way), None does not (it waits for pages).
    reserve(ticket, length) -> bool: make room for positions below `length`, False when no page is
    left. release(ticket): take all pages of a ticket away (`done` is set to 0 here).
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        admit: Callable[[Ticket], bool | None],
        reserve: Callable[[Ticket, int], bool],
        release: Callable[[Ticket], None],
    ) -> None:
        self.config = config
        self.waiting: deque[Ticket] = deque()
        self.prefilling: list[Ticket] = []
        self.decoding: deque[Ticket] = deque()
        self.parked = 0  # how many tickets are
        self.short = False  # whether the last plan left somebody waiting for pages
        # whom the callables are being asked for: whose doing it is where one of them raises
        self.asking: Ticket | None = None
        self.preemptions = 0
        self._admit, self._reserve, self._release = admit, reserve, release
        self._arrivals = 0
        self._row_seconds = 0.0  # running estimate of what a prefill row costs
        self._base_seconds = 0.0  # and of a step that only decodes
        self._fixed_seconds = 0.0  # what stands in for that before there was such a step
        self._hidden_turn = False
        self.starved: Ticket | None = None  # alone, and still without the pages it needs

    def add(self, ticket: Ticket) -> None:
        """Queue a new ticket."""
        self._arrivals += 1
        ticket.arrival, ticket.state = self._arrivals, State.WAITING
        self._wait(ticket)

    def finish(self, ticket: Ticket, *, everywhere: bool = False) -> None:
        """Forget a ticket; its pages are the caller's to free. Nothing happens to one that is
        finished already.

        everywhere: it is looked for in every queue, after an error in the middle of a change.
        """
        self.unpark(ticket)
        queues: tuple[Any, ...] = (self.decoding, self.prefilling, self.waiting)
        if not everywhere:
            at = {State.DECODING: 0, State.PREFILLING: 1, State.FINISHED: 3}.get(ticket.state, 2)
            queues = queues[at : at + 1]
        for queue in queues:
            if ticket in queue:
                queue.remove(ticket)
        ticket.state = State.FINISHED

    def park(self, ticket: Ticket) -> None:
        """Give a ticket no rows until `unpark`."""
        # both at once, whatever is refused
        ticket.parked, self.parked = True, self.parked + (not ticket.parked)

    def unpark(self, ticket: Ticket) -> None:
        """Plan a ticket again."""
        ticket.parked, self.parked = False, self.parked - ticket.parked

    def evict_parked(self) -> None:
        """Where others wait for pages: take those of every parked ticket, which is evaluated again
        once its function has returned.
        """
        if self.short:
            for ticket in [each for each in (*self.prefilling, *self.decoding) if each.parked]:
                self._preempt(ticket)

    @property
    def running(self) -> int:
        """Tickets that hold pages."""
        return len(self.prefilling) + len(self.decoding)

    @property
    def decode_seconds(self) -> float:
        """What a step that only decodes takes, 0 before the first."""
        return self._base_seconds

    @property
    def idle(self) -> bool:
        """Whether there is nothing to plan: no ticket, or none that is not parked."""
        return len(self.waiting) + len(self.prefilling) + len(self.decoding) == self.parked

    def schedule(self) -> list[tuple[Ticket, int]]:
        """(ticket, rows) of the next step, each with room reserved; tickets in order of admission
        class, decoders first.

        Empty when idle, or when `starved` names a ticket that is alone and cannot be given its
        pages.
        """
        self.starved = self.asking = None
        self.short = False
        # the common case, kept short
        if len(self.decoding) == 1 and not self.waiting and not self.prefilling:
            ticket = self.decoding[0]
            if (
                not (ticket.draft or ticket.width or ticket.parked)
                and ticket.length == ticket.done + 1
                and self._reserved(ticket, ticket.length)
            ):
                return [(ticket, 1)]
        if self.waiting:
            self._admissions()
        hidden = self._kind()
        plan: list[tuple[Ticket, int]] = []
        if not hidden:
            self._plan_decoding(plan)
        self._plan_prefill(plan, hidden)
        if not plan and self.running:
            self._rescue(plan, hidden)
        return plan

    def observe(self, *, prefill_rows: int, seconds: float, mixed: bool = True) -> None:
        """Learn from a finished step what rows cost, so that the next chunks keep the decoders'
        wait short. mixed: others decoded in a step with prefill rows.
        """
        if not prefill_rows:
            self._base_seconds += (seconds - self._base_seconds) * (
                0.2 if self._base_seconds else 1.0
            )
            return
        if prefill_rows >= SMALLEST_CHUNK:
            fixed = (self._base_seconds or self._fixed_seconds) if mixed else 0.0
            if mixed and not fixed:
                # what the rows do not explain; they explain all where no row was measured either
                fixed = max(seconds - prefill_rows * (self._row_seconds or seconds), 1e-9)
                self._fixed_seconds = fixed
            cost = max(seconds - fixed, 0.1 * seconds) / prefill_rows
            self._row_seconds += (cost - self._row_seconds) * (0.3 if self._row_seconds else 1.0)

    def chunk(self) -> int:
        """Prefill rows that the next step may hold."""
        config = self.config
        if not self.decoding:
            return min(config.prefill_chunk, config.max_batch_tokens)
        room = min(config.max_prefill_tokens, config.max_batch_tokens)
        # Before any chunk was measured: a row of many costs no more than a step of few rows does.
        # Before any step with decoders was: the smallest chunk, which measures one.
        fixed = self._base_seconds or self._fixed_seconds
        cost = self._row_seconds or self._base_seconds
        if not fixed:
            return min(room, SMALLEST_CHUNK)
        # steps until a decoder's next
        turns = -(-sum(each.width or 1 for each in self.decoding) // config.max_batch_sequences)
        budget = config.max_decode_wait_ms / 1000 / turns - fixed
        return min(room, max(SMALLEST_CHUNK, int(budget / cost)))

    def decodes(self, ticket: Ticket) -> None:
        """Say that a ticket has its prompt behind it and got a token."""
        if ticket.state is State.PREFILLING:
            self.prefilling.remove(ticket)
            self.decoding.append(ticket)
            ticket.state = State.DECODING

    def _admissions(self) -> None:
        passed, most = 0, 4 * self.config.max_sequences
        for ticket in list(islice(self.waiting, most + self.config.max_sequences)):
            if passed == most:
                return
            if ticket.parked:
                passed += 1
                continue
            if self.running >= self.config.max_sequences and not self._outrank(ticket):
                return
            self.asking = ticket
            admitted = self._admit(ticket)
            while admitted is None and self._outrank(ticket):
                admitted = self._admit(ticket)
            self.asking = None
            if not admitted:
                passed += 1
                if admitted is None:
                    self.short = True
                    return
                continue
            self.prefilling.append(ticket)
            self.waiting.remove(ticket)
            ticket.state = State.PREFILLING

    def _outrank(self, ticket: Ticket) -> bool:
        """Preempt the running ticket of the last rank if its priority number is higher than that
        of a ticket that waits.
        """
        last = max((*self.prefilling, *self.decoding), key=_rank, default=None)
        if last is None or last.priority <= ticket.priority:
            return False
        self._preempt(last)
        return True

    def _reserved(self, ticket: Ticket, length: int) -> bool:
        self.asking = ticket
        found = self._reserve(ticket, length)
        self.asking = None
        return found

    def _wait(self, ticket: Ticket) -> None:
        """Put a ticket among those that wait, by its rank."""
        later: list[Ticket] = []
        while self.waiting and self.waiting[-1].rank > ticket.rank:
            later.append(self.waiting.pop())
        self.waiting.append(ticket)
        self.waiting.extend(reversed(later))

    def _kind(self) -> bool:
        """Whether this step yields hidden rows: when both kinds are waited for, they take turns."""
        hidden = any(ticket.hidden and not ticket.parked for ticket in self.prefilling)
        if not hidden:
            return False
        if not self.decoding and all(ticket.hidden for ticket in self.prefilling):
            return True
        self._hidden_turn = not self._hidden_turn
        return self._hidden_turn

    def _plan_decoding(self, plan: list[tuple[Ticket, int]]) -> None:
        turn, first = self._turn()
        spare = self.config.max_batch_tokens - first  # rows beyond everybody's first
        for ticket in sorted(turn, key=_rank):
            if ticket.width:
                if ticket.state is State.DECODING and self._make_room(
                    ticket, ticket.done + 1, plan
                ):
                    plan.append((ticket, self._abreast(ticket)))
                continue
            rows, more = ticket.length - ticket.done, 0
            if rows > 1 + spare:
                rows = 1 + spare
            if ticket.state is State.DECODING and self._make_room(ticket, ticket.done + rows, plan):
                if ticket.draft and ticket.done + rows == ticket.length:
                    more = min(len(ticket.draft), 1 + spare - rows)
                    if more and not self._reserved(ticket, ticket.length + more):
                        more = 0
                plan.append((ticket, rows + more))
                spare -= rows + more - 1

    def _turn(self) -> tuple[list[Ticket], int]:
        """(the next decoders in rotation, the sequences they bring): as many as a step holds; who
        needs more than are left is first next time.
        """
        # decoders leave a row to who prefills
        rows = max(1, self.config.max_batch_tokens - bool(self.prefilling))
        most = room = min(self.config.max_batch_sequences, rows)
        if not (self.parked or any(ticket.width for ticket in self.decoding)):
            turn = list(self.decoding)[:room]
            self.decoding.rotate(-len(turn))
            return turn, len(turn)
        turn = []
        rest: list[Ticket] = []
        refused = False
        for ticket in self.decoding:
            need = self._abreast(ticket)
            fits = not ticket.parked and (need <= room or not (turn or refused))
            refused |= not (fits or ticket.parked)
            (turn if fits else rest).append(ticket)
            room -= need if fits else 0
        self.decoding = deque([*rest, *turn])
        return turn, most - room

    def _abreast(self, ticket: Ticket) -> int:
        """Sequences that a decoding ticket brings into its next step."""
        return (
            min(
                ticket.width - ticket.part,
                self.config.max_batch_sequences,
                self.config.max_batch_tokens,
            )
            if ticket.width
            else 1
        )

    def _plan_prefill(self, plan: list[tuple[Ticket, int]], hidden: bool) -> None:
        ready = [
            ticket
            for ticket in self.prefilling
            if not ticket.parked and (ticket.hidden == hidden or not ticket.wants_output)
        ]
        if not ready:
            return
        left = min(self.chunk(), self.config.max_batch_tokens - sum(rows for _, rows in plan))
        oldest = min(ready, key=_rank)
        others = sorted(
            (ticket for ticket in ready if ticket is not oldest),
            key=lambda each: (each.priority, each.length - each.done, each.arrival),
        )
        need = sum(ticket.length - ticket.done for ticket in others)
        for share, ticket in (
            (max(left - need, -(-left // 2)), oldest),
            *((left, each) for each in others),
        ):
            rows = min(share, left, ticket.length - ticket.done, ticket.row_limit or left)
            if ticket.whole:
                rows = ticket.length - ticket.done
                if plan and rows > left:
                    continue  # a longer text waits until it is the oldest
            if ticket.hidden != hidden:
                # all but the row whose output is of the other kind
                rows = min(rows, ticket.length - ticket.done - 1)
            if (
                rows > 0
                and ticket.state is State.PREFILLING
                and self._make_room(ticket, ticket.done + rows, plan)
            ):
                plan.append((ticket, rows))
                left -= rows
            if left <= 0:
                return

    def _make_room(self, ticket: Ticket, length: int, plan: list[tuple[Ticket, int]]) -> bool:
        """Reserve pages, taking them from those who wait, then from tickets of a later rank that are
        not in the plan, when there is no other way.
        """
        while not self._reserved(ticket, length):
            # a session that went on, a sibling
            holding = next((each for each in reversed(self.waiting) if each.done), None)
            if holding is not None:
                self._give_up(holding)
                continue
            planned = {each for each, _ in plan}
            younger = [
                each
                for each in (*self.prefilling, *self.decoding)
                if (each.rank > ticket.rank or each.parked) and each not in planned
            ]
            if younger:
                self._preempt(max(younger, key=_rank))
            elif ticket.state is State.DECODING and self.running > 1:
                self._preempt(ticket)
                return False
            else:
                return False
        return True

    def _rescue(self, plan: list[tuple[Ticket, int]], hidden: bool) -> None:
        """Nothing fitted: the oldest takes from all others, row by row if need be; alone and still
        without room it is `starved`.
        """
        running = [each for each in (*self.prefilling, *self.decoding) if not each.parked]
        if not running:
            return
        oldest = min(running, key=_rank)
        if oldest.hidden != hidden and oldest.wants_output:
            return  # its turn is the next
        rows = (
            self._abreast(oldest)
            if oldest.width
            else min(oldest.length - oldest.done, oldest.length if oldest.whole else SMALLEST_CHUNK)
        )
        if self._make_room(oldest, oldest.done + (1 if oldest.width else rows), plan):
            plan.append((oldest, rows))
        elif self.running <= 1:
            self.starved = oldest

    def _give_up(self, ticket: Ticket) -> None:
        self.asking = ticket
        self._release(ticket)
        self.asking, ticket.done = None, 0

    def _preempt(self, ticket: Ticket) -> None:
        (self.prefilling if ticket.state is State.PREFILLING else self.decoding).remove(ticket)
        self._give_up(ticket)
        ticket.width, ticket.part, ticket.draft, ticket.state = 0, 0, (), State.PREEMPTED
        self.preemptions += 1
        # by its rank: before those of its priority that came later
        self._wait(ticket)


def _rank(ticket: Ticket) -> tuple[int, int]:
    return ticket.rank
