"""Stored prefixes in a file, so that a new engine starts with what an earlier one evaluated.

    PrefixKvCache --save_prefixes--> facts, lengths, tokens, tables, kv
                                     (each page once, however many prefixes share it)
    file --load_prefixes--> the same prefixes, the most recently used first, as many as fit

The container is that of snapshots, kind "prefix", with the same rules for refusing and writing.
Prefixes of sessions with adapters are left out, because nothing in a file could name their key, and
so are those with images or audio, whose rows tokens do not identify. Where an encoder reads the
prompt (T5), none could be written, which is an error.

Stored prefixes serve every request that begins with them, so a file must show who wrote it: section
`mac` is a hash of all others under the user's key (`key`). A file without it, or of another user,
is refused unless the caller trusts it.
"""

from __future__ import annotations

import hmac
import os
from itertools import accumulate

import numpy as np

from oxillama.engine.memory.prefix import PrefixKvCache
from oxillama.errors import ConfigError, SnapshotIncompatible
from oxillama.gguf import ModelFingerprint, check_apart
from oxillama.snapshot import key as user_key
from oxillama.snapshot.container import Envelope, dump_facts, load_facts, typed, write_sealed
from oxillama.snapshot.pages import PageCopy, fill_pages
from oxillama.snapshot.session import KIND, Snapshots, whole

_MOST = 1 << 30  # bytes of tokens, and of tables


def save_prefixes(snapshots: Snapshots, path: str | os.PathLike[str]) -> int:
    """Write the stored prefixes to a file, which must not be one of the model's; returns how many.
    The cache does not change, and no request waits.
    """
    check_apart("save_prefixes", path, snapshots.core.files())
    secret = user_key.make_key()
    core, size = snapshots.core, snapshots.core.pool.page_size
    cache, model = _cache(snapshots), snapshots.fingerprint()
    with core.lock:
        found = [
            (tokens, pages)
            for key, tokens, pages in cache.sequences()
            if key == () and min(tokens) >= 0
        ]
        filled: dict[int, int] = {}
        for tokens, pages in found:
            for at, page in enumerate(pages):
                filled[page] = max(filled.get(page, 0), min(size, len(tokens) - at * size))
        pool = core.pool
        apart = {page for page in filled if pool.window and not pool.near_owners(page)}
        kept = [page for page in filled if page not in apart]
        bare = [page for page in filled if page in apart]
        pool.share_all((*kept, *bare))
        pool.share_near(kept)
        copies = {
            "kv": PageCopy(pool, kept, [filled[page] for page in kept]),
            "kv_bare": PageCopy(pool, bare, [filled[page] for page in bare], bare=True),
        }
    number = {page: index for index, page in enumerate((*kept, *bare))}
    facts = {
        "kind": "prefix",
        **snapshots.naming,
        "model": model.to_dict(),
        "vocab": core.program.vocab_size,
        "kv": snapshots.page_facts(),
        "pages": len(number),
        "sequences": len(found),
    }
    if bare:
        facts["kv"] |= {"windows": list(core.memory.windows), "shed": len(bare)}
    try:
        write_sealed(
            path,
            KIND,
            {
                "facts": dump_facts(facts),
                "lengths": np.array([len(tokens) for tokens, _ in found], "<i4"),
                "tokens": np.array([token for tokens, _ in found for token in tokens], "<i4"),
                "tables": np.array([number[page] for _, pages in found for page in pages], "<i4"),
                "kv": copies["kv"],
                **({"kv_bare": copies["kv_bare"]} if copies["kv_bare"].nbytes else {}),
                **(
                    {}
                    if secret is None
                    else {"mac": lambda digests: user_key.authenticate(secret, digests)}
                ),
            },
        )
    finally:
        with core.lock:
            for copy in copies.values():
                copy.release()
    return len(found)


def load_prefixes(
    snapshots: Snapshots, path: str | os.PathLike[str], *, trust: bool = False
) -> int:
    """Add the prefixes of a file to the stored ones; returns how many fitted into free pages and
    the cache's limits.

    trust: accept a file without this user's signature. SnapshotIncompatible or
    ModelFingerprintMismatch for a file that is malformed, of another model or of another user; then
    nothing has changed.
    """
    cache, core = _cache(snapshots), snapshots.core
    pages = bare = 0
    own: dict[int, int] = {}
    try:
        with Envelope.open(KIND, path) as saved:
            with typed(KIND, "prefixes"):
                tokens, tables, pages, bare = _read(snapshots, saved)
            if not trust:
                _check_author(saved)
            with core.lock:
                chosen, needed = _chosen(cache, tables, pages)
                for index in needed:
                    own[index] = core.pool.alloc(bare=index >= pages - bare)
            table = [own.get(index, -1) for index in range(pages)]
            fill_pages(core.memory, table[: pages - bare], saved, bare=table[pages - bare :])
        with core.lock:
            return sum(
                cache.insert(tokens[at], [own[index] for index in tables[at]], key=())
                == len(tokens[at])
                for at in chosen
            )
    finally:
        with core.lock:
            core.pool.free_near([page for index, page in own.items() if index < pages - bare])
            core.pool.free_all(list(own.values()))


