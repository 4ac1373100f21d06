/* GET /: a page with a chat and a live view of the engine's steps. It is static and holds no secret, so it
 * needs no key; the data that it shows comes from routes that do. */
#include <stdio.h>
#include <string.h>

#include "server/page.h"
#include "server/router.h"

/* If-None-Match is "*" or a list of strong or weak tags. strstr suffices, because our tag includes its quotes
 * and so cannot match inside another tag. */
static bool is_known(const char *if_none_match)
{
  return if_none_match && (strcmp(if_none_match, "*") == 0 || strstr(if_none_match, td_page_etag));
}

void td_api_page(td_conn *c)
{
  char headers[1024];
  snprintf(headers, sizeof headers,
           "etag: %s\r\ncache-control: no-cache\r\ncontent-security-policy: %s\r\nx-content-type-options: "
           "nosniff\r\n"
           "referrer-policy: no-referrer\r\ncross-origin-opener-policy: same-origin\r\n",
           td_page_etag, td_page_policy);
  if (is_known(c->http.head.if_none_match))
    td_conn_respond(c, 304, NULL, headers, "", 0);
  else
    td_conn_respond(c, 200, "text/html; charset=utf-8", headers, (const char *)td_page, td_page_bytes);
}
