"""Decides which requests run in the next step, and with how many rows. The scheduler handles
integers only, so it can be tested without a model.

    submit -> WAITING -> PREFILLING -> DECODING -> FINISHED
                 ^           |             |
                 +------ PREEMPTED <-------+     its pages were taken; it is the first to return

An entry has `length` tokens, of which the first `done` are in its pages; `length - done` rows are
still to run. A decoding entry has one row to run, or more after tokens that its grammar forced. It
can add the candidates of its `draft`, which run as if they were tokens, so that the same step
verifies them. Rules:

- Decoding entries come first, in rotation, as many per step as measured step times show to be
  cheapest (`StepWidth`) and at most `max_batch_sequences`; each gets a row before any gets a second
  one.
- An entry with several sequences (`width`) runs all of them in one step, unless they are more than
  any step can hold.
- Candidates use only rows and pages that are left over: no entry waits or gives up pages for them.
- Prefill rows fill the step: `prefill_chunk` if nothing decodes, otherwise at most
  `max_prefill_tokens`, and fewer if measured step times show that decoders would wait longer than
  `max_decode_wait_ms`. Half of them go to the oldest prompt (so none starves), the rest to the
  prompts that need the fewest rows (so short prompts do not queue behind long ones).
- Entries are ranked by priority (the lower number first), then by arrival. Waiting entries are
  admitted in order of rank; a waiting entry replaces a running one with a higher priority number.
- When pages run out, waiting entries give up theirs first, then the entry of the lowest rank. The
  first entry always continues, so there is no livelock.
- A `parked` entry waits for a function in a worker thread: it keeps its pages and gets no rows.
- A `whole` entry runs all its rows in one step, and alone if they are more than a chunk.
- Rows of a span (`spans`: an image whose rows see each other) run in one step, whatever the chunk
  size.
- A step gives logits or hidden rows; if both are wanted, the two kinds take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from itertools import islice
from operator import attrgetter
from typing import Any

from oxillama.arguments import named_fields, whole
from oxillama.errors import ConfigError

PREFILL_CHUNK = 512  # rows
MAX_DECODE_WAIT_MS = 100
SMALLEST_CHUNK = 4  # rows: with a decoding row they cost little more than it alone
NARROWEST_STEP = 8  # decoding sequences: fewer share no step less


_rank = attrgetter("rank")


class State(Enum):
    """The state of an entry."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@named_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of a step and of the number of running sequences (docs/serving.md).

    - `max_sequences`: requests that run at once.
    - `max_batch_tokens`: rows of a step.
    - `max_batch_sequences`: most sequences that decode in one step; 0 for all that run, as far as
      there are rows.
    - `max_prefill_tokens`: prompt rows of a step in which other sequences decode.
    - `prefill_chunk`: prompt rows of a step in which none decodes.
    - `max_decode_wait_ms`: the longest a running request may wait for its next token because of
      other requests' prompts.
    - `max_waiting`: requests beyond `max_sequences`; one more is refused with QueueFull. None: no
      limit.
    """

    max_sequences: int = 32
    max_batch_tokens: int = 512
    max_batch_sequences: int = 0
    max_prefill_tokens: int = 256
    prefill_chunk: int = PREFILL_CHUNK
    max_decode_wait_ms: int = MAX_DECODE_WAIT_MS
    max_waiting: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = int(field.name not in ("max_waiting", "max_batch_sequences"))
            if value is not None or field.name != "max_waiting":
                object.__setattr__(self, field.name, whole(field.name, value, least))
        if not self.max_batch_sequences:
            most = min(self.max_sequences, self.max_batch_tokens)
            object.__setattr__(self, "max_batch_sequences", most)
        if self.max_batch_tokens < min(self.max_batch_sequences, self.max_sequences):
            raise ConfigError(
                f"max_batch_tokens: found {self.max_batch_tokens}, wanted a row for each of "
                "max_batch_sequences"
            )


class ScheduleEntry:
    """What the scheduler knows of a request: counts and a state. `owner` belongs to the caller and
    is never read.
    """

    __slots__ = (
        "arrival",
        "done",
        "draft",
        "every_row",
        "fill",
        "hidden",
        "length",
        "owner",
        "parked",
        "part",
        "priority",
        "rank",
        "row_limit",
        "spans",
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
        priority: int = 0,
        owner: Any = None,
    ) -> None:
        self.length = length  # tokens known
        self.done = done  # tokens whose keys and values are in pages
        self.hidden = hidden  # wants hidden rows, not logits
        self.every_row = every_row  # wants the output of every row, not of the last alone
        self.row_limit = 0  # most rows a step, 0: as many as the chunk
        # what all its rows read in place of its tokens, and which of them have an output that is
        # wanted (`sampling.diffusion.Pass`); None: its tokens
        self.fill: Any = None
        self.whole = False  # all its rows are of one step, however many the chunk has
        self.spans: tuple[tuple[int, int], ...] = ()  # (start, end) of rows that are of one step
        self.priority = priority  # the lower number goes first
        self.owner = owner
        # a function of its caller runs in a worker thread, and its next row waits for that
        self.parked = False
        self.draft: Sequence[int] = ()  # tokens that may come next
        # sequences side by side, of `length` and `done` each, that take a row each; 0: one, no such
        self.width = 0
        self.part = 0  # how many of them have had their row of this turn
        self.state = State.WAITING
        self.arrival = 0
        self.rank = (priority, 0)  # its place in every order: by priority, then by arrival

    def in_spans(self, rows: int) -> int:
        """As many rows as the next step may end after: `rows`, or fewer where that would cut a span
        that they come to, or more where they begin in it.
        """
        end = self.done + rows
        for start, stop in self.spans:
            if start < end < stop:
                return start - self.done if start > self.done else stop - self.done
        return rows

    @property
    def wants_output(self) -> bool:
        """Whether any step of this entry must be of its own kind of output."""
        return self.every_row or self.length - self.done <= 1


class StepWidth:
    """How many sequences decode in one step: the number whose steps took the least time a row.

    A wider step reads the weights fewer times for as many tokens, and where arithmetic is the limit
    it gains nothing more; what is best depends on the machine and the model. The choices are 8, 16,
    32, ... and all. Those never measured go first, the widest before others; then the cheapest
    runs, and of equally cheap ones the widest.

    What a width costs is the least of its last measurements. Whatever else the machine does only
    adds to a step's time, and it hits the width that runs more often than those that are measured
    now and then: with a mean, one interrupted step ruled the best width out for thousands of steps.
    """

    MEASURED_EVERY = 64  # steps; then one of the other choices runs
    NOISE = 1.03  # costs in this ratio are equal
    KEPT = 4  # measurements of each width

    def __init__(self, most: int) -> None:
        self._most = most
        # seconds a row of the last steps, by the power of two from the width up
        self._costs: dict[int, deque[float]] = {}
        self._among, self._best, self._since, self._others = 0, 0, 0, 0

    def choose(self, sequences: int, *, measured: bool = True) -> int:
        """How many of this many sequences run in the next step. measured: whether the step only
        decodes, so that its time can be learned from; only such a step tries another width.
        """
        sequences = min(sequences, self._most)
        if sequences <= NARROWEST_STEP:
            return sequences
        self._since += measured
        due = self._since >= self.MEASURED_EVERY
        if sequences == self._among and self._best and not (measured and due):
            return self._best
        choices = [sequences]
        while (narrower := _power(choices[-1]) // 2) >= NARROWEST_STEP:
            choices.append(narrower)
        known = [width for width in choices if _power(width) in self._costs]
        self._among, self._best = sequences, 0
        if measured and len(known) < len(choices):
            return next(width for width in choices if width not in known)
        if measured and due:
            self._since, self._others = 0, self._others + 1
            return choices[self._others % len(choices)]
        if not known:
            return sequences
        costs = {width: min(self._costs[_power(width)]) for width in known}
        least = self.NOISE * min(costs.values())
        best = next(width for width in known if costs[width] <= least)
        if len(known) == len(choices):
            self._best = best
        return best

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a step that only decoded."""
        if rows >= NARROWEST_STEP:
            kept = self._costs.setdefault(_power(rows), deque(maxlen=self.KEPT))
            kept.append(seconds / rows)


