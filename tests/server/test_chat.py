"""`/v1/chat/completions`: the answer, the stream, tools, formats, and what is refused."""

import json

import pytest

from oxillama.sampling import SamplerConfig
from oxillama.server.chat import messages_of
from oxillama.server.replies import CollectedReply
from oxillama.toolcalls import CallMalformed, ChatEvent, ToolCall

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "Tell me a story"}]
ASK = {"messages": HI, "max_tokens": 12, "seed": 3}
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome"]},
        "n": {"type": "integer", "maximum": 3, "minimum": 0},
    },
    "required": ["city", "n"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
OTHER = {"type": "function", "function": {"name": "clock"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
GOES_ON = {"role": "assistant", "content": "Once"}


def joined(chunks, index=0):
    """The content of a stream's chunks."""
    return "".join(
        each["delta"].get("content") or ""
        for chunk in chunks
        if chunk != "[DONE]"
        for each in chunk["choices"]
        if each["index"] == index
    )


def test_an_answer_is_that_of_the_engine_alone(server, engine):
    done = engine.chat(HI, max_tokens=12, seed=3)
    made = server.ok(PATH, ASK)
    assert made["object"] == "chat.completion"
    assert made["id"].startswith("chatcmpl-")
    assert made["choices"][0]["message"]["content"] == done.content
    assert made["choices"][0]["finish_reason"] == done.finish_reason == "length"
    usage = made["usage"]
    assert usage["prompt_tokens"] == done.usage.prompt_tokens
    assert usage["completion_tokens"] == 12
    assert usage["total_tokens"] == usage["prompt_tokens"] + 12
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.parametrize("more", [{}, {"tools": [TOOL], "tool_choice": "required"}, {"n": 2}])
def test_token_ids_and_the_scores_of_a_prompt_are_given_as_vllm_does(server, engine, more):
    asked = {**more, "max_tokens": 90, "seed": 3}
    done = engine.chat(HI, prompt_logprobs=1, **asked)
    done = done if isinstance(done, list) else [done]
    body = {"messages": HI, **asked, "return_token_ids": True}
    made = server.ok(PATH, {**body, "prompt_logprobs": 1})
    ids = made["prompt_token_ids"]
    assert len(ids) == made["usage"]["prompt_tokens"]
    if "tools" not in more:
        assert ids == engine.tokenize(engine.render_chat(HI), add_special=False)
    assert [each["token_ids"] for each in made["choices"]] == [list(each.tokens) for each in done]
    first, *scored = made["prompt_logprobs"]
    assert first is None
    own = [
        (entry[str(token)]["logprob"], entry[str(token)]["rank"])
        for token, entry in zip(ids[1:], scored)
    ]
    assert own == list(zip((each[0] for each in done[0].prompt_logprobs), done[0].prompt_ranks))
    sent = [[] for _ in done]
    for chunk in server.chunks(PATH, body)[:-1]:
        (choice,) = chunk["choices"]
        begins = not sent[choice["index"]]
        assert chunk.get("prompt_token_ids") == (ids if begins else None)
        sent[choice["index"]] += [choice["token_ids"]]
    assert [sum(each, []) for each in sent] == [list(each.tokens) for each in done]


def test_a_stream_has_its_chunks_in_order(server):
    whole = server.ok(PATH, ASK)["choices"][0]["message"]["content"]
    chunks = server.chunks(PATH, {**ASK, "stream_options": {"include_usage": True}})
    assert chunks[-1] == "[DONE]"
    first, *middle, last, usage = chunks[:-1]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(each["choices"][0]["finish_reason"] is None for each in (first, *middle))
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 12
    assert all(each["usage"] is None for each in (first, *middle, last))
    assert len({each["id"] for each in chunks[:-1]}) == 1
    assert {each["object"] for each in chunks[:-1]} == {"chat.completion.chunk"}
    assert joined(chunks) == whole


def test_every_chunk_has_the_usage_so_far_where_it_is_asked_for(server):
    asked = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, usage, _ = server.chunks(PATH, {**ASK, "n": 2, "stream_options": asked})
    ends = []
    for index in range(2):
        own = [each for each in chunks if each["choices"][0]["index"] == index]
        counts = [each["usage"]["completion_tokens"] for each in own]
        assert counts == sorted(counts) and len(set(counts)) > 2
        assert {each["usage"]["prompt_tokens"] for each in own} == {usage["usage"]["prompt_tokens"]}
        ends.append(counts[-1])
    assert sum(ends) == usage["usage"]["completion_tokens"] == 24


def test_without_stream_options_no_chunk_has_usage(server):
    chunks = server.chunks(PATH, ASK)[:-1]
    assert all("usage" not in each for each in chunks)
    assert all(each["choices"] for each in chunks)


def test_several_completions_are_those_of_the_engine(server, engine):
    wanted = [each.content for each in engine.submit_chat(HI, max_tokens=8, seed=3, n=3).result()]
    made = server.ok(PATH, {**ASK, "max_tokens": 8, "n": 3})
    assert [each["message"]["content"] for each in made["choices"]] == wanted
    assert [each["index"] for each in made["choices"]] == [0, 1, 2]
    chunks = server.chunks(PATH, {**ASK, "max_tokens": 8, "n": 3})
    assert [joined(chunks, index) for index in range(3)] == wanted
    ends = [
        each["index"] for chunk in chunks[:-1] for each in chunk["choices"] if each["finish_reason"]
    ]
    assert sorted(ends) == [0, 1, 2]


@pytest.mark.parametrize("top", [0, 3])
def test_logprobs_are_those_of_the_engine(server, engine, top):
    done = engine.chat(HI, max_tokens=6, seed=3, logprobs=top)
    body = {**ASK, "max_tokens": 6, "logprobs": True, "top_logprobs": top}
    entries = server.ok(PATH, body)["choices"][0]["logprobs"]["content"]
    assert [each["logprob"] for each in entries] == [each.raw for each in done.logprobs]
    assert b"".join(bytes(each["bytes"]) for each in entries).decode() == done.content
    for entry, found in zip(entries, done.logprobs):
        assert [each["logprob"] for each in entry["top_logprobs"]] == list(found.raw_values[:top])
        assert len(entry["top_logprobs"]) == top
    streamed = [
        entry
        for chunk in server.chunks(PATH, body)[:-1]
        for entry in (chunk["choices"][0]["logprobs"] or {}).get("content", ())
    ]
    assert streamed == entries


def test_a_stop_string_ends_the_answer_before_it(server):
    whole = server.ok(PATH, {**ASK, "max_tokens": 40})["choices"][0]["message"]["content"]
    stop = " ".join(whole.split()[4:6])
    made = server.ok(PATH, {**ASK, "max_tokens": 40, "stop": [stop, "zzz"]})["choices"][0]
    assert made["message"]["content"] == whole[: whole.index(stop)]
    assert made["finish_reason"] == "stop"
    # a text by itself is one stop string
    assert server.ok(PATH, {**ASK, "max_tokens": 40, "stop": stop})["choices"][0] == made


def test_options_reach_the_sampler(server, engine):
    sampler = SamplerConfig.greedy(logit_bias={100: 50.0})
    wanted = engine.chat(HI, max_tokens=5, sampler=sampler).content
    body = {
        "messages": HI,
        "max_tokens": 5,
        "temperature": 0,
        "top_k": 0,
        "top_p": 1,
        "logit_bias": {"100": 50},
    }
    assert server.ok(PATH, body)["choices"][0]["message"]["content"] == wanted


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_forced_call_follows_its_schema(server, choice):
    body = {
        "messages": HI,
        "tools": [TOOL, OTHER] if isinstance(choice, dict) else [TOOL],
        "tool_choice": choice,
        "max_tokens": 300,
        "seed": 1,
        # a tool that is named is called once in any case
        "parallel_tool_calls": isinstance(choice, dict),
    }
    made = server.ok(PATH, body)["choices"][0]
    assert made["finish_reason"] == "tool_calls"
    assert made["message"]["content"] is None
    (call,) = made["message"]["tool_calls"]
    assert call["id"].startswith("call_")
    assert (call["type"], call["function"]["name"]) == ("function", "weather")
    arguments = json.loads(call["function"]["arguments"])
    assert arguments["city"] in ("Paris", "Rome") and 0 <= arguments["n"] <= 3

    chunks = server.chunks(PATH, body)[:-1]
    deltas = [
        each for chunk in chunks for each in chunk["choices"][0]["delta"].get("tool_calls", ())
    ]
    first, *rest = deltas
    assert first["index"] == 0 and first["type"] == "function"
    assert first["function"] == {"name": "weather", "arguments": ""}
    assert all(
        set(each) == {"index", "function"} and "name" not in each["function"] for each in rest
    )
    assert json.loads("".join(each["function"]["arguments"] for each in deltas)) == arguments
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_of_the_tools_those_that_a_choice_allows_are_called(server):
    def allowed(mode, *names):
        tools = [{"type": "function", "function": {"name": name}} for name in names]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}

    body = {
        "messages": HI,
        "tools": [TOOL, OTHER],
        "max_tokens": 300,
        "seed": 1,
        "parallel_tool_calls": False,
    }
    prompts = set()
    for names in (["clock"], ["weather"], ["clock", "clock"]):
        made = server.ok(PATH, {**body, "tool_choice": allowed("required", *names)})
        (call,) = made["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == names[0]
        prompts.add(made["usage"]["prompt_tokens"])
        items = server.ok(
            "/v1/responses",
            {
                "input": HI,
                "tools": [{"type": "function", **each["function"]} for each in (TOOL, OTHER)],
                "max_output_tokens": 300,
                "seed": 1,
                "parallel_tool_calls": False,
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "function", "name": name} for name in names],
                },
            },
        )["output"]
        assert [each["name"] for each in items] == names[:1]
    # the prompt has all of them: it stays the same from turn to turn
    made = server.ok(PATH, {**body, "tool_choice": "auto"})
    assert prompts == {made["usage"]["prompt_tokens"]}
    may = server.ok(PATH, {**body, "tool_choice": allowed("auto", "clock")})
    assert may["choices"][0]["message"] == made["choices"][0]["message"]
    assert may["choices"][0]["message"]["content"]
    error = server.refused(PATH, {**body, "tool_choice": allowed("auto", "clock", "f")})
    assert error["param"] == "tool_choice"


