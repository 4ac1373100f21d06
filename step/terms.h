/* On what terms a request is scheduled. This is plain data that the server sets once for each request, and
 * that engine and scheduler pass on by value, in one piece. A new term needs a line here, one where the
 * server sets it (server/call.c), and one where it is used. The code in between does not look at it.
 *
 * All 0 means a request of the only account, without priority, deadline or adapter. */
#ifndef TD_STEP_TERMS_H
#define TD_STEP_TERMS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct td_terms {
  uint64_t namespace_id;     /* prefix pages are shared only inside a namespace */
  uint64_t ttft_deadline_us; /* for the first token; CLOCK_MONOTONIC, 0: none */
  uint64_t deadline_us;      /* for the last token; likewise */
  uint32_t account;          /* who is billed: accounts with waiting requests get equal shares of the
                              * device */
  int32_t priority;          /* lower is earlier, among the requests of an account */
  uint32_t adapter;          /* 0: none. Other adapters are not served yet */
  bool is_further_choice;    /* has the prompt that was submitted just before, in the same namespace */
} td_terms;

static inline uint64_t td_terms_or_never(uint64_t deadline_us)
{
  return deadline_us ? deadline_us : UINT64_MAX;
}

/* The deadline of the first token; UINT64_MAX: none. */
static inline uint64_t td_terms_first_us(const td_terms *t)
{
  uint64_t ttft_us = td_terms_or_never(t->ttft_deadline_us), us = td_terms_or_never(t->deadline_us);
  return ttft_us < us ? ttft_us : us;
}

#endif
