"""The C table: what it computes, what it refuses, and that it never changes under one version."""

import ctypes
import hashlib
import re
from pathlib import Path

import cffi
import numpy as np
import pytest

import oxillama
import oxillama.capi
from oxillama import quant
from oxillama._core.matmul import matmul
from oxillama._core.panels import PackedMatrix
from tests.model.worded import worded

HEADER = (Path(oxillama.get_include()) / "oxillama.h").read_text()
# What each version of the table declares, without comments and blanks. A table that was published
# is never changed: one that differs has a new OXILLAMA_ABI_VERSION and its own line here.
PUBLISHED = {1: "917abc9211e81ae5"}

ffi = cffi.FFI()
ffi.cdef(HEADER[HEADER.index("enum {") : HEADER.index("#ifdef Py_PYTHON_H")])
ox = ffi.cast("const oxillama_api *", oxillama.capi.address())


def declared() -> str:
    text = HEADER[HEADER.index("enum {") : HEADER.index("#ifdef Py_PYTHON_H")]
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return re.sub(r"\s+", "", text)


def error() -> str:
    return ffi.string(ox.error()).decode()


def test_a_changed_table_has_a_new_version():
    version = int(re.search(r"#define OXILLAMA_ABI_VERSION (\d+)", HEADER)[1])
    assert PUBLISHED[version] == hashlib.sha256(declared().encode()).hexdigest()[:16]
    assert list(PUBLISHED) == list(range(1, version + 1))


def test_the_table_that_runs_is_the_header_s():
    assert ox.abi_version == len(PUBLISHED)
    assert ox.size == ffi.sizeof("oxillama_api")
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    assert get(oxillama.capi.table, b"oxillama.capi.table") == oxillama.capi.address()
    assert all(getattr(ox, name) for name in dir(ox))


def test_rows_are_those_of_python():
    rows = np.random.default_rng(5).standard_normal((3, 256), np.float32)
    weights = np.linspace(0.5, 2, 256, dtype=np.float32)
    for format in ("Q4_K", "Q8_0", "IQ4_NL", "BF16"):
        wanted = quant.quantize(rows, format, weights)
        blocks, back = np.empty_like(wanted), np.empty_like(rows)
        name = format.encode()
        into = ffi.from_buffer("char[]", blocks)
        importance = ffi.from_buffer("float[]", weights)
        source = ffi.from_buffer("float[]", rows)
        assert ox.quantise(name, source, 3, 256, importance, into, 2) == 0
        assert np.array_equal(blocks, wanted)
        assert ox.dequantise(name, into, 3, 256, ffi.from_buffer("float[]", back), 2) == 0
        assert np.array_equal(back, quant.dequantize(wanted, format))


def test_a_product_is_that_of_python():
    rng = np.random.default_rng(6)
    blocks = quant.quantize(rng.standard_normal((37, 256), np.float32), "Q4_K")
    x, out = rng.standard_normal((2, 256), np.float32), np.empty((2, 37), np.float32)
    matrix = ffi.new("oxillama_matrix **")
    assert ox.pack(b"Q4_K", ffi.from_buffer("char[]", blocks), 37, 256, matrix, 1) == 0
    into = ffi.from_buffer("float[]", out)
    assert ox.matmul(matrix[0], ffi.from_buffer("float[]", x), 2, into, 2) == 0
    ox.matrix_free(matrix[0])
    assert np.array_equal(out, matmul(PackedMatrix(blocks, "Q4_K", 37, 256), x))


