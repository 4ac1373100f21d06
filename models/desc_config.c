/* Reads the description from a folder's config.json, as transformers writes it: families, sizes, factors and
 * windows. Versions before v5 write rope_theta and rope_scaling, later ones rope_parameters;
 * desc_config_rope.c reads both. desc_config_generation.c reads generation_config.json.
 *
 * A missing key means what transformers' class for that model_type takes it to mean. A key that asks for
 * another computation is refused by name: running the weights without it would silently give wrong
 * answers. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/desc_config.h"

static const td_config_family families[] = {
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
     .multipliers = GRANITE},
    {.model_type = "minicpm",
     .architecture = "MiniCPMForCausalLM",
     .attention_bias_key = true,
     .absent_tied = true,
     .multipliers = MINICPM},
    {.model_type = "smollm3",
     .architecture = "SmolLM3ForCausalLM",
     .absent_theta = 2e6,
     .absent_tied = true,
     .attention_bias_key = true,
     .mlp_bias_key = true,
     .no_rope_layers_key = true,
     .window = WINDOW_SWITCH},
    {.model_type = "olmo2",
     .architecture = "Olmo2ForCausalLM",
     .absent_eps = 1e-5,
     .attention_bias_key = true,
     .qk_norm = true,
     .wide_qk_norm = true,
     .block_form = TD_BLOCK_POST_NORM},
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
     .block_form = TD_BLOCK_POST_NORM,
     .window = WINDOW_OF_SOME},
    {.model_type = "cohere",
     .architecture = "CohereForCausalLM",
     .absent_eps = 1e-5,
     .absent_theta = 5e5,
     .absent_tied = true,
     .attention_bias_key = true,
     .layer_norm = true,
     .rope_pairs = true,
     .block_form = TD_BLOCK_PARALLEL,
     .multipliers = COHERE},
    {.model_type = "cohere2",
     .architecture = "Cohere2ForCausalLM",
     .absent_eps = 1e-5,
     .absent_tied = true,
     .absent_window = 4096,
     .absent_pattern = 4,
     .attention_bias_key = true,
     .layer_norm = true,
     .rope_pairs = true,
     .no_rope_without_window = true,
     .block_form = TD_BLOCK_PARALLEL,
     .multipliers = COHERE,
     .window = WINDOW_OF_SOME},
    /* Text parts of vision wrappers. Rotation by three kinds of positions (mrope) equals plain rotation for
     * text. */
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

td_status td_config_as_model_error(const td_config_reader *r, td_status st)
{
  if (st != TD_ERR_REQUEST || !r->err)
    return st == TD_ERR_REQUEST ? TD_ERR_MODEL : st;
  r->err->code = TD_ERR_MODEL;
  r->err->param[0] = '\0';
  return td_error_prefix(r->err, "%s", r->file);
}

td_status td_config_read_u32(const td_config_reader *r, const char *key, td_limit_id limit, uint32_t *out)
{
  int64_t v = *out;
  bool present;
  TD_TRY(td_config_as_model_error(
      r, td_json_get_int64(r->config, key, 1, (int64_t)td_limit_max(limit), &v, &present, r->err)));
  if (!present && *out == 0)
    return td_fail(r->err, TD_ERR_MODEL, "%s: no '%s'", r->file, key);
  *out = (uint32_t)v;
  return TD_OK;
}

td_status td_config_read_double(const td_config_reader *r, const cJSON *object, const char *key, double *out)
{
  return td_config_as_model_error(r, td_json_get_double(object, key, -1e300, 1e300, out, NULL, r->err));
}

static td_status read_bool(const td_config_reader *r, const char *key, bool *out)
{
  return td_config_as_model_error(r, td_json_get_bool(r->config, key, out, NULL, r->err));
}

bool td_config_is_unset(const cJSON *item)
{
  return item == NULL || cJSON_IsNull(item) || cJSON_IsFalse(item) ||
         (cJSON_IsNumber(item) && item->valuedouble == 0);
}

/* ---- which model ---- */

static const td_config_family *find_family(const char *model_type)
{
  for (size_t i = 0; i < sizeof families / sizeof *families; i++)
    if (strcmp(families[i].model_type, model_type) == 0)
      return &families[i];
  return NULL;
}

static td_status check_architectures(const td_config_reader *r)
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

static td_status refuse_family(const td_config_reader *r, const char *model_type)
{
  char served[512] = "";
  size_t n = 0;
  for (size_t i = 0; i < sizeof families / sizeof *families && n < sizeof served; i++)
    n += (size_t)snprintf(served + n, sizeof served - n, "%s%s", i ? ", " : "", families[i].model_type);
  return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: model_type '%.100s' is not served; these are: %s", r->file,
                 model_type, served);
}

/* The text_config of a wrapper describes its text model, whose tensors are stored next to those of other
 * parts. */
