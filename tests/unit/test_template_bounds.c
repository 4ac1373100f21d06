/* Hostile templates and hostile messages end in an error, in bounded time, stack and memory. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "config/limits.h"
#include "models/template/chat_template.h"

static td_error last;

static td_status run(const char *source, size_t n, const char *input, size_t ops, size_t memory)
{
  td_chat_template *t;
  td_rendered out;
  td_status st = td_chat_template_compile(source, n, &t, &last);
  if (st != TD_OK)
    return st;
  cJSON *json = cJSON_Parse(input);
  td_render_input in = {.input = json, .max_ops = ops, .max_memory_bytes = memory};
  st = td_chat_template_render(t, &in, &out, &last);
  if (st != TD_OK) {
    assert_int_equal(out.text.len_bytes, 0);
    assert_int_equal(out.n_trusted, 0);
  }
  td_rendered_deinit(&out);
  cJSON_Delete(json);
  td_chat_template_destroy(t);
  return st;
}

static td_status run_text(const char *source)
{
  return run(source, strlen(source), "{\"u\": \"x\"}", 4000000, 1 << 24);
}

static void expect(const char *source, td_status want, const char *message)
{
  td_status st = run_text(source);
  if (st != want || !strstr(last.message, message))
    fail_msg("%.200s: status %d (%s), expected %d (%s)", source, st, last.message, want, message);
}

static void growth_hits_the_caps(void **state)
{
  expect("{% set ns = namespace(a='x') %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
         TD_ERR_REQUEST, "bytes of memory");
  expect("{% set ns = namespace(a=[1]) %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
         TD_ERR_REQUEST, "");
  expect("{{ 'x' * 999999999999 }}", TD_ERR_REQUEST, "");
  expect("{{ [1] * 999999999999 }}", TD_ERR_REQUEST, "");
  expect("{{ 'x'|center(999999999999) }}", TD_ERR_REQUEST, "");
  expect("{{ '%99999999d' % 1 }}", TD_ERR_REQUEST, "too large");
  expect("{{ 'ab'.replace('', 'x' * 1000000) * 100 }}", TD_ERR_REQUEST, "");
  expect("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", TD_ERR_REQUEST,
         "steps");
  expect("{{ range(100001) }}", TD_ERR_REQUEST, "Range too big");
  expect("{{ [1]|batch(999999999999, 0)|list }}", TD_ERR_REQUEST, "");
  expect("{{ 9223372036854775807 + 1 }}", TD_ERR_REQUEST, "64 bits");
  expect("{{ (0 - 9223372036854775807 - 1) // -1 }}", TD_ERR_REQUEST, "64 bits");
  expect("{{ range(-9223372036854775807, 9223372036854775807, 9000000000000000000)|list }}", TD_OK, "");
  expect("{{ 'x'.ljust(-9223372036854775807 - 1) }}{{ 'x'|indent(-9223372036854775807) }}", TD_OK, "");
  expect("{{ 'abc'[::9223372036854775807] }}{{ 'abc'[-9223372036854775807::-9223372036854775807] }}", TD_OK,
         "");
}

static void text_built_in_a_loop_is_linear(void **state)
{
  const char *source =
      "{% set ns = namespace(a='') %}{% for i in range(20000) %}{% set ns.a = ns.a ~ '0123456789' ~ u %}"
      "{% endfor %}{{ ns.a|length }}";
  assert_int_equal(run(source, strlen(source), "{\"u\": \"x\"}", 4000000, 64 << 20), TD_OK);
}

static char *repeat(const char *a, int n, const char *mid, const char *b)
{
  size_t la = strlen(a), lb = strlen(b);
  char *s = malloc((la + lb) * (size_t)n + strlen(mid) + 1), *p = s;
  for (int i = 0; i < n; i++)
    p = stpcpy(p, a);
  p = stpcpy(p, mid);
  for (int i = 0; i < n; i++)
    p = stpcpy(p, b);
  return s;
}

static void nest(const char *a, const char *mid, const char *b)
{
  for (int n = 100; n <= 100000; n = n == 100 ? 128 : n == 128 ? 5000 : n * 20) {
    char *s = repeat(a, n, mid, b);
    td_status st = run_text(s);
    if (n >= 5000 && st == TD_OK)
      fail_msg("%.40s nested %d times is accepted", s, n);
    free(s);
  }
}

static void *nesting(void *arg)
{
  nest("{{ (", "1", ") }}");
  char *deep = repeat("(", 120, "1", ")"), *print = malloc(400);
  snprintf(print, 400, "{{ %s }}", deep);
  assert_int_equal(run_text(print), TD_OK);
  free(deep);
  free(print);
  nest("{% if true %}", "x", "{% endif %}");
  nest("{% for x in [1] %}", "x", "{% endfor %}");
  nest("{% macro m() %}", "x", "{% endmacro %}");
  nest("{% set x %}", "x", "{% endset %}");
  static const char *const opens[] = {"(",    "[",     "{1:",      "not ",  "-",    "x[",      "x(",
                                      "x|f(", "1 if ", "x is eq(", "1 + (", "a.b(", "'a' ~ (", "+"};
  for (size_t i = 0; i < sizeof opens / sizeof *opens; i++) {
    for (int n = 50; n <= 20000; n *= 20) {
      char *s = repeat(opens[i], n, "1", ""), *whole = malloc(strlen(s) + 16);
      sprintf(whole, "{{ %s }}", s);
      run_text(whole);
      free(s);
      free(whole);
    }
  }
  static const char *const chains[] = {".a",   "[0]",  "|upper", "()",    " is defined",
                                       " + 1", " ~ 1", " and 1", " == 1", ", 1"};
  for (size_t i = 0; i < sizeof chains / sizeof *chains; i++) {
    char *s = repeat("", 20000, "{{ u", chains[i]), *whole = malloc(strlen(s) + 16);
    sprintf(whole, "%s }}", s);
    run_text(whole);
    free(s);
    free(whole);
  }
  expect("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}", TD_ERR_REQUEST, "recursion");
  expect("{% macro m() %}{% for a in [1] %}{% if true %}{% set x %}{{ ((((((m())))))) ~ '' }}{% endset %}{{ "
         "x }}{% endif %}"
         "{% endfor %}{% endmacro %}{{ m() }}",
         TD_ERR_REQUEST, "recursion");
  expect(
      "{% set ns = namespace(a=[]) %}{% for i in range(9999) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}",
      TD_ERR_REQUEST, "recursion");
  expect("{% set ns = namespace(a=[]) %}{% for i in range(9999) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a "
         "== [ns.a] }}",
         TD_ERR_REQUEST, "recursion");
  expect("{% set ns = namespace(a=[]) %}{% for i in range(9999) %}{% set ns.a = (ns.a,) %}{% endfor %}{{ "
         "{ns.a: 1} }}",
         TD_ERR_REQUEST, "recursion");
  expect("{% set ns = namespace(a=[]) %}{% for i in range(9999) %}{% set ns.a = [ns.a] %}{% endfor %}{{ "
         "ns.a|tojson }}",
         TD_ERR_REQUEST, "recursion");
  expect("{% set ns = namespace(a=[1]) %}{% for i in range(9999) %}{% set ns.a = ns.a|map('string') %}{% "
         "endfor %}{{ ns.a|list }}",
         TD_ERR_REQUEST, "recursion");
  expect("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}", TD_OK, "");
  expect(
      "{% set ns = namespace() %}{% macro m() %}{% for x in [1, 2, 3] if ns.l is undefined or ns.l.nextitem "
      "is defined or true %}"
      "{% set ns.l = loop %}{% endfor %}{% endmacro %}{{ m() }}{{ m() }}{{ ns.l.nextitem }}{{ ns.l.length }}",
      TD_OK, "");
  *(bool *)arg = true;
  return NULL;
}

/* All of this on a stack of one megabyte (sanitizers need more for the same frames). */
static void nesting_does_not_exhaust_a_small_stack(void **state)
{
  pthread_attr_t attr;
  pthread_t thread;
  bool done = false;
#if defined(__SANITIZE_ADDRESS__)
  size_t stack = 4 << 20;
#else
  size_t stack = 1 << 20;
#endif
  pthread_attr_init(&attr);
  assert_int_equal(pthread_attr_setstacksize(&attr, stack), 0);
  assert_int_equal(pthread_create(&thread, &attr, nesting, &done), 0);
  pthread_join(thread, NULL);
  assert_true(done);
}

