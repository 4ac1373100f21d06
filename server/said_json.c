/* What an answer says, as JSON: see said_json.h. */
#include "server/said_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/hash.h"

/* Mistral's templates require ids of nine letters and digits. */
void td_said_json_id(const td_choice *ch, uint32_t n, char out[TD_CALL_ID_BYTES])
{
  const td_call *c = ch->call;
  uint64_t h = td_hash_bytes((uint64_t)ch->index << 32 | n, c->id, strlen(c->id));
  if (c->server->dialect.calls == TD_CALLS_MISTRAL)
    snprintf(out, TD_CALL_ID_BYTES, "%09" PRIx64, h & 0xFFFFFFFFF);
  else
    snprintf(out, TD_CALL_ID_BYTES, "call_%016" PRIx64 "%08" PRIx64, h,
             td_hash_mix(h, 0x9E3779B97F4A7C15u) >> 32);
}

static void append_string(const td_said *s, const td_said_piece *p, td_buf *out)
{
  td_buf_append_json_string(out, td_said_text(s, p), p->n);
}

static void append_reasoning(const td_said *s, const td_said_piece *p, td_buf *out)
{
  td_buf_append_str(out, "\"reasoning_content\":");
  append_string(s, p, out);
  td_buf_append_str(out, ",\"reasoning\":");
  append_string(s, p, out);
}

void td_said_json_delta(const td_choice *ch, const td_said_piece *p, td_buf *out)
{
  char id[TD_CALL_ID_BYTES];
  switch (p->kind) {
  case TD_SAID_CONTENT:
    td_buf_append_str(out, "\"content\":");
    append_string(&ch->said, p, out);
    break;
  case TD_SAID_REASONING: append_reasoning(&ch->said, p, out); break;
  case TD_SAID_CALL:
    td_said_json_id(ch, p->call, id);
    td_buf_printf(out,
                  "\"tool_calls\":[{\"index\":%u,\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":",
                  p->call, id);
    append_string(&ch->said, p, out);
    td_buf_append_str(out, ",\"arguments\":\"\"}}]");
    break;
  case TD_SAID_ARGUMENTS:
    td_buf_printf(out, "\"tool_calls\":[{\"index\":%u,\"function\":{\"arguments\":", p->call);
    append_string(&ch->said, p, out);
    td_buf_append_str(out, "}}]");
  }
}

/* Joins all pieces of a kind (arguments: of one call) to one JSON string. */
static void append_joined(const td_said *s, td_said_kind kind, uint32_t call, td_buf *out)
{
  td_buf all;
  td_buf_init(&all, 0);
  for (size_t i = 0; i < s->n; i++) {
    const td_said_piece *p = &s->pieces[i];
    if (p->kind == kind && (kind < TD_SAID_CALL || p->call == call))
      td_buf_append(&all, td_said_text(s, p), p->n);
  }
  td_buf_append_json_string(out, all.data ? all.data : "", all.len_bytes);
  out->failed |= all.failed;
  td_buf_deinit(&all);
}

static bool has(const td_said *s, td_said_kind kind)
{
  for (size_t i = 0; i < s->n; i++)
    if (s->pieces[i].kind == kind)
      return true;
  return false;
}

/* The arguments of a call, if there are any, are the piece right after its name. */
static void append_calls(const td_choice *ch, td_buf *out)
{
  const td_said *s = &ch->said;
  char id[TD_CALL_ID_BYTES];
  bool first = true;
  td_buf_append_str(out, ",\"tool_calls\":[");
  for (size_t i = 0; i < s->n; i++) {
    const td_said_piece *p = &s->pieces[i], *args = i + 1 < s->n ? p + 1 : NULL;
    if (p->kind != TD_SAID_CALL)
      continue;
    td_said_json_id(ch, p->call, id);
    td_buf_printf(out, "%s{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", first ? "" : ",",
                  id);
    append_string(s, p, out);
    td_buf_append_str(out, ",\"arguments\":");
    if (args && args->kind == TD_SAID_ARGUMENTS)
      append_string(s, args, out);
    else
      td_buf_append_str(out, "\"\"");
    td_buf_append_str(out, "}}");
    first = false;
  }
  td_buf_append_char(out, ']');
}

void td_said_json_message(const td_choice *ch, td_buf *out)
{
  const td_said *s = &ch->said;
  bool content = has(s, TD_SAID_CONTENT);
  td_buf_append_str(out, ",\"content\":");
  if (content || (s->n_calls == 0 && !has(s, TD_SAID_REASONING)))
    append_joined(s, TD_SAID_CONTENT, 0, out);
  else
    td_buf_append_str(out, "null");
  if (ch->call->request.include_reasoning && has(s, TD_SAID_REASONING)) {
    td_buf_append_str(out, ",\"reasoning_content\":");
    append_joined(s, TD_SAID_REASONING, 0, out);
    td_buf_append_str(out, ",\"reasoning\":");
    append_joined(s, TD_SAID_REASONING, 0, out);
  }
  if (s->n_calls > 0)
    append_calls(ch, out);
}
