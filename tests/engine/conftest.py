"""Engines and models that several tests of this folder share."""

import pytest

import oxillama
from tests.model import tiny
from tests.snapshot.saved import small_engine


@pytest.fixture(scope="module")
def engine():
    """The embedded model on one thread."""
    with oxillama.load(num_threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """(path, engine, session, snapshot) of `saved.small_engine`."""
    with small_engine(tmp_path_factory.mktemp("model")) as found:
        yield found


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The path of a tiny llama."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny.write(path, "llama")
    return path