static void compile_errors_name_the_line(void **state)
{
  expect("a\nb\n{% if x %}", TD_ERR_MODEL, "line 3");
  expect("\n{{ 1 +", TD_ERR_MODEL, "line 2");
  expect("{{ 'open }}", TD_ERR_MODEL, "line 1");
  expect("{% nope %}", TD_ERR_MODEL, "unknown tag 'nope'");
  expect("{{ x|nope }}", TD_ERR_MODEL, "No filter named 'nope'");
  expect("{{ x is nope }}", TD_ERR_MODEL, "No test named 'nope'");
  expect("{% include 'x' %}", TD_ERR_MODEL, "not served");
  expect("{% break %}", TD_ERR_MODEL, "outside loop");
  expect("{% for x in y recursive %}{% endfor %}", TD_ERR_MODEL, "not served");
  expect("{# open", TD_ERR_MODEL, "Missing end of comment");
  expect("{% raw %}x", TD_ERR_MODEL, "Missing end of raw");
  expect("\xff", TD_ERR_MODEL, "UTF-8");
  expect("{{ '\\ud800' }}", TD_ERR_MODEL, "no character");
}

/* Inside `if`, jinja2 3 looks for filters only when they are reached, except in a nested scope there. */
static void unknown_filters_inside_if(void **state)
{
  static const char no[] = "No filter named 'nope'";
  expect("{% if false %}{{ 1|nope }}{% endif %}", TD_OK, "");
  expect("{% if true %}{{ 1|nope }}{% endif %}", TD_ERR_REQUEST, no);
  expect("{% if false %}a{% endif %}{{ 1|nope }}", TD_ERR_MODEL, no);
  expect("{% if false %}{% for x in [] %}{{ x|nope }}{% endfor %}{% endif %}", TD_ERR_MODEL, no);
  expect("{% if false %}{% macro m() %}{{ 1|nope }}{% endmacro %}{% endif %}", TD_ERR_MODEL, no);
  expect("{% if false %}{% set x %}{{ 1|nope }}{% endset %}{% endif %}", TD_ERR_MODEL, no);
  expect("{% if false %}{% for x in [] %}a{% endfor %}{{ 1|nope }}{% endif %}", TD_OK, "");
  expect("{% if false %}{% macro m() %}a{% endmacro %}{{ 1|nope }}{% endif %}", TD_OK, "");
  expect("{% if false %}{% set x %}a{% endset %}{{ 1|nope }}{% endif %}", TD_OK, "");
}

