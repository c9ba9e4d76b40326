"""Encoders of random weights: files that lack or exceed something, tiles."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from oxillama.errors import ImageError, ModelError
from oxillama.gguf import GgufReader
from oxillama.media import MediaFeatures
from oxillama.model.media_encoder import record_encoder
from oxillama.vision import Vision
from oxillama.vision.layout import _weights, blocks_of, interpolated, merged_rows, resampled
from oxillama.vision.processors import AnyResolution, DynamicResolution, DynamicTiles
from tests.vision.images import features_of, image_of, rewritten
from tests.vision.made import HIDDEN, write_mmproj


def test_features_of_an_image_that_comes_again_are_kept(tmp_path):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", width=48))
    first = vision.pieces(image_of(70, 50))
    assert vision.pieces(image_of(70, 50)) is first
    assert vision.pieces(image_of(70, 51)) is not first


@pytest.mark.parametrize(
    "change, said",
    (
        ({"drop": ("mm.2.bias", "mm.0.weight")}, "mm.0.weight: the file has no such tensor"),
        ({"add": {"v.extra": np.zeros(4, np.float32)}}, "v.extra: mlp has no use for this tensor"),
        ({"keys": {"clip.projector_type": "ldp"}}, "clip.projector_type: found 'ldp', wanted one"),
        (
            {"keys": {"clip.vision.patch_size": 7}},
            r"v.patch_embd.weight: file has \(32, 3, 14, 14\)",
        ),
        ({"keys": {"clip.vision.odd": 1}}, "clip.vision.odd: found 1, which clip does not use"),
        (
            {"keys": {"clip.vision.image_std": [0.5, 0.0, 0.5]}},
            "image_std: found .*, wanted numbers",
        ),
        ({"keys": {"clip.vision.feature_layer": [9]}}, "feature_layer: found .*, wanted layers"),
        (
            {"keys": {"clip.vision.mm_patch_merge_type": "spatial_unpad"}},
            "mm_patch_merge_type: found 'spatial_unpad' with 0 numbers",
        ),
    ),
)
def test_what_does_not_describe_an_encoder_is_refused_by_name(tmp_path, change, said):
    source = write_mmproj(tmp_path / "a.gguf", width=48)
    with pytest.raises(ModelError, match=said):
        Vision(rewritten(source, tmp_path / "b.gguf", **change))


def test_an_architecture_that_is_a_list_is_named():
    reader = SimpleNamespace(metadata={"general.architecture": np.array([1, 2])})
    with pytest.raises(ModelError, match="architecture: found array.*, wanted 'clip'"):
        record_encoder(reader)


@pytest.mark.parametrize(
    "kind, key, value, said",
    (
        ("lightonocr", "vision.image_max_pixels", 784, "found 784, which clip does not use"),
        ("lfm2", "vision.spatial_merge_size", 4, "found 4, which clip does not use"),
        ("gemma4v", "use_silu", True, "found True, wanted False: gemma4v has the tanh GELU"),
    ),
)
def test_keys_that_a_family_does_not_follow_are_refused(tmp_path, kind, key, value, said):
    source = write_mmproj(tmp_path / "a.gguf", kind, width=48)
    with pytest.raises(ModelError, match=f"clip.{key}: {said}"):
        Vision(rewritten(source, tmp_path / "b.gguf", keys={f"clip.{key}": value}))


def test_a_limit_of_gemma_4_may_have_one_end(tmp_path):
    source = write_mmproj(tmp_path / "a.gguf", "gemma4v", width=48)
    name, rows = "v.blk.0.ffn_up.output_min", []
    for at, least in enumerate((None, -np.inf, -1.5)):
        add = {} if least is None else {name: np.full(1, least, np.float32)}
        path = rewritten(source, tmp_path / f"{at}.gguf", drop=(name,), add=add)
        rows.append(features_of(Vision(path), image_of(40, 40))[0].rows)
    absent, infinite, whole = rows
    assert np.array_equal(absent, infinite)
    assert not np.array_equal(absent, whole)
    add = {name: np.full(1, 2, np.float32)}
    with pytest.raises(ModelError, match=f"{name}: found 2.0, wanted at most 1.25"):
        Vision(rewritten(source, tmp_path / "b.gguf", drop=(name,), add=add))


@pytest.mark.parametrize("kind", ["gemma3", "idefics3", "internvl"])
def test_a_factor_that_leaves_patches_over_is_refused_by_name(tmp_path, kind):
    source = write_mmproj(tmp_path / "a.gguf", kind, width=48)
    keys = {"clip.vision.projector.scale_factor": 3}
    with pytest.raises(ModelError, match="scale_factor: found 3, wanted a divisor of the 4 patche"):
        Vision(rewritten(source, tmp_path / "b.gguf", keys=keys))


@pytest.mark.parametrize("kind", ["mlp", "gemma3", "idefics3", "internvl"])
@pytest.mark.parametrize("image", [28, 84])
def test_positions_are_those_of_the_patches(tmp_path, kind, image):
    source = write_mmproj(tmp_path / "a.gguf", kind, width=48)
    keys = {"clip.vision.image_size": image}
    first = kind in ("mlp", "internvl")
    said = f"file has {16 + first} rows, {kind} needs {(image // 14) ** 2 + first}, of an image of"
    with pytest.raises(ModelError, match=said):
        Vision(rewritten(source, tmp_path / "b.gguf", keys=keys))


def test_tables_of_tokens_may_have_axes_of_one_before_them(tmp_path):
    """As files of InternVL have that llama.cpp's converter writes."""
    source = write_mmproj(tmp_path / "a.gguf", "internvl", width=48)
    held, names = GgufReader(source), ("v.class_embd", "v.position_embd.weight")
    add = {
        name: np.array(held.data(name)).view(np.float32).reshape(1, -1, HIDDEN) for name in names
    }
    other = rewritten(source, tmp_path / "b.gguf", drop=names, add=add)
    assert GgufReader(other).tensors["v.class_embd"].shape == (1, 1, HIDDEN)
    a, b = (features_of(Vision(path), image_of(56, 56))[0].rows for path in (source, other))
    assert np.array_equal(a, b)


