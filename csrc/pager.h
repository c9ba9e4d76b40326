/* Weights that lie in a file and come into memory, packed, while a step runs.
 *
 * A page is some panels of a matrix (of two that are multiplied together), or of one expert. Threads of the pager read pages, pack them
 * and tell the workers of the step:
 *
 *     begin(todo)      pages of the step in the order of its tape ............................... end
 *     ring             | k | k+1 | k+2 | ...   page k of the order lies in slot k modulo slots; a reader takes the next one as soon as
 *                                              its slot is free, also beyond the end: a step is likely followed by one like it
 *     home             pages that stay: read once, then at their place in the matrix; they need no slot
 *     experts          a few slots for each op's experts: those used most stay; what a router chose is read when it has chosen
 *
 * A token reads all of a model in one order, over and over, so what was used last is what is wanted last: of pages in that order none is
 * kept but those at home, for good. Experts are kept by use.
 *
 * The workers of a step take pages in order (`ox_pager_await`), a chunk of each at a time, and give each chunk back (`ox_pager_done`); a slot
 * is free when all chunks of its page are. What is waited for while reads fail is never ready: the first failure ends the step.
 * One step at a time is between `begin` and `end`; another waits. */
#ifndef OX_PAGER_H
#define OX_PAGER_H

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "team.h"

enum {
    OX_PAGER_BLOCK = 4096,      /* reads that pass by the system's cache begin and end at a multiple */
    OX_PAGER_SPINS = 200,       /* looks at a page before a worker sleeps */
    OX_PAGER_HALVE = 64,        /* steps after which counts of use are halved: what was used long ago counts less */
    OX_PAGER_CHANGED = -1,      /* failures beside errno: the file is another than the one that was opened; it ended too early */
    OX_PAGER_SHORT = -2,
};
enum { OX_SOURCE_FILE, OX_SOURCE_DIRECT, OX_SOURCE_MAP };
enum { OX_EXPERT_ABSENT, OX_EXPERT_COMING, OX_EXPERT_HERE };

typedef int (*ox_pack_fn)(int form, uint8_t *panels, const uint8_t *source, int64_t row_bytes, int64_t rows, int64_t cols, int64_t first,
                           int64_t end);

typedef struct {
    int fd, direct;             /* direct: past the system's cache; -1 where the system refuses that */
    const uint8_t *map;
    const int32_t *lost;        /* a page of the map could not be read (filemap.h) */
    int64_t size, seconds, nanoseconds; /* as it was opened */
} ox_paged_file;

typedef struct {                /* panels of one matrix */
    const ox_paged_file *file;
    int form;
    int64_t offset, row_bytes;  /* of the first row in the file; a row there */
    int64_t rows, cols;         /* the last panel may not be full */
    int64_t panels, panel_bytes;
    int64_t place;              /* within a slot */
    uint8_t *home;              /* NULL: none */
} ox_part;

typedef struct {
    ox_part part[2];
    int parts, name;
    int chunks;                 /* that a step takes of it */
    int pinned;                 /* it belongs home; 2: whatever happens */
    int resident;               /* and is there */
    int64_t nbytes;
} ox_page;

typedef struct {                /* the pages of one op in the order of its chunks */
    ox_page *pages;
    int count;
    int per;                    /* chunks of a page; the last of a matrix may have fewer */
    int *first;                 /* page of each segment */
    int64_t todo;               /* its first page in this step's order */
    int streams;                /* not all of it is at home */
} ox_paged_op;

typedef struct {
    _Alignas(64) _Atomic int64_t ready;     /* number of the page that lies here, counted from the pager's beginning; -1 none */
    _Atomic int32_t left;                   /* chunks that are not given back yet; 0: free */
    const ox_page *page;
    uint8_t *data;
} ox_ring_slot;

