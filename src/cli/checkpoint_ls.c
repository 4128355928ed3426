/* cli/checkpoint_ls.c – tessera checkpoint ls: a row a checkpoint, which one a resume would take,
 * what they take on disk.
 *
 * Columns that would be empty are left out, and what all rows share stands once, below. Ends with 0
 * whatever the rows say: `verify` judges. Not here: what a row is (ckpt/survey.c).
 */
#include "cli/checkpoint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- people ---------------------------------------------------------------------------------- */

/* What is worth a column: values that are there, or that are not the same in all rows. */
typedef struct columns {
    bool frozen, score, mesh, program;
    const ts_survey_row *sample; /* a row that says devices and program; NULL: none */
    int step, meshes;            /* widths */
} columns;

static bool is_read(const ts_survey_row *r)
{
    return r->devices > 0;
}

static columns choose(const ts_survey *s)
{
    columns c = {.step = 6, .meshes = 4};
    for (size_t i = 0; i < s->n; i++) {
        const ts_survey_row *r = &s->row[i];
        char text[200];
        int width = snprintf(text, sizeof text, "%lld", (long long)r->step);
        if (width > c.step) c.step = width;
        width = (int)strlen(checkpoint_mesh(r->mesh, text, sizeof text));
        if (is_read(r) && width > c.meshes) c.meshes = width;
        c.frozen |= r->frozen_bytes > 0;
        c.score |= !isnan(r->score);
        if (!is_read(r)) continue;
        if (!c.sample) c.sample = r;
        c.mesh |= r->devices != c.sample->devices || strcmp(r->mesh, c.sample->mesh) != 0;
        c.program |= strcmp(r->program, c.sample->program) != 0;
    }
    return c;
}

/* "2026-05-01T12:00:00Z" as "2026-05-01 12:00". */
static const char *when(const ts_survey_row *r, char *buf)
{
    if (strlen(r->written) < 16) return "-";
    snprintf(buf, 32, "%.10s %.5s", r->written, r->written + 11);
    return buf;
}

static void print_title(const columns *c)
{
    printf("%*s  %-16s  %9s", c->step, "step", "written (UTC)", "size");
    if (c->frozen) printf("  %9s", "frozen");
    if (c->score) printf("  %7s", "eval");
    if (c->mesh) printf("  %-*s", c->meshes, "mesh");
    if (c->program) printf("  %-13s", "program");
    printf("  state\n");
}

static void print_row(const columns *c, const ts_survey_row *r)
{
    char text[200];
    if (r->step < 0)
        printf("%*s", c->step, "?");
    else
        printf("%*lld", c->step, (long long)r->step);
    printf("  %-16s", when(r, text));
    printf("  %9s", checkpoint_size(r->bytes, text));
    if (c->frozen) printf("  %9s", r->frozen_bytes ? checkpoint_size(r->frozen_bytes, text) : "-");
    if (c->score && isnan(r->score)) printf("  %7s", "-");
    if (c->score && !isnan(r->score)) printf("  %7.4f", r->score);
    const char *mesh = is_read(r) ? checkpoint_mesh(r->mesh, text, sizeof text) : "-";
    if (c->mesh) printf("  %-*s", c->meshes, mesh);
    if (c->program) {
        printf("  ");
        checkpoint_print(stdout, *r->program ? r->program : "-");
        size_t n = *r->program ? strlen(r->program) : 1;
        printf("%*s", n < 13 ? (int)(13 - n) : 0, "");
    }
    printf("  %s\n", checkpoint_state(r));
    const bool temporary = r->state == TS_SURVEY_WRITING || r->state == TS_SURVEY_LEFTOVER;
    if (temporary) checkpoint_paragraph(stdout, c->step + 2, r->path);
    if (*r->problem) checkpoint_paragraph(stdout, c->step + 2, r->problem);
}

/* Which one a resume takes; where it takes none, the way on. */
static void print_resume(const ts_survey *s, size_t resume)
{
    size_t whole = s->n, newest = s->n;
    if (resume < s->n) {
        printf("a resume takes step %lld\n", (long long)s->row[resume].step);
        return;
    }
    for (size_t i = 0; i < s->n; i++) {
        const ts_survey_row *r = &s->row[i];
        if (r->state == TS_SURVEY_WHOLE) whole = i;
        if (r->state <= TS_SURVEY_UNREADABLE) newest = i;
    }
    if (newest < s->n && s->row[newest].state == TS_SURVEY_UNREADABLE)
        printf("a resume stops at step %lld: make it readable for this user\n",
               (long long)s->row[newest].step);
    else
        printf("a resume finds none that it can use\n");
    if (whole < s->n) {
        printf("a new run takes step %lld with load_full_state_path=", (long long)s->row[whole].step);
        checkpoint_print(stdout, s->row[whole].path);
        printf("\n");
    } else {
        printf("another run_name begins anew\n");
    }
}

