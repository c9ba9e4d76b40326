"""The C table of `include/oxillama.h`: every entry takes the GIL, calls what `install` was given, and turns what that raises into a status.

`table` is the capsule; `address()` is the same pointer as a number, for ctypes and cffi. `oxillama.capi` installs itself.
"""
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint64_t, uintptr_t
from libc.string cimport memcpy

import numpy as np

cdef extern from *:
    """
    #include "Python.h"
    #include "oxillama.h"
    #include <string.h>
    static _Thread_local char ox_message[1024];
    static const char *ox_error(void) { return ox_message; }
    static void ox_say(const char *text, size_t size) {
        if (size >= sizeof ox_message) size = sizeof ox_message - 1;
        memcpy(ox_message, text, size);
        ox_message[size] = 0;
    }
    """
    const char *ox_error() noexcept nogil
    void ox_say(const char *text, size_t size) noexcept nogil

cdef extern from "oxillama.h" nogil:
    const char *OXILLAMA_CAPSULE

cdef object calls = None         # the module of `install`


def install(object module) -> None:
    """The Python functions behind the table: `oxillama.capi`."""
    global calls
    calls = module


cdef int _failed(object error) noexcept:
    """The status of what was raised, its message kept for `error`."""
    cdef bytes text
    try:
        text = f"{error}".encode("utf-8", "replace") or type(error).__name__.encode()
        ox_say(text, len(text))
        return calls.status(error)
    except BaseException:
        ox_say(b"the error has no message", 24)
        return OXILLAMA_OTHER


cdef int _given(const void *pointer, str name) except -1:
    """Refuses NULL."""
    if pointer == NULL:
        raise ValueError(f"{name}: found NULL, wanted a pointer")
    return 0


cdef int _fill(object data, void *out, int64_t capacity, int64_t *count, int64_t unit) except? -100:
    """Copies bytes of `unit` bytes an item into `out`, or says how many there are."""
    cdef bytes found = data
    if capacity > 0:
        _given(out, "output")
    count[0] = len(found) // unit
    if count[0] > capacity:
        text = f"capacity: found {capacity}, wanted {count[0]}".encode()
        ox_say(text, len(text))
        return OXILLAMA_ROOM
    if len(found):
        memcpy(out, <const char *>found, len(found))
    return OXILLAMA_OK


cdef int c_format(const char *format, int64_t *columns, int64_t *size) noexcept nogil:
    with gil:
        try:
            _given(format, "format")
            _given(columns, "columns")
            _given(size, "bytes")
            columns[0], size[0] = calls.format_sizes(<bytes>format)
            return OXILLAMA_OK
        except BaseException as error:
            return _failed(error)


cdef int c_dequantise(const char *format, const void *blocks, int64_t rows, int64_t columns, float *out, int threads) noexcept nogil:
    with gil:
        try:
            _given(format, "format")
            calls.dequantise(<bytes>format, <uintptr_t>blocks, rows, columns, <uintptr_t>out, threads)
            return OXILLAMA_OK
        except BaseException as error:
            return _failed(error)


cdef int c_quantise(const char *format, const float *values, int64_t rows, int64_t columns, const float *importance, void *out,
                    int threads) noexcept nogil:
    with gil:
        try:
            _given(format, "format")
            calls.quantise(<bytes>format, <uintptr_t>values, rows, columns, <uintptr_t>importance, <uintptr_t>out, threads)
            return OXILLAMA_OK
        except BaseException as error:
            return _failed(error)


cdef int c_pack(const char *format, const void *blocks, int64_t rows, int64_t columns, oxillama_matrix **out, int threads) noexcept nogil:
    with gil:
        try:
            _given(format, "format")
            _given(out, "out")
            made = calls.pack(<bytes>format, <uintptr_t>blocks, rows, columns, threads)
            Py_INCREF(made)
            out[0] = <oxillama_matrix *><PyObject *>made
            return OXILLAMA_OK
        except BaseException as error:
            return _failed(error)


cdef int c_matmul(const oxillama_matrix *matrix, const float *x, int64_t m, float *out, int threads) noexcept nogil:
    with gil:
        try:
            _given(matrix, "matrix")
            calls.matmul(<object><PyObject *>matrix, <uintptr_t>x, m, <uintptr_t>out, threads)
            return OXILLAMA_OK
        except BaseException as error:
            return _failed(error)


cdef void c_matrix_free(oxillama_matrix *matrix) noexcept nogil:
    with gil:
        Py_XDECREF(<PyObject *>matrix)


cdef int c_open(const char *path, int threads, int64_t context, oxillama_model **out) noexcept nogil:
    with gil:
        try:
            _given(out, "out")
            made = calls.Model(None if path == NULL else <bytes>path, threads, context)
            Py_INCREF(made)
            out[0] = <oxillama_model *><PyObject *>made
            return OXILLAMA_OK
        except BaseException as error:
            return _failed(error)


