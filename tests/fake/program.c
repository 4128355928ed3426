/* program.c – programs of the fake plugin: the graph behind the StableHLO text, compiled by the CPU engine.
 *
 * The text itself is not understood, with two exceptions: as many arguments must be donated (tf.aliasing_output) as
 * the graph has outputs that replace an input, and there is a @main. A serialized executable is the graph's text
 * behind a line with the devices.
 */
#include "fake/fake.h"

#include <stdio.h>
#include <stdlib.h>

#include "xla/stablehlo.h"

static const char serial_mark[] = "fake executable\n";

void fake_program_drop(fake_program *p)
{
    if (!p) return;
    pthread_mutex_lock(&fake_lock);
    int left = --p->references;
    pthread_mutex_unlock(&fake_lock);
    if (left > 0) return;
    ts_executable_free(p->executable);
    if (p->owns_engine) ts_engine_close(p->engine);
    ts_graph_free(p->graph);
    ts_free(p->text);
    ts_free(p);
}

static void program_take(fake_program *p)
{
    pthread_mutex_lock(&fake_lock);
    p->references++;
    pthread_mutex_unlock(&fake_lock);
}

/* ---- compiling ---------------------------------------------------------------------------------- */

static size_t occurrences(const char *text, size_t n, const char *word)
{
    size_t count = 0, len = strlen(word);
    for (const char *at = text; (at = memmem(at, n - (size_t)(at - text), word, len)); at += len)
        count++;
    return count;
}

/* The graph's text: every line behind the mark, without its "// ". */
static PJRT_Error *extract(const PJRT_Program *in, fake_program *p, size_t *donated)
{
    if (in->format_size != 4 || memcmp(in->format, "mlir", 4) != 0)
        return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, "program format '%.*s' is not mlir",
                          (int)in->format_size, in->format);
    const char *mark =
        memmem(in->code, in->code_size, TS_STABLEHLO_GRAPH_MARK, strlen(TS_STABLEHLO_GRAPH_MARK));
    if (!mark || !memmem(in->code, in->code_size, "@main", 5))
        return fake_error(PJRT_Error_Code_UNKNOWN,
                          "1:1: error: the program carries no graph to run");
    *donated = occurrences(in->code, (size_t)(mark - in->code), "tf.aliasing_output");
    const char *at = mark + strlen(TS_STABLEHLO_GRAPH_MARK), *end = in->code + in->code_size;
    p->text = ts_alloc((size_t)(end - at) + 1);
    TS_ASSERT(p->text);
    while (at < end) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        if (!line_end) line_end = end;
        if (line_end - at < 2 || memcmp(at, "//", 2) != 0) break;
        at += line_end - at > 2 ? 3 : 2;
        memcpy(p->text + p->n_text, at, (size_t)(line_end - at));
        p->n_text += (size_t)(line_end - at);
        p->text[p->n_text++] = '\n';
        at = line_end + (line_end < end);
    }
    return NULL;
}

static PJRT_Error *build(fake_program *p, PJRT_Client *c)
{
    ts_error err = {0};
    if (ts_graph_parse(p->text, p->n_text, &p->graph, &err) != TS_OK ||
        ts_graph_verify(p->graph, &err) != TS_OK)
        return fake_status_error(&err);
    bool meshed = p->graph->n_axis > 0 && p->replicas > 1;
    if (c && !meshed)
        p->engine = c->engine;
    else {
        PJRT_Error *e = fake_engine_open(meshed ? p->replicas : 1, &p->engine);
        if (e) return e;
        p->owns_engine = true;
    }
    if (ts_compile(p->engine, p->graph, &p->executable, &err) != TS_OK)
        return fake_status_error(&err);
    p->executable->vtable->stats(p->executable, &p->stats);
    return NULL;
}

static PJRT_Error *compile(PJRT_Client *c, const PJRT_Program *in, const char *options,
                           size_t n_options, fake_program **out)
{
    size_t donated = 0, replaced = 0;
    fake_program *p = ts_alloc_zero(sizeof *p);
    TS_ASSERT(p);
    p->references = 1;
    char dump_to[4096] = "";
    PJRT_Error *e = fake_options_read(options, n_options, p, dump_to);
    if (!e) e = extract(in, p, &donated);
    if (!e) e = build(p, c);
    for (int k = 0; !e && k < p->graph->top->n_result; k++)
        replaced += p->graph->output[k].replaces >= 0;
    if (!e && donated != replaced)
        e = fake_error(PJRT_Error_Code_INVALID_ARGUMENT,
                       "the program donates %zu arguments, its graph %zu", donated, replaced);
    if (!e) e = fake_dump(dump_to);
    if (e) {
        fake_program_drop(p);
        p = NULL;
    }
    *out = p;
    return e;
}

