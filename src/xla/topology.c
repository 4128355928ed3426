/* xla/topology.c – accelerator slices by name; see topology.h.
 *
 * A name is "v6e:4x4" (chips along each dimension, as PJRT wants it) or "v6e-16" (as clouds rent it). Behind the
 * dash v5p counts TensorCores, two a chip, and tpu7x its devices, two a chip; v5e and v6e count chips. libtpu takes
 * almost any shape, also ones that nobody can rent; only those that exist are accepted here: small slices as listed
 * below, larger ones of three dimensions by the rule of multiples of four. v6e, v5e: a flat torus up to 16x16.
 * Memory: what libtpu 0.0.52 lets a program use, `bytes` less 512 a device of the slice; a plugin that tells its
 * own figure is believed (aot.c).
 * Not here: how many devices the program needs, ids and coordinates of devices (the plugin's).
 */
#include "xla/topology.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct kind {
    const char *name, *accelerator; /* "v5e", and as in TPU_ACCELERATOR_TYPE: "v5litepod" */
    int rank;
    int devices; /* a chip */
    int counted; /* a chip, by the number behind a dash */
    int max_chips;
    int64_t bytes; /* of one device */
} kind;

static const kind kinds[] = {
    {"v5e", "v5litepod", 2, 1, 1, 256, 16909336576},
    {"v5p", "v5p", 3, 1, 2, 8960, 102786662400},
    {"v6e", "v6e", 2, 1, 1, 256, 33546043392},
    {"tpu7x", "tpu7x", 3, 2, 2, 9216, 101724454912},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds, MAX_CPU = 1024 };

typedef struct shape {
    int d[3]; /* d[2] = 1 in two dimensions */
} shape;

static const shape flat[] = {{{1, 1, 1}}, {{2, 2, 1}}, {{2, 4, 1}},  {{4, 4, 1}},
                             {{4, 8, 1}}, {{8, 8, 1}}, {{8, 16, 1}}, {{16, 16, 1}}};
static const shape small[] = {
    {{1, 1, 1}}, {{2, 2, 1}}, {{2, 2, 2}}, {{2, 2, 4}}, {{2, 4, 4}}};

static int chips_of(const shape *s)
{
    return s->d[0] * s->d[1] * s->d[2];
}

/* The slice of three dimensions with just these chips whose longest side is shortest, all multiples of four. */
static bool cube_like(int chips, shape *out)
{
    bool found = false;
    if (chips % 64) return false;
    for (int a = 4; a * a * a <= chips; a += 4)
        for (int b = a; a * b * b <= chips; b += 4) {
            int c = chips / (a * b);
            if (a * b * c != chips || c % 4) continue;
            if (found && c > out->d[2]) continue;
            *out = (shape){{a, b, c}};
            found = true;
        }
    return found;
}

/* The slice of this kind with just so many chips. */
static bool slice_of(const kind *k, int chips, shape *out)
{
    const shape *list = k->rank == 2 ? flat : small;
    size_t n = k->rank == 2 ? sizeof flat / sizeof *flat : sizeof small / sizeof *small;
    if (chips < 1 || chips > k->max_chips) return false;
    for (size_t i = 0; i < n; i++)
        if (chips_of(&list[i]) == chips) {
            *out = list[i];
            return true;
        }
    return k->rank == 3 && cube_like(chips, out);
}

/* Other shapes of as many chips can be rented too where all sides are multiples of four. */
static bool exists(const kind *k, const shape *s)
{
    shape usual;
    const int *d = s->d;
    if (chips_of(s) > k->max_chips || !slice_of(k, chips_of(s), &usual)) return false;
    if (memcmp(&usual, s, sizeof usual) == 0) return true;
    return k->rank == 3 && d[0] % 4 == 0 && d[1] % 4 == 0 && d[2] % 4 == 0 && d[0] <= d[1] &&
           d[1] <= d[2];
}

static void slice_name(const kind *k, const shape *s, char *buf, size_t n)
{
    if (k->rank == 2)
        snprintf(buf, n, "%s:%dx%d", k->name, s->d[0], s->d[1]);
    else
        snprintf(buf, n, "%s:%dx%dx%d", k->name, s->d[0], s->d[1], s->d[2]);
}

/* ---- messages -------------------------------------------------------------------------------- */

