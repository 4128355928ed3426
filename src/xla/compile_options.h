/* xla/compile_options.h – XLA's CompileOptionsProto, written by hand: three messages, six fields. */
#ifndef TS_COMPILE_OPTIONS_H
#define TS_COMPILE_OPTIONS_H

#include "base/base.h"

typedef struct ts_compile_options {
    int replicas;         /* devices that run the program */
    const int *device_id; /* [replicas] global ids, replica by replica; NULL: 0, 1, … */
    const char *const *flag; /* "xla_…=value": env_option_overrides; true/false, whole numbers, reals, else text */
    int n_flag;
    bool partitioned; /* one program over all of these devices, cut by XLA's partitioner as its shardings say */
} ts_compile_options;

/* Appends the message's bytes. INVALID_ARGUMENT: a flag without "=". */
TS_MUST_CHECK ts_status ts__compile_options_write(const ts_compile_options *o, ts_string *out,
                                                  ts_error *err);
/* The same as every compilation on a platform ("tpu") gets it: what its compiler needs stands before o's flags, which
 * win, and behind them where XLA dumps its programs. dump_to: a folder; NULL: no dump. */
TS_MUST_CHECK ts_status ts__compile_options_for(const char *platform, const ts_compile_options *o,
                                                const char *dump_to, ts_string *out, ts_error *err);

#endif
