/* Create, destroy, submit, cancel and statistics of the scheduler. plan.c and commit.c make the steps. */
#include <math.h>
#include <stdlib.h>

#include "common/hash.h"
#include "config/limits.h"
#include "scheduler/internal.h"

/* A plan always has room for one whole stripe of prefix hits, so that any hit fits some step. At least
 * this many entries let several admissions of short contexts share a step. */
enum { MIN_HIT_UPDATES = 4096 };

/* Share of the cost model's time that a prompt is assumed to need at least, so that a calibration on a
 * busy day refuses no request. */
#define PROMPT_TIME_SHARE 0.75

/* The time of a prompt token, used by the order until a step was seen: between a GPU's and a CPU's. */
enum { UNMEASURED_NS_PER_TOKEN = 100000 };

const char *const td_policy_names[TD_POLICY_COUNT + 1] = {"tandem", "sarathi", "prefill-first",
                                                          "decode-first", "orca"};

enum { GPU_SLO_US = 50000, CPU_SLO_US = 100000, CPU_SLO_LEAST_US = 24000 };
static const double CPU_DECODE_TIMES = 3.4;

void td_sched_set_default_slo(td_sched_config *c, bool on_device)
{
  c->tbt_slo_us = on_device ? GPU_SLO_US : CPU_SLO_US;
  c->adaptive_slo = on_device ? (td_adaptive_slo){0} : (td_adaptive_slo){CPU_DECODE_TIMES, CPU_SLO_LEAST_US};
}

static td_status check_config(const td_sched_config *c, td_error *err)
{
  if (c->page_tokens != 16 && c->page_tokens != 32 && c->page_tokens != 64)
    return td_fail(err, TD_ERR_CONFIG, "page_tokens is %u, not 16, 32 or 64", c->page_tokens);
  if (c->n_slots == 0 || c->n_slots == UINT32_MAX)
    return td_fail(err, TD_ERR_CONFIG, "a scheduler of %u request slots", c->n_slots);
  if (c->max_running == 0)
    return td_fail(err, TD_ERR_CONFIG, "running_requests is 0");
  if (c->step_tokens < c->max_running)
    return td_fail(
        err, TD_ERR_CONFIG,
        "step_tokens (%u) is less than running_requests (%u): the decodes of a step would not fit it",
        c->step_tokens, c->max_running);
  if (c->n_pages == 0 || c->n_pages > INT32_MAX)
    return td_fail(err, TD_ERR_CONFIG, "a pool of %u KV pages", c->n_pages);
  if (c->max_context_tokens < 2 || c->max_context_tokens > td_limit_max(TD_LIMIT_CONTEXT_TOKENS))
    return td_fail(err, TD_ERR_CONFIG, "context_tokens is %u", c->max_context_tokens);
  return TD_OK;
}

/* The longest prompt + answer that context and pool allow. */
static uint32_t longest_request(const td_sched *s)
{
  uint64_t pool_tokens = (uint64_t)s->config.n_pages * s->config.page_tokens;
  return pool_tokens < s->config.max_context_tokens ? (uint32_t)pool_tokens : s->config.max_context_tokens;
}

static td_status size_tables(td_sched *s, td_error *err)
{
  const td_sched_config *c = &s->config;
  s->stripe_pages = td_sched_pages_for(s, longest_request(s));
  s->max_hit_updates = s->stripe_pages > MIN_HIT_UPDATES ? s->stripe_pages : MIN_HIT_UPDATES;
  /* A row of q tokens enters at most q / page_tokens + 1 pages, which gives `entered` for all rows. As
   * many pages were completed by the step before, and may have been switched to the tree's. */
  uint64_t entered = (uint64_t)c->step_tokens / c->page_tokens + c->max_running;
  uint64_t updates = 2 * entered + s->max_hit_updates;
  if ((uint64_t)s->stripe_pages * c->max_running > UINT32_MAX || updates > UINT32_MAX)
    return td_fail(err, TD_ERR_CONFIG, "page table too large: running_requests %u, %u pages each",
                   c->max_running, s->stripe_pages);
  s->max_pending_updates = (uint32_t)entered;
  s->max_page_updates = (uint32_t)updates;
  return TD_OK;
}

