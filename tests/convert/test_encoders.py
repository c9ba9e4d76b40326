"""Image encoders of folders: against what llama.cpp's converter writes for the same folder
(golden_encoders/NAME.json), and against the features of transformers.

golden_encoders/NAME.json is as golden/NAME.json (see test_families), of the encoder alone. `here`
is what differs in our file: keys (None: not there), tensors and types that are other or more, and
a part of names that is another. The two of LLaVA, which llama.cpp's converter refuses, are ours
(`made_by`); that of Gemma 3n it wrote when it was told the name of one more tensor.
encoder_features.npz: features of transformers 5.23 for the pixels of one image, of many every so
many; the folders are the goldens' with all matrices times 0.2.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from oxillama.cli import main
from oxillama.convert import ModelFolder, convert_encoder, convertible_encoders, has_encoder
from oxillama.convert.family import Keys
from oxillama.convert.mmproj import encoders_of
from oxillama.convert.safetensors import read_safetensors
from oxillama.errors import ConvertError
from oxillama.gguf import GgufReader
from oxillama.model.audio_builder import encoders as audio_encoders
from oxillama.model.image_builder import encoders
from oxillama.quant import dequantize
from oxillama.vision import Vision
from tests.convert.encoder_folders import GOLDEN, golden_of, made_of
from tests.convert.folders import folder_of, plain, save, spread
from tests.vision.images import image_of

NAMES = sorted(path.stem for path in GOLDEN.glob("*.json"))
FEATURES = dict(np.load(Path(__file__).parent / "encoder_features.npz"))


def reader_of(tmp_path, type="F32"):
    return GgufReader(convert_encoder(tmp_path / "model", tmp_path / "made.gguf", type).path)


def numbers(reader, name):
    return reader.data(name).view(np.float32).reshape(reader.tensors[name].shape)


def wanted_of(golden):
    """Keys, shapes and types of the file, and the names of the reference's tensors in it."""
    here = golden.get("here", {})
    old, new = here.get("renamed", ("", ""))
    names = {name: name.replace(old, new) for name, _ in spread(golden["tensors"])}
    shapes = {names[name]: shape for name, shape in spread(golden["tensors"])}
    shapes |= {name: tuple(shape) for name, shape in here.get("tensors", {}).items()}
    types = {**golden["types"], **here.get("types", {})}
    return {**golden["keys"], **here.get("keys", {})}, shapes, types, names


@pytest.mark.parametrize("name", NAMES)
def test_keys_tensors_and_values_are_the_reference_files(name, tmp_path):
    golden = golden_of(name)
    made_of(name, tmp_path)
    reader = reader_of(tmp_path)
    keys, shapes, types, names = wanted_of(golden)
    found = {key: plain(value) for key, value in reader.metadata.items() if key != "general.name"}
    assert found == keys
    assert reader.metadata["general.name"] == "model"
    assert {each: info.shape for each, info in reader.tensors.items()} == shapes
    for each, info in reader.tensors.items():
        assert info.type_name == types.get(each, "F32"), each
    digest = hashlib.sha256()
    for each in sorted(set(names.values()) - set(golden.get("here", {}).get("types", {}))):
        digest.update(each.encode())
        digest.update(bytes(reader.data(each)))
    assert digest.hexdigest() == golden["values"]


@pytest.mark.parametrize("name", sorted(FEATURES))
def test_features_are_those_of_transformers(name, tmp_path):
    tensors = made_of(name, tmp_path)
    smaller = {
        key: each * np.float32(0.2) if each.ndim > 1 else each for key, each in tensors.items()
    }
    save(tmp_path / "model" / "model.safetensors", smaller)
    vision = Vision(convert_encoder(tmp_path / "model", tmp_path / "made.gguf").path)
    found = vision.features(vision.pixels(image_of(61, 143))[0])
    wanted = FEATURES[name]
    found = found[:: -(-len(found) // len(wanted))] if len(found) > len(wanted) else found
    assert np.abs(found - wanted).max() <= 5e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(FEATURES)))
