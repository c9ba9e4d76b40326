"""Encoders of the families in `made_more`: features beside transformers', images, files."""

import gc
import re
from pathlib import Path

import numpy as np
import pytest

from oxillama.errors import ImageError, ModelError, TemplateError
from oxillama.gguf import GgufReader
from oxillama.media import MediaFeatures
from oxillama.media.messages import MediaPart
from oxillama.media_prompts import Media, MediaPrompts, Part
from oxillama.tokenizer.provenance import from_message
from oxillama.vision import Vision
from oxillama.vision.families.minicpm import Sliced
from tests.vision.images import features_of, image_of, rewritten
from tests.vision.made_more import WRITERS, write_more

KINDS = tuple(WRITERS)


@pytest.mark.parametrize(
    "name, kind, more",
    (
        ("resampler", "resampler", {}),
        ("minicpmv46", "minicpmv4_6", {}),
        ("minicpmv46x4", "minicpmv4_6", {"scale": 2}),
        ("kimivl", "kimivl", {}),
        ("kimik25", "kimik25", {}),
        ("gemma4uv", "gemma4uv", {}),
        ("gemma3nv", "gemma3nv", {}),
        ("minimax", "minimax_m3", {}),
        ("muse", "muse-glimmer", {}),
        ("ling3vl", "ling3vl", {}),
        ("mimovl", "mimovl", {}),
    ),
)
def test_features_are_those_of_transformers(tmp_path, name, kind, more):
    """more_features.npz: what these models of transformers 5.23 made of the weights of `made_more`
    and of our pixels, of many features every so many; of the resampler, which transformers lacks,
    what Idefics 2's layers there and torch's own attention made; of Gemma 3n with timm 1.0.31,
    where transformers has its encoder from; of Ling 3 VL, which transformers lacks, Qwen3-VL with
    its products; of MiMo-V2.5, which it lacks too, torch by the published code.
    """
    vision = Vision(write_more(tmp_path / "m.gguf", kind, **more))
    with np.load(Path(__file__).parent / "more_features.npz") as facts:
        held = {key: facts[key] for key in facts.files if re.match(f"{name}_[0-9]", key)}
    assert held
    for key, wanted in held.items():
        size, tile = key.split("_")[-2:]
        width, height = map(int, size.split("x"))
        found = vision.features(vision.pixels(image_of(width, height))[int(tile)])
        found = found[:: -(-len(found) // len(wanted))]
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def shown(vision, width, height):
    """The pieces of an image, features as their number."""
    pieces = vision.pieces(image_of(width, height))
    return [len(each) if isinstance(each, MediaFeatures) else each for each in pieces]


@pytest.mark.parametrize(
    "unit, size, grid, whole, sheet",
    (
        (28, (448, 448), (0, 0), (448, 448), None),
        (56, (100, 30), (0, 0), (840, 224), None),
        (56, (449, 449), (1, 2), (448, 448), (616, 672)),
        (56, (1344, 1344), (3, 3), (448, 448), (1344, 1344)),
        (56, (2000, 600), (5, 1), (840, 224), (1960, 560)),
        (28, (61, 4000), (1, 3), (56, 3640), (84, 6300)),
        (28, (900, 300), (3, 1), (784, 252), (1344, 448)),
    ),
)
def test_slices_are_those_of_minicpm(unit, size, grid, whole, sheet):
    """As transformers has them for MiniCPM-V 4.6, with squares of 448 pixels."""
    held = Sliced(None, 448, unit, "stretch", None)  # type: ignore[arg-type]
    assert held.grid(*size) == grid
    found, *slices = held.tiles(image_of(*size))
    assert found.size == whole
    assert len(slices) == grid[0] * grid[1]
    if sheet:
        assert {each.size for each in slices} == {tuple(a // b for a, b in zip(sheet, grid))}


def test_slices_of_minicpm_follow_the_whole_image_line_by_line(tmp_path):
    vision = Vision(write_more(tmp_path / "m.gguf", "resampler"))
    assert shown(vision, 50, 60) == ["<image>", 8, "</image>"]
    cut = ["<slice>", 8, "</slice>"]
    below = ["\n<slice>", 8, "</slice>"]
    assert shown(vision, 120, 80) == ["<image>", 8, "</image>", *cut, *cut, *below, *cut]
    assert vision.image_tokens.numbered.format(3) == "<image_id>3</image_id>"


@pytest.mark.parametrize(
    "size, inner, sides",
    (
        ((50, 60), (50, 60), (56, 84)),
        ((1, 9000), (1, 7168), (28, 7168)),
        ((3000, 2000), (2202, 1468), (2212, 1484)),
        ((8000, 4000), (2538, 1269), (2548, 1288)),
    ),
)
def test_images_of_kimi_are_as_large_as_in_transformers(tmp_path, size, inner, sides):
    """The sizes of Kimi K2.5, which Kimi-VL's are but for the length of a side."""
    path = write_more(tmp_path / "a.gguf", "kimik25")
    keys = {"clip.vision.image_max_pixels": 16384 * 196}
    held = Vision(rewritten(path, tmp_path / "b.gguf", keys=keys)).processor
    assert (held.inner(*size), held.sides(*size)) == (inner, sides)
    path = write_more(tmp_path / "c.gguf", "kimivl")
    keys = {"clip.vision.image_max_pixels": 16384 * 196}
    held = Vision(rewritten(path, tmp_path / "d.gguf", keys=keys)).processor
    if max(sides) < 7168:
        assert held.sides(*size) == sides
    else:
        with pytest.raises(ImageError, match="found 1 x 9000 pixels, a side of 644 patches"):
            held.sides(*size)


def test_images_of_kimi_are_at_the_upper_left_of_black(tmp_path):
    vision = Vision(write_more(tmp_path / "m.gguf", "kimivl"))
    image = image_of(50, 60)
    begin = "<|media_start|>image<|media_content|>"
    assert shown(vision, 50, 60) == [begin, 6, "<|media_end|>"]
    (sheet,) = vision.processor.tiles(image)
    assert sheet.getpixel((49, 59)) == image.getpixel((49, 59))
    assert sheet.getpixel((50, 59)) == sheet.getpixel((49, 60)) == (0, 0, 0)


def test_a_vocabulary_of_another_family_is_refused(tmp_path):
    vision = Vision(write_more(tmp_path / "m.gguf", "kimik25"))
    said = "kimik25 marks images by '<|media_begin|>', wanted a vocabulary with this token"
    with pytest.raises(ModelError, match=re.escape(said)):
        _ = prompts_of(vision).vision


def test_rows_of_the_unified_gemma_4_see_each_other(tmp_path):
    vision = Vision(write_more(tmp_path / "m.gguf", "gemma4uv", width=1536))
    assert shown(vision, 61, 143) == ["<|image>", 250, "<image|>"]
    assert vision.pieces(image_of(61, 143))[1].together and vision.axes == 1


def test_the_end_of_an_image_of_gemma_3n_is_a_row_of_the_encoders_table(tmp_path):
    """As transformers embeds the token <end_of_image>."""
    vision = Vision(write_more(tmp_path / "m.gguf", "gemma3nv"))
    assert shown(vision, 50, 60) == ["\n\n<start_of_image>", 257, "\n\n"]
    rows = vision.pieces(image_of(50, 60))[1].rows
    assert np.array_equal(rows[:256], vision.features(vision.pixels(image_of(50, 60))[0]))
    with np.load(Path(__file__).parent / "more_features.npz") as facts:
        wanted = facts["gemma3nv_end_logits"]
    assert np.abs(rows[256] - wanted).max() <= 1e-6 * np.abs(wanted).max()


def test_bits_of_convolutions_do_not_depend_on_the_rows_of_a_step(tmp_path, monkeypatch):
    path = write_more(tmp_path / "m.gguf", "gemma3nv")
    found = []
    for joined in (1 << 16, 1 << 21, 1 << 24):
        monkeypatch.setattr("oxillama.model.media_encoder._JOINED", joined)
        found.append(features_of(Vision(path), image_of(50, 60))[0].rows)
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[1], found[2])


@pytest.mark.parametrize(
    "size, sides",
    (
        ((50, 60), (56, 56)),
        ((1, 9000), (28, 9016)),
        ((3000, 2000), (2184, 1456)),
        ((8000, 4000), (2520, 1260)),
        ((14, 14), (28, 28)),
        ((36, 27), (56, 28)),
    ),
)
def test_sides_of_muse_glimmer_are_those_of_transformers(tmp_path, size, sides):
    vision = Vision(write_more(tmp_path / "m.gguf", "muse-glimmer"))
    assert vision.processor.sides(*size) == sides
    assert shown(vision, 50, 60) == ["<|image_start|>", 4, "<|image_end|>"]


def test_images_of_minimax_have_at_most_576_features(tmp_path):
    vision = Vision(write_more(tmp_path / "m.gguf", "minimax_m3"))
    assert vision.processor.sides(2000, 1500) == (756, 560)
    assert vision.processor.sides(10, 700) == (28, 476)
    assert vision.processor.sides(10, 20) == (56, 84)
    assert shown(vision, 56, 84) == ["]<]start of image[>[", 6, "]<]end of image[>["]
    assert vision.axes == 1


def test_features_of_ling_are_at_their_rows_and_columns(tmp_path):
    vision = Vision(write_more(tmp_path / "m.gguf", "ling3vl"))
    assert vision.axes == 3
    begin, made, end = vision.pieces(image_of(112, 56))
    assert (begin, end) == ("<|vision_start|>", "<|vision_end|>")
    where = [[0] * 8, [0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 2, 3, 0, 1, 2, 3]]
    assert made.positions.tolist() == where


def test_tapes_of_an_encoder_run_on_the_same_threads(tmp_path):
    vision = Vision(write_more(tmp_path / "m.gguf", "gemma3nv"), num_threads=3)
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        pytest.skip("the system does not list threads")
    gc.collect()  # threads of encoders of other tests end now
    before = len(list(tasks.iterdir()))
    other = Vision(write_more(tmp_path / "n.gguf", "gemma3nv"), num_threads=3)
    assert len(list(tasks.iterdir())) == before + 2
    assert len(other.encoder.tapes) == len(vision.encoder.tapes) == 16


def test_either_shape_of_a_scale_of_gemma_3n_is_read(tmp_path):
    source = write_more(tmp_path / "a.gguf", "gemma3nv")
    held = GgufReader(source)
    names = [name for name in held.tensors if name.endswith("gamma")]
    add = {n: np.array(held.data(n)).view(np.float32).reshape(1, -1, 1, 1) for n in names}
    other = rewritten(source, tmp_path / "b.gguf", drop=names, add=add)
    a, b = (features_of(Vision(path), image_of(50, 60))[0].rows for path in (source, other))
    assert len(names) == 10 and np.array_equal(a, b)


class Letters:
    """A vocabulary of Unicode characters."""

    def token_to_id(self, text):
        return None

    def encode(self, text, *, add_special):
        return list(map(ord, text))


def prompts_of(vision):
    """Makes prompts with an encoder's images, at most four."""
    kinds = frozenset({"image"})
    return MediaPrompts(lambda: Media(vision), Letters(), kinds, {"image": 4, "audio": 0})


def test_images_of_minicpm_are_numbered_within_their_prompt(tmp_path):
    vision = Vision(write_more(tmp_path / "m.gguf", "resampler"))
    pieces = vision.pieces(image_of(50, 60))
    prompt = prompts_of(vision).compose([Part("image", pieces), "and", Part("image", pieces)])
    text = "".join(chr(each) if each else "." for each in prompt)
    rows = "<image>........</image>"
    assert text == f"<image_id>0</image_id>{rows}and<image_id>1</image_id>{rows}"


def test_parts_of_a_message_of_minicpm_are_lines(tmp_path):
    """As its published `chat` joins them, for a template that takes texts."""
    vision = Vision(write_more(tmp_path / "m.gguf", "resampler"))
    content = [{"type": "image"}, {"type": "text", "text": "What?"}]
    part = MediaPart("image", "messages[0].content[0]", image_of(50, 60))

    def render(messages):
        if not isinstance(messages[0]["content"], str):
            raise TemplateError("found a list, wanted text")
        return from_message(messages[0]["content"])

    text, (place,) = prompts_of(vision).render([{"content": content}], [part], render)
    assert (place.start, place.kind) == (0, "image") and text[place.stop :] == "\nWhat?"


@pytest.mark.parametrize(
    "kind, key, value, said",
    (
        ("resampler", "minicpmv_version", 2, "found 2, wanted one of 3, 4, 5, 6, 100045"),
        ("resampler", "minicpmv_query_num", 64, "found 64, wanted 8, the rows of resampler.query"),
        ("minicpmv4_6", "vision.projector.scale_factor", 3, "found 3, wanted 2 or 4"),
        ("gemma3nv", "vision.image_size", 400, "found 400, wanted a multiple of 256"),
        ("mimovl", "vision.wa_pattern_mode", [0, 2, 0, 0, 0, 0], "found 2, wanted .* -1 to 1"),
        ("minicpmv4_6", "vision.wa_layer_indexes", [0, 1], r"found \[0, 1\], wanted one layer"),
    ),
)
def test_keys_that_describe_another_encoder_are_refused(tmp_path, kind, key, value, said):
    source = write_more(tmp_path / "a.gguf", kind)
    with pytest.raises(ModelError, match=f"clip.{key}: {said}"):
        Vision(rewritten(source, tmp_path / "b.gguf", keys={f"clip.{key}": value}))
