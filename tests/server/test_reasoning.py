"""A template that reasons: what is thought is told apart from the answer in every dialect, and the
switch of the template is that of the request.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

from oxillama.server.anthropic import _of_assistant
from oxillama.server.budget import ReasoningBudget
from oxillama.server.opaque import pack, unpack
from oxillama.server.prompts import PromptBuilder
from oxillama.server.responses import _messages
from oxillama.toolcalls.reasoning import THINK
from tests.server.conftest import asking

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is not defined or enable_thinking %}<think>\n"
    "{% else %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
# the reply always begins with reasoning, as DeepSeek R1's
ALWAYS = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
# reasoning has a channel of its own, as gpt-oss's, whose effort alone can be set
CHANNELS = (
    "{# to=functions.NAME #}{% set effort = reasoning_effort or 'medium' %}{{ bos_token }}"
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|channel|>{% endif %}"
)
# the effort has a value for none, as in Mistral's
EFFORT = (
    "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% set effort = reasoning_effort if reasoning_effort is defined else 'none' %}"
    "{% if effort not in ['none', 'high'] %}{{ raise_exception('none or high') }}{% endif %}"
    "<effort {{ effort }}>"
)
BOTH = (
    "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    "<effort {{ reasoning_effort }}, {{ enable_thinking }}>"
)
HI = [{"role": "user", "content": "Tell me a story"}]
CHAT = {"messages": HI, "max_tokens": 10, "seed": 3}


@pytest.fixture(scope="module")
def thinker():
    with asking(chat_template=TEMPLATE) as made:
        yield made


def test_reasoning_is_a_field_of_its_own(thinker):
    made = thinker.ok("/v1/chat/completions", CHAT)
    message = made["choices"][0]["message"]
    assert message["content"] == "" and message["reasoning_content"]
    assert made["usage"]["completion_tokens_details"]["reasoning_tokens"] == 10
    deltas = [
        each["choices"][0]["delta"] for each in thinker.chunks("/v1/chat/completions", CHAT)[:-1]
    ]
    thought = "".join(each.get("reasoning_content", "") for each in deltas)
    assert thought == message["reasoning_content"]
    assert all("content" not in each for each in deltas[1:])


def test_token_ids_of_a_stream_are_all_of_the_reply_with_its_reasoning(thinker):
    path, body = "/v1/chat/completions", {**CHAT, "max_tokens": 40, "return_token_ids": True}
    wanted = thinker.ok(path, body)["choices"][0]["token_ids"]
    chunks = [chunk["choices"][0]["token_ids"] for chunk in thinker.chunks(path, body)[:-1]]
    assert sum(chunks, []) == wanted and len(wanted) == 40


def test_reasoning_stays_in_the_content_where_that_is_asked_for(thinker):
    path = "/v1/chat/completions"
    apart = thinker.ok(path, CHAT)["choices"][0]["message"]
    for given in ("auto", "deepseek", None):
        body = {**CHAT, "reasoning_format": given}
        assert thinker.ok(path, body)["choices"][0]["message"] == apart
    body = {**CHAT, "reasoning_format": "none"}
    made = thinker.ok(path, body)
    message = made["choices"][0]["message"]
    assert message == {
        "role": "assistant",
        "content": apart["reasoning_content"],
        "refusal": None,
    }
    assert made["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
    deltas = [each["choices"][0]["delta"] for each in thinker.chunks(path, body)[:-1]]
    assert "".join(each.get("content", "") for each in deltas) == message["content"]
    assert not any("reasoning_content" in each for each in deltas)


def test_reasoning_may_not_stay_in_the_content_beside_tools(thinker):
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = {**CHAT, "reasoning_format": "none", "tools": tools}
    error = thinker.refused("/v1/chat/completions", body)
    assert error["param"] == "reasoning_format"
    assert error["message"].startswith("reasoning_format: 'none' is not possible with tools")
    assert thinker.ok("/v1/chat/completions", {**body, "tool_choice": "none"})["choices"]
    error = thinker.refused("/v1/chat/completions", {**CHAT, "reasoning_format": "markdown"})
    assert "wanted one of none, auto, deepseek" in error["message"]


def test_reasoning_is_a_block_of_its_own(thinker):
    (block,) = thinker.ok("/v1/messages", CHAT)["content"]
    assert block["type"] == "thinking" and block["thinking"] and block["signature"]
    events = thinker.events("/v1/messages", CHAT)
    kinds = [data["delta"]["type"] for name, data in events if name == "content_block_delta"]
    assert kinds[-1] == "signature_delta" and set(kinds[:-1]) == {"thinking_delta"}


def test_tokens_of_reasoning_are_counted_in_messages(thinker):
    ask = {"messages": HI, "max_tokens": 30, "seed": 3}
    ask["thinking"] = {"type": "enabled", "budget_tokens": 8}
    made = thinker.ok("/v1/messages", ask)
    assert [each["type"] for each in made["content"]] == ["thinking", "text"]
    assert made["usage"]["output_tokens_details"] == {"thinking_tokens": 8}
    events = thinker.events("/v1/messages", ask)
    begun, ended = (events[at][1] for at in (0, -2))
    assert begun["message"]["usage"]["output_tokens_details"] == {"thinking_tokens": 0}
    assert ended["usage"]["output_tokens_details"] == {"thinking_tokens": 8}


def test_reasoning_that_is_not_to_be_seen_comes_back_by_its_signature(thinker):
    ask = {"messages": HI, "max_tokens": 20, "seed": 3}
    seen = {**ask, "thinking": {"type": "enabled", "budget_tokens": 8}}
    unseen = {**ask, "thinking": {"type": "enabled", "budget_tokens": 8, "display": "omitted"}}
    thought, text = thinker.ok("/v1/messages", seen)["content"]
    hidden, same = thinker.ok("/v1/messages", unseen)["content"]
    assert (hidden["thinking"], same) == ("", text)
    assert unpack(hidden["signature"], "x") == thought["thinking"]
    deltas = [
        data["delta"]
        for name, data in thinker.events("/v1/messages", unseen)
        if name == "content_block_delta"
    ]
    assert not any(each["type"] == "thinking_delta" for each in deltas)
    assert deltas[0] == {"type": "signature_delta", "signature": hidden["signature"]}
    texts = [{"type": "text", "text": "x"}]
    assert _of_assistant([hidden, *texts], "m") == _of_assistant([thought, *texts], "m")
    talk = [*HI, {"role": "assistant", "content": [{**hidden, "signature": "abc"}]}, *HI]
    error = thinker.refused("/v1/messages", {**ask, "messages": talk})
    assert error["message"].startswith("messages[1].content[0].signature: found 'abc', wanted what")


def test_a_block_without_text_is_no_message():
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    for empty in ({"type": "text", "text": ""}, {"type": "thinking", "thinking": ""}):
        assert _of_assistant([use, empty], "m") == _of_assistant([use], "m")


def test_reasoning_goes_back_as_it_was_packed(thinker):
    include = {"include": ["reasoning.encrypted_content"], "store": False}
    body = {"input": "Tell me a story", "max_output_tokens": 10, "seed": 3, **include}
    body["reasoning"] = {"summary": "auto"}
    made = thinker.ok("/v1/responses", body)
    (item,) = made["output"]
    assert item["summary"] == [] and made["reasoning"]["summary"] == "auto"
    text = item["content"][0]["text"]
    assert unpack(item["encrypted_content"], "x") == text
    (done,) = (
        data["item"]
        for name, data in thinker.events("/v1/responses", body)
        if name == "response.output_item.done"
    )
    assert done["encrypted_content"] == item["encrypted_content"]
    plain = thinker.ok("/v1/responses", {**body, "include": []})["output"][0]
    assert "encrypted_content" not in plain and plain["content"] == item["content"]
    packed = {**item, "content": None, "status": None}
    assert _messages([packed]) == _messages([item]) == _messages([plain])
    wrong = (
        ({**item, "encrypted_content": item["encrypted_content"][:-4]}, "encrypted_content"),
        ({**item, "encrypted_content": pack("other")}, "content"),
    )
    for each, name in wrong:
        error = thinker.refused("/v1/responses", {**body, "input": [each]})
        assert error["param"] == f"input[0].{name}"


def test_reasoning_is_an_item_of_its_own(thinker):
    body = {"input": "Tell me a story", "max_output_tokens": 10, "seed": 3}
    item = thinker.ok("/v1/responses", body)["output"][0]
    assert item["type"] == "reasoning" and item["id"].startswith("rs_")
    assert item["content"][0]["type"] == "reasoning_text" and item["content"][0]["text"]
    names = [name for name, _ in thinker.events("/v1/responses", body)]
    assert "response.reasoning_text.delta" in names
    assert names.index("response.reasoning_text.done") < names.index("response.output_item.done")


def test_reasoning_is_the_thinking_of_ollama(thinker):
    body = {
        "model": "oxillama-embedded",
        "messages": HI,
        "stream": False,
        "options": {"num_predict": 9},
    }
    body["options"]["seed"] = 3
    whole = thinker.ok("/api/chat", body)["message"]
    assert whole["thinking"] and whole["content"] == ""
    lines = thinker.post("/api/chat", {**body, "stream": True}).text.splitlines()
    messages = [json.loads(line)["message"] for line in lines]
    assert "".join(each.get("thinking", "") for each in messages) == whole["thinking"]
    assert {each["content"] for each in messages} == {""}


@pytest.mark.parametrize(
    "path, more",
    [
        ("/v1/chat/completions", {"reasoning_effort": "none"}),
        ("/v1/chat/completions", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("/v1/messages", {"thinking": {"type": "disabled"}}),
    ],
)
def test_reasoning_is_turned_off(thinker, path, more):
    made = thinker.ok(path, {**CHAT, **more})
    text = (
        made["content"][0]["text"]
        if "content" in made
        else made["choices"][0]["message"]["content"]
    )
    assert text and "reasoning_content" not in str(made)


def test_reasoning_that_cannot_be_turned_off_may_be_asked_for():
    with asking(chat_template=ALWAYS) as server:
        chat = {"model": "oxillama-embedded", "messages": HI, "stream": False}
        chat["options"] = {"num_predict": 9, "seed": 3}
        plain = server.ok("/api/chat", chat)["message"]
        asked = server.ok("/api/chat", {**chat, "think": True})["message"]
        assert asked == plain and plain["thinking"]
        shown = server.ok("/api/show", {"model": "oxillama-embedded"})
        assert "thinking" in shown["capabilities"]
        budget = {"thinking": {"type": "enabled", "budget_tokens": 4}}
        thought, text = server.ok("/v1/messages", {**CHAT, "max_tokens": 20, **budget})["content"]
        assert (thought["type"], text["type"]) == ("thinking", "text") and thought["thinking"]


@pytest.mark.parametrize("template", [ALWAYS, CHANNELS])
def test_reasoning_that_cannot_be_turned_off_is_told(template):
    with asking(chat_template=template) as server:
        chat = {"model": "oxillama-embedded", "messages": HI, "think": False}
        assert server.refused("/api/chat", chat).startswith("think: ")
        error = server.refused("/v1/messages", {**CHAT, "thinking": {"type": "disabled"}})
        assert error["message"].startswith("thinking.type: ")
        error = server.refused("/v1/chat/completions", {**CHAT, "reasoning_effort": "none"})
        assert error["param"] == "reasoning_effort"
        body = {"input": "Hi", "reasoning": {"effort": "none"}}
        assert server.refused("/v1/responses", body)["param"] == "reasoning.effort"


REQUESTS = {
    "/v1/chat/completions": lambda value: {**CHAT, "reasoning_effort": value},
    "/v1/responses": lambda value: {"input": "Hi", "reasoning": {"effort": value}},
    "/api/chat": lambda value: {
        "model": "oxillama-embedded",
        "messages": HI,
        "stream": False,
        "think": {"none": False}.get(value, value),
    },
    "/v1/messages": lambda value: {
        **CHAT,
        "thinking": {"type": "disabled" if value in (False, "none") else "enabled"},
        **({"output_config": {"effort": value}} if value in ("low", "high") else {}),
    },
}


@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.parametrize(
    "template, asked, wanted",
    [
        (TEMPLATE, "high", {"enable_thinking": True}),
        (TEMPLATE, "none", {"enable_thinking": False}),
        (ALWAYS, "high", {}),
        (CHANNELS, "low", {"reasoning_effort": "low"}),
        (EFFORT, "high", {"reasoning_effort": "high"}),
        (EFFORT, "none", {"reasoning_effort": "none"}),
        (BOTH, "low", {"reasoning_effort": "low", "enable_thinking": True}),
        (BOTH, "none", {"enable_thinking": False}),
    ],
)
def test_a_level_of_reasoning_means_the_same_in_every_api(
    path, template, asked, wanted, monkeypatch
):
    seen = []
    render = PromptBuilder.render

    def rendered(self, messages, *, variables=None, **more):
        seen.append(dict(variables or {}))
        return render(self, messages, variables=variables, **more)

    monkeypatch.setattr(PromptBuilder, "render", rendered)
    with asking(chat_template=template) as server:
        server.ok(path, REQUESTS[path](asked))
    assert seen == [wanted]


def test_a_switch_alone_takes_any_level(thinker):
    chat = {"model": "oxillama-embedded", "messages": HI, "stream": False}
    chat["options"] = {"num_predict": 9, "seed": 3}
    for level in ("low", "medium", "max", True):
        assert thinker.ok("/api/chat", {**chat, "think": level})["message"]["thinking"]
    for level in ("minimal", "low", "max"):
        made = thinker.ok("/v1/chat/completions", {**CHAT, "reasoning_effort": level})
        assert made["choices"][0]["message"]["reasoning_content"]


def test_variables_against_the_level_are_refused(thinker):
    given = {"chat_template_kwargs": {"enable_thinking": False}}
    for path, more in (
        ("/v1/chat/completions", {"reasoning_effort": "low"}),
        ("/v1/messages", {"thinking": {"type": "enabled"}}),
    ):
        error = thinker.refused(path, {**CHAT, **given, **more})
        assert error["message"].startswith(
            "chat_template_kwargs.enable_thinking: found false, wanted true or none, as of "
        )
    body = {**CHAT, **given, "reasoning_effort": "none"}
    assert thinker.ok("/v1/chat/completions", body)["choices"][0]["message"]["content"]


def test_reasoning_on_a_channel_is_reasoning():
    with asking(chat_template=CHANNELS) as server:
        body = {"model": "oxillama-embedded"}
        assert "thinking" in server.ok("/api/show", body)["capabilities"]
        chat = {**body, "messages": HI, "think": True, "options": {"num_predict": 2}}
        assert server.ok("/api/chat", {**chat, "stream": False})["eval_count"] == 2


def test_a_format_holds_what_comes_after_the_reasoning(thinker):
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [1, 2]}}}
    body = {**CHAT, "response_format": format, "reasoning_effort": "none"}
    assert json.loads(
        thinker.ok("/v1/chat/completions", body)["choices"][0]["message"]["content"]
    ) in (1, 2)


def test_a_template_without_a_system_message_gets_tools_with_the_user(engine):
    template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    )
    tool = {"type": "function", "function": {"name": "f"}}
    with asking(chat_template=template) as server:
        prompt = server.ok("/apply-template", {"messages": HI, "tools": [tool]})["prompt"]
        assert prompt.startswith("user: You can call functions.")
        assert prompt.endswith("Tell me a story\n")
        system = [{"role": "system", "content": "x"}, *HI]
        error = server.refused("/v1/chat/completions", {"messages": system})
        assert error["param"] == "messages" and "no system" in error["message"]


def test_a_budget_of_thinking_is_held(thinker):
    body = {"messages": HI, "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    for budget in (3, 12):
        made = thinker.ok(
            "/v1/messages", {**body, "thinking": {"type": "enabled", "budget_tokens": budget}}
        )
        thought, text = made["content"]
        assert (thought["type"], text["type"]) == ("thinking", "text")
        free = thinker.ok("/v1/messages", {**body, "max_tokens": budget})["content"][0]
        assert thought["thinking"].strip() == free["thinking"].strip() and text["text"]
    wrong = {**body, "thinking": {"type": "enabled", "budget_tokens": 60}}
    error = thinker.refused("/v1/messages", wrong)
    assert error["message"].startswith("thinking.budget_tokens: found 60, wanted less than")
    more = {"thinking": {"type": "enabled", "budget_tokens": 3}, "context_shift": True}
    error = thinker.refused("/v1/messages", {**body, **more})
    assert error["message"].startswith("context_shift: ")


def test_a_budget_of_thinking_is_held_after_a_prompt_that_is_cut(thinker, engine):
    long = [{"role": "user", "content": "word " * engine.context_size}]
    body = {"messages": long, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    more = {"thinking": {"type": "enabled", "budget_tokens": 4}, "truncate_prompt": True}
    thought, text = thinker.ok("/v1/messages", {**body, **more})["content"]
    assert (thought["type"], text["type"]) == ("thinking", "text") and text["text"]


def test_a_budget_counts_from_the_mark_that_begins_the_reply(engine):
    words, end = engine.tokenizer, "</think>"
    close = words.encode(end, add_special=False)

    def forced(text, more, tokens=4, region=THINK):
        """The tokens that alone may follow a reply's text, one for each further token."""
        bound = ReasoningBudget(words, region, opened=False, tokens=tokens)
        said, row = [0, 492, *words.encode(text, add_special=False)], np.zeros(2048, np.float32)
        bound(np.array(said[:2]), row)
        out = []
        for token in (*more, 441):
            only = np.flatnonzero(np.isfinite(bound(np.array(said), row)))
            out.append(only[0] if len(only) == 1 else None)
            said.append(token)
        return out

    four = [441, 263, 415, 441]
    assert forced(" \n<think>", [*four, *close]) == [*[None] * 4, *close, None]
    assert forced(" \n<thi", four * 3) == [None] * 13
    # what is mentioned in an answer begins nothing, and thinking that is over is not ended again
    assert forced("Say <think>", four * 3) == [None] * 13
    ended = [441, *close]
    assert forced("<think>", [*ended, *four], len(ended)) == [None] * (len(ended) + 5)
    # an end that is a token of its own is that token
    (mark,) = words.encode("<|im_end|>", add_special=False, parse_special=True)
    own = replace(THINK, close="<|im_end|>")
    assert forced("<think>", [*four, 441], region=own) == [*[None] * 4, mark, None]
