/* The log: one line per message, dates, levels, JSON that can be parsed again whatever it quotes, and which
 * readers it waits for. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <cJSON.h>

#include "common/log.h"
#include "stderr_fixture.h"

static uint64_t now_us = 1000000;
static bool is_read;  /* by a slow reader */
static size_t n_read; /* lines */
static unsigned n_waits;

uint64_t __wrap_td_clock_us(void);
int __wrap_poll(struct pollfd *fds, nfds_t n, int max_ms);
int __real_poll(struct pollfd *fds, nfds_t n, int max_ms);

uint64_t __wrap_td_clock_us(void) { return now_us; }

static size_t count_lines(const char *text, size_t n)
{
  size_t lines = 0;
  for (size_t i = 0; i < n; i++)
    lines += text[i] == '\n';
  return lines;
}

static void read_all(void)
{
  static char all[1 << 20];
  ssize_t n = read(pipe_fds[0], all, sizeof all);
  assert_true(n > 0 && all[n - 1] == '\n');
  n_read += count_lines(all, (size_t)n);
}

/* A reader, if there is one, reads after 5 ms. A wait takes slightly longer than requested. */
int __wrap_poll(struct pollfd *fds, nfds_t n, int max_ms)
{
  enum { READER_MS = 5, LATE_US = 1300 };
  bool is_in_time = is_read && max_ms >= READER_MS;
  n_waits += max_ms > 0;
  now_us += 1000u * (uint64_t)(is_in_time ? READER_MS : max_ms) + (max_ms > 0 ? LATE_US : 0);
  if (is_in_time)
    read_all();
  return __real_poll(fds, n, 0);
}

static const td_log_field fields[] = {{"id", "req-1", 0, 0},   {"path", "/a b\"\\\n\xff=", 0, 0},
                                      {"tokens", NULL, 12, 0}, {"ms", NULL, 1.26, 1},
                                      {"empty", "", 0, 0},     {"name", "\xc3\xa9", 0, 0}};

static void test_text(void **state)
{
  td_log_init(TD_LOG_INFO, false);
  capture();
  td_info("a\nb %s", "\x1b[31m\xff\xc2\x9b\xc2\xa0");
  td_debug("not wanted");
  td_log_event(TD_LOG_WARN, "request", fields, sizeof fields / sizeof *fields);
  const char *text = captured();
  unsigned y, mo, d, h, mi, s, ms;
  int at = 0;
  assert_int_equal(sscanf(text, "%4u-%2u-%2uT%2u:%2u:%2u.%3uZ info  %n", &y, &mo, &d, &h, &mi, &s, &ms, &at),
                   7);
  assert_true(y >= 2024 && at == 31);
  assert_memory_equal(text + at, "a?b ?[31m??\xc2\xa0\n", 14);
  const char *second = text + at + 14;
  assert_string_equal(
      second + 24,
      " warn  request id=req-1 path=\"/a b\\\"\\\\?\?=\" tokens=12 ms=1.3 empty=\"\" name=\xc3\xa9\n");
}

static void test_json(void **state)
{
  td_log_init(TD_LOG_DEBUG, true);
  capture();
  td_debug("say \"%s\"\\\t", "x");
  td_log_event(TD_LOG_INFO, "request", fields, sizeof fields / sizeof *fields);
  char *text = (char *)(uintptr_t)captured(), *newline = strchr(text, '\n');
  assert_non_null(newline);
  *newline = '\0';
  cJSON *a = cJSON_Parse(text), *b = cJSON_Parse(newline + 1);
  assert_true(a && b);
  assert_string_equal(cJSON_GetObjectItem(a, "message")->valuestring, "say \"x\"\\?");
  assert_string_equal(cJSON_GetObjectItem(a, "level")->valuestring, "debug");
  assert_int_equal(strlen(cJSON_GetObjectItem(a, "time")->valuestring), 24);
  assert_string_equal(cJSON_GetObjectItem(b, "event")->valuestring, "request");
  assert_string_equal(cJSON_GetObjectItem(b, "path")->valuestring, "/a b\"\\?\?=");
  assert_true(cJSON_GetObjectItem(b, "tokens")->valuedouble == 12 &&
              cJSON_GetObjectItem(b, "ms")->valuedouble == 1.3);
  cJSON_Delete(a);
  cJSON_Delete(b);
}

