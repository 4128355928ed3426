/* xla/aot_dump.c – what XLA wrote while it compiled: the optimized program, and what lives when memory runs out.
 *
 * Of a folder's files those of the largest program count: small helpers of the plugin may be dumped beside it. A dump
 * is a service of XLA without a promise of its form, so a file that is missing or reads differently costs figures,
 * never the compilation: a warning says which.
 * Not here: how HLO is read (hlo.c), its collectives beside the graph's (aot_collectives.c).
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/log.h"
#include "xla/aot_internal.h"
#include "xla/hlo.h"

enum { MAX_BUFFERS = 8 };
static const size_t max_file = (size_t)1 << 29;

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

/* The whole of the folder's largest file with this end; *text NULL where there is none. Owns *text. */
static ts_status read_largest(const char *folder, const char *end, char **text, size_t *n,
                              ts_error *err)
{
    char **names;
    size_t count;
    uint64_t largest = 0;
    char *best = NULL;
    *text = NULL;
    TS_TRY(ts_list_folder(folder, &names, &count, err));
    for (size_t i = 0; i < count; i++) {
        ts_file *f;
        char *path = ends_with(names[i], end) ? ts_path_join(folder, names[i]) : NULL;
        if (!path || ts_file_open(path, &f, NULL) != TS_OK) {
            ts_free(path);
            continue;
        }
        bool more = ts_file_size(f) >= largest;
        if (more) largest = ts_file_size(f);
        ts_file_close(f);
        ts_free(more ? best : path);
        if (more) best = path;
    }
    ts_names_free(names, count);
    ts_status status = best ? ts_file_read_all(best, max_file, text, n, err) : TS_OK;
    ts_free(best);
    return status;
}

/* ---- the program ----------------------------------------------------------------------------- */

static ts_status read_program(const ts_aot_job *job, const ts_hlo *h, ts_aot_report *out, ts_error *err)
{
    ts_hlo_summary s;
    const ts_hlo_mesh mesh = ts__aot_mesh(job);
    TS_TRY(ts__hlo_summarize(h, &mesh, &s, err));
    out->flops = s.flops;
    out->bytes_accessed = s.bytes;
    if (s.unknown_loops)
        ts_log(TS_LOG_WARNING,
               "%lld loops of the optimized program do not tell how often they run; their work is "
               "counted once",
               (long long)s.unknown_loops);
    ts_status status = ts__aot_collectives(job, &s, out, err);
    ts__hlo_summary_free(&s);
    return status;
}

/* ---- what does not fit ----------------------------------------------------------------------- */

static const char *graph_input(const ts_graph *g, int i)
{
    return i >= 0 && i < g->top->n_arg ? g->top->arg[i]->name : NULL;
}

/* Keeps the largest MAX_BUFFERS, in order. NULL: no longer among them. */
static ts_aot_buffer *insert(ts_aot_report *out, int64_t bytes)
{
    size_t k = out->n_buffer;
    while (k > 0 && out->buffer[k - 1].bytes < bytes) k--;
    if (k == MAX_BUFFERS) return NULL;
    size_t last = out->n_buffer < MAX_BUFFERS ? out->n_buffer++ : MAX_BUFFERS - 1;
    memmove(&out->buffer[k + 1], &out->buffer[k], (last - k) * sizeof *out->buffer);
    out->buffer[k] = (ts_aot_buffer){.bytes = bytes};
    return &out->buffer[k];
}

/* One line of the list: "    fusion.7{1}: 4096 bytes (cumulative: 8192 bytes)". False: the list has ended. */
static bool live_line(const char *p, const char *end, const ts_graph *g, const ts_hlo *h,
                      ts_aot_report *out)
{
    int64_t index = -1, bytes = 0;
    while (p < end && *p == ' ') p++;
    const char *brace = memchr(p, '{', (size_t)(end - p));
    const char *colon = memmem(p, (size_t)(end - p), "}: ", 3);
    if (!brace || !colon || brace > colon) return false;
    const char *unit;
    if (!isdigit((unsigned char)colon[3])) return false;
    bytes = strtoll(colon + 3, (char **)&unit, 10);
    if (strncmp(unit, " bytes", 6) != 0) return false;
    if (isdigit((unsigned char)brace[1])) index = strtoll(brace + 1, NULL, 10);
    ts_aot_buffer *b = bytes > 0 ? insert(out, bytes) : NULL;
    if (!b) return true;
    ts_hlo_value v = {.parameter = -1};
    size_t n = (size_t)(brace - p);
    bool found = h && index <= INT32_MAX && ts__hlo_find(h, p, n, (int)index, &v);
    const char *input = graph_input(g, v.parameter);
    if (input)
        snprintf(b->name, sizeof b->name, "%.190s", input);
    else if (found && *v.name)
        snprintf(b->name, sizeof b->name, "%.190s", v.name);
    else
        snprintf(b->name, sizeof b->name, "XLA's %.*s", n < 180 ? (int)n : 180, p);
    snprintf(b->shape, sizeof b->shape, "%s", v.shape);
    return true;
}

