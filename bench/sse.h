/* Event streams as completions servers send them: one JSON object in each "data:" line, and the meaning of
 * such an object.
 *
 * An event is one line here: no server of this kind splits its JSON. Comments and other fields are
 * ignored. */
#ifndef TD_BENCH_SSE_H
#define TD_BENCH_SSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"

enum { TD_SSE_LINE_MAX = 1 << 20 };

typedef struct td_sse {
  td_buf line; /* the incomplete line received so far */
} td_sse;

void td_sse_init(td_sse *s);
void td_sse_deinit(td_sse *s);
/* Takes received bytes. Calls on_data with the payload of every data line that they complete. False: a line
 * is too long. */
bool td_sse_feed(td_sse *s, const char *bytes, size_t n,
                 void (*on_data)(void *arg, const char *json, size_t n), void *arg);

typedef enum td_event_kind {
  TD_EVENT_NOTHING, /* usage alone, or no choice */
  TD_EVENT_TOKENS,
  TD_EVENT_MAYBE, /* ends the answer without text: may carry a last token, or none */
  TD_EVENT_DONE,  /* [DONE] */
  TD_EVENT_ERROR, /* the server reports an error */
  TD_EVENT_BAD,   /* not JSON, or not an object */
} td_event_kind;

typedef struct td_event {
  td_event_kind kind;
  uint32_t n_tokens; /* of TOKENS: the number of token ids, or 1 if there are none */
  bool counted;      /* n_tokens comes from token ids */
  bool has_usage;
  uint32_t usage_in, usage_out, usage_cached;
  char error[160];
} td_event;

void td_event_read(const char *json, size_t n, td_event *out);

#endif
