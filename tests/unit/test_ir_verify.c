/* test_ir_verify.c – a good graph passes; each planted defect is found and named. */
#include "unit/ir_help.h"

/* Inputs x, y f32[2,3]; s = x + y; repeat over s with carry and xs; outputs; a stacked parameter.
 */
typedef struct sample {
    ts_graph *g;
    ts_node *add, *repeat, *inner;
} sample;

static sample make(void)
{
    ts_builder *b = ts_builder_new("sample");
    ts_dim A = {"a", 2}, B = {"b", 3};
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(A, B)),
             *y = ts_input(b, "y", TS_F32, TS_DIMS(A, B));
    ts_value *w = ts_input(b, "w", TS_F32, TS_DIMS({"layers", 4}, A, B)), *carry, *slice, *ys[1],
             *results[2];
    ts_scope_push(b, "block");
    ts_builder_at(b, "model.c", 12);
    ts_value *s = ts_add(b, x, y);
    ts_repeat *r = ts_repeat_begin(b, 4, false, &s, 1, &w, 1, &carry, &slice);
    ts_value *h = ts_mul(b, carry, slice);
    ys[0] = ts_exp(b, ts_add(b, h, y));
    ts_repeat_end(b, r, &h, ys, NULL, 1, results);
    ts_scope_pop(b);
    ts_output(b, "h", results[0], x);
    ts_output(b, "stack", results[1], NULL);
    sample m = {.g = finish(b)};
    m.add = find_op(m.g->top, TS_OP_add);
    m.repeat = find_op(m.g->top, TS_OP_repeat);
    m.inner = find_op(m.repeat->body, TS_OP_mul);
    m.g->param = ts_arena_alloc(m.g->arena, 2 * sizeof *m.g->param);
    m.g->n_param = m.g->cap_param = 1;
    m.g->param[0] = (ts_param_info){"layers.{}.w", w, 1, 2, 4, 2, {2, 3}, 0.02};
    return m;
}

static void mesh(sample *m, const char *name, int64_t size)
{
    m->g->axis[m->g->n_axis].name = name;
    m->g->axis[m->g->n_axis++].size = size;
}

/* An all_reduce of x over n devices of axis "b". */
static void over_b(sample *m, int64_t n)
{
    ts_error err = {0};
    ts_attr attr = {.collective = {.axis = "b", .n = n}};
    ts_value *x = m->g->top->arg[0];
    assert_non_null(ts__node_new(m->g->top, NULL, TS_OP_all_reduce, &x, 1, &attr, NULL, &err));
    mesh(m, "a", 2);
}

static void test_good(void **state)
{
    (void)state;
    sample m = make();
    OK(ts_graph_verify(m.g, &err));
    over_b(&m, 4); /* with a mesh that has the axis */
    mesh(&m, "b", 4);
    OK(ts_graph_verify(m.g, &err));
    m.g->n_axis = 0; /* and for no mesh yet */
    OK(ts_graph_verify(m.g, &err));
    ts_graph_free(m.g);
}

typedef struct defect {
    const char *name, *says;
    void (*plant)(sample *m);
} defect;

