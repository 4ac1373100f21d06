/* Planning a step: all decodes, and admission. prompts.c chooses the chunks that fill the budget.
 *
 * One idea keeps it free of deadlock. Decodes take pages in the order in which they were started. If there
 * is no page, a request later in this order is preempted, which has not been planned yet. So the first
 * always goes on. Prefills take only the pages that they were promised at admission, and admission
 * promises only pages that are there. (SARATHI, section 4.) */
#include <string.h>

#include "scheduler/internal.h"

/* Steps before a refused front is looked up in the tree again, because that walks over its prompt. */
enum { REFUSED_RETRY_STEPS = 16 };

static void add_page_updates(td_plan *plan, uint32_t first, uint32_t n)
{
  TD_BUG_ON(n > plan->max_page_updates - plan->n_page_updates);
  td_plan_page_update *updates = plan->page_updates + plan->n_page_updates;
  for (uint32_t i = 0; i < n; i++)
    updates[i].index = first + i;
  plan->n_page_updates += n;
}

static uint32_t adapter_of(const td_sched *s, uint32_t slot, const td_request *r)
{
  return r->has_wants ? td_sched_terms(s, r)->adapter : 0;
}

/* Adds logits entries for the last n tokens of the plan's last row. The request's last token is sampled
 * from. Tokens before it are scored: their target is the token that follows. */
static void add_logits(td_plan *plan, const td_request *r, uint32_t n)
{
  uint32_t row = plan->n_rows, q_len = plan->rows[row].q_len, end = plan->rows[row].kv_len;
  for (uint32_t i = n; i-- > 0;)
    td_plan_add_logits(plan, row, q_len - 1 - i,
                       end - i == r->n_tokens ? TD_SAMPLE_HERE : r->tokens[end - i]);
}

static void add_row(td_sched *s, td_plan *plan, uint32_t slot, uint32_t q_len)
{
  td_request *r = &s->table.requests[slot];
  td_plan_row *row = &plan->rows[plan->n_rows];
  *row = (td_plan_row){.slot = slot,
                       .q_start = plan->n_tokens,
                       .q_len = q_len,
                       .kv_len = r->n_computed + q_len,
                       .page_table_offset = r->stripe * s->stripe_pages,
                       .adapter = adapter_of(s, slot, r)};
  add_logits(plan, r, td_sched_chunk_logits(s, r, q_len));
  plan->n_rows++;
  plan->n_tokens += q_len;
}

/* The index in running[from ..] of the request to preempt: the one of least urgent priority, among equals the
 * one started last. */
static uint32_t find_victim(const td_sched *s, uint32_t from)
{
  uint32_t at = s->table.n_running - 1;
  for (uint32_t i = at; s->order.any_priority && i-- > from;)
    if (s->order.entries[s->table.running[i]].terms.priority >
        s->order.entries[s->table.running[at]].terms.priority)
      at = i;
  return at;
}

/* The request gives up its pages. Later it goes on from what the tree still has. */
static void preempt(td_sched *s, uint32_t at)
{
  uint32_t slot = s->table.running[at];
  td_request *r = &s->table.requests[slot];
  td_sched_release(s, r);
  s->table.histories[slot].n_preemptions++;
  s->n_preemptions++;
  td_request_table_stop(&s->table, at);
  /* The answer so far is computed again with the prompt. The prefix hit is assumed to stay in the tree. */
  s->order.entries[slot].is_light &=
      td_sched_is_light(s, r->n_tokens - s->table.histories[slot].n_cached_prompt);
  td_order_enter(&s->order, slot);
  td_sched_count_waiting(s, slot, 1);
  td_sched_refresh_deadline(s, slot);
}

void td_sched_preempt(td_sched *s, uint32_t slot)
{
  uint32_t at = 0;
  while (s->table.running[at] != slot)
    at++;
  preempt(s, at);
}

