/* The HTTP policy over byte strings: what must be refused, what must pass, and that neither depends on how
 * the bytes were split. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <cmocka.h>

#include "config/limits.h"
#include "server/http_policy.h"

enum { MAX_BODY = 4096 };

typedef struct outcome {
  td_http_event event;
  int status;
  size_t used;
  td_http_method method;
  char path[9000], body[MAX_BODY + 1], forwarded[200];
  size_t n_body;
  bool keep_alive, expect;
} outcome;

/* Feeds n bytes in pieces of at most `piece`; stops at the end of the first request. */
static void feed(const char *bytes, size_t n, size_t piece, outcome *o)
{
  td_http h;
  td_http_init(&h, MAX_BODY);
  memset(o, 0, sizeof *o);
  o->event = TD_HTTP_MORE;
  while (o->event == TD_HTTP_MORE || o->event == TD_HTTP_IS_HEAD) {
    size_t give = n - o->used < piece ? n - o->used : piece, used = 0;
    if (give == 0 && o->event != TD_HTTP_IS_HEAD)
      break;
    /* an exact-size copy, so that a sanitizer sees reads beyond the piece */
    char *copy = malloc(give + 1);
    memcpy(copy, bytes + o->used, give);
    char *exact = realloc(copy, give ? give : 1);
    o->event = td_http_feed(&h, exact, give, &used);
    free(exact);
    assert_true(used <= give);
    o->used += used;
  }
  if (o->event == TD_HTTP_IS_ERROR)
    o->status = h.error_status;
  if (o->event == TD_HTTP_IS_DONE) {
    o->method = h.head.method;
    snprintf(o->path, sizeof o->path, "%s", h.head.path);
    snprintf(o->forwarded, sizeof o->forwarded, "%s", h.head.forwarded_for ? h.head.forwarded_for : "-");
    o->n_body = h.body.len_bytes;
    memcpy(o->body, h.body.data ? h.body.data : "", o->n_body);
    o->keep_alive = h.head.keep_alive;
    o->expect = h.head.expect_continue;
  }
  td_http_deinit(&h);
}

/* Whole, byte by byte, and in odd pieces: the same. */
static void feed_all_ways(const char *bytes, size_t n, outcome *o)
{
  static const size_t pieces[] = {1, 3, 7};
  outcome other;
  feed(bytes, n, SIZE_MAX, o);
  for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
    feed(bytes, n, pieces[i], &other);
    if (other.event != o->event || other.status != o->status || other.n_body != o->n_body ||
        strcmp(other.path, o->path) != 0 || memcmp(other.body, o->body, o->n_body) != 0 ||
        (o->event == TD_HTTP_IS_DONE && other.used != o->used))
      fail_msg("pieces of %zu: event %d status %d, whole: event %d status %d: %.*s", pieces[i], other.event,
               other.status, o->event, o->status, (int)n, bytes);
  }
}

static unsigned n_refused;

static void refused(int status, const char *bytes, size_t n)
{
  outcome o;
  feed_all_ways(bytes, n, &o);
  n_refused++;
  if (o.event != TD_HTTP_IS_ERROR || o.status != status)
    fail_msg("wanted %d, got event %d status %d for: %.*s", status, o.event, o.status, (int)n, bytes);
}

static void refused_str(int status, const char *text) { refused(status, text, strlen(text)); }

#define H "Host: a\r\n"
#define POST "POST / HTTP/1.1\r\n" H
#define CHUNKED POST "Transfer-Encoding: chunked\r\n"

/* ---- hand-made ---- */

