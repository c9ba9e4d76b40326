"""`TokenMasker`: binds grammars to a vocabulary and computes, for a state, the bitset of tokens
that may come next.

Masks are memoised per automaton position (states at equal positions share one array) in a bounded,
least-recently-used cache. End-of-generation tokens are allowed exactly when the state is complete;
other control tokens never, unless the grammar names them.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from oxillama._core.trie import TokenTrie, apply_bits
from oxillama.errors import GrammarError, not_pickled
from oxillama.grammar.automaton import Grammar, GrammarState

# what can end two JSON scalars, as three quotes can: a number and one more sign
PAIRED = re.compile(rb"[0-9a-z]\s*,\s*-?[0-9a-z]")

# bytes that a memoised mask takes at most besides its words: array, key and place in the cache,
# whose table grows by doubling
_ENTRY = 512


class _Masks:
    """The masks that were asked for last, by position."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._masks: OrderedDict[tuple, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()  # without a GIL the links of `_masks` need one before 3.14

    def __len__(self) -> int:
        return len(self._masks)

    def get(self, key: tuple) -> np.ndarray | None:
        with self._lock:
            mask = self._masks.get(key)
            if mask is not None:
                self._masks.move_to_end(key)
            return mask

    def put(self, key: tuple, mask: np.ndarray) -> None:
        """Keeps a mask, which is read-only from here on."""
        mask.flags.writeable = False
        with self._lock:
            self._masks[key] = mask
            self._masks.move_to_end(key)  # where another thread has put it meanwhile
            while len(self._masks) > self.capacity:
                self._masks.popitem(last=False)


