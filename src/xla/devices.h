/* xla/devices.h – which accelerator this machine has; what libtpu must be told where there is none. */
#ifndef TS_DEVICES_H
#define TS_DEVICES_H

#include "base/base.h"

/* "tpu", "cuda" or NULL: the plugin that the machine's device files ask for. file: the one that says so,
 * "/dev/accel0". root stands before /dev and /sys: "" but for tests. */
const char *ts__devices_find(const char *root, char *file, size_t n);

/* Environment for libtpu on a machine without TPUs: without all of it libtpu asks the cloud's metadata server for
 * minutes, and writes logs. */
enum { TS_LIBTPU_ALONE = 5 };
extern const char *const ts_libtpu_alone[TS_LIBTPU_ALONE];

#endif
