/* See fetch.h. */
#include "pull/fetch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "pull/part.h"

typedef struct fetching {
  const td_fetch *f;
  td_part part;
  uint64_t best; /* the largest part.at so far */
  uint32_t failures, restarts;
  bool is_other;    /* the server's file is not the one that our bytes are of */
  bool refused;     /* the answer has an error status */
  bool is_mismatch; /* wrong SHA-256: our bytes are useless */
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
static bool learn(fetching *x, const td_http_reply *r, uint64_t total)
{
  const td_fetch *f = x->f;
  if (total != TD_HTTP_UNKNOWN && f->n_bytes != TD_HTTP_UNKNOWN && total != f->n_bytes)
    return stop(x, td_fail(x->err, TD_ERR_MODEL,
                           "%s: the server has %" PRIu64 " bytes, but should have %" PRIu64, f->name, total,
                           f->n_bytes));
  x->part.total = f->n_bytes != TD_HTTP_UNKNOWN ? f->n_bytes : total;
  if (x->part.total != TD_HTTP_UNKNOWN && x->part.total > TD_FETCH_BYTES_MAX)
    return stop(
        x, td_fail(x->err, TD_ERR_MODEL, "%s: the server says %" PRIu64 " bytes", f->name, x->part.total));
  const char *hash = *f->sha256 ? f->sha256 : r->linked_etag;
  if (!*x->part.sha256 && is_sha256(hash))
    strcpy(x->part.sha256, hash);
  snprintf(x->part.etag, sizeof x->part.etag, "%s", r->etag);
  td_status st = td_part_room(&x->part, x->err);
  if (st == TD_OK)
    st = td_part_note(&x->part, f->url, x->err);
  td_shown_begin(f->shown, f->name, x->part.at, x->part.total);
  return st == TD_OK || stop(x, st);
}

/* Whether an answer that has the whole file instead of the rest comes from another source, such as the login
 * page of a network. Then it is no reason to drop our bytes. If the file itself has changed, it has another
 * ETag. */
static bool is_strange(const fetching *x, const td_http_reply *r)
{
  const td_part *p = &x->part;
  uint64_t n = r->content_length, wanted = x->f->n_bytes;
  if (wanted != TD_HTTP_UNKNOWN && n != TD_HTTP_UNKNOWN && n != wanted)
    return true;
  return *p->etag && !*r->etag && (n == TD_HTTP_UNKNOWN || n != p->total);
}

static bool take_head(void *arg, const td_http_reply *r)
{
  fetching *x = arg;
  td_part *p = &x->part;
  if (r->status != 200 && r->status != 206) {
    x->refused = true;
    return true;
  }
  if (r->is_encoded)
    return stop(x, td_fail(x->err, TD_ERR_MODEL, "%s: the server sends it compressed, unasked", x->f->name));
  if (r->status == 206) {
    bool same_size = p->total == TD_HTTP_UNKNOWN || r->range_total == p->total;
    bool same_etag = !*p->etag || !*r->etag || strcmp(p->etag, r->etag) == 0;
    x->is_other = r->range_first != p->at || !same_size || !same_etag;
    return !x->is_other && learn(x, r, r->range_total);
  }
  if (p->at > 0 && is_strange(x, r))
    return stop(x, td_fail(x->err, TD_ERR_IO,
                           "%s: the server sends something else now; the %" PRIu64 " bytes that are here are "
                           "kept, and tandem-pull --remove removes them",
                           x->f->name, p->at));
  if (p->at > 0) { /* the file has changed, or the server does not support ranges */
    td_status st = td_part_restart(p, x->err);
    if (st != TD_OK)
      return stop(x, st);
  }
  return learn(x, r, r->content_length);
}

static bool take_bytes(void *arg, const void *bytes, size_t n)
{
  fetching *x = arg;
  td_part *p = &x->part;
  if (x->refused)
    return true; /* the text of an error page */
  uint64_t most = p->total != TD_HTTP_UNKNOWN ? p->total : TD_FETCH_BYTES_MAX;
  if (n > most - p->at)
    return stop(x, td_fail(x->err, TD_ERR_MODEL, "%s: the server sends more than %" PRIu64 " bytes",
                           x->f->name, most));
  td_status st = td_part_add(p, bytes, n, x->err);
  td_shown_move(x->f->shown, p->at);
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
static td_status again(fetching *x, uint32_t asked_s, const td_error *why)
{
  if (x->part.at > x->best) {
    x->best = x->part.at;
    x->failures = 0;
  }
  if (x->failures++ >= x->f->retries) {
    td_fail(x->err, TD_ERR_IO, "%s", why->message);
    return td_error_prefix(x->err, "%s: given up after %u tries that brought nothing", x->f->name,
                           x->failures);
  }
  td_shown_end(x->f->shown);
  if (!x->f->shown->quiet)
    fprintf(stderr, "  %s; trying again from byte %" PRIu64 "\n", why->message, x->part.at);
  pause_before(x->failures, asked_s);
  return TD_OK;
}

static td_status restart(fetching *x, const char *why)
{
  if (x->restarts++ >= TD_FETCH_RESTARTS)
    return td_fail(x->err, TD_ERR_IO, "%s: %s, again and again", x->f->name, why);
  if (!x->f->shown->quiet)
    fprintf(stderr, "  %s: %s; from the beginning\n", x->f->name, why);
  return td_part_restart(&x->part, x->err);
}

static bool is_whole(const fetching *x)
{
  return x->part.total != TD_HTTP_UNKNOWN && x->part.at == x->part.total;
}

/* Makes one exchange and decides how to go on. *done: all bytes are here. */
static td_status try_once(fetching *x, bool *done)
{
  const td_fetch *f = x->f;
  td_http_reply r;
  td_error why = {0};
  bool strong = x->part.etag[0] == '"';
  td_http_get get = {.url = f->url,
                     .name = f->name,
                     .token = f->token,
                     .from = x->part.at,
                     .if_range = strong ? x->part.etag : "",
                     .stall_s = f->stall_s,
                     .on_head = take_head,
                     .on_bytes = take_bytes,
                     .arg = x};
  x->refused = x->is_other = false;
  td_status st = td_http_run(&get, &r, &why);
  if (x->failure != TD_OK)
    return x->failure;
  if (x->is_other)
    return restart(x, "the server's file has changed");
  if (st != TD_OK)
    return r.again ? again(x, 0, &why) : td_fail(x->err, st, "%s", why.message);
  if (r.status == 416)
    return restart(x, "the server's file is shorter than what is here");
  if (r.status == 429 || r.status >= 500) {
    td_fail(&why, TD_ERR_IO, "%s: status %ld", f->name, r.status);
    return again(x, r.retry_after_s, &why);
  }
  if (x->refused)
    return td_http_refused(f->name, r.status, *f->token != '\0', x->err);
  *done = x->part.total == TD_HTTP_UNKNOWN || is_whole(x); /* without a length, its end is the end */
  if (*done)
    return TD_OK;
  td_fail(&why, TD_ERR_IO, "%s: the answer ended early", f->name);
  return again(x, 0, &why);
}

static td_status check(fetching *x, const char *path)
{
  char hex[TD_SHA256_HEX_BYTES];
  td_sha256_end(&x->part.hash, hex);
  x->is_mismatch = *x->part.sha256 && strcasecmp(hex, x->part.sha256) != 0;
  if (x->is_mismatch)
    return td_fail(x->err, TD_ERR_MODEL, "%s: SHA-256 is %s, should be %s; nothing was kept", x->f->name, hex,
                   x->part.sha256);
  return td_part_finish(&x->part, path, x->err);
}

td_status td_fetch_file(const td_fetch *f, const char *path, td_error *err)
{
  fetching x = {.f = f, .err = err};
  td_status st = td_part_open(&x.part, path, f->url, f->sha256, err);
  if (st != TD_OK)
    return st;
  x.best = x.part.at;
  bool done = is_whole(&x);
  while (st == TD_OK && !done)
    st = try_once(&x, &done);
  td_shown_end(f->shown);
  if (st == TD_OK)
    st = check(&x, path);
  td_part_close(&x.part, st == TD_OK || (x.part.at > 0 && !x.is_mismatch));
  return st;
}
