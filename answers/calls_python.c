/* Calls as Python writes them: [f(a=1), g(b="x")]. Their arguments are converted to a JSON object as they
 * come. */
#include <string.h>

#include "answers/internal.h"

enum { BEGIN, LIST, NAME, ARGUMENT, EQUALS, VALUE, NEXT, AFTER_CALL, CLOSE };

static td_look go(td_reader *r, unsigned step)
{
  r->step = step;
  return TD_LOOK_OK;
}

static bool is_name_char(unsigned char c)
{
  return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (c && strchr("_.-", c));
}

/* The length of the name that begins here. *more: it may go on in text to come. */
static size_t name_length(const td_reader *r, bool *more)
{
  size_t n = 0, left = td_reader_left(r);
  while (n < left && n < TD_NAME_BYTES && is_name_char(td_reader_byte(r, n)))
    n++;
  *more = n == left && !r->final;
  return n;
}

static td_look begin(td_reader *r)
{
  if (r->marked)
    td_reader_consume(r, r->rules.dialect->marks[TD_MARK_CALL].n);
  return go(r, LIST);
}

static td_look read_name(td_reader *r)
{
  bool more;
  td_look look = td_reader_skip_blanks(r);
  if (look != TD_LOOK_OK)
    return look;
  size_t n = name_length(r, &more);
  if (more)
    return TD_LOOK_MORE;
  if (n == 0 || n == TD_NAME_BYTES || n == td_reader_left(r) || td_reader_byte(r, n) != '(')
    return TD_LOOK_NO;
  memcpy(r->name, r->in.data + r->at, n);
  r->n_name = n;
  if (!r->marked && !td_reader_knows_name(r))
    return TD_LOOK_NO;
  td_reader_consume(r, n + 1);
  td_reader_emit_call(r);
  r->n_args = 0;
  return go(r, ARGUMENT);
}

static td_look end_call(td_reader *r)
{
  td_look look = td_reader_consume_char(r, ')');
  if (look != TD_LOOK_OK)
    return look;
  td_reader_end_arguments(r);
  return go(r, AFTER_CALL);
}

static td_look read_argument(td_reader *r)
{
  bool more;
  td_look look = td_reader_skip_blanks(r);
  if (look != TD_LOOK_OK)
    return look;
  if (td_reader_byte(r, 0) == ')')
    return end_call(r);
  size_t n = name_length(r, &more);
  if (more)
    return TD_LOOK_MORE;
  if (n == 0 || n == TD_NAME_BYTES)
    return TD_LOOK_NO;
  memcpy(r->key, r->in.data + r->at, n);
  r->n_key = n;
  td_reader_consume(r, n);
  return go(r, EQUALS);
}

static td_look read_equals(td_reader *r)
{
  td_look look = td_reader_consume_char(r, '=');
  if (look != TD_LOOK_OK)
    return look;
  td_reader_emit_key(r);
  td_python_scan_begin(&r->python);
  return go(r, VALUE);
}

static td_look read_value(td_reader *r)
{
  td_buf_clear(&r->value);
  size_t n = td_python_scan_push(&r->python, r->in.data + r->at, td_reader_left(r), &r->value);
  td_reader_consume(r, n);
  td_reader_emit_arguments(r, r->value.data ? r->value.data : "", r->value.len_bytes);
  if (r->python.bad || (!r->python.done && r->final))
    return TD_LOOK_NO;
  return r->python.done ? go(r, NEXT) : TD_LOOK_MORE;
}

static td_look read_next(td_reader *r)
{
  td_look look = td_reader_consume_char(r, ',');
  return look == TD_LOOK_OK ? go(r, ARGUMENT) : look == TD_LOOK_NO ? end_call(r) : look;
}

static td_look read_after_call(td_reader *r)
{
  td_look look = td_reader_consume_char(r, ',');
  if (look == TD_LOOK_OK)
    return go(r, NAME);
  if (look == TD_LOOK_NO)
    look = td_reader_consume_char(r, ']');
  if (look != TD_LOOK_OK)
    return look;
  if (r->marked && r->rules.dialect->marks[TD_MARK_CALL_END].n)
    return go(r, CLOSE);
  r->state = TD_READER_TEXT;
  return TD_LOOK_OK;
}

static td_look close_list(td_reader *r)
{
  td_look look = td_reader_skip_blanks(r);
  if (look == TD_LOOK_OK)
    look = td_reader_look_mark(r, 0, TD_MARK_CALL_END);
  if (look != TD_LOOK_OK)
    return look;
  td_reader_consume(r, r->rules.dialect->marks[TD_MARK_CALL_END].n);
  r->state = TD_READER_TEXT;
  return TD_LOOK_OK;
}

bool td_calls_python_is_whole(const td_reader *r) { return r->step == AFTER_CALL || r->step == CLOSE; }

td_look td_calls_python(td_reader *r)
{
  td_look look;
  switch (r->step) {
  case BEGIN: return begin(r);
  case LIST: look = td_reader_consume_char(r, '['); return look == TD_LOOK_OK ? go(r, NAME) : look;
  case NAME: return read_name(r);
  case ARGUMENT: return read_argument(r);
  case EQUALS: return read_equals(r);
  case VALUE: return read_value(r);
  case NEXT: return read_next(r);
  case AFTER_CALL: return read_after_call(r);
  default: return close_list(r);
  }
}