static void limits_of_the_source(void **state)
{
  size_t n = td_limit_max(TD_LIMIT_TEMPLATE_BYTES) + 1;
  char *s = malloc(n);
  memset(s, 'x', n);
  assert_int_equal(run(s, n, "{}", 1000, 1 << 20), TD_ERR_MODEL);
  assert_int_equal(run(s, n - 1, "{}", 1000000, 1 << 20), TD_OK);
  for (size_t i = 0; i + 5 < n; i += 5)
    memcpy(s + i, "{{1}}", 5);
  assert_int_equal(run(s, n - 1, "{}", 1000, 1 << 20), TD_ERR_MODEL);
  assert_non_null(strstr(last.message, "nodes"));
  free(s);
}

/* ---- functions that read bytes pay for them ---- */

/* The least budget that is enough. */
static size_t steps_of(const char *source, const cJSON *input)
{
  td_chat_template *t;
  size_t low = 0, high = 1 << 22;
  if (td_chat_template_compile(source, strlen(source), &t, &last) != TD_OK)
    fail_msg("%s: %s", source, last.message);
  while (high - low > 1) {
    size_t mid = low + (high - low) / 2;
    td_rendered out;
    td_render_input in = {.input = input, .max_ops = mid, .max_memory_bytes = 256 << 20};
    td_status st = td_chat_template_render(t, &in, &out, &last);
    if (st != TD_OK && !strstr(last.message, "steps"))
      fail_msg("%s: %s", source, last.message);
    *(st == TD_OK ? &high : &low) = mid;
    td_rendered_deinit(&out);
  }
  td_chat_template_destroy(t);
  return high;
}

static void add_text(cJSON *input, const char *key, const char *unit, size_t n, const char *end)
{
  char *text = malloc(n + 8), *p = text;
  while ((size_t)(p - text) + strlen(unit) <= n)
    p = stpcpy(p, unit);
  strcpy(p, end);
  cJSON_AddStringToObject(input, key, text);
  free(text);
}

