/* The table of roles. Each line gives a tensor's names, shape, kind, the axis along which ranks cut it, and
 * the condition under which it exists. */
#include "models/roles.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kernels/dummy.h"

/* Lengths from which shapes are made. */
typedef enum extent { NONE, WIDTH, FFN, VOCAB, Q_ROWS, KV_ROWS, Q_NORM_ROWS, K_NORM_ROWS } extent;
/* When the tensor exists, by the description. */
typedef enum condition {
  ALWAYS,
  OUTPUT, /* the output matrix is used, and is not the embedding */
  QKV_BIAS,
  O_BIAS,
  MLP_BIAS,
  QK_NORM,
  NORM_BEFORE,     /* before attention, or before both parts together */
  NORM_BEFORE_FFN, /* before the MLP alone */
  NORM_AFTER
} condition;

/* NORM: factors are 1 where weights are made up. */
typedef enum kind { MATRIX, BIAS, NORM } kind;

typedef struct role_line {
  const char *gguf, *hf; /* for roles of a layer, the part after "blk.N." or "model.layers.N." */
  extent rows, cols;     /* cols is NONE for a vector */
  kind is;
  td_shard_axis cut; /* for several ranks; a bias has the cut of its matrix */
  condition when;
} role_line;

static const role_line roles[TD_ROLE_COUNT] = {
    [TD_ROLE_EMBED] = {"token_embd.weight", "model.embed_tokens.weight", VOCAB, WIDTH, MATRIX, TD_SHARD_NONE,
                       ALWAYS},
    [TD_ROLE_OUT_NORM] = {"output_norm.weight", "model.norm.weight", WIDTH, NONE, NORM, TD_SHARD_NONE,
                          ALWAYS},
    [TD_ROLE_HEAD] = {"output.weight", "lm_head.weight", VOCAB, WIDTH, MATRIX, TD_SHARD_OUT, OUTPUT},
    [TD_ROLE_ATTN_NORM] = {"attn_norm.weight", "input_layernorm.weight", WIDTH, NONE, NORM, TD_SHARD_NONE,
                           NORM_BEFORE},
    [TD_ROLE_Q] = {"attn_q.weight", "self_attn.q_proj.weight", Q_ROWS, WIDTH, MATRIX, TD_SHARD_OUT, ALWAYS},
    [TD_ROLE_K] = {"attn_k.weight", "self_attn.k_proj.weight", KV_ROWS, WIDTH, MATRIX, TD_SHARD_OUT, ALWAYS},
    [TD_ROLE_V] = {"attn_v.weight", "self_attn.v_proj.weight", KV_ROWS, WIDTH, MATRIX, TD_SHARD_OUT, ALWAYS},
    [TD_ROLE_O] = {"attn_output.weight", "self_attn.o_proj.weight", WIDTH, Q_ROWS, MATRIX, TD_SHARD_IN,
                   ALWAYS},
    [TD_ROLE_Q_BIAS] = {"attn_q.bias", "self_attn.q_proj.bias", Q_ROWS, NONE, BIAS, TD_SHARD_OUT, QKV_BIAS},
    [TD_ROLE_K_BIAS] = {"attn_k.bias", "self_attn.k_proj.bias", KV_ROWS, NONE, BIAS, TD_SHARD_OUT, QKV_BIAS},
    [TD_ROLE_V_BIAS] = {"attn_v.bias", "self_attn.v_proj.bias", KV_ROWS, NONE, BIAS, TD_SHARD_OUT, QKV_BIAS},
    [TD_ROLE_O_BIAS] = {"attn_output.bias", "self_attn.o_proj.bias", WIDTH, NONE, BIAS, TD_SHARD_IN, O_BIAS},
    [TD_ROLE_Q_NORM] = {"attn_q_norm.weight", "self_attn.q_norm.weight", Q_NORM_ROWS, NONE, NORM,
                        TD_SHARD_NONE, QK_NORM},
    [TD_ROLE_K_NORM] = {"attn_k_norm.weight", "self_attn.k_norm.weight", K_NORM_ROWS, NONE, NORM,
                        TD_SHARD_NONE, QK_NORM},
    [TD_ROLE_FFN_NORM] = {"ffn_norm.weight", "post_attention_layernorm.weight", WIDTH, NONE, NORM,
                          TD_SHARD_NONE, NORM_BEFORE_FFN},
    [TD_ROLE_GATE] = {"ffn_gate.weight", "mlp.gate_proj.weight", FFN, WIDTH, MATRIX, TD_SHARD_OUT, ALWAYS},
    [TD_ROLE_UP] = {"ffn_up.weight", "mlp.up_proj.weight", FFN, WIDTH, MATRIX, TD_SHARD_OUT, ALWAYS},
    [TD_ROLE_DOWN] = {"ffn_down.weight", "mlp.down_proj.weight", WIDTH, FFN, MATRIX, TD_SHARD_IN, ALWAYS},
    [TD_ROLE_GATE_BIAS] = {"ffn_gate.bias", "mlp.gate_proj.bias", FFN, NONE, BIAS, TD_SHARD_OUT, MLP_BIAS},
    [TD_ROLE_UP_BIAS] = {"ffn_up.bias", "mlp.up_proj.bias", FFN, NONE, BIAS, TD_SHARD_OUT, MLP_BIAS},
    [TD_ROLE_DOWN_BIAS] = {"ffn_down.bias", "mlp.down_proj.bias", WIDTH, NONE, BIAS, TD_SHARD_IN, MLP_BIAS},
    [TD_ROLE_ATTN_OUT_NORM] = {"post_attention_norm.weight", "post_attention_layernorm.weight", WIDTH, NONE,
                               NORM, TD_SHARD_NONE, NORM_AFTER},
    [TD_ROLE_FFN_OUT_NORM] = {"post_ffw_norm.weight", "post_feedforward_layernorm.weight", WIDTH, NONE, NORM,
                              TD_SHARD_NONE, NORM_AFTER},
};

