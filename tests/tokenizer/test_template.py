"""Chat templates: the text that others render, what came from messages known in it, and a budget
that no template gets past.
"""

import json
import time
import tracemalloc
from datetime import datetime
from types import SimpleNamespace

import pytest

from oxillama.errors import TemplateError
from oxillama.gguf import GgufReader
from oxillama.tokenizer import ChatTemplate, sandbox

HI = [{"role": "user", "content": "hi"}]
# a list of 2^60 elements, if it were written out
NEST = (
    "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set m = [] %}"
    "{% set _ = m.append(n.x) %}{% set _ = m.append(n.x) %}{% set n.x = m %}{% endfor %}"
)


def test_real_templates_render_as_others_render_them(cases):
    golden = json.loads((cases / "chat_templates" / "golden.json").read_text("utf-8"))
    day = datetime(2024, 7, 26)  # the day on which the facts were made
    templates = {}
    for case in golden:
        name = case["template"].split("/")[-1]
        template = templates.setdefault(
            name, ChatTemplate((cases / "chat_templates" / name).read_text("utf-8"))
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
        begin = time.process_time()
        try:
            assert len(ChatTemplate(source).render(HI)) < 200
        except TemplateError as error:
            assert "\n" not in str(error)
        assert time.process_time() - begin < 2
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
        tracemalloc.stop()


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__.os }}",
        "{{ messages.clear() }}",
        "{{ messages[0].clear() }}",
        "{{ own.append(1) }}",
        "{% set l = [1] %}{% for i in l %}{{ l.append(i) }}{% endfor %}",
        "{% set l = [1] %}{% for i in range(60) %}{{ l.extend(l) }}{% endfor %}",
        "{% set l = [] %}{% for i in range(9) %}{{ l.extend(range(99999)) }}{% endfor %}",
        "{% set l = [1] * 99999 %}{{ l.append(l) }}{{ l.extend([l] * 9999) }}{{ l }}",
        "{% set ns = namespace() %}{% set ns.l = [ns] * 99999 %}{{ ns.l }}",
        "{% set ns = namespace() %}{% set ns.l = [ns] * 99999 %}{{ '%s' % (ns.l,) }}",
        "{% set d = {} %}{{ d.update(a=d) }}{{ d | tojson }}",
        "{{ [].pop() }}",
        "{{ 'A' * 10 ** 10 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ 'a'.center(10 ** 9) }}",
        "{{ [1] | slice(3 * 10 ** 7) | list }}",
        "{{ (10).to_bytes(10 ** 9) }}",
        "{{ ('a ' * 5000000) | title }}",
        "{% set ns = namespace(s='AB') %}{% for i in range(60) %}{% set s %}{{ ns.s }}{{ ns.s }}{% "
        "endset %}{% set ns.s = s %}{% endfor %}{{ ns.s }}",
        "{{ ([[[1] * 99] * 99] * 20) | tojson(separators=('x' * 100000, 'y')) }}",
        "{{ 1.5 | round(10 ** 9, 'ceil') }}",
        "{{ dict.fromkeys(range(99999), 1) }}",
        "{% autoescape true %}{{ messages }}{% endautoescape %}",
        "{{ 'a' | replace('a', 'b' * 30000000) | replace('b', 'c' * 9) }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
        "{% set ns = namespace(s='AB') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% "
        "endfor %}{{ ns.s }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% "
        "endfor %}{{ ns.l }}",
        "{{ [1] | batch(10 ** 10, 0) | list }}",
        "{{ '%0999999999d' % 1 }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ 'x' | indent(10 ** 9) }}",
        "{{ messages | tojson(indent=10 ** 9) }}",
        "{% set ns = namespace(s=[]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% "
        "endfor %}{{ ns.s }}",
        "{% set ns = namespace(s=[], t=[]) %}"
        "{% for i in range(60) %}{% set ns.s = ns.s + [ns.s] %}{% set ns.t = ns.t + [ns.t] %}{% "
        "endfor %}{{ ns.s == ns.t }}",
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
        "{{ ('ab' * 300000).encode().decode('punycode') }}",
        "{{ ('xn--9ca.' * 100000).encode().decode('idna') }}",
        "{{ '\u00e9'.encode('ascii', 'namereplace') }}",
        NEST + "{{ raise_exception(n.x) }}",
        NEST + "{{ raise_exception(message=n.x) }}",
        NEST + "{{ strftime_now(n.x) }}",
        NEST + "{{ messages | attr(n.x) }}",
        NEST + "{{ 'a'.encode(n.x) }}",
    ],
)
def test_what_a_template_may_not_do_is_a_template_error(source):
    begin = time.process_time()
    with pytest.raises(TemplateError):
        ChatTemplate(source).render(HI, own=Own())
    assert time.process_time() - begin < 2


