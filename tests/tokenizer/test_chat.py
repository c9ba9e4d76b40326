"""Chat templates: the text that others render, and a stranger's program kept on its leash."""

import json
import time
import tracemalloc
from datetime import datetime

import pytest

from oxillama.errors import TemplateError
from oxillama.gguf import GgufReader
from oxillama.tokenizer import ChatTemplate

HI = [{"role": "user", "content": "hi"}]


def test_real_templates_render_as_others_render_them(cases):
    golden = json.loads((cases / "chat_templates" / "golden.json").read_text())
    day = datetime(2024, 7, 26)  # the day on which the facts were made
    templates = {}
    for case in golden:
        name = case["template"].split("/")[-1]
        template = templates.setdefault(
            name, ChatTemplate((cases / "chat_templates" / name).read_text())
        )
        arguments = dict(tools=case["tools"], strftime_now=day.strftime, **case["kwargs"])
        if case["ok"]:
            assert template.render(case["messages"], **arguments) == case["output"], (
                name,
                case["case"],
            )
        else:
            with pytest.raises(TemplateError):
                template.render(case["messages"], **arguments)
    assert len(golden) > 150


def test_hostile_templates_of_the_cases_end_soon_in_little_memory(cases, tmp_path):
    for path in sorted((cases / "bad_gguf").glob("tmpl_*.gguf")):
        source = GgufReader(path).metadata["tokenizer.chat_template"]
        tracemalloc.start()
        begin = time.perf_counter()
        try:
            assert len(ChatTemplate(source).render(HI)) < 200
        except TemplateError as error:
            assert "\n" not in str(error)
        assert time.perf_counter() - begin < 2
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
        tracemalloc.stop()


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__.os }}",
        "{{ messages.append(1) }}",
        "{{ 'A' * 10 ** 10 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ 'a'.center(10 ** 9) }}",
        "{{ 'a' | replace('a', 'b' * 30000000) | replace('b', 'c' * 9) }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
        "{% set ns = namespace(s='AB') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l }}",
        "{{ [1] | batch(10 ** 10, 0) | list }}",
        "{{ '%0999999999d' % 1 }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ 'x' | indent(10 ** 9) }}",
        "{{ messages | tojson(indent=10 ** 9) }}",
        "{% set ns = namespace(s=[]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s=[], t=[]) %}"
        "{% for i in range(60) %}{% set ns.s = ns.s + [ns.s] %}{% set ns.t = ns.t + [ns.t] %}{% endfor %}{{ ns.s == ns.t }}",
        "{% set s = 'a' * 100000 %}{% for i in range(90000) %}{% set t = s[1:] %}{% endfor %}",
        "{{ ('a,' * 3000000).split(',') }}",
        "{{ ('a' * 1000).translate({97: 'b' * 100000}) }}",
        "{{ [['a' * 100000] * 10000] | tojson }}",
        "{{ '{:{}}'.format(1, 10 ** 9) }}",
        "{{ '%*d' % (10 ** 9, 1) }}",
        "{{ ([[0] * 1000] * 1000) | sum(start=[]) }}",
        "{% set a = 1 %}" * 9000,
        "{{ " + "~".join(["a"] * 40000) + " }}",
        "{% include 'other' %}",
        "{{ lipsum(1000) }}",
        "{{ undefined.attribute }}",
        "{% if %}",
    ],
)
def test_what_a_template_may_not_do_is_a_template_error(source):
    begin = time.perf_counter()
    with pytest.raises(TemplateError):
        ChatTemplate(source).render(HI)
    assert time.perf_counter() - begin < 2


def test_templates_are_set_up_as_their_authors_expect():
    assert (
        ChatTemplate(
            "{% for m in messages %}\n  {% if loop.first %}\nA{% endif %}\n{{ m.role }}\n{% endfor %}"
        ).render(HI)
        == "Auser\n"
    )
    assert (
        ChatTemplate("{{ messages | tojson }}").render([{"role": "user", "content": "<é>"}])
        == '[{"role": "user", "content": "<é>"}]'
    )
    assert (
        ChatTemplate(
            "{% for i in range(5) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        ).render(HI)
        == "01"
    )
    assert (
        ChatTemplate("{% generation %}{{ messages[0].content }}{% endgeneration %}").render(HI)
        == "hi"
    )
    assert (
        ChatTemplate("{{ bos_token }}{{ x }}{{ add_generation_prompt }}").render(
            HI, bos_token="<s>", x=1
        )
        == "<s>1True"
    )
    assert (
        ChatTemplate(
            "{{ '%02d|%s' % (7, 'x') }}{{ '{:>3}{}'.format(1, 'y') }}{{ '%s' | format('z') }}"
        ).render(HI)
        == "07|x  1yz"
    )
    assert (
        ChatTemplate(
            "{% for i in [1, 2] %}{{ loop.length }}{{ loop.last }}{{ loop.revindex }} {% endfor %}"
        ).render(HI)
        == "2False2 2True1 "
    )
    assert ChatTemplate("{{ 'a' ~ 1 ~ none }}").render(HI) == "a1None"
    assert (
        ChatTemplate("{{ messages | map(attribute='role') | join('-') }}").render(HI + HI)
        == "user-user"
    )
    with pytest.raises(TemplateError, match="only users here"):
        ChatTemplate("{{ raise_exception('only users here') }}").render(HI)


def test_a_long_conversation_has_a_budget_of_its_own_length():
    source = "{% for m in messages %}{% if 'x' in m.content %}{{ m.content | trim | replace('a', 'b') ~ '\n' }}{% endif %}{% endfor %}"
    messages = [{"role": "user", "content": "xa" * 10000}] * 500
    assert len(ChatTemplate(source).render(messages)) == 500 * 20001


def test_a_template_that_is_no_text_is_refused():
    with pytest.raises(TemplateError, match="int"):
        ChatTemplate(7)
