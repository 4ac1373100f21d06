/* The random life of requests: see sim_world.h. */
#include "sim_world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STEPS_PAST_QUEUE = 16 }; /* the README's: after this many steps, the front is checked again */

/* splitmix64 (Steele, Lea, Flood 2014) */
static uint64_t scramble(uint64_t z)
{
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

uint64_t sim_next(sim_rng *r) { return scramble(r->state += 0x9e3779b97f4a7c15u); }
uint32_t sim_below(sim_rng *r, uint32_t n) { return (uint32_t)(((sim_next(r) >> 32) * n) >> 32); }
bool sim_chance(sim_rng *r, double p) { return (double)(sim_next(r) >> 11) * 0x1p-53 < p; }
uint64_t sim_mix(uint64_t a, uint64_t b) { return scramble(a + 0x9e3779b97f4a7c15u * (b + 1)); }

static void *must_alloc(size_t n, size_t size)
{
  void *p = calloc(n ? n : 1, size);
  if (!p) {
    fprintf(stderr, "no memory\n");
    exit(2);
  }
  return p;
}

/* Four steps of a stair, one of which goes down, so that chunks are cut at its edges; and terms of similar
 * size for everything that a step may hold. */
#define STAIRS                                                                                               \
  .n_points = 9, .tokens = {1, 16, 17, 32, 33, 64, 65, 96, 128},                                             \
  .tokens_us = {100, 110, 150, 160, 200, 230, 330, 290, 400}, .logits_us_per_row = 1,                        \
  .decode_us_per_row = 2, .decode_us_per_kv_token = 0.2, .prefill_us_per_chunk = 5,                          \
  .prefill_us_per_pair = 0.01, .prefill_us_per_kv_token = 0.05, .prefill_us_per_short_chunk_key = 0.03,      \
  .hybrid_us = 12, .hybrid_us_per_decode_row = 1
static const td_cost_model stairs = {STAIRS}, stairs_learned = {STAIRS, .learned = {1.3, 0.8}};

/* Half of the worlds have the defaults. The others have a target, half of the time so small that the decodes
 * of a full step exceed it, or one of the policies for comparison. */
static void draw_policy(sim_world *w)
{
  sim_rng *r = &w->rng;
  td_sched_config *c = &w->config;
  if (sim_chance(r, 0.5))
    return;
  if (sim_chance(r, 0.6)) {
    c->cost = sim_chance(r, 0.7) ? &stairs : &stairs_learned;
    uint64_t smallest = 1 + (uint64_t)td_budget_smallest_step_us(&stairs, c);
    c->tbt_slo_us = sim_chance(r, 0.2) ? 0 : smallest + sim_below(r, sim_chance(r, 0.5) ? 40 : 500);
    return;
  }
  c->policy = (td_policy)(1 + sim_below(r, TD_POLICY_COUNT - 1));
  if (c->policy == TD_POLICY_ORCA)
    c->step_tokens = c->max_context_tokens + c->max_running - 1;
}

const td_cost_model *sim_cost_of(const sim_world *w) { return w->config.cost; }

/* Number of steps in which the oldest request may make no progress, for each of its own. Prefill-first: every
 * place may be filled by a prompt first, with at least a token per step. Decode-first: all others may decode
 * to their ends. */
static uint64_t steps_per_token(const sim_world *w)
{
  bool waits = w->config.policy == TD_POLICY_PREFILL_FIRST || w->config.policy == TD_POLICY_DECODE_FIRST;
  return waits ? 1 + (uint64_t)w->config.max_running * w->config.max_context_tokens : 1;
}

/* A third of the worlds are first come, first served. A step takes half a millisecond on average. */
static void draw_order(sim_world *w)
{
  sim_rng *r = &w->rng;
  td_sched_config *c = &w->config;
  w->n_accounts = 1;
  if (sim_chance(r, 0.33))
    return;
  c->coalesces = sim_chance(r, 0.8);
  c->reads_shared_once = sim_chance(r, 0.8);
  c->prompt_ns_per_token = sim_chance(r, 0.3) ? 0 : 1000 + sim_below(r, 20000);
  c->slack_percent = sim_chance(r, 0.3) ? 0 : 50 + sim_below(r, 400);
  c->priority_us = sim_chance(r, 0.4) ? 0 : sim_below(r, 20000);
  w->n_accounts = 1 + sim_below(r, SIM_ACCOUNTS);
  c->n_accounts = sim_chance(r, 0.3) ? 0 : w->n_accounts;
  w->priority_rate = sim_chance(r, 0.5) ? 0 : 0.4;
  w->greedy_rate = sim_chance(r, 0.65) ? 0 : 0.9;
  w->deadline_rate = sim_chance(r, 0.5) ? 0 : 0.3;
  w->copy_rate = sim_chance(r, 0.4) ? 0 : 0.7;
}

/* Everything is small, so that pages run out, lists wrap and budgets bind all the time. */
static void draw_config(sim_world *w, uint64_t hash_seed)
{
  sim_rng *r = &w->rng;
  td_sched_config *c = &w->config;
  c->page_tokens = 16u << (sim_chance(r, 0.25) ? 1 + sim_below(r, 2) : 0);
  c->n_pages = sim_chance(r, 0.1) ? 1 + sim_below(r, 3) : 4 + sim_below(r, sim_chance(r, 0.3) ? 120 : 28);
  c->max_running = 1 + sim_below(r, sim_chance(r, 0.3) ? 24 : 8);
  c->n_slots = c->max_running + sim_below(r, SIM_MAX_SLOTS - c->max_running + 1);
  c->step_tokens = c->max_running + sim_below(r, sim_chance(r, 0.5) ? 24 : 160);
  c->max_context_tokens = 2 + sim_below(r, c->n_pages * c->page_tokens * 5 / 4);
  if (c->max_context_tokens > 1200)
    c->max_context_tokens = 1200;
  c->hash_seed = hash_seed;
  c->emits_page_events = sim_chance(r, 0.5);
  draw_policy(w);
  draw_order(w);
  w->arrival_rate = sim_chance(r, 0.4) ? 0.9 : 0.02 + 0.3 * sim_below(r, 1000) / 1000;
  w->cancel_rate = sim_chance(r, 0.5) ? 0 : 0.002 * sim_below(r, 50);
  w->stop_rate = sim_chance(r, 0.6) ? 0 : 0.002 * sim_below(r, 40);
  w->ahead_rate = sim_chance(r, 0.4) ? 0 : 0.5 + 0.5 * sim_below(r, 2);
  w->late_rate = sim_chance(r, 0.6) ? 0 : 0.01 * sim_below(r, 40);
  w->score_rate = sim_chance(r, 0.5) ? 0 : 0.4;
  c->prompt_logits = sim_chance(r, 0.2) ? 0 : sim_below(r, SIM_MAX_SLOTS);
  w->n_namespaces = 1 + sim_below(r, 3);
  /* short prompts with long answers outgrow the pool together: preemptions */
  w->longest_prompt = sim_chance(r, 0.6) ? 1 + sim_below(r, 3 * c->page_tokens) : c->max_context_tokens;
  w->longest_answer = 1 + sim_below(r, sim_chance(r, 0.5) ? 400 : 60);
}

/* Prefixes that branch off each other, so that requests meet in the tree at all depths. */
static void draw_prefixes(sim_world *w)
{
  uint32_t longest = w->config.max_context_tokens;
  for (uint32_t i = 0; i < SIM_PREFIXES; i++) {
    sim_prefix *p = &w->prefixes[i];
    p->tokens = must_alloc(longest, sizeof *p->tokens);
    if (i > 0 && sim_chance(&w->rng, 0.8)) {
      const sim_prefix *from = &w->prefixes[sim_below(&w->rng, i)];
      p->n = sim_below(&w->rng, from->n + 1);
      memcpy(p->tokens, from->tokens, p->n * sizeof *p->tokens);
    }
    uint32_t n_more = sim_below(&w->rng, longest - p->n + 1);
    for (uint32_t k = 0; k < n_more; k++)
      p->tokens[p->n++] = (int32_t)sim_below(&w->rng, 50000);
  }
}

sim_world *sim_world_create(uint64_t seed, uint64_t hash_seed, sim_totals *totals)
{
  sim_world *w = must_alloc(1, sizeof *w);
  td_error err;
  w->rng.state = seed;
  w->totals = totals;
  draw_config(w, hash_seed);
  draw_prefixes(w);
  w->least_correction =
      w->config.cost && w->config.cost->learned[1] > 0 ? fmin(1, w->config.cost->learned[1]) : 1;
  if (td_sched_create(&w->config, &w->sched, &err) != TD_OK ||
      td_sched_plan_create(w->sched, &w->plan, &err) != TD_OK ||
      td_sched_plan_create(w->sched, &w->next, &err) != TD_OK) {
    fprintf(stderr, "%s\n", err.message);
    exit(2);
  }
  w->device_lines = must_alloc((size_t)w->config.n_pages * w->config.page_tokens, sizeof *w->device_lines);
  size_t table = (size_t)w->config.max_running * (w->config.max_context_tokens / w->config.page_tokens + 1);
  w->device_table = must_alloc(table, sizeof *w->device_table);
  memset(w->device_table, 0xff, table * sizeof *w->device_table);
  w->readers = must_alloc(w->config.n_pages, sizeof *w->readers);
  w->writers = must_alloc(w->config.n_pages, sizeof *w->writers);
  for (uint32_t i = 0; i < w->config.n_slots; i++) {
    w->slots[i].tokens = must_alloc(w->config.max_context_tokens, sizeof *w->slots[i].tokens);
    w->slots[i].lines = must_alloc(w->config.max_context_tokens, sizeof *w->slots[i].lines);
  }
  return w;
}

void sim_world_destroy(sim_world *w)
{
  td_sched_stats st;
  td_sched_get_stats(w->sched, &st);
  w->totals->preemptions += st.preemptions;
  w->totals->evicted += st.evicted_pages;
  w->totals->hit_tokens += st.prefix_hit_tokens;
  w->totals->query_tokens += st.prefix_query_tokens;
  td_plan_destroy(w->plan);
  td_plan_destroy(w->next);
  td_sched_destroy(w->sched);
  for (uint32_t i = 0; i < w->config.n_slots; i++) {
    free(w->slots[i].tokens);
    free(w->slots[i].lines);
  }
  for (uint32_t i = 0; i < SIM_PREFIXES; i++)
    free(w->prefixes[i].tokens);
  free(w->device_lines);
  free(w->device_table);
  free(w->readers);
  free(w->writers);
  free(w);
}

static void push_token(sim_slot *slot, int32_t token)
{
  uint64_t before = slot->n_tokens
                        ? slot->lines[slot->n_tokens - 1]
                        : sim_mix(0x5eed + (uint64_t)slot->terms.adapter, slot->terms.namespace_id);
  slot->tokens[slot->n_tokens] = token;
  slot->lines[slot->n_tokens++] = sim_mix(before, (uint64_t)token);
}

static void draw_prompt(sim_world *w, sim_slot *slot)
{
  sim_rng *r = &w->rng;
  const sim_prefix *p = &w->prefixes[sim_below(r, SIM_PREFIXES)];
  uint32_t longest = w->config.max_context_tokens - 1, n = p->n;
  if (longest > w->longest_prompt)
    longest = w->longest_prompt;
  if (sim_chance(r, 0.4))
    n = sim_below(r, n + 1);
  if (sim_chance(r, 0.3)) /* prompts of whole pages: the edge case of the longest prefix hit */
    n -= n % w->config.page_tokens;
  if (sim_chance(r, 0.3) && n > 4u * w->config.page_tokens)
    n = sim_below(r, 4 * w->config.page_tokens);
  for (uint32_t k = 0; k < n && slot->n_tokens < longest; k++)
    push_token(slot, p->tokens[k]);
  uint32_t n_tail = sim_chance(r, 0.5) ? 0 : sim_below(r, 40);
  for (uint32_t k = 0; (k < n_tail && slot->n_tokens < longest) || slot->n_tokens == 0; k++)
    push_token(slot, (int32_t)sim_below(r, 50000));
}

/* The same prompt as another present request: n > 1, or a client that repeats. */
static bool copy_prompt(sim_world *w, sim_slot *slot)
{
  bool last = sim_chance(&w->rng, 0.7);
  const sim_slot *from = &w->slots[last ? w->last_submitted : sim_below(&w->rng, w->config.n_slots)];
  if (!from->used || from == slot || !sim_chance(&w->rng, w->copy_rate))
    return false;
  slot->terms.namespace_id = from->terms.namespace_id;
  for (uint32_t k = 0; k < from->n_prompt; k++)
    push_token(slot, from->tokens[k]);
  if (sim_chance(&w->rng, 0.3)) { /* or most of it */
    slot->n_tokens = 1 + sim_below(&w->rng, slot->n_tokens);
    while (slot->n_tokens + 1 < w->config.max_context_tokens && sim_chance(&w->rng, 0.95))
      push_token(slot, (int32_t)sim_below(&w->rng, 50000));
  }
  return true;
}

/* One account after another may want nearly all. */
enum { GREEDY_REQUESTS = 40 };

static void draw_urgency(sim_world *w, sim_slot *slot)
{
  sim_rng *r = &w->rng;
  slot->terms.account = sim_chance(r, w->greedy_rate) ? (w->next_submit_seq / GREEDY_REQUESTS) % w->n_accounts
                                                      : sim_below(r, w->n_accounts);
  slot->terms.priority = sim_chance(r, w->priority_rate) ? (int32_t)sim_below(r, 9) - 4 : 0;
  if (sim_chance(r, 0.05))
    slot->terms.priority = slot->terms.priority > 0 ? INT32_MAX : slot->terms.priority < 0 ? INT32_MIN : 0;
  if (sim_chance(r, w->deadline_rate))
    slot->terms.ttft_deadline_us = w->clock_us + sim_below(r, 50000);
  if (sim_chance(r, w->deadline_rate))
    slot->terms.deadline_us = w->clock_us + sim_below(r, 200000);
}

static void submit_one(sim_world *w)
{
  uint32_t i = 0;
  while (i < w->config.n_slots && w->slots[i].used)
    i++;
  if (i == w->config.n_slots)
    return;
  sim_slot *slot = &w->slots[i];
  *slot = (sim_slot){.tokens = slot->tokens, .lines = slot->lines};
  slot->terms.namespace_id = sim_below(&w->rng, w->n_namespaces);
  slot->terms.adapter = sim_chance(&w->rng, 0.8) ? 0 : 1 + sim_below(&w->rng, 2);
  slot->answer_salt =
      sim_chance(&w->rng, 0.7) ? 0 : sim_next(&w->rng); /* 0: the same prompt, the same answer */
  if (!copy_prompt(w, slot))
    draw_prompt(w, slot);
  draw_urgency(w, slot);
  uint32_t room = w->config.max_context_tokens - slot->n_tokens, max_new = 1 + sim_below(&w->rng, room);
  if (max_new > w->longest_answer)
    max_new = w->longest_answer;
  slot->n_prompt = slot->n_tokens;
  slot->max_tokens = slot->n_prompt + max_new;
  slot->terms.is_further_choice = i % 4 == 3; /* nothing depends on it but the forecast */
  if (sim_chance(&w->rng, w->score_rate))
    slot->n_prompt_logits =
        sim_chance(&w->rng, 0.5) ? slot->n_prompt - 1 : sim_below(&w->rng, slot->n_prompt);
  slot->scored_to = slot->n_prompt - 1 - slot->n_prompt_logits;
  slot->late_before = w->late_steps;

  td_error err;
  td_sched_request request = {.tokens = slot->tokens,
                              .n_prompt = slot->n_prompt,
                              .max_new = max_new,
                              .n_prompt_logits = slot->n_prompt_logits,
                              .terms = slot->terms};
  bool fits = slot->max_tokens <= w->config.n_pages * w->config.page_tokens;
  td_status status = td_sched_submit(w->sched, i, &request, w->clock_us, &err);
  SIM_CHECK(w, status == (fits ? TD_OK : TD_ERR_REQUEST));
  w->totals->requests += fits;
  w->totals->scored_requests += fits && slot->n_prompt_logits > 0;
  w->totals->refused += !fits;
  if (!fits)
    return;
  slot->submit_seq = ++w->next_submit_seq;
  slot->submit_step = w->step;
  slot->steps_allowed = slot->max_tokens;
  for (uint32_t k = 0; k < w->config.n_slots; k++) {
    w->slots[k].counted &= ~(UINT64_C(1) << i); /* the slot has a new tenant */
    if (!w->slots[k].used || !w->slots[k].running)
      continue;
    slot->counted |= UINT64_C(1) << k;
    slot->steps_allowed += w->slots[k].max_tokens;
  }
  slot->used = true;
  w->last_submitted = i;
  sim_order_verify_place(w, i);
}

/* If requests follow, half of the time a follower or a possible leader is chosen, because these are few and
 * short-lived. */
static uint32_t choose_cancelled(sim_world *w)
{
  td_sched_stats st;
  td_sched_get_stats(w->sched, &st);
  bool leader = sim_chance(&w->rng, 0.5);
  for (uint32_t i = 0; st.n_following > 0 && i < w->config.n_slots && sim_chance(&w->rng, 0.9); i++) {
    if (!w->slots[i].used)
      continue;
    td_sched_slot_info info = td_sched_slot(w->sched, i);
    if (leader ? info.running && !w->slots[i].answering : info.following)
      return i;
  }
  return sim_below(&w->rng, w->config.n_slots);
}

static void cancel_one(sim_world *w)
{
  uint32_t i = choose_cancelled(w);
  if (!w->slots[i].used)
    return;
  td_sched_slot_info info = td_sched_slot(w->sched, i);
  w->totals->cancelled_in[!info.running ? 0 : w->slots[i].answering ? 2 : 1]++;
  w->totals->cancelled_following += info.following;
  td_sched_cancel(w->sched, i);
  w->slots[i].used = w->slots[i].running = false;
  w->totals->cancelled++;
  td_sched_check(w->sched);
}

static void note_waits(sim_world *w)
{
  for (uint32_t i = 0; i < w->config.n_slots; i++) {
    const sim_slot *slot = &w->slots[i];
    if (!slot->used)
      continue;
    uint64_t age = w->step - slot->submit_step;
    uint64_t allowed = slot->steps_allowed * steps_per_token(w) + w->late_steps - slot->late_before;
    SIM_CHECK(w, age <= allowed);
    td_sched_slot_info info = td_sched_slot(w->sched, i);
    SIM_CHECK(w, info.n_cached_prompt < slot->n_prompt && info.n_cached_prompt % w->config.page_tokens == 0);
    if (!info.running && info.first_run_us == 0 && age > w->totals->longest_wait_steps)
      w->totals->longest_wait_steps = age;
    if (age > w->totals->longest_life_steps)
      w->totals->longest_life_steps = age;
    double share = (double)age / (double)allowed;
    if (share > w->totals->worst_share_of_bound)
      w->totals->worst_share_of_bound = share;
  }
}

static void hash_plan(sim_world *w)
{
  const td_plan *p = w->plan;
  for (uint32_t i = 0; i < p->n_rows; i++) {
    w->schedule_hash = sim_mix(w->schedule_hash, (uint64_t)p->rows[i].slot << 32 | p->rows[i].q_len);
    w->schedule_hash =
        sim_mix(w->schedule_hash, (uint64_t)p->rows[i].page_table_offset << 32 | p->rows[i].kv_len);
  }
  for (uint32_t i = 0; i < p->n_page_updates; i++)
    w->schedule_hash = sim_mix(w->schedule_hash, (uint64_t)p->page_updates[i].index << 32 |
                                                     (uint32_t)p->page_updates[i].page_id);
}

/* The forward: every token of the plan writes its KV line. Then the sampler. */
static void run_device(sim_world *w)
{
  const td_plan *plan = w->plan;
  uint32_t pt = w->config.page_tokens;
  bool any_late = false;
  for (uint32_t i = 0; i < plan->n_rows; i++) {
    const td_plan_row *row = &plan->rows[i];
    for (uint32_t p = row->kv_len - row->q_len; p < row->kv_len; p++) {
      uint32_t page = (uint32_t)w->device_table[row->page_table_offset + p / pt];
      w->device_lines[page * pt + p % pt] = w->ended[i] ? sim_next(&w->rng) : w->slots[row->slot].lines[p];
    }
  }
  for (uint32_t i = 0; i < plan->n_logits; i++) {
    const sim_slot *slot = &w->slots[plan->rows[plan->logits[i].row].slot];
    w->late[i] = plan->logits[i].target == TD_SAMPLE_HERE && sim_chance(&w->rng, w->late_rate);
    w->verdict[i] = w->late[i] ? TD_TOKEN_LATE : sim_chance(&w->rng, w->stop_rate) ? TD_TOKEN_ENDS : 0;
    if (w->ended[plan->logits[i].row] || plan->logits[i].target != TD_SAMPLE_HERE) { /* nobody looks at it */
      w->sampled[i] = (int32_t)sim_below(&w->rng, 50000);
      w->totals->wasted_rows += w->ended[plan->logits[i].row];
      continue;
    }
    w->sampled[i] = (int32_t)(sim_mix(slot->lines[slot->n_tokens - 1], slot->answer_salt) % 50000);
    any_late |= w->late[i];
    w->totals->late_rows += w->late[i];
    w->totals->late_prompts += w->late[i] && !slot->answering;
  }
  w->late_steps += any_late;
}

/* Steps of this world take 0.3 to 2.3 times their prediction, or without one 1 to 30 us per token. */
static void observe(sim_world *w)
{
  td_sched_stats stats;
  double us = td_sched_predict_us(w->sched, w->plan) * (0.3 + 0.002 * sim_below(&w->rng, 1000));
  if (!w->config.cost)
    us = w->plan->n_tokens * (1 + 0.001 * sim_below(&w->rng, 29000));
  td_sched_observe(w->sched, w->plan, us);
  td_sched_get_stats(w->sched, &stats);
  w->least_correction =
      stats.cost_correction[1] < w->least_correction ? stats.cost_correction[1] : w->least_correction;
  uint64_t token_ns = (uint64_t)(us * 1e3 / w->plan->n_tokens);
  if (w->plan->n_rows > w->plan->n_decode_rows && (w->least_token_ns == 0 || token_ns < w->least_token_ns))
    w->least_token_ns = token_ns;
}

static void commit(sim_world *w)
{
  const td_plan *plan = w->plan;
  uint32_t n_finished = 0, n_ended = 0;
  uint64_t served[SIM_ACCOUNTS];
  for (uint32_t i = 0; i < SIM_ACCOUNTS; i++)
    served[i] = td_sched_account_served(w->sched, i);
  td_sched_commit(w->sched, plan, w->sampled, w->verdict, w->finished, &n_finished);
  if (!w->ahead && sim_chance(&w->rng, 0.5))
    observe(w);
  for (uint32_t i = 0; i < plan->n_logits; i++) {
    uint32_t id = plan->rows[plan->logits[i].row].slot;
    sim_slot *slot = &w->slots[id];
    if (w->ended[plan->logits[i].row])
      continue;
    uint32_t at = (uint32_t)plan->positions[plan->logits[i].token];
    slot->scored_to = slot->scored_to > at + 1 ? slot->scored_to : at + 1;
    w->totals->scored_tokens += plan->logits[i].target != TD_SAMPLE_HERE;
    if (plan->logits[i].target != TD_SAMPLE_HERE || w->late[i])
      continue;
    SIM_CHECK(w, slot->tokens[slot->n_tokens] == w->sampled[i]);
    push_token(slot, w->sampled[i]);
    served[slot->terms.account] += SIM_TOKEN_COST;
    slot->answering = true;
    if (w->verdict[i] == TD_TOKEN_ENDS || slot->n_tokens == slot->max_tokens) {
      SIM_CHECK(w, n_ended < n_finished && w->finished[n_ended] == id);
      slot->used = slot->running = false;
      n_ended++;
    }
  }
  SIM_CHECK(w, n_ended == n_finished);
  for (uint32_t i = 0; i < SIM_ACCOUNTS;
       i++) /* or more, because a request that is queued again may be lifted */
    SIM_CHECK(w, td_sched_account_served(w->sched, i) >= served[i]);
  w->totals->finished += n_finished;
}

/* Only rows ended by a stop are computed in vain, since an end by length is known. And the queue never waits
 * without reason: if a place is free, a recent plan from scratch refused its front. */
static void verify_ahead(sim_world *w)
{
  td_sched_stats st;
  for (uint32_t i = 0; i < w->next->n_rows; i++) {
    const sim_slot *slot = &w->slots[w->next->rows[i].slot];
    bool again = w->next->token_ids[w->next->rows[i].q_start] >= 0; /* it is late */
    SIM_CHECK(w, slot->used && slot->n_tokens + !again < slot->max_tokens);
    w->totals->late_ahead += again;
  }
  td_sched_get_stats(w->sched, &st);
  if (st.n_waiting == 0 || st.n_running == w->config.max_running)
    return;
  SIM_CHECK(w, st.n_following == 0);
  for (uint32_t i = 0; i < SIM_ACCOUNTS; i++)
    w->served[i] = td_sched_account_served(w->sched, i);
  uint32_t front = sim_order_front(w);
  if (front == SIM_MAX_SLOTS) /* free places are kept for others */
    return;
  SIM_CHECK(w, w->slots[front].submit_seq <= w->scratch_submit_seq &&
                   w->next->step <= w->scratch_step + MAX_STEPS_PAST_QUEUE);
  w->totals->ahead_past_queue++;
}

/* Before plan's outcome is known. Afterwards it is known which of its rows have ended. */
static bool plan_ahead(sim_world *w)
{
  if (!sim_chance(&w->rng, w->ahead_rate) || !td_sched_may_plan_ahead(w->sched, w->plan, w->late))
    return false;
  td_sched_plan_ahead(w->sched, w->plan, w->late, w->next);
  td_sched_check(w->sched);
  verify_ahead(w);
  w->totals->ahead_steps++;
  return true;
}

static void swap_plans(sim_world *w)
{
  td_plan *plan = w->plan;
  w->plan = w->next;
  w->next = plan;
  memcpy(w->sampled_before, w->sampled, sizeof w->sampled);
  for (uint32_t i = 0; i < w->plan->n_rows; i++) {
    w->ended[i] = !w->slots[w->plan->rows[i].slot].used;
    w->was_late[i] = w->plan->token_ids[w->plan->rows[i].q_start] >= 0;
    SIM_CHECK(w, w->ended[i] == !td_sched_is_running(w->sched, w->plan->rows[i].slot));
  }
}

/* A subscriber that is disconnected now and then. */
static void take_page_events(sim_world *w, uint32_t most)
{
  td_page_event e;
  for (; most > 0 && td_sched_take_page_event(w->sched, &e); most--) {
    SIM_CHECK(w, w->config.emits_page_events && e.is_stored == (e.tokens != NULL));
    w->n_stored_pages += e.is_stored ? 1 : -1;
    SIM_CHECK(w, w->n_stored_pages >= 0);
  }
}

bool sim_world_step(sim_world *w, bool arrivals)
{
  td_sched_stats st;
  if (arrivals)
    while (sim_chance(&w->rng, w->arrival_rate))
      submit_one(w);
  td_sched_get_stats(w->sched, &st);
  if (!w->ahead && sim_chance(&w->rng, st.n_following ? 0.05 + 4 * w->cancel_rate : w->cancel_rate))
    cancel_one(w);
  w->clock_us += 1 + sim_below(&w->rng, 1000);
  sim_verify_stats(w);
  if (!w->ahead) {
    sim_order_expire(w);
    sim_order_record(w);
  }
  if (!w->ahead && !td_sched_plan(w->sched, w->clock_us, w->plan)) {
    for (uint32_t i = 0; i < w->config.n_slots; i++)
      SIM_CHECK(w, !w->slots[i].used);
    return false;
  }
  w->step++;
  w->totals->steps++;
  w->totals->steps_of[w->config.policy]++;
  if (!w->ahead) {
    w->scratch_step = w->step;
    w->scratch_submit_seq = w->next_submit_seq;
  }
  td_sched_check(w->sched);
  if (!w->ahead)
    sim_order_verify(w);
  sim_verify_plan(w);
  hash_plan(w);
  run_device(w);
  w->ahead = plan_ahead(w);
  commit(w);
  td_sched_check(w->sched);
  memset(w->ended, 0, sizeof w->ended);
  if (w->ahead)
    swap_plans(w);
  sim_verify_stats(w);
  note_waits(w);
  if (w->step / 64 % 2 == 0)
    take_page_events(w, sim_below(&w->rng, 8));
  return true;
}

void sim_world_drain(sim_world *w)
{
  while (sim_world_step(w, false)) /* ends: note_waits bounds every request's life */
    ;
  td_sched_stats st;
  td_sched_get_stats(w->sched, &st);
  SIM_CHECK(w,
            st.n_running == 0 && st.n_waiting == 0 && st.pages_owned == 0 && st.waiting_prompt_tokens == 0);
  take_page_events(w, UINT32_MAX);
  SIM_CHECK(w, w->n_stored_pages == (w->config.emits_page_events ? st.pages_cached : 0));
}
