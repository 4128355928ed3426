/* train/plan_devices.c – kinds of devices by name, with what their makers publish of them.
 *
 * The figures are those of data sheets, so a time from them is a bound that nobody beats. TPUs are
 * per device: two devices a chip on tpu7x. GPUs are the SXM forms, dense products. Of TPUs the
 * memory is libtpu's own figure (xla/topology.c). A CPU is not one kind: a core of 3 GHz with two
 * 256-bit multiply-adds a cycle, two channels of DDR4-3200, and this machine's cores and memory,
 * which its virtual devices share.
 *
 * Sources: cloud.google.com/tpu/docs, pages v5e, v5p, v6e and tpu7x, for peak operations, HBM
 * bandwidth and the chip's interconnect bandwidth (4 links a chip in two dimensions, 6 in three,
 * both directions counted: v5e 400, v5p 1200, v6e 800, tpu7x 1200 GB/s) and for when a slice's
 * dimension closes to a ring; jax-ml.github.io/scaling-book, chapter "TPUs", for on-chip memory, of
 * which, as of a GPU's L2, half is taken to hold values; NVIDIA's data sheets of H100, H200 and DGX
 * B200. f32 products on TPUs are six bf16 passes.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "train/plan.h"
#include "xla/topology.h"

#define GB 1000000000

/* clang-format off */
static const ts_device_kind kinds[] = {
    /* name, family, bytes, bf16, f32, memory, link, wraps, on chip */
    {"v5e", TS_FAMILY_TPU, 0, 197e12, 197e12 / 6, 819e9, 50e9, 16, 64 << 20},
    {"v5p", TS_FAMILY_TPU, 0, 459e12, 459e12 / 6, 2765e9, 100e9, 4, 64 << 20},
    {"v6e", TS_FAMILY_TPU, 0, 918e12, 918e12 / 6, 1640e9, 100e9, 16, 64 << 20},
    {"tpu7x", TS_FAMILY_TPU, 0, 1153.5e12, 1153.5e12 / 6, 3690e9, 100e9, 4, 32 << 20},
    {"h100", TS_FAMILY_GPU, (int64_t)80 * GB, 989e12, 67e12, 3350e9, 450e9, 0, 25 << 20},
    {"h200", TS_FAMILY_GPU, (int64_t)141 * GB, 989e12, 67e12, 4800e9, 450e9, 0, 25 << 20},
    {"b200", TS_FAMILY_GPU, (int64_t)180 * GB, 2250e12, 75e12, 7700e9, 900e9, 0, 50 << 20},
    {"cpu", TS_FAMILY_CPU, 0, 96e9, 96e9, 51.2e9, 51.2e9, 0, 0}, /* flops: a core's */
};
/* clang-format on */
enum { N_KINDS = sizeof kinds / sizeof *kinds, MAX_DEVICES = 1024 };

static const char expected[] =
    "v5e, v5p, v6e or tpu7x with its shape or size, as v6e:4x4 or v6e-16; h100, h200 or b200 "
    "with a number, as h100:8; or cpu:16";

static const ts_device_kind *find_kind(const char *name, size_t n)
{
    if (n == 9 && memcmp(name, "v5litepod", n) == 0) return &kinds[0];
    for (int i = 0; i < N_KINDS; i++)
        if (strlen(kinds[i].name) == n && memcmp(kinds[i].name, name, n) == 0) return &kinds[i];
    return NULL;
}

static ts_status unknown_kind(const char *text, size_t n, ts_error *err)
{
    const char *names[N_KINDS];
    char word[32];
    for (int i = 0; i < N_KINDS; i++) names[i] = kinds[i].name;
    snprintf(word, sizeof word, "%.*s", (int)n, text);
    const char *near = ts_nearest_word(word, names, N_KINDS);
    return TS_ERROR(err, TS_INVALID_ARGUMENT,
                    "--devices: %.60s is no kind of device that is known%s%s%s; "
                    "expected %s",
                    text, near ? "; did you mean " : "", near ? near : "", near ? "?" : "",
                    expected);
}

/* The machine's memory, which all virtual devices share. */
static int64_t physical_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (int64_t)pages * page : 0;
}

static ts_status tpu(const char *text, ts_plan_devices *out, ts_error *err)
{
    ts_topology t;
    ts_error why = {0};
    ts_status status = ts__topology_parse(text, 1, &t, &why);
    if (status != TS_OK) return TS_ERROR(err, status, "--devices: %s", why.msg);
    snprintf(out->name, sizeof out->name, "%s", t.name);
    out->devices = t.devices;
    out->n_torus = t.n_torus;
    memcpy(out->torus, t.torus, sizeof out->torus);
    out->capacity = t.capacity_bytes;
    return TS_OK;
}

ts_status ts__plan_devices(const char *text, ts_plan_devices *out, ts_error *err)
{
    size_t n = strcspn(text, ":-");
    char *end;
    *out = (ts_plan_devices){.kind = find_kind(text, n)};
    if (!out->kind) return unknown_kind(text, n, err);
    if (out->kind->family == TS_FAMILY_TPU) return tpu(text, out, err);
    const char *digits = text[n] == ':' ? text + n + 1 : "";
    long count = *digits >= '0' && *digits <= '9' ? strtol(digits, &end, 10) : 0;
    if (count < 1 || count > MAX_DEVICES || *end)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "--devices: %.60s: expected %s: and a number, 1 … %d, as %s:8", text,
                        out->kind->name, MAX_DEVICES, out->kind->name);
    out->devices = (int)count;
    out->capacity = out->kind->family == TS_FAMILY_CPU ? physical_bytes() : out->kind->bytes;
    snprintf(out->name, sizeof out->name, "%s:%ld", out->kind->name, count);
    return TS_OK;
}

bool ts__plan_devices_more(const ts_plan_devices *d, ts_plan_devices *out)
{
    char text[64];
    ts_error unsaid = {0};
    if (d->kind->family == TS_FAMILY_CPU) return false; /* they share one memory */
    if (d->kind->family == TS_FAMILY_GPU) {
        snprintf(text, sizeof text, "%s:%d", d->kind->name, 2 * d->devices);
        return ts__plan_devices(text, out, &unsaid) == TS_OK;
    }
    int64_t chips = 1;
    int rank = d->n_torus > 3 ? 3 : d->n_torus;
    for (int i = 0; i < rank; i++) chips *= d->torus[i];
    int counted = strcmp(d->kind->name, "v5p") == 0 || strcmp(d->kind->name, "tpu7x") == 0 ? 2 : 1;
    for (int64_t times = 2; times <= 4; times *= 2) {
        unsaid = (ts_error){0};
        snprintf(text, sizeof text, "%s-%lld", d->kind->name, (long long)(times * chips * counted));
        if (ts__plan_devices(text, out, &unsaid) == TS_OK) return true;
    }
    return false;
}

void ts__plan_devices_topology(const ts_plan_devices *d, char *buf, size_t n)
{
    if (d->n_torus)
        snprintf(buf, n, "%s", d->name);
    else
        snprintf(buf, n, "cpu:%d", d->devices);
}