/* Gets a page that no prefill was promised for the decode running[at]. Returns false if the decode was
 * preempted itself. The first running request never is: alone, it fits. */
static bool get_decode_page(td_sched *s, td_plan *plan, uint32_t at)
{
  td_request *r = &s->table.requests[s->table.running[at]];
  while (td_sched_available_pages(s) <= s->reserved_pages) {
    TD_BUG_ON(s->table.n_running == 1);
    preempt(s, find_victim(s, at > 0 ? at : 1));
    if (r->state == TD_REQUEST_WAITING)
      return false;
  }
  add_page_updates(plan, td_sched_add_pages(s, r, 1), 1);
  return true;
}

/* Writes row n. The plan has only decodes so far, so it is also token n and logits entry n. */
static inline void put_decode(const td_sched *s, td_plan *plan, uint32_t n, uint32_t slot,
                              const td_request *r)
{
  plan->rows[n] = (td_plan_row){.slot = slot,
                                .q_start = n,
                                .q_len = 1,
                                .kv_len = r->n_tokens,
                                .page_table_offset = r->stripe * s->stripe_pages,
                                .n_logits = 1,
                                .adapter = adapter_of(s, slot, r)};
  plan->token_ids[n] = r->last_token;
  plan->positions[n] = (int32_t)r->n_computed;
  plan->logits[n] = (td_plan_logits){n, n, TD_SAMPLE_HERE};
}

/* Plans all decodes, and collects the running prefills on the way. Returns the number of prefills. */
static uint32_t plan_decodes(td_sched *s, td_plan *plan)
{
  uint32_t n_prefills = 0, n = 0;
  uint64_t kv_tokens = 0, n_pages = 0, others_pages = 0;
  TD_BUG_ON(plan->n_rows > 0);
  for (uint32_t i = 0; i < s->table.n_running; i++) { /* n_running falls when a request is preempted */
    uint32_t slot = s->table.running[i];
    td_request *r = &s->table.requests[slot];
    if (i + TD_REQUEST_PREFETCH < s->table.n_running)
      td_request_prefetch(&s->table.requests[s->table.running[i + TD_REQUEST_PREFETCH]]);
    if (r->state == TD_REQUEST_PREFILL) {
      s->prefills[n_prefills++] = slot;
      continue;
    }
    if (r->n_pages * s->config.page_tokens < r->n_tokens && !get_decode_page(s, plan, i)) {
      i--; /* running[i] is another request now, or the end */
      continue;
    }
    put_decode(s, plan, n++, slot, r);
    kv_tokens += r->n_tokens;
    n_pages += r->n_pages;
  }
  for (uint32_t i = 0; i < n_prefills; i++)
    others_pages += td_sched_unshared_pages(s, &s->table.requests[s->prefills[i]]);
  plan->repeated_kv_tokens = td_sched_repeated_kv(s, n_pages, others_pages);
  plan->n_rows = plan->n_tokens = plan->n_logits = plan->n_decode_rows = n;
  td_budget_add_decodes(&s->budget, n, kv_tokens - td_cost_saved_tokens(plan->repeated_kv_tokens));
  TD_BUG_ON(n + n_prefills != s->table.n_running); /* every running request is a planned decode or a
                                                    * prefill */
  return n_prefills;
}

/* How many tokens of [begin, end) are scored: those from the first whose logits are still wanted up to the
 * prompt's last but one. */
static uint32_t scored_between(const td_sched *s, const td_request *r, uint32_t begin, uint32_t end)
{
  uint32_t from = td_sched_first_required_token(s, r), last = r->n_prompt - 1;
  begin = begin < from ? from : begin;
  end = end > last ? last : end;
  return r->has_wants && end > begin ? end - begin : 0;
}

uint32_t td_sched_chunk_logits(const td_sched *s, const td_request *r, uint32_t q_len)
{
  uint32_t end = r->n_computed + q_len;
  return scored_between(s, r, r->n_computed, end) + (end == r->n_tokens);
}

