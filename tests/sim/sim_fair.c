/* Which account gives way to one that holds less, and which may pass a front, by brute force.
 * scheduler/fair.c must agree. Places are predicted exactly; for pages, only what is certain without the
 * tree. */
#include "sim_world.h"

enum { FAIR_STEPS = 16, FAIR_VICTIMS = 16, KEPT_SHARE = 8 }; /* the README's */

typedef struct holdings {
  uint32_t n_of[SIM_ACCOUNTS], pages_of[SIM_ACCOUNTS], n_running, n_holders;
  uint32_t promised; /* pages of prompts */
} holdings;

static uint32_t pages_for(const sim_world *w, uint32_t n_tokens)
{
  return (n_tokens + w->config.page_tokens - 1) / w->config.page_tokens;
}

/* Before the plan. */
static holdings count(const sim_world *w)
{
  holdings h = {{0}, {0}, 0, 0, 0};
  for (uint32_t i = 0; i < w->config.n_slots; i++) {
    const sim_slot *slot = &w->slots[i];
    if (!slot->used || !slot->running)
      continue;
    h.n_running++;
    h.n_holders += h.n_of[slot->terms.account]++ == 0;
    h.pages_of[slot->terms.account] += slot->n_pages;
    uint32_t all = pages_for(w, slot->n_tokens);
    h.promised += slot->answering || all < slot->n_pages ? 0 : all - slot->n_pages;
  }
  return h;
}

static bool waits(const sim_world *w, uint32_t i)
{
  const sim_slot *slot = &w->slots[i];
  return slot->used && !slot->running && !slot->following;
}

static bool is_poorer(const sim_world *w, const uint32_t *held, const sim_slot *a, const sim_slot *b)
{
  uint64_t x = a->terms.account, y = b->terms.account;
  if (x == y)
    return a->place_us < b->place_us || (a->place_us == b->place_us && a->submit_seq < b->submit_seq);
  if (held[x] != held[y])
    return held[x] < held[y];
  return w->served[x] < w->served[y] || (w->served[x] == w->served[y] && x < y);
}

