"""Prompts with images as values, and at the doors of an engine: no image is lost, and none of
another model reaches a step.
"""

import copy
import pickle

import numpy as np
import pytest

import oxillama
from oxillama.errors import ConfigError, ContextError
from oxillama.media import MediaFeatures
from oxillama.media.prompt import ImagePrompt
from oxillama.quality import perplexity
from tests.model import invented, tiny


def image(width=tiny.HIDDEN, *, rows=3, seed=1, **more):
    made = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    return MediaFeatures(made, **more)


def prompt_of(features, before=(5, 6), after=(7,)):
    prompt = ImagePrompt(before)
    prompt.add(features, 9)
    prompt.extend(after)
    return prompt


def places(prompt):
    assert isinstance(prompt, ImagePrompt)
    return [(each.start, each.end, each.features) for each in prompt.images]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny.write(path, "llama")
    with oxillama.load(path, num_threads=1) as engine:
        yield engine


def test_sums_and_copies_have_the_images_of_their_parts():
    one, two = image(seed=1), image(seed=2)
    first, second = prompt_of(one), prompt_of(two, before=())
    joint = [5, 6, 9, 9, 9, 7, 9, 9, 9, 7]
    wanted = [(2, 5, one), (6, 9, two)]
    assert list(first + second) == joint and places(first + second) == wanted
    in_place = first.copy()
    in_place += second
    assert list(in_place) == joint and places(in_place) == wanted
    longer = copy.copy(first)
    longer.extend(second)
    assert list(longer) == joint and places(longer) == wanted
    before = [3, 4] + first
    assert list(before) == [3, 4, 5, 6, 9, 9, 9, 7] and places(before) == [(4, 7, one)]
    assert places(first) == [(2, 5, one)]  # none of it changed the first one
    sent = pickle.loads(pickle.dumps(joined := first + second))
    assert list(sent) == joint
    assert [each.features.digest for each in sent.images] == [
        each.features.digest for each in joined.images
    ]


@pytest.mark.parametrize(
    "change",
    (
        lambda prompt: prompt.insert(0, 1),
        lambda prompt: prompt.pop(0),
        lambda prompt: prompt.remove(5),
        lambda prompt: prompt.reverse(),
        lambda prompt: prompt.clear(),
        lambda prompt: prompt.__delitem__(slice(0, 1)),
        lambda prompt: prompt.__setitem__(0, 1),
        lambda prompt: prompt * 2,
    ),
)
def test_what_would_part_an_image_from_its_tokens_is_refused(change):
    prompt = prompt_of(image())
    with pytest.raises(ContextError, match="prompt: has images or audio, which stay with"):
        change(prompt)
    assert list(prompt) == [5, 6, 9, 9, 9, 7]


def test_every_door_of_an_engine_sees_the_images(engine):
    prompt = prompt_of(image())
    wanted = engine.logits(prompt)
    assert not np.array_equal(engine.logits(list(prompt))[-1], wanted[-1])
    with engine.session() as session:
        assert np.array_equal(engine.prefill(prompt, session=session), wanted[-1])
        assert places(ImagePrompt(session.tokens, session.images)) == places(prompt)
        again = engine.prefill(prompt, session=session)
        assert np.array_equal(again, engine.logits(prompt + prompt)[-1])
    with engine.session() as session:
        session.extend(prompt)
        assert np.array_equal(engine.prefill([4], session=session), engine.logits(prompt + [4])[-1])


def test_what_takes_tokens_alone_says_so(engine):
    def raw(prompt):
        with engine.raw_loop() as loop:
            loop.prefill(0, prompt)

    for door in (
        raw,
        lambda prompt: perplexity(engine, prompt, context=8),
        lambda prompt: list(engine.diagnose(prompt)),
    ):
        with pytest.raises(ConfigError, match="prompt with images or audio, wanted .* alone"):
            door(prompt_of(image()))


@pytest.mark.parametrize(
    ("features", "told"),
    (
        (image(96), "image: found rows of 96, wanted 64"),
        (image(positions=np.zeros((3, 3), np.int32)), "image: found 3 positions of each row, "),
        (
            image(positions=np.zeros((3, 3), np.int32), fixed=True),
            "image: found 4 positions of each row, this model rotates by 1",
        ),
    ),
    ids=("width", "positions", "fixed"),
)
def test_images_for_another_model_are_refused_and_the_engine_goes_on(engine, features, told):
    prompt = prompt_of(features)
    with engine.session() as session:
        for door in (
            lambda: engine.generate(prompt, max_tokens=2),
            lambda: engine.logits(prompt),
            lambda: engine.beam_generate(prompt),
            lambda: engine.prefill(prompt, session=session),
            lambda: engine.generate(prompt, session=session, max_tokens=2),
        ):
            with pytest.raises(ConfigError, match=told):
                door()
        assert session.tokens == [] and session.images == ()
    assert len(engine.generate([5, 6], max_tokens=2, ignore_eos=True).tokens) == 2


@pytest.mark.parametrize("position", (-1, 4, (1 << 31) - 1))
def test_positions_of_rows_are_no_more_than_there_are_rows(position):
    """Those of later tokens stay within the context then."""
    positions = np.zeros((3, 3), np.int32)
    positions[1, 2] = position
    with pytest.raises(ValueError, match=f"positions: found .*{position}.*, wanted 0 to 3"):
        image(positions=positions)


def test_a_model_that_needs_every_token_refuses_images_and_goes_on(tmp_path):
    for arch, told in (
        ("deepseek4", "image: found one for a model that routes tokens to experts by their number"),
        ("modern-bert", "image: found one for an encoder of texts"),
    ):
        invented.invent(tmp_path / f"{arch}.gguf", arch)
        with oxillama.load(tmp_path / f"{arch}.gguf", num_threads=1) as engine:
            prompt = prompt_of(image(engine.loaded.model.program.embed_columns))
            wanted = engine.embed([5, 6, 7])
            with pytest.raises(ConfigError, match=told):
                engine.embed(prompt)
            assert np.array_equal(engine.embed([5, 6, 7]), wanted)
