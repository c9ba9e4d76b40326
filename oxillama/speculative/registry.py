"""The values of an option `speculative`, and the drafters that the requests of an engine share."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from oxillama.engine.config import WAYS
from oxillama.engine.engine import EngineCore
from oxillama.errors import ConfigError, EngineError
from oxillama.speculative.choices import FirstOf, LikelierOf
from oxillama.speculative.draft_model import ModelDrafter
from oxillama.speculative.grammar import ForcedText
from oxillama.speculative.lookup import LookupDrafter
from oxillama.speculative.mtp import MtpDrafter
from oxillama.speculative.types import Candidates, Drafter

_WANTED = (
    f"wanted None, False, True, {', '.join(map(repr, WAYS))}, Candidates, a drafter (open, "
    "propose, close), or a draft model (an engine, or a name as in `load`)"
)
# what other programs call these, and our own command line
_OTHER_NAMES = {"ngram": "'lookup'", "prompt_lookup": "'lookup'", "none": "None", "off": "False"}


def _hint(asked: Any) -> str:
    """What may be meant by a value that is none of those wanted."""
    if isinstance(asked, Path) or isinstance(asked, str) and any(mark in asked for mark in "./:"):
        return "; there is no such file or folder"
    if not isinstance(asked, str):
        return ""
    name = asked.lower().replace("-", "_")
    near = difflib.get_close_matches(name, WAYS, 1, 0.6)
    meant = _OTHER_NAMES.get(name) or (repr(near[0]) if near else None)
    return "" if meant is None else f"; did you mean {meant}?"


class DraftSource(Protocol):
    """Opens drafters from other models (`drafts.DraftModels`)."""

    @property
    def predicts(self) -> bool:
        """Whether the target has layers that predict further tokens, as "mtp" wants."""

    def key(self, asked: Any) -> Any:
        """The key of a draft's name, "early_exit" or "mtp", None for anything else."""

    def is_engine(self, asked: Any) -> bool:
        """Whether it is an engine with a model."""

    def core(self, asked: Any) -> EngineCore:
        """The current core of such an engine, which may load another model later."""

    def open(self, asked: Any) -> tuple[ModelDrafter, Callable[[], None] | None]:
        """(a drafter, a function that closes it if it was opened here)."""


class DrafterRegistry:
    """The drafters of one engine. What they learn from one request serves the next.

    default: what a request without the option `speculative` gets (`EngineConfig.speculative`).
    """

    def __init__(self, source: DraftSource | None = None, *, default: Any = None) -> None:
        self._source, self._default = source, default
        self._lookup = LookupDrafter()
        self._text: ForcedText | None = None
        self._choices: dict[Any, Any] = {}
        self._models: dict[Any, tuple[ModelDrafter, Callable[[], None] | None]] = {}
        # weak: an engine that is not referenced otherwise stops drafting
        self._engines: WeakKeyDictionary[Any, ModelDrafter] = WeakKeyDictionary()
        # held while a model is loaded: a second request for the same one waits for it
        self._opening = threading.Lock()
        self._closed = False

    def resolve(self, asked: Any) -> Any:
        """The option with a draft model opened and turned into `Candidates`; any other valid value
        unchanged. ConfigError for an invalid value.
        """
        if asked is True or isinstance(asked, str) and asked == "auto":
            self._predictor()
            return asked
        if asked is None or asked is False or isinstance(asked, Candidates):
            return asked
        if isinstance(asked, str) and asked == "lookup":
            return asked
        source = self._source
        self._check()  # after it: a registry that is closed has none
        if source is not None:
            if source.is_engine(asked):
                return Candidates(self._over_engine(asked, source), owner=asked)
            key = source.key(asked)
            if key is not None:
                return Candidates(self._over_model(key, asked, source))
        if isinstance(asked, (str, Path)) or not isinstance(asked, Drafter):
            raise ConfigError(f"speculative: found {asked!r}, {_WANTED}{_hint(asked)}")
        return Candidates(asked)

    def candidates(self, asked: Any, masker: Any) -> Candidates | None:
        """How a request speculates, None for not at all; masker: the vocabulary of its grammar,
        None without one.

        A request without the option gets the engine's default; with a grammar, the text that this
        forces.
        """
        own = asked is not None
        asked = asked if own else self._default
        if asked is False or asked is None and masker is None:
            return None
        asked = self.resolve(asked)
        if isinstance(asked, Candidates):
            return asked
        if asked == "lookup":
            return Candidates(self._lookup, asked=own)
        guess = self._guess(alone=not own) if asked else self._lookup
        predicts = isinstance(guess, LikelierOf)
        if masker is None:
            return Candidates(guess, asked=own, alone=not own and predicts)
        if self._text is None:
            self._text = ForcedText(masker.vocab_bytes)
        if not (own and asked or predicts):
            return Candidates(self._text, asked=own)
        return Candidates(self._kept(FirstOf, self._text, guess), asked=own)

    def _guess(self, *, alone: bool) -> Drafter:
        """Lookups, with the target's own predictor if it has one."""
        predictor = self._predictor()
        if predictor is None:
            return self._lookup
        return self._kept(LikelierOf, self._lookup, predictor, alone=alone)

    def _kept(self, kind: Callable[..., Any], *drafters: Any, **how: Any) -> Any:
        """A choice among drafters, made once: what it costs is known by the object."""
        key = (kind, *map(id, drafters), *how.items())
        if key not in self._choices:
            self._choices[key] = kind(*drafters, **how)
        return self._choices[key]

    def cores(self) -> tuple[EngineCore, ...]:
        """The engine cores of draft models."""
        with self._opening:
            return tuple(
                drafter.core
                for drafter in (
                    *(drafter for drafter, _ in self._models.values()),
                    *self._engines.values(),
                )
            )

    def close(self) -> None:
        """Close the draft models opened for this engine; no more can be opened."""
        with self._opening:
            self._closed = True
            models, self._models = self._models, {}
            self._choices, self._source = {}, None  # which holds the target's weights
        for _, close in models.values():
            if close is not None:
                close()

    def _predictor(self) -> MtpDrafter | None:
        """The target's own drafter, None without one."""
        source = self._source
        if source is None or not source.predicts:
            return None
        drafter = self._over_model("mtp", "mtp", source)
        assert isinstance(drafter, MtpDrafter)
        return drafter

    def _over_model(self, key: Any, asked: Any, source: DraftSource) -> ModelDrafter:
        with self._opening:
            self._check()
            if key not in self._models:
                self._models[key] = source.open(asked)
            return self._models[key][0]

    def _over_engine(self, engine: Any, source: DraftSource) -> ModelDrafter:
        with self._opening:
            self._check()
            drafter = self._engines.get(engine)
            if drafter is None or drafter.core is not source.core(engine):
                drafter = self._engines[engine] = source.open(engine)[0]
            return drafter

    def _check(self) -> None:
        if self._closed:
            raise EngineError("engine: is closed")
