/* The cache file of tuned cuBLASLt algorithms. See cublaslt_cache.h.
 *
 *   tandem-linears 1
 *   NAME OF DEVICE, CAPABILITY, DRIVER, RUNTIME, LIBRARY
 *   n_out n_in f32 bias bucket us WORD0 .. WORD7
 *   ...
 *   xxh3 CHECKSUM of all bytes before this line
 *
 * Numbers are decimal, us has 3 digits after the dot, words are hexadecimal. The checksum detects damage, not
 * malice: before an algorithm is used, the library checks it. */
#include "kernels/cuda/cublaslt_cache.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "config/limits.h"

#define HEADER "tandem-linears 1\n"
enum { CHECKSUM_LINE_BYTES = 5 + 16 + 1, NS_MAX = 2000000000 };

void td_lt_cache_init(td_lt_cache *c) { *c = (td_lt_cache){0}; }

void td_lt_cache_deinit(td_lt_cache *c)
{
  free(c->entries);
  td_lt_cache_init(c);
}

uint32_t td_lt_bucket(uint32_t n)
{
  uint32_t step = n <= 256 ? 8 : n <= 1024 ? 64 : n <= 2048 ? 128 : n <= 8192 ? 256 : 1024;
  return n > UINT32_MAX - step ? UINT32_MAX / step * step : (n + step - 1) / step * step;
}

static td_lt_entry *find(const td_lt_cache *c, uint32_t n_out, uint32_t n_in, bool f32, bool bias,
                         uint32_t bucket)
{
  for (size_t i = 0; i < c->n; i++) {
    td_lt_entry *e = &c->entries[i];
    if (e->n_out == n_out && e->n_in == n_in && e->f32 == f32 && e->bias == bias && e->bucket == bucket)
      return e;
  }
  return NULL;
}

const td_lt_entry *td_lt_cache_find(const td_lt_cache *c, uint32_t n_out, uint32_t n_in, bool f32, bool bias,
                                    uint32_t bucket)
{
  return find(c, n_out, n_in, f32, bias, bucket);
}

td_status td_lt_cache_put(td_lt_cache *c, const td_lt_entry *e, td_error *err)
{
  td_lt_entry *old = find(c, e->n_out, e->n_in, e->f32, e->bias, e->bucket);
  if (old) {
    *old = *e;
    return TD_OK;
  }
  if (c->n >= td_limit_max(TD_LIMIT_LINEAR_CACHE_ENTRIES))
    return td_fail(err, TD_ERR_CAPACITY, "the cache of linears is full: %zu entries", c->n);
  if (c->n == c->capacity) {
    size_t capacity = c->capacity ? 2 * c->capacity : 256;
    td_lt_entry *more = realloc(c->entries, capacity * sizeof *more);
    if (!more)
      return td_fail(err, TD_ERR_NOMEM, "no memory for the cache of linears");
    c->entries = more;
    c->capacity = capacity;
  }
  c->entries[c->n++] = *e;
  return TD_OK;
}

/* ---- text ---- */

typedef struct cursor {
  const char *at, *end;
} cursor;

/* Reads a number of base 10 or 16, at most max, and the character after it. Signs and spaces are errors. */
static bool take_number(cursor *c, uint64_t base, uint64_t max, char behind, uint64_t *out)
{
  uint64_t v = 0;
  const char *begin = c->at;
  for (; c->at < c->end; c->at++) {
    char ch = *c->at;
    uint64_t digit = ch >= '0' && ch <= '9'   ? (uint64_t)(ch - '0')
                     : ch >= 'a' && ch <= 'f' ? (uint64_t)(ch - 'a') + 10
                                              : 99;
    if (digit >= base)
      break;
    if (v > (max - digit) / base || digit > max)
      return false;
    v = v * base + digit;
  }
  if (c->at == begin || c->at == c->end || *c->at != behind)
    return false;
  c->at++;
  *out = v;
  return true;
}

static bool take_entry(cursor *c, td_lt_entry *e)
{
  uint64_t n_out, n_in, f32, bias, bucket, us, ns;
  bool ok = take_number(c, 10, UINT32_MAX, ' ', &n_out) && take_number(c, 10, UINT32_MAX, ' ', &n_in) &&
            take_number(c, 10, 1, ' ', &f32) && take_number(c, 10, 1, ' ', &bias) &&
            take_number(c, 10, UINT32_MAX, ' ', &bucket) && take_number(c, 10, NS_MAX, '.', &us) &&
            take_number(c, 10, 999, ' ', &ns);
  if (!ok || n_out == 0 || n_in == 0 || bucket == 0 || td_lt_bucket((uint32_t)bucket) != bucket)
    return false;
  *e = (td_lt_entry){(uint32_t)n_out,
                     (uint32_t)n_in,
                     (uint32_t)bucket,
                     f32,
                     bias,
                     (float)((double)us + (double)ns / 1000),
                     {0}};
  for (int i = 0; i < TD_LT_ALGO_WORDS; i++)
    if (!take_number(c, 16, UINT64_MAX, i + 1 < TD_LT_ALGO_WORDS ? ' ' : '\n', &e->algo[i]))
      return false;
  return true;
}

