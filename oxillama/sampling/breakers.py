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
    out: dict[tuple[int, ...], None] = {}
    for breaker in breakers:
        if isinstance(breaker, tuple):
            out[breaker] = None
            continue
        text = breaker.encode() if isinstance(breaker, str) else bytes(breaker)
        tails: dict[int, tuple[int, ...]] = {}
        for token, piece in enumerate(pieces):
            if not piece:
                continue
            if text in piece:
                out[(token,)] = None
                continue
            if encode is None:
                continue
            for size in range(1, min(len(piece), len(text) - 1) + 1):
                if piece.endswith(text[:size]):
                    if size not in tails:
                        tails[size] = tuple(encode(text[size:]))[:LONGEST_TAIL]
                    out[(token, *tails[size])] = None
    return list(out)