def test_a_session_steps_and_samples_as_the_engine_does():
    with oxillama.load() as engine:
        done = engine.generate(
            "Once upon", max_tokens=12, sampler=oxillama.SamplerConfig.greedy(ignore_eos=True)
        )
        ids = engine.tokenize("Once upon")
        logits = engine.logits(ids)[-1]
    model, session = ffi.new("oxillama_model **"), ffi.new("oxillama_session **")
    assert ox.open(ffi.NULL, 2, 0, model) == 0
    vocabulary, context, count = (ffi.new("int64_t *") for _ in range(3))
    assert ox.sizes(model[0], vocabulary, context) == 0
    tokens, found = ffi.new("int32_t[16]"), np.empty(vocabulary[0], np.float32)
    assert ox.tokenise(model[0], b"Once upon", 9, 1, tokens, 16, count) == 0
    assert list(tokens[0 : count[0]]) == ids
    assert ox.session(model[0], session) == 0
    assert ox.step(session[0], tokens, count[0], ffi.from_buffer("float[]", found)) == 0
    assert np.array_equal(found, logits)
    how = ffi.new("oxillama_sampling *")
    how.size, how.top_p, how.repetition_penalty = ffi.sizeof("oxillama_sampling"), 1, 1
    drawn = []
    for _ in range(12):
        assert ox.sample(session[0], how, tokens) == 0
        drawn.append(tokens[0])
        assert ox.step(session[0], tokens, 1, ffi.NULL) == 0
    assert tuple(drawn) == tuple(done.tokens)
    ox.model_free(model[0])  # the session keeps its model
    assert ox.step(session[0], tokens, 1, ffi.NULL) == 0
    ox.session_free(session[0])


def test_the_first_tokens_of_a_session_are_what_an_encoder_reads(tmp_path):
    path, source = worded(tmp_path), [5, 9, 9, 9]
    wanted = oxillama.SamplerConfig(temperature=0, repetition_penalty=1.9)
    with oxillama.load(path) as engine:
        done = engine.generate(source, max_tokens=9, sampler=wanted)
    assert done.finish_reason == "stop"
    model, session = ffi.new("oxillama_model **"), ffi.new("oxillama_session **")
    assert ox.open(str(path).encode(), 1, 0, model) == 0 and ox.session(model[0], session) == 0
    tokens, how = ffi.new("int32_t[]", source), ffi.new("oxillama_sampling *")
    assert ox.step(session[0], tokens, len(source), ffi.NULL) == 0
    how.size, how.top_p, how.repetition_penalty = ffi.sizeof("oxillama_sampling"), 1, 1.9
    drawn = []
    while not drawn or drawn[-1] != 1:
        assert ox.sample(session[0], how, tokens) == 0
        drawn.append(tokens[0])
        assert ox.step(session[0], tokens, 1, ffi.NULL) == 0
    assert tuple(drawn[:-1]) == done.tokens
    ox.session_free(session[0])
    ox.model_free(model[0])


def test_what_cannot_be_done_is_a_status_with_a_message():
    out = ffi.new("float[]", 256)
    blocks = ffi.new("char[]", 1024)
    columns, size = ffi.new("int64_t *"), ffi.new("int64_t *")
    assert ox.format(b"Q9_9", columns, size) == -2 and "Q9_9" in error()
    assert ox.dequantise(b"Q8_0", blocks, 1, 33, out, 0) == -2 and "32" in error()
    assert ox.dequantise(b"Q8_0", ffi.NULL, 1, 32, out, 0) == -1 and "NULL" in error()
    assert ox.dequantise(b"Q8_0", blocks, -1, 32, out, 0) == -1
    assert ox.dequantise(b"Q8_0", blocks, 1, 32, out, -1) == -1
    model = ffi.new("oxillama_model **")
    assert ox.open(b"/nowhere/a.gguf", 0, 0, model) == -3 and not model[0]
    for free in (ox.matrix_free, ox.model_free, ox.session_free):
        free(ffi.NULL)


def test_too_small_a_buffer_says_how_much_is_needed():
    model, count = ffi.new("oxillama_model **"), ffi.new("int64_t *")
    assert ox.open(ffi.NULL, 1, 0, model) == 0
    assert ox.tokenise(model[0], b"Once upon a time", 16, 1, ffi.NULL, 0, count) == -7
    tokens = ffi.new("int32_t[]", count[0])
    assert ox.tokenise(model[0], b"Once upon a time", 16, 1, tokens, count[0], count) == 0
    assert ox.tokenise(model[0], b"\xff", 1, 1, tokens, 1, count) == -1 and "UTF-8" in error()
    ox.model_free(model[0])


