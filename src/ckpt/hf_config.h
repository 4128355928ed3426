/* ckpt/hf_config.h – config.json of a Hugging Face model folder, read into ts_model_config and
 * written from it. Llama only; other families are refused by name. */
#ifndef TS_HF_CONFIG_H
#define TS_HF_CONFIG_H

#include "base/base.h"
#include "models/model.h"

/* path: the file, or a folder that holds config.json. What the file lacks and the reference library
 * defaults (head_dim, num_key_value_heads, rms_norm_eps, rope_theta, bos, eos …) is filled in; sizes
 * must be there. What we cannot compute faithfully is DATA_LOSS: file, key, value, expected. */
ts_status ts_hf_config_read(const char *path, ts_model_config *out, ts_error *err);
ts_status ts_hf_config_parse(const char *text, size_t n, const char *name, ts_model_config *out,
                             ts_error *err);

/* torch_dtype: "float32" or "bfloat16", what the tensors beside it are. The file is synced. */
ts_status ts_hf_config_write(const char *path, const ts_model_config *m, const char *torch_dtype,
                             ts_error *err);

#endif
