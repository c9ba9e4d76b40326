"""Contents of messages in the form that a template writes whole."""

import pytest

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


def test_other_contents_are_left_alone():
    form = MessageForm(TEXT, ChatTemplate(TEXT).render)
    for content in (None, [], [{"type": "image"}], [{"type": "text"}]):
        assert form.formed([{"role": "user", "content": content}])[0]["content"] == content