static ts_status unknown_kind(const char *text, size_t n, ts_error *err)
{
    static const char *const names[] = {"v5e", "v5litepod", "v5p", "v6e", "tpu7x", "cpu"};
    char word[32];
    snprintf(word, sizeof word, "%.*s", (int)n, text);
    const char *near = ts_nearest_word(word, names, sizeof names / sizeof *names);
    return TS_ERROR(err, TS_INVALID_ARGUMENT,
                    "%.60s is no topology%s%s%s; expected v5e, v5p, v6e or tpu7x with its shape or "
                    "size, as v6e:4x4, v5p-8 or tpu7x:2x2x1, or cpu:4",
                    text, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

static ts_status no_size(const kind *k, ts_error *err)
{
    char shaped[64];
    slice_name(k, &(shape){{2, 2, 1}}, shaped, sizeof shaped);
    return TS_ERROR(err, TS_INVALID_ARGUMENT,
                    "%s lacks its size; expected the chips along %s, as %s, or a number, as %s-%d",
                    k->name, k->rank == 2 ? "both dimensions" : "three dimensions", shaped, k->name,
                    4 * k->counted);
}

/* chips: what text asks for, half_more: and half of one more. */
static ts_status no_such_slice(const char *text, const kind *k, int64_t chips, bool half_more,
                               ts_error *err)
{
    shape below, above, same;
    char a[64], b[64];
    int start = chips > k->max_chips ? k->max_chips + 1 : chips < 1 ? 1 : (int)chips;
    if (start == chips && !half_more && slice_of(k, start, &same)) {
        slice_name(k, &same, a, sizeof a);
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "%.60s is no shape of a %s slice; with %d chips it is %s", text, k->name,
                        start, a);
    }
    int low = half_more && chips == start ? start : start - 1, high = low + 1;
    while (low > 0 && !slice_of(k, low, &below)) low--;
    while (high <= k->max_chips && !slice_of(k, high, &above)) high++;
    if (low > 0) slice_name(k, &below, a, sizeof a);
    if (high <= k->max_chips) slice_name(k, &above, b, sizeof b);
    if (low > 0 && high <= k->max_chips)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "%.60s: no %s slice is like that; the nearest are %s (%d chip%s) and %s (%d)",
                        text, k->name, a, low, low == 1 ? "" : "s", b, high);
    return TS_ERROR(err, TS_INVALID_ARGUMENT,
                    "%.60s: no %s slice is like that; the nearest is %s (%d chip%s)", text, k->name,
                    low > 0 ? a : b, low > 0 ? low : high, (low > 0 ? low : high) == 1 ? "" : "s");
}

/* ---- parsing --------------------------------------------------------------------------------- */

/* A whole number of at most six digits without sign; NULL: there is none. */
static const char *number(const char *p, int *out)
{
    int n = 0;
    *out = 0;
    while (*p >= '0' && *p <= '9' && n++ < 6) *out = *out * 10 + (*p++ - '0');
    return n && !(*p >= '0' && *p <= '9') ? p : NULL;
}

/* "4x4", with rank numbers. */
static bool dims(const char *p, int rank, shape *out)
{
    *out = (shape){{1, 1, 1}};
    for (int i = 0; i < rank; i++) {
        if (i && *p++ != 'x') return false;
        p = number(p, &out->d[i]);
        if (!p || out->d[i] < 1) return false;
    }
    return *p == '\0';
}

static ts_status parse_cpu(const char *text, const char *rest, ts_topology *out, ts_error *err)
{
    int n;
    const char *end = *rest == ':' ? number(rest + 1, &n) : NULL;
    if (!end || *end || n < 1 || n > MAX_CPU)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "%.60s: expected cpu:N with N devices, 1 … %d, as cpu:4", text, MAX_CPU);
    snprintf(out->plugin, sizeof out->plugin, "cpu");
    snprintf(out->name, sizeof out->name, "cpu:%d", n);
    out->chips = out->devices = n;
    return TS_OK;
}

static ts_status parse_tpu(const char *text, const char *rest, const kind *k, ts_topology *out,
                           ts_error *err)
{
    shape s;
    int n;
    if (rest[-1] == ':') {
        if (!dims(rest, k->rank, &s))
            return TS_ERROR(err, TS_INVALID_ARGUMENT,
                            "%.60s: expected %s: and the chips along %s, as %s:%s", text, k->name,
                            k->rank == 2 ? "both dimensions" : "three dimensions", k->name,
                            k->rank == 2 ? "4x4" : "2x2x2");
        int64_t chips = (int64_t)s.d[0] * s.d[1];
        if (chips <= k->max_chips) chips *= s.d[2];
        if (chips > k->max_chips || !exists(k, &s))
            return no_such_slice(text, k, chips, false, err);
    } else {
        const char *end = number(rest, &n);
        if (!end || *end)
            return TS_ERROR(err, TS_INVALID_ARGUMENT, "%.60s: expected %.*s and a number, as %s-16",
                            text, (int)(rest - text), text, k->name);
        if (n % k->counted || !slice_of(k, n / k->counted, &s))
            return no_such_slice(text, k, n / k->counted, n % k->counted != 0, err);
    }
    snprintf(out->plugin, sizeof out->plugin, "tpu");
    slice_name(k, &s, out->name, sizeof out->name);
    out->chips = chips_of(&s);
    out->devices = out->chips * k->devices;
    for (int i = k->rank - 1; i >= 0; i--) out->torus[out->n_torus++] = s.d[i];
    if (k->devices > 1) out->torus[out->n_torus++] = k->devices;
    snprintf(out->accelerator, sizeof out->accelerator, "%s-%d", k->accelerator,
             out->chips * k->counted);
    out->capacity_bytes = k->bytes - 512 * (int64_t)out->devices;
    return TS_OK;
}

ts_status ts__topology_parse(const char *text, int64_t slices, ts_topology *out, ts_error *err)
{
    size_t n = strcspn(text, ":-");
    memset(out, 0, sizeof *out);
    if (slices > 1)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "%lld slices: a program of this version spans one; "
                        "compile_topology_num_slices=1 (or -1) works",
                        (long long)slices);
    if (n == 3 && memcmp(text, "cpu", 3) == 0) return parse_cpu(text, text + n, out, err);
    for (int i = 0; i < N_KINDS; i++) {
        const kind *k = &kinds[i];
        bool same = strlen(k->name) == n && memcmp(k->name, text, n) == 0;
        bool rented = strlen(k->accelerator) == n && memcmp(k->accelerator, text, n) == 0;
        if ((same || rented) && !text[n]) return no_size(k, err);
        if (same || rented) return parse_tpu(text, text + n + 1, k, out, err);
    }
    return unknown_kind(text, n, err);
}
