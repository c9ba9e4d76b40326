"""Drafts from a part of the vocabulary: the regions that texts use, whose rows give the logits of
the whole output, while texts stay the same.
"""

import numpy as np
import pytest

import oxillama
from oxillama.model.drafts import output_matrix, shortened
from oxillama.model.load import load_model
from oxillama.sampling import Sampler, SamplerConfig
from oxillama.speculative import shortlist
from oxillama.speculative.drafts import DraftModels
from oxillama.speculative.shortlist import Shortlist
from oxillama.speculative.types import Candidates
from tests.model import invented, tiny
from tests.model.stepping import logits

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Regions of 16 tokens, two of which are a list."""
    monkeypatch.setattr(shortlist, "REGION", 16)
    monkeypatch.setattr(shortlist, "MOST", 2)


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("arch", ["llama", "gemma2", "phi2", "cohere2"])
def test_its_rows_are_those_of_the_whole_output(arch, kind, tmp_path):
    """Tied to the embedding, under a softcap or a scale, with a bias, in tight panels."""
    model = load_model(invented.invent(tmp_path / "m.gguf", arch, kind=kind), num_threads=1)
    tokens = np.array([*range(32, 48), *range(16)])
    program, whole = shortened(model, tokens), logits(model, TOKENS)
    assert program.outputs == 32 and program.vocab_size == model.config.vocab_size
    model.program = program
    assert np.array_equal(logits(model, TOKENS), whole[:, tokens])


def test_it_follows_the_texts(tmp_path):
    model = load_model(tiny.write(tmp_path / "m.gguf", "llama"), num_threads=1)
    assert model.config.vocab_size >= 64
    listed = Shortlist.of(model)
    assert listed.program is None
    listed.update()  # before any text: low ids
    first = listed.program
    assert listed.ids.tolist() == list(range(32)) and first.outputs == 32
    listed.note([3] * 50 + [20] * 50)
    listed.update()
    assert listed.program is first
    listed.note([40] * 500)
    listed.update()
    assert listed.program is not first
    assert listed.ids.tolist() == [*range(16), *range(32, 48)]
    row = listed.row(np.arange(32, dtype=np.float32), 70)
    assert row.shape == (70,) and np.isneginf(row).sum() == 38
    assert row[listed.ids].tolist() == list(range(32))


def test_a_small_vocabulary_has_none(tmp_path, monkeypatch):
    model = load_model(tiny.write(tmp_path / "m.gguf", "llama"), num_threads=1)
    monkeypatch.setattr(shortlist, "MOST", model.config.vocab_size // 32 + 1)
    assert Shortlist.of(model) is None and output_matrix(model) is not None


def test_nor_has_a_draft_whose_choice_the_text_depends_on(cases):
    with oxillama.load(cases / "stories260K" / "stories260K-f32.gguf", num_threads=1) as engine:
        drafts: DraftModels = engine.loaded.core.speculator.registry._source
        drafter, close = drafts.open("early_exit:2")
        assert drafter._shortlist is not None
        close()
        config = SamplerConfig(seed=1)
        drafter, close = drafts.open(
            "early_exit:2", own_sampler=lambda session: Sampler(config, 512, seed=3)
        )
        assert drafter._shortlist is None
        close()


@pytest.mark.parametrize("draft", ["early_exit:4", "file"])
def test_texts_stay_the_same(draft, cases):
    """Where many tokens are missing from the list, and where it changes within a text."""
    stories = cases / "stories260K"
    asked = stories / "stories260K-q8_0.gguf" if draft == "file" else draft
    with oxillama.load(stories / "stories260K-f32.gguf", num_threads=1) as engine:
        registry = engine.loaded.core.speculator.registry
        drafter = registry.resolve(asked).drafter
        accepted = 0
        for seed, sampler in enumerate((SamplerConfig.greedy(), SamplerConfig(temperature=0.9))):
            for prompt in ("Once upon a time", "The dog", ""):
                options = {"max_tokens": 40, "sampler": sampler, "seed": seed}
                plain = engine.generate(prompt, speculative=False, **options)
                drafted = engine.generate(
                    prompt, speculative=Candidates(drafter, most=3, adaptive=False), **options
                )
                assert drafted.tokens == plain.tokens and drafted.text == plain.text
                accepted += drafted.speculation.accepted
        assert drafter._shortlist.program.outputs == 32
        assert accepted > 0