/* "Total bytes: 148641734400 (…)": first of the device's memory. The message may count temporaries alone, and the
 * list of what lives counts twice what shares its place. */
static ts_status read_total(const char *folder, ts_aot_report *out, ts_error *err)
{
    static const char key[] = "Total bytes: ";
    char *text;
    size_t n;
    TS_TRY(read_largest(folder, "after_optimizations-memory-usage-report.txt", &text, &n, err));
    const char *p = text ? strstr(text, key) : NULL;
    int64_t total = p ? strtoll(p + sizeof key - 1, NULL, 10) : 0;
    if (total > out->capacity_bytes) out->needed_bytes = total;
    ts_free(text);
    return TS_OK;
}

/* "Live ranges at 41 (peak):" and the lines below. */
static ts_status read_live(const ts_aot_job *job, const char *folder, const ts_hlo *h,
                           ts_aot_report *out, ts_error *err)
{
    char *text;
    size_t n;
    TS_TRY(read_largest(folder, "after_optimizations-live-range.txt", &text, &n, err));
    const char *p = text ? strstr(text, "(peak):\n") : NULL;
    for (p = p ? p + 8 : NULL; p && *p;) {
        const char *end = strchr(p, '\n');
        if (!live_line(p, end ? end : text + n, job->graph, h, out)) break;
        p = end ? end + 1 : NULL;
    }
    ts_free(text);
    return TS_OK;
}

static void shape_text(const ts_type *t, ts_aot_buffer *b)
{
    char text[400];
    snprintf(b->shape, sizeof b->shape, "%.119s", ts_type_text(t, text, sizeof text));
}

/* Where XLA does not say what lives: the graph's own largest inputs and values. */
static void largest_of_graph(const ts_region *r, ts_aot_report *out)
{
    for (int i = 0; !r->parent && i < r->n_arg; i++) {
        ts_aot_buffer *b = insert(out, (int64_t)ts_type_bytes(&r->arg[i]->type));
        if (!b) continue;
        snprintf(b->name, sizeof b->name, "%.190s", r->arg[i]->name);
        shape_text(&r->arg[i]->type, b);
    }
    for (const ts_node *n = r->first; n; n = n->next) {
        for (int i = 0; i < n->n_out; i++) {
            ts_aot_buffer *b = insert(out, (int64_t)ts_type_bytes(&n->out[i]->type));
            if (!b) continue;
            snprintf(b->name, sizeof b->name, "%.150s%s%s", n->scope ? n->scope : "",
                     n->scope && *n->scope ? ": " : "", ts_op_infos[n->op].name);
            shape_text(&n->out[i]->type, b);
        }
        if (n->body) largest_of_graph(n->body, out);
    }
}

static ts_status read_buffers(const ts_aot_job *job, const char *folder, const ts_hlo *h,
                              ts_aot_report *out, ts_error *err)
{
    out->buffer = ts_alloc_zero((MAX_BUFFERS + 1) * sizeof *out->buffer);
    if (!out->buffer)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for a report's buffers");
    TS_TRY(read_total(folder, out, err));
    TS_TRY(read_live(job, folder, h, out, err));
    if (!out->n_buffer) largest_of_graph(job->graph->top, out);
    return TS_OK;
}

ts_status ts__aot_read_dump(const ts_aot_job *job, const char *folder, ts_aot_report *out,
                            ts_error *err)
{
    char *text = NULL;
    size_t n;
    ts_hlo *h = NULL;
    ts_error odd = {0};
    ts_status status = TS_OK;
    if (read_largest(folder, "after_optimizations.txt", &text, &n, &odd) == TS_OK && text &&
        ts__hlo_parse(text, n, &h, &odd) == TS_OK)
        status = read_program(job, h, out, err);
    if (odd.code != TS_OK)
        ts_log(TS_LOG_WARNING,
               "the optimized program cannot be read (%s): work and traffic are the plugin's own "
               "counts, loops once, and collectives are not listed",
               odd.msg);
    if (status == TS_OK && !out->fits) status = read_buffers(job, folder, h, out, err);
    ts__hlo_free(h);
    ts_free(text);
    return status;
}
