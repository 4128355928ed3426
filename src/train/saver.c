/* train/saver.c – a run's state copied and written beside the training; see saver.h.
 *
 * The parts of a device's buffer that lie together are one stretch: one download into the copy, straight from the
 * device where it is the whole buffer. Trained tensors have a copy that is kept, frozen ones a second one that lives
 * for the save that must write them. The worker reads the copy, the job and nothing else of the run; while it is busy
 * the caller touches none of them, so the lock guards the hand-over and the results alone.
 *
 * Not here: ownership of tensors (state.c), what a failed save means for the run (save.c).
 */
#include "train/saver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/thread.h"

/* Parts of one buffer that lie together, and where they are in the copy of their kind. */
typedef struct stretch {
    const ts_buffer *buffer;
    size_t first, n; /* parts */
    size_t at, bytes, place;
    bool frozen;
} stretch;

/* What gives a part's elements where there is no copy. */
typedef struct source {
    ts_saver *saver;
    const ts_state_part *part;
} source;

struct ts_saver {
    ts_saver_options o;
    char *folder, *mesh; /* what o's point to */
    ts_state_part *part; /* [n_part] */
    ts_checkpoint_part *out; /* the same as the checkpoint takes them */
    source *source;
    size_t n_part;
    stretch *stretch;
    size_t n_stretch;
    size_t bytes[2]; /* of the trained and the frozen parts */
    char *copy[2];
    bool pieces_said, failed_device;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool threaded, quit;
    bool busy; /* the rest belongs to the thread */
    json_t *state;
    double score;
    ts_saved now;
    double began;
    char *frozen_from, *next; /* the newest checkpoint that can be linked from; what it will be */
    int64_t *damaged;         /* [n_damaged]: steps that were skipped for an older one */
    size_t n_damaged;

    ts_saved *ended; /* [n_ended], room for one more while one is being written */
    size_t n_ended;
    double slowest; /* of late: copied and written */
    int64_t durable;
};

static ts_status out_of_memory(ts_error *err)
{
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for saving checkpoints");
}

/* ---- what is saved --------------------------------------------------------------------------- */

static ts_status fill(void *context, uint64_t first, size_t n, float *to, ts_error *err)
{
    const source *from = context;
    ts_status status = ts_state_part_read(from->part, first, n, to, err);
    if (status != TS_OK) from->saver->failed_device = true;
    return status;
}

/* Parts come by device and tensor, so those of one buffer follow each other. */
static void find_stretches(ts_saver *s)
{
    for (size_t i = 0; i < s->n_part; i++) {
        const ts_state_part *p = &s->part[i];
        const size_t bytes = p->box.elements * sizeof(float);
        stretch *last = s->n_stretch ? &s->stretch[s->n_stretch - 1] : NULL;
        if (last && last->buffer == p->buffer && last->at + last->bytes == p->at) {
            last->n++;
            last->bytes += bytes;
        } else {
            s->stretch[s->n_stretch++] = (stretch){.buffer = p->buffer,
                                                   .first = i,
                                                   .n = 1,
                                                   .at = p->at,
                                                   .bytes = bytes,
                                                   .place = s->bytes[p->frozen],
                                                   .frozen = p->frozen};
        }
        s->bytes[p->frozen] += bytes;
    }
}

static void describe_part(ts_saver *s, size_t i)
{
    const ts_state_part *p = &s->part[i];
    const ts_param_info *param = p->tensor.param;
    ts_checkpoint_part *out = &s->out[i];
    s->source[i] = (source){s, p};
    *out = (ts_checkpoint_part){.name = p->tensor.name,
                                .rank = param->file_rank,
                                .box = p->box,
                                .device = p->device,
                                .frozen = p->frozen,
                                .context = &s->source[i]};
    for (int k = 0; k < param->file_rank; k++) out->dim[k] = param->file_dim[k];
}

