/* cli/collectives.c – tessera collectives: the slice check as lines or JSON.
 *
 * How fast the collectives are, a line a rank, and one sentence at the end that says they all agree: scripts wait for
 * that sentence. Where some do not, it does not come; they are named on standard error and the exit code is 1.
 * Not here: the check (train/slice_check.c) and the clock (train/slice_time.c).
 */
#include "cli/cli.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: tessera collectives [CONFIG.yml] [key=value …] [--golden FILE] [--no-timing] [--json]\n"
    "       [--quiet]\n\n"
    "  Are these devices one slice? A feed-forward x + w2(silu(w1(x))), w1 split by columns and w2 by\n"
    "  rows over all of them, against a reference of the host (rtol 1e-3, atol 1e-2), and an all_reduce\n"
    "  of rank + 1, both on every rank; then latency and bandwidth of each axis of the mesh.\n\n"
    "  key=value    engine, plugin, cpu_devices, ici_data_parallelism, ici_fsdp_parallelism,\n"
    "               ici_tensor_parallelism, matmul_precision, threads\n"
    "  --golden     safetensors with w1 [512,128], w2 [128,512], x and y [64,128]; without it own\n"
    "               weights\n"
    "  --no-timing  the check alone\n"
    "  --json       {\"ok\", \"engine\", \"devices\", \"max_abs_diff\", \"sum\", \"one_clock\",\n"
    "               \"product\", \"axes\": [{\"name\", \"size\", \"slow\"}],\n"
    "               \"ranks\": [{\"rank\", \"device\", \"host\", \"coordinates\", \"max_abs_diff\", \"sum\",\n"
    "               \"seconds\", \"slow\", \"ok\", \"problem\"}],\n"
    "               \"timings\": [{\"axis\", \"kind\", \"devices\", \"bytes\", \"seconds\",\n"
    "               \"best_seconds\", \"algorithm_bytes_per_s\", \"bus_bytes_per_s\"}]}; the last two are\n"
    "               null for a small message, a rank's seconds where it has none of its own\n"
    "  --quiet      only the sentence, or what disagrees\n\n"
    "example:\n  tessera collectives cpu_devices=16 ici_fsdp_parallelism=4 ici_tensor_parallelism=4\n\n"
    "exit codes: 0 all ranks agree, 1 some do not, 2 usage, 3 unusable file, 4 no device or plugin\n";

const cli_command cli_collectives_command = {"collectives", "checks that devices are one slice",
                                             help, cli_collectives};

/* ---- JSON ------------------------------------------------------------------------------------ */

static void json_number(const char *before, double v)
{
    if (isfinite(v))
        printf("%s%.9g", before, v);
    else
        printf("%snull", before);
}

static void json_text(const char *before, const char *text)
{
    fputs(before, stdout);
    cli_json_string(text, strlen(text));
}

static void json_rank(const ts_slice_report *r, const ts_slice_rank *k)
{
    printf("{\"rank\": %d, \"device\": %d", k->rank, k->device);
    json_text(", \"host\": ", k->host);
    printf(", \"coordinates\": [");
    for (int a = 0; a < r->axes; a++) printf("%s%" PRId64, a ? ", " : "", k->coordinate[a]);
    json_number("], \"max_abs_diff\": ", k->max_abs_diff);
    json_number(", \"sum\": ", k->sum);
    json_number(", \"seconds\": ", k->seconds > 0 ? k->seconds : NAN);
    printf(", \"slow\": %s, \"ok\": %s", k->slow ? "true" : "false",
           *k->problem ? "false" : "true");
    json_text(", \"problem\": ", k->problem);
    putchar('}');
}

static void json_timing(const ts_slice_timing *t)
{
    json_text("{\"axis\": ", t->axis);
    json_text(", \"kind\": ", t->kind);
    printf(", \"devices\": %" PRId64 ", \"bytes\": %" PRId64, t->devices, t->bytes);
    json_number(", \"seconds\": ", t->seconds);
    json_number(", \"best_seconds\": ", t->best);
    json_number(", \"algorithm_bytes_per_s\": ", t->small ? NAN : t->algorithm);
    json_number(", \"bus_bytes_per_s\": ", t->small ? NAN : t->bus);
    putchar('}');
}

static void print_json(const ts_slice_report *r)
{
    printf("{\"ok\": %s", r->disagree ? "false" : "true");
    json_text(", \"engine\": ", r->engine);
    printf(", \"devices\": %d", r->devices);
    json_number(", \"max_abs_diff\": ", r->max_abs_diff);
    json_number(", \"sum\": ", r->sum);
    printf(", \"one_clock\": %s, \"product\": %" PRId64 ", \"axes\": [",
           r->one_clock ? "true" : "false", r->product);
    for (int a = 0; a < r->axes; a++) {
        json_text(a ? ", {\"name\": " : "{\"name\": ", r->axis[a].name);
        printf(", \"size\": %" PRId64 ", \"slow\": %s}", r->axis[a].size,
               r->axis[a].slow ? "true" : "false");
    }
    printf("],\n\"ranks\": [");
    for (int d = 0; d < r->devices; d++) {
        fputs(d ? ",\n" : "\n", stdout);
        json_rank(r, &r->rank[d]);
    }
    printf("],\n\"timings\": [");
    for (size_t i = 0; i < r->n_timing; i++) {
        fputs(i ? ",\n" : "\n", stdout);
        json_timing(&r->timing[i]);
    }
    printf("]}\n");
}

