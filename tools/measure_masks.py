#!/usr/bin/env python3
"""Measures grammar masks beside peers: the same schemas, texts and vocabulary, every engine in turn
for every schema, one thread each.

    measure_masks.py VOCABULARY.gguf SCHEMAS --every 40 [--offset 0] [--peer PYTHON]
        [--peers llguidance,xgrammar] [--seconds 80] [--texts 0] [--each]

SCHEMAS is a folder of JSON files with `schema` and `tests` (`data`, `valid`), as MaskBench has
them; `mask_cases.py` writes one. PYTHON is an interpreter with llguidance, xgrammar and what
oxillama depends on; it runs this file with --serve and answers a JSON line a schema.

For each schema an engine compiles and gives its first mask, --repeats times (the least sum counts;
the first one is told too), and then one mask per token along every text as far as it allows it; a
text is right if it is allowed to its end exactly where it is valid. Compilation and masks are timed
by themselves. A schema that an engine refuses is not right; its time to refuse is left out of the
compile times. Times are told for the schemas that an engine accepts, and for those that all of them
accept.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

# the CPU time of this process: on a busy machine the only clock that compares two of them
now = time.process_time


def run(
    compile_, start, schema: str, texts: list[tuple[list[int], bool]], repeats: int = 1
) -> dict:
    """One engine over one schema: times in microseconds, verdicts. `start` gives (mask, advance,
    complete) of a new matcher.
    """
    times: list[tuple[float, float, float]] = []
    try:
        for _ in range(repeats):
            before = now()
            grammar = compile_(schema)
            compiled = now()
            start(grammar)[0]()
            masked = now()
            times.append((masked - before, compiled - before, masked - compiled))
        _, compiling, masking = min(times)
        out = {
            "compile": 1e6 * compiling,
            "first": 1e6 * masking,
            "fresh": 1e6 * times[0][0],
            "masks": [],
            "accepts": 0,
            "rejects": 0,
        }
        walk(out, grammar, start, texts)
    except Exception as error:  # whatever a peer raises is its refusal
        return {"refused": str(error)[:200]}
    return out


def walk(out: dict, grammar, start, texts: list[tuple[list[int], bool]]) -> None:
    """A mask for each token of the texts; times and verdicts go into `out`."""
    for ids, valid in texts:
        mask, advance, complete = start(grammar)
        allowed = True
        for token in ids:
            before = now()
            bits = mask()
            out["masks"].append(round(1e6 * (now() - before), 2))
            allowed = bool(int(bits[token >> 5]) >> (token & 31) & 1)
            if not allowed:
                break
            advance(token)
        allowed = allowed and complete()
        out["accepts"] += allowed and not valid
        out["rejects"] += valid and not allowed


def vocabulary(path: str):
    """The tokenizer, the tokens' bytes (none for control tokens), the control tokens and those that
    end a text.
    """
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from oxillama.tokenizer import TokenizerBridge

    bridge = TokenizerBridge.from_gguf(path)
    special = set(bridge.special_ids)
    return (
        bridge,
        [b"" if i in special else piece or b"" for i, piece in enumerate(bridge.vocab_bytes())],
        special,
        sorted(bridge.eog_ids),
    )


def llguidance_engine(bridge, pieces: list[bytes], special: set[int], ends: list[int]):
    """llguidance as (compile, start)."""
    import llguidance
    import llguidance.numpy

    eos = ends[0]

    class Words:
        eos_token_id, bos_token_id, tokens, special_token_ids = eos, None, pieces, sorted(special)

        def __call__(self, text):  # asked for where the grammar forces bytes
            return [
                t
                for t in bridge.encode(text.decode() if isinstance(text, bytes) else text)
                if t not in special
            ]

    words = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Words()))
    bits = llguidance.numpy.allocate_token_bitmask(1, len(pieces))

    def guide_compile(schema):
        matcher = llguidance.LLMatcher(words, llguidance.LLMatcher.grammar_from_json_schema(schema))
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def guide_start(grammar):
        matcher = grammar.deep_copy()

        def mask():
            llguidance.numpy.fill_next_token_bitmask(matcher, bits, 0)
            return bits[0].view(np.uint32)

        return mask, matcher.consume_token, matcher.is_accepting

    return guide_compile, guide_start


def xgrammar_engine(bridge, pieces: list[bytes], special: set[int], ends: list[int]):
    """xgrammar as (compile, start)."""
    import xgrammar

    eos = ends[0]
    info = xgrammar.TokenizerInfo(
        pieces, xgrammar.VocabType.RAW, vocab_size=len(pieces), stop_token_ids=[eos]
    )
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    packed = np.zeros((1, (len(pieces) + 31) // 32), np.int32)

    def x_start(grammar):
        matcher = xgrammar.GrammarMatcher(grammar, terminate_without_stop_token=False)

        def mask():
            if not matcher.fill_next_token_bitmask(packed):
                # "everything is allowed" leaves the buffer as it is
                packed[:] = -1
            return packed[0].view(np.uint32)

        return mask, matcher.accept_token, lambda: bool(int(mask()[eos >> 5]) >> (eos & 31) & 1)

    return lambda schema: compiler.compile_json_schema(schema, strict_mode=False), x_start


PEERS = {"llguidance": llguidance_engine, "xgrammar": xgrammar_engine}


def serve(path: str, wanted: list[str], repeats: int) -> None:
    vocabulary_ = vocabulary(path)
    engines = {name: PEERS[name](*vocabulary_) for name in wanted}
    for line in sys.stdin:
        job = json.loads(line)
        print(
            json.dumps(
                {
                    name: run(*engine, job["schema"], job["texts"], repeats)
                    for name, engine in engines.items()
                }
            ),
            flush=True,
        )


def ours(pieces, special, ends, order):
    from oxillama.grammar import JsonSchemaCompiler, TokenMasker

    masker, compiler = (
        TokenMasker(pieces, control_ids=special, eog_ids=ends),
        JsonSchemaCompiler(whitespace="flexible", order=order),
    )

    def start(grammar):
        state = masker.state(grammar)
        return state.mask, lambda token: masker.advance(state, token), state.is_complete

    return compiler.compile, start


def percentiles(values, *at) -> str:
    return " / ".join(f"{value:.3g}" for value in np.percentile(values, at)) if len(values) else "-"


def spread(values) -> str:
    """The median, the mean, the 99th percentile and the largest."""
    if not len(values):
        return "-"
    at = (np.median(values), np.mean(values), np.percentile(values, 99), np.max(values))
    return " / ".join(f"{value:.3g}" for value in at)


def percent(count: int, of: list) -> str:
    return f"{100 * count / len(of):.1f} %"


def table(found: dict[str, list[dict]]) -> str:
    lines = ["| | " + " | ".join(found) + " |", "| --- " * (len(found) + 1) + "|"]
    kept = {name: [r for r in runs if "refused" not in r] for name, runs in found.items()}
    masks = {
        name: np.concatenate([r["masks"] for r in runs if r["masks"]] or [[]])
        for name, runs in kept.items()
    }

    def row(title, cell):
        lines.append(f"| {title} | " + " | ".join(cell(name) for name in found) + " |")

    walked = any(len(times) for times in masks.values())
    if walked:
        right = {
            n: [not r["accepts"] and not r["rejects"] for r in runs] for n, runs in kept.items()
        }
        row("schemas right", lambda n: percent(sum(right[n]), found[n]))
    row(
        "refused / with false rejects / with false accepts",
        lambda n: (
            f"{len(found[n]) - len(kept[n])} / "
            f"{sum(r['rejects'] > 0 for r in kept[n])} / {sum(r['accepts'] > 0 for r in kept[n])}"
        ),
    )
    both = [
        i
        for i in range(len(found["ours"]))
        if all("refused" not in runs[i] for runs in found.values())
    ]
    shared = {name: [runs[i] for i in both] for name, runs in found.items()}
    for title, runs in (("", kept), (f", the {len(both)} that all accept", shared)):
        for part, unit, time_of in (
            ("compile", "ms", lambda r: r["compile"] / 1e3),
            ("first mask", "ms", lambda r: r["first"] / 1e3),
            ("compile and first mask", "ms", lambda r: (r["compile"] + r["first"]) / 1e3),
            ("the same, the first time", "ms", lambda r: r["fresh"] / 1e3),
        ):
            row(
                f"{part} p50 / mean / p99 / max, {unit}{title}",
                lambda n, runs=runs, time_of=time_of: spread([time_of(r) for r in runs[n]]),
            )
    if walked:
        row("mask p50 / p99 / p99.9, us", lambda n: percentiles(masks[n], 50, 99, 99.9))
        row("mask average, us", lambda n: f"{masks[n].mean():.3g}" if len(masks[n]) else "-")
    return "\n".join(lines)


def each(names: list[str], found: dict[str, list[dict]]) -> str:
    """A row per schema: how long masks took in the mean, and at most, in microseconds."""
    lines = [
        "| schema | " + " | ".join(f"{name}: mean / max, us" for name in found) + " |",
        "| --- " * (len(found) + 1) + "|",
    ]
    for i, name in enumerate(names):
        cells = []
        for runs in found.values():
            masks = runs[i].get("masks")
            wrong = " (wrong)" if runs[i].get("accepts") or runs[i].get("rejects") else ""
            cells.append(
                f"{np.mean(masks):,.0f} / {max(masks):,.0f}{wrong}" if masks else "refused"
            )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("vocabulary", nargs="?")
    parser.add_argument("schemas", nargs="?", type=Path)
    parser.add_argument("--every", type=int, default=40)
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so many seconds")
    parser.add_argument(
        "--peer", help="an interpreter that has llguidance, xgrammar and what oxillama depends on"
    )
    parser.add_argument(
        "--peers",
        default="llguidance,xgrammar",
        help="which of the peers (xgrammar takes seconds for a schema at 128k tokens)",
    )
    parser.add_argument("--repeats", type=int, default=3, help="of compilation and first mask")
    parser.add_argument("--order", default="free", help="of members, for oxillama: free, declared")
    parser.add_argument("--each", action="store_true", help="a row per schema as well")
    parser.add_argument("--texts", type=int, help="of each schema, at most (0: no masks but first)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.vocabulary, options.peers.split(","), options.repeats)
    bridge, pieces, special, ends = vocabulary(options.vocabulary)
    engine = ours(pieces, special, ends, options.order)
    child = None
    if options.peer:
        child = subprocess.Popen(
            [
                options.peer,
                os.path.abspath(__file__),
                options.vocabulary,
                "--serve",
                "--peers",
                options.peers,
                "--repeats",
                str(options.repeats),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"},
        )
    found, names, begun = {"ours": []}, [], time.monotonic()
    for path in sorted(options.schemas.glob("*.json"))[options.offset :: options.every]:
        if time.monotonic() - begun > options.seconds:
            break
        case = json.loads(path.read_text())
        texts = [
            (
                [
                    t
                    for t in bridge.encode(json.dumps(test["data"], ensure_ascii=False))
                    if t not in special
                ],
                test["valid"],
            )
            for test in case["tests"][: options.texts]
        ]
        schema = json.dumps(case["schema"])
        names.append(path.stem)
        found["ours"].append(run(*engine, schema, texts, options.repeats))
        if child is not None:
            child.stdin.write(json.dumps({"schema": schema, "texts": texts}) + "\n")
            child.stdin.flush()
            for name, result in json.loads(child.stdout.readline()).items():
                found.setdefault(name, []).append(result)
    if child is not None:
        child.stdin.close()
        child.wait()
    print(f"{len(found['ours'])} schemas, {len(pieces)} tokens\n\n{table(found)}")
    if options.each:
        print(f"\n{each(names, found)}")


if __name__ == "__main__":
    main()