static ts_status find_parts(ts_saver *s, const ts_state *state, ts_error *err)
{
    TS_TRY(ts_state_parts(state, &s->part, &s->n_part, err));
    s->out = ts_alloc_zero((s->n_part + 1) * sizeof *s->out);
    s->source = ts_alloc_zero((s->n_part + 1) * sizeof *s->source);
    s->stretch = ts_alloc_zero((s->n_part + 1) * sizeof *s->stretch);
    if (!s->out || !s->source || !s->stretch) return out_of_memory(err);
    for (size_t i = 0; i < s->n_part; i++) describe_part(s, i);
    find_stretches(s);
    return TS_OK;
}

static ts_checkpoint_save_options save_options(const ts_saver *s)
{
    ts_checkpoint_save_options o;
    ts_checkpoint_save_options_default(&o);
    o.folder = s->o.folder;
    o.step = s->now.step;
    o.part = s->out;
    o.n_part = s->n_part;
    o.devices = s->o.devices;
    o.mesh = s->o.mesh;
    o.state = s->state;
    o.score = s->score;
    o.commit = s->o.commit;
    o.frozen_from = s->frozen_from;
    return o;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* What was just saved took its place. */
static void forget_damage(ts_saver *s, int64_t step)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_damaged; i++)
        if (s->damaged[i] != step) s->damaged[n++] = s->damaged[i];
    s->n_damaged = n;
}

static void write_checkpoint(ts_saver *s)
{
    ts_error *err = &s->now.error, why = {0};
    const double start = ts_clock_seconds();
    const ts_checkpoint_save_options o = save_options(s);
    ts_status status = ts_checkpoint_save(&o, err);
    if (status == TS_OK) {
        char *before = s->frozen_from;
        s->frozen_from = s->next;
        s->next = before;
        forget_damage(s, s->now.step);
        status = ts_checkpoint_keep_sound(s->o.folder, s->now.step, s->o.newest, s->o.best,
                                          s->damaged, s->n_damaged, &why);
        if (status != TS_OK)
            ts_log(TS_LOG_WARNING, "step %lld is saved, but older checkpoints stay: %s",
                   (long long)s->now.step, why.msg);
    }
    ts_free(s->next);
    s->next = NULL;
    json_decref(s->state);
    s->state = NULL;
    ts_free(s->copy[1]); /* the next save finds the frozen tensors here */
    s->copy[1] = NULL;
    s->now.written = ts_clock_seconds() - start;
}

/* With the lock held. */
static void finish(ts_saver *s)
{
    const double total = s->now.copied + s->now.written;
    if (s->now.error.code == TS_OK)
        s->slowest = total > 0.8 * s->slowest ? total : 0.8 * s->slowest;
    if (s->now.error.code == TS_OK) s->durable = s->now.step;
    s->ended[s->n_ended++] = s->now;
    s->busy = false;
}

static void *work(void *context)
{
    ts_saver *s = context;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->busy && !s->quit) pthread_cond_wait(&s->change, &s->lock);
        if (!s->busy) break;
        pthread_mutex_unlock(&s->lock);
        write_checkpoint(s);
        pthread_mutex_lock(&s->lock);
        finish(s);
        pthread_cond_broadcast(&s->change);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void wait_for_it(ts_saver *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->busy) pthread_cond_wait(&s->change, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* ---- opening --------------------------------------------------------------------------------- */

ts_status ts_saver_open(const ts_saver_options *o, const ts_state *state, ts_saver **out,
                        ts_error *err)
{
    ts_saver *s = ts_alloc_zero(sizeof *s);
    *out = NULL;
    if (!s) return out_of_memory(err);
    s->o = *o;
    s->o.folder = s->folder = ts_strdup(o->folder);
    s->o.mesh = s->mesh = ts_strdup(o->mesh);
    s->durable = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->change, NULL);
    ts_status status = s->folder && s->mesh ? find_parts(s, state, err) : out_of_memory(err);
    if (status != TS_OK) {
        ts_saver_close(s);
        return status;
    }
    s->threaded = o->asynchronous && ts_thread_start(&s->thread, work, s) == 0;
    if (o->asynchronous && !s->threaded)
        ts_log(TS_LOG_WARNING,
               "no thread could be made to save beside the training; it waits while it is saved");
    *out = s;
    return TS_OK;
}

