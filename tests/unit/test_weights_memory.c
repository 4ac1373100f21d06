/* Opening a model when memory, mappings or descriptors run out: whichever allocation fails, the error says
 * so, and nothing leaks. Also the other files in a folder of weights. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>

#include "allocations_fixture.h"
#include "weights_fixture.h"

#include "config/limits.h"

char *__wrap_strdup(const char *s);
char *__wrap_strdup(const char *s)
{
  char *copy = __wrap_malloc(strlen(s) + 1);
  return copy ? strcpy(copy, s) : NULL;
}

enum { ALLOCATIONS_MAX = 400 };

/* ---- resources that this process holds ---- */

static int count_descriptors(void)
{
  int n = 0;
  DIR *d = opendir("/proc/self/fd");
  assert_non_null(d);
  for (const struct dirent *e; (e = readdir(d)) != NULL;)
    if (e->d_name[0] != '.' && atoi(e->d_name) != dirfd(d)) {
      n++;
      assert_true(atoi(e->d_name) < 3 ||
                  fcntl(atoi(e->d_name), F_GETFD) == FD_CLOEXEC); /* no child process inherits it */
    }
  closedir(d);
  return n;
}

static int count_mappings(const char *folder)
{
  char line[1000];
  int n = 0;
  FILE *f = fopen("/proc/self/maps", "re");
  assert_non_null(f);
  while (fgets(line, sizeof line, f))
    n += strstr(line, folder) != NULL;
  fclose(f);
  return n;
}

/* ---- models ---- */

static void write_text(const char *folder, const char *name, const char *text)
{
  write_file(folder, name, text, strlen(text));
}

static void write_shard(const char *folder, const char *name, const char *tensor)
{
  td_buf b;
  char header[200];
  int n = snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]}}",
                   tensor);
  td_buf_init(&b, 0);
  put_u64(&b, (uint64_t)n);
  td_buf_append_str(&b, header);
  td_buf_append(&b, tensor, 2);
  write_file(folder, name, b.data, b.len_bytes);
  td_buf_deinit(&b);
}

#define INDEX "model.safetensors.index.json"

static void make_sharded(char folder[64])
{
  char path[100];
  make_folder(folder);
  write_text(folder, "config.json", "{\"a\":1}");
  write_text(folder, "generation_config.json", "{\"top_k\":5}");
  write_text(folder, "tokenizer_config.json", "{\"bos_token\":\"<a>\",\"eos_token\":null}");
  write_text(folder, "special_tokens_map.json",
             "{\"bos_token\":\"<b>\",\"eos_token\":\"<e>\",\"pad_token\":\"<p>\"}");
  write_text(folder, "tokenizer.json", "{\"model\":{}}");
  write_text(folder, "tokenizer.model", "proto\0buf");
  write_text(folder, "added_tokens.json", "{\"<x>\":7}");
  write_text(folder, "chat_template.jinja", "{{ x }}");
  snprintf(path, sizeof path, "%s/additional_chat_templates", folder);
  assert_int_equal(mkdir(path, 0700), 0);
  write_text(path, "tool_use.jinja", "{{ tools }}");
  write_shard(folder, "s1.safetensors", "ab");
  write_shard(folder, "s2.safetensors", "cd");
  write_text(folder, INDEX, "{\"weight_map\":{\"ab\":\"s1.safetensors\",\"cd\":\"s2.safetensors\"}}");
}

static void write_part(const char *folder, const char *file, const char *tensor, uint32_t no,
                       uint32_t n_tensors)
{
  const uint64_t dims[] = {16};
  td_buf b;
  td_buf_init(&b, 0);
  put_header(&b, 1, 4);
  put_key_u32(&b, "split.no", no);
  put_key_u32(&b, "split.count", 2);
  put_key_u32(&b, "split.tensors.count", n_tensors);
  put_key_text(&b, "general.architecture", "llama");
  put_tensor(&b, tensor, 1, dims, 0, 0);
  put_padding(&b, 32);
  for (int i = 0; i < 16; i++)
    put_u32(&b, (uint32_t)i);
  write_file(folder, file, b.data, b.len_bytes);
  td_buf_deinit(&b);
}