static void test_refused(void **state)
{
  static const struct {
    int status;
    const char *text;
  } cases[] = {
      /* request line */
      {400, "GET / HTTP/1.2\r\n" H "\r\n"},
      {400, "GET / HTTP/2.0\r\n" H "\r\n"},
      {400, "GET / HTTP/0.9\r\n" H "\r\n"},
      {400, "GET / HTTP/1.10\r\n" H "\r\n"},
      {400, "GET / HTTP/01.1\r\n" H "\r\n"},
      {400, "GET / http/1.1\r\n" H "\r\n"},
      {400, "GET / HTTP/1,1\r\n" H "\r\n"},
      {400, "GET / HTTP/1.1 \r\n" H "\r\n"},
      {400, "GET / RTSP/1.0\r\n" H "\r\n"},
      {400, "GET / ICE/1.0\r\n" H "\r\n"},
      {400, "GET /\r\n" H "\r\n"},
      {400, "GET\r\n\r\n"},
      {400, "GET  / HTTP/1.1\r\n" H "\r\n"},
      {400, "GET /  HTTP/1.1\r\n" H "\r\n"},
      {400, "GET\t/ HTTP/1.1\r\n" H "\r\n"},
      {400, " GET / HTTP/1.1\r\n" H "\r\n"},
      {400, "GET / / HTTP/1.1\r\n" H "\r\n"},
      {400, "GET /a b HTTP/1.1\r\n" H "\r\n"},
      {400, "GET x HTTP/1.1\r\n" H "\r\n"},
      {400, "GET ?a HTTP/1.1\r\n" H "\r\n"},
      {400, "GET /#a HTTP/1.1\r\n" H "\r\n"},
      {400, "GET * HTTP/1.1\r\n" H "\r\n"},
      {400, "GET a:80 HTTP/1.1\r\n" H "\r\n"},
      {400, "GET ftp://a/ HTTP/1.1\r\n" H "\r\n"},
      {400, "GET http:/// HTTP/1.1\r\n" H "\r\n"},
      {400, "GET http://u@a/ HTTP/1.1\r\n" H "\r\n"},
      {400, "GET http://b/ HTTP/1.1\r\n" H "\r\n"},
      {400, "GET /\xc3\xa9 HTTP/1.1\r\n" H "\r\n"},
      {400, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
      {400, "\r\n\r\nGET / HTTP/1.1\r\n" H "\r\n"},
      {400, "\nGET / HTTP/1.1\r\n" H "\r\n"},
      {405, "CONNECT a:80 HTTP/1.1\r\n" H "\r\n"},
      {405, "TRACE / HTTP/1.1\r\n" H "\r\n"},
      {405, "DESCRIBE / HTTP/1.1\r\n" H "\r\n"},
      {405, "PROPFIND / HTTP/1.1\r\n" H "\r\n"},
      {405, "get / HTTP/1.1\r\n" H "\r\n"},
      {405, "GETT / HTTP/1.1\r\n" H "\r\n"},
      {400, "G(T / HTTP/1.1\r\n" H "\r\n"},
      /* Host */
      {400, "GET / HTTP/1.1\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\n" H H "\r\n"},
      {400, "GET / HTTP/1.1\r\n" H "host: a\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\n" H "Host: b\r\n\r\n"},
      {400, "GET / HTTP/1.0\r\n" H H "\r\n"},
      {400, "GET / HTTP/1.1\r\nHost:\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: a,b\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: a b\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\nHost : a\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\n Host: a\r\n\r\n"},
      /* header shape */
      {400, "GET / HTTP/1.1\r\n" H "X: a\r\n b\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\n" H "X: a\r\n\tb\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\n" H ": a\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\n" H ":\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\n" H "X\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\n" H "X : a\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\n" H "X\t: a\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\n" H "X Y: a\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\n" H "X: a\rY: b\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\n" H "X: a\nY: b\r\n\r\n"},
      {400, "GET / HTTP/1.1\n" H "\r\n"},
      {400, "GET / HTTP/1.1\r\n" H "\n"},
      {400, "GET / HTTP/1.1\n\n"},
      {400, "GET / HTTP/1.1\r\nHost: a\n\r\n"},
      {400, "GET / HTTP/1.1\r\r\n" H "\r\n"},
      {400, "GET / HTTP/1.1\r\n" H "\xff: a\r\n\r\n"},
      /* framing */
      {400, POST "Content-Length: 1\r\nContent-Length: 1\r\n\r\na"},
      {400, POST "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"},
      {400, POST "Content-Length: 1, 1\r\n\r\na"},
      {400, POST "Content-Length: +1\r\n\r\na"},
      {400, POST "Content-Length: -1\r\n\r\na"},
      {400, POST "Content-Length: 0x1\r\n\r\na"},
      {400, POST "Content-Length: 1 1\r\n\r\na"},
      {400, POST "Content-Length: 1a\r\n\r\na"},
      {400, POST "Content-Length: \r\n\r\na"},
      {400, POST "Content-Length:\r\n\r\na"},
      {400, POST "Content-Length: 1.0\r\n\r\na"},
      {400, POST "Content-Length: one\r\n\r\na"},
      {400, POST "Content-Length : 1\r\n\r\na"},
      {413, POST "Content-Length: 4097\r\n\r\n"},
      {413, POST "Content-Length: 9223372036854775807\r\n\r\n"},
      {413, POST "Content-Length: 18446744073709551616\r\n\r\n"},
      {413, POST "Content-Length: 99999999999999999999999999\r\n\r\n"},
      {400, CHUNKED "Content-Length: 1\r\n\r\n0\r\n\r\n"},
      {400, POST "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {400, CHUNKED "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {400, POST "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"},
      {400, POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"},
      {400, POST "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"},
      {400, POST "Transfer-Encoding: identity\r\n\r\n"},
      {400, POST "Transfer-Encoding: gzip\r\n\r\n"},
      {400, POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"},
      {400, POST "Transfer-Encoding: chunked;a=b\r\n\r\n0\r\n\r\n"},
      {400, POST "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n"},
      {400, POST "Transfer-Encoding:\r\n\r\n0\r\n\r\n"},
      {400, POST "Transfer-Encoding: \x0b"
                 "chunked\r\n\r\n0\r\n\r\n"},
      {400, POST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"},
      {400, POST "Transfer-Encoding\r\n : chunked\r\n\r\n0\r\n\r\n"},
      {400, POST "X: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {400, "POST / HTTP/1.0\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\na"},
      {417, POST "Expect: 200-ok\r\nContent-Length: 1\r\n\r\na"},
      {417, POST "Expect: 100-continue\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\na"},
      {400, POST "Content-Type: a\r\nContent-Type: b\r\n\r\n"},
      {400, POST "Authorization: a\r\nAuthorization: b\r\n\r\n"},
      {400, POST "X-API-Key: a\r\nx-api-key: a\r\n\r\n"},
      {400, "GET / HTTP/1.1\r\n" H "Origin: http://a\r\nOrigin: http://a\r\n\r\n"},
      /* chunks */
      {400, CHUNKED "\r\nx\r\n"},
      {400, CHUNKED "\r\n-1\r\na\r\n0\r\n\r\n"},
      {400, CHUNKED "\r\n+1\r\na\r\n0\r\n\r\n"},
      {400, CHUNKED "\r\n0x1\r\na\r\n0\r\n\r\n"},
      {400, CHUNKED "\r\n 1\r\na\r\n0\r\n\r\n"},
      {400, CHUNKED "\r\n1\na\r\n0\r\n\r\n"},
      {400, CHUNKED "\r\n1\r\nab\r\n0\r\n\r\n"},
      {400, CHUNKED "\r\n1\r\na0\r\n\r\n"},
      {400, CHUNKED "\r\n1\r\na\n0\r\n\r\n"},
      {400, CHUNKED "\r\n1\r\na\r0\r\n\r\n"},
      {413, CHUNKED "\r\n10000000000000000\r\na\r\n0\r\n\r\n"},
      {413, CHUNKED "\r\nfffffffffffffffff"}, /* the number is too large before its line ends */
      {413, CHUNKED "\r\nffffffffffffffff\r\n"},
      {413, CHUNKED "\r\n7fffffffffffffff\r\n"},
      {413, CHUNKED "\r\n1001\r\n"},
      {413, CHUNKED "\r\n5\r\nhello\r\nffc\r\n"},
      {400, CHUNKED "\r\n\r\n0\r\n\r\n"},
      {400, CHUNKED "\r\n0\r\nContent-Length: 5\r\n\r\n"},
      {400, CHUNKED "\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n"},
      {400, CHUNKED "\r\n0\r\nHost: b\r\n\r\n"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    refused_str(cases[i].status, cases[i].text);
}

/* Every forbidden byte value, at its place. */
static void test_refused_bytes(void **state)
{
  char text[256];
  for (int c = 0; c < 256; c++) {
    int n;
    bool ctl = c < 0x20 || c == 0x7f;
    if (ctl && c != '\t' && c != '\n') {
      n = snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: a\r\nX: a%cb\r\n\r\n", c);
      refused(400, text, (size_t)n);
    }
    bool token = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                 (c && strchr("!#$%&'*+-.^_`|~", c));
    if (!token && c != ':' && c != '\n') {
      n = snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: a\r\nX%cY: a\r\n\r\n", c);
      refused(400, text, (size_t)n);
      n = snprintf(text, sizeof text, "G%cT / HTTP/1.1\r\nHost: a\r\n\r\n", c);
      refused(400, text, (size_t)n);
    }
    if (ctl || c == ' ' || c >= 0x80 || c == '#') {
      n = snprintf(text, sizeof text, "GET /a%cb HTTP/1.1\r\nHost: a\r\n\r\n", c);
      refused(400, text, (size_t)n);
    }
    bool digit = c >= '0' && c <= '9';
    if (!digit && c != '\n') {
      n = snprintf(text, sizeof text, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1%c1\r\n\r\n", c);
      refused(400, text, (size_t)n);
      if (c != ' ' && c != '\t') {
        n = snprintf(text, sizeof text, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked%c\r\n\r\n",
                     c);
        refused(400, text, (size_t)n);
      }
    }
  }
  assert_true(n_refused > 900);
}

/* ---- caps ---- */

static char *repeat(const char *before, const char *piece, size_t times, const char *after)
{
  size_t n = strlen(before) + strlen(piece) * times + strlen(after);
  char *s = malloc(n + 1), *p = s + sprintf(s, "%s", before);
  for (size_t i = 0; i < times; i++)
    p += sprintf(p, "%s", piece);
  sprintf(p, "%s", after);
  return s;
}

static void test_caps(void **state)
{
  outcome o;
  size_t line = td_limit_max(TD_LIMIT_HTTP_LINE_BYTES);
  static const char *const befores[] = {"GET /", "GET / HTTP/1.1\r\n" H "X:"};
  static const char *const afters[] = {" HTTP/1.1\r\n" H "\r\n", "\r\n\r\n"};
  for (int i = 0; i < 2; i++) {
    const char *last = strrchr(befores[i], '\n');
    size_t fixed = strlen(last ? last + 1 : befores[i]) + (i == 0 ? strlen(" HTTP/1.1") : 0);
    char *s = repeat(befores[i], "a", line - fixed, afters[i]);
    feed_all_ways(s, strlen(s), &o);
    assert_int_equal(o.event, TD_HTTP_IS_DONE);
    free(s);
    s = repeat(befores[i], "a", line - fixed + 1, afters[i]);
    refused_str(i == 0 ? 414 : 431, s);
    free(s);
  }
  char *s = repeat("GET / HTTP/1.1\r\n" H, "X: a\r\n", td_limit_max(TD_LIMIT_HTTP_HEADERS) - 1, "\r\n");
  feed_all_ways(s, strlen(s), &o);
  assert_int_equal(o.event, TD_HTTP_IS_DONE);
  free(s);
  s = repeat("\r\nGET / HTTP/1.1\r\n" H, "X: a\r\n", td_limit_max(TD_LIMIT_HTTP_HEADERS) - 1, "\r\n");
  feed_all_ways(s, strlen(s), &o); /* an empty line in front is no header */
  assert_int_equal(o.event, TD_HTTP_IS_DONE);
  free(s);
  s = repeat("GET / HTTP/1.1\r\n" H, "X: a\r\n", td_limit_max(TD_LIMIT_HTTP_HEADERS), "\r\n");
  refused_str(431, s);
  free(s);
  char *kilo = repeat("X: ", "a", 1019, "\r\n");
  s = repeat("GET / HTTP/1.1\r\n" H, kilo, 32, "\r\n");
  refused_str(431, s);
  free(s);
  free(kilo);
  s = repeat("", "a", 20000, ""); /* no line ever ends */
  refused_str(414, s);
  free(s);
  s = repeat(CHUNKED "\r\n1000\r\n", "a", 4096, "\r\n0\r\n\r\n");
  feed_all_ways(s, strlen(s), &o);
  assert_int_equal(o.event, TD_HTTP_IS_DONE);
  free(s);
  s = repeat(CHUNKED "\r\n1001\r\n", "a", 4097, "\r\n0\r\n\r\n");
  refused_str(413, s);
  free(s);
  s = repeat(CHUNKED "\r\n1;", "a", 9000, "\r\na\r\n0\r\n\r\n");
  refused_str(400, s);
  free(s);
  s = repeat(CHUNKED "\r\n0\r\n", "X: a\r\n", 2000, "\r\n");
  refused_str(400, s);
  free(s);
}

/* ---- what must pass ---- */

static void test_accepted(void **state)
{
  static const struct {
    const char *text, *path, *body;
    td_http_method method;
    bool keep_alive;
  } cases[] = {
      {"GET / HTTP/1.1\r\n" H "\r\n", "/", "", TD_HTTP_GET, true},
      {"\r\nGET / HTTP/1.1\r\n" H "\r\n", "/", "", TD_HTTP_GET, true},
      {"GET /a?b=c HTTP/1.1\r\n" H "\r\n", "/a", "", TD_HTTP_GET, true},
      {"GET / HTTP/1.0\r\n\r\n", "/", "", TD_HTTP_GET, false},
      {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "/", "", TD_HTTP_GET, true},
      {"GET / HTTP/1.1\r\n" H "Connection: close\r\n\r\n", "/", "", TD_HTTP_GET, false},
      {"HEAD / HTTP/1.1\r\n" H "\r\n", "/", "", TD_HTTP_HEAD, true},
      {"OPTIONS * HTTP/1.1\r\n" H "\r\n", "*", "", TD_HTTP_OPTIONS, true},
      {"PUT / HTTP/1.1\r\n" H "\r\n", "/", "", TD_HTTP_OTHER_METHOD, true},
      {"GET http://a/b?c HTTP/1.1\r\n" H "\r\n", "/b", "", TD_HTTP_GET, true},
      {"GET HTTP://A HTTP/1.1\r\n" H "\r\n", "/", "", TD_HTTP_GET, true},
      {"GET http://a?x HTTP/1.1\r\n" H "\r\n", "/", "", TD_HTTP_GET, true},
      {"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "/", "", TD_HTTP_GET, true},
      {"GET / HTTP/1.1\r\nhOsT:a\r\nX:\r\nY: \t \r\nZ: \xc3\xa9\r\n\r\n", "/", "", TD_HTTP_GET, true},
      {"GET / HTTP/1.1\r\n" H
       "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n",
       "/", "", TD_HTTP_GET, true},
      {POST "Upgrade: websocket\r\nConnection: upgrade\r\nContent-Length: 2\r\n\r\nab", "/", "ab",
       TD_HTTP_POST, true},
      {POST "Content-Length: 0\r\n\r\n", "/", "", TD_HTTP_POST, true},
      {POST "Content-Length: 007\r\n\r\nabcdefg", "/", "abcdefg", TD_HTTP_POST, true},
      {POST "Content-Length: \t5 \r\n\r\nab\r\nc", "/", "ab\r\nc", TD_HTTP_POST, true},
      {POST "Content-Length:\t5\t\r\n\r\nab\r\nc", "/", "ab\r\nc", TD_HTTP_POST, true},
      {POST "Content-Length:\t \t5 \t \r\n\r\nab\r\nc", "/", "ab\r\nc", TD_HTTP_POST, true},
      {POST "Transfer-Encoding:\tchunked\t\r\n\r\n1\r\na\r\n0\r\n\r\n", "/", "a", TD_HTTP_POST, true},
      {"GET / HTTP/1.1\r\nHost:\ta\t\r\nX:\t\r\n\r\n", "/", "", TD_HTTP_GET, true},
      {"GET / HTTP/1.1\r\n" H "Connection:\tclose\t\r\n\r\n", "/", "", TD_HTTP_GET, false},
      {"POST / HTTP/1.0\r\nContent-Length: 1\r\n\r\na", "/", "a", TD_HTTP_POST, false},
      {CHUNKED "\r\n0\r\n\r\n", "/", "", TD_HTTP_POST, true},
      {CHUNKED "\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n", "/", "abc", TD_HTTP_POST, true},
      {CHUNKED "\r\n00A\r\n0123456789\r\n0\r\n\r\n", "/", "0123456789", TD_HTTP_POST, true},
      {CHUNKED "\r\n1;x=y\r\na\r\n0\r\nTrailer: x\r\n\r\n", "/", "a", TD_HTTP_POST, true},
      {POST "Transfer-Encoding: Chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", "/", "a", TD_HTTP_POST, true},
      {POST "Expect: 100-continue\r\nContent-Length: 1\r\n\r\na", "/", "a", TD_HTTP_POST, true},
  };
  outcome o;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    size_t n = strlen(cases[i].text);
    feed_all_ways(cases[i].text, n, &o);
    if (o.event != TD_HTTP_IS_DONE)
      fail_msg("event %d status %d for: %s", o.event, o.status, cases[i].text);
    assert_int_equal(o.used, n);
    assert_string_equal(o.path, cases[i].path);
    assert_string_equal(o.body, cases[i].body);
    assert_int_equal(o.method, cases[i].method);
    assert_int_equal(o.keep_alive, cases[i].keep_alive);
    /* the rest is kept for the next request, to the byte */
    char *two = repeat(cases[i].text, "X", 1, "GET / HTTP/1.1\r\n" H "\r\n");
    feed_all_ways(two, strlen(two), &o);
    assert_int_equal(o.event, TD_HTTP_IS_DONE);
    assert_int_equal(o.used, n);
    free(two);
  }
}

static void test_expect(void **state)
{
  static const char text[] = POST "Expect: 100-continue\r\nContent-Length: 1\r\n\r\n";
  td_http h;
  size_t used;
  td_http_init(&h, MAX_BODY);
  assert_int_equal(td_http_feed(&h, text, sizeof text - 1, &used), TD_HTTP_IS_HEAD);
  assert_true(h.head.expect_continue);
  assert_int_equal(td_http_feed(&h, "", 0, &used), TD_HTTP_MORE);
  assert_int_equal(td_http_feed(&h, "a", 1, &used), TD_HTTP_IS_DONE);
  td_http_reset(&h);
  assert_false(td_http_started(&h));
  td_http_deinit(&h);
}

static void test_discard(void **state)
{
  static const char text[] = POST "Content-Length: 6\r\n\r\nabcdef";
  td_http h;
  size_t used, more;
  td_http_init(&h, MAX_BODY);
  assert_int_equal(td_http_feed(&h, text, sizeof text - 1, &used), TD_HTTP_IS_HEAD);
  h.discard_body = true;
  assert_int_equal(td_http_feed(&h, text + used, sizeof text - 1 - used, &more), TD_HTTP_IS_DONE);
  assert_int_equal(h.body.len_bytes, 0);
  assert_int_equal(h.body_bytes, 6);
  td_http_deinit(&h);
}

/* Our own rules apply before llhttp, so they do not depend on what its next version lets through. */
static void test_own_words(void **state)
{
  static const struct {
    const char *text, *words;
  } cases[] = {
      {CHUNKED "Content-Length: 1\r\n\r\n0\r\n\r\n", "both Content-Length and Transfer-Encoding"},
      {"GET / HTTP/1.1\r\n" H " X: a\r\n\r\n", "folded header line"},
      {"GET / HTTP/1.1\r\n" H "X : a\r\n\r\n", "malformed header name"},
      {POST "Content-Length: 1\r\nContent-Length: 1\r\n\r\na", "more than one Content-Length"},
      {POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "Transfer-Encoding may only be chunked"},
      {"GET / HTTP/2.0\r\n" H "\r\n", "only HTTP/1.1 and HTTP/1.0 are spoken here"},
      {"GET / HTTP/1.1\r\n" H "X: a\x01\r\n\r\n", "control byte in a header"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    td_http h;
    size_t used;
    td_http_init(&h, MAX_BODY);
    assert_int_equal(td_http_feed(&h, cases[i].text, strlen(cases[i].text), &used), TD_HTTP_IS_ERROR);
    assert_string_equal(h.error_text, cases[i].words);
    td_http_deinit(&h);
  }
}

/* ---- mutations: no crash, the same for any split, and what passes obeys the rules ---- */

static uint64_t rng_state = 42;
static uint32_t rnd(uint32_t n)
{
  rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)((rng_state >> 33) % n);
}

/* A plain second reading of an accepted head: counts of the framing fields by text search alone. */
static void check_accepted(const char *bytes, size_t used)
{
  unsigned hosts = 0, lengths = 0, encodings = 0;
  size_t at = 0, n_head = used;
  for (size_t i = 0; i + 4 <= used; i++)
    if (memcmp(bytes + i, "\r\n\r\n", 4) == 0) {
      n_head = i + 2;
      break;
    }
  if (n_head < used && memcmp(bytes, "\r\n", 2) == 0 && n_head == 0)
    return;
  while (at < n_head) {
    const char *nl = memchr(bytes + at, '\n', n_head - at);
    size_t len = nl ? (size_t)(nl - bytes) - at : n_head - at;
    hosts += len > 5 && strncasecmp(bytes + at, "host:", 5) == 0;
    lengths += len > 15 && strncasecmp(bytes + at, "content-length:", 15) == 0;
    encodings += len > 18 && strncasecmp(bytes + at, "transfer-encoding:", 18) == 0;
    at += len + 1;
  }
  if (hosts > 1 || lengths + encodings > 1)
    fail_msg("accepted with %u hosts, %u lengths, %u encodings: %.*s", hosts, lengths, encodings, (int)used,
             bytes);
}

static void test_mutations(void **state)
{
  static const char *const seeds[] = {
      POST "Content-Length: 5\r\nContent-Type: application/json\r\n\r\nhello",
      CHUNKED "\r\n5\r\nhello\r\n0\r\n\r\n",
      "GET /v1/models?x HTTP/1.1\r\n" H "Connection: keep-alive\r\n\r\n",
      CHUNKED "Expect: 100-continue\r\n\r\n1;a=b\r\nx\r\n0\r\nT: v\r\n\r\n",
  };
  static const char *const pieces[] = {"\r\n",
                                       "\r",
                                       "\n",
                                       " ",
                                       "\t",
                                       ":",
                                       "0",
                                       H,
                                       "\r\n\r\n",
                                       ",",
                                       "chunked",
                                       "Content-Length: 5\r\n",
                                       "Transfer-Encoding: chunked\r\n",
                                       "\0",
                                       "\x80",
                                       ";",
                                       "HTTP/1.0",
                                       "-"};
  static const size_t piece_bytes[] = {2, 1, 1, 1, 1, 1, 1, 9, 4, 1, 7, 19, 28, 1, 1, 1, 8, 1};
  unsigned accepted = 0;
  for (int round = 0; round < 60000; round++) {
    char bytes[512];
    const char *seed = seeds[rnd(4)];
    size_t n = strlen(seed);
    memcpy(bytes, seed, n);
    for (uint32_t m = 1 + rnd(3); m > 0; m--) {
      size_t at = rnd((uint32_t)n);
      uint32_t kind = rnd(3), p = rnd(sizeof pieces / sizeof pieces[0]);
      if (kind == 0) {
        bytes[at] = (char)rnd(256);
      } else if (kind == 1 && n > 4) {
        memmove(bytes + at, bytes + at + 1, n - at - 1);
        n--;
      } else {
        memmove(bytes + at + piece_bytes[p], bytes + at, n - at);
        memcpy(bytes + at, pieces[p], piece_bytes[p]);
        n += piece_bytes[p];
      }
    }
    outcome a, b;
    feed(bytes, n, SIZE_MAX, &a);
    feed(bytes, n, 1 + rnd(5), &b);
    if (a.event != b.event || a.status != b.status)
      fail_msg("whole: event %d status %d, in pieces: event %d status %d: %.*s", a.event, a.status, b.event,
               b.status, (int)n, bytes);
    if (a.event == TD_HTTP_IS_ERROR)
      assert_true(a.status >= 400 && a.status < 500);
    if (a.event == TD_HTTP_IS_DONE) {
      assert_int_equal(a.used, b.used);
      check_accepted(bytes, a.used);
      accepted++;
    }
  }
  assert_true(accepted > 1000);
}

/* Several lines are one list, because each proxy in a chain may add a line. */
static void test_forwarded(void **state)
{
#define F "X-Forwarded-For: "
  static const struct {
    const char *text, *forwarded;
  } cases[] = {
      {"GET / HTTP/1.1\r\n" H "\r\n", "-"},
      {"GET / HTTP/1.1\r\n" H F "a\r\n\r\n", "a"},
      {"GET / HTTP/1.1\r\n" F "a, b \r\n" H "x-forwarded-for:c\r\n\r\n", "a, b,c"},
      {"GET / HTTP/1.1\r\n" F "a\r\n" F "b\r\n" H F "c\r\n\r\n", "a,b,c"},
      {"GET / HTTP/1.1\r\n" F "\r\n" H F "\r\n" F "a\r\n\r\n", ",,a"},
  };
  outcome o;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    feed_all_ways(cases[i].text, strlen(cases[i].text), &o);
    assert_int_equal(o.event, TD_HTTP_IS_DONE);
    assert_string_equal(o.forwarded, cases[i].forwarded);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_refused),   cmocka_unit_test(test_refused_bytes),
      cmocka_unit_test(test_caps),      cmocka_unit_test(test_accepted),
      cmocka_unit_test(test_expect),    cmocka_unit_test(test_discard),
      cmocka_unit_test(test_own_words), cmocka_unit_test(test_mutations),
      cmocka_unit_test(test_forwarded),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