def test_several_calls_come_where_they_may_in_every_api(server):
    tool = {"type": "function", "function": {"name": "clock", "parameters": NOTHING}}
    chat = {"messages": HI, "max_tokens": 250, "seed": 2, "tools": [tool]}
    items = {"input": HI, "max_output_tokens": 250, "seed": 2}
    items["tools"] = [{"type": "function", **tool["function"]}]
    blocks = {"messages": HI, "max_tokens": 250, "seed": 2}
    blocks["tools"] = [{"name": "clock", "input_schema": NOTHING}]

    def calls(several):
        """How many come of chat completions, responses and messages."""
        choice, more = {"type": "any"}, {"tool_choice": "required"}
        if several is not None:
            choice["disable_parallel_tool_use"] = not several
            more["parallel_tool_calls"] = several
        made = server.ok(PATH, {**chat, **more})
        found = [len(made["choices"][0]["message"]["tool_calls"])]
        found.append(len(server.ok("/v1/responses", {**items, **more})["output"]))
        return [
            *found,
            len(server.ok("/v1/messages", {**blocks, "tool_choice": choice})["content"]),
        ]

    several = calls(True)
    assert several == calls(None) == several[:1] * 3 and several[0] > 1
    assert calls(False) == [1, 1, 1]


def test_what_is_null_in_a_tool_is_left_out(server):
    function = {"name": "f"}
    prompts = {
        server.ok("/apply-template", {"messages": HI, "tools": [{"type": "function", **each}]})[
            "prompt"
        ]
        for each in (
            {"function": function},
            {"function": {**function, "description": None, "parameters": None, "strict": None}},
            {"function": {**function, "strict": True}},
        )
    }
    assert len(prompts) == 1


