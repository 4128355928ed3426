/* cli/checkpoint_rm.c – tessera checkpoint rm: removes checkpoints, and what killed saves left.
 *
 * Everything that speaks against it is found before the first is removed: a path that is not there,
 * a step that is being written, files that no save makes, and the newest checkpoint of a run that
 * verifies, for which files are hashed. What cannot be read may be whole.
 * Not here: the removal (ckpt/survey_remove.c).
 */
#include "cli/checkpoint.h"

#include <stdlib.h>
#include <string.h>

typedef struct target {
    ts_survey *survey; /* borrows */
    size_t row;
} target;

typedef struct plan {
    const checkpoint_options *o;
    ts_survey **survey; /* [n] */
    int n;
    target *target; /* [n_target] */
    size_t n_target, max_target;
    bool refused; /* and the reasons were printed */
    checkpoint_progress progress;
} plan;

/* ---- refusing -------------------------------------------------------------------------------- */

/* "tessera checkpoint rm: PATH: why". */
static void refuse(plan *p, const char *path, const char *why, const char *what)
{
    fprintf(stderr, "tessera checkpoint rm: ");
    checkpoint_print(stderr, path);
    fprintf(stderr, ": %s", why);
    checkpoint_print(stderr, what);
    fprintf(stderr, "\n");
    p->refused = true;
}

static bool add_target(plan *p, ts_survey *s, size_t row)
{
    for (size_t i = 0; i < p->n_target; i++)
        if (p->target[i].survey == s && p->target[i].row == row) return true;
    if (p->n_target == p->max_target) {
        size_t more = p->max_target ? 2 * p->max_target : 64;
        target *grown = realloc(p->target, more * sizeof *grown);
        if (!grown) return false;
        p->target = grown;
        p->max_target = more;
    }
    p->target[p->n_target++] = (target){s, row};
    return true;
}

static void check_target(plan *p, const target *t)
{
    const ts_survey_row *r = &t->survey->row[t->row];
    if (r->state == TS_SURVEY_WRITING)
        refuse(p, r->path, *r->problem ? r->problem : "is being written by a process that lives", "");
    else if (r->state == TS_SURVEY_UNREADABLE && !p->o->force)
        refuse(p, r->path, "cannot be read, it may be whole, and --force would remove it too: ",
               r->problem);
    else if (*r->foreign && !p->o->force)
        refuse(p, r->path, "holds a file that no save makes, and --force would remove it too: ",
               r->foreign);
}

/* ---- choosing -------------------------------------------------------------------------------- */

static bool is_step_row(const ts_survey_row *r)
{
    return !strstr(strrchr(r->path, '/') + 1, ".tmp-"); /* a row lies in a folder */
}

static bool choose_steps(plan *p, ts_survey *s)
{
    for (size_t i = 0; i < p->o->n_step; i++) {
        bool found = false, fine = true;
        for (size_t k = 0; k < s->n; k++)
            if (is_step_row(&s->row[k]) && s->row[k].step == p->o->step[i]) {
                found = true;
                fine = add_target(p, s, k);
            }
        if (!fine) return false;
        char text[32];
        snprintf(text, sizeof text, "%lld", (long long)p->o->step[i]);
        if (!found) refuse(p, s->folder, "holds no checkpoint of step ", text);
    }
    return true;
}

/* All whole ones but the newest; damaged ones stay for people to look at. */
static bool choose_kept(plan *p, ts_survey *s, size_t keep, size_t resume)
{
    size_t kept = 0;
    for (size_t i = s->n; i-- > 0;) {
        if (s->row[i].state != TS_SURVEY_WHOLE) continue;
        if (kept < keep || i == resume)
            kept++;
        else if (!add_target(p, s, i))
            return false;
    }
    return true;
}

static void say_kept(const plan *p, const ts_survey_row *r)
{
    if (p->o->quiet) return;
    fprintf(stderr, "tessera checkpoint rm: ");
    checkpoint_print(stderr, r->path);
    fprintf(stderr, " stays: %s\n", r->problem);
}

/* Also folders without a manifest that a later checkpoint has left behind. */
static bool choose_leftovers(plan *p, ts_survey *s)
{
    bool later = false;
    for (size_t i = s->n; i-- > 0;) {
        const ts_survey_row *r = &s->row[i];
        const bool unknown = r->state == TS_SURVEY_LEFTOVER && *r->problem;
        if ((r->state == TS_SURVEY_WRITING && *r->problem) || unknown) say_kept(p, r);
        later |= r->state == TS_SURVEY_WHOLE;
        bool left = (r->state == TS_SURVEY_LEFTOVER && !unknown) ||
                    (r->state == TS_SURVEY_INCOMPLETE && later);
        if (left && !add_target(p, s, i)) return false;
    }
    return true;
}

