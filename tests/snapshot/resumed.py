"""Run as a program: resumes snapshots in a process of its own and says how each goes on.

Standard input is JSON about {isa, threads, jobs}, each job {snapshot, model, tokens, first};
standard output a list of {tokens, rows, reason, text, again}, where `rows` is a hash of all logits
drawn from and `again` one of the snapshot taken at the end.
"""

import json
import sys

from blake3 import blake3

from oxillama import InferenceEngine
from oxillama._core.kernels import cpu_info


def recorder():
    """(a processor that hashes every row it is shown, the list of hashes)."""
    hashes = []
    return (lambda ids, row: hashes.append(blake3(row.tobytes()).hexdigest())), hashes


def all_resumed(jobs: list[dict], threads: int) -> list[dict]:
    """How each goes on: the first of each config in an engine of its own, the others beside one
    another in one.
    """
    out, engine = [], None
    for job in jobs:
        see, rows = recorder()
        if job["first"]:
            if engine is not None:
                engine.close()
            engine = InferenceEngine.resume_from_file(
                job["snapshot"], job["model"], num_threads=threads, processors=[see]
            )
            done = engine.generate(None, max_tokens=job["tokens"])
            again = engine.snapshot()
        else:
            session = engine.restore_from_file(job["snapshot"], processors=[see])
            done = engine.generate(None, session=session, max_tokens=job["tokens"])
            again = session.snapshot()
        out.append(
            {
                "tokens": list(done.tokens),
                "rows": rows,
                "reason": done.finish_reason,
                "text": done.text,
                "seed": done.seed,
                "again": blake3(again).hexdigest(),
            }
        )
    return out


if __name__ == "__main__":
    about = json.load(sys.stdin)
    assert cpu_info()["isa"] == about["isa"], cpu_info()
    json.dump(all_resumed(about["jobs"], about["threads"]), sys.stdout)
