"""The scheduler on integers alone: bounds of a step, fairness, and pages that run out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.engine.scheduler import (
    MAX_DECODE_WAIT_MS,
    PREFILL_CHUNK,
    SMALLEST_CHUNK,
    ScheduleEntry,
    Scheduler,
    SchedulerConfig,
    State,
    StepWidth,
)
from oxillama.errors import ConfigError


class Pages:
    """So many pages of 16 tokens, counted per entry."""

    def __init__(self, pages=1 << 30):
        self.left, self.held = pages, {}

    def reserve(self, entry, length):
        need = -(-length // 16) - self.held.get(entry, 0)
        if need > self.left:
            return False
        if need > 0:
            self.held[entry] = self.held.get(entry, 0) + need
            self.left -= need
        return True

    def release(self, entry):
        self.left += self.held.pop(entry, 0)


def scheduler(pages=None, admit=None, **config):
    room = pages or Pages()
    return Scheduler(
        SchedulerConfig(**config),
        admit=admit or (lambda entry: True),
        reserve=room.reserve,
        release=room.release,
    )


def play(plan, sched, pages=None, ends=()):
    """Do what a step does: rows are in pages, whoever is through gets a token; an entry whose total
    is reached finishes.
    """
    for entry, rows in plan:
        entry.done += rows
        if entry.done == entry.length:
            if entry.owner is not None and entry.length >= entry.owner:
                sched.finish(entry)
                if pages:
                    pages.release(entry)
            else:
                entry.length += 1
                sched.start_decoding(entry)


def decoders(sched, count):
    """`count` entries that decode."""
    entries = [ScheduleEntry(1) for _ in range(count)]
    for entry in entries:
        sched.add(entry)
    while any(entry.state is not State.DECODING for entry in entries):
        play([pair for pair in sched.schedule() if pair[0].state is not State.DECODING], sched)
    return entries


def test_the_defaults_are_the_documented_ones():
    config = SchedulerConfig()
    assert (
        config.max_sequences,
        config.max_batch_tokens,
        config.max_batch_sequences,
        config.max_prefill_tokens,
    ) == (32, 512, 32, 256)
    assert (PREFILL_CHUNK, MAX_DECODE_WAIT_MS) == (512, 100)


@pytest.mark.parametrize(
    ("field", "value"),
    (
        ("max_sequences", 0),
        ("max_batch_tokens", True),
        ("max_prefill_tokens", 1.5),
        ("max_batch_sequences", -1),
    ),
)
def test_impossible_bounds_raise(field, value):
    with pytest.raises(ConfigError, match=field):
        SchedulerConfig(**{field: value})
    with pytest.raises(ConfigError, match="max_batch_tokens: found 3, wanted a row for each"):
        SchedulerConfig(max_batch_tokens=3, max_batch_sequences=4)


def test_all_that_run_decode_together_unless_a_bound_is_given():
    assert SchedulerConfig(max_batch_tokens=3).max_batch_sequences == 3
    assert SchedulerConfig(max_sequences=64).max_batch_sequences == 64
    assert SchedulerConfig(max_batch_sequences=5).max_batch_sequences == 5


def test_a_lone_prompt_fills_the_chunk():
    sched = scheduler()
    entry = ScheduleEntry(1200)
    sched.add(entry)
    rows = []
    while entry.state is not State.DECODING:
        plan = sched.schedule()
        rows.append([count for _, count in plan])
        play(plan, sched)
    assert rows == [[512], [512], [176]]


def test_prefill_and_decode_rows_share_a_step():
    sched = scheduler()
    waiting = decoders(sched, 3)
    sched.observe(prefill_rows=0, seconds=1e-6)
    sched.add(ScheduleEntry(32_000))
    for _ in range(20):
        plan = dict(sched.schedule())
        # nobody waits for more than one chunk
        assert all(plan[entry] == 1 for entry in waiting)
        assert sum(plan.values()) == 3 + 256
        play(plan.items(), sched)


def test_prompts_get_a_third_of_a_step_where_decoding_alone_takes_longer_than_the_bound():
    sched = scheduler()
    decoders(sched, 2)
    sched.add(ScheduleEntry(100_000))
    play(sched.schedule(), sched)
    for _ in range(40):
        sched.observe(prefill_rows=0, seconds=0.2)
        sched.observe(prefill_rows=20, seconds=0.2 + 20 * 0.005)
    assert sched.chunk() in (19, 20)  # 0.1 s of rows with 0.2 s of decoding


def test_the_chunk_shrinks_until_the_wait_is_short_enough():
    sched = scheduler()
    decoders(sched, 2)
    sched.add(ScheduleEntry(100_000))
    play(sched.schedule(), sched)
    sched.observe(prefill_rows=0, seconds=0.020)
    for _ in range(30):
        sched.observe(prefill_rows=64, seconds=0.020 + 64 * 0.001)  # a millisecond a row
    assert 60 <= sched.chunk() <= 80  # (100 - 20) rows
    for _ in range(30):
        sched.observe(prefill_rows=64, seconds=0.020 + 64 * 0.1)
    assert sched.chunk() == SMALLEST_CHUNK
    for _ in range(60):
        sched.observe(prefill_rows=64, seconds=0.020 + 64 * 0.00001)
    assert sched.chunk() == 256


def test_decoding_rotates_beyond_the_sequences_of_a_step():
    sched = scheduler(max_batch_sequences=4)
    entries = decoders(sched, 10)
    turns = dict.fromkeys(entries, 0)
    for _ in range(10):
        plan = sched.schedule()
        assert len(plan) == 4
        for entry, _ in plan:
            turns[entry] += 1
        play(plan, sched)
    assert set(turns.values()) == {4}


def test_short_prompts_do_not_queue_behind_a_long_one_which_goes_on():
    sched = scheduler(max_prefill_tokens=64, prefill_chunk=64)
    sched.observe(prefill_rows=0, seconds=1e-6)
    long = ScheduleEntry(10_000)
    sched.add(long)
    play(sched.schedule(), sched)
    shorts = [ScheduleEntry(20) for _ in range(3)]
    for entry in shorts:
        sched.add(entry)
    before = long.done
    for _ in range(3):
        play(sched.schedule(), sched)
    assert all(entry.state is State.DECODING for entry in shorts) and long.done >= before + 3 * 30


def test_the_youngest_gives_way_and_comes_back_first():
    pages = Pages(4)
    sched = scheduler(pages)
    old, young, later = ScheduleEntry(30), ScheduleEntry(30), ScheduleEntry(5)
    sched.add(old)
    sched.add(young)
    play(sched.schedule(), sched)
    old.length = old.done + 1
    for _ in range(6):
        play(sched.schedule(), sched)
    sched.add(later)
    assert (
        young.state in (State.PREEMPTED, State.PREFILLING)
        and old.state is State.DECODING
        and sched.preemptions >= 1
    )
    sched.finish(old)
    pages.release(old)
    plan = sched.schedule()
    assert young in dict(plan)


def test_a_ticket_alone_without_room_is_starved():
    sched = scheduler(Pages(2))
    entry = ScheduleEntry(100, owner=200)
    sched.add(entry)
    for _ in range(10):
        plan = sched.schedule()
        if not plan:
            break
        play(plan, sched)
    assert sched.starved is entry


def test_waiting_for_pages_blocks_those_behind_and_waiting_for_a_prefix_does_not():
    answers = {}
    sched = scheduler(admit=lambda entry: answers.get(entry, True))
    first, second = ScheduleEntry(10), ScheduleEntry(10)
    sched.add(first)
    sched.add(second)
    answers[first] = None
    assert sched.schedule() == [] and second.state is State.WAITING
    answers[first] = False
    assert [entry for entry, _ in sched.schedule()] == [second]
    assert list(sched.waiting) == [first]


def test_hidden_rows_and_logits_take_turns():
    sched = scheduler()
    words = decoders(sched, 1)[0]
    vectors = ScheduleEntry(2000, hidden=True, every_row=True)
    sched.add(vectors)
    kinds = []
    while vectors.done < vectors.length:
        plan = sched.schedule()
        kinds.append({entry.hidden for entry, _ in plan})
        for entry, rows in plan:
            entry.done += rows
            if entry is words:
                entry.length += 1
    assert all(len(kind) == 1 for kind in kinds) and {False} in kinds and {True} in kinds


def test_a_step_of_hidden_rows_without_pages_leaves_its_turn_to_who_decodes():
    sched = scheduler(Pages(1))
    words = decoders(sched, 1)[0]
    sched.add(ScheduleEntry(20, hidden=True, every_row=True))
    assert [sched.schedule() for _ in range(2)] == [[], [(words, 1)]]
    assert words.state is State.DECODING and sched.starved is None


def test_a_request_of_higher_priority_takes_as_many_places_as_it_needs_and_no_more():
    sched = scheduler(admit=lambda entry: True if not entry.priority or sched.running < 2 else None)
    first, *others = decoders(sched, 3)
    urgent = ScheduleEntry(10, priority=-1)
    sched.add(urgent)
    assert urgent in dict(sched.schedule()) and sched.preemptions == 2 and not sched.short
    assert [each.state for each in others] == [State.PREEMPTED] * 2
    assert first.state is State.DECODING


def test_a_plan_asks_no_more_waiting_entries_than_a_few_for_each_place():
    asked = []
    sched = scheduler(admit=lambda entry: asked.append(entry) or False, max_sequences=2)
    for _ in range(20):
        sched.add(ScheduleEntry(5))
    assert sched.schedule() == [] and asked == list(sched.waiting)[:8]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 120), st.integers(1, 30)), min_size=1, max_size=12),
    st.integers(9, 40),
    st.integers(1, 6),
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(1, 8),
    st.integers(0, 9),
)
def test_everybody_finishes_within_the_bounds_of_every_step(
    jobs, pages, batch, rows, chunk, running, forced
):
    """forced: tokens that come with each that is drawn, and run with it in the next step."""
    room, rows = Pages(pages), max(rows, batch)
    config = dict(
        max_batch_sequences=batch,
        max_batch_tokens=rows,
        prefill_chunk=chunk,
        max_prefill_tokens=chunk,
        max_sequences=running,
    )
    sched = scheduler(room, **config)
    entries = [ScheduleEntry(length, owner=min(length + more, 16 * pages)) for length, more in jobs]
    for entry in entries:
        sched.add(entry)
    for _ in range(20_000):
        if sched.idle:
            break
        plan = sched.schedule()
        assert len({entry for entry, _ in plan}) == len(plan) and all(count for _, count in plan)
        assert sum(count for _, count in plan) <= rows and sched.running <= running
        assert sum(entry.state is State.DECODING for entry, _ in plan) <= batch
        assert plan or sched.starved is None
        play(plan, sched, room)
        for entry, _ in plan:
            if entry.done + 1 == entry.length:
                entry.length = max(entry.length, min(entry.length + forced, entry.owner))
    assert all(entry.state is State.FINISHED for entry in entries)
    assert room.left == pages


def test_a_turn_that_lost_its_pages_leaves_no_step_wider_than_the_bound():
    """The youngest gives up its own turn: the oldest has it, with as many rows as a step holds."""
    pages = Pages(1 << 30)
    sched = scheduler(pages, max_batch_tokens=3, max_batch_sequences=1, max_sequences=2)
    old, young = decoders(sched, 2)
    play(sched.schedule(), sched)  # the next turn is that of the young one
    old.length, young.done, young.length, pages.left = old.done + 9, 16, 17, 0
    assert sched.schedule() == [(old, 3)]
    assert young.state is State.PREEMPTED


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=9), st.integers(1, 8), st.integers(8, 20))
def test_sequences_side_by_side_go_in_one_step_where_they_fit_and_nobody_starves(
    widths, most, rows
):
    sched = scheduler(max_batch_sequences=most, max_batch_tokens=rows, max_sequences=20)
    entries = decoders(sched, len(widths))
    for entry, width in zip(entries, widths):
        entry.width = width
    turns = dict.fromkeys(entries, 0)
    for _ in range(12 * (sum(width or 1 for width in widths) // most + len(widths))):
        plan = sched.schedule()
        taken = dict(plan)
        assert len(taken) == len(plan) and sum(taken.values()) <= min(most, rows)
        for entry, count in taken.items():
            assert count == (min(entry.width - entry.part, most) if entry.width else 1)
            entry.part += count if entry.width else 0
            if entry.part == entry.width:
                entry.part, entry.done, entry.length = 0, entry.done + 1, entry.length + 1
                turns[entry] += 1
    # a wide one has had so many turns of several steps each
    assert min(turns.values()) >= 2


def test_decoders_that_fill_every_step_leave_a_row_to_who_prefills():
    sched = scheduler(max_batch_sequences=8, max_batch_tokens=8)
    busy = decoders(sched, 8)
    late = ScheduleEntry(20)
    sched.add(late)
    turns = dict.fromkeys(busy, 0)
    for _ in range(20):
        plan = sched.schedule()
        for entry, _ in plan:
            turns[entry] = turns.get(entry, 0) + 1
        play(plan, sched)
    assert late.state is State.DECODING and min(turns[entry] for entry in busy) >= 17


@pytest.mark.parametrize("spans", ((), ((0, 40),)))
def test_prompts_do_not_wait_for_candidates(spans):
    """As many as every decoder brings in every step; nor do rows that come together."""
    sched = scheduler(max_batch_tokens=48, max_sequences=8)
    busy, prompt = decoders(sched, 3), ScheduleEntry(42)
    prompt.spans = spans
    sched.add(prompt)
    for wanted in (40, 42) if spans else (4, 8, 12):
        for entry in busy:
            entry.draft = [1] * 16
        plan = dict(sched.schedule())
        candidates = sum(plan[entry] - 1 for entry in busy)
        assert sum(plan.values()) == 48 and candidates == 45 - plan[prompt]
        play([(prompt, plan[prompt])], sched)
        for entry in busy:
            entry.done, entry.length = entry.length, entry.length + 1
        assert prompt.done == wanted


def test_a_whole_ticket_is_one_step_and_others_fill_what_it_leaves():
    sched = scheduler(prefill_chunk=50, max_batch_tokens=200)
    lengths = (20, 150, 30, 60, 10)
    entries = [
        ScheduleEntry(length, every_row=True, hidden=True, owner=length) for length in lengths
    ]
    for entry in entries:
        entry.whole = True
        sched.add(entry)
    steps = []
    while not sched.idle:
        plan = sched.schedule()
        assert all(rows == entry.length and not entry.done for entry, rows in plan)
        assert len(plan) == 1 or sum(rows for _, rows in plan) <= 50
        steps.append([rows for _, rows in plan])
        play(plan, sched)
    assert sorted(sum(steps, [])) == sorted(lengths)
    assert steps[:2] == [[20, 10], [150]]


def test_a_whole_ticket_takes_its_pages_or_starves():
    pages = Pages(4)
    sched = scheduler(pages)
    first, second = (ScheduleEntry(n, every_row=True, hidden=True, owner=n) for n in (40, 64))
    for entry in (first, second):
        entry.whole = True
        sched.add(entry)
    for wanted in (first, second):
        plan = sched.schedule()
        assert plan == [(wanted, wanted.length)]
        play(plan, sched, pages)
    large = ScheduleEntry(65, every_row=True, hidden=True)
    large.whole = True
    sched.add(large)
    assert sched.schedule() == [] and sched.starved is large


def widths(seconds, sequences, steps, most=64):
    """How many sequences decode in each of so many steps that take seconds(width)."""
    found, seen = StepWidth(most), []
    for _ in range(steps):
        seen.append(found.choose(sequences))
        found.observe(seen[-1], seconds(seen[-1]))
    return seen


def test_few_sequences_decode_together_whatever_it_costs():
    assert widths(lambda width: width**3, 8, 200) == [8] * 200
    assert widths(lambda width: width**3, 32, 200, most=5) == [5] * 200


def test_the_width_of_steps_follows_what_a_row_costs():
    assert widths(lambda width: 1 + 0.01 * width, 32, 60) == [32, 16, 8] + [32] * 57
    assert widths(lambda width: width if width > 16 else 0.8 * width, 40, 60)[4:] == [16] * 56
    # within the noise the widest, which lets nobody wait for another turn
    assert set(widths(lambda width: width * (1.02 if width > 8 else 1.0), 24, 60)[3:]) == {24}


def test_widths_are_measured_again_as_costs_change():
    steps = 0

    def seconds(width):
        nonlocal steps
        steps += 1
        return width * (1.5 if (width > 8) == (steps > 300) else 1.0)

    seen = widths(seconds, 32, 2000)
    assert seen[100:163].count(32) >= 62 and seen[-63:].count(8) >= 62
    others = [width for width in seen[64:256] if width != 32]
    assert 1 <= len(others) <= 3


def test_steps_that_the_machine_interrupts_do_not_narrow_the_next():
    """Every tenth step takes five times as long, whatever its width: 32 stays 10 % cheaper than
    16.
    """
    steps = 0

    def seconds(width):
        nonlocal steps
        steps += 1
        return width * (1.0 if width == 32 else 1.1) * (5 if steps % 10 == 0 else 1)

    seen = widths(seconds, 32, 3000)
    assert seen[3:].count(32) >= 0.98 * len(seen[3:])


def test_steps_with_prompts_try_no_width():
    found = StepWidth(64)
    assert [found.choose(32, measured=False) for _ in range(200)] == [32] * 200
    found.observe(found.choose(32), 1.0)  # a step that only decodes, of all
    assert [found.choose(32, measured=False) for _ in range(200)] == [32] * 200
    assert found.choose(32) == 16  # and now the next width is tried


def test_a_text_is_embedded_right_after_the_first_prompt():
    """A step without decoders told the next one, of hidden rows, that no turn is left."""
    scheduler = Scheduler(
        SchedulerConfig(),
        admit=lambda entry: True,
        reserve=lambda entry, length: True,
        release=lambda entry: None,
    )
    first, text = ScheduleEntry(4), ScheduleEntry(40, hidden=True, every_row=True)
    scheduler.add(first)
    assert scheduler.schedule() == [(first, 4)]
    scheduler.observe(prefill_rows=0, seconds=0.01)
    first.done, first.length = 4, 5
    scheduler.start_decoding(first)
    scheduler.add(text)
    ((entry, rows),) = scheduler.schedule()
    assert entry is text and 0 < rows <= 40
