"""Generation with multi-token prediction, ours and llama.cpp's in turn on the same file.

    python tools/measure_mtp.py --peer BIN/llama-speculative-simple --plain BIN/llama-bench
    python tools/measure_mtp.py --wrong 30 --shape 2b --json >> docs/figures/mtp.jsonl

The file has the sizes of a Qwen 3.5 and random weights, except that what a token is followed by is
known: layers add nothing to its row, and the output matrix has the rows of the embedding moved by
one. So its layer that predicts further tokens is always right; --wrong percent of tokens have
another row in the table that this layer reads, so that a candidate after them is wrong. Each engine
generates the same tokens (checked for ours). A peer that does not decide the number of candidates
itself is run with each of --candidates, and its best counts.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import oxillama
from oxillama.gguf import GgufWriter
from oxillama.quant import quantize

BLOCK = 1024  # tokens that follow each other in a circle
FIRST = 5 * BLOCK  # of the prompt
# hidden, layers, feed-forward, heads of attention, KV heads, heads of the delta rule
SHAPES = {
    "tiny": (256, 4, 512, 4, 2, 4),
    "2b": (2048, 24, 6144, 8, 2, 16),
    "4b": (2560, 32, 9216, 16, 4, 32),
}


def write(path: Path, shape: str, vocabulary: int, wrong: int) -> None:
    """Write the file."""
    hidden, layers, ffn, heads, kv_heads, deltas = SHAPES[shape]
    dim, width, keys = 256, 128, 16 if deltas >= 16 else deltas
    rng = np.random.default_rng(7)
    drawn = 0.02 * rng.standard_normal((64, 4 * max(hidden, ffn))).astype(np.float32)

    def repeated(rows: int, columns: int, kind: str) -> np.ndarray:
        some = quantize(drawn[:, :columns], kind)
        return np.tile(some.reshape(64, -1), (-(-rows // 64), 1))[:rows]

    def table(kind: str, moved: int) -> np.ndarray:
        """The embedding; moved: rows of a block are so many places further."""
        parts, one = [], np.random.default_rng(11)
        for _ in range(0, vocabulary, BLOCK):
            rows = np.roll(one.standard_normal((BLOCK, hidden)).astype(np.float32), moved, axis=0)
            parts.append(quantize(rows, kind).reshape(BLOCK, -1))
        return np.concatenate(parts)[:vocabulary]

    with GgufWriter(path, "qwen35") as w:

        def add(name: str, rows: int, columns: int, kind: str = "Q4_K", zero: bool = False) -> None:
            blocks = (
                quantize(np.zeros((rows, columns), np.float32), kind)
                if zero
                else repeated(rows, columns, kind)
            )
            w.add_tensor(f"{name}.weight", blocks, type_name=kind, shape=(rows, columns))

        def ones(name: str, *sizes: tuple[str, int]) -> None:
            for suffix, size in sizes:
                w.add_tensor(f"{name}{suffix}", np.ones(size, np.float32))

        words = vocabulary - 259
        for key, value in {
            "block_count": layers + 1,
            "nextn_predict_layers": 1,
            "context_length": 32768,
            "embedding_length": hidden,
            "feed_forward_length": ffn,
            "attention.head_count": heads,
            "attention.head_count_kv": kv_heads,
            "attention.key_length": dim,
            "attention.value_length": dim,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 1e7,
            "rope.dimension_count": 64,
            "rope.dimension_sections": [11, 11, 10, 0],
            "ssm.conv_kernel": 4,
            "ssm.inner_size": deltas * width,
            "ssm.state_size": width,
            "ssm.time_step_rank": deltas,
            "ssm.group_count": keys,
            "full_attention_interval": 4,
        }.items():
            w.add(f"qwen35.{key}", value)
        w.add("tokenizer.ggml.model", "llama")
        w.add("tokenizer.ggml.pre", "default")
        bytes_ = [f"<0x{b:02X}>" for b in range(256)]
        w.add(
            "tokenizer.ggml.tokens",
            ["<unk>", "<s>", "</s>", *bytes_, *(f"\u2581{i}" for i in range(words))],
        )
        w.add("tokenizer.ggml.scores", [0.0] * vocabulary)
        w.add("tokenizer.ggml.token_type", [2, 3, 3] + [6] * 256 + [1] * words)
        w.add("tokenizer.ggml.bos_token_id", 1)
        w.add("tokenizer.ggml.eos_token_id", 2)
        shared = {"type_name": "Q4_K", "shape": (vocabulary, hidden)}
        embedding = table("Q4_K", 0)
        w.add_tensor("token_embd.weight", embedding, **shared)
        w.add_tensor(
            "output.weight", table("Q6_K", 1), type_name="Q6_K", shape=(vocabulary, hidden)
        )
        ones("output_norm.weight", ("", hidden))
        for i in range(layers + 1):
            b, attends = f"blk.{i}.", i % 4 == 3 or i == layers
            ones(b, ("attn_norm.weight", hidden), ("post_attention_norm.weight", hidden))
            if attends:
                add(b + "attn_q", 2 * heads * dim, hidden)
                add(b + "attn_k", kv_heads * dim, hidden)
                add(b + "attn_v", kv_heads * dim, hidden, "Q6_K")
                add(b + "attn_output", hidden, heads * dim, zero=True)
                ones(b, ("attn_q_norm.weight", dim), ("attn_k_norm.weight", dim))
            else:
                inner = deltas * width
                add(b + "attn_qkv", 2 * keys * width + inner, hidden)
                add(b + "attn_gate", inner, hidden)
                for name in ("ssm_beta", "ssm_alpha"):
                    add(b + name, deltas, hidden, "F32")
                taps = np.full((2 * keys * width + inner, 4), 0.25, np.float32)
                w.add_tensor(b + "ssm_conv1d.weight", taps)
                w.add_tensor(b + "ssm_a", -np.ones(deltas, np.float32))
                ones(b, ("ssm_dt.bias", deltas), ("ssm_norm.weight", width))
                add(b + "ssm_out", hidden, inner, zero=True)
            add(b + "ffn_gate", ffn, hidden)
            add(b + "ffn_up", ffn, hidden)
            add(b + "ffn_down", hidden, ffn, "Q6_K", zero=True)
        b = f"blk.{layers}.nextn."
        ones(b, *((f"{n}.weight", hidden) for n in ("enorm", "hnorm", "shared_head_norm")))
        first = np.zeros((hidden, 2 * hidden), np.float32)
        first[:, :hidden] = np.eye(hidden)
        w.add_tensor(
            b + "eh_proj.weight", quantize(first, "Q8_0"), type_name="Q8_0", shape=first.shape
        )
        if wrong:
            off = np.random.default_rng(13).random(vocabulary) < wrong / 100
            rows = np.where(off, np.arange(vocabulary) // BLOCK * BLOCK, np.arange(vocabulary))
            w.add_tensor(b + "embed_tokens.weight", embedding[rows], **shared)


def ours(path: Path, prompt: list[int], tokens: int, threads: int, ways: list) -> dict:
    """Tokens per second of each way, in turn on one engine, after a first run of each."""
    found: dict = {}
    with oxillama.load(path, num_threads=threads, prefix_cache=False) as engine:
        engine.opened.model.pack()
        want = tuple(FIRST + (prompt[-1] - FIRST + 1 + i) % BLOCK for i in range(tokens))
        for way in [*ways, *ways]:
            began = 0.0
            for piece in engine.stream(
                prompt, max_tokens=tokens, temperature=0, ignore_eos=True, speculative=way
            ):
                began = began or time.perf_counter()
                done = piece
            seconds = time.perf_counter() - began
            assert done is not None
            found[way] = (tokens - 1) / seconds
        assert (
            engine.generate(prompt, max_tokens=tokens, temperature=0, ignore_eos=True).tokens
            == want
        )
    return found


def peer(program: str, path: Path, prompt: str, tokens: int, threads: int, most: int) -> float:
    """Tokens per second of llama-speculative-simple."""
    command = [program, "-m", str(path), "-p", prompt, "-n", str(tokens), "-t", str(threads)]
    command += ["--temp", "0", "--ignore-eos", "--spec-type", "draft-mtp"]
    command += ["--spec-draft-n-max", str(most), "-c", "4096"]
    for _ in range(3):  # its log is written by a thread that may not come to the end
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = re.search(r"decoded.*speed:\s*([\d.]+)", done.stdout + done.stderr)
        if found:
            return float(found[1])
    raise SystemExit(f"{program}: printed no speed")


def plain(program: str, path: Path, tokens: int, threads: int) -> float:
    """Tokens per second of llama-bench."""
    command = [program, "-m", str(path), "-p", "0", "-n", str(tokens), "-t", str(threads)]
    command += ["-r", "1", "-fa", "1", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)[0]["avg_ts"])


def main() -> int:
    """Measure, and print a table or a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--shape", choices=list(SHAPES), default="4b")
    add("--vocabulary", type=int, default=248_832, help="a multiple of 1,024")
    add("--wrong", type=int, default=25, help="percent of tokens after which it is wrong")
    add("--file", type=Path, help="where the file is kept (default: a temporary one)")
    add("--peer", help="llama-speculative-simple of llama.cpp")
    add("--plain", help="llama-bench of llama.cpp")
    add("--candidates", type=int, nargs="+", default=[1, 2, 3])
    add("--tokens", type=int, default=64)
    add("--threads", type=int, default=2)
    add("--rounds", type=int, default=5)
    add("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = given.file or Path(folder) / "mtp.gguf"
        if not path.exists():
            write(path, given.shape, given.vocabulary, given.wrong)
        ids = [FIRST + i for i in range(32)]
        text = " ".join(str(i - 259) for i in ids)
        rows: dict[str, list[float]] = {}
        for number in range(given.rounds):
            print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
            for way, speed in ours(path, ids, given.tokens, given.threads, [False, "mtp"]).items():
                rows.setdefault(f"oxillama {way or 'plain'}", []).append(speed)
            if given.plain:
                speed = plain(given.plain, path, given.tokens, given.threads)
                rows.setdefault("llama.cpp plain", []).append(speed)
            for most in given.candidates if given.peer else ():
                speed = peer(given.peer, path, text, given.tokens, given.threads, most)
                rows.setdefault(f"llama.cpp mtp, {most} candidates", []).append(speed)
    medians = {name: round(statistics.median(speeds), 2) for name, speeds in rows.items()}
    if given.json:
        settings = {name: getattr(given, name) for name in ("shape", "vocabulary", "wrong")}
        print(json.dumps({**settings, "rounds": given.rounds, "tokens_per_second": medians}))
    else:
        for name, speed in medians.items():
            print(f"{name:<32} {speed:8.2f} tokens/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
