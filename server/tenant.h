/* Tenants: who shares this daemon with others.
 *
 * A tenant is an API key; where no keys are asked, an address (IPv4, or the /64 that its owner has in IPv6;
 * all of a Unix socket are one). Shared by tenant: worker time (workers.h) and bytes of bodies. Shared by
 * key, where there are several: room in the queue, and at the engine prompt tokens and places. Shares are
 * dynamic thresholds (config/share.h). */
#ifndef TD_SERVER_TENANT_H
#define TD_SERVER_TENANT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "server/address.h"
#include "server/auth.h"
#include "server/api_error.h"
#include "server/holders.h"
#include "server/rate.h"
#include "server/workers.h"

typedef struct td_server td_server;
typedef struct td_conn td_conn;

/* What a key has used since the start. */
typedef struct td_usage {
  uint64_t requests, refused; /* refused by limits of the key itself */
  uint64_t prompt_tokens, cached_tokens, generation_tokens;
} td_usage;

typedef struct td_tenant {
  const td_key *key;             /* NULL: none; also when it has been taken out of the key file */
  uint32_t account;              /* at the engine: the key's, 0: none */
  uint32_t n_reading, n_choices; /* its calls that workers have; choices at the engine */
  uint32_t n_waiting;            /* of these choices: without a first token */
  uint32_t n_asking;             /* of n_reading: those that will generate, and have a client */
  td_rate requests, tokens;      /* of a key that has such limits */
  td_usage usage;                /* of a key */
  uint64_t body_bytes;           /* being received, or held until they are read */
  uint64_t held_bytes;           /* of answers (held.h) */
  uint32_t held_at;              /* its place among the holders; 0: none */
  td_conn *conns;                /* doubly linked */
  uint32_t n_users;              /* connections and calls */
  td_work work;
  /* of an address only: */
  td_address ip;
  uint32_t ip_bucket;
  struct td_tenant *next;
} td_tenant;

typedef struct td_tenants {
  td_tenant *keys; /* [TD_KEY_ACCOUNTS + 1], by account; [0]: nobody's */
  uint32_t n_keys;
  bool by_address;       /* no keys are asked */
  td_tenant **addresses; /* [TD_IP_BUCKETS] those that connections or calls use */
  uint32_t n_addresses;
  td_tenant none; /* of connections before their first request */
  td_holders holders;
} td_tenants;

TD_MUST_CHECK td_status td_tenants_init(td_tenants *t, const td_keys *keys, td_error *err);
/* Those of the file that has been read again; keys: borrowed until the next has followed. */
void td_tenants_follow(td_tenants *t, const td_keys *keys);
void td_tenants_deinit(td_tenants *t);

/* Of a connection whose key has this account. The user gives it back by td_tenant_drop. NULL: no memory. */
td_tenant *td_tenant_of(td_tenants *t, const td_conn *c, uint32_t account);
td_tenant *td_tenant_share(td_tenant *tenant);         /* for one more user */
void td_tenant_drop(td_tenants *t, td_tenant *tenant); /* NULL: none */

/* Others than one may send work now, or may come; the latter is known of keys only. */
bool td_tenants_are_several(const td_tenants *t);

/* Is there room in the queue for n more? taken: of cap, by all. False: *e says whether all of it or this
 * key's share is full. */
bool td_tenant_may_queue(const td_tenants *t, const td_tenant *tenant, uint64_t cap, uint64_t taken,
                         uint64_t n, td_api_error *e);

#endif
