/* xla/devices.c – which accelerator this machine has, by its device files; and libtpu on one that has none.
 *
 * A TPU is /dev/accel0 … or, behind VFIO, /dev/vfio/0 … together with a PCI device of Google's that is neither a
 * network card nor a disk, for their virtual machines have those too. A GPU is /dev/nvidia0 … . Nothing is opened
 * here: a device that is there and does not work is what the plugin reports.
 */
#include "xla/devices.h"

#include <stdio.h>

#include "base/file.h"

/* As /sys writes PCI vendors and the beginning of classes. */
static const char google[] = "0x1ae0", disk[] = "0x01", network[] = "0x02";

/* prefix and then digits only. */
static bool is_numbered(const char *name, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(name, prefix, n) == 0 && name[n] && !name[n + strspn(name + n, "0123456789")];
}

/* The first entry of root + folder named prefix and a number, as "folder/name" in found; false when there is none. */
static bool find_numbered(const char *root, const char *folder, const char *prefix, char *found,
                          size_t n)
{
    char path[4096], **names = NULL;
    size_t count = 0;
    bool there = false;
    if (snprintf(path, sizeof path, "%s%s", root, folder) >= (int)sizeof path) return false;
    if (ts_path_kind_of(path) != TS_PATH_FOLDER) return false;
    if (ts_list_folder(path, &names, &count, NULL) != TS_OK) return false;
    for (size_t i = 0; i < count && !there; i++) {
        there = is_numbered(names[i], prefix);
        if (there) snprintf(found, n, "%s/%.60s", folder, names[i]);
    }
    ts_names_free(names, count);
    return there;
}

/* Does a file of /sys begin with text? Their sizes are no sizes, so exactly as much is read. */
static bool begins_with(const char *folder, const char *name, const char *text)
{
    char path[4096], found[16];
    ts_file *f;
    size_t n = strlen(text);
    TS_ASSERT(n <= sizeof found);
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return false;
    if (ts_file_open(path, &f, NULL) != TS_OK) return false;
    ts_status status = ts_file_read_at(f, 0, found, n, NULL);
    ts_file_close(f);
    return status == TS_OK && memcmp(found, text, n) == 0;
}

static bool has_google_accelerator(const char *root)
{
    char folder[4096], device[4096], **names = NULL;
    size_t n = 0;
    bool found = false;
    if (snprintf(folder, sizeof folder, "%s/sys/bus/pci/devices", root) >= (int)sizeof folder)
        return false;
    if (ts_path_kind_of(folder) != TS_PATH_FOLDER) return false;
    if (ts_list_folder(folder, &names, &n, NULL) != TS_OK) return false;
    for (size_t i = 0; i < n && !found; i++) {
        if (snprintf(device, sizeof device, "%s/%s", folder, names[i]) >= (int)sizeof device)
            continue;
        found = begins_with(device, "vendor", google) && begins_with(device, "class", "0x") &&
                !begins_with(device, "class", disk) && !begins_with(device, "class", network);
    }
    ts_names_free(names, n);
    return found;
}

const char *ts__devices_find(const char *root, char *file, size_t n)
{
    if (find_numbered(root, "/dev", "accel", file, n)) return "tpu";
    if (find_numbered(root, "/dev/vfio", "", file, n) && has_google_accelerator(root)) return "tpu";
    if (find_numbered(root, "/dev", "nvidia", file, n)) return "cuda";
    return NULL;
}

const char *const ts_libtpu_alone[] = {
    "TPU_SKIP_MDS_QUERY=1", "TPU_WORKER_HOSTNAMES=localhost", "TPU_WORKER_ID=0",
    "TPU_LOG_DIR=disabled", "ALLOW_MULTIPLE_LIBTPU_LOAD=1"};
