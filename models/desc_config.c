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

/* Keys that multiply: of which family. */
typedef enum multipliers { NO_MULTIPLIERS, GRANITE, MINICPM, COHERE } multipliers;
/* Which layers have the window. */
typedef enum windows {
  NO_WINDOW,
  WINDOW_OF_ALL,
  WINDOW_SWITCH, /* only where use_sliding_window says so, and from max_window_layers on */
  WINDOW_OF_SOME /* all but each absent_pattern-th, if layer_types does not say */
} windows;

/* A row: how transformers' class of that model_type differs from Llama. absent_*: what a missing key means
 * where that is not Llama's meaning. */
typedef struct family {
  const char *model_type, *architecture;
  uint32_t absent_head_dim, absent_window, absent_pattern;
  double absent_theta, absent_eps;
  bool absent_tied;
  bool qkv_bias, attention_bias_key, mlp_bias_key, qk_norm, wide_qk_norm, fused, layer_norm;
  bool rope_pairs, partial_rotary, mrope;
  bool nope_layers;     /* no_rope_layers, or each fourth layer is not rotated */
  bool nope_full;       /* layers without the window are not rotated */
  bool rope_by_windows; /* layers with the window have frequencies of their own */
  bool is_wrapper;      /* the description of a text model and of others in one object */
  td_block_form form;
  multipliers by;
  windows window;
} family;

static const family families[] = {
    {.model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .attention_bias_key = true,
     .mlp_bias_key = true},
    {.model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .window = WINDOW_OF_ALL,
     .absent_window = 4096},
    {.model_type = "ministral",
     .architecture = "MinistralForCausalLM",
     .window = WINDOW_OF_ALL,
     .absent_window = 4096},
    {.model_type = "qwen2", .architecture = "Qwen2ForCausalLM", .qkv_bias = true, .window = WINDOW_SWITCH},
    {.model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .absent_head_dim = 128,
     .attention_bias_key = true,
     .qk_norm = true,
     .window = WINDOW_SWITCH},
    {.model_type = "phi3",
     .architecture = "Phi3ForCausalLM",
     .absent_eps = 1e-5,
     .fused = true,
     .partial_rotary = true,
     .window = WINDOW_OF_ALL},
    {.model_type = "granite",
     .architecture = "GraniteForCausalLM",
     .attention_bias_key = true,
     .mlp_bias_key = true,
     .by = GRANITE},
    {.model_type = "minicpm",
     .architecture = "MiniCPMForCausalLM",
     .attention_bias_key = true,
     .absent_tied = true,
     .by = MINICPM},
    {.model_type = "smollm3",
     .architecture = "SmolLM3ForCausalLM",
     .absent_theta = 2e6,
     .absent_tied = true,
     .attention_bias_key = true,
     .mlp_bias_key = true,
     .nope_layers = true,
     .window = WINDOW_SWITCH},
    {.model_type = "olmo2",
     .architecture = "Olmo2ForCausalLM",
     .absent_eps = 1e-5,
     .attention_bias_key = true,
     .qk_norm = true,
     .wide_qk_norm = true,
     .form = TD_BLOCK_POST_NORM},
    {.model_type = "olmo3",
     .architecture = "Olmo3ForCausalLM",
     .absent_eps = 1e-5,
     .absent_theta = 5e5,
     .absent_window = 4096,
     .absent_pattern = 4,
     .attention_bias_key = true,
     .qk_norm = true,
     .wide_qk_norm = true,
     .rope_by_windows = true,
     .form = TD_BLOCK_POST_NORM,
     .window = WINDOW_OF_SOME},
    {.model_type = "cohere",
     .architecture = "CohereForCausalLM",
     .absent_eps = 1e-5,
     .absent_theta = 5e5,
     .absent_tied = true,
     .attention_bias_key = true,
     .layer_norm = true,
     .rope_pairs = true,
     .form = TD_BLOCK_PARALLEL,
     .by = COHERE},
    {.model_type = "cohere2",
     .architecture = "Cohere2ForCausalLM",
     .absent_eps = 1e-5,
     .absent_tied = true,
     .absent_window = 4096,
     .absent_pattern = 4,
     .attention_bias_key = true,
     .layer_norm = true,
     .rope_pairs = true,
     .nope_full = true,
     .form = TD_BLOCK_PARALLEL,
     .by = COHERE,
     .window = WINDOW_OF_SOME},
    /* Vision wrappers' text parts. Rotation by three kinds of positions (mrope) is the plain one for text. */
    {.model_type = "qwen2_vl",
     .absent_theta = 1e6,
     .architecture = "Qwen2VLForConditionalGeneration",
     .qkv_bias = true,
     .mrope = true,
     .is_wrapper = true,
     .window = WINDOW_SWITCH},
    {.model_type = "qwen2_5_vl",
     .absent_theta = 1e6,
     .architecture = "Qwen2_5_VLForConditionalGeneration",
     .qkv_bias = true,
     .mrope = true,
     .is_wrapper = true,
     .window = WINDOW_SWITCH},
    {.model_type = "qwen2_vl_text",
     .absent_theta = 1e6,
     .qkv_bias = true,
     .mrope = true,
     .window = WINDOW_SWITCH},
    {.model_type = "qwen2_5_vl_text",
     .absent_theta = 1e6,
     .qkv_bias = true,
     .mrope = true,
     .window = WINDOW_SWITCH},
    {.model_type = "qwen3_vl_text",
     .absent_head_dim = 128,
     .absent_theta = 5e5,
     .attention_bias_key = true,
     .qk_norm = true,
     .mrope = true},
};

