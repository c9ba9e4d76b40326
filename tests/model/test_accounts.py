"""Every hyper-parameter of a file is read, neutral, inert, or refused by name."""

import numpy as np
import pytest

from oxillama.errors import ModelError
from oxillama.gguf import GgufReader
from oxillama.model import architectures
from oxillama.model.record import POOLINGS, record
from tests.conftest import CASES
from tests.model import tiny
from tests.model.invented import OWN, invent


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.sliding_window", 4),
        ("attention.max_alibi_bias", 8.0),
        ("attention.value_scale", 0.5),
        ("attention.temperature_length", 16),
        ("logit_scale", 0.25),
        ("final_logit_softcapping", 30.0),
        ("attn_logit_softcapping", 30.0),
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


def test_one_expert_is_a_dense_network(tmp_path):
    """Files of dense models whose configuration counts one expert, as llama.cpp converts them."""
    plain = record(invent(tmp_path / "p.gguf", "hunyuan-dense"))[1]
    one = {f"hunyuan-dense.expert_{each}count": 1 for each in ("", "used_")}
    assert (
        record(invent(tmp_path / "m.gguf", "hunyuan-dense", changed=one))[1].dump() == plain.dump()
    )
    two = dict.fromkeys(one, 2)
    with pytest.raises(ModelError, match="expert_count: found 2, which hunyuan-dense does not use"):
        record(invent(tmp_path / "t.gguf", "hunyuan-dense", changed=two))


@pytest.mark.parametrize(
    ("key", "value", "op", "parameter"),
    [
        ("attention.scale", 0.25, "rope_store", ("q_scale", 0.25)),
        ("attention.clamp_kqv", 0.5, "clamp", ("high", 0.5)),
        ("attention.causal", False, "attend", ("causal", False)),
    ],
)
def test_a_key_that_is_honoured_shows_in_the_tape(key, value, op, parameter, tmp_path):
    _, tape = record(tiny.write(tmp_path / "m.gguf", "llama", keys={f"llama.{key}": value}))
    name, wanted = parameter
    found = [each.params[name] for each in tape.ops if each.name == op]
    assert found and all(each == wanted for each in found)


@pytest.mark.parametrize("kind", [bool, np.int32, np.uint32])
def test_the_flags_of_windows_may_be_numbers(kind, tmp_path):
    pattern = np.array([1, 0, 1, 1], kind)
    changed = {"gemma3.attention.sliding_window_pattern": pattern}
    _, tape = record(invent(tmp_path / "m.gguf", "gemma3", changed=changed))
    found = [op.params["window"] for op in tape.ops if op.name == "attend"]
    assert found == [8, 0, 8, 8]


@pytest.mark.parametrize(
    ("rms", "kind", "eps"), [(1e-3, "rms", 1e-3), (0.0, "layer", 1e-5), (None, "layer", 1e-5)]
)
def test_an_epsilon_of_rms_norms_rules_over_one_of_layer_norms(
    rms, kind, eps, monkeypatch, tmp_path
):
    keys = {"attention.layer_norm_rms_epsilon": rms}
    monkeypatch.setitem(OWN, "cohere2moe", keys)
    _, tape = record(invent(tmp_path / "m.gguf", "cohere2moe"))
    found = {
        (op.params["kind"], round(op.params["eps"], 9)) for op in tape.ops if op.name == "norm"
    }
    assert found == {(kind, eps)}


@pytest.mark.parametrize("value", (0, 1, 2, 3, None))
def test_the_pooling_of_a_file_is_known(value, tmp_path):
    keys = {} if value is None else {"llama.pooling_type": value}
    config, _ = record(tiny.write(tmp_path / "m.gguf", "llama", keys=keys))
    assert config.pooling == (None if value is None else POOLINGS[value])
    assert config.generates and config.causal


@pytest.mark.parametrize(
    ("value", "said"),
    [(4, "found 4 .rank., wanted cls.output.weight"), (5, "found 5"), (-1, "found -1")],
)
def test_a_pooling_that_the_file_cannot_have_is_refused(value, said, tmp_path):
    reader = tiny.write(tmp_path / "m.gguf", "llama", keys={"llama.pooling_type": value})
    with pytest.raises(ModelError, match=f"llama.pooling_type: {said}"):
        record(reader)


def test_an_encoder_that_is_said_to_be_causal_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(OWN, "eurobert", {"attention.causal": True})
    with pytest.raises(ModelError, match="eurobert.attention.causal: found True, wanted False"):
        invent(tmp_path / "m.gguf", "eurobert")


@pytest.mark.parametrize(
    ("arch", "why"),
    [
        *((arch, "layers that keep a state") for arch in ("qwen3next", "falcon-h1")),
        *((arch, "no file says how far a window") for arch in ("gemma3", "cohere2")),
    ],
)
def test_layers_that_cannot_see_ahead_are_not_asked_to(arch, why, tmp_path):
    changed = {f"{arch}.attention.causal": False}
    match = f"{arch}.attention.causal: found False, wanted True: {why}"
    with pytest.raises(ModelError, match=match):
        record(invent(tmp_path / "m.gguf", arch, changed=changed))


@pytest.mark.parametrize(
    ("arch", "key", "value", "told"),
    [
        ("t5", "attention.causal", False, "found False, wanted True for a decoder behind an"),
        ("gemma4", "attention.causal", False, "found False, wanted True for rows that see ahead"),
        ("qwen3", "attention.layer_norm_rms_epsilon", 2.0, "found 2.0, wanted .* at most 1"),
        ("rwkv7", "wkv.head_size", 3, "found 3, wanted a divisor of embedding_length 64"),
        ("kimi-k3", "kda.gate_lower_bound", 0.0, "found 0, wanted a number below 0"),
        ("bailingmoe3", "kda.gate_lower_bound", 0.0, "found 0, wanted a number below 0"),
        ("bailingmoe3", "kda.safe_gate", False, "found False, wanted True: decays with the bound"),
        ("glm5-next", "kda.gate_lower_bound", 0.0, "found 0, wanted a number below 0"),
        ("qwen3moe", "expert_group_count", 3, "found 3, of which .* equal parts of 4 experts"),
        ("qwen3moe", "expert_group_count", 4, "found 4, .* chooses 1, .* 2 experts in those"),
    ],
)
def test_what_an_op_cannot_do_is_told_of_the_key(arch, key, value, told, tmp_path):
    with pytest.raises(ModelError, match=f"^{arch}.{key}: {told}"):
        record(invent(tmp_path / "m.gguf", arch, changed={f"{arch}.{key}": value}))


def test_more_groups_of_experts_than_there_are_cannot_be_chosen(tmp_path):
    changed = {"qwen3moe.expert_group_used_count": 2}
    match = "^qwen3moe.expert_group_count: found 1, of which expert_group_used_count chooses 2"
    with pytest.raises(ModelError, match=match):
        record(invent(tmp_path / "m.gguf", "qwen3moe", changed=changed))


def test_keys_of_another_prefix_are_nobodys_business(tmp_path):
    record(tiny.write(tmp_path / "m.gguf", "llama", keys={"qwen9.logit_scale": 3.0}))


def test_every_case_of_a_registered_architecture_is_accounted_for(cases):
    for folder in sorted((CASES / "arch").iterdir()):
        reader = GgufReader(folder / "f32.gguf")
        if reader.metadata["general.architecture"] in architectures():
            record(reader)
