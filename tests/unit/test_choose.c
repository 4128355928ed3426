/* test_choose.c – which engine is chosen: by the keys, and by device files planted below a folder.
 *
 * One row a machine. Then what training refuses and notes once the engine is known, and that an accelerator without
 * its plugin is an error with both ways on, never a run on the CPU.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "train/choose.h"

static char root[64];

static int set_up(void **state)
{
    (void)state;
    strcpy(root, "/tmp/tessera-choose-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return ts_remove_tree(root, NULL) == TS_OK ? 0 : -1;
}

/* "path" or "path=text" below the machine's folder. */
static void plant(const char *machine, const char *what)
{
    char path[400], folder[400];
    ts_error err = {0};
    ts_writer *w = NULL;
    const char *text = strchr(what, '=');
    int length = text ? (int)(text - what) : (int)strlen(what);
    snprintf(path, sizeof path, "%s%.*s", machine, length, what);
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    if (ts_make_folders(folder, &err) != TS_OK || ts_writer_open(path, false, &w, &err) != TS_OK ||
        ts_writer_write(w, text ? text + 1 : "", text ? strlen(text + 1) : 0, &err) != TS_OK ||
        ts_writer_close(w, false, &err) != TS_OK)
        fail_msg("%s", err.msg);
}

static ts_config *load(const char *const *words)
{
    ts_config *c = NULL;
    ts_error err = {0};
    const char *list[8] = {"base.yml", "run_name=r"};
    int n = 2;
    for (; words && *words; words++) list[n++] = *words;
    if (ts_config_load_words(list, n, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    return c;
}
#define LOAD(...) load((const char *const[]){__VA_ARGS__, NULL})

#define CARD(n, vendor, class)                                                                     \
    "/sys/bus/pci/devices/0000:00:0" #n ".0/vendor=" vendor "\n",                                  \
        "/sys/bus/pci/devices/0000:00:0" #n ".0/class=" class "\n"

typedef struct machine {
    const char *file[6], *word[2];     /* what is there; keys */
    const char *engine, *plugin, *why; /* plugin NULL: none */
} machine;

static const machine machines[] = {
    {{NULL}, {NULL}, "cpu", NULL, "engine=auto: no TPU and no NVIDIA GPU found"},
    {{"/dev/null"}, {"engine=cpu"}, "cpu", NULL, ""},
    {{"/dev/nvidia0"}, {"engine=cpu"}, "cpu", NULL, ""},
    {{"/dev/nvidia0", "/dev/nvidiactl"}, {NULL}, "xla", "cuda", "engine=auto: found /dev/nvidia0"},
    {{"/dev/nvidia3"}, {"engine=xla"}, "xla", "cuda", "plugin: found /dev/nvidia3"},
    {{"/dev/nvidiactl", "/dev/nvidia-uvm"}, {NULL}, "cpu", NULL, "engine=auto: no TPU"},
    {{"/dev/accel0", "/dev/nvidia0"}, {NULL}, "xla", "tpu", "engine=auto: found /dev/accel0"},
    {{"/dev/accel/accel0"}, {NULL}, "cpu", NULL, "engine=auto: no TPU"}, /* another kind of card */
    {{"/dev/vfio/vfio", "/dev/vfio/0", CARD(5, "0x1ae0", "0x120000")},
     {NULL},
     "xla",
     "tpu",
     "engine=auto: found /dev/vfio/0"},
    {{"/dev/vfio/0"}, {NULL}, "cpu", NULL, "engine=auto: no TPU"},
    {{"/dev/vfio/vfio", CARD(5, "0x1ae0", "0x120000")}, {NULL}, "cpu", NULL, "engine=auto: no"},
    {{"/dev/vfio/0", CARD(3, "0x1ae0", "0x020000"), CARD(4, "0x1ae0", "0x010802")},
     {NULL},
     "cpu",
     NULL,
     "engine=auto: no TPU"},
    {{"/dev/vfio/0", CARD(3, "0x10de", "0x030200")}, {NULL}, "cpu", NULL, "engine=auto: no TPU"},
    {{NULL}, {"engine=xla"}, "xla", "cpu", "plugin: no TPU and no NVIDIA GPU found"},
    {{"/dev/accel0"}, {"engine=xla", "plugin=cpu"}, "xla", "cpu", ""},
    {{NULL}, {"plugin=cuda"}, "xla", "cuda", "engine=auto: plugin=cuda"},
};

static void machines_and_keys(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        const machine *m = &machines[i];
        char folder[100];
        ts_engine_choice choice;
        snprintf(folder, sizeof folder, "%s/%zu", root, i);
        for (int k = 0; k < 6 && m->file[k]; k++) plant(folder, m->file[k]);
        ts_config *c = LOAD(m->word[0] ? m->word[0] : "engine=auto",
                            m->word[1] ? m->word[1] : "log_config=false");
        ts__choose_engine(c, folder, &choice);
        bool same = strcmp(choice.engine, m->engine) == 0 && !choice.plugin == !m->plugin &&
                    (!m->plugin || strcmp(choice.plugin, m->plugin) == 0) &&
                    strncmp(choice.why, m->why, strlen(m->why)) == 0 && !*m->why == !*choice.why;
        if (!same)
            fail_msg("machine %zu: %s, plugin %s (%s)", i, choice.engine,
                     choice.plugin ? choice.plugin : "none", choice.why);
        ts_config_free(c);
    }
}

static const ts_engine_choice cpu = {.engine = "cpu"}, xla = {.engine = "xla", .plugin = "cpu"};

static void refused(const ts_engine_choice *choice, const char *a, const char *b,
                    const char *message)
{
    ts_error err = {0};
    ts_config *c = LOAD(a, b);
    ts_status status = ts__check_engine_keys(c, choice, &err);
    if (!message && status != TS_OK) fail_msg("%s: %s", a, err.msg);
    if (message && (status != TS_INVALID_ARGUMENT || !strstr(err.msg, message)))
        fail_msg("%s: expected \"%s\", found %s", a, message, err.msg);
    ts_config_free(c);
}

static void keys_of_the_other_engine(void **state)
{
    (void)state;
    char missing[100], there[100], folder[100];
    plant(root, "/step");
    snprintf(missing, sizeof missing, "compiled_trainstep_file=%s/none", root);
    snprintf(there, sizeof there, "compiled_trainstep_file=%s/step", root);
    snprintf(folder, sizeof folder, "compiled_trainstep_file=%s", root);
    refused(&cpu, "profiler=xplane", "steps=9", "trace works");
    refused(&cpu, "profiler=trace", "steps=9", NULL);
    refused(&xla, "profiler=trace", "steps=9", "xplane works");
    refused(&xla, "profiler=xplane", "steps=9", NULL);
    refused(&cpu, there, "steps=9", "set engine=xla");
    refused(&xla, there, "steps=9", NULL);
    refused(&xla, missing, "steps=9", "`tessera compile` writes such a file");
    refused(&xla, folder, "steps=9", "is not a file");
    refused(&cpu, there, "profiler=xplane", "2 errors in the configuration"); /* both at once */
}

static int notes(const ts_engine_choice *choice, const char *a, const char *b)
{
    int n = 0;
    ts_config *c = LOAD(a, b);
    while (ts__engine_note(c, choice, n)) n++;
    ts_config_free(c);
    return n;
}

static void keys_without_effect(void **state)
{
    (void)state;
    assert_int_equal(notes(&cpu, "steps=9", "matmul_precision=highest"), 0);
    assert_int_equal(notes(&cpu, "xla_dump_to=x", "matmul_precision=bfloat16"), 2);
    assert_int_equal(notes(&cpu, "compile_topology=v6e:1x1", "compile_xla_flags=xla_a=1"), 2);
    assert_int_equal(notes(&xla, "compile_topology=v6e:1x1", "compile_xla_flags=xla_a=1"), 1);
    assert_int_equal(notes(&xla, "xla_dump_to=x", "matmul_precision=bfloat16"), 0);
    assert_int_equal(notes(&xla, "threads=2", "steps=9"), 1);
    assert_int_equal(notes(&cpu, "threads=2", "steps=9"), 0);
}

/* Exit code 4 and a way on, whatever is missing. */
static void no_plugin(void **state)
{
    (void)state;
    static const ts_engine_choice choices[] = {{.engine = "xla",
                                                .plugin = "cuda",
                                                .found = true,
                                                .why = "engine=auto: found /dev/nvidia0"},
                                               {.engine = "xla", .plugin = "tpu"},
                                               {.engine = "xla", .plugin = "/nowhere/plugin.so"}};
    static const char *const says[] = {"`tessera plugins install cuda`",
                                       "`tessera plugins install tpu`", "/nowhere/plugin.so"};
    assert_int_equal(setenv("TESSERA_PLUGIN_PATH", root, 1), 0);
    assert_int_equal(setenv("XDG_DATA_HOME", root, 1), 0);
    unsetenv("VIRTUAL_ENV");
    ts_config *c = LOAD("steps=9");
    for (int i = 0; i < 3; i++) {
        ts_engine *e;
        ts_error err = {0};
        assert_int_equal(ts__open_chosen(c, &choices[i], &e, &err), TS_UNAVAILABLE);
        assert_int_equal(ts_status_exit_code(err.code), 4);
        if (!strstr(err.msg, says[i]) || !strstr(err.msg, "engine=cpu")) fail_msg("%s", err.msg);
    }
    ts_config_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(machines_and_keys),
        cmocka_unit_test(keys_of_the_other_engine),
        cmocka_unit_test(keys_without_effect),
        cmocka_unit_test(no_plugin),
    };
    return cmocka_run_group_tests_name("choose", tests, set_up, tear_down);
}
