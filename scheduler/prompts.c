/* Whose chunks fill the budget that the decodes leave.
 *
 * In order of the latest moment at which each had to start (slack): running prompts and the front of the queue alike, so a
 * short prompt that comes while a long one is computed goes before it. Against starvation the elder, that is the prompt started first, is
 * kept a share of the budget, whatever the others want: a prompt is done within four times of what it takes alone from
 * when those started before it are done. */
#include "scheduler/internal.h"

enum {
  ELDER_SHARE = 4, /* one part in so many */
  /* Prompts that are under way before nobody overtakes any more: each holds promised pages, and is sorted in each step. */
  UNDER_WAY_MAX = 32
};

typedef struct elder {
  uint32_t slot;
  uint32_t q_len; /* kept for it; 0: not any more */
  uint32_t kv_len;
  bool wants_logits;
} elder;

/* Insertion: nearly sorted, and few. Ties stay in the order of being started. */
static void sort_by_slack(td_sched *s)
{
  const td_order_entry *entries = s->order.entries;
  for (uint32_t i = 1; i < s->n_prompts; i++) {
    uint32_t slot = s->prefills[i], k = i;
    for (; k > 0 && entries[s->prefills[k - 1]].chunk_us > entries[slot].chunk_us; k--)
      s->prefills[k] = s->prefills[k - 1];
    s->prefills[k] = slot;
  }
}

static elder keep_for_elder(td_sched *s, uint32_t slot)
{
  const td_request *r = &s->table.requests[slot];
  uint32_t rest = r->n_tokens - r->n_computed, most = td_budget_chunk(&s->budget, r->n_computed, rest);
  elder e = {.slot = slot, .q_len = (most + ELDER_SHARE - 1) / ELDER_SHARE};
  e.kv_len = r->n_computed + e.q_len;
  e.wants_logits = e.kv_len == r->n_tokens;
  if (e.q_len > 0)
    td_budget_add_chunk(&s->budget, e.q_len, e.kv_len, e.wants_logits);
  return e;
}

static bool front_overtakes(td_sched *s, uint32_t slot)
{
  uint32_t front = td_order_front(&s->order);
  return front != TD_NO_SLOT && s->order.entries[front].latest_start_us < s->order.entries[slot].chunk_us;
}

/* By slack only where chunks may be cut as one likes. */
static bool goes_by_slack(const td_sched *s)
{
  return s->config.policy == TD_POLICY_TANDEM || s->config.policy == TD_POLICY_SARATHI;
}

void td_sched_plan_prompts(td_sched *s, td_plan *plan, uint64_t now_us, bool admits)
{
  uint32_t n_running = s->n_prompts, hit_updates = 0;
  bool overtaking = goes_by_slack(s) && n_running <= UNDER_WAY_MAX;
  elder e = {.slot = TD_NO_SLOT};
  if (goes_by_slack(s) && n_running > 0) {
    uint32_t first = s->prefills[0];
    sort_by_slack(s);
    if (s->prefills[0] != first || (admits && overtaking && front_overtakes(s, first)))
      e = keep_for_elder(s, first);
  }
  for (uint32_t i = 0; i < n_running;) {
    uint32_t slot = s->prefills[i], at_least = 0;
    if (admits && overtaking && front_overtakes(s, slot)) {
      admits = td_sched_admit(s, plan, now_us, &hit_updates);
      continue;
    }
    if (slot == e.slot && e.q_len > 0) {
      td_budget_remove_chunk(&s->budget, e.q_len, e.kv_len, e.wants_logits);
      at_least = e.q_len;
      e.q_len = 0;
    }
    if (!td_sched_plan_chunk(s, plan, slot, at_least)) {
      admits = false;
      if (e.q_len == 0) /* nor for those behind */
        return;
    }
    i++;
  }
  while (admits)
    admits = td_sched_admit(s, plan, now_us, &hit_updates);
}
