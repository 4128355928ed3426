/* ckpt/survey.c – what a folder of checkpoints holds, for people who look after it.
 *
 * A row is a step's folder, or what a save left or is writing. Opening reads manifests, indexes and
 * lengths; hashes are read row by row when that is asked for. A run may save and remove meanwhile:
 * a fault counts only when the manifest is still the one it was seen with, and what vanished is
 * left out. What cannot be asked is neither: it is a row that says why, and nothing is removed for it.
 *
 * Not here: removing (survey_remove.c), what a checkpoint is made of (checkpoint_read.c), which one
 * a run takes (checkpoint_newest.c; ts_survey_resume follows its rule by what the rows say, and a
 * test holds them together).
 */
#include "ckpt/survey.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "ckpt/checkpoint_internal.h"

enum { LOOKS = 4, SAME_FAILURES_MAX = 3, RUNS_NAMED = 3, HOST_BYTES = 100, DAY_SECONDS = 24 * 3600 };

static ts_status out_of_memory(const char *path, ts_error *err)
{
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
}

/* ---- names ----------------------------------------------------------------------------------- */

static bool is_step_name(const char *name)
{
    int64_t step;
    return ts__checkpoint_step_of(name, strlen(name), &step);
}

bool ts__survey_is_saved_name(const char *name)
{
    if (strcmp(name, TS__CHECKPOINT_MANIFEST) == 0 || strcmp(name, TS__CHECKPOINT_UNFINISHED) == 0)
        return true;
    const char *digits = strpbrk(name, "0123456789"), *of = strstr(name, "-of-");
    if (!digits || !of) return false;
    long device = strtol(digits, NULL, 10), devices = strtol(of + 4, NULL, 10);
    if (device < 0 || devices < 1 || device >= devices || devices > TS__CHECKPOINT_DEVICES)
        return false;
    for (int kind = 0; kind < TS__FILE_KINDS; kind++) {
        char made[TS__FILE_NAME];
        ts__checkpoint_file_name((ts__file_kind)kind, (int)device, (int)devices, made);
        if (strcmp(made, name) == 0) return true;
    }
    return false;
}

/* Is something of that name in the folder? A link that leads nowhere is; so is what cannot be asked. */
static bool may_hold(const char *folder, const char *name)
{
    char *path = ts_path_join(folder, name);
    struct stat st;
    bool none = path && lstat(path, &st) != 0 && (errno == ENOENT || errno == ENOTDIR);
    ts_free(path);
    return !none;
}

static bool is_gone(const char *path)
{
    ts_path_kind kind;
    return ts_path_find(path, &kind, NULL) == TS_OK && kind == TS_PATH_NONE;
}

static bool holds(const char *folder, const char *name, ts_path_kind kind)
{
    char *path = ts_path_join(folder, name);
    bool yes = path && ts_path_kind_of(path) == kind;
    ts_free(path);
    return yes;
}

/* ---- files of a row -------------------------------------------------------------------------- */

static bool add_file(ts__survey *s, size_t row, const struct stat *st)
{
    if (s->n_file == s->max_file) {
        size_t more = s->max_file ? 2 * s->max_file : 64, bytes;
        ts__survey_file *grown =
            ts_mul_size(more, sizeof *grown, &bytes)
                ? NULL
                : ts_realloc(s->file, s->max_file * sizeof *grown, bytes);
        if (!grown) return false;
        s->file = grown;
        s->max_file = more;
    }
    s->file[s->n_file++] = (ts__survey_file){.row = row,
                                             .device = (uint64_t)st->st_dev,
                                             .inode = (uint64_t)st->st_ino,
                                             .links = (uint64_t)st->st_nlink,
                                             .bytes = (uint64_t)st->st_size};
    return true;
}

