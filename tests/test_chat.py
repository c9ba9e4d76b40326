"""Chats through the embedded model's own template: what is asked of a reply is asked once, and
every option of a generation counts.
"""

import dataclasses
import re

import pydantic
import pytest

import oxillama
from oxillama import ConfigError, SamplerConfig

GREEDY = SamplerConfig.greedy()
TALK = [{"role": "user", "content": "How old are you?"}]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"const": True}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}


@pytest.fixture(scope="module")
def engine():
    with oxillama.load(num_threads=1) as loaded:
        yield loaded


def test_a_reply_is_a_message_of_the_conversation(engine):
    done = engine.chat(TALK, max_tokens=6, sampler=GREEDY)
    assert done.message() == {"role": "assistant", "content": done.content}
    assert engine.generate("Once", max_tokens=2, sampler=GREEDY).message()["content"] == " upon a"
    call = oxillama.ToolCall("f", {"a": 1})
    whole = dataclasses.replace(done, content="", reasoning="so", tool_calls=(call,))
    assert whole.message() == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "so",
        "tool_calls": [call.message()],
    }
    again = engine.chat([*TALK, done.message(), *TALK], max_tokens=6, sampler=GREEDY)
    assert again.usage.cached_tokens > done.usage.prompt_tokens  # as it was written


@pytest.mark.parametrize(
    "beside",
    [dict(json_schema={}), dict(regex="x+"), dict(choices=["x"]), dict(grammar='root ::= "x"')],
)
def test_a_constraint_beside_a_response_format_is_refused(engine, beside):
    with pytest.raises(
        ConfigError, match=f"^{next(iter(beside))}: found together with response_format"
    ):
        engine.chat(TALK, response_format=FORMAT, max_tokens=1, **beside)


def test_constraints_of_none_leave_the_response_format_in_force(engine):
    done = engine.chat(
        TALK,
        response_format=FORMAT,
        grammar=None,
        json_schema=None,
        regex=None,
        choices=None,
        max_tokens=12,
        sampler=GREEDY,
    )
    assert done.text == '{"a":true}'


def test_a_class_as_a_response_format_is_its_schema(engine):
    class Answer(pydantic.BaseModel):
        sure: bool

    wanted = {"max_tokens": 24, "sampler": GREEDY}
    done = engine.chat(TALK, response_format=Answer, **wanted)
    assert isinstance(Answer.model_validate_json(done.text).sure, bool)
    assert done.text == engine.chat(TALK, json_schema=Answer, **wanted).text
    number = engine.chat(TALK, response_format=int, **wanted).text
    assert str(int(number)) == number
    with pytest.raises(ConfigError, match="^response_format: found 5, wanted a type of text, "):
        engine.chat(TALK, response_format=5, **wanted)


@pytest.mark.parametrize("strict", [{}, {"strict": True}, {"strict": None}])
def test_a_response_format_has_the_members_that_it_names(engine, strict):
    """As in the strict mode of hosted APIs: with one more always allowed, a text seldom ends."""
    schema = {name: value for name, value in SCHEMA.items() if name != "additionalProperties"}
    wanted = {"max_tokens": 12, "temperature": 0}
    more = ',"b":1}'

    def reply(form):
        known = {"type": "json_schema", "json_schema": {"schema": schema, **form}}
        bias = dict.fromkeys(engine.tokenize(more, add_special=False), 50.0)
        return engine.chat(TALK, response_format=known, logit_bias=bias, **wanted)

    done = reply(strict)
    assert (done.text, done.finish_reason) == ('{"a":true}', "stop")
    assert reply({"strict": False}).text.startswith('{"a":true,')


def test_a_json_object_may_have_a_schema_as_in_llama_cpp(engine):
    schema = {name: value for name, value in SCHEMA.items() if name != "additionalProperties"}
    wanted = {"max_tokens": 12, "temperature": 0}
    done = engine.chat(TALK, response_format={"type": "json_object", "schema": schema}, **wanted)
    named = {"type": "json_schema", "name": "x", "description": None, "schema": schema}
    assert done.text == engine.chat(TALK, response_format=named, **wanted).text == '{"a":true}'
    for nothing in ({}, None):
        form = {"type": "json_object", "schema": nothing}
        assert engine.chat(TALK, response_format=form, **wanted).text.startswith("{")


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ({"type": "text", "schema": {}}, "schema: is not a member of response_format, wanted"),
        (
            {"type": "json_object", "json_schema": {"schema": {}}},
            "json_schema: is not a member of response_format; did you mean schema?",
        ),
        (
            {"type": "json_schema", "json_schema": {"schema": {}, "strct": False}},
            "strct: is not a member of response_format.json_schema; did you mean strict?",
        ),
        (
            {"type": "json_schema", "json_schema": {"schema": {}}, "strict": True},
            "strict: is not a member of response_format, wanted",
        ),
        (
            {"type": "json_schema", "json_schema": {"schema": {}, "strict": "no"}},
            "response_format.json_schema.strict: found 'no', wanted True or False",
        ),
        ({"type": "json_schema", "json_schema": []}, "response_format: found json_schema without"),
        ({"type": ["text"]}, "response_format: found"),
    ],
)
def test_a_member_that_a_response_format_does_not_have_is_named(engine, form, error):
    with pytest.raises(ConfigError, match=f"^{re.escape(error)}"):
        engine.chat(TALK, response_format=form, max_tokens=1)


