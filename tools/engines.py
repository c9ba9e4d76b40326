"""How tools/measure.py talks to engines: ours, peers behind the same options, and ik_llama.cpp's
bench programs.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import statistics
import subprocess
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

COLUMNS = {
    "pp_tps": "prompt tokens/s",
    "tg_tps": "generation tokens/s",
    "load_s": "load s",
    "first_s": "load to first token s",
    "peak_rss_mb": "peak RSS MB",
    "served_tps": "generated tokens/s, prompts included",
}
LESS_IS_BETTER = ("load_s", "first_s", "peak_rss_mb")
BESIDE = ("model_bytes",)  # kept of a round, no column of its own


@dataclass(frozen=True, slots=True)
class Work:
    """What one run does; p or n of 0 is left out. `kv` is the type of keys and values. `load` is
    "warm" or "cold" for a load to the first token and nothing else.
    """

    p: int = 0
    n: int = 0
    d: int = 0
    b: int = 1
    t: int = 2
    kv: str = "f16"
    load: str = ""

    @classmethod
    def of(cls, text: str) -> Work:
        """From a text like "p512 n64 d4096 q8_0" or "warm t1"."""
        loads = re.findall(r"\b(?:warm|cold)\b", text)
        types = re.findall(r"\b(?:f16|q8_0|q4_0)\b", text)
        found = dict(re.findall(r"\b([pndbt])(\d+)\b", text))
        rest = re.sub(r"\b(?:[pndbt]\d+|warm|cold|f16|q8_0|q4_0)\b", "", text).strip()
        if (
            rest
            or len(loads) > 1
            or len(types) > (not loads)
            or bool(loads) == bool(found.keys() & {"p", "n"})
        ):
            raise SystemExit(
                f"work: found {text!r}, wanted letters p n d b t with numbers, as in 'p512 n64', "
                "and at most one of f16 q8_0 q4_0; or 'warm' or 'cold'"
            )
        return cls(
            **{key: int(value) for key, value in found.items()},
            kv="".join(types) or "f16",
            load="".join(loads),
        )

    def __str__(self) -> str:
        words = [f"prompt {self.p}"] if self.p else []
        words += (
            [
                f"generation {self.n}"
                + (f" at {self.d}" if self.d else "")
                + (f" x {self.b}" if self.b > 1 else "")
            ]
            if self.n
            else []
        )
        words += [f"keys and values in {self.kv}"] if self.kv != "f16" else []
        words += [f"{self.load} load"] if self.load else []
        return ", ".join(words) + f", {self.t} thread{'s' if self.t > 1 else ''}"


def call(
    command: list[str], *, env: dict[str, str] | None = None, folder: str | None = None
) -> tuple[str, str]:
    """A program's standard output and standard error; RuntimeError where it fails."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
        cwd=folder,
    )
    errors: list[str] = []
    drain = threading.Thread(target=lambda: errors.append(process.stderr.read()))
    drain.start()
    out = process.stdout.read()
    drain.join()
    if process.wait():
        raise RuntimeError(
            f"{shlex.join(command)}: exit code {process.returncode}\n{errors[0][-1000:]}"
        )
    return out, errors[0]


def _kv_flags(work: Work) -> list[str]:
    """What llama.cpp's programs are told about keys and values."""
    return ["-ctk", work.kv, "-ctv", work.kv] if work.kv != "f16" else []


@dataclass(slots=True)
class Harness:
    """An engine behind the options of `oxillama bench`, or of first_token.py for loads."""

    name: str
    command: list[str]
    runs: int
    served: bool = False
    isa: str | None = None  # the instruction set forced on it, which it must report
    env: dict[str, str] = field(default_factory=dict)

    def measure(self, model: Path, work: Work) -> dict[str, float]:
        """One run: the columns it has numbers for."""
        found = self._found(model, work)
        if self.isa and found.get("isa") != self.isa:
            raise RuntimeError(f"{self.name}: runs on {found.get('isa')}, wanted {self.isa}")
        if self.served and "served_tps" not in found:
            found["served_tps"] = work.n / (
                max(work.d, 1) / found["pp_tps"] + work.n / found["tg_tps"]
            )
        absent = {key for key, asked in (("pp_tps", work.p), ("tg_tps", work.n)) if not asked}
        return {
            key: found[key] for key in (*COLUMNS, *BESIDE) if key in found and key not in absent
        }

    def _found(self, model: Path, work: Work) -> dict:
        options = (
            (["--cold"] if work.load == "cold" else [])
            if work.load
            else [
                "-p",
                str(max(work.p, 1)),
                "-n",
                str(max(work.n, 1)),
                "-d",
                str(work.d),
                "-b",
                str(work.b),
                "-r",
                str(self.runs),
                *(["--kv-type", work.kv] if work.kv != "f16" else []),
            ]
        )
        out, _ = call(
            [*self.command, str(model), "-t", str(work.t), *options, "--json"],
            env=self.env | ({"OXILLAMA_ISA": self.isa} if self.isa else {}),
        )
        return json.loads(out.strip().splitlines()[-1])