/* The most tokens from n_computed on for which the step has logits left. A row always has room for one
 * logits entry, so a prompt advances in each step that it is in. */
static uint32_t longest_by_logits(const td_sched *s, const td_request *r, uint32_t n_computed)
{
  uint32_t rest = r->n_tokens - n_computed, from = td_sched_first_required_token(s, r);
  uint32_t n_before = from > n_computed ? from - n_computed : 0;
  uint64_t most = (uint64_t)n_before + 1 + s->config.prompt_logits - s->n_extra_logits;
  return most < rest ? (uint32_t)most : rest;
}

/* The predicted time includes the logits that the longest possible chunk wants. */
uint32_t td_sched_chunk_tokens(td_sched *s, const td_request *r, uint32_t n_computed)
{
  uint32_t most = longest_by_logits(s, r, n_computed), left = s->config.step_tokens - s->budget.work.n_tokens;
  uint32_t n_scored = scored_between(s, r, n_computed, n_computed + (most < left ? most : left));
  s->budget.work.n_logits += n_scored;
  uint32_t q_len = td_budget_chunk(&s->budget, n_computed, most);
  s->budget.work.n_logits -= n_scored;
  return q_len;
}

bool td_sched_plan_chunk(td_sched *s, td_plan *plan, uint32_t slot, uint32_t at_least, uint32_t at_most)
{
  td_request *r = &s->table.requests[slot];
  uint32_t q_len = td_sched_chunk_tokens(s, r, r->n_computed);
  if (q_len < at_least)
    q_len = at_least;
  if (q_len > at_most)
    q_len = at_most;
  if (q_len == 0)
    return false;
  uint32_t n_pages = td_sched_pages_for(s, r->n_computed + q_len);
  if (r->n_pages < n_pages) {
    uint32_t n_more = n_pages - r->n_pages;
    add_page_updates(plan, td_sched_add_pages(s, r, n_more), n_more);
    s->reserved_pages -= n_more;
  }
  memcpy(plan->token_ids + plan->n_tokens, r->tokens + r->n_computed, q_len * sizeof *plan->token_ids);
  int32_t *positions = plan->positions + plan->n_tokens, first = (int32_t)r->n_computed;
  for (uint32_t i = 0; i < q_len; i++)
    positions[i] = first + (int32_t)i;
  plan->n_prefill_tokens += q_len;
  add_row(s, plan, slot, q_len);
  uint32_t n_logits = plan->rows[plan->n_rows - 1].n_logits;
  s->n_extra_logits += n_logits > 1 ? n_logits - 1 : 0;
  td_budget_add_chunk(&s->budget, q_len, r->n_computed + q_len, n_logits);
  return true;
}

static void refuse(td_sched *s, uint32_t slot, uint32_t need)
{
  s->refused_seq = s->order.entries[slot].seq;
  s->refused_need_pages = need;
  s->refused_until_step = s->step + REFUSED_RETRY_STEPS;
}

static bool still_refused(const td_sched *s, uint32_t slot)
{
  return s->refused_seq == s->order.entries[slot].seq && s->step < s->refused_until_step &&
         !td_sched_pages_suffice(s, s->refused_need_pages);
}

/* Returns the account's first light request, if the front is not light and another prompt of the account
 * that is not light is being computed; otherwise the front. That shortens the running prompt's chunk by
 * little. The requests that wait are overtaken only by what the elder's share leaves (prompts.c). */
static uint32_t light_before(const td_sched *s, uint32_t front)
{
  const td_order_entry *e = &s->order.entries[front];
  uint32_t light = td_order_first_light(&s->order, e->terms.account);
  if (e->is_light || light == TD_NO_SLOT || s->order.entries[light].terms.priority > e->terms.priority)
    return front;
  for (uint32_t i = 0; i < s->n_prompts; i++) {
    const td_request *r = &s->table.requests[s->prefills[i]];
    if (r->state == TD_REQUEST_PREFILL && r->account == e->terms.account &&
        !s->order.entries[s->prefills[i]].is_light)
      return light;
  }
  return front;
}