def test_free_text_as_a_response_format_is_no_constraint(engine):
    assert (
        engine.chat(
            TALK, response_format={"type": "text"}, regex="x{3}", max_tokens=4, sampler=GREEDY
        ).text
        == "xxx"
    )


@pytest.mark.parametrize(
    "asked", ["lookup", "early_exit", "early_exit:1", str(oxillama.embedded_path())]
)
def test_a_reply_may_speculate_as_any_text_may(engine, asked):
    done = engine.chat(TALK, speculative=asked, max_tokens=6, sampler=GREEDY)
    assert (
        done.tokens == engine.chat(TALK, max_tokens=6, sampler=GREEDY).tokens
        and done.speculation is not None
    )


def test_a_reply_may_be_in_a_session_of_ones_own(engine):
    session = engine.session()
    done = engine.chat(TALK, session=session, max_tokens=6, sampler=GREEDY)
    assert (
        done.tokens
        == engine.chat(TALK, max_tokens=6, sampler=GREEDY).tokens
        == tuple(session.tokens[-len(done.tokens) :])
    )
    session.close()


def test_an_iterator_of_options_counts(engine):
    stop = engine.chat(TALK, max_tokens=12, sampler=GREEDY).text[4:7]
    done, wanted = (
        engine.chat(TALK, stop=given, max_tokens=12, sampler=GREEDY)
        for given in (iter([stop]), [stop])
    )
    assert (done.text, done.finish_reason) == (wanted.text, "stop")


def test_an_option_that_is_none_is_named(engine):
    with pytest.raises(ConfigError, match="^max_toknes: is not an option"):
        engine.chat(TALK, max_toknes=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            dict(template={"tools": []}),
            "template: found {'tools': \\[\\]}, wanted a dict of further variables, none of them "
            "messages or tools",
        ),
        (dict(template=5), "template: found 5"),
        (dict(template={5: 1}), "template: found {5: 1}"),
        (dict(tool_format="bogus"), "tool call format: found 'bogus'"),
        (dict(parallel_tool_calls="no"), "parallel_tool_calls: found 'no'"),
        (dict(tool_choice={"function": None}), "tool_choice: found {'function': None}"),
        (dict(tool_choice={"function": "f"}), "tool_choice: found"),
    ],
)
def test_what_cannot_be_honoured_is_named(engine, options, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        engine.chat(TALK, max_tokens=1, **options)


def test_a_chat_without_messages_is_refused(engine):
    with pytest.raises(ConfigError, match=r"^messages: found none, wanted 1 or more$"):
        engine.chat([], max_tokens=1)


def test_calls_that_are_no_list_are_named(engine):
    with pytest.raises(ConfigError, match=r"^messages\[1\].tool_calls: found int, wanted a list"):
        engine.chat([*TALK, {"role": "assistant", "content": "a", "tool_calls": 5}])


def test_no_tokens_to_be_shown_are_none(engine):
    assert (
        engine.chat(TALK, shown_tokens=None, max_tokens=1, sampler=GREEDY).tokens
        == engine.chat(TALK, max_tokens=1, sampler=GREEDY).tokens
    )


@pytest.mark.parametrize("name", ["chat_template", "add_generation_promt", "thinking"])
def test_a_variable_that_the_template_does_not_read_is_refused(engine, name):
    told = f"^{name}: found False, but the model's chat template reads no such variable$"
    with pytest.raises(ConfigError, match=told):
        engine.render_chat(TALK, **{name: False})
    with pytest.raises(ConfigError, match=told):
        engine.chat(TALK, template={name: False}, max_tokens=1)


def test_arguments_of_apply_chat_template_say_what_does_the_same(engine):
    for name, told in (
        ("tokenize", "returned as a text, of which tokenize"),
        ("continue_final_message", r"generate.render_chat.messages. \+ beginning. goes on"),
    ):
        with pytest.raises(ConfigError, match=f"^{name}: found False, .* variable; .*{told}"):
            engine.render_chat(TALK, **{name: False})
    with pytest.raises(ConfigError, match="^continue_final_message: is not an option.* goes on"):
        engine.chat(TALK, continue_final_message=True)
    begun = engine.generate(engine.render_chat(TALK) + "The fox", max_tokens=1)
    assert begun.usage.prompt_tokens > len(engine.tokenize(engine.render_chat(TALK)))


def test_a_rendered_chat_generates_what_the_chat_does(engine):
    text = engine.render_chat(TALK)
    assert engine.tokenize(text) == engine._loaded.chat.turn(TALK).prompt
    assert engine.tokenize(text).count(engine.tokenizer.bos_id) <= 1
    assert (
        engine.generate(text, max_tokens=6, sampler=GREEDY).tokens
        == engine.chat(TALK, max_tokens=6, sampler=GREEDY).tokens
    )


def test_control_tokens_in_messages_are_text_unless_asked_for(engine):
    special = engine.tokenizer.token_text(engine.tokenizer.eos_id)
    talk = [{"role": "user", "content": f"a{special}b"}]
    chat, end = engine._loaded.chat, engine.tokenizer.eos_id
    usual = chat.turn([{"role": "user", "content": "ab"}]).prompt.count(end)
    assert chat.turn(talk).prompt.count(end) == usual
    assert chat.turn(talk, parse_special=True).prompt.count(end) == usual + 1
    with pytest.raises(ConfigError, match="^parse_special: found 'no'"):
        engine.chat(talk, parse_special="no")