static void wrong_type(sample *m) { m->add->out[0]->type.dim[1].size = 4; }
static void wrong_dtype(sample *m) { m->add->out[0]->type.dtype = TS_BF16; }
static void own_result(sample *m) { m->add->in[0] = m->add->out[0]; }
static void later_operand(sample *m) { m->add->in[0] = m->repeat->out[0]; }
static void outer_operand(sample *m) { m->inner->in[0] = m->g->top->arg[0]; }
static void inner_operand(sample *m) { m->add->in[0] = m->repeat->body->arg[0]; }
static void removed_operand(sample *m) { ts__node_remove(m->add); }
static void same_ids(sample *m) { m->add->out[0]->id = m->g->top->arg[0]->id; }
static void id_beyond(sample *m) { m->add->out[0]->id = m->g->next_id + 7; }
static void no_operand(sample *m) { m->add->in[1] = NULL; }
static void lost_operand(sample *m) { m->add->n_in = 1; }
static void result_elsewhere(sample *m) { m->add->out[0]->index = 1; }
static void no_op(sample *m) { m->add->op = TS_OPS; }
static void other_region(sample *m) { m->inner->region = m->g->top; }
static void no_owner(sample *m) { m->repeat->body->owner = m->add; }
static void no_parent(sample *m) { m->repeat->body->parent = NULL; }
static void no_body(sample *m) { m->repeat->body = NULL; }
static void surplus_body(sample *m) { m->add->body = m->repeat->body; }
static void broken_chain(sample *m) { m->repeat->prev = NULL; }
static void broken_end(sample *m) { m->g->top->last = m->add; }
static void iterations(sample *m) { m->repeat->attr.repeat.n = 5; }
static void carries(sample *m) { m->repeat->attr.repeat.n_carry = 2; }
static void argument_type(sample *m) { m->repeat->body->arg[1]->type.dim[0].size = 1; }
static void const_type(sample *m)
{
    m->repeat->body->arg[2]->type.dtype = TS_I32;
    m->repeat->body->last->prev->in[1] = m->repeat->body->arg[0];
}
static void lost_result(sample *m) { m->repeat->body->n_result = 1; }
static void foreign_result(sample *m) { m->repeat->body->result[0] = m->add->out[0]; }
static void same_inputs(sample *m) { m->g->top->arg[1]->name = "x"; }
static void no_input_name(sample *m) { m->g->top->arg[1]->name = NULL; }
static void same_outputs(sample *m) { m->g->output[1].name = "h"; }
static void replaces_nothing(sample *m) { m->g->output[0].replaces = 3; }
static void replaces_other_type(sample *m) { m->g->output[0].replaces = 2; }
static void negative_size(sample *m) { m->g->top->arg[0]->type.dim[0].size = -2; }
static void param_no_input(sample *m) { m->g->param[0].value = m->add->out[0]; }
static void param_shape(sample *m) { m->g->param[0].file_dim[1] = 4; }
static void param_stack(sample *m) { m->g->param[0].count = 3; }
static void param_pattern(sample *m) { m->g->param[0].name = "w"; }
static void param_step(sample *m) { m->g->param[0].step = 0; }
static void param_init(sample *m) { m->g->param[0].init = NAN; }
static void param_rank(sample *m) { m->g->param[0].file_rank = 7; }
static void top_inside(sample *m) { m->g->top->owner = m->repeat; }

static void replaced_twice(sample *m)
{
    m->g->top->result[1] = m->g->top->result[0];
    m->g->output[1].replaces = m->g->output[0].replaces;
}

/* Layers 1, 3, 5, 7 and 5, 9, 13, 17 of one name share layer 5. */
static void param_twice(sample *m)
{
    m->g->param[m->g->n_param++] =
        (ts_param_info){"layers.{}.w", m->g->top->arg[2], 5, 4, 4, 2, {2, 3}, 0.02};
}

static void nested_deep(sample *m)
{
    ts_region *r = m->g->top;
    ts_attr attr = {.repeat = {.n = 1}};
    for (int i = 0; i < 17; i++) {
        ts_error err = {0};
        ts_region *body = ts__region_new(m->g, r);
        assert_non_null(ts__node_new(r, NULL, TS_OP_repeat, NULL, 0, &attr, body, &err));
        r = body;
    }
}

static void axis_unnamed(sample *m) { mesh(m, "", 2); }
static void axis_empty(sample *m) { mesh(m, "a", 0); }
static void axis_missing(sample *m) { over_b(m, 2); }

static void axis_twice(sample *m)
{
    mesh(m, "a", 2);
    mesh(m, "a", 3);
}

static void axis_other_size(sample *m)
{
    over_b(m, 2);
    mesh(m, "b", 4);
}

static void too_many_devices(sample *m)
{
    mesh(m, "a", 1 << 20);
    mesh(m, "b", INT64_MAX);
}