static void make_parts(char folder[64], char path[128])
{
  make_folder(folder);
  write_part(folder, "m-00001-of-00002.gguf", "a", 0, 2);
  write_part(folder, "m-00002-of-00002.gguf", "b", 1, 2);
  snprintf(path, 128, "%s/m-00001-of-00002.gguf", folder);
}

/* ---- tests ---- */

static long refused_at_each(const char *path, const char *folder, uint32_t n_tensors)
{
  int n_fds = count_descriptors();
  for (long k = 0; k < ALLOCATIONS_MAX; k++) {
    td_error err = {0};
    td_model_files *f = NULL;
    n_calls = n_alive = 0;
    fails_at = k;
    td_status st = td_model_files_open(path, &f, &err);
    fails_at = -1;
    if (st == TD_OK) {
      assert_true(n_calls <= k);
      assert_int_equal(td_model_files_tensor_count(f), n_tensors);
      touch_everything(f);
      count_descriptors();
      td_model_files_close(f);
    } else {
      assert_int_equal(st, TD_ERR_NOMEM);
      assert_non_null(strstr(err.message, "no memory"));
      assert_null(f);
    }
    assert_int_equal(n_alive, 0);
    assert_int_equal(count_mappings(folder), 0);
    assert_int_equal(count_descriptors(), n_fds);
    if (st == TD_OK)
      return k;
  }
  fail_msg("more than %d allocations", ALLOCATIONS_MAX);
  return 0;
}

static void each_allocation_may_fail(void **state)
{
  char folder[64], path[128];
  make_sharded(folder);
  assert_true(refused_at_each(folder, folder, 2) > 20);
  remove_folder(folder);
  make_parts(folder, path);
  assert_true(refused_at_each(path, folder, 2) > 5);
  remove_folder(folder);
}

/* Files are closed even if the process has no standard input: then a descriptor may be 0. */
static void descriptor_zero(void **state)
{
  char folder[64];
  int kept = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
  make_sharded(folder);
  close(STDIN_FILENO);
  int n_fds = count_descriptors();
  td_model_files *f;
  td_error err;
  assert_int_equal(td_model_files_open_described(folder, &f, &err), TD_OK);
  assert_int_equal(td_model_files_tensor_count(f), 0); /* weights were not asked for */
  assert_true(td_model_files_has_tokenizer(f));
  assert_false(td_model_files_has_only_tokenizer_model(f));
  td_model_files_close(f);
  assert_int_equal(count_descriptors(), n_fds);
  if (kept >= 0) {
    dup2(kept, STDIN_FILENO);
    close(kept);
  }
  remove_folder(folder);
}

