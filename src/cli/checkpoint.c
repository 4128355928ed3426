/* cli/checkpoint.c – tessera checkpoint: looks after the checkpoints of runs; here its words, and
 * verify.
 *
 * Every action works beside a run that is writing. Nothing but rm changes anything.
 * Not here: the other actions (checkpoint_ls.c, checkpoint_diff.c, checkpoint_rm.c).
 */
#include "cli/checkpoint.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: tessera checkpoint ls     RUN_OR_STEP … [--verify]\n"
    "       tessera checkpoint verify RUN_OR_STEP …\n"
    "       tessera checkpoint diff   A B [--tensors]\n"
    "       tessera checkpoint rm     STEP … [--force]\n"
    "       tessera checkpoint rm     RUN (--step N … | --keep N | --leftovers) [--force]\n\n"
    "RUN_OR_STEP is a run's folder, its checkpoints/ folder, or the folder of one\n"
    "checkpoint, also a copied one of any name. A run may be training meanwhile.\n\n"
    "  ls           a row a checkpoint: when, how large, whole or not; which one a\n"
    "               resume takes. Reads manifests and lengths; --verify hashes all\n"
    "  verify       reads and hashes every file; exit 0: all are whole, 1: one is not\n"
    "  diff         compares by tensor name, whatever the meshes; B may be a Hugging\n"
    "               Face folder. exit 0: the same values, 1: they differ\n"
    "  rm           removes, and says what the disk got back. Asks nothing, but does\n"
    "               not remove the newest checkpoint of a run that verifies, nor files\n"
    "               that no save makes, nor what cannot be read\n\n"
    "  --tensors    diff: every tensor, not only the first that differ\n"
    "  --step N …   rm: these steps of RUN\n"
    "  --keep N     rm: all whole ones but the newest N\n"
    "  --leftovers  rm: what killed saves left behind\n"
    "  --dry-run    rm: only says what would be removed\n"
    "  --force      rm: removes those as well\n"
    "  --json       one JSON object (docs/checkpoints.md has its fields)\n"
    "  --quiet      ls: the table alone; verify, rm: only what is wrong; diff: nothing\n\n"
    "example:\n"
    "  tessera checkpoint ls runs/first\n"
    "  tessera checkpoint diff runs/first/checkpoints/100 runs/first/checkpoints/200\n"
    "  tessera checkpoint rm runs/first --keep 2\n\n"
    "exit codes: 0 done, 1 a checkpoint is not whole (verify), values differ (diff) or\n"
    "a removal failed (rm), 2 usage, a path that is not there, or a removal that was\n"
    "refused, 3 a damaged checkpoint (diff), 130 Ctrl-C, 143 SIGTERM\n";

const cli_command cli_checkpoint_command = {
    "checkpoint", "lists, verifies, compares and removes checkpoints", help, cli_checkpoint};

/* ---- verify ---------------------------------------------------------------------------------- */

enum { LISTINGS = 5 };

typedef struct verified {
    int told, checkpoints, bad; /* rows; of them none that is half of one; of those not whole */
    uint64_t bytes;             /* of the rows, on the disk; what was hashed is less: manifests hash themselves */
    checkpoint_progress progress;
} verified;

static uint64_t bytes_to_read(ts_survey *const *s, int n)
{
    uint64_t sum = 0;
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < s[i]->n; k++)
            if (s[i]->row[k].state == TS_SURVEY_WHOLE) sum += s[i]->row[k].bytes;
    return sum;
}

static void json_verified(const ts_survey_row *r, bool first)
{
    printf(first ? "\n{" : ",\n{");
    cli_json_member("path", r->path);
    if (r->step < 0)
        printf(", \"step\": null, ");
    else
        printf(", \"step\": %lld, ", (long long)r->step);
    cli_json_member("state", checkpoint_state(r));
    printf(", \"ok\": %s, \"problem\": ", r->verified ? "true" : "false");
    if (*r->problem)
        cli_json_string(r->problem, strlen(r->problem));
    else
        printf("null");
    printf(", \"bytes\": %llu}", (unsigned long long)r->bytes);
}

static void print_verified(const ts_survey_row *r, bool bad, bool quiet)
{
    char size[32];
    if (quiet && !bad) return;
    printf("%-13s  %10s  ", checkpoint_state(r), checkpoint_size(r->bytes, size));
    checkpoint_print(stdout, r->path);
    printf("\n");
    if (*r->problem) checkpoint_paragraph(stdout, 15, r->problem);
}

