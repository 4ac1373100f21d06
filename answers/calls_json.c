/* Calls as JSON: {"name": .., "arguments": {..}}, with what each family writes around it, and Mistral's
 * format with the name before the object. */
#include <string.h>

#include "answers/internal.h"

enum {
  BEGIN,
  LIST_OR_NAME, /* Mistral: a list or a name */
  OBJECT,
  FIRST_KEY,
  KEY,
  COLON,
  VALUE,
  SCAN,
  NEXT,
  BEFORE_ARGUMENTS, /* Mistral: after the mark that follows a name */
  ID,
  AFTER_CALL,      /* after a complete call */
  AFTER_SEMICOLON, /* Llama: after a semicolon */
};

static bool is_name_char(unsigned char c)
{
  return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (c && strchr("_.:/-", c));
}

static td_look go(td_reader *r, unsigned step)
{
  r->step = step;
  return TD_LOOK_OK;
}

static td_look to_text(td_reader *r)
{
  r->state = TD_READER_TEXT;
  return TD_LOOK_OK;
}

/* Consumes the character c, then goes to that step. */
static td_look expect(td_reader *r, char c, unsigned step)
{
  td_look look = td_reader_consume_char(r, c);
  return look == TD_LOOK_OK ? go(r, step) : look;
}

static td_look need_more(const td_reader *r) { return r->final ? TD_LOOK_NO : TD_LOOK_MORE; }

/* Reads a short string in quotes, without escapes. */
static td_look consume_string(td_reader *r, char *out, size_t *n)
{
  td_look look = td_reader_skip_blanks(r);
  if (look != TD_LOOK_OK || td_reader_byte(r, 0) != '"')
    return look != TD_LOOK_OK ? look : TD_LOOK_NO;
  size_t k = 1, left = td_reader_left(r);
  while (k < left && k < TD_NAME_BYTES && td_reader_byte(r, k) != '"' && td_reader_byte(r, k) != '\\' &&
         td_reader_byte(r, k) >= 0x20)
    k++;
  if (k == left)
    return need_more(r);
  if (td_reader_byte(r, k) != '"')
    return TD_LOOK_NO;
  *n = k - 1;
  memcpy(out, r->in.data + r->at + 1, *n);
  td_reader_consume(r, k + 1);
  return TD_LOOK_OK;
}

static td_look begin(td_reader *r)
{
  if (r->marked)
    td_reader_consume(r, r->rules.dialect->marks[TD_MARK_CALL].n);
  return go(r, r->rules.dialect->calls == TD_CALLS_MISTRAL ? LIST_OR_NAME : OBJECT);
}

static bool is_key(const td_reader *r, const char *key)
{
  return r->n_key == strlen(key) && memcmp(r->key, key, r->n_key) == 0;
}

/* ---- Mistral's name and mark ---- */

static td_look accept_name(td_reader *r, size_t n, td_look args, td_look id)
{
  const td_mark *marks = r->rules.dialect->marks;
  memcpy(r->name, r->in.data + r->at, n);
  r->n_name = n;
  r->has_name = true;
  td_reader_consume(r, n + (args == TD_LOOK_OK ? marks[TD_MARK_ARGS].n
                            : id == TD_LOOK_OK ? marks[TD_MARK_CALL_ID].n
                                               : 0));
  return go(r, id == TD_LOOK_OK ? ID : BEFORE_ARGUMENTS);
}

/* Reads a name that is followed by a mark or by the arguments themselves. */
static td_look read_name(td_reader *r)
{
  size_t n = 0, left = td_reader_left(r);
  while (n < left && n < TD_NAME_BYTES && is_name_char(td_reader_byte(r, n)))
    n++;
  if (n == left)
    return need_more(r);
  td_look args = td_reader_look_mark(r, n, TD_MARK_ARGS), id = td_reader_look_mark(r, n, TD_MARK_CALL_ID);
  if (n == 0 || n == TD_NAME_BYTES)
    return TD_LOOK_NO;
  if (args == TD_LOOK_OK || id == TD_LOOK_OK || td_reader_byte(r, n) == '{')
    return accept_name(r, n, args, id);
  return args == TD_LOOK_MORE || id == TD_LOOK_MORE ? TD_LOOK_MORE : TD_LOOK_NO;
}

static td_look read_list_or_name(td_reader *r)
{
  td_look look = td_reader_skip_blanks(r);
  if (look != TD_LOOK_OK)
    return look;
  if (td_reader_look_mark(r, 0, TD_MARK_ARGS) == TD_LOOK_OK || td_reader_byte(r, 0) != '[')
    return read_name(r);
  td_reader_consume(r, 1);
  r->list = true;
  return go(r, OBJECT);
}

static td_look read_id(td_reader *r)
{
  size_t n = 0, left = td_reader_left(r);
  while (n < left && n < TD_NAME_BYTES && is_name_char(td_reader_byte(r, n)))
    n++;
  td_look look = n == left ? need_more(r) : td_reader_look_mark(r, n, TD_MARK_ARGS);
  if (look != TD_LOOK_OK)
    return look;
  td_reader_consume(r, n + r->rules.dialect->marks[TD_MARK_ARGS].n);
  return go(r, BEFORE_ARGUMENTS);
}

/* ---- the object ---- */

static td_look begin_scan(td_reader *r, bool arguments)
{
  td_json_scan_begin(&r->json);
  td_buf_clear(&r->value);
  r->is_arguments = arguments;
  r->has_arguments |= arguments;
  if (arguments && r->has_name)
    td_reader_emit_call(r);
  return go(r, SCAN);
}

