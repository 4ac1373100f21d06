/* Host, Origin and CORS: which requests a daemon without keys accepts, and what pages of other origins may
 * do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "server/origin.h"

static td_options options_with(const char *listen, const char *allowed_hosts, const char *cors_origin)
{
  td_options o;
  td_options_init(&o);
  snprintf(o.listen, sizeof o.listen, "%s", listen);
  snprintf(o.allowed_hosts, sizeof o.allowed_hosts, "%s", allowed_hosts);
  snprintf(o.cors_origin, sizeof o.cors_origin, "%s", cors_origin);
  return o;
}

/* code NULL: it is accepted. */
static void expect_admit(const td_options *o, const char *host, const char *origin, const char *code)
{
  td_api_error e = {0};
  td_http_head h = {.method = TD_HTTP_POST, .host = host, .origin = origin};
  bool taken = td_origin_admit(o, &h, &e);
  if (taken != (code == NULL) || (code && (e.status != 403 || strcmp(e.code, code) != 0)))
    fail_msg("Host '%s', Origin '%s': %s %s, wanted %s", host ? host : "-", origin ? origin : "-",
             taken ? "taken" : "refused", taken ? "" : e.code, code ? code : "taken");
}

static void test_hosts(void **state)
{
  static const char *const always[] = {
      "127.0.0.1",  "127.0.0.1:8080",   "10.1.2.3:1",       "255.255.255.255",  "[::1]",
      "[::1]:8080", "[2001:db8::1]:80", "[::ffff:1.2.3.4]", "localhost",        "LocalHost:8080",
      "localhost.", "localhost.:80",    "a.localhost",      "a.b.LOCALHOST:80",
  };
  static const char *const never[] = {
      "evil.example",
      "evil.example:8080",
      "127.0.0.1.evil.example",
      "localhost.evil.example",
      "evillocalhost",
      ".localhost",
      "::1",
      "1.2.3",
      "1.2.3.4.5",
      "256.1.1.1",
      "127.1",
      "2130706433",
      "0x7f.0.0.1",
      "[127.0.0.1]",
      "[::1].evil.example",
      "[::1",
      "[]",
      "[evil.example]",
      "",
      ":8080",
      ".",
      "gpu",
      "gpu:8080",
      "gpu.evil.example",
  };
  td_options o = options_with("0.0.0.0:8080", "", "");
  for (size_t i = 0; i < sizeof always / sizeof always[0]; i++)
    expect_admit(&o, always[i], NULL, NULL);
  for (size_t i = 0; i < sizeof never / sizeof never[0]; i++)
    expect_admit(&o, never[i], NULL, "host_not_allowed");
  expect_admit(&o, NULL, NULL, NULL); /* HTTP/1.0; browsers always send one */
}

static void test_hosts_that_are_named(void **state)
{
  td_options o = options_with("gpu.lan:8080", "", "");
  expect_admit(&o, "gpu.lan:8080", NULL, NULL);
  expect_admit(&o, "GPU.lan", NULL, NULL);
  expect_admit(&o, "gpu", NULL, "host_not_allowed");
  o = options_with(":8080", "", ""); /* the root's dot is not a name, and an empty name matches nothing */
  expect_admit(&o, ".", NULL, "host_not_allowed");
  expect_admit(&o, ".:8080", NULL, "host_not_allowed");
  o = options_with("unix:gpu", "", "");
  expect_admit(&o, "localhost", NULL, NULL);
  expect_admit(&o, "gpu", NULL, "host_not_allowed");
  o = options_with("127.0.0.1:8080", " gpu ,chat.example.com,, api.example.com:8443 ", "");
  for (size_t i = 0; i < 6; i++) {
    static const char *const good[] = {
        "gpu", "GPU:8080", "chat.Example.com", "chat.example.com:1", "gpu.:80", "api.example.com:8443"};
    expect_admit(&o, good[i], NULL, NULL);
  }
  for (size_t i = 0; i < 6; i++) {
    static const char *const bad[] = {
        "gpu2", "gp", "x.chat.example.com", "api.example.com", "api.example.com:8444", "example.com"};
    expect_admit(&o, bad[i], NULL, "host_not_allowed");
  }
  o = options_with("127.0.0.1:8080", "*", "");
  expect_admit(&o, "any.example", NULL, NULL);
  expect_admit(&o, "any.example", "http://other.example", "origin_not_allowed");
}

