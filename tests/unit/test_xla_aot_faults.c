/* test_xla_aot_faults.c – compiling for a topology that is not there, when the plugin does not want to.
 *
 * The plugin is the fake one, in the child that ts__aot_compile makes; this program never loads it. A row makes one
 * call fail, or end the process, and has the whole sentence that must come of it. After each nothing may be left in
 * the folder for temporary files, and no file of a compiled program may have come to be.
 */
#include "fake_help.h"

#include <dirent.h>

#include "xla/aot.h"
#include "xla/saved.h"

static char folder[2000], saved[2100];

static ts_graph *small_graph(void)
{
    ts_graph *g = NULL;
    ts_error err = {0};
    ts_builder *b = ts_builder_new("small");
    ts_dim dims[2] = {{"embed", 256}, {"mlp", 512}};
    ts_value *w = ts_input(b, "w", TS_F32, dims, 2), *x = ts_input(b, "x", TS_F32, dims, 2);
    ts_output(b, "w", ts_add(b, w, x), w);
    ts_output(b, "y", ts_mul(b, x, w), NULL);
    if (ts_builder_finish(b, &g, &err) != TS_OK) fail_msg("%s", err.msg);
    return g;
}

static ts_status compile(const char *name, int replicas, double timeout, ts_aot_report *out,
                         ts_error *err)
{
    ts_topology t;
    ts_graph *g = small_graph();
    *err = (ts_error){0};
    assert_int_equal(ts__topology_parse(name, 1, &t, err), TS_OK);
    ts_aot_job job = {.struct_size = sizeof job,
                      .plugin = fake_library("fake_pjrt"),
                      .topology = &t,
                      .replicas = replicas,
                      .graph = g,
                      .precision = TS_PRECISION_HIGHEST,
                      .save_to = saved,
                      .timeout = timeout};
    ts_status status = ts__aot_compile(&job, out, err);
    ts_graph_free(g);
    return status;
}

static void check_folder_empty(const char *after)
{
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.') fail_msg("%s: %s is left in the folder", after, e->d_name);
    closedir(d);
}

typedef struct row {
    const char *topology, *variable, *value;
    ts_status status; /* OK: it compiles all the same */
    const char *sentence;
} row;

