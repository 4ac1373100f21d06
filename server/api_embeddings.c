/* POST /v1/embeddings: a vector for each of one or many texts or arrays of token ids, in OpenAI's format. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/progress.h"
#include "server/call.h"

static bool prepare(td_call *c)
{
  const td_api_request *r = &c->request;
  if (r->dimensions > c->info->width) {
    td_api_error_set(&c->error, 400, "invalid_value", "dimensions",
                     "'dimensions' may be %u at most: a vector of this model has so many", c->info->width);
    return false;
  }
  return td_call_read_prompts(c, r->input, "input", (size_t)td_limit_max(TD_LIMIT_EMBEDDING_INPUTS)) &&
         td_call_check_context(c, false);
}

/* The divisor that makes the vector's Euclidean length 1, or 1 if the request does not normalize. */
static double length_of(const td_call *c, const float *v, size_t n)
{
  double sum = 0;
  for (size_t i = 0; i < n; i++)
    sum += (double)v[i] * (double)v[i];
  return c->request.normalizes && sum > 0 ? sqrt(sum) : 1;
}

static void append_base64(const unsigned char *in, size_t n, td_buf *out)
{
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < n; i += 3) {
    uint32_t rest = n - i > 2 ? 3 : (uint32_t)(n - i);
    uint32_t bits = (uint32_t)in[i] << 16 | (rest > 1 ? (uint32_t)in[i + 1] << 8 : 0) |
                    (rest > 2 ? (uint32_t)in[i + 2] : 0);
    const char group[] = {digits[bits >> 18], digits[bits >> 12 & 63],
                          rest > 1 ? digits[bits >> 6 & 63] : '=', rest > 2 ? digits[bits & 63] : '='};
    td_buf_append(out, group, sizeof group);
  }
}

/* base64 encodes little-endian floats, which is this machine's byte order. */
static void append_vector(const td_call *c, const float *v, td_buf *out)
{
  size_t n = c->request.dimensions > 0 ? (size_t)c->request.dimensions : c->info->width;
  double length = length_of(c, v, n);
  bool base64 = c->request.wants_base64;
  td_buf bytes;
  td_buf_init(&bytes, 0);
  td_buf_append_char(out, base64 ? '"' : '[');
  for (size_t i = 0; i < n; i++) {
    float x = (float)((double)v[i] / length);
    if (base64)
      td_buf_append(&bytes, &x, sizeof x);
    else
      td_buf_printf(out, "%s%.9g", i ? "," : "", (double)x);
  }
  append_base64((const unsigned char *)bytes.data, bytes.len_bytes, out);
  out->failed |= bytes.failed;
  td_buf_deinit(&bytes);
  td_buf_append_char(out, base64 ? '"' : ']');
  td_progress_add(n);
}

static void render_answer(const td_call *c, td_buf *out)
{
  uint64_t n_tokens = 0;
  td_buf_append_str(out, "{\"object\":\"list\",\"data\":[");
  for (uint32_t i = 0; i < c->n_choices; i++) {
    const td_choice *ch = &c->choices[i];
    n_tokens += ch->n_prompt;
    td_buf_printf(out, "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":", i ? "," : "", i);
    if (!ch->out.failed)
      append_vector(c, (const float *)(const void *)ch->out.data, out);
    td_buf_append_char(out, '}');
  }
  td_buf_append_str(out, "],\"model\":");
  td_buf_append_json_string(out, c->info->model_name, strlen(c->info->model_name));
  td_buf_printf(out, ",\"usage\":{\"prompt_tokens\":%" PRIu64 ",\"total_tokens\":%" PRIu64 "}}", n_tokens,
                n_tokens);
}

const td_api td_api_embeddings = {
    .route = TD_ROUTE_EMBEDDINGS,
    .id_prefix = "embd-",
    .ids_member = "input",
    .prepare = prepare,
    .generates = true,
    .chunk_object = "list",
    .render_answer = render_answer,
};
