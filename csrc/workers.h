/* Threads of our own: `workers - 1` of them, asleep until they are handed a piece of work that the caller shares.
 *
 *     ox_workers *workers;
 *     int failed = ox_workers_new(&workers, 4);    // 0, or the errno of what the system refused
 *     ox_workers_run(workers, work, args, 3);      // work(args, ith, 3) on the caller (ith 0) and two others
 *     ox_workers_free(workers);
 *
 * All threads are started by `new`: what the system refuses is refused there, and `run` can no longer fail in the process that called it.
 * A child of fork() has the object without its threads: `run` starts them again there, and what it is refused it returns.
 * One caller at a time. `work` is called on every thread at once; inside it they meet by the barrier of team.h.
 *
 * A thread waits for work spinning at first, so that it is there at once while one step follows another, then asleep.
 */
#ifndef OX_WORKERS_H
#define OX_WORKERS_H

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>

#include "block.h"
#include "environment.h"
#include "team.h"

typedef void (*ox_work)(void *args, int ith, int nth);

/* A step follows another within some 10 to 200 us. Longer than this no thread keeps its core from others: it sleeps. */
enum { OX_WORKERS_SPINS = 4000, OX_WORKERS_YIELDS = 64 };

struct ox_workers;

typedef struct {
    struct ox_workers *workers;
    ox_thread thread;
    int ith;
} ox_worker;

typedef struct ox_workers {
    _Alignas(64) _Atomic uint64_t post;     /* what is to be done now: a count of posts (high half) and how many take part (low half) */
    _Atomic int sleepers;                   /* threads that sleep until `post` changes */
    _Alignas(64) _Atomic int pending;       /* threads that have not yet ended the work */
    _Atomic int waiting;                    /* the caller sleeps until `pending` is 0 */
    _Alignas(64) ox_work work;
    void *args;
    int quit;
    int started;                            /* threads there are, the caller not among them */
    int process;                            /* whose threads they are */
    ox_mutex lock;
    ox_cond posted, ended;
    int count;                              /* threads wanted, the caller among them */
    ox_worker worker[];                     /* the caller is number 0, which has no thread */
} ox_workers;

/* Waits for the post after `seen`. */
static uint64_t ox_workers_await(ox_workers *w, uint64_t seen) {
    uint64_t post;
    for (int i = 0; i < OX_WORKERS_SPINS; i++) {
        if ((post = atomic_load_explicit(&w->post, memory_order_acquire)) != seen) return post;
        ox_team_pause();
    }
    for (int i = 0; i < OX_WORKERS_YIELDS; i++) {
        if ((post = atomic_load_explicit(&w->post, memory_order_acquire)) != seen) return post;
        ox_yield();
    }
    ox_mutex_lock(&w->lock);
    atomic_fetch_add(&w->sleepers, 1);
    while ((post = atomic_load(&w->post)) == seen) ox_cond_wait(&w->posted, &w->lock);
    atomic_fetch_sub(&w->sleepers, 1);
    ox_mutex_unlock(&w->lock);
    return post;
}

static void *ox_workers_main(void *start) {
    const ox_worker *self = start;
    ox_workers *w = self->workers;
    const int ith = self->ith;
    ox_fenv_enter();                        /* for good */
    for (uint64_t seen = 0;;) {
        seen = ox_workers_await(w, seen);
        const int nth = (int)(uint32_t)seen;
        if (ith >= nth) continue;           /* not asked: what belongs to the post is not read, it may be the next one's already */
        if (w->quit) return NULL;
        w->work(w->args, ith, nth);
        if (atomic_fetch_sub(&w->pending, 1) == 1 && atomic_load(&w->waiting)) {
            ox_mutex_lock(&w->lock);
            ox_cond_signal(&w->ended);
            ox_mutex_unlock(&w->lock);
        }
    }
}

static void ox_workers_post(ox_workers *w, int nth) {
    const uint64_t was = atomic_load_explicit(&w->post, memory_order_relaxed);
    atomic_store(&w->post, ((was >> 32) + 1) << 32 | (uint32_t)nth);
    if (atomic_load(&w->sleepers)) {
        ox_mutex_lock(&w->lock);
        ox_cond_broadcast(&w->posted);
        ox_mutex_unlock(&w->lock);
    }
}

static void ox_workers_stop(ox_workers *w) {
    if (w->process == ox_process() && w->started) {
        w->quit = 1;
        ox_workers_post(w, w->started + 1);
        for (int i = 1; i <= w->started; i++) ox_thread_join(w->worker[i].thread);
    }
    w->started = 0;
}

/* Starts all threads, or none: returns 0, or the errno. */
static int ox_workers_start(ox_workers *w) {
    ox_signals was;
    int failed = 0;
    atomic_store(&w->post, 0);
    atomic_store(&w->sleepers, 0);
    atomic_store(&w->pending, 0);
    atomic_store(&w->waiting, 0);
    w->quit = w->started = 0;
    w->process = ox_process();
    ox_mutex_new(&w->lock);
    ox_cond_new(&w->posted);
    ox_cond_new(&w->ended);
    ox_signals_hold(&was);
    for (int i = 1; i < w->count && !failed; i++) {
        w->worker[i].workers = w;
        w->worker[i].ith = i;
        failed = ox_thread_start(&w->worker[i].thread, ox_workers_main, &w->worker[i]);
        w->started += !failed;
    }
    ox_signals_back(&was);
    if (failed) {
        ox_workers_stop(w);
        w->process = 0;                     /* nobody's: the next run starts them again */
    }
    return failed;
}

static int ox_workers_new(ox_workers **made, int count) {
    ox_workers *w = ox_block_new(sizeof *w + (size_t)count * sizeof w->worker[0]);
    *made = NULL;
    if (!w) return ENOMEM;
    w->count = count;
    int failed = ox_workers_start(w);
    if (failed)
        ox_block_free(w);
    else
        *made = w;
    return failed;
}

static void ox_workers_free(ox_workers *w) {
    if (!w) return;
    ox_workers_stop(w);
    ox_block_free(w);
}

/* The caller's own share. */
static void ox_workers_share(ox_work work, void *args, int nth) {
    fenv_t was = ox_fenv_enter();
    work(args, 0, nth);
    ox_fenv_leave(&was);
}

/* work(args, ith, nth) on the caller and nth - 1 threads; returns when all have ended, 0, or the errno of threads that a forked child could not start. */
static int ox_workers_run(ox_workers *w, ox_work work, void *args, int nth) {
    if (nth <= 1) {
        ox_workers_share(work, args, 1);
        return 0;
    }
    if (w->process != ox_process()) {
        int failed = ox_workers_start(w);
        if (failed) return failed;
    }
    w->work = work;
    w->args = args;
    atomic_store_explicit(&w->pending, nth - 1, memory_order_relaxed);
    ox_workers_post(w, nth);
    ox_workers_share(work, args, nth);
    for (int i = 0; i < OX_TEAM_SPINS; i++) {
        if (!atomic_load_explicit(&w->pending, memory_order_acquire)) return 0;
        ox_team_pause();
    }
    for (int i = 0; i < OX_TEAM_YIELDS; i++) {
        if (!atomic_load_explicit(&w->pending, memory_order_acquire)) return 0;
        ox_yield();
    }
    ox_mutex_lock(&w->lock);
    atomic_store(&w->waiting, 1);
    while (atomic_load(&w->pending)) ox_cond_wait(&w->ended, &w->lock);
    atomic_store(&w->waiting, 0);
    ox_mutex_unlock(&w->lock);
    return 0;
}

#endif
