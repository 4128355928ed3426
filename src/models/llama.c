/* models/llama.c – Llama 2, 3 and 3.1: the forward pass in global shapes.
 *
 * Grubby detail lives elsewhere: rope's tables and scaling in model.c, names and stacking in nn, devices in
 * mesh. Dimensions carry logical names, which is all that sharding needs. Parameter names are the published ones.
 * GQA is a dimension: query heads are [kv_heads, group], so no head is ever repeated.
 */
#include "models/model_internal.h"

typedef struct llama {
    ts_dim V, E, K, G, D, F;
    double eps;
    ts_attention_options attention;
    ts_value *segments, *cos, *sin; /* i32 [B,S] or NULL; f32 [S,D/2] */
} llama;

/* One layer. x [B,S,E] → [B,S,E]. */
static ts_value *block(ts_builder *b, const void *context, int i, ts_value *x)
{
    const llama *m = context;
    (void)i; /* all layers are alike */
    ts_value *h = ts_norm(b, x, "input_layernorm.weight", m->eps);
    ts_value *q =
        ts_linear(b, h, "self_attn.q_proj.weight", TS_DIMS(m->K, m->G, m->D));     /* [B,S,K,G,D] */
    ts_value *k = ts_linear(b, h, "self_attn.k_proj.weight", TS_DIMS(m->K, m->D)); /* [B,S,K,D] */
    ts_value *v = ts_linear(b, h, "self_attn.v_proj.weight", TS_DIMS(m->K, m->D)); /* [B,S,K,D] */
    q = ts_rope(b, q, m->cos, m->sin);
    k = ts_rope(b, k, m->cos, m->sin);
    ts_value *a = ts_attention(b, q, k, v, m->segments, &m->attention, NULL); /* [B,S,K,G,D] */
    x = ts_add(b, x, ts_linear_in(b, a, 3, "self_attn.o_proj.weight", m->E));

    h = ts_norm(b, x, "post_attention_layernorm.weight", m->eps);
    ts_value *gate = ts_linear(b, h, "mlp.gate_proj.weight", TS_DIMS(m->F)); /* [B,S,F] */
    ts_value *up = ts_linear(b, h, "mlp.up_proj.weight", TS_DIMS(m->F));
    ts_value *f = ts_gated(b, TS_SILU, gate, up);
    return ts_add(b, x, ts_linear_in(b, f, 1, "mlp.down_proj.weight", m->E));
}

ts_forward ts__llama_forward(ts_builder *b, const ts_model_config *c, const ts_forward_inputs *in)
{
    llama m = {
        .V = {"vocab", c->vocab},
        .E = {"embed", c->hidden},
        .F = {"mlp", c->ffn},
        .K = {"kv_heads", c->kv_heads},
        .G = {"group", c->heads / c->kv_heads},
        .D = {"head_dim", c->head_dim},
        .eps = c->norm_eps,
        .attention = {.causal = true},
        .segments = in->segments,
        .cos = in->cos,
        .sin = in->sin,
    };
    double init = c->tied ? ts_tied_embedding_init(c->hidden) : 1;
    ts_value *table = ts_param(b, "model.embed_tokens.weight", TS_DIMS(m.V, m.E), 1, init);
    ts_value *embed = ts_embedding(b, table, in->tokens); /* [B,S,E] */
    ts_value *x = ts_layers(b, "model.layers", (int)c->layers, ts_equal_layers(b, (int)c->layers),
                            block, &m, embed);
    x = ts_norm(b, x, "model.norm.weight", m.eps);
    ts_value *head = c->tied ? table : ts_head(b, "lm_head.weight", m.V, m.E);
    return (ts_forward){.embed = embed, .stream = x, .head = head};
}
