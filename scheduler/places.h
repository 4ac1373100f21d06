/* What accounts hold, places of a step and pages; and who may have a place: an account that runs some already
 * leaves free ones to those that run none.
 *
 * Which account is next says order.h; but a place is held for a whole answer, and somebody is preempted for
 * another account only now and then (fair.h). So before an account gets its second place and further ones, as
 * many stay free as there are accounts that may come and run nothing, an eighth of all places at most. Its
 * first place may be one of these. With one account nothing is kept. */
#ifndef TD_SCHEDULER_PLACES_H
#define TD_SCHEDULER_PLACES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

enum { TD_PLACES_KEPT_SHARE = 8 }; /* one part in so many, one place at least, and never all */

typedef struct td_places {
  uint32_t *n_running; /* [n_ids] */
  uint32_t *n_pages;   /* [n_ids] of those that run; one that several share counts for each */
  uint32_t n_holders;  /* accounts with somebody running */
  uint32_t n_accounts; /* that may come */
  uint32_t most_kept;
} td_places;

/* n_ids: account ids are below. False: no memory. */
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

/* How many are kept for accounts that run nothing. */
static inline uint32_t td_places_kept(const td_places *p)
{
  uint32_t n_without = p->n_accounts > p->n_holders ? p->n_accounts - p->n_holders : 0;
  return n_without < p->most_kept ? n_without : p->most_kept;
}

/* May the account have one more of the free ones? */
static inline bool td_places_allow(const td_places *p, uint32_t account, uint32_t n_free)
{
  return n_free > (p->n_running[account] > 0 ? td_places_kept(p) : 0);
}

#endif
