"""From a config and a file to what serves it: the model, its vocabulary, and the core of an engine
over both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any

from blake3 import blake3

from oxillama._core.tape import Batch, CancelFlag
from oxillama.arguments import check_progress
from oxillama.audio import AudioLimits, Hearing
from oxillama.engine.config import EngineConfig
from oxillama.engine.engine import EngineCore
from oxillama.engine.generation import SharedVocabulary
from oxillama.errors import (
    ConfigError,
    ContextWarning,
    ModelError,
    TokenizerError,
    starting_thread,
    warn,
)
from oxillama.gguf import GgufReader
from oxillama.lora.stack import LoraStack
from oxillama.media.features import Kind
from oxillama.media_prompts import Media
from oxillama.model.encoder_decoder import SourcedProgram, sourced_batch
from oxillama.model.load import Model, load_model
from oxillama.model.media_encoder import Medium, encoder_kind, media_of_file, recorders
from oxillama.recommended import recommended_sampler
from oxillama.sampling import SamplerConfig
from oxillama.snapshot.session import Snapshots
from oxillama.speculative.drafts import DraftModels, Locates, prepared
from oxillama.speculative.planner import Planner
from oxillama.speculative.registry import DrafterRegistry
from oxillama.stores import located_draft, located_encoder, own_encoder
from oxillama.stores.converted import is_model_folder
from oxillama.tokenizer import TokenizerBridge
from oxillama.toolcalls import restore_state
from oxillama.vision import ImageLimits, Vision

Progress = Callable[[int, int], None]


class LazyMedia:
    """The encoders of a model, which are opened when they are first asked for; safe to call from
    any thread. kinds: what they encode.
    """

    __slots__ = ("_lock", "_open", "_opened", "kinds")

    def __init__(self, open: Callable[[], Media], kinds: Iterable[Kind]) -> None:
        self._open, self._lock, self.kinds = open, Lock(), frozenset(kinds)
        self._opened: Media | None = None

    def __call__(self) -> Media:
        """The encoders. Whatever opening it raises; a later call tries again."""
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            return self._opened


@dataclass(frozen=True, slots=True)
class Opened:
    """A loaded model with what serves it; vocabulary is None for a file without one."""

    model: Model
    core: EngineCore
    vocabulary: SharedVocabulary | None
    loras: LoraStack
    recommended: SamplerConfig | None = None  # the sampler that the file recommends
    media: LazyMedia | None = None  # the encoders of images and audio, if there are any

    def close(self, *, keep: bool = True) -> None:
        """Stop all work, and end the packing and writing of the model's weights: finish what is
        left to write, or (keep=False) abandon it.
        """
        self.core.close()
        self.loras.close()
        self.model.end(keep=keep)


def open_model(
    config: EngineConfig,
    source: Any,
    *,
    tokenizer_json: str | bytes | None = None,
    progress: Progress | None = None,
) -> Opened:
    """Load the GGUF file at a path or in bytes, as the config says. `progress(done, total)` is
    called with the bytes of weights prepared.
    """
    check_progress(progress)
    if tokenizer_json is not None and config.tokenizer_path is not None:
        raise ConfigError(
            f"tokenizer_json: found together with tokenizer_path {str(config.tokenizer_path)!r}, "
            f"wanted one vocabulary"
        )
    if tokenizer_json is not None and not isinstance(
        tokenizer_json, (str, bytes, bytearray, memoryview)
    ):
        raise ConfigError(
            f"tokenizer_json: found {type(tokenizer_json).__name__}, wanted the text or bytes of a "
            "tokenizer.json"
        )
    scheduler = config.scheduling()
    reader = GgufReader(source)
    locate = cache(located_draft)  # what a name stands for is looked up once
    joined, extracts, speculative = prepared(config.speculative, reader, locate)
    # a sampler in the config replaces the recommended one
    recommended = None if config.sampler is not None else recommended_sampler(reader.metadata)
    with ThreadPoolExecutor(1) as other:  # the vocabulary is read while workers pack weights
        notes: list[str] = []
        with starting_thread():
            reading = other.submit(
                _bridge, reader, config.tokenizer_path, tokenizer_json, notes.append
            )
        model = load_model(
            joined,
            num_threads=config.num_threads or 0,
            max_rows=scheduler.max_batch_tokens,
            progress=progress,
            sidecar=config.sidecar,
            rope=config.rope(),
            offload=config.offload,
            predict=config.speculative not in (False, None),
            extracts=extracts,
        )
        try:
            media = media_for(config, model, source)
            bridge = reading.result()
            joined.check()  # the vocabulary was read of it, and what is packed by now
            for text in notes:
                warn(text)
            opened = _serving(config, reader, model, bridge, tokenizer_json, speculative, locate)
            return replace(opened, recommended=recommended, media=media)
        except BaseException:
            # background threads hold the weights, which nothing will use
            model.end(keep=False)
            raise


def media_for(config: EngineConfig, model: Model, source: Any) -> LazyMedia | None:
    """The encoders of the config's mmproj, opened; without one the model's own
    (`stores.own_encoder`), which are opened for the first image or clip, and those of a Hugging
    Face folder converted then. None for a model without either. ModelError if an encoder was made
    for another model.
    """
    if config.mmproj is False:
        return None
    if config.mmproj is not None:
        opened = _opened_media(config, model, config.mmproj)
        return LazyMedia(lambda: opened, _kinds_of(opened))
    own = own_encoder(source) if model.config.causal else None
    if own is None:
        return None
    kinds = encoded_by(own)
    return LazyMedia(partial(_opened_media, config, model, own), kinds) if kinds else None


def _kinds_of(media: Media) -> Iterator[Kind]:
    """What opened encoders encode."""
    if media.vision is not None:
        yield "image"
    if media.hearing is not None:
        yield "audio"


_KINDS: dict[Medium, Kind] = {"vision": "image", "audio": "audio"}


def encoded_by(encoder: str | Path) -> tuple[Kind, ...]:
    """What the encoders of an mmproj file encode, as far as they are of kinds that run."""
    if is_model_folder(encoder):
        from oxillama.convert import encoded_media

        return tuple(_KINDS[medium] for medium in encoded_media(encoder))
    if not Path(encoder).is_file():
        return ("image",)  # a name of the hub, or a folder that files are chosen from
    with GgufReader(encoder) as reader:
        found = reader.metadata
        return tuple(
            _KINDS[medium]
            for medium in media_of_file(found)
            if medium == "vision" or encoder_kind(found, medium) in recorders(medium)
        )


def _opened_media(config: EngineConfig, model: Model, encoder: str | Path) -> Media:
    """The encoders that a name stands for."""
    folder = None if config.image_folder is None else Path(config.image_folder)
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"image_folder: found {str(folder)!r}, which is not a folder")
    known = model.config
    if not known.causal:
        raise ModelError(
            f"mmproj: {known.architecture} is an encoder of texts, wanted a model of text"
        )
    path = located_encoder(encoder)
    threads = config.num_threads or 0
    reader = GgufReader(path)
    media = media_of_file(reader.metadata)
    vision = hearing = None
    unheard = ""
    if "audio" not in media or "vision" in media:
        vision = Vision(
            reader,
            num_threads=threads,
            limits=ImageLimits(max_pixels=config.max_image_pixels, folder=folder),
            fit=config.image_fit,
        )
        _check_fits(model, path, vision, vision.axes)
    if "audio" in media:
        kind, known_kinds = encoder_kind(reader.metadata, "audio"), recorders("audio")
        if vision is None or kind in known_kinds:
            limits = AudioLimits(max_seconds=config.max_audio_seconds)
            hearing = Hearing(reader, num_threads=threads, limits=limits)
            _check_fits(model, path, hearing, 1)
        else:
            unheard = (
                f"{path.name} has an audio encoder of kind {kind!r:.60}, wanted one of "
                f"{', '.join(sorted(known_kinds))}"
            )
    return Media(vision, hearing, unheard)


def _check_fits(model: Model, path: Path, encoder: Vision | Hearing, axes: int) -> None:
    """ModelError for an encoder of another model."""
    program, known = model.program, model.config
    if encoder.width != program.embed_columns:
        raise ModelError(
            f"mmproj: {path.name} makes rows of {encoder.width}, {known.architecture} takes "
            f"{program.embed_columns}"
        )
    if axes not in (1, program.sections):
        raise ModelError(
            f"mmproj: {path.name} ({encoder.encoder.kind}) gives rows {axes} positions each, "
            f"{known.architecture} rotates by {program.sections}"
        )


def _serving(
    config: EngineConfig,
    reader: GgufReader,
    model: Model,
    bridge: TokenizerBridge | None,
    tokenizer_json: str | bytes | None,
    speculative: Any,
    locate: Locates,
) -> Opened:
    """A loaded model with its core, vocabulary and snapshots. speculative: how requests speculate
    that do not say it; locate: finds the files of their drafts.
    """
    core = core_over(model, config, eog_ids=bridge.eog_ids if bridge else ())
    known = model.config.context_length
    if core.context_size > known:
        warn(
            f"context_size: found {core.context_size} tokens, the model knows texts of {known} and "
            "writes worse beyond them, unless rope_scaling stretches it",
            ContextWarning,
        )
    if model.verifier is not None:
        model.verifier.tell(core.fail)
    vocabulary = SharedVocabulary(bridge, model.config.vocab_size) if bridge else None
    loras = LoraStack(model)
    core.adapters = partial(getattr, loras, "current")
    drafts = DraftModels(
        model, vocabulary, open_model=open_model, core_over=core_over, locate=locate
    )
    core.speculator = Planner(core, DrafterRegistry(drafts, default=speculative))
    try:
        core.speculator.resolve(speculative)  # a draft model is loaded now
    except BaseException:
        core.close()
        raise
    naming = {"architecture": model.config.architecture, "name": model.config.name}
    core.snapshots = Snapshots(
        core,
        config,
        reader,
        vocabulary,
        naming=naming,
        restore_constraint=restore_state,
        tokenizer=_replacement_hash(config.tokenizer_path, tokenizer_json),
        adapters=loras.restored,
    )
    return Opened(model, core, vocabulary, loras)


def core_over(model: Model, config: EngineConfig, *, eog_ids: Iterable[int] = ()) -> EngineCore:
    """The core of an engine over a loaded model, with pages as the config says.

    The keys and values of an encoder, and of a model that fills in masks, live for one step: they
    are f32 unless the config names a `kv_type`, and no prefix is stored. A step is as long as the
    longest text; if a decoder follows, it also has room for the rows of other requests.
    """
    known, rows = model.config, model.program.positions
    if config.context_size is not None and config.context_size > rows:
        raise ConfigError(
            f"context_size: found {config.context_size}, wanted at most {rows}, as far as this "
            "model goes"
        )
    if config.kv_type is not None and not known.kv_layers:
        raise ConfigError(
            f"kv_type: found {config.kv_type!r}, wanted None: {known.architecture} keeps no keys "
            "and values"
        )
    if config.diffusion is not None and known.filling is None:
        raise ConfigError(
            f"diffusion: found {config.diffusion!r} for {known.architecture}, which does not fill "
            "in masks, wanted None"
        )
    if known.filling is not None and config.speculative not in ("auto", None, False):
        raise ConfigError(
            f"speculative: found {config.speculative!r} for {known.architecture}, which fills in "
            "masks and has no next token, wanted None or False"
        )
    kv_type, steps, prefix = config.kv_type or "f16", config.scheduling(), config.prefix()
    if not known.causal:
        kv_type, prefix = config.kv_type or "f32", None
    program: Any = model.program
    batch: Callable[..., Any] = Batch
    if model.source is not None:
        program, batch = SourcedProgram(model.source, model.program), sourced_batch
    if not known.causal or model.source is not None:
        steps = replace(
            steps,
            prefill_chunk=min(steps.prefill_chunk, steps.max_batch_tokens),
            max_batch_tokens=model.program.max_rows,
        )
    context = config.context_size or min(known.context_length, rows)
    near = known.rope_near
    return EngineCore(
        program,
        model.page_memory(kv_type=kv_type, page_size=config.page_size, context=context),
        batch=batch,
        flag=CancelFlag(),
        context_size=context,
        rope_factors=None if near is None else "long" if context > near else "short",
        eog_ids=eog_ids,
        scheduler=steps,
        page_size=config.page_size,
        max_pages=config.max_pages,
        prefix=prefix,
        encoder=None if known.causal or known.filling else known.architecture,
        start_token=known.start_token,
        filling=known.filling,
        diffusion=config.diffusion,
        reads=(each.path for each in model.reader.shards if each.path is not None),
        paging=None if model.pager is None else model.pager.stats,
    )


def _replacement_hash(path: str | Path | None, tokenizer_json: str | bytes | None) -> str | None:
    """BLAKE3 of the tokenizer.json that replaces the file's own vocabulary, None without one."""
    if tokenizer_json is None:
        return None if path is None else blake3(Path(path).read_bytes()).hexdigest()
    return blake3(
        tokenizer_json.encode() if isinstance(tokenizer_json, str) else bytes(tokenizer_json)
    ).hexdigest()


def _bridge(
    reader: GgufReader,
    path: str | Path | None,
    tokenizer_json: str | bytes | None,
    note: Callable[[str], None],
) -> TokenizerBridge | None:
    """The vocabulary: tokenizer.json's, otherwise the file's own; None if the file has none."""
    if isinstance(tokenizer_json, (bytes, bytearray, memoryview)):
        try:
            tokenizer_json = bytes(tokenizer_json).decode("utf-8")
        except UnicodeDecodeError as error:
            raise TokenizerError(
                f"tokenizer_json: byte {error.start} is not UTF-8, wanted the text of a "
                "tokenizer.json"
            ) from None
    source = path if tokenizer_json is None else tokenizer_json
    if source is not None:
        return TokenizerBridge.from_tokenizer_json(source, metadata=reader.metadata)
    if "tokenizer.ggml.model" not in reader.metadata:
        return None
    return TokenizerBridge.from_metadata(reader.metadata, note=note)
