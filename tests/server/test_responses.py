"""`/v1/responses`: items, the order of events, conversations that go on."""

import json

import pytest

from oxillama.server.responses import _messages
from oxillama.server.state import BoundedStore

PATH = "/v1/responses"
ASK = {"input": "Tell me a story", "max_output_tokens": 12, "seed": 3}
TOOL = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
SPACE = {"type": "namespace", "name": "earth", "description": "Of here.", "tools": [TOOL]}
FORCED = {
    **ASK,
    "tools": [TOOL],
    "tool_choice": "required",
    "max_output_tokens": 400,
    "parallel_tool_calls": False,
}


def test_a_response_is_the_answer_of_a_chat(server, engine):
    done = engine.chat([{"role": "user", "content": "Tell me a story"}], max_tokens=12, seed=3)
    made = server.ok(PATH, ASK)
    assert made["object"] == "response" and made["id"].startswith("resp_")
    assert made["status"] == "incomplete"
    assert made["incomplete_details"] == {"reason": "max_output_tokens"}
    (item,) = made["output"]
    assert item["type"] == "message" and item["id"].startswith("msg_")
    assert (item["role"], item["status"]) == ("assistant", "incomplete")
    assert item["content"] == [
        {"type": "output_text", "text": done.content, "annotations": [], "logprobs": []}
    ]
    assert made["usage"]["input_tokens"] == done.usage.prompt_tokens
    assert made["usage"]["output_tokens"] == 12
    assert made["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}
    assert set(made["usage"]["input_tokens_details"]) == {"cached_tokens", "cache_write_tokens"}
    for name in (
        "instructions",
        "metadata",
        "parallel_tool_calls",
        "temperature",
        "top_p",
        "tool_choice",
        "tools",
        "text",
        "error",
        "created_at",
        "model",
    ):
        assert name in made


def test_the_events_of_a_message_come_in_order(server):
    whole = server.ok(PATH, {**ASK, "max_output_tokens": 400})
    events = server.events(PATH, {**ASK, "max_output_tokens": 400})
    names = [name for name, _ in events]
    deltas = names.count("response.output_text.delta")
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert all(name == data["type"] for name, data in events)
    for name, data in events[2:-1]:
        assert data["output_index"] == 0 and data["item_id"].startswith("msg_")
        if "output_text" in name or "content_part" in name:
            assert data["content_index"] == 0
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert events[3][1]["part"] == part
    assert events[-3][1]["part"] == {**part, "text": whole["output"][0]["content"][0]["text"]}
    text = "".join(data["delta"] for name, data in events if name.endswith("text.delta"))
    last = events[-1][1]["response"]
    assert text == last["output"][0]["content"][0]["text"]
    assert text == whole["output"][0]["content"][0]["text"]
    assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert last["status"] == "completed" and last["error"] is None


def test_the_events_of_a_call_come_in_order(server):
    (item,) = server.ok(PATH, FORCED)["output"]
    assert item["type"] == "function_call" and item["id"].startswith("fc_")
    assert item["call_id"].startswith("call_") and item["name"] == "weather"
    assert json.loads(item["arguments"]) == {"city": "Paris"}
    events = server.events(PATH, FORCED)
    names = list(dict.fromkeys(name for name, _ in events))
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    deltas = "".join(data.get("delta", "") for _, data in events)
    done = next(data for name, data in events if name.endswith("arguments.done"))
    assert deltas == done["arguments"]
    assert json.loads(deltas) == {"city": "Paris"}


def test_a_conversation_goes_on_from_a_stored_response(server):
    first = server.ok(PATH, ASK)
    text = first["output"][0]["content"][0]["text"]
    second = server.ok(PATH, {**ASK, "input": "Go on", "previous_response_id": first["id"]})
    messages = [
        {"role": "user", "content": "Tell me a story"},
        {"role": "assistant", "content": text},
        {"role": "user", "content": "Go on"},
    ]
    as_items = server.ok(PATH, {**ASK, "input": messages})
    assert second["output"][0]["content"] == as_items["output"][0]["content"]
    assert second["usage"]["input_tokens"] == as_items["usage"]["input_tokens"]
    assert second["previous_response_id"] == first["id"]


def test_an_item_may_be_named_by_its_id(server):
    """The AI SDK names the items of earlier replies, which are stored, and sends the others."""
    first = server.ok(PATH, ASK)
    call = server.ok(PATH, {**ASK, **FORCED})["output"][0]
    user = {"role": "user", "content": ASK["input"]}
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sun"}
    whole = [user, *first["output"], user, call, output]
    named = [
        {"type": "item_reference", "id": each["id"]} if "id" in each else each for each in whole
    ]
    wanted = server.ok(PATH, {**ASK, "input": whole})
    made = server.ok(PATH, {**ASK, "input": named})
    assert made["output"][0]["content"] == wanted["output"][0]["content"]
    assert made["usage"]["input_tokens"] == wanted["usage"]["input_tokens"]
    count = server.ok(f"{PATH}/input_tokens", {"input": named})["input_tokens"]
    assert count == wanted["usage"]["input_tokens"]
    items = server.get(f"{PATH}/{made['id']}/input_items", params={"order": "asc"}).json()["data"]
    assert [each["type"] for each in items[1:4]] == ["message", "message", "function_call"]
    server.client.delete(f"{PATH}/{first['id']}")
    error = server.refused(PATH, {**ASK, "input": named})
    assert (error["param"], error["code"]) == ("input[1].id", "item_not_found")


def test_instructions_are_of_one_response_alone(server):
    first = server.ok(PATH, {**ASK, "instructions": "Speak of dogs."})
    second = server.ok(PATH, {**ASK, "input": "Go on", "previous_response_id": first["id"]})
    assert second["instructions"] is None
    assert second["usage"]["input_tokens"] < first["usage"]["input_tokens"] + 12 + 12


def test_calls_and_their_outputs_go_back(server):
    first = server.ok(PATH, FORCED)
    (item,) = first["output"]
    output = {"type": "function_call_output", "call_id": item["call_id"], "output": "sunny"}
    by_id = server.ok(PATH, {**ASK, "input": [output], "previous_response_id": first["id"]})
    as_items = server.ok(
        PATH, {**ASK, "input": [{"role": "user", "content": "Tell me a story"}, item, output]}
    )
    assert by_id["output"][0]["content"] == as_items["output"][0]["content"]


def test_calls_belong_to_the_assistants_message_before_them():
    user = {"role": "user", "content": "Hi"}
    said = {"role": "assistant", "content": "So"}
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "a", "output": "x"}

    def roles(*items):
        return [(each["role"], len(each.get("tool_calls", ()))) for each in _messages(items)]

    alone = [("user", 0), ("assistant", 1), ("tool", 0)]
    assert roles(user, call, output) == alone
    assert roles(user, said, call, output) == alone
    assert roles(user, call, call) == [("user", 0), ("assistant", 2)]
    assert roles(call, output, call) == [("assistant", 1), ("tool", 0), ("assistant", 1)]


