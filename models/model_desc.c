/* A model's description: one of two readers fills it, then it is checked as a whole. Code that uses it may
 * therefore multiply and divide by its numbers without further checks. */
#include "models/model_desc.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/desc.h"

td_status td_desc_add_eos(td_model_desc *d, uint64_t id, const char *source, td_error *err)
{
  if (id >= d->vocab)
    return td_fail(err, TD_ERR_MODEL, "%s: end token %" PRIu64 " is outside the vocabulary of %" PRIu32,
                   source, id, d->vocab);
  for (uint32_t i = 0; i < d->n_eos_ids; i++)
    if (d->eos_ids[i] == (int32_t)id)
      return TD_OK;
  if (d->n_eos_ids == TD_EOS_IDS_MAX)
    return td_fail(err, TD_ERR_MODEL, "%s: more than %d end tokens", source, TD_EOS_IDS_MAX);
  d->eos_ids[d->n_eos_ids++] = (int32_t)id;
  return TD_OK;
}

void td_desc_note_unserved(td_model_desc *d, const char *key)
{
  size_t n = strlen(d->unserved_defaults);
  snprintf(d->unserved_defaults + n, sizeof d->unserved_defaults - n, "%s%s", n ? ", " : "", key);
}

static td_status check_heads(const td_model_desc *d, const char *path, td_error *err)
{
  if (d->n_kv_heads > d->n_heads || d->n_heads % d->n_kv_heads != 0)
    return td_fail(err, TD_ERR_MODEL,
                   "%s: %" PRIu32 " attention heads cannot share %" PRIu32 " key-value heads", path,
                   d->n_heads, d->n_kv_heads);
  if (d->head_dim == 0 || d->head_dim % 2 != 0 || d->head_dim > TD_HEAD_DIM_MAX)
    return td_fail(err, TD_ERR_MODEL, "%s: head dimension %" PRIu32 " must be even and from 2 to %d", path,
                   d->head_dim, TD_HEAD_DIM_MAX);
  if (d->rotary_dim == 0 || d->rotary_dim % 2 != 0 || d->rotary_dim > d->head_dim)
    return td_fail(err, TD_ERR_MODEL, "%s: %" PRIu32 " rotary dimensions in heads of %" PRIu32, path,
                   d->rotary_dim, d->head_dim);
  return TD_OK;
}

/* GGUF keeps Llama 3's frequency bands and longrope's divisors as tensors instead of parameters. */
static td_status read_divisors(const td_model_files *files, const char *name, const td_model_desc *d,
                               float *divisors, bool *found, td_error *err)
{
  const td_tensor *t = td_model_files_find(files, name);
  *found = t && td_model_files_format(files) == TD_FILES_GGUF;
  if (!*found)
    return TD_OK;
  if (t->dtype != TD_F32 || t->n_dims != 1 || t->shape[0] != d->rotary_dim / 2)
    return td_fail(err, TD_ERR_MODEL, "%s: tensor '%s' must be F32 [%" PRIu32 "], not %s [%" PRIu64 "%s]",
                   td_model_files_path(files), name, d->rotary_dim / 2, td_dtypes[t->dtype].name, t->shape[0],
                   t->n_dims == 1 ? "" : ", ...");
  memcpy(divisors, t->data, t->bytes);
  return TD_OK;
}

static td_status read_all_divisors(const td_model_files *files, td_model_desc *d, td_error *err)
{
  td_rope_spec *r = &d->rope;
  bool is_long, is_short;
  TD_TRY(read_divisors(files, "rope_factors_long.weight", d, r->long_divisors, &is_long, err));
  TD_TRY(read_divisors(files, "rope_factors_short.weight", d, r->divisors, &is_short, err));
  if (is_long != is_short)
    return td_fail(err, TD_ERR_MODEL, "%s: one of rope_factors_long.weight and _short.weight is missing",
                   td_model_files_path(files));
  if (is_long) {
    r->kind = TD_ROPE_LONGROPE;
    r->factor = fmax(1, d->context_tokens / r->original_context); /* td_rope_fill refuses a divisor of 0 */
    return TD_OK;
  }
  return read_divisors(files, "rope_freqs.weight", d, r->divisors, &r->has_divisors, err);
}