cdef int c_sizes(const oxillama_model *model, int64_t *vocabulary, int64_t *context) noexcept nogil:
    with gil:
        try:
            _given(model, "model")
            _given(vocabulary, "vocabulary")
            _given(context, "context")
            vocabulary[0], context[0] = (<object><PyObject *>model).sizes()
            return OXILLAMA_OK
        except BaseException as error:
            return _failed(error)


cdef void c_model_free(oxillama_model *model) noexcept nogil:
    with gil:
        Py_XDECREF(<PyObject *>model)


cdef int c_tokenise(const oxillama_model *model, const char *text, int64_t size, int special, int32_t *tokens, int64_t capacity,
                    int64_t *count) noexcept nogil:
    with gil:
        try:
            _given(model, "model")
            _given(count, "count")
            found = (<object><PyObject *>model).tokenise(bytes(calls.view(<uintptr_t>text, size)), special != 0)
            return _fill(np.asarray(found, np.int32).tobytes(), tokens, capacity, count, sizeof(int32_t))
        except BaseException as error:
            return _failed(error)


cdef int c_token_bytes(const oxillama_model *model, int32_t token, char *out, int64_t capacity, int64_t *count) noexcept nogil:
    with gil:
        try:
            _given(model, "model")
            _given(count, "count")
            return _fill((<object><PyObject *>model).token_bytes(token), out, capacity, count, 1)
        except BaseException as error:
            return _failed(error)


cdef int c_is_end(const oxillama_model *model, int32_t token, int *yes) noexcept nogil:
    with gil:
        try:
            _given(model, "model")
            _given(yes, "yes")
            yes[0] = (<object><PyObject *>model).is_end(token)
            return OXILLAMA_OK
        except BaseException as error:
            return _failed(error)


cdef int c_session(oxillama_model *model, oxillama_session **out) noexcept nogil:
    with gil:
        try:
            _given(model, "model")
            _given(out, "out")
            made = calls.ModelSession(<object><PyObject *>model)
            Py_INCREF(made)
            out[0] = <oxillama_session *><PyObject *>made
            return OXILLAMA_OK
        except BaseException as error:
            return _failed(error)


cdef int c_step(oxillama_session *session, const int32_t *tokens, int64_t count, float *logits) noexcept nogil:
    with gil:
        try:
            _given(session, "session")
            (<object><PyObject *>session).step(<uintptr_t>tokens, count, <uintptr_t>logits)
            return OXILLAMA_OK
        except BaseException as error:
            return _failed(error)


cdef int c_sample(oxillama_session *session, const oxillama_sampling *sampling, int32_t *token) noexcept nogil:
    with gil:
        try:
            _given(session, "session")
            _given(sampling, "sampling")
            _given(token, "token")
            if sampling.size != sizeof(oxillama_sampling):
                raise ValueError(f"sampling: found a size of {sampling.size}, wanted {sizeof(oxillama_sampling)}")
            token[0] = (<object><PyObject *>session).sample(
                sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.repetition_penalty, sampling.seed)
            return OXILLAMA_OK
        except BaseException as error:
            return _failed(error)


cdef void c_session_free(oxillama_session *session) noexcept nogil:
    with gil:
        try:
            if session != NULL:
                (<object><PyObject *>session).close()
        except BaseException as error:
            _failed(error)
        Py_XDECREF(<PyObject *>session)


cdef oxillama_api _table
_table.abi_version, _table.size = OXILLAMA_ABI_VERSION, sizeof(oxillama_api)
_table.error, _table.format, _table.dequantise, _table.quantise = ox_error, c_format, c_dequantise, c_quantise
_table.pack, _table.matmul, _table.matrix_free = c_pack, c_matmul, c_matrix_free
_table.open, _table.sizes, _table.model_free = c_open, c_sizes, c_model_free
_table.tokenise, _table.token_bytes, _table.is_end = c_tokenise, c_token_bytes, c_is_end
_table.session, _table.step, _table.sample, _table.session_free = c_session, c_step, c_sample, c_session_free

table = PyCapsule_New(&_table, OXILLAMA_CAPSULE, NULL)
STATUS = {
    "invalid": OXILLAMA_INVALID, "format": OXILLAMA_FORMAT, "model": OXILLAMA_MODEL, "context": OXILLAMA_CONTEXT,
    "engine": OXILLAMA_ENGINE, "memory": OXILLAMA_MEMORY, "other": OXILLAMA_OTHER,
}


def address() -> int:
    """The address of the table, for ctypes and cffi."""
    return <uintptr_t>&_table