def test_every_other_encoder_gives_features(name, tmp_path):
    """Whose files have the reference's bytes; `tests/vision` has the features of such files."""
    made_of(name, tmp_path)
    vision = Vision(convert_encoder(tmp_path / "model", tmp_path / "made.gguf").path)
    found = vision.features(vision.pixels(image_of(61, 143))[0])
    assert found.shape[0] > 0 and found.shape[1] == vision.width
    assert np.isfinite(found).all() and found.std() > 0


# Projectors that run, but whose folders are not converted.
NOT_CONVERTED = {"dots3note_a", "dots3note_v", "ling3vl", "mimovl", "resampler"}


def test_projectors_that_run_can_be_converted():
    converted = {kind for kinds in convertible_encoders().values() for kind in kinds}
    assert converted == (set(encoders()) | set(audio_encoders())) - NOT_CONVERTED
    assert {golden_of(name)["config"]["architectures"][0] for name in NAMES} < set(
        convertible_encoders()
    )


HALVES = {"v.patch_embd.weight", "v.patch_embd.weight.1", "mm.patch_merger.weight"}


@pytest.mark.parametrize("type", ["F16", "BF16", "Q8_0"])
@pytest.mark.parametrize("name", ["gemma3", "glm4v", "internvl", "qwen2vl"])
def test_types_of_matrices(name, type, tmp_path):
    """As llama.cpp's converter has them: vectors and positions are float32, convolutions halves in
    a file of halves and float32 in others, in Gemma 3 float32 in all.
    """
    made_of(name, tmp_path)
    reader = reader_of(tmp_path, type)
    file_type = {"F16": 1, "BF16": 32, "Q8_0": 7}[type]
    assert reader.metadata["general.file_type"] == file_type
    kept = {"v.patch_embd.weight"} if name == "gemma3" else set()
    halves = HALVES | ({"mm.input_projection.weight"} if name == "gemma3" else set())
    for each, info in reader.tensors.items():
        if len(info.shape) == 1 or each in kept or "_embd" in each and each not in halves:
            wanted = "F32"
        elif each in halves:
            wanted = "F16" if type == "F16" else "F32"
        else:
            wanted = type
        assert info.type_name == wanted or info.shape[0] == 1, each
    plainly = GgufReader(convert_encoder(tmp_path / "model", tmp_path / "f32.gguf", "F32").path)
    each = next(each for each in plainly.tensors if each.endswith("ffn_down.weight"))
    shape = plainly.tensors[each].shape
    rows = reader.data(each).reshape(shape[0], -1)
    found, wanted = dequantize(rows, type), numbers(plainly, each)
    bound = {"F16": 2**-11, "BF16": 2**-8, "Q8_0": 2**-7}[type]
    assert 0 < np.abs(found - wanted).max() <= bound * np.abs(wanted).max()
    Vision(reader)


def test_rows_that_are_no_blocks_are_halves_in_a_file_of_q8_0(tmp_path):
    golden = golden_of("qwen2vl")
    golden["config"]["vision_config"]["mlp_ratio"] = 0.5
    for one in golden["folder"]:
        if ".mlp.fc" in one[0]:
            one[1] = [16 if size == 64 else size for size in one[1]]
    folder_of(golden, tmp_path / "model")
    reader = reader_of(tmp_path, "Q8_0")
    assert reader.tensors["v.blk.0.ffn_down.weight"].type_name == "F16"
    assert reader.tensors["v.blk.0.ffn_up.weight"].type_name == "Q8_0"


