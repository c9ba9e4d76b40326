"""The keys of a folder's chat templates."""

from __future__ import annotations

import re

from oxillama.convert.folder import ModelFolder
from oxillama.convert.tokens import KeyValues, text_of
from oxillama.errors import ConvertError


def template_keys(folder: ModelFolder, settings: dict) -> KeyValues:
    """The chat templates: of files of their own, as transformers takes them first, otherwise
    tokenizer_config.json's.
    """
    said = _template_files(folder) or settings.get("chat_template")
    if said is None:
        said = folder.json("chat_template.json").get("chat_template")
    listed = [{"name": "default", "template": said}] if isinstance(said, str) else said
    if listed is None:
        return {}
    if not isinstance(listed, list):
        raise ConvertError(
            f"{folder.path}: chat_template: found {said!r:.80}, wanted a text or a list of names "
            "and texts"
        )
    keys: KeyValues = {}
    names: list[str] = []
    for one in listed:
        name, text = (one.get("name"), one.get("template")) if isinstance(one, dict) else (0, 0)
        if not isinstance(name, str) or not isinstance(text, str):
            raise ConvertError(
                f"{folder.path}: chat_template: found {one!r:.80}, wanted a name and a template"
            )
        key = "tokenizer.chat_template"
        if name and name != "default":
            name = re.sub("[^a-zA-Z0-9]", "_", name)
            key = f"{key}.{name}"
            names.append(name)
        if not name:
            continue
        if key in keys:
            raise ConvertError(
                f"{folder.path}: chat_template: found two whose name is {name!r:.80} in a GGUF "
                "file, wanted one"
            )
        keys[key] = text, "string"
    if names:
        keys["tokenizer.chat_templates"] = names, "array[string]"
    return keys


def _template_files(folder: ModelFolder) -> list[object]:
    """chat_template.jinja with those of additional_chat_templates, which come first without it,
    too.
    """
    default = text_of(folder.path / "chat_template.jinja")
    listed: list[object] = [] if default is None else [{"name": "default", "template": default}]
    for more in sorted((folder.path / "additional_chat_templates").glob("*.jinja")):
        listed.append({"name": more.stem, "template": text_of(more)})
    return listed
