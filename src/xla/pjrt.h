/* xla/pjrt.h – a loaded PJRT plugin and what every caller needs of it: errors, events, attributes, clients.
 *
 * A plugin stays loaded until the process ends: their threads outlive a dlclose. Before a plugin is loaded into a
 * process that must live, it is tried in a child (plugin.h).
 */
#ifndef TS_PJRT_H
#define TS_PJRT_H

#include "base/base.h"
#include "xla/pjrt_abi.h"

typedef struct ts_pjrt {
    const PJRT_Api *api;
    void *library;      /* dlopen's */
    char *path;
    int major, minor;   /* of its API */
    char stablehlo[32]; /* "1.20.0"; "" where it does not say */
    bool carries_graph; /* plugin attribute "tessera_graph": wants the graph's text behind the program */
    char *missing;      /* libraries that could not be opened before it, "libcudnn.so.9, …"; NULL: none */
} ts_pjrt;

/* True when the plugin is new enough to have the function: functions behind PJRT_Client_Compile's age are optional. */
#define TS_PJRT_HAS(p, f)                                                                           \
    (offsetof(PJRT_Api, f) + sizeof(void *) <= (p)->api->struct_size && (p)->api->f != NULL)

/* Opens the library (with what a CUDA plugin needs preloaded), checks the version, initialises. One sentence each:
 * NOT_FOUND no such file; UNAVAILABLE it cannot be loaded, has no GetPjrtApi, or fails to initialise;
 * UNIMPLEMENTED another major version. */
TS_MUST_CHECK ts_status ts__pjrt_load(const char *path, ts_pjrt **out, ts_error *err);
void ts__pjrt_free(ts_pjrt *p); /* NULL is fine; the library stays */
/* True once the library at path was loaded into this process: it cannot be tried in a child any more. */
bool ts__pjrt_loaded(const char *path);

/* e as a ts_error, "<what>: <the plugin's message>", and destroys it; TS_OK for NULL. Codes are the same numbers. */
TS_MUST_CHECK ts_status ts__pjrt_check(const ts_pjrt *p, PJRT_Error *e, const char *what,
                                       ts_error *err);
/* Waits for an event and destroys it; NULL is TS_OK. */
TS_MUST_CHECK ts_status ts__pjrt_await(const ts_pjrt *p, PJRT_Event *event, const char *what,
                                       ts_error *err);
/* The value named name among n, or NULL. */
const PJRT_NamedValue *ts__pjrt_value(const PJRT_NamedValue *v, size_t n, const char *name);

typedef struct ts_pjrt_figures { /* of a compiled program, on one device; 0 where the plugin does not tell */
    int64_t argument_bytes, output_bytes, alias_bytes, temp_bytes, code_bytes, peak_bytes;
    double flops, bytes; /* the plugin's own cost analysis: loops once */
} ts_pjrt_figures;
ts_pjrt_figures ts__pjrt_figures(const ts_pjrt *p, PJRT_Executable *e);

/* Clients. devices: of the cpu plugin, how many it shall have (option cpu_device_count); 0: its own choice. */
TS_MUST_CHECK ts_status ts__pjrt_client_new(const ts_pjrt *p, int devices, PJRT_Client **out,
                                            ts_error *err);
void ts__pjrt_client_free(const ts_pjrt *p, PJRT_Client *c);
TS_MUST_CHECK ts_status ts__pjrt_devices(const ts_pjrt *p, PJRT_Client *c,
                                         PJRT_Device *const **out, size_t *n, ts_error *err);
/* text of n bytes into to, which has room bytes, cut at a character and ended; to NULL or room 0: nothing. */
void ts__pjrt_copy(char *to, size_t room, const char *text, size_t n);
/* The same as device_describe for one that need not be there. */
TS_MUST_CHECK ts_status ts__pjrt_describe(const ts_pjrt *p, PJRT_DeviceDescription *d, int *id,
                                          char *kind, size_t n, ts_error *err);
/* Of a device: its global id and its kind ("TPU v6 lite"; copied into kind, which may be NULL). */
TS_MUST_CHECK ts_status ts__pjrt_device_describe(const ts_pjrt *p, PJRT_Device *d, int *id,
                                                 char *kind, size_t n, ts_error *err);
/* "platform" and "version" of a client, copied. */
TS_MUST_CHECK ts_status ts__pjrt_platform(const ts_pjrt *p, PJRT_Client *c, char *name, size_t n,
                                          char *version, size_t n_version, ts_error *err);

#endif
