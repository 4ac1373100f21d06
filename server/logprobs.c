/* Log-probabilities in answers: see logprobs.h. */
#include "server/logprobs.h"

#include <math.h>
#include <string.h>

#include "common/progress.h"

/* Written for -infinity (a token that could not be chosen), which JSON cannot express. vLLM's value. */
#define LEAST_LOGPROB -9999.0

static size_t count_characters(const td_buf *text)
{
  size_t n = 0;
  for (size_t i = 0; i < text->len_bytes; i++)
    n += ((unsigned char)text->data[i] & 0xC0) != 0x80;
  return n;
}

void td_logprobs_keep(const td_engine *e, int32_t id, const td_token_logprob *value, const td_top_token *top,
                      uint32_t n_top, uint32_t *text_offset, td_buf *records)
{
  static const td_token_logprob nothing = {.logprob = NAN};
  td_logprob_record r = {
      .id = id, .value = value ? *value : nothing, .text_offset = text_offset ? *text_offset : 0};
  static const td_top_token none[TD_TOP_TOKENS_MAX];
  if (text_offset) {
    td_buf text;
    td_buf_init(&text, 0);
    td_engine_token_bytes(e, id, &text);
    *text_offset += (uint32_t)count_characters(&text);
    records->failed |= text.failed;
    td_buf_deinit(&text);
  }
  td_buf_append(records, &r, sizeof r);
  if (n_top > 0)
    td_buf_append(records, top ? top : none, n_top * sizeof *top);
}

td_logprob_view td_logprobs_view(const td_buf *all, const td_api_request *request, uint32_t n_written)
{
  return (td_logprob_view){.all = all,
                           .request = request,
                           .n_written = n_written,
                           .end = all->len_bytes / td_logprob_record_bytes(request->n_top)};
}

static const td_logprob_record *record_at(const td_logprob_view *v, size_t i)
{
  return (const td_logprob_record *)(const void *)(v->all->data +
                                                   i * td_logprob_record_bytes(v->request->n_top));
}

static bool has_value(const td_logprob_record *r) { return !isnan(r->value.logprob); }

static void append_value(td_buf *out, float logprob)
{
  td_buf_printf(out, "%.9g", (double)logprob >= LEAST_LOGPROB ? (double)logprob : LEAST_LOGPROB);
}

static void append_token(const td_engine *e, int32_t id, td_buf *out)
{
  td_buf text;
  td_buf_init(&text, 0);
  td_engine_token_bytes(e, id, &text);
  td_buf_append_json_string(out, text.data ? text.data : "", text.len_bytes);
  out->failed |= text.failed;
  td_buf_deinit(&text);
}

/* ---- chat ---- */

/* "token":"..","logprob":-0.1,"bytes":[..] */
static void append_members(const td_engine *e, int32_t id, float logprob, td_buf *out)
{
  td_buf text;
  td_buf_init(&text, 0);
  td_engine_token_bytes(e, id, &text);
  td_buf_append_str(out, "\"token\":");
  td_buf_append_json_string(out, text.data ? text.data : "", text.len_bytes);
  td_buf_append_str(out, ",\"logprob\":");
  append_value(out, logprob);
  td_buf_append_str(out, ",\"bytes\":[");
  for (size_t i = 0; i < text.len_bytes; i++)
    td_buf_printf(out, "%s%u", i ? "," : "", (unsigned char)text.data[i]);
  td_buf_append_char(out, ']');
  out->failed |= text.failed;
  td_buf_deinit(&text);
}

void td_logprobs_render_list(const td_engine *e, const td_logprob_view *v, td_buf *out)
{
  td_buf_append_char(out, '[');
  for (size_t i = v->begin; i < v->end; i++) {
    const td_logprob_record *r = record_at(v, i);
    td_buf_append_str(out, i > v->begin ? ",{" : "{");
    append_members(e, r->id, r->value.logprob, out);
    td_buf_append_str(out, ",\"top_logprobs\":[");
    for (uint32_t k = 0; k < v->n_written; k++) {
      td_buf_append_str(out, k ? ",{" : "{");
      append_members(e, r->top[k].id, r->top[k].logprob, out);
      td_buf_append_char(out, '}');
    }
    td_buf_append_str(out, "]}");
  }
  td_buf_append_char(out, ']');
}

void td_logprobs_render_chat(const td_engine *e, const td_logprob_view *v, td_buf *out)
{
  td_buf_append_str(out, "{\"content\":");
  td_logprobs_render_list(e, v, out);
  td_buf_append_str(out, ",\"refusal\":null}");
}

/* ---- completions ---- */

