/* Enforces the limits that the key file sets for a key (auth.h): requests and tokens a minute, requests at
 * the same time, and waiting requests. Above a limit the answer is a 429, with Retry-After; every answer says
 * what is left. */
#ifndef TD_SERVER_KEY_LIMITS_H
#define TD_SERVER_KEY_LIMITS_H

#include "common/buf.h"
#include "server/tenant.h"

/* Admits one more request, at its head. On false, *e names the limit. tokens: the request will use tokens. */
TD_MUST_CHECK bool td_key_limits_admit(td_tenant *t, bool tokens, uint64_t now_us, td_api_error *e);
/* Once the prompts are known: takes n_prompt tokens and checks room for n_choices. On false, *e is set. */
TD_MUST_CHECK bool td_key_limits_take(td_tenant *t, uint64_t n_prompt, uint64_t n_choices, uint64_t now_us,
                                      td_api_error *e);
/* Gives back the tokens of td_key_limits_take, for a request that the engine refused. */
void td_key_limits_give_back(td_tenant *t, uint64_t n_tokens);
/* Charges tokens of an answer as they are generated. */
void td_key_limits_charge(td_tenant *t, uint64_t n_tokens, uint64_t now_us);
/* Appends x-ratelimit-* headers for the limits that the key has. */
void td_key_limits_append_headers(const td_tenant *t, uint64_t now_us, td_buf *out);

#endif
