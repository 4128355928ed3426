/* survey_help.h – small checkpoints for tests that look at them, compare them and remove them. */
#ifndef TS_SURVEY_HELP_H
#define TS_SURVEY_HELP_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "ckpt/checkpoint.h"

enum { PARTS_MAX = 16 };

typedef struct sample {
    const char *folder;
    int64_t step;
    int devices; /* 1, 2 or 4: the first dimension of w is cut over them */
    bool frozen; /* embed is */
    double score;
    const float *w; /* [8,3] */
    const char *frozen_from;
    const char *config;
    ts_commit commit;
} sample;

static const float sample_embed[6] = {1, 2, 3, 4, 5, 6};

static char *sample_root(char root[64])
{
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(root, 64, "%s/tessera-survey-XXXXXX", base);
    return mkdtemp(root);
}

/* w [8,3], its moment, and embed [6]. */
static ts_status sample_save(const sample *s, ts_error *err)
{
    static const float zero[24];
    ts_checkpoint_part part[PARTS_MAX];
    ts_checkpoint_save_options o;
    const float *w = s->w ? s->w : zero;
    size_t n = 0;
    const int devices = s->devices ? s->devices : 1;
    ts_checkpoint_save_options_default(&o);
    for (int moment = 0; moment < 2; moment++)
        for (int d = 0; d < devices; d++) {
            const int64_t dim[2] = {8, 3};
            ts_box box = ts_box_whole(2, dim);
            box.local[0] = 8 / devices;
            box.offset[0] = d * box.local[0];
            TS_ASSERT(ts_box_finish(&box));
            part[n] = (ts_checkpoint_part){.name = moment ? "adam.m.w" : "w", .rank = 2, .dim = {8, 3},
                                           .box = box, .device = d,
                                           .data = w + 3 * box.offset[0]};
            n++;
        }
    const int64_t dim[1] = {6};
    part[n++] = (ts_checkpoint_part){.name = "embed", .rank = 1, .dim = {6}, .box = ts_box_whole(1, dim),
                                     .frozen = s->frozen, .data = sample_embed};
    json_t *state = json_pack("{s:s, s:{s:i, s:s}, s:{s:s}}", "config", s->config ? s->config : "steps: 1\n",
                              "data", "rows", (int)s->step, "order_hash", "00ff", "model", "kind", "llama");
    if (!state) return TS_RESOURCE_EXHAUSTED;
    o.folder = s->folder;
    o.step = s->step;
    o.part = part;
    o.n_part = n;
    o.devices = devices;
    o.mesh = devices == 1 ? "data=1" : devices == 2 ? "fsdp=2" : "fsdp=4";
    o.score = s->score ? s->score : (double)NAN;
    o.state = state;
    o.commit = s->commit ? s->commit : TS_COMMIT_RENAME;
    o.frozen_from = s->frozen_from;
    ts_status status = ts_checkpoint_save(&o, err);
    json_decref(state);
    return status;
}

#endif