/* a, b: equal letters; u: two bytes a character; s: spaces; d: digits; l: empty lines */
static cJSON *texts(size_t n)
{
  cJSON *input = cJSON_CreateObject();
  add_text(input, "a", "a", n, "");
  add_text(input, "b", "a", n, "");
  add_text(input, "z", "a", n, "z");
  add_text(input, "u", "\xc3\xa4", n, "");
  add_text(input, "s", " ", n, "");
  add_text(input, "d", "7", n, "");
  add_text(input, "l", "\n", n, "");
  return input;
}

static void looking_at_bytes_is_paid_for(void **state)
{
  static const char *const looks[] = {"a.startswith(b)",
                                      "a.endswith(b)",
                                      "a.removeprefix(b)",
                                      "a.removesuffix(b)",
                                      "a == b",
                                      "a < b",
                                      "b in a",
                                      "a in [b]",
                                      "a.find('b')",
                                      "a.rfind('b')",
                                      "u.rfind('\xc3\xa4')",
                                      "z.find('z')",
                                      "u[1:]|length",
                                      "u[-1]",
                                      "u.count('')",
                                      "a.count('')",
                                      "a.count('a')",
                                      "a.count('b')",
                                      "u.startswith('b')",
                                      "'x'.strip(a)|length",
                                      "a.strip('bcda')|length",
                                      "s.strip()|length",
                                      "s|trim|length",
                                      "d|int(7)|string|length",
                                      "a|int",
                                      "d|float|string|length",
                                      "a|tojson|length",
                                      "u|upper|length",
                                      "a|lower|length",
                                      "a|wordcount",
                                      "a|escape|length",
                                      "[a]|string|length",
                                      "u.isalpha()",
                                      "a.islower()",
                                      "a.isidentifier()",
                                      "l.splitlines()|length",
                                      "a.splitlines()|length",
                                      "s.split()|length",
                                      "a.split()|length",
                                      "a.rsplit()|length",
                                      "a.split('b')|length",
                                      "a.split('a')|length",
                                      "a.rsplit('a')|length",
                                      "a.replace('b', 'c')|length",
                                      "a.replace('a', 'c')|length",
                                      "a|indent|length",
                                      "a|urlencode|length",
                                      "a.expandtabs()|length",
                                      "(a ~ 'x')|length",
                                      "'%s' % a == ''",
                                      "{a: 1}|length",
                                      "a|reverse|length",
                                      "u[::2]|length",
                                      "u|list|length",
                                      "a.title()|length",
                                      "a.partition('b')|length",
                                      "a is lower",
                                      "['x']|map(attribute=a)|list|length",
                                      "['x']|sort(attribute=a)|length",
                                      "[1, 2]|join(a)|length",
                                      "(a ~ 'q')|replace('q', '')|length",
                                      "a|format|length",
                                      "a|title|length"};
  enum { TIMES = 5, N = 8192 };
  cJSON *one = texts(N), *two = texts(2 * N);
  for (size_t i = 0; i < sizeof looks / sizeof *looks; i++) {
    char source[256];
    snprintf(source, sizeof source, "{%% for i in range(%d) %%}{%% set x = %s %%}{%% endfor %%}", TIMES,
             looks[i]);
    size_t less = steps_of(source, one), more = steps_of(source, two);
    if (more - less < TIMES * N / 64 || more > 2 * less + 1000)
      fail_msg("%s: %zu steps for %d bytes, %zu for twice as many", looks[i], less, N, more);
  }
  cJSON_Delete(one);
  cJSON_Delete(two);
}

/* Finding variables among the client's takes steps that grow linearly with their number, not quadratically.
 */
