/* disk.c – see disk.h. */
#include "disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/random.h"
#include "ckpt/checkpoint_internal.h"

enum { NONE = -1, ROOT = 0, NAME_BYTES = 160, NAMES_MAX = 64 };

typedef struct entry {
    char name[NAME_BYTES];
    int node;
} entry;

typedef struct names {
    entry e[NAMES_MAX];
    size_t n;
} names;

typedef struct bytes {
    unsigned char *data;
    size_t n, room;
} bytes;

/* A change of the log with its paths resolved: names of one folder, or bytes of one file. */
typedef struct change {
    int node;   /* whose bytes or names it changes, or that is synced */
    entry a, b; /* names that are set; node NONE: taken away */
    int n;      /* how many of them */
} change;

typedef struct node {
    bool folder;
    bytes durable, chosen; /* of a file */
    names *durable_names;  /* of a folder */
    size_t *pending, n_pending, room;
    bool is_chosen;
} node;

typedef struct item { /* of the state that was chosen last */
    char path[512];
    int node;
} item;

struct disk {
    crash_log *log;
    change *change; /* one an entry of the log, by crash_op.number of those that are no marks */
    size_t at;
    node *node;
    int n_node;
    item *item;
    size_t n_item, item_room;
};

/* ---- names and bytes ------------------------------------------------------------------------- */

static int find(const names *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->e[i].name, name) == 0) return (int)i;
    return NONE;
}

static void set_name(names *s, const entry *e)
{
    int i = find(s, e->name);
    if (e->node == NONE) {
        if (i != NONE) s->e[i] = s->e[--s->n];
    } else if (i != NONE) {
        s->e[i].node = e->node;
    } else {
        TS_ASSERT(s->n < NAMES_MAX);
        s->e[s->n++] = *e;
    }
}

static void change_names(names *s, const change *c)
{
    if (c->n > 0) set_name(s, &c->a);
    if (c->n > 1) set_name(s, &c->b);
}

static void grow(bytes *b, size_t n)
{
    if (n > b->room) {
        unsigned char *grown = ts_realloc(b->data, b->room, n * 2);
        TS_ASSERT(grown);
        b->data = grown;
        b->room = n * 2;
    }
    if (n > b->n) memset(b->data + b->n, 0, n - b->n);
    if (n > b->n) b->n = n;
}

static void change_bytes(bytes *b, const crash_op *op)
{
    if (op->kind == CRASH_CREATE) {
        b->n = 0;
        return;
    }
    grow(b, (size_t)op->offset + op->n);
    memcpy(b->data + op->offset, op->data, op->n);
}

static void copy_bytes(bytes *to, const bytes *from)
{
    to->n = 0;
    grow(to, from->n);
    if (from->n) memcpy(to->data, from->data, from->n);
}

/* ---- resolving the log ----------------------------------------------------------------------- */

static int new_node(disk *d, bool folder)
{
    int i = d->n_node++;
    d->node[i] = (node){.folder = folder};
    if (folder) d->node[i].durable_names = ts_alloc_zero(sizeof(names));
    TS_ASSERT(!folder || d->node[i].durable_names);
    return i;
}

/* The folder that holds path, and the last name of it. */
static int folder_of(const disk *d, names *const *now, const char *path, char name[NAME_BYTES])
{
    int at = ROOT;
    (void)d;
    for (;;) {
        size_t n = strcspn(path, "/");
        TS_ASSERT(n < NAME_BYTES);
        memcpy(name, path, n);
        name[n] = '\0';
        if (!path[n]) return at;
        int i = find(now[at], name);
        TS_ASSERT(i != NONE);
        at = now[at]->e[i].node;
        path += n + 1;
    }
}

static int node_of(const disk *d, names *const *now, const char *path)
{
    char name[NAME_BYTES];
    if (!*path) return ROOT;
    int folder = folder_of(d, now, path, name), i = find(now[folder], name);
    return i == NONE ? NONE : now[folder]->e[i].node;
}

