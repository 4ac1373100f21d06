/* Who gives way to an account that holds less, by brute force: what scheduler/fair.c must agree with. Places
 * are told exactly; of pages only what is certain from outside. */
#include "sim_world.h"

enum { FAIR_STEPS = 16, KEPT_SHARE = 8 }; /* the README's */

typedef struct holdings {
  uint32_t n_of[SIM_ACCOUNTS], n_running, n_holders;
} holdings;

static holdings count(const sim_world *w)
{
  holdings h = {{0}, 0, 0};
  for (uint32_t i = 0; i < w->config.n_slots; i++)
    if (w->slots[i].used && w->slots[i].running) {
      h.n_running++;
      h.n_holders += h.n_of[w->slots[i].terms.account]++ == 0;
    }
  return h;
}

static bool waits(const sim_world *w, uint32_t i)
{
  const sim_slot *slot = &w->slots[i];
  return slot->used && !slot->running && !slot->following;
}

static bool is_poorer(const sim_world *w, const holdings *h, const sim_slot *a, const sim_slot *b)
{
  uint64_t x = a->terms.account, y = b->terms.account;
  if (x == y)
    return a->place_us < b->place_us || (a->place_us == b->place_us && a->order < b->order);
  if (h->n_of[x] != h->n_of[y])
    return h->n_of[x] < h->n_of[y];
  return w->served[x] < w->served[y] || (w->served[x] == w->served[y] && x < y);
}

/* Of those that wait, the next of the account that runs fewest. */
static uint32_t poorest(const sim_world *w, const holdings *h)
{
  uint32_t best = SIM_MAX_SLOTS;
  for (uint32_t i = 0; i < w->config.n_slots; i++)
    if (waits(w, i) && (best == SIM_MAX_SLOTS || is_poorer(w, h, &w->slots[i], &w->slots[best])))
      best = i;
  return best;
}

static bool has_place(const sim_world *w, const holdings *h, uint32_t account)
{
  const td_sched_config *c = &w->config;
  uint32_t most = c->max_running == 1               ? 0
                  : c->max_running < 2 * KEPT_SHARE ? 1
                                                    : c->max_running / KEPT_SHARE,
           n_free = c->max_running - h->n_running;
  uint32_t without = c->n_accounts > h->n_holders ? c->n_accounts - h->n_holders : 0;
  return n_free > (h->n_of[account] == 0 ? 0 : without < most ? without : most);
}

static uint32_t richest_but(const holdings *h, uint32_t account)
{
  uint32_t most = 0;
  for (uint32_t a = 0; a < SIM_ACCOUNTS; a++)
    if (a != account && h->n_of[a] > most)
      most = h->n_of[a];
  return most;
}

static uint32_t pages_for(const sim_world *w, uint32_t n_tokens)
{
  return (n_tokens + w->config.page_tokens - 1) / w->config.page_tokens;
}

/* Whatever the tree has, and whatever was promised. */
static bool pages_suffice(const sim_world *w, const holdings *h, uint32_t slot)
{
  uint32_t need = pages_for(w, w->slots[slot].n_tokens) + h->n_running;
  for (uint32_t i = 0; i < w->config.n_slots; i++)
    if (w->slots[i].used && w->slots[i].running && !w->slots[i].answering)
      need += pages_for(w, w->slots[i].n_tokens);
  return w->available_before >= need;
}

void sim_fair_note(sim_world *w)
{
  td_sched_stats st;
  td_sched_get_stats(w->sched, &st);
  w->available_before = st.pages_free + st.pages_cached;
}