static void unwrap(td_config_reader *r)
{
  const cJSON *text = td_json_get(r->config, "text_config");
  const char *model_type = cJSON_GetStringValue(td_json_get(text, "model_type"));
  if (!cJSON_IsObject(text) || !model_type)
    return;
  r->wrapper = r->config;
  r->config = text;
}

static void find_names(const td_config_reader *r, td_model_desc *d)
{
  d->is_wrapped = r->wrapper || r->family->is_wrapper;
  if (td_model_files_find(r->files, "model.language_model.embed_tokens.weight"))
    d->names = TD_NAMES_HF_TEXT;
  else if (td_model_files_find(r->files, "language_model.model.embed_tokens.weight"))
    d->names = TD_NAMES_HF_TEXT_OLD;
  else if (td_model_files_find(r->files, "model.text_model.embed_tokens.weight"))
    d->names = TD_NAMES_HF_TEXT_SMOL;
  if (!d->is_wrapped)
    d->names = td_model_files_find(r->files, "embed_tokens.weight") &&
                       !td_model_files_find(r->files, "model.embed_tokens.weight")
                   ? TD_NAMES_HF_BASE
                   : TD_NAMES_HF;
}

static td_status read_family(td_config_reader *r, td_model_desc *d)
{
  const char *model_type = NULL;
  unwrap(r);
  TD_TRY(td_config_as_model_error(r, td_json_get_string(r->config, "model_type", &model_type, r->err)));
  if (!model_type)
    return td_fail(r->err, TD_ERR_MODEL, "%s: no 'model_type'", r->file);
  r->family = find_family(model_type);
  if (!r->family)
    return refuse_family(r, model_type);
  snprintf(d->arch, sizeof d->arch, "%s", r->family->model_type);
  find_names(r, d);
  return r->wrapper ? TD_OK : check_architectures(r);
}

