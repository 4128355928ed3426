/* tessera.h – the public interface of libtessera: everything that the program and the examples use.
 *
 * Three parts: errors and log; the graph builder (a model is a C function that calls it); commands
 * (configure, train, compare, generate). Every function that can fail returns ts_status and fills a
 * ts_error. Handles are opaque. Strings are UTF-8. Not thread-safe unless a comment says so.
 *
 * Words in comments: "owns" – the holder frees it; "borrows" – it must outlive the use; "until" –
 * how long a pointer stays valid.
 */
#ifndef TESSERA_H
#define TESSERA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TS_VERSION    "0.1.0"
#define TS_MUST_CHECK __attribute__((warn_unused_result))

/* ==== errors and log ============================================================================ */

/* The codes of absl and PJRT, by number. */
typedef enum ts_status {
    TS_OK = 0,
    TS_CANCELLED = 1,
    TS_UNKNOWN = 2,
    TS_INVALID_ARGUMENT = 3,
    TS_DEADLINE_EXCEEDED = 4,
    TS_NOT_FOUND = 5,
    TS_ALREADY_EXISTS = 6,
    TS_PERMISSION_DENIED = 7,
    TS_RESOURCE_EXHAUSTED = 8,
    TS_FAILED_PRECONDITION = 9,
    TS_ABORTED = 10,
    TS_OUT_OF_RANGE = 11,
    TS_UNIMPLEMENTED = 12,
    TS_INTERNAL = 13,
    TS_UNAVAILABLE = 14,
    TS_DATA_LOSS = 15
} ts_status;

typedef struct ts_error {
    ts_status code;
    int line;
    const char *file; /* source file that noticed it */
    char msg[4000];   /* what was found, what was expected, where, what to change */
} ts_error;

const char *ts_status_name(ts_status code);
/* The exit code of cli.md for a status: 0, 1, 2, 3, 4, 5, 6 or 130. */
int ts_status_exit_code(ts_status code);

/* Bytes of the longest prefix of a text that is valid UTF-8: n when all of it is (no surrogates, no overlong
 * forms). ts_utf8_complete: n less the bytes of a character at the end that is begun and could still become
 * valid. */
size_t ts_utf8_valid_prefix(const char *text, size_t n);
size_t ts_utf8_complete(const char *text, size_t n);

typedef enum ts_log_level { TS_LOG_DEBUG, TS_LOG_INFO, TS_LOG_WARNING, TS_LOG_ERROR } ts_log_level;
typedef void (*ts_log_sink)(void *context, ts_log_level level, const char *line);
/* Where the library's messages go; NULL drops them (the default). */
void ts_log_set_sink(ts_log_sink sink, void *context);

/* ==== the graph ================================================================================= */

enum { TS_MAX_RANK = 6 };
typedef enum ts_dtype { TS_F32, TS_BF16, TS_I32, TS_U32, TS_PRED, TS_DTYPES } ts_dtype;
size_t ts_dtype_bytes(ts_dtype t);     /* pred is one byte */
const char *ts_dtype_name(ts_dtype t); /* "f32" … */

/* A dimension: its logical axis ("embed", "heads", …; NULL = none) and its size ≥ 0. */
typedef struct ts_dim {
    const char *name;
    int64_t size;
} ts_dim;

typedef struct ts_type {
    ts_dtype dtype;
    int rank; /* 0 … TS_MAX_RANK */
    ts_dim dim[TS_MAX_RANK];
} ts_type;

typedef struct ts_graph ts_graph; /* owns all its values and nodes */
typedef struct ts_builder ts_builder;
typedef struct ts_value ts_value; /* lives until its graph is freed */

#define TS_DIMS(...)                                                                               \
    ((const ts_dim[]){__VA_ARGS__}), (int)(sizeof((const ts_dim[]){__VA_ARGS__}) / sizeof(ts_dim))
