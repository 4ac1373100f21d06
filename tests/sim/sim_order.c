/* Which request is next, and which gives way, by brute force over all requests. The scheduler's heaps must
 * agree. */
#include "sim_world.h"

enum { KEPT_SHARE = 8 };
enum {
  ELDER_SHARE = 4,
  FOLLOWS_MAX = 8,
  PRIORITY_US_MAX = 3600 * 1000 * 1000u,
  UNMEASURED_NS = 100000
}; /* the README's */

static uint64_t ns_per_token(const sim_world *w)
{
  uint64_t ns = w->config.prompt_ns_per_token;
  if (ns == 0 && sim_cost_of(w))
    ns = (uint64_t)(0.75 * 1e3 * td_cost_tokens_us(sim_cost_of(w), w->config.step_tokens) /
                    w->config.step_tokens);
  return ns;
}

static uint64_t prompt_us(const sim_world *w, uint32_t n) { return n * ns_per_token(w) / 1000; }

/* Without a measured token time: the fastest step, which refuses no request. */
static uint64_t estimated_prompt_us(const sim_world *w, uint32_t n)
{
  uint64_t ns = ns_per_token(w), least = w->least_token_ns ? w->least_token_ns : UNMEASURED_NS;
  return n * (ns ? ns : least) / 1000;
}

/* Steps that took less than predicted make deadlines look nearer than they are. */
static uint64_t needed_us(const sim_world *w, uint32_t n)
{
  return (uint64_t)((double)prompt_us(w, n) * w->least_correction);
}

static uint32_t rest_of(const sim_world *w, uint32_t slot)
{
  return w->slots[slot].n_tokens - td_sched_slot(w->sched, slot).n_computed;
}

void sim_order_verify_place(sim_world *w, uint32_t i)
{
  sim_slot *slot = &w->slots[i];
  const td_sched_config *c = &w->config;
  double offset = (double)slot->terms.priority * (double)c->priority_us;
  offset = offset > PRIORITY_US_MAX            ? PRIORITY_US_MAX
           : offset < -(double)PRIORITY_US_MAX ? -(double)PRIORITY_US_MAX
                                               : offset;
  slot->place_us = td_sched_slot(w->sched, i).place_us;
  int64_t start = slot->place_us - (int64_t)offset, now = (int64_t)w->clock_us;
  int64_t latest = now + (int64_t)(estimated_prompt_us(w, slot->n_prompt) * c->slack_percent / 100);
  SIM_CHECK(w, start >= now && start <= latest);
  for (uint32_t n = slot->n_prompt; slot->terms.ttft_deadline_us == 0 && start != latest;
       n -= c->page_tokens) { /* whole pages are cached */
    SIM_CHECK(w, c->slack_percent > 0 && n > c->page_tokens);
    latest = now + (int64_t)(estimated_prompt_us(w, n - c->page_tokens) * c->slack_percent / 100);
  }
  SIM_CHECK(w, slot->terms.ttft_deadline_us == 0 || start == now ||
                   start <= (int64_t)slot->terms.ttft_deadline_us);
}

/* The state before the plan. */
void sim_order_record(sim_world *w)
{
  sim_fair_record(w);
  uint64_t least = UINT64_MAX, most = 0;
  for (uint32_t i = 0; i < SIM_ACCOUNTS; i++)
    w->served[i] = td_sched_account_served(w->sched, i);
  for (uint32_t i = 0; i < w->config.n_slots; i++) {
    sim_slot *slot = &w->slots[i];
    if (!slot->used)
      continue;
    td_sched_slot_info info = td_sched_slot(w->sched, i);
    slot->running = info.running;
    slot->following = info.following;
    slot->n_pages = info.n_pages;
    if (info.running || info.following)
      continue;
    least = w->served[slot->terms.account] < least ? w->served[slot->terms.account] : least;
    if (!w->jumped_queue[slot->terms.account])
      most = w->served[slot->terms.account] > most ? w->served[slot->terms.account] : most;
  }
  if (most <= least)
    return;
  /* An account was least served when it was last next. Since then at most the tokens of its running requests
   * were added. */
  double bound = w->config.max_context_tokens * (1.0 + (double)SIM_TOKEN_COST * w->config.max_running);
  double share = (double)(most - least) / bound;
  SIM_CHECK(w, share <= 1);
  if (share > w->totals->worst_share_of_lead)
    w->totals->worst_share_of_lead = share;
}

static bool is_before(const sim_world *w, const sim_slot *a, const sim_slot *b)
{
  uint64_t x = w->served[a->terms.account], y = w->served[b->terms.account];
  if (a->terms.account != b->terms.account)
    return x < y || (x == y && a->terms.account < b->terms.account);
  return a->place_us < b->place_us || (a->place_us == b->place_us && a->submit_seq < b->submit_seq);
}

