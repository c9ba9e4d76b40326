"""With OpenTelemetry installed each request is a span that says what its log line says."""

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.server.conftest import MODEL, asking


def test_a_request_is_a_span():
    exported, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    trace.set_tracer_provider(provider)
    with asking() as server:
        body = {"prompt": "Once upon a time", "max_tokens": 5, "ignore_eos": True}
        usage = server.ok("/v1/completions", body)["usage"]
        assert server.get("/nope").status_code == 404
    spans = {each.name: dict(each.attributes) for each in exported.get_finished_spans()}
    found = spans["POST /v1/completions"]
    assert found["gen_ai.request.model"] == MODEL
    assert found["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert found["gen_ai.usage.output_tokens"] == 5
    assert found["http.response.status_code"] == 200
    assert found["http.route"] == "/v1/completions" and found["oxillama.finish_reason"] == "length"
    assert "Once upon" not in str(found)
    assert spans["GET unknown"]["http.response.status_code"] == 404
