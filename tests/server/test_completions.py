"""`/v1/completions`: texts, ids, lists, echo, scores, and what is refused."""

from types import SimpleNamespace

import pytest

from oxillama.server.completions import AT_ONCE
from oxillama.server.logprobs import LegacyLogprobs, chat_entries, legacy_token, spelled

PATH = "/v1/completions"
ASK = {"prompt": "Once upon a time", "max_tokens": 8, "seed": 3}


def test_an_answer_is_that_of_the_engine_alone(server, engine):
    done = engine.generate("Once upon a time", max_tokens=8, seed=3)
    made = server.ok(PATH, ASK)
    assert made["object"] == "text_completion" and made["id"].startswith("cmpl-")
    assert made["choices"] == [
        {"index": 0, "text": done.text, "logprobs": None, "finish_reason": "length"}
    ]
    assert made["usage"]["prompt_tokens"] == done.usage.prompt_tokens
    assert made["usage"]["completion_tokens"] == 8


def test_sixteen_tokens_where_no_number_is_given(server):
    made = server.ok(PATH, {"prompt": "Once upon a time", "seed": 3, "ignore_eos": True})
    assert made["usage"]["completion_tokens"] == 16


def test_token_ids_are_the_prompt_as_they_are(server, engine):
    ids = engine.tokenize("Once upon a time")
    assert server.ok(PATH, {**ASK, "prompt": ids})["choices"] == server.ok(PATH, ASK)["choices"]


def test_lists_of_prompts_are_numbered_prompt_by_prompt(server, engine):
    ids = engine.tokenize("A dog")
    made = server.ok(PATH, {**ASK, "prompt": ["Once upon a time", ids], "n": 2})
    assert [each["index"] for each in made["choices"]] == [0, 1, 2, 3]
    alone = server.ok(PATH, {**ASK, "prompt": ids, "n": 2})["choices"]
    assert [each["text"] for each in made["choices"][2:]] == [each["text"] for each in alone]


def test_the_best_of_several_is_that_of_the_engine(server, engine):
    (wanted,) = engine.generate("Once upon a time", max_tokens=8, seed=3, best_of=4, n=1)
    made = server.ok(PATH, {**ASK, "best_of": 4})
    assert [each["text"] for each in made["choices"]] == [wanted.text]
    # all that was drawn is counted, as OpenAI does
    body = {**ASK, "max_tokens": 200, "prompt": ["Once upon a time", "A dog"]}
    drawn = engine.generate(body["prompt"], max_tokens=200, seed=3, n=4)
    counts = [len(done.tokens) for several in drawn for done in several]
    assert len(set(counts)) > 2
    usage = server.ok(PATH, {**body, "best_of": 4, "n": 2})["usage"]
    assert usage["completion_tokens"] == sum(counts)
    assert usage["total_tokens"] == usage["prompt_tokens"] + sum(counts)
    chunks = server.chunks(
        PATH, {**body, "best_of": 4, "n": 4, "stream_options": {"include_usage": True}}
    )
    assert chunks[-2]["usage"]["completion_tokens"] == sum(counts)


def test_a_stream_has_the_same_text(server):
    body = {**ASK, "prompt": ["Once upon a time", "A dog"], "n": 2}
    whole = [each["text"] for each in server.ok(PATH, body)["choices"]]
    chunks = server.chunks(PATH, {**body, "stream_options": {"include_usage": True}})
    assert chunks[-1] == "[DONE]"
    texts = dict.fromkeys(range(4), "")
    for chunk in chunks[:-2]:
        assert chunk["object"] == "text_completion" and chunk["usage"] is None
        for each in chunk["choices"]:
            texts[each["index"]] += each["text"]
    assert list(texts.values()) == whole
    assert chunks[-2]["choices"] == [] and chunks[-2]["usage"]["completion_tokens"] == 32


