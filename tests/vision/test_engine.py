"""Images in an engine: logits beside transformers', and the laws that hold for tokens hold for
them.
"""

import base64
import json
import threading
from pathlib import Path

import numpy as np
import pytest

import oxillama
from oxillama.errors import ConfigError, ContextError, EngineError, ImageError, ModelError
from oxillama.media import MediaFeatures
from oxillama.media.placement import PlacedMedia, rotations
from oxillama.media.prompt import ImagePrompt
from oxillama.vision import Vision
from tests.conftest import CASES
from tests.model import tiny
from tests.vision.images import NAMES, VISION, image_of, images_of_cases, png
from tests.vision.made import write_mmproj

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
PARTS = (
    "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
)


def loaded(name, **options):
    path = VISION / name
    return oxillama.load(
        path / "text-f32.gguf", mmproj=path / "mmproj-f32.gguf", kv_type="f32", **options
    )


@pytest.fixture(scope="module")
def engines(cases):
    held = {}

    def get(name):
        if name not in held:
            held[name] = loaded(name)
        return held[name]

    yield get
    for engine in held.values():
        engine._loaded.close()


def prompt_of(name, image, vision):
    """The prompt of a case: its tokens around the image's features, no texts between."""
    with np.load(VISION / name / "vision.npz") as held:
        first, last = held["tokens_a"].tolist(), held["tokens_b"].tolist()
    prompt = ImagePrompt(first)
    for piece in vision.pieces(png(image)):
        if isinstance(piece, MediaFeatures):
            prompt.add(piece, 5)
    prompt.extend(last)
    return prompt


@pytest.mark.parametrize("name, image", images_of_cases())
def test_logits_are_those_of_transformers(engines, name, image):
    engine = engines(name)
    vision = engine.loaded.media.vision
    if image.endswith("_pad"):
        vision = Vision(VISION / name / "mmproj-f32.gguf", fit="pad")
    prompt = prompt_of(name, image, vision)
    with np.load(VISION / name / "vision.npz") as held:
        wanted = held[f"hf_logits_{image}"]
        where = held.get(f"pos_{image}")
    if where is not None:
        assert np.array_equal(rotations(prompt.images, 0, len(prompt)), where)
    found = engine.logits(prompt)[-len(wanted) :]
    # of Gemma 3 the projection is F16 in the file
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("name", ("gemma3", "qwen3vl"))
def test_bits_do_not_depend_on_chunks_companions_or_stored_prefixes(engines, name):
    image = "sq56" if name == "gemma3" else "tall96x160"
    engine = engines(name)
    prompt = prompt_of(name, image, engine.loaded.media.vision)
    wanted = engine.logits(prompt)
    alone = engine.generate(prompt, max_tokens=12, temperature=0, cache_prompt=False)
    with loaded(name, prefill_chunk_size=5, num_threads=1) as small:
        assert np.array_equal(small.logits(prompt), wanted)
    again = engine.generate(prompt, max_tokens=12, temperature=0)
    cached = engine.generate(prompt, max_tokens=12, temperature=0)
    assert cached.usage.cached_tokens == len(prompt) - 1
    asked = [[7, 8, 9], prompt, [1, 2, 3, 4] * 9, prompt]
    each = list(engine.submit_each(asked, max_tokens=12, temperature=0))
    together = [request.result().tokens for request in each]
    assert again.tokens == cached.tokens == together[1] == together[3] == alone.tokens
    assert together[0] == engine.generate([7, 8, 9], max_tokens=12, temperature=0).tokens


