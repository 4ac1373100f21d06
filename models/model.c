/* Loading: every tensor of the files is bound to a role, or refused.
 *
 * Without files every role is made up from a seed: same roles, same shapes.
 *
 * Each role is looked up by its name and checked against the shape that the description asks for before the
 * backend sees it. At the end no tensor may be left over: a bias or norm that the description does not know
 * of would change the answers if it were ignored. */
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
  td_files_format format;
  td_model *m;
  bool *bound; /* per tensor of files */
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

static td_status find(loader *l, td_role role, uint32_t layer, const td_tensor **out)
{
  char name[TD_ROLE_NAME_BYTES], want[64], have[128];
  uint64_t shape[2];
  uint32_t n_dims = td_role_shape(role, &l->m->desc, shape);
  const td_tensor *t = td_model_files_find(l->files, td_role_name(role, l->format, layer, name));
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

/* A vector as floats; *out is the caller's to free. */
static td_status widen_vector(loader *l, td_role role, uint32_t layer, float **out)
{
  const td_tensor *t;
  if (!l->files)
    return make_up_vector(l, role, layer, out);
  TD_TRY(find(l, role, layer, &t));
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
  *out = wide;
  advance(l, t->bytes);
  return TD_OK;
}

static td_status load_vector(loader *l, td_role role, uint32_t layer, td_devptr *out)
{
  uint64_t shape[2];
  float *host;
  *out = (td_devptr){0};
  if (!td_role_present(role, &l->m->desc))
    return TD_OK;
  TD_TRY(widen_vector(l, role, layer, &host));
  td_role_shape(role, &l->m->desc, shape);
  td_status st = l->m->be->ops->upload_f32(l->m->be, host, shape[0], out, l->err);
  free(host);
  return st;
}

typedef struct matrix_roles {
  td_role weight, bias;
  bool has_bias;
} matrix_roles;

/* A matrix as it is stored, or as it will be made up. file is filled where the bytes lie in one. */
static td_status describe_part(loader *l, td_role role, uint32_t layer, td_weight_file *file,
                               td_weight_part *out)
{
  const td_tensor *t;
  uint64_t shape[2];
  td_role_shape(role, &l->m->desc, shape);
  if (!l->files) {
    *out = (td_weight_part){.dtype = TD_BF16, .n_rows = shape[0], .seed = td_role_seed(l->seed, role, layer)};
    return TD_OK;
  }
  TD_TRY(find(l, role, layer, &t));
  *out = (td_weight_part){.dtype = t->dtype, .data = t->data, .n_rows = shape[0]};
  if (td_model_files_locate(l->files, t->data, &file->fd, &file->offset_bytes)) {
    file->name = t->file;
    out->file = file;
  }
  return TD_OK;
}

static td_status import_parts(loader *l, const matrix_roles *roles, const td_weight_part *parts,
                              uint32_t n_parts, uint32_t layer, td_weight **out)
{
  char name[TD_ROLE_NAME_BYTES];
  uint64_t shape[2], row_bytes = 0;
  td_role_shape(roles[0].weight, &l->m->desc, shape);
  td_status st = l->m->be->ops->weight_import(l->m->be, parts, n_parts, shape[1], out, l->err);
  if (st != TD_OK && l->err)
    return td_error_prefix(l->err, "%s: tensor '%s'", parts[0].file ? parts[0].file->name : "made-up weights",
                           td_role_name(roles[0].weight, l->format, layer, name));
  for (uint32_t i = 0; i < n_parts && st == TD_OK; i++)
    if (td_dtype_row_bytes(parts[i].dtype, shape[1], &row_bytes))
      advance(l, parts[i].n_rows * row_bytes);
  return st;
}

/* One weight of several stored matrices, outputs side by side. */
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
    parts[i].bias = bias[i];
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
  TD_TRY(load_parts(l, gate_up, 2, i, &w->gate_up));
  return load_parts(l, down, 1, i, &w->down);
}

static td_status load_ends(loader *l)
{
  static const matrix_roles embed[] = {{.weight = TD_ROLE_EMBED}}, head[] = {{.weight = TD_ROLE_HEAD}};
  td_model *m = l->m;
  TD_TRY(m->be->ops->upload_f32(m->be, m->desc.rope_inv_freq, m->desc.rotary_dim / 2, &m->inv_freq, l->err));
  TD_TRY(load_parts(l, embed, 1, 0, &m->embed));
  TD_TRY(load_vector(l, TD_ROLE_OUT_NORM, 0, &m->out_norm));
  m->head = m->embed;
  return m->desc.tied_embeddings ? TD_OK : load_parts(l, head, 1, 0, &m->head);
}