def test_a_call_is_usable_when_its_arguments_are_whole():
    reply = CollectedReply(None, None)

    def usable():
        return [given for _, given in reply.usable_calls()]

    reply.take(ChatEvent(kind="call", index=0, name="f"))
    assert usable() == []  # what was cut short here has no arguments, not none to give
    reply.take(ChatEvent(kind="arguments", index=0, arguments='{"a"'))
    assert usable() == []
    reply.take(ChatEvent(kind="arguments", index=0, arguments=": 1}"))
    assert usable() == [{"a": 1}]
    reply.take(ChatEvent(kind="call", index=1, name="g"))
    ((kind, (call, rest)),) = reply.take(
        ChatEvent(kind="call_end", index=1, call=ToolCall("g", {}))
    )
    assert (kind, call["name"], rest) == ("arguments", "g", "{}")  # a stream has them too
    assert usable() == [{"a": 1}, {}]


def test_what_began_as_a_call_and_is_none_is_text_once():
    reply, lost = CollectedReply(None, None), CallMalformed("?", 0, "<tool_call>?", "no call")
    event = ChatEvent(kind="malformed", index=0, malformed=lost, logprobs=("a", "b"))
    assert reply.take(event) == [("content", lost.text)]
    assert (reply.text, reply.logprobs) == (lost.text, ["a", "b"])
    assert [(each.kind, each.text, each.logprobs) for each in reply.parts] == [
        ("content", lost.text, ["a", "b"])
    ]
    # of a call that was told already the arguments so far are all there is
    reply = CollectedReply(None, None)
    reply.take(ChatEvent(kind="call", index=0, name="f"))
    assert reply.take(event) == [] and reply.text == ""


