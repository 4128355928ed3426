/* train/choose.c – which engine runs, and why; opening it.
 *
 * The order: what engine= and plugin= say, then the device files of a TPU, then those of an NVIDIA GPU, then the CPU.
 * A machine with an accelerator never falls back to its CPU in silence: where the plugin is missing the run ends
 * (exit code 4) and the message says both ways on.
 *
 * Not here: what counts as a TPU or a GPU (xla/devices.c), whether it works (the plugin says).
 */
#include "train/choose.h"

#include <stdio.h>

#include "base/file.h"
#include "xla/devices.h"

void ts__choose_engine(const ts_config *c, const char *root, ts_engine_choice *out)
{
    bool automatic = strcmp(c->engine, "auto") == 0;
    char file[128] = "";
    *out = (ts_engine_choice){.engine = "cpu"};
    if (strcmp(c->engine, "cpu") == 0) return;
    out->engine = "xla";
    if (*c->plugin) {
        out->plugin = c->plugin;
        if (automatic) snprintf(out->why, sizeof out->why, "engine=auto: plugin=%.100s", c->plugin);
        return;
    }
    out->plugin = ts__devices_find(root, file, sizeof file);
    out->found = out->plugin != NULL;
    if (out->plugin)
        snprintf(out->why, sizeof out->why, "%s: found %s", automatic ? "engine=auto" : "plugin",
                 file);
    else if (automatic)
        *out = (ts_engine_choice){.engine = "cpu",
                                  .why = "engine=auto: no TPU and no NVIDIA GPU found"};
    else {
        out->plugin = "cpu";
        snprintf(out->why, sizeof out->why, "plugin: no TPU and no NVIDIA GPU found");
    }
}

/* ---- what the other keys mean to the engine that was chosen ------------------------------------ */

/* One problem more: "key=value   why". */
static void add(ts_string *problems, int *n, const char *key, const char *value, const char *why)
{
    ts_string_printf(problems, "\n  %s=%.400s   %s", key, value, why);
    ++*n;
}

static void check_step_file(const ts_config *c, bool xla, ts_string *problems, int *n)
{
    static const char key[] = "compiled_trainstep_file";
    const char *path = c->compiled_trainstep_file;
    ts_path_kind kind = *path ? ts_path_kind_of(path) : TS_PATH_FILE;
    if (*path && !xla)
        add(problems, n, key, path,
            "is a program of the xla engine, and the cpu engine runs; set engine=xla");
    else if (kind == TS_PATH_NONE)
        add(problems, n, key, path, "does not exist; `tessera compile` writes such a file");
    else if (kind != TS_PATH_FILE)
        add(problems, n, key, path, "is not a file; `tessera compile` writes such a file");
}

ts_status ts__check_engine_keys(const ts_config *c, const ts_engine_choice *choice, ts_error *err)
{
    bool xla = strcmp(choice->engine, "xla") == 0;
    ts_string problems = ts_string_new(3000);
    int n = 0;
    if (strcmp(c->profiler, "xplane") == 0 && !xla)
        add(&problems, &n, "profiler", "xplane",
            "is the profile of an accelerator, and the cpu engine runs (engine=auto found none); "
            "trace works");
    if (strcmp(c->profiler, "trace") == 0 && xla)
        add(&problems, &n, "profiler", "trace",
            "is the cpu engine's timeline, and the xla engine runs; xplane works");
    check_step_file(c, xla, &problems, &n);
    ts_status status = TS_OK;
    if (n)
        status = TS_ERROR(err, TS_INVALID_ARGUMENT,
                          "%d error%s in the configuration, nothing was started\n%s", n,
                          n == 1 ? "" : "s", problems.data ? problems.data : "");
    ts_string_free(&problems);
    return status;
}

