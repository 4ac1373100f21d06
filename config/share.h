/* A budget that several share: who may take more of it.
 *
 * Dynamic thresholds (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
 * switches", IEEE/ACM Trans. Networking 1998): a holder may take more while what it would hold is at most
 * TD_SHARE_ALPHA times what would be left. So one alone gets 3/4, k of them alpha / (1 + alpha k) each, and
 * something is always left: whatever the others did before, beside k of them nobody is refused who would
 * hold at most alpha / (1 + alpha)^(k+1) of the total. What is held comes back as it is used up; nothing is
 * taken away. */
#ifndef TD_CONFIG_SHARE_H
#define TD_CONFIG_SHARE_H

#include <stdbool.h>
#include <stdint.h>

enum { TD_SHARE_ALPHA = 3 };

/* taken: by all, of the total; held: of it, by the one that wants `more`. The first unit is given while there
 * is one. */
static inline bool td_share_allows(uint64_t total, uint64_t taken, uint64_t held, uint64_t more)
{
  if (taken > total || more > total - taken)
    return false;
  return held + more <= 1 || held + more <= TD_SHARE_ALPHA * (total - taken - more);
}

/* What one alone may hold. */
static inline uint64_t td_share_most(uint64_t total)
{
  uint64_t most = total - (total + TD_SHARE_ALPHA) / (TD_SHARE_ALPHA + 1);
  return most > 0 || total == 0 ? most : 1;
}

#endif
