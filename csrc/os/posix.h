/* Linux and macOS; what it defines is described in os.h. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

/* ---- memory ----------------------------------------------------------------------------------------------------------- */

/* 4 KB, on AArch64 also 16 or 64. `madvise` and `munmap` refuse an address within a page, and take a size for whole pages, what a neighbour
 * has of the last one too. */
static inline size_t ox_page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static inline void *ox_aligned_new(size_t alignment, size_t size) {
    void *made = NULL;
    return posix_memalign(&made, alignment, size) ? NULL : made;
}

static inline void ox_aligned_free(void *start) { free(start); }

static inline void ox_ask_huge(void *start, size_t size) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    madvise(start, size, MADV_HUGEPAGE);
#else
    (void)start, (void)size;
#endif
}

static inline void *ox_memory_new(size_t size) {
    void *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    return start == MAP_FAILED ? NULL : start;
}

static inline void ox_memory_free(void *start, size_t size) { munmap(start, size); }

enum { OX_PARTS_GO = 1 };

static void *ox_extent_new(size_t size) {
    const size_t unit = (size_t)2 << 20, room = size + unit;
    char *data = ox_memory_new(room);
    if (!data) return NULL;
    char *start = (char *)(((uintptr_t)data + unit - 1) / unit * unit);
    if (start > data) munmap(data, (size_t)(start - data));
    if (start + size < data + room) munmap(start + size, (size_t)(data + room - start - size));
    ox_ask_huge(start, size);
    return start;
}

/* On macOS MADV_DONTNEED keeps what is there. */
static inline int ox_drop(void *first, size_t size) {
#ifdef __APPLE__
    return madvise(first, size, MADV_FREE) ? errno : EINVAL;
#else
    return madvise(first, size, MADV_DONTNEED) ? errno : 0;
#endif
}

/* ---- mappings --------------------------------------------------------------------------------------------------------- */

static int ox_map_file(void **start, int fd, size_t size) {
    *start = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    return *start == MAP_FAILED ? errno : 0;
}

static inline void ox_unmap_file(void *start, size_t size) { munmap(start, size); }

/* Linux 5.14 has a call for it. */
static inline int ox_populate(const void *first, size_t size) {
#ifdef __linux__
    return madvise((void *)(uintptr_t)first, size, 22 /* MADV_POPULATE_READ */) ? errno : 0;
#else
    (void)first, (void)size;
    return EINVAL;
#endif
}

static inline void ox_want(const void *first, size_t size) {
#ifdef __linux__
    madvise((void *)(uintptr_t)first, size, MADV_WILLNEED);
#else
    (void)first, (void)size;
#endif
}

static inline void ox_let_pages_go(const void *first, size_t size) { madvise((void *)(uintptr_t)first, size, MADV_DONTNEED); }

/* A look at a page that its file no longer has is a SIGBUS. The handler allocates nothing and takes no lock. A child of fork() has it, too. It
 * is put in place with the first map, and again with a later one where another has taken its place. Every other SIGBUS goes to whoever handled
 * it before. */
typedef struct ox_bus_action {              /* who handled SIGBUS before; those in older ones came before them */
    struct sigaction action;
    struct ox_bus_action *older;
} ox_bus_action;

static _Atomic(ox_bus_action *) ox_bus_before;
static _Atomic(ox_lose) ox_bus_lose;

/* Whether a signal is about a page of a map of ours, which then holds zeros. */
static int ox_bus_replace(const siginfo_t *info) {
#ifdef __APPLE__
    if (info->si_code != BUS_ADRALN && info->si_code != BUS_ADRERR) return 0;    /* on AArch64 every SIGBUS is said to be BUS_ADRALN */
#else
    if (info->si_code <= 0 || info->si_code == SI_USER || info->si_code == BUS_ADRALN) return 0;
#endif
#ifdef BUS_MCEERR_AO
    if (info->si_code == BUS_MCEERR_AO) return 0;       /* of memory that nobody looked at */
#endif
    return atomic_load(&ox_bus_lose)((uintptr_t)info->si_addr);
}

