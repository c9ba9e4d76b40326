"""Chat templates by name, for files that bring none: each writes conversations as the models of its
family were trained on them.
"""

from __future__ import annotations

from oxillama.errors import ConfigError, TemplateError

_CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] | trim }}<|eot_id|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
# the system message stands before the first message of the user
_JOINED = (
    "{% if messages[0]['role'] == 'system' %}"
    "{% set system = messages[0]['content'] %}{% set turns = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}"
)
_ALTERNATE = (
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('messages must alternate between user and assistant') }}{% endif %}"
)
_LLAMA2 = (
    _JOINED + "{% for message in turns %}" + _ALTERNATE + "{% if message['role'] == 'user' %}"
    "{{ bos_token }}[INST] "
    "{% if loop.first and system %}<<SYS>>\n{{ system }}\n<</SYS>>\n\n{% endif %}"
    "{{ message['content'] | trim }} [/INST]"
    "{% else %} {{ message['content'] | trim }} {{ eos_token }}{% endif %}"
    "{% endfor %}"
)
_MISTRAL = (
    _JOINED + "{{ bos_token }}{% for message in turns %}" + _ALTERNATE + ""
    "{% if message['role'] == 'user' %}"
    "[INST] {% if loop.first and system %}{{ system }}\n\n{% endif %}"
    "{{ message['content'] }} [/INST]"
    "{% else %} {{ message['content'] | trim }}{{ eos_token }}{% endif %}"
    "{% endfor %}"
)
_GEMMA = (
    _JOINED + "{{ bos_token }}{% for message in turns %}" + _ALTERNATE + ""
    "<start_of_turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{% if loop.first and system %}{{ system }}\n\n{% endif %}"
    "{{ message['content'] | trim }}<end_of_turn>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_PHI3 = (
    "{% for message in messages %}"
    "<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
_ZEPHYR = (
    "{% for message in messages %}"
    "<|{{ message['role'] }}|>\n{{ message['content'] }}{{ eos_token }}\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
BUILTIN_TEMPLATES = {
    "chatml": _CHATML,
    "gemma": _GEMMA,
    "llama2": _LLAMA2,
    "llama3": _LLAMA3,
    "mistral": _MISTRAL,
    "phi3": _PHI3,
    "zephyr": _ZEPHYR,
}


def template_source(given: str) -> str:
    """The source of a template: of the built-in one that `given` names, else `given` itself.

    TemplateError for a text that is neither a name nor a template, ConfigError for what is no text.
    """
    if not isinstance(given, str):
        raise ConfigError(
            f"chat_template: found {type(given).__name__}, wanted the text or the name of a "
            "template"
        )
    if given in BUILTIN_TEMPLATES:
        return BUILTIN_TEMPLATES[given]
    if "{{" not in given and "{%" not in given:
        raise TemplateError(
            f"chat_template: found {given!r:.60}, wanted the text of a template or one of "
            f"{', '.join(BUILTIN_TEMPLATES)}"
        )
    return given