typedef struct config_reader {
  const cJSON *config;  /* of the text model */
  const cJSON *wrapper; /* the object that has it as text_config, or NULL */
  const td_model_files *files;
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

static td_status check_architectures(const config_reader *r)
{
  const cJSON *architectures = td_json_get(r->config, "architectures"), *a;
  cJSON_ArrayForEach(a, architectures)
  {
    if (!cJSON_IsString(a) || !r->family->architecture ||
        strcmp(a->valuestring, r->family->architecture) != 0)
      return td_fail(r->err, TD_ERR_UNSUPPORTED,
                     "%s: architecture '%.100s' of model_type '%s' is not served; %s is", r->file,
                     cJSON_IsString(a) ? a->valuestring : "?", r->family->model_type,
                     r->family->architecture ? r->family->architecture : "a wrapper's text part");
  }
  return TD_OK;
}

static td_status refuse_family(const config_reader *r, const char *model_type)
{
  char served[512] = "";
  size_t n = 0;
  for (size_t i = 0; i < sizeof families / sizeof *families && n < sizeof served; i++)
    n += (size_t)snprintf(served + n, sizeof served - n, "%s%s", i ? ", " : "", families[i].model_type);
  return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: model_type '%.100s' is not served; these are: %s", r->file,
                 model_type, served);
}

/* A wrapper's text model is described by its text_config, and its tensors stand beside others'. */
static void unwrap(config_reader *r)
{
  const cJSON *text = td_json_get(r->config, "text_config");
  const char *model_type = cJSON_GetStringValue(td_json_get(text, "model_type"));
  if (!cJSON_IsObject(text) || !model_type)
    return;
  r->wrapper = r->config;
  r->config = text;
}

static void find_names(const config_reader *r, td_model_desc *d)
{
  d->is_wrapped = r->wrapper || r->family->is_wrapper;
  if (td_model_files_find(r->files, "model.language_model.embed_tokens.weight"))
    d->names = TD_NAMES_HF_TEXT;
  else if (td_model_files_find(r->files, "language_model.model.embed_tokens.weight"))
    d->names = TD_NAMES_HF_TEXT_OLD;
  if (!d->is_wrapped)
    d->names = TD_NAMES_HF;
}

static td_status read_family(config_reader *r, td_model_desc *d)
{
  const char *model_type = NULL;
  unwrap(r);
  TD_TRY(as_model_error(r, td_json_get_string(r->config, "model_type", &model_type, r->err)));
  if (!model_type)
    return td_fail(r->err, TD_ERR_MODEL, "%s: no 'model_type'", r->file);
  r->family = find_family(model_type);
  if (!r->family)
    return refuse_family(r, model_type);
  snprintf(d->arch, sizeof d->arch, "%s", r->family->model_type);
  find_names(r, d);
  return r->wrapper ? TD_OK : check_architectures(r);
}

static bool is_unset(const cJSON *item)
{
  return item == NULL || cJSON_IsNull(item) || cJSON_IsFalse(item) ||
         (cJSON_IsNumber(item) && item->valuedouble == 0);
}

