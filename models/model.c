/* Loading: every tensor of the files is bound to a role, or the model is refused. Without files, every role
 * is made up from a seed, with the same shapes.
 *
 * Each role's tensor is looked up by name, and its shape is checked against the description before the
 * backend sees it. At the end no tensor may be left over: ignoring a bias or norm that the description does
 * not know would change the answers. */
#include "models/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/dummy.h"
#include "models/model_internal.h"
#include "models/roles.h"

typedef struct loader {
  const td_model_files *files; /* NULL: weights are made up */
  uint64_t seed;
  uint32_t rank, n_ranks;
  td_model *m;
  bool *bound; /* one per tensor of files */
  uint64_t bytes_done, bytes_total;
  void (*progress)(void *arg, double share);
  void *progress_arg;
  td_error *err;
} loader;

/* ---- finding tensors ---- */

static const char *shape_text(const uint64_t *shape, uint32_t n_dims, char *out, size_t size)
{
  size_t n = 0;
  out[0] = '\0';
  for (uint32_t i = 0; i < n_dims && n < size; i++)
    n += (size_t)snprintf(out + n, size - n, "%s%" PRIu64, i ? ", " : "", shape[i]);
  return out;
}

/* first_row is set to the role's first row in the stored tensor. */
static td_status find(loader *l, td_role role, uint32_t layer, const td_tensor **out, uint64_t *first_row)
{
  char name[TD_ROLE_NAME_BYTES], want[64], have[128];
  uint64_t shape[2];
  uint32_t n_dims = td_role_stored(role, &l->m->desc, shape, first_row);
  const td_tensor *t = td_model_files_find(l->files, td_role_name(role, &l->m->desc, layer, name));
  if (!t)
    return td_fail(l->err, TD_ERR_MODEL, "%s: tensor '%s' [%s] is missing", td_model_files_path(l->files),
                   name, shape_text(shape, n_dims, want, sizeof want));
  if (t->n_dims != n_dims || t->shape[0] != shape[0] || (n_dims == 2 && t->shape[1] != shape[1]))
    return td_fail(l->err, TD_ERR_MODEL,
                   "%s: tensor '%s' has shape [%s], but the model's description asks for [%s]", t->file, name,
                   shape_text(t->shape, t->n_dims, have, sizeof have),
                   shape_text(shape, n_dims, want, sizeof want));
  l->bound[t - td_model_files_tensor(l->files, 0)] = true;
  *out = t;
  return TD_OK;
}

static void advance(loader *l, uint64_t bytes)
{
  l->bytes_done += bytes;
  if (l->progress)
    l->progress(l->progress_arg, (double)l->bytes_done / (double)l->bytes_total);
}

static td_status make_up_vector(loader *l, td_role role, uint32_t layer, float **out)
{
  uint64_t shape[2], seed = td_role_seed(l->seed, role, layer);
  td_role_shape(role, &l->m->desc, shape);
  *out = malloc(shape[0] * sizeof **out);
  if (!*out)
    return td_fail(l->err, TD_ERR_NOMEM, "no memory to make up weights");
  for (uint64_t i = 0; i < shape[0]; i++)
    (*out)[i] = td_role_is_norm(role) ? 1 : td_bf16_to_f32(td_dummy_bf16(seed, i));
  return TD_OK;
}

/* Reads a vector as floats. The caller frees *out. Of a fused tensor, only the role's own bytes count as
 * done. */
static td_status widen_vector(loader *l, td_role role, uint32_t layer, float **out)
{
  const td_tensor *t;
  uint64_t first_row, own[2];
  if (!l->files)
    return make_up_vector(l, role, layer, out);
  TD_TRY(find(l, role, layer, &t, &first_row));
  if (t->shape[0] % td_dtypes[t->dtype].block_elements != 0)
    return td_fail(l->err, TD_ERR_MODEL, "%s: tensor '%s' [%" PRIu64 "] cannot be of type %s", t->file,
                   t->name, t->shape[0], td_dtypes[t->dtype].name);
  float *wide = malloc(t->shape[0] * sizeof *wide);
  void *raw = malloc(t->bytes);
  td_status st = !wide || !raw ? td_fail(l->err, TD_ERR_NOMEM, "no memory to read '%s'", t->name)
                               : td_model_files_read(l->files, t, raw, l->err);
  if (st == TD_OK)
    td_dtype_to_f32(t->dtype, raw, t->shape[0], wide);
  free(raw);
  if (st != TD_OK) {
    free(wide);
    return st;
  }
  td_role_shape(role, &l->m->desc, own);
  memmove(wide, wide + first_row, own[0] * sizeof *wide);
  *out = wide;
  advance(l, t->bytes * own[0] / t->shape[0]);
  return TD_OK;
}