/* One row. What is being written or left over is no checkpoint, and none that failed. */
static ts_status verify_row(const checkpoint_options *o, ts_survey *s, size_t row, verified *v,
                            ts_error *err)
{
    const ts_survey_row *r = &s->row[row];
    ts_status status = ts_survey_verify(s, row, checkpoint_progress_add, &v->progress, err);
    if (status != TS_OK) return status;
    bool bad = r->state == TS_SURVEY_DAMAGED || r->state == TS_SURVEY_INCOMPLETE ||
               r->state == TS_SURVEY_UNREADABLE || (r->state != TS_SURVEY_WHOLE && s->is_step);
    if (r->state == TS_SURVEY_GONE && !bad) return TS_OK; /* a run removes its old ones */
    checkpoint_progress_clear(&v->progress);
    if (o->json)
        json_verified(r, v->told == 0);
    else
        print_verified(r, bad, o->quiet);
    (void)cli_flush();
    v->told++;
    v->bytes += r->bytes;
    v->checkpoints += bad || r->state == TS_SURVEY_WHOLE;
    v->bad += bad;
    return TS_OK;
}

static int report(const checkpoint_options *o, const verified *v)
{
    char size[32];
    double seconds = checkpoint_seconds() - v->progress.started;
    double rate = seconds > 0 ? (double)v->progress.done / 1e9 / seconds : 0;
    bool ok = v->checkpoints > 0 && v->bad == 0;
    if (o->json) {
        printf("\n], \"ok\": %s, \"bytes\": %llu, \"hashed_bytes\": %llu, \"seconds\": %.6f, "
               "\"gigabytes_per_second\": %.6f}\n",
               ok ? "true" : "false", (unsigned long long)v->bytes,
               (unsigned long long)v->progress.done, seconds, rate);
        return ok ? 0 : 1;
    }
    if (v->checkpoints == 0) {
        fprintf(stderr, "tessera checkpoint verify: there is no checkpoint to verify\n");
        return 1;
    }
    if (o->quiet) return ok ? 0 : 1;
    printf("%s hashed in %.2f s, %.2f GB/s; ", checkpoint_size(v->progress.done, size), seconds, rate);
    if (v->bad)
        printf("%d of %d %s not whole\n", v->bad, v->checkpoints, v->bad == 1 ? "is" : "are");
    else
        printf("all whole\n");
    if (v->bad && v->checkpoints > 1)
        printf("tessera checkpoint ls RUN --verify tells which one a resume takes\n");
    return ok ? 0 : 1;
}

static bool is_temporary(const ts_survey_row *r)
{
    return r->state == TS_SURVEY_WRITING || r->state == TS_SURVEY_LEFTOVER;
}

static ts_status verify_rows(const checkpoint_options *o, ts_survey *s, bool temporary, verified *v,
                             ts_error *err)
{
    ts_status status = TS_OK;
    for (size_t k = 0; k < s->n && status == TS_OK; k++)
        if (is_temporary(&s->row[k]) == temporary) status = verify_row(o, s, k, v, err);
    return status;
}

/* All rows of one word. Where every one was removed meanwhile, a fast run has others by now. */
static ts_status verify_word(const checkpoint_options *o, const char *word, ts_survey **s,
                             verified *v, ts_error *err)
{
    const int before = v->checkpoints;
    ts_status status = verify_rows(o, *s, false, v, err);
    for (int i = 0; i < LISTINGS && status == TS_OK && v->checkpoints == before && (*s)->n; i++) {
        ts_survey_free(*s);
        *s = NULL;
        status = ts_survey_open(word, s, err);
        if (status == TS_OK) status = verify_rows(o, *s, false, v, err);
    }
    return status == TS_OK ? verify_rows(o, *s, true, v, err) : status;
}

int checkpoint_verify(const checkpoint_options *o)
{
    ts_survey **s = calloc((size_t)o->n, sizeof(ts_survey *));
    verified v = {0};
    ts_error err = {0};
    ts_status status = s ? TS_OK : TS_RESOURCE_EXHAUSTED;
    cli_stop_on_signals();
    for (int i = 0; i < o->n && status == TS_OK; i++) status = ts_survey_open(o->word[i], &s[i], &err);
    if (status == TS_OK) checkpoint_progress_start(&v.progress, bytes_to_read(s, o->n), o->quiet);
    if (status == TS_OK && o->json) printf("{\"checkpoints\": [");
    for (int i = 0; i < o->n && status == TS_OK; i++)
        status = verify_word(o, o->word[i], &s[i], &v, &err);
    checkpoint_progress_clear(&v.progress);
    if (status != TS_OK && o->json && v.progress.started > 0)
        printf("\n], \"ok\": false, \"stopped\": true}\n");
    int code = status == TS_OK ? report(o, &v) : checkpoint_fail("verify", &err);
    for (int i = 0; s && i < o->n; i++) ts_survey_free(s[i]);
    free(s);
    return code;
}

