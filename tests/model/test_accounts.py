"""Every hyper-parameter of a file is read, neutral, inert, or refused by name."""

import pytest

from oxillama.errors import ModelError
from oxillama.gguf import GgufReader
from oxillama.model import architectures
from oxillama.model.load import record
from tests.conftest import CASES
from tests.model import tiny


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.sliding_window", 4),
        ("attention.causal", False),
        ("attention.max_alibi_bias", 8.0),
        ("attention.value_scale", 0.5),
        ("attention.temperature_length", 16),
        ("logit_scale", 0.25),
        ("final_logit_softcapping", 30.0),
        ("attn_logit_softcapping", 30.0),
        ("pooling_type", 1),
        ("residual_scale", 2.0),
        ("embedding_scale", 12.0),
        ("rope.freq_base_swa", 1e4),
        ("rope.dimension_sections", [8, 8, 8, 8]),
        ("rope.scaling.yarn_log_multiplier", 0.1),
        ("leading_dense_block_count", 1),
        ("ssm.state_size", 16),
        ("never_heard_of", 1),
    ],
)
def test_a_key_that_nobody_reads_is_refused_by_name(key, value, tmp_path):
    reader = tiny.write(tmp_path / "m.gguf", "llama", keys={f"llama.{key}": value})
    shown = "an array of 4" if isinstance(value, list) else repr(value)
    with pytest.raises(ModelError) as caught:
        record(reader)
    assert str(caught.value).startswith(f"llama.{key}: found {shown}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.sliding_window", 0),
        ("attention.causal", True),
        ("logit_scale", 1.0),
        ("expert_count", 0),
        ("rope.scaling.finetuned", True),
        ("vocab_size", tiny.VOCAB),
    ],
)
def test_a_key_that_changes_nothing_is_accepted(key, value, tmp_path):
    plain = record(tiny.write(tmp_path / "p.gguf", "llama"))[1]
    reader = tiny.write(tmp_path / "m.gguf", "llama", keys={f"llama.{key}": value})
    assert record(reader)[1].dump() == plain.dump()


@pytest.mark.parametrize(
    ("key", "value", "op", "parameter"),
    [
        ("attention.scale", 0.25, "rope_store", ("q_scale", 0.25)),
        ("attention.clamp_kqv", 0.5, "clamp", ("high", 0.5)),
    ],
)
def test_a_key_that_is_honoured_shows_in_the_tape(key, value, op, parameter, tmp_path):
    _, tape = record(tiny.write(tmp_path / "m.gguf", "llama", keys={f"llama.{key}": value}))
    name, wanted = parameter
    found = [each.params[name] for each in tape.ops if each.name == op]
    assert found and all(each == wanted for each in found)


def test_keys_of_another_prefix_are_nobodys_business(tmp_path):
    record(tiny.write(tmp_path / "m.gguf", "llama", keys={"qwen9.logit_scale": 3.0}))


def test_every_case_of_a_registered_architecture_is_accounted_for(cases):
    for folder in sorted((CASES / "arch").iterdir()):
        reader = GgufReader(folder / "f32.gguf")
        if reader.metadata["general.architecture"] in architectures():
            record(reader)