class Own(list):
    """Somebody's own list."""


def test_a_template_may_change_its_own_lists_and_copies_and_nothing_else():
    source = (
        "{% set l = [1] %}{% set d = {'a': 1} %}{{ l.append(2) }}{{ l.extend([3, 4]) }}"
        "{{ l.insert(0, 0) }}{{ l.pop() }},{{ l.pop(0) }},{{ l }},{{ d.update({'b': 2}, c=3) }}"
        "{{ d.update([('e', 5)]) }}{{ d.setdefault('d', 4) }},{{ d.pop('a') }},{{ d }}"
        "{{ messages.append(1) }}{{ messages[0].update(content='x') }}{{ tools[0].pop('name') }}"
        "{{ given.append(1) }},{{ messages | length }}"
    )
    messages, tools, given = [{"role": "user", "content": "a"}], [{"name": "f"}], []
    wanted = "None" * 3 + "4,0,[1, 2, 3]," + "None" * 2 + "4,1,{'b': 2, 'c': 3, 'e': 5, 'd': 4}"
    for _ in range(2):
        text = ChatTemplate(source).render(messages, tools=tools, given=given)
        assert text.plain == wanted + "NoneNonefNone,2"
    assert (messages, tools, given) == ([{"role": "user", "content": "a"}], [{"name": "f"}], [])


def test_what_is_put_into_a_list_stays_a_messages_text():
    source = "{% set l = [] %}{% set _ = l.append(messages[0].content) %}{{ l.pop() }}!"
    assert ChatTemplate(source).render(HI).marks == bytes([1] * len(HI[0]["content"])) + b"\0"


def test_json_of_what_a_filter_gives_out_lazily_is_that_of_a_list():
    source = "{{ tools | map(attribute='name') | tojson }}"
    assert ChatTemplate(source).render(HI, tools=[{"name": "f"}]).plain == '["f"]'


def test_templates_are_set_up_as_their_authors_expect():
    assert (
        ChatTemplate(
            "{% for m in messages %}\n  {% if loop.first %}\nA{% endif %}\n{{ m.role }}\n{% endfor "
            "%}"
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
    source = (
        "{% for m in messages %}{% if 'x' in m.content %}{{ m.content | trim | replace('a', 'b') ~ "
        "'\n' }}{% endif %}{% endfor %}"
    )
    messages = [{"role": "user", "content": "xa" * 10000}] * 500
    assert len(ChatTemplate(source).render(messages)) == 500 * 20001


def test_refusals_say_what_is_wanted():
    for source, told in (
        (
            "{{ 'a'.encode('idna') }}",
            "encoding 'idna' is not allowed in templates, wanted one of as",
        ),
        (
            "{{ 'a'.encode(errors=7) }}",
            "errors 'int' is not allowed in templates, wanted one of ba",
        ),
        (
            "{{ raise_exception('') }}",
            "chat template: refuses these messages, and does not say why",
        ),
    ):
        with pytest.raises(TemplateError, match=told):
            ChatTemplate(source).render(HI)
    for source in (
        "{{ 'a\u00e9'.encode('UTF_8').decode() }}",
        "{{ 'a\u00e9'.encode().decode('utf8') }}",
    ):
        assert ChatTemplate(source).render(HI) == "a\u00e9"


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
        "{% for a in [1] %}" * 40 + "{% endfor %}" * 40,
    ],
)
def test_a_template_that_nests_too_deeply_is_refused(source):
    template = ChatTemplate(source)
    for door in (template.compiled, lambda: template.render(HI)):
        with pytest.raises(
            TemplateError, match="^chat template: tags or brackets nest too deeply$"
        ):
            door()


