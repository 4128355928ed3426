/* train/source.h – a model on disk, whatever it is: a Hugging Face folder, a checkpoint's step, or a run's
 * folder (its newest checkpoint that verifies). */
#ifndef TS_SOURCE_H
#define TS_SOURCE_H

#include "base/json.h"
#include "ckpt/checkpoint.h"
#include "models/model.h"
#include "token/tokenizer.h"

typedef struct ts_source {
    ts_model_config model;
    ts_tensors *tensors;       /* until the source is closed */
    ts_checkpoint *checkpoint; /* NULL for a published model */
    bool own_tensors;
    ts_tokenizer *tokenizer; /* NULL when the model has none that can be read */
    int64_t step;            /* of a checkpoint, else −1 */
} ts_source;

ts_status ts_source_open(const char *path, ts_source *out, ts_error *err);
/* From an open checkpoint, which it owns from then on, also when it fails. */
ts_status ts_source_of_checkpoint(ts_checkpoint *c, ts_source *out, ts_error *err);
/* What a checkpoint's state keeps of the model: NULL when memory is out. Owns: caller, json_decref. */
json_t *ts_source_describe(const ts_model_config *m, const ts_tokenizer *t);
void ts_source_close(ts_source *s);

#endif
