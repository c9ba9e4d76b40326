"""Makes the golden snapshot of the present format version, from the embedded model: run once per version, then kept for ever.

    python tests/engine/golden/make_snapshots.py

Beside `snapshot-vN.oxisnap` goes `snapshot-vN.json`: the tokens that must follow, drawn here without a stop in between.
"""
import json
from pathlib import Path

import oxillama
from oxillama import SamplerConfig
from oxillama.engine.snapshot import KIND

FOLDER = Path(__file__).parent
OPTIONS = dict(sampler=SamplerConfig(temperature=1.1, top_k=0, top_p=0.97, dry_multiplier=0.5, frequency_penalty=0.2, seed=2026,
                                     stop=("dragon and",), logit_bias={300: -1.0}), grammar='root ::= [ a-zA-Z,.\']+ "!"', logprobs=1)
PROMPT, BEFORE, AFTER = "Once upon", 7, 24


def main() -> None:
    name = FOLDER / f"snapshot-v{KIND.version}"
    if name.with_suffix(".oxisnap").exists():
        raise SystemExit(f"{name}.oxisnap stands: a golden file is never made again")
    with oxillama.load() as engine:
        whole = engine.generate(PROMPT, max_tokens=BEFORE + AFTER, **OPTIONS)
        engine.generate(PROMPT, max_tokens=BEFORE, **OPTIONS)
        engine.snapshot_to_file(name.with_suffix(".oxisnap"))
    name.with_suffix(".json").write_text(json.dumps({"tokens": whole.tokens[BEFORE:], "reason": whole.finish_reason}) + "\n")


if __name__ == "__main__":
    main()
