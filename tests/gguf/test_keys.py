"""Hyper-parameters are asked for by kind and range, and what does not fit is named."""

import math

import numpy as np
import pytest

from oxillama.errors import ModelError
from oxillama.gguf import Keys, architecture

METADATA = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "llama.block_count": 3,
    "llama.attention.head_count": 0,
    "llama.attention.head_count_kv": np.array([1, 2, 4], np.int32),
    "llama.feed_forward_length": 64,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.scaling.factor": math.inf,
    "llama.use_bias": True,
    "llama.pattern": np.array([True, False, True]),
    "llama.scales": np.array([0.5, 1.0, 2.0], np.float32),
    "llama.kind": "yarn",
    "llama.names": ["a", "b"],
    "llama.huge": 2**32 - 1,
}


@pytest.fixture
def keys():
    return Keys(METADATA)


def test_keys_are_prefixed_by_the_architecture_and_whole_at_the_root(keys):
    assert keys.arch == "llama"
    assert keys.integer("block_count") == 3
    assert keys.root.text("general.name") == "Tiny"
    assert keys.root.integer("llama.block_count") == 3
    assert "block_count" in keys and "general.name" not in keys and "general.name" in keys.root
    other = Keys(METADATA | {"qwen2.block_count": 7}, "qwen2")
    assert (other.arch, other.integer("block_count"), "use_bias" in other) == ("qwen2", 7, False)


def test_each_kind_is_read_as_what_it_is(keys):
    assert keys.number("rope.freq_base") == 10000.0
    assert keys.number("block_count") == 3.0 and type(keys.number("block_count")) is float
    assert keys.flag("use_bias") is True
    assert keys.text("kind", choices=("linear", "yarn")) == "yarn"
    assert keys.texts("names") == ("a", "b")
    assert keys.numbers("scales", count=3) == (0.5, 1.0, 2.0)
    assert keys.flags("pattern") == (True, False, True)
    assert all(type(item) is int for item in keys.integers("attention.head_count_kv"))


def test_a_per_layer_value_may_be_single_or_an_array_of_the_layers(keys):
    assert keys.per_layer("attention.head_count_kv", 3) == (1, 2, 4)
    assert keys.per_layer("feed_forward_length", 3) == (64, 64, 64)
    assert keys.per_layer("absent", 2, default=7) == (7, 7)


def test_a_default_stands_for_a_missing_key_only(keys):
    assert keys.integer("absent", default=None) is None
    assert keys.text("absent", default="x") == "x"
    for ask in (keys.number, keys.numbers, keys.integers, keys.flag, keys.flags, keys.texts):
        assert ask("absent", default=()) == ()
    # the file's 0 is the very object given as default: it must be judged all the same
    with pytest.raises(
        ModelError, match=r"llama.attention.head_count: found 0, wanted an integer from 1 to"
    ):
        keys.integer("attention.head_count", minimum=1, default=0)
    with pytest.raises(ModelError, match="found 3, wanted a boolean"):
        keys.flag("block_count", default=True)


@pytest.mark.parametrize(
    "ask, message",
    [
        (
            lambda k: k.integer("absent"),
            "llama.absent: missing, wanted an integer from 0 to 2147483647",
        ),
        (
            lambda k: k.integer("huge"),
            "llama.huge: found 4294967295, wanted an integer from 0 to 2147483647",
        ),
        (
            lambda k: k.integer("kind"),
            "llama.kind: found 'yarn', wanted an integer from 0 to 2147483647",
        ),
        (
            lambda k: k.integer("use_bias"),
            "llama.use_bias: found True, wanted an integer from 0 to 2147483647",
        ),
        (
            lambda k: k.integer("rope.freq_base"),
            "llama.rope.freq_base: found 10000.0, wanted an integer from 0 to 2147483647",
        ),
        (
            lambda k: k.integer("scales"),
            "llama.scales: found an array of 3, wanted an integer from 0 to 2147483647",
        ),
        (
            lambda k: k.number("rope.scaling.factor"),
            "llama.rope.scaling.factor: found inf, wanted a finite number",
        ),
        (
            lambda k: k.number("rope.freq_base", maximum=1),
            "llama.rope.freq_base: found 10000.0, wanted a finite number at most 1",
        ),
        (
            lambda k: k.text("kind", choices=("none", "linear")),
            "llama.kind: found 'yarn', wanted one of none, linear",
        ),
        (
            lambda k: k.integers("scales"),
            "llama.scales: found 0.5, wanted an integer from 0 to 2147483647",
        ),
        (
            lambda k: k.per_layer("attention.head_count_kv", 4),
            "llama.attention.head_count_kv: found an array of 3, wanted an array of 4 integers",
        ),
        (
            lambda k: k.per_layer("attention.head_count_kv", 3, maximum=3),
            "llama.attention.head_count_kv: found 4, wanted an integer from 0 to 3",
        ),
        (
            lambda k: k.per_layer("attention.head_count_kv", 3, minimum=2),
            "llama.attention.head_count_kv: found 1, wanted an integer from 2 to 2147483647",
        ),
        (
            lambda k: k.per_layer("feed_forward_length", 3, maximum=63),
            "llama.feed_forward_length: found 64, wanted an integer from 0 to 63",
        ),
        (
            lambda k: k.texts("scales"),
            "llama.scales: found an array of 3, wanted an array of strings",
        ),
        (lambda k: k.flags("names"), "llama.names: found 'a', wanted a boolean"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_wanted(keys, ask, message):
    with pytest.raises(ModelError) as caught:
        ask(keys)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["../../x", "Llama", "", "a b", "llama\n", "..", 3, None])
def test_an_architecture_is_a_plain_name(name):
    with pytest.raises(ModelError, match="general.architecture"):
        architecture({"general.architecture": name} if name is not None else {})
