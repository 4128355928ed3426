/* train/plan.c – ts_plan: what a run needs, from its configuration alone.
 *
 * The train step is built and partitioned just as training does it (build.c, place.c); then the
 * program is measured, not run: on the cpu engine by that engine's own planner, which knows every
 * byte; for an accelerator by what lives when in the lowered graph (exec/footprint.h), which is how
 * XLA's compilers come to their peak, within some percent. Times are bounds from published rates:
 * nothing is faster, and what really happens is for hardware to say.
 *
 * Not here: kinds of devices (plan_devices.c), the search for what fits (plan_advice.c), what is
 * printed (cli/plan.c).
 */
#include "train/plan.h"

#include <sched.h>
#include <stdio.h>

#include "cpu/program.h"
#include "exec/footprint.h"
#include "train/flops.h"
#include "train/run.h"
#include "xla/stablehlo.h"

/* Beside its buffers a process that trains on the cpu engine holds oneDNN's code and what it
 * generates, the threads' stacks, the graph and the step's program (docs/mesh.md, "Planning"). */
enum { PROCESS_BYTES = 3 << 20, SAVE_BYTES = 16 << 20 };

/* ---- memory ---------------------------------------------------------------------------------- */

static int64_t local_bytes(const ts_placed *p, int input)
{
    ts_spec spec = ts_placed_in(p, input);
    ts_type t = ts_placed_local(p, &spec, &p->global->top->arg[input]->type);
    return (int64_t)ts_type_bytes(&t);
}

static bool is_replaced(const ts_graph *g, int input)
{
    for (int i = 0; i < g->top->n_result; i++)
        if (g->output[i].replaces == input) return true;
    return false;
}

