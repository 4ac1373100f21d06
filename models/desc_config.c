/* The description out of a folder: config.json and generation_config.json, as transformers writes them
 * (before v5 rope_theta and rope_scaling, since v5 rope_parameters).
 *
 * A key that is missing means what transformers' class for that model_type takes it to mean. A key that asks
 * for another computation is refused by name: running the weights without it would give wrong answers
 * silently. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "models/desc.h"

#define CONFIG "config.json"
#define GENERATION "generation_config.json"

typedef struct family {
  const char *model_type, *architecture;
  uint32_t absent_head_dim, absent_window; /* where not width / heads and none */
  bool qkv_bias, attention_bias_key, mlp_bias_key, qk_norm;
  bool window, window_switch; /* honours sliding_window; only where use_sliding_window says so */
} family;

static const family families[] = {
    {.model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .attention_bias_key = true,
     .mlp_bias_key = true},
    {.model_type = "mistral", .architecture = "MistralForCausalLM", .window = true, .absent_window = 4096},
    {.model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .qkv_bias = true,
     .window = true,
     .window_switch = true},
    {.model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .absent_head_dim = 128,
     .attention_bias_key = true,
     .qk_norm = true,
     .window = true,
     .window_switch = true},
};

typedef struct config_reader {
  const cJSON *config;
  const char *file; /* for messages */
  const family *family;
  td_error *err;
} config_reader;

/* The JSON getters speak of requests; here a wrong value is the model's fault. */
static td_status as_model_error(const config_reader *r, td_status st)
{
  if (st != TD_ERR_REQUEST || !r->err)
    return st == TD_ERR_REQUEST ? TD_ERR_MODEL : st;
  r->err->code = TD_ERR_MODEL;
  r->err->param[0] = '\0';
  return td_error_prefix(r->err, "%s", r->file);
}

/* An absent key keeps *out; 0 there means that the key is required. */
static td_status read_u32(const config_reader *r, const char *key, td_limit_id limit, uint32_t *out)
{
  int64_t v = *out;
  bool present;
  TD_TRY(as_model_error(
      r, td_json_get_int64(r->config, key, 1, (int64_t)td_limit_max(limit), &v, &present, r->err)));
  if (!present && *out == 0)
    return td_fail(r->err, TD_ERR_MODEL, "%s: no '%s'", r->file, key);
  *out = (uint32_t)v;
  return TD_OK;
}

/* Absent keeps *out. */
static td_status read_double(const config_reader *r, const cJSON *object, const char *key, double *out)
{
  return as_model_error(r, td_json_get_double(object, key, -1e300, 1e300, out, NULL, r->err));
}

static td_status read_bool(const config_reader *r, const char *key, bool *out)
{
  return as_model_error(r, td_json_get_bool(r->config, key, out, NULL, r->err));
}

/* ---- which model ---- */

static const family *find_family(const char *model_type)
{
  for (size_t i = 0; i < sizeof families / sizeof *families; i++)
    if (strcmp(families[i].model_type, model_type) == 0)
      return &families[i];
  return NULL;
}

static td_status read_family(config_reader *r, td_model_desc *d)
{
  const char *model_type = NULL;
  TD_TRY(as_model_error(r, td_json_get_string(r->config, "model_type", &model_type, r->err)));
  if (!model_type)
    return td_fail(r->err, TD_ERR_MODEL, "%s: no 'model_type'", r->file);
  r->family = find_family(model_type);
  if (!r->family)
    return td_fail(r->err, TD_ERR_UNSUPPORTED,
                   "%s: model_type '%.100s' is not served; llama, mistral, qwen2 and qwen3 are", r->file,
                   model_type);
  snprintf(d->arch, sizeof d->arch, "%s", r->family->model_type);
  const cJSON *architectures = td_json_get(r->config, "architectures"), *a;
  cJSON_ArrayForEach(a, architectures)
  {
    if (!cJSON_IsString(a) || strcmp(a->valuestring, r->family->architecture) != 0)
      return td_fail(r->err, TD_ERR_UNSUPPORTED,
                     "%s: architecture '%.100s' of model_type '%s' is not served; %s is", r->file,
                     cJSON_IsString(a) ? a->valuestring : "?", model_type, r->family->architecture);
  }
  return TD_OK;
}