def test_a_call_and_its_result_go_back(server):
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    prompt = server.ok("/apply-template", {"messages": messages, "tools": [TOOL]})["prompt"]
    assert "<tool_response>\nsunny\n</tool_response>" in prompt
    assert server.ok(PATH, {**ASK, "messages": messages, "tools": [TOOL]})["choices"]


def test_calls_whose_ids_come_again_stay_apart():
    call = {"id": "call_0", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    turn = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0", "content": "noon"},
    ]
    made = messages_of([*HI, *turn, *turn, *turn])
    calls = [each["tool_calls"][0]["id"] for each in made if "tool_calls" in each]
    results = [each["tool_call_id"] for each in made if each["role"] == "tool"]
    assert calls == results == ["call00000", "call00001", "call00002"]


@pytest.mark.parametrize(
    "format, check",
    [
        ({"type": "json_object"}, lambda value: isinstance(value, dict)),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}},
            lambda value: set(value) == {"city", "n"},
        ),
        (
            {
                "type": "json_schema",
                "json_schema": {
                    "name": "x",
                    "schema": {"not": {"type": "object"}, "type": ["object", "null"]},
                },
            },
            lambda value: value is None,
        ),
    ],
)
def test_a_response_format_is_the_whole_answer(server, format, check):
    body = {"messages": HI, "response_format": format, "max_tokens": 300, "seed": 2}
    made = server.ok(PATH, body)["choices"][0]
    if made["finish_reason"] == "stop":
        assert check(json.loads(made["message"]["content"]))
    assert made["message"]["content"][0] in "{n"


ONE_CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Ulm", "Oslo"]}},
    "required": ["city"],
}
HELLO = [{"role": "user", "content": "Hello"}]  # after which the model would add a member


@pytest.mark.parametrize("strict", [None, True, False])
def test_a_response_format_is_as_closed_as_the_engines(server, engine, strict):
    inner = {"name": "x", "schema": ONE_CITY}
    if strict is not None:
        inner["strict"] = strict
    asked = {"response_format": {"type": "json_schema", "json_schema": inner}}
    asked |= {"max_tokens": 60, "temperature": 0}
    found = server.ok(PATH, {"messages": HELLO, **asked})["choices"][0]["message"]["content"]
    assert found == engine.chat(HELLO, **asked).content
    assert (set(json.loads(found)) == {"city"}) == (strict is not False)


