"""A template that teaches no notation of calls gets tools, calls and results in messages."""

import json

import pytest

import oxillama
from oxillama.errors import ConfigError, TemplateError
from oxillama.tokenizer.builtin_templates import BUILTIN_TEMPLATES
from oxillama.toolcalls import FORMATS, ChatWriter, Custom, HarmonyReader, detect_calls, format_of
from oxillama.toolcalls.events import CallFinished
from oxillama.toolcalls.inline import inline_tools, written_calls

TOOL = {"name": "weather", "description": "of a city", "parameters": {"type": "object"}}
LISTED = json.dumps(TOOL)
CALL = {
    "id": "c",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"at": "Ulm"}'},
}
ASKED = [{"role": "user", "content": "go"}]
TALK = [
    *ASKED,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "rain", "tool_call_id": "c"},
    {"role": "tool", "content": {"wind": 3}, "tool_call_id": "c"},
]
BEGUN = {"add_generation_prompt": True}
LISTS = "{{ tools | tojson }}" + BUILTIN_TEMPLATES["chatml"]


@pytest.fixture(scope="module")
def engine():
    with oxillama.load(num_threads=1) as made:
        yield made


@pytest.fixture
def writer(engine):
    return lambda source: ChatWriter(source, engine.tokenizer)


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"harmony"}))
def test_the_example_of_every_notation_reads_as_a_call(name):
    (system, _) = inline_tools(ASKED, [TOOL], FORMATS[name], system=True)
    assert LISTED in system["content"]
    example = system["content"].partition("like this:\n")[2]
    text = {"properties": {"ARGUMENT": {"type": "string"}}}
    _, calls, malformed = detect_calls(example, FORMATS[name], parameters={"FUNCTION": text})
    assert not malformed
    assert [(call.name, call.arguments) for call in calls] == [("FUNCTION", {"ARGUMENT": "VALUE"})]


NESTED = {
    "a": {"b": [1, "x", {"c": None}], "d e": "<y>"},
    "l": [],
    "m": {},
    "n": -2.5,
    "q": 'say "hi"\n',
    "t": True,
    "z": "1",
}
KINDS = {"a": "object", "l": "array", "m": "object", "n": "number", "q": "string", "t": "boolean"}
OF_NESTED = {"properties": {key: {"type": KINDS.get(key, "string")} for key in NESTED}}


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"harmony"}))
def test_arguments_of_every_shape_are_read_as_they_were_written(name):
    text = written_calls(FORMATS[name], [("f", NESTED), ("g", {})])
    _, calls, malformed = detect_calls(text, name, parameters={"f": OF_NESTED})
    assert not malformed
    assert [(call.name, call.arguments) for call in calls] == [("f", NESTED), ("g", {})]
    if name == "gemma4":
        wanted = (
            'a:{<|"|>b<|"|>:[1,<|"|>x<|"|>,{<|"|>c<|"|>:null}],<|"|>d e<|"|>:<|"|><y><|"|>},l:[],'
        )
        assert wanted in text


def test_calls_in_channels_read_as_calls():
    found = [("f", NESTED), ("g", {})]
    reader = HarmonyReader()
    events = reader.feed(written_calls(FORMATS["harmony"], found)) + reader.finish()
    calls = [event.call for event in events if isinstance(event, CallFinished)]
    assert [(call.name, call.arguments) for call in calls] == found


@pytest.mark.parametrize("name", ["pythonic", "glm", "gemma4"])
def test_arguments_that_have_no_names_are_refused_where_each_is_named(name):
    with pytest.raises(
        ConfigError, match=r"^tool call f: arguments: found '\[1\]', wanted an object"
    ):
        written_calls(FORMATS[name], [("f", [1])])
    assert written_calls(FORMATS["hermes"], [("f", [1])]).count('"arguments": [1]') == 1


def test_results_stand_together_in_one_message_of_the_user():
    said = inline_tools(TALK, None, FORMATS["hermes"], system=True)
    assert [message["role"] for message in said] == ["user", "assistant", "user"]
    assert said[1]["content"] == (
        '<tool_call>\n{"name": "weather", "arguments": {"at": "Ulm"}}\n</tool_call>'
    )
    assert said[2]["content"] == (
        '<tool_response>\nrain\n</tool_response>\n<tool_response>\n{"wind": 3}\n</tool_response>'
    )
    parts = [{"type": "text", "text": "ra"}, {"type": "text", "text": "in"}]
    (one,) = inline_tools([{"role": "tool", "content": parts}], None, FORMATS["qwen"], system=True)
    assert one["content"] == "<tool_response>\nrain\n</tool_response>"


