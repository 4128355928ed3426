/* fuzz_graph.c – any bytes as a graph's text. What parses has verified; it must print, parse again
 * to the same text, survive every pass, each of which leaves a graph that verifies, and be written as
 * StableHLO, or refused; its gathers and scatters become rings. */
#include <stdint.h>
#include <string.h>

#include "mesh/partition.h"
#include "xla/stablehlo.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static char *print(const ts_graph *g)
{
    ts_string s = ts_string_new((size_t)1 << 26);
    ts_graph_print(g, &s);
    TS_ASSERT(!s.failed);
    return s.data;
}

static void check_passes(ts_graph *g)
{
    ts_error err = {0};
    ts_status status = ts_graph_lower(g, NULL, &err);
    /* A rank or a size that fits the composite may not fit what it is made of. */
    if (status != TS_OK) return;
    TS_ASSERT(ts_graph_verify(g, &err) == TS_OK);
    TS_ASSERT(ts_graph_cse(g, &err) == TS_OK && ts_graph_verify(g, &err) == TS_OK);
    TS_ASSERT(ts_graph_dce(g, &err) == TS_OK && ts_graph_verify(g, &err) == TS_OK);
}

static void check_writer(const ts_graph *g)
{
    const ts_stablehlo_options o = {.precision = TS_PRECISION_HIGHEST, .carry_graph = true};
    ts_string text = ts_string_new((size_t)1 << 24);
    ts_error err = {0};
    ts_status status = ts__stablehlo_write(g, &o, &text, &err);
    TS_ASSERT(status == TS_OK ? !text.failed : err.msg[0] != '\0');
    ts_string_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    ts_graph *g, *again;
    ts_error err = {0};
    ts_status status = ts_graph_parse((const char *)data, n, &g, &err);
    if (status != TS_OK) {
        TS_ASSERT(status == TS_DATA_LOSS && err.msg[0] && g == NULL);
        return 0;
    }
    char *first = print(g);
    TS_ASSERT(ts_graph_parse(first, strlen(first), &again, &err) == TS_OK);
    char *second = print(again);
    TS_ASSERT(strcmp(first, second) == 0);
    ts_free(first);
    ts_free(second);
    check_writer(again);
    check_passes(again);
    TS_ASSERT(ts_ring_rewrite(g, NULL, 0, &err) == TS_OK); /* verifies what it leaves */
    ts_graph_free(again);
    ts_graph_free(g);
    return 0;
}
