"""OXISPEC1: golden files of every version go on as they did, and what lies is refused before
anything is made of it.
"""

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

import oxillama
from oxillama.errors import ConfigError, SpecSnapshotIncompatible
from oxillama.snapshot.container import Envelope, dump_facts, seal
from oxillama.speculative import SpeculativeConfig, SpeculativeEngine, draft_model
from oxillama.speculative.snapshot import KIND, SpecSnapshot
from tests.model.invented import HIDDEN
from tests.speculative.law import written

GOLDEN = sorted((Path(__file__).parents[1] / "snapshot" / "golden").glob("speculation-v*.oxispec"))
LENGTHS = (2**31, 2**32, 2**63, 2**64 - 1)
SECTIONS = ("facts", "target", "draft", "sampler")
# Of the header and the file, then stored and plain of each section, as `envelope` draws them.
PLACES = (16, 24, *(64 + 72 * at + field for at in range(len(SECTIONS)) for field in (24, 32)))


def resealed(data: bytes, at: int, packed: bytes) -> bytes:
    """The container with bytes of its header changed, under a header hash that fits."""
    header = bytearray(data[: 64 + 72 * len(SECTIONS)])
    header[at : at + len(packed)] = packed
    header[32:64] = blake3(bytes(header[:32] + header[64:])).digest()
    return bytes(header) + data[len(header) :]


def within(data: bytes, section: str, change) -> bytes:
    """The snapshot with the bytes of one section changed by a function, under hashes that fit."""
    with Envelope.open(KIND, data) as saved:
        parts = {name: bytes(saved.read(name)) for name in SECTIONS}
    parts[section] = change(parts[section])
    return b"".join(seal(KIND, parts))


def fact(data: bytes, *path: str, value) -> bytes:
    """The snapshot with one fact changed."""

    def change(facts: bytes) -> bytes:
        whole = inner = json.loads(facts)
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value
        return dump_facts(whole)

    return within(data, "facts", change)


def lies(data: bytes) -> list[bytes]:
    """Snapshots with lengths that are not so: of the container, of those within it, and in the
    facts.
    """
    out = [resealed(data, at, struct.pack("<Q", length)) for at in PLACES for length in LENGTHS]
    for section in ("target", "draft"):
        out += [
            within(
                data,
                section,
                lambda inner, at=at, length=length: (
                    inner[:at] + struct.pack("<Q", length) + inner[at + 8 :]
                ),
            )
            for at in (16, 24, 64 + 24, 64 + 32)
            for length in LENGTHS
        ]
    return out + [fact(data, "held", value=length) for length in LENGTHS]


@pytest.fixture(scope="module")
def draft():
    with oxillama.load(num_threads=1) as engine:
        yield engine


def test_there_is_a_golden_file_of_every_version():
    assert [path.stem for path in GOLDEN] == [
        f"speculation-v{version}" for version in range(1, KIND.version + 1)
    ]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_golden_file_goes_on_as_it_did_when_it_was_made(path, draft):
    """`golden/make_snapshots.py` made it: candidates are drawn by a sampler of the draft's own, so
    its state counts in every token.
    """
    wanted = json.loads(path.with_suffix(".json").read_text("utf-8"))
    assert wanted["accepted"] >= 5 and wanted["rejected"] >= 5
    if path.stem == f"speculation-v{KIND.version}":
        assert SpecSnapshot.decode(path.read_bytes()).encode() == path.read_bytes()
    with SpeculativeEngine.resume_from_file(path, None, draft) as engine:
        done = engine.generate(None, max_tokens=len(wanted["tokens"]))
    stats = done.speculation
    assert {
        "tokens": list(done.tokens),
        "accepted": stats.accepted,
        "rejected": stats.rejected,
    } == wanted


