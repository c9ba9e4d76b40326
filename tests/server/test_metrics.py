"""`/metrics`: every promised name is there, in a form that Prometheus reads, and counts."""

import re

from oxillama.engine.scheduler import SchedulerConfig
from oxillama.server.metrics import ModelMetrics, exposition
from tests.server.conftest import asking

LABEL = 'model_name="oxillama-embedded"'
SAMPLE = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? \S+')

VLLM = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "iteration_tokens_total",
)
LLAMA = (
    "prompt_tokens_total",
    "tokens_predicted_total",
    "prompt_seconds_total",
    "tokens_predicted_seconds_total",
    "requests_processing",
    "requests_deferred",
    "n_decode_total",
    "n_busy_slots_per_decode",
    "prompt_tokens_seconds",
    "predicted_tokens_seconds",
)


def value(text, sample):
    (line,) = (each for each in text.splitlines() if each.startswith(sample + " "))
    return float(line.rsplit(" ", 1)[1])


def test_the_help_says_when_generated_tokens_are_counted(server):
    text = server.get("/metrics").text
    ended = "Generated tokens; counted when a request ends, of one whose client left those until"
    for name in ("vllm:generation_tokens_total", "llamacpp:tokens_predicted_total"):
        assert f"# HELP {name} {ended}" in text
    assert "# HELP oxillama_tokens_generated_total Tokens generated, counted when they" in text