@pytest.mark.parametrize("kind", ["mlp", "internvl"])
def test_the_bias_of_patches_is_not_in_the_row_of_the_class_token(tmp_path, kind):
    """It is the same as in the positions of the patches."""
    source = write_mmproj(tmp_path / "a.gguf", kind, width=48)
    bias = np.random.default_rng(7).normal(0, 1, HIDDEN).astype(np.float32)
    table = np.array(GgufReader(source).data("v.position_embd.weight")).view(np.float32)
    table = table.reshape(-1, HIDDEN).copy()
    table[1:] += bias
    paths = (
        rewritten(source, tmp_path / "b.gguf", add={"v.patch_embd.bias": bias}),
        rewritten(
            source,
            tmp_path / "c.gguf",
            drop=("v.position_embd.weight",),
            add={"v.position_embd.weight": table},
        ),
    )
    a, b = (features_of(Vision(path), image_of(56, 56))[0].rows for path in paths)
    assert np.abs(a - b).max() <= 5e-6 * np.abs(b).max()


@pytest.mark.parametrize("kind", ["mlp", "gemma3", "idefics3", "internvl"])
def test_pixels_beyond_the_last_whole_patch_are_in_none(tmp_path, kind):
    pixels = np.random.default_rng(5).normal(0, 1, (3, 69, 69)).astype(np.float32)
    found, wanted = (
        Vision(write_mmproj(tmp_path / f"{size}.gguf", kind, width=48, image=size)).features(
            pixels[:, :size, :size]
        )
        for size in (69, 56)
    )
    assert np.array_equal(found, wanted)


def test_pixels_of_another_size_are_refused(tmp_path):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", width=48))
    with pytest.raises(ImageError, match=r"found \(3, 56, 70\), wanted \(3, 56, 56\)"):
        vision.features(np.zeros((3, 56, 70), np.float32))


