/* GGUF: the contents of a good file, and that no bytes can do harm. */
#include "weights_fixture.h"

#include <time.h>

#include "config/limits.h"

static void put_metadata(td_buf *b)
{
  double wide = 2.5;
  put_key_text(b, "general.architecture", "llama");
  put_key_u32(b, "general.alignment", 32);
  put_key(b, "a.i8", 1);
  td_buf_append_char(b, -5);
  put_key(b, "a.u64", 10);
  put_u64(b, UINT64_MAX);
  put_key_f32(b, "a.f32", 1.5f);
  put_key(b, "a.f64", 12);
  td_buf_append(b, &wide, 8);
  put_key(b, "a.true", 7);
  td_buf_append_char(b, 1);
  put_key(b, "a.numbers", 9);
  put_u32(b, 5);
  put_u64(b, 3);
  put_u32(b, 7);
  put_u32(b, (uint32_t)-8);
  put_u32(b, 9);
  put_key(b, "a.words", 9);
  put_u32(b, 8);
  put_u64(b, 3);
  put_text(b, "one");
  put_text(b, "");
  put_text(b, "three");
}
enum { METADATA_KEYS = 9 };

/* Two tensors. The file is one page long, filled up with an unused string, so that reading past its end
 * faults. */
static void make_file(td_buf *b, size_t n_unused)
{
  char unused[FIXTURE_PAGE] = {0};
  const uint64_t matrix[] = {64, 3}, vector[] = {16};
  const uint64_t matrix_bytes = 3 * 2 * 34, matrix_room = 224; /* Q8_0: 2 blocks a row; padded to 32 */
  td_buf_init(b, 0);
  put_header(b, 2, METADATA_KEYS + 1);
  put_metadata(b);
  memset(unused, 'x', n_unused);
  put_key_text(b, "unused", unused);
  put_tensor(b, "blk.0.w.weight", 2, matrix, 8, 0);
  put_tensor(b, "norm.weight", 1, vector, 0, matrix_room);
  put_padding(b, 32);
  for (uint64_t i = 0; i < matrix_room; i++)
    td_buf_append_char(b, i < matrix_bytes ? (char)i : 0);
  for (int i = 0; i < 16; i++) {
    float v = (float)i / 4;
    td_buf_append(b, &v, 4);
  }
}

static void make_good_file(td_buf *b)
{
  make_file(b, 0);
  size_t n = b->len_bytes;
  td_buf_deinit(b);
  make_file(b, FIXTURE_PAGE - n);
  assert_int_equal(b->len_bytes, FIXTURE_PAGE);
}

static void test_good_file(void **state)
{
  td_buf b;
  td_model_files *f;
  td_error err;
  uint64_t u;
  double d;
  bool flag = false;
  td_gguf_string s;
  td_gguf_string_iter it;
  make_good_file(&b);
  assert_int_equal(open_bytes(b.data, b.len_bytes, &f, &err), TD_OK);
  assert_int_equal(td_model_files_format(f), TD_FILES_GGUF);
  assert_int_equal(td_model_files_bytes(f), b.len_bytes);
  assert_int_equal(td_model_files_tensor_count(f), 2);

  const td_tensor *t = td_model_files_find(f, "blk.0.w.weight");
  assert_non_null(t);
  assert_int_equal(t->dtype, TD_Q8_0);
  assert_int_equal(t->n_dims, 2);
  assert_int_equal(t->shape[0], 3); /* outermost first */
  assert_int_equal(t->shape[1], 64);
  assert_int_equal(t->bytes, 204);
  assert_int_equal(((const unsigned char *)t->data)[203], 203);
  t = td_model_files_find(f, "norm.weight");
  assert_float_equal(((const float *)t->data)[15], 3.75, 0);
  assert_null(td_model_files_find(f, "norm"));

  assert_true(td_gguf_get_string(f, "general.architecture", &s));
  assert_int_equal(s.n_bytes, 5);
  assert_memory_equal(s.data, "llama", 5);
  assert_false(td_gguf_get_u64(f, "a.i8", &u)); /* negative */
  assert_true(td_gguf_get_f64(f, "a.i8", &d));
  assert_float_equal(d, -5, 0);
  assert_true(td_gguf_get_u64(f, "a.u64", &u));
  assert_true(u == UINT64_MAX);
  assert_true(td_gguf_get_f64(f, "a.f32", &d));
  assert_float_equal(d, 1.5, 0);
  assert_true(td_gguf_get_f64(f, "a.f64", &d));
  assert_float_equal(d, 2.5, 0);
  assert_true(td_gguf_get_bool(f, "a.true", &flag) && flag);
  assert_false(td_gguf_get_bool(f, "a.f32", &flag));
  assert_false(td_gguf_get_u64(f, "a.f32", &u));
  assert_false(td_gguf_get_u64(f, "absent", &u));
  assert_true(td_gguf_get_array_count(f, "a.numbers", &u) && u == 3);
  assert_true(td_gguf_get_array_f64(f, "a.numbers", 1, &d));
  assert_float_equal(d, -8, 0);
  assert_false(td_gguf_get_array_f64(f, "a.numbers", 3, &d));
  assert_false(td_gguf_get_array_f64(f, "a.words", 0, &d));
  assert_false(td_gguf_string_array(f, "a.numbers", &it));
  assert_true(td_gguf_string_array(f, "a.words", &it));
  assert_true(td_gguf_string_next(&it, &s) && s.n_bytes == 3);
  assert_true(td_gguf_string_next(&it, &s) && s.n_bytes == 0);
  assert_true(td_gguf_string_next(&it, &s) && s.n_bytes == 5 && memcmp(s.data, "three", 5) == 0);
  assert_false(td_gguf_string_next(&it, &s));
  td_model_files_close(f);
  td_buf_deinit(&b);
}

