"""Vectors are those of the engine, in every dialect, in batches of unequal lengths too."""

import base64
from types import SimpleNamespace

import numpy as np
import pytest

import oxillama
from oxillama.server.embeddings import _shortened
from tests.server.conftest import asking

PATH = "/v1/embeddings"
TEXTS = ["a dog", "Once upon a time there was a very long sentence about a fox", "x"]


def test_a_batch_has_the_vectors_of_its_texts_alone(server, engine):
    made = server.ok(PATH, {"input": TEXTS})
    assert made["object"] == "list"
    for at, (text, each) in enumerate(zip(TEXTS, made["data"])):
        assert (each["object"], each["index"]) == ("embedding", at)
        assert np.array_equal(np.float32(each["embedding"]), engine.embed(text))
    tokens = sum(len(engine.tokenize(text)) for text in TEXTS)
    assert made["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


def test_the_engine_has_a_few_texts_of_a_body_at_once(server, engine, monkeypatch):
    # others wait for these alone
    submit, made, most = oxillama.InferenceEngine.submit_embedding, [], []

    def counted(self, ids, **options):
        most.append(sum(not each.done for each, _ in made))
        made.append(submit(self, ids, **options))
        return made[-1]

    monkeypatch.setattr(oxillama.InferenceEngine, "submit_embedding", counted)
    texts = [f"text {number}" for number in range(150)]
    found = server.ok("/v1/embeddings", {"input": texts})
    assert len(made) == 150 and max(most) < 64
    assert found["usage"]["prompt_tokens"] == sum(len(engine.tokenize(text)) for text in texts)
    assert server.logged()[-1]["prompt_tokens"] == found["usage"]["prompt_tokens"]
    for at in (0, 31, 32, 149):
        vector = np.float32(found["data"][at]["embedding"])
        assert np.array_equal(vector, engine.embed(texts[at]))


def test_base64_is_little_endian_float32(server, engine):
    made = server.ok(PATH, {"input": "a dog", "encoding_format": "base64"})
    data = base64.b64decode(made["data"][0]["embedding"])
    assert np.array_equal(np.frombuffer(data, "<f4"), engine.embed("a dog"))


def test_ids_are_a_text(server, engine):
    ids = engine.tokenize("a dog")
    for given in (ids, [ids], [ids, "x"]):
        made = server.ok(PATH, {"input": given})
        assert np.array_equal(np.float32(made["data"][0]["embedding"]), engine.embed("a dog"))


def test_dimensions_cut_and_normalise_again(server, engine):
    wanted = engine.embed("a dog")[:8].astype(np.float64)
    made = server.ok(PATH, {"input": "a dog", "dimensions": 8})["data"][0]["embedding"]
    assert made == (wanted / np.linalg.norm(wanted)).astype(np.float32).tolist()


def test_vectors_are_pooled_and_normalised_as_asked_for(server, engine):
    for mode in ("mean", "cls", "last", "max"):
        for normalize in (True, False):
            options = {"pooling": mode, "normalize": normalize}
            made = server.ok(PATH, {"input": "a dog", **options})["data"][0]["embedding"]
            assert made == engine.embed("a dog", **options).tolist()
    body = {"input": "a dog", "normalize": False}
    whole = server.ok(PATH, body)["data"][0]["embedding"]
    for size in (8, len(whole)):
        cut = server.ok(PATH, {**body, "dimensions": size})["data"][0]["embedding"]
        assert cut == whole[:size]


def test_a_body_has_as_many_texts_as_it_may():
    with asking(max_batch_inputs=2) as server:
        assert len(server.ok(PATH, {"input": TEXTS[:2]})["data"]) == 2
        assert server.refused(PATH, {"input": TEXTS})["param"] == "input"


@pytest.mark.parametrize(
    "body, param",
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [2048]}, "input[0]"),
        ({"input": ["x", 5]}, "input[1]"),
        ({"input": ["x", [5], "y", {}]}, "input[3]"),
        ({"input": ["x", [5, "y"]]}, "input[1][1]"),
        ({"input": [5, "x"]}, "input[1]"),
        ({"input": [[-1]]}, "input[0][0]"),
        ({"input": [[5], 5]}, "input[1]"),
        ({"input": [True]}, "input[0]"),
        ({"input": [5] * 1025}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 257}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "temperature": 1}, "temperature"),
    ],
)
def test_what_cannot_be_honoured_is_a_400_with_param(server, body, param):
    assert server.refused(PATH, body)["param"] == param


def test_the_error_of_an_empty_array_of_ids_says_that_it_is_empty(server):
    message = server.refused(PATH, {"input": [[5], []]})["message"]
    assert message.startswith("input[1]: found 0 items, wanted 1 to ")


def test_the_other_dialects_have_the_same_vectors(server, engine):
    wanted = engine.embed("a dog").tolist()
    assert server.ok("/embedding", {"content": "a dog"}) == [{"index": 0, "embedding": [wanted]}]
    model = "oxillama-embedded"
    made = server.ok("/api/embed", {"model": model, "input": ["a dog", "x"]})
    assert made["embeddings"][0] == wanted and len(made["embeddings"]) == 2
    assert server.ok("/api/embeddings", {"model": model, "prompt": "a dog"})["embedding"] == wanted


def test_a_text_is_cut_only_where_that_is_asked_for(server, engine):
    body = {"model": "oxillama-embedded", "input": "word " * 3000}
    server.refused("/api/embed", body)
    made = server.ok("/api/embed", {**body, "truncate": True})
    kept = engine.tokenize(body["input"])[: engine.context_size]
    assert made["embeddings"] == [engine.embed(kept).tolist()]
    assert made["prompt_eval_count"] == engine.context_size


def test_a_text_that_is_cut_keeps_the_tokens_after_it():
    words = SimpleNamespace(add_sep=True, add_eos=False)
    assert _shortened([1, 5, 6, 7, 8, 2], 4, words) == [1, 5, 6, 2]
    both, none = (SimpleNamespace(add_sep=each, add_eos=each) for each in (True, False))
    assert _shortened([1, 5, 6, 7, 2, 3], 4, both) == [1, 5, 2, 3]
    assert _shortened([1, 5, 6, 7], 3, none) == [1, 5, 6]
    assert _shortened([1, 5, 2, 3], 1, both) == [2]
