/* See record.h: from events to figures. */
#include "bench/record.h"

#include <math.h>
#include <stdio.h>

#include "loadgen/tool.h"

static void add_token_event(td_record *r, double at_s, uint32_t n_tokens)
{
  td_tool_grow((void **)&r->token_events, &r->cap, r->n_token_events + 1, sizeof *r->token_events);
  r->token_events[r->n_token_events++] = (td_token_event){at_s, n_tokens};
}

static bool end_with_error(td_record *r, td_request_result why, const char *detail)
{
  r->result = why;
  snprintf(r->detail, sizeof r->detail, "%s", detail);
  return false;
}

bool td_record_add_event(td_record *r, const td_event *e, double at_s)
{
  if (e->has_usage) { /* some servers send usage with every event; the last one counts */
    r->has_usage = true;
    r->usage_in = e->usage_in;
    r->usage_out = e->usage_out;
    r->usage_cached = e->usage_cached;
  }
  switch (e->kind) {
  case TD_EVENT_TOKENS:
    r->counted = (r->n_token_events == 0 || r->counted) && e->counted;
    add_token_event(r, at_s, e->n_tokens);
    break;
  case TD_EVENT_MAYBE: r->maybe_s = at_s; break;
  case TD_EVENT_DONE: r->has_done = true; break;
  case TD_EVENT_ERROR: return end_with_error(r, TD_RESULT_ERROR_EVENT, e->error);
  case TD_EVENT_BAD: return end_with_error(r, TD_RESULT_BROKEN_ANSWER, "an event is not a JSON object");
  case TD_EVENT_NOTHING: break;
  }
  return true;
}

static uint32_t count_tokens(const td_record *r)
{
  uint32_t n = 0;
  for (size_t i = 0; i < r->n_token_events; i++)
    n += r->token_events[i].n_tokens;
  return n;
}

/* A last event without text counts as a token if the count is one short: some servers end the answer in its
 * last token's event, others in an event of its own. Without usage, the requested number decides. */
void td_record_end(td_record *r, double at_s)
{
  uint32_t want = r->has_usage ? r->usage_out : r->n_out;
  if (r->maybe_s > 0 && count_tokens(r) < want)
    add_token_event(r, r->maybe_s, 1);
  r->end_s = at_s;
  if (r->result != TD_RESULT_OPEN)
    return;
  if (r->has_done || r->has_usage)
    r->result = TD_RESULT_DONE;
  else
    end_with_error(r, TD_RESULT_NO_DONE, "the stream ended without [DONE]");
}

uint32_t td_record_tokens(const td_record *r) { return r->has_usage ? r->usage_out : count_tokens(r); }

/* ---- figures ---- */

typedef struct lists {
  td_stats_list ttft, tbt, tpot, e2e, in_step;
} lists;

static double own_p99(const td_record *r, td_stats_list *scratch)
{
  scratch->n = 0;
  for (size_t i = 1; i < r->n_token_events; i++)
    td_stats_add(scratch, r->token_events[i].at_s - r->token_events[i - 1].at_s);
  return scratch->n > 0 ? td_stats_summarise(scratch).p99 * 1e3 : 0;
}

static void add_times(const td_record *r, const td_measure_config *config, td_record_measures *m, lists *l,
                      td_stats_list *scratch)
{
  double worst_ms = 0, ttft_ms;
  if (r->n_token_events == 0) {
    m->all.n_no_first_token++;
    return;
  }
  const td_token_event *first = &r->token_events[0], *last = &r->token_events[r->n_token_events - 1];
  ttft_ms = (first->at_s - r->due_s) * 1e3;
  td_stats_add(&l->ttft, ttft_ms);
  for (size_t i = 1; i < r->n_token_events; i++) {
    double gap_ms = (r->token_events[i].at_s - r->token_events[i - 1].at_s) * 1e3;
    td_stats_add(&l->tbt, gap_ms);
    worst_ms = gap_ms > worst_ms ? gap_ms : worst_ms;
  }
  for (int k = 0; k < 2; k++)
    m->all.n_stalled[k] += worst_ms > config->stall_ms[k];
  if (r->result != TD_RESULT_DONE)
    return;
  uint32_t n = td_record_tokens(r);
  td_stats_add(&l->e2e, (last->at_s - r->due_s) * 1e3);
  if (n > 1)
    td_stats_add(&l->tpot, (last->at_s - first->at_s) * 1e3 / (n - 1));
  m->all.n_good += ttft_ms <= config->slo_ttft_ms && own_p99(r, scratch) <= config->slo_tbt_ms;
}

static void add_counts(const td_record *r, td_record_measures *m)
{
  m->all.by_result[r->result]++;
  m->n_events += r->n_token_events;
  if (r->result != TD_RESULT_DONE)
    return;
  uint32_t n = td_record_tokens(r);
  m->all.n_done++;
  m->n_short += n < r->n_out;
  m->all.tokens_in += r->has_usage ? r->usage_in : r->n_in;
  m->tokens_cached += r->usage_cached;
  m->tokens_asked += r->n_out;
  m->all.tokens_out += n;
  m->n_merged += n > r->n_token_events ? n - (uint32_t)r->n_token_events : 0;
  m->all_usage &= r->has_usage;
  m->all_counted &= r->counted;
}

/* Tokens that had arrived by `until`. Tokens that had no event of their own are spread evenly over the
 * request's events. */