def test_llava_16_shows_tiles_without_their_padding(tmp_path):
    points = [56, 112, 112, 56, 112, 112]
    path = write_mmproj(
        tmp_path / "m.gguf",
        width=48,
        mm_patch_merge_type="spatial_unpad",
        image_grid_pinpoints=points,
    )
    vision = Vision(path)
    assert isinstance(vision.processor, AnyResolution)
    assert vision.processor.best((50, 100)) == (56, 112)
    assert vision.processor.best((100, 40)) == (112, 56)
    assert vision.processor.best((100, 100)) == (112, 112)
    newline = vision.encoder.vector("model.image_newline", 48)
    # 112 x 40 in 112 x 56: 8 pixels above and below, less than a patch of 14; 4 lines of 8 stay
    (made,) = features_of(vision, image_of(112, 40))
    whole, left, right = (vision.features(each) for each in vision.pixels(image_of(112, 40)))
    sheet = np.concatenate([each.reshape(4, 4, 48) for each in (left, right)], axis=1)
    cut = (4 - int(round(40 * 8 / 112, 7))) // 2
    lines = sheet[cut : 4 - cut]
    lines = np.concatenate([lines, np.tile(newline, (len(lines), 1, 1))], axis=1)
    assert np.array_equal(made.rows, np.concatenate([whole, lines.reshape(-1, 48)]))


def test_tiles_of_smolvlm_say_where_they_are(tmp_path):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", "idefics3", width=48))
    pieces = vision.pieces(image_of(100, 50))  # 112 x 56: two tiles of 56
    texts = [each for each in pieces if isinstance(each, str)]
    fake = "<fake_token_around_image>"
    assert texts == [
        f"{fake}<row_1_col_1>",
        f"{fake}<row_1_col_2>",
        f"\n\n{fake}<global-img>",
        fake,
    ]
    assert [len(each) for each in pieces if isinstance(each, MediaFeatures)] == [4, 4, 4]


def test_rows_that_a_processor_adds_are_wanted_in_their_shape(tmp_path):
    source, name = write_mmproj(tmp_path / "a.gguf", "pixtral", width=48), "v.token_embd.img_break"
    with pytest.raises(ModelError, match=f"{name}: the file has no such tensor, pixtral needs it"):
        Vision(rewritten(source, tmp_path / "b.gguf", drop=(name,)))
    add = {name: np.zeros(47, np.float32)}
    with pytest.raises(ModelError, match=rf"{name}: file has \(47,\), pixtral needs \(48,\)"):
        Vision(rewritten(source, tmp_path / "c.gguf", drop=(name,), add=add))


def test_lines_of_pixtral_end_with_a_row_but_the_last(tmp_path):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", "pixtral", width=48, image=112))
    (made,) = features_of(vision, image_of(224, 100))  # 112 x 50, in patches 8 x 4
    line = vision.encoder.vector("v.token_embd.img_break", 48)
    assert len(made) == 4 * 9 - 1
    assert all(np.array_equal(made.rows[at], line) for at in (8, 17, 26))


def test_sides_of_qwen_are_whole_features_within_the_limits():
    held = DynamicResolution(None, 14, 2, 8 * 784, 4096 * 784, "stretch")  # type: ignore[arg-type]
    assert held.sides(112, 112) == (112, 112)
    assert held.sides(97, 61) == (112, 84)
    assert held.sides(1, 1) == (84, 84)
    wide, high = held.sides(8000, 4000)
    assert wide % 28 == high % 28 == 0 and wide * high <= 4096 * 784


@pytest.mark.parametrize(
    "kind, sizes",
    (
        (
            "lfm2",
            {
                (256, 256): (256, 256),
                (61, 143): (192, 416),
                (1500, 900): (640, 384),
                (3000, 40): (3008, 32),
                (31, 2500): (32, 2496),
                (40, 40): (256, 256),
            },
        ),
        (
            "glm4v",
            {
                (61, 143): (56, 140),
                (3000, 40): (2996, 28),
                (10, 700): (28, 1960),
                (90, 91): (84, 84),
                (40, 40): (84, 84),
                (4000, 4000): (2184, 2184),
            },
        ),
        (
            "gemma4v",
            {
                (256, 256): (768, 768),
                (61, 143): (480, 1200),
                (3000, 40): (6912, 48),
                (10, 700): (96, 6720),
                (2000, 1200): (1008, 576),
            },
        ),
    ),
)
def test_sides_are_those_of_transformers(tmp_path, kind, sizes):
    held = Vision(write_mmproj(tmp_path / "m.gguf", kind, width=48)).processor
    assert {size: held.sides(*size) for size in sizes} == sizes