static td_look begin_arguments(td_reader *r)
{
  td_look look = td_reader_skip_blanks(r);
  if (look != TD_LOOK_OK)
    return look;
  return td_reader_byte(r, 0) == '{' && !r->has_arguments ? begin_scan(r, true) : TD_LOOK_NO;
}

static td_look read_name_value(td_reader *r)
{
  td_look look = r->has_name ? TD_LOOK_NO : consume_string(r, r->name, &r->n_name);
  if (look != TD_LOOK_OK)
    return look;
  if (r->n_name == 0 || (!r->marked && !td_reader_knows_name(r)))
    return TD_LOOK_NO;
  r->has_name = true;
  if (r->has_arguments) { /* the arguments came before the name */
    td_reader_emit_call(r);
    td_reader_emit_arguments(r, r->value.data, r->value.len_bytes);
  }
  return go(r, NEXT);
}

static td_look read_value(td_reader *r)
{
  if (is_key(r, "name"))
    return read_name_value(r);
  if (is_key(r, "arguments") || is_key(r, "parameters"))
    return begin_arguments(r);
  return begin_scan(r, false);
}

/* Emits arguments as they come. Arguments that come before the name are kept until the name is known. */
static td_look scan(td_reader *r)
{
  td_buf *out = r->is_arguments ? &r->value : NULL;
  if (r->committed)
    td_buf_clear(&r->value);
  size_t n = td_json_scan_push(&r->json, r->in.data + r->at, td_reader_left(r), out);
  td_reader_consume(r, n);
  if (r->committed && r->is_arguments)
    td_reader_emit_arguments(r, r->value.data ? r->value.data : "", r->value.len_bytes);
  if (r->json.bad || (!r->json.done && r->final))
    return TD_LOOK_NO;
  if (!r->json.done)
    return TD_LOOK_MORE;
  if (r->rules.dialect->calls == TD_CALLS_MISTRAL && !r->list) {
    td_reader_end_call(r);
    return to_text(r);
  }
  return go(r, NEXT);
}

static td_look end_object(td_reader *r)
{
  td_look look = td_reader_consume_char(r, '}');
  if (look != TD_LOOK_OK)
    return look;
  if (!r->has_name)
    return TD_LOOK_NO;
  if (!r->has_arguments) {
    td_reader_emit_call(r);
    td_reader_emit_arguments(r, "{}", 2);
  }
  td_reader_end_call(r);
  return go(r, AFTER_CALL);
}

static td_look read_next(td_reader *r)
{
  td_look look = td_reader_consume_char(r, ',');
  return look == TD_LOOK_OK ? go(r, KEY) : look == TD_LOOK_NO ? end_object(r) : look;
}

static td_look read_key(td_reader *r)
{
  td_look look = consume_string(r, r->key, &r->n_key);
  return look == TD_LOOK_OK ? go(r, COLON) : look;
}

/* ---- after a call ---- */

static td_look read_after_hermes_call(td_reader *r)
{
  td_look look = td_reader_skip_blanks(r);
  if (look != TD_LOOK_OK)
    return look;
  look = td_reader_look_mark(r, 0, TD_MARK_CALL_END);
  if (look == TD_LOOK_OK) {
    td_reader_consume(r, r->rules.dialect->marks[TD_MARK_CALL_END].n);
    return to_text(r);
  }
  if (look == TD_LOOK_NO && td_reader_byte(r, 0) == '{') /* another call within the same marks */
    return go(r, OBJECT);
  return look;
}

static td_look read_after_call(td_reader *r)
{
  td_look look;
  switch (r->rules.dialect->calls) {
  case TD_CALLS_HERMES: return read_after_hermes_call(r);
  case TD_CALLS_LLAMA: return expect(r, ';', AFTER_SEMICOLON);
  default:
    look = expect(r, ',', OBJECT);
    if (look != TD_LOOK_NO)
      return look;
    look = td_reader_consume_char(r, ']');
    return look == TD_LOOK_OK ? to_text(r) : look;
  }
}

/* Llama: the mark may be repeated. */
static td_look read_after_semicolon(td_reader *r)
{
  td_look look = td_reader_skip_blanks(r);
  if (look != TD_LOOK_OK)
    return look;
  look = td_reader_look_mark(r, 0, TD_MARK_CALL);
  if (look == TD_LOOK_OK)
    td_reader_consume(r, r->rules.dialect->marks[TD_MARK_CALL].n);
  return look == TD_LOOK_MORE ? look : go(r, OBJECT);
}

bool td_calls_json_is_whole(const td_reader *r) { return r->step == AFTER_CALL; }

td_look td_calls_json(td_reader *r)
{
  td_look look;
  switch (r->step) {
  case BEGIN: return begin(r);
  case LIST_OR_NAME: return read_list_or_name(r);
  case OBJECT: return expect(r, '{', FIRST_KEY);
  case FIRST_KEY:
  case KEY: return read_key(r);
  case COLON: return expect(r, ':', VALUE);
  case VALUE: look = td_reader_skip_blanks(r); return look == TD_LOOK_OK ? read_value(r) : look;
  case SCAN: return scan(r);
  case NEXT: return read_next(r);
  case BEFORE_ARGUMENTS: return begin_arguments(r);
  case ID: return read_id(r);
  case AFTER_CALL: return read_after_call(r);
  default: return read_after_semicolon(r);
  }
}
