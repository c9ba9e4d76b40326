/* The workers of one step: a barrier that spins first and sleeps last, the chunk counter they share, and a run of work for each of them.
 *
 * A whole step is one piece of work (workers.h). Between ops its workers meet at `ox_team_barrier`; inside an op they take
 * chunks with `ox_team_take` until it hands out one past the end, so a worker that lost its core holds up one chunk only.
 *
 *     for (int c = ox_team_take(team); c < chunks; c = ox_team_take(team)) work(c);
 *     ox_team_barrier(team, ith, nth);     // the next op's chunks count from 0
 *
 * A barrier is two calls. What comes between them the last to arrive does alone, while the others still wait: work too short to be shared
 * costs no barrier of its own.
 *
 *     if (ox_team_meet(team, ith, nth)) {
 *         ox_team_rewind(team);            // if alone() takes chunks
 *         alone();
 *         ox_team_go(team, nth);
 *     }
 *
 * Where each worker should stay with memory of its own, an op takes from runs instead (`ox_team_share`): first from the worker's own, then, from
 * the end, of the run that has most left. The barrier resets them too.
 *
 * `nth` is the number of workers that the piece of work runs on, the same for all of them.
 * Everything a worker wrote before the barrier is visible to every worker after it.
 */
#ifndef OX_TEAM_H
#define OX_TEAM_H

#include <stdatomic.h>
#include <stdint.h>

#include "os.h"

/* Runs of work that a team keeps apart; with more workers than that some share a run. */
enum { OX_TEAM_RUNS = 64 };

/* Workers arrive in groups, and groups at the team: a line that sixteen cores add to at once goes around all of them. */
enum { OX_TEAM_GROUP = 4, OX_TEAM_GROUPS = 16 };

/* Spinning for about 20 us covers the difference between workers on cores of their own. After that a worker has lost its
 * core: yield, then sleep, so that the scheduler may move the late worker to this core. */
enum { OX_TEAM_SPINS = 1500, OX_TEAM_YIELDS = 16 };

typedef struct {
    _Alignas(64) _Atomic uint64_t taken;    /* units taken from the run's front (low half) and from its end; alone in its cache line */
} ox_team_run;

typedef struct {
    _Alignas(64) _Atomic uint32_t arrived;  /* workers of the group at the barrier of this phase; alone in its cache line */
} ox_team_group;

typedef struct {
    _Alignas(64) _Atomic int32_t next;      /* the next chunk of the op; alone in its cache line */
} ox_team_counter;

/* What ops take from is there twice, for every other phase: while one is in use the other is set back to 0, out of everybody's way. */
typedef struct {
    ox_team_group groups[OX_TEAM_GROUPS];
    _Alignas(64) _Atomic uint32_t arrived;  /* groups at the barrier of this phase; alone in its cache line */
    _Alignas(64) _Atomic uint32_t phase;    /* grows by one a barrier; what the waiting workers watch */
    int32_t stopped;                        /* what the last barrier found at `cancel`: all workers see the same answer */
    _Atomic uint32_t sleepers;              /* workers asleep on `phase`: 0 unless cores are short */
    _Alignas(64) const int32_t *cancel;     /* not 0: the caller wants out. Read only here, written by another thread */
    int32_t never;                          /* what `cancel` points to if the work cannot be cancelled */
    ox_team_counter counters[2];
    ox_team_run runs[2][OX_TEAM_RUNS];      /* whose size each op knows for itself */
} ox_team;

static inline int ox_team_turn(const ox_team *team) { return atomic_load_explicit(&team->phase, memory_order_relaxed) & 1; }

/* Before each region; `cancel` may be NULL. */
static inline void ox_team_init(ox_team *team, const int32_t *cancel) {
    for (int i = 0; i < OX_TEAM_GROUPS; i++) atomic_init(&team->groups[i].arrived, 0);
    atomic_init(&team->arrived, 0);
    atomic_init(&team->phase, 0);
    atomic_init(&team->sleepers, 0);
    for (int turn = 0; turn < 2; turn++) {
        atomic_init(&team->counters[turn].next, 0);
        for (int i = 0; i < OX_TEAM_RUNS; i++) atomic_init(&team->runs[turn][i].taken, 0);
    }
    team->never = 0;
    team->stopped = 0;
    team->cancel = cancel ? cancel : &team->never;
}

