/* See lane.h. The time goes into the work for each token of an answer, so that is only one access to its
 * slot. */
#include "capacity/lane.h"

#include <stdlib.h>

#include "loadgen/tool.h"
#include "kernels/dummy.h"

enum { ANSWER_SEED = 0x616e73 };

void td_tally_deinit(td_tally *t)
{
  td_spread_deinit(&t->ttft_us);
  td_spread_deinit(&t->tbt_us);
  td_spread_deinit(&t->queue_us);
}

td_status td_lane_init(td_lane *l, const td_lane_config *c, const td_load *load, td_life *lives,
                       td_tally *tally, td_error *err)
{
  *l = (td_lane){.config = *c, .load = load, .lives = lives, .tally = tally};
  td_status st = td_sched_create(&c->sched, &l->sched, err);
  if (st == TD_OK)
    st = td_sched_plan_create(l->sched, &l->plan, err);
  if (st == TD_OK)
    st = td_sched_plan_create(l->sched, &l->next, err);
  if (st != TD_OK) {
    td_lane_deinit(l);
    return st;
  }
  uint32_t n = c->sched.n_slots;
  l->slots = td_tool_alloc(n, sizeof *l->slots);
  l->free_slots = td_tool_alloc(n, sizeof *l->free_slots);
  l->sampled = td_tool_alloc(c->sched.max_running, sizeof *l->sampled);
  l->stop = td_tool_alloc(c->sched.max_running, sizeof *l->stop);
  l->finished = td_tool_alloc(c->sched.max_running, sizeof *l->finished);
  while (l->n_free < n) {
    l->free_slots[l->n_free] = n - 1 - l->n_free;
    l->n_free++;
  }
  return TD_OK;
}

void td_lane_deinit(td_lane *l)
{
  for (uint32_t i = 0; l->slots && i < l->config.sched.n_slots; i++)
    free(l->slots[i].tokens);
  td_plan_destroy(l->plan);
  td_plan_destroy(l->next);
  td_sched_destroy(l->sched);
  free(l->slots);
  free(l->free_slots);
  free(l->sampled);
  free(l->stop);
  free(l->finished);
  free(l->inbox);
  *l = (td_lane){0};
}

void td_lane_send(td_lane *l, uint32_t request)
{
  td_tool_grow((void **)&l->inbox, &l->inbox_cap, l->n_inbox + 1, sizeof *l->inbox);
  l->inbox[l->n_inbox++] = request;
}

uint32_t td_lane_load(const td_lane *l) { return l->config.sched.n_slots - l->n_free + (uint32_t)l->n_inbox; }

/* Equal seeds give equal tokens. The prefix tree needs no more. Tokens alternate between two counters, so
 * that two seeds agree by chance only once in 2^60. */
static void write_segment(int32_t *out, const td_load_segment *s)
{
  uint64_t h = td_dummy_hash(s->seed, s->seed >> 32);
  uint32_t even = (uint32_t)h, odd = (uint32_t)(h >> 32), n = s->n_tokens & ~1u;
  for (uint32_t i = 0; i < n; i += 2) {
    out[i] = (int32_t)((even + i) & INT32_MAX);
    out[i + 1] = (int32_t)((odd + i + 1) & INT32_MAX);
  }
  if (n < s->n_tokens)
    out[n] = (int32_t)((even + n) & INT32_MAX);
}

static int32_t *write_prompt(const td_load *load, const td_load_request *r)
{
  int32_t *tokens = malloc(((size_t)r->n_in + r->n_out) * sizeof *tokens), *at = tokens;
  if (!tokens)
    td_tool_die("no memory for a request of %u + %u tokens", r->n_in, r->n_out);
  for (uint32_t i = 0; i < r->n_segments; i++) {
    const td_load_segment *s = &load->segments[r->first_segment + i];
    write_segment(at, s);
    at += s->n_tokens;
  }
  return tokens;
}

static void end_request(td_lane *l, uint32_t request, td_request_result result)
{
  l->lives[request].result = (uint8_t)result;
  l->tally->by_result[result]++;
  l->tally->n_ended++;
}

static bool queue_is_full(const td_lane *l, uint32_t n_in)
{
  if (l->n_free == 0)
    return true;
  if (l->config.queue_tokens == 0)
    return false;
  td_sched_stats s;
  td_sched_get_stats(l->sched, &s);
  return s.waiting_prompt_tokens + n_in > l->config.queue_tokens;
}

static void submit(td_lane *l, uint32_t request, double now_us)
{
  const td_load_request *q = &l->load->requests[request];
  if (queue_is_full(l, q->n_in)) {
    end_request(l, request, TD_RESULT_HTTP_429);
    return;
  }
  uint32_t slot = l->free_slots[l->n_free - 1];
  td_lane_slot *s = &l->slots[slot];
  *s = (td_lane_slot){.tokens = write_prompt(l->load, q),
                      .request = request,
                      .answer = (int32_t)(td_dummy_hash(ANSWER_SEED, request) & INT32_MAX)};
  td_sched_request r = {.tokens = s->tokens, .n_prompt = q->n_in, .max_new = q->n_out};
  if (td_sched_submit(l->sched, slot, &r, (uint64_t)now_us, NULL) != TD_OK) {
    free(s->tokens);
    s->tokens = NULL;
    end_request(l, request, TD_RESULT_HTTP_4XX);
    return;
  }
  l->n_free--;
}

static double step_us(const td_lane *l, double now_us)
{
  const td_pace *p = l->config.pace;
  bool with_prompts = l->work.n_rows > l->work.n_decode_rows;
  double times = l->config.correction[with_prompts];
  if (p && l->n_steps < p->n_given)
    return p->given_us[l->n_steps];
  if (p && p->n_points[with_prompts] > 0)
    times = td_pace_at(p, now_us, with_prompts);
  else if (!(times > 0))
    times = td_cost_learned(l->config.cost, with_prompts);
  return td_cost_step_us(l->config.cost, &l->work) * times;
}

