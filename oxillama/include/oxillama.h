/* oxillama for C: a table of functions, found at run time in a capsule of the Python package; nothing is linked.
 *
 *     #include <Python.h>
 *     #include <oxillama.h>
 *     const oxillama_api *ox = oxillama_import();     // with the GIL; NULL with a Python error set
 *     if (ox->dequantise("Q4_0", blocks, rows, columns, out, 0) != OXILLAMA_OK)
 *         fprintf(stderr, "%s\n", ox->error());
 *
 * Compile with the include path that `python -c "import oxillama; print(oxillama.get_include())"` prints.
 *
 * Every function may be called with or without the GIL, from any thread; it takes the GIL for what it checks and gives it back while it
 * computes. It returns OXILLAMA_OK or a negative status, and `error` then says what was found and what was wanted. Nothing is written to an
 * output when the status is negative. Rows lie one after another; `threads` 0 is the default number. Handles are freed by the function beside
 * the one that made them; NULL is allowed there.
 *
 * A table is only ever extended at its end, and each change gives it a new OXILLAMA_ABI_VERSION: code that was compiled against an older
 * version runs on a newer table.
 */
#ifndef OXILLAMA_H
#define OXILLAMA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OXILLAMA_ABI_VERSION 1
#define OXILLAMA_CAPSULE "oxillama.capi.table"

enum {
    OXILLAMA_OK = 0,
    OXILLAMA_INVALID = -1,      /* an argument has a value that cannot be honoured */
    OXILLAMA_FORMAT = -2,       /* a format is unknown, or rows do not fit it */
    OXILLAMA_MODEL = -3,        /* a file is missing, malformed, or no model that runs here */
    OXILLAMA_CONTEXT = -4,      /* tokens do not fit the context, or the pages are used up */
    OXILLAMA_ENGINE = -5,       /* the engine is closed or failed, or the system refused threads */
    OXILLAMA_MEMORY = -6,
    OXILLAMA_ROOM = -7,         /* the output has too little room; the size it needs is reported */
    OXILLAMA_OTHER = -8
};

typedef struct oxillama_matrix oxillama_matrix;
typedef struct oxillama_model oxillama_model;
typedef struct oxillama_session oxillama_session;

/* How tokens are drawn. Start from { .size = sizeof(oxillama_sampling), .temperature = 0 } and so on: all fields count. */
typedef struct oxillama_sampling {
    int32_t size;               /* sizeof(oxillama_sampling) */
    int32_t top_k;              /* 0: off */
    float temperature;          /* 0: the likeliest token */
    float top_p;                /* 1: off */
    float min_p;                /* 0: off */
    float repetition_penalty;   /* 1: off */
    uint64_t seed;
} oxillama_sampling;

typedef struct oxillama_api {
    int32_t abi_version;        /* OXILLAMA_ABI_VERSION of the package that runs */
    int32_t size;               /* bytes of this table there */

    /* The message of this thread's last negative status; valid until its next call. */
    const char *(*error)(void);

    /* Columns and bytes of a block of a GGUF format, as "Q4_K". */
    int (*format)(const char *format, int64_t *columns, int64_t *bytes);
    /* Rows of a format's blocks to float32 (rows, columns), and back; importance: (columns,) or NULL. */
    int (*dequantise)(const char *format, const void *blocks, int64_t rows, int64_t columns, float *out, int threads);
    int (*quantise)(const char *format, const float *values, int64_t rows, int64_t columns, const float *importance, void *out, int threads);

    /* A matrix (rows, columns) from a format's blocks, packed for products: out (m, rows) = x (m, columns) . matrix^T. */
    int (*pack)(const char *format, const void *blocks, int64_t rows, int64_t columns, oxillama_matrix **out, int threads);
    int (*matmul)(const oxillama_matrix *matrix, const float *x, int64_t m, float *out, int threads);
    void (*matrix_free)(oxillama_matrix *matrix);

    /* A model from a GGUF file (NULL: the embedded one), ready to run. context 0: the model's own. */
    int (*open)(const char *path, int threads, int64_t context, oxillama_model **out);
    int (*sizes)(const oxillama_model *model, int64_t *vocabulary, int64_t *context);
    void (*model_free)(oxillama_model *model);

    /* Text (UTF-8, bytes long) to tokens; special: its begin-of-text token, and control tokens that the text spells.
     * *count is how many there are, also with OXILLAMA_ROOM. */
    int (*tokenise)(const oxillama_model *model, const char *text, int64_t bytes, int special, int32_t *tokens, int64_t room, int64_t *count);
    /* A token's bytes, which need not be whole UTF-8; *count as above. */
    int (*token_bytes)(const oxillama_model *model, int32_t token, char *out, int64_t room, int64_t *count);
    /* *yes is 1 for a token that ends a text. */
    int (*is_end)(const oxillama_model *model, int32_t token, int *yes);

    /* A sequence of tokens with its keys and values. A session keeps its model. One thread at a time may use it. */
    int (*session)(oxillama_model *model, oxillama_session **out);
    /* Appends tokens; logits: NULL, or room for float32 (vocabulary,) after the last of them. */
    int (*step)(oxillama_session *session, const int32_t *tokens, int64_t count, float *logits);
    /* Draws a token after the last step. A session goes on with one random stream while the sampling stays the same. */
    int (*sample)(oxillama_session *session, const oxillama_sampling *sampling, int32_t *token);
    void (*session_free)(oxillama_session *session);
} oxillama_api;

#ifdef Py_PYTHON_H
/* The table, with the GIL; NULL with ImportError set when the package is missing or older than this header. */
static inline const oxillama_api *oxillama_import(void)
{
    PyObject *module = PyImport_ImportModule("oxillama.capi");
    if (!module)
        return NULL;
    Py_DECREF(module);
    const oxillama_api *table = (const oxillama_api *)PyCapsule_Import(OXILLAMA_CAPSULE, 0);
    if (table && table->abi_version < OXILLAMA_ABI_VERSION) {
        PyErr_Format(PyExc_ImportError, "oxillama: its C table has version %d, this program wants %d", (int)table->abi_version,
                     OXILLAMA_ABI_VERSION);
        return NULL;
    }
    return table;
}
#endif

#ifdef __cplusplus
}
#endif

#endif