@pytest.mark.parametrize(
    "path, body, text",
    [
        (
            PATH,
            {"response_format": {"type": "json_object", "schema": ONE_CITY}},
            lambda made: made["choices"][0]["message"]["content"],
        ),
        (PATH, {"guided_json": ONE_CITY}, lambda made: made["choices"][0]["message"]["content"]),
        (
            PATH,
            {"structured_outputs": {"json": json.dumps(ONE_CITY)}},
            lambda made: made["choices"][0]["message"]["content"],
        ),
        (
            "/api/chat",
            {"format": ONE_CITY, "stream": False, "options": {"temperature": 0, "num_predict": 60}},
            lambda made: made["message"]["content"],
        ),
        (
            "/v1/messages",
            {"output_config": {"format": {"type": "json_schema", "schema": ONE_CITY}}},
            lambda made: made["content"][0]["text"],
        ),
    ],
)
def test_schemas_of_other_servers_are_closed_as_they_are_there(server, path, body, text):
    """vLLM's, Ollama's and llama-server's objects have only the members that a schema names."""
    body = {"model": "oxillama-embedded", "messages": HELLO, **body}
    if "options" not in body:
        body |= {"temperature": 0, "max_tokens": 60}
    assert set(json.loads(text(server.ok(path, body)))) == {"city"}


def test_an_assistants_last_message_can_be_continued(server):
    messages = [*HI, {"role": "assistant", "content": "Once upon a"}]
    body = {**ASK, "messages": messages, "continue_final_message": True, "temperature": 0}
    assert server.ok(PATH, body)["choices"][0]["message"]["content"].startswith(" time")


def test_parts_of_text_are_one_text(server):
    parts = [{"type": "text", "text": "Tell me "}, {"type": "text", "text": "a story"}]
    messages = [{"role": "user", "content": parts}]
    assert (
        server.ok(PATH, {**ASK, "messages": messages})["choices"] == server.ok(PATH, ASK)["choices"]
    )


@pytest.mark.parametrize("name, value", [("user", "me"), ("metadata", {"a": "b"}), ("store", True)])
def test_the_documented_exceptions_change_nothing(server, name, value):
    assert server.ok(PATH, {**ASK, name: value})["choices"] == server.ok(PATH, ASK)["choices"]


REFUSED = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "assistant"}]}, "messages[0].content"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    (
        {"messages": [{"role": "tool", "content": "x", "tool_call_id": "q"}]},
        "messages[0].tool_call_id",
    ),
    (
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}
            ]
        },
        "messages[0].content[0]",
    ),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"1.5": 1}}, "logit_bias"),
    ({"logit_bias": {"9999": 1}}, "logit_bias"),
    ({"frequency_penalty": 2.1}, "frequency_penalty"),
    ({"presence_penalty": -2.1}, "presence_penalty"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    (
        {
            "tools": [
                {"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}
            ]
        },
        "tools",
    ),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"logprobs": 1}, "logprobs"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    (
        {"stream": True, "stream_options": {"continuous_usage_stats": True}},
        "stream_options.continuous_usage_stats",
    ),
    ({"stop": ""}, "stop"),
    ({"stop": [1]}, "stop[0]"),
    ({"seed": "x"}, "seed"),
    ({"top_p": 1.5}, "top_p"),
    ({"nonsense": 1}, "nonsense"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
    (
        {
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "f",
                        "parameters": {"type": "object", "properties": {"a": {"pattern": "("}}},
                    },
                }
            ]
        },
        "tools",
    ),
    ({"messages": [*HI, {"role": "assistant"}, *HI]}, "messages[1].content"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice",
    ),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"pattern": "("}},
            }
        },
        "response_format",
    ),
    ({"response_format": {"type": "json_object"}, "regex": "a"}, "response_format"),
    ({"grammar": "root ::= ("}, "grammar"),
    ({"regex": "("}, "regex"),
    ({"session": "../x"}, "session"),
    ({"session": "x", "n": 2}, "n"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs.enable_thinking"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"modalities": ["audio"]}, "modalities[0]"),
    ({"add_generation_prompt": False}, "add_generation_prompt"),
    ({"continue_final_message": True}, "continue_final_message"),
    (
        {
            "messages": [*HI, {**GOES_ON, "reasoning_content": "Hm."}],
            "continue_final_message": True,
        },
        "messages[1]",
    ),
    (
        {"messages": [*HI, {**GOES_ON, "content": [IMAGE]}], "continue_final_message": True},
        "messages[1]",
    ),
    (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
    ),
]


