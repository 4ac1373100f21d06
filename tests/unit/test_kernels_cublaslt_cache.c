/* The cache of measured algorithms: what was written can be read, and no damaged, foreign or hostile file
 * is accepted. */
#include "kernels_fixture.h"

#include <unistd.h>
#include <xxhash.h>

#include "common/buf.h"
#include "config/limits.h"
#include "common/cache.h"
#include "kernels/cuda/cublaslt_cache.h"

#define IDENTITY "Some GPU (80 GB) cc9.0 sm132 driver13000 runtime13000 cublaslt130000"
#define HEAD "tandem-linears 1\n" IDENTITY "\n"
#define WORDS " 1 2 3 4 5 6 7 ffffffffffffffff\n"

static td_error err;

static void test_buckets(void **state)
{
  static const uint32_t want[][2] = {{1, 8},       {8, 8},       {9, 16},       {256, 256},
                                     {257, 320},   {1024, 1024}, {1025, 1152},  {2048, 2048},
                                     {2049, 2304}, {8193, 9216}, {65536, 65536}};
  for (size_t i = 0; i < sizeof want / sizeof *want; i++)
    assert_int_equal(td_lt_bucket(want[i][0]), want[i][1]);
  for (uint32_t n = 1; n < 70000; n++)
    assert_true(td_lt_bucket(n) >= n && td_lt_bucket(td_lt_bucket(n)) == td_lt_bucket(n) &&
                td_lt_bucket(n) <= td_lt_bucket(n + 1));
  assert_true(td_lt_bucket(UINT32_MAX) > 0);
}

/* Parses the head followed by body, with a correct checksum. */
static td_status parse_body(td_lt_cache *c, const char *body)
{
  td_buf b;
  td_buf_init(&b, 0);
  td_buf_printf(&b, HEAD "%s", body);
  td_buf_printf(&b, "xxh3 %016llx\n", (unsigned long long)XXH3_64bits(b.data, b.len_bytes));
  td_status st = td_lt_cache_parse(c, b.data, b.len_bytes, IDENTITY, &err);
  td_buf_deinit(&b);
  return st;
}

static void test_entries(void **state)
{
  static const char *const bad[] = {"1\n",
                                    "0 64 0 0 16 1.000" WORDS,
                                    "64 0 0 0 16 1.000" WORDS,
                                    "64 64 2 0 16 1.000" WORDS,
                                    "64 64 0 0 17 1.000" WORDS,
                                    "64 64 0 0 0 1.000" WORDS,
                                    "4294967296 64 0 0 16 1.000" WORDS,
                                    "-1 64 0 0 16 1.000" WORDS,
                                    " 64 64 0 0 16 1.000" WORDS,
                                    "64 64 0 0 16 1.000 1 2 3 4 5 6 7\n",
                                    "64 64 0 0 16 1.000 1 2 3 4 5 6 7 8 9\n",
                                    "64 64 0 0 16 1" WORDS,
                                    "64 64 0 0 16 1.000 1 2 3 4 5 6 7 10000000000000000\n",
                                    "64 64 0 0 16 1.000 1 2 3 4 5 6 7 FF\n",
                                    "\n",
                                    "64 64 0 0 16 1.000" WORDS "64 64 0 0 24 1.000 1"};
  td_lt_cache c;
  td_lt_cache_init(&c);
  assert_int_equal(parse_body(&c, "64 32 1 0 16 12.345" WORDS "64 32 0 0 16 2.000" WORDS), TD_OK);
  assert_int_equal(c.n, 2);
  const td_lt_entry *e = td_lt_cache_find(&c, 64, 32, true, false, 16);
  assert_non_null(e);
  assert_true(e->algo[0] == 1 && e->algo[7] == UINT64_MAX && fabsf(e->us - 12.345f) < 1e-4f);
  assert_null(td_lt_cache_find(&c, 64, 32, true, true, 16));
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_int_equal(parse_body(&c, bad[i]), TD_ERR_CONFIG);
    assert_int_equal(c.n, 0);
  }
  assert_int_equal(parse_body(&c, ""), TD_OK);
  td_lt_cache_deinit(&c);
}