def test_a_template_that_is_no_text_is_refused():
    with pytest.raises(TemplateError, match="int"):
        ChatTemplate(7)


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        ("'aXa'.replace('X', 'b')", "aba"),
        ("'7'.zfill(3)", "007"),
        ("'a'.ljust(3)", "a  "),
        ("'a'.rjust(3)", "  a"),
        ("'a'.center(3)", " a "),
        ("'a'.encode().decode()", "a"),
        ("'a\tb'.expandtabs(2)", "a b"),
        ("'{}'.format(i)", "1"),
        ("'-'.join(['a', 'b'])", "a-b"),
        ("namespace(a=1).a ~ namespace(b=2).b", "12"),
        ("namespace(a=namespace(b=[])).a.b", "[]"),
    ],
)
def test_calls_in_a_loop_are_those_outside_of_one(call, wanted):
    loop = f"{{% for i in [1] %}}{{% set x = {call} %}}{{{{ x }}}}{{% endfor %}}"
    assert ChatTemplate(loop).render(HI) == wanted
    outside = f"{{% set i = 1 %}}{{{{ {call} }}}}"
    assert ChatTemplate(outside).render(HI) == wanted


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("[1, 2, 3] | slice(2) | list", "[[1, 2], [3]]"),
        ("[1, 2, 3] | batch(2, 0) | list", "[[1, 2], [3, 0]]"),
        ("'a b' | title", "A B"),
        ("'a b' | wordcount", "2"),
        ("1.25 | round(1)", "1.2"),
        ("'<' | e", "&lt;"),
        ("'<b>x</b>' | striptags", "x"),
        ("'a\nb' | indent(1)", "a\n b"),
        ("'aa' | replace('a', 'b', 1)", "ba"),
        ("{'a': [1]} | tojson(indent=1)", '{\n "a": [\n  1\n ]\n}'),
        ("'abcdef' | truncate(3, true, '', 0)", "abc"),
        ("[3, 1] | sort | join('-')", "1-3"),
        ("[1, 2] | map('string') | join", "12"),
        ("[1, 2, 3] | select('odd') | list", "[1, 3]"),
        ("[1, 2] | sum", "3"),
        ("'ab' | reverse", "ba"),
        ("'ab' | first ~ 'ab' | last", "ab"),
        ("{'b': 1, 'a': 2} | dictsort", "[('a', 2), ('b', 1)]"),
        ("[1, 1] | unique | list", "[1]"),
        ("'a' | attr('upper')()", "A"),
    ],
)
def test_filters_do_what_they_do_elsewhere(expression, wanted):
    assert ChatTemplate(f"{{{{ {expression} }}}}").render(HI) == wanted


def test_no_operation_makes_what_was_not_counted(monkeypatch):
    """Every filter and every method, over large values and with huge arguments, under a budget of
    256 KiB: refused, or done in memory of that order.
    """
    for name, most in (("MAX_BYTES", 1 << 18), ("MAX_CALLS", 2000), ("MAX_NODES", 2000)):
        monkeypatch.setattr(sandbox, name, most)
    made = sandbox.Sandbox()
    methods = sorted({name for names in sandbox._METHODS.values() for name in names})
    sources = [f"v | {name}" for name in made.filters] + [f"v.{name}()" for name in methods]
    sources += [f"v | {name}(w)" for name in made.filters] + [f"v.{name}(w)" for name in methods]
    sources += [f"v | {name}(w, w)" for name in ("replace", "slice", "batch", "indent", "round")]
    sources += [f"v {sign} w" for sign in ("+", "*", "%", "**", "~", "-", "in", "==")]
    done = 0
    tracemalloc.start()
    values = {"s": "a " * 10_000, "l": [1, [2]] * 400, "n": 10**9}
    for source in sources:
        template = made.from_string(f"{{{{ ({source}) is none }}}}")
        for pair in ("sn", "ln", "ss") if "w" in source.split("v", 1)[1] else ("s", "l", "n"):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            made.begin()
            try:
                template.render(v=values[pair[0]], w=values[pair[-1]])
                done += 1
            except Exception as error:
                assert not isinstance(error, MemoryError), source
            assert tracemalloc.get_traced_memory()[1] - before < 4 << 20, (source, pair)
    tracemalloc.stop()
    assert done > 100


