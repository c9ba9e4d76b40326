"""Every registered architecture, on a tiny model invented from what it asks for: no list by
hand.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from oxillama._core.tape import Batch
from oxillama.errors import ConfigError, ContextError, ModelError
from oxillama.gguf import GgufReader, GgufWriter, file_kind
from oxillama.model import architectures, load_model, tape_weights
from oxillama.model.arch import llama4
from oxillama.model.ops import OUTPUT
from oxillama.model.record import NOT_GENERATING, record
from oxillama.model.reference import Reference
from oxillama.weights import packing
from tests.conftest import CASES
from tests.model import invented
from tests.model.invented import invent
from tests.model.stepping import (
    IDS,
    batch_of,
    check_meanings,
    logits,
    memory_of,
    state_of,
    step,
)

GOLDEN = Path(__file__).parent / "golden"
KINDS = ("F32", "Q8_0")
# those of one program; test_t5.py says the same of the other
ALONE = [arch for arch in architectures() if arch != "t5"]


@pytest.mark.parametrize("arch", architectures())
def test_the_tape_equals_its_golden_dump(arch, tmp_path):
    _, tape = record(invent(tmp_path / "m.gguf", arch))
    golden = GOLDEN / f"invented_{arch}.tape"
    assert golden.exists(), f"write {golden.name}: {tape.dump()}"
    assert tape.dump() == golden.read_text()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arch", ALONE)
def test_bits_do_not_depend_on_chunks_threads_or_companions(arch, kind, tmp_path):
    invent(tmp_path / "m.gguf", arch, kind=kind)
    one = load_model(GgufReader(tmp_path / "m.gguf"), num_threads=1)
    whole = logits(one, IDS)
    model = load_model(GgufReader(tmp_path / "m.gguf"), num_threads=2)
    assert np.isfinite(whole).all()
    for chunk in (1, 7, 33, 512) if model.config.causal else (512,):
        assert np.array_equal(whole, logits(model, IDS, chunk=chunk)), chunk
    memory = memory_of(model, 9, slots=3)
    parts = [(IDS[:20], 0, [4, 1]), (IDS, 0, [0, 6, 2, 7, 5]), (IDS[60:61], 0, [3])]
    found = step(model, batch_of(parts, memory, slots=[2, 0, 1]), memory)
    alone = [logits(one, ids) for ids, _, _ in parts]
    assert np.array_equal(np.concatenate(alone), found)


@pytest.mark.parametrize("arch", ALONE)
def test_every_op_agrees_with_its_meaning(arch, tmp_path):
    reader = invent(tmp_path / "m.gguf", arch)
    model = load_model(reader)
    ids = IDS[:40]
    memory = memory_of(model, 3, kv_type="f32")
    batch = batch_of([(ids, 0, range(3))], memory)

    reference = Reference(model.tape, reader, kv_type="f32")
    check_meanings(reference, model, batch, memory, ids)


@pytest.mark.parametrize("arch", ALONE)
def test_a_slot_carries_a_sequence_on_wherever_it_is_copied_to(arch, tmp_path):
    """What fork, checkpoints and snapshots stand on: a state's bytes are all there is of it."""
    model = load_model(invent(tmp_path / "m.gguf", arch))
    whole = logits(model, IDS)
    memory = memory_of(model, 5, slots=3)
    step(model, batch_of([(IDS[:33], 0, range(5))], memory), memory)
    if not model.config.causal:
        with pytest.raises(ContextError, match="row 0: position 33"):
            step(model, batch_of([(IDS[33:], 33, range(5))], memory), memory)
        return
    if memory.slot_layers:
        memory.load_slot(2, memory.save_slot(0))
        model.program.step(batch_of([(IDS[40:45], 33, range(5))], memory), memory)
    found = model.program.step(batch_of([(IDS[33:], 33, range(5))], memory, slots=[2]), memory)
    assert np.array_equal(whole[33:], found)