static td_status refuse_unknown_maths(const td_config_reader *r)
{
  static const struct {
    const char *key;
    td_config_multipliers served_by;
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
    if (!td_config_is_unset(td_json_get(r->config, keys[i].key)) &&
        (keys[i].served_by == NO_MULTIPLIERS || keys[i].served_by != r->family->multipliers))
      return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: '%s' is set: not served", r->file, keys[i].key);
  if (!r->family->no_rope_layers_key && !td_config_is_unset(td_json_get(r->config, "no_rope_layers")))
    return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: 'no_rope_layers' is set: not served", r->file);
  if (!r->family->is_wrapper && !td_config_is_unset(td_json_get(r->config, "vision_config")))
    return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: 'vision_config' is set: not served", r->file);
  if (r->wrapper && !td_config_is_unset(td_json_get(r->wrapper, "quantization_config")))
    return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: 'quantization_config' is set: not served", r->file);
  const char *act = "silu";
  TD_TRY(td_config_as_model_error(r, td_json_get_string(r->config, "hidden_act", &act, r->err)));
  if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
    return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: hidden_act '%.60s' is not served; silu is", r->file, act);
  return TD_OK;
}

/* ---- sizes ---- */

/* Some wrappers leave out sizes that equal the defaults of transformers' class for the text model. */
static void assume_sizes(const td_config_reader *r, td_model_desc *d)
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

/* The two configurations of a wrapper may contradict each other, and transformers' classes have defaults of
 * their own. So if the files of a wrapper hold weights, the tensors decide. */
static td_status read_tied(const td_config_reader *r, td_model_desc *d)
{
  td_config_reader outer = *r;
  d->tied_embeddings = r->family->absent_tied;
  if (d->is_wrapped && td_model_files_tensor_count(r->files) > 0) {
    d->tied_embeddings = !td_model_files_find(r->files, "lm_head.weight") &&
                         !td_model_files_find(r->files, "language_model.lm_head.weight");
    return TD_OK;
  }
  outer.config = r->wrapper;
  if (r->wrapper)
    TD_TRY(read_bool(&outer, "tie_word_embeddings", &d->tied_embeddings));
  return read_bool(r, "tie_word_embeddings", &d->tied_embeddings);
}

static td_status read_form(const td_config_reader *r, td_model_desc *d)
{
  const td_config_family *f = r->family;
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
  d->block_form = f->block_form;
  d->rope_style = f->rope_pairs ? TD_ROPE_PAIRS : TD_ROPE_HALVES;
  return TD_OK;
}

static td_status read_sizes(const td_config_reader *r, td_model_desc *d)
{
  double eps = r->family->absent_eps > 0 ? r->family->absent_eps : 1e-6;
  assume_sizes(r, d);
  TD_TRY(td_config_read_u32(r, "num_hidden_layers", TD_LIMIT_MODEL_LAYERS, &d->n_layers));
  TD_TRY(td_config_read_u32(r, "hidden_size", TD_LIMIT_MODEL_WIDTH, &d->width));
  TD_TRY(td_config_read_u32(r, "intermediate_size", TD_LIMIT_MODEL_WIDTH, &d->ffn_width));
  TD_TRY(td_config_read_u32(r, "vocab_size", TD_LIMIT_MODEL_VOCAB, &d->vocab));
  TD_TRY(td_config_read_u32(r, "max_position_embeddings", TD_LIMIT_CONTEXT_TOKENS, &d->context_tokens));
  TD_TRY(td_config_read_u32(r, "num_attention_heads", TD_LIMIT_MODEL_HEADS, &d->n_heads));
  d->n_kv_heads = d->n_kv_heads ? d->n_kv_heads : d->n_heads;
  TD_TRY(td_config_read_u32(r, "num_key_value_heads", TD_LIMIT_MODEL_HEADS, &d->n_kv_heads));
  d->head_dim = r->family->absent_head_dim ? r->family->absent_head_dim : d->width / d->n_heads;
  TD_TRY(td_config_read_u32(r, "head_dim", TD_LIMIT_MODEL_HEAD_DIM, &d->head_dim));
  /* The default, width / n_heads, was not checked, and tables have room for no more. */
  if (d->head_dim > td_limit_max(TD_LIMIT_MODEL_HEAD_DIM))
    return td_fail(r->err, TD_ERR_MODEL, "%s: attention heads of %" PRIu32 " elements, more than %" PRIu64,
                   r->file, d->head_dim, td_limit_max(TD_LIMIT_MODEL_HEAD_DIM));
  d->rotary_dim = d->head_dim;
  TD_TRY(
      td_config_read_double(r, r->config, r->family->layer_norm ? "layer_norm_eps" : "rms_norm_eps", &eps));
  d->norm_eps = (float)eps;
  TD_TRY(read_tied(r, d));
  return read_form(r, d);
}

/* Reads a scaling key of one family; `absent` is its default. */
static td_status read_scale(const td_config_reader *r, const char *key, double absent, double *out)
{
  *out = absent;
  TD_TRY(td_config_read_double(r, r->config, key, out));
  return *out > 0 ? TD_OK
                  : td_fail(r->err, TD_ERR_MODEL, "%s: '%s' must be above 0, not %g", r->file, key, *out);
}

static td_status read_multipliers(const td_config_reader *r, td_model_desc *d)
{
  double embed = 1, residual = 1, attention = 0, logit = 1, base = 0;
  switch (r->family->multipliers) {
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

/* ---- sliding window: in all layers, or in some ---- */

/* layer_types, or the older rules that it replaced: layers from max_window_layers on have the window, or all
 * but every n-th layer. */
static td_status read_sliding_layers(const td_config_reader *r, td_model_desc *d)
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
  if (r->family->no_rope_layers_key)
    return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: 'use_sliding_window' without 'layer_types' is not served",
                   r->file);
  if (pattern > 0)
    TD_TRY(td_config_read_u32(r, "sliding_window_pattern", TD_LIMIT_MODEL_LAYERS, &pattern));
  if (r->family->window == WINDOW_SWITCH)
    TD_TRY(td_config_as_model_error(
        r, td_json_get_int64(r->config, "max_window_layers", 0, INT32_MAX, &first, NULL, r->err)));
  for (; layer < d->n_layers; layer++)
    td_desc_set_window(d, layer, pattern > 0 ? (layer + 1) % pattern != 0 : layer >= first);
  return TD_OK;
}

static td_status read_window(const td_config_reader *r, td_model_desc *d)
{
  const cJSON *item = td_json_get(r->config, "sliding_window");
  uint32_t window = r->family->absent_window;
  bool used = r->family->window != WINDOW_SWITCH;
  if (r->family->window == NO_WINDOW) {
    if (!td_config_is_unset(item) && !r->family->mrope)
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
  TD_TRY(td_config_read_u32(r, "sliding_window", TD_LIMIT_CONTEXT_TOKENS, &window));
  TD_TRY(read_sliding_layers(r, d));
  for (uint32_t layer = 0; layer < d->n_layers; layer++)
    if (!(d->no_window[layer / 64] >> layer % 64 & 1))
      d->window_tokens = window; /* stays 0 if no layer has the window */
  return TD_OK;
}

td_status td_desc_read_config(const td_model_files *files, td_model_desc *d, td_rope_spec *alt, td_error *err)
{
  td_config_reader r = {
      .config = td_model_files_config(files), .files = files, .file = TD_CONFIG_FILE, .err = err};
  TD_TRY(read_family(&r, d));
  TD_TRY(refuse_unknown_maths(&r));
  TD_TRY(read_sizes(&r, d));
  TD_TRY(read_multipliers(&r, d));
  TD_TRY(read_window(&r, d));
  TD_TRY(td_config_read_rope(&r, d, alt));
  return td_config_read_generation(&r, td_model_files_generation_config(files), d);
}