/* In this order:
 * - The request that has a turn by what accounts hold (fair.h). In the step of that turn no other request
 *   starts, because otherwise the preempted request would be back immediately.
 * - If the front's account may not have a free place (places.h): the front among accounts that run nothing.
 * - The front, or a light request that goes before it. If this one lacks pages: a request that passes it
 *   (fair.h), if there is one. */
uint32_t td_sched_next_to_start(td_sched *s)
{
  uint32_t front = td_order_front(&s->order), n_free = td_sched_free_places(s);
  if (front == TD_NO_SLOT || n_free == 0)
    return TD_NO_SLOT;
  uint32_t beneficiary = td_fair_beneficiary(s);
  if (beneficiary != TD_NO_SLOT || s->fair.preempted_step == s->step)
    return beneficiary;
  if (!td_places_allow(&s->places, s->order.entries[front].terms.account, n_free))
    return td_order_front_of_idle(&s->order, s->places.n_running);
  uint32_t next = light_before(s, front),
           bypass = still_refused(s, next) ? td_fair_find_bypass(s, next) : TD_NO_SLOT;
  return bypass == TD_NO_SLOT ? next : bypass;
}

static void start(td_sched *s, td_plan *plan, uint64_t now_us, uint32_t slot, const td_prefix_hit *hit)
{
  td_request *r = &s->table.requests[slot];
  td_order_leave(&s->order, slot);
  td_sched_count_waiting(s, slot, -1);
  td_request_table_start(&s->table, slot);
  td_places_take(&s->places, r->account);
  r->stripe = s->free_stripes[--s->n_free_stripes];
  r->node = td_prefix_tree_pin_hit(&s->tree, hit, td_sched_stripe(s, r));
  r->n_pages = r->n_tree_pages = hit->n_pages;
  s->places.n_pages[r->account] += hit->n_pages;
  r->n_computed = hit->n_pages * s->config.page_tokens;
  s->reserved_pages += td_sched_reserved_for(s, r);
  add_page_updates(plan, r->stripe * s->stripe_pages, hit->n_pages);
  if (!r->has_run) {
    r->has_run = true;
    s->table.histories[slot].first_run_us = now_us;
    s->table.histories[slot].n_cached_prompt = r->n_computed;
    s->prefix_query_tokens += r->n_prompt;
    s->prefix_hit_tokens += r->n_computed;
    td_output_lengths_start(&s->answers, r->account, s->order.entries[slot].n_expected_uncached,
                            r->n_prompt - r->n_computed);
    td_order_charge(&s->order, r->account, r->n_prompt - r->n_computed); /* not again after a preemption */
  }
  if (slot == s->fair.beneficiary_slot)
    s->fair.beneficiary_slot = TD_NO_SLOT;
  s->prefills[s->n_prompts++] = slot;
  td_coalesce_claim(s, slot);
  td_sched_refresh_deadline(s, slot);
}