/* Sizes of what lies in the folder, whatever the manifest says. NOT_FOUND: it vanished. */
static ts_status measure(ts__survey *s, size_t row, ts_error *err)
{
    ts_survey_row *r = &s->public.row[row];
    char **names;
    size_t n;
    TS_TRY(ts_list_folder(r->path, &names, &n, err));
    ts_status status = TS_OK;
    for (size_t i = 0; i < n && status == TS_OK; i++) {
        char *path = ts_path_join(r->path, names[i]);
        struct stat st;
        if (!path) {
            status = out_of_memory(r->path, err);
        } else if (lstat(path, &st) == 0) {
            bool regular = S_ISREG(st.st_mode);
            if ((!regular || !ts__survey_is_saved_name(names[i])) && !*r->foreign) {
                r->foreign = ts_arena_strdup(s->arena, names[i]);
                if (!r->foreign) r->foreign = "", status = out_of_memory(r->path, err);
            }
            if (regular && !add_file(s, row, &st)) status = out_of_memory(r->path, err);
            if (regular) r->bytes += (uint64_t)st.st_size;
            if (regular && strncmp(names[i], "frozen-", 7) == 0)
                r->frozen_bytes += (uint64_t)st.st_size;
        } else {
            ts_path_kind kind;
            status = ts_path_find(path, &kind, err); /* it vanished, or cannot be looked at */
        }
        ts_free(path);
    }
    ts_names_free(names, n);
    return status;
}

/* ---- looking --------------------------------------------------------------------------------- */

/* Of the manifest; 0: there is none. A save that replaces a step, and a removal, change it. */
static uint64_t manifest_identity(const char *folder)
{
    char *path = ts_path_join(folder, TS__CHECKPOINT_MANIFEST);
    struct stat st;
    uint64_t inode = path && stat(path, &st) == 0 ? (uint64_t)st.st_ino : 0;
    ts_free(path);
    return inode;
}

static const char *copy(ts__survey *s, const char *text)
{
    return *text ? ts_arena_strdup(s->arena, text) : "";
}

static ts_status take(ts__survey *s, ts_survey_row *r, const ts_checkpoint *c, ts_error *err)
{
    r->step = ts_checkpoint_step(c);
    r->devices = ts_checkpoint_devices(c);
    r->score = ts_checkpoint_score(c);
    r->written = copy(s, ts_checkpoint_written(c));
    r->mesh = copy(s, ts_checkpoint_mesh(c));
    r->program = copy(s, ts_checkpoint_program(c));
    if (r->written && r->mesh && r->program) return TS_OK;
    r->written = r->mesh = r->program = "";
    return out_of_memory(r->path, err);
}

/* Looks, or reads everything; a fault is seen with one manifest from the first byte to the last. */
static ts_status check_once(ts__survey *s, ts_survey_row *r, bool all, ts_progress progress,
                            void *context, ts_error *why, ts_error *err)
{
    ts_checkpoint *c = NULL;
    ts_status status = ts_checkpoint_look(r->path, &c, why);
    if (status == TS_OK && all) status = ts_checkpoint_verify(c, progress, context, why);
    if (status == TS_OK) status = take(s, r, c, err);
    ts_checkpoint_close(c);
    return status;
}

/* The row has said which folder. */
static const char *without_path(const char *text, const char *path)
{
    size_t n = strlen(path);
    if (strncmp(text, path, n) != 0) return text;
    if (text[n] == '/') return text + n + 1;
    return strncmp(text + n, ": ", 2) == 0 ? text + n + 2 : text;
}

static void set_problem(ts_survey_row *r, ts_arena *arena, const ts_error *why)
{
    r->problem = ts_arena_strdup(arena, without_path(why->msg, r->path));
    if (!r->problem) r->problem = "";
}

static void set_fault(ts__survey *s, size_t row, ts_status status, const ts_error *why)
{
    ts_survey_row *r = &s->public.row[row];
    bool its_own = status == TS_DATA_LOSS || status == TS_NOT_FOUND || status == TS_INVALID_ARGUMENT;
    r->state = its_own ? TS_SURVEY_DAMAGED : TS_SURVEY_UNREADABLE;
    if (its_own && !may_hold(r->path, TS__CHECKPOINT_MANIFEST))
        r->state = TS_SURVEY_INCOMPLETE;
    set_problem(r, s->arena, why);
    s->detail[row] = (ts__survey_detail){.file = why->file, .line = why->line};
}

