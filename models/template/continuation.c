/* continue_final_message: the text ends where the final message ends, so that the answer continues it.
 *
 * Only the template knows where that is. So the message is marked before rendering, and afterwards the text
 * is cut at the mark, by transformers' rules (4.57). The mark is a number that no message can contain,
 * followed by a space. If the space is gone from the output, the template strips the messages that it shows,
 * and then white space before the mark is removed too. */
#include <stdio.h>
#include <string.h>

#include "common/hash.h"
#include "models/template/unicode.h"
#include "models/template/builtin.h"
#include "models/template/value.h"

__attribute__((noreturn)) static void refuse(rendering *r, const char *why)
{
  td_fail_param(r->err, TD_ERR_REQUEST, "continue_final_message", "%s", why);
  longjmp(r->fail, 1);
}

static bool mark_text(rendering *r, dict *of, const char *key)
{
  value was = td_dict_get_text(r, of, (text){key, strlen(key)});
  if (was.type != V_STR)
    return false;
  snprintf(r->mark, sizeof r->mark, "%020llu%020llu ", (unsigned long long)td_random_u64(),
           (unsigned long long)td_random_u64());
  r->continued = was.s;
  td_dict_set(r, of, v_str(td_str_literal(r, key)),
              v_str(td_str_concat(r, was.s, td_str_new(r, r->mark, TD_MARK_BYTES + 1, false))));
  return true;
}

/* Marks the end of the last message's text, or of its last part that is text. */
void td_continuation_mark(rendering *r, value messages)
{
  bool marked = false;
  if (messages.type == V_LIST && messages.l->n > 0 && messages.l->items[messages.l->n - 1].type == V_DICT) {
    dict *last = messages.l->items[messages.l->n - 1].d;
    value content = td_dict_get_text(r, last, (text){"content", 7});
    marked = mark_text(r, last, "content");
    for (size_t i = content.type == V_LIST ? content.l->n : 0; !marked && i-- > 0;)
      marked = content.l->items[i].type == V_DICT && mark_text(r, content.l->items[i].d, "text");
  }
  if (!marked)
    refuse(r, "continue_final_message needs a last message with text");
}

/* Finds the mark. Returns NULL if it is absent or if a template shows the message twice, because one mark
 * would then stay in the text. */
static const char *find_mark(const rendering *r, const td_buf *out)
{
  const char *hit = memmem(out->data, out->len_bytes, r->mark, TD_MARK_BYTES);
  size_t behind = hit ? (size_t)(hit - out->data) + TD_MARK_BYTES : 0;
  return hit && !memmem(hit + TD_MARK_BYTES, out->len_bytes - behind, r->mark, TD_MARK_BYTES) ? hit : NULL;
}

static void cut_at(td_rendered *out, size_t end)
{
  out->text.len_bytes = end;
  if (out->text.data)
    out->text.data[end] = '\0';
  while (out->n_trusted > 0 && out->trusted[out->n_trusted - 1].start >= end)
    out->n_trusted--;
  if (out->n_trusted > 0 && out->trusted[out->n_trusted - 1].end > end)
    out->trusted[out->n_trusted - 1].end = end;
}

void td_continuation_cut(rendering *r)
{
  td_buf *out = &r->out->text;
  const char *mark = r->continued && out->data ? find_mark(r, out) : NULL;
  str *shown = mark ? td_text_strip(r, (str *)r->continued, NULL, true, true) : NULL;
  if (!mark || !memmem(out->data, out->len_bytes, shown->p, shown->n))
    refuse(r,
           "the chat template does not show the last message once and as it is, so it cannot be continued");
  size_t end = (size_t)(mark - out->data), n;
  if (mark[TD_MARK_BYTES] != ' ')
    while (end > 0 && (n = td_unicode_space_before(out->data, end)) > 0)
      end -= n;
  cut_at(r->out, end);
}
