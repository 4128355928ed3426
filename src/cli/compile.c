/* cli/compile.c – tessera compile: the train step compiled for devices that are not there, and what it needs.
 *
 * The report is for one device: memory in GiB and bytes, work and traffic of a step, what became of the collectives.
 * A program that does not fit is a result too: its largest buffers by their names in the model, exit code 1.
 * Ctrl-C is held back until the child and its files are gone; it then ends the program as usual.
 * Not here: compiling (train/compile.c, xla/aot.c).
 */
#include "cli/cli.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: tessera compile CONFIG.yml [key=value …] compile_topology=NAME [--json] [--quiet]\n\n"
    "  compile_topology         v6e:4x4 or v6e-16, v5e:…, v5p:2x2x1 or v5p-8, tpu7x:2x2x2, cpu:1\n"
    "  compiled_trainstep_file  where the compiled step is written; `tessera train` loads it\n"
    "  compile_xla_flags        name=value, separated by blanks\n"
    "  xla_dump_to              folder that keeps XLA's programs, before and after\n"
    "  --json                   {\"topology\", \"devices\", \"per_device\": {\"argument_bytes\", …}, \"flops\",\n"
    "                           \"bytes_accessed\", \"collectives\": [{\"kind\", \"axis\", \"count\", \"bytes\",\n"
    "                           \"kept_as\", \"sync_bytes\", \"async_bytes\", \"overlapped_bytes\", …_count}],\n"
    "                           \"compile_seconds\", \"total_seconds\", \"host_peak_bytes\"}\n"
    "                           peak_bytes beyond capacity_bytes: it does not fit\n"
    "  --quiet                  no progress\n\n"
    "No device and no network is used; `tessera plugins install tpu` brings the compiler for TPUs.\n\n"
    "example:\n"
    "  tessera compile base.yml model_name=llama3.2-1b per_device_batch_size=1 max_target_length=4096 \\\n"
    "      compile_topology=v6e:1x1\n\n"
    "exit codes: 0 it fits, 1 it does not, 2 usage or configuration, 4 no plugin,\n"
    "5 timed out, 130 Ctrl-C, 143 SIGTERM\n";

const cli_command cli_compile_command = {"compile", "compiles for devices that are not there", help,
                                         cli_compile};

/* ---- JSON ------------------------------------------------------------------------------------ */

/* null for what nobody said: a program that does not fit is refused before its parts are known. */
static void json_bytes(const char *key, int64_t bytes, bool known)
{
    if (known)
        printf("\"%s\": %lld", key, (long long)bytes);
    else
        printf("\"%s\": null", key);
}

static void json_memory(const ts_aot_report *r)
{
    const struct {
        const char *key;
        int64_t bytes;
        bool known;
    } row[] = {{"argument_bytes", r->argument_bytes, r->fits},
               {"output_bytes", r->output_bytes, r->fits},
               {"alias_bytes", r->alias_bytes, r->fits},
               {"temp_bytes", r->temp_bytes, r->fits},
               {"peak_bytes", r->fits ? r->peak_bytes : r->needed_bytes, true},
               {"capacity_bytes", r->capacity_bytes, r->capacity_bytes > 0},
               {"code_bytes", r->code_bytes, r->fits}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        printf(i ? ", " : "{");
        json_bytes(row[i].key, row[i].bytes, row[i].known);
    }
    printf("}");
}

static void json_kept(const char *how, int64_t count, int64_t bytes)
{
    printf(", \"%s_count\": %lld, \"%s_bytes\": %lld", how, (long long)count, how, (long long)bytes);
}

static void print_json(const ts_aot_report *r)
{
    printf("{");
    cli_json_member("topology", r->topology);
    printf(", \"devices\": %d, \"per_device\": ", r->devices);
    json_memory(r);
    printf(", \"flops\": %.17g, \"bytes_accessed\": %.17g, \"collectives\": [", r->flops,
           r->bytes_accessed);
    for (size_t i = 0; i < r->n_collective; i++) {
        const ts_aot_collective *c = &r->collective[i];
        printf(i ? ", {" : "{");
        cli_json_member("kind", c->kind);
        printf(", ");
        cli_json_member("axis", c->axis);
        printf(", \"count\": %lld, \"bytes\": %lld, ", (long long)c->count, (long long)c->bytes);
        cli_json_member("kept_as", c->kept_as);
        json_kept("sync", c->sync_count, c->sync_bytes);
        json_kept("async", c->async_count, c->async_bytes);
        json_kept("overlapped", c->overlapped_count, c->overlapped_bytes);
        printf("}");
    }
    printf("], \"compile_seconds\": %.3f, \"total_seconds\": %.3f, \"host_peak_bytes\": %lld}\n",
           r->compile_seconds, r->total_seconds, (long long)r->host_peak_bytes);
}

/* ---- for people ------------------------------------------------------------------------------ */

static double gib(int64_t bytes)
{
    return (double)bytes / (1 << 30);
}

