/* Which tenants hold most memory of answers (held.h): a binary heap of those that have connections and hold
 * some, so that neither asking nor counting looks at all connections. */
#ifndef TD_SERVER_HOLDERS_H
#define TD_SERVER_HOLDERS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct td_tenant td_tenant;

typedef struct td_holders {
  td_tenant **heap; /* [1..n]: none holds more than the one at half its index */
  uint32_t n, capacity;
} td_holders;

/* Room for so many tenants. False: no memory; what was there stays. */
bool td_holders_reserve(td_holders *h, uint32_t n);
void td_holders_deinit(td_holders *h);
/* What t holds has changed, or whether it has connections. */
void td_holders_renew(td_holders *h, td_tenant *t);
/* What the one that holds most holds; 0: nobody holds anything. */
uint64_t td_holders_most(const td_holders *h);

#endif