/* Moves the rank's own elements to the front. */
static td_role_slice cut_vector(const loader *l, td_role role, float *v)
{
  td_role_slice s = td_role_slice_of(role, &l->m->desc, l->rank, l->n_ranks);
  memmove(v, v + s.first_row, s.n_rows * sizeof *v);
  return s;
}

/* Loads a vector, and a copy of it multiplied by scale. With a scale of 1, *scaled is the vector itself. */
static td_status load_scaled_vector(loader *l, td_role role, uint32_t layer, float scale, td_devptr *out,
                                    td_devptr *scaled)
{
  float *host;
  *out = *scaled = (td_devptr){0};
  if (!td_role_present(role, &l->m->desc))
    return TD_OK;
  TD_TRY(widen_vector(l, role, layer, &host));
  uint64_t n = cut_vector(l, role, host).n_rows;
  td_status st = l->m->be->ops->upload_f32(l->m->be, host, n, out, l->err);
  *scaled = *out;
  if (st == TD_OK && scale != 1) {
    for (uint64_t i = 0; i < n; i++)
      host[i] *= scale;
    st = l->m->be->ops->upload_f32(l->m->be, host, n, scaled, l->err);
  }
  free(host);
  return st;
}

static td_status load_vector(loader *l, td_role role, uint32_t layer, td_devptr *out)
{
  td_devptr scaled;
  return load_scaled_vector(l, role, layer, 1, out, &scaled);
}

typedef struct matrix_roles {
  td_role weight, bias;
  bool has_bias;
} matrix_roles;

/* Describes the rank's slice of a matrix, as it is stored or as it will be made up. If the bytes are in a
 * file, *file is filled and out->file points to it. */
static td_status describe_part(loader *l, td_role role, uint32_t layer, td_weight_file *file,
                               td_weight_part *out)
{
  const td_role_slice s = td_role_slice_of(role, &l->m->desc, l->rank, l->n_ranks);
  const td_tensor *t;
  uint64_t shape[2], row_bytes = 0, skipped_bytes = 0, first_row;
  td_role_shape(role, &l->m->desc, shape);
  *out = (td_weight_part){.n_rows = s.n_rows, .row_elements = shape[1], .shard = s.shard};
  out->is_looked_up = role == TD_ROLE_EMBED && (!l->m->desc.tied_embeddings || l->m->desc.headless);
  if (!l->files) {
    out->dtype = TD_BF16;
    out->seed = td_role_seed(l->seed, role, layer);
    out->first_element = s.first_row * shape[1] + s.first_col;
    return TD_OK;
  }
  TD_TRY(find(l, role, layer, &t, &first_row));
  first_row += s.first_row;
  out->dtype = t->dtype;
  if ((first_row > 0 && !td_dtype_row_bytes(t->dtype, shape[1], &row_bytes)) ||
      (s.first_col > 0 && !td_dtype_row_bytes(t->dtype, s.first_col, &skipped_bytes)))
    return td_fail(l->err, TD_ERR_MODEL, "%s: tensor '%s' of %s cannot be cut for rank %u of %u", t->file,
                   t->name, td_dtypes[t->dtype].name, l->rank, l->n_ranks);
  out->data = (const unsigned char *)t->data + first_row * row_bytes + skipped_bytes;
  if (td_model_files_locate(l->files, out->data, &file->fd, &file->offset_bytes)) {
    file->name = t->file;
    out->file = file;
  }
  return TD_OK;
}