@pytest.mark.parametrize(
    "more, param", REFUSED, ids=[f"{p}-{i}" for i, (_, p) in enumerate(REFUSED)]
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_honoured_is_a_400_with_param(server, more, param, stream):
    if "stream" in more or "stream_options" in more:
        stream = False
    error = server.refused(PATH, {**ASK, **({"stream": True} if stream else {}), **more})
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


@pytest.mark.parametrize("size", [6000, 400_000])
def test_a_prompt_that_is_too_long_says_so(server, size):
    messages = [{"role": "user", "content": "word " * size}]
    error = server.refused(PATH, {"messages": messages})
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


def test_a_refusal_that_goes_back_is_the_text_of_its_message(server):
    part = [{"type": "refusal", "refusal": "no"}]
    prompts = [
        server.ok("/apply-template", {"messages": [*HI, {"role": "assistant", **said}, *HI]})
        for said in ({"content": "no"}, {"refusal": "no"}, {"content": part})
    ]
    assert prompts[0] == prompts[1] == prompts[2]


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({"content": "x", "refusal": "y"}, "refusal"),
        ({"content": "x", "reasoning_content": "y", "reasoning": "z"}, "reasoning"),
    ],
)
def test_of_two_texts_in_the_place_of_one_none_is_left_out(server, said, name):
    messages = [{"role": "assistant", **said}, {"role": "user", "content": "Hi"}]
    error = server.refused(PATH, {"messages": messages})
    assert error["param"] == f"messages[0].{name}"
    said[name] = None if name == "refusal" else said["reasoning_content"]
    server.ok(PATH, {"messages": [{"role": "assistant", **said}, messages[1]], "max_tokens": 1})