static void test_every_truncation_is_refused(void **state)
{
  td_buf b;
  make_good_file(&b);
  for (size_t n = 0; n < b.len_bytes; n++) {
    td_model_files *f;
    td_error err;
    assert_int_not_equal(open_bytes(b.data, n, &f, &err), TD_OK);
    assert_null(f);
    assert_true(err.message[0] != '\0');
  }
  td_buf_deinit(&b);
}

static void test_every_mutation_is_survived(void **state)
{
  static const unsigned char changes[] = {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF, 0x7F};
  td_buf b;
  int opened = 0, refused = 0;
  make_good_file(&b);
  for (size_t i = 0; i < b.len_bytes - 224 - 64; i++)
    for (size_t k = 0; k < sizeof changes; k++) {
      td_model_files *f;
      td_error err;
      b.data[i] = (char)(b.data[i] ^ changes[k]);
      if (open_bytes(b.data, b.len_bytes, &f, &err) == TD_OK) {
        touch_everything(f);
        td_model_files_close(f);
        opened++;
      } else {
        assert_true(err.code == TD_ERR_MODEL || err.code == TD_ERR_UNSUPPORTED);
        refused++;
      }
      b.data[i] = (char)(b.data[i] ^ changes[k]);
    }
  assert_true(opened > 100 && refused > 100);
  td_buf_deinit(&b);
}

/* ---- inconsistent files, refused by name ---- */

static void expect_refused(td_buf *b, td_status code, const char *say_1, const char *say_2)
{
  td_model_files *f;
  td_error err = {0};
  td_status st = open_bytes(b->data, b->len_bytes, &f, &err);
  if (st != code || !strstr(err.message, say_1) || !strstr(err.message, say_2))
    print_error("got %d '%s', wanted %d with '%s' and '%s'\n", (int)st, err.message, (int)code, say_1, say_2);
  assert_int_equal(st, code);
  assert_non_null(strstr(err.message, say_1));
  assert_non_null(strstr(err.message, say_2));
  td_buf_deinit(b);
}

static void begin(td_buf *b, uint64_t n_tensors, uint64_t n_keys)
{
  td_buf_init(b, 0);
  put_header(b, n_tensors, n_keys);
}

static void test_versions(void **state)
{
  for (char version = 2; version <= 3; version++) {
    td_buf b;
    td_model_files *f;
    td_error err;
    begin(&b, 0, 0);
    b.data[4] = version;
    assert_int_equal(open_bytes(b.data, b.len_bytes, &f, &err), TD_OK);
    assert_null(td_model_files_tensor(f, 0));
    td_model_files_close(f);
    td_buf_deinit(&b);
  }
}

