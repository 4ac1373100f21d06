/* The HTTP policy: see http_policy.h. Rules cite RFC 9110 and RFC 9112 where those leave a choice. */
#include "server/http_policy.h"

#include <string.h>
#include <strings.h>

#include "config/limits.h"
#include "common/status.h"

enum { STAGE_HEAD, STAGE_BODY, STAGE_DONE, STAGE_ERROR };

static bool fail(td_http *h, int status, const char *text)
{
  if (h->stage != STAGE_ERROR) {
    h->stage = STAGE_ERROR;
    h->error_status = status;
    h->error_text = text;
  }
  return false;
}

/* ---- characters ---- */

static bool is_token_char(unsigned char c)
{
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static bool is_token(const char *s, size_t n)
{
  for (size_t i = 0; i < n; i++)
    if (!is_token_char((unsigned char)s[i]))
      return false;
  return n > 0;
}

static bool is_digits(const char *s)
{
  for (const char *p = s; *p; p++)
    if (*p < '0' || *p > '9')
      return false;
  return *s != '\0';
}

/* host [":" port] of RFC 3986, without user information. Allows fewer characters than that grammar. */
static bool is_authority(const char *s, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)s[i];
    bool alnum = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!alnum && (c == '\0' || !strchr("-._~:[]%", c)))
      return false;
  }
  return n > 0;
}

/* ---- request line ---- */

static bool check_method(td_http *h, const char *s, size_t n)
{
  static const struct {
    const char *name;
    td_http_method method;
  } known[] = {
      {"GET", TD_HTTP_GET},
      {"HEAD", TD_HTTP_HEAD},
      {"POST", TD_HTTP_POST},
      {"OPTIONS", TD_HTTP_OPTIONS},
      {"PUT", TD_HTTP_OTHER_METHOD},
      {"DELETE", TD_HTTP_OTHER_METHOD},
      {"PATCH", TD_HTTP_OTHER_METHOD},
  };
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    if (strlen(known[i].name) == n && memcmp(known[i].name, s, n) == 0) {
      h->head.method = known[i].method;
      h->head.method_name = known[i].name;
      return true;
    }
  return fail(h, is_token(s, n) ? 405 : 400, is_token(s, n) ? "method not allowed" : "malformed method");
}

/* Accepts origin form, absolute form (RFC 9112 3.2.2: its authority replaces Host), or "*" for OPTIONS.
 * target is NUL-terminated; the query is cut off in place. */
static bool check_target(td_http *h, char *target, const char **authority, size_t *n_authority)
{
  *authority = NULL;
  *n_authority = 0;
  for (const char *p = target; *p; p++)
    if (*p <= 0x20 || *p >= 0x7f || *p == '#')
      return fail(h, 400, "malformed request target");
  char *path = target;
  if (strcmp(target, "*") == 0) {
    h->head.path = target;
    return h->head.method == TD_HTTP_OPTIONS ? true : fail(h, 400, "malformed request target");
  }
  if (strncasecmp(target, "http://", 7) == 0 || strncasecmp(target, "https://", 8) == 0) {
    *authority = strchr(target, ':') + 3;
    *n_authority = strcspn(*authority, "/?");
    path = (char *)*authority + *n_authority;
    if (!is_authority(*authority, *n_authority))
      return fail(h, 400, "malformed request target");
    if (*path != '/') { /* no path means the root */
      h->head.path = "/";
      return true;
    }
  } else if (*target != '/') {
    return fail(h, 400, "malformed request target");
  }
  h->head.path = path;
  char *query = strchr(path, '?');
  if (query)
    *query = '\0';
  return true;
}

static bool check_version(td_http *h, const char *v)
{
  if (strcmp(v, "HTTP/1.1") == 0)
    h->head.minor = 1;
  else if (strcmp(v, "HTTP/1.0") == 0)
    h->head.minor = 0;
  else
    return fail(h, 400, "only HTTP/1.1 and HTTP/1.0 are spoken here");
  return true;
}

