/* How many running places and pages each account holds, and whether it may have another place.
 *
 * order.h says which account is next. But a request holds its place for a whole answer, and is preempted
 * for another account only now and then (fair.h). So some free places are kept for accounts that may come
 * and run nothing: one for each, at most an eighth of all places. Only the first place of an account may
 * be a kept one. With one account no place is kept. */
#ifndef TD_SCHEDULER_PLACES_H
#define TD_SCHEDULER_PLACES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

enum { TD_PLACES_KEPT_SHARE = 8 }; /* at most 1 / 8 of all places are kept, but at least one, and never all */

typedef struct td_places {
  uint32_t *n_running; /* [n_ids] */
  uint32_t *n_pages;   /* [n_ids] of running requests; a shared page counts for each of them */
  uint32_t n_holders;  /* accounts that run something */
  uint32_t n_accounts; /* accounts that may come */
  uint32_t most_kept;
} td_places;

/* n_ids: account ids are below it. Returns false if there is no memory. */
TD_MUST_CHECK bool td_places_init(td_places *p, uint32_t n_accounts, uint32_t max_running, uint32_t n_ids);
void td_places_deinit(td_places *p);

static inline void td_places_take(td_places *p, uint32_t account)
{
  p->n_holders += p->n_running[account]++ == 0;
}

static inline void td_places_give(td_places *p, uint32_t account)
{
  p->n_holders -= --p->n_running[account] == 0;
}

/* Places that are kept for accounts that run nothing. */
static inline uint32_t td_places_kept(const td_places *p)
{
  uint32_t n_without = p->n_accounts > p->n_holders ? p->n_accounts - p->n_holders : 0;
  return n_without < p->most_kept ? n_without : p->most_kept;
}

/* Whether the account may have one more of the n_free places. */
static inline bool td_places_allow(const td_places *p, uint32_t account, uint32_t n_free)
{
  return n_free > (p->n_running[account] > 0 ? td_places_kept(p) : 0);
}

#endif
