/* The table of roles: names, shapes, kinds, cuts and conditions, one line each. */
#include "models/roles.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kernels/dummy.h"

/* Lengths that shapes are made of. */
typedef enum extent { NONE, WIDTH, FFN, VOCAB, Q_ROWS, KV_ROWS, HEAD } extent;
/* What a description must say for the tensor to exist. */
typedef enum condition { ALWAYS, UNTIED, QKV_BIAS, O_BIAS, MLP_BIAS, QK_NORM } condition;

/* A norm's factors are 1 where weights are made up. */
typedef enum kind { MATRIX, BIAS, NORM } kind;

typedef struct role_line {
  const char *gguf, *hf; /* behind "blk.N." and "model.layers.N." for roles of a layer */
  extent rows, cols;     /* cols NONE: a vector */
  kind is;
  td_shard_axis cut; /* for several ranks; a bias as its matrix */
  condition when;
} role_line;

static const role_line roles[TD_ROLE_COUNT] = {
    [TD_ROLE_EMBED] = {"token_embd.weight", "model.embed_tokens.weight", VOCAB, WIDTH, MATRIX, TD_SHARD_NONE,
                       ALWAYS},
    [TD_ROLE_OUT_NORM] = {"output_norm.weight", "model.norm.weight", WIDTH, NONE, NORM, TD_SHARD_NONE,
                          ALWAYS},
    [TD_ROLE_HEAD] = {"output.weight", "lm_head.weight", VOCAB, WIDTH, MATRIX, TD_SHARD_OUT, UNTIED},
    [TD_ROLE_ATTN_NORM] = {"attn_norm.weight", "input_layernorm.weight", WIDTH, NONE, NORM, TD_SHARD_NONE,
                           ALWAYS},
    [TD_ROLE_Q] = {"attn_q.weight", "self_attn.q_proj.weight", Q_ROWS, WIDTH, MATRIX, TD_SHARD_OUT, ALWAYS},
    [TD_ROLE_K] = {"attn_k.weight", "self_attn.k_proj.weight", KV_ROWS, WIDTH, MATRIX, TD_SHARD_OUT, ALWAYS},
    [TD_ROLE_V] = {"attn_v.weight", "self_attn.v_proj.weight", KV_ROWS, WIDTH, MATRIX, TD_SHARD_OUT, ALWAYS},
    [TD_ROLE_O] = {"attn_output.weight", "self_attn.o_proj.weight", WIDTH, Q_ROWS, MATRIX, TD_SHARD_IN,
                   ALWAYS},
    [TD_ROLE_Q_BIAS] = {"attn_q.bias", "self_attn.q_proj.bias", Q_ROWS, NONE, BIAS, TD_SHARD_OUT, QKV_BIAS},
    [TD_ROLE_K_BIAS] = {"attn_k.bias", "self_attn.k_proj.bias", KV_ROWS, NONE, BIAS, TD_SHARD_OUT, QKV_BIAS},
    [TD_ROLE_V_BIAS] = {"attn_v.bias", "self_attn.v_proj.bias", KV_ROWS, NONE, BIAS, TD_SHARD_OUT, QKV_BIAS},
    [TD_ROLE_O_BIAS] = {"attn_output.bias", "self_attn.o_proj.bias", WIDTH, NONE, BIAS, TD_SHARD_IN, O_BIAS},
    [TD_ROLE_Q_NORM] = {"attn_q_norm.weight", "self_attn.q_norm.weight", HEAD, NONE, NORM, TD_SHARD_NONE,
                        QK_NORM},
    [TD_ROLE_K_NORM] = {"attn_k_norm.weight", "self_attn.k_norm.weight", HEAD, NONE, NORM, TD_SHARD_NONE,
                        QK_NORM},
    [TD_ROLE_FFN_NORM] = {"ffn_norm.weight", "post_attention_layernorm.weight", WIDTH, NONE, NORM,
                          TD_SHARD_NONE, ALWAYS},
    [TD_ROLE_GATE] = {"ffn_gate.weight", "mlp.gate_proj.weight", FFN, WIDTH, MATRIX, TD_SHARD_OUT, ALWAYS},
    [TD_ROLE_UP] = {"ffn_up.weight", "mlp.up_proj.weight", FFN, WIDTH, MATRIX, TD_SHARD_OUT, ALWAYS},
    [TD_ROLE_DOWN] = {"ffn_down.weight", "mlp.down_proj.weight", WIDTH, FFN, MATRIX, TD_SHARD_IN, ALWAYS},
    [TD_ROLE_GATE_BIAS] = {"ffn_gate.bias", "mlp.gate_proj.bias", FFN, NONE, BIAS, TD_SHARD_OUT, MLP_BIAS},
    [TD_ROLE_UP_BIAS] = {"ffn_up.bias", "mlp.up_proj.bias", FFN, NONE, BIAS, TD_SHARD_OUT, MLP_BIAS},
    [TD_ROLE_DOWN_BIAS] = {"ffn_down.bias", "mlp.down_proj.bias", WIDTH, NONE, BIAS, TD_SHARD_IN, MLP_BIAS},
};

