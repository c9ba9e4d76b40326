"""JSON from strangers: what is no JSON, or more than may be, is a 400 that says so."""

import pytest

from oxillama.server.errors import ApiError
from oxillama.server.strict_json import _object, loads
from tests.server.conftest import Compared


@pytest.mark.parametrize(
    "data, value",
    [
        (b'{"a": 1}', {"a": 1}),
        (b'{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        (b'{"a": "[[[["}', {"a": "[[[["}),
        (b'{"a": [[[1]]]}', {"a": [[[1]]]}),
        (b'{"a": "\\"[[[[["}', {"a": '"[[[[['}),
        (b'{"a": [[[1]], {}, [], [2], [{}]]}', {"a": [[[1]], {}, [], [2], [{}]]}),
    ],
)
def test_json_is_read(data, value):
    assert loads(data, depth=4) == value


@pytest.mark.parametrize(
    "data, why",
    [
        (b"", "empty"),
        (b"  ", "empty"),
        (b"[]", "found an array"),
        (b"null", "found null"),
        (b"1", "found a number"),
        (b"{", "Expecting"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1e999}', "out of range"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\udfff": 1}', "surrogate"),
        (b'{"a": ["\\ud83d\\ud83d"]}', "surrogate"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b"[" * 100_000, "deeper"),
        (b'{"a":' * 100_000, "deeper"),
        (b'{"a": [[[[1]]]]}', "deeper"),
        (b'{"a": [[[]], {}, [[[1]]]]}', "deeper"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
    ],
)
def test_what_is_no_json_is_refused(data, why):
    with pytest.raises(ApiError, match=why) as caught:
        loads(data, depth=4)
    assert caught.value.status == 400
    assert caught.value.code in ("invalid_json", "json_too_deep")


def test_an_array_is_read_where_one_is_wanted():
    assert loads(b"[1]", depth=4, kind=list) == [1]
    with pytest.raises(ApiError, match="wanted a JSON array"):
        loads(b"{}", depth=4, kind=list)


def test_a_repeated_name_is_found_by_looking_at_each_name_once(monkeypatch):
    monkeypatch.setattr(Compared, "times", 0)
    names = [f"name{at}" for at in range(300)]
    with pytest.raises(ValueError, match="'name299' twice"):
        _object([(Compared(name), 0) for name in [*names, names[-1]]])
    assert Compared.times <= 300
