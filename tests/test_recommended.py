"""The sampler that a file recommends is the engine's default, or the file is refused."""

import numpy as np
import pytest

import oxillama
from oxillama import SamplerConfig
from oxillama.errors import ModelError
from oxillama.recommended import recommended_sampler
from tests.model import tiny


def test_a_file_without_recommendations_has_none():
    assert recommended_sampler({"general.name": "x"}) is None


def test_a_top_k_of_minus_1_is_off_as_in_llama_cpp():
    assert recommended_sampler({"general.sampling.top_k": -1}) == SamplerConfig(top_k=0)
    with pytest.raises(ModelError, match="top_k: found -2"):
        recommended_sampler({"general.sampling.top_k": -2})


def test_every_key_is_a_field():
    found = recommended_sampler(
        {
            "general.sampling.temp": 0.6,
            "general.sampling.top_k": 20,
            "general.sampling.top_p": 0.95,
            "general.sampling.min_p": 0.01,
            "general.sampling.xtc_probability": 0.5,
            "general.sampling.xtc_threshold": 0.2,
            "general.sampling.penalty_last_n": -1,
            "general.sampling.penalty_repeat": 1.05,
            "general.sampling.mirostat": 2,
            "general.sampling.mirostat_tau": 4.0,
            "general.sampling.mirostat_eta": 0.2,
            "general.sampling.typical_p": 0.9,
            "general.sampling.epsilon_cutoff": 0.001,
            "general.sampling.eta_cutoff": 0.002,
        }
    )
    assert found == SamplerConfig(
        temperature=0.6,
        top_k=20,
        top_p=0.95,
        min_p=0.01,
        xtc_probability=0.5,
        xtc_threshold=0.2,
        repetition_window=-1,
        repetition_penalty=1.05,
        mirostat=2,
        mirostat_tau=4.0,
        mirostat_eta=0.2,
        typical_p=0.9,
        epsilon_cutoff=0.001,
        eta_cutoff=0.002,
    )


@pytest.mark.parametrize(
    ("sequence", "stages"),
    [
        ("kpmt", ("top_k", "top_p", "min_p", "temperature")),
        ("top_k;typ_p;temperature", ("top_k", "typical", "temperature")),
        ("penalties;dry;top_n_sigma;xtc", ("penalties", "dry", "top_n_sigma", "xtc")),
        ("edsx", ("penalties", "dry", "top_n_sigma", "xtc")),
        ("temperature", ("temperature",)),
    ],
)
def test_a_sequence_is_the_order_of_stages(sequence, stages):
    assert recommended_sampler({"general.sampling.sequence": sequence}).samplers == stages


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("temp", -1.0, "temperature: found -1.0"),
        ("temp", "hot", "temperature: found 'hot'"),
        ("top_p", float("nan"), "top_p: found nan"),
        ("sequence", "kq", "found the sampler 'q'"),
        ("sequence", "top_k;infill", "found the sampler 'infill'"),
        ("sequence", 5, "found 5, wanted a text"),
        ("colour", 1, "general.sampling.colour: found 1"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(key, value, message):
    with pytest.raises(ModelError, match=message):
        recommended_sampler({f"general.sampling.{key}": value})


def test_it_is_the_default_that_is_shown_and_a_sampler_given_takes_its_place(tmp_path, capsys):
    path = tmp_path / "model.gguf"
    keys = {"general.sampling.temp": 0.0, "general.sampling.penalty_repeat": 1.0}
    tiny.write(path, "llama", keys=keys)
    greedy = SamplerConfig(temperature=0.0, repetition_penalty=1.0)
    with oxillama.load(path, num_threads=1) as engine:
        assert engine.sampler == greedy and "sampler of the file" in repr(engine)
        wanted = engine.generate([1, 2], max_tokens=8, sampler=greedy).tokens
        assert engine.generate([1, 2], max_tokens=8).tokens == wanted
        assert engine.generate([1, 2], max_tokens=8, top_k=3).tokens == wanted
    own = SamplerConfig(seed=3)
    with oxillama.load(path, num_threads=1, sampler=own) as engine:
        assert engine.sampler == own
    from oxillama.cli import main

    assert main(["info", str(path)]) == 0
    assert "temp 0.0, penalty_repeat 1.0" in capsys.readouterr().out
    tiny.write(path, "llama", keys={"general.sampling.top_p": 5.0})
    with pytest.raises(ModelError, match="top_p: found 5"):
        oxillama.load(path)


def suppressing(path, *suppressed):
    """A tiny model whose vocabulary suppresses tokens."""
    keys = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"t{i}" for i in range(77))],
        "tokenizer.ggml.scores": np.arange(80, 0, -1).astype(np.float32),
        "tokenizer.ggml.token_type": np.array([2, 3, 3] + [1] * 77, np.int32),
        "tokenizer.ggml.suppress_tokens": np.array(suppressed, np.int32) if suppressed else None,
    }
    tiny.write(path, "llama", keys=keys)
    return oxillama.load(path, num_threads=1, sampler=SamplerConfig(temperature=0.0))


def test_tokens_that_a_file_suppresses_are_never_drawn(tmp_path):
    options = {"max_tokens": 8, "ignore_eos": True}
    with suppressing(tmp_path / "plain.gguf") as engine:
        drawn = engine.generate([1, 5], **options).tokens
    never = set(drawn[:3])
    # a token that the vocabulary lacks changes nothing
    with suppressing(tmp_path / "m.gguf", *never, -1, 80) as engine:
        for more in ({}, {"logit_bias": {drawn[0]: 99}}, {"temperature": 2.0, "seed": 1}):
            found = engine.generate([1, 5], **options, **more).tokens
            assert len(found) == 8 and not never & set(found), more
        beams = engine.beam_generate([1, 5])
        assert not never & {token for beam in beams for token in beam.tokens}
        # by the order of what is left
        logits = engine.logits([1, 5])[-1]
        logits[list(never)] = -np.inf
        assert engine.generate([1, 5], **options).tokens[0] == int(logits.argmax())
