"""Whose draft models are: opened once, closed with the engine they were opened for, kept alive
while a request needs them.
"""

import gc
import threading
from pathlib import Path

import pytest

import oxillama
from oxillama.cli.generation import DRAFTS
from oxillama.engine.config import WAYS
from oxillama.speculative.config import SpeculativeConfig
from oxillama.speculative.drafts import DraftModels
from oxillama.speculative.engine import SpeculativeEngine
from oxillama.speculative.registry import _WANTED

GREEDY = oxillama.SamplerConfig.greedy()


@pytest.fixture(scope="module")
def stories(cases):
    return cases / "stories260K"


@pytest.fixture
def target(stories):
    with oxillama.load(stories / "stories260K-f32.gguf", num_threads=1) as engine:
        yield engine


def test_an_engine_that_nobody_else_holds_drafts_to_the_end_and_is_then_let_go(target, stories):
    def submitted():
        return target.submit(
            "Once",
            max_tokens=60,
            sampler=GREEDY,
            speculative=oxillama.load(stories / "stories260K-q8_0.gguf", num_threads=1),
        )

    wanted = target.generate("Once", max_tokens=60, sampler=GREEDY).tokens
    for _ in range(3):
        request = submitted()
        gc.collect()
        assert request.result(20).tokens == wanted
    del request
    target.generate("Once", max_tokens=1)  # the loop, too, knows the last one no more
    gc.collect()
    assert target._loaded.core.speculator.cores() == ()


def test_an_engine_with_another_model_drafts_with_that(target, stories):
    with oxillama.load(stories / "stories260K-q8_0.gguf", num_threads=1) as draft:
        for _ in range(2):
            assert (
                target.generate(
                    "Once", max_tokens=20, sampler=GREEDY, speculative=draft
                ).speculation
                is not None
            )
            assert target._loaded.core.speculator.cores() == (draft._loaded.core,)
            draft.load_model(stories / "stories260K-f32.gguf")


def test_threads_that_name_the_same_draft_open_it_once_and_it_is_closed(
    target, stories, monkeypatch
):
    opened, together = [], threading.Barrier(4)
    real = DraftModels.open

    def counted(*args, **more):
        opened.append(real(*args, **more)[0])
        return opened[-1], opened[-1].core.close

    def generate():
        together.wait(60)
        target.generate("Once", max_tokens=3, speculative=stories / "stories260K-q8_0.gguf")

    monkeypatch.setattr(DraftModels, "open", counted)
    threads = [threading.Thread(target=generate) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(opened) == 1 and target._loaded.core.speculator.cores() == (opened[0].core,)
    registry = target._loaded.core.speculator.registry
    target.close()
    with pytest.raises(oxillama.EngineError, match="closed"):
        opened[0].core.check()
    with pytest.raises(oxillama.EngineError, match="closed"):
        registry.resolve(stories / "stories260K-f16.gguf")


def test_a_target_that_came_as_bytes_has_no_file_to_be_requantised(stories):
    engine = oxillama.load_model_from_bytes(
        (stories / "stories260K-f32.gguf").read_bytes(), num_threads=1
    )
    with (
        engine,
        pytest.raises(
            oxillama.ConfigError, match="draft: 'requantised' is made from the target's file"
        ),
    ):
        SpeculativeEngine(SpeculativeConfig(engine, "requantised"))


def test_only_known_ways_are_a_default(stories):
    for wrong in ("", 3, ["auto"]):
        with pytest.raises(
            oxillama.ConfigError, match=r"speculative: found .*, wanted 'auto', 'lookup', 'mtp'"
        ):
            oxillama.EngineConfig(speculative=wrong)
    path = stories / "stories260K-f32.gguf"
    for wrong, message in (
        ("draft.gguf", "speculative: found 'draft.gguf', wanted None, False.*; there is no such f"),
        (
            Path("draft"),
            "speculative: found (Posix|Windows)Path.*; there is no such file or folder",
        ),
        ("./draft", "^speculative: ./draft: no such file or folder"),
        ("~/draft.gguf", "speculative: found '~/draft.gguf', .*; there is no such file or folder"),
        ("mpt", "speculative: found 'mpt', .*; did you mean 'mtp'"),
        ("early-exit", "speculative: found 'early-exit', .*; did you mean 'early_exit'"),
        ("ngram", "speculative: found 'ngram', .*; did you mean 'lookup'"),
        ("off", "speculative: found 'off', .*; did you mean False"),
        ("fast", r"speculative: found 'fast', .* \(an engine, or a name as in `load`\)$"),
        ("early_exit:9", "draft: found 'early_exit:9', wanted early_exit:n with n from 1 to 5"),
        ("mtp", "speculative: found 'mtp' for a model without layers that predict further tokens"),
    ):
        with pytest.raises(oxillama.ConfigError, match=message):
            oxillama.load(path, speculative=wrong)


def test_the_help_the_errors_and_the_docs_name_the_same_ways():
    page = (Path(__file__).parents[2] / "docs/speculative.md").read_text("utf-8")
    for way in WAYS:
        assert f'"{way}' in oxillama.Options.__doc__ and f'| `"{way}' in page
        assert way in DRAFTS and repr(way) in _WANTED


def test_an_engine_may_have_a_draft_for_every_request(target, stories):
    draft = stories / "stories260K-q8_0.gguf"
    wanted = target.generate("Once", max_tokens=30, sampler=GREEDY).tokens
    with oxillama.load(
        stories / "stories260K-f32.gguf", num_threads=1, speculative=draft
    ) as engine:
        assert len(engine.loaded.core.speculator.cores()) == 1  # loaded with the engine
        done = engine.generate("Once", max_tokens=30, sampler=GREEDY)
        assert done.tokens == wanted and done.speculation is not None
        plain = engine.generate("Once", max_tokens=30, sampler=GREEDY, speculative=False)
        assert plain.tokens == wanted and plain.speculation is None


@pytest.mark.parametrize("kind", [str, Path])
def test_a_snapshot_says_nothing_of_where_the_draft_is(stories, tmp_path, kind):
    """It is resumed where there is no such file."""
    draft = tmp_path / "draft.gguf"
    draft.write_bytes((stories / "stories260K-q8_0.gguf").read_bytes())
    target = stories / "stories260K-f32.gguf"
    with oxillama.load(target, num_threads=1, speculative=kind(draft)) as engine:
        first = engine.generate("Once", max_tokens=9, sampler=GREEDY)
        saved = engine.loaded.last_session("none").snapshot()
        assert "speculative" not in engine.engine_config.to_dict()
        rest = engine.generate(None, max_tokens=9, sampler=GREEDY)
    draft.unlink()
    with oxillama.InferenceEngine.resume(saved, target) as engine:
        assert engine.engine_config.speculative == "auto"
        assert engine.generate(None, max_tokens=9, sampler=GREEDY).tokens == rest.tokens
    assert first.speculation is not None
    for way in ("lookup", "early_exit:2", None, False):
        assert oxillama.EngineConfig(speculative=way).to_dict()["speculative"] == way
