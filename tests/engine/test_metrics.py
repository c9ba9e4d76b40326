"""Counters that add up, and a text that Prometheus reads."""

import re
from dataclasses import fields
from itertools import accumulate
from types import SimpleNamespace

from oxillama.completion import Timings
from oxillama.engine.metrics import BOUNDS, Histogram
from tests.engine.null import core, request


def test_counters_add_up_over_a_run():
    engine = core()
    for i in range(5):
        engine.submit(request(engine, [i, 1, 2], max_tokens=6)).result(60)
    found = engine.metrics()
    assert (
        found.requests_started_total,
        found.requests_completed_total,
        found.requests_cancelled_total,
    ) == (5, 5, 0)
    assert found.tokens_generated_total == 30 and found.tokens_prefilled_total == 15
    assert (
        found.queue_seconds.count == found.first_token_seconds.count == 5
        and found.inter_token_seconds.count == 25
    )
    assert found.kv_misses_total == 5 and found.requests_running == found.requests_waiting == 0
    assert found.decode_tokens_per_second > 0 and found.prompt_tokens_per_second > 0
    engine.close()


def test_times_of_a_request_are_those_between_its_events(monkeypatch):
    now = [3.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr("oxillama.engine.request.time", clock)
    engine = core()
    job = request(engine, [1, 2, 3, 4, 5], max_tokens=5)
    assert job.timings() == Timings(0.0, 0.0, 0.0, 0.0, 0.0)
    job.prompt_tokens, job.cached, job.submitted_at, now[0] = 5, 1, 10.0, 11.0
    assert job.timings() == Timings(1.0, 1.0, 0.0, 0.0, 0.0)
    job.admitted_at, job.first_at, job.token_at, now[0] = 12.0, 14.0, 20.0, 21.0
    job.generated = [7, 8, 9, 7]
    wanted = Timings(11.0, 2.0, 4.0, 4 / 2.0, 3 / 6.0)
    assert job.timings() == wanted
    job.end("stop")
    now[0] = 99.0  # it has ended
    assert job.timings() == wanted
    engine.close()


def exposition(text):
    """The families of a text in Prometheus' format 0.0.4: name -> (kind, [(sample name, labels,
    value)]); asserts its grammar.
    """
    families, name = {}, None
    assert text.endswith("\n") and "\n\n" not in text
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, told = line[7:].split(" ", 1)
            assert (
                name not in families
                and re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name)
                and told.endswith(".")
                and "\\" not in told
            )
            continue
        if line.startswith("# TYPE "):
            assert line.split()[2] == name
            families[name] = (line.split()[3], [])
            continue
        sample, labels, value = re.fullmatch(
            r'([a-z_]+)(\{le="(?:[0-9.e-]+|\+Inf)"\})? (\S+)', line
        ).groups()
        kind, samples = families[name]
        assert sample in (
            {name} if kind != "histogram" else {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
        )
        samples.append((sample, labels, float(value)))
    return families


def test_the_text_is_what_prometheus_reads():
    engine = core()
    engine.submit(request(engine, [1], max_tokens=3)).result(60)
    found = engine.metrics()
    families = exposition(found.to_prometheus())
    assert list(families) == [f"oxillama_{field.name}" for field in fields(found)]
    for name, (kind, samples) in families.items():
        assert kind == (
            "histogram"
            if name.endswith("_seconds")
            else "counter"
            if name.endswith("_total")
            else "gauge"
        )
        if kind != "histogram":
            assert samples == [(name, None, getattr(found, name.removeprefix("oxillama_")))]
            continue
        buckets, told = (
            [value for sample, _, value in samples if sample.endswith("_bucket")],
            getattr(found, name.removeprefix("oxillama_")),
        )
        assert [labels for _, labels, _ in samples[:-2]] == [
            f'{{le="{bound}"}}' for bound in (*BOUNDS, "+Inf")
        ]
        # cumulative, the last one all
        assert buckets == list(accumulate(told.counts))
        assert [value for *_, value in samples[-2:]] == [told.sum, buckets[-1]]
        assert [sample for sample, *_ in samples[-2:]] == [f"{name}_sum", f"{name}_count"]
    assert (
        families["oxillama_inter_token_seconds"][1][-1][2] == 2
        and families["oxillama_tokens_generated_total"][1][0][2] == 3
    )
    assert "other_steps_total" in exposition(found.to_prometheus(prefix="other"))
    engine.close()


def test_tokens_that_prompts_give_are_no_decoding():
    engine = core()
    for number in range(4):
        engine.submit(request(engine, [number, 1], max_tokens=1)).result(60)
    # not one row of decoding was run
    assert engine.metrics().decode_tokens_per_second == 0
    engine.submit(request(engine, [9, 1], max_tokens=8)).result(60)
    found, counters = engine.metrics(), engine.counters
    assert (
        found.tokens_generated_total == 12
        and found.decode_tokens_per_second == 7 / counters.decode_seconds
    )
    engine.close()


def test_quantiles_are_upper_bounds():
    histogram = Histogram()
    for seconds in (0.0005, 0.002, 0.002, 0.3):
        histogram.observe(seconds)
    frozen = histogram.freeze()
    assert (
        frozen.quantile(0.25),
        frozen.quantile(0.5),
        frozen.quantile(0.75),
        frozen.quantile(1.0),
    ) == (0.001, 0.0025, 0.0025, 0.5)
    assert Histogram().freeze().quantile(0.5) == 0.0
