/* Whole answers. The loop writes short ones. An answer with many log-probabilities or vectors would block the
 * loop for too long, so a worker writes it and owns the call meanwhile. */
#include "server/call.h"
#include "server/answer_memory.h"

enum { LONG_NUMBERS_BYTES = 32768 };

static void timing_headers(const td_request_note *note, td_buf *out)
{
  td_buf_append_str(out, "x-tandem-queue-ms: ");
  td_buf_append_tenths(out, note->queue_ms);
  td_buf_append_str(out, "\r\nx-tandem-prefill-ms: ");
  td_buf_append_tenths(out, note->prefill_ms);
  td_buf_append_str(out, "\r\nx-tandem-decode-ms: ");
  td_buf_append_tenths(out, note->decode_ms);
  td_buf_append_str(out, "\r\nx-tandem-cached-tokens: ");
  td_buf_append_uint(out, note->cached_tokens);
  td_buf_append_str(out, "\r\n");
}

static void render(td_call *call)
{
  td_buf *out = &call->answer;
  call->api->render_answer(call, out);
  for (uint32_t i = 0; i < call->n_choices; i++) {
    const td_choice *ch = &call->choices[i];
    out->failed |= ch->parsed.failed | ch->out.failed | ch->ids.failed | ch->logprobs.failed |
                   call->prompts[ch->prompt].logprobs.failed;
  }
}

static void respond(td_call *call)
{
  td_api_error e;
  td_buf headers;
  if (call->answer.is_full) {
    td_answer_memory_too_long(call->answer.max_bytes, &e);
    td_call_fail(call, &e);
    return;
  }
  td_buf_init(&headers, 0);
  timing_headers(&call->conn->note, &headers);
  td_call_respond(call, &headers, &call->answer);
  td_call_destroy(call);
}

static void run_render(td_job *job)
{
  td_call *call = (td_call *)job;
  if (!atomic_load(&call->abandoned))
    render(call);
  call->rendered = true;
}

static void render_done(td_job *job)
{
  td_call *call = (td_call *)job;
  td_api_error e;
  call->with_worker = false;
  if (!call->conn) {
    td_call_destroy(call);
  } else if (call->rendered) {
    respond(call);
  } else {
    td_api_error_set(&e, 503, "shutting_down", NULL, "the server is shutting down");
    td_call_fail(call, &e);
  }
}

/* Bytes of log-probabilities and vectors, which take long to write as JSON. */
static size_t numbers_bytes(const td_call *call)
{
  size_t n = 0;
  for (uint32_t i = 0; i < call->n_choices; i++)
    n += (call->info->makes_embeddings ? call->choices[i].out.len_bytes : 0) +
         call->choices[i].logprobs.len_bytes + call->prompts[call->choices[i].prompt].logprobs.len_bytes;
  return n;
}

void td_answer_send(td_call *call)
{
  td_server *s = call->server;
  td_error err;
  call->job.run = run_render;
  call->job.done = render_done;
  call->job.n_bytes = numbers_bytes(call);
  call->with_worker =
      call->job.n_bytes > LONG_NUMBERS_BYTES &&
      td_workers_submit(s->workers, &call->job, td_tenants_are_several(&s->tenants), &err) == TD_OK;
  if (call->with_worker)
    return;
  render(call); /* also if the workers' queue is full: the answer is computed, and refusing would lose it */
  respond(call);
}
