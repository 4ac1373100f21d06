/* Texts about options: --print-config and --help to the letter, warnings about the environment, and the
 * message for an unknown name. */
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
#include "stderr_fixture.h"

/* ---- --print-config ---- */

static char *printed(const td_options *o)
{
  char *text = NULL;
  size_t n;
  FILE *f = open_memstream(&text, &n);
  assert_non_null(f);
  td_options_print_config(o, f);
  fclose(f);
  return text;
}

static bool has_line(const char *text, const char *line)
{
  size_t n = strlen(line);
  for (const char *at = text; (at = strstr(at, line)) != NULL; at++)
    if ((at == text || at[-1] == '\n') && at[n] == '\n')
      return true;
  return false;
}

static void set(td_options *o, const char *name, const char *value, int32_t from)
{
  td_error err;
  int row = td_option_find(name);
  assert_true(row >= 0);
  if (td_option_set(o, row, value, "test", from, &err) != TD_OK)
    fail_msg("%s", err.message);
}

static void test_print_config(void **state)
{
  static const struct {
    const char *name, *value;
    int32_t from;
    const char *line;
  } all[] = {
      {"model", "/a b", TD_FROM_COMMAND_LINE, "model = \"/a b\"  # command line"},
      {"chat_template", "it's \"x\"", 7, "chat_template = 'it''s \"x\"'  # file, line 7"},
      {"api_key_file", "a\"b", 7, "api_key_file = 'a\"b'  # file, line 7"},
      {"cors_origin", "a'b", TD_FROM_ENVIRONMENT, "cors_origin = \"a'b\"  # TANDEM_CORS_ORIGIN"},
      {"allowed_hosts", "a#b", 1, "allowed_hosts = \"a#b\"  # file, line 1"},
      {"kv_events_topic", "a\tb", 1, "kv_events_topic = \"a\tb\"  # file, line 1"},
      {"trace", "a;b", 1, "trace = \"a;b\"  # file, line 1"},
      {"served_model_name", "m", 1, "served_model_name = m  # file, line 1"},
      {"temperature", "0", 1, "temperature = 0  # file, line 1"},
      {"top_p", "0.95", TD_FROM_COMMAND_LINE, "top_p = 0.95  # command line"},
      {"top_k", "40", 1, "top_k = 40  # file, line 1"},
      {"log_level", "warn", 1, "log_level = warn  # file, line 1"},
      {"workers", "3", 1, "workers = 3  # file, line 1"},
      {"step_tokens", "1024", 1,
       "step_tokens = 1024  # file, line 1"}, /* not a number of bytes, so no letter */
      {"kv_bytes", "0", 1, "kv_bytes = 0  # file, line 1"},
      {"http_body_bytes", "3145728", 1, "http_body_bytes = 3M  # file, line 1"},
      {"http_bodies_bytes", "1073741824", 1, "http_bodies_bytes = 1G  # file, line 1"},
      {"sse_queue_bytes", "65537", 1, "sse_queue_bytes = 65537  # file, line 1"},
  };
  td_options o;
  td_options_init(&o);
  char *text = printed(&o);
  assert_true(has_line(text, "# min_p =   # default: as the model says"));
  assert_true(has_line(text, "model =   # default"));
  assert_true(has_line(text, "listen = 127.0.0.1:8080  # default"));
  assert_true(has_line(text, "# Sampling defaults"));
  assert_null(strstr(text, "# file:"));
  for (const td_option_row *r = td_option_rows; r < td_option_rows + td_n_option_rows; r++) {
    char begin[100];
    snprintf(begin, sizeof begin, "%s = ", r->name);
    assert_true(r->kind == TD_OPTION_SECTION || strstr(text, begin)); /* each has a line */
  }
  free(text);
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    set(&o, all[i].name, all[i].value, all[i].from);
  strcpy(o.config, "/etc/x.conf");
  text = printed(&o);
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (!has_line(text, all[i].line))
      fail_msg("no line '%s' in\n%s", all[i].line, text);
  assert_true(has_line(text, "# file: /etc/x.conf"));
  free(text);
  set(&o, "kv_bytes", "1099511627776", 1); /* 2^40: G is the largest letter */
  text = printed(&o);
  assert_true(has_line(text, "kv_bytes = 1024G  # file, line 1"));
  free(text);
}