typedef struct ox_experts {
    ox_page *pages;                 /* of each expert */
    int experts, slots, active;     /* active: slots in use now */
    int64_t slot_bytes;
    uint8_t *memory;
    int64_t panels;                 /* of one expert: what a part multiplies */
    struct ox_experts *then;        /* the next op that the same choice is used by */
    int64_t planned, plans;         /* the step that was planned for */
    int count, waiting, sent;       /* experts chosen; those that must be read, and how many readers were told */
    int32_t *order, *misses;
    int32_t *slot_of, *holds;       /* of an expert, of a slot; -1 none */
    _Atomic int32_t *state, *left;
    uint32_t *used;
    int64_t *last;
    int queued;                     /* listed in `caches` of its pager */
} ox_experts;

typedef struct { ox_experts *cache; int32_t expert; } ox_request;

typedef struct {
    int64_t resident_bytes, pages_read, bytes_read, hits, waited_ns;
} ox_pager_counts;

typedef struct ox_pager {
    ox_mutex lock;
    ox_cond work, changed;
    int source, threads, started, quit;
    int64_t read;                   /* bytes of a file that are read at a time */
    int process;
    ox_thread *thread;
    ox_pack_fn pack;
    /* the ring */
    ox_ring_slot *ring;
    int slots;
    int64_t slot_bytes;
    uint8_t *memory;
    ox_page **todo;
    int64_t n, room;                /* pages of this step's order */
    int64_t base, next;             /* number of the first of them; of the next page that is read */
    /* experts */
    ox_experts **caches;
    int n_caches;
    ox_request *queue;
    int64_t head, tail, queue_room;
    /* the state of things */
    int stepping, held, loading, broken;
    int64_t step;
    int64_t reader_room;            /* bytes that each reader needs */
    int failed;                     /* errno, or what stands above; 0 none */
    const ox_page *failed_page;
    ox_pager_counts counts;
} ox_pager;

/* ---- reading ---------------------------------------------------------------------------------------------------------- */

static int ox_paged_unchanged(const ox_paged_file *file) {
    ox_file_status now = {-1, 0, 0};  /* no file has that size: gcc cannot know that errno is not 0 after a failure */
    int failed = ox_file_look(file->fd, &now);
    if (failed) return failed;
    if (now.size != file->size || now.seconds != file->seconds || now.nanoseconds != file->nanoseconds) return OX_PAGER_CHANGED;
    return file->lost && __atomic_load_n(file->lost, __ATOMIC_RELAXED) ? EIO : 0;
}

static int ox_paged_pread(int fd, uint8_t *room, int64_t offset, int64_t size, int64_t least) {
    for (int64_t got = 0; got < least;) {
        int64_t some = ox_file_read(fd, room + got, (size_t)(size - got), offset + got);
        if (some == -EINTR) continue;
        if (some < 0) return (int)-some;
        if (some == 0) return OX_PAGER_SHORT;
        got += some;
    }
    return 0;
}

/* `size` bytes of a file: `*found` points to them, in `room` (two blocks larger than they) or in the mapping. 0 or a failure. */
static int ox_paged_read(const ox_pager *p, const ox_paged_file *file, int64_t offset, int64_t size, uint8_t *room, const uint8_t **found) {
    if (offset + size > file->size) return OX_PAGER_SHORT;
    if (p->source == OX_SOURCE_MAP) {
        *found = file->map + offset;
        uintptr_t first = ox_page_of(*found);      /* errors are told here; a look at the bytes would be killed */
        int failed = ox_populate((const void *)first, (uintptr_t)*found + (uintptr_t)size - first);
        return failed == EINVAL ? 0 : failed == EFAULT ? EIO : failed;
    }
    if (p->source == OX_SOURCE_DIRECT && file->direct >= 0) {
        int64_t first = offset / OX_PAGER_BLOCK * OX_PAGER_BLOCK;
        int64_t end = (offset + size + OX_PAGER_BLOCK - 1) / OX_PAGER_BLOCK * OX_PAGER_BLOCK;
        *found = room + (offset - first);
        return ox_paged_pread(file->direct, room, first, end - first, offset + size - first);
    }
    *found = room;
    return ox_paged_pread(file->fd, room, offset, size, size);
}

