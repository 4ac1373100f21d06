/* Host, Origin and CORS: see origin.h. */
#include "server/origin.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

#include "common/list.h"
#include "server/listener.h"

static td_list_item span_of(const char *s) { return (td_list_item){s, strlen(s)}; }

static bool same(td_list_item a, td_list_item b) { return a.n == b.n && strncasecmp(a.s, b.s, a.n) == 0; }

static bool is(td_list_item a, const char *b) { return same(a, span_of(b)); }

/* ---- options ---- */

/* HOST, HOST:PORT, [IPv6] or [IPv6]:PORT, without scheme or path. */
static bool is_host(td_list_item s)
{
  for (size_t i = 0; i < s.n; i++) {
    char c = s.s[i], lower = (char)(c | 32);
    if (!(lower >= 'a' && lower <= 'z') && !(c >= '0' && c <= '9') && (c == '\0' || !strchr("-._:[]", c)))
      return false;
  }
  return s.n > 0;
}

/* SCHEME://HOST[:PORT], as browsers send it. */
static bool is_origin(td_list_item s)
{
  const char *colon = memchr(s.s, ':', s.n);
  size_t scheme = colon ? (size_t)(colon - s.s) : 0;
  return scheme > 0 && s.n > scheme + 3 && strncmp(colon, "://", 3) == 0 &&
         is_host((td_list_item){s.s, scheme}) && is_host((td_list_item){colon + 3, s.n - scheme - 3});
}

td_status td_origin_check_options(const td_options *o, td_error *err)
{
  td_list_item item;
  for (const char *list = o->allowed_hosts; td_list_next(&list, &item);)
    if (!is(item, "*") && !is_host(item))
      return td_fail_param(err, TD_ERR_CONFIG, "allowed_hosts",
                           "allowed_hosts: '%.*s' is not HOST, HOST:PORT or *", (int)item.n, item.s);
  for (const char *list = o->cors_origin; td_list_next(&list, &item);)
    if (!is(item, "*") && !is(item, "null") && !is_origin(item))
      return td_fail_param(err, TD_ERR_CONFIG, "cors_origin",
                           "cors_origin: '%.*s' is not SCHEME://HOST[:PORT] (without a path), null or *",
                           (int)item.n, item.s);
  return TD_OK;
}

/* ---- Host ---- */

/* The Host without its port. An IPv6 literal loses its brackets, a name its trailing dot. */
static td_list_item name_of(td_list_item host, bool *bracketed)
{
  const char *end = host.n > 0 && *host.s == '[' ? memchr(host.s, ']', host.n) : NULL;
  *bracketed = end != NULL;
  if (end) /* after a literal only a port may follow; anything else makes the name empty */
    return end + 1 == host.s + host.n || end[1] == ':'
               ? (td_list_item){host.s + 1, (size_t)(end - host.s) - 1}
               : (td_list_item){host.s, 0};
  const char *colon = memchr(host.s, ':', host.n);
  td_list_item name = {host.s, colon ? (size_t)(colon - host.s) : host.n};
  if (name.n > 1 && name.s[name.n - 1] == '.')
    name.n--;
  return name;
}

/* An address cannot be rebound, because no name server is asked for it. */
static bool is_literal(td_list_item name, bool bracketed)
{
  char text[INET6_ADDRSTRLEN];
  unsigned char address[16];
  if (name.n >= sizeof text)
    return false;
  memcpy(text, name.s, name.n);
  text[name.n] = '\0';
  return inet_pton(bracketed ? AF_INET6 : AF_INET, text, address) == 1;
}

static bool is_loopback_name(td_list_item name)
{
  static const char suffix[] = ".localhost";
  size_t n = sizeof suffix - 1;
  return is(name, "localhost") || (name.n > n && is((td_list_item){name.s + name.n - n, n}, suffix));
}

static bool is_listen_host(const td_options *o, td_list_item name)
{
  char host[256], port[8];
  bool is_unix;
  td_error unused;
  return td_listen_parse(o->listen, host, port, &is_unix, &unused) == TD_OK && !is_unix && is(name, host);
}

static bool host_allowed(const td_options *o, const char *value)
{
  bool bracketed;
  td_list_item host = span_of(value), name = name_of(host, &bracketed), item;
  if (is_literal(name, bracketed) || is_loopback_name(name) || is_listen_host(o, name))
    return true;
  for (const char *list = o->allowed_hosts; td_list_next(&list, &item);)
    if (is(item, "*") || same(item, name) || same(item, host))
      return true;
  return false;
}

/* ---- Origin ---- */

static bool origin_listed(const td_options *o, const char *origin)
{
  td_list_item item;
  for (const char *list = o->cors_origin; origin && td_list_next(&list, &item);)
    if (is(item, "*") || is(item, origin))
      return true;
  return false;
}

/* Whether the page is our own. The scheme is not compared, because a proxy may add TLS. */
static bool is_own(const char *origin, const char *host)
{
  const char *authority = strstr(origin, "://");
  return authority && host && strcasecmp(authority + 3, host) == 0;
}

bool td_origin_admit(const td_options *o, const td_http_head *h, td_api_error *e)
{
  if (h->host && !host_allowed(o, h->host))
    td_api_error_set(
        e, 403, "host_not_allowed", NULL,
        "the Host '%.200s' is not allowed: as no API key is asked, only IP addresses, localhost, the "
        "address of --listen and the names in --allowed-hosts are",
        h->host);
  else if (h->origin && !is_own(h->origin, h->host) && !origin_listed(o, h->origin))
    td_api_error_set(
        e, 403, "origin_not_allowed", NULL,
        "the Origin '%.200s' is not allowed: as no API key is asked, only the Host's own page and the "
        "origins in --cors-origin are",
        h->origin);
  else
    return true;
  return false;
}

/* We answer every OPTIONS as a preflight. '*' covers the official clients' own headers, but not
 * Authorization, so that one is named. */
void td_origin_append_headers(const td_options *o, const td_http_head *h, td_buf *out)
{
  if (o->cors_origin[0] == '\0')
    return;
  td_buf_append_str(out, "vary: origin\r\n");
  if (!origin_listed(o, h->origin))
    return;
  td_buf_printf(out, "access-control-allow-origin: %s\r\naccess-control-expose-headers: *\r\n", h->origin);
  if (h->method == TD_HTTP_OPTIONS)
    td_buf_append_str(
        out, "access-control-allow-methods: GET, HEAD, POST, OPTIONS\r\n"
             "access-control-allow-headers: authorization, content-type, x-api-key, x-request-id, *\r\n"
             "access-control-max-age: 3600\r\n");
}
