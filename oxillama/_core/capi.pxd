"""The C table of `include/oxillama.h` as Cython sees it; `oxillama.capi` has the same names for everybody."""
from libc.stdint cimport int32_t, int64_t, uint64_t

cdef extern from "Python.h":
    pass

cdef extern from "oxillama.h" nogil:
    enum:
        OXILLAMA_ABI_VERSION
        OXILLAMA_OK
        OXILLAMA_INVALID
        OXILLAMA_FORMAT
        OXILLAMA_MODEL
        OXILLAMA_CONTEXT
        OXILLAMA_ENGINE
        OXILLAMA_MEMORY
        OXILLAMA_ROOM
        OXILLAMA_OTHER
    ctypedef struct oxillama_matrix:
        pass
    ctypedef struct oxillama_model:
        pass
    ctypedef struct oxillama_session:
        pass
    ctypedef struct oxillama_sampling:
        int32_t size
        int32_t top_k
        float temperature, top_p, min_p, repetition_penalty
        uint64_t seed
    ctypedef struct oxillama_api:
        int32_t abi_version
        int32_t size
        const char *(*error)() noexcept nogil
        int (*format)(const char *format, int64_t *columns, int64_t *bytes) noexcept nogil
        int (*dequantise)(const char *format, const void *blocks, int64_t rows, int64_t columns, float *out, int threads) noexcept nogil
        int (*quantise)(const char *format, const float *values, int64_t rows, int64_t columns, const float *importance, void *out,
                        int threads) noexcept nogil
        int (*pack)(const char *format, const void *blocks, int64_t rows, int64_t columns, oxillama_matrix **out, int threads) noexcept nogil
        int (*matmul)(const oxillama_matrix *matrix, const float *x, int64_t m, float *out, int threads) noexcept nogil
        void (*matrix_free)(oxillama_matrix *matrix) noexcept nogil
        int (*open)(const char *path, int threads, int64_t context, oxillama_model **out) noexcept nogil
        int (*sizes)(const oxillama_model *model, int64_t *vocabulary, int64_t *context) noexcept nogil
        void (*model_free)(oxillama_model *model) noexcept nogil
        int (*tokenise)(const oxillama_model *model, const char *text, int64_t bytes, int special, int32_t *tokens, int64_t room,
                        int64_t *count) noexcept nogil
        int (*token_bytes)(const oxillama_model *model, int32_t token, char *out, int64_t room, int64_t *count) noexcept nogil
        int (*is_end)(const oxillama_model *model, int32_t token, int *yes) noexcept nogil
        int (*session)(oxillama_model *model, oxillama_session **out) noexcept nogil
        int (*step)(oxillama_session *session, const int32_t *tokens, int64_t count, float *logits) noexcept nogil
        int (*sample)(oxillama_session *session, const oxillama_sampling *sampling, int32_t *token) noexcept nogil
        void (*session_free)(oxillama_session *session) noexcept nogil

cdef extern from "oxillama.h":
    const oxillama_api *oxillama_import() except NULL