static void test_header_lies(void **state)
{
  td_buf b;
  begin(&b, 0, 0);
  b.data[0] = 'g';
  expect_refused(&b, TD_ERR_MODEL, "not a GGUF file", "67 47 55 46");
  begin(&b, 0, 0);
  b.data[4] = 1;
  expect_refused(&b, TD_ERR_UNSUPPORTED, "version 1", "2 and 3");
  begin(&b, 0, 0);
  b.data[4] = 4;
  expect_refused(&b, TD_ERR_UNSUPPORTED, "version 4", "2 and 3");
  begin(&b, 0, 0);
  memcpy(b.data + 4, "\0\0\0\3", 4);
  expect_refused(&b, TD_ERR_UNSUPPORTED, "big-endian", "");
  begin(&b, UINT64_MAX, 0);
  expect_refused(&b, TD_ERR_MODEL, "18446744073709551615 tensors", "65536");
  begin(&b, 0, UINT64_MAX);
  expect_refused(&b, TD_ERR_MODEL, "18446744073709551615 metadata keys", "65536");
  begin(&b, 60000, 0);
  expect_refused(&b, TD_ERR_MODEL, "cut off in a tensor name", "the file has 24");
  begin(&b, 0, 60000);
  expect_refused(&b, TD_ERR_MODEL, "cut off in a metadata key", "the file has 24");
}

static void test_metadata_lies(void **state)
{
  td_buf b;
  begin(&b, 0, 1);
  put_u64(&b, UINT64_MAX); /* key length */
  expect_refused(&b, TD_ERR_MODEL, "a metadata key", "18446744073709551615");
  begin(&b, 0, 1);
  put_key(&b, "k", 13);
  put_u64(&b, 0);
  expect_refused(&b, TD_ERR_MODEL, "'k'", "unknown type (type 13)");
  begin(&b, 0, 1);
  put_key(&b, "nest", 9);
  put_u32(&b, 9);
  put_u64(&b, 1);
  expect_refused(&b, TD_ERR_MODEL, "'nest'", "array of arrays");
  begin(&b, 0, 1);
  put_key(&b, "huge", 9);
  put_u32(&b, 10);
  put_u64(&b, UINT64_MAX / 4);
  expect_refused(&b, TD_ERR_MODEL, "cut off in an array", "");
  begin(&b, 0, 1);
  put_key(&b, "words", 9);
  put_u32(&b, 8);
  put_u64(&b, UINT64_MAX);
  put_text(&b, "one");
  expect_refused(&b, TD_ERR_MODEL, "an array of strings", "");
  begin(&b, 0, 2);
  put_key_u32(&b, "twice", 1);
  put_key_u32(&b, "twice", 1);
  expect_refused(&b, TD_ERR_MODEL, "'twice'", "stands twice");
  begin(&b, 0, 1);
  put_key_u32(&b, "split.count", 3);
  expect_refused(&b, TD_ERR_MODEL, "split.count", "-00001-of-00003.gguf");
  begin(&b, 0, 2);
  put_key_u32(&b, "split.count", 3);
  put_key_u32(&b, "split.no", 1);
  expect_refused(&b, TD_ERR_MODEL, "file 2 of 3", "give the first");
  begin(&b, 0, 1);
  put_key_u32(&b, "split.count", 1000000);
  expect_refused(&b, TD_ERR_MODEL, "split.count", "1000000");
  for (uint32_t i = 0; i < 3; i++) {
    const char *said[] = {"not 0", "not 3", "not 33"};
    const uint32_t alignment[] = {0, 3, 33};
    begin(&b, 0, 1);
    put_key_u32(&b, "general.alignment", alignment[i]);
    expect_refused(&b, TD_ERR_MODEL, "general.alignment", said[i]);
  }
  begin(&b, 0, 1);
  put_key_f32(&b, "general.alignment", 32);
  expect_refused(&b, TD_ERR_MODEL, "general.alignment", "power of two");
}

/* A file of a split model: one vector of 16 floats. no, n: the values of its keys. */
static void write_part(const char *folder, const char *file, const char *tensor, uint32_t no, uint32_t n)
{
  const uint64_t dims[] = {16};
  td_buf b;
  begin(&b, 1, 3);
  put_key_u32(&b, "split.no", no);
  put_key_u32(&b, "split.count", n);
  put_key_u32(&b, "split.tensors.count", 2);
  put_tensor(&b, tensor, 1, dims, 0, 0);
  put_padding(&b, 32);
  for (int i = 0; i < 16; i++) {
    float v = (float)(no * 100) + (float)i;
    td_buf_append(&b, &v, 4);
  }
  write_file(folder, file, b.data, b.len_bytes);
  td_buf_deinit(&b);
}

