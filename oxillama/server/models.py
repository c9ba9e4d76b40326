"""The models that a server knows, by name: one given at start, and those of a folder, loaded on
first use and unloaded by least recent use.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import time
import traceback
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import oxillama
from oxillama.embedded import embedded_path
from oxillama.engine.generation import SharedVocabulary
from oxillama.errors import EngineError, OxillamaError
from oxillama.gguf import GgufReader
from oxillama.gguf.source import shard_names
from oxillama.media.features import Kind
from oxillama.server.adapters import ModelAdapters
from oxillama.server.errors import ApiError, from_engine, shown
from oxillama.server.prompts import PromptBuilder
from oxillama.server.settings import ServerConfig
from oxillama.stores import own_encoder
from oxillama.tokenizer.builtin_templates import template_source

EMBEDDED = "oxillama-embedded"
# ids of the tokens before, after and of the middle
FIM_KEYS = tuple(f"tokenizer.ggml.fim_{part}_token_id" for part in ("pre", "suf", "mid"))
_PATIENCE = 30.0  # seconds that a request waits for its model to be loaded beside others
_LOOK = 0.25  # seconds between looks for a model that may be unloaded
Stamp = tuple[int, ...]
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")


class ServedModel:
    """A loaded model and what a server needs beside the engine: its name, its chat template, how
    long its tokens are. stamps: which files the load read, and which ones they were.
    """

    def __init__(
        self,
        name: str,
        engine: oxillama.InferenceEngine,
        *,
        path: Path,
        stamps: Mapping[Path, Stamp],
        chat_template: str | None = None,
        late_instructions: str = "refuse",
    ) -> None:
        self.name, self.engine, self.path, self.stamps = name, engine, path, stamps
        self.users = 0
        self.leaving = False  # it is to be unloaded when nobody uses it
        # its architecture if that has no next token
        self.encoder: str | None = engine.loaded.core.encoder
        self.slots = engine.engine_config.scheduling().max_sequences  # sequences that run at once
        self.adapters = ModelAdapters(engine)
        self.metadata: dict[str, Any] = _metadata(engine)
        self.bridge = self.vocabulary = self.builder = None
        self._most_bytes = 0
        try:
            self.bridge = engine.tokenizer
        except EngineError:
            return
        self.vocabulary = SharedVocabulary(self.bridge, engine.config.vocab_size)
        given = chat_template or engine.engine_config.chat_template
        source = template_source(given) if given else self.metadata.get("tokenizer.chat_template")
        if isinstance(source, str):
            self.builder = PromptBuilder(
                source,
                self.vocabulary,
                engine.loaded.media,
                late_instructions=late_instructions,
            )
        if self.bridge.vocabulary.model == "gpt2":
            self._most_bytes = max(len(each.encode()) for each in self.bridge.vocabulary.tokens)

    def too_long(self, text: str) -> bool:
        """Whether a text is surely longer than the context, found without encoding it: a byte-level
        vocabulary has no token of more bytes than its longest.
        """
        limit = self._most_bytes * self.engine.context_size
        return bool(limit) and len(text) > limit

    @property
    def sees(self) -> bool:
        """Whether its chats may hold images."""
        return self._takes("image")

    @property
    def hears(self) -> bool:
        """Whether its chats may hold audio."""
        return self._takes("audio")

    def _takes(self, kind: Kind) -> bool:
        media = self.builder.media if self.builder is not None else None
        return media is not None and kind in media.kinds

    def chat(self) -> PromptBuilder:
        """Makes prompts from messages; a 400 for an encoder or a file without a chat template."""
        if self.encoder is not None:
            raise ApiError(
                400,
                f"model {self.name}: {self.encoder} is an encoder, which has no next token; wanted "
                "/v1/embeddings, /v1/rerank or /v1/score",
                param="model",
                code="generation_not_supported",
            )
        if self.builder is None:
            raise ApiError(
                400,
                f"model {self.name}: its file has no chat template, wanted /v1/completions or a "
                "server started with --chat-template",
                param="model",
                code="no_chat_template",
            )
        return self.builder

    def tokenizer(self) -> Any:
        """Its tokenizer; a 400 for a file without one."""
        if self.bridge is None:
            raise ApiError(
                400,
                f"model {self.name}: its file has no vocabulary, wanted token ids",
                param="model",
                code="no_vocabulary",
            )
        return self.bridge


def _metadata(engine: oxillama.InferenceEngine) -> dict[str, Any]:
    """The few keys of the model's file that answers name."""
    wanted = (
        "tokenizer.chat_template",
        "general.name",
        "general.file_type",
        "general.size_label",
        *FIM_KEYS,
    )
    with GgufReader(engine.model_files[0]) as reader:
        found = {name: reader.metadata[name] for name in wanted if name in reader.metadata}
    return {name: int(value) if name in FIM_KEYS else value for name, value in found.items()}


