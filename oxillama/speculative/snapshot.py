"""A speculating session as bytes: the target's session, the draft's, and the state between them, in
a container of its own kind.

    OXISPEC1    facts   num_speculative, seed, accepted tokens, rng_state, what the drafter learned,
                        how it draws
                target  a snapshot of the target's session (OXISNAP1)
                draft   a snapshot of the draft's session, if there is one
                sampler the draft's own sampler, if it has one

Little-endian, each section covered by a hash, as in `snapshot.container`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from blake3 import blake3

from oxillama.errors import SpecSnapshotIncompatible
from oxillama.snapshot.container import Buffer, Envelope, Kind, dump_facts, load_facts, seal

KIND = Kind(b"OXISPEC1", 1, SpecSnapshotIncompatible)
_MOST_FACTS = 1 << 26
_MOST_SAMPLER = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecSnapshot:
    """The saved state of a speculating session.

    target, draft: snapshots of the sessions, draft empty without one. accepted_tokens: candidates
    accepted so far. rng_state: of the target's sampler, 0 without one. sampler: state of the
    draft's own sampler, empty without one. memory: what the drafter learned; settings: how the
    draft draws; both are JSON values.
    """

    target: bytes
    draft: bytes = b""
    num_speculative: int = 4
    seed: int | None = None
    accepted_tokens: int = 0
    rng_state: int = 0
    sampler: bytes = b""
    held: int = 0
    memory: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The bytes; equal snapshots make equal ones."""
        facts = {
            "num_speculative": self.num_speculative,
            "seed": self.seed,
            "accepted_tokens": self.accepted_tokens,
            "held": self.held,
            "rng_state": self.rng_state,
            "memory": self.memory,
            "settings": self.settings,
        }
        return b"".join(
            bytes(part)
            for part in seal(
                KIND,
                {
                    "facts": dump_facts(facts),
                    "target": self.target,
                    "draft": self.draft,
                    "sampler": self.sampler,
                },
            )
        )

    @classmethod
    def decode(cls, source: Buffer | str) -> SpecSnapshot:
        """The snapshot in bytes or in a file, verified; SpecSnapshotIncompatible for anything
        else.
        """
        with Envelope.open(KIND, source) as saved:
            saved.expect(("facts", "target", "draft", "sampler"))
            facts = load_facts(KIND, saved.read("facts", at_most=_MOST_FACTS))
            for name, kinds in _FACTS.items():
                value = facts.get(name)
                if (
                    not isinstance(value, kinds)
                    or isinstance(value, bool)
                    or isinstance(value, int)
                    and value < 0
                ):
                    raise SpecSnapshotIncompatible(
                        f"facts: {name}: found {value!r}, wanted "
                        f"{' or '.join(kind.__name__ for kind in kinds)}"
                    )
            if set(facts) != set(_FACTS) or facts["num_speculative"] < 1:
                raise SpecSnapshotIncompatible(
                    f"facts: found {sorted(facts)}, wanted {sorted(_FACTS)} and num_speculative of "
                    "1 or more"
                )
            return cls(
                target=bytes(saved.read("target")),
                draft=bytes(saved.read("draft")),
                sampler=bytes(saved.read("sampler", at_most=_MOST_SAMPLER)),
                **facts,
            )

    @property
    def fingerprint(self) -> str:
        """BLAKE3 of the bytes, hexadecimal."""
        return blake3(self.encode()).hexdigest()


_FACTS: dict[str, tuple[type, ...]] = {
    "num_speculative": (int,),
    "seed": (int, type(None)),
    "accepted_tokens": (int,),
    "held": (int,),
    "rng_state": (int,),
    "memory": (dict,),
    "settings": (dict,),
}
