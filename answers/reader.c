/* Reading answers: see reader.h. */
#include <stdlib.h>
#include <string.h>

#include "answers/internal.h"

td_reader *td_reader_create(const td_reader_rules *rules)
{
  td_reader *r = calloc(1, sizeof *r);
  if (!r)
    return NULL;
  r->rules = *rules;
  r->at_start = true;
  bool thinks = rules->reasons && rules->dialect->thinks;
  r->state = thinks && rules->prompt == TD_PROMPT_THINKS  ? TD_READER_THINKS
             : thinks && rules->prompt == TD_PROMPT_PLAIN ? TD_READER_BEGIN
                                                          : TD_READER_TEXT;
  r->skip_blanks_after_mark = r->state == TD_READER_THINKS;
  td_buf_init(&r->in, 0);
  td_buf_init(&r->raw, 0);
  td_buf_init(&r->value, 0);
  return r;
}

void td_reader_destroy(td_reader *r)
{
  if (!r)
    return;
  td_buf_deinit(&r->in);
  td_buf_deinit(&r->raw);
  td_buf_deinit(&r->value);
  free(r);
}

bool td_reader_is_thinking(const td_reader *r) { return r->state == TD_READER_THINKS; }

/* ---- looking and consuming ---- */

td_look td_reader_look(const td_reader *r, size_t skip, const char *text, size_t n)
{
  size_t left = td_reader_left(r) - skip, k = left < n ? left : n;
  if (n == 0 || (k > 0 && memcmp(r->in.data + r->at + skip, text, k) != 0))
    return TD_LOOK_NO;
  return k == n ? TD_LOOK_OK : r->final ? TD_LOOK_NO : TD_LOOK_MORE;
}

td_look td_reader_look_mark(const td_reader *r, size_t skip, td_mark_name name)
{
  const td_mark *m = &r->rules.dialect->marks[name];
  return td_reader_look(r, skip, m->text, m->n);
}

void td_reader_consume(td_reader *r, size_t n)
{
  if (r->state == TD_READER_CALLS && (!r->committed || r->rules.whole))
    td_buf_append(&r->raw, r->in.data + r->at, n);
  r->at += n;
}

