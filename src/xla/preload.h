/* xla/preload.h – libraries that a plugin expects to find in the process already. */
#ifndef TS_PRELOAD_H
#define TS_PRELOAD_H

#include "base/base.h"

/* For a plugin whose file is named for CUDA, opens NVIDIA's libraries for everyone; else does nothing. missing
 * gets the names of those that could not be opened ("libcudnn.so.9, libnccl.so.2"), which need not matter. */
void ts__preload(const char *plugin, ts_string *missing);

#endif
