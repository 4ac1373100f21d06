/* See fetch.h. */
#include "pull/fetch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "pull/partial_file.h"

typedef struct fetching {
  const td_fetch *f;
  td_partial_file partial;
  uint64_t most_bytes; /* the largest partial.at so far */
  uint32_t failures, restarts;
  bool file_changed; /* the server's file is not the one that our bytes are of */
  bool refused;      /* the answer has an error status */
  bool is_mismatch;  /* wrong SHA-256: our bytes are useless */
  td_status failure;
  td_error *err;
} fetching;

static bool is_sha256(const char *s) { return strspn(s, "0123456789abcdefABCDEF") == 64 && s[64] == '\0'; }

static bool stop(fetching *x, td_status failure)
{
  x->failure = failure;
  return false;
}

/* Notes what an answer says of the whole file: its size, ETag and hash. */
static bool accept_head(fetching *x, const td_http_reply *r, uint64_t total)
{
  const td_fetch *f = x->f;
  if (total != TD_HTTP_UNKNOWN && f->n_bytes != TD_HTTP_UNKNOWN && total != f->n_bytes)
    return stop(x, td_fail(x->err, TD_ERR_MODEL,
                           "%s: the server has %" PRIu64 " bytes, but should have %" PRIu64, f->name, total,
                           f->n_bytes));
  x->partial.total = f->n_bytes != TD_HTTP_UNKNOWN ? f->n_bytes : total;
  if (x->partial.total != TD_HTTP_UNKNOWN && x->partial.total > TD_FETCH_BYTES_MAX)
    return stop(
        x, td_fail(x->err, TD_ERR_MODEL, "%s: the server says %" PRIu64 " bytes", f->name, x->partial.total));
  const char *hash = *f->sha256 ? f->sha256 : r->linked_etag;
  if (!*x->partial.sha256 && is_sha256(hash))
    strcpy(x->partial.sha256, hash);
  snprintf(x->partial.etag, sizeof x->partial.etag, "%s", r->etag);
  td_status st = td_partial_file_check_space(&x->partial, x->err);
  if (st == TD_OK)
    st = td_partial_file_write_note(&x->partial, f->url, x->err);
  td_progress_line_begin(f->progress, f->name, x->partial.at, x->partial.total);
  return st == TD_OK || stop(x, st);
}

/* Whether an answer that has the whole file instead of the rest comes from another source, such as the login
 * page of a network. Then it is no reason to drop our bytes. If the file itself has changed, it has another
 * ETag. */
static bool is_foreign_answer(const fetching *x, const td_http_reply *r)
{
  const td_partial_file *p = &x->partial;
  uint64_t n = r->content_length, wanted = x->f->n_bytes;
  if (wanted != TD_HTTP_UNKNOWN && n != TD_HTTP_UNKNOWN && n != wanted)
    return true;
  return *p->etag && !*r->etag && (n == TD_HTTP_UNKNOWN || n != p->total);
}

static bool on_head(void *arg, const td_http_reply *r)
{
  fetching *x = arg;
  td_partial_file *p = &x->partial;
  if (r->status != 200 && r->status != 206) {
    x->refused = true;
    return true;
  }
  if (r->is_encoded)
    return stop(x, td_fail(x->err, TD_ERR_MODEL, "%s: the server sends it compressed, unasked", x->f->name));
  if (r->status == 206) {
    bool same_size = p->total == TD_HTTP_UNKNOWN || r->range_total == p->total;
    bool same_etag = !*p->etag || !*r->etag || strcmp(p->etag, r->etag) == 0;
    x->file_changed = r->range_first != p->at || !same_size || !same_etag;
    return !x->file_changed && accept_head(x, r, r->range_total);
  }
  if (p->at > 0 && is_foreign_answer(x, r))
    return stop(x, td_fail(x->err, TD_ERR_IO,
                           "%s: the server sends something else now; the %" PRIu64 " bytes that are here are "
                           "kept, and tandem-pull --remove removes them",
                           x->f->name, p->at));
  if (p->at > 0) { /* the file has changed, or the server does not support ranges */
    td_status st = td_partial_file_restart(p, x->err);
    if (st != TD_OK)
      return stop(x, st);
  }
  return accept_head(x, r, r->content_length);
}

static bool on_bytes(void *arg, const void *bytes, size_t n)
{
  fetching *x = arg;
  td_partial_file *p = &x->partial;
  if (x->refused)
    return true; /* the text of an error page */
  uint64_t most = p->total != TD_HTTP_UNKNOWN ? p->total : TD_FETCH_BYTES_MAX;
  if (n > most - p->at)
    return stop(x, td_fail(x->err, TD_ERR_MODEL, "%s: the server sends more than %" PRIu64 " bytes",
                           x->f->name, most));
  td_status st = td_partial_file_append(p, bytes, n, x->err);
  td_progress_line_update(x->f->progress, p->at);
  return st == TD_OK || stop(x, st);
}

