"""Makes the golden snapshots of the present format versions, from the embedded model: run once per
version, then kept for ever.

    python tests/snapshot/golden/make_snapshots.py

Beside `snapshot-vN.oxisnap` goes `snapshot-vN.json`: the tokens that must follow, drawn here
without a stop in between; beside `speculation-vN.oxispec` the tokens that the same engine says
next, and how many candidates of how many stood.
"""

import json
from pathlib import Path

import oxillama
from oxillama import SamplerConfig
from oxillama.snapshot.session import KIND
from oxillama.speculative import SpeculativeConfig, SpeculativeEngine
from oxillama.speculative.snapshot import KIND as SPEC_KIND

FOLDER = Path(__file__).parent
OPTIONS = dict(
    sampler=SamplerConfig(
        temperature=1.1,
        top_k=0,
        top_p=0.97,
        dry_multiplier=0.5,
        frequency_penalty=0.2,
        seed=2026,
        stop=("dragon and",),
        logit_bias={300: -1.0},
    ),
    grammar='root ::= [ a-zA-Z,.\']+ "!"',
    logprobs=1,
)
PROMPT, BEFORE, AFTER = "Once upon", 7, 24


DRAFTING = dict(
    num_speculative=3, draft_sampler=SamplerConfig(temperature=2.5, top_k=40), adaptive=False
)
# candidates fall, too
HOT = {**OPTIONS, "sampler": OPTIONS["sampler"].replace(temperature=1.6, top_p=1.0)}


def session(name: Path) -> None:
    with oxillama.load() as engine:
        whole = engine.generate(PROMPT, max_tokens=BEFORE + AFTER, **OPTIONS)
        engine.generate(PROMPT, max_tokens=BEFORE, **OPTIONS)
        engine.snapshot_to_file(name.with_suffix(".oxisnap"))
    name.with_suffix(".json").write_text(
        json.dumps({"tokens": whole.tokens[BEFORE:], "reason": whole.finish_reason}) + "\n"
    )


def speculation(name: Path) -> None:
    with (
        oxillama.load() as target,
        oxillama.load() as draft,
        SpeculativeEngine(SpeculativeConfig(target, draft, **DRAFTING)) as engine,
    ):
        engine.generate(PROMPT, max_tokens=BEFORE, **HOT)
        engine.snapshot_to_file(name.with_suffix(".oxispec"))
        rest = engine.generate(None, max_tokens=2 * AFTER)
    stats = rest.speculation
    name.with_suffix(".json").write_text(
        json.dumps({"tokens": rest.tokens, "accepted": stats.accepted, "rejected": stats.rejected})
        + "\n"
    )


def main() -> None:
    made = 0
    for name, ending, make in (
        (f"snapshot-v{KIND.version}", ".oxisnap", session),
        (f"speculation-v{SPEC_KIND.version}", ".oxispec", speculation),
    ):
        if not (FOLDER / name).with_suffix(ending).exists():
            make(FOLDER / name)
            made += 1
    if not made:
        raise SystemExit("the files of these versions stand: a golden file is never made again")


if __name__ == "__main__":
    main()