/* ---- headers ---- */

typedef struct head_seen {
  const char *authority; /* of an absolute-form target */
  size_t n_authority;
  unsigned hosts, lengths, encodings, expects, auths, api_keys, types, origins;
} head_seen;

static bool check_length(td_http *h, const char *value, head_seen *seen)
{
  if (seen->lengths++ > 0)
    return fail(h, 400, "more than one Content-Length");
  if (!is_digits(value))
    return fail(h, 400, "malformed Content-Length");
  if (strlen(value) > 18)
    return fail(h, 413, "body too large");
  uint64_t v = 0;
  for (const char *p = value; *p; p++)
    v = v * 10 + (uint64_t)(*p - '0');
  h->head.has_length = true;
  h->head.content_length = v;
  return true;
}

/* Allows only "chunked", once. RFC 9112 6.1 lets a server refuse any other coding. */
static bool check_transfer_encoding(td_http *h, const char *value, head_seen *seen)
{
  if (seen->encodings++ > 0 || strcasecmp(value, "chunked") != 0)
    return fail(h, 400, "Transfer-Encoding may only be chunked");
  if (h->head.minor == 0)
    return fail(h, 400, "Transfer-Encoding on HTTP/1.0");
  h->head.chunked = true;
  return true;
}

static bool check_host(td_http *h, const char *value, head_seen *seen)
{
  if (seen->hosts++ > 0)
    return fail(h, 400, "more than one Host");
  size_t n = strlen(value);
  if (!is_authority(value, n))
    return fail(h, 400, "malformed Host");
  if (seen->authority && (n != seen->n_authority || strncasecmp(value, seen->authority, n) != 0))
    return fail(h, 400, "Host differs from the request target");
  h->head.host = value;
  return true;
}

/* A proxy may add its own X-Forwarded-For line; all lines form one list (RFC 9110 5.3). */
static bool join_forwarded(td_http *h, const char *value)
{
  const char *before = h->head.forwarded_for;
  if (before && h->forwarded.len_bytes == 0)
    td_buf_append(&h->forwarded, before, strlen(before));
  if (before)
    td_buf_printf(&h->forwarded, ",%s", value);
  h->head.forwarded_for = before ? h->forwarded.data : value;
  return !h->forwarded.failed || fail(h, 503, "no memory for the headers");
}

static bool take_header(td_http *h, const char *name, const char *value, head_seen *seen)
{
  if (strcasecmp(name, "host") == 0)
    return check_host(h, value, seen);
  if (strcasecmp(name, "content-length") == 0)
    return check_length(h, value, seen);
  if (strcasecmp(name, "transfer-encoding") == 0)
    return check_transfer_encoding(h, value, seen);
  if (strcasecmp(name, "expect") == 0) {
    if (seen->expects++ > 0 || strcasecmp(value, "100-continue") != 0)
      return fail(h, 417, "unknown expectation");
    h->head.expect_continue = h->head.minor == 1;
  } else if (strcasecmp(name, "content-type") == 0) {
    if (seen->types++ > 0)
      return fail(h, 400, "more than one Content-Type");
    h->head.content_type = value;
  } else if (strcasecmp(name, "authorization") == 0) {
    if (seen->auths++ > 0)
      return fail(h, 400, "more than one Authorization");
    h->head.authorization = value;
  } else if (strcasecmp(name, "x-api-key") == 0) {
    if (seen->api_keys++ > 0)
      return fail(h, 400, "more than one X-Api-Key");
    h->head.api_key = value;
  } else if (strcasecmp(name, "origin") == 0) {
    if (seen->origins++ > 0)
      return fail(h, 400, "more than one Origin");
    h->head.origin = value;
  } else if (strcasecmp(name, "content-encoding") == 0) {
    h->head.content_encoding = value;
  } else if (strcasecmp(name, "x-request-id") == 0) {
    h->head.request_id = value;
  } else if (strcasecmp(name, "x-forwarded-for") == 0) {
    return join_forwarded(h, value);
  } else if (strcasecmp(name, "if-none-match") == 0) {
    h->head.if_none_match = value;
  }
  return true;
}