static inline int ox_team_cancelled(const ox_team *team) { return __atomic_load_n(__atomic_load_n(&team->cancel, __ATOMIC_RELAXED), __ATOMIC_RELAXED); }

/* From a worker that cannot go on: the step ends as if its caller had cancelled it. */
static inline void ox_team_break(ox_team *team) {
    static const int32_t broken = 1;
    __atomic_store_n(&team->cancel, &broken, __ATOMIC_RELAXED);
}

/* The index of the next free chunk; the caller compares it with its count. Once the caller of the step has cancelled it,
 * that is past every end: the op's result is then worthless, and its workers meet at the next barrier within a chunk's time. */
static inline int ox_team_take(ox_team *team) {
    if (ox_team_cancelled(team)) return INT32_MAX;
    return (int)atomic_fetch_add_explicit(&team->counters[ox_team_turn(team)].next, 1, memory_order_relaxed);
}

/* Takes units of a run, from its end if `back`: a quarter of what is left, but `least` to `most` of them. `*n` is their number, 0 once none
 * is left or the step was cancelled; returns the first. The owner of a run reads forwards and those who help it take from the end, so its
 * line of memory stays its own. */
static inline int ox_team_cut(ox_team *team, int run, int size, int least, int most, int back, int *n) {
    _Atomic uint64_t *taken = &team->runs[ox_team_turn(team)][run].taken;
    uint64_t was = atomic_load_explicit(taken, memory_order_relaxed);
    *n = 0;
    while (!ox_team_cancelled(team)) {
        int front = (int)(uint32_t)was, end = size - (int)(was >> 32), left = end - front;
        int some = left / 4 < least ? least : left / 4 > most ? most : left / 4;
        if (left <= 0) break;
        if (some > left) some = left;
        if (atomic_compare_exchange_weak_explicit(taken, &was, was + ((uint64_t)some << (back ? 32 : 0)),
                                                  memory_order_relaxed, memory_order_relaxed)) {
            *n = some;
            return back ? end - some : front;
        }
    }
    return 0;
}

/* How many of the `size` units of a run are left; none once the step was cancelled. */
static inline int ox_team_left(ox_team *team, int run, int size) {
    uint64_t taken = atomic_load_explicit(&team->runs[ox_team_turn(team)][run].taken, memory_order_relaxed);
    return ox_team_cancelled(team) ? 0 : size - (int)(taken >> 32) - (int)(uint32_t)taken;
}

/* What a worker has taken: units `first` to `first` + `n` - 1 of a run, which is what lies from `begin` to `end`. */
typedef struct {
    int run, begin, end, first, n;
} ox_team_units;

enum { OX_TEAM_NO_RUN = -1 };

/* Takes units from the worker's own run, or from the end of the run that has most left; 0 once there are none. All workers cut the same `size`
 * things into a run for each, `per` to a unit. `units->run` is OX_TEAM_NO_RUN at first; it is own if `ith` is its number. */
static inline int ox_team_share(ox_team *team, int size, int per, int ith, int nth, int least, int most, ox_team_units *units) {
    const int runs = nth < OX_TEAM_RUNS ? nth : OX_TEAM_RUNS, own = ith % runs, each = size / runs, more = size % runs;
    if (units->run == OX_TEAM_NO_RUN) units->run = own;
    for (;;) {
        const int run = units->run, length = each + (run < more);
        units->begin = run * each + (run < more ? run : more);
        units->end = units->begin + length;
        units->first = ox_team_cut(team, run, (length + per - 1) / per, least, most, run != own, &units->n);
        if (units->n) return 1;
        int longest = 0;
        for (int i = 0; i < runs; i++) {
            int left = ox_team_left(team, i, (each + (i < more) + per - 1) / per);
            if (left > longest) longest = left, units->run = i;
        }
        if (!longest) return 0;
    }
}

