/* ckpt/safetensors_header.c – the header of a safetensors file: a parser for exactly its grammar.
 *
 * Not a JSON library: the header is an object of objects with three known fields, so depth is fixed,
 * memory is bounded by the bytes read, and every error knows its byte. Strings may use all of JSON's
 * escapes. After parsing, the rules that involve several tensors are checked: unique names, ranges
 * contiguous from 0 to the end of the file.
 */
#include "ckpt/safetensors_header.h"

#include <stdlib.h>
#include <utf8proc.h>

static const struct {
    const char *name;
    int bits;
} dtypes[TS_FILE_DTYPES] = {
    [TS_FILE_BOOL] = {"BOOL", 8},
    [TS_FILE_F4] = {"F4", 4},
    [TS_FILE_F6_E2M3] = {"F6_E2M3", 6},
    [TS_FILE_F6_E3M2] = {"F6_E3M2", 6},
    [TS_FILE_U8] = {"U8", 8},
    [TS_FILE_I8] = {"I8", 8},
    [TS_FILE_F8_E5M2] = {"F8_E5M2", 8},
    [TS_FILE_F8_E4M3] = {"F8_E4M3", 8},
    [TS_FILE_F8_E8M0] = {"F8_E8M0", 8},
    [TS_FILE_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [TS_FILE_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [TS_FILE_I16] = {"I16", 16},
    [TS_FILE_U16] = {"U16", 16},
    [TS_FILE_F16] = {"F16", 16},
    [TS_FILE_BF16] = {"BF16", 16},
    [TS_FILE_I32] = {"I32", 32},
    [TS_FILE_U32] = {"U32", 32},
    [TS_FILE_F32] = {"F32", 32},
    [TS_FILE_C64] = {"C64", 64},
    [TS_FILE_F64] = {"F64", 64},
    [TS_FILE_I64] = {"I64", 64},
    [TS_FILE_U64] = {"U64", 64},
};

const char *ts_file_dtype_name(ts_file_dtype t)
{
    TS_ASSERT(t >= 0 && t < TS_FILE_DTYPES);
    return dtypes[t].name;
}

int ts_file_dtype_bits(ts_file_dtype t)
{
    TS_ASSERT(t >= 0 && t < TS_FILE_DTYPES);
    return dtypes[t].bits;
}

typedef struct parser {
    const char *text;
    size_t at, n;
    const char *path;
    ts_arena *arena;
    ts_st_header *out;
    ts_error *err;
} parser;

/* An error at byte `at` of the header, counted from the start of the file. */
#define BAD(p, at, ...) bad((p), (at), TS_ERROR((p)->err, TS_DATA_LOSS, __VA_ARGS__))

static ts_status bad(parser *p, size_t at, ts_status status)
{
    if (p->err) ts__error_context(p->err, "%s: byte %zu of the header", p->path, at + 8);
    return status;
}

static ts_status out_of_memory(parser *p)
{
    return TS_ERROR(p->err, TS_RESOURCE_EXHAUSTED, "%s: out of memory while reading the header",
                    p->path);
}

static void skip_blanks(parser *p)
{
    while (p->at < p->n && (p->text[p->at] == ' ' || p->text[p->at] == '\n' ||
                            p->text[p->at] == '\t' || p->text[p->at] == '\r'))
        p->at++;
}

/* Blanks, then c? */
static bool next_is(parser *p, char c)
{
    skip_blanks(p);
    if (p->at >= p->n || p->text[p->at] != c) return false;
    p->at++;
    return true;
}

static ts_status expect(parser *p, char c, const char *where)
{
    if (next_is(p, c)) return TS_OK;
    if (p->at >= p->n) return BAD(p, p->at, "the header ends; expected '%c' %s", c, where);
    unsigned char got = (unsigned char)p->text[p->at];
    if (got < 0x20 || got > 0x7e)
        return BAD(p, p->at, "found byte 0x%02x; expected '%c' %s", got, c, where);
    return BAD(p, p->at, "found '%c'; expected '%c' %s", got, c, where);
}

static int hex4(const parser *p)
{
    if (p->n - p->at < 4) return -1;
    int value = 0;
    for (int i = 0; i < 4; i++) {
        char c = p->text[p->at + (size_t)i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* After "\u": one code point as UTF-8, surrogate pairs joined. Returns its bytes, 0 when malformed. */
static size_t take_code_point(parser *p, char *to)
{
    int code = hex4(p);
    if (code < 0) return 0;
    p->at += 4;
    if (code >= 0xd800 && code < 0xdc00) {
        if (p->n - p->at < 6 || p->text[p->at] != '\\' || p->text[p->at + 1] != 'u') return 0;
        p->at += 2;
        int low = hex4(p);
        if (low < 0xdc00 || low > 0xdfff) return 0;
        p->at += 4;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000) {
        return 0;
    }
    return (size_t)utf8proc_encode_char(code, (utf8proc_uint8_t *)to);
}

/* One escape after the backslash; 0 bytes when malformed. */
static size_t take_escape(parser *p, char *to)
{
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    if (p->at >= p->n) return 0;
    char c = p->text[p->at++];
    if (c == 'u') return take_code_point(p, to);
    const char *found = c ? strchr(from, c) : NULL;
    if (!found) return 0;
    *to = into[found - from];
    return 1;
}

/* A JSON string without NUL, decoded into the arena. max: bytes. */
static ts_status take_string(parser *p, size_t max, const char *what, const char **out, size_t *at)
{
    skip_blanks(p);
    if (p->at >= p->n || p->text[p->at] != '"') return expect(p, '"', what);
    *at = p->at++;
    /* A decoded string is never longer than its text; find the text's end first. */
    size_t end = p->at;
    while (end < p->n && p->text[end] != '"') end += p->text[end] == '\\' ? 2 : 1;
    if (end >= p->n) return BAD(p, *at, "a string is not closed (%s)", what);
    char *to = ts_arena_alloc(p->arena, end - p->at + 4);
    size_t length = 0;
    if (!to) return out_of_memory(p);
    while (p->at < end) {
        unsigned char c = (unsigned char)p->text[p->at];
        size_t here = p->at++, bytes = 1;
        if (c < 0x20) return BAD(p, here, "control character 0x%02x inside a string (%s)", c, what);
        if (c == '\\')
            bytes = take_escape(p, to + length);
        else
            to[length] = (char)c;
        if (bytes == 0) return BAD(p, here, "malformed escape inside a string (%s)", what);
        if (bytes == 1 && to[length] == '\0') return BAD(p, here, "NUL inside a string (%s)", what);
        length += bytes;
    }
    to[length] = '\0';
    p->at = end + 1;
    if (length > max)
        return BAD(p, *at, "a string of %zu bytes; expected at most %zu (%s)", length, max, what);
    *out = to;
    return TS_OK;
}

static ts_status take_unsigned(parser *p, const char *what, uint64_t *out)
{
    skip_blanks(p);
    size_t at = p->at;
    uint64_t value = 0;
    while (p->at < p->n && p->text[p->at] >= '0' && p->text[p->at] <= '9') {
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(p->text[p->at] - '0'), &value))
            return BAD(p, at, "a number does not fit 64 bits (%s)", what);
        p->at++;
    }
    bool fraction = p->at < p->n && strchr(".eE", p->text[p->at]) && p->text[p->at];
    if (p->at == at || fraction) return BAD(p, at, "expected an unsigned whole number (%s)", what);
    if (p->text[at] == '0' && p->at - at > 1)
        return BAD(p, at, "a number begins with 0 (%s)", what);
    *out = value;
    return TS_OK;
}

static ts_status take_dtype(parser *p, ts_tensor *x)
{
    const char *name;
    size_t at;
    TS_TRY(take_string(p, 64, "a dtype", &name, &at));
    for (int i = 0; i < TS_FILE_DTYPES; i++)
        if (strcmp(name, dtypes[i].name) == 0) {
            x->dtype = (ts_file_dtype)i;
            return TS_OK;
        }
    return BAD(p, at, "tensor \"%s\" has the unknown dtype \"%s\"", x->name, name);
}

static ts_status take_shape(parser *p, ts_tensor *x)
{
    TS_TRY(expect(p, '[', "to begin a shape"));
    if (next_is(p, ']')) return TS_OK;
    do {
        size_t at = p->at;
        uint64_t size;
        TS_TRY(take_unsigned(p, "a dimension", &size));
        if (x->rank == TS_TENSOR_RANK)
            return BAD(p, at, "tensor \"%s\" has more than %d dimensions", x->name, TS_TENSOR_RANK);
        if (size >= 1ull << 48)
            return BAD(p, at, "tensor \"%s\" has a dimension of %llu; expected less than 2^48",
                       x->name, (unsigned long long)size);
        x->dim[x->rank++] = (int64_t)size;
    } while (next_is(p, ','));
    return expect(p, ']', "to end a shape");
}

static ts_status take_offsets(parser *p, ts_tensor *x)
{
    uint64_t end;
    TS_TRY(expect(p, '[', "to begin data_offsets"));
    TS_TRY(take_unsigned(p, "data_offsets", &x->offset));
    TS_TRY(expect(p, ',', "between the two data_offsets"));
    size_t at = p->at;
    TS_TRY(take_unsigned(p, "data_offsets", &end));
    TS_TRY(expect(p, ']', "after the two data_offsets"));
    if (end < x->offset)
        return BAD(p, at, "tensor \"%s\" ends at %llu before it begins at %llu", x->name,
                   (unsigned long long)end, (unsigned long long)x->offset);
    x->bytes = end - x->offset;
    return TS_OK;
}

/* Shape × dtype must be the bytes between the offsets. */
static ts_status check_bytes(parser *p, ts_tensor *x, size_t at)
{
    uint64_t count = 1, bits;
    bool overflow = false;
    for (int i = 0; i < x->rank; i++)
        overflow |= __builtin_mul_overflow(count, (uint64_t)x->dim[i], &count);
    overflow |= __builtin_mul_overflow(count, (uint64_t)dtypes[x->dtype].bits, &bits);
    if (overflow) return BAD(p, at, "the size of tensor \"%s\" overflows 64 bits", x->name);
    if (bits % 8)
        return BAD(p, at, "tensor \"%s\" is %llu bits, not whole bytes", x->name,
                   (unsigned long long)bits);
    if (bits / 8 != x->bytes)
        return BAD(
            p, at,
            "tensor \"%s\" holds %llu bytes by its offsets; its shape and dtype %s make %llu",
            x->name, (unsigned long long)x->bytes, dtypes[x->dtype].name,
            (unsigned long long)(bits / 8));
    x->count = count;
    return TS_OK;
}

static ts_status take_tensor(parser *p, const char *name, size_t name_at)
{
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    ts_tensor x = {.name = name};
    unsigned seen = 0;
    TS_TRY(expect(p, '{', "to begin a tensor's description"));
    if (!next_is(p, '}')) {
        do {
            const char *field;
            size_t at;
            TS_TRY(take_string(p, TS_TENSOR_NAME_BYTES, "a field of a tensor", &field, &at));
            unsigned k = 0;
            while (k < 3 && strcmp(field, fields[k]) != 0) k++;
            if (k == 3)
                return BAD(p, at, "tensor \"%s\" has the unknown field \"%s\"", name, field);
            if (seen & 1u << k)
                return BAD(p, at, "tensor \"%s\" has the field \"%s\" twice", name, field);
            seen |= 1u << k;
            TS_TRY(expect(p, ':', "after a field's name"));
            TS_TRY(k == 0 ? take_dtype(p, &x) : k == 1 ? take_shape(p, &x) : take_offsets(p, &x));
        } while (next_is(p, ','));
        TS_TRY(expect(p, '}', "to end a tensor's description"));
    }
    for (unsigned k = 0; k < 3; k++)
        if (!(seen & 1u << k))
            return BAD(p, name_at, "tensor \"%s\" lacks the field \"%s\"", name, fields[k]);
    TS_TRY(check_bytes(p, &x, name_at));
    ts_st_header *h = p->out;
    if (h->n == h->capacity) {
        size_t more = h->capacity ? h->capacity * 2 : 16;
        ts_tensor *grown = ts_realloc(h->tensor, h->n * sizeof *grown, more * sizeof *grown);
        if (!grown) return out_of_memory(p);
        h->tensor = grown;
        h->capacity = more;
    }
    h->tensor[h->n++] = x;
    return TS_OK;
}

static int pair_by_key(const void *a, const void *b)
{
    return strcmp(((const ts_st_pair *)a)->key, ((const ts_st_pair *)b)->key);
}

static ts_status take_metadata(parser *p)
{
    ts_st_header *h = p->out;
    size_t at = p->at;
    TS_TRY(expect(p, '{', "to begin __metadata__"));
    if (next_is(p, '}')) return TS_OK;
    do {
        ts_st_pair pair;
        TS_TRY(take_string(p, p->n, "a key of __metadata__", &pair.key, &at));
        TS_TRY(expect(p, ':', "after a key of __metadata__"));
        TS_TRY(take_string(p, p->n, "a value of __metadata__, a string", &pair.value, &at));
        if (h->n_metadata == h->metadata_capacity) {
            size_t more = h->metadata_capacity ? h->metadata_capacity * 2 : 8;
            ts_st_pair *grown =
                ts_realloc(h->metadata, h->n_metadata * sizeof *grown, more * sizeof *grown);
            if (!grown) return out_of_memory(p);
            h->metadata = grown;
            h->metadata_capacity = more;
        }
        h->metadata[h->n_metadata++] = pair;
    } while (next_is(p, ','));
    TS_TRY(expect(p, '}', "to end __metadata__"));
    qsort(h->metadata, h->n_metadata, sizeof *h->metadata, pair_by_key);
    for (size_t i = 1; i < h->n_metadata; i++)
        if (strcmp(h->metadata[i - 1].key, h->metadata[i].key) == 0)
            return BAD(p, at, "__metadata__ has the key \"%.200s\" twice", h->metadata[i].key);
    return TS_OK;
}

static ts_status take_header(parser *p)
{
    bool metadata_seen = false;
    if (p->n && strchr(" \t\r\n", p->text[0]) && p->text[0])
        return BAD(p, 0, "found a blank; expected '{' as the first byte of the header");
    if (p->n == 0 || p->text[0] != '{') return expect(p, '{', "as the first byte of the header");
    p->at = 1;
    if (!next_is(p, '}')) {
        do {
            const char *name;
            size_t at;
            TS_TRY(take_string(p, TS_TENSOR_NAME_BYTES, "a tensor's name", &name, &at));
            TS_TRY(expect(p, ':', "after a name"));
            if (strcmp(name, "__metadata__") == 0) {
                if (metadata_seen) return BAD(p, at, "__metadata__ occurs twice");
                metadata_seen = true;
                TS_TRY(take_metadata(p));
            } else if (!*name) {
                return BAD(p, at, "a tensor's name is empty");
            } else {
                TS_TRY(take_tensor(p, name, at));
            }
        } while (next_is(p, ','));
        TS_TRY(expect(p, '}', "to end the header"));
    }
    skip_blanks(p);
    if (p->at < p->n)
        return BAD(p, p->at, "more text after the header's end; expected only blanks");
    return TS_OK;
}

static ts_status check_utf8(parser *p)
{
    for (size_t i = 0; i < p->n;) {
        if ((unsigned char)p->text[i] < 0x80) {
            i++;
            continue;
        }
        utf8proc_int32_t code;
        size_t left = p->n - i < 4 ? p->n - i : 4;
        utf8proc_ssize_t bytes =
            utf8proc_iterate((const utf8proc_uint8_t *)p->text + i, (utf8proc_ssize_t)left, &code);
        if (bytes <= 0) return BAD(p, i, "is not valid UTF-8");
        i += (size_t)bytes;
    }
    return TS_OK;
}

static int tensor_by_offset(const void *a, const void *b)
{
    const ts_tensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int tensor_by_name(const void *a, const void *b)
{
    return strcmp(((const ts_tensor *)a)->name, ((const ts_tensor *)b)->name);
}

/* Ranges follow each other from 0 to the end of the file. */
static ts_status check_ranges(parser *p, uint64_t data_bytes)
{
    ts_st_header *h = p->out;
    uint64_t end = 0;
    if (h->n) qsort(h->tensor, h->n, sizeof *h->tensor, tensor_by_offset);
    for (size_t i = 0; i < h->n; i++) {
        ts_tensor *x = &h->tensor[i];
        if (x->offset != end)
            return TS_ERROR(
                p->err, TS_DATA_LOSS,
                "%s: tensor \"%s\" begins at data byte %llu; expected %llu (%s)", p->path, x->name,
                (unsigned long long)x->offset, (unsigned long long)end,
                x->offset < end ? "it overlaps another tensor" : "there is a hole before it");
        end = x->offset + x->bytes;
        x->offset += 8 + p->n;
    }
    if (end != data_bytes)
        return TS_ERROR(p->err, TS_DATA_LOSS,
                        "%s: the tensors need %llu bytes after the header and the file has %llu "
                        "(%s)",
                        p->path, (unsigned long long)end, (unsigned long long)data_bytes,
                        end > data_bytes ? "it was cut; copy or download it again"
                                         : "something follows the last tensor");
    if (h->n) qsort(h->tensor, h->n, sizeof *h->tensor, tensor_by_name);
    for (size_t i = 1; i < h->n; i++)
        if (strcmp(h->tensor[i - 1].name, h->tensor[i].name) == 0)
            return TS_ERROR(p->err, TS_DATA_LOSS, "%s: the tensor \"%s\" is listed twice", p->path,
                            h->tensor[i].name);
    return TS_OK;
}

ts_status ts__safetensors_parse(const char *text, size_t n, uint64_t file_bytes, const char *path,
                                ts_arena *arena, ts_st_header *out, ts_error *err)
{
    TS_ASSERT(file_bytes >= 8 && n <= file_bytes - 8);
    *out = (ts_st_header){0};
    parser p = {.text = text, .n = n, .path = path, .arena = arena, .out = out, .err = err};
    ts_status status = check_utf8(&p);
    if (status == TS_OK) status = take_header(&p);
    if (status == TS_OK) status = check_ranges(&p, file_bytes - 8 - n);
    if (status != TS_OK) ts__safetensors_header_free(out);
    return status;
}

void ts__safetensors_header_free(ts_st_header *h)
{
    ts_free(h->tensor);
    ts_free(h->metadata);
    *h = (ts_st_header){0};
}
