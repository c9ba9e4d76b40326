"""llama-server's routes."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import oxillama
from oxillama.server.work import TIMINGS

PATH = "/completion"
ASK = {"prompt": "Once upon a time", "n_predict": 8, "seed": 3}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
RETURNED = "return_documents"
WITH_IMAGE = {"role": "user", "content": [IMAGE]}


def test_health_and_properties(server):
    health = server.get("/health").json()
    assert health["status"] == "ok" and health["loop_age_seconds"] >= 0
    props = server.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 1024
    assert props["total_slots"] == oxillama.SchedulerConfig().max_sequences
    assert props["model_path"].endswith("embedded.gguf")
    assert "<|im_start|>" in props["chat_template"]
    assert (props["bos_token"], props["eos_token"]) == ("<|begin|>", "<|end|>")


def test_tokens_and_text(server, engine):
    text = "Hello é<|im_end|>"
    plain = engine.tokenize(text, add_special=False)
    assert server.ok("/tokenize", {"content": text}) == {"tokens": plain}
    full = server.ok("/tokenize", {"content": text, "add_special": True})["tokens"]
    assert full == engine.tokenize(text)
    bare = server.ok("/tokenize", {"content": text, "parse_special": False})["tokens"]
    assert 3 in plain and 3 not in bare
    pieces = server.ok("/tokenize", {"content": text, "with_pieces": True})["tokens"]
    assert [each["id"] for each in pieces] == plain
    assert [195] in [each["piece"] for each in pieces]
    said = [each["piece"] for each in pieces if isinstance(each["piece"], str)]
    assert "".join(said) == "Hello <|im_end|>"
    for ids in (bare, plain):  # control tokens too
        assert server.ok("/detokenize", {"tokens": ids}) == {"content": text, "prompt": text}
    assert server.refused("/detokenize", {"tokens": [2048]})["param"] == "tokens[0]"
    assert server.refused("/tokenize", {"content": 5})["param"] == "content"


def test_tokens_in_the_form_of_vllm(server, engine):
    asked = {"prompt": "Hello é<|im_end|>"}
    ids = engine.tokenize(asked["prompt"])
    counted = {"count": len(ids), "max_model_len": 1024, "tokens": ids, "token_strs": None}
    assert server.ok("/tokenize", asked) == counted
    plain = server.ok("/tokenize", {**asked, "add_special_tokens": False})["tokens"]
    assert plain == engine.tokenize(asked["prompt"], add_special=False) == ids[1:]
    spelled = server.ok("/tokenize", {**asked, "return_token_strs": True})["token_strs"]
    assert spelled == [engine.tokenizer.token_text(token) for token in ids]
    messages = [{"role": "user", "content": "x<|im_end|>"}]
    chat = server.ok("/tokenize", {"messages": messages, "add_special_tokens": False})
    done = server.ok("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
    assert chat["count"] == len(chat["tokens"]) == done["usage"]["prompt_tokens"]
    assert chat["tokens"].count(3) == 1  # the template's own <|im_end|>
    no_end = {"messages": messages, "add_generation_prompt": False}
    assert server.ok("/tokenize", no_end)["count"] < chat["count"]


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "content", "or one of prompt, messages"),
        ({"content": "x", "prompt": "x"}, "prompt", "found together with content"),
        ({"prompt": "x", "add_special": True}, "add_special", "add_special_tokens, return_token"),
        ({"prompt": "x", "tools": []}, "tools", "found together with prompt"),
        (
            {"messages": [{"role": "user", "content": "x"}], "add_special_tokens": True},
            "add_special_tokens",
            "writes its own",
        ),
        ({"messages": [WITH_IMAGE]}, "messages[0].content[0]", "wanted text alone"),
    ],
)
def test_what_is_tokenized_is_one_thing_in_one_form(server, body, param, words):
    error = server.refused("/tokenize", body)
    assert error["param"] == param and words in error["message"]


def test_a_template_is_applied(server):
    prompt = server.ok("/apply-template", {"messages": [{"role": "user", "content": "x"}]})
    assert prompt == {"prompt": "<|begin|><|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"}


@pytest.mark.parametrize("more", [{}, {"add_generation_prompt": False}])
def test_a_template_is_applied_to_a_reply_that_goes_on(server, more):
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Once"}]
    body = {"messages": messages, "continue_final_message": True, **more}
    whole = server.ok("/apply-template", {"messages": messages[:1]})["prompt"]
    assert server.ok("/apply-template", body)["prompt"] == whole + "Once"
    longer = [*messages, *messages]
    whole = server.ok("/apply-template", {"messages": longer[:3]})["prompt"]
    body = {"messages": longer, "continue_final_message": True, **more}
    assert server.ok("/apply-template", body)["prompt"] == whole + "Once"


def test_a_completion_is_that_of_the_engine(server, engine):
    done = engine.generate("Once upon a time", max_tokens=8, seed=3)
    made = server.ok(PATH, {**ASK, "return_tokens": True})
    assert made["content"] == done.text and made["tokens"] == list(done.tokens)
    assert (made["stop"], made["stop_type"], made["stopping_word"]) == (True, "limit", "")
    assert (made["tokens_predicted"], made["tokens_evaluated"]) == (8, done.usage.prompt_tokens)
    assert made["truncated"] is False
    assert made["generation_settings"]["n_predict"] == 8
    assert made["generation_settings"]["seed"] == 3
    assert made["timings"]["predicted_n"] == 8
    assert server.ok(PATH, ASK)["tokens"] == []


def test_what_stopped_it_is_told(server):
    text = server.ok(PATH, {**ASK, "n_predict": 40})["content"]
    word = text.split()[4]
    made = server.ok(PATH, {**ASK, "n_predict": 40, "stop": [word]})
    assert (made["stop_type"], made["stopping_word"]) == ("word", word)
    ended = server.ok(PATH, {**ASK, "grammar": 'root ::= "a"'})
    assert (ended["stop_type"], ended["content"]) == ("eos", "a")
    assert server.ok(PATH, {**ASK, "n_predict": 0})["content"] == ""


@pytest.mark.parametrize(
    "more, truncated",
    [
        ({"prompt": [5] * 1020}, True),  # the context is full before its limit, which it has not
        ({"prompt": [5] * 1020, "n_predict": 5}, True),
        ({"prompt": [5] * 1020, "n_predict": 4}, False),
        ({"prompt": [5] * 2000, "n_predict": 3, "truncate_prompt": True}, True),
        ({"prompt": [5] * 1000, "n_predict": 60, "context_shift": True}, True),
        ({"n_predict": 40, "grammar": 'root ::= "a"', "ignore_eos": False}, False),
    ],
)
def test_an_answer_is_truncated_where_the_context_took_something_away(server, more, truncated):
    made = server.ok(PATH, {"prompt": "Once", "ignore_eos": True, **more})
    assert made["truncated"] is truncated


def test_a_stream_ends_with_stop_true_and_no_done(server):
    chunks = server.chunks(PATH, ASK)
    assert all(each["stop"] is False for each in chunks[:-1])
    last = chunks[-1]
    assert last["stop"] is True and last["content"] == "" and last["stop_type"] == "limit"
    text = "".join(each["content"] for each in chunks)
    assert text == server.ok(PATH, ASK)["content"]


def test_probabilities_of_tokens(server):
    entries = server.ok(PATH, {**ASK, "n_probs": 3})["completion_probabilities"]
    assert len(entries) == 8 and all(len(each["top_logprobs"]) == 3 for each in entries)
    after = server.ok(PATH, {**ASK, "n_probs": 3, "post_sampling_probs": True})
    assert all(0 < each["prob"] <= 1 for each in after["completion_probabilities"])
    for more, whole in (({}, entries), ({"post_sampling_probs": True}, None)):
        wanted = after["completion_probabilities"] if whole is None else whole
        chunks = server.chunks(PATH, {**ASK, "n_probs": 3, **more})
        found = [one for each in chunks for one in each.get("completion_probabilities", ())]
        assert found == wanted


def test_the_engine_has_a_few_prompts_of_a_body_at_once(server, monkeypatch):
    submit, made, most = oxillama.InferenceEngine.submit, [], []

    def counted(self, *given, **options):
        most.append(sum(not each.done for each in made))
        made.append(submit(self, *given, **options))
        return made[-1]

    monkeypatch.setattr(oxillama.InferenceEngine, "submit", counted)
    found = server.ok(PATH, {**ASK, "prompt": ["Once"] * 90, "n_predict": 2, "temperature": 0})
    assert len(made) == len(found) == 90 and max(most) < 64
    assert {each["content"] for each in found} == {found[0]["content"]}


def test_prompts_of_several_kinds(server, engine):
    ids = engine.tokenize("Once upon a time")
    assert server.ok(PATH, {**ASK, "prompt": ids})["content"] == server.ok(PATH, ASK)["content"]
    mixed = server.ok(PATH, {**ASK, "prompt": [*ids[:2], " upon a time"]})
    assert mixed["content"] == server.ok(PATH, ASK)["content"]
    # of texts and ids the first alone begins a text
    begin, once = ids[0], engine.tokenize("Once", add_special=False)
    for prompt, wanted in (
        (["Once", 5, "Once"], [begin, *once, 5, *once]),
        ([5, "Once"], [5, *once]),
    ):
        made = server.ok(PATH, {**ASK, "prompt": prompt})
        assert made["prompt"] == engine.tokenizer.decode(wanted, skip_special=False)
        assert made["tokens_evaluated"] == len(wanted)
    many = server.ok(PATH, {**ASK, "prompt": ["Once upon a time", ids]})
    assert [each["index"] for each in many] == [0, 1]
    assert many[0]["content"] == many[1]["content"]


def test_response_fields_are_members_of_the_answer(server):
    whole = server.ok(PATH, {**ASK, "n_probs": 1})
    everything = server.ok(PATH, {**ASK, "n_probs": 1, "response_fields": list(whole)})
    assert everything.keys() == whole.keys()
    assert set(TIMINGS) == whole["timings"].keys()
    inner = [f"timings/{name}" for name in whole["timings"]]
    inner += [f"generation_settings/{name}" for name in whole["generation_settings"]]
    found = server.ok(PATH, {**ASK, "n_probs": 1, "response_fields": ["content", *inner]})
    settings = whole["generation_settings"]
    assert found.keys() == {"content", *whole["timings"], *settings}
    assert {name: found[name] for name in settings} == settings
    for name in ("nope", "content/x", "timings/x", "timings/", "completion_probabilities"):
        error = server.refused(PATH, {**ASK, "response_fields": ["content", name]})
        assert error["param"] == "response_fields[1]"
        assert error["message"].startswith(f"response_fields[1]: found {name!r}, wanted one of")


def test_a_slot_does_not_replace_a_session_in_memory(server):
    server.ok(PATH, {**ASK, "id_slot": 4})
    server.ok("/v1/sessions/slotted", {})
    answer = server.post("/slots/4?action=save", {"filename": "slotted"})
    assert answer.status_code == 409
    assert answer.json()["error"]["param"] == "filename"
    server.client.delete("/v1/sessions/slotted")
    saved = server.ok("/slots/4?action=save", {"filename": "slotted"})
    about = server.get("/v1/sessions/slotted").json()
    assert (about["tokens"], about["loaded"]) == (saved["n_saved"], False)
    assert about["model"] == "oxillama-embedded"
    server.client.delete("/v1/sessions/slotted")


def test_a_refused_request_leaves_its_slot_as_it_was(server):
    begun = server.ok(PATH, {**ASK, "id_slot": 3})
    held = server.ok("/slots/3?action=save", {"filename": "before"})["n_saved"]
    server.refused(PATH, {**ASK, "prompt": "Another", "min_tokens": 9, "id_slot": 3})
    assert server.ok("/slots/3?action=save", {"filename": "after"})["n_saved"] == held
    again = server.ok(PATH, {**ASK, "id_slot": 3})
    assert again["content"] == begun["content"]


def test_a_request_waits_for_the_slot_that_it_names(server):
    state, end = server.app.state, time.monotonic() + 10
    fields = {"response_fields": ["id_slot", "content"]}
    body = {**ASK, **fields, "ignore_eos": True, "id_slot": 5, "n_predict": 900}
    with ThreadPoolExecutor() as pool:
        first = pool.submit(server.ok, PATH, body)
        while not state.jobs:
            assert time.monotonic() < end
        both = pool.submit(server.ok, PATH, {**body, "prompt": [ASK["prompt"]] * 2})
        while len(state.active) < 3:
            assert time.monotonic() < end
        assert list(state.jobs) == [5] and state.waiting("oxillama-embedded") >= 2
        assert server.ok(PATH, {**ASK, **fields})["id_slot"] != 5
    assert both.result() == [first.result()] * 2
    assert first.result()["id_slot"] == 5
    assert not state.active


def test_a_slot_that_a_request_named_is_left_to_those_that_name_it(server):
    named = server.ok(PATH, {**ASK, "id_slot": 0})
    assert server.ok(PATH, {**ASK, "prompt": "Another"})["id_slot"] != 0
    saved = server.ok("/slots/0?action=save", {"filename": "slot-of-a-name"})["n_saved"]
    assert saved == named["tokens_evaluated"] + named["tokens_predicted"]
    server.ok("/slots/0?action=erase", {})
    assert server.ok(PATH, ASK)["id_slot"] == 0


def test_an_action_waits_until_nothing_runs_in_its_slot(server):
    state, end = server.app.state, time.monotonic() + 10
    with ThreadPoolExecutor() as pool:
        asked = {**ASK, "ignore_eos": True, "n_predict": 900, "id_slot": 6}
        running = pool.submit(server.ok, PATH, asked)
        while not state.jobs:
            assert time.monotonic() < end
        erased = server.ok("/slots/6?action=erase", {})["n_erased"]
        done = running.result()
    assert erased == done["tokens_evaluated"] + done["tokens_predicted"] > 900
    assert server.refused("/slots/6?action=save", {"filename": "none"})["param"] == "id_slot"


def test_what_runs_is_shown_in_slots(server):
    slots = server.get("/slots").json()
    assert len(slots) == oxillama.SchedulerConfig().max_sequences
    assert {each["is_processing"] for each in slots} == {False}
    assert slots[0]["n_ctx"] == 1024 and slots[3]["id"] == 3


def test_a_slot_is_saved_and_restored(server):
    first = server.ok(PATH, {**ASK, "id_slot": 2})
    saved = server.ok("/slots/2?action=save", {"filename": "slot"})
    assert (saved["id_slot"], saved["filename"]) == (2, "slot")
    count = saved["n_saved"]
    assert count == first["tokens_evaluated"] + 8 and saved["n_written"] > 0
    assert server.ok("/slots/2?action=erase", {}) == {"id_slot": 2, "n_erased": count}
    assert server.refused("/slots/2?action=save", {"filename": "slot"})["param"] == "id_slot"
    restored = server.ok("/slots/2?action=restore", {"filename": "slot"})
    assert restored["n_restored"] == count
    # what is held is gone on with, without the cache of prefixes
    alone = {**ASK, "id_slot": 2, "cache_prompt": False}
    again = server.ok(PATH, alone)
    assert again["content"] == first["content"]
    assert again["tokens_cached"] == first["tokens_evaluated"] - 1
    server.ok("/slots/2?action=erase", {})
    assert server.ok(PATH, alone)["tokens_cached"] == 0


@pytest.mark.parametrize(
    "path, body, param, status",
    [
        (PATH, {**ASK, "prompt": ["a", "b"], "session": "one"}, "prompt", 400),
        ("/slots/99?action=erase", {}, "id_slot", 400),
        ("/slots/x?action=erase", {}, "id_slot", 400),
        ("/slots/0?action=eat", {}, "action", 400),
        ("/slots/0?action=save", {}, "filename", 400),
        ("/slots/0?action=save", {"filename": "../x"}, "filename", 400),
        ("/slots/0?action=restore", {"filename": "none"}, "filename", 404),
        (PATH, {}, "prompt", 400),
        (PATH, {"prompt": "a", "n_predict": -2}, "n_predict", 400),
        (PATH, {"prompt": "a", "n_predict": 1, "max_tokens": 1}, "max_tokens", 400),
        (PATH, {"prompt": "a", "n_probs": -1}, "n_probs", 400),
        (PATH, {"prompt": "a", "id_slot": 32}, "id_slot", 400),
        (PATH, {"prompt": "a", "t_max_predict_ms": 5}, "t_max_predict_ms", 400),
        (PATH, {"prompt": "a", "lora": [{"id": 0, "scale": 1}]}, "lora[0].id", 400),
        (PATH, {"prompt": "a", "post_sampling_probs": True}, "post_sampling_probs", 400),
        (PATH, {"prompt": "a", "nonsense": 1}, "nonsense", 400),
        (PATH, {"prompt": ["a", "b"], "stream": True}, "stream", 400),
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}, "input_suffix", 400),
        ("/infill", {"input_prefix": "a"}, "input_suffix", 400),
        ("/lora-adapters", [{"id": 0, "scale": 1.0}], "[0].id", 400),
        ("/lora-adapters", [{"id": 0}], "[0].scale", 400),
        ("/apply-template", {"messages": [WITH_IMAGE]}, "messages[0].content[0]", 400),
        (
            "/apply-template",
            {"messages": [WITH_IMAGE], "continue_final_message": True},
            "continue_final_message",
            400,
        ),
        ("/rerank", {"query": "a"}, "documents", 400),
        ("/rerank", {"query": "a", "documents": ["b"]}, "model", 400),
        ("/rerank", {"query": "a", "texts": ["b"], "raw_scores": False}, "raw_scores", 400),
        ("/rerank", {"query": "a", "texts": ["b"], "return_documents": True}, RETURNED, 400),
        ("/rerank", {"query": "a", "documents": ["b"], "return_text": True}, "return_text", 400),
        ("/v1/score", {"text_1": "a"}, "text_2", 400),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1", 400),
        ("/v1/score", {"text_1": "a", "text_2": ["b"]}, "model", 400),
        ("/v1/load_lora_adapter", {"lora_name": "a"}, "lora_path", 400),
        ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/x"}, "lora_path", 404),
        ("/v1/unload_lora_adapter", {"lora_name": "a"}, "lora_name", 404),
    ],
)
def test_what_cannot_be_honoured_is_named(server, path, body, param, status):
    assert server.refused(path, body, status)["param"] == param


def test_a_prompt_that_is_too_long_is_told_as_llama_server_does(server):
    error = server.refused(PATH, {"prompt": [5] * 2000})
    assert (error["code"], error["type"]) == (400, "exceed_context_size_error")


def test_adapters_are_listed(server):
    assert server.get("/lora-adapters").json() == []
    assert server.ok("/lora-adapters", []) == {"success": True}


def test_models_are_listed(server):
    (model,) = server.get("/v1/models").json()["data"]
    assert (model["id"], model["object"]) == ("oxillama-embedded", "model")
    assert model["max_model_len"] == model["meta"]["n_ctx"] == 1024
    assert server.get("/v1/models/oxillama-embedded").json() == model
    assert server.get("/v1/models/nope").status_code == 404
    assert server.get("/version").json() == {"version": oxillama.__version__}


def test_slots_are_free_where_nothing_runs(server):
    answer = server.get("/slots?fail_on_no_slot=1")
    assert answer.status_code == 200 and answer.json()


TALK = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6, "temperature": 0}


@pytest.mark.parametrize("n", [1, 2])
def test_a_chat_tells_its_times_where_that_is_asked_for(server, n):
    path = "/v1/chat/completions"
    assert "timings" not in server.ok(path, TALK)
    body = {**TALK, "n": n, "timings_per_token": True}
    made = server.ok(path, body)
    found, usage = made["timings"], made["usage"]
    assert found["predicted_n"] == usage["completion_tokens"]
    assert found["cache_n"] + found["prompt_n"] == usage["prompt_tokens"]
    assert found["predicted_ms"] > 0
    for part in ("prompt", "predicted"):
        count, ms = found[f"{part}_n"], found[f"{part}_ms"]
        assert found[f"{part}_per_token_ms"] == (ms / count if count else 0)
        assert found[f"{part}_per_second"] == (count / ms * 1e3 if ms else 0)
    chunks = server.chunks(path, body)[:-1]
    own = {}
    for each in chunks:
        own.setdefault(each["choices"][0]["index"], []).append(each["timings"])
    assert set(own) == set(range(n))
    for timings in own.values():
        counts = [each["predicted_n"] for each in timings]
        assert counts == sorted(counts)
        assert sum(each[-1]["predicted_n"] for each in own.values()) == usage["completion_tokens"]
        assert set(timings[0]) == set(found)
    plain = server.chunks(path, TALK)[:-1]
    assert not any("timings" in each for each in plain)
    texts = [
        "".join(
            e["choices"][0]["delta"].get("content", "")
            for e in each
            if not e["choices"][0]["index"]
        )
        for each in (plain, chunks)
    ]
    assert texts[0] == texts[1]


def test_a_completions_text_is_not_parsed(server):
    for given in ("none", "auto"):
        made = server.ok(PATH, {**ASK, "reasoning_format": given})
        assert made["content"] == server.ok(PATH, ASK)["content"]
    assert server.refused(PATH, {**ASK, "reasoning_format": "deepseek"})["message"].startswith(
        "reasoning_format: found 'deepseek'"
    )