/* Roles that are parts of one stored tensor, in their order there, if the description says that they are
 * fused. */
typedef struct fused_line {
  const char *gguf, *hf;
  td_role parts[3];
  uint32_t n_parts;
} fused_line;

static const fused_line fused[] = {
    {"attn_qkv.weight", "self_attn.qkv_proj.weight", {TD_ROLE_Q, TD_ROLE_K, TD_ROLE_V}, 3},
    {"attn_qkv.bias", "self_attn.qkv_proj.bias", {TD_ROLE_Q_BIAS, TD_ROLE_K_BIAS, TD_ROLE_V_BIAS}, 3},
    {"ffn_up.weight", "mlp.gate_up_proj.weight", {TD_ROLE_GATE, TD_ROLE_UP}, 2},
    {"ffn_up.bias", "mlp.gate_up_proj.bias", {TD_ROLE_GATE_BIAS, TD_ROLE_UP_BIAS}, 2},
};

/* NULL if the role has a tensor of its own. */
static const fused_line *fused_line_of(td_role role, const td_model_desc *d)
{
  for (size_t i = 0; i < sizeof fused / sizeof *fused; i++)
    for (uint32_t k = 0; k < fused[i].n_parts; k++)
      if (fused[i].parts[k] == role && (fused[i].n_parts == 3 ? d->fused_qkv : d->fused_gate_up))
        return &fused[i];
  return NULL;
}

const char *td_role_name(td_role role, const td_model_desc *d, uint32_t layer, char out[TD_ROLE_NAME_BYTES])
{
  static const struct {
    const char *from, *to;
  } wrapped[] = {[TD_NAMES_HF_TEXT] = {"model.", "model.language_model."},
                 [TD_NAMES_HF_TEXT_OLD] = {"", "language_model."},
                 [TD_NAMES_HF_TEXT_SMOL] = {"model.", "model.text_model."},
                 [TD_NAMES_HF_BASE] = {"model.", ""}};
  bool gguf = d->names == TD_NAMES_GGUF, wraps = d->names >= TD_NAMES_HF_TEXT;
  const fused_line *f = fused_line_of(role, d);
  const char *name = f ? (gguf ? f->gguf : f->hf) : gguf ? roles[role].gguf : roles[role].hf;
  const char *from = wraps ? wrapped[d->names].from : "", *to = wraps ? wrapped[d->names].to : "";
  char plain[TD_ROLE_NAME_BYTES];
  if (role < TD_ROLE_ATTN_NORM)
    snprintf(plain, sizeof plain, "%s", name);
  else
    snprintf(plain, sizeof plain, "%s.%" PRIu32 ".%s", gguf ? "blk" : "model.layers", layer, name);
  size_t n = strncmp(plain, from, strlen(from)) == 0 ? strlen(from) : 0;
  snprintf(out, TD_ROLE_NAME_BYTES, "%s%s", n == strlen(from) ? to : "", plain + n);
  return out;
}

