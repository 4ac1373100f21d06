/* See sim_daemon.h. The time goes into the work for each token of an answer, so that is only one access to
 * its slot. */
#include "capacity/sim_daemon.h"

#include <stdlib.h>

#include "loadgen/tool.h"
#include "kernels/dummy.h"

enum { ANSWER_SEED = 0x616e73 };

void td_tally_deinit(td_tally *t)
{
  td_log_histogram_deinit(&t->ttft_us);
  td_log_histogram_deinit(&t->tbt_us);
  td_log_histogram_deinit(&t->queue_us);
}

td_status td_sim_daemon_init(td_sim_daemon *d, const td_sim_daemon_config *c, const td_load *load,
                             td_sim_result *results, td_tally *tally, td_error *err)
{
  *d = (td_sim_daemon){.config = *c, .load = load, .results = results, .tally = tally};
  td_status st = td_sched_create(&c->sched, &d->sched, err);
  if (st == TD_OK)
    st = td_sched_plan_create(d->sched, &d->plan, err);
  if (st == TD_OK)
    st = td_sched_plan_create(d->sched, &d->next, err);
  if (st != TD_OK) {
    td_sim_daemon_deinit(d);
    return st;
  }
  uint32_t n = c->sched.n_slots;
  d->slots = td_tool_alloc(n, sizeof *d->slots);
  d->free_slots = td_tool_alloc(n, sizeof *d->free_slots);
  d->sampled = td_tool_alloc(c->sched.max_running, sizeof *d->sampled);
  d->stop = td_tool_alloc(c->sched.max_running, sizeof *d->stop);
  d->finished = td_tool_alloc(c->sched.max_running, sizeof *d->finished);
  while (d->n_free < n) {
    d->free_slots[d->n_free] = n - 1 - d->n_free;
    d->n_free++;
  }
  return TD_OK;
}

void td_sim_daemon_deinit(td_sim_daemon *d)
{
  for (uint32_t i = 0; d->slots && i < d->config.sched.n_slots; i++)
    free(d->slots[i].tokens);
  td_plan_destroy(d->plan);
  td_plan_destroy(d->next);
  td_sched_destroy(d->sched);
  free(d->slots);
  free(d->free_slots);
  free(d->sampled);
  free(d->stop);
  free(d->finished);
  free(d->inbox);
  *d = (td_sim_daemon){0};
}

/* How long before a step ends the daemon plans the next one. A daemon learns this while it serves
 * (tandem:plan_ahead_lead_seconds). With this value, times to the first token are as measured on an H200
 * (docs/lab). */
enum { AHEAD_LEAD_US = 2500 };

void td_sim_daemon_send(td_sim_daemon *d, uint32_t request, double now_us)
{
  d->is_disturbed |= now_us < d->plan_ahead_us;
  td_tool_grow((void **)&d->inbox, &d->inbox_cap, d->n_inbox + 1, sizeof *d->inbox);
  d->inbox[d->n_inbox++] = request;
}

uint32_t td_sim_daemon_n_requests(const td_sim_daemon *d)
{
  return d->config.sched.n_slots - d->n_free + (uint32_t)d->n_inbox;
}

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

static void end_request(td_sim_daemon *d, uint32_t request, td_request_result result)
{
  d->results[request].result = (uint8_t)result;
  d->tally->by_result[result]++;
  d->tally->n_ended++;
}

static bool queue_is_full(const td_sim_daemon *d, uint32_t n_in)
{
  if (d->n_free == 0)
    return true;
  if (d->config.queue_tokens == 0)
    return false;
  td_sched_stats s;
  td_sched_get_stats(d->sched, &s);
  return s.waiting_prompt_tokens + n_in > d->config.queue_tokens;
}

static void submit(td_sim_daemon *d, uint32_t request, double now_us)
{
  const td_load_request *q = &d->load->requests[request];
  if (queue_is_full(d, q->n_in)) {
    end_request(d, request, TD_RESULT_HTTP_429);
    return;
  }
  uint32_t slot = d->free_slots[d->n_free - 1];
  td_sim_daemon_slot *s = &d->slots[slot];
  *s = (td_sim_daemon_slot){.tokens = write_prompt(d->load, q),
                            .request = request,
                            .answer = (int32_t)(td_dummy_hash(ANSWER_SEED, request) & INT32_MAX)};
  td_sched_request r = {.tokens = s->tokens, .n_prompt = q->n_in, .max_new = q->n_out};
  if (td_sched_submit(d->sched, slot, &r, (uint64_t)now_us, NULL) != TD_OK) {
    free(s->tokens);
    s->tokens = NULL;
    end_request(d, request, TD_RESULT_HTTP_4XX);
    return;
  }
  d->n_free--;
}

static double step_us(const td_sim_daemon *d, double now_us)
{
  const td_measured_steps *p = d->config.measured_steps;
  bool with_prompts = d->work.n_rows > d->work.n_decode_rows;
  double times = d->config.correction[with_prompts];
  if (p && d->n_steps < p->n_times)
    return p->times_us[d->n_steps];
  if (p && p->n_slowdowns[with_prompts] > 0)
    times = td_measured_steps_slowdown_at(p, now_us, with_prompts);
  else if (!(times > 0))
    times = td_cost_learned(d->config.cost, with_prompts);
  return td_cost_step_us(d->config.cost, &d->work) * times;
}

