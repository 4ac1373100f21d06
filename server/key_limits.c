/* Limits of a key: see key_limits.h. */
#include "server/key_limits.h"

#include <inttypes.h>

static bool refuse(td_tenant *t, td_api_error *e, const char *type, uint64_t wait_us)
{
  e->type = type; /* OpenAI's 429 errors name the exceeded quantity here */
  if (wait_us > 0)
    e->retry_after_s = (int)((wait_us + 999999) / 1000000);
  t->usage.refused++;
  return false;
}

/* Whether the key may have n more requests at the same time. */
static bool has_room(td_tenant *t, uint64_t n, td_api_error *e)
{
  const td_key_limits *l = &t->key->limits;
  uint64_t waiting = (uint64_t)t->n_to_generate + t->n_waiting,
           all = (uint64_t)t->n_to_generate + t->n_choices;
  if (l->requests > 0 && all + n > l->requests)
    td_api_error_set(e, 429, "rate_limit_exceeded", NULL,
                     "this key has %" PRIu64 " requests under way, and may have %" PRIu64, all, l->requests);
  else if (l->waiting > 0 && waiting + n > l->waiting)
    td_api_error_set(e, 429, "rate_limit_exceeded", NULL,
                     "this key has %" PRIu64
                     " requests that wait for their first token, and may have %" PRIu64,
                     waiting, l->waiting);
  else
    return true;
  return refuse(t, e, "requests", 0);
}

/* Whether the bucket r has n left. n 0: whether it is not overdrawn. */
static bool has_left(td_tenant *t, const td_rate *r, uint64_t per_minute, double n, const char *what,
                     uint64_t now_us, td_api_error *e)
{
  uint64_t wait_us = per_minute > 0 ? td_rate_wait_us(r, per_minute, n, now_us) : 0;
  if (wait_us == 0)
    return true;
  td_api_error_set(e, 429, "rate_limit_exceeded", NULL, "this key may use %" PRIu64 " %s a minute",
                   per_minute, what);
  return refuse(t, e, what, wait_us);
}

bool td_key_limits_admit(td_tenant *t, bool tokens, uint64_t now_us, td_api_error *e)
{
  if (!t->key)
    return true;
  const td_key_limits *l = &t->key->limits;
  if (!has_left(t, &t->requests, l->requests_per_minute, 1, "requests", now_us, e) ||
      (tokens &&
       (!has_room(t, 1, e) || !has_left(t, &t->tokens, l->tokens_per_minute, 1, "tokens", now_us, e))))
    return false;
  if (l->requests_per_minute > 0)
    td_rate_charge(&t->requests, l->requests_per_minute, 1, now_us);
  t->usage.requests++;
  return true;
}

/* Whether the key could ever admit such a request. If not, it is a 400, because a retry would not help. */
static bool could_ever(td_tenant *t, uint64_t n_prompt, uint64_t n_choices, td_api_error *e)
{
  const td_key_limits *l = &t->key->limits;
  uint64_t most = l->requests > 0 && (l->waiting == 0 || l->requests < l->waiting) ? l->requests : l->waiting;
  if (l->tokens_per_minute > 0 && n_prompt > l->tokens_per_minute)
    td_api_error_set(e, 400, "rate_limit_exceeded", NULL,
                     "the request has %" PRIu64 " prompt tokens; this key may use %" PRIu64
                     " tokens a minute",
                     n_prompt, l->tokens_per_minute);
  else if (most > 0 && n_choices > most)
    td_api_error_set(e, 400, "rate_limit_exceeded", "n",
                     "the request has %" PRIu64 " choices; this key may have %" PRIu64 " at once", n_choices,
                     most);
  else
    return true;
  t->usage.refused++;
  return false;
}

bool td_key_limits_take(td_tenant *t, uint64_t n_prompt, uint64_t n_choices, uint64_t now_us, td_api_error *e)
{
  if (!t->key)
    return true;
  uint64_t per_minute = t->key->limits.tokens_per_minute;
  if (!could_ever(t, n_prompt, n_choices, e) || !has_room(t, n_choices, e) ||
      !has_left(t, &t->tokens, per_minute, (double)n_prompt, "tokens", now_us, e))
    return false;
  td_key_limits_charge(t, n_prompt, now_us);
  return true;
}

void td_key_limits_charge(td_tenant *t, uint64_t n_tokens, uint64_t now_us)
{
  if (t->key && t->key->limits.tokens_per_minute > 0)
    td_rate_charge(&t->tokens, t->key->limits.tokens_per_minute, (double)n_tokens, now_us);
}

void td_key_limits_give_back(td_tenant *t, uint64_t n_tokens)
{
  if (t->key && t->key->limits.tokens_per_minute > 0)
    td_rate_give_back(&t->tokens, (double)n_tokens);
}

static void append(td_buf *out, const char *what, const td_rate *r, uint64_t per_minute, uint64_t now_us)
{
  char text[TD_RATE_TEXT_BYTES];
  if (per_minute == 0)
    return;
  double left = td_rate_left(r, per_minute, now_us);
  td_buf_printf(out,
                "x-ratelimit-limit-%s: %" PRIu64 "\r\nx-ratelimit-remaining-%s: %.0f\r\n"
                "x-ratelimit-reset-%s: %s\r\n",
                what, per_minute, what, left > 0 ? (double)(uint64_t)left : 0, what,
                td_rate_time_text(td_rate_wait_us(r, per_minute, (double)per_minute, now_us), text));
}

void td_key_limits_append_headers(const td_tenant *t, uint64_t now_us, td_buf *out)
{
  if (!t->key)
    return;
  append(out, "requests", &t->requests, t->key->limits.requests_per_minute, now_us);
  append(out, "tokens", &t->tokens, t->key->limits.tokens_per_minute, now_us);
}
