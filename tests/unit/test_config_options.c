/* Options: lines of the file, forms of the command line, and the messages for wrong ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "config/options_table.h"
#include "held_fixture.h"

enum { N_RENEWABLE = 21 };

static char path[] = "/tmp/test_config_options.XXXXXX";

static int make_file(void **state)
{
  int fd = mkstemp(path);
  return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state) { return unlink(path); }

static void write_file(const char *text, size_t n)
{
  FILE *f = fopen(path, "we");
  assert_non_null(f);
  assert_int_equal(fwrite(text, 1, n, f), n);
  assert_int_equal(fclose(f), 0);
}

static td_status read_text(td_options *o, const char *text, td_error *err)
{
  write_file(text, strlen(text));
  td_options_init(o);
  return td_options_read_file(o, path, err);
}

/* The message must begin with file and line, and hold `what`. */
static void refused(const char *text, unsigned line, const char *what)
{
  td_options o;
  td_error err = {0};
  char where[64];
  assert_int_equal(read_text(&o, text, &err), TD_ERR_CONFIG);
  snprintf(where, sizeof where, "%s:%u: ", path, line);
  if (strncmp(err.message, where, strlen(where)) != 0 || !strstr(err.message, what))
    fail_msg("'%s': %s", text, err.message);
}

static void test_file_values(void **state)
{
  td_options o;
  td_error err;
  assert_int_equal(read_text(&o,
                             "\xEF\xBB\xBF# a comment\n"
                             "; another\n"
                             "\n"
                             "   \t\n"
                             "model=/a path/with = and#in it;.gguf # a comment\r\n"
                             "  listen\t =  unix:/run/t.sock  \n"
                             "workers = 4 ; four\n"
                             "step-tokens = 0256\n"
                             "log_level = debug\n"
                             "served_model_name = # the file's\n"
                             "backend = cpu", /* no newline at the end */
                             &err),
                   TD_OK);
  assert_string_equal(o.model, "/a path/with = and#in it;.gguf");
  assert_string_equal(o.listen, "unix:/run/t.sock");
  assert_string_equal(o.served_model_name, "");
  assert_string_equal(o.backend, "cpu");
  assert_int_equal(o.log_level, TD_LOG_DEBUG);
  assert_int_equal(td_option(&o, TD_LIMIT_WORKERS), 4);
  assert_int_equal(td_option(&o, TD_LIMIT_STEP_TOKENS), 256);
  assert_int_equal(td_option(&o, TD_LIMIT_CONNECTIONS), td_limit_default(TD_LIMIT_CONNECTIONS));
  assert_int_equal(read_text(&o, "", &err), TD_OK);
  assert_string_equal(o.listen, "127.0.0.1:8080");
}

static void test_file_refused(void **state)
{
  refused("workers = 1\n\nno_such = 1\n", 3, "unknown option 'no_such'");
  refused("config = other\n", 1, "unknown option 'config'");
  refused("json_depth = 64\n", 1, "unknown option"); /* FIXED */
  refused("priority = 1\n", 1, "unknown option");    /* REQUEST */
  refused("temperature = 1\ntemperature = 1\n", 2, "set twice");
  refused("top_p = 0\n", 1, "above 0");
  refused(" = 1\n", 1, "unknown option ''");
  refused("workers = 1\nattention = pat\n", 2,
          "unknown option 'attention'; removed: the daemon always chooses by predicted time; tandem-bench "
          "attention");
  refused("workers = 1\n# x\nworkers = 2\n", 3, "'workers' is set twice");
  refused("step_tokens = 64\nstep-tokens = 64\n", 2, "set twice");
  refused("log_level=info\nlog_level=info\n", 2, "set twice");
  refused("model=a\nmodel=a\n", 2, "set twice");
  refused("workers\n", 1, "key = value");
  refused("workers: 1\n", 1, "key = value");
  refused("[server]\n", 1, "sections");
  refused("workers = 1\n  [server]\nworkers = 2\n", 2, "sections");
  refused("backend = gpu\n", 1, "is not auto, cpu or cuda");
  refused("log_level = loud\n", 1, "log_level");
  refused("page_tokens = 48\n", 1, "16, 32 or 64");
  refused("work\xff"
          "ers = 1\n",
          1, "byte 5");
  refused("model = a\x01"
          "b\n",
          1, "byte 10");
  refused("model = a\x7f\n", 1, "not text");
  refused("model = a\xc2\x9b\n", 1, "byte 10");
  refused("\n\nmodel = a\rb\n", 3, "not text");
  refused("workers = 1\n workers = 2", 2, "twice"); /* an indented line is a separate line */
}

