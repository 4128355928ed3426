/* cpu/ref/index.c – rows by number, and their gradient.
 *
 * An id outside [0, rows) reads zeros and writes nothing. scatter_add adds in the order of the ids,
 * so equal ids give the same bits whatever the thread count; it sums in double and rounds once.
 */
#include "cpu/ref/ref.h"

/* Elements of one row of a table [V, …]. */
static int64_t row_elements(const ts_type *table)
{
    int64_t n = 1;
    for (int i = 1; i < table->rank; i++)
        n *= table->dim[i].size;
    return n;
}

void ts__ref_take(const ts_cpu_call *c)
{
    const ts_value *table = c->node->in[0];
    const int32_t *id = c->in[1];
    const int64_t n = ts__ref_count(c->node->in[1]), rows = table->type.dim[0].size;
    const size_t bytes = (size_t)row_elements(&table->type) * ts_dtype_bytes(table->type.dtype);
    for (int64_t i = 0; i < n && bytes > 0; i++) {
        char *to = (char *)c->out[0] + (size_t)i * bytes;
        if (id[i] < 0 || id[i] >= rows)
            memset(to, 0, bytes);                       /* zero in every dtype */
        else
            memcpy(to, (const char *)c->in[0] + (size_t)id[i] * bytes, bytes);
    }
}

ts_status ts__ref_prepare_scatter_add(const ts_node *n, int threads, ts_cpu_prepared *out,
                                      ts_error *err)
{
    return ts__ref_scratch(n, threads, 0, ts__ref_count(n->out[0]), (double)ts__ref_count(n->in[1]),
                           out, err);
}

void ts__ref_scatter_add(const ts_cpu_call *c)
{
    const ts_node *node = c->node;
    const int32_t *id = c->in[0];
    const int64_t n = ts__ref_count(node->in[0]), rows = node->out[0]->type.dim[0].size;
    const int64_t width = row_elements(&node->out[0]->type), count = rows * width;
    const ts_dtype t = node->in[1]->type.dtype;
    double *sum = ts__ref_part(c, 0, 0);
    for (int64_t i = 0; i < count; i++)
        sum[i] = 0;
    for (int64_t i = 0; i < n; i++) {
        if (id[i] < 0 || id[i] >= rows || id[i] == node->attr.scatter.no_grad_row) continue;
        for (int64_t j = 0; j < width; j++)
            sum[id[i] * width + j] += (double)ts__ref_get(c->in[1], t, i * width + j);
    }
    for (int64_t i = 0; i < count; i++)
        ((float *)c->out[0])[i] = (float)sum[i];
}