static void ox_paged_release(const ox_pager *p, const uint8_t *found, int64_t size) {
    uintptr_t first = ox_page_of(found);
    if (p->source == OX_SOURCE_MAP) ox_let_pages_go((const void *)first, (uintptr_t)found + (uintptr_t)size - first);
}

/* Brings a page home, or into a slot. 0 or a failure. */
static int ox_page_load(const ox_pager *p, const ox_page *page, uint8_t *slot, uint8_t *room, int64_t *bytes) {
    for (int i = 0; i < page->parts; i++) {
        const ox_part *part = &page->part[i];
        uint8_t *to = page->pinned ? part->home : slot + part->place;
        int failed = ox_paged_unchanged(part->file);
        int64_t step = p->read / (16 * part->row_bytes);
        if (step < 1) step = 1;
        for (int64_t panel = 0; panel < part->panels && !failed; panel += step) {
            int64_t n = panel + step < part->panels ? step : part->panels - panel, live = part->rows - 16 * panel;
            const uint8_t *found;
            if (live > 16 * n) live = 16 * n;
            failed = ox_paged_read(p, part->file, part->offset + 16 * panel * part->row_bytes, live * part->row_bytes, room, &found);
            if (failed) break;
            p->pack(part->form, to + panel * part->panel_bytes, found, part->row_bytes, live, part->cols, 0, n);
            ox_paged_release(p, found, live * part->row_bytes);
            *bytes += live * part->row_bytes;
        }
        if (!failed) failed = ox_paged_unchanged(part->file);   /* again: all of it was read of one file */
        if (failed) return failed;
    }
    return 0;
}

/* Bytes that a reader needs for what it has read and not yet packed. */
static int64_t ox_page_room(const ox_pager *p, const ox_page *page) {
    int64_t most = 0;
    for (int i = 0; i < page->parts; i++) {
        int64_t panel = 16 * page->part[i].row_bytes, step = p->read / panel;
        if (panel * (step < 1 ? 1 : step) > most) most = panel * (step < 1 ? 1 : step);
    }
    return most;
}

static int64_t ox_reader_room(const ox_pager *p) {
    int64_t most = p->read;
    for (int64_t i = 0; i < p->n; i++)
        if (ox_page_room(p, p->todo[i]) > most) most = ox_page_room(p, p->todo[i]);
    for (int i = 0; i < p->n_caches; i++)
        if (ox_page_room(p, p->caches[i]->pages) > most) most = ox_page_room(p, p->caches[i]->pages);
    return (most + OX_PAGER_BLOCK - 1) / OX_PAGER_BLOCK * OX_PAGER_BLOCK + 2 * OX_PAGER_BLOCK;
}

/* The slot of the next page of the order, where a reader may take it now. */
static ox_ring_slot *ox_ring_next(ox_pager *p) {
    if (!p->n || p->next >= p->base + (p->stepping ? 2 : 1) * p->n) return NULL;
    ox_ring_slot *slot = p->ring + p->next % p->slots;
    return atomic_load(&slot->left) ? NULL : slot;
}

