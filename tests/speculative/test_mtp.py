"""Drafts of the layers that predict further tokens: the text is the target's own, and tokens meet
the rows that came before them.
"""

import numpy as np
import pytest

import oxillama
from oxillama.gguf import GgufReader, GgufWriter
from oxillama.speculative import (
    AsyncSpecConfig,
    SpeculativeConfig,
    SpeculativeDecoder,
    SpeculativeEngine,
    mtp,
    types,
)
from oxillama.speculative.types import Candidates
from oxillama.weights.offload import Budget
from tests.model.invented import HIDDEN, VOCAB
from tests.speculative import law
from tests.speculative.law import GREEDY, NEXT, SEEDED, options_of, prompt_of, written


def counting(path, projection, *, share=0.0):
    """A model whose next token is `NEXT` of the last one, but for `share` of what its layers add,
    and a predictor that begins with `projection` of token and row. Tokens are the axes of rows.
    """
    axes = np.eye(VOCAB, HIDDEN, dtype=np.float32)
    head = np.zeros((VOCAB, HIDDEN), np.float32)
    head[NEXT] = axes[:HIDDEN]

    def changed(name, values):
        if name == "token_embd.weight":
            return axes
        if name.endswith("nextn.eh_proj.weight"):
            return projection.astype(np.float32)
        adds = "attn_output" in name or "ffn_down" in name
        return values * np.float32(share) if adds else values

    return written(path, "hy_v3", changed, further=1, more={"output.weight": head})


FROM_TOKEN = np.concatenate([np.eye(HIDDEN), np.zeros((HIDDEN, HIDDEN))], axis=1)
# the row before a token says which token that is
FROM_ROW = np.concatenate([np.zeros((HIDDEN, HIDDEN)), np.eye(HIDDEN)[np.argsort(NEXT)]], axis=1)


def forced(engine, most=16):
    """Candidates of the predictor alone, as many as fit, whatever they cost."""
    drafter = engine.loaded.core.speculator.registry._predictor()
    return Candidates(drafter, most=most, adaptive=False)


@pytest.mark.parametrize("most", [1, 3, 16])
@pytest.mark.parametrize("projection", [FROM_TOKEN, FROM_ROW], ids=["token", "row"])
def test_every_candidate_of_a_predictor_that_knows_the_next_token_is_accepted(
    projection, most, tmp_path
):
    with oxillama.load(counting(tmp_path / "m.gguf", projection), num_threads=1) as engine:
        law.knows_the_next_token(engine, forced(engine, most), most)


def test_rows_that_lie_behind_the_window_are_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr(mtp, "WINDOW", 8)
    monkeypatch.setattr(mtp.MtpDrafter, "carries", 8)
    with oxillama.load(counting(tmp_path / "m.gguf", FROM_ROW), num_threads=1) as engine:
        prompt = np.random.default_rng(2).integers(0, HIDDEN, 60).tolist()
        for most in (2, 7):
            done = engine.generate(
                prompt, max_tokens=90, sampler=GREEDY, speculative=forced(engine, most)
            )
            assert done.speculation.rejected == 0 and done.speculation.accepted >= 50
        # the window of the prompt, what was generated twice, candidates that ended the text
        drafter = engine.loaded.core.speculator.registry._predictor()
        assert drafter.forwarded < 2 * (8 + 2 * 90)


def test_the_last_rows_of_a_window_are_kept():
    window, rows = mtp.WINDOW, mtp.CarriedRows()
    given = np.arange(6 * window, dtype=np.float32)[:, None]
    end = 5 + window + 90
    rows.write(5, given[5:end])  # more than it holds
    assert (rows.start, rows.end) == (end - window, end)
    assert np.array_equal(rows.at(end - 50, 50), given[end - 50 : end])
    for first in range(end, 5 * window, 17):
        rows.write(first, given[first : first + 17])
        end, begin = first + 17, first + 17 - window
        assert np.array_equal(rows.at(begin, window), given[begin:end])
    rows.write(end - 30, -given[:3])  # as after candidates that were rejected
    assert rows.end == end - 27 and rows.at(end - 31, 4)[:, 0].tolist() == [end - 31, 0, -1, -2]
    rows.write(9, given[9:12])
    assert (rows.start, rows.end) == (9, 12)


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """An engine whose predictor is right about half the time."""
    path = counting(tmp_path_factory.mktemp("m") / "m.gguf", FROM_ROW, share=0.05)
    with oxillama.load(path, num_threads=1) as engine:
        yield engine


def ways(engine):
    return (forced(engine), forced(engine, 2), "mtp", "auto", None)


def test_the_text_is_the_targets_own(half):
    law.texts_are_equal(half, half, ways(half))


def test_requests_side_by_side_and_several_completions_have_the_text_of_each_alone(half):
    law.texts_side_by_side_are_equal(half, half, ways(half))


def test_sessions_go_on_fork_and_are_restored_as_without_candidates(half):
    def resumed(engine, way):
        return forced(engine) if isinstance(way, Candidates) else way

    law.sessions_are_equal(half, half, ways(half), half.model_files[0], resumed)


