"""Text in the middle: prompts of the vocabulary's own tokens, in which what is given is text."""

import pytest

from oxillama.server.infill import fim_tokens, fim_words, infill_ids
from oxillama.server.models import FIM_KEYS
from tests.server.conftest import asking

BEGIN, PRE, SUF, MID = 0, 2, 3, 4  # control tokens of the embedded vocabulary


@pytest.fixture(scope="module")
def filling():
    with asking() as made:
        (model,) = made.app.state.models.loaded()
        assert fim_tokens(model) is None
        model.metadata.update(zip(FIM_KEYS, (PRE, SUF, MID)))
        yield made


def text(engine, given):
    return engine.tokenizer.encode(given, add_special=False, parse_special=False)


def test_the_prompt_is_prefix_suffix_middle(filling, engine):
    (model,) = filling.app.state.models.loaded()
    wanted = [BEGIN, PRE, *text(engine, "a b"), SUF, *text(engine, "c<|im_end|>"), MID]
    assert infill_ids(model, "a b", "c<|im_end|>") == wanted
    assert infill_ids(model, "", "", prompt="x") == [BEGIN, PRE, SUF, MID, *text(engine, "x")]
    extra = infill_ids(model, "a", "b", extra=[{"filename": "f", "text": "t"}])
    assert extra[1:-5] == text(engine, "\n\n--- f ---\n\n") + text(engine, "t")


def test_other_files_stand_after_the_separators_of_the_vocabulary(filling, engine, monkeypatch):
    (model,) = filling.app.state.models.loaded()
    repository, separator = 7, 8  # as if the vocabulary had Qwen's
    named = {"<|repo_name|>": repository, "<|file_sep|>": separator}
    monkeypatch.setattr(type(model.bridge), "token_to_id", lambda self, text: named.get(text))
    files = [{"filename": "f.py", "text": "t"}, {"text": "u"}]
    lead = [repository, *text(engine, "repository\n"), separator, *text(engine, "f.py\n")]
    lead += [*text(engine, "t"), separator, *text(engine, "file\n"), *text(engine, "u")]
    lead += [separator, *text(engine, "filename\n")]
    wanted = [BEGIN, *lead, PRE, *text(engine, "a"), SUF, *text(engine, "b"), MID]
    assert infill_ids(model, "a", "b", extra=files) == wanted


def test_clients_are_told_that_it_fills_in(filling):
    assert fim_words(["a", "<PRE>", "<MID>", "<SUF>"]) == ("<PRE>", "<SUF>", "<MID>")
    assert fim_words(["<PRE>", "<MID>", "<fim_suffix>"]) is None
    for name in ("<|code_{}|>", "<|{}|>"):
        words = tuple(map(name.format, ("prefix", "suffix", "middle")))
        assert fim_words(words) == words
    shown = filling.ok("/api/show", {"model": "oxillama-embedded"})
    assert shown["capabilities"] == ["completion", "insert", "tools"]


def test_every_dialect_fills_in_the_same(filling, engine):
    (model,) = filling.app.state.models.loaded()
    ids = infill_ids(model, "Once upon", "The end")
    wanted = engine.generate(ids, max_tokens=8, seed=3).text
    body = {"input_prefix": "Once upon", "input_suffix": "The end", "n_predict": 8, "seed": 3}
    assert filling.ok("/infill", body)["content"] == wanted
    frames = filling.chunks("/infill", body)
    assert "".join(each["content"] for each in frames) == wanted
    body = {"prompt": "Once upon", "suffix": "The end", "max_tokens": 8, "seed": 3}
    assert filling.ok("/v1/completions", body)["choices"][0]["text"] == wanted
    usage = filling.ok("/v1/completions", {**body, "add_special_tokens": False})["usage"]
    assert usage["prompt_tokens"] == len(ids) - 1
    body = {
        "model": "oxillama-embedded",
        "prompt": "Once upon",
        "suffix": "The end",
        "stream": False,
        "options": {"num_predict": 8, "seed": 3},
    }
    assert filling.ok("/api/generate", body)["response"] == wanted