def test_logits_of_gemma_4_are_those_of_transformers(cases, tmp_path):
    """transformers_features.npz: the last logits of transformers 5.23 with this encoder, where the
    rows of an image see each other in windowed layers, and in the others no further than a text's.
    """
    path = write_mmproj(tmp_path / "m.gguf", "gemma4v", width=32, image_max_pixels=24 * 48**2)
    with oxillama.load(
        CASES / "arch_more" / "gemma4" / "f32.gguf", mmproj=path, kv_type="f32"
    ) as engine:
        (features,) = (
            each
            for each in engine.loaded.media.vision.pieces(image_of(200, 84))
            if isinstance(each, MediaFeatures)
        )
        prompt = ImagePrompt([2, 17, 33, 101, 255])
        prompt.add(features, 5)
        prompt.extend([7, 9, 300, 12])
        found = engine.logits(prompt)[-2:]
    with np.load(Path(__file__).parent / "transformers_features.npz") as held:
        wanted = held["logits_gemma4"]
    assert len(features) == 21
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_images_are_part_of_the_prefix_key(engines):
    engine = engines("qwen2vl")
    vision = engine.loaded.media.vision
    one, other = (prompt_of("qwen2vl", image, vision) for image in ("wide168x84", "wide168x84"))
    rows = other.images[0].features.rows + np.float32(0.25)
    changed = MediaFeatures(rows, other.images[0].features.positions)
    other.media = (PlacedMedia(other.images[0].start, changed),)
    assert list(one) == list(other)
    first = engine.generate(one, max_tokens=6, temperature=0)
    second = engine.generate(other, max_tokens=6, temperature=0)
    assert second.usage.cached_tokens == one.images[0].start
    fresh = engine.generate(other, max_tokens=6, temperature=0, cache_prompt=False)
    assert second.tokens == fresh.tokens != first.tokens


def test_sessions_with_images_fork_truncate_and_resume(engines, tmp_path):
    for name in ("gemma3", "qwen3vl"):
        engine = engines(name)
        image = "sq56" if name == "gemma3" else "wide128x64"
        prompt = prompt_of(name, image, engine.loaded.media.vision)
        session = engine.session()
        engine.generate(prompt, session=session, max_tokens=4, temperature=0)
        start, end = prompt.images[0].start, prompt.images[0].end
        with pytest.raises(ContextError, match=f"found {start + 1}, which is within an image"):
            session.truncate(start + 1)
        saved = session.snapshot()
        fork = session.fork()
        wanted = engine.generate(None, session=session, max_tokens=8, temperature=0).tokens
        assert engine.generate(None, session=fork, max_tokens=8, temperature=0).tokens == wanted
        path = tmp_path / f"{name}.oxisnap"
        path.write_bytes(saved)
        with loaded(name) as fresh:
            back = fresh.restore(path)
            assert back.snapshot() == saved
            assert fresh.generate(None, session=back, max_tokens=8, temperature=0).tokens == wanted
            # the same from rows that are evaluated again
            bare = fresh.restore(saved)
            bare.kv.truncate(0)
            assert fresh.generate(None, session=bare, max_tokens=8, temperature=0).tokens == wanted
        session.truncate(end)
        assert session.images == prompt.images
        session.truncate(start)
        assert session.images == ()
        more = engine.generate(
            ImagePrompt(prompt[start:], [PlacedMedia(0, prompt.images[0].features)]),
            session=session,
            max_tokens=4,
            temperature=0,
        )
        assert more.tokens == engine.generate(prompt, max_tokens=4, temperature=0).tokens


def test_several_completions_and_beams_of_one_image(engines):
    engine = engines("qwen25vl")
    prompt = prompt_of("qwen25vl", "tall84x140", engine.loaded.media.vision)
    greedy = engine.generate(prompt, max_tokens=5, temperature=0).tokens
    for done in engine.submit(prompt, n=2, max_tokens=5, temperature=0).result():
        assert done.tokens == greedy
    wide = oxillama.BeamSearchConfig(beam_width=3, max_new_tokens=5)
    for beam in engine.beam_generate(prompt, wide):
        rows = engine.logits(prompt + list(beam.tokens))[len(prompt) - 1 :].astype(np.float64)
        if beam.finished:  # the token that ended it is not told
            continue
        logs = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
        assert (
            abs(sum(logs[at, token] for at, token in enumerate(beam.tokens)) - beam.logprob_sum)
            < 1e-3
        )


