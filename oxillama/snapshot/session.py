"""Saves a session as bytes and restores it, exact at any token, on any machine. `docs/snapshot.md`
has the format; the container is `container.Envelope`.

    Session --take--> facts, tokens, pending, sampler, constraint, kv --seal--> bytes or a file
    bytes or a file --Envelope--> verified sections --restore--> Session of an engine over the same
    model

`Snapshots` belongs to one engine; `EngineSnapshot.inspect` reads a snapshot's description without
its pages.

Invariants (tests cite them by number):

1. A restored session continues with the tokens and logits of the saved one, whatever the threads,
   chunks, instruction set or process.
2. Two snapshots of one state are equal bytes, and so is a snapshot of a session that was just
   restored.
3. All of a snapshot is verified, and fits this engine, before anything of the engine except free
   pages changes. A refused snapshot changes nothing.
4. What cannot be saved completely is refused by name: functions unless they are given again,
   adapters unless the engine has loaded the same ones.
5. Taking a snapshot changes nothing and stops no other session: pages are shared while they are
   copied, and a session that writes gets a copy.
6. Pages of a restored session serve only that session and its forks, because hashes prove that a
   file is complete, not that its keys and values belong to its tokens.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from oxillama._core.kernels import PANEL_LAYOUT
from oxillama._core.pool import KV_BLOCK
from oxillama.arguments import CONFIG_NAMES, as_written, checked_flag, is_one_of
from oxillama.engine.config import EngineConfig
from oxillama.engine.engine import EngineCore
from oxillama.engine.generation import SharedVocabulary, sampler_of
from oxillama.engine.output import StopText
from oxillama.engine.session import Session
from oxillama.errors import (
    ConfigError,
    EngineError,
    GrammarError,
    LoraError,
    PoolError,
    SnapshotIncompatible,
)
from oxillama.gguf import PROBE_BYTES, GgufReader, ModelFingerprint, check_apart
from oxillama.grammar.automaton import MOST_SAVED
from oxillama.media.placement import EncoderSource, PlacedMedia
from oxillama.sampling import Sampler, SamplerConfig
from oxillama.snapshot.container import (
    Buffer,
    Envelope,
    Kind,
    dump_facts,
    load_facts,
    seal,
    typed,
    write_sealed,
)
from oxillama.snapshot.media import restored_media, saved_media
from oxillama.snapshot.pages import PageCopy, fill_pages

KIND = Kind(b"OXISNAP1", 1, SnapshotIncompatible)
_ALWAYS = ("facts", "tokens")
_MOST_FACTS = 1 << 26
_MOST_NOTE = 1 << 30
_MOST_MEDIA = 1 << 32
# of the engine; what else it has must be equal
_FREE = (
    "chat_template",
    "context_size",
    "kv_type",  # None stands for a type; `check_pages` compares the one in force
    "max_pages",
    "prefill_chunk_size",
    "sampler",
    "scheduler",
    "speculative",
)
RestoreConstraint = Callable[..., Any]  # (description, data, masker=, bridge=, once=) -> a state


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The description of a snapshot, which `inspect` reads without restoring it: the format
    `version`, the fingerprint of its `model`, `facts` as JSON values, the stored bytes and the
    encoding of each section by name, in order, the size of the file in bytes, and the `note`
    that the caller saved with it, None without one.
    """

    version: int
    model: ModelFingerprint
    facts: Mapping[str, Any]
    sections: Mapping[str, int]
    encodings: Mapping[str, str]
    file_size: int
    note: bytes | None = None

    @classmethod
    def inspect(cls, source: Buffer | str | os.PathLike[str]) -> EngineSnapshot:
        """Read the header and the facts of a snapshot, without its pages; SnapshotIncompatible if
        they are malformed.
        """
        with Envelope.open(KIND, source) as saved:
            return cls.of(saved)

    @classmethod
    def of(cls, saved: Envelope) -> EngineSnapshot:
        """The same of an opened snapshot."""
        if not isinstance(saved, Envelope):
            raise ConfigError(
                f"saved: found {type(saved).__name__}, wanted an opened snapshot (`inspect` reads "
                "a path or bytes)"
            )
        facts = load_facts(KIND, saved.read("facts", at_most=_MOST_FACTS))
        with typed(KIND, "facts"):
            if facts["kind"] != "session":
                raise SnapshotIncompatible(
                    f"facts: a snapshot of kind {facts['kind']!r}, wanted a session"
                )
            made = cls(
                saved.version,
                ModelFingerprint.from_dict(facts["model"]),
                facts,
                {name: each.stored for name, each in saved.sections.items()},
                {name: each.encoding_name for name, each in saved.sections.items()},
                saved.length,
                bytes(saved.read("note", at_most=_MOST_NOTE)) if "note" in saved.sections else None,
            )
            made.display()  # what cannot be shown lacks something
            return made

    def config(self, **changes: Any) -> EngineConfig:
        """The config of the engine that took it, with some fields changed."""
        with typed(KIND, "facts"):
            recorded = EngineConfig.from_dict(self.facts["engine"])
        with as_written(changes, CONFIG_NAMES):
            return replace(recorded, **EngineConfig.named(changes, place="a field of EngineConfig"))

    def display(self) -> str:
        """A few lines for people."""
        facts, kv = self.facts, self.facts["kv"]
        sampler, constraint = facts["sampler"], facts["constraint"]
        lines = [
            ("format", f"OXISNAP1, version {self.version}, {self.file_size:,} bytes"),
            ("model", f"{facts['name'] or 'unnamed'} ({facts['architecture']})"),
            ("file", self.model.display()),
            (
                "tokens",
                f"{facts['tokens']:,}, {facts['tokens'] - facts['start']:,} of them generated "
                f"last; context {facts['engine']['context_size']:,}",
            ),
            (
                "keys, values",
                f"{kv['length']:,} tokens of {kv['type']} in pages of {kv['page_size']}",
            ),
            (
                "sampler",
                "none"
                if sampler is None
                else f"temperature {sampler['config']['temperature']}, seed {sampler['seed']}",
            ),
            ("constraint", "none" if constraint is None else str(constraint["kind"])),
            (
                "sections",
                ", ".join(
                    f"{name} {size:,}"
                    + ("" if self.encodings[name] == "plain" else f" {self.encodings[name]}")
                    for name, size in self.sections.items()
                ),
            ),
        ]
        return "\n".join(f"{name:<13} {text}" for name, text in lines)