def _check_author(saved: Envelope) -> None:
    """Refuse a file without this user's signature."""
    secret = user_key.read_key()
    if secret is None or "mac" not in saved.sections:
        lacks = "no section mac" if "mac" not in saved.sections else "no key of this user"
        raise SnapshotIncompatible(
            f"mac: found {lacks}, wanted prefixes that this user saved; trust=True takes those of "
            "others"
        )
    digests = {name: each.digest for name, each in saved.sections.items() if name != "mac"}
    found = bytes(saved.read("mac", exactly=user_key.KEY_BYTES))
    if not hmac.compare_digest(found, user_key.authenticate(secret, digests)):
        raise SnapshotIncompatible(
            "mac: is not that of this user's key, wanted prefixes that this user saved; "
            "trust=True takes those of others"
        )


def _chosen(
    cache: PrefixKvCache, tables: list[list[int]], pages: int
) -> tuple[list[int], set[int]]:
    """(which sequences, the least recently used first; the pages they need): the most recent that
    fit into free pages.
    """
    free = cache.pool.pages_free
    capacity = min(cache.max_pages, pages if free is None else free)
    chosen: list[int] = []
    needed: set[int] = set()
    for at in reversed(range(len(tables))):
        together = needed.union(tables[at])
        if len(together) > capacity:
            break
        needed = together
        chosen.append(at)
    return chosen[::-1], needed


def _cache(snapshots: Snapshots) -> PrefixKvCache:
    if snapshots.core.prefix is None:
        raise ConfigError("prefix cache: this engine has none, wanted prefix_cache=True")
    if snapshots.core.start_token is not None:
        raise ConfigError(
            "prefix cache: holds what an encoder has read, which no file of prefixes can name, "
            "wanted a model without one"
        )
    return snapshots.core.prefix


def _read(
    snapshots: Snapshots, saved: Envelope
) -> tuple[list[list[int]], list[list[int]], int, int]:
    """(tokens of each sequence, its page numbers, how many pages there are, how many of them, at
    the end, are bare) out of verified sections.
    """
    core = snapshots.core
    facts = load_facts(KIND, saved.read("facts", at_most=1 << 20))
    if facts["kind"] != "prefix":
        raise SnapshotIncompatible(
            f"facts: a snapshot of kind {facts['kind']!r}, wanted stored prefixes"
        )
    snapshots.check_model(ModelFingerprint.from_dict(facts["model"]))
    if facts["vocab"] != core.program.vocab_size:
        raise SnapshotIncompatible(
            f"vocab: the snapshot has {facts['vocab']!r}, this engine {core.program.vocab_size!r}"
        )
    snapshots.check_pages(facts["kv"])
    pages, count = whole(facts["pages"], 0, "pages"), whole(facts["sequences"], 0, "sequences")
    bare = whole(facts["kv"].get("shed", 0), 0, "kv shed", most=pages if core.pool.window else 0)
    saved.expect(
        (
            *("facts", "lengths", "tokens", "tables", "kv"),
            *(("kv_bare",) if bare * core.pool.bare_bytes else ()),
        ),
        optional=("mac",),
    )
    lengths = np.frombuffer(saved.read("lengths", exactly=4 * count), "<i4").tolist()
    tokens, tables = (
        np.frombuffer(saved.read(name, at_most=_MOST), "<i4") for name in ("tokens", "tables")
    )
    size = core.pool.page_size
    spans = [-(-length // size) for length in lengths]
    if (
        any(length < 1 for length in lengths)
        or sum(lengths) != len(tokens)
        or sum(spans) != len(tables)
    ):
        raise SnapshotIncompatible(
            f"lengths: found {len(tokens)} tokens and {len(tables)} pages, wanted them to make up "
            f"{count} sequences"
        )
    for name, values, most in (
        ("tokens", tokens, core.program.vocab_size),
        ("tables", tables, pages),
    ):
        if len(values) and not 0 <= int(values.min()) <= int(values.max()) < most:
            raise SnapshotIncompatible(
                f"{name}: found {int(values.min())} to {int(values.max())}, wanted 0 to {most - 1}"
            )
    saved.check("kv", exactly=(pages - bare) * core.memory.page_bytes)
    if bare * core.pool.bare_bytes:
        saved.check("kv_bare", exactly=bare * core.pool.bare_bytes)
    return _cut(tokens, lengths), _cut(tables, spans), pages, bare


def _cut(values: np.ndarray, lengths: list[int]) -> list[list[int]]:
    ends = list(accumulate(lengths))
    return [values[end - length : end].tolist() for end, length in zip(ends, lengths)]
