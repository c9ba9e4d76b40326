"""Engines that several tests of this folder share."""

import pytest

import oxillama


@pytest.fixture(scope="module")
def engine():
    """The embedded model on one thread."""
    with oxillama.load(num_threads=1) as engine:
        yield engine
