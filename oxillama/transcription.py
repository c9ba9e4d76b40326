"""Speech as text, by the form of prompt that a model was trained to transcribe with. Its vocabulary
tells which one: a token of the form is in no other. Models without such a form are asked in a chat.

- Qwen3-ASR (Qwen 2026, published code): words that may occur are the system's text; the reply is
  `language English<asr_text>...`, or begins so where the language is said.
- Voxtral (Liu et al. 2025, section 2.4; mistral-common): `lang:en` where it is said, then
  `[TRANSCRIBE]`, after the clip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oxillama.completion import Completion
from oxillama.errors import ConfigError, EngineError
from oxillama.media.messages import MediaPart
from oxillama.media.prompt import ImagePrompt
from oxillama.media_prompts import MediaPrompts
from oxillama.tokenizer import TokenizerBridge
from oxillama.tokenizer.provenance import from_message

_SAID = "<asr_text>"
_NAMES = {
    **{"ar": "Arabic", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek"},
    **{"en": "English", "es": "Spanish", "fa": "Persian", "fi": "Finnish", "fil": "Filipino"},
    **{"fr": "French", "hi": "Hindi", "hu": "Hungarian", "id": "Indonesian", "it": "Italian"},
    **{"ja": "Japanese", "ko": "Korean", "mk": "Macedonian", "ms": "Malay", "nl": "Dutch"},
    **{"pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sv": "Swedish"},
    **{"th": "Thai", "tr": "Turkish", "vi": "Vietnamese", "yue": "Cantonese", "zh": "Chinese"},
}


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was said. language: as the model or the caller named it, None for neither; completion:
    the model's whole reply.
    """

    text: str
    language: str | None
    completion: Completion


@dataclass(frozen=True, slots=True)
class Form:
    """A form of prompts: the texts before and after a clip, in which control tokens are recognised,
    given a language and words that may occur; how a reply is read, given the language.
    """

    name: str
    needed: str
    around: Callable[[str | None, str | None], tuple[list[str], list[str]]]
    read: Callable[[str, str | None], tuple[str, str | None]]


def _qwen3_around(language: str | None, prompt: str | None) -> tuple[list[str], list[str]]:
    name = None
    if language is not None:
        names = {each.lower(): each for each in _NAMES.values()}
        name = _NAMES.get(language.lower()) or names.get(language.lower())
        if name is None:
            raise ConfigError(
                f"language: found {language!r:.60}, wanted one of {', '.join(sorted(_NAMES))}"
            )
    system = ["<|im_start|>system\n", from_message(prompt or ""), "<|im_end|>\n"]
    begun = "" if name is None else f"language {name}{_SAID}"
    return (
        [*system, "<|im_start|>user\n"],
        ["<|im_end|>\n<|im_start|>assistant\n" + begun],
    )


def _qwen3_read(text: str, language: str | None) -> tuple[str, str | None]:
    before, said, after = text.partition(_SAID)
    if language is not None or not said:
        return text.strip(), language
    named = before.strip().removeprefix("language").strip()
    return after.strip(), None if named in ("", "None") else named


def _voxtral_around(language: str | None, prompt: str | None) -> tuple[list[str], list[str]]:
    if prompt:
        raise ConfigError("prompt: found one, wanted none: this model's form has no place for it")
    if language is not None and not (language.isascii() and language.isalpha()):
        raise ConfigError(f"language: found {language!r:.60}, wanted a code such as 'en'")
    named = [] if language is None else [from_message(f"lang:{language.lower()}")]
    return ["[INST]"], ["[/INST]", *named, "[TRANSCRIBE]"]


_FORMS = (
    Form("Qwen3-ASR", _SAID, _qwen3_around, _qwen3_read),
    Form("Voxtral", "[TRANSCRIBE]", _voxtral_around, lambda text, given: (text.strip(), given)),
)


def form_of(bridge: TokenizerBridge) -> Form:
    """The form of a vocabulary; EngineError for a model that has none."""
    for form in _FORMS:
        if bridge.token_to_id(form.needed) is not None:
            return form
    raise EngineError(
        "transcribe: this model has no form of prompt for it, wanted one of "
        f"{', '.join(form.name for form in _FORMS)}; others are asked in a chat"
    )


def transcription_prompt(
    prompts: MediaPrompts, audio: Any, *, language: str | None, prompt: str | None, name: str
) -> ImagePrompt:
    """The prompt that a clip is transcribed with. ConfigError for a language or words that the
    model's form has no place for, AudioError for the clip.
    """
    for what, value in (("language", language), ("prompt", prompt)):
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{what}: found {type(value).__name__}, wanted a text")
    before, after = form_of(prompts.bridge).around(language or None, prompt or None)
    part = MediaPart("audio", name, audio)
    prompts.check([part])
    bos = prompts.bridge.bos_id if prompts.bridge.add_bos else None
    begin: list[Any] = [] if bos is None else [[bos]]
    return prompts.compose([*begin, *before, prompts.encoded(part), *after])


def shown_tokens(bridge: TokenizerBridge) -> list[int]:
    """The tokens of a form that a reply shows, whatever the vocabulary says of them."""
    token = bridge.token_to_id(_SAID)
    return [] if token is None else [token]


def transcript(bridge: TokenizerBridge, language: str | None, completion: Completion) -> Transcript:
    """What a reply to such a prompt says."""
    text, named = form_of(bridge).read(completion.text, language or None)
    return Transcript(text, named, completion)
