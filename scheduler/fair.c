/* Which requests give way to an account that holds less: see fair.h. */
#include "scheduler/fair.h"

#include <string.h>

#include "scheduler/internal.h"

/* A turn being worked out. n_places_of, pages_of and the two totals: what is held if `victims` give way. */
typedef struct turn {
  uint32_t slot, account, need_pages;
  uint32_t n_places_of[TD_ACCOUNTS_MAX], pages_of[TD_ACCOUNTS_MAX];
  uint32_t victims[TD_FAIR_VICTIMS], n_victims;
  uint64_t available_pages, kept_pages;
} turn;

static turn begin_turn(const td_sched *s, uint32_t slot)
{
  const td_request *r = &s->table.requests[slot];
  td_prefix_hit hit = td_prefix_tree_find(&s->tree, td_sched_terms(s, r)->namespace_id, r->tokens,
                                          td_sched_max_hit_pages(s, r));
  turn t = {.slot = slot,
            .account = r->account,
            .need_pages = td_sched_pages_for(s, r->n_tokens) - (hit.n_pages - hit.n_unpinned_pages),
            .available_pages = td_sched_available_pages(s),
            .kept_pages = s->reserved_pages + s->table.n_running};
  memcpy(t.n_places_of, s->places.n_running, sizeof t.n_places_of);
  memcpy(t.pages_of, s->places.n_pages, sizeof t.pages_of);
  return t;
}

static bool lacks_place(const td_sched *s, const turn *t)
{
  return t->n_victims == 0 && !td_places_allow(&s->places, t->account, td_sched_free_places(s));
}

static bool lacks_pages(const turn *t) { return t->available_pages < t->need_pages + t->kept_pages; }

/* The other account that holds most of what is short; t->account if no other account runs anything. */
static uint32_t find_richest(const td_sched *s, const turn *t, const uint32_t *held)
{
  uint32_t most = t->account;
  for (uint32_t i = 0; i < s->table.n_running; i++) {
    uint32_t a = s->table.requests[s->table.running[i]].account;
    if (a != t->account &&
        (most == t->account || held[a] > held[most] || (held[a] == held[most] && a < most)))
      most = a;
  }
  return most;
}

static bool is_victim(const turn *t, uint32_t slot)
{
  uint32_t i = 0;
  while (i < t->n_victims && t->victims[i] != slot)
    i++;
  return i < t->n_victims;
}

/* The account's running request to preempt, never its oldest: the one of least urgent priority, of equals
 * the one started last. TD_NO_SLOT: none. */
static uint32_t find_victim(const td_sched *s, const turn *t, uint32_t account)
{
  uint32_t victim = TD_NO_SLOT, n = 0;
  for (uint32_t i = 0; i < s->table.n_running; i++) {
    uint32_t slot = s->table.running[i];
    if (s->table.requests[slot].account != account || n++ == 0 || is_victim(t, slot))
      continue;
    if (victim == TD_NO_SLOT || td_sched_terms(s, &s->table.requests[slot])->priority >=
                                    td_sched_terms(s, &s->table.requests[victim])->priority)
      victim = slot;
  }
  return victim;
}

/* Adds one victim, if its account then still holds as much as the taker. Returns false if there is none. */
static bool add_victim(const td_sched *s, turn *t)
{
  bool by_place = lacks_place(s, t);
  uint32_t from = find_richest(s, t, by_place ? t->n_places_of : t->pages_of);
  uint32_t victim = from == t->account ? TD_NO_SLOT : find_victim(s, t, from);
  if (victim == TD_NO_SLOT || t->n_victims == TD_FAIR_VICTIMS)
    return false;
  const td_request *r = &s->table.requests[victim];
  bool stays_as_rich = by_place ? t->n_places_of[from] >= t->n_places_of[t->account] + 2
                                : t->pages_of[from] - r->n_pages >= t->pages_of[t->account] + t->need_pages;
  if (!stays_as_rich)
    return false;
  t->victims[t->n_victims++] = victim;
  t->n_places_of[from]--;
  t->pages_of[from] -= r->n_pages;
  t->available_pages += td_sched_unshared_pages(s, r); /* pages that other requests pin do not come free */
  t->kept_pages -= 1 + td_sched_reserved_for(s, r);
  return true;
}

static void preempt_victims(td_sched *s, const turn *t)
{
  td_fair *f = &s->fair;
  for (uint32_t i = 0; i < t->n_victims; i++)
    td_sched_preempt(s, t->victims[i]);
  f->n_preempted += t->n_victims;
  f->beneficiary_slot = t->slot;
  f->beneficiary_seq = s->order.entries[t->slot].seq;
  f->preempted_step = s->step;
  f->beneficiary_until_step = s->step + TD_FAIR_STEPS;
}

void td_fair_rebalance(td_sched *s)
{
  td_fair *f = &s->fair;
  if (!td_fair_is_due(s, s->step))
    return;
  f->next_turn_step = s->step + TD_FAIR_STEPS / 2;
  f->by_pages = !f->by_pages;
  if (f->by_pages && td_fair_beneficiary(s) != TD_NO_SLOT) /* it got a place and has not started yet */
    return;
  const td_places *p = &s->places;
  turn t = begin_turn(s, td_order_front_of_fewest(&s->order, f->by_pages ? p->n_pages : p->n_running));
  if (f->by_pages && lacks_place(s, &t))
    return;
  while (lacks_place(s, &t) || lacks_pages(&t))
    if (!add_victim(s, &t))
      return;
  if (t.n_victims > 0)
    preempt_victims(s, &t);
}

uint32_t td_fair_find_bypass(const td_sched *s, uint32_t front)
{
  const td_order *o = &s->order;
  const td_places *p = &s->places;
  uint32_t best = TD_NO_SLOT, least = 0, most = p->n_pages[o->entries[front].terms.account];
  for (uint32_t i = 0; td_fair_applies(s) && i < o->n_heap; i++) {
    uint32_t a = o->heap[i], slot = td_order_first(o, a), held = p->n_pages[a],
             need = td_sched_pages_for(s, s->table.requests[slot].n_tokens);
    bool is_first = best == TD_NO_SLOT || held < least || (held == least && o->served[a] < o->served[best]);
    if (is_first && held < most && need <= most - held && td_places_allow(p, a, td_sched_free_places(s)) &&
        td_sched_pages_suffice(s, need)) {
      best = a;
      least = held;
    }
  }
  return best == TD_NO_SLOT ? TD_NO_SLOT : td_order_first(o, best);
}

uint32_t td_fair_beneficiary(const td_sched *s)
{
  const td_fair *f = &s->fair;
  if (f->beneficiary_slot == TD_NO_SLOT || s->step > f->beneficiary_until_step)
    return TD_NO_SLOT;
  const td_order_entry *e = &s->order.entries[f->beneficiary_slot];
  bool waits = s->table.requests[f->beneficiary_slot].state == TD_REQUEST_WAITING && e->leader == TD_NO_SLOT;
  return waits && e->seq == f->beneficiary_seq ? f->beneficiary_slot : TD_NO_SLOT;
}