/* Opens the first of a folder's parts; words is the expected error text. */
static td_model_files *open_parts(const char *folder, const char *say)
{
  char path[128];
  td_model_files *f = NULL;
  td_error err = {0};
  snprintf(path, sizeof path, "%s/m-00001-of-00002.gguf", folder);
  td_status st = td_model_files_open(path, &f, &err);
  assert_int_equal(st == TD_OK, say == NULL);
  if (say && !strstr(err.message, say))
    print_error("'%s', not '%s'\n", err.message, say);
  assert_true(!say || strstr(err.message, say));
  return f;
}

static void test_parts(void **state)
{
  char folder[64];
  make_folder(folder);
  write_part(folder, "m-00001-of-00002.gguf", "a", 0, 2);
  (void)open_parts(folder, "m-00002-of-00002.gguf: No such file");
  write_part(folder, "m-00002-of-00002.gguf", "b", 1, 2);
  td_model_files *f = open_parts(folder, NULL);
  const td_tensor *a = td_model_files_find(f, "a"), *b = td_model_files_find(f, "b");
  assert_true(((const float *)a->data)[3] == 3 && ((const float *)b->data)[3] == 103);
  assert_string_equal(b->file, "m-00002-of-00002.gguf");
  uint64_t no;
  assert_true(td_gguf_get_u64(f, "split.no", &no) && no == 0);
  td_model_files_close(f);
  write_part(folder, "m-00002-of-00002.gguf", "b", 0, 2);
  (void)open_parts(folder, "file 2 of 2");
  write_part(folder, "m-00002-of-00002.gguf", "b", 1, 3);
  (void)open_parts(folder, "file 2 of 2");
  write_part(folder, "m-00002-of-00002.gguf", "a", 1, 2);
  (void)open_parts(folder, "'a'");
  write_file(folder, "m-00002-of-00002.gguf", "GGUF", 4);
  (void)open_parts(folder, "m-00002-of-00002.gguf: cut off");
  remove_folder(folder);
}

/* One tensor followed by 64 bytes of data. */
static void one_tensor(td_buf *b, uint32_t n_dims, const uint64_t *dims, uint32_t type, uint64_t offset)
{
  begin(b, 1, 0);
  put_tensor(b, "some.weight", n_dims, dims, type, offset);
  put_padding(b, 32);
  for (int i = 0; i < 64; i++)
    td_buf_append_char(b, 0);
}

static void test_tensor_lies(void **state)
{
  const uint64_t four[] = {4, 1, 1, 1, 1}, huge[] = {UINT64_MAX / 2, 8}, wrap[] = {1ull << 32, 1ull << 32, 4},
                 zero_wrap[] = {0, 1ull << 63, 4}, seventeen[] = {17}, thirty_one[] = {31};
  td_buf b;
  one_tensor(&b, 0, four, 0, 0);
  expect_refused(&b, TD_ERR_MODEL, "some.weight", "0 dimensions");
  one_tensor(&b, 5, four, 0, 0);
  expect_refused(&b, TD_ERR_MODEL, "some.weight", "5 dimensions");
  one_tensor(&b, 2, huge, 0, 0);
  expect_refused(&b, TD_ERR_MODEL, "some.weight", "[8, 9223372036854775807]");
  one_tensor(&b, 3, wrap, 0, 0);
  expect_refused(&b, TD_ERR_MODEL, "some.weight", "cannot have shape");
  one_tensor(&b, 3, zero_wrap, 0, 0);
  expect_refused(&b, TD_ERR_MODEL, "some.weight", "cannot have shape");
  one_tensor(&b, 1, seventeen, 0, 0);
  expect_refused(&b, TD_ERR_MODEL, "bytes 0 .. +68", "64 bytes of data");
  one_tensor(&b, 1, four, 0, 64);
  expect_refused(&b, TD_ERR_MODEL, "bytes 64 .. +16", "64 bytes of data");
  one_tensor(&b, 1, four, 0, UINT64_MAX - 31);
  expect_refused(&b, TD_ERR_MODEL, "some.weight", "64 bytes of data");
  one_tensor(&b, 1, four, 0, 8);
  expect_refused(&b, TD_ERR_MODEL, "offset 8", "alignment 32");
  one_tensor(&b, 1, thirty_one, 8, 0);
  expect_refused(&b, TD_ERR_MODEL, "cannot have shape [31] in type Q8_0", "blocks of 32");
  one_tensor(&b, 1, four, 10, 0);
  expect_refused(&b, TD_ERR_UNSUPPORTED, "some.weight", "ggml type 10");
}

