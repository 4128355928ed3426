/* xla/compile_options.h – XLA's CompileOptionsProto, written by hand: three messages, six fields. */
#ifndef TS_COMPILE_OPTIONS_H
#define TS_COMPILE_OPTIONS_H

#include "base/base.h"

typedef struct ts_compile_options {
    int replicas;         /* devices that run the program */
    const int *device_id; /* [replicas] global ids, replica by replica; NULL: 0, 1, … */
    const char *const *flag; /* "xla_…=value": env_option_overrides; true/false, whole numbers, reals, else text */
    int n_flag;
} ts_compile_options;

/* The flag that a platform's compiler gets before the user's, which win; NULL: none. */
const char *ts__compile_flag_of(const char *platform);
/* Appends the message's bytes. INVALID_ARGUMENT: a flag without "=". */
TS_MUST_CHECK ts_status ts__compile_options_write(const ts_compile_options *o, ts_string *out,
                                                  ts_error *err);

#endif