/* Places by account. */
typedef struct places {
  uint32_t n_of[SIM_ACCOUNTS], n_running, n_holders, most_kept;
} places;

static places places_of(const sim_world *w)
{
  const td_sched_config *c = &w->config;
  places p = {.most_kept = c->max_running < 2 * KEPT_SHARE ? 1 : c->max_running / KEPT_SHARE};
  if (c->n_accounts < 2 || c->max_running == 1)
    p.most_kept = 0;
  for (uint32_t i = 0; i < c->n_slots; i++)
    if (w->slots[i].used && w->slots[i].running) {
      p.n_running++;
      p.n_holders += p.n_of[w->slots[i].terms.account]++ == 0;
    }
  return p;
}

/* For accounts that run nothing. */
static uint32_t kept(const sim_world *w, const places *p)
{
  uint32_t n = w->config.n_accounts > p->n_holders ? w->config.n_accounts - p->n_holders : 0;
  return n < p->most_kept ? n : p->most_kept;
}

static uint32_t front_of(const sim_world *w, const places *p, bool only_without)
{
  uint32_t front = SIM_MAX_SLOTS;
  for (uint32_t i = 0; i < w->config.n_slots; i++) {
    const sim_slot *slot = &w->slots[i];
    if (slot->used && !slot->running && !slot->following &&
        !(only_without && p->n_of[slot->terms.account] > 0) &&
        (front == SIM_MAX_SLOTS || is_before(w, slot, &w->slots[front])))
      front = i;
  }
  return front;
}

static bool is_light(const sim_world *w, uint32_t i) { return td_sched_slot(w->sched, i).is_light; }

/* The first light request of the front's account, if a request of that account that is not light is being
 * computed, and the front is neither light nor more urgent. */
static uint32_t light_before(const sim_world *w, uint32_t front)
{
  const sim_slot *f = &w->slots[front];
  uint32_t light = SIM_MAX_SLOTS;
  bool under_way = false;
  for (uint32_t i = 0; i < w->config.n_slots; i++) {
    const sim_slot *slot = &w->slots[i];
    if (!slot->used || slot->terms.account != f->terms.account)
      continue;
    under_way |= slot->running && !slot->answering && !is_light(w, i);
    if (!slot->running && !slot->following && is_light(w, i) &&
        (light == SIM_MAX_SLOTS || is_before(w, slot, &w->slots[light])))
      light = i;
  }
  bool passes = under_way && !is_light(w, front) && light < SIM_MAX_SLOTS &&
                w->slots[light].terms.priority <= f->terms.priority;
  return passes ? light : front;
}

uint32_t sim_order_front(const sim_world *w)
{
  places p = places_of(w);
  uint32_t front = front_of(w, &p, false), n_free = w->config.max_running - p.n_running;
  uint32_t turn = sim_fair_front(w);
  if (turn != SIM_MAX_SLOTS && n_free > 0)
    return turn;
  bool needs_free = front < SIM_MAX_SLOTS && p.n_of[w->slots[front].terms.account] > 0;
  if (needs_free && n_free <= kept(w, &p))
    return front_of(w, &p, true);
  return front < SIM_MAX_SLOTS ? light_before(w, front) : front;
}

/* A place is kept for accounts that run nothing. Returns true if this start took such a place. */
static bool verify_place(const sim_world *w, uint32_t i)
{
  places p = places_of(w); /* before the start */
  uint32_t n_free = w->config.max_running - p.n_running, account = (uint32_t)w->slots[i].terms.account;
  if (i == sim_fair_front(w)) { /* another request gave it */
    SIM_CHECK(w, n_free > 0);
    return false;
  }
  SIM_CHECK(w, n_free > 0 && (p.n_of[account] == 0 || n_free > kept(w, &p)));
  return p.n_of[account] == 0 && n_free <= kept(w, &p);
}

/* B was started while others wait, so it counts in their bound. */
static void count_for_others(sim_world *w, uint32_t b)
{
  for (uint32_t i = 0; i < w->config.n_slots; i++) {
    sim_slot *slot = &w->slots[i];
    if (!slot->used || slot->running || i == b || (slot->counted >> b & 1))
      continue;
    slot->counted |= UINT64_C(1) << b;
    slot->steps_allowed += w->slots[b].max_tokens;
    w->totals->account_turns += slot->terms.account != w->slots[b].terms.account;
  }
}

/* The page that a prompt computes next, if it is whole and before its last token: identified by the KV line
 * at its end. A request that starts and wants logits of a token in it must compute it in any case. */