/* ---- --help ---- */

static void test_help(void **state)
{
  char path[] = "/tmp/td_help_XXXXXX", spelled[TD_OPTION_KEY_BYTES];
  static char text[100000], want[400];
  int fd = mkstemp(path), kept = dup(STDOUT_FILENO);
  assert_true(fd >= 0 && kept >= 0);
  fflush(stdout);
  dup2(fd, STDOUT_FILENO);
  td_options_print_help();
  fflush(stdout);
  dup2(kept, STDOUT_FILENO);
  close(kept);
  ssize_t n = pread(fd, text, sizeof text - 1, 0);
  close(fd);
  unlink(path);
  assert_true(n > 0);
  for (const td_option_row *r = td_option_rows; r < td_option_rows + td_n_option_rows; r++) {
    const td_limit *l = &td_limits[r->limit];
    if (r->kind == TD_OPTION_SECTION) {
      snprintf(want, sizeof want, "\n%s:\n", r->name);
      assert_non_null(strstr(text, want));
      continue;
    }
    snprintf(spelled, sizeof spelled, "--%s %s", r->name, r->value_name);
    for (char *c = spelled; *c != ' '; c++)
      *c = *c == '_' ? '-' : *c;
    snprintf(want, sizeof want, "\n  %-34s %.80s", spelled, r->help);
    const char *at = strstr(text, want);
    if (!at)
      fail_msg("no '%s'", want);
    const char *end = strchr(at + 1, '\n');
    if (r->kind == TD_OPTION_NUMBER)
      snprintf(want, sizeof want, " (default as the model says)");
    else if (r->kind == TD_OPTION_LIMIT)
      snprintf(want, sizeof want, " [%.0f, %.0f..%.0f %s]", l->def, l->min, l->max, l->unit);
    else if (*r->def)
      snprintf(want, sizeof want, " (default %s)", r->def);
    else
      snprintf(want, sizeof want, "%s", r->help + strlen(r->help) - 5); /* and nothing after it */
    if (strncmp(end - strlen(want), want, strlen(want)) != 0)
      fail_msg("%s does not end in '%s'", r->name, want);
  }
  assert_non_null(strstr(text, "\n  --config FILE "));
  assert_non_null(strstr(text, "\n  --check "));
}

/* ---- the environment ---- */

static void test_warnings_of_variables(void **state)
{
  extern char **environ;
  char **before = environ;
  char longest[100] = "TANDEM_";
  memset(longest + 7, 'W', 80);
  strcpy(longest + 87, "=1");
  char *all[] = {"TANDEM_WORKER=3", "TANDEM_CONFIG=x", "TANDEM_WORKERS=1", "TANDEM_=1", "XANDEM_WORKER=1",
                 "TANDEM_PORT=1",   "TANDEM_Listen_=", "TANDEM",           longest,     NULL};
  td_log_init(TD_LOG_INFO, false);
  capture();
  environ = all;
  td_options_warn_of_variables();
  environ = before;
  const char *text = captured();
  assert_non_null(strstr(text, "TANDEM_WORKER is no option; did you mean TANDEM_WORKERS?"));
  assert_non_null(strstr(text, "TANDEM_Listen_ is no option; did you mean TANDEM_LISTEN?"));
  int lines = 0;
  for (const char *c = text; *c; c++)
    lines += *c == '\n';
  assert_int_equal(lines, 2);
}

/* ---- unknown names ---- */