static double tokens_until(const td_record *r, double until)
{
  uint32_t n_all = count_tokens(r), n_arrived = 0;
  for (size_t i = 0; i < r->n_token_events && r->token_events[i].at_s <= until; i++)
    n_arrived += r->token_events[i].n_tokens;
  return n_all == 0
             ? 0
             : (double)n_arrived * (r->result == TD_RESULT_DONE ? (double)td_record_tokens(r) / n_all : 1);
}

static void add_throughput(const td_record *records, size_t n, const td_measure_config *config,
                           td_record_measures *m)
{
  double tokens = 0, in = 0, done = 0, until = config->window_s > 0 ? config->window_s : m->end_s;
  m->all.seconds = config->window_s > 0 ? config->window_s : m->end_s - m->begin_s;
  for (size_t i = 0; i < n; i++) {
    const td_record *r = &records[i];
    if (r->warm)
      continue;
    bool in_time = r->result == TD_RESULT_DONE && r->end_s <= until;
    tokens += tokens_until(r, until);
    done += in_time;
    in += in_time ? r->n_in : 0;
  }
  if (m->all.seconds > 0) {
    m->all.out_tokens_per_s = tokens / m->all.seconds;
    m->all.in_and_out_tokens_per_s = (tokens + in) / m->all.seconds;
    m->all.requests_per_s = done / m->all.seconds;
  }
}

/* Tokens per second of one stream, between its first and last event in the window. So only whole steps count,
 * and the window's borders cut none. */
static double pace(const td_record *r, double low, double high, td_stats_list *gaps)
{
  const td_token_event *first = NULL, *last = NULL;
  double tokens = 0;
  for (size_t i = 0; i < r->n_token_events; i++) {
    const td_token_event *p = &r->token_events[i];
    if (p->at_s < low || p->at_s > high)
      continue;
    if (first) {
      tokens += p->n_tokens;
      td_stats_add(gaps, (p->at_s - last->at_s) * 1e3);
    } else {
      first = p;
    }
    last = p;
  }
  return tokens > 0 && last->at_s > first->at_s ? tokens / (last->at_s - first->at_s) : 0;
}

static void add_in_step(const td_record *records, size_t n, td_record_measures *m, lists *l)
{
  double low = -INFINITY, high = INFINITY;
  for (size_t i = 0; i < n; i++) {
    const td_record *r = &records[i];
    if (r->warm)
      continue;
    if (r->result != TD_RESULT_DONE || r->n_token_events < 2)
      return;
    low = fmax(low, r->token_events[0].at_s);
    high = fmin(high, r->token_events[r->n_token_events - 1].at_s);
  }
  for (size_t i = 0; i < n && high > low; i++)
    if (!records[i].warm)
      m->in_step_tokens_per_s += pace(&records[i], low, high, &l->in_step);
  m->in_step = l->in_step.n > 0;
  m->in_step_s = m->in_step ? high - low : 0;
}

void td_record_measure(const td_record *records, size_t n, const td_measure_config *config,
                       td_record_measures *m)
{
  lists l = {0};
  td_stats_list scratch = {0};
  *m = (td_record_measures){.begin_s = INFINITY, .all_usage = true, .all_counted = true};
  for (size_t i = 0; i < n; i++) {
    if (records[i].warm)
      continue;
    m->all.n_sent++;
    m->begin_s = fmin(m->begin_s, records[i].sent_s);
    m->end_s = fmax(m->end_s, records[i].end_s);
    add_counts(&records[i], m);
    add_times(&records[i], config, m, &l, &scratch);
  }
  if (m->all.n_sent > 0)
    add_throughput(records, n, config, m);
  add_in_step(records, n, m, &l);
  m->all.ttft = td_stats_summarise(&l.ttft);
  m->all.tbt = td_stats_summarise(&l.tbt);
  m->all.tpot = td_stats_summarise(&l.tpot);
  m->all.e2e = td_stats_summarise(&l.e2e);
  m->in_step_tbt = td_stats_summarise(&l.in_step);
  td_stats_list *all[] = {&l.ttft, &l.tbt, &l.tpot, &l.e2e, &l.in_step, &scratch};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    td_stats_deinit(all[i]);
}

/* ---- as JSON ---- */

void td_record_measures_add(cJSON *o, const td_record_measures *m, const td_measure_config *config)
{
  td_measures_add_json(o, &m->all, config);
  td_stats_add_number(o, "cached_prompt_tokens", (double)m->tokens_cached);
  td_stats_add_number(o, "output_tokens_asked", (double)m->tokens_asked);
  td_stats_add_number(o, "shorter_than_asked", (double)m->n_short);
  td_stats_add_number(o, "token_events", (double)m->n_events);
  td_stats_add_number(o, "merged_tokens", (double)m->n_merged);
  cJSON_AddStringToObject(o, "tokens_counted_by",
                          m->all_usage     ? "usage"
                          : m->all_counted ? "token_ids"
                                           : "events");
  if (m->in_step) {
    cJSON *step = cJSON_AddObjectToObject(o, "while_all_decode");
    td_stats_add_number(step, "seconds", m->in_step_s);
    td_stats_add_number(step, "output_tokens_per_s", m->in_step_tokens_per_s);
    td_stats_add_summary(step, "tbt_ms", &m->in_step_tbt);
  }
}