def test_a_context_that_shifts_drops_whole_images(engines):
    engine = loaded("qwen2vl", context_size=48)
    with engine:
        prompt = prompt_of("qwen2vl", "sq112", engine.loaded.media.vision)
        done = engine.generate(
            prompt, max_tokens=40, temperature=0, context_shift=True, keep=4, ignore_eos=True
        )
        assert done.usage.context_shifts >= 1 and len(done.tokens) == 40


@pytest.mark.parametrize("taken", (False, True))
def test_a_shift_moves_an_image_whose_rows_come_together(tmp_path, taken):
    """Also where the request has no pages meanwhile: they were taken while a function of its caller
    ran. Nothing but the tokens that are left decides what comes next.
    """
    tiny.write(tmp_path / "m.gguf", "llama")
    rng, waits, go = np.random.default_rng(3), threading.Event(), threading.Event()
    small = dict(context_size=64, max_pages=5, prefill_chunk_size=5, prefix_cache=False)
    with oxillama.load(tmp_path / "m.gguf", num_threads=1, speculative=False, **small) as engine:
        width = engine.loaded.model.program.embed_columns
        prompt = ImagePrompt(rng.integers(0, 80, 40).tolist())
        prompt.add(MediaFeatures(rng.standard_normal((8, width), np.float32), together=True), 3)
        prompt.extend(rng.integers(0, 80, 14).tolist())
        seen = []

        def watches(ids, row):
            seen.append(row.copy())
            if len(seen) == 2:  # the context is full after this draw
                waits.set()
                assert go.wait(20)

        request = engine.submit(
            prompt, max_tokens=4, context_shift=True, temperature=0, processors=[watches]
        )
        assert waits.wait(20)
        if taken:
            engine.generate([1] * 50, max_tokens=1, priority=-1)
        go.set()
        tokens = request.result(20).tokens
        assert engine.metrics().requests_preempted_total == taken
        session = engine.session()
        left = prompt[32:] + list(tokens[:2])
        for row, more in zip(seen[2:], (left, [tokens[2]])):
            assert np.array_equal(engine.prefill(more, session=session), row)


def test_an_image_whose_rows_come_together_must_fit_into_a_step(engines):
    steps = oxillama.SchedulerConfig(max_batch_tokens=4, max_batch_sequences=1, max_sequences=1)
    with loaded("gemma3", scheduler=steps) as engine:
        prompt = prompt_of("gemma3", "sq56", engine.loaded.media.vision)
        with pytest.raises(ContextError, match="image: 4 rows, which are evaluated in one step"):
            engine.generate(prompt, max_tokens=1)


def message(*parts):
    url = "data:image/png;base64," + base64.b64encode(png("sq112")).decode()
    image = {"type": "image_url", "image_url": {"url": url}}
    return {
        "role": "user",
        "content": [image if part is None else {"type": "text", "text": part} for part in parts],
    }


@pytest.mark.parametrize("template", (CHATML, PARTS), ids=("text", "parts"))
def test_a_chat_holds_images_where_its_messages_do(engines, template):
    engine = engines("qwen2vl")
    engine.loaded.use_template(template)
    written = [
        {"role": "system", "content": "<|image_pad|>"},
        message("one <|image_pad|> ", None, " two", None),
    ]
    turn = engine.loaded.chat.turn(written)
    assert [len(each.features) for each in turn.prompt.images] == [16, 16]
    first, second = turn.prompt.images
    text = engine.detokenize(turn.prompt[first.end : second.start])
    assert text.replace("<|vision_end|>", "").replace("<|vision_start|>", "") == " two"
    before = engine.detokenize(turn.prompt[: first.start])
    assert before.endswith("one <|image_pad|> <|vision_start|>") and secret_free(before)
    done = engine.chat(written, max_tokens=4, temperature=0)
    assert done.usage.prompt_tokens == len(turn.prompt)


def secret_free(text):
    return "<image " not in text


