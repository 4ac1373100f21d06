/* When will there be room? What Retry-After and the predicted queue delay are made of.
 *
 * Two things hold a newcomer up: prompts before it, which the budget lets through at so many tokens a step;
 * and places and pages, which come free as answers end. How long an answer will be is not known, only the
 * most it may be; the share of it that answers have used lately is. The k-th end from now is read off a
 * histogram of what the running ones, and those that places are free for, still have to say. O(running), no
 * state but two averages. */
#include <math.h>

#include "scheduler/internal.h"

enum { LENGTH_BINS = 32 };
/* How fast the averages follow. */
#define AVERAGE_STEP (1.0 / 16)

void td_sched_note_answer(td_sched *s, const td_request *r)
{
  double share = (double)(r->n_tokens - r->n_prompt) / (r->max_tokens - r->n_prompt);
  s->answer_share += AVERAGE_STEP * (share - s->answer_share);
}

void td_sched_note_request(td_sched *s, uint32_t max_new)
{
  s->answer_asked += (s->answer_asked > 0 ? AVERAGE_STEP : 1) * (max_new - s->answer_asked);
}

static uint32_t n_waiting(const td_sched *s) { return s->order.n_queued + s->order.n_following; }

/* What runs or may start at once, as far as it decides when it ends. */
typedef struct load {
  uint32_t n_running, n_joining;         /* joining: of those that wait, for whom there are places */
  uint32_t n_decodes, bins[LENGTH_BINS]; /* [i]: that have 2^(i-1) to 2^i - 1 steps to go */
  uint64_t kv_tokens, prompt_rest, pages;
  double waiting_tokens, waiting_each; /* of prompts, less what the tree will have of them */
  double answer;                       /* steps that an answer takes */
} load;

static uint32_t bin_of(double steps)
{
  uint32_t i = 0;
  for (steps = fmax(1, steps); steps >= 1 && i + 1 < LENGTH_BINS; steps /= 2)
    i++;
  return i;
}

static load load_of(const td_sched *s)
{
  load l = {.n_running = s->table.n_running, .answer = fmax(1, s->answer_share * s->answer_asked)};
  uint32_t places = s->config.max_running - l.n_running;
  double hits = s->prefix_query_tokens ? (double)s->prefix_hit_tokens / (double)s->prefix_query_tokens : 0;
  for (uint32_t i = 0; i < l.n_running; i++) {
    const td_request *r = &s->table.requests[s->table.running[i]];
    if (r->state == TD_REQUEST_DECODE) {
      l.n_decodes++;
      l.kv_tokens += r->n_tokens;
    } else {
      l.prompt_rest += r->n_tokens - r->n_computed;
    }
    l.pages += r->n_pages;
    /* exact if all go to the end, and if any length is as likely */
    l.bins[bin_of(s->answer_share * (r->max_tokens - r->n_tokens))]++;
  }
  l.n_joining = n_waiting(s) < places ? n_waiting(s) : places;
  l.bins[bin_of(l.answer)] += l.n_joining;
  l.waiting_tokens = (double)s->order.waiting_prompt_tokens * (1 - hits);
  l.waiting_each = n_waiting(s) > 0 ? l.waiting_tokens / n_waiting(s) : 0;
  return l;
}

/* Steps until k have ended; when all have, their places have been taken by others like them. */
static double steps_to_end(const load *l, uint32_t k)
{
  uint32_t n = l->n_running + l->n_joining, before = 0, i = 0;
  if (n == 0 || k == 0)
    return 0;
  double rounds = (k - 1) / n * l->answer;
  k = (k - 1) % n + 1;
  for (; before + l->bins[i] < k; i++)
    before += l->bins[i];
  double low = ldexp(1, (int)i - 1);
  return rounds + low + low * (k - before - 0.5) / l->bins[i];
}

/* Ends that a newcomer needs: places and pages for those before it and itself. */
static uint32_t ends_needed(const td_sched *s, const load *l)
{
  uint32_t n_new = n_waiting(s) + 1, places = s->config.max_running - l->n_running, k = 0;
  if (n_new > places)
    k = n_new - places;
  double need =
      n_new * ceil((l->waiting_each + 1) / s->config.page_tokens) + s->reserved_pages + l->n_running;
  double lack = need - td_sched_available_pages(s);
  if (lack > 0 && l->pages > 0)
    k = (uint32_t)fmax(k, fmin(ceil(lack * l->n_running / (double)l->pages), 1e9));
  return k;
}

/* A step of these decodes, and one with as many prompt tokens as it takes; returns how many. */
static uint32_t step_times(const td_sched *s, uint32_t n_decodes, double kv_tokens, double *decode_us,
                           double *hybrid_us)
{
  td_budget b = s->budget;
  if (n_decodes >= s->config.step_tokens)
    n_decodes = s->config.step_tokens - 1;
  td_budget_begin(&b);
  td_budget_add_decodes(&b, n_decodes, (uint64_t)kv_tokens);
  td_budget_end_decodes(&b);
  *decode_us = n_decodes > 0 ? td_budget_predict_us(&b, &b.work) : 0;
  uint32_t chunk = td_budget_chunk(&b, 0, s->config.step_tokens); /* as if there were prompts enough */
  if (chunk == 0) /* a policy that waits for whole prompts to fit */
    chunk = s->config.step_tokens;
  td_budget_add_chunk(&b, chunk, chunk, false);
  *hybrid_us = td_budget_predict_us(&b, &b.work);
  return chunk;
}

td_sched_forecast td_sched_foresee(const td_sched *s)
{
  td_sched_forecast f = {0};
  if (!s->budget.has_cost || s->table.n_running + n_waiting(s) == 0)
    return f;
  load l = load_of(s);
  double decode_us, hybrid_us, full_decode_us, full_hybrid_us;
  double before = l.waiting_tokens + (double)l.prompt_rest;
  uint32_t chunk = step_times(s, l.n_decodes, (double)l.kv_tokens, &decode_us, &hybrid_us);
  f.prompt_token_us = hybrid_us / chunk;
  f.step_us = before > 0 ? hybrid_us : decode_us;

  double ends_us = 0;
  uint32_t k = ends_needed(s, &l), n_full = l.n_decodes + l.n_joining;
  if (k > 0) { /* places fill first, then each that ends lets one in, whose prompt lengthens some steps */
    double kv_tokens = (double)l.kv_tokens + l.n_joining * (l.waiting_each + l.answer / 2);
    chunk = step_times(s, n_full, kv_tokens, &full_decode_us, &full_hybrid_us);
    double filling_us = ((double)l.prompt_rest + l.n_joining * l.waiting_each) * f.prompt_token_us;
    double prompt_us = l.waiting_each / chunk * (full_hybrid_us - full_decode_us);
    ends_us = filling_us + steps_to_end(&l, k) * full_decode_us + (k - 1) * prompt_us;
  }
  f.start_us = f.step_us / 2 + fmax(before * f.prompt_token_us, ends_us);
  f.next_end_us = steps_to_end(&l, 1) * f.step_us;
  f.end_gap_us = l.answer / (l.n_running + l.n_joining) * f.step_us;
  return f;
}
