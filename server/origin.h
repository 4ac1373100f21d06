/* Checks of Host and Origin: by which names, and from which web pages, clients may reach the daemon.
 *
 * A browser lets any page send requests to any address, loopback included. If the daemon asks for no API
 * key, nothing else would tell such a request from the operator's own. Therefore:
 * - The Host must be a name of ours. This stops DNS rebinding, where a page points its own name at our
 *   address.
 * - The Origin, which browsers send with every POST, must be our own page or listed in cors_origin.
 *
 * If keys are required, these checks are not made: a page can do nothing without a key.
 *
 * Pure functions: options and a request head in, a verdict or header lines out. */
#ifndef TD_SERVER_ORIGIN_H
#define TD_SERVER_ORIGIN_H

#include "config/options.h"
#include "server/api_error.h"
#include "server/http_policy.h"

/* Checks the syntax of the options allowed_hosts and cors_origin. */
TD_MUST_CHECK td_status td_origin_check_options(const td_options *o, td_error *err);
/* Whether a daemon without keys accepts the request. If not, *e says why and which option would allow it. */
TD_MUST_CHECK bool td_origin_admit(const td_options *o, const td_http_head *h, td_api_error *e);
/* Appends the CORS headers of an answer to h, which say what a page of another origin may read and send. A
 * page whose origin cors_origin does not list gets none of them. */
void td_origin_append_headers(const td_options *o, const td_http_head *h, td_buf *out);

#endif