static void test_bad_numbers(void **state)
{
  static const char *const bad[] = {"",    "-1",  "+1",  "1.5", "1e3", "0x10", "inf", "nan",
                                    "1_0", "1,0", "one", "1 2", "1k",  "1K ",  "٣",   "1\t2"};
  char line[128];
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    snprintf(line, sizeof line, "connections = %s\n", bad[i]);
    refused(line, 1, "not a whole number");
  }
  refused("connections = 0\n", 1, "outside 1..65536 connections");
  refused("connections = 65537\n", 1, "outside");
  memset(line, 0, sizeof line);
  strcpy(line, "connections = ");
  memset(line + 14, '9', 100);
  refused(line, 1, "outside");
}

static void test_nul_and_long_lines(void **state)
{
  td_options o;
  td_error err;
  static const char nul[] = "workers = 3\0junk\n";
  write_file(nul, sizeof nul - 1);
  td_options_init(&o);
  assert_int_equal(td_options_read_file(&o, path, &err), TD_ERR_CONFIG);
  assert_non_null(strstr(err.message, ":1: byte 12"));

  static char text[20000];
  memset(text, 0, sizeof text);
  strcpy(text, "workers = 3\n#");
  memset(text + 13, 'x', 8191); /* a line of 8192 bytes including its '#' */
  strcat(text, "\nworker_queue = 7\n");
  assert_int_equal(read_text(&o, text, &err), TD_OK);
  assert_int_equal(td_option(&o, TD_LIMIT_WORKER_QUEUE), 7);
  memset(text + 13, 'x', 8192);
  strcpy(text + 13 + 8192, "\nworker_queue = 7\n");
  refused(text, 2, "longer than 8192 bytes");

  strcpy(text, "model = ");
  memset(text + 8, 'm', TD_OPTION_STRING_BYTES - 1);
  text[8 + TD_OPTION_STRING_BYTES - 1] = '\0';
  assert_int_equal(read_text(&o, text, &err), TD_OK);
  assert_int_equal(strlen(o.model), TD_OPTION_STRING_BYTES - 1);
  strcat(text, "m");
  refused(text, 1, "longer than 4095 bytes");
}

static void test_unreadable(void **state)
{
  td_options o;
  td_error err;
  td_options_init(&o);
  assert_int_equal(td_options_read_file(&o, "/nonexistent/tandem.conf", &err), TD_ERR_CONFIG);
  assert_non_null(strstr(err.message, "/nonexistent/tandem.conf: No such file"));
  assert_int_equal(td_options_read_file(&o, "/", &err), TD_ERR_CONFIG);
  assert_non_null(strstr(err.message, "/: Is a directory"));
  static char name[sizeof o.config + 1];
  for (size_t n = sizeof o.config - 1; n <= sizeof o.config; n++) {
    memset(name, 'f', n);
    td_options_init(&o);
    assert_int_equal(td_options_read_file(&o, name, &err), TD_ERR_CONFIG);
    assert_int_equal(strlen(o.config), n < sizeof o.config ? n : 0);
  }
  assert_int_equal(td_options_read_file(&o, "a\x01", &err), TD_ERR_CONFIG);
  assert_string_equal(err.message, "a?: not text, or longer than 4095 bytes");
}

/* ---- command line ---- */

static td_status args(td_options *o, td_options_action *action, td_error *err, const char *const *list)
{
  char *argv[32] = {"tandemd"};
  int argc = 1;
  for (; *list; list++)
    argv[argc++] = (char *)*list;
  td_options_init(o);
  memset(err, 0, sizeof *err);
  return td_options_read(o, argc, argv, action, err);
}
#define ARGS(...) args(&o, &action, &err, (const char *const[]){__VA_ARGS__, NULL})

