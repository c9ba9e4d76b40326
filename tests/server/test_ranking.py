"""Reranking over HTTP: the scores are those of the engine, of any model with a classifier."""

import pytest

import oxillama
from tests.server.conftest import asking

QUERY, TEXTS = "the cat", ["a dog ran", "the cat sat", "birds"]


@pytest.mark.parametrize("case", ["bert_rerank", "xlm_roberta_rerank", "qwen3_reranker"])
def test_scores_are_those_of_the_engine(cases, case):
    model = cases / "embed" / case / "f32.gguf"
    with oxillama.load(model) as engine:
        wanted = engine.rerank(QUERY, TEXTS)
        pairs = [engine.score(QUERY, text) for text in TEXTS]
        matched = [engine.score(QUERY, TEXTS[1]), engine.score(TEXTS[0], QUERY)]
    with asking(model=str(model)) as server:
        for path in ("/rerank", "/v1/rerank"):
            found = server.client.post(path, json={"query": QUERY, "documents": TEXTS, "top_n": 2})
            assert found.status_code == 200, found.text
            results = found.json()["results"]
            assert [(each["index"], each["relevance_score"]) for each in results] == [
                (one.index, one.score) for one in wanted[:2]
            ]
            assert found.json()["usage"]["prompt_tokens"] > len(TEXTS)
            assert [each["document"] for each in results] == [
                {"text": TEXTS[one.index]} for one in wanted[:2]
            ]
        body = {"query": QUERY, "documents": [{"text": text} for text in TEXTS]}
        body["return_documents"] = False
        bare = [{"index": one.index, "relevance_score": one.score} for one in wanted]
        assert server.client.post("/rerank", json=body).json()["results"] == bare
        # the form of Text Embeddings Inference
        body = {"query": QUERY, "texts": TEXTS}
        plain = [{"index": one.index, "score": one.score} for one in wanted]
        assert server.client.post("/rerank", json=body).json() == plain
        texts = [{**each, "text": TEXTS[each["index"]]} for each in plain]
        answer = server.client.post("/rerank", json={**body, "return_text": True})
        assert answer.json() == texts
        found = server.client.post("/v1/score", json={"text_1": QUERY, "text_2": TEXTS})
        assert [each["score"] for each in found.json()["data"]] == pairs
        both = {"text_1": [QUERY, TEXTS[0]], "text_2": [TEXTS[1], QUERY]}
        found = server.client.post("/v1/score", json=both).json()["data"]
        assert [(each["index"], each["score"]) for each in found] == [*enumerate(matched)]
        long = server.client.post("/rerank", json={"query": QUERY, "documents": ["cat " * 9000]})
        assert (long.status_code, long.json()["error"]["param"]) == (400, "documents[0]")


def test_scores_are_given_as_vectors_only_where_that_is_asked_for(cases):
    model = cases / "embed" / "qwen3_reranker" / "f32.gguf"
    with oxillama.load(model) as engine:
        wanted = engine.embed("the cat", pooling="last")
    with asking(model=str(model), alias="judge") as server:
        for path, body in (
            ("/v1/embeddings", {"input": "the cat"}),
            ("/embedding", {"content": "the cat"}),
            ("/api/embed", {"model": "judge", "input": "the cat"}),
        ):
            found = server.post(path, body)
            assert found.status_code == 400
            assert (
                "model judge: is a reranker, whose scores are not vectors; /v1/rerank" in found.text
            )
        made = server.ok("/v1/embeddings", {"input": "the cat", "pooling": "last"})
        assert made["data"][0]["embedding"] == wanted.tolist()
        (labels,) = server.ok("/v1/embeddings", {"input": "the cat", "normalize": False})["data"]
        assert len(labels["embedding"]) == 2 and abs(sum(labels["embedding"]) - 1) < 1e-6


def test_an_encoder_continues_no_text(cases):
    with asking(model=str(cases / "embed" / "bert_rerank" / "f32.gguf")) as server:
        refused = server.client.post("/v1/completions", json={"prompt": "x"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
        talk = [{"role": "user", "content": "x"}]
        refused = server.client.post("/v1/chat/completions", json={"messages": talk})
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            400,
            "generation_not_supported",
        )
        assert "bert is an encoder, which has no next token" in refused.json()["error"]["message"]
