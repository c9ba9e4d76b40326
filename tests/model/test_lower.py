"""Lowering: the fusions that are promised, and nothing changed by them."""

from pathlib import Path

import numpy as np
import pytest

from oxillama.model.ops import OPS
from oxillama.model.record import record
from oxillama.model.reference import Reference
from tests.model import tiny

GOLDEN = Path(__file__).parent / "golden"
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_tape_of_each_architecture_equals_its_golden_dump(arch, tmp_path):
    _, tape = record(tiny.write(tmp_path / "m.gguf", arch))
    assert tape.dump() == (GOLDEN / f"{arch}.tape").read_text()


def test_q_k_v_of_one_format_are_one_matmul_and_of_two_formats_are_two(tmp_path):
    _, tape = record(
        tiny.write(
            tmp_path / "m.gguf", "llama", formats=lambda name: "F16" if "attn_v" in name else "Q8_0"
        )
    )
    first = [op for op in tape.ops if op.name == "matmul"][:2]
    assert [[w.name for w in op.params["weights"]] for op in first] == [
        ["blk.0.attn_q.weight", "blk.0.attn_k.weight"],
        ["blk.0.attn_v.weight"],
    ]
    assert [op.params["offset"] for op in first] == [
        0,
        tiny.HEADS * tiny.HEAD_DIM + tiny.KV_HEADS * tiny.HEAD_DIM,
    ]
    assert first[0].params["out"] == first[1].params["out"]


def test_gate_and_up_of_two_formats_are_still_gated(tmp_path):
    _, tape = record(
        tiny.write(
            tmp_path / "m.gguf", "llama", formats=lambda name: "F16" if "ffn_up" in name else "Q8_0"
        )
    )
    assert [op.name for op in tape.ops].count("activate") == tiny.LAYERS
    assert all(op.params.get("gate") is None for op in tape.ops if op.name == "matmul")


def test_no_row_beyond_the_wanted_ones_passes_the_last_attention(tmp_path):
    _, tape = record(tiny.write(tmp_path / "m.gguf", "llama"))
    names = [op.name for op in tape.ops]
    last = len(names) - 1 - names[::-1].index("attend")
    assert names[last + 1] == "take_rows"
    assert names.count("take_rows") == 2


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_ops_never_write_a_slot_they_read_unless_they_say_so(arch, tmp_path):
    _, tape = record(tiny.write(tmp_path / "m.gguf", arch, formats=lambda name: "Q8_0"))
    for op in tape.ops:
        kind = OPS[op.name]
        reads = {op.params[key] for key in kind.reads if op.params.get(key) is not None}
        for key in kind.writes:
            if key in kind.reads or op.params.get(key) is None:
                continue
            written = op.params[key]
            for slot in written.values() if isinstance(written, dict) else (written,):
                assert slot == -1 or slot not in reads


def test_only_wanted_rows_have_logits_and_they_are_those_of_the_whole(tmp_path):
    reader = tiny.write(tmp_path / "m.gguf", "qwen3")
    _, tape = record(reader)
    reference, ids = Reference(tape, reader), np.arange(12) * 5 % tiny.VOCAB
    whole = reference.logits(ids)
    frame = reference.frame(ids, wanted=[3, 11])
    for _ in reference.steps(frame):
        pass
    assert whole.shape == (12, tiny.VOCAB)
    np.testing.assert_allclose(frame.slots[-1], whole[[3, 11]], rtol=1e-5, atol=1e-6)
