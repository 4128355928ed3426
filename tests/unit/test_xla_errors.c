/* test_xla_errors.c – the xla engine on the fake plugin: what it does when all is well, and when any call fails.
 *
 * One scenario goes through everything an engine does: open, compile, upload, execute, wait, download, profile,
 * serialize, load, close. A row of the table makes one PJRT function fail and says at which stage that must show, with
 * which status and words; after it nothing may be left alive in the plugin, and the scenario must pass again without
 * the fault. The last test reads src/xla and wants a row for every function that is called there.
 */
#include "fake_help.h"

#include <dirent.h>

#include "exec/engine.h"
#include "xla/run.h"
#include "xla/saved.h"

typedef enum stage {
    OPEN,
    COMPILE,
    UPLOAD,
    EXECUTE,
    WAIT,
    DOWNLOAD,
    TRACE,
    SERIALIZE,
    LOAD,
    CLOSE,
    NOWHERE
} stage;
static const char *const stage_name[] = {"open", "compile",  "upload", "execute",
                                         "wait", "download", "trace",  "serialize",
                                         "load", "close",    "nowhere"};

/* ---- the scenario ------------------------------------------------------------------------------- */

typedef struct world {
    ts_graph *graph;
    ts_engine *engine;
    ts_executable *x, *loaded;
    ts_buffer *w, *in, *y;
    void *bytes;
    size_t n_bytes;
    stage at; /* where it stopped */
} world;

static char file[4096]; /* for what the scenario writes */

static const float w0[4] = {1, 2, 3, 4}, x0[4] = {10, 20, 30, 40};

static ts_status step(world *o, ts_executable *x, ts_error *err)
{
    ts_buffer *in[2] = {o->w, o->in}, *out[2] = {o->w, o->y};
    return ts_execute(x, in, out, err);
}

static ts_status use(world *o, ts_error *err)
{
    float got[4];
    o->at = UPLOAD;
    TS_TRY(ts_buffer_new(o->engine, 0, &o->graph->top->arg[0]->type, &o->w, err));
    TS_TRY(ts_buffer_new(o->engine, 0, &o->graph->top->arg[1]->type, &o->in, err));
    TS_TRY(ts_buffer_new(o->engine, 0, &o->graph->top->result[1]->type, &o->y, err));
    TS_TRY(ts_upload(o->w, w0, 0, sizeof w0, err));
    TS_TRY(ts_upload(o->in, x0, 0, sizeof x0, err));
    for (int i = 0; i < 2; i++) {
        o->at = EXECUTE;
        TS_TRY(step(o, o->x, err));
    }
    for (int i = 0; i < 2; i++) {
        o->at = WAIT;
        TS_TRY(ts_wait(o->x, err));
    }
    o->at = DOWNLOAD;
    TS_TRY(ts_download(o->w, got, 0, sizeof got, err));
    for (int i = 0; i < 4; i++) assert_true(got[i] == w0[i] + 2 * x0[i]);
    TS_TRY(ts_download(o->y, got, 0, sizeof got, err));
    for (int i = 0; i < 4; i++) assert_true(got[i] == x0[i] * (w0[i] + x0[i]));
    return TS_OK;
}

/* The program as bytes, loaded under the plugin's own function: the file around it is test_saved.c's. */
static ts_status again(world *o, ts_error *err)
{
    ts_saved_key key = {.topology = "fake:1", .program = "0", .plugin = "fake"};
    o->at = SERIALIZE;
    TS_TRY(ts__xla_serialize(o->x, &o->bytes, &o->n_bytes, err));
    o->at = LOAD;
    TS_TRY(ts__xla_key((ts_xla *)o->engine, o->graph, NULL, &key, err));
    TS_TRY(ts__saved_write(file, &key, o->bytes, o->n_bytes, err));
    TS_TRY(o->engine->vtable->load(o->engine, o->graph, file, &o->loaded, err));
    TS_TRY(step(o, o->loaded, err));
    return o->engine->vtable->wait_each(o->loaded, &(double){0}, err);
}

