"""Formats are told by a chat template's source."""

import pytest

from oxillama.toolcalls import detect_format
from oxillama.toolcalls.formats import FORMATS, SIGNS, taught_format

KNOWN = {
    "Qwen-Qwen2.5-7B-Instruct": "qwen",
    "Qwen-Qwen3-0.6B": "qwen",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "command-r",
    "google-gemma-2-2b-it": None,
    "microsoft-Phi-3.5-mini-instruct": None,
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek",
    "openai-gpt-oss-120b": "harmony",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
}


@pytest.mark.parametrize("name", KNOWN)
def test_templates_of_published_models_tell_their_format(cases, name):
    found = detect_format((cases / "chat_templates" / f"{name}.jinja").read_text())
    assert (found.name if found else None) == KNOWN[name]


@pytest.mark.parametrize(
    "source, name",
    [
        ("{{ '[TOOL_CALLS]' + name + '[ARGS]' }}", "mistral-args"),
        ("use [func_name1(params_name1=1)]", "pythonic"),
        ("{{ '<|tool_call|>' }}", "granite"),
        ("{{ '<｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' + arguments }}", "deepseek-3.1"),
        ("reply <function=example_name>{...}</function>", "function-tag"),
        ("<tool_call>\n<function=name>\n<parameter=a>", "qwen-coder"),
        ("<function=name>\n<parameter=a>", None),
        ("<tool_call>name\n<arg_key>a</arg_key>", "glm"),
        ('<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">', "minimax-m2"),
        (']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">', "minimax-m3"),
        ("<seed:tool_call>\n<function=f>\n<parameter=a>", "seed-oss"),
        ("<|im_system|>tool_declare<|im_middle|>", "kimi-k2"),
        ("within <tool_call></tool_call> tags: <tool_calls>[{}]</tool_calls>", "apriel"),
        ("use <TOOLCALL>[{}]</TOOLCALL>", "nemotron"),
        ("{{ messages }}", None),
        ("{% set d = '｜DSML｜' %}{{ '</' + d + 'function_calls>' }}", "dsml"),
        ("{% set d = '｜DSML｜' %}{{ '</' + d + 'tool_calls>' }}", "dsml-4"),
        ("{% set d = '｜DSML｜' %}{{ '</' + d + 'other>' }}", None),
        ("{% set s = ':opensource' %}{{ '<tool_sep{}>'.format(s) }}", "hy3"),
        ("{{ '<tool_sep{}>'.format(suffix) }}", None),
        ('<function name="f"><param name="k">v</param></function>', "minicpm5"),
        ('<param name="k">v</param>', None),
        ("{{ '<|im_start|>system\nList of tools: [' }}", "lfm2"),
        ("{{ 'List of tools: <|tool_list_start|>[' }}", None),
        ("{{ '<|tool_call_start|>[' }}", "lfm2"),
        ("{{ '<|tool_call>call:' + name + '{' }}", "gemma4"),
        ("{{ '<|tools_prefix|>' }}", "apertus"),
        ("{{ role + '<|role_sep|>' + text + '<|message_sep|><|function_call|>' }}", "gigachat"),
        ("{{ 'function call<|role_sep|>' + text + '<|message_sep|>' }}", "gigachat-3"),
        ("{{ '<|role_sep|>' + text + '<|message_sep|>' }}", None),
        ("{{ '<|tool_calls|>' + name + '<|tool_call:args|>' }}", "solar"),
        ("{{ 'in <tool_calls></tool_calls>:\\n<tool_calls>\\n{\"name\": <name>}' }}", "minimax-m1"),
        ("<|open|>call tool=<|sep|>", None),
        ("<atem:function_calls><atem:invoke name='f'>", None),
        (">>>name", None),
    ],
)
def test_small_templates_tell_their_format(source, name):
    found = detect_format(source)
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        (
            '<tool_calls>[{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson '
            "}}}]</tool_calls>",
            "apriel",
        ),
        (
            '<tool_call>{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson '
            "}}}</tool_call>",
            "qwen",
        ),
        (
            "<tool_call>{{ c.name }}{% for k, v in c.arguments | items %}<arg_key>{{ k }}</arg_key>"
            "<arg_value>{{ v }}</arg_value>{% endfor %}</tool_call>",
            "glm",
        ),
        (
            '<unheard>{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}</unheard>',
            None,
        ),
        ("<tool_call>{{ c.name }}: {{ c.arguments | tojson }}</tool_call>", None),
    ],
)
def test_what_a_template_writes_for_a_call_counts_whatever_it_speaks_of(spelled, name):
    source = (
        "{# <tool_call> #}{% for m in messages %}{% if m.tool_calls %}{% set c = "
        "m.tool_calls[0].function %}"
        "<|im_start|>assistant\n" + spelled + "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% endif %}<|im_end|>\n{% endfor %}"
    )
    found = detect_format(source)
    assert (found.name if found else None) == name


def test_every_format_has_signs_and_no_line_of_them_hides_another():
    assert {each.name for each, _ in SIGNS if each} == set(FORMATS)
    for kind, signs in SIGNS:
        if all(isinstance(sign, str) for sign in signs):
            assert taught_format("\n".join(signs)) is kind, signs
