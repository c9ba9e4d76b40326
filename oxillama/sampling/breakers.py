"""DRY's sequence breakers, from text to token ids: every way a vocabulary can spell the start of a
breaker.
"""

from collections.abc import Callable, Iterable, Sequence

LONGEST_TAIL = 20  # tokens


def breaker_sequences(
    breakers: Iterable[str | bytes | tuple[int, ...]],
    pieces: Sequence[bytes],
    encode: Callable[[bytes], Sequence[int]] | None = None,
) -> list[tuple[int, ...]]:
    """Token sequences that end a repetition. `pieces[id]` is the bytes of each token; `encode`
    tokenises the rest of a breaker.

    A token that contains a breaker is a breaker by itself. A token that ends with the beginning of
    a breaker is one together with the tokens of the missing part (as `encode` gives them; without
    it, only whole breakers are found). Sequences of ids are passed through. Each sequence appears
    once.
    """
    given = list(breakers)
    texts = [
        each if isinstance(each, bytes) else each.encode()
        for each in given
        if not isinstance(each, tuple)
    ]
    begun = {} if encode is None else _beginnings(dict.fromkeys(texts), pieces)
    longest = max(map(len, pieces), default=0)
    out: dict[tuple[int, ...], None] = {}
    for breaker in given:
        if isinstance(breaker, tuple):
            out[breaker] = None
            continue
        text = breaker.encode() if isinstance(breaker, str) else breaker
        found: dict[int, list[int]] = dict(begun.get(text, {}))
        if len(text) <= longest:
            whole = [token for token, piece in enumerate(pieces) if piece and text in piece]
            found.update(dict.fromkeys(whole, []))
        tails: dict[int, tuple[int, ...]] = {}
        for token in sorted(found):
            if not found[token]:
                out[(token,)] = None
            for size in found[token]:
                if size not in tails:
                    assert encode is not None
                    tails[size] = tuple(encode(text[size:]))[:LONGEST_TAIL]
                out[(token, *tails[size])] = None
    return list(out)


def _beginnings(
    texts: Iterable[bytes], pieces: Sequence[bytes]
) -> dict[bytes, dict[int, list[int]]]:
    """text -> token -> how many bytes of the text its piece ends with, in ascending order. All
    texts are looked for in one pass, because vocabularies are large.
    """
    longest = max(map(len, pieces), default=0)
    wanted: dict[bytes, list[bytes]] = {}  # the texts by their beginnings
    for text in texts:
        for size in range(1, min(longest, len(text) - 1) + 1):
            wanted.setdefault(text[:size], []).append(text)
    most = max(map(len, wanted), default=0)
    out: dict[bytes, dict[int, list[int]]] = {}
    for token, piece in enumerate(pieces):
        for size in range(1, min(len(piece), most) + 1):
            for text in wanted.get(piece[-size:], ()):
                out.setdefault(text, {}).setdefault(token, []).append(size)
    return out
