"""Draft models for a target: opened, chosen from a folder, or made from the target itself with
fewer bits.

    # a file, a folder of files, any other name of a model, or an engine that is loaded already
    engine.generate(prompt, speculative="draft.gguf")
    # the target's own first layers under its own output norm and head
    engine.generate(prompt, speculative="early_exit:4")
    # the target's layers that predict further tokens
    engine.generate(prompt, speculative="mtp")
    # a draft that begins with rows of the target (`FOLLOWING`), which is loaded with it
    engine = load("target.gguf", speculative="eagle3.gguf")

A draft must have the target's vocabulary (the same pieces under the same ids, or all of them under
others). Of several, the one that reads the fewest bytes for a token is taken; whether it pays is
then measured, step by step.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from oxillama.engine.config import EngineConfig, names_way
from oxillama.engine.engine import EngineCore
from oxillama.engine.generation import SharedVocabulary
from oxillama.engine.session import Session
from oxillama.errors import ConfigError, GgufNotFound, OxillamaError
from oxillama.gguf import GgufReader
from oxillama.model import assistant, dflash, eagle
from oxillama.model.drafts import (
    assistant_draft,
    dflash_draft,
    eagle_draft,
    early_exit,
    predictor,
)
from oxillama.model.load import Model
from oxillama.model.mtp_file import is_further, with_further
from oxillama.quant import quantize_file
from oxillama.sampling import Sampler
from oxillama.speculative.assistant import AssistantDrafter
from oxillama.speculative.dflash import BlockDrafter
from oxillama.speculative.draft_model import ModelDrafter
from oxillama.speculative.mtp import MtpDrafter
from oxillama.speculative.vocabularies import Alignment, align
from oxillama.tokenizer import TokenizerBridge

# bytes of a draft against the target's, above which even a perfect draft hardly gains
PAYS_BELOW = 0.5
OwnSampler = Callable[[Session], Sampler]
Locates = Callable[[str | Path], Path]  # finds the file, or the folder of files, of a draft's name
Drafting = TypeVar("Drafting", bound=ModelDrafter)


@dataclass(frozen=True, slots=True)
class Following:
    """A kind of draft that begins with rows of the target, which must be loaded with it.

    extracts: the layers of the target whose inputs those are; draft: the draft's model, what the
    drafter needs besides (`fusion`), and the target's tokens of its output.
    """

    called: str
    extracts: Callable[[GgufReader, GgufReader], tuple[int, ...]]
    draft: Callable[..., tuple[Model, Any, np.ndarray | None]]
    drafter: Callable[..., ModelDrafter]


# by architecture
FOLLOWING = {
    eagle.ARCH: Following("an EAGLE-3 draft", eagle.extracts_of, eagle_draft, MtpDrafter),
    dflash.ARCH: Following("a DFlash draft", dflash.extracts_of, dflash_draft, BlockDrafter),
    assistant.ARCH: Following(
        "a Gemma 4 assistant", assistant.extracts_of, assistant_draft, AssistantDrafter
    ),
}


def _following(reader: GgufReader) -> Following | None:
    """What kind of such a draft a file is, None for any other file."""
    arch = reader.metadata.get("general.architecture")
    return FOLLOWING.get(arch) if isinstance(arch, str) else None


class OpenedModel(Protocol):
    """A model in memory with what serves it; vocabulary is None for a file without one."""

    @property
    def model(self) -> Model:
        """The model."""

    @property
    def core(self) -> EngineCore:
        """The core of its engine."""

    @property
    def vocabulary(self) -> SharedVocabulary | None:
        """What its tokens spell."""


@runtime_checkable
class ModelEngine(Protocol):
    """An engine with a model loaded (`InferenceEngine`)."""

    @property
    def loaded(self) -> Any:
        """The model that is loaded now, an `OpenedModel`."""


class OpensModels(Protocol):
    """Loads a GGUF file as a config says."""

    def __call__(self, config: EngineConfig, source: Path) -> Any:
        """An `OpenedModel` with `close(keep=...)`."""


class DraftModels:
    """The drafts that a target's requests may name. open_model: loads a file; core_over: makes the
    core of an engine over a model in memory; locate: finds the file of a name.
    """

    def __init__(
        self,
        model: Model,
        vocabulary: SharedVocabulary | None,
        *,
        open_model: OpensModels,
        core_over: Callable[[Model, EngineConfig], EngineCore],
        locate: Locates,
    ) -> None:
        self.model, self.vocabulary = model, vocabulary
        self._open_model, self._core_over, self._locate = open_model, core_over, locate

    @property
    def predicts(self) -> bool:
        """Whether the target has layers in memory that predict further tokens."""
        tape = self.model.tape
        return tape.predictor is not None and self.model.pager is None and not tape.extracts

    def key(self, asked: Any) -> Any:
        """What a draft's name, "early_exit" or "mtp" is known by, None for anything else."""
        if isinstance(asked, str) and asked == "mtp":
            return "mtp"
        if isinstance(asked, str) and exit_depth(asked, self.model.config.layers) is not None:
            return asked
        path = draft_file(asked, self._locate)
        if path is not None and self._has_joined(path):
            return "mtp"
        return str(path.resolve()) if path is not None and path.exists() else None

    def _has_joined(self, path: Path) -> bool:
        """Whether it is the file of layers that predict further tokens that the target was loaded
        with.
        """
        reader = self.model.reader
        return path in {shard.path for shard in reader.shards} - {None, *reader.paths}

    def is_engine(self, asked: Any) -> bool:
        """Whether it is an engine with a model."""
        return isinstance(asked, ModelEngine)

    def core(self, asked: ModelEngine) -> EngineCore:
        """The core of such an engine now."""
        return asked.loaded.core

    def open(
        self,
        asked: Any,
        *,
        own_sampler: OwnSampler | None = None,
        config: EngineConfig | None = None,
    ) -> tuple[ModelDrafter, Callable[[], None] | None]:
        """(a drafter over an engine, the file of a name, the best file of a folder, the target's
        first layers, or those that predict further tokens; what closes it where it was opened
        here).

        own_sampler: makes the sampler that it draws with. ConfigError names what the draft's
        vocabulary lacks.
        """
        model, given = self.model, config or EngineConfig()
        if model.source is not None:
            raise _encodes(model, "the model", asked)
        if self.key(asked) == "mtp":
            _refuse_sampler(own_sampler, "'mtp'")
            return self._over_target(MtpDrafter, predictor(model, **self._sizes(given)), given)
        depth = exit_depth(asked, model.config.layers)
        if depth is not None:
            draft = early_exit(model, depth, **self._sizes(given))
            return self._over_target(ModelDrafter, draft, given, own_sampler=own_sampler)
        if isinstance(asked, ModelEngine):
            return self._over_model(asked.loaded, own_sampler), None
        path = draft_file(asked, self._locate) or Path(asked)
        path = choose_draft(model, path) if path.is_dir() else path
        reader = GgufReader(path)
        kind = _following(reader)
        if kind is not None:
            _refuse_sampler(own_sampler, kind.called)
            return self._follower(kind, path, reader, given)
        further = is_further(reader)
        reader.close()
        if further:
            raise _not_loaded_with(
                path,
                "layers that predict further tokens",
                " (or 'mtp', as the model has such layers)" if self.predicts else "",
            )
        config = _rotated(config or EngineConfig(model_path=path), model, path)
        # a draft is small and may lie in a file that goes with this interpreter: it is kept only
        # where a folder was named for it
        if config.sidecar == "auto":
            config = replace(config, sidecar=False)
        opened = self._open_model(config, path)
        try:
            return self._over_model(opened, own_sampler), opened.close
        except BaseException:
            opened.close(keep=False)
            raise

    def _over_model(self, loaded: OpenedModel, own_sampler: OwnSampler | None) -> ModelDrafter:
        """A drafter over another model."""
        model, draft = self.model, loaded.model
        if draft.source is not None:
            raise _encodes(draft, "a draft", draft.config.architecture)
        alignment = aligned(
            self.vocabulary, loaded.vocabulary, model.config.vocab_size, draft.config.vocab_size
        )
        return ModelDrafter(
            loaded.core,
            alignment,
            own_sampler=own_sampler,
            weight=_bytes(draft.reader) / _bytes(model.reader),
            model=draft,
        )

    def _over_target(
        self,
        kind: Callable[..., Drafting],
        draft: Model,
        config: EngineConfig,
        *,
        to_target: np.ndarray | None = None,
        **more: Any,
    ) -> tuple[Drafting, Callable[[], None]]:
        """A drafter over weights of the target, and what closes it. to_target: the target's token
        of each row of its output, None where they are the same.
        """
        model, core = self.model, self._core_over(draft, config)
        drafter = kind(
            core,
            Alignment(model.config.vocab_size, draft.program.outputs, to_target=to_target),
            weight=_run_bytes(draft) / _run_bytes(model),
            model=draft if to_target is None else None,
            **more,
        )
        return drafter, core.close

    def _follower(
        self, kind: Following, path: Path, reader: GgufReader, config: EngineConfig
    ) -> tuple[ModelDrafter, Callable[[], None]]:
        """A drafter over a model that begins with rows of the target."""
        model, rows = self.model, self.model.config.vocab_size
        if kind.extracts(reader, model.reader) != model.tape.extracts:
            raise _not_loaded_with(path, kind.called)
        if "tokenizer.ggml.model" in reader.metadata and self.vocabulary is not None:
            target, words = self.vocabulary.bridge, TokenizerBridge.from_metadata(reader.metadata)
            if align(_pieces(target), _pieces(words), target_rows=rows, draft_rows=rows).mapped:
                raise ConfigError(
                    "draft: found the target's tokens under other ids, wanted the same ones"
                )
        draft, fusion, tokens = kind.draft(model, reader, **self._sizes(config))
        return self._over_target(kind.drafter, draft, config, to_target=tokens, fusion=fusion)

    def _sizes(self, config: EngineConfig) -> dict[str, int]:
        """Of a program beside the target's."""
        return {
            "num_threads": config.num_threads or self.model.program.num_threads,
            "max_rows": config.scheduling().max_batch_tokens,
        }