static bool is_unset(const cJSON *item)
{
  return item == NULL || cJSON_IsNull(item) || cJSON_IsFalse(item) ||
         (cJSON_IsNumber(item) && item->valuedouble == 0);
}

static td_status refuse_unknown_maths(const config_reader *r)
{
  static const char *const keys[] = {"quantization_config",
                                     "num_local_experts",
                                     "num_experts",
                                     "n_routed_experts",
                                     "num_experts_per_tok",
                                     "attn_logit_softcapping",
                                     "final_logit_softcapping",
                                     "logit_scale",
                                     "logits_scaling",
                                     "embedding_multiplier",
                                     "residual_multiplier",
                                     "attention_multiplier",
                                     "no_rope_layers",
                                     "clip_qkv",
                                     "use_qk_norm",
                                     "rope_interleave",
                                     "rope_interleaved",
                                     "alibi",
                                     "parallel_attn",
                                     "cross_attention_layers",
                                     "vision_config",
                                     "num_nextn_predict_layers",
                                     "dual_chunk_attention_config"};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (!is_unset(td_json_get(r->config, keys[i])))
      return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: '%s' is set: not served", r->file, keys[i]);
  const char *act = "silu";
  TD_TRY(as_model_error(r, td_json_get_string(r->config, "hidden_act", &act, r->err)));
  if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
    return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: hidden_act '%.60s' is not served; silu is", r->file, act);
  return TD_OK;
}

/* ---- sizes ---- */

static td_status read_sizes(const config_reader *r, td_model_desc *d)
{
  double eps = 1e-6;
  bool attention_bias = false;
  TD_TRY(read_u32(r, "num_hidden_layers", TD_LIMIT_MODEL_LAYERS, &d->n_layers));
  TD_TRY(read_u32(r, "hidden_size", TD_LIMIT_MODEL_WIDTH, &d->width));
  TD_TRY(read_u32(r, "intermediate_size", TD_LIMIT_MODEL_WIDTH, &d->ffn_width));
  TD_TRY(read_u32(r, "vocab_size", TD_LIMIT_MODEL_VOCAB, &d->vocab));
  TD_TRY(read_u32(r, "max_position_embeddings", TD_LIMIT_CONTEXT_TOKENS, &d->context_tokens));
  TD_TRY(read_u32(r, "num_attention_heads", TD_LIMIT_MODEL_HEADS, &d->n_heads));
  d->n_kv_heads = d->n_heads;
  TD_TRY(read_u32(r, "num_key_value_heads", TD_LIMIT_MODEL_HEADS, &d->n_kv_heads));
  d->head_dim = r->family->absent_head_dim ? r->family->absent_head_dim : d->width / d->n_heads;
  TD_TRY(read_u32(r, "head_dim", TD_LIMIT_MODEL_HEAD_DIM, &d->head_dim));
  d->rotary_dim = d->head_dim;
  TD_TRY(read_double(r, r->config, "rms_norm_eps", &eps));
  d->norm_eps = (float)eps;
  TD_TRY(read_bool(r, "tie_word_embeddings", &d->tied_embeddings));
  if (r->family->attention_bias_key)
    TD_TRY(read_bool(r, "attention_bias", &attention_bias));
  if (r->family->mlp_bias_key)
    TD_TRY(read_bool(r, "mlp_bias", &d->mlp_bias));
  d->qkv_bias = r->family->qkv_bias || attention_bias;
  d->o_bias = attention_bias;
  d->qk_norm = r->family->qk_norm;
  d->rope_style = TD_ROPE_HALVES;
  return TD_OK;
}

/* ---- sliding window: one for all layers, or none ---- */