static void test_command_line(void **state)
{
  td_options o;
  td_error err;
  td_options_action action;
  assert_int_equal(ARGS("--model", "m.gguf", "--step_tokens=128", "--worker-queue", "9", "--listen=a=b:1"),
                   TD_OK);
  assert_int_equal(action, TD_ACTION_RUN);
  assert_string_equal(o.model, "m.gguf");
  assert_string_equal(o.listen, "a=b:1");
  assert_int_equal(td_option(&o, TD_LIMIT_STEP_TOKENS), 128);
  assert_int_equal(td_option(&o, TD_LIMIT_WORKER_QUEUE), 9);
  assert_int_equal(ARGS("--model=a", "--model=b"), TD_OK); /* the last one counts */
  assert_string_equal(o.model, "b");
  assert_int_equal(ARGS("--model=a", "--check"), TD_OK);
  assert_int_equal(action, TD_ACTION_CHECK);
  assert_int_equal(ARGS("--help"), TD_OK);
  assert_int_equal(action, TD_ACTION_HELP);
  assert_int_equal(ARGS("--model=a", "-h"), TD_OK);
  assert_int_equal(action, TD_ACTION_HELP);
  assert_int_equal(ARGS("--version"), TD_OK);
  assert_int_equal(action, TD_ACTION_VERSION);
  assert_int_equal(ARGS("--model", "--help"), TD_OK); /* a value, though an odd one */
  assert_int_equal(action, TD_ACTION_RUN);
  assert_string_equal(o.model, "--help");
}

/* Sampling defaults: decimal numbers within the bounds of the request's fields; negative means not set. */
static void test_sampling_defaults(void **state)
{
  td_options o;
  td_error err;
  td_options_action action;
  assert_int_equal(ARGS("--model=a"), TD_OK);
  assert_true(o.temperature < 0 && o.top_p < 0 && o.top_k < 0 && o.min_p < 0);
  assert_int_equal(ARGS("--model=a", "--temperature", "0.25", "--top-p=0.5", "--top_k", "40", "--min-p=0"),
                   TD_OK);
  assert_true(o.temperature == 0.25 && o.top_p == 0.5 && o.top_k == 40 && o.min_p == 0);
  assert_int_equal(ARGS("--model=a", "--temperature=2.000", "--top-p=1"), TD_OK);
  static const char *const bad[] = {
      "--temperature=2.1", "--temperature=-1",  "--temperature=",      "--temperature=.5",
      "--temperature=1.",  "--temperature=1e0", "--temperature=0x1",   "--temperature=nan",
      "--temperature=inf", "--temperature=1 ",  "--temperature=1.0.0", "--temperature=0,5",
      "--top-p=0",         "--top-p=0.0",       "--top-p=1.01",        "--min-p=2",
      "--top-k=1.5",       "--top-k=-1",        "--top-k=99999999"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    if (ARGS("--model=a", bad[i]) != TD_ERR_CONFIG)
      fail_msg("%s is taken", bad[i]);
    assert_true(strlen(err.param) == strcspn(bad[i] + 2, "="));
  }
}

static void test_command_line_refused(void **state)
{
  td_options o;
  td_error err;
  td_options_action action;
  assert_int_equal(ARGS("--workers=1"), TD_ERR_CONFIG);
  assert_non_null(strstr(err.message, "--model PATH"));
  assert_int_equal(ARGS("--model"), TD_ERR_CONFIG);
  assert_non_null(strstr(err.message, "--model needs a value"));
  assert_int_equal(ARGS("--model=m", "--no-such", "1"), TD_ERR_CONFIG);
  assert_non_null(strstr(err.message, "command line: unknown option '--no-such'"));
  assert_int_equal(ARGS("--model=m", "stray"), TD_ERR_CONFIG);
  assert_non_null(strstr(err.message, "unexpected argument 'stray'"));
  assert_int_equal(ARGS("--model=m", "-m"), TD_ERR_CONFIG);
  assert_int_equal(ARGS("--model=m", "--"), TD_ERR_CONFIG);
  assert_int_equal(ARGS("--model=m", ""), TD_ERR_CONFIG);
  assert_int_equal(ARGS("--model=m", "--=x"), TD_ERR_CONFIG);
  assert_int_equal(ARGS("--model=m", "--workers=17"), TD_ERR_CONFIG);
  assert_string_equal(err.param, "workers");
  assert_int_equal(ARGS("--model=m", "--workers="), TD_ERR_CONFIG);
  assert_int_equal(
      ARGS("--model=m", "--a-key-that-is-longer-than-any-other-and-longer-than-its-buffer-of-64-bytes=1"),
      TD_ERR_CONFIG);
  assert_non_null(strstr(err.message, "unknown option"));
}