static void resolve(disk *d, names **now, const crash_op *op, change *c)
{
    c->node = NONE;
    if (op->kind == CRASH_BEGUN || op->kind == CRASH_ACKNOWLEDGED) return;
    int there = node_of(d, now, op->path);
    if (op->kind == CRASH_WRITE || op->kind == CRASH_SYNC ||
        (op->kind == CRASH_CREATE && there != NONE)) {
        TS_ASSERT(there != NONE);
        c->node = there;
        return;
    }
    c->node = folder_of(d, now, op->path, c->a.name);
    c->n = 1;
    if (op->kind == CRASH_CREATE || op->kind == CRASH_MKDIR) {
        c->a.node = new_node(d, op->kind == CRASH_MKDIR);
        if (op->kind == CRASH_MKDIR) now[c->a.node] = ts_alloc_zero(sizeof(names));
    } else if (op->kind == CRASH_UNLINK || op->kind == CRASH_RMDIR) {
        c->a.node = NONE;
    } else if (op->kind == CRASH_LINK) {
        c->node = folder_of(d, now, op->to, c->a.name);
        c->a.node = there;
    } else { /* within one folder */
        int folder = folder_of(d, now, op->to, c->b.name);
        TS_ASSERT(folder == c->node);
        c->n = 2;
        c->a.node = op->kind == CRASH_EXCHANGE ? node_of(d, now, op->to) : NONE;
        c->b.node = there;
    }
    change_names(now[c->node], c);
}

/* What a loss of power left is all there, and durable: paths of folders stand before what is in them. */
static void begin_with(disk *d, names **now, const disk *before)
{
    for (size_t i = 0; i < before->n_item; i++) {
        const node *old = &before->node[before->item[i].node];
        entry e;
        int folder = folder_of(d, now, before->item[i].path + 1, e.name);
        e.node = new_node(d, old->folder);
        if (old->folder) now[e.node] = ts_alloc_zero(sizeof(names));
        if (!old->folder) copy_bytes(&d->node[e.node].durable, &old->chosen);
        set_name(d->node[folder].durable_names, &e);
        set_name(now[folder], &e);
    }
}

disk *disk_new(crash_log *log, const disk *before)
{
    disk *d = ts_alloc_zero(sizeof *d);
    size_t most = log->n + 1 + (before ? before->n_item : 0);
    names **now = ts_alloc_zero(most * sizeof *now);
    TS_ASSERT(d && now);
    d->log = log;
    d->change = ts_alloc_zero((log->n + 1) * sizeof *d->change);
    d->node = ts_alloc_zero(most * sizeof *d->node);
    TS_ASSERT(d->change && d->node);
    now[new_node(d, true)] = ts_alloc_zero(sizeof(names));
    if (before) begin_with(d, now, before);
    for (size_t i = 0; i < log->n; i++) {
        resolve(d, now, &log->op[i], &d->change[i]);
        if (d->change[i].node != NONE) log->op[i].number = (int)i;
    }
    for (int i = 0; i < d->n_node; i++) ts_free(now[i]);
    ts_free(now);
    return d;
}

void disk_free(disk *d)
{
    if (!d) return;
    for (int i = 0; i < d->n_node; i++) {
        ts_free(d->node[i].durable.data);
        ts_free(d->node[i].chosen.data);
        ts_free(d->node[i].durable_names);
        ts_free(d->node[i].pending);
    }
    ts_free(d->node);
    ts_free(d->change);
    ts_free(d->item);
    ts_free(d);
}

/* ---- what happens ---------------------------------------------------------------------------- */

static void sync_node(disk *d, node *x)
{
    for (size_t i = 0; i < x->n_pending; i++) {
        const crash_op *op = &d->log->op[x->pending[i]];
        if (x->folder)
            change_names(x->durable_names, &d->change[op->number]);
        else
            change_bytes(&x->durable, op);
    }
    x->n_pending = 0;
}

bool disk_step(disk *d)
{
    if (d->at == d->log->n) return false;
    const crash_op *op = &d->log->op[d->at];
    bool mark = op->kind == CRASH_BEGUN || op->kind == CRASH_ACKNOWLEDGED;
    node *x = mark ? NULL : &d->node[d->change[op->number].node];
    if (!mark && op->kind == CRASH_SYNC) {
        sync_node(d, x);
    } else if (!mark) {
        if (x->n_pending == x->room) {
            size_t more = x->room ? x->room * 2 : 16;
            size_t *grown =
                ts_realloc(x->pending, x->room * sizeof *grown, more * sizeof *grown);
            TS_ASSERT(grown);
            x->pending = grown;
            x->room = more;
        }
        x->pending[x->n_pending++] = d->at;
    }
    d->at++;
    return true;
}

size_t disk_at(const disk *d)
{
    return d->at;
}

size_t disk_unsynced(const disk *d)
{
    size_t n = 0;
    for (int i = 0; i < d->n_node; i++) n += d->node[i].n_pending;
    return n;
}

/* ---- losing power ---------------------------------------------------------------------------- */

static bool chance(uint64_t *random, unsigned percent)
{
    return crash_random(random) % 100 < percent;
}

