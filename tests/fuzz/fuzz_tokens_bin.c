/* fuzz_tokens_bin.c – any bytes as a token file.
 *
 * The first byte chooses length and split, the rest is the file. What is accepted is read to its
 * end: every id lies inside the vocabulary, or the read says which does not.
 */
#include <stdint.h>

#include "data_help.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1) return 0;
    char path[32];
    int fd = memory_file(data + 1, n - 1, path);
    if (fd < 0) return 0;
    const char *paths[] = {path};
    ts_loader_options o;
    ts_loader_options_default(&o);
    o.type = TS_DATA_TOKENS;
    o.paths = paths;
    o.n_paths = 1;
    o.vocab_size = 1000;
    o.rows = 2;
    o.sequence = 1 + data[0] % 8;
    o.eval_fraction = data[0] & 8 ? 0.3 : 0;
    o.split = data[0] & 16 ? TS_SPLIT_EVAL : TS_SPLIT_TRAIN;
    ts_loader_stats stats;
    int64_t trained = run_loader(&o, 1000, &stats);
    if (trained >= 0) TS_ASSERT(trained == stats.tokens - 1 - stats.tail_tokens);
    close(fd);
    return 0;
}