/* Takes the program. The order of argument lists is the client's, as its addressable devices come. */
static PJRT_Error *load(PJRT_Client *c, fake_program *p, PJRT_LoadedExecutable **out)
{
    PJRT_LoadedExecutable *x = ts_alloc_zero(sizeof *x);
    TS_ASSERT(x);
    x->program = p;
    x->client = c;
    x->device = ts_alloc_zero((size_t)p->replicas * sizeof *x->device);
    TS_ASSERT(x->device);
    int n = 0;
    for (int i = 0; i < p->replicas && i < c->n; i++)
        if (p->device_id[i] < 0) p->device_id[i] = c->all[i]->description.id;
    for (int k = 0; k < c->n; k++)
        for (int i = 0; i < p->replicas; i++)
            if (c->addressable[k]->description.id == p->device_id[i])
                x->device[n++] = c->addressable[k];
    if (n == p->replicas) {
        pthread_mutex_lock(&fake_lock);
        c->live++;
        pthread_mutex_unlock(&fake_lock);
        fake_born("loaded executable");
        *out = x;
        return NULL;
    }
    PJRT_Error *e =
        fake_error(PJRT_Error_Code_INVALID_ARGUMENT, "%d of the program's %d devices are not here",
                   p->replicas - n, p->replicas);
    fake_program_drop(p);
    ts_free(x->device);
    ts_free(x);
    return e;
}

PJRT_Error *fake_Client_Compile(PJRT_Client_Compile_Args *a)
{
    fake_program *p;
    PJRT_Error *e = compile(a->client, a->program, a->compile_options, a->compile_options_size, &p);
    return e ? e : load(a->client, p, &a->executable);
}

static PJRT_Executable *executable_of(fake_program *p)
{
    PJRT_Executable *x = ts_alloc_zero(sizeof *x);
    TS_ASSERT(x);
    x->program = p;
    fake_born("executable");
    return x;
}

PJRT_Error *fake_Compile(PJRT_Compile_Args *a)
{
    fake_program *p;
    PJRT_Error *e = compile(NULL, a->program, a->compile_options, a->compile_options_size, &p);
    for (int i = 0; !e && i < p->replicas; i++) {
        bool known = false;
        for (int k = 0; k < a->topology->n; k++)
            known |= a->topology->description[k].id == p->device_id[i];
        if (!known)
            e = fake_error(PJRT_Error_Code_INVALID_ARGUMENT, "replica %d: %s has no device %d", i,
                           a->topology->name, p->device_id[i]);
    }
    if (e) fake_program_drop(p);
    if (!e) a->executable = executable_of(p);
    return e;
}

/* ---- executables -------------------------------------------------------------------------------- */

PJRT_Error *fake_LoadedExecutable_GetExecutable(PJRT_LoadedExecutable_GetExecutable_Args *a)
{
    program_take(a->loaded_executable->program);
    a->executable = executable_of(a->loaded_executable->program);
    return NULL;
}

static bool odd(const char *what)
{
    const char *v = getenv("FAKE_PJRT_ODD");
    return v && strcmp(v, what) == 0;
}

PJRT_Error *fake_LoadedExecutable_AddressableDevices(
    PJRT_LoadedExecutable_AddressableDevices_Args *a)
{
    PJRT_LoadedExecutable *x = a->executable;
    int n = x->program->replicas;
    if (odd("twice")) x->device[n - 1] = x->device[0];
    if (odd("strange")) x->device[0] = x->client->all[x->client->n - 1];
    a->addressable_devices = x->device;
    a->num_addressable_devices = (size_t)n - odd("few");
    return NULL;
}

