/* xla/pip.h – one wheel from Python's package index, by `python3 -m pip download`. */
#ifndef TS_PIP_H
#define TS_PIP_H

#include "base/base.h"

/* The wheel of package==version (NULL: the newest) into folder, which is empty and takes pip's temporary files
 * too; path gets the wheel's. line and stop as in ts_plugin_install_options. UNAVAILABLE: one sentence on
 * what is missing (python3, pip, a network, such a package). */
TS_MUST_CHECK ts_status ts__pip_download(const char *package, const char *version,
                                         const char *folder, const ts_plugin_install_options *o,
                                         char *path, size_t n, ts_error *err);

#endif
