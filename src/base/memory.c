/* base/memory.c – what the kernel says of memory; see memory.h.
 *
 * Linux gives out more memory than it has and ends a process when it is used. So whoever wants a large piece that it
 * can do without asks here first. A container's limit counts the pages of files that were read or written as well;
 * those that nobody uses are taken back first, so they are not in the way. Only cgroups of version 2 are read.
 */
#include "base/memory.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number behind a word at the beginning of a line ("": of the file); false: there is none. */
static bool number_of(const char *path, const char *word, unsigned long long *out)
{
    char line[256];
    bool found = false;
    const size_t n = strlen(word);
    FILE *f = fopen(path, "re");
    while (f && !found && fgets(line, sizeof line, f)) {
        char *end;
        if (strncmp(line, word, n) != 0) continue;
        *out = strtoull(line + n, &end, 10);
        found = end != line + n; /* "max" is no number */
    }
    if (f) fclose(f);
    return found;
}

/* The folder of this process's group; false: it has none of its own kind. */
static bool group_folder(char *buf, size_t n)
{
    char line[3000] = "";
    bool found = false;
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && !found && fgets(line, sizeof line, f)) found = strncmp(line, "0::/", 4) == 0;
    if (f) fclose(f);
    if (!found) return false;
    line[strcspn(line, "\n")] = '\0';
    return snprintf(buf, n, "/sys/fs/cgroup%s", line + 3) < (int)n;
}

static bool read_group(const char *folder, unsigned long long *out)
{
    char path[4096];
    unsigned long long limit, used, files = 0;
    snprintf(path, sizeof path, "%s/memory.max", folder);
    if (!number_of(path, "", &limit)) return false;
    snprintf(path, sizeof path, "%s/memory.current", folder);
    if (!number_of(path, "", &used)) return false;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    (void)number_of(path, "inactive_file ", &files);
    used = used > files ? used - files : 0;
    *out = limit > used ? limit - used : 0;
    return true;
}

size_t ts_memory_available(void)
{
    unsigned long long kib, group, best = SIZE_MAX;
    char folder[3500];
    if (number_of("/proc/meminfo", "MemAvailable:", &kib) && kib < SIZE_MAX / 1024)
        best = kib * 1024;
    if (group_folder(folder, sizeof folder) && read_group(folder, &group) && group < best)
        best = group;
    return best < SIZE_MAX ? (size_t)best : SIZE_MAX;
}
