/* Answers with calls and reasoning. Input: a byte for the format, a byte for the split, then text.
 * Property: the result does not depend on how the text is split; without calls, all of it is content;
 * arguments are JSON. */
#include <stdlib.h>
#include <string.h>

#include "answers/reader.h"
#include "common/json.h"
#include "fuzz.h"

static td_tools tools;

static void make_tools(void)
{
  cJSON *t = cJSON_Parse(
      "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"type\":\"string\"},"
      "\"b\":{\"type\":[\"integer\",\"null\"]}}}}}]");
  FUZZ_CHECK(t && td_tools_make(t, &tools));
  cJSON_Delete(t);
}

static int32_t find_token(const void *arg, const char *text, bool *special)
{
  *special = arg != NULL;
  return *special ? 1 : -1;
}

static void read_answer(const td_reader_rules *rules, const char *text, size_t n, size_t piece,
                        td_parsed_answer *parsed)
{
  td_reader *r = td_reader_create(rules);
  FUZZ_CHECK(r);
  td_parsed_answer_init(parsed);
  for (size_t at = 0; at < n; at += piece)
    td_reader_push(r, text + at, piece < n - at ? piece : n - at, parsed);
  td_reader_finish(r, false, parsed);
  FUZZ_CHECK(!parsed->failed);
  td_reader_destroy(r);
}

static void check_same(const td_parsed_answer *a, const td_parsed_answer *b)
{
  FUZZ_CHECK(a->n == b->n && a->text.len_bytes == b->text.len_bytes && a->n_calls == b->n_calls);
  FUZZ_CHECK(a->text.len_bytes == 0 || memcmp(a->text.data, b->text.data, a->text.len_bytes) == 0);
  for (size_t i = 0; i < a->n; i++)
    FUZZ_CHECK(a->parts[i].kind == b->parts[i].kind && a->parts[i].n == b->parts[i].n);
}

/* Depth is bounded, values are not. Invalid UTF-8 comes from the text. */
static void check_arguments(const td_parsed_answer *s)
{
  for (size_t i = 0; i < s->n; i++) {
    const td_answer_part *p = &s->parts[i];
    if (p->kind != TD_PART_ARGUMENTS)
      continue;
    cJSON *v = cJSON_ParseWithLength(td_answer_part_text(s, p), p->n);
    FUZZ_CHECK(v && cJSON_IsObject(v));
    cJSON_Delete(v);
  }
}

/* A special token's mark is no content. */
static size_t plain_length(const td_dialect *d, const char *text, size_t n)
{
  size_t plain = 0;
  for (size_t i = 0, skip; i < n; i += skip) {
    skip = 1;
    for (unsigned m = 0; m < TD_MARKS; m++)
      if (d->marks[m].id >= 0 && d->marks[m].n <= n - i &&
          memcmp(text + i, d->marks[m].text, d->marks[m].n) == 0)
        skip = d->marks[m].n;
    plain += skip == 1 && text[i] != TD_MARK_BYTE[0];
  }
  return plain;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  fuzz_input in = {data, size};
  unsigned mode = fuzz_take(&in), cut = 1 + fuzz_take(&in) % 9;
  td_dialect d;
  td_dialect_signs signs = {.template = "[ARGS][CALL_ID]<|python_tag|><|python_start|>",
                            .n_template = 45,
                            .calls = td_dialect_calls_name(1 + mode % (TD_CALLS_FORMATS - 1)),
                            .reasoning = mode & 32 ? "think" : "none",
                            .find = find_token,
                            .arg = mode & 64 ? &tools : NULL};
  if (!tools.items)
    make_tools();
  if (mode & 16)
    signs.n_template = 0;
  td_dialect_find(&signs, &d);
  td_reader_rules rules = {.dialect = &d, .tools = &tools, .reasons = true, .whole = true};
  td_parsed_answer all, whole, stream, pieces;
  const char *text = (const char *)in.data;
  size_t n = in.size < 4096 ? in.size : 4096;
  read_answer(&rules, text, n, n + 1, &whole);
  read_answer(&rules, text, n, cut, &all);
  check_same(&whole, &all);
  check_arguments(&whole);
  if (whole.n_calls == 0 && !d.thinks)
    FUZZ_CHECK(whole.text.len_bytes == plain_length(&d, text, n));
  rules.whole = false;
  read_answer(&rules, text, n, n + 1, &stream);
  read_answer(&rules, text, n, cut, &pieces);
  check_same(&stream, &pieces);
  FUZZ_CHECK(stream.n_calls >= whole.n_calls);
  td_parsed_answer_deinit(&all);
  td_parsed_answer_deinit(&whole);
  td_parsed_answer_deinit(&stream);
  td_parsed_answer_deinit(&pieces);
  return 0;
}