class ModelRegistry:
    """Models by name. One that requests use stays; the others may be unloaded for another."""

    def __init__(
        self,
        config: ServerConfig,
        offload: Callable[..., Any],
        *,
        keep: Callable[[ServedModel], bool] = lambda model: False,
        release: Callable[[ServedModel], None] = lambda model: None,
        forget: Callable[[ServedModel], None] = lambda model: None,
    ) -> None:
        """keep: whether an idle model must stay, for what only memory holds. release: writes that
        to the disk as far as it can be; run outside the event loop. forget: lets go of what else
        belongs to a model that is unloaded.
        """
        self._config, self._offload, self._keep = config, offload, keep
        self._release, self._forget = release, forget
        self._loaded: OrderedDict[str, ServedModel] = OrderedDict()
        self._loading: dict[str, asyncio.Task] = {}
        self._awaited: Counter[str] = Counter()  # who waits for a load, and uses the model next
        self.failures: dict[str, str] = {}
        self._given = self._first()
        self._room = asyncio.Lock()  # of who makes room and fills it: two would both fill the last
        self._closing: set[asyncio.Future] = set()
        self._idle = asyncio.Event()  # a model may have become idle

    def _first(self) -> tuple[str, Path] | None:
        config = self._config
        if config.model is not None:
            path = Path(config.model)
            return config.alias or stem(path), path
        if config.models_dir is not None:
            return None
        return config.alias or EMBEDDED, embedded_path()

    def known(self) -> dict[str, Path]:
        """Every model by name, the one given at start first."""
        found = {self._given[0]: self._given[1]} if self._given else {}
        if self._config.models_dir is not None:
            for path in sorted(Path(self._config.models_dir).glob("*.gguf")):
                part = _SHARD.search(path.stem)
                if path.name.startswith(("mmproj", ".")) or (part and part.group(1) != "00001"):
                    continue
                if not path.is_file():
                    continue
                found.setdefault(stem(path), path)
        return found

    def names(self) -> list[str]:
        """What requests may call their model: models, and adapters of loaded ones."""
        found = list(self.known())
        for model in self._loaded.values():
            found += [each.name for each in model.adapters.all()]
        return found

    @property
    def given(self) -> bool:
        """Whether a model was given at the start, not only a folder of them."""
        return self._given is not None

    @property
    def default(self) -> str | None:
        """The model of a request that names none: the one given, or the only one of the folder."""
        if self._given:
            return self._given[0]
        names = list(self.known())
        return names[0] if len(names) == 1 else None

    def loaded(self) -> list[ServedModel]:
        """The models in memory."""
        return list(self._loaded.values())

    def find(self, name: str | None) -> ServedModel | None:
        """The model of a name if it is in memory."""
        return self._loaded.get(name or "")

    def resolve(self, name: Any) -> str:
        """The name that a request means; 404 for an unknown one."""
        known = self.known()
        if name is None:
            default = self.default
            if default is None:
                raise ApiError(
                    400,
                    f"model: is required, {self._wanted([*known])}",
                    param="model",
                    code="missing_required_parameter",
                )
            return default
        if name in known:
            return name
        for model in self._loaded.values():
            if model.adapters.named(name) is not None:
                return model.name
        if self.default and name in (Path(path).stem for path, _ in self._config.loras):
            return self.default
        for each, path in known.items():
            same = (path.name, str(path), f"{each}:latest")
            if name in same or (each == self.default and name == _given(self._config.model)):
                return each
        raise ApiError(
            404,
            f"model: {shown(name)} is not served here, {self._wanted(self.names())}",
            param="model",
            code="model_not_found",
        )

    def _wanted(self, names: list[str]) -> str:
        return f"wanted one of {', '.join(names)}" if names else self.none_there

    @property
    def none_there(self) -> str:
        """What is said where there is no model."""
        return f"{self._config.models_dir} holds no *.gguf (folders in it are not looked at)"

    @asynccontextmanager
    async def use(self, name: Any) -> AsyncIterator[ServedModel]:
        """The model that a request names, loaded, for as long as the block lasts."""
        model = await self.acquire(name)
        try:
            yield model
        finally:
            self.release(model)

    def take(self, name: Any) -> ServedModel | None:
        """The model that a request names, held, if it is loaded; `release` it."""
        model = self._loaded.get(self.resolve(name))
        if model is None or self._stale(model):
            return None
        self._loaded.move_to_end(model.name)
        model.users += 1
        return model

    async def acquire(self, name: Any) -> ServedModel:
        """The model that a request names, loaded and held; `release` it."""
        name = self.resolve(name)
        while (model := self.take(name)) is None:
            task = self._loading.get(name)
            if task is None:
                task = asyncio.ensure_future(self._load(name))
                self._loading[name] = task
                task.add_done_callback(partial(self._load_ended, name))
            self._awaited[name] += 1
            try:
                # one load for all who wait, which goes on when one of them leaves
                await asyncio.wait((task,))
                task.result()
            finally:
                self._awaited[name] -= 1
                self._idle.set()
        return model

    def _stale(self, model: ServedModel) -> bool:
        """Whether one of a model's files is now another and nothing keeps what was loaded, which
        then makes way for it.
        """
        if model.users or self._keep(model):
            return False
        try:
            if all(_stamp(path) == stamp for path, stamp in model.stamps.items()):
                return False
        except OSError:  # what is in memory needs no file
            return False
        self._unload(model)
        return True

    def release(self, model: ServedModel) -> None:
        """Let go of a model that was acquired."""
        model.users -= 1
        if not model.users:
            self._idle.set()
            if model.leaving:
                self._unload(model)

    def unload_when_idle(self, model: ServedModel) -> None:
        """Unload a model as soon as nobody uses it, which may be at once."""
        model.leaving = True
        if not model.users:
            self._unload(model)

    def _unload(self, model: ServedModel) -> None:
        model.leaving = False
        if self._loaded.get(model.name) is model and not self._keep(model):
            del self._loaded[model.name]
            self._forget(model)
            task = asyncio.ensure_future(self._offload(self._close, model.engine))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    @staticmethod
    def _close(engine: oxillama.InferenceEngine) -> None:
        """Close an engine, and free what its requests hold in cycles, such as its file's mapping:
        the next model wants the memory.
        """
        engine.close()
        gc.collect()

    def _load_ended(self, name: str, task: asyncio.Task) -> None:
        self._loading.pop(name, None)
        if not task.cancelled():
            task.exception()  # which those who wait are told, and nobody where all have left

    async def _load(self, name: str) -> None:
        path = self.known().get(name)
        if path is None:
            raise gone(name)
        async with self._room:
            if len(self._loaded) >= self._config.max_loaded:
                await self._offload(self._check, path)
            await self._make_room()
            await self._fill(name, path)

    @staticmethod
    def _check(path: Path) -> None:
        """Raise for a file that is no model, before another model makes room for it."""
        try:
            GgufReader(path).close()
        except (OSError, OxillamaError) as error:
            raise unusable(path, error) from None

    async def _fill(self, name: str, path: Path) -> None:
        try:
            model = await self._offload(self._open, name, path)
        except asyncio.CancelledError:  # the server ends
            raise
        except OSError as error:
            self.failures[name] = str(error)
            raise unusable(path, error) from None
        except BaseException as error:
            self.failures[name] = str(error)
            raise unusable(path, error) from error
        self.failures.pop(name, None)
        self._loaded[name] = model

    def _open(self, name: str, path: Path) -> ServedModel:
        config = self._config
        loras = config.loras if name == self.default else ()
        stamps = _stamps(path, config.engine, [Path(lora) for lora, _ in loras])
        try:
            engine = oxillama.load(path, **config.engine)
        except BaseException as error:
            _drop_locals(error)
            raise
        try:
            model = ServedModel(
                name,
                engine,
                path=path,
                stamps=stamps,
                chat_template=config.chat_template,
                late_instructions=config.late_instructions,
            )
            for lora, scale in loras:
                model.adapters.add(str(lora), scale=scale, on=True, replace=False)
            return model
        except BaseException:
            engine.close()
            raise

    async def _make_room(self) -> None:
        """Unload the model that was used least recently until another one may be loaded."""
        until = time.monotonic() + _PATIENCE
        while len(self._loaded) >= self._config.max_loaded:
            self._idle.clear()  # before the look, during which a model may become idle
            if await self._evict():
                continue
            left = until - time.monotonic()
            if left <= 0:
                raise ApiError(
                    503,
                    f"model: {len(self._loaded)} models are loaded and all in use",
                    param="model",
                    code="models_busy",
                    headers={"Retry-After": "5"},
                )
            with suppress(TimeoutError):  # a session whose request was cancelled tells nobody
                async with asyncio.timeout(min(left, _LOOK)):
                    await self._idle.wait()

    async def _evict(self) -> bool:
        """Unload the idle model that was used least recently, if there is one."""
        for model in list(self._loaded.values()):
            if model.users or self._awaited[model.name]:
                continue
            if self._keep(model):
                await self._offload(self._release, model)
            if not (model.users or self._awaited[model.name] or self._keep(model)):
                del self._loaded[model.name]
                self._forget(model)
                await self._offload(self._close, model.engine)
                return True
        return False

    async def close(self) -> None:
        """Unload everything."""
        for task in list(self._loading.values()):
            await asyncio.gather(task, return_exceptions=True)
        while self._loaded:
            _, model = self._loaded.popitem()
            await self._offload(model.engine.close)


