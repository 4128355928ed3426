/* mesh/factors_fused.c – the rows of products, of what is indexed by ids, and of composites.
 *
 * Layouts are those of tessera.h and ir/shape_fused.c, most in letters: one letter a dimension, one
 * factor a letter. Where a result lacks a letter it is summed over that letter's axes: dot lacks
 * what it contracts, dk and dv lack the group, a norm's dw the rows. linear_xent's loss lacks the
 * vocabulary too, but is not a sum over it: the partitioner puts the parts together
 * (ir/build_xent.c).
 */
#include "mesh/rows.h"

/* ---- products -------------------------------------------------------------------------------- */

ts_status ts__row_dot(ts_row *r)
{
    const ts_type *x = &r->n->in[0]->type, *y = &r->n->in[1]->type;
    const ts_dims *xb = &r->n->attr.dot.x_batch, *yb = &r->n->attr.dot.y_batch,
                  *xc = &r->n->attr.dot.x_contract, *yc = &r->n->attr.dot.y_contract;
    int8_t id_x[TS_MAX_RANK], id_y[TS_MAX_RANK];
    unsigned in_x = 0, in_y = 0; /* dimensions that are not free */
    int out = 0;
    ts__row_factors(r, x, x->rank, id_x);
    memset(id_y, -1, sizeof id_y);
    for (int i = 0; i < xb->n; i++) {
        id_y[yb->v[i]] = id_x[xb->v[i]];
        in_x |= 1u << xb->v[i];
        in_y |= 1u << yb->v[i];
        ts__row_out(r, 0, out++, id_x[xb->v[i]]);
    }
    for (int i = 0; i < xc->n; i++) {
        id_y[yc->v[i]] = id_x[xc->v[i]];
        in_x |= 1u << xc->v[i];
        in_y |= 1u << yc->v[i];
    }
    for (int d = 0; d < x->rank; d++) {
        ts__row_in(r, 0, d, id_x[d]);
        if (!(in_x >> d & 1)) ts__row_out(r, 0, out++, id_x[d]);
    }
    for (int d = 0; d < y->rank; d++) {
        if (!(in_y >> d & 1)) {
            id_y[d] = ts__row_factor(r, y->dim[d].size, TS_FACTOR_PASS);
            ts__row_out(r, 0, out++, id_y[d]);
        }
        ts__row_in(r, 1, d, id_y[d]);
    }
    return TS_OK;
}

/* ---- rows in letters ------------------------------------------------------------------------- */

typedef struct letter_row {
    const char *letters;        /* a factor each, in this order */
    const char *whole, *range;  /* which of them are; the rest pass */
    const char *in[8], *out[3]; /* the dimensions of operands and results */
} letter_row;

/* The size of a letter's dimension in the first operand or result that has it. */
static int64_t size_of(const ts_row *r, const letter_row *row, char c)
{
    for (int i = 0; i < r->n->n_in + r->n->n_out; i++) {
        const bool in = i < r->n->n_in;
        const ts_type *t = in ? &r->n->in[i]->type : &r->n->out[i - r->n->n_in]->type;
        const char *dims = in ? row->in[i] : row->out[i - r->n->n_in], *at = strchr(dims, c);
        if (at) return t->dim[at - dims].size;
    }
    TS_ASSERT(!"a letter without a dimension");
    return 0;
}

static int8_t find(const letter_row *row, const int8_t *id, char c)
{
    return id[strchr(row->letters, c) - row->letters];
}

static ts_status by_letters(ts_row *r, const letter_row *row)
{
    int8_t id[TS_MAX_FACTORS];
    for (int k = 0; row->letters[k]; k++) {
        const char c = row->letters[k];
        id[k] = ts__row_factor(r, size_of(r, row, c),
                               strchr(row->whole, c)   ? TS_FACTOR_WHOLE
                               : strchr(row->range, c) ? TS_FACTOR_RANGE
                                                       : TS_FACTOR_PASS);
    }
    for (int i = 0; i < r->n->n_in; i++)
        for (int d = 0; row->in[i][d]; d++) ts__row_in(r, i, d, find(row, id, row->in[i][d]));
    for (int i = 0; i < r->n->n_out; i++)
        for (int d = 0; row->out[i][d]; d++) ts__row_out(r, i, d, find(row, id, row->out[i][d]));
    return TS_OK;
}

ts_status ts__row_attention(ts_row *r)
{
    return by_letters(
        r, &(letter_row){"BSKGDT", "STD", "", {"BSKGD", "BTKD", "BTKD", "BS"}, {"BSKGD", "BSKG"}});
}

/* dk and dv lack G. */
ts_status ts__row_attention_grad(ts_row *r)
{
    return by_letters(r, &(letter_row){"BSKGDT",
                                       "STD",
                                       "",
                                       {"BSKGD", "BTKD", "BTKD", "BSKGD", "BSKG", "BSKGD", "BS"},
                                       {"BSKGD", "BTKD", "BTKD"}});
}

/* Only the expert's two dimensions are split: its rows are ragged. y lacks E, dx lacks F. */
ts_status ts__row_grouped_dot(ts_row *r)
{
    return by_letters(r, &(letter_row){"RXFEO", "RXO", "", {"RE", "XFE", "O"}, {"RF"}});
}

