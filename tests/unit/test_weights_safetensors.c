/* Model folders: safetensors, single and sharded, the JSON files beside them, and the errors for hostile
 * ones. */
#include "weights_fixture.h"

#include <fcntl.h>

#include "config/limits.h"

#define TWO_TENSORS                                                                                          \
  "{\"__metadata__\":{\"format\":\"pt\"},"                                                                   \
  "\"a.weight\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"                               \
  "\"b.weight\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]}}"

/* A safetensors file: a header, padded with spaces to a size of total if total > 0, and data. */
static void make_safetensors(td_buf *b, const char *header, size_t data_bytes, size_t total)
{
  size_t n = strlen(header), pad = -n % 8;
  if (total)
    pad = total - 8 - data_bytes - n;
  td_buf_init(b, 0);
  put_u64(b, n + pad);
  td_buf_append_str(b, header);
  for (size_t i = 0; i < pad; i++)
    td_buf_append_char(b, ' ');
  for (size_t i = 0; i < data_bytes; i++)
    td_buf_append_char(b, (char)i);
}

static void write_safetensors(const char *folder, const char *name, const char *header, size_t data_bytes)
{
  td_buf b;
  make_safetensors(&b, header, data_bytes, 0);
  write_file(folder, name, b.data, b.len_bytes);
  td_buf_deinit(&b);
}

static void write_text(const char *folder, const char *name, const char *text)
{
  write_file(folder, name, text, strlen(text));
}

static void begin(char folder[64])
{
  make_folder(folder);
  write_text(folder, "config.json", "{}");
}

static void expect_refused(const char *folder, td_status code, const char *say_1, const char *say_2)
{
  td_model_files *f;
  td_error err = {0};
  td_status st = td_model_files_open(folder, &f, &err);
  if (st != code || !strstr(err.message, say_1) || !strstr(err.message, say_2))
    print_error("got %d '%s', wanted %d with '%s' and '%s'\n", (int)st, err.message, (int)code, say_1, say_2);
  assert_int_equal(st, code);
  assert_non_null(strstr(err.message, folder));
  assert_non_null(strstr(err.message, say_1));
  assert_non_null(strstr(err.message, say_2));
  assert_int_equal(td_model_files_open(folder, &f, NULL), code);
}

static void test_good_folder(void **state)
{
  char folder[64];
  const char *text;
  size_t n;
  td_model_files *f;
  td_error err;
  cJSON *tokenizer;
  begin(folder);
  write_safetensors(folder, "model.safetensors", TWO_TENSORS, 20);
  assert_int_equal(td_model_files_open(folder, &f, &err), TD_OK);
  assert_int_equal(td_model_files_format(f), TD_FILES_SAFETENSORS);
  assert_int_equal(td_model_files_tensor_count(f), 2);
  const td_tensor *t = td_model_files_find(f, "a.weight");
  assert_non_null(t);
  assert_int_equal(t->dtype, TD_BF16);
  assert_int_equal(t->n_dims, 2);
  assert_int_equal(t->shape[0], 2);
  assert_int_equal(t->shape[1], 3);
  assert_int_equal(((const unsigned char *)t->data)[11], 11);
  assert_string_equal(t->file, "model.safetensors");
  assert_non_null(td_model_files_config(f));
  assert_null(td_model_files_generation_config(f));
  assert_null(td_model_files_tokenizer_config(f));
  assert_false(td_model_files_chat_template(f, false, &text, &n));
  assert_int_equal(td_model_files_load_tokenizer_json(f, &tokenizer, &err), TD_ERR_MODEL);
  assert_non_null(strstr(err.message, "tokenizer.json"));
  td_model_files_close(f);

  write_text(folder, "generation_config.json", "{\"top_k\":5}");
  write_text(folder, "tokenizer_config.json", "{\"x\":1}");
  write_text(folder, "tokenizer.json", "{\"model\":{}}");
  write_text(folder, "chat_template.jinja", "{{ x }}");
  assert_int_equal(td_model_files_open(folder, &f, &err), TD_OK);
  assert_non_null(td_json_get(td_model_files_generation_config(f), "top_k"));
  assert_non_null(td_model_files_tokenizer_config(f));
  assert_null(td_json_get(td_model_files_tokenizer_config(f), "eos_token"));
  assert_true(td_model_files_chat_template(f, false, &text, &n) && n == 7 && memcmp(text, "{{ x }}", 7) == 0);
  assert_int_equal(td_model_files_load_tokenizer_json(f, &tokenizer, &err), TD_OK);
  assert_non_null(td_json_get(tokenizer, "model"));
  cJSON_Delete(tokenizer);
  td_model_files_close(f);
  /* special_tokens_map.json has what tokenizer_config.json leaves out */
  write_text(folder, "tokenizer_config.json", "{\"bos_token\":\"<a>\",\"eos_token\":null}");
  write_text(folder, "special_tokens_map.json",
             "{\"bos_token\":\"<b>\",\"eos_token\":{\"content\":\"<e>\"}}");
  assert_int_equal(td_model_files_open(folder, &f, &err), TD_OK);
  const cJSON *tokens = td_model_files_tokenizer_config(f);
  assert_string_equal(td_json_get(tokens, "bos_token")->valuestring, "<a>");
  assert_string_equal(td_json_get(td_json_get(tokens, "eos_token"), "content")->valuestring, "<e>");
  td_model_files_close(f);
  remove_folder(folder);
}