static void *ox_reader_main(void *start) {
    ox_pager *p = start;
    uint8_t *room = NULL;
    int64_t size = 0;
    ox_mutex_lock(&p->lock);
    while (!p->quit) {
        ox_ring_slot *slot = NULL;
        ox_request request = {NULL, 0};
        if (!p->held && !p->failed) {
            if (p->head < p->tail)
                request = p->queue[p->head++ % p->queue_room];
            else
                slot = ox_ring_next(p);
        }
        if (!slot && !request.cache) {
            ox_cond_wait(&p->work, &p->lock);
            continue;
        }
        int64_t number = p->next, bytes = 0;
        ox_page *page = slot ? p->todo[(number - p->base) % p->n] : request.cache->pages + request.expert;
        uint8_t *data = slot ? slot->data : request.cache->memory + request.cache->slot_of[request.expert] * request.cache->slot_bytes;
        int64_t wanted = p->reader_room;
        int resident = slot && page->resident, failed = 0;
        if (slot) {
            slot->page = page;
            atomic_store(&slot->left, page->chunks);
            p->next++;
        }
        p->loading++;
        ox_mutex_unlock(&p->lock);
        if (wanted > size) {
            ox_aligned_free(room);
            room = ox_aligned_new(OX_PAGER_BLOCK, (size_t)wanted);
            size = room ? wanted : 0;
        }
        if (!resident) failed = room || p->source == OX_SOURCE_MAP ? ox_page_load(p, page, data, room, &bytes) : ENOMEM;
        ox_mutex_lock(&p->lock);
        p->loading--;
        p->counts.bytes_read += bytes;
        if (failed) {
            if (!p->failed) p->failed = failed, p->failed_page = page;
        } else {
            p->counts.pages_read += !resident;
            p->counts.hits += resident;
            if (slot) {
                if (page->pinned && !page->resident) page->resident = 1, p->counts.resident_bytes += page->nbytes;
                atomic_store(&slot->ready, number);
            } else {
                atomic_store(&request.cache->state[request.expert], OX_EXPERT_HERE);
                p->counts.resident_bytes += page->nbytes;
            }
        }
        ox_cond_broadcast(&p->changed);
    }
    ox_mutex_unlock(&p->lock);
    ox_aligned_free(room);
    return NULL;
}

/* ---- threads ---------------------------------------------------------------------------------------------------------- */

static void ox_pager_forget(ox_pager *p);

static int ox_pager_start(ox_pager *p) {
    ox_signals was;
    int failed = 0;
    ox_mutex_new(&p->lock);
    ox_cond_new(&p->work);
    ox_cond_new(&p->changed);
    p->quit = p->started = p->loading = p->stepping = 0;
    p->process = ox_process();
    ox_signals_hold(&was);
    for (int i = 0; i < p->threads && !failed; i++) {
        failed = ox_thread_start(&p->thread[i], ox_reader_main, p);
        p->started += !failed;
    }
    ox_signals_back(&was);
    return p->started ? 0 : failed;         /* fewer readers than wanted are slower, no more */
}

/* A forked child has the parent's pager without its readers, at any point of what these and a step did: readers of its own are started, which wait
 * until all that is forgotten. 0, or the errno of threads that the system refused: they are started the next time. */
static int ox_pager_adopt(ox_pager *p) {
    if (p->process == ox_process()) return 0;
    p->held = p->broken = 1;
    int failed = ox_pager_start(p);
    if (failed) p->process = 0;
    return failed;
}

/* Ends the readers, after a step that runs; returns when what they were reading is read. No step begins any more. */
static void ox_pager_stop(ox_pager *p) {
    if (p->process == ox_process() && p->started) {
        ox_mutex_lock(&p->lock);
        while (p->stepping) ox_cond_wait(&p->changed, &p->lock);
        p->quit = 1;
        ox_cond_broadcast(&p->work);
        ox_cond_broadcast(&p->changed);
        ox_mutex_unlock(&p->lock);
        for (int i = 0; i < p->started; i++) ox_thread_join(p->thread[i]);
    }
    p->started = 0;
}

/* ---- a step ----------------------------------------------------------------------------------------------------------- */

