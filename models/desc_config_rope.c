/* How config.json says that q and k are rotated. See desc_config.c. */
#include <inttypes.h>
#include <string.h>

#include "models/desc_config.h"

static td_status read_divisors(const td_config_reader *r, const cJSON *p, const char *key, uint32_t n,
                               float *out)
{
  const cJSON *list = td_json_get(p, key), *item;
  uint32_t i = 0;
  if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != (int)n)
    return td_fail(r->err, TD_ERR_MODEL, "%s: '%s' must be a list of %" PRIu32 " numbers", r->file, key, n);
  cJSON_ArrayForEach(item, list)
  {
    if (!cJSON_IsNumber(item) || !(item->valuedouble > 0 && item->valuedouble <= 1e6))
      return td_fail(r->err, TD_ERR_MODEL, "%s: '%s' must be numbers above 0 and up to 1e6", r->file, key);
    out[i++] = (float)item->valuedouble;
  }
  return TD_OK;
}

static td_status read_scaling_kind(const td_config_reader *r, const cJSON *p, td_rope_spec *rope)
{
  static const struct {
    const char *name;
    td_rope_kind kind;
  } kinds[] = {{"default", TD_ROPE_PLAIN}, {"linear", TD_ROPE_LINEAR},     {"llama3", TD_ROPE_LLAMA3},
               {"yarn", TD_ROPE_YARN},     {"longrope", TD_ROPE_LONGROPE}, {"dynamic", TD_ROPE_DYNAMIC}};
  const char *type = "default";
  TD_TRY(td_config_as_model_error(r, td_json_get_string(p, "type", &type, r->err))); /* the older name */
  TD_TRY(td_config_as_model_error(r, td_json_get_string(p, "rope_type", &type, r->err)));
  if (r->family->mrope && strcmp(type, "mrope") == 0)
    type = "default";
  if (r->family->partial_rotary && (strcmp(type, "su") == 0 || strcmp(type, "yarn") == 0))
    type = "longrope"; /* the name in Phi-3's first files */
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (strcmp(type, kinds[i].name) == 0) {
      rope->kind = kinds[i].kind;
      return TD_OK;
    }
  return td_fail(
      r->err, TD_ERR_UNSUPPORTED,
      "%s: RoPE type '%.60s' is not served; default, linear, llama3, yarn, longrope and dynamic are", r->file,
      type);
}

/* Must be called after d->rotary_dim is set. */
static td_status read_scaling(const td_config_reader *r, const cJSON *p, const td_model_desc *d,
                              td_rope_spec *rope)
{
  bool truncate = true;
  TD_TRY(read_scaling_kind(r, p, rope));
  if (rope->kind == TD_ROPE_PLAIN)
    return TD_OK;
  if (!td_config_is_unset(td_json_get(p, "alpha")))
    return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: 'alpha' of RoPE scaling is not served", r->file);
  rope->original_context = d->context_tokens;
  if (rope->kind != TD_ROPE_DYNAMIC) { /* transformers scales dynamic NTK from max_position_embeddings on */
    TD_TRY(td_config_read_double(r, p, "original_max_position_embeddings", &rope->original_context));
    TD_TRY(td_config_read_double(r, r->config, "original_max_position_embeddings", &rope->original_context));
  }
  TD_TRY(td_config_read_double(r, p, "factor", &rope->factor));
  if (rope->factor == 0 && (rope->kind == TD_ROPE_YARN || rope->kind == TD_ROPE_LONGROPE) &&
      rope->original_context > 0)
    rope->factor = d->context_tokens / rope->original_context;
  TD_TRY(td_config_read_double(r, p, "low_freq_factor", &rope->low_freq));
  TD_TRY(td_config_read_double(r, p, "high_freq_factor", &rope->high_freq));
  TD_TRY(td_config_read_double(r, p, "beta_fast", &rope->beta_fast));
  TD_TRY(td_config_read_double(r, p, "beta_slow", &rope->beta_slow));
  TD_TRY(td_config_read_double(r, p, "mscale", &rope->mscale));
  TD_TRY(td_config_read_double(r, p, "mscale_all_dim", &rope->mscale_all));
  TD_TRY(td_config_read_double(r, p, "attention_factor", &rope->attn_factor));
  TD_TRY(td_config_as_model_error(r, td_json_get_bool(p, "truncate", &truncate, NULL, r->err)));
  rope->exact_range = !truncate;
  if (rope->kind != TD_ROPE_LONGROPE)
    return TD_OK;
  TD_TRY(read_divisors(r, p, "short_factor", d->rotary_dim / 2, rope->divisors));
  return read_divisors(r, p, "long_factor", d->rotary_dim / 2, rope->long_divisors);
}

/* *out is the object, or NULL if the key is absent or null. */
static td_status read_object(const td_config_reader *r, const char *key, const cJSON **out)
{
  *out = td_json_get(r->config, key);
  if (cJSON_IsNull(*out))
    *out = NULL;
  if (*out && !cJSON_IsObject(*out))
    return td_fail(r->err, TD_ERR_MODEL, "%s: '%s' must be an object or null", r->file, key);
  return TD_OK;
}