static td_status refuse_unknown_maths(const config_reader *r)
{
  static const struct {
    const char *key;
    multipliers served_by;
  } keys[] = {{"quantization_config", NO_MULTIPLIERS},
              {"num_local_experts", NO_MULTIPLIERS},
              {"num_experts", NO_MULTIPLIERS},
              {"n_routed_experts", NO_MULTIPLIERS},
              {"num_experts_per_tok", NO_MULTIPLIERS},
              {"attn_logit_softcapping", NO_MULTIPLIERS},
              {"final_logit_softcapping", NO_MULTIPLIERS},
              {"logit_scale", COHERE},
              {"logits_scaling", GRANITE},
              {"embedding_multiplier", GRANITE},
              {"residual_multiplier", GRANITE},
              {"attention_multiplier", GRANITE},
              {"clip_qkv", NO_MULTIPLIERS},
              {"use_qk_norm", NO_MULTIPLIERS},
              {"rope_interleave", NO_MULTIPLIERS},
              {"rope_interleaved", NO_MULTIPLIERS},
              {"alibi", NO_MULTIPLIERS},
              {"parallel_attn", NO_MULTIPLIERS},
              {"cross_attention_layers", NO_MULTIPLIERS},
              {"num_nextn_predict_layers", NO_MULTIPLIERS},
              {"sparse_config", NO_MULTIPLIERS},
              {"dual_chunk_attention_config", NO_MULTIPLIERS}};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (!is_unset(td_json_get(r->config, keys[i].key)) &&
        (keys[i].served_by == NO_MULTIPLIERS || keys[i].served_by != r->family->by))
      return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: '%s' is set: not served", r->file, keys[i].key);
  if (!r->family->nope_layers && !is_unset(td_json_get(r->config, "no_rope_layers")))
    return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: 'no_rope_layers' is set: not served", r->file);
  if (!r->family->is_wrapper && !is_unset(td_json_get(r->config, "vision_config")))
    return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: 'vision_config' is set: not served", r->file);
  if (r->wrapper && !is_unset(td_json_get(r->wrapper, "quantization_config")))
    return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: 'quantization_config' is set: not served", r->file);
  const char *act = "silu";
  TD_TRY(as_model_error(r, td_json_get_string(r->config, "hidden_act", &act, r->err)));
  if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
    return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: hidden_act '%.60s' is not served; silu is", r->file, act);
  return TD_OK;
}

/* ---- sizes ---- */

/* Some wrappers leave out what is as transformers' class of the text model has it. */
static void assume_sizes(const config_reader *r, td_model_desc *d)
{
  bool mistral = strcmp(r->family->model_type, "mistral") == 0;
  if (!r->wrapper || (!mistral && strcmp(r->family->model_type, "llama") != 0))
    return;
  d->n_layers = 32;
  d->width = 4096;
  d->ffn_width = mistral ? 14336 : 11008;
  d->n_heads = 32;
  d->n_kv_heads = mistral ? 8 : 0;
  d->vocab = 32000;
  d->context_tokens = mistral ? 131072 : 2048;
}

/* A wrapper's class has a default of its own: there the files tell. */
static td_status read_tied(const config_reader *r, td_model_desc *d)
{
  config_reader outer = *r;
  d->tied_embeddings = r->family->absent_tied;
  if (d->is_wrapped)
    d->tied_embeddings = !td_model_files_find(r->files, "lm_head.weight") &&
                         !td_model_files_find(r->files, "language_model.lm_head.weight");
  outer.config = r->wrapper;
  if (r->wrapper)
    TD_TRY(read_bool(&outer, "tie_word_embeddings", &d->tied_embeddings));
  return read_bool(r, "tie_word_embeddings", &d->tied_embeddings);
}

static td_status read_form(const config_reader *r, td_model_desc *d)
{
  const family *f = r->family;
  bool attention_bias = false;
  if (f->attention_bias_key)
    TD_TRY(read_bool(r, "attention_bias", &attention_bias));
  if (f->mlp_bias_key)
    TD_TRY(read_bool(r, "mlp_bias", &d->mlp_bias));
  d->qkv_bias = f->qkv_bias || attention_bias;
  d->o_bias = attention_bias;
  d->qk_norm = f->qk_norm;
  d->wide_qk_norm = f->wide_qk_norm;
  d->fused_qkv = d->fused_gate_up = f->fused;
  d->layer_norm = f->layer_norm;
  d->block_form = f->form;
  d->rope_style = f->rope_pairs ? TD_ROPE_PAIRS : TD_ROPE_HALVES;
  return TD_OK;
}