@pytest.mark.parametrize("name", ["gemma3", "lfm2vl", "llava15", "internvl", "qwen3vl"])
def test_names_of_every_version_of_transformers(name, tmp_path):
    """With `model.` before them or not, and the tower with or without `vision_model.`"""
    tensors = made_of(name, tmp_path)
    first = reader_of(tmp_path)
    for old, new in (("vision_tower.vision_model.", "vision_tower."), ("model.", "")):
        tensors = {
            key.removeprefix(old)
            if not new and key.startswith(old)
            else key.replace(old, new)
            if new
            else key: each
            for key, each in tensors.items()
        }
        save(tmp_path / "model" / "model.safetensors", tensors)
        other = GgufReader(convert_encoder(tmp_path / "model", tmp_path / "b.gguf", "F32").path)
        assert list(other.tensors) == list(first.tensors)
        for each in first.tensors:
            assert np.array_equal(first.data(each), other.data(each)), each


def test_bfloat16_folders_keep_their_numbers(tmp_path):
    tensors = made_of("idefics3", tmp_path)
    bits = {key: (each.view(np.uint32) >> 16).astype(np.uint16) for key, each in tensors.items()}
    save(tmp_path / "model" / "model.safetensors", bits)
    reader = reader_of(tmp_path, "auto")
    assert reader.metadata["general.file_type"] == 32
    name = "v.blk.1.attn_q.weight"
    assert reader.tensors[name].type_name == "BF16"
    theirs = tensors["model.vision_model.encoder.layers.1.self_attn.q_proj.weight"]
    assert np.array_equal(
        reader.data(name).view(np.uint16), (theirs.view(np.uint32) >> 16).reshape(-1)
    )


@pytest.mark.parametrize("name", ["pixtral", "mistral3"])
def test_the_row_after_a_line_is_the_embedding_of_its_token(name, tmp_path):
    tensors = made_of(name, tmp_path)
    table = tensors["language_model.model.embed_tokens.weight"]
    for number in (2, 5):
        said = {"added_tokens_decoder": {str(number): {"content": "[IMG_BREAK]"}}}
        (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(said))
        assert np.array_equal(numbers(reader_of(tmp_path), "v.token_embd.img_break"), table[number])
    (tmp_path / "model" / "tokenizer_config.json").unlink()
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps({"added_tokens": []}))
    with pytest.raises(ConvertError, match=r"\[IMG_BREAK\]: found token None, wanted its embed"):
        reader_of(tmp_path)


def test_layers_beyond_those_counted_are_refused(tmp_path):
    made_of("llava15", tmp_path)
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    assert config["vision_config"]["num_hidden_layers"] == 4
    config["vision_config"]["num_hidden_layers"] = 3
    path.write_text(json.dumps(config))
    told = "found tensors of layer 3, wanted those of the 3 layers that config.json counts"
    with pytest.raises(ConvertError, match=told):
        convert_encoder(tmp_path / "model", tmp_path / "a.gguf")


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_weights_that_are_no_numbers_are_refused_by_name(kind, tmp_path):
    made_of("llava15", tmp_path)
    path = tmp_path / "model" / "model.safetensors"
    tensors = {name: one.data.copy() for name, one in read_safetensors(path).items()}
    name = next(name for name in tensors if name.endswith("layers.1.mlp.fc1.weight"))
    tensors[name][0, 7] = np.nan
    save(path, tensors)
    told = r"v.blk.1.ffn_\w+.weight: number 7 is nan in F32, wanted finite numbers"
    with pytest.raises(ConvertError, match=told):
        convert_encoder(tmp_path / "model", tmp_path / "a.gguf", kind)
    assert not (tmp_path / "a.gguf").exists()


def test_layers_after_the_last_that_runs_are_left_out(tmp_path):
    made_of("llava15", tmp_path)
    report = convert_encoder(tmp_path / "model", tmp_path / "a.gguf", "F32")
    reader = GgufReader(report.path)
    assert reader.metadata["clip.vision.block_count"] == 3
    assert list(reader.metadata["clip.vision.feature_layer"]) == [3]
    assert any("layers.3." in name for name in report.left_out)
    assert any("post_layernorm" in name for name in report.left_out)
    place = tmp_path / "b"
    place.mkdir()
    made_of("llava15", place, config={"vision_feature_layer": [-3]})
    reader = reader_of(place)
    assert list(reader.metadata["clip.vision.feature_layer"]) == [2]
    assert reader.metadata["clip.vision.block_count"] == 2