def _encodes(model: Model, what: str, asked: Any) -> ConfigError:
    return ConfigError(
        f"speculative: found {asked!r:.80} where {what} ({model.config.architecture}) reads its "
        'prompt with an encoder, wanted "lookup" or another way without a draft model'
    )


def _refuse_sampler(own_sampler: OwnSampler | None, asked: str) -> None:
    """ConfigError for a sampler of a draft that takes the target's rows."""
    if own_sampler is not None:
        raise ConfigError(
            f"draft_sampler: found one for {asked}, wanted None: what it predicts depends on rows "
            "that are at hand, so a text must not depend on it"
        )


def draft_file(asked: Any, locate: Locates) -> Path | None:
    """The file or folder of a draft model's name; None for any other value of `speculative`, and
    for a word that is neither. ConfigError for a name of a store that has no such model.
    """
    if not isinstance(asked, (str, Path)) or asked == "":
        return None
    if isinstance(asked, str) and names_way(asked):
        return None
    if os.path.isfile(asked):
        return Path(asked)
    try:
        return locate(asked)
    except GgufNotFound as error:
        if any(mark in str(asked) for mark in "./:"):
            raise ConfigError(f"speculative: {error}") from None
        return None  # it may be a way that is misspelt
    except ConfigError as error:
        raise ConfigError(f"speculative: {error}") from None


