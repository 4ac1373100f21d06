/* Calls as Qwen3-Coder writes them: <function=f><parameter=a>text</parameter></function>. A parameter's text
 * is a string or JSON, depending on its schema. A string is emitted as it comes.
 *
 * The format has no escapes. Therefore </parameter> ends a parameter only if the next parameter, or the end
 * of the function, follows. */
#include <string.h>

#include "answers/internal.h"

enum { BEGIN, FUNCTION, NAME, BODY, PARAMETER, LINE, VALUE, CLOSE };

static const char function_begin[] = "<function=", function_end[] = "</function>",
                  param_begin[] = "<parameter=", param_end[] = "</parameter>";

static td_look go(td_reader *r, unsigned step)
{
  r->step = step;
  return TD_LOOK_OK;
}

static td_look look_at(const td_reader *r, size_t skip, const char *text)
{
  return td_reader_look(r, skip, text, strlen(text));
}

static td_look begin(td_reader *r)
{
  if (td_reader_look_mark(r, 0, TD_MARK_CALL) == TD_LOOK_OK)
    td_reader_consume(r, r->rules.dialect->marks[TD_MARK_CALL].n);
  return go(r, FUNCTION);
}

static td_look read_function(td_reader *r)
{
  td_look look = td_reader_skip_blanks(r);
  if (look == TD_LOOK_OK)
    look = look_at(r, 0, function_begin);
  if (look != TD_LOOK_OK)
    return look;
  td_reader_consume(r, strlen(function_begin));
  return go(r, NAME);
}

/* Reads the text before '>', and consumes the '>'. */
static td_look consume_name(td_reader *r, char *out, size_t *n)
{
  size_t k = 0, left = td_reader_left(r);
  while (k < left && k < TD_NAME_BYTES && td_reader_byte(r, k) != '>' && td_reader_byte(r, k) >= 0x20 &&
         !strchr("<\"\xFF", td_reader_byte(r, k)))
    k++;
  if (k == left)
    return r->final ? TD_LOOK_NO : TD_LOOK_MORE;
  if (k == 0 || td_reader_byte(r, k) != '>')
    return TD_LOOK_NO;
  *n = k;
  memcpy(out, r->in.data + r->at, k);
  td_reader_consume(r, k + 1);
  return TD_LOOK_OK;
}

static td_look read_name(td_reader *r)
{
  td_look look = consume_name(r, r->name, &r->n_name);
  if (look != TD_LOOK_OK)
    return look;
  td_reader_emit_call(r);
  r->n_args = 0;
  return go(r, BODY);
}

static td_look end_call(td_reader *r)
{
  td_reader_end_arguments(r);
  return go(r, CLOSE);
}

static td_look read_body(td_reader *r)
{
  td_look look = td_reader_skip_blanks(r);
  if (look != TD_LOOK_OK)
    return look;
  td_look param = look_at(r, 0, param_begin), end = look_at(r, 0, function_end);
  if (param == TD_LOOK_OK) {
    td_reader_consume(r, strlen(param_begin));
    return go(r, PARAMETER);
  }
  if (end == TD_LOOK_OK) {
    td_reader_consume(r, strlen(function_end));
    return end_call(r);
  }
  return param == TD_LOOK_MORE || end == TD_LOOK_MORE ? TD_LOOK_MORE : TD_LOOK_NO;
}

static td_look read_parameter(td_reader *r)
{
  td_look look = consume_name(r, r->key, &r->n_key);
  if (look != TD_LOOK_OK)
    return look;
  td_reader_emit_key(r);
  r->types = td_tools_types(r->tool, r->key, r->n_key);
  td_buf_clear(&r->value);
  r->string_open = false;
  return go(r, LINE);
}

/* A newline after the parameter's name belongs to the format. */
static td_look read_line(td_reader *r)
{
  if (td_reader_left(r) == 0)
    return r->final ? TD_LOOK_NO : TD_LOOK_MORE;
  if (td_reader_byte(r, 0) == '\n')
    td_reader_consume(r, 1);
  return go(r, VALUE);
}

/* ---- values ---- */

static bool is_string(const td_reader *r) { return (r->types & ~(unsigned)TD_PARAM_STRING) == 0; }

static void add_value(td_reader *r, size_t n)
{
  const char *text = r->in.data + r->at;
  if (!is_string(r)) {
    td_buf_append(&r->value, text, n);
  } else {
    if (!r->string_open)
      td_reader_emit_arguments(r, "\"", 1);
    r->string_open = true;
    td_reader_emit_escaped(r, text, n);
  }
  td_reader_consume(r, n);
}

static unsigned type_of_text(char c)
{
  switch (c) {
  case '{': return TD_PARAM_OBJECT;
  case '[': return TD_PARAM_ARRAY;
  case 't':
  case 'f': return TD_PARAM_BOOLEAN;
  case 'n': return TD_PARAM_NULL;
  case '"': return 0; /* the text of a string may begin with a quote */
  default: return TD_PARAM_NUMBER;
  }
}

