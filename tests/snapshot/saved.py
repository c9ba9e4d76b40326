"""Snapshots to take apart and to put together again, and the engines and models they are of."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import oxillama
from oxillama import SamplerConfig
from oxillama.snapshot.container import Envelope, dump_facts, seal
from oxillama.snapshot.session import KIND
from tests.model import tiny

SEEDED = SamplerConfig(temperature=1.0, seed=5)
PROMPT = "Once upon a time"


@contextmanager
def small_engine(folder: Path) -> Iterator[tuple]:
    """(path of a tiny model without a vocabulary, an engine over it, a session that has drawn some
    tokens, its snapshot).
    """
    path = folder / "tiny.gguf"
    others = {name: None for name in tiny.shapes("llama") if name.startswith(("blk.1.", "blk.2."))}
    tiny.write(path, "llama", keys={"llama.block_count": 1}, tensors=others)
    with oxillama.load(path, num_threads=1) as engine:
        session = engine.session()
        engine.generate([1, 2, 3], session=session, max_tokens=3, sampler=SEEDED)
        yield path, engine, session, session.snapshot()


def parts(data) -> tuple[dict, dict]:
    """(facts, sections) of a snapshot."""
    with Envelope.open(KIND, data) as saved:
        found = {name: bytes(saved.read(name, at_most=1 << 30)) for name in saved.sections}
    return json.loads(found.pop("facts")), found


def remade(data, change) -> bytes:
    """The snapshot with its facts and sections changed by a function, under hashes that fit."""
    facts, sections = parts(data)
    change(facts, sections)
    return b"".join(seal(KIND, {"facts": dump_facts(facts), **sections}))


def at(*path, value):
    """A change of one fact."""

    def change(facts, sections):
        for name in path[:-1]:
            facts = facts[name]
        facts[path[-1]] = value

    return change


def state_of(engine) -> tuple:
    """What a refusal must leave as it was."""
    core = engine._loaded.core
    return (
        core.pool.pages_used,
        len(core.allocator.sessions),
        core.metrics().pages_leaked,
        core.prefix.entries,
        core.memory.capacity,
    )
