"""`/metrics`: every promised name is there, in a form that Prometheus reads, and counts."""

import re

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
