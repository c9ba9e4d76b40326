#!/usr/bin/env python3
"""Measures how fast byte-level BPE vocabularies encode, beside the tokenizers that are installed.

    measure_tokenizers.py VOCABULARY.gguf ... --text FILE ... [--size 4096] [--rounds 5] [--json]

The files are cut into texts of `--size` characters. In every round each engine encodes all of them
once, on one thread, in turn; a figure is the median of the rounds, in MB of UTF-8 per second, and
the ids of every engine are compared with ours first. Peers: tiktoken, Hugging Face's tokenizers
(both built from the vocabulary's tokens, merges and expressions) and llama.cpp through
llama-cpp-python.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import oxillama
from oxillama.tokenizer.splits import SPLITS, WHOLE_WORDS

Encode = Callable[[str], list[int]]


def tiktoken_encode(bridge: oxillama.TokenizerBridge) -> Encode:
    """tiktoken with the vocabulary's tokens, whose ids are the ranks of their merges."""
    import tiktoken

    v = bridge.vocabulary
    normal = [token for token in range(len(v.tokens)) if not bridge.is_special(token)]
    ranks = {bridge.token_bytes(token): token for token in normal}
    expressions = SPLITS[v.pre]
    if len(expressions) > 1:
        raise LookupError("tiktoken splits by one expression")
    made = tiktoken.Encoding(
        "made", pat_str=expressions[0], mergeable_ranks=ranks, special_tokens={}
    )
    return made.encode_ordinary


def hugging_face_encode(bridge: oxillama.TokenizerBridge) -> Encode:
    """Hugging Face's tokenizers with the vocabulary's tokens, merges and expressions."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    v = bridge.vocabulary
    made = Tokenizer(
        models.BPE(
            {text: token for token, text in enumerate(v.tokens)},
            [tuple(merge.split(" ", 1)) for merge in v.merges],
            ignore_merges=v.pre in WHOLE_WORDS,
        )
    )
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(each), "isolated") for each in SPLITS[v.pre]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return lambda text: made.encode(text, add_special_tokens=False).ids


def llama_cpp_encode(path: Path) -> Encode:
    """llama.cpp with the file's vocabulary."""
    import llama_cpp

    silent = llama_cpp.llama_log_callback(lambda level, text, user: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    settings = llama_cpp.llama_model_default_params()
    settings.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), settings)
    vocab = llama_cpp.llama_model_get_vocab(model)
    room = (ctypes.c_int32 * (1 << 20))()

    def encode(text: str) -> list[int]:
        data = text.encode()
        found = llama_cpp.llama_tokenize(vocab, data, len(data), room, len(room), False, False)
        return room[:found]

    encode.kept = (silent, model)  # type: ignore[attr-defined]
    return encode


def engines(path: Path) -> Iterator[tuple[str, Encode]]:
    """The engines that can read this vocabulary, ours first."""
    bridge = oxillama.TokenizerBridge.from_gguf(path)
    yield "ours", lambda text: bridge.encode(text, add_special=False, parse_special=False)
    for name, make in (
        ("tiktoken", lambda: tiktoken_encode(bridge)),
        ("tokenizers", lambda: hugging_face_encode(bridge)),
        ("llama.cpp", lambda: llama_cpp_encode(path)),
    ):
        with contextlib.suppress(ImportError, LookupError):
            yield name, make()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("vocabularies", nargs="+", type=Path)
    parser.add_argument("--text", nargs="+", type=Path, required=True)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    whole = "".join(path.read_text(errors="replace") for path in options.text)
    texts = [whole[at : at + options.size] for at in range(0, len(whole), options.size)]
    nbytes = len(whole.encode())
    for path in options.vocabularies:
        found = dict(engines(path))
        wanted = [found["ours"](text) for text in texts]
        differ = {
            name: sum(list(encode(text)) != ids for text, ids in zip(texts, wanted))
            for name, encode in found.items()
        }
        rates: dict[str, list[float]] = {name: [] for name in found}
        for _ in range(options.rounds):
            for name, encode in found.items():
                start = time.perf_counter()
                for text in texts:
                    encode(text)
                rates[name].append(nbytes / 1e6 / (time.perf_counter() - start))
        medians = {name: statistics.median(each) for name, each in rates.items()}
        if options.json:
            shown = {"vocabulary": path.name, "bytes": nbytes, "mb_s": medians, "differ": differ}
            print(json.dumps(shown))
            continue
        print(f"{path.name}: {nbytes:,} bytes, {len(texts):,} texts")
        for name, rate in medians.items():
            other = f", {differ[name]} texts with other ids" if differ[name] else ""
            print(f"  {name:<11} {rate:7.2f} MB/s  ours / it {medians['ours'] / rate:5.2f}{other}")


if __name__ == "__main__":
    main()