static const char *host_of(const ts_slice_rank *k)
{
    return *k->host ? k->host : "?";
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* One line an axis and collective: the latency, and the largest message's bandwidth. */
static void print_timings(const ts_slice_report *r)
{
    if (!r->n_timing) return;
    printf("%-12s %-15s %11s %10s %12s %9s\n", "axis", "collective", "latency µs", "MB", "GB/s",
           "bus GB/s");
    for (size_t i = 0; i < r->n_timing; i++) {
        const ts_slice_timing *t = &r->timing[i], *large = t;
        char axis[40];
        if (!t->small) continue;
        while (large + 1 < r->timing + r->n_timing && !large[1].small) large++;
        snprintf(axis, sizeof axis, "%s×%" PRId64, t->axis, t->devices);
        printf("%-13s %-15s %10.2f %10.2f %12.3f %9.3f\n", axis, t->kind, t->seconds * 1e6,
               (double)large->bytes / 1e6, large->algorithm / 1e9, large->bus / 1e9);
    }
    for (int a = 0; a < r->axes; a++)
        if (r->axis[a].slow)
            printf("axis %s is slow: at its best a byte takes more than twice the time of the median axis\n",
                   r->axis[a].name);
    if (r->one_clock)
        printf("virtual devices run in lockstep on one clock: these are copies in this machine's memory, and "
               "no rank has a time of its own\n");
}

/* The spread of the ranks' own times, and those that stand out. */
static void print_stragglers(const ts_slice_report *r)
{
    const ts_slice_rank *fast = r->rank, *slow = r->rank;
    if (!r->product) return;
    for (int d = 1; d < r->devices; d++) {
        if (r->rank[d].seconds < fast->seconds) fast = &r->rank[d];
        if (r->rank[d].seconds > slow->seconds) slow = &r->rank[d];
    }
    printf("products of %" PRId64 " × %" PRId64 " on each rank alone: %.3f ms on rank %d … %.3f ms on rank %d\n",
           r->product, r->product, fast->seconds * 1e3, fast->rank, slow->seconds * 1e3, slow->rank);
    for (int d = 0; d < r->devices; d++)
        if (r->rank[d].slow)
            printf("rank %d (device %d, host %s) is slow: more than 1.5 times the median rank\n", d,
                   r->rank[d].device, host_of(&r->rank[d]));
}

static void print_rank(FILE *f, const ts_slice_report *r, const ts_slice_rank *k)
{
    fprintf(f, "rank %d: device %d, host %s", k->rank, k->device, host_of(k));
    for (int a = 0; a < r->axes; a++)
        fprintf(f, "%s%s %" PRId64, a ? " " : ", ", r->axis[a].name, k->coordinate[a]);
    fprintf(f, ", max_abs_diff=%.6f, sum=%.1f\n", k->max_abs_diff, k->sum);
}

static void print_disagreement(const ts_slice_report *r)
{
    enum { MOST = 32 };
    int shown = 0;
    fprintf(stderr, "tessera collectives: %d of %d ranks disagree%s\n", r->disagree, r->devices,
            r->disagree == 1 ? "s" : "");
    for (int d = 0; d < r->devices && shown < MOST; d++) {
        const ts_slice_rank *k = &r->rank[d];
        if (!*k->problem) continue;
        fprintf(stderr, "  rank %d (device %d, host %s): %s\n", k->rank, k->device,
                host_of(k), k->problem);
        shown++;
    }
    if (r->disagree > shown) fprintf(stderr, "  and %d more\n", r->disagree - shown);
}

static void print_lines(const ts_slice_report *r, bool quiet)
{
    if (!quiet) {
        printf("engine %s\n", r->engine);
        print_timings(r);
        print_stragglers(r);
        for (int d = 0; d < r->devices; d++) print_rank(stdout, r, &r->rank[d]);
    }
    if (!r->disagree)
        printf("All %d tessera ranks verified TP parity (max_abs_diff=%.6f) and all_reduce sum = %.1f\n",
               r->devices, r->max_abs_diff, r->sum);
}

/* ---- running --------------------------------------------------------------------------------- */

static int check(const char **words, int n, const ts_slice_options *o, bool json, bool quiet)
{
    ts_config *c = NULL;
    ts_error err = {0};
    ts_slice_report report;
    if (ts_config_load_words(words, n, &c, &err) != TS_OK) return cli_fail("collectives", &err);
    ts_status status = ts_slice_check(c, o, &report, &err);
    ts_config_free(c);
    if (status != TS_OK) return cli_fail("collectives", &err);
    if (json)
        print_json(&report);
    else
        print_lines(&report, quiet);
    (void)cli_flush();
    if (report.disagree) print_disagreement(&report);
    int code = report.disagree ? 1 : 0;
    ts_slice_report_free(&report);
    return code;
}

int cli_collectives(int argc, char **argv)
{
    bool json = false, quiet = false, no_timing = false;
    ts_slice_options o;
    ts_slice_options_default(&o);
    const cli_option options[] = {{"--golden", &o.golden, NULL},
                                  {"--no-timing", NULL, &no_timing},
                                  {"--json", NULL, &json},
                                  {"--quiet", NULL, &quiet}};
    const char **words = calloc((size_t)argc + 1, sizeof *words);
    int n, code = 2;
    if (words && cli_options(&cli_collectives_command, argc, argv, options,
                             sizeof options / sizeof *options, words, &n)) {
        o.timing = !no_timing;
        code = check(words, n, &o, json, quiet);
    }
    free(words);
    return code;
}
