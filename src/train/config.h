/* train/config.h – a run's configuration, resolved: one typed field for each key of config_keys.def,
 * and what follows from several of them. See ts_config_load in tessera.h for how one is made.
 *
 * Every value in a ts_config was checked: types, limits, cross-field rules, paths. Whoever reads a
 * field need not check it again. Strings and lists live until ts_config_free.
 * Not here: what a key means to the loop (train.c), the model's own rules (models/).
 */
#ifndef TS_TRAIN_CONFIG_H
#define TS_TRAIN_CONFIG_H

#include "base/base.h"
#include "data/loader.h"
#include "mesh/mesh.h"
#include "models/model.h"
#include "train/schedule.h"

typedef struct ts_config_list {
    size_t n;
    const char *const *item;
} ts_config_list;

#define TS__FIELD_BOOL(f)   bool f;
#define TS__FIELD_INT(f)    int64_t f;
#define TS__FIELD_COUNT(f)  int64_t f;
#define TS__FIELD_FLOAT(f)  double f;
#define TS__FIELD_STRING(f) const char *f;
#define TS__FIELD_LIST(f)   ts_config_list f;
#define TS__FIELD_RULES(f)  ts_config_list f;

struct ts_config {
#define GROUP(title)
#define KEY(name, type, ...)         TS__FIELD_##type(name)
#define SUB(parent, name, type, ...) TS__FIELD_##type(parent##_##name)
#include "train/config_keys.def"
#undef GROUP
#undef KEY
#undef SUB

    /* Derived. */
    int64_t devices;       /* of all hosts together */
    bool devices_assumed;  /* nobody knows them before the engine is open: ts__config_place must be called then */
    int n_torus;           /* 0: no torus */
    int64_t torus[TS_MAX_RANK]; /* major first; the product is devices */
    int n_heads;           /* pairs that the mesh respects; 0: the model is not known yet */
    int64_t kv_heads[8], group[8];
    ts_mesh mesh;          /* of devices, by ici_*_parallelism */
    ts_axis_rules rules;   /* logical_axis_rules over the defaults */
    bool ring;             /* collective_matmul, resolved: auto is plain */
    bool shard_auto;       /* shard_mode=auto: XLA partitions */
    int64_t micro_rows; /* rows of one micro-batch on all devices */
    int64_t batch_rows; /* rows of one optimizer step: micro_rows · accumulation */
    int64_t eval_rows;  /* rows of one evaluation batch on all devices */
    ts_dtype compute_dtype;
    ts_remat remat;
    ts_data_type dataset;
    const ts_loader_source *mixture; /* dataset_mixture; NULL: one source, dataset_path */
    size_t n_mixture;
    ts_schedule schedule;
    ts_model_config model;  /* unless model_path is set: read it from there then */
    const char *run_folder; /* <base_output_directory>/<run_name> */
    const char *model_file; /* the preset that was used, "" when none was */
    ts_config_list xla_flags; /* compile_xla_flags, each "name=value" */
    const char *output_problem; /* why the default output folder cannot be written; NULL: it can */
    const char *data_problem;   /* with compile_topology: which data file is not here; NULL: none */

    size_t n_notes; /* keys that were set and have no effect, and the like; to be shown once */
    const char *const *notes;
    struct ts_loading *loading; /* how it was loaded; for ts__config_place's messages */
    ts_arena *arena; /* owns the configuration itself */
};

/* ---- placing it on devices (config_mesh.c) ------------------------------------------------------
 *
 * Loading places a configuration on the devices that are known: compile_topology's; else cpu_devices where the cpu
 * engine or the xla engine's plugin=cpu will run. A real accelerator's are known when the engine is open. Until then
 * the product of ici_*_parallelism is taken, −1 as 1, and devices_assumed is set.
 *
 * Whoever knows better places again: mesh, rules, ring, micro_rows, batch_rows and eval_rows follow; nothing else
 * changes. torus' product is devices; 0 dimensions: none. INVALID_ARGUMENT has a message like ts_config_load's, and
 * *c is as before.
 *   compile, plan  nothing to do with compile_topology; plan --devices: ts__config_place
 *   training, parity, generate  open the engine with ts__config_run_devices, then ts__config_place with the
 *                  engine's devices and torus (compile_topology does not bind them)
 *   model_path     ts__config_heads with the model that was read, then ts__config_place (c->devices, c->torus, …)
 * A ts_config may be copied by value and the copy placed: it lives until ts_config_free of the first. */
TS_MUST_CHECK ts_status ts__config_place(ts_config *c, int64_t devices, const int64_t *torus,
                                         int n_torus, ts_error *err);
/* The (kv heads, group) that the next ts__config_place takes; loading takes those of c->model. */
void ts__config_heads(ts_config *c, const ts_model_config *model);
/* Devices to open an engine with: cpu_devices for the cpu engine and for plugin=cpu, 0 (all it has) for others. */
int64_t ts__config_run_devices(const ts_config *c, const char *engine, const char *plugin);


/* Where nobody chose an output folder, a command that writes none (parity) must work without one: a run
 * asks for it before anything else. A chosen folder was checked by ts_config_load. */
TS_MUST_CHECK ts_status ts_config_check_output(const ts_config *c, ts_error *err);
/* Data files that are not on this machine: no mistake where compile_topology is set and nothing reads them. */
TS_MUST_CHECK ts_status ts_config_check_data(const ts_config *c, ts_error *err);
/* What the loader of a split is opened with; everything it points to lives until ts_config_free. The
 * training split's rows are those of one micro-batch. With model_path, set vocab_size afterwards. */
void ts_config_loader_options(const ts_config *c, ts_data_split split,
                              const ts_tokenizer *tokenizer, ts_loader_options *o);
/* What is evaluated is one set of data, or what each source of a mixture holds out: so many sets, and the options of
 * each. */
int ts_config_eval_sources(const ts_config *c);
void ts_config_eval_options(const ts_config *c, int source, const ts_tokenizer *tokenizer,
                            ts_loader_options *o);

/* "Config param k: v", one line each, sorted by key; a token is hidden. */
void ts_config_print(const ts_config *c, ts_string *out);
/* The complete resolved configuration as YAML; loading it gives the same configuration. */
void ts_config_yaml(const ts_config *c, ts_string *out);
TS_MUST_CHECK ts_status ts_config_write(const ts_config *c, const char *path, ts_error *err);
/* Enough for either text. */
enum { TS_CONFIG_TEXT_MAX = 1 << 22 };

#endif
