"""What `speculative=` may be, and the drafters that an engine's requests share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from oxillama.engine.forced import ForcedText
from oxillama.engine.lookup import LookupDrafter
from oxillama.engine.speculation import Candidates, FirstOf
from oxillama.errors import ConfigError, EngineError

_WANTED = "wanted None, False, True, 'auto', 'lookup', Candidates, a drafter, 'early_exit', or a draft model (an engine, a GGUF file, a folder)"


def checked(asked: Any) -> None:
    """Raise ConfigError for what no request can mean by `speculative`."""
    if (
        asked is None
        or isinstance(asked, (bool, Candidates))
        or isinstance(asked, str)
        and asked in ("auto", "lookup")
    ):
        return
    if not all(callable(getattr(asked, name, None)) for name in ("open", "propose", "close")):
        raise ConfigError(f"speculative: found {asked!r}, {_WANTED}")


class Drafters:
    """The drafters of one engine: what one request taught them serves the next. `candidates` is
    asked under the engine's lock.
    """

    def __init__(self) -> None:
        self._lookup: LookupDrafter | None = None
        self._text: ForcedText | None = None
        self._models: dict[Any, tuple[Any, Callable[[], None] | None]] = {}
        # one that nobody has any more drafts no more
        self._engines: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        # held while a model is loaded: whoever asks for the same one waits for it
        self._opening = threading.Lock()
        self._closed = False

    def model(self, key: Any, make: Callable[[], tuple[Any, Callable[[], None] | None]]) -> Any:
        """The drafter known by a key; made, with what closes it, when it is first asked for."""
        with self._opening:
            self._check()
            if key not in self._models:
                self._models[key] = make()
            return self._models[key][0]

    def engine(self, engine: Any, make: Callable[[], Any]) -> Any:
        """The drafter over an engine, which is not kept alive here; made when it is first asked
        for, and when it has another model.
        """
        with self._opening:
            self._check()
            drafter = self._engines.get(engine)
            if drafter is None or drafter.core is not engine._loaded.core:
                drafter = self._engines[engine] = make()
            return drafter

    def cores(self) -> tuple[Any, ...]:
        """The engines whose models draft."""
        with self._opening:
            return tuple(
                drafter.core
                for drafter in (
                    *(drafter for drafter, _ in self._models.values()),
                    *self._engines.values(),
                )
            )

    def close(self) -> None:
        """Close what was opened for this engine alone; nothing is opened any more."""
        with self._opening:
            self._closed = True
            models, self._models = self._models, {}
        for _, close in models.values():
            if close is not None:
                close()

    def _check(self) -> None:
        if self._closed:
            raise EngineError("engine: is closed")

    def candidates(self, asked: Any, masker: Any) -> Candidates | None:
        """How a request speculates; `masker` is the vocabulary of its grammar, None where it has
        none.

        A request that does not say is brought the text that its grammar forces.
        """
        if asked is False or asked is None and masker is None:
            return None
        if isinstance(asked, Candidates):
            return asked
        if asked is not None and asked is not True and asked not in ("auto", "lookup"):
            return Candidates(asked)
        if self._lookup is None:
            self._lookup = LookupDrafter()
        if masker is None or asked == "lookup":
            return Candidates(self._lookup)
        if self._text is None:
            self._text = ForcedText(masker.vocab_bytes)
        return (
            Candidates(self._text, asked=False)
            if asked is None
            else Candidates(FirstOf(self._text, self._lookup))
        )
