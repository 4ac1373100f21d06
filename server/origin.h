/* Which names and which web pages reach the daemon.
 *
 * A browser lets any page send requests anywhere, to a loopback address too. Where no API key is asked,
 * nothing else would tell such a request from the operator's own: so its Host must be a name that is ours (a
 * page that points a name of its own at our address, DNS rebinding, is found out by it), and its Origin,
 * which browsers send with every POST, must be our own page or listed in cors_origin. With keys a page can do
 * nothing without one.
 *
 * Pure: options and a head in, a verdict or header lines out. */
#ifndef TD_SERVER_ORIGIN_H
#define TD_SERVER_ORIGIN_H

#include "config/options.h"
#include "server/api_error.h"
#include "server/http_policy.h"

/* Whether allowed_hosts and cors_origin can be read. */
TD_MUST_CHECK td_status td_origin_check_options(const td_options *o, td_error *err);
/* Whether a daemon without keys takes the request; if not, *e says why and which option would help. */
TD_MUST_CHECK bool td_origin_admit(const td_options *o, const td_http_head *h, td_api_error *e);
/* The CORS headers of any answer to it: what a page of another origin may read and send, if cors_origin lists
 * it. */
void td_origin_append_headers(const td_options *o, const td_http_head *h, td_buf *out);

#endif