/* ---- words ----------------------------------------------------------------------------------- */

/* "10" or "10,20". */
static bool take_steps(checkpoint_options *o, const char *text)
{
    const char *all = text;
    do {
        char *end;
        errno = 0;
        long long step = isdigit((unsigned char)*text) ? strtoll(text, &end, 10) : -1;
        if (step < 0 || errno || (*end && *end != ',')) {
            cli_usage(&cli_checkpoint_command, "--step %s: expected numbers of steps", all);
            return false;
        }
        if (o->n_step == CHECKPOINT_STEPS) {
            cli_usage(&cli_checkpoint_command, "--step: over %d steps", CHECKPOINT_STEPS);
            return false;
        }
        o->step[o->n_step++] = step;
        text = end + (*end == ',');
    } while (*text);
    return true;
}

/* --step may be given again and again, and numbers may follow it; the rest are other options and words. */
static bool take_step_options(checkpoint_options *o, int *argc, char **argv)
{
    int n = 0;
    for (int i = 0; i < *argc; i++) {
        bool joined = strncmp(argv[i], "--step=", 7) == 0;
        if (!joined && strcmp(argv[i], "--step") != 0) {
            argv[n++] = argv[i];
            continue;
        }
        if (!joined && i + 1 == *argc) {
            cli_usage(&cli_checkpoint_command, "option --step needs a value");
            return false;
        }
        if (!take_steps(o, joined ? argv[i] + 7 : argv[++i])) return false;
        while (i + 1 < *argc && isdigit((unsigned char)argv[i + 1][0]) &&
               !argv[i + 1][strspn(argv[i + 1], "0123456789,")])
            if (!take_steps(o, argv[++i])) return false;
    }
    *argc = n;
    return true;
}

static const struct action {
    const char *name;
    int (*run)(const checkpoint_options *o);
} actions[] = {
    {"ls", checkpoint_ls}, {"verify", checkpoint_verify}, {"diff", checkpoint_diff}, {"rm", checkpoint_rm}};
enum { ACTIONS = sizeof actions / sizeof *actions };

static int unknown_action(const char *word)
{
    const char *names[ACTIONS];
    for (int i = 0; i < ACTIONS; i++) names[i] = actions[i].name;
    const char *near = ts_nearest(word, names, ACTIONS);
    if (near)
        return cli_usage(&cli_checkpoint_command, "unknown action %s; did you mean %s?", word, near);
    return cli_usage(&cli_checkpoint_command, "unknown action %s; expected ls, verify, diff or rm",
                     word);
}

static int run(checkpoint_options *o)
{
    const cli_command *c = &cli_checkpoint_command;
    const struct action *a = NULL;
    if (o->n == 0) return cli_usage(c, "expected ls, verify, diff or rm");
    for (int i = 0; i < ACTIONS; i++)
        if (strcmp(o->word[0], actions[i].name) == 0) a = &actions[i];
    if (!a) return unknown_action(o->word[0]);
    o->word++;
    o->n--;
    bool rm = a->run == checkpoint_rm;
    if (!rm && (o->keep || o->n_step || o->leftovers || o->dry_run || o->force))
        return cli_usage(c, "--step, --keep, --leftovers, --dry-run and --force are for rm");
    if (o->tensors && a->run != checkpoint_diff) return cli_usage(c, "--tensors is for diff");
    if (o->verify && a->run != checkpoint_ls) return cli_usage(c, "--verify is for ls");
    if (o->n == 0) return cli_usage(c, "%s: expected the folder of a run or a checkpoint", a->name);
    if (a->run == checkpoint_diff && o->n != 2)
        return cli_usage(c, "diff takes two folders; found %d", o->n);
    return a->run(o);
}

int cli_checkpoint(int argc, char **argv)
{
    checkpoint_options o = {0};
    const cli_option options[] = {
        {"--json", NULL, &o.json},           {"--quiet", NULL, &o.quiet},
        {"--verify", NULL, &o.verify},       {"--tensors", NULL, &o.tensors},
        {"--dry-run", NULL, &o.dry_run},     {"--force", NULL, &o.force},
        {"--leftovers", NULL, &o.leftovers}, {"--keep", &o.keep, NULL},
        {"--step", NULL, NULL}}; /* the last one is for the suggestions: it was taken before */
    const char **words = calloc((size_t)argc + 1, sizeof *words);
    int code = 2;
    o.step = calloc(CHECKPOINT_STEPS, sizeof *o.step);
    if (words && o.step && take_step_options(&o, &argc, argv) &&
        cli_options(&cli_checkpoint_command, argc, argv, options, sizeof options / sizeof *options,
                    words, &o.n)) {
        o.word = words;
        code = run(&o);
    }
    free(o.step);
    free(words);
    return code;
}
