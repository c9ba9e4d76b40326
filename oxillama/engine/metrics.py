"""The engine's counters: integers and a few fixed histograms, cheap enough to be always on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from oxillama.sampling.config import changed_fields

_HELP = {
    "requests_started_total": "Requests submitted.",
    "requests_completed_total": "Requests that ended by themselves.",
    "requests_cancelled_total": "Requests that were cancelled.",
    "requests_failed_total": "Requests that ended in an error.",
    "requests_timed_out_total": (
        "Requests that ended because their time was over; of those that completed."
    ),
    "requests_refused_total": "Requests refused because max_waiting others waited.",
    "requests_preempted_total": "Times a running request gave its pages to an older one.",
    "tokens_prefilled_total": (
        "Prompt tokens evaluated; those found in the prefix cache are not among them."
    ),
    "tokens_generated_total": (
        "Tokens generated, counted when they are drawn: also those while a cancel takes effect."
    ),
    "steps_total": "Steps run.",
    "prompt_tokens_per_second": "Prompt tokens per second of the time that steps spent on prompts.",
    "decode_tokens_per_second": "Tokens per second of the time that steps spent on decoding.",
    "kv_hits_total": "Prompts that began in the prefix cache.",
    "kv_misses_total": "Prompts that did not.",
    "kv_tokens_saved_total": "Prompt tokens taken from the prefix cache.",
    "kv_evictions_total": "Stored sequences evicted.",
    "requests_waiting": "Requests that wait for their turn.",
    "requests_running": "Requests that run.",
    "pages_used": "Pages of keys and values with an owner.",
    "pages_held": "Pages of requests and sessions; the others are in the prefix cache alone.",
    "pages_cached": "Pages the prefix cache has a share in.",
    "pages_leaked": "Owned pages that no request, session or stored prefix refers to; always 0.",
    "page_memory_bytes": "Bytes held for pages, free ones included.",
    "weights_budget_bytes": "Bytes that paged weights may take; 0 where weights are not paged.",
    "weights_packed_bytes": "Bytes of all paged weights, in memory or not.",
    "weights_resident_bytes": "Bytes of paged weights in memory; 0 where weights are not paged.",
    "weight_pages_read_total": "Pages of weights read from the model's file.",
    "weight_page_hits_total": "Pages of weights that steps asked for and found in memory.",
    "weight_bytes_read_total": "Bytes of weights read from the model's file.",
    "weight_wait_seconds_total": "Seconds that workers waited for pages of weights.",
    "queue_seconds": "Time from submit to admission.",
    "first_token_seconds": "Time from submit to the first token.",
    "inter_token_seconds": "Time between tokens of a request.",
}
# seconds
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Histogram:
    """Counts by upper bound, the last one open: by default of durations in seconds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def freeze(self) -> HistogramSnapshot:
        """The counts of durations as they are now."""
        return HistogramSnapshot(tuple(self.counts), self.total)


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """Counts per bound of `BOUNDS` (seconds; one more for longer ones) and the sum of all
    durations.
    """

    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return sum(self.counts)

    def __repr__(self) -> str:
        """How many durations, and their mean."""
        mean = self.sum / self.count if self.count else 0.0
        return f"<HistogramSnapshot {self.count} durations, mean {mean:.6f} s>"

    def quantile(self, share: float) -> float:
        """An upper bound (seconds) of the shortest `share` of the durations; 0 when none was
        counted.
        """
        wanted, seen = share * self.count, 0
        for bound, count in zip((*BOUNDS, float("inf")), self.counts):
            seen += count
            if seen and seen >= wanted:
                return bound
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSnapshot:
    """The engine's counters at one moment; `*_total` only grow. Rates are over the time spent in
    steps of that kind.
    """

    requests_started_total: int = 0
    requests_completed_total: int = 0
    requests_cancelled_total: int = 0
    requests_failed_total: int = 0
    requests_timed_out_total: int = 0
    requests_refused_total: int = 0
    requests_preempted_total: int = 0
    tokens_prefilled_total: int = 0
    tokens_generated_total: int = 0
    steps_total: int = 0
    prompt_tokens_per_second: float = 0.0
    decode_tokens_per_second: float = 0.0
    kv_hits_total: int = 0
    kv_misses_total: int = 0
    kv_tokens_saved_total: int = 0
    kv_evictions_total: int = 0
    requests_waiting: int = 0
    requests_running: int = 0
    pages_used: int = 0
    pages_held: int = 0
    pages_cached: int = 0
    pages_leaked: int = 0  # owned, but by no request, session or prefix: always 0
    page_memory_bytes: int = 0
    weights_budget_bytes: int = 0
    weights_packed_bytes: int = 0
    weights_resident_bytes: int = 0
    weight_pages_read_total: int = 0
    weight_page_hits_total: int = 0
    weight_bytes_read_total: int = 0
    weight_wait_seconds_total: float = 0.0
    queue_seconds: HistogramSnapshot = HistogramSnapshot((0,) * (len(BOUNDS) + 1), 0.0)
    first_token_seconds: HistogramSnapshot = HistogramSnapshot((0,) * (len(BOUNDS) + 1), 0.0)
    inter_token_seconds: HistogramSnapshot = HistogramSnapshot((0,) * (len(BOUNDS) + 1), 0.0)

    def __repr__(self) -> str:
        """What was counted."""
        return changed_fields(self)

    def to_prometheus(self, *, prefix: str = "oxillama") -> str:
        """The snapshot in Prometheus' text exposition format 0.0.4."""
        out = PrometheusText()
        out.add_snapshot(self, prefix)
        return out.text()