/* Whether a likelier token has the same text as token k. Different tokens may have the same text (parts of
 * characters), but a JSON object must not repeat a name. Text k ends where k + 1 begins. */
static bool is_written(const char *texts, const size_t *begins, uint32_t k)
{
  size_t n = begins[k + 1] - begins[k];
  for (uint32_t i = 0; i < k; i++)
    if (begins[i + 1] - begins[i] == n && memcmp(texts + begins[i], texts + begins[k], n) == 0)
      return true;
  return false;
}

/* Writes the likeliest tokens and the chosen one as an object. */
static void append_top(const td_engine *e, const td_logprob_record *r, uint32_t n_top, td_buf *out)
{
  size_t begins[TD_TOP_TOKENS_MAX + 2] = {0};
  td_buf texts;
  if (!has_value(r)) {
    td_buf_append_str(out, "null");
    return;
  }
  td_buf_init(&texts, 0);
  td_buf_append_char(out, '{');
  for (uint32_t k = 0; k <= n_top && !texts.failed; k++) {
    td_top_token t = k < n_top ? r->top[k] : (td_top_token){r->id, r->value.logprob};
    append_token(e, t.id, &texts);
    begins[k + 1] = texts.len_bytes;
    if (texts.failed || is_written(texts.data, begins, k))
      continue;
    td_buf_append_str(out, k > 0 ? "," : "");
    td_buf_append(out, texts.data + begins[k], begins[k + 1] - begins[k]);
    td_buf_append_char(out, ':');
    append_value(out, t.logprob);
  }
  td_buf_append_char(out, '}');
  out->failed |= texts.failed;
  td_buf_deinit(&texts);
}

static void append_own(const td_logprob_record *r, td_buf *out)
{
  if (has_value(r))
    append_value(out, r->value.logprob);
  else
    td_buf_append_str(out, "null");
}

static void append_member(const td_engine *e, const td_logprob_view *v, int member, bool *any, td_buf *out)
{
  for (size_t i = v->begin; i < v->end; i++) {
    const td_logprob_record *r = record_at(v, i);
    td_buf_append_str(out, *any ? "," : "");
    *any = true;
    td_progress_add(1 + (size_t)v->n_written * v->n_written);
    switch (member) {
    case 0: append_token(e, r->id, out); break;
    case 1: append_own(r, out); break;
    case 2: append_top(e, r, v->n_written, out); break;
    default: td_buf_printf(out, "%u", r->text_offset);
    }
  }
}

void td_logprobs_render_completion(const td_engine *e, const td_logprob_view *views, size_t n_views,
                                   td_buf *out)
{
  static const char *const members[] = {"{\"tokens\":[", "],\"token_logprobs\":[", "],\"top_logprobs\":[",
                                        "],\"text_offset\":["};
  for (int member = 0; member < 4; member++) {
    bool any = false;
    td_buf_append_str(out, members[member]);
    for (size_t i = 0; i < n_views; i++)
      append_member(e, &views[i], member, &any, out);
  }
  td_buf_append_str(out, "]}");
}

/* ---- prompts ---- */

/* rank 0 is written as null */
static void append_ranked(const td_engine *e, td_top_token t, uint32_t rank, td_buf *out)
{
  td_buf_printf(out, "\"%d\":{\"logprob\":", t.id);
  append_value(out, t.logprob);
  if (rank > 0)
    td_buf_printf(out, ",\"rank\":%u,\"decoded_token\":", rank);
  else
    td_buf_append_str(out, ",\"rank\":null,\"decoded_token\":");
  append_token(e, t.id, out);
  td_buf_append_char(out, '}');
}

void td_logprobs_render_prompt(const td_engine *e, const td_logprob_view *v, td_buf *out)
{
  td_buf_append_char(out, '[');
  for (size_t i = v->begin; i < v->end; i++) {
    const td_logprob_record *r = record_at(v, i);
    uint32_t rank = 0;
    td_buf_append_str(out, i > v->begin ? "," : "");
    td_progress_add(1 + v->n_written);
    if (!has_value(r)) {
      td_buf_append_str(out, "null");
      continue;
    }
    for (uint32_t k = 0; k < v->request->n_top && rank == 0; k++)
      rank = r->top[k].id == r->id ? k + 1 : 0;
    td_buf_append_char(out, '{');
    append_ranked(e, (td_top_token){r->id, r->value.logprob}, rank, out);
    for (uint32_t k = 0; k < v->n_written; k++)
      if (k + 1 != rank) {
        td_buf_append_char(out, ',');
        append_ranked(e, r->top[k], k + 1, out);
      }
    td_buf_append_char(out, '}');
  }
  td_buf_append_char(out, ']');
}