def prepared(
    asked: Any, target: GgufReader, locate: Locates
) -> tuple[GgufReader, tuple[int, ...], Any]:
    """(the file that a target is loaded from for the draft of an option `speculative`, the layers
    whose inputs it carries for that, the option of its requests). ConfigError if the draft was made
    for another target.

    A file of `FOLLOWING` begins with the inputs of some layers; one of layers that predict further
    tokens is joined with the target's own.
    """
    path = draft_file(asked, locate)
    if path is None or not path.is_file():
        return target, (), path if path is not None and path.exists() else asked
    with GgufReader(path) as draft:
        kind = _following(draft)
        if kind is not None:
            return target, kind.extracts(draft, target), path
        if is_further(draft):
            return with_further(target, draft), (), "mtp"
        return target, (), path


def _not_loaded_with(path: Path, what: str, instead: str = "") -> ConfigError:
    """The error for a draft that must be named when its model is loaded."""
    return ConfigError(
        f"speculative: found {str(path)!r}, {what}, for a model that was loaded without it, wanted "
        f"it where the model is loaded: load(..., speculative=...), --speculative{instead}"
    )


def _rotated(config: EngineConfig, target: Model, path: Path) -> EngineConfig:
    """A draft's config with the target's rope overrides where it has none and the file says of its
    architecture all that the target's says.
    """
    given = target.rope.given()
    if not given or config.rope().given():
        return config
    with GgufReader(path) as reader:
        same = _hyperparameters(reader) == _hyperparameters(target.reader)
    return replace(config, **given) if same else config


def _hyperparameters(reader: GgufReader) -> dict[str, Any]:
    """The architecture's name and its keys, arrays as lists."""
    arch = reader.metadata.get("general.architecture")
    wanted = [
        "general.architecture",
        *(key for key in reader.metadata if key.startswith(f"{arch}.")),
    ]
    return {key: np.asarray(reader.metadata.get(key)).tolist() for key in wanted}