static void ox_bus_pass_on(int number, siginfo_t *info, void *context) {
    ox_bus_action *before = atomic_load(&ox_bus_before);
    int raised = info->si_code <= 0 || info->si_code == SI_USER;
    /* by a handler that was here before and passes it on so: it must not come back to it */
    while (raised && before->older) before = before->older;
    if (before->action.sa_flags & SA_SIGINFO) {
        before->action.sa_sigaction(number, info, context);
        return;
    }
    if (before->action.sa_handler == SIG_IGN && raised) return;
    if (before->action.sa_handler == SIG_DFL || before->action.sa_handler == SIG_IGN) {
        struct sigaction plain = {.sa_handler = SIG_DFL};
        sigaction(number, &plain, NULL);
#ifdef __APPLE__
        raised = 1;                                     /* it cannot be told from a fault */
#endif
        if (raised) raise(number);                      /* a fault comes again by itself */
        return;
    }
    before->action.sa_handler(number);
}

static void ox_bus(int number, siginfo_t *info, void *context) {
    int error = errno;
    if (!ox_bus_replace(info)) ox_bus_pass_on(number, info, context);
    errno = error;
}

static int ox_bus_is(const struct sigaction *action) { return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == ox_bus; }

static int ox_bus_note(const struct sigaction *action) {
    ox_bus_action *noted = calloc(1, sizeof *noted);    /* stays: a handler may be reading it at any time */
    if (!noted) return ENOMEM;
    noted->action = *action;
    noted->older = atomic_load(&ox_bus_before);
    while (!atomic_compare_exchange_weak(&ox_bus_before, &noted->older, noted)) {}
    return 0;
}

static int ox_guard_faults(ox_lose lose) {
    struct sigaction ours = {0}, now;
    atomic_store(&ox_bus_lose, lose);
    if (sigaction(SIGBUS, NULL, &now)) return errno;
    if (ox_bus_is(&now)) return 0;
    int failed = ox_bus_note(&now);                     /* first: it may be needed at once */
    if (failed) return failed;
    ours.sa_sigaction = ox_bus;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigemptyset(&ours.sa_mask);
    return sigaction(SIGBUS, &ours, NULL) ? errno : 0;
}

static int ox_zeros_over(void *start, size_t size, uintptr_t at) {
    (void)at;
    return mmap(start, size, PROT_READ, MAP_PRIVATE | MAP_ANON | MAP_FIXED, -1, 0) != MAP_FAILED;
}

static inline void ox_zeros_end(void *start, size_t size, int lost) {
    (void)lost;
    munmap(start, size);
}

/* ---- files ------------------------------------------------------------------------------------------------------------ */

static int ox_file_look(int fd, ox_file_status *found) {
    struct stat now;
    if (fstat(fd, &now)) return errno;
    found->size = now.st_size;
#ifdef __APPLE__
    found->seconds = now.st_mtimespec.tv_sec, found->nanoseconds = now.st_mtimespec.tv_nsec;
#else
    found->seconds = now.st_mtim.tv_sec, found->nanoseconds = now.st_mtim.tv_nsec;
#endif
    return 0;
}

/* A descriptor of the same open file; -errno where there is none. */
static int ox_file_keep(int fd) {
    int kept = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return kept < 0 ? -errno : kept;
}

static inline void ox_file_close(int fd) { close(fd); }

/* Bytes that were read, 0 at the end; -errno. */
static inline int64_t ox_file_read(int fd, void *room, size_t size, int64_t offset) {
    ssize_t some = pread(fd, room, size, (off_t)offset);
    return some < 0 ? -errno : some;
}

/* ---- threads ---------------------------------------------------------------------------------------------------------- */

typedef pthread_t ox_thread;
typedef pthread_mutex_t ox_mutex;
typedef pthread_cond_t ox_cond;
typedef sigset_t ox_signals;

/* The kernels take up to some 120 KB of a thread's stack: near all that musl gives one, or a low `ulimit -s`. */
enum { OX_STACK = 1 << 20 };

