/* test_xla_probe.c – trying a plugin in a child process: every way to be no good plugin, and the sentence it gets.
 *
 * The plugin under test is the fake one, or a file that is none. This program must live through all of them, and is
 * never to load the fake itself: a child of a process that has could not try it afresh.
 */
#include "fake_help.h"

#include <time.h>

#include "xla/plugin.h"

typedef struct row {
    const char *variable, *value; /* the fault */
    ts_status status;
    const char *sentence; /* whole; '$' is the plugin's path, '#' the limit in seconds */
} row;

static const row rows[] = {
    /* ---- the library and its table ---- */
    {"API", "1.90", TS_UNIMPLEMENTED,
     "the plugin $ speaks version 1.90 of the PJRT C API and Tessera speaks version 0; take another version of the "
     "plugin"},
    {"SIZE", "200", TS_UNIMPLEMENTED,
     "the plugin $ (PJRT 0.90) has no PJRT_Client_Compile, which Tessera needs; take a newer version of the plugin"},
    {"API", "none", TS_UNAVAILABLE, "the plugin $ gives no table of functions"},
    {"FAIL", "PJRT_Plugin_Initialize=13:no such luck", TS_INTERNAL,
     "the plugin $: initialising the plugin: no such luck"},
    {"FAIL", "PJRT_Plugin_Attributes=12:not today", TS_UNIMPLEMENTED,
     "the plugin $: reading the plugin's attributes: not today"},
    /* ---- its devices ---- */
    {"FAIL", "PJRT_Client_Create=5:no accelerator found", TS_UNAVAILABLE,
     "the plugin $: no device: the plugin cannot open its devices: no accelerator found"},
    {"FAIL", "PJRT_Client_Create=9:no CUDA-capable device is detected", TS_UNAVAILABLE,
     "the plugin $: no device: the plugin cannot open its devices: no CUDA-capable device is detected"},
    {"FAIL", "PJRT_Client_Create=13:driver and library differ", TS_INTERNAL,
     "the plugin $: the plugin cannot open its devices: driver and library differ"},
    {"FAIL", "PJRT_Client_Create=16:who are you", TS_PERMISSION_DENIED,
     "the plugin $: the plugin cannot open its devices: who are you"},
    {"FAIL", "PJRT_Client_Create=99:a code of tomorrow", TS_UNKNOWN,
     "the plugin $: the plugin cannot open its devices: a code of tomorrow"},
    {"FAIL", "PJRT_Client_Create=13:", TS_INTERNAL,
     "the plugin $: the plugin cannot open its devices: the plugin does not say why"},
    {"FAIL", "PJRT_Client_Create=13:bad driver\n*** Begin stack trace ***\nmain\n", TS_INTERNAL,
     "the plugin $: the plugin cannot open its devices: bad driver"},
    {"DEVICES", "0", TS_UNAVAILABLE,
     "the plugin $: no device: the plugin opened, and has none to offer"},
    {"FAIL", "PJRT_Client_PlatformName=13:nameless", TS_INTERNAL,
     "the plugin $: asking for the platform: nameless"},
    {"FAIL", "PJRT_Client_PlatformVersion=13:ageless", TS_INTERNAL,
     "the plugin $: asking for its version: ageless"},
    {"FAIL", "PJRT_Client_AddressableDevices=13:which ones", TS_INTERNAL,
     "the plugin $: listing the devices: which ones"},
    {"FAIL", "PJRT_Device_GetDescription=13:indescribable", TS_INTERNAL,
     "the plugin $: describing a device: indescribable"},
    {"FAIL", "PJRT_DeviceDescription_Id=13:no number", TS_INTERNAL,
     "the plugin $: asking for a device's number: no number"},
    {"FAIL", "PJRT_DeviceDescription_Kind=13:unkind", TS_INTERNAL,
     "the plugin $: asking for a device's kind: unkind"},
    {"FAIL", "PJRT_Client_Create=13:one;PJRT_Error_GetCode=13:two", TS_UNKNOWN,
     "the plugin $: the plugin cannot open its devices: one"},
    /* ---- it ends the process, or does not end ---- */
    {"ABORT", "GetPjrtApi", TS_UNAVAILABLE,
     "the plugin $, tried in a process of its own, was ended by SIGABRT: F0000 fake plugin: check failed in "
     "GetPjrtApi"},
    {"ABORT", "PJRT_Plugin_Initialize", TS_UNAVAILABLE,
     "the plugin $, tried in a process of its own, was ended by SIGABRT: F0000 fake plugin: check failed in "
     "PJRT_Plugin_Initialize"},
    {"ABORT", "PJRT_Client_Create", TS_UNAVAILABLE,
     "the plugin $, tried in a process of its own, was ended by SIGABRT: F0000 fake plugin: check failed in "
     "PJRT_Client_Create"},
    {"EXIT", "GetPjrtApi", TS_UNAVAILABLE,
     "the plugin $, tried in a process of its own, exited with code 3: E0000 fake plugin: unknown flag, leaving from "
     "GetPjrtApi"},
    {"EXIT", "PJRT_Client_Create", TS_UNAVAILABLE,
     "the plugin $, tried in a process of its own, exited with code 3: E0000 fake plugin: unknown flag, leaving from "
     "PJRT_Client_Create"},
    {"HANG", "PJRT_Client_Create", TS_DEADLINE_EXCEEDED,
     "the plugin $, tried in a process of its own, did not end within # s and was stopped; it last said: I0000 fake "
     "plugin: waiting for a metadata server in PJRT_Client_Create"},
    {"HANG", "GetPjrtApi", TS_DEADLINE_EXCEEDED,
     "the plugin $, tried in a process of its own, did not end within # s and was stopped; it last said: I0000 fake "
     "plugin: waiting for a metadata server in GetPjrtApi"},
};

