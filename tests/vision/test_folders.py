"""Hugging Face folders of models with an image encoder: asked about images as they are."""

import base64
import hashlib
import io
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

import oxillama
from oxillama import stores
from oxillama.cli import main, parser
from oxillama.cli.serve import _engine
from oxillama.convert import convert_encoder
from oxillama.errors import ConfigError, ConvertError, EngineError, GgufNotFound, ModelError
from oxillama.gguf import GgufReader, GgufWriter
from oxillama.media import MediaFeatures
from tests.convert.encoder_folders import golden_of
from tests.convert.folders import save, spread, tensors_of
from tests.server.conftest import asking
from tests.vision.images import image_of

TEMPLATE = (
    "{% for m in messages %}{% for p in m.content %}"
    "{{ '<image>' if p.type == 'image' else p.text }}"
    "{% endfor %}{% endfor %}"
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "oxillama" / "converted"


@pytest.fixture
def seeing(folder):
    """A folder of LLaVA: the tiny Llama with a byte-level vocabulary, and the golden's encoder."""
    random = np.random.default_rng(1)
    text, tensors = json.loads((folder / "config.json").read_text()), tensors_of(folder)
    alphabet = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256))]
    alphabet += [chr(256 + i) for i in range(256 - len(alphabet))]
    vocabulary = {"<s>": 0, "</s>": 1, "<image>": 2, **{c: i + 3 for i, c in enumerate(alphabet)}}
    vocabulary["zz"] = len(vocabulary)
    size = len(vocabulary)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = random.normal(size=(size, 32)).astype(np.float32)
    golden = golden_of("llava15")
    for name, shape in spread(golden["folder"]):
        if not name.startswith("language_model."):
            tensors[name] = (0.2 * random.normal(size=shape)).astype(np.float32)
    held = {
        "language_model." + name if name.startswith(("model.", "lm_head.")) else name: one
        for name, one in tensors.items()
    }
    save(folder / "model.safetensors", held)
    text |= {"model_type": "llama", "vocab_size": size, "max_position_embeddings": 512}
    config = {**golden["config"], "text_config": text}
    (folder / "config.json").write_text(json.dumps(config))
    for name, said in golden["files"].items():
        (folder / name).write_text(json.dumps(said))
    tokenizer = {
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "added_tokens": [
            {"id": at, "content": each, "special": True}
            for at, each in enumerate(("<s>", "</s>", "<image>"))
        ],
        "model": {"type": "BPE", "vocab": vocabulary, "merges": ["z z"]},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def made(cache):
    """Whether there is a model, and an encoder, in the cache folder."""
    names = [path.name for path in cache.glob("*.gguf")]
    encoders = [name for name in names if name.startswith("mmproj-")]
    return len(names) - len(encoders), len(encoders)


def asked(engine, **options):
    content = [{"type": "image", "image": image_of(70, 50)}, {"type": "text", "text": "what?"}]
    messages = [{"role": "user", "content": content}]
    return engine.chat(messages, max_tokens=6, temperature=0, **options)


def test_the_encoder_of_a_folder_is_converted_for_the_first_image(seeing, cache):
    with oxillama.load(seeing, num_threads=1) as engine:
        assert engine.takes_images
        text = engine.generate("abc", max_tokens=4, temperature=0).tokens
        assert engine.chat([{"role": "user", "content": [{"type": "text", "text": "abc"}]}],
                           max_tokens=2).usage.prompt_tokens == 3  # fmt: skip
        assert made(cache) == (1, 0)
        reply = asked(engine)
        assert made(cache) == (1, 1) and reply.usage.prompt_tokens == 16 + 5
        found = engine.logits(engine.image_prompt([image_of(70, 50), "what?"]))
    (encoder,) = cache.glob("mmproj-*.gguf")
    stamp = encoder.stat().st_mtime_ns
    assert GgufReader(encoder).metadata["clip.projector_type"] == "mlp"
    # the same as with a file that is named
    mmproj = convert_encoder(seeing, seeing.parent / "mmproj.gguf").path
    for given in (mmproj, str(seeing), seeing):
        with oxillama.load(seeing, mmproj=given, num_threads=1) as engine:
            wanted = engine.logits(engine.image_prompt([image_of(70, 50), "what?"]))
            assert np.array_equal(found, wanted)
            assert asked(engine).content == reply.content
            assert engine.generate("abc", max_tokens=4, temperature=0).tokens == text
    assert encoder.stat().st_mtime_ns == stamp


def test_a_file_made_of_a_folder_has_an_encoder_only_in_the_cache_folder(seeing, cache):
    file = stores.located(seeing)
    with oxillama.load(file) as engine:  # as commands open what they have converted
        assert engine.takes_images and made(cache) == (1, 0)
    other = seeing.parent / "other.gguf"
    shutil.copy(file, other)
    with oxillama.load(other) as engine:
        assert not engine.takes_images
        with pytest.raises(
            EngineError, match="without mmproj, wanted mmproj= the file of its enco"
        ):
            asked(engine)
    with oxillama.load(other, mmproj=seeing) as engine:
        assert asked(engine).usage.prompt_tokens == 21


def test_folders_without_an_encoder_have_none(folder, cache):
    with oxillama.load(folder) as engine:
        assert not engine.takes_images
    with pytest.raises(ConvertError, match="'LlamaForCausalLM', wanted a known class of"):
        oxillama.load(folder, mmproj=folder)
    assert made(cache) == (1, 0)


def test_what_is_wrong_with_an_encoder_is_said_for_the_first_image(seeing, cache):
    said = json.loads((seeing / "preprocessor_config.json").read_text())
    (seeing / "preprocessor_config.json").write_text(json.dumps({**said, "resample": 2}))
    with oxillama.load(seeing) as engine:
        assert engine.generate("abc", max_tokens=2).tokens
        with pytest.raises(ConvertError, match="resample: found 2, wanted 3"):
            asked(engine)
        # it is tried again, and what is right by then is used
        (seeing / "preprocessor_config.json").write_text(json.dumps(said))
        assert asked(engine).usage.prompt_tokens == 21
    # images are turned away by their number
    engine = oxillama.load(seeing, max_images=0)
    with engine, pytest.raises(oxillama.ImageError, match="found 1 images, wanted at most 0"):
        asked(engine)


def test_an_encoder_of_another_width_is_refused(seeing, tmp_path):
    config = json.loads((seeing / "config.json").read_text())
    other = tmp_path / "other"
    shutil.copytree(seeing, other)
    config["text_config"]["hidden_size"] = 48
    (other / "config.json").write_text(json.dumps(config))
    tensors = tensors_of(seeing)
    for name in ("multi_modal_projector.linear_2.weight", "multi_modal_projector.linear_2.bias"):
        tensors[name] = np.concatenate([tensors[name], tensors[name][:16]])
    save(other / "model.safetensors", tensors)
    with pytest.raises(ModelError, match="makes rows of 48, llama takes 32"):
        oxillama.load(seeing, mmproj=other)


def test_a_changed_folder_is_converted_again(seeing, cache):
    first = stores.located_encoder(seeing)
    assert stores.located_encoder(str(seeing)) == first and made(cache) == (0, 1)
    config = json.loads((seeing / "config.json").read_text())
    (seeing / "config.json").write_text(json.dumps(config, indent=3))
    second = stores.located_encoder(seeing)
    assert second != first and made(cache) == (0, 1) and second.is_file()


def test_commands_take_folders(seeing, cache, tmp_path, capsys):
    image_of(70, 50).save(tmp_path / "cat.png")
    see = ["--image", str(tmp_path / "cat.png"), "-p", "what?", "--temp", "0", "-n", "6"]
    assert main(["run", str(seeing), "-p", "what?", "-n", "2"]) == 0 and made(cache) == (1, 0)
    capsys.readouterr()
    assert main(["run", str(seeing), *see]) == 0 and made(cache) == (1, 1)
    written = capsys.readouterr().out
    mmproj = str(convert_encoder(seeing, tmp_path / "mmproj.gguf").path)
    other = shutil.copy(stores.located(seeing), tmp_path / "other.gguf")
    for given in (mmproj, str(seeing)):
        assert main(["run", str(other), "--mmproj", given, *see]) == 0
        assert capsys.readouterr().out == written
    assert main(["run", str(other), *see]) == 1
    assert "--image: found" in capsys.readouterr().err
    assert main(["list"]) == 0 and "mmproj-" in capsys.readouterr().out
    for path in stores.converted_files():
        assert main(["rm", path.name]) == 0
    assert list(cache.iterdir()) == []


def test_serve_converts_an_encoder_under_a_bar(seeing, cache, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    given = _engine(parser().parse_args(["serve", "--mmproj", str(seeing)]))["mmproj"]
    assert "converting" in capsys.readouterr().err
    assert given == str(stores.located_encoder(seeing)) and made(cache) == (0, 1)


@pytest.fixture(params=["hub", "lmstudio", "ollama"])
def stored(request, seeing, tmp_path, monkeypatch):
    """The file of a model in a store that has its encoder too, and the encoder's."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    files = [stores.located(seeing), stores.located_encoder(seeing)]
    if request.param == "ollama":
        place, kinds = tmp_path / "home/.ollama/models", ("model", "projector")
        names = [f"sha256-{hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]
        manifest = place / "manifests/registry.ollama.ai/library/see/latest"
        manifest.parent.mkdir(parents=True)
        layers = [
            {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": name.replace("-", ":")}
            for kind, name in zip(kinds, names)
        ]
        manifest.write_text(json.dumps({"layers": layers}))
        place /= "blobs"
    else:
        place = {
            "hub": tmp_path / "hub/models--owner--see/snapshots/0123",
            "lmstudio": tmp_path / "home/.lmstudio/models/owner/see",
        }[request.param]
        names = ["see-Q8_0.gguf", "mmproj-see-F16.gguf"]
    place.mkdir(parents=True)
    for file, name in zip(files, names):
        shutil.move(file, place / name)
    shutil.rmtree(tmp_path / "cache")
    return [place / name for name in names]


def test_the_encoder_beside_a_model_in_a_store_is_its_own(stored, seeing, tmp_path, capsys):
    model, encoder = stored
    with oxillama.load(model) as engine:
        assert engine.takes_images
        found = asked(engine).content
    other = shutil.copy(model, tmp_path / "other.gguf")
    shutil.copy(encoder, tmp_path / "mmproj-other.gguf")
    with oxillama.load(other) as engine:  # a folder of one's own says nothing
        assert not engine.takes_images
    with oxillama.load(other, mmproj=encoder) as engine:
        assert asked(engine).content == found
    with oxillama.load(model, mmproj=False) as engine:
        assert not engine.takes_images
        with pytest.raises(EngineError, match="without mmproj"):
            asked(engine)
    image_of(70, 50).save(tmp_path / "cat.png")
    see = ["run", str(model), "--image", str(tmp_path / "cat.png"), "-p", "what?", "-n", "2"]
    assert main(see) == 0
    assert main([*see, "--no-mmproj"]) == 1
    assert "without an encoder (--no-mmproj)" in capsys.readouterr().err
    encoder.unlink()
    with oxillama.load(model) as engine:
        assert engine.generate("abc", max_tokens=2).tokens  # texts alone do not need it


def test_an_encoder_of_sound_alone_takes_no_images(tmp_path, folder):
    place = tmp_path / "hub/models--owner--hear/snapshots/0123"
    place.mkdir(parents=True)
    model = shutil.copy(stores.located(folder), place / "hear-Q8_0.gguf")
    with GgufWriter(place / "mmproj-F16.gguf", "clip") as file:
        file.add("clip.has_vision_encoder", False)
        file.add_tensor("a.blk.0.ln1.weight", np.ones(4, np.float32))
    with oxillama.load(model) as engine:
        assert not engine.takes_images


@pytest.mark.parametrize("given", [True, "", 3])
def test_an_encoder_is_a_path_or_false(given):
    with pytest.raises(ConfigError, match="mmproj: found .*, wanted a path"):
        oxillama.load(mmproj=given)
    with pytest.raises(ConfigError, match="image_fit: found 'pad' without mmproj"):
        oxillama.load(mmproj=False, image_fit="pad")


def test_a_server_of_a_folder_takes_images(seeing, cache):
    held = io.BytesIO()
    image_of(70, 50).save(held, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(held.getvalue()).decode()}"
    image = {"type": "image_url", "image_url": {"url": url}}
    file = str(stores.located(seeing))  # as `oxillama serve` names it
    with asking(model=file, alias="see") as server:
        body = {"model": "see", "max_tokens": 4, "temperature": 0}
        for parts, tokens in (([], 5), ([image], 21)):
            content = [*parts, {"type": "text", "text": "what?"}]
            messages = [{"role": "user", "content": content}]
            assert made(cache) == (1, 0)
            done = server.ok("/v1/chat/completions", {**body, "messages": messages})
            assert done["usage"]["prompt_tokens"] == tokens
        assert made(cache) == (1, 1)


def test_folders_and_repositories_of_files_of_encoders(seeing, tmp_path, monkeypatch):
    place = tmp_path / "files"
    place.mkdir()
    with pytest.raises(GgufNotFound, match="found no GGUF file of an image encoder"):
        stores.located_encoder(place)
    for name in ("m-Q4_0.gguf", "mmproj-m-F16.gguf"):
        (place / name).touch()
    assert stores.located_encoder(place) == place / "mmproj-m-F16.gguf"
    (place / "mmproj-m-BF16.gguf").touch()
    assert stores.located_encoder(place) == place / "mmproj-m-F16.gguf"
    (place / "mmproj-m-F16.gguf").rename(place / "mmproj-m-F32.gguf")
    with pytest.raises(ConfigError, match="several files of image encoders: .*, wanted one"):
        stores.located_encoder(place)
    assert stores.located_encoder(tmp_path / "none.gguf") == tmp_path / "none.gguf"
    import huggingface_hub

    files = {"owner/whole": [path.name for path in seeing.iterdir()],
             "owner/files": ["m-Q4_0.gguf", "mmproj-m-F16.gguf"]}  # fmt: skip
    info = lambda self, repo: SimpleNamespace(  # noqa: E731
        siblings=[SimpleNamespace(rfilename=name) for name in files[repo]]
    )
    monkeypatch.setattr(huggingface_hub, "HfApi", type("Api", (), {"model_info": info}))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: str(seeing))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repo, name: str(place / name))
    (place / "mmproj-m-F32.gguf").rename(place / "mmproj-m-F16.gguf")
    assert stores.located_encoder("owner/files") == place / "mmproj-m-F16.gguf"
    made = stores.located_encoder("owner/whole")
    assert made == stores.located_encoder(seeing)
    with oxillama.load("owner/whole") as engine:
        assert engine.takes_images
        (features,) = (
            each
            for each in engine.loaded.media.vision.pieces(image_of(70, 50))
            if isinstance(each, MediaFeatures)
        )
        assert features.rows.shape == (16, 32)