@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_what_was_not_taken_while_others_ran_is_waited_for(half, tokens):
    """By default there are candidates for one that is alone: steps with others leave no rows, and
    one of these may end before a token of the same step is drawn.
    """
    drafter, others = half.loaded.core.speculator.registry._predictor(), []
    options = dict(max_tokens=40, sampler=GREEDY, cache_prompt=False)
    wanted = half.generate([5, 6, 7], speculative=False, **options)
    alone = Candidates(drafter, most=2, adaptive=False, alone=True)

    def comes():
        if len(running.generated) >= 12 and not others:
            others.append(
                half.submit([9, 10], max_tokens=tokens, sampler=GREEDY, priority=-1, seed=1)
            )

    with half.loaded.core.lock:  # before its first token
        running = half.submit([5, 6, 7], speculative=alone, **options)
        running.listen(comes, in_loop=True)
    done = running.result(20)
    assert done.tokens == wanted.tokens and len(others[0].result(20).tokens) <= tokens
    assert done.speculation.accepted > 5


def test_a_session_whose_rows_end_before_its_pages_has_no_candidates(half):
    """As after a prompt that was evaluated again, of which a part was not taken."""
    drafter, session = half.loaded.core.speculator.registry._predictor(), half.session()
    half.generate([5, 6, 7], session=session, max_tokens=20, speculative=forced(half))
    state = drafter.kept(session)
    assert len(state.held) > 10
    state.rows.write(2, state.rows.at(2, 1))
    assert not drafter.propose([types.DraftRequest(session, state, 4)])[0].tokens


@pytest.mark.parametrize(
    "arch", ["deepseek2", "deepseek4", "glm4moe", "mimo2", "nemotron_h_moe", "qwen35", "step35"]
)
def test_any_architecture_drafts_for_itself(arch, tmp_path):
    """Windowed and latent pages, blocks of keys, recurrent states."""
    with oxillama.load(written(tmp_path / "m.gguf", arch, further=1), num_threads=1) as engine:
        rng = np.random.default_rng(7)
        for _ in range(3):
            prompt, options = prompt_of(rng), options_of(rng)
            wanted = engine.generate(prompt, speculative=False, **options)
            for way in (forced(engine, 3), None):
                done = engine.generate(prompt, speculative=way, **options)
                assert (done.tokens, done.logprobs) == (wanted.tokens, wanted.logprobs)
        drafter = engine.loaded.core.speculator.registry._predictor()
        assert drafter.forwarded
        assert engine.metrics().pages_leaked == drafter.core.metrics().pages_leaked == 0


def test_what_it_has_cost_is_known_to_the_next_request(half):
    """The ledger is that of the object which drafts."""
    registry = half.loaded.core.speculator.registry
    masker = half.submit([5], max_tokens=1, regex="[a-m]+").masker
    for asked, grammar in ((None, None), ("auto", None), (None, masker), ("auto", masker)):
        one, other = (registry.candidates(asked, grammar).drafter for _ in range(2))
        assert one is other


def test_a_model_without_a_predictor_in_memory_has_no_such_drafts(tmp_path):
    path = counting(tmp_path / "m.gguf", FROM_ROW)
    nbytes = 1
    while True:
        try:
            paged = oxillama.load(path, offload=Budget(nbytes), num_threads=1)
            break
        except oxillama.ConfigError as error:
            nbytes = int(str(error).split("wanted at least ")[1].split()[0])
    with paged as engine, oxillama.load(num_threads=1) as plain:
        for each, found in ((engine, "weights that a step reads"), (plain, "a model without")):
            with pytest.raises(oxillama.ConfigError, match=f"found 'mtp' for {found}"):
                each.generate([3, 4], max_tokens=3, speculative="mtp")
            done, wanted = (
                each.generate([3, 4], max_tokens=9, sampler=GREEDY, speculative=way)
                for way in ("auto", False)
            )
            assert done.tokens == wanted.tokens


@pytest.mark.parametrize("file", [False, True], ids=["engine", "file"])
def test_an_engine_for_speculation_takes_it_and_saves_what_it_follows(half, file):
    """Rows are not saved: it goes on with those of the tokens to come."""
    target = half.model_files[0] if file else half
    wanted = half.generate([5, 6, 7], max_tokens=60, sampler=SEEDED, seed=12, speculative=False)
    with SpeculativeEngine(SpeculativeConfig(target, "mtp", seed=12, adaptive=False)) as engine:
        first = engine.generate([5, 6, 7], max_tokens=20, sampler=SEEDED)
        saved = engine.snapshot()
        rest = engine.generate(None, max_tokens=40)
        assert first.speculation.accepted and rest.speculation.accepted
        assert first.tokens + rest.tokens == wanted.tokens
    with SpeculativeEngine.resume(saved, target, "mtp") as engine:
        again = engine.generate(None, max_tokens=40)
        assert again.tokens == rest.tokens and again.speculation.accepted
    with pytest.raises(oxillama.ConfigError, match="draft: found 'mtp', which needs rows of each"):
        SpeculativeDecoder(AsyncSpecConfig(), half, "mtp")
    with pytest.raises(oxillama.ConfigError, match="draft_sampler: found one for 'mtp'"):
        SpeculativeEngine(SpeculativeConfig(half, "mtp", draft_sampler=SEEDED))


