"""Encoders made for documents: features of transformers, images and texts
around them, files that lack or exceed something.
"""

from pathlib import Path

import numpy as np
import pytest

import oxillama
from oxillama.errors import ImageError, ModelError, SnapshotIncompatible
from oxillama.media import MediaFeatures
from oxillama.media.placement import PlacedMedia, rotations
from oxillama.media.prompt import ImagePrompt
from oxillama.snapshot.media import restored_media, saved_media
from oxillama.vision import Vision
from tests.model.invented import invent
from tests.vision.images import features_of, image_of
from tests.vision.made_documents import KINDS, write_mmproj

SIZES = ((112, 56), (61, 143))


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_those_of_the_reference(tmp_path, kind):
    """transformers_documents.npz: what transformers 5.23 made of the weights of `made_documents`
    and of our pixels; of many features every so many.
    """
    vision = Vision(write_mmproj(tmp_path / "m.gguf", kind))
    with np.load(Path(__file__).parent / "transformers_documents.npz") as facts:
        held = {key: facts[key] for key in facts.files if key.rsplit("_", 2)[0] == kind}
    assert held
    for key, wanted in held.items():
        size, tile = key.split("_")[-2:]
        width, height = map(int, size.split("x"))
        found = vision.features(vision.pixels(image_of(width, height))[int(tile)])
        found = found[:: -(-len(found) // len(wanted))]
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize(
    "kind, key",
    (
        ("paddleocr", "image_min_pixels"),
        ("paddleocr", "image_max_pixels"),
        ("dots_ocr", "image_max_pixels"),
        ("dots_ocr", "projector.scale_factor"),
        ("hunyuanvl", "image_max_pixels"),
        ("exaone4_5", "image_max_pixels"),
        ("granite4_vision", "feature_layer"),
        ("granite4_vision", "projector.spatial_offsets"),
        ("granite4_vision", "image_grid_pinpoints"),
        ("youtuvl", "window_size"),
        ("youtuvl", "wa_layer_indexes"),
        ("nemotron_v2_vl", "projector.scale_factor"),
        ("step3vl", "preproc_image_size"),
        ("step3vl", "projector.scale_factor"),
        ("deepseekocr", "window_size"),
        ("deepseekocr2", "sam.head_count"),
    ),
)
def test_a_key_that_no_published_model_fixes_is_wanted(tmp_path, kind, key):
    path = write_mmproj(tmp_path / "m.gguf", kind, **{key: None})
    with pytest.raises(ModelError, match=f"clip.vision.{key}: missing"):
        Vision(path)


@pytest.mark.parametrize(
    "kind, sizes",
    (
        (
            "paddleocr",
            {
                (112, 56): (112, 56),
                (61, 143): (56, 140),
                (10, 700): (28, 1848),
                (700, 10): (1848, 28),
                (1, 199): (28, 3136),
                (27, 30): (84, 84),
                (2000, 1200): (280, 168),
            },
        ),
    ),
)
def test_sides_are_those_of_transformers(tmp_path, kind, sizes):
    held = Vision(write_mmproj(tmp_path / "m.gguf", kind)).processor
    assert {size: held.sides(*size) for size in sizes} == sizes


def test_sides_of_youtu_are_rounded_up_and_limited_by_steps(tmp_path):
    """At most 36864 patches of 16 pixels, in pairs; smaller by 0.02 while it has more."""
    held = Vision(write_mmproj(tmp_path / "m.gguf", "youtuvl")).processor
    sizes = {
        (1, 199): (32, 224),
        (64, 65): (64, 96),
        (3072, 3072): (3072, 3072),
        (3073, 3072): (3040, 3040),  # 0.98
        (4032, 3024): (3488, 2624),  # 0.86
    }
    assert {size: held.sides(*size) for size in sizes} == sizes


def test_patches_of_youtu_hold_the_colours_of_a_pixel_side_by_side(tmp_path):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", "youtuvl"))
    assert vision.axes == 1
    pixels = np.arange(3 * 32 * 64, dtype=np.float32).reshape(3, 32, 64)
    rows = vision.processor.rows(pixels)
    assert rows.rows[1, :6].tolist() == [16, 2064, 4112, 17, 2065, 4113]
    before, made, after = vision.pieces(image_of(64, 32))
    assert (before, len(made), after) == ("<|vision_start|>", 2, "<|vision_end|>")


def test_features_of_paddleocr_are_at_their_rows_and_columns(tmp_path):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", "paddleocr"))
    assert vision.axes == 3
    before, made, after = vision.pieces(image_of(112, 56))
    assert (before, after) == ("<|IMAGE_START|>", "<|IMAGE_END|>")
    where = [[0] * 8, [0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 2, 3, 0, 1, 2, 3]]
    assert made.positions.tolist() == where


def test_features_of_dots_ocr_have_one_position_each(tmp_path):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", "dots_ocr"))
    assert vision.axes == 1
    before, made, after = vision.pieces(image_of(112, 56))
    assert (before, len(made), after) == ("<|img|>", 8, "<|endofimg|>")


def test_windows_of_exaone_are_those_of_its_file(tmp_path):
    made = {}
    for size, every in ((56, 2), (112, 2), (56, 0), (56, None)):
        more = {"window_size": size, "n_wa_pattern": every}
        vision = Vision(write_mmproj(tmp_path / "m.gguf", "exaone4_5", **more))
        assert vision.axes == 1
        before, made[size, every], after = vision.pieces(image_of(112, 84))
        assert (before, len(made[size, every]), after) == ("<vision>", 12, "</vision>")
    whole = made[56, 0].rows
    # windows of 4 x 4 features hold the whole image, no pattern means no windows
    assert np.array_equal(whole, made[56, None].rows)
    assert np.abs(made[112, 2].rows - whole).max() <= 1e-5 * np.abs(whole).max()
    assert np.abs(made[56, 2].rows - whole).max() > 1e-2 * np.abs(whole).max()


def test_only_families_of_any_size_may_leave_the_size_out(tmp_path):
    path = write_mmproj(tmp_path / "m.gguf", "paddleocr", image_size=0)
    with pytest.raises(ModelError, match="clip.vision.image_size: found 0, wanted .* 14"):
        Vision(path)


def test_lines_of_hunyuan_are_ended_and_at_their_rows_and_columns(tmp_path):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", "hunyuanvl"))
    before, first, lines, last, after = vision.pieces(image_of(128, 64))
    hy = "<｜hy_place▁holder▁no▁10{}｜>"
    assert (before, after) == (hy.format(0), hy.format(1))
    assert [len(each) for each in (first, lines, last)] == [1, 2 * 5, 1]
    assert first.positions is None and last.positions is None and lines.fixed
    where = [[*range(10)], [0] * 5 + [1] * 5, [0, 1, 2, 3, 4] * 2]
    assert lines.positions.tolist() == where and lines.advance == 10
    # all ends of lines are one row
    assert np.array_equal(lines.rows[4], lines.rows[9])
    assert not np.array_equal(lines.rows[3], lines.rows[4])


def lines_of(down, across):
    row, column = np.divmod(np.arange(down * across, dtype=np.int32), np.int32(across))
    where = np.stack([np.arange(down * across, dtype=np.int32), row, column])
    return MediaFeatures(np.ones((down * across, 8), np.float32), where, fixed=True)


def test_fixed_positions_do_not_move_with_the_image():
    images = [PlacedMedia(2, lines_of(2, 3)), PlacedMedia(9, lines_of(1, 2))]
    made = rotations(images, 0, 12, axes=4)
    plain = list(range(12))
    assert made[0].tolist() == plain
    assert made[1].tolist() == [0, 1, 0, 1, 2, 0, 1, 2, 8, 0, 1, 11]
    assert made[2].tolist() == [0, 1, 0, 0, 0, 1, 1, 1, 8, 0, 0, 11]
    assert made[3].tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 8, 1, 1, 11]
    assert np.array_equal(rotations(images, 4, 7, axes=4), made[:, 4:11])


def test_fixed_positions_are_kept_in_snapshots():
    images = (PlacedMedia(2, lines_of(2, 3)), PlacedMedia(8, MediaFeatures(np.ones((1, 8), "f4"))))
    facts, held = saved_media(images)
    first, second = restored_media(facts, held, 12, 8)
    assert first.features.fixed and not second.features.fixed
    assert first.features.digest == images[0].features.digest
    moved = MediaFeatures(images[0].features.rows, images[0].features.positions)
    assert moved.digest != first.features.digest
    for wrong in ([[2, 6, 8, False, False, True]], [[2, 6, 8, True, False, False]]):
        with pytest.raises(SnapshotIncompatible, match="wanted start, rows, width"):
            restored_media(wrong, held, 12, 8)


def text_of_hunyuan(path, sections):
    keys = {"rope.dimension_count": 32, "rope.dimension_sections": sections}
    invent(path, "hunyuan_vl", changed={f"hunyuan_vl.{key}": each for key, each in keys.items()})
    return path


def test_logits_of_hunyuan_with_two_images_are_those_of_the_reference(tmp_path):
    """transformers_documents.npz: the last logits of transformers 5.23 with this encoder, where
    sections follow one another in each half of a head, as in the published code of the model.
    """
    mmproj = write_mmproj(tmp_path / "m.gguf", "hunyuanvl", width=64)
    text = text_of_hunyuan(tmp_path / "t.gguf", [4, 4, 4, 4])
    with oxillama.load(text, mmproj=mmproj, kv_type="f32") as engine:
        vision = Vision(mmproj)
        prompt = ImagePrompt([1, 5, 9])
        for size, between in (((112, 56), [7, 33]), ((61, 143), [11, 4, 62])):
            for features in features_of(vision, image_of(*size)):
                prompt.add(features, 79)
            prompt.extend(between)
        found = engine.logits(prompt)[-3:]
        with oxillama.load(
            text, mmproj=mmproj, kv_type="f32", prefill_chunk_size=5, num_threads=1
        ) as small:
            assert np.array_equal(small.logits(prompt)[-3:], found)
    with np.load(Path(__file__).parent / "transformers_documents.npz") as held:
        wanted = held["logits_hunyuanvl"]
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_a_model_that_rotates_by_fewer_positions_is_refused(tmp_path):
    mmproj = write_mmproj(tmp_path / "m.gguf", "hunyuanvl", width=64)
    text = text_of_hunyuan(tmp_path / "t.gguf", [6, 6, 4, 0])
    with pytest.raises(ModelError, match="gives rows 4 positions each, hunyuan_vl rotates by 3"):
        oxillama.load(text, mmproj=mmproj)


def test_tiles_of_deepseek_ocr_are_one_image_before_the_whole(tmp_path):
    """As the published code puts them together."""
    vision = Vision(write_mmproj(tmp_path / "m.gguf", "deepseekocr"))
    image = image_of(400, 170)  # tiles of 160: 2 across, 1 down
    made = [vision.features(each) for each in vision.pixels(image)]
    assert [len(each) for each in made] == [9, 9, 16]
    line = vision.encoder.vector("v.image_newline", 48)
    end = vision.encoder.array("v.view_seperator")[0]
    wanted = []
    for row in range(3):
        wanted += [*made[0][3 * row : 3 * row + 3], *made[1][3 * row : 3 * row + 3], line]
    for row in range(4):
        wanted += [*made[2][4 * row : 4 * row + 4], line]
    (found,) = vision.pieces(image)
    assert np.array_equal(found.rows, [*wanted, end])
    (small,) = vision.pieces(image_of(160, 100))
    assert len(small) == 4 * 5 + 1


def test_tiles_of_deepseek_ocr_2_follow_one_another(tmp_path):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", "deepseekocr2"))
    image = image_of(400, 170)  # tiles of 192
    made = [vision.features(each) for each in vision.pixels(image)]
    assert [len(each) for each in made] == [9, 9, 16]
    end = vision.encoder.array("v.view_seperator")
    (found,) = vision.pieces(image)
    assert np.array_equal(found.rows, np.concatenate([*made, end]))


@pytest.mark.parametrize(
    "kind, size, square, line",
    (
        ("deepseekocr", (96, 33), (256, 256), (84, 172)),
        ("deepseekocr2", (96, 33), (256, 256), (84, 172)),
        ("deepseekocr", (99, 100), (256, 256), None),
        ("deepseekocr2", (1, 99), (256, 256), None),
    ),
)
def test_whole_images_of_deepseek_ocr_are_padded_with_grey(tmp_path, kind, size, square, line):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", kind))
    whole = np.asarray(vision.processor.tiles(image_of(*size))[-1])
    assert whole.shape == (*square, 3)
    grey = (whole == 127).all(axis=(1, 2))
    if line is None:
        assert not grey.any()
    else:
        assert np.flatnonzero(~grey)[[0, -1]].tolist() == [line[0], line[1] - 1]


def test_pixels_of_deepseek_ocr_are_a_tile_or_a_whole(tmp_path):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", "deepseekocr"))
    with pytest.raises(ImageError, match=r"wanted \(3, 256, the same\) or \(3, 160, the same\)"):
        vision.features(np.zeros((3, 192, 192), np.float32))


@pytest.mark.parametrize(
    "kind, key, value, said",
    (
        ("deepseekocr", "sam.embedding_length", 64, "v.sam.pos_embd.weight: file has"),
        ("deepseekocr", "window_size", 5, "attn.pos_h.weight: file has .11, 16., .* needs .9, 16"),
        ("deepseekocr", "projector.scale_factor", 8, "found 8, wanted"),
        (
            "dots3note_v",
            "expert_count_per_layer",
            [0, 0, 4, 8],
            "v.blk.3.ffn_gate_inp.weight: file",
        ),
        ("dots3note_v", "expert_count_per_layer", [0, 0, 4], "expert_count_per_layer: found"),
        ("dots3note_v", "expert_count_per_layer", [0, 4, 4, 6], "v.blk.1.ffn_gate_inp.weight: the"),
        ("granite4_vision", "projector.window_side", 3, "window_side: found 3, wanted a multiple"),
        ("granite4_vision", "projector.query_side", 1, "window_side: found 4, wanted a multiple"),
        ("granite4_vision", "projector.spatial_offsets", [-1] * 5, "spatial_offsets: found"),
        ("granite4_vision", "image_grid_pinpoints", [64, 96], "found 64, 96 of 2 numbers, wanted"),
        ("granite4_vision", "feature_layer", [6] * 6, "feature_layer: found 6, wanted"),
        (
            "nemotron_v2_vl",
            "image_size",
            72,
            "position_embd.weight: file has .64, 32., .* .81, 32",
        ),
        ("step3vl", "projector.scale_factor", 2, "scale_factor: found 2, wanted 4"),
        ("step3vl", "image_size", 196, "image_size: found 196, wanted a multiple of 13"),
        ("deepseekocr2", "preproc_max_tiles", 1, "preproc_max_tiles: found 1, wanted"),
    ),
)
def test_keys_that_do_not_describe_the_tensors_are_refused(tmp_path, kind, key, value, said):
    path = write_mmproj(tmp_path / "m.gguf", kind, **{key: value})
    with pytest.raises(ModelError, match=said):
        Vision(path)


@pytest.mark.parametrize(
    "size, windows",
    (
        ((100, 150), (0, 100, 150)),
        ((112, 56), (56, 112, 56)),
        ((61, 143), (61, 61, 183)),
        ((400, 300), (126, 378, 378)),
        ((300, 20), (126, 378, 378)),
        ((700, 10), (126, 756, 756)),
        ((500, 60), (60, 540, 60)),
        ((2000, 1200), (126, 756, 504)),
        ((3000, 40), (10, 760, 10)),
    ),
)
def test_windows_of_step3_are_those_of_transformers(tmp_path, size, windows):
    held = Vision(write_mmproj(tmp_path / "m.gguf", "step3vl")).processor
    assert held.windows(size) == windows


def test_tiles_of_step3_stand_between_marks_before_the_whole(tmp_path):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", "step3vl"))
    tile = ["<patch_start>", 9, "<patch_end>"]
    line = [*tile, *tile, *tile]
    whole = ["<im_start>", 16, "<im_end>"]
    for size, wanted in (
        ((100, 150), whole),
        ((400, 300), [*line, "<patch_newline>", *line, "<patch_newline>", *line, *whole]),
        ((112, 56), [*tile, *tile, *whole]),
        ((56, 112), [*tile, "<patch_newline>", *tile, *whole]),
    ):
        pieces = vision.pieces(image_of(*size))
        assert [each if isinstance(each, str) else len(each) for each in pieces] == wanted


def test_thin_images_of_step3_are_at_the_upper_left_of_a_black_square(tmp_path):
    held = Vision(write_mmproj(tmp_path / "m.gguf", "step3vl")).processor
    image = image_of(182, 20)
    (whole,) = held.tiles(image)
    assert whole.size == (182, 182)
    assert np.array_equal(np.asarray(whole)[:20], np.asarray(image))
    assert not np.asarray(whole)[20:].any()


def test_tiles_of_nemotron_follow_one_another_before_the_whole(tmp_path):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", "nemotron_v2_vl"))
    image = image_of(128, 60)  # 2 tiles across, 1 down
    made = [vision.features(each) for each in vision.pixels(image)]
    assert [len(each) for each in made] == [16] * 3
    before, found, after = vision.pieces(image)
    assert (before, after) == ("<img>", "</img>")
    assert np.array_equal(found.rows, np.concatenate(made))
    (_, alone, _) = vision.pieces(image_of(64, 64))
    assert len(alone) == 16


def test_features_of_granite_are_queries_of_the_whole_then_of_tiles_without_padding(tmp_path):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", "granite4_vision"))
    image = image_of(112, 56)  # in 128 x 64: two tiles of 8 x 8 patches, 4 x 4 queries each
    whole, left, right = (vision.features(each) for each in vision.pixels(image))
    assert len(whole) == len(left) == len(right) == 16
    line = np.tile(vision.encoder.vector("v.image_newline", 8), 6)
    wanted = [*whole]
    for row in range(4):
        wanted += [*left[4 * row : 4 * row + 4], *right[4 * row : 4 * row + 4], line]
    (found,) = vision.pieces(image)
    assert np.array_equal(found.rows, wanted)
    (narrow,) = vision.pieces(image_of(300, 40))  # 2 of 4 lines show padding alone
    assert len(narrow) == 16 + 2 * 9


def test_projectors_of_granite_read_the_corners_that_the_file_says(tmp_path):
    path = tmp_path / "m.gguf"
    same = {"projector.spatial_offsets": [-1, -1, 0, 0, 0, 0]}
    made = [
        Vision(write_mmproj(path, "granite4_vision", **each)).features(
            np.random.default_rng(1).normal(0, 1, (3, 64, 64)).astype(np.float32)
        )
        for each in ({}, same)
    ]
    # the third projector reads the same corner in both, the fourth another one
    assert np.array_equal(made[0][:, :24], made[1][:, :24])
    assert not np.array_equal(made[0][:, 24:32], made[1][:, 24:32])


def test_logits_of_granite_with_two_images_are_those_of_transformers(tmp_path):
    """transformers_documents.npz: the last logits of transformers 5.23, which adds what three of
    four projectors make before the layers that the file of the text says.
    """
    mmproj = write_mmproj(tmp_path / "m.gguf", "granite4_vision", width=256)
    keys = {"granite.deepstack_mapping": [-1, 1, 2, 3], "granite.rope.dimension_count": 32}
    invent(tmp_path / "t.gguf", "granite", changed=keys)
    with oxillama.load(tmp_path / "t.gguf", mmproj=mmproj, kv_type="f32") as engine:
        vision = Vision(mmproj)
        prompt = ImagePrompt([1, 5, 9])
        for size, between in (((61, 143), [7, 33]), ((112, 56), [11, 4, 62])):
            for features in features_of(vision, image_of(*size)):
                prompt.add(features, 79)
            prompt.extend(between)
        found = engine.logits(prompt)[-3:]
    with np.load(Path(__file__).parent / "transformers_documents.npz") as held:
        wanted = held["logits_granite4_vision"]
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_a_text_without_layers_for_its_features_is_refused(tmp_path):
    mmproj = write_mmproj(tmp_path / "m.gguf", "granite4_vision", width=256)
    invent(tmp_path / "t.gguf", "granite")
    with pytest.raises(ModelError, match="makes rows of 256, granite takes 64"):
        oxillama.load(tmp_path / "t.gguf", mmproj=mmproj)