PJRT_Error *fake_LoadedExecutable_Destroy(PJRT_LoadedExecutable_Destroy_Args *a)
{
    PJRT_Client *c = a->executable->client;
    fake_program_drop(a->executable->program);
    ts_free(a->executable->device);
    ts_free(a->executable);
    fake_died("loaded executable");
    pthread_mutex_lock(&fake_lock);
    c->live--;
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

PJRT_Error *fake_Executable_Destroy(PJRT_Executable_Destroy_Args *a)
{
    fake_program_drop(a->executable->program);
    ts_free(a->executable);
    fake_died("executable");
    return NULL;
}

PJRT_Error *fake_Executable_NumOutputs(PJRT_Executable_NumOutputs_Args *a)
{
    a->num_outputs = (size_t)a->executable->program->graph->top->n_result + odd("outputs");
    return NULL;
}

PJRT_Error *fake_Executable_SizeOfGeneratedCodeInBytes(
    PJRT_Executable_SizeOfGeneratedCodeInBytes_Args *a)
{
    a->size_in_bytes = (int64_t)a->executable->program->n_text;
    return NULL;
}

PJRT_Error *fake_Executable_OptimizedProgram(PJRT_Executable_OptimizedProgram_Args *a)
{
    (void)a;
    return fake_error(PJRT_Error_Code_UNIMPLEMENTED, "the fake plugin optimizes nothing");
}

PJRT_Error *fake_Executable_GetCostAnalysis(PJRT_Executable_GetCostAnalysis_Args *a)
{
    PJRT_Executable *x = a->executable;
    x->property[0] = (PJRT_NamedValue){.struct_size = PJRT_NamedValue_SIZE,
                                       .name = "flops",
                                       .name_size = 5,
                                       .type = PJRT_NamedValue_kFloat,
                                       .float_value = (float)x->program->stats.flops,
                                       .value_size = 1};
    x->property[1] = (PJRT_NamedValue){.struct_size = PJRT_NamedValue_SIZE,
                                       .name = "bytes accessed",
                                       .name_size = 14,
                                       .type = PJRT_NamedValue_kFloat,
                                       .float_value = (float)x->program->stats.bytes,
                                       .value_size = 1};
    a->properties = x->property;
    a->num_properties = 2;
    return NULL;
}

PJRT_Error *fake_Executable_GetCompiledMemoryStats(PJRT_Executable_GetCompiledMemoryStats_Args *a)
{
    const ts_memory_stats *m = &a->executable->program->stats.memory;
    a->generated_code_size_in_bytes = (int64_t)a->executable->program->n_text;
    a->argument_size_in_bytes = (int64_t)m->arguments;
    a->output_size_in_bytes = (int64_t)m->outputs;
    a->alias_size_in_bytes = (int64_t)m->aliased;
    a->temp_size_in_bytes = (int64_t)(m->temporary + m->constants);
    a->peak_memory_in_bytes = (int64_t)m->peak;
    a->total_size_in_bytes = (int64_t)(m->peak - m->arguments);
    return NULL;
}

/* ---- serialized --------------------------------------------------------------------------------- */

static void serialized_delete(PJRT_SerializedExecutable *s)
{
    ts_free(s->bytes);
    ts_free(s);
    fake_died("serialized executable");
}

PJRT_Error *fake_Executable_Serialize(PJRT_Executable_Serialize_Args *a)
{
    const fake_program *p = a->executable->program;
    ts_string out = ts_string_new((size_t)1 << 30);
    PJRT_SerializedExecutable *s = ts_alloc_zero(sizeof *s);
    TS_ASSERT(s);
    ts_string_printf(&out, "%s%d", serial_mark, p->replicas);
    for (int i = 0; i < p->replicas; i++) ts_string_printf(&out, " %d", p->device_id[i]);
    ts_string_add(&out, "\n");
    ts_string_add_bytes(&out, p->text, p->n_text);
    TS_ASSERT(!out.failed);
    s->bytes = out.data;
    a->serialized_bytes = out.data;
    a->serialized_bytes_size = out.length;
    a->serialized_executable = s;
    a->serialized_executable_deleter = serialized_delete;
    fake_born("serialized executable");
    return NULL;
}

static PJRT_Error *read_serialized(const char *bytes, size_t n, fake_program *p)
{
    char *at, *end;
    p->text = ts_alloc(n + 1);
    TS_ASSERT(p->text);
    memcpy(p->text, bytes, n);
    p->text[n] = 0;
    at = p->text + strlen(serial_mark);
    if (strncmp(p->text, serial_mark, strlen(serial_mark)) != 0 || !(end = strchr(at, '\n')))
        return fake_error(PJRT_Error_Code_INVALID_ARGUMENT,
                          "these are not the bytes of an executable of this plugin");
    p->replicas = (int)strtol(at, &at, 10);
    if (p->replicas < 1 || p->replicas > FAKE_MAX_DEVICES)
        return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, "an executable for %d devices",
                          p->replicas);
    for (int i = 0; i < p->replicas; i++) p->device_id[i] = (int)strtol(at, &at, 10);
    p->n_text = n - (size_t)(end + 1 - p->text);
    memmove(p->text, end + 1, p->n_text);
    return NULL;
}

PJRT_Error *fake_Executable_DeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args *a)
{
    fake_program *p = ts_alloc_zero(sizeof *p);
    TS_ASSERT(p);
    p->references = 1;
    PJRT_Error *e = read_serialized(a->serialized_executable, a->serialized_executable_size, p);
    if (!e) e = build(p, a->client);
    if (!e) return load(a->client, p, &a->loaded_executable);
    fake_program_drop(p);
    return e;
}

static void assignment_delete(PJRT_DeviceAssignmentSerialized *s)
{
    ts_free(s->bytes);
    ts_free(s);
    fake_died("device assignment");
}

PJRT_Error *fake_LoadedExecutable_GetDeviceAssignment(
    PJRT_LoadedExecutable_GetDeviceAssignment_Args *a)
{
    const fake_program *p = a->executable->program;
    int id[FAKE_MAX_DEVICES];
    PJRT_DeviceAssignmentSerialized *s = ts_alloc_zero(sizeof *s);
    TS_ASSERT(s);
    s->bytes = ts_alloc(16 + 6 * (size_t)p->replicas);
    TS_ASSERT(s->bytes);
    for (int i = 0; i < p->replicas; i++)
        id[i] = p->device_id[odd("assignment") ? p->replicas - 1 - i : i];
    a->serialized_bytes_size = fake_assignment_write(id, p->replicas, s->bytes);
    if (odd("garbage")) memset(s->bytes, 0xff, a->serialized_bytes_size);
    a->serialized_bytes = s->bytes;
    a->serialized_device_assignment = s;
    a->serialized_device_assignment_deleter = assignment_delete;
    fake_born("device assignment");
    return NULL;
}
