"""What single dense architectures promise beyond what every architecture is tested for."""

import numpy as np
import pytest

from oxillama._core.tape import Batch
from oxillama.errors import ModelError
from oxillama.gguf import GgufReader, GgufWriter
from oxillama.model.load import load_model
from oxillama.model.record import record
from tests.model import invented
from tests.model.invented import invent
from tests.model.stepping import IDS, logits, memory_of


@pytest.mark.parametrize("arch", ["gemma3n", "gemma4"])
def test_layers_that_attend_to_what_others_stored_keep_nothing(arch, tmp_path):
    config, tape = record(invent(tmp_path / "m.gguf", arch))
    assert config.layers == 4 and len(config.kv_layers) == 2
    read = [op.params["layer"] for op in tape.ops if op.name == "attend"]
    # windowed, global, windowed, global: each reads the last one of its kind
    assert read == [0, 1, 0, 1]


def test_an_embedding_row_takes_row_0_of_the_table_beside_the_embedding(tmp_path):
    """So a row that is what token 0 is embedded as is token 0."""
    reader = invent(tmp_path / "m.gguf", "gemma4")
    model = load_model(reader, num_threads=1)
    ids = np.where(np.arange(20) == 7, 0, IDS[:20]).astype(np.int32)
    table = reader.data("token_embd.weight").view(np.float32).reshape(invented.VOCAB, -1)
    rows = np.zeros((20, invented.HIDDEN), np.float32)
    rows[7] = table[0] * np.float32(np.sqrt(invented.HIDDEN))
    memory = memory_of(model, 2)
    every = np.arange(20, dtype=np.int32)
    batch = Batch(
        *(np.where(every == 7, -1, ids).astype(np.int32), every),
        *([np.arange(2, dtype=np.int32)], np.zeros(20, np.int32), every),
        embeds=rows,
    )
    assert np.array_equal(logits(model, ids), model.program.step(batch, memory))


@pytest.mark.parametrize(
    ("arch", "key", "value", "words"),
    [
        ("apertus", "xielu.eps", -0.1, r"xielu\.eps: found -0\.1, wanted at most 1e-5 from 0"),
        ("apertus", "xielu.beta", [0.5], r"xielu\.beta: found an array of 1, wanted .*4 numbers"),
        ("gemma3n", "gemma3n.activation_sparsity_scale", [0.5], "array of 1, wanted 4 numbers"),
        ("gemma4", "gemma4.attention.value_length_swa", 32, "wanted an integer from 16 to 16"),
        ("minicpm3", "minicpm3.attention.head_count_kv", 2, "wanted an integer from 4 to 4"),
        ("qwen2vl", "qwen2vl.rope.dimension_sections", [2, 2, 2, 0], "found 6 pairs, wanted 8"),
        ("qwen3vl", "qwen3vl.rope.dimension_sections", [8], "array of 1, wanted 3 or 4 integers"),
        ("qwen3vl", "qwen3vl.rope.dimension_sections", [2, 2**31 - 1, 2], "found 2147483647, want"),
        ("granite_swa", "granite_swa.attention.sliding_window_pattern", 2, "array of 4 booleans"),
        ("jais", "jais.attention.max_alibi_bias", 0.0, "max_alibi_bias: found 0.0, wanted"),
    ],
)
def test_a_key_that_does_not_fit_is_refused_by_name(arch, key, value, words, tmp_path):
    reader = invent(tmp_path / "m.gguf", arch, changed={key: value})
    with pytest.raises(ModelError, match=words):
        record(reader)


def test_queries_grow_with_their_position(tmp_path):
    """Within its original context a model is what it is without that growth, and not beyond."""
    wanted = logits(load_model(invent(tmp_path / "grown.gguf", "mistral3")), IDS)
    without = {"mistral3.attention.temperature_scale": 0.0}
    plain = logits(load_model(invent(tmp_path / "m.gguf", "mistral3", changed=without)), IDS)
    assert np.array_equal(wanted[:16], plain[:16])
    assert (wanted[16:] != plain[16:]).any(axis=1).all()


def test_a_norm_after_the_rotation_is_recorded_as_one(tmp_path):
    _, tape = record(invent(tmp_path / "m.gguf", "hunyuan-dense"))
    stores = [op.params for op in tape.ops if op.name == "rope_store"]
    assert [params["norm_last"] for params in stores] == [True] * 4


def test_sections_take_turns_or_follow_one_another(tmp_path):
    found = {}
    for arch in ("qwen2vl", "qwen3vl"):
        _, tape = record(invent(tmp_path / f"{arch}.gguf", arch))
        table = next(op for op in tape.ops if op.name == "rope_table")
        found[arch] = table.params["sections"].tolist()
    assert found == {"qwen2vl": [0, 0, 1, 1, 1, 2, 2, 2], "qwen3vl": [0, 1, 2, 0, 1, 2, 0, 1]}


def test_glm_4_of_a_vision_model_turns_halves_by_three_positions(tmp_path, monkeypatch):
    monkeypatch.setitem(invented.OWN, "glm4", {"rope.dimension_sections": [3, 3, 2, 0]})
    model = load_model(invent(tmp_path / "m.gguf", "glm4"))
    assert model.program.sections == 3
    (table,) = (op.params for op in model.tape.ops if op.name == "rope_table")
    assert list(table["sections"]) == [0, 0, 0, 1, 1, 1, 2, 2]
    styles = {op.params["style"] for op in model.tape.ops if op.name == "rope_store"}
    assert styles == {"neox"}


@pytest.mark.parametrize(
    "integers", ["token_embd.weight", "blk.1.ffn_up.weight", "blk.0.attn_norm.weight"]
)
def test_a_weight_of_integers_is_refused_by_name(integers, tmp_path):
    reader = invent(tmp_path / "m.gguf", "llama")
    with GgufWriter(tmp_path / "i.gguf", "llama") as writer:
        for key in set(reader.metadata) - {"general.architecture"}:
            writer.add(key, reader.metadata[key])
        for name, info in reader.tensors.items():
            values = reader.data(name).view(np.float32).reshape(info.shape)
            writer.add_tensor(name, values.astype(np.int32) if name == integers else values)
    with pytest.raises(ModelError, match=f"^{integers}: file has I32, wanted one of .*F32"):
        load_model(GgufReader(tmp_path / "i.gguf"))
