/* cli/plan.c – tessera plan: what a run needs, said before there is a device.
 *
 * Memory of a device by what it is for, by remat_policy, and beside what the device has; bytes on
 * the wire by axis and collective; the time that no hardware can beat, and which of compute, memory
 * and wire it is. Where the run does not fit, the changes of keys with which it does; exit code 1
 * then.
 * Not here: the planning (train/plan*.c).
 */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: tessera plan CONFIG.yml [key=value …] [--devices NAME] [--json] [--quiet]\n\n"
    "  --devices  v6e:4x4 or v6e-16, v5e:…, v5p:2x2x1, tpu7x:2x2x2; h100:8, h200:8, b200:8; cpu:16\n"
    "             without it: compile_topology's, else the cpu engine's (cpu_devices)\n"
    "  --json     {\"topology\", \"devices\", \"mesh\", \"parameters\", \"per_device\": {\n"
    "             \"parameters\", \"moments\", \"gradients\", \"activations\", \"temporary\", \"peak\",\n"
    "             \"capacity\"}, \"process_bytes\" (cpu), \"remat_policy\", \"remat\": {policy:\n"
    "             {\"activations\", \"peak\", \"fits\"}}, \"wire_bytes\": {axis: {kind: bytes}},\n"
    "             \"flops\", \"model_flops\", \"memory_bytes\", \"bound_seconds\": {\"compute\",\n"
    "             \"memory\", \"wire\"}, \"bound\", \"mfu_bound\", \"checkpoint_bytes\",\n"
    "             \"host_bytes_at_save\", \"fits\", \"advice\": [{\"keys\", \"peak\"}]}\n"
    "  --quiet    no notes, only warnings\n\n"
    "No device is used and none of that memory; bytes are of one device unless said otherwise.\n\n"
    "example:\n"
    "  tessera plan base.yml model_name=llama3-8b max_target_length=4096 per_device_batch_size=0.25 \\\n"
    "      ici_tensor_parallelism=4 --devices v6e:4x4\n\n"
    "exit codes: 0 it fits, 1 it does not, 2 usage or configuration\n";

const cli_command cli_plan_command = {"plan", "says what a run needs, without a device", help,
                                      cli_plan};

/* ---- JSON ------------------------------------------------------------------------------------ */

static void json_memory(const ts_plan_report *r)
{
    const ts_plan_memory *m = &r->per_device;
    printf("\"per_device\": {\"parameters\": %lld, \"moments\": %lld, \"gradients\": %lld, "
           "\"activations\": %lld, "
           "\"temporary\": %lld, \"peak\": %lld, \"capacity\": ",
           (long long)m->parameters, (long long)m->moments, (long long)m->gradients,
           (long long)m->activations, (long long)m->temporary, (long long)m->peak);
    printf(r->capacity ? "%lld}, " : "null}, ", (long long)r->capacity);
    if (r->process) printf("\"process_bytes\": %lld, ", (long long)r->process);
}

static void json_policies(const ts_plan_report *r)
{
    cli_json_member("remat_policy", r->remat);
    printf(", \"remat\": {");
    for (int i = 0; i < TS_PLAN_REMATS; i++) {
        const ts_plan_policy *p = &r->policy[i];
        printf("%s\"%s\": {\"activations\": %lld, \"peak\": %lld, \"fits\": %s}", i ? ", " : "",
               p->name, (long long)p->activations, (long long)p->peak, p->fits ? "true" : "false");
    }
    printf("}, ");
}

/* Rows are ordered by kind; here an axis has all of its kinds. */
static void json_wire(const ts_plan_report *r)
{
    bool first_axis = true;
    printf("\"wire_bytes\": {");
    for (size_t i = 0; i < r->n_wire; i++) {
        size_t before = 0;
        while (before < i && strcmp(r->wire[before].axis, r->wire[i].axis) != 0) before++;
        if (before < i) continue;
        printf("%s\"%s\": {", first_axis ? "" : ", ", r->wire[i].axis);
        first_axis = false;
        for (size_t k = i, n = 0; k < r->n_wire; k++)
            if (strcmp(r->wire[k].axis, r->wire[i].axis) == 0)
                printf("%s\"%s\": %.0f", n++ ? ", " : "", r->wire[k].kind, r->wire[k].bytes);
        printf("}");
    }
    printf("}, ");
}