static td_status import_parts(loader *l, const matrix_roles *roles, const td_weight_part *parts,
                              uint32_t n_parts, uint32_t layer, td_weight **out)
{
  char name[TD_ROLE_NAME_BYTES];
  uint64_t row_bytes = 0, n_cols = td_role_slice_of(roles[0].weight, &l->m->desc, l->rank, l->n_ranks).n_cols;
  td_status st = l->m->be->ops->weight_import(l->m->be, parts, n_parts, n_cols, out, l->err);
  if (st != TD_OK && l->err)
    return td_error_prefix(l->err, "%s: tensor '%s'", parts[0].file ? parts[0].file->name : "made-up weights",
                           td_role_name(roles[0].weight, &l->m->desc, layer, name));
  for (uint32_t i = 0; i < n_parts && st == TD_OK; i++)
    if (td_dtype_row_bytes(parts[i].dtype, n_cols, &row_bytes))
      advance(l, parts[i].n_rows * row_bytes);
  return st;
}

/* Loads one weight from several stored matrices, with their outputs side by side. */
static td_status load_parts(loader *l, const matrix_roles *roles, uint32_t n_parts, uint32_t layer,
                            td_weight **out)
{
  td_weight_part parts[TD_WEIGHT_PARTS_MAX];
  td_weight_file files[TD_WEIGHT_PARTS_MAX];
  float *bias[TD_WEIGHT_PARTS_MAX] = {NULL};
  td_status st = TD_OK;
  for (uint32_t i = 0; i < n_parts && st == TD_OK; i++) {
    st = describe_part(l, roles[i].weight, layer, &files[i], &parts[i]);
    if (st == TD_OK && roles[i].has_bias && td_role_present(roles[i].bias, &l->m->desc))
      st = widen_vector(l, roles[i].bias, layer, &bias[i]);
    if (bias[i] && td_role_is_on(roles[i].bias, l->rank)) {
      cut_vector(l, roles[i].bias, bias[i]);
      parts[i].bias = bias[i];
    }
  }
  if (st == TD_OK)
    st = import_parts(l, roles, parts, n_parts, layer, out);
  for (uint32_t i = 0; i < n_parts; i++)
    free(bias[i]);
  return st;
}

/* ---- the model ---- */

static td_status load_layer(loader *l, uint32_t i)
{
  static const matrix_roles qkv[] = {{TD_ROLE_Q, TD_ROLE_Q_BIAS, true},
                                     {TD_ROLE_K, TD_ROLE_K_BIAS, true},
                                     {TD_ROLE_V, TD_ROLE_V_BIAS, true}};
  static const matrix_roles o[] = {{TD_ROLE_O, TD_ROLE_O_BIAS, true}};
  static const matrix_roles gate_up[] = {{TD_ROLE_GATE, TD_ROLE_GATE_BIAS, true},
                                         {TD_ROLE_UP, TD_ROLE_UP_BIAS, true}};
  static const matrix_roles down[] = {{TD_ROLE_DOWN, TD_ROLE_DOWN_BIAS, true}};
  td_model_layer *w = &l->m->layers[i];
  TD_TRY(load_vector(l, TD_ROLE_ATTN_NORM, i, &w->attn_norm));
  TD_TRY(load_parts(l, qkv, 3, i, &w->qkv));
  TD_TRY(load_vector(l, TD_ROLE_Q_NORM, i, &w->q_norm));
  TD_TRY(load_vector(l, TD_ROLE_K_NORM, i, &w->k_norm));
  TD_TRY(load_parts(l, o, 1, i, &w->o));
  TD_TRY(load_vector(l, TD_ROLE_FFN_NORM, i, &w->ffn_norm));
  TD_TRY(load_vector(l, TD_ROLE_ATTN_OUT_NORM, i, &w->attn_out_norm));
  TD_TRY(load_vector(l, TD_ROLE_FFN_OUT_NORM, i, &w->ffn_out_norm));
  TD_TRY(load_parts(l, gate_up, 2, i, &w->gate_up));
  return load_parts(l, down, 1, i, &w->down);
}

