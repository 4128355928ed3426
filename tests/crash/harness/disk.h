/* disk.h – a disk that loses power: what may be on it after the first operations of a recorded log.
 *
 * What was synced is there: of a file its bytes and length, of a folder its names. Everything since may have happened
 * or not, in any combination: bytes of a write lost or torn at sectors of 512 bytes or pages of 4096, the length grown
 * before the bytes are there (zeros, or whatever lay on the disk), a name made, taken away or renamed, each folder on
 * its own. A single change of names is whole or not at all, and changes that build on each other keep their order:
 * every journaling or copying file system gives that much, and this gives no more. In particular syncing a file says
 * nothing of its name, and a name nothing of its file.
 */
#ifndef TS_TEST_DISK_H
#define TS_TEST_DISK_H

#include "crash.h"

typedef struct disk disk;
/* The disk that this log runs on: empty, or as disk_crash has left `before`. The log's paths are resolved at
 * once: entries may be moved or dropped afterwards by their index (planted faults) before the first step. */
disk *disk_new(crash_log *log, const disk *before);
void disk_free(disk *d);
/* The next entry of the log happens; false: there is none. */
bool disk_step(disk *d);
size_t disk_at(const disk *d);    /* entries that have happened */
size_t disk_unsynced(const disk *d); /* of them not durable, and so to be chosen about */

/* One state after a loss of power now. Choice 0: nothing unsynced is there; 1: all; 2: all names and no bytes; 3: all
 * bytes and no names; beyond that random. Returns a hash of all there is. */
uint64_t disk_crash(disk *d, uint64_t choice, uint64_t *random);
/* Puts the state that disk_crash chose last below root, which is empty. False: errno. */
bool disk_write(const disk *d, const char *root);

#endif