/* Of the waiting requests, the next one of the account that holds least. */
static uint32_t poorest(const sim_world *w, const uint32_t *held)
{
  uint32_t best = SIM_MAX_SLOTS;
  for (uint32_t i = 0; i < w->config.n_slots; i++)
    if (waits(w, i) && (best == SIM_MAX_SLOTS || is_poorer(w, held, &w->slots[i], &w->slots[best])))
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

static uint32_t richest_but(const uint32_t *held, uint32_t account)
{
  uint32_t most = 0;
  for (uint32_t a = 0; a < SIM_ACCOUNTS; a++)
    if (a != account && held[a] > most)
      most = held[a];
  return most;
}

/* For any contents of the tree, and any promised pages. */
static bool pages_suffice(const sim_world *w, const holdings *h, uint32_t slot)
{
  uint32_t need = pages_for(w, w->slots[slot].n_tokens) + h->n_running;
  for (uint32_t i = 0; i < w->config.n_slots; i++)
    if (w->slots[i].used && w->slots[i].running && !w->slots[i].answering)
      need += pages_for(w, w->slots[i].n_tokens);
  return w->available_before >= need;
}

void sim_fair_record(sim_world *w)
{
  td_sched_stats st;
  td_sched_get_stats(w->sched, &st);
  w->available_before = st.pages_free + st.pages_cached;
}

/* No account's oldest request gives way, nor one of the account whose turn it is. */
static void verify_givers(const sim_world *w, const holdings *h, uint32_t taker)
{
  for (uint32_t i = 0; i < w->config.n_slots; i++) {
    const sim_slot *slot = &w->slots[i];
    if (!slot->used || td_sched_slot(w->sched, i).n_preemptions == slot->n_preemptions)
      continue;
    bool has_elder = false;
    for (uint32_t k = 0; k < w->config.n_slots; k++)
      has_elder |= w->slots[k].used && w->slots[k].running &&
                   w->slots[k].terms.account == slot->terms.account &&
                   w->slots[k].start_seq < slot->start_seq && td_sched_is_running(w->sched, k);
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

/* The README's bound in steps, including those planned ahead: the account that holds least and lacks a place
 * has one within FAIR_STEPS, if another account can give it. */
static void record_short(sim_world *w, const holdings *h, uint32_t slot, bool was_given)
{
  uint32_t account = slot == SIM_MAX_SLOTS ? SIM_ACCOUNTS : (uint32_t)w->slots[slot].terms.account;
  bool is_short = account < SIM_ACCOUNTS && !has_place(w, h, account) &&
                  richest_but(h->n_of, account) >= h->n_of[account] + 2 && pages_suffice(w, h, slot);
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

/* The turn of the account that runs least. */
static void verify_place_turn(sim_world *w, const holdings *h, uint32_t slot, uint32_t n_fair_preempted)
{
  uint32_t account = (uint32_t)w->slots[slot].terms.account;
  bool may_take = richest_but(h->n_of, account) >= h->n_of[account] + 2;
  if (!has_place(w, h, account)) {
    SIM_CHECK(w, may_take || n_fair_preempted == 0);
    SIM_CHECK(w, n_fair_preempted > 0 || !may_take || !pages_suffice(w, h, slot)); /* the bound */
    w->totals->turns_due += may_take && pages_suffice(w, h, slot);
  } else {
    SIM_CHECK(w, n_fair_preempted == 0 || !pages_suffice(w, h, slot));
    w->totals->turns_for_pages += n_fair_preempted > 0;
  }
}

/* Common whole pages of two prompts: at most these are pinned pages of the tree. */
static uint32_t common_pages(const sim_world *w, const sim_slot *a, const sim_slot *b)
{
  uint32_t pt = w->config.page_tokens, n = 0;
  while ((n + 1) * pt <= a->n_tokens && (n + 1) * pt <= b->n_tokens &&
         a->lines[(n + 1) * pt - 1] == b->lines[(n + 1) * pt - 1])
    n++;
  return n;
}

static uint32_t least_need(const sim_world *w, uint32_t slot)
{
  uint32_t shared = 0;
  for (uint32_t i = 0; i < w->config.n_slots; i++)
    if (w->slots[i].used && w->slots[i].running) {
      uint32_t n = common_pages(w, &w->slots[slot], &w->slots[i]);
      shared = n > shared ? n : shared;
    }
  return pages_for(w, w->slots[slot].n_tokens) - shared;
}

/* Among the account's requests other than its oldest: of the least urgent priority, the one started last. */
static uint32_t next_giver(const sim_world *w, uint32_t account, const bool *gone)
{
  uint32_t oldest = SIM_MAX_SLOTS, best = SIM_MAX_SLOTS;
  for (uint32_t i = 0; i < w->config.n_slots; i++) {
    const sim_slot *slot = &w->slots[i];
    if (slot->used && slot->running && slot->terms.account == account &&
        (oldest == SIM_MAX_SLOTS || slot->start_seq < w->slots[oldest].start_seq))
      oldest = i;
  }
  for (uint32_t i = 0; i < w->config.n_slots; i++) {
    const sim_slot *slot = &w->slots[i], *than = best == SIM_MAX_SLOTS ? NULL : &w->slots[best];
    if (slot->used && slot->running && slot->terms.account == account && i != oldest && !gone[i] &&
        (!than || slot->terms.priority > than->terms.priority ||
         (slot->terms.priority == than->terms.priority && slot->start_seq > than->start_seq)))
      best = i;
  }
  return best;
}

/* Whether it is certain that others can give what the request needs and still hold as much, even if the tree
 * has none of it and only pages outside the tree become free. */
static bool can_be_given(const sim_world *w, const holdings *before, uint32_t slot)
{
  holdings h = *before;
  bool gone[SIM_MAX_SLOTS] = {false};
  uint32_t account = (uint32_t)w->slots[slot].terms.account, need = pages_for(w, w->slots[slot].n_tokens);
  uint32_t available = w->available_before, n = 0;
  while (available < need + h.promised + h.n_running) {
    uint32_t most = account;
    for (uint32_t a = 0; a < SIM_ACCOUNTS; a++)
      if (a != account && h.n_of[a] > 0 && (most == account || h.pages_of[a] > h.pages_of[most]))
        most = a;
    uint32_t v = most == account ? SIM_MAX_SLOTS : next_giver(w, most, gone);
    if (v == SIM_MAX_SLOTS || n++ == FAIR_VICTIMS ||
        h.pages_of[most] - w->slots[v].n_pages < h.pages_of[account] + need)
      return false;
    const sim_slot *giver = &w->slots[v];
    uint32_t in_tree = giver->n_known / w->config.page_tokens, all = pages_for(w, giver->n_tokens);
    gone[v] = true;
    h.n_of[most]--;
    h.n_running--;
    h.pages_of[most] -= giver->n_pages;
    h.promised -= giver->answering || all < giver->n_pages ? 0 : all - giver->n_pages;
    available += giver->n_pages > in_tree ? giver->n_pages - in_tree : 0;
  }
  return true;
}

/* The turn of the account that owns fewest pages: others give the pages that it lacks, if these are certainly
 * enough; and the giver then owns no fewer than it. */
static void verify_page_turn(sim_world *w, const holdings *h, uint32_t slot, uint32_t n_fair_preempted)
{
  uint32_t account = (uint32_t)w->slots[slot].terms.account;
  bool may = has_place(w, h, account) && sim_fair_front(w) == SIM_MAX_SLOTS;
  bool must = may && w->available_before < least_need(w, slot) + h->promised + h->n_running &&
              can_be_given(w, h, slot);
  SIM_CHECK(w, n_fair_preempted == 0 || may);
  SIM_CHECK(w, n_fair_preempted > 0 || !must);
  w->totals->page_turns += n_fair_preempted > 0;
  w->totals->page_turns_due += must;
  for (uint32_t a = 0; a < SIM_ACCOUNTS; a++) {
    uint32_t given = 0;
    for (uint32_t i = 0; i < w->config.n_slots; i++)
      if (w->slots[i].used && w->slots[i].terms.account == a &&
          td_sched_slot(w->sched, i).n_preemptions != w->slots[i].n_preemptions)
        given += w->slots[i].n_pages;
    SIM_CHECK(w, given == 0 || count_victims(w) != n_fair_preempted ||
                     h->pages_of[a] - given > h->pages_of[account]);
  }
}

uint32_t sim_fair_verify(sim_world *w)
{
  td_sched_stats st;
  td_sched_get_stats(w->sched, &st);
  uint32_t n_fair_preempted = (uint32_t)(st.fair_preemptions - w->n_fair_preempted);
  holdings h = count(w);
  uint32_t slot = poorest(w, h.n_of);
  bool is_fair = w->config.n_accounts > 1 && w->config.policy == TD_POLICY_TANDEM,
       due = is_fair && slot != SIM_MAX_SLOTS && w->step >= w->next_turn_step;
  if (is_fair)
    record_short(w, &h, slot, n_fair_preempted > 0);
  w->n_fair_preempted = st.fair_preemptions;
  SIM_CHECK(w, due || n_fair_preempted == 0);
  if (!due)
    return 0;
  w->next_turn_step = w->step + FAIR_STEPS / 2;
  w->turn_by_pages = !w->turn_by_pages;
  if (w->turn_by_pages)
    verify_page_turn(w, &h, slot = poorest(w, h.pages_of), n_fair_preempted);
  else
    verify_place_turn(w, &h, slot, n_fair_preempted);
  if (n_fair_preempted == 0)
    return 0;
  if (count_victims(w) == n_fair_preempted) /* else decodes lacked pages too */
    verify_givers(w, &h, (uint32_t)w->slots[slot].terms.account);
  w->beneficiary_slot = slot;
  w->beneficiary_seq = w->slots[slot].submit_seq;
  w->beneficiary_until_step = w->step + FAIR_STEPS;
  w->totals->gave_way += n_fair_preempted;
  return n_fair_preempted;
}

/* What an account held when the plan had this many rows. */
static uint32_t pages_at(const sim_world *w, uint64_t account, uint32_t n_rows)
{
  uint32_t n = 0, pages[SIM_MAX_SLOTS] = {0};
  for (uint32_t i = 0; i < w->config.n_slots; i++)
    pages[i] = w->slots[i].used && w->slots[i].running ? w->slots[i].n_pages : 0;
  for (uint32_t i = 0; i < n_rows; i++) {
    uint32_t slot = w->plan->rows[i].slot, now = pages_for(w, w->plan->rows[i].kv_len);
    pages[slot] = now > pages[slot] ? now : pages[slot];
  }
  for (uint32_t i = 0; i < w->config.n_slots; i++)
    n += w->slots[i].terms.account == account ? pages[i] : 0;
  return n;
}

bool sim_fair_may_pass(const sim_world *w, uint32_t front, uint32_t row)
{
  const sim_slot *slot = &w->slots[w->plan->rows[row].slot];
  uint64_t account = slot->terms.account;
  for (uint32_t i = 0; i < w->config.n_slots; i++) /* it is the next of its account */
    if (waits(w, i) && !td_sched_slot(w->sched, i).following && w->slots[i].terms.account == account &&
        (w->slots[i].place_us < slot->place_us ||
         (w->slots[i].place_us == slot->place_us && w->slots[i].submit_seq < slot->submit_seq)))
      return false;
  return w->config.n_accounts > 1 && w->config.policy == TD_POLICY_TANDEM &&
         account != w->slots[front].terms.account &&
         pages_at(w, account, row) + pages_for(w, slot->n_tokens) <=
             pages_at(w, w->slots[front].terms.account, row);
}

/* An account that owned less than the front's before the plan, also counting its next request, and for which
 * there certainly are a place and pages. */
static bool is_held_up(const sim_world *w, uint32_t front)
{
  td_sched_stats st;
  td_sched_get_stats(w->sched, &st);
  holdings h = count(w); /* places as they are now */
  uint32_t promised = 0, pages_of[SIM_ACCOUNTS] = {0};
  for (uint32_t i = 0; i < w->config.n_slots; i++) {
    if (!w->slots[i].used || !w->slots[i].running)
      continue;
    uint32_t n = td_sched_slot(w->sched, i).n_pages, all = pages_for(w, w->slots[i].n_tokens);
    pages_of[w->slots[i].terms.account] += n;
    promised += w->slots[i].answering || all < n ? 0 : all - n;
  }
  bool tried[SIM_ACCOUNTS] = {false};
  for (;;) {
    uint32_t slot = SIM_MAX_SLOTS;
    for (uint32_t i = 0; i < w->config.n_slots; i++)
      if (waits(w, i) && !tried[w->slots[i].terms.account] &&
          (slot == SIM_MAX_SLOTS || is_poorer(w, pages_of, &w->slots[i], &w->slots[slot])))
        slot = i;
    if (slot == SIM_MAX_SLOTS)
      return false;
    uint32_t account = (uint32_t)w->slots[slot].terms.account, need = pages_for(w, w->slots[slot].n_tokens);
    tried[account] = true;
    if (account != w->slots[front].terms.account && has_place(w, &h, account) &&
        pages_of[account] + need <= h.pages_of[w->slots[front].terms.account] &&
        st.pages_free + st.pages_cached >= need + promised + h.n_running)
      return true;
  }
}

/* If only pages can have been short, no front delays such other accounts. */
void sim_fair_verify_passed(sim_world *w)
{
  const td_plan *plan = w->plan;
  uint32_t front = sim_order_front(w);
  bool judged = w->config.n_accounts > 1 && w->config.policy == TD_POLICY_TANDEM && !sim_cost_of(w) &&
                plan->n_tokens < w->config.step_tokens && front != SIM_MAX_SLOTS &&
                sim_fair_front(w) == SIM_MAX_SLOTS;
  SIM_CHECK(w, !judged || !is_held_up(w, front));
}

uint32_t sim_fair_front(const sim_world *w)
{
  uint32_t i = w->beneficiary_slot;
  bool valid = w->beneficiary_until_step >= w->step && w->beneficiary_seq > 0 && waits(w, i) &&
               w->slots[i].submit_seq == w->beneficiary_seq;
  return valid ? i : SIM_MAX_SLOTS;
}