/* Parameters and moments of a device, from the inputs of the global graph. */
static void count_state(const ts_placed *p, ts_plan_memory *m, int64_t *trained)
{
    const ts_graph *g = p->global;
    *trained = 0;
    for (int i = 0; i < g->n_param; i++) {
        int at = g->param[i].value->index;
        m->parameters += local_bytes(p, at);
        if (is_replaced(g, at)) *trained += local_bytes(p, at);
    }
    for (int i = 0; i < g->top->n_arg; i++)
        if (strncmp(g->top->arg[i]->name, "adam.", 5) == 0) m->moments += local_bytes(p, i);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* An arena is one plan for everything: gradients and activations are taken to fill it first. */
static void split_arena(ts_plan_memory *m, int64_t arena, int64_t gradients, int64_t kept)
{
    m->gradients = least(arena, gradients);
    m->activations = least(arena - m->gradients, kept);
}

/* Bytes of a whole process: every buffer as the engine takes it; inputs that nothing replaces once
 * where several devices hold the same; each device's arena, and the constants of all. */
static int64_t process_bytes(const ts_placed *p, const ts_memory_stats *s)
{
    const ts_graph *g = p->global;
    const ts_mesh *mesh = ts_placed_mesh(p);
    int64_t devices = ts_placed_devices(p),
            bytes = PROCESS_BYTES + (int64_t)ts__cpu_memory_bytes(s->constants);
    for (int i = 0; i < g->top->n_arg; i++) {
        ts_spec spec = ts_placed_in(p, i);
        int64_t copies = mesh && !is_replaced(g, i) ? ts_spec_pieces(mesh, &spec) : devices;
        bytes += copies * (int64_t)ts__cpu_memory_bytes((size_t)local_bytes(p, i));
    }
    int64_t results = (int64_t)ts__cpu_memory_bytes(s->outputs - s->aliased);
    return bytes + devices * (results + (int64_t)ts__cpu_memory_bytes(s->temporary));
}

/* An asynchronous save keeps a copy of all that the process owns: parameters and moments, once. */
static int64_t saved_copy(const ts_config *c, const ts_graph *g)
{
    int64_t bytes = 0;
    if (!c->enable_checkpointing || !c->async_checkpointing) return 0;
    for (int i = 0; i < g->n_param; i++) bytes += (int64_t)ts_type_bytes(&g->param[i].value->type);
    for (int i = 0; i < g->top->n_arg; i++)
        if (strncmp(g->top->arg[i]->name, "adam.", 5) == 0)
            bytes += (int64_t)ts_type_bytes(&g->top->arg[i]->type);
    return bytes;
}

static ts_status measure_cpu(const ts_config *c, const ts_placed *p, const ts_footprint *f,
                             ts_plan_need *out, ts_error *err)
{
    ts_engine *e;
    ts_memory_stats s;
    int64_t trained;
    const ts_engine_options o = {
        .struct_size = sizeof o, .name = "cpu", .devices = 1, .threads = (int)c->threads};
    TS_TRY(ts_engine_open(&o, &e, err));
    ts_status status = ts_cpu_plan(e, p->graph, &s, err);
    ts_engine_close(e);
    TS_TRY(status);
    ts_plan_memory *m = &out->memory;
    count_state(p, m, &trained);
    m->peak = (int64_t)s.peak;
    split_arena(m, (int64_t)s.temporary, trained, f->kept);
    out->process = process_bytes(p, &s) + saved_copy(c, p->global);
    return TS_OK;
}

static void measure_accelerator(const ts_placed *p, const ts_footprint *f, ts_plan_need *out)
{
    int64_t trained;
    ts_plan_memory *m = &out->memory;
    count_state(p, m, &trained);
    m->gradients = f->gradients;
    m->activations = f->activations;
    m->peak = f->arguments + f->temporary;
}

/* ---- time ------------------------------------------------------------------------------------ */

/* The dimension of the torus that axis a of the mesh runs along, or a part of it; −1: none. */
static int torus_dimension(const ts_plan_devices *d, const ts_mesh *mesh, int a)
{
    int64_t below = 1, end = 1;
    for (int i = a + 1; i < mesh->n; i++) below *= mesh->axis[i].size;
    for (int i = d->n_torus - 1; i >= 0; i--) {
        end *= d->torus[i];
        if (below < end) return i;
    }
    return -1;
}

/* Bytes a second that a device can send along an axis: both ways round where the dimension is a
 * ring. */
static double link_rate(const ts_plan_devices *d, const ts_mesh *mesh, int a)
{
    const ts_device_kind *k = d->kind;
    int i = torus_dimension(d, mesh, a);
    if (k->family == TS_FAMILY_CPU) return k->link / d->devices;
    if (i < 0 || i >= 3) return k->link;
    bool ring = mesh->axis[a].size == d->torus[i] && k->wraps && d->torus[i] % k->wraps == 0;
    return ring ? 2 * k->link : k->link;
}

/* Axes on one dimension of the torus share its links, and so do all axes where there is no torus;
 * dimensions do not. */
static void count_wire(const ts_placed *p, const ts_plan_devices *d, ts_plan_report *r)
{
    ts_wire row[TS_PLAN_WIRES];
    double busy[TS_MAX_RANK + 1] = {0};
    size_t n = p->partition ? ts_wire_of(p->graph, row, TS_PLAN_WIRES) : 0;
    r->n_wire = n < TS_PLAN_WIRES ? n : TS_PLAN_WIRES;
    for (size_t i = 0; i < r->n_wire; i++) {
        const ts_mesh *mesh = &p->partition->mesh;
        int a = 0;
        while (a + 1 < mesh->n && strcmp(mesh->axis[a].name, row[i].axis) != 0) a++;
        ts_plan_wire *w = &r->wire[i];
        *w = (ts_plan_wire){.count = row[i].count,
                            .bytes = row[i].bytes,
                            .seconds = row[i].bytes / link_rate(d, mesh, a)};
        snprintf(w->axis, sizeof w->axis, "%s", row[i].axis);
        snprintf(w->kind, sizeof w->kind, "%s", ts_op_infos[row[i].op].name);
        busy[torus_dimension(d, mesh, a) + 1] += w->seconds;
    }
    for (int i = 0; i <= TS_MAX_RANK; i++)
        if (busy[i] > r->wire_seconds) r->wire_seconds = busy[i];
}

/* Operations a second of a device, of products in the configuration's dtype. */
static double product_rate(const ts_config *c, const ts_plan_devices *d)
{
    ts_precision precision = TS_PRECISION_HIGHEST;
    const ts_device_kind *k = d->kind;
    if (k->family == TS_FAMILY_CPU) {
        cpu_set_t set;
        int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
        return k->flops * cores / d->devices;
    }
    if (c->compute_dtype != TS_F32) return k->flops;
    if (!ts__precision_parse(c->matmul_precision, &precision)) return k->flops_f32;
    if (precision == TS_PRECISION_DEFAULT) return k->flops;
    return precision == TS_PRECISION_HIGH && k->family == TS_FAMILY_TPU ? k->flops / 3
                                                                        : k->flops_f32;
}

static void count_time(const ts_config *c, const ts_model_config *model, const ts_plan_devices *d,
                       const ts_plan_need *need, ts_plan_report *r)
{
    ts_step_flops f = ts_step_flops_of(model, (double)c->batch_rows, c->max_target_length);
    double rate = product_rate(c, d);
    double memory = d->kind->memory / (d->kind->family == TS_FAMILY_CPU ? d->devices : 1);
    r->flops = need->flops;
    r->model_flops = (f.weights + f.attention) / d->devices;
    r->memory_bytes = need->traffic;
    r->compute_seconds = need->flops / rate;
    r->memory_seconds = need->traffic / memory;
    bool by_memory = r->memory_seconds > r->compute_seconds;
    double longest = by_memory ? r->memory_seconds : r->compute_seconds;
    bool by_wire = r->wire_seconds > longest;
    if (by_wire) longest = r->wire_seconds;
    snprintf(r->bound, sizeof r->bound, "%s", by_wire ? "wire" : by_memory ? "memory" : "compute");
    r->mfu = longest > 0 ? r->model_flops / rate / longest : 0;
}

/* An asynchronous save copies what a device owns; on the cpu engine one process owns all. Another streams it through
 * 16 MiB, an accelerator's each tensor whole before. */
static void count_save(const ts_config *c, const ts_placed *p, const ts_plan_devices *d,
                       const ts_plan_memory *device, ts_plan_report *r)
{
    const ts_graph *g = p->global;
    const bool cpu = d->kind->family == TS_FAMILY_CPU;
    int64_t largest = 0, copy = saved_copy(c, g);
    for (int i = 0; i < g->n_param; i++) {
        int64_t bytes = local_bytes(p, g->param[i].value->index);
        if (bytes > largest) largest = bytes;
    }
    if (copy && !cpu) copy = device->parameters + device->moments;
    r->host_bytes_at_save = SAVE_BYTES + (copy ? copy : cpu ? 0 : largest);
}

/* ---- one configuration ----------------------------------------------------------------------- */

static ts_status measure_placed(const ts_config *c, const ts_placed *p, const ts_plan_devices *d,
                                ts_plan_need *out, ts_error *err)
{
    ts_footprint f;
    TS_TRY(ts_footprint_of(p->graph, d->kind->on_chip, &f, err));
    out->flops = f.flops;
    out->traffic = f.traffic;
    out->kept = f.kept;
    if (d->kind->family == TS_FAMILY_CPU)
        TS_TRY(measure_cpu(c, p, &f, out, err));
    else
        measure_accelerator(p, &f, out);
    ts_plan_memory *m = &out->memory;
    m->temporary = m->peak - m->parameters - m->moments - m->gradients - m->activations;
    out->fits = d->capacity == 0 || (out->process ? out->process : m->peak) <= d->capacity;
    return TS_OK;
}

ts_status ts__plan_measure(const ts_config *given, const ts_model_config *model,
                           const ts_plan_devices *d, bool warn, ts_plan_need *out,
                           ts_plan_report *report, ts_error *err)
{
    ts_config c = *given;
    ts_graph *g;
    ts_placed p;
    *out = (ts_plan_need){0};
    c.shard_auto = false; /* what another partitioner would do is not known here */
    TS_TRY(ts__build_train(&c, model, &g, err));
    ts_status status = ts_place(&c, g, warn ? TS_PLACE_TRAIN : TS_PLACE_QUIET, &p, err);
    if (status == TS_OK) {
        status = measure_placed(&c, &p, d, out, err);
        if (status == TS_OK && report) {
            count_wire(&p, d, report);
            count_time(&c, model, d, out, report);
            count_save(&c, &p, d, &out->memory, report);
            report->trained = ts__trained_parameters(&c, model, g);
        }
        ts_placed_free(&p);
    }
    ts_graph_free(g);
    return status;
}

/* ---- the report ------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    ts_remat remat;
} policies[TS_PLAN_REMATS] = {
    {"full", TS_REMAT_FULL}, {"minimal", TS_REMAT_MINIMAL}, {"none", TS_REMAT_NONE}};

static ts_status plan_policies(const ts_config *given, const ts_model_config *model,
                               const ts_plan_devices *d, ts_plan_report *r, ts_error *err)
{
    for (int i = 0; i < TS_PLAN_REMATS; i++) {
        ts_config c = *given;
        ts_plan_need need;
        bool own = c.remat == policies[i].remat;
        c.remat = policies[i].remat;
        TS_TRY(ts__plan_measure(&c, model, d, own, &need, own ? r : NULL, err));
        r->policy[i] = (ts_plan_policy){.activations = need.kept,
                                        .peak = need.process ? need.process : need.memory.peak,
                                        .fits = need.fits};
        snprintf(r->policy[i].name, sizeof r->policy[i].name, "%s", policies[i].name);
        if (!own) continue;
        r->per_device = need.memory;
        r->process = need.process;
        r->fits = need.fits;
        snprintf(r->remat, sizeof r->remat, "%s", policies[i].name);
    }
    return TS_OK;
}

static ts_status plan(const ts_config *c, const ts_model_config *model, const ts_plan_devices *d,
                      ts_plan_report *r, ts_error *err)
{
    *r = (ts_plan_report){.devices = d->devices,
                          .parameters = ts_model_parameters(model),
                          .rows = c->batch_rows,
                          .sequence = c->max_target_length,
                          .capacity = d->capacity};
    snprintf(r->devices_name, sizeof r->devices_name, "%s", d->name);
    snprintf(r->device_kind, sizeof r->device_kind, "%s", d->kind->name);
    ts_mesh_text(&c->mesh, r->mesh, sizeof r->mesh);
    TS_TRY(plan_policies(c, model, d, r, err));
    r->checkpoint_bytes = 12 * r->trained + 4 * (r->parameters - r->trained);
    if (!r->fits) ts__plan_advise(c, model, d, r);
    return TS_OK;
}

/* ---- which devices --------------------------------------------------------------------------- */

static ts_status devices_of(const ts_config *c, ts_plan_devices *out, ts_error *err)
{
    char text[64];
    ts_engine_choice choice;
    if (*c->compile_topology) return ts__plan_devices(c->compile_topology, out, err);
    ts__choose_engine(c, "", &choice);
    int64_t n = ts__config_run_devices(c, choice.engine, choice.plugin);
    if (n == 0)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "the devices of plugin=%s are not known before it is opened; name them, as "
                        "--devices v6e:4x4, h100:8 or cpu:16",
                        choice.plugin ? choice.plugin : "");
    snprintf(text, sizeof text, "cpu:%lld", (long long)n);
    return ts__plan_devices(text, out, err);
}

