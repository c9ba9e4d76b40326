"""Anthropic's messages: blocks, the order of events, and its own form of errors."""

import json
import os
from types import SimpleNamespace

import pytest

from oxillama.server.anthropic import _messages
from oxillama.server.message_blocks import content_of
from oxillama.server.replies import CollectedReply, begun_object
from oxillama.server.response_items import Items
from oxillama.toolcalls import ChatEventBuilder, ToolCallDetector
from tests.server.conftest import MODEL, asking

PATH = "/v1/messages"
HI = [{"role": "user", "content": "Tell me a story"}]
ASK = {"messages": HI, "max_tokens": 12, "seed": 3}
TOOL = {
    "name": "weather",
    "description": "The weather.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
THOUGHTFUL = {
    "role": "assistant",
    "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Once"}],
}
CREATE = {"type": "create"}
FORCED = {
    **ASK,
    "tools": [TOOL],
    "max_tokens": 400,
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
}


def sum_of(usage):
    """Tokens of the prompt, cached or not, and of the reply."""
    return usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"]


def test_a_message_is_the_answer_of_a_chat(server, engine):
    done = engine.chat(HI, max_tokens=12, seed=3)
    made = server.ok(PATH, ASK)
    assert made["type"] == "message" and made["id"].startswith("msg_")
    assert made["content"] == [{"type": "text", "text": done.content}]
    assert (made["role"], made["stop_reason"], made["stop_sequence"]) == (
        "assistant",
        "max_tokens",
        None,
    )
    usage = made["usage"]
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert sum(usage[name] for name in parts) == done.usage.prompt_tokens
    assert usage["output_tokens"] == 12


def test_the_events_of_a_text_come_in_order(server):
    events = server.events(PATH, ASK)
    names = [name for name, _ in events]
    deltas = names.count("content_block_delta")
    assert names == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert all(name == data["type"] for name, data in events)
    start = events[0][1]["message"]
    assert start["content"] == [] and start["stop_reason"] is None
    assert events[1][1]["content_block"] == {"type": "text", "text": ""}
    text = "".join(data["delta"]["text"] for name, data in events if name == "content_block_delta")
    assert text == server.ok(PATH, ASK)["content"][0]["text"]
    assert events[-2][1]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2][1]["usage"]["output_tokens"] == 12


def test_a_call_is_a_block_of_its_own(server):
    made = server.ok(PATH, FORCED)
    (block,) = made["content"]
    assert block["type"] == "tool_use" and block["id"].startswith("toolu_")
    assert (block["name"], block["input"]) == ("weather", {"city": "Paris"})
    assert made["stop_reason"] == "tool_use"
    events = server.events(PATH, FORCED)
    start = next(data for name, data in events if name == "content_block_start")
    assert start["content_block"]["input"] == {} and start["index"] == 0
    said = "".join(
        data["delta"]["partial_json"] for name, data in events if name == "content_block_delta"
    )
    assert json.loads(said) == {"city": "Paris"}
    assert events[-2][1]["delta"]["stop_reason"] == "tool_use"


def blank_tokens(engine):
    words = engine.tokenizer
    return [token for token in range(words.vocab_size) if words.token_bytes(token).isspace()]