class TokenMasker:
    """A vocabulary prepared for masks; one serves every grammar and state over that vocabulary.

    - `vocab_bytes`: the bytes each token id adds to the text.
    - `control_ids`: tokens that are not text (their bytes are ignored).
    - `eog_ids`: tokens that end generation.
    - `names`: texts of tokens that grammars may name as `<text>`.
    - `cache_bytes`: the most memory of memoised masks.
    """

    __reduce__ = not_pickled(
        "masker: holds tables in memory of this process",
        "make one of `vocab_bytes` in each process",
    )

    def __init__(
        self,
        vocab_bytes: Sequence[bytes],
        *,
        control_ids: Iterable[int] = (),
        eog_ids: Iterable[int] = (),
        names: Mapping[str, int] | None = None,
        cache_bytes: int = 64 << 20,
    ):
        if isinstance(vocab_bytes, (str, bytes)) or not hasattr(vocab_bytes, "__len__"):
            raise GrammarError(
                f"vocab_bytes: found {type(vocab_bytes).__name__}, wanted a list of the tokens' "
                "bytes"
            )
        if not set(map(type, vocab_bytes)) <= {bytes, type(None)}:
            for at, piece in enumerate(vocab_bytes):
                if not isinstance(piece, (bytes, bytearray, memoryview, type(None))):
                    raise GrammarError(f"vocab_bytes[{at}]: found {piece!r:.50}, wanted bytes")
        size = len(vocab_bytes)
        self.eog_ids = tuple(sorted(set(map(int, eog_ids))))
        self.control_ids = frozenset(map(int, control_ids)) | set(self.eog_ids)
        for token in self.control_ids:
            if not 0 <= token < size:
                raise GrammarError(f"token {token}: the vocabulary has {size}")
        self.vocab_bytes = [
            b"" if i in self.control_ids else bytes(piece or b"")
            for i, piece in enumerate(vocab_bytes)
        ]
        self.names = dict(names or {})
        self.trie = TokenTrie(self.vocab_bytes)
        self.words = self.trie.words
        self.vocab_size = size
        self._masks = _Masks(max(16, cache_bytes // (4 * self.words + _ENTRY)))
        self._end = self._bits(self.eog_ids)
        self._ordinary = self._bits(i for i in range(size) if i not in self.control_ids)
        self._text: tuple[np.ndarray, np.ndarray] | None = None
        self._paired: tuple[np.ndarray, np.ndarray] | None = None  # all, those with a quote

    def _bits(self, ids: Iterable[int]) -> np.ndarray:
        mask = np.zeros(self.words, np.uint32)
        tokens = np.fromiter(ids, np.int64)
        np.bitwise_or.at(mask, tokens >> 5, np.uint32(1) << (tokens & 31).astype(np.uint32))
        return mask

    def resolve(self, grammar: Grammar) -> Grammar:
        """The grammar with its named tokens looked up in this vocabulary; one whose names
        `Grammar.resolve` has replaced as it is.
        """
        if not any(isinstance(key, str) for key in grammar.tokens):
            return grammar
        ids = dict(self.names)
        wanted = {
            key.encode("utf-8"): key
            for key in grammar.tokens
            if isinstance(key, str) and key not in ids
        }
        for i, piece in enumerate(self.vocab_bytes if wanted else ()):
            if piece in wanted:
                ids.setdefault(wanted[piece], i)
        return grammar._with_ids(ids)

    def tokens_with(self, byte: int) -> np.ndarray:
        """Ids of the tokens that hold a byte, ascending."""
        return np.flatnonzero(self._holding(byte))

    def _holding(self, byte: int) -> np.ndarray:
        """Whether each token holds a byte."""
        if self._text is None:
            ends = np.cumsum(np.fromiter(map(len, self.vocab_bytes), np.int64, self.vocab_size))
            self._text = np.frombuffer(b"".join(self.vocab_bytes), np.uint8), ends
        text, ends = self._text
        holding = np.zeros(self.vocab_size, bool)
        holding[np.searchsorted(ends, np.flatnonzero(text == byte), side="right")] = True
        return holding

    def state(self, grammar: Grammar) -> GrammarState:
        """A state of the grammar at its beginning, bound to this vocabulary."""
        return grammar.state(self)

    def mask(self, state: GrammarState) -> np.ndarray:
        """The allowed tokens: read-only uint32, bit t of word t // 32 (lowest first) is set exactly
        if token t may come next.
        """
        cursor, grammar = state._cursor, state.grammar
        # grammars that `resolve` makes of one share its machine, each with ids of its own
        named = (tuple(grammar._symbols.items()),) if grammar.tokens else ()
        key = (cursor.machine.serial, *self.trie.position(cursor), *named)
        mask = self._masks.get(key)
        if mask is None:
            mask = np.empty(self.words, np.uint32)
            # the key again: filling may have collected
            key = (cursor.machine.serial, *self.trie.fill(cursor, mask, self._masks), *named)
            if grammar.tokens:
                self._add_symbols(state, mask)
            if cursor.complete:
                mask |= self._end
            self._masks.put(key, mask)
        return self._without_repeated(state, mask) if cursor.distinct else mask

    def _without_repeated(self, state: GrammarState, mask: np.ndarray) -> np.ndarray:
        """The mask without tokens that complete two equal scalars where the grammar wants distinct
        ones. The walk over the vocabulary does not know the first when it reaches the second, so
        these tokens are checked one by one.
        """
        if self._paired is None:
            quoted = self._holding(0x22)
            paired = self._holding(0x2C) | quoted
            for token in np.flatnonzero(paired).tolist():
                piece = self.vocab_bytes[token]
                paired[token] = piece.count(b'"') > 2 or PAIRED.search(piece) is not None
            self._paired = np.flatnonzero(paired), np.flatnonzero(paired & quoted)
        # '#' follows in the middle of a string alone, which nothing without a quote ends
        paired = self._paired[state._cursor.next_bytes()[0x23]]
        shifts = (paired & 31).astype(np.uint32)
        allowed = paired[(mask[paired >> 5] >> shifts & np.uint32(1)) != 0]
        repeated = [token for token in allowed.tolist() if not self.allows(state, token)]
        if repeated:
            mask = mask & ~self._bits(repeated)
            mask.flags.writeable = False
        return mask

    def _add_symbols(self, state: GrammarState, mask: np.ndarray) -> None:
        """Adds the tokens that token terminals allow here."""
        named = {
            token: symbol
            for token, symbol in state.grammar._symbols.items()
            if isinstance(token, int) and 0 <= token < self.vocab_size and token not in self.eog_ids
        }
        if state._cursor.allows(b"", 0):
            mask |= self._ordinary & ~self._bits(named)
        mask |= self._bits(
            token for token, symbol in named.items() if state._cursor.allows(b"", symbol)
        )

    def allows(self, state: GrammarState, token: int) -> bool:
        """Whether one token may come next; the definition of a mask's bit."""
        if token in self.eog_ids:
            return state.is_complete()
        piece = self.vocab_bytes[token]
        if not state.grammar.tokens:
            return bool(piece) and state.allows_token(piece)
        if token in self.control_ids and state.grammar.symbol(token) == 0:
            return False
        return state._cursor.allows(piece, state.grammar.symbol(token))

    def advance(self, state: GrammarState, token: int) -> None:
        """Consumes one token; an end-of-generation token is checked and leaves the state
        unchanged.
        """
        if not 0 <= token < self.vocab_size:
            raise GrammarError(f"token {token}: the vocabulary has {self.vocab_size}")
        if token in self.eog_ids:
            if not state.is_complete():
                raise GrammarError(
                    f"grammar: token {token} ends generation, but the text so far is not a whole "
                    "match"
                )
            return
        if token in self.control_ids and state.grammar.symbol(token) <= 0:
            raise GrammarError(
                f"grammar: control token {token} is not text and not named by the grammar"
            )
        piece = self.vocab_bytes[token]
        if not piece and not state.grammar.tokens:
            raise GrammarError(f"grammar: token {token} has no bytes")
        state.advance(piece, token)

    @property
    def cached_masks(self) -> int:
        """How many masks are memoised now."""
        return len(self._masks)


def apply_grammar_mask(logits: np.ndarray, state: GrammarState) -> int:
    """Sets the logits (float32, one row, in place) of tokens that may not come next to minus
    infinity; returns how many may.
    """
    if not isinstance(logits, np.ndarray) or logits.dtype != np.float32 or logits.ndim != 1:
        raise GrammarError(
            f"logits: found {getattr(logits, 'dtype', type(logits).__name__)} of shape "
            f"{np.shape(logits)}, wanted one float32 row"
        )
    if not hasattr(state, "mask"):
        raise GrammarError(f"state: found {type(state).__name__}, wanted a GrammarState")
    return apply_bits(logits, state.mask())
