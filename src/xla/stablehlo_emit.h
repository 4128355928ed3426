/* xla/stablehlo_emit.h – what the emitters of stablehlo_*.c share: one function an op, and how they write.
 *
 * An emitter reads operands (ts__shlo_in), writes operations and says which value stands for each result
 * (ts__shlo_set); a result may be an operand itself. Errors stick: emitters check nothing.
 */
#ifndef TS_STABLEHLO_EMIT_H
#define TS_STABLEHLO_EMIT_H

#include "xla/stablehlo.h"

/* A value of the program. sub ≥ 0: one of several results of an operation; −1: the only one; −2: an argument of
 * @main. */
typedef struct ts_shlo_value {
    int32_t number, sub;
    ts_type type;
} ts_shlo_value;

/* Scalar constants of the region that is being written, so that each is written once there. */
typedef struct ts_shlo_scalars {
    int n;
    struct {
        double value;
        ts_shlo_value v;
    } at[8];
} ts_shlo_scalars;

typedef struct ts_shlo_locs ts_shlo_locs; /* the locations met so far (stablehlo_text.c) */

typedef struct ts_shlo {
    ts_string *out;
    const ts_graph *g;
    ts_precision precision;
    const ts_sharding *sharding; /* NULL: none */
    ts_shlo_value *value; /* by value id */
    int32_t next;         /* number of the next operation */
    int depth;            /* indentation, in steps of two */
    const ts_node *at;    /* whose operations are being written */
    const char *scope;    /* the scope that was announced last */
    int loc;              /* of `at` */
    ts_shlo_locs *locs;
    ts_shlo_scalars scalars;
    ts_status status;
    ts_error *err;
} ts_shlo;

typedef void ts_shlo_emitter(ts_shlo *e, const ts_node *n);

#define SHLO_PRIMITIVE(name)  ts_shlo_emitter ts__stablehlo_##name;
#define SHLO_COLLECTIVE(name) ts_shlo_emitter ts__stablehlo_##name;
#define SHLO_COMPOSITE(name)
#define OP(name, lo, hi, results, kind, ...) SHLO_##kind(name)
#include "ir/ops.def"
#undef OP
#undef SHLO_PRIMITIVE
#undef SHLO_COLLECTIVE
#undef SHLO_COMPOSITE

/* ---- values and lines (stablehlo_text.c) ----------------------------------------------------- */

ts_shlo_value ts__shlo_in(const ts_shlo *e, const ts_node *n, int i);
void ts__shlo_set(ts_shlo *e, const ts_node *n, int i, ts_shlo_value v);
/* The first mistake of the writer; nothing more is written after it. */
void ts__shlo_fail(ts_shlo *e, ts_status code, const char *fmt, ...) TS_PRINTF(3, 4);
void ts__shlo_memory(ts_shlo *e);

/* Adds text. In fmt: $v a value (const ts_shlo_value *), $t a type (const ts_type *), $l a list "0, 1"
 * (const ts_dims *), $i an int64_t, $s a string, $q a string in quotes, $n a new line, indented, $> the
 * indentation alone. */
void ts__shlo_put(ts_shlo *e, const char *fmt, ...);
/* One operation with one result of type t: "%7 = stablehlo." and fmt. */
ts_shlo_value ts__shlo_op(ts_shlo *e, const ts_type *t, const char *fmt, ...);
/* Opens a line for an operation with n results, of types[i], which it puts in out; then ts__shlo_put, and
 * ts__shlo_end. */
void ts__shlo_begin(ts_shlo *e, const ts_type *types, int n, ts_shlo_value *out);
void ts__shlo_end(ts_shlo *e); /* the location and the end of the line */
/* The region " ({ ^bb0(…): … })" that combines two elements of dtype t. */
void ts__shlo_combiner(ts_shlo *e, const char *op, ts_dtype t);
/* Names the scope of n in a comment, where it is another than the last. */
void ts__shlo_announce(ts_shlo *e, const ts_node *n);
/* Makes n's location the current one. */
void ts__shlo_at(ts_shlo *e, const ts_node *n);

/* The locations of a program, by number; free with ts__shlo_locs_free. */
ts_shlo_locs *ts__shlo_locs_new(void);
void ts__shlo_locs_free(ts_shlo_locs *l);
void ts__shlo_put_locs(ts_shlo *e);

/* ---- operations that several emitters use (stablehlo_elementwise.c, stablehlo_shape.c) -------- */

ts_type ts__shlo_like(const ts_type *t, ts_dtype dtype);
ts_shlo_value ts__shlo_splat(ts_shlo *e, double value, const ts_type *t);
ts_shlo_value ts__shlo_scalar(ts_shlo *e, double value, ts_dtype t);
ts_shlo_value ts__shlo_binary(ts_shlo *e, const char *op, ts_shlo_value x, ts_shlo_value y);
/* dir "EQ", "LT", …, by the operands' dtype. */
ts_shlo_value ts__shlo_compare(ts_shlo *e, const char *dir, ts_shlo_value x, ts_shlo_value y);
ts_shlo_value ts__shlo_select(ts_shlo *e, ts_shlo_value pred, ts_shlo_value x, ts_shlo_value y);
/* stablehlo.convert as it is; x itself where it has the dtype. */
ts_shlo_value ts__shlo_convert(ts_shlo *e, ts_shlo_value x, ts_dtype t);
ts_shlo_value ts__shlo_reshape(ts_shlo *e, ts_shlo_value x, const ts_type *t);
ts_shlo_value ts__shlo_broadcast(ts_shlo *e, ts_shlo_value x, const ts_type *t,
                                 const ts_dims *map);
/* Starts: `at` on one axis, 0 on the others. */
ts_shlo_value ts__shlo_slice_at(ts_shlo *e, ts_shlo_value x, ts_shlo_value at, int64_t axis,
                                const ts_type *t);
ts_shlo_value ts__shlo_update_at(ts_shlo *e, ts_shlo_value x, ts_shlo_value update,
                                 ts_shlo_value at, int64_t axis);

/* ---- shardings (stablehlo_sharding.c) -------------------------------------------------------- */

/* INVALID_ARGUMENT, FAILED_PRECONDITION where it is none of this graph on so many devices (0: any number). */
TS_MUST_CHECK ts_status ts__stablehlo_check_sharding(const ts_graph *g, const ts_sharding *s,
                                                     int devices, ts_error *err);
void ts__shlo_put_mesh(ts_shlo *e);
/* "sdy.sharding = …", an attribute. */
void ts__shlo_put_sharding(ts_shlo *e, const ts_spec *s);
/* x, which stands for v, constrained where v has a pin and the program a sharding. */
ts_shlo_value ts__shlo_pinned(ts_shlo *e, const ts_value *v, ts_shlo_value x);

/* The nodes of a region, one after the other (stablehlo.c). */
void ts__shlo_region(ts_shlo *e, const ts_region *r);

#endif