@pytest.mark.parametrize(
    "name, said, keys",
    (
        ("qwen25vl", {"min_pixels": 8 * 784}, {}),
        ("qwen25vl", {"max_pixels": 1280 * 784}, {"min": 3136, "max": 1280 * 784}),
        ("qwen2vl", {"min_pixels": None, "size": {"min_pixels": 999}}, {"min": 999}),
        ("glm4v", {"size": {"shortest_edge": 12544, "longest_edge": 9633792}}, {}),
        ("glm4v", {"size": {"shortest_edge": 20001, "longest_edge": 4e6}}, "longest_edge: found"),
        (
            "glm4v",
            {"size": {"shortest_edge": 20001, "longest_edge": 4000001}},
            {"min": 10001, "max": 2000000},
        ),
        ("gemma4", {"max_soft_tokens": 140}, {"max": 140 * 48**2}),
        ("lfm2vl", {"max_image_tokens": 512}, {"max": 512 * 32**2}),
    ),
)
def test_limits_of_an_image_are_the_folders(name, said, keys, tmp_path):
    golden = golden_of(name)
    golden["files"]["preprocessor_config.json"] |= said
    folder_of(golden, tmp_path / "model")
    if isinstance(keys, str):
        with pytest.raises(ConvertError, match=keys):
            reader_of(tmp_path)
        return
    reader = reader_of(tmp_path)
    start, end = "clip.vision.image_", "_pixels"
    assert {
        key[len(start) : -len(end)]: value
        for key, value in reader.metadata.items()
        if key.startswith(start) and key.endswith(end)
    } == keys
    Vision(reader)


def test_positions_of_radio_are_interpolated_between_the_corners(tmp_path):
    """12 x 12 in the folder, 8 x 8 in the file: as torch with aligned corners, to the last bits."""
    tensors = made_of("nemotron2vl", tmp_path)
    name = "vision_model.radio_model.model.patch_generator.pos_embed"
    grid = tensors[name].reshape(12, 12, 32).astype(np.float64)
    found = numbers(reader_of(tmp_path), "v.position_embd.weight").reshape(8, 8, 32)
    at = np.arange(8) * 11 / 7
    low = np.minimum(at.astype(int), 10)
    over = (at - low)[:, None]
    along = grid[:, low] * (1 - over) + grid[:, low + 1] * over
    over = over[:, :, None]
    wanted = along[low] * (1 - over) + along[low + 1] * over
    assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()
    tensors[name] = tensors[name][:, :-1]
    save(tmp_path / "model" / "model.safetensors", tensors)
    with pytest.raises(ConvertError, match=r"\(1, 143, 32\), wanted those of a square"):
        reader_of(tmp_path)


@pytest.mark.parametrize("file", ("preprocessor_config", "config"))
def test_colours_of_nemotron_are_found_where_folders_have_them(file, tmp_path):
    golden = golden_of("nemotron2vl")
    said = golden["files"]["preprocessor_config.json"]
    for name in ("mean", "std"):
        del said[f"image_{name}"]
    place = golden["config"] if file == "config" else said
    place |= {"norm_mean": [0.5, 0.25, 0.5], "norm_std": [0.5, 0.5, 0.25]}
    folder_of(golden, tmp_path / "model")
    found = reader_of(tmp_path).metadata
    assert list(found["clip.vision.image_mean"]) == [0.5, 0.25, 0.5]
    assert list(found["clip.vision.image_std"]) == [0.5, 0.5, 0.25]
    del place["norm_std"]
    (tmp_path / "b").mkdir()
    folder_of(golden, tmp_path / "b" / "model")
    with pytest.raises(ConvertError, match="image_std: found None, wanted three numbers"):
        reader_of(tmp_path / "b")


