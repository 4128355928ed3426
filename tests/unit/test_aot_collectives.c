/* test_aot_collectives.c – what a graph asks for beside what an optimized program has: kept,
 * merged, split, made of others.
 *
 * The graph asks on a mesh whose axes are of one size; the programs are written by hand, with what
 * XLA was seen to do and more.
 */
#include "unit/ir_help.h"

#include "xla/aot_internal.h"

static const char asked[] =
    "graph \"asked\" mesh(data=4, fsdp=4) {\n"
    "  in %0 \"x\" bf16[64,64]\n"
    "  %1 = repeat(%0) n=8 reverse=false n_carry=1 n_xs=0 n_consts=0 n_stack=0 remat=0 : bf16[64,64] {\n"
    "    arg %2 bf16[64,64]\n"
    "    %3 = reduce_scatter(%2) axis=\"fsdp\" n=4 dim=0 dim2=0 shift=0 reduce=sum : bf16[16,64]\n"
    "    %4 = all_gather(%3) axis=\"fsdp\" n=4 dim=0 dim2=0 shift=0 reduce=sum : bf16[64,64]\n"
    "    yield %4\n"
    "  }\n"
    "  %5 = all_reduce(%1) axis=\"data\" n=4 dim=0 dim2=0 shift=0 reduce=sum : bf16[64,64]\n"
    "  %6 = all_gather(%5) axis=\"data\" n=4 dim=0 dim2=0 shift=0 reduce=sum : bf16[256,64]\n"
    "  out \"y\" %6\n"
    "}\n";

#define HEAD                                                                                                 \
    "HloModule m, is_scheduled=true\n\n"                                                                     \
    "%add (a: bf16[], b: bf16[]) -> bf16[] {\n"                                                              \
    "  %a = bf16[] parameter(0)\n"                                                                           \
    "  %b = bf16[] parameter(1)\n"                                                                           \
    "  ROOT %s = bf16[] add(%a, %b)\n"                                                                       \
    "}\n\n"                                                                                                  \
    "ENTRY main.1 {\n"                                                                                       \
    "  %p = bf16[64,64]{1,0} parameter(0)\n"                                                                 \
    "  %q = bf16[16,64]{1,0} slice(%p), slice={[0:16], [0:64]}\n"                                            \
    "  %z = s32[] constant(0)\n"

static ts_aot_report reported(const char *hlo_text, const ts_sharding *sharding)
{
    ts_aot_report r = {0};
    ts_graph *g = NULL;
    ts_hlo *h = NULL;
    ts_hlo_summary s;
    OK(ts_graph_parse(asked, sizeof asked - 1, &g, &err));
    if (sharding) g->n_axis = 0, g->top->first = g->top->last = NULL; /* a global graph asks for nothing */
    const ts_aot_job job = {.struct_size = sizeof job, .graph = g, .sharding = sharding};
    const ts_hlo_mesh mesh = ts__aot_mesh(&job);
    OK(ts__hlo_parse(hlo_text, strlen(hlo_text), &h, &err));
    OK(ts__hlo_summarize(h, &mesh, &s, &err));
    OK(ts__aot_collectives(&job, &s, &r, &err));
    ts__hlo_summary_free(&s);
    ts__hlo_free(h);
    ts_graph_free(g);
    return r;
}

static const ts_aot_collective *row(const ts_aot_report *r, const char *kind, const char *axis)
{
    for (size_t i = 0; i < r->n_collective; i++)
        if (strcmp(r->collective[i].kind, kind) == 0 && strcmp(r->collective[i].axis, axis) == 0)
            return &r->collective[i];
    fail_msg("no %s over %s in the report", kind, axis);
    return NULL;
}

static void kept(const ts_aot_report *r, const char *kind, const char *axis, const char *as, int64_t sync_bytes,
                 int64_t async_bytes, int64_t overlapped_bytes)
{
    const ts_aot_collective *c = row(r, kind, axis);
    assert_string_equal(c->kept_as, as);
    assert_int_equal(c->sync_bytes, sync_bytes);
    assert_int_equal(c->async_bytes, async_bytes);
    assert_int_equal(c->overlapped_bytes, overlapped_bytes);
}

/* The scatter became an all-reduce and a slice, the gathers over fsdp two in one instruction, those
 * over data starts. */
static void merged_and_sliced(void **state)
{
    static const char text[] = HEAD
        "  %r = bf16[64,64]{1,0} all-reduce(%p), replica_groups=[4,4]<=[16], to_apply=%add\n"
        "  %rs = bf16[16,64]{1,0} dynamic-slice(%r, %z, %z), dynamic_slice_sizes={16,64}\n"
        "  %g = (bf16[64,64]{1,0}, bf16[64,64]{1,0}) all-gather(%q, %rs), replica_groups=[4,4]<=[16], dimensions={0}\n"
        "  %d = bf16[64,64]{1,0} all-reduce(%p), replica_groups=[4,4]<=[4,4]T(1,0), to_apply=%add\n"
        "  %gs = (bf16[64,64]{1,0}, bf16[256,64]{1,0}) all-gather-start(%d), "
        "replica_groups={{0,4,8,12},{1,5,9,13},{2,6,10,14},{3,7,11,15}}, dimensions={0}\n"
        "  %dot = bf16[64,64]{1,0} dot(%p, %d), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "  ROOT %gd = bf16[256,64]{1,0} all-gather-done(%gs)\n"
        "}\n";
    (void)state;
    ts_aot_report r = reported(text, NULL);
    assert_int_equal(r.n_collective, 4);
    assert_int_equal(row(&r, "reduce_scatter", "fsdp")->count, 8);
    assert_int_equal(row(&r, "reduce_scatter", "fsdp")->bytes, 8 * 8192);
    kept(&r, "reduce_scatter", "fsdp", "all-reduce + slice", 8192, 0, 0);
    kept(&r, "all_gather", "fsdp", "all-gather", 2 * 2048, 0, 0);
    kept(&r, "all_reduce", "data", "all-reduce", 8192, 0, 0);
    kept(&r, "all_gather", "data", "all-gather-start (async)", 0, 8192, 8192);
    ts_aot_report_free(&r);
}

