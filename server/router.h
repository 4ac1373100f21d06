/* Routes: a table of paths, with the method that each takes and the handler that answers it. */
#ifndef TD_SERVER_ROUTER_H
#define TD_SERVER_ROUTER_H

#include "server/conn.h"

/* Checks everything that can be refused before the body is read: path, method, key, content type, load. If
 * it returns false, *e says why, and *headers is an extra header line for the answer or NULL. */
TD_MUST_CHECK bool td_router_admit(td_conn *c, td_api_error *e, const char **headers);
/* Whether errors for this path have Anthropic's format. path NULL: no head was read. */
bool td_router_is_anthropic(const char *path);
/* Handles a complete request: answers it, or begins a call. */
void td_router_dispatch(td_conn *c);

/* Routes that answer immediately (api_models.c, api_info.c, api_health.c, api_page.c). */
void td_api_page(td_conn *c);
void td_api_version(td_conn *c);
void td_api_tokenizer_info(td_conn *c);
void td_api_models(td_conn *c);
void td_api_health(td_conn *c);
void td_api_ready(td_conn *c);
void td_api_metrics(td_conn *c);

#endif
