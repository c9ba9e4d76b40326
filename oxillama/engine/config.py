"""`EngineConfig`: how a model is loaded and served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np

from oxillama._core.pool import KV_TYPES
from oxillama.arguments import (
    CONFIG_NAMES,
    as_written,
    is_one_of,
    named_fields,
    renamed,
    unknown,
    whole,
)
from oxillama.engine.scheduler import SchedulerConfig
from oxillama.errors import ConfigError
from oxillama.media.features import Kind
from oxillama.model.rope import RopeOverrides
from oxillama.sampling import DiffusionConfig, SamplerConfig
from oxillama.sampling.config import changed_fields
from oxillama.tokenizer import ChatTemplate
from oxillama.tokenizer.builtin_templates import template_source
from oxillama.weights.offload import Budget, OffloadPolicy, PinnedHotSet

# the values of `speculative` that name a way, before they name a draft; early_exit:n is one
WAYS = ("auto", "lookup", "mtp", "early_exit")
# of a machine, not of a conversation
_LOCAL = (
    *("model_path", "num_threads", "offload", "sidecar", "tokenizer_path"),
    *("mmproj", "image_fit", "image_folder", "max_images", "max_image_pixels"),
    *("max_audio_clips", "max_audio_seconds"),
)


class ConfigOptions(TypedDict, total=False):
    """The fields of `EngineConfig` without the model's path, and llama.cpp's names for them."""

    tokenizer_path: str | Path | None
    sidecar: str | Path | Literal[False]
    offload: OffloadPolicy
    mmproj: str | Path | Literal[False] | None
    image_fit: Literal["stretch", "pad"] | None
    image_folder: str | Path | None
    chat_template: str | None
    max_images: int
    max_image_pixels: int
    max_audio_clips: int
    max_audio_seconds: int
    context_size: int | None
    num_threads: int | None
    sampler: SamplerConfig | None
    prefill_chunk_size: int | None
    kv_type: str | None
    page_size: int
    max_pages: int | None
    scheduler: SchedulerConfig | None
    prefix_cache: bool
    prefix_min_tokens: int
    prefix_max_entries: int
    prefix_max_bytes: int
    speculative: str | Path | bool | None
    diffusion: DiffusionConfig | None
    rope_freq_base: float | None
    rope_freq_scale: float | None
    rope_scaling: Literal["none", "linear", "yarn"] | None
    yarn_orig_ctx: int | None
    yarn_ext_factor: float | None
    yarn_attn_factor: float | None
    yarn_beta_fast: float | None
    yarn_beta_slow: float | None
    n_ctx: int | None
    num_ctx: int | None
    n_threads: int | None
    num_thread: int | None


@named_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How a model is loaded and served. The fields are also keyword arguments of `load`.

    The model:

    - `model_path`: a GGUF file (any part of a split set), None for the embedded model.
    - `tokenizer_path`: a tokenizer.json that replaces the file's vocabulary.
    - `chat_template`: replaces the file's own template: Jinja text, or the name of a built-in
      template ("chatml", "llama3", ...; `tokenizer.builtin_templates`).
    - `sampler`: for requests without one, None for `SamplerConfig()` with the file's
      `general.sampling.*` keys (`recommended`).
    - `rope_freq_base` to `yarn_beta_slow`: override the file's RoPE parameters
      (`model.rope.RopeOverrides`, docs/loading.md); None keeps the file's.

    Images and audio (docs/images.md, docs/audio.md):

    - `mmproj`: the encoder of images, of audio or of both: its GGUF file, or the Hugging Face
      folder of a model, or a name on the hub. None for the model's own, which is loaded when the
      first image or clip comes: that of the folder that it is converted from, or the mmproj file
      beside it on the hub, in LM Studio's or in Ollama's store; any other GGUF file has none. False
      for none.
    - `image_fit`: "stretch" or "pad" instead of the model family's own way to fit an image.
    - `image_folder`: where messages may name image files, None for nowhere.
    - `max_images`: per prompt; `max_image_pixels`: per image.
    - `max_audio_clips`: per prompt; `max_audio_seconds`: per clip.

    Threads and memory:

    - `num_threads`: None for the cores this process may use.
    - `context_size`: the largest number of tokens of a session, None for the model's own. Memory
      is taken only as it is used.
    - `kv_type`: the type of stored keys and values: "f16", "f32", "q8_0" or "q4_0" (about half and
      a quarter of f16; head sizes must be multiples of 32). None is f16, in an encoder f32.
    - `max_pages`: the number of pages, of `page_size` tokens each; None for as many as memory
      allows.
    - `offload`: the memory that weights may take, a `Budget` or `PinnedHotSet`; None keeps all
      weights in memory (docs/offload.md).
    - `sidecar`: where packed weights are stored on disk for later loads and other processes: False
      for nowhere, "auto" for the cache folder (models of 256 MiB and more), or a folder
      (docs/loading.md).

    Requests:

    - `scheduler`: the limits of a step and of the queue, None for `SchedulerConfig()`.
    - `prefill_chunk_size`: most prompt tokens of a step, None for the scheduler's `prefill_chunk`.
    - `prefix_cache`: keep evaluated pages, within `prefix_max_entries` and `prefix_max_bytes`, for
      prompts with the same beginning of at least `prefix_min_tokens` tokens.
    - `speculative`: how requests speculate that do not say it themselves (docs/speculative.md).
      "auto": while a request decodes alone, lookups and the model's own layers that predict further
      tokens; with a constraint the text that it forces. None: forced text only. False: nothing. The
      name of a draft model as in `load`, and the other values of the option of `generate`.
    - `diffusion`: how a model that fills in masks answers requests that do not say it themselves
      (docs/diffusion.md), None for `DiffusionConfig()`.
    """

    model_path: str | Path | None = None
    tokenizer_path: str | Path | None = None
    sidecar: str | Path | Literal[False] = False
    mmproj: str | Path | Literal[False] | None = None
    image_fit: Literal["stretch", "pad"] | None = None
    image_folder: str | Path | None = None
    max_images: int = 32
    max_image_pixels: int = 1 << 25
    max_audio_clips: int = 32
    max_audio_seconds: int = 1800
    chat_template: str | None = None
    offload: OffloadPolicy = None
    context_size: int | None = None
    num_threads: int | None = None
    sampler: SamplerConfig | None = None
    prefill_chunk_size: int | None = None
    kv_type: str | None = None
    page_size: int = 16
    max_pages: int | None = None
    scheduler: SchedulerConfig | None = None
    prefix_cache: bool = True
    prefix_min_tokens: int = 4
    prefix_max_entries: int = 256
    prefix_max_bytes: int = 512 << 20
    speculative: str | Path | bool | None = "auto"
    diffusion: DiffusionConfig | None = None
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None
    rope_scaling: Literal["none", "linear", "yarn"] | None = None
    yarn_orig_ctx: int | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_fast: float | None = None
    yarn_beta_slow: float | None = None

    def __post_init__(self) -> None:
        for name in ("context_size", "num_threads", "prefill_chunk_size", "max_pages"):
            value = getattr(self, name)
            if value is None:
                continue
            value = whole(name, value, 1)
            if value >= 1 << 31:
                raise ConfigError(f"{name}: found {value}, wanted less than 2^31")
            object.__setattr__(self, name, value)
        for name, least in (
            ("page_size", 16),
            ("prefix_min_tokens", 1),
            ("prefix_max_entries", 0),
            ("prefix_max_bytes", 0),
            ("max_images", 0),
            ("max_image_pixels", 1),
            ("max_audio_clips", 0),
            ("max_audio_seconds", 1),
        ):
            object.__setattr__(self, name, whole(name, getattr(self, name), least))
        self._check_names()
        self._check_objects()
        self.scheduling()
        for name, value in self.rope().given().items():
            # 10000 is 10000.0: equal configs are saved as equal bytes
            object.__setattr__(self, name, value)

    def _check_names(self) -> None:
        """ConfigError for a file, a folder or a word that cannot be meant."""
        drafts = self.speculative
        named = isinstance(drafts, (str, Path)) and str(drafts) != ""
        if not (named or drafts is None or isinstance(drafts, bool)):
            raise ConfigError(
                f"speculative: found {drafts!r}, wanted {', '.join(map(repr, WAYS))}, the name of "
                "a draft model as in `load`, None or False"
            )
        model = self.model_path
        empty = isinstance(model, str) and not model
        if empty or isinstance(model, (bool, int, float, dict)):
            raise ConfigError(
                f"model_path: found {model!r:.60}, wanted a path, or None for the embedded model"
            )
        for name in ("tokenizer_path", "mmproj", "image_folder"):
            path = getattr(self, name)
            if name == "mmproj" and path is False:
                continue
            if path is not None and not (isinstance(path, (str, Path)) and str(path)):
                raise ConfigError(f"{name}: found {path!r}, wanted a path")
        if not is_one_of(self.image_fit, (None, "stretch", "pad")):
            raise ConfigError(
                f"image_fit: found {self.image_fit!r}, wanted 'stretch', 'pad' or None"
            )
        for name in ("image_fit", "image_folder"):
            if getattr(self, name) is not None and not self.mmproj:
                raise ConfigError(
                    f"{name}: found {str(getattr(self, name))!r} without mmproj, which encodes "
                    "images"
                )
        if self.kv_type is not None and (
            not isinstance(self.kv_type, str) or self.kv_type not in KV_TYPES
        ):
            raise ConfigError(
                f"kv_type: found {self.kv_type!r}, wanted one of {', '.join(KV_TYPES)} or None"
            )
        if self.sidecar is not False and (
            isinstance(self.sidecar, bool)
            or not isinstance(self.sidecar, (str, Path))
            or not str(self.sidecar)
        ):
            raise ConfigError(f"sidecar: found {self.sidecar!r}, wanted 'auto', a folder or False")
        if self.chat_template is not None:
            ChatTemplate(template_source(self.chat_template)).compiled()  # or what is wrong with it

    def _check_objects(self) -> None:
        """ConfigError for a value that is no object of its kind."""
        if not isinstance(self.prefix_cache, bool):
            raise ConfigError(f"prefix_cache: found {self.prefix_cache!r}, wanted True or False")
        if self.offload is not None and not isinstance(self.offload, (Budget, PinnedHotSet)):
            raise ConfigError(
                f"offload: found {self.offload!r}, wanted a Budget, a PinnedHotSet or None"
            )
        if self.sampler is not None and not isinstance(self.sampler, SamplerConfig):
            raise ConfigError(
                f"sampler: found {type(self.sampler).__name__}, wanted a SamplerConfig"
            )
        if self.diffusion is not None and not isinstance(self.diffusion, DiffusionConfig):
            raise ConfigError(
                f"diffusion: found {type(self.diffusion).__name__}, wanted a DiffusionConfig"
            )
        if self.scheduler is not None and not isinstance(self.scheduler, SchedulerConfig):
            raise ConfigError(
                f"scheduler: found {type(self.scheduler).__name__}, wanted a SchedulerConfig"
            )

    def __repr__(self) -> str:
        """The fields that are not at their defaults."""
        return changed_fields(self)

    @classmethod
    def of(cls, given: Mapping[str, Any], *, function: str) -> EngineConfig:
        """A config from keyword arguments as `named` takes them."""
        if not isinstance(given, Mapping):
            raise ConfigError(f"{function}: found {type(given).__name__}, wanted fields by name")
        with as_written(given, CONFIG_NAMES):
            return cls(**cls.named(given, place=f"an argument of {function}"))

    @classmethod
    def named(cls, given: Mapping[str, Any], *, place: str) -> dict[str, Any]:
        """Fields from keyword arguments under our names or llama.cpp's (n_ctx, n_threads).
        ConfigError for an unknown name, which is not `place`.

        As in llama.cpp, n_ctx=0 means the model's own context, and n_threads=-1 or 0 all cores.
        """
        as_there = {**given}
        for name in CONFIG_NAMES:
            automatic = (0,) if CONFIG_NAMES[name] == "context_size" else (0, -1)
            value = given.get(name)
            if isinstance(value, (int, np.integer)) and value in automatic:
                as_there[name] = None
        own, known = renamed(as_there, CONFIG_NAMES), {field.name for field in fields(cls)}
        for name in own:
            if name not in known:
                raise unknown(name, known | set(CONFIG_NAMES), place=place)
        return own

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values, except those of this machine: paths, threads, memory,
        sidecars.
        """
        found = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in _LOCAL
        }
        drafts = self.speculative
        if isinstance(drafts, Path) or isinstance(drafts, str) and not names_way(drafts):
            del found["speculative"]  # a path
        return {
            **found,
            "sampler": None if self.sampler is None else self.sampler.to_dict(),
            "scheduler": None if self.scheduler is None else asdict(self.scheduler),
            "diffusion": None if self.diffusion is None else asdict(self.diffusion),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EngineConfig:
        """A config from the result of `to_dict()`; ConfigError if it is malformed."""
        known = {field.name for field in fields(cls)} - set(_LOCAL)
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"EngineConfig: found {type(values).__name__}, wanted a mapping of fields"
            )
        for name in values:
            if name not in known:
                raise unknown(name, known, place="a field of a saved EngineConfig")
        given = dict(values)
        try:
            if isinstance(given.get("sampler"), Mapping):
                given["sampler"] = SamplerConfig.from_dict(given["sampler"])
            if isinstance(given.get("scheduler"), Mapping):
                given["scheduler"] = SchedulerConfig(**given["scheduler"])
            if isinstance(given.get("diffusion"), Mapping):
                given["diffusion"] = DiffusionConfig(**given["diffusion"])
            return cls(**given)
        except TypeError as error:
            raise ConfigError(f"EngineConfig: {error}") from None

    @property
    def most_media(self) -> dict[Kind, int]:
        """The most images and clips of audio of a prompt."""
        return {"image": self.max_images, "audio": self.max_audio_clips}

    def rope(self) -> RopeOverrides:
        """The rope overrides."""
        return RopeOverrides(
            **{field.name: getattr(self, field.name) for field in fields(RopeOverrides)}
        )

    def prefix(self) -> dict[str, Any] | None:
        """The limits of the prefix cache, None without one."""
        limits = dict(
            min_prefix_len=self.prefix_min_tokens,
            max_entries=self.prefix_max_entries,
            max_memory_bytes=self.prefix_max_bytes,
        )
        return limits if self.prefix_cache else None

    def scheduling(self) -> SchedulerConfig:
        """The scheduler's config, with `prefill_chunk_size` if it is set."""
        chunk = self.prefill_chunk_size
        if chunk is None:
            return self.scheduler or SchedulerConfig()
        if self.scheduler is None:
            return SchedulerConfig(
                prefill_chunk=chunk, max_batch_tokens=max(SchedulerConfig().max_batch_tokens, chunk)
            )
        if chunk > self.scheduler.max_batch_tokens:
            raise ConfigError(
                f"prefill_chunk_size: found {chunk}, the scheduler's max_batch_tokens is "
                f"{self.scheduler.max_batch_tokens}"
            )
        return replace(self.scheduler, prefill_chunk=chunk)


def names_way(asked: str) -> bool:
    """Whether a value of `speculative` names a way to speculate, not a draft model."""
    return asked.partition(":")[0] in WAYS