/* Forgets what was read ahead or requested, when no reader is at work. Pages that stay in memory and loaded experts are kept. */
static void ox_pager_forget(ox_pager *p) {
    p->held = 1;
    while (p->loading) ox_cond_wait(&p->changed, &p->lock);
    for (int i = 0; i < p->slots; i++) {
        atomic_store(&p->ring[i].ready, -1);
        atomic_store(&p->ring[i].left, 0);
    }
    for (int i = 0; i < p->n_caches; i++) {
        ox_experts *c = p->caches[i];
        c->waiting = c->sent = 0;
        for (int e = 0; e < c->experts; e++) {
            atomic_store(&c->left[e], 0);
            if (atomic_load(&c->state[e]) == OX_EXPERT_COMING) {
                atomic_store(&c->state[e], OX_EXPERT_ABSENT);
                c->holds[c->slot_of[e]] = -1;
                c->slot_of[e] = -1;
            }
        }
    }
    p->head = p->tail = 0;
    p->base = p->next = 0;
    p->failed = p->broken = 0;
    p->failed_page = NULL;
    p->held = 0;
}

/* Waits for another step to end; this one then has the pager until `end`. 0, ECANCELED where it was closed, or the errno of threads that could
 * not be started again in a forked child. */
static int ox_pager_enter(ox_pager *p) {
    int failed = ox_pager_adopt(p);
    if (failed) return failed;
    ox_mutex_lock(&p->lock);
    while (p->stepping && !p->quit) ox_cond_wait(&p->changed, &p->lock);
    if (p->quit) {
        ox_mutex_unlock(&p->lock);
        return ECANCELED;
    }
    p->stepping = 1;
    ox_mutex_unlock(&p->lock);
    return 0;
}

/* Of a step that has entered: the pages that an op needs go to the end of `todo`, which has `n` of them and room for all; returns how many it has
 * then. None, where all are at home. Readers may still bring pages of the step before. */
static int64_t ox_pager_want(ox_pager *p, ox_paged_op *op, ox_page **todo, int64_t n) {
    int here = 0;
    ox_mutex_lock(&p->lock);
    for (int i = 0; i < op->count; i++) here += op->pages[i].resident;
    op->streams = here < op->count;
    if (!op->streams) p->counts.hits += op->count;
    ox_mutex_unlock(&p->lock);
    op->todo = n;
    for (int i = 0; op->streams && i < op->count; i++) todo[n++] = &op->pages[i];
    return n;
}

/* The pages of a step that has entered. `todo` (`n` pages, with room for `room`) becomes the pager's, the old one is handed back. */
static void ox_pager_begin(ox_pager *p, ox_page ***todo, int64_t n, int64_t *room) {
    ox_mutex_lock(&p->lock);
    int64_t ahead = p->next - p->base;
    int fits = !p->failed && !p->broken && p->head == p->tail && ahead <= n;
    for (int64_t i = 0; fits && i < ahead; i++) fits = (*todo)[i] == p->todo[i % (p->n ? p->n : 1)];
    if (!fits) ox_pager_forget(p);
    ox_page **was = p->todo;
    int64_t had = p->room;
    p->todo = *todo, p->n = n, p->room = *room;
    *todo = was, *room = had;
    p->step++;
    p->reader_room = ox_reader_room(p);
    ox_cond_broadcast(&p->work);
    ox_mutex_unlock(&p->lock);
}

/* After the step. whole: all of its pages were taken. Returns its failure, 0 if none. */
static int ox_pager_end(ox_pager *p, int whole, const ox_page **page) {
    ox_mutex_lock(&p->lock);
    int failed = p->failed;
    *page = p->failed_page;
    p->stepping = 0;
    if (whole)
        p->base += p->n;
    else
        p->broken = 1;
    ox_cond_broadcast(&p->changed);
    ox_cond_broadcast(&p->work);
    ox_mutex_unlock(&p->lock);
    return failed;
}