@pytest.mark.parametrize("arch", ["llama", "mamba2"])
def test_a_draft_that_begins_again_changes_no_text(arch, tmp_path, monkeypatch):
    """A snapshot has no pages of a draft with recurrent state, nor of a session after which others
    ran; a text is longer than a draft catches up with at once.
    """
    monkeypatch.setattr(draft_model, "CATCH_UP", 8)
    path = written(tmp_path / "m.gguf", arch)
    own, seeded = oxillama.SamplerConfig(temperature=1.3), dict(temperature=1.0, seed=3)
    prompt = np.random.default_rng(2).integers(3, HIDDEN, 60).tolist()
    with oxillama.load(path, num_threads=1) as target:
        how = SpeculativeConfig(target, "early_exit:2", draft_sampler=own, adaptive=False)
        with SpeculativeEngine(how) as engine:
            session = target.session()
            engine.generate(prompt, session=session, max_tokens=12, ignore_eos=True, **seeded)
            saved = [engine.snapshot()]
            engine.generate([5, 6], max_tokens=4, **seeded)
            engine.generate(None, session=session, max_tokens=0)
            saved.append(engine.snapshot())
            wanted = engine.generate(None, session=session, max_tokens=20)
    assert wanted.speculation.accepted and wanted.speculation.rejected
    for data in saved:
        with SpeculativeEngine.resume(data, path, "early_exit:2") as again:
            assert again.generate(None, max_tokens=20).tokens == wanted.tokens


@pytest.mark.parametrize(
    "path, value",
    [
        (("memory", "trust"), ["a", 1, 2]),
        (("memory", "trust"), [2.0, 1.0, 2]),
        (("memory", "trust"), [1.0, 2.0]),
        (("memory", "trust"), [0, 0, 1]),
        (("memory", "trust"), [1.0, 2.0, 0]),
        (("memory", "offered"), ["x"]),
        (("memory", "idle"), -1),
        (("memory", "position"), None),
        (("memory", "reached"), -1),
        (("memory",), {"trust": [1, 2, 2]}),
        (("held",), 3),
        (("num_speculative",), 0),
        (("seed",), -1),
        (("settings",), {}),
        (("settings", "draft_sampler"), {"temperature": "hot"}),
        (("rng_state",), None),
    ],
    ids=str,
)
def test_a_fact_that_cannot_be_is_refused(draft, path, value):
    with pytest.raises(SpecSnapshotIncompatible):
        SpeculativeEngine.resume(fact(GOLDEN[-1].read_bytes(), *path, value=value), None, draft)
    assert draft.metrics().pages_leaked == 0


def held(engine) -> tuple:
    return (
        engine.metrics().pages_used,
        engine.metrics().pages_leaked,
        len(engine._loaded.core.allocator.sessions),
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda data: fact(data, "memory", "idle", value=-1),
        lambda data: fact(data, "held", value=3),
        lambda data: within(data, "sampler", lambda _: b"OXSM"),
        lambda data: within(data, "draft", lambda inner: inner[:-1] + bytes([inner[-1] ^ 1])),
        lambda data: data[:-1],
    ],
    ids=["memory", "held", "sampler", "draft", "short"],
)
def test_a_refusal_leaves_the_live_session_and_the_draft_as_they_were(draft, change):
    data = GOLDEN[-1].read_bytes()
    with oxillama.load(num_threads=1) as target:
        target.prefill([1, 2, 3])
        before, pages = target.snapshot(), (held(target), held(draft))
        with pytest.raises(SpecSnapshotIncompatible):
            SpeculativeEngine.resume(change(data), target, draft)
        with pytest.raises(ConfigError, match="^speculative: .* a folder without GGUF files"):
            SpeculativeEngine.resume(data, target, Path(__file__).parent)
        assert target.snapshot() == before and (held(target), held(draft)) == pages
        SpeculativeEngine.resume(data, target, draft).close()
        assert target.snapshot() != before and held(draft) == pages[1]


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is enforced on Linux")
def test_lengths_that_lie_cost_no_memory():
    """In a process that may hold little: a length that was believed would be a MemoryError
    there.
    """
    code = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import oxillama
from oxillama.errors import SnapshotIncompatible, SpecSnapshotIncompatible
from tests.speculative import test_snapshot as t
data = t.GOLDEN[-1].read_bytes()
target, draft = oxillama.load(num_threads=1), oxillama.load(num_threads=1)
t.SpeculativeEngine.resume(data, target, draft).close()
used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20),) * 2)
told = t.lies(data)
for at, lie in enumerate(told):
    try:
        t.SpeculativeEngine.resume(lie, target, draft)
    except (SnapshotIncompatible, SpecSnapshotIncompatible):
        continue
    raise SystemExit(f"lie {{at}} of {{len(told)}} was believed")
t.SpeculativeEngine.resume(data, target, draft).close()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
