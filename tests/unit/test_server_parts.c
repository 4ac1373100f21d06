/* Small parts of the server: API keys, listen addresses, metrics text, error objects, JSON of answers and
 * streams. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/call.h"
#include "server/metrics.h"

/* ---- keys ---- */

static td_status read_keys(td_keys *k, const char *text, td_error *err)
{
  char path[] = "/tmp/td_keys_XXXXXX";
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
  close(fd);
  td_status st = td_keys_read(k, path, err);
  unlink(path);
  return st;
}

/* The vectors of SipHash's reference implementation: key 00 01 .. 0f, data 00 01 .. of n bytes. */
static void test_namespaces(void **state)
{
  static const struct {
    size_t n;
    uint64_t hash;
  } vectors[] = {{0, 0x726fdb47dd0e0e31}, {1, 0x74f839c593dc67fd}, {2, 0x0d6c8009d9a94f5a},
                 {3, 0x85676696d7fb7e2d}, {8, 0x93f5f5799a932462}, {15, 0xa129ca6149be45e5}};
  td_namespace_secret key = {0x0706050403020100, 0x0f0e0d0c0b0a0908}, other = {1, 2};
  unsigned char data[16];
  for (unsigned i = 0; i < sizeof data; i++)
    data[i] = (unsigned char)i;
  for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++)
    assert_true(td_siphash(&key, data, vectors[i].n) == vectors[i].hash);
  assert_true(td_namespace_of(&key, 7, NULL) == 7);
  uint64_t salted = td_namespace_of(&key, 7, "salt");
  assert_true(salted >> 63 == 1 && salted == td_namespace_of(&key, 7, "salt"));
  assert_true(salted != td_namespace_of(&key, 8, "salt") && salted != td_namespace_of(&key, 7, "salts") &&
              salted != td_namespace_of(&other, 7, "salt"));
}