@pytest.mark.parametrize("more", [{}, {"logprobs": 1}, {"echo": True}])
def test_every_chunk_has_the_usage_so_far_where_it_is_asked_for(server, more):
    body = {**ASK, "prompt": ["Once upon a time", "A dog"], **more}
    whole = [each["text"] for each in server.ok(PATH, body)["choices"]]
    asked = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, usage, _ = server.chunks(PATH, {**body, "stream_options": asked})
    ends = []
    for index in range(2):
        own = [each for each in chunks if each["choices"][0]["index"] == index]
        assert "".join(each["choices"][0]["text"] for each in own) == whole[index]
        counts = [each["usage"]["completion_tokens"] for each in own]
        assert counts == sorted(counts) and len(set(counts)) > 2
        ends.append(own[-1]["usage"])
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert sum(each[name] for each in ends) == usage["usage"][name]


def test_logprobs_are_four_lists_of_one_length(server, engine):
    done = engine.generate("Once upon a time", max_tokens=8, seed=3, logprobs=2)
    found = server.ok(PATH, {**ASK, "logprobs": 2})["choices"][0]["logprobs"]
    assert {len(each) for each in found.values()} == {8}
    assert found["token_logprobs"] == [each.raw for each in done.logprobs]
    assert "".join(found["tokens"]) == done.text
    starts = [len("".join(found["tokens"][:at])) for at in range(8)]
    assert found["text_offset"] == starts
    assert all(2 <= len(each) <= 3 for each in found["top_logprobs"])
    for token, value, top in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"]):
        assert top[token] == value
    # more than OpenAI's 5: lm-evaluation-harness asks for ten, and vLLM gives twenty
    many = server.ok(PATH, {**ASK, "logprobs": 20})["choices"][0]["logprobs"]
    assert all(20 <= len(each) <= 21 for each in many["top_logprobs"])
    none = server.ok(PATH, {**ASK, "logprobs": 0})["choices"][0]["logprobs"]
    assert none["top_logprobs"] == [{}] * 8 and none["tokens"] == found["tokens"]


def test_what_a_token_is_called_is_told_in_json(engine):
    words = engine.tokenizer
    part = next(each for each in range(words.vocab_size) if words.token_bytes(each) == b"\xe2")
    assert legacy_token(words, part) == "bytes:\\xe2"
    (letter,) = words.encode("x", add_special=False)
    assert legacy_token(words, letter) == "x" and legacy_token(words, 3) == "<|im_end|>"
    # JSON has no infinity: a token that cannot be drawn has the lowest of numbers
    never = float("-inf")
    found = SimpleNamespace(token=part, raw=never, raw_ids=(letter, 3), raw_values=(-0.5, never))
    (entry,) = chat_entries([found], words, 2)
    assert (entry["token"], entry["bytes"], entry["logprob"]) == ("\ufffd", [0xE2], -9999.0)
    assert [each["logprob"] for each in entry["top_logprobs"]] == [-0.5, -9999.0]
    lists = LegacyLogprobs(words, 1)
    lists.add(part, never, (letter, 3), (-0.5, never))
    assert lists.take()["top_logprobs"] == [{"x": -0.5, "bytes:\\xe2": -9999.0}]


def test_a_prompt_is_scored_without_a_token(server, engine):
    done = engine.generate("Once upon a time", max_tokens=0, prompt_logprobs=1)
    body = {"prompt": "Once upon a time", "max_tokens": 0, "echo": True, "logprobs": 1}
    made = server.ok(PATH, body)["choices"][0]
    assert made["text"] == "Once upon a time"
    found = made["logprobs"]
    assert found["token_logprobs"] == [None, *(each[0] for each in done.prompt_logprobs)]
    assert found["top_logprobs"][0] is None
    assert len(found["tokens"]) == len(engine.tokenize("Once upon a time"))


