"""The text parts of models of text and images."""

import json

import numpy as np
import pytest

from oxillama.convert import ModelFolder, convert_folder
from oxillama.convert.families.images import _reading_layers
from oxillama.convert.family import FAMILIES, Hyper
from oxillama.convert.mmproj import ENCODERS
from oxillama.convert.write import _OTHER_PARTS
from oxillama.errors import ConvertError
from oxillama.gguf import GgufReader
from tests.convert.folders import plain, save, tensors_of


def facts(place, tmp_path):
    reader = GgufReader(convert_folder(place, tmp_path / "made.gguf", "F32", name="tiny").path)
    return (
        {key: plain(value) for key, value in reader.metadata.items()},
        {name: (info.shape, bytes(reader.data(name))) for name, info in reader.tensors.items()},
    )


@pytest.mark.parametrize(
    "name, prefix, parts",
    (
        ("SmolVLMForConditionalGeneration", "model.text_model.", ("model.connector.proj.weight",)),
        ("LlavaForConditionalGeneration", "language_model.model.", ("vision_tower.a.weight",)),
        ("LlavaNextForConditionalGeneration", "model.language_model.", ("image_newline",)),
        ("LlavaOnevisionForConditionalGeneration", "model.language_model.", ("image_newline",)),
        ("LlavaNextVideoForConditionalGeneration", "model.language_model.", ("image_newline",)),
        ("VideoLlama3ForConditionalGeneration", "model.language_model.", ("vision_model.a.bias",)),
        ("VipLlavaForConditionalGeneration", "language_model.model.", ("vision_tower.a.weight",)),
        ("VoxtralForConditionalGeneration", "language_model.model.", ("audio_tower.a.weight",)),
        (
            "JanusForConditionalGeneration",
            "model.language_model.",
            ("model.generation_embeddings.weight", "model.generation_head.vision_head.weight"),
        ),
        (
            "InternVLForConditionalGeneration",
            "language_model.model.",
            ("multi_modal_projector.layer_norm.bias",),
        ),
        (
            "Qwen2AudioForConditionalGeneration",
            "language_model.model.",
            ("audio_tower.conv1.weight", "multi_modal_projector.linear.bias"),
        ),
        (
            "MERaLiON2ForConditionalGeneration",
            "text_decoder.model.",
            ("ln_speech.weight", "speech_audio_adapter.out_proj.bias", "speech_encoder.a.weight"),
        ),
        (
            "Qwen3ASRForConditionalGeneration",
            "model.language_model.",
            ("model.audio_tower.conv_out.weight", "model.multi_modal_projector.linear_1.bias"),
        ),
    ),
)
def test_a_language_model_in_a_wrapper_is_that_alone(name, prefix, parts, folder, tmp_path):
    wanted = facts(folder, tmp_path)
    config, tensors = json.loads((folder / "config.json").read_text()), tensors_of(folder)
    text = {**config, "model_type": "llama"}
    del text["architectures"]
    said = {"architectures": [name], "text_config": text, "vision_config": {"hidden_size": 8}}
    (folder / "config.json").write_text(json.dumps(said))
    held = {prefix + key.removeprefix("model."): one for key, one in tensors.items()}
    held["lm_head.weight"] = held.pop(prefix + "lm_head.weight")
    save(folder / "model.safetensors", held | dict.fromkeys(parts, np.ones((4, 4), np.float32)))
    assert facts(folder, tmp_path) == wanted
    report = convert_folder(folder, tmp_path / "made.gguf", "F32")
    assert report.architecture == "llama" and report.left_out == tuple(sorted(parts))
    said["text_config"]["model_type"] = "unheard"
    (folder / "config.json").write_text(json.dumps(said))
    with pytest.raises(ConvertError, match="text_config: model_type: found 'unheard', wanted one"):
        facts(folder, tmp_path)