bool td_sim_daemon_begin_step(td_sim_daemon *d, double now_us)
{
  TD_BUG_ON(d->in_step);
  if (d->has_next) {
    td_plan *plan = d->plan;
    d->plan = d->next;
    d->next = plan;
    d->has_next = false;
  } else {
    for (size_t i = 0; i < d->n_inbox; i++)
      submit(d, d->inbox[i], now_us);
    d->n_inbox = 0;
    if (!td_sched_plan(d->sched, (uint64_t)now_us, d->plan))
      return false;
  }
  d->in_step = true;
  d->work = td_step_work_of(d->plan);
  d->step_us = step_us(d, now_us);
  d->plan_ahead_us = now_us + d->step_us - AHEAD_LEAD_US;
  d->is_disturbed = d->n_inbox > 0;
  return true;
}

void td_sim_daemon_reset_sums(td_sim_daemon *d)
{
  d->sums = (td_sim_daemon_sums){0};
  td_sched_get_stats(d->sched, &d->sums.before);
}

static void record_step(td_sim_daemon *d)
{
  td_sched_stats s;
  td_sim_daemon_sums *sums = &d->sums;
  td_sched_get_stats(d->sched, &s);
  d->n_steps++;
  sums->n_steps++;
  sums->n_hybrid_steps += d->work.n_decode_rows > 0 && d->work.n_rows > d->work.n_decode_rows;
  sums->decode_rows += d->work.n_decode_rows;
  sums->busy_us += d->step_us;
  sums->owned_pages_us += (double)s.pages_owned * d->step_us;
  sums->cached_pages_us += (double)s.pages_cached * d->step_us;
  if (s.pages_owned > sums->most_owned_pages)
    sums->most_owned_pages = s.pages_owned;
}

static void record_first_token(td_sim_daemon *d, uint32_t slot, td_sim_daemon_slot *s, double now_us)
{
  td_sim_result *result = &d->results[s->request];
  td_tally *t = d->tally;
  result->first_run_us = (double)td_sched_slot(d->sched, slot).first_run_us;
  result->first_us = now_us;
  result->has_run = true;
  double queue_us = result->first_run_us > result->due_us ? result->first_run_us - result->due_us : 0;
  td_log_histogram_add(&t->queue_us, queue_us, 1);
  td_log_histogram_add(&t->ttft_us, now_us - result->due_us, 1);
  t->n_late_start += queue_us > t->queue_target_us;
  t->n_late_first += now_us - result->due_us > t->ttft_target_us;
}

/* The TBTs of one step are nearly always equal, so they are counted in runs. */
static void record_tokens(td_sim_daemon *d, double now_us)
{
  td_tally *t = d->tally;
  double run_us = 0;
  uint64_t n_run = 0;
  for (uint32_t i = 0; i < d->plan->n_logits; i++) {
    uint32_t slot = d->plan->rows[d->plan->logits[i].row].slot;
    td_sim_daemon_slot *s = &d->slots[slot];
    if (!s->tokens)
      continue; /* the row was planned ahead, but its request ended with the previous step */
    d->sampled[i] = s->answer;
    if (s->n_new++ == 0) {
      record_first_token(d, slot, s, now_us);
    } else {
      double tbt_us = now_us - s->last_us;
      if (tbt_us != run_us) {
        td_log_histogram_add(&t->tbt_us, run_us, n_run);
        run_us = tbt_us;
        n_run = 0;
      }
      n_run++;
      if (tbt_us > s->longest_tbt_us)
        s->longest_tbt_us = tbt_us;
      if (tbt_us > t->tbt_slo_us) {
        s->n_over++;
        t->n_over++;
      }
    }
    s->last_us = now_us;
    t->tokens_out++;
  }
  td_log_histogram_add(&t->tbt_us, run_us, n_run);
}

static void finish(td_sim_daemon *d, uint32_t slot, double now_us)
{
  td_sim_daemon_slot *s = &d->slots[slot];
  td_sim_result *result = &d->results[s->request];
  result->end_us = now_us;
  result->longest_tbt_us = s->longest_tbt_us;
  result->n_tokens = s->n_new;
  result->n_over = s->n_over;
  end_request(d, s->request, TD_RESULT_DONE);
  free(s->tokens);
  s->tokens = NULL;
  d->free_slots[d->n_free++] = slot;
}

const char td_sim_daemon_log_head[] =
    "step,end_us,step_us,decodes,prefills,prefill_tokens,running,waiting,free,cached,owned\n";

static void log_step(const td_sim_daemon *d, double now_us)
{
  td_sched_stats s;
  td_sched_get_stats(d->sched, &s);
  fprintf(d->config.log, "%llu,%.0f,%.0f,%u,%u,%u,%u,%u,%u,%u,%u\n", (unsigned long long)d->plan->step,
          now_us, d->step_us, d->work.n_decode_rows, d->work.n_rows - d->work.n_decode_rows,
          d->work.n_tokens - d->work.n_decode_rows, s.n_running, s.n_waiting, s.pages_free, s.pages_cached,
          s.pages_owned);
}

void td_sim_daemon_end_step(td_sim_daemon *d, double now_us)
{
  uint32_t n_finished;
  TD_BUG_ON(!d->in_step);
  d->has_next = d->config.ahead && !d->is_disturbed && td_sched_may_plan_ahead(d->sched, d->plan, NULL);
  if (d->has_next)
    td_sched_plan_ahead(d->sched, d->plan, NULL, d->next);
  record_step(d);
  record_tokens(d, now_us);
  /* The scheduler has to learn the times, like the daemon's. */
  if (d->config.correction[0] > 0 || d->config.measured_steps)
    td_sched_observe(d->sched, d->plan, d->step_us);
  td_sched_commit(d->sched, d->plan, d->sampled, d->stop, d->finished, &n_finished);
  for (uint32_t i = 0; i < n_finished; i++)
    finish(d, d->finished[i], now_us);
  if (d->config.log)
    log_step(d, now_us);
  d->in_step = false;
}