def test_tiles_of_deepseek_ocr_are_those_of_the_class(tmp_path):
    for name, most in (("DeepseekOCRForCausalLM", 9), ("UnlimitedOCRForCausalLM", 32)):
        (tmp_path / name).mkdir()
        made_of("deepseekocr", tmp_path / name, config={"architectures": [name]})
        reader = reader_of(tmp_path / name)
        assert reader.metadata["clip.vision.preproc_max_tiles"] == most
        vision = Vision(reader)
        assert len(vision.pixels(image_of(2000, 100))) == 1 + min(20, most)
    path = tmp_path / name / "model" / "config.json"
    config = json.loads(path.read_text())
    del config["vision_config"]["width"]["sam_vit_b"]
    path.write_text(json.dumps(config))
    with pytest.raises(ConvertError, match="wanted an object with sam_vit_b"):
        reader_of(tmp_path / name)


def test_large_images_of_lfm2_may_lack_the_whole(tmp_path):
    made_of("lfm2vl", tmp_path, preprocessor_config={"use_thumbnail": False})
    reader = reader_of(tmp_path)
    assert reader.metadata["clip.vision.use_thumbnail"] is False
    vision = Vision(reader)
    pieces = vision.pieces(image_of(1500, 900))
    assert len(vision.pixels(image_of(1500, 900))) == 6  # 3 x 2 tiles
    texts = [each for each in pieces if isinstance(each, str)]
    assert texts[1] == "<|img_row_1_col_1|>" and texts[-2:] == [
        "<|img_row_2_col_3|>",
        "<|image_end|>",
    ]


def test_settings_of_images_may_be_in_the_processors_file(tmp_path):
    made_of("gemma3", tmp_path)
    place = tmp_path / "model"
    said = json.loads((place / "preprocessor_config.json").read_text())
    first = reader_of(tmp_path).metadata
    (place / "preprocessor_config.json").unlink()
    with pytest.raises(ConvertError, match=r"preprocessor_config.json: image_mean: found None"):
        reader_of(tmp_path)
    (place / "processor_config.json").write_text(json.dumps({"image_processor": said}))
    assert dict(reader_of(tmp_path).metadata).keys() == dict(first).keys()


