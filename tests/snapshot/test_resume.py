"""Stop at every token, go on in another process with other threads and another instruction set: the
same tokens, the same logits.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from blake3 import blake3

import oxillama
from oxillama import SamplerConfig
from tests.snapshot.resumed import recorder

TOKENS = 12
PROMPT = "one two one two one"
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "s": {"type": "string", "maxLength": 6}},
    "required": ["n", "s"],
}
CONFIGS = {
    "greedy": dict(sampler=SamplerConfig.greedy(), seed=1),
    "top_p": dict(sampler=SamplerConfig(temperature=1.3, top_p=0.95, top_k=0, seed=7)),
    "mirostat": dict(sampler=SamplerConfig.mirostat_v2(seed=11)),
    "dry_xtc": dict(
        sampler=SamplerConfig(
            temperature=1.1,
            top_k=0,
            top_p=1.0,
            dry_multiplier=0.9,
            dry_allowed_length=1,
            xtc_probability=0.5,
            xtc_threshold=0.02,
            frequency_penalty=0.3,
            repetition_window=5,
            logit_bias={5: 1.5, 9: float("-inf")},
            seed=5,
        )
    ),
    "grammar": dict(
        sampler=SamplerConfig(temperature=1.2, seed=3),
        grammar='root ::= ("ab" [0-9] | "é" | "世"){7,} "."',
    ),
    "schema": dict(sampler=SamplerConfig(temperature=1.2, seed=4), json_schema=SCHEMA),
}
ARCHES = {
    "llama": ("q8_0", "scalar", 2),
    "qwen3": ("f32", "avx2", 3),
    "gemma3": ("q8_0", "avx2", 2),
}


def stopped(engine, name: str, tokens: int):
    """(completion, hashes of its rows) of a run of its own."""
    see, rows = recorder()
    return engine.generate(PROMPT, max_tokens=tokens, processors=[see], **CONFIGS[name]), rows


@pytest.fixture(scope="module", params=ARCHES)
def ways(request, cases, tmp_path_factory):
    """(how each config went without a stop, how each went on that was stopped after so many tokens,
    what was shown before).
    """
    kind, isa, threads = ARCHES[request.param]
    model = cases / "arch" / request.param / f"{kind}.gguf"
    folder = tmp_path_factory.mktemp("saved")
    whole, before, jobs, places = {}, {}, [], []
    with oxillama.load(model, num_threads=1) as engine:
        for name in CONFIGS:
            done, rows = stopped(engine, name, TOKENS)
            whole[name] = done, rows, blake3(engine.snapshot()).hexdigest()
            # one more than tokens where the last draw was an end
            for count in range(len(rows)):
                before[name, count] = stopped(engine, name, count)[0]
                path = folder / f"{name}-{count}"
                engine.snapshot_to_file(path)
                jobs.append(
                    {
                        "snapshot": str(path),
                        "model": str(model),
                        "tokens": TOKENS - count,
                        "first": not count,
                    }
                )
                places.append((name, count))
    child = subprocess.run(
        [sys.executable, Path(__file__).with_name("resumed.py")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        input=json.dumps({"isa": isa, "threads": threads, "jobs": jobs}),
        env={**os.environ, "OXILLAMA_ISA": isa},
    )
    assert child.returncode == 0, child.stderr
    return whole, dict(zip(places, json.loads(child.stdout), strict=True)), before


@pytest.mark.parametrize("name", CONFIGS)
def test_whoever_is_stopped_at_any_token_goes_on_as_if_nothing_had_been(ways, name):
    whole, after, before = ways
    done, rows, saved = whole[name]
    counts = sorted(count for each, count in after if each == name)
    assert (
        len(done.tokens) >= 8
        and len(set(rows)) == len(rows) >= len(done.tokens)
        and counts == list(range(len(rows)))
    )
    for count in counts:
        found = after[name, count]
        assert list(before[name, count].tokens) + found["tokens"] == list(done.tokens)
        assert found["rows"] == rows[count:]
        assert found["reason"] == done.finish_reason and found["seed"] == done.seed
        assert before[name, count].text + found["text"] == done.text


@pytest.mark.parametrize("name", CONFIGS)
def test_the_state_at_the_end_is_that_of_the_run_without_a_stop_in_equal_bytes(ways, name):
    whole, after, _ = ways
    assert {found["again"] for (each, _), found in after.items() if each == name} == {
        whole[name][2]
    }
