/* See http.h. */
#include "pull/http.h"

#include <curl/curl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { CONNECT_S = 30, RETRY_AFTER_MAX_S = 60 };

typedef struct exchange {
  const td_http_get *get;
  td_http_reply *reply;
  CURL *curl;
  bool head_delivered, stopped;
} exchange;

/* ---- headers ---- */

/* If `line` is the header `name`, copies its value without surrounding blanks. */
static bool value_of(const char *line, size_t n, const char *name, char out[TD_HTTP_HEADER_BYTES])
{
  size_t name_n = strlen(name);
  if (n <= name_n || line[name_n] != ':' || strncasecmp(line, name, name_n) != 0)
    return false;
  line += name_n + 1, n -= name_n + 1;
  while (n > 0 && (*line == ' ' || *line == '\t'))
    line++, n--;
  while (n > 0 && strchr(" \t\r\n", line[n - 1]))
    n--;
  if (n >= TD_HTTP_HEADER_BYTES || memchr(line, '\0', n))
    return false;
  memcpy(out, line, n);
  out[n] = '\0';
  return true;
}

static void read_range(td_http_reply *r, const char *value)
{
  uint64_t first, last, total;
  if (sscanf(value, "bytes %" SCNu64 "-%" SCNu64 "/%" SCNu64, &first, &last, &total) == 3 && first <= last &&
      last < total)
    r->range_first = first, r->range_total = total;
  else if (sscanf(value, "bytes */%" SCNu64, &total) == 1) /* of a status 416 */
    r->range_total = total;
}

static void reset_reply(td_http_reply *r)
{
  char linked[TD_HTTP_HEADER_BYTES];
  strcpy(linked, r->linked_etag);
  *r = (td_http_reply){
      .content_length = TD_HTTP_UNKNOWN, .range_first = TD_HTTP_UNKNOWN, .range_total = TD_HTTP_UNKNOWN};
  strcpy(r->linked_etag, linked);
}

static size_t on_header(char *line, size_t size, size_t n, void *arg)
{
  exchange *x = arg;
  td_http_reply *r = x->reply;
  char value[TD_HTTP_HEADER_BYTES];
  n *= size;
  if (n > 5 && strncmp(line, "HTTP/", 5) == 0)
    reset_reply(r); /* a new answer begins: after a redirect or a 1xx */
  else if (value_of(line, n, "etag", value))
    strcpy(r->etag, value);
  else if (value_of(line, n, "content-length", value))
    r->content_length = strtoull(value, NULL, 10);
  else if (value_of(line, n, "content-range", value))
    read_range(r, value);
  else if (value_of(line, n, "content-encoding", value))
    r->is_encoded = strcasecmp(value, "identity") != 0;
  else if (value_of(line, n, "retry-after", value)) {
    unsigned long s = strtoul(value, NULL, 10);
    r->retry_after_s = s > RETRY_AFTER_MAX_S ? RETRY_AFTER_MAX_S : (uint32_t)s;
  } else if (!*r->linked_etag && value_of(line, n, "x-linked-etag", value)) /* the first host's counts */
    snprintf(r->linked_etag, sizeof r->linked_etag, "%.*s", (int)strcspn(value + (*value == '"'), "\""),
             value + (*value == '"'));
  return n;
}

/* ---- bytes ---- */

static bool deliver_head(exchange *x)
{
  if (x->head_delivered)
    return true;
  x->head_delivered = true;
  curl_easy_getinfo(x->curl, CURLINFO_RESPONSE_CODE, &x->reply->status);
  x->stopped = !x->get->on_head(x->get->arg, x->reply);
  return !x->stopped;
}

static size_t on_body(char *bytes, size_t size, size_t n, void *arg)
{
  exchange *x = arg;
  n *= size;
  if (!deliver_head(x))
    return CURL_WRITEFUNC_ERROR;
  x->stopped = !x->get->on_bytes(x->get->arg, bytes, n);
  return x->stopped ? CURL_WRITEFUNC_ERROR : n;
}

/* ---- the exchange ---- */

static bool is_temporary(CURLcode code)
{
  switch (code) {
  case CURLE_COULDNT_RESOLVE_HOST:
  case CURLE_COULDNT_CONNECT:
  case CURLE_PARTIAL_FILE:
  case CURLE_GOT_NOTHING:
  case CURLE_SEND_ERROR:
  case CURLE_RECV_ERROR:
  case CURLE_OPERATION_TIMEDOUT:
  case CURLE_SSL_CONNECT_ERROR:
  case CURLE_HTTP2:
  case CURLE_HTTP2_STREAM:
  case CURLE_WEIRD_SERVER_REPLY: return true;
  default: return false;
  }
}

