/* test_xla_aot.c – a program for sixteen TPUs, compiled without one: what of its collectives is kept, axis by axis.
 *
 * Eight layers on a mesh fsdp=4, tensor=4, both of one size, so only the groups themselves tell the axes apart. Needs
 * libtpu (tessera plugins install tpu); skipped without.
 */
#include "unit/ir_help.h"

#include "xla/aot.h"
#include "xla/plugin.h"

static const char layers[] =
    "graph \"layers\" mesh(fsdp=4, tensor=4) {\n"
    "  in %0 \"x\" bf16[256,512]\n"
    "  in %1 \"w\" bf16[8,128,512]\n"
    "  %2 = repeat(%0, %1) n=8 reverse=false n_carry=1 n_xs=1 n_consts=0 n_stack=0 remat=0 : bf16[256,512] {\n"
    "    arg %3 bf16[256,512]\n"
    "    arg %4 bf16[128,512]\n"
    "    %5 = all_gather(%4) axis=\"fsdp\" n=4 dim=0 dim2=0 shift=0 reduce=sum : bf16[512,512] scope=\"gather\"\n"
    "    %6 = dot(%3, %5) x_batch=[] y_batch=[] x_contract=[1] y_contract=[0] dtype=bf16 : bf16[256,512]\n"
    "    %7 = all_reduce(%6) axis=\"tensor\" n=4 dim=0 dim2=0 shift=0 reduce=sum : bf16[256,512]\n"
    "    yield %7\n"
    "  }\n"
    "  out \"y\" %2\n"
    "}\n";

static const ts_aot_collective *row(const ts_aot_report *r, const char *kind, const char *axis)
{
    for (size_t i = 0; i < r->n_collective; i++)
        if (strcmp(r->collective[i].kind, kind) == 0 && strcmp(r->collective[i].axis, axis) == 0)
            return &r->collective[i];
    fail_msg("no %s over %s in the report", kind, axis);
    return NULL;
}

static void collectives_are_found_again(void **state)
{
    char path[4096];
    ts_error err = {0};
    ts_graph *g = NULL;
    ts_topology t;
    ts_aot_report r;
    (void)state;
    if (ts__plugin_find("tpu", path, sizeof path, &err) != TS_OK) {
        printf("SKIP: %s\n", err.msg);
        skip();
    }
    if (ts_graph_parse(layers, sizeof layers - 1, &g, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_int_equal(ts__topology_parse("v6e-16", 1, &t, &err), TS_OK);
    ts_aot_job job = {.struct_size = sizeof job,
                      .plugin = path,
                      .topology = &t,
                      .replicas = 16,
                      .graph = g,
                      .precision = TS_PRECISION_HIGHEST};
    if (ts__aot_compile(&job, &r, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_true(r.fits);
    const ts_aot_collective *gather = row(&r, "all_gather", "fsdp"),
                            *sum = row(&r, "all_reduce", "tensor");
    assert_int_equal(gather->count, 8);
    assert_int_equal(gather->bytes, 8 * 128 * 512 * 2);
    assert_int_equal(sum->count, 8);
    assert_int_equal(sum->bytes, 8 * 256 * 512 * 2);
    assert_non_null(strstr(gather->kept_as, "all-gather"));
    assert_non_null(strstr(sum->kept_as, "all-reduce"));
    assert_null(strstr(sum->kept_as, "all-gather"));
    for (size_t i = 0; i < r.n_collective; i++)
        printf("%-12s %-8s %3lld × %8lld B  %s\n", r.collective[i].kind, r.collective[i].axis,
               (long long)r.collective[i].count, (long long)r.collective[i].bytes,
               r.collective[i].kept_as);
    assert_true(r.flops >= 8 * 2.0 * 256 * 512 * 512);
    ts_aot_report_free(&r);
    ts_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(collectives_are_found_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
