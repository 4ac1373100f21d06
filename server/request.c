/* The request schema: see request.h. */
#include "server/request.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "config/limits.h"

typedef enum field_kind {
  FIELD_DOUBLE,
  FIELD_INT,
  FIELD_BOOL,
  FIELD_SEED,
  FIELD_STRING,
  FIELD_ITEM,    /* const cJSON *: read later */
  FIELD_IGNORED, /* any value, no effect */
  FIELD_NEUTRAL, /* only the value that means off */
} field_kind;

typedef bool (*neutral_fn)(const cJSON *v);

typedef struct field {
  const char *name;
  unsigned routes;
  field_kind kind;
  td_limit_id limit; /* INT, DOUBLE: bounds */
  size_t at;         /* offset in td_request */
  ptrdiff_t has_at;  /* offset of a bool for "given"; -1: none */
  neutral_fn neutral;
} field;

/* ---- values that mean "off" ---- */

static bool is_zero(const cJSON *v) { return cJSON_IsNumber(v) && v->valuedouble == 0; }
static bool is_one(const cJSON *v) { return cJSON_IsNumber(v) && v->valuedouble == 1; }
static bool is_false(const cJSON *v) { return cJSON_IsFalse(v); }
static bool is_bool(const cJSON *v) { return cJSON_IsBool(v); }
static bool is_empty(const cJSON *v) { return (cJSON_IsArray(v) || cJSON_IsObject(v)) && !v->child; }
static bool is_empty_string(const cJSON *v) { return cJSON_IsString(v) && *v->valuestring == '\0'; }
static bool is_nothing(const cJSON *v) { return false; /* null only */ }

static bool is_word(const cJSON *v, const char *a, const char *b)
{
  return cJSON_IsString(v) && (strcmp(v->valuestring, a) == 0 || strcmp(v->valuestring, b) == 0);
}

static bool is_none_or_auto(const cJSON *v) { return is_word(v, "none", "auto"); }
static bool is_default_tier(const cJSON *v) { return is_word(v, "auto", "default"); }

static bool is_text_format(const cJSON *v)
{
  const cJSON *type = td_json_get(v, "type");
  return type && v->child == type && !type->next && is_word(type, "text", "text");
}

static bool is_text_modality(const cJSON *v)
{
  return cJSON_IsArray(v) && v->child && !v->child->next && is_word(v->child, "text", "text");
}

/* ---- the table ---- */

#define C TD_ROUTE_COMPLETIONS
#define H TD_ROUTE_CHAT
#define T TD_ROUTE_TOKENIZE
#define D TD_ROUTE_DETOKENIZE
#define AT(f) offsetof(td_request, f), -1, NULL
#define DOUBLE(f, routes, id) {#f, routes, FIELD_DOUBLE, TD_LIMIT_##id, AT(f)}
#define INT(f, routes, id) {#f, routes, FIELD_INT, TD_LIMIT_##id, AT(f)}
#define BOOL(f, routes) {#f, routes, FIELD_BOOL, 0, AT(f)}
#define ITEM(f, routes) {#f, routes, FIELD_ITEM, 0, AT(f)}
#define IGNORED(name, routes) {name, routes, FIELD_IGNORED, 0, 0, -1, NULL}
#define NEUTRAL(name, routes, fn) {name, routes, FIELD_NEUTRAL, 0, 0, -1, fn}

