/* Whose chunks fill the budget that the decodes leave.
 *
 * In order of slack: the moment at which each prompt has to go on at the latest, running prompts and the
 * front of the queue alike. A prompt may wait a share of its own remaining time (slack_percent), so one that
 * is behind its time has not become urgent, or a long one would block all that come then: it has as much time
 * as its rest is long. So a short prompt that comes while a long one is computed goes before it; among equals
 * the one that was started first does.
 *
 * Two things keep this from starving anybody. The elder, that is the prompt started first, is kept a share of
 * the budget, whatever the others want: it is done within four times of what it takes alone. And a long
 * prompt whose time has come is started beside longer ones by a page, so that it does not stand in the queue
 * before shorter ones. */
#include "scheduler/internal.h"

enum {
  ELDER_SHARE = 4, /* one part in so many */
  /* Prompts under way before nobody overtakes any more: each holds promised pages, and is sorted in each
     step. */
  UNDER_WAY_MAX = 64,
  /* Before nobody is started only to make way in the queue. */
  MAKE_WAY_MAX = 8
};

typedef struct elder {
  uint32_t slot;
  uint32_t q_len; /* kept for it; 0: not any more */
  uint32_t kv_len;
  uint32_t n_logits;
} elder;

/* Only where chunks may be cut as one likes; else in order of being started. */
static bool goes_by_slack(const td_sched *s)
{
  return s->config.policy == TD_POLICY_TANDEM || s->config.policy == TD_POLICY_SARATHI;
}

static uint64_t must_go_on_us(const td_sched *s, uint64_t latest_start_us, uint64_t rest_us, uint64_t now_us)
{
  uint64_t us = now_us + rest_us * s->config.slack_percent / 100;
  return s->config.slack_percent == 0 || us < latest_start_us ? latest_start_us : us;
}

/* Of a running prompt; of the most urgent that waits for it if that is earlier. */
static uint64_t turn_us(const td_sched *s, uint32_t slot, uint64_t now_us)
{
  const td_request *r = &s->table.requests[slot];
  const td_order_entry *e = &s->order.entries[slot];
  uint64_t rest_us = td_sched_order_us(s, r->n_tokens - r->n_computed);
  uint64_t own_us = must_go_on_us(s, e->latest_start_us, rest_us, now_us);
  if (e->followers == TD_NO_SLOT)
    return own_us;
  uint32_t wanted = e->followers_pages * s->config.page_tokens,
           lack = wanted > r->n_computed ? wanted - r->n_computed : 0;
  uint64_t theirs_us = must_go_on_us(s, e->followers_us, td_sched_order_us(s, lack), now_us);
  return theirs_us < own_us ? theirs_us : own_us;
}

/* Insertion: few, and many that come in order. Ties stay in the order of being started. */
static void sort_by_slack(td_sched *s, uint64_t now_us)
{
  for (uint32_t i = 0; i < s->n_prompts; i++) {
    uint32_t slot = s->prefills[i], k = i;
    uint64_t us = turn_us(s, slot, now_us);
    for (; k > 0 && s->turns_us[k - 1] > us; k--) {
      s->turns_us[k] = s->turns_us[k - 1];
      s->prefills[k] = s->prefills[k - 1];
    }
    s->turns_us[k] = us;
    s->prefills[k] = slot;
  }
}

static elder keep_for_elder(td_sched *s, uint32_t slot)
{
  const td_request *r = &s->table.requests[slot];
  uint32_t most = td_sched_chunk(s, r, r->n_computed);
  elder e = {.slot = slot, .q_len = (most + ELDER_SHARE - 1) / ELDER_SHARE};
  e.kv_len = r->n_computed + e.q_len;
  e.n_logits = e.q_len > 0 ? td_sched_chunk_logits(s, r, e.q_len) : 0;
  s->n_extra_logits += e.n_logits > 1 ? e.n_logits - 1 : 0;
  if (e.q_len > 0)
    td_budget_add_chunk(&s->budget, e.q_len, e.kv_len, e.n_logits);
  return e;
}

/* How much of the front of the queue is computed before the i-th of the running prompts: UINT32_MAX, as much
 * as there is room for; 0, nothing. */
static uint32_t overtakes_by(td_sched *s, uint32_t i, uint64_t now_us)
{
  const td_request *r = &s->table.requests[s->prefills[i]];
  uint32_t front = td_sched_next(s);
  if (front == TD_NO_SLOT || s->n_prompts > UNDER_WAY_MAX)
    return 0;
  const td_order_entry *e = &s->order.entries[front];
  if (must_go_on_us(s, e->latest_start_us, td_sched_order_us(s, e->n_uncached), now_us) < s->turns_us[i])
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
  bool by_slack = goes_by_slack(s) && n_running <= 2 * UNDER_WAY_MAX;
  elder e = {.slot = TD_NO_SLOT};
  if (by_slack && n_running > 0) {
    uint32_t first = s->prefills[0];
    sort_by_slack(s, now_us);
    if (s->prefills[0] != first || (admits && overtakes_by(s, 0, now_us) > 0))
      e = keep_for_elder(s, first);
  }
  for (uint32_t i = 0; i < n_running;) {
    uint32_t slot = s->prefills[i], at_least = 0;
    if (by_slack && admits && (most = overtakes_by(s, i, now_us)) > 0) {
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
      if (e.q_len == 0) /* nor for those behind */
        return;
    }
    i++;
  }
  while (admits)
    admits = td_sched_admit(s, plan, now_us, UINT32_MAX, &hit_updates);
}