/* A message that is too long is cut, and a field that is too long left out; the line stays complete. */
static void test_long(void **state)
{
  static char big[9000];
  memset(big, '"', sizeof big - 1);
  td_log_init(TD_LOG_INFO, true);
  capture();
  td_info("%s", big);
  td_log_event(TD_LOG_INFO, "request", (td_log_field[]){{"big", big, 0, 0}, {"after", "x", 0, 0}}, 2);
  char *text = (char *)(uintptr_t)captured(), *newline = strchr(text, '\n');
  *newline = '\0';
  cJSON *a = cJSON_Parse(text), *b = cJSON_Parse(newline + 1);
  assert_true(a && b && !cJSON_GetObjectItem(b, "big"));
  assert_int_equal(strlen(cJSON_GetObjectItem(a, "message")->valuestring), 1023);
  assert_string_equal(cJSON_GetObjectItem(b, "after")->valuestring, "x");
  cJSON_Delete(a);
  cJSON_Delete(b);
}

/* Syslog priorities if stderr is the journal's stream, and no date. */
static void test_journal(void **state)
{
  char stream[64];
  struct stat st;
  capture();
  assert_int_equal(fstat(STDERR_FILENO, &st), 0);
  snprintf(stream, sizeof stream, "%llu:%llu", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
  setenv("JOURNAL_STREAM", stream, 1);
  td_log_init(TD_LOG_DEBUG, false);
  td_error_log("e");
  td_warn("w");
  td_info("i");
  td_debug("d");
  td_log_event(TD_LOG_INFO, "request", fields, 1);
  assert_string_equal(captured(), "<3>e\n<4>w\n<6>i\n<7>d\n<6>request id=req-1\n");
  unsetenv("JOURNAL_STREAM");
}

static void write_lines(int n)
{
  for (int i = 0; i < n; i++)
    td_info("%0100d", i);
}

static void begin_waiting(bool json, bool somebody_reads)
{
  td_log_init(TD_LOG_INFO, json);
  now_us += 1000000; /* in a new second */
  is_read = somebody_reads;
  n_read = n_waits = 0;
  capture();
}

/* Expects the next lines: how many are lost, and one more. */
static void expect_lost(size_t n_lost, const char *next)
{
  char told[100];
  snprintf(told, sizeof told, "%zu lines before are lost: stderr took none", n_lost);
  const char *text = captured(), *at = strstr(text, told);
  assert_true(at && strstr(at, next) && count_lines(text, strlen(text)) == 2);
}

/* Without a reader, the log waits once. Lines that were written are complete, and the next line written says
 * how many are lost. An error line waits again. */
static void nobody_reads(bool json)
{
  enum { LINES = 4000 };
  begin_waiting(json, false);
  uint64_t begin_us = now_us;
  write_lines(LINES);
  assert_int_equal(n_waits, 1);
  td_error_log("bad");
  assert_int_equal(n_waits, 1); /* nothing is left of this second */
  now_us += 1000000;
  td_info("still");
  assert_int_equal(n_waits, 1);
  td_error_log("worse");
  assert_int_equal(n_waits, 2);
  assert_int_equal(now_us - begin_us, 1000000 + 2 * 51300);
  read_all();
  assert_true(n_read > 100 && n_read < LINES);
  td_info("again");
  expect_lost(LINES + 3 - n_read, json ? "none\"}\n{" : "again");
}

static void test_nobody_reads(void **state)
{
  nobody_reads(false);
  nobody_reads(true);
}

/* A slow reader loses nothing, as long as the log does not wait more than it may in a second. */
static void test_a_slow_reader(void **state)
{
  enum { LINES = 2000, MANY = 20000 };
  begin_waiting(false, true);
  write_lines(LINES);
  read_all();
  assert_int_equal(n_read, LINES);
  assert_true(n_waits > 1 && n_waits < 8);
  write_lines(MANY);
  assert_int_equal(n_waits, 8);
  read_all();
  assert_true(n_read < LINES + MANY);
  size_t n_lost = LINES + MANY - n_read;
  td_info("again");
  expect_lost(n_lost, "again");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_text),         cmocka_unit_test(test_json),
      cmocka_unit_test(test_long),         cmocka_unit_test(test_journal),
      cmocka_unit_test(test_nobody_reads), cmocka_unit_test(test_a_slow_reader)};
  return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
