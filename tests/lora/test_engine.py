"""Adapters in the engine: per request, stacked, beside others in one step, swapped while requests
run, in the prefix cache and in snapshots.
"""

import asyncio
import gc
import os
import time

import numpy as np
import pytest

import oxillama
from oxillama import ConfigError, LoraError, SchedulerConfig, SnapshotIncompatible
from oxillama.gguf import GgufReader, GgufWriter
from oxillama.lora.fit import Lora
from tests.lora.made import merged, random_pair, write_lora
from tests.model import tiny

PROMPT = [5, 9, 2, 7, 1, 3, 8, 4, 6, 2, 9, 9, 1, 5, 3, 7, 2, 8, 6, 4]
GREEDY = {"temperature": 0.0, "repetition_penalty": 1.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(folder, factors of each adapter by its name); the model is model.gguf."""
    folder = tmp_path_factory.mktemp("lora")
    tiny.write(folder / "model.gguf", "llama")
    rng, factors = np.random.default_rng(1), {}
    with GgufReader(folder / "model.gguf") as reader:
        shapes = {n: tuple(t.shape) for n, t in reader.tensors.items() if len(t.shape) == 2}
    for name, rank in (("one", 4), ("two", 16), ("three", 33)):
        factors[name] = {n: random_pair(n, shape, rank, rng) for n, shape in shapes.items()}
        write_lora(folder / f"{name}.gguf", "llama", factors[name], alpha=rank)
    return folder, factors


@pytest.fixture
def engine(made):
    with oxillama.load(made[0] / "model.gguf", num_threads=2) as engine:
        for name in ("one", "two", "three"):
            engine.load_lora(made[0] / f"{name}.gguf")
        yield engine


def tokens(engine, lora=None, prompt=PROMPT, **more):
    return engine.generate(prompt, max_tokens=12, lora=lora, **GREEDY, **more).tokens


def test_stacked_adapters_are_the_model_with_both_added(made, engine):
    folder, factors = made
    with GgufReader(folder / "model.gguf") as reader:
        path = merged(folder / "both.gguf", reader, [(factors["one"], 1.0), (factors["two"], -0.5)])
    with oxillama.load(path, num_threads=1) as other:
        want = other.logits(PROMPT)
    got = engine.logits(PROMPT, lora=["one", ("two", -0.5)])
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()
    assert np.abs(engine.logits(PROMPT) - want).max() > 0.05 * np.abs(want).max()


def test_a_file_with_the_size_and_time_of_the_one_before_is_read_again(made, engine, tmp_path):
    _, factors = made
    path, wanted, found = tmp_path / "style.gguf", [], []
    for scale in (4.0, 8.0):
        new = write_lora(tmp_path / "new.gguf", "llama", factors["one"], alpha=scale)
        path.write_bytes(new.read_bytes())  # in place: its inode stays
        os.utime(path, (1e9, 1e9))  # as archives that are made twice alike give it
        engine.loras.load(path, replace=True)
        found.append(tokens(engine, "style"))
        wanted.append(tokens(engine, [("one", scale / 4.0)]))
    assert found == wanted and wanted[0] != wanted[1]


def test_rows_of_one_step_each_have_their_own_adapters_with_the_bits_of_their_solo_runs(engine):
    wanted = [None, "one", [("one", 0.5), "two"], (), "three", [("three", -1)]]
    alone = [tokens(engine, lora, cache_prompt=False) for lora in wanted]
    assert len(set(alone)) > 3
    requests = [
        engine.submit(PROMPT, max_tokens=12, lora=lora, cache_prompt=False, **GREEDY)
        for lora in wanted * 3
    ]
    assert [request.result(60).tokens for request in requests] == alone * 3


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_chunks_and_threads_cannot_be_seen(made, engine, chunk):
    lora = ["two", ("three", 0.25)]
    want = engine.logits(PROMPT, lora=lora)
    config = SchedulerConfig(
        max_batch_tokens=chunk, max_batch_sequences=1, max_prefill_tokens=chunk
    )
    with oxillama.load(made[0] / "model.gguf", num_threads=1, scheduler=config) as other:
        for name in ("two", "three"):
            other.load_lora(made[0] / f"{name}.gguf")
        assert other.logits(PROMPT, lora=lora).tobytes() == want.tobytes()


def test_what_was_popped_leaves_the_bits_of_before(made, engine):
    before = engine.logits(PROMPT)
    engine.apply_lora(made[0] / "one.gguf", 0.5)
    engine.loras.push_lora("two")
    both = engine.logits(PROMPT)
    assert both.tobytes() == engine.logits(PROMPT, lora=[("one", 0.5), "two"]).tobytes()
    lora, scale = engine.loras.pop_lora()
    assert (lora.name, scale, len(engine.loras)) == ("two", 1.0, 1)
    one = engine.logits(PROMPT)
    assert one.tobytes() == engine.logits(PROMPT, lora=[("one", 0.5)]).tobytes()
    engine.loras.clear_loras()
    assert engine.logits(PROMPT).tobytes() == before.tobytes()
    with pytest.raises(ConfigError, match="the stack has no adapters"):
        engine.loras.pop_lora()


def test_a_request_keeps_the_adapters_it_began_with(engine):
    want, plain = tokens(engine, "one"), tokens(engine)
    assert want != plain
    engine.loras.push_lora("one")
    request = engine.submit(PROMPT, max_tokens=12, **GREEDY)
    engine.loras.clear_loras()
    assert request.result(60).tokens == want
    assert tokens(engine) == plain


def test_the_prefix_cache_keeps_adapters_apart(made, engine):
    want = {lora: tokens(engine, lora, cache_prompt=False) for lora in (None, "one", "two")}
    engine.clear_cache()
    for lora in (None, "one", "two"):
        done = engine.generate(PROMPT, max_tokens=12, lora=lora, **GREEDY)
        assert (done.usage.cached_tokens, done.tokens) == (0, want[lora])
    for lora in (None, "one", "two"):
        done = engine.generate(PROMPT, max_tokens=12, lora=lora, **GREEDY)
        assert (done.usage.cached_tokens, done.tokens) == (len(PROMPT) - 1, want[lora])
    # the same factors under another name are the same adapter; another scale is not
    engine.load_lora(made[0] / "one.gguf", name="again")
    assert engine.generate(PROMPT, max_tokens=1, lora="again").usage.cached_tokens
    assert not engine.generate(PROMPT, max_tokens=1, lora=[("one", 0.5)]).usage.cached_tokens


def test_a_session_keeps_its_adapters_and_refuses_others(engine):
    session = engine.session(lora="one")
    first = tokens(engine, session=session)
    assert first == tokens(engine, "one")
    assert session.fork().adapters == session.adapters
    engine.loras.push_lora("two")
    more = engine.generate(None, session=session, max_tokens=4, lora="one", **GREEDY).tokens
    assert first + more == engine.generate(PROMPT, lora="one", max_tokens=16, **GREEDY).tokens
    with pytest.raises(ConfigError, match=r"lora: found Adapters\(two:1\) for a session"):
        engine.generate(None, session=session, lora="two")


def test_a_snapshot_goes_on_with_its_adapters_or_is_refused_by_name(made, engine):
    session = engine.session(lora=[("one", 0.5), "two"])
    tokens(engine, session=session)
    data = session.snapshot()
    want = engine.generate(None, session=session, max_tokens=9, **GREEDY).tokens
    back = engine.restore(data)
    assert back.snapshot() == data
    assert engine.generate(None, session=back, max_tokens=9, **GREEDY).tokens == want
    with oxillama.load(made[0] / "model.gguf") as other:
        with pytest.raises(SnapshotIncompatible, match="the session used 'one'"):
            other.restore(data)
        other.load_lora(made[0] / "one.gguf", name="uno")
        with pytest.raises(SnapshotIncompatible, match="the session used 'two'"):
            other.restore(data)
        other.load_lora(made[0] / "two.gguf", name="dos")
        back = other.restore(data)
        assert other.generate(None, session=back, max_tokens=9, **GREEDY).tokens == want
    files = [made[0] / "one.gguf", made[0] / "two.gguf"]
    with oxillama.InferenceEngine.resume(data, made[0] / "model.gguf", loras=files) as resumed:
        assert resumed.generate(None, max_tokens=9, **GREEDY).tokens == want


def test_a_snapshot_without_adapters_goes_on_without_those_of_the_stack(engine):
    session = engine.session()
    tokens(engine, session=session)
    data = session.snapshot()
    want = engine.generate(None, session=session, max_tokens=9, **GREEDY).tokens
    engine.loras.push_lora("two", 4.0)
    back = engine.restore(data)
    assert engine.generate(None, session=back, max_tokens=9, **GREEDY).tokens == want
    assert tokens(engine) == tokens(engine, [("two", 4.0)]) != tokens(engine, [])


def test_siblings_beams_and_embeddings_use_them(engine):
    both = engine.generate(PROMPT, n=2, max_tokens=12, lora="two", **GREEDY)
    assert [each.tokens for each in both] == [tokens(engine, "two")] * 2
    config = oxillama.BeamSearchConfig(beam_width=1, max_new_tokens=12)
    (beam,) = engine.beam_generate(PROMPT, config, lora="two", ignore_eos=True)
    assert tuple(beam.tokens) == tokens(engine, "two")
    plain, changed = engine.embed(PROMPT), engine.embed(PROMPT, lora="two")
    assert plain.tobytes() != changed.tobytes()
    assert engine.embed_batch([PROMPT], lora="two")[0].tobytes() == changed.tobytes()


def test_what_no_adapter_is_is_named(made, engine):
    for given, error, told in (
        ("four", LoraError, "found no adapter of that name"),
        (3, ConfigError, "lora: found int"),
        ([("one", "two")], ConfigError, "scale: found 'two'"),
        ([("one", float("nan"))], ConfigError, "scale: found nan"),
        ([("one", 1e300)], ConfigError, "scale: found 1e.300"),
        ([("one", 10**400)], ConfigError, "scale: found 1000"),
        (b"one", ConfigError, "lora: found bytes"),
        ("", LoraError, "lora: '': found no adapter"),
        ([3], ConfigError, "lora: found 3"),
        ("x" * 5000, LoraError, "found no adapter of that name"),
    ):
        with pytest.raises(error, match=told):
            engine.generate(PROMPT, lora=given, max_tokens=1)
    before = list(engine.loras)
    for given in (3, "one", {"one": 1}, ["one"], [3], [("one", 1, 2)]):
        with pytest.raises(ConfigError, match=r"loras: found .*, wanted adapters with their scal"):
            engine.loras.replace(given)
    assert list(engine.loras) == before
    with pytest.raises(ConfigError, match=r"lora: \['one'\] is not loaded, loaded are "):
        engine.unload_lora(["one"])
    with pytest.raises(ConfigError, match="'one' is .* already"):
        engine.load_lora(made[0] / "two.gguf", name="one")
    with oxillama.load(made[0] / "model.gguf") as other:
        lora = other.load_lora(made[0] / "one.gguf")
        with pytest.raises(ConfigError, match="'one' was loaded for another model"):
            engine.generate(PROMPT, lora=lora)


@pytest.mark.parametrize("key", ["general.type", "adapter.type"])
def test_a_kind_that_is_a_list_is_named(engine, tmp_path, key):
    kinds = {"general.type": "adapter", "adapter.type": "lora", key: [1, 2]}
    with GgufWriter(tmp_path / "l.gguf", "llama") as writer:
        for name, kind in kinds.items():
            writer.add(name, kind)
    with pytest.raises(LoraError, match=f"{key}: found array.*, wanted '"):
        engine.load_lora(tmp_path / "l.gguf")


def test_an_adapter_that_is_unloaded_stays_with_the_sessions_that_use_it(made, engine):
    folder, _ = made
    alone = tokens(engine, "one")
    session = engine.session(lora="one")
    first = engine.generate(PROMPT, session=session, max_tokens=4, **GREEDY).tokens
    gone = engine.unload_lora("one")
    assert gone.name == "one" and sorted(engine.loras.loaded) == ["three", "two"]
    rest = engine.generate(None, session=session, max_tokens=8, **GREEDY).tokens
    assert first + rest == alone
    with pytest.raises(LoraError, match="loaded: three, two"):
        tokens(engine, "one")
    with pytest.raises(ConfigError, match="'one' is not loaded, loaded are three, two"):
        engine.unload_lora("one")
    engine.loras.push_lora("two")
    with pytest.raises(ConfigError, match="'two' is on the stack"):
        engine.unload_lora("two")
    engine.load_lora(folder / "one.gguf")
    assert tokens(engine, "one") == alone


def test_stored_prefixes_do_not_keep_an_adapter_that_is_unloaded(made, engine):
    engine.load_lora(made[0] / "one.gguf", name="last")

    def one(lora):
        return engine.submit(PROMPT, max_tokens=1, lora=lora, **GREEDY).result()

    found = one("last").tokens
    assert one("one").usage.cached_tokens
    engine.unload_lora("last")
    for _ in range(100):  # the loop lets go of a request soon after its end
        gc.collect()
        held = {each.name for each in gc.get_objects() if type(each) is Lora}
        if "last" not in held:
            break
        time.sleep(0.01)
    assert "one" in held and "last" not in held
    assert one("one").tokens == found


def test_a_name_can_be_given_to_another_adapter_and_a_stack_replaced_at_once(made, engine):
    folder, _ = made
    one, two = tokens(engine, "one"), tokens(engine, "two")
    with pytest.raises(ConfigError, match="wanted another name"):
        engine.load_lora(folder / "two.gguf", name="one")
    engine.loras.replace([("one", 1.0)])
    engine.loras.load(folder / "two.gguf", name="one", replace=True)
    assert tokens(engine) == one and tokens(engine, "one") == two
    engine.loras.replace([("one", 0.5), ("three", 2)])
    assert tokens(engine) == tokens(engine, [("one", 0.5), ("three", 2)])
    with pytest.raises(LoraError):
        engine.loras.replace([("two", 1.0), ("nobody", 1.0)])
    assert len(engine.loras) == 2


def test_async_embeddings_take_adapters(engine):
    async def both():
        own = oxillama.AsyncEngine(engine)
        return await own.embed(PROMPT, lora="one"), await own.embed(PROMPT)

    with_one, without = asyncio.run(both())
    assert (with_one == engine.embed(PROMPT, lora="one")).all()
    assert (without == engine.embed(PROMPT)).all() and (with_one != without).any()