def test_a_call_that_was_cut_short_is_a_block_without_arguments(server, engine):
    """Clients see by `stop_reason` that the last block is not whole."""
    more = {"max_tokens": 24, "temperature": 0, "banned_tokens": blank_tokens(engine)}
    cut = server.ok(PATH, {**FORCED, **more})
    (block,) = cut["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "weather", {})
    assert cut["stop_reason"] == "max_tokens"
    # as clients of OpenAI see it
    function = {"name": "weather", "parameters": TOOL["input_schema"]}
    tools = [{"type": "function", "function": function}]
    as_chat = {"messages": HI, "tools": tools, "tool_choice": "required", **more}
    made = server.ok("/v1/chat/completions", as_chat)["choices"][0]
    (call,) = made["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": ""}


def test_a_call_that_was_cut_short_has_what_is_whole_of_its_stream(server, engine):
    properties = {name: {"enum": ["Paris", "Rome"]} for name in ("from", "to", "by")}
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    schema["additionalProperties"] = False
    more = {"temperature": 0, "banned_tokens": blank_tokens(engine)}
    body = {**FORCED, **more, "tools": [{"name": "trip", "input_schema": schema}]}
    whole = set()
    for most in range(30, 70, 3):
        made = server.ok(PATH, {**body, "max_tokens": most})
        said = "".join(
            data["delta"]["partial_json"]
            for name, data in server.events(PATH, {**body, "max_tokens": most})
            if name == "content_block_delta"
        )
        given = made["content"][0]["input"]
        if made["stop_reason"] == "max_tokens":
            whole.add(len(given))
            assert given == begun_object(said)
        else:
            assert given == json.loads(said) and len(given) == 3
    assert {0, 1, 2} <= whole


def test_of_an_object_that_is_cut_off_what_is_whole_is_read():
    given = {"a": 'x"}\\{', "b": [1, -2.5, {"c,": [True, None]}], "d": {}, "e": {"f": ""}, "g": 7}
    text = json.dumps(given)
    assert begun_object(text) == given
    found = [begun_object(text[:at]) for at in range(len(text))]
    assert found[text.index(', "b"')] == {"a": given["a"]}
    assert found[text.index("1, -2.5")] == {"a": given["a"], "b": []}
    assert found[text.index("-2.5") + 3]["b"] == [1]  # the number might go on
    assert found[text.index(', "d"')] == {"a": given["a"], "b": given["b"]}
    assert found[-1] == {name: given[name] for name in "abde"}
    sizes = [len(json.dumps(each)) for each in found]
    assert sizes == sorted(sizes)  # nothing that was whole is lost
    assert not any(map(begun_object, ("", "[1]", "}", "{]", '{"a" 1}', "nonsense")))


def test_an_output_format_is_the_whole_text(server):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    config = {"format": {"type": "json_schema", "schema": schema}}
    made = server.ok(PATH, {**ASK, "max_tokens": 64, "output_config": config})
    assert json.loads(made["content"][0]["text"])["a"] in (1, 2)
    error = server.refused(PATH, {**ASK, "output_config": {**config, "effort": "low"}})
    assert error["message"].startswith("output_config.effort: found 'low', ")
    config["format"]["schema"] = {"type": "nothing"}
    error = server.refused(PATH, {**ASK, "output_config": config})
    assert error["message"].startswith("output_config.format")


def test_what_asks_for_what_is_done_anyway_is_taken(server):
    made = server.ok(PATH, ASK)
    keep = {"type": "clear_thinking_20251015", "keep": "all"}
    more = {
        "output_config": {"effort": "high"},
        "speed": "standard",
        "thinking": {"type": "adaptive", "display": "summarized"},
        "context_management": {"edits": [keep]},
    }
    same = server.ok(PATH, {**ASK, **more})
    assert same["content"] == made["content"]
    assert same["context_management"] == {"applied_edits": []}
    assert "context_management" not in made
    (delta,) = (each for name, each in server.events(PATH, {**ASK, **more}) if "usage" in each)
    assert delta["context_management"] == {"applied_edits": []}
    edits = (
        ({**keep, "keep": {"type": "thinking_turns", "value": 1}}, "keep"),
        ({"type": "clear_thinking_20251015"}, "keep"),
        ({"type": "clear_tool_uses_20250919"}, "type"),
    )
    for edit, name in edits:
        error = server.refused(PATH, {**ASK, "context_management": {"edits": [edit]}})
        assert error["message"].startswith(f"context_management.edits[0].{name}")


def test_the_system_may_speak_in_the_midst(server, engine):
    spoken = [*HI, {"role": "system", "content": [{"type": "text", "text": "In French."}]}]
    talk = [{"role": "system", "content": "Be brief."}, *HI]
    talk.append({"role": "system", "content": "In French."})
    done = engine.chat(talk, max_tokens=12, seed=3)
    made = server.ok(PATH, {**ASK, "system": "Be brief.", "messages": spoken})
    assert made["content"] == [{"type": "text", "text": done.content}]
    assert sum_of(made["usage"]) == (done.usage.prompt_tokens, 12)


def test_models_are_listed_in_pages(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.gguf").touch()
    with asking(models_dir=tmp_path) as server:

        def page(query):
            answer = server.get(f"/v1/models?{query}", headers={"anthropic-version": "2023-06-01"})
            if answer.status_code != 200:
                return answer.json()["error"]["message"]
            made = answer.json()
            return [each["id"] for each in made["data"]], made["has_more"]

        assert page("") == (["a", "b", "c"], False)
        assert page("limit=2") == (["a", "b"], True)
        assert page("limit=2&after_id=b") == (["c"], False)
        assert page("before_id=c&limit=1") == (["b"], True)
        assert page("before_id=c") == (["a", "b"], False)
        assert page("limit=0") == "limit: found '0', wanted 1 to 1000"
        assert page("after_id=d") == "after_id: found 'd', wanted the id of a model"
        assert page("after_id=a&before_id=c").startswith("before_id: found 'c', wanted one of")
        os.utime(tmp_path / "a.gguf", (86400, 86400))
        made = server.get("/v1/models/a", headers={"anthropic-version": "2023-06-01"}).json()
        assert (made["id"], made["created_at"]) == ("a", "1970-01-02T00:00:00Z")


def test_a_reply_that_fills_the_context_says_so():
    """By which clients shorten the conversation, and ask for no more tokens."""
    with asking(engine={"n_ctx": 48}) as server:
        ask = {**ASK, "ignore_eos": True, "max_tokens": 200}
        made = server.ok(PATH, ask)
        assert sum(sum_of(made["usage"])) == 48
        assert made["stop_reason"] == "model_context_window_exceeded"
        delta = server.events(PATH, ask)[-2][1]["delta"]
        assert delta["stop_reason"] == "model_context_window_exceeded"
        most = made["usage"]["output_tokens"]
        assert server.ok(PATH, {**ask, "max_tokens": most})["stop_reason"] == "max_tokens"
        body = {"prompt": "Once upon a time", "ignore_eos": True}
        whole = server.ok("/completion", body)
        assert (whole["stop_type"], whole["truncated"]) == ("limit", True)
        most = whole["tokens_predicted"]
        assert server.ok("/completion", {**body, "n_predict": most})["truncated"] is False


def test_a_stop_sequence_is_named(server):
    text = server.ok(PATH, {**ASK, "max_tokens": 40})["content"][0]["text"]
    stop = text.split()[3]
    made = server.ok(PATH, {**ASK, "max_tokens": 40, "stop_sequences": ["zzz", stop]})
    assert (made["stop_reason"], made["stop_sequence"]) == ("stop_sequence", stop)
    assert made["content"][0]["text"] == text[: text.index(stop)]


def test_a_last_message_of_the_assistant_begins_the_reply(server):
    messages = [*HI, {"role": "assistant", "content": "Once upon a"}]
    made = server.ok(PATH, {**ASK, "messages": messages, "temperature": 0})
    assert made["content"][0]["text"].startswith(" time")


def test_results_of_tools_go_back(server):
    use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}}
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [{"type": "text", "text": "sunny"}],
        "is_error": True,
    }
    messages = [
        *HI,
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result, {"type": "text", "text": "so?"}]},
    ]
    body = {"messages": messages, "tools": [TOOL]}
    assert server.ok(f"{PATH}/count_tokens", body)["input_tokens"] > 40
    assert server.ok(PATH, {**ASK, **body})["content"]
    wrong = [*HI, {"role": "user", "content": [result]}]
    assert server.refused(PATH, {**ASK, "messages": wrong})["type"] == "invalid_request_error"
    late = [*messages[:2], {"role": "user", "content": [{"type": "text", "text": "so?"}, result]}]
    message = server.refused(PATH, {**ASK, "messages": late})["message"]
    assert message.startswith("messages[2].content[1]: found a tool_result after other blocks")


