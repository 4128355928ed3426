/* fuzz_hlo.c – HLO text of any kind: what is accepted can be summed up and asked for names without harm. */
#include <stdint.h>

#include "xla/hlo.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const names[] = {"main", "y", "while", "fusion.1", ""};
    static const ts_hlo_mesh mesh = {3, {2, 2, 4}};
    ts_hlo *h;
    ts_hlo_summary s;
    ts_hlo_value v;
    ts_error err = {0};
    if (ts__hlo_parse((const char *)data, n, &h, &err) != TS_OK) {
        TS_ASSERT(err.code != TS_OK && err.msg[0] && !h);
        return 0;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (ts__hlo_find(h, names[i], strlen(names[i]), (int)i - 1, &v))
            TS_ASSERT(strlen(v.shape) < sizeof v.shape);
    if (ts__hlo_summarize(h, &mesh, &s, &err) == TS_OK) {
        for (size_t i = 0; i < s.n_collective; i++)
            TS_ASSERT(s.collective[i].count >= 0 && s.collective[i].op[0] &&
                      s.collective[i].overlapped_bytes <= s.collective[i].bytes && s.collective[i].axes < 8);
        ts__hlo_summary_free(&s);
    }
    ts__hlo_free(h);
    return 0;
}