def test_a_chat_takes_every_kind_of_image(engines, tmp_path):
    engine = engines("qwen2vl")
    engine.loaded.use_template(PARTS)
    path = tmp_path / "a.png"
    path.write_bytes(png("sq112"))
    from PIL import Image

    opened = Image.open(path)
    kinds = (png("sq112"), path, opened, np.asarray(opened.convert("RGB")))
    wanted = engine.loaded.chat.turn([message(None)]).prompt
    for source in kinds:
        content = [{"type": "image", "image": source}]
        found = engine.loaded.chat.turn([{"role": "user", "content": content}]).prompt
        assert list(found) == list(wanted)
        assert found.images[0].features.digest == wanted.images[0].features.digest


def test_what_cannot_be_seen_is_refused_by_name(engines):
    path = VISION / "qwen2vl"
    with oxillama.load(path / "text-f32.gguf") as blind:
        blind.loaded.use_template(PARTS)
        with pytest.raises(EngineError, match=r"messages\[0\].content\[0\]: .* without mmproj"):
            blind.chat([message(None)])
        with pytest.raises(EngineError, match="loaded without mmproj"):
            blind.image_prompt([png("sq112")])
    with loaded("qwen2vl", max_images=1) as engine:
        engine.loaded.use_template(PARTS)
        with pytest.raises(ImageError, match=r"content\[1\]: found 2 images, wanted at most 1"):
            engine.chat([message(None, None)])
        with pytest.raises(ImageError, match=r"parts\[2\]: found 2 images, wanted at most 1"):
            engine.image_prompt([png("sq112"), "and", png("sq112")])
        bad = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        with pytest.raises(ImageError, match=r"messages\[0\].content\[0\]: found 3 bytes"):
            engine.chat([{"role": "user", "content": [bad]}])
        with pytest.raises(ImageError, match="part of type 'input_video', wanted text, an image"):
            engine.chat([{"role": "user", "content": [{"type": "input_video"}]}])
        with pytest.raises(ContextError, match="prompt of .* with images"):
            parts = [png("sq112")] + ["word " * 600]
            engine.generate(engine.image_prompt(parts), truncate_prompt=True, max_tokens=4)


def test_an_encoder_of_another_model_is_refused(cases):
    def pair(text, mmproj, **options):
        return oxillama.load(
            VISION / text / "text-f32.gguf", mmproj=VISION / mmproj / "mmproj-f32.gguf", **options
        )

    with pytest.raises(ModelError, match="makes rows of 96, qwen2vl takes 32"):
        pair("qwen2vl", "qwen3vl")
    with pytest.raises(ModelError, match="gives rows 3 positions each, llama rotates by 1"):
        pair("llava15", "qwen2vl")
    with pytest.raises(
        ModelError, match=r"found 'llama', wanted 'clip', an mmproj file: this is a model \(llama\)"
    ):
        oxillama.load(
            VISION / "llava15" / "text-f32.gguf", mmproj=VISION / "llava15" / "text-f32.gguf"
        )
    with pytest.raises(ConfigError, match="image_fit: found 'crop'"):
        pair("llava15", "llava15", image_fit="crop")
    with pytest.raises(ConfigError, match="image_folder: found '.*' without mmproj"):
        oxillama.load(VISION / "llava15" / "text-f32.gguf", image_folder=VISION)


def test_parts_of_a_prompt_may_be_texts_ids_and_images(engines):
    engine = engines("llava15")
    prompt = engine.image_prompt(["hello", png("sq56"), [7, 8], png("sq56")])
    hello = engine.tokenize("hello")
    assert prompt[: len(hello)] == hello and prompt[-18:-16] == [7, 8]
    assert [each.start for each in prompt.images] == [len(hello), len(hello) + 18]
    assert json.dumps(list(prompt))  # plain integers, as every prompt's


@pytest.mark.parametrize("name", NAMES)
def test_every_family_chats(engines, name):
    engine = engines(name)
    engine.loaded.use_template(CHATML)
    done = engine.chat([message("what is ", None, "?")], max_tokens=3, temperature=0)
    assert len(done.tokens) <= 3 and done.usage.prompt_tokens > 4
