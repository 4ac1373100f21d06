/* A model's description: read by one of two readers, then checked as a whole, so that everything
 * downstream may multiply and divide these numbers without looking. */
#include "models/model_desc.h"

#include <inttypes.h>
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
  if (d->rotary_dim != d->head_dim)
    return td_fail(err, TD_ERR_UNSUPPORTED,
                   "%s: only %" PRIu32 " of %" PRIu32
                   " dimensions of a head are rotated: partial rotary is not served",
                   path, d->rotary_dim, d->head_dim);
  return TD_OK;
}

/* GGUF keeps Llama 3's frequency bands as a tensor of divisors instead of as parameters. */
static td_status read_divisors(const td_model_files *files, const td_model_desc *d, float *divisors,
                               td_rope_spec *rope, td_error *err)
{
  const td_tensor *t = td_model_files_find(files, "rope_freqs.weight");
  if (!t || td_model_files_format(files) != TD_FILES_GGUF)
    return TD_OK;
  if (t->dtype != TD_F32 || t->n_dims != 1 || t->shape[0] != d->rotary_dim / 2)
    return td_fail(err, TD_ERR_MODEL,
                   "%s: tensor 'rope_freqs.weight' must be F32 [%" PRIu32 "], not %s [%" PRIu64 "%s]",
                   td_model_files_path(files), d->rotary_dim / 2, td_dtypes[t->dtype].name, t->shape[0],
                   t->n_dims == 1 ? "" : ", ...");
  memcpy(divisors, t->data, t->bytes);
  rope->divisors = divisors;
  return TD_OK;
}

td_status td_model_desc_read(const td_model_files *files, td_model_desc *d, td_error *err)
{
  const char *path = td_model_files_path(files);
  td_rope_spec rope = {0};
  float divisors[TD_HEAD_DIM_MAX / 2];
  *d = (td_model_desc){
      .default_temperature = -1, .default_top_p = -1, .default_min_p = -1, .default_top_k = -1};
  if (td_model_files_format(files) == TD_FILES_GGUF)
    TD_TRY(td_desc_read_gguf(files, d, &rope, err));
  else
    TD_TRY(td_desc_read_config(files, d, &rope, err));
  TD_TRY(check_heads(d, path, err));
  if (!(d->norm_eps > 0 && d->norm_eps < 1))
    return td_fail(err, TD_ERR_MODEL, "%s: RMSNorm epsilon must be between 0 and 1, not %g", path,
                   (double)d->norm_eps);
  TD_TRY(read_divisors(files, d, divisors, &rope, err));
  TD_TRY(td_rope_fill(&rope, path, d, err));
  double stretched = rope.original_context * rope.factor, most = td_limits[TD_LIMIT_CONTEXT_TOKENS].max;
  if (rope.kind == TD_ROPE_YARN && stretched > d->context_tokens)
    d->context_tokens = (uint32_t)(stretched < most ? stretched : most);
  return TD_OK;
}

uint64_t td_model_desc_parameter_count(const td_model_desc *d)
{
  uint64_t width = d->width, ffn = d->ffn_width, q = (uint64_t)d->n_heads * d->head_dim,
           kv = (uint64_t)d->n_kv_heads * d->head_dim;
  uint64_t layer = width * (q + 2 * kv) + q * width + 3 * width * ffn + 2 * width;
  layer += (d->qkv_bias ? q + 2 * kv : 0) + (d->o_bias ? width : 0) + (d->mlp_bias ? 2 * ffn + width : 0);
  layer += d->qk_norm ? 2 * (uint64_t)d->head_dim : 0;
  return d->n_layers * layer + width + (d->tied_embeddings ? 1 : 2) * d->vocab * width;
}
