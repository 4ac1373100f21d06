/* Routes: one table of paths, what they take, and who answers. */
#ifndef TD_SERVER_ROUTER_H
#define TD_SERVER_ROUTER_H

#include "server/conn.h"

/* Everything that can be refused before the body is read: path, method, key, content type, no room. false: *e
 * says why, and *headers (may be NULL) is an extra header line for the answer. */
TD_MUST_CHECK bool td_router_admit(td_conn *c, td_api_error *e, const char **headers);
/* Whether errors of this path (NULL: none has come) have Anthropic's shape. */
bool td_router_is_anthropic(const char *path);
/* The request is complete: answers it, or begins a call. */
void td_router_dispatch(td_conn *c);

/* Routes that answer at once (api_models.c, api_info.c, api_health.c, api_page.c). */
void td_api_page(td_conn *c);
void td_api_version(td_conn *c);
void td_api_tokenizer_info(td_conn *c);
void td_api_models(td_conn *c);
void td_api_health(td_conn *c);
void td_api_ready(td_conn *c);
void td_api_metrics(td_conn *c);

#endif