static ts_status no_memory(ts_error *err)
{
    err->code = TS_RESOURCE_EXHAUSTED;
    snprintf(err->msg, sizeof err->msg, "out of memory");
    return err->code;
}

/* ---- the newest stays ------------------------------------------------------------------------ */

static bool is_target(const plan *p, const ts_survey *s, size_t row)
{
    bool found = false;
    for (size_t i = 0; i < p->n_target; i++)
        found |= p->target[i].survey == s && p->target[i].row == row;
    return found;
}

/* s: the whole folder. */
static ts_status protect(plan *p, ts_survey *s, size_t *newest, ts_error *err)
{
    ts_status status = ts_survey_newest(s, checkpoint_progress_add, &p->progress, newest, err);
    checkpoint_progress_clear(&p->progress);
    if (status != TS_OK || *newest == s->n) return status;
    if (is_target(p, s, *newest))
        refuse(p, s->row[*newest].path,
               "is the newest checkpoint that verifies, which a resume takes; --force removes it", "");
    return TS_OK;
}

/* Of steps that were named by their folders. */
static ts_status protect_runs(plan *p, ts_error *err)
{
    for (int i = 0; i < p->n; i++) {
        size_t newest;
        if (!p->survey[i]->of_run || p->survey[i]->is_step) continue;
        ts_status status = protect(p, p->survey[i], &newest, err);
        if (status != TS_OK) return status;
    }
    return TS_OK;
}

/* ---- removing -------------------------------------------------------------------------------- */

static void tell(const plan *p, const ts_survey_row *r, uint64_t freed, uint64_t shared, bool first)
{
    char size[32];
    if (p->o->json) {
        printf(first ? "\n{" : ",\n{");
        cli_json_member("path", r->path);
        if (r->step < 0)
            printf(", \"step\": null");
        else
            printf(", \"step\": %lld", (long long)r->step);
        printf(", \"freed_bytes\": %llu, \"shared_bytes\": %llu}", (unsigned long long)freed,
               (unsigned long long)shared);
        return;
    }
    if (p->o->quiet) return;
    printf("%s ", p->o->dry_run ? "would remove" : "removed");
    checkpoint_print(stdout, r->path);
    printf(": %s freed", checkpoint_size(freed, size));
    if (shared) printf(" (%s are shared with others)", checkpoint_size(shared, size));
    printf("\n");
    (void)cli_flush();
}

static ts_status remove_all(plan *p, ts_error *err)
{
    uint64_t freed = 0;
    size_t removed = 0;
    char size[32];
    ts_status status = TS_OK;
    if (p->o->json)
        printf("{\"dry_run\": %s, \"removed\": [", p->o->dry_run ? "true" : "false");
    for (size_t i = 0; i < p->n_target && status == TS_OK && !cli_stopped_by(); i++) {
        target *t = &p->target[i];
        uint64_t gained, shared;
        ts_error why = {0};
        status = ts_survey_remove(t->survey, t->row, p->o->dry_run, &gained, &shared, &why);
        if (status == TS_OK) tell(p, &t->survey->row[t->row], gained, shared, removed == 0);
        if (status == TS_OK) removed++;
        if (status == TS_NOT_FOUND)
            status = TS_OK; /* its run was faster */
        else if (status != TS_OK)
            *err = why;
        freed += gained;
    }
    if (p->o->json)
        printf("\n], \"freed_bytes\": %llu}\n", (unsigned long long)freed);
    else if (!p->o->quiet && removed == 0 && status == TS_OK)
        printf("there is nothing to remove\n");
    else if (!p->o->quiet && removed > 1)
        printf("%zu %s, %s %s\n", removed, p->o->dry_run ? "to remove" : "removed",
               checkpoint_size(freed, size), p->o->dry_run ? "would be freed" : "freed");
    return status;
}

/* ---- the action ------------------------------------------------------------------------------ */

/* A checkpoint's folder by its path. Those that lie in one folder are rows of one survey, so that what they share is
 * counted right; one of another name has a survey of its own. */