@pytest.mark.parametrize(
    "name, changes, said",
    (
        (
            "gemma3",
            {"config": {"architectures": ["Gemma3ForCausalLM"]}},
            "found 'Gemma3ForCausalLM'",
        ),
        (
            "qwen2vl",
            {"vision": {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}},
            "rope_type: found 'linear', wanted 'default'",
        ),
        ("gemma3", {"config": {"architectures": ["Unheard"]}}, "found 'Unheard', wanted a known"),
        ("gemma3", {"config": {"vision_config": None}}, "vision_config is missing, wanted that"),
        ("gemma3", {"config": {"mm_tokens_per_image": 5}}, "found 5, wanted the square of a"),
        ("gemma3", {"preprocessor_config": {"do_pan_and_scan": True}}, "scan: found True, wanted"),
        ("gemma3", {"preprocessor_config": {"resample": 3}}, "resample: found 3, wanted 2"),
        ("gemma3", {"preprocessor_config": {"rescale_factor": 1.0}}, "rescale_factor: found 1.0"),
        ("gemma3", {"preprocessor_config": {"size": {"height": 70}}}, "height: found 70, wanted 5"),
        ("smolvlm", {"preprocessor_config": {"do_image_splitting": False}}, "wanted True"),
        # sizes that other image processors are told; a number is a square
        *(
            (name, {"preprocessor_config": {key: value}}, told)
            for name, key, value, told in (
                ("gemma3", "size", 56, None),
                ("gemma3", "size", 28, "size: height: found 28, wanted 56"),
                ("gemma3", "size", {"shortest_edge": 56}, "wanted height and width"),
                ("gemma3", "size", {"height": 56, "width": 56, "longest_edge": None}, None),
                ("janus", "size", "56", "size: found '56', wanted height and width"),
                ("internvl", "size", {"longest_edge": 56}, "size: found .*, wanted height and wid"),
                ("gemma3n", "size", {"longest_edge": 256}, "size: found .*, wanted height and wid"),
                ("smolvlm", "size", {"height": 112, "width": 112}, "wanted longest_edge"),
                ("smolvlm", "max_image_size", 56, "max_image_size: found 56, wanted longest_edge"),
                ("pixtral", "size", 112, "size: found 112, wanted longest_edge"),
                ("pixtral", "size", {"height": 84, "width": 84}, "wanted longest_edge"),
                ("pixtral", "patch_size", 28, "patch_size: found 28, wanted 14"),
                ("pixtral", "patch_size", {"height": 14, "width": 14}, None),
                (
                    "pixtral",
                    "patch_size",
                    {"height": 14, "width": 28},
                    "width: found 28, wanted 14",
                ),
                ("llava15", "size", 56, None),
                ("llava15", "size", 28, "size: height: found 28, wanted 56"),
                ("llava15", "size", {"shortest_edge": 28}, "shortest_edge: found 28, wanted 56"),
                ("llava15", "crop_size", {"height": 56, "width": 28}, "width: found 28, wanted 56"),
                (
                    "qwen2vl",
                    "size",
                    {"height": 56, "width": 56},
                    "wanted shortest_edge and min_pix",
                ),
                ("qwen2vl", "temporal_patch_size", 1, "temporal_patch_size: found 1, wanted 2"),
            )
        ),
        ("internvl", {"config": {"downsample_ratio": 0.3}}, "downsample_ratio: found 0.3, wanted"),
        ("lfm2vl", {"preprocessor_config": {"tile_size": 256}}, "tile_size: found 256, wanted 512"),
        ("mistral3", {"config": {"rms_norm_eps": 1e-6}}, None),
        (
            "mistral3",
            {"config": {"text_config": {"hidden_size": 32, "rms_norm_eps": 1e-6}}},
            "rms_norm_eps: found 1e-06, wanted 1e-05",
        ),
        ("llava15", {"config": {"vision_feature_layer": -1}}, "found -1, wanted layers before"),
        ("llava15", {"config": {"vision_feature_select_strategy": "full"}}, "wanted 'default'"),
        ("llama4", {"preprocessor_config": {"max_patches": 4}}, "max_patches: found 4, wanted 16"),
        ("janus", {"preprocessor_config": {"min_size": 20}}, "min_size: found 20, wanted 14"),
        (
            "gemma4",
            {"config": {"text_config": {"hidden_size": 32}}},
            "use_bidirectional_attention: found None with embeddings of 32, wanted 'vision'",
        ),
        (
            "gemma4uv",
            {"config": {"text_config": {"hidden_size": 32}}},
            "use_bidirectional_attention: found None, wanted 'vision'",
        ),
        ("gemma4uv", {"vision": {"model_patch_size": 16}}, "model_patch_size: found 16, wanted 12"),
        ("kimivl", {"vision": {"init_pos_emb_width": 32}}, "emb_width: found 32, wanted 64"),
        ("kimivl", {"preprocessor_config": {"pad_input": False}}, "pad_input: found False, wanted"),
        ("kimivl", {"preprocessor_config": {"in_token_limit": 0}}, "found 0, wanted at least one"),
        ("kimik25", {"vision": {"merge_type": "none"}}, "merge_type: found 'none', wanted 'sd2_tp"),
        ("kimik25", {"vision": {"projector_ln_eps": 1e-6}}, "ln_eps: found 1e-06, wanted 1e-05"),
        ("minimax_m3", {"vision": {"spatial_merge_size": 3}}, "merge_size: found 3, wanted 2"),
        ("minimax_m3", {"vision": {"hidden_act": "relu"}}, "hidden_act: found 'relu', wanted"),
        ("minimax_m3", {"preprocessor_config": {"patch_size": 16}}, "patch_size: found 16, wanted"),
        ("muse_glimmer", {"vision": {"layer_types": ["full_attention"] * 6}}, "every fourth and"),
        ("muse_glimmer", {"vision": {"patch_temporal": 1}}, "patch_temporal: found 1, wanted 2"),
        ("minicpmv46", {"preprocessor_config": {"downsample_mode": "2x"}}, "wanted '4x' or '16x'"),
        ("minicpmv46", {"config": {"downsample_mode": "4x"}}, "mode: found '4x', wanted '16x'"),
        ("minicpmv46", {"preprocessor_config": {"max_slice_nums": 4}}, "found 4, wanted 9"),
        ("dots_ocr", {"vision": {"is_causal": True}}, "is_causal: found True, wanted False"),
        ("dots_ocr", {"preprocessor_config": {"max_pixels": None}}, "max_pixels: found None, want"),
        (
            "exaone45",
            {"vision": {"fullatt_block_indexes": [1, 2]}},
            "wanted every n-th of 3",
        ),
        (
            "gemma3n",
            {"vision": {"architecture": "resnet50"}},
            "architecture: found 'resnet50', wan",
        ),
        ("gemma3n", {"vision": {"vocab_offset": 9}}, "eoi_token_id: found 8, wanted 9"),
        (
            "gemma3n",
            {"preprocessor_config": {"size": {"height": 128, "width": 256}}},
            "size: width:",
        ),
        ("paddleocr", {"vision": {"spatial_merge_size": 4}}, "merge_size: found 4, wanted 2"),
        ("pixtral", {"vision": {"hidden_act": "gelu"}}, "found 'gelu', wanted 'silu' or 'gelu_py"),
        ("pixtral", {"vision": {"hidden_act": None}}, "found 'gelu', wanted 'silu' or 'gelu_py"),
        ("mistral3", {"vision": {"hidden_act": "gelu_pytorch_tanh"}}, None),
        ("step3vl", {"vision": {"hidden_act": "gelu"}}, "found 'gelu', wanted 'quick_gelu'"),
        ("step3vl", {"config": {"understand_projector_stride": 1}}, "stride: found 1, wanted 2"),
        ("youtuvl", {"vision": {"fullatt_block_indexes": [3]}}, "wanted layers of 3"),
        ("youtuvl", {"preprocessor_config": {"max_num_patches": 256}}, "found 256, wanted 36864"),
        (
            "granite4vision",
            {"config": {"downsample_rate": "4"}},
            "found '4', wanted two sides",
        ),
        ("granite4vision", {"config": {"deepstack_layer_map": [[1]]}}, "wanted pairs of layers"),
        ("granite4vision", {"config": {"deepstack_layer_map": [[0, 0]]}}, "found 0, wanted one"),
        (
            "granite4vision",
            {"config": {"qformer_config": {"num_hidden_layers": 2}}},
            "qformer_config: num_hidden_layers: found 2, wanted 1",
        ),
        ("granite4vision", {"config": {"image_grid_pinpoints": []}}, "wanted pairs of sides"),
        ("nemotron2vl", {"config": {"downsample_ratio": 0.3}}, "wanted one divided by an integer"),
        ("nemotron2vl", {"preprocessor_config": {"max_num_tiles": 6}}, "tiles: found 6, wanted 12"),
    ),
)
def test_what_the_file_cannot_express_is_refused_by_name(name, changes, said, tmp_path):
    made_of(name, tmp_path, **changes)
    if said is None:  # the language model's value counts, not that of the whole
        reader_of(tmp_path)
        return
    with pytest.raises(ConvertError, match=said):
        reader_of(tmp_path)
    assert not (tmp_path / "made.gguf").exists()


