"""Reasoning is split off wherever the pieces are cut, nothing is lost, and constraints begin after
it.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.errors import ConfigError
from oxillama.grammar import Grammar
from oxillama.tokenizer import ChatTemplate
from oxillama.toolcalls import (
    THINK,
    Markup,
    Reasoning,
    ReasoningFormat,
    ReasoningSplitter,
    ReplyParser,
    Text,
    detect_reasoning,
    opened_by,
    parse_reply,
    split_reasoning,
    with_reasoning,
)
from oxillama.toolcalls.events import joined
from oxillama.toolcalls.reasoning import implied_by

texts = st.lists(
    st.sampled_from(
        [
            "<think>",
            "</think>",
            "<thi",
            "nk>",
            "</",
            "é",
            "a",
            " ",
            "\n",
            "🙂",
            "<tool_call>",
            '{"name": "f"}',
            "</tool_call>",
        ]
    ),
    max_size=10,
).map("".join)


@settings(max_examples=80, deadline=None)
@given(texts, st.booleans(), st.integers(1, 9))
def test_joined_raw_texts_are_the_input_and_pieces_do_not_matter(text, opened, size):
    def events(size):
        splitter, out = ReasoningSplitter(opened=opened), []
        for at in range(0, len(text), size):
            out += splitter.feed(text[at : at + size])
        return joined(out + splitter.finish())

    assert events(size) == events(1000)
    assert "".join(event.raw for event in events(size)) == text


@pytest.mark.parametrize(
    "text, opened, reasoning, answer",
    [
        ("<think>a</think>b", False, "a", "b"),
        ("\n <think>\na\n</think>\n\nb", False, "\na\n", "\n\nb"),
        ("a</think>b", True, "a", "b"),
        ("b <think>no</think>", False, "", "b <think>no</think>"),
        ("<think>a", False, "a", ""),
        ("<thin", False, "", "<thin"),
        ("<think>a</think>b<think>c</think>", False, "a", "b<think>c</think>"),
        ("a </thin", True, "a </thin", ""),
        ("", True, "", ""),
        ("<think></think>x", False, "", "x"),
    ],
)
def test_a_region_stands_at_the_beginning(text, opened, reasoning, answer):
    assert split_reasoning(text, opened=opened) == (reasoning, answer)


def test_text_that_cannot_be_the_end_of_a_region_is_given_out_at_once():
    splitter = ReasoningSplitter()
    assert splitter.feed("<think>a </th") == [Markup("<think>"), Reasoning("a ")]
    assert splitter.feed("e") == [Reasoning("</the")]
    assert (
        splitter.feed("</think>x<think>") == [Markup("</think>"), Text("x<think>")]
        and splitter.over
    )


def test_templates_and_prompts_tell_of_regions(cases):
    folder = cases / "chat_templates"
    assert detect_reasoning((folder / "Qwen-Qwen3-0.6B.jinja").read_text()) == THINK
    assert (
        detect_reasoning(
            (folder / "CohereForAI-c4ai-command-r7b-12-2024-tool_use.jinja").read_text()
        ).open
        == "<|START_THINKING|>"
    )
    assert detect_reasoning((folder / "Qwen-Qwen2.5-7B-Instruct.jinja").read_text()) is None


@pytest.mark.parametrize(
    ("source", "open"),
    [
        ("{{ '<|channel>thought\n' + m.reasoning + '<channel|>' }}", "<|channel>thought"),
        ("{{ '<|inner_prefix|>' + m.thoughts + '<|inner_suffix|>' }}", "<|inner_prefix|>"),
        ("{% set s = ':opensource' %}{{ '</think{}>'.format(s) }}", "<think:opensource>"),
        ("{{ '</think{}>'.format(s) }}", None),
    ],
)
def test_small_templates_tell_of_regions(source, open):
    found = detect_reasoning(source)
    assert (found.open if found else None) == open


def test_a_region_whose_opening_holds_a_token_and_a_word_is_split_off():
    kind = detect_reasoning("{{ '<|channel>thought\n' }}{{ '<channel|>' }}")
    reply = parse_reply(
        "<|channel>thought\nIt rains.\n<channel|>No.<|tool_call>call:f{}<tool_call|>",
        "gemma4",
        reasoning=kind,
    )
    assert (reply.reasoning, reply.content) == ("It rains.", "No.")
    assert [call.name for call in reply.tool_calls] == ["f"]
    grammar = with_reasoning(
        Grammar.from_choices(["yes"]), kind, token_ids={"<|channel>": 4, "<channel|>": 5}
    )
    assert grammar.matches([4, b"thought\nhm", 5, b"yes"]) and grammar.matches([b"yes"])
    assert not grammar.matches([4, b"final", 5, b"yes"])


def test_a_prompt_that_ends_inside_a_region_has_opened_it():
    assert (
        opened_by("<|im_start|>assistant\n<think>\n")
        and not opened_by("<think>\n\n</think>\n\n")
        and not opened_by("x")
    )


@settings(max_examples=40, deadline=None)
@given(st.text(st.sampled_from("<>/think é\n"), max_size=30), st.booleans())
def test_a_grammar_begins_after_the_region(reasoning, opened):
    grammar = with_reasoning(Grammar.from_choices(["yes", "no"]), opened=opened)
    begin = "" if opened else "<think>"
    whole = "</think>" in reasoning
    assert grammar.matches(f"{begin}{reasoning}</think>\n\nyes") == (
        not whole or reasoning.split("</think>", 1)[1].strip() in ("", "yes", "no") and False
    )
    assert not grammar.matches(f"{begin}{reasoning}</think>\n\nmaybe") and not grammar.matches(
        f"{begin}{reasoning}</thin"
    )
    assert grammar.matches("yes") == (not opened)


def test_delimiters_that_are_control_tokens_are_tokens_in_the_grammar():
    grammar = with_reasoning(Grammar.from_choices(["yes"]), token_ids={"<think>": 3, "</think>": 4})
    assert (
        grammar.matches([3, b"hm </think> no", 4, b"\nyes"])
        and grammar.matches([b"yes"])
        and not grammar.matches([3, b"hm", b"yes"])
    )


def test_a_grammar_inside_keeps_its_own_tokens_and_recursion():
    inner = Grammar.parse('root ::= "(" root? ")" | <[7]> [^a]{2} | !<[8]> "z"')
    grammar = with_reasoning(inner, token_ids={"</think>": 8}, opened=True)
    for text, wanted in (
        ([b"x", 8, b"(())"], True),
        ([8, 7, b"bc"], True),
        ([8, 7, b"ba"], False),
        ([8, 9, b"z"], True),
        ([8, 8, b"z"], False),
        ([b"x", 8, b"(()"], False),
    ):
        assert grammar.matches(text) is wanted


def test_a_reply_has_its_reasoning_its_content_and_its_calls():
    text = (
        '<think>\nI call <tool_call>\n</think>\n\nSure.\n<tool_call>\n{"name": "f", "arguments": '
        '{"é": [1]}}\n</tool_call>'
    )
    text += "\n<tool_call>x</tool_call>"
    for size in (1, 7, 1000):
        parser, events = ReplyParser("qwen", reasoning=THINK, names=["f"]), []
        for at in range(0, len(text), size):
            events += parser.feed(text[at : at + size])
        events += parser.finish()
        assert "".join(event.raw for event in events) == text == parser.reply.raw
        reply = parser.reply
        assert (reply.content, reply.reasoning) == ("Sure.", "I call <tool_call>")
        assert [call.arguments for call in reply.tool_calls] == [{"é": [1]}] and reply.malformed[
            0
        ].text == "<tool_call>x</tool_call>"
        assert reply.message() == {
            "role": "assistant",
            "content": "Sure.",
            "reasoning_content": "I call <tool_call>",
            "tool_calls": [
                {
                    "id": "call00000",
                    "type": "function",
                    "function": {"name": "f", "arguments": {"é": [1]}},
                }
            ],
        }


def test_without_formats_a_reply_is_its_text():
    assert parse_reply("a").message() == {"role": "assistant", "content": "a"}
    bare = '{"name": "f", "parameters": {}}'
    for names, found in ((None, 1), (["f", "g"], 1), (["g"], 0)):
        reply = parse_reply(bare, "llama3", names=names)
        assert (len(reply.tool_calls), reply.content) == (found, "" if found else bare)
    assert parse_reply(" <think>a</think> <tool_call>").content == " <think>a</think> <tool_call>"
    assert (
        parse_reply("a</think>b", reasoning=THINK, reasoning_opened=True).message()[
            "reasoning_content"
        ]
        == "a"
    )


def test_what_is_no_format_or_text_is_refused():
    with pytest.raises(ConfigError):
        ReasoningFormat("", "x")
    with pytest.raises(ConfigError, match="int, wanted str"):
        ReasoningSplitter().feed(1)


def test_a_region_that_the_prompt_has_opened_may_be_opened_again_by_the_reply():
    for text in ("<think>\na</think>b", " <think>a</think>b", "a</think>b"):
        for size in (1, 100):
            splitter, out = ReasoningSplitter(opened=True), []
            for at in range(0, len(text), size):
                out += splitter.feed(text[at : at + size])
            out += splitter.finish()
            assert "".join(event.raw for event in out) == text
            said = "".join(event.raw for event in out if isinstance(event, Reasoning)).strip()
            assert said == "a" and "".join(e.raw for e in out if isinstance(e, Text)) == "b"


def test_what_a_message_says_at_the_end_of_a_prompt_opens_no_region():
    template = ChatTemplate("{{ messages[0].content }}{{ end }}")
    talk = [{"role": "user", "content": "so <think>"}]
    assert not opened_by(template.render(talk))
    assert opened_by(ChatTemplate("{{ messages[0].content }}<think>\n").render(talk))


def test_r1_reasons_without_a_beginning_where_its_template_writes_none():
    source = "<｜Assistant｜>{{ messages[0].content.split('</think>') | last }}"
    assert implied_by(source) and not implied_by(source + "<think>")
    assert not implied_by("{{ messages[0].content.split('</think>') | last }}")


def test_white_space_before_a_region_is_read_once():
    splitter = ReasoningSplitter()
    for _ in range(3000):
        assert splitter.feed(" ") == [] and splitter._held == ""
    assert [type(event) for event in splitter.feed("<think>a")] == [Markup, Reasoning]
