/* train/config_mesh.c – on how many devices a run is, how they are meshed, and the rows that follow.
 *
 * MaxText's arithmetic: the product of ici_*_parallelism is the devices of a slice, that of dcn_*_parallelism the
 * slices, and one −1 of each group is what is left. Here there is one slice, and data, fsdp and tensor may exceed 1.
 *
 * Where the devices are known from: see config.h. While they are not, a −1 is taken as 1 and no rule looks at rows.
 * Each impossible mesh or batch is one message: the key that a person would change, and the values that work.
 * Sequences and a model's sizes never make one: what does not divide stays whole (the partitioner warns).
 *
 * Not here: which names take which axes (config_rules.c), the internal axes of a mesh (mesh/mesh.c).
 */
#include "train/config_internal.h"

#include <math.h>
#include <stdio.h>

#include "train/choose.h"
#include "xla/topology.h"

/* XLA's cpu plugin takes device 2048 for one of another process, and has no collectives between processes. */
enum { MAX_CPU_DEVICES = 4096, MAX_XLA_CPU_DEVICES = 2048, MAX_MESH = 1 << 20 };

/* An axis of MaxText's, and where it must be 1 what does its work here. */
typedef struct axis_key {
    int key;
    const char *instead;
} axis_key;

/* The first are in ts_user_axis's order. */
static const axis_key ici[] = {
    {TS_K_ici_data_parallelism, NULL},
    {TS_K_ici_fsdp_parallelism, NULL},
    {TS_K_ici_tensor_parallelism, NULL},
    {TS_K_ici_fsdp_transpose_parallelism,
     "fsdp splits one dimension of a matrix, tensor the other; use ici_fsdp_parallelism"},
    {TS_K_ici_tensor_sequence_parallelism,
     "the tensor axis splits the residual stream's sequence too; use ici_tensor_parallelism"},
    {TS_K_ici_context_parallelism,
     "attention sees whole rows, and the tensor axis splits the rest of them; use "
     "ici_tensor_parallelism"},
    {TS_K_ici_expert_parallelism, "no model of this version has experts; use ici_fsdp_parallelism"},
    {TS_K_ici_pipeline_parallelism,
     "layers are not dealt out; ici_fsdp_parallelism splits each of them and gathers one at a time"},
};
static const axis_key dcn[] = {
    {TS_K_dcn_data_parallelism, "ici_data_parallelism"},
    {TS_K_dcn_fsdp_parallelism, "ici_fsdp_parallelism"},
    {TS_K_dcn_tensor_parallelism, "ici_tensor_parallelism"},
    {TS_K_dcn_fsdp_transpose_parallelism, "ici_fsdp_parallelism"},
    {TS_K_dcn_tensor_sequence_parallelism, "ici_tensor_parallelism"},
    {TS_K_dcn_context_parallelism, "ici_tensor_parallelism"},
    {TS_K_dcn_expert_parallelism, "ici_fsdp_parallelism"},
    {TS_K_dcn_pipeline_parallelism, "ici_fsdp_parallelism"},
};
enum { N_AXES = sizeof ici / sizeof *ici };

static int64_t value_of(const ts_loading *l, int k)
{
    return *(const int64_t *)((const char *)l->c + ts__keys[k].offset);
}

/* By a person: base.yml, and a run's own file, repeat the defaults. */
static bool chosen(const ts_loading *l, int k)
{
    const ts_yaml *v = l->set[l->from[k]][k].value;
    if (l->from[k] != TS_LAYER_FILE) return l->from[k] != TS_LAYER_NONE;
    return v && strcmp(ts__value_text(v, l->arena), ts__keys[k].initial) != 0;
}

/* ---- axes that must be 1 --------------------------------------------------------------------- */

/* At most one −1 a group. Returns its place in axes, or −1. */
static int find_inferred(ts_loading *l, const axis_key *axes)
{
    int inferred = -1;
    for (int i = 0; i < N_AXES; i++) {
        int k = axes[i].key;
        if (l->bad[k] || value_of(l, k) != -1) continue;
        if (inferred < 0) {
            inferred = i;
            continue;
        }
        int other = axes[inferred].key;
        bool swap = chosen(l, other) && !chosen(l, k);
        ts__key_problem(
            l, swap ? other : k,
            "%s is -1 too, and only one axis can be what is left; 1 works for one of them",
            ts__keys[swap ? k : other].name);
    }
    return inferred;
}