static bool allocate(td_sched *s)
{
  const td_sched_config *c = &s->config;
  if (!td_request_table_init(&s->table, c->n_slots, c->max_running) ||
      !td_page_pool_init(&s->pool, c->n_pages) ||
      !td_prefix_tree_init(&s->tree, &s->pool, c->page_tokens, c->hash_seed) ||
      (c->emits_page_events && !td_page_events_init(&s->page_events, c->n_pages)) ||
      !td_order_init(&s->order, c->n_slots) ||
      !td_places_init(&s->places, c->n_accounts, c->max_running, TD_ACCOUNTS_MAX) ||
      !td_output_lengths_init(&s->answers, TD_ACCOUNTS_MAX) || !td_deadlines_init(&s->deadlines, c->n_slots))
    return false;
  s->tree.events = c->emits_page_events ? &s->page_events : NULL;
  uint32_t n_claims = 2;
  while (n_claims < 2 * (uint64_t)c->max_running)
    n_claims *= 2;
  s->continue_by_us = calloc(c->max_running, sizeof *s->continue_by_us);
  s->claims = calloc(n_claims, sizeof *s->claims);
  s->claim_mask = n_claims - 1;
  s->page_table = calloc((size_t)c->max_running * s->stripe_pages, sizeof *s->page_table);
  s->free_stripes = calloc(c->max_running, sizeof *s->free_stripes);
  s->pending_updates = calloc(s->max_pending_updates, sizeof *s->pending_updates);
  s->prefills = calloc(c->max_running, sizeof *s->prefills);
  s->scratch = calloc(c->n_pages, 2 * sizeof *s->scratch);
  return s->page_table && s->free_stripes && s->pending_updates && s->prefills && s->scratch && s->claims &&
         s->continue_by_us;
}

static uint32_t prompt_ns_per_token_by_cost(const td_sched *s, const td_cost_model *cost)
{
  uint32_t n = s->config.step_tokens;
  return (uint32_t)fmin(fmax(PROMPT_TIME_SHARE * 1e3 * td_cost_tokens_us(cost, n) / n, 1), UINT32_MAX);
}

td_status td_sched_create(const td_sched_config *config, td_sched **out, td_error *err)
{
  TD_TRY(check_config(config, err));
  td_sched *s = calloc(1, sizeof *s);
  if (!s)
    return td_fail(err, TD_ERR_NOMEM, "no memory for the scheduler");
  s->config = *config;
  s->fair = (td_fair){.beneficiary_slot = TD_NO_SLOT, .preempted_step = UINT64_MAX};
  s->config.cost = NULL; /* the budget has a copy */
  s->estimated_prompt_ns_per_token = config->prompt_ns_per_token ? config->prompt_ns_per_token
                                     : config->cost ? prompt_ns_per_token_by_cost(s, config->cost)
                                                    : UNMEASURED_NS_PER_TOKEN;
  if (config->cost && !config->cost_is_guess)
    s->config.prompt_ns_per_token = s->estimated_prompt_ns_per_token;
  td_status status = td_budget_init(&s->budget, config, err);
  s->least_correction = fmin(1, s->budget.correction[1]);
  if (status == TD_OK)
    status = size_tables(s, err);
  if (status == TD_OK && !allocate(s))
    status = td_fail(err, TD_ERR_NOMEM, "no memory for a scheduler of %u slots and %u pages", config->n_slots,
                     config->n_pages);
  if (status != TD_OK) {
    td_sched_destroy(s);
    return status;
  }
  for (uint32_t i = 0; i < config->max_running; i++)
    s->free_stripes[s->n_free_stripes++] = config->max_running - 1 - i;
  *out = s;
  return TD_OK;
}

void td_sched_destroy(td_sched *s)
{
  if (!s)
    return;
  td_request_table_deinit(&s->table);
  td_prefix_tree_deinit(&s->tree);
  td_page_events_deinit(&s->page_events);
  td_page_pool_deinit(&s->pool);
  td_order_deinit(&s->order);
  td_places_deinit(&s->places);
  td_output_lengths_deinit(&s->answers);
  td_deadlines_deinit(&s->deadlines);
  free(s->claims);
  free(s->continue_by_us);
  free(s->page_table);
  free(s->free_stripes);
  free(s->pending_updates);
  free(s->prefills);
  free(s->scratch);
  free(s);
}