static void probe_fails(const char *path, ts_status status, const char *sentence)
{
    ts_plugin_info info;
    ts_error err = {0};
    ts_status got = ts__plugin_probe("fake", path, true, 0, &info, &err);
    if (got != status || strcmp(err.msg, sentence) != 0)
        fail_msg("%s: %s\n  expected %s: %s", ts_status_name(got), err.msg, ts_status_name(status),
                 sentence);
    assert_int_equal(info.status, status);
    assert_string_equal(info.problem, sentence);
    assert_string_equal(info.name, "fake");
    assert_string_equal(info.path, path);
    assert_null(strchr(sentence, '\n'));
}

static void every_fault(void **unused)
{
    (void)unused;
    const char *limit = fake_limit();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fault_none();
        fault(rows[i].variable, rows[i].value);
        if (strcmp(rows[i].variable, "HANG") == 0) setenv("TESSERA_PLUGIN_TIMEOUT", limit, 1);
        probe_fails(fake_library("fake_pjrt"), rows[i].status, fake_words(rows[i].sentence, limit));
        unsetenv("TESSERA_PLUGIN_TIMEOUT");
    }
    fault_none();
}

/* What was known before it died is still told. */
static void versions_survive(void **unused)
{
    (void)unused;
    ts_plugin_info info;
    ts_error err = {0};
    fault_none();
    fault("ABORT", "PJRT_Client_Create");
    fault("STABLEHLO", "1.16.1");
    assert_int_equal(ts__plugin_probe(NULL, fake_library("fake_pjrt"), true, 0, &info, &err),
                     TS_UNAVAILABLE);
    assert_int_equal(info.api_major, 0);
    assert_int_equal(info.api_minor, 90);
    assert_string_equal(info.stablehlo, "1.16.1");
    assert_string_equal(info.name, "");
    fault_none();
}

