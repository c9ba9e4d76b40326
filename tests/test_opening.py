"""What a model is opened from: one file, one vocabulary, and neither of them guessed."""

import warnings

import pytest

import oxillama
from oxillama.errors import ConfigError, TokenizerError


@pytest.fixture(scope="module")
def data():
    return oxillama.embedded_path().read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            dict(model_path="/nowhere.gguf"),
            "model_path: found '/nowhere.gguf' and the bytes of a file",
        ),
        (
            dict(tokenizer_json="{}", tokenizer_path="/nowhere.json"),
            "tokenizer_json: found together with tokenizer_path '/nowhere.json'",
        ),
        (dict(tokenizer_json={}), "tokenizer_json: found dict"),
        (dict(threads=1), "threads: is not an argument of load_model_from_bytes"),
    ],
)
def test_bytes_beside_a_path_are_refused(data, options, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        oxillama.load_model_from_bytes(data, **options)


def test_a_tokenizer_of_broken_text_is_refused(data):
    with pytest.raises(TokenizerError, match="^tokenizer_json: byte 1 is not UTF-8"):
        oxillama.load_model_from_bytes(data, b"{\xff}")


def test_a_context_beyond_what_the_model_knows_is_told_once_a_load(data):
    text = "^context_size: found 1025 tokens, the model knows texts of 1024 and writes worse"
    with pytest.warns(oxillama.ContextWarning, match=text) as told:
        oxillama.load_model_from_bytes(data, n_ctx=1025).close()
    assert [each.filename for each in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        oxillama.load_model_from_bytes(data, n_ctx=1024).close()
        stretched = dict(rope_scaling="linear", rope_freq_scale=0.5)
        oxillama.load_model_from_bytes(data, n_ctx=2048, **stretched).close()
        with pytest.raises(oxillama.ContextWarning):
            oxillama.load_model_from_bytes(data, n_ctx=2049, **stretched)


def test_a_warning_about_a_file_stands_at_the_line_that_loads_it(data):
    at = data.index(key := b"tokenizer.ggml.padding_token_id") + len(key) + 4
    data = data[:at] + (99999).to_bytes(4, "little") + data[at + 4 :]
    with (
        pytest.warns(UserWarning, match="padding_token_id: found 99999") as told,
        oxillama.load_model_from_bytes(data),
    ):
        assert [each.filename for each in told] == [__file__]
