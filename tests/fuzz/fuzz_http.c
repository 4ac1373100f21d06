/* HTTP policy and parser. Property: what a connection's bytes mean does not depend on how they are split:
 * whole, byte by byte and in parts of a size that the input chooses give the same requests. What passes
 * obeys the framing rules by which a proxy in front and this server read it in the same way. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/buf.h"
#include "config/limits.h"
#include "fuzz.h"
#include "server/http_policy.h"

enum { MAX_BODY = 300 };

static void check_head(const td_http_head *h)
{
  FUZZ_CHECK(h->method_name && h->path && (*h->path == '/' || strcmp(h->path, "*") == 0));
  FUZZ_CHECK(h->minor == 0 || h->minor == 1);
  FUZZ_CHECK(h->minor == 0 || h->host);
  FUZZ_CHECK(!(h->chunked && h->has_length));
  FUZZ_CHECK(!(h->chunked && h->minor == 0));
  for (const char *p = h->path; *p; p++)
    FUZZ_CHECK(*p > 0x20 && *p < 0x7f);
}

/* Processes a connection's bytes and records what happened. */
static void run(const uint8_t *data, size_t size, size_t piece, td_buf *log)
{
  td_http h;
  td_http_init(&h, MAX_BODY);
  size_t at = 0, sent_end = 0;
  td_http_event e = TD_HTTP_MORE;
  for (int turns = 0; at < size || e == TD_HTTP_IS_HEAD; turns++) {
    FUZZ_CHECK((size_t)turns < 4 * size + 10);
    if (sent_end <= at)
      sent_end = piece < size - at ? at + piece : size;
    size_t n = sent_end - at, used = 0;
    char *exact = malloc(n ? n : 1);
    memcpy(exact, data + at, n);
    e = td_http_feed(&h, exact, n, &used);
    free(exact);
    FUZZ_CHECK(used <= n);
    at += used;
    if (e == TD_HTTP_MORE)
      FUZZ_CHECK(used == n);
    if (e == TD_HTTP_IS_HEAD) {
      check_head(&h.head);
      td_buf_printf(log, "head %s %s %d %d\n", h.head.method_name, h.head.path, h.head.minor,
                    h.head.keep_alive);
    }
    if (e == TD_HTTP_IS_ERROR) {
      FUZZ_CHECK(h.error_status >= 400 && h.error_status < 600 && h.error_text);
      td_buf_printf(log, "error %d\n", h.error_status);
      break;
    }
    if (e == TD_HTTP_IS_DONE) {
      FUZZ_CHECK(h.body.len_bytes <= MAX_BODY);
      FUZZ_CHECK(!h.head.has_length || h.head.content_length == h.body.len_bytes);
      td_buf_printf(log, "done at %zu: ", at);
      td_buf_append(log, h.body.data ? h.body.data : "", h.body.len_bytes);
      td_http_reset(&h);
    }
  }
  td_buf_printf(log, "started %d", td_http_started(&h));
  td_http_deinit(&h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  fuzz_input in = {data, size};
  size_t pieces[] = {SIZE_MAX, 1, 2u + fuzz_take(&in)};
  td_buf first, log;
  td_buf_init(&first, 0);
  td_buf_init(&log, 0);
  for (size_t i = 0; i < 3; i++) {
    td_buf_clear(&log);
    run(in.data, in.size, pieces[i], i == 0 ? &first : &log);
    FUZZ_CHECK(i == 0 ||
               (first.len_bytes == log.len_bytes && memcmp(first.data, log.data, log.len_bytes) == 0));
  }
  td_buf_deinit(&first);
  td_buf_deinit(&log);
  return 0;
}