def test_a_tool_of_a_namespace_is_called_by_both_names(server):
    mars = {**SPACE, "name": "mars", "tools": [{**TOOL, "description": "There."}]}
    body = {**FORCED, "tools": [TOOL, mars, SPACE]}
    chat = {"type": "function", "name": "mars__weather"}
    made = server.ok(PATH, {**body, "tool_choice": chat})
    (call,) = made["output"]
    assert (call["namespace"], call["name"]) == ("mars", "weather")
    assert json.loads(call["arguments"]) == {"city": "Paris"}
    assert made["tools"][1:] == [mars, SPACE]
    items = [data.get("item", {}) for _, data in server.events(PATH, {**body, "tool_choice": chat})]
    assert {each.get("namespace") for each in items if each} == {"mars"}
    plain = {**body, "tool_choice": {"type": "function", "name": "weather"}}
    assert "namespace" not in server.ok(PATH, plain)["output"][0]
    # the same prompt as that of tools with the whole names, a namespace's description before its
    # first tool's
    flat = [TOOL, {**TOOL, "name": "mars__weather", "description": "Of here.\n\nThere."}]
    flat.append({**TOOL, "name": "earth__weather", "description": "Of here."})
    counted = [
        server.ok(f"{PATH}/input_tokens", {"input": "Hi", "tools": tools})
        for tools in (body["tools"], flat)
    ]
    assert counted[0] == counted[1]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    (said, _) = _messages([call, output])
    assert said["tool_calls"][0]["function"]["name"] == "mars__weather"


