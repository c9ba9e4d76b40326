"""Contents of messages in the form that a template writes whole."""

import pytest

from oxillama.errors import ConfigError
from oxillama.tokenizer import ChatTemplate
from oxillama.toolcalls import MessageForm

TEXT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
# as SmolVLM's: texts are gone through letter by letter, none of which is a part
PARTS = (
    "{% for m in messages %}{{ m.role }}:{% for p in m['content'] %}"
    "{% if p['type'] == 'text' %}{{ p['text'] }}{% elif p['type'] == 'image' %}<image>{% endif %}"
    "{% endfor %}\n{% endfor %}"
)
BOTH = (
    "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}\n{% endfor %}"
)
SPLIT = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]


def written(source, content):
    template = ChatTemplate(source)
    form = MessageForm(source, template.render)
    return str(template.render(form.formed([{"role": "user", "content": content}]))).strip()


@pytest.mark.parametrize("source", (TEXT, PARTS, BOTH), ids=("text", "parts", "both"))
def test_text_is_written_whole_in_either_form(source):
    for content in ("one two", SPLIT):
        assert written(source, content).replace(": ", ":") == "user:one two"


def test_parts_that_are_no_text_stay_parts():
    assert written(PARTS, [{"type": "image"}, *SPLIT]) == "user:<image>one two"


def test_images_and_results_are_left_alone():
    form = MessageForm(TEXT, ChatTemplate(TEXT).render)
    for role, content in (("user", [{"type": "image"}]), ("tool", {"a": 1})):
        assert form.formed([{"role": role, "content": content}])[0]["content"] == content


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (5, ": found int, wanted a message: a dict of role and content"),
        (
            [{"role": "user", "content": "x"}],
            ": found list, wanted a message: a dict of role and content; a call takes one "
            "conversation, submit_chat starts each of several",
        ),
        (("user", "x"), ": found tuple, wanted a message: a dict of role and content"),
        ({"content": "x"}, ".role: found nothing, wanted a text such as 'user'"),
        ({"role": None, "content": "x"}, ".role: found None, wanted a text such as 'user'"),
        ({"role": "user"}, ".content: found nothing, wanted text or a list of parts"),
        ({"role": "user", "content": None}, ".content: found None, wanted text or a list of parts"),
        ({"role": "user", "content": 5}, ".content: found int, wanted text or a list of parts"),
        (
            {"role": "user", "content": b"x"},
            ".content: found bytes, wanted text or a list of parts",
        ),
        ({"role": "user", "content": {}}, ".content: found dict, wanted text or a list of parts"),
        ({"role": "user", "content": []}, ".content: found no parts, wanted 1 or more"),
        ({"role": "tool", "content": 5}, ".content: found int, wanted text or a list of parts"),
        (
            {"role": "assistant", "content": None, "tool_calls": []},
            ".content: found None, wanted text or a list of parts, or tool_calls",
        ),
        (
            {"role": "assistant", "content": "", "tool_calls": 5},
            ".tool_calls: found int, wanted a list",
        ),
        (
            {"role": "assistant", "tool_calls": [5]},
            ".tool_calls[0]: found int, wanted a dict of function",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "a", "function": 5}]},
            ".tool_calls[0].function: found int, wanted a dict with a name",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}, {"id": "a"}]},
            ".tool_calls[1].name: found nothing, wanted a text",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": None}}]},
            ".tool_calls[0].function.name: found None, wanted a text",
        ),
        (
            {"role": "assistant", "tool_calls": [{"name": "f", "arguments": [1]}]},
            ".tool_calls[0].arguments: found list, wanted a dict or its JSON",
        ),
        (
            {"role": "user", "content": [*SPLIT, "x"]},
            '.content[2]: found str, wanted a part such as {"type": "text", "text": "..."}, an '
            "image or audio",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": 5}]},
            '.content[0]: found a text of type int, wanted a part such as {"type": "text", "text": '
            '"..."}, an image or audio',
        ),
        (
            {"role": "user", "content": [{"type": "document"}]},
            ".content[0]: found a dict of type 'document', wanted a part such as {\"type\": "
            '"text", "text": "..."}, an image or audio',
        ),
    ],
)
def test_a_wrong_message_is_one_error_that_names_it(message, error):
    form = MessageForm(TEXT, ChatTemplate(TEXT).render)
    with pytest.raises(ConfigError) as raised:
        form.formed([{"role": "user", "content": "a"}, message])
    assert str(raised.value) == f"messages[1]{error}"


# as Qwen 3's, DeepSeek V3's and gpt-oss's write calls
CALLS = (
    "{% for m in messages %}{% if m.tool_calls %}%s{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
WRITE = "{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}"


@pytest.mark.parametrize(
    ("condition", "empty"),
    [
        ("{{ m.content + '' }}%s", ""),
        ("{% if m.content is none %}%s{% else %}{{ m.content }}{% endif %}", None),
        ("%s", ""),
    ],
)
@pytest.mark.parametrize("content", [{}, {"content": None}])
def test_calls_without_a_content_are_written(condition, empty, content):
    source = CALLS.replace("%s", condition.replace("%s", WRITE))
    template = ChatTemplate(source)
    form = MessageForm(source, template.render)
    call = {"function": {"name": "f", "arguments": {"city": "Oslo"}}}
    formed = form.formed([{"role": "assistant", **content, "tool_calls": [call]}])
    assert formed[0]["content"] == empty
    assert str(template.render(formed)) == '{"city": "Oslo"}'
