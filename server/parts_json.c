/* A parsed answer as JSON: see parts_json.h. */
#include "server/parts_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/hash.h"

/* Mistral's templates require ids of nine letters and digits. */
void td_parts_json_call_id(const td_choice *ch, uint32_t n, char out[TD_CALL_ID_BYTES])
{
  const td_call *c = ch->call;
  uint64_t h = td_hash_bytes((uint64_t)ch->index << 32 | n, c->id, strlen(c->id));
  if (c->server->dialect.calls == TD_CALLS_MISTRAL)
    snprintf(out, TD_CALL_ID_BYTES, "%09" PRIx64, h & 0xFFFFFFFFF);
  else
    snprintf(out, TD_CALL_ID_BYTES, "call_%016" PRIx64 "%08" PRIx64, h,
             td_hash_mix(h, 0x9E3779B97F4A7C15u) >> 32);
}

static void append_string(const td_parsed_answer *a, const td_answer_part *p, td_buf *out)
{
  td_buf_append_json_string(out, td_answer_part_text(a, p), p->n);
}

static void append_reasoning(const td_parsed_answer *a, const td_answer_part *p, td_buf *out)
{
  td_buf_append_str(out, "\"reasoning_content\":");
  append_string(a, p, out);
  td_buf_append_str(out, ",\"reasoning\":");
  append_string(a, p, out);
}

void td_parts_json_delta(const td_choice *ch, const td_answer_part *p, td_buf *out)
{
  char id[TD_CALL_ID_BYTES];
  switch (p->kind) {
  case TD_PART_CONTENT:
    td_buf_append_str(out, "\"content\":");
    append_string(&ch->parsed, p, out);
    break;
  case TD_PART_REASONING: append_reasoning(&ch->parsed, p, out); break;
  case TD_PART_CALL:
    td_parts_json_call_id(ch, p->call, id);
    td_buf_printf(out,
                  "\"tool_calls\":[{\"index\":%u,\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":",
                  p->call, id);
    append_string(&ch->parsed, p, out);
    td_buf_append_str(out, ",\"arguments\":\"\"}}]");
    break;
  case TD_PART_ARGUMENTS:
    td_buf_printf(out, "\"tool_calls\":[{\"index\":%u,\"function\":{\"arguments\":", p->call);
    append_string(&ch->parsed, p, out);
    td_buf_append_str(out, "}}]");
  }
}

/* Joins all parts of a kind (arguments: of one call) to one JSON string. */
static void append_joined(const td_parsed_answer *a, td_answer_part_kind kind, uint32_t call, td_buf *out)
{
  td_buf all;
  td_buf_init(&all, 0);
  for (size_t i = 0; i < a->n; i++) {
    const td_answer_part *p = &a->parts[i];
    if (p->kind == kind && (kind < TD_PART_CALL || p->call == call))
      td_buf_append(&all, td_answer_part_text(a, p), p->n);
  }
  td_buf_append_json_string(out, all.data ? all.data : "", all.len_bytes);
  out->failed |= all.failed;
  td_buf_deinit(&all);
}

static bool has(const td_parsed_answer *a, td_answer_part_kind kind)
{
  for (size_t i = 0; i < a->n; i++)
    if (a->parts[i].kind == kind)
      return true;
  return false;
}

/* The arguments of a call, if there are any, are the part right after its name. */
static void append_calls(const td_choice *ch, td_buf *out)
{
  const td_parsed_answer *a = &ch->parsed;
  char id[TD_CALL_ID_BYTES];
  bool first = true;
  td_buf_append_str(out, ",\"tool_calls\":[");
  for (size_t i = 0; i < a->n; i++) {
    const td_answer_part *p = &a->parts[i], *args = i + 1 < a->n ? p + 1 : NULL;
    if (p->kind != TD_PART_CALL)
      continue;
    td_parts_json_call_id(ch, p->call, id);
    td_buf_printf(out, "%s{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", first ? "" : ",",
                  id);
    append_string(a, p, out);
    td_buf_append_str(out, ",\"arguments\":");
    if (args && args->kind == TD_PART_ARGUMENTS)
      append_string(a, args, out);
    else
      td_buf_append_str(out, "\"\"");
    td_buf_append_str(out, "}}");
    first = false;
  }
  td_buf_append_char(out, ']');
}

void td_parts_json_message(const td_choice *ch, td_buf *out)
{
  const td_parsed_answer *a = &ch->parsed;
  bool content = has(a, TD_PART_CONTENT);
  td_buf_append_str(out, ",\"content\":");
  if (content || (a->n_calls == 0 && !has(a, TD_PART_REASONING)))
    append_joined(a, TD_PART_CONTENT, 0, out);
  else
    td_buf_append_str(out, "null");
  if (ch->call->request.include_reasoning && has(a, TD_PART_REASONING)) {
    td_buf_append_str(out, ",\"reasoning_content\":");
    append_joined(a, TD_PART_REASONING, 0, out);
    td_buf_append_str(out, ",\"reasoning\":");
    append_joined(a, TD_PART_REASONING, 0, out);
  }
  if (a->n_calls > 0)
    append_calls(ch, out);
}