class Snapshots:
    """Saves and restores the sessions of one engine.

    reader: the open model file, to which snapshots are bound. tokenizer: a hash of the
    tokenizer.json that replaces the file's vocabulary, None without one. restore_constraint: makes
    a constraint's state from its description and bytes. adapters: finds the adapters that a
    snapshot names.
    """

    __slots__ = (
        "_adapters",
        "_fingerprints",
        "_identities",
        "_restore_constraint",
        "config",
        "core",
        "naming",
        "reader",
        "tokenizer",
        "vocabulary",
    )

    def __init__(
        self,
        core: EngineCore,
        config: EngineConfig,
        reader: GgufReader,
        vocabulary: SharedVocabulary | None,
        *,
        naming: Mapping[str, str],
        restore_constraint: RestoreConstraint,
        tokenizer: str | None = None,
        adapters: Callable[[Any], Any] | None = None,
    ) -> None:
        self.core, self.config, self.vocabulary = core, config, vocabulary
        self.naming, self.tokenizer = dict(naming), tokenizer
        self.reader, self._restore_constraint = reader, restore_constraint
        self._adapters = adapters
        self._identities = [(path, _file_identity(path)) for path in reader.paths]
        self._fingerprints: dict[bool, ModelFingerprint] = {}

    def fingerprint(self, *, full: bool = False) -> ModelFingerprint:
        """The loaded file's fingerprint, computed when first needed; SnapshotIncompatible if the
        file was written to since it was loaded.
        """
        if checked_flag("full", full) not in self._fingerprints:
            for path, known in self._identities:
                now = _file_identity(path)
                if now is not None and known is not None and now[0] == known[0] and now != known:
                    raise SnapshotIncompatible(
                        f"model: {path} was changed since it was loaded, wanted the file as it was"
                    )
            self._fingerprints[full] = ModelFingerprint.compute(self.reader, full=full)
        return self._fingerprints[full]

    def check_model(self, model: ModelFingerprint) -> None:
        """Raise ModelFingerprintMismatch unless the loaded file has this fingerprint."""
        if model.probe_size == PROBE_BYTES:
            model.check(self.fingerprint(full=model.full is not None))
        else:
            model.verify(self.reader)

    def page_facts(self) -> dict[str, Any]:
        """The layout of pages and the rotation of keys, as JSON values: for coded types also the
        keys' panels, and the rope overrides.
        """
        memory = self.core.memory
        recorded = {
            "type": memory.kv_type,
            "page_size": memory.page_size,
            "layers": [list(dims) for dims in memory.kv_layers],
            "page_bytes": memory.page_bytes,
            **self.config.rope().given(),
        }
        if self.core.rope_factors is not None:
            recorded["rope_factors"] = self.core.rope_factors
        return {**recorded, "layout": PANEL_LAYOUT} if KV_BLOCK[memory.kv_type] > 1 else recorded

    def check_pages(self, recorded: Mapping[str, Any]) -> None:
        """Raise SnapshotIncompatible, naming the field, for page facts that differ from this
        engine's.
        """
        mine = self.page_facts()
        if recorded.keys() & {"shed", "windows"}:  # there are bare pages: which layers they lack
            mine["windows"] = list(self.core.memory.windows)
        for name in (*mine, *sorted(recorded.keys() - {*mine, "length", "shed"})):
            found, wanted = recorded.get(name), mine.get(name)
            if type(found) is not type(wanted) or found != wanted:
                raise SnapshotIncompatible(
                    f"kv {name}: the snapshot has {found!r}, this engine {wanted!r}"
                )

    # ---- saving
    # ----------------------------------------------------------------------------------------------

    def to_bytes(
        self, session: Session, *, compress: str | None = None, full: bool = False
    ) -> bytes:
        """The session as bytes. compress="zstd" makes its pages smaller; full=True binds them to
        every byte of the model's file.

        EngineError while a request runs on the session, SnapshotIncompatible if it cannot be saved
        completely.
        """
        with self._saving(session, compress, full) as (sections, copies):
            sections |= {name: copy.read() for name, copy in copies.items()}
        return b"".join(seal(KIND, sections, compress=copies if compress else ()))

    def to_file(
        self,
        session: Session,
        path: str | os.PathLike[str],
        *,
        compress: str | None = None,
        full: bool = False,
        note: bytes | None = None,
    ) -> None:
        """Write the session to a file in one step; the file must not be one of the model's. OSError
        if the system refuses; then the old file is unchanged.

        note: bytes of the caller's own, which `restored` and `EngineSnapshot.inspect` show.
        """
        check_apart("snapshot_to_file", path, self.core.files())
        if note is not None and len(note) > _MOST_NOTE:
            raise SnapshotIncompatible(
                f"note: takes {len(note)} bytes, wanted at most {_MOST_NOTE}"
            )
        with self._saving(session, compress, full) as (sections, copies):
            if note is not None:
                sections["note"] = note
            write_sealed(path, KIND, {**sections, **copies}, compress=copies if compress else ())

    @contextmanager
    def _saving(
        self, session: Session, compress: str | None, full: bool
    ) -> Iterator[tuple[dict[str, Any], dict[str, PageCopy]]]:
        """(small sections, sections of shared pages): the state at one moment; the shares are
        released at the end.
        """
        if not is_one_of(compress, (None, "zstd")):
            raise ConfigError(f"compress: found {compress!r}, wanted None or 'zstd'")
        core, model = self.core, self.fingerprint(full=full)
        if session.owner is not core:
            raise EngineError("session: belongs to another engine, wanted one of this engine")
        core.wait_for_cancelled(session)
        with core.exclusive(session):
            facts, sections = self._serialised(session)
            whole_pages, bare = self._shared_pages(session)
        try:
            facts["model"] = model.to_dict()
            facts["kv"]["length"] = sum(bare.filled) + sum(whole_pages.filled)
            if bare.pages:
                facts["kv"] |= {"shed": len(bare.pages), "windows": list(core.memory.windows)}
            recorded = dump_facts(facts)
            if len(recorded) > _MOST_FACTS:
                raise SnapshotIncompatible(
                    f"facts: take {len(recorded)} bytes, wanted at most {_MOST_FACTS}"
                )
            named = {"kv": whole_pages, "kv_bare": bare}
            yield (
                {"facts": recorded, **sections},
                {name: copy for name, copy in named.items() if copy.nbytes},
            )
        finally:
            with core.lock:
                whole_pages.release()
                bare.release()

    def _serialised(self, session: Session) -> tuple[dict[str, Any], dict[str, Buffer]]:
        """(facts, small sections) of an idle session, under the engine's lock."""
        if session.adapters and not hasattr(session.adapters, "describe"):
            raise SnapshotIncompatible(
                f"adapters: found {len(session.adapters)} without a fingerprint, wanted those of "
                "`engine.loras`"
            )
        core = self.core
        facts: dict[str, Any] = {
            "kind": "session",
            **self.naming,
            "tokenizer": self.tokenizer,
            "vocab": core.program.vocab_size,
            "engine": {**self.config.to_dict(), "context_size": core.context_size},
            "adapters": session.adapters.describe() if session.adapters else [],
            "tokens": len(session.tokens),
            "start": session.start,
            "kv": self.page_facts(),
            "sampler": None,
            "constraint": None,
            "text": None,
            "stops": None,
        }
        sections: dict[str, Buffer] = {"tokens": np.array(session.tokens, "<i4").tobytes()}
        if session.target:
            facts["source"] = session.target
        elif session.media:
            facts["images"], sections["images"] = saved_media(session.media)
        if session.pending is not None:
            sections["pending"] = np.asarray(session.pending, "<f4").tobytes()
        if session.sampler is not None:
            facts["sampler"], sections["sampler"] = (
                _sampler_facts(session.sampler),
                session.sampler.state(),
            )
        if session.grammar is not None:
            facts["constraint"], sections["constraint"] = _constraint_parts(session.grammar)
        if session.text is not None:
            facts["text"] = {
                "pending": session.text.pending.hex(),
                "at_start": session.at_start,
                "shown": sorted(session.text.shown),
            }
        if session.stops is not None:
            facts["stops"] = {
                "stops": list(session.stops.stops),
                "tail": session.stops.tail,
                "held": session.stops.held,
            }
        return facts, sections

    def _shared_pages(self, session: Session) -> tuple[PageCopy, PageCopy]:
        """Shares of the pages that hold the session (whole, bare): its own or, if it has given them
        to the cache, the stored ones. The caller holds the engine's lock.
        """
        core, kv = self.core, session.kv
        if kv.stateful:  # pages are of no use without the state, which is evaluated again
            return PageCopy.of_sequence(core.pool, [], 0)
        # the last token is evaluated again where its logits are not known
        limit = max(0, len(session.tokens) - (session.pending is None))
        own = kv.reachable(min(kv.length, limit))
        if core.prefix is not None and own < limit:
            hit = core.prefix.share(session.identities, limit, key=session.cache_key)
            if hit.length > own:
                return PageCopy.of_sequence(core.pool, hit.pages, hit.length, shed=hit.shed)
            core.pool.free_near(hit.pages[hit.shed :])
            core.pool.free_all(hit.pages)
        pages = kv.shareable_pages()[: -(-own // core.pool.page_size)]
        core.pool.share_all(pages)
        core.pool.share_near(pages[kv.shed :])
        return PageCopy.of_sequence(core.pool, pages, own, shed=min(kv.shed, len(pages)))

    # ---- restoring
    # ----------------------------------------------------------------------------------------------

    def restore(
        self, source: Buffer | str | os.PathLike[str], *, processors: Sequence[Callable] = ()
    ) -> Session:
        """The session of `restored`."""
        return self.restored(source, processors=processors)[0]

    def restored(
        self, source: Buffer | str | os.PathLike[str], *, processors: Sequence[Callable] = ()
    ) -> tuple[Session, EngineSnapshot]:
        """The session of a snapshot in bytes or in the file at a path, which this engine keeps like
        its own, and the description of the same snapshot.

        processors: the functions of its sampler, which a file cannot contain. SnapshotIncompatible
        if the snapshot is malformed or does not fit this engine, ModelFingerprintMismatch for
        another model, PoolError if it needs more pages than the pool can ever have; then nothing
        has changed.
        """
        with Envelope.open(KIND, source) as saved:
            recorded = EngineSnapshot.of(saved)
            facts = recorded.facts
            self._check_engine(recorded)
            with typed(KIND, "snapshot"):
                session = self._deserialised(saved, facts, processors)
            return self._with_pages(session, saved, facts["kv"]), recorded

    def _check_engine(self, recorded: EngineSnapshot) -> None:
        """Refuse a snapshot of another model, or of an engine whose work this one cannot
        continue.
        """
        facts = recorded.facts
        self.check_model(recorded.model)
        with typed(KIND, "facts"):
            self.check_pages(facts["kv"])
            self._found_adapters(facts["adapters"])
            # fields that are newer than the snapshot have their defaults
            mine, theirs = self.config.to_dict(), recorded.config().to_dict()
            for name, found, wanted in (
                ("tokenizer", facts["tokenizer"], self.tokenizer),
                ("vocabulary", facts["vocab"], self.core.program.vocab_size),
                *(
                    (name, theirs[name], value)
                    for name, value in mine.items()
                    if name not in _FREE and not name.startswith("prefix_")
                ),
            ):
                if type(found) is not type(wanted) or found != wanted:
                    raise SnapshotIncompatible(
                        f"{name}: the snapshot has {found!r}, this engine {wanted!r}"
                    )
            if whole(facts["engine"]["context_size"], 1, "context_size") > self.core.context_size:
                raise SnapshotIncompatible(
                    f"context_size: the snapshot has {facts['engine']['context_size']}, this "
                    f"engine {self.core.context_size}"
                )

    def _found_adapters(self, recorded: Any) -> Any:
        """The adapters that a snapshot names; SnapshotIncompatible for one that is not loaded."""
        if type(recorded) is not list:
            raise SnapshotIncompatible(f"adapters: found {type(recorded).__name__}, wanted a list")
        if not recorded:
            return ()
        if self._adapters is None:
            raise SnapshotIncompatible(
                f"adapters: the snapshot has {len(recorded)}, this engine takes none"
            )
        for each in recorded:
            if set(each) != {"name", "fingerprint", "scale"} or not all(
                isinstance(each[key], str) for key in ("name", "fingerprint")
            ):
                raise SnapshotIncompatible(
                    f"adapters: found {each!r:.80}, wanted name, fingerprint and scale"
                )
        try:
            return self._adapters(recorded)
        except (LoraError, ConfigError) as error:
            raise SnapshotIncompatible(str(error)) from error

    def _deserialised(
        self, saved: Envelope, facts: Mapping[str, Any], processors: Sequence[Callable]
    ) -> Session:
        """A session without pages, made from verified sections and checked to fit; the engine is
        not changed.
        """
        core, vocab = self.core, self.core.program.vocab_size
        optional = {name for name in ("sampler", "constraint") if facts[name] is not None}
        if "images" in facts:
            optional.add("images")
        length, kv = self._page_sections(facts["kv"])
        saved.expect(
            (*_ALWAYS, *sorted(optional), *(name for name, _ in kv)), optional=("pending", "note")
        )
        count = whole(facts["tokens"], 0, "tokens", most=core.context_size)
        tokens = np.frombuffer(saved.read("tokens", exactly=4 * count), "<i4")
        if count and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab:
            raise SnapshotIncompatible(
                f"tokens: found {int(tokens.min())} to {int(tokens.max())}, wanted 0 to {vocab - 1}"
            )
        pending = (
            np.frombuffer(saved.read("pending", exactly=4 * vocab), "<f4").astype(np.float32)
            if "pending" in saved.sections
            else None
        )
        most = count - (pending is None)
        if length > max(0, most):
            raise SnapshotIncompatible(
                f"kv length: found {length}, wanted at most {max(0, most)} for {count} tokens"
            )
        session = core.new_session(
            tokens.tolist(), adapters=self._found_adapters(facts["adapters"])
        )
        if "images" in facts:
            held = saved.read("images", at_most=_MOST_MEDIA)
            session.media = restored_media(facts["images"], held, count, core.program.embed_columns)
        session.media += _source(facts.get("source"), tokens, core.start_token, length)
        session.start, session.pending = whole(facts["start"], 0, "start", most=count), pending
        session.origin = object()  # invariant 6
        for name, exactly in kv:
            saved.check(name, exactly=exactly)
        self._equip(session, saved, facts, processors)
        return session

    def _page_sections(self, facts: Mapping[str, Any]) -> tuple[int, list[tuple[str, int]]]:
        """(tokens that a snapshot has pages of, its sections of pages with their bytes)."""
        pool = self.core.pool
        length = whole(facts["length"], 0, "kv length")
        pages = -(-length // pool.page_size)
        shed = whole(facts.get("shed", 0), 0, "kv shed", most=pages)
        if shed and (not pool.window or shed * pool.page_size + pool.window - 1 > length):
            raise SnapshotIncompatible(
                f"kv shed: found {shed} pages without windowed layers, of {length} tokens with a "
                f"window of {pool.window}"
            )
        sections = (
            ("kv", (pages - shed) * self.core.memory.page_bytes),
            ("kv_bare", shed * pool.bare_bytes),
        )
        return length, [(name, exactly) for name, exactly in sections if exactly]

    def _equip(
        self,
        session: Session,
        saved: Envelope,
        facts: Mapping[str, Any],
        processors: Sequence[Callable],
    ) -> None:
        """Give a session the sampler, constraint, text decoder and stop filter of the snapshot."""
        words = self.vocabulary
        recorded, constraint, text, stops = (
            facts[name] for name in ("sampler", "constraint", "text", "stops")
        )
        if recorded is not None:
            session.sampler = self._sampler(saved, recorded, processors)
        elif processors:
            raise SnapshotIncompatible(
                f"processors: the session had no sampler, restore was given {len(processors)}"
            )
        if words is None:
            if constraint is not None or text is not None:
                raise SnapshotIncompatible(
                    "text: the snapshot has one, this engine has no vocabulary"
                )
        elif constraint is not None:
            data = bytes(saved.read("constraint", at_most=MOST_SAVED))
            session.grammar = self._restore_constraint(
                constraint, data, masker=words.masker, bridge=words.bridge, once=words.once
            )
        if text is not None and words is not None:
            session.text, session.at_start = (
                words.bridge.stream(shown=text["shown"]),
                _flag(text["at_start"]),
            )
            pending = bytes.fromhex(text["pending"])
            if session.text.feed_bytes(pending) or session.text.pending != pending:
                raise SnapshotIncompatible(
                    f"text: found {pending!r} pending, wanted the beginning of one character"
                )
        if stops is not None:
            session.stops = _stops(stops)

    def _sampler(
        self, saved: Envelope, recorded: Mapping[str, Any], processors: Sequence[Callable]
    ) -> Sampler:
        """The sampler of a snapshot, with the functions that it cannot hold."""
        if recorded["processors"] != len(processors):
            raise SnapshotIncompatible(
                f"processors: the session had {recorded['processors']}, restore was given "
                f"{len(processors)}; functions cannot be saved and must be given again"
            )
        made = sampler_of(
            SamplerConfig.from_dict(recorded["config"]),
            self.vocabulary,
            self.core.program.vocab_size,
            seed=recorded["seed"],
            processors=processors,
            logprobs=recorded["logprobs"],
        )
        made.restore(bytes(saved.read("sampler", at_most=_MOST_FACTS)))
        if made.seed != recorded["seed"]:
            raise SnapshotIncompatible(
                f"sampler: found seed {recorded['seed']!r} and a state of seed {made.seed}"
            )
        return made

    def _with_pages(self, session: Session, saved: Envelope, kv: Mapping[str, Any]) -> Session:
        """The session with its pages filled, kept by the engine.

        Free pages are filled while they are verified. If others would have to give up pages, they
        are verified first. If running requests hold the pages, the session gets none: its tokens
        are evaluated again when it continues, which waits for pages like every request.
        """
        core, length, shed = self.core, kv["length"], kv.get("shed", 0)
        pages, most = -(-length // core.pool.page_size), core.pool.max_pages
        need = core.pool.whole_pages(pages, pages - shed)
        if most is not None and need > most:
            raise PoolError(
                f"page pool: the snapshot's {length} tokens need {need} pages, max_pages is {most}"
            )
        with core.exclusive(session):
            # its pages cannot be taken until they are filled
            session.busy = True
            core.keep(session)
        try:
            held = self._reserve_free_pages(session, length, shed)
            if not held:
                fill_pages(core.memory, [-1] * (pages - shed), saved, bare=[-1] * shed)
                with core.lock:
                    available = core.allocator.available_pages()
                    held = (
                        available is None or need <= available
                    ) and core.allocator.make_writable(session.kv, length, bare=shed)
            if held and length:
                table = session.kv.pages
                fill_pages(core.memory, table[shed:], saved, bare=table[:shed])
        except BaseException:
            with core.lock:
                session.busy = False
                core.drop(session)
            raise
        with core.lock:
            if held:
                session.kv.commit(length)
            session.busy = False
        return session

    def _reserve_free_pages(self, session: Session, length: int, shed: int) -> bool:
        """Whether this many positions fit into free pages."""
        with self.core.lock:
            try:
                session.kv.reserve(length, bare=shed)
                return True
            except PoolError:
                return False


def whole(value: Any, least: int, name: str, *, most: int = 1 << 62) -> int:
    if type(value) is not int or not least <= value <= most:
        raise SnapshotIncompatible(f"{name}: found {value!r}, wanted {least} to {most}")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise SnapshotIncompatible(f"at_start: found {value!r}, wanted true or false")
    return value


def _source(
    rows: Any, tokens: np.ndarray, start: int | None, evaluated: int
) -> tuple[PlacedMedia, ...]:
    """The source of a snapshot's session, `rows` of its tokens, None of a session without one.
    start: the token that follows, None for an engine without an encoder before its decoder.
    """
    if (rows is None) != (start is None or not len(tokens)):
        raise SnapshotIncompatible(
            f"source: found {rows!r:.50}, wanted {'none' if start is None else 'one'}"
        )
    if rows is None:
        return ()
    end = whole(rows, 1, "source", most=len(tokens) - 1) + 1
    if tokens[end - 1] != start or 0 < evaluated < end - 1:
        raise SnapshotIncompatible(
            f"source: found {rows} tokens before {tokens[end - 1]} and pages of {evaluated}, "
            f"wanted {start} there, and pages of all of them or none"
        )
    return (PlacedMedia(0, EncoderSource(tuple(tokens[:end].tolist()))),)


def _sampler_facts(sampler: Sampler) -> dict[str, Any]:
    return {
        "config": sampler.config.to_dict(),
        "seed": sampler.seed,
        "logprobs": sampler.top,
        "processors": len(sampler.processors),
    }


def _constraint_parts(state: Any) -> tuple[dict[str, Any], bytes]:
    """(description, bytes) of a constraint's state; refused if it has no description."""
    if not callable(getattr(state, "describe", None)) or not callable(
        getattr(state, "serialise", None)
    ):
        raise SnapshotIncompatible(
            f"constraint: a {type(state).__name__} cannot be saved, wanted one with describe and "
            "serialise"
        )
    try:
        description, data = state.describe(), state.serialise()
    except GrammarError as error:
        raise SnapshotIncompatible(f"constraint: cannot be saved: {error}") from None
    if len(data) > MOST_SAVED:
        raise SnapshotIncompatible(
            f"constraint: its state takes {len(data)} bytes, wanted at most {MOST_SAVED}"
        )
    return description, data


def _stops(recorded: Mapping[str, Any]) -> StopText:
    """A stop filter in the state that was saved."""
    stops, tail = SamplerConfig(stop=tuple(recorded["stops"])).stop, recorded["tail"]
    held = whole(recorded["held"], 0, "stops held", most=len(tail) if type(tail) is str else 0)
    # stop strings given since may be shorter than what was held back for those before
    if not isinstance(tail, str) or len(tail) > max(1, held, *map(len, stops)):
        raise SnapshotIncompatible(
            f"stops: found a tail of {str(tail)[:40]!r}, wanted at most the length of a stop"
        )
    return StopText(stops, tail, held)


def _file_identity(path: os.PathLike[str]) -> tuple[tuple[int, int], int, int] | None:
    """Identifies the state of a file, to see whether it was written to; None if it no longer
    exists.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino), status.st_size, status.st_mtime_ns
