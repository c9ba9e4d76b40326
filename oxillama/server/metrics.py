"""What the server counts: histograms and counters of requests, written out in Prometheus' text
format under vLLM's, llama-server's and our own names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from oxillama.engine.metrics import Histogram, MetricsSnapshot, PrometheusText

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
Row = tuple[str, str, str, Any]  # name, kind, help, value
_REASONS = ("stop", "length", "abort", "error")
_GENERATED = (
    "Generated tokens; counted when a request ends, of one whose client left those until then."
)


class ModelMetrics:
    """The counts of one model's requests."""

    def __init__(self) -> None:
        self.first_token = Histogram()
        self.inter_token = Histogram()
        self.e2e = Histogram()
        self.queue = Histogram()
        self.prefill = Histogram()
        self.decode = Histogram()
        self.prompt_tokens = Histogram(_TOKENS)
        self.generation_tokens = Histogram(_TOKENS)
        self.prompt_total = self.generation_total = self.cached_total = 0
        self.prompt_seconds = self.generation_seconds = 0.0
        self.finished: Counter[str] = Counter()

    def observe(
        self,
        *,
        reason: str,
        prompt: int,
        cached: int,
        generated: int,
        queue: float,
        prefill: float,
        decode: float,
        e2e: float,
    ) -> None:
        """Count one finished generation."""
        self.finished[reason] += 1
        self.prompt_total += prompt
        self.cached_total += cached
        self.generation_total += generated
        self.prompt_seconds += prefill
        self.generation_seconds += decode
        self.prompt_tokens.observe(prompt)
        self.generation_tokens.observe(generated)
        self.e2e.observe(e2e)
        self.queue.observe(queue)
        if generated:
            self.prefill.observe(prefill)
            self.decode.observe(decode)
            self.first_token.observe(queue + prefill)
            if generated > 1:
                self.inter_token.observe(decode / (generated - 1))


def exposition(
    models: list[tuple[str, ModelMetrics, MetricsSnapshot | None, int | None]],
    gauges: dict[str, tuple[str, str, Any]],
    requests: Mapping[tuple[str, str], int],
) -> str:
    """The whole document. models: (name, counts of requests, the engine's, most pages); gauges of
    the server: name -> (kind, help, value); requests: answered, by route ("" for none) and status.
    """
    out = PrometheusText()
    for (route, status), count in sorted(requests.items()):
        name = "oxillama_server_http_requests_total"
        out.add(name, "counter", "HTTP requests.", count, route=route or "none", status=status)
    for name, (kind, about, value) in gauges.items():
        out.add(name, kind, about, value)
    for write in (_vllm, _llama, _own):
        for each in models:
            write(out, *each)
    return out.text()


def _vllm(
    out: PrometheusText,
    name: str,
    own: ModelMetrics,
    engine: MetricsSnapshot | None,
    pages: int | None,
) -> None:
    label = {"model_name": name}
    rows: list[Row] = [] if engine is None else _vllm_engine(engine, pages)
    rows += [
        ("prompt_tokens_total", "counter", "Prompt tokens.", own.prompt_total),
        ("generation_tokens_total", "counter", _GENERATED, own.generation_total),
    ]
    for metric, kind, about, value in rows:
        out.add(f"vllm:{metric}", kind, about, value, **label)
    for reason in _REASONS:
        out.add(
            "vllm:request_success_total",
            "counter",
            "Requests by how they ended.",
            own.finished[reason],
            **label,
            finished_reason=reason,
        )
    for metric, about, histogram in (
        ("time_to_first_token_seconds", "Seconds to the first token.", own.first_token),
        ("inter_token_latency_seconds", "Mean seconds between tokens.", own.inter_token),
        ("e2e_request_latency_seconds", "Seconds from submit to end.", own.e2e),
        ("request_queue_time_seconds", "Seconds of waiting.", own.queue),
        ("request_prefill_time_seconds", "Seconds from start to first token.", own.prefill),
        ("request_decode_time_seconds", "Seconds from first token to end.", own.decode),
        ("request_prompt_tokens", "Prompt tokens of a request.", own.prompt_tokens),
        ("request_generation_tokens", "Generated tokens of a request.", own.generation_tokens),
    ):
        out.add_histogram(
            f"vllm:{metric}", about, histogram.bounds, histogram.counts, histogram.total, **label
        )
    if engine is not None:
        # steps are not counted by size: all of them in the open bucket, the sum is exact
        total = engine.tokens_prefilled_total + engine.tokens_generated_total
        out.add_histogram(
            "vllm:iteration_tokens_total",
            "Tokens of a step.",
            (),
            (engine.steps_total,),
            float(total),
            **label,
        )


def _vllm_engine(engine: MetricsSnapshot, pages: int | None) -> list[Row]:
    """What vLLM counts of its engine."""
    found = engine.kv_tokens_saved_total
    return [
        ("num_requests_running", "gauge", "Requests that run.", engine.requests_running),
        ("num_requests_waiting", "gauge", "Requests that wait.", engine.requests_waiting),
        (
            "kv_cache_usage_perc",
            "gauge",
            "Pages of requests and sessions, as a share (0 to 1) of those there may be.",
            # what the prefix cache alone holds can be evicted at any time; without a limit there
            # may be more pages than those of all slots
            min(1.0, engine.pages_held / pages) if pages else 0.0,
        ),
        (
            "prefix_cache_queries_total",
            "counter",
            "Prompt tokens looked up in the prefix cache.",
            engine.tokens_prefilled_total + found,
        ),
        (
            "prefix_cache_hits_total",
            "counter",
            "Prompt tokens found in the prefix cache.",
            found,
        ),
        (
            "num_preemptions_total",
            "counter",
            "Times a request gave up its pages.",
            engine.requests_preempted_total,
        ),
    ]


def _llama(
    out: PrometheusText,
    name: str,
    own: ModelMetrics,
    engine: MetricsSnapshot | None,
    pages: int | None,
) -> None:
    label = {"model": name}
    rows: list[Row] = [
        ("prompt_tokens_total", "counter", "Prompt tokens.", own.prompt_total),
        ("tokens_predicted_total", "counter", _GENERATED, own.generation_total),
        ("prompt_seconds_total", "counter", "Seconds of prompts.", own.prompt_seconds),
        (
            "tokens_predicted_seconds_total",
            "counter",
            "Seconds of generation.",
            own.generation_seconds,
        ),
    ]
    if engine is not None:
        steps = engine.steps_total
        rows += [
            ("requests_processing", "gauge", "Requests that run.", engine.requests_running),
            ("requests_deferred", "gauge", "Requests that wait.", engine.requests_waiting),
            ("n_decode_total", "counter", "Steps.", steps),
            (
                "n_busy_slots_per_decode",
                "gauge",
                "Generated tokens per step.",
                engine.tokens_generated_total / steps if steps else 0.0,
            ),
            (
                "prompt_tokens_seconds",
                "gauge",
                "Prompt tokens per second.",
                engine.prompt_tokens_per_second,
            ),
            (
                "predicted_tokens_seconds",
                "gauge",
                "Generated tokens per second.",
                engine.decode_tokens_per_second,
            ),
        ]
    for metric, kind, about, value in rows:
        out.add(f"llamacpp:{metric}", kind, about, value, **label)


def _own(
    out: PrometheusText,
    name: str,
    own: ModelMetrics,
    engine: MetricsSnapshot | None,
    pages: int | None,
) -> None:
    if engine is not None:
        out.add_snapshot(engine, "oxillama", model=name)
