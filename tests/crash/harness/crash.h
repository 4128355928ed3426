/* crash.h – what the crash tests share: a small run whose every value is known, and a recorder of kernel calls.
 *
 * A save is told from every other by its number: it stands in the state, and each value is a function of it, of
 * the tensor and of the element. So what is read back says which save it is of, and whether all of it is.
 *
 * TESSERA_CRASH=full runs the full forms (make crash), anything else the short ones. TESSERA_CRASH_SEED sets the
 * seed of random choices; it is printed. Lines "figure: NAME: NUMBER" are gathered by tools/crash.sh.
 */
#ifndef TS_TEST_CRASH_H
#define TS_TEST_CRASH_H

#include "base/file.h"
#include "ckpt/checkpoint.h"

bool crash_full(void);
uint64_t crash_seed(void);        /* printed at the first call */
uint64_t crash_random(uint64_t *state);
double crash_seconds(void);       /* of a clock that only goes forward */
void crash_figure(const char *test, const char *what, double value);
/* A folder of its own: on tmpfs where fast says so and there is one. Exits when it cannot. */
void crash_make_root(char root[96], bool fast);
void crash_quiet(void);           /* what the library logs is not printed */
int crash_open_files(void);       /* descriptors of this process; −1: /proc is not there */

/* ---- the run --------------------------------------------------------------------------------- */

typedef struct crash_run {
    const char *folder; /* <run>/checkpoints */
    int devices;        /* 1 or 4 */
    int scale;          /* 1: some hundred bytes a file */
    bool frozen;        /* two frozen tensors as well */
    ts_commit commit;
} crash_run;

/* The save of that number; frozen_from: the step whose frozen files are taken, −1: none. */
ts_status crash_save(const crash_run *r, int64_t step, int number, int64_t frozen_from,
                     ts_error *err);

typedef struct crash_seen {
    ts_status status;  /* of opening the newest */
    int64_t step;
    int number;        /* of the save */
    char problem[256]; /* "": every value is of that save */
    ts_error err;
} crash_seen;
/* Opens the newest checkpoint, or the one of that step where step ≥ 0, and looks at every value. */
crash_seen crash_look(const crash_run *r, int64_t step);
/* Names in the folder that are no step: what interrupted saves left. −1: it cannot be listed. */
int crash_leftovers(const char *folder);

/* ---- the recorder ---------------------------------------------------------------------------- */

typedef enum crash_kind {
    CRASH_CREATE, /* a file that was not there, or is cut to nothing */
    CRASH_WRITE,
    CRASH_SYNC, /* of a file or a folder */
    CRASH_MKDIR,
    CRASH_RENAME,
    CRASH_EXCHANGE,
    CRASH_LINK,
    CRASH_UNLINK,
    CRASH_RMDIR,
    CRASH_BEGUN,       /* a save of this number … */
    CRASH_ACKNOWLEDGED /* … has returned TS_OK */
} crash_kind;

typedef struct crash_op {
    crash_kind kind;
    char *path, *to; /* below the root; owned */
    uint64_t offset;
    unsigned char *data; /* owned */
    size_t n;
    int number;
} crash_op;

typedef struct crash_log {
    char root[96];
    crash_op *op;
    size_t n, capacity;
} crash_log;

/* Records every call below root that changes something, until crash_record_end. One at a time. */
void crash_record(crash_log *log, const char *root);
void crash_record_end(void);
void crash_log_mark(crash_log *log, crash_kind kind, int number);
/* Takes an entry out, or moves it to stand before entry `to`: a planted fault. */
void crash_log_drop(crash_log *log, size_t at);
void crash_log_move(crash_log *log, size_t at, size_t to);
void crash_log_free(crash_log *log);

#endif
