"""`SpeculativeEngine`: a target and a draft model as one engine.

    engine = SpeculativeEngine(SpeculativeConfig("target.gguf", "draft.gguf"))
    engine.generate("Once upon a time").text

The text is the target's, token for token, with the same seed. With a `draft_sampler`, candidates
are drawn by the draft's own sampler and accepted with probability min(1, p/q). The text still
follows the target's distribution, and the same seed still gives the same text, but a different one
than the target alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

from oxillama.api import InferenceEngine, load
from oxillama.arguments import path_of, refuse_resumable, spelled
from oxillama.completion import Completion, Piece, SpecStats
from oxillama.durable import write_parts
from oxillama.engine.config import EngineConfig
from oxillama.engine.generation import SharedVocabulary, sampler_of
from oxillama.engine.request import Request, finished
from oxillama.engine.session import Session
from oxillama.engine.stream import Stream
from oxillama.errors import ConfigError, OxillamaError, SamplingError, SpecSnapshotIncompatible
from oxillama.gguf import check_apart
from oxillama.loaded import Prompt
from oxillama.opening import core_over, open_model
from oxillama.options import GenerateOptions, Options
from oxillama.sampling import Sampler, SamplerConfig
from oxillama.speculative.background import BackgroundDrafter, ThreadOwner
from oxillama.speculative.config import Model, SpeculativeConfig
from oxillama.speculative.draft_model import ModelDrafter
from oxillama.speculative.drafts import DraftModels, requantised_draft
from oxillama.speculative.snapshot import SpecSnapshot
from oxillama.speculative.types import Candidates, Drafter, NoCandidates, carries
from oxillama.stores import located_draft

_NOTHING_TO_SAVE = "snapshot: there is no session to save"


@spelled
class SpeculativeEngine:
    """Generates with the target of a config, faster with the help of its draft. It closes engines
    that it loaded itself.

    background: draft in a separate thread while the target verifies. draft_config: for a draft that
    is loaded here.
    """

    def __init__(
        self,
        config: SpeculativeConfig,
        *,
        background: bool = False,
        draft_config: EngineConfig | None = None,
    ) -> None:
        if not isinstance(config, SpeculativeConfig):
            raise ConfigError(f"config: found {type(config).__name__}, wanted a SpeculativeConfig")
        self.config = config
        self._mine: list[InferenceEngine] = []
        self._folder: TemporaryDirectory | None = None
        self._close_draft: Any = None
        self._background: BackgroundDrafter | None = None
        self._request: Request | None = None  # the last one
        self._accepted = 0  # candidates accepted before the last request
        try:
            self.target = self._opened_target()
            self.drafter = self._opened_draft(draft_config)
            if background and carries(self.drafter):
                raise ConfigError(
                    f"draft: found {config.draft!r}, which needs rows of each of the target's "
                    "steps, wanted a draft that works meanwhile, or a SpeculativeEngine"
                )
        except BaseException:
            self.close()
            raise
        drafter: Drafter = self.drafter
        if background:
            drafter = self._background = BackgroundDrafter(self.drafter)
        self.candidates = Candidates(
            drafter,
            config.num_speculative,
            # the text depends on how many candidates a background drafter draws by its own sampler
            config.adaptive and not (background and config.draft_sampler is not None),
            # of this engine and of its requests: the thread ends when neither is left
            owner=ThreadOwner(self._background) if self._background is not None else None,
        )

    def __repr__(self) -> str:
        """The engine of its target."""
        return f"<SpeculativeEngine of {self.target!r}>"

    def _opened_target(self) -> InferenceEngine:
        target = self.config.target
        if isinstance(target, InferenceEngine):
            return target
        if target is not None and not isinstance(target, (str, Path)):
            raise ConfigError(
                f"target: found {type(target).__name__}, wanted an InferenceEngine, a model's name "
                "or None"
            )
        self._mine.append(load(target))
        return self._mine[-1]

    def _opened_draft(self, config: EngineConfig | None) -> ModelDrafter:
        loaded, source, own = self.target.loaded, self.config.draft, None
        if source == "requantised":
            self._folder = TemporaryDirectory(prefix="oxillama-draft-", ignore_cleanup_errors=True)
            source = requantised_draft(loaded.model, self._folder.name)
        if self.config.draft_sampler is not None:
            # not a method: a drafter that refers to this engine would keep it alive
            own = partial(_draft_sampler, self.config.draft_sampler, loaded.vocabulary)
        models = DraftModels(
            loaded.model,
            loaded.vocabulary,
            open_model=open_model,
            core_over=core_over,
            locate=located_draft,
        )
        drafter, self._close_draft = models.open(source, own_sampler=own, config=config)
        return drafter

    @property
    def background(self) -> BackgroundDrafter | None:
        """The drafter's thread, if it drafts in the background."""
        return self._background

    def submit(
        self,
        prompt: Prompt | None,
        *,
        drafting: bool = True,
        **options: Unpack[GenerateOptions],
    ) -> Request:
        """Start a generation and return at once; options are those of `InferenceEngine.submit`
        except `n` and `best_of`.

        drafting=False generates without the draft.
        """
        given: dict[str, Any] = {**options}
        refuse_resumable(given)
        if "speculative" in given:
            raise ConfigError("speculative: found together with a draft, wanted the draft alone")
        count = Options.of(
            {name: given[name] for name in ("n", "best_of") if name in given}
        ).completions
        if count > 1:
            raise ConfigError(f"n, best_of: found {count} completions and a draft, wanted 1")
        if self.config.seed is not None and prompt is not None:
            given.setdefault("seed", self.config.seed)
        request = self.target.submit(
            prompt,
            resumable=True,
            speculative=self.candidates if drafting else Candidates(NoCandidates(), adaptive=False),
            **given,
        )
        assert isinstance(request, Request)  # one completion
        self._accepted += self.stats.accepted
        self._request = request
        return request

    def generate(
        self,
        prompt: Prompt | None,
        *,
        drafting: bool = True,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        """The completion of a prompt (text or token ids); None continues the session used last."""
        return finished(self.submit(prompt, drafting=drafting, **options))

    def stream(
        self,
        prompt: Prompt | None,
        *,
        drafting: bool = True,
        **options: Unpack[GenerateOptions],
    ) -> Stream[Piece]:
        """The pieces of the completion as they are generated."""
        return Stream(self.submit(prompt, drafting=drafting, **options))

    @property
    def stats(self) -> SpecStats:
        """The counts of the last request's candidates."""
        request = self._request
        return (
            SpecStats()
            if request is None or request.speculation is None
            else request.speculation.stats()
        )

    # ---- snapshots

    def snapshot(self) -> bytes:
        """The session that `generate(None)` would continue, and the draft's; see
        `speculative.snapshot`.

        It can be taken after any end of a request; the resumed engine generates the same tokens.
        """
        loaded = self.target.loaded
        session = loaded.last_session(_NOTHING_TO_SAVE)
        loaded.core.wait_for_cancelled(session)
        if self._background is not None:
            self._background.wait_for_ended()
        draft = self.drafter.save(session)
        return SpecSnapshot(
            target=session.snapshot(),
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
        """Write `snapshot` to a file, completely or not at all. The file must not be one of the two
        models.
        """
        for core in (self.target.loaded.core, self.drafter.core):
            check_apart("snapshot_to_file", path, core.files())
        write_parts(path, [self.snapshot()])

    @classmethod
    def resume(
        cls, data: bytes | str | Path, target: Model = None, draft: Any = None, **changes: Any
    ) -> SpeculativeEngine:
        """An engine over the same two models whose session continues from the snapshot.

        changes: fields of `SpeculativeConfig` to change; if the draft has its own sampler, none on
        which the text depends. SpecSnapshotIncompatible if the snapshot is malformed or does not
        fit, ModelFingerprintMismatch for another target.
        """
        saved = SpecSnapshot.decode(str(data) if isinstance(data, Path) else data)
        known = {field.name for field in fields(SpeculativeConfig)} - {"target", "draft"}
        for name in changes:
            if name not in known:
                raise ConfigError(
                    f"{name}: is not a field of SpeculativeConfig that may differ, wanted one of "
                    f"{', '.join(sorted(known))}"
                )
        sampler = saved.settings.get("draft_sampler")
        try:
            config = SpeculativeConfig(
                target,
                draft,
                num_speculative=saved.num_speculative,
                seed=saved.seed,
                adaptive=saved.settings["adaptive"],
                draft_sampler=None if sampler is None else SamplerConfig.from_dict(sampler),
            )
        except (KeyError, TypeError, OxillamaError) as error:
            raise SpecSnapshotIncompatible(f"settings: {error}") from error
        changed = [name for name, value in changes.items() if getattr(config, name) != value]
        if sampler is not None and changed:
            raise ConfigError(
                f"{changed[0]}: the text depends on it where the draft draws by its own sampler, "
                "wanted it unchanged"
            )
        config = replace(config, **changes)
        if isinstance(target, InferenceEngine):
            # the target's own session is replaced only once everything else is verified
            session = target.restore(saved.target)
            try:
                engine = cls._resumed(config, session, saved)
            except BaseException:
                session.close()
                raise
            target.loaded.default_session.take(session)
            return engine
        opened = InferenceEngine.resume(saved.target, target)
        try:
            engine = cls._resumed(
                replace(config, target=opened), opened.loaded.last_session(_NOTHING_TO_SAVE), saved
            )
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
        engine = cls(config, background=bool(saved.settings.get("background")))
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
        return cls.resume(path_of("resume_from_file", path), target, draft, **changes)

    def _follow(self, session: Session, saved: SpecSnapshot) -> None:
        drafter = self.drafter
        self._accepted = saved.accepted_tokens
        if not saved.memory:
            return
        try:
            drafted = (
                drafter.core.require_snapshots().restore(saved.draft)
                if saved.draft
                else drafter.core.new_session()
            )
            drafter.resume(
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
        settings: dict[str, Any] = {
            "adaptive": self.config.adaptive,
            "draft_sampler": None if sampler is None else sampler.to_dict(),
        }
        # the text depends on it where the draft draws by its own sampler
        return {**settings, "background": True} if self._background is not None else settings

    # ---- the end

    def close(self) -> None:
        """Stop, close what was loaded here, and remove the draft file that was made here."""
        for engine in self._mine:
            engine.close()
        if self._background is not None:
            self._background.close_thread()
        drafter = getattr(self, "drafter", None)
        if drafter is not None:
            drafter.forget()
        # it holds the draft's weights
        close, self._close_draft = self._close_draft, None
        if close is not None:
            close()
        if self._folder is not None:
            self._folder.cleanup()

    def __enter__(self) -> SpeculativeEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _draft_sampler(
    config: SamplerConfig, vocabulary: SharedVocabulary | None, session: Session
) -> Sampler:
    """The draft's own sampler for a session. Its random stream starts from the session's seed and
    shares no numbers with the session's sampler.
    """
    seed = hashlib.blake2b(
        session.sampler.seed.to_bytes(8, "little"), digest_size=8, person=b"draft"
    ).digest()
    return sampler_of(
        config, vocabulary, session.sampler.vocab_size, seed=int.from_bytes(seed, "little")
    )