td_status td_sched_plan_create(const td_sched *s, td_plan **out, td_error *err)
{
  return td_plan_create(s->config.max_running, s->config.step_tokens,
                        s->config.max_running + s->config.prompt_logits, s->max_page_updates,
                        s->config.page_tokens, out, err);
}

/* A light prompt has at most step_tokens / LIGHT_SHARE to compute, or LIGHT_PAGES if that is more. */
enum { LIGHT_SHARE = 8, LIGHT_PAGES = 2 };
enum { PRIORITY_US_MAX = 3600 * 1000 * 1000u }; /* no priority is worth more than an hour */

static int64_t priority_us(const td_sched *s, int32_t priority)
{
  double us = (double)priority * (double)s->config.priority_us;
  return us > PRIORITY_US_MAX            ? PRIORITY_US_MAX
         : us < -(double)PRIORITY_US_MAX ? -(int64_t)PRIORITY_US_MAX
                                         : (int64_t)us;
}

/* The KV depends on the adapter too. */
#define NAMESPACE_SEED 0x9E3779B97F4A7C15u
static uint64_t namespace_of(const td_terms *t)
{
  return t->adapter ? td_hash_u64(td_hash_u64(NAMESPACE_SEED, t->namespace_id), t->adapter) : t->namespace_id;
}

/* Prompt tokens that the tree does not have; 0 if neither order nor forecast needs them. */
static uint32_t uncached_tokens(const td_sched *s, const td_sched_request *r)
{
  uint32_t pt = s->config.page_tokens;
  if (r->computes_all)
    return r->n_prompt;
  if (s->config.slack_percent == 0 && r->terms.ttft_deadline_us == 0 && !s->budget.has_cost)
    return 0;
  td_prefix_hit hit = td_prefix_tree_find(&s->tree, namespace_of(&r->terms), r->tokens,
                                          (r->n_prompt - 1 - r->n_prompt_logits) / pt);
  return r->n_prompt - hit.n_pages * pt;
}

/* A further choice finds the pages of the first choice, or waits for them, so it computes only the last
 * page. */
static uint32_t expected_uncached_tokens(const td_sched *s, const td_sched_request *r, uint32_t n_uncached)
{
  uint32_t last = r->n_prompt - (r->n_prompt - 1) / s->config.page_tokens * s->config.page_tokens;
  bool shares =
      r->terms.is_further_choice && s->config.coalesces && r->n_prompt_logits == 0 && !r->computes_all;
  return shares && last < n_uncached ? last : n_uncached;
}

void td_sched_count_waiting(td_sched *s, uint32_t slot, int n)
{
  const td_request *r = &s->table.requests[slot];
  td_output_lengths_count_waiting(&s->answers, r->account, r->max_tokens - r->n_prompt,
                                  s->order.entries[slot].n_expected_uncached, n);
}

/* The time by which the request has to start, for its place in the queue. Longer prompts may wait longer. */
static uint64_t latest_start(const td_sched *s, const td_sched_request *r, uint64_t prompt_us,
                             uint64_t now_us)
{
  uint64_t start_us = now_us + prompt_us * s->config.slack_percent / 100;
  if (r->terms.ttft_deadline_us > 0 && r->terms.ttft_deadline_us < start_us + prompt_us)
    start_us = r->terms.ttft_deadline_us > prompt_us ? r->terms.ttft_deadline_us - prompt_us : 0;
  return start_us > now_us ? start_us : now_us;
}

bool td_sched_is_light(const td_sched *s, uint32_t n_uncached)
{
  uint32_t share = s->config.step_tokens / LIGHT_SHARE, pages = LIGHT_PAGES * s->config.page_tokens;
  return s->config.slack_percent > 0 && n_uncached <= (share > pages ? share : pages);
}

