/* Requests: see request.h. */
#include "server/request.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/limits.h"
#include "server/tool_choice.h"

/* ---- reading ---- */

static bool invalid(td_api_error *e, const char *param, const char *text)
{
  return td_fields_invalid(e, "", param, text);
}

/* Reads the member of `object` that f describes into its place in *r. */
static td_status read_value(const td_field *f, const cJSON *object, td_api_request *r, td_error *err)
{
  char *at = (char *)r + f->at;
  bool *has = f->has_at >= 0 ? (bool *)((char *)r + f->has_at) : NULL;
  const td_limit *l = &td_limits[f->limit];
  switch (f->kind) {
  case TD_FIELD_DOUBLE: return td_json_get_double(object, f->name, l->min, l->max, (double *)at, has, err);
  case TD_FIELD_INT:
    return td_json_get_int64(object, f->name, (int64_t)l->min, (int64_t)l->max, (int64_t *)at, has, err);
  case TD_FIELD_BOOL: return td_json_get_bool(object, f->name, (bool *)at, has, err);
  case TD_FIELD_SEED: return td_json_get_seed(object, f->name, (uint64_t *)at, has, err);
  case TD_FIELD_STRING: return td_json_get_string(object, f->name, (const char **)at, err);
  case TD_FIELD_ITEM: *(const cJSON **)at = td_json_get(object, f->name); return TD_OK;
  }
  return TD_OK;
}

/* Reads the members in the order of the body, so that an error names the first wrong one. */
static bool read_members(const cJSON *root, unsigned route, td_api_request *r, td_api_error *error)
{
  td_error err;
  const td_field *f;
  for (const cJSON *m = root->child; m; m = m->next) {
    if (!td_fields_check(m, route, "", &r->unknown, &f, error))
      return false;
    if (f && read_value(f, root, r, &err) != TD_OK) {
      td_api_error_from(error, &err);
      return false;
    }
  }
  return true;
}

static bool add_stop(td_api_request *r, const cJSON *item, td_api_error *error)
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

static bool read_stops(td_api_request *r, td_api_error *error)
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