/* layer_types, or the rule that it replaced: layers from max_window_layers on slide. */
static td_status count_sliding_layers(const config_reader *r, const td_model_desc *d, uint32_t *n_sliding)
{
  const cJSON *types = td_json_get(r->config, "layer_types"), *type;
  *n_sliding = 0;
  if (cJSON_IsArray(types)) {
    if (cJSON_GetArraySize(types) != (int)d->n_layers)
      return td_fail(r->err, TD_ERR_MODEL, "%s: 'layer_types' has %d entries for %" PRIu32 " layers", r->file,
                     cJSON_GetArraySize(types), d->n_layers);
    cJSON_ArrayForEach(type, types)
    {
      bool sliding = cJSON_IsString(type) && strcmp(type->valuestring, "sliding_attention") == 0;
      if (!sliding && !(cJSON_IsString(type) && strcmp(type->valuestring, "full_attention") == 0))
        return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: layer type '%.60s' is not served", r->file,
                       cJSON_IsString(type) ? type->valuestring : "?");
      *n_sliding += sliding;
    }
    return TD_OK;
  }
  int64_t first = r->family->window_switch ? 28 : 0; /* transformers' default for qwen2 and qwen3 */
  if (r->family->window_switch)
    TD_TRY(as_model_error(
        r, td_json_get_int64(r->config, "max_window_layers", 0, INT32_MAX, &first, NULL, r->err)));
  *n_sliding = first < d->n_layers ? d->n_layers - (uint32_t)first : 0;
  return TD_OK;
}

static td_status read_window(const config_reader *r, td_model_desc *d)
{
  const cJSON *item = td_json_get(r->config, "sliding_window");
  uint32_t window = r->family->absent_window ? r->family->absent_window : 4096, n_sliding;
  bool used = true;
  if (!r->family->window) {
    if (!is_unset(item))
      return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: 'sliding_window' in a model of type %s is not served",
                     r->file, d->arch);
    return TD_OK;
  }
  if (r->family->window_switch) {
    used = false;
    TD_TRY(read_bool(r, "use_sliding_window", &used));
  }
  if (!used || cJSON_IsNull(item))
    return TD_OK;
  TD_TRY(read_u32(r, "sliding_window", TD_LIMIT_CONTEXT_TOKENS, &window));
  TD_TRY(count_sliding_layers(r, d, &n_sliding));
  if (n_sliding != 0 && n_sliding != d->n_layers)
    return td_fail(r->err, TD_ERR_UNSUPPORTED,
                   "%s: 'sliding_window' applies to %" PRIu32 " of %" PRIu32
                   " layers: a mix of layers is not served",
                   r->file, n_sliding, d->n_layers);
  d->window_tokens = n_sliding ? window : 0;
  return TD_OK;
}

/* ---- rotary embedding ---- */

static td_status read_scaling(const config_reader *r, const cJSON *p, const td_model_desc *d,
                              td_rope_spec *rope)
{
  const char *type = "default";
  bool truncate = true, llama3;
  TD_TRY(as_model_error(r, td_json_get_string(p, "type", &type, r->err))); /* its older name */
  TD_TRY(as_model_error(r, td_json_get_string(p, "rope_type", &type, r->err)));
  if (strcmp(type, "default") == 0)
    return TD_OK;
  llama3 = strcmp(type, "llama3") == 0;
  if (strcmp(type, "linear") == 0)
    rope->kind = TD_ROPE_LINEAR;
  else if (llama3)
    rope->kind = TD_ROPE_LLAMA3;
  else if (strcmp(type, "yarn") == 0)
    rope->kind = TD_ROPE_YARN;
  else
    return td_fail(r->err, TD_ERR_UNSUPPORTED,
                   "%s: RoPE type '%.60s' is not served; default, linear, llama3 and yarn are", r->file,
                   type);
  rope->original_context = d->context_tokens;
  TD_TRY(read_double(r, p, "original_max_position_embeddings", &rope->original_context));
  TD_TRY(read_double(r, r->config, "original_max_position_embeddings", &rope->original_context));
  TD_TRY(read_double(r, p, "factor", &rope->factor));
  if (rope->factor == 0 && rope->kind == TD_ROPE_YARN && rope->original_context > 0)
    rope->factor = d->context_tokens / rope->original_context;
  TD_TRY(read_double(r, p, "low_freq_factor", &rope->low_freq));
  TD_TRY(read_double(r, p, "high_freq_factor", &rope->high_freq));
  TD_TRY(read_double(r, p, "beta_fast", &rope->beta_fast));
  TD_TRY(read_double(r, p, "beta_slow", &rope->beta_slow));
  TD_TRY(read_double(r, p, "mscale", &rope->mscale));
  TD_TRY(read_double(r, p, "mscale_all_dim", &rope->mscale_all));
  TD_TRY(read_double(r, p, "attention_factor", &rope->attn_factor));
  TD_TRY(as_model_error(r, td_json_get_bool(p, "truncate", &truncate, NULL, r->err)));
  rope->exact_range = !truncate;
  return TD_OK;
}

