"""The C table of `oxillama.h` for Cython: `from oxillama.capi cimport oxillama_api, oxillama_import`."""
from oxillama._core.capi cimport (
    OXILLAMA_ABI_VERSION, OXILLAMA_CONTEXT, OXILLAMA_ENGINE, OXILLAMA_FORMAT, OXILLAMA_INVALID, OXILLAMA_MEMORY, OXILLAMA_MODEL,
    OXILLAMA_OK, OXILLAMA_OTHER, OXILLAMA_ROOM, oxillama_api, oxillama_import, oxillama_matrix, oxillama_model, oxillama_sampling,
    oxillama_session,
)