bool td_sched_admit(td_sched *s, td_plan *plan, uint64_t now_us, uint32_t at_most, uint32_t *hit_updates)
{
  uint32_t slot = td_sched_next_to_start(s);
  if (slot == TD_NO_SLOT || td_budget_left(&s->budget) == 0 || still_refused(s, slot) ||
      s->n_looked_up > s->max_hit_updates)
    return false;
  const td_request *r = &s->table.requests[slot];
  /* At least the last token is computed: the first sample needs its logits. */
  td_prefix_hit hit = td_prefix_tree_find(&s->tree, td_sched_terms(s, r)->namespace_id, r->tokens,
                                          td_sched_max_hit_pages(s, r));
  s->n_looked_up += hit.n_pages;
  if (td_coalesce_try(s, slot, &hit)) {
    s->n_looked_up += s->order.entries[slot].wake_pages - hit.n_pages;
    return true;
  }
  uint32_t need = td_sched_pages_for(s, r->n_tokens) - (hit.n_pages - hit.n_unpinned_pages);
  if (!td_sched_pages_suffice(s, need)) {
    refuse(s, slot, need);
    return td_sched_next_to_start(s) != slot; /* another request may pass it */
  }
  if (hit.n_pages > s->max_hit_updates - *hit_updates)
    return false; /* no room in this plan's update list; the next one starts empty */
  if (td_sched_chunk_tokens(s, r, hit.n_pages * s->config.page_tokens) == 0)
    return false;
  *hit_updates += hit.n_pages;
  start(s, plan, now_us, slot, &hit);
  return td_sched_plan_chunk(s, plan, slot, 0, at_most);
}

static void begin_plan(td_sched *s, td_plan *plan)
{
  td_plan_clear(plan);
  td_budget_begin(&s->budget);
  plan->step = ++s->step;
  s->n_looked_up = s->n_extra_logits = 0;
  for (uint32_t i = 0; i < s->n_pending_updates; i++)
    add_page_updates(plan, s->pending_updates[i], 1);
  s->n_pending_updates = 0;
}

static void finish_plan(td_sched *s, td_plan *plan)
{
  s->n_in_flight++;
  plan->page_table = s->page_table;
  plan->page_table_len = s->config.max_running * s->stripe_pages;
  /* Only now, so that an index that occurs twice (a stripe given up and taken again) has the same page. */
  for (uint32_t i = 0; i < plan->n_page_updates; i++)
    plan->page_updates[i].page_id = s->page_table[plan->page_updates[i].index];
}

/* Collects the running prefills without planning decodes. Returns their number. */
static uint32_t collect_prefills(td_sched *s)
{
  uint32_t n_prefills = 0;
  for (uint32_t i = 0; i < s->table.n_running; i++)
    if (s->table.requests[s->table.running[i]].state == TD_REQUEST_PREFILL)
      s->prefills[n_prefills++] = s->table.running[i];
  return n_prefills;
}

/* The prompts that a longer step would help: running ones, and waiting ones that find a place and pages. */
static td_budget_prompts prompts_to_come(td_sched *s)
{
  uint32_t next = td_sched_next_to_start(s), n_waiting = s->order.n_queued + s->order.n_following,
           n_free = td_sched_free_places(s);
  td_budget_prompts p = {s->n_prompts, 0};
  if (p.n > 0)
    p.n_computed = s->table.requests[s->prefills[0]].n_computed;
  if (next == TD_NO_SLOT || still_refused(s, next))
    return p;
  const td_order_entry *e = &s->order.entries[next];
  if (p.n == 0 && e->n_uncached > 0)
    p.n_computed = e->n_prompt - e->n_uncached;
  p.n += n_waiting < n_free ? n_waiting : n_free;
  return p;
}

bool td_sched_plan(td_sched *s, uint64_t now_us, td_plan *plan)
{
  TD_BUG_ON(s->n_in_flight != 0);
  TD_BUG_ON(plan->max_rows < s->config.max_running || plan->max_tokens < s->config.step_tokens ||
            plan->max_page_updates < s->max_page_updates);
  if (s->table.n_running + s->order.n_queued == 0) /* followers have a running leader */
    return false;
  begin_plan(s, plan);
  td_fair_rebalance(s);
  bool prefill_first = s->config.policy == TD_POLICY_PREFILL_FIRST;
  uint64_t n_preemptions = s->n_preemptions;
  s->n_prompts = prefill_first ? collect_prefills(s) : plan_decodes(s, plan);
  td_budget_end_decodes(&s->budget, prompts_to_come(s));
  bool admits = s->n_preemptions == n_preemptions; /* otherwise the victim would be back immediately */
  if (s->config.policy != TD_POLICY_DECODE_FIRST || plan->n_rows == 0)
    td_sched_plan_prompts(s, plan, now_us, admits);
  if (prefill_first && plan->n_rows == 0)
    plan_decodes(s, plan);
  TD_BUG_ON(plan->n_rows == 0);
  finish_plan(s, plan);
  return true;
}