static inline int ox_thread_start(ox_thread *thread, void *(*main)(void *), void *args) {
    pthread_attr_t attr;
    size_t size;
    int failed = pthread_attr_init(&attr);
    if (failed) return failed;
    if (!pthread_attr_getstacksize(&attr, &size) && size < OX_STACK) pthread_attr_setstacksize(&attr, OX_STACK);
    failed = pthread_create(thread, &attr, main, args);
    pthread_attr_destroy(&attr);
    return failed;
}

static inline void ox_thread_join(ox_thread thread) { pthread_join(thread, NULL); }
static inline void ox_yield(void) { sched_yield(); }
static inline int ox_process(void) { return (int)getpid(); }

static inline void ox_nap(int64_t ns) {
    struct timespec pause = {ns / 1000000000, ns % 1000000000};
    nanosleep(&pause, 0);
}

/* Signals are for the threads of the program, not for ours, but those that a thread causes itself: who blocks them is ended without a handler. */
static inline void ox_signals_hold(ox_signals *was) {
    sigset_t all;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    sigdelset(&all, SIGSEGV);
    pthread_sigmask(SIG_SETMASK, &all, was);
}

static inline void ox_signals_back(const ox_signals *was) { pthread_sigmask(SIG_SETMASK, was, NULL); }

static inline void ox_mutex_new(ox_mutex *mutex) { pthread_mutex_init(mutex, NULL); }
static inline void ox_mutex_lock(ox_mutex *mutex) { pthread_mutex_lock(mutex); }
static inline void ox_mutex_unlock(ox_mutex *mutex) { pthread_mutex_unlock(mutex); }

static inline void ox_cond_new(ox_cond *cond) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
#ifndef __APPLE__
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
#endif
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

static inline void ox_cond_wait(ox_cond *cond, ox_mutex *mutex) { pthread_cond_wait(cond, mutex); }
static inline void ox_cond_signal(ox_cond *cond) { pthread_cond_signal(cond); }
static inline void ox_cond_broadcast(ox_cond *cond) { pthread_cond_broadcast(cond); }

static inline void ox_cond_doze(ox_cond *cond, ox_mutex *mutex) {
#ifdef __APPLE__
    (void)cond;
    pthread_mutex_unlock(mutex);
    ox_nap(200000);
    pthread_mutex_lock(mutex);
#else
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += 5000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_cond_timedwait(cond, mutex, &until);
#endif
}

/* ---- waits ------------------------------------------------------------------------------------------------------------ */

#ifdef __linux__
#define OX_CAN_WAIT 1
static inline void ox_wait(uint32_t *at, uint32_t value) {
    struct timespec limit = {0, 1000000};
    syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, value, &limit, 0, 0);
}

static inline void ox_wake_all(uint32_t *at) { syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, INT32_MAX, 0, 0, 0); }
#else
#define OX_CAN_WAIT 0
#endif

/* ---- machine ---------------------------------------------------------------------------------------------------------- */

static inline int ox_system_memory(int64_t *total, int64_t *left) {
    *total = *left = 0;
    return -1;
}

static inline int ox_system_cores(void) { return 0; }

static inline int64_t ox_sysctl(const char *name) {
#ifdef __APPLE__
    int64_t found = 0;                      /* the system fills 4 bytes of it or all, lowest first */
    size_t size = sizeof found;
    return sysctlbyname(name, &found, &size, NULL, 0) ? -1 : found;
#else
    (void)name;
    return -1;
#endif
}

/* ---- clocks ----------------------------------------------------------------------------------------------------------- */

static inline int64_t ox_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* `*us`: the microseconds that the thread ran, to the last of them: what getrusage says of its time is brought up to date at a tick only, and a
 * tick may be as long as a step. */
static inline int64_t ox_preemptions(int64_t *us) {
    struct timespec ran;
    *us = 0;
    if (!clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ran)) *us = ran.tv_sec * INT64_C(1000000) + ran.tv_nsec / 1000;
#ifdef __linux__
    struct rusage use;
    if (!getrusage(RUSAGE_THREAD, &use)) return use.ru_nivcsw;
#endif
    return 0;
}