def test_either_name_of_a_norm_of_llama_4_is_read(tmp_path):
    source = write_mmproj(tmp_path / "a.gguf", "llama4", width=48)
    held = GgufReader(source)
    names = [name for name in held.tensors if ".ln2." in name]
    add = {
        name.replace("ln2", "attn_post_norm"): np.array(held.data(name)).view(np.float32)
        for name in names
    }
    other = rewritten(source, tmp_path / "b.gguf", drop=names, add=add)
    a, b = (features_of(Vision(path), image_of(56, 56))[0].rows for path in (source, other))
    assert len(names) == 6 and np.array_equal(a, b)


@pytest.mark.parametrize(
    "size, canvas, inner",
    (
        ((56, 56), (1, 1), (56, 56)),
        ((10, 30), (1, 1), (18, 56)),
        ((57, 56), (2, 1), (57, 56)),
        ((200, 84), (4, 2), (200, 84)),
        ((30, 300), (1, 6), (30, 300)),
        ((2000, 1200), (5, 3), (280, 168)),
        ((5000, 40), (16, 1), (896, 7)),
    ),
)
def test_canvases_are_those_of_llama_4(tmp_path, size, canvas, inner):
    """As transformers has them for tiles of 56 pixels."""
    held = Vision(write_mmproj(tmp_path / "m.gguf", "llama4", width=48)).processor
    assert (held.canvas(*size), held.inner(*size)) == (canvas, inner)


def test_tiles_of_llama_4_are_separated_and_followed_by_the_whole_image(tmp_path):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", "llama4", width=48))
    image = image_of(100, 60)
    x, y = "<|tile_x_separator|>", "<|tile_y_separator|>"
    assert [each if isinstance(each, str) else len(each) for each in vision.pieces(image)] == [
        *("<|image_start|>", 4, x, 4, y, 4, x, 4, y, "<|image|>", 4, "<|image_end|>")
    ]
    # the image is at the upper left of its canvas, which is black
    sheet = vision.processor.tiles(image)[3]
    assert sheet.getpixel((43, 3)) == image.getpixel((99, 59))
    assert sheet.getpixel((44, 3)) == sheet.getpixel((43, 4)) == (0, 0, 0)
    few = [each if isinstance(each, str) else len(each) for each in vision.pieces(image_of(40, 50))]
    assert few == ["<|image_start|>", "<|image|>", 4, "<|image_end|>"]


def test_images_of_janus_pro_are_padded_with_the_mean_of_the_file(tmp_path):
    path = write_mmproj(tmp_path / "m.gguf", "janus_pro", width=48, image_mean=[0.5, 0.25, 0.75])
    vision = Vision(path)
    before, made, after = vision.pieces(image_of(10, 700))
    assert (before, len(made), after) == ("<begin_of_image>", 16, "<end_of_image>")
    (square,) = vision.processor.tiles(image_of(10, 700))
    line = [square.getpixel((at, 30)) == (127, 63, 191) for at in range(56)]
    assert line == [True] * 21 + [False] * 14 + [True] * 21


def test_large_images_of_lfm2_are_tiles_that_say_where_they_are(tmp_path):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", "lfm2", width=48))
    assert vision.axes == 1
    # as of transformers: 2 * 256 features are the most of an image that is sent whole
    assert len(vision.pixels(image_of(724, 720))) == 1
    pieces = vision.pieces(image_of(724, 725))
    assert [each if isinstance(each, str) else len(each) for each in pieces] == [
        "<|image_start|>",
        *("<|img_row_1_col_1|>", 256, "<|img_row_1_col_2|>", 256),
        *("<|img_row_2_col_1|>", 256, "<|img_row_2_col_2|>", 256),
        *("<|img_thumbnail|>", 240, "<|image_end|>"),
    ]