/* Nobody's oldest gives way, nor one of the account whose turn it is. */
static void verify_givers(const sim_world *w, const holdings *h, uint32_t taker)
{
  for (uint32_t i = 0; i < w->config.n_slots; i++) {
    const sim_slot *slot = &w->slots[i];
    if (!slot->used || td_sched_slot(w->sched, i).n_preemptions == slot->n_preemptions)
      continue;
    bool has_elder = false;
    for (uint32_t k = 0; k < w->config.n_slots; k++)
      has_elder |= w->slots[k].used && w->slots[k].running &&
                   w->slots[k].terms.account == slot->terms.account && w->slots[k].started < slot->started &&
                   td_sched_is_running(w->sched, k);
    SIM_CHECK(w, has_elder && slot->terms.account != taker && h->n_of[slot->terms.account] >= 2);
  }
}

static uint32_t count_victims(const sim_world *w)
{
  uint32_t n = 0;
  for (uint32_t i = 0; i < w->config.n_slots; i++)
    n += w->slots[i].used && td_sched_slot(w->sched, i).n_preemptions != w->slots[i].n_preemptions;
  return n;
}

/* The README's bound, in steps, those planned ahead too: whoever holds least and lacks a place has one within
 * FAIR_STEPS, if another account can give it. */
static void note_short(sim_world *w, const holdings *h, uint32_t slot, bool was_given)
{
  uint32_t account = slot == SIM_MAX_SLOTS ? SIM_ACCOUNTS : (uint32_t)w->slots[slot].terms.account;
  bool is_short = account < SIM_ACCOUNTS && !has_place(w, h, account) &&
                  richest_but(h, account) >= h->n_of[account] + 2 && pages_suffice(w, h, slot);
  if (w->short_since == 0 || account != w->short_account)
    w->short_since = is_short ? w->step : 0;
  w->short_account = account;
  if (!is_short)
    w->short_since = 0;
  if (w->short_since == 0)
    return;
  uint64_t steps = w->step - w->short_since;
  SIM_CHECK(w, steps <= FAIR_STEPS);
  if (steps > w->totals->longest_short_steps)
    w->totals->longest_short_steps = steps;
  if (was_given)
    w->short_since = 0;
}

uint32_t sim_fair_verify(sim_world *w)
{
  td_sched_stats st;
  td_sched_get_stats(w->sched, &st);
  uint32_t n_taken = (uint32_t)(st.fair_preemptions - w->n_taken);
  holdings h = count(w);
  uint32_t slot = poorest(w, &h);
  bool is_fair = w->config.n_accounts > 1 && w->config.policy == TD_POLICY_TANDEM,
       due = is_fair && slot != SIM_MAX_SLOTS && w->step >= w->next_turn;
  if (is_fair)
    note_short(w, &h, slot, n_taken > 0);
  w->n_taken = st.fair_preemptions;
  SIM_CHECK(w, due || n_taken == 0);
  if (!due)
    return 0;
  w->next_turn = w->step + FAIR_STEPS;
  uint32_t account = (uint32_t)w->slots[slot].terms.account;
  bool may_take = richest_but(&h, account) >= h.n_of[account] + 2;
  if (!has_place(w, &h, account)) {
    SIM_CHECK(w, may_take || n_taken == 0);
    SIM_CHECK(w, n_taken > 0 || !may_take || !pages_suffice(w, &h, slot)); /* the bound */
    w->totals->turns_due += may_take && pages_suffice(w, &h, slot);
  } else {
    SIM_CHECK(w, n_taken == 0 || !pages_suffice(w, &h, slot));
    w->totals->turns_for_pages += n_taken > 0;
  }
  if (n_taken == 0)
    return 0;
  if (count_victims(w) == n_taken) /* else decodes lacked pages too */
    verify_givers(w, &h, account);
  w->turn_slot = slot;
  w->turn_order = w->slots[slot].order;
  w->turn_until = w->step + FAIR_STEPS;
  w->totals->gave_way += n_taken;
  return n_taken;
}

uint32_t sim_fair_front(const sim_world *w)
{
  uint32_t i = w->turn_slot;
  bool valid =
      w->turn_until >= w->step && w->turn_order > 0 && waits(w, i) && w->slots[i].order == w->turn_order;
  return valid ? i : SIM_MAX_SLOTS;
}