static ts_status go_through(world *o, ts_error *err)
{
    o->at = OPEN;
    TS_TRY(fake_open(1, &o->engine, err));
    o->at = COMPILE;
    TS_TRY(ts_compile(o->engine, o->graph, &o->x, err));
    o->at = TRACE;
    TS_TRY(o->engine->vtable->trace_begin(o->engine, err));
    TS_TRY(use(o, err));
    o->at = TRACE;
    TS_TRY(o->engine->vtable->trace_end(o->engine, file, err));
    TS_TRY(again(o, err));
    o->at = CLOSE;
    return TS_OK;
}

static uint64_t failing; /* this allocation of the scenario's fails; 0: none */

/* Runs it whole or to the first error, and takes everything down. */
static stage scenario(ts_status *status, ts_error *err)
{
    world o = {.graph = fake_small_graph()};
    *err = (ts_error){0};
    if (failing) ts_alloc_fail_at(failing);
    *status = go_through(&o, err);
    if (o.w) ts_buffer_free(o.w);
    if (o.loaded) ts_executable_free(o.loaded);
    if (o.x) ts_executable_free(o.x);
    if (o.in) ts_buffer_free(o.in);
    if (o.y) ts_buffer_free(o.y);
    ts_engine_close(o.engine);
    ts_free(o.bytes);
    ts_graph_free(o.graph);
    unlink(file);
    return *status == TS_OK ? NOWHERE : o.at;
}

static void all_is_well(const char *after)
{
    ts_status status;
    ts_error err;
    fault_none();
    fake_counts()->reset();
    stage at = scenario(&status, &err);
    if (at != NOWHERE) fail_msg("%s: without a fault, %s: %s", after, stage_name[at], err.msg);
    assert_int_equal(fake_counts()->executes(), 3);
    assert_int_equal(fake_counts()->donated(), 3);
    assert_int_equal(fake_counts()->calls("PJRT_LoadedExecutable_Execute"), 3);
    fake_nothing_left(after);
}

/* ---- the table ---------------------------------------------------------------------------------- */

typedef struct row {
    const char *variable, *value;
    stage at;
    ts_status status;
    const char *words; /* the whole message */
} row;