static void print_json(const ts_plan_report *r)
{
    printf("{");
    cli_json_member("topology", r->devices_name);
    printf(", \"devices\": %d, ", r->devices);
    cli_json_member("mesh", r->mesh);
    printf(", \"parameters\": %lld, ", (long long)r->parameters);
    json_memory(r);
    json_policies(r);
    json_wire(r);
    printf("\"flops\": %.17g, \"model_flops\": %.17g, \"memory_bytes\": %.17g, ", r->flops,
           r->model_flops, r->memory_bytes);
    printf("\"bound_seconds\": {\"compute\": %.6g, \"memory\": %.6g, \"wire\": %.6g}, ",
           r->compute_seconds, r->memory_seconds, r->wire_seconds);
    cli_json_member("bound", r->bound);
    printf(", \"mfu_bound\": %.4f, \"checkpoint_bytes\": %lld, \"host_bytes_at_save\": %lld, "
           "\"fits\": %s, \"advice\": [",
           r->mfu, (long long)r->checkpoint_bytes, (long long)r->host_bytes_at_save,
           r->fits ? "true" : "false");
    for (size_t i = 0; i < r->n_advice; i++) {
        printf(i ? ", {" : "{");
        cli_json_member("keys", r->advice[i].keys);
        printf(", \"peak\": %lld}", (long long)r->advice[i].peak);
    }
    printf("]}\n");
}

/* ---- for people ------------------------------------------------------------------------------ */

/* "8.66 GiB", "203 MiB" */
static const char *size_text(double bytes, char buf[32])
{
    if (bytes >= (double)(1 << 30))
        snprintf(buf, 32, "%.2f GiB", bytes / (1 << 30));
    else if (bytes >= (double)(1 << 20))
        snprintf(buf, 32, "%.1f MiB", bytes / (1 << 20));
    else
        snprintf(buf, 32, "%.1f KiB", bytes / (1 << 10));
    return buf;
}

/* "69.52 ms", "195 s" */
static const char *time_text(double seconds, char buf[32])
{
    if (seconds < 1)
        snprintf(buf, 32, "%.2f ms", 1e3 * seconds);
    else
        snprintf(buf, 32, seconds < 1e3 ? "%.2f s" : "%.0f s", seconds);
    return buf;
}

static void print_memory(const ts_plan_report *r)
{
    const ts_plan_memory *m = &r->per_device;
    const struct {
        const char *name;
        int64_t bytes;
    } row[] = {{"parameters", m->parameters}, {"moments", m->moments},
               {"gradients", m->gradients},   {"activations", m->activations},
               {"temporary", m->temporary},   {"peak", m->peak}};
    char text[32];
    printf("memory of a device, remat_policy=%s, at the step's worst moment:\n", r->remat);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        printf("  %-12s %12s\n", row[i].name, size_text((double)row[i].bytes, text));
    if (r->process)
        printf("  %-12s %12s  (all devices)\n", "process", size_text((double)r->process, text));
    if (r->capacity)
        printf("  %-12s %12s%s\n", "capacity", size_text((double)r->capacity, text),
               r->process ? "  (all devices)" : "");
}

static void print_policies(const ts_plan_report *r)
{
    char a[32], b[32];
    printf("by remat_policy:\n  %-12s %12s %12s\n", "", "activations",
           r->process ? "process" : "peak");
    for (int i = 0; i < TS_PLAN_REMATS; i++) {
        const ts_plan_policy *p = &r->policy[i];
        printf("  %-12s %12s %12s  %s\n", p->name, size_text((double)p->activations, a),
               size_text((double)p->peak, b), p->fits ? "fits" : "does not fit");
    }
}