static bool is_blank(unsigned char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* How many blanks come next; counts no more than are ever held back. */
static size_t blanks_ahead(const td_reader *r)
{
  size_t n = 0, left = td_reader_left(r);
  while (n < left && n < TD_BLANKS_MAX && is_blank(td_reader_byte(r, n)))
    n++;
  return n;
}

td_look td_reader_skip_blanks(td_reader *r)
{
  for (size_t n; (n = blanks_ahead(r)) > 0;)
    td_reader_consume(r, n);
  return td_reader_left(r) > 0 ? TD_LOOK_OK : r->final ? TD_LOOK_NO : TD_LOOK_MORE;
}

td_look td_reader_consume_char(td_reader *r, char c)
{
  td_look look = td_reader_skip_blanks(r);
  if (look != TD_LOOK_OK)
    return look;
  if (td_reader_byte(r, 0) != (unsigned char)c)
    return TD_LOOK_NO;
  td_reader_consume(r, 1);
  return TD_LOOK_OK;
}

/* ---- content ---- */

/* The mark that begins at `text` with a special token, or NULL if it is none of the dialect's. */
static const td_mark *mark_at(const td_reader *r, const char *text, size_t n)
{
  for (size_t i = 0; i < TD_MARKS; i++) {
    const td_mark *m = &r->rules.dialect->marks[i];
    if (m->id >= 0 && m->n <= n && memcmp(text, m->text, m->n) == 0)
      return m;
  }
  return NULL;
}

static void emit(td_reader *r, td_answer_part_kind kind, const char *text, size_t n)
{
  if (n > 0 && kind == TD_PART_CONTENT) {
    r->at_start = false;
    r->skip_blanks_after_call = false;
  }
  for (size_t i = 0; i < n;) {
    const char *end = memchr(text + i, TD_MARK_BYTE[0], n - i);
    size_t k = end ? (size_t)(end - text) - i : n - i;
    td_parsed_answer_add(r->parsed, kind, 0, text + i, k);
    i += k;
    const td_mark *m = end ? mark_at(r, end, n - i) : NULL;
    i += m && !r->rules.shows_special ? m->n : end != NULL;
  }
}

static void emit_next(td_reader *r, td_answer_part_kind kind, size_t n)
{
  emit(r, kind, r->in.data + r->at, n);
  r->at += n;
}

/* ---- calls ---- */

static td_look read_calls_step(td_reader *r)
{
  switch (r->rules.dialect->calls) {
  case TD_CALLS_PYTHONIC: return td_calls_python(r);
  case TD_CALLS_XML: return td_calls_xml(r);
  default: return td_calls_json(r);
  }
}

static bool calls_are_whole(const td_reader *r)
{
  switch (r->rules.dialect->calls) {
  case TD_CALLS_PYTHONIC: return td_calls_python_is_whole(r);
  case TD_CALLS_XML: return td_calls_xml_is_whole(r);
  default: return td_calls_json_is_whole(r);
  }
}

static void begin_call(td_reader *r)
{
  td_buf_clear(&r->raw);
  td_buf_clear(&r->value);
  r->committed = r->has_name = r->has_arguments = false;
  r->n_parts_before = r->parsed->n;
  r->n_calls_before = r->parsed->n_calls;
}

static void begin_calls(td_reader *r, size_t n_blanks, bool marked)
{
  r->at += n_blanks; /* they belong to the format; if it is no call, they are given back */
  size_t blanks_at = r->at - n_blanks;
  r->state = TD_READER_CALLS;
  r->step = 0;
  r->marked = marked;
  r->list = false;
  begin_call(r);
  td_buf_append(&r->raw, r->in.data + blanks_at, n_blanks);
}

/* Gives back as content what was read since the last complete call. */
static void give_back(td_reader *r)
{
  r->state = TD_READER_TEXT;
  if (r->committed && r->rules.whole)
    td_parsed_answer_cut(r->parsed, r->n_parts_before, r->n_calls_before);
  if (!r->committed || r->rules.whole)
    emit(r, TD_PART_CONTENT, r->raw.data ? r->raw.data : "", r->raw.len_bytes);
  else
    r->skip_blanks_after_call = false;
  r->at_start = false;
  td_buf_clear(&r->raw);
}

void td_reader_emit_call(td_reader *r)
{
  r->committed = true;
  r->at_start = false;
  td_parsed_answer_add(r->parsed, TD_PART_CALL, r->parsed->n_calls, r->name, r->n_name);
  r->parsed->n_calls++;
  r->tool = r->rules.tools ? td_tools_find(r->rules.tools, r->name, r->n_name) : NULL;
  if (!r->rules.whole)
    td_buf_clear(&r->raw);
}

void td_reader_emit_arguments(td_reader *r, const char *text, size_t n)
{
  td_parsed_answer_add(r->parsed, TD_PART_ARGUMENTS, r->parsed->n_calls - 1, text, n);
}

void td_reader_emit_key(td_reader *r)
{
  td_reader_emit_arguments(r, r->n_args > 0 ? ", " : "{", r->n_args > 0 ? 2 : 1);
  r->n_args++;
  td_reader_emit_string(r, r->key, r->n_key);
  td_reader_emit_arguments(r, ": ", 2);
}

void td_reader_emit_escaped(td_reader *r, const char *text, size_t n)
{
  td_buf_clear(&r->value);
  for (size_t i = 0; i < n; i++)
    if (text[i] != TD_MARK_BYTE[0])
      td_json_scan_char((unsigned char)text[i], &r->value);
  td_reader_emit_arguments(r, r->value.data ? r->value.data : "", r->value.len_bytes);
}

void td_reader_emit_string(td_reader *r, const char *text, size_t n)
{
  td_reader_emit_arguments(r, "\"", 1);
  td_reader_emit_escaped(r, text, n);
  td_reader_emit_arguments(r, "\"", 1);
}

void td_reader_end_arguments(td_reader *r)
{
  td_reader_emit_arguments(r, r->n_args > 0 ? "}" : "{}", r->n_args > 0 ? 1 : 2);
  td_reader_end_call(r);
}

void td_reader_end_call(td_reader *r)
{
  begin_call(r);
  r->skip_blanks_after_call = true;
}

bool td_reader_knows_name(const td_reader *r)
{
  return r->rules.tools && td_tools_find(r->rules.tools, r->name, r->n_name);
}

/* ---- text ---- */

/* Whether a call begins after n_blanks. *marked: it begins with a mark. A format without marks is recognised
 * only at the beginning of the answer. */
static td_look look_for_call(const td_reader *r, size_t n_blanks, bool *marked)
{
  static const char function[] = "<function=";
  const td_dialect *d = r->rules.dialect;
  if (!r->rules.tools || d->calls == TD_CALLS_NONE)
    return TD_LOOK_NO;
  *marked = true;
  td_look look = td_reader_look_mark(r, n_blanks, TD_MARK_CALL);
  if (look == TD_LOOK_NO && d->calls == TD_CALLS_XML)
    look = td_reader_look(r, n_blanks, function, strlen(function));
  if (look != TD_LOOK_NO)
    return look;
  const char *open = d->calls == TD_CALLS_LLAMA ? "{" : d->calls == TD_CALLS_PYTHONIC ? "[" : NULL;
  *marked = false;
  return open && r->at_start ? td_reader_look(r, n_blanks, open, 1) : TD_LOOK_NO;
}

/* Drops, or shows, the mark of a special token that begins nothing here. */
static td_look read_stray_mark(td_reader *r)
{
  bool more = false;
  for (size_t i = 0; i < TD_MARKS; i++) {
    if (r->rules.dialect->marks[i].id < 0)
      continue;
    td_look look = td_reader_look_mark(r, 0, (td_mark_name)i);
    more |= look == TD_LOOK_MORE;
    if (look != TD_LOOK_OK)
      continue;
    emit_next(r, TD_PART_CONTENT, r->rules.dialect->marks[i].n);
    return TD_LOOK_OK;
  }
  if (more)
    return TD_LOOK_MORE;
  r->at++;
  return TD_LOOK_OK;
}

static bool is_plain(unsigned char c)
{
  return !strchr(" \t\r\n<[{", c) && c != (unsigned char)TD_MARK_BYTE[0];
}

static td_look read_text(td_reader *r)
{
  bool marked;
  size_t n = 0, left = td_reader_left(r);
  while (n < left && is_plain(td_reader_byte(r, n)))
    n++;
  if (n > 0) {
    emit_next(r, TD_PART_CONTENT, n);
    return TD_LOOK_OK;
  }
  size_t blanks = r->rules.tools || r->skip_blanks_after_call ? blanks_ahead(r) : 0;
  if (blanks == left && !r->final)
    return TD_LOOK_MORE;
  td_look look = blanks < left ? look_for_call(r, blanks, &marked) : TD_LOOK_NO;
  if (look == TD_LOOK_OK)
    begin_calls(r, blanks, marked);
  if (look != TD_LOOK_NO)
    return look;
  if (blanks == left && r->skip_blanks_after_call) { /* at the end of the text after a call: drop them */
    r->at += blanks;
    return TD_LOOK_OK;
  }
  if (blanks == 0 && td_reader_byte(r, 0) == (unsigned char)TD_MARK_BYTE[0])
    return read_stray_mark(r);
  emit_next(r, TD_PART_CONTENT, blanks ? blanks : 1);
  return TD_LOOK_OK;
}

/* ---- reasoning ---- */

static td_look read_begin(td_reader *r)
{
  size_t blanks = blanks_ahead(r);
  td_look look = td_reader_look_mark(r, blanks, TD_MARK_THINK);
  if (look == TD_LOOK_MORE)
    return look;
  r->state = look == TD_LOOK_OK ? TD_READER_THINKS : TD_READER_TEXT;
  if (look == TD_LOOK_OK)
    r->at += blanks + r->rules.dialect->marks[TD_MARK_THINK].n;
  r->skip_blanks_after_mark = look == TD_LOOK_OK;
  return TD_LOOK_OK;
}

static td_look read_thoughts(td_reader *r)
{
  const td_mark *end = &r->rules.dialect->marks[TD_MARK_THINK_END];
  size_t n = 0, left = td_reader_left(r);
  while (n < left && td_reader_byte(r, n) != (unsigned char)end->text[0] && !is_blank(td_reader_byte(r, n)))
    n++;
  if (n > 0) {
    emit_next(r, TD_PART_REASONING, n);
    return TD_LOOK_OK;
  }
  size_t blanks = blanks_ahead(r);
  if (blanks == left && !r->final)
    return TD_LOOK_MORE;
  td_look look = blanks < left ? td_reader_look_mark(r, blanks, TD_MARK_THINK_END) : TD_LOOK_NO;
  if (look == TD_LOOK_OK) {
    r->at += blanks + end->n;
    r->state = TD_READER_TEXT;
    r->skip_blanks_after_mark = true;
  } else if (look == TD_LOOK_NO) {
    emit_next(r, TD_PART_REASONING, blanks ? blanks : 1);
  }
  return look == TD_LOOK_NO ? TD_LOOK_OK : look;
}

/* ---- the whole text ---- */

/* Makes one step. Returns false if more text is needed. */
static bool read_step(td_reader *r)
{
  td_look look;
  while (r->skip_blanks_after_mark && td_reader_left(r) > 0 && is_blank(td_reader_byte(r, 0)))
    r->at++;
  r->skip_blanks_after_mark &= td_reader_left(r) == 0;
  if (td_reader_left(r) == 0 && !(r->final && r->state == TD_READER_CALLS))
    return false;
  switch (r->state) {
  case TD_READER_BEGIN: look = read_begin(r); break;
  case TD_READER_THINKS: look = read_thoughts(r); break;
  case TD_READER_TEXT: look = read_text(r); break;
  default:
    look = read_calls_step(r);
    if (look != TD_LOOK_NO)
      break;
    if (r->final && td_reader_left(r) == 0)
      return false; /* td_reader_finish handles the incomplete call */
    give_back(r);
    look = TD_LOOK_OK;
  }
  return look == TD_LOOK_OK;
}

static void read_all(td_reader *r, td_parsed_answer *parsed)
{
  r->parsed = parsed;
  while (read_step(r))
    ;
  td_buf_consume(&r->in, r->at);
  r->at = 0;
  parsed->failed |= r->in.failed || r->raw.failed || r->value.failed;
}

void td_reader_push(td_reader *r, const char *text, size_t n, td_parsed_answer *parsed)
{
  td_buf_append(&r->in, text, n);
  read_all(r, parsed);
}

void td_reader_finish(td_reader *r, bool is_cut, td_parsed_answer *parsed)
{
  r->final = true;
  read_all(r, parsed);
  if (r->state != TD_READER_CALLS || calls_are_whole(r))
    return;
  if (!is_cut || !r->committed)
    give_back(r);
}
