/* fake/fake_pjrt.h – what a test may ask of the fake plugin beside the PJRT C API: an extension of the plugin's own.
 *
 * It stands in PJRT_Api's list of extensions under FAKE_EXTENSION_TYPE. Counters belong to the loaded library, so
 * tests of one process reset them between each other. Faults come from the environment; fake.h lists them.
 */
#ifndef FAKE_PJRT_H
#define FAKE_PJRT_H

#include "xla/pjrt_abi.h"

enum { FAKE_EXTENSION_TYPE = 9999 };

typedef struct fake_extension {
    PJRT_Extension_Base base;
    void (*reset)(void);                     /* counts of calls, executes and events start again */
    uint64_t (*executes)(void);              /* programs that were accepted since the reset */
    uint64_t (*calls)(const char *function); /* of "PJRT_Client_Create" since the reset */
    int64_t (*live)(const char *kind); /* objects given out and not destroyed; NULL: all kinds */
    uint64_t (*donated)(void);         /* inputs consumed since the reset */
    int (*in_flight)(void); /* the most executes that were under way at once since the reset */
} fake_extension;

#endif
