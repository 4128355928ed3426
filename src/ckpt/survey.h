/* ckpt/survey.h – what surveying (survey.c) and removing (survey_remove.c) share; what callers see
 * is in tessera.h.
 */
#ifndef TS_SURVEY_H
#define TS_SURVEY_H

#include "base/base.h"

/* A regular file in a row's folder. */
typedef struct ts__survey_file {
    size_t row;
    uint64_t device, inode, links, bytes; /* links: names that it had when it was looked at */
    bool removed;                         /* its row was removed, or asked for with dry */
} ts__survey_file;

/* Which check failed: three of one kind in a row end a search. */
typedef struct ts__survey_detail {
    const char *file;
    int line;
} ts__survey_detail;

typedef struct ts__survey {
    ts_survey public; /* first: a pointer to it is one to all */
    ts_arena *arena;
    const char *name; /* of one checkpoint's folder, without links and dots: it is folder/name */
    ts__survey_detail *detail; /* [n] of rows */
    ts__survey_file *file;
    size_t n_file, max_file;
} ts__survey;

/* Would a save make a file of this name in a checkpoint's folder? */
bool ts__survey_is_saved_name(const char *name);
/* Bytes that are counted more than once when the sizes of all rows are added up. */
uint64_t ts__survey_linked(ts__survey *s);

#endif