def test_a_chat_shows_its_tools_to_the_model(engine):
    text = engine.render_chat(ASKED, tools=[TOOL])
    assert text.startswith("<|begin|><|im_start|>system\nYou can call functions.")
    assert LISTED in text
    assert "<tool_call>" in text
    turn = engine._loaded.chat.turn(ASKED, tools=[TOOL])
    assert turn.prompt == engine.tokenize(text)
    assert turn.plan.format is FORMATS["hermes"]
    done = engine.chat(ASKED, tools=[TOOL], tool_choice="required", max_tokens=60, temperature=0)
    assert done.text.startswith("<tool_call>\n")
    assert '"weather"' in done.text
    assert done.usage.prompt_tokens == len(turn.prompt)


def test_functions_are_tools_of_a_rendered_chat_too(engine):
    def weather(city: str) -> str:
        """The weather of a city."""

    text = engine.render_chat(ASKED, tools=[weather])
    assert '"description": "The weather of a city."' in text
    assert engine._loaded.chat.turn(ASKED, tools=[weather]).prompt == engine.tokenize(text)


@pytest.mark.parametrize("format", ["llama3", "glm", Custom("<s>", "[/call]")])
def test_a_notation_that_is_named_is_the_one_in_messages(engine, format):
    text = engine.render_chat(TALK, tools=[TOOL], tool_format=format)
    assert text.count(format_of(format).open) == 2  # the example, and the call in the conversation
    assert "tool_call>{" not in text.replace("\n", "")
    turn = engine._loaded.chat.turn(TALK, tools=[TOOL], tool_format=format)
    assert turn.prompt == engine.tokenize(text)
    assert turn.plan.format == format_of(format)


def test_a_template_that_lists_tools_does_so_where_the_notation_is_named(writer):
    lists = writer(LISTS)
    assert lists.planner.format is None
    assert lists.write(ASKED, tools=[TOOL], tool_format="llama3", variables=BEGUN).startswith(
        '[{"name": "weather"'
    )
    assert "You can call functions" in lists.write(ASKED, tools=[TOOL], variables=BEGUN)


def test_without_a_system_message_tools_stand_in_the_first_of_the_user(writer):
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    text = writer(source + BUILTIN_TEMPLATES["chatml"]).write(ASKED, tools=[TOOL], variables=BEGUN)
    assert text.startswith("<|im_start|>user\nYou can call functions.")
    assert text.endswith("</tool_call>\n\ngo<|im_end|>\n<|im_start|>assistant\n")


