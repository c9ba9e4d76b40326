"""Encoders made for documents: compiled as their tapes mean, features of transformers, pictures and
texts around them, files that lack or exceed something.
"""

from pathlib import Path

import numpy as np
import pytest

from oxillama.errors import ModelError
from oxillama.vision import Vision
from tests.vision.made_documents import KINDS, write_mmproj
from tests.vision.test_encoders import features_of, picture

SIZES = ((112, 56), (61, 143))


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_encoders_are_what_their_tapes_mean(tmp_path, kind):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", kind), num_threads=3)
    for size in SIZES:
        for pixels in vision.pixels(picture(*size))[:2]:
            rows = vision.processor.rows(pixels)
            wanted = vision.encoder.reference(rows)
            found = vision.encoder.encode(rows)
            assert np.abs(found - wanted).max() <= 5e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_the_same_bits_whatever_the_threads(tmp_path, kind):
    path = write_mmproj(tmp_path / "m.gguf", kind)
    one, four = (features_of(Vision(path, num_threads=n), picture(200, 84)) for n in (1, 4))
    assert len(one) == len(four) > 0
    assert all(np.array_equal(a.rows, b.rows) for a, b in zip(one, four))


@pytest.mark.parametrize("kind", KINDS)
def test_every_op_agrees_with_its_meaning(tmp_path, kind):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", kind))
    found = list(vision.diagnose(picture(120, 80)))
    assert len(found) == len(vision.encoder.body.ops) + len(vision.encoder.head.ops)
    assert all(each.agrees and each.error < 1e-4 for each in found)


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
        found = vision.features(vision.pixels(picture(width, height))[int(tile)])
        found = found[:: -(-len(found) // len(wanted))]
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize(
    "kind, key",
    (
        ("paddleocr", "image_min_pixels"),
        ("paddleocr", "image_max_pixels"),
        ("dots_ocr", "image_max_pixels"),
        ("dots_ocr", "projector.scale_factor"),
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


def test_features_of_paddleocr_are_at_their_rows_and_columns(tmp_path):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", "paddleocr"))
    assert vision.positioned
    before, made, after = vision.pieces(picture(112, 56))
    assert (before, after) == ("<|IMAGE_START|>", "<|IMAGE_END|>")
    where = [[0] * 8, [0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 2, 3, 0, 1, 2, 3]]
    assert made.positions.tolist() == where


def test_features_of_dots_ocr_have_one_position_each(tmp_path):
    vision = Vision(write_mmproj(tmp_path / "m.gguf", "dots_ocr"))
    assert not vision.positioned
    before, made, after = vision.pieces(picture(112, 56))
    assert (before, len(made), after) == ("<|img|>", 8, "<|endofimg|>")


def test_only_families_of_any_size_may_leave_the_size_out(tmp_path):
    path = write_mmproj(tmp_path / "m.gguf", "paddleocr", image_size=0)
    with pytest.raises(ModelError, match="clip.vision.image_size: found 0, wanted .* 14"):
        Vision(path)
