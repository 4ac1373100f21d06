/* Chooses the prefill chunks that fill the budget which the decodes leave.
 *
 * Prompts go in order of slack: the latest time at which each has to go on, for running prompts and the front
 * of the queue alike. A prompt may always wait a share of its own remaining time (slack_percent). So a long
 * prompt that is late does not become urgent: it would block all that come then. A short prompt that comes
 * while a long one is computed goes before it. Among equals the one that was started first goes first.
 *
 * Two rules prevent starvation. A share of the budget is kept for the elder, the prompt that was started
 * first, whatever the others want. So it is done within four times the time that it takes alone. And a
 * long prompt that is late is started with one page beside longer ones, so that it does not block shorter
 * ones in the queue. */
#include "scheduler/internal.h"

enum {
  ELDER_SHARE = 4, /* the elder gets one part in four */
  /* Running prompts above which no request overtakes: each holds promised pages, and is sorted in each
   * step. */
  UNDER_WAY_MAX = 64,
  /* Running prompts from which on no prompt is started only to make way in the queue. */
  MAKE_WAY_MAX = 8
};

typedef struct elder {
  uint32_t slot;
  uint32_t q_len; /* tokens kept for it; 0: no longer */
  uint32_t kv_len;
  uint32_t n_logits;
} elder;

/* Only policies that may cut chunks anywhere go by slack. The others take prompts in the order in which
 * they were started. */
static bool orders_by_slack(const td_sched *s)
{
  return s->config.policy == TD_POLICY_TANDEM || s->config.policy == TD_POLICY_SARATHI;
}

static uint64_t latest_continue_us(const td_sched *s, uint64_t latest_start_us, uint64_t rest_us,
                                   uint64_t now_us)
{
  uint64_t us = now_us + rest_us * s->config.slack_percent / 100;
  return s->config.slack_percent == 0 || us < latest_start_us ? latest_start_us : us;
}

/* The time at which a running prompt, or the most urgent of its followers, has to go on. */
static uint64_t prompt_continue_by_us(const td_sched *s, uint32_t slot, uint64_t now_us)
{
  const td_request *r = &s->table.requests[slot];
  const td_order_entry *e = &s->order.entries[slot];
  uint64_t rest_us = td_sched_estimate_prompt_us(s, r->n_tokens - r->n_computed);
  uint64_t own_us = latest_continue_us(s, e->latest_start_us, rest_us, now_us);
  if (e->followers == TD_NO_SLOT)
    return own_us;
  uint32_t wanted = e->followers_pages * s->config.page_tokens,
           lack = wanted > r->n_computed ? wanted - r->n_computed : 0;
  uint64_t theirs_us = latest_continue_us(s, e->followers_us, td_sched_estimate_prompt_us(s, lack), now_us);
  return theirs_us < own_us ? theirs_us : own_us;
}

/* Insertion sort, because there are few prompts and most are in order already. Ties stay in the order in
 * which they were started. */
static void sort_by_slack(td_sched *s, uint64_t now_us)
{
  for (uint32_t i = 0; i < s->n_prompts; i++) {
    uint32_t slot = s->prefills[i], k = i;
    uint64_t us = prompt_continue_by_us(s, slot, now_us);
    for (; k > 0 && s->continue_by_us[k - 1] > us; k--) {
      s->continue_by_us[k] = s->continue_by_us[k - 1];
      s->prefills[k] = s->prefills[k - 1];
    }
    s->continue_by_us[k] = us;
    s->prefills[k] = slot;
  }
}

static elder reserve_for_elder(td_sched *s, uint32_t slot)
{
  const td_request *r = &s->table.requests[slot];
  uint32_t most = td_sched_chunk_tokens(s, r, r->n_computed);
  elder e = {.slot = slot, .q_len = (most + ELDER_SHARE - 1) / ELDER_SHARE};
  e.kv_len = r->n_computed + e.q_len;
  e.n_logits = e.q_len > 0 ? td_sched_chunk_logits(s, r, e.q_len) : 0;
  s->n_extra_logits += e.n_logits > 1 ? e.n_logits - 1 : 0;
  if (e.q_len > 0)
    td_budget_add_chunk(&s->budget, e.q_len, e.kv_len, e.n_logits);
  return e;
}

/* How many tokens of the front of the queue are computed before running prompt i. UINT32_MAX: as many as
 * there is room for. */
static uint32_t front_tokens_before(td_sched *s, uint32_t i, uint64_t now_us)
{
  const td_request *r = &s->table.requests[s->prefills[i]];
  uint32_t front = td_sched_next_to_start(s);
  if (front == TD_NO_SLOT || s->n_prompts > UNDER_WAY_MAX)
    return 0;
  const td_order_entry *e = &s->order.entries[front];
  if (latest_continue_us(s, e->latest_start_us, td_sched_estimate_prompt_us(s, e->n_uncached), now_us) <
      s->continue_by_us[i])
    return UINT32_MAX;
  bool blocks = s->order.n_queued > 1 && e->latest_start_us < now_us;
  bool takes_all = r->n_tokens - r->n_computed > s->config.step_tokens;
  return s->config.slack_percent > 0 && blocks && takes_all && s->n_prompts < MAKE_WAY_MAX
             ? s->config.page_tokens
             : 0;
}

void td_sched_plan_prompts(td_sched *s, td_plan *plan, uint64_t now_us, bool admits)
{
  uint32_t n_running = s->n_prompts, hit_updates = 0, most;
  bool by_slack = orders_by_slack(s) && n_running <= 2 * UNDER_WAY_MAX;
  elder e = {.slot = TD_NO_SLOT};
  if (by_slack && n_running > 0) {
    uint32_t first = s->prefills[0];
    sort_by_slack(s, now_us);
    if (s->prefills[0] != first || (admits && front_tokens_before(s, 0, now_us) > 0))
      e = reserve_for_elder(s, first);
  }
  for (uint32_t i = 0; i < n_running;) {
    uint32_t slot = s->prefills[i], at_least = 0;
    if (by_slack && admits && (most = front_tokens_before(s, i, now_us)) > 0) {
      admits = td_sched_admit(s, plan, now_us, most, &hit_updates);
      continue;
    }
    if (slot == e.slot && e.q_len > 0) {
      td_budget_remove_chunk(&s->budget, e.q_len, e.kv_len, e.n_logits);
      s->n_extra_logits -= e.n_logits > 1 ? e.n_logits - 1 : 0;
      at_least = e.q_len;
      e.q_len = 0;
    }
    if (!td_sched_plan_chunk(s, plan, slot, at_least, UINT32_MAX)) {
      admits = false;
      if (e.q_len == 0) /* nothing for the prompts after it either */
        return;
    }
    i++;
  }
  while (admits)
    admits = td_sched_admit(s, plan, now_us, UINT32_MAX, &hit_updates);
}