static void check_slices(ts_loading *l)
{
    find_inferred(l, dcn);
    for (int i = 0; i < N_AXES; i++)
        if (value_of(l, dcn[i].key) > 1)
            ts__key_problem(
                l, dcn[i].key,
                "1 slice cannot be split %lld ways, and this version runs on one; 1 (or -1) "
                "works, and %s within the slice",
                (long long)value_of(l, dcn[i].key), dcn[i].instead);
    if (l->c->num_slices > 1)
        ts__key_problem(l, TS_K_num_slices, "this version runs on one slice; 1 (or -1) works");
}

/* Whether all axes can be read and those without a meaning here are 1. */
static bool check_absent(ts_loading *l)
{
    bool fine = true;
    for (int i = 0; i < N_AXES; i++) {
        if (ici[i].instead && value_of(l, ici[i].key) > 1)
            ts__key_problem(l, ici[i].key, "only 1 works: %s", ici[i].instead);
        fine = fine && !l->bad[ici[i].key];
    }
    return fine;
}

/* ---- the product ----------------------------------------------------------------------------- */

/* "fsdp 4 × tensor 6" of the axes in the set that are not 1. */
static const char *product_text(ts_loading *l, const int64_t *user, int without)
{
    const char *text = "";
    for (int u = 0; u < TS_USER_AXES && text; u++)
        if (u != without && user[u] > 1)
            text = ts_arena_printf(l->arena, "%s%s%s %lld", text, *text ? " × " : "",
                                   ts_user_axis_names[u], (long long)user[u]);
    if (!text) l->out_of_memory = true;
    return text ? text : "";
}

/* Saturates: a product of users' numbers. */
static int64_t product_of(const int64_t *user, int without)
{
    int64_t p = 1;
    for (int u = 0; u < TS_USER_AXES; u++)
        if (u != without && user[u] > 0 && ts_mul_i64(p, user[u], &p)) return INT64_MAX;
    return p;
}

/* "1, 2, 4" of the divisors of n; of many the nearest to value. */
static const char *divisors_text(ts_loading *l, int64_t n, int64_t value)
{
    enum { MOST = 10 };
    const char *text = "";
    int64_t below = 1, above = n, count = 0;
    for (int64_t d = 1; d <= n; d++) {
        if (n % d) continue;
        if (d <= value) below = d;
        if (d >= value && above == n) above = d;
        if (text && count++ < MOST)
            text = ts_arena_printf(l->arena, "%s%s%lld", text, *text ? ", " : "", (long long)d);
    }
    if (count > MOST && below == above)
        text = ts_arena_printf(l->arena, "%lld", (long long)below);
    else if (count > MOST)
        text = ts_arena_printf(l->arena, "%lld or %lld (the nearest)", (long long)below,
                               (long long)above);
    if (!text) l->out_of_memory = true;
    return text ? text : "";
}

static const char *plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

/* Where the devices are virtual there may be as many as the mesh wants. */
static const char *virtual_text(ts_loading *l, int64_t wanted)
{
    const char *text = "";
    if (l->virtual_devices && wanted > 1 && wanted <= (l->cpu ? MAX_CPU_DEVICES : MAX_XLA_CPU_DEVICES))
        text = ts_arena_printf(l->arena, "; or cpu_devices=%lld", (long long)wanted);
    if (!text) l->out_of_memory = true;
    return text ? text : "";
}