const char *td_role_name(td_role role, td_files_format format, uint32_t layer, char out[TD_ROLE_NAME_BYTES])
{
  bool gguf = format == TD_FILES_GGUF;
  const char *name = gguf ? roles[role].gguf : roles[role].hf;
  if (role < TD_ROLE_ATTN_NORM)
    snprintf(out, TD_ROLE_NAME_BYTES, "%s", name);
  else
    snprintf(out, TD_ROLE_NAME_BYTES, "%s.%" PRIu32 ".%s", gguf ? "blk" : "model.layers", layer, name);
  return out;
}

bool td_role_present(td_role role, const td_model_desc *d)
{
  switch (roles[role].when) {
  case UNTIED: return !d->tied_embeddings;
  case QKV_BIAS: return d->qkv_bias;
  case O_BIAS: return d->o_bias;
  case MLP_BIAS: return d->mlp_bias;
  case QK_NORM: return d->qk_norm;
  default: return true;
  }
}

static uint64_t extent_of(extent e, const td_model_desc *d)
{
  switch (e) {
  case WIDTH: return d->width;
  case FFN: return d->ffn_width;
  case VOCAB: return d->vocab;
  case Q_ROWS: return (uint64_t)d->n_heads * d->head_dim;
  case KV_ROWS: return (uint64_t)d->n_kv_heads * d->head_dim;
  case HEAD: return d->head_dim;
  default: return 0;
  }
}

uint32_t td_role_shape(td_role role, const td_model_desc *d, uint64_t shape[2])
{
  shape[0] = extent_of(roles[role].rows, d);
  shape[1] = extent_of(roles[role].cols, d);
  return roles[role].cols == NONE ? 1 : 2;
}

uint64_t td_role_seed(uint64_t seed, td_role role, uint32_t layer)
{
  return td_dummy_hash(seed, (uint64_t)role << 32 | layer);
}

bool td_role_is_norm(td_role role) { return roles[role].is == NORM; }

/* ---- ranks ---- */

td_status td_role_check_ranks(const td_model_desc *d, uint32_t n_ranks, td_error *err)
{
  uint32_t vocab = d->tied_embeddings ? 0 : d->vocab;
  if (d->n_heads % n_ranks || d->n_kv_heads % n_ranks || d->ffn_width % n_ranks || vocab % n_ranks)
    return td_fail(
        err, TD_ERR_UNSUPPORTED,
        "%u heads, %u kv heads, a feed-forward width of %u and a vocabulary of %u cannot be shared "
        "out over %u ranks",
        d->n_heads, d->n_kv_heads, d->ffn_width, d->vocab, n_ranks);
  return TD_OK;
}

td_role_slice td_role_slice_of(td_role role, const td_model_desc *d, uint32_t rank, uint32_t n_ranks)
{
  uint64_t shape[2];
  td_role_shape(role, d, shape);
  td_role_slice s = {.shard = {roles[role].cut, rank, n_ranks}, .n_rows = shape[0], .n_cols = shape[1]};
  if (s.shard.axis == TD_SHARD_OUT) {
    s.n_rows /= n_ranks;
    s.first_row = rank * s.n_rows;
  } else if (s.shard.axis == TD_SHARD_IN && roles[role].is == MATRIX) {
    s.n_cols /= n_ranks;
    s.first_col = rank * s.n_cols;
  }
  return s;
}

bool td_role_is_on(td_role role, uint32_t rank)
{
  return roles[role].is != BIAS || roles[role].cut != TD_SHARD_IN || rank == 0;
}

static bool ends_with(const char *s, const char *tail)
{
  size_t n = strlen(s), k = strlen(tail);
  return n >= k && strcmp(s + n - k, tail) == 0;
}

bool td_role_is_harmless(const td_tensor *t)
{
  /* Frequencies follow from the description: old checkpoints and converters store them too. */
  return strcmp(t->name, "rope_freqs.weight") == 0 || ends_with(t->name, ".rotary_emb.inv_freq") ||
         ends_with(t->name, ".attn_rot_embd.weight");
}
