/* A C program that embeds CPython: embed PROMPT TOKENS writes what the embedded model says next. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <oxillama.h>

enum { PROMPT = 256, PIECE = 256 };

static int tell(const oxillama_api *ox, const char *prompt, int wanted)
{
    oxillama_model *model = NULL;
    oxillama_session *session = NULL;
    const oxillama_sampling greedy = { .size = sizeof greedy, .temperature = 0, .top_k = 0, .top_p = 1, .repetition_penalty = 1, .seed = 1 };
    int32_t tokens[PROMPT];
    int64_t count, size;
    char piece[PIECE];
    int end = 0, status = ox->open(NULL, 0, 0, &model);

    if (!status)
        status = ox->session(model, &session);
    if (!status)
        status = ox->tokenise(model, prompt, (int64_t)strlen(prompt), 1, tokens, PROMPT, &count);
    for (; !status && wanted > 0; wanted--, count = 1) {
        if ((status = ox->step(session, tokens, count, NULL)) || (status = ox->sample(session, &greedy, tokens)) ||
            (status = ox->is_end(model, tokens[0], &end)) || end || (status = ox->token_bytes(model, tokens[0], piece, PIECE, &size)))
            break;
        fwrite(piece, 1, (size_t)size, stdout);
    }
    if (status)
        fprintf(stderr, "%s\n", ox->error());
    ox->session_free(session);
    ox->model_free(model);
    return status ? 1 : 0;
}

int main(int argc, char **argv)
{
    const oxillama_api *ox;
    PyThreadState *others;
    int failed;

    if (argc != 3) {
        fprintf(stderr, "usage: %s PROMPT TOKENS\n", argv[0]);
        return 2;
    }
    Py_Initialize();
    if (!(ox = oxillama_import())) {
        PyErr_Print();
        return 1;
    }
    others = PyEval_SaveThread();       /* the engine works in threads of its own: this one does not keep the GIL */
    failed = tell(ox, argv[1], atoi(argv[2]));
    PyEval_RestoreThread(others);
    return Py_FinalizeEx() < 0 ? 1 : failed;
}
