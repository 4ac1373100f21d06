/* Dividing a budget among several holders: who may take more.
 *
 * Dynamic thresholds (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
 * switches", IEEE/ACM Trans. Networking 1998): a holder may take more if it would then hold at most
 * TD_SHARE_ALPHA times what would be left. So a single holder gets at most 3/4, and k holders alpha / (1 +
 * alpha k) each. Something is always left: whatever k other holders did before, a further holder that would
 * hold at most alpha / (1 + alpha)^(k+1) of the total is not refused. Nothing is taken away from a holder;
 * the budget recovers as holders use theirs up. */
#ifndef TD_CONFIG_SHARE_H
#define TD_CONFIG_SHARE_H

#include <stdbool.h>
#include <stdint.h>

enum { TD_SHARE_ALPHA = 3 };

/* Whether a holder may take `more`. used: by all holders together; own: by this one. A holder without
 * anything always gets its first unit if one is left. */
static inline bool td_share_allows(uint64_t total, uint64_t used, uint64_t own, uint64_t more)
{
  if (used > total || more > total - used)
    return false;
  return own + more <= 1 || own + more <= TD_SHARE_ALPHA * (total - used - more);
}

/* The most that a single holder may have. */
static inline uint64_t td_share_most(uint64_t total)
{
  uint64_t most = total - (total + TD_SHARE_ALPHA) / (TD_SHARE_ALPHA + 1);
  return most > 0 || total == 0 ? most : 1;
}

#endif