bool td_lane_begin(td_lane *l, double now_us)
{
  TD_BUG_ON(l->in_step);
  if (l->has_next) {
    td_plan *plan = l->plan;
    l->plan = l->next;
    l->next = plan;
    l->has_next = false;
  } else {
    for (size_t i = 0; i < l->n_inbox; i++)
      submit(l, l->inbox[i], now_us);
    l->n_inbox = 0;
    if (!td_sched_plan(l->sched, (uint64_t)now_us, l->plan))
      return false;
  }
  l->in_step = true;
  l->work = td_step_work_of(l->plan);
  l->step_us = step_us(l, now_us);
  if (l->config.ahead && l->n_inbox == 0)
    l->has_next = td_sched_plan_ahead(l->sched, l->plan, NULL, l->next);
  return true;
}

void td_lane_begin_sums(td_lane *l)
{
  l->sums = (td_lane_sums){0};
  td_sched_get_stats(l->sched, &l->sums.before);
}

static void note_step(td_lane *l)
{
  td_sched_stats s;
  td_lane_sums *sums = &l->sums;
  td_sched_get_stats(l->sched, &s);
  l->n_steps++;
  sums->n_steps++;
  sums->n_hybrid_steps += l->work.n_decode_rows > 0 && l->work.n_rows > l->work.n_decode_rows;
  sums->decode_rows += l->work.n_decode_rows;
  sums->busy_us += l->step_us;
  sums->owned_pages_us += (double)s.pages_owned * l->step_us;
  sums->cached_pages_us += (double)s.pages_cached * l->step_us;
  if (s.pages_owned > sums->most_owned_pages)
    sums->most_owned_pages = s.pages_owned;
}

static void note_first_token(td_lane *l, uint32_t slot, td_lane_slot *s, double now_us)
{
  td_life *life = &l->lives[s->request];
  td_tally *t = l->tally;
  life->first_run_us = (double)td_sched_slot(l->sched, slot).first_run_us;
  life->first_us = now_us;
  life->has_run = true;
  double queue_us = life->first_run_us > life->due_us ? life->first_run_us - life->due_us : 0;
  td_spread_add(&t->queue_us, queue_us, 1);
  td_spread_add(&t->ttft_us, now_us - life->due_us, 1);
  t->n_late_start += queue_us > t->queue_target_us;
  t->n_late_first += now_us - life->due_us > t->ttft_target_us;
}

/* The TBTs of one step are nearly always equal, so they are counted in runs. */
static void note_tokens(td_lane *l, double now_us)
{
  td_tally *t = l->tally;
  double run_us = 0;
  uint64_t n_run = 0;
  for (uint32_t i = 0; i < l->plan->n_logits; i++) {
    uint32_t slot = l->plan->rows[l->plan->logits[i].row].slot;
    td_lane_slot *s = &l->slots[slot];
    if (!s->tokens)
      continue; /* the row was planned ahead, but its request ended with the previous step */
    l->sampled[i] = s->answer;
    if (s->n_new++ == 0) {
      note_first_token(l, slot, s, now_us);
    } else {
      double gap_us = now_us - s->last_us;
      if (gap_us != run_us) {
        td_spread_add(&t->tbt_us, run_us, n_run);
        run_us = gap_us;
        n_run = 0;
      }
      n_run++;
      if (gap_us > s->longest_gap_us)
        s->longest_gap_us = gap_us;
      if (gap_us > t->tbt_slo_us) {
        s->n_over++;
        t->n_over++;
      }
    }
    s->last_us = now_us;
    t->tokens_out++;
  }
  td_spread_add(&t->tbt_us, run_us, n_run);
}

static void finish(td_lane *l, uint32_t slot, double now_us)
{
  td_lane_slot *s = &l->slots[slot];
  td_life *life = &l->lives[s->request];
  life->end_us = now_us;
  life->longest_gap_us = s->longest_gap_us;
  life->n_tokens = s->n_new;
  life->n_over = s->n_over;
  end_request(l, s->request, TD_RESULT_DONE);
  free(s->tokens);
  s->tokens = NULL;
  l->free_slots[l->n_free++] = slot;
}

const char td_lane_log_head[] =
    "step,end_us,step_us,decodes,prefills,prefill_tokens,running,waiting,free,cached,owned\n";

static void log_step(const td_lane *l, double now_us)
{
  td_sched_stats s;
  td_sched_get_stats(l->sched, &s);
  fprintf(l->config.log, "%llu,%.0f,%.0f,%u,%u,%u,%u,%u,%u,%u,%u\n", (unsigned long long)l->plan->step,
          now_us, l->step_us, l->work.n_decode_rows, l->work.n_rows - l->work.n_decode_rows,
          l->work.n_tokens - l->work.n_decode_rows, s.n_running, s.n_waiting, s.pages_free, s.pages_cached,
          s.pages_owned);
}

void td_lane_end(td_lane *l, double now_us)
{
  uint32_t n_finished;
  TD_BUG_ON(!l->in_step);
  note_step(l);
  note_tokens(l, now_us);
  if (l->config.correction[0] > 0 || l->config.pace) /* the scheduler has to learn it, like the daemon's */
    td_sched_observe(l->sched, l->plan, l->step_us);
  td_sched_commit(l->sched, l->plan, l->sampled, l->stop, l->finished, &n_finished);
  for (uint32_t i = 0; i < n_finished; i++)
    finish(l, l->finished[i], now_us);
  if (l->config.log)
    log_step(l, now_us);
  l->in_step = false;
}