def test_a_prompt_is_scored_as_vllm_does(server, engine):
    text = "Once upon a unlikely time"
    ids, bridge = engine.tokenize(text), engine.tokenizer
    done = engine.generate(text, max_tokens=0, prompt_logprobs=3)
    body = {"prompt": text, "max_tokens": 0, "prompt_logprobs": 3}
    first, *scored = server.ok(PATH, body)["choices"][0]["prompt_logprobs"]
    assert first is None and len(scored) == len(ids) - 1
    reports = list(zip(ids[1:], done.prompt_logprobs, done.prompt_ranks, scored))
    for token, (own, likely, values), rank, entry in reports:
        wanted = {each: (value, at) for at, (each, value) in enumerate(zip(likely, values), 1)}
        wanted[token] = (own, rank)
        assert entry == {
            str(each): {
                "logprob": value,
                "rank": place,
                "decoded_token": spelled(bridge, each)[0],
            }
            for each, (value, place) in wanted.items()
        }
    assert max(done.prompt_ranks) > 3  # one that is not among the likeliest
    alone = server.ok(PATH, {**body, "prompt_logprobs": 0})["choices"][0]["prompt_logprobs"][1:]
    assert alone == [{str(token): entry[str(token)]} for token, _, _, entry in reports]
    # an echo of fewer is not made longer by it, nor it shorter
    echoed = {**body, "echo": True, "logprobs": 1}
    made = server.ok(PATH, echoed)["choices"][0]
    assert made["prompt_logprobs"] == [None, *scored]
    unscored = {name: value for name, value in echoed.items() if name != "prompt_logprobs"}
    assert made["logprobs"] == server.ok(PATH, unscored)["choices"][0]["logprobs"]


def test_token_ids_are_given_as_vllm_does(server, engine):
    prompts = ["Once upon a time", "A dog"]
    body = {"prompt": prompts, "n": 2, "max_tokens": 6, "seed": 3, "return_token_ids": True}
    wanted = [
        (engine.tokenize(prompt), list(each.tokens))
        for prompt in prompts
        for each in engine.generate(prompt, n=2, max_tokens=6, seed=3)
    ]
    choices = server.ok(PATH, body)["choices"]
    assert [(each["prompt_token_ids"], each["token_ids"]) for each in choices] == wanted
    # in a stream, the prompt's stand in the first chunk of each
    for more in ({}, {"echo": True}, {"stop": choices[0]["text"] + "!"}):
        sent = [[] for _ in wanted]
        for chunk in server.chunks(PATH, {**body, **more})[:-1]:
            sent[chunk["choices"][0]["index"]] += chunk["choices"]
        for found, (prompt, drawn) in zip(sent, wanted):
            assert [each.get("prompt_token_ids") for each in found] == [
                prompt,
                *(None for _ in found[1:]),
            ]
            assert sum((each["token_ids"] for each in found), []) == drawn
            assert found[-1]["finish_reason"] == "length"


