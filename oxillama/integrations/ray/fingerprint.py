"""Which prompts a replica has evaluated, in a few kilobytes: hashes of the beginnings of what its
prefix cache stores.

    tokens    t0 ........ t15 | t16 ....... t31 | t32 ...
    hash      h1 = H(t0..t15)   h2 = H(h1, t16..t31)   ...         6 bytes each, one a page

A hash stands for all tokens up to its page's end, so the deepest hash of a prompt that a replica
has published is how much of it that replica's cache holds, to a page.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence, Set
from hashlib import blake2b

from oxillama.api import InferenceEngine
from oxillama.errors import ConfigError

PAGE = 16  # tokens
HASH = 6  # bytes
MOST = 2048  # hashes that are published


def page_hashes(tokens: Sequence[int]) -> tuple[bytes, ...]:
    """The hash of every beginning of a prompt that ends with a page."""
    out, before = [], b""
    ids = array("i", tokens).tobytes()
    size = PAGE * array("i").itemsize
    for at in range(0, len(ids) - size + 1, size):
        before = blake2b(before + ids[at : at + size], digest_size=HASH).digest()
        out.append(before)
    return tuple(out)


def held(pages: Sequence[bytes], known: Set[bytes]) -> int:
    """How many tokens of a prompt lie under known hashes."""
    for at in range(len(pages), 0, -1):
        if pages[at - 1] in known:
            return at * PAGE
    return 0


def publish(engine: InferenceEngine, most: int = MOST) -> bytes:
    """The hashes of what an engine's prefix cache stores, those used last first; none where it
    keeps none, or where it stores states that cannot be listed.
    """
    core = engine.opened.core
    if core.prefix is None:
        return b""
    try:
        with core.lock:
            stored = core.prefix.sequences()
    except ConfigError:
        return b""
    out: dict[bytes, None] = {}
    for key, tokens, _ in reversed(stored):
        if key == ():  # of sessions without adapters, whose pages anybody may use
            out.update(dict.fromkeys(page_hashes(tokens)))
        if len(out) >= most:
            break
    return b"".join(list(out)[:most])


def published(data: bytes) -> frozenset[bytes]:
    """The hashes in what `publish` made."""
    return frozenset(data[at : at + HASH] for at in range(0, len(data), HASH))
