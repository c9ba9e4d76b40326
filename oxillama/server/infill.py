"""Fill-in-the-middle prompts: prefix, suffix and other files, written with the vocabulary's own
fill-in-the-middle tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from oxillama.server.errors import ApiError
from oxillama.server.models import FIM_KEYS, ServedModel

# (prefix, suffix, middle) as families write them, in order of preference
_FAMILIES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("<PRE>", "<SUF>", "<MID>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("<|prefix|>", "<|suffix|>", "<|middle|>"),
    ("[PREFIX]", "[SUFFIX]", "[MIDDLE]"),
)
_REPOSITORY = ("<|repo_name|>", "<reponame>", "<repo_name>")
_FILE = ("<|file_sep|>", "<file_sep>", "<filename>")


def fim_tokens(model: ServedModel) -> tuple[int, int, int] | None:
    """The ids of prefix, suffix and middle: those that the file names, otherwise those of the
    vocabulary; None if it has none.
    """
    named = tuple(model.metadata.get(key) for key in FIM_KEYS)
    if all(isinstance(token, int) for token in named):
        return named  # type: ignore[return-value]
    bridge = model.tokenizer()
    for family in _FAMILIES:
        found = tuple(bridge.token_to_id(text) for text in family)
        if all(token is not None for token in found):
            return found  # type: ignore[return-value]
    return None


def fim_words(tokens: Collection[str]) -> tuple[str, str, str] | None:
    """The tokens of prefix, suffix and middle of a vocabulary, None where it has none."""
    known = frozenset(tokens)
    return next((family for family in _FAMILIES if known.issuperset(family)), None)


def infill_ids(
    model: ServedModel,
    prefix: str,
    suffix: str,
    *,
    extra: Sequence[Mapping[str, Any]] = (),
    prompt: str = "",
    param: str = "input_suffix",
    special: bool = True,
) -> list[int]:
    """The prompt for the text between prefix and suffix. Control tokens spelled in them are text.
    `prompt` begins the middle. special: it has the token that begins a text, if the model has one.
    """
    found = fim_tokens(model)
    bridge = model.tokenizer()
    if found is None:
        raise ApiError(
            400,
            f"{param}: the vocabulary of {model.name} has no tokens to fill in the middle",
            param=param,
            code="infill_not_supported",
        )

    def text(value: str) -> list[int]:
        if not value:
            return []
        return bridge.encode(value, add_special=False, parse_special=False)

    before, after, middle = found
    ids = bridge.lead_ids if special else []
    if extra:
        ids += _files(bridge, extra, text)
    return [*ids, before, *text(prefix), after, *text(suffix), middle, *text(prompt)]


def _files(bridge: Any, extra: Sequence[Mapping[str, Any]], text: Any) -> list[int]:
    """Other files, each after its name, and after a separating token if the vocabulary has one."""
    ids: list[int] = []
    repository = next((t for t in map(bridge.token_to_id, _REPOSITORY) if t is not None), None)
    separator = next((t for t in map(bridge.token_to_id, _FILE) if t is not None), None)
    if repository is not None:
        ids += [repository, *text("repository\n")]
    for each in extra:
        if separator is not None:
            ids += [separator, *text(f"{each.get('filename') or 'file'}\n")]
        else:
            ids += text(f"\n\n--- {each.get('filename') or 'file'} ---\n\n")
        ids += text(each["text"])
    if separator is not None:
        ids += [separator, *text("filename\n")]
    return ids