/* In a process without standard input, a file may have descriptor 0. */
static void test_where_a_tensor_lies(void **state)
{
  char folder[64];
  unsigned char bytes[12];
  td_model_files *f;
  td_error err;
  int fd = -1, kept = dup(STDIN_FILENO);
  uint64_t offset;
  begin(folder);
  write_safetensors(folder, "model.safetensors", TWO_TENSORS, 20);
  write_text(folder, "tokenizer.model", "x");
  if (kept >= 0)
    close(STDIN_FILENO);
  td_status st = td_model_files_open(folder, &f, &err);
  assert_int_equal(st, TD_OK);
  const td_tensor *t = td_model_files_find(f, "a.weight");
  assert_true(td_model_files_locate(f, t->data, &fd, &offset));
  assert_int_equal(pread(fd, bytes, t->bytes, (off_t)offset), 12);
  assert_memory_equal(bytes, t->data, 12);
  const char *begins = (const char *)t->data - offset,
             *ends = (const char *)td_model_files_find(f, "b.weight")->data + 8;
  assert_true(td_model_files_locate(f, begins, &fd, &offset) && offset == 0);
  assert_true(td_model_files_locate(f, ends - 1, &fd, &offset) && offset == (uint64_t)(ends - begins) - 1);
  assert_false(td_model_files_locate(f, begins - 1, &fd, &offset));
  assert_false(td_model_files_locate(f, ends, &fd, &offset));
  assert_false(td_model_files_locate(f, bytes, &fd, &offset));
  for (int to = 0; to <= 20;
       to++) { /* truncated meanwhile: to nothing, and inside and after the part that is read */
    char path[128];
    unsigned char read[12];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(truncate(path, (off_t)((const char *)t->data - begins) + to), 0);
    st = td_model_files_read(f, t, read, &err);
    assert_int_equal(st, to < 12 ? TD_ERR_IO : TD_OK);
    if (st != TD_OK)
      assert_string_equal(err.message,
                          "model.safetensors: tensor 'a.weight': the file was cut while it was read");
    write_safetensors(folder, "model.safetensors", TWO_TENSORS, 20);
  }
  assert_true(td_model_files_has_only_tokenizer_model(f)); /* though the folder may be descriptor 0 */
  td_model_files_close_descriptors(f);
  assert_false(td_model_files_locate(f, t->data, &fd, &offset));
  td_model_files_close(f);
  if (kept >= 0) {
    assert_int_equal(fcntl(STDIN_FILENO, F_GETFD), -1);
    dup2(kept, STDIN_FILENO);
    close(kept);
  }
  remove_folder(folder);
}

/* ---- bytes ---- */

static void test_truncations_and_mutations(void **state)
{
  static const unsigned char changes[] = {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF};
  char folder[64];
  td_buf b;
  td_model_files *f;
  td_error err;
  int opened = 0, refused = 0;
  begin(folder);
  make_safetensors(&b, TWO_TENSORS, 20, 512);
  for (size_t n = 0; n < b.len_bytes; n++) {
    write_file(folder, "model.safetensors", b.data, n);
    assert_int_equal(td_model_files_open(folder, &f, &err), TD_ERR_MODEL);
  }
  for (size_t i = 0; i < 8 + strlen(TWO_TENSORS) + 2; i++)
    for (size_t k = 0; k < sizeof changes; k++) {
      b.data[i] = (char)(b.data[i] ^ changes[k]);
      write_file(folder, "model.safetensors", b.data, b.len_bytes);
      if (td_model_files_open(folder, &f, &err) == TD_OK) {
        touch_everything(f);
        td_model_files_close(f);
        opened++;
      } else {
        assert_true(err.code == TD_ERR_MODEL || err.code == TD_ERR_UNSUPPORTED);
        refused++;
      }
      b.data[i] = (char)(b.data[i] ^ changes[k]);
    }
  assert_true(opened > 50 && refused > 100);
  td_buf_deinit(&b);
  remove_folder(folder);
}