/* p: the parameters of all layers, or of one kind of layer. NULL if the file has none. */
static td_status read_rope_of(const td_config_reader *r, const cJSON *p, td_model_desc *d, td_rope_spec *rope)
{
  double partial = 1;
  rope->kind = TD_ROPE_PLAIN;
  rope->theta = r->family->absent_theta > 0 ? r->family->absent_theta : 10000;
  TD_TRY(td_config_read_double(r, r->config, "rope_theta", &rope->theta));
  TD_TRY(td_config_read_double(r, r->config, "partial_rotary_factor", &partial));
  if (p) {
    TD_TRY(td_config_read_double(r, p, "rope_theta", &rope->theta));
    TD_TRY(td_config_read_double(r, p, "partial_rotary_factor", &partial));
  }
  if (partial != 1 && !(r->family->partial_rotary && partial > 0 && partial < 1))
    return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: 'partial_rotary_factor' %g is not served", r->file,
                   partial);
  d->rotary_dim = (uint32_t)(d->head_dim * partial);
  return p ? read_scaling(r, p, d, rope) : TD_OK;
}

static td_status refuse_inner_objects(const td_config_reader *r, const cJSON *p)
{
  const cJSON *item;
  cJSON_ArrayForEach(item, p)
  {
    if (cJSON_IsObject(item))
      return td_fail(r->err, TD_ERR_UNSUPPORTED,
                     "%s: RoPE parameters of their own for '%.60s' are not served", r->file, item->string);
  }
  return TD_OK;
}

/* Layers with the window have plain frequencies, and the scaling applies to the other layers only; or each of
 * the two kinds of layers has an object of its own. */
static td_status read_rope_by_windows(const td_config_reader *r, const cJSON *p, td_model_desc *d,
                                      td_rope_spec *alt)
{
  const cJSON *sliding = td_json_get(p, "sliding_attention"), *full = td_json_get(p, "full_attention");
  bool each = cJSON_IsObject(sliding) || cJSON_IsObject(full);
  TD_TRY(read_rope_of(r, each ? cJSON_IsObject(sliding) ? sliding : NULL : NULL, d, alt));
  for (uint32_t layer = 0; layer < d->n_layers; layer++)
    if (td_model_layer_window(d, layer) > 0)
      td_desc_set_alt_rope(d, layer);
  p = each ? cJSON_IsObject(full) ? full : NULL : p;
  TD_TRY(refuse_inner_objects(r, p));
  return read_rope_of(r, p, d, &d->rope);
}

/* Marks the layers that are not rotated. */
static td_status read_no_rope_layers(const td_config_reader *r, td_model_desc *d)
{
  const cJSON *rotated = td_json_get(r->config, "no_rope_layers"), *item = NULL;
  uint32_t interval = 4;
  TD_TRY(td_config_read_u32(r, "no_rope_layer_interval", TD_LIMIT_MODEL_LAYERS, &interval));
  if (cJSON_IsArray(rotated) && cJSON_GetArraySize(rotated) < (int)d->n_layers)
    return td_fail(r->err, TD_ERR_MODEL, "%s: 'no_rope_layers' has %d entries for %" PRIu32 " layers",
                   r->file, cJSON_GetArraySize(rotated), d->n_layers);
  item = cJSON_IsArray(rotated) ? rotated->child : NULL;
  for (uint32_t layer = 0; layer < d->n_layers; layer++, item = item ? item->next : NULL) {
    if (item && !(cJSON_IsNumber(item) && (item->valuedouble == 0 || item->valuedouble == 1)))
      return td_fail(r->err, TD_ERR_MODEL, "%s: 'no_rope_layers' must be a list of 0 and 1", r->file);
    if (item ? item->valuedouble == 0 : (layer + 1) % interval == 0)
      td_desc_set_alt_rope(d, layer);
  }
  return TD_OK;
}

td_status td_config_read_rope(const td_config_reader *r, td_model_desc *d, td_rope_spec *alt)
{
  const cJSON *p, *scaling;
  TD_TRY(read_object(r, "rope_parameters", &p));
  TD_TRY(read_object(r, "rope_scaling", &scaling));
  if (!p || (scaling && scaling->child)) /* rope_scaling wins if both exist, as in transformers */
    p = scaling;
  if (r->family->rope_by_windows)
    return read_rope_by_windows(r, p, d, alt);
  TD_TRY(refuse_inner_objects(r, p));
  if (r->family->no_rope_layers_key)
    TD_TRY(read_no_rope_layers(r, d));
  for (uint32_t layer = 0; r->family->no_rope_without_window && layer < d->n_layers; layer++)
    if (td_model_layer_window(d, layer) == 0)
      td_desc_set_alt_rope(d, layer);
  return read_rope_of(r, p, d, &d->rope);
}