const char *ts__engine_note(const ts_config *c, const ts_engine_choice *choice, int i)
{
    bool xla = strcmp(choice->engine, "xla") == 0;
    const char *note[] = {
        *c->compile_topology
            ? "compile_topology has no effect on training: `tessera compile` uses it"
            : NULL,
        !xla && (!strcmp(c->matmul_precision, "bfloat16") || !strcmp(c->matmul_precision, "high"))
            ? "matmul_precision has no effect: the cpu engine multiplies float32 in full float32"
            : NULL,
        !xla && *c->compile_xla_flags
            ? "compile_xla_flags has no effect: the cpu engine runs, and it compiles without XLA"
            : NULL,
        !xla && *c->xla_dump_to
            ? "xla_dump_to has no effect: the cpu engine runs, and it compiles without XLA"
            : NULL,
        xla && c->threads ? "threads has no effect: the plugin has threads of its own" : NULL,
    };
    for (size_t k = 0; k < sizeof note / sizeof *note; k++)
        if (note[k] && i-- == 0) return note[k];
    return NULL;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* No plugin, or one without a device: what to do about it. An engine that opens is never another than was chosen. */
static ts_status explain(const ts_engine_choice *choice, const ts_error *why, ts_error *err)
{
    if (why->code == TS_NOT_FOUND && choice->found)
        return TS_ERROR(err, TS_UNAVAILABLE,
                        "%s, and the plugin for it is missing: %s. engine=cpu runs without",
                        choice->why, why->msg);
    if (why->code == TS_NOT_FOUND)
        return TS_ERROR(err, TS_UNAVAILABLE, "%s. engine=cpu runs without", why->msg);
    if (choice->found && why->code == TS_UNAVAILABLE)
        return TS_ERROR(err, TS_UNAVAILABLE, "%s (%s); engine=cpu runs without it", why->msg,
                        choice->why);
    /* What went wrong inside of a plugin is of its own kinds; to the user it is a plugin that does not work (4). */
    bool inside = why->code == TS_INTERNAL || why->code == TS_UNKNOWN ||
                  why->code == TS_UNIMPLEMENTED || why->code == TS_DATA_LOSS;
    return TS_ERROR(err, inside ? TS_UNAVAILABLE : why->code, "%s", why->msg);
}

ts_status ts__open_chosen(const ts_config *c, const ts_engine_choice *choice, ts_engine **out,
                          ts_error *err)
{
    ts_error why = {0};
    ts_engine_options o = {.struct_size = sizeof o,
                           .name = choice->engine,
                           .devices =
                               (int)ts__config_run_devices(c, choice->engine, choice->plugin),
                           .threads = (int)c->threads,
                           .plugin = choice->plugin,
                           .precision = c->matmul_precision,
                           .dump_to = c->xla_dump_to,
                           .xla_flag = c->xla_flags.item,
                           .n_xla_flag = (int)c->xla_flags.n};
    ts_status status = ts_engine_open(&o, out, &why);
    if (status == TS_OK) return TS_OK;
    return choice->plugin ? explain(choice, &why, err) : TS_ERROR(err, status, "%s", why.msg);
}

ts_status ts__place_on(const ts_config *c, ts_engine *e, const ts_model_config *model,
                       ts_config *out, ts_error *err)
{
    int64_t torus[TS_MAX_RANK];
    int n = e->vtable->torus ? e->vtable->torus(e, torus) : 0;
    *out = *c;
    ts__config_heads(out, model);
    return ts__config_place(out, e->vtable->devices(e), torus, n, err);
}

ts_status ts__open_engine(const ts_config *c, ts_engine **out, ts_error *err)
{
    ts_engine_choice choice;
    ts__choose_engine(c, "", &choice);
    return ts__open_chosen(c, &choice, out, err);
}

ts_status ts__open_placed(const ts_config *c, const ts_model_config *model, ts_config *placed,
                          ts_engine **out, ts_error *err)
{
    TS_TRY(ts__open_engine(c, out, err));
    return ts__place_on(c, *out, model, placed, err);
}
