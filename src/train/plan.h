/* train/plan.h – what the files of `tessera plan` share: kinds of devices, a plan of one
 * configuration, the search for one that fits. */
#ifndef TS_TRAIN_PLAN_H
#define TS_TRAIN_PLAN_H

#include "train/config.h"

typedef enum ts_device_family { TS_FAMILY_CPU, TS_FAMILY_TPU, TS_FAMILY_GPU } ts_device_family;

/* What is published of one device; 0: unknown. Bytes and operations a second. */
typedef struct ts_device_kind {
    const char *name;
    ts_device_family family;
    int64_t bytes;           /* of memory; TPUs: the topology knows what a program may use */
    double flops, flops_f32; /* of products in bf16; in f32 */
    double memory;
    double link;     /* one link, one direction; a GPU: all its links together */
    int wraps;       /* TPUs: a dimension of a multiple of this is a ring, others are lines */
    int64_t on_chip; /* memory that a kernel's values may stay in */
} ts_device_kind;

typedef struct ts_plan_devices {
    char name[64]; /* "v6e:4x4" */
    const ts_device_kind *kind;
    int devices, n_torus;
    int64_t torus[4];
    int64_t capacity; /* of one device; the cpu's devices share it */
} ts_plan_devices;

/* "v6e:4x4", "v6e-16", "h100:8", "cpu:16". INVALID_ARGUMENT names the nearest that exists. */
TS_MUST_CHECK ts_status ts__plan_devices(const char *text, ts_plan_devices *out, ts_error *err);
/* The next larger slice, or number of devices, of a kind; false: there is none. */
bool ts__plan_devices_more(const ts_plan_devices *d, ts_plan_devices *out);
/* The same number as a topology of the configuration: "v6e:4x4"; "cpu:8" where there is no
 * topology. */
void ts__plan_devices_topology(const ts_plan_devices *d, char *buf, size_t n);

/* Memory of one device, and of the process where its devices share it. */
typedef struct ts_plan_need {
    ts_plan_memory memory;
    int64_t kept;    /* activations that wait for the backward half, at most */
    int64_t process; /* cpu: of the process; else 0 */
    double flops, traffic;
    bool fits;
} ts_plan_need;

/* One configuration, placed on d's devices: built, partitioned and measured. report (may be NULL)
 * gets its wire and times. */
TS_MUST_CHECK ts_status ts__plan_measure(const ts_config *c, const ts_model_config *model,
                                         const ts_plan_devices *d, bool warn, ts_plan_need *out,
                                         ts_plan_report *report, ts_error *err);
/* Up to TS_PLAN_ADVICE changes of keys with which it fits, nearest first. */
void ts__plan_advise(const ts_config *c, const ts_model_config *model, const ts_plan_devices *d,
                     ts_plan_report *report);

#endif
