/* xla/profiler_abi.h – the profiler of a PJRT plugin: an extension that points to a table of functions.
 *
 * Found by type PJRT_Extension_Type_Profiler in the list that PJRT_Api.extension_start heads. One session is
 * create, start, stop, collect, destroy; what is collected is XLA's XSpace protobuf ("xplane"). The errors are the
 * profiler's own and have functions of their own. CollectData is called with buffer NULL: it sets the size and,
 * in the plugins that keep the bytes themselves, the buffer too, which is then theirs until destroy; where
 * buffer stayed NULL it is called again with room for them.
 * Not here: the argument extension that ties an execute to a trace of the caller's.
 */
#ifndef TS_PROFILER_ABI_H
#define TS_PROFILER_ABI_H

#include "xla/pjrt_abi.h"

typedef struct PLUGIN_Profiler PLUGIN_Profiler;
typedef struct PLUGIN_Profiler_Error PLUGIN_Profiler_Error;

/* The error functions' arguments have a second word that nobody uses; those of a session have not. */
typedef struct PLUGIN_Profiler_Error_Destroy_Args {
    size_t struct_size;
    void *priv;
    PLUGIN_Profiler_Error *error;
} PLUGIN_Profiler_Error_Destroy_Args;
typedef struct PLUGIN_Profiler_Error_Message_Args {
    size_t struct_size;
    void *priv;
    const PLUGIN_Profiler_Error *error;
    const char *message; /* out: until the error is destroyed */
    size_t message_size; /* out */
} PLUGIN_Profiler_Error_Message_Args;
typedef struct PLUGIN_Profiler_Error_GetCode_Args {
    size_t struct_size;
    void *priv;
    const PLUGIN_Profiler_Error *error;
    int code; /* out: as PJRT_Error_Code */
} PLUGIN_Profiler_Error_GetCode_Args;
typedef struct PLUGIN_Profiler_Create_Args {
    size_t struct_size;
    const char *options; /* a ProfileOptions protobuf; none: its defaults */
    size_t options_size;
    PLUGIN_Profiler *profiler; /* out */
} PLUGIN_Profiler_Create_Args;
typedef struct PLUGIN_Profiler_Destroy_Args {
    size_t struct_size;
    PLUGIN_Profiler *profiler;
} PLUGIN_Profiler_Destroy_Args;
typedef struct PLUGIN_Profiler_Start_Args {
    size_t struct_size;
    PLUGIN_Profiler *profiler;
} PLUGIN_Profiler_Start_Args;
typedef struct PLUGIN_Profiler_Stop_Args {
    size_t struct_size;
    PLUGIN_Profiler *profiler;
} PLUGIN_Profiler_Stop_Args;
typedef struct PLUGIN_Profiler_CollectData_Args {
    size_t struct_size;
    PLUGIN_Profiler *profiler;
    uint8_t *buffer;             /* in and out, see above */
    size_t buffer_size_in_bytes; /* out */
} PLUGIN_Profiler_CollectData_Args;

/* struct_size as the header it is from has it: offset and size of the last field. */
enum {
    PLUGIN_Profiler_Error_Destroy_Args_SIZE = 24,
    PLUGIN_Profiler_Error_Message_Args_SIZE = 40,
    PLUGIN_Profiler_Error_GetCode_Args_SIZE = 28,
    PLUGIN_Profiler_Create_Args_SIZE = 32,
    PLUGIN_Profiler_Destroy_Args_SIZE = 16,
    PLUGIN_Profiler_Start_Args_SIZE = 16,
    PLUGIN_Profiler_Stop_Args_SIZE = 16,
    PLUGIN_Profiler_CollectData_Args_SIZE = 32,
};

typedef struct PLUGIN_Profiler_Api {
    size_t struct_size;
    void *priv;
    void (*error_destroy)(PLUGIN_Profiler_Error_Destroy_Args *);
    void (*error_message)(PLUGIN_Profiler_Error_Message_Args *);
    PLUGIN_Profiler_Error *(*error_get_code)(PLUGIN_Profiler_Error_GetCode_Args *);
    PLUGIN_Profiler_Error *(*create)(PLUGIN_Profiler_Create_Args *);
    PLUGIN_Profiler_Error *(*destroy)(PLUGIN_Profiler_Destroy_Args *);
    PLUGIN_Profiler_Error *(*start)(PLUGIN_Profiler_Start_Args *);
    PLUGIN_Profiler_Error *(*stop)(PLUGIN_Profiler_Stop_Args *);
    PLUGIN_Profiler_Error *(*collect_data)(PLUGIN_Profiler_CollectData_Args *);
} PLUGIN_Profiler_Api;

typedef struct PJRT_Profiler_Extension {
    PJRT_Extension_Base base;
    PLUGIN_Profiler_Api *profiler_api; /* NULL: none after all */
    int64_t traceme_context_id;        /* of the argument extension */
} PJRT_Profiler_Extension;

#endif