/* 14,831,321,088 */
static const char *grouped(int64_t v, char buf[32])
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%lld", (long long)v), k = 0;
    for (int i = 0; i < n; i++) {
        buf[k++] = digits[i];
        if (digits[i] != '-' && i + 1 < n && (n - i - 1) % 3 == 0) buf[k++] = ',';
    }
    buf[k] = '\0';
    return buf;
}

static void print_row(const char *name, int64_t bytes)
{
    char text[32];
    printf("  %-12s %10.3f GiB %20s\n", name, gib(bytes), grouped(bytes, text));
}

static void print_buffers(FILE *f, const ts_aot_report *r)
{
    if (r->n_buffer) fprintf(f, "the largest buffers at that moment:\n");
    for (size_t i = 0; i < r->n_buffer; i++)
        fprintf(f, "  %10.3f GiB  %s  %s\n", gib(r->buffer[i].bytes), r->buffer[i].name,
                r->buffer[i].shape);
}

static void print_verdict(FILE *f, const ts_aot_report *r)
{
    if (!r->fits) {
        fprintf(f, "does not fit: needs %.2f GiB, has %.2f GiB\n", gib(r->needed_bytes),
                gib(r->capacity_bytes));
        print_buffers(f, r);
    } else if (r->capacity_bytes) {
        fprintf(f, "fits: %.2f of %.2f GiB\n", gib(r->peak_bytes), gib(r->capacity_bytes));
    }
}

static void print_collectives(const ts_aot_report *r)
{
    if (!r->n_collective) {
        printf("collectives: none\n");
        return;
    }
    printf("collectives of a device and step, MB of operands:\n  %-20s %-12s %8s %12s %12s %12s %12s  %s\n", "",
           "axis", "count", "asked", "sync", "async", "overlapped", "in the optimized program");
    for (size_t i = 0; i < r->n_collective; i++) {
        const ts_aot_collective *c = &r->collective[i];
        printf("  %-20s %-12s %8lld %12.3f %12.3f %12.3f %12.3f  %s\n", c->kind, *c->axis ? c->axis : "–",
               (long long)c->count, (double)c->bytes / 1e6, (double)c->sync_bytes / 1e6,
               (double)c->async_bytes / 1e6, (double)c->overlapped_bytes / 1e6,
               *c->kept_as ? c->kept_as : "nothing");
    }
}

static void print_report(const ts_aot_report *r)
{
    printf("%s: %d × %s\n", r->topology, r->devices, r->device_kind);
    if (r->fits) {
        printf("memory of a device:\n");
        print_row("arguments", r->argument_bytes);
        print_row("outputs", r->output_bytes);
        print_row("aliased", r->alias_bytes);
        print_row("temporary", r->temp_bytes);
        print_row("code", r->code_bytes);
        print_row("peak", r->peak_bytes);
        if (r->capacity_bytes) print_row("capacity", r->capacity_bytes);
    }
    print_verdict(stdout, r);
    if (r->fits) {
        printf("work of a device and step: %.4g TFLOP in products, %.4g GB of memory traffic\n",
               r->flops / 1e12, r->bytes_accessed / 1e9);
        print_collectives(r);
    }
    printf("compiled in %.1f s (%.1f s in all), host memory %.2f GiB\n", r->compile_seconds,
           r->total_seconds, gib(r->host_peak_bytes));
    if (*r->file) printf("written: %s\n", r->file);
}

/* ---- running --------------------------------------------------------------------------------- */

static void hold_signals(sigset_t *before)
{
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGINT);
    sigaddset(&held, SIGTERM);
    sigaddset(&held, SIGHUP);
    sigprocmask(SIG_BLOCK, &held, before);
}

static int compile(const char **words, int n, bool json, bool quiet)
{
    ts_config *c = NULL;
    ts_error err = {0};
    ts_aot_report report;
    sigset_t before;
    if (ts_config_load_words(words, n, &c, &err) != TS_OK) return cli_fail("compile", &err);
    const char *topology = ts_config_compile_topology(c);
    if (*topology && !quiet) fprintf(stderr, "compiling for %s …\n", topology);
    hold_signals(&before);
    ts_status status = ts_aot_compile(c, &report, &err);
    ts_config_free(c);
    sigprocmask(SIG_SETMASK, &before, NULL); /* a signal that came meanwhile ends the program here */
    if (status != TS_OK) return cli_fail("compile", &err);
    if (json) {
        print_json(&report);
        if (!report.fits) print_verdict(stderr, &report);
    } else {
        print_report(&report);
    }
    int code = report.fits ? 0 : 1;
    ts_aot_report_free(&report);
    return code;
}

int cli_compile(int argc, char **argv)
{
    bool json = false, quiet = false;
    const cli_option options[] = {{"--json", NULL, &json}, {"--quiet", NULL, &quiet}};
    const char **words = calloc((size_t)argc + 1, sizeof *words);
    int n, code = 2;
    if (words && cli_options(&cli_compile_command, argc, argv, options, 2, words, &n))
        code = compile(words, n, json, quiet);
    free(words);
    return code;
}