static uint64_t next_page(const sim_world *w, uint32_t i, uint32_t n_computed, bool starts)
{
  uint32_t pt = w->config.page_tokens, end = (n_computed / pt + 1) * pt;
  const sim_slot *slot = &w->slots[i];
  bool must = starts && slot->scored_to + 1 < slot->n_prompt && end > slot->scored_to;
  return end < slot->n_tokens && !must ? slot->lines[end - 1] : 0;
}

/* No prompt begins a page that another one computes in the same step. */
static void verify_computed_once(sim_world *w, uint32_t starter, uint32_t n_computed)
{
  uint64_t page = next_page(w, starter, n_computed, true);
  if (!w->config.coalesces || page == 0 || td_sched_slot(w->sched, starter).n_follows == FOLLOWS_MAX)
    return;
  for (uint32_t i = 0; i < w->config.n_slots; i++)
    if (i != starter && w->slots[i].used && w->slots[i].running && !w->slots[i].answering)
      SIM_CHECK(w, next_page(w, i, td_sched_slot(w->sched, i).n_computed, false) != page);
}

/* A plan row for a slot that was not running starts it: it must have been next, except for those that follow
 * since then, and a front that lacks pages. */
static void verify_start(sim_world *w, uint32_t row)
{
  uint32_t i = w->plan->rows[row].slot, n_computed = w->plan->rows[row].kv_len - w->plan->rows[row].q_len;
  sim_slot *slot = &w->slots[i];
  uint32_t front;
  while ((front = sim_order_front(w)) != i) {
    SIM_CHECK(w, front != SIM_MAX_SLOTS);
    if (!td_sched_slot(w->sched, front).following) {
      SIM_CHECK(w, sim_fair_may_pass(w, front, row));
      w->totals->passed_fronts++;
      break;
    }
    w->slots[front].following = true;
    w->totals->follows++;
  }
  verify_computed_once(w, i, n_computed);
  td_sched_slot_info info = td_sched_slot(w->sched, i);
  if (!slot->has_run)
    w->served[slot->terms.account] += slot->n_prompt - info.n_cached_prompt;
  w->totals->kept_places += verify_place(w, i);
  places p = places_of(w);
  const sim_slot *first = &w->slots[front_of(w, &p, false)];
  w->jumped_queue[slot->terms.account] = first->terms.account != slot->terms.account;
  w->totals->light_first += first->terms.account == slot->terms.account && first != slot;
  if (i == sim_fair_front(w))
    w->beneficiary_seq = 0;
  slot->has_run = slot->running = true;
  slot->n_known = slot->n_tokens;
  slot->start_seq = ++w->next_start_seq;
  count_for_others(w, i);
}

/* Running requests are before it now, and may have been started when it did not wait. */
static void count_those_that_run(sim_world *w, sim_slot *slot)
{
  for (uint32_t k = 0; k < w->config.n_slots; k++)
    if (w->slots[k].used && td_sched_is_running(w->sched, k) && !(slot->counted >> k & 1)) {
      slot->counted |= UINT64_C(1) << k;
      slot->steps_allowed += w->slots[k].max_tokens;
    }
}

/* A preempted request had started later than the first, and no later one had a less urgent priority, unless
 * it was for another account. */
static bool verify_victims(sim_world *w, bool for_others)
{
  bool any = false;
  uint64_t first = UINT64_MAX;
  for (uint32_t i = 0; i < w->config.n_slots; i++)
    if (w->slots[i].used && w->slots[i].running && w->slots[i].start_seq < first)
      first = w->slots[i].start_seq;
  for (uint32_t i = 0; i < w->config.n_slots; i++) {
    sim_slot *slot = &w->slots[i];
    if (!slot->used || td_sched_slot(w->sched, i).n_preemptions == slot->n_preemptions)
      continue;
    SIM_CHECK(w, td_sched_slot(w->sched, i).n_preemptions == slot->n_preemptions + 1 && slot->running);
    SIM_CHECK(w, slot->start_seq != first && !td_sched_is_running(w->sched, i));
    if (for_others)
      count_those_that_run(w, slot);
    for (uint32_t k = 0; k < w->config.n_slots && !for_others; k++)
      if (w->slots[k].used && td_sched_is_running(w->sched, k) && w->slots[k].start_seq > slot->start_seq) {
        SIM_CHECK(w, w->slots[k].terms.priority < slot->terms.priority);
        w->totals->priority_victims++;
      }
    slot->n_preemptions++;
    slot->running = slot->answering = false;
    any = true;
  }
  return any;
}

