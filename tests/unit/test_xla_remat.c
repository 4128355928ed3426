/* test_xla_remat.c – what is computed again in the backward half is still there after XLA has optimized the program.
 *
 * A repeat of one iteration becomes its body, where XLA would merge the recomputation with the forward; a loop keeps it
 * apart by itself. Counted are the products and tanh's of the program that XLA dumps: of a layer tanh(h·a)·b, two
 * products forward, four backward, and with remat full one again; remat minimal keeps products and computes tanh
 * again. Runs on the plugin "cpu" (TESSERA_PLUGIN_PATH); skipped without it.
 */
#include <dirent.h>
#include <unistd.h>

#include "unit/ir_help.h"
#include "exec/engine.h"
#include "grad/grad.h"
#include "xla/plugin.h"

/* The layer n times, its loss, and the gradients of everything. */
static ts_graph *program(int64_t n, ts_remat remat)
{
    const ts_dot_dims d = {0, 1, {0}, {0}, {1}, {0}};
    ts_builder *b = ts_builder_new("remat");
    ts_dim dims[3] = {{NULL, n}, {NULL, 16}, {NULL, 16}};
    ts_value *x = ts_input(b, "x", TS_F32, dims + 1, 2), *w[2], *h, *slice[2], *y, *grads[3];
    for (int i = 0; i < 2; i++) w[i] = ts_input(b, i ? "b" : "a", TS_F32, dims, 3);
    ts_set_remat(b, remat);
    ts_repeat *r = ts_repeat_begin(b, n, false, &x, 1, w, 2, &h, slice);
    h = ts_dot(b, ts_tanh(b, ts_dot(b, h, slice[0], &d, TS_F32)), slice[1], &d, TS_F32);
    ts_repeat_end(b, r, &h, NULL, NULL, 0, &y);
    ts_value *loss = ts_reduce_sum(b, ts_mul(b, y, y), TS_INTS(0, 1));
    ts_value *wrt[3] = {x, w[0], w[1]};
    OK(ts_grad(b, loss, wrt, 3, grads, &err));
    ts_output(b, "loss", loss, NULL);
    for (int i = 0; i < 3; i++) ts_output(b, (const char *[]){"dx", "da", "db"}[i], grads[i], NULL);
    return finish(b);
}

static int count_lines(const char *path, const char *word)
{
    char line[65536];
    FILE *f = fopen(path, "r");
    int n = 0;
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) n += strstr(line, word) != NULL;
    fclose(f);
    return n;
}

typedef struct counts {
    int dots, tanhs;
} counts;

/* Of the optimized program of the folder, which is emptied and removed. */
static counts count(const char *folder)
{
    static const char end[] = "after_optimizations.txt";
    struct dirent *entry;
    DIR *d = opendir(folder);
    counts n = {-1, -1};
    assert_non_null(d);
    while ((entry = readdir(d))) {
        char path[1024];
        size_t length = strlen(entry->d_name);
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (length >= sizeof end - 1 && strcmp(entry->d_name + length - sizeof end + 1, end) == 0)
            n = (counts){count_lines(path, " dot("), count_lines(path, " tanh(")};
        unlink(path);
    }
    closedir(d);
    rmdir(folder);
    return n;
}

static counts compiled(int64_t n, ts_remat remat)
{
    char folder[] = "/tmp/tessera-remat-XXXXXX";
    ts_engine *e = NULL;
    ts_executable *x = NULL;
    assert_non_null(mkdtemp(folder));
    const ts_engine_options o = {
        sizeof o, .name = "xla", .devices = 1, .plugin = "cpu", .dump_to = folder};
    ts_graph *g = program(n, remat);
    OK(ts_engine_open(&o, &e, &err));
    OK(ts_compile(e, g, &x, &err));
    ts_executable_free(x);
    ts_engine_close(e);
    ts_graph_free(g);
    return count(folder);
}

static void test_remat(void **state)
{
    ts_error why = {0};
    char path[4096];
    (void)state;
    if (getenv("VALGRIND")) {
        puts("SKIP: the plugins' own code does not pass valgrind");
        skip();
    }
    if (ts__plugin_find("cpu", path, sizeof path, &why) != TS_OK) {
        printf("SKIP: %s\n", why.msg);
        skip();
    }
    for (int64_t n = 1; n <= 3; n += 2) {
        counts none = compiled(n, TS_REMAT_NONE), full = compiled(n, TS_REMAT_FULL),
               minimal = compiled(n, TS_REMAT_MINIMAL);
        assert_true(none.dots == 6 && none.tanhs == 1);
        assert_true(full.dots == 7 && full.tanhs == 2);
        assert_true(minimal.dots == 6 && minimal.tanhs == 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_remat)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
