/* base/json.c – jansson behind the checks it lacks.
 *
 * jansson recurses to a fixed depth of 2048 and lets the last of two equal keys win; here depth is
 * counted before anything is parsed and a duplicate key is an error. NUL inside a string is refused
 * too: values are used as C strings. Any value may stand at the top; callers check its type.
 * jansson allocates through our seam. (Both sides end in free, so objects made before the first
 * parse are freed correctly.)
 */
#include "base/json.h"

#include <pthread.h>

#include "base/file.h"

enum { JANSSON_DEPTH = 2048 };

/* jansson reports a failed allocation as a syntax error, or leaves out a key and succeeds; whoever
 * reads a checkpoint must not mistake that for a damaged file. */
static _Thread_local bool memory_was_out;

static void *counted_alloc(size_t bytes)
{
    void *p = ts_alloc(bytes);
    if (!p) memory_was_out = true;
    return p;
}

static void set_allocator(void)
{
    json_set_alloc_funcs(counted_alloc, ts_free);
}

static void use_our_allocator(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_allocator);
    memory_was_out = false;
}

typedef struct position {
    size_t line, column;
} position;

static position position_of(const char *text, size_t offset)
{
    position p = {1, 1};
    for (size_t i = 0; i < offset; i++) {
        if (text[i] == '\n') {
            p.line++;
            p.column = 1;
        } else {
            p.column++;
        }
    }
    return p;
}

/* Depth by counting brackets outside strings. Malformed text is left to the parser. */
static ts_status check_depth(const char *text, size_t n, int max_depth, const char *name,
                             ts_error *err)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > max_depth) {
                position p = position_of(text, i);
                return TS_ERROR(err, TS_DATA_LOSS,
                                "%s:%zu:%zu: JSON is nested deeper than %d levels", name, p.line,
                                p.column, max_depth);
            }
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    return TS_OK;
}

/* jansson's reasons name its own flags and types where a reader cannot act on them. */
static const char *reason_of(const json_error_t *e)
{
    switch (json_error_code(e)) {
    case json_error_null_character: return "a string holds the character \\u0000; remove it";
    case json_error_null_byte_in_key: return "a key holds the character \\u0000; remove it";
    case json_error_end_of_input_expected: return "more text behind the end of the value";
    default: return e->text;
    }
}

ts_status ts_json_parse(const char *text, size_t n, int max_depth, const char *name, json_t **out,
                        ts_error *err)
{
    use_our_allocator();
    TS_ASSERT(max_depth > 0 && max_depth < JANSSON_DEPTH);
    *out = NULL;
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s:1:1: starts with a byte order mark; expected JSON "
                        "without one",
                        name);
    size_t blank = 0;
    while (blank < n && strchr(" \t\r\n", text[blank]) && text[blank]) blank++;
    if (blank == n) return TS_ERROR(err, TS_DATA_LOSS, "%s: is empty; expected JSON", name);
    TS_TRY(check_depth(text, n, max_depth, name, err));
    json_error_t e;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (memory_was_out) {
        json_decref(root);
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                        "%s: out of memory while parsing %zu bytes of JSON", name, n);
    }
    if (!root)
        return TS_ERROR(err, TS_DATA_LOSS, "%s:%d:%d: not valid JSON: %s", name, e.line, e.column,
                        reason_of(&e));
    *out = root;
    return TS_OK;
}

ts_status ts_json_read(const char *path, size_t max_bytes, int max_depth, json_t **out,
                       ts_error *err)
{
    char *text;
    size_t n;
    *out = NULL;
    TS_TRY(ts_file_read_all(path, max_bytes, &text, &n, err));
    ts_status status = ts_json_parse(text, n, max_depth, path, out, err);
    ts_free(text);
    return status;
}

char *ts_json_dump(const json_t *value, size_t flags)
{
    use_our_allocator();
    char *text = json_dumps(value, flags | JSON_ENCODE_ANY);
    if (!memory_was_out) return text;
    ts_free(text);
    return NULL;
}
