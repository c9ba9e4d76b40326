"""Image encoders beside transformers: pixels of an image file, and features of those pixels."""

import json

import numpy as np
import pytest

from oxillama.media import MediaFeatures
from oxillama.vision import Vision
from tests.vision.images import NAMES, VISION, images_of_cases, png


@pytest.fixture(scope="module")
def opened():
    held = {}

    def get(name, image):
        fit = "pad" if image.endswith("_pad") else None
        if (name, fit) not in held:
            held[name, fit] = Vision(VISION / name / "mmproj-f32.gguf", fit=fit)
        return held[name, fit]

    return get


@pytest.mark.parametrize("name, image", images_of_cases())
def test_pixels_and_features_are_those_of_transformers(opened, name, image):
    vision = opened(name, image)
    with np.load(VISION / name / "vision.npz") as held:
        pixels, wanted = held[f"pixels_{image}"], held[f"hf_feat_{image}"]
    found = vision.pixels(png(image))
    assert len(found) == len(pixels)
    # a level of 255 of the widest colour, over the deviation it is divided by
    assert max(np.abs(a - b).max() for a, b in zip(found, pixels)) <= 1e-6 + 1 / 255 / 0.25
    pieces = vision.pieces(png(image))
    features = np.concatenate([each.rows for each in pieces if isinstance(each, MediaFeatures)])
    # the projection of Gemma 3 is F16 in the file, and was F32 in what made the features: see below
    bound = 5e-4 if name == "gemma3" else 1e-5
    assert np.abs(features - wanted).max() <= bound * np.abs(wanted).max()


@pytest.mark.parametrize("name", NAMES)
def test_compiled_encoders_are_what_their_tapes_mean(opened, name):
    with np.load(VISION / name / "vision.npz") as held:
        image = next(key[7:] for key in held.files if key.startswith("pixels_"))
        pixels = held[f"pixels_{image}"][0]
    vision = opened(name, image)
    rows = vision.processor.rows(pixels)
    wanted = vision.encoder.reference(rows)
    assert np.abs(vision.encoder.encode(rows) - wanted).max() <= 2e-6 * np.abs(wanted).max()


def test_features_do_not_depend_on_threads(cases):
    name = NAMES[0]
    with np.load(VISION / name / "vision.npz") as held:
        pixels = held[next(key for key in held.files if key.startswith("pixels_"))][0]
    path = VISION / name / "mmproj-f32.gguf"
    one, four = (Vision(path, num_threads=n).features(pixels) for n in (1, 4))
    assert np.array_equal(one, four)


def test_legacy_files_without_a_feature_layer_run_all_their_layers(cases):
    path = VISION / "llava15" / "mmproj-nofeature.gguf"
    with np.load(VISION / "llava15" / "vision.npz") as held:
        pixels, wanted = held["pixels_sq56"][0], held["hf_feat_sq56"]
    assert np.abs(Vision(path).features(pixels) - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_every_case_says_its_mean_and_deviation(cases, opened):
    for name in NAMES:
        said = json.loads((VISION / name / "preprocessor_config.json").read_text())
        vision = opened(name, "")
        assert np.allclose(vision._mean, said["image_mean"], atol=1e-7)
        assert np.allclose(vision._std, said["image_std"], atol=1e-7)


def test_gemmas_features_are_those_of_a_projection_that_rounds_to_the_files(cases):
    folder = VISION / "gemma3"
    vision = Vision(folder / "mmproj-f32.gguf")
    held = vision.encoder.reader
    info = held.tensors["mm.input_projection.weight"]
    weight = np.array(held.data(info.name)).view(np.float16).reshape(info.shape)
    with np.load(folder / "vision.npz") as facts:
        names = [key[8:] for key in facts.files if key.startswith("hf_feat_")]
        wanted = np.concatenate([facts[f"hf_feat_{name}"].reshape(-1, 32) for name in names])
        found = np.concatenate([vision.features(facts[f"pixels_{name}"][0]) for name in names])
    rows = found @ np.linalg.pinv(weight.astype(np.float64))  # what is projected
    missing, size = wanted - found, np.abs(wanted).max()
    assert 1e-4 < np.abs(missing).max() / size < 5e-4
    # the weights within half a step of 16 bits that come closest: accelerated projected gradients
    half = np.spacing(np.abs(weight)).astype(np.float64) / 2
    change = ahead = np.zeros(weight.shape)
    for i in range(4000):
        step = rows.T @ (rows @ ahead - missing) / np.linalg.norm(rows, 2) ** 2
        before, change = change, np.clip(ahead - step, -half, half)
        ahead = change + i / (i + 3) * (change - before)
    assert np.abs(rows @ change - missing).max() <= 1e-6 * size