/* clang-format off */
#define DEFECT(fn, says) {#fn, says, fn}
/* clang-format on */
static const defect defects[] = {
    DEFECT(wrong_type, "result 0 is f32[a:2,b:4]; the shape rule gives f32[a:2,b:3]"),
    DEFECT(wrong_dtype, "result 0 is bf16[a:2,b:3]; the shape rule gives f32"),
    DEFECT(own_result, "add in block at model.c:12: operand 0"),
    DEFECT(later_operand, "is used before it is computed"),
    DEFECT(outer_operand, "operand 0 (id 0) belongs to another region"),
    DEFECT(inner_operand, "belongs to another region"),
    DEFECT(removed_operand, "or was removed"),
    DEFECT(same_ids, "which another value has"),
    DEFECT(id_beyond, "ids end at"),
    DEFECT(no_operand, "operand 1 is missing"),
    DEFECT(lost_operand, "found 1 operands; it takes 2"),
    DEFECT(result_elsewhere, "does not point back"),
    DEFECT(no_op, "does not exist"),
    DEFECT(other_region, "stands in one region and points to another"),
    DEFECT(no_owner, "its body belongs to another node"),
    DEFECT(no_parent, "its body belongs to another node"),
    DEFECT(no_body, "only repeat has, and needs, a body"),
    DEFECT(surplus_body, "only repeat has, and needs, a body"),
    DEFECT(broken_chain, "is not the one that leads to it"),
    DEFECT(broken_end, "last node is not where its list ends"),
    DEFECT(iterations, "must be the 5 iterations"),
    DEFECT(carries, "2 carries"),
    DEFECT(argument_type, "operand 1 is f32[a:1,b:3]; they must be equal"),
    DEFECT(const_type, "argument 2 of its region is i32[a:2,b:3]; expected f32[a:2,b:3]"),
    DEFECT(lost_result, "yields 1 values"),
    DEFECT(foreign_result, "region result 0"),
    DEFECT(same_inputs, "two inputs are named x"),
    DEFECT(no_input_name, "input 1 has no name"),
    DEFECT(same_outputs, "two outputs are named h"),
    DEFECT(replaces_nothing, "replaces input 3; there are 3"),
    DEFECT(replaces_other_type, "replaces input w"),
    DEFECT(negative_size, "is negative"),
    DEFECT(param_no_input, "is no input of the graph"),
    DEFECT(param_shape, "has 32 elements in files"),
    DEFECT(param_stack, "stacked over 3 layers"),
    DEFECT(param_pattern, "in the name"),
    DEFECT(param_step, "in steps of 0"),
    DEFECT(param_init, "starts with deviation nan"),
    DEFECT(param_rank, "7 dimensions"),
    DEFECT(param_twice, "for one layer"),
    DEFECT(top_inside, "stands inside another"),
    DEFECT(replaced_twice, "input x is replaced by two outputs"),
    DEFECT(axis_unnamed, "axis 0 of its mesh has no name"),
    DEFECT(axis_empty, "axis a of its mesh has 0 devices"),
    DEFECT(axis_missing, "all_reduce: it runs over axis b, which the graph's mesh does not have"),
    DEFECT(axis_twice, "two axes of its mesh are named a"),
    DEFECT(axis_other_size, "it runs over 2 devices of axis b, which has 4"),
    DEFECT(too_many_devices, "axis b of its mesh has 9223372036854775807 devices"),
    DEFECT(nested_deep, "more than 16 deep"),
};

static void test_defects(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof defects / sizeof *defects; i++) {
        sample m = make();
        ts_error err = {0};
        defects[i].plant(&m);
        ts_status status = ts_graph_verify(m.g, &err);
        if (status != TS_INVALID_ARGUMENT || !strstr(err.msg, defects[i].says))
            fail_msg("%s: expected '%s', found %s '%s'", defects[i].name, defects[i].says,
                     ts_status_name(status), err.msg);
        ts_graph_free(m.g);
    }
}

static void test_memory_out(void **state)
{
    (void)state;
    sample m = make();
    bool passed = false;
    for (uint64_t n = 1; !passed && n < 100; n++) {
        ts_error err = {0};
        ts_alloc_fail_at(n);
        ts_status status = ts_graph_verify(m.g, &err);
        ts_alloc_fail_at(0);
        passed = status == TS_OK;
        if (!passed) assert_int_equal(status, TS_RESOURCE_EXHAUSTED);
    }
    assert_true(passed);
    ts_graph_free(m.g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_defects),
        cmocka_unit_test(test_memory_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
