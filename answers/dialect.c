/* Dialects: see dialect.h. */
#include "answers/dialect.h"

#include <stdio.h>
#include <string.h>

#include "common/status.h"

/* The text of each mark by format; NULL if the format has no such mark. */
static const char *const call_marks[TD_CALLS_FORMATS][TD_MARK_THINK] = {
    [TD_CALLS_HERMES] = {"<tool_call>", "</tool_call>"},
    [TD_CALLS_LLAMA] = {"<|python_tag|>"},
    [TD_CALLS_PYTHONIC] = {"<|python_start|>", "<|python_end|>"},
    [TD_CALLS_MISTRAL] = {"[TOOL_CALLS]", NULL, "[ARGS]", "[CALL_ID]"},
    [TD_CALLS_XML] = {"<tool_call>", "</tool_call>"},
};
static const char *const names[TD_CALLS_FORMATS] = {"none",     "hermes",  "llama",
                                                    "pythonic", "mistral", "qwen3-coder"};
static const char *const think_marks[][2] = {
    {"<think>", "</think>"}, {"[THINK]", "[/THINK]"}, {"<|START_THINKING|>", "<|END_THINKING|>"}};

/* A text in the template that shows the format of calls. The first that is found counts. */
static const struct {
  td_call_format format;
  const char *text;
} signs_of_calls[] = {
    {TD_CALLS_MISTRAL, "[TOOL_CALLS]"},      {TD_CALLS_XML, "<function="},
    {TD_CALLS_HERMES, "<tool_call>"},        {TD_CALLS_PYTHONIC, "<|python_start|>"},
    {TD_CALLS_PYTHONIC, "[func_name1("},     {TD_CALLS_LLAMA, "<|python_tag|>"},
    {TD_CALLS_LLAMA, "{\"name\": function"}, {TD_CALLS_LLAMA, "\"parameters\": dictionary"},
};

const char *td_dialect_calls_name(td_call_format f) { return names[f]; }

static bool template_has(const td_dialect_signs *s, const char *text)
{
  return s->template && memmem(s->template, s->n_template, text, strlen(text)) != NULL;
}

static int32_t find(const td_dialect_signs *s, const char *text, bool *special)
{
  *special = false;
  return s->find ? s->find(s->arg, text, special) : -1;
}

static void set_mark(const td_dialect_signs *s, const char *text, td_mark *m)
{
  bool special;
  int32_t id = find(s, text, &special);
  m->id = special ? id : -1;
  int n = snprintf(m->text, sizeof m->text, "%s%s", special ? TD_MARK_BYTE : "", text);
  TD_BUG_ON(n < 0 || (size_t)n >= sizeof m->text);
  m->n = (uint8_t)n;
}

static void find_calls(const td_dialect_signs *s, td_dialect *d)
{
  bool is_auto = strcmp(s->calls, "auto") == 0;
  for (size_t i = 0; i < TD_CALLS_FORMATS; i++)
    if (strcmp(s->calls, names[i]) == 0)
      d->calls = (td_call_format)i;
  for (size_t i = 0; is_auto && !d->calls && i < sizeof signs_of_calls / sizeof *signs_of_calls; i++)
    if (template_has(s, signs_of_calls[i].text))
      d->calls = signs_of_calls[i].format;
  if (is_auto && !d->calls && template_has(s, "tools")) {
    d->calls = TD_CALLS_HERMES;
    d->is_guess = true;
  }
  for (size_t i = 0; i < TD_MARK_THINK; i++) {
    const char *text = call_marks[d->calls][i];
    bool special, optional = d->calls == TD_CALLS_LLAMA || d->calls == TD_CALLS_PYTHONIC || i >= TD_MARK_ARGS;
    if (text && (!optional || find(s, text, &special) >= 0 || template_has(s, text)))
      set_mark(s, text, &d->marks[i]);
  }
  d->lists_calls = d->calls == TD_CALLS_MISTRAL && !d->marks[TD_MARK_ARGS].n;
}

static void find_reasoning(const td_dialect_signs *s, td_dialect *d)
{
  size_t n = sizeof think_marks / sizeof *think_marks;
  bool wanted = strcmp(s->reasoning, "none") != 0;
  for (size_t i = 0; wanted && i < n && !d->thinks; i++) {
    bool special;
    if (!template_has(s, think_marks[i][1]) && find(s, think_marks[i][1], &special) < 0)
      continue;
    d->thinks = true;
    set_mark(s, think_marks[i][0], &d->marks[TD_MARK_THINK]);
    set_mark(s, think_marks[i][1], &d->marks[TD_MARK_THINK_END]);
  }
  if (!d->thinks && strcmp(s->reasoning, "think") == 0) {
    d->thinks = true;
    set_mark(s, think_marks[0][0], &d->marks[TD_MARK_THINK]);
    set_mark(s, think_marks[0][1], &d->marks[TD_MARK_THINK_END]);
  }
}

void td_dialect_find(const td_dialect_signs *signs, td_dialect *out)
{
  memset(out, 0, sizeof *out);
  for (size_t i = 0; i < TD_MARKS; i++)
    out->marks[i].id = -1;
  find_calls(signs, out);
  find_reasoning(signs, out);
}

static bool ends_with(const char *text, size_t n, const td_mark *m)
{
  const char *mark = m->id >= 0 ? m->text + 1 : m->text; /* the text of a prompt has no mark bytes */
  size_t k = strlen(mark);
  return k <= n && memcmp(text + n - k, mark, k) == 0;
}

td_prompt_end td_dialect_prompt_end(const td_dialect *d, const char *prompt, size_t n)
{
  if (!d->thinks)
    return TD_PROMPT_PLAIN;
  while (n > 0 && strchr(" \t\r\n", prompt[n - 1]))
    n--;
  if (ends_with(prompt, n, &d->marks[TD_MARK_THINK]))
    return TD_PROMPT_THINKS;
  return ends_with(prompt, n, &d->marks[TD_MARK_THINK_END]) ? TD_PROMPT_HAS_THOUGHT : TD_PROMPT_PLAIN;
}
