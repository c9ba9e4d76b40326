"""The codec table of `csrc/codecs.h`, for Cython modules that link it: one row of any GGUF format to f32 and back."""
from libc.stdint cimport int64_t

cdef extern from "codecs.h" nogil:
    ctypedef struct ox_codec:
        const char *name
        int id
        int block
        int bytes
        void (*unpack)(float *dst, const void *src, int64_t columns) noexcept nogil
        void (*quantise)(void *dst, const float *src, const float *weights, int64_t columns) noexcept nogil
    const ox_codec *ox_codec_by_name(const char *name)
