/* slowfs.c – slowfs FOLDER MOUNTPOINT [OPTION=VALUE…]: shows a folder as a slow or an object store's mount does.
 *
 *   lookup= open= read= write= sync= rename=   milliseconds that each of these takes
 *   link=no            no second names (EPERM)
 *   rename_folder=no   folders cannot be renamed (ENOTSUP)
 *   rename_file=no     nor can files
 *   visible=close      a new file is seen under its name once it was closed
 *   threads=N          requests served at once (32)
 *
 * Speaks the kernel's protocol on /dev/fuse itself, in the foreground, and ends when it is unmounted, with SIGTERM, or
 * with the process that started it. Every read comes here: nothing stays in the page cache. It needs the right to
 * mount (root, or a namespace of one's own): exit 77 and a sentence where that is missing.
 *
 * For tests alone: no permissions of other users, no links, no holes, no files that live on without a name.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "fuse/nodes.h"

enum { MOST_BYTES = 1 << 20, REQUEST_ROOM = MOST_BYTES + 4096, MOST_THREADS = 256 };
#define HIDDEN ".slowfs-hidden"

static struct {
    long lookup, open, read, write, sync, rename, threads;
    bool links, rename_folders, rename_files, visible_at_once;
} option = {.threads = 32, .links = true, .rename_folders = true, .rename_files = true, .visible_at_once = true};

static int device, folder; /* /dev/fuse; the folder that is shown */

/* A request on its way: what the kernel asks, and what it is told. */
typedef struct request {
    const struct fuse_in_header *in;
    const void *arg;
    char *name, *second; /* in arg, of the calls that have them */
    char *room;          /* [MOST_BYTES] for an answer */
} request;

/* What the calls below return: an errno, or bytes of *answer. */
typedef struct result {
    int error;
    const void *data;
    size_t n;
} result;

static result failed(int error)
{
    return (result){.error = error};
}
static const result done;

static result answer(const void *data, size_t n)
{
    return (result){.data = data, .n = n};
}

static void pause_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    if (ms > 0) nanosleep(&t, NULL);
}

/* ---- attributes ------------------------------------------------------------------------------- */

static void fill_attr(const struct stat *s, uint64_t id, struct fuse_attr *a)
{
    *a = (struct fuse_attr){
        .ino = id,
        .size = (uint64_t)s->st_size,
        .blocks = (uint64_t)s->st_blocks,
        .atime = (uint64_t)s->st_atim.tv_sec,
        .mtime = (uint64_t)s->st_mtim.tv_sec,
        .ctime = (uint64_t)s->st_ctim.tv_sec,
        .atimensec = (uint32_t)s->st_atim.tv_nsec,
        .mtimensec = (uint32_t)s->st_mtim.tv_nsec,
        .ctimensec = (uint32_t)s->st_ctim.tv_nsec,
        .mode = s->st_mode,
        .nlink = (uint32_t)s->st_nlink,
        .uid = s->st_uid,
        .gid = s->st_gid,
        .blksize = 4096,
    };
}

/* A path that was just found or made, as an entry that the kernel asks for anew each time. */
static result entry(const char *path, const char *hidden, struct fuse_entry_out *out)
{
    struct stat s;
    if (fstatat(folder, hidden ? hidden : path, &s, AT_SYMLINK_NOFOLLOW) != 0) return failed(errno);
    *out = (struct fuse_entry_out){.nodeid = node_get(path, hidden), .generation = 1};
    if (out->nodeid == 0) return failed(ENOMEM);
    fill_attr(&s, out->nodeid, &out->attr);
    return answer(out, sizeof *out);
}

static result look_up(request *r)
{
    char path[PATH_ROOM];
    pause_ms(option.lookup);
    if (!node_child(r->in->nodeid, r->name, path) || strcmp(r->name, HIDDEN) == 0) return failed(ENOENT);
    return entry(path, NULL, (struct fuse_entry_out *)r->room);
}

