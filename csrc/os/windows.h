/* Windows 10 and later on x86-64, by gcc or clang for the UCRT (Python's own C library: descriptors are numbers of it); what it defines is
 * described in os.h. */
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#if !defined(_WIN32_WINNT) || _WIN32_WINNT < 0x0A00
#undef _WIN32_WINNT
#define _WIN32_WINNT 0x0A00
#endif
#include <fcntl.h>
#include <io.h>
#include <malloc.h>
#include <stdatomic.h>
#include <windows.h>
#undef near     /* words of sixteen bits, which are names here */
#undef far
#undef small

#ifndef _UCRT
#error "oxillama on Windows needs a compiler for the UCRT, Python's C library: mingw-w64 gcc of UCRT64, llvm-mingw, or ziglang"
#endif

/* The errno that is nearest to what the last call failed with. */
static int ox_last_error(void) {
    switch (GetLastError()) {
    case ERROR_INVALID_HANDLE: return EBADF;
    case ERROR_ACCESS_DENIED: case ERROR_LOCK_VIOLATION: case ERROR_SHARING_VIOLATION: return EACCES;
    case ERROR_NOT_ENOUGH_MEMORY: case ERROR_OUTOFMEMORY: case ERROR_COMMITMENT_LIMIT: case ERROR_NO_SYSTEM_RESOURCES: return ENOMEM;
    case ERROR_TOO_MANY_OPEN_FILES: return EMFILE;
    case ERROR_INVALID_PARAMETER: case ERROR_FILE_INVALID: return EINVAL;
    default: return EIO;
    }
}

/* mingw's headers lack it */
_invalid_parameter_handler __cdecl _set_thread_local_invalid_parameter_handler(_invalid_parameter_handler handler);

static void ox_tell_nothing(const wchar_t *what, const wchar_t *function, const wchar_t *file, unsigned line, uintptr_t reserved) {
    (void)what, (void)function, (void)file, (void)line, (void)reserved;
}

/* The file of a descriptor. The C library ends the process where there is none, unless it is told not to. */
static HANDLE ox_handle(int fd) {
    _invalid_parameter_handler was = _set_thread_local_invalid_parameter_handler(ox_tell_nothing);
    intptr_t found = _get_osfhandle(fd);
    _set_thread_local_invalid_parameter_handler(was);
    if (found == -1) SetLastError(ERROR_INVALID_HANDLE);
    return (HANDLE)found;
}

/* ---- memory ----------------------------------------------------------------------------------------------------------- */

static inline size_t ox_page_bytes(void) { return 4096; }

static inline void *ox_aligned_new(size_t alignment, size_t size) { return _aligned_malloc(size, alignment); }
static inline void ox_aligned_free(void *start) { _aligned_free(start); }

/* Large pages need a privilege, and memory that is never paged out. */
static inline void ox_ask_huge(void *start, size_t size) { (void)start, (void)size; }

static inline void *ox_memory_new(size_t size) { return VirtualAlloc(NULL, size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE); }

static inline void ox_memory_free(void *start, size_t size) {
    (void)size;
    VirtualFree(start, 0, MEM_RELEASE);
}

enum { OX_PARTS_GO = 0 };

/* Where there is room for more is looked for first: whoever takes it in between has it, and the next place is tried. */
static void *ox_extent_new(size_t size) {
    const size_t unit = (size_t)2 << 20;
    for (int tries = 0; tries < 64; tries++) {
        char *data = VirtualAlloc(NULL, size + unit, MEM_RESERVE, PAGE_NOACCESS);
        if (!data) return NULL;
        VirtualFree(data, 0, MEM_RELEASE);
        char *start = (char *)(((uintptr_t)data + unit - 1) / unit * unit);
        void *made = VirtualAlloc(start, size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
        if (made || GetLastError() != ERROR_INVALID_ADDRESS) return made;
    }
    return ox_memory_new(size);     /* at a multiple of 64 KB */
}

static inline int ox_drop(void *first, size_t size) { return DiscardVirtualMemory(first, size) == ERROR_SUCCESS ? EINVAL : EIO; }

/* ---- mappings --------------------------------------------------------------------------------------------------------- */

static int ox_map_file(void **start, int fd, size_t size) {
    HANDLE mapping = CreateFileMappingW(ox_handle(fd), NULL, PAGE_READONLY, 0, 0, NULL);
    *start = mapping ? MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, size) : NULL;
    int failed = *start ? 0 : ox_last_error();
    if (mapping) CloseHandle(mapping);      /* the view stays */
    return failed;
}

static inline void ox_unmap_file(void *start, size_t size) {
    (void)size;
    UnmapViewOfFile(start);
}

static inline int ox_populate(const void *first, size_t size) {
    (void)first, (void)size;
    return EINVAL;
}

static inline void ox_want(const void *first, size_t size) {
    WIN32_MEMORY_RANGE_ENTRY range = {(void *)(uintptr_t)first, size};
    PrefetchVirtualMemory(GetCurrentProcess(), 1, &range, 0);
}