#define V6E "compiling for v6e:4x4 with $"
#define CPU "compiling for cpu:2 with $"
static const row rows[] = {
    {"v6e-16", "FAIL", "PJRT_TopologyDescription_Create=3:no such luck", TS_INVALID_ARGUMENT,
     V6E ": the plugin refuses the topology v6e:4x4: no such luck"},
    {"v6e-16", "FAIL", "PJRT_TopologyDescription_GetDeviceDescriptions=13:no such luck",
     TS_INTERNAL, V6E ": listing the topology's devices: no such luck"},
    {"v6e-16", "FAIL", "PJRT_DeviceDescription_Id@7=13:no such luck", TS_INTERNAL,
     V6E ": asking for a device's number: no such luck"},
    {"v6e-16", "FAIL", "PJRT_DeviceDescription_Kind=13:no such luck", TS_INTERNAL,
     V6E ": asking for a device's kind: no such luck"},
    {"v6e-16", "FAIL", "PJRT_TopologyDescription_PlatformName=13:no such luck", TS_INTERNAL,
     V6E ": asking for the platform: no such luck"},
    {"v6e-16", "FAIL", "PJRT_TopologyDescription_PlatformVersion=13:no such luck", TS_INTERNAL,
     V6E ": asking for its version: no such luck"},
    {"v6e-16", "FAIL", "PJRT_TopologyDescription_Attributes=13:no such luck", TS_OK, ""},
    {"v6e-16", "FAIL", "PJRT_Compile=2:3:14: error: no such luck", TS_UNKNOWN,
     V6E ": compiling: 3:14: error: no such luck"},
    {"v6e-16", "FAIL", "PJRT_Compile=5:no such luck", TS_UNAVAILABLE,
     V6E ": compiling: no such luck"},
    {"v6e-16", "FAIL", "PJRT_Executable_Serialize=13:no such luck", TS_INTERNAL,
     V6E ": serializing the program: no such luck"},
    {"v6e-16", "FAIL", "PJRT_Executable_GetCompiledMemoryStats=13:no such luck", TS_OK, ""},
    {"v6e-16", "FAIL", "PJRT_Executable_GetCostAnalysis=13:no such luck", TS_OK, ""},
    {"v6e-16", "FAIL", "PJRT_Plugin_Initialize=13:no such luck", TS_UNAVAILABLE,
     V6E ": initialising the plugin: no such luck"},
    {"v6e-16", "TOPOLOGY", "3", TS_INVALID_ARGUMENT,
     V6E ": the plugin's v6e:4x4 has 3 devices; 16 are needed"},
    {"v6e-16", "MISSING", "PJRT_Compile", TS_UNAVAILABLE,
     V6E
     ": the plugin $ (PJRT 0.90) cannot compile for devices that are not there; take a newer version of it"},
    {"v6e-16", "MISSING", "PJRT_TopologyDescription_Create", TS_UNAVAILABLE,
     V6E
     ": the plugin $ (PJRT 0.90) cannot compile for devices that are not there; take a newer version of it"},
    {"v6e-16", "MISSING", "PJRT_TopologyDescription_GetDeviceDescriptions", TS_UNAVAILABLE,
     V6E
     ": the plugin $ (PJRT 0.90) cannot compile for devices that are not there; take a newer version of it"},
    {"v6e-16", "MISSING", "PJRT_TopologyDescription_Attributes", TS_OK, ""},
    {"v6e-16", "API", "2.0", TS_UNAVAILABLE,
     V6E
     ": the plugin $ speaks version 2.0 of the PJRT C API and Tessera speaks version 0; take another version of "
     "the plugin"},
    {"v6e-16", "ABORT", "PJRT_Compile", TS_UNAVAILABLE,
     V6E " was ended by SIGABRT: F0000 fake plugin: check failed in PJRT_Compile"},
    {"v6e-16", "EXIT", "PJRT_Compile", TS_UNAVAILABLE,
     V6E " exited with code 3: E0000 fake plugin: unknown flag, leaving from PJRT_Compile"},
    {"v6e-16", "HANG", "PJRT_Compile", TS_DEADLINE_EXCEEDED,
     V6E
     " did not end within # s and was stopped; it last said: I0000 fake plugin: waiting for a metadata server in "
     "PJRT_Compile"},
    /* a cpu has no topologies: a client compiles */
    {"cpu:2", "FAIL", "PJRT_Client_Create=13:no such luck", TS_INTERNAL,
     CPU ": the plugin cannot open its devices: no such luck"},
    {"cpu:2", "FAIL", "PJRT_Client_AddressableDevices=13:no such luck", TS_INTERNAL,
     CPU ": listing the devices: no such luck"},
    {"cpu:2", "FAIL", "PJRT_Client_PlatformName=13:no such luck", TS_INTERNAL,
     CPU ": asking for the platform: no such luck"},
    {"cpu:2", "FAIL", "PJRT_Client_Compile=13:no such luck", TS_INTERNAL,
     CPU ": compiling: no such luck"},
    {"cpu:2", "FAIL", "PJRT_LoadedExecutable_GetExecutable=13:no such luck", TS_INTERNAL,
     CPU ": looking at the compiled program: no such luck"},
    {"cpu:2", "DEVICES", "1", TS_INVALID_ARGUMENT,
     CPU ": the plugin's cpu:2 has 1 devices; 2 are needed"},
};

static void every_fault(void **unused)
{
    (void)unused;
    int wrong = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const row *r = &rows[i];
        ts_aot_report out;
        ts_error err;
        fault_none();
        fault(r->variable, r->value);
        double timeout = strcmp(r->variable, "HANG") == 0 ? strtod(fake_limit(), NULL) : 0;
        int replicas = strcmp(r->topology, "cpu:2") == 0 ? 2 : 16;
        ts_status status = compile(r->topology, replicas, timeout, &out, &err);
        fault_none();
        if (status != r->status || strcmp(err.msg, fake_words(r->sentence, fake_limit())) != 0) {
            print_error("%s=%s\n  %s: %s\n  expected %s: %s\n", r->variable, r->value,
                        ts_status_name(status), err.msg, ts_status_name(r->status),
                        fake_words(r->sentence, fake_limit()));
            wrong++;
        }
        assert_int_equal(access(saved, F_OK) == 0, status == TS_OK);
        if (status == TS_OK) {
            ts_aot_report_free(&out);
            unlink(saved);
        }
        check_folder_empty(r->value);
    }
    if (wrong) fail_msg("%d rows", wrong);
}