static result get_attr(request *r)
{
    char path[PATH_ROOM];
    struct stat s;
    struct fuse_attr_out *out = (struct fuse_attr_out *)r->room;
    if (!node_path(r->in->nodeid, path)) return failed(ENOENT);
    if (fstatat(folder, path, &s, AT_SYMLINK_NOFOLLOW) != 0) return failed(errno);
    *out = (struct fuse_attr_out){0};
    fill_attr(&s, r->in->nodeid, &out->attr);
    return answer(out, sizeof *out);
}

static result set_attr(request *r)
{
    const struct fuse_setattr_in *in = r->arg;
    char path[PATH_ROOM];
    if (!node_path(r->in->nodeid, path)) return failed(ENOENT);
    if (in->valid & FATTR_MODE && fchmodat(folder, path, in->mode & 07777, 0) != 0) return failed(errno);
    if (in->valid & FATTR_SIZE) {
        int fd = openat(folder, path, O_WRONLY | O_CLOEXEC);
        int error = fd < 0 || ftruncate(fd, (off_t)in->size) != 0 ? errno : 0;
        if (fd >= 0) close(fd);
        if (error) return failed(error);
    }
    return get_attr(r);
}

static result stat_fs(request *r)
{
    struct statvfs s;
    struct fuse_statfs_out *out = (struct fuse_statfs_out *)r->room;
    if (fstatvfs(folder, &s) != 0) return failed(errno);
    *out = (struct fuse_statfs_out){.st = {.blocks = s.f_blocks,
                                           .bfree = s.f_bfree,
                                           .bavail = s.f_bavail,
                                           .files = s.f_files,
                                           .ffree = s.f_ffree,
                                           .bsize = (uint32_t)s.f_bsize,
                                           .namelen = 255,
                                           .frsize = (uint32_t)s.f_frsize}};
    return answer(out, sizeof *out);
}

/* ---- names ------------------------------------------------------------------------------------ */