def test_text_after_a_call_keeps_its_place():
    def use(name):
        return {"type": "tool_use", "id": name, "name": "weather", "input": {}}

    def call(name):
        function = {"name": "weather", "arguments": "{}"}
        return {"id": name, "type": "function", "function": function}

    blocks = [
        {"type": "thinking", "thinking": "Hm."},
        {"type": "text", "text": "One."},
        use("a"),
        use("b"),
        {"type": "text", "text": "Two."},
        use("c"),
    ]
    results = [{"type": "tool_result", "tool_use_id": each, "content": each} for each in "abc"]
    messages = [
        *HI,
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": results},
    ]
    made, prefill = _messages({"messages": messages}, 0)
    assert [each.pop("at") for each in made] == [f"messages[{at}]" for at in (0, 1, 1, 2, 2, 2)]
    assert (made[0], prefill) == (HI[0], "")
    assert made[1:3] == [
        {
            "role": "assistant",
            "content": "One.",
            "reasoning_content": "Hm.",
            "tool_calls": [call("a"), call("b")],
        },
        {"role": "assistant", "content": "Two.", "tool_calls": [call("c")]},
    ]
    assert [each["content"] for each in made[3:]] == ["a", "b", "c"]


def test_a_call_without_its_result_begins_no_reply(server):
    use = {"type": "tool_use", "id": "a", "name": "weather", "input": {}}
    for blocks in ([use], [use, {"type": "text", "text": "So"}]):
        messages = [*HI, {"role": "assistant", "content": blocks}]
        message = server.refused(PATH, {**ASK, "messages": messages})["message"]
        assert message == "messages[1]: found a tool_use, wanted its tool_result after it"


