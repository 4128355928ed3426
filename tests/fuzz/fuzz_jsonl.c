/* fuzz_jsonl.c – any bytes as a file of JSON rows, in every packing.
 *
 * The first byte chooses the options, the rest is the file. A whole epoch trains every token of the
 * usable rows but the first of each, however they are packed, cut or split.
 */
#include <stdint.h>

#include "data_help.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static ts_tokenizer *byte;
    if (!byte && ts_tokenizer_open_byte(&byte, NULL) != TS_OK) return 0;
    if (n < 1) return 0;
    char path[32];
    int fd = memory_file(data + 1, n - 1, path);
    if (fd < 0) return 0;
    const char *paths[] = {path};
    ts_loader_options o;
    ts_loader_options_default(&o);
    o.type = TS_DATA_JSONL;
    o.paths = paths;
    o.n_paths = 1;
    o.tokenizer = byte;
    o.rows = 3;
    o.sequence = 16;
    o.packing = (ts_packing)(data[0] % 3);
    o.truncate = data[0] & 4;
    o.eval_fraction = data[0] & 8 ? 0.5 : 0;
    o.split = data[0] & 16 ? TS_SPLIT_EVAL : TS_SPLIT_TRAIN;
    o.on_bad_row = data[0] & 32 ? TS_BAD_ROW_STOP : TS_BAD_ROW_SKIP;
    o.add_bos = o.add_eos = data[0] & 64;
    o.max_segments = data[0] & 128 ? 2 : -1;
    o.max_row_bytes = 200;
    ts_loader_stats stats;
    int64_t trained = run_loader(&o, 259, &stats);
    if (trained >= 0) TS_ASSERT(trained == stats.tokens - stats.samples);
    close(fd);
    return 0;
}
