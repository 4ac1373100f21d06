/* Reads the description from GGUF metadata: keys "<arch>.*", as ggml's converters write them. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/desc.h"

/* One row: how an architecture differs from llama. */
typedef struct gguf_arch {
  const char *name;
  td_rope_style style;
  bool qkv_bias, qk_norm, wide_qk_norm, layer_norm;
  bool scales;                 /* has Granite's scaling keys; logits are divided by logit_scale */
  bool multiplies_logits;      /* logits are multiplied by logit_scale */
  bool mrope;                  /* has three kinds of positions, which for text equal the plain rotation */
  uint32_t no_rope_interval;   /* every no_rope_interval-th layer is not rotated; 0: all are */
  uint32_t no_window_interval; /* every no_window_interval-th layer has no window; 0: all have it */
  bool no_rope_without_window; /* layers without the window are not rotated */
  bool rope_by_windows;        /* layers with the window are rotated without scaling */
  td_block_form block_form;
} gguf_arch;

static const gguf_arch archs[] = {
    {.name = "llama", .style = TD_ROPE_PAIRS},
    {.name = "qwen2", .qkv_bias = true},
    {.name = "qwen3", .qk_norm = true},
    {.name = "qwen2vl", .qkv_bias = true, .mrope = true},
    {.name = "qwen3vl", .qk_norm = true, .mrope = true},
    {.name = "phi3"},
    {.name = "granite", .style = TD_ROPE_PAIRS, .scales = true},
    {.name = "minicpm", .style = TD_ROPE_PAIRS, .scales = true},
    {.name = "smollm3", .style = TD_ROPE_PAIRS, .no_rope_interval = 4},
    {.name = "olmo2",
     .qk_norm = true,
     .wide_qk_norm = true,
     .no_window_interval = 4,
     .rope_by_windows = true,
     .block_form = TD_BLOCK_POST_NORM},
    {.name = "command-r",
     .style = TD_ROPE_PAIRS,
     .layer_norm = true,
     .multiplies_logits = true,
     .block_form = TD_BLOCK_PARALLEL},
    {.name = "cohere2",
     .style = TD_ROPE_PAIRS,
     .layer_norm = true,
     .multiplies_logits = true,
     .no_window_interval = 4,
     .no_rope_without_window = true,
     .block_form = TD_BLOCK_PARALLEL},
};

typedef struct gguf_reader {
  const td_model_files *files;
  const char *path;
  const gguf_arch *row;
  char arch[64];
  td_error *err;
  char key[128]; /* the key being read */
} gguf_reader;

static const char *arch_key(gguf_reader *r, const char *suffix)
{
  snprintf(r->key, sizeof r->key, "%s.%s", r->arch, suffix);
  return r->key;
}

static bool has_key(const td_model_files *files, const char *key)
{
  double number;
  bool flag;
  uint64_t count;
  td_gguf_string text;
  return td_gguf_get_f64(files, key, &number) || td_gguf_get_bool(files, key, &flag) ||
         td_gguf_get_string(files, key, &text) || td_gguf_get_array_count(files, key, &count);
}

/* If the key is absent, *out keeps its value; an initial 0 makes the key required. */
static td_status read_u32(gguf_reader *r, const char *suffix, td_limit_id limit, uint32_t *out)
{
  uint64_t v, max = td_limit_max(limit);
  const char *key = arch_key(r, suffix);
  if (!td_gguf_get_u64(r->files, key, &v)) {
    if (has_key(r->files, key))
      return td_fail(r->err, TD_ERR_UNSUPPORTED,
                     "%s: key '%s' is not one whole number: models whose layers differ are not served",
                     r->path, key);
    return *out ? TD_OK : td_fail(r->err, TD_ERR_MODEL, "%s: no key '%s'", r->path, key);
  }
  if (v < 1 || v > max)
    return td_fail(r->err, TD_ERR_MODEL, "%s: key '%s' must be from 1 to %" PRIu64 ", not %" PRIu64, r->path,
                   key, max, v);
  *out = (uint32_t)v;
  return TD_OK;
}

