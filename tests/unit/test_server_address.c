/* Addresses of clients: which addresses count as one client, and ranges of addresses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "server/address.h"
#include "server/forwarded.h"
#include "server/log_gate.h"

static td_address address(const char *text)
{
  struct sockaddr_storage s = {0};
  td_address a;
  if (inet_pton(AF_INET, text, &((struct sockaddr_in *)&s)->sin_addr) == 1)
    s.ss_family = AF_INET;
  else if (inet_pton(AF_INET6, text, &((struct sockaddr_in6 *)&s)->sin6_addr) == 1)
    s.ss_family = AF_INET6;
  assert_true(td_address_of(&s, &a));
  return a;
}

static void test_owners(void **state)
{
  static const char *const cases[][2] = {
      {"192.0.2.1", "192.0.2.1"},
      {"::ffff:192.0.2.1", "192.0.2.1"},
      {"2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"},
      {"::1", "::/64"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[TD_ADDRESS_TEXT_BYTES];
    td_address owner = td_address_owner(address(cases[i][0]));
    td_address_text(&owner, text);
    assert_string_equal(text, cases[i][1]);
  }
  struct sockaddr_storage none = {.ss_family = AF_UNIX};
  td_address a;
  assert_false(td_address_of(&none, &a));
}

static bool have(const char *ranges, const char *ip)
{
  td_ranges r;
  td_error err;
  td_address a = address(ip);
  assert_int_equal(td_ranges_read(&r, ranges, &err), TD_OK);
  return td_ranges_have(&r, &a);
}

static void test_ranges(void **state)
{
  assert_false(have("", "192.0.2.1"));
  assert_true(have("192.0.2.1", "192.0.2.1"));
  assert_true(have("192.0.2.1", "::ffff:192.0.2.1"));
  assert_false(have("192.0.2.1", "192.0.2.2"));
  assert_true(have(" 10.0.0.0/8 , 192.0.2.128/25", "192.0.2.255"));
  assert_false(have("10.0.0.0/8,192.0.2.128/25", "192.0.2.127"));
  assert_true(have("10.1.2.3/8", "10.255.0.0")); /* bits after the prefix do not count */
  assert_true(have("0.0.0.0/0", "203.0.113.9"));
  assert_false(have("0.0.0.0/0", "2001:db8::1"));
  assert_true(have("::/0", "203.0.113.9"));
  assert_true(have("fd00::/8", "fdff::1"));
  assert_false(have("fd00::/9", "fdff::1"));
  assert_true(have("::1", "::1"));
  assert_false(have("::1", "::2"));                                         /* of the same /64 */
  assert_true(have("192.0.2.1/32", "192.0.2.1") && have("::1/128", "::1")); /* as many bits as there are */
  assert_false(have("192.0.2.1/32", "192.0.2.0") || have("::1/128", "::"));
}

static void test_bad_ranges(void **state)
{
  static const char *const bad[] = {"x",
                                    "1.2.3",
                                    "1.2.3.4/33",
                                    "1.2.3.4/",
                                    "1.2.3.4/a",
                                    "1.2.3.4/-1",
                                    "::1/129",
                                    "1.2.3.4,,5.6.7.8",
                                    ",1.2.3.4",
                                    "localhost",
                                    "1.2.3.4/0008",
                                    "1.2.3.4 5.6.7.8",
                                    "unix:/x",
                                    "1111:2222:3333:4444:5555:6666:7777:8888:9999:aaaa:bbbb:cccc:dddd:eeee"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    td_ranges r;
    td_error err;
    assert_int_equal(td_ranges_read(&r, bad[i], &err), TD_ERR_CONFIG);
    assert_string_equal(err.param, "trusted_proxies");
  }
  enum { RANGES = 64 };
  char many[10 * (RANGES + 1)] = "";
  td_ranges r;
  td_error err;
  for (int i = 0; i < RANGES; i++)
    strcat(many, "1.2.3.4,");
  assert_int_equal(td_ranges_read(&r, many, &err), TD_OK);
  assert_int_equal(r.n, RANGES);
  strcat(many, "1.2.3.4");
  assert_int_equal(td_ranges_read(&r, many, &err), TD_ERR_CONFIG);
}

static void test_log_gate(void **state)
{
  td_log_gate g = {0};
  char more[TD_LOG_GATE_BYTES] = "x";
  assert_true(td_log_gate_pass(&g, 5000, 2, more));
  assert_string_equal(more, "");
  assert_true(td_log_gate_pass(&g, 5001, 2, more));
  for (int i = 0; i < 7; i++)
    assert_false(td_log_gate_pass(&g, 5999, 2, more));
  assert_true(td_log_gate_pass(&g, 6000, 2, more));
  assert_string_equal(more, "; 7 lines like this were left out before it");
  assert_true(td_log_gate_pass(&g, 6999, 2, more));
  assert_string_equal(more, "");
  assert_false(td_log_gate_pass(&g, 6999, 2, more));
}

/* From the end of the list, past trusted proxies, to the first other address. */
static void test_forwarded(void **state)
{
  static const struct {
    const char *value, *client; /* NULL: none */
  } cases[] = {
      {"192.0.2.1", "192.0.2.1"},
      {"192.0.2.1, 10.0.0.1", "192.0.2.1"},
      {"6.6.6.6, 192.0.2.1,10.0.0.1 , 10.0.0.2",
       "192.0.2.1"}, /* any client may have written the first address */
      {"10.0.0.3, 10.0.0.1", "10.0.0.3"},
      {"192.0.2.1:5000", "192.0.2.1"},
      {"[2001:db8::1]:443", "2001:db8::/64"},
      {"[2001:db8::1]", "2001:db8::/64"},
      {"2001:db8::1", "2001:db8::/64"},
      {"::ffff:192.0.2.1", "192.0.2.1"},
      {"rubbish, 192.0.2.1", "192.0.2.1"},
      {"192.0.2.1, rubbish", NULL},
      {"192.0.2.1, ", NULL},
      {"192.0.2.1, rubbish, 10.0.0.1", NULL},
      {"", NULL},
      {",", NULL},
      {"unknown", NULL},
      {"[192.0.2.1]", NULL},
      {"[2001:db8::1", NULL},
      {"[2001:db8::1]x", NULL},
      {"192.0.2.1/24", NULL},
      {"11111111111111111111111111111111111111111111111111111111111111111111", NULL},
  };
  td_ranges r;
  td_error err;
  td_address ip;
  char text[TD_ADDRESS_TEXT_BYTES];
  assert_int_equal(td_ranges_read(&r, "10.0.0.0/8, unix", &err), TD_OK);
  assert_true(r.has_unix && r.n == 1);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    bool found = td_forwarded_client(&r, cases[i].value, &ip);
    if (found != (cases[i].client != NULL))
      fail_msg("'%s'", cases[i].value);
    if (!found)
      continue;
    td_client client = td_client_of(ip);
    td_client_text(&client, text);
    assert_string_equal(text, cases[i].client);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_owners),    cmocka_unit_test(test_ranges),   cmocka_unit_test(test_bad_ranges),
      cmocka_unit_test(test_forwarded), cmocka_unit_test(test_log_gate),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
