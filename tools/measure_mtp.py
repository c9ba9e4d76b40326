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
from typing import NamedTuple

import numpy as np

import oxillama
from oxillama.gguf import GgufWriter
from oxillama.quant import quantize

BLOCK = 1024  # tokens that follow each other in a circle
FIRST = 5 * BLOCK  # of the prompt
DIM, WIDTH = 256, 128  # of a head of attention, and of the delta rule


class Shape(NamedTuple):
    """Sizes of a model; heads are those of attention, deltas those of the delta rule."""

    hidden: int
    layers: int
    ffn: int
    heads: int
    kv_heads: int
    deltas: int

    @property
    def keys(self) -> int:
        """Heads of keys of the delta rule."""
        return min(self.deltas, 16)


SHAPES = {
    "tiny": Shape(256, 4, 512, 4, 2, 4),
    "2b": Shape(2048, 24, 6144, 8, 2, 16),
    "4b": Shape(2560, 32, 9216, 16, 4, 32),
}


class MtpFile:
    """A writer of the file. vocabulary: tokens; wrong: percent of them after which it is wrong."""

    def __init__(self, writer: GgufWriter, shape: Shape, vocabulary: int, wrong: int) -> None:
        self.writer, self.shape, self.vocabulary, self.wrong = writer, shape, vocabulary, wrong
        rng = np.random.default_rng(7)
        columns = 4 * max(shape.hidden, shape.ffn)
        self._drawn = 0.02 * rng.standard_normal((64, columns)).astype(np.float32)

    def write(self) -> None:
        """Write everything."""
        hidden, layers = self.shape.hidden, self.shape.layers
        self._keys()
        embedding = self._table("Q4_K", 0)
        self._put("token_embd", embedding, "Q4_K", (self.vocabulary, hidden))
        self._put("output", self._table("Q6_K", 1), "Q6_K", (self.vocabulary, hidden))
        self._ones("output_norm.weight", hidden)
        for i in range(layers + 1):
            self._layer(f"blk.{i}.", attends=i % 4 == 3 or i == layers)
        self._predictor(f"blk.{layers}.nextn.", embedding)

    def _keys(self) -> None:
        w, s, words = self.writer, self.shape, self.vocabulary - 259
        for key, value in {
            "block_count": s.layers + 1,
            "nextn_predict_layers": 1,
            "context_length": 32768,
            "embedding_length": s.hidden,
            "feed_forward_length": s.ffn,
            "attention.head_count": s.heads,
            "attention.head_count_kv": s.kv_heads,
            "attention.key_length": DIM,
            "attention.value_length": DIM,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 1e7,
            "rope.dimension_count": 64,
            "rope.dimension_sections": [11, 11, 10, 0],
            "ssm.conv_kernel": 4,
            "ssm.inner_size": s.deltas * WIDTH,
            "ssm.state_size": WIDTH,
            "ssm.time_step_rank": s.deltas,
            "ssm.group_count": s.keys,
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
        w.add("tokenizer.ggml.scores", [0.0] * self.vocabulary)
        w.add("tokenizer.ggml.token_type", [2, 3, 3] + [6] * 256 + [1] * words)
        w.add("tokenizer.ggml.bos_token_id", 1)
        w.add("tokenizer.ggml.eos_token_id", 2)

    def _table(self, kind: str, moved: int) -> np.ndarray:
        """The embedding; moved: rows of a block are so many places further."""
        parts, rng = [], np.random.default_rng(11)
        for _ in range(0, self.vocabulary, BLOCK):
            rows = rng.standard_normal((BLOCK, self.shape.hidden)).astype(np.float32)
            parts.append(quantize(np.roll(rows, moved, axis=0), kind).reshape(BLOCK, -1))
        return np.concatenate(parts)[: self.vocabulary]

    def _layer(self, b: str, *, attends: bool) -> None:
        """A layer that adds nothing to its row."""
        hidden, _, ffn, heads, kv_heads, deltas = self.shape
        self._ones(b + "attn_norm.weight", hidden)
        self._ones(b + "post_attention_norm.weight", hidden)
        if attends:
            self._random(b + "attn_q", 2 * heads * DIM, hidden)
            self._random(b + "attn_k", kv_heads * DIM, hidden)
            self._random(b + "attn_v", kv_heads * DIM, hidden, "Q6_K")
            self._zeros(b + "attn_output", hidden, heads * DIM)
            self._ones(b + "attn_q_norm.weight", DIM)
            self._ones(b + "attn_k_norm.weight", DIM)
        else:
            inner, mixed = deltas * WIDTH, 2 * self.shape.keys * WIDTH + deltas * WIDTH
            self._random(b + "attn_qkv", mixed, hidden)
            self._random(b + "attn_gate", inner, hidden)
            for name in ("ssm_beta", "ssm_alpha"):
                self._random(b + name, deltas, hidden, "F32")
            self.writer.add_tensor(b + "ssm_conv1d.weight", np.full((mixed, 4), 0.25, np.float32))
            self.writer.add_tensor(b + "ssm_a", -np.ones(deltas, np.float32))
            self._ones(b + "ssm_dt.bias", deltas)
            self._ones(b + "ssm_norm.weight", WIDTH)
            self._zeros(b + "ssm_out", hidden, inner)
        self._random(b + "ffn_gate", ffn, hidden)
        self._random(b + "ffn_up", ffn, hidden)
        self._zeros(b + "ffn_down", hidden, ffn, "Q6_K")

    def _predictor(self, b: str, embedding: np.ndarray) -> None:
        """What the last layer needs to predict further tokens: of its token's row alone."""
        hidden = self.shape.hidden
        for name in ("enorm", "hnorm", "shared_head_norm"):
            self._ones(f"{b}{name}.weight", hidden)
        first = np.zeros((hidden, 2 * hidden), np.float32)
        first[:, :hidden] = np.eye(hidden)
        self._put(b + "eh_proj", quantize(first, "Q8_0"), "Q8_0", first.shape)
        if self.wrong:
            every = np.arange(self.vocabulary)
            off = np.random.default_rng(13).random(self.vocabulary) < self.wrong / 100
            rows = embedding[np.where(off, every // BLOCK * BLOCK, every)]
            self._put(b + "embed_tokens", rows, "Q4_K", (self.vocabulary, hidden))

    def _random(self, name: str, rows: int, columns: int, kind: str = "Q4_K") -> None:
        some = quantize(self._drawn[:, :columns], kind).reshape(64, -1)
        self._put(name, np.tile(some, (-(-rows // 64), 1))[:rows], kind, (rows, columns))

    def _zeros(self, name: str, rows: int, columns: int, kind: str = "Q4_K") -> None:
        blocks = quantize(np.zeros((rows, columns), np.float32), kind)
        self._put(name, blocks, kind, (rows, columns))

    def _put(self, name: str, blocks: np.ndarray, kind: str, shape: tuple[int, ...]) -> None:
        self.writer.add_tensor(f"{name}.weight", blocks, type_name=kind, shape=shape)

    def _ones(self, name: str, size: int) -> None:
        self.writer.add_tensor(name, np.ones(size, np.float32))


def write(path: Path, shape: str, vocabulary: int, wrong: int) -> None:
    """Write the file."""
    with GgufWriter(path, "qwen35") as writer:
        MtpFile(writer, SHAPES[shape], vocabulary, wrong).write()


def ours(path: Path, prompt: list[int], tokens: int, threads: int, ways: list) -> dict:
    """Tokens per second of each way, in turn on one engine, after a first run of each."""
    found: dict = {}
    with oxillama.load(path, num_threads=threads, prefix_cache=False) as engine:
        engine.loaded.model.pack()
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