class PrometheusText:
    """Samples in Prometheus' text exposition format 0.0.4; those of one name stand together, in the
    order in which the names came.
    """

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def add(self, name: str, kind: str, about: str, value: Any, **labels: str) -> None:
        """A sample of a counter or gauge."""
        self._of(name, kind, about).append(f"{name}{_labels(labels)} {value!r}")

    def add_histogram(
        self,
        name: str,
        about: str,
        bounds: Iterable[float],
        counts: Iterable[int],
        total: float,
        **labels: str,
    ) -> None:
        """A histogram of counts by bound, with the sum of what was counted."""
        lines, seen = self._of(name, "histogram", about), 0
        for bound, count in zip((*bounds, "+Inf"), counts):
            seen += count
            lines.append(f"{name}_bucket{_labels({**labels, 'le': str(bound)})} {seen}")
        lines.append(f"{name}_sum{_labels(labels)} {total!r}")
        lines.append(f"{name}_count{_labels(labels)} {seen}")

    def add_snapshot(self, snapshot: MetricsSnapshot, prefix: str, **labels: str) -> None:
        """The counters of an engine, each name after a prefix."""
        for field in fields(snapshot):
            value, name = getattr(snapshot, field.name), f"{prefix}_{field.name}"
            about = _HELP[field.name]
            if isinstance(value, HistogramSnapshot):
                self.add_histogram(name, about, BOUNDS, value.counts, value.sum, **labels)
            else:
                kind = "counter" if name.endswith("_total") else "gauge"
                self.add(name, kind, about, value, **labels)

    def text(self) -> str:
        """All of it."""
        return "".join(f"{line}\n" for lines in self._lines.values() for line in lines)

    def _of(self, name: str, kind: str, about: str) -> list[str]:
        """The lines of a name, which begin with what it is."""
        return self._lines.setdefault(name, [f"# HELP {name} {about}", f"# TYPE {name} {kind}"])


_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    inner = ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels.items())
    return f"{{{inner}}}"


class EngineMetrics:
    """The live counters of one engine. Its loop writes them; `InferenceEngine.metrics()` returns a
    `MetricsSnapshot` of them.
    """

    __slots__ = (
        "cancelled",
        "completed",
        "decode_seconds",
        "decoded",
        "failed",
        "first_token",
        "generated",
        "inter_token",
        "prefill_seconds",
        "prefilled",
        "queue",
        "refused",
        "started",
        "steps",
        "timed_out",
    )

    def __init__(self) -> None:
        self.started = self.completed = self.cancelled = self.failed = 0
        self.timed_out = self.refused = 0
        self.prefilled = self.generated = self.steps = 0
        # of the generated those that came of decoding rows, not of a prompt's last
        self.decoded = 0
        self.prefill_seconds = self.decode_seconds = 0.0
        self.queue, self.first_token, self.inter_token = Histogram(), Histogram(), Histogram()

    def freeze(self, *, weight_wait_seconds_total: float = 0.0, **gauges: int) -> MetricsSnapshot:
        """A snapshot, with the gauges that the engine supplies."""
        return MetricsSnapshot(
            requests_started_total=self.started,
            requests_completed_total=self.completed,
            requests_cancelled_total=self.cancelled,
            requests_failed_total=self.failed,
            requests_timed_out_total=self.timed_out,
            requests_refused_total=self.refused,
            tokens_prefilled_total=self.prefilled,
            tokens_generated_total=self.generated,
            steps_total=self.steps,
            prompt_tokens_per_second=self.prefilled / self.prefill_seconds
            if self.prefill_seconds
            else 0.0,
            decode_tokens_per_second=self.decoded / self.decode_seconds
            if self.decode_seconds
            else 0.0,
            queue_seconds=self.queue.freeze(),
            first_token_seconds=self.first_token.freeze(),
            inter_token_seconds=self.inter_token.freeze(),
            weight_wait_seconds_total=weight_wait_seconds_total,
            **gauges,
        )
