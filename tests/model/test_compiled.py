"""The compiled tape: it means what the reference says, and its bits depend on nothing but the
tokens.
"""

import numpy as np
import pytest

from oxillama._core.kernels import isa_available
from oxillama._core.tape import Batch
from oxillama.errors import ContextError
from oxillama.gguf import GgufReader
from oxillama.model import load_model
from oxillama.model.reference import Reference, compare
from tests.model import tiny

CASES = (
    "llama",
    "llama_bias",
    "llama_linear",
    "llama_bpe_tied_rope3",
    "mistral",
    "qwen2",
    "qwen2_yarn",
    "qwen3",
    "gemma3",
)
IDS = np.arange(96) * 37 % tiny.VOCAB


def logits(model, ids, *, chunk=512, kv_type="f16", pages=None, wanted=None):
    """Output rows of `ids` run in chunks over pages in the given order."""
    memory = model.page_memory(kv_type=kv_type)
    count = -(-len(ids) // 16)
    table = np.arange(count, dtype=np.int32) if pages is None else np.asarray(pages, np.int32)
    memory.ensure(int(table.max()) + 1)
    out = []
    for start in range(0, len(ids), chunk):
        part = np.asarray(ids[start : start + chunk], np.int32)
        n = len(part)
        rows = (
            np.arange(n)
            if wanted is None
            else np.asarray([r - start for r in wanted if start <= r < start + n])
        )
        batch = Batch(
            part,
            np.arange(start, start + n, dtype=np.int32),
            [table],
            np.zeros(n, np.int32),
            rows.astype(np.int32),
        )
        out.append(np.array(model.program.step(batch, memory)))
    return np.concatenate(out)


@pytest.mark.parametrize("name", CASES)
def test_f32_files_give_the_logits_that_others_give(cases, name):
    facts = np.load(cases / "arch" / name / "logits.npz")
    model = load_model(GgufReader(cases / "arch" / name / "f32.gguf"))
    for i in range(4):
        wanted = facts[f"hf_{i}"]
        assert (
            np.abs(logits(model, facts[f"tokens_{i}"], kv_type="f32") - wanted).max()
            <= 2e-5 * np.abs(wanted).max()
        )


@pytest.mark.parametrize("name", CASES)
def test_q8_0_files_stay_as_near_as_the_format_allows(cases, name):
    facts = np.load(cases / "arch" / name / "logits.npz")
    wanted = facts["hf_3"]
    found = logits(load_model(GgufReader(cases / "arch" / name / "q8_0.gguf")), facts["tokens_3"])
    assert np.abs(found - wanted).max() <= max(
        0.06 * np.abs(wanted).max(), 1.5 * np.abs(facts["lcpp_q8_0_3"] - wanted).max()
    )


@pytest.mark.parametrize("arch", ("llama", "qwen2", "qwen3", "gemma3"))
@pytest.mark.parametrize("kind", ("F32", "F16", "BF16", "Q8_0", "Q4_0"))
def test_bits_do_not_depend_on_chunks_threads_pages_or_wanted_rows(arch, kind, tmp_path):
    tiny.write(tmp_path / "m.gguf", arch, formats=lambda name: kind)
    whole = logits(load_model(GgufReader(tmp_path / "m.gguf"), num_threads=1), IDS)
    model = load_model(GgufReader(tmp_path / "m.gguf"), num_threads=2)
    assert np.isfinite(whole).all()
    assert np.array_equal(whole, logits(model, IDS))
    for chunk in (1, 7, 16, 33):
        assert np.array_equal(whole, logits(model, IDS, chunk=chunk))
    assert np.array_equal(whole, logits(model, IDS, pages=[9, 3, 7, 1, 0, 12]))
    assert np.array_equal(whole[[5, 40, 95]], logits(model, IDS, wanted=[5, 40, 95]))


def test_a_sequence_does_not_see_its_companions(tmp_path):
    tiny.write(tmp_path / "m.gguf", "gemma3", formats=lambda name: "Q8_0")
    model = load_model(GgufReader(tmp_path / "m.gguf"))
    alone = [logits(model, IDS[:20]), logits(model, IDS[30:57]), logits(model, IDS[60:61])]
    memory = model.page_memory()
    memory.ensure(8)
    tables = [np.array([4, 1], np.int32), np.array([0, 6], np.int32), np.array([3], np.int32)]
    parts = [IDS[:20], IDS[30:57], IDS[60:61]]
    batch = Batch(
        np.concatenate(parts).astype(np.int32),
        np.concatenate([np.arange(len(p)) for p in parts]).astype(np.int32),
        tables,
        np.repeat(np.arange(3), [len(p) for p in parts]).astype(np.int32),
        np.arange(48, dtype=np.int32),
    )
    assert np.array_equal(np.concatenate(alone), model.program.step(batch, memory))


@pytest.mark.parametrize("isa", isa_available())
def test_every_instruction_set_gives_the_same_bits(isa, tmp_path, monkeypatch):
    tiny.write(tmp_path / "m.gguf", "qwen3", formats=lambda name: "Q8_0")
    best = logits(load_model(GgufReader(tmp_path / "m.gguf")), IDS)
    monkeypatch.setenv("OXILLAMA_ISA", isa)
    assert np.array_equal(best, logits(load_model(GgufReader(tmp_path / "m.gguf")), IDS))


@pytest.mark.parametrize("arch", ("llama", "qwen2", "qwen3", "gemma3"))
def test_every_op_agrees_with_its_meaning(arch, tmp_path):
    reader = tiny.write(tmp_path / "m.gguf", arch)
    model = load_model(reader)
    ids = IDS[:40].astype(np.int32)
    memory = model.page_memory(kv_type="f32")
    memory.ensure(3)
    batch = Batch(
        ids,
        np.arange(40, dtype=np.int32),
        [np.arange(3, dtype=np.int32)],
        np.zeros(40, np.int32),
        np.arange(40, dtype=np.int32),
    )

    def compiled(index):
        model.program.run_until(batch, memory, index, first=index)
        out = model.tape.ops[index].params.get("out")
        return {} if out is None else {out: model.program.slot(out, 40)}

    found = list(
        compare(Reference(model.tape, reader, kv_type="f32"), ids, compiled, tolerance=1e-5)
    )
    assert [difference for difference in found if not difference.agrees] == []
    assert len(found) == len(model.tape.ops)


def test_a_position_without_a_page_is_refused(tmp_path):
    model = load_model(tiny.write(tmp_path / "m.gguf", "llama"))
    memory = model.page_memory()
    memory.ensure(1)
    batch = Batch(
        np.zeros(1, np.int32),
        np.array([16], np.int32),
        [np.zeros(1, np.int32)],
        np.zeros(1, np.int32),
        np.zeros(1, np.int32),
    )
    with pytest.raises(ContextError, match="16"):
        model.program.step(batch, memory)
