"""Audio in an engine: the laws that hold for tokens and for images hold for it."""

import base64
import re

import numpy as np
import pytest

import oxillama
from oxillama.embedded import embedded_path
from oxillama.errors import AudioError, ConfigError, ContextError, EngineError, ModelError
from oxillama.media import MediaFeatures
from tests.audio.files import file_of
from tests.audio.made import RATE, clip, write_audio
from tests.vision.images import image_of, rewritten
from tests.vision.made import write_mmproj

WIDTH = 256  # of the embedded model
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
PARTS = (
    "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'audio' %}Audio: <|audio_bos|><|AUDIO|><|audio_eos|>\n"
    "{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
)


@pytest.fixture(scope="module")
def mmproj(tmp_path_factory):
    return write_audio(tmp_path_factory.mktemp("audio") / "mmproj.gguf", width=WIDTH)


@pytest.fixture(scope="module")
def engine(mmproj):
    with oxillama.load(mmproj=mmproj, kv_type="f32", chat_template=PLAIN) as held:
        yield held


def told(*parts):
    """A user's message of texts and clips."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "audio", "audio": part, "sampling_rate": RATE}
        for part in parts
    ]
    return [{"role": "user", "content": content}]


def test_rows_of_a_clip_take_the_place_of_tokens(engine):
    prompt = engine.audio_prompt(["She said ", (clip(1.0), RATE), " and left."])
    (placed,) = prompt.audio
    assert prompt.images == () and len(placed.features) == 25
    wanted = engine.loaded.media.hearing.features(clip(1.0))
    assert np.array_equal(placed.features.rows, wanted)
    text = engine.detokenize([*prompt[: placed.start], *prompt[placed.end :]])
    assert text.strip() == "She said <|audio_bos|><|audio_eos|> and left."
    # rows of an image that are equal give the same logits
    seen = oxillama.ImagePrompt(list(prompt))
    seen.media = (type(placed)(placed.start, MediaFeatures(wanted)),)
    assert np.array_equal(engine.logits(prompt), engine.logits(seen))


def test_bits_do_not_depend_on_chunks_threads_companions_or_stored_prefixes(engine, mmproj):
    prompt = engine.audio_prompt(["Once ", (clip(3.1), RATE), " she said ", (clip(0.7), RATE)])
    wanted = engine.logits(prompt)
    options = dict(max_tokens=8, temperature=0)
    first = engine.generate(prompt, **options)
    again = engine.generate(prompt, **options)
    assert again.tokens == first.tokens
    assert again.usage.cached_tokens > prompt.audio[0].end
    for more in ({"prefill_chunk_size": 5}, {"num_threads": 1}):
        with oxillama.load(mmproj=mmproj, kv_type="f32", **more) as other:
            same = other.audio_prompt(["Once ", (clip(3.1), RATE), " she said ", (clip(0.7), RATE)])
            assert np.array_equal(other.logits(same), wanted)
    many = [engine.submit(prompt, **options), engine.submit("Once upon a time", **options)]
    assert [each.result().tokens for each in many][0] == first.tokens


def test_another_clip_is_no_hit_of_the_prefix_cache(engine):
    one, other = (engine.audio_prompt([(clip(1.0, seed=each), RATE), "?"]) for each in (5, 6))
    assert list(one) == list(other)
    engine.generate(one, max_tokens=2)
    assert engine.generate(other, max_tokens=2).usage.cached_tokens <= one.audio[0].start


def test_sessions_fork_truncate_and_resume_without_the_encoder(engine, tmp_path):
    prompt = engine.audio_prompt(["Hear ", (clip(1.3), RATE), " now"])
    session = engine.session()
    engine.generate(prompt, session=session, max_tokens=4, temperature=0)
    start, end = prompt.audio[0].start, prompt.audio[0].end
    said = f"found {start + 3}, which is within a clip of audio, wanted a position before it"
    with pytest.raises(ContextError, match=said):
        session.truncate(start + 3)
    saved, fork = session.snapshot(), session.fork()
    wanted = engine.generate(None, session=session, max_tokens=8, temperature=0).tokens
    assert engine.generate(None, session=fork, max_tokens=8, temperature=0).tokens == wanted
    with oxillama.load(kv_type="f32", chat_template=PLAIN) as deaf:
        back = deaf.restore(saved)
        assert back.snapshot() == saved and back.images == ()
        assert back.audio[0].features.digest == prompt.audio[0].features.digest
        # the same from rows that are evaluated again
        back.kv.truncate(0)
        assert deaf.generate(None, session=back, max_tokens=8, temperature=0).tokens == wanted
    session.truncate(end)
    assert session.audio == prompt.audio
    session.truncate(start)
    assert session.audio == ()


def test_a_template_writes_clips_or_they_go_where_their_parts_were(engine):
    shown = {}
    for template in (PLAIN, PARTS):
        engine.loaded.use_template(template)
        turn = engine.loaded.chat.turn(told("a ", clip(1.0), "b"))
        (placed,) = turn.prompt.audio
        ids = list(turn.prompt)
        shown[template] = [
            engine.detokenize(part).strip() for part in (ids[: placed.start], ids[placed.end :])
        ]
    engine.loaded.use_template(PLAIN)
    assert shown[PLAIN] == ["user: a <|audio_bos|>", "<|audio_eos|>b"]
    assert shown[PARTS] == ["user: a Audio: <|audio_bos|>", "<|audio_eos|>\nb"]


def test_the_row_of_a_template_of_gemma_3n_stands_for_a_clip(tmp_path):
    """Of a window of 188 rows and the token that ends it, which the vocabulary need not know."""
    heard = write_audio(tmp_path / "a.gguf", "gemma3na", width=WIDTH)
    template = (
        "{% for m in messages %}{{ m.role }}: {% for p in m.content %}{% if p.type == 'audio' %}"
        "<audio_soft_token>{% else %}{{ p.text }}{% endif %}{% endfor %}\n{% endfor %}"
    )
    with oxillama.load(mmproj=heard, kv_type="f32", chat_template=template) as engine:
        prompt = engine.loaded.chat.turn(told("a ", clip(0.5), "b")).prompt
        (placed,) = prompt.audio
        assert len(placed.features) == 189
        parts = (list(prompt[: placed.start]), list(prompt[placed.end :]))
        shown = [engine.detokenize(each).strip(" ") for each in parts]
        assert shown == ["user: a \n\n<start_of_audio>", "\n\nb"]


def test_every_form_of_a_part_is_the_same_clip(engine, tmp_path):
    samples = clip(0.9)
    held = file_of(samples, "float")
    (tmp_path / "a.wav").write_bytes(held)
    data = base64.b64encode(held).decode()
    forms = (
        {"type": "audio", "audio": samples, "sampling_rate": RATE},
        {"type": "audio", "audio": (samples, RATE)},
        {"type": "audio", "audio": held},
        {"type": "audio", "audio": tmp_path / "a.wav"},
        {"type": "audio", "path": tmp_path / "a.wav"},
        {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{data}"}},
        {"type": "audio_url", "audio_url": f"data:audio/wav;base64,{data}"},
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
    )
    digests = set()
    for form in forms:
        turn = engine.loaded.chat.turn([{"role": "user", "content": [form]}])
        digests.add(turn.prompt.audio[0].features.digest)
    assert len(digests) == 1


def test_what_cannot_be_heard_is_refused_by_name(engine, tmp_path):
    with oxillama.load(chat_template=PLAIN) as deaf:
        assert not deaf.takes_audio
        said = r"messages\[0\].content\[0\]: found a clip of audio, this engine was loaded without"
        with pytest.raises(EngineError, match=said):
            deaf.chat(told(clip(0.5)))
        with pytest.raises(EngineError, match="audio_prompt: found a clip of audio, this engine"):
            deaf.audio_prompt([(clip(0.5), RATE)])
    assert engine.takes_audio and not engine.takes_images
    said = r"parts\[0\]: found an image, this engine has an encoder of audio alone"
    with pytest.raises(EngineError, match=said):
        engine.image_prompt([image_of(20, 20)])
    bad = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    with pytest.raises(AudioError, match=r"messages\[0\].content\[0\]: found 3 bytes that begin"):
        engine.chat([{"role": "user", "content": [bad]}])
    with pytest.raises(AudioError, match=r"content\[0\]: found keys \['type'\], wanted audio"):
        engine.chat([{"role": "user", "content": [{"type": "input_audio"}]}])
    with pytest.raises(AudioError, match=r"parts\[1\]: found int, wanted bytes"):
        engine.audio_prompt(["a", 5])
    with pytest.raises(ContextError, match="prompt of .* tokens with images or audio"):
        prompt = engine.audio_prompt([(clip(0.5), RATE), "word " * 1200])
        engine.generate(prompt, truncate_prompt=True, max_tokens=4)


def test_limits_are_options(mmproj):
    with oxillama.load(
        mmproj=mmproj, max_audio_clips=1, max_audio_seconds=1, chat_template=PLAIN
    ) as engine:
        said = r"messages\[0\].content\[1\]: found 2 clips of audio, wanted at most 1 \(max_audio"
        with pytest.raises(AudioError, match=said):
            engine.chat(told(clip(0.5), clip(0.5)))
        with pytest.raises(AudioError, match=r"content\[0\]: found 1\.5 seconds, wanted at most 1"):
            engine.chat(told(clip(1.5)))
    for name in ("max_audio_clips", "max_audio_seconds"):
        with pytest.raises(ConfigError, match=f"{name}: found -1"):
            oxillama.load(mmproj=mmproj, **{name: -1})


def test_an_encoder_of_another_model_is_refused(tmp_path):
    narrow = write_audio(tmp_path / "a.gguf", width=24)
    with pytest.raises(ModelError, match="mmproj: a.gguf makes rows of 24, llama takes 256"):
        oxillama.load(mmproj=narrow)


def test_a_file_of_images_whose_audio_encoder_is_of_another_kind_sees(tmp_path):
    sight = write_mmproj(tmp_path / "v.gguf", "gemma3", width=WIDTH)
    both = rewritten(
        sight,
        tmp_path / "b.gguf",
        keys={
            "clip.has_audio_encoder": True,
            "clip.projector_type": "",
            "clip.vision.projector_type": "gemma3",
            "clip.audio.projector_type": "other",
        },
        add={"a.odd": np.zeros(4, np.float32)},
    )
    with oxillama.load(mmproj=both, chat_template=PLAIN) as engine:
        assert engine.takes_images and not engine.takes_audio
        assert len(engine.image_prompt([image_of(56, 56)]).images) == 1
        said = "content[0]: b.gguf has an audio encoder of kind 'other', wanted one of dots3note_a"
        with pytest.raises(EngineError, match=re.escape(said)):
            engine.chat(told(clip(0.5)))


def test_images_and_clips_share_a_prompt(tmp_path):
    """Of a file with both encoders; each is counted among those of its kind."""
    from tests.audio.made import keys_of, tensors_of

    sight = write_mmproj(tmp_path / "v.gguf", "gemma3", width=WIDTH)
    both = rewritten(
        sight,
        tmp_path / "b.gguf",
        keys={
            **keys_of("voxtral", WIDTH),
            "clip.projector_type": "",
            "clip.vision.projector_type": "gemma3",
            "clip.audio.projector_type": "voxtral",
        },
        add=tensors_of("voxtral", WIDTH),
    )
    with oxillama.load(mmproj=both, chat_template=PLAIN, kv_type="f32") as engine:
        parts = [
            {"type": "audio", "audio": (clip(0.5), RATE)},
            {"type": "text", "text": "and"},
            {"type": "image", "image": image_of(56, 56)},
            {"type": "audio", "audio": (clip(0.7), RATE)},
        ]
        prompt = engine.loaded.chat.turn([{"role": "user", "content": parts}]).prompt
        assert [each.features.kind for each in prompt.media] == ["audio", "image", "audio"]
        mixed = engine.audio_prompt([(clip(0.5), RATE), parts[2]])
        assert [each.features.kind for each in mixed.media] == ["audio", "image"]
        done = engine.generate(prompt, max_tokens=4, temperature=0)
        assert len(done.tokens) == 4


def test_the_command_line_hears(tmp_path, capsys, mmproj):
    from oxillama.cli import main

    path = tmp_path / "a.wav"
    path.write_bytes(file_of(clip(0.6)))
    model = str(embedded_path())
    options = ["--mmproj", str(mmproj), "-n", "3", "--temp", "0", "--no-timings"]
    assert main(["run", model, *options, "--audio", str(path), "-p", "What?"]) == 0
    heard = capsys.readouterr().out
    with oxillama.load(mmproj=mmproj) as engine:
        parts = [{"type": "audio", "audio": path}, {"type": "text", "text": "What?"}]
        message = {"role": "user", "content": parts}
        wanted = engine.chat([message], max_tokens=3, temperature=0).text
    assert wanted and heard.strip() == wanted.strip()
    assert main(["run", model, "--audio", str(path), "-p", "What?"]) == 1
    assert f"--audio: found {path} without --mmproj" in capsys.readouterr().err
    path.write_bytes(file_of(clip(0.6))[:-3])
    assert main(["run", model, *options, "--audio", str(path), "-p", "What?"]) == 1
    assert f"--audio: {path}: found a damaged WAV file" in capsys.readouterr().err


def test_info_and_doctor_know_the_encoder(capsys, mmproj):
    import json

    from oxillama.cli import main

    assert main(["info", str(mmproj), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["audio_projector"] == "qwen2a" and found["layers"] == 2
    assert found["audio_mel_bins"] == 80 and "image_size" not in found
    assert main(["doctor", str(embedded_path()), "--mmproj", str(mmproj)]) == 0
    assert "ops of the audio encoder agree with the reference" in capsys.readouterr().out