def test_every_promised_name_is_there_once(server):
    answer = server.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    types = [line.split()[2] for line in answer.text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    assert {f"vllm:{name}" for name in VLLM} <= set(types)
    assert {f"llamacpp:{name}" for name in LLAMA} <= set(types)
    assert "oxillama_steps_total" in types and "oxillama_server_http_requests_total" in types
    for line in answer.text.splitlines():
        assert line.startswith("#") or SAMPLE.fullmatch(line), line


def test_a_request_is_counted(server):
    before = server.get("/metrics").text
    made = server.ok(
        "/v1/completions", {"prompt": "Once upon", "max_tokens": 5, "ignore_eos": True}
    )
    after = server.get("/metrics").text

    def grown(sample):
        return value(after, sample) - value(before, sample)

    assert grown(f"vllm:prompt_tokens_total{{{LABEL}}}") == made["usage"]["prompt_tokens"]
    assert grown(f"vllm:generation_tokens_total{{{LABEL}}}") == 5
    assert grown(f'vllm:request_success_total{{{LABEL},finished_reason="length"}}') == 1
    assert grown(f"vllm:e2e_request_latency_seconds_count{{{LABEL}}}") == 1
    assert grown('llamacpp:tokens_predicted_total{model="oxillama-embedded"}') == 5
    assert grown('oxillama_tokens_generated_total{model="oxillama-embedded"}') == 5
    tokens, steps, share = (
        value(after, f'{name}{{model="oxillama-embedded"}}')
        for name in (
            "oxillama_tokens_generated_total",
            "llamacpp:n_decode_total",
            "llamacpp:n_busy_slots_per_decode",
        )
    )
    assert share == tokens / steps
    prefilled = value(after, 'oxillama_tokens_prefilled_total{model="oxillama-embedded"}')
    assert value(after, f"vllm:iteration_tokens_total_sum{{{LABEL}}}") == prefilled + tokens


def test_tokens_are_timed_when_they_are_drawn_not_when_they_have_a_text(server):
    ask = {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}
    text = server.ok("/v1/completions", ask)["choices"][0]["text"]
    sample = f"vllm:inter_token_latency_seconds_sum{{{LABEL}}}"
    before = value(server.get("/metrics").text, sample)
    # the text so far may be the beginning of the stop string: there is none to give until the end
    held = server.ok("/v1/completions", {**ask, "stop": text + "!"})
    assert held["choices"][0]["text"] == text
    assert server.logged()[-1]["decode_ms"] > 0
    assert value(server.get("/metrics").text, sample) > before


def test_requests_are_counted_by_route_and_status():
    with asking() as server:
        server.ok("/tokenize", {"content": "a"})
        server.ok("/tokenize", {"content": "b"})
        server.refused("/tokenize", {})
        server.get("/v1/models/nothing")
        server.get("/nothing")
        server.get("/nothing-else")
        text = server.get("/metrics").text
    name = "oxillama_server_http_requests_total"
    lines = re.findall(rf'^{name}{{route="(.*)",status="(.*)"}} (.*)$', text, re.MULTILINE)
    found = {(route, status): int(count) for route, status, count in lines if route != "/health"}
    assert found == {
        ("/tokenize", "200"): 2,
        ("/tokenize", "400"): 1,
        ("/v1/models/{model:path}", "404"): 1,
        ("none", "404"): 2,  # whatever the path: there is no end of those
    }


def test_the_times_of_requests_add_up():
    counts = ModelMetrics()
    for generated in (5, 1, 0):
        counts.observe(
            reason="stop",
            prompt=7,
            cached=3,
            generated=generated,
            queue=1.0,
            prefill=2.0,
            decode=4.0,
            e2e=8.0,
        )
    gauges = {"oxillama_server_sessions": ("gauge", "Named sessions in memory.", 6)}
    text = exposition([("m", counts, None, None)], gauges, {})
    assert value(text, "oxillama_server_sessions") == 6
    label = '{model="m"}'
    assert value(text, f"llamacpp:prompt_seconds_total{label}") == 6
    assert value(text, f"llamacpp:tokens_predicted_seconds_total{label}") == 12
    found = {}
    for name in (
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
    ):
        found[name] = [
            value(text, f'vllm:{name}_{part}{{model_name="m"}}') for part in ("count", "sum")
        ]
    # what has no token has no first one, and one token has none between
    assert list(found.values()) == [
        [2, 6],
        [1, 1],
        [3, 24],
        [3, 3],
        [2, 4],
        [2, 8],
        [3, 21],
        [3, 6],
    ]


def test_a_request_whose_time_is_over_is_counted_as_its_answer_says(server):
    sample = f'vllm:request_success_total{{{LABEL},finished_reason="length"}}'
    before = value(server.get("/metrics").text, sample)
    ask = {"prompt": "Once upon", "ignore_eos": True, "max_tokens": 900, "timeout": 0.001}
    assert server.ok("/v1/completions", ask)["choices"][0]["finish_reason"] == "length"
    assert server.logged()[-1]["finish_reason"] == "timeout"
    assert value(server.get("/metrics").text, sample) == before + 1


def test_pages_that_are_only_cached_are_not_in_use():
    share, held = (
        f"vllm:kv_cache_usage_perc{{{LABEL}}}",
        'oxillama_pages_held{model="oxillama-embedded"}',
    )
    ask = {"prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": True}
    with asking() as server:
        server.ok("/v1/completions", ask)
        text = server.get("/metrics").text
        assert value(text, 'oxillama_pages_cached{model="oxillama-embedded"}') > 0
        assert value(text, held) == value(text, share) == 0
        server.ok("/v1/completions", {**ask, "session": "a"})
        text = server.get("/metrics").text
        (model,) = server.app.state.models.loaded()
        assert value(text, held) == 3
        assert value(text, share) == 3 / (model.slots * model.engine.context_size / 16)
    rows = SchedulerConfig(max_sequences=1, max_batch_sequences=1)
    limits = {"context_size": 64, "scheduler": rows}
    with asking(engine=limits) as server:  # four pages for all that runs
        for name in ("a", "b"):
            server.ok("/v1/completions", {**ask, "session": name, "seed": ord(name)})
        text = server.get("/metrics").text
        assert value(text, held) >= 5 and value(text, share) == 1


def test_a_model_that_was_unloaded_keeps_its_counts():
    with asking() as server:
        server.ok("/v1/completions", {"prompt": "Once upon", "max_tokens": 2, "ignore_eos": True})
        server.ok("/api/generate", {"model": "oxillama-embedded", "keep_alive": 0})
        assert server.app.state.models.loaded() == []
        text = server.get("/metrics").text
    assert value(text, f"vllm:generation_tokens_total{{{LABEL}}}") == 2
    assert value(text, "oxillama_server_models_loaded") == 0


def test_a_model_that_is_being_unloaded_has_the_counts_of_its_requests_alone():
    with asking() as server:
        server.ok("/v1/completions", {"prompt": "Once upon", "max_tokens": 2, "ignore_eos": True})
        (model,) = server.app.state.models.loaded()
        model.engine.close()
        text = server.get("/metrics").text
    assert value(text, f"vllm:generation_tokens_total{{{LABEL}}}") == 2
    assert f"vllm:kv_cache_usage_perc{{{LABEL}}}" not in text