static td_status load_ends(loader *l)
{
  static const matrix_roles embed[] = {{.weight = TD_ROLE_EMBED}}, head[] = {{.weight = TD_ROLE_HEAD}};
  td_model *m = l->m;
  uint32_t n_pairs = m->desc.rotary_dim / 2;
  TD_TRY(m->be->ops->upload_f32(m->be, m->desc.rope_inv_freq, n_pairs, &m->inv_freq, l->err));
  if (td_model_has_alt_rope(&m->desc))
    TD_TRY(m->be->ops->upload_f32(m->be, m->desc.alt_inv_freq, n_pairs, &m->alt_inv_freq, l->err));
  TD_TRY(load_parts(l, embed, 1, 0, &m->embed));
  const float scale = m->desc.logit_scale != 0 ? m->desc.logit_scale : 1;
  TD_TRY(load_scaled_vector(l, TD_ROLE_OUT_NORM, 0, scale, &m->out_norm, &m->head_norm));
  m->head = m->embed;
  return td_role_present(TD_ROLE_HEAD, &m->desc) ? load_parts(l, head, 1, 0, &m->head) : TD_OK;
}

/* Some checkpoints store the output matrix although it is tied. That is harmless if it equals the
 * embedding. */
static bool is_copy_of_embedding(const loader *l, const td_tensor *t)
{
  char name[TD_ROLE_NAME_BYTES];
  if (!l->m->desc.tied_embeddings || strcmp(t->name, td_role_name(TD_ROLE_HEAD, &l->m->desc, 0, name)) != 0)
    return false;
  const td_tensor *embed = td_model_files_find(l->files, td_role_name(TD_ROLE_EMBED, &l->m->desc, 0, name));
  return embed && embed->dtype == t->dtype && embed->bytes == t->bytes &&
         memcmp(embed->data, t->data, t->bytes) == 0;
}

static td_status refuse_surplus(const loader *l)
{
  char shape[128];
  for (uint32_t i = 0; i < td_model_files_tensor_count(l->files); i++) {
    const td_tensor *t = td_model_files_tensor(l->files, i);
    if (!l->bound[i] && !td_role_is_harmless(&l->m->desc, t) && !is_copy_of_embedding(l, t))
      return td_fail(l->err, TD_ERR_MODEL,
                     "%s: tensor '%.160s' [%s] is no part of the %s model of %" PRIu32
                     " layers that the description states: leaving it out would change the answers",
                     t->file, t->name, shape_text(t->shape, t->n_dims, shape, sizeof shape), l->m->desc.arch,
                     l->m->desc.n_layers);
  }
  return TD_OK;
}

uint64_t td_model_read_bytes(const td_model_files *files, const td_model_desc *d)
{
  uint64_t sum = files ? 0 : sizeof(uint16_t) * td_model_desc_parameter_count(d);
  for (uint32_t i = 0; files && i < td_model_files_tensor_count(files); i++)
    if (!td_role_is_harmless(d, td_model_files_tensor(files, i)))
      sum += td_model_files_tensor(files, i)->bytes;
  return sum;
}

static td_status load_all(loader *l)
{
  td_model *m = l->m;
  l->bytes_total = td_model_read_bytes(l->files, &m->desc); /* approximate: may count a tied copy */
  TD_TRY(load_ends(l));
  for (uint32_t i = 0; i < m->desc.n_layers; i++)
    TD_TRY(load_layer(l, i));
  if (l->files)
    TD_TRY(refuse_surplus(l));
  TD_TRY(m->be->ops->weights_wait(m->be, l->err));
  m->at = td_workspace_lay_out(&m->desc, m->be->activation_bytes, m->max_tokens, m->max_logits);
  TD_TRY(m->be->ops->alloc(m->be, m->at.bytes, &m->workspace, l->err));
  if (l->progress) /* covers a copy of the embedding, which was not read */
    l->progress(l->progress_arg, 1);
  return TD_OK;
}

