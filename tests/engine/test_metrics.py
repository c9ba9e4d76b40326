"""Counters that add up, and a text that Prometheus reads."""
from null import core, request

from oxillama.engine.metrics import BOUNDS, Histogram


def test_counters_add_up_over_a_run():
    engine = core()
    for i in range(5):
        engine.submit(request(engine, [i, 1, 2], max_tokens=6)).result(5)
    found = engine.metrics()
    assert (found.requests_started_total, found.requests_completed_total, found.requests_cancelled_total) == (5, 5, 0)
    assert found.tokens_generated_total == 30 and found.tokens_prefilled_total == 15
    assert found.queue_seconds.count == found.first_token_seconds.count == 5 and found.inter_token_seconds.count == 25
    assert found.kv_misses_total == 5 and found.requests_running == found.requests_waiting == 0
    assert found.decode_tokens_per_second > 0 and found.prompt_tokens_per_second > 0
    engine.close()


def test_histograms_are_cumulative_in_prometheus_text():
    engine = core()
    engine.submit(request(engine, [1], max_tokens=3)).result(5)
    lines = engine.metrics().to_prometheus().splitlines()
    assert "oxillama_tokens_generated_total 3" in lines and "# TYPE oxillama_tokens_generated_total counter" in lines
    assert "# TYPE oxillama_pages_used gauge" in lines
    buckets = [int(line.split()[-1]) for line in lines if line.startswith("oxillama_inter_token_seconds_bucket")]
    assert len(buckets) == len(BOUNDS) + 1 and buckets == sorted(buckets) and buckets[-1] == 2
    assert "oxillama_inter_token_seconds_count 2" in lines
    engine.close()


def test_quantiles_are_upper_bounds():
    histogram = Histogram()
    for seconds in (0.0005, 0.002, 0.002, 0.3):
        histogram.observe(seconds)
    frozen = histogram.freeze()
    assert (frozen.quantile(0.25), frozen.quantile(0.5), frozen.quantile(0.75), frozen.quantile(1.0)) == (0.001, 0.0025, 0.0025, 0.5)
    assert Histogram().freeze().quantile(0.5) == 0.0