bool td_role_present(td_role role, const td_model_desc *d)
{
  switch (roles[role].when) {
  case OUTPUT: return !d->tied_embeddings && !d->headless;
  case QKV_BIAS: return d->qkv_bias;
  case O_BIAS: return d->o_bias;
  case MLP_BIAS: return d->mlp_bias;
  case QK_NORM: return d->qk_norm;
  case NORM_BEFORE: return d->block_form != TD_BLOCK_POST_NORM;
  case NORM_BEFORE_FFN: return d->block_form == TD_BLOCK_PRE_NORM;
  case NORM_AFTER: return d->block_form == TD_BLOCK_POST_NORM;
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
  case Q_NORM_ROWS: return d->wide_qk_norm ? extent_of(Q_ROWS, d) : d->head_dim;
  case K_NORM_ROWS: return d->wide_qk_norm ? extent_of(KV_ROWS, d) : d->head_dim;
  default: return 0;
  }
}

uint32_t td_role_shape(td_role role, const td_model_desc *d, uint64_t shape[2])
{
  shape[0] = extent_of(roles[role].rows, d);
  shape[1] = extent_of(roles[role].cols, d);
  return roles[role].cols == NONE ? 1 : 2;
}

uint32_t td_role_stored(td_role role, const td_model_desc *d, uint64_t shape[2], uint64_t *first_row)
{
  const fused_line *f = fused_line_of(role, d);
  uint32_t n_dims = td_role_shape(role, d, shape);
  *first_row = 0;
  if (!f)
    return n_dims;
  shape[0] = 0;
  for (uint32_t i = 0; i < f->n_parts; i++) {
    if (f->parts[i] == role)
      *first_row = shape[0];
    shape[0] += extent_of(roles[f->parts[i]].rows, d);
  }
  return n_dims;
}

uint64_t td_role_seed(uint64_t seed, td_role role, uint32_t layer)
{
  return td_dummy_hash(seed, (uint64_t)role << 32 | layer);
}

bool td_role_is_norm(td_role role) { return roles[role].is == NORM; }

/* ---- ranks ---- */

td_status td_role_check_ranks(const td_model_desc *d, uint32_t n_ranks, td_error *err)
{
  uint32_t vocab = td_role_present(TD_ROLE_HEAD, d) ? d->vocab : 0;
  if (n_ranks > 1 && d->wide_qk_norm)
    return td_fail(err, TD_ERR_UNSUPPORTED, "q and k norms over all heads cannot be shared out over %u ranks",
                   n_ranks);
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

static bool starts_with(const char *s, const char *head) { return strncmp(s, head, strlen(head)) == 0; }

bool td_role_is_harmless(const td_model_desc *d, const td_tensor *t)
{
  static const char *const others[] = {"visual.",       "vision_tower.",          "vision_model.",
                                       "image_newline", "multi_modal_projector.", "connector."};
  const char *name = starts_with(t->name, "model.") ? t->name + strlen("model.") : t->name;
  for (size_t i = 0; d->is_wrapped && i < sizeof others / sizeof *others; i++)
    if (starts_with(name, others[i]))
      return true;
  char head[TD_ROLE_NAME_BYTES];
  if (d->headless && strcmp(t->name, td_role_name(TD_ROLE_HEAD, d, 0, head)) == 0)
    return true;
  /* Old checkpoints and converters also store the frequencies, which follow from the description. */
  return strcmp(t->name, "rope_freqs.weight") == 0 || strcmp(t->name, "rope_factors_long.weight") == 0 ||
         strcmp(t->name, "rope_factors_short.weight") == 0 || ends_with(t->name, ".rotary_emb.inv_freq") ||
         ends_with(t->name, ".attn_rot_embd.weight");
}