#define TS_INTS(...)                                                                               \
    ((const int64_t[]){__VA_ARGS__}),                                                              \
        (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
#define TS_SCALAR ((const ts_dim *)NULL), 0

/* A builder appends to one graph. The first mistake (a shape that does not fit, memory out) poisons
 * the graph: later calls return a stand-in, and ts_builder_finish reports the mistake with the
 * line of the model that made it. */
ts_builder *ts_builder_new(const char *name);
TS_MUST_CHECK ts_status ts_builder_finish(ts_builder *b, ts_graph **graph,
                                          ts_error *err); /* frees b */
void ts_builder_free(ts_builder *b);                      /* drops the graph too; NULL is fine */
void ts_graph_free(ts_graph *g);                          /* NULL is fine */
void ts_builder_at(ts_builder *b, const char *file, int line);
void ts_scope_push(ts_builder *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void ts_scope_pop(ts_builder *b);
const ts_type *ts_type_of(const ts_value *v);
int64_t ts_dim_of(const ts_value *v, int dim);

/* Inputs and outputs of the graph. Names are unique. An output may name the input whose buffer it
 * replaces (donation: after execute, the input's buffer holds the output); -1 for none. */
ts_value *ts_input(ts_builder *b, const char *name, ts_dtype dtype, const ts_dim *dims, int rank);
void ts_output(ts_builder *b, const char *name, ts_value *v, ts_value *replaces);

/* Sources. */
ts_value *ts_constant(ts_builder *b, double value, ts_dtype dtype, const ts_dim *dims, int rank);
ts_value *ts_scalar(ts_builder *b, double value, ts_dtype dtype);
ts_value *ts_iota(ts_builder *b, ts_dtype dtype, const ts_dim *dims, int rank, int axis);
/* u32 bits of Threefry-2x32-20 keyed by key u32[2], counter = element index. */
ts_value *ts_random_bits(ts_builder *b, ts_value *key, const ts_dim *dims, int rank);

/* Elementwise: operands of one shape and dtype; a rank-0 operand is broadcast. */
ts_value *ts_neg(ts_builder *b, ts_value *x);
ts_value *ts_abs(ts_builder *b, ts_value *x);
ts_value *ts_exp(ts_builder *b, ts_value *x);
ts_value *ts_log_e(ts_builder *b, ts_value *x);
ts_value *ts_sqrt(ts_builder *b, ts_value *x);
ts_value *ts_rsqrt(ts_builder *b, ts_value *x);
ts_value *ts_tanh(ts_builder *b, ts_value *x);
ts_value *ts_logistic(ts_builder *b, ts_value *x);
ts_value *ts_sin(ts_builder *b, ts_value *x);
ts_value *ts_cos(ts_builder *b, ts_value *x);
ts_value *ts_not(ts_builder *b, ts_value *x);       /* pred, i32, u32 (bits) */
ts_value *ts_is_finite(ts_builder *b, ts_value *x); /* → pred */
ts_value *ts_add(ts_builder *b, ts_value *x, ts_value *y);
ts_value *ts_sub(ts_builder *b, ts_value *x, ts_value *y);
ts_value *ts_mul(ts_builder *b, ts_value *x, ts_value *y);
ts_value *ts_div(ts_builder *b, ts_value *x, ts_value *y);
ts_value *ts_max(ts_builder *b, ts_value *x, ts_value *y);
ts_value *ts_min(ts_builder *b, ts_value *x, ts_value *y);
ts_value *ts_pow(ts_builder *b, ts_value *x, ts_value *y); /* x ≥ 0 */
ts_value *ts_and(ts_builder *b, ts_value *x, ts_value *y); /* pred, i32, u32 */
ts_value *ts_or(ts_builder *b, ts_value *x, ts_value *y);
ts_value *ts_xor(ts_builder *b, ts_value *x, ts_value *y);
ts_value *ts_shift_left(ts_builder *b, ts_value *x, ts_value *y);  /* i32, u32; y ≥ 32 gives 0 */
ts_value *ts_shift_right(ts_builder *b, ts_value *x, ts_value *y); /* logical */
ts_value *ts_add_n(ts_builder *b, ts_value *const *xs, int n);
typedef enum ts_compare_dir { TS_EQ, TS_NE, TS_LT, TS_LE, TS_GT, TS_GE } ts_compare_dir;
ts_value *ts_compare(ts_builder *b, ts_compare_dir dir, ts_value *x, ts_value *y); /* → pred */
ts_value *ts_select(ts_builder *b, ts_value *pred, ts_value *x,
                    ts_value *y); /* pred may be rank 0 */
ts_value *ts_convert(ts_builder *b, ts_value *x,
                     ts_dtype dtype); /* no node when it is that already */

/* Shape. */
ts_value *ts_reshape(ts_builder *b, ts_value *x, const ts_dim *dims, int rank);
ts_value *ts_transpose(ts_builder *b, ts_value *x, const int64_t *perm, int rank);
/* Result dimension map[i] is x's dimension i (size equal); the others repeat x. */
ts_value *ts_broadcast(ts_builder *b, ts_value *x, const ts_dim *dims, int rank, const int64_t *map,
                       int n);
ts_value *ts_slice(ts_builder *b, ts_value *x, int axis, int64_t start, int64_t limit);
ts_value *ts_concat(ts_builder *b, ts_value *const *xs, int n, int axis);
ts_value *ts_pad(ts_builder *b, ts_value *x, int axis, int64_t low, int64_t high, double value);
/* start i32 scalar, clamped to [0, dim − size] as StableHLO does. */
ts_value *ts_dynamic_slice(ts_builder *b, ts_value *x, ts_value *start, int axis, int64_t size);
ts_value *ts_dynamic_update(ts_builder *b, ts_value *x, ts_value *update, ts_value *start,
                            int axis);

/* Reductions over a list of axes (f32 accumulation for f32 and bf16). */
ts_value *ts_reduce_sum(ts_builder *b, ts_value *x, const int64_t *axes, int n);
ts_value *ts_reduce_max(ts_builder *b, ts_value *x, const int64_t *axes, int n);
ts_value *ts_argmax(ts_builder *b, ts_value *x, int axis); /* i32, lowest index wins, NaN wins */
void ts_top_k(ts_builder *b, ts_value *x, int64_t k, ts_value **values,
              ts_value **indices); /* last axis, descending */

/* dot(x, y): batch dims, then x's free dims, then y's free dims. f32 accumulation; out = result dtype. */
typedef struct ts_dot_dims {
    int n_batch, n_contract;
    int64_t x_batch[TS_MAX_RANK], y_batch[TS_MAX_RANK], x_contract[TS_MAX_RANK],
        y_contract[TS_MAX_RANK];
} ts_dot_dims;
ts_value *ts_dot(ts_builder *b, ts_value *x, ts_value *y, const ts_dot_dims *d, ts_dtype out);
/* Rows of table [V, …] by ids i32 [any shape] → [ids…, …]. ids outside [0, V) give zero rows.
 * no_grad_row: that row gets no gradient (padding_idx), -1 for none. */
ts_value *ts_take(ts_builder *b, ts_value *table, ts_value *ids, int64_t no_grad_row);
/* The gradient of take: zeros f32 [rows, …] + updates [ids…, …] at ids; ids outside are dropped. */
ts_value *ts_scatter_add(ts_builder *b, ts_value *ids, ts_value *updates, ts_dim rows,
                         int64_t no_grad_row);
void ts_barrier(ts_builder *b, ts_value *const *xs, int n,
                ts_value **out); /* optimization barrier */

/* Composites: one fused kernel on the CPU, a lowering to primitives elsewhere. */
/* x·rsqrt(mean(x², last) + eps)·w; x [.., E], w f32 or x's dtype [E]; f32 inside. */
ts_value *ts_rms_norm(ts_builder *b, ts_value *x, ts_value *w, double eps);
/* Rotates pairs (i, i + D/2) of the last dimension of x [B,S,…,D] by tables cos, sin f32 [S,D/2] or
 * [B,S,D/2] (rotate-half, the Hugging Face layout). */
ts_value *ts_rope(ts_builder *b, ts_value *x, ts_value *cos, ts_value *sin);
typedef struct ts_attention_options {
    bool causal;
    int64_t window; /* key j visible to query i when i − j < window; 0 = no limit */
    double scale;   /* 0 = head_dim^-½ */
    double softcap; /* scores = cap·tanh(scores / cap); 0 = off */
} ts_attention_options;
/* q [B,S,K,G,D], k, v [B,T,K,D]; segments i32 [B,S] or NULL (only with S = T): attention only inside
 * equal segments. Query i stands at position i + T − S. Result [B,S,K,G,D]; lse (may be NULL) gets
 * the log-sum-exp f32 [B,S,K,G]. f32 softmax. A row that sees no key is zero. */
ts_value *ts_attention(ts_builder *b, ts_value *q, ts_value *k, ts_value *v, ts_value *segments,
                       const ts_attention_options *o, ts_value **lse);
typedef enum ts_activation { TS_SILU, TS_GELU_TANH } ts_activation;
ts_value *ts_gated(ts_builder *b, ts_activation act, ts_value *gate,
                   ts_value *up); /* act(gate)·up */
/* Cross-entropy of logits x·wᵀ without storing them: x [T,E], w [V,E], labels i32 [T] (negative:
 * ignored, loss 0). Loss f32 [T]; lse f32 [T] (may be NULL). softcap as attention's, 0 = off. */
ts_value *ts_linear_xent(ts_builder *b, ts_value *x, ts_value *w, ts_value *labels, double softcap,
                         int64_t chunk, ts_value **lse);
/* Largest logit, Σ exp(logit − largest) and the label's logit (0 where it is not a class of w):
 * what linear_xent is made of where the vocabulary is split over devices. Each f32 [T]; no
 * gradient. */
void ts_xent_rows(ts_builder *b, ts_value *x, ts_value *w, ts_value *labels, double softcap,
                  int64_t chunk, ts_value *out[3]);
/* Mixture of experts, dropless: the T·k assignments ids i32 [T,k] in a stable order by expert,
 * those outside [0, experts) left out. Rows offsets[e] … offsets[e+1] − 1 belong to expert e;
 * offsets i32 [experts + 1] are multiples of TS_EXPERT_ALIGN. token i32 [R] is the row of ids (−1:
 * an unused row), assignment i32 [R] its number t·k + j (−1), R = T·k + TS_EXPERT_ALIGN·experts. So
 * ts_take(x, token) makes the rows, zero where unused, and ts_scatter_add(token, …) brings results
 * back. */
enum { TS_EXPERT_ALIGN = 8 };
void ts_expert_rows(ts_builder *b, ts_value *ids, int64_t experts, ts_value **token,
                    ts_value **assignment, ts_value **offsets);
/* x [R,E], w [X,F,E], offsets i32 [X+1] → [R,F] in x's dtype: row r of expert e, offsets[e] ≤ r <
 * offsets[e+1], is x[r]·w[e]ᵀ, f32 inside; rows of no expert are zero, whatever x holds there. An
 * offset below one before it, or outside [0, R], counts as the nearest that is not. */
ts_value *ts_grouped_dot(ts_builder *b, ts_value *x, ts_value *w, ts_value *offsets);
typedef struct ts_adamw_options {
    double b1, b2, eps, weight_decay;
} ts_adamw_options;
/* One AdamW step: g is multiplied by scale; where ok is false nothing changes. lr, scale f32 scalars,
 * step i32 scalar counted from 1 (bias correction), ok pred scalar. p, m, v f32. */
void ts_adamw(ts_builder *b, ts_value *p, ts_value *g, ts_value *m, ts_value *v, ts_value *lr,
              ts_value *step, ts_value *scale, ts_value *ok, const ts_adamw_options *o,
              ts_value *out[3]);

/* repeat: a region run n times. Between begin and end, calls append to the body. carry[i] is replaced
 * by the body's carry value; xs are sliced along dimension 0 (size n), per iteration; values of outer
 * regions may be used freely (they become consts). Results are final carries, then ys: stacked
 * [n, …] or, where accumulate[i], summed. reverse runs i = n−1 … 0. */
typedef struct ts_repeat ts_repeat;
ts_repeat *ts_repeat_begin(ts_builder *b, int64_t n, bool reverse, ts_value *const *carry,
                           int n_carry, ts_value *const *xs, int n_xs, ts_value **carry_args,
                           ts_value **x_args);
void ts_repeat_end(ts_builder *b, ts_repeat *r, ts_value *const *carry_out, ts_value *const *ys,
                   const bool *accumulate, int n_ys, ts_value **results);

/* ---- layers (src/nn) ------------------------------------------------------------------------- */

/* A trainable tensor named scope.name. Inside ts_layers its value is the slice of this iteration. init
 * is the standard deviation of a normal, or one of TS_INIT_*. in_dims = how many trailing dims
 * are the input of a matrix (a published file stores [product of the others, product of these]);
 * 0 = store as it is. */
#define TS_INIT_ONES  (-1.0)
#define TS_INIT_ZEROS (-2.0)
ts_value *ts_param(ts_builder *b, const char *name, const ts_dim *dims, int rank, int in_dims,
                   double init);
/* x [.., in] · w [out…, in] → [.., out…], in the compute dtype. */
ts_value *ts_linear(ts_builder *b, ts_value *x, const char *name, const ts_dim *out, int n_out);
/* x [.., in…] (the last n_in dims) · w [out, in…] → [.., out]. */
ts_value *ts_linear_in(ts_builder *b, ts_value *x, int n_in, const char *name, ts_dim out);
/* Rows ids [..] of table [V,E], in the compute dtype: [..,E]. */
ts_value *ts_embedding(ts_builder *b, ts_value *table, ts_value *ids);
/* rms_norm with an own weight [E] initialised to one. */
ts_value *ts_norm(ts_builder *b, ts_value *x, const char *name, double eps);
/* The dtype of activations and matrix products (default f32) and how backward keeps values. */
void ts_set_compute_dtype(ts_builder *b, ts_dtype dtype);
typedef enum ts_remat {
    TS_REMAT_NONE,   /* keeps what it needs */
    TS_REMAT_FULL,   /* computes each layer again from its input */
    TS_REMAT_MINIMAL /* keeps results of matrix products and attention, computes the rest again */
} ts_remat;
void ts_set_remat(ts_builder *b, ts_remat remat);
/* Runs layer(b, context, i, x) for i = 0 … n−1. Layers with equal signatures form repeats over stacked
 * parameters (smallest period ≤ 8); layer is called once per distinct layer, with scope prefix.i. */
typedef ts_value *(*ts_layer_fn)(ts_builder *b, const void *context, int i, ts_value *x);
ts_value *ts_layers(ts_builder *b, const char *prefix, int n, const uint64_t *signatures,
                    ts_layer_fn layer, const void *context, ts_value *x);

/* Every call above made from a model records its line. */
#ifndef TS_NO_LINES
#define TS_LINE_(b)            ts_builder_at((b), __FILE__, __LINE__)
#define ts_add(b, ...)         (TS_LINE_(b), ts_add((b), __VA_ARGS__))
#define ts_mul(b, ...)         (TS_LINE_(b), ts_mul((b), __VA_ARGS__))
#define ts_sub(b, ...)         (TS_LINE_(b), ts_sub((b), __VA_ARGS__))
#define ts_reshape(b, ...)     (TS_LINE_(b), ts_reshape((b), __VA_ARGS__))
#define ts_take(b, ...)        (TS_LINE_(b), ts_take((b), __VA_ARGS__))
#define ts_rms_norm(b, ...)    (TS_LINE_(b), ts_rms_norm((b), __VA_ARGS__))
#define ts_rope(b, ...)        (TS_LINE_(b), ts_rope((b), __VA_ARGS__))
#define ts_attention(b, ...)   (TS_LINE_(b), ts_attention((b), __VA_ARGS__))
#define ts_gated(b, ...)       (TS_LINE_(b), ts_gated((b), __VA_ARGS__))
#define ts_grouped_dot(b, ...) (TS_LINE_(b), ts_grouped_dot((b), __VA_ARGS__))
#define ts_linear_xent(b, ...) (TS_LINE_(b), ts_linear_xent((b), __VA_ARGS__))
#define ts_param(b, ...)       (TS_LINE_(b), ts_param((b), __VA_ARGS__))
#define ts_linear(b, ...)      (TS_LINE_(b), ts_linear((b), __VA_ARGS__))
#define ts_linear_in(b, ...)   (TS_LINE_(b), ts_linear_in((b), __VA_ARGS__))
#define ts_embedding(b, ...)   (TS_LINE_(b), ts_embedding((b), __VA_ARGS__))
#define ts_norm(b, ...)        (TS_LINE_(b), ts_norm((b), __VA_ARGS__))
#define ts_dot(b, ...)         (TS_LINE_(b), ts_dot((b), __VA_ARGS__))
#endif

/* ==== commands ================================================================================== */

/* A configuration: MaxText's keys and ours (configs/base.yml documents each). */
typedef struct ts_config ts_config;
/* file: a .yml path; "base.yml" where no such file exists is the embedded copy. overrides: key=value
 * strings (MaxText's rules). All mistakes are reported together: INVALID_ARGUMENT and one message,
 * nothing allocated. */
TS_MUST_CHECK ts_status ts_config_load(const char *file, const char *const *overrides, int n,
                                       ts_config **out, ts_error *err);
/* The same from the words behind a subcommand: a first word that ends in .yml or .yaml is the file, else the
 * file is base.yml; every other word is key=value. */
TS_MUST_CHECK ts_status ts_config_load_words(const char *const *words, int n, ts_config **out,
                                             ts_error *err);
void ts_config_free(ts_config *c); /* NULL is fine */
const char *ts_config_note(
    const ts_config *c, size_t i); /* what a user should know about set keys; NULL past the last */
const char *ts_config_run_folder(const ts_config *c);
bool ts_config_wants_log(const ts_config *c); /* log_config */
const char *ts_config_compile_topology(const ts_config *c); /* as it was written; "" unset */
/* "Config param key: value", one line each, sorted. Freed with ts_text_free; NULL when memory is out. */
char *ts_config_text(const ts_config *c);
void ts_text_free(char *text);
/* The candidate nearest to a mistyped word, or NULL. */
const char *ts_nearest(const char *word, const char *const *candidates, size_t n);

/* ---- training ---- */

/* One finished step, as the step line and metrics.jsonl tell it. */
typedef struct ts_step_info {
    int64_t step, steps; /* this one, counted from 0, and how many there will be */
    double seconds;      /* of the step alone: no compilation, evaluation or checkpoint */
    double data_seconds; /* of these spent waiting for data */
    double loss, grad_norm, learning_rate;
    double tflops;                          /* of one step and device, by MaxText's formula */
    int64_t slots, trained_tokens, padding; /* of the global step */
    int devices;
    bool skipped; /* not finite: nothing was changed */
} ts_step_info;

typedef enum ts_interrupt { TS_CONTINUE, TS_SAVE_AND_GO_ON, TS_SAVE_AND_STOP } ts_interrupt;

/* What does not end. */
typedef struct ts_stuck {
    const char *text; /* one line for people: what, since when, where the newest checkpoint is, what to try */
    bool deadline;    /* the grace of ending is over; else a step, a wait for data or a save takes too long */
    int64_t steps;    /* done */
    int64_t saved_step; /* of the newest checkpoint; −1: none */
} ts_stuck;

typedef struct ts_train_hooks {
    size_t struct_size;
    void *context;
    /* A finished line for people: engine, memory, evaluation, checkpoints. Never NULL text. */
    void (*line)(void *context, const char *text);
    void (*step)(void *context, const ts_step_info *info);
    /* Asked after every step, before the first, and while text is sampled; what it returns is done at once. */
    ts_interrupt (*interrupt)(void *context);
    /* A piece of text sampled from the model (sample_interval); may be NULL. */
    void (*sample)(void *context, int64_t step, const char *text);
    /* Seconds since the platform asked for the end, from which preemption_grace_s count; negative: it did not. It is
     * the time of what `interrupt` answers. Asked from another thread, too. May be NULL: no deadline. */
    double (*ending)(void *context);
    /* Called once from another thread, while the call below stands still: the process can be ended there, and what is
     * half written does not count. May be NULL: nothing is watched. Where it returns, the run goes on if it can. */
    void (*stuck)(void *context, const ts_stuck *what);
} ts_train_hooks;
void ts_train_hooks_default(ts_train_hooks *h);

typedef struct ts_train_result {
    int64_t steps;          /* reached in total */
    double loss, eval_loss; /* the last ones; NaN where there was none */
    bool interrupted;       /* stopped by the interrupt hook, after a save if a step was done */
    int64_t saved_step;     /* of the newest checkpoint written or loaded; −1: none */
} ts_train_result;

/* Trains, from the newest checkpoint of this run's name where there is one. ABORTED: a numerics policy stopped
 * it. FAILED_PRECONDITION: another process trains this run. Its checkpoints, metrics.jsonl, config.yml and
 * lock lie in <base_output_directory>/<run_name>. */
TS_MUST_CHECK ts_status ts_train(const ts_config *c, const ts_train_hooks *hooks,
                                 ts_train_result *result, ts_error *err);
/* "completed step: 41, seconds: 1.327, …" into buf; returns buf. */
char *ts_step_line(const ts_step_info *info, char *buf, size_t n);

/* ---- checkpoints: what a folder holds, how two differ ---- */

/* Bytes that were read since the last call; false stops with CANCELLED. */
typedef bool (*ts_progress)(void *context, uint64_t bytes);

typedef enum ts_survey_state {
    TS_SURVEY_WHOLE,      /* as far as was checked: manifest, indexes, lengths; hashes only where row.verified */
    TS_SURVEY_INCOMPLETE, /* no manifest: never finished */
    TS_SURVEY_DAMAGED,
    TS_SURVEY_UNREADABLE, /* the fault is not the checkpoint's: no permission … */
    TS_SURVEY_WRITING,    /* a save or a removal is going on: its process lives, or may live on another host */
    TS_SURVEY_LEFTOVER,   /* a temporary folder of a process that is gone */
    TS_SURVEY_GONE        /* removed by somebody since */
} ts_survey_state;

typedef struct ts_survey_row { /* strings until the survey is freed; "" where unknown */
    const char *path;
    int64_t step; /* −1: nothing says it */
    ts_survey_state state;
    bool verified; /* every file was hashed */
    const char *problem; /* what is wrong first: file, found, expected */
    const char *written, *mesh, *program; /* "2026-05-01T12:00:00Z" */
    int devices;
    double score; /* evaluation loss; NaN: none */
    uint64_t bytes, frozen_bytes; /* of its files; of them frozen */
    const char *foreign; /* a name in its folder that no save makes */
} ts_survey_row;

typedef struct ts_survey {
    const char *folder; /* that holds the checkpoints */
    bool of_run;        /* it is a run's: named "checkpoints" */
    bool is_step;       /* the path was that of row[0] itself */
    ts_survey_row *row; /* [n], by step; temporary folders behind the step of their number */
    size_t n;
    uint64_t bytes, disk_bytes; /* of all rows; the same with files of several names counted once */
} ts_survey;

/* path: a run's folder, a folder of checkpoints, or one checkpoint's. Reads manifests, indexes and lengths. A run may
 * write meanwhile: what vanishes is left out. NOT_FOUND, INVALID_ARGUMENT: no such folder, or another kind of one. */
TS_MUST_CHECK ts_status ts_survey_open(const char *path, ts_survey **out, ts_error *err);
void ts_survey_free(ts_survey *s); /* NULL is fine */
/* Hashes all of a row's files, if it is whole, and changes the row by what is found. Errors are others than that. */
TS_MUST_CHECK ts_status ts_survey_verify(ts_survey *s, size_t row, ts_progress progress,
                                         void *context, ts_error *err);
/* The row that a resume would take, as far as rows were verified; n: none. */
size_t ts_survey_resume(const ts_survey *s);
/* The newest row that verifies, hashing as many as it takes; n: none. */
TS_MUST_CHECK ts_status ts_survey_newest(ts_survey *s, ts_progress progress, void *context,
                                         size_t *row, ts_error *err);
/* Removes a row's folder, safely beside a run that writes (not for WRITING). freed, shared: bytes that the disk got
 * back, and bytes that it did not because other names of the files remain. dry: says only what would be, after the
 * rows removed or asked for so far. NOT_FOUND: it is gone already. */
TS_MUST_CHECK ts_status ts_survey_remove(ts_survey *s, size_t row, bool dry, uint64_t *freed,
                                         uint64_t *shared, ts_error *err);

typedef enum ts_diff_kind {
    TS_DIFF_SAME, /* bit for bit, as f32 */
    TS_DIFF_VALUES,
    TS_DIFF_SHAPE,
    TS_DIFF_ONLY_A,
    TS_DIFF_ONLY_B
} ts_diff_kind;

typedef struct ts_diff_tensor { /* strings until the diff is freed */
    const char *name;
    bool moment;
    ts_diff_kind kind;
    const char *shape_a, *shape_b; /* "[64,16]"; "" where there is none */
    uint64_t elements, different;
    uint64_t not_finite; /* of the different ones: no finite number in at least one */
    double max_abs;      /* difference of the others */
    double largest;      /* absolute finite value in either */
    const char *where;   /* of max_abs, or the first not finite one: "[3,7]" */
    double a, b;         /* values there */
} ts_diff_tensor;

typedef struct ts_diff_sum {
    size_t tensors, same, values, shape, only_a, only_b;
    uint64_t elements, different, not_finite;
    double max_abs, max_rel; /* rel: to the largest value of the same tensor */
    size_t worst;            /* tensor of max_abs; n: none differs in values */
} ts_diff_sum;

typedef struct ts_diff_fact { /* beside the tensors */
    const char *group;        /* "checkpoint", "data": always told; "model", "program", "config": where they differ */
    const char *name, *a, *b; /* "" where one has none */
    bool same, number;        /* number: a and b, as far as they are there, are JSON numbers */
} ts_diff_fact;

typedef struct ts_diff {
    const char *a, *b;      /* the folders that were compared */
    bool weights_only;      /* one is a model's folder: no moments, no facts */
    bool same;              /* every tensor that was compared, and none missing */
    ts_diff_tensor *tensor; /* [n], by name */
    size_t n;
    ts_diff_sum parameters, moments;
    ts_diff_fact *fact;
    size_t n_fact;
    uint64_t bytes; /* of tensors that were read to compare */
} ts_diff;

/* a and b: as ts_survey_open's (of a run the newest that verifies), or a Hugging Face folder or file. Checkpoints are
 * verified first. In a few MiB of memory, whatever their sizes and meshes. */
TS_MUST_CHECK ts_status ts_diff_open(const char *a, const char *b, ts_progress progress,
                                     void *context, ts_diff **out, ts_error *err);
void ts_diff_free(ts_diff *d); /* NULL is fine */

/* ---- PJRT plugins of the xla engine ---- */

typedef struct ts_plugin_info {
    char name[32];            /* "cpu", "tpu", "cuda"; "" for one known by its path alone */
    char path[4096];          /* the library; "" when there is none */
    char package[64], version[64]; /* what installed it; "" where nobody recorded that */
    int api_major, api_minor; /* of the PJRT C API */
    char stablehlo[32];       /* newest StableHLO it takes; "" where it does not say */
    char platform[64], platform_version[600];
    int devices;              /* that this process could use */
    char device_kind[64];
    ts_status status;         /* TS_OK: usable. Else problem says why not, in one sentence */
    char problem[1200];
} ts_plugin_info;

/* Every plugin that is found, each tried in a child process of its own, so that none can end this one; one that does
 * not work is in the list too. Owns *out until ts_plugins_free. CANCELLED: a signal that ends this process came. */
TS_MUST_CHECK ts_status ts_plugins_list(ts_plugin_info **out, size_t *n, ts_error *err);
void ts_plugins_free(ts_plugin_info *list);

typedef struct ts_plugin_install_options {
    size_t struct_size;
    const char *name;    /* "cpu", "cuda", "tpu" */
    const char *folder;  /* where plugins live; NULL: the first of TESSERA_PLUGIN_PATH, else the user's */
    bool accept_license; /* needed where the licence is not an open one (tpu) */
    bool again;          /* even where the same version is there */
    void *context;
    void (*line)(void *context, const char *text); /* progress for people; the licence */
    bool (*stop)(void *context); /* asked a few times a second; true: CANCELLED. Both may be NULL */
} ts_plugin_install_options;
void ts_plugin_install_options_default(ts_plugin_install_options *o);
/* Downloads the package with pip, unpacks the library alone and records version and hash. What is interrupted or
 * fails leaves the plugin as it was. FAILED_PRECONDITION: a licence that was not accepted, or another install is
 * going on. UNAVAILABLE: it cannot be downloaded here. out->status: whether it is usable here. */
TS_MUST_CHECK ts_status ts_plugin_install(const ts_plugin_install_options *o, ts_plugin_info *out,
                                          ts_error *err);

/* ---- ahead-of-time compilation ---- */

typedef struct ts_aot_collective {
    char kind[32];     /* "all_gather", as the graph has it, or as XLA names it where the graph has none */
    char axis[64];     /* mesh axes, "fsdp" or "fsdp,tensor"; "" where nobody knows */
    int64_t count;     /* executions in one step, loops multiplied out; where XLA made it itself, of XLA's */
    int64_t bytes;     /* one device's operands in one step */
    char kept_as[160]; /* what the optimized program has: "all-gather", "2 × all-reduce-start (async)" */
    /* What it has, in executions and operand bytes: done at once; begun, and waited for later; and of those, the ones
     * with a matrix product in between. */
    int64_t sync_count, sync_bytes, async_count, async_bytes, overlapped_count, overlapped_bytes;
} ts_aot_collective;

typedef struct ts_aot_buffer { /* a large temporary or argument, by its name in the model */
    int64_t bytes;
    char name[200], shape[120];
} ts_aot_buffer;

typedef struct ts_aot_report {
    char topology[64], device_kind[64], plugin_version[600];
    int devices;
    int64_t argument_bytes, output_bytes, alias_bytes, temp_bytes, peak_bytes, capacity_bytes,
        code_bytes;              /* of one device */
    double flops, bytes_accessed; /* of one device and step, loops multiplied out */
    ts_aot_collective *collective;
    size_t n_collective;
    ts_aot_buffer *buffer; /* the largest, where it does not fit */
    size_t n_buffer;
    bool fits;
    int64_t needed_bytes; /* where it does not fit */
    double compile_seconds, total_seconds;
    int64_t host_peak_bytes; /* of the process that compiled */
    char file[4096];         /* compiled_trainstep_file as it was written; "" none */
} ts_aot_report;

/* Compiles the train step of c for c's compile_topology in a child process, with no device and no network. A program
 * that is too big is TS_OK with fits = false. INVALID_ARGUMENT: no such topology, or too few devices in it;
 * UNAVAILABLE: no plugin for it, or one that dies; DEADLINE_EXCEEDED: an hour was not enough; CANCELLED: by a
 * signal; RESOURCE_EXHAUSTED: memory that is not the device's main one. Owns *out until ts_aot_report_free; empty
 * where it fails. */
TS_MUST_CHECK ts_status ts_aot_compile(const ts_config *c, ts_aot_report *out, ts_error *err);
void ts_aot_report_free(ts_aot_report *r);

/* ---- what a run needs ---- */

enum { TS_PLAN_ADVICE = 4, TS_PLAN_WIRES = 40, TS_PLAN_REMATS = 3 };

/* Bytes of one device at the step's worst moment; peak is the sum of the others. */
typedef struct ts_plan_memory {
    int64_t parameters, moments;
    int64_t gradients;   /* of parameters, that live at that moment */
    int64_t activations; /* made by the forward half, waiting for the backward half */
    int64_t temporary;   /* everything else: the batch, what a layer or the loss works on */
    int64_t peak;
} ts_plan_memory;

typedef struct ts_plan_policy { /* with this remat_policy */
    char name[16];
    int64_t activations; /* the most that waits for the backward half at any moment */
    int64_t peak;
    bool fits;
} ts_plan_policy;

typedef struct ts_plan_wire {
    char axis[16], kind[24]; /* of the mesh; "all_gather" */
    int64_t count;           /* of a device and step, loops multiplied out */
    double bytes;            /* sent by a device: (n−1)/n of a gather or scatter, twice that of an all_reduce */
    double seconds;          /* at the least, on this axis' links */
} ts_plan_wire;

typedef struct ts_plan_advice {
    char keys[200]; /* to type behind the command's words, "remat_policy=full ici_tensor_parallelism=8" */
    int64_t peak;
} ts_plan_advice;

typedef struct ts_plan_report {
    char devices_name[64], device_kind[16], mesh[80], remat[16]; /* "v6e:4x4", "v6e", "data=1, fsdp=4, tensor=4" */
    int devices;
    int64_t parameters, trained;       /* numbers, of the whole model */
    int64_t rows, sequence;            /* of a step on all devices */
    ts_plan_memory per_device;
    int64_t capacity;                  /* of one device; of the cpu's devices together */
    int64_t process;                   /* cpu: of the whole process, whose devices share memory; else 0 */
    bool fits;
    ts_plan_policy policy[TS_PLAN_REMATS]; /* full, minimal, none */
    ts_plan_wire wire[TS_PLAN_WIRES];
    size_t n_wire;
    double flops;                      /* of products of a device and step, what is computed again included */
    double model_flops;                /* by MaxText's formula: nothing that is computed again */
    double memory_bytes;               /* that must go through device memory */
    double compute_seconds, memory_seconds, wire_seconds; /* each alone, at the published rates */
    char bound[16];                    /* the longest of the three: "compute", "memory", "wire" */
    double mfu;                        /* model_flops in that time, of the published rate: none can be higher */
    int64_t checkpoint_bytes, host_bytes_at_save;
    ts_plan_advice advice[TS_PLAN_ADVICE]; /* where it does not fit: keys with which it does, nearest first */
    size_t n_advice;
} ts_plan_report;

/* What the run of a subcommand's words (as ts_config_load_words takes them) needs, without a device, a compiler or any
 * of that memory. devices: "v6e:4x4", "h100:8", "cpu:16"; NULL: by compile_topology, or the virtual devices of the cpu
 * engine where it would run. INVALID_ARGUMENT: the configuration's mistakes, no such devices, or none known. */
TS_MUST_CHECK ts_status ts_plan(const char *const *words, int n, const char *devices,
                                ts_plan_report *out, ts_error *err);

/* ---- comparison with reference outputs ---- */

typedef struct ts_parity_row {
    char name[560];
    double max_abs, max_rel,
        bound;      /* largest |gap|; over the reference's largest; bound on max_abs */
    bool ok, gated; /* gated false: reported only, bound infinite */
} ts_parity_row;

typedef struct ts_parity_report {
    ts_parity_row *row; /* owns until ts_parity_report_free */
    size_t n;
    bool ok;
} ts_parity_report;

/* model: a folder or checkpoint; golden: a safetensors file with input_ids, labels, logits, loss, hidden.*,
 * grad.*, and, for the steps, step_loss, step_grad_norm, param.*. */
TS_MUST_CHECK ts_status ts_parity(const ts_config *c, const char *model, const char *golden,
                                  ts_parity_report *report, ts_error *err);
void ts_parity_report_free(ts_parity_report *r);

/* ---- the slice check ---- */

enum { TS_SLICE_AXES = 8 };

typedef struct ts_slice_rank {
    int rank;   /* of the mesh */
    int device; /* as the engine's plugin numbers it */
    char host[64];
    int64_t coordinate[TS_SLICE_AXES]; /* on each axis of the mesh */
    double max_abs_diff; /* from the host's reference; NaN: a result is not finite */
    double sum;          /* what all_reduce of rank + 1 gave */
    double seconds;      /* of matrix products without a collective, median; 0: not timed, or one_clock */
    bool slow;           /* more than 1.5 times the median rank */
    char problem[400];   /* the first check that failed, found and expected; "": it agrees */
} ts_slice_rank;

/* One collective along one axis; medians. */
typedef struct ts_slice_timing {
    char axis[16], kind[24];
    int64_t devices;        /* along the axis */
    int64_t bytes;          /* message of a device: what gather makes, scatter takes, the others take and make */
    double seconds, best;   /* median and shortest */
    double algorithm, bus; /* bytes a second: bytes / seconds; that times the share a ring moves. small: 0 */
    bool small;            /* a message that costs latency alone */
} ts_slice_timing;

typedef struct ts_slice_report {
    char engine[256];
    int devices, axes;
    struct {
        char name[16];
        int64_t size;
        bool slow; /* at its best a byte on it takes more than twice the time of the median axis */
    } axis[TS_SLICE_AXES];
    ts_slice_rank *rank; /* [devices] */
    ts_slice_timing *timing;
    size_t n_timing;
    int64_t product; /* side of the square matrices of rank[].seconds; 0: not timed */
    bool one_clock;  /* devices run in lockstep: no rank has a time of its own */
    int disagree;   /* ranks with a problem */
    double max_abs_diff, sum; /* largest of the ranks; what every sum must be */
} ts_slice_report;

typedef struct ts_slice_options {
    size_t struct_size;
    const char *golden; /* safetensors with w1, w2, x and y; NULL: own weights */
    bool timing;        /* time the collectives as well, where the ranks agree */
    /* Sees each result of a rank before it is compared, and may change it: "feed-forward" or "sum"; may be NULL. */
    void (*result)(void *context, int rank, const char *what, float *value, size_t n);
    void *context;
} ts_slice_options;
void ts_slice_options_default(ts_slice_options *o); /* own weights, timing */

/* Are all devices of c's engine one slice? x + w2·silu(w1·x), w1 split by columns and w2 by rows over all of them,
 * and an all_reduce of rank + 1, each compared on every rank; over all devices at once and axis by axis. TS_OK
 * whatever the ranks say: disagree counts them. INVALID_ARGUMENT: a number of devices that does not divide, or no
 * mesh of them; DATA_LOSS: golden holds other tensors. o NULL: the defaults.
 * Owns *out until ts_slice_report_free; empty where it fails. */
TS_MUST_CHECK ts_status ts_slice_check(const ts_config *c, const ts_slice_options *o,
                                       ts_slice_report *out, ts_error *err);
void ts_slice_report_free(ts_slice_report *r);

/* ---- text from a model ---- */

typedef struct ts_generator ts_generator;
typedef struct ts_generate_options {
    size_t struct_size;
    int64_t max_new;
    double temperature; /* 0 = greedy */
    double top_p;       /* 1 = all */
    uint64_t seed;
    bool stop_at_eos;
    bool text_only; /* only ids that the model's tokenizer has, where it has one */
} ts_generate_options;
void ts_generate_options_default(
    ts_generate_options *o); /* 128 tokens, greedy, seed 0, stops at eos */

/* model: a Hugging Face folder, a checkpoint's step, or a run's folder. Engine and dtype by c. */
TS_MUST_CHECK ts_status ts_generator_open(const ts_config *c, const char *model, ts_generator **out,
                                          ts_error *err);
void ts_generator_free(ts_generator *g); /* NULL is fine */
/* Ids of a prompt (with bos) by the model's tokenizer. FAILED_PRECONDITION where it has none that is supported. */
TS_MUST_CHECK ts_status ts_generator_encode(ts_generator *g, const char *text, int32_t **ids,
                                            size_t *n, ts_error *err);
/* Bytes of ids, NUL behind them (and possibly among them: *bytes counts); freed with ts_generator_release. An
 * id that the tokenizer does not have becomes U+FFFD, and the log says so once. Not all bytes are UTF-8. */
TS_MUST_CHECK ts_status ts_generator_decode(ts_generator *g, const int32_t *ids, size_t n,
                                            char **text, size_t *bytes, ts_error *err);
bool ts_generator_has_tokenizer(const ts_generator *g);
void ts_generator_release(void *p); /* ids or text */
/* Calls token(context, id) for each new id until max_new, eos or false. */
TS_MUST_CHECK ts_status ts_generate(ts_generator *g, const int32_t *prompt, size_t n,
                                    const ts_generate_options *o,
                                    bool (*token)(void *context, int32_t id), void *context,
                                    ts_error *err);

#ifdef __cplusplus
}
#endif
#endif
