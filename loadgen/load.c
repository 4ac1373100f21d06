/* See load.h: requests, prompts, lengths, random arrivals. */
#include "loadgen/load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loadgen/tool.h"
#include "kernels/dummy.h"

void td_load_deinit(td_load *l)
{
  free(l->requests);
  free(l->segments);
  *l = (td_load){0};
}

void td_load_add_request(td_load *l, double due_s, uint32_t n_out)
{
  td_tool_grow((void **)&l->requests, &l->cap, l->n + 1, sizeof *l->requests);
  l->requests[l->n++] =
      (td_load_request){.due_s = due_s, .n_out = n_out, .first_segment = (uint32_t)l->n_segments};
}

void td_load_add_segment(td_load *l, uint64_t seed, uint32_t n_tokens)
{
  td_tool_grow((void **)&l->segments, &l->segments_cap, l->n_segments + 1, sizeof *l->segments);
  l->segments[l->n_segments++] = (td_load_segment){seed, n_tokens};
  l->requests[l->n - 1].n_segments++;
  l->requests[l->n - 1].n_in += n_tokens;
}

void td_load_repeat_request(td_load *l, size_t i, uint32_t n_out)
{
  td_load_request first = l->requests[i];
  td_load_add_request(l, first.due_s, n_out);
  td_load_request *r = &l->requests[l->n - 1];
  r->n_in = first.n_in;
  r->first_segment = first.first_segment;
  r->n_segments = first.n_segments;
}

/* ---- prompts ---- */

/* Common words that tokenisers have as one token together with a space. */
static const char *const words[64] = {
    "the",   "of",   "and",  "to",    "in",   "is",   "for",   "that",  "was",  "on",    "with",
    "as",    "are",  "by",   "at",    "from", "his",  "her",   "they",  "have", "this",  "not",
    "but",   "had",  "she",  "which", "you",  "one",  "we",    "all",   "were", "their", "an",
    "there", "been", "if",   "more",  "when", "will", "would", "who",   "so",   "no",    "out",
    "up",    "what", "some", "time",  "them", "can",  "only",  "other", "new",  "two",   "may",
    "first", "then", "any",  "my",    "now",  "such", "like",  "our",   "over"};

static void append_number(td_buf *out, uint32_t v)
{
  char digits[12];
  int at = sizeof digits;
  digits[--at] = ',';
  do {
    digits[--at] = (char)('0' + v % 10);
    v /= 10;
  } while (v > 0);
  td_buf_append(out, digits + at, sizeof digits - (size_t)at);
}

void td_load_prompt(const td_load *l, const td_load_request *r, const td_load_tokens *t, td_buf *out)
{
  td_buf_append_char(out, t->text ? '"' : '[');
  for (uint32_t s = 0; s < r->n_segments; s++) {
    const td_load_segment *seg = &l->segments[r->first_segment + s];
    for (uint32_t i = 0; i < seg->n_tokens; i++) {
      uint64_t h = td_dummy_hash(seg->seed, i) >> 32;
      if (t->text) {
        td_buf_append_str(out, words[h % 64]);
        td_buf_append_char(out, ' ');
      } else {
        append_number(out, t->first + (uint32_t)(h * (t->vocab - t->first) >> 32));
      }
    }
  }
  if (out->len_bytes > 0 && !out->failed && r->n_in > 0)
    out->data[out->len_bytes - 1] = t->text ? '"' : ']'; /* replaces the last comma or space */
  else
    td_buf_append_char(out, t->text ? '"' : ']');
}

/* ---- lengths ---- */

td_status td_load_read_length(const char *text, td_load_length *out, td_error *err)
{
  static const struct {
    const char *name;
    td_load_shape shape;
    int n_numbers;
  } shapes[] = {{"", TD_LOAD_FIXED, 1},
                {"uniform:", TD_LOAD_UNIFORM, 2},
                {"lognormal:", TD_LOAD_LOGNORMAL, 2},
                {"normal:", TD_LOAD_NORMAL, 2},
                {"exp:", TD_LOAD_EXPONENTIAL, 1}};
  double v[4];
  int n = 0;
  const char *at = strchr(text, ':') ? strchr(text, ':') + 1 : text;
  size_t i = 0, n_shapes = sizeof shapes / sizeof *shapes;
  while (i < n_shapes && (strlen(shapes[i].name) != (size_t)(at - text) ||
                          strncmp(shapes[i].name, text, (size_t)(at - text)) != 0))
    i++;
  for (; i < n_shapes && n < 4; n++) {
    char *end;
    v[n] = strtod(at, &end);
    if (end == at || (*end && *end != ':') || !(v[n] >= 0) || v[n] > 1e8)
      i = n_shapes;
    else if (*end == '\0') {
      n++;
      break;
    } else
      at = end + 1;
  }
  bool bounds = i < n_shapes && n == shapes[i].n_numbers + 2 && i >= 2;
  if (i == n_shapes || (n != shapes[i].n_numbers && !bounds) || (i == 1 && v[1] < v[0]) ||
      (i >= 2 && v[0] < 1))
    return td_fail(err, TD_ERR_CONFIG,
                   "'%s' is no length: N, uniform:A:B, lognormal:MEAN:SD[:MIN:MAX], normal:MEAN:SD[:MIN:MAX] "
                   "or exp:MEAN[:MIN:MAX]",
                   text);
  *out = (td_load_length){shapes[i].shape, v[0], shapes[i].n_numbers > 1 ? v[1] : 0, 1, 1e8};
  if (bounds) {
    out->min = v[n - 2];
    out->max = v[n - 1];
  }
  return TD_OK;
}

uint32_t td_load_draw_length(const td_load_length *len, td_random *r)
{
  double v = len->a;
  if (len->shape == TD_LOAD_UNIFORM) {
    v = floor(len->a + (len->b - len->a + 1) * td_random_double(r));
  } else if (len->shape == TD_LOAD_LOGNORMAL) {
    double s2 = log(1 + len->b / len->a * (len->b / len->a));
    v = exp(log(len->a) - s2 / 2 + sqrt(s2) * td_random_normal(r));
  } else if (len->shape == TD_LOAD_NORMAL) {
    v = len->a + len->b * td_random_normal(r);
  } else if (len->shape == TD_LOAD_EXPONENTIAL) {
    v = len->a * td_random_exponential(r);
  }
  v = v < len->min ? len->min : v > len->max ? len->max : v;
  return v < 1 ? 1 : (uint32_t)v;
}

/* ---- random arrivals ---- */

void td_load_make(td_load *l, const td_load_spec *spec)
{
  td_random r, in, out;
  double at = 0;
  td_random_init(&r, spec->seed);
  td_random_init(&in, td_dummy_hash(spec->seed, 1));
  td_random_init(&out, td_dummy_hash(spec->seed, 2));
  for (uint64_t i = 0; spec->max_requests == 0 || i < spec->max_requests; i++) {
    if (spec->rate > 0)
      at += td_random_exponential(&r) / spec->rate;
    if (spec->rate > 0 && at >= spec->seconds)
      break;
    td_load_add_request(l, at, td_load_draw_length(&spec->out, &out));
    td_load_add_segment(l, td_dummy_hash(spec->seed, 16 + i), td_load_draw_length(&spec->in, &in));
  }
}