def stem(path: Path) -> str:
    """A file's name as a model's: without the ending, and of a set of shards without the number."""
    return _SHARD.sub("", path.stem)


def gone(name: str) -> ApiError:
    """The error for a model whose file has been removed."""
    return ApiError(404, f"model: {shown(name)} is gone", param="model", code="model_not_found")


def unusable(path: Path, error: BaseException) -> ApiError:
    """The error for a file that cannot be loaded; clients are not told where models lie."""
    if isinstance(error, OSError) and not isinstance(error, OxillamaError):
        return ApiError(
            500,
            f"model {stem(path)}: cannot be read: {error.strerror}",
            param="model",
            code="model_unusable",
        )
    found = from_engine(error, param="model")
    for folder in {path.parent, path.resolve().parent} - {Path()}:
        found.message = found.message.replace(f"{folder}{os.sep}", "")
    return found


def _drop_locals(error: BaseException | None) -> None:
    """Free what the calls held that an error went through, such as a file's mapping: Windows lets
    nobody replace a file that is mapped.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _stamp(path: Path) -> Stamp:
    """What tells a file from one that replaces it."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _stamps(path: Path, engine: Mapping[str, Any], loras: Iterable[Path]) -> dict[Path, Stamp]:
    """The files that loading a model reads, as far as they are there: every part of a set; the
    vocabulary, the encoder and the draft that `engine` (arguments of `oxillama.load`) names;
    adapters. OSError if the model itself is not there.
    """
    found = {path: _stamp(path)}
    parts = [path.with_name(name) for name in shard_names(path.name) or ()]
    named = [engine.get(option) for option in ("tokenizer_path", "mmproj", "speculative")]
    encoder = own_encoder(path) if named[1] is None else None
    for each in (*parts, *named, encoder, *loras):
        # others are names of stores, ways to speculate, and what the load says is missing
        if isinstance(each, (str, os.PathLike)) and os.path.exists(os.path.expanduser(each)):
            beside = Path(os.path.expanduser(each))
            found[beside] = _stamp(beside)
    return found


def _given(model: Any) -> str | None:
    return None if model is None else str(model)
