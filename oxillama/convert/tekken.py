"""Mistral's vocabulary in `tekken.json`: byte strings by rank, behind the special tokens.

Folders that have it alone (Voxtral, Mistral Small) are published without a chat template, as their
prompts are made by another program: the plain form of the version goes into the file.
"""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from oxillama.convert.folder import ModelFolder
from oxillama.convert.token_lines import merges_of, spelled
from oxillama.convert.tokens import CONTROL, NORMAL, UNUSED, KeyValues, ggml
from oxillama.errors import ConvertError
from oxillama.tokenizer.splits import SPLITS

TEKKEN = "tekken.json"
# of files that list none, up to version 7
_SPECIAL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)
_NAMED = {"<unk>": "unknown", "<s>": "bos", "</s>": "eos", "<pad>": "padding"}
# conversations of text, images and audio: without tools
_SYSTEM_FIRST = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}"
    "[SYSTEM_PROMPT]{{ message['content'] }}[/SYSTEM_PROMPT]"
    "{% elif message['role'] == 'user' %}[INST]{{ message['content'] }}[/INST]"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] }}{{ eos_token }}"
    "{% else %}{{ raise_exception('role: found ' ~ message['role'] ~ ', wanted system, user or "
    "assistant') }}{% endif %}{% endfor %}"
)
# the system's message stands in the last one of the user
_SYSTEM_LAST = (
    "{% if messages[0]['role'] == 'system' %}"
    "{% set system = messages[0]['content'] ~ '\n\n' %}{% set turns = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}"
    "{{ bos_token }}{% for message in turns %}{% if message['role'] == 'user' %}"
    "[INST]{% if loop.last %}{{ system }}{% endif %}{{ message['content'] }}[/INST]"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] }}{{ eos_token }}"
    "{% else %}{{ raise_exception('role: found ' ~ message['role'] ~ ', wanted user or "
    "assistant') }}{% endif %}{% endfor %}"
)
_TEMPLATES = {"v3": _SYSTEM_LAST, **dict.fromkeys(("v7", "v11", "v13"), _SYSTEM_FIRST)}


def tekken_keys(folder: ModelFolder, size: int) -> tuple[KeyValues, dict[str, int]]:
    """(the keys of a vocabulary of `size` tokens, its ids by text)."""
    path = folder.path / TEKKEN
    held = folder.json(TEKKEN)
    config = held.get("config")
    if not isinstance(config, dict):
        raise ConvertError(f"{path}: config: found {config!r:.80}, wanted an object")
    count, controls = (
        _integer(folder, config, name)
        for name in ("default_vocab_size", "default_num_special_tokens")
    )
    special = _special_tokens(folder, held.get("special_tokens"), controls)
    listed = held.get("vocab")
    if not isinstance(listed, list) or len(listed) < count - controls or count < controls:
        raise ConvertError(
            f"{path}: vocab: found {len(listed) if isinstance(listed, list) else listed!r:.80}, "
            f"wanted at least the {count - controls} tokens of default_vocab_size"
        )
    if count > size:
        raise ConvertError(f"{path}: {count} tokens, config.json says {size}")
    ordered = _tokens(folder, listed[: count - controls])
    texts = [*special, *map(spelled, ordered)]
    kinds = [CONTROL] * controls + [NORMAL] * len(ordered) + [UNUSED] * (size - count)
    texts += [f"[PAD{at}]" for at in range(count, size)]
    pattern = config.get("pattern")
    pre = next((name for name, split in SPLITS.items() if split == (pattern,)), None)
    if pre is None:
        raise ConvertError(f"{path}: config: pattern: no known split: {pattern!r:.300}")
    keys = ggml(
        model=("gpt2", "string"),
        pre=(pre, "string"),
        tokens=(texts, "array[string]"),
        token_type=(kinds, "array[int32]"),
        merges=(merges_of(path, ordered), "array[string]"),
        add_bos_token=(True, "bool"),
        add_eos_token=(False, "bool"),
        **{
            f"{name}_token_id": (special.index(text), "uint32")
            for text, name in _NAMED.items()
            if text in special
        },
    )
    return keys, {text: at for at, text in enumerate(texts)}


def tekken_template(folder: ModelFolder) -> KeyValues:
    """The chat template of the version of the file; ConvertError for an unknown one."""
    config = folder.json(TEKKEN).get("config")
    version = config.get("version") if isinstance(config, dict) else None
    if version not in _TEMPLATES:
        raise ConvertError(
            f"{folder.path / TEKKEN}: config: version: found {version!r:.40}, wanted one of "
            f"{', '.join(_TEMPLATES)}, or a chat_template.jinja beside the file"
        )
    return {"tokenizer.chat_template": (_TEMPLATES[version], "string")}


def _integer(folder: ModelFolder, config: dict, name: str) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 24:
        raise ConvertError(
            f"{folder.path / TEKKEN}: config: {name}: found {value!r:.40}, wanted a number of "
            "tokens"
        )
    return value


def _special_tokens(folder: ModelFolder, listed: Any, count: int) -> list[str]:
    """The texts of the special tokens; those that the file does not list have numbers."""
    texts = dict(enumerate(_SPECIAL))
    if listed is not None:
        texts = {}
        for one in listed if isinstance(listed, list) else [listed]:
            at, text = (one.get("rank"), one.get("token_str")) if isinstance(one, dict) else (0, 0)
            if isinstance(at, bool) or not isinstance(at, int) or not isinstance(text, str):
                raise ConvertError(
                    f"{folder.path / TEKKEN}: special_tokens: found {one!r:.80}, wanted a rank and "
                    "a text"
                )
            texts[at] = text
    made = [texts.get(at, f"<SPECIAL_{at}>") for at in range(count)]
    if max(texts, default=0) >= count or len(set(made)) < count:
        raise ConvertError(
            f"{folder.path / TEKKEN}: special_tokens: found {len(texts)}, wanted texts for ranks "
            f"below {count}, each another"
        )
    return made


def _tokens(folder: ModelFolder, listed: list) -> list[bytes]:
    """The byte strings in the order of their ranks."""
    made = []
    for rank, one in enumerate(listed):
        try:
            if one["rank"] != rank:
                raise ValueError
            made.append(b64decode(one["token_bytes"], validate=True))
        except (KeyError, TypeError, ValueError):
            raise ConvertError(
                f"{folder.path / TEKKEN}: vocab: found {one!r:.80} in place {rank}, wanted that "
                "rank and bytes in base64"
            ) from None
    return made
