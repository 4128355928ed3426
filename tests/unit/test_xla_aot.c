/* test_xla_aot.c – a program for sixteen TPUs, compiled without one: what of its collectives is
 * kept, axis by axis, and what travels behind products.
 *
 * Eight layers on a mesh fsdp=4, tensor=4, both of one size, so only the groups themselves tell the
 * axes apart; once with a gather before the product, once with the same as a ring. Needs libtpu
 * (tessera plugins install tpu); skipped without.
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

/* The gather's four pieces, each multiplied while the next one travels. */
static const char ring[] =
    "graph \"ring\" mesh(fsdp=4, tensor=4) {\n"
    "  in %0 \"x\" bf16[1024,2048]\n"
    "  in %1 \"w\" bf16[8,512,2048]\n"
    "  %2 = repeat(%0, %1) n=8 reverse=false n_carry=1 n_xs=1 n_consts=0 n_stack=0 remat=0 : bf16[1024,2048] {\n"
    "    arg %3 bf16[1024,2048]\n"
    "    arg %4 bf16[512,2048]\n"
    "    %5 = slice(%3) axis=1 start=0 limit=512 : bf16[1024,512]\n"
    "    %6 = slice(%3) axis=1 start=512 limit=1024 : bf16[1024,512]\n"
    "    %7 = slice(%3) axis=1 start=1024 limit=1536 : bf16[1024,512]\n"
    "    %8 = slice(%3) axis=1 start=1536 limit=2048 : bf16[1024,512]\n"
    "    %9 = collective_permute(%4) axis=\"fsdp\" n=4 dim=0 dim2=0 shift=-1 reduce=sum : bf16[512,2048]\n"
    "    %10 = dot(%5, %4) x_batch=[] y_batch=[] x_contract=[1] y_contract=[0] dtype=f32 : f32[1024,2048]\n"
    "    %11 = collective_permute(%9) axis=\"fsdp\" n=4 dim=0 dim2=0 shift=-1 reduce=sum : bf16[512,2048]\n"
    "    %12 = dot(%6, %9) x_batch=[] y_batch=[] x_contract=[1] y_contract=[0] dtype=f32 : f32[1024,2048]\n"
    "    %13 = collective_permute(%11) axis=\"fsdp\" n=4 dim=0 dim2=0 shift=-1 reduce=sum : bf16[512,2048]\n"
    "    %14 = dot(%7, %11) x_batch=[] y_batch=[] x_contract=[1] y_contract=[0] dtype=f32 : f32[1024,2048]\n"
    "    %15 = dot(%8, %13) x_batch=[] y_batch=[] x_contract=[1] y_contract=[0] dtype=f32 : f32[1024,2048]\n"
    "    %16 = add_n(%10, %12, %14, %15) : f32[1024,2048]\n"
    "    %17 = convert(%16) dtype=bf16 : bf16[1024,2048]\n"
    "    %18 = all_reduce(%17) axis=\"tensor\" n=4 dim=0 dim2=0 shift=0 reduce=sum : bf16[1024,2048]\n"
    "    yield %18\n"
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

/* The report of a program for v6e:4x4; skips without libtpu. */
static ts_aot_report compiled(const char *text)
{
    char path[4096];
    ts_error err = {0};
    ts_graph *g = NULL;
    ts_topology t;
    ts_aot_report r;
    if (ts__plugin_find("tpu", path, sizeof path, &err) != TS_OK) {
        printf("SKIP: %s\n", err.msg);
        skip();
    }
    if (ts_graph_parse(text, strlen(text), &g, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_int_equal(ts__topology_parse("v6e-16", 1, &t, &err), TS_OK);
    ts_aot_job job = {.struct_size = sizeof job,
                      .plugin = path,
                      .topology = &t,
                      .replicas = 16,
                      .graph = g,
                      .precision = TS_PRECISION_HIGHEST};
    if (ts__aot_compile(&job, &r, &err) != TS_OK) fail_msg("%s", err.msg);
    for (size_t i = 0; i < r.n_collective; i++) {
        const ts_aot_collective *c = &r.collective[i];
        printf("%-18s %-8s %3lld × %8lld B  async %8lld B, behind products %8lld B  %s\n", c->kind, c->axis,
               (long long)c->count, (long long)c->bytes, (long long)c->async_bytes,
               (long long)c->overlapped_bytes, c->kept_as);
    }
    ts_graph_free(g);
    return r;
}

static void collectives_are_found_again(void **state)
{
    (void)state;
    ts_aot_report r = compiled(layers);
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
    assert_true(r.flops >= 8 * 2.0 * 256 * 512 * 512);
    assert_int_equal(gather->sync_bytes, gather->bytes);
    assert_int_equal(gather->async_bytes, 0);
    ts_aot_report_free(&r);
}

/* All of the ring is begun early; libtpu 0.0.52 waits for the first piece at once and multiplies
 * behind the others. */
static void a_ring_is_hidden(void **state)
{
    (void)state;
    ts_aot_report r = compiled(ring);
    const ts_aot_collective *permute = row(&r, "collective_permute", "fsdp");
    assert_int_equal(permute->count, 24);
    assert_int_equal(permute->bytes, 24 * 512 * 2048 * 2);
    assert_int_equal(permute->sync_bytes, 0);
    assert_int_equal(permute->async_bytes, permute->bytes);
    assert_int_equal(permute->async_count, 24);
    assert_true(permute->overlapped_bytes >= permute->bytes / 2);
    assert_non_null(strstr(permute->kept_as, "collective-permute-start by −1 (async)"));
    assert_int_equal(row(&r, "all_reduce", "tensor")->overlapped_bytes, 0);
    ts_aot_report_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(collectives_are_found_again),
                                       cmocka_unit_test(a_ring_is_hidden)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
