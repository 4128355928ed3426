/* cli/generate.c – tessera generate: text, or ids, from a model or checkpoint.
 *
 * Text is shown as it comes, a character only when all of its bytes are there. The prompt is printed in
 * front of it. With --print-ids and --json nothing is shown before the end.
 * Not here: sampling (train/sampler.c), conversation templates.
 */
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: tessera generate --model PATH (--prompt TEXT | --ids 1,2,3) [options] [key=value …]\n\n"
    "  --model        a Hugging Face folder, a checkpoint (RUN/checkpoints/STEP) or a run's folder\n"
    "  --prompt       text, by the model's tokenizer\n"
    "  --ids          token ids instead of text\n"
    "  --max-new N    tokens to add (128)\n"
    "  --temperature T  0 = the most likely token (default)\n"
    "  --top-p P      sample from the likeliest tokens that make up P (1)\n"
    "  --seed S       of the samples (0)\n"
    "  --print-ids    prompt and new ids, comma-separated, instead of text\n"
    "  --no-stop      go on after the end token\n"
    "  --json         {\"prompt_ids\", \"ids\", \"text\"}\n"
    "  key=value      engine, plugin, threads, dtype (float32 here unless set); a mesh (cpu_devices,\n"
    "                 ici_*_parallelism)\n\n"
    "example:\n  tessera generate --model maxtext_output/first --prompt 'It was ' --max-new 200 --temperature 0.8\n\n"
    "exit codes: 0 done, 1 failed, 2 usage or configuration, 3 unusable file, 4 no device or plugin\n";

const cli_command cli_generate_command = {"generate", "writes text with a model", help,
                                          cli_generate};

typedef struct request {
    const char *model, *prompt, *ids;
    bool print_ids, json;
    ts_generate_options o;
    ts_generator *g;
    int32_t *new_id;     /* [max_new] */
    size_t n_new, shown; /* shown: bytes of the new text already printed */
    bool prompt_shown, undecodable;
} request;

/* "1,2,3" */
static bool parse_ids(const char *text, int32_t **ids, size_t *n)
{
    *n = 0;
    *ids = malloc((strlen(text) + 1) * sizeof **ids);
    const char *at = text;
    while (*ids && *at) {
        char *end;
        errno = 0;
        long v = strtol(at, &end, 10);
        if (end == at || errno || v < 0 || v > INT32_MAX || (*end && *end != ',') ||
            (*end == ',' && !end[1]))
            break;
        (*ids)[(*n)++] = (int32_t)v;
        at = *end ? end + 1 : end;
    }
    if (*ids && *n && !*at) return true;
    cli_usage(&cli_generate_command,
              "--ids %s: expected token ids separated by commas, such as 1,15,7", text);
    free(*ids);
    return false;
}

/* The prompt stands in front of the text, once there is some: an error comes alone. */
static void show_prompt(request *r)
{
    if (r->prompt && !r->prompt_shown) fputs(r->prompt, stdout);
    r->prompt_shown = true;
}

static void show_text(request *r, bool last)
{
    ts_error err = {0};
    char *text;
    size_t n;
    show_prompt(r);
    if (ts_generator_decode(r->g, r->new_id, r->n_new, &text, &n, &err) == TS_OK) {
        size_t upto = last ? n : ts_utf8_complete(text, n);
        if (upto > r->shown) fwrite(text + r->shown, 1, upto - r->shown, stdout);
        r->shown = upto > r->shown ? upto : r->shown;
        ts_generator_release(text);
    } else if (!r->undecodable) {
        r->undecodable = true;
        fprintf(stderr, "tessera generate: warning: the text cannot be shown: %s\n", err.msg);
    }
    (void)cli_flush();
}

static bool on_token(void *context, int32_t id)
{
    request *r = context;
    r->new_id[r->n_new++] = id;
    if (!r->print_ids && !r->json) show_text(r, false);
    return !ferror(stdout);
}

static void print_ids(const int32_t *ids, size_t n, const char *between)
{
    for (size_t i = 0; i < n; i++) printf("%s%d", i ? between : "", ids[i]);
}

static void print_json(request *r, const int32_t *prompt, size_t n)
{
    ts_error err = {0};
    char *text = NULL;
    size_t bytes;
    printf("{\"prompt_ids\": [");
    print_ids(prompt, n, ", ");
    printf("], \"ids\": [");
    print_ids(r->new_id, r->n_new, ", ");
    printf("], \"text\": ");
    ts_status status = ts_generator_has_tokenizer(r->g)
                           ? ts_generator_decode(r->g, r->new_id, r->n_new, &text, &bytes, &err)
                           : TS_FAILED_PRECONDITION;
    if (status == TS_OK)
        cli_json_string(text, bytes);
    else
        printf("null");
    if (err.code != TS_OK)
        fprintf(stderr, "tessera generate: warning: the text cannot be shown: %s\n", err.msg);
    printf("}\n");
    ts_generator_release(text);
}

