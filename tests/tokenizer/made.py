"""Small vocabularies."""

import numpy as np

from oxillama.tokenizer import TokenizerBridge
from oxillama.tokenizer.bpe import BYTE_TO_CHAR
from oxillama.tokenizer.vocabulary import NORMAL


def spm(pieces: dict[str, float], **keys) -> TokenizerBridge:
    """A small `llama` vocabulary: three specials, 256 bytes, then `pieces` with their scores."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    kinds = np.array([2, 3, 3] + [6] * 256 + [1] * len(pieces), np.int32)
    scores = np.array([0.0] * 259 + list(pieces.values()), np.float32)
    return TokenizerBridge.from_metadata(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.scores": scores,
            **{f"tokenizer.ggml.{k}": v for k, v in keys.items()},
        }
    )


def bpe(merges: list[str], extra: dict[str, int] | None = None, **keys) -> TokenizerBridge:
    """A small byte-level vocabulary: 256 bytes, the merges' products, then `extra` tokens with
    their kinds.
    """
    tokens = list(BYTE_TO_CHAR.values()) + [merge.replace(" ", "", 1) for merge in merges]
    kinds = [NORMAL] * len(tokens) + list((extra or {}).values())
    tokens += list(extra or {})
    return TokenizerBridge.from_metadata(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": np.array(kinds, np.int32),
            "tokenizer.ggml.merges": merges or ["a b"],
            **{f"tokenizer.ggml.{k}": v for k, v in keys.items()},
        }
    )