static void without_faults(void **unused)
{
    (void)unused;
    static const struct {
        const char *name;
        int devices;
    } topology[] = {{"v6e:4x4", 16}, {"tpu7x:2x2x2", 16}, {"v5p:2x2x1", 4}, {"cpu:2", 2}};
    for (size_t k = 0; k < 2 * sizeof topology / sizeof *topology; k++) {
        size_t i = k / 2;
        ts_aot_report out;
        ts_error err;
        fault_none();
        fault("ORDER", k % 2 ? "reversed" : ""); /* other ids */
        if (compile(topology[i].name, topology[i].devices, 0, &out, &err) != TS_OK)
            fail_msg("%s: %s", topology[i].name, err.msg);
        assert_true(out.fits);
        assert_int_equal(out.devices, topology[i].devices);
        assert_int_equal(out.argument_bytes, 2 * 256 * 512 * 4);
        assert_int_equal(out.output_bytes, 2 * 256 * 512 * 4);
        assert_int_equal(out.alias_bytes, 256 * 512 * 4);
        assert_string_equal(out.device_kind, "Fake device");
        assert_string_equal(out.plugin_version, "fake plugin 1.0");
        assert_string_equal(out.file, saved);
        ts_aot_report_free(&out);
        unlink(saved);
        check_folder_empty(topology[i].name);
    }
}

/* Too big is an answer: how much is needed, how much there is, and what takes it. */
static void too_big(void **unused)
{
    (void)unused;
    ts_aot_report out;
    ts_error err;
    fault_none();
    fault("FAIL", "PJRT_Compile=8:CompileTimeHbmOom: Ran out of memory in memory space hbm: "
                  "total memory required (66.50G) exceeds "
                  "available HBM (31.24G)");
    if (compile("v6e:4x4", 16, 0, &out, &err) != TS_OK) fail_msg("%s", err.msg);
    fault_none();
    assert_false(out.fits);
    assert_true(out.needed_bytes == (int64_t)(66.5 * (1 << 30)));
    assert_true(out.capacity_bytes > (int64_t)31 << 30 && out.capacity_bytes < (int64_t)32 << 30);
    assert_true(out.n_buffer >= 2);
    assert_int_equal(out.buffer[0].bytes, 256 * 512 * 4);
    assert_string_equal(out.buffer[0].name, "w");
    assert_string_equal(out.buffer[0].shape, "f32[embed:256,mlp:512]");
    assert_string_equal(out.file, "");
    assert_int_not_equal(access(saved, F_OK), 0);
    ts_aot_report_free(&out);
    check_folder_empty("too big");
    /* Of other memory, or without figures, there is nothing to say but the compiler's own words. */
    static const char *const other[] = {
        "no room", "Ran out of memory in memory space vmem: required (17.20M) exceeds available (16.00M)"};
    for (int i = 0; i < 2; i++) {
        char text[200];
        snprintf(text, sizeof text, "PJRT_Compile=8:%s", other[i]);
        fault("FAIL", text);
        assert_int_equal(compile("v6e:4x4", 16, 0, &out, &err), TS_RESOURCE_EXHAUSTED);
        if (!strstr(err.msg, other[i])) fail_msg("%s", err.msg);
    }
    fault_none();
    check_folder_empty("too big");
}

/* A dump that is no HLO costs figures, not the compilation; one that is HLO is read. */
static void what_is_dumped(void **unused)
{
    (void)unused;
    static const char *const text[] = {
        "this is no program\n",
        "HloModule small, is_scheduled=true\n\nENTRY %main (w: f32[8,4], x: f32[4,2]) -> f32[8,2] {\n"
        "  %w = f32[8,4]{1,0} parameter(0)\n  %x = f32[4,2]{1,0} parameter(1)\n"
        "  ROOT %dot = f32[8,2]{1,0} dot(%w, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n"};
    char path[2100];
    snprintf(path, sizeof path, "%s.hlo", folder);
    for (int i = 0; i < 2; i++) {
        ts_aot_report out;
        ts_error err;
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(text[i], f);
        fclose(f);
        fault_none();
        fault("DUMP", path);
        if (compile("v6e:4x4", 16, 0, &out, &err) != TS_OK) fail_msg("%s", err.msg);
        fault_none();
        if (i) assert_true(out.flops == 2 * 8 * 4 * 2);
        ts_aot_report_free(&out);
        unlink(saved);
        check_folder_empty("a dump");
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_faults),
        cmocka_unit_test(every_fault),
        cmocka_unit_test(too_big),
        cmocka_unit_test(what_is_dumped),
    };
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/test_xla_aot_faults.XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(folder)) return 1;
    snprintf(saved, sizeof saved, "%s/step.bin", folder);
    setenv("TMPDIR", folder, 1);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (!failed) rmdir(folder);
    return failed;
}