static bool is_folder(const char *path)
{
    struct stat s;
    return fstatat(folder, path, &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(s.st_mode);
}

static result make_folder(request *r)
{
    const struct fuse_mkdir_in *in = r->arg;
    char path[PATH_ROOM];
    if (!node_child(r->in->nodeid, r->name, path)) return failed(ENOENT);
    if (mkdirat(folder, path, in->mode & 07777) != 0) return failed(errno);
    return entry(path, NULL, (struct fuse_entry_out *)r->room);
}

static result remove_name(request *r, int flags)
{
    char path[PATH_ROOM];
    if (!node_child(r->in->nodeid, r->name, path)) return failed(ENOENT);
    if (unlinkat(folder, path, flags) != 0) return failed(errno);
    node_gone(path);
    return done;
}

static result rename_name(request *r, uint64_t to_folder, unsigned flags)
{
    char from[PATH_ROOM], to[PATH_ROOM];
    pause_ms(option.rename);
    if (!node_child(r->in->nodeid, r->name, from) || !node_child(to_folder, r->second, to))
        return failed(ENOENT);
    if (flags) return failed(EINVAL);
    if (!(is_folder(from) ? option.rename_folders : option.rename_files)) return failed(ENOTSUP);
    if (renameat(folder, from, folder, to) != 0) return failed(errno);
    node_moved(from, to);
    return done;
}

static result link_name(request *r)
{
    const struct fuse_link_in *in = r->arg;
    char from[PATH_ROOM], to[PATH_ROOM];
    if (!option.links) return failed(EPERM);
    if (!node_path(in->oldnodeid, from) || !node_child(r->in->nodeid, r->name, to)) return failed(ENOENT);
    if (linkat(folder, from, folder, to, 0) != 0) return failed(errno);
    return entry(to, NULL, (struct fuse_entry_out *)r->room);
}

/* ---- files ------------------------------------------------------------------------------------ */

static struct fuse_open_out opened(int fd)
{
    return (struct fuse_open_out){.fh = (uint64_t)fd, .open_flags = FOPEN_DIRECT_IO};
}

static result open_file(request *r)
{
    const struct fuse_open_in *in = r->arg;
    char path[PATH_ROOM];
    pause_ms(option.open);
    if (!node_path(r->in->nodeid, path)) return failed(ENOENT);
    int fd = openat(folder, path, (int)(in->flags & ~(unsigned)(O_CREAT | O_EXCL | O_NOFOLLOW)) | O_CLOEXEC);
    if (fd < 0) return failed(errno);
    struct fuse_open_out *out = (struct fuse_open_out *)r->room;
    *out = opened(fd);
    return answer(out, sizeof *out);
}

static result create_file(request *r)
{
    static _Atomic unsigned number;
    const struct fuse_create_in *in = r->arg;
    char path[PATH_ROOM], hidden[64];
    pause_ms(option.open);
    if (!node_child(r->in->nodeid, r->name, path)) return failed(ENOENT);
    bool hide = !option.visible_at_once && faccessat(folder, path, F_OK, 0) != 0;
    snprintf(hidden, sizeof hidden, HIDDEN "/%u", number++);
    int flags = (int)(in->flags & ~(unsigned)O_NOFOLLOW) | O_CREAT | O_CLOEXEC;
    int fd = openat(folder, hide ? hidden : path, flags, in->mode & 07777);
    if (fd < 0) return failed(errno);
    struct fuse_entry_out *e = (struct fuse_entry_out *)r->room;
    struct fuse_open_out out = opened(fd);
    result found = entry(path, hide ? hidden : NULL, e);
    if (found.error) {
        close(fd);
        return found;
    }
    memcpy(e + 1, &out, sizeof out);
    return answer(e, sizeof *e + sizeof out);
}

static result read_file(request *r)
{
    const struct fuse_read_in *in = r->arg;
    pause_ms(option.read);
    size_t n = in->size < MOST_BYTES ? in->size : MOST_BYTES;
    ssize_t got = pread((int)in->fh, r->room, n, (off_t)in->offset);
    return got < 0 ? failed(errno) : answer(r->room, (size_t)got);
}

static result write_file(request *r)
{
    const struct fuse_write_in *in = r->arg;
    pause_ms(option.write);
    ssize_t put = pwrite((int)in->fh, in + 1, in->size, (off_t)in->offset);
    if (put < 0) return failed(errno);
    struct fuse_write_out *out = (struct fuse_write_out *)r->room;
    *out = (struct fuse_write_out){.size = (uint32_t)put};
    return answer(out, sizeof *out);
}

static result sync_file(request *r)
{
    const struct fuse_fsync_in *in = r->arg;
    pause_ms(option.sync);
    return fsync((int)in->fh) == 0 ? done : failed(errno);
}

/* A close: now the file is seen, also where it was the kernel that closed it for a process that was killed. */
static result flush_file(request *r)
{
    char hidden[PATH_ROOM], path[PATH_ROOM];
    if (!node_show(r->in->nodeid, hidden, path)) return done;
    return renameat(folder, hidden, folder, path) == 0 ? done : failed(errno);
}

static result release_file(request *r)
{
    const struct fuse_release_in *in = r->arg;
    result shown = flush_file(r);
    close((int)in->fh);
    return shown;
}

/* ---- folders ---------------------------------------------------------------------------------- */

static result open_folder(request *r)
{
    char path[PATH_ROOM];
    pause_ms(option.open);
    if (!node_path(r->in->nodeid, path)) return failed(ENOENT);
    int fd = openat(folder, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) return failed(errno);
    struct fuse_open_out *out = (struct fuse_open_out *)r->room;
    *out = (struct fuse_open_out){.fh = (uint64_t)(uintptr_t)d};
    return answer(out, sizeof *out);
}

static result read_folder(request *r)
{
    const struct fuse_read_in *in = r->arg;
    DIR *d = (DIR *)(uintptr_t)in->fh;
    size_t n = 0, room = in->size < MOST_BYTES ? in->size : MOST_BYTES;
    pause_ms(option.lookup);
    if (in->offset == 0)
        rewinddir(d);
    else
        seekdir(d, (long)in->offset);
    for (struct dirent *e; (e = readdir(d));) {
        size_t length = strlen(e->d_name);
        struct fuse_dirent *to = (struct fuse_dirent *)(r->room + n);
        size_t bytes = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + length);
        if (strcmp(e->d_name, HIDDEN) == 0) continue;
        if (n + bytes > room) break;
        memset(to, 0, bytes);
        *to = (struct fuse_dirent){e->d_ino, (uint64_t)telldir(d), (uint32_t)length, e->d_type};
        memcpy(r->room + n + FUSE_NAME_OFFSET, e->d_name, length);
        n += bytes;
    }
    return answer(r->room, n);
}