@pytest.mark.parametrize("size", [0, 8])
def test_a_sampling_of_another_size_is_refused(size):
    model, session = ffi.new("oxillama_model **"), ffi.new("oxillama_session **")
    assert ox.open(ffi.NULL, 1, 0, model) == 0 and ox.session(model[0], session) == 0
    how, token = ffi.new("oxillama_sampling *"), ffi.new("int32_t *")
    how.size = size
    assert ox.sample(session[0], how, token) == -1 and "size" in error()
    ox.session_free(session[0])
    ox.model_free(model[0])


def test_null_is_refused_by_name_wherever_something_is_wanted():
    null = ffi.NULL
    made, session = ffi.new("oxillama_model **"), ffi.new("oxillama_session **")
    sizes, count = ffi.new("int64_t[2]"), ffi.new("int64_t *")
    blocks, values = ffi.new("char[]", 1024), ffi.new("float[]", 256)
    tokens, how = ffi.new("int32_t[]", [1, 2]), ffi.new("oxillama_sampling *")
    assert ox.open(null, 1, 0, made) == 0 and ox.session(made[0], session) == 0
    model, how.size = made[0], ffi.sizeof("oxillama_sampling")
    how.temperature = how.top_p = how.repetition_penalty = 1
    assert ox.step(session[0], tokens, 2, null) == 0
    wrong = {
        "format": [
            lambda: ox.format(null, sizes, count),
            lambda: ox.dequantise(null, blocks, 1, 32, values, 0),
            lambda: ox.quantise(null, values, 1, 32, null, blocks, 0),
            lambda: ox.pack(null, blocks, 1, 32, ffi.new("oxillama_matrix **"), 0),
        ],
        "columns": [lambda: ox.format(b"Q8_0", null, count)],
        "bytes": [lambda: ox.format(b"Q8_0", count, null)],
        "out": [
            lambda: ox.pack(b"Q8_0", blocks, 1, 32, null, 0),
            lambda: ox.open(null, 1, 0, null),
            lambda: ox.session(model, null),
        ],
        "matrix": [lambda: ox.matmul(null, values, 1, values, 0)],
        "model": [
            lambda: ox.sizes(null, sizes, count),
            lambda: ox.tokenise(null, b"a", 1, 0, tokens, 2, count),
            lambda: ox.token_bytes(null, 5, blocks, 9, count),
            lambda: ox.is_end(null, 5, ffi.new("int *")),
            lambda: ox.session(null, ffi.new("oxillama_session **")),
        ],
        "vocabulary": [lambda: ox.sizes(model, null, count)],
        "context": [lambda: ox.sizes(model, count, null)],
        "count": [
            lambda: ox.tokenise(model, b"a", 1, 0, tokens, 2, null),
            lambda: ox.token_bytes(model, 5, blocks, 9, null),
        ],
        "output": [
            lambda: ox.tokenise(model, b"a", 1, 0, null, 2, count),
            lambda: ox.token_bytes(model, 5, null, 9, count),
        ],
        "yes": [lambda: ox.is_end(model, 5, null)],
        "session": [
            lambda: ox.step(null, tokens, 1, null),
            lambda: ox.sample(null, how, tokens),
        ],
        "sampling": [lambda: ox.sample(session[0], null, tokens)],
        "token": [lambda: ox.sample(session[0], how, null)],
    }
    count[0] = 77
    for name, calls in wrong.items():
        for call in calls:
            assert call() == -1 and error() == f"{name}: found NULL, wanted a pointer"
    assert (sizes[0], sizes[1], count[0], tokens[0]) == (0, 0, 77, 1)  # nothing was written
    assert ox.sample(session[0], how, tokens) == 0
    ox.session_free(session[0])
    ox.model_free(model)
