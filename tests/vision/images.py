"""Images for encoders of random weights, their features, files that lack something, and the cases
of encoders beside transformers.
"""

import numpy as np
from PIL import Image

from oxillama.gguf import GgufReader, GgufWriter
from oxillama.media import MediaFeatures
from tests.conftest import CASES

VISION = CASES / "vision"
NAMES = sorted(path.parent.name for path in VISION.glob("*/vision.npz"))


def image_of(width, height):
    """An image of random pixels."""
    rng = np.random.default_rng(width * 1000 + height)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


def features_of(vision, image):
    """The features among what stands in a prompt for an image."""
    return [each for each in vision.pieces(image) if isinstance(each, MediaFeatures)]


def rewritten(source, path, *, drop=(), keys=None, add=None):
    """A copy of an mmproj file without some tensors, with other keys and more tensors."""
    held = GgufReader(source)
    with GgufWriter(path, "clip") as file:
        for name, value in {**held.metadata, **(keys or {})}.items():
            if name.startswith("clip."):
                file.add(name, value)
        for name, tensor in held.tensors.items():
            if name not in drop:
                shape = tuple(tensor.shape)
                file.add_tensor(name, np.array(held.data(name)).view(np.float32).reshape(shape))
        for name, values in (add or {}).items():
            file.add_tensor(name, values)
    return path


def images_of_cases():
    """(case, image) of every image with features."""
    found = []
    for name in NAMES:
        with np.load(VISION / name / "vision.npz") as held:
            found += [(name, key[8:]) for key in held.files if key.startswith("hf_feat_")]
    return found


def png(image):
    """The bytes of a case's image."""
    return (VISION / "images" / f"{image.removesuffix('_pad')}.png").read_bytes()
