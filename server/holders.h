/* The tenants that hold most memory of answers (held.h). A binary heap of all tenants that have connections
 * and hold some, so that neither look-ups nor updates scan all connections. */
#ifndef TD_SERVER_HOLDERS_H
#define TD_SERVER_HOLDERS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct td_tenant td_tenant;

typedef struct td_holders {
  td_tenant **heap; /* [1..n], max-heap by held_bytes: the parent of i is i / 2 */
  uint32_t n, capacity;
} td_holders;

/* Makes room for n tenants. Returns false if there is no memory; the heap is unchanged then. */
bool td_holders_reserve(td_holders *h, uint32_t n);
void td_holders_deinit(td_holders *h);
/* Call when t's held_bytes has changed, or whether t has connections: moves, adds or removes t. */
void td_holders_renew(td_holders *h, td_tenant *t);
/* The bytes of the tenant that holds most; 0 if none holds any. */
uint64_t td_holders_most(const td_holders *h);

#endif