def test_a_chat_without_tools_is_what_the_template_writes(engine):
    talk = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    assert engine.render_chat(talk) == (
        "<|begin|><|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("tools", [[{"name": "f", "parameters": {"x": {1}}}], [5], [TOOL, TOOL]])
def test_what_is_no_tool_is_refused(engine, tools):
    with pytest.raises(ConfigError, match="^tool"):
        engine.chat(ASKED, tools=tools, max_tokens=1)


def test_a_variable_of_a_template_may_have_the_name_of_an_option(writer):
    source = "{{ tool_format }} {{ variables }} {% for m in messages %}{{ m.content }}{% endfor %}"
    text = writer(source).write(
        ASKED, tools=[TOOL], variables={"tool_format": ["x"], "variables": 1}
    )
    assert text.startswith("['x'] 1 ")


def test_a_message_that_the_template_leaves_out_is_refused(writer):
    chat = writer(
        "{% for m in messages %}{% if m.role == 'user' %}U:{{ m.content | upper }}"
        "{% elif m.role == 'assistant' %}A:{{ m.content.split('</think>')[-1] }}"
        "{% elif m.role == 'note' %}(a note){% endif %}{% endfor %}"
    )
    ours, reply = {"role": "user", "content": "x y"}, {"role": "assistant", "content": "x</think>"}
    blank = {"role": "system", "content": " \n"}
    assert chat.write([ours, reply, blank, ours], variables={}) == "U:X YA:U:X Y"
    for role in ("system", "developer", "usr", "note"):
        told = (
            rf"messages\[1\]: the chat template writes nothing of a message with the role '{role}'"
        )
        with pytest.raises(ConfigError, match=told):
            chat.write([ours, {"role": role, "content": "Be brief."}, ours], variables={})
    # tools go where they are written
    assert LISTED.upper() in chat.write([ours], tools=[TOOL], variables={})
    result = {"role": "tool", "content": "rain", "tool_call_id": "c"}
    talk = [*ASKED, TALK[1], result, result, {"role": "note", "content": "b"}, ours]
    with pytest.raises(ConfigError, match=r"^messages\[4\]: .*'note'"):
        chat.write(talk, variables={})
    with pytest.raises(ConfigError, match=r"^messages\[1\]: .*'note'"):  # behind one of tools
        told = chat.template.source.replace("'user'", "'system' or m.role == 'user'")
        writer(told).write([ours, {"role": "note", "content": "b"}], tools=[TOOL], variables={})


@pytest.mark.parametrize(
    "written, renders",
    [
        ("m.content", 1),
        ("m.content | tojson", 1),  # results of tools, as Llama 3 and gpt-oss have them
        ("m.content | upper", 2),
    ],
)
def test_a_conversation_is_written_a_few_times_however_long_it_is(
    writer, monkeypatch, written, renders
):
    """Each message that was changed was looked for by writing all of them once more."""
    chat = writer(
        "{% for m in messages %}{% if m.role != 'note' %}{{ "
        + written
        + " }}{% endif %}{% endfor %}"
    )
    talk = [{"role": "user", "content": f'as\n{at} "x"'} for at in range(50)]
    chat.write(talk[:1], variables={})  # what is tried once of a template
    counts, rendered = [], chat._rendered
    monkeypatch.setattr(chat, "_rendered", lambda *a, **b: counts.append(1) or rendered(*a, **b))
    chat.write(talk, variables={})
    assert len(counts) == renders
    talk[30] = {"role": "note", "content": "left out"}
    with pytest.raises(ConfigError, match=r"^messages\[30\]: .*'note'"):
        chat.write(talk, variables={})


def test_successive_messages_of_a_kind_are_one_where_the_template_takes_one(writer):
    roles = ("system", "developer", "user", "user", "assistant", "user")
    talk = [{"role": role, "content": role[0] + str(at)} for at, role in enumerate(roles)]
    # the first of the system alone is read, as by gpt-oss; roles have to alternate, as Mistral's
    first = (
        "{% if messages[0].role == 'system' %}<<{{ messages[0].content }}>>{% endif %}"
        "{% for m in messages %}{% if m.role != 'system' %}[{{ m.content }}]{% endif %}{% endfor %}"
    )
    strict = (
        "{% for m in messages if m.role != 'system' %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
        "{% endif %}{% endfor %}" + first
    )
    assert writer(first).write(talk, variables={}) == "<<s0\n\nd1>>[u2][u3][a4][u5]"
    assert writer(strict).write(talk, variables={}) == "<<s0\n\nd1>>[u2\n\nu3][a4][u5]"
    # each as it is where it is taken
    each = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    assert writer(each).write(talk, variables={}) == "[s0][d1][u2][u3][a4][u5]"
    # parts stay parts; what has more than a content stays alone, and instructions stay in place
    parts = [{"type": "text", "text": "p"}]
    mixed = [{"role": "user", "content": "u"}, {"role": "user", "content": parts}]
    assert writer(strict).write(mixed, variables={}) == "[u\n\np]"
    with pytest.raises(TemplateError, match="alternate"):
        writer(strict).write([*mixed, {**talk[2], "name": "n"}], variables={})
    with pytest.raises(ConfigError, match=r"messages\[3\]: .* the role 'developer'"):
        writer(first).write([*talk[:3], {**talk[1], "content": "d3"}], variables={})


def test_developers_are_of_the_system_where_the_template_does_not_know_them(writer):
    def written(source, messages, tools=None):
        return writer(source).write(messages, tools=tools, variables={})

    talk = [{"role": "developer", "content": "d"}, *ASKED]
    by_system = [{"role": "system", "content": "d"}, *ASKED]
    # a template that writes whichever role, one that takes system messages, one that refuses
    each = "{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}"
    first = "{% if messages[0].role == 'system' %}<<{{ messages[0].content }}>> {% endif %}go"
    wary = "{% if messages[0].role == 'developer' %}{{ raise_exception('no') }}{% endif %}" + each
    blind = "{# 'developer' #}" + first
    for source in (each, first, wary, blind, *BUILTIN_TEMPLATES.values()):
        assert written(source, talk) == written(source, by_system)
        assert talk[0]["role"] == "developer"
    assert written(each, talk) == "[system] d [user] go "
    knows = "{# 'developer' #}" + each
    assert written(knows, talk) == "[developer] d [user] go "
    assert written(knows, by_system) == "[system] d [user] go "
    # tools in words stand with it, not in a second message before it
    assert written(knows, talk, [TOOL]).startswith("[developer] d\n\nYou can call functions.")
    assert written(each, talk, [TOOL]) == written(each, by_system, [TOOL])


def test_tools_and_calls_that_nest_too_deeply_are_refused(writer):
    deep = 1
    for _ in range(5000):
        deep = [deep]
    schema = {**TOOL, "parameters": {"type": "object", "default": deep}}
    called = {**CALL, "function": {"name": "weather", "arguments": {"at": deep}}}
    talk = [*ASKED, {"role": "assistant", "content": None, "tool_calls": [called]}, TALK[2]]
    for messages, tools in ((ASKED, [schema]), (talk, None)):
        with pytest.raises(
            ConfigError, match="^messages, tools: a value in them is nested too dee"
        ):
            writer(BUILTIN_TEMPLATES["chatml"]).write(messages, tools=tools, variables=BEGUN)