/* The configuration on devices that were named: as a topology, which overrides no word. */
static ts_status load(const char *const *words, int n, const char *devices, ts_plan_devices *d,
                      ts_config **out, ts_error *err)
{
    char topology[64], word[96];
    static const char key[] = "compile_topology=";
    if (!devices) {
        TS_TRY(ts_config_load_words(words, n, out, err));
        ts_status status = devices_of(*out, d, err);
        if (status != TS_OK) ts_config_free(*out);
        return status;
    }
    TS_TRY(ts__plan_devices(devices, d, err));
    for (int i = 0; i < n; i++)
        if (strncmp(words[i], key, sizeof key - 1) == 0)
            return TS_ERROR(err, TS_INVALID_ARGUMENT,
                            "%s and --devices %s both name devices; leave one out", words[i],
                            devices);
    const char **all = ts_alloc(((size_t)n + 1) * sizeof *all);
    if (!all) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out");
    ts__plan_devices_topology(d, topology, sizeof topology);
    snprintf(word, sizeof word, "%s%s", key, topology);
    for (int i = 0; i < n; i++) all[i] = words[i];
    all[n] = word;
    ts_status status = ts_config_load_words(all, n + 1, out, err);
    ts_free(all);
    return status;
}

ts_status ts_plan(const char *const *words, int n, const char *devices, ts_plan_report *out,
                  ts_error *err)
{
    ts_plan_devices d;
    ts_model_config model;
    ts_config *loaded, c;
    *out = (ts_plan_report){0};
    TS_TRY(load(words, n, devices, &d, &loaded, err));
    c = *loaded;
    ts_status status = ts__read_model(&c, &model, err);
    if (status == TS_OK) {
        ts__config_heads(&c, &model);
        status = ts__config_place(&c, d.devices, d.torus, d.n_torus, err);
    }
    if (status == TS_OK) status = plan(&c, &model, &d, out, err);
    ts_config_free(loaded);
    return status;
}
