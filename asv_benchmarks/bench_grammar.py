"""Grammar masks over a 128k vocabulary made from a fixed seed: compilation, first mask, masks along
a text, advancing.
"""

import random

import numpy as np

from oxillama.grammar import Grammar, JsonSchemaCompiler, TokenMasker

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 60},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 8},
        "kind": {"enum": ["person", "robot", "other"]},
        "notes": {"type": "string"},
    },
    "required": ["name", "age", "kind"],
}
TEXT = (
    b'{"name": "Alice Liddell", "age": 7, "email": "alice@example.com", "tags": ["curious", "small '
    b'\xe2\x80\x93 then tall"], "kind": "person", "notes": "It was the best of times, it was the '
    b'worst of times, \\n it was the age of wisdom"}'
)
GBNF = (
    'root ::= "[" item ("," item)* "]"\nitem ::= [a-z]+ ":" ([0-9]+ | "\\"" [^"\\\\\\x00-\\x1F]* '
    '"\\"")\n'
)


def vocabulary(size: int = 128_000) -> list[bytes]:
    """Tokens shaped like a byte-level BPE's: all bytes, words with and without a leading space,
    digits, punctuation, a few scripts.
    """
    rng = random.Random(7)
    tokens = {bytes([b]): None for b in range(256)}
    for piece in (
        '"',
        '":',
        '": "',
        '", "',
        '{"',
        '"}',
        "},",
        "[",
        "],",
        '\\"',
        "\\n",
        "\n\n",
        "    ",
        ",\n",
        ': {"',
    ):
        tokens[piece.encode()] = None
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    while len(tokens) < size:
        kind = rng.random()
        if kind < 0.85:
            word = "".join(
                rng.choices(letters, range(26, 0, -1), k=min(12, 2 + int(rng.expovariate(0.25))))
            )
            word = word.capitalize() if rng.random() < 0.25 else word
            tokens[(" " * (rng.random() < 0.5) + word).encode()] = None
        elif kind < 0.88:
            tokens[str(rng.randrange(1000)).encode()] = None
        elif kind < 0.97:
            tokens[
                "".join(
                    chr(rng.randrange(0x4E00, 0x9FA5)) for _ in range(rng.randint(1, 3))
                ).encode()
            ] = None
        else:
            tokens[
                "".join(rng.choices("_-+*/=<>()[]{}.,;:'\"\\\n ", k=rng.randint(1, 4))).encode()
            ] = None
    return list(tokens)


class Masks:
    """Times per operation, in seconds."""

    def setup(self):
        vocab = [*vocabulary(), b""]
        self.masker = TokenMasker(vocab, eog_ids=[len(vocab) - 1])
        index = {piece: i for i, piece in enumerate(vocab) if piece}
        self.tokens, at = [], 0
        while at < len(TEXT):
            length = next(
                n for n in range(min(16, len(TEXT) - at), 0, -1) if TEXT[at : at + n] in index
            )
            self.tokens.append(index[TEXT[at : at + length]])
            at += length
        self.compiler = JsonSchemaCompiler(whitespace="flexible")
        self.warm = self.compiler.compile(SCHEMA)
        self.time_masks_warm()
        self.logits = np.zeros(len(vocab), np.float32)
        self.state = self.masker.state(self.warm)

    def time_compile_schema(self):
        self.compiler.compile(SCHEMA)

    def time_compile_gbnf(self):
        Grammar.parse(GBNF)

    def time_first_mask(self):
        self.masker.state(self.compiler.compile(SCHEMA)).mask()

    def time_masks_cold(self):
        """All masks along the text with a grammar never used before."""
        self.walk(self.compiler.compile(SCHEMA))

    def time_masks_warm(self):
        """The same once every position is known."""
        self.walk(self.warm)

    def time_apply(self):
        self.logits[:] = 0
        mask = self.state.mask()
        self.masker.trie.fill(self.state._cursor, mask.copy())

    def walk(self, grammar):
        state = self.masker.state(grammar)
        for token in self.tokens:
            state.mask()
            self.masker.advance(state, token)