static struct curl_slist *set_conditions(CURL *c, const td_http_get *g)
{
  char text[TD_HTTP_HEADER_BYTES + 32];
  if (g->from == 0)
    return NULL;
  snprintf(text, sizeof text, "%" PRIu64 "-", g->from);
  curl_easy_setopt(c, CURLOPT_RANGE, text); /* libcurl copies it */
  if (!*g->if_range)
    return NULL;
  snprintf(text, sizeof text, "If-Range: %s", g->if_range);
  struct curl_slist *list = curl_slist_append(NULL, text);
  curl_easy_setopt(c, CURLOPT_HTTPHEADER, list);
  return list;
}

/* A token may be sent over https, or to this machine. */
static bool may_send_token(const char *url)
{
  if (strncmp(url, "https://", 8) == 0)
    return true;
  return (strncmp(url, "http://127.0.0.1", 16) == 0 || strncmp(url, "http://localhost", 16) == 0) &&
         (url[16] == ':' || url[16] == '/');
}

static void set_options(CURL *c, exchange *x, char *message)
{
  const td_http_get *g = x->get;
  curl_easy_setopt(c, CURLOPT_URL, g->url);
  curl_easy_setopt(c, CURLOPT_ERRORBUFFER, message);
  curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "https,http");
  curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR,
                   strncmp(g->url, "https:", 6) == 0 ? "https" : "https,http");
  curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(c, CURLOPT_MAXREDIRS, (long)TD_HTTP_REDIRECTS);
  curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
  curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)g->stall_s);
  curl_easy_setopt(c, CURLOPT_USERAGENT, "tandem-pull/" TD_VERSION);
  curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(c, CURLOPT_HEADERDATA, x);
  curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(c, CURLOPT_WRITEDATA, x);
  if (*g->token && may_send_token(g->url)) {
    curl_easy_setopt(c, CURLOPT_HTTPAUTH, (long)CURLAUTH_BEARER);
    curl_easy_setopt(c, CURLOPT_XOAUTH2_BEARER, g->token);
  }
}

td_status td_http_run(const td_http_get *get, td_http_reply *reply, td_error *err)
{
  char message[CURL_ERROR_SIZE] = "";
  exchange x = {.get = get, .reply = reply};
  reply->linked_etag[0] = '\0';
  reset_reply(reply);
  CURL *c = x.curl = curl_easy_init();
  if (!c)
    return td_fail(err, TD_ERR_NOMEM, "%s: no memory", get->name);
  set_options(c, &x, message);
  struct curl_slist *conditions = set_conditions(c, get);
  CURLcode code = curl_easy_perform(c);
  curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &reply->status);
  if (code == CURLE_OK)
    deliver_head(&x); /* of an answer without a body */
  curl_slist_free_all(conditions);
  curl_easy_cleanup(c);
  if (x.stopped)
    return td_fail(err, TD_ERR_IO, "%s: stopped", get->name); /* the callback that stopped it knows why */
  if (code == CURLE_OK)
    return TD_OK;
  reply->may_retry = is_temporary(code);
  return td_fail(err, TD_ERR_IO, "%s: %s", get->name, *message ? message : curl_easy_strerror(code));
}

td_status td_http_status_error(const char *name, long status, bool has_token, td_error *err)
{
  if (status == 401 || status == 403)
    return td_fail(err, TD_ERR_IO, "%s: status %ld: %s", name, status,
                   has_token ? "the token may not read this"
                             : "private, gated or not there; HF_TOKEN holds a token");
  return td_fail(err, TD_ERR_IO, "%s: status %ld%s", name, status, status == 404 ? ": not found" : "");
}

static bool ignore_head(void *arg, const td_http_reply *reply) { return true; }

static bool append_text(void *arg, const void *bytes, size_t n)
{
  td_buf *out = arg;
  td_buf_append(out, bytes, n);
  return !out->failed;
}

td_status td_http_get_text(const char *url, const char *name, const char *token, uint32_t stall_s,
                           td_buf *out, td_http_reply *reply, td_error *err)
{
  td_http_get get = {.url = url,
                     .name = name,
                     .token = token,
                     .if_range = "",
                     .stall_s = stall_s,
                     .on_head = ignore_head,
                     .on_bytes = append_text,
                     .arg = out};
  td_status st = td_http_run(&get, reply, err);
  return out->failed
             ? td_fail(err, TD_ERR_IO, "%s: the answer is larger than %zu bytes", name, out->max_bytes)
             : st;
}