static const row rows[] = {
    /* open */
    {"FAIL", "PJRT_Client_Create=9:no such luck", OPEN, TS_FAILED_PRECONDITION,
     "the plugin cannot open its devices: no such luck"},
    {"FAIL", "PJRT_Client_PlatformName=13:no such luck", OPEN, TS_INTERNAL,
     "asking for the platform: no such luck"},
    {"FAIL", "PJRT_Client_PlatformVersion=13:no such luck", OPEN, TS_INTERNAL,
     "asking for its version: no such luck"},
    {"FAIL", "PJRT_Client_AddressableDevices=13:no such luck", OPEN, TS_INTERNAL,
     "listing the devices: no such luck"},
    {"FAIL", "PJRT_Device_GetDescription=13:no such luck", OPEN, TS_INTERNAL,
     "describing a device: no such luck"},
    {"FAIL", "PJRT_DeviceDescription_Id=13:no such luck", OPEN, TS_INTERNAL,
     "asking for a device's number: no such luck"},
    {"FAIL", "PJRT_DeviceDescription_Kind=13:no such luck", OPEN, TS_INTERNAL,
     "asking for a device's kind: no such luck"},
    {"DEVICES", "0", OPEN, TS_FAILED_PRECONDITION,
     "1 device was asked for and the plugin $ has 0 in this process; ask for no more than that"},
    /* compile */
    {"FAIL", "PJRT_Client_Compile=2:7:12: error: no such luck", COMPILE, TS_UNKNOWN,
     "compiling the graph small: 7:12: error: no such luck"},
    {"FAIL", "PJRT_Client_Compile=8:out of memory", COMPILE, TS_RESOURCE_EXHAUSTED,
     "compiling the graph small: out of memory"},
    {"FAIL", "PJRT_LoadedExecutable_GetExecutable=13:no such luck", COMPILE, TS_INTERNAL,
     "looking at the compiled program: no such luck"},
    {"FAIL", "PJRT_Executable_NumOutputs=13:no such luck", COMPILE, TS_INTERNAL,
     "counting the program's outputs: no such luck"},
    {"FAIL", "PJRT_LoadedExecutable_AddressableDevices=13:no such luck", COMPILE, TS_INTERNAL,
     "asking for the program's devices: no such luck"},
    {"FAIL", "PJRT_LoadedExecutable_GetDeviceAssignment=13:no such luck", COMPILE, TS_INTERNAL,
     "asking which device runs which replica: no such luck"},
    {"ODD", "outputs", COMPILE, TS_FAILED_PRECONDITION,
     "the compiled program has 3 outputs and the graph small has 2"},
    {"ODD", "few", COMPILE, TS_FAILED_PRECONDITION,
     "the compiled program runs on 0 of this process's devices; 1 were asked for"},
    {"ODD", "garbage", COMPILE, TS_INTERNAL,
     "the plugin's device assignment of the program cannot be read"},
    /* transfers */
    {"FAIL", "PJRT_Client_BufferFromHostBuffer=8:no such luck", UPLOAD, TS_RESOURCE_EXHAUSTED,
     "f32[embed:4]: an upload to the device: no such luck"},
    {"FAIL", "PJRT_Client_BufferFromHostBuffer@2=8:no such luck", UPLOAD, TS_RESOURCE_EXHAUSTED,
     "f32[embed:4]: an upload to the device: no such luck"},
    {"EVENT_FAIL", "upload@2", UPLOAD, TS_INTERNAL,
     "f32[embed:4]: an upload to the device: the device was lost in upload 2"},
    {"FAIL", "PJRT_Buffer_ToHostBuffer=13:no such luck", DOWNLOAD, TS_INTERNAL,
     "a download from the device: no such luck"},
    {"FAIL", "PJRT_Buffer_ToHostBuffer@2=13:no such luck", DOWNLOAD, TS_INTERNAL,
     "a download from the device: no such luck"},
    {"EVENT_FAIL", "download@1", DOWNLOAD, TS_INTERNAL,
     "a download from the device: the device was lost in download 1"},
    /* events */
    {"FAIL", "PJRT_Event_Await=4:no such luck", UPLOAD, TS_DEADLINE_EXCEEDED,
     "f32[embed:4]: an upload to the device: no such luck"},
    {"FAIL", "PJRT_Event_Await@3=4:no such luck", WAIT, TS_DEADLINE_EXCEEDED,
     "execute 1 of small failed: no such luck"},
    {"FAIL", "PJRT_Event_Destroy=13:no such luck", UPLOAD, TS_INTERNAL,
     "f32[embed:4]: an upload to the device: no such luck"},
    /* execute */
    {"FAIL", "PJRT_LoadedExecutable_Execute=3:no such luck", EXECUTE, TS_INVALID_ARGUMENT,
     "execute 1 of small was refused: no such luck"},
    {"FAIL", "PJRT_LoadedExecutable_Execute@2=3:no such luck", EXECUTE, TS_INVALID_ARGUMENT,
     "execute 2 of small was refused: no such luck"},
    {"FAIL", "PJRT_LoadedExecutable_Execute=3:no such luck;PJRT_Buffer_IsDeleted=13:nor here",
     EXECUTE, TS_INVALID_ARGUMENT, "execute 1 of small was refused: no such luck"},
    {"EVENT_FAIL", "1", WAIT, TS_INTERNAL,
     "execute 1 of small failed: the device was lost in execute 1"},
    {"EVENT_FAIL", "2", WAIT, TS_INTERNAL,
     "execute 2 of small failed: the device was lost in execute 2"},
    /* the profile */
    {"NO_PROFILER", "1", TRACE, TS_UNIMPLEMENTED, "the plugin $ has no profiler extension"},
    {"FAIL", "PLUGIN_Profiler_Create=13:no such luck", TRACE, TS_INTERNAL,
     "making a profile: no such luck"},
    {"FAIL", "PLUGIN_Profiler_Start=13:no such luck", TRACE, TS_INTERNAL,
     "starting the profile: no such luck"},
    {"FAIL", "PLUGIN_Profiler_Stop=13:no such luck", TRACE, TS_INTERNAL,
     "stopping the profile: no such luck"},
    {"FAIL", "PLUGIN_Profiler_CollectData=13:no such luck", TRACE, TS_INTERNAL,
     "collecting the profile: no such luck"},
    {"FAIL", "PLUGIN_Profiler_Destroy=13:no such luck", NOWHERE, TS_OK, ""},
    /* a program that was compiled before */
    {"FAIL", "PJRT_Executable_Serialize=13:no such luck", SERIALIZE, TS_INTERNAL,
     "serializing the program: no such luck"},
    {"FAIL", "PJRT_LoadedExecutable_GetExecutable@2=13:no such luck", SERIALIZE, TS_INTERNAL,
     "looking at the compiled program: no such luck"},
    {"FAIL", "PJRT_Executable_DeserializeAndLoad=13:no such luck", LOAD, TS_INTERNAL,
     "loading the compiled program #: no such luck"},
    /* what is given up anyway, or is a service only, fails in silence */
    {"FAIL", "PJRT_Event_IsReady=13:no such luck", NOWHERE, TS_OK, ""}, /* awaiting it tells */
    {"FAIL", "PJRT_Executable_GetCompiledMemoryStats=13:no such luck", NOWHERE, TS_OK, ""},
    {"FAIL", "PJRT_Executable_GetCostAnalysis=12:no such luck", NOWHERE, TS_OK, ""},
    {"FAIL", "PJRT_LoadedExecutable_GetDeviceAssignment=12:no such luck", NOWHERE, TS_OK, ""},
    {"FAIL", "PJRT_Executable_Destroy=13:no such luck", NOWHERE, TS_OK, ""},
    {"FAIL", "PJRT_LoadedExecutable_Destroy=13:no such luck", NOWHERE, TS_OK, ""},
    {"FAIL", "PJRT_Buffer_Destroy=13:no such luck", NOWHERE, TS_OK, ""},
    {"FAIL", "PJRT_Client_Destroy=13:no such luck", NOWHERE, TS_OK, ""},
};

