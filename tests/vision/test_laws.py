"""What holds of every encoder: compiled as its tape means, the same bits whatever the threads and
parts.
"""

import numpy as np
import pytest

from oxillama.vision import Vision
from tests.vision import made, made_documents, made_more
from tests.vision.images import features_of, image_of

# the numpy definition of attention takes seconds for the 2520 patches of a whole image
_SMALLER = {"gemma4v": {"image_max_pixels": 24 * 48**2}}
_WRITERS = {
    **{kind: (made.write_mmproj, {"width": 48} | _SMALLER.get(kind, {})) for kind in made.KINDS},
    **{kind: (made_documents.write_mmproj, {}) for kind in made_documents.KINDS},
    **{kind: (made_more.write_more, {}) for kind in made_more.WRITERS},
}


@pytest.fixture(params=_WRITERS)
def encoder(request, tmp_path):
    """The file of an encoder of random weights."""
    write, more = _WRITERS[request.param]
    return write(tmp_path / "m.gguf", request.param, **more)


def test_compiled_encoders_are_what_their_tapes_mean(encoder):
    vision = Vision(encoder, num_threads=3)
    images = [
        each
        for size in ((56, 56), (200, 84), (61, 143))
        for each in vision.pixels(image_of(*size))[:2]
    ]
    for pixels in {each.shape: each for each in images}.values():  # an encoder of one size: one
        rows = vision.processor.rows(pixels)
        wanted = vision.encoder.reference(rows)
        found = vision.encoder.encode(rows)
        assert np.abs(found - wanted).max() <= 5e-6 * np.abs(wanted).max()


def test_features_are_the_same_bits_whatever_the_threads(encoder):
    one, four = (features_of(Vision(encoder, num_threads=n), image_of(200, 84)) for n in (1, 4))
    assert len(one) == len(four) > 0
    assert all(np.array_equal(a.rows, b.rows) for a, b in zip(one, four))


def test_features_are_the_same_bits_in_parts(encoder, monkeypatch):
    """Tapes without attention run over as many rows at a time as hold so many floats."""
    whole = features_of(Vision(encoder), image_of(400, 300))
    monkeypatch.setattr("oxillama.model.media_encoder._JOINED", 1)  # 64 rows
    parts = features_of(Vision(encoder), image_of(400, 300))
    assert len(whole) == len(parts) > 0
    assert all(np.array_equal(a.rows, b.rows) for a, b in zip(whole, parts))


def test_every_op_agrees_with_its_meaning(encoder):
    vision = Vision(encoder)
    found = list(vision.diagnose(image_of(120, 80)))
    assert len(found) == sum(len(tape.ops) for tape in vision.encoder.tapes)
    assert all(each.agrees and each.error < 1e-4 for each in found)
