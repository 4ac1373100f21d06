/* Tenants: the users that share this daemon.
 *
 * A tenant is an API key. If the daemon asks for no keys, it is an address: IPv4, or an IPv6 /64, which has
 * one owner. All clients of the Unix socket are one tenant. Tenants share worker time (workers.h) and the
 * bytes of bodies and answers. If there are several keys, the keys also share the queue, and at the engine
 * prompt tokens and running places. The size of a share is a dynamic threshold (config/share.h). */
#ifndef TD_SERVER_TENANT_H
#define TD_SERVER_TENANT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "server/address.h"
#include "server/auth.h"
#include "server/api_error.h"
#include "server/answer_heap.h"
#include "server/rate.h"
#include "server/workers.h"

typedef struct td_server td_server;
typedef struct td_conn td_conn;

/* What a key has used since the daemon started. */
typedef struct td_usage {
  uint64_t requests, refused; /* refused by the key's own limits */
  uint64_t prompt_tokens, cached_tokens, generation_tokens;
} td_usage;

typedef struct td_tenant {
  const td_key *key;             /* NULL if it is no key, or one that was removed from the key file */
  uint32_t account;              /* the key's account at the engine; 0: none */
  uint32_t n_reading, n_choices; /* its calls that workers have; its choices at the engine */
  uint32_t n_waiting;            /* of n_choices: those without a first token */
  uint32_t n_to_generate;        /* of n_reading: calls that will generate and have a client */
  td_rate requests, tokens;      /* used if the key has such limits */
  td_usage usage;                /* kept for keys only */
  uint64_t body_bytes;           /* of bodies being received, or received and not yet read */
  uint64_t answer_memory_bytes;  /* of answers (answer_memory.h) */
  uint32_t answer_heap_index;    /* its index in the answer heap; 0: not in it */
  td_conn *conns;                /* doubly linked */
  uint32_t n_users;              /* connections and calls that refer to it */
  td_work work;
  /* for addresses only */
  td_address ip;
  uint32_t ip_bucket;
  struct td_tenant *next;
} td_tenant;

typedef struct td_tenants {
  td_tenant *keys; /* [TD_KEY_ACCOUNTS + 1] by account; [0] belongs to no key */
  uint32_t n_keys;
  bool by_address;       /* the daemon asks for no keys */
  td_tenant **addresses; /* [TD_IP_BUCKETS] lists of those in use */
  uint32_t n_addresses;
  td_tenant none; /* of connections before their first request */
  td_answer_heap answer_heap;
} td_tenants;

TD_MUST_CHECK td_status td_tenants_init(td_tenants *t, const td_keys *keys, td_error *err);
/* Adopts the keys of a file that was read again. Borrows `keys` until the next call. */
void td_tenants_set_keys(td_tenants *t, const td_keys *keys);
void td_tenants_deinit(td_tenants *t);

/* The tenant of a connection whose key has this account. The caller releases it by td_tenant_drop. Returns
 * NULL if there is no memory. */
td_tenant *td_tenant_of(td_tenants *t, const td_conn *c, uint32_t account);
td_tenant *td_tenant_ref(td_tenant *tenant);           /* adds a user */
void td_tenant_drop(td_tenants *t, td_tenant *tenant); /* tenant may be NULL */

/* Whether more than one tenant may send work. Keys count if they exist, addresses if they are connected. */
bool td_tenants_are_several(const td_tenants *t);

/* Whether the queue has room for n more requests. taken: how many of cap are taken by all tenants. If there
 * is no room, *e says whether the whole queue or only this key's share is full. */
bool td_tenant_may_queue(const td_tenants *t, const td_tenant *tenant, uint64_t cap, uint64_t taken,
                         uint64_t n, td_api_error *e);

#endif