static bool read_stop_ids(td_api_request *r, uint32_t vocab, td_api_error *error)
{
  if (!r->stop_token_ids)
    return true;
  if (!cJSON_IsArray(r->stop_token_ids))
    return invalid(error, "stop_token_ids", "must be an array of token ids");
  for (const cJSON *i = r->stop_token_ids->child; i; i = i->next) {
    if (r->n_stop_ids == TD_STOP_IDS_MAX) {
      td_api_error_set(error, 400, "invalid_value", "stop_token_ids",
                       "'stop_token_ids' may hold %d ids at most",
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

/* The token id of a logit_bias key, which is decimal as in vLLM and OpenAI. Returns -1 for other spellings,
 * so that no id can be given twice. */
static int64_t id_of_key(const char *key, uint32_t vocab)
{
  size_t n = strspn(key, "0123456789");
  if (n == 0 || n > 9 || key[n] != '\0' || (key[0] == '0' && n > 1))
    return -1;
  long id = strtol(key, NULL, 10);
  return id < (long)vocab ? id : -1;
}

static bool read_biases(td_api_request *r, uint32_t vocab, td_api_error *error)
{
  const td_limit *l = &td_limits[TD_LIMIT_LOGIT_BIAS_VALUE];
  if (!r->logit_bias)
    return true;
  if (!cJSON_IsObject(r->logit_bias))
    return invalid(error, "logit_bias", "must be an object of token ids and their biases");
  uint32_t n = (uint32_t)cJSON_GetArraySize(r->logit_bias);
  if (n > td_limit_max(TD_LIMIT_LOGIT_BIAS)) {
    td_api_error_set(error, 400, "invalid_value", "logit_bias", "'logit_bias' may hold %d ids at most",
                     (int)td_limit_max(TD_LIMIT_LOGIT_BIAS));
    return false;
  }
  r->biases = calloc(n + 1, sizeof *r->biases);
  if (!r->biases) {
    td_api_error_set(error, 503, "out_of_memory", NULL, "no memory for 'logit_bias'");
    return false;
  }
  for (const cJSON *i = r->logit_bias->child; i; i = i->next) {
    int64_t id = id_of_key(i->string, vocab);
    if (id < 0)
      return invalid(error, "logit_bias", "must have token ids of this model as its keys");
    if (!cJSON_IsNumber(i) || !(i->valuedouble >= l->min) || !(i->valuedouble <= l->max))
      return invalid(error, "logit_bias", "must hold numbers from -100 to 100");
    r->biases[r->n_biases++] = (td_logit_bias){(int32_t)id, (float)i->valuedouble};
  }
  return true;
}

/* In a chat, logprobs says whether to report and top_logprobs how many. In completions, logprobs says both,
 * as a number. */
static bool read_logprobs(td_api_request *r, unsigned route, td_api_error *error)
{
  const cJSON *l = r->logprobs;
  double most = td_limit_max(TD_LIMIT_TOP_LOGPROBS);
  if (route == TD_ROUTE_CHAT) {
    if (l && !cJSON_IsBool(l))
      return invalid(error, "logprobs", "must be true or false");
    r->wants_logprobs = cJSON_IsTrue(l);
    return r->wants_logprobs || r->top_logprobs == 0 ||
           invalid(error, "top_logprobs", "is only allowed with 'logprobs': true");
  }
  if (!l || cJSON_IsFalse(l))
    return true;
  if (!cJSON_IsNumber(l) || l->valuedouble != floor(l->valuedouble) || !(l->valuedouble >= 0) ||
      !(l->valuedouble <= most))
    return invalid(error, "logprobs", "must be a whole number from 0 to 20");
  r->wants_logprobs = true;
  r->top_logprobs = (int64_t)l->valuedouble;
  return true;
}

/* Derives what must be computed for the prompt. */
static bool check_prompt_logprobs(td_api_request *r, td_api_error *error)
{
  if (r->has_prompt_logprobs && r->stream)
    return invalid(error, "prompt_logprobs", "is not told in a stream");
  r->scores_prompt = r->has_prompt_logprobs || (r->echo && r->wants_logprobs);
  r->n_top = (uint32_t)(r->top_logprobs > r->prompt_logprobs ? r->top_logprobs : r->prompt_logprobs);
  return true;
}

static bool read_stream_options(td_api_request *r, td_api_error *error)
{
  td_error err;
  const td_field *f;
  if (!r->stream_options)
    return true;
  if (!cJSON_IsObject(r->stream_options))
    return invalid(error, "stream_options", "must be an object");
  if (!r->stream)
    return invalid(error, "stream_options", "is only allowed with 'stream': true");
  for (const cJSON *m = r->stream_options->child; m; m = m->next) {
    if (!td_fields_check(m, TD_IN_STREAM_OPTIONS, "stream_options.", &r->unknown, &f, error))
      return false;
    if (f && read_value(f, r->stream_options, r, &err) != TD_OK)
      return td_fields_invalid(error, "stream_options.", f->name, "must be true or false");
  }
  return true;
}

static bool check_template_kwargs(const td_api_request *r, td_api_error *error)
{
  static const char *const reserved[] = {
      "messages",  "tools",     "documents",    "add_generation_prompt", "continue_final_message",
      "bos_token", "eos_token", "chat_template"};
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

/* Hands reasoning_effort to templates as vLLM does: as the variable of that name, which overrides one in
 * chat_template_kwargs, and as enable_thinking, which does not override. */
static bool read_effort(td_api_request *r, td_api_error *error)
{
  static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  const char *effort = r->reasoning_effort;
  size_t i = 0, n = sizeof efforts / sizeof *efforts;
  if (!effort)
    return true;
  while (i < n && strcmp(effort, efforts[i]) != 0)
    i++;
  if (i == n)
    return invalid(error, "reasoning_effort", "must be none, minimal, low, medium, high, xhigh or max");
  cJSON *all = r->effort_kwargs = cJSON_CreateObject();
  bool ok = all && cJSON_AddStringToObject(all, "reasoning_effort", effort);
  if (ok && !td_json_get(r->chat_template_kwargs, "enable_thinking"))
    ok = cJSON_AddBoolToObject(all, "enable_thinking", i > 0) != NULL;
  for (cJSON *m = r->chat_template_kwargs ? r->chat_template_kwargs->child : NULL; m && ok; m = m->next)
    if (strcmp(m->string, "reasoning_effort") != 0)
      ok = cJSON_AddItemReferenceToObject(all, m->string, m);
  if (!ok)
    td_api_error_set(error, 503, "out_of_memory", NULL, "no memory for 'reasoning_effort'");
  r->chat_template_kwargs = all;
  return ok;
}

/* max_tokens may be 0 if the request asks for something about the prompt. */
static bool check_max_tokens(td_api_request *r, unsigned route, td_api_error *error)
{
  bool returns_prompt = route == TD_ROUTE_COMPLETIONS && (r->echo || r->has_prompt_logprobs);
  if (r->has_max_completion_tokens && r->max_completion_tokens == 0)
    return invalid(error, "max_completion_tokens", "must be at least 1, or -1 for no limit");
  if (r->has_max_tokens && r->max_tokens == 0 && !returns_prompt)
    return invalid(error, "max_tokens",
                   route == TD_ROUTE_COMPLETIONS
                       ? "must be at least 1, or -1 for no limit; 0 goes with 'echo' or 'prompt_logprobs'"
                       : "must be at least 1, or -1 for no limit");
  r->has_answer = !r->has_max_tokens || r->max_tokens != 0;
  return true;
}

/* Checks that involve several fields, or a field and the route. */
static bool check_together(td_api_request *r, unsigned route, td_api_error *error)
{
  if (!check_max_tokens(r, route, error))
    return false;
  if (r->top_p == 0)
    return invalid(error, "top_p", "must be above 0");
  if (r->repetition_penalty == 0)
    return invalid(error, "repetition_penalty", "must be above 0");
  int64_t most = r->has_max_completion_tokens ? r->max_completion_tokens
                 : r->has_max_tokens          ? r->max_tokens
                                              : -1;
  if (most >= 0 && r->min_tokens > most)
    return invalid(error, "min_tokens", "must not be above max_tokens");
  if (r->cache_salt &&
      (*r->cache_salt == '\0' || strlen(r->cache_salt) > td_limit_max(TD_LIMIT_CACHE_SALT_BYTES)))
    return invalid(error, "cache_salt", "must be a string of 1 to 256 bytes");
  if (r->best_of != 0 && r->best_of != r->n)
    return td_fields_unsupported(error, "", "best_of", "is not served, unless it equals 'n'");
  if (r->continue_final_message && r->has_add_generation_prompt && r->add_generation_prompt)
    return invalid(error, "continue_final_message", "cannot be true together with 'add_generation_prompt'");
  if (r->continue_final_message)
    r->add_generation_prompt = false;
  if (route == TD_ROUTE_CHAT && !r->messages)
    return invalid(error, "messages", "is required");
  if (route == TD_ROUTE_COMPLETIONS && !r->prompt)
    return invalid(error, "prompt", "is required");
  if (route == TD_ROUTE_EMBEDDINGS && !r->input)
    return invalid(error, "input", "is required");
  if (r->encoding_format && strcmp(r->encoding_format, "float") != 0 &&
      strcmp(r->encoding_format, "base64") != 0)
    return invalid(error, "encoding_format", "must be 'float' or 'base64'");
  r->wants_base64 = r->encoding_format && *r->encoding_format == 'b';
  if (route == TD_ROUTE_DETOKENIZE && !r->tokens)
    return invalid(error, "tokens", "is required");
  if (route == TD_ROUTE_TOKENIZE && !r->prompt == !r->messages)
    return invalid(error, "prompt", "or 'messages' must be given, one of them");
  return true;
}

bool td_request_read(const cJSON *root, unsigned route, const td_request_rules *rules, td_api_request *r,
                     td_api_error *error)
{
  memset(r, 0, sizeof *r);
  r->temperature = rules->defaults.temperature;
  r->top_p = rules->defaults.top_p;
  r->min_p = rules->defaults.min_p;
  r->top_k = rules->defaults.top_k;
  r->repetition_penalty = rules->defaults.repetition_penalty > 0
                              ? rules->defaults.repetition_penalty
                              : td_limit_default(TD_LIMIT_REPETITION_PENALTY);
  r->n = td_limit_default(TD_LIMIT_N);
  r->skip_special_tokens = r->add_special_tokens = r->add_generation_prompt = true;
  r->parallel_tool_calls = r->normalizes = r->include_reasoning = true;
  r->unknown.strict = rules->strict_fields;
  if (!cJSON_IsObject(root)) {
    td_api_error_set(error, 400, "invalid_value", NULL, "the body must be a JSON object");
    return false;
  }
  return read_members(root, route, r, error) && read_stops(r, error) &&
         read_stop_ids(r, rules->vocab, error) && read_biases(r, rules->vocab, error) &&
         read_logprobs(r, route, error) && check_prompt_logprobs(r, error) && read_stream_options(r, error) &&
         td_structured_read(r, error) && td_tool_choice_read(r, route, error) &&
         check_template_kwargs(r, error) && read_effort(r, error) && check_together(r, route, error);
}

void td_request_deinit(td_api_request *r)
{
  td_stop_set_deinit(&r->stops);
  td_tool_choice_deinit(&r->choice);
  free(r->biases);
  r->biases = NULL;
  cJSON_Delete(r->grammar_json);
  cJSON_Delete(r->effort_kwargs);
  r->grammar_json = r->effort_kwargs = NULL;
}

/* Temperatures between 0 and this are raised to it, because the logits divided by them could overflow a
 * float. */
#define TEMPERATURE_FLOOR 1e-4

td_sampling td_request_sampling(const td_api_request *r)
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
      .presence_penalty = (float)r->presence_penalty,
      .frequency_penalty = (float)r->frequency_penalty,
      .repetition_penalty = r->repetition_penalty < FLT_MIN ? FLT_MIN : (float)r->repetition_penalty,
      .n_bias = r->n_biases,
      .bias = r->biases,
      .min_tokens = (uint32_t)r->min_tokens,
      .wants_logprobs = r->wants_logprobs || r->scores_prompt,
      .n_top = (uint8_t)r->n_top,
  };
}