/* An object, or NULL where the key is absent or null. */
static td_status read_object(const config_reader *r, const char *key, const cJSON **out)
{
  *out = td_json_get(r->config, key);
  if (cJSON_IsNull(*out))
    *out = NULL;
  if (*out && !cJSON_IsObject(*out))
    return td_fail(r->err, TD_ERR_MODEL, "%s: '%s' must be an object or null", r->file, key);
  return TD_OK;
}

static td_status read_rope(const config_reader *r, const td_model_desc *d, td_rope_spec *rope)
{
  double partial = 1;
  const cJSON *p, *scaling, *item;
  TD_TRY(read_object(r, "rope_parameters", &p));
  TD_TRY(read_object(r, "rope_scaling", &scaling));
  p = p ? p : scaling;
  rope->theta = 10000;
  TD_TRY(read_double(r, r->config, "rope_theta", &rope->theta));
  TD_TRY(read_double(r, r->config, "partial_rotary_factor", &partial));
  if (p) {
    cJSON_ArrayForEach(item, p)
    {
      if (cJSON_IsObject(item))
        return td_fail(r->err, TD_ERR_UNSUPPORTED,
                       "%s: RoPE parameters of their own for '%.60s' are not served", r->file, item->string);
    }
    TD_TRY(read_double(r, p, "rope_theta", &rope->theta));
    TD_TRY(read_double(r, p, "partial_rotary_factor", &partial));
    TD_TRY(read_scaling(r, p, d, rope));
  }
  if (partial != 1)
    return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: 'partial_rotary_factor' %g is not served", r->file,
                   partial);
  return TD_OK;
}

/* ---- generation ---- */

static td_status read_end_tokens(const config_reader *r, td_model_desc *d)
{
  const cJSON *eos = td_json_get(r->config, "eos_token_id"), *one = cJSON_IsArray(eos) ? eos->child : eos;
  char source[64];
  snprintf(source, sizeof source, "%s: eos_token_id", r->file);
  if (cJSON_IsNull(eos))
    return TD_OK;
  for (; one; one = cJSON_IsArray(eos) ? one->next : NULL) {
    if (!cJSON_IsNumber(one) || one->valuedouble != floor(one->valuedouble) || one->valuedouble < 0 ||
        one->valuedouble > td_limits[TD_LIMIT_MODEL_VOCAB].max)
      return td_fail(r->err, TD_ERR_MODEL, "%s must be a token id or a list of them", source);
    TD_TRY(td_desc_add_eos(d, (uint64_t)one->valuedouble, source, r->err));
  }
  return TD_OK;
}

/* config.json's, beside generation_config.json's. Where that one names some, it is the one that is used
 * elsewhere: what is wrong here then keeps nobody from serving the model. */