@pytest.mark.parametrize("arch", architectures())
def test_each_candidate_leaves_the_state_after_it_in_its_own_slot(arch, tmp_path):
    """Two sequences in a step, with candidates behind real rows and alone, from any position on."""
    model = load_model(invent(tmp_path / "m.gguf", arch), num_threads=2)
    memory = memory_of(model, 10, slots=12)
    if not memory.slot_layers:
        return
    tables, states, rows = (range(5), range(5, 10)), {0: [], 1: []}, {0: [], 1: []}
    texts = (IDS, IDS[::-1].copy())
    for at in range(12):  # one token a step
        for which in (0, 1):
            part = (texts[which][at : at + 1], at, tables[which])
            rows[which].append(step(model, batch_of([part], memory, slots=[which]), memory)[0])
            states[which].append(memory.save_slot(which))

    def state_after(which, length):
        return states[which][length - 1]

    # (tokens before, real rows, candidates) of each sequence
    for first, second in (
        ((0, 1, 3), (4, 2, 4)),
        ((5, 0, 4), (6, 1, 1)),
        ((3, 4, 2), (8, 3, 0)),
        ((0, 0, 2), (9, 0, 3)),
    ):
        parts, spares, free = [], [], iter(range(2, 12))
        for which, (before, real, more) in enumerate((first, second)):
            memory.load_slot(
                which, state_after(which, before) if before else b"\x7f" * memory.slot_bytes
            )
            parts.append((texts[which][before : before + real + more], before, tables[which]))
            spares += [-1] * real + [next(free) for _ in range(more)]
        found = step(model, batch_of(parts, memory, spares=spares), memory)
        for which, (before, real, more) in enumerate((first, second)):
            slots, own = spares[: real + more], found[: real + more]
            spares, found = spares[real + more :], found[real + more :]
            assert np.array_equal(own, rows[which][before : before + real + more])
            if before + real:
                assert state_of(memory, which) == state_after(which, before + real)
            for at, slot in enumerate(slots[real:], before + real + 1):
                assert state_of(memory, slot) == state_after(which, at)


def test_slots_of_candidates_must_be_spare_and_their_rows_the_last(tmp_path):
    model = load_model(invent(tmp_path / "m.gguf", "mamba"))
    memory, part = memory_of(model, 5, slots=4), (IDS[:3], 0, range(5))
    for spares, message in (
        ([-1, 1], "spares: found 2 of them, wanted 3"),
        ([-1, 0, 1], "row 1: state goes to slot 0, wanted one that is named once"),
        ([-1, 1, 1], "row 2: state goes to slot 1, wanted one that is named once"),
        ([-1, -2, 1], "row 1: state goes to slot -2"),
        ([-1, 1, -1], "row 2: state goes to the slot of its table, wanted a spare one"),
    ):
        with pytest.raises(ConfigError, match=message):
            batch_of([part], memory, spares=spares)
    with pytest.raises(ContextError, match="row 2: slot 4, wanted 0 to 3"):
        step(model, batch_of([part], memory, spares=[-1, 1, 4]), memory)
    with pytest.raises(ConfigError, match="spares: found some without slots"):
        Batch([1, 2], [0, 1], [range(5)], [0, 0], [1], spares=[-1, 1])


@pytest.mark.parametrize("arch", ALONE)
def test_weights_that_are_not_packed_yet_give_the_same_bits(arch, tmp_path, monkeypatch):
    invent(tmp_path / "m.gguf", arch, kind="Q8_0")
    whole = logits(load_model(GgufReader(tmp_path / "m.gguf"), progress=lambda *_: None), IDS)
    monkeypatch.setattr(tape_weights, "PACKED_AT_ONCE", 0)
    monkeypatch.setattr(packing, "PATIENCE", -1.0)
    model = load_model(GgufReader(tmp_path / "m.gguf"), num_threads=2)
    model.packer.cancel()
    assert model.packing is not None and np.array_equal(whole, logits(model, IDS))
    model.pack()
    assert np.array_equal(whole, logits(model, IDS))
    model.end(keep=False)


def _folders():
    """Folders of facts whose architecture is registered."""
    for file in sorted(CASES.glob("arch*/*/f32.gguf")):
        if GgufReader(file).metadata["general.architecture"] in architectures():
            yield f"{file.parent.parent.name}/{file.parent.name}"


@pytest.mark.parametrize("name", [*_folders()])
def test_f32_files_give_the_logits_that_others_give(cases, name):
    facts = np.load(cases / name / "logits.npz")
    model = load_model(GgufReader(cases / name / "f32.gguf"))
    for i in range(4):
        wanted, found = facts[f"hf_{i}"], logits(model, facts[f"tokens_{i}"], kv_type="f32")
        assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("name", [*_folders()])
