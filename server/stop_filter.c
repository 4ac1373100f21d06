/* Stop strings: see stop_filter.h. */
#include "server/stop_filter.h"

#include <stdlib.h>
#include <string.h>

#include "config/limits.h"

bool td_stop_set_add(td_stop_set *set, const char *text, size_t n)
{
  if (set->n == TD_STOP_STRINGS_MAX || n == 0 || n > td_limit_max(TD_LIMIT_STOP_STRING_BYTES))
    return false;
  unsigned char *copy = malloc(n + 1);
  uint16_t *border = calloc(n + 1, sizeof *border);
  if (!copy || !border) {
    free(copy);
    free(border);
    return false;
  }
  memcpy(copy, text, n);
  copy[n] = '\0';
  uint16_t k = 0;
  for (size_t i = 1; i < n; i++) {
    while (k > 0 && copy[i] != copy[k])
      k = border[k];
    if (copy[i] == copy[k])
      k++;
    border[i + 1] = k;
  }
  set->text[set->n] = copy;
  set->fail[set->n] = border;
  set->length[set->n++] = (uint16_t)n;
  return true;
}

void td_stop_set_deinit(td_stop_set *set)
{
  for (uint32_t i = 0; i < set->n; i++) {
    free(set->text[i]);
    free(set->fail[i]);
  }
  set->n = 0;
}

void td_stop_filter_init(td_stop_filter *f, const td_stop_set *set)
{
  memset(f, 0, sizeof *f);
  f->set = set;
  td_buf_init(&f->unsent, 0);
}

void td_stop_filter_deinit(td_stop_filter *f) { td_buf_deinit(&f->unsent); }

/* Advances every automaton by one byte. Returns the length of the longest stop string that ends here, or
 * 0. */
static uint32_t advance(td_stop_filter *f, unsigned char c)
{
  uint32_t found = 0;
  for (uint32_t i = 0; i < f->set->n; i++) {
    uint16_t k = f->state[i];
    while (k > 0 && f->set->text[i][k] != c)
      k = f->set->fail[i][k];
    if (f->set->text[i][k] == c)
      k++;
    f->state[i] = k; /* stays below the length until the match that ends the answer */
    if (k == f->set->length[i] && k > found) {
      found = k;
      f->found = i;
    }
  }
  return found;
}

bool td_stop_filter_push(td_stop_filter *f, const char *text, size_t n, td_buf *out)
{
  if (f->matched)
    return true;
  if (f->set->n == 0) {
    td_buf_append(out, text, n);
    return false;
  }
  size_t before = f->unsent.len_bytes;
  td_buf_append(&f->unsent, text, n);
  if (f->unsent.failed) {
    out->failed = true;
    return false;
  }
  for (size_t i = 0; i < n; i++) {
    uint32_t found = advance(f, (unsigned char)text[i]);
    if (found == 0)
      continue;
    td_buf_append(out, f->unsent.data, before + i + 1 - (f->keeps_stop ? 0 : found));
    td_buf_clear(&f->unsent);
    f->matched = true;
    return true;
  }
  size_t keep = 0;
  for (uint32_t i = 0; i < f->set->n; i++)
    if (f->state[i] > keep)
      keep = f->state[i];
  size_t certain = f->unsent.len_bytes - keep;
  if (certain > 0) {
    td_buf_append(out, f->unsent.data, certain);
    td_buf_consume(&f->unsent, certain);
  }
  return false;
}

const char *td_stop_filter_found(const td_stop_filter *f)
{
  return f->matched ? (const char *)f->set->text[f->found] : NULL;
}

void td_stop_filter_finish(td_stop_filter *f, td_buf *out)
{
  if (!f->matched && f->unsent.len_bytes > 0)
    td_buf_append(out, f->unsent.data, f->unsent.len_bytes);
  td_buf_clear(&f->unsent);
}