static void test_origins(void **state)
{
  td_options o = options_with("127.0.0.1:8080", "", "");
  expect_admit(&o, "127.0.0.1:8080", "http://127.0.0.1:8080", NULL);
  expect_admit(&o, "LOCALHOST:8080", "http://localhost:8080", NULL);
  expect_admit(&o, "127.0.0.1", "https://127.0.0.1", NULL); /* a proxy has added TLS */
  static const char *const foreign[] = {
      "https://evil.example",
      "http://127.0.0.1",
      "http://127.0.0.1:8081",
      "http://localhost:8080",
      "null",
      "",
      "127.0.0.1:8080",
      "http://127.0.0.1:8080/",
      "http://127.0.0.1:8080.evil.example",
  };
  for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++)
    expect_admit(&o, "127.0.0.1:8080", foreign[i], "origin_not_allowed");
  expect_admit(&o, NULL, "http://127.0.0.1:8080", "origin_not_allowed");
  o = options_with("127.0.0.1:8080", "", "https://chat.example.com, http://localhost:3000");
  expect_admit(&o, "127.0.0.1:8080", "https://chat.example.com", NULL);
  expect_admit(&o, "127.0.0.1:8080", "HTTP://localhost:3000", NULL);
  expect_admit(&o, "127.0.0.1:8080", "http://chat.example.com", "origin_not_allowed");
  expect_admit(&o, "127.0.0.1:8080", "https://chat.example.com:8443", "origin_not_allowed");
  expect_admit(&o, "127.0.0.1:8080", "null", "origin_not_allowed");
  expect_admit(&o, "evil.example", "https://chat.example.com", "host_not_allowed");
  o = options_with("127.0.0.1:8080", "", "null");
  expect_admit(&o, "127.0.0.1:8080", "null", NULL);
  expect_admit(&o, "127.0.0.1:8080", "https://evil.example", "origin_not_allowed");
  o = options_with("127.0.0.1:8080", "", "*");
  expect_admit(&o, "127.0.0.1:8080", "https://any.example", NULL);
}

static void expect_headers(const td_options *o, td_http_method method, const char *origin, const char *wanted)
{
  td_buf out;
  td_buf_init(&out, 0);
  td_http_head h = {.method = method, .host = "127.0.0.1:8080", .origin = origin};
  td_origin_append_headers(o, &h, &out);
  td_buf_append_char(&out, '\0');
  assert_string_equal(out.data, wanted);
  td_buf_deinit(&out);
}

#define ALLOW(origin)                                                                                        \
  "vary: origin\r\naccess-control-allow-origin: " origin "\r\naccess-control-expose-headers: *\r\n"

static void test_headers(void **state)
{
  td_options o = options_with("127.0.0.1:8080", "", "");
  expect_headers(&o, TD_HTTP_POST, "http://127.0.0.1:8080", "");
  expect_headers(&o, TD_HTTP_OPTIONS, "https://a.example", "");
  o = options_with("127.0.0.1:8080", "", "https://a.example,null");
  expect_headers(&o, TD_HTTP_POST, NULL, "vary: origin\r\n");
  expect_headers(&o, TD_HTTP_POST, "https://b.example", "vary: origin\r\n");
  expect_headers(&o, TD_HTTP_POST, "https://a.example", ALLOW("https://a.example"));
  expect_headers(&o, TD_HTTP_GET, "null", ALLOW("null"));
  expect_headers(&o, TD_HTTP_OPTIONS, "https://a.example",
                 ALLOW("https://a.example") "access-control-allow-methods: GET, HEAD, POST, OPTIONS\r\n"
                                            "access-control-allow-headers: authorization, content-type, "
                                            "x-api-key, x-request-id, *\r\n"
                                            "access-control-max-age: 3600\r\n");
}

static void test_options(void **state)
{
  static const struct {
    const char *hosts, *origins, *param, *word;
  } cases[] = {
      {"", "", NULL, NULL},
      {"*", "*", NULL, NULL},
      {"gpu, [::1]:80,a.example:8080,", "null, http://localhost:3000 ,app://x", NULL, NULL},
      {"gpu/", "", "allowed_hosts", "'gpu/'"},
      {"a, http://b", "", "allowed_hosts", "'http://b'"},
      {"a b", "", "allowed_hosts", "'a b'"},
      {"*.example.com", "", "allowed_hosts", "'*.example.com'"},
      {"", "chat.example.com", "cors_origin", "'chat.example.com'"},
      {"", "https://a, https://b/", "cors_origin", "'https://b/'"},
      {"", "https://", "cors_origin", "'https://'"},
      {"", "://a", "cors_origin", "'://a'"},
      {"", "https://*.a", "cors_origin", "'https://*.a'"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    td_options o = options_with("127.0.0.1:8080", cases[i].hosts, cases[i].origins);
    td_error err = {0};
    td_status st = td_origin_check_options(&o, &err);
    if (!cases[i].param) {
      assert_int_equal(st, TD_OK);
      continue;
    }
    assert_int_equal(st, TD_ERR_CONFIG);
    assert_string_equal(err.param, cases[i].param);
    if (!strstr(err.message, cases[i].param) || !strstr(err.message, cases[i].word))
      fail_msg("%s", err.message);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_hosts),   cmocka_unit_test(test_hosts_that_are_named),
      cmocka_unit_test(test_origins), cmocka_unit_test(test_headers),
      cmocka_unit_test(test_options),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
