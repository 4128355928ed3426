/* nodes.h – the names that the kernel knows by number: a table of paths, relative to the folder that is passed through.
 *
 * A file that is being written for the first time may lie elsewhere until it is closed: then it has a hidden name and
 * no visible one. Any thread may call these.
 */
#ifndef SLOWFS_NODES_H
#define SLOWFS_NODES_H

#include <stdbool.h>
#include <stdint.h>

enum { PATH_ROOM = 4096, ROOT = 1 };

/* The number of a path, one more time looked up. 0: memory is out. hidden: where its bytes are meanwhile; NULL: at
 * path. */
uint64_t node_get(const char *path, const char *hidden);
void node_forget(uint64_t id, uint64_t lookups);
/* Where its bytes are, and under which name it will be seen. false: there is none any more. */
bool node_path(uint64_t id, char path[PATH_ROOM]);
bool node_child(uint64_t parent, const char *name, char path[PATH_ROOM]);
/* Its hidden and its visible path; false: it is visible already, or gone. From then on it is visible. */
bool node_show(uint64_t id, char hidden[PATH_ROOM], char path[PATH_ROOM]);
/* The path means nothing any more, or something else: its node and those below it are gone, or have moved. */
void node_gone(const char *path);
void node_moved(const char *from, const char *to);

#endif
