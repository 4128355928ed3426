/* test_xla_places.c – a TPU slice's device ids are row-major over the torus that topology.h names:
 * what lets device d of a mesh be the device with the d-th smallest id.
 *
 * The first dimension of a name, x, varies fastest; a chip's devices faster still. Asked of libtpu,
 * slice by slice, also such that no two sides are equal; one process each, because libtpu reads its
 * environment once. Skipped without libtpu (TESSERA_PLUGIN_PATH).
 */
#include <sys/wait.h>
#include <unistd.h>

#include "unit/ir_help.h"

#include "base/file.h"
#include "xla/devices.h"
#include "xla/pjrt.h"
#include "xla/plugin.h"
#include "xla/topology.h"

static int64_t number(const PJRT_DeviceDescription_Attributes_Args *a, const char *name, size_t i)
{
    const PJRT_NamedValue *v = ts__pjrt_value(a->attributes, a->num_attributes, name);
    if (!v) return 0;
    return v->type == PJRT_NamedValue_kInt64 ? v->int64_value
           : i < v->value_size               ? v->int64_array_value[i]
                                             : 0;
}

/* 0: every id is its place's number. */
static int check(const char *path, const ts_topology *t)
{
    static char accelerator[64];
    ts_error err = {0};
    ts_pjrt *p;
    for (int i = 0; i < TS_LIBTPU_ALONE; i++) putenv((char *)ts_libtpu_alone[i]);
    snprintf(accelerator, sizeof accelerator, "TPU_ACCELERATOR_TYPE=%s", t->accelerator);
    putenv(accelerator);
    if (ts__pjrt_load(path, &p, &err) != TS_OK) return 2;
    PJRT_ARGS(PJRT_TopologyDescription_Create_Args, c);
    PJRT_ARGS(PJRT_TopologyDescription_GetDeviceDescriptions_Args, d);
    c.topology_name = t->name;
    c.topology_name_size = strlen(t->name);
    if (ts__pjrt_check(p, p->api->PJRT_TopologyDescription_Create(&c), "", &err) != TS_OK) return 3;
    d.topology = c.topology;
    if (ts__pjrt_check(p, p->api->PJRT_TopologyDescription_GetDeviceDescriptions(&d), "", &err) != TS_OK)
        return 4;
    if (d.num_descriptions != (size_t)t->devices) return 5;
    for (size_t i = 0; i < d.num_descriptions; i++) {
        PJRT_ARGS(PJRT_DeviceDescription_Attributes_Args, a);
        int id;
        a.device_description = d.descriptions[i];
        if (ts__pjrt_check(p, p->api->PJRT_DeviceDescription_Attributes(&a), "", &err) != TS_OK ||
            ts__pjrt_describe(p, d.descriptions[i], &id, NULL, 0, &err) != TS_OK)
            return 6;
        bool cores = t->devices > t->chips;
        int64_t place = 0;
        for (int k = 0; k < t->n_torus; k++) {
            int from_minor = t->n_torus - 1 - k - cores;
            int64_t at = from_minor < 0 ? number(&a, "core_on_chip", 0) : number(&a, "coords", (size_t)from_minor);
            if (at >= t->torus[k]) return 7;
            place = place * t->torus[k] + at;
        }
        if (place != id) return 8;
    }
    return 0;
}

static void ids_are_row_major(void **state)
{
    static const char *const names[] = {"v6e:4x4", "v6e:2x4", "v5e:4x8", "v5p:2x2x4", "tpu7x:2x2x4"};
    char path[4096], folder[] = "/tmp/tessera-places-XXXXXX";
    ts_error err = {0};
    (void)state;
    if (getenv("VALGRIND") || ts__plugin_find("tpu", path, sizeof path, &err) != TS_OK) {
        printf("SKIP: %s\n", *err.msg ? err.msg : "the plugins' own code does not pass valgrind");
        skip();
    }
    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        ts_topology t;
        int status = -1;
        assert_int_equal(ts__topology_parse(names[i], 1, &t, &err), TS_OK);
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            setenv("TMPDIR", folder, 1); /* libtpu's log */
            _exit(check(path, &t));
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (status != 0) fail_msg("%s: %d", names[i], WEXITSTATUS(status));
        printf("%s: %d devices\n", names[i], t.devices);
    }
    assert_int_equal(ts_remove_tree(folder, &err), TS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ids_are_row_major)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
