/* train/config_print.c – a configuration as text: the log at the start of a run, and the config.yml in
 * its folder. Both are complete and resolved; neither shows a token. */
#include "train/config_internal.h"

#include "base/file.h"

#include <stdlib.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(ts__keys[*(const int *)a].name, ts__keys[*(const int *)b].name);
}

void ts_config_print(const ts_config *c, ts_string *out)
{
    int order[TS_KEYS];
    ts_arena *arena = ts_arena_new();
    for (int k = 0; k < TS_KEYS; k++) order[k] = k;
    qsort(order, TS_KEYS, sizeof *order, by_name);
    for (int i = 0; arena && i < TS_KEYS; i++) {
        int k = order[i];
        bool secret = k == TS_K_hf_access_token && *c->hf_access_token;
        ts_string_printf(out, "Config param %s: %s\n", ts__keys[k].name,
                         secret ? "hidden" : ts__key_text(c, k, arena));
    }
    if (!arena) out->failed = true;
    ts_arena_free(arena);
}

void ts_config_yaml(const ts_config *c, ts_string *out)
{
    ts_arena *arena = ts_arena_new();
    size_t block = 0; /* length of the block's name that is open */
    const char *last = "";
    ts_string_add(out, "# The configuration of this run, complete and resolved.\n");
    for (int k = 0; arena && k < TS_KEYS; k++) {
        const char *name = ts__keys[k].name, *dot = strchr(name, '.');
        size_t n = dot ? (size_t)(dot - name) : 0;
        if (n && (n != block || strncmp(last, name, n)))
            ts_string_printf(out, "%.*s:\n", (int)n, name);
        const char *value = k == TS_K_hf_access_token ? "\"\"" : ts__key_yaml(c, k, arena);
        if (!*value) out->failed = true; /* an empty text has quotes: memory was out */
        ts_string_printf(out, "%s%s: %s\n", n ? "  " : "", n ? dot + 1 : name, value);
        block = n;
        last = name;
    }
    if (!arena) out->failed = true;
    ts_arena_free(arena);
}

static ts_status write_text(const char *path, const ts_string *text, ts_error *err)
{
    ts_writer *w = NULL;
    TS_TRY(ts_writer_open(path, false, &w, err));
    ts_status status = ts_writer_write(w, text->data, text->length, err);
    ts_status closed = ts_writer_close(w, true, err);
    return status == TS_OK ? closed : status;
}

/* Beside its place first: a full disk leaves the file of before. */
ts_status ts_config_write(const ts_config *c, const char *path, ts_error *err)
{
    ts_string text = ts_string_new(TS_CONFIG_TEXT_MAX), part = ts_string_new(1 << 16);
    ts_config_yaml(c, &text);
    ts_string_printf(&part, "%s.part", path);
    ts_status status = text.failed || part.failed
                           ? TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for %s", path)
                           : write_text(part.data, &text, err);
    if (status == TS_OK) status = ts_rename(part.data, path, err);
    if (status != TS_OK && part.data) (void)ts_remove_tree(part.data, NULL);
    ts_string_free(&text);
    ts_string_free(&part);
    return status;
}

/* ---- what a program shows of it (tessera.h) -------------------------------------------------- */

const char *ts_config_note(const ts_config *c, size_t i)
{
    return i < c->n_notes ? c->notes[i] : NULL;
}
const char *ts_config_run_folder(const ts_config *c)
{
    return c->run_folder;
}
bool ts_config_wants_log(const ts_config *c)
{
    return c->log_config;
}

const char *ts_config_compile_topology(const ts_config *c)
{
    return c->compile_topology;
}

char *ts_config_text(const ts_config *c)
{
    ts_string s = ts_string_new(TS_CONFIG_TEXT_MAX);
    ts_config_print(c, &s);
    char *text = s.failed ? NULL : ts_strdup(s.data ? s.data : "");
    ts_string_free(&s);
    return text;
}

void ts_text_free(char *text)
{
    ts_free(text);
}

const char *ts_nearest(const char *word, const char *const *candidates, size_t n)
{
    return ts_nearest_word(word, candidates, n);
}
