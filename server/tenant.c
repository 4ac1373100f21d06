/* Tenants: see tenant.h. */
#include "server/tenant.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "config/share.h"
#include "server/conn.h"

/* A debt is kept while its limit is unchanged. When the limit changes the debt is cut to one minute's worth,
 * because a debt made under a high limit could take hours to refill at a low rate. */
static void follow_limits(td_tenant *t, const td_key_limits *next)
{
  if (!t->key)
    return;
  const td_key_limits *now = &t->key->limits;
  if (next->requests_per_minute != now->requests_per_minute)
    td_rate_follow(&t->requests, next->requests_per_minute);
  if (next->tokens_per_minute != now->tokens_per_minute)
    td_rate_follow(&t->tokens, next->tokens_per_minute);
}

void td_tenants_set_keys(td_tenants *t, const td_keys *keys)
{
  t->n_keys = keys->n;
  for (uint32_t i = 0; i < keys->n; i++)
    follow_limits(&t->keys[keys->keys[i].account], &keys->keys[i].limits);
  for (uint32_t i = 0; i <= TD_KEY_ACCOUNTS; i++)
    t->keys[i].key = NULL;
  for (uint32_t i = 0; i < keys->n; i++)
    t->keys[keys->keys[i].account].key = &keys->keys[i];
}

td_status td_tenants_init(td_tenants *t, const td_keys *keys, td_error *err)
{
  *t = (td_tenants){.by_address = !keys->required};
  t->keys = calloc(TD_KEY_ACCOUNTS + 1, sizeof *t->keys);
  t->addresses = calloc(TD_IP_BUCKETS, sizeof *t->addresses);
  if (!t->keys || !t->addresses || !td_answer_heap_reserve(&t->answer_heap, TD_KEY_ACCOUNTS + 2))
    return td_fail(err, TD_ERR_NOMEM, "no memory for what keys share");
  for (uint32_t i = 0; i <= TD_KEY_ACCOUNTS; i++)
    t->keys[i].account = i;
  td_tenants_set_keys(t, keys);
  return TD_OK;
}

void td_tenants_deinit(td_tenants *t)
{
  TD_BUG_ON(t->n_addresses > 0);
  free(t->keys);
  free(t->addresses);
  td_answer_heap_deinit(&t->answer_heap);
  memset(t, 0, sizeof *t);
}

static td_tenant *find_address(td_tenants *t, const td_conn *c)
{
  td_tenant *tenant = t->addresses[c->client.bucket];
  while (tenant && memcmp(&tenant->ip, &c->client.ip, sizeof c->client.ip) != 0)
    tenant = tenant->next;
  return tenant;
}

td_tenant *td_tenant_of(td_tenants *t, const td_conn *c, uint32_t account)
{
  if (!t->by_address || !c->client.has_ip)
    return td_tenant_ref(&t->keys[account]);
  td_tenant *tenant = find_address(t, c);
  if (!tenant) {
    if (!td_answer_heap_reserve(&t->answer_heap, TD_KEY_ACCOUNTS + 2 + t->n_addresses + 1))
      return NULL;
    tenant = calloc(1, sizeof *tenant);
    if (!tenant)
      return NULL;
    tenant->ip = c->client.ip;
    tenant->ip_bucket = c->client.bucket;
    tenant->next = t->addresses[c->client.bucket];
    t->addresses[c->client.bucket] = tenant;
    t->n_addresses++;
  }
  return td_tenant_ref(tenant);
}

td_tenant *td_tenant_ref(td_tenant *tenant)
{
  tenant->n_users++;
  return tenant;
}

static bool is_address(const td_tenants *t, const td_tenant *tenant)
{
  return tenant < t->keys || tenant > t->keys + TD_KEY_ACCOUNTS;
}

void td_tenant_drop(td_tenants *t, td_tenant *tenant)
{
  if (!tenant || --tenant->n_users > 0 || !is_address(t, tenant))
    return;
  TD_BUG_ON(tenant->body_bytes > 0 || tenant->answer_memory_bytes > 0 || tenant->n_reading > 0 ||
            tenant->n_choices > 0 || tenant->conns);
  td_tenant **at = &t->addresses[tenant->ip_bucket];
  while (*at != tenant)
    at = &(*at)->next;
  *at = tenant->next;
  t->n_addresses--;
  free(tenant);
}

bool td_tenants_are_several(const td_tenants *t)
{
  uint32_t n_local = t->by_address && t->keys[0].n_users > 0; /* all clients of Unix sockets */
  return t->n_keys > 1 || t->n_addresses + n_local > 1;
}

bool td_tenant_may_queue(const td_tenants *t, const td_tenant *tenant, uint64_t cap, uint64_t taken,
                         uint64_t n, td_api_error *e)
{
  uint64_t n_of_tenant = (uint64_t)tenant->n_reading + tenant->n_choices;
  if (taken + n > cap) {
    td_api_error_set(e, 429, "queue_full", NULL, "the queue is full: %" PRIu64 " requests wait or run",
                     taken);
    return false;
  }
  if (t->n_keys < 2 || td_share_allows(cap, taken, n_of_tenant, n))
    return true;
  td_api_error_set(e, 429, "queue_full", NULL,
                   "your requests already take %" PRIu64 " of %" PRIu64 " places in the queue; "
                   "what is left is for other keys",
                   n_of_tenant, cap);
  return false;
}