def test_what_asks_for_what_is_done_anyway_is_taken(server):
    more = {
        "text": {"verbosity": "medium"},
        "reasoning": {"summary": "auto"},
        "client_metadata": {"a": "b"},
        "prompt_cache_key": "k",
        "max_tool_calls": 3,
    }
    made = server.ok(PATH, {**ASK, **more})
    assert made["output"][0]["content"] == server.ok(PATH, ASK)["output"][0]["content"]
    assert made["text"] == {"format": {"type": "text"}, "verbosity": "medium"}


def test_a_format_is_the_whole_text(server):
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    format = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    made = server.ok(PATH, {**ASK, "text": {"format": format}, "max_output_tokens": 50})
    assert json.loads(made["output"][0]["content"][0]["text"])["a"] in (1, 2)
    assert made["text"] == {"format": format}


def test_what_is_stored_is_bounded_in_bytes():
    kept = BoundedStore(3, 100)
    for name, size in (("a", 40), ("b", 50), ("c", 5)):
        kept.add(name, name, size)
    assert kept.values() == ["a", "b", "c"]
    kept.add("d", "d", 1)  # one too many
    assert kept.values() == ["b", "c", "d"] and kept.get("a") is None
    kept.remove("b")
    kept.add("e", "e", 94)  # what left counts no more
    assert kept.values() == ["c", "d", "e"]
    kept.add("f", "f", 101)  # more than may be: it is the last
    assert kept.values() == ["f"]


def test_a_stored_response_is_found_and_forgotten(server):
    made = server.ok(PATH, ASK)
    path = f"{PATH}/{made['id']}"
    assert server.get(path).json() == made
    items = server.get(f"{path}/input_items").json()
    assert items["data"][0]["content"] == [{"type": "input_text", "text": "Tell me a story"}]
    assert server.client.delete(path).json() == {
        "id": made["id"],
        "object": "response",
        "deleted": True,
    }
    assert server.get(path).status_code == 404


@pytest.mark.parametrize(
    "name, value",
    [
        ("stream", "true"),
        ("starting_after", "3"),
        ("include", "message.output_text.logprobs"),
        ("include[]", "reasoning.encrypted_content"),
    ],
)
def test_a_stored_response_comes_as_it_is(server, name, value):
    """A client that asks for its events would read none in its JSON."""
    made = server.ok(PATH, ASK)
    path = f"{PATH}/{made['id']}"
    answer = server.get(path, params={name: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    assert server.get(path, params={"stream": "false"}).json() == made


def test_input_items_have_what_a_request_may_leave_out(server):
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}", "id": None}
    output = {"type": "function_call_output", "call_id": "a", "output": "sunny"}
    given = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi", "type": None},
        call,
        output,
    ]
    made = server.ok(PATH, {**ASK, "input": given})
    path = f"{PATH}/{made['id']}/input_items"
    items = server.get(path, params={"order": "asc"}).json()["data"]
    done = {"status": "completed"}
    assert items == [
        {
            **{**done, "id": "msg_00000000", "type": "message", "role": "user"},
            "content": [{"type": "input_text", "text": "Hello"}],
        },
        {
            **{**done, "id": "msg_00000001", "type": "message", "role": "assistant"},
            "content": [{"type": "output_text", "text": "Hi", "annotations": []}],
        },
        {**done, **call, "id": "fc_00000002"},
        {**done, **output, "id": "fc_00000003"},
    ]


def test_input_items_come_in_pages(server):
    given = [{"role": "user", "content": text} for text in ("a", "b", "c")]
    path = f"{PATH}/{server.ok(PATH, {**ASK, 'input': given})['id']}/input_items"

    def page(query):
        found = server.get(f"{path}?{query}").json()
        return [each["content"][0]["text"] for each in found["data"]], found["has_more"]

    assert page("") == (["c", "b", "a"], False)
    assert page("order=asc") == (["a", "b", "c"], False)
    assert page("order=asc&limit=2") == (["a", "b"], True)
    last = server.get(f"{path}?order=asc&limit=2").json()["last_id"]
    assert page(f"order=asc&after={last}") == (["c"], False)
    for wrong in ("order=up", "limit=0", "limit=101", "limit=x", "after=nothing"):
        answer = server.get(f"{path}?{wrong}")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == wrong.partition("=")[0]


