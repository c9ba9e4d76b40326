"""Invented models with a vocabulary, for what reads and writes texts."""

from pathlib import Path

import numpy as np

from oxillama.gguf import GgufWriter
from tests.model.invented import VOCAB, invent

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORDS = [*_LETTERS, *(f"\u2581{each}" for each in _LETTERS), "\u2581", *map("a".__add__, _LETTERS)]
TOKENS = ["<pad>", "</s>", "<unk>", *_WORDS][:VOCAB]


def worded(place: Path, arch: str = "t5", *, template: str = "") -> Path:
    """Write the tiny model of `arch` with these tokens: a letter, a space and one, or two; the last
    is a mask if it has one. template: of its chats.
    """
    reader = invent(place / "bare.gguf", arch)
    with GgufWriter(place / f"{arch}.gguf", arch) as writer:
        for key, value in reader.metadata.items():
            if key != "general.architecture":
                writer.add(key, value)
        scores = [0.0 if at < 3 else -1.0 - len(each) % 2 for at, each in enumerate(TOKENS)]
        masked = "tokenizer.ggml.mask_token_id" in reader.metadata
        kinds = [3, 3, 2] + [1] * (VOCAB - 4) + [3 if masked else 1]
        for key, value in (
            ("model", "t5"),
            ("tokens", TOKENS),
            ("scores", np.array(scores, np.float32)),
            ("token_type", np.array(kinds, np.int32)),
            ("eos_token_id", 1),
            ("padding_token_id", 0),
        ):
            writer.add(f"tokenizer.ggml.{key}", value)
        if template:
            writer.add("tokenizer.chat_template", template)
        for name, info in reader.tensors.items():
            values = np.frombuffer(bytes(reader.data(name)), np.float32)
            writer.add_tensor(name, values.reshape(info.shape))
    return place / f"{arch}.gguf"
