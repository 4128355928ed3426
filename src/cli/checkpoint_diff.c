/* cli/checkpoint_diff.c – tessera checkpoint diff: where two checkpoints differ, for people and for
 * programs.
 *
 * First the sums over parameters and over moments, then what differs beside the tensors, then the
 * tensors that differ. Relative is to the largest value of the tensor. Not here: the comparison
 * (ckpt/diff.c).
 */
#include "cli/checkpoint.h"

#include <stdlib.h>
#include <string.h>

enum { TENSORS_SHOWN = 10, NAME_WIDTH = 31, FACT_WIDTH = 25 };

/* ---- people ---------------------------------------------------------------------------------- */

/* 1234567 as "1,234,567". */
static const char *grouped(uint64_t n, char *buf)
{
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)n), used = 0;
    for (int i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0) buf[used++] = ',';
        buf[used++] = digits[i];
    }
    buf[used] = '\0';
    return buf;
}

static double relative(const ts_diff_tensor *t)
{
    return t->largest > 0 ? t->max_abs / t->largest : 0;
}

static void print_sum(const char *name, const ts_diff *d, const ts_diff_sum *s)
{
    char a[48], b[48];
    if (s->tensors == 0) return;
    printf("%-10s  %zu tensor%s, ", name, s->tensors, s->tensors == 1 ? "" : "s");
    if (s->same == s->tensors) {
        printf("identical (%s numbers)\n", grouped(s->elements, a));
        return;
    }
    printf("%zu identical", s->same);
    if (s->shape) printf(", %zu of another shape", s->shape);
    if (s->only_a) printf(", %zu only in A", s->only_a);
    if (s->only_b) printf(", %zu only in B", s->only_b);
    printf("\n");
    if (s->values == 0) return;
    printf("%-10s  %zu differ%s: %s of %s numbers\n", "", s->values, s->values == 1 ? "s" : "",
           grouped(s->different, a), grouped(s->elements, b));
    if (s->not_finite)
        printf("%-10s  %s of them are not finite in A or B\n", "", grouped(s->not_finite, a));
    const ts_diff_tensor *t = &d->tensor[s->worst];
    printf("%-10s  by at most %.3g; relative to the largest of its tensor %.3g\n", "", s->max_abs,
           s->max_rel);
    printf("%-10s  most in ", "");
    checkpoint_print(stdout, t->name);
    printf(" %s: %.9g and %.9g\n", t->where, t->a, t->b);
}

/* A column of text; what is longer pushes the rest of its row. */
static void cell(const char *text, int width)
{
    int columns = 0;
    for (const char *c = text; *c; c++) columns += ((unsigned char)*c & 0xc0) != 0x80;
    checkpoint_print(stdout, text);
    printf("%*s", columns < width ? width - columns : 1, "");
}

static void print_facts(const ts_diff *d)
{
    const char *group = "";
    if (d->n_fact) printf("\n");
    for (size_t i = 0; i < d->n_fact; i++) {
        const ts_diff_fact *f = &d->fact[i];
        if (strcmp(group, f->group) != 0) {
            if (i) printf("%s\n", f->group);
            if (!i) printf("%-*s%-*sB\n", NAME_WIDTH, f->group, FACT_WIDTH, "A");
        }
        group = f->group;
        printf("  ");
        cell(f->name, NAME_WIDTH - 2);
        cell(*f->a ? f->a : "-", FACT_WIDTH);
        checkpoint_print(stdout, f->same ? "same" : *f->b ? f->b : "-");
        printf("\n");
    }
}

static void print_tensor(const ts_diff_tensor *t)
{
    switch (t->kind) {
    case TS_DIFF_SAME: printf("%8s  %9s  %8s  ", "same", "", ""); break;
    case TS_DIFF_ONLY_A: printf("%8s  %9s  %8s  ", "only A", "", ""); break;
    case TS_DIFF_ONLY_B: printf("%8s  %9s  %8s  ", "only B", "", ""); break;
    case TS_DIFF_SHAPE: printf("%8s  %9s  %8s  ", "shape", "", ""); break;
    case TS_DIFF_VALUES:
        printf("%6.2f %%  ", 100 * (double)t->different / (double)t->elements);
        if (t->not_finite)
            printf("%9s  %8s  ", "not", "finite");
        else
            printf("%9.2e  %8.1e  ", t->max_abs, relative(t));
    }
    checkpoint_print(stdout, t->name);
    if (t->kind == TS_DIFF_SHAPE) printf(" %s and %s", t->shape_a, t->shape_b);
    printf("\n");
}

/* Parameters first. */
static void print_tensors(const ts_diff *d, bool all)
{
    size_t shown = 0, left = 0;
    for (int moment = 0; moment < 2; moment++)
        for (size_t i = 0; i < d->n; i++) {
            const ts_diff_tensor *t = &d->tensor[i];
            if (t->moment != (moment == 1) || (!all && t->kind == TS_DIFF_SAME)) continue;
            if (!all && shown == TENSORS_SHOWN) {
                left++;
                continue;
            }
            if (shown++ == 0) printf("\n%8s  %9s  %8s  tensor\n", "differ", "max abs", "relative");
            print_tensor(t);
        }
    if (left) printf("%31sand %zu more; --tensors shows all\n", "", left);
}

