/* xla/aot_internal.h – what crosses the pipe between aot.c and its child (aot_child.c), and the dump's reader. */
#ifndef TS_AOT_INTERNAL_H
#define TS_AOT_INTERNAL_H

#include "xla/aot.h"
#include "xla/hlo.h"
#include "xla/pjrt.h"
#include "xla/saved.h"

typedef struct ts_aot_answer { /* both ends are one program: the bytes as they lie */
    ts_status status;
    bool too_big; /* status is OK, the message says what did not fit */
    char message[4000];
    ts_saved_key key;
    char kind[64], version[600];
    int64_t capacity_bytes; /* 0: the plugin does not tell */
    ts_pjrt_figures figures;
    double compile_seconds;
    uint64_t executable_bytes; /* that follow */
} ts_aot_answer;

typedef struct ts_aot_work {
    const ts_aot_job *job;
    const char *folder; /* for XLA's dump */
} ts_aot_work;

/* The child's whole work: answer and executable into fd. context: a ts_aot_work. */
void ts__aot_child(void *context, int fd);

/* Work, traffic and collectives of the dumped program, and, where it does not fit, needed_bytes and the largest
 * buffers. A folder without a dump leaves what out has. */
TS_MUST_CHECK ts_status ts__aot_read_dump(const ts_aot_job *job, const char *folder,
                                          ts_aot_report *out, ts_error *err);

/* The mesh that the job's program is for; n 0: none. */
ts_hlo_mesh ts__aot_mesh(const ts_aot_job *job);
/* Fills out->collective: what the graph asks for, and what the optimized program has in its place. */
TS_MUST_CHECK ts_status ts__aot_collectives(const ts_aot_job *job, const ts_hlo_summary *s,
                                            ts_aot_report *out, ts_error *err);

#endif