def test_an_unknown_model_is_refused_by_name(server):
    error = server.refused(PATH, {**ASK, "model": "gpt-9"}, 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "gpt-9" in error["message"]
    assert server.ok(PATH, {**ASK, "model": "oxillama-embedded"})["model"] == "oxillama-embedded"


def test_what_changes_nothing_of_an_answer_is_taken(server):
    more = {"verbosity": "medium", "prediction": {"type": "content", "content": "Once upon a"}}
    more |= {"prompt_cache_retention": "24h", "prompt_cache_options": {"mode": "implicit"}}
    part = {"type": "text", "text": HI[0]["content"], "prompt_cache_breakpoint": {}}
    more["messages"] = [{"role": "user", "content": [part]}]
    made = server.ok(PATH, {**ASK, **more})["choices"][0]["message"]
    assert made == server.ok(PATH, ASK)["choices"][0]["message"]
    error = server.refused(PATH, {**ASK, "verbosity": "low"})
    assert error["message"] == "verbosity: found 'low', wanted one of medium"
    assert server.refused(PATH, {**ASK, "prediction": {"type": "x"}})["param"] == "prediction.type"
    error = server.refused(PATH, {**ASK, "prompt_cache_options": {"mode": "explicit"}})
    assert error["param"] == "prompt_cache_options.mode"


def test_a_field_with_a_typing_error_is_told_what_was_meant(server):
    for path, prompt in ((PATH, {"messages": HI}), ("/v1/completions", {"prompt": "a"})):
        error = server.refused(path, {**prompt, "temprature": 1})
        assert error["message"] == "temprature: is not a known field; did you mean temperature?"
    options = {"prompt": "a", "options": {"num_predct": 1}}
    error = server.refused("/api/generate", {"model": "oxillama-embedded", **options})
    assert error == "options.num_predct: is not a known field; did you mean num_predict?"


@pytest.mark.parametrize(
    ("path", "more", "hint"),
    [
        (PATH, {"functions": []}, "functions: is not a known field; tools has functions"),
        (PATH, {"return_tokens_as_token_ids": True}, "; return_token_ids gives token ids"),
        (PATH, {"structured_outputs": {"whitespace_pattern": " "}}, "; white space between"),
        (PATH, {"bad_words": ["a"]}, "bad_words: found 1 item, wanted none; banned_tokens takes"),
        (PATH, {"modalities": ["text", "audio"]}, "modalities: found 2 items, wanted 1"),
        (PATH, {"best_of": 2}, "; /v1/completions has it"),
        (PATH, {"max_output_tokens": 2}, "; max_tokens is its name here"),
        (PATH, {"system": "x"}, "; a message of the role system has it"),
        (PATH, {"prompt": "x"}, "; messages is its name here"),
        ("/v1/completions", {"best_of": "2"}, "best_of: found '2', wanted an integer in [1, 128]"),
        ("/completion", {"n_predict": "5"}, "n_predict: found '5', wanted an integer in [-1, "),
    ],
)
def test_a_field_of_other_servers_is_told_what_does_it_here(server, path, more, hint):
    given = {"messages": HI} if path == PATH else {"prompt": "a"}
    said = server.refused(path, {**given, **more})["message"]
    assert hint in said and said.count("; ") == hint.count("; ")


@pytest.mark.parametrize(
    ("path", "more", "said"),
    [
        ("/v1/responses", {"max_tokens": 5}, "max_tokens: is not a known field; max_output_tokens"),
        ("/v1/responses", {"response_format": {}}, "; text is its name here"),
        ("/v1/messages", {"stop": ["x"]}, "stop: is not a known field; stop_sequences is its name"),
        ("/v1/messages", {"instructions": "x"}, "; system is its name here"),
        ("/api/chat", {"temperature": 0}, "temperature: is not a known field; options has it"),
        ("/api/chat", {"max_tokens": 3}, "; num_predict of options is its name here"),
        ("/api/chat", {"options": {"max_tokens": 3}}, "; num_predict is its name here"),
        ("/api/generate", {"messages": HI}, "; prompt is its name here"),
    ],
)
def test_a_field_of_another_api_is_told_its_name_here(server, path, more, said):
    given = {
        "/v1/responses": {"input": "a"},
        "/v1/messages": {"messages": HI, "max_tokens": 3},
        "/api/chat": {"model": "oxillama-embedded", "messages": HI},
        "/api/generate": {"model": "oxillama-embedded", "prompt": "a"},
    }
    assert said in server.post(path, {**given[path], **more}).text


def test_a_field_that_another_api_has_is_taken_for_no_typing_error(server):
    body = {"messages": HI, "max_tokens": 3}
    error = server.refused("/v1/messages/count_tokens", body)
    assert error["message"] == "max_tokens: is not a known field"  # not: min_tokens


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/pooling", "; /v1/embeddings gives vectors"),
        ("/v1/v1/chat/completions", "; did you mean /v1/chat/completions?"),
        ("/v1/chat/completions/", "; did you mean /v1/chat/completions?"),
        ("/messages", "; did you mean /v1/messages?"),
        ("/v1/files", ""),
    ],
)
def test_a_route_that_is_none_is_told_what_was_meant(server, path, hint):
    assert server.refused(path, {}, 404)["message"] == f"path: {path!r} is unknown{hint}"


def test_a_call_cut_short_before_its_name_is_text_with_log_probabilities(server):
    parameters = {"type": "object", "properties": {}}
    function = {"name": "weather", "parameters": parameters}
    body = {"messages": HI, "max_tokens": 2, "temperature": 0, "logprobs": True}
    body |= {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    whole = server.ok(PATH, body)["choices"][0]
    assert whole["message"]["content"].startswith("<") and "tool_calls" not in whole["message"]
    entries = whole["logprobs"]["content"]
    assert "".join(each["token"] for each in entries) == whole["message"]["content"]
    streamed = [
        each["choices"][0]["logprobs"]["content"]
        for each in server.chunks(PATH, body)[:-1]
        if each["choices"][0]["logprobs"]
    ]
    assert sum(streamed, []) == entries
    items = {"input": HI, "max_output_tokens": 2, "temperature": 0, "tool_choice": "required"}
    items |= {"tools": [{"type": "function", **function}]}
    items["include"] = ["message.output_text.logprobs"]
    (item,) = server.ok("/v1/responses", items)["output"]
    assert item["content"][0]["logprobs"] == entries