static ts_status check(ts__survey *s, size_t row, bool all, ts_progress progress, void *context,
                       ts_error *err)
{
    ts_survey_row *r = &s->public.row[row];
    for (int i = 0; i < LOOKS; i++) {
        ts_error why = {0};
        uint64_t before = manifest_identity(r->path);
        ts_status status = check_once(s, r, all, progress, context, &why, err);
        r->verified = status == TS_OK && all;
        r->state = TS_SURVEY_WHOLE;
        if (status == TS_OK) return TS_OK;
        if (status == TS_CANCELLED || status == TS_RESOURCE_EXHAUSTED)
            return TS_ERROR(err, status, "%s", why.msg);
        if (is_gone(r->path)) {
            r->state = TS_SURVEY_GONE;
            return TS_OK;
        }
        set_fault(s, row, status, &why);
        if (before == manifest_identity(r->path)) return TS_OK;
    }
    return TS_OK;
}

ts_status ts_survey_verify(ts_survey *public, size_t row, ts_progress progress, void *context,
                           ts_error *err)
{
    if (public->row[row].state != TS_SURVEY_WHOLE) return TS_OK;
    return check((ts__survey *)public, row, true, progress, context, err);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static const char elsewhere[] =
    "it is of another host, whose processes cannot be asked, and less than a day old";

/* A row for a name of a folder of checkpoints; none for any other name. */
static ts_status add_row(ts__survey *s, const char *path, const char *name, ts_error *err)
{
    int64_t step = -1;
    bool is_step = ts__checkpoint_step_of(name, strlen(name), &step);
    ts__temporary temporary = ts__checkpoint_temporary(path, name, &step);
    if (!is_step && temporary == TS__TEMPORARY_NONE) step = -1;
    size_t row = s->public.n;
    ts_survey_row *r = &s->public.row[row];
    *r = (ts_survey_row){.path = ts_arena_strdup(s->arena, path), .step = step,
                         .score = (double)NAN, .problem = "", .written = "", .mesh = "",
                         .program = "", .foreign = ""};
    if (!r->path) return out_of_memory(path, err);
    ts_error why = {0};
    size_t files = s->n_file;
    ts_status status = measure(s, row, &why);
    if (status == TS_NOT_FOUND && is_gone(path)) {
        s->n_file = files;
        return TS_OK;
    }
    if (status == TS_RESOURCE_EXHAUSTED) return TS_ERROR(err, status, "%s", why.msg);
    if (temporary != TS__TEMPORARY_NONE)
        r->state = temporary == TS__TEMPORARY_LEFT ? TS_SURVEY_LEFTOVER : TS_SURVEY_WRITING;
    else
        TS_TRY(check(s, row, false, NULL, NULL, err));
    const bool unknown = status != TS_OK && status != TS_NOT_FOUND;
    if (unknown && (r->state == TS_SURVEY_WHOLE || r->state == TS_SURVEY_INCOMPLETE))
        set_fault(s, row, status, &why);
    if (unknown && r->state == TS_SURVEY_LEFTOVER) set_problem(r, s->arena, &why);
    if (temporary == TS__TEMPORARY_ELSEWHERE)
        r->problem = elsewhere;
    if (r->state == TS_SURVEY_GONE)
        s->n_file = files;
    else
        s->public.n++;
    return TS_OK;
}

static ts_status make_rows(ts__survey *s, size_t n, const char *path, ts_error *err)
{
    size_t bytes;
    ts_free(s->public.row);
    ts_free(s->detail);
    s->public.row = ts_mul_size(n + 1, sizeof *s->public.row, &bytes) ? NULL : ts_alloc_zero(bytes);
    s->detail = ts_mul_size(n + 1, sizeof *s->detail, &bytes) ? NULL : ts_alloc_zero(bytes);
    return s->public.row && s->detail ? TS_OK : out_of_memory(path, err);
}

/* A run may be named "7": then this is no step. Memory that is out makes it one, and so does what cannot be asked:
 * add_row will say so. */
static bool is_row(const char *folder, const char *name)
{
    char *path = ts_path_join(folder, name);
    int64_t step;
    if (!path) return is_step_name(name);
    ts_path_kind kind;
    bool folder_of = ts_path_find(path, &kind, NULL) != TS_OK || kind == TS_PATH_FOLDER;
    bool row = folder_of &&
               (is_step_name(name) || ts__checkpoint_temporary(path, name, &step)) &&
               !holds(path, "checkpoints", TS_PATH_FOLDER);
    ts_free(path);
    return row;
}

typedef struct order {
    int64_t step;
    bool temporary;
    const char *name;
} order;

static int by_step(const void *a, const void *b)
{
    const order *p = a, *q = b;
    if (p->step != q->step) return p->step < q->step ? -1 : 1;
    if (p->temporary != q->temporary) return p->temporary ? 1 : -1;
    return strcmp(p->name, q->name);
}

static ts_status list_once(ts__survey *s, const char *folder, size_t *listed, ts_error *err)
{
    char **names;
    size_t n, n_order = 0, bytes;
    TS_TRY(ts_list_folder(folder, &names, &n, err));
    order *o = ts_mul_size(n + 1, sizeof *o, &bytes) ? NULL : ts_alloc(bytes);
    ts_status status = o ? TS_OK : out_of_memory(folder, err);
    for (size_t i = 0; i < n && status == TS_OK; i++)
        if (is_row(folder, names[i])) {
            int64_t step = 0;
            (void)ts__checkpoint_step_of(names[i], strspn(names[i], "0123456789"), &step);
            o[n_order++] = (order){step, !is_step_name(names[i]), names[i]};
        }
    if (n_order) qsort(o, n_order, sizeof *o, by_step);
    if (status == TS_OK) status = make_rows(s, n_order, folder, err);
    for (size_t i = 0; i < n_order && status == TS_OK; i++) {
        char *path = ts_path_join(folder, o[i].name);
        status = path ? add_row(s, path, o[i].name, err) : out_of_memory(folder, err);
        ts_free(path);
    }
    *listed = n_order;
    ts_free(o);
    ts_names_free(names, n);
    return status;
}

/* Where all that was listed vanished, a fast run has others by now. */
static ts_status add_folder(ts__survey *s, const char *folder, ts_error *err)
{
    size_t listed = 1, steps = 0;
    for (int i = 0; i < LOOKS && steps == 0 && listed > 0; i++) {
        s->public.n = s->n_file = 0;
        TS_TRY(list_once(s, folder, &listed, err));
        for (size_t k = 0; k < s->public.n; k++)
            steps += s->public.row[k].state < TS_SURVEY_WRITING;
    }
    return TS_OK;
}

/* ---- what kind of folder --------------------------------------------------------------------- */

static const char nowhere[] = "is a link to something that is not there";

typedef enum folder_kind { OTHER, RUN, CHECKPOINTS, STEP, RUN_WITHOUT } folder_kind;

static folder_kind kind_of(const char *path, const char *name, char **names, size_t n)
{
    bool saved = false, of_run = false;
    int64_t step;
    if (holds(path, TS__CHECKPOINT_MANIFEST, TS_PATH_FILE)) return STEP;
    if (holds(path, "checkpoints", TS_PATH_FOLDER)) return RUN;
    for (size_t i = 0; i < n; i++) {
        if (is_row(path, names[i])) return CHECKPOINTS;
        saved |= ts__survey_is_saved_name(names[i]);
        of_run |= strcmp(names[i], "config.yml") == 0 || strcmp(names[i], "metrics.jsonl") == 0 ||
                  strcmp(names[i], "lock") == 0 || strcmp(names[i], "checkpoints") == 0;
    }
    if (strcmp(name, "checkpoints") == 0) return CHECKPOINTS;
    if (saved || ts__checkpoint_temporary(path, name, &step) || (n == 0 && is_step_name(name)))
        return STEP;
    return of_run ? RUN_WITHOUT : OTHER;
}

/* Of another kind: what it is, and where runs are. */
static ts_status refuse(const char *path, char **names, size_t n, ts_error *err)
{
    ts_string runs = ts_string_new(400);
    size_t found = 0;
    for (size_t i = 0; i < n && found <= RUNS_NAMED; i++) {
        char *below = ts_path_join(path, names[i]);
        if (below && holds(below, "checkpoints", TS_PATH_FOLDER) && found++ < RUNS_NAMED)
            ts_string_printf(&runs, "%s%s", found > 1 ? ", " : "", names[i]);
        ts_free(below);
    }
    ts_status status =
        found ? TS_ERROR(err, TS_INVALID_ARGUMENT,
                         "%s: holds runs (%s%s); expected one of them, or a checkpoint", path,
                         runs.failed || !runs.data ? "…" : runs.data, found > RUNS_NAMED ? " …" : "")
              : TS_ERROR(err, TS_INVALID_ARGUMENT,
                         "%s: %s; expected a run's folder (with checkpoints/ in it), a folder of "
                         "checkpoints, or one checkpoint's",
                         path, n ? "holds no checkpoint" : "is empty");
    ts_string_free(&runs);
    return status;
}

static ts_status set_folder(ts__survey *s, const char *folder, bool of_run, ts_error *err)
{
    s->public.folder = ts_arena_strdup(s->arena, folder);
    s->public.of_run = of_run;
    return s->public.folder ? TS_OK : out_of_memory(folder, err);
}

/* real: path without links and dots; cut behind its last name. */
static ts_status open_step(ts__survey *s, const char *path, char *real, ts_error *err)
{
    char *slash = strrchr(real, '/');
    s->name = ts_arena_strdup(s->arena, slash + 1);
    if (!s->name) return out_of_memory(path, err);
    TS_TRY(make_rows(s, 1, path, err));
    TS_TRY(add_row(s, path, s->name, err));
    s->public.is_step = true;
    *slash = '\0';
    const char *parent = strrchr(real, '/');
    return set_folder(s, *real ? real : "/", parent && strcmp(parent, "/checkpoints") == 0, err);
}

/* The checkpoints/ of a run; before its first save there is none. */
static ts_status open_run(ts__survey *s, const char *path, const char *below, ts_error *err)
{
    ts_path_kind kind;
    TS_TRY(set_folder(s, below, true, err));
    TS_TRY(ts_path_find(below, &kind, err));
    if (kind == TS_PATH_FOLDER) return add_folder(s, below, err);
    if (kind == TS_PATH_NONE && !may_hold(path, "checkpoints")) return make_rows(s, 0, path, err);
    return TS_ERROR(err, TS_INVALID_ARGUMENT, "%s: %s; expected the folder of the run's checkpoints",
                    below, kind == TS_PATH_NONE ? nowhere : "is no folder");
}

static ts_status open_kind(ts__survey *s, const char *path, char *real, char **names, size_t n,
                           ts_error *err)
{
    char *below;
    ts_status status;
    const char *name = strrchr(real, '/') + 1;
    switch (kind_of(path, name, names, n)) {
    case STEP: return open_step(s, path, real, err);
    case CHECKPOINTS:
        TS_TRY(set_folder(s, path, strcmp(name, "checkpoints") == 0, err));
        return add_folder(s, path, err);
    case RUN:
    case RUN_WITHOUT:
        below = ts_path_join(path, "checkpoints");
        status = below ? open_run(s, path, below, err) : out_of_memory(path, err);
        ts_free(below);
        return status;
    default: return refuse(path, names, n, err);
    }
}

/* ---- a save by manifest that is going on ----------------------------------------------------- */

typedef enum holder { NOBODY, LIVES, ELSEWHERE } holder;

/* Who trains this run, by its lock's file: "process 123 on host". A process that was killed leaves its name. */
static holder holder_of(const char *folder)
{
    char *path = ts_path_join(folder, "../lock"), *text = NULL, here[HOST_BYTES] = "";
    size_t n = 0;
    long pid = 0;
    int at = 0;
    holder found = NOBODY;
    if (path && ts_file_read_all(path, HOST_BYTES + 64, &text, &n, NULL) == TS_OK &&
        sscanf(text, "process %ld on %n", &pid, &at) == 1 && at > 0 && pid > 0 && pid <= INT32_MAX) {
        text[strcspn(text, "\n")] = '\0';
        bool local = gethostname(here, sizeof here - 1) == 0 && strcmp(here, text + at) == 0;
        bool gone = local && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
        found = !local ? ELSEWHERE : gone ? NOBODY : LIVES;
    }
    ts_free(text);
    ts_free(path);
    return found;
}

/* A folder without a manifest, behind the last whole one, while somebody trains. */
static void find_writing(ts__survey *s)
{
    const holder who = s->public.of_run ? holder_of(s->public.folder) : NOBODY;
    for (size_t i = s->public.n; i-- > 0 && who != NOBODY;) {
        ts_survey_row *r = &s->public.row[i];
        struct stat st;
        if (r->state == TS_SURVEY_WHOLE) return;
        if (r->state != TS_SURVEY_INCOMPLETE) continue;
        if (who == ELSEWHERE && (stat(r->path, &st) != 0 || time(NULL) - st.st_mtime > DAY_SECONDS))
            continue;
        r->state = TS_SURVEY_WRITING;
        r->problem = who == LIVES ? "" : elsewhere;
    }
}

static void add_sums(ts__survey *s)
{
    for (size_t i = 0; i < s->public.n; i++) s->public.bytes += s->public.row[i].bytes;
    s->public.disk_bytes = s->public.bytes - ts__survey_linked(s);
}

ts_status ts_survey_open(const char *path, ts_survey **out, ts_error *err)
{
    char **names, real[PATH_MAX];
    size_t n;
    *out = NULL;
    ts_path_kind kind;
    struct stat st;
    TS_TRY(ts_path_find(path, &kind, err));
    if (kind == TS_PATH_NONE)
        return TS_ERROR(err, TS_NOT_FOUND, "%s: %s", path,
                        lstat(path, &st) == 0 ? nowhere : "does not exist");
    if (kind != TS_PATH_FOLDER)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "%s: is a file; expected the folder of a run or of a checkpoint", path);
    TS_TRY(ts_list_folder(path, &names, &n, err));
    ts__survey *s = ts_alloc_zero(sizeof *s);
    if (s) s->arena = ts_arena_new();
    ts_status status = s && s->arena ? TS_OK : out_of_memory(path, err);
    if (status == TS_OK && !realpath(path, real))
        status = TS_ERROR(err, TS_NOT_FOUND, "%s: cannot be followed: %s", path, strerror(errno));
    if (status == TS_OK) status = open_kind(s, path, real, names, n, err);
    ts_names_free(names, n);
    if (status == TS_OK) {
        find_writing(s);
        add_sums(s);
        *out = &s->public;
    } else if (s) {
        ts_survey_free(&s->public);
    }
    return status;
}

