/* xla/stablehlo.h – a graph as StableHLO text, for one device of a mesh; or a global graph with its
 * shardings.
 *
 * Shapes are local and collectives explicit, with replica groups by the graph's mesh axes: no
 * partitioner of XLA's is involved. With a sharding the graph is global, has no collectives, and
 * XLA's partitioner makes them. A repeat is a while loop, or its body where it runs once. An input
 * that an output replaces is donated (tf.aliasing_output), nothing else is. f32 products carry
 * their precision, because a TPU's default is bf16. Locations carry the graph's scope and the
 * model's line, in both of the parts that XLA prints.
 * Not here: compile options (compile_options.h), what runs the program (engine.c, aot.c).
 */
#ifndef TS_STABLEHLO_H
#define TS_STABLEHLO_H

#include "exec/engine.h"

typedef enum ts_precision {
    TS_PRECISION_DEFAULT, /* XLA's: bf16 passes on a TPU */
    TS_PRECISION_HIGH,
    TS_PRECISION_HIGHEST
} ts_precision;

typedef struct ts_stablehlo_options {
    size_t struct_size;
    ts_precision precision; /* of products of f32 operands */
    bool carry_graph;       /* the graph's own text behind the program, as comments */
    int devices;            /* that are to run it; 0: as many as its mesh has */
    const ts_sharding *sharding; /* of a global graph, for XLA's partitioner; NULL: partitioned already */
} ts_stablehlo_options;

/* What opens the graph's text in the program's trailing comments; every line of it follows behind
 * "// ". */
#define TS_STABLEHLO_GRAPH_MARK "// tessera graph\n"

/* matmul_precision's words: default (of Tessera: highest), bfloat16, high, highest. False: another
 * word. */
bool ts__precision_parse(const char *word, ts_precision *out);

/* Lowers a copy of g (a valid graph, partitioned already or with a sharding) and writes it as a
 * module with @main: arguments and results are g's inputs and outputs, in order.
 * FAILED_PRECONDITION: a mesh of another number of devices, or a collective of several in a graph
 * without a mesh; UNIMPLEMENTED: what no lowering or loop can hold. Both name the op and where it
 * stands in the model. */
TS_MUST_CHECK ts_status ts__stablehlo_write(const ts_graph *g, const ts_stablehlo_options *o,
                                            ts_string *out, ts_error *err);
/* Writes a program of n bytes to FOLDER/NAME.mlir; slashes in the graph's name become underscores. */
TS_MUST_CHECK ts_status ts__stablehlo_save(const char *folder, const char *name, const char *text,
                                           size_t n, ts_error *err);

#endif