def test_features_of_glm_are_at_their_rows_and_columns(tmp_path):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", "glm4v", width=48))
    assert vision.axes == 3
    before, made, after = vision.pieces(image_of(112, 56))
    assert (before, after) == ("<|begin_of_image|>", "<|end_of_image|>")
    where = [[0] * 8, [0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 2, 3, 0, 1, 2, 3]]
    assert made.positions.tolist() == where


@pytest.mark.parametrize("width, together", ((1536, False), (2560, False), (5376, True)))
def test_rows_of_gemma_4_see_each_other_in_its_larger_models(tmp_path, width, together):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", "gemma4v", width=width))
    assert vision.axes == 1
    before, made, after = vision.pieces(image_of(61, 143))
    assert (before, len(made), after) == ("<|image>", 250, "<image|>")
    assert made.together == together


def test_a_table_of_positions_that_images_exceed_is_refused(tmp_path):
    path = write_mmproj(tmp_path / "m.gguf", "gemma4v", width=48, image_max_pixels=281 * 48**2)
    with pytest.raises(ModelError, match="file has 840 places, .* needs 843"):
        Vision(path)


def test_lightonocr_writes_nothing_around_its_features(tmp_path):
    path = write_mmproj(tmp_path / "m.gguf", "lightonocr", width=48, spatial_merge_size=2)
    (made,) = Vision(path).pieces(image_of(56, 56))
    assert made.rows.shape == (4, 48)


@pytest.mark.parametrize(
    "kernel, places, values",
    (
        ("linear", 2, [0.71428573, 2.2857144]),
        ("linear", 6, [0.0, 0.5, 1.1666666, 1.8333334, 2.5, 3.0]),
        ("cubic", 2, [0.40625, 2.59375]),
        ("cubic", 6, [-0.0868056, 0.40625, 1.212963, 1.787037, 2.59375, 3.0868058]),
        ("smooth", 2, [0.5867769, 2.4132230]),
        ("smooth", 6, [-0.0657893, 0.4117647, 1.1666667, 1.8333333, 2.5882354, 3.0657897]),
        ("bilinear", 2, [0.5, 2.5]),
        ("bilinear", 3, [0.1666667, 1.5, 2.8333333]),
    ),
)
def test_positions_are_resized_as_by_torch(kernel, places, values):
    """values: of torch's interpolate, "linear" and "smooth" (cubic) with antialiasing, of 0 to 3
    along a side.
    """
    line = np.arange(4, dtype=np.float32)
    found = resampled(np.tile(line, (4, 1))[..., None], 3, places, kernel=kernel)
    assert np.allclose(found.reshape(3, places), values, atol=1e-6)


@pytest.mark.parametrize("kernel", ("linear", "bilinear", "cubic", "smooth", "faded"))
def test_positions_are_mixed_in_one_order(kernel):
    """Place by place, each product and each sum rounded; neighbours that almost cancel show it."""
    side = np.array([1, -5, 1, -5, 1, -5], np.float32)
    grid = (side[:, None] * side)[..., None] * np.float32([0.1, 0.7, 1.9])
    weights = _weights(6, 9, kernel).tolist()

    def mixed(places):
        return [sum((w * x for w, x in zip(row, places) if w), 0.0) for row in weights]

    lines = grid.astype(np.float64).transpose(2, 0, 1).tolist()
    across = [[mixed(line) for line in channel] for channel in lines]
    down = [[mixed(column) for column in zip(*channel)] for channel in across]
    wanted = np.array(down).transpose(2, 1, 0).astype(np.float32)
    assert np.array_equal(resampled(grid, 9, 9, kernel=kernel), wanted.reshape(81, 3))


