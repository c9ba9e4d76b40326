"""`FileMap`: a file mapped for reading. What happens to the file meanwhile neither ends the process nor stays unseen (csrc/filemap.h).
"""
from cpython.buffer cimport PyBuffer_FillInfo
from libc.errno cimport EINTR
from libc.string cimport strerror

cdef extern from "os.h" nogil:
    int ox_file_look(int fd, ox_file_status *found)
    int ox_file_keep(int fd)
    void ox_file_close(int fd)
    int64_t ox_file_read(int fd, void *room, size_t size, int64_t offset)

cdef extern from "filemap.h" nogil:
    int ox_map_new(int fd, size_t size, ox_map **made)
    void ox_map_free(ox_map *map)
    const uint8_t *ox_map_start(ox_map *map)
    const int32_t *ox_map_flag(ox_map *map)
    void ox_map_release(ox_map *map, size_t first, size_t size)
    void ox_map_large_pages(ox_map *map, size_t size)

cdef enum:
    SAME, LOST, UNKNOWN, SIZE, TIME     # what is found of a file


def read_at(int descriptor, uint8_t[::1] out, int64_t offset) -> int:
    """Read bytes from `offset` of a file on into `out`, wherever the descriptor stands; how many, 0 at the end. Threads may do so at once."""
    cdef int64_t some = -EINTR
    if not out.shape[0]:
        return 0
    while some == -EINTR:
        with nogil:
            some = ox_file_read(descriptor, &out[0], <size_t>out.shape[0], offset)
    if some < 0:
        raise OSError(<int>-some, strerror(<int>-some).decode())
    return some


cdef class FileMap:
    """The bytes of an open file, mapped read-only, as a buffer; the caller may close the descriptor. label: the file's name for messages.

    dated: a new time of modification is a change of the file, too. OSError where it cannot be mapped.
    """

    def __cinit__(self, int descriptor, str label not None, *, bint dated=True):
        cdef int failed
        self.label, self.dated, self.descriptor = label, dated, -1
        failed = ox_file_look(descriptor, &self.status)
        if not failed:
            failed = ox_map_new(descriptor, <size_t>self.status.size, &self.map)
        if failed:
            raise OSError(failed, strerror(failed).decode(), label)
        self.data, self.lost = ox_map_start(self.map), ox_map_flag(self.map)
        self.descriptor = ox_file_keep(descriptor)
        if self.descriptor < 0:
            raise OSError(-self.descriptor, strerror(-self.descriptor).decode(), label)

    def __dealloc__(self):
        if self.map != NULL:
            ox_map_free(self.map)
        if self.descriptor >= 0:
            ox_file_close(self.descriptor)

    def __len__(self):
        return self.status.size

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, <void *>self.data, self.status.size, 1, flags)

    def release(self, int64_t start, int64_t nbytes):
        """Tell the system that bytes from a page's start on need not stay in memory; they are read again when needed."""
        if start < 0 or start % 4096 or nbytes < 0 or nbytes > self.status.size - start:
            raise ValueError(f"release: found {nbytes} bytes at {start}, wanted some of {self.status.size} from a page's start on")
        ox_map_release(self.map, start, nbytes)

    def ask_large_pages(self):
        """Ask the system for pages of 2 MB, before anything is read."""
        ox_map_large_pages(self.map, <size_t>self.status.size)

    cdef int found(self, ox_file_status *now) noexcept nogil:
        """How the file differs from what was mapped; SAME costs one call of the system."""
        cdef int failed = ox_file_look(self.descriptor, now)
        if failed:
            now.size = failed
            return UNKNOWN
        if now.size != self.status.size:
            return SIZE
        if self.dated and (now.seconds != self.status.seconds or now.nanoseconds != self.status.nanoseconds):
            return TIME
        return LOST if ox_flag_get(self.lost) else SAME

    def change(self):
        """What has happened to the file since it was mapped, as a message; None if nothing, and what was read until now is what was mapped."""
        cdef ox_file_status now
        cdef int what = self.found(&now)
        if what == SAME:
            return None
        changed = f"{self.label}: the file was changed after it was opened"
        if what == SIZE:
            return f"{changed}: found {now.size} bytes, wanted {self.status.size}"
        if what == TIME:
            return f"{changed}: found {self.status.size} bytes as before but written to, wanted the same bytes"
        if what == LOST:
            return f"{self.label}: a part of the file could not be read (SIGBUS): it was shorter for a while, or the disk failed"
        return f"{self.label}: nothing can be learnt of the file: {strerror(<int>now.size).decode()}"
