"""Layers that predict further tokens, on a tiny model of every architecture that drafts with
them.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from oxillama._core.tape import Batch
from oxillama.errors import ConfigError, ModelError
from oxillama.gguf import GgufReader, GgufWriter
from oxillama.lora.file import read_gguf_lora
from oxillama.lora.fit import fit
from oxillama.lora.stack import Adapters
from oxillama.model.drafts import predictor
from oxillama.model.load import load_model
from oxillama.model.record import record
from oxillama.model.reference import Reference
from oxillama.weights.offload import Budget
from tests.lora.made import random_pair, write_lora
from tests.model import invented
from tests.model.invented import HIDDEN, VOCAB, invent
from tests.model.stepping import batch_of, check_meanings, memory_of

ARCHS = (
    *("bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "glm-dsa", "glm4moe"),
    *("hy_v3", "mimo2", "nemotron_h_moe", "qwen3next", "qwen35", "qwen35moe", "step35"),
)
IDS = (np.arange(40) * 37 % VOCAB).astype(np.int32)
GOLDEN = Path(__file__).parent / "golden" / "further.npz"
# Of the models whose predictions llama.cpp recorded: keys, tensors and shapes that it wants.
_EXPERTS = {"expert_weights_norm": True, "expert_gating_func": 2, "expert_weights_scale": 1.5}
_SMALL = {"attention.layer_norm_rms_epsilon": 1e-6}
_NETWORK = ("ffn_gate_inp.weight", "ffn_up_shexp.weight", "exp_probs_b.bias")


def _shared(*layers):
    """A shared network as wide as an expert."""
    wide = {"up": (32, HIDDEN), "down": (HIDDEN, 32)}
    return {f"blk.{i}.ffn_{n}_shexp.weight": wide[n] for i in layers for n in wide}


RECORDED: dict[str, tuple[dict, tuple[str, ...], dict]] = {
    "bailingmoe3": ({**_EXPERTS, **_SMALL}, ("output.weight",), {}),
    "deepseek4": (
        {
            "attention.key_length": 64,
            "attention.value_length": 64,
            "attention.indexer.key_length": 128,
            "attention.indexer.top_k": 100,
            "rope.dimension_count": 32,
            "expert_weights_scale": 1.5,
        },
        (),
        _shared(0, 1, 2, 3),
    ),
    "glm4moe": (_EXPERTS, (), _shared(1, 2, 3)),
    "mimo2": ({}, ("output.weight",), {}),
    "nemotron_h_moe": (
        {"feed_forward_length": [0, 0, 32, 32], "expert_weights_norm": True},
        tuple(f"blk.2.{name}" for name in _NETWORK),
        {},
    ),
    "qwen35": (
        _SMALL,
        ("output.weight",),
        {f"blk.{i}.ssm_norm.weight": (16,) for i in range(3)},
    ),
    "step35": ({}, ("output.weight",), {}),
}


def recorded_model(arch, path, monkeypatch):
    """The tiny model of `arch` that llama.cpp reads, too."""
    own, wanted, known = RECORDED[arch]
    for table, more in (
        (invented.OWN, invented.OWN.get(arch, {}) | own),
        (invented.WANTED, invented.WANTED.get(arch, ()) + wanted),
        (invented.KNOWN, invented.KNOWN.get(arch, {}) | known),
    ):
        monkeypatch.setitem(table, arch, more)
    monkeypatch.setattr(invented, "_LEARNED", {})
    return invent(path, arch, further=1)


def carried(model, memory, ids, start, rows=None, *, chunk=512):
    """(logits, what is carried behind the last layer) of `ids` from position `start` on; rows: what
    the predictor gets beside them.
    """
    out = []
    for at in range(0, len(ids), chunk):
        part = np.asarray(ids[at : at + chunk], np.int32)
        more = {} if rows is None else {"embeds": rows[at : at + chunk]}
        if memory.slot_layers:
            more["slots"] = [0]
        pages = np.arange(-(-(start + len(ids)) // 16), dtype=np.int32)
        positions = np.arange(start + at, start + at + len(part), dtype=np.int32)
        every = np.arange(len(part), dtype=np.int32)
        batch = Batch(part, positions, [pages], np.zeros_like(every), every, **more)
        out.append((model.program.step(batch, memory).copy(), model.program.carried().copy()))
    return tuple(np.concatenate(each) for each in zip(*out))


def predicted(model, ids=IDS, *, further=2, kv_type="f32"):
    """The predictor's logits after each token but the first, then of `further` tokens that it
    draws from its own rows.
    """
    drafts = predictor(model, num_threads=1)
    _, rows = carried(model, memory_of(model, 4, kv_type=kv_type), ids, 0)
    memory = memory_of(drafts, 4, kv_type=kv_type)
    logits, own = carried(drafts, memory, ids[1:], 0, rows[:-1])
    out = [logits]
    for at in range(further):
        logits, own = carried(drafts, memory, [logits[-1].argmax()], len(ids) - 1 + at, own[-1:])
        out.append(logits)
    return np.concatenate(out)


def test_the_page_of_architectures_names_those_that_draft_for_themselves():
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    section = page.split("## Layers that predict further tokens\n")[1].split("\n## ")[0]
    assert tuple(re.findall("`([a-z0-9_-]+)`", section.split(" drafts for")[1])) == ARCHS


@pytest.mark.parametrize("arch", sorted(RECORDED))
def test_predictions_are_those_of_llama_cpp(arch, tmp_path, monkeypatch):
    """Of its program of autumn 2026 with keys in f32: after the last four tokens, and of two that
    it draws from its own rows.
    """
    wanted = np.load(GOLDEN)[arch]
    found = predicted(load_model(recorded_model(arch, tmp_path / "m.gguf", monkeypatch)))
    assert np.abs(found[-6:] - wanted).max() <= 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("arch", ARCHS)
def test_every_op_agrees_with_its_meaning(arch, tmp_path):
    reader = invent(tmp_path / "m.gguf", arch, further=1)
    drafts = predictor(load_model(reader))
    rows = np.random.default_rng(3).standard_normal((40, drafts.program.embed_columns))
    rows = rows.astype(np.float32)
    memory = memory_of(drafts, 3, kv_type="f32")
    every = np.arange(40, dtype=np.int32)
    pages = [np.arange(3, dtype=np.int32)]
    batch = Batch(IDS, every, pages, np.zeros_like(every), every, embeds=rows)
    reference = Reference(drafts.tape, reader, kv_type="f32")
    frame = reference.frame(IDS)
    frame.embeds = rows
    check_meanings(reference, drafts, batch, memory, IDS, frame=frame)
    assert not drafts.config.slot_layers


@pytest.mark.parametrize("kind", ("F32", "Q8_0"))
@pytest.mark.parametrize("arch", ARCHS)
def test_bits_do_not_depend_on_chunks_threads_or_companions(arch, kind, tmp_path):
    """Neither those of the rows that are carried, nor those of what is made of them."""
    invent(tmp_path / "m.gguf", arch, kind=kind, further=1)
    path, found = tmp_path / "m.gguf", []
    for threads, chunk in ((1, 512), (2, 512), (2, 7), (1, 1)):
        model = load_model(GgufReader(path), num_threads=threads)
        drafts = predictor(model, num_threads=threads)
        logits, rows = carried(model, memory_of(model, 3), IDS, 0, chunk=chunk)
        memory = memory_of(drafts, 3)
        found.append((logits, rows, *carried(drafts, memory, IDS[1:], 0, rows[:-1], chunk=chunk)))
    for other in found[1:]:
        assert all(map(np.array_equal, found[0], other))
    memory, parts = memory_of(drafts, 5), ((0, 20), (0, 39), (30, 31))
    batch = Batch(
        np.concatenate([IDS[1 + start : 1 + end] for start, end in parts]),
        np.concatenate([np.arange(end - start, dtype=np.int32) for start, end in parts]),
        [np.array(pages, np.int32) for pages in ([4, 1], [0, 2, 5], [3])],
        np.repeat(np.arange(3, dtype=np.int32), [end - start for start, end in parts]),
        np.arange(60, dtype=np.int32),
        embeds=np.concatenate([rows[start:end] for start, end in parts]),
    )
    memory.ensure(6)
    together = drafts.program.step(batch, memory)
    assert np.array_equal(together[:20], found[0][2][:20])
    assert np.array_equal(together[20:59], found[0][2])


@pytest.mark.parametrize("arch", ARCHS)
def test_a_file_with_such_layers_says_what_it_says_without_them(arch, tmp_path):
    """And rows that are kept are those of rows whose logits are wanted, bit for bit."""
    reader = invent(tmp_path / "m.gguf", arch, further=1)
    model = load_model(reader)
    logits, rows = carried(model, memory_of(model, 3), IDS, 0)
    layers = reader.metadata[f"{arch}.block_count"] - 1
    with GgufWriter(tmp_path / "n.gguf", arch) as writer:
        for key, value in reader.metadata.items():
            if key in ("general.architecture", f"{arch}.nextn_predict_layers"):
                continue
            if isinstance(value, (list, np.ndarray)) and len(value) == layers + 1:
                value = value[:layers]
            writer.add(key, layers if key.endswith(".block_count") else value)
        for name, info in reader.tensors.items():
            if not name.startswith(f"blk.{layers}."):
                kind = info.type_name
                data = np.frombuffer(bytes(reader.data(name)), np.int32 if kind == "I32" else "f4")
                writer.add_tensor(name, data.reshape(info.shape))
    plain = load_model(GgufReader(tmp_path / "n.gguf"))
    assert plain.tape.predictor is None and not plain.program.carries and model.program.carries
    memory = memory_of(plain, 3)
    assert np.array_equal(
        plain.program.step(batch_of([(IDS, 0, range(3))], memory), memory), logits
    )
    for wanted, kept in (([39], [3, 4, 20, 39]), ([], [0, 39]), ([5, 6], [5, 6]), ([7], range(40))):
        memory = memory_of(model, 3)
        batch = Batch(
            IDS,
            np.arange(40, dtype=np.int32),
            [np.arange(3, dtype=np.int32)],
            np.zeros(40, np.int32),
            np.array(wanted, np.int32),
            kept=np.array(kept, np.int32),
            **({"slots": [0]} if memory.slot_layers else {}),
        )
        assert np.array_equal(model.program.step(batch, memory), logits[wanted])
        assert np.array_equal(model.program.carried(), rows[list(kept)])


def test_an_adapter_is_used_by_rows_that_are_kept(tmp_path):
    reader = invent(tmp_path / "m.gguf", "hy_v3", further=1)
    model, rng = load_model(reader), np.random.default_rng(3)
    names = [f"blk.3.{name}.weight" for name in ("attn_output", "ffn_down_exps", "ffn_up_shexp")]
    pairs = {name: random_pair(name, reader.tensors[name].shape, 3, rng) for name in names}
    read = read_gguf_lora(write_lora(tmp_path / "a.gguf", "hy_v3", pairs, alpha=6.0))
    adapters = Adapters([(fit(model, read, "a"), 1.0)])

    def rows(wanted, **more):
        memory, every = memory_of(model, 3), np.arange(40, dtype=np.int32)
        pages = [np.arange(3, dtype=np.int32)]
        batch = Batch(IDS, every, pages, np.zeros_like(every), wanted, **more)
        return model.program.step(batch, memory).copy(), model.program.carried().copy()

    every, some = np.arange(40, dtype=np.int32), np.array([3, 4, 20, 39], np.int32)
    logits, adapted = rows(every, adapters=[adapters.factors])
    assert not np.array_equal(adapted, rows(every)[1])
    found = rows(some[-1:], adapters=[adapters.factors], kept=some)
    assert np.array_equal(found[0], logits[39:]) and np.array_equal(found[1], adapted[some])


@pytest.mark.parametrize(
    "kept", ([0, 2], [3, 1], [1, 1, 3], [1, 3, 4], [-1, 1, 3], []), ids=lambda kept: str(kept)
)
def test_kept_rows_are_ascending_rows_with_the_wanted_ones_among_them(kept):
    every = np.arange(4, dtype=np.int32)
    with pytest.raises(ConfigError, match=r"kept: found \[.*\], wanted ascending rows below 4 "):
        Batch(every, every, [[0]], np.zeros_like(every), [1, 3], kept=np.array(kept, np.int32))


def test_what_a_layer_lacks_is_named(tmp_path):
    reader = invent(tmp_path / "m.gguf", "glm4moe", further=1)
    names = ("enorm", "hnorm")
    for gone in (*(f"blk.4.nextn.{name}.weight" for name in names), "blk.4.attn_k.weight"):
        tensors = {name: info for name, info in reader.tensors.items() if name != gone}
        with pytest.raises(ModelError, match=gone):
            record(_Without(reader, tensors))
    # without the projection there is nothing that predicts: files are cut so for other programs
    tensors = {n: info for n, info in reader.tensors.items() if not n.startswith("blk.4.")}
    config, tape = record(_Without(reader, tensors))
    assert tape.predictor is tape.carried is None and config.predicts == ()


class _Without:
    """A file with some of its tensors."""

    def __init__(self, reader, tensors):
        self.reader, self.tensors, self.metadata = reader, tensors, reader.metadata

    def __getattr__(self, name):
        return getattr(self.reader, name)


def test_the_first_of_several_layers_predicts(tmp_path, monkeypatch):
    """A shorter pattern leaves them out; then they see all keys."""
    _, tape = record(invent(tmp_path / "m.gguf", "step35", further=3))
    held = {each.name for op in tape.predictor.ops for each in op.params.get("weights", ())}
    assert "blk.4.nextn.eh_proj.weight" in held
    assert {name.split(".")[1] for name in held if name.startswith("blk.")} == {"4"}
    for pattern, window in (([True] * 5, 8), ([True] * 4, 0)):
        own = invented.OWN["mimo2"] | {"attention.sliding_window_pattern": pattern}
        monkeypatch.setitem(invented.OWN, "mimo2", own)
        changed = {"mimo2.attention.sliding_window_pattern": pattern}
        _, tape = record(invent(tmp_path / "n.gguf", "mimo2", further=1, changed=changed))
        attends = [op.params["window"] for op in tape.predictor.ops if op.name == "attend"]
        assert attends == [window]


def test_where_there_is_no_predictor_in_memory_it_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="found 'mtp' for a model without layers that predict"):
        predictor(load_model(invent(tmp_path / "m.gguf", "glm4moe")))
    invent(tmp_path / "n.gguf", "glm4moe", further=1)
    nbytes = 1
    while True:
        try:
            model = load_model(GgufReader(tmp_path / "n.gguf"), offload=Budget(nbytes))
            break
        except ConfigError as error:
            nbytes = int(str(error).split("wanted at least ")[1].split()[0])
    with pytest.raises(
        ConfigError, match="found 'mtp' for weights that a step reads from the file"
    ):
        predictor(model)
    model.end(keep=False)


def test_it_takes_memory_once_it_may_be_used(tmp_path):
    invent(tmp_path / "m.gguf", "glm4moe", further=1)

    def held(model):
        return {name for name, *_ in model.weights if name.startswith("blk.4.")}

    whole, without = (
        load_model(GgufReader(tmp_path / "m.gguf"), predict=predict) for predict in (True, False)
    )
    assert "blk.4.nextn.eh_proj.weight" in held(whole) and not held(without)
    assert np.array_equal(predicted(without), predicted(whole))
    assert held(predictor(without)) == held(whole) and not held(without)
    # the file of packed weights is the same for both
    for predict in (False, True):
        model = load_model(
            GgufReader(tmp_path / "m.gguf"), sidecar=tmp_path / "cache", predict=predict
        )
        assert held(model) == held(whole)
        model.end(keep=False)
