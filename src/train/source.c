/* train/source.c – opens a model, whatever its form; see source.h.
 *
 * A checkpoint carries the model's description in its state under "model", so that it needs nothing beside it.
 */
#include "train/source.h"

#include <stdlib.h>

#include "base/file.h"
#include "ckpt/hf_config.h"

/* ---- the description in a checkpoint --------------------------------------------------------- */

typedef struct int_field {
    const char *name;
    size_t offset;
} int_field;
static const int_field sizes[] = {
#define SIZE(f)                                                                                    \
    {                                                                                              \
#f, offsetof(ts_model_config, f)                                                           \
    }
    SIZE(vocab), SIZE(hidden),   SIZE(ffn),      SIZE(layers),
    SIZE(heads), SIZE(kv_heads), SIZE(head_dim), SIZE(max_positions),
#undef SIZE
};
static const int_field reals[] = {
#define REAL(f)                                                                                    \
    {                                                                                              \
#f, offsetof(ts_model_config, f)                                                           \
    }
    REAL(norm_eps), REAL(rope_theta), REAL(rope_factor),
    REAL(rope_low), REAL(rope_high),  REAL(rope_original),
#undef REAL
};
static const int_field ids[] = {
#define ID(f)                                                                                      \
    {                                                                                              \
#f, offsetof(ts_model_config, f)                                                           \
    }
    ID(bos_id),
    ID(eos_id),
    ID(pad_id),
#undef ID
};
#define COUNT(a)              (sizeof(a) / sizeof *(a))
#define AT(type, base, field) ((type *)((char *)(base) + (field).offset))

json_t *ts_source_describe(const ts_model_config *m, const ts_tokenizer *t)
{
    ts_model_config c = *m;
    json_t *o = json_object();
    int bad = !o;
    bad |= json_object_set_new(o, "architecture", json_string("llama"));
    bad |= json_object_set_new(o, "tied", json_boolean(c.tied));
    bad |= json_object_set_new(o, "rope",
                               json_string(c.rope == TS_ROPE_LLAMA3 ? "llama3" : "default"));
    bad |= json_object_set_new(o, "tokenizer_type", json_string(t ? ts_tokenizer_type(t) : ""));
    for (size_t i = 0; i < COUNT(sizes); i++)
        bad |= json_object_set_new(o, sizes[i].name, json_integer(*AT(int64_t, &c, sizes[i])));
    for (size_t i = 0; i < COUNT(reals); i++)
        bad |= json_object_set_new(o, reals[i].name, json_real(*AT(double, &c, reals[i])));
    for (size_t i = 0; i < COUNT(ids); i++)
        bad |= json_object_set_new(o, ids[i].name, json_integer(*AT(int32_t, &c, ids[i])));
    if (!bad) return o;
    json_decref(o);
    return NULL;
}

static bool is_word(const json_t *o, const char *key, const char *word)
{
    const char *v = json_string_value(json_object_get(o, key));
    return v && strcmp(v, word) == 0;
}

static ts_status read_description(const json_t *o, const char *path, ts_model_config *m,
                                  ts_error *err)
{
    *m = (ts_model_config){.arch = TS_ARCH_LLAMA};
    if (!json_is_object(o) || !is_word(o, "architecture", "llama"))
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s: the manifest describes no model that this program knows", path);
    m->tied = json_is_true(json_object_get(o, "tied"));
    m->rope = is_word(o, "rope", "llama3") ? TS_ROPE_LLAMA3 : TS_ROPE_DEFAULT;
    for (size_t i = 0; i < COUNT(sizes); i++)
        *AT(int64_t, m, sizes[i]) = json_integer_value(json_object_get(o, sizes[i].name));
    for (size_t i = 0; i < COUNT(reals); i++)
        *AT(double, m, reals[i]) = json_number_value(json_object_get(o, reals[i].name));
    for (size_t i = 0; i < COUNT(ids); i++) {
        const json_t *v = json_object_get(o, ids[i].name);
        *AT(int32_t, m, ids[i]) = json_is_integer(v) ? (int32_t)json_integer_value(v) : -1;
    }
    if (ts_model_check(m, err) == TS_OK) return TS_OK;
    ts__error_context(err, "%s: the manifest's model", path);
    if (err) err->code = TS_DATA_LOSS;
    return TS_DATA_LOSS;
}

/* ---- opening --------------------------------------------------------------------------------- */

ts_status ts_source_of_checkpoint(ts_checkpoint *c, ts_source *out, ts_error *err)
{
    *out = (ts_source){
        .checkpoint = c, .tensors = ts_checkpoint_tensors(c), .step = ts_checkpoint_step(c)};
    const json_t *model = json_object_get(ts_checkpoint_state(c), "model");
    ts_status status = read_description(model, ts_checkpoint_path(c), &out->model, err);
    if (status == TS_OK && is_word(model, "tokenizer_type", "byte"))
        status = ts_tokenizer_open_byte(&out->tokenizer, err);
    if (status != TS_OK) ts_source_close(out);
    return status;
}

static ts_status open_published(const char *path, ts_source *out, ts_error *err)
{
    *out = (ts_source){.step = -1, .own_tensors = true};
    ts_status status = ts_hf_config_read(path, &out->model, err);
    if (status == TS_OK) status = ts_tensors_open_model(path, &out->tensors, err);
    if (status != TS_OK) ts_source_close(out);
    return status;
}

static bool holds(const char *folder, const char *name, ts_path_kind kind)
{
    char *path = ts_path_join(folder, name);
    bool yes = path && ts_path_kind_of(path) == kind;
    ts_free(path);
    return yes;
}

ts_status ts_source_open(const char *path, ts_source *out, ts_error *err)
{
    *out = (ts_source){.step = -1};
    ts_checkpoint *c = NULL;
    switch (ts_path_kind_of(path)) {
    case TS_PATH_NONE:
        return TS_ERROR(
            err, TS_NOT_FOUND,
            "%s does not exist; expected a model folder, a checkpoint or a run's folder", path);
    case TS_PATH_FOLDER: break;
    default:
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "%s is a file; expected a folder: of a model (config.json beside "
                        "model.safetensors), of a checkpoint (RUN/checkpoints/STEP) or of a run",
                        path);
    }
    if (holds(path, "manifest.json", TS_PATH_FILE)) {
        TS_TRY(ts_checkpoint_open(path, &c, err));
        return ts_source_of_checkpoint(c, out, err);
    }
    if (holds(path, "config.json", TS_PATH_FILE)) return open_published(path, out, err);
    if (holds(path, "checkpoints", TS_PATH_FOLDER)) {
        char *folder = ts_path_join(path, "checkpoints");
        ts_status status = folder ? ts_checkpoint_open_newest(folder, &c, err)
                                  : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out");
        ts_free(folder);
        return status == TS_OK ? ts_source_of_checkpoint(c, out, err) : status;
    }
    return TS_ERROR(err, TS_INVALID_ARGUMENT,
                    "%s holds neither config.json (a model), nor manifest.json (a checkpoint), nor "
                    "checkpoints/ (a run)",
                    path);
}

void ts_source_close(ts_source *s)
{
    if (s->own_tensors) ts_tensors_close(s->tensors);
    ts_checkpoint_close(s->checkpoint);
    ts_tokenizer_free(s->tokenizer);
    *s = (ts_source){.step = -1};
}
