/* cli/checkpoint_text.c – what tessera checkpoint tells people: sizes, names, states, progress.
 *
 * Paths come from anywhere: no byte of one reaches a terminal that would obey it.
 */
#include "cli/checkpoint.h"

#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- text ------------------------------------------------------------------------------------ */

const char *checkpoint_size(uint64_t bytes, char *buf)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    int u = 0;
    for (; value >= 999.95 && u < 5; u++) value /= 1024;
    snprintf(buf, 32, u ? "%.1f %s" : "%.0f %s", value, unit[u]);
    return buf;
}

/* Control characters, also those that UTF-8 writes as two bytes, are "?". */
void checkpoint_print(FILE *f, const char *text)
{
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) {
        size_t valid = i + ts_utf8_valid_prefix(text + i, n - i);
        for (; i < valid; i++) {
            unsigned char c = (unsigned char)text[i], next = (unsigned char)text[i + 1];
            bool two = c == 0xc2 && next < 0xa0;
            if (c < 0x20 || c == 0x7f || two)
                fputc('?', f);
            else
                fputc(c, f);
            i += two;
        }
        if (i < n) fputs("\xef\xbf\xbd", f);
    }
}

const char *checkpoint_mesh(const char *mesh, char *buf, size_t n)
{
    size_t used = 0;
    buf[0] = '\0';
    while (*mesh && used < n) {
        size_t length = strcspn(mesh, ",");
        bool split = length < 2 || strncmp(mesh + length - 2, "=1", 2) != 0;
        if (split)
            used += (size_t)snprintf(buf + used, n - used, "%s%.*s", used ? " " : "", (int)length, mesh);
        mesh += length;
        mesh += strspn(mesh, ", ");
    }
    if (!*buf) snprintf(buf, n, "one device");
    return buf;
}

const char *checkpoint_state(const ts_survey_row *r)
{
    static const char *const word[] = {
        [TS_SURVEY_WHOLE] = "whole",           [TS_SURVEY_INCOMPLETE] = "incomplete",
        [TS_SURVEY_DAMAGED] = "damaged",       [TS_SURVEY_UNREADABLE] = "unreadable",
        [TS_SURVEY_WRITING] = "being written", [TS_SURVEY_LEFTOVER] = "leftover",
        [TS_SURVEY_GONE] = "removed"};
    return word[r->state];
}

void checkpoint_paragraph(FILE *f, int indent, const char *text)
{
    const size_t width = (size_t)(79 - indent);
    while (*text) {
        size_t n = strlen(text);
        if (n > width) {
            for (n = width; n > 0 && text[n] != ' ';) n--;
            if (n == 0) n = strcspn(text, " "); /* one long word, a path */
        }
        char line[4096];
        snprintf(line, sizeof line, "%.*s", (int)n, text);
        fprintf(f, "%*s", indent, "");
        checkpoint_print(f, line);
        fputc('\n', f);
        text += n;
        text += *text == ' ';
    }
}

void checkpoint_json_number(const char *key, double value)
{
    if (isfinite(value))
        printf("\"%s\": %.17g", key, value);
    else
        printf("\"%s\": null", key);
}

/* ---- progress -------------------------------------------------------------------------------- */

double checkpoint_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void checkpoint_progress_start(checkpoint_progress *p, uint64_t all, bool quiet)
{
    *p = (checkpoint_progress){.all = all, .terminal = !quiet && isatty(STDERR_FILENO)};
    p->started = p->shown = checkpoint_seconds();
}

bool checkpoint_progress_add(void *context, uint64_t bytes)
{
    checkpoint_progress *p = context;
    char a[32], b[32];
    p->done += bytes;
    double now = checkpoint_seconds(), seconds = now - p->started;
    if (p->terminal && now - p->shown > 0.2) {
        fprintf(stderr, "\r\033[K%s%s%s, %.2f GB/s", checkpoint_size(p->done, a), p->all ? " of " : "",
                p->all ? checkpoint_size(p->all, b) : "", (double)p->done / 1e9 / seconds);
        fflush(stderr);
        p->shown = now;
        p->visible = true;
    }
    return cli_stopped_by() == 0;
}

void checkpoint_progress_clear(checkpoint_progress *p)
{
    if (p->visible) fprintf(stderr, "\r\033[K");
    p->visible = false;
}

int checkpoint_fail(const char *action, const ts_error *err)
{
    char name[32];
    snprintf(name, sizeof name, "checkpoint %s", action);
    if (err->code == TS_CANCELLED && cli_stopped_by()) {
        (void)cli_flush();
        fprintf(stderr, "tessera %s: stopped; nothing was changed\n", name);
        return 128 + cli_stopped_by();
    }
    return cli_fail(name, err);
}
