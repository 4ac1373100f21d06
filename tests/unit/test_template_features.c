/* One template per feature, with the output of jinja2 3.1.6 (sandboxed, trim_blocks, lstrip_blocks, loop
 * controls, the tojson of chat templates). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "models/template/chat_template.h"

static const char input_json[] = "{\"s\": \"Hello World\", \"t\": \" a,b\\nc \", \"n\": 3, \"f\": 2.5, "
                                 "\"l\": [3, 1, 2], \"d\": {\"k\": 1, \"items\": "
                                 "\"I\", \"b\": [1, {\"c\": null}]}, \"m\": {\"role\": \"user\", "
                                 "\"content\": \"hi <|im_end|>\"}, \"b\": true, \"z\":"
                                 " null, \"e\": \"\", \"messages\": [{\"role\": \"user\", \"content\": "
                                 "\"one\", \"k\": 1}, {\"role\": \"assistant\", "
                                 "\"content\": null}, {\"role\": \"user\", \"content\": \"é\\\"'\"}], "
                                 "\"nested\": [[1, 2], [3, [4, \"x\"]]]}";

static const struct {
  const char *source, *expect;
} cases[] = {
    /* white space and lexical forms */
    {"a\n{% if true %}\nb\n{% endif %}\nc\n", "a\nb\nc"},
    {"  {% if true %}x{% endif %}  \n y", "x  \n y"},
    {"  {%+ if true %}x{% endif %}", "  x"},
    {"a {%- if true -%} b {%- endif -%} c", "abc"},
    {"{% if true +%}\nx{% endif %}", "\nx"},
    {"a {{- ' b ' -}} c", "a b c"},
    {"a\n  {# gone #}\nb", "a\nb"},
    {"a {#- gone -#} b", "ab"},
    {"{% raw %}{{ x }}{% y %}{% endraw %}", "{{ x }}{% y %}"},
    {"{%- raw -%}  {{ x }} {%- endraw -%}  z", "{{ x }}z"},
    {"x\r\ny\rz", "x\ny\nz"},
    {"line\n\n", "line\n"},
    {"{{ 'raw\nnewline' }}", "raw\nnewline"},
    {"{{ 'a\\n\\t\\'\\\"\\\\\\x41\\u00e9\\U0001F600\\101\\q' }}", "a\n\t'\"\\Aé😀A\\q"},
    {"{{ \"it's\" 'joined' }}", "it'sjoined"},
    {"{{ {'a': {'b': 1}}['a']['b'] }}", "1"},
    {"{{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }} {{ 1e3 }} {{ 2.50 }}", "31 5 15 1000 1000.0 2.5"},
    {"{% if true: %}x{% endif %}", "x"},
    /* expressions and operators */
    {"{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % -3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }}",
     "3 -4 -2 2 3.5 1024 0.5"},
    {"{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 0.1 + 0.2 }} {{ 1e16 }} {{ 1e-5 }} {{ 123456789.0 }}",
     "3.0 0.5 0.30000000000000004 1e+16 1e-05 123456789.0"},
    {"{{ (-9223372036854775807 - 1) == -9223372036854775808.0 }} {{ 9223372036854775807 == "
     "9223372036854775808.0 "
     "}}",
     "True False"},
    {"{{ 1 + 2 * 3 - 4 }} {{ 'a' ~ 1 ~ none ~ 2.0 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }}", "3 a1None2.0 64 4"},
    {"{{ 'a' * 3 }} {{ [1] * 2 + [3] }} {{ (1,) + (2,) }}", "aaa [1, 1, 3] (1, 2)"},
    {"{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 == true }} {{ 'a' != 'b' }} {{ [1, 2] < [1, 3] }}",
     "True False True True True"},
    {"{{ 'ell' in s }} {{ 1 in l }} {{ 'k' in d }} {{ 9 not in l }} {{ 'x' in u }}",
     "True True True True False"},
    {"{{ 0 or 'x' }} {{ 1 and '' }}| {{ not l }} {{ none or [] or 'end' }}", "x | False end"},
    {"{{ 'yes' if b else 'no' }} {{ 'x' if not b }}|", "yes |"},
    {"{{ [1, 'a', none, true, 2.5, {'k': (1,)}, ()] }}", "[1, 'a', None, True, 2.5, {'k': (1,)}, ()]"},
    {"{{ l[0] }} {{ l[-1] }} {{ l[9] }}| {{ d['k'] }} {{ d.k }} {{ d['nope'] }}| {{ nested.1.0 }}",
     "3 2 | 1 1 | 3"},
    {"{{ l[1:] }} {{ l[:-1] }} {{ l[::-1] }} {{ 'héllo'[1:4] }} {{ 'héllo'[::-2] }} {{ 'abc'[5:] }}|{{ "
     "'héllo'[1] }}",
     "[1, 2] [3, 1] [2, 1, 3] éll olh |é"},
    {"{{ '%s is %d, %05.1f|%-4s|%+d|%x|%%' % ('a', 3, 2.25, 'b', 4, 255) }}", "a is 3, 002.2|b   |+4|ff|%"},
    {"{{ '%(a)s' % {'a': 1} }}", "1"},
    {"{{ 'é日😀'|length }} {{ 'é日😀'[-1] }}", "3 😀"},
    {"{{ u }}|{{ u is defined }}|{{ u|default('d') }}|{{ ''|default('d', true) }}|{{ d.nope is defined }}",
     "|False|d|d|False"},
    /* printing */
    {"{{ none }} {{ true }} {{ 1.0 }} {{ 'x' }} {{ ['x', \"it's\", 'q\"', 'n\\n', 'é', '\\x00\\x7f'] }}",
     "None True 1.0 x ['x', \"it's\", 'q\"', 'n\\n', 'é', '\\x00\\x7f']"},
    {"{{ d }} {{ d.items() }} {{ d.keys() }} {{ range(3) }} {{ range(3)|list }}",
     "{'k': 1, 'items': 'I', 'b': [1, {'c': None}]} dict_items([('k', 1), ('items', 'I'), ('b', [1, {'c': "
     "None}])]) dict_keys(['k', 'items', 'b']) range(0, 3) [0, 1, 2]"},
    {"{{ messages }}", "[{'role': 'user', 'content': 'one', 'k': 1}, {'role': 'assistant', 'content': None}, "
                       "{'role': 'user', 'content': 'é\"\\''}]"},
    {"{{ 1e300 * 1e10 }} {{ -1e300 * 1e10 }}", "inf -inf"},
    /* statements */
    {"{% for x in l %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ ',' if not loop.last }}{% endfor %}",
     "1/3:3,2/3:1,3/3:2"},
    {"{% for x in l %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last "
     "}}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.depth }};{% endfor %}",
     "032TrueFalse1a1;121FalseFalse32b1;210FalseTrue1a1;"},
    {"{% for x in [] %}x{% else %}none{% endfor %}{% for x in [1] %}x{% else %}none{% endfor %}", "nonex"},
    {"{% for x in l if x != 1 %}{{ loop.index }}{{ x }}{{ loop.last }}{% endfor %}", "13False22True"},
    {"{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "k=1;items=I;b=[1, {'c': None}];"},
    {"{% for x in range(9) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ "
     "x }}{% endfor %}",
     "023"},
    {"{% for x in [1, 2] %}{% break %}{% else %}else runs{% endfor %}", "else runs"},
    {"{% for x in 'ab' %}{% for y in 'cd' %}{{ x ~ y ~ loop.index }}{% endfor %}{% endfor %}",
     "ac1ad2bc1bd2"},
    {"{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }},{% endfor %}{{ x }}", "4,2,3,1"},
    {"{% set ns = namespace(n=0) %}{% for i in l %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "6"},
    {"{% if n == 1 %}a{% elif n == 3 %}b{% else %}c{% endif %}", "b"},
    {"{% if b %}{% set y = 5 %}{% endif %}{{ y }}", "5"},
    {"{% for i in l %}{{ n }}{% endfor %}{% set n = 9 %}{{ n }}", "9"},
    {"{% set a, b = 1, 2 %}{{ b ~ a }}", "21"},
    {"{% set x %}<{{ n }}>{% endset %}{{ x|length }}{{ x }}", "3<3>"},
    {"{% set x | upper | trim %} a{{ n }} {% endset %}[{{ x }}]", "[A3]"},
    {"{% macro m(a, b=2, c='x' ~ a) %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m() "
     "}}{{ m.name }}",
     "12x1;123;2x;m"},
    {"{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k=4) }}",
     "1(2, 3){'k': 4}"},
    {"{% macro m() %}[{{ caller('z') }}]{% endmacro %}{% call(v) m() %}{{ v }}{{ n }}{% endcall %}", "[z3]"},
    {"{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "3210"},
    {"{% macro m() %}{{ later }}{% endmacro %}{% set later = 1 %}{{ m() }}", "1"},
    {"{% filter upper | replace('A', '4') %}a{{ s }}{% endfilter %}", "4HELLO WORLD"},
    {"{% with a = 1, b = n %}{{ a }}{{ b }}{% set n = 7 %}{% endwith %}{{ n }}", "133"},
    {"{% generation %}{{ n }}{% set n = 5 %}{% endgeneration %}{{ n }}", "33"},
    {"{% print n, s %}", "3Hello World"},
    /* filters */
    {"{{ d|tojson }} {{ messages|tojson }}",
     "{\"k\": 1, \"items\": \"I\", \"b\": [1, {\"c\": null}]} [{\"role\": \"user\", \"content\": \"one\", "
     "\"k\": 1}, {\"role\": \"assistant\", \"content\": null}, {\"role\": \"user\", \"content\": "
     "\"é\\\"'\"}]"},
    {"{{ {'a': [1, {'b': none}], 'e': [], 'f': {}}|tojson(indent=2) }}",
     "{\n  \"a\": [\n    1,\n    {\n      \"b\": null\n    }\n  ],\n  \"e\": [],\n  \"f\": {}\n}"},
    {"{{ {'b': 1, 'a': 'é<&>\"\\n'}|tojson(sort_keys=true, ensure_ascii=true, separators=(',', ':')) }}",
     "{\"a\":\"\\u00e9<&>\\\"\\n\",\"b\":1}"},
    {"{{ ' x '|trim }}|{{ 'xxaxx'|trim('x') }}|{{ s|upper }}|{{ s|lower }}|{{ 'hELLO wORLD-x'|title }}|{{ "
     "'hELLO'|capitalize }}",
     "x|a|HELLO WORLD|hello world|Hello World-X|Hello"},
    {"{{ l|join('-') }} {{ messages|join(',', attribute='role') }} {{ l|sort }} {{ l|sort(reverse=true) }} "
     "{{ ['b', 'A', 'c']|sort }} {{ messages|sort(attribute='role')|map(attribute='role')|list }}",
     "3-1-2 user,assistant,user [1, 2, 3] [3, 2, 1] ['A', 'b', 'c'] ['assistant', 'user', 'user']"},
    {"{{ l|first }} {{ l|last }} {{ l|min }} {{ l|max }} {{ l|sum }} {{ l|length }} {{ d|count }} {{ "
     "l|reverse|list }} {{ s|reverse }}",
     "3 2 1 3 6 3 3 [2, 1, 3] dlroW olleH"},
    {"{{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ messages|rejectattr('role', 'eq', "
     "'user')|map(attribute='role')|list }} {{ messages|selectattr('k', 'defined')|list|length }} {{ "
     "l|select('odd')|list }} {{ l|reject('equalto', 1)|list }}",
     "2 ['assistant'] 1 [3, 1] [3, 2]"},
    {"{{ l|map('string')|list }} {{ messages|map(attribute='k', default='-')|list }} {{ [1, 1, 'a', "
     "'A']|unique|list }}",
     "['3', '1', '2'] [1, '-', '-'] [1, 'a']"},
    {"{{ d|items|list }} {{ u|items|list }} {{ {'b': 1, 'A': 2}|dictsort }} {{ l|batch(2, 0)|list }} {{ "
     "l|slice(2)|list }} {{ messages|groupby('role')|map('first')|list }}",
     "[('k', 1), ('items', 'I'), ('b', [1, {'c': None}])] [] [('A', 2), ('b', 1)] [[3, 1], [2, 0]] [[3, 1], "
     "[2]] ['assistant', 'user']"},
    {"{{ 'a\nb\n\nc'|indent(2) }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\n\nb'|indent('> ', blank=true) }}",
     "a\n  b\n\n  c|  a\n  b|a\n> \n> b"},
    {"{{ s|replace('l', 'L', 1) }} {{ 'abc'|replace('', '-') }} {{ s|string|list|length }} {{ 'a "
     "b'|wordcount }} {{ s|truncate(5, true) }} {{ s|center(15) }}|",
     "HeLlo World -a-b-c- 11 2 He...   Hello World  |"},
    {"{{ '42'|int }} {{ '4.7'|int }} {{ 'x'|int(-1) }} {{ '1.5'|float }} {{ -3|abs }} {{ 2.567|round(1) }} "
     "{{ 2.5|round }} {{ 2.1|round(0, 'ceil') }}",
     "42 4 -1 1.5 3 2.6 2.0 3.0"},
    {"{{ '<b>'|escape }} {{ '<b>'|safe }} {{ ('<b>'|safe) + '<i>' }} {{ '%s-%s'|format(1, 'a') }} {{ "
     "s|attr('upper')() }}",
     "&lt;b&gt; <b> <b>&lt;i&gt; 1-a HELLO WORLD"},
    {"{{ messages|map(attribute='content')|select|join('|') }} {{ [3, 'a'] | map('upper') | first }}",
     "one|é\"' 3"},
    /* tests */
    {"{{ n is number }}{{ n is string }}{{ s is string }}{{ d is mapping }}{{ l is iterable }}{{ l is "
     "sequence }}{{ n is iterable }}{{ u is iterable }}{{ z is none }}{{ b is true }}{{ b is false }}{{ b is "
     "boolean }}{{ f is float }}{{ n is integer }}{{ b is integer }}{{ b is number }}",
     "TrueFalseTrueTrueTrueTrueFalseTrueTrueTrueFalseTrueTrueTrueFalseTrue"},
    {"{{ 3 is odd }}{{ 3 is even }}{{ 9 is divisibleby 3 }}{{ 9 is divisibleby(2) }}{{ 1 is eq 1 }}{{ 'a' is "
     "in ['a'] }}{{ 'a' is not in 'b' }}{{ 2 is gt 1 }}{{ 'A' is upper }}{{ 'A' is lower }}{{ z is sameas "
     "none }}{{ 'upper' is filter }}{{ 'odd' is test }}{{ range is callable }}",
     "TrueFalseTrueFalseTrueTrueTrueTrueTrueFalseTrueTrueTrueTrue"},
    /* methods */
    {"{{ ' a b '.strip() }}|{{ 'xay'.lstrip('x') }}|{{ 'xay'.rstrip('yz') }}|{{ 'a,b,c'.split(',') }}|{{ ' a "
     " b '.split() }}|{{ 'a b c'.split(' ', 1) }}|{{ 'a.b.c'.rsplit('.', 1) }}",
     "a b|ay|xa|['a', 'b', 'c']|['a', 'b']|['a', 'b c']|['a.b', 'c']"},
    {"{{ s.startswith('Hell') }}{{ s.endswith(('x', 'd')) }}{{ s.find('o') }}{{ s.rfind('o') }}{{ "
     "s.count('l') }}{{ s.index('W') }}{{ s.replace('o', '0') }}{{ s.upper() }}{{ s.title() }}{{ "
     "\"they're\".title() }}",
     "TrueTrue4736Hell0 W0rldHELLO WORLDHello WorldThey'Re"},
    {"{{ '-'.join(['a', 'b']) }} {{ 'a-b'.partition('-') }} {{ 'a\\nb\\r\\n'.splitlines() }} {{ '7'.zfill(3) "
     "}} {{ 'a'.ljust(3) }}| {{ '12'.isdigit() }}{{ 'ab'.isalpha() }}{{ 'AB'.isupper() }} {{ "
     "'abc'.removeprefix('a') }}",
     "a-b ('a', '-', 'b') ['a', 'b'] 007 a  | TrueTrueTrue bc"},
    {"{{ d.get('k') }} {{ d.get('no') }} {{ d.get('no', 7) }} {{ d.keys()|list }} {{ d.values()|list }} {{ "
     "d.items is defined }} {{ d['items'] }} {{ d.items()|list|length }}",
     "1 None 7 ['k', 'items', 'b'] [1, 'I', [1, {'c': None}]] True I 3"},
    {"{{ '{} {0}'|length }} {{ '{:>5}|{:<4}|{:^5}|{:.2f}|{:,}'.format('a', 1, 'b', 2.345, 1234567) }} {{ "
     "'{a.k}{b[0]}'.format(a={'k': 1}, b=[2]) }}",
     "6     a|1   |  b  |2.35|1,234,567 12"},
    {"{{ [].append is defined }} {{ l.index(1) }} {{ l.count(3) }}", "False 1 1"},
    /* globals */
    {"{{ range(1, 9, 3)|list }} {{ dict(a=1, b=2) }} {{ dict([('x', 1)]) }} {{ namespace(a=1).a }}",
     "[1, 4, 7] {'a': 1, 'b': 2} {'x': 1} 1"},
    {"{{ strftime_now('%Y') }}{{ strftime_now('') }}", "1970"},
};

static void every_feature_prints_what_the_reference_prints(void **state)
{
  int bad = 0;
  cJSON *input = cJSON_Parse(input_json);
  assert_non_null(input);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    td_chat_template *t;
    td_error err;
    td_rendered out = {0};
    td_status st = td_chat_template_compile(cases[i].source, strlen(cases[i].source), &t, &err);
    if (st == TD_OK) {
      td_render_input in = {.input = input, .max_ops = 100000, .max_memory_bytes = 1 << 22};
      st = td_chat_template_render(t, &in, &out, &err);
    }
    size_t n = strlen(cases[i].expect);
    if (st != TD_OK || out.text.len_bytes != n || (n && memcmp(out.text.data, cases[i].expect, n) != 0)) {
      print_error("%s\n  expected %s\n  got      %s\n", cases[i].source, cases[i].expect,
                  st == TD_OK ? out.text.data : err.message);
      bad++;
    }
    td_rendered_deinit(&out);
    td_chat_template_destroy(t);
  }
  cJSON_Delete(input);
  assert_int_equal(bad, 0);
}

/* Values that the reference's JSON cannot hold: integers beyond 64 bits print as they were sent. */
static void big_integers_print_their_text(void **state)
{
  static const char json[] =
      "{\"n\": [123456789012345678901234567890, -9007199254740993, 9223372036854775807]}";
  static const char source[] = "{{ n }}{{ n|tojson }}{{ n[1] - 1 }}{{ n[0] is number }}{{ n[0] == n[0] }}";
  static const char expect[] = "[123456789012345678901234567890, -9007199254740993, 9223372036854775807]"
                               "[123456789012345678901234567890, -9007199254740993, 9223372036854775807]"
                               "-9007199254740994TrueTrue";
  td_json_limits limits = {.max_depth = 8, .max_nodes = 100, .error = TD_ERR_REQUEST};
  cJSON *input;
  td_chat_template *t;
  td_error err;
  td_rendered out;
  assert_int_equal(td_json_parse(json, strlen(json), &limits, &input, &err), TD_OK);
  assert_int_equal(td_chat_template_compile(source, strlen(source), &t, &err), TD_OK);
  td_render_input in = {.input = input, .max_ops = 100000, .max_memory_bytes = 1 << 22};
  if (td_chat_template_render(t, &in, &out, &err) != TD_OK)
    fail_msg("%s", err.message);
  assert_string_equal(out.text.data, expect);
  assert_int_equal(out.n_trusted, 1); /* only the last two: True and True */
  td_rendered_deinit(&out);
  td_chat_template_destroy(t);
  cJSON_Delete(input);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_feature_prints_what_the_reference_prints),
      cmocka_unit_test(big_integers_print_their_text),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