static void two_tensors(td_buf *b, const char *second, uint64_t offset)
{
  const uint64_t eight[] = {8};
  begin(b, 2, 1);
  put_key_u32(b, "general.alignment", 2);
  put_tensor(b, "first", 1, eight, 0, 0);
  put_tensor(b, second, 1, eight, 0, offset);
  put_padding(b, 4);
  for (int i = 0; i < 96; i++)
    td_buf_append_char(b, 0);
}

static void test_tensors_that_clash(void **state)
{
  const uint64_t two[] = {2};
  td_buf b;
  td_model_files *f;
  td_error err;
  two_tensors(&b, "first", 32);
  expect_refused(&b, TD_ERR_MODEL, "'first'", "stands twice");
  two_tensors(&b, "second", 28);
  expect_refused(&b, TD_ERR_MODEL, "'first' (32 bytes) and 'second' (32 bytes)", "overlap");
  two_tensors(&b, "second", 34);
  expect_refused(&b, TD_ERR_MODEL, "'second'", "not aligned to 4");
  two_tensors(&b, "second", 32);
  assert_int_equal(open_bytes(b.data, b.len_bytes, &f, &err), TD_OK);
  td_model_files_close(f);
  td_buf_deinit(&b);
  begin(&b, 1, 0);
  put_u64(&b, 3);
  td_buf_append(&b, "a\0b", 3);
  put_u32(&b, 1);
  put_u64(&b, two[0]);
  put_u32(&b, 0);
  put_u64(&b, 0);
  put_padding(&b, 64);
  expect_refused(&b, TD_ERR_MODEL, "zero byte", "");
}

/* Look-up by name takes at most logarithmic time: 60,000 look-ups in 60,000 tensors, many times over. */
static void test_many_tensors(void **state)
{
  const uint64_t one[] = {1};
  enum { N = 60000 };
  char name[32];
  td_buf b;
  td_model_files *f;
  td_error err;
  begin(&b, N, 1);
  put_key_u32(&b, "general.alignment", 4);
  for (uint32_t i = 0; i < N; i++) {
    snprintf(name, sizeof name, "t.%u", i * 7919u % N);
    put_tensor(&b, name, 1, one, 0, 4ull * i);
  }
  put_padding(&b, 4);
  for (uint32_t i = 0; i < N; i++)
    put_u32(&b, i * 7919u % N);
  clock_t start = clock();
  assert_int_equal(open_bytes(b.data, b.len_bytes, &f, &err), TD_OK);
  assert_int_equal(td_model_files_tensor_count(f), N);
  for (uint32_t i = 0; i < N; i++) {
    snprintf(name, sizeof name, "t.%u", i);
    const td_tensor *t = td_model_files_find(f, name);
    assert_non_null(t);
    assert_memory_equal(t->data, &i, 4);
  }
  assert_true(clock() - start < 20 * CLOCKS_PER_SEC); /* linear look-ups would take minutes */
  td_model_files_close(f);
  td_buf_deinit(&b);
}

static void test_what_is_no_file(void **state)
{
  char folder[64], path[128];
  td_model_files *f;
  td_error err;
  make_folder(folder);
  assert_int_equal(td_model_files_open("/nonexistent/model.gguf", &f, &err), TD_ERR_IO);
  assert_non_null(strstr(err.message, "/nonexistent/model.gguf"));
  assert_int_equal(td_model_files_open("/dev/zero", &f, &err), TD_ERR_MODEL);
  assert_non_null(strstr(err.message, "not a regular file"));
  snprintf(path, sizeof path, "%s/fifo", folder);
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_int_equal(td_model_files_open(path, &f, &err), TD_ERR_MODEL); /* and it does not hang */
  assert_int_equal(td_model_files_open(path, &f, NULL), TD_ERR_MODEL);
  remove_folder(folder);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_parts),
      cmocka_unit_test(test_good_file),
      cmocka_unit_test(test_every_truncation_is_refused),
      cmocka_unit_test(test_every_mutation_is_survived),
      cmocka_unit_test(test_versions),
      cmocka_unit_test(test_header_lies),
      cmocka_unit_test(test_metadata_lies),
      cmocka_unit_test(test_tensor_lies),
      cmocka_unit_test(test_tensors_that_clash),
      cmocka_unit_test(test_many_tensors),
      cmocka_unit_test(test_what_is_no_file),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
