/* test_plan.c – the buffer planner: on random blocks no two that are needed together share a byte, and
 * the total is never below what the busiest position needs nor above what no sharing needs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "exec/plan.h"

enum { POSITIONS = 60, MAX_BLOCKS = 80, MAX_RANGES = 3, ALIGN = 64 };

static uint32_t state = 1;

static uint32_t next_random(uint32_t n)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

typedef struct problem {
    ts_plan_block block[MAX_BLOCKS];
    ts_plan_range range[MAX_BLOCKS][MAX_RANGES];
    bool needed[MAX_BLOCKS][POSITIONS];
    int n;
} problem;

static void make_problem(problem *p)
{
    memset(p, 0, sizeof *p);
    p->n = 1 + (int)next_random(MAX_BLOCKS);
    for (int i = 0; i < p->n; i++) {
        int n_range = 1 + (int)next_random(MAX_RANGES);
        p->block[i] = (ts_plan_block){.bytes = next_random(5) ? 1 + next_random(2000) : 0,
                                      .range = p->range[i],
                                      .n_range = n_range};
        for (int r = 0; r < n_range; r++) {
            int first = (int)next_random(POSITIONS),
                last = first + (int)next_random((uint32_t)(POSITIONS - first));
            p->range[i][r] = (ts_plan_range){first, last};
            for (int t = first; t <= last; t++) p->needed[i][t] = true;
        }
    }
}

static bool bytes_meet(const ts_plan_block *a, const ts_plan_block *b)
{
    return a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

/* By brute force over positions, not by the planner's own overlap. */
static void check_problem(const problem *p, size_t total)
{
    size_t all = 0;
    for (int i = 0; i < p->n; i++) {
        const ts_plan_block *b = &p->block[i];
        all += ts_round_up(b->bytes, ALIGN);
        assert_int_equal(b->offset % ALIGN, 0);
        assert_true(b->offset + b->bytes <= total);
    }
    assert_true(total <= all);
    for (int t = 0; t < POSITIONS; t++) {
        size_t need = 0;
        for (int i = 0; i < p->n; i++) {
            if (!p->needed[i][t]) continue;
            need += p->block[i].bytes;
            for (int j = 0; j < i; j++)
                if (p->needed[j][t] && bytes_meet(&p->block[i], &p->block[j]))
                    fail_msg("blocks %d and %d share bytes at position %d", i, j, t);
        }
        assert_true(need <= total);
    }
}

static void random_blocks_never_collide(void **unused)
{
    (void)unused;
    static problem p;
    for (int round = 0; round < 2000; round++) {
        size_t total;
        make_problem(&p);
        assert_int_equal(ts_plan_assign(p.block, p.n, ALIGN, true, &total, NULL), TS_OK);
        check_problem(&p, total);
    }
}

static void apart_shares_nothing(void **unused)
{
    (void)unused;
    static problem p;
    size_t total;
    make_problem(&p);
    assert_int_equal(ts_plan_assign(p.block, p.n, ALIGN, false, &total, NULL), TS_OK);
    for (int i = 0; i < p.n; i++)
        for (int j = 0; j < i; j++) assert_false(bytes_meet(&p.block[i], &p.block[j]));
}

/* A chain a → b → c → …: two neighbours at a time. */
static void chain_needs_two(void **unused)
{
    (void)unused;
    ts_plan_block block[10];
    ts_plan_range range[10];
    size_t total;
    for (int i = 0; i < 10; i++) {
        range[i] = (ts_plan_range){i, i + 1};
        block[i] = (ts_plan_block){.bytes = 256, .range = &range[i], .n_range = 1};
    }
    assert_int_equal(ts_plan_assign(block, 10, ALIGN, true, &total, NULL), TS_OK);
    assert_int_equal(total, 512);
}

/* A block with a hole in its ranges lends its bytes to a block inside the hole. */
static void hole_is_used(void **unused)
{
    (void)unused;
    ts_plan_range outer[2] = {{0, 2}, {6, 9}}, inner = {3, 5}, touching = {5, 6};
    ts_plan_block block[3] = {{.bytes = 100, .range = outer, .n_range = 2},
                              {.bytes = 100, .range = &inner, .n_range = 1},
                              {.bytes = 100, .range = &touching, .n_range = 1}};
    size_t total;
    assert_int_equal(ts_plan_assign(block, 3, ALIGN, true, &total, NULL), TS_OK);
    assert_int_equal(block[0].offset, block[1].offset);
    assert_true(block[2].offset != block[0].offset);
    assert_int_equal(total, 128 + 100);
}

static void overflow_is_refused(void **unused)
{
    (void)unused;
    ts_plan_range range = {0, 1};
    ts_plan_block block[2] = {{.bytes = PTRDIFF_MAX - 100, .range = &range, .n_range = 1},
                              {.bytes = PTRDIFF_MAX - 100, .range = &range, .n_range = 1}};
    size_t total;
    ts_error err = {0};
    assert_int_equal(ts_plan_assign(block, 2, ALIGN, true, &total, &err), TS_RESOURCE_EXHAUSTED);
    assert_int_equal(ts_plan_assign(block, 2, ALIGN, false, &total, NULL), TS_RESOURCE_EXHAUSTED);
    assert_true(strlen(err.msg) > 0);
}

static void memory_out_is_reported(void **unused)
{
    (void)unused;
    ts_plan_range range = {0, 1};
    for (int nth = 1; nth <= 2; nth++) {
        ts_plan_block block = {.bytes = 8, .range = &range, .n_range = 1};
        size_t total;
        ts_alloc_fail_at((uint64_t)nth);
        assert_int_equal(ts_plan_assign(&block, 1, ALIGN, true, &total, NULL),
                         TS_RESOURCE_EXHAUSTED);
    }
    ts_alloc_fail_at(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_blocks_never_collide),
        cmocka_unit_test(apart_shares_nothing),
        cmocka_unit_test(chain_needs_two),
        cmocka_unit_test(hole_is_used),
        cmocka_unit_test(overflow_is_refused),
        cmocka_unit_test(memory_out_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