static bool take_text(cursor *c, const char *text)
{
  size_t n = strlen(text);
  if ((size_t)(c->end - c->at) < n || memcmp(c->at, text, n) != 0)
    return false;
  c->at += n;
  return true;
}

static td_status parse(td_lt_cache *c, cursor at, const char *identity, td_error *err)
{
  const char *begin = at.at;
  if (!take_text(&at, HEADER))
    return td_fail(err, TD_ERR_CONFIG, "not of this version");
  if (!take_text(&at, identity) || !take_text(&at, "\n"))
    return td_fail(err, TD_ERR_CONFIG, "made for another device, driver or library");
  cursor sum = {at.end - CHECKSUM_LINE_BYTES, at.end};
  uint64_t want;
  if (sum.at < at.at || !take_text(&sum, "xxh3 ") || !take_number(&sum, 16, UINT64_MAX, '\n', &want) ||
      sum.at != sum.end)
    return td_fail(err, TD_ERR_CONFIG, "cut off");
  at.end -= CHECKSUM_LINE_BYTES;
  if (XXH3_64bits(begin, (size_t)(at.end - begin)) != want)
    return td_fail(err, TD_ERR_CONFIG, "damaged");
  while (at.at < at.end) {
    td_lt_entry e;
    if (!take_entry(&at, &e))
      return td_fail(err, TD_ERR_CONFIG, "no valid entry at byte %zu", (size_t)(at.at - begin));
    TD_TRY(td_lt_cache_put(c, &e, err));
  }
  return TD_OK;
}

td_status td_lt_cache_parse(td_lt_cache *c, const char *text, size_t n_bytes, const char *identity,
                            td_error *err)
{
  td_lt_cache_deinit(c);
  td_status st = n_bytes == 0 ? td_fail(err, TD_ERR_CONFIG, "empty")
                              : parse(c, (cursor){text, text + n_bytes}, identity, err);
  if (st != TD_OK)
    td_lt_cache_deinit(c);
  return st;
}

/* ---- the file ---- */

bool td_lt_cache_path(const char *folder, const char *identity, char out[TD_CACHE_PATH_BYTES])
{
  return td_cache_path(folder, "linears", identity, out);
}

td_status td_lt_cache_read(td_lt_cache *c, const char *path, const char *identity, bool *found, td_error *err)
{
  td_buf text;
  td_lt_cache_deinit(c);
  td_buf_init(&text, td_limit_max(TD_LIMIT_LINEAR_CACHE_BYTES));
  td_status st = td_cache_read(path, &text, found, err);
  if (st == TD_OK && *found)
    st = td_lt_cache_parse(c, text.data, text.len_bytes, identity, err);
  td_buf_deinit(&text);
  return st;
}

static void print(td_buf *b, const td_lt_cache *c, const char *identity)
{
  td_buf_printf(b, "%s%s\n", HEADER, identity);
  for (size_t i = 0; i < c->n; i++) {
    const td_lt_entry *e = &c->entries[i];
    double us = e->us >= 0 && e->us < 1e9f ? (double)e->us : 0;
    td_buf_printf(b, "%u %u %d %d %u %.3f", e->n_out, e->n_in, e->f32, e->bias, e->bucket, us);
    for (int w = 0; w < TD_LT_ALGO_WORDS; w++)
      td_buf_printf(b, " %" PRIx64, e->algo[w]);
    td_buf_append_char(b, '\n');
  }
  if (!b->failed)
    td_buf_printf(b, "xxh3 %016" PRIx64 "\n", (uint64_t)XXH3_64bits(b->data, b->len_bytes));
}

td_status td_lt_cache_write(const td_lt_cache *c, const char *path, const char *identity, td_error *err)
{
  td_buf text;
  td_buf_init(&text, td_limit_max(TD_LIMIT_LINEAR_CACHE_BYTES));
  print(&text, c, identity);
  td_status st = text.failed ? td_fail(err, TD_ERR_NOMEM, "%s: too large", path)
                             : td_cache_write(path, text.data, text.len_bytes, err);
  td_buf_deinit(&text);
  return st;
}