/* Sectors or pages, each of them old or new; what was never written is zero or what lay there before. */
static void tear(bytes *b, const bytes *old, uint64_t *random)
{
    size_t unit = chance(random, 50) ? 512 : 4096;
    size_t least = old->n < b->n ? old->n : b->n, length = b->n;
    unsigned arrived = (unsigned)(crash_random(random) % 101);
    bool stale = chance(random, 30);
    switch (crash_random(random) % 3) {
    case 0: length = b->n; break;
    case 1: length = least + crash_random(random) % (b->n - least + 1); break;
    default: length = (least + crash_random(random) % (b->n - least + 1)) / unit * unit;
    }
    if (length < least) length = least;
    for (size_t at = 0; at < length; at += unit) {
        if (chance(random, arrived)) continue;
        for (size_t i = at; i < at + unit && i < length; i++)
            b->data[i] = i < old->n ? old->data[i]
                         : stale    ? (unsigned char)crash_random(random)
                                    : 0;
    }
    b->n = length;
}

static void choose_bytes(disk *d, node *x, unsigned mode, uint64_t *random)
{
    if (x->is_chosen) return; /* by another name of it */
    x->is_chosen = true;
    copy_bytes(&x->chosen, &x->durable);
    if (x->n_pending == 0 || mode == 0) return;
    for (size_t i = 0; i < x->n_pending; i++)
        if (mode != 2 || chance(random, 50))
            change_bytes(&x->chosen, &d->log->op[x->pending[i]]);
    if (mode == 3) tear(&x->chosen, &x->durable, random);
    if (mode == 4 && x->chosen.n > x->durable.n) /* grown, and nothing has arrived */
        memset(x->chosen.data + x->durable.n, 0, x->chosen.n - x->durable.n);
}

typedef struct choice {
    unsigned names;  /* percent of the changes of names that are there */
    int bytes;       /* mode of every file; −1: each its own */
    uint64_t *random;
} choice;

static uint64_t choose_folder(disk *d, int folder, const char *path, const choice *c)
{
    node *x = &d->node[folder];
    names now = *x->durable_names;
    uint64_t hash = 0;
    for (size_t i = 0; i < x->n_pending; i++)
        if (chance(c->random, c->names))
            change_names(&now, &d->change[d->log->op[x->pending[i]].number]);
    for (size_t i = 0; i < now.n; i++) {
        if (d->n_item == d->item_room) {
            size_t more = d->item_room ? d->item_room * 2 : 64;
            item *grown = ts_realloc(d->item, d->item_room * sizeof *grown, more * sizeof *grown);
            TS_ASSERT(grown);
            d->item = grown;
            d->item_room = more;
        }
        item it = {.node = now.e[i].node};
        node *y = &d->node[it.node];
        int length = snprintf(it.path, sizeof it.path, "%s/%s", path, now.e[i].name);
        TS_ASSERT(length > 0 && (size_t)length < sizeof it.path);
        d->item[d->n_item++] = it;
        uint64_t h = ts__checkpoint_hash(it.path, (size_t)length);
        if (y->folder) {
            hash += ts_mix64(h) + choose_folder(d, it.node, it.path, c);
        } else {
            unsigned mode =
                c->bytes >= 0 ? (unsigned)c->bytes : (unsigned)(crash_random(c->random) % 5);
            choose_bytes(d, y, mode, c->random);
            hash += ts_mix64(h ^ ts_mix64(ts__checkpoint_hash(y->chosen.data, y->chosen.n)));
        }
    }
    return hash;
}

uint64_t disk_crash(disk *d, uint64_t which, uint64_t *random)
{
    static const choice first[] = {
        {0, 0, NULL}, {100, 1, NULL}, {100, 0, NULL}, {0, 1, NULL}};
    static const unsigned percent[] = {100, 50, 90, 10, 0, 75};
    choice c;
    if (which < sizeof first / sizeof *first) {
        c = first[which];
    } else {
        c.names = percent[crash_random(random) % 6];
        c.bytes = chance(random, 50) ? -1 : (int)(crash_random(random) % 5);
    }
    c.random = random;
    for (int i = 0; i < d->n_node; i++) d->node[i].is_chosen = false;
    d->n_item = 0;
    return choose_folder(d, ROOT, "", &c);
}

bool disk_write(const disk *d, const char *root)
{
    for (size_t i = 0; i < d->n_item; i++) {
        char path[700];
        const node *x = &d->node[d->item[i].node];
        snprintf(path, sizeof path, "%s%s", root, d->item[i].path);
        if (x->folder) {
            if (mkdir(path, 0777) != 0) return false;
            continue;
        }
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
        if (fd < 0) return false;
        bool whole =
            x->chosen.n == 0 || write(fd, x->chosen.data, x->chosen.n) == (ssize_t)x->chosen.n;
        close(fd);
        if (!whole) return false;
    }
    return true;
}
