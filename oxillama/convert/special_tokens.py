"""The keys of special tokens: what begins and ends texts and turns, and what is never drawn."""

from __future__ import annotations

from oxillama.convert.family import Family, Hyper
from oxillama.convert.folder import ModelFolder
from oxillama.convert.tokens import (
    CONTROL,
    SPECIAL,
    KeyValues,
    added_tokens,
    content_of,
    ggml,
    parts_of,
)
from oxillama.errors import ConvertError
from oxillama.tokenizer.vocabulary import CONTROL_END_NAMES, END_NAMES, begins_with_bos

_ENDS = ("eos", "eot", "eom")  # of a text, a turn and a message


def special_keys(
    folder: ModelFolder, family: Family, hyper: Hyper, settings: dict, ids: dict[str, int]
) -> KeyValues:
    """The special tokens that a folder's files name, by tokenizer.json first, and whether texts
    begin and end with them; ids: those of the vocabulary by text.
    """
    found: dict[str, int] = {}
    switches: dict[str, bool] = {}
    lead: list[int | None] = []
    tokenizer = folder.json("tokenizer.json")
    if tokenizer:
        label = f"{folder.path}/tokenizer.json"
        settings, switches = _processed(label, tokenizer, settings)
        added = added_tokens(label, tokenizer)
        for name, key in (*SPECIAL.items(), ("eot", "eot"), ("eom", "eom")):
            at, _ = added.get(content_of(settings.get(f"{name}_token")) or "", (len(ids), False))
            if at < len(ids):
                found[key] = at
        steps = parts_of(tokenizer.get("post_processor"), "processors")
        if any(one.get("type") == "TemplateProcessing" for one in steps):
            # that nothing is put after a text, where files mean otherwise if they do not say
            ends = {"WordPiece": "sep", "Unigram": "eos"}.get(str(_kind(tokenizer)))
            if ends and "add_eos_token" not in switches:
                switches.setdefault(f"add_{ends}_token", False)
        if "lead_tokens" in settings:
            lead = [added.get(text, (ids.get(text),))[0] for text in settings["lead_tokens"]]
            if None in lead:
                raise ConvertError(
                    f"{label}: post_processor: found {settings['lead_tokens']!r:.120} before a "
                    "text, wanted tokens of the vocabulary"
                )
        unknown = _unknown(label, tokenizer.get("model"), ids)
        if unknown is not None:
            found["unknown"] = unknown
    for name, key in SPECIAL.items():
        value = hyper.get(f"{name}_token_id")
        value = value[0] if isinstance(value, list) and value else value
        # none is also said by a negative number, or one beyond the vocabulary
        if key not in found and isinstance(value, int) and 0 <= value < len(ids):
            found[key] = value
    for name in ("bos", "eos", "sep"):
        value = settings.get(f"add_{name}_token")
        if isinstance(value, bool):
            switches.setdefault(f"add_{name}_token", value)
    for key, value in family.special(hyper, ids).items():
        if isinstance(value, bool):
            name = f"{key.removesuffix('?')}_token"
            switches[name] = switches.get(name, value) if key[-1] == "?" else value
        elif value < len(ids) and (key.removesuffix("?") not in found or key[-1] != "?"):
            found[key.removesuffix("?")] = value
    keys = ggml(**{f"{key}_token_id": (value, "uint32") for key, value in found.items()})
    if lead:
        keys |= ggml(lead_token_ids=(lead, "array[int32]"))
    return keys | ggml(**{key: (value, "bool") for key, value in switches.items()})