/* line is NUL-terminated; the NUL has replaced its CR. */
static bool check_header_line(td_http *h, char *line, size_t n, head_seen *seen)
{
  if (line[0] == ' ' || line[0] == '\t')
    return fail(h, 400, "folded header line");
  char *colon = memchr(line, ':', n);
  if (!colon || !is_token(line, (size_t)(colon - line)))
    return fail(h, 400, "malformed header name");
  for (size_t i = (size_t)(colon - line) + 1; i < n; i++)
    if (((unsigned char)line[i] < 0x20 && line[i] != '\t') || line[i] == 0x7f)
      return fail(h, 400, "control byte in a header");
  char *value = colon + 1 + strspn(colon + 1, " \t");
  char *end = line + n;
  while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
    end--;
  *colon = '\0';
  *end = '\0';
  return take_header(h, line, value, seen);
}

static bool check_request_line(td_http *h, char *line, size_t n, head_seen *seen)
{
  char *space = memchr(line, ' ', n);
  if (memchr(line, '\0', n) || !space)
    return fail(h, 400, "malformed request line");
  char *space2 = strchr(space + 1, ' ');
  if (!space2 || strchr(space2 + 1, ' '))
    return fail(h, 400, "malformed request line");
  *space = *space2 = '\0';
  return check_version(h, space2 + 1) && check_method(h, line, (size_t)(space - line)) &&
         check_target(h, space + 1, &seen->authority, &seen->n_authority);
}

/* ---- llhttp ---- */

/* Refuses a chunk by its size line, before its data arrives. */
static int on_chunk_header(llhttp_t *p)
{
  td_http *h = p->data;
  if (p->content_length <= h->max_body_bytes - h->body_bytes)
    return 0;
  fail(h, 413, "body too large");
  return -1;
}

static int on_body(llhttp_t *p, const char *at, size_t n)
{
  td_http *h = p->data;
  h->body_bytes += n;
  if (h->body_bytes > h->max_body_bytes) {
    fail(h, 413, "body too large");
    return -1;
  }
  if (!h->discard_body)
    td_buf_append(&h->body, at, n);
  if (h->body.failed) {
    fail(h, 503, "no memory for the body");
    return -1;
  }
  return 0;
}

static int on_headers_complete(llhttp_t *p)
{
  p->upgrade = 0; /* we speak no other protocol, and RFC 9110 7.8 lets a server ignore Upgrade */
  return 0;
}

static int on_message_complete(llhttp_t *p)
{
  td_http *h = p->data;
  h->complete = true;
  return HPE_PAUSED;
}

/* Collects a trailer's name, which arrives in pieces. Ignores names of the head, which our rules check. */
static int on_name(llhttp_t *p, const char *at, size_t n)
{
  td_http *h = p->data;
  for (size_t i = 0; i < n && h->stage == STAGE_BODY; i++, h->n_trailer_name++)
    if (h->n_trailer_name < sizeof h->trailer_name)
      h->trailer_name[h->n_trailer_name] = at[i];
  return 0;
}

/* Trailers are dropped, except that fields which frame a request are refused. */
static int on_name_complete(llhttp_t *p)
{
  static const char *const framing[] = {"", "content-length", "transfer-encoding", "host"};
  td_http *h = p->data;
  size_t n = h->n_trailer_name;
  h->n_trailer_name = 0;
  for (size_t i = 0; i < sizeof framing / sizeof framing[0] && h->stage == STAGE_BODY; i++)
    if (strlen(framing[i]) == n && strncasecmp(framing[i], h->trailer_name, n) == 0)
      return -1;
  return 0;
}