def test_the_language_model_of_lfm2_audio_is_lfm2(folder, tmp_path):
    """Beside what it hears and what it speaks with."""
    config = json.loads((folder / "config.json").read_text())
    width, inner, vocab = 32, 48, config["vocab_size"]
    text = {
        **{"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "vocab_size": vocab},
        **{"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "conv_L_cache": 3},
        **{"norm_eps": 1e-5, "max_position_embeddings": 128, "rope_theta": 1e6},
        "layer_types": ["conv", "full_attention"],
    }
    shapes = {
        **{"model.embed_tokens": (vocab, width), "model.embedding_norm": (width,)},
        **{f"model.layers.{i}.{name}": (width,)
           for i in (0, 1) for name in ("operator_norm", "ffn_norm")},
        **{f"model.layers.{i}.feed_forward.w{at}": (width, inner) if at == 2 else (inner, width)
           for i in (0, 1) for at in (1, 2, 3)},
        **{"model.layers.0.conv.conv": (width, 1, 3), "model.layers.0.conv.in_proj": (96, width)},
        "model.layers.0.conv.out_proj": (width, width),
        **{f"model.layers.1.self_attn.{part}_proj": (width if part == "q" else 16, width)
           for part in "qkv"},
        "model.layers.1.self_attn.out_proj": (width, width),
        **{f"model.layers.1.self_attn.{part}_layernorm": (8,) for part in "qk"},
    }  # fmt: skip
    random = np.random.default_rng(0)
    held = {f"{name}.weight": random.normal(size=shape).astype(np.float32)
            for name, shape in shapes.items()}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(text))
    save(folder / "model.safetensors", held)
    wanted = facts(folder, tmp_path)
    whole = {"architectures": ["Lfm2AudioForConditionalGeneration"], "codebooks": 8, "lfm": text}
    (folder / "config.json").write_text(json.dumps({**whole, "encoder": {}, "depthformer": {}}))
    others = (
        *("conformer.layers.0.norm_out.bias", "audio_adapter.model.0.bias", "codebook_offsets"),
        *("audio_embedding.embedding.weight", "depth_linear.weight", "audio_loss_weights"),
        *("depthformer.layers.0.a.weight", "depth_embeddings.0.embedding.weight"),
    )
    held = {name.replace("model.", "lfm.", 1): one for name, one in held.items()}
    save(folder / "model.safetensors", held | dict.fromkeys(others, np.ones(4, np.float32)))
    assert facts(folder, tmp_path) == wanted
    report = convert_folder(folder, tmp_path / "made.gguf", "F32")
    assert report.architecture == "lfm2" and report.left_out == tuple(sorted(others))


def test_what_sees_has_a_file_of_its_own_and_what_writes_another():
    """Every class whose encoders are converted is one whose text part is, without them, but for
    Ultravox, whose language model has a folder of its own.
    """
    assert set(ENCODERS) - set(FAMILIES) == {"UltravoxModel"}
    of_all = [(name, one) for name, held in ENCODERS.items() for one in held.values()]
    for name, encoder in of_all:
        beside = ("encoder.", "model.encoder.") if name.startswith("GraniteSpeech") else ()
        for part in encoder.parts:
            for prefix in ("", "model.") if part != "vision_model.radio_model." else ("",):
                held = prefix + part + ("a.weight" if part.endswith(".") else "")
                assert _OTHER_PARTS.match(held) or held.startswith(beside), (name, held)


def granite_vision(**said):
    config = {
        "architectures": ["Granite4VisionForConditionalGeneration"],
        "model_type": "granite",
        "num_hidden_layers": 6,
        **said,
    }
    hyper = Hyper(config, "config.json")
    return FAMILIES["Granite4VisionForConditionalGeneration"].variant(hyper), hyper


def test_layers_that_read_an_image_are_said_in_the_order_of_its_projectors():
    """Logits of one made by transformers 5.23, of text alone, are the file's."""
    found, hyper = granite_vision(
        deepstack_layer_map=[[-1, 4], [-2, 0]], spatial_target_layers=[2, -1]
    )
    assert found.arch == "granite" and found.rules == FAMILIES["GraniteForCausalLM"].rules
    assert _reading_layers(hyper) == [-1, -1, 1, -1, 2, 3]
    for said, told in (
        ({"deepstack_layer_map": [[1]]}, r"deepstack_layer_map: found \[\[1\]\], wanted pairs"),
        ({"spatial_target_layers": [6]}, r"found \[6\], wanted -6 to 5"),
        ({"spatial_target_layers": [5, -1]}, r"found \[5, -1\], wanted a layer for each proj"),
    ):
        with pytest.raises(ConvertError, match=told):
            _reading_layers(granite_vision(**said)[1])
    with pytest.raises(
        ConvertError, match="model_type: found 'llama', wanted one of granite, gran"
    ):
        granite_vision(model_type="llama")


def test_what_published_folders_leave_to_transformers(tmp_path):
    """The text parts of LLaVA 1.5, Pixtral and Gemma 3 lack what is the default of their class."""
    place = tmp_path / "model"
    place.mkdir()
    for said, wanted in (
        ({"model_type": "llama", "vocab_size": 32064}, (4096, 32, 32, None, 32064)),
        ({"model_type": "mistral", "hidden_size": 5120}, (5120, 32, 32, 8, 32000)),
        ({"model_type": "gemma3_text", "hidden_size": 2560}, (2560, 26, 8, 4, 262208)),
        ({"model_type": "qwen2", "hidden_size": 2560}, (2560, None, None, None, None)),
    ):
        whole = {"architectures": ["X"], "text_config": said}
        (place / "config.json").write_text(json.dumps(whole))
        found = ModelFolder(place).config
        names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
        assert tuple(map(found.get, (*names, "vocab_size"))) == wanted


def test_rotated_parts_of_heads_of_glm_4v_are_halves():
    """Two heads of eight, half of which is rotated by neighbours."""
    config = {
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_parameters": {"partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]},
    }
    family, h = FAMILIES["Glm4vForConditionalGeneration"], Hyper(config, "config")
    one = [0, 2, 1, 3, 4, 5, 6, 7]
    for part, order in (("q", one + [8 + row for row in one]), ("k", one)):
        for end, rest in (("weight", (3,)), ("bias", ())):
            rule, _ = family.rule_of(f"model.layers.0.self_attn.{part}_proj.{end}")
            rows = np.arange(len(order), dtype=np.float32).reshape(-1, *[1] * len(rest))
            rows = np.broadcast_to(rows, (len(order), *rest))
            assert np.array_equal(rule.change(rows, h).reshape(len(order), -1)[:, 0], order)
    without = Hyper({**config, "rope_parameters": {}}, "config")
    with pytest.raises(ConvertError, match="mrope_section is missing"):
        family.keys(without, None)