def _power(number: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << (number - 1).bit_length()


class Scheduler:
    """Plans steps (continuous batching). This class decides the order; the engine, which owns the
    pages, supplies three functions:

    - `admit(entry) -> bool | None`: set `done` (a prefix hit) and return whether the entry may
      start now. False lets others pass it (what it waits for is on its way), None does not (it
      waits for pages).
    - `reserve(entry, length) -> bool`: make positions below `length` writable; False if no page is
      left.
    - `release(entry)`: take all pages of an entry away (`done` is set to 0 here).
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        admit: Callable[[ScheduleEntry], bool | None],
        reserve: Callable[[ScheduleEntry, int], bool],
        release: Callable[[ScheduleEntry], None],
    ) -> None:
        self.config = config
        self.waiting: deque[ScheduleEntry] = deque()
        self.prefilling: list[ScheduleEntry] = []
        self.decoding: deque[ScheduleEntry] = deque()
        self.parked = 0  # how many entries are
        self.short = False  # whether the last plan left an entry waiting for pages
        # the entry that a callable is called for: the one at fault if it raises
        self.asking: ScheduleEntry | None = None
        self.preemptions = 0
        self._admit, self._reserve, self._release = admit, reserve, release
        self._width = StepWidth(config.max_batch_sequences)
        self._turns = 1  # steps until a decoder's next token
        self._arrivals = 0
        self._row_seconds = 0.0  # running estimate of what a prefill row costs
        self._base_seconds = 0.0  # and of a step that only decodes
        self._fixed_seconds = 0.0  # used instead before there was such a step
        self._hidden_turn = False
        self.starved: ScheduleEntry | None = None  # alone, and still without the pages it needs

    def add(self, entry: ScheduleEntry) -> None:
        """Queue a new entry."""
        self._arrivals += 1
        entry.arrival, entry.state = self._arrivals, State.WAITING
        entry.rank = (entry.priority, entry.arrival)
        self._enqueue(entry)

    def finish(self, entry: ScheduleEntry, *, everywhere: bool = False) -> None:
        """Remove an entry; the caller frees its pages. Does nothing for an entry that is already
        finished.

        everywhere: search every queue, after an error in the middle of a change.
        """
        self.unpark(entry)
        queues: tuple[Any, ...] = (self.decoding, self.prefilling, self.waiting)
        if not everywhere:
            at = {State.DECODING: 0, State.PREFILLING: 1, State.FINISHED: 3}.get(entry.state, 2)
            queues = queues[at : at + 1]
        for queue in queues:
            if entry in queue:
                queue.remove(entry)
        entry.state = State.FINISHED

    def park(self, entry: ScheduleEntry) -> None:
        """Give an entry no rows until `unpark`."""
        # both at once, whatever is refused
        entry.parked, self.parked = True, self.parked + (not entry.parked)

    def unpark(self, entry: ScheduleEntry) -> None:
        """Plan an entry again."""
        entry.parked, self.parked = False, self.parked - entry.parked

    def evict_parked(self) -> None:
        """Take the pages of every parked entry if others wait for pages. The entry is evaluated
        again when its function has returned.
        """
        if self.short:
            for entry in [each for each in (*self.prefilling, *self.decoding) if each.parked]:
                self._preempt(entry)

    @property
    def running(self) -> int:
        """Entries that hold pages."""
        return len(self.prefilling) + len(self.decoding)

    @property
    def decode_seconds(self) -> float:
        """The duration of a step that only decodes, 0 before the first."""
        return self._base_seconds

    @property
    def idle(self) -> bool:
        """Whether there is nothing to plan: no entries, or only parked ones."""
        return len(self.waiting) + len(self.prefilling) + len(self.decoding) == self.parked

    def schedule(self) -> list[tuple[ScheduleEntry, int]]:
        """(entry, rows) of the next step with their positions reserved, in order of admission
        class, decoders first.

        Empty if idle, or if `starved` names an entry that runs alone and cannot get its pages.
        """
        self.starved = self.asking = None
        self.short = False
        # the common case, kept short
        if len(self.decoding) == 1 and not self.waiting and not self.prefilling:
            entry = self.decoding[0]
            if entry.length == entry.done + 1 and not (entry.width or entry.parked):
                rows = 1
                if entry.draft:
                    rows = min(1 + len(entry.draft), self.config.max_batch_tokens)
                if self._try_reserve(entry, entry.done + rows):
                    return [(entry, rows)]
        if self.waiting:
            self._admit_waiting()
        hidden = self._wants_hidden_rows()
        plan: list[tuple[ScheduleEntry, int]] = []
        if not hidden:
            self._plan_decoding(plan)
        self._plan_prefill(plan, hidden)
        if not plan and self.running:
            self._plan_oldest(plan, hidden)
        return plan

    def observe(self, *, prefill_rows: int, seconds: float, decode_rows: int = 1) -> None:
        """Learn the cost of rows from a finished step: how many sequences decode in one step, and
        how large the next chunks may be.
        """
        mixed = decode_rows > 0
        if not prefill_rows:
            self._width.observe(decode_rows, seconds)
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
        """The number of prefill rows that the next step may hold."""
        config = self.config
        if not self.decoding:
            return min(config.prefill_chunk, config.max_batch_tokens)
        free = min(config.max_prefill_tokens, config.max_batch_tokens)
        # Before any chunk was measured: a row of many costs no more than a step of few rows does.
        # Before any step with decoders was: the smallest chunk, which measures one.
        fixed = self._base_seconds or self._fixed_seconds
        cost = self._row_seconds or self._base_seconds
        if not fixed:
            return min(free, SMALLEST_CHUNK)
        # a third of the step at least: where it is longer than the bound by itself, prompts go on
        # too
        budget = max(config.max_decode_wait_ms / 1000 / self._turns - fixed, fixed / 2)
        return min(free, max(SMALLEST_CHUNK, int(budget / cost)))

    def start_decoding(self, entry: ScheduleEntry) -> None:
        """An entry's prompt is evaluated and it has drawn a token."""
        if entry.state is State.PREFILLING:
            self.prefilling.remove(entry)
            self.decoding.append(entry)
            entry.state = State.DECODING

    def _admit_waiting(self) -> None:
        passed, most = 0, 4 * self.config.max_sequences
        for entry in list(islice(self.waiting, most + self.config.max_sequences)):
            if passed == most:
                return
            if entry.parked:
                passed += 1
                continue
            if self.running >= self.config.max_sequences and not self._preempt_for(entry):
                return
            self.asking = entry
            admitted = self._admit(entry)
            while admitted is None and self._preempt_for(entry):
                admitted = self._admit(entry)
            self.asking = None
            if not admitted:
                passed += 1
                if admitted is None:
                    self.short = True
                    return
                continue
            self.prefilling.append(entry)
            self.waiting.remove(entry)
            entry.state = State.PREFILLING

    def _preempt_for(self, entry: ScheduleEntry) -> bool:
        """Preempt the running entry of the lowest rank if its priority number is higher than that
        of a waiting entry.
        """
        last = max((*self.prefilling, *self.decoding), key=_rank, default=None)
        if last is None or last.priority <= entry.priority:
            return False
        self._preempt(last)
        return True

    def _try_reserve(self, entry: ScheduleEntry, length: int) -> bool:
        self.asking = entry
        found = self._reserve(entry, length)
        self.asking = None
        return found

    def _enqueue(self, entry: ScheduleEntry) -> None:
        """Add an entry to the waiting ones, by its rank."""
        later: list[ScheduleEntry] = []
        while self.waiting and self.waiting[-1].rank > entry.rank:
            later.append(self.waiting.pop())
        self.waiting.append(entry)
        self.waiting.extend(reversed(later))

    def _wants_hidden_rows(self) -> bool:
        """Whether this step gives hidden rows; if both kinds are wanted, they take turns."""
        hidden = any(entry.hidden and not entry.parked for entry in self.prefilling)
        if not hidden:
            return False
        if not self.decoding and all(entry.hidden for entry in self.prefilling):
            return True
        self._hidden_turn = not self._hidden_turn
        return self._hidden_turn

    def _plan_decoding(self, plan: list[tuple[ScheduleEntry, int]]) -> None:
        turn, first = self._next_decoders()
        decoding = State.DECODING
        # rows beyond everybody's first, and beyond those of prompts
        spare = max(0, self.config.max_batch_tokens - first - self._prompt_rows())
        for entry in sorted(turn, key=_rank):
            if entry.width:
                if entry.state is decoding and self._make_room(entry, entry.done + 1, plan):
                    plan.append((entry, self._sequences_of(entry)))
                continue
            rows, more = entry.length - entry.done, 0
            if rows == 1 and not entry.draft:  # the common case, kept short
                if entry.state is decoding and self._make_room(entry, entry.length, plan):
                    plan.append((entry, 1))
                continue
            if rows > 1 + spare:
                rows = 1 + spare
            if entry.state is decoding and self._make_room(entry, entry.done + rows, plan):
                if entry.draft and entry.done + rows == entry.length:
                    more = min(len(entry.draft), 1 + spare - rows)
                    while more and not self._try_reserve(entry, entry.length + more):
                        more //= 2
                plan.append((entry, rows + more))
                spare -= rows + more - 1

    def _prompt_rows(self) -> int:
        """The rows that prompts have in a step in which others decode."""
        ready = self._ready_prompts(hidden=False)
        if not ready:
            return 0
        rows = min(self.chunk(), sum(entry.length - entry.done for entry in ready))
        return max(rows, min(ready, key=_rank).in_spans(1))

    def _next_decoders(self) -> tuple[list[ScheduleEntry], int]:
        """(the next decoders in rotation, the number of their sequences), as many as a step holds.
        An entry that needs more than are left is the first of the next step.
        """
        # decoders leave a row to who prefills
        rows = max(1, self.config.max_batch_tokens - bool(self.prefilling))
        plain = not (self.parked or any(entry.width for entry in self.decoding))
        sequences = len(self.decoding) if plain else sum(each.width or 1 for each in self.decoding)
        most = free = min(self._width.choose(sequences, measured=not self.prefilling), rows)
        self._turns = max(1, -(-sequences // max(most, 1)))
        if plain:
            turn = list(self.decoding)[:free]
            self.decoding.rotate(-len(turn))
            return turn, len(turn)
        turn = []
        rest: list[ScheduleEntry] = []
        refused = False
        for entry in self.decoding:
            need = self._sequences_of(entry)
            fits = not entry.parked and (need <= free or not (turn or refused))
            refused |= not (fits or entry.parked)
            (turn if fits else rest).append(entry)
            free -= need if fits else 0
        self.decoding = deque([*rest, *turn])
        return turn, most - free

    def _sequences_of(self, entry: ScheduleEntry) -> int:
        """The number of sequences of a decoding entry in its next step."""
        return (
            min(
                entry.width - entry.part,
                self.config.max_batch_sequences,
                self.config.max_batch_tokens,
            )
            if entry.width
            else 1
        )

    def _ready_prompts(self, *, hidden: bool) -> list[ScheduleEntry]:
        """The entries that prefill in a step of hidden rows, or of logits."""
        return [
            entry
            for entry in self.prefilling
            if not entry.parked and (entry.hidden == hidden or not entry.wants_output)
        ]

    def _plan_prefill(self, plan: list[tuple[ScheduleEntry, int]], hidden: bool) -> None:
        ready = self._ready_prompts(hidden=hidden)
        if not ready:
            return
        left = min(self.chunk(), self.config.max_batch_tokens - sum(rows for _, rows in plan))
        oldest = min(ready, key=_rank)
        others = sorted(
            (entry for entry in ready if entry is not oldest),
            key=lambda each: (each.priority, each.length - each.done, each.arrival),
        )
        need = sum(entry.length - entry.done for entry in others)
        for share, entry in (
            (max(left - need, -(-left // 2)), oldest),
            *((left, each) for each in others),
        ):
            rows = min(share, left, entry.length - entry.done, entry.row_limit or left)
            if entry.whole:
                rows = entry.length - entry.done
                if plan and rows > left:
                    continue  # a longer text waits until it is the oldest
            if entry.hidden != hidden:
                # all but the row whose output is of the other kind
                rows = min(rows, entry.length - entry.done - 1)
            if entry.spans:
                rows = entry.in_spans(rows)
                if rows > self.config.max_batch_tokens - sum(each for _, each in plan):
                    continue  # its rows come together, in another step
            if (
                rows > 0
                and entry.state is State.PREFILLING
                and self._make_room(entry, entry.done + rows, plan)
            ):
                plan.append((entry, rows))
                left -= rows
            if left <= 0:
                return

    def _make_room(
        self, entry: ScheduleEntry, length: int, plan: list[tuple[ScheduleEntry, int]]
    ) -> bool:
        """Reserve pages. If necessary, take them from waiting entries, then from entries of a lower
        rank that are not in the plan.
        """
        while not self._try_reserve(entry, length):
            # a session that went on, a sibling
            holding = next((each for each in reversed(self.waiting) if each.done), None)
            if holding is not None:
                self._release_pages(holding)
                continue
            planned = {each for each, _ in plan}
            younger = [
                each
                for each in (*self.prefilling, *self.decoding)
                if (each.rank > entry.rank or each.parked) and each not in planned
            ]
            if younger:
                self._preempt(max(younger, key=_rank))
            elif entry.state is State.DECODING and self.running > 1:
                self._preempt(entry)
                return False
            else:
                return False
        return True

    def _plan_oldest(self, plan: list[tuple[ScheduleEntry, int]], hidden: bool) -> None:
        """Nothing fitted: the oldest entry takes pages from all others, row by row if necessary. If
        it is alone and still lacks pages, it is `starved`.
        """
        running = [each for each in (*self.prefilling, *self.decoding) if not each.parked]
        if not running:
            return
        oldest = min(running, key=_rank)
        if oldest.hidden != hidden and oldest.wants_output:
            return  # its turn is the next
        most = self.config.max_batch_tokens
        rows = (
            self._sequences_of(oldest)
            if oldest.width
            else min(oldest.length - oldest.done, most if oldest.whole else SMALLEST_CHUNK, most)
        )
        if oldest.spans and not oldest.width:
            rows = oldest.in_spans(rows)
        if self._make_room(oldest, oldest.done + (1 if oldest.width else rows), plan):
            plan.append((oldest, rows))
        elif self.running <= 1:
            self.starved = oldest

    def _release_pages(self, entry: ScheduleEntry) -> None:
        self.asking = entry
        self._release(entry)
        self.asking, entry.done = None, 0

    def _preempt(self, entry: ScheduleEntry) -> None:
        (self.prefilling if entry.state is State.PREFILLING else self.decoding).remove(entry)
        self._release_pages(entry)
        entry.width, entry.part, entry.draft, entry.state = 0, 0, (), State.PREEMPTED
        self.preemptions += 1
        # by its rank: before those of its priority that came later
        self._enqueue(entry)