def test_squares_and_windows_cover_every_patch_once():
    assert blocks_of(4, 4, 2).tolist()[1] == [2, 3, 6, 7]
    pixels = np.zeros((3, 14 * 6, 14 * 14), np.float32)
    rows = merged_rows(pixels, 14, merge=2, window=4)
    assert sorted(rows.groups.reshape(-1).tolist()) == list(range(84))
    first, last = rows.spans
    assert [(a, b) for a, b in sorted(set(zip(first.tolist(), last.tolist())))] == [
        (0, 48),
        (48, 84),
    ]
    # a feature's patches are one square of the image
    where = rows.rope[:, rows.groups]
    assert (where // 2 == where[:, :, :1] // 2).all()
    assert np.array_equal(where[0, :, 0] // 2 * 7 + where[1, :, 0] // 2, np.arange(21))


def test_positions_on_the_grid_itself_stay():
    grid = np.random.default_rng(0).normal(size=(5, 5, 3)).astype(np.float32)
    assert np.array_equal(interpolated(grid, 5, 5), grid.reshape(25, 3))
    half = interpolated(grid, 9, 9).reshape(9, 9, 3)
    assert np.allclose(half[1, 0], (grid[0, 0] + grid[1, 0]) / 2, atol=1e-6)


@pytest.mark.parametrize(
    "name, kind, more",
    (
        ("mistral3", "pixtral", {"spatial_merge_size": 2}),
        ("internvl", "internvl", {}),
        ("lfm2", "lfm2", {}),
        ("lightonocr", "lightonocr", {"spatial_merge_size": 2, "image": 112}),
        ("glm4v", "glm4v", {}),
        ("glmocr", "glm4v", {"variant": "ocr"}),
        ("gemma4v", "gemma4v", {}),
        ("janus_pro", "janus_pro", {}),
        ("llama4", "llama4", {}),
    ),
)
def test_features_are_those_of_transformers(tmp_path, name, kind, more):
    """transformers_features.npz: what these models of transformers 5.23 made of the weights of
    `made` and of our pixels; of many features every so many.
    """
    vision = Vision(write_mmproj(tmp_path / "m.gguf", kind, width=48, **more))
    with np.load(Path(__file__).parent / "transformers_features.npz") as facts:
        held = {key: facts[key] for key in facts.files if key.startswith(f"{name}_")}
    assert held
    for key, wanted in held.items():
        size, tile = key.split("_")[-2:]
        width, height = map(int, size.split("x"))
        found = vision.features(vision.pixels(image_of(width, height))[int(tile)])
        found = found[:: -(-len(found) // len(wanted))]
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_merged_lines_are_ended_too(tmp_path):
    path = write_mmproj(tmp_path / "m.gguf", "pixtral", width=48, spatial_merge_size=2)
    (features,) = features_of(Vision(path), image_of(56, 56))
    assert len(features.rows) == 2 * 3 - 1
    line = np.array(GgufReader(path).data("v.token_embd.img_break")).view(np.float32)
    assert np.array_equal(features.rows[2], line)


@pytest.mark.parametrize(
    "size, grid",
    (((448, 448), (1, 1)), ((896, 448), (2, 1)), ((800, 600), (4, 3)), ((300, 3000), (1, 10)))
    + (((1344, 1344), (3, 3)), ((500, 500), (1, 1)), ((1000, 1000), (3, 3))),
)
def test_tiles_come_nearest_to_the_ratio_of_the_sides(size, grid):
    assert DynamicTiles(None, 448, 14, 4, 1, 12, "stretch").grid(*size) == grid


@pytest.mark.parametrize(
    "kind, said",
    (
        ("qwen2.5vl_merger", {"clip.projector_type": "qwen2.5o"}),
        ("gemma4v", {"clip.audio.projector_type": "gemma4a"}),
    ),
)
def test_the_encoder_of_sound_of_an_omni_file_takes_no_part(tmp_path, kind, said):
    plain = write_mmproj(tmp_path / "a.gguf", kind, width=48)
    sound = {"a.blk.0.ln1.weight": np.ones(4, np.float32), "mm.a.fc.weight": np.ones(4, np.float32)}
    keys = {**said, "clip.has_audio_encoder": True, "clip.audio.embedding_length": 4}
    omni = rewritten(plain, tmp_path / "b.gguf", keys=keys, add=sound)
    a, b = (features_of(Vision(path), image_of(70, 50))[0].rows for path in (plain, omni))
    assert np.array_equal(a, b)