class Clock:
    """The sandbox's clocks, which some of the steps of a render advance (calls of `charge`)."""

    def __init__(self, monkeypatch, jumps):
        self.now, self.jumps, self.steps = 0.0, jumps, 0
        charge = sandbox.Sandbox.charge

        def charged(box, **what):
            self.now += self.jumps.get(self.steps, 0.0)
            self.steps += 1
            charge(box, **what)

        clocks = SimpleNamespace(monotonic=self.read, thread_time=self.read)
        monkeypatch.setattr(sandbox, "time", clocks)
        monkeypatch.setattr(sandbox.Sandbox, "charge", charged)

    def read(self):
        return self.now


@pytest.mark.parametrize(
    "jumps, late",
    [({5: 60.0}, False), ({5: 60.0, 30: 60.0}, True), (dict.fromkeys(range(99), 0.02), True)],
)
def test_a_pause_of_the_whole_process_is_not_a_templates_time(monkeypatch, jumps, late):
    """Such as a collection of its garbage in the middle of a render."""
    clock = Clock(monkeypatch, jumps)
    template = ChatTemplate("{% for i in range(80) %}{{ i }}{% endfor %}")
    if late:
        with pytest.raises(TemplateError, match="more than 0.5 seconds of processor time"):
            template.render([])
    else:
        assert template.render([]) == "".join(map(str, range(80)))
        assert clock.steps > 40


def test_a_long_conversation_has_more_time(monkeypatch):
    """gpt-oss' template looks at all later messages for each call: after 200 of them it was over
    its time.
    """
    clock = Clock(monkeypatch, {5: 0.6, 30: 0.6})
    template = ChatTemplate("{% for i in range(80) %}{{ i }}{% endfor %}")
    text = "".join(map(str, range(80)))
    assert template.render([{"role": "user", "content": "x" * 200_000}]) == text
    clock.jumps, clock.steps = {5: 2.8, 30: 2.8}, 0
    with pytest.raises(TemplateError, match="more than 5.5 seconds of processor time"):
        template.render([{"role": "user", "content": "x" * 10_000_000}])  # but no more than this


def test_a_table_is_asked_for_a_key_whatever_it_holds():
    template = ChatTemplate(
        "{% for i in range(1000) %}{% if 'b' not in messages[0] and 'a' in messages[0] %}x"
        "{% endif %}{% endfor %}"
    )
    message = {"role": "user", "content": "", "a": [0] * 90_000}
    assert template.render([message]) == "x" * 1000
    listed = ChatTemplate("{% for i in range(2000) %}{{ 'b' in messages[0].a }}{% endfor %}")
    with pytest.raises(TemplateError, match="more than 500000 calls|processor time"):
        listed.render([message])


@pytest.mark.parametrize(
    "source",
    [
        "{% macro f(n) %}{{ '' if n == 0 else f(n - 1) }}x{% endmacro %}{{ f(DEPTH) }}",
        "{% for a in [DEPTH] recursive %}{{ loop([a - 1]) if a else '' }}x{% endfor %}",
    ],
)
def test_calls_inside_calls_are_bounded_before_the_stack_is(source):
    deepest = 64 - ("macro" in source)  # calls, the first one too
    fits = ChatTemplate(source.replace("DEPTH", str(deepest)))
    assert fits.render([]) == "x" * (deepest + 1)
    assert fits.render([]) == "x" * (deepest + 1)
    with pytest.raises(TemplateError, match="calls inside calls, more than 64 deep"):
        ChatTemplate(source.replace("DEPTH", str(deepest + 1))).render([])