static td_status read_sizes(const config_reader *r, td_model_desc *d)
{
  double eps = r->family->absent_eps > 0 ? r->family->absent_eps : 1e-6;
  assume_sizes(r, d);
  TD_TRY(read_u32(r, "num_hidden_layers", TD_LIMIT_MODEL_LAYERS, &d->n_layers));
  TD_TRY(read_u32(r, "hidden_size", TD_LIMIT_MODEL_WIDTH, &d->width));
  TD_TRY(read_u32(r, "intermediate_size", TD_LIMIT_MODEL_WIDTH, &d->ffn_width));
  TD_TRY(read_u32(r, "vocab_size", TD_LIMIT_MODEL_VOCAB, &d->vocab));
  TD_TRY(read_u32(r, "max_position_embeddings", TD_LIMIT_CONTEXT_TOKENS, &d->context_tokens));
  TD_TRY(read_u32(r, "num_attention_heads", TD_LIMIT_MODEL_HEADS, &d->n_heads));
  d->n_kv_heads = d->n_kv_heads ? d->n_kv_heads : d->n_heads;
  TD_TRY(read_u32(r, "num_key_value_heads", TD_LIMIT_MODEL_HEADS, &d->n_kv_heads));
  d->head_dim = r->family->absent_head_dim ? r->family->absent_head_dim : d->width / d->n_heads;
  TD_TRY(read_u32(r, "head_dim", TD_LIMIT_MODEL_HEAD_DIM, &d->head_dim));
  d->rotary_dim = d->head_dim;
  TD_TRY(read_double(r, r->config, r->family->layer_norm ? "layer_norm_eps" : "rms_norm_eps", &eps));
  d->norm_eps = (float)eps;
  TD_TRY(read_tied(r, d));
  return read_form(r, d);
}

/* A key of one family that multiplies; 1 where it is absent. */
static td_status read_scale(const config_reader *r, const char *key, double absent, double *out)
{
  *out = absent;
  TD_TRY(read_double(r, r->config, key, out));
  return *out > 0 ? TD_OK
                  : td_fail(r->err, TD_ERR_MODEL, "%s: '%s' must be above 0, not %g", r->file, key, *out);
}

static td_status read_multipliers(const config_reader *r, td_model_desc *d)
{
  double embed = 1, residual = 1, attention = 0, logit = 1, base = 0;
  switch (r->family->by) {
  case GRANITE:
    TD_TRY(read_scale(r, "embedding_multiplier", 1, &embed));
    TD_TRY(read_scale(r, "residual_multiplier", 1, &residual));
    TD_TRY(read_scale(r, "attention_multiplier", 1, &attention));
    TD_TRY(read_scale(r, "logits_scaling", 1, &logit));
    logit = 1 / logit;
    break;
  case MINICPM:
    TD_TRY(read_scale(r, "scale_emb", 1, &embed));
    TD_TRY(read_scale(r, "scale_depth", 1, &residual));
    TD_TRY(read_scale(r, "dim_model_base", 1, &base));
    residual /= sqrt(d->n_layers);
    logit = base / d->width;
    break;
  case COHERE: TD_TRY(read_scale(r, "logit_scale", 0.0625, &logit)); break;
  case NO_MULTIPLIERS: break;
  }
  d->embed_scale = (float)embed;
  d->residual_scale = (float)residual;
  d->attn_scale = (float)attention;
  d->logit_scale = (float)logit;
  return TD_OK;
}

/* ---- sliding window: of all layers, or of some ---- */

/* layer_types, or the rule that it replaced: layers from max_window_layers on slide, or all but each n-th. */
static td_status read_sliding_layers(const config_reader *r, td_model_desc *d)
{
  const cJSON *types = td_json_get(r->config, "layer_types"), *type;
  uint32_t layer = 0, pattern = r->family->absent_pattern;
  int64_t first = r->family->window == WINDOW_SWITCH ? 28 : 0; /* transformers' default for qwen2 and qwen3 */
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
      td_desc_set_window(d, layer++, sliding);
    }
    return TD_OK;
  }
  if (r->family->nope_layers)
    return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: 'use_sliding_window' without 'layer_types' is not served",
                   r->file);
  if (pattern > 0)
    TD_TRY(read_u32(r, "sliding_window_pattern", TD_LIMIT_MODEL_LAYERS, &pattern));
  if (r->family->window == WINDOW_SWITCH)
    TD_TRY(as_model_error(
        r, td_json_get_int64(r->config, "max_window_layers", 0, INT32_MAX, &first, NULL, r->err)));
  for (; layer < d->n_layers; layer++)
    td_desc_set_window(d, layer, pattern > 0 ? (layer + 1) % pattern != 0 : layer >= first);
  return TD_OK;
}