/* The axes' product is not the devices, nor can the inferred one (−1: none) make it so. */
static void refuse_product(ts_loading *l, const int64_t *user, int inferred)
{
    int64_t n = l->c->devices, all = product_of(user, -1);
    const char *asked = product_text(l, user, -1), *more = virtual_text(l, all);
    int blame = -1;
    for (int u = TS_USER_AXES - 1; u >= 0; u--) {
        bool wrong = inferred >= 0 ? user[u] > 1 : user[u] > 1 || chosen(l, ici[u].key);
        if (u == inferred || !wrong || n % product_of(user, u)) continue;
        if (blame < 0 || (chosen(l, ici[u].key) && !chosen(l, ici[blame].key))) blame = u;
    }
    if (blame < 0) { /* no single axis mends it */
        for (int u = TS_USER_AXES - 1; u >= 0; u--)
            if (u != inferred && n % user[u]) blame = u;
        if (blame < 0) blame = inferred == TS_AXIS_FSDP ? TS_AXIS_TENSOR : TS_AXIS_FSDP;
        ts__key_problem(
            l, ici[blame].key,
            "%lld device%s cannot be split as %s; an axis may be %s, and the product must %s "
            "%lld%s",
            (long long)n, plural(n), asked, divisors_text(l, n, user[blame]),
            inferred >= 0 ? "divide" : "be", (long long)n, more);
        return;
    }
    int64_t left = n / product_of(user, blame);
    const char *others = product_text(l, user, blame), *name = ts_user_axis_names[blame];
    ts__key_problem(l, ici[blame].key, "%lld device%s cannot be split as %s; %s%s%s%s may be %s%s",
                    (long long)n, plural(n), *asked ? asked : "1 alone", *others ? "with " : "",
                    others, *others ? ", " : "", name,
                    inferred >= 0 ? divisors_text(l, left, user[blame])
                                  : ts_arena_printf(l->arena, "%lld (or -1)", (long long)left),
                    more);
}

/* The users' axes from the keys; inferred: the place in ici of the −1, or −1. False: reported. */
static bool resolve_axes(ts_loading *l, int inferred, int64_t *user)
{
    ts_config *c = l->c;
    for (int u = 0; u < TS_USER_AXES; u++) user[u] = u == inferred ? 1 : value_of(l, ici[u].key);
    int64_t given = product_of(user, -1);
    if (c->devices_assumed) c->devices = given;
    if (given > MAX_MESH) {
        int most = 0;
        for (int u = 1; u < TS_USER_AXES; u++)
            if (user[u] > user[most]) most = u;
        ts__key_problem(l, ici[most].key, "%s is more than the %d devices that a mesh may have",
                        product_text(l, user, -1), MAX_MESH);
        return false;
    }
    if (given == c->devices) return true;
    if (inferred < 0 || c->devices % given) {
        refuse_product(l, user, inferred);
        return false;
    }
    if (inferred < TS_USER_AXES) {
        user[inferred] = c->devices / given;
        return true;
    }
    ts__key_problem(l, ici[inferred].key, "would be %lld, and only 1 works: %s",
                    (long long)(c->devices / given), ici[inferred].instead);
    return false;
}

/* ---- internal axes --------------------------------------------------------------------------- */

static ts_status make(const ts_config *c, const int64_t *user, ts_mesh *out, ts_error *err)
{
    ts_mesh_options o = {.n_torus = c->n_torus, .n_heads = c->n_heads};
    memcpy(o.user, user, sizeof o.user);
    memcpy(o.torus, c->torus, sizeof o.torus);
    memcpy(o.kv_heads, c->kv_heads, sizeof o.kv_heads);
    memcpy(o.group, c->group, sizeof o.group);
    return ts_mesh_make(&o, out, err);
}

/* More axes than there are: the sizes of tensor that need fewer, with fsdp as what is left. */
static void refuse_cut(ts_loading *l, const int64_t *user)
{
    const char *text = "";
    int64_t rest = l->c->devices / user[TS_AXIS_DATA];
    for (int64_t t = 1; t <= rest && text; t++) {
        int64_t other[TS_USER_AXES] = {user[TS_AXIS_DATA], rest / t, t};
        ts_mesh m;
        if (rest % t || make(l->c, other, &m, NULL) != TS_OK) continue;
        text = ts_arena_printf(l->arena, "%s%s%lld", text, *text ? ", " : "", (long long)t);
    }
    if (!text)
        l->out_of_memory = true;
    else
        ts__key_problem(
            l, TS_K_ici_tensor_parallelism,
            "the torus and the model's heads cut %s into more than %d axes; with fsdp as what "
            "is left, tensor may be %s",
            product_text(l, user, -1), TS_MAX_AXES, *text ? text : "nothing on this torus");
}