/* If the key is absent, *out keeps its value. */
static td_status read_f64(gguf_reader *r, const char *suffix, double *out)
{
  const char *key = arch_key(r, suffix);
  if (!td_gguf_get_f64(r->files, key, out) && has_key(r->files, key))
    return td_fail(r->err, TD_ERR_MODEL, "%s: key '%s' is not a number", r->path, key);
  return isfinite(*out) ? TD_OK : td_fail(r->err, TD_ERR_MODEL, "%s: key '%s' is not finite", r->path, key);
}

static td_status read_arch(gguf_reader *r, td_model_desc *d)
{
  char served[256] = "";
  size_t n = 0;
  td_gguf_string arch;
  if (!td_gguf_get_string(r->files, "general.architecture", &arch))
    return td_fail(r->err, TD_ERR_MODEL, "%s: no key 'general.architecture'", r->path);
  for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
    const gguf_arch *a = &archs[i];
    if (n < sizeof served)
      n += (size_t)snprintf(served + n, sizeof served - n, "%s%s", i ? ", " : "", a->name);
    if (arch.n_bytes != strlen(a->name) || memcmp(arch.data, a->name, arch.n_bytes) != 0)
      continue;
    r->row = a;
    snprintf(r->arch, sizeof r->arch, "%s", a->name);
    snprintf(d->arch, sizeof d->arch, "%s", a->name);
    d->names = TD_NAMES_GGUF;
    d->rope_style = a->style;
    d->block_form = a->block_form;
    d->layer_norm = a->layer_norm;
    d->qk_norm = a->qk_norm;
    d->wide_qk_norm = a->wide_qk_norm;
    return TD_OK;
  }
  return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: architecture '%.*s' is not served; these are: %s", r->path,
                 (int)(arch.n_bytes < 64 ? arch.n_bytes : 64), arch.data, served);
}

/* Refuses keys that ask for a computation that the decoder does not have. 0 and false mean "not used". */
static td_status refuse_unknown_maths(gguf_reader *r)
{
  const gguf_arch *a = r->row;
  const struct {
    const char *key;
    bool served;
  } keys[] = {{"expert_count", false},
              {"expert_used_count", false},
              {"attention.scale", a->scales},
              {"attention.max_alibi_bias", false},
              {"attention.clamp_kqv", false},
              {"attention.layer_norm_epsilon", a->layer_norm},
              {"attention.sliding_window_pattern", a->no_window_interval > 0},
              {"attn_logit_softcapping", false},
              {"final_logit_softcapping", false},
              {"logit_scale", a->scales || a->multiplies_logits},
              {"embedding_scale", a->scales},
              {"residual_scale", a->scales},
              {"use_parallel_residual", false},
              {"rope.dimension_sections", a->mrope},
              {"n_deepstack_layers", a->mrope},
              {"attention.temperature_scale", false},
              {"attention.temperature_length", false}};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    double v = 1;
    bool flag = true;
    const char *key = arch_key(r, keys[i].key);
    if (keys[i].served || !has_key(r->files, key))
      continue;
    if ((td_gguf_get_f64(r->files, key, &v) && v == 0) || (td_gguf_get_bool(r->files, key, &flag) && !flag))
      continue;
    return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: key '%s' is set: not served", r->path, key);
  }
  bool causal = true;
  if (td_gguf_get_bool(r->files, arch_key(r, "attention.causal"), &causal) && !causal)
    return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: key '%s' is false: not served", r->path, r->key);
  return TD_OK;
}

