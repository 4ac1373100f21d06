/* The request schema over JSON bodies, all routes. Properties: no body causes a server error; accepted
 * values are within the limits table; what a template or the sampler gets is complete. */
#include <math.h>
#include <string.h>

#include "config/limits.h"
#include "fuzz.h"
#include "server/request.h"

enum { VOCAB = 1000 };

static void check_error(const td_api_error *e)
{
  td_buf out;
  cJSON *body;
  td_error err;
  const td_json_limits limits = {3, 10, TD_ERR_REQUEST};
  FUZZ_CHECK(e->status >= 400 && e->status < 500);
  td_buf_init(&out, 0);
  td_api_error_render(e, &out);
  FUZZ_CHECK(td_json_parse(out.data, out.len_bytes, &limits, &body, &err) == TD_OK);
  cJSON_Delete(body);
  td_buf_deinit(&out);
}

static bool within(td_limit_id id, double v) { return v >= td_limits[id].min && v <= td_limits[id].max; }

static void check_request(const td_api_request *r, unsigned route)
{
  FUZZ_CHECK(within(TD_LIMIT_TEMPERATURE, r->temperature) && within(TD_LIMIT_TOP_P, r->top_p) &&
             r->top_p > 0);
  FUZZ_CHECK(within(TD_LIMIT_MIN_P, r->min_p) && within(TD_LIMIT_TOP_K, (double)r->top_k));
  FUZZ_CHECK(within(TD_LIMIT_N, (double)r->n));
  FUZZ_CHECK(within(TD_LIMIT_MAX_TOKENS, (double)r->max_tokens));
  FUZZ_CHECK(r->has_max_tokens || r->max_tokens == 0);
  FUZZ_CHECK(r->has_answer == (!r->has_max_tokens || r->max_tokens != 0));
  FUZZ_CHECK(r->has_answer || (route == TD_ROUTE_COMPLETIONS && (r->echo || r->has_prompt_logprobs)));
  FUZZ_CHECK(within(TD_LIMIT_MAX_TOKENS, (double)r->max_completion_tokens));
  FUZZ_CHECK(r->stops.n <= TD_STOP_STRINGS_MAX && r->n_stop_ids <= TD_STOP_IDS_MAX);
  for (uint32_t i = 0; i < r->n_stop_ids; i++)
    FUZZ_CHECK(r->stop_ids[i] >= 0 && r->stop_ids[i] < VOCAB);
  FUZZ_CHECK(!r->include_usage || r->stream);
  FUZZ_CHECK(!(r->continue_final_message && r->add_generation_prompt));
  FUZZ_CHECK(route != TD_ROUTE_CHAT || r->messages);
  td_sampling s = td_request_sampling(r);
  FUZZ_CHECK(isfinite(s.temperature) && s.temperature >= 0 && s.temperature <= 2);
  FUZZ_CHECK(isfinite(s.top_p) && s.top_p > 0 && s.top_p <= 1 && s.min_p >= 0 && s.min_p <= 1 &&
             s.top_k >= 0);
  FUZZ_CHECK(fabsf(s.presence_penalty) <= 2 && fabsf(s.frequency_penalty) <= 2 && s.repetition_penalty > 0 &&
             isfinite(s.repetition_penalty) && s.n_top <= TD_TOP_TOKENS_MAX && s.n_bias <= TD_LOGIT_BIAS_MAX);
  for (uint32_t i = 0; i < s.n_bias; i++)
    FUZZ_CHECK(s.bias[i].id >= 0 && fabsf(s.bias[i].bias) <= 100);
}

/* A valid header value, whatever the names were. */
static void check_unknown(const td_unknown *u)
{
  FUZZ_CHECK(memchr(u->names, '\0', sizeof u->names) && (!u->strict || !*u->names));
  FUZZ_CHECK(strspn(u->names, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-?[], ") ==
             strlen(u->names));
}

/* The properties on which the chat template's host code relies. */
static void check_messages(const cJSON *messages)
{
  int n = 0;
  FUZZ_CHECK(cJSON_IsArray(messages) && messages->child);
  for (const cJSON *m = messages->child; m; m = m->next, n++) {
    FUZZ_CHECK(cJSON_IsObject(m) && cJSON_IsString(td_json_get(m, "role")));
    const cJSON *content = td_json_get(m, "content");
    FUZZ_CHECK(!content || cJSON_IsString(content));
  }
  FUZZ_CHECK((uint64_t)n <= td_limit_max(TD_LIMIT_MESSAGES));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  static const unsigned routes[] = {TD_ROUTE_COMPLETIONS, TD_ROUTE_CHAT, TD_ROUTE_TOKENIZE,
                                    TD_ROUTE_DETOKENIZE};
  const td_json_limits limits = {64, 65536, TD_ERR_REQUEST};
  fuzz_input in = {data, size};
  unsigned first = fuzz_take(&in);
  const td_request_rules rules = {{.temperature = 1, .top_p = 1}, VOCAB, first & 4};
  for (unsigned k = 0; k < 4; k++) {
    unsigned route = routes[(first + k) % 4];
    cJSON *root;
    td_error err;
    td_api_request r;
    td_api_error error = {0};
    if (td_json_parse((const char *)in.data, in.size, &limits, &root, &err) != TD_OK) {
      td_api_error_from(&error, &err);
      check_error(&error);
      return 0;
    }
    bool ok = td_request_read(root, route, &rules, &r, &error);
    if (ok)
      check_request(&r, route);
    if (ok && r.messages) {
      ok = td_messages_normalise((cJSON *)r.messages, &(td_message_rules){false, 1000}, &r.unknown, &error);
      if (ok)
        check_messages(r.messages);
    }
    check_unknown(&r.unknown);
    if (!ok)
      check_error(&error);
    td_request_deinit(&r);
    cJSON_Delete(root);
  }
  return 0;
}