void ts_saver_close(ts_saver *s)
{
    if (!s) return;
    if (s->threaded) {
        pthread_mutex_lock(&s->lock);
        s->quit = true;
        pthread_cond_broadcast(&s->change);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    pthread_cond_destroy(&s->change);
    pthread_mutex_destroy(&s->lock);
    for (int i = 0; i < 2; i++) ts_free(s->copy[i]);
    ts_free(s->frozen_from);
    ts_free(s->damaged);
    ts_free(s->ended);
    ts_free(s->stretch);
    ts_free(s->source);
    ts_free(s->out);
    ts_free(s->part);
    ts_free(s->folder);
    ts_free(s->mesh);
    ts_free(s);
}

/* ---- the copy -------------------------------------------------------------------------------- */

/* Room for the copy of a kind, if there is none yet. A machine that would have to take it from others has none. */
static bool make_room(ts_saver *s, int kind)
{
    if (s->copy[kind]) return true;
    if (s->bytes[kind] > ts_memory_available()) return false;
    s->copy[kind] = ts_alloc(s->bytes[kind]);
    return s->copy[kind] != NULL;
}

static ts_status copy_stretch(ts_saver *s, const stretch *t, ts_error *err)
{
    char *to = s->copy[t->frozen] + t->place;
    ts_status status = ts_download((ts_buffer *)t->buffer, to, t->at, t->bytes, err);
    s->failed_device |= status != TS_OK;
    if (status != TS_OK)
        return ts__error_context(err, "values of \"%s\"", s->part[t->first].tensor.name), status;
    for (size_t i = t->first; i < t->first + t->n; i++)
        s->out[i].data = (const float *)(const void *)(to + (s->part[i].at - t->at));
    return TS_OK;
}

/* From the devices, or for none of the parts where there is no room: then *copied is false. */
static ts_status copy_parts(ts_saver *s, bool frozen, bool *copied, ts_error *err)
{
    const bool room = s->threaded && make_room(s, 0) && (!frozen || make_room(s, 1));
    *copied = room;
    for (size_t i = 0; i < s->n_part; i++) {
        s->out[i].data = NULL;
        s->out[i].fill = !room && (frozen || !s->part[i].frozen) ? fill : NULL;
    }
    if (!room && s->threaded && !s->pieces_said) {
        s->pieces_said = true;
        ts_log(TS_LOG_WARNING,
               "no memory for a copy of %.2f GB to save from beside the training; it waits while "
               "it is saved",
               (double)(s->bytes[0] + (frozen ? s->bytes[1] : 0)) / 1e9);
    }
    for (size_t i = 0; room && i < s->n_stretch; i++)
        if (frozen || !s->stretch[i].frozen) TS_TRY(copy_stretch(s, &s->stretch[i], err));
    return TS_OK;
}

/* ---- saving ---------------------------------------------------------------------------------- */

/* Room for one more result, and the name that the checkpoint will have. */
static ts_status reserve(ts_saver *s, int64_t step, ts_error *err)
{
    const size_t size = sizeof *s->ended;
    ts_saved *more = ts_realloc(s->ended, s->n_ended * size, (s->n_ended + 1) * size);
    if (!more) return out_of_memory(err);
    s->ended = more;
    size_t n = strlen(s->o.folder) + 32;
    s->next = ts_alloc(n);
    if (!s->next) return out_of_memory(err);
    snprintf(s->next, n, "%s/%lld", s->o.folder, (long long)step);
    return TS_OK;
}

static ts_status copy_state(ts_saver *s, bool *copied, ts_error *err)
{
    const double start = ts_clock_seconds();
    const ts_checkpoint_save_options o = save_options(s);
    const bool frozen = s->bytes[1] > 0 && !ts_checkpoint_has_frozen(&o);
    TS_TRY(copy_parts(s, frozen, copied, err));
    s->now.bytes = s->bytes[0] + (frozen ? s->bytes[1] : 0);
    if (*copied) s->now.copied = ts_clock_seconds() - start;
    return TS_OK;
}

/* In this thread. What the devices did not give is the caller's to know at once. */
static ts_status save_now(ts_saver *s, ts_error *err)
{
    write_checkpoint(s);
    if (s->failed_device) return TS_ERROR(err, s->now.error.code, "%s", s->now.error.msg);
    pthread_mutex_lock(&s->lock);
    finish(s);
    pthread_mutex_unlock(&s->lock);
    return TS_OK;
}

static void hand_over(ts_saver *s)
{
    pthread_mutex_lock(&s->lock);
    s->busy = true;
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->lock);
}

