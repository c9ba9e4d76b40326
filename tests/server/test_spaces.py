"""Completions of vocabularies that put a space before a text."""

from types import SimpleNamespace

from oxillama.server.completions import _echo
from tests.tokenizer.made import spm


def test_an_echo_is_the_prompt_without_the_vocabularys_own_space():
    bridge = spm({"▁a": 0.0, "▁c": 0.0})
    model = SimpleNamespace(tokenizer=lambda: bridge)
    assert bridge.encode("a c") == [1, 259, 260]
    assert _echo(model, [1, 259, 260]) == "a c"
    assert _echo(model, None) == ""