static result release_folder(request *r)
{
    const struct fuse_release_in *in = r->arg;
    closedir((DIR *)(uintptr_t)in->fh);
    return done;
}

/* ---- requests --------------------------------------------------------------------------------- */

static result begin(request *r)
{
    const struct fuse_init_in *in = r->arg;
    struct fuse_init_out *out = (struct fuse_init_out *)r->room;
    unsigned wanted = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_MAX_PAGES | FUSE_PARALLEL_DIROPS;
    *out = (struct fuse_init_out){.major = FUSE_KERNEL_VERSION,
                                  .minor = 31, /* the newest whose answers are those below */
                                  .max_readahead = in->max_readahead,
                                  .flags = in->flags & wanted,
                                  .max_background = 64,
                                  .congestion_threshold = 48,
                                  .max_write = MOST_BYTES,
                                  .time_gran = 1,
                                  .max_pages = MOST_BYTES / 4096};
    return answer(out, sizeof *out);
}

/* Bytes in front of the first name of a call that has names. */
static size_t names_at(uint32_t opcode)
{
    switch (opcode) {
    case FUSE_MKDIR: return sizeof(struct fuse_mkdir_in);
    case FUSE_CREATE: return sizeof(struct fuse_create_in);
    case FUSE_LINK: return sizeof(struct fuse_link_in);
    case FUSE_RENAME: return sizeof(struct fuse_rename_in);
    case FUSE_RENAME2: return sizeof(struct fuse_rename2_in);
    default: return 0;
    }
}

static result call(request *r)
{
    switch (r->in->opcode) {
    case FUSE_INIT: return begin(r);
    case FUSE_LOOKUP: return look_up(r);
    case FUSE_GETATTR: return get_attr(r);
    case FUSE_SETATTR: return set_attr(r);
    case FUSE_STATFS: return stat_fs(r);
    case FUSE_MKDIR: return make_folder(r);
    case FUSE_UNLINK: return remove_name(r, 0);
    case FUSE_RMDIR: return remove_name(r, AT_REMOVEDIR);
    case FUSE_RENAME: return rename_name(r, ((const struct fuse_rename_in *)r->arg)->newdir, 0);
    case FUSE_RENAME2: {
        const struct fuse_rename2_in *in = r->arg;
        return rename_name(r, in->newdir, in->flags);
    }
    case FUSE_LINK: return link_name(r);
    case FUSE_OPEN: return open_file(r);
    case FUSE_CREATE: return create_file(r);
    case FUSE_READ: return read_file(r);
    case FUSE_WRITE: return write_file(r);
    case FUSE_FSYNC: return sync_file(r);
    case FUSE_FLUSH: return flush_file(r);
    case FUSE_RELEASE: return release_file(r);
    case FUSE_OPENDIR: return open_folder(r);
    case FUSE_READDIR: return read_folder(r);
    case FUSE_RELEASEDIR: return release_folder(r);
    case FUSE_FSYNCDIR: return done;
    default: return failed(ENOSYS);
    }
}

static void forget(const struct fuse_in_header *in, const void *arg)
{
    if (in->opcode == FUSE_FORGET) node_forget(in->nodeid, ((const struct fuse_forget_in *)arg)->nlookup);
    if (in->opcode != FUSE_BATCH_FORGET) return;
    const struct fuse_batch_forget_in *many = arg;
    const struct fuse_forget_one *one = (const struct fuse_forget_one *)(many + 1);
    for (uint32_t i = 0; i < many->count; i++) node_forget(one[i].nodeid, one[i].nlookup);
}