static bool resolve_mesh(ts_loading *l, int inferred)
{
    int64_t user[TS_USER_AXES];
    if (!check_absent(l) || !resolve_axes(l, inferred, user)) return false;
    if (make(l->c, user, &l->c->mesh, NULL) == TS_OK) return true;
    refuse_cut(l, user);
    return false;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* A fraction that was written with nine digits is meant: 12 × 0.333333333 is 4. */
static bool is_whole(double x)
{
    return fabs(x - nearbyint(x)) <= fmin(1e-2, 1e-6 * x);
}

/* Rows of a batch on all devices: each device of data × fsdp has as many as any other. */
static int64_t rows_of(ts_loading *l, int k, double per_device)
{
    const ts_config *c = l->c;
    int64_t n = c->devices, ways = c->mesh.user[TS_AXIS_DATA] * c->mesh.user[TS_AXIS_FSDP];
    double rows = (double)n * per_device, share = rows / (double)ways;
    if (l->bad[k]) return 1;
    if (nearbyint(share) >= 1 && is_whole(share)) return (int64_t)nearbyint(share) * ways;
    double below = floor(share) * (double)ways / (double)n,
           above = below + (double)ways / (double)n;
    const char *works = floor(share) < 1
                            ? ts_arena_printf(l->arena, "the least is %.9g", above)
                            : ts_arena_printf(l->arena, "%.9g or %.9g works", below, above);
    if (!works)
        l->out_of_memory = true;
    else if (ways == 1)
        ts__key_problem(l, k, "%lld device%s would share %.9g rows, which is no whole number; %s",
                        (long long)n, plural(n), rows, works);
    else
        ts__key_problem(l, k,
                        "%lld devices would share %.9g rows, and %s needs a multiple of %lld; %s",
                        (long long)n, rows, product_text(l, c->mesh.user, TS_AXIS_TENSOR),
                        (long long)ways, works);
    return 1;
}

/* known: devices and mesh are; else rows are those of one device, and tell nothing. */
static void resolve_batch(ts_loading *l, bool known)
{
    ts_config *c = l->c;
    bool own = c->eval_per_device_batch_size > 0;
    c->micro_rows = c->eval_rows = c->batch_rows = 1;
    if (!known) return;
    c->micro_rows = rows_of(l, TS_K_per_device_batch_size, c->per_device_batch_size);
    c->eval_rows = own ? rows_of(l, TS_K_eval_per_device_batch_size, c->eval_per_device_batch_size)
                       : c->micro_rows;
    if (l->bad[TS_K_max_target_length] || l->bad[TS_K_per_device_batch_size]) return;
    if (c->micro_rows > INT32_MAX / c->max_target_length)
        ts__key_problem(l, TS_K_per_device_batch_size,
                        "%lld rows of %lld tokens are more than 2147483647 tokens in one "
                        "micro-batch; use gradient_accumulation_steps",
                        (long long)c->micro_rows, (long long)c->max_target_length);
    if (!l->bad[TS_K_gradient_accumulation_steps])
        c->batch_rows = c->micro_rows * c->gradient_accumulation_steps;
}

/* ---- placing --------------------------------------------------------------------------------- */

/* devices, torus and heads are in c. */
static void place(ts_loading *l, bool devices_known)
{
    ts_config *c = l->c;
    int inferred = find_inferred(l, ici);
    bool meshed = devices_known && resolve_mesh(l, inferred);
    if (!meshed) c->mesh = (ts_mesh){.devices = 1, .user = {1, 1, 1}};
    resolve_batch(l, meshed && !(c->devices_assumed && inferred >= 0));
    /* auto is plain: a ring's sums cost more memory traffic than the wire that they hide (docs/mesh.md). */
    c->ring = strcmp(c->collective_matmul, "ring") == 0;
}

/* False: a key that says it was reported. */
static bool find_devices(ts_loading *l)
{
    ts_config *c = l->c;
    ts_engine_choice choice = {.engine = "cpu"};
    bool chosen_engine = !l->bad[TS_K_engine] && !l->bad[TS_K_plugin];
    if (chosen_engine) ts__choose_engine(c, "", &choice);
    l->cpu = chosen_engine && strcmp(choice.engine, "cpu") == 0;
    if (*c->compile_topology && !l->bad[TS_K_compile_topology]) {
        ts_topology t;
        ts_error why = {0};
        size_t n = strlen(c->compile_topology);
        if (c->compile_topology_num_slices > 1)
            ts__key_problem(l, TS_K_compile_topology_num_slices,
                            "a program of this version spans one slice; "
                            "compile_topology_num_slices=1 (or -1) works");
        else if (ts__topology_parse(c->compile_topology, 1, &t, &why) != TS_OK)
            ts__key_problem(l, TS_K_compile_topology, "%s",
                            strncmp(why.msg, c->compile_topology, n) || why.msg[n] != ':'
                                ? why.msg
                                : why.msg + n + 2);
        else {
            c->devices = t.devices;
            c->n_torus = t.n_torus;
            memcpy(c->torus, t.torus, sizeof t.torus);
            return true;
        }
        return false;
    }
    if (!chosen_engine || l->bad[TS_K_cpu_devices]) return false;
    c->devices = ts__config_run_devices(c, choice.engine, choice.plugin);
    if (!l->cpu && c->devices > MAX_XLA_CPU_DEVICES) {
        ts__key_problem(l, TS_K_cpu_devices, "XLA's cpu plugin has at most %d; 1 to %d works, or engine=cpu",
                        MAX_XLA_CPU_DEVICES, MAX_XLA_CPU_DEVICES);
        return false;
    }
    l->virtual_devices = c->devices > 0;
    c->devices_assumed = c->devices == 0;
    if (c->devices_assumed && c->cpu_devices > 1 && chosen(l, TS_K_cpu_devices))
        ts__note(l, "cpu_devices has no effect: plugin=%s brings devices of its own",
                 choice.plugin);
    return true;
}

int64_t ts__config_run_devices(const ts_config *c, const char *engine, const char *plugin)
{
    bool cpu = strcmp(engine, "cpu") == 0 || (plugin && strcmp(plugin, "cpu") == 0);
    bool path =
        plugin && strchr(plugin, '/') != NULL; /* whatever it is, it was asked for that many */
    return cpu || (path && c->cpu_devices > 1) ? c->cpu_devices : 0;
}

void ts__config_heads(ts_config *c, const ts_model_config *model)
{
    c->n_heads = model->heads > 0 && model->kv_heads > 0 && model->heads % model->kv_heads == 0;
    c->kv_heads[0] = c->n_heads ? model->kv_heads : 0;
    c->group[0] = c->n_heads ? model->heads / model->kv_heads : 0;
}

/* Behind find_devices: which engine would run here is known. */
static void check_modes(ts_loading *l)
{
    ts_config *c = l->c;
    bool cpu = strcmp(c->engine, "cpu") == 0 && !l->bad[TS_K_engine];
    if (!c->shard_auto) return;
    if (cpu || (l->cpu && !*c->compile_topology))
        ts__key_problem(l, TS_K_shard_mode,
                        "leaves the partition to XLA, and %s; explicit works, or engine=xla",
                        cpu ? "engine=cpu is set" : "the cpu engine runs here (engine=auto)");
    if (strcmp(c->collective_matmul, "ring") == 0)
        ts__key_problem(
            l, TS_K_collective_matmul,
            "is made by Tessera's partitioner, and shard_mode=auto is set; auto or plain works");
}

void ts__config_derive_mesh(ts_loading *l)
{
    l->c->shard_auto = strcmp(l->c->shard_mode, "auto") == 0;
    bool known = find_devices(l);
    check_modes(l);
    check_slices(l);
    if (!*l->c->model_path) ts__config_heads(l->c, &l->c->model);
    place(l, known);
}

ts_status ts__config_place(ts_config *c, int64_t devices, const int64_t *torus, int n_torus,
                           ts_error *err)
{
    ts_loading *l = c->loading;
    ts_config before = *c;
    int64_t product = 1, sides[TS_MAX_RANK] = {0};
    TS_ASSERT(n_torus >= 0 && n_torus <= TS_MAX_RANK);
    if (devices < 1 || devices > MAX_MESH)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "%lld devices; a mesh has 1 … %d",
                        (long long)devices, MAX_MESH);
    for (int i = 0; i < n_torus; i++) /* torus may be c->torus itself */
        if ((sides[i] = torus[i]) < 1 || ts_mul_i64(product, sides[i], &product)) product = 0;
    if (n_torus && product != devices)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "a torus of %lld devices was named for %lld",
                        (long long)product, (long long)devices);
    c->devices = devices;
    c->devices_assumed = false;
    c->n_torus = n_torus;
    memcpy(c->torus, sides, sizeof c->torus);
    ts_config *owner = l->c;
    l->c = c;
    l->virtual_devices = !n_torus && devices == c->cpu_devices;
    ts__problems_clear(l);
    place(l, true);
    ts_status status = ts__problems_report(l, err);
    if (status != TS_OK) *c = before;
    l->c = owner;
    return status;
}
