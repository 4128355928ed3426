/* nodes.c – see nodes.h. A flat table and one lock: a test has some hundred files. */
#include "fuse/nodes.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct node {
    char *path;   /* NULL: free, or gone while it is still looked up */
    char *hidden; /* where its bytes are; NULL: at path */
    uint64_t lookups;
} node;

static node *table;
static uint64_t count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Numbers from 1: the root's. */
static node *at(uint64_t id)
{
    return id >= 1 && id <= count ? &table[id - 1] : NULL;
}

static uint64_t find(const char *path)
{
    for (uint64_t id = 1; id <= count; id++)
        if (at(id)->path && strcmp(at(id)->path, path) == 0) return id;
    return 0;
}

static uint64_t unused(void)
{
    for (uint64_t id = ROOT + 1; id <= count; id++)
        if (!at(id)->path && at(id)->lookups == 0) return id;
    node *more = realloc(table, (count + 1) * sizeof *more);
    if (!more) return 0;
    table = more;
    table[count++] = (node){0};
    return count;
}

static uint64_t get(const char *path, const char *hidden)
{
    if (count == 0 && (unused() == 0 || !(at(ROOT)->path = strdup("")))) return 0;
    uint64_t id = hidden ? 0 : find(path);
    if (id == 0) {
        char *mine = strdup(path), *where = hidden ? strdup(hidden) : NULL;
        id = mine && (where || !hidden) ? unused() : 0;
        if (id == 0) {
            free(mine);
            free(where);
            return 0;
        }
        *at(id) = (node){mine, where, 0};
    }
    at(id)->lookups++;
    return id;
}

uint64_t node_get(const char *path, const char *hidden)
{
    pthread_mutex_lock(&lock);
    uint64_t id = get(path, hidden);
    pthread_mutex_unlock(&lock);
    return id;
}

static void lose(node *n)
{
    free(n->path);
    free(n->hidden);
    n->path = n->hidden = NULL;
}

void node_forget(uint64_t id, uint64_t lookups)
{
    pthread_mutex_lock(&lock);
    node *n = at(id);
    if (n && id != ROOT) {
        n->lookups = n->lookups > lookups ? n->lookups - lookups : 0;
        if (n->lookups == 0) lose(n);
    }
    pthread_mutex_unlock(&lock);
}

bool node_path(uint64_t id, char path[PATH_ROOM])
{
    pthread_mutex_lock(&lock);
    if (count == 0 && get("", NULL)) at(ROOT)->lookups = 1;
    node *n = at(id);
    bool there = n && n->path;
    if (there) snprintf(path, PATH_ROOM, "%s", n->hidden ? n->hidden : *n->path ? n->path : ".");
    pthread_mutex_unlock(&lock);
    return there;
}

bool node_child(uint64_t parent, const char *name, char path[PATH_ROOM])
{
    pthread_mutex_lock(&lock);
    if (count == 0) get("", NULL);
    node *n = at(parent);
    bool there = n && n->path;
    if (there)
        there = snprintf(path, PATH_ROOM, "%s%s%s", n->path, *n->path ? "/" : "", name) < PATH_ROOM;
    pthread_mutex_unlock(&lock);
    return there;
}

bool node_show(uint64_t id, char hidden[PATH_ROOM], char path[PATH_ROOM])
{
    pthread_mutex_lock(&lock);
    node *n = at(id);
    bool was = n && n->path && n->hidden;
    if (was) {
        snprintf(hidden, PATH_ROOM, "%s", n->hidden);
        snprintf(path, PATH_ROOM, "%s", n->path);
        free(n->hidden);
        n->hidden = NULL;
    }
    pthread_mutex_unlock(&lock);
    return was;
}

/* What of path lies behind from; NULL: it is neither from nor below it. */
static const char *below(const char *path, const char *from)
{
    size_t n = strlen(from);
    return strncmp(path, from, n) == 0 && (path[n] == '/' || !path[n]) ? path + n : NULL;
}

void node_gone(const char *path)
{
    pthread_mutex_lock(&lock);
    for (uint64_t id = ROOT + 1; id <= count; id++)
        if (at(id)->path && !at(id)->hidden && below(at(id)->path, path)) lose(at(id));
    pthread_mutex_unlock(&lock);
}

void node_moved(const char *from, const char *to)
{
    node_gone(to);
    pthread_mutex_lock(&lock);
    for (uint64_t id = ROOT + 1; id <= count; id++) {
        node *n = at(id);
        const char *rest = n->path && !n->hidden ? below(n->path, from) : NULL;
        char path[PATH_ROOM];
        if (!rest) continue;
        snprintf(path, sizeof path, "%s%s", to, rest);
        char *moved = strdup(path);
        lose(n);
        n->path = moved;
    }
    pthread_mutex_unlock(&lock);
}
