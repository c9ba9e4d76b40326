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
from tests.model import tiny
from tests.model.stepping import logits

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


@pytest.mark.parametrize("isa", isa_available())
def test_every_instruction_set_gives_the_same_bits(isa, tmp_path, monkeypatch):
    tiny.write(tmp_path / "m.gguf", "qwen3", formats=lambda name: "Q8_0")
    best = logits(load_model(GgufReader(tmp_path / "m.gguf")), IDS)
    monkeypatch.setenv("OXILLAMA_ISA", isa)
    assert np.array_equal(best, logits(load_model(GgufReader(tmp_path / "m.gguf")), IDS))


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
