/* xla/plugin.h – where plugins are, and whether one works: found by name, tried in a child process.
 *
 * Searched in this order: the folders of TESSERA_PLUGIN_PATH (colons), $XDG_DATA_HOME or ~/.local/share +
 * /tessera/plugins, then Python's packages in $VIRTUAL_ENV. A folder holds NAME/plugin.json with the library
 * beside it (what `tessera plugins install` writes), or the library under a name it is known by.
 */
#ifndef TS_PLUGIN_H
#define TS_PLUGIN_H

#include "base/base.h"

typedef struct ts_plugin_kind { /* one row a plugin that can be installed by name */
    const char *name;           /* "cpu" */
    const char *package, *version; /* of the Python package; version NULL: the newest */
    const char *member;         /* the library in it: the end of its path */
    const char *license;        /* "Apache-2.0" */
    const char *terms;          /* where it may not be redistributed: what accepting means; NULL: open source */
    const char *const *file;    /* names the library is known by, NULL-terminated */
} ts_plugin_kind;
extern const ts_plugin_kind ts_plugin_kinds[];
extern const int ts_plugin_kind_count;
/* By name; NULL for another. */
const ts_plugin_kind *ts__plugin_kind(const char *name);

typedef struct ts_plugin_record { /* plugin.json beside an installed library */
    char name[32], package[64], version[64];
    char file[256]; /* the library: a name, no path */
    char xxh3[33];  /* XXH3-128 of its bytes, hex */
    char license[64], source[300];
    uint64_t bytes;
} ts_plugin_record;
/* where: the file, for messages. DATA_LOSS names the first member that is missing or wrong. */
TS_MUST_CHECK ts_status ts__plugin_record_parse(const char *text, size_t n, const char *where,
                                                ts_plugin_record *out, ts_error *err);
/* Of the plugin in folder; NOT_FOUND where it has no plugin.json. */
TS_MUST_CHECK ts_status ts__plugin_record_read(const char *folder, ts_plugin_record *out,
                                               ts_error *err);
TS_MUST_CHECK ts_status ts__plugin_record_write(const char *folder, const ts_plugin_record *r,
                                                ts_error *err);
/* Sets r->bytes and r->xxh3 from the library r->file in folder. */
TS_MUST_CHECK ts_status ts__plugin_record_measure(const char *folder, ts_plugin_record *r,
                                                  ts_error *err);
/* Reads the library in folder and compares with r. DATA_LOSS says what differs. */
TS_MUST_CHECK ts_status ts__plugin_record_check(const char *folder, const ts_plugin_record *r,
                                                ts_error *err);

/* name: "cpu", "tpu", "cuda" or a path (it has a slash). NOT_FOUND says where was looked and how to install it. */
TS_MUST_CHECK ts_status ts__plugin_find(const char *name, char *path, size_t n, ts_error *err);
/* The folder that `install` writes to. */
TS_MUST_CHECK ts_status ts__plugin_folder(const char *wanted, char *path, size_t n, ts_error *err);
/* Loads the library and, with_client, opens a client, in a child. Always fills out, status and problem included;
 * returns that status with the problem as its message. devices: see ts__pjrt_client_new. */
TS_MUST_CHECK ts_status ts__plugin_probe(const char *name, const char *path, bool with_client,
                                         int devices, ts_plugin_info *out, ts_error *err);

#endif
