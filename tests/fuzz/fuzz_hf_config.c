/* fuzz_hf_config.c – config.json of any bytes: an error with a message, or a sane description. */
#include <stdint.h>

#include "ckpt/hf_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    ts_model_config m;
    ts_error err = {0};
    if (ts_hf_config_parse((const char *)data, n, "fuzz", &m, &err) != TS_OK) {
        TS_ASSERT(err.code != TS_OK && err.msg[0]);
        return 0;
    }
    TS_ASSERT(m.vocab > 0 && m.hidden > 0 && m.ffn > 0 && m.layers > 0 && m.max_positions > 0);
    TS_ASSERT(m.heads > 0 && m.kv_heads > 0 && m.heads % m.kv_heads == 0);
    TS_ASSERT(m.head_dim > 0 && m.head_dim % 2 == 0);
    TS_ASSERT(m.norm_eps >= 0 && m.norm_eps <= 1 && m.rope_theta >= 1 && m.rope_theta <= 1e15);
    TS_ASSERT(m.bos_id < m.vocab && m.eos_id < m.vocab && m.pad_id < m.vocab);
    return 0;
}
