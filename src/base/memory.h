/* base/memory.h – how much memory this machine, or this container, still has. */
#ifndef TS_MEMORY_H
#define TS_MEMORY_H

#include <stddef.h>

/* Bytes that can be taken now without swapping or ending a process: of the machine, and of the container where that is
 * less. SIZE_MAX where nobody says. */
size_t ts_memory_available(void);

#endif
