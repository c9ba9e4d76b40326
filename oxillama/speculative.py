"""`SpeculativeEngine`: a target and a draft model as one engine.

    SpeculativeEngine(SpeculativeConfig("target.gguf", "draft.gguf")).generate("Once upon a
    time").text

The text is the target's: token for token what the target alone would say, with the same seed. With
a `draft_sampler` candidates are drawn by a sampler of the draft's own and judged by min(1, p/q):
the law of the text is still the target's, and the same seed still gives the same text, but another
than the target's alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from oxillama.api import InferenceEngine, load
from oxillama.drafts import open_draft, requantised_draft
from oxillama.durable import write_parts
from oxillama.engine.config import EngineConfig
from oxillama.engine.drafting import ModelDrafter
from oxillama.engine.generation import Options, Vocabulary, sampler_of
from oxillama.engine.request import Completion, Request, Stream, finished
from oxillama.engine.session import Session
from oxillama.engine.specsnapshot import SpecSnapshot
from oxillama.engine.speculation import Candidates, Drafter, Silent, SpecStats
from oxillama.errors import ConfigError, OxillamaError, SamplingError, SpecSnapshotIncompatible
from oxillama.gguf import check_apart
from oxillama.sampling import Sampler, SamplerConfig

Model = str | Path | InferenceEngine | None


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """A target, a draft, and how they go together.

    target: an engine or a GGUF file, None for the embedded model. draft: an engine, a file, a
    folder (the best compatible file in it is taken), "early_exit:n" (the target's own first n
    layers under its output norm and head, over the same weights; "early_exit": a quarter of them),
    or "requantised" (the target itself with fewer bits, in a temporary file that goes when the
    engine is closed, or at the latest when the interpreter ends). num_speculative: most candidates
    of a step. seed: of every generation that says none. draft_sampler: draw candidates by it, and
    judge them; None: with the target's own random numbers. adaptive: bring only as many candidates
    as pay.
    """

    target: Model = None
    draft: Any = None
    num_speculative: int = 4
    seed: int | None = None
    draft_sampler: SamplerConfig | None = None
    adaptive: bool = True

    def __post_init__(self) -> None:
        value = self.num_speculative
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"num_speculative: found {value!r}, wanted an integer of 1 or more")
        if self.seed is not None and (
            isinstance(self.seed, bool)
            or not isinstance(self.seed, int)
            or not 0 <= self.seed < 1 << 64
        ):
            raise ConfigError(f"seed: found {self.seed!r}, wanted an integer in [0, 2^64)")
        if self.draft_sampler is not None and not isinstance(self.draft_sampler, SamplerConfig):
            raise ConfigError(
                f"draft_sampler: found {type(self.draft_sampler).__name__}, wanted a SamplerConfig"
            )
        if self.draft is None:
            raise ConfigError(
                "draft: found None, wanted an engine, a GGUF file, a folder of them, 'early_exit' or 'requantised'"
            )


class SpeculativeEngine:
    """Generates with the target of a config, sped up by its draft. Engines that it loaded itself it
    closes.
    """

    def __init__(
        self,
        config: SpeculativeConfig,
        *,
        wrap: Callable[[ModelDrafter], Drafter] | None = None,
        draft_config: EngineConfig | None = None,
    ) -> None:
        self.config = config
        self._mine: list[Any] = []
        self._folder: TemporaryDirectory | None = None
        try:
            self.target = (
                config.target
                if isinstance(config.target, InferenceEngine)
                else self._own(load(config.target))
            )
            source = self._requantised() if config.draft == "requantised" else config.draft
            own = None
            if config.draft_sampler is not None:
                # not a method: a drafter that refers to this engine would keep it alive
                own = partial(_draft_sampler, config.draft_sampler, self.target._loaded.vocabulary)
            self.drafter, close = open_draft(
                self.target._loaded.vocabulary,
                self.target._loaded.model,
                source,
                own_sampler=own,
                config=draft_config,
            )
        except BaseException:
            self.close()
            raise
        self._close_draft = close
        self._drafter = self.drafter if wrap is None else wrap(self.drafter)
        self.candidates = Candidates(self._drafter, config.num_speculative, config.adaptive)
        self._last: Request | None = None
        self._accepted = 0  # candidates that stood before the last request

    def submit(self, prompt: Any, *, drafting: bool = True, **options: Any) -> Request:
        """Start a generation and return at once; options are those of `InferenceEngine.submit` but
        `n` and `best_of`.

        drafting=False leaves the draft alone.
        """
        if "speculative" in options:
            raise ConfigError("speculative: found beside a draft, wanted the draft alone")
        count = Options.of(
            {name: options[name] for name in ("n", "best_of") if name in options}
        ).completions
        if count > 1:
            raise ConfigError(f"n, best_of: found {count} completions beside a draft, wanted 1")
        if self.config.seed is not None and prompt is not None:
            options.setdefault("seed", self.config.seed)
        request = self.target._begin(
            prompt,
            live=True,
            speculative=self.candidates if drafting else Candidates(Silent(), adaptive=False),
            **options,
        )
        self._accepted += self.stats.accepted
        self._last = self.target._loaded.follow(request)
        return request

    def generate(self, prompt: Any, **options: Any) -> Completion:
        """The completion of a prompt, text or token ids; None goes on with the session used last."""
        return finished(self.submit(prompt, **options))

    def stream(self, prompt: Any, **options: Any) -> Stream:
        """The completion as it comes."""
        return Stream(self.submit(prompt, **options))

    @property
    def stats(self) -> SpecStats:
        """What became of the candidates of the last request."""
        return (
            SpecStats()
            if self._last is None or self._last.speculation is None
            else self._last.speculation.stats()
        )

    # ---- snapshots
    # -----------------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The session that `generate(None)` would go on with, the draft's beside it; see
        `engine.specsnapshot`.
        """
        target, session = self.target, self.target._last()
        target._loaded.core.settle(session)
        draft = self.drafter.save(session)
        return SpecSnapshot(
            target=target.snapshot(),
            draft=b"" if draft is None else draft.session,
            num_speculative=self.config.num_speculative,
            seed=self.config.seed,
            accepted_tokens=self._accepted + self.stats.accepted,
            rng_state=session.sampler.rng.raw_state() if session.sampler else 0,
            sampler=b"" if draft is None else draft.sampler,
            held=0 if draft is None else draft.held,
            memory={} if draft is None else draft.memory,
            settings=self._settings(),
        ).encode()

    def snapshot_to_file(self, path: str | Path) -> None:
        """The same in a file, whole or not at all; none of the two models' own."""
        for core in (self.target._loaded.core, self.drafter.core):
            check_apart("snapshot_to_file", path, core.files())
        write_parts(path, [self.snapshot()])

    @classmethod
    def resume(
        cls, data: bytes | str | Path, target: Model = None, draft: Any = None, **changes: Any
    ) -> SpeculativeEngine:
        """An engine over the same two models whose session goes on where that of the snapshot
        stood.

        changes: fields of `SpeculativeConfig` that shall differ; where the draft draws by a sampler
        of its own, none that the text depends on. SpecSnapshotIncompatible for what is malformed or
        does not fit, ModelFingerprintMismatch for another target.
        """
        saved = SpecSnapshot.decode(data)
        known = {field.name for field in fields(SpeculativeConfig)} - {"target", "draft"}
        for name in changes:
            if name not in known:
                raise ConfigError(
                    f"{name}: is no field of SpeculativeConfig that may differ, wanted one of {', '.join(sorted(known))}"
                )
        told = saved.settings.get("draft_sampler")
        try:
            config = SpeculativeConfig(
                target,
                draft,
                num_speculative=saved.num_speculative,
                seed=saved.seed,
                adaptive=saved.settings["adaptive"],
                draft_sampler=None if told is None else SamplerConfig.from_dict(told),
            )
        except (KeyError, TypeError, OxillamaError) as error:
            raise SpecSnapshotIncompatible(f"settings: {error}") from error
        changed = [name for name, value in changes.items() if getattr(config, name) != value]
        if told is not None and changed:
            raise ConfigError(
                f"{changed[0]}: the text depends on it where the draft draws by its own sampler, wanted it unchanged"
            )
        config = replace(config, **changes)
        if isinstance(target, InferenceEngine):
            # the live one stays until all else has been found good
            session = target.restore(saved.target)
            try:
                engine = cls._resumed(config, session, saved)
            except BaseException:
                session.close()
                raise
            target._loaded.live.take(session)
            return engine
        opened = InferenceEngine.resume(saved.target, target)
        try:
            engine = cls._resumed(replace(config, target=opened), opened._last(), saved)
        except BaseException:
            opened.close()
            raise
        engine._mine.append(opened)
        return engine

    @classmethod
    def _resumed(
        cls, config: SpeculativeConfig, session: Session, saved: SpecSnapshot
    ) -> SpeculativeEngine:
        """An engine whose draft follows a restored session."""
        engine = cls(config)
        try:
            engine._follow(session, saved)
        except BaseException:
            engine.close()
            raise
        return engine

    @classmethod
    def resume_from_file(
        cls, path: str | Path, target: Model = None, draft: Any = None, **changes: Any
    ) -> SpeculativeEngine:
        """`resume` from a file of `snapshot_to_file`."""
        return cls.resume(Path(path), target, draft, **changes)

    def _follow(self, session: Session, saved: SpecSnapshot) -> None:
        drafter = self.drafter
        self._accepted = saved.accepted_tokens
        if not saved.memory:
            return
        try:
            drafted = (
                drafter.core.saved().restore(saved.draft)
                if saved.draft
                else drafter.core.new_session()
            )
            drafter.follow(
                session,
                drafted,
                held=saved.held,
                sampler=saved.sampler or None,
                memory=saved.memory,
            )
        except (KeyError, TypeError, ValueError, SamplingError) as error:
            raise SpecSnapshotIncompatible(f"draft: {error}") from error

    def _settings(self) -> dict[str, Any]:
        sampler = self.config.draft_sampler
        return {
            "adaptive": self.config.adaptive,
            "draft_sampler": None if sampler is None else sampler.to_dict(),
        }

    # ---- ends
    # ------------------------------------------------------------------------------------------------------------------

    def _own(self, engine: InferenceEngine) -> InferenceEngine:
        self._mine.append(engine)
        return engine

    def _requantised(self) -> Path:
        self._folder = TemporaryDirectory(prefix="oxillama-draft-", ignore_cleanup_errors=True)
        return requantised_draft(self.target._loaded.model, self._folder.name)

    def close(self) -> None:
        """Stop, close what was loaded here, and remove the draft that was made here."""
        for engine in self._mine:
            engine.close()
        if hasattr(self, "drafter"):
            self.drafter.forget()
        # it holds the draft's weights
        close, self._close_draft = getattr(self, "_close_draft", None), None
        if close is not None:
            close()
        if self._folder is not None:
            self._folder.cleanup()

    def __enter__(self) -> SpeculativeEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _draft_sampler(
    config: SamplerConfig, vocabulary: Vocabulary | None, session: Session
) -> Sampler:
    """The draft's own sampler for a session. Its random stream starts from the session's seed and
    shares no numbers with the session's own.
    """
    seed = hashlib.blake2b(
        session.sampler.seed.to_bytes(8, "little"), digest_size=8, person=b"draft"
    ).digest()
    return sampler_of(
        config, vocabulary, session.sampler.vocab_size, seed=int.from_bytes(seed, "little")
    )