static void test_file_then_command_line(void **state)
{
  td_options o;
  td_error err;
  td_options_action action;
  const char *text = "model = from-file\nworkers = 3\nstep_tokens = 100\n";
  write_file(text, strlen(text));
  assert_int_equal(ARGS("--workers=5", "--config", path), TD_OK); /* it is read first, wherever it is */
  assert_string_equal(o.model, "from-file");
  assert_int_equal(td_option(&o, TD_LIMIT_WORKERS), 5);
  assert_int_equal(td_option(&o, TD_LIMIT_STEP_TOKENS), 100);
  write_file("workers = x", 11);
  assert_int_equal(ARGS("--model=m", "--config", path), TD_ERR_CONFIG);
  assert_non_null(strstr(err.message, ":1: workers"));
  assert_int_equal(ARGS("--model=m", "--config"), TD_ERR_CONFIG);
}

/* ---- quotes and comments, sizes ---- */

static void model_is(const char *line, const char *expect)
{
  td_options o;
  td_error err = {0};
  if (read_text(&o, line, &err) != TD_OK || strcmp(o.model, expect) != 0)
    fail_msg("'%s' gives '%s' %s", line, o.model, err.message);
}

static void test_quotes_and_comments(void **state)
{
  model_is("model = \"/a b\"", "/a b");
  model_is("model = '/a # b'  # c\n", "/a # b");
  model_is("model = \"say \"\"x\"\"\" ; c\n", "say \"x\"");
  model_is("model = 'it''s'#c\n", "it's");
  model_is("model = \"it's\"\n", "it's");
  model_is("model = \"\"\n", "");
  model_is("model = \"  a\t\"\n", "  a\t");
  model_is("model = a#b;c\n", "a#b;c");
  model_is("model = a #b\n", "a");
  model_is("model = a\t; b\n", "a");
  model_is("model = # b\n", "");
  refused("model = \"a\n", 1, "no closing \"");
  refused("model = 'a''\n", 1, "no closing '");
  refused("model = \"a\" b\n", 1, "'b' behind the closing \"");
  refused("model = a\"b\n", 1, "a quote within the value");
  refused("model = it's\n", 1, "a quote within the value");
}

static void test_sizes(void **state)
{
  static const struct {
    const char *text;
    double v;
  } good[] = {{"0", 0},        {"8G", 8e0 * (1 << 30)}, {"8g", 8e0 * (1 << 30)},
              {"3M", 3 << 20}, {"5k", 5 << 10},         {"7", 7}};
  static const char *const bad[] = {"G", "8 G", "8GB", "8T", "1.5G", "-1G", "8Gi", "K8"};
  td_options o;
  td_error err;
  char line[64];
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    snprintf(line, sizeof line, "kv_bytes = %s\n", good[i].text);
    assert_int_equal(read_text(&o, line, &err), TD_OK);
    assert_true(o.limit[TD_LIMIT_KV_BYTES] == good[i].v);
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    snprintf(line, sizeof line, "kv_bytes = %s\n", bad[i]);
    refused(line, 1, "K, M or G");
  }
  refused("kv_bytes = 9999999999999G\n", 1, "outside 0..1099511627776");
  refused("workers = 1K\n", 1, "K, M and G are for bytes");
}

static void test_renewal(void **state)
{
  td_options now, next;
  td_error err;
  td_options_changes changes;
  assert_int_equal(read_text(&now, "log_level = debug\nworkers = 3\nwatchers = 5\n", &err), TD_OK);
  assert_int_equal(read_text(&next, "\nworkers = 4\ncors_origin = *\nwatchers = 5\n", &err), TD_OK);
  td_options_reload(&now, &next, &changes);
  assert_string_equal(changes.updated, "cors_origin, log_level");
  assert_string_equal(changes.needs_restart, "workers");
  assert_int_equal(now.log_level, TD_LOG_INFO);
  assert_string_equal(now.cors_origin, "*");
  assert_int_equal(now.from[td_option_find("cors_origin")], 3);
  assert_int_equal(td_option(&now, TD_LIMIT_WORKERS), 3);
  unsigned n = 0;
  for (int i = 0; i < td_n_option_rows; i++)
    n += td_option_is_reloadable(&td_option_rows[i]);
  assert_int_equal(n, N_RENEWABLE); /* each name in the list is an option */
}