static const char *expected(const char *words)
{
    return fake_words(words, file); /* '#' is the file's path */
}

static void every_fault(void **unused)
{
    (void)unused;
    int wrong = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const row *r = &rows[i];
        ts_status status;
        ts_error err;
        fault_none();
        fake_counts()->reset();
        fault(r->variable, r->value);
        stage at = scenario(&status, &err);
        fault_none();
        if (at != r->at || status != r->status || strcmp(err.msg, expected(r->words)) != 0) {
            print_error("%s=%s\n  %s, %s: %s\n  expected %s, %s: %s\n", r->variable, r->value,
                        stage_name[at], ts_status_name(status), err.msg, stage_name[r->at],
                        ts_status_name(r->status), expected(r->words));
            wrong++;
        }
        fake_nothing_left(r->value);
    }
    all_is_well("after all faults");
    if (wrong) fail_msg("%d rows", wrong);
}

static void without_faults(void **unused)
{
    (void)unused;
    all_is_well("the first time");
    all_is_well("the second time");
}

/* A compiled program is matched to a TPU by its devices' kind and places. */
static void where_a_program_belongs(void **unused)
{
    (void)unused;
    static const struct {
        const char *kind, *fail;
        ts_status status;
        const char *words;
    } cases[] = {
        {"TPU v6 lite", "", TS_OK, ""},
        {"TPU v6 lite", "PJRT_Client_Devices=13:no such luck", TS_INTERNAL,
         "listing all devices: no such luck"},
        {"TPU v6 lite", "PJRT_DeviceDescription_Attributes=13:no such luck", TS_INTERNAL,
         "asking for a device's coordinates: no such luck"},
        {"TPU v9", "", TS_UNIMPLEMENTED,
         "devices of the kind \"TPU v9\" have no compiled programs"},
        {"nowhere", "", TS_UNIMPLEMENTED,
         "the devices of $ do not say where they are, so no compiled program can be matched to them"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ts_status status;
        ts_error err;
        fault_none();
        fault("PLATFORM", "tpu");
        fault("KIND", cases[i].kind);
        fault("FAIL", cases[i].fail);
        stage at = scenario(&status, &err);
        fault_none();
        if (at != (cases[i].status == TS_OK ? NOWHERE : LOAD) || status != cases[i].status ||
            strcmp(err.msg, expected(cases[i].words)) != 0)
            fail_msg("%s %s: %s, %s: %s", cases[i].kind, cases[i].fail, stage_name[at],
                     ts_status_name(status), err.msg);
        fake_nothing_left(cases[i].kind);
    }
}

/* Not once a function but once a call: each of them fails, at every place it is made from. Either the error comes
 * out with the plugin's words, or the scenario ends as if nothing had been. */
static void every_call(void **unused)
{
    (void)unused;
    static const char *const function[] = {
#define FUNCTION(name) "PJRT_" #name,
#include "fake/fake_functions.def"
#undef FUNCTION
    };
    static const char *const platform[][2] = {{"", ""}, {"tpu", "TPU v6 lite"}};
    int failed = 0, silent = 0;
    for (size_t i = 0; i < sizeof function / sizeof *function; i++)
        for (int k = 0; k < 2; k++)
            for (int n = 1;; n++) {
                char value[200];
                ts_status status;
                ts_error err;
                fault_none();
                fake_counts()->reset();
                fault("PLATFORM", platform[k][0]);
                fault("KIND", platform[k][1]);
                snprintf(value, sizeof value, "%s@%d=13:no such luck", function[i], n);
                fault("FAIL", value);
                stage at = scenario(&status, &err);
                fault_none();
                if (at != NOWHERE && (status != TS_INTERNAL || !strstr(err.msg, "no such luck")))
                    fail_msg("%s: %s, %s: %s", value, stage_name[at], ts_status_name(status),
                             err.msg);
                fake_nothing_left(value);
                if (fake_counts()->calls(function[i]) < (uint64_t)n) break;
                failed += at != NOWHERE;
                silent += at == NOWHERE;
            }
    if (failed < 60 || silent < 20) fail_msg("%d calls failed, %d did in silence", failed, silent);
}

/* ---- tables with holes -------------------------------------------------------------------------- */

/* A table without a function, or one that ends early: refused in a sentence that names what is missed, or the scenario
 * runs to its end. Never a call of nothing. */
static bool refused_or_fine(const char *what)
{
    ts_status status;
    ts_error err;
    stage at = scenario(&status, &err);
    if (at == NOWHERE) return true;
    if (status != TS_UNIMPLEMENTED ||
        !strstr(err.msg, ", which Tessera needs; take a newer version of the plugin"))
        fail_msg("%s: %s, %s: %s", what, stage_name[at], ts_status_name(status), err.msg);
    assert_int_equal(at, OPEN);
    if (strncmp(what, "PJRT_", 5) == 0) assert_non_null(strstr(err.msg, what));
    return false;
}

static void every_slot_empty(void **unused)
{
    (void)unused;
    static const char *const slot[] = {
#define FUNCTION(name) "PJRT_" #name,
#include "fake/fake_functions.def"
#undef FUNCTION
        "PJRT_Error_Destroy", "PJRT_Error_Message"};
    static const char *const platform[][2] = {{"", ""}, {"tpu", "TPU v6 lite"}};
    int fine = 0;
    for (size_t i = 0; i < sizeof slot / sizeof *slot; i++)
        for (int k = 0; k < 2; k++) {
            fault_none();
            fault("PLATFORM", platform[k][0]);
            fault("KIND", platform[k][1]);
            fault("MISSING", slot[i]);
            if (strcmp(slot[i], "PJRT_Plugin_Attributes") == 0)
                continue; /* how the fake asks for graphs */
            fine += refused_or_fine(slot[i]);
        }
    fault_none();
    assert_true(fine > 20); /* what is not called, or only asked for, is not missed */
    all_is_well("after the holes");
}

static void every_size_of_table(void **unused)
{
    (void)unused;
    int fine = 0;
    for (size_t size = 0; size <= sizeof(PJRT_Api); size += sizeof(void *)) {
        char text[32];
        snprintf(text, sizeof text, "%zu", size);
        fault_none();
        fault("SIZE", text);
        bool passes = refused_or_fine(text);
        if (fine && !passes) fail_msg("%zu bytes are refused, and less is not", size);
        fine += passes;
    }
    fault_none();
    assert_true(fine > 20);
}

/* ---- memory, and the table itself --------------------------------------------------------------- */

/* Every allocation of the scenario fails once: an error that says so, nothing left, no crash. */
static void every_allocation(void **unused)
{
    (void)unused;
    fault_none();
    all_is_well("before");
    for (uint64_t n = 1;; n++) {
        ts_status status;
        ts_error err;
        if (n > 20000) fail_msg("no end");
        failing = n;
        stage at = scenario(&status, &err);
        ts_alloc_fail_at(0);
        failing = 0;
        if (at == NOWHERE && n > 100) break;
        if (at != NOWHERE && status != TS_RESOURCE_EXHAUSTED)
            fail_msg("allocation %llu, %s: %s: %s", (unsigned long long)n, stage_name[at],
                     ts_status_name(status), err.msg);
        fake_nothing_left("a failed allocation");
    }
}

static char *read_text(const char *path, size_t *n)
{
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("%s cannot be read; tests run in the repository's root", path);
    char *text = malloc(1 << 20);
    *n = fread(text, 1, (1 << 20) - 1, f);
    text[*n] = 0;
    fclose(f);
    return text;
}

/* Every PJRT function that src/xla calls stands in a row here or in one of the tests beside this. */
static void every_function_has_a_row(void **unused)
{
    (void)unused;
    static const char *const tests[] = {"tests/unit/test_xla_errors.c",
                                        "tests/unit/test_xla_probe.c",
                                        "tests/unit/test_xla_aot_faults.c"};
    static const char *const without_error[] = {"PJRT_Error_Destroy", "PJRT_Error_Message"};
    enum { N_TESTS = sizeof tests / sizeof *tests };
    char *covered[N_TESTS];
    int wrong = 0, calls = 0;
    size_t n;
    for (size_t i = 0; i < N_TESTS; i++) covered[i] = read_text(tests[i], &n);
    DIR *folder = opendir("src/xla");
    assert_non_null(folder);
    for (struct dirent *d; (d = readdir(folder));) {
        char path[400];
        size_t length = strlen(d->d_name);
        if (length < 3 || strcmp(d->d_name + length - 2, ".c") != 0) continue;
        snprintf(path, sizeof path, "src/xla/%s", d->d_name);
        char *text = read_text(path, &n);
        for (char *at = text; (at = strstr(at, "api->PJRT_"));) {
            char row_begin[100];
            at += 5;
            size_t name = strcspn(at, " ();,");
            bool found = false;
            calls++;
            snprintf(row_begin, sizeof row_begin, "%.*s", (int)name, at);
            for (size_t i = 0; i < 2; i++) found |= strcmp(row_begin, without_error[i]) == 0;
            snprintf(row_begin, sizeof row_begin, "%.*s=", (int)name, at);
            for (size_t i = 0; i < N_TESTS; i++) found |= strstr(covered[i], row_begin) != NULL;
            if (!found) {
                print_error("%s calls %.*s, and no test makes it fail\n", path, (int)name, at);
                wrong++;
            }
        }
        free(text);
    }
    closedir(folder);
    for (size_t i = 0; i < N_TESTS; i++) free(covered[i]);
    assert_true(calls > 30);
    if (wrong) fail_msg("%d functions", wrong);
}

int main(void)
{
    const char *folder = getenv("TMPDIR");
    snprintf(file, sizeof file, "%s/test_xla_errors.%d", folder ? folder : "/tmp", (int)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_faults),          cmocka_unit_test(every_fault),
        cmocka_unit_test(where_a_program_belongs), cmocka_unit_test(every_call),
        cmocka_unit_test(every_slot_empty),        cmocka_unit_test(every_size_of_table),
        cmocka_unit_test(every_allocation),        cmocka_unit_test(every_function_has_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