static void print_sums(const ts_survey *s, const columns *c, bool verify)
{
    char a[200], b[32];
    size_t resume = ts_survey_resume(s), whole = 0;
    for (size_t i = 0; i < s->n; i++) whole += s->row[i].state == TS_SURVEY_WHOLE;
    printf("%zu whole checkpoint%s", whole, whole == 1 ? "" : "s");
    printf(", %s", checkpoint_size(s->bytes, a));
    if (s->disk_bytes != s->bytes)
        printf(" (%s on disk: they share files)", checkpoint_size(s->disk_bytes, b));
    printf("\n");
    if (!s->is_step) print_resume(s, resume);
    if (c->sample && !(c->mesh && c->program)) {
        printf("saved");
        if (!c->program) {
            printf(" by ");
            checkpoint_print(stdout, c->sample->program);
        }
        if (!c->mesh && c->sample->devices == 1) printf(" on 1 device");
        if (!c->mesh && c->sample->devices > 1) {
            printf(" on %d devices, ", c->sample->devices);
            checkpoint_print(stdout, checkpoint_mesh(c->sample->mesh, a, sizeof a));
        }
        printf("\n");
    }
    if (!verify) printf("manifests, indexes and lengths were checked; --verify hashes every byte\n");
}

static void print_survey(const ts_survey *s, const char *word, bool verify, bool quiet)
{
    const columns c = choose(s);
    if (!quiet) {
        checkpoint_print(stdout, s->is_step ? word : s->folder);
        printf("\n");
    }
    if (s->n == 0) {
        if (!quiet) printf("holds no checkpoint yet\n");
        return;
    }
    print_title(&c);
    for (size_t i = 0; i < s->n; i++) print_row(&c, &s->row[i]);
    if (!quiet) print_sums(s, &c, verify);
}

/* ---- programs -------------------------------------------------------------------------------- */

static void json_text(const char *key, const char *text)
{
    if (*text)
        cli_json_member(key, text);
    else
        printf("\"%s\": null", key);
    printf(", ");
}

static void json_row(const ts_survey_row *r)
{
    printf("{");
    json_text("path", r->path);
    if (r->step < 0)
        printf("\"step\": null, ");
    else
        printf("\"step\": %lld, ", (long long)r->step);
    json_text("state", checkpoint_state(r));
    printf("\"verified\": %s, ", r->verified ? "true" : "false");
    json_text("problem", r->problem);
    json_text("written", r->written);
    printf("\"bytes\": %llu, \"frozen_bytes\": %llu, ", (unsigned long long)r->bytes,
           (unsigned long long)r->frozen_bytes);
    if (is_read(r))
        printf("\"devices\": %d, ", r->devices);
    else
        printf("\"devices\": null, ");
    json_text("mesh", r->mesh);
    checkpoint_json_number("evaluation_loss", r->score);
    printf(", ");
    json_text("program", r->program);
    if (*r->foreign)
        cli_json_member("other_file", r->foreign);
    else
        printf("\"other_file\": null");
    printf("}");
}

static void json_survey(const ts_survey *s)
{
    size_t resume = ts_survey_resume(s);
    printf("{");
    json_text("folder", s->folder);
    if (!s->is_step && resume < s->n)
        printf("\"resume_step\": %lld, ", (long long)s->row[resume].step);
    else
        printf("\"resume_step\": null, ");
    printf("\"bytes\": %llu, \"disk_bytes\": %llu,\n \"checkpoints\": [",
           (unsigned long long)s->bytes, (unsigned long long)s->disk_bytes);
    for (size_t i = 0; i < s->n; i++) {
        printf(i ? ",\n  " : "\n  ");
        json_row(&s->row[i]);
    }
    printf("]}");
}

/* ---- the action ------------------------------------------------------------------------------ */

static ts_status verify_rows(ts_survey *s, bool quiet, ts_error *err)
{
    checkpoint_progress p;
    ts_status status = TS_OK;
    checkpoint_progress_start(&p, s->bytes, quiet);
    for (size_t i = 0; i < s->n && status == TS_OK; i++)
        status = ts_survey_verify(s, i, checkpoint_progress_add, &p, err);
    checkpoint_progress_clear(&p);
    return status;
}

int checkpoint_ls(const checkpoint_options *o)
{
    ts_survey **s = calloc((size_t)o->n, sizeof(ts_survey *));
    ts_error err = {0};
    ts_status status = s ? TS_OK : TS_RESOURCE_EXHAUSTED;
    if (o->verify) cli_stop_on_signals();
    for (int i = 0; i < o->n && status == TS_OK; i++) {
        status = ts_survey_open(o->word[i], &s[i], &err);
        if (status == TS_OK && o->verify) status = verify_rows(s[i], o->quiet, &err);
    }
    if (status == TS_OK && o->json) printf("{\"folders\": [\n");
    for (int i = 0; i < o->n && status == TS_OK; i++) {
        if (i && o->json) printf(",\n");
        if (i && !o->json) printf("\n");
        if (o->json)
            json_survey(s[i]);
        else
            print_survey(s[i], o->word[i], o->verify, o->quiet);
    }
    if (status == TS_OK && o->json) printf("\n]}\n");
    for (int i = 0; s && i < o->n; i++) ts_survey_free(s[i]);
    free(s);
    return status == TS_OK ? 0 : checkpoint_fail("ls", &err);
}