/* ---- trying again ---- */

static void pause_before(uint32_t failures, uint32_t asked_s)
{
  uint64_t ms = failures < 2 ? 100 : failures < 8 ? UINT64_C(250) << failures : TD_FETCH_PAUSE_S * 1000;
  if (ms > TD_FETCH_PAUSE_S * 1000)
    ms = TD_FETCH_PAUSE_S * 1000;
  if (ms < asked_s * UINT64_C(1000))
    ms = asked_s * UINT64_C(1000);
  struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
  (void)nanosleep(&t, NULL);
}

/* Tries that bring bytes do not count, so that even a server that drops every connection is fetched from. */
static td_status retry(fetching *x, uint32_t asked_s, const td_error *why)
{
  if (x->partial.at > x->most_bytes) {
    x->most_bytes = x->partial.at;
    x->failures = 0;
  }
  if (x->failures++ >= x->f->retries) {
    td_fail(x->err, TD_ERR_IO, "%s", why->message);
    return td_error_prefix(x->err, "%s: given up after %u tries that brought nothing", x->f->name,
                           x->failures);
  }
  td_progress_line_end(x->f->progress);
  if (!x->f->progress->quiet)
    fprintf(stderr, "  %s; trying again from byte %" PRIu64 "\n", why->message, x->partial.at);
  pause_before(x->failures, asked_s);
  return TD_OK;
}

static td_status restart(fetching *x, const char *why)
{
  if (x->restarts++ >= TD_FETCH_RESTARTS)
    return td_fail(x->err, TD_ERR_IO, "%s: %s, again and again", x->f->name, why);
  if (!x->f->progress->quiet)
    fprintf(stderr, "  %s: %s; from the beginning\n", x->f->name, why);
  return td_partial_file_restart(&x->partial, x->err);
}

static bool is_whole(const fetching *x)
{
  return x->partial.total != TD_HTTP_UNKNOWN && x->partial.at == x->partial.total;
}

/* Makes one exchange and decides how to go on. *done: all bytes are here. */
static td_status try_once(fetching *x, bool *done)
{
  const td_fetch *f = x->f;
  td_http_reply r;
  td_error why = {0};
  bool strong = x->partial.etag[0] == '"';
  td_http_get get = {.url = f->url,
                     .name = f->name,
                     .token = f->token,
                     .from = x->partial.at,
                     .if_range = strong ? x->partial.etag : "",
                     .stall_s = f->stall_s,
                     .on_head = on_head,
                     .on_bytes = on_bytes,
                     .arg = x};
  x->refused = x->file_changed = false;
  td_status st = td_http_run(&get, &r, &why);
  if (x->failure != TD_OK)
    return x->failure;
  if (x->file_changed)
    return restart(x, "the server's file has changed");
  if (st != TD_OK)
    return r.may_retry ? retry(x, 0, &why) : td_fail(x->err, st, "%s", why.message);
  if (r.status == 416)
    return restart(x, "the server's file is shorter than what is here");
  if (r.status == 429 || r.status >= 500) {
    td_fail(&why, TD_ERR_IO, "%s: status %ld", f->name, r.status);
    return retry(x, r.retry_after_s, &why);
  }
  if (x->refused)
    return td_http_status_error(f->name, r.status, *f->token != '\0', x->err);
  *done = x->partial.total == TD_HTTP_UNKNOWN || is_whole(x); /* without a length, its end is the end */
  if (*done)
    return TD_OK;
  td_fail(&why, TD_ERR_IO, "%s: the answer ended early", f->name);
  return retry(x, 0, &why);
}

static td_status check(fetching *x, const char *path)
{
  char hex[TD_SHA256_HEX_BYTES];
  td_sha256_end(&x->partial.hash, hex);
  x->is_mismatch = *x->partial.sha256 && strcasecmp(hex, x->partial.sha256) != 0;
  if (x->is_mismatch)
    return td_fail(x->err, TD_ERR_MODEL, "%s: SHA-256 is %s, should be %s; nothing was kept", x->f->name, hex,
                   x->partial.sha256);
  return td_partial_file_finish(&x->partial, path, x->err);
}

td_status td_fetch_file(const td_fetch *f, const char *path, td_error *err)
{
  fetching x = {.f = f, .err = err};
  td_status st = td_partial_file_open(&x.partial, path, f->url, f->sha256, err);
  if (st != TD_OK)
    return st;
  x.most_bytes = x.partial.at;
  bool done = is_whole(&x);
  while (st == TD_OK && !done)
    st = try_once(&x, &done);
  td_progress_line_end(f->progress);
  if (st == TD_OK)
    st = check(&x, path);
  td_partial_file_close(&x.partial, st == TD_OK || (x.partial.at > 0 && !x.is_mismatch));
  return st;
}