/* The slot of page `number` of this step's order once it is read; NULL where reading failed or the step was cancelled. */
static ox_ring_slot *ox_pager_await(ox_pager *p, int64_t number, const ox_team *team) {
    int64_t wanted = p->base + number;
    ox_ring_slot *slot = p->ring + wanted % p->slots;
    for (int i = 0; i < OX_PAGER_SPINS; i++) {
        if (atomic_load_explicit(&slot->ready, memory_order_acquire) == wanted) return slot;
        ox_team_pause();
    }
    int64_t start = ox_clock_ns();
    ox_mutex_lock(&p->lock);
    while (atomic_load(&slot->ready) != wanted && !p->failed && !ox_team_cancelled(team)) ox_cond_doze(&p->changed, &p->lock);
    p->counts.waited_ns += ox_clock_ns() - start;
    int here = atomic_load(&slot->ready) == wanted;
    ox_mutex_unlock(&p->lock);
    return here ? slot : NULL;
}

/* The bytes of part `i` of a page that was awaited. */
static const uint8_t *ox_page_data(const ox_ring_slot *slot, const ox_page *page, int i) {
    return page->pinned ? page->part[i].home : slot->data + page->part[i].place;
}

/* Gives a chunk of a page back. */
static void ox_pager_done(ox_pager *p, ox_ring_slot *slot) {
    if (atomic_fetch_sub(&slot->left, 1) == 1) {
        ox_mutex_lock(&p->lock);
        ox_cond_signal(&p->work);
        ox_mutex_unlock(&p->lock);
    }
}

/* ---- experts ---------------------------------------------------------------------------------------------------------- */

/* A slot for an expert: an empty one, or that of the one used least (of those: longest ago) that this step does not need; -1 none. */
static int ox_experts_victim(const ox_experts *c) {
    int best = -1;
    for (int s = 0; s < c->active; s++) {
        int e = c->holds[s];
        if (e < 0) return s;
        if (atomic_load(&c->state[e]) != OX_EXPERT_HERE || atomic_load(&c->left[e])) continue;
        if (best >= 0) {
            int b = c->holds[best];
            if (c->used[e] > c->used[b] || (c->used[e] == c->used[b] && c->last[e] >= c->last[b])) continue;
        }
        best = s;
    }
    return best;
}

static void ox_experts_drop(ox_pager *p, ox_experts *c, int slot) {
    int e = c->holds[slot];
    if (e < 0) return;
    atomic_store(&c->state[e], OX_EXPERT_ABSENT);
    c->slot_of[e] = -1;
    c->holds[slot] = -1;
    p->counts.resident_bytes -= c->pages[e].nbytes;
}

/* Has readers bring what is missing, as far as there are slots for it. */
static void ox_experts_send(ox_pager *p, ox_experts *c) {
    int some = 0;
    while (c->sent < c->waiting) {
        int slot = ox_experts_victim(c), e = c->misses[c->sent];
        if (slot < 0) break;
        ox_experts_drop(p, c, slot);
        c->holds[slot] = e;
        c->slot_of[e] = slot;
        atomic_store(&c->state[e], OX_EXPERT_COMING);
        p->queue[p->tail++ % p->queue_room] = (ox_request){c, e};
        c->sent++;
        some = 1;
    }
    if (some) ox_cond_broadcast(&p->work);
}

static void ox_experts_choose(ox_pager *p, ox_experts *c, const int32_t *chosen, const int32_t *begins, int count) {
    int here = 0;
    c->planned = p->step;
    c->count = count;
    c->waiting = c->sent = 0;
    if (++c->plans % OX_PAGER_HALVE == 0)
        for (int e = 0; e < c->experts; e++) c->used[e] /= 2;
    for (int i = 0; i < count; i++) {
        int e = chosen[i];
        atomic_store(&c->left[e], (int32_t)((begins[i + 1] - begins[i]) * c->panels));
        c->used[e] += 16;
        c->last[e] = p->step;
        if (atomic_load(&c->state[e]) != OX_EXPERT_ABSENT) c->order[here++] = i;
    }
    p->counts.hits += here;
    for (int i = 0; i < count; i++)
        if (atomic_load(&c->state[chosen[i]]) == OX_EXPERT_ABSENT) {
            c->order[here + c->waiting] = i;
            c->misses[c->waiting++] = chosen[i];
        }
    ox_experts_send(p, c);
}

