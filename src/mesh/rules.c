/* mesh/rules.c – from the logical names of a value's dimensions to its spec.
 *
 * A rule gives a name the users' axes that it takes, in order; all internal axes of a user's axis
 * follow each other. Where a rule has tensor and fsdp, fsdp is minor: what is stored is then what
 * is used with fsdp appended, and a gather over fsdp takes minor axes only. Dimensions choose in
 * order and start at the first axis that no earlier one took, so kv_heads and group share tensor:
 * as many axes as divide the heads, then as many of the rest as divide the group.
 */
#include "mesh/mesh.h"

const ts_axis_rules ts_axis_rules_default = {.n = 8,
                                             .rule = {
                                                 {"batch", 2, {TS_AXIS_DATA, TS_AXIS_FSDP}},
                                                 {"sequence", 1, {TS_AXIS_TENSOR}},
                                                 {"kv_heads", 1, {TS_AXIS_TENSOR}},
                                                 {"group", 1, {TS_AXIS_TENSOR}},
                                                 {"mlp", 1, {TS_AXIS_TENSOR}},
                                                 {"vocab", 1, {TS_AXIS_TENSOR}},
                                                 {"embed", 1, {TS_AXIS_FSDP}},
                                                 {"norm", 0, {0}},
                                             }};

static const ts_axis_rule *find(const ts_axis_rules *r, const char *name)
{
    for (int i = 0; name && i < r->n; i++)
        if (!strcmp(r->rule[i].name, name)) return &r->rule[i];
    return NULL;
}

static bool has(const ts_axis_rule *rule, ts_user_axis user)
{
    for (int i = 0; i < rule->n; i++)
        if (rule->axis[i] == user) return true;
    return false;
}

/* The internal axes of a rule, fsdp's behind tensor's; returns their number. */
static int rule_axes(const ts_mesh *m, const ts_axis_rule *rule, uint8_t *axes)
{
    const bool later = has(rule, TS_AXIS_TENSOR) && has(rule, TS_AXIS_FSDP);
    uint16_t seen = 0; /* an axis that is named twice counts once */
    int n = 0;
    for (int pass = 0; pass < (later ? 2 : 1); pass++)
        for (int i = 0; i < rule->n; i++) {
            if (later && (rule->axis[i] == TS_AXIS_FSDP) != (pass == 1)) continue;
            for (int a = 0; a < m->n; a++) {
                if (m->axis[a].user != rule->axis[i] || seen >> a & 1) continue;
                seen |= (uint16_t)(1u << a);
                axes[n++] = (uint8_t)a;
            }
        }
    return n;
}

ts_spec ts_rules_spec(const ts_mesh *m, const ts_axis_rules *r, const char *const *name,
                      const ts_type *type, uint16_t *lost)
{
    ts_spec s = ts_spec_whole(type->rank);
    uint16_t taken = 0, asked = 0;
    for (int d = 0; d < type->rank; d++) {
        uint8_t axes[TS_MAX_AXES], left[TS_MAX_AXES];
        const ts_axis_rule *rule = find(r, name[d]);
        int n = rule ? rule_axes(m, rule, axes) : 0, n_left = 0;
        for (int i = 0; i < n; i++) {
            asked |= (uint16_t)(1u << axes[i]);
            if (!(taken >> axes[i] & 1)) left[n_left++] = axes[i];
        }
        s.n[d] = (uint8_t)ts_mesh_fit(m, type->dim[d].size, left, n_left);
        memcpy(s.axis[d], left, s.n[d]);
        for (int i = 0; i < s.n[d]; i++) taken |= (uint16_t)(1u << left[i]);
    }
    if (lost) *lost = asked & (uint16_t)~taken;
    return s;
}