static const field fields[] = {
    {"model", C | H | T | D, FIELD_STRING, 0, AT(model)},
    ITEM(prompt, C | T),
    ITEM(messages, H | T),
    ITEM(tokens, D),
    INT(max_tokens, C | H, MAX_TOKENS),
    INT(max_completion_tokens, H, MAX_TOKENS),
    DOUBLE(temperature, C | H, TEMPERATURE),
    DOUBLE(top_p, C | H, TOP_P),
    INT(top_k, C | H, TOP_K),
    DOUBLE(min_p, C | H, MIN_P),
    {"seed", C | H, FIELD_SEED, 0, offsetof(td_request, seed), offsetof(td_request, has_seed), NULL},
    INT(n, C | H, N),
    INT(best_of, C, N),
    {"cache_salt", C | H, FIELD_STRING, 0, AT(cache_salt)},
    INT(priority, C | H, PRIORITY),
    INT(timeout_ms, C | H, TIMEOUT_MS),
    INT(ttft_timeout_ms, C | H, TTFT_TIMEOUT_MS),
    ITEM(stop, C | H),
    ITEM(stop_token_ids, C | H),
    BOOL(ignore_eos, C | H),
    BOOL(stream, C | H),
    ITEM(stream_options, C | H),
    BOOL(return_token_ids, C | H),
    BOOL(skip_special_tokens, C | H),
    BOOL(add_special_tokens, C | T),
    BOOL(return_token_strs, T),
    {"add_generation_prompt", H | T, FIELD_BOOL, 0, offsetof(td_request, add_generation_prompt),
     offsetof(td_request, has_add_generation_prompt), NULL},
    BOOL(continue_final_message, H | T),
    ITEM(chat_template_kwargs, H | T),

    IGNORED("user", C | H),
    IGNORED("metadata", C | H),
    IGNORED("store", C | H),

    NEUTRAL("min_tokens", C | H, is_zero),
    NEUTRAL("presence_penalty", C | H, is_zero),
    NEUTRAL("frequency_penalty", C | H, is_zero),
    NEUTRAL("repetition_penalty", C | H, is_one),
    NEUTRAL("length_penalty", C | H, is_one),
    NEUTRAL("use_beam_search", C | H, is_false),
    NEUTRAL("early_stopping", C | H, is_false),
    NEUTRAL("logit_bias", C | H, is_empty),
    NEUTRAL("include_stop_str_in_output", C | H, is_false),
    NEUTRAL("spaces_between_special_tokens", C | H, is_bool), /* no effect on tokenizers that are served */
    NEUTRAL("echo", C | H, is_false),
    NEUTRAL("suffix", C, is_empty_string),
    NEUTRAL("logprobs", C | H, is_false),
    NEUTRAL("top_logprobs", H, is_zero),
    NEUTRAL("prompt_logprobs", C | H, is_nothing),
    NEUTRAL("truncate_prompt_tokens", C | H, is_nothing),
    NEUTRAL("response_format", C | H, is_text_format),
    NEUTRAL("tools", H | T, is_empty),
    NEUTRAL("tool_choice", H, is_none_or_auto),
    NEUTRAL("functions", H, is_empty),
    NEUTRAL("function_call", H, is_none_or_auto),
    NEUTRAL("parallel_tool_calls", H, is_bool), /* there are no tools to call */
    NEUTRAL("service_tier", C | H, is_default_tier),
    NEUTRAL("modalities", H, is_text_modality),
    NEUTRAL("audio", H, is_nothing),
    NEUTRAL("prediction", H, is_nothing),
    NEUTRAL("reasoning_effort", H, is_nothing),
    NEUTRAL("verbosity", H, is_nothing),
    NEUTRAL("web_search_options", H, is_nothing),
    NEUTRAL("safety_identifier", C | H, is_nothing),
    NEUTRAL("prompt_cache_key", C | H, is_nothing),
    NEUTRAL("documents", H, is_nothing),
    NEUTRAL("chat_template", H | T, is_nothing), /* a request never supplies a template */
    NEUTRAL("add_special_tokens", H, is_false), /* the template writes them */
};

#undef C
#undef H
#undef T
#undef D
#undef AT

static const field *find_field(const char *name, unsigned route)
{
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
    if ((fields[i].routes & route) && strcmp(fields[i].name, name) == 0)
      return &fields[i];
  return NULL;
}

/* ---- reading ---- */

static bool unsupported(td_api_error *e, const char *name, const char *why)
{
  td_api_error_set(e, 400, "unsupported_parameter", name, "'%.100s' %s", name, why);
  return false;
}

static bool invalid(td_api_error *e, const char *param, const char *text)
{
  td_api_error_set(e, 400, "invalid_value", param, "'%s' %s", param, text);
  return false;
}

static td_status read_value(const field *f, const cJSON *root, td_request *r, td_error *err)
{
  char *at = (char *)r + f->at;
  bool *has = f->has_at >= 0 ? (bool *)((char *)r + f->has_at) : NULL;
  const td_limit *l = &td_limits[f->limit];
  switch (f->kind) {
  case FIELD_DOUBLE: return td_json_get_double(root, f->name, l->min, l->max, (double *)at, has, err);
  case FIELD_INT:
    return td_json_get_int64(root, f->name, (int64_t)l->min, (int64_t)l->max, (int64_t *)at, has, err);
  case FIELD_BOOL: return td_json_get_bool(root, f->name, (bool *)at, has, err);
  case FIELD_SEED: return td_json_get_seed(root, f->name, (uint64_t *)at, has, err);
  case FIELD_STRING: return td_json_get_string(root, f->name, (const char **)at, err);
  case FIELD_ITEM: *(const cJSON **)at = td_json_get(root, f->name); return TD_OK;
  default: return TD_OK;
  }
}