/* Each file of a folder made wrong in turn: the error, and that nothing leaks. */
static void what_is_wrong_is_given_back(void **state)
{
  static const struct {
    const char *file, *text;
    td_status st;
    const char *says;
  } bad[] = {
      {"config.json", "[1]", TD_ERR_MODEL, "config.json: not a JSON object"},
      {"config.json", NULL, TD_ERR_MODEL, "no config.json"},
      {"generation_config.json", "[1]", TD_ERR_MODEL, "generation_config.json: not a JSON object"},
      {"generation_config.json", "{", TD_ERR_MODEL, "generation_config.json: invalid JSON"},
      {"tokenizer_config.json", "7", TD_ERR_MODEL, "tokenizer_config.json: not a JSON object"},
      {"special_tokens_map.json", "[1]", TD_ERR_MODEL, "special_tokens_map.json: not a JSON object"},
      {"special_tokens_map.json", "{", TD_ERR_MODEL, "special_tokens_map.json: invalid JSON"},
      {"s2.safetensors", "x", TD_ERR_MODEL, "s2.safetensors"},
      {"s2.safetensors", "", TD_ERR_MODEL, "s2.safetensors"},
      {"s2.safetensors", NULL, TD_ERR_IO, "s2.safetensors: No such file"},
      {INDEX, "{\"weight_map\":{\"ab\":\"s2.safetensors\",\"cd\":\"s1.safetensors\"}}", TD_ERR_MODEL, "'ab'"},
      {INDEX, NULL, TD_ERR_MODEL, "neither model.safetensors nor"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char folder[64], path[128];
    td_error err = {0};
    td_model_files *f = (void *)folder;
    make_sharded(folder);
    snprintf(path, sizeof path, "%s/%s", folder, bad[i].file);
    if (bad[i].text)
      write_text(folder, bad[i].file, bad[i].text);
    else
      assert_int_equal(unlink(path), 0);
    int n_fds = count_descriptors();
    n_alive = 0;
    assert_int_equal(td_model_files_open(folder, &f, &err), bad[i].st);
    if (!strstr(err.message, bad[i].says) || strncmp(err.message, folder, strlen(folder)) != 0)
      fail_msg("%s: '%s' says '%s'", bad[i].file, bad[i].text ? bad[i].text : "none", err.message);
    assert_null(f);
    assert_int_equal(n_alive, 0);
    assert_int_equal(count_mappings(folder), 0);
    assert_int_equal(count_descriptors(), n_fds);
    remove_folder(folder);
  }
  td_error err = {0};
  td_model_files *f = (void *)&err;
  assert_int_equal(td_model_files_open("/tmp/td_no_such_model", &f, &err), TD_ERR_IO);
  assert_string_equal(err.message, "/tmp/td_no_such_model: No such file or directory");
  assert_null(f);
  td_model_files_close(NULL);
}

/* A template of exactly the maximum size, and one of one byte more. */
static void templates_have_a_size(void **state)
{
  char folder[64];
  size_t most = td_limit_max(TD_LIMIT_TEMPLATE_BYTES);
  char *text = malloc(most + 1);
  assert_non_null(text);
  memset(text, 'x', most + 1);
  for (size_t over = 0; over < 2; over++) {
    td_error err = {0};
    td_model_files *f;
    const char *got;
    size_t n;
    make_sharded(folder);
    write_file(folder, "chat_template.jinja", text, most + over);
    n_alive = 0;
    td_status st = td_model_files_open(folder, &f, &err);
    assert_int_equal(st, over ? TD_ERR_MODEL : TD_OK);
    if (over)
      assert_non_null(strstr(err.message, "chat_template.jinja: "));
    else
      assert_true(td_model_files_chat_template(f, false, &got, &n) && n == most);
    td_model_files_close(over ? NULL : f);
    assert_int_equal(n_alive, 0);
    remove_folder(folder);
  }
  free(text);
}

static bool has_template(const td_model_files *f, bool for_tools, const char *want)
{
  const char *text;
  size_t n;
  bool has = td_model_files_chat_template(f, for_tools, &text, &n);
  if (has)
    assert_true(want && n == strlen(want) && memcmp(text, want, n) == 0);
  return has;
}

static void what_stands_beside_weights(void **state)
{
  char folder[64], path[128];
  td_error err = {0};
  td_model_files *f;
  cJSON *tree;
  void *bytes = NULL;
  size_t n = 0;
  make_sharded(folder);
  assert_int_equal(td_model_files_open(folder, &f, &err), TD_OK);
  assert_string_equal(td_model_files_path(f), folder);
  assert_int_equal(td_json_get(td_model_files_config(f), "a")->valueint, 1);
  assert_int_equal(td_json_get(td_model_files_generation_config(f), "top_k")->valueint, 5);
  const cJSON *config = td_model_files_tokenizer_config(f);
  assert_string_equal(td_json_get(config, "bos_token")->valuestring, "<a>");
  assert_string_equal(td_json_get(config, "eos_token")->valuestring, "<e>");
  assert_string_equal(td_json_get(config, "pad_token")->valuestring, "<p>");
  assert_true(has_template(f, false, "{{ x }}") && has_template(f, true, "{{ tools }}"));
  assert_int_equal(td_model_files_load_tokenizer_model(f, &bytes, &n, &err), TD_OK);
  assert_true(n == 5 && memcmp(bytes, "proto", 5) == 0);
  free(bytes);
  assert_int_equal(td_model_files_load_added_tokens(f, &tree, &err), TD_OK);
  assert_int_equal(td_json_get(tree, "<x>")->valueint, 7);
  cJSON_Delete(tree);
  assert_int_equal(td_model_files_load_tokenizer_json(f, &tree, &err), TD_OK);
  cJSON_Delete(tree);
  assert_null(td_model_files_tensor(f, 2));
  assert_non_null(td_model_files_tensor(f, 1));

  /* weights are read from their file while it is open, and from the mapping afterwards */
  char got[2];
  const td_tensor *t = td_model_files_find(f, "cd");
  int fd, n_fds = count_descriptors();
  uint64_t at;
  assert_true(td_model_files_locate(f, t->data, &fd, &at));
  assert_true(td_model_files_locate(f, (const char *)t->data + 1, &fd, &at));
  assert_false(td_model_files_locate(f, (const char *)t->data + 2, &fd, &at)); /* the file ends there */
  assert_int_equal(td_model_files_read(f, t, got, &err), TD_OK);
  assert_memory_equal(got, "cd", 2);
  snprintf(path, sizeof path, "%s/s2.safetensors", folder);
  td_model_files_close_descriptors(f);
  assert_int_equal(count_descriptors(),
                   n_fds - 2); /* of two shards; those of the folder and the templates stay */
  assert_false(td_model_files_locate(f, t->data, &fd, &at));
  memset(got, 0, 2);
  assert_int_equal(td_model_files_read(f, t, got, &err), TD_OK);
  assert_memory_equal(got, "cd", 2);
  td_model_files_close(f);

  /* a file that was cut since */
  assert_int_equal(td_model_files_open(folder, &f, &err), TD_OK);
  t = td_model_files_find(f, "cd");
  struct stat st;
  assert_int_equal(stat(path, &st), 0);
  assert_int_equal(truncate(path, st.st_size - 1), 0);
  assert_int_equal(td_model_files_read(f, t, got, &err), TD_ERR_IO);
  assert_string_equal(err.message, "s2.safetensors: tensor 'cd': the file was cut while it was read");
  assert_int_equal(truncate(path, 8), 0); /* nothing of it is left */
  assert_int_equal(td_model_files_read(f, t, got, &err), TD_ERR_IO);
  assert_string_equal(err.message, "s2.safetensors: tensor 'cd': the file was cut while it was read");
  td_model_files_close(f);
  remove_folder(folder);
}

/* Which tokenizer a folder has, of the two kinds. */
static void tokenizers_of_a_folder(void **state)
{
  for (int has = 0; has < 4; has++) {
    char folder[64], path[128];
    td_error err = {0};
    td_model_files *f;
    cJSON *tree;
    void *bytes;
    size_t n;
    make_sharded(folder);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    if (!(has & 1))
      assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/tokenizer.model", folder);
    if (!(has & 2))
      assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/added_tokens.json", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(td_model_files_open(folder, &f, &err), TD_OK);
    assert_int_equal(td_model_files_has_tokenizer(f), has != 0);
    assert_int_equal(td_model_files_has_only_tokenizer_model(f), has == 2);
    assert_int_equal(td_model_files_load_tokenizer_json(f, &tree, &err), has & 1 ? TD_OK : TD_ERR_MODEL);
    if (!(has & 1))
      assert_non_null(strstr(err.message, "neither tokenizer.json nor tokenizer.model"));
    cJSON_Delete(tree);
    n_alive = 0;
    assert_int_equal(td_model_files_load_tokenizer_model(f, &bytes, &n, &err), has & 2 ? TD_OK : TD_ERR_IO);
    if (has & 2)
      free(bytes);
    assert_int_equal(n_alive, 0);
    assert_int_equal(td_model_files_load_added_tokens(f, &tree, &err), TD_OK);
    assert_null(tree);
    write_text(folder, "tokenizer.json", "{\"model\":");
    assert_int_equal(td_model_files_load_tokenizer_json(f, &tree, &err), TD_ERR_MODEL);
    assert_true(strncmp(err.message, folder, strlen(folder)) == 0 &&
                strstr(err.message, "tokenizer.json: invalid JSON"));
    assert_int_equal(td_model_files_load_tokenizer_json(f, &tree, NULL), TD_ERR_MODEL);
    n_alive = 0;
    write_text(folder, "added_tokens.json", "[7]");
    assert_int_equal(td_model_files_load_added_tokens(f, &tree, &err), TD_ERR_MODEL);
    assert_int_equal(n_alive, 0);
    td_model_files_close(f);
    remove_folder(folder);
  }
  char folder[64], path[128];
  td_error err = {0};
  td_model_files *f;
  cJSON *tree;
  make_parts(folder, path); /* GGUF has its own */
  assert_int_equal(td_model_files_open(path, &f, &err), TD_OK);
  assert_true(td_model_files_has_tokenizer(f));
  assert_false(td_model_files_has_only_tokenizer_model(f));
  assert_int_equal(td_model_files_load_tokenizer_json(f, &tree, &err), TD_ERR_MODEL);
  assert_false(has_template(f, false, NULL) || has_template(f, true, NULL));
  td_model_files_close(f);
  /* the parts' tensors are counted if the file states their number */
  for (uint32_t n = 1; n <= 3; n++) {
    write_part(folder, "m-00001-of-00002.gguf", "a", 0, n);
    assert_int_equal(td_model_files_open(path, &f, &err), n == 2 ? TD_OK : TD_ERR_MODEL);
    if (n != 2)
      assert_non_null(strstr(err.message, ", but the files have 2 tensors"));
    td_model_files_close(n == 2 ? f : NULL);
  }
  assert_int_equal(count_mappings(folder), 0);
  remove_folder(folder);
}

/* Descriptors that this process inherited do not count. */
static void close_others_on_exec(void)
{
  for (int fd = 3; fd < 1024; fd++)
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/* How a number in a header may be misread. */
static void headers(void **state)
{
  char folder[64];
  td_buf b;
  td_error err = {0};
  td_model_files *f;
  const uint64_t dims[] = {1};
  td_buf_init(&b, 0);
  put_header(&b, 123, 0); /* '{', where a safetensors file has its first byte of JSON */
  for (int i = 0; i < 123; i++) {
    char name[20];
    snprintf(name, sizeof name, "t%d", i);
    put_tensor(&b, name, 1, dims, 0, (uint64_t)i * 32);
  }
  put_padding(&b, 32);
  for (int i = 0; i < 123 * 32; i++)
    td_buf_append_char(&b, 0);
  if (open_bytes(b.data, b.len_bytes, &f, &err) != TD_OK)
    fail_msg("%s", err.message);
  assert_int_equal(td_model_files_tensor_count(f), 123);
  td_model_files_close(f);
  td_buf_deinit(&b);
  make_folder(folder); /* tensors without elements take no bytes, whichever extent is 0 */
  write_text(folder, "config.json", "{}");
  const char *header = "{\"a\":{\"dtype\":\"F16\",\"shape\":[3,0],\"data_offsets\":[0,0]},"
                       "\"b\":{\"dtype\":\"F16\",\"shape\":[0,3],\"data_offsets\":[0,0]},"
                       "\"c\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[0,2]}}";
  td_buf_init(&b, 0);
  put_u64(&b, strlen(header));
  td_buf_append_str(&b, header);
  td_buf_append(&b, "xx", 2);
  write_file(folder, "model.safetensors", b.data, b.len_bytes);
  td_buf_deinit(&b);
  if (td_model_files_open(folder, &f, &err) != TD_OK)
    fail_msg("%s", err.message);
  assert_int_equal(td_model_files_find(f, "a")->bytes, 0);
  assert_int_equal(td_model_files_find(f, "b")->bytes, 0);
  assert_int_equal(td_model_files_find(f, "c")->bytes, 2);
  td_model_files_close(f);
  remove_folder(folder);
}

/* Keys that are prefixes of one another, in any order. */
static void keys_that_begin_alike(void **state)
{
  static const char *const keys[] = {"k", "kk", "kkk", "kka", "a", "kb"};
  for (uint32_t first = 0; first < 6; first++) {
    td_buf b;
    td_error err = {0};
    td_model_files *f;
    uint64_t v;
    td_buf_init(&b, 0);
    put_header(&b, 0, 6);
    for (uint32_t i = 0; i < 6; i++)
      put_key_u32(&b, keys[(first + 5 * i) % 6], (first + 5 * i) % 6);
    put_padding(&b, 32);
    if (open_bytes(b.data, b.len_bytes, &f, &err) != TD_OK)
      fail_msg("%s", err.message);
    for (uint32_t i = 0; i < 6; i++)
      assert_true(td_gguf_get_u64(f, keys[i], &v) && v == i);
    assert_false(td_gguf_get_u64(f, "", &v) || td_gguf_get_u64(f, "kkkk", &v) || td_gguf_get_u64(f, "b", &v));
    td_model_files_close(f);
    td_buf_deinit(&b);
  }
}

/* A file that is changed while it is mapped: lengths of its texts are read and checked again. */
static void texts_that_change(void **state)
{
  enum { KEY_BYTES = 8 + 1 + 4 + 4 + 8 }; /* of the array, before its first text */
  for (int which = 0; which < 4; which++) {
    char folder[64], path[128];
    td_buf b;
    td_error err = {0};
    td_model_files *f;
    td_gguf_string_iter it;
    td_gguf_string s;
    td_buf_init(&b, 0);
    put_header(&b, 0, 1);
    size_t at = b.len_bytes + KEY_BYTES;
    put_key(&b, "k", 9);
    put_u32(&b, 8);
    put_u64(&b, 3);
    put_text(&b, "one");
    put_text(&b, "two");
    put_text(&b, "three");
    put_padding(&b, 32);
    make_folder(folder);
    write_file(folder, "m.gguf", b.data, b.len_bytes);
    snprintf(path, sizeof path, "%s/m.gguf", folder);
    if (td_model_files_open(path, &f, &err) != TD_OK)
      fail_msg("%s", err.message);
    assert_true(td_gguf_string_array(f, "k", &it));
    /* all bytes left after the first length, one byte more, and a length that leaves 8 or 7 bytes for the
     * next one */
    uint64_t left = (uint64_t)(it.end - it.at) - 8, n = which == 0   ? left
                                                        : which == 1 ? left + 1
                                                        : which == 2 ? left - 8
                                                                     : left - 7;
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, &n, 8, (off_t)at), 8);
    close(fd);
    assert_int_equal(td_gguf_string_next(&it, &s), which != 1);
    if (which != 1)
      assert_int_equal(s.n_bytes, n);
    if (which == 2)
      assert_true(!td_gguf_string_next(&it, &s) ||
                  s.n_bytes == 0); /* it reads a length, of padding or of text */
    else
      assert_false(td_gguf_string_next(&it, &s) && which != 1);
    td_model_files_close(f);
    remove_folder(folder);
    td_buf_deinit(&b);
  }
}

int main(void)
{
  close_others_on_exec();
  cJSON_Hooks hooks = {__wrap_malloc, __wrap_free};
  cJSON_InitHooks(&hooks);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_allocation_may_fail),    cmocka_unit_test(descriptor_zero),
      cmocka_unit_test(what_is_wrong_is_given_back), cmocka_unit_test(templates_have_a_size),
      cmocka_unit_test(what_stands_beside_weights),  cmocka_unit_test(headers),
      cmocka_unit_test(texts_that_change),           cmocka_unit_test(keys_that_begin_alike),
      cmocka_unit_test(tokenizers_of_a_folder),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