static void *serve(void *unused)
{
    char *asked = malloc(REQUEST_ROOM), *room = malloc(MOST_BYTES);
    (void)unused;
    while (asked && room) {
        ssize_t got = read(device, asked, REQUEST_ROOM);
        if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT)) continue;
        if (got < (ssize_t)sizeof(struct fuse_in_header)) break; /* ENODEV: unmounted */
        request r = {.in = (struct fuse_in_header *)asked, .arg = asked + sizeof *r.in, .room = room};
        uint32_t what = r.in->opcode;
        if (what == FUSE_DESTROY) break;
        if (what == FUSE_FORGET || what == FUSE_BATCH_FORGET || what == FUSE_INTERRUPT) {
            forget(r.in, r.arg);
            continue;
        }
        r.name = asked + sizeof *r.in + names_at(what);
        if (what == FUSE_RENAME || what == FUSE_RENAME2) r.second = r.name + strlen(r.name) + 1;
        result said = call(&r);
        struct fuse_out_header out = {(uint32_t)(sizeof out + said.n), -said.error, r.in->unique};
        struct iovec part[] = {{&out, sizeof out}, {(void *)(uintptr_t)said.data, said.n}};
        if (writev(device, part, said.n ? 2 : 1) < 0 && errno == ENODEV) break;
    }
    free(asked);
    free(room);
    return NULL;
}

/* ---- start ------------------------------------------------------------------------------------ */

static bool take_option(const char *word)
{
    const struct {
        const char *name;
        long *number;
        bool *on;
        const char *off;
    } known[] = {
        {"lookup", &option.lookup, NULL, NULL},
        {"open", &option.open, NULL, NULL},
        {"read", &option.read, NULL, NULL},
        {"write", &option.write, NULL, NULL},
        {"sync", &option.sync, NULL, NULL},
        {"rename", &option.rename, NULL, NULL},
        {"threads", &option.threads, NULL, NULL},
        {"link", NULL, &option.links, "no"},
        {"rename_folder", NULL, &option.rename_folders, "no"},
        {"rename_file", NULL, &option.rename_files, "no"},
        {"visible", NULL, &option.visible_at_once, "close"},
    };
    const char *value = strchr(word, '=');
    for (size_t i = 0; value && i < sizeof known / sizeof *known; i++) {
        size_t n = (size_t)(value - word);
        if (strlen(known[i].name) != n || strncmp(known[i].name, word, n) != 0) continue;
        if (known[i].number) {
            char *end;
            *known[i].number = strtol(value + 1, &end, 10);
            return !*end && end > value + 1 && *known[i].number >= 0;
        }
        *known[i].on = strcmp(value + 1, known[i].off) != 0;
        return true;
    }
    return false;
}

static int missing(const char *what)
{
    printf("%s: %s\n", what, strerror(errno));
    return 77;
}

static int show(const char *from, const char *at)
{
    char data[128];
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device < 0) return missing("/dev/fuse cannot be opened");
    snprintf(data, sizeof data, "fd=%d,rootmode=40000,user_id=%u,group_id=%u", device, getuid(), getgid());
    folder = open(from, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0 || (mkdirat(folder, HIDDEN, 0700) != 0 && errno != EEXIST)) {
        perror(from);
        return 1;
    }
    if (mount("slowfs", at, "fuse.slowfs", MS_NOSUID | MS_NODEV, data) != 0)
        return missing("a file system cannot be mounted here");
    return 0;
}

static char mounted_at[PATH_ROOM];
static void end(int number)
{
    (void)number;
    umount2(mounted_at, MNT_DETACH);
    _exit(0);
}

int main(int argc, char **argv)
{
    for (int i = 3; i < argc; i++) {
        if (take_option(argv[i])) continue;
        fprintf(stderr, "slowfs: %s is no option\n", argv[i]);
        return 2;
    }
    if (argc < 3 || option.threads < 1 || option.threads > MOST_THREADS) {
        fprintf(stderr, "usage: slowfs FOLDER MOUNTPOINT [OPTION=VALUE...]\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    int code = show(argv[1], argv[2]);
    if (code) return code;
    snprintf(mounted_at, sizeof mounted_at, "%s", argv[2]);
    signal(SIGTERM, end);
    signal(SIGINT, end);
    pthread_t thread[MOST_THREADS];
    long n = 0;
    while (n < option.threads && pthread_create(&thread[n], NULL, serve, NULL) == 0) n++;
    for (long i = 0; i < n; i++) pthread_join(thread[i], NULL);
    umount2(argv[2], MNT_DETACH);
    return n > 0 ? 0 : 1;
}