def test_tokens_of_a_prompt_are_counted(server):
    body = {"input": "Tell me of a fox.", "instructions": "Be brief."}
    counted = server.ok(f"{PATH}/input_tokens", body)
    made = server.ok(PATH, {**body, "max_output_tokens": 2})
    assert counted == {
        "object": "response.input_tokens",
        "input_tokens": made["usage"]["input_tokens"],
    }
    assert server.refused(f"{PATH}/input_tokens", {**body, "stream": True})["param"] == "stream"


def test_no_response_can_be_cancelled(server):
    made = server.ok(PATH, ASK)
    assert server.client.post(f"{PATH}/{made['id']}/cancel").status_code == 400
    assert server.client.post(f"{PATH}/resp_none/cancel").status_code == 404


def test_a_response_that_is_not_to_be_stored_is_not(server):
    made = server.ok(PATH, {**ASK, "store": False})
    assert server.get(f"{PATH}/{made['id']}").status_code == 404


def test_logprobs_come_where_they_are_asked_for(server):
    body = {**ASK, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    entries = server.ok(PATH, body)["output"][0]["content"][0]["logprobs"]
    assert len(entries) == 12 and all(len(each["top_logprobs"]) == 2 for each in entries)


def test_logprobs_of_a_stop_string_come_streamed_or_not(server):
    body = {**ASK, "include": ["message.output_text.logprobs"], "temperature": 0}
    text = server.ok(PATH, body)["output"][0]["content"][0]["text"]
    # where it begins a token, no text comes with its logprobs
    body |= {"stop": [text[text.index(" upon") :][:5]]}
    whole = server.ok(PATH, body)
    part = whole["output"][0]["content"][0]
    assert len(part["logprobs"]) == whole["usage"]["output_tokens"] > 1
    last = server.events(PATH, body)[-1][1]["response"]
    assert last["output"][0]["content"][0] == part


REASONING = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}
USER = {"role": "user", "content": "x"}
SAID = {"role": "assistant", "content": "y"}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
CALLED = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    "items, wanted",
    [
        ([REASONING, SAID], [("assistant", "y", "Hm.", 0)]),
        ([REASONING, REASONING, SAID], [("assistant", "y", "Hm.Hm.", 0)]),
        ([REASONING, CALLED, CALLED], [("assistant", None, "Hm.", 2)]),
        ([SAID, CALLED], [("assistant", "y", None, 1)]),
        # it was thought after the text
        ([SAID, REASONING, CALLED], [("assistant", "y", None, 0), ("assistant", None, "Hm.", 1)]),
        # it belongs to no later turn
        (
            [REASONING, USER, SAID],
            [("assistant", "", "Hm.", 0), ("user", "x", None, 0), ("assistant", "y", None, 0)],
        ),
        ([USER, REASONING], [("user", "x", None, 0), ("assistant", "", "Hm.", 0)]),
    ],
)
def test_reasoning_belongs_to_what_follows_it(items, wanted):
    made = [
        (m["role"], m["content"], m.get("reasoning_content"), len(m.get("tool_calls", ())))
        for m in _messages(items)
    ]
    assert made == wanted


@pytest.mark.parametrize(
    "more, param",
    [
        ({"input": [{**REASONING, "summary": [{"type": "summary_text"}]}, USER]}, "input[0]"),
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].image_url",
        ),
        (
            {"input": [{"role": "user", "content": [{**IMAGE, "file_id": "x"}]}]},
            "input[0].content[0].file_id",
        ),
        (
            {
                "input": [
                    CALLED,
                    {"type": "function_call_output", "call_id": "a", "output": [IMAGE]},
                ]
            },
            "input[1].output[0]",
        ),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0]"),
        ({"tool_choice": {"type": "function", "name": "g"}, "tools": [TOOL]}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"pattern": "("}}}},
            "text.format",
        ),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"truncation": "auto"}, "truncation"),
        ({"background": True}, "background"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": []}]}, "tools[0].tools"),
        ({"tools": [{**SPACE, "tools": [*SPACE["tools"], TOOL]}]}, "tools[0].tools[1].name"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"conversation": "x"}, "conversation"),
        ({"n": 2}, "n"),
    ],
)
def test_what_cannot_be_honoured_is_a_400_with_param(server, more, param):
    error = server.refused(PATH, {**ASK, **more})
    assert error["param"].startswith(param)