/* Some checkpoints store the output matrix although it is tied: fine if it is the same one. */
static bool is_copy_of_embedding(const loader *l, const td_tensor *t)
{
  char name[TD_ROLE_NAME_BYTES];
  if (!l->m->desc.tied_embeddings || strcmp(t->name, td_role_name(TD_ROLE_HEAD, l->format, 0, name)) != 0)
    return false;
  const td_tensor *embed = td_model_files_find(l->files, td_role_name(TD_ROLE_EMBED, l->format, 0, name));
  return embed && embed->dtype == t->dtype && embed->bytes == t->bytes &&
         memcmp(embed->data, t->data, t->bytes) == 0;
}

static td_status refuse_surplus(const loader *l)
{
  char shape[128];
  for (uint32_t i = 0; i < td_model_files_tensor_count(l->files); i++) {
    const td_tensor *t = td_model_files_tensor(l->files, i);
    if (!l->bound[i] && !td_role_is_harmless(t) && !is_copy_of_embedding(l, t))
      return td_fail(l->err, TD_ERR_MODEL,
                     "%s: tensor '%.160s' [%s] is no part of the %s model of %" PRIu32
                     " layers that the description states: leaving it out would change the answers",
                     t->file, t->name, shape_text(t->shape, t->n_dims, shape, sizeof shape), l->m->desc.arch,
                     l->m->desc.n_layers);
  }
  return TD_OK;
}

/* Most of the bytes: what the share done is counted in. */
static uint64_t count_bytes(const loader *l)
{
  uint64_t sum = l->files ? 0 : sizeof(uint16_t) * td_model_desc_parameter_count(&l->m->desc);
  for (uint32_t i = 0; l->files && i < td_model_files_tensor_count(l->files); i++)
    sum += td_model_files_tensor(l->files, i)->bytes;
  return sum;
}

static td_status load_all(loader *l)
{
  td_model *m = l->m;
  l->bytes_total = count_bytes(l);
  TD_TRY(load_ends(l));
  for (uint32_t i = 0; i < m->desc.n_layers; i++)
    TD_TRY(load_layer(l, i));
  if (l->files)
    TD_TRY(refuse_surplus(l));
  TD_TRY(m->be->ops->weights_wait(m->be, l->err));
  m->at = td_workspace_lay_out(&m->desc, m->be->activation_bytes, m->max_tokens, m->max_logits);
  TD_TRY(m->be->ops->alloc(m->be, m->at.bytes, &m->workspace, l->err));
  if (l->progress) /* tensors that are not needed count as done */
    l->progress(l->progress_arg, 1);
  return TD_OK;
}

/* l: files or seed, progress and err are set. */
static td_status load_model(loader *l, const td_model_desc *desc, td_backend *be, uint32_t max_tokens,
                            uint32_t max_logits, td_model **out)
{
  *out = NULL;
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
  loader l = {.files = files,
              .format = td_model_files_format(files),
              .progress = progress,
              .progress_arg = progress_arg,
              .err = err};
  return load_model(&l, desc, be, max_tokens, max_logits, out);
}

td_status td_model_make_up(const td_model_desc *desc, td_backend *be, uint64_t seed, uint32_t max_tokens,
                           uint32_t max_logits, void (*progress)(void *arg, double share), void *progress_arg,
                           td_model **out, td_error *err)
{
  loader l = {.seed = seed,
              .format = TD_FILES_SAFETENSORS,
              .progress = progress,
              .progress_arg = progress_arg,
              .err = err};
  return load_model(&l, desc, be, max_tokens, max_logits, out);
}

void td_model_destroy(td_model *m)
{
  if (!m)
    return;
  free(m->layers); /* device memory is the backend's */
  free(m);
}

td_kv_shape td_model_kv_shape(const td_model_desc *d, uint32_t n_pages, uint32_t page_tokens)
{
  return (td_kv_shape){.n_layers = d->n_layers,
                       .n_pages = n_pages,
                       .page_tokens = page_tokens,
                       .n_kv_heads = d->n_kv_heads,
                       .head_dim = d->head_dim,
                       .n_heads = d->n_heads,
                       .window_tokens = d->window_tokens};
}