static void test_too_many(void **state)
{
  td_lt_cache c;
  td_lt_cache_init(&c);
  size_t max = td_limit_max(TD_LIMIT_LINEAR_CACHE_ENTRIES);
  for (size_t i = 0; i < max; i++)
    assert_int_equal(
        td_lt_cache_put(&c, &(td_lt_entry){.n_out = 1 + (uint32_t)i, .n_in = 8, .bucket = 8}, &err), TD_OK);
  assert_int_equal(td_lt_cache_put(&c, &(td_lt_entry){.n_out = 5, .n_in = 8, .bucket = 8, .us = 3}, &err),
                   TD_OK);
  assert_int_equal(td_lt_cache_put(&c, &(td_lt_entry){.n_out = 5, .n_in = 16, .bucket = 8}, &err),
                   TD_ERR_CAPACITY);
  assert_int_equal(c.n, max);
  td_lt_cache_deinit(&c);
}

/* Changes every byte of a file in turn, cuts it to every length, and changes the identity. */
static void test_file(void **state)
{
  char folder[] = "/tmp/td_lt_XXXXXX", path[TD_CACHE_PATH_BYTES], text[4096];
  bool found = true;
  td_lt_cache c, back;
  td_lt_cache_init(&c);
  td_lt_cache_init(&back);
  assert_non_null(mkdtemp(folder));
  assert_true(td_lt_cache_path(folder, IDENTITY, path));
  assert_int_equal(strncmp(path + strlen(folder), "/linears-", strlen("/linears-")), 0);
  assert_null(strchr(path + strlen(folder) + 1, '/'));
  assert_int_equal(td_lt_cache_read(&back, path, IDENTITY, &found, &err), TD_OK);
  assert_false(found);
  for (uint32_t m = 8; m <= 32; m += 8)
    assert_int_equal(
        td_lt_cache_put(&c, &(td_lt_entry){6144, 4096, m, false, m == 8, (float)m, {m, UINT64_MAX}}, &err),
        TD_OK);
  assert_int_equal(td_lt_cache_write(&c, path, IDENTITY, &err), TD_OK);
  assert_int_equal(td_lt_cache_read(&back, path, IDENTITY, &found, &err), TD_OK);
  assert_true(found && back.n == c.n);
  for (size_t i = 0; i < c.n; i++) {
    assert_memory_equal(back.entries[i].algo, c.entries[i].algo, sizeof c.entries[i].algo);
    assert_true(back.entries[i].bucket == c.entries[i].bucket && back.entries[i].bias == c.entries[i].bias);
    assert_true(back.entries[i].us == c.entries[i].us);
  }
  assert_int_equal(td_lt_cache_read(&back, path, IDENTITY "0", &found, &err), TD_ERR_CONFIG);
  FILE *f = fopen(path, "rb");
  size_t n = fread(text, 1, sizeof text, f);
  fclose(f);
  assert_true(n > 100 && n < sizeof text);
  for (size_t i = 0; i < n; i++) {
    assert_int_equal(td_lt_cache_parse(&back, text, i, IDENTITY, &err), TD_ERR_CONFIG);
    text[i] ^= 1;
    assert_int_equal(td_lt_cache_parse(&back, text, n, IDENTITY, &err), TD_ERR_CONFIG);
    text[i] ^= 1;
  }
  assert_int_equal(td_lt_cache_parse(&back, text, n, IDENTITY, &err), TD_OK);
  assert_int_equal(td_lt_cache_read(&back, folder, IDENTITY, &found, &err),
                   TD_ERR_CONFIG); /* no regular file */
  assert_int_equal(unlink(path), 0);
  assert_int_equal(rmdir(folder), 0); /* no temporary file remains */
  assert_int_equal(td_lt_cache_write(&c, path, IDENTITY, &err), TD_ERR_IO);
  td_lt_cache_deinit(&c);
  td_lt_cache_deinit(&back);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_buckets), cmocka_unit_test(test_entries),
                                     cmocka_unit_test(test_too_many), cmocka_unit_test(test_file)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