@dataclass(slots=True)
class LlamaBench:
    """ik_llama.cpp's llama-bench, and its llama-batched-bench for several sequences, with several
    sets of flags, the best of which counts.
    """

    name: str
    runs: int
    flags: list[str]
    bench: str | None = None
    batched: str | None = None
    served: bool = False
    # (model, work, column) -> flags, once the first round has shown them
    best: dict[tuple, str] = field(default_factory=dict)

    def measure(self, model: Path, work: Work) -> dict[str, float]:
        """One run of each set of flags that may still be the best; nothing where the programs given
        have no such mode.
        """
        wanted = (
            ["served_tps"]
            if self.served
            else [key for key, asked in (("pp_tps", work.p), ("tg_tps", work.n)) if asked]
        )
        wanted = [
            key for key in wanted if (self.batched if self._is_together(key, work) else self.bench)
        ]
        seen = {}
        for flags in self.flags:
            columns = [key for key in wanted if self.best.get((model, work, key), flags) == flags]
            seen[flags] = self._run(model, work, flags, columns) if columns else {}
        for key in wanted:
            rates = {flags: found[key] for flags, found in seen.items() if key in found}
            self.best.setdefault((model, work, key), max(rates, key=rates.__getitem__))
        return {key: seen[self.best[model, work, key]][key] for key in wanted}

    @staticmethod
    def _is_together(column: str, work: Work) -> bool:
        """Whether a number is one of several sequences, which llama-bench does not have."""
        return column == "served_tps" or column == "tg_tps" and work.b > 1

    def _run(self, model: Path, work: Work, flags: str, columns: list[str]) -> dict[str, float]:
        found: dict[str, float] = {}
        alone = [key for key in columns if not self._is_together(key, work)]
        if alone:
            found |= self._alone(model, work, flags, alone)
        if len(alone) < len(columns):
            found |= self._together(model, work, flags)
        return {key: found[key] for key in columns}

    def _alone(self, model: Path, work: Work, flags: str, columns: list[str]) -> dict[str, float]:
        prompt, generate = (
            work.p if "pp_tps" in columns else 0,
            work.n if "tg_tps" in columns else 0,
        )
        tests = ["-p", str(prompt)] + (
            ["-n", "0", "-gp", f"{work.d},{generate}"]
            if work.d and generate
            else ["-n", str(generate)]
        )
        out, _ = call(
            [
                self.bench,
                "-m",
                str(model),
                *tests,
                "-t",
                str(work.t),
                "-r",
                str(self.runs),
                "-o",
                "json",
                *_kv_flags(work),
                *shlex.split(flags),
            ]
        )
        return {
            "tg_tps" if row["n_gen"] else "pp_tps": float(row["avg_ts"])
            for row in json.loads(out[out.index("[") :])
        }

    def _together(self, model: Path, work: Work, flags: str) -> dict[str, float]:
        """llama-batched-bench: all prompts in one batch, then a token of each sequence a step; its
        table goes to the standard output (llama.cpp) or the standard error (ik_llama.cpp).
        """
        prompt = max(work.d, 1)
        # there it takes no value
        words = re.sub(
            r"-rtr 0|-rtr 1", lambda found: "-rtr" if found[0].endswith("1") else "", flags
        )
        room = -(-work.b * (prompt + work.n) // 256) * 256
        command = [
            str(Path(self.batched).resolve()),
            "-m",
            str(model.resolve()),
            "-c",
            str(room),
            "-b",
            "2048",
            "-ub",
            "512",
            "-npp",
            str(prompt),
            "-ntg",
            str(work.n),
            "-npl",
            ",".join([str(work.b)] * self.runs),
            "-t",
            str(work.t),
            "-tb",
            str(work.t),
            *_kv_flags(work),
            *shlex.split(words),
        ]
        with tempfile.TemporaryDirectory() as folder:  # it leaves a log where it runs
            shown = "\n".join(call(command, folder=folder))
        rows = [
            [float(cell) for cell in line.strip("| ").split("|")]
            for line in shown.splitlines()
            if re.fullmatch(r"\|[\s\d.|]+", line)
        ]
        if not rows:
            raise RuntimeError(f"{self.batched}: no row in its table\n{shown[-1000:]}")
        prompts, rates, seconds = (statistics.median(row[i] for row in rows) for i in (5, 7, 8))
        return {"pp_tps": prompts, "tg_tps": rates, "served_tps": work.b * work.n / seconds}