static td_status read_sizes(gguf_reader *r, td_model_desc *d)
{
  uint32_t value_dim;
  TD_TRY(read_u32(r, "block_count", TD_LIMIT_MODEL_LAYERS, &d->n_layers));
  TD_TRY(read_u32(r, "embedding_length", TD_LIMIT_MODEL_WIDTH, &d->width));
  TD_TRY(read_u32(r, "feed_forward_length", TD_LIMIT_MODEL_WIDTH, &d->ffn_width));
  TD_TRY(read_u32(r, "attention.head_count", TD_LIMIT_MODEL_HEADS, &d->n_heads));
  d->n_kv_heads = d->n_heads;
  TD_TRY(read_u32(r, "attention.head_count_kv", TD_LIMIT_MODEL_HEADS, &d->n_kv_heads));
  d->head_dim = d->width / d->n_heads;
  TD_TRY(read_u32(r, "attention.key_length", TD_LIMIT_MODEL_HEAD_DIM, &d->head_dim));
  value_dim = d->head_dim;
  TD_TRY(read_u32(r, "attention.value_length", TD_LIMIT_MODEL_HEAD_DIM, &value_dim));
  if (value_dim != d->head_dim)
    return td_fail(r->err, TD_ERR_UNSUPPORTED,
                   "%s: keys of %" PRIu32 " and values of %" PRIu32 " elements are not served", r->path,
                   d->head_dim, value_dim);
  d->rotary_dim = d->head_dim;
  TD_TRY(read_u32(r, "rope.dimension_count", TD_LIMIT_MODEL_HEAD_DIM, &d->rotary_dim));
  return read_u32(r, "context_length", TD_LIMIT_CONTEXT_TOKENS, &d->context_tokens);
}

/* The embedding has one row per token, so its shape gives the size of the vocabulary. The token list must not
 * be longer. */
static td_status read_vocab(gguf_reader *r, td_model_desc *d)
{
  uint64_t n_tokens, max = td_limit_max(TD_LIMIT_MODEL_VOCAB);
  const td_tensor *embed = td_model_files_find(r->files, "token_embd.weight");
  if (!embed || embed->n_dims != 2)
    return td_fail(r->err, TD_ERR_MODEL, "%s: no matrix 'token_embd.weight'", r->path);
  if (embed->shape[0] < 1 || embed->shape[0] > max)
    return td_fail(r->err, TD_ERR_MODEL,
                   "%s: tensor 'token_embd.weight' has %" PRIu64 " rows, not 1 to %" PRIu64, r->path,
                   embed->shape[0], max);
  d->vocab = (uint32_t)embed->shape[0];
  if (td_gguf_get_array_count(r->files, "tokenizer.ggml.tokens", &n_tokens) && n_tokens > d->vocab)
    return td_fail(r->err, TD_ERR_MODEL,
                   "%s: 'tokenizer.ggml.tokens' has %" PRIu64 " tokens, but 'token_embd.weight' %" PRIu32
                   " rows",
                   r->path, n_tokens, d->vocab);
  return TD_OK;
}

static bool string_is(td_gguf_string s, const char *word)
{
  return s.n_bytes == strlen(word) && memcmp(s.data, word, s.n_bytes) == 0;
}

static td_status read_rope(gguf_reader *r, const td_model_desc *d, td_rope_spec *rope)
{
  td_gguf_string kind = {"none", 4};
  double factor = 0, legacy = 0, attn = 1;
  rope->theta = 10000;
  TD_TRY(read_f64(r, "rope.freq_base", &rope->theta));
  TD_TRY(read_f64(r, "rope.scale_linear", &legacy)); /* older files, before rope.scaling.* */
  TD_TRY(read_f64(r, "rope.scaling.factor", &factor));
  if (!td_gguf_get_string(r->files, arch_key(r, "rope.scaling.type"), &kind) && factor == 0 && legacy != 0 &&
      legacy != 1) {
    kind = (td_gguf_string){"linear", 6};
    factor = legacy;
  }
  rope->original_context = d->context_tokens;
  TD_TRY(read_f64(r, "rope.scaling.original_context_length", &rope->original_context));
  TD_TRY(read_f64(r, "rope.scaling.attn_factor", &attn));
  if (td_model_files_find(r->files, "rope_factors_long.weight"))
    rope->attn_factor = attn; /* these are longrope, whatever rope.scaling.type says */
  if (string_is(kind, "none") || rope->attn_factor > 0)
    return TD_OK;
  rope->factor = factor == 0 ? 1 : factor; /* in ggml, absent and 0 mean unscaled */
  if (string_is(kind, "linear")) {
    rope->kind = TD_ROPE_LINEAR;
    return TD_OK;
  }
  if (!string_is(kind, "yarn"))
    return td_fail(r->err, TD_ERR_UNSUPPORTED,
                   "%s: key '%s.rope.scaling.type' is '%.*s': none, linear and yarn are served", r->path,
                   r->arch, (int)(kind.n_bytes < 64 ? kind.n_bytes : 64), kind.data);
  rope->kind = TD_ROPE_YARN;
  TD_TRY(read_f64(r, "rope.scaling.yarn_beta_fast", &rope->beta_fast));
  TD_TRY(read_f64(r, "rope.scaling.yarn_beta_slow", &rope->beta_slow));
  /* ggml multiplies attn_factor by YaRN's own factor */
  rope->attn_factor = attn * (rope->factor > 1 ? 0.1 * log(rope->factor) + 1 : 1);
  return TD_OK;
}