/* A sum of which two users read a quarter each is a sum. */
static void packed(void **state)
{
    static const char text[] = HEAD
        "  %r = bf16[64,64]{1,0} all-reduce(%p), replica_groups=[4,4]<=[16], to_apply=%add\n"
        "  %a1 = bf16[16,64]{1,0} dynamic-slice(%r, %z, %z), dynamic_slice_sizes={16,64}\n"
        "  %a2 = bf16[16,64]{1,0} dynamic-slice(%r, %z, %z), dynamic_slice_sizes={16,64}\n"
        "  ROOT %t = (bf16[16,64]{1,0}, bf16[16,64]{1,0}) tuple(%a1, %a2)\n"
        "}\n";
    ts_mesh mesh = {.n = 2, .devices = 16, .axis = {{"fsdp", 4, TS_AXIS_FSDP}, {"tensor", 4, TS_AXIS_TENSOR}}};
    const ts_sharding sharding = {.mesh = &mesh};
    (void)state;
    ts_aot_report r = reported(text, &sharding);
    kept(&r, "all-reduce", "tensor", "all-reduce", 8192, 0, 0);
    ts_aot_report_free(&r);
}

/* The scatter is made of permutes, forwards and backwards; the gathers of both axes are one; a
 * permute over data and an all-to-all were not asked for. */
static void made_of_others(void **state)
{
    static const char text[] = HEAD
        "  %f = bf16[16,64]{1,0} collective-permute(%q), source_target_pairs={{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},"
        "{6,7},{7,4},{8,9},{9,10},{10,11},{11,8},{12,13},{13,14},{14,15},{15,12}}\n"
        "  %b = bf16[16,64]{1,0} collective-permute(%f), source_target_pairs={{1,0},{2,1},{3,2},{0,3},{5,4},{6,5},"
        "{7,6},{4,7},{9,8},{10,9},{11,10},{8,11},{13,12},{14,13},{15,14},{12,15}}\n"
        "  %g = bf16[256,64]{1,0} all-gather(%b), replica_groups=[1,16]<=[16], dimensions={0}\n"
        "  %d = bf16[64,64]{1,0} all-reduce(%p), replica_groups=[4,4]<=[4,4]T(1,0), to_apply=%add\n"
        "  %t = bf16[16,64]{1,0} all-to-all(%b), replica_groups=[4,4]<=[16], dimensions={0}\n"
        "  ROOT %odd = bf16[16,64]{1,0} collective-permute(%t), source_target_pairs={{0,4},{4,0}}\n"
        "}\n";
    (void)state;
    ts_aot_report r = reported(text, NULL);
    kept(&r, "reduce_scatter", "fsdp", "collective-permute by +1, collective-permute by −1", 2 * 2048, 0, 0);
    kept(&r, "all_gather", "data", "all-gather over data,fsdp", 2048, 0, 0);
    kept(&r, "all_gather", "fsdp", "all-gather over data,fsdp", 0, 0, 0);
    kept(&r, "all-to-all", "fsdp", "all-to-all", 2048, 0, 0);
    kept(&r, "collective-permute", "data", "collective-permute", 2048, 0, 0);
    assert_int_equal(row(&r, "collective-permute", "data")->bytes, 2048);
    assert_int_equal(r.n_collective, 6);
    ts_aot_report_free(&r);
}

/* shard_mode=auto: every row is XLA's, and the sharding's mesh names the axes. */
static void of_a_global_graph(void **state)
{
    static const char text[] = HEAD
        "  %g = bf16[64,64]{1,0} all-gather(%q), replica_groups=[4,4]<=[16], dimensions={0}\n"
        "  %s1 = (bf16[64,64]{1,0}, bf16[256,64]{1,0}) all-gather-start(%g), replica_groups=[4,4]<=[16], "
        "dimensions={0}\n"
        "  %e1 = bf16[256,64]{1,0} all-gather-done(%s1)\n"
        "  ROOT %d = bf16[64,64]{1,0} all-reduce(%p), replica_groups=[4,4]<=[4,4]T(1,0), to_apply=%add\n"
        "}\n";
    ts_mesh mesh = {.n = 2, .devices = 16, .axis = {{"fsdp", 4, TS_AXIS_FSDP}, {"tensor", 4, TS_AXIS_TENSOR}}};
    const ts_sharding sharding = {.mesh = &mesh};
    (void)state;
    ts_aot_report r = reported(text, &sharding);
    kept(&r, "all-gather", "tensor", "all-gather, all-gather-start (async)", 2048, 8192, 0);
    assert_int_equal(row(&r, "all-gather", "tensor")->bytes, 2048 + 8192);
    kept(&r, "all-reduce", "fsdp", "all-reduce", 8192, 0, 0);
    assert_int_equal(r.n_collective, 2);
    ts_aot_report_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(merged_and_sliced), cmocka_unit_test(packed),
                                       cmocka_unit_test(made_of_others),
                                       cmocka_unit_test(of_a_global_graph)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
