/* Requests that wait for pages which a running prompt computes: see coalesce.h. */
#include "scheduler/coalesce.h"

#include <string.h>

#include "scheduler/internal.h"

static const int32_t *page_at(const td_sched *s, const td_request *r, uint32_t page)
{
  return r->tokens + (size_t)page * s->config.page_tokens;
}

static bool page_is_same(const td_sched *s, const td_request *a, const td_request *b, uint32_t page)
{
  return memcmp(page_at(s, a, page), page_at(s, b, page), s->config.page_tokens * sizeof *a->tokens) == 0;
}

/* ---- claims ---- */

static td_claim *first_claim(const td_sched *s, uint32_t hash) { return &s->claims[hash & s->claim_mask]; }

static td_claim *next_claim(const td_sched *s, const td_claim *c)
{
  return &s->claims[((uint32_t)(c - s->claims) + 1) & s->claim_mask];
}

/* Two running prompts may have the same next page (a leader left, and a follower overtook). Then both
 * claim it, and either is a good leader. */
static void add_claim(td_sched *s, uint32_t slot)
{
  const td_request *r = &s->table.requests[slot];
  if ((r->n_tree_pages + 1) * s->config.page_tokens > r->n_tokens)
    return;
  uint64_t namespace_id = td_sched_terms(s, r)->namespace_id;
  uint32_t hash = td_prefix_tree_hash(&s->tree, namespace_id, r->node, page_at(s, r, r->n_tree_pages));
  td_claim *c = first_claim(s, hash);
  while (c->step == s->step)
    c = next_claim(s, c);
  *c = (td_claim){s->step, hash, slot};
}

/* Only on the first look-up, because most steps admit no request. */
static void collect_claims(td_sched *s)
{
  if (s->claims_step == s->step)
    return;
  s->claims_step = s->step;
  for (uint32_t i = 0; i < s->n_prompts; i++)
    add_claim(s, s->prefills[i]);
}

void td_coalesce_claim(td_sched *s, uint32_t slot)
{
  if (s->claims_step == s->step)
    add_claim(s, slot);
}

static uint32_t find_claim(td_sched *s, const td_request *r, const td_prefix_hit *hit)
{
  collect_claims(s);
  uint64_t namespace_id = td_sched_terms(s, r)->namespace_id;
  uint32_t hash = td_prefix_tree_hash(&s->tree, namespace_id, hit->node, page_at(s, r, hit->n_pages));
  for (const td_claim *c = first_claim(s, hash); c->step == s->step; c = next_claim(s, c)) {
    const td_request *other = &s->table.requests[c->slot];
    if (c->hash == hash && other->node == hit->node && page_is_same(s, r, other, hit->n_pages) &&
        td_sched_terms(s, other)->namespace_id == namespace_id)
      return c->slot;
  }
  return TD_NO_SLOT;
}

/* ---- followers ---- */

static void link_follower(td_sched *s, uint32_t slot, uint32_t leader)
{
  td_order *o = &s->order;
  td_order_entry *e = &o->entries[slot], *l = &o->entries[leader];
  e->leader = leader;
  e->prev = TD_NO_SLOT;
  e->next = l->followers;
  if (e->next != TD_NO_SLOT)
    o->entries[e->next].prev = slot;
  l->followers = slot;
  if (e->next == TD_NO_SLOT || e->wake_pages < l->followers_pages)
    l->followers_pages = e->wake_pages;
  if (e->latest_start_us < l->followers_us)
    l->followers_us = e->latest_start_us;
  o->n_following++;
  o->waiting_prompt_tokens += e->n_prompt;
}

static void unlink_follower(td_sched *s, uint32_t slot)
{
  td_order *o = &s->order;
  td_order_entry *e = &o->entries[slot];
  *(e->prev == TD_NO_SLOT ? &o->entries[e->leader].followers : &o->entries[e->prev].next) = e->next;
  if (e->next != TD_NO_SLOT)
    o->entries[e->next].prev = e->prev;
  e->leader = TD_NO_SLOT;
  o->n_following--;
  o->waiting_prompt_tokens -= e->n_prompt;
}

static void find_most_urgent(td_sched *s, uint32_t leader)
{
  td_order_entry *l = &s->order.entries[leader];
  l->followers_us = UINT64_MAX;
  l->followers_pages = UINT32_MAX;
  for (uint32_t f = l->followers; f != TD_NO_SLOT; f = s->order.entries[f].next) {
    const td_order_entry *e = &s->order.entries[f];
    if (e->latest_start_us < l->followers_us)
      l->followers_us = e->latest_start_us;
    if (e->wake_pages < l->followers_pages)
      l->followers_pages = e->wake_pages;
  }
}

bool td_coalesce_try(td_sched *s, uint32_t slot, const td_prefix_hit *hit)
{
  const td_request *r = &s->table.requests[slot];
  td_order_entry *e = &s->order.entries[slot];
  uint32_t pt = s->config.page_tokens,
           wanted = td_sched_max_hit_pages(s, r); /* the last token is always computed */
  bool inside = hit->n_pages > 0 && hit->n_node_pages < s->tree.nodes[hit->node].n_pages;
  if (!s->config.coalesces || e->n_follows == TD_COALESCE_MAX || hit->n_pages >= wanted || inside)
    return false;
  uint32_t leader = find_claim(s, r, hit);
  if (leader == TD_NO_SLOT)
    return false;
  const td_request *l = &s->table.requests[leader];
  uint32_t n = hit->n_pages + 1;
  while (n < wanted && (n + 1) * pt <= l->n_tokens && page_is_same(s, r, l, n))
    n++;
  e->wake_pages = n;
  e->n_follows++;
  s->n_follows++;
  td_order_leave(&s->order, slot);
  link_follower(s, slot, leader);
  return true;
}

void td_coalesce_wake(td_sched *s, uint32_t leader, uint32_t n_tree_pages)
{
  uint32_t f = s->order.entries[leader].followers;
  if (f == TD_NO_SLOT)
    return;
  while (f != TD_NO_SLOT) {
    uint32_t next = s->order.entries[f].next;
    if (s->order.entries[f].wake_pages <= n_tree_pages) {
      unlink_follower(s, f);
      td_order_enter(&s->order, f);
    }
    f = next;
  }
  find_most_urgent(s, leader);
}

void td_coalesce_drop(td_sched *s, uint32_t slot)
{
  uint32_t leader = s->order.entries[slot].leader;
  unlink_follower(s, slot);
  find_most_urgent(s, leader);
}