/* In the warnings about the environment: other uses of the prefix are not options. */
static void test_variables_that_are_no_options(void **state)
{
  static const char *const others[] = {
      "fault", "share",        "pipeline",    "isa",  "test_model", "test_tokenizers",
      "bin",   "e2e_slowness", "e2e_streams", "port", "cuda",       "cache"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    assert_int_equal(td_option_find(others[i]), -1);
    assert_null(td_option_nearest(others[i], false));
  }
}

static void test_where_values_come_from(void **state)
{
  td_options o;
  td_error err;
  td_options_action action;
  const char *text = "model = from-file\nworkers = 3\nstep_tokens = 100\n";
  write_file(text, strlen(text));
  setenv("TANDEM_WORKERS", "4", 1);
  setenv("TANDEM_WORKER_QUEUE", "", 1); /* the same as none */
  assert_int_equal(ARGS("--step-tokens=7", "--config", path), TD_OK);
  unsetenv("TANDEM_WORKER_QUEUE");
  assert_int_equal(o.from[td_option_find("model")], 1);
  assert_int_equal(o.from[td_option_find("workers")], TD_FROM_ENVIRONMENT);
  assert_int_equal(o.from[td_option_find("step_tokens")], TD_FROM_COMMAND_LINE);
  assert_int_equal(o.from[td_option_find("worker_queue")], TD_FROM_DEFAULT);
  assert_int_equal(td_option(&o, TD_LIMIT_WORKERS), 4);
  assert_int_equal(ARGS("--workers=5", "--config", path), TD_OK);
  assert_int_equal(td_option(&o, TD_LIMIT_WORKERS), 5);
  setenv("TANDEM_WORKERS", "99", 1);
  assert_int_equal(ARGS("--model=m"), TD_ERR_CONFIG);
  assert_non_null(strstr(err.message, "TANDEM_WORKERS: workers: 99 is outside"));
  unsetenv("TANDEM_WORKERS");
}

static td_status take(td_options *o, const char *key, const char *value, td_error *err)
{
  int row = td_option_find(key);
  return row < 0 ? TD_ERR_CONFIG : td_option_set(o, row, value, "test", TD_FROM_COMMAND_LINE, err);
}

/* Every option of the tables can be set to its bounds and not beyond, and is in the help. */
static void test_every_limit(void **state)
{
  td_options o;
  td_error err;
  char value[64];
  td_options_init(&o);
  for (int i = 0; i < TD_LIMIT_COUNT; i++) {
    const td_limit *l = &td_limits[i];
    bool option = l->kind == TD_LIMIT_KIND_OPTION;
    if (i == TD_LIMIT_TEMPERATURE || i == TD_LIMIT_TOP_P || i == TD_LIMIT_TOP_K || i == TD_LIMIT_MIN_P)
      continue; /* the operator's default for a request field: test_sampling_defaults */
    for (int side = 0; side < 2; side++) {
      snprintf(value, sizeof value, "%.0f", side ? l->max : l->min);
      assert_int_equal(take(&o, l->name, value, &err), option ? TD_OK : TD_ERR_CONFIG);
      if (option)
        assert_true(o.limit[i] == (side ? l->max : l->min));
    }
    snprintf(value, sizeof value, "%.0f", l->max + 1);
    assert_int_equal(take(&o, l->name, value, &err), TD_ERR_CONFIG);
    snprintf(value, sizeof value, "%.0f", l->min - 1);
    assert_int_equal(take(&o, l->name, value, &err), TD_ERR_CONFIG);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_file_values),
      cmocka_unit_test(test_file_refused),
      cmocka_unit_test(test_bad_numbers),
      cmocka_unit_test(test_nul_and_long_lines),
      cmocka_unit_test(test_unreadable),
      cmocka_unit_test(test_command_line),
      cmocka_unit_test(test_sampling_defaults),
      cmocka_unit_test(test_command_line_refused),
      cmocka_unit_test(test_file_then_command_line),
      cmocka_unit_test(test_quotes_and_comments),
      cmocka_unit_test(test_sizes),
      cmocka_unit_test(test_variables_that_are_no_options),
      cmocka_unit_test(test_where_values_come_from),
      cmocka_unit_test(test_renewal),
      cmocka_unit_test(test_every_limit),
  };
  int held = count_descriptors(),
      failed = cmocka_run_group_tests_name("config options", tests, make_file, remove_file);
  return failed + (count_descriptors() != held); /* files are closed, even those with errors */
}