static void test_unknown(void **state)
{
  static const struct {
    const char *written;
    int32_t from;
    const char *message;
  } all[] = {
      {"--host", TD_FROM_COMMAND_LINE, "w: unknown option '--host'; here: --listen, HOST:PORT in one"},
      {"--HOST", TD_FROM_COMMAND_LINE, "w: unknown option '--HOST' (see --help)"},
      {"-m", TD_FROM_COMMAND_LINE, "w: unknown option '-m'; here: --model"},
      {"m", 3, "w: unknown option 'm' (see --help)"},
      {"host", 3, "w: unknown option 'host'; here: listen, HOST:PORT in one"},
      {"--tbt-target-ms", TD_FROM_COMMAND_LINE,
       "w: unknown option '--tbt-target-ms'; removed: tbt_slo_ms is the most that a step with prompts takes; "
       "how long it "
       "takes below that follows who waits"},
      {"record_ms", 3, "w: unknown option 'record_ms'; here: capture_ms, by its new name"},
      {"--tokenizer", TD_FROM_COMMAND_LINE,
       "w: unknown option '--tokenizer'; the tokenizer is the model's own"},
      {"json_depth", 3, "w: unknown option 'json_depth'; it is a bound that is fixed"},
      {"--priority", TD_FROM_COMMAND_LINE, "w: unknown option '--priority'; it is a field of requests"},
      {"bckend", 3, "w: unknown option 'bckend'; did you mean backend?"},
      {"--worker-queeu", TD_FROM_COMMAND_LINE,
       "w: unknown option '--worker-queeu'; did you mean --worker-queue?"},
      {"Workers", TD_FROM_ENVIRONMENT, "w: unknown option 'Workers'; did you mean TANDEM_WORKERS?"},
      {"--chek", TD_FROM_COMMAND_LINE, "w: unknown option '--chek'; did you mean --check?"},
      {"chek", 3, "w: unknown option 'chek' (see --help)"}, /* a flag has no place in a file */
      {"zz", 3, "w: unknown option 'zz' (see --help)"},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    td_error err;
    assert_int_equal(td_option_unknown(all[i].written, "w", all[i].from, &err), TD_ERR_CONFIG);
    assert_string_equal(err.message, all[i].message);
    assert_string_equal(
        err.param, all[i].written + (all[i].from == TD_FROM_COMMAND_LINE ? strspn(all[i].written, "-") : 0));
  }
}

/* One wrong letter in names of up to five letters, two in longer ones; the closest name wins. */
static void test_nearest(void **state)
{
  static const char *const cases[][2] = {
      {"model", "model"},
      {"mdoel", "model"},
      {"modle", "model"},
      {"modl", "model"},
      {"mo", NULL},
      {"listen", "listen"},
      {"lsiten", "listen"},
      {"listeen", "listen"},
      {"lisn", NULL},
      {"xixten", "listen"},
      {"xixxen", NULL},
      {"LOG-LEVEL", "log_level"},
      {"log_frmat", "log_format"},
      {"log_levle", "log_level"},
      {"trac", "trace"},
      {"trxcx", NULL},
      {"", NULL},
      {"a_name_that_is_longer_than_any_option_and_than_its_buffer_of_64_bytes", NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const char *near = td_option_nearest(cases[i][0], false);
    if (!near != !cases[i][1] || (near && strcmp(near, cases[i][1]) != 0))
      fail_msg("'%s' is near '%s'", cases[i][0], near ? near : "none");
  }
}

/* Each keyword of an option is accepted exactly as written; similar ones are not. */
static void test_each_word(void **state)
{
  int n = 0;
  for (int row = 0; row < td_n_option_rows; row++)
    for (int i = 0; td_option_rows[row].words && td_option_rows[row].words[i]; i++, n++) {
      const char *word = td_option_rows[row].words[i];
      char longer[64];
      td_options o;
      td_error err;
      td_options_init(&o);
      if (td_option_set(&o, row, word, "test", 1, &err) != TD_OK)
        fail_msg("%s", err.message);
      snprintf(longer, sizeof longer, "%s_", word);
      assert_int_not_equal(td_option_set(&o, row, longer, "test", 1, &err), TD_OK);
      assert_int_not_equal(td_option_set(&o, row, "", "test", 1, &err), TD_OK);
      if (td_option_rows[row].kind == TD_OPTION_TEXT)
        assert_string_equal(td_option_text(&o, &td_option_rows[row]), word);
    }
  assert_true(n > 5);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_print_config),
      cmocka_unit_test(test_help),
      cmocka_unit_test(test_warnings_of_variables),
      cmocka_unit_test(test_unknown),
      cmocka_unit_test(test_nearest),
      cmocka_unit_test(test_each_word),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