/* Whether the step was cancelled, as seen at the last barrier: the same answer for every worker. */
static inline int ox_team_stopped(const ox_team *team) { return team->stopped; }

static inline void ox_team_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* `yield` is free on most cores, too short to be kind to a neighbour */
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* Sleeps until the phase is no longer `phase`, or a millisecond has gone. */
static inline void ox_team_sleep(ox_team *team, uint32_t phase) {
#if OX_CAN_WAIT
    atomic_fetch_add_explicit(&team->sleepers, 1, memory_order_seq_cst);
    ox_wait((uint32_t *)&team->phase, phase);
    atomic_fetch_sub_explicit(&team->sleepers, 1, memory_order_relaxed);
#else
    (void)team, (void)phase;
    ox_nap(50000);
#endif
}

/* Whether this worker is the last of the `nth` to arrive. */
static inline int ox_team_arrive(ox_team *team, int ith, int nth) {
    int groups = (nth + OX_TEAM_GROUP - 1) / OX_TEAM_GROUP;
    if (groups > OX_TEAM_GROUPS) groups = OX_TEAM_GROUPS;
    ox_team_group *group = &team->groups[ith % groups];
    uint32_t members = (uint32_t)((nth - ith % groups + groups - 1) / groups);
    if (atomic_fetch_add_explicit(&group->arrived, 1, memory_order_acq_rel) + 1 < members) return 0;
    atomic_store_explicit(&group->arrived, 0, memory_order_relaxed);
    if (groups == 1) return 1;
    if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 < (uint32_t)groups) return 0;
    atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
    return 1;
}

/* Returns 1 to the last of the `nth` workers to arrive, at once: it lets the others go by `ox_team_go`. To those it returns 0, then. */
static inline int ox_team_meet(ox_team *team, int ith, int nth) {
    uint32_t phase = atomic_load_explicit(&team->phase, memory_order_relaxed);
    if (ith < OX_TEAM_RUNS) atomic_store_explicit(&team->runs[~phase & 1][ith].taken, 0, memory_order_relaxed);
    if (nth <= 1 || ox_team_arrive(team, ith, nth)) return 1;
    for (int i = 0; i < OX_TEAM_SPINS; i++) {
        if (atomic_load_explicit(&team->phase, memory_order_acquire) != phase) return 0;
        ox_team_pause();
    }
    for (int i = 0; i < OX_TEAM_YIELDS; i++) {
        if (atomic_load_explicit(&team->phase, memory_order_acquire) != phase) return 0;
        ox_yield();
    }
    while (atomic_load_explicit(&team->phase, memory_order_acquire) == phase) ox_team_sleep(team, phase);
    return 0;
}

/* Between `ox_team_meet` and `ox_team_go`: chunks count from 0 again, for what the last to arrive does alone. */
static inline void ox_team_rewind(ox_team *team) {
    atomic_store_explicit(&team->counters[ox_team_turn(team)].next, 0, memory_order_relaxed);
}

/* By the last to arrive: the others go on. What it did since it met them they see. */
static inline void ox_team_go(ox_team *team, int nth) {
    const uint32_t phase = atomic_load_explicit(&team->phase, memory_order_relaxed);
    const int32_t stopped = ox_team_cancelled(team) != 0;
    if (team->stopped != stopped) team->stopped = stopped;      /* a line that all watch: written seldom */
    atomic_store_explicit(&team->phase, phase + 1, memory_order_seq_cst);
#if OX_CAN_WAIT
    if (nth > 1 && atomic_load_explicit(&team->sleepers, memory_order_seq_cst)) ox_wake_all((uint32_t *)&team->phase);
#endif
    atomic_store_explicit(&team->counters[phase & 1].next, 0, memory_order_relaxed);      /* for the phase after this one */
}

/* Returns when all `nth` workers have called it. */
static inline void ox_team_barrier(ox_team *team, int ith, int nth) {
    if (ox_team_meet(team, ith, nth)) ox_team_go(team, nth);
}

#endif
