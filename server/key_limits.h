/* What the key file allows a key (auth.h): requests and tokens a minute, requests at once, and waiting. What
 * is over is a 429 that says when to come again, and every answer says what is left. */
#ifndef TD_SERVER_KEY_LIMITS_H
#define TD_SERVER_KEY_LIMITS_H

#include "common/buf.h"
#include "server/tenant.h"

/* One more request, at its head; false: *e says which limit is reached. tokens: it will use some. */
TD_MUST_CHECK bool td_key_limits_admit(td_tenant *t, bool tokens, uint64_t now_us, td_api_error *e);
/* Its prompts are known: n_prompt tokens, and n choices. True takes them. */
TD_MUST_CHECK bool td_key_limits_take(td_tenant *t, uint64_t n_prompt, uint64_t n_choices, uint64_t now_us,
                                      td_api_error *e);
/* What take() took of tokens, by a request that nobody computes. */
void td_key_limits_give_back(td_tenant *t, uint64_t n_tokens);
/* Tokens of an answer, as they come. */
void td_key_limits_charge(td_tenant *t, uint64_t n_tokens, uint64_t now_us);
/* x-ratelimit-*, of the limits that there are. */
void td_key_limits_append_headers(const td_tenant *t, uint64_t now_us, td_buf *out);

#endif