static td_status read_end_tokens(gguf_reader *r, td_model_desc *d)
{
  static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                     "tokenizer.ggml.eom_token_id"};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    uint64_t id;
    if (td_gguf_get_u64(r->files, keys[i], &id))
      TD_TRY(td_desc_add_eos(d, id, keys[i], r->err));
    else if (has_key(r->files, keys[i]))
      return td_fail(r->err, TD_ERR_MODEL, "%s: key '%s' is not a token id", r->path, keys[i]);
  }
  return TD_OK;
}

/* ---- sampling defaults: used where neither the request nor the operator gives a value ---- */

static td_status read_default(gguf_reader *r, const char *key, td_limit_id limit, double *out)
{
  const td_limit *l = &td_limits[limit];
  if (!has_key(r->files, key))
    return TD_OK;
  if (!td_gguf_get_f64(r->files, key, out) || !(*out >= l->min && *out <= l->max))
    return td_fail(r->err, TD_ERR_MODEL, "%s: key '%s' is not a number from %g to %g", r->path, key, l->min,
                   l->max);
  return TD_OK;
}

static td_status read_sampling(gguf_reader *r, td_model_desc *d)
{
  static const struct {
    const char *key;
    double off;
  } unserved[] = {{"general.sampling.xtc_probability", 0}, {"general.sampling.mirostat", 0}};
  double temperature = -1, top_p = -1, min_p = -1, top_k = -1, repetition = 0;
  TD_TRY(read_default(r, "general.sampling.temp", TD_LIMIT_TEMPERATURE, &temperature));
  TD_TRY(read_default(r, "general.sampling.top_p", TD_LIMIT_TOP_P, &top_p));
  TD_TRY(read_default(r, "general.sampling.min_p", TD_LIMIT_MIN_P, &min_p));
  TD_TRY(read_default(r, "general.sampling.top_k", TD_LIMIT_TOP_K, &top_k));
  TD_TRY(read_default(r, "general.sampling.penalty_repeat", TD_LIMIT_REPETITION_PENALTY, &repetition));
  d->default_repetition_penalty = (float)repetition;
  d->default_temperature = (float)temperature;
  d->default_top_p = (float)top_p;
  d->default_min_p = (float)min_p;
  d->default_top_k = (int32_t)top_k;
  for (size_t i = 0; i < sizeof unserved / sizeof *unserved; i++) {
    double v;
    if (td_gguf_get_f64(r->files, unserved[i].key, &v) && v != unserved[i].off)
      td_desc_note_unserved(d, unserved[i].key);
  }
  return TD_OK;
}

/* ggml has no keys for biases and fused matrices, so the first layer's tensors decide. Qwen2 always has
 * biases on q, k and v. */
static void read_tensors(gguf_reader *r, td_model_desc *d)
{
  const td_model_files *f = r->files;
  d->fused_qkv = td_model_files_find(f, "blk.0.attn_qkv.weight") != NULL;
  d->fused_gate_up = td_model_files_find(f, "blk.0.ffn_gate.weight") == NULL && strcmp(r->arch, "phi3") == 0;
  d->qkv_bias = r->row->qkv_bias || td_model_files_find(f, "blk.0.attn_q.bias") != NULL ||
                td_model_files_find(f, "blk.0.attn_qkv.bias") != NULL;
  d->o_bias = td_model_files_find(f, "blk.0.attn_output.bias") != NULL;
  d->mlp_bias = td_model_files_find(f, "blk.0.ffn_gate.bias") != NULL;
  d->tied_embeddings = td_model_files_find(f, "output.weight") == NULL;
}