@pytest.mark.parametrize("path", [PATH, "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("field", "value", "beside"),
    [
        ("prompt_logprobs", 0, {"stream": True}),
        ("prompt_logprobs", 0, {"session": "scored"}),
        ("prompt_logprobs", 2, {"truncate_prompt": True}),
        ("return_token_ids", True, {"session": "scored"}),
        ("prompt_logprobs", -1, {}),
    ],
)
def test_what_is_told_of_tokens_is_refused_where_it_has_no_place(
    server, path, field, value, beside
):
    given = {"prompt": "Once"} if path == PATH else {"messages": [{"role": "user", "content": "a"}]}
    error = server.refused(path, {**given, field: value, **beside})
    assert error["param"] == field and all(name in error["message"] for name in beside)
    if beside and field == "return_token_ids":  # what asks for nothing is refused nowhere
        server.ok(path, {**given, field: False, **beside, "max_tokens": 1})


def test_an_echo_without_text_is_scored_streamed_or_not(server):
    body = {"prompt": "<|im_end|>", "max_tokens": 0, "echo": True, "logprobs": 1}
    whole = server.ok(PATH, body)["choices"][0]
    assert whole["text"] == "" and whole["logprobs"]["tokens"] == ["<|begin|>", "<|im_end|>"]
    assert whole["logprobs"]["token_logprobs"][1] < -5
    (chunk, done) = server.chunks(PATH, body)
    assert chunk["choices"][0]["logprobs"] == whole["logprobs"] and done == "[DONE]"


def test_an_echo_stands_before_the_text_streamed_or_not(server):
    body = {**ASK, "echo": True, "logprobs": 1}
    whole = server.ok(PATH, body)["choices"][0]
    assert whole["text"].startswith("Once upon a time,")
    chunks = [each["choices"][0] for each in server.chunks(PATH, body)[:-1]]
    assert "".join(each["text"] for each in chunks) == whole["text"]
    for name, values in whole["logprobs"].items():
        streamed = [v for each in chunks if each["logprobs"] for v in each["logprobs"][name]]
        assert streamed == values


def test_a_grammar_holds(server):
    made = server.ok(PATH, {**ASK, "grammar": 'root ::= "yes" | "no"'})
    assert made["choices"][0]["text"] in ("yes", "no")
    assert server.ok(PATH, {**ASK, "guided_choice": ["maybe"]})["choices"][0]["text"] == "maybe"


@pytest.mark.parametrize(
    "more, param",
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2048]}, "prompt[0]"),
        ({"prompt": ["a", 5]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"05": 1}}, "logit_bias"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": "yes"}, "echo"),
        ({"suffix": "the end"}, "suffix"),
        ({"suffix": "the end", "prompt": [5]}, "suffix"),
        ({"suffix": "the end", "echo": True}, "echo"),
        ({"prompt": "", "add_special_tokens": False}, "prompt"),
        ({"prompt": ["a", ""], "add_special_tokens": False}, "prompt[1]"),
        ({"echo": True, "truncate_prompt": True}, "echo"),
        ({"messages": []}, "messages"),
        ({"session": "s", "n": 2}, "n"),
        ({"session": "s", "suffix": "the end"}, "suffix"),
        ({"session": "s", "best_of": 1}, "best_of"),
        ({"session": "s", "echo": True}, "echo"),
        ({"session": "s", "prompt": ["a", "b"]}, "prompt"),
        ({"session": "s", "prompt": None}, "prompt"),
        ({"lora": [{"id": 1}]}, "lora"),
        ({"json_schema": {"type": "x"}}, "json_schema"),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"regex": "("}, "regex"),
        ({"timeout": 0}, "timeout"),
    ],
)
def test_what_cannot_be_honoured_is_a_400_with_param(server, more, param):
    error = server.refused(PATH, {**ASK, **more})
    assert error["param"] is not None and error["param"].startswith(param)


def test_a_request_that_runs_out_of_its_time_has_what_it_has(server):
    made = server.ok(PATH, {**ASK, "max_tokens": 900, "ignore_eos": True, "timeout": 0.05})
    assert made["choices"][0]["finish_reason"] == "length"
    assert made["usage"]["completion_tokens"] < 900


def test_a_prompt_that_is_too_long_says_so(server):
    error = server.refused(PATH, {"prompt": [5] * 2000})
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    error = server.refused(PATH, {"prompt": ["a", [5] * 2000]})
    assert error["param"] == "prompt[1]"


def test_a_prompt_that_is_refused_ends_the_stream_of_all(server):
    # the last has its turn when one of the others has ended
    prompts = ["a"] * AT_ONCE + [[5] * 2000]
    *_, failed, done = server.chunks(PATH, {"prompt": prompts, "max_tokens": 1})
    error = failed["error"]
    assert (error["param"], error["code"]) == (f"prompt[{AT_ONCE}]", "context_length_exceeded")
    assert done == "[DONE]"