static const llhttp_settings_t parser_settings = {
    .on_header_field = on_name,
    .on_header_field_complete = on_name_complete,
    .on_headers_complete = on_headers_complete,
    .on_chunk_header = on_chunk_header,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

/* Runs llhttp; false on errors. */
static bool parser_run(td_http *h, const char *data, size_t n, size_t *used)
{
  llhttp_errno_t e = llhttp_execute(&h->parser, data, n);
  *used = n;
  if (h->stage == STAGE_ERROR)
    return false;
  if (e == HPE_INVALID_CHUNK_SIZE && strcmp(llhttp_get_error_reason(&h->parser), "Chunk size overflow") == 0)
    return fail(h, 413, "body too large"); /* with another reason, this code means a bad number: 400 */
  if (e == HPE_PAUSED && h->complete)
    *used = (size_t)(llhttp_get_error_pos(&h->parser) - data);
  else if (e != HPE_OK || h->complete)
    return fail(h, 400, "malformed request");
  return true;
}

/* ---- head ---- */

/* Replaces tabs around header values by spaces, which mean the same (RFC 9110 5.6.3), because llhttp does not
 * expect a tab after the values that it parses itself. */
static void blank_tabs(td_buf *raw)
{
  char *end = raw->data + raw->len_bytes, *line = (char *)memchr(raw->data, '\n', raw->len_bytes) + 1;
  for (char *nl; line < end; line = nl + 1) {
    nl = memchr(line, '\n', (size_t)(end - line));
    char *colon = memchr(line, ':', (size_t)(nl - line));
    if (!colon)
      continue;
    for (char *p = colon + 1; *p == ' ' || *p == '\t'; p++)
      *p = ' ';
    for (char *p = nl - 2; *p == ' ' || *p == '\t'; p--)
      *p = ' ';
  }
}

/* The head is whole. llhttp runs first, on the bytes as received, because our rules overwrite separators. */
static bool head_complete(td_http *h)
{
  size_t used, n = h->raw.len_bytes;
  blank_tabs(&h->raw);
  llhttp_init(&h->parser, HTTP_REQUEST, &parser_settings);
  h->parser.data = h;
  bool parsed = parser_run(h, h->raw.data, n, &used);
  h->stage = STAGE_HEAD; /* clears llhttp's error, because our own error messages are preferred */

  head_seen seen = {0};
  char *line = h->raw.data, *end = h->raw.data + n - 2; /* without the empty line at the end */
  for (bool first = true; line < end; first = false) {
    char *nl = memchr(line, '\n', (size_t)(end - line));
    size_t len = (size_t)(nl - 1 - line);
    line[len] = '\0';
    if (!(first ? check_request_line(h, line, len, &seen) : check_header_line(h, line, len, &seen)))
      return false;
    line = nl + 1;
  }
  td_http_head *hd = &h->head;
  if (hd->minor == 1 && seen.hosts != 1)
    return fail(h, 400, "no Host");
  if (hd->chunked && hd->has_length)
    return fail(h, 400, "both Content-Length and Transfer-Encoding");
  if (hd->content_length > h->max_body_bytes)
    return fail(h, 413, "body too large");
  bool body = hd->chunked || hd->content_length > 0;
  if (!parsed || used != n || h->complete == body ||
      (hd->has_length && body && h->parser.content_length != hd->content_length))
    return fail(h, 400, "malformed request");
  hd->keep_alive = llhttp_should_keep_alive(&h->parser) != 0;
  if (!body)
    hd->expect_continue = false;
  return true;
}

/* Checks a line that is complete at the end of raw; false on an error. *last: it was the empty line. */
static bool line_complete(td_http *h, bool *last)
{
  const char *line = h->raw.data + h->line_start;
  size_t n = h->raw.len_bytes - h->line_start;
  *last = false;
  if (n < 2 || line[n - 2] != '\r')
    return fail(h, 400, "line feed without carriage return");
  if (memchr(line, '\r', n - 2))
    return fail(h, 400, "carriage return without line feed");
  if (n == 2 && h->line_start == 0) {
    /* RFC 9112 2.2: one empty line before the request line is ignored */
    if (h->n_lines++ > 0)
      return fail(h, 400, "empty request line");
    td_buf_clear(&h->raw);
    return true;
  }
  *last = n == 2;
  if (!*last && h->line_start == 0)
    h->n_lines = 1; /* the request line */
  else if (!*last && ++h->n_lines > 1 + td_limit_max(TD_LIMIT_HTTP_HEADERS))
    return fail(h, 431, "too many headers");
  h->line_start = h->raw.len_bytes;
  return true;
}

static td_http_event feed_head(td_http *h, const char *data, size_t n, size_t *used)
{
  *used = 0;
  while (*used < n) {
    const char *at = data + *used;
    const char *nl = memchr(at, '\n', n - *used);
    size_t len = nl ? (size_t)(nl - at) + 1 : n - *used;
    size_t line = h->raw.len_bytes - h->line_start + len;
    if (line > td_limit_max(TD_LIMIT_HTTP_LINE_BYTES) + 2) {
      bool first = h->line_start == 0;
      fail(h, first ? 414 : 431, first ? "request line too long" : "header line too long");
      return TD_HTTP_IS_ERROR;
    }
    if (h->raw.len_bytes + len > td_limit_max(TD_LIMIT_HTTP_HEADERS_BYTES)) {
      fail(h, 431, "headers too large");
      return TD_HTTP_IS_ERROR;
    }
    td_buf_append(&h->raw, at, len);
    *used += len;
    if (h->raw.failed) {
      fail(h, 503, "no memory for the headers");
      return TD_HTTP_IS_ERROR;
    }
    bool last = false;
    if (nl && !line_complete(h, &last))
      return TD_HTTP_IS_ERROR;
    if (last) {
      if (!head_complete(h))
        return TD_HTTP_IS_ERROR;
      h->stage = STAGE_BODY;
      return TD_HTTP_IS_HEAD;
    }
  }
  return TD_HTTP_MORE;
}

static td_http_event feed_body(td_http *h, const char *data, size_t n, size_t *used)
{
  *used = 0;
  if (!h->complete && n > 0) {
    if (!parser_run(h, data, n, used))
      return TD_HTTP_IS_ERROR;
    h->body_wire_bytes += *used;
    if (h->body_wire_bytes - h->body_bytes >
        td_limit_max(TD_LIMIT_HTTP_CHUNK_BYTES) + td_limit_max(TD_LIMIT_HTTP_CHUNK_TIMES) * h->body_bytes) {
      fail(h, 400, "chunk extensions or trailers too large");
      return TD_HTTP_IS_ERROR;
    }
  }
  if (!h->complete)
    return TD_HTTP_MORE;
  h->stage = STAGE_DONE;
  return TD_HTTP_IS_DONE;
}

td_http_event td_http_feed(td_http *h, const char *data, size_t n, size_t *used)
{
  TD_BUG_ON(h->stage == STAGE_DONE || h->stage == STAGE_ERROR);
  return h->stage == STAGE_HEAD ? feed_head(h, data, n, used) : feed_body(h, data, n, used);
}

bool td_http_started(const td_http *h)
{
  return h->stage != STAGE_HEAD || h->raw.len_bytes > 0 || h->n_lines > 0;
}

void td_http_init(td_http *h, size_t max_body_bytes)
{
  memset(h, 0, sizeof *h);
  h->max_body_bytes = max_body_bytes;
  td_buf_init(&h->raw, 0);
  td_buf_init(&h->body, 0);
  td_buf_init(&h->forwarded, 0);
}

void td_http_deinit(td_http *h)
{
  td_buf_deinit(&h->raw);
  td_buf_deinit(&h->body);
  td_buf_deinit(&h->forwarded);
}

void td_http_reset(td_http *h)
{
  size_t max = h->max_body_bytes;
  td_http_deinit(h);
  td_http_init(h, max);
}
