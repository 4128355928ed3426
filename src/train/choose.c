/* train/choose.c – which engine runs, and why; opening it.
 *
 * The order: what engine= and plugin= say, then the device files of a TPU, then those of an NVIDIA GPU, then the CPU.
 * A machine with an accelerator never falls back to its CPU in silence: where the plugin is missing the run ends
 * (exit code 4) and the message says both ways on.
 *
 * A TPU is /dev/accel0 … or, behind VFIO, /dev/vfio/0 … together with a PCI device of Google's that is neither a
 * network card nor a disk, for their virtual machines have those too. A GPU is /dev/nvidia0 … . Nothing is opened
 * here: a device that is there and does not work is what the plugin reports.
 */
#include "train/choose.h"

#include <stdio.h>

#include "base/file.h"

/* As /sys writes PCI vendors and the beginning of classes. */
static const char google[] = "0x1ae0", disk[] = "0x01", network[] = "0x02";

/* prefix and then digits only. */
static bool is_numbered(const char *name, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(name, prefix, n) == 0 && name[n] && !name[n + strspn(name + n, "0123456789")];
}

/* The first entry of root + folder named prefix and a number, as "folder/name" in found; false when there is none. */
static bool find_numbered(const char *root, const char *folder, const char *prefix, char *found,
                          size_t n)
{
    char path[4096], **names = NULL;
    size_t count = 0;
    bool there = false;
    if (snprintf(path, sizeof path, "%s%s", root, folder) >= (int)sizeof path) return false;
    if (ts_path_kind_of(path) != TS_PATH_FOLDER) return false;
    if (ts_list_folder(path, &names, &count, NULL) != TS_OK) return false;
    for (size_t i = 0; i < count && !there; i++) {
        there = is_numbered(names[i], prefix);
        if (there) snprintf(found, n, "%s/%.60s", folder, names[i]);
    }
    ts_names_free(names, count);
    return there;
}

/* Does a file of /sys begin with text? Their sizes are no sizes, so exactly as much is read. */
static bool begins_with(const char *folder, const char *name, const char *text)
{
    char path[4096], found[16];
    ts_file *f;
    size_t n = strlen(text);
    TS_ASSERT(n <= sizeof found);
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return false;
    if (ts_file_open(path, &f, NULL) != TS_OK) return false;
    ts_status status = ts_file_read_at(f, 0, found, n, NULL);
    ts_file_close(f);
    return status == TS_OK && memcmp(found, text, n) == 0;
}

static bool has_google_accelerator(const char *root)
{
    char folder[4096], device[4096], **names = NULL;
    size_t n = 0;
    bool found = false;
    if (snprintf(folder, sizeof folder, "%s/sys/bus/pci/devices", root) >= (int)sizeof folder)
        return false;
    if (ts_path_kind_of(folder) != TS_PATH_FOLDER) return false;
    if (ts_list_folder(folder, &names, &n, NULL) != TS_OK) return false;
    for (size_t i = 0; i < n && !found; i++) {
        if (snprintf(device, sizeof device, "%s/%s", folder, names[i]) >= (int)sizeof device)
            continue;
        found = begins_with(device, "vendor", google) && begins_with(device, "class", "0x") &&
                !begins_with(device, "class", disk) && !begins_with(device, "class", network);
    }
    ts_names_free(names, n);
    return found;
}

/* The plugin that the machine's devices ask for, or NULL. */
static const char *find_device(const char *root, char *file, size_t n)
{
    if (find_numbered(root, "/dev", "accel", file, n)) return "tpu";
    if (find_numbered(root, "/dev/vfio", "", file, n) && has_google_accelerator(root)) return "tpu";
    if (find_numbered(root, "/dev", "nvidia", file, n)) return "cuda";
    return NULL;
}

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
    out->plugin = find_device(root, file, sizeof file);
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
    bool inside =
        why->code == TS_INTERNAL || why->code == TS_UNKNOWN || why->code == TS_UNIMPLEMENTED;
    return TS_ERROR(err, inside ? TS_UNAVAILABLE : why->code, "%s", why->msg);
}

ts_status ts__open_chosen(const ts_config *c, const ts_engine_choice *choice, ts_engine **out,
                          ts_error *err)
{
    ts_error why = {0};
    ts_engine_options o = {.struct_size = sizeof o,
                           .name = choice->engine,
                           .devices = (int)c->devices,
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

ts_status ts__open_engine(const ts_config *c, ts_engine **out, ts_error *err)
{
    ts_engine_choice choice;
    ts__choose_engine(c, "", &choice);
    return ts__open_chosen(c, &choice, out, err);
}