/* The caller sets files or seed, progress and err of *l. */
static td_status load_model(loader *l, const td_model_desc *desc, td_backend *be, uint32_t max_tokens,
                            uint32_t max_logits, td_model **out)
{
  *out = NULL;
  l->rank = be->rank;
  l->n_ranks = be->n_ranks > 0 ? be->n_ranks : 1;
  TD_TRY(td_role_check_ranks(desc, l->n_ranks, l->err));
  td_model *m = calloc(1, sizeof *m);
  td_model_layer *layers = calloc(desc->n_layers, sizeof *layers);
  l->bound = calloc((l->files ? td_model_files_tensor_count(l->files) : 0) + 1, sizeof *l->bound);
  if (!m || !layers || !l->bound) {
    free(m);
    free(layers);
    free(l->bound);
    return td_fail(l->err, TD_ERR_NOMEM, "no memory for the model's tables");
  }
  *m = (td_model){
      .desc = *desc, .be = be, .max_tokens = max_tokens, .max_logits = max_logits, .layers = layers};
  l->m = m;
  td_status st = load_all(l);
  free(l->bound);
  if (st != TD_OK)
    td_model_destroy(m);
  else
    *out = m;
  return st;
}

td_status td_model_load(const td_model_files *files, const td_model_desc *desc, td_backend *be,
                        uint32_t max_tokens, uint32_t max_logits, void (*progress)(void *arg, double share),
                        void *progress_arg, td_model **out, td_error *err)
{
  loader l = {.files = files, .progress = progress, .progress_arg = progress_arg, .err = err};
  return load_model(&l, desc, be, max_tokens, max_logits, out);
}

td_status td_model_make_up(const td_model_desc *desc, td_backend *be, uint64_t seed, uint32_t max_tokens,
                           uint32_t max_logits, void (*progress)(void *arg, double share), void *progress_arg,
                           td_model **out, td_error *err)
{
  loader l = {.seed = seed, .progress = progress, .progress_arg = progress_arg, .err = err};
  return load_model(&l, desc, be, max_tokens, max_logits, out);
}

void td_model_destroy(td_model *m)
{
  if (!m)
    return;
  free(m->layers); /* the backend frees device memory */
  free(m);
}

/* ---- for the memory plan ---- */

static uint64_t role_bytes(const td_model_files *files, td_role role, uint32_t layer, const td_model_desc *d,
                           const td_backend *be)
{
  char name[TD_ROLE_NAME_BYTES];
  const td_role_slice s = td_role_slice_of(role, d, be->rank, be->n_ranks > 0 ? be->n_ranks : 1);
  const td_tensor *t = NULL;
  uint64_t row_bytes = 0;
  if (files)
    t = td_model_files_find(files, td_role_name(role, d, layer, name));
  if (s.n_cols == 0)
    return s.n_rows * sizeof(float);
  return td_dtype_row_bytes(be->ops->weight_type(be, t ? t->dtype : TD_BF16).storage, s.n_cols, &row_bytes)
             ? s.n_rows * row_bytes
             : 0; /* loading will refuse the model */
}

uint64_t td_model_weight_bytes(const td_model_files *files, const td_model_desc *d, const td_backend *be)
{
  uint64_t sum = 0;
  for (int r = 0; r < TD_ROLE_COUNT; r++)
    for (uint32_t i = 0; i < (r < TD_ROLE_ATTN_NORM ? 1 : d->n_layers); i++)
      if (td_role_present((td_role)r, d))
        sum += role_bytes(files, (td_role)r, i, d, be);
  return sum;
}

td_kv_spec td_model_kv_spec(const td_model_desc *d, td_dtype dtype, uint32_t n_pages, uint32_t page_tokens)
{
  td_kv_spec s = {.n_pages = n_pages, .page_tokens = page_tokens};
  for (uint32_t layer = 0; layer < d->n_layers; layer++) {
    uint32_t window = td_model_layer_window(d, layer), i = 0;
    while (i < s.n_groups && s.groups[i].window_tokens != window)
      i++;
    if (i == s.n_groups)
      s.groups[s.n_groups++] = (td_kv_group){.dtype = dtype,
                                             .n_kv_heads = d->n_kv_heads,
                                             .head_dim = d->head_dim,
                                             .n_heads = d->n_heads,
                                             .window_tokens = window};
    s.groups[i].n_layers++;
  }
  return s;
}