def test_q8_0_files_stay_as_near_as_the_format_allows(cases, name):
    facts = np.load(cases / name / "logits.npz")
    file = cases / name / "q8_0.gguf"
    if not file.exists():
        assert "q8_0" not in json.loads((file.parent / "report.json").read_text()).get("files", {})
        return
    wanted, found = facts["hf_3"], logits(load_model(GgufReader(file)), facts["tokens_3"])
    assert np.abs(found - wanted).max() <= max(
        0.06 * np.abs(wanted).max(), 1.5 * np.abs(facts["lcpp_q8_0_3"] - wanted).max()
    )


def _choices(model, ids):
    """The experts of each row of each routed layer, ordered by number: (rows, layers, used)."""
    memory = memory_of(model, -(-len(ids) // 16), kv_type="f32")
    batch = batch_of([(ids, 0, range(-(-len(ids) // 16)))], memory)
    found = []
    for index, op in enumerate(model.tape.ops):
        if op.name == "route":
            model.program.run_until(batch, memory, index)
            slot = np.array(model.program.slot(op.params["out"], len(ids)))
            found.append(np.sort(slot[:, : op.params["used"]], axis=1))
    return np.stack(found, axis=1) if found else None


@pytest.mark.parametrize("name", [*_folders()])
def test_until_a_token_gets_other_experts_q8_0_files_stay_near(cases, name):
    """Routers are float32 and read rows that no 8 bits have rounded; what is beyond the bound comes
    from other experts alone. A recurrent state enlarges errors without them.
    """
    file, facts = cases / name / "q8_0.gguf", np.load(cases / name / "logits.npz")
    if not file.exists() or _choices(load_model(GgufReader(file)), facts["tokens_0"]) is None:
        return
    model, exact = (load_model(GgufReader(file.with_name(f"{k}.gguf"))) for k in ("q8_0", "f32"))
    for op in model.tape.ops:
        if op.name == "matmul" and "ffn_gate_inp.weight" in op.params["weights"][0].name:
            # that of DBRX is not float32 in this file, where llama.cpp's converter quantises it
            assert op.params["act"] == "f32" or name == "arch/dbrx"
    for i in range(4 if not model.page_memory().slot_layers else 0):
        ids, wanted = facts[f"tokens_{i}"], facts[f"hf_{i}"]
        other = (_choices(model, ids) != _choices(exact, ids)).any(axis=(1, 2))
        first = int(other.argmax()) if other.any() else len(ids)
        off = np.abs(logits(model, ids, kv_type="f32") - wanted)[:first]
        assert off.max(initial=0) <= 0.06 * np.abs(wanted).max(), (i, first)


def test_chunks_of_attention_and_growing_queries_agree_with_their_meaning(tmp_path, monkeypatch):
    """Llama 4's chunks and growth begin at 8192 positions; here within a prompt."""
    monkeypatch.setattr(llama4, "_CHUNK", 24)
    monkeypatch.setattr(llama4, "_SPAN", 10)
    reader = invent(tmp_path / "m.gguf", "llama4")
    model = load_model(reader)
    whole = logits(model, IDS, kv_type="f32")
    for chunk in (1, 7, 33):
        assert np.array_equal(whole, logits(model, IDS, chunk=chunk, kv_type="f32")), chunk
    frame = Reference(model.tape, reader, kv_type="f32").frame(IDS)
    for _ in Reference(model.tape, reader, kv_type="f32").steps(frame):
        pass
    wanted = frame.slots[OUTPUT]
    assert np.abs(whole - wanted).max() <= 2e-5 * np.abs(wanted).max()
    # what chunks hide is hidden: the row that begins one does not see the chunk before it
    ends = [op.params for op in model.tape.ops if op.name == "attend"]
    assert [params.get("chunk", 0) for params in ends] == [24, 24, 24, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_gate_and_up_of_experts_may_be_one_matrix(kind, tmp_path):
    reader = invent(tmp_path / "two.gguf", "qwen3moe", kind=kind)
    with GgufWriter(tmp_path / "one.gguf", "qwen3moe") as writer:
        for key, value in reader.metadata.items():
            if key != "general.architecture":
                writer.add(key, value)
        for name, info in reader.tensors.items():
            rows = np.asarray(reader.data(name))
            if "ffn_up_exps" in name:
                continue
            shape = tuple(info.shape)
            if "ffn_gate_exps" in name:
                other = np.asarray(reader.data(name.replace("gate", "up")))
                both = (one.reshape(*shape[:2], -1) for one in (rows, other))
                rows, shape = np.concatenate([*both], axis=1), (shape[0], 2 * shape[1], shape[2])
                name = name.replace("gate", "gate_up")
            rows = np.ascontiguousarray(rows).view(np.uint8).reshape(int(np.prod(shape[:-1])), -1)
            writer.add_tensor(name, rows, type_name=info.type_name, shape=shape)
    whole = logits(load_model(reader), IDS)
    assert np.array_equal(whole, logits(load_model(GgufReader(tmp_path / "one.gguf")), IDS))


@pytest.mark.parametrize("code", [False, True])
def test_gate_and_up_of_jina_may_be_one_matrix(code, tmp_path, monkeypatch):
    """The gate's rows come first, in the code variant (whose layers have a norm more) last."""
    if not code:
        monkeypatch.setitem(invented.WANTED, "jina-bert-v2", ())
        monkeypatch.setattr(invented, "_LEARNED", {})
    reader = invent(tmp_path / "two.gguf", "jina-bert-v2")
    assert ("blk.0.attn_norm_2.weight" in reader.tensors) == code
    with GgufWriter(tmp_path / "one.gguf", "jina-bert-v2") as writer:
        for key, value in reader.metadata.items():
            if key != "general.architecture":
                writer.add(key, value)
        for name, info in reader.tensors.items():
            rows = np.asarray(reader.data(name)).view(np.float32).reshape(info.shape)
            if "ffn_gate" in name:
                continue
            if "ffn_up" in name:
                data = reader.data(name.replace("up", "gate"))
                gate = np.asarray(data).view(np.float32).reshape(info.shape)
                rows = np.concatenate([rows, gate] if code else [gate, rows])
            writer.add_tensor(name, rows)
    whole = logits(load_model(reader), IDS)
    assert np.array_equal(whole, logits(load_model(GgufReader(tmp_path / "one.gguf")), IDS))


def test_what_does_not_generate_is_refused_with_what_it_does(tmp_path):
    with GgufWriter(tmp_path / "m.gguf", "pockettts") as writer:
        writer.add("pockettts.block_count", 1)
    with pytest.raises(ModelError, match="'pockettts', which makes sound"):
        record(GgufReader(tmp_path / "m.gguf"))
    with GgufWriter(tmp_path / "c.gguf", "controlvector") as writer:
        writer.add("controlvector.layer_count", 1)
    reader = GgufReader(tmp_path / "c.gguf")
    with pytest.raises(ModelError, match="'controlvector', which changes the rows of another"):
        record(reader)
    assert file_kind(reader.metadata) == "a control vector"
    assert not set(NOT_GENERATING) & set(architectures())


def test_norms_of_latents_have_an_epsilon_of_their_own(tmp_path):
    """1e-6 in the published code, whatever the file says of the other norms."""
    reader = invent(tmp_path / "m.gguf", "deepseek2")
    assert reader.metadata["deepseek2.attention.layer_norm_rms_epsilon"] == np.float32(1e-5)
    _, tape = record(reader)
    found = {op.params["eps"] for op in tape.ops if op.name == "norm"}
    assert sorted(found) == [1e-6, float(np.float32(1e-5))]


def test_tokens_of_ling_3_may_have_several_positions(tmp_path, monkeypatch):
    """As in the file of the model that sees images: these turn the halves of a key."""

    def turned():
        _, tape = record(invent(tmp_path / "m.gguf", "bailingmoe3"))
        angles = [op.params for op in tape.ops if op.name == "rope_table"]
        stores = [op.params for op in tape.ops if op.name == "rope_store"]
        return [one.get("sections") for one in angles], [one["style"] for one in stores]

    assert turned() == ([None], ["norm"])
    sections = {"rope.dimension_sections": [3, 4, 1, 0]}
    monkeypatch.setitem(invented.OWN, "bailingmoe3", invented.OWN["bailingmoe3"] | sections)
    (places,), styles = turned()
    assert places.tolist() == [0, 0, 0, 1, 1, 1, 1, 2] and styles == ["neox"]


# whose files of llama.cpp's converter may have layers that predict further tokens
FURTHER = (
    *("bailingmoe2", "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4"),
    *("dots3note", "exaone-moe", "exaone4", "glm-dsa", "glm4", "glm4moe", "glm5-next", "hy_v3"),
    *("mimo2", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next", "step35"),
)


@pytest.mark.parametrize("arch", FURTHER)
def test_layers_that_predict_further_tokens_are_not_run(arch, tmp_path, monkeypatch):
    _, whole = record(invent(tmp_path / "m.gguf", arch))
    own = invented.OWN.get(arch, {}) | {"nextn_predict_layers": 1}
    monkeypatch.setitem(invented.OWN, arch, own)
    _, tape = record(invent(tmp_path / "n.gguf", arch))
    assert 0 < len(tape.ops) < len(whole.ops)


def test_a_pattern_may_leave_out_the_layers_that_predict_further_tokens(tmp_path, monkeypatch):
    """As llama.cpp's converter writes that of dots3-note."""
    own = invented.OWN["dots3note"] | {"nextn_predict_layers": 1}
    own["attention.sliding_window_pattern"] = [False, True, True]
    own["attention.indexer.types"] = [True, False, False]
    monkeypatch.setitem(invented.OWN, "dots3note", own)
    gone = ("blk.3.", "blk.2.indexer.")
    wanted = [name for name in invented.WANTED["dots3note"] if not name.startswith(gone)]
    monkeypatch.setitem(invented.WANTED, "dots3note", (*wanted, "blk.3.nextn.enorm.weight"))
    monkeypatch.setitem(
        invented.KNOWN,
        "dots3note",
        {k: v for k, v in invented.KNOWN["dots3note"].items() if not k.startswith("blk.3.")},
    )
    _, tape = record(invent(tmp_path / "m.gguf", "dots3note"))
    assert [op.params["window"] for op in tape.ops if op.name == "attend"] == [0, 8, 8]
    own["attention.sliding_window_pattern"] = [False, True]
    with pytest.raises(ModelError, match="found an array of 2, wanted an array of 4"):
        record(invent(tmp_path / "n.gguf", "dots3note"))


def test_streams_mix_under_doubly_stochastic_matrices(tmp_path):
    """So that their sum stays what it is, however many layers mix them."""
    model = load_model(invent(tmp_path / "m.gguf", "glm5-next"))
    memory, rows = memory_of(model, 3), 40
    batch = batch_of([(IDS[:rows], 0, range(3))], memory)
    found = [(i, op) for i, op in enumerate(model.tape.ops) if op.name == "softmax"]
    assert len(found) == 8
    for index, op in found:
        model.program.run_until(batch, memory, index)
        shares = model.program.slot(op.params["out"], rows)[:, :16].reshape(rows, 4, 4)
        assert (shares > 0).all()
        # the epsilon of the tiny model, 1e-3, is what sums fall short of 1 by
        assert np.abs(shares.sum(axis=1) - 1).max() <= 2e-3
        assert np.abs(shares.sum(axis=2) - 1).max() <= 0.1


def test_keys_behind_the_last_pool_are_seen(tmp_path):
    """What the indexer of GLM 5.3 Flash does with them otherwise is refused by name."""
    tail = {"glm5-next.attention.indexer.kpool_select_tail": False}
    with pytest.raises(ModelError, match="kpool_select_tail: found False, wanted True"):
        record(invent(tmp_path / "m.gguf", "glm5-next", changed=tail))


def test_llama_4_may_have_experts_in_every_layer(tmp_path, monkeypatch):
    """Such a file (Scout) gives the width of dense layers all the same."""
    own = {**invented.OWN["llama4"], "interleave_moe_layer_step": 1}
    monkeypatch.setitem(invented.OWN, "llama4", own)
    reader = invent(tmp_path / "m.gguf", "llama4")
    assert "llama4.feed_forward_length" in reader.metadata
    assert "blk.0.ffn_up_exps.weight" in reader.tensors
    assert "blk.0.ffn_up.weight" not in reader.tensors
    assert np.isfinite(logits(load_model(reader), IDS)).all()


def test_there_are_no_more_buckets_than_distances_to_share_them(tmp_path):
    """With 512 of them the formula of the wide ones divides 0 by 0."""
    key = "t5encoder.attention.relative_buckets_count"
    with pytest.raises(ModelError, match=f"{key}: found 512, wanted an integer from 4 to 511"):
        record(invent(tmp_path / "m.gguf", "t5encoder", changed={key: 512}))