ts_status ts_saver_begin(ts_saver *s, int64_t step, json_t *state, double score, ts_error *err)
{
    const double start = ts_clock_seconds();
    bool copied = false;
    wait_for_it(s);
    s->began = ts_clock_seconds();
    s->now = (ts_saved){.step = step, .waited = s->began - start};
    s->state = state;
    s->score = score;
    s->failed_device = false;
    ts_status status = reserve(s, step, err);
    if (status == TS_OK) status = copy_state(s, &copied, err);
    if (status != TS_OK) {
        json_decref(s->state);
        s->state = NULL;
        ts_free(s->next);
        s->next = NULL;
        return ts__error_context(err, "the checkpoint of step %lld was not saved",
                                 (long long)step),
               status;
    }
    if (!copied) return save_now(s, err);
    hand_over(s);
    return TS_OK;
}

/* ---- how it goes ----------------------------------------------------------------------------- */

bool ts_saver_lost_device(const ts_saver *s)
{
    return s->failed_device;
}

bool ts_saver_is_busy(ts_saver *s)
{
    pthread_mutex_lock(&s->lock);
    bool busy = s->busy;
    pthread_mutex_unlock(&s->lock);
    return busy;
}

int64_t ts_saver_durable(ts_saver *s)
{
    pthread_mutex_lock(&s->lock);
    int64_t step = s->durable;
    pthread_mutex_unlock(&s->lock);
    return step;
}

bool ts_saver_ended(ts_saver *s, bool wait, ts_saved *out)
{
    pthread_mutex_lock(&s->lock);
    while (wait && s->busy && s->n_ended == 0) pthread_cond_wait(&s->change, &s->lock);
    bool any = s->n_ended > 0;
    if (any) {
        *out = s->ended[0];
        memmove(s->ended, s->ended + 1, --s->n_ended * sizeof *s->ended);
    }
    pthread_mutex_unlock(&s->lock);
    return any;
}

/* The slowest of late, with some room; one that is being written must end first. */
double ts_saver_estimate(const ts_saver *s)
{
    ts_saver *shared = (ts_saver *)s;
    pthread_mutex_lock(&shared->lock);
    double one = 1.25 * s->slowest, before = 0;
    if (s->busy) {
        const double passed = ts_clock_seconds() - s->began;
        before = one > passed ? one - passed : 0.25 * passed;
        if (s->slowest <= 0) one = passed;
    }
    pthread_mutex_unlock(&shared->lock);
    return one + before;
}

/* The newest that verifies was taken: whatever is newer does not, although it may look whole. */
static void note_damage(ts_saver *s, const char *path)
{
    const char *name = strrchr(path, '/');
    const int64_t step = strtoll(name ? name + 1 : path, NULL, 10);
    int64_t *steps;
    size_t n, k = 0;
    if (ts_checkpoint_list(s->o.folder, &steps, &n, NULL) != TS_OK) return;
    for (size_t i = 0; i < n; i++)
        if (steps[i] > step) steps[k++] = steps[i];
    ts_free(s->damaged);
    s->damaged = steps;
    s->n_damaged = k;
}

void ts_saver_restored(ts_saver *s, const char *path)
{
    wait_for_it(s);
    ts_free(s->frozen_from);
    s->frozen_from = path ? ts_strdup(path) : NULL;
    if (path) note_damage(s, path);
}