def test_folders_that_lack_or_exceed_something_are_refused_by_name(tmp_path):
    tensors = made_of("qwen3vl", tmp_path)
    path = tmp_path / "model" / "model.safetensors"
    for change, said in (
        ({"model.visual.merger.linear_fc1.weight": None}, "mm.0.weight: the file has no"),
        ({"model.visual.odd.weight": np.ones(4, np.float32)}, "odd.weight .4.: qwen3vl_merger has"),
        ({"model.visual.blocks.0.norm1.weight": np.ones(4, np.float32)}, "ln1.weight: file has"),
        ({"visual.merger.norm.bias": np.ones(32, np.float32)}, "are both v.post_ln.bias"),
        ({"model.visual.patch_embed.proj.weight": np.ones((32, 3, 1, 16, 16), np.float32)},
         "wanted two frames"),
    ):  # fmt: skip
        held = {key: each for key, each in {**tensors, **change}.items() if each is not None}
        save(path, held)
        with pytest.raises(ConvertError, match=said):
            reader_of(tmp_path)
    save(path, {key: each for key, each in tensors.items() if "visual" not in key})
    with pytest.raises(ConvertError, match="found no tensors of an encoder, wanted those of"):
        reader_of(tmp_path)
    with pytest.raises(ConvertError, match="type: found 'Q4_K_M', wanted auto, F32, F16, BF16 or"):
        convert_encoder(tmp_path / "model", tmp_path / "made.gguf", "Q4_K_M")
    assert not (tmp_path / "made.gguf").exists()