def beginning_keys(folder: ModelFolder, keys: KeyValues) -> KeyValues:
    """That texts do not begin with the first token, where a template of tokenizer.json puts none
    before them and a reader of the keys would. A folder without a template leaves it to the reader,
    as in llama.cpp's files.
    """
    tokenizer = folder.json("tokenizer.json")
    said = "tokenizer.ggml.add_bos_token" in keys or "tokenizer.ggml.bos_token_id" not in keys
    model, pre = (keys.get(f"tokenizer.ggml.{name}", ("",))[0] for name in ("model", "pre"))
    if not tokenizer or said or not begins_with_bos(model, pre):
        return {}
    steps = [one.get("type") for one in parts_of(tokenizer.get("post_processor"), "processors")]
    return ggml(add_bos_token=(False, "bool")) if "TemplateProcessing" in steps else {}


def end_keys(folder: ModelFolder, keys: KeyValues) -> KeyValues:
    """Tokens that end a text by generation_config.json and that neither the keys nor their names
    say: ends of a turn and of a message, as far as a file has none. ConvertError for more.
    """
    label = f"{folder.path / 'generation_config.json'}"
    said = folder.json("generation_config.json").get("eos_token_id")
    ends = said if isinstance(said, list) else [said]
    texts, kinds = keys["tokenizer.ggml.tokens"][0], keys["tokenizer.ggml.token_type"][0]
    named = {keys.get(f"tokenizer.ggml.{name}_token_id", (None,))[0] for name in _ENDS}
    left = []
    for at in ends:
        # none is also said by a negative number, or one beyond the vocabulary
        if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at < len(texts):
            continue
        known = END_NAMES if kinds[at] != CONTROL else CONTROL_END_NAMES
        if at not in named and texts[at] not in known and at not in left:
            left.append(at)
    free = [name for name in _ENDS if f"tokenizer.ggml.{name}_token_id" not in keys]
    if len(left) > len(free):
        raise ConvertError(
            f"{label}: eos_token_id: found {said!r:.80}, wanted at most {len(_ENDS)} that no name "
            f"tells: a file has no place for {texts[left[len(free)]]!r:.40}"
        )
    return ggml(
        **{f"{name}_token_id": (at, "uint32") for name, at in zip(free, left, strict=False)}
    )


def suppressed_keys(folder: ModelFolder) -> KeyValues:
    """The tokens that are never drawn, those of images and sound in Gemma 4 for example."""
    found = folder.json("generation_config.json").get("suppress_tokens")
    if not found:
        return {}
    if not isinstance(found, list) or not all(
        isinstance(one, int) and not isinstance(one, bool) and -(1 << 31) <= one < 1 << 31
        for one in found
    ):
        raise ConvertError(
            f"{folder.path / 'generation_config.json'}: suppress_tokens: found {found!r:.80}, "
            "wanted token ids"
        )
    return ggml(suppress_tokens=(found, "array[int32]"))


def _processed(label: str, tokenizer: dict, settings: dict) -> tuple[dict, dict[str, bool]]:
    """The settings with the special tokens that the post-processor puts around a text, and whether
    it does. A sentence's first token is its beginning, its last its end. ConvertError for tokens
    around a text that files have no place for.
    """
    settings = dict(settings)
    for name, stand_in in (("bos", "cls"), ("eos", "sep")):
        if not settings.get(f"{name}_token") and settings.get(f"{stand_in}_token"):
            settings[f"{name}_token"] = settings[f"{stand_in}_token"]
    switches: dict[str, bool] = {}
    for step in parts_of(tokenizer.get("post_processor"), "processors"):
        if step.get("type") == "ByteLevel":
            switches.setdefault("add_bos_token", False)
            switches.setdefault("add_eos_token", False)
        elif step.get("type") == "RobertaProcessing":
            switches |= {f"add_{name}_token": True for name in ("bos", "eos", "sep")}
            for name in ("cls", "sep"):
                pair = step.get(name)
                if isinstance(pair, list) and pair:
                    if not settings.get(f"{name}_token"):
                        settings[f"{name}_token"] = pair[0]
                    settings["bos_token" if name == "cls" else "eos_token"] = pair[0]
        elif step.get("type") == "BertProcessing":
            first, last = ({"SpecialToken": {"id": step[name][0]}} for name in ("cls", "sep"))
            single = [first, {"Sequence": {"id": "A"}}, last]
            pair = [*single, {"Sequence": {"id": "B"}}, last]
            _templated(label, {"single": single, "pair": pair}, settings, switches)
        elif step.get("type") == "TemplateProcessing":
            _templated(label, step, settings, switches)
    return settings, switches


