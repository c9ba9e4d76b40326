"""Engines that several tests of this folder share."""

import pytest

import oxillama


@pytest.fixture(scope="module")
def engine():
    """The embedded model on one thread."""
    with oxillama.load(num_threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def half(files):
    """The target of a module's `files` loaded with their draft, which is right now and then."""
    target, draft = files
    with oxillama.load(target, num_threads=1, speculative=draft) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain(files):
    """The target alone."""
    with oxillama.load(files[0], num_threads=1, speculative=False) as engine:
        yield engine
