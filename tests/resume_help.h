/* tests/resume_help.h – runs in processes of their own, killed where a test says, and what they left: every number of
 * metrics.jsonl, and the bytes of a checkpoint. Include it behind cmocka.h. Functions are inline so that a test may
 * leave some unused.
 *
 * A run is the library's ts_train in a forked child, so that it can die as a machine's does: SIGKILL, with threads
 * reading ahead and a save being written. The parent computes nothing itself.
 */
#ifndef TS_TESTS_RESUME_HELP_H
#define TS_TESTS_RESUME_HELP_H

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include "base/file.h"
#include "slow.h"
#include "tessera.h"
#include "xla/plugin.h"

enum { MAX_WORDS = 96, TEXT = 6000, KILLED = 128 + SIGKILL };

static char root[64];

/* ---- data ------------------------------------------------------------------------------------ */

static inline uint32_t next_random(uint32_t *s)
{
    return *s = *s * 1664525u + 1013904223u, *s >> 8;
}

/* A sentence of n words; the same for the same seed. */
static inline void put_words(FILE *f, gzFile z, uint32_t *seed, int n)
{
    static const char *const word[] = {"river", "stone", "a",     "light", "moves", "under",
                                       "the",   "over",  "green", "dog",   "quick", "of"};
    for (int i = 0; i < n; i++) {
        const char *w = word[next_random(seed) % 12], *gap = i ? " " : "";
        if (f) fprintf(f, "%s%s", gap, w);
        if (z) gzprintf(z, "%s%s", gap, w);
    }
}

static inline void put_jsonl(const char *name, int rows, uint32_t seed, int longest, bool zipped)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = zipped ? NULL : fopen(path, "w");
    gzFile z = zipped ? gzopen(path, "wb") : NULL;
    assert_true(f || z);
    for (int i = 0; i < rows; i++) {
        if (f) fprintf(f, "{\"text\": \"");
        if (z) gzprintf(z, "{\"text\": \"");
        put_words(f, z, &seed, 1 + (int)(next_random(&seed) % (uint32_t)longest));
        if (f) fprintf(f, "\"}\n");
        if (z) gzprintf(z, "\"}\n");
    }
    if (f) assert_int_equal(fclose(f), 0);
    if (z) assert_int_equal(gzclose(z), Z_OK);
}

static inline void put_book(const char *name, int words, uint32_t seed)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    put_words(f, NULL, &seed, words);
    assert_int_equal(fclose(f), 0);
}

/* llm.c's token file of 16-bit ids below 250. */
static inline void put_ids(const char *name, int n, uint32_t seed)
{
    const uint32_t header[3] = {20240520, 1, (uint32_t)n};
    const char zero[1012] = {0};
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(header, sizeof header, 1, f);
    fwrite(zero, sizeof zero, 1, f);
    for (int i = 0; i < n; i++) {
        const uint16_t id = (uint16_t)(next_random(&seed) % 7 + (uint32_t)i * 3 % 240);
        fwrite(&id, sizeof id, 1, f);
    }
    assert_int_equal(fclose(f), 0);
}