def _kind(tokenizer: dict) -> object:
    model = tokenizer.get("model")
    return model.get("type") if isinstance(model, dict) else None


def _unknown(label: str, model: object, ids: dict[str, int]) -> int | None:
    """What stands for text that no token covers, as the model says: not what the settings call
    so.
    """
    if not isinstance(model, dict):
        return None
    if model.get("type") == "Unigram":
        at = model.get("unk_id")
        return at if isinstance(at, int) and 0 <= at < len(ids) else None
    if model.get("type") != "WordPiece" or "unk_token" not in model:
        return None
    if model["unk_token"] not in ids:
        raise ConvertError(
            f"{label}: model.unk_token: found {model['unk_token']!r:.40}, wanted a token"
        )
    return ids[model["unk_token"]]


def _check_beginning(label: str, first: str, settings: dict) -> None:
    """ConvertError for a token before texts that is not their beginning."""
    begins = [content_of(settings.get(f"{name}_token")) for name in ("bos", "cls")]
    if first not in begins:
        raise ConvertError(
            f"{label}: post_processor: found {first!r:.40} before a text, wanted bos_token or "
            f"cls_token of tokenizer_config.json ({begins[0]!r:.40}): a file has no place for "
            "another"
        )


def _templated(label: str, step: dict, settings: dict, switches: dict[str, bool]) -> None:
    """Add what a post-processor's template of one text and of a pair puts around and between
    them.
    """

    def named(part: object) -> str | None:
        special = part.get("SpecialToken") if isinstance(part, dict) else None
        return special.get("id") if isinstance(special, dict) else None

    single, pair = step.get("single") or [], step.get("pair") or []
    texts = [at for at, part in enumerate(single) if named(part) is None]
    if len(texts) != 1 or len(single) - texts[0] > 2:
        shown = [named(part) or "a text" for part in single]
        raise ConvertError(
            f"{label}: post_processor: found {shown!r:.120}, wanted a text with tokens before it "
            "and one after it at most: a file has no place for more"
        )
    lead = [named(part) for part in single[: texts[0]]]
    if len(lead) > 1:
        settings["lead_tokens"] = lead
    first = named(single[0])
    last = named(single[-1]) if len(single) > 1 else None
    begins = [content_of(settings.get(f"{name}_token")) for name in ("bos", "cls")]
    if first is not None:
        for name, text in zip(("bos", "cls"), begins, strict=True):
            if first not in begins and text is None:
                settings[f"{name}_token"] = first
        _check_beginning(label, first, settings)
        settings["bos_token"], switches["add_bos_token"] = first, True
    if last is not None:
        before = content_of(settings.get("eos_token"))
        if before is not None and before != last:
            settings["eot_token" if "eot_token" not in settings else "eom_token"] = before
        settings["eos_token"] = last
        switches["add_eos_token"] = True
    start = len(lead) if lead == [named(part) for part in pair[: len(lead)]] else 0
    stop = len(pair) - (1 if last is not None and pair and named(pair[-1]) == last else 0)
    between = [named(part) for part in pair[start:stop][1:-1]]
    if between:
        parts = [content_of(settings.get(f"{name}_token")) for name in ("sep", "eos")]
        # the one of a text that begins with it too is no separator
        alone = between[0] in parts and last is None and between[0] not in (None, first)
        switches["add_sep_token"] = alone or (len(between) == 2 and between[1] in parts)
        if switches["add_sep_token"] and parts[0] is None:
            settings["sep_token"] = between[0] if alone else between[1]