void td_desc_set_window(td_model_desc *d, uint32_t layer, bool slides)
{
  uint64_t bit = 1ull << layer % 64;
  d->no_window[layer / 64] = slides ? d->no_window[layer / 64] & ~bit : d->no_window[layer / 64] | bit;
}

void td_desc_set_alt_rope(td_model_desc *d, uint32_t layer) { d->alt_rope[layer / 64] |= 1ull << layer % 64; }

static td_status check_scales(const td_model_desc *d, const char *path, td_error *err)
{
  const struct {
    const char *of;
    float value;
  } scales[] = {{"embedding", d->embed_scale},
                {"residual", d->residual_scale},
                {"logit", d->logit_scale},
                {"attention", d->attn_scale}};
  for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
    if (scales[i].value != 0 && !(scales[i].value >= 1e-6f && scales[i].value <= 1e6f))
      return td_fail(err, TD_ERR_MODEL, "%s: the %s scale must be between 1e-6 and 1e6, not %g", path,
                     scales[i].of, (double)scales[i].value);
  return TD_OK;
}

td_status td_model_desc_set_context(td_model_desc *d, uint32_t tokens, const char *path, td_error *err)
{
  return td_rope_fill(&d->rope, d->rotary_dim, tokens, path, d->rope_inv_freq, &d->rope_attn_factor, err);
}

/* For yarn and dynamic, the files may state the context before scaling. This stretches it. */
static void stretch_context(td_model_desc *d)
{
  double stretched = d->rope.original_context * d->rope.factor, most = td_limits[TD_LIMIT_CONTEXT_TOKENS].max;
  bool stretches = d->rope.kind == TD_ROPE_YARN || d->rope.kind == TD_ROPE_DYNAMIC;
  if (stretches && stretched > d->context_tokens)
    d->context_tokens = (uint32_t)(stretched < most ? stretched : most);
}

td_status td_model_desc_read(const td_model_files *files, td_model_desc *d, td_error *err)
{
  const char *path = td_model_files_path(files);
  td_rope_spec alt = {.kind = TD_ROPE_NONE};
  float alt_factor;
  *d = (td_model_desc){
      .default_temperature = -1, .default_top_p = -1, .default_min_p = -1, .default_top_k = -1};
  if (td_model_files_format(files) == TD_FILES_GGUF)
    TD_TRY(td_desc_read_gguf(files, d, &alt, err));
  else
    TD_TRY(td_desc_read_config(files, d, &alt, err));
  TD_TRY(check_heads(d, path, err));
  TD_TRY(check_scales(d, path, err));
  if (!(d->norm_eps > 0 && d->norm_eps < 1))
    return td_fail(err, TD_ERR_MODEL, "%s: RMSNorm epsilon must be between 0 and 1, not %g", path,
                   (double)d->norm_eps);
  TD_TRY(read_all_divisors(files, d, err));
  stretch_context(d);
  TD_TRY(td_rope_fill(&alt, d->rotary_dim, d->context_tokens, path, d->alt_inv_freq, &alt_factor, err));
  return td_model_desc_set_context(d, d->context_tokens, path, err);
}

uint64_t td_model_desc_parameter_count(const td_model_desc *d)
{
  uint64_t width = d->width, ffn = d->ffn_width, q = (uint64_t)d->n_heads * d->head_dim,
           kv = (uint64_t)d->n_kv_heads * d->head_dim;
  uint64_t layer = width * (q + 2 * kv) + q * width + 3 * width * ffn;
  layer += (d->block_form == TD_BLOCK_PARALLEL ? 1 : 2) * width;
  layer += (d->qkv_bias ? q + 2 * kv : 0) + (d->o_bias ? width : 0) + (d->mlp_bias ? 2 * ffn + width : 0);
  layer += !d->qk_norm ? 0 : d->wide_qk_norm ? q + kv : 2 * (uint64_t)d->head_dim;
  return d->n_layers * layer + width + (d->tied_embeddings || d->headless ? 1 : 2) * d->vocab * width;
}
