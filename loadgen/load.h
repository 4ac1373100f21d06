/* A load: requests with the moment each is due, its prompt as a recipe, and the answer's length.
 *
 * A prompt is a list of segments, each a seed and a length: equal seeds give equal tokens, so shared prefixes
 * are shared segments, and a load of gigabytes of prompts takes kilobytes. Token values are made up when a
 * request is sent. */
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
  double due_s; /* after the run's begin; not looked at by closed streams */
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
void td_load_begin(td_load *l, double due_s, uint32_t n_out);           /* a request with an empty prompt */
void td_load_segment_add(td_load *l, uint64_t seed, uint32_t n_tokens); /* to the last request */
void td_load_again(td_load *l, size_t i, uint32_t n_out);               /* request i's prompt once more */

/* Prompts as the server gets them: a JSON array of ids in [first, vocab), or a JSON string of one word a
 * token. */
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
  double a, b; /* FIXED value; UNIFORM from, to; LOGNORMAL, NORMAL mean, deviation (of the lengths);
                  EXPONENTIAL mean */
  double min, max;
} td_load_length;

/* "1024", "uniform:A:B", "lognormal:MEAN:SD[:MIN:MAX]", "normal:MEAN:SD[:MIN:MAX]", "exp:MEAN[:MIN:MAX]". */
TD_MUST_CHECK td_status td_load_read_length(const char *text, td_load_length *out, td_error *err);
uint32_t td_load_draw(const td_load_length *len, td_random *r);

/* ---- whole loads ---- */

/* Requests at random moments (exponential gaps of mean 1 / rate) for `seconds`, at most max_requests (0: no
 * bound); rate 0: max_requests at once. Arrivals, prompts' lengths and answers' lengths have random streams
 * of their own, so that another rate or duration keeps the same requests. */
typedef struct td_load_spec {
  uint64_t seed;
  double rate, seconds;
  size_t max_requests;
  td_load_length in, out;
} td_load_spec;
void td_load_make(td_load *l, const td_load_spec *spec);

/* A trace of Mooncake's form: a JSON object a line with timestamp (ms), input_length, output_length, hash_ids
 * (one for each block of 512 tokens; optional). Equal ids give equal blocks. speed 2 halves the gaps between
 * arrivals. */
enum { TD_LOAD_TRACE_BLOCK = 512 };
TD_MUST_CHECK td_status td_load_read_trace(td_load *l, const char *path, double speed, size_t max_requests,
                                           td_error *err);

#endif