/* The prompt that was started first gets its share of what the decodes leave, whatever other prompts want. */
static void verify_elder(sim_world *w, uint32_t elder, uint32_t rest)
{
  const td_plan *plan = w->plan;
  bool cut_at_will = w->config.policy == TD_POLICY_TANDEM || w->config.policy == TD_POLICY_SARATHI;
  uint32_t left = w->config.step_tokens - plan->n_decode_rows, most = rest < left ? rest : left, q_len = 0,
           at = 0;
  if (elder == SIM_MAX_SLOTS || !cut_at_will)
    return;
  for (uint32_t i = plan->n_decode_rows; i < plan->n_rows; i++)
    if (plan->rows[i].slot == elder) {
      q_len = plan->rows[i].q_len;
      at = i;
    }
  bool is_cut = w->slots[elder].scored_to + 1 < w->slots[elder].n_prompt; /* to the step's logits */
  SIM_CHECK(w, q_len > 0 && (is_cut || sim_cost_of(w) || q_len >= (most + ELDER_SHARE - 1) / ELDER_SHARE));
  w->totals->elder_kept += at > plan->n_decode_rows && q_len < most;
}

void sim_order_verify(sim_world *w)
{
  const td_plan *plan = w->plan;
  uint32_t n_fair_preempted = sim_fair_verify(w);
  bool preempted = verify_victims(w, n_fair_preempted > 0);
  uint32_t elder = SIM_MAX_SLOTS;
  for (uint32_t i = 0; i < w->config.n_slots; i++)
    if (w->slots[i].used && w->slots[i].running && !w->slots[i].answering &&
        (elder == SIM_MAX_SLOTS || w->slots[i].start_seq < w->slots[elder].start_seq))
      elder = i;
  verify_elder(w, elder, elder < SIM_MAX_SLOTS ? rest_of(w, elder) : 0);
  bool started = false;
  for (uint32_t i = 0; i < plan->n_rows; i++) {
    uint32_t slot = plan->rows[i].slot;
    bool starts = !w->slots[slot].running;
    w->totals->overtakes += !starts && started && i >= plan->n_decode_rows;
    if (starts) {
      SIM_CHECK(w, !preempted || (n_fair_preempted > 0 && slot == sim_fair_front(w)));
      verify_start(w, i);
    }
    started |= starts;
  }
  for (uint32_t i = 0; i < w->config.n_slots; i++) /* behind the last that was started */
    if (w->slots[i].used && !w->slots[i].following && td_sched_slot(w->sched, i).following) {
      SIM_CHECK(w, !w->slots[i].running && w->config.coalesces);
      w->slots[i].following = true;
      w->totals->follows++;
    }
  if (!preempted)
    sim_fair_verify_passed(w);
}

static uint64_t or_never(uint64_t us) { return us > 0 ? us : UINT64_MAX; }

/* The deadline of the first token, or of the end. */
static uint64_t first_deadline(const sim_slot *slot)
{
  uint64_t ttft = or_never(slot->terms.ttft_deadline_us), end = or_never(slot->terms.deadline_us);
  return slot->n_tokens > slot->n_prompt || end < ttft ? end : ttft;
}

void sim_order_expire(sim_world *w)
{
  td_sched_expired out[3]; /* so that it takes several calls */
  uint32_t n;
  do {
    uint32_t rest[SIM_MAX_SLOTS] = {0};
    for (uint32_t i = 0; i < w->config.n_slots; i++)
      rest[i] = w->slots[i].used ? rest_of(w, i) : 0;
    n = td_sched_expire(w->sched, w->clock_us, out, 3);
    for (uint32_t i = 0; i < n; i++) {
      sim_slot *slot = &w->slots[out[i].slot];
      bool answered = slot->n_tokens > slot->n_prompt;
      uint64_t need = answered ? 0 : needed_us(w, rest[out[i].slot]);
      SIM_CHECK(w, slot->used && out[i].has_run == slot->has_run && out[i].has_answer == answered);
      SIM_CHECK(w, w->clock_us + need > first_deadline(slot));
      w->totals->expired[answered ? 2 : slot->running]++;
      slot->used = slot->running = false;
    }
    td_sched_check(w->sched);
  } while (n == 3);
  uint64_t next = UINT64_MAX;
  for (uint32_t i = 0; i < w->config.n_slots; i++) {
    sim_slot *slot = &w->slots[i];
    if (!slot->used)
      continue;
    bool computing = td_sched_is_running(w->sched, i) && slot->n_tokens == slot->n_prompt;
    uint64_t need = computing ? needed_us(w, rest_of(w, i)) : 0;
    SIM_CHECK(w, first_deadline(slot) == UINT64_MAX ||
                     w->clock_us + need <= first_deadline(slot)); /* nobody late is left */
    next = first_deadline(slot) < next ? first_deadline(slot) : next;
  }
  SIM_CHECK(w, td_sched_next_expiry_us(w->sched) <= next && td_sched_next_expiry_us(w->sched) >= w->clock_us);
}