static td_status read_more_end_tokens(const config_reader *r, td_model_desc *d)
{
  uint32_t n_before = d->n_eos_ids;
  td_error why;
  config_reader own = *r;
  if (n_before == 0)
    return read_end_tokens(r, d);
  own.err = &why;
  if (read_end_tokens(&own, d) == TD_OK)
    return TD_OK;
  d->n_eos_ids = n_before;
  td_warn("%s; it is left out, as " GENERATION " names tokens that end answers", why.message);
  return TD_OK;
}

static td_status read_default(const config_reader *r, const char *key, td_limit_id limit, float *out)
{
  double v = (double)*out;
  TD_TRY(as_model_error(
      r, td_json_get_double(r->config, key, td_limits[limit].min, td_limits[limit].max, &v, NULL, r->err)));
  *out = (float)v;
  return TD_OK;
}

/* Keys that change which token comes next, and the number that means off; a list is off if it is empty. */
static void note_unserved(const cJSON *generation, td_model_desc *d)
{
  static const struct {
    const char *key;
    double off;
  } keys[] = {{"repetition_penalty", 1},
              {"no_repeat_ngram_size", 0},
              {"encoder_repetition_penalty", 1},
              {"encoder_no_repeat_ngram_size", 0},
              {"presence_penalty", 0},
              {"frequency_penalty", 0},
              {"typical_p", 1},
              {"epsilon_cutoff", 0},
              {"eta_cutoff", 0},
              {"top_h", 1},
              {"penalty_alpha", 0},
              {"guidance_scale", 1},
              {"num_beams", 1},
              {"min_length", 0},
              {"min_new_tokens", 0},
              {"max_new_tokens", 0},
              {"bad_words_ids", 0},
              {"suppress_tokens", 0},
              {"begin_suppress_tokens", 0},
              {"sequence_bias", 0},
              {"forced_bos_token_id", -1},
              {"forced_eos_token_id", -1},
              {"exponential_decay_length_penalty", 0},
              {"stop_strings", 0},
              {"constraints", 0},
              {"force_words_ids", 0},
              {"watermarking_config", 0},
              {"dola_layers", 0}};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    const cJSON *v = td_json_get(generation, keys[i].key);
    bool list = cJSON_IsArray(v) || cJSON_IsObject(v);
    if (v && !cJSON_IsNull(v) && !cJSON_IsFalse(v) && !(list && !v->child) &&
        !(cJSON_IsNumber(v) && v->valuedouble == keys[i].off))
      td_desc_note_unserved(d, keys[i].key);
  }
}

static td_status read_generation(config_reader *r, const cJSON *generation, td_model_desc *d)
{
  const cJSON *config = r->config;
  int64_t top_k = d->default_top_k;
  r->config = generation;
  r->file = GENERATION;
  if (generation) {
    TD_TRY(read_end_tokens(r, d));
    note_unserved(generation, d);
    TD_TRY(read_default(r, "temperature", TD_LIMIT_TEMPERATURE, &d->default_temperature));
    TD_TRY(read_default(r, "top_p", TD_LIMIT_TOP_P, &d->default_top_p));
    TD_TRY(read_default(r, "min_p", TD_LIMIT_MIN_P, &d->default_min_p));
    TD_TRY(as_model_error(r, td_json_get_int64(generation, "top_k", -1, (int64_t)td_limit_max(TD_LIMIT_TOP_K),
                                               &top_k, NULL, r->err)));
    d->default_top_k = (int32_t)top_k;
  }
  r->config = config;
  r->file = CONFIG;
  return read_more_end_tokens(r, d);
}

td_status td_desc_read_config(const td_model_files *files, td_model_desc *d, td_rope_spec *rope,
                              td_error *err)
{
  config_reader r = {.config = td_model_files_config(files), .file = CONFIG, .err = err};
  TD_TRY(read_family(&r, d));
  TD_TRY(refuse_unknown_maths(&r));
  TD_TRY(read_sizes(&r, d));
  TD_TRY(read_window(&r, d));
  TD_TRY(read_rope(&r, d, rope));
  return read_generation(&r, td_model_files_generation_config(files), d);
}