/* Unlocking what is not locked takes it out of the working set. */
static inline void ox_let_pages_go(const void *first, size_t size) { VirtualUnlock((void *)(uintptr_t)first, size); }

/* A page that cannot be read (a network drive that is gone, a disk that failed) is the exception EXCEPTION_IN_PAGE_ERROR; Windows lets nobody
 * shorten a file that is mapped. In place of the lost map its addresses are reserved, and each piece of them that is looked at becomes zeros:
 * to have all of them at once would take as much memory as the file is long. */
enum { OX_ZEROS = 1 << 16 };

static _Atomic(ox_lose) ox_fault_lose;
static atomic_flag ox_fault_turn = ATOMIC_FLAG_INIT;

static LONG CALLBACK ox_fault(EXCEPTION_POINTERS *found) {
    const EXCEPTION_RECORD *record = found->ExceptionRecord;
    int paged = record->ExceptionCode == EXCEPTION_IN_PAGE_ERROR, reserved = record->ExceptionCode == EXCEPTION_ACCESS_VIOLATION;
    if ((!paged && !reserved) || record->NumberParameters < 2 || record->ExceptionInformation[0] != 0) return EXCEPTION_CONTINUE_SEARCH;
    DWORD error = GetLastError();
    uintptr_t at = (uintptr_t)record->ExceptionInformation[1];
    MEMORY_BASIC_INFORMATION about;
    int ours = 0;
    while (atomic_flag_test_and_set_explicit(&ox_fault_turn, memory_order_acquire)) SwitchToThread();
    /* a violation is ours only where a lost map is: its addresses are reserved, or are zeros already that another thread asked for */
    if (paged || (VirtualQuery((void *)at, &about, sizeof about) && (about.State == MEM_RESERVE || about.Protect == PAGE_READONLY)))
        ours = atomic_load(&ox_fault_lose)(at);
    atomic_flag_clear_explicit(&ox_fault_turn, memory_order_release);
    SetLastError(error);
    return ours ? EXCEPTION_CONTINUE_EXECUTION : EXCEPTION_CONTINUE_SEARCH;
}

static int ox_guard_faults(ox_lose lose) {
    static _Atomic int installed;
    atomic_store(&ox_fault_lose, lose);
    if (atomic_exchange(&installed, 1)) return 0;
    return AddVectoredExceptionHandler(1, ox_fault) ? 0 : ENOMEM;
}

static int ox_zeros_over(void *start, size_t size, uintptr_t at) {
    MEMORY_BASIC_INFORMATION about;
    if (!VirtualQuery((void *)at, &about, sizeof about)) return 0;
    if (about.Type == MEM_MAPPED && about.State != MEM_FREE) {
        UnmapViewOfFile(start);
        if (!VirtualAlloc(start, size, MEM_RESERVE, PAGE_READONLY)) return 0;
    } else if (about.AllocationBase != start) {
        return 0;
    }
    uintptr_t first = at / OX_ZEROS * OX_ZEROS, end = (uintptr_t)start + size;
    return VirtualAlloc((void *)first, end - first < OX_ZEROS ? end - first : OX_ZEROS, MEM_COMMIT, PAGE_READONLY) != NULL;
}

static inline void ox_zeros_end(void *start, size_t size, int lost) {
    (void)size;
    if (!UnmapViewOfFile(start) && lost) VirtualFree(start, 0, MEM_RELEASE);
}

/* ---- files ------------------------------------------------------------------------------------------------------------ */

static int ox_file_look(int fd, ox_file_status *found) {
    HANDLE file = ox_handle(fd);
    LARGE_INTEGER size;
    FILETIME written;
    if (!GetFileSizeEx(file, &size) || !GetFileTime(file, NULL, NULL, &written)) return ox_last_error();
    /* hundreds of nanoseconds since 1601 */
    int64_t since = (int64_t)((uint64_t)written.dwHighDateTime << 32 | written.dwLowDateTime) - INT64_C(116444736000000000);
    found->size = size.QuadPart;
    found->seconds = since / 10000000, found->nanoseconds = since % 10000000 * 100;
    return 0;
}

static int ox_file_keep(int fd) {
    HANDLE kept;
    if (!DuplicateHandle(GetCurrentProcess(), ox_handle(fd), GetCurrentProcess(), &kept, 0, FALSE, DUPLICATE_SAME_ACCESS))
        return -ox_last_error();
    int made = _open_osfhandle((intptr_t)kept, _O_RDONLY | _O_BINARY | _O_NOINHERIT);
    if (made >= 0) return made;
    CloseHandle(kept);
    return -EMFILE;
}

static inline void ox_file_close(int fd) { _close(fd); }

static inline int64_t ox_file_read(int fd, void *room, size_t size, int64_t offset) {
    OVERLAPPED place = {0};
    DWORD some = 0;
    place.Offset = (DWORD)offset, place.OffsetHigh = (DWORD)(offset >> 32);
    if (ReadFile(ox_handle(fd), room, size < 1 << 30 ? (DWORD)size : 1 << 30, &some, &place)) return some;
    return GetLastError() == ERROR_HANDLE_EOF ? 0 : -ox_last_error();
}