static inline int set_up(void **state)
{
    (void)state;
    strcpy(root, "/tmp/tessera-resume-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static inline int tear_down(void **state)
{
    (void)state;
    return getenv("TESSERA_KEEP") || ts_remove_tree(root, NULL) == TS_OK ? 0 : -1;
}

static inline bool has_plugin(void)
{
    char path[4096];
    ts_error err = {0};
    if (ts__plugin_find("cpu", path, sizeof path, &err) == TS_OK) return true;
    printf("SKIP  %s\n", err.msg);
    return false;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* What happens to a run; steps −1: nothing. */
typedef struct fate {
    int64_t kill_behind;              /* SIGKILL once this step was told */
    int64_t save_behind, stop_behind; /* the hook asks for a save; for a save and the end */
    int64_t at;                       /* of the run: the step told last */
    int times;                        /* ts_train so often, in one process */
    int64_t full_behind;              /* no room for metrics once this step was told */
} fate;

static const fate lives = {-1, -1, -1, -1, 1, -1};

static inline int on_metrics(void *context, const ts_file_call *c)
{
    const fate *f = context;
    const bool fails = !c->done && c->op == TS_FAULT_WRITE && strstr(c->path, "metrics.jsonl");
    return fails && f->full_behind >= 0 && f->at >= f->full_behind ? ENOSPC : 0;
}

static inline void on_step(void *context, const ts_step_info *i)
{
    fate *f = context;
    f->at = i->step;
    if (i->step == f->kill_behind) raise(SIGKILL);
}

static inline ts_interrupt on_interrupt(void *context)
{
    fate *f = context;
    const int64_t at = f->at;
    if (at >= 0 && at == f->stop_behind) {
        f->stop_behind = -1;
        return TS_SAVE_AND_STOP;
    }
    if (at < 0 || at != f->save_behind) return TS_CONTINUE;
    f->save_behind = -1;
    return TS_SAVE_AND_GO_ON;
}

static inline void on_line(void *context, const char *text)
{
    (void)context;
    printf("%s\n", text);
}

static inline int train_here(const char *words, fate f)
{
    char text[TEXT], *at = NULL;
    const char *word[MAX_WORDS];
    int n = 0;
    ts_config *c = NULL;
    ts_error err = {0};
    ts_train_result result;
    ts_train_hooks hooks;
    snprintf(text, sizeof text, "%s", words);
    for (char *w = strtok_r(text, " ", &at); w && n < MAX_WORDS; w = strtok_r(NULL, " ", &at))
        word[n++] = w;
    ts_train_hooks_default(&hooks);
    hooks.context = &f;
    hooks.step = on_step;
    hooks.line = on_line;
    hooks.interrupt = on_interrupt;
    ts_file_observe(on_metrics, &f);
    ts_status status = ts_config_load_words(word, n, &c, &err);
    for (int i = 0; i < f.times && status == TS_OK; i++) {
        f.at = -1;
        status = ts_train(c, &hooks, &result, &err);
    }
    ts_file_observe(NULL, NULL);
    if (status != TS_OK) printf("%s\n", err.msg);
    ts_config_free(c);
    fflush(stdout);
    return (int)status;
}

/* In a process of its own, whose lines go to <root>/said: its status, or 128 and the signal. */
static inline int train(const char *words, fate f)
{
    char said[128];
    int status;
    snprintf(said, sizeof said, "%s/said", root);
    fflush(stdout);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (!freopen(said, "w", stdout) || dup2(STDOUT_FILENO, STDERR_FILENO) < 0) _exit(99);
        _exit(train_here(words, f));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static inline char *read_all(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    *n = 0;
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *data = calloc(1, *n + 1);
    assert_int_equal(fread(data, 1, *n, f), *n);
    fclose(f);
    return data;
}

static inline const char *said(void)
{
    static char text[4000];
    char path[128];
    size_t n;
    snprintf(path, sizeof path, "%s/said", root);
    char *all = read_all(path, &n);
    snprintf(text, sizeof text, "%s", all ? all + (n > 3900 ? n - 3900 : 0) : "");
    free(all);
    return text;
}

static inline void expect_train(int want, const char *words, fate f)
{
    const int got = train(words, f);
    if (got != want) fail_msg("status %d instead of %d: %s\n%s", got, want, words, said());
}

/* ---- what a run left ------------------------------------------------------------------------- */

/* Lines of metrics.jsonl by "step N" and "eval N", without what depends on time; of a step that was told again the
 * later line counts. */
static inline json_t *metrics_of(const char *run)
{
    char path[256], key[40], *at = NULL;
    size_t n;
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", root, run);
    char *text = read_all(path, &n);
    if (!text) fail_msg("%s is missing", path);
    json_t *all = json_object();
    for (char *line = strtok_r(text, "\n", &at); line; line = strtok_r(NULL, "\n", &at)) {
        json_t *o = json_loads(line, 0, NULL), *kept = json_object(), *value;
        const char *name;
        if (!o) fail_msg("%s: no JSON: %s", path, line);
        json_object_foreach(o, name, value)
        {
            if (strncmp(name, "perf/", 5) && strcmp(name, "eval/seconds") &&
                strcmp(name, "run_name"))
                json_object_set(kept, name, value);
        }
        const bool eval = json_object_get(o, "eval/avg_loss") != NULL;
        snprintf(key, sizeof key, "%s %lld", eval ? "eval" : "step",
                 (long long)json_integer_value(json_object_get(o, "step")));
        json_object_set_new(all, key, kept);
        json_decref(o);
    }
    free(text);
    return all;
}

static inline const json_t *step_of(const json_t *metrics, int64_t step)
{
    char key[40];
    snprintf(key, sizeof key, "step %lld", (long long)step);
    return json_object_get(metrics, key);
}

static inline double loss_of(const json_t *metrics, int64_t step)
{
    return json_number_value(json_object_get(step_of(metrics, step), "learning/loss"));
}

static inline const char *order_of(const json_t *metrics, int64_t step)
{
    const char *hash =
        json_string_value(json_object_get(step_of(metrics, step), "data/order_hash"));
    return hash ? hash : "none";
}

/* Every line of `run` from step `from` on is the line of `whole`, and none is missing. */
static inline void expect_same_metrics(const json_t *whole, const char *run, int64_t from)
{
    json_t *one = metrics_of(run), *value;
    const char *key;
    json_object_foreach((json_t *)whole, key, value)
    {
        const long long step = atoll(key + 5);
        const json_t *other = json_object_get(one, key);
        if (step < from) continue;
        if (!other) fail_msg("%s lacks %s", run, key);
        if (json_equal(value, other)) continue;
        char *a = json_dumps(value, JSON_COMPACT), *b = json_dumps(other, JSON_COMPACT);
        fail_msg("%s, %s:\n%s\ninstead of\n%s", run, key, b, a);
    }
    json_object_foreach(one, key, value)
    {
        if (atoll(key + 5) >= from && !json_object_get(whole, key))
            fail_msg("%s has %s, which the unbroken run has not", run, key);
    }
    json_decref(one);
}

static inline char *checkpoint_file(const char *run, int64_t step, const char *name, size_t *n)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s/checkpoints/%lld/%s", root, run, (long long)step, name);
    return read_all(path, n);
}

/* State beside the tensors, but for what names the run. */
static inline json_t *state_of(const char *run, int64_t step)
{
    size_t n;
    char *text = checkpoint_file(run, step, "manifest.json", &n);
    if (!text) fail_msg("%s has no checkpoint %lld\n%s", run, (long long)step, said());
    json_t *all = json_loads(text, 0, NULL), *state = json_deep_copy(json_object_get(all, "state"));
    json_object_del(state, "config");
    json_decref(all);
    free(text);
    return state;
}

/* Tensors byte by byte, and the state; an evaluation that came behind a save is in the other one alone. */
static inline void expect_same_checkpoint(const char *a, const char *b, int64_t step, int devices)
{
    for (int d = 0; d < devices; d++) {
        char name[64];
        size_t n, m;
        snprintf(name, sizeof name, "shard-%05d-of-%05d.safetensors", d, devices);
        char *x = checkpoint_file(a, step, name, &n), *y = checkpoint_file(b, step, name, &m);
        if (!x || !y) fail_msg("%s or %s lacks %s of step %lld", a, b, name, (long long)step);
        if (n != m || memcmp(x, y, n) != 0)
            fail_msg("%s and %s differ in %s of step %lld", a, b, name, (long long)step);
        free(x);
        free(y);
    }
    json_t *x = state_of(a, step), *y = state_of(b, step);
    if (!json_object_get(x, "evaluation")) json_object_del(y, "evaluation");
    if (!json_object_get(y, "evaluation")) json_object_del(x, "evaluation");
    if (!json_equal(x, y)) {
        char *p = json_dumps(x, JSON_COMPACT), *q = json_dumps(y, JSON_COMPACT);
        fail_msg("%s and %s differ in the state of step %lld:\n%s\n%s", a, b, (long long)step, p,
                 q);
    }
    json_decref(x);
    json_decref(y);
}

static inline void shell(const char *format, ...)
{
    char command[1000];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    if (system(command) != 0) fail_msg("%s", command);
}

/* A run that has one checkpoint of another, as a copied folder. */
static inline void copy_checkpoint(const char *from, int64_t step, const char *to)
{
    shell("rm -rf %s/%s && mkdir -p %s/%s/checkpoints && cp -r %s/%s/checkpoints/%lld "
          "%s/%s/checkpoints",
          root, to, root, to, root, from, (long long)step, root, to);
}

#endif