def test_the_blocks_and_items_of_a_reply_are_in_its_order():
    text = 'One.\n<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>\nTwo.'
    detector, builder = ToolCallDetector("hermes"), ChatEventBuilder()
    reply = CollectedReply(None, None)
    for event in builder.take(detector.feed(text) + detector.finish()) + builder.finish():
        reply.take(event)
    first, call, second = content_of(reply)
    assert first == {"type": "text", "text": "One."}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "weather", {})
    # the spaces around the call are of the texts, which joined are the content
    assert second == {"type": "text", "text": "\n\nTwo."}
    items = Items(SimpleNamespace(tokenizer=lambda: None), {})
    items.take(reply)
    assert [item["type"] for item in items.done] == ["message", "function_call", "message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_thread_continues_with_new_messages_alone(server, stream):
    """`client.beta.messages.tool_runner` sends `thread` unless it is told not to."""

    def id_of(body):
        if stream:
            return server.events(PATH, body)[0][1]["message"]["id"]
        return server.ok(PATH, body)["id"]

    fields = {"system": "Be kind.", "tools": [TOOL]}
    first = {**FORCED, **fields}
    (use,) = server.ok(PATH, first)["content"]
    thread = {"type": "continue", "previous_message_id": id_of({**first, "thread": CREATE})}
    more = {"role": "user", "content": "so?"}
    ask = {**ASK, "max_tokens": 4, "temperature": 0}
    history = [*HI, {"role": "assistant", "content": [use]}, more]
    whole = server.ok(PATH, {**ask, **fields, "messages": history})
    for _ in range(2):  # a reply may be continued more than once
        made = server.ok(PATH, {**ask, "messages": [more], "thread": thread})
        assert made["content"] == whole["content"]
        assert sum_of(made["usage"]) == sum_of(whole["usage"])
    # and so may the reply to it
    thread = {
        "type": "continue",
        "previous_message_id": id_of({**ask, "messages": [more], "thread": thread}),
    }
    history += [{"role": "assistant", "content": whole["content"]}, more]
    whole = server.ok(PATH, {**ask, **fields, "messages": history})
    made = server.ok(PATH, {**ask, "messages": [more], "thread": thread})
    assert made["content"] == whole["content"]
    assert sum_of(made["usage"]) == sum_of(whole["usage"])


def test_a_reply_that_continues_a_message_is_one_message_with_it_in_a_thread(server):
    ask = {**ASK, "max_tokens": 3, "temperature": 0}
    begun = [*HI, {"role": "assistant", "content": "Once upon a"}]
    made = server.ok(PATH, {**ask, "messages": begun, "thread": CREATE})
    said = "Once upon a" + made["content"][0]["text"]
    more = {"role": "user", "content": "and?"}
    thread = {"type": "continue", "previous_message_id": made["id"]}
    found = server.ok(PATH, {**ask, "messages": [more], "thread": thread})
    history = [*HI, {"role": "assistant", "content": said}, more]
    wanted = server.ok(PATH, {**ask, "messages": history})
    assert found["content"] == wanted["content"]
    assert sum_of(found["usage"]) == sum_of(wanted["usage"])


def test_a_thread_that_cannot_be_continued_is_refused(server):
    made = server.ok(PATH, {**ASK, "max_tokens": 1, "thread": CREATE})
    unstored = server.ok(PATH, {**ASK, "max_tokens": 1})
    thread = {"type": "continue", "previous_message_id": made["id"]}
    error = server.refused(PATH, {**ASK, "thread": thread, "tools": [TOOL]})
    assert error["message"].startswith("tools: found together with a thread to continue")
    assert "details" not in error
    wrong = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
    message = server.refused(PATH, {**ASK, "messages": wrong, "thread": thread})["message"]
    assert message.startswith("messages[0].content[0]")  # counted as in the request
    thread["previous_message_id"] = unstored["id"]
    error = server.refused(PATH, {**ASK, "thread": thread}, 404)
    assert error == {
        "type": "not_found_error",
        "message": f"thread.previous_message_id: {unstored['id']!r} is not stored here",
        "details": {"error_code": "thread_not_found"},  # by which clients send everything anew
    }


@pytest.mark.parametrize("limit", [{"max_responses": 1}, {"max_response_bytes": 150}])
def test_the_oldest_replies_of_threads_are_forgotten(limit):
    with asking(**limit) as server:
        first, last = (server.ok(PATH, {**ASK, "max_tokens": 1, "thread": CREATE}) for _ in "ab")
        thread = {"type": "continue", "previous_message_id": first["id"]}
        server.refused(PATH, {**ASK, "thread": thread}, 404)
        thread["previous_message_id"] = last["id"]
        server.ok(PATH, {**ASK, "max_tokens": 1, "thread": thread})


def test_tokens_are_counted_as_they_are_used(server):
    body = {"messages": HI, "system": [{"type": "text", "text": "Be kind."}]}
    count = server.ok(f"{PATH}/count_tokens", body)
    usage = server.ok(PATH, {**ASK, **body})["usage"]
    assert count == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_what_clients_say_of_tools_by_habit_holds(server):
    """The AI SDK asks for arguments as they come, of every tool of a stream."""
    said = {"eager_input_streaming": True, "defer_loading": False, "allowed_callers": ["direct"]}
    wanted = server.ok(PATH, FORCED)["content"][0]
    made = server.ok(PATH, {**FORCED, "tools": [{**TOOL, **said}]})["content"][0]
    assert {**made, "id": ""} == {**wanted, "id": ""} and made["type"] == "tool_use"
    for name, other in (
        ("eager_input_streaming", False),
        ("defer_loading", True),
        ("allowed_callers", ["code_execution_20250825"]),
    ):
        error = server.refused(PATH, {**FORCED, "tools": [{**TOOL, name: other}]})
        assert error["message"].startswith(f"tools[0].{name}")


@pytest.mark.parametrize(
    "more, name",
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0]"),
        ({"temperature": -1}, "temperature"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "web_search_20250305", "name": "x"}]}, "tools[0]"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2}}, "thinking.type"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [*HI, THOUGHTFUL]}, "messages[1]"),
        ({"nonsense": 1}, "nonsense"),
        ({"thread": {"type": "continue"}}, "thread.previous_message_id"),
        ({"thread": {"type": "resume"}}, "thread"),
        ({"stop_sequences": [""]}, "stop_sequences"),
    ],
)
def test_errors_are_anthropics(server, more, name):
    answer = server.post(PATH, {**ASK, **more})
    assert answer.status_code == 400
    made = answer.json()
    assert set(made) == {"type", "error", "request_id"} and made["type"] == "error"
    assert made["error"]["type"] == "invalid_request_error"
    assert name in made["error"]["message"]
    assert answer.headers["request-id"] == made["request_id"]


def test_an_unknown_model_and_path_are_not_found(server):
    assert server.refused(PATH, {**ASK, "model": "claude"}, 404)["type"] == "not_found_error"
    answer = server.post(f"{PATH}/nothing", {})
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
    answer = server.get(PATH)
    assert (answer.status_code, answer.headers["allow"]) == (405, "OPTIONS, POST")
    assert answer.json()["type"] == "error"


def test_models_are_anthropics_for_its_clients(server):
    headers = {"anthropic-version": "2023-06-01"}
    found = server.get("/v1/models", headers=headers).json()
    assert (found["has_more"], found["first_id"], found["last_id"]) == (False, MODEL, MODEL)
    assert found["data"][0]["type"] == "model" and found["data"][0]["created_at"].endswith("Z")
    assert found["data"][0]["lifecycle"] == "active"
    assert server.get(f"/v1/models/{MODEL}", headers=headers).json() == found["data"][0]
    error = server.get("/v1/models/other", headers=headers)
    assert (error.status_code, error.json()["error"]["type"]) == (404, "not_found_error")
