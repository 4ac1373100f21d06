/* On what terms a request is scheduled: plain data, set by the server once a request, carried by value as one
 * piece through engine and scheduler. A new term is a line here, where the server sets it (server/call.c),
 * and where it is used; nothing between looks at it.
 *
 * All 0 is a request of the only account there is: no priority, no deadline, no adapter. */
#ifndef TD_STEP_TERMS_H
#define TD_STEP_TERMS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct td_terms {
  uint64_t namespace_id;     /* prefix pages are shared only inside one */
  uint64_t ttft_deadline_us; /* CLOCK_MONOTONIC, 0: none; for the first token */
  uint64_t deadline_us;      /* the same, for the last one */
  uint32_t account;          /* who pays: accounts with requests waiting get equal shares of the device */
  int32_t priority;          /* lower is earlier, among the requests of an account */
  uint32_t adapter;          /* of the weights; 0: none, and no other is served yet */
  bool is_further_choice;    /* of the prompt submitted just before, in the same namespace */
} td_terms;

static inline uint64_t td_terms_or_never(uint64_t deadline_us)
{
  return deadline_us ? deadline_us : UINT64_MAX;
}

/* When the first token has to be there; UINT64_MAX: no deadline. */
static inline uint64_t td_terms_first_us(const td_terms *t)
{
  uint64_t ttft_us = td_terms_or_never(t->ttft_deadline_us), us = td_terms_or_never(t->deadline_us);
  return ttft_us < us ? ttft_us : us;
}

#endif