static const char *json_of_word(const char *text, size_t n, unsigned types)
{
  static const struct {
    const char *python, *json;
    unsigned type;
  } words[] = {{"True", "true", TD_PARAM_BOOLEAN},
               {"False", "false", TD_PARAM_BOOLEAN},
               {"None", "null", TD_PARAM_NULL}};
  for (size_t i = 0; i < 3; i++)
    if (strlen(words[i].python) == n && memcmp(words[i].python, text, n) == 0 && (types & words[i].type))
      return words[i].json;
  return NULL;
}

/* Emits the value as JSON if it is valid and the schema allows its type; otherwise as a string. */
static void emit_value(td_reader *r)
{
  const td_json_limits limits = {64, SIZE_MAX, TD_ERR_REQUEST};
  const char *text = r->value.data ? r->value.data : "";
  size_t n = r->value.len_bytes, from = strspn(text, " \t\r\n");
  while (n > from && strchr(" \t\r\n", text[n - 1]))
    n--;
  const char *word = json_of_word(text + from, n - from, r->types);
  if (word) {
    td_reader_emit_arguments(r, word, strlen(word));
  } else if (n > from && (r->types & type_of_text(text[from])) &&
             td_json_check(text + from, n - from, &limits, NULL) == TD_OK) {
    td_reader_emit_arguments(r, text + from, n - from);
  } else {
    td_buf raw = r->value;
    td_buf_init(&r->value, 0);
    td_reader_emit_string(r, raw.data ? raw.data : "", raw.len_bytes);
    td_buf_deinit(&raw);
  }
}

static void end_value(td_reader *r)
{
  if (!is_string(r))
    emit_value(r);
  else
    td_reader_emit_arguments(r, r->string_open ? "\"" : "\"\"", r->string_open ? 1 : 2);
}

/* Whether the parameter ends here, with or without a newline before the mark. *n: how many bytes its end
 * has. */
static td_look look_for_end(const td_reader *r, size_t *n)
{
  size_t line = td_reader_byte(r, 0) == '\n';
  td_look look = look_at(r, line, param_end);
  if (look != TD_LOOK_OK)
    return look;
  *n = line + strlen(param_end);
  size_t skip = *n, left = td_reader_left(r);
  while (skip < left && skip < *n + TD_BLANKS_MAX && strchr(" \t\r\n", td_reader_byte(r, skip)))
    skip++;
  if (skip == left)
    return r->final ? TD_LOOK_OK : TD_LOOK_MORE;
  td_look param = look_at(r, skip, param_begin), end = look_at(r, skip, function_end);
  return param == TD_LOOK_OK || end == TD_LOOK_OK       ? TD_LOOK_OK
         : param == TD_LOOK_MORE || end == TD_LOOK_MORE ? TD_LOOK_MORE
                                                        : TD_LOOK_NO;
}

static td_look read_value(td_reader *r)
{
  size_t n = 0, left = td_reader_left(r);
  while (n < left && td_reader_byte(r, n) != '<' && td_reader_byte(r, n) != '\n')
    n++;
  if (n > 0) {
    add_value(r, n);
    return TD_LOOK_OK;
  }
  if (left == 0)
    return r->final ? TD_LOOK_NO : TD_LOOK_MORE;
  td_look look = look_for_end(r, &n);
  if (look == TD_LOOK_NO)
    add_value(r, 1);
  if (look != TD_LOOK_OK)
    return look == TD_LOOK_NO ? TD_LOOK_OK : look;
  td_reader_consume(r, n);
  end_value(r);
  return go(r, BODY);
}

static td_look close_call(td_reader *r)
{
  td_look look = td_reader_skip_blanks(r);
  if (look != TD_LOOK_OK)
    return look;
  td_look end = td_reader_look_mark(r, 0, TD_MARK_CALL_END), next = look_at(r, 0, function_begin);
  if (next == TD_LOOK_OK)
    return go(r, FUNCTION);
  if (end != TD_LOOK_OK)
    return next == TD_LOOK_MORE ? next : end;
  td_reader_consume(r, r->rules.dialect->marks[TD_MARK_CALL_END].n);
  r->state = TD_READER_TEXT;
  return TD_LOOK_OK;
}

bool td_calls_xml_is_whole(const td_reader *r) { return r->step == CLOSE; }

td_look td_calls_xml(td_reader *r)
{
  switch (r->step) {
  case BEGIN: return begin(r);
  case FUNCTION: return read_function(r);
  case NAME: return read_name(r);
  case BODY: return read_body(r);
  case PARAMETER: return read_parameter(r);
  case LINE: return read_line(r);
  case VALUE: return read_value(r);
  default: return close_call(r);
  }
}
