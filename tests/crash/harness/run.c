/* run.c – the small run of the crash tests: its tensors, its saves, and what is read back. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/random.h"
#include "crash.h"

/* ---- surroundings ---------------------------------------------------------------------------- */

bool crash_full(void)
{
    const char *form = getenv("TESSERA_CRASH");
    return form && strcmp(form, "full") == 0;
}

uint64_t crash_seed(void)
{
    static uint64_t seed;
    if (seed) return seed;
    const char *given = getenv("TESSERA_CRASH_SEED");
    seed = given ? strtoull(given, NULL, 10) : 0;
    if (seed == 0) seed = ts_mix64((uint64_t)time(NULL) << 20 ^ (uint64_t)getpid()) >> 16 | 1;
    printf("seed: TESSERA_CRASH_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

uint64_t crash_random(uint64_t *state)
{
    return ts_mix64(*state += 0x9e3779b97f4a7c15u);
}

double crash_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void crash_figure(const char *test, const char *what, double value)
{
    printf("figure: %s: %s: %.*f\n", test, what, value == floor(value) ? 0 : 1, value);
    fflush(stdout);
}

void crash_make_root(char root[96], bool fast)
{
    const char *temporary = getenv("TMPDIR");
    if (fast && access("/dev/shm", W_OK) == 0) temporary = "/dev/shm";
    snprintf(root, 96, "%.70s/tessera-crash-XXXXXX", temporary ? temporary : "/tmp");
    if (mkdtemp(root)) return;
    perror(root);
    exit(1);
}

static void unsaid(void *context, ts_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

void crash_quiet(void)
{
    ts_log_set_sink(unsaid, NULL);
}

int crash_open_files(void)
{
    char **names;
    size_t n;
    if (ts_list_folder("/proc/self/fd", &names, &n, NULL) != TS_OK) return -1;
    ts_names_free(names, n);
    return (int)n;
}

int crash_leftovers(const char *folder)
{
    char **names;
    size_t n;
    int left = 0;
    if (ts_list_folder(folder, &names, &n, NULL) != TS_OK) return -1;
    for (size_t i = 0; i < n; i++)
        if (names[i][strspn(names[i], "0123456789")] != '\0') left++;
    ts_names_free(names, n);
    return left;
}

/* ---- tensors --------------------------------------------------------------------------------- */

enum { TENSORS = 5, PARTS_MAX = 16, ELEMENTS_MAX = 1 << 20 };

typedef struct tensor {
    const char *name;
    int rank, split[2]; /* into how many boxes each dimension goes, with 4 devices */
    int64_t dim[2];
    bool frozen;
    int device; /* of the first box */
} tensor;

static void tensors_of(const crash_run *r, tensor t[TENSORS])
{
    int64_t s = r->scale;
    t[0] = (tensor){"layers.0.w", 2, {2, 2}, {8, 4 * s}, false, 0};
    t[1] = (tensor){"layers.1.w", 2, {4, 1}, {4 * s, 3}, false, 0};
    t[2] = (tensor){"bias", 1, {1}, {7}, false, 3};
    t[3] = (tensor){"embed", 2, {4, 1}, {4, 3 * s}, true, 0};
    t[4] = (tensor){"table", 1, {1}, {3}, true, 1};
}

static float value_of(int number, bool frozen, int index, size_t element)
{
    uint64_t key = frozen ? 0 : (uint64_t)number + 1;
    return (float)(ts_mix64(key << 40 ^ (uint64_t)index << 32 ^ element) >> 40);
}

typedef struct piece {
    int number, tensor;
    bool frozen;
    ts_box box;
} piece;

static ts_status fill(void *context, uint64_t first, size_t n, float *to, ts_error *err)
{
    const piece *p = context;
    (void)err;
    for (size_t i = 0; i < n; i++)
        to[i] = value_of(p->number, p->frozen, p->tensor, ts_box_place(&p->box, (size_t)first + i));
    return TS_OK;
}

/* The boxes of tensor t; returns how many parts there are now. */
static size_t add_parts(const crash_run *r, const tensor *t, int index, int number,
                        ts_checkpoint_part *part, piece *pieces, size_t n)
{
    int split[2] = {r->devices == 1 ? 1 : t->split[0], r->devices == 1 || t->rank < 2 ? 1 : t->split[1]};
    int device = r->devices == 1 ? 0 : t->device;
    for (int i = 0; i < split[0]; i++)
        for (int j = 0; j < split[1]; j++, n++, device++) {
            ts_box b = {.rank = t->rank};
            int at[2] = {i, j};
            for (int d = 0; d < t->rank; d++) {
                b.global[d] = t->dim[d];
                b.local[d] = t->dim[d] / split[d];
                b.offset[d] = b.local[d] * at[d];
            }
            TS_ASSERT(ts_box_finish(&b) && n < PARTS_MAX);
            pieces[n] = (piece){number, index, t->frozen, b};
            part[n] = (ts_checkpoint_part){.name = t->name,
                                           .rank = t->rank,
                                           .box = b,
                                           .device = device,
                                           .frozen = t->frozen,
                                           .fill = fill,
                                           .context = &pieces[n]};
            memcpy(part[n].dim, t->dim, sizeof t->dim);
        }
    return n;
}

ts_status crash_save(const crash_run *r, int64_t step, int number, int64_t frozen_from,
                     ts_error *err)
{
    tensor t[TENSORS];
    ts_checkpoint_part part[PARTS_MAX];
    piece pieces[PARTS_MAX];
    size_t n = 0;
    char from[512];
    tensors_of(r, t);
    for (int i = 0; i < TENSORS; i++)
        if (r->frozen || !t[i].frozen) n = add_parts(r, &t[i], i, number, part, pieces, n);
    ts_checkpoint_save_options o;
    ts_checkpoint_save_options_default(&o);
    snprintf(from, sizeof from, "%s/%lld", r->folder, (long long)frozen_from);
    o.folder = r->folder;
    o.step = step;
    o.part = part;
    o.n_part = n;
    o.devices = r->devices;
    o.mesh = r->devices == 1 ? "" : "fsdp=2, tensor=2";
    o.score = 1.0 / (double)(number + 1);
    o.commit = r->commit;
    if (frozen_from >= 0) o.frozen_from = from;
    json_t *state = json_pack("{s:i, s:I, s:s}", "number", number, "step", (json_int_t)step,
                              "words", "a \"state\" with\nsome text");
    o.state = state;
    ts_status status = ts_checkpoint_save(&o, err);
    json_decref(state);
    return status;
}

/* ---- reading back ---------------------------------------------------------------------------- */

static void look_at_values(const crash_run *r, ts_checkpoint *c, crash_seen *seen)
{
    tensor t[TENSORS];
    ts_tensors *list = ts_checkpoint_tensors(c);
    size_t expected = 0;
    tensors_of(r, t);
    for (int i = 0; i < TENSORS; i++) {
        if (t[i].frozen && !r->frozen) continue;
        expected++;
        const ts_tensor *x = ts_tensors_find(list, t[i].name);
        size_t count = (size_t)(t[i].dim[0] * (t[i].rank == 2 ? t[i].dim[1] : 1));
        if (!x || x->count != count) {
            snprintf(seen->problem, sizeof seen->problem, "%s is not there as it was", t[i].name);
            return;
        }
        float *have = ts_alloc(count * sizeof *have);
        ts_error err = {0};
        TS_ASSERT(have && count <= ELEMENTS_MAX);
        if (ts_tensors_read_f32(list, x, 0, count, have, &err) != TS_OK)
            snprintf(seen->problem, sizeof seen->problem, "%.200s", err.msg);
        for (size_t k = 0; k < count && !*seen->problem; k++)
            if (have[k] != value_of(seen->number, t[i].frozen, i, k))
                snprintf(seen->problem, sizeof seen->problem,
                         "%s, element %zu is not of save %d: a mixture", t[i].name, k, seen->number);
        ts_free(have);
    }
    if (!*seen->problem && ts_tensors_count(list) != expected)
        snprintf(seen->problem, sizeof seen->problem, "%zu tensors, expected %zu",
                 ts_tensors_count(list), expected);
}

crash_seen crash_look(const crash_run *r, int64_t step)
{
    crash_seen seen = {.step = -1, .number = -1};
    ts_checkpoint *c = NULL;
    if (step >= 0) {
        char path[512];
        snprintf(path, sizeof path, "%s/%lld", r->folder, (long long)step);
        seen.status = ts_checkpoint_open(path, &c, &seen.err);
    } else {
        seen.status = ts_checkpoint_open_newest(r->folder, &c, &seen.err);
    }
    if (seen.status != TS_OK) return seen;
    const json_t *state = ts_checkpoint_state(c);
    seen.step = ts_checkpoint_step(c);
    seen.number = (int)json_integer_value(json_object_get(state, "number"));
    if (json_integer_value(json_object_get(state, "step")) != seen.step)
        snprintf(seen.problem, sizeof seen.problem, "the state is of another step");
    else
        look_at_values(r, c, &seen);
    ts_checkpoint_close(c);
    return seen;
}