static int generate(request *r, const int32_t *prompt, size_t n)
{
    ts_error err = {0};
    r->new_id = malloc(((size_t)r->o.max_new + 1) * sizeof *r->new_id);
    if (!r->new_id)
        return cli_usage(&cli_generate_command, "memory is out for %lld tokens",
                         (long long)r->o.max_new);
    bool text = !r->print_ids && !r->json;
    r->o.text_only = text || r->prompt;
    ts_status status = ts_generate(r->g, prompt, n, &r->o, on_token, r, &err);
    if (text && (status == TS_OK || r->n_new)) {
        show_text(r, true);
        putchar('\n');
    }
    if (status == TS_OK && r->json) print_json(r, prompt, n);
    if (status == TS_OK && r->print_ids && !r->json) {
        print_ids(prompt, n, ",");
        if (n && r->n_new) putchar(',');
        print_ids(r->new_id, r->n_new, ",");
        putchar('\n');
    }
    free(r->new_id);
    return status == TS_OK ? 0 : cli_fail("generate", &err);
}

static int open_and_generate(request *r, const char **words, int n_words)
{
    ts_error err = {0};
    ts_config *c = NULL;
    int32_t *ids = NULL;
    size_t n;
    bool dtype = getenv("M_DTYPE") != NULL;
    for (int i = 0; i < n_words; i++) dtype |= strncmp(words[i], "dtype=", 6) == 0;
    if (!dtype) words[n_words++] = "dtype=float32";
    if (r->ids && !parse_ids(r->ids, &ids, &n)) return 2;
    ts_status status = ts_config_load_words(words, n_words, &c, &err);
    if (status == TS_OK) status = ts_generator_open(c, r->model, &r->g, &err);
    if (status == TS_OK && !r->ids) status = ts_generator_encode(r->g, r->prompt, &ids, &n, &err);
    if (status == TS_OK && r->ids && !ts_generator_has_tokenizer(r->g)) r->print_ids = true;
    int code = status == TS_OK ? generate(r, ids, n) : cli_fail("generate", &err);
    if (r->ids)
        free(ids);
    else
        ts_generator_release(ids);
    ts_generator_free(r->g);
    ts_config_free(c);
    return code;
}

int cli_generate(int argc, char **argv)
{
    request r = {0};
    const char *max_new = "128", *temperature = "0", *top_p = "1", *seed = "0";
    bool no_stop = false, quiet = false;
    long long count, seed_value;
    ts_generate_options_default(&r.o);
    const cli_option options[] = {{"--model", &r.model, NULL},
                                  {"--prompt", &r.prompt, NULL},
                                  {"--ids", &r.ids, NULL},
                                  {"--max-new", &max_new, NULL},
                                  {"--temperature", &temperature, NULL},
                                  {"--top-p", &top_p, NULL},
                                  {"--seed", &seed, NULL},
                                  {"--print-ids", NULL, &r.print_ids},
                                  {"--no-stop", NULL, &no_stop},
                                  {"--json", NULL, &r.json},
                                  {"--quiet", NULL, &quiet}};
    const char **words = calloc((size_t)argc + 2, sizeof *words);
    const cli_command *me = &cli_generate_command;
    int n, code = 2;
    if (words &&
        cli_options(me, argc, argv, options, sizeof options / sizeof *options, words, &n)) {
        if (!r.model)
            cli_usage(me, "--model PATH is missing");
        else if (!r.prompt == !r.ids)
            cli_usage(me, "give either --prompt TEXT or --ids 1,2,3");
        else if (cli_int(me, "--max-new", max_new, 0, 1 << 24, &count) &&
                 cli_int(me, "--seed", seed, 0, INT64_MAX, &seed_value) &&
                 cli_real(me, "--temperature", temperature, 0, 100, &r.o.temperature) &&
                 cli_real(me, "--top-p", top_p, 0, 1, &r.o.top_p)) {
            r.o.max_new = count;
            r.o.seed = (uint64_t)seed_value;
            r.o.stop_at_eos = !no_stop;
            code = open_and_generate(&r, words, n);
        }
    }
    free(words);
    return code;
}
