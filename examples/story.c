/* A C extension module: story.tell(prompt, tokens) goes on with a prompt by the embedded model, greedily. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <oxillama.h>

enum { PROMPT = 256, TEXT = 4096 };

static const oxillama_api *ox;

static PyObject *failed(void)
{
    PyErr_SetString(PyExc_RuntimeError, ox->error());
    return NULL;
}

static PyObject *tell(PyObject *self, PyObject *args)
{
    const char *prompt;
    Py_ssize_t size, wanted;
    oxillama_model *model = NULL;
    oxillama_session *session = NULL;
    const oxillama_sampling greedy = { .size = sizeof greedy, .temperature = 0, .top_k = 0, .top_p = 1, .repetition_penalty = 1, .seed = 1 };
    int32_t tokens[PROMPT];
    int64_t count, length = 0, more;
    char text[TEXT];
    int status, end = 0;

    (void)self;
    if (!PyArg_ParseTuple(args, "s#n", &prompt, &size, &wanted))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = ox->open(NULL, 0, 0, &model);
    if (!status)
        status = ox->session(model, &session);
    if (!status)
        status = ox->tokenise(model, prompt, size, 1, tokens, PROMPT, &count);
    while (!status && wanted-- > 0) {
        status = ox->step(session, tokens, count, NULL);
        if (!status)
            status = ox->sample(session, &greedy, tokens);
        if (!status)
            status = ox->is_end(model, tokens[0], &end);
        if (status || end)
            break;
        status = ox->token_bytes(model, tokens[0], text + length, TEXT - length, &more);
        length += status ? 0 : more;
        count = 1;
    }
    ox->session_free(session);
    ox->model_free(model);
    Py_END_ALLOW_THREADS
    return status ? failed() : PyUnicode_DecodeUTF8(text, length, "replace");
}

static PyMethodDef methods[] = {
    { "tell", tell, METH_VARARGS, "tell(prompt, tokens): the text that the embedded model writes next." },
    { NULL, NULL, 0, NULL },
};
static struct PyModuleDef module = { PyModuleDef_HEAD_INIT, "story", NULL, -1, methods, NULL, NULL, NULL, NULL };

PyMODINIT_FUNC PyInit_story(void)
{
    if (!(ox = oxillama_import()))
        return NULL;
    return PyModule_Create(&module);
}