static void test_keys(void **state)
{
  td_keys k;
  td_error err;
  uint32_t account;
  assert_int_equal(td_keys_read(&k, "", &err), TD_OK);
  assert_true(td_keys_allow(&k, NULL, NULL, &account) && account == 0); /* no file: no key is required */
  assert_true(td_keys_allow(&k, "Bearer x", NULL, &account) && account == 0);

  assert_int_equal(read_keys(&k, "# comment\n\nfirst\n  second \r\nthird", &err), TD_OK);
  assert_int_equal(k.n, 3);
  static const struct {
    const char *header;
    uint32_t account;
  } cases[] = {
      {"Bearer first", 1},
      {"Bearer second", 2},
      {"bearer third", 3},
      {"Bearer  first", 1},
      {NULL, 0},
      {"", 0},
      {"first", 0},
      {"Bearer", 0},
      {"Bearer ", 0},
      {"Bearer firs", 0},
      {"Bearer firstx", 0},
      {"Bearer First", 0},
      {"Basic first", 0},
      {"Bearer # comment", 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    assert_int_equal(td_keys_allow(&k, cases[i].header, NULL, &account), cases[i].account != 0);
    assert_int_equal(account, cases[i].account);
  }
  static const struct {
    const char *authorization, *api_key;
    uint32_t account;
  } both[] = {{NULL, "second", 2},           {NULL, "Bearer second", 0},  {NULL, " second", 0}, {NULL, "", 0},
              {"Bearer first", "second", 1}, /* Authorization wins */
              {"Bearer wrong", "second", 0}, {"Basic first", "second", 0}};
  for (size_t i = 0; i < sizeof both / sizeof both[0]; i++) {
    assert_int_equal(td_keys_allow(&k, both[i].authorization, both[i].api_key, &account),
                     both[i].account != 0);
    assert_int_equal(account, both[i].account);
  }
  char big[400] = "Bearer ";
  memset(big + 7, 'a', 300);
  assert_false(td_keys_allow(&k, big, NULL, &account));
  assert_false(td_keys_allow(&k, NULL, big + 7, &account));
  td_keys_deinit(&k);

  assert_int_equal(read_keys(&k, "# none\n", &err), TD_ERR_CONFIG);
  assert_int_equal(read_keys(&k, "secret\nsecret\n", &err), TD_ERR_CONFIG);
  assert_null(strstr(err.message, "secret"));
  assert_int_equal(read_keys(&k, big, &err), TD_ERR_CONFIG);
  assert_int_equal(td_keys_read(&k, "/nonexistent", &err), TD_ERR_CONFIG);
}

/* ---- tenants ---- */

/* The attributes after a key, and that no message shows what may be a key. */
static void test_key_settings(void **state)
{
  td_keys k;
  td_error err;
  assert_int_equal(
      read_keys(&k,
                "one\n"
                "two  name=bob.b@x-y_1 requests_per_minute=600\ttokens_per_minute=200000 requests=32 "
                "waiting=16 operator=1 \r\n"
                "three requests=0\n",
                &err),
      TD_OK);
  assert_true(k.n == 3 && k.last_account == 3);
  assert_string_equal(k.keys[0].name, "key-1");
  assert_string_equal(k.keys[1].name, "bob.b@x-y_1");
  assert_string_equal(k.keys[2].name, "key-3");
  const td_key_limits *l = &k.keys[1].limits;
  assert_true(l->requests_per_minute == 600 && l->tokens_per_minute == 200000 && l->requests == 32 &&
              l->waiting == 16 && k.keys[1].is_operator == 1 && k.keys[0].is_operator == 0);
  td_keys_deinit(&k);
  static const char *const bad[] = {"k secret2",
                                    "k name=",
                                    "k name=a\"b",
                                    "k name=a b",
                                    "k requests=-1",
                                    "k requests=1k",
                                    "k requests=",
                                    "k operator=2",
                                    "k requests=1000000000001",
                                    "k requests=99999999999999999999",
                                    "k =1",
                                    "k\x01 name=a",
                                    "a name=x\nb name=x",
                                    "a name=key-2\nb",
                                    "k Name=a"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    if (read_keys(&k, bad[i], &err) != TD_ERR_CONFIG)
      fail_msg("'%s' is taken", bad[i]);
    assert_null(strstr(err.message, "secret2"));
  }
}

/* A key that stays keeps its account; no account is given twice. */
static void test_keys_that_follow(void **state)
{
  td_keys a, b, c;
  td_error err;
  assert_int_equal(read_keys(&a, "one\ntwo\nthree\n", &err), TD_OK);
  assert_int_equal(read_keys(&b, "three name=x\nfour\none\n", &err), TD_OK);
  assert_int_equal(td_keys_keep_accounts(&b, &a, &err), TD_OK);
  assert_true(b.keys[0].account == 3 && b.keys[1].account == 4 && b.keys[2].account == 1);
  assert_int_equal(read_keys(&c, "two\nfour\n", &err), TD_OK);
  assert_int_equal(td_keys_keep_accounts(&c, &b, &err), TD_OK);
  assert_true(c.keys[0].account == 5 &&
              c.keys[1].account ==
                  4); /* key two was removed and added again: it shares nothing with the old one */
  uint32_t account;
  assert_true(td_keys_allow(&c, "Bearer two", NULL, &account) && account == 5);
  td_keys_deinit(&c);
  assert_int_equal(read_keys(&c, "five\n", &err), TD_OK);
  b.last_account = TD_KEY_ACCOUNTS;
  assert_int_equal(td_keys_keep_accounts(&c, &b, &err), TD_ERR_CONFIG);
  td_keys_deinit(&a);
  td_keys_deinit(&b);
  td_keys_deinit(&c);
}

static void test_tenants(void **state)
{
  static td_conn conns[3]; /* two of one address, one of another */
  static td_conn local_conn;
  td_tenants t;
  td_error err;
  td_api_error e;
  for (int i = 0; i < 3; i++) {
    conns[i].client.has_ip = true;
    conns[i].client.ip.bytes[0] = i < 2 ? 1 : 2;
    conns[i].client.bucket = 7;
  }
  assert_int_equal(td_tenants_init(&t, &(td_keys){0}, &err), TD_OK);
  assert_false(td_tenants_are_several(&t));
  td_tenant *a = td_tenant_of(&t, &conns[0], 0), *again = td_tenant_of(&t, &conns[1], 0);
  assert_true(a && a == again && !td_tenants_are_several(&t));
  td_tenant *b = td_tenant_of(&t, &conns[2], 0);
  assert_true(b && b != a && td_tenants_are_several(&t));
  assert_true(td_tenant_may_queue(&t, a, 8, 7, 1, &e)); /* addresses do not share the queue */
  assert_false(td_tenant_may_queue(&t, a, 8, 8, 1, &e));
  td_tenant_drop(&t, a);
  assert_true(td_tenants_are_several(&t)); /* it is still used */
  td_tenant_drop(&t, again);
  assert_false(td_tenants_are_several(&t));
  td_tenant *local =
      td_tenant_of(&t, &local_conn, 0); /* all users of a unix socket are one tenant, different from b */
  assert_true(td_tenants_are_several(&t));
  assert_ptr_equal(td_tenant_ref(local), td_tenant_of(&t, &local_conn, 0));
  td_tenant_drop(&t, b);
  assert_false(td_tenants_are_several(&t));
  for (int i = 0; i < 3; i++)
    td_tenant_drop(&t, local);
  b = td_tenant_of(&t, &conns[2], 0);
  assert_false(td_tenants_are_several(&t));
  td_tenant_drop(&t, b);
  td_tenant_drop(&t, NULL);
  td_tenants_deinit(&t);

  td_keys keys;
  assert_int_equal(read_keys(&keys, "one name=a\ntwo\n", &err), TD_OK);
  assert_int_equal(td_tenants_init(&t, &keys, &err), TD_OK);
  assert_true(td_tenants_are_several(&t));
  a = td_tenant_of(&t, &conns[0], 1);
  assert_true(a->account == 1 && td_tenant_of(&t, &conns[2], 1) == a && td_tenant_of(&t, &conns[0], 2) != a);
  a->n_choices = 4;
  a->n_reading = 2;
  assert_false(td_tenant_may_queue(&t, a, 8, 6, 1, &e));
  assert_true(e.status == 429 && strstr(e.message, "already take 6 of 8"));
  assert_true(td_tenant_may_queue(&t, td_tenant_of(&t, &conns[0], 2), 8, 6, 1, &e));
  td_keys_deinit(&keys);
  td_tenants_deinit(&t);
}

/* The error for a request that an engine refuses because it is not ready: it never says that there is no
 * room. */
static void test_states(void **state)
{
  td_api_error e;
  assert_true(td_server_accepts_requests(TD_ENGINE_READY, &e));
  static const struct {
    td_engine_state state;
    const char *code;
  } cases[] = {{TD_ENGINE_LOADING, "model_loading"},
               {TD_ENGINE_STOPPED, "engine_failed"},
               {TD_ENGINE_FAILED, "engine_failed"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    assert_false(td_server_accepts_requests(cases[i].state, &e));
    assert_int_equal(e.status, 503);
    assert_string_equal(e.code, cases[i].code);
  }
}

/* ---- listen ---- */

static void test_listen(void **state)
{
  static const struct {
    const char *spec, *host, *port; /* host NULL: refused */
    bool is_unix;
  } cases[] = {
      {"127.0.0.1:8080", "127.0.0.1", "8080", false},
      {"localhost:0", "localhost", "0", false},
      {"[::1]:80", "::1", "80", false},
      {"[::]:65535", "::", "65535", false},
      {"unix:/run/x.sock", "/run/x.sock", "", true},
      {"", NULL, NULL, false},
      {"8080", NULL, NULL, false},
      {":8080", NULL, NULL, false},
      {"a:", NULL, NULL, false},
      {"a:65536", NULL, NULL, false},
      {"a:-1", NULL, NULL, false},
      {"a:80x", NULL, NULL, false},
      {"::1:80", NULL, NULL, false},
      {"[]:80", NULL, NULL, false},
      {"unix:", NULL, NULL, false},
      {"a:999999999999", NULL, NULL, false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char host[256], port[8];
    bool is_unix;
    td_error err;
    td_status st = td_listen_parse(cases[i].spec, host, port, &is_unix, &err);
    assert_int_equal(st, cases[i].host ? TD_OK : TD_ERR_CONFIG);
    if (st == TD_OK) {
      assert_string_equal(host, cases[i].host);
      assert_string_equal(port, cases[i].port);
      assert_int_equal(is_unix, cases[i].is_unix);
    }
  }
}

/* ---- metrics ---- */

static double metric(const char *page, const char *line)
{
  const char *at = strstr(page, line);
  if (!at || (at != page && at[-1] != '\n'))
    fail_msg("no line '%s'", line);
  return strtod(at + strlen(line), NULL);
}

static void test_metrics(void **state)
{
  td_metrics m;
  td_metrics_init(&m);
  td_histogram_observe(&m.ttft, 0.001, 1); /* a bound belongs to its own bucket */
  td_histogram_observe(&m.ttft, 0.0011, 2);
  td_histogram_observe(&m.ttft, 1e9, 1);
  m.finished[TD_FINISHED_STOP] = 5;
  m.responses[4] = 7;
  td_engine_stats s = {.n_running = 3,
                       .pages_total = 8,
                       .pages_owned = 2,
                       .prefix_hit_tokens = 11,
                       .tuning_left = 6,
                       .not_fused = {{"more than 16 rows", 27}, {"batch_invariant", 9}},
                       .n_not_fused = 2};
  td_engine_info info = {.page_tokens = 16, .n_pages = 8};
  td_metrics_view v = {.info = &info, .stats = &s, .model_name = "a\"b\\c"};
  td_buf out;
  td_buf_init(&out, 0);
  td_metrics_render(&m, &v, &out);
#define L "{model_name=\"a\\\"b\\\\c\""
  assert_true(metric(out.data, "vllm:num_requests_running" L "} ") == 3);
  assert_true(metric(out.data, "vllm:kv_cache_usage_perc" L "} ") == 0.25);
  assert_true(metric(out.data, "vllm:prefix_cache_hits_total" L "} ") == 11);
  assert_true(metric(out.data, "vllm:request_success_total" L ",finished_reason=\"stop\"} ") == 5);
  assert_true(metric(out.data, "vllm:time_to_first_token_seconds_bucket" L ",le=\"0.001\"} ") == 1);
  assert_true(metric(out.data, "vllm:time_to_first_token_seconds_bucket" L ",le=\"0.005\"} ") == 3);
  assert_true(metric(out.data, "vllm:time_to_first_token_seconds_bucket" L ",le=\"2560.0\"} ") == 3);
  assert_true(metric(out.data, "vllm:time_to_first_token_seconds_bucket" L ",le=\"+Inf\"} ") == 4);
  assert_true(metric(out.data, "vllm:time_to_first_token_seconds_count" L "} ") == 4);
  assert_true(metric(out.data, "vllm:cache_config_info" L ",block_size=\"16\",num_gpu_blocks=\"8\"} ") == 1);
  assert_true(metric(out.data, "tandem:steps_not_fused" L ",reason=\"more than 16 rows\"} ") == 27);
  assert_true(metric(out.data, "tandem:steps_not_fused" L ",reason=\"batch_invariant\"} ") == 9);
  assert_true(metric(out.data, "tandem:tuning_left" L "} ") == 6);
  assert_true(metric(out.data, "tandem:http_responses_total" L ",code=\"4xx\"} ") == 7);
  /* every line is a comment or "name{labels} value", every sample's family has a TYPE before it */
  for (char *line = strtok(out.data, "\n"); line; line = strtok(NULL, "\n")) {
    if (line[0] == '#')
      continue;
    char *space = strrchr(line, ' '), *end;
    assert_non_null(space);
    (void)strtod(space + 1, &end);
    assert_true(end != space + 1 && *end == '\0');
    assert_true(space[-1] == '}' && strchr(line, '{') < space);
  }
  td_buf_deinit(&out);
}

/* ---- JSON out ---- */

static void test_anthropic_errors(void **state)
{
  static const struct {
    int status;
    const char *type;
  } types[] = {{400, "invalid_request_error"}, {401, "authentication_error"},
               {403, "permission_error"},      {404, "not_found_error"},
               {408, "timeout_error"},         {413, "request_too_large"},
               {429, "rate_limit_error"},      {500, "api_error"},
               {503, "overloaded_error"},      {504, "timeout_error"}};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    td_api_error e;
    td_buf out;
    td_buf_init(&out, 0);
    td_api_error_set(&e, types[i].status, "code", NULL, "a \"b\"");
    td_api_error_render_anthropic(&e, &out);
    cJSON *j = cJSON_Parse(out.data);
    const cJSON *err = td_json_get(j, "error");
    assert_string_equal(td_json_get(j, "type")->valuestring, "error");
    assert_string_equal(td_json_get(err, "type")->valuestring, types[i].type);
    assert_string_equal(td_json_get(err, "message")->valuestring, "a \"b\"");
    cJSON_Delete(j);
    td_buf_deinit(&out);
  }
}

static void test_errors(void **state)
{
  td_api_error e;
  td_buf out;
  td_buf_init(&out, 0);
  td_api_error_set(&e, 429, "queue_full", NULL, "a \"b\"\n%d", 5);
  assert_int_equal(e.retry_after_s, 1);
  td_api_error_render(&e, &out);
  cJSON *j = cJSON_Parse(out.data);
  const cJSON *err = td_json_get(j, "error");
  assert_string_equal(td_json_get(err, "message")->valuestring, "a \"b\"\n5");
  assert_string_equal(td_json_get(err, "type")->valuestring, "rate_limit_error");
  assert_string_equal(td_json_get(err, "code")->valuestring, "queue_full");
  assert_true(cJSON_IsNull(td_json_get(err, "param")));
  cJSON_Delete(j);
  td_buf_deinit(&out);
  static const struct {
    td_status st;
    int status;
  } map[] = {{TD_ERR_REQUEST, 400},
             {TD_ERR_UNSUPPORTED, 400},
             {TD_ERR_CAPACITY, 429},
             {TD_ERR_NOMEM, 503},
             {TD_ERR_DEVICE, 500}};
  for (size_t i = 0; i < sizeof map / sizeof map[0]; i++) {
    td_error te;
    td_fail(&te, map[i].st, "x");
    td_api_error_from(&e, &te);
    assert_int_equal(e.status, map[i].status);
  }
}

/* A call after two choices of one prompt have ended. */
typedef struct fake_call {
  td_call call;
  td_choice choices[2];
  td_prompt prompt;
  td_engine_info info;
} fake_call;

static const int32_t prompt_ids[] = {5, 6, 7};
static const int32_t answer_ids[] = {8, 9};

static void make_call(fake_call *f, const td_api *api)
{
  memset(f, 0, sizeof *f);
  f->prompt.n = 3; /* the engine has its ids */
  td_buf_append_json_ints(&f->prompt.json, prompt_ids, 3);
  strcpy(f->info.model_name, "m\"1");
  strcpy(f->call.id, "id-1");
  f->call.api = api;
  f->call.info = &f->info;
  f->call.created_s = 123;
  f->call.prompts = &f->prompt;
  f->call.n_prompts = 1;
  f->call.choices = f->choices;
  f->call.n_choices = 2;
  f->call.request.return_token_ids = true;
  for (uint32_t i = 0; i < 2; i++) {
    td_choice *ch = &f->choices[i];
    ch->call = &f->call;
    ch->index = i;
    ch->n_prompt = 3;
    ch->n_read = 2;
    ch->n_cached = 1;
    ch->finish = i ? "length" : "stop";
    td_buf_append_str(&ch->out, i ? "two\n\xc3\xa9" : "one");
    td_buf_append(&ch->ids, answer_ids, sizeof answer_ids);
  }
}

static void free_made(fake_call *f)
{
  td_buf_deinit(&f->prompt.json);
  for (int i = 0; i < 2; i++) {
    td_buf_deinit(&f->choices[i].out);
    td_buf_deinit(&f->choices[i].ids);
  }
}

static void check_ids(const cJSON *array, const int32_t *ids, int n)
{
  assert_int_equal(cJSON_GetArraySize(array), n);
  for (int i = 0; i < n; i++)
    assert_int_equal(cJSON_GetArrayItem(array, i)->valueint, ids[i]);
}

static void check_usage(const cJSON *usage)
{
  assert_int_equal(td_json_get(usage, "prompt_tokens")->valueint, 3); /* one prompt, two choices */
  assert_int_equal(td_json_get(usage, "completion_tokens")->valueint, 4);
  assert_int_equal(td_json_get(usage, "total_tokens")->valueint, 7);
  assert_int_equal(td_json_get(td_json_get(usage, "prompt_tokens_details"), "cached_tokens")->valueint, 1);
}

static void test_answers(void **state)
{
  for (int chat = 0; chat < 2; chat++) {
    fake_call f;
    td_buf out;
    td_buf_init(&out, 0);
    make_call(&f, chat ? &td_api_chat : &td_api_completions);
    f.call.api->render_answer(&f.call, &out);
    cJSON *j = cJSON_Parse(out.data);
    assert_non_null(j);
    assert_string_equal(td_json_get(j, "id")->valuestring, "id-1");
    assert_string_equal(td_json_get(j, "object")->valuestring, chat ? "chat.completion" : "text_completion");
    assert_string_equal(td_json_get(j, "model")->valuestring, "m\"1");
    assert_int_equal(td_json_get(j, "created")->valueint, 123);
    check_usage(td_json_get(j, "usage"));
    const cJSON *choices = td_json_get(j, "choices");
    assert_int_equal(cJSON_GetArraySize(choices), 2);
    for (int i = 0; i < 2; i++) {
      const cJSON *c = cJSON_GetArrayItem(choices, i);
      const cJSON *text = chat ? td_json_get(td_json_get(c, "message"), "content") : td_json_get(c, "text");
      assert_int_equal(td_json_get(c, "index")->valueint, i);
      assert_string_equal(text->valuestring, i ? "two\n\xc3\xa9" : "one");
      assert_string_equal(td_json_get(c, "finish_reason")->valuestring, i ? "length" : "stop");
      check_ids(td_json_get(c, "token_ids"), answer_ids, 2);
    }
    const cJSON *ids = td_json_get(chat ? j : cJSON_GetArrayItem(choices, 0), "prompt_token_ids");
    check_ids(ids, prompt_ids, 3);
    cJSON_Delete(j);
    td_buf_deinit(&out);
    free_made(&f);
  }
}

/* Returns the events of a buffer as parsed JSON, and checks the SSE framing. */
static int events(char *text, cJSON **out, int max)
{
  int n = 0;
  while (*text) {
    char *end = strstr(text, "\n\n");
    assert_non_null(end);
    assert_true(strncmp(text, "data: ", 6) == 0 && n < max);
    *end = '\0';
    assert_null(strchr(text, '\n'));
    assert_non_null(out[n] = cJSON_Parse(text + 6));
    n++;
    text = end + 2;
  }
  return n;
}

static const cJSON *choice_of(const cJSON *event)
{
  return cJSON_GetArrayItem(td_json_get(event, "choices"), 0);
}

static void test_stream(void **state)
{
  fake_call f;
  td_buf out;
  cJSON *e[8];
  td_buf_init(&out, 0);
  make_call(&f, &td_api_chat);
  f.call.request.include_usage = true;
  td_delta d = {.choice = &f.choices[1],
                .first = true,
                .text = "a\n\"",
                .n_text = 3,
                .ids = answer_ids,
                .n_ids = 2,
                .finish = "stop"};
  td_api_chat.render_delta(&f.call, &d, &out);
  td_render_usage_event(&f.call, &out);
  assert_int_equal(events(out.data, e, 8), 4);
  const cJSON *delta = td_json_get(choice_of(e[0]), "delta");
  assert_string_equal(td_json_get(delta, "role")->valuestring, "assistant");
  assert_string_equal(td_json_get(delta, "content")->valuestring, "");
  check_ids(td_json_get(e[0], "prompt_token_ids"), prompt_ids, 3);
  assert_string_equal(td_json_get(td_json_get(choice_of(e[1]), "delta"), "content")->valuestring, "a\n\"");
  assert_true(cJSON_IsNull(td_json_get(choice_of(e[1]), "finish_reason")));
  check_ids(td_json_get(choice_of(e[1]), "token_ids"), answer_ids, 2);
  assert_null(td_json_get(choice_of(e[2]), "delta")->child);
  assert_string_equal(td_json_get(choice_of(e[2]), "finish_reason")->valuestring, "stop");
  for (int i = 0; i < 3; i++) {
    assert_string_equal(td_json_get(e[i], "object")->valuestring, "chat.completion.chunk");
    assert_int_equal(td_json_get(choice_of(e[i]), "index")->valueint, 1);
    assert_true(cJSON_IsNull(td_json_get(e[i], "usage")));
  }
  assert_int_equal(cJSON_GetArraySize(td_json_get(e[3], "choices")), 0);
  check_usage(td_json_get(e[3], "usage"));
  for (int i = 0; i < 4; i++)
    cJSON_Delete(e[i]);

  td_buf_clear(&out);
  f.call.request.include_usage = f.call.request.return_token_ids = false;
  d.finish = NULL;
  td_api_completions.render_delta(&f.call, &d, &out);
  assert_int_equal(events(out.data, e, 8), 1);
  assert_string_equal(td_json_get(choice_of(e[0]), "text")->valuestring, "a\n\"");
  assert_true(cJSON_IsNull(td_json_get(choice_of(e[0]), "finish_reason")));
  assert_null(td_json_get(e[0], "usage"));
  assert_null(td_json_get(choice_of(e[0]), "token_ids"));
  cJSON_Delete(e[0]);
  td_buf_deinit(&out);
  free_made(&f);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_key_settings), cmocka_unit_test(test_keys_that_follow),
      cmocka_unit_test(test_namespaces),   cmocka_unit_test(test_keys),
      cmocka_unit_test(test_tenants),      cmocka_unit_test(test_states),
      cmocka_unit_test(test_listen),       cmocka_unit_test(test_metrics),
      cmocka_unit_test(test_errors),       cmocka_unit_test(test_anthropic_errors),
      cmocka_unit_test(test_answers),      cmocka_unit_test(test_stream),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