def exit_depth(source: Any, layers: int) -> int | None:
    """The number of layers of "early_exit:n"; "early_exit" is a quarter. None for any other name of
    a draft, ConfigError for a bad n.
    """
    if not isinstance(source, str) or source.partition(":")[0] != "early_exit":
        return None
    number = source.partition(":")[2]
    depth = (
        max(1, layers // 4)
        if source == "early_exit"
        else int(number)
        if number.isascii() and number.isdigit() and len(number) < 10
        else 0
    )
    if not 1 <= depth <= layers:
        raise ConfigError(
            f"draft: found {source!r}, wanted early_exit:n with n from 1 to {layers}, the layers "
            "of the target"
        )
    return depth


def aligned(
    target: SharedVocabulary | None,
    draft: SharedVocabulary | None,
    target_rows: int,
    draft_rows: int,
) -> Alignment:
    """The mapping between a draft's tokens and the target's; models without a vocabulary must have
    the same number of tokens.
    """
    if target is None or draft is None:
        if target is not draft or target_rows != draft_rows:
            raise ConfigError(
                f"draft: found {draft_rows} tokens {'with' if draft else 'without'} a vocabulary, "
                f"wanted {target_rows} {'with' if target else 'without'} one"
            )
        return Alignment(target_rows, draft_rows)
    return align(
        _pieces(target.bridge),
        _pieces(draft.bridge),
        target_rows=target_rows,
        draft_rows=draft_rows,
    )


def choose_draft(model: Model, folder: Path) -> Path:
    """The compatible GGUF file in a folder that reads the fewest bytes per token; ConfigError if
    none is small enough and compatible.
    """
    target = _pieces(TokenizerBridge.from_metadata(model.reader.metadata))
    limit, found = PAYS_BELOW * _bytes(model.reader), []
    for path in sorted(folder.glob("*.gguf")):
        try:
            reader = GgufReader(path)
            # the model must be loaded with one of these
            if _bytes(reader) <= limit and not (_following(reader) or is_further(reader)):
                align(
                    target,
                    _pieces(TokenizerBridge.from_metadata(reader.metadata)),
                    target_rows=len(target),
                    draft_rows=len(target),
                )
                found.append((_bytes(reader), path))
        except OxillamaError:
            continue
    if not found:
        raise ConfigError(
            f"draft: {folder} holds no GGUF file with the target's vocabulary and at most "
            f"{limit:,.0f} bytes of weights"
        )
    return min(found)[1]


_RECIPES = ("Q4_0", "Q2_K")  # of requantised drafts


def requantised_draft(model: Model, folder: str | Path | None = None) -> Path:
    """A draft made from the target's file with the first recipe that halves its bytes at least;
    returns the new file.

    folder: where it is written, None for a new temporary folder that is removed when the
    interpreter ends. ConfigError if no recipe does: such a draft would not pay.
    """
    if not model.reader.paths:
        raise ConfigError(
            "draft: 'requantised' is made from the target's file, found one that came as bytes, "
            "wanted a draft model of its own"
        )
    source, before = model.reader.paths[0], _bytes(model.reader)
    for recipe in _RECIPES:
        after = quantize_file(source, None, recipe, dry_run=True).bytes_after
        if after <= PAYS_BELOW * before:
            if folder is None:
                folder = tempfile.mkdtemp(prefix="oxillama-draft-")
                atexit.register(shutil.rmtree, folder, ignore_errors=True)
            made = Path(folder) / f"draft-{recipe}.gguf"
            quantize_file(source, made, recipe)
            return made
    raise ConfigError(
        f"draft: {', '.join(_RECIPES)} would leave more than {PAYS_BELOW:.0%} of the target's "
        f"{before:,} bytes, wanted less"
    )


def _pieces(bridge: TokenizerBridge) -> list[tuple[bytes, bool]]:
    """(bytes or text, whether it is a control token) of each token."""
    special = bridge.special_ids
    return [
        (bridge.token_text(token).encode() if token in special else piece, token in special)
        for token, piece in enumerate(bridge.vocab_bytes())
    ]


def _bytes(reader: GgufReader) -> int:
    return sum(tensor.nbytes for tensor in reader.tensors.values())


def _run_bytes(model: Model) -> int:
    """Bytes of the tensors that a step reads whole."""
    names = {tensor.name for op in model.tape.ops for tensor in op.params.get("weights", ())}
    return sum(model.reader.tensors[name].nbytes for name in names)