static td_status read_window(const config_reader *r, td_model_desc *d)
{
  const cJSON *item = td_json_get(r->config, "sliding_window");
  uint32_t window = r->family->absent_window;
  bool used = r->family->window != WINDOW_SWITCH;
  if (r->family->window == NO_WINDOW) {
    if (!is_unset(item) && !r->family->mrope)
      return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: 'sliding_window' in a model of type %s is not served",
                     r->file, d->arch);
    return TD_OK;
  }
  if (!used) {
    window = 4096;
    TD_TRY(read_bool(r, "use_sliding_window", &used));
  }
  if (!used || cJSON_IsNull(item) || (!item && window == 0))
    return TD_OK;
  TD_TRY(read_u32(r, "sliding_window", TD_LIMIT_CONTEXT_TOKENS, &window));
  TD_TRY(read_sliding_layers(r, d));
  for (uint32_t layer = 0; layer < d->n_layers; layer++)
    if (!(d->no_window[layer / 64] >> layer % 64 & 1))
      d->window_tokens = window; /* stays 0 where no layer slides */
  return TD_OK;
}

/* ---- rotary embedding ---- */

static td_status read_divisors(const config_reader *r, const cJSON *p, const char *key, uint32_t n,
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

static td_status read_scaling_kind(const config_reader *r, const cJSON *p, td_rope_spec *rope)
{
  static const struct {
    const char *name;
    td_rope_kind kind;
  } kinds[] = {{"default", TD_ROPE_PLAIN}, {"linear", TD_ROPE_LINEAR},     {"llama3", TD_ROPE_LLAMA3},
               {"yarn", TD_ROPE_YARN},     {"longrope", TD_ROPE_LONGROPE}, {"dynamic", TD_ROPE_DYNAMIC}};
  const char *type = "default";
  TD_TRY(as_model_error(r, td_json_get_string(p, "type", &type, r->err))); /* its older name */
  TD_TRY(as_model_error(r, td_json_get_string(p, "rope_type", &type, r->err)));
  if (r->family->mrope && strcmp(type, "mrope") == 0)
    type = "default";
  if (r->family->partial_rotary && (strcmp(type, "su") == 0 || strcmp(type, "yarn") == 0))
    type = "longrope"; /* as Phi-3's first files called it */
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

/* d->rotary_dim is set. */
static td_status read_scaling(const config_reader *r, const cJSON *p, const td_model_desc *d,
                              td_rope_spec *rope)
{
  bool truncate = true;
  TD_TRY(read_scaling_kind(r, p, rope));
  if (rope->kind == TD_ROPE_PLAIN)
    return TD_OK;
  if (!is_unset(td_json_get(p, "alpha")))
    return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: 'alpha' of RoPE scaling is not served", r->file);
  rope->original_context = d->context_tokens;
  if (rope->kind != TD_ROPE_DYNAMIC) { /* which transformers scales from max_position_embeddings on */
    TD_TRY(read_double(r, p, "original_max_position_embeddings", &rope->original_context));
    TD_TRY(read_double(r, r->config, "original_max_position_embeddings", &rope->original_context));
  }
  TD_TRY(read_double(r, p, "factor", &rope->factor));
  if (rope->factor == 0 && (rope->kind == TD_ROPE_YARN || rope->kind == TD_ROPE_LONGROPE) &&
      rope->original_context > 0)
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
  if (rope->kind != TD_ROPE_LONGROPE)
    return TD_OK;
  TD_TRY(read_divisors(r, p, "short_factor", d->rotary_dim / 2, rope->divisors));
  return read_divisors(r, p, "long_factor", d->rotary_dim / 2, rope->long_divisors);
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

/* p: parameters of all layers, or of one kind of them; NULL: nothing is said. */
static td_status read_rope_of(const config_reader *r, const cJSON *p, td_model_desc *d, td_rope_spec *rope)
{
  double partial = 1;
  rope->kind = TD_ROPE_PLAIN;
  rope->theta = r->family->absent_theta > 0 ? r->family->absent_theta : 10000;
  TD_TRY(read_double(r, r->config, "rope_theta", &rope->theta));
  TD_TRY(read_double(r, r->config, "partial_rotary_factor", &partial));
  if (p) {
    TD_TRY(read_double(r, p, "rope_theta", &rope->theta));
    TD_TRY(read_double(r, p, "partial_rotary_factor", &partial));
  }
  if (partial != 1 && !(r->family->partial_rotary && partial > 0 && partial < 1))
    return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: 'partial_rotary_factor' %g is not served", r->file,
                   partial);
  d->rotary_dim = (uint32_t)(d->head_dim * partial);
  return p ? read_scaling(r, p, d, rope) : TD_OK;
}

static td_status refuse_inner_objects(const config_reader *r, const cJSON *p)
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

/* Layers with the window have plain frequencies, and what is said of scaling is meant for the others; or
 * each kind has an object of its own. */
static td_status read_rope_by_windows(const config_reader *r, const cJSON *p, td_model_desc *d,
                                      td_rope_spec *other)
{
  const cJSON *sliding = td_json_get(p, "sliding_attention"), *full = td_json_get(p, "full_attention");
  bool each = cJSON_IsObject(sliding) || cJSON_IsObject(full);
  TD_TRY(read_rope_of(r, each ? cJSON_IsObject(sliding) ? sliding : NULL : NULL, d, other));
  for (uint32_t layer = 0; layer < d->n_layers; layer++)
    if (td_model_layer_window(d, layer) > 0)
      td_desc_set_other_rope(d, layer);
  p = each ? cJSON_IsObject(full) ? full : NULL : p;
  TD_TRY(refuse_inner_objects(r, p));
  return read_rope_of(r, p, d, &d->rope);
}

/* Layers that are not rotated. */
static td_status read_nope_layers(const config_reader *r, td_model_desc *d)
{
  const cJSON *rotated = td_json_get(r->config, "no_rope_layers"), *item = NULL;
  uint32_t interval = 4;
  TD_TRY(read_u32(r, "no_rope_layer_interval", TD_LIMIT_MODEL_LAYERS, &interval));
  if (cJSON_IsArray(rotated) && cJSON_GetArraySize(rotated) < (int)d->n_layers)
    return td_fail(r->err, TD_ERR_MODEL, "%s: 'no_rope_layers' has %d entries for %" PRIu32 " layers",
                   r->file, cJSON_GetArraySize(rotated), d->n_layers);
  item = cJSON_IsArray(rotated) ? rotated->child : NULL;
  for (uint32_t layer = 0; layer < d->n_layers; layer++, item = item ? item->next : NULL) {
    if (item && !(cJSON_IsNumber(item) && (item->valuedouble == 0 || item->valuedouble == 1)))
      return td_fail(r->err, TD_ERR_MODEL, "%s: 'no_rope_layers' must be a list of 0 and 1", r->file);
    if (item ? item->valuedouble == 0 : (layer + 1) % interval == 0)
      td_desc_set_other_rope(d, layer);
  }
  return TD_OK;
}

static td_status read_rope(const config_reader *r, td_model_desc *d, td_rope_spec *other)
{
  const cJSON *p, *scaling;
  TD_TRY(read_object(r, "rope_parameters", &p));
  TD_TRY(read_object(r, "rope_scaling", &scaling));
  p = p ? p : scaling;
  if (r->family->rope_by_windows)
    return read_rope_by_windows(r, p, d, other);
  TD_TRY(refuse_inner_objects(r, p));
  if (r->family->nope_layers)
    TD_TRY(read_nope_layers(r, d));
  for (uint32_t layer = 0; r->family->nope_full && layer < d->n_layers; layer++)
    if (td_model_layer_window(d, layer) == 0)
      td_desc_set_other_rope(d, layer);
  return read_rope_of(r, p, d, &d->rope);
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
  } keys[] = {{"no_repeat_ngram_size", 0},
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
    TD_TRY(
        read_default(r, "repetition_penalty", TD_LIMIT_REPETITION_PENALTY, &d->default_repetition_penalty));
    TD_TRY(as_model_error(r, td_json_get_int64(generation, "top_k", -1, (int64_t)td_limit_max(TD_LIMIT_TOP_K),
                                               &top_k, NULL, r->err)));
    d->default_top_k = (int32_t)top_k;
  }
  r->config = config;
  r->file = CONFIG;
  return read_more_end_tokens(r, d);
}

td_status td_desc_read_config(const td_model_files *files, td_model_desc *d, td_rope_spec *other,
                              td_error *err)
{
  config_reader r = {.config = td_model_files_config(files), .files = files, .file = CONFIG, .err = err};
  TD_TRY(read_family(&r, d));
  TD_TRY(refuse_unknown_maths(&r));
  TD_TRY(read_sizes(&r, d));
  TD_TRY(read_multipliers(&r, d));
  TD_TRY(read_window(&r, d));
  TD_TRY(read_rope(&r, d, other));
  return read_generation(&r, td_model_files_generation_config(files), d);
}