/* A chat sent to completions, or the other way round, is told where it belongs. */
static bool unknown_field(const char *name, unsigned route, td_api_error *error)
{
  if (route == TD_ROUTE_COMPLETIONS && find_field(name, TD_ROUTE_CHAT))
    return unsupported(error, name, "is a field of /v1/chat/completions, not of this route");
  if (route == TD_ROUTE_CHAT && find_field(name, TD_ROUTE_COMPLETIONS))
    return unsupported(error, name, "is a field of /v1/completions, not of this route");
  return unsupported(error, name, "is not a field of this route");
}

/* Every member of the body, in its order, so that the first wrong field is the one named. */
static bool read_members(const cJSON *root, unsigned route, td_request *r, td_api_error *error)
{
  td_error err;
  for (const cJSON *m = root->child; m; m = m->next) {
    const field *f = find_field(m->string, route);
    if (!f)
      return unknown_field(m->string, route, error);
    if (cJSON_IsNull(m))
      continue;
    if (f->kind == FIELD_NEUTRAL && !f->neutral(m))
      return unsupported(error, f->name, "is not supported with this value");
    if (read_value(f, root, r, &err) != TD_OK) {
      td_api_error_from(error, &err);
      return false;
    }
  }
  return true;
}

static bool add_stop(td_request *r, const cJSON *item, td_api_error *error)
{
  if (!cJSON_IsString(item))
    return invalid(error, "stop", "must be a string or an array of strings");
  size_t n = td_json_text(item->valuestring, item->valuestring);
  if (n == 0)
    return invalid(error, "stop", "must not hold an empty string");
  if (n > td_limit_max(TD_LIMIT_STOP_STRING_BYTES)) {
    td_api_error_set(error, 400, "invalid_value", "stop", "'stop': a stop string may have %d bytes",
                     (int)td_limit_max(TD_LIMIT_STOP_STRING_BYTES));
    return false;
  }
  if (!td_stop_set_add(&r->stops, item->valuestring, n)) {
    td_api_error_set(error, 503, "out_of_memory", NULL, "no memory for stop strings");
    return false;
  }
  return true;
}

static bool read_stops(td_request *r, td_api_error *error)
{
  if (!r->stop)
    return true;
  if (!cJSON_IsArray(r->stop))
    return add_stop(r, r->stop, error);
  for (const cJSON *i = r->stop->child; i; i = i->next) {
    if (r->stops.n == td_limit_max(TD_LIMIT_STOP_STRINGS)) {
      td_api_error_set(error, 400, "invalid_value", "stop", "'stop' may hold %d strings at most",
                       (int)td_limit_max(TD_LIMIT_STOP_STRINGS));
      return false;
    }
    if (!add_stop(r, i, error))
      return false;
  }
  return true;
}

static bool read_stop_ids(td_request *r, uint32_t vocab, td_api_error *error)
{
  if (!r->stop_token_ids)
    return true;
  if (!cJSON_IsArray(r->stop_token_ids))
    return invalid(error, "stop_token_ids", "must be an array of token ids");
  for (const cJSON *i = r->stop_token_ids->child; i; i = i->next) {
    if (r->n_stop_ids == td_limit_max(TD_LIMIT_STOP_TOKEN_IDS) || r->n_stop_ids == TD_REQUEST_STOP_IDS_MAX) {
      td_api_error_set(error, 400, "invalid_value", "stop_token_ids", "'stop_token_ids' may hold %d ids at most",
                       (int)td_limit_max(TD_LIMIT_STOP_TOKEN_IDS));
      return false;
    }
    if (!cJSON_IsNumber(i) || i->valuedouble != floor(i->valuedouble) || !(i->valuedouble >= 0) ||
        !(i->valuedouble < vocab))
      return invalid(error, "stop_token_ids", "must hold token ids of this model");
    r->stop_ids[r->n_stop_ids++] = (int32_t)i->valuedouble;
  }
  return true;
}

