/* The cache file of measured algorithms. Input: a byte for the mode, then the file. Even: the file as it
 * is. Odd: entries only, to which the right head and checksum are added, because mutation would never find
 * them. Properties: a refused file has no effect and gives one printable line; an accepted one is within
 * bounds, has no duplicates, and reads the same when written again. */
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/buf.h"
#include "config/limits.h"
#include "fuzz.h"
#include "kernels/cuda/cublaslt_cache.h"

#define IDENTITY "Some GPU (80 GB) cc9.0"

static void put_file(const uint8_t *data, size_t size, bool entries)
{
  td_buf b;
  td_buf_init(&b, 0);
  if (entries)
    td_buf_printf(&b, "tandem-linears 1\n" IDENTITY "\n");
  td_buf_append(&b, (const char *)data, size);
  if (entries)
    td_buf_printf(&b, "xxh3 %016llx\n", (unsigned long long)XXH3_64bits(b.data, b.len_bytes));
  FUZZ_CHECK(!b.failed);
  fuzz_write("linears", b.data, b.len_bytes);
  td_buf_deinit(&b);
}

static void check_error(td_status st, const td_error *err)
{
  FUZZ_CHECK(st == TD_ERR_CONFIG || st == TD_ERR_CAPACITY);
  FUZZ_CHECK(*err->message);
  for (const char *c = err->message; *c; c++)
    FUZZ_CHECK((unsigned char)*c >= 0x20 && *c != 0x7f);
}

static bool same(const td_lt_entry *a, const td_lt_entry *b)
{
  return a->n_out == b->n_out && a->n_in == b->n_in && a->bucket == b->bucket && a->f32 == b->f32 &&
         a->bias == b->bias && (a->us == b->us || (a->us >= 1e9f && b->us == 0)) &&
         memcmp(a->algo, b->algo, sizeof a->algo) == 0;
}

static void check_entries(const td_lt_cache *c)
{
  FUZZ_CHECK(c->n <= td_limit_max(TD_LIMIT_LINEAR_CACHE_ENTRIES) && c->n <= c->capacity);
  for (size_t i = 0; i < c->n; i++) {
    const td_lt_entry *e = &c->entries[i];
    FUZZ_CHECK(e->n_out > 0 && e->n_in > 0 && e->bucket > 0 && td_lt_bucket(e->bucket) == e->bucket);
    FUZZ_CHECK(e->us >= 0 && e->us < 4e9f);
    FUZZ_CHECK(td_lt_cache_find(c, e->n_out, e->n_in, e->f32, e->bias, e->bucket) == e);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  fuzz_input in = {data, size};
  bool entries = fuzz_take(&in) & 1, found = false;
  td_lt_cache c, again;
  td_error err = {0};
  td_lt_cache_init(&c);
  td_lt_cache_init(&again);
  put_file(in.data, in.size, entries);
  td_status st = td_lt_cache_read(&c, fuzz_path("linears"), IDENTITY, &found, &err);
  FUZZ_CHECK(found);
  if (st != TD_OK) {
    check_error(st, &err);
    FUZZ_CHECK(c.n == 0 && !c.entries);
  } else {
    check_entries(&c);
    FUZZ_CHECK(td_lt_cache_write(&c, fuzz_path("linears"), IDENTITY, &err) == TD_OK);
    FUZZ_CHECK(td_lt_cache_read(&again, fuzz_path("linears"), IDENTITY, &found, &err) == TD_OK &&
               again.n == c.n);
    for (size_t i = 0; i < c.n; i++)
      FUZZ_CHECK(same(&c.entries[i], &again.entries[i]));
  }
  td_lt_cache_deinit(&again);
  td_lt_cache_deinit(&c);
  return 0;
}