/* ---- threads ---------------------------------------------------------------------------------------------------------- */

typedef HANDLE ox_thread;
typedef SRWLOCK ox_mutex;
typedef CONDITION_VARIABLE ox_cond;
typedef int ox_signals;

typedef struct {
    void *(*main)(void *);
    void *args;
} ox_thread_begin;

static DWORD WINAPI ox_thread_main(void *start) {
    ox_thread_begin begin = *(ox_thread_begin *)start;
    free(start);
    begin.main(begin.args);
    return 0;
}

static inline int ox_thread_start(ox_thread *thread, void *(*main)(void *), void *args) {
    ox_thread_begin *begin = calloc(1, sizeof *begin);
    if (!begin) return ENOMEM;
    begin->main = main, begin->args = args;
    *thread = CreateThread(NULL, 0, ox_thread_main, begin, 0, NULL);
    if (*thread) return 0;
    free(begin);
    return EAGAIN;
}

static inline void ox_thread_join(ox_thread thread) {
    WaitForSingleObject(thread, INFINITE);
    CloseHandle(thread);
}

static inline void ox_yield(void) { SwitchToThread(); }
static inline int ox_process(void) { return (int)GetCurrentProcessId(); }
static inline void ox_nap(int64_t ns) { Sleep((DWORD)((ns + 999999) / 1000000)); }
static inline void ox_signals_hold(ox_signals *was) { *was = 0; }
static inline void ox_signals_back(const ox_signals *was) { (void)was; }

static inline void ox_mutex_new(ox_mutex *mutex) { InitializeSRWLock(mutex); }
static inline void ox_mutex_lock(ox_mutex *mutex) { AcquireSRWLockExclusive(mutex); }
static inline void ox_mutex_unlock(ox_mutex *mutex) { ReleaseSRWLockExclusive(mutex); }
static inline void ox_cond_new(ox_cond *cond) { InitializeConditionVariable(cond); }
static inline void ox_cond_wait(ox_cond *cond, ox_mutex *mutex) { SleepConditionVariableSRW(cond, mutex, INFINITE, 0); }
static inline void ox_cond_signal(ox_cond *cond) { WakeConditionVariable(cond); }
static inline void ox_cond_broadcast(ox_cond *cond) { WakeAllConditionVariable(cond); }
static inline void ox_cond_doze(ox_cond *cond, ox_mutex *mutex) { SleepConditionVariableSRW(cond, mutex, 5, 0); }

/* ---- waits ------------------------------------------------------------------------------------------------------------ */

#define OX_CAN_WAIT 1
static inline void ox_wait(uint32_t *at, uint32_t value) { WaitOnAddress(at, &value, sizeof value, 1); }
static inline void ox_wake_all(uint32_t *at) { WakeByAddressAll(at); }

/* ---- machine ---------------------------------------------------------------------------------------------------------- */

static inline int ox_system_memory(int64_t *total, int64_t *left) {
    MEMORYSTATUSEX now = {.dwLength = sizeof now};
    if (!GlobalMemoryStatusEx(&now)) return -1;
    *total = (int64_t)now.ullTotalPhys, *left = (int64_t)now.ullAvailPhys;
    return 0;
}

/* Physical cores of this process's group (at most 64 logical processors) that it may run on; 0 where that is not told. */
static int ox_system_cores(void) {
    DWORD size = 0;
    DWORD_PTR mine = 0, all = 0;
    int cores = 0;
    GetLogicalProcessorInformation(NULL, &size);
    SYSTEM_LOGICAL_PROCESSOR_INFORMATION *about = calloc(1, size ? size : 1);
    if (about && GetProcessAffinityMask(GetCurrentProcess(), &mine, &all) && GetLogicalProcessorInformation(about, &size))
        for (DWORD i = 0; i < size / sizeof *about; i++)
            cores += about[i].Relationship == RelationProcessorCore && (about[i].ProcessorMask & mine);
    free(about);
    return cores;
}

static inline int64_t ox_sysctl(const char *name) {
    (void)name;
    return -1;
}

/* ---- clocks ----------------------------------------------------------------------------------------------------------- */

static inline int64_t ox_clock_ns(void) {
    LARGE_INTEGER now, rate;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&rate);
    return now.QuadPart / rate.QuadPart * 1000000000 + now.QuadPart % rate.QuadPart * 1000000000 / rate.QuadPart;
}

/* Windows counts no preemptions of one thread. */
static inline int64_t ox_preemptions(int64_t *us) {
    FILETIME begun, ended, kernel, user;
    *us = 0;
    if (GetThreadTimes(GetCurrentThread(), &begun, &ended, &kernel, &user))
        *us = (int64_t)((((uint64_t)kernel.dwHighDateTime << 32 | kernel.dwLowDateTime) + ((uint64_t)user.dwHighDateTime << 32 | user.dwLowDateTime)) / 10);
    return 0;
}