static void many_variables_cost_their_number(void **state)
{
  size_t steps[2];
  for (int k = 0; k < 2; k++) {
    cJSON *kwargs = cJSON_CreateObject();
    char key[32];
    for (int i = 0; i < 1000 << k; i++) {
      snprintf(key, sizeof key, "key%d", i);
      cJSON_AddNumberToObject(kwargs, key, i);
    }
    td_chat_template *t;
    const char *source = "{{ key999 }}{{ absent }}{{ other }}";
    assert_int_equal(td_chat_template_compile(source, strlen(source), &t, &last), TD_OK);
    size_t low = 0, high = 1 << 20;
    while (high - low > 1) {
      td_rendered out;
      td_render_input in = {
          .input = NULL, .kwargs = kwargs, .max_ops = low + (high - low) / 2, .max_memory_bytes = 1 << 20};
      td_status st = td_chat_template_render(t, &in, &out, &last);
      *(st == TD_OK ? &high : &low) = in.max_ops;
      if (st == TD_OK)
        assert_string_equal(out.text.data, "999");
      td_rendered_deinit(&out);
    }
    steps[k] = high;
    td_chat_template_destroy(t);
    cJSON_Delete(kwargs);
  }
  assert_true(steps[0] > 2000 && steps[0] < 4000);
  assert_true(steps[1] > steps[0] && steps[1] < 2 * steps[0]);
}

static void render_errors_are_the_references(void **state)
{
  expect("{{ raise_exception('Only \"user\" roles: 100% sure') }}", TD_ERR_REQUEST,
         "Only \"user\" roles: 100% sure");
  expect("{{ nope.x }}", TD_ERR_REQUEST, "'nope' is undefined");
  expect("{{ u.x.y }}", TD_ERR_REQUEST, "'str object' has no attribute 'x'");
  expect("{{ [][0].y }}", TD_ERR_REQUEST, "list object has no element 0");
  expect("{{ 'a' + 1 }}", TD_ERR_REQUEST, "can only concatenate str (not \"int\") to str");
  expect("{{ 1 + 'a' }}", TD_ERR_REQUEST, "unsupported operand type(s) for +: 'int' and 'str'");
  expect("{% for x in 1 %}{% endfor %}", TD_ERR_REQUEST, "'int' object is not iterable");
  expect("{{ nope|tojson }}", TD_ERR_REQUEST, "Object of type Undefined is not JSON serializable");
  expect("{{ u|map('upper')|tojson }}", TD_ERR_REQUEST, "Object of type generator is not JSON serializable");
  expect("{{ [].append(1) }}", TD_ERR_REQUEST, "is unsafe");
  expect("{{ 1 < 'a' }}", TD_ERR_REQUEST, "'<' not supported between instances of 'int' and 'str'");
}

/* Mangled bytes of a valid template: whatever the result, nothing breaks. */
static void mangled_templates_do_no_harm(void **state)
{
  static const char seed[] = "{% set ns = namespace(a=1) %}{%- for m in messages if m.role != 'x' -%}{{ "
                             "loop.index ~ m['role'][::-1]|upper }}"
                             "{% if loop.last and not m is none %}{{ m|tojson(indent=2) }}{% elif x %}{# c "
                             "#}{% else %}{% raw %}{{{% endraw %}"
                             "{% endif %}{% endfor %}{% macro f(a, b=[1, (2,), {'k': 1.5e3}]) %}{{ caller() "
                             "}}{% endmacro %}{% call f(1, *[2]) %}\\n{% endcall %}";
  unsigned rng = 12345;
  for (int round = 0; round < 20000; round++) {
    char s[sizeof seed];
    memcpy(s, seed, sizeof seed);
    size_t n = sizeof seed - 1;
    for (int k = 0; k < 1 + round % 4; k++) {
      rng = rng * 1664525 + 1013904223;
      size_t at = (rng >> 8) % n, from = (rng >> 4) % n, len = (rng >> 20) % 9;
      if (rng & 1 && at + len <= n && from + len <= n)
        memmove(s + at, s + from, len);
      else if (at + len < n) {
        memmove(s + at, s + at + len, n - at - len);
        n -= len;
      }
    }
    (void)run(s, n, "{\"messages\": [{\"role\": \"user\"}, null, 3]}", 100000, 1 << 20);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(growth_hits_the_caps),
      cmocka_unit_test(text_built_in_a_loop_is_linear),
      cmocka_unit_test(nesting_does_not_exhaust_a_small_stack),
      cmocka_unit_test(compile_errors_name_the_line),
      cmocka_unit_test(unknown_filters_inside_if),
      cmocka_unit_test(limits_of_the_source),
      cmocka_unit_test(looking_at_bytes_is_paid_for),
      cmocka_unit_test(many_variables_cost_their_number),
      cmocka_unit_test(render_errors_are_the_references),
      cmocka_unit_test(mangled_templates_do_no_harm),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