ts_status ts__row_grouped_dot_grad(ts_row *r)
{
    return by_letters(r,
                      &(letter_row){"RXFEO", "RXO", "", {"RE", "XFE", "O", "RF"}, {"RE", "XFE"}});
}

/* A stable sort needs every assignment. */
ts_status ts__row_expert_rows(ts_row *r)
{
    return by_letters(r, &(letter_row){"TkRO", "TkRO", "", {"Tk"}, {"R", "R", "O"}});
}

/* A device takes the labels that its rows of w have. */
ts_status ts__row_linear_xent(ts_row *r)
{
    return by_letters(r, &(letter_row){"TEV", "E", "V", {"TE", "VE", "T"}, {"T", "T"}});
}

/* lse is of the whole vocabulary. dx lacks V, dw lacks T. */
ts_status ts__row_linear_xent_grad(ts_row *r)
{
    return by_letters(
        r, &(letter_row){"TEV", "E", "V", {"TE", "VE", "T", "T", "T", "T"}, {"TE", "VE"}});
}

/* Its results over a part of V are no sums. */
ts_status ts__row_xent_rows(ts_row *r)
{
    return by_letters(r, &(letter_row){"TEV", "EV", "", {"TE", "VE", "T"}, {"T", "T", "T"}});
}

/* ---- norm and rope, of any rank -------------------------------------------------------------- */

/* x [.., E], w [E]. The gradient's dw lacks the leading dimensions. */
ts_status ts__row_rms_norm(ts_row *r)
{
    const ts_type *x = &r->n->in[0]->type;
    const int last = x->rank - 1;
    int8_t id[TS_MAX_RANK];
    ts__row_factors(r, x, x->rank, id);
    r->f->kind[id[last]] = TS_FACTOR_WHOLE;
    for (int i = 0; i < r->n->n_in; i++)
        for (int d = 0; i != 1 && d < x->rank; d++) ts__row_in(r, i, d, id[d]);
    for (int d = 0; d < x->rank; d++) ts__row_out(r, 0, d, id[d]);
    ts__row_in(r, 1, 0, id[last]);
    if (r->n->n_out == 2) ts__row_out(r, 1, 0, id[last]);
    return TS_OK;
}

/* x [B,S,…,D], tables [S,D/2] or [B,S,D/2]. */
ts_status ts__row_rope(ts_row *r)
{
    const ts_type *x = &r->n->in[0]->type, *cos = &r->n->in[1]->type;
    int8_t id[TS_MAX_RANK];
    ts__row_factors(r, x, x->rank, id);
    r->f->kind[id[x->rank - 1]] = TS_FACTOR_WHOLE;
    for (int d = 0; d < x->rank; d++) {
        ts__row_in(r, 0, d, id[d]);
        ts__row_out(r, 0, d, id[d]);
    }
    const int8_t half = ts__row_factor(r, cos->dim[cos->rank - 1].size, TS_FACTOR_WHOLE);
    for (int i = 1; i < 3; i++) {
        for (int d = 0; d < cos->rank - 1; d++) ts__row_in(r, i, d, id[d + (cos->rank == 2)]);
        ts__row_in(r, i, cos->rank - 1, half);
    }
    return TS_OK;
}

/* ---- indexed by ids -------------------------------------------------------------------------- */

/* table [V, …], ids [any] → [ids…, …]: a device gives rows of its range and zeros for the rest. */
ts_status ts__row_take(ts_row *r)
{
    const ts_type *table = &r->n->in[0]->type, *ids = &r->n->in[1]->type;
    int8_t row[TS_MAX_RANK], id[TS_MAX_RANK];
    ts__row_factors(r, table, table->rank, row);
    ts__row_factors(r, ids, ids->rank, id);
    r->f->kind[row[0]] = TS_FACTOR_RANGE;
    for (int d = 0; d < table->rank; d++) ts__row_in(r, 0, d, row[d]);
    for (int d = 0; d < ids->rank; d++) {
        ts__row_in(r, 1, d, id[d]);
        ts__row_out(r, 0, d, id[d]);
    }
    for (int d = 1; d < table->rank; d++) ts__row_out(r, 0, ids->rank + d - 1, row[d]);
    return TS_OK;
}

/* ids [any], updates [ids…, …] → [rows, …]: a device adds what its range of rows gets. */
ts_status ts__row_scatter_add(ts_row *r)
{
    const ts_type *ids = &r->n->in[0]->type, *updates = &r->n->in[1]->type;
    int8_t id[TS_MAX_RANK];
    ts__row_factors(r, updates, updates->rank, id);
    for (int d = 0; d < ids->rank; d++) ts__row_in(r, 0, d, id[d]);
    for (int d = 0; d < updates->rank; d++) ts__row_in(r, 1, d, id[d]);
    ts__row_out(r, 0, 0, ts__row_factor(r, r->n->out[0]->type.dim[0].size, TS_FACTOR_RANGE));
    for (int d = ids->rank; d < updates->rank; d++) ts__row_out(r, 0, d - ids->rank + 1, id[d]);
    return TS_OK;
}