static bool read_stream_options(td_request *r, td_api_error *error)
{
  if (!r->stream_options)
    return true;
  if (!cJSON_IsObject(r->stream_options))
    return invalid(error, "stream_options", "must be an object");
  if (!r->stream)
    return invalid(error, "stream_options", "is only allowed with 'stream': true");
  for (const cJSON *m = r->stream_options->child; m; m = m->next) {
    char name[96];
    snprintf(name, sizeof name, "stream_options.%.60s", m->string);
    bool usage = strcmp(m->string, "include_usage") == 0;
    bool off = strcmp(m->string, "continuous_usage_stats") == 0 || strcmp(m->string, "include_obfuscation") == 0;
    if (!usage && !off)
      return unsupported(error, name, "is not a field of this route");
    if (!cJSON_IsNull(m) && !cJSON_IsBool(m))
      return invalid(error, name, "must be true or false");
    if (off && cJSON_IsTrue(m))
      return unsupported(error, name, "is not supported");
    if (usage)
      r->include_usage = cJSON_IsTrue(m);
  }
  return true;
}

static bool check_template_kwargs(const td_request *r, td_api_error *error)
{
  static const char *const reserved[] = {"messages", "tools", "documents", "add_generation_prompt",
                                         "continue_final_message", "bos_token", "eos_token", "chat_template"};
  if (!r->chat_template_kwargs)
    return true;
  if (!cJSON_IsObject(r->chat_template_kwargs))
    return invalid(error, "chat_template_kwargs", "must be an object");
  for (const cJSON *m = r->chat_template_kwargs->child; m; m = m->next)
    for (size_t i = 0; i < sizeof reserved / sizeof reserved[0]; i++)
      if (strcmp(m->string, reserved[i]) == 0) {
        td_api_error_set(error, 400, "invalid_value", "chat_template_kwargs",
                         "'chat_template_kwargs' may not set '%s'", m->string);
        return false;
      }
  return true;
}

/* What no single field can tell. */
static bool check_together(td_request *r, unsigned route, td_api_error *error)
{
  if (r->top_p == 0)
    return invalid(error, "top_p", "must be above 0");
  if (r->cache_salt && (*r->cache_salt == '\0' || strlen(r->cache_salt) > td_limit_max(TD_LIMIT_CACHE_SALT_BYTES)))
    return invalid(error, "cache_salt", "must be a string of 1 to 256 bytes");
  if (r->best_of != 0 && r->best_of != r->n)
    return unsupported(error, "best_of", "is only supported if it equals 'n'");
  if (r->continue_final_message && r->has_add_generation_prompt && r->add_generation_prompt)
    return invalid(error, "continue_final_message", "cannot be true together with 'add_generation_prompt'");
  if (r->continue_final_message)
    r->add_generation_prompt = false;
  if (route == TD_ROUTE_CHAT && !r->messages)
    return invalid(error, "messages", "is required");
  if (route == TD_ROUTE_COMPLETIONS && !r->prompt)
    return invalid(error, "prompt", "is required");
  if (route == TD_ROUTE_DETOKENIZE && !r->tokens)
    return invalid(error, "tokens", "is required");
  if (route == TD_ROUTE_TOKENIZE && !r->prompt == !r->messages)
    return invalid(error, "prompt", "or 'messages' must be given, one of them");
  return true;
}

bool td_request_read(const cJSON *root, unsigned route, const td_sampling *defaults, uint32_t vocab, td_request *r,
                     td_api_error *error)
{
  memset(r, 0, sizeof *r);
  r->temperature = defaults->temperature;
  r->top_p = defaults->top_p;
  r->min_p = defaults->min_p;
  r->top_k = defaults->top_k;
  r->n = td_limit_default(TD_LIMIT_N);
  r->skip_special_tokens = r->add_special_tokens = r->add_generation_prompt = true;
  if (!cJSON_IsObject(root)) {
    td_api_error_set(error, 400, "invalid_value", NULL, "the body must be a JSON object");
    return false;
  }
  return read_members(root, route, r, error) && read_stops(r, error) && read_stop_ids(r, vocab, error) &&
         read_stream_options(r, error) && check_template_kwargs(r, error) && check_together(r, route, error);
}

void td_request_deinit(td_request *r) { td_stop_set_deinit(&r->stops); }

/* Below this a temperature is raised to it: the logits divided by it stay far from float's end. */
#define TEMPERATURE_FLOOR 1e-4

td_sampling td_request_sampling(const td_request *r)
{
  double t = r->temperature;
  if (t > 0 && t < TEMPERATURE_FLOOR)
    t = TEMPERATURE_FLOOR;
  return (td_sampling){
      .temperature = (float)t,
      .top_p = r->top_p < FLT_MIN ? FLT_MIN : (float)r->top_p,
      .min_p = (float)r->min_p,
      .top_k = r->top_k < 0 ? 0 : (int32_t)r->top_k,
      .seed = r->seed,
  };
}