def test_whether_a_folder_has_an_encoder(tmp_path):
    made_of("gemma3", tmp_path)
    assert has_encoder(tmp_path / "model")
    for config in ({"vision_config": None}, {"architectures": ["Gemma3ForCausalLM"]}):
        place = tmp_path / str(len(config))
        place.mkdir(exist_ok=True)
        said = {**golden_of("gemma3")["config"], **config}
        (place / "config.json").write_text(json.dumps(said))
        assert not has_encoder(place)


def test_the_command_writes_the_file_of_an_encoder(tmp_path, capsys):
    made_of("gemma3", tmp_path)
    place, target = str(tmp_path / "model"), tmp_path / "mmproj.gguf"
    assert main(["convert", place, str(target), "--mmproj", "--type", "F16"]) == 0
    assert ": gemma3, 55 tensors, " in capsys.readouterr().out
    assert GgufReader(target).metadata["general.file_type"] == 1
    assert main(["convert", "--list", "--mmproj"]) == 0
    assert "SmolVLMForConditionalGeneration          idefics3" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["convert", place, str(target), "--mmproj", "-t", "2"])


def test_keys_of_configurations_that_transformers_saved(cases, tmp_path):
    """Those of files that llama.cpp's converter made of the same models."""
    own = {
        "qwen2vl": {"vision.feed_forward_length", "vision.image_min_pixels"},
        "qwen25vl": {"vision.image_min_pixels", "vision.image_max_pixels", "vision.window_size"},
        "qwen3vl": {"vision.image_min_pixels", "vision.image_max_pixels"},
    }
    seen = 0
    for place in sorted((cases / "vision").iterdir()):
        if not (place / "mmproj-f32.gguf").exists():
            continue
        held = tmp_path / place.name
        held.mkdir()
        for theirs, ours in (("hf_config", "config"), ("preprocessor_config",) * 2):
            (held / f"{ours}.json").write_bytes((place / f"{theirs}.json").read_bytes())
        encoder, hyper = encoders_of(ModelFolder(held))["vision"]
        keys = Keys("clip")
        encoder.family.keys(hyper, keys)
        found = {key.removeprefix("clip."): plain(value) for key, (value, _) in keys.found.items()}
        wanted = {
            key.removeprefix("clip."): plain(value)
            for key, value in GgufReader(place / "mmproj-f32.gguf").metadata.items()
            if key.startswith("clip.")
        }
        differing = {key for key in found | wanted if found.get(key) != wanted.get(key)}
        assert differing <= own.get(place.name, set()), place.name
        seen += 1
    assert seen == 7
