/* train/choose.h – which engine runs: by the configuration, else by the devices of the machine. */
#ifndef TS_TRAIN_CHOOSE_H
#define TS_TRAIN_CHOOSE_H

#include "exec/engine.h"
#include "train/config.h"

typedef struct ts_engine_choice {
    const char *engine; /* "cpu" or "xla" */
    const char *plugin; /* xla: a name or a path; borrows from the configuration. NULL for cpu */
    bool found;         /* the plugin is the one for a device that was found */
    char why[200]; /* "engine=auto: found /dev/nvidia0"; "" where the configuration says it all */
} ts_engine_choice;

/* root stands before /dev and /sys: "" but for tests. */
void ts__choose_engine(const ts_config *c, const char *root, ts_engine_choice *out);
/* What training refuses once the engine is known: a profiler of the other engine, a compiled step that is missing. */
TS_MUST_CHECK ts_status ts__check_engine_keys(const ts_config *c, const ts_engine_choice *choice,
                                              ts_error *err);
/* Keys that are set and have no effect on training with this engine; NULL past the last. */
const char *ts__engine_note(const ts_config *c, const ts_engine_choice *choice, int i);
/* A plugin or device that is missing is UNAVAILABLE, with what to do. */
TS_MUST_CHECK ts_status ts__open_chosen(const ts_config *c, const ts_engine_choice *choice,
                                        ts_engine **out, ts_error *err);
/* The configuration on the devices that the engine has: a copy, to live no longer than c. */
TS_MUST_CHECK ts_status ts__place_on(const ts_config *c, ts_engine *e, const ts_model_config *model,
                                     ts_config *out, ts_error *err);
/* Chosen and opened, on this machine; and the configuration placed on it. */
TS_MUST_CHECK ts_status ts__open_engine(const ts_config *c, ts_engine **out, ts_error *err);
TS_MUST_CHECK ts_status ts__open_placed(const ts_config *c, const ts_model_config *model,
                                        ts_config *placed, ts_engine **out, ts_error *err);

#endif
