/* train/compile.c – ts_aot_compile: a configuration's train step compiled for devices that are not there.
 *
 * The program is the very one that training would run, so that its file can be loaded there: same graph (build.c),
 * same precision, same options. No data is opened, no run's folder is made.
 * Not here: topologies, the child process and its report (xla/), what is printed (cli/compile.c).
 */
#include <stdio.h>

#include "base/file.h"
#include "base/log.h"
#include "train/run.h"
#include "xla/aot.h"
#include "xla/plugin.h"
#include "xla/saved.h"

static ts_status find_topology(const ts_config *c, ts_topology *out, ts_error *err)
{
    ts_error why = {0};
    if (!*c->compile_topology)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "compile_topology is not set: name the devices to compile for, as "
                        "compile_topology=v6e:4x4, v6e-16, v5p-8, tpu7x:2x2x1 or cpu:1");
    ts_status status =
        ts__topology_parse(c->compile_topology, c->compile_topology_num_slices, out, &why);
    return status == TS_OK ? TS_OK : TS_ERROR(err, status, "compile_topology: %s", why.msg);
}

/* The topology says which plugin compiles for it; a path may say where another one lies. */
static ts_status find_plugin(const ts_config *c, const ts_topology *t, char *path, size_t n,
                             ts_error *err)
{
    ts_error why = {0};
    bool is_path = strchr(c->plugin, '/') != NULL;
    if (*c->plugin && !is_path && strcmp(c->plugin, t->plugin) != 0)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "plugin=%s does not compile for %s, plugin=%s does; leave plugin out",
                        c->plugin, t->name, t->plugin);
    ts_status status = ts__plugin_find(is_path ? c->plugin : t->plugin, path, n, &why);
    /* Exit code 4: a plugin is missing, or is not what was installed. */
    if (status == TS_NOT_FOUND || status == TS_DATA_LOSS) status = TS_UNAVAILABLE;
    return status == TS_OK ? TS_OK : TS_ERROR(err, status, "%s", why.msg);
}

/* Before minutes go into compiling. The file takes its name's place at the end: a device would be lost. */
static ts_status check_file(const ts_config *c, ts_error *err)
{
    char folder[4096];
    const char *path = c->compiled_trainstep_file, *slash = strrchr(path, '/');
    ts_path_kind kind = *path ? ts_path_kind_of(path) : TS_PATH_FILE;
    if (!*path) return TS_OK;
    if (kind != TS_PATH_FILE && kind != TS_PATH_NONE)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "compiled_trainstep_file=%s is a %s; expected the name of a file", path,
                        kind == TS_PATH_FOLDER ? "folder" : "device or pipe");
    int n = slash && slash > path ? snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path) : 0;
    if (n < 0 || (size_t)n >= sizeof folder)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "compiled_trainstep_file: the name is too long");
    if (n > 0 && ts_path_kind_of(folder) != TS_PATH_FOLDER)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "compiled_trainstep_file=%s: there is no folder %s; make it first", path,
                        folder);
    ts_status status = ts__saved_place(path, err);
    return status == TS_OK ? TS_OK : ts__error_context(err, "compiled_trainstep_file");
}

/* Of the data only this much goes into the program, and the keys tell it. */
static void say_assumed(const ts_config *c)
{
    if (!c->data_problem) return;
    ts_log(TS_LOG_INFO, "%s here; compiled for dataset_type=%s, %s", c->data_problem,
           c->dataset_type,
           ts__program_options(c, &c->model).packed
               ? "rows with segments and positions (several files, or packing)"
               : "rows without segments (one file, no packing)");
}

static ts_status compile_placed(const ts_config *c, const ts_topology *t, const ts_placed *p,
                                ts_aot_report *out, ts_error *err)
{
    char plugin[4096];
    ts_aot_job job = {.struct_size = sizeof job,
                      .plugin = plugin,
                      .topology = t,
                      .replicas = ts_placed_devices(p),
                      .graph = p->graph,
                      .flag = c->xla_flags.item,
                      .n_flag = (int)c->xla_flags.n,
                      .dump_to = c->xla_dump_to,
                      .save_to = c->compiled_trainstep_file};
    ts_sharding sharding;
    if (p->automatic) {
        sharding = ts_placed_sharding(p);
        job.sharding = &sharding;
    }
    if (!ts__precision_parse(c->matmul_precision, &job.precision))
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "matmul_precision=%s is not known",
                        c->matmul_precision);
    TS_TRY(find_plugin(c, t, plugin, sizeof plugin, err));
    say_assumed(c);
    return ts__aot_compile(&job, out, err);
}

/* All devices of the topology run the step, the model's head counts known by now. */
static ts_status place(const ts_config *c, const ts_topology *t, const ts_model_config *model,
                       ts_config *out, ts_error *err)
{
    *out = *c;
    TS_ASSERT(c->devices == t->devices);
    if (!*c->model_path) return TS_OK;
    ts__config_heads(out, model);
    return ts__config_place(out, c->devices, c->torus, c->n_torus, err);
}

ts_status ts_aot_compile(const ts_config *given, ts_aot_report *out, ts_error *err)
{
    double start = ts_clock_seconds();
    ts_topology t;
    ts_model_config model;
    ts_config c;
    ts_graph *g;
    ts_placed placed;
    memset(out, 0, sizeof *out);
    TS_TRY(find_topology(given, &t, err));
    TS_TRY(check_file(given, err));
    TS_TRY(ts__read_model(given, &model, err));
    TS_TRY(place(given, &t, &model, &c, err));
    TS_TRY(ts__build_train(&c, &model, &g, err));
    ts_status status = ts_place(&c, g, TS_PLACE_TRAIN, &placed, err);
    if (status == TS_OK) {
        status = compile_placed(&c, &t, &placed, out, err);
        ts_placed_free(&placed);
    }
    ts_graph_free(g);
    out->total_seconds = ts_clock_seconds() - start;
    return status;
}