static ts_status choose_folder(plan *p, const char *word, ts_error *err)
{
    ts_survey *s, *all = NULL;
    ts_status status = ts_survey_open(word, &s, err);
    if (status != TS_OK) return status;
    char *real = realpath(word, NULL);
    const char *name = real ? strrchr(real, '/') + 1 : "";
    if (!s->is_step)
        refuse(p, word,
               "is the folder of a run; name its steps, or use --step, --keep or --leftovers", "");
    for (int i = 0; i < p->n && s->is_step && !all; i++)
        if (!p->survey[i]->is_step && strcmp(p->survey[i]->folder, s->folder) == 0)
            all = p->survey[i];
    ts_error none = {0};
    if (!all && s->is_step && ts_survey_open(s->folder, &all, &none) == TS_OK)
        p->survey[p->n++] = all;
    bool fine = real != NULL, found = !s->is_step;
    for (size_t i = 0; all && i < all->n && !found; i++)
        if (strcmp(strrchr(all->row[i].path, '/') + 1, name) == 0) {
            fine = fine && add_target(p, all, i);
            found = true;
        }
    free(real);
    if (found || s->n == 0) {
        ts_survey_free(s);
    } else {
        p->survey[p->n++] = s;
        fine = fine && add_target(p, s, 0);
    }
    return fine ? TS_OK : no_memory(err);
}

static ts_status choose_run(plan *p, const char *word, long long keep, ts_error *err)
{
    const checkpoint_options *o = p->o;
    ts_survey *s;
    ts_status status = ts_survey_open(word, &s, err);
    if (status != TS_OK) return status;
    p->survey[p->n++] = s;
    size_t newest = s->n;
    bool fine = true;
    if (s->is_step) {
        refuse(p, word, "is one checkpoint; --step, --keep and --leftovers take a run's folder", "");
        return TS_OK;
    }
    if (o->n_step) fine = choose_steps(p, s);
    if (fine && !p->refused && (keep || (o->n_step && !o->force)))
        status = protect(p, s, &newest, err);
    if (status == TS_OK && keep) fine = choose_kept(p, s, (size_t)keep, newest);
    if (status == TS_OK && o->leftovers) fine = choose_leftovers(p, s);
    return fine ? status : no_memory(err);
}

static ts_status choose(plan *p, long long keep, ts_error *err)
{
    const checkpoint_options *o = p->o;
    const bool by_run = o->n_step || keep || o->leftovers;
    ts_status status = TS_OK;
    for (int i = 0; i < o->n && status == TS_OK; i++)
        status = by_run ? choose_run(p, o->word[i], keep, err) : choose_folder(p, o->word[i], err);
    if (status == TS_OK && !by_run && !o->force && !p->refused) status = protect_runs(p, err);
    return status;
}

static int run(plan *p, long long keep)
{
    ts_error err = {0};
    checkpoint_progress_start(&p->progress, 0, p->o->quiet);
    ts_status status = choose(p, keep, &err);
    checkpoint_progress_clear(&p->progress);
    if (status != TS_OK) return checkpoint_fail("rm", &err);
    for (size_t i = 0; i < p->n_target; i++) check_target(p, &p->target[i]);
    if (p->refused) {
        fprintf(stderr, "tessera checkpoint rm: nothing was removed\n");
        return 2;
    }
    status = remove_all(p, &err);
    if (status != TS_OK) {
        (void)checkpoint_fail("rm", &err);
        return 1;
    }
    return cli_stopped_by() ? 128 + cli_stopped_by() : 0;
}

int checkpoint_rm(const checkpoint_options *o)
{
    const cli_command *c = &cli_checkpoint_command;
    plan p = {.o = o};
    long long keep = 0;
    if ((o->keep != NULL) + (o->n_step > 0) + o->leftovers > 1)
        return cli_usage(c, "one of --step, --keep and --leftovers at a time");
    if (o->keep && !cli_int(c, "--keep", o->keep, 1, 1000000, &keep)) return 2;
    if (o->n_step && o->n > 1) return cli_usage(c, "--step is for one run; found %d", o->n);
    cli_stop_on_signals();
    p.survey = calloc(2 * (size_t)o->n, sizeof(ts_survey *)); /* a word may need two */
    int code = p.survey ? run(&p, keep) : 1;
    for (int i = 0; i < p.n; i++) ts_survey_free(p.survey[i]);
    free(p.survey);
    free(p.target);
    return code;
}