/* What a router chose, once a step by whoever comes first: `order` then holds the numbers of `chosen`, those that are here before those that
 * come. The ops that the same choice is used by are read for too. */
static void ox_experts_plan(ox_pager *p, ox_experts *c, const int32_t *chosen, const int32_t *begins, int count) {
    ox_mutex_lock(&p->lock);
    for (; c; c = c->then)
        if (c->planned != p->step) ox_experts_choose(p, c, chosen, begins, count);
    ox_mutex_unlock(&p->lock);
}

/* The slot of an expert once it is here; NULL where reading failed or the step was cancelled. */
static const uint8_t *ox_experts_await(ox_pager *p, ox_experts *c, int expert, const ox_team *team) {
    if (atomic_load_explicit(&c->state[expert], memory_order_acquire) != OX_EXPERT_HERE) {
        int64_t start = ox_clock_ns();
        ox_mutex_lock(&p->lock);
        while (atomic_load(&c->state[expert]) != OX_EXPERT_HERE && !p->failed && !ox_team_cancelled(team)) ox_cond_doze(&p->changed, &p->lock);
        p->counts.waited_ns += ox_clock_ns() - start;
        int here = atomic_load(&c->state[expert]) == OX_EXPERT_HERE;
        ox_mutex_unlock(&p->lock);
        if (!here) return NULL;
    }
    return c->memory + c->slot_of[expert] * c->slot_bytes;
}

/* So many panels were multiplied by a part of an expert each. */
static void ox_experts_done(ox_pager *p, ox_experts *c, int expert, int32_t panels) {
    if (atomic_fetch_sub(&c->left[expert], panels) == panels) {
        ox_mutex_lock(&p->lock);
        if (c->sent < c->waiting) ox_experts_send(p, c);
        ox_mutex_unlock(&p->lock);
    }
}

/* ---- between steps ---------------------------------------------------------------------------------------------------- */

static void ox_pager_drop_memory(uint8_t *start, int64_t size) {
    uintptr_t first = ox_page_after(start), end = ox_page_of(start + size);
    if (end > first) ox_drop((void *)first, end - first);
}

/* Waits until no step runs and nothing is read, and forgets what was read ahead; until `resume` no step begins. Fails as `ox_pager_adopt` does. */
static int ox_pager_quiesce(ox_pager *p) {
    int failed = ox_pager_adopt(p);
    if (failed) return failed;
    ox_mutex_lock(&p->lock);
    while (p->stepping) ox_cond_wait(&p->changed, &p->lock);
    p->stepping = 1;
    ox_pager_forget(p);
    p->n = 0;
    ox_mutex_unlock(&p->lock);
    return 0;
}

static void ox_pager_resume(ox_pager *p) {
    ox_mutex_lock(&p->lock);
    p->stepping = 0;
    ox_cond_broadcast(&p->changed);
    ox_mutex_unlock(&p->lock);
}

/* Gives a page at home back to the system: it comes through the ring from now on. No step may run. */
static int64_t ox_page_evict(ox_pager *p, ox_page *page) {
    if (page->pinned != 1) return 0;
    page->pinned = 0;
    if (!page->resident) return 0;
    page->resident = 0;
    for (int i = 0; i < page->parts; i++) ox_pager_drop_memory(page->part[i].home, page->part[i].panels * page->part[i].panel_bytes);
    p->counts.resident_bytes -= page->nbytes;
    return page->nbytes;
}

/* Leaves an op's experts so many slots. No step may run. */
static int64_t ox_experts_limit(ox_pager *p, ox_experts *c, int active) {
    int64_t before = p->counts.resident_bytes;
    for (int s = active; s < c->active; s++) ox_experts_drop(p, c, s);
    if (active < c->active) ox_pager_drop_memory(c->memory + active * c->slot_bytes, (c->active - active) * c->slot_bytes);
    c->active = active;
    return before - p->counts.resident_bytes;
}

#endif