static void print_diff(const ts_diff *d, bool all)
{
    printf("A  ");
    checkpoint_print(stdout, d->a);
    printf("\nB  ");
    checkpoint_print(stdout, d->b);
    printf("\n");
    print_sum("parameters", d, &d->parameters);
    print_sum("moments", d, &d->moments);
    if (d->weights_only) printf("%-10s  not compared: one of the two has weights alone\n", "moments");
    print_facts(d);
    print_tensors(d, all);
}

/* ---- programs -------------------------------------------------------------------------------- */

static const char *const kinds[] = {"same", "values", "shape", "only_a", "only_b"};

static void json_sum(const char *name, const ts_diff *d, const ts_diff_sum *s)
{
    printf("\"%s\": {\"tensors\": %zu, \"same\": %zu, \"values\": %zu, \"shape\": %zu, \"only_a\": %zu, "
           "\"only_b\": %zu, \"elements\": %llu, \"different\": %llu, \"not_finite\": %llu, ",
           name, s->tensors, s->same, s->values, s->shape, s->only_a, s->only_b,
           (unsigned long long)s->elements, (unsigned long long)s->different,
           (unsigned long long)s->not_finite);
    checkpoint_json_number("max_abs", s->max_abs);
    printf(", ");
    checkpoint_json_number("max_rel", s->max_rel);
    printf(", ");
    if (s->worst < d->n)
        cli_json_member("worst", d->tensor[s->worst].name);
    else
        printf("\"worst\": null");
    printf("}");
}

static void json_tensor(const ts_diff_tensor *t)
{
    printf("{");
    cli_json_member("name", t->name);
    printf(", \"kind\": \"%s\", \"moment\": %s, \"shape_a\": %s, \"shape_b\": %s, ", kinds[t->kind],
           t->moment ? "true" : "false", *t->shape_a ? t->shape_a : "null",
           *t->shape_b ? t->shape_b : "null");
    printf("\"elements\": %llu, \"different\": %llu, \"not_finite\": %llu, ",
           (unsigned long long)t->elements, (unsigned long long)t->different,
           (unsigned long long)t->not_finite);
    checkpoint_json_number("max_abs", t->max_abs);
    printf(", ");
    checkpoint_json_number("max_rel", relative(t));
    printf(", \"where\": %s", *t->where ? t->where : "null");
    if (*t->where) {
        printf(", ");
        checkpoint_json_number("a", t->a);
        printf(", ");
        checkpoint_json_number("b", t->b);
    }
    printf("}");
}

static void json_fact(const ts_diff_fact *f)
{
    const char *const value[2] = {f->a, f->b};
    printf("{");
    cli_json_member("group", f->group);
    printf(", ");
    cli_json_member("name", f->name);
    for (int i = 0; i < 2; i++) {
        printf(", \"%s\": ", i ? "b" : "a");
        if (*value[i] && f->number)
            printf("%s", value[i]);
        else if (*value[i])
            cli_json_string(value[i], strlen(value[i]));
        else
            printf("null");
    }
    printf(", \"same\": %s}", f->same ? "true" : "false");
}

static void json_diff(const ts_diff *d, bool all)
{
    bool first = true;
    printf("{");
    cli_json_member("a", d->a);
    printf(", ");
    cli_json_member("b", d->b);
    printf(", \"same\": %s, \"weights_only\": %s, \"bytes\": %llu,\n", d->same ? "true" : "false",
           d->weights_only ? "true" : "false", (unsigned long long)d->bytes);
    json_sum("parameters", d, &d->parameters);
    printf(",\n");
    json_sum("moments", d, &d->moments);
    printf(",\n\"facts\": [");
    for (size_t i = 0; i < d->n_fact; i++) {
        printf(i ? ",\n" : "\n");
        json_fact(&d->fact[i]);
    }
    printf("],\n\"tensors\": [");
    for (size_t i = 0; i < d->n; i++) {
        if (!all && d->tensor[i].kind == TS_DIFF_SAME) continue;
        printf(first ? "\n" : ",\n");
        json_tensor(&d->tensor[i]);
        first = false;
    }
    printf("]}\n");
}

/* ---- the action ------------------------------------------------------------------------------ */

int checkpoint_diff(const checkpoint_options *o)
{
    ts_diff *d;
    ts_error err = {0};
    checkpoint_progress p;
    cli_stop_on_signals();
    checkpoint_progress_start(&p, 0, o->quiet);
    ts_status status = ts_diff_open(o->word[0], o->word[1], checkpoint_progress_add, &p, &d, &err);
    checkpoint_progress_clear(&p);
    if (status != TS_OK) return checkpoint_fail("diff", &err);
    int code = d->same ? 0 : 1;
    if (o->json)
        json_diff(d, o->tensors);
    else if (!o->quiet)
        print_diff(d, o->tensors);
    ts_diff_free(d);
    return code;
}
