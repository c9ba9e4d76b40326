"""Embedding models of LFM 2: convolutions that reach as far ahead as behind, and a dense layer over
each row (LFM2.5-Embedding, LFM2-ColBERT and LFM2.5-ColBERT).
"""

import numpy as np
import pytest

from oxillama.errors import ModelError
from oxillama.gguf import GgufReader, GgufWriter
from oxillama.model.load import load_model
from oxillama.model.record import record
from oxillama.model.reference import Reference
from tests.model.invented import HIDDEN, OWN, float64_tensors, invent
from tests.model.stepping import IDS, batch_of, check_meanings, logits, memory_of, step

AHEAD = {"lfm2.attention.causal": False}
DENSE = {"lfm2.embedding_length_out": 24}
# llama.cpp wants heads to be as wide together as a row
HEADS = {"attention.head_count": 2, "attention.head_count_kv": [0, 1, 0, 0]}


def made(path, changed):
    """A tiny model with these keys, and with a dense layer where they have its width."""
    plain = invent(path, "lfm2", changed=changed)
    if not DENSE.keys() <= changed.keys():
        return plain
    weights = {name: one.astype(np.float32) for name, one in float64_tensors(plain).items()}
    keys = {key: plain.metadata[key] for key in plain.metadata if not key.startswith("general.")}
    dense = np.random.default_rng(3).standard_normal((24, HIDDEN)).astype(np.float32)
    with GgufWriter(path.with_suffix(".dense"), "lfm2") as writer:
        for key, value in keys.items():
            writer.add(key, value)
        for name, one in {**weights, "dense_2.weight": dense / 8}.items():
            writer.add_tensor(name, one)
    return GgufReader(path.with_suffix(".dense"))


# the first numbers of the first and last row by llama.cpp (version 0.3.36 of its Python package)
MADE = {
    "embedding": (
        AHEAD,
        [-0.85977, -1.62581, -0.8968, -1.02763],
        [-2.00752, -1.16337, 0.19274, 0.75822],
    ),
    "dense": (
        AHEAD | DENSE,
        [0.03364, 0.08272, -0.00525, 2.2277],
        [-0.847, -1.07192, -1.22731, 0.68901],
    ),
    "causal, dense": (
        DENSE,
        [0.67076, -1.07403, -1.02589, -1.56666],
        [0.80613, -0.36742, 0.59622, -1.55195],
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_rows_are_those_of_llama_cpp(name, tmp_path, monkeypatch):
    monkeypatch.setitem(OWN, "lfm2", HEADS)
    changed, first, last = MADE[name]
    reader = made(tmp_path / "m.gguf", changed)
    model = load_model(reader, num_threads=2)
    assert not model.config.generates and model.config.causal == (changed is DENSE)
    found = logits(model, IDS, kv_type="f32")
    assert found.shape == (len(IDS), 24 if "dense" in name else HIDDEN)
    for row, wanted in ((found[0], first), (found[-1], last)):
        assert row[:4] == pytest.approx(wanted, abs=2e-5)
    memory = memory_of(model, 3, kv_type="f32")
    batch = batch_of([(IDS[:40], 0, range(3))], memory)
    reference = Reference(model.tape, reader, kv_type="f32")
    check_meanings(reference, model, batch, memory, IDS[:40])


def test_texts_of_a_step_do_not_reach_into_each_other(tmp_path):
    """Also those with fewer tokens than there are taps."""
    model = load_model(invent(tmp_path / "m.gguf", "lfm2", changed=AHEAD), num_threads=2)
    memory = memory_of(model, 9)
    parts = [(IDS[:20], 0, [4, 1]), (IDS[60:61], 0, [3]), (IDS, 0, [0, 6, 2, 7, 5])]
    alone = [logits(model, ids) for ids, _, _ in parts]
    assert np.array_equal(np.concatenate(alone), step(model, batch_of(parts, memory), memory))


def test_an_even_number_of_taps_has_no_middle(tmp_path):
    changed = AHEAD | {"lfm2.shortconv.l_cache": 4}
    with pytest.raises(ModelError, match=r"lfm2\.shortconv\.l_cache: found 4, wanted an odd num"):
        record(invent(tmp_path / "m.gguf", "lfm2", changed=changed))