/* Sets the request's place in the queue, and its time in the heap of deadlines. */
static void enqueue(td_sched *s, uint32_t slot, const td_sched_request *r, uint64_t now_us)
{
  td_order_entry *e = &s->order.entries[slot];
  uint32_t n_uncached = uncached_tokens(s, r);
  uint64_t start_us = latest_start(s, r, td_sched_estimate_prompt_us(s, n_uncached), now_us);
  *e = (td_order_entry){.place_us = (int64_t)start_us + priority_us(s, r->terms.priority),
                        .seq = ++s->order.next_seq,
                        .latest_start_us = start_us,
                        .n_uncached = n_uncached,
                        .n_expected_uncached = expected_uncached_tokens(s, r, n_uncached),
                        .is_light = td_sched_is_light(s, n_uncached),
                        .followers_us = UINT64_MAX,
                        .terms = r->terms,
                        .followers = TD_NO_SLOT,
                        .leader = TD_NO_SLOT,
                        .expiry_at = TD_NO_SLOT,
                        .n_prompt = r->n_prompt};
  e->terms.account = s->table.requests[slot].account;
  e->terms.namespace_id = namespace_of(&r->terms);
  s->order.any_priority |= r->terms.priority != 0;
  td_order_enter(&s->order, slot);
  td_sched_count_waiting(s, slot, 1);
  td_sched_set_deadline(s, slot, r->n_prompt);
}

td_status td_sched_submit(td_sched *s, uint32_t slot, const td_sched_request *r, uint64_t now_us,
                          td_error *err)
{
  uint32_t longest = longest_request(s);
  if (r->n_prompt == 0)
    return td_fail_param(err, TD_ERR_REQUEST, "prompt", "the prompt is empty");
  if (r->n_prompt >= longest)
    return td_fail_param(err, TD_ERR_REQUEST, "prompt",
                         "the prompt is %u tokens long; the longest that can be answered is %u", r->n_prompt,
                         longest - 1);
  if (r->max_new == 0 || r->max_new > longest - r->n_prompt)
    return td_fail_param(err, TD_ERR_REQUEST, "max_tokens",
                         "max_tokens is %u; after a prompt of %u tokens it can be 1 to %u", r->max_new,
                         r->n_prompt, longest - r->n_prompt);
  if (r->n_prompt_logits >= r->n_prompt)
    return td_fail_param(
        err, TD_ERR_REQUEST, "prompt",
        "log-probabilities of %u tokens are wanted, but before the prompt's %u there is none",
        r->n_prompt_logits, r->n_prompt);
  s->table.wants[slot] = (td_request_wants){.all_tokens = r->computes_all,
                                            .logits_of_prompt = r->n_prompt_logits > 0,
                                            .logits_from = r->n_prompt - 1 - r->n_prompt_logits};
  td_request_table_add(
      &s->table, slot,
      &(td_request){.tokens = r->tokens,
                    .n_tokens = r->n_prompt,
                    .max_tokens = r->n_prompt + r->max_new,
                    .node = TD_NO_NODE,
                    .last_token = r->tokens[r->n_prompt - 1],
                    .account = (uint16_t)(r->terms.account % TD_ACCOUNTS_MAX),
                    .has_wants = r->terms.adapter > 0 || r->n_prompt_logits > 0 || r->computes_all,
                    .n_prompt = r->n_prompt},
      now_us, s->step);
  enqueue(s, slot, r, now_us);
  return TD_OK;
}

void td_sched_cancel(td_sched *s, uint32_t slot)
{
  TD_BUG_ON(s->n_in_flight > 0 || slot >= s->config.n_slots);
  td_request *r = &s->table.requests[slot];
  TD_BUG_ON(r->state == TD_REQUEST_FREE);
  if (r->state != TD_REQUEST_WAITING)
    td_sched_release(s, r);
  else
    td_sched_count_waiting(s, slot, -1);
  if (r->state == TD_REQUEST_WAITING && s->order.entries[slot].leader != TD_NO_SLOT)
    td_coalesce_drop(s, slot);
  else if (r->state == TD_REQUEST_WAITING)
    td_order_leave(&s->order, slot);
  td_deadlines_set(&s->deadlines, s->order.entries, slot, UINT64_MAX);
  td_request_table_remove(&s->table, slot);
}

void td_sched_end(td_sched *s, uint32_t slot)
{
  TD_BUG_ON(slot >= s->config.n_slots);
  const td_request *r = &s->table.requests[slot];
  if (r->n_tokens > r->n_prompt)
    td_output_lengths_observe(&s->answers, r->account, r->n_tokens - r->n_prompt,
                              s->step - s->table.histories[slot].submit_step, false);
  td_sched_cancel(s, slot);
}

