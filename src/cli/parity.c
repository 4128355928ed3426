/* cli/parity.c – tessera parity: a model against reference outputs, as a table or JSON.
 *
 * A comparison is in f32 unless dtype is set, whatever the configuration's default. Rows that are only
 * reported have no bound and cannot fail; one row beyond its bound makes the exit code 1.
 * Not here: the comparison itself and its bounds (train/parity.c).
 */
#include "cli/cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: tessera parity MODEL_DIR --golden FILE [key=value …] [--json] [--quiet]\n\n"
    "  MODEL_DIR    a Hugging Face folder, a checkpoint or a run\n"
    "  --golden     safetensors with input_ids, labels, logits, loss, hidden.*, grad.* and, for three\n"
    "               AdamW steps, step_loss, step_grad_norm, param.*\n"
    "  key=value    dtype (float32 here unless set), engine, plugin, threads, remat_policy,\n"
    "               scan_layers, frozen_parameters; a mesh (cpu_devices, ici_*_parallelism), whose\n"
    "               data × fsdp must divide the reference's rows\n"
    "  --json       {\"ok\", \"tensors\": [{\"name\", \"max_abs\", \"max_rel\", \"bound\", \"ok\"}]}\n"
    "  --quiet      only what fails\n\n"
    "example:\n  tessera parity tiny-llama3 --golden tiny-llama3/golden.safetensors\n\n"
    "exit codes: 0 within all bounds, 1 not, 2 usage, 3 unusable file, 4 no device or plugin\n";

const cli_command cli_parity_command = {"parity", "compares a model with reference outputs", help,
                                        cli_parity};

static void print_json(const ts_parity_report *r)
{
    printf("{\"ok\": %s, \"tensors\": [", r->ok ? "true" : "false");
    for (size_t i = 0; i < r->n; i++) {
        const ts_parity_row *t = &r->row[i];
        printf(i ? ",\n{\"name\": " : "\n{\"name\": ");
        cli_json_string(t->name, strlen(t->name));
        if (isfinite(t->max_abs))
            printf(", \"max_abs\": %.6g, \"max_rel\": %.6g, ", t->max_abs, t->max_rel);
        else
            printf(", \"max_abs\": null, \"max_rel\": null, ");
        if (t->gated)
            printf("\"bound\": %.6g, ", t->bound);
        else
            printf("\"bound\": null, ");
        printf("\"ok\": %s}", t->ok ? "true" : "false");
    }
    printf("\n]}\n");
}

static void print_table(const ts_parity_report *r, bool quiet)
{
    size_t failed = 0;
    if (!quiet) printf("%-56s %10s %10s %10s\n", "tensor", "max abs", "max rel", "bound");
    for (size_t i = 0; i < r->n; i++) {
        const ts_parity_row *t = &r->row[i];
        failed += !t->ok;
        if (quiet && t->ok) continue;
        printf("%-56s %10.2e %10.2e ", t->name, t->max_abs, t->max_rel);
        if (t->gated)
            printf("%10.2e  %s\n", t->bound, t->ok ? "ok" : "FAILED");
        else
            printf("%10s  reported\n", "–");
    }
    printf("parity: %zu tensors, %zu beyond their bound\n", r->n, failed);
}

static bool sets_dtype(const char *const *words, int n)
{
    for (int i = 0; i < n; i++)
        if (strncmp(words[i], "dtype=", 6) == 0) return true;
    return getenv("M_DTYPE") != NULL;
}

/* words[0] is the model; room for one more word. */
static int compare(const char **words, int n, const char *golden, bool json, bool quiet)
{
    const char *model = words[0];
    ts_config *c = NULL;
    ts_error err = {0};
    ts_parity_report report;
    words[0] = "base.yml";
    if (!sets_dtype(words, n)) words[n++] = "dtype=float32";
    ts_status status = ts_config_load_words(words, n, &c, &err);
    if (status == TS_OK) status = ts_parity(c, model, golden, &report, &err);
    ts_config_free(c);
    if (status != TS_OK) return cli_fail("parity", &err);
    if (json)
        print_json(&report);
    else
        print_table(&report, quiet);
    int code = report.ok ? 0 : 1;
    ts_parity_report_free(&report);
    return code;
}

int cli_parity(int argc, char **argv)
{
    const char *golden = NULL;
    bool json = false, quiet = false;
    const cli_option options[] = {
        {"--golden", &golden, NULL}, {"--json", NULL, &json}, {"--quiet", NULL, &quiet}};
    const char **words = calloc((size_t)argc + 2, sizeof *words);
    int n, code = 2;
    if (words && cli_options(&cli_parity_command, argc, argv, options, 3, words, &n)) {
        if (n < 1 || strchr(words[0], '='))
            cli_usage(&cli_parity_command, "the model's folder is missing");
        else if (!golden)
            cli_usage(&cli_parity_command, "--golden FILE is missing");
        else
            code = compare(words, n, golden, json, quiet);
    }
    free(words);
    return code;
}
