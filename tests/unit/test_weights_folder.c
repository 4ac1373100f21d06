/* The files beside a folder's weights: how long each may be, to the byte; which may be missing; and what
 * special_tokens_map.json adds. */
#include "weights_fixture.h"

#include "config/limits.h"

#define HEADER "{\"a\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]}}"

static void write_text(const char *folder, const char *name, const char *text)
{
  write_file(folder, name, text, strlen(text));
}

static void begin(char folder[64])
{
  td_buf b;
  make_folder(folder);
  write_text(folder, "config.json", "{}");
  td_buf_init(&b, 0);
  put_u64(&b, strlen(HEADER));
  td_buf_append_str(&b, HEADER);
  td_buf_append(&b, "xy", 2);
  write_file(folder, "model.safetensors", b.data, b.len_bytes);
  td_buf_deinit(&b);
}

static td_model_files *must_open(const char *folder)
{
  td_model_files *f;
  td_error err;
  if (td_model_files_open(folder, &f, &err) != TD_OK)
    fail_msg("%s", err.message);
  return f;
}

/* The rest of so long a file is a hole, which is zeros. */
static void write_long(const char *folder, const char *name, const char *begins, uint64_t n_bytes)
{
  char path[512];
  write_text(folder, name, begins);
  snprintf(path, sizeof path, "%s/%s", folder, name);
  assert_int_equal(truncate(path, (off_t)n_bytes), 0);
}

static td_status open_and_read(const char *folder, td_error *err)
{
  td_model_files *f;
  cJSON *json = NULL;
  td_status st = td_model_files_open(folder, &f, err);
  if (st != TD_OK)
    return st;
  st = td_model_files_load_tokenizer_json(f, &json, err);
  cJSON_Delete(json);
  json = NULL;
  if (st == TD_OK)
    st = td_model_files_load_added_tokens(f, &json, err);
  cJSON_Delete(json);
  td_model_files_close(f);
  return st;
}

static void each_file_has_a_longest(void **state)
{
  static const struct {
    const char *name;
    td_limit_id most;
    const char *says; /* the error for a file of the maximum length: zeros are not JSON. NULL: accepted */
  } rows[] = {
      {"config.json", TD_LIMIT_MODEL_JSON_BYTES, "invalid JSON"},
      {"generation_config.json", TD_LIMIT_MODEL_JSON_BYTES, "invalid JSON"},
      {"tokenizer_config.json", TD_LIMIT_MODEL_JSON_BYTES, "invalid JSON"},
      {"special_tokens_map.json", TD_LIMIT_MODEL_JSON_BYTES, "invalid JSON"},
      {"tokenizer.json", TD_LIMIT_MODEL_JSON_BYTES, "invalid JSON"},
      {"chat_template.jinja", TD_LIMIT_TEMPLATE_BYTES, NULL},
      {"additional_chat_templates/tool_use.jinja", TD_LIMIT_TEMPLATE_BYTES, NULL},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    for (int more = 0; more < 2; more++) {
      char folder[64], path[128], says[128];
      td_error err = {0};
      uint64_t most = td_limit_max(rows[i].most);
      begin(folder);
      write_text(folder, "tokenizer.json", "{}");
      write_text(folder, "added_tokens.json", "{}");
      snprintf(path, sizeof path, "%s/additional_chat_templates", folder);
      assert_int_equal(mkdir(path, 0700), 0);
      write_long(folder, rows[i].name, "x", most + (uint64_t)more);
      td_status st = open_and_read(folder, &err);
      snprintf(says, sizeof says, "%s: %llu bytes, more than %llu", rows[i].name,
               (unsigned long long)most + 1, (unsigned long long)most);
      const char *want = more ? says : rows[i].says;
      if (st != (want ? TD_ERR_MODEL : TD_OK) || (want && !strstr(err.message, want)))
        fail_msg("%s: %d '%s', not '%s'", rows[i].name, st, err.message, want ? want : "");
      remove_folder(folder);
    }
}

static void a_folder_without_a_tokenizer_says_so(void **state)
{
  char folder[64];
  td_error err = {0};
  td_model_files *f;
  cJSON *json;
  begin(folder);
  f = must_open(folder);
  assert_false(td_model_files_has_tokenizer(f));
  assert_int_equal(td_model_files_load_tokenizer_json(f, &json, &err), TD_ERR_MODEL);
  assert_non_null(strstr(err.message, "neither tokenizer.json nor tokenizer.model"));
  write_text(folder, "tokenizer.model", "abc");
  assert_true(td_model_files_has_tokenizer(f) && td_model_files_has_only_tokenizer_model(f));
  void *bytes;
  size_t n;
  assert_int_equal(td_model_files_load_tokenizer_model(f, &bytes, &n, &err), TD_OK);
  assert_int_equal(n, 3);
  assert_memory_equal(bytes, "abc", 3);
  free(bytes);
  write_text(folder, "tokenizer.json", "{\"b\":1}");
  assert_true(td_model_files_has_tokenizer(f) && !td_model_files_has_only_tokenizer_model(f));
  assert_int_equal(td_model_files_load_tokenizer_json(f, &json, &err), TD_OK);
  assert_int_equal(cJSON_GetArraySize(json), 1);
  cJSON_Delete(json);
  td_model_files_close(f);
  remove_folder(folder);
}

/* Values of the configuration have precedence unless they are null; without a configuration, only the map
 * counts. */
static void the_map_of_special_tokens_fills_in(void **state)
{
  static const struct {
    const char *config, *map, *want;
  } rows[] = {
      {NULL, "{\"bos_token\":\"<s>\",\"other\":1}", "{\"bos_token\":\"<s>\",\"other\":1}"},
      {"{\"eos_token\":\"x\"}", NULL, "{\"eos_token\":\"x\"}"},
      {"{\"eos_token\":\"x\",\"pad_token\":null}", "{\"eos_token\":\"y\",\"pad_token\":\"p\",\"other\":1}",
       "{\"eos_token\":\"x\",\"pad_token\":\"p\"}"},
      {"{}",
       "{\"bos_token\":1,\"eos_token\":2,\"unk_token\":3,\"pad_token\":4,\"sep_token\":5,\"cls_token\":6,"
       "\"mask_token\":7,\"additional_special_tokens\":[8]}",
       "{\"bos_token\":1,\"eos_token\":2,\"unk_token\":3,\"pad_token\":4,\"sep_token\":5,\"cls_token\":6,"
       "\"mask_token\":7,\"additional_special_tokens\":[8]}"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char folder[64];
    begin(folder);
    if (rows[i].config)
      write_text(folder, "tokenizer_config.json", rows[i].config);
    if (rows[i].map)
      write_text(folder, "special_tokens_map.json", rows[i].map);
    td_model_files *f = must_open(folder);
    char *got = cJSON_PrintUnformatted(td_model_files_tokenizer_config(f));
    assert_non_null(got);
    assert_string_equal(got, rows[i].want);
    cJSON_free(got);
    td_model_files_close(f);
    remove_folder(folder);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_file_has_a_longest),
      cmocka_unit_test(a_folder_without_a_tokenizer_says_so),
      cmocka_unit_test(the_map_of_special_tokens_fills_in),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