bool td_sched_is_running(const td_sched *s, uint32_t slot)
{
  TD_BUG_ON(slot >= s->config.n_slots);
  return td_request_runs(&s->table.requests[slot]);
}

double td_sched_predict_us(const td_sched *s, const td_plan *plan)
{
  td_step_work w = td_step_work_of(plan);
  return td_budget_predict_us(&s->budget, &w);
}

/* Without a calibration, the fastest step with prompts so far gives the least time of a prompt token.
 * Steps without prompts do not count: they may have been planned ahead and be over when the host looks, so
 * they would seem to take no time. */
static void learn_prompt_time(td_sched *s, double ns_per_token)
{
  uint32_t ns = (uint32_t)fmin(fmax(ns_per_token, 1), UINT32_MAX);
  if (!s->prompt_time_is_learned || ns < s->estimated_prompt_ns_per_token)
    s->estimated_prompt_ns_per_token = ns;
  s->prompt_time_is_learned = true;
}

void td_sched_observe(td_sched *s, const td_plan *plan, double measured_us)
{
  td_step_work w = td_step_work_of(plan);
  td_budget_observe(&s->budget, &w, measured_us);
  if (s->config.prompt_ns_per_token == 0 && measured_us > 0 && w.n_rows > w.n_decode_rows)
    learn_prompt_time(s, measured_us * 1e3 / w.n_tokens);
  s->least_correction = fmin(s->least_correction, s->budget.correction[1]);
}

/* prompt_ns_per_token only falls, like least_correction. */
void td_sched_set_cost(td_sched *s, const td_cost_model *cost)
{
  TD_BUG_ON(!s->budget.has_cost);
  td_budget_set_cost(&s->budget, cost);
  uint32_t ns = prompt_ns_per_token_by_cost(s, cost);
  if (ns < s->config.prompt_ns_per_token)
    s->config.prompt_ns_per_token = ns;
}

td_sched_slot_info td_sched_slot(const td_sched *s, uint32_t slot)
{
  TD_BUG_ON(slot >= s->config.n_slots);
  const td_request *r = &s->table.requests[slot];
  const td_request_history *h = &s->table.histories[slot];
  TD_BUG_ON(r->state == TD_REQUEST_FREE);
  return (td_sched_slot_info){.n_tokens = r->n_tokens,
                              .n_generated = r->n_tokens - r->n_prompt,
                              .n_computed = r->n_computed,
                              .n_cached_prompt = h->n_cached_prompt,
                              .n_preemptions = h->n_preemptions,
                              .n_pages = r->n_pages,
                              .is_light = s->order.entries[slot].is_light,
                              .submit_us = h->submit_us,
                              .first_run_us = h->first_run_us,
                              .running = r->state != TD_REQUEST_WAITING,
                              .following = s->order.entries[slot].leader != TD_NO_SLOT,
                              .n_follows = s->order.entries[slot].n_follows,
                              .place_us = s->order.entries[slot].place_us};
}

uint64_t td_sched_account_served(const td_sched *s, uint64_t account)
{
  return s->order.served[account % TD_ACCOUNTS_MAX];
}

void td_sched_get_stats(const td_sched *s, td_sched_stats *out)
{
  uint32_t available = td_sched_available_pages(s);
  *out = (td_sched_stats){.n_waiting = s->order.n_queued + s->order.n_following,
                          .n_running = s->table.n_running,
                          .pages_total = s->pool.n_pages,
                          .pages_free = s->pool.n_free,
                          .pages_cached = s->tree.n_unpinned_pages,
                          .pages_owned = s->pool.n_pages - available,
                          .waiting_prompt_tokens = s->order.waiting_prompt_tokens,
                          .n_following = s->order.n_following,
                          .follows = s->n_follows,
                          .expired = s->n_expired,
                          .prefix_query_tokens = s->prefix_query_tokens,
                          .prefix_hit_tokens = s->prefix_hit_tokens,
                          .preemptions = s->n_preemptions,
                          .fair_preemptions = s->fair.n_preempted,
                          .evicted_pages = s->tree.n_evicted_pages,
                          .tbt_slo_us = s->budget.slo_us,
                          .cost_correction = {s->budget.correction[0], s->budget.correction[1]}};
}
