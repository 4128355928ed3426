/* train/config_internal.h – shared by the config_*.c files: the table of keys, the layers of a load,
 * and the list of problems that becomes one message. */
#ifndef TS_TRAIN_CONFIG_INTERNAL_H
#define TS_TRAIN_CONFIG_INTERNAL_H

#include "base/yaml.h"
#include "train/config.h"

/* ---- the table ------------------------------------------------------------------------------- */

/* base_output_directory when it is empty: MaxText's. */
#define TS_DEFAULT_OUTPUT "./maxtext_output"

typedef enum ts_key_type {
    TS_KEY_BOOL,
    TS_KEY_INT,
    TS_KEY_COUNT,
    TS_KEY_FLOAT,
    TS_KEY_STRING,
    TS_KEY_LIST,
    TS_KEY_RULES /* a list of "name: axis, axis", in whichever way it was written */
} ts_key_type;
typedef enum ts_key_status { TS_KEY_ON, TS_KEY_IDLE, TS_KEY_FIXED } ts_key_status;

typedef struct ts_key {
    const char *name;
    ts_key_type type;
    ts_key_status status;
    const char *initial, *limits, *doc;
    size_t offset; /* of the field in ts_config */
} ts_key;

typedef enum ts_key_id {
#define GROUP(title)
#define KEY(name, ...)         TS_K_##name,
#define SUB(parent, name, ...) TS_K_##parent##_##name,
#include "train/config_keys.def"
#undef GROUP
#undef KEY
#undef SUB
    TS_KEYS
} ts_key_id;

extern const ts_key ts__keys[TS_KEYS];
int ts__key_find(const char *name);            /* -1 when there is none */
const char *ts__key_nearest(const char *name); /* also by habit: lr, batch_size …; may be NULL */
bool ts__key_is_block(const char *name);       /* "lora" */

/* Sets the field of key k in c from v. NULL, or what is wrong with v (in the arena). */
const char *ts__key_set(ts_config *c, int k, const ts_yaml *v);
/* The value of a field, as YAML (strings quoted where needed) or as plain text; in the arena. */
const char *ts__key_yaml(const ts_config *c, int k, ts_arena *arena);
const char *ts__key_text(const ts_config *c, int k, ts_arena *arena);
/* What the user wrote, shortened and without control characters. */
const char *ts__value_text(const ts_yaml *v, ts_arena *arena);
/* The value of a key=value word: plain scalars, quoted strings, [a, b]. */
const ts_yaml *ts__value_of_word(int k, const char *text, ts_arena *arena);

/* ---- files that are part of the library ------------------------------------------------------ */

const char *ts__embedded(const char *name); /* text of "configs/…", or NULL */
const char *ts__embedded_name(size_t i);    /* NULL behind the last */

/* ---- one load -------------------------------------------------------------------------------- */

typedef enum ts_layer {
    TS_LAYER_NONE,
    TS_LAYER_FILE,
    TS_LAYER_MODEL,
    TS_LAYER_WORD,
    TS_LAYER_ENV,
    TS_LAYERS
} ts_layer;

typedef struct ts_setting {
    const ts_yaml *value; /* NULL: this layer does not set the key */
    const char *where;    /* "file:line", "M_STEPS", or NULL for a word of the command line */
} ts_setting;

typedef struct ts_problem {
    const char *what, *why;
    struct ts_problem *next;
} ts_problem;

typedef struct ts_loading {
    ts_config *c;
    ts_arena *arena;
    ts_setting set[TS_LAYERS][TS_KEYS];
    ts_layer from[TS_KEYS]; /* whose value is in c; TS_LAYER_NONE: the default */
    bool bad[TS_KEYS];      /* reported; checks that involve it stay silent */
    bool virtual_devices;   /* as many as cpu_devices says */
    bool cpu;               /* the cpu engine would run here */
    bool layered;           /* the file lies over the preset, not under it */
    const char *folder;     /* of the configuration file; NULL when it is embedded */
    ts_problem *first, **last;
    size_t n_problems, n_notes, notes_capacity;
    const char **notes;
    bool out_of_memory;
} ts_loading;

void ts__problem(ts_loading *l, const char *what, const char *fmt, ...) TS_PRINTF(3, 4);
/* About the value of a key, once a key. */
void ts__key_problem(ts_loading *l, int k, const char *fmt, ...) TS_PRINTF(3, 4);
void ts__note(ts_loading *l, const char *fmt, ...) TS_PRINTF(2, 3);
void ts__problems_clear(ts_loading *l);
/* All problems as one message; OK when there is none. */
TS_MUST_CHECK ts_status ts__problems_report(ts_loading *l, ts_error *err);

/* Enters one mapping into a layer. name: of the file, for messages. */
void ts__layer_read(ts_loading *l, ts_layer layer, const ts_yaml *map, const char *name);
/* Finds and reads the configuration file with its parents. */
void ts__layer_file(ts_loading *l, const char *path);
void ts__layer_model(ts_loading *l, const char *model_name);
void ts__layer_words(ts_loading *l, const char *const *words, int n);
void ts__layer_environment(ts_loading *l);

/* Values that follow from others, and every rule that involves more than one key. */
void ts__config_derive(ts_loading *l);
void ts__config_derive_data(ts_loading *l);
void ts__config_derive_engine(ts_loading *l);
void ts__config_derive_mesh(ts_loading *l); /* behind the model: its heads cut the tensor axis */
void ts__config_derive_rules(ts_loading *l);
/* A value of logical_axis_rules, as "name: axis, axis" each. NULL, or what is wrong with v. */
const char *ts__rules_set(ts_config *c, const ts_yaml *v, ts_config_list *field);
/* ~/ at the front of a path becomes $HOME/, and patterns of data files become the files. */
void ts__config_expand_paths(ts_loading *l);
const char *ts__config_expand_home(ts_loading *l, int k, const char *path);
/* The files that the items stand for, which may begin with ~/ and hold * ? [..]: each file once, those of a pattern
 * sorted by bytes. A problem goes to key k; list is returned as it was then. */
ts_config_list ts__config_expand_files(ts_loading *l, int k, ts_config_list list);
/* dataset_mixture, with the files found and looked at; once its files' patterns may be expanded. */
void ts__config_read_mixture(ts_loading *l);
bool ts__config_is_pattern(const char *path); /* and no file's name */
/* Are they there, and files that may be read? */
void ts__config_check_files(ts_loading *l, int k, const ts_config_list *files);
void ts__config_check_paths(ts_loading *l);

#endif