void ts_survey_free(ts_survey *public)
{
    ts__survey *s = (ts__survey *)public;
    if (!s) return;
    ts_free(s->file);
    ts_free(s->detail);
    ts_free(s->public.row);
    ts_arena_free(s->arena);
    ts_free(s);
}

/* ---- the newest ------------------------------------------------------------------------------ */

size_t ts_survey_resume(const ts_survey *public)
{
    const ts__survey *s = (const ts__survey *)public;
    const ts__survey_detail *last = NULL;
    int same = 0;
    for (size_t i = public->n; i-- > 0 && same < SAME_FAILURES_MAX;) {
        const ts_survey_row *r = &public->row[i];
        const ts__survey_detail *d = &s->detail[i];
        if (r->state == TS_SURVEY_WHOLE) return i;
        if (r->state == TS_SURVEY_UNREADABLE) return public->n;
        if (r->state != TS_SURVEY_DAMAGED && r->state != TS_SURVEY_INCOMPLETE) continue;
        same = last && d->line == last->line && d->file == last->file ? same + 1 : 1;
        last = d;
    }
    return public->n;
}

ts_status ts_survey_newest(ts_survey *s, ts_progress progress, void *context, size_t *row,
                           ts_error *err)
{
    *row = s->n;
    for (size_t i = s->n; i-- > 0;) {
        if (!s->row[i].verified) TS_TRY(ts_survey_verify(s, i, progress, context, err));
        if (!s->row[i].verified) continue;
        *row = i;
        return TS_OK;
    }
    return TS_OK;
}