/* Whether the request of a row in flight decodes once more, as far as is known. */
static bool decodes_again(const td_request *r, bool late)
{
  return td_request_runs(r) && (late || r->n_tokens + 1 < r->max_tokens);
}

/* Whether the row has one logits entry and is not a late prompt, which goes on as a prompt. */
static bool has_one_sample(const td_sched *s, const td_plan_row *row, bool late)
{
  const td_request *r = &s->table.requests[row->slot];
  return row->n_logits == 1 && (!late || r->state != TD_REQUEST_PREFILL);
}

/* A running prompt, one that may start, and a preemption all need a plan that is made after the commit. */
bool td_sched_may_plan_ahead(td_sched *s, const td_plan *plan, const uint8_t *late)
{
  TD_BUG_ON(s->n_in_flight != 1 || plan->step != s->step);
  uint32_t n_live = 0, n_pages = 0;
  bool any = false;
  if (plan->n_logits != plan->n_rows || plan->n_scored > 0)
    return false;
  if (s->order.n_following > 0) /* the commit may wake them */
    return false;
  if (td_fair_is_due(s, s->step + 1))
    return false;
  uint32_t next = td_sched_next_to_start(s);
  if (next != TD_NO_SLOT && !still_refused(s, next))
    return false;
  for (uint32_t i = 0; i < plan->n_rows; i++) {
    const td_request *r = &s->table.requests[plan->rows[i].slot];
    bool is_late = late && late[i]; /* each row has one entry: i is its number too */
    if (!has_one_sample(s, &plan->rows[i], is_late))
      return false;
    n_live += td_request_runs(r);
    if (!decodes_again(r, is_late))
      continue;
    any = true;
    n_pages += !is_late && plan->rows[i].kv_len % s->config.page_tokens == 0;
  }
  return any && n_live == s->table.n_running && td_sched_available_pages(s) >= n_pages + s->reserved_pages;
}

void td_sched_plan_ahead(td_sched *s, const td_plan *plan, const uint8_t *late, td_plan *next)
{
  TD_BUG_ON(plan == next || s->n_in_flight != 1 || plan->step != s->step);
  begin_plan(s, next);
  uint64_t n_pages = 0, others_pages = 0;
  for (uint32_t i = 0; i < plan->n_rows; i++) {
    const td_plan_row *before = &plan->rows[i];
    td_request *r = &s->table.requests[before->slot];
    bool is_late = late && late[i];
    uint32_t kv_len = before->kv_len + !is_late;
    if (!decodes_again(r, is_late)) {
      others_pages += td_request_runs(r) ? td_sched_unshared_pages(s, r) : 0;
      continue;
    }
    if (!is_late && before->kv_len % s->config.page_tokens == 0)
      add_page_updates(next, td_sched_add_pages(s, r, 1), 1);
    n_pages += r->n_pages;
    next->token_ids[next->n_tokens] = is_late ? r->last_token : -1 - (int32_t)i;
    next->positions[next->n_tokens] = (int32_t)kv_len - 1;
    next->rows[next->n_rows] = (td_plan_row){.slot = before->slot,
                                             .q_start = next->n_tokens++,
                                             .q_len = 1,
                                             .kv_len = kv_len,
                                             .page_table_offset = before->page_table_offset,
                                             .adapter = before->adapter};
    td_plan_add_sample(next, next->n_rows++);
  }
  next->n_decode_rows = next->n_rows;
  next->repeated_kv_tokens = td_sched_repeated_kv(s, n_pages, others_pages);
  finish_plan(s, next);
}
