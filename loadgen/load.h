/* A load: a list of requests. Each has the time when it is due, its prompt as a recipe, and the length of
 * its answer.
 *
 * A prompt is a list of segments, each a seed and a length. Equal seeds give equal tokens, so shared
 * prefixes are shared segments, and a load with gigabytes of prompts takes kilobytes. The tokens are
 * generated when a request is sent. */
#ifndef TD_LOADGEN_LOAD_H
#define TD_LOADGEN_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "loadgen/random.h"
#include "common/buf.h"
#include "common/status.h"

typedef struct td_load_segment {
  uint64_t seed;
  uint32_t n_tokens;
} td_load_segment;

typedef struct td_load_request {
  double due_s; /* after the start of the run; closed streams ignore it */
  uint32_t n_in, n_out;
  uint32_t first_segment, n_segments;
} td_load_request;

typedef struct td_load {
  td_load_request *requests;
  size_t n, cap;
  td_load_segment *segments;
  size_t n_segments, segments_cap;
} td_load;

void td_load_deinit(td_load *l);
void td_load_add_request(td_load *l, double due_s, uint32_t n_out);     /* its prompt is empty */
void td_load_add_segment(td_load *l, uint64_t seed, uint32_t n_tokens); /* to the last request */
void td_load_repeat_request(td_load *l, size_t i, uint32_t n_out);      /* with request i's prompt */

/* Writes a prompt as the server gets it: a JSON array of ids in [first, vocab), or, if `text`, a JSON string
 * with one word for each token. */
typedef struct td_load_tokens {
  uint32_t first, vocab;
  bool text;
} td_load_tokens;
void td_load_prompt(const td_load *l, const td_load_request *r, const td_load_tokens *t, td_buf *out);

/* ---- lengths ---- */

typedef enum td_load_shape {
  TD_LOAD_FIXED,
  TD_LOAD_UNIFORM,
  TD_LOAD_LOGNORMAL,
  TD_LOAD_EXPONENTIAL,
  TD_LOAD_NORMAL
} td_load_shape;

typedef struct td_load_length {
  td_load_shape shape;
  double a, b; /* FIXED: value; UNIFORM: from, to; LOGNORMAL, NORMAL: mean, deviation (of the lengths);
                  EXPONENTIAL: mean */
  double min, max;
} td_load_length;

/* Parses "1024", "uniform:A:B", "lognormal:MEAN:SD[:MIN:MAX]", "normal:MEAN:SD[:MIN:MAX]" or
 * "exp:MEAN[:MIN:MAX]". */
TD_MUST_CHECK td_status td_load_read_length(const char *text, td_load_length *out, td_error *err);
uint32_t td_load_draw_length(const td_load_length *len, td_random *r);

/* ---- whole loads ---- */

/* Poisson arrivals at `rate` for `seconds`, at most max_requests (0: no bound). rate 0: max_requests that
 * are all due at the start. Arrivals, prompt lengths and answer lengths have separate random streams, so
 * that the requests stay the same if rate or duration changes. */
typedef struct td_load_spec {
  uint64_t seed;
  double rate, seconds;
  size_t max_requests;
  td_load_length in, out;
} td_load_spec;
void td_load_make(td_load *l, const td_load_spec *spec);

/* Reads a trace in Mooncake's format: each line is a JSON object with timestamp (ms), input_length,
 * output_length and optionally hash_ids, one for each block of 512 tokens. Equal ids give equal blocks.
 * speed 2 halves the times between arrivals. */
enum { TD_LOAD_TRACE_BLOCK = 512 };
TD_MUST_CHECK td_status td_load_read_trace(td_load *l, const char *path, double speed, size_t max_requests,
                                           td_error *err);

#endif