static void a_good_one(void **unused)
{
    (void)unused;
    ts_plugin_info info;
    ts_error err = {0};
    fault_none();
    fault("DEVICES", "8");
    fault("ORDER", "reversed");
    fault("API", "0.117");
    fault("STABLEHLO", "none");
    if (ts__plugin_probe("fake", fake_library("fake_pjrt"), true, 0, &info, &err) != TS_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(info.status, TS_OK);
    assert_int_equal(info.devices, 8);
    assert_int_equal(info.api_minor, 117);
    assert_string_equal(info.stablehlo, "");
    assert_string_equal(info.platform, "fake");
    assert_string_equal(info.platform_version, "fake plugin 1.0");
    assert_string_equal(info.device_kind, "Fake device");
    assert_string_equal(info.problem, "");
    fault_none();
    assert_int_equal(ts__plugin_probe("fake", fake_library("fake_pjrt"), true, 3, &info, &err),
                     TS_OK);
    assert_int_equal(info.devices, 3);
    /* Without a client its devices are nobody's business. */
    fault("ABORT", "PJRT_Client_Create");
    assert_int_equal(ts__plugin_probe("fake", fake_library("fake_pjrt"), false, 0, &info, &err),
                     TS_OK);
    assert_int_equal(info.devices, 0);
    fault_none();
}

/* Versions and names longer than their room are cut, not copied past it. */
static void long_words(void **unused)
{
    (void)unused;
    ts_plugin_info info;
    ts_error err = {0};
    static char text[3000], message[3100];
    fault_none();
    memset(text, 'v', sizeof text - 1);
    fault("PLATFORM", text);
    fault("VERSION", text);
    assert_int_equal(ts__plugin_probe("fake", fake_library("fake_pjrt"), true, 0, &info, &err),
                     TS_OK);
    assert_int_equal(strlen(info.platform), sizeof info.platform - 1);
    assert_int_equal(strlen(info.platform_version), sizeof info.platform_version - 1);
    fault_none();
    snprintf(message, sizeof message, "PJRT_Client_Create=13:%s", text);
    fault("FAIL", message);
    assert_int_equal(ts__plugin_probe("fake", fake_library("fake_pjrt"), true, 0, &info, &err),
                     TS_INTERNAL);
    assert_int_equal(strlen(info.problem), sizeof info.problem - 1);
    fault_none();
}

/* ---- files that are no plugin -------------------------------------------------------------------- */

static void no_plugins(void **unused)
{
    (void)unused;
    char sentence[9000], path[4096], begin[9000];
    ts_plugin_info info;
    ts_error err = {0};
    const char *folder = getenv("TMPDIR");
    fault_none();
    snprintf(path, sizeof path, "%s/test_xla_probe.%d.so", folder ? folder : "/tmp", (int)getpid());
    snprintf(sentence, sizeof sentence, "the plugin %s does not exist", path);
    probe_fails(path, TS_NOT_FOUND, sentence);

    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("this is a letter\n", f);
    fclose(f);
    snprintf(begin, sizeof begin, "the plugin %s cannot be loaded: %s: ", path, path);
    assert_int_equal(ts__plugin_probe("fake", path, true, 0, &info, &err), TS_UNAVAILABLE);
    if (strncmp(err.msg, begin, strlen(begin)) != 0) fail_msg("%s", err.msg);
    assert_non_null(strstr(err.msg, "file too short"));
    unlink(path);

    snprintf(path, sizeof path, "%s", fake_library("no_api"));
    snprintf(sentence, sizeof sentence,
             "the library %s has no function GetPjrtApi, so it is not a PJRT plugin", path);
    probe_fails(path, TS_UNAVAILABLE, sentence);

    snprintf(path, sizeof path, "%s", fake_library("needs_gone"));
    snprintf(sentence, sizeof sentence,
             "the plugin %s needs the library libgone.so, which is not on this machine", path);
    probe_fails(path, TS_UNAVAILABLE, sentence);

    snprintf(path, sizeof path, "%s", fake_library("no_api"));
    *strrchr(path, '/') = 0;
    snprintf(sentence, sizeof sentence, "the plugin %s is a folder; expected a library", path);
    probe_fails(path, TS_NOT_FOUND, sentence);
}

/* The limit counts from its start; a child that hangs is gone afterwards. */
static void a_hang_costs_its_limit(void **unused)
{
    (void)unused;
    ts_plugin_info info;
    ts_error err = {0};
    fault_none();
    fault("HANG", "PJRT_Client_Create");
    setenv("TESSERA_PLUGIN_TIMEOUT", "0.3", 1);
    double began = ts_clock_seconds();
    assert_int_equal(ts__plugin_probe("fake", fake_library("fake_pjrt"), true, 0, &info, &err),
                     TS_DEADLINE_EXCEEDED);
    double took = ts_clock_seconds() - began;
    if (took < 0.3 || took > 20) fail_msg("took %g s", took);
    unsetenv("TESSERA_PLUGIN_TIMEOUT");
    fault_none();
}

/* Slots that every plugin has, empty: the child's end, or a sentence; never this program's. */
static void empty_slots(void **unused)
{
    (void)unused;
    static const char *const slot[] = {"PJRT_Error_Message",       "PJRT_Client_Create",
                                       "PJRT_Client_PlatformName", "PJRT_Client_AddressableDevices",
                                       "PJRT_Event_Await",         "PJRT_Buffer_ToHostBuffer"};
    for (size_t i = 0; i < sizeof slot / sizeof *slot; i++) {
        char sentence[9000];
        fault_none();
        fault("MISSING", slot[i]);
        snprintf(
            sentence, sizeof sentence,
            "the plugin %s (PJRT 0.90) has no %s, which Tessera needs; take a newer version of the plugin",
            fake_library("fake_pjrt"), slot[i]);
        probe_fails(fake_library("fake_pjrt"), TS_UNIMPLEMENTED, sentence);
    }
    fault_none();
    ts_plugin_info info;
    ts_error err = {0};
    fault("MISSING", "PJRT_Plugin_Attributes;PJRT_Plugin_Initialize");
    assert_int_equal(ts__plugin_probe("fake", fake_library("fake_pjrt"), true, 0, &info, &err),
                     TS_OK);
    assert_string_equal(info.stablehlo, "");
    fault_none();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fault), cmocka_unit_test(versions_survive),
        cmocka_unit_test(a_good_one),  cmocka_unit_test(long_words),
        cmocka_unit_test(no_plugins),  cmocka_unit_test(a_hang_costs_its_limit),
        cmocka_unit_test(empty_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