static void print_wire(const ts_plan_report *r)
{
    char text[32], time[32];
    if (!r->n_wire) return;
    printf("on the wire, sent by a device in a step:\n");
    for (size_t i = 0; i < r->n_wire; i++)
        printf("  %-12s %-20s %8lld × %12s %12s\n", r->wire[i].axis, r->wire[i].kind,
               (long long)r->wire[i].count, size_text(r->wire[i].bytes, text),
               time_text(r->wire[i].seconds, time));
}

static void print_times(const ts_plan_report *r)
{
    char text[32], time[32];
    printf("a step takes at least, of a device:\n  %-12s %12s  %.4g TFLOP in products, "
           "%.4g without what is computed again\n",
           "compute", time_text(r->compute_seconds, time), r->flops / 1e12, r->model_flops / 1e12);
    printf("  %-12s %12s  %s through device memory\n", "memory", time_text(r->memory_seconds, time),
           size_text(r->memory_bytes, text));
    if (r->n_wire) printf("  %-12s %12s\n", "wire", time_text(r->wire_seconds, time));
    printf("  bound by %s; model FLOP utilisation at most %.1f %%\n", r->bound, 100 * r->mfu);
}

static void print_verdict(FILE *f, const ts_plan_report *r)
{
    char a[32], b[32];
    double need = (double)(r->process ? r->process : r->per_device.peak);
    if (!r->capacity) return;
    fprintf(f, "%s: %s of %s%s\n", r->fits ? "fits" : "does not fit", size_text(need, a),
            size_text((double)r->capacity, b), r->process ? " in this machine" : " a device");
    if (r->fits) return;
    if (!r->n_advice)
        fprintf(f, "nothing near to it fits: other policies, fewer rows, other meshes and more "
                   "devices were planned\n");
    for (size_t i = 0; i < r->n_advice; i++)
        fprintf(f, "  fits with %s  (%s)\n", r->advice[i].keys,
                size_text((double)r->advice[i].peak, a));
}

static void print_report(const ts_plan_report *r)
{
    char a[32], b[32];
    printf("%s: %d device%s, mesh %s; %lld rows of %lld tokens a step\n", r->devices_name,
           r->devices, r->devices == 1 ? "" : "s", r->mesh, (long long)r->rows,
           (long long)r->sequence);
    printf("parameters: %.3f billion, of them trained %.3f billion\n", (double)r->parameters / 1e9,
           (double)r->trained / 1e9);
    print_memory(r);
    print_policies(r);
    print_wire(r);
    print_times(r);
    printf("a checkpoint has %s; saving it takes %s of host memory%s\n",
           size_text((double)r->checkpoint_bytes, a), size_text((double)r->host_bytes_at_save, b),
           strcmp(r->device_kind, "cpu") == 0 ? "" : " a device");
    print_verdict(stdout, r);
}

/* ---- running --------------------------------------------------------------------------------- */

static int plan(const char **words, int n, const char *devices, bool json)
{
    static ts_plan_report report;
    ts_error err = {0};
    if (ts_plan(words, n, devices, &report, &err) != TS_OK) return cli_fail("plan", &err);
    if (json) {
        print_json(&report);
        if (!report.fits) print_verdict(stderr, &report);
    } else {
        print_report(&report);
    }
    return report.fits ? 0 : 1;
}

int cli_plan(int argc, char **argv)
{
    bool json = false, quiet = false;
    const char *devices = NULL;
    const cli_option options[] = {
        {"--json", NULL, &json}, {"--quiet", NULL, &quiet}, {"--devices", &devices, NULL}};
    const char **words = calloc((size_t)argc + 1, sizeof *words);
    int n, code = 2;
    if (words && cli_options(&cli_plan_command, argc, argv, options, 3, words, &n))
        code = plan(words, n, devices, json);
    free(words);
    return code;
}