static void test_header_lies(void **state)
{
  static const struct {
    const char *header;
    size_t data_bytes;
    td_status code;
    const char *say_1, *say_2;
  } lies[] = {
      {"[]", 0, TD_ERR_MODEL, "model.safetensors", "not a JSON object"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}", 8, TD_ERR_MODEL, "invalid JSON",
       "header"},
      {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, TD_ERR_MODEL, "'a'", "dtype"},
      {"{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, TD_ERR_UNSUPPORTED, "'a'",
       "F8_E4M3"},
      {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, TD_ERR_MODEL, "'a'", "shape"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, TD_ERR_MODEL, "'a'", "2^53"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,8]}}", 8, TD_ERR_MODEL, "'a'",
       "integers"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]}}", 8, TD_ERR_MODEL, "'a'",
       "integers"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[18446744073709551615],\"data_offsets\":[0,8]}}", 8, TD_ERR_MODEL,
       "'a'", "integers"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}", 8,
       TD_ERR_MODEL, "'a'", "2^64"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, TD_ERR_MODEL, "'a'",
       "5 dimensions"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, TD_ERR_MODEL, "'a'",
       "ascending"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, TD_ERR_MODEL, "'a'", "ascending"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":\"0,8\"}}", 8, TD_ERR_MODEL, "'a'",
       "ascending"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 8, TD_ERR_MODEL, "is 8 bytes",
       "span 4"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 8, TD_ERR_MODEL, "bytes 4 .. +8",
       "8 bytes of data"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}", 8, TD_ERR_MODEL, "'a'",
       "not aligned"},
      {"{\"a\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[0,6]},"
       "\"b\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[4,8]}}",
       8, TD_ERR_MODEL, "'a' (6 bytes) and 'b' (4 bytes)", "overlap"},
      {"{\"a\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]},"
       "\"a\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[2,4]}}",
       8, TD_ERR_MODEL, "'a'", "twice"},
      {"{\"a\":null}", 8, TD_ERR_MODEL, "'a'", "dtype"},
      {"{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]"
       "]]]]]]]]]]]]]]]]]]]]]]]]]"
       "]]]]]]]]]]]]]]]]}",
       8, TD_ERR_MODEL, "nested deeper", "64"},
  };
  char folder[64];
  begin(folder);
  for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
    write_safetensors(folder, "model.safetensors", lies[i].header, lies[i].data_bytes);
    expect_refused(folder, lies[i].code, lies[i].say_1, lies[i].say_2);
  }
  const unsigned char huge[16] = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, '{', '}'};
  write_file(folder, "model.safetensors", huge, sizeof huge);
  expect_refused(folder, TD_ERR_MODEL, "18446744073709551615 bytes", "has 16");
  write_file(folder, "model.safetensors", "", 0);
  expect_refused(folder, TD_ERR_MODEL, "8 bytes are needed", "has 0");
  remove_folder(folder);
}

/* A header longer than the limit is refused before it is parsed. */
static void test_header_limit(void **state)
{
  char folder[64], path[128];
  uint64_t n = td_limit_max(TD_LIMIT_SAFETENSORS_HEADER_BYTES) + 8;
  begin(folder);
  write_file(folder, "model.safetensors", &n, 8);
  snprintf(path, sizeof path, "%s/model.safetensors", folder);
  assert_int_equal(truncate(path, (off_t)n + 64), 0); /* a sparse file, so no disk space is used */
  expect_refused(folder, TD_ERR_MODEL, "100000008 bytes", "more than 100000000");
  remove_folder(folder);
}

/* ---- shards ---- */

#define INDEX "model.safetensors.index.json"
#define ONE(name) "{\"" name "\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]}}"

