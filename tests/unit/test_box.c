/* test_box.c – boxes of tensors: every element at its place, stretches, and the same box in other dimensions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "base/box.h"
#include "base/random.h"

static uint64_t seed = 1;
static int64_t pick(int64_t n)
{
    return (int64_t)(ts_mix64(seed += 0x9e3779b97f4a7c15u) % (uint64_t)n);
}

static ts_box random_box(void)
{
    ts_box b = {.rank = (int)pick(5)};
    for (int i = 0; i < b.rank; i++) {
        b.global[i] = 1 + pick(5);
        b.local[i] = 1 + pick(b.global[i]);
        b.offset[i] = pick(b.global[i] - b.local[i] + 1);
    }
    assert_true(ts_box_finish(&b));
    return b;
}

static size_t elements_of(const ts_box *b)
{
    size_t n = 1;
    for (int i = 0; i < b->rank; i++) n *= (size_t)b->global[i];
    return n;
}

/* Is element `at` of the tensor in the box? By its coordinates, not by the code under test. */
static bool holds(const ts_box *b, size_t at)
{
    bool inside = true;
    for (int i = b->rank - 1; i >= 0; i--) {
        int64_t x = (int64_t)(at % (size_t)b->global[i]);
        at /= (size_t)b->global[i];
        inside &= x >= b->offset[i] && x < b->offset[i] + b->local[i];
    }
    return inside;
}

static void test_places(void **state)
{
    (void)state;
    for (int round = 0; round < 5000; round++) {
        ts_box b = random_box();
        size_t all = elements_of(&b), before = 0;
        int tensor[700], box[700], back[700];
        for (size_t i = 0; i < all; i++) {
            tensor[i] = (int)i;
            assert_int_equal(ts_box_before(&b, i), before);
            if (holds(&b, i)) assert_int_equal(ts_box_place(&b, before++), i);
        }
        assert_int_equal(before, b.elements);
        assert_int_equal(ts_box_before(&b, all), b.elements);
        size_t first = (size_t)pick((int64_t)all), n = 1 + (size_t)pick((int64_t)(all - first));
        size_t from = ts_box_before(&b, first), count = ts_box_before(&b, first + n) - from;
        ts_box_gather(&b, from, count, sizeof *tensor, tensor + first, first, box);
        for (size_t i = 0; i < count; i++) assert_int_equal(box[i], ts_box_place(&b, from + i));
        for (size_t i = 0; i < n; i++) back[i] = -1;
        ts_box_scatter(&b, from, count, sizeof *tensor, box, back, first);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(back[i], holds(&b, first + i) ? (int)(first + i) : -1);
    }
}

/* Dimensions joined at random: what reshape says is a box holds just the same elements; what it refuses is none. */
static void test_reshape(void **state)
{
    (void)state;
    int yes = 0, no = 0;
    for (int round = 0; round < 20000; round++) {
        ts_box b = random_box(), out;
        int64_t dim[TS_BOX_RANK] = {0};
        int rank = 0;
        for (int i = 0; i < b.rank; i++)
            if (rank && pick(2))
                dim[rank - 1] *= b.global[i];
            else
                dim[rank++] = b.global[i];
        size_t all = elements_of(&b);
        bool is = ts_box_reshape(&b, rank, dim, &out);
        if (is) {
            assert_int_equal(out.elements, b.elements);
            for (size_t i = 0; i < all; i++) assert_int_equal(holds(&b, i), holds(&out, i));
            yes++;
            continue;
        }
        /* No box of those dimensions: the smallest that holds all of its elements holds others too. */
        int64_t low[TS_BOX_RANK], high[TS_BOX_RANK];
        size_t smallest = 1;
        for (int i = 0; i < rank; i++) low[i] = INT64_MAX, high[i] = -1;
        for (size_t at = 0; at < all; at++) {
            size_t rest = at;
            if (!holds(&b, at)) continue;
            for (int i = rank - 1; i >= 0; i--) {
                int64_t x = (int64_t)(rest % (size_t)dim[i]);
                rest /= (size_t)dim[i];
                if (x < low[i]) low[i] = x;
                if (x > high[i]) high[i] = x;
            }
        }
        for (int i = 0; i < rank; i++) smallest *= (size_t)(high[i] - low[i] + 1);
        assert_true(smallest > b.elements);
        no++;
    }
    assert_true(yes > 2000 && no > 2000);
}

static void test_refused(void **state)
{
    (void)state;
    ts_box good = {.rank = 2, .global = {4, 6}, .local = {2, 3}, .offset = {2, 3}}, b = good;
    assert_true(ts_box_finish(&b) && b.elements == 6 && b.run == 3);
    b = good, b.offset[1] = 4;
    assert_false(ts_box_finish(&b));
    b = good, b.local[0] = 0;
    assert_false(ts_box_finish(&b));
    b = good, b.offset[0] = -1;
    assert_false(ts_box_finish(&b));
    b = good, b.offset[0] = INT64_MAX;
    assert_false(ts_box_finish(&b));
    b = good, b.global[0] = INT64_MAX / 2, b.global[1] = 8;
    assert_false(ts_box_finish(&b));
    b = good, b.rank = TS_BOX_RANK + 1;
    assert_false(ts_box_finish(&b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_places), cmocka_unit_test(test_reshape),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests_name("boxes", tests, NULL, NULL);
}