def parted(path, whole, *, counted):
    """(the file of a model without its layer that predicts, the file of that layer); counted:
    whether the keys of the first still count it.
    """
    reader = GgufReader(whole)
    arch = reader.metadata["general.architecture"]
    layers = reader.metadata[f"{arch}.block_count"] - 1
    beside = ("token_embd.weight", "output.weight", "output_norm.weight")
    files = []
    for name, further in (("trunk.gguf", False), ("mtp.gguf", True)):
        with GgufWriter(path / name, arch) as writer:
            for key, value in reader.metadata.items():
                if key in ("general.architecture", "general.alignment"):
                    continue
                if not (further or counted):
                    value = {"block_count": layers, "nextn_predict_layers": 0}.get(
                        key.removeprefix(f"{arch}."), value
                    )
                writer.add(key, value)
            for tensor, info in reader.tensors.items():
                its = tensor.startswith(f"blk.{layers}.")
                if its == further or further and tensor in beside:
                    blocks = np.frombuffer(bytes(reader.data(tensor)), np.float32)
                    writer.add_tensor(tensor, blocks.reshape(info.shape))
        files.append(path / name)
    return files


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("sidecar", [False, True])
def test_the_layers_may_come_in_a_file_of_their_own(counted, sidecar, tmp_path):
    whole = counting(tmp_path / "whole.gguf", FROM_ROW, share=0.3)
    trunk, further = parted(tmp_path, whole, counted=counted)
    options = {"max_tokens": 60, "sampler": SEEDED, "seed": 3}
    cache = tmp_path / "cache" if sidecar else False

    def run(path, way, **more):
        with oxillama.load(path, num_threads=1, sidecar=cache, **more) as engine:
            way = Candidates(forced(engine, 3).drafter, 3, adaptive=False) if way == "mtp" else way
            return engine.generate([5, 6, 7], speculative=way, **options)

    plain, wanted = run(whole, False), run(whole, "mtp")
    for _ in range(2):  # with a sidecar the second load finds one
        done = run(trunk, "mtp", speculative=further)
        assert done.tokens == plain.tokens == wanted.tokens
        assert done.speculation.accepted == wanted.speculation.accepted > 0
        assert run(trunk, False).tokens == plain.tokens
    with oxillama.load(trunk, num_threads=1, speculative=further) as engine:
        named = engine.generate([5, 6, 7], speculative=str(further), **options)
        assert named.tokens == plain.tokens and named.speculation is not None
        assert engine.generate([5, 6, 7], **options).tokens == plain.tokens
        saved = engine.snapshot()
        for path in (trunk, further):
            with pytest.raises(oxillama.ConfigError, match="is the model itself"):
                engine.snapshot_to_file(path)
    with oxillama.load(trunk, num_threads=1) as engine:
        engine.restore(saved)
        with pytest.raises(oxillama.ConfigError, match="loaded without it, wanted it where .*ve$"):
            engine.generate([5], speculative=further, max_tokens=1)
    with (
        oxillama.load(whole, num_threads=1) as engine,
        pytest.raises(oxillama.ConfigError, match="mtp.gguf', layers that .*, as the model has"),
    ):
        engine.generate([5], speculative=further, max_tokens=1)


def test_a_file_of_such_layers_fits_one_model(tmp_path):
    whole = counting(tmp_path / "whole.gguf", FROM_ROW)
    trunk, further = parted(tmp_path, whole, counted=False)
    with pytest.raises(oxillama.ModelError, match="'hy_v3' with layers alone that predict"):
        oxillama.load(further)
    with pytest.raises(oxillama.ConfigError, match="1 layers that predict further tokens beside"):
        oxillama.load(whole, speculative=further)
    other = written(tmp_path / "other.gguf", "glm4moe", further=1)
    with pytest.raises(oxillama.ConfigError, match="found general.architecture 'hy_v3', wanted 'g"):
        oxillama.load(other, speculative=further)
    with GgufWriter(tmp_path / "short.gguf", "hy_v3") as writer:
        reader = GgufReader(trunk)
        for key, value in reader.metadata.items():
            if key not in ("general.architecture", "general.alignment"):
                writer.add(key, 3 if key.endswith("block_count") else value)
        for name, info in reader.tensors.items():
            if not name.startswith("blk.3."):
                values = np.frombuffer(bytes(reader.data(name)), np.float32)
                writer.add_tensor(name, values.reshape(info.shape))
    with pytest.raises(oxillama.ConfigError, match="found layers that follow 4 others, wanted 3"):
        oxillama.load(tmp_path / "short.gguf", speculative=further)