static void test_shards(void **state)
{
  char folder[64], path[128];
  td_model_files *f;
  td_error err;
  begin(folder);
  write_safetensors(folder, "s1.safetensors", ONE("a"), 2);
  write_safetensors(folder, "s2.safetensors", ONE("b"), 2);
  write_text(folder, INDEX, "{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}}");
  assert_int_equal(td_model_files_open(folder, &f, &err), TD_OK);
  assert_int_equal(td_model_files_tensor_count(f), 2);
  assert_string_equal(td_model_files_find(f, "b")->file, "s2.safetensors");
  touch_everything(f);
  td_model_files_close(f);

  write_safetensors(folder, "s3.safetensors",
                    "{\"c\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]},"
                    "\"d\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[2,4]}}",
                    4);
  write_text(folder, INDEX, /* a shard that is named again after others is opened once */
             "{\"weight_map\":{\"c\":\"s3.safetensors\",\"b\":\"s2.safetensors\",\"a\":\"s1.safetensors\","
             "\"d\":\"s3.safetensors\"}}");
  assert_int_equal(td_model_files_open(folder, &f, &err), TD_OK);
  assert_int_equal(td_model_files_tensor_count(f), 4);
  td_model_files_close(f);
  remove(strcat(strcpy(path, folder), "/s3.safetensors"));

  write_text(folder, INDEX, "{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\"}}");
  expect_refused(folder, TD_ERR_MODEL, "'b' is said to be in s1.safetensors", "not there");
  write_text(folder, INDEX, "{\"weight_map\":{\"a\":\"s2.safetensors\",\"b\":\"s1.safetensors\"}}");
  expect_refused(folder, TD_ERR_MODEL, "'a' is said to be in s2.safetensors", "in s1.safetensors");
  write_text(folder, INDEX, "{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s3.safetensors\"}}");
  expect_refused(folder, TD_ERR_IO, "s3.safetensors", "No such file");
  static const char *const escapes[] = {"../s1.safetensors", "/etc/passwd", "", ".", "..",
                                        "sub/s1.safetensors"};
  for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++) {
    char text[256];
    snprintf(text, sizeof text, "{\"weight_map\":{\"a\":\"%s\"}}", escapes[i]);
    write_text(folder, INDEX, text);
    expect_refused(folder, TD_ERR_MODEL, "'a'", "no plain file name");
  }
  write_text(folder, INDEX, "{\"weight_map\":{\"a\":7}}");
  expect_refused(folder, TD_ERR_MODEL, "'a'", "file name");
  write_text(folder, INDEX, "{\"weight_map\":{}}");
  expect_refused(folder, TD_ERR_MODEL, "names 0 files", "1024");
  write_text(folder, INDEX, "{}");
  expect_refused(folder, TD_ERR_MODEL, INDEX, "weight_map");
  write_text(folder, INDEX, "{\"weight_map\":");
  expect_refused(folder, TD_ERR_MODEL, INDEX, "invalid JSON");
  write_safetensors(folder, "s2.safetensors", ONE("a"), 2);
  write_text(folder, INDEX, "{\"weight_map\":{\"a\":\"s1.safetensors\",\"c\":\"s2.safetensors\"}}");
  expect_refused(folder, TD_ERR_MODEL, "'a'", "stands twice: in s");
  remove_folder(folder);
}

static void test_missing_pieces(void **state)
{
  char folder[64], path[128];
  make_folder(folder);
  expect_refused(folder, TD_ERR_MODEL, "no config.json", "");
  write_text(folder, "config.json", "[1]");
  expect_refused(folder, TD_ERR_MODEL, "config.json", "not a JSON object");
  write_text(folder, "config.json", "{\"a\":1,}");
  expect_refused(folder, TD_ERR_MODEL, "config.json", "invalid JSON at byte 7");
  write_text(folder, "config.json", "{}");
  expect_refused(folder, TD_ERR_MODEL, "model.safetensors", "is there");
  snprintf(path, sizeof path, "%s/model.safetensors", folder);
  assert_int_equal(mkdir(path, 0700), 0);
  expect_refused(folder, TD_ERR_MODEL, "model.safetensors", "not a regular file");
  assert_int_equal(rmdir(path), 0);
  write_safetensors(folder, "model.safetensors", TWO_TENSORS, 20);
  td_model_files *f;
  td_error err;
  assert_int_equal(td_model_files_open(path, &f, &err), TD_ERR_MODEL); /* the file instead of its folder */
  assert_non_null(strstr(err.message, "give the folder"));
  remove_folder(folder);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_good_folder),
      cmocka_unit_test(test_truncations_and_mutations),
      cmocka_unit_test(test_header_lies),
      cmocka_unit_test(test_header_limit),
      cmocka_unit_test(test_shards),
      cmocka_unit_test(test_missing_pieces),
      cmocka_unit_test(test_where_a_tensor_lies),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