static td_status read_scale(gguf_reader *r, const char *suffix, bool required, float *out)
{
  double v = 0;
  TD_TRY(read_f64(r, suffix, &v));
  if (v == 0 && required)
    return td_fail(r->err, TD_ERR_UNSUPPORTED, "%s: no key '%s', which converters of today write", r->path,
                   r->key);
  if (v < 0)
    return td_fail(r->err, TD_ERR_MODEL, "%s: key '%s' is %g", r->path, r->key, v);
  *out = (float)v;
  return TD_OK;
}

/* minicpm files that are older than these keys need scales that are written nowhere in the file. */
static td_status read_scales(gguf_reader *r, td_model_desc *d)
{
  bool required = strcmp(r->arch, "minicpm") == 0;
  if (r->row->scales) {
    TD_TRY(read_scale(r, "attention.scale", false, &d->attn_scale));
    TD_TRY(read_scale(r, "embedding_scale", required, &d->embed_scale));
    TD_TRY(read_scale(r, "residual_scale", required, &d->residual_scale));
    TD_TRY(read_scale(r, "logit_scale", true, &d->logit_scale));
    d->logit_scale = 1 / d->logit_scale;
  }
  return r->row->multiplies_logits ? read_scale(r, "logit_scale", true, &d->logit_scale) : TD_OK;
}

static td_status read_window(gguf_reader *r, td_model_desc *d)
{
  double window = 0;
  uint32_t interval = r->row->no_window_interval;
  TD_TRY(read_f64(r, "attention.sliding_window", &window));
  if (!(window >= 0 && window <= td_limits[TD_LIMIT_CONTEXT_TOKENS].max) || window != floor(window))
    return td_fail(r->err, TD_ERR_MODEL, "%s: key '%s' is %g", r->path, r->key, window);
  d->window_tokens = (uint32_t)window;
  if (interval == 0 || window == 0)
    return TD_OK;
  TD_TRY(read_u32(r, "attention.sliding_window_pattern", TD_LIMIT_MODEL_LAYERS, &interval));
  for (uint32_t layer = 0; layer < d->n_layers; layer++)
    td_desc_set_window(d, layer, (layer + 1) % interval != 0);
  return TD_OK;
}

static void find_alt_rope(gguf_reader *r, td_model_desc *d, td_rope_spec *alt)
{
  const gguf_arch *a = r->row;
  bool windows = d->window_tokens > 0;
  if (a->rope_by_windows)
    *alt = (td_rope_spec){.kind = TD_ROPE_PLAIN, .theta = d->rope.theta};
  for (uint32_t layer = 0; layer < d->n_layers; layer++) {
    bool slides = td_model_layer_window(d, layer) > 0;
    if ((a->no_rope_interval > 0 && (layer + 1) % a->no_rope_interval == 0) ||
        (a->no_rope_without_window && windows && !slides) || (a->rope_by_windows && slides))
      td_desc_set_alt_rope(d, layer);
  }
}

td_status td_desc_read_gguf(const td_model_files *files, td_model_desc *d, td_rope_spec *alt, td_error *err)
{
  gguf_reader r = {.files = files, .path = td_model_files_path(files), .err = err};
  double eps = 0;
  TD_TRY(read_arch(&r, d));
  TD_TRY(refuse_unknown_maths(&r));
  TD_TRY(read_sizes(&r, d));
  TD_TRY(read_vocab(&r, d));
  TD_TRY(read_rope(&r, d, &d->rope));
  TD_TRY(read_f64(&r, r.row->layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
                  &eps));
  if (eps == 0 && !has_key(files, r.key))
    return td_fail(err, TD_ERR_MODEL, "%s: no key '%s'", r.path, r.key);
  d->norm_eps = (float)eps;
  TD_TRY(read_window(&r, d));
  find_alt_rope(&r, d, alt);
  read_tensors(&r, d);
  TD_TRY(read_scales(&r, d));
  TD_TRY(read_sampling(&r, d));
  return read_end_tokens(&r, d);
}
